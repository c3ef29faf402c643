# /etc/gatehouse.d/gatehouse.hcl: the agent's configuration. All *.hcl and *.json files
# of this directory are read. Check it by "gatehouse validate -config-dir
# /etc/gatehouse.d" and put it in force by "systemctl reload gatehouse".

# What was learnt is kept here, and a restart forwards at once.
state_dir = "/var/lib/gatehouse"

# An example. It takes endpoints from the Consul agent of this node.
#consul { address = "127.0.0.1:8500" }
#
#cluster "web" {
#  discovery "consul" { service = "web" }
#  health_check "tcp" {}
#}
#
#listener "web" {
#  address = "127.0.0.1:8080"
#  cluster = "web"
#}
