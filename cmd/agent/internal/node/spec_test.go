package node

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gatehouse.internal/cmd/agent/internal/config"
	"gatehouse.internal/healthsvc"
	"gatehouse.internal/healthsvc/outlier"
	"gatehouse.internal/lbcore"
	"gatehouse.internal/xds"
)

func TestSpecWith(t *testing.T) {
	file := Spec{
		Clusters:    slices.Grow([]config.Cluster{clusterOf("a", static()), clusterOf("b", static())}, 4),
		Listeners:   []config.Listener{listenerOf("l", "a")},
		Unsupported: slices.Grow([]Unsupported{{Name: "c", Reason: "never"}}, 4),
	}
	remote := func(name string) config.Cluster {
		c := clusterOf(name, eds(""))
		c.Origin = config.OriginXDS
		return c
	}
	got, shadowed := file.With([]config.Cluster{remote("d"), remote("b"), remote("c")}, []Unsupported{{Name: "a", Reason: "no"}, {Name: "e", Reason: "no"}})
	want := Spec{
		Clusters:    []config.Cluster{file.Clusters[0], file.Clusters[1], remote("d")},
		Listeners:   file.Listeners,
		Unsupported: []Unsupported{{Name: "c", Reason: "never"}, {Name: "e", Reason: "no"}},
	}
	equal := cmp.Comparer(func(a, b lbcore.Addr) bool { return a == b })
	if diff := cmp.Diff(want, got, equal); diff != "" {
		t.Errorf("With (-want +got):\n%s", diff)
	}
	if want := []string{"b", "c", "a"}; !slices.Equal(shadowed, want) {
		t.Errorf("shadowed %q, want %q", shadowed, want)
	}
	if err := got.validate(); err != nil {
		t.Error(err)
	}
	// The file's state is used again for the next answer.
	file.With([]config.Cluster{remote("x")}, []Unsupported{{Name: "y", Reason: ""}})
	if got.Clusters[2].Name != "d" || got.Unsupported[1].Name != "e" {
		t.Errorf("a second With has changed the first: %+v", got)
	}
}

