package xds

import (
	"math"
	"strings"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/common/v3"
	leastrequestv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/least_request/v3"
	maglevv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/maglev/v3"
	pickfirstv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/pick_first/v3"
	randomv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/random/v3"
	ringhashv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/ring_hash/v3"
	roundrobinv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/round_robin/v3"
	wrrlocalityv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/wrr_locality/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"gatehouse.internal/lbcore"
)

func percentOf(v float64) *typev3.Percent { return &typev3.Percent{Value: v} }

type (
	commonLb = clusterv3.Cluster_CommonLbConfig
	hashing  = clusterv3.Cluster_CommonLbConfig_ConsistentHashingLbConfig
)

// common returns a cluster's common_lb_config, with a policy.
func common(p clusterv3.Cluster_LbPolicy, config *commonLb) mutate {
	return func(c *clusterv3.Cluster) { c.LbPolicy, c.CommonLbConfig = p, config }
}

func weightedCommon() *commonLb {
	return &commonLb{LocalityConfigSpecifier: &clusterv3.Cluster_CommonLbConfig_LocalityWeightedLbConfig_{
		LocalityWeightedLbConfig: &clusterv3.Cluster_CommonLbConfig_LocalityWeightedLbConfig{},
	}}
}

func weightedTyped() *commonv3.LocalityLbConfig {
	return &commonv3.LocalityLbConfig{LocalityConfigSpecifier: &commonv3.LocalityLbConfig_LocalityWeightedLbConfig_{
		LocalityWeightedLbConfig: &commonv3.LocalityLbConfig_LocalityWeightedLbConfig{},
	}}
}

func zoneAwareTyped() *commonv3.LocalityLbConfig {
	return &commonv3.LocalityLbConfig{LocalityConfigSpecifier: &commonv3.LocalityLbConfig_ZoneAwareLbConfig_{
		ZoneAwareLbConfig: &commonv3.LocalityLbConfig_ZoneAwareLbConfig{
			ForceLocalZone: &commonv3.LocalityLbConfig_ZoneAwareLbConfig_ForceLocalZone{},
		},
	}}
}

func oldSlowStart(s *clusterv3.Cluster_SlowStartConfig) mutate {
	return func(c *clusterv3.Cluster) {
		c.LbConfig = &clusterv3.Cluster_RoundRobinLbConfig_{RoundRobinLbConfig: &clusterv3.Cluster_RoundRobinLbConfig{SlowStartConfig: s}}
	}
}

func typedSlowStart(t testing.TB, s *commonv3.SlowStartConfig) mutate {
	return typed(t, &roundrobinv3.RoundRobin{SlowStartConfig: s})
}

// wrr returns a wrr_locality policy over others.
func wrr(t testing.TB, of ...proto.Message) *wrrlocalityv3.WrrLocality {
	var c clusterv3.Cluster
	typed(t, of...)(&c)
	return &wrrlocalityv3.WrrLocality{EndpointPickingPolicy: c.LoadBalancingPolicy}
}

// olderRing has the fields that consistent_hashing_lb_config replaces.
func olderRing(hostname bool, factor uint32) *ringhashv3.RingHash {
	//lint:ignore SA1019 control planes still set them
	return &ringhashv3.RingHash{UseHostnameForHashing: hostname, HashBalanceFactor: u32(factor)}
}

