cluster "web" {
  discovery "file" { path = "x" }
  on_absent = "stabilise"
  health_check "tcp" { interval = "0s" }
  health_check "tcp" {
    interval = "1s"
    timeout  = "2s"
  }
  health_check "tcp" { send = "0xzz" }
  health_check "tcp" { receive = ["PONG", "0x0"] }
  health_check "udp" {}
  health_check "http" { path = "health" }
  health_check "http" { host = "*" }
  health_check "http" { headers = { Connection = "close" } }
  health_check "http" { headers = "Authorization: Bearer x" }
  health_check "http" { service_name = "a" }
  health_check "grpc" { authority = "*" }
  health_check "grpc" { headers = { "grpc-timeout" = "1S" } }
  health_check "tcp" {
    unhealthy_interval          = "0s"
    no_traffic_healthy_interval = "1m"
    alt_port                    = 65536
    share                       = "no"
    proxy_protocol {}
    tls { cert_file = "/cert.pem" }
  }
  health_check "tcp" {
    proxy_protocol { version = 3 }
    tls { ca_file = 7 }
  }
}
cluster "unchecked" {
  discovery "file" { path = "x" }
  on_absent = "stabilize"
}
