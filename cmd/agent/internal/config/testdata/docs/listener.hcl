cluster "web" {
  discovery "static" { endpoints = ["10.0.0.1:80", "10.0.0.2:80"] }
}

listener "web" {
  address         = "127.0.0.1:8080"
  cluster         = "web"
  idle_timeout    = "10m"
  max_connections = 1000
}
