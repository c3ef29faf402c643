cluster "web" {
  discovery "static" { endpoints = ["10.0.0.1:443"] }
  tls {
    ca_file     = "/etc/tls/ca.pem"
    cert_file   = "/etc/tls/agent.pem"
    key_file    = "/etc/tls/agent-key.pem"
    server_name = "web.internal"
  }
}
