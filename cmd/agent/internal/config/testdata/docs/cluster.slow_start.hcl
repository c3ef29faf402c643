cluster "web" {
  discovery "static" { endpoints = ["10.0.0.1:80", "10.0.0.2:80"] }
  slow_start { window = "60s" }
}
