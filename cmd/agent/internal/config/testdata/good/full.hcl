# Every block and argument there is.
node {
  id      = "node-7"
  cluster = "edge"
  locality {
    region   = "eu"
    zone     = "eu-1a"
    sub_zone = "rack-3"
  }
  metadata = {
    role    = "edge"
    weight  = 2.5
    canary  = true
    labels  = ["a", "b"]
    nothing = null
    nested  = { x = -1 }
  }
}

admin {
  address    = "10.0.0.7:9902"
  token_file = "/etc/gatehouse/admin-token"
  tls {
    cert_file      = "/etc/tls/admin.pem"
    key_file       = "/etc/tls/admin-key.pem"
    client_ca_file = "/etc/tls/operators.pem"
  }
}

log {
  level = "warn"
  json  = true
}

gate {
  stuck_after = "2s"
  max_stuck   = 7
  max_storage = 8388608
}

relay {
  event_loops = 3
}

limits { max_connections = 5000 }

health { workers = 64 }

telemetry {
  prometheus_retention_time = "1m"
  statsd_address            = "statsd.internal:8125"
  statsite_address          = "statsite.internal:8125"
  dogstatsd_addr            = "unix:///run/datadog/dsd.socket"
  dogstatsd_tags            = ["env:blue", "canary"]
  prefix_filter             = ["-edge_1.selector", "+edge_1.selector.panic"]
  filter_default            = false
  disable_hostname          = false
  metrics_prefix            = "edge_1"
}

xds {
  protocol           = "delta"
  user_agent_name    = "envoy"
  user_agent_version = "1.30.1"
  max_message_size   = 16777216
  clusters           = true
  listeners          = true
  server "dns:///control:15010" {
    token_file             = "/run/control/token"
    initial_metadata       = { x-tenant = "blue" }
    initial_metadata_files = { x-consul-token = "/run/consul/token" }
    tls {
      ca_file     = "/etc/control/ca.pem"
      cert_file   = "/etc/control/cert.pem"
      key_file    = "/etc/control/key.pem"
      server_name = "control.internal"
    }
  }
  server "second:15010" {}
}

consul {
  address         = "https://consul.internal:8501"
  ssl             = true
  token_file      = "/run/consul/token"
  http_auth       = "user:password"
  ca_file         = "/etc/consul/ca.pem"
  ca_path         = "/etc/consul/ca"
  cert_file       = "/etc/consul/cert.pem"
  key_file        = "/etc/consul/key.pem"
  tls_server_name = "client.dc1.consul"
  ssl_verify      = false
  datacenter      = "dc1"
  namespace       = "ns"
  partition       = "part"
  wait_time       = "2m"
  max_watches     = 10
  max_stale       = "5s"
  empty_hold      = "1m"
  listeners       = true
  register {
    name             = "edge"
    id               = "edge-7"
    tags             = ["a", "b"]
    meta             = { rack = "3" }
    address          = "10.0.0.7"
    check_interval   = "5s"
    check_timeout    = "1s"
    deregister_after = "1h"
  }
}

takeover {
  socket  = "/run/gatehouse/next.sock"
  timeout = "5m"
}

state_dir       = "/var/lib/gatehouse"
stale_is_ready  = false
initial_timeout = "1m"
drain_timeout   = "20s"
drain_spread    = "3s"

dns {
  nameservers = ["192.0.2.53", "[2001:db8::53]:5353"]
  resolv_conf = "/run/resolv.conf"
  search      = ["internal"]
  ndots       = 2
  stagger     = "100ms"
  timeout     = "1s"
  attempts    = 3
  tcp         = true
}

