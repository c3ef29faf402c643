cluster "web" {
  discovery "static" { endpoints = ["10.0.0.1:80"] }
  proxy_protocol { version = 2 }
  health_check "tcp" {
    proxy_protocol { version = 2 }
  }
}
