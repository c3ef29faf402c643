cluster "web" {
  discovery "static" {
    endpoints = ["127.0.0.1:9001"]
  }
  health_check "tcp" {
    intervall = "5s"
  }
  connect_timeout = "5 seconds"
}

listener "web" {
  address = "127.0.0.1:8080"
  cluster = "wbe"
}
