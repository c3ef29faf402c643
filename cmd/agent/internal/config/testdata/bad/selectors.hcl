cluster "web" {
  discovery "file" { path = "x" }
  selector "even" {
    policy     = "maglev"
    table_size = 65536
  }
  selector "huge" {
    policy     = "maglev"
    table_size = 5000023
  }
  selector "none" {
    policy     = "maglev"
    table_size = 0
  }
  selector "least" {
    policy        = "maglev"
    table_size    = 2
    hash_function = "ketama"
  }
  selector "nginx" {
    policy            = "ring_hash"
    hash_function     = "ketama"
    minimum_ring_size = 1024
  }
  selector "both wrong" {
    policy            = "ring_hash"
    hash_function     = "ketama"
    minimum_ring_size = 0
  }
  selector "small" {
    policy            = "ring_hash"
    hash_function     = "ketama"
    maximum_ring_size = 10
  }
  selector "slip" {
    policy        = "ring_hash"
    hash_function = "xxhash"
  }
  selector "unknown" {
    policy            = "magleff"
    table_size        = 4
    minimum_ring_size = 5
    latency_of        = "first_byte"
  }
  selector "random" {
    policy     = "random"
    table_size = 65537
  }
  selector "by connect" { policy = "adaptive" }
  selector "by first byte" {
    policy     = "adaptive"
    latency_of = "first_byte"
  }
  selector "by connect too" {
    policy     = "adaptive"
    latency_of = "connect"
  }
  selector "by priority" {
    policy     = "adaptive"
    rank       = "priority"
    latency_of = "last_byte"
  }
}
cluster "api" {
  discovery "file" { path = "x" }
  selector "a" {
    policy     = "adaptive"
    latency_of = "first_byte"
  }
  selector "b" { policy = "adaptive" }
}