cluster "web" {
  mode = "priority"
  discovery "eds" {}
  discovery "eds" { service_name = "web-v2" }
  discovery "file" { path = "/etc/gatehouse/web.json" }
  discovery "consul" {}
  discovery "consul" {
    service        = "web"
    tags           = ["v2"]
    node_meta      = { zone = "a" }
    datacenter     = "dc2"
    namespace      = "n"
    partition      = "p"
    address        = "wan"
    port_name      = "http"
    socket_paths   = true
    kinds          = ["mesh-gateway"]
    near           = "_agent"
    nearest        = 5
    consistency    = "default"
    cached         = true
  }
  discovery "consul" {
    prepared_query = "nearest-web"
    poll_interval  = "30s"
    peer           = "other"
    sameness_group = "group"
  }
  discovery "dns" {
    name = "web.internal."
    type = "a+aaaa"
    port = 8080
  }
  discovery "dns" {
    name          = "_web._tcp.service.consul."
    type          = "srv"
    targets       = "a"
    nameservers   = ["127.0.0.1:8600"]
    tcp           = true
    min_ttl       = "2s"
    max_ttl       = "1m"
    refresh       = "10s"
    refresh_limit = "1s"
    min_backoff   = "2s"
    max_backoff   = "1m"
    misses        = 3
    hold_nxdomain = "1m"
    hold_nodata   = "2m"
    hold_refused  = "1h"
    hold_timeout  = "2h"
  }
  discovery "static" {
    endpoints = [
      "127.0.0.1:9001",
      { address = "[::1]:9002", weight = 3, locality = { zone = "eu-1b" }, locality_weight = 7 },
      "unix:///run/web.sock",
    ]
  }

  on_absent = "stabilize"

  health_check "tcp" {
    interval                = "500ms"
    timeout                 = "500ms"
    healthy_threshold       = 1
    unhealthy_threshold     = 1000
    initial_jitter          = "1s"
    interval_jitter         = "100ms"
    interval_jitter_percent = 10
    initial                 = "healthy"
    send                    = "PING\r\n"
    receive                 = ["+PONG", "0x0d0A", "00x"]

    unhealthy_interval          = "1s"
    unhealthy_edge_interval     = "2s"
    healthy_edge_interval       = "3s"
    no_traffic_interval         = "1m"
    no_traffic_healthy_interval = "2m"
    share                       = false
    always_log_failures         = true
    alt_port                    = 8081
    proxy_protocol { version = 2 }
    tls {
      ca_file        = "/etc/gatehouse/ca.pem"
      cert_file      = "/etc/gatehouse/cert.pem"
      key_file       = "/etc/gatehouse/key.pem"
      server_name    = "redis.internal"
      alpn_protocols = ["redis"]
    }
  }
  health_check "grpc" {
    service_name = "a.B"
    authority    = "api.internal"
    headers      = { authorization = "Bearer x" }
    tls {}
  }
  health_check "http" {
    method             = "HEAD"
    path               = "/health?full=1"
    host               = "web.internal"
    headers            = { X-Probe = "1" }
    expected_statuses  = [200, "204", "300-399"]
    retriable_statuses = [503]
  }

  selector "sticky" {
    policy            = "ring_hash"
    minimum_ring_size = 1
    maximum_ring_size = 4096
    hash_function     = "murmur_hash_2"

    hash_balance_factor = 125
  }
  selector "spread" {
    policy              = "least_weight"
    choice_count        = 10
    active_request_bias = 0.5
  }
  selector "turns" {
    policy = "round_robin"
  }
  selector "any" {
    policy = "random"
  }
  selector "nginx" {
    policy            = "ring_hash"
    maximum_ring_size = 1000
    hash_function     = "ketama"
  }
  selector "table" {
    policy     = "maglev"
    table_size = 5000011
  }
  selector "fast" {
    policy     = "adaptive"
    rank       = "inverse"
    latency_of = "first_byte"
  }
  connect_timeout      = "250ms"
  max_connect_attempts = 8
  required             = false
  on_removal           = "close_after"
  on_unhealthy         = "close"
  close_after          = "10s"
  circuit_breakers {
    max_connections              = 2000
    max_pending_requests         = 200
    max_connections_per_endpoint = 20
  }
  outlier_detection {
    interval                                    = "1s"
    base_ejection_time                          = "400s"
    max_ejection_time                           = "20m"
    max_ejection_time_jitter                    = "3s"
    max_ejection_percent                        = 50
    always_eject_one_host                       = true
    successful_active_health_check_uneject_host = false
    consecutive_5xx                             = 3
    enforcing_consecutive_5xx                   = 99
    consecutive_gateway_failure                 = 0
    enforcing_consecutive_gateway_failure       = 1
    success_rate_minimum_hosts                  = 6
    success_rate_request_volume                 = 10
    success_rate_stdev_factor                   = 1500
    enforcing_success_rate                      = 0
    failure_percentage_threshold                = 50
    failure_percentage_minimum_hosts            = 2
    failure_percentage_request_volume           = 4294967295
    enforcing_failure_percentage                = 100
  }

  panic_threshold                 = 50
  prefer_local                    = true
  ignore_new_hosts_until_first_hc = true
  overprovisioning_factor         = 100
  weighted_priority_health        = true
  slow_start {
    window             = "1m"
    aggression         = 1.5
    min_weight_percent = 0.5
  }
  proxy_protocol {
    version   = 2
    unique_id = true
    pass_through_tlvs = ["0xEA", "0x02"]
  }
  tls {
    ca_file        = "/etc/tls/ca.pem"
    cert_file      = "/etc/tls/client.pem"
    key_file       = "/etc/tls/client-key.pem"
    server_name    = "web.internal"
    alpn_protocols = ["h2", "http/1.1"]
    spiffe_ids     = ["spiffe://example.org/web"]
    match_typed_subject_alt_names "dns" {
      suffix      = ".web.internal"
      ignore_case = true
    }
    match_typed_subject_alt_names "ip_address" { exact = "10.0.0.1" }
    match_typed_subject_alt_names "uri" { prefix = "spiffe://example.org/" }
    match_typed_subject_alt_names "email" { regex = ".+@example.org" }
    match_typed_subject_alt_names "any" { contains = "web" }
    tls_minimum_protocol_version = "TLSv1_3"
    max_session_keys             = 0
  }
  source_address = ["10.0.0.7", "2001:db8::7"]
  socket_mark    = 4294967295
  tcp_keepalive {
    keepalive_time     = "0s"
    keepalive_interval = "5s"
    keepalive_probes   = 3
    user_timeout       = "0s"
  }
  happy_eyeballs_config {
    first_address_family_version = "v6"
    first_address_family_count   = 2
  }
}

