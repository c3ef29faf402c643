package xds

import (
	"math"
	"net/http"
	"strings"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	leastrequestv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/least_request/v3"
	maglevv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/maglev/v3"
	pickfirstv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/pick_first/v3"
	randomv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/random/v3"
	ringhashv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/ring_hash/v3"
	roundrobinv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/round_robin/v3"
	rawbufferv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/raw_buffer/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"gatehouse.internal/healthsvc"
	"gatehouse.internal/healthsvc/outlier"
	"gatehouse.internal/lbcore"
)

type mutate = func(*clusterv3.Cluster)

func ads() *corev3.ConfigSource {
	return &corev3.ConfigSource{ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}}}
}

// edsCluster returns a cluster that takes its endpoints from ADS.
func edsCluster(name string, with ...mutate) *clusterv3.Cluster {
	c := &clusterv3.Cluster{
		Name:                 name,
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS},
		EdsClusterConfig:     &clusterv3.Cluster_EdsClusterConfig{EdsConfig: ads()},
	}
	for _, f := range with {
		f(c)
	}
	return c
}

func static(localities ...mutate) mutate {
	return func(c *clusterv3.Cluster) {
		c.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC}
		c.EdsClusterConfig = nil
		for _, f := range localities {
			f(c)
		}
	}
}

