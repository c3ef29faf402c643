cluster "web" {
  discovery "static" { endpoints = ["10.0.0.1:80", "10.0.0.2:80"] }
  health_check "tcp" {}
  selector "spread" { policy = "least_weight" }

  connect_timeout = "1s"
  panic_threshold = 50
  on_removal      = "close_after"
  close_after     = "60s"
}
