package config

import (
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gatehouse.internal/lbcore"
)

// files writes a directory with the given files, names and texts by turns.
func files(t testing.TB, namesAndTexts ...string) string {
	t.Helper()
	dir := t.TempDir()
	for i := 0; i < len(namesAndTexts); i += 2 {
		if err := os.WriteFile(filepath.Join(dir, namesAndTexts[i]), []byte(namesAndTexts[i+1]), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func mustLoad(t testing.TB, opts Options) *Config {
	t.Helper()
	cfg, err := Load(opts)
	if err != nil {
		t.Fatalf("Load: %v", err)
	}
	return cfg
}

// mistakes loads what must be wrong, and returns what is said about it without
// dir.
func mistakes(t testing.TB, opts Options, dir string) string {
	t.Helper()
	cfg, err := Load(opts)
	if cfg != nil || err == nil {
		t.Fatalf("Load accepted it: %+v", cfg)
	}
	return strings.ReplaceAll(err.Error(), dir+"/", "")
}

func diff(want, got any) string {
	return cmp.Diff(want, got, cmp.Comparer(func(a, b lbcore.Addr) bool { return a == b }),
		cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }))
}

func addr(s string) lbcore.Addr { return lbcore.IPAddr(netip.MustParseAddrPort(s)) }

func TestDefaults(t *testing.T) {
	dir := files(t, "a.hcl", `
cluster "a" {
  discovery "file" { path = "a" }
  health_check "tcp" {}
  health_check "http" {}
  health_check "grpc" {}
  selector "r" { policy = "ring_hash" }
  selector "l" { policy = "least_weight" }
  selector "d" {}
  selector "x" { policy = "random" }
  selector "m" { policy = "maglev" }
  selector "a" { policy = "adaptive" }
}
cluster "b" {
  discovery "static" { endpoints = [] }
}
listener "l" {
  address = "0.0.0.0:80"
  cluster = "b"
}
`)
	check := HealthCheck{
		Interval: 5 * time.Second, Timeout: time.Second, HealthyThreshold: 2, UnhealthyThreshold: 3, Initial: "unknown", Share: true,
	}
	tcp, http := check, check
	tcp.Kind = "tcp"
	http.Kind, http.Method, http.Path = "http", "GET", "/"
	grpc := check
	grpc.Kind = "grpc"
	want := &Config{
		Node:           Node{ID: "host.example"},
		Admin:          Admin{Address: addr("127.0.0.1:9901")},
		Gate:           Gate{StuckAfter: 10 * time.Second, MaxStuck: 4, MaxStorage: 1 << 30},
		Health:         Health{},
		Telemetry:      Telemetry{PrometheusRetentionTime: 24 * time.Hour, FilterDefault: true, DisableHostname: true, MetricsPrefix: "gatehouse"},
		XDS:            XDS{Protocol: "auto", MaxMessageSize: 64 << 20},
		Consul:         defaultConsul(),
		DNS:            defaultDNS,
		InitialTimeout: 30 * time.Second, StaleIsReady: true,
		DrainTimeout: 30 * time.Second,
		DrainSpread:  10 * time.Second,
		Takeover:     Takeover{Timeout: time.Minute},
		Clusters: []Cluster{
			{
				Name: "a", Origin: "file", Discovery: []Discovery{{Kind: "file", Path: "a"}},
				HealthChecks: []HealthCheck{tcp, http, grpc},
				Selectors: []Selector{
					{Name: "r", Policy: "ring_hash", MinimumRingSize: 1024, MaximumRingSize: 8388608, HashFunction: "xx_hash"},
					{Name: "l", Policy: "least_weight", ChoiceCount: 2, ActiveRequestBias: 1},
					{Name: "d", Policy: "round_robin"},
					{Name: "x", Policy: "random"},
					{Name: "m", Policy: "maglev", TableSize: 65537},
					{Name: "a", Policy: "adaptive", Rank: "inverse", LatencyOf: "connect"},
				},
				ConnectTimeout: 5 * time.Second, MaxConnectAttempts: 3, Required: true, Mode: ModeFirst,
				OverprovisioningFactor: 140, SlowStart: slowStartOff, OutlierDetection: outlierOff(),
				OnAbsent: AbsentImmediate, OnRemoval: EndKeep, OnUnhealthy: EndKeep, CloseAfter: time.Minute, TLS: noUpstreamTLS, TCPKeepalive: keepalive, HappyEyeballs: eyeballs,
			},
			{
				Name: "b", Origin: "file", Discovery: []Discovery{{Kind: "static", Endpoints: []lbcore.Endpoint{}}},
				Selectors:      []Selector{{Name: "default", Policy: "round_robin"}},
				ConnectTimeout: 5 * time.Second, MaxConnectAttempts: 3, Required: true, Mode: ModeFirst,
				OverprovisioningFactor: 140, SlowStart: slowStartOff, OutlierDetection: outlierOff(),
				OnAbsent: AbsentImmediate, OnRemoval: EndKeep, OnUnhealthy: EndKeep, CloseAfter: time.Minute, TLS: noUpstreamTLS, TCPKeepalive: keepalive, HappyEyeballs: eyeballs,
			},
		},
		Listeners: []Listener{{
			Name: "l", Origin: "file", Address: addr("0.0.0.0:80"), Cluster: "b",
			HashOn: "none", TLSInspector: noInspector, IdleTimeout: time.Hour, HalfClosedTimeout: 5 * time.Minute, ProxyProtocol: noProxy, TLS: noDownstreamTLS, Connect: noDownstreamConnect, TCPKeepalive: keepalive,
		}},
	}
	got := mustLoad(t, Options{Paths: []string{dir}, Hostname: "host.example"})
	if !reflect.DeepEqual(got, want) {
		t.Errorf("(-want +got):\n%s", diff(want, got))
	}
	if got.XDS.Enabled() {
		t.Error("a control plane without an xds block")
	}

	want.Clusters, want.Listeners = nil, nil
	if got := mustLoad(t, Options{Hostname: "host.example"}); !reflect.DeepEqual(got, want) {
		t.Errorf("without files (-want +got):\n%s", diff(want, got))
	}
}

func TestPrecedence(t *testing.T) {
	dir := files(t,
		"one.hcl", `
log { level = "debug" }
node {
  id = "one"
  locality {
    region = "r1"
    zone   = "z1"
  }
}
gate {
  stuck_after = "1s"
  max_stuck   = 1
}
admin { address = "127.0.0.1:1" }
`,
		"two.hcl", `
node {
  locality { zone = "z2" }
}
gate { max_stuck = 2 }
admin { address = "127.0.0.1:2" }
drain_timeout = "2s"
`)
	env := map[string]string{
		"GATEHOUSE_ADMIN_ADDRESS":              "127.0.0.1:3",
		"GATEHOUSE_LOG_LEVEL":                  "warn",
		"GATEHOUSE_LOG_JSON":                   "true",
		"GATEHOUSE_NODE_LOCALITY_SUB_ZONE":     "s3",
		"GATEHOUSE_DRAIN_TIMEOUT":              "", // counts as not set
		"GATEHOUSE_HEALTH_WORKERS":             "3",
		"GATEHOUSE_TELEMETRY_DISABLE_HOSTNAME": "0",
		"GATEHOUSE_XDS_SERVER_URI":             "10.0.0.1:15010",
	}
	one, two := filepath.Join(dir, "one.hcl"), filepath.Join(dir, "two.hcl")
	opts := Options{
		Paths: []string{one, two},
		Env:   func(name string) (string, bool) { s, ok := env[name]; return s, ok },
		Flags: []Flag{{"-log-level", "log.level", "error"}, {"-http-addr", "admin.address", "unix:///run/a.sock"}},
	}
	want := Config{
		Node:           Node{ID: "one", Locality: Locality{Region: "r1", Zone: "z2", SubZone: "s3"}},
		Admin:          Admin{Address: lbcore.UnixAddr("/run/a.sock")},
		Log:            Log{Level: slog.LevelError, JSON: true},
		Gate:           Gate{StuckAfter: time.Second, MaxStuck: 2, MaxStorage: 1 << 30},
		Health:         Health{Workers: 3},
		Telemetry:      Telemetry{PrometheusRetentionTime: 24 * time.Hour, FilterDefault: true, MetricsPrefix: "gatehouse"},
		XDS:            XDS{ServerURI: "10.0.0.1:15010", Protocol: "auto", MaxMessageSize: 64 << 20},
		Consul:         defaultConsul(),
		DNS:            defaultDNS,
		InitialTimeout: 30 * time.Second, StaleIsReady: true,
		DrainTimeout: 2 * time.Second,
		DrainSpread:  10 * time.Second,
		Takeover:     Takeover{Timeout: time.Minute},
	}
	if got := mustLoad(t, opts); !reflect.DeepEqual(*got, want) {
		t.Errorf("(-want +got):\n%s", diff(want, *got))
	}

	opts.Paths = []string{two, one}
	opts.Flags = nil
	want.Node.Locality.Zone, want.Gate.MaxStuck = "z1", 1
	want.Admin.Address, want.Log.Level = addr("127.0.0.1:3"), slog.LevelWarn
	if got := mustLoad(t, opts); !reflect.DeepEqual(*got, want) {
		t.Errorf("files the other way round (-want +got):\n%s", diff(want, *got))
	}
}

func TestBadEnvironmentAndFlags(t *testing.T) {
	dir := files(t, "a.hcl", "gate {\n  max_stuck = 0\n}\n")
	env := map[string]string{
		"GATEHOUSE_LOG_JSON":                            "maybe",
		"GATEHOUSE_HEALTH_WORKERS":                      "many",
		"GATEHOUSE_GATE_STUCK_AFTER":                    "10",
		"GATEHOUSE_TELEMETRY_STATSD_ADDRESS":            "here",
		"GATEHOUSE_TELEMETRY_PROMETHEUS_RETENTION_TIME": "0s",
		"GATEHOUSE_XDS_BOOTSTRAP":                       "/b.json",
	}
	got := mistakes(t, Options{
		Paths: []string{dir}, Hostname: "h",
		Env: func(name string) (string, bool) { s, ok := env[name]; return s, ok },
		Flags: []Flag{
			{"-log-level", "log.level", "louder"},
			{"-wrong", "no.such", "x"},
			{"-server-uri", "xds.server_uri", "a:1"},
		},
	}, dir)
	want := `-log-level: level can't be "louder" (one of debug, info, warn, error)
-server-uri: both bootstrap and server_uri in xds (leave one out; the bootstrap file names its own server)
-wrong: there is no argument no.such
a.hcl:2:15: max_stuck is out of range: 0 (from 1 to 1024; the default is 4)
GATEHOUSE_GATE_STUCK_AFTER: stuck_after: "10" is no duration (write it as "5s", "1m30s" or "250ms")
GATEHOUSE_HEALTH_WORKERS: workers must be a number (from 0 to 65536)
GATEHOUSE_LOG_JSON: json must be true or false
GATEHOUSE_TELEMETRY_PROMETHEUS_RETENTION_TIME: prometheus_retention_time is out of range: 0s (at least 1m; the default is 24h)
GATEHOUSE_TELEMETRY_STATSD_ADDRESS: statsd_address: "here" is no host:port (as in 127.0.0.1:8125)`
	if got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
}

// An xds block that names no server takes what the environment has for gRPC; one
// that does, and no block, does not.
func TestXDSFromEnvironment(t *testing.T) {
	env := map[string]string{}
	load := func(text string) XDS {
		return mustLoad(t, Options{
			Paths: []string{files(t, "a.hcl", text)}, Hostname: "h",
			Env: func(name string) (string, bool) { s, ok := env[name]; return s, ok },
		}).XDS
	}
	env["GRPC_XDS_BOOTSTRAP_CONFIG"] = "{}"
	if x := load("xds {}"); x.BootstrapText != "{}" || x.Bootstrap != "" {
		t.Errorf("the text: %+v", x)
	}
	env["GRPC_XDS_BOOTSTRAP"] = "/b.json"
	if x := load("xds {}"); x.BootstrapText != "" || x.Bootstrap != "/b.json" {
		t.Errorf("the file: %+v", x)
	}
	if x := load(`xds { server_uri = "a:1" }`); x.Bootstrap != "" || x.ServerURI != "a:1" {
		t.Errorf("with a server: %+v", x)
	}
	if x := load("xds {\n  server \"a:1\" {}\n}"); x.Bootstrap != "" || len(x.Servers) != 1 || x.Servers[0].TLS.Enabled {
		t.Errorf("with a server block: %+v", x)
	}
	if x := load(""); x.Enabled() {
		t.Errorf("without a block: %+v", x)
	}
	if x := load("xds {\n  server \"a:1\" {\n    tls {}\n  }\n}"); !x.Servers[0].TLS.Enabled {
		t.Errorf("an empty tls block: %+v", x)
	}
}

// The variables are documented by their rule; a new block is to obey it.
func TestSettings(t *testing.T) {
	cfg := &Config{}
	var got []string
	root := newBlock("", reflect.TypeFor[Config]())
	for _, s := range root.settings("", reflect.ValueOf(cfg).Elem()) {
		got = append(got, s.path.join("."))
	}
	want := strings.Fields(`
		node.id node.cluster node.locality.region node.locality.zone node.locality.sub_zone
		admin.address admin.unix.mode admin.unix.user admin.unix.group admin.tls.cert_file admin.tls.key_file admin.tls.client_ca_file admin.token_file
		log.level log.json gate.stuck_after gate.max_stuck gate.max_storage relay.event_loops limits.max_connections health.workers
		telemetry.prometheus_retention_time telemetry.statsd_address telemetry.statsite_address telemetry.dogstatsd_addr telemetry.filter_default telemetry.disable_hostname telemetry.metrics_prefix
		xds.bootstrap xds.server_uri xds.protocol xds.user_agent_name xds.user_agent_version xds.max_message_size xds.clusters xds.listeners
		consul.address consul.ssl consul.token consul.token_file consul.http_auth consul.ca_file consul.ca_path
		consul.cert_file consul.key_file consul.tls_server_name consul.ssl_verify consul.datacenter consul.namespace consul.partition
		consul.wait_time consul.max_watches consul.max_stale consul.empty_hold consul.listeners
		consul.register.name consul.register.id consul.register.address
		consul.register.check_interval consul.register.check_timeout consul.register.deregister_after
		dns.resolv_conf dns.ndots dns.stagger dns.timeout dns.attempts dns.tcp
		state_dir stale_is_ready initial_timeout drain_timeout drain_spread takeover.socket takeover.timeout`)
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestDirectory(t *testing.T) {
	cluster := func(name string) string {
		return `{"cluster":{"` + name + `":{"discovery":{"file":{"path":"x"}}}},"drain_timeout":"` + strings.Repeat("1", len(name)) + `s"}`
	}
	dir := files(t,
		"20.json", cluster("two"),
		"10.hcl", `cluster "one" {
  discovery "file" { path = "x" }
}
drain_timeout = "9s"`,
		"9.json", cluster("three"),
		".hidden.hcl", "nonsense",
		"notes.txt", "nonsense",
		"30.hcl~", "nonsense")
	if err := os.Mkdir(filepath.Join(dir, "sub.hcl"), 0o700); err != nil {
		t.Fatal(err)
	}
	cfg := mustLoad(t, Options{Paths: []string{dir}, Hostname: "h"})
	var names []string
	for _, c := range cfg.Clusters {
		names = append(names, c.Name)
	}
	if got := strings.Join(names, " "); got != "one two three" {
		t.Errorf("clusters %s: want one two three, by the files' names", got)
	}
	if cfg.DrainTimeout != 11111*time.Second {
		t.Errorf("drain_timeout %s is not that of the last file", cfg.DrainTimeout)
	}

	link := filepath.Join(dir, "link.hcl")
	if err := os.Symlink(filepath.Join(dir, "notes.txt"), link); err != nil {
		t.Fatal(err)
	}
	got := mistakes(t, Options{Paths: []string{dir}, Hostname: "h"}, dir)
	if want := "link.hcl: symbolic links in a directory are not followed (name a file, or a directory with *.hcl and *.json files)"; got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
	if err := os.Remove(link); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(dir, "10.hcl"), link); err != nil {
		t.Fatal(err)
	}
	if cfg := mustLoad(t, Options{Paths: []string{link}, Hostname: "h"}); len(cfg.Clusters) != 1 {
		t.Errorf("a link that was named: %d clusters", len(cfg.Clusters))
	}
}

func TestUnreadable(t *testing.T) {
	dir := files(t, "big.hcl", strings.Repeat("#\n", maxFileSize/2)+"#")
	empty := t.TempDir()
	got := mistakes(t, Options{
		Paths:    []string{filepath.Join(dir, "none.hcl"), filepath.Join(dir, "big.hcl"), empty},
		Hostname: "h",
	}, dir)
	for _, want := range []string{
		"none.hcl: no such file or directory (name a file,",
		"big.hcl: larger than 4194304 bytes (",
		empty + ": no configuration in this directory (",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("missing %q in:\n%s", want, got)
		}
	}
	if n := strings.Count(got, "\n") + 1; n != 3 {
		t.Errorf("%d mistakes:\n%s", n, got)
	}
}

