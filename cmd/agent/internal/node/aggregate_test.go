package node

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"gatehouse.internal/cmd/agent/internal/config"
	"gatehouse.internal/forwarder"
	"gatehouse.internal/lbcore"
	"gatehouse.internal/xds"
)

func aggregateOf(name string, clusters ...string) config.Cluster {
	return config.Cluster{Name: name, Origin: config.OriginXDS, Aggregate: clusters}
}

// Connections go to the first cluster that can take them, by that cluster's own
// settings, and on to the next by Envoy's arithmetic.
func TestAggregate(t *testing.T) {
	r := start(t)
	a, b, c := listen(t, "a"), listen(t, "b"), listen(t, "c")
	first := clusterOf("first", static(a.Endpoint, sick(t, "sick")), once(config.CheckTCP))
	first.CircuitBreakers.MaxConnections = 64
	second := clusterOf("second", static(b.Endpoint))
	spec := Spec{
		Clusters:  []config.Cluster{aggregateOf("all", "first", "absent", "second"), first, second},
		Listeners: []config.Listener{listenerOf("l", "all")},
	}
	r.apply(spec)
	within(t, "the load is spread over both", func() bool {
		return fmt.Sprint(r.cluster("all").AggregateLoads) == fmt.Sprint([]AggregateLoad{
			{"first", lbcore.TierLoad{Endpoints: 2, Healthy: 70}}, {"second", lbcore.TierLoad{Endpoints: 1, Healthy: 30}},
		})
	})
	led := r.connections("l", 192)
	if led["a"] < 96 || led["b"] < 20 || led["a"]+led["b"] != 192 {
		t.Errorf("connections led to %v, want 70 %% and 30 %%", led)
	}
	if st := r.cluster("all"); st.Source.State != "fresh" || !strings.Contains(st.Source.Err, `cluster "absent" is not known`) || st.Origin != "xds" {
		t.Errorf("status %+v", st)
	}

	// One that was absent comes, and one that was there leaves.
	spec.Clusters = []config.Cluster{aggregateOf("all", "first", "absent", "second"), clusterOf("absent", static(c.Endpoint)), second}
	r.apply(spec)
	within(t, "connections lead to the one that came", func() bool {
		c, err := r.dial("l")
		if c.Conn != nil {
			c.Close()
		}
		return err == nil && c.from == "c"
	})
	if led := r.connections("l", 16); led["c"] != 16 {
		t.Errorf("connections led to %v", led)
	}

	// Nobody is left.
	within(t, "the ends of all connections are recorded", func() bool {
		st := r.listener("l").Stats
		r.mu.Lock()
		defer r.mu.Unlock()
		return st.Active == 0 && uint64(len(r.ended)) == st.Accepted
	})
	spec.Clusters = spec.Clusters[:1]
	r.apply(spec)
	if rec := r.refused("l"); rec.Flag != forwarder.FlagUH || !strings.Contains(rec.Err.Error(), `cluster "all" has no endpoint that is ready in any of`) {
		t.Errorf("a connection ended with %s: %v", rec.Flag, rec.Err)
	}
	spec.Clusters = nil
	r.apply(spec)
	if rec := r.refused("l"); rec.Flag != forwarder.FlagNC {
		t.Errorf("a connection ended with %s: %v", rec.Flag, rec.Err)
	}
}

