package config

import (
	"errors"
	"log/slog"
	"math"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gatehouse.internal/healthsvc/outlier"
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

// fullConfig is testdata/good/full.hcl.
func fullConfig() *Config {
	split := OutlierDetection(outlier.Default())
	split.SplitExternalLocalOriginErrors, split.ConsecutiveLocalOriginFailure = true, 7
	split.EnforcingConsecutiveLocalOriginFailure, split.EnforcingLocalOriginSuccessRate, split.EnforcingFailurePercentageLocalOrigin = 70, 71, 72
	return &Config{
		Node: Node{
			ID:       "node-7",
			Cluster:  "edge",
			Locality: Locality{Region: "eu", Zone: "eu-1a", SubZone: "rack-3"},
			Metadata: map[string]any{
				"role": "edge", "weight": 2.5, "canary": true, "labels": []any{"a", "b"},
				"nothing": nil, "nested": map[string]any{"x": -1.0},
			},
		},
		Admin: Admin{Address: addr("127.0.0.1:9902")},
		Log:   Log{Level: slog.LevelWarn, JSON: true},
		Gate:  Gate{StuckAfter: 2 * time.Second, MaxStuck: 7, MaxStorage: 8 << 20},
		Relay: Relay{EventLoops: 3}, DrainTimeout: 20 * time.Second, DrainSpread: 3 * time.Second,
		Telemetry: Telemetry{
			PrometheusRetentionTime: time.Minute,
			StatsdAddress:           "statsd.internal:8125",
			MetricsPrefix:           "edge_1",
		},
		Limits: Limits{MaxConnections: 5000},
		Health: Health{Workers: 64},
		XDS: XDS{
			Servers: []XDSServer{
				{
					URI: "dns:///control:15010", TokenFile: "/run/control/token",
					InitialMetadata:      map[string]string{"x-tenant": "blue"},
					InitialMetadataFiles: map[string]string{"x-consul-token": "/run/consul/token"},
					TLS: XDSTLS{
						Enabled: true, CAFile: "/etc/control/ca.pem", CertFile: "/etc/control/cert.pem", KeyFile: "/etc/control/key.pem",
						ServerName: "control.internal",
					},
				},
				{URI: "second:15010"},
			},
			Protocol: "delta", UserAgentName: "envoy", UserAgentVersion: "1.30.1", MaxMessageSize: 16 << 20, Clusters: true,
		},
		Consul: Consul{
			Address: "https://consul.internal:8501", SSL: true, TokenFile: "/run/consul/token", HTTPAuth: "user:password",
			CAFile: "/etc/consul/ca.pem", CAPath: "/etc/consul/ca", CertFile: "/etc/consul/cert.pem", KeyFile: "/etc/consul/key.pem",
			TLSServerName: "client.dc1.consul", Datacenter: "dc1", Namespace: "ns", Partition: "part",
			WaitTime: 2 * time.Minute, MaxWatches: 10, MaxStale: 5 * time.Second, EmptyHold: time.Minute, Listeners: true,
			Register: Register{
				Enabled: true, Name: "edge", ID: "edge-7", Tags: []string{"a", "b"}, Meta: map[string]string{"rack": "3"},
				Address: "10.0.0.7", CheckInterval: 5 * time.Second, CheckTimeout: time.Second, DeregisterAfter: time.Hour,
			},
		},
		DNS: DNS{
			Nameservers: []string{"192.0.2.53", "[2001:db8::53]:5353"}, ResolvConf: "/run/resolv.conf", Search: []string{"internal"}, NDots: 2,
			Stagger: 100 * time.Millisecond, Timeout: time.Second, Attempts: 3, TCP: true,
		},
		InitialTimeout: time.Minute,
		Clusters: []Cluster{{
			Name: "web", Origin: OriginFile, Mode: ModePriority,
			Discovery: []Discovery{
				{Kind: DiscoveryEDS, ServiceName: "web"},
				{Kind: DiscoveryEDS, ServiceName: "web-v2"},
				{Kind: DiscoveryFile, Path: "/etc/gatehouse/web.json"},
				{Kind: DiscoveryConsul, Service: "web", Consistency: "stale"},
				{
					Kind: DiscoveryConsul, Service: "web",
					Tags: []string{"v2"}, NodeMeta: map[string]string{"zone": "a"}, Datacenter: "dc2", Namespace: "n", Partition: "p",
					Address: "wan", PortName: "http", SocketPaths: true, Kinds: []string{"mesh-gateway"}, Near: "_agent", Nearest: 5,
					Consistency: "default", Cached: true,
				},
				{
					Kind: DiscoveryConsul, PreparedQuery: "nearest-web", PollInterval: 30 * time.Second,
					Peer: "other", SamenessGroup: "group", Consistency: "stale",
				},
				{
					Kind: DiscoveryDNS, HostName: "web.internal.", RecordType: "a+aaaa", Port: 8080,
					MinTTL: time.Second, MaxTTL: time.Hour, Refresh: 5 * time.Second, RefreshLimit: 5 * time.Second,
					MinBackoff: time.Second, MaxBackoff: 30 * time.Second, Misses: 2, HoldNXDomain: 30 * time.Second, HoldNoData: 30 * time.Second,
				},
				{
					Kind: DiscoveryDNS, HostName: "_web._tcp.service.consul.", RecordType: "srv", Targets: "a", Nameservers: []string{"127.0.0.1:8600"}, TCP: true,
					MinTTL: 2 * time.Second, MaxTTL: time.Minute, Refresh: 10 * time.Second, RefreshLimit: time.Second,
					MinBackoff: 2 * time.Second, MaxBackoff: time.Minute, Misses: 3,
					HoldNXDomain: time.Minute, HoldNoData: 2 * time.Minute, HoldRefused: time.Hour, HoldTimeout: 2 * time.Hour,
				},
				{Kind: DiscoveryStatic, Endpoints: []lbcore.Endpoint{
					{Addr: addr("127.0.0.1:9001"), Weight: 1, LocalityWeight: 1},
					{Addr: addr("[::1]:9002"), Weight: 3, Locality: lbcore.Locality{Zone: "eu-1b"}, LocalityWeight: 7},
					{Addr: lbcore.UnixAddr("/run/web.sock"), Weight: 1, LocalityWeight: 1},
				}},
			},
			HealthChecks: []HealthCheck{
				{
					Kind: CheckTCP, Interval: 500 * time.Millisecond, Timeout: 500 * time.Millisecond,
					HealthyThreshold: 1, UnhealthyThreshold: 1000,
					InitialJitter: time.Second, IntervalJitter: 100 * time.Millisecond, IntervalJitterPercent: 10,
					Initial: InitialHealthy,
					Send:    "PING\r\n", Receive: []Payload{"+PONG", "\r\n", "00x"},
					UnhealthyInterval: time.Second, UnhealthyEdgeInterval: 2 * time.Second, HealthyEdgeInterval: 3 * time.Second,
					NoTrafficInterval: time.Minute, NoTrafficHealthyInterval: 2 * time.Minute,
					AlwaysLogFailures: true, AltPort: 8081, ProxyProtocol: CheckProxy{Version: 2},
					TLS: CheckTLS{
						Enabled: true, CAFile: "/etc/gatehouse/ca.pem", CertFile: "/etc/gatehouse/cert.pem", KeyFile: "/etc/gatehouse/key.pem",
						ServerName: "redis.internal", ALPN: []string{"redis"},
					},
				},
				{
					Kind: CheckGRPC, Interval: 5 * time.Second, Timeout: time.Second, Share: true,
					HealthyThreshold: 2, UnhealthyThreshold: 3, Initial: InitialUnknown,
					ServiceName: "a.B", Authority: "api.internal", Headers: map[string]string{"authorization": "Bearer x"},
					TLS: CheckTLS{Enabled: true},
				},
				{
					Kind: CheckHTTP, Interval: 5 * time.Second, Timeout: time.Second,
					HealthyThreshold: 2, UnhealthyThreshold: 3, Initial: InitialUnknown, Share: true,
					Method: "HEAD", Path: "/health?full=1", Host: "web.internal", Headers: map[string]string{"X-Probe": "1"},
					ExpectedStatuses:  []StatusRange{{Start: 200, End: 201}, {Start: 204, End: 205}, {Start: 300, End: 400}},
					RetriableStatuses: []StatusRange{{Start: 503, End: 504}},
				},
			},
			Selectors: []Selector{
				{Name: "sticky", Policy: PolicyRingHash, MinimumRingSize: 1, MaximumRingSize: 4096, HashFunction: HashMurmur2, HashBalanceFactor: 125},
				{Name: "spread", Policy: PolicyLeastWeight, ChoiceCount: 10, ActiveRequestBias: 0.5},
				{Name: "turns", Policy: PolicyRoundRobin},
				{Name: "any", Policy: PolicyRandom},
				{Name: "nginx", Policy: PolicyRingHash, MaximumRingSize: 1000, HashFunction: HashKetama},
				{Name: "table", Policy: PolicyMaglev, TableSize: 5000011},
				{Name: "fast", Policy: PolicyAdaptive, Rank: RankInverse, LatencyOf: LatencyFirstByte},
			},
			ConnectTimeout: 250 * time.Millisecond, MaxConnectAttempts: 8,
			PanicThreshold: 50, PreferLocal: true, IgnoreNew: true, OverprovisioningFactor: 100, WeightedPriorityHealth: true,
			OnAbsent: AbsentStabilize, OnRemoval: EndCloseAfter, OnUnhealthy: EndClose, CloseAfter: 10 * time.Second,
			CircuitBreakers: CircuitBreakers{MaxConnections: 2000, MaxPendingRequests: 200, MaxConnectionsPerEndpoint: 20},
			OutlierDetection: OutlierDetection{
				Enabled: true, Interval: time.Second, BaseEjectionTime: 400 * time.Second, MaxEjectionTime: 20 * time.Minute,
				MaxEjectionTimeJitter: 3 * time.Second, MaxEjectionPercent: 50, AlwaysEjectOneHost: true,
				Consecutive5xx: 3, EnforcingConsecutive5xx: 99, EnforcingConsecutiveGatewayFailure: 1,
				ConsecutiveLocalOriginFailure: 5, EnforcingConsecutiveLocalOriginFailure: 100,
				SuccessRateMinimumHosts: 6, SuccessRateRequestVolume: 10, SuccessRateStdevFactor: 1500, EnforcingLocalOriginSuccessRate: 100,
				FailurePercentageThreshold: 50, FailurePercentageMinimumHosts: 2, FailurePercentageRequestVolume: math.MaxUint32,
				EnforcingFailurePercentage: 100,
			},
			SlowStart: SlowStart{Window: time.Minute, Aggression: 1.5, MinWeightPercent: 0.5}, ProxyProtocol: ProxyOut{Version: 2, UniqueID: true, PassThroughTLVs: []string{"0xEA", "0x02"}},
			TLS: UpstreamTLS{
				Enabled: true, CAFile: "/etc/tls/ca.pem", CertFile: "/etc/tls/client.pem", KeyFile: "/etc/tls/client-key.pem",
				ServerName: "web.internal", ALPN: []string{"h2", "http/1.1"}, SPIFFEIDs: []string{"spiffe://example.org/web"},
				SANs: []SANMatcher{
					{Type: "dns", Suffix: ".web.internal", IgnoreCase: true}, {Type: "ip_address", Exact: "10.0.0.1"},
					{Type: "uri", Prefix: "spiffe://example.org/"}, {Type: "email", Regex: ".+@example.org"}, {Type: "any", Contains: "web"},
				},
				MinVersion: "TLSv1_3", MaxVersion: "TLSv1_3",
			},
			SourceAddress: []netip.Addr{netip.MustParseAddr("10.0.0.7"), netip.MustParseAddr("2001:db8::7")}, SocketMark: 1<<32 - 1,
			TCPKeepalive:  TCPKeepalive{KeepaliveInterval: 5 * time.Second, KeepaliveProbes: 3},
			HappyEyeballs: HappyEyeballs{FirstAddressFamilyVersion: FamilyV6, FirstAddressFamilyCount: 2},
		}, {
			Name: "weighted", Origin: OriginFile, Mode: ModeFirst, Discovery: []Discovery{{Kind: DiscoveryFile, Path: "/etc/gatehouse/w.json"}},
			Selectors:      []Selector{{Name: "table", Policy: PolicyMaglev, TableSize: 65537, HashBalanceFactor: 100}},
			ConnectTimeout: 5 * time.Second, MaxConnectAttempts: 3, Required: true,
			LocalityWeighted: true, OverprovisioningFactor: 140, SlowStart: slowStartOff, OutlierDetection: split,
			OnAbsent: AbsentImmediate, OnRemoval: EndKeep, OnUnhealthy: EndKeep, CloseAfter: time.Minute, TLS: noUpstreamTLS, TCPKeepalive: keepalive, HappyEyeballs: eyeballs,
		}},
		Listeners: []Listener{
			{
				Name: "web", Origin: OriginFile, Address: addr("127.0.0.1:8080"), Cluster: "web", Selector: "spread",
				HashOn: HashOnSourceIP, TLSInspector: noInspector, HalfClosedTimeout: 10 * time.Second, MaxConnections: 1000,
				MaxConnectionDuration: 12 * time.Hour, MaxConnectionDurationJitter: 12.5,
				ProxyProtocol: ProxyIn{
					AcceptFrom: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("2001:db8::7/128")},
					Optional:   true, Timeout: 2 * time.Second, MaxPending: 50,
				},
				TLS: DownstreamTLS{
					Enabled: true, CertFile: "/etc/tls/server.pem", KeyFile: "/etc/tls/server-key.pem", CAFile: "/etc/tls/clients.pem",
					Certificates:             []TLSCertificate{{Name: "api", CertFile: "/etc/tls/api.pem", KeyFile: "/etc/tls/api-key.pem"}},
					RequireClientCertificate: true, ALPN: []string{"h2"}, SPIFFEIDs: []string{"spiffe://example.org"},
					SANs:       []SANMatcher{{Type: "dns", Exact: "client.internal"}},
					MinVersion: "TLSv1_2", MaxVersion: "TLSv1_2", HandshakeTimeout: 3 * time.Second, MaxHandshakes: 100, NoResumption: true,
				},
				TCPBacklogSize: 128,
				TCPKeepalive:   TCPKeepalive{KeepaliveTime: 30 * time.Second, KeepaliveInterval: 10 * time.Second, UserTimeout: time.Minute},
				AccessLogs: []AccessLog{
					{Path: "/var/log/gatehouse/web.log", Format: "[%START_TIME%] %RESPONSE_FLAGS%"}, {Path: "stdout", Format: "json"},
				},
			},
			{
				Name: "unix", Origin: OriginFile, Address: lbcore.UnixAddr("/run/gatehouse/web.sock"), Cluster: "web",
				HashOn: HashOnNone, IdleTimeout: time.Hour, HalfClosedTimeout: 5 * time.Minute, ProxyProtocol: noProxy, TCPKeepalive: keepalive, TLSInspector: noInspector, TLS: noDownstreamTLS,
				Unix: Unix{Mode: 0o660, User: "www-data", Group: "33"},
			},
			{
				Name: "any port", Origin: OriginFile, Address: addr("127.0.0.1:0"),
				WeightedClusters: []WeightedCluster{{"web", 4294967205}, {"weighted", 90}}, OriginalDst: true,
				HashOn: HashOnSNI, TLSInspector: TLSInspector{Timeout: 3 * time.Second, MaxPending: 60},
				IdleTimeout: time.Hour, HalfClosedTimeout: 5 * time.Minute, ProxyProtocol: noProxy, TCPKeepalive: keepalive, TLS: noDownstreamTLS,
			},
			{
				Name: "from the control plane", Origin: OriginFile, Address: addr("[::1%lo]:8080"), Cluster: "api", Selector: "default",
				HashOn: HashOnProxyTLV + "0xEA", TLSInspector: noInspector, IdleTimeout: time.Hour, HalfClosedTimeout: 5 * time.Minute,
				ProxyProtocol: ProxyIn{AcceptFrom: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, Timeout: 10 * time.Second, MaxPending: 1024}, TCPKeepalive: keepalive, TLS: noDownstreamTLS,
			},
		},
	}
}