func anyOf(t testing.TB, m proto.Message) *anypb.Any {
	t.Helper()
	a, err := anypb.New(m)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// typed returns a load_balancing_policy of the given configurations.
func typed(t testing.TB, configs ...proto.Message) mutate {
	return func(c *clusterv3.Cluster) {
		c.LbPolicy = clusterv3.Cluster_LOAD_BALANCING_POLICY_CONFIG
		c.LoadBalancingPolicy = &clusterv3.LoadBalancingPolicy{}
		for _, m := range configs {
			c.LoadBalancingPolicy.Policies = append(c.LoadBalancingPolicy.Policies, &clusterv3.LoadBalancingPolicy_Policy{
				TypedExtensionConfig: &corev3.TypedExtensionConfig{Name: string(m.ProtoReflect().Descriptor().Name()), TypedConfig: anyOf(t, m)},
			})
		}
	}
}

func tcpCheck(with ...func(*corev3.HealthCheck)) mutate {
	h := &corev3.HealthCheck{
		Timeout: durationpb.New(time.Second), Interval: durationpb.New(5 * time.Second),
		UnhealthyThreshold: u32(3), HealthyThreshold: u32(2),
		HealthChecker: &corev3.HealthCheck_TcpHealthCheck_{TcpHealthCheck: &corev3.HealthCheck_TcpHealthCheck{}},
	}
	for _, f := range with {
		f(h)
	}
	return func(c *clusterv3.Cluster) { c.HealthChecks = append(c.HealthChecks, h) }
}

func httpCheck(h *corev3.HealthCheck_HttpHealthCheck) mutate {
	return tcpCheck(func(hc *corev3.HealthCheck) {
		hc.HealthChecker = &corev3.HealthCheck_HttpHealthCheck_{HttpHealthCheck: h}
	})
}

func grpcCheck(g *corev3.HealthCheck_GrpcHealthCheck) func(*corev3.HealthCheck) {
	return func(h *corev3.HealthCheck) {
		h.HealthChecker = &corev3.HealthCheck_GrpcHealthCheck_{GrpcHealthCheck: g}
	}
}

func text(s string) *corev3.HealthCheck_Payload {
	return &corev3.HealthCheck_Payload{Payload: &corev3.HealthCheck_Payload_Text{Text: s}}
}

func policyOf(p clusterv3.Cluster_LbPolicy) mutate {
	return func(c *clusterv3.Cluster) { c.LbPolicy = p }
}

func ringConfig(least, most *uint64, f clusterv3.Cluster_RingHashLbConfig_HashFunction) mutate {
	return func(c *clusterv3.Cluster) {
		c.LbPolicy = clusterv3.Cluster_RING_HASH
		r := &clusterv3.Cluster_RingHashLbConfig{HashFunction: f}
		if least != nil {
			r.MinimumRingSize = u64(*least)
		}
		if most != nil {
			r.MaximumRingSize = u64(*most)
		}
		c.LbConfig = &clusterv3.Cluster_RingHashLbConfig_{RingHashLbConfig: r}
	}
}

func leastConfig(l *clusterv3.Cluster_LeastRequestLbConfig) mutate {
	return func(c *clusterv3.Cluster) {
		c.LbPolicy = clusterv3.Cluster_LEAST_REQUEST
		c.LbConfig = &clusterv3.Cluster_LeastRequestLbConfig_{LeastRequestLbConfig: l}
	}
}

func maglevTable(size uint64) mutate {
	return func(c *clusterv3.Cluster) {
		c.LbPolicy = clusterv3.Cluster_MAGLEV
		c.LbConfig = &clusterv3.Cluster_MaglevLbConfig_{MaglevLbConfig: &clusterv3.Cluster_MaglevLbConfig{TableSize: u64(size)}}
	}
}

var ringDefaults = Policy{Name: RingHash, MinimumRingSize: 1024, MaximumRingSize: 8388608, HashFunction: "xx_hash"}

func TestDecodeCluster(t *testing.T) {
	set := lbcore.MustSet(lbcore.Endpoint{Addr: addr("10.0.0.1:80"), Weight: 1})
	base := func(f func(*Cluster)) *Cluster {
		c := &Cluster{Name: "web", EDSName: "web", Policy: Policy{Name: RoundRobin}, PanicThreshold: 50, ConnectTimeout: 5 * time.Second, CircuitBreakers: defaultBreakers}
		f(c)
		return c
	}
	check := HealthCheck{
		Cadence:    healthsvc.Cadence{Interval: 5 * time.Second, Timeout: time.Second, NoTrafficInterval: time.Minute},
		Thresholds: healthsvc.Thresholds{Healthy: 2, Unhealthy: 3},
		TCP:        &healthsvc.TCP{},
	}
	for _, tt := range []struct {
		name string
		with mutate
		want func(*Cluster)
	}{
		{"eds", func(*clusterv3.Cluster) {}, func(*Cluster) {}},
		{"service name", func(c *clusterv3.Cluster) { c.EdsClusterConfig.ServiceName = "svc" }, func(c *Cluster) { c.EDSName = "svc" }},
		{"self", func(c *clusterv3.Cluster) {
			c.EdsClusterConfig.EdsConfig.ConfigSourceSpecifier = &corev3.ConfigSource_Self{Self: &corev3.SelfConfigSource{}}
		}, func(*Cluster) {}},
		{"static", static(func(c *clusterv3.Cluster) {
			c.LoadAssignment = cla("web", locality(0, lb(socket("10.0.0.1", 80)), lb(socket("10.0.0.1", 80), weight(2)), lb(internalAddress())))
		}), func(c *Cluster) {
			c.EDSName, c.Static = "", &set
			c.Duplicates = []lbcore.Dropped{{Index: 1, Endpoint: lbcore.Endpoint{Addr: addr("10.0.0.1:80"), Weight: 2}}}
			c.Ignored = []string{"load_assignment.endpoints[0].lb_endpoints[2]: envoy_internal_address: left out"}
		}},
		{"static without endpoints", static(), func(c *Cluster) { c.EDSName, c.Static = "", &lbcore.Set{} }},
		{"connect timeout", func(c *clusterv3.Cluster) { c.ConnectTimeout = durationpb.New(250 * time.Millisecond) },
			func(c *Cluster) { c.ConnectTimeout = 250 * time.Millisecond }},
		{"raw buffer", func(c *clusterv3.Cluster) {
			c.TransportSocket = &corev3.TransportSocket{Name: "x", ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: anyOf(t, &rawbufferv3.RawBuffer{})}}
		}, func(*Cluster) {}},
		{"ring hash", policyOf(clusterv3.Cluster_RING_HASH), func(c *Cluster) { c.Policy = ringDefaults }},
		{"ring hash sizes", ringConfig(new(uint64(20)), new(uint64(30)), clusterv3.Cluster_RingHashLbConfig_MURMUR_HASH_2), func(c *Cluster) {
			c.Policy = Policy{Name: RingHash, MinimumRingSize: 20, MaximumRingSize: 30, HashFunction: "murmur_hash_2"}
		}},
		{"random", policyOf(clusterv3.Cluster_RANDOM), func(c *Cluster) { c.Policy = Policy{Name: Random} }},
		{"maglev", policyOf(clusterv3.Cluster_MAGLEV), func(c *Cluster) { c.Policy = Policy{Name: Maglev, TableSize: 65537} }},
		{"maglev without a size", func(c *clusterv3.Cluster) {
			maglevTable(1)(c)
			c.GetMaglevLbConfig().TableSize = nil
		}, func(c *Cluster) { c.Policy = Policy{Name: Maglev, TableSize: 65537} }},
		{"maglev, the smallest", maglevTable(2), func(c *Cluster) { c.Policy = Policy{Name: Maglev, TableSize: 2} }},
		{"maglev, the largest", maglevTable(5000011), func(c *Cluster) { c.Policy = Policy{Name: Maglev, TableSize: 5000011} }},
		{"maglev's config for another policy", func(c *clusterv3.Cluster) {
			maglevTable(4)(c)
			c.LbPolicy = clusterv3.Cluster_ROUND_ROBIN
		}, func(c *Cluster) { c.Ignored = []string{"maglev_lb_config"} }},
		{"least request", policyOf(clusterv3.Cluster_LEAST_REQUEST), func(c *Cluster) {
			c.Policy = Policy{Name: LeastWeight, ChoiceCount: 2, ActiveRequestBias: 1}
		}},
		{"least request config", leastConfig(&clusterv3.Cluster_LeastRequestLbConfig{
			ChoiceCount: u32(50), ActiveRequestBias: &corev3.RuntimeDouble{DefaultValue: 0.5},
		}), func(c *Cluster) { c.Policy = Policy{Name: LeastWeight, ChoiceCount: 10, ActiveRequestBias: 0.5} }},
		{"negative bias", leastConfig(&clusterv3.Cluster_LeastRequestLbConfig{ActiveRequestBias: &corev3.RuntimeDouble{DefaultValue: -1}}), func(c *Cluster) {
			c.Policy = Policy{Name: LeastWeight, ChoiceCount: 2, ActiveRequestBias: 1}
			c.Ignored = []string{"least_request_lb_config.active_request_bias -1: 1 is used"}
		}},
		{"typed round robin", typed(t, &roundrobinv3.RoundRobin{}), func(*Cluster) {}},
		{"typed, the first that is known", typed(t, &pickfirstv3.PickFirst{}, &ringhashv3.RingHash{MinimumRingSize: u64(7), HashFunction: ringhashv3.RingHash_MURMUR_HASH_2}, &roundrobinv3.RoundRobin{}),
			func(c *Cluster) {
				c.Policy = Policy{Name: RingHash, MinimumRingSize: 7, MaximumRingSize: 8388608, HashFunction: "murmur_hash_2"}
			}},
		{"typed ring hash default", typed(t, &ringhashv3.RingHash{}), func(c *Cluster) { c.Policy = ringDefaults }},
		{"typed random", typed(t, &randomv3.Random{}), func(c *Cluster) { c.Policy = Policy{Name: Random} }},
		{"typed maglev", typed(t, &maglevv3.Maglev{TableSize: u64(7)}), func(c *Cluster) { c.Policy = Policy{Name: Maglev, TableSize: 7} }},
		{"typed maglev default", typed(t, &maglevv3.Maglev{}, &roundrobinv3.RoundRobin{}), func(c *Cluster) { c.Policy = Policy{Name: Maglev, TableSize: 65537} }},
		{"typed least request", typed(t, &leastrequestv3.LeastRequest{ChoiceCount: u32(3)}),
			func(c *Cluster) { c.Policy = Policy{Name: LeastWeight, ChoiceCount: 3, ActiveRequestBias: 1} }},
		{"tcp check", tcpCheck(), func(c *Cluster) { c.HealthChecks = []HealthCheck{check} }},
		{"tcp check, all fields", tcpCheck(func(h *corev3.HealthCheck) {
			h.InitialJitter, h.IntervalJitter, h.IntervalJitterPercent = durationpb.New(time.Millisecond), durationpb.New(2*time.Millisecond), 7
			h.UnhealthyInterval, h.UnhealthyEdgeInterval, h.HealthyEdgeInterval = durationpb.New(11*time.Second), durationpb.New(12*time.Second), durationpb.New(13*time.Second)
			h.NoTrafficInterval, h.NoTrafficHealthyInterval = durationpb.New(14*time.Second), durationpb.New(15*time.Second)
			h.AlwaysLogHealthCheckFailures, h.AltPort = true, u32(8081)
			h.TlsOptions = &corev3.HealthCheck_TlsOptions{AlpnProtocols: []string{"x"}}
			h.GetTcpHealthCheck().ProxyProtocolConfig = &corev3.ProxyProtocolConfig{Version: corev3.ProxyProtocolConfig_V2}
			h.GetTcpHealthCheck().Send = text("50494e47")
			h.GetTcpHealthCheck().Receive = []*corev3.HealthCheck_Payload{text("50"), {Payload: &corev3.HealthCheck_Payload_Binary{Binary: []byte("ONG")}}}
		}), func(c *Cluster) {
			h := check
			h.InitialJitter, h.IntervalJitter, h.IntervalJitterPercent = time.Millisecond, 2*time.Millisecond, 7
			h.UnhealthyInterval, h.UnhealthyEdgeInterval, h.HealthyEdgeInterval = 11*time.Second, 12*time.Second, 13*time.Second
			h.NoTrafficInterval, h.NoTrafficHealthyInterval = 14*time.Second, 15*time.Second
			h.AlwaysLogFailures, h.Port, h.ALPN = true, 8081, []string{"x"}
			h.TCP = &healthsvc.TCP{Send: []byte("PING"), Receive: [][]byte{[]byte("P"), []byte("ONG")}}
			h.TCP.ProxyVersion = 2
			c.HealthChecks = []HealthCheck{h}
		}},
		{"http check", httpCheck(&corev3.HealthCheck_HttpHealthCheck{
			Host: "h", Path: "/live", Method: corev3.RequestMethod_HEAD,
			ExpectedStatuses:  []*typev3.Int64Range{{Start: 200, End: 300}},
			RetriableStatuses: []*typev3.Int64Range{{Start: 503, End: 504}},
			RequestHeadersToAdd: []*corev3.HeaderValueOption{
				{Header: &corev3.HeaderValue{Key: "x-a", Value: "1"}}, {Header: &corev3.HeaderValue{Key: "X-A", RawValue: []byte("2")}},
			},
		}), func(c *Cluster) {
			h := check
			h.TCP = nil
			h.HTTP = &healthsvc.HTTP{
				Host: "h", Path: "/live", Method: "HEAD", Headers: http.Header{"X-A": {"1", "2"}},
				Expected: []healthsvc.StatusRange{{Start: 200, End: 300}}, Retriable: []healthsvc.StatusRange{{Start: 503, End: 504}},
			}
			c.HealthChecks = []HealthCheck{h}
		}},
		{"grpc check", tcpCheck(grpcCheck(&corev3.HealthCheck_GrpcHealthCheck{
			ServiceName: "a.B", Authority: "api",
			InitialMetadata: []*corev3.HeaderValueOption{{Header: &corev3.HeaderValue{Key: "X-A", Value: "1"}}},
		})), func(c *Cluster) {
			h := check
			h.TCP = nil
			h.GRPC = &healthsvc.GRPC{Service: "a.B", Authority: "api", Metadata: map[string][]string{"x-a": {"1"}}}
			c.HealthChecks = []HealthCheck{h}
		}},
		{"load reports", func(c *clusterv3.Cluster) {
			c.LrsServer = &corev3.ConfigSource{ConfigSourceSpecifier: &corev3.ConfigSource_Self{Self: &corev3.SelfConfigSource{}}}
		}, func(c *Cluster) { c.LoadReports = true }},
		{"load reports elsewhere", func(c *clusterv3.Cluster) { c.LrsServer = ads() }, func(c *Cluster) { c.Unsupported = "lrs_server other than self" }},
		{"absent endpoints", func(c *clusterv3.Cluster) { c.IgnoreHealthOnHostRemoval = true }, func(c *Cluster) { c.IgnoreHealthOnRemoval = true }},
		{"logged successes", tcpCheck(func(h *corev3.HealthCheck) { h.AlwaysLogHealthCheckSuccess = true }), func(c *Cluster) {
			c.HealthChecks, c.Ignored = []HealthCheck{check}, []string{"health_checks[0].always_log_health_check_success"}
		}},
		{"ignored fields", func(c *clusterv3.Cluster) {
			c.OutlierDetection = &clusterv3.OutlierDetection{}
			c.PreconnectPolicy = &clusterv3.Cluster_PreconnectPolicy{}
			c.AltStatName = "x"
		}, func(c *Cluster) { c.Ignored, c.Outlier = []string{"preconnect_policy"}, outlier.Default() }},
		{"circuit breakers, no thresholds", func(c *clusterv3.Cluster) { c.CircuitBreakers = &clusterv3.CircuitBreakers{} }, func(*Cluster) {}},
		{"circuit breakers", func(c *clusterv3.Cluster) {
			c.CircuitBreakers = &clusterv3.CircuitBreakers{
				Thresholds: []*clusterv3.CircuitBreakers_Thresholds{
					{Priority: corev3.RoutingPriority_HIGH, MaxConnections: u32(1)},
					{MaxConnections: u32(0), MaxPendingRequests: u32(7), MaxRequests: u32(1), MaxRetries: u32(1), TrackRemaining: true},
					{MaxConnections: u32(2)},
				},
				PerHostThresholds: []*clusterv3.CircuitBreakers_Thresholds{{MaxConnections: u32(9), MaxRequests: u32(1)}},
			}
		}, func(c *Cluster) {
			c.CircuitBreakers = CircuitBreakers{MaxConnections: -1, MaxPendingRequests: 7, MaxConnectionsPerEndpoint: 9}
			c.Ignored = []string{"circuit_breakers.thresholds[0]", "circuit_breakers.thresholds[2]"}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			name, v, err := decodeCluster(marshal(t, edsCluster("web", tt.with)))
			if err != nil || name != "web" {
				t.Fatalf("got name %q, error %v", name, err)
			}
			if d := cmp.Diff(base(tt.want), v, compareAddr, cmp.Comparer(lbcore.Set.Equal)); d != "" {
				t.Errorf("cluster (-want +got):\n%s", d)
			}
		})
	}
}

