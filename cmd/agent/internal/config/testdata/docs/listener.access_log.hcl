cluster "web" {
  discovery "static" { endpoints = ["10.0.0.1:80", "10.0.0.2:80"] }
}

listener "web" {
  address = "127.0.0.1:8080"
  cluster = "web"
  access_log {
    path   = "stdout"
    format = "json"
  }
  access_log {
    path   = "/var/log/gatehouse/web.log"
    format = "[%START_TIME%] %RESPONSE_FLAGS% %DOWNSTREAM_REMOTE_ADDRESS% %UPSTREAM_HOST% %BYTES_SENT%"
  }
}
