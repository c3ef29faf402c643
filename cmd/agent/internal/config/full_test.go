package config

import (
	"log/slog"
	"math"
	"net/netip"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"gatehouse.internal/healthsvc/outlier"
	"gatehouse.internal/lbcore"
)

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
		Admin: Admin{
			Address: addr("10.0.0.7:9902"), TokenFile: "/etc/gatehouse/admin-token",
			TLS: AdminTLS{CertFile: "/etc/tls/admin.pem", KeyFile: "/etc/tls/admin-key.pem", ClientCAFile: "/etc/tls/operators.pem"},
		},
		Log:   Log{Level: slog.LevelWarn, JSON: true},
		Gate:  Gate{StuckAfter: 2 * time.Second, MaxStuck: 7, MaxStorage: 8 << 20},
		Relay: Relay{EventLoops: 3}, DrainTimeout: 20 * time.Second, DrainSpread: 3 * time.Second,
		Telemetry: Telemetry{
			PrometheusRetentionTime: time.Minute,
			StatsdAddress:           "statsd.internal:8125",
			StatsiteAddress:         "statsite.internal:8125",
			DogstatsdAddr:           "unix:///run/datadog/dsd.socket",
			DogstatsdTags:           []string{"env:blue", "canary"},
			PrefixFilter:            []string{"-edge_1.selector", "+edge_1.selector.panic"},
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
			Protocol: "delta", UserAgentName: "envoy", UserAgentVersion: "1.30.1", MaxMessageSize: 16 << 20, Clusters: true, Listeners: true,
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
		Takeover: Takeover{Socket: "/run/gatehouse/next.sock", Timeout: 5 * time.Minute},
		StateDir: "/var/lib/gatehouse", InitialTimeout: time.Minute,
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
		}, {
			Name: "mesh", Origin: OriginFile, Mode: ModeFirst, Discovery: []Discovery{{Kind: DiscoveryConsul, Service: "mesh", Connect: true, Consistency: "stale"}},
			Connect: Connect{Enabled: true, Service: "client"}, Selectors: []Selector{{Name: DefaultSelector, Policy: PolicyRoundRobin}},
			ConnectTimeout: 5 * time.Second, MaxConnectAttempts: 3, Required: true,
			OverprovisioningFactor: 140, SlowStart: slowStartOff, OutlierDetection: outlierOff(),
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
				Connect:        noDownstreamConnect,
				TCPBacklogSize: 128,
				TCPKeepalive:   TCPKeepalive{KeepaliveTime: 30 * time.Second, KeepaliveInterval: 10 * time.Second, UserTimeout: time.Minute},
				AccessLogs: []AccessLog{
					{Path: "/var/log/gatehouse/web.log", Format: "[%START_TIME%] %RESPONSE_FLAGS%", Sample: 0.01}, {Path: "stdout", Format: "json", Sample: 1, SampleFailures: true},
				},
			},
			{
				Name: "unix", Origin: OriginFile, Address: lbcore.UnixAddr("/run/gatehouse/web.sock"), Cluster: "web",
				HashOn: HashOnNone, IdleTimeout: time.Hour, HalfClosedTimeout: 5 * time.Minute, ProxyProtocol: noProxy, TCPKeepalive: keepalive, TLSInspector: noInspector, TLS: noDownstreamTLS, Connect: noDownstreamConnect,
				Unix: Unix{Mode: 0o660, User: "www-data", Group: "33"},
			},
			{
				Name: "any port", Origin: OriginFile, Address: addr("127.0.0.1:0"),
				WeightedClusters: []WeightedCluster{{"web", 4294967205}, {"weighted", 90}}, OriginalDst: true,
				HashOn: HashOnSNI, TLSInspector: TLSInspector{Timeout: 3 * time.Second, MaxPending: 60},
				IdleTimeout: time.Hour, HalfClosedTimeout: 5 * time.Minute, ProxyProtocol: noProxy, TCPKeepalive: keepalive, TLS: noDownstreamTLS, Connect: noDownstreamConnect,
			},
			{
				Name: "from the control plane", Origin: OriginFile, Address: addr("[::1%lo]:8080"), Cluster: "api", Selector: "default",
				HashOn: HashOnProxyTLV + "0xEA", TLSInspector: noInspector, IdleTimeout: time.Hour, HalfClosedTimeout: 5 * time.Minute,
				ProxyProtocol: ProxyIn{AcceptFrom: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, Timeout: 10 * time.Second, MaxPending: 1024}, TCPKeepalive: keepalive, TLS: noDownstreamTLS, Connect: noDownstreamConnect,
			},
			{
				Name: "mesh", Origin: OriginFile, Address: addr("127.0.0.1:8443"), Cluster: "web",
				Connect: DownstreamConnect{Enabled: true, Service: "api", HandshakeTimeout: 4 * time.Second, MaxHandshakes: 200},
				HashOn:  HashOnNone, IdleTimeout: time.Hour, HalfClosedTimeout: 5 * time.Minute, ProxyProtocol: noProxy, TCPKeepalive: keepalive, TLSInspector: noInspector, TLS: noDownstreamTLS,
			},
		},
	}
}

// noProxy is what a listener without the block has.
var noProxy = ProxyIn{Timeout: 10 * time.Second, MaxPending: 1024}

// These are what clusters and listeners without the block have.
var (
	noUpstreamTLS   = UpstreamTLS{MaxSessionKeys: 256, MinVersion: "TLSv1_2", MaxVersion: "TLSv1_3"}
	noDownstreamTLS = DownstreamTLS{MinVersion: "TLSv1_2", MaxVersion: "TLSv1_3", HandshakeTimeout: 15 * time.Second, MaxHandshakes: 1024}

	noDownstreamConnect = DownstreamConnect{HandshakeTimeout: 15 * time.Second, MaxHandshakes: 1024}
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
