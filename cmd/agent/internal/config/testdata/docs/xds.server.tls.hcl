xds {
  clusters = true
  server "control-1.internal:15010" { # the next one only while this one is away
    tls {
      ca_file   = "/etc/gatehouse/ca.pem"
      cert_file = "/etc/gatehouse/cert.pem"
      key_file  = "/etc/gatehouse/key.pem"
    }
    token_file = "/secrets/token"
  }
  server "control-2.internal:15010" {
    tls {}
  }
}