func TestFromXDS(t *testing.T) {
	one, two := endpoint("192.0.2.1:80"), endpoint("192.0.2.2:80")
	two.Weight, two.Priority, two.Status = 7, 1, lbcore.StatusDegraded
	again := one
	again.Weight = 9
	set := lbcore.MustSet(two, one)
	selector := func(s config.Selector) []config.Selector {
		s.Name = "default"
		return []config.Selector{s}
	}
	for _, tt := range []struct {
		name string
		in   xds.Cluster
		want config.Cluster
	}{
		{"eds, round_robin", xds.Cluster{
			Name: "web", EDSName: "web/eds", ConnectTimeout: 3 * time.Second, Policy: xds.Policy{Name: xds.RoundRobin},
			Ignored: []string{"preconnect_policy"}, Outlier: outlier.Default(),
		}, config.Cluster{
			Name: "web", Discovery: []config.Discovery{{Kind: "eds", ServiceName: "web/eds"}},
			Selectors: selector(config.Selector{Policy: "round_robin"}), ConnectTimeout: 3 * time.Second,
			OutlierDetection: config.OutlierDetection(outlier.Default()),
		}},
		{"static, ring_hash", xds.Cluster{
			Name: "static", Static: &set, Duplicates: []lbcore.Dropped{{Index: 2, Endpoint: again}}, ConnectTimeout: time.Second,
			CircuitBreakers: xds.CircuitBreakers{MaxConnections: 1024, MaxPendingRequests: 7, MaxConnectionsPerEndpoint: -1},
			Policy:          xds.Policy{Name: xds.RingHash, MinimumRingSize: 5, MaximumRingSize: 10, HashFunction: "murmur_hash_2"},
		}, config.Cluster{
			Name: "static", Discovery: []config.Discovery{static(one, two, again)},
			Selectors:       selector(config.Selector{Policy: "ring_hash", MinimumRingSize: 5, MaximumRingSize: 10, HashFunction: "murmur_hash_2"}),
			ConnectTimeout:  time.Second,
			CircuitBreakers: config.CircuitBreakers{MaxConnections: 1024, MaxPendingRequests: 7, MaxConnectionsPerEndpoint: -1},
		}},
		{"static and empty, least_weight", xds.Cluster{
			Name: "empty", Static: new(lbcore.Set), ConnectTimeout: time.Second,
			Policy: xds.Policy{Name: xds.LeastWeight, ChoiceCount: 4, ActiveRequestBias: 0.5},
		}, config.Cluster{
			Name: "empty", Discovery: []config.Discovery{{Kind: "static", Endpoints: []lbcore.Endpoint{}}},
			Selectors:      selector(config.Selector{Policy: "least_weight", ChoiceCount: 4, ActiveRequestBias: 0.5}),
			ConnectTimeout: time.Second,
		}},
		{"random", xds.Cluster{
			Name: "any", EDSName: "any", ConnectTimeout: time.Second, Policy: xds.Policy{Name: xds.Random},
		}, config.Cluster{
			Name: "any", Discovery: []config.Discovery{{Kind: "eds", ServiceName: "any"}},
			Selectors: selector(config.Selector{Policy: "random"}), ConnectTimeout: time.Second,
		}},
		{"maglev", xds.Cluster{
			Name: "table", EDSName: "table", ConnectTimeout: time.Second, Policy: xds.Policy{Name: xds.Maglev, TableSize: 7},
		}, config.Cluster{
			Name: "table", Discovery: []config.Discovery{{Kind: "eds", ServiceName: "table"}},
			Selectors: selector(config.Selector{Policy: "maglev", TableSize: 7}), ConnectTimeout: time.Second,
		}},
		{"spread", xds.Cluster{
			Name: "spread", EDSName: "spread", ConnectTimeout: time.Second, PanicThreshold: 50, LocalityWeighted: true, IgnoreNew: true,
			Policy:      xds.Policy{Name: xds.Maglev, TableSize: 7, HashBalanceFactor: 125, HashHostname: true},
			LoadReports: true, SlowStart: lbcore.SlowStart{Window: time.Minute, Aggression: 2, MinWeight: 0.25},
		}, config.Cluster{
			Name: "spread", Discovery: []config.Discovery{{Kind: "eds", ServiceName: "spread"}},
			PanicThreshold: 50, LocalityWeighted: true, IgnoreNew: true, HashHostname: true, LoadReports: true,
			SlowStart: config.SlowStart{Window: time.Minute, Aggression: 2, MinWeightPercent: 25},
			Selectors: selector(config.Selector{Policy: "maglev", TableSize: 7, HashBalanceFactor: 125}), ConnectTimeout: time.Second,
		}},
		{"sockets", xds.Cluster{
			Name: "sockets", EDSName: "sockets", ConnectTimeout: time.Second, Policy: xds.Policy{Name: xds.Random},
			SourceAddress: []netip.Addr{netip.MustParseAddr("10.0.0.7")}, Keepalive: &xds.Keepalive{Time: time.Minute, Interval: time.Second, Probes: 3},
			FirstFamily: 4, FirstFamilyCount: 2,
		}, config.Cluster{
			Name: "sockets", Discovery: []config.Discovery{{Kind: "eds", ServiceName: "sockets"}},
			SourceAddress: []netip.Addr{netip.MustParseAddr("10.0.0.7")},
			TCPKeepalive:  config.TCPKeepalive{KeepaliveTime: time.Minute, KeepaliveInterval: time.Second, KeepaliveProbes: 3},
			HappyEyeballs: config.HappyEyeballs{FirstAddressFamilyVersion: config.FamilyV4, FirstAddressFamilyCount: 2},
			Selectors:     selector(config.Selector{Policy: "random"}), ConnectTimeout: time.Second,
		}},
		{"static with a policy", xds.Cluster{
			Name: "policy", Static: new(lbcore.Set{}.WithPolicy(lbcore.SetPolicy{Overprovisioning: 100, WeightedHealth: true})),
			ConnectTimeout: time.Second, Policy: xds.Policy{Name: xds.Random},
		}, config.Cluster{
			Name: "policy", Discovery: []config.Discovery{{Kind: "static", Endpoints: []lbcore.Endpoint{}}},
			OverprovisioningFactor: 100, WeightedPriorityHealth: true,
			Selectors: selector(config.Selector{Policy: "random"}), ConnectTimeout: time.Second,
		}},
		{"checks", xds.Cluster{
			Name: "checked", EDSName: "checked", ConnectTimeout: time.Second, Policy: xds.Policy{Name: xds.RoundRobin},
			HealthChecks: []xds.HealthCheck{{
				Cadence: healthsvc.Cadence{
					Interval: 5 * time.Second, Timeout: 4 * time.Second, InitialJitter: 3 * time.Second,
					IntervalJitter: 2 * time.Second, IntervalJitterPercent: 1,
					UnhealthyInterval: 11, UnhealthyEdgeInterval: 12, HealthyEdgeInterval: 13, NoTrafficInterval: 14, NoTrafficHealthyInterval: 15,
				},
				AlwaysLogFailures: true, Port: 8081,
				Thresholds: healthsvc.Thresholds{Healthy: 6, Unhealthy: 7},
				TCP:        &healthsvc.TCP{Transport: healthsvc.Transport{ProxyVersion: 1}, Send: []byte("\x00ping"), Receive: [][]byte{[]byte("po"), []byte("ng\xff")}},
			}, {
				Cadence:    healthsvc.Cadence{Interval: time.Second, Timeout: time.Second},
				Thresholds: healthsvc.Thresholds{Healthy: 1, Unhealthy: 2},
				HTTP: &healthsvc.HTTP{
					Method: "HEAD", Path: "/health", Host: "check.internal", Headers: map[string][]string{"A": {"1", "2"}},
					Expected:  []healthsvc.StatusRange{{Start: 200, End: 300}, {Start: 404, End: 405}},
					Retriable: []healthsvc.StatusRange{{Start: 500, End: 501}},
				},
			}, {
				Cadence: healthsvc.Cadence{Interval: time.Second, Timeout: time.Second},
				GRPC:    &healthsvc.GRPC{Service: "a.B", Authority: "api", Metadata: map[string][]string{"a": {"1"}}},
			}},
		}, config.Cluster{
			Name: "checked", Discovery: []config.Discovery{{Kind: "eds", ServiceName: "checked"}},
			HealthChecks: []config.HealthCheck{{
				Kind: "tcp", Interval: 5 * time.Second, Timeout: 4 * time.Second, InitialJitter: 3 * time.Second,
				IntervalJitter: 2 * time.Second, IntervalJitterPercent: 1,
				HealthyThreshold: 6, UnhealthyThreshold: 7, Initial: "unknown", Share: true,
				UnhealthyInterval: 11, UnhealthyEdgeInterval: 12, HealthyEdgeInterval: 13, NoTrafficInterval: 14, NoTrafficHealthyInterval: 15,
				AlwaysLogFailures: true, AltPort: 8081, ProxyProtocol: config.CheckProxy{Version: 1},
				Send: "\x00ping", Receive: []config.Payload{"po", "ng\xff"},
			}, {
				Kind: "http", Interval: time.Second, Timeout: time.Second,
				HealthyThreshold: 1, UnhealthyThreshold: 2, Initial: "unknown", Share: true,
				Method: "HEAD", Path: "/health", Host: "check.internal", Headers: map[string]string{"A": "1, 2"},
				ExpectedStatuses:  []config.StatusRange{{Start: 200, End: 300}, {Start: 404, End: 405}},
				RetriableStatuses: []config.StatusRange{{Start: 500, End: 501}},
			}, {
				Kind: "grpc", Interval: time.Second, Timeout: time.Second, Initial: "unknown", Share: true,
				ServiceName: "a.B", Authority: "api", Headers: map[string]string{"a": "1"},
			}},
			OnAbsent:  "stabilize",
			Selectors: selector(config.Selector{Policy: "round_robin"}), ConnectTimeout: time.Second,
		}},
		{"checks that don't hold", xds.Cluster{
			Name: "held", EDSName: "held", ConnectTimeout: time.Second, Policy: xds.Policy{Name: xds.RoundRobin}, IgnoreHealthOnRemoval: true,
			HealthChecks: []xds.HealthCheck{{Cadence: healthsvc.Cadence{Interval: time.Second, Timeout: time.Second}, TCP: new(healthsvc.TCP)}},
		}, config.Cluster{
			Name: "held", Discovery: []config.Discovery{{Kind: "eds", ServiceName: "held"}},
			HealthChecks: []config.HealthCheck{{Kind: "tcp", Interval: time.Second, Timeout: time.Second, Initial: "unknown", Share: true}},
			Selectors:    selector(config.Selector{Policy: "round_robin"}), ConnectTimeout: time.Second,
		}},
		{"names", xds.Cluster{
			Name: "closed", EDSName: "closed", Policy: xds.Policy{Name: xds.RoundRobin}, CloseOnHealthFailure: true,
		}, config.Cluster{
			Name: "closed", Discovery: []config.Discovery{{Kind: "eds", ServiceName: "closed"}}, OnUnhealthy: "close",
			Selectors: selector(config.Selector{Policy: "round_robin"}),
		}},
		{"names", xds.Cluster{
			Name: "names", Policy: xds.Policy{Name: xds.RoundRobin}, DNS: &xds.DNS{
				Hosts:   []xds.Host{{Name: "web.test", Port: 80, Endpoint: lbcore.Endpoint{Weight: 3, Priority: 1}, CheckPort: 81}},
				Logical: true, Type: "a+aaaa", Prefer: "a", Refresh: 7 * time.Second, MinTTL: time.Second, Jitter: 2 * time.Second,
				MinBackoff: 3 * time.Second, MaxBackoff: 4 * time.Second, TCP: true,
				Nameservers: []netip.AddrPort{netip.MustParseAddrPort("192.0.2.53:53")},
				Policy:      lbcore.SetPolicy{Overprovisioning: 120, WeightedHealth: true, Drops: lbcore.DropsOf(lbcore.Drop{Category: "c", PerMillion: 5})},
			},
		}, config.Cluster{
			Name: "names", OverprovisioningFactor: 120, WeightedPriorityHealth: true, Drops: lbcore.DropsOf(lbcore.Drop{Category: "c", PerMillion: 5}),
			Discovery: []config.Discovery{{
				Kind: "dns", RecordType: "a+aaaa", PreferFamily: "a", Logical: true, TCP: true, Jitter: 2 * time.Second,
				Hosts:       []config.Host{{Name: "web.test", Port: 80, Endpoint: lbcore.Endpoint{Weight: 3, Priority: 1}, CheckPort: 81}},
				Nameservers: []string{"192.0.2.53:53"}, Refresh: 7 * time.Second, MinTTL: 7 * time.Second, MaxTTL: 7 * time.Second,
				MinBackoff: 3 * time.Second, MaxBackoff: 4 * time.Second, HoldNXDomain: 30 * time.Second, HoldNoData: 30 * time.Second,
			}},
			Selectors: selector(config.Selector{Policy: "round_robin"}),
		}},
		{"names", xds.Cluster{
			Name: "ttl", Policy: xds.Policy{Name: xds.RoundRobin}, DNS: &xds.DNS{
				Hosts: []xds.Host{{Name: "web.test", Port: 80}}, Type: "a", Refresh: 7 * time.Second, RespectTTL: true, MinTTL: 2 * time.Second,
				MinBackoff: 7 * time.Second, MaxBackoff: 7 * time.Second,
			},
		}, config.Cluster{
			Name: "ttl", Discovery: []config.Discovery{{
				Kind: "dns", RecordType: "a", Hosts: []config.Host{{Name: "web.test", Port: 80}}, Refresh: 7 * time.Second, MinTTL: 2 * time.Second,
				MinBackoff: 7 * time.Second, MaxBackoff: 7 * time.Second, HoldNXDomain: 30 * time.Second, HoldNoData: 30 * time.Second,
			}},
			Selectors: selector(config.Selector{Policy: "round_robin"}),
		}},
		{"D4: answers that go round", xds.Cluster{
			Name: "round", DNS: &xds.DNS{Hosts: []xds.Host{{Name: "web.test", Port: 80}}, Type: "a"}, Policy: xds.Policy{Name: xds.RoundRobin},
			HealthChecks: []xds.HealthCheck{{Cadence: healthsvc.Cadence{Interval: time.Second, Timeout: time.Second}, TCP: &healthsvc.TCP{}}},
		}, config.Cluster{
			Name: "round", Discovery: []config.Discovery{{
				Kind: "dns", RecordType: "a", Hosts: []config.Host{{Name: "web.test", Port: 80}}, HoldNXDomain: 30 * time.Second, HoldNoData: 30 * time.Second,
			}},
			HealthChecks: []config.HealthCheck{{Kind: "tcp", Interval: time.Second, Timeout: time.Second, Initial: "unknown", Share: true}},
			Selectors:    selector(config.Selector{Policy: "round_robin"}),
		}},
		{"nameless", xds.Cluster{Name: "nameless", Policy: xds.Policy{Name: xds.RoundRobin}, DNS: &xds.DNS{Type: "a"}}, config.Cluster{
			Name: "nameless", Discovery: []config.Discovery{{Kind: "static"}}, Selectors: selector(config.Selector{Policy: "round_robin"}),
		}},
	} {
		tt.want.Origin, tt.want.MaxConnectAttempts, tt.want.Required = config.OriginXDS, 3, true
		run, unsupported := FromXDS([]*xds.Cluster{&tt.in})
		if len(run) != 1 || len(unsupported) != 0 {
			t.Fatalf("%s: %d clusters, %v", tt.name, len(run), unsupported)
		}
		if diff := cmp.Diff(tt.want, run[0], cmp.Comparer(func(a, b lbcore.Addr) bool { return a == b }), cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
			cmp.Comparer(func(a, b lbcore.Endpoint) bool { return a == b })); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}

	run, unsupported := FromXDS([]*xds.Cluster{
		{Name: "z", EDSName: "z", Policy: xds.Policy{Name: xds.RoundRobin}},
		{Name: "odd", EDSName: "odd", Unsupported: "filters, lb_policy CLUSTER_PROVIDED"},
		{Name: "a", EDSName: "a", Policy: xds.Policy{Name: xds.RoundRobin}},
	})
	if len(run) != 2 || run[0].Name != "z" || run[1].Name != "a" {
		t.Errorf("clusters are %+v", run)
	}
	if want := []Unsupported{{Name: "odd", Reason: "filters, lb_policy CLUSTER_PROVIDED"}}; !slices.Equal(unsupported, want) {
		t.Errorf("unsupported are %v, want %v", unsupported, want)
	}
}

