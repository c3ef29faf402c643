cluster "a" {
  discovery "eds" {}
}
xds {
}
