cluster "ranges" {
  discovery "file" { path = "x" }
  panic_threshold          = 101
  overprovisioning_factor  = 0
  locality_weighted        = "yes"
  weighted_priority_health = 1
  slow_start {
    window             = "0s"
    aggression         = 0
    min_weight_percent = 100.5
  }
  selector "low" {
    policy              = "ring_hash"
    hash_balance_factor = 99
  }
  selector "negative" {
    policy              = "maglev"
    hash_balance_factor = -1
  }
  selector "other" {
    policy              = "least_weight"
    hash_balance_factor = 100
  }
}
cluster "negative" {
  discovery "file" { path = "x" }
  panic_threshold         = -1
  overprovisioning_factor = 1e30
  prefer_local            = true
  slow_start {
    aggression         = -0.5
    min_weight_percent = -1
    windw              = "60s"
  }
}
cluster "half" {
  discovery "file" { path = "x" }
  panic_threshold = 0.5
  slow_start {}
}
cluster "twice" {
  discovery "file" { path = "x" }
  slow_start { window = 60 }
  slow_start { window = "60s" }
}
cluster "catalog" {
  discovery "file" { path = "x" }
  discovery "consul" {}
  locality_weighted = true
}
cluster "places" {
  discovery "static" {
    endpoints = [
      { address = "10.0.0.1:80", locality = { zone = "a" }, locality_weight = 4294967295 },
      { address = "10.0.0.2:80", locality = { zone = "a" } },
      { address = "10.0.0.3:80", locality = { zone = "a" }, locality_weight = 2 },
      { address = "10.0.0.4:80", locality = { zone = "b" }, locality_weight = -1 },
      { address = "10.0.0.5:80", locality = { zone = "c" }, locality_weight = 4294967296 },
    ]
  }
}
cluster "sum" {
  discovery "static" {
    endpoints = [
      { address = "10.0.0.1:80", locality = { zone = "a" }, locality_weight = 4294967295 },
      "10.0.0.2:80",
    ]
  }
}
cluster "only hashes" {
  discovery "file" { path = "x" }
  slow_start {
    window     = "60s"
    aggression = 2
  }
  selector "ring" { policy = "ring_hash" }
  selector "table" { policy = "maglev" }
}
cluster "one that grows" {
  discovery "file" { path = "x" }
  slow_start { window = "60s" }
  selector "ring" { policy = "ring_hash" }
  selector "spread" { policy = "least_weight" }
}