// Every policy and check that the control plane can ask for runs, the same
// resource a second time changes nothing, and duplicates count.
func TestFromXDSRuns(t *testing.T) {
	r := start(t)
	one := listen(t, "one")
	set := lbcore.MustSet(one.Endpoint)
	in := func() (clusters []*xds.Cluster) {
		for _, p := range []xds.Policy{
			{Name: xds.RoundRobin}, {Name: xds.LeastWeight, ChoiceCount: 2, ActiveRequestBias: 1},
			{Name: xds.RingHash, MinimumRingSize: 1024, MaximumRingSize: 4096, HashFunction: "xx_hash"},
			{Name: xds.RingHash, MaximumRingSize: 4096, HashFunction: "murmur_hash_2"},
			{Name: xds.Random}, {Name: xds.Maglev, TableSize: 65537},
		} {
			clusters = append(clusters, &xds.Cluster{
				Name: string(p.Name) + p.HashFunction, Static: &set, Policy: p, ConnectTimeout: time.Second,
				Duplicates: []lbcore.Dropped{{Index: 1, Endpoint: one.Endpoint}},
				HealthChecks: []xds.HealthCheck{{
					Cadence: healthsvc.Cadence{Interval: time.Hour, Timeout: time.Minute}, TCP: new(healthsvc.TCP),
				}},
			})
		}
		return clusters
	}
	spec, _ := Spec{Listeners: []config.Listener{listenerOf("l", "round_robin")}}.With(FromXDS(in()))
	r.apply(spec)
	within(t, "all are warm", func() bool { return len(r.Waiting()) == 0 })
	before := r.table.Load()
	for _, c := range r.Status().Clusters {
		l := listenerOf("l", c.Name)
		spec, _ = Spec{Listeners: []config.Listener{l}}.With(FromXDS(in()))
		r.apply(spec)
		r.mustDial("l", "one").Close()
		if c.Duplicates != 1 || c.Origin != "xds" || r.serving(c.Name) != before.clusters[c.Name] {
			t.Errorf("cluster %s: %+v", c.Name, c)
		}
	}
	if n := r.health.Stats().Targets; n != 1 || len(before.clusters) != 6 {
		t.Errorf("%d clusters have %d targets, want 6 and 1", len(before.clusters), n)
	}
}