// noProxy is what a listener without the block has.
var noProxy = ProxyIn{Timeout: 10 * time.Second, MaxPending: 1024}

// noUpstreamTLS and noDownstreamTLS are what clusters and listeners without the
// block have.
var (
	noUpstreamTLS   = UpstreamTLS{MaxSessionKeys: 256, MinVersion: "TLSv1_2", MaxVersion: "TLSv1_3"}
	noDownstreamTLS = DownstreamTLS{MinVersion: "TLSv1_2", MaxVersion: "TLSv1_3", HandshakeTimeout: 15 * time.Second, MaxHandshakes: 1024}
)

// noInspector is what a listener without the block has.
var noInspector = TLSInspector{Timeout: 5 * time.Second, MaxPending: 1024}

// keepalive and eyeballs are what there is without the blocks.
var (
	keepalive = TCPKeepalive{KeepaliveTime: 2 * time.Minute, KeepaliveInterval: 15 * time.Second, UserTimeout: 5 * time.Minute}
	eyeballs  = HappyEyeballs{FirstAddressFamilyVersion: FamilyDefault, FirstAddressFamilyCount: 1}
)

// slowStartOff is what a cluster without the block has.
var slowStartOff = SlowStart{Aggression: 1, MinWeightPercent: 10}

// outlierOff is what a cluster without the block has.
func outlierOff() OutlierDetection {
	o := OutlierDetection(outlier.Default())
	o.Enabled = false
	return o
}

