# Whoever reaches this could change what the agent does.
admin {
  address = "0.0.0.0:9901"
  tls {
    cert_file = "/etc/tls/admin.pem"
    key_file  = "/etc/tls/admin-key.pem"
  }
}
