xds {
  clusters           = true
  user_agent_name    = "envoy" # Consul's server asks for Envoy's version
  user_agent_version = "1.24.10"
  server "127.0.0.1:8502" {
    initial_metadata_files = { x-consul-token = "/secrets/consul_token" }
  }
}