// An explanation says which of its clusters an aggregate leads to and how that one
// chooses, and a model has what all of them choose by.
func TestAggregateExplained(t *testing.T) {
	r := start(t)
	a, b := listen(t, "a"), listen(t, "b")
	first := clusterOf("first", static(a.Endpoint, sick(t, "sick")), once(config.CheckTCP))
	second := clusterOf("second", static(b.Endpoint))
	second.Selectors = []config.Selector{{Name: "keys", Policy: config.PolicyRingHash, MinimumRingSize: 64, MaximumRingSize: 1024, HashFunction: config.HashXX}, {Name: "more", Policy: config.PolicyRandom}}
	all := aggregateOf("all", "first", "absent", "second")
	all.PanicThreshold = 10
	r.apply(Spec{Clusters: []config.Cluster{all, first, second}})
	within(t, "the load is spread over both", func() bool {
		loads := r.cluster("all").AggregateLoads
		return len(loads) == 2 && loads[0].Healthy == 70
	})
	led := make(map[string]int)
	for i := range 200 {
		x, err := r.Explain("all", "", lbcore.StringKey(fmt.Sprint(i)))
		if err != nil || x.Cluster != "all" || !x.Keyed || x.Key != lbcore.StringKey(fmt.Sprint(i)) || len(x.Aggregate.Asked) != 1 || len(x.Steps) != 0 {
			t.Fatalf("%+v, %v", x, err)
		}
		if !slices.Equal(x.Aggregate.Clusters, all.Aggregate) || fmt.Sprint(x.Aggregate.Loads) != fmt.Sprint(r.cluster("all").AggregateLoads) {
			t.Fatalf("%+v", x.Aggregate)
		}
		to := x.Aggregate.Asked[0]
		led[to.Cluster]++
		if to.Cluster == "first" && (to.Selector != config.DefaultSelector || len(to.Steps) == 0 || len(to.Endpoints) != len(to.Steps)) ||
			to.Cluster == "second" && (to.Selector != "keys" || to.Policy != config.PolicyRingHash || to.Endpoints[0].Addr != b.Addr || to.Endpoints[0].State != StateReady) {
			t.Fatalf("%+v", to)
		}
	}
	if led["first"] < 100 || led["second"] < 30 {
		t.Errorf("led to %v, want 70 %% and 30 %%", led)
	}
	if x, err := r.Explain("all", "more", lbcore.Key{}); err == nil || !strings.Contains(err.Error(), `has no selector "more"`) {
		t.Errorf("%+v, %v", x, err)
	}
	for name, want := range map[string]string{"nosuch": `: there are "all", "first", "second"`, "al": ` (did you mean "all"?)`} {
		if _, err := r.Explain(name, "", lbcore.Key{}); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("no cluster %q%s", name, want)) {
			t.Errorf("%v", err)
		}
	}

	m, err := r.Model("all")
	if err != nil || m.Cluster != "all" || m.Spread.PanicThreshold != 10 || len(m.Aggregate) != 2 || len(m.Aggregate[1].Selectors) != 1 || m.Aggregate[1].Selectors[0].Name != "keys" {
		t.Fatalf("%+v, %v", m, err)
	}
	s, err := Simulate(t.Context(), m, Change{Keys: 10_000})
	if err != nil || len(s.Shares) != 3 {
		t.Fatalf("%+v, %v", s, err)
	}
	for _, x := range s.Shares {
		want := map[lbcore.Addr]int{a.Addr: 7000, b.Addr: 3000}[x.Addr]
		if x.Before < want-200 || x.Before > want+200 {
			t.Errorf("%+v, want about %d", x, want)
		}
	}
}

// A circuit breaker is that of the cluster that a connection leads to.
func TestAggregateCircuitBreaker(t *testing.T) {
	r := start(t)
	first := clusterOf("first", static(listen(t, "a").Endpoint))
	first.CircuitBreakers.MaxConnections = 1
	r.apply(Spec{
		Clusters:  []config.Cluster{aggregateOf("all", "first"), first},
		Listeners: []config.Listener{listenerOf("l", "all"), listenerOf("own", "first")},
	})
	within(t, "the cluster is warm", func() bool { return len(r.Waiting()) == 0 })
	r.mustDial("own", "a").alive()
	if rec := r.refused("l"); rec.Flag != forwarder.FlagUO || rec.Cluster != "first" {
		t.Errorf("a connection ended with %s of cluster %q", rec.Flag, rec.Cluster)
	}
}

