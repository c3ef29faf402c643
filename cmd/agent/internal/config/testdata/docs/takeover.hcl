takeover {
  socket  = "/run/gatehouse/takeover.sock"
  timeout = "2m"
}