func TestFullInBothSyntaxes(t *testing.T) {
	want := fullConfig()
	for _, name := range []string{"full.hcl", "full.json"} {
		got := mustLoad(t, Options{Paths: []string{filepath.Join("testdata/good", name)}, Hostname: "host"})
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s (-want +got):\n%s", name, diff(want, got))
		}
	}
}

// Each field of full.hcl differs from its default, so that the test above
// would see an argument that is not decoded.
func TestFullSetsEverything(t *testing.T) {
	full := fullConfig()
	seen := map[string]bool{}
	var visit func(b *block, v reflect.Value)
	visit = func(b *block, v reflect.Value) {
		fresh := reflect.New(v.Type()).Elem()
		if b.kind != nil {
			fresh.Field(b.kind.index).Set(v.Field(b.kind.index))
		}
		(&decoder{}).defaults(b, fresh)
		for _, f := range b.fields {
			x := v.Field(f.index)
			key := b.name + "." + f.name
			switch {
			case f.many:
				for i := range x.Len() {
					visit(f.block, x.Index(i))
				}
			case f.block != nil:
				visit(f.block, x)
			default:
				seen[key] = seen[key] || !reflect.DeepEqual(x.Interface(), fresh.Field(f.index).Interface())
			}
		}
	}
	visit(newBlock("", reflect.TypeFor[Config]()), reflect.ValueOf(full).Elem())
	delete(seen, "xds.bootstrap") // excludes a server
	delete(seen, "xds.server_uri")
	delete(seen, "consul.token")    // excludes token_file
	delete(seen, "selector.policy") // fresh has the same
	delete(seen, "selector.rank")   // has one value only
	if len(seen) < 80 {
		t.Fatalf("the test looked at %d arguments only", len(seen))
	}
	for key, ok := range seen {
		if !ok {
			t.Errorf("full.hcl leaves %s at its default", key)
		}
	}
}

