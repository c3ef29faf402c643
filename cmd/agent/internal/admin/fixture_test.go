package admin

import (
	"errors"
	"net/netip"
	"time"

	"gatehouse.internal/cmd/agent/internal/config"
	"gatehouse.internal/cmd/agent/internal/node"
	"gatehouse.internal/discovery"
	"gatehouse.internal/forwarder"
	"gatehouse.internal/healthsvc"
	"gatehouse.internal/healthsvc/outlier"
	"gatehouse.internal/internal/tlsconf"
	"gatehouse.internal/lbcore"
	"gatehouse.internal/xds"
)

func addr(s string) lbcore.Addr {
	a, err := lbcore.ParseAddr(s)
	if err != nil {
		panic(err)
	}
	return a
}

// fixture returns a Status in which everything that can be shown is.
func fixture() node.Status {
	at := time.Date(2026, 3, 1, 12, 0, 0, 500, time.FixedZone("CET", 3600))
	full := node.EndpointStatus{
		Endpoint: lbcore.Endpoint{
			Addr: addr("192.0.2.1:80"), Weight: 3, Hostname: "one.internal", Priority: 1,
			Locality: lbcore.Locality{Region: "eu", Zone: "eu-1", SubZone: "eu-1-a"}, LocalityWeight: 70,
		},
		SlowStart: 0.125, State: node.StateReady, Since: at, SuccessRate: 98.5,
		Ejection: &node.Ejection{Since: at.Add(-time.Hour), Until: at.Add(-59 * time.Minute), Rule: "consecutive_5xx", Times: 2},
		Ready:    true, Health: lbcore.HealthHealthy, HostOpen: 9, AdaptiveWeight: 1397.375,
		Totals: node.Totals{Active: 4, Opened: 1<<63 + 1, Failed: 2, Sent: 5, Received: 6},
		Checks: []healthsvc.Status{{
			State: lbcore.HealthHealthy, Since: at, LastProbe: at.Add(time.Second), LastFailure: at.Add(-time.Hour),
			LastError: "status 503: want 200", Restored: true, Passing: true, Streak: 7, Sharers: 2,
			Kind: "http", Probe: `GET /health host "web"`, NextProbe: at.Add(5 * time.Second),
		}, {State: lbcore.HealthUnknown, Kind: "tcp", Probe: "connect", Probing: true}},
	}
	// The others differ in what keeps them from being ready.
	is := func(address string, change func(*node.EndpointStatus)) node.EndpointStatus {
		e := node.EndpointStatus{Endpoint: lbcore.Endpoint{Addr: addr(address), Weight: 1}, Health: lbcore.HealthHealthy, SlowStart: 1, SuccessRate: -1, State: node.StateReady}
		change(&e)
		return e
	}
	status := func(s lbcore.Status) func(*node.EndpointStatus) {
		return func(e *node.EndpointStatus) {
			if e.Status, e.Degraded = s, s == lbcore.StatusDegraded; !s.Routable() {
				e.State = node.StateUnroutable
			}
		}
	}
	var flags [forwarder.NumFlags]uint64
	flags[forwarder.FlagNone], flags[forwarder.FlagUH], flags[forwarder.FlagOM] = 5, 1, 2
	return node.Status{
		Clusters: []node.ClusterStatus{
			{
				Name: "odd", Origin: "xds", Unsupported: "lb_policy CLUSTER_PROVIDED",
				Source: node.SourceStatus{State: "unknown"},
			},
			{
				Name: "sql", Origin: "consul", Generation: 1, Source: node.SourceStatus{
					Blocks: []node.BlockStatus{{Kind: "consul", State: "fresh"}, {Kind: "eds", Resource: "sql-service", State: "fresh"}},
					State:  "stale", Since: at, Confirmed: at.Add(-time.Minute), Err: "only 1 of 5 endpoints are listed", Updates: 1,
					Held:     &discovery.HeldError{Listed: 1, Known: 5, Until: at.Add(30 * time.Second), Reason: errors.New("the leader\nis away")},
					Restored: &node.Restored{Confirmed: at.Add(-time.Minute), Age: 61500 * time.Millisecond},
				},
			},
			{
				Name: "web", Origin: "file", Generation: 12, Duplicates: 1, Ending: 1,
				Drops: []node.DropStatus{{Category: "throttle", PerMillion: 50000, Dropped: 7}},
				Open:  node.Breaker{Limit: 4, Now: 4, Refused: 9}, Pending: node.Breaker{Limit: 100, Now: 1, Refused: 2}, MaxPerEndpoint: 3,
				Outliers: &outlier.Stats{
					Active: 1, Overflow: 3, Average: 90, Threshold: 52,
					Detected: [outlier.Rules]uint64{outlier.Consecutive5xx: 7, outlier.SuccessRate: 1}, Enforced: [outlier.Rules]uint64{outlier.Consecutive5xx: 4},
				},
				Waiting: "discovery: one is away\nso is two",
				Source: node.SourceStatus{State: "stale", Since: at, Err: "one is away\nso is two", Updates: 3, Blocks: []node.BlockStatus{
					{Kind: "dns", State: "stale", Since: at, Endpoints: 2, Err: "one is away\nso is two", Updates: 2},
					{Kind: "static", State: "fresh", Endpoints: 7, Updates: 1},
				}},
				Selectors: []node.SelectorStatus{
					{Name: "default", Policy: "round_robin", SlotStats: lbcore.SlotStats{Generation: 12, Rebuilds: 11, Coalesced: 1}},
					{Name: "sticky", Policy: "ring_hash", SlotStats: lbcore.SlotStats{
						Generation: 11, Rebuilds: 10, Failed: 2, Queue: 1500 * time.Microsecond, Build: 20 * time.Millisecond,
						Reused: 9, Bytes: 1 << 20, Err: errors.New("panic: a bug\nand its stack"),
					}, Loads: []lbcore.TierLoad{
						{Endpoints: 5, Healthy: 35, Degraded: 5}, {Distance: 1, Endpoints: 3, Healthy: 40, Panic: true}, {Priority: 2, Endpoints: 1, Healthy: 20},
					}},
					{Name: "fast", Policy: "adaptive", SlotStats: lbcore.SlotStats{Generation: 12}},
				},
				Endpoints: []node.EndpointStatus{
					full,
					is("192.0.2.2:80", func(e *node.EndpointStatus) {
						e.Health, e.State, e.Since, e.Why = lbcore.HealthUnhealthy, node.StateFailed, at, "its tcp check fails: connect: connection refused\nor so"
						e.Checks = []healthsvc.Status{{State: lbcore.HealthUnhealthy, Kind: "tcp", Probe: "connect", LastError: "connect: connection refused\nor so"}}
					}),
					is("192.0.2.8:80", func(e *node.EndpointStatus) {
						e.Ready, e.Absent, e.Degraded, e.Health = true, true, true, lbcore.HealthDegraded
						e.Why = "degraded, its http check says; discovery does not list it any more, but it passes its checks"
						e.Checks = []healthsvc.Status{{State: lbcore.HealthDegraded, Kind: "http", Probe: "GET /"}}
					}),
					is("192.0.2.3:80", func(e *node.EndpointStatus) {
						e.Health, e.State, e.Why = lbcore.HealthUnknown, node.StateUnprobed, "not probed yet"
					}),
					is("192.0.2.4:80", func(e *node.EndpointStatus) {
						e.Ejected, e.Withdrawn, e.State = true, true, node.StateWithdrawn
						e.Ejection = &node.Ejection{Since: at, Until: at.Add(time.Minute), Rule: "success_rate", Times: 1}
					}),
					is("192.0.2.5:80", func(e *node.EndpointStatus) { e.Disabled, e.State = true, node.StateDisabled }),
					is("192.0.2.6:80", status(lbcore.StatusDegraded)),
					is("192.0.2.7:80", status(lbcore.StatusDraining)),
					is("[2001:db8::1]:80", status(lbcore.StatusTimeout)),
					is("unix:///run/web.sock", status(lbcore.StatusHealthy)),
				},
				Totals:    node.Totals{Active: 4, Opened: 20, Failed: 3},
				Connect:   forwarder.LatencyCounts{Buckets: [...]uint64{2: 10, 3: 8, 5: 2, 16: 0}, Sum: 17 * time.Millisecond},
				FirstByte: forwarder.LatencyCounts{Buckets: [...]uint64{6: 19, 16: 1}, Sum: 12 * time.Second},
				TLS: &tlsconf.Status{
					Generation: 2, LoadedAt: at, NotAfter: at.Add(time.Hour),
					Certificates: []tlsconf.Certificate{{Subject: "CN=web", Names: []string{"spiffe://example.org/web", "web.internal"}, NotAfter: at.Add(2 * time.Hour)}, {Subject: "CN=api", NotAfter: at.Add(time.Hour)}},
					Err:          errors.New("certificate client.pem and key client-key.pem\ndo not belong together"), Failures: 3,
				},
			},
			{
				Name: "wide", Origin: "xds", Aggregate: []string{"web", "absent"},
				AggregateLoads: []node.AggregateLoad{{Cluster: "web", TierLoad: lbcore.TierLoad{Priority: 1, Endpoints: 9, Healthy: 98, Degraded: 2}}},
				Source:         node.SourceStatus{State: "fresh", Err: `cluster "absent" is not known`},
			},
		},
		Nameservers: []node.NameserverStatus{
			{Group: "default", Address: netip.MustParseAddrPort("192.0.2.53:53"), Weight: 8000.25, Share: 0.75, Latency: 1500 * time.Microsecond,
				Queries: 9, Won: 4, Failures: 3, Late: 2, Strays: 1, TCP: 5},
			{Group: "default", Address: netip.MustParseAddrPort("[2001:db8::53]:5353"), Weight: 1},
		},
		Listeners: []node.ListenerStatus{
			{
				Name: "local", Origin: "file", Address: addr("unix:///run/gatehouse/web.sock"), Cluster: "web", Draining: true,
			},
			{
				Name: "public", Origin: "xds", Address: addr("10.0.0.7:20000"), NoBind: true,
				Chains: []node.ChainStatus{
					{Name: "web", Clusters: []config.WeightedCluster{{Name: "web", Weight: 1}}, TLS: &tlsconf.Status{Generation: 1, LoadedAt: at, NotAfter: at.Add(time.Hour)}},
					{Name: "http", Unsupported: `filter_chains[1].filters[0] "http"`},
				},
			},
			{
				Name: "sql@127.0.0.1:9901", Origin: "consul", Address: addr("127.0.0.1:9901"), Cluster: "sql",
				Unsupported: "listen on 127.0.0.1:9901:\naddress already in use",
			},
			{Name: `"sql"@"0.0.0.0:80"`, Origin: "consul", Unsupported: "not a loopback address"},
			{
				Name: "web", Origin: "file", Address: addr("127.0.0.1:8080"), Cluster: "web", Selector: "sticky",
				Stats: forwarder.Stats{
					Accepted: 12, Active: 4, Flags: flags, AcceptErrors: 1, Retries: 3, BytesIn: 100, BytesOut: 200,
				},
				TLS: &tlsconf.Status{Generation: 1, LoadedAt: at, NotAfter: at.Add(time.Hour)},
			},
			{
				Name: "weighted", Origin: "file", Address: addr("127.0.0.1:8081"),
				Weighted: []config.WeightedCluster{{Name: "web", Weight: 90}, {Name: "sql", Weight: 10}},
			},
		},
	}
}

