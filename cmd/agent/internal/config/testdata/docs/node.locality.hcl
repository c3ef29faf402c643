node {
  locality {
    region   = "eu"
    zone     = "eu-1a"
    sub_zone = "rack-3"
  }
}
