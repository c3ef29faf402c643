package xds

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gatehouse.internal/lbcore"
)

func TestParseBootstrap(t *testing.T) {
	got, err := ParseBootstrap([]byte(`{
		"xds_servers": [
			{"server_uri": "control:18000", "channel_creds": [{"type": "google_default", "config": [1]}, {"type": "own", "config": {"ca_certificate_file": 5}}, {"type": "insecure"}], "server_features": ["xds_v3"]},
			{"server_uri": "second:18000", "channel_creds": [{"type": "tls", "config": {
				"ca_certificate_file": "/ca.pem", "certificate_file": "/cert.pem", "private_key_file": "/key.pem", "refresh_interval": "60s"
			}}], "call_creds": [{"type": "other", "config": {"jwt_token_file": 7}}, {"type": "jwt_token_file", "config": {"jwt_token_file": "/token"}}]},
			{"server_uri": "third:18000", "channel_creds": [{"type": "tls"}, {"type": "insecure"}]}
		],
		"node": {
			"id": "node-7", "cluster": "edge", "metadata": {"role": "edge", "shard": 3},
			"locality": {"region": "eu", "zone": "eu-1", "sub_zone": "a"}
		},
		"authorities": {"same": {"xds_servers": [
			{"channel_creds": [{"type":"insecure"}], "server_uri": "control:18000"},
			{"server_uri": "second:18000", "channel_creds": [{"type": "tls", "config": {
				"private_key_file": "/key.pem", "ca_certificate_file": "/ca.pem", "certificate_file": "/cert.pem"
			}}], "call_creds": [{"type": "jwt_token_file", "config": {"jwt_token_file": "/token"}}]},
			{"server_uri": "third:18000", "channel_creds": [{"type": "tls"}]}
		]}, "one": {"client_listener_resource_name_template": "xdstp://one/x"}},
		"certificate_providers": {}
	}`))
	if err != nil {
		t.Fatal(err)
	}
	want := Config{
		Servers: []Server{
			{URI: "control:18000"},
			{URI: "second:18000", TLS: &TLS{CAFile: "/ca.pem", CertFile: "/cert.pem", KeyFile: "/key.pem"}, TokenFile: "/token"},
			{URI: "third:18000", TLS: &TLS{}},
		},
		Node: Node{
			ID: "node-7", Cluster: "edge", Metadata: map[string]any{"role": "edge", "shard": 3.0},
			Locality: lbcore.Locality{Region: "eu", Zone: "eu-1", SubZone: "a"},
		},
	}
	if d := cmp.Diff(want.Node, got.Node) + cmp.Diff(want.Servers, got.Servers); d != "" {
		t.Errorf("configuration (-want +got):\n%s", d)
	}
	if _, err := NewClient(got); err == nil || !strings.HasPrefix(err.Error(), "xds: servers[1].tls: ") {
		t.Errorf("NewClient with files that are not there: %v", err)
	}
}