func TestDecodeSpread(t *testing.T) {
	const typedPath = "load_balancing_policy.policies[0].typed_extension_config."
	least := Policy{Name: LeastWeight, ChoiceCount: 2, ActiveRequestBias: 1}
	table := Policy{Name: Maglev, TableSize: 65537}
	with := func(p Policy, hostname bool, factor uint32) Policy {
		p.HashHostname, p.HashBalanceFactor = hostname, factor
		return p
	}
	minute := lbcore.SlowStart{Window: time.Minute, Aggression: 1, MinWeight: 0.1}
	both := olderRing(true, 300)
	both.LocalityWeightedLbConfig = weightedTyped().GetLocalityWeightedLbConfig()
	both.ConsistentHashingLbConfig = &commonv3.ConsistentHashingLbConfig{HashBalanceFactor: u32(125)}
	for _, tt := range []struct {
		name string
		with mutate
		want func(*Cluster)
	}{
		{"nothing said", common(0, &commonLb{}), func(*Cluster) {}},
		{"panic off", common(0, &commonLb{HealthyPanicThreshold: percentOf(0)}), func(c *Cluster) { c.PanicThreshold = 0 }},
		{"panic threshold is cut", common(0, &commonLb{HealthyPanicThreshold: percentOf(33.9)}), func(c *Cluster) { c.PanicThreshold = 33 }},
		{"panic at 100", common(0, &commonLb{HealthyPanicThreshold: percentOf(100)}), func(c *Cluster) { c.PanicThreshold = 100 }},
		{"ignore new", common(0, &commonLb{IgnoreNewHostsUntilFirstHc: true}), func(c *Cluster) { c.IgnoreNew = true }},
		{"locality weighted", common(0, weightedCommon()), func(c *Cluster) { c.LocalityWeighted = true }},
		{"locality weighted ring", common(clusterv3.Cluster_RING_HASH, weightedCommon()), func(c *Cluster) { c.Policy, c.LocalityWeighted = ringDefaults, true }},
		{"zone aware", common(0, &commonLb{LocalityConfigSpecifier: &clusterv3.Cluster_CommonLbConfig_ZoneAwareLbConfig_{
			ZoneAwareLbConfig: &clusterv3.Cluster_CommonLbConfig_ZoneAwareLbConfig{},
		}}), func(c *Cluster) { c.Ignored = []string{"common_lb_config.zone_aware_lb_config"} }},
		{"the rest of common_lb_config", common(0, &commonLb{
			UpdateMergeWindow: durationpb.New(0), CloseConnectionsOnHostSetChange: true, OverrideHostStatus: &corev3.HealthStatusSet{},
		}), func(c *Cluster) { c.Ignored = []string{"common_lb_config.close_connections_on_host_set_change"} }},

		{"hashing of a ring", common(clusterv3.Cluster_RING_HASH, &commonLb{ConsistentHashingLbConfig: &hashing{UseHostnameForHashing: true, HashBalanceFactor: u32(100)}}),
			func(c *Cluster) { c.Policy = with(ringDefaults, true, 100) }},
		{"hashing of a table", common(clusterv3.Cluster_MAGLEV, &commonLb{ConsistentHashingLbConfig: &hashing{HashBalanceFactor: u32(1<<32 - 1)}}),
			func(c *Cluster) { c.Policy = with(table, false, 1<<32-1) }},
		{"hashing without a bound", common(clusterv3.Cluster_MAGLEV, &commonLb{ConsistentHashingLbConfig: &hashing{HashBalanceFactor: u32(0)}}),
			func(c *Cluster) { c.Policy = table }},
		{"hashing for a policy without", common(clusterv3.Cluster_RANDOM, &commonLb{ConsistentHashingLbConfig: &hashing{UseHostnameForHashing: true, HashBalanceFactor: u32(150)}}),
			func(c *Cluster) {
				c.Policy, c.Ignored = Policy{Name: Random}, []string{"common_lb_config.consistent_hashing_lb_config"}
			}},

		{"slow start", oldSlowStart(&clusterv3.Cluster_SlowStartConfig{SlowStartWindow: durationpb.New(time.Minute)}), func(c *Cluster) { c.SlowStart = minute }},
		{"slow start, all fields", oldSlowStart(&clusterv3.Cluster_SlowStartConfig{
			SlowStartWindow: durationpb.New(time.Second), Aggression: &corev3.RuntimeDouble{DefaultValue: 0.5}, MinWeightPercent: percentOf(0),
		}), func(c *Cluster) { c.SlowStart = lbcore.SlowStart{Window: time.Second, Aggression: 0.5} }},
		{"slow start without a window", oldSlowStart(&clusterv3.Cluster_SlowStartConfig{MinWeightPercent: percentOf(20)}), func(*Cluster) {}},
		{"slow start of 0s", oldSlowStart(&clusterv3.Cluster_SlowStartConfig{SlowStartWindow: durationpb.New(0)}), func(*Cluster) {}},
		{"slow start, aggression of 0", oldSlowStart(&clusterv3.Cluster_SlowStartConfig{
			SlowStartWindow: durationpb.New(time.Minute), Aggression: &corev3.RuntimeDouble{},
		}), func(c *Cluster) {
			c.SlowStart = minute
			c.Ignored = []string{"round_robin_lb_config.slow_start_config.aggression 0: 1 is used"}
		}},
		{"slow start of least request", leastConfig(&clusterv3.Cluster_LeastRequestLbConfig{
			SlowStartConfig: &clusterv3.Cluster_SlowStartConfig{
				SlowStartWindow: durationpb.New(time.Minute), Aggression: &corev3.RuntimeDouble{DefaultValue: math.NaN()}, MinWeightPercent: percentOf(100),
			},
		}), func(c *Cluster) {
			c.Policy, c.SlowStart = least, lbcore.SlowStart{Window: time.Minute, Aggression: 1, MinWeight: 1}
			c.Ignored = []string{"least_request_lb_config.slow_start_config.aggression NaN: 1 is used"}
		}},
		{"another policy's slow start", func(c *clusterv3.Cluster) {
			oldSlowStart(&clusterv3.Cluster_SlowStartConfig{SlowStartWindow: durationpb.New(time.Minute)})(c)
			c.LbPolicy = clusterv3.Cluster_RANDOM
		}, func(c *Cluster) { c.Policy, c.Ignored = Policy{Name: Random}, []string{"round_robin_lb_config"} }},
		{"slow start with a hash policy", func(c *clusterv3.Cluster) {
			oldSlowStart(&clusterv3.Cluster_SlowStartConfig{SlowStartWindow: durationpb.New(time.Minute)})(c)
			c.LbPolicy = clusterv3.Cluster_RING_HASH
		}, func(c *Cluster) { c.Policy, c.Ignored = ringDefaults, []string{"round_robin_lb_config"} }},
		{"slow start with a typed policy", func(c *clusterv3.Cluster) {
			typed(t, &roundrobinv3.RoundRobin{})(c)
			oldSlowStart(&clusterv3.Cluster_SlowStartConfig{SlowStartWindow: durationpb.New(time.Minute)})(c)
		}, func(c *Cluster) { c.Ignored = []string{"round_robin_lb_config"} }},

		{"typed round robin", typed(t, &roundrobinv3.RoundRobin{
			SlowStartConfig: &commonv3.SlowStartConfig{SlowStartWindow: durationpb.New(time.Minute)}, LocalityLbConfig: weightedTyped(),
		}), func(c *Cluster) { c.SlowStart, c.LocalityWeighted = minute, true }},
		{"typed least request", typed(t, &leastrequestv3.LeastRequest{
			SlowStartConfig:  &commonv3.SlowStartConfig{SlowStartWindow: durationpb.New(time.Minute), Aggression: &corev3.RuntimeDouble{DefaultValue: -2}},
			LocalityLbConfig: weightedTyped(),
		}), func(c *Cluster) {
			c.Policy, c.SlowStart, c.LocalityWeighted = least, minute, true
			c.Ignored = []string{typedPath + "slow_start_config.aggression -2: 1 is used"}
		}},
		{"typed random", typed(t, &randomv3.Random{LocalityLbConfig: weightedTyped()}), func(c *Cluster) { c.Policy, c.LocalityWeighted = Policy{Name: Random}, true }},
		{"typed zone aware", typed(t, &randomv3.Random{LocalityLbConfig: zoneAwareTyped()}), func(c *Cluster) {
			c.Policy = Policy{Name: Random}
			c.Ignored = []string{typedPath + "locality_lb_config.zone_aware_lb_config"}
		}},
		{"typed ring hash, the block before the older fields", typed(t, both), func(c *Cluster) {
			c.Policy, c.LocalityWeighted = with(ringDefaults, false, 125), true
		}},
		{"typed ring hash, the older fields", typed(t, olderRing(true, 300)), func(c *Cluster) { c.Policy = with(ringDefaults, true, 300) }},
		{"typed maglev", typed(t, &maglevv3.Maglev{
			LocalityWeightedLbConfig: weightedTyped().GetLocalityWeightedLbConfig(),
			ConsistentHashingLbConfig: &commonv3.ConsistentHashingLbConfig{
				UseHostnameForHashing: true, HashBalanceFactor: u32(125), HashPolicy: []*routev3.RouteAction_HashPolicy{{}},
			},
		}), func(c *Cluster) {
			c.Policy, c.LocalityWeighted = with(table, true, 125), true
			c.Ignored = []string{typedPath + "consistent_hashing_lb_config.hash_policy"}
		}},
		{"common_lb_config with a typed policy", func(c *clusterv3.Cluster) {
			typed(t, &maglevv3.Maglev{})(c)
			c.CommonLbConfig = weightedCommon()
			c.CommonLbConfig.HealthyPanicThreshold = percentOf(5)
			c.CommonLbConfig.ConsistentHashingLbConfig = &hashing{HashBalanceFactor: u32(125)}
		}, func(c *Cluster) {
			c.Policy, c.PanicThreshold = table, 5
			c.Ignored = []string{"common_lb_config.consistent_hashing_lb_config", "common_lb_config.locality_weighted_lb_config"}
		}},
		{"wrr_locality", typed(t, wrr(t, &pickfirstv3.PickFirst{}, &randomv3.Random{})), func(c *Cluster) {
			c.Policy, c.LocalityWeighted = Policy{Name: Random}, true
		}},
		{"wrr_locality in wrr_locality", typed(t, wrr(t, wrr(t, &roundrobinv3.RoundRobin{
			SlowStartConfig: &commonv3.SlowStartConfig{SlowStartWindow: durationpb.New(time.Minute)}, LocalityLbConfig: zoneAwareTyped(),
		}))), func(c *Cluster) {
			c.LocalityWeighted, c.SlowStart = true, minute
			c.Ignored = []string{typedPath + "endpoint_picking_policy.policies[0].typed_extension_config." +
				"endpoint_picking_policy.policies[0].typed_extension_config.locality_lb_config.zone_aware_lb_config"}
		}},
		{"wrr_locality over nothing known", typed(t, wrr(t, &pickfirstv3.PickFirst{})), func(c *Cluster) {
			c.Policy, c.LocalityWeighted = Policy{}, true
			c.Unsupported = typedPath + `endpoint_picking_policy: none of "PickFirst" is known`
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			want := &Cluster{Name: "web", EDSName: "web", Policy: Policy{Name: RoundRobin}, PanicThreshold: 50, ConnectTimeout: 5 * time.Second, CircuitBreakers: defaultBreakers}
			tt.want(want)
			_, v, err := decodeCluster(marshal(t, edsCluster("web", tt.with)))
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(want, v, compareAddr, cmp.Comparer(lbcore.Set.Equal)); d != "" {
				t.Errorf("cluster (-want +got):\n%s", d)
			}
		})
	}
}

