cluster "web" {
  discovery "static" { endpoints = ["10.0.0.1:80", "10.0.0.2:80"] }
}

cluster "web-next" {
  discovery "static" { endpoints = ["10.0.1.1:80"] }
}

listener "web" {
  address = "127.0.0.1:8080"
  weighted_cluster "web" { weight = 90 }
  weighted_cluster "web-next" { weight = 10 }
}
