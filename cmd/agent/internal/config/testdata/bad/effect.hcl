# Settings that have no effect.
drain_timeout = "5s"
drain_spread  = "3s"

cluster "keeps" {
  discovery "static" { endpoints = [] }
  close_after = "30s"
}

cluster "closes" {
  discovery "static" { endpoints = [] }
  on_removal  = "close"
  close_after = "30s"
}

cluster "good" {
  discovery "static" { endpoints = [] }
  on_unhealthy = "close_after"
  close_after  = "30s"
}

listener "jitter" {
  address = "127.0.0.1:80"
  cluster = "good"

  max_connection_duration_jitter_percentage = 10
}

listener "tls" {
  address = "127.0.0.1:81"
  cluster = "good"
  hash_on = "sni"
  tls_inspector {
    timeout = "3s"
  }
  tls {
    cert_file = "/etc/tls/server.pem"
    key_file  = "/etc/tls/server-key.pem"
  }
}

listener "good" {
  address = "127.0.0.1:82"
  cluster = "good"
  hash_on = "sni"
  tls {
    cert_file = "/etc/tls/server.pem"
    key_file  = "/etc/tls/server-key.pem"
  }
}
