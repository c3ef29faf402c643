admin { address = "unix:///run/admin.sock" }
consul {
  adress     = "127.0.0.1:8500"
  tokn       = "s3cr3t"
  ssl        = "yes"
  http_auth  = 7
  token      = s3cr3t
  wait_time  = "11m"
  max_watches = 129
  max_stale  = "0s"
  empty_hold = 30
  register {
    name             = 7
    meta             = { version = 2 }
    tags             = "a"
    check_interval   = "1ms"
    deregister_after = "-1m"
    port             = 1
  }
}
cluster "web" {
  discovery "consul" {
    service_name = "web"
    servce       = "web"
    node_meta    = ["a"]
    kinds        = ["mesh-gatway"]
    address      = "Wan"
    nearest      = 0
    consistency  = "strong"
    cached       = "no"
    poll_interval = "fast"
  }
  discovery "file" {
    path    = "x"
    service = "web"
  }
  required = "no"
}
