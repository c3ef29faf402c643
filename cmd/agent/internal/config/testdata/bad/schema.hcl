drain_timout  = "5s"
drain_timeout = 5
log { level = "loud" }
gate {
  stuck_after = "0s"
  max_stuck   = 0
}
gate {
  max_stuck = 3.5
}
idle_timeout = "1h"
quotas {
  max_connections = 0
}
telemetry = { statsd_address = "x" }
xds {
  bootstrap = "/b.json"
  max_watches = 7
}
drain_timeout {
}
cluster {
}
cluster "" {
  discovery "nats" { service = "x" }
}
cluster "b" "c" {
}
cluster "web" {
  discovery "eds" {
    path = "x"
  }
  discovery "file" {
  }
  discovery "file" {
    path = ""
  }
  discovery "static" {
    endpoints = ["127.0.0.1:0", { address = "10.0.0.1:80", wieght = 2 }]
  }
  discovery "static" {
    endpoints = "127.0.0.1:1"
  }
  health_check "http" {
    interval          = "5 seconds"
    timeout           = true
    expected_statuses = [200, "300-299", 600, true, null]
    send              = "x"
    initial           = "sick"
  }
  health_check "tcp" {
    send    = 7
    receive = ["ok", "0x0", "0xzz"]
  }
  health_check "tcp" {
    receive           = "ok"
    healthy_threshold = "many"
    send              = -"x"
  }
  selector "a" {
    policy            = "ringhash"
    minimum_ring_size = 0
  }
  selector "b" {
    policy            = "ring_hash"
    maximum_ring_size = 8388609
    choice_count      = 3
  }
  selector "b" {
    policy              = "least_weight"
    active_request_bias = true
    choice_count        = 11
  }
  max_connect_attempts = 9
  connect_timeout      = 1e9999999
}
cluster "web" {
  discovery "static" {
    endpoints = foo(1)
  }
}
listener "web" {
  address         = "localhost:80"
  cluster         = web
  hash_on         = null
  max_connections = -1
  idle_timeout    = "${"1h"}"
}
listener "a" {
  address         = ":80"
  cluster         = "web"
  selector        = ["a"]
  max_connections = "7"
}
listener "b" {
  address         = "unix://relative"
  max_connections = 1 + 1
}
node {
  id       = ""
  metadata = [1]
  locality {
    zone   = "a"
    region = { a = 1 }
  }
  locality {
    zone = "b"
  }
}
