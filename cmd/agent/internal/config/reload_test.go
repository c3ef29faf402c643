package config

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"
)

func loadText(t *testing.T, text string) *Config {
	t.Helper()
	file := filepath.Join(t.TempDir(), "gatehouse.hcl")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := Load(Options{Paths: []string{file}, Hostname: "node-7"})
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

// A reload changes what can change, and keeps and names what can't.
func TestReload(t *testing.T) {
	const web = "cluster \"web\" {\n  discovery \"static\" { endpoints = [\"192.0.2.1:80\"] }\n}\n"
	const all = `
xds { server_uri = "127.0.0.1:1" }
consul { token = "a" }
dns { nameservers = ["192.0.2.53"] }
` + web
	for _, tt := range []struct {
		name, was, next   string
		settings, restart []string
	}{
		{name: "nothing", was: all, next: all},
		{name: "clusters are not settings", was: all, next: all + "cluster \"more\" {\n  discovery \"static\" { endpoints = [\"192.0.2.2:80\"] }\n}\n"},
		{name: "blocks that are live", was: all, next: `
xds {
  server_uri = "127.0.0.1:2"
  clusters   = true
}
consul { token = "b" }
dns { nameservers = ["192.0.2.54"] }
` + web, settings: []string{"xds.server_uri", "xds.clusters", "consul.token", "dns.nameservers"}},
		{name: "a block more in a live one", was: "", next: "consul {\n  register {}\n}\n", settings: []string{"consul.register.id"}},
		{name: "servers", was: "xds {\n  server \"a:1\" {}\n}\n", next: "xds {\n  server \"a:1\" {\n    token_file = \"/t\"\n  }\n}\n", settings: []string{"xds.server"}},
		{name: "some of a block", was: "", next: "log {\n  level = \"debug\"\n  json = true\n}\n", settings: []string{"log.level"}, restart: []string{"log.json"}},
		{name: "the top level", was: "", next: "drain_timeout = \"1m\"\ninitial_timeout = \"1m\"\ndrain_spread = \"20s\"\n",
			settings: []string{"initial_timeout", "drain_timeout"}, restart: []string{"drain_spread"}},
		{name: "what needs a restart", was: "", next: `
node {
  id = "other"
  locality { zone = "z" }
  metadata = { a = 1 }
}
admin { address = "127.0.0.1:1" }
gate { max_stuck = 1 }
relay { event_loops = 1 }
limits { max_connections = 1 }
health { workers = 1 }
telemetry { statsd_address = "127.0.0.1:1" }
`, restart: []string{"node.id", "node.locality.zone", "node.metadata", "admin.address", "gate.max_stuck", "relay.event_loops", "limits.max_connections", "health.workers", "telemetry.statsd_address"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			was, next := loadText(t, tt.was), loadText(t, tt.next)
			wasCopy, nextCopy := *was, *next
			after, settings, restart := was.Reload(next)
			if !slices.Equal(settings, tt.settings) || !slices.Equal(restart, tt.restart) {
				t.Errorf("settings %q, restart %q; want %q and %q", settings, restart, tt.settings, tt.restart)
			}
			if !reflect.DeepEqual(*was, wasCopy) || !reflect.DeepEqual(*next, nextCopy) {
				t.Error("what was given was written")
			}
			if !reflect.DeepEqual(after.Clusters, next.Clusters) || !reflect.DeepEqual(after.XDS, next.XDS) ||
				!reflect.DeepEqual(after.Consul, next.Consul) || !reflect.DeepEqual(after.DNS, next.DNS) || after.Log.Level != next.Log.Level {
				t.Error("what is live is not in force")
			}
			// It is said again until the restart, and no other setting is.
			again, settings, more := after.Reload(next)
			if len(settings) > 0 || !slices.Equal(more, tt.restart) || !reflect.DeepEqual(again, after) {
				t.Errorf("the next reload says %q and %q", settings, more)
			}
			if _, settings, restart := after.Reload(after); len(settings)+len(restart) > 0 {
				t.Errorf("what is in force differs from itself: %q, %q", settings, restart)
			}
		})
	}
}
