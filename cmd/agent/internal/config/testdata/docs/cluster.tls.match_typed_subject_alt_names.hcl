cluster "web" {
  discovery "static" { endpoints = ["10.0.0.1:443"] }
  tls {
    ca_file = "/etc/tls/ca.pem"
    match_typed_subject_alt_names "dns" { suffix = ".web.internal" }
    match_typed_subject_alt_names "uri" { exact = "spiffe://example.org/web" }
  }
}
