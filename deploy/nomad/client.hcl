# What the Nomad client of each node must have for gatehouse.nomad.hcl: a file in its
# configuration directory.
client {
  # kill_timeout of the job is more than the default of 30s allows.
  max_kill_timeout = "60s"

  # Where the admin interface is.
  host_network "loopback" {
    cidr = "127.0.0.0/8"
  }

  # Unix sockets of listeners, which other jobs mount; user 65532 writes there.
  host_volume "gatehouse-run" {
    path = "/run/gatehouse"
  }

  # What the agent has learnt outlives its allocation here; user 65532 writes there.
  host_volume "gatehouse-state" {
    path = "/var/lib/gatehouse"
  }
}
