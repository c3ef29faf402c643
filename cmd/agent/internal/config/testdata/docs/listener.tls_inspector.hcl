cluster "web" {
  discovery "static" { endpoints = ["10.0.0.1:443", "10.0.0.2:443"] }
  selector "sticky" { policy = "ring_hash" }
}

listener "web" {
  address = "127.0.0.1:8443"
  cluster = "web"
  hash_on = "sni"
  tls_inspector { timeout = "2s" }
}
