admin {
  address = "10.0.0.7:9901"
  unix {
    mode = "0660"
  }
  tls {
    cert_file      = "/etc/tls/admin.pem"
    client_ca_file = "/etc/tls/operators.pem"
  }
}
