cluster "web" {
  discovery "static" { endpoints = ["10.0.0.1:80", "10.0.0.2:80"] }
}

listener "web" {
  address = "10.0.0.7:8080"
  cluster = "web"
  proxy_protocol { accept_from = ["10.0.0.0/8"] }
}