func TestDecodeSpreadInvalid(t *testing.T) {
	const typedPath = "load_balancing_policy.policies[0].typed_extension_config."
	nested := proto.Message(&randomv3.Random{})
	for range maxNesting {
		nested = wrr(t, nested)
	}
	balance := func(p clusterv3.Cluster_LbPolicy, factor uint32) mutate {
		return common(p, &commonLb{ConsistentHashingLbConfig: &hashing{HashBalanceFactor: u32(factor)}})
	}
	for _, tt := range []struct {
		name string
		with mutate
		want string
	}{
		{"panic above 100", common(0, &commonLb{HealthyPanicThreshold: percentOf(100.5)}), "common_lb_config.healthy_panic_threshold: 100.5: want 0 to 100"},
		{"panic below 0", common(0, &commonLb{HealthyPanicThreshold: percentOf(-1)}), "common_lb_config.healthy_panic_threshold: -1: want 0 to 100"},
		{"panic NaN", common(0, &commonLb{HealthyPanicThreshold: percentOf(math.NaN())}), "common_lb_config.healthy_panic_threshold: NaN: want 0 to 100"},
		{"panic infinite", common(0, &commonLb{HealthyPanicThreshold: percentOf(math.Inf(1))}), "common_lb_config.healthy_panic_threshold: +Inf: want 0 to 100"},
		{"bound", balance(clusterv3.Cluster_RING_HASH, 99), "common_lb_config.consistent_hashing_lb_config.hash_balance_factor: 99: want 0 or at least 100"},
		{"bound of a policy without", balance(clusterv3.Cluster_RANDOM, 1), "common_lb_config.consistent_hashing_lb_config.hash_balance_factor: 1: want 0 or at least 100"},
		{"typed bound", typed(t, &maglevv3.Maglev{ConsistentHashingLbConfig: &commonv3.ConsistentHashingLbConfig{HashBalanceFactor: u32(99)}}),
			typedPath + "consistent_hashing_lb_config.hash_balance_factor: 99: want 0 or at least 100"},
		{"typed bound, the older field", typed(t, olderRing(false, 99)), typedPath + "hash_balance_factor: 99: want 0 or at least 100"},
		{"slow start below 0s", oldSlowStart(&clusterv3.Cluster_SlowStartConfig{SlowStartWindow: durationpb.New(-time.Second)}),
			"round_robin_lb_config.slow_start_config.slow_start_window: -1s: want at least 0s"},
		{"slow start invalid", oldSlowStart(&clusterv3.Cluster_SlowStartConfig{SlowStartWindow: &durationpb.Duration{Seconds: 1, Nanos: -1}}),
			"round_robin_lb_config.slow_start_config.slow_start_window: "},
		{"slow start's weight", oldSlowStart(&clusterv3.Cluster_SlowStartConfig{MinWeightPercent: percentOf(101)}),
			"round_robin_lb_config.slow_start_config.min_weight_percent: 101: want 0 to 100"},
		{"slow start of least request", leastConfig(&clusterv3.Cluster_LeastRequestLbConfig{SlowStartConfig: &clusterv3.Cluster_SlowStartConfig{MinWeightPercent: percentOf(-1)}}),
			"least_request_lb_config.slow_start_config.min_weight_percent: -1: want 0 to 100"},
		{"typed slow start", typedSlowStart(t, &commonv3.SlowStartConfig{MinWeightPercent: percentOf(math.NaN())}), typedPath + "slow_start_config.min_weight_percent: NaN: want 0 to 100"},
		{"typed slow start of least request", typed(t, &leastrequestv3.LeastRequest{SlowStartConfig: &commonv3.SlowStartConfig{SlowStartWindow: durationpb.New(-1)}}),
			typedPath + "slow_start_config.slow_start_window: -1ns: want at least 0s"},
		{"wrr_locality of nothing", typed(t, &wrrlocalityv3.WrrLocality{}), typedPath + "endpoint_picking_policy.policies: empty"},
		{"wrr_locality, invalid inside", typed(t, wrr(t, &maglevv3.Maglev{TableSize: u64(4)})),
			typedPath + "endpoint_picking_policy.policies[0].typed_extension_config.table_size (4) is not prime"},
		{"too deep", typed(t, nested), "load_balancing_policy: policies lie more than 16 deep in policies"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			name, _, err := decodeCluster(marshal(t, edsCluster("web", tt.with)))
			if name != "web" || err == nil || !strings.HasPrefix(err.Error(), tt.want) {
				t.Errorf("got name %q, error %v; want %s", name, err, tt.want)
			}
		})
	}
}

