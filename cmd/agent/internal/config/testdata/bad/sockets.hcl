cluster "web" {
  discovery "static" { endpoints = [] }
  source_address = ["10.0.0.7", "10.0.0.8"]
  tcp_keepalive {
    keepalive_probes = 3
  }
}

cluster "bad" {
  discovery "static" { endpoints = [{ address = "10.0.0.1:80", additional_addresses = ["[fe80::1%eth0]:80", "10.0.0.2"] }] }
  source_address = ["eth0", "fe80::1%eth0", "0.0.0.0", "224.0.0.1"]
  socket_mark    = 4294967296
  tcp_keepalive {
    keepalive_time     = "10h"
    keepalive_interval = "0s"
    keepalive_probes   = 128
    user_timeout       = "-1s"
  }
  happy_eyeballs_config {
    first_address_family_version = "V6"
    first_address_family_count   = 0
  }
}

cluster "one" {
  discovery "static" { endpoints = [] }
  source_address = "10.0.0.7"
}

listener "tcp" {
  address          = "127.0.0.1:80"
  cluster          = "web"
  tcp_backlog_size = -1
  unix { mode = "0660" }
}

listener "abstract" {
  address = "unix://@gatehouse"
  cluster = "web"
}

listener "unix" {
  address = "unix:///run/s.sock"
  cluster = "web"
  unix {
    mode = "rw-rw----"
  }
}

listener "nobody" {
  address = "unix:///run/n.sock"
  cluster = "web"
  unix { mode = "0" }
}

listener "sticky" {
  address = "unix:///run/t.sock"
  cluster = "web"
  unix { mode = "1777" }
}
