cluster "web" {
  discovery "static" { endpoints = ["10.0.0.1:80"] }
  tcp_keepalive {
    keepalive_time = "30s"
    user_timeout   = "1m"
  }
}
