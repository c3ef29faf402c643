cluster "web" {
  discovery "static" { endpoints = ["10.0.0.1:80", "10.0.0.2:80"] }
}

listener "web" {
  address = "10.0.0.7:8443"
  cluster = "web"
  tls {
    cert_file  = "/etc/tls/web.pem"
    key_file   = "/etc/tls/web-key.pem"
    ca_file    = "/etc/tls/clients.pem"
    spiffe_ids = ["spiffe://example.org"]

    require_client_certificate = true
  }
}
