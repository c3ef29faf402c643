# A job that reaches its backends through the agent of its node from a network namespace
# of its own, where 127.0.0.1 is not the node's. There are two ways.
job "uses-gatehouse" {
  type = "service"

  # By a unix socket: nothing listens that others could reach, and who may connect is said
  # by the socket's mode and by who mounts the volume.
  group "by-socket" {
    network {
      mode = "bridge"
    }

    volume "gatehouse" {
      type      = "host"
      source    = "gatehouse-run"
      read_only = true
    }

    task "app" {
      driver = "docker"
      config {
        image = "app:1.0.0"
      }
      volume_mount {
        volume      = "gatehouse"
        destination = "/run/gatehouse"
        read_only   = true
      }
      env {
        WEB_ADDRESS = "unix:///run/gatehouse/web.sock"
      }
    }
  }

  # By the address that Nomad's bridge has on each node, for programs that know TCP only.
  # All tasks on the bridge reach it.
  group "by-address" {
    network {
      mode = "bridge"
    }

    task "app" {
      driver = "docker"
      config {
        image = "app:1.0.0"
      }
      env {
        WEB_ADDRESS = "172.26.64.1:8080"
      }
    }
  }
}
