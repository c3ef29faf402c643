cluster "web" {
  discovery "static" { endpoints = ["10.0.0.1:80"] }
  health_check "http" {
    path              = "/health"
    interval          = "5s"
    timeout           = "1s"
    expected_statuses = [204, "200-201"]
  }
}

cluster "redis" {
  discovery "static" { endpoints = ["10.0.0.2:6379"] }
  health_check "tcp" {
    send    = "PING\r\n"
    receive = ["+PONG"]
  }
}

cluster "api" {
  discovery "static" { endpoints = ["10.0.0.3:50051"] }
  health_check "grpc" { service_name = "api.v1.Api" }
}
