cluster "api" {
  discovery "consul" {
    service = "api"
    connect = true
  }
  connect { service = "web" } # who dials
}
