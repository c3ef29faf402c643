node { id = "" }
telemetry {
  statsd_address = "127.0.0.1:99999"
  metrics_prefix = "9-lives"
  statsite_address = ":8125"
  dogstatsd_tags = ["env:blue"]
  prefix_filter = ["gatehouse.cluster", "-"]
}
cluster "none" {
}
cluster "eds" {
  discovery "eds" {}
  selector "small" {
    policy            = "ring_hash"
    minimum_ring_size = 20
    maximum_ring_size = 10
  }
  selector "default" {
    policy            = "ring_hash"
    maximum_ring_size = 10
  }
}
cluster "checks" {
  discovery "file" { path = "x" }
  health_check "tcp" {
    interval = "1s"
    timeout  = "2s"
  }
  health_check "tcp" {
    interval = "500ms"
    receive  = [""]
  }
  health_check "http" { path = "health" }
  health_check "http" { path = "/a b" }
  health_check "http" { host = "a/b" }
}
listener "a" {
  address = "127.0.0.1:80"
  cluster = "check"
}
listener "b" {
  address  = "127.0.0.1:80"
  cluster  = "eds"
  selector = "smal"
}
listener "c" {
  address  = "0.0.0.0:80"
  cluster  = "elsewhere"
  selector = "default"
}
listener "d" {
  address = "unix:///run/a.sock"
  cluster = "checks"
}
listener "e" {
  address  = "unix:///run/a.sock"
  cluster  = "checks"
  selector = "default"
}
listener "f" {
  address = "0.0.0.0:9901"
  cluster = "checks"
}