// Other settings of an aggregate apply at once, and the neediest of its clusters says
// how many endpoints a connection may try.
func TestAggregateSettings(t *testing.T) {
	r := start(t)
	many := clusterOf("many", static(sick(t, "sick")), once(config.CheckTCP))
	many.MaxConnectAttempts = 5
	few := clusterOf("few", static(sick(t, "sick too")), once(config.CheckTCP))
	few.MaxConnectAttempts = 1
	for _, threshold := range []uint32{0, 50, 0} {
		all := aggregateOf("all", "many", "few")
		all.PanicThreshold = threshold
		r.apply(Spec{Clusters: []config.Cluster{all, many, few}})
		within(t, "it panics where it may", func() bool {
			loads := r.cluster("all").AggregateLoads
			return len(loads) == 2 && loads[0].Panic == (threshold > 0) && loads[1].Panic == (threshold > 0)
		})
	}
	a := r.table.Load().aggregates["all"]
	if want := a.children[0].candidates(0); a.most != want || a.children[1].candidates(0) >= want {
		t.Errorf("%d candidates, want %d", a.most, want)
	}
}

// A cluster of an aggregate one that is changed is replaced once the new one is
// warm, and connections lead to somebody all the while.
func TestAggregateFollowsReplacement(t *testing.T) {
	r := start(t)
	a := listen(t, "a")
	spec := func(timeout int) Spec {
		c := clusterOf("c", static(a.Endpoint))
		c.MaxConnectAttempts = timeout
		return Spec{Clusters: []config.Cluster{c, aggregateOf("all", "c")}, Listeners: []config.Listener{listenerOf("l", "all")}}
	}
	r.apply(spec(1))
	within(t, "the cluster is warm", func() bool { return len(r.Waiting()) == 0 })
	r.mustDial("l", "a")
	before := r.serving("c")
	r.apply(spec(2))
	within(t, "the new one serves", func() bool { return r.serving("c") != before })
	for range 10 {
		r.mustDial("l", "a").alive()
	}
}

// A cluster may become one of others, and the other way round, under its name; one
// that has only a selector by the usual name.
func TestClusterBecomesAggregate(t *testing.T) {
	r := start(t)
	a, b := listen(t, "a"), listen(t, "b")
	own, part := clusterOf("c", static(a.Endpoint)), clusterOf("part", static(b.Endpoint))
	l := listenerOf("l", "c")
	l.Selector = config.DefaultSelector
	odd := listenerOf("odd", "c")
	odd.Selector = "sticky"
	spec := func(clusters ...config.Cluster) Spec {
		return Spec{Clusters: clusters, Listeners: []config.Listener{l, odd}}
	}
	r.apply(spec(own, part))
	within(t, "the clusters are warm", func() bool { return len(r.Waiting()) == 0 })
	open := r.mustDial("l", "a")
	r.apply(spec(aggregateOf("c", "part"), part))
	r.mustDial("l", "b").alive()
	open.alive() // it goes on
	if rec := r.refused("odd"); rec.Flag != forwarder.FlagNC {
		t.Errorf("a connection by a selector that is not there ended with %s", rec.Flag)
	}
	if r.serving("c") != nil || len(r.cluster("c").Aggregate) != 1 {
		t.Errorf("status %+v", r.cluster("c"))
	}
	r.apply(spec(own, part))
	within(t, "the cluster is warm", func() bool { return len(r.Waiting()) == 0 })
	r.mustDial("l", "a").alive()
}

