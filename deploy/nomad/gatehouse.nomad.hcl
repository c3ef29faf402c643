# The agent on each node. client.hcl says what the clients must have; the servers need
# "nomad setup consul" once, for workload identities, and no MaxTokenTTL on its auth
# method, since Nomad does not renew tokens.
#
# An update of the image stops the old agent before the new one starts: new connections
# are refused meanwhile. A change of the template is a reload, and costs none. A crash
# costs only the open connections: run -supervised keeps the listening sockets and starts
# the agent again after a second. Nomad sees that in the log; it restarts the task itself
# where the agent does not become ready, or crashes more than five times in a minute. For
# restarts without a gap run the agent by systemd with its socket unit.
job "gatehouse" {
  type      = "system"
  node_pool = "all"

  # Deployments of system jobs, and the fixes that they needed.
  constraint {
    attribute = "${attr.nomad.version}"
    operator  = "semver"
    value     = ">= 1.11.3"
  }

  group "agent" {
    network {
      mode = "host"
      port "admin" {
        static       = 9901
        host_network = "loopback"
      }
      # Listeners: nothing else of this node may have their ports.
      port "web" { static = 8080 }
    }

    # One node after the other, each once /ready has said so for ten seconds; an agent
    # that does not become ready brings the last good version back.
    update {
      max_parallel     = 1
      health_check     = "checks"
      min_healthy_time = "10s"
      healthy_deadline = "2m"
      auto_revert      = true
      stagger          = "30s"
    }

    # A node without its agent has no traffic: it is tried for ever.
    restart {
      attempts = 10
      interval = "5m"
      delay    = "5s"
      mode     = "delay"
    }

    volume "run" {
      type   = "host"
      source = "gatehouse-run"
    }
    volume "state" {
      type   = "host"
      source = "gatehouse-state"
    }

    service {
      name     = "gatehouse"
      provider = "consul"
      port     = "admin"

      check {
        name     = "ready"
        type     = "http"
        path     = "/ready"
        interval = "5s"
        timeout  = "2s"
      }
      # It does not depend on Consul or a control plane, whose outage must not end the
      # traffic of all nodes.
      check {
        name     = "live"
        type     = "http"
        path     = "/live"
        interval = "10s"
        timeout  = "2s"
        check_restart {
          limit = 3
          grace = "60s"
        }
      }
    }

    task "agent" {
      driver = "docker"

      config {
        image        = "gatehouse:1.0.0"
        network_mode = "host"
        args         = ["run", "-supervised", "-config-file", "/local/gatehouse.hcl"]
        ulimit {
          nofile = "65536:65536"
        }
      }

      # SIGTERM drains for drain_timeout of the template, and then there is time to end.
      kill_signal  = "SIGTERM"
      kill_timeout = "45s"

      # The token that Consul gives for it is in /secrets/consul_token, which the agent
      # reads again when it changes.
      consul {}
      identity {
        name          = "consul_default"
        aud           = ["consul.io"]
        file          = true
        ttl           = "1h"
        change_mode   = "signal"
        change_signal = "SIGHUP"
      }

      template {
        destination   = "local/gatehouse.hcl"
        change_mode   = "signal"
        change_signal = "SIGHUP"
        data          = <<-EOT
          node {
            id = "{{ env "node.unique.name" }}"
            locality {
              region = "{{ env "node.region" }}"
              zone   = "{{ env "node.datacenter" }}"
            }
          }
          admin { address = "127.0.0.1:9901" }
          state_dir     = "/var/lib/gatehouse"
          drain_timeout = "30s"

          consul {
            address    = "127.0.0.1:8500"
            token_file = "/secrets/consul_token"
          }

          cluster "web" {
            discovery "consul" { service = "web" }
            health_check "tcp" {}
          }

          # For tasks with host network.
          listener "web" {
            address = "127.0.0.1:8080"
            cluster = "web"
          }
          # For tasks that mount gatehouse-run.
          listener "web-socket" {
            address = "unix:///run/gatehouse/web.sock"
            cluster = "web"
            unix { mode = "0666" }
          }
          # For tasks with bridge network, to which the node is the address of Nomad's
          # bridge. The bridge is there once such a task has run: until then it takes
          # net.ipv4.ip_nonlocal_bind = 1 to listen on it.
          listener "web-bridge" {
            address = "172.26.64.1:8080"
            cluster = "web"
          }
        EOT
      }

      volume_mount {
        volume      = "run"
        destination = "/run/gatehouse"
      }
      volume_mount {
        volume      = "state"
        destination = "/var/lib/gatehouse"
      }

      resources {
        cpu        = 200
        memory     = 128
        memory_max = 512
      }
    }
  }
}
