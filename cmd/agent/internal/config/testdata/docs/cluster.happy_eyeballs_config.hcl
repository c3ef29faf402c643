cluster "web" {
  discovery "static" {
    endpoints = [{ address = "10.0.0.4:80", additional_addresses = ["[2001:db8::4]:80"] }]
  }
  happy_eyeballs_config { first_address_family_version = "v6" }
}
