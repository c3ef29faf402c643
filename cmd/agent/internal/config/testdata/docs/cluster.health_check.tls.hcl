cluster "web" {
  discovery "static" { endpoints = ["10.0.0.1:443"] }
  health_check "http" {
    path = "/health"
    tls {
      ca_file     = "/etc/tls/ca.pem"
      server_name = "web.internal"
    }
  }
}
