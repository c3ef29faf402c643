admin {
  address = "10.0.0.7:9901"
  tls {
    cert_file      = "/etc/gatehouse/admin.pem"
    key_file       = "/etc/gatehouse/admin-key.pem"
    client_ca_file = "/etc/gatehouse/operators.pem"
  }
}
