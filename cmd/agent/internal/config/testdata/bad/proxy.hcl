cluster "web" {
  discovery "static" { endpoints = [] }
  proxy_protocol {
    version   = 1
    unique_id = true
  }
}

cluster "none" {
  discovery "static" { endpoints = [] }
  proxy_protocol {}
}

cluster "three" {
  discovery "static" { endpoints = [] }
  proxy_protocol { version = 3 }
}

listener "none" {
  address = "127.0.0.1:80"
  cluster = "web"
  proxy_protocol {}
}

listener "nobody" {
  address = "127.0.0.1:81"
  cluster = "web"
  proxy_protocol { accept_from = [] }
}

listener "bad" {
  address = "127.0.0.1:82"
  cluster = "web"
  proxy_protocol {
    accept_from = ["10.0.0.0/33", "lb.internal", "fe80::1%eth0", "10.0.0.1"]
    timeout     = "0s"
    max_pending = 0
  }
}
