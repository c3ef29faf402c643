xds {
  clusters   = true
  server_uri = "https://control:15010"
}
listener "a" {
  address  = "127.0.0.1:80"
  cluster  = "theirs"
  selector = "sticky"
}