func TestDecodeClusterUnsupported(t *testing.T) {
	for _, tt := range []struct {
		name string
		with mutate
		want string
	}{
		{"original destination", func(c *clusterv3.Cluster) {
			c.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_ORIGINAL_DST}
		}, "type ORIGINAL_DST"},
		{"unknown type", func(c *clusterv3.Cluster) { c.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: 77} }, "type 77"},
		{"extension", func(c *clusterv3.Cluster) {
			c.ClusterDiscoveryType = &clusterv3.Cluster_ClusterType{ClusterType: &clusterv3.Cluster_CustomClusterType{Name: "x"}}
		}, `cluster_type "x"`},
		{"other source", func(c *clusterv3.Cluster) {
			c.EdsClusterConfig.EdsConfig.ConfigSourceSpecifier = &corev3.ConfigSource_PathConfigSource{PathConfigSource: &corev3.PathConfigSource{Path: "/x"}}
		}, "eds_cluster_config.eds_config other than ads and self"},
		{"tls of servers", func(c *clusterv3.Cluster) {
			c.TransportSocket = socketOf(t, &tlsv3.DownstreamTlsContext{})
			c.TransportSocket.Name = "envoy.transport_sockets.raw_buffer"
		}, `transport_socket "envoy.transport_sockets.raw_buffer"`},
		{"a socket by its name alone", func(c *clusterv3.Cluster) {
			c.TransportSocket = &corev3.TransportSocket{Name: "envoy.transport_sockets.tls"}
		}, `transport_socket "envoy.transport_sockets.tls"`},
		{"too many matches", func(c *clusterv3.Cluster) {
			c.TransportSocketMatches = make([]*clusterv3.Cluster_TransportSocketMatch, 65)
		}, "transport_socket_matches: 65, more than 64"},
		{"subsets", func(c *clusterv3.Cluster) {
			c.LbSubsetConfig = &clusterv3.Cluster_LbSubsetConfig{SubsetSelectors: []*clusterv3.Cluster_LbSubsetConfig_LbSubsetSelector{{Keys: []string{"a"}}}}
		}, "lb_subset_config.subset_selectors"},
		{"free bind", bind(&corev3.BindConfig{SourceAddress: source("10.0.0.7"), Freebind: &wrapperspb.BoolValue{Value: true}}), "upstream_bind_config.freebind"},
		{"socket options", bind(&corev3.BindConfig{SocketOptions: []*corev3.SocketOption{{}}}), "upstream_bind_config.socket_options"},
		{"source with a port", bind(&corev3.BindConfig{SourceAddress: &corev3.SocketAddress{Address: "10.0.0.7", PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: 80}}}),
			"upstream_bind_config.source_address with a port"},
		{"two sources of a family", bind(&corev3.BindConfig{SourceAddress: source("10.0.0.7"), ExtraSourceAddresses: []*corev3.ExtraSourceAddress{{Address: source("10.0.0.8")}}}),
			"upstream_bind_config.extra_source_addresses[0].address: a second address of one family"},
		{"provided", policyOf(clusterv3.Cluster_CLUSTER_PROVIDED), "lb_policy CLUSTER_PROVIDED"},
		{"unknown policy", policyOf(99), "lb_policy 99"},
		{"typed pick first", typed(t, &pickfirstv3.PickFirst{}), `load_balancing_policy: none of "PickFirst" is known`},
		{"full scan", typed(t, &leastrequestv3.LeastRequest{SelectionMethod: leastrequestv3.LeastRequest_FULL_SCAN}),
			"load_balancing_policy.policies[0].typed_extension_config.selection_method"},
		{"bias", leastConfig(&clusterv3.Cluster_LeastRequestLbConfig{ActiveRequestBias: &corev3.RuntimeDouble{DefaultValue: math.Inf(1)}}),
			"least_request_lb_config.active_request_bias +Inf"},
		{"hash function", ringConfig(nil, nil, 9), "ring_hash_lb_config.hash_function 10"},
		{"custom check", tcpCheck(func(h *corev3.HealthCheck) {
			h.HealthChecker = &corev3.HealthCheck_CustomHealthCheck_{CustomHealthCheck: &corev3.HealthCheck_CustomHealthCheck{Name: "x"}}
		}), "health_checks[0].custom_health_check"},
		{"http/2 check", httpCheck(&corev3.HealthCheck_HttpHealthCheck{Path: "/", CodecClientType: typev3.CodecClientType_HTTP2}),
			"health_checks[0].http_health_check.codec_client_type HTTP2"},
		{"check body", httpCheck(&corev3.HealthCheck_HttpHealthCheck{Path: "/", Receive: []*corev3.HealthCheck_Payload{text("00")}}),
			"health_checks[0].http_health_check.receive"},
		{"check header with a command", httpCheck(&corev3.HealthCheck_HttpHealthCheck{Path: "/", RequestHeadersToAdd: []*corev3.HeaderValueOption{
			{Header: &corev3.HeaderValue{Key: "a", Value: "%HOSTNAME%"}},
		}}), "health_checks[0].http_health_check.request_headers_to_add[0]: a value with %"},
		{"too many checks", func(c *clusterv3.Cluster) {
			for range maxHealthChecks + 1 {
				tcpCheck()(c)
			}
		}, "health_checks: 17, more than 16"},
		{"two reasons", func(c *clusterv3.Cluster) {
			c.LbPolicy = clusterv3.Cluster_CLUSTER_PROVIDED
			c.Filters = []*clusterv3.Filter{{}}
		}, "filters[0] \"\", lb_policy CLUSTER_PROVIDED"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			name, v, err := decodeCluster(marshal(t, edsCluster("web", tt.with)))
			if err != nil || name != "web" {
				t.Fatalf("got name %q, error %v", name, err)
			}
			if got := v.(*Cluster).Unsupported; got != tt.want {
				t.Errorf("Unsupported %q, want %q", got, tt.want)
			}
		})
	}
}