func TestNamesTwice(t *testing.T) {
	dir := files(t,
		"a.hcl", `
cluster "web" {
  discovery "file" { path = "x" }
}
listener "web" {
  address = "127.0.0.1:80"
  cluster = "web"
}
`,
		"b.json", `{
  "listener": {"web": {"address": "127.0.0.1:81", "cluster": "web"}},
  "cluster": {"web": {"discovery": {"file": {"path": "x"}}},
              "web": {"discovery": {"file": {"path": ""}}}}
}`)
	got := mistakes(t, Options{Paths: []string{dir}, Hostname: "h"}, dir)
	want := `b.json:2:16: listener "web" is defined twice (the other one is at a.hcl:5:10)
b.json:3:15: cluster "web" is defined twice (the other one is at a.hcl:2:9)
b.json:4:15: cluster "web" is defined twice (the other one is at a.hcl:2:9)
b.json:4:54: path is empty (it is required)`
	if got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
}

// Access logs are not named; what their format can't say is a warning.
func TestAccessLog(t *testing.T) {
	opts := Options{
		Paths: []string{files(t, "a.json", `{
  "cluster": {"a": {"discovery": {"static": {"endpoints": []}}}},
  "listener": {"l": {"address": "127.0.0.1:1", "cluster": "a", "access_log": [
    {"path": "stderr"}, {"path": "/x", "format": "unknown"}
  ]}}
}`)}, Hostname: "h",
		AccessLog: func(format string) ([]string, error) {
			if format == "bad" {
				return nil, errors.New("is bad")
			}
			if format == "unknown" {
				return []string{"A", "B"}, nil
			}
			return nil, nil
		},
	}
	cfg := mustLoad(t, opts)
	if want := []AccessLog{{Path: "stderr", Format: "text", Sample: 1, SampleFailures: true}, {Path: "/x", Format: "unknown", Sample: 1, SampleFailures: true}}; !reflect.DeepEqual(cfg.Listeners[0].AccessLogs, want) {
		t.Errorf("access logs %+v", cfg.Listeners[0].AccessLogs)
	}
	if w := cfg.Warnings; len(w) != 2 || !strings.HasSuffix(w[0].Error(), `a.json:4:50: format: %A% is not known for connections (it prints "-")`) {
		t.Errorf("warnings:\n%v", w)
	}
	dir := files(t, "a.hcl", `
cluster "a" {
  discovery "static" { endpoints = [] }
}
listener "l" {
  address = "127.0.0.1:1"
  cluster = "a"
  access_log { path = "access.log" }
  access_log {
    path   = "/x"
    format = "bad"
  }
  access_log { format = "json" }
}
`)
	opts.Paths = []string{dir}
	got := mistakes(t, opts, dir)
	want := `a.hcl:8:23: path: "access.log" is no log (stdout, stderr, or an absolute path)
a.hcl:11:14: format: is bad (json, text, or a text with Envoy's operators in percent signs)
a.hcl:13:3: no path in access_log (it is required)`
	if strings.TrimSpace(got) != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
