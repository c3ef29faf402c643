cluster "web" {
  discovery "static" { endpoints = [] }
  tls {
    cert_file      = "client.pem"
    server_nam     = "web.internal"
    alpn_protocols = ["h2", ""]
    spiffe_ids     = ["example.org", "spiffe://Example.org/x"]
    match_typed_subject_alt_names "dns" {
      exact  = "web.internal"
      prefix = "web"
    }
    match_typed_subject_alt_names "ip_address" { exact = "web" }
    match_typed_subject_alt_names "uri" { regex = "(" }
    match_typed_subject_alt_names "ip" { exact = "10.0.0.1" }
    tls_minimum_protocol_version = "TLSv1_1"
  }
}

cluster "backwards" {
  discovery "static" { endpoints = [] }
  tls {
    server_name                  = "https://web.internal"
    tls_minimum_protocol_version = "TLSv1_3"
    tls_maximum_protocol_version = "TLSv1_2"
  }
}

listener "nothing" {
  address = "127.0.0.1:80"
  cluster = "web"
  tls {}
}

listener "who" {
  address = "127.0.0.1:81"
  cluster = "web"
  tls {
    cert_file                  = "server.pem"
    key_file                   = "server-key.pem"
    require_client_certificate = true
    handshake_timeout          = "0s"
    max_handshakes             = 0
  }
}

listener "anybody" {
  address = "127.0.0.1:82"
  cluster = "web"
  tls {
    cert_file = "server.pem"
    key_file  = "server-key.pem"
    ca_file   = "ca.pem"
    match_typed_subject_alt_names "any" { exact = "client" }
  }
}

listener "key" {
  address = "127.0.0.1:83"
  cluster = "web"
  tls {
    cert_file  = "server.pem"
    key_file   = ""
    spiffe_ids = ["spiffe://example.org"]
    tls_certificates "a" {
      cert_file = "a.pem"
    }
    tls_certificates "a" {
      cert_file = "a.pem"
      key_file  = "a-key.pem"
    }
  }
}