func TestParseBootstrapInvalid(t *testing.T) {
	server := func(rest string) string { return `{"xds_servers": [{"server_uri": "a:1", ` + rest + `}]}` }
	const insecure = `"channel_creds": [{"type": "insecure"}]`
	for _, tt := range []struct{ in, want string }{
		{`{}`, "xds_servers: missing"},
		{`[]`, "the whole: array where object is wanted"},
		{"{\n\"xds_servers\": [}", "line 2: invalid character"},
		{`{"xds_servers": "x"}`, "xds_servers: string where array is wanted"},
		{`{"xds_servers": [{}]}`, "xds_servers[0].server_uri: missing"},
		{`{"xds_servers": [{"server_uri": "a:1"}]}`, "xds_servers[0].channel_creds: missing"},
		{server(`"channel_creds": [{"type": "google_default"}, {"type": "x"}]`),
			`xds_servers[0].channel_creds: none of the 2 types is supported: want "insecure" or "tls"`},
		{`{"xds_servers": [{"server_uri": "https://u:s3cr3t@a:1", ` + insecure + `}]}`, `xds_servers[0].server_uri: has a user, a query or a fragment in it`},
		{`{"xds_servers": [{"server_uri": "u:s3cr3t@a:1", ` + insecure + `}]}`, `xds_servers[0].server_uri: has a user, a query or a fragment in it`},
		{`{"xds_servers": [{"server_uri": "dns:///a:1?token=s3cr3t", ` + insecure + `}]}`, `xds_servers[0].server_uri: has a user, a query or a fragment in it`},
		{server(`"channel_creds": [{"type": "s3cr3t"}]`), `xds_servers[0].channel_creds: none of the 1 types`},
		{server(`"channel_creds": [{"type": "tls", "config": {"certificate_file": "/c"}}]`),
			"xds_servers[0].channel_creds[0].config: a certificate without its key"},
		{server(`"channel_creds": [{"type": "tls", "config": {"ca_certificate_file": 5}}]`),
			"xds_servers[0].channel_creds[0].config.ca_certificate_file: number where string is wanted"},
		{server(`"channel_creds": [{"type": "tls", "config": [1]}]`), "xds_servers[0].channel_creds[0].config: array where object is wanted"},
		{`{"xds_servers": [{"server_uri": "http://a:1", ` + insecure + `}]}`, `xds_servers[0].server_uri: "http://a:1" is a URL`},
		{`{"xds_servers": [{"server_uri": "a b:1", ` + insecure + `}]}`, `xds_servers[0].server_uri: "a b:1" has a blank in it`},
		{server(`"channel_creds": [{"type": "tls", "config": {"spiffe_trust_bundle_map_file": "/c"}}]`),
			"xds_servers[0].channel_creds[0].config.spiffe_trust_bundle_map_file: not supported"},
		{server(`"channel_creds": [{"type": "tls"}], "call_creds": [{"type": "jwt_token_file"}]`),
			"xds_servers[0].call_creds[0].config.jwt_token_file: missing"},
		{server(insecure + `, "call_creds": [{"type": "jwt_token_file", "config": {"jwt_token_file": "/t"}}]`),
			"xds_servers[0].call_creds: the token would be sent in plain text"},
		{`{"xds_servers": [{"server_uri": "a:1", ` + insecure + `}], "authorities": {"x": {"xds_servers": [{"server_uri": "b:1"}]}}}`,
			`authorities["x"].xds_servers: servers of its own are not supported`},
		{`{"node": {"id": 7}}`, "node.id: number where string is wanted"},
		{``, "line 1: unexpected end"},
	} {
		_, err := ParseBootstrap([]byte(tt.in))
		if err == nil || !strings.HasPrefix(err.Error(), tt.want) {
			t.Errorf("%s: error %v, want %s…", tt.in, err, tt.want)
		}
		if err != nil && strings.Contains(err.Error(), "s3cr3t") {
			t.Errorf("%s: a secret shows: %v", tt.in, err)
		}
	}
}

func TestLoadBootstrap(t *testing.T) {
	path := filepath.Join(t.TempDir(), "bootstrap.json")
	if _, err := LoadBootstrap(path); err == nil || err.Error() != "bootstrap "+path+": no such file or directory" {
		t.Errorf("a missing file: %v", err)
	}
	write := func(s string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(s), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(`{"xds_servers": [{"server_uri": "a:1", "channel_creds": [{"type": "insecure"}]}]}`)
	if cfg, err := LoadBootstrap(path); err != nil || cfg.Servers[0].URI != "a:1" {
		t.Errorf("got %+v, %v", cfg, err)
	}
	write(strings.Repeat(" ", maxBootstrap+1))
	if _, err := LoadBootstrap(path); err == nil || !strings.HasSuffix(err.Error(), "more than 1048576 bytes") {
		t.Errorf("a huge file: %v", err)
	}
}

func TestConfigRefused(t *testing.T) {
	for _, tt := range []struct {
		cfg  Config
		want string
	}{
		{Config{}, "xds: servers: missing: want one management server"},
		{Config{Servers: []Server{{URI: "a:1"}}}, "xds: node id: missing"},
		{Config{Servers: []Server{{URI: "a:1"}}, Node: Node{ID: "n"}, BackoffMax: -1}, "xds: negative duration or size"},
		{Config{Servers: []Server{{URI: "a:1"}}, Node: Node{ID: "n", Metadata: map[string]any{"f": func() {}}}}, "xds: node metadata: proto: invalid type: func()"},
	} {
		c, err := NewClient(tt.cfg)
		// The library varies the blank after "proto:" so that nobody relies on it.
		if c != nil || err == nil || strings.ReplaceAll(err.Error(), "\u00a0", " ") != tt.want {
			t.Errorf("%+v: got %v, %v, want %s", tt.cfg, c, err, tt.want)
		}
	}
}

// FuzzParseBootstrap: any bytes give an error or a usable configuration.
func FuzzParseBootstrap(f *testing.F) {
	f.Add([]byte(`{"xds_servers": [{"server_uri": "a:1", "channel_creds": [{"type": "insecure"}]}], "node": {"id": "n", "metadata": {"a": [1, null]}}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		cfg, err := ParseBootstrap(data)
		if err != nil {
			return
		}
		cfg.Node.ID = "n"
		for i := range cfg.Servers {
			cfg.Servers[i].TLS = nil // its files are not there
			cfg.Servers[i].TokenFile = ""
		}
		if _, err := NewClient(cfg); err != nil && !strings.Contains(err.Error(), "UTF-8") {
			t.Error(err)
		}
	})
}
