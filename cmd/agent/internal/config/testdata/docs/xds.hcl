xds {
  server_uri = "127.0.0.1:18000"
  clusters   = true
  listeners  = true
}