func TestDecodeClusterInvalid(t *testing.T) {
	for _, tt := range []struct {
		name string
		with mutate
		want string
	}{
		{"no name", func(c *clusterv3.Cluster) { c.Name = "" }, "name: missing"},
		{"source by name", bind(&corev3.BindConfig{SourceAddress: source("eth0")}), `upstream_bind_config.source_address.address: "eth0": want an IP address`},
		{"extra source with a zone", bind(&corev3.BindConfig{ExtraSourceAddresses: []*corev3.ExtraSourceAddress{{Address: source("fe80::1%eth0")}}}),
			`upstream_bind_config.extra_source_addresses[0].address.address: "fe80::1%eth0": want an IP address`},
		{"no address of the first family", options(&clusterv3.UpstreamConnectionOptions{HappyEyeballsConfig: &clusterv3.UpstreamConnectionOptions_HappyEyeballsConfig{FirstAddressFamilyCount: u32(0)}}),
			"upstream_connection_options.happy_eyeballs_config.first_address_family_count: 0: want at least 1"},
		{"no source", func(c *clusterv3.Cluster) { c.EdsClusterConfig = nil }, "eds_cluster_config.eds_config: missing: want ads or self"},
		{"long service name", service(strings.Repeat("x", 4097)), "eds_cluster_config.service_name: 4097 bytes: want at most 4096"},
		{"static", static(func(c *clusterv3.Cluster) { c.LoadAssignment = cla("web", locality(0, lb(socket("x y", 1)))) }),
			`load_assignment.endpoints[0].lb_endpoints[0].endpoint.address.socket_address.address: "x y": want an IP address`},
		{"circuit breakers, unknown priority", func(c *clusterv3.Cluster) {
			c.CircuitBreakers = &clusterv3.CircuitBreakers{Thresholds: []*clusterv3.CircuitBreakers_Thresholds{{}, {Priority: 7}}}
		}, "circuit_breakers.thresholds[1].priority: 7 is not known"},
		{"circuit breakers of endpoints, unknown priority", func(c *clusterv3.Cluster) {
			c.CircuitBreakers = &clusterv3.CircuitBreakers{PerHostThresholds: []*clusterv3.CircuitBreakers_Thresholds{{Priority: 7}}}
		}, "circuit_breakers.per_host_thresholds[0].priority: 7 is not known"},
		{"connect timeout 0", func(c *clusterv3.Cluster) { c.ConnectTimeout = durationpb.New(0) }, "connect_timeout: 0s: want more than 0s"},
		{"connect timeout negative", func(c *clusterv3.Cluster) { c.ConnectTimeout = durationpb.New(-time.Second) }, "connect_timeout: -1s: want more than 0s"},
		{"connect timeout invalid", func(c *clusterv3.Cluster) { c.ConnectTimeout = &durationpb.Duration{Nanos: -1, Seconds: 1} }, "connect_timeout: "},
		{"ring sizes", ringConfig(new(uint64(20)), new(uint64(10)), 0), "ring_hash_lb_config.minimum_ring_size (20) > maximum_ring_size (10)"},
		{"ring minimum", ringConfig(new(uint64(8388609)), nil, 0), "ring_hash_lb_config.minimum_ring_size: 8388609: want at most 8388608"},
		{"ring maximum", ringConfig(nil, new(uint64(8388609)), 0), "ring_hash_lb_config.maximum_ring_size: 8388609: want at most 8388608"},
		{"choice count", leastConfig(&clusterv3.Cluster_LeastRequestLbConfig{ChoiceCount: u32(1)}), "least_request_lb_config.choice_count: 1: want at least 2"},
		{"policy config missing", policyOf(clusterv3.Cluster_LOAD_BALANCING_POLICY_CONFIG), "lb_policy: LOAD_BALANCING_POLICY_CONFIG without load_balancing_policy"},
		{"no policies", typed(t), "load_balancing_policy.policies: empty"},
		{"table not prime", maglevTable(65536), "maglev_lb_config.table_size (65536) is not prime"},
		{"table 0", maglevTable(0), "maglev_lb_config.table_size (0) is not prime"},
		{"table 1", maglevTable(1), "maglev_lb_config.table_size (1) is not prime"},
		{"table too large", maglevTable(5000023), "maglev_lb_config.table_size (5000023) > 5000011"},
		{"table far too large", maglevTable(math.MaxUint64), "maglev_lb_config.table_size (18446744073709551615) > 5000011"},
		{"typed table not prime", typed(t, &maglevv3.Maglev{TableSize: u64(9)}),
			"load_balancing_policy.policies[0].typed_extension_config.table_size (9) is not prime"},
		{"typed random junk", func(c *clusterv3.Cluster) {
			typed(t, &randomv3.Random{})(c)
			c.LoadBalancingPolicy.Policies[0].TypedExtensionConfig.TypedConfig.Value = []byte("junk")
		}, "load_balancing_policy.policies[0].typed_extension_config.typed_config: "},
		{"typed invalid", typed(t, &pickfirstv3.PickFirst{}, &leastrequestv3.LeastRequest{ChoiceCount: u32(0)}),
			"load_balancing_policy.policies[1].typed_extension_config.choice_count: 0: want at least 2"},
		{"typed junk", func(c *clusterv3.Cluster) {
			typed(t, &ringhashv3.RingHash{})(c)
			c.LoadBalancingPolicy.Policies[0].TypedExtensionConfig.TypedConfig.Value = []byte("junk")
		}, "load_balancing_policy.policies[0].typed_extension_config.typed_config: "},
		{"check timeout", tcpCheck(func(h *corev3.HealthCheck) { h.Timeout = nil }), "health_checks[0].timeout: missing"},
		{"check interval", tcpCheck(func(h *corev3.HealthCheck) { h.Interval = durationpb.New(0) }), "health_checks[0].interval: 0s: want more than 0s"},
		{"check jitter", tcpCheck(func(h *corev3.HealthCheck) { h.IntervalJitter = durationpb.New(-1) }), "health_checks[0].interval_jitter: -1ns: want at least 0s"},
		{"check jitter invalid", tcpCheck(func(h *corev3.HealthCheck) { h.InitialJitter = &durationpb.Duration{Seconds: 1, Nanos: -1} }), "health_checks[0].initial_jitter: "},
		{"unhealthy threshold", tcpCheck(func(h *corev3.HealthCheck) { h.UnhealthyThreshold = nil }), "health_checks[0].unhealthy_threshold: missing"},
		{"healthy threshold", tcpCheck(func(h *corev3.HealthCheck) { h.HealthyThreshold = nil }), "health_checks[0].healthy_threshold: missing"},
		{"no checker", tcpCheck(func(h *corev3.HealthCheck) { h.HealthChecker = nil }), "health_checks[0].health_checker: missing"},
		{"send", tcpCheck(func(h *corev3.HealthCheck) { h.GetTcpHealthCheck().Send = text("xyz") }),
			`health_checks[0].tcp_health_check.send.text: "xyz": want pairs of hex digits`},
		{"receive", tcpCheck(func(h *corev3.HealthCheck) {
			h.GetTcpHealthCheck().Receive = []*corev3.HealthCheck_Payload{text("00"), {}}
		}), "health_checks[0].tcp_health_check.receive[1].payload: missing"},
		{"path", httpCheck(&corev3.HealthCheck_HttpHealthCheck{}), "health_checks[0].http_health_check.path: missing"},
		{"method", httpCheck(&corev3.HealthCheck_HttpHealthCheck{Path: "/", Method: corev3.RequestMethod_CONNECT}),
			"health_checks[0].http_health_check.method: CONNECT is not allowed"},
		{"timeout too long", tcpCheck(func(h *corev3.HealthCheck) { h.Timeout = durationpb.New(9000 * time.Hour) }),
			"health_checks[0].timeout: 9000h0m0s: want more than 0, at most 8760h0m0s"},
		{"short interval", tcpCheck(func(h *corev3.HealthCheck) { h.Interval, h.Timeout = durationpb.New(10), durationpb.New(10) }),
			"health_checks[0].interval: 10ns: want 1ms to 8760h0m0s"},
		{"unhealthy interval", tcpCheck(func(h *corev3.HealthCheck) { h.UnhealthyInterval = durationpb.New(0) }),
			"health_checks[0].unhealthy_interval: 0s: want more than 0s"},
		{"no traffic interval", tcpCheck(func(h *corev3.HealthCheck) { h.NoTrafficInterval = durationpb.New(-1) }),
			"health_checks[0].no_traffic_interval: -1ns: want more than 0s"},
		{"alt port", tcpCheck(func(h *corev3.HealthCheck) { h.AltPort = u32(65536) }), "health_checks[0].alt_port: 65536: want at most 65535"},
		{"empty block", tcpCheck(func(h *corev3.HealthCheck) {
			h.GetTcpHealthCheck().Receive = []*corev3.HealthCheck_Payload{{Payload: &corev3.HealthCheck_Payload_Binary{}}}
		}), "health_checks[0].tcp_health_check.receive: block 1 is empty: leave it out or give its bytes"},
		{"path without slash", httpCheck(&corev3.HealthCheck_HttpHealthCheck{Path: "live"}),
			`health_checks[0].http_health_check.path: "live": must begin with a slash`},
		{"host of all", httpCheck(&corev3.HealthCheck_HttpHealthCheck{Path: "/", Host: "*"}),
			`health_checks[0].http_health_check.host: "*": a wildcard names no host; give the name to send`},
		{"check header", httpCheck(&corev3.HealthCheck_HttpHealthCheck{Path: "/", RequestHeadersToAdd: []*corev3.HeaderValueOption{{}}}),
			"health_checks[0].http_health_check.request_headers_to_add[0].header.key: missing"},
		{"framing header", httpCheck(&corev3.HealthCheck_HttpHealthCheck{Path: "/", RequestHeadersToAdd: []*corev3.HeaderValueOption{
			{Header: &corev3.HeaderValue{Key: "connection", Value: "x"}},
		}}), `health_checks[0].http_health_check.headers: "Connection": the health check sets what frames its request`},
		{"authority of all", tcpCheck(grpcCheck(&corev3.HealthCheck_GrpcHealthCheck{Authority: "*"})),
			`health_checks[0].grpc_health_check.authority: "*": a wildcard names no host; give the name to send`},
		{"metadata", tcpCheck(grpcCheck(&corev3.HealthCheck_GrpcHealthCheck{InitialMetadata: []*corev3.HeaderValueOption{{}}})),
			"health_checks[0].grpc_health_check.initial_metadata[0].header.key: missing"},
		{"statuses", httpCheck(&corev3.HealthCheck_HttpHealthCheck{Path: "/", ExpectedStatuses: []*typev3.Int64Range{{Start: 200, End: 200}}}),
			"health_checks[0].http_health_check.expected_statuses[0]: [200, 200): want a range within [100, 600)"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			in := edsCluster("web", tt.with)
			name, v, err := decodeCluster(marshal(t, in))
			if err == nil || !strings.HasPrefix(err.Error(), tt.want) || tt.want[len(tt.want)-2:] != ": " && err.Error() != tt.want {
				t.Errorf("error\n%v, want\n%s", err, tt.want)
			}
			if name != in.GetName() {
				t.Errorf("name %q", name)
			}
			if c, _ := v.(*Cluster); in.Name != "" && (c == nil || c.Name != "web") {
				t.Errorf("no names beside the error: %v", v)
			}
		})
	}
}

