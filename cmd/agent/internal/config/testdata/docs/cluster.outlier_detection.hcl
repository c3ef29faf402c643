cluster "web" {
  discovery "static" { endpoints = ["10.0.0.1:80", "10.0.0.2:80"] }
  outlier_detection {
    consecutive_5xx      = 3
    max_ejection_percent = 50
  }
}