// control returns what is known of the control plane that gave the cluster odd, and
// endpoints of others.
func control() xds.Status {
	at := time.Date(2026, 3, 1, 12, 0, 0, 500, time.FixedZone("CET", 3600))
	return xds.Status{Types: []xds.TypeStatus{
		{URL: xds.ClusterType, Resources: []xds.ResourceStatus{
			{Name: "odd", State: "nacked", Version: "c1", Updated: at, Error: "lb_policy: odd\nindeed", Nack: xds.Nack{Version: "c2", Reason: "lb_policy: odd\nindeed", At: at.Add(time.Hour)}},
			{Name: "web", State: "acked", Version: "c1", Updated: at}, // a file has it
		}},
		{URL: xds.AssignmentType, Resources: []xds.ResourceStatus{
			{Name: "sql-service", State: "acked", Version: "e7", Updated: at, Nack: xds.Nack{Version: "e6", Reason: "mended", At: at.Add(-time.Hour)}},
		}},
	}}
}

// keys returns a key in which everything that can be shown is, and one of which
// nothing is known.
func keys() []healthsvc.KeyStatus {
	at := time.Date(2026, 3, 1, 12, 0, 0, 500, time.FixedZone("CET", 3600))
	c := healthsvc.Cadence{Interval: 1500 * time.Millisecond}
	return []healthsvc.KeyStatus{
		{
			Addr: addr("192.0.2.1:80"),
			Status: healthsvc.Status{
				Kind: "tcp", Probe: "connect", LastProbe: at, NextProbe: at.Add(time.Second), LastFailure: at,
				LastError: "connect: connection refused", LastLocal: "connect: too many open files", Streak: 3, Interval: time.Second, Sharers: 3,
			},
			Views: []healthsvc.ViewStatus{
				{View: "api", State: lbcore.HealthDegraded, Since: at, Cadence: c},
				{View: "sql", State: lbcore.HealthHealthy, Since: at, Cadence: c, Thresholds: healthsvc.Thresholds{Healthy: 2, Unhealthy: 9}},
				{View: "web", State: lbcore.HealthUnhealthy, Since: at, Cadence: c, Thresholds: healthsvc.Thresholds{Healthy: 2, Unhealthy: 3}, LastError: "connect: connection refused"},
			},
		},
		{
			Addr: addr("unix:///run/web.sock"), Owner: "web",
			Status: healthsvc.Status{Kind: "grpc", Probe: `service "" authority "web"`, Probing: true},
			Views:  []healthsvc.ViewStatus{{View: "web"}},
		},
	}
}
