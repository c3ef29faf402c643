gate {
  max_storage = 65536
}
cluster "rings" {
  discovery "file" { path = "x" }
  selector "huge" {
    policy            = "ring_hash"
    minimum_ring_size = 8388608
  }
  selector "fits" { policy = "ring_hash" }
  selector "nginx" {
    policy        = "ring_hash"
    hash_function = "ketama"
  }
  selector "wrong in itself" {
    policy            = "ring_hash"
    minimum_ring_size = 8388608
    maximum_ring_size = 4096
  }
}
cluster "tables" {
  discovery "file" { path = "x" }
  selector "default" { policy = "maglev" }
  selector "huge" {
    policy     = "maglev"
    table_size = 5000011
  }
  selector "fits" {
    policy     = "maglev"
    table_size = 1009
  }
}
