consul {}

cluster "local" {
  discovery "static" { endpoints = ["127.0.0.1:8080"] }
}

listener "api" {
  address = "10.0.0.7:21000"
  cluster = "local"
  connect {
    service           = "api" # whose clients come
    handshake_timeout = "5s"
  }
}
