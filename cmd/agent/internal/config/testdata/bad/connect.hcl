cluster "plain" {
  discovery "consul" { connect = true }
}

cluster "mixed" {
  discovery "consul" { connect = true }
  discovery "static" { endpoints = ["127.0.0.1:1"] }
  connect { service = "client" }
}

cluster "twice" {
  discovery "consul" { connect = true }
  connect { service = "a/b" }
  tls {}
  health_check "http" { path = "/" }
  health_check "tcp" { send = "PING" }
  health_check "tcp" {}
}

cluster "nobody" {
  discovery "consul" { connect = true }
  connect {}
}

cluster "elsewhere" {
  discovery "static" {
    endpoints = ["127.0.0.1:1"]
    connect   = true
  }
}

listener "twice" {
  address = "127.0.0.1:80"
  cluster = "plain"
  hash_on = "sni"
  tls_inspector { timeout = "1s" }
  connect { service = "" }
  tls {
    cert_file = "server.pem"
    key_file  = "server-key.pem"
  }
}