// The names of an invalid cluster can be read all the same.
func TestDecodeClusterPartial(t *testing.T) {
	_, v, err := decodeCluster(marshal(t, edsCluster("web", func(c *clusterv3.Cluster) {
		c.EdsClusterConfig.ServiceName = "svc"
		c.ConnectTimeout = durationpb.New(0)
	})))
	if c, _ := v.(*Cluster); err == nil || c == nil || c.EDSName != "svc" {
		t.Errorf("got %+v, %v", v, err)
	}
}

// A cluster with a name of the new kind has endpoints under another one, and says
// which. Nobody asks for endpoints by the name of the cluster then.
func TestNewNameNeedsServiceName(t *testing.T) {
	const name = "xdstp://a/envoy.config.cluster.v3.Cluster/web"
	_, v, err := decodeCluster(marshal(t, edsCluster(name)))
	if err == nil || !strings.HasPrefix(err.Error(), "eds_cluster_config.service_name: missing") || v.(*Cluster).Name != name || v.(*Cluster).EDSName != "" {
		t.Errorf("%+v, %v", v, err)
	}
	if _, v, err := decodeCluster(marshal(t, edsCluster(name, service("xdstp://a/t/web")))); err != nil || v.(*Cluster).EDSName != "xdstp://a/t/web" {
		t.Errorf("%+v, %v", v, err)
	}
}

// FuzzDecodeCluster: any bytes give an error, an unsupported cluster, or one
// that can be run.

// The name that stands for all resources can't be one cluster's endpoints.
func TestWildcardAsServiceName(t *testing.T) {
	body, err := proto.Marshal(&clusterv3.Cluster{
		Name: "*", ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS},
		EdsClusterConfig: &clusterv3.Cluster_EdsClusterConfig{EdsConfig: &corev3.ConfigSource{
			ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}},
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	_, v, err := decodeCluster(body)
	if err != nil {
		t.Fatal(err)
	}
	if c := v.(*Cluster); c.EDSName != "" || !strings.Contains(c.Unsupported, `"*" asks for all resources`) {
		t.Errorf("%+v", c)
	}
}
