dns {
  nameservers = ["10.0.0.53", "10.0.1.53"]
  stagger     = "100ms"
  timeout     = "1s"
}