cluster "weighted" {
  discovery "file" { path = "/etc/gatehouse/w.json" }
  outlier_detection {
    split_external_local_origin_errors         = true
    consecutive_local_origin_failure           = 7
    enforcing_consecutive_local_origin_failure = 70
    enforcing_local_origin_success_rate        = 71
    enforcing_failure_percentage_local_origin  = 72
  }
  locality_weighted = true
  selector "table" {
    policy              = "maglev"
    hash_balance_factor = 100
  }
}

cluster "mesh" {
  discovery "consul" { connect = true }
  connect { service = "client" }
}

listener "web" {
  address             = "127.0.0.1:8080"
  cluster             = "web"
  selector            = "spread"
  hash_on             = "source_ip"
  idle_timeout        = "0s"
  half_closed_timeout = "10s"
  max_connections     = 1000

  max_connection_duration                   = "12h"
  max_connection_duration_jitter_percentage = 12.5
  proxy_protocol {
    accept_from = ["10.1.2.3/8", "2001:db8::7"]
    optional    = true
    timeout     = "2s"
    max_pending = 50
  }
  tls {
    cert_file                  = "/etc/tls/server.pem"
    key_file                   = "/etc/tls/server-key.pem"
    ca_file                    = "/etc/tls/clients.pem"
    require_client_certificate = true
    alpn_protocols             = ["h2"]
    spiffe_ids                 = ["spiffe://example.org"]
    match_typed_subject_alt_names "dns" { exact = "client.internal" }
    tls_certificates "api" {
      cert_file = "/etc/tls/api.pem"
      key_file  = "/etc/tls/api-key.pem"
    }
    tls_maximum_protocol_version = "TLSv1_2"

    disable_stateless_session_resumption = true
    handshake_timeout            = "3s"
    max_handshakes               = 100
  }
  tcp_backlog_size = 128
  tcp_keepalive {
    keepalive_time     = "30s"
    keepalive_interval = "10s"
    user_timeout       = "1m"
  }
  access_log {
    path   = "/var/log/gatehouse/web.log"
    format = "[%START_TIME%] %RESPONSE_FLAGS%"
    sample = 0.01
    sample_failures = false
  }
  access_log {
    path   = "stdout"
    format = "json"
  }
}

listener "unix" {
  address = "unix:///run/gatehouse/web.sock"
  cluster = "web"
  unix {
    mode  = "0660"
    user  = "www-data"
    group = "33"
  }
}

listener "any port" {
  address      = "[::ffff:127.0.0.1]:0"
  original_dst = true
  hash_on      = "sni"
  tls_inspector {
    timeout     = "3s"
    max_pending = 60
  }
  weighted_cluster "web" {
    weight = 4294967205
  }
  weighted_cluster "weighted" {
    weight = 90
  }
}

listener "from the control plane" {
  address  = "[::1%lo]:8080"
  cluster  = "api"
  selector = "default"
  hash_on  = "proxy_tlv:0xEA"
  proxy_protocol { accept_from = ["10.0.0.0/8"] }
}

listener "mesh" {
  address = "127.0.0.1:8443"
  cluster = "web"
  connect {
    service           = "api"
    handshake_timeout = "4s"
    max_handshakes    = 200
  }
}
