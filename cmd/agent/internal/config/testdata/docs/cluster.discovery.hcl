cluster "web" {
  mode = "priority" # the second only when the first is not enough
  discovery "consul" {
    service = "web"
    tags    = ["v2"]
  }
  discovery "dns" {
    name = "_web._tcp.example.org."
    type = "srv"
  }
}

cluster "cache" {
  discovery "static" {
    endpoints = [
      "10.0.0.1:6379",
      { address = "10.0.0.2:6379", weight = 2, locality = { zone = "eu-1b" } },
    ]
  }
}

cluster "jobs" {
  discovery "file" { path = "/etc/gatehouse/jobs.hcl" }
}
