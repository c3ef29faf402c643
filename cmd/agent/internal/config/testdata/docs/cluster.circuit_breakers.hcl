cluster "web" {
  discovery "static" { endpoints = ["10.0.0.1:80", "10.0.0.2:80"] }
  circuit_breakers {
    max_connections              = 1024
    max_connections_per_endpoint = 600
  }
}
