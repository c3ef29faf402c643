dns {
  nameservers = "192.0.2.53"
  ndots       = 16
  stagger     = "0s"
  timeout     = 2
  attempts    = 6
  nameserver  = "192.0.2.53"
}
cluster "web" {
  mode = "both"
  locality_weighted = true
  discovery "dns" {
    type       = "srv"
    port_name  = "http"
    misses     = 0
    min_ttl    = "1ms"
  }
  discovery "dns" {
    name          = "web.internal."
    type          = "cname"
    port          = 65536
    hold_nxdomain = "-1s"
  }
}
