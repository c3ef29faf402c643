cluster "web" {
  discovery "static" { endpoints = ["10.0.0.1:80"] }
  proxy_protocol {
    version           = 2
    pass_through_tlvs = ["0x02"]
  }
}
