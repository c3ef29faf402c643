cluster "web" {
  discovery "static" { endpoints = ["10.0.0.1:80", "10.0.0.2:80"] }
  selector "spread" { # listeners that name none have the first
    policy       = "least_weight"
    choice_count = 3
  }
  selector "sticky" {
    policy              = "ring_hash"
    hash_balance_factor = 125
  }
  selector "nginx" {
    policy        = "ring_hash"
    hash_function = "ketama"
  }
  selector "table" { policy = "maglev" }
  selector "fast" {
    policy     = "adaptive"
    latency_of = "first_byte"
  }
}
