cluster "web" {
  discovery "static" { endpoints = ["10.0.0.1:80", "10.0.0.2:80"] }
}

listener "web" {
  address = "unix:///run/gatehouse/web.sock"
  cluster = "web"
  unix {
    mode  = "0660"
    group = "www-data"
  }
}
