node {
  id      = "node-7"
  cluster = "edge"
  locality {
    region = "eu"
    zone   = "eu-1a"
  }
  metadata = { role = "edge" }
}
