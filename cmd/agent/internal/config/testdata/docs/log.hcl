log {
  level = "warn"
  json  = true
}
