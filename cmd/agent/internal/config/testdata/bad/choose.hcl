cluster "web" {
  discovery "file" { path = "/etc/gatehouse/web.json" }
  selector "sticky" { policy = "ring_hash" }
  proxy_protocol {
    version           = 1
    pass_through_tlvs = ["all"]
  }
}

cluster "old" {
  discovery "file" { path = "/etc/gatehouse/old.json" }
  proxy_protocol {
    version           = 2
    pass_through_tlvs = ["all", "0xea"]
  }
}

cluster "new" {
  discovery "file" { path = "/etc/gatehouse/new.json" }
  proxy_protocol {
    version           = 2
    pass_through_tlvs = ["ea", "0x1ea"]
  }
}

listener "both" {
  address = "127.0.0.1:8001"
  cluster = "web"
  weighted_cluster "old" { weight = 1 }
}

listener "neither" {
  address = "127.0.0.1:8002"
}

listener "weights" {
  address  = "127.0.0.1:8003"
  selector = "sticky"
  weighted_cluster "web" { weight = 4294967295 }
  weighted_cluster "odl" { weight = 1 }
  weighted_cluster "old" { weight = 0 }
  weighted_cluster "web" { weight = 1 }
}

listener "sum" {
  address  = "127.0.0.1:8004"
  selector = "sticky"
  weighted_cluster "web" { weight = 4294967295 }
  weighted_cluster "old" { weight = 1 }
}

listener "no header" {
  address = "127.0.0.1:8005"
  cluster = "web"
  hash_on = "proxy_tlv:0xea"
}

listener "checksum" {
  address = "127.0.0.1:8006"
  cluster = "web"
  hash_on = "proxy_tlv:0x03"
  proxy_protocol { accept_from = ["10.0.0.0/8"] }
}

listener "spelling" {
  address = "127.0.0.1:8007"
  cluster = "web"
  hash_on = "proxy_tlv:ea"
  tls_inspector { timeout = "1s" }
}

listener "idle inspector" {
  address = "127.0.0.1:8008"
  cluster = "web"
  hash_on = "source_ip_port"
  tls_inspector { max_pending = 1 }
}

listener "socket" {
  address      = "unix:///run/gatehouse/web.sock"
  cluster      = "web"
  original_dst = true
}