func dropOf(category string, n uint32, of typev3.FractionalPercent_DenominatorType) *endpointv3.ClusterLoadAssignment_Policy_DropOverload {
	return &endpointv3.ClusterLoadAssignment_Policy_DropOverload{
		Category: category, DropPercentage: &typev3.FractionalPercent{Numerator: n, Denominator: of},
	}
}

func TestBadDropsAndStaleAfter(t *testing.T) {
	drops := func(list ...*endpointv3.ClusterLoadAssignment_Policy_DropOverload) *endpointv3.ClusterLoadAssignment_Policy {
		return &endpointv3.ClusterLoadAssignment_Policy{DropOverloads: list}
	}
	for want, p := range map[string]*endpointv3.ClusterLoadAssignment_Policy{
		"policy.drop_overloads[0].category: missing":                           drops(dropOf("", 1, 0)),
		"policy.drop_overloads[1].drop_percentage.denominator: 9 is not known": drops(dropOf("a", 1, 0), dropOf("b", 1, 9)),
		"policy.drop_overloads: 17 categories: want at most 16":                drops(make([]*endpointv3.ClusterLoadAssignment_Policy_DropOverload, 17)...),
		"policy.endpoint_stale_after: 0s: want more than 0s":                   {EndpointStaleAfter: durationpb.New(0)},
	} {
		for i := range p.DropOverloads {
			if p.DropOverloads[i] == nil {
				p.DropOverloads[i] = dropOf("x", 1, 0)
			}
		}
		m := cla("web", locality(0, lb(socket("10.0.0.1", 80))))
		m.Policy = p
		if _, _, err := decodeAssignment(marshal(t, m)); err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

func TestDecodeAssignmentPolicy(t *testing.T) {
	in := func(p *endpointv3.ClusterLoadAssignment_Policy) *endpointv3.ClusterLoadAssignment {
		m := cla("web", locality(0, lb(socket("10.0.0.1", 80))))
		m.Policy = p
		return m
	}
	for _, tt := range []struct {
		name string
		in   *endpointv3.ClusterLoadAssignment_Policy
		want lbcore.SetPolicy
		note string
	}{
		{"none", nil, lbcore.SetPolicy{}, ""},
		{"default", &endpointv3.ClusterLoadAssignment_Policy{}, lbcore.SetPolicy{Overprovisioning: 140}, ""},
		{"factor", &endpointv3.ClusterLoadAssignment_Policy{OverprovisioningFactor: u32(1)}, lbcore.SetPolicy{Overprovisioning: 1}, ""},
		{"the largest factor", &endpointv3.ClusterLoadAssignment_Policy{OverprovisioningFactor: u32(1<<32 - 1)}, lbcore.SetPolicy{Overprovisioning: 1<<32 - 1}, ""},
		{"weighted health", &endpointv3.ClusterLoadAssignment_Policy{WeightedPriorityHealth: true}, lbcore.SetPolicy{Overprovisioning: 140, WeightedHealth: true}, ""},
		{"stale after", &endpointv3.ClusterLoadAssignment_Policy{EndpointStaleAfter: durationpb.New(time.Minute)}, lbcore.SetPolicy{Overprovisioning: 140}, ""},
		{"drops", &endpointv3.ClusterLoadAssignment_Policy{DropOverloads: []*endpointv3.ClusterLoadAssignment_Policy_DropOverload{
			dropOf("a", 7, typev3.FractionalPercent_HUNDRED), dropOf("b", 7, typev3.FractionalPercent_TEN_THOUSAND),
			dropOf("c", 7, typev3.FractionalPercent_MILLION), dropOf("d", 1<<32-1, typev3.FractionalPercent_HUNDRED), {Category: "e"},
		}}, lbcore.SetPolicy{Overprovisioning: 140, Drops: lbcore.DropsOf(
			lbcore.Drop{Category: "a", PerMillion: 70_000}, lbcore.Drop{Category: "b", PerMillion: 700}, lbcore.Drop{Category: "c", PerMillion: 7},
			lbcore.Drop{Category: "d", PerMillion: 1_000_000}, lbcore.Drop{Category: "e"},
		)}, ""},
	} {
		_, v, err := decodeAssignment(marshal(t, in(tt.in)))
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		a := v.(*assignment)
		if a.set.Policy() != tt.want || a.set.Len() != 1 || strings.Join(a.notes, ", ") != tt.note {
			t.Errorf("%s: got %+v with %d endpoints and notes %q, want %+v", tt.name, a.set.Policy(), a.set.Len(), a.notes, tt.want)
		}
	}
	_, _, err := decodeAssignment(marshal(t, in(&endpointv3.ClusterLoadAssignment_Policy{OverprovisioningFactor: u32(0)})))
	if want := "policy.overprovisioning_factor: 0: want at least 1"; err == nil || err.Error() != want {
		t.Errorf("a factor of 0: %v, want %s", err, want)
	}
	m := edsCluster("web", static(func(c *clusterv3.Cluster) {
		c.LoadAssignment = in(&endpointv3.ClusterLoadAssignment_Policy{OverprovisioningFactor: u32(0)})
	}))
	if _, _, err := decodeCluster(marshal(t, m)); err == nil || err.Error() != "load_assignment.policy.overprovisioning_factor: 0: want at least 1" {
		t.Errorf("a factor of 0 in a STATIC cluster: %v", err)
	}
}

func TestDecodeLocalityWeights(t *testing.T) {
	at := func(zone string, priority, weight uint32, port uint32) *endpointv3.LocalityLbEndpoints {
		l := locality(priority, lb(socket("10.0.0.1", port)))
		l.Locality = &corev3.Locality{Zone: zone}
		if weight > 0 {
			l.LoadBalancingWeight = u32(weight)
		}
		return l
	}
	_, v, err := decodeAssignment(marshal(t, cla("web",
		at("a", 0, 5, 1), at("b", 0, 1<<32-20, 2), at("a", 1, 7, 3), at("c", 0, 0, 4),
		at("a", 0, 0, 5),                   // the same locality again, without a weight
		at("d", 0, 3, 6), at("d", 0, 4, 7), // with another: the last counts
	)))
	if err != nil {
		t.Fatal(err)
	}
	var got []uint32
	for _, e := range v.(*assignment).set.All() {
		got = append(got, e.LocalityWeight)
	}
	if d := cmp.Diff([]uint32{5, 1<<32 - 20, 7, 0, 5, 4, 4}, got); d != "" {
		t.Errorf("weights of localities (-want +got):\n%s", d)
	}
}