var defaultDNS = DNS{ResolvConf: "/etc/resolv.conf", Stagger: 150 * time.Millisecond}

func defaultConsul() Consul {
	return Consul{
		Address: "127.0.0.1:8500", SSLVerify: true, WaitTime: time.Minute, MaxWatches: 48,
		MaxStale: 10 * time.Second, EmptyHold: 30 * time.Second,
		Register: Register{Name: "gatehouse", CheckInterval: 10 * time.Second, CheckTimeout: 5 * time.Second},
	}
}

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
		Telemetry:      Telemetry{PrometheusRetentionTime: 24 * time.Hour, DisableHostname: true, MetricsPrefix: "gatehouse"},
		XDS:            XDS{Protocol: "auto", MaxMessageSize: 64 << 20},
		Consul:         defaultConsul(),
		DNS:            defaultDNS,
		InitialTimeout: 30 * time.Second,
		DrainTimeout:   30 * time.Second,
		DrainSpread:    10 * time.Second,
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
			HashOn: "none", TLSInspector: noInspector, IdleTimeout: time.Hour, HalfClosedTimeout: 5 * time.Minute, ProxyProtocol: noProxy, TLS: noDownstreamTLS, TCPKeepalive: keepalive,
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
		Telemetry:      Telemetry{PrometheusRetentionTime: 24 * time.Hour, MetricsPrefix: "gatehouse"},
		XDS:            XDS{ServerURI: "10.0.0.1:15010", Protocol: "auto", MaxMessageSize: 64 << 20},
		Consul:         defaultConsul(),
		DNS:            defaultDNS,
		InitialTimeout: 30 * time.Second,
		DrainTimeout:   2 * time.Second,
		DrainSpread:    10 * time.Second,
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
		admin.address log.level log.json gate.stuck_after gate.max_stuck gate.max_storage relay.event_loops limits.max_connections health.workers
		telemetry.prometheus_retention_time telemetry.statsd_address telemetry.disable_hostname telemetry.metrics_prefix
		xds.bootstrap xds.server_uri xds.protocol xds.user_agent_name xds.user_agent_version xds.max_message_size xds.clusters
		consul.address consul.ssl consul.token consul.token_file consul.http_auth consul.ca_file consul.ca_path
		consul.cert_file consul.key_file consul.tls_server_name consul.ssl_verify consul.datacenter consul.namespace consul.partition
		consul.wait_time consul.max_watches consul.max_stale consul.empty_hold consul.listeners
		consul.register.name consul.register.id consul.register.address
		consul.register.check_interval consul.register.check_timeout consul.register.deregister_after
		dns.resolv_conf dns.ndots dns.stagger dns.timeout dns.attempts dns.tcp
		initial_timeout drain_timeout drain_spread`)
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
	if want := []AccessLog{{"stderr", "text"}, {"/x", "unknown"}}; !reflect.DeepEqual(cfg.Listeners[0].AccessLogs, want) {
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