// The clusters that an aggregate leads to are one list, or it can't be run.
func TestLeavesOfAnAggregate(t *testing.T) {
	leaf := func(name string) *xds.Cluster { return &xds.Cluster{Name: name, EDSName: name} }
	aggregate := func(name string, of ...string) *xds.Cluster { return &xds.Cluster{Name: name, Aggregate: of} }
	bad := leaf("bad")
	bad.Unsupported = "it is bad"
	deep := []*xds.Cluster{leaf("z")}
	for i := range 17 {
		to := fmt.Sprint("n", i+1)
		if i == 16 {
			to = "z"
		}
		deep = append(deep, aggregate(fmt.Sprint("n", i), to))
	}
	var wide []string
	for i := range 129 {
		wide = append(wide, fmt.Sprint("w", i))
	}
	clusters := append(deep, leaf("a"), leaf("b"), bad,
		aggregate("plain", "a", "b"), aggregate("twice", "a", "b", "a"), aggregate("nested", "b", "plain", "none"), aggregate("of bad", "a", "bad"),
		aggregate("itself", "a", "itself"), aggregate("ping", "pong"), aggregate("pong", "ping"),
		aggregate("wide", wide...), aggregate("wide enough", wide[:128]...))
	run, unsupported := FromXDS(clusters)
	for name, want := range map[string]string{
		"plain": "a b", "twice": "a b", "nested": "b a none", "n1": "z",
		"of bad": `cluster "bad": it is bad`, "n0": "more than 16 deep", "itself": "in themselves", "ping": "in themselves", "pong": "in themselves",
		"wide": "more than 128 clusters", "wide enough": strings.Join(wide[:128], " "),
	} {
		got := "nothing"
		if i := slices.IndexFunc(run, func(c config.Cluster) bool { return c.Name == name }); i >= 0 {
			got = strings.Join(run[i].Aggregate, " ")
		}
		if i := slices.IndexFunc(unsupported, func(u Unsupported) bool { return u.Name == name }); i >= 0 {
			got = unsupported[i].Reason
		}
		if !strings.Contains(got, want) {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
}

// Aggregates that name each other in many ways are walked once: 16 layers of 128
// names each would be more ways than anybody can go.
func TestLeavesOfADenseAggregate(t *testing.T) {
	clusters := []*xds.Cluster{{Name: "n16", EDSName: "n16"}}
	for i := range 16 {
		x := &xds.Cluster{Name: fmt.Sprint("n", i)}
		for range 128 {
			x.Aggregate = append(x.Aggregate, fmt.Sprint("n", i+1))
		}
		clusters = append(clusters, x)
	}
	run, unsupported := FromXDS(clusters)
	if len(run) != 17 || len(unsupported) != 0 {
		t.Fatalf("%d clusters run, and %v do not", len(run), unsupported)
	}
	for _, c := range run {
		if c.Name != "n16" && !slices.Equal(c.Aggregate, []string{"n16"}) {
			t.Errorf("%s leads to %q", c.Name, c.Aggregate)
		}
	}

	// There is a bound on how many of them one may lead to.
	many := []*xds.Cluster{{Name: "z", EDSName: "z"}, {Name: "many"}}
	for i := range 200 {
		many = append(many, &xds.Cluster{Name: fmt.Sprint("m", i), Aggregate: []string{"z"}})
		many[1].Aggregate = append(many[1].Aggregate, fmt.Sprint("m", i))
	}
	if _, unsupported := FromXDS(many); len(unsupported) != 1 || unsupported[0].Reason != "more than 128 aggregate clusters" {
		t.Errorf("unsupported are %v", unsupported)
	}

	// A short way first does not hide that another one is too deep.
	chain := []*xds.Cluster{{Name: "z", EDSName: "z"}, {Name: "both", Aggregate: []string{"c5", "c0"}}}
	for i := range 16 {
		to := fmt.Sprint("c", i+1)
		if i == 15 {
			to = "z"
		}
		chain = append(chain, &xds.Cluster{Name: fmt.Sprint("c", i), Aggregate: []string{to}})
	}
	if _, unsupported := FromXDS(chain); len(unsupported) != 1 || unsupported[0].Name != "both" || !strings.Contains(unsupported[0].Reason, "deep") {
		t.Errorf("unsupported are %v", unsupported)
	}
}
