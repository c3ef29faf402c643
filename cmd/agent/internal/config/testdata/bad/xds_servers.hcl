xds {
  server_uri       = "a:1"
  protocol         = "both"
  max_message_size = 5
  server "https://b:1" {
    tls { ca = "x" }
  }
  server "b 1" {}
  server "c:1" {
    initial_metadata = { "X" = 5 }
  }
}
xds {}
