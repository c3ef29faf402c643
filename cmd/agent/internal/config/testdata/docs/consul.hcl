consul {
  address    = "127.0.0.1:8500"
  token_file = "/secrets/consul_token"
  listeners  = true
}
