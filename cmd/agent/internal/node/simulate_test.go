package node

import (
	"reflect"
	"runtime"
	"testing"

	"gatehouse.internal/cmd/agent/internal/config"
	"gatehouse.internal/lbcore"
)

func modelWith(s config.Selector, eps ...lbcore.Endpoint) Model {
	return Model{Cluster: "web", Selectors: []config.Selector{s}, Endpoints: eps}
}

func sized(weights ...uint32) (eps []lbcore.Endpoint) {
	for i, w := range weights {
		eps = append(eps, lbcore.Endpoint{Addr: simAddr(i), Weight: w})
	}
	return eps
}

func simAddr(i int) lbcore.Addr {
	a, err := lbcore.ParseAddr("10.0.0." + string(rune('1'+i)) + ":80")
	if err != nil {
		panic(err)
	}
	return a
}

// On a ring the keys that move are those of who leaves, or those of who comes.
func TestSimulateMovesNoMoreThanItMust(t *testing.T) {
	const keys = 20_000
	ring := config.Selector{Name: "s", Policy: config.PolicyRingHash, HashFunction: config.HashKetama, MaximumRingSize: 8 << 20}
	m := modelWith(ring, sized(1, 1, 1, 1, 1)...)
	out, err := Simulate(t.Context(), m, Change{Remove: []lbcore.Addr{simAddr(2)}, Keys: keys})
	if err != nil {
		t.Fatal(err)
	}
	if gone := out.Shares[2]; !out.Keyed || out.Moved != gone.Before || out.Freed != gone.Before || gone.After != 0 || !gone.Removed || gone.Before < keys/10 {
		t.Errorf("%+v", out)
	}
	in, err := Simulate(t.Context(), m, Change{Add: sized(1, 1, 1, 1, 1, 1)[5:], Keys: keys})
	if err != nil {
		t.Fatal(err)
	}
	if come := in.Shares[5]; in.Moved != come.After || in.Freed != 0 || come.Before != 0 || !come.Added || come.After < keys/12 {
		t.Errorf("%+v", in)
	}
	for _, s := range []Simulation{out, in} {
		before, after := 0, 0
		for _, x := range s.Shares {
			before, after = before+x.Before, after+x.After
		}
		if before != keys || after != keys || s.None != [2]int{} {
			t.Errorf("%d before, %d after, of %d: %+v", before, after, keys, s)
		}
	}
	again, err := Simulate(t.Context(), m, Change{Remove: []lbcore.Addr{simAddr(2)}, Keys: keys})
	if err != nil || !reflect.DeepEqual(again, out) {
		t.Errorf("another time: %+v, %v", again, err)
	}
}

// Each policy gives by weights, to those who are ready.
func TestSimulateShares(t *testing.T) {
	const keys = 20_000
	for _, s := range []config.Selector{
		{Policy: config.PolicyRoundRobin}, {Policy: config.PolicyRandom}, {Policy: config.PolicyLeastWeight, ChoiceCount: 2, ActiveRequestBias: 1},
		{Policy: config.PolicyMaglev, TableSize: 65537}, {Policy: config.PolicyRingHash, MinimumRingSize: 1 << 12, MaximumRingSize: 8 << 20}, {Policy: config.PolicyAdaptive},
	} {
		m := modelWith(s, sized(1, 2, 1, 4)...)
		m.Endpoints[3].Status = lbcore.StatusUnhealthy
		got, err := Simulate(t.Context(), m, Change{Add: []lbcore.Endpoint{{Addr: simAddr(4), Weight: 4}}, Keys: keys})
		if err != nil {
			t.Fatalf("%s: %v", s.Policy, err)
		}
		near := func(n, part, of int) bool { return 10*n > 9*keys*part/of && 10*n < 11*keys*part/of }
		x := got.Shares
		if x[3].Before+x[3].After != 0 || x[3].Ready {
			t.Errorf("%s: one that is not ready gets %+v", s.Policy, x[3])
		}
		if s.Policy != config.PolicyRingHash && s.Policy != config.PolicyMaglev && got.Moved != 0 {
			t.Errorf("%s: keys move", s.Policy)
		}
		if s.Policy == config.PolicyMaglev || s.Policy == config.PolicyRingHash { // what is not ready passes its keys on to whom the hash says
			continue
		}
		if !near(x[1].Before, 2, 4) || !near(x[4].After, 4, 8) || !near(x[1].After, 2, 8) {
			t.Errorf("%s: %+v", s.Policy, x)
		}
	}
}

func TestSimulateRefuses(t *testing.T) {
	ring := config.Selector{Name: "s", Policy: config.PolicyRingHash, MinimumRingSize: 1024, MaximumRingSize: 8 << 20}
	m := modelWith(ring, sized(1, 1)...)
	for name, ch := range map[string]Change{
		"selector": {Selector: "t", Keys: 1}, "no keys": {}, "too many": {Keys: MaxSimulated + 1},
		"unknown": {Keys: 1, Remove: []lbcore.Addr{simAddr(7)}}, "twice": {Keys: 1, Add: sized(1)},
	} {
		if s, err := Simulate(t.Context(), m, ch); err == nil {
			t.Errorf("%s: %+v", name, s)
		}
	}
	// What can't be built fails, and does not wait for ever.
	m.Selectors[0].MinimumRingSize = 9 << 20
	if s, err := Simulate(t.Context(), m, Change{Keys: 1}); err == nil {
		t.Errorf("%+v", s)
	}
	// All may go.
	m.Selectors[0].MinimumRingSize = 1024
	s, err := Simulate(t.Context(), m, Change{Keys: 10, Remove: []lbcore.Addr{simAddr(0), simAddr(1)}})
	if err != nil || s.None != [2]int{0, 10} || s.Moved != 10 || s.Freed != 10 {
		t.Errorf("%+v, %v", s, err)
	}
}

// A cluster that runs and its settings have the same model, but for who is ready.
func TestModels(t *testing.T) {
	r := start(t)
	cfg := clusterOf("web", static(sized(1, 2, 3)...))
	cfg.PanicThreshold, cfg.OverprovisioningFactor = 30, 120
	r.apply(Spec{Clusters: []config.Cluster{cfg}})
	for r.ready("web") != 3 { // the test's deadline bounds it
		runtime.Gosched()
	}
	want, err := ModelOf(t.Context(), cfg, lbcore.Locality{})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.SetEnabled(t.Context(), "web", simAddr(1), false); err != nil {
		t.Fatal(err)
	}
	got, err := r.Model("web")
	if err != nil {
		t.Fatal(err)
	}
	want.Endpoints[1].Status = lbcore.StatusUnhealthy
	want.AdaptiveWeights = got.AdaptiveWeights
	if !reflect.DeepEqual(got, want) || got.Policy.Overprovisioning != 120 || got.Spread.PanicThreshold != 30 || len(got.Endpoints) != 3 {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if m, err := r.Model("wep"); err == nil {
		t.Errorf("%+v", m)
	}
	cfg.Discovery[0] = config.Discovery{Kind: config.DiscoveryFile, Path: t.TempDir() + "/none"}
	if m, err := ModelOf(t.Context(), cfg, lbcore.Locality{}); err == nil {
		t.Errorf("no file: %+v", m)
	}
}

// aggregateModel consists of a cluster of two endpoints, the second of which is not
// ready, and one of another.
func aggregateModel(s config.Selector) Model {
	first := modelWith(s, sized(1, 1)...)
	first.Cluster, first.Endpoints[1].Status = "first", lbcore.StatusUnhealthy
	second := modelWith(s, sized(1, 1, 1)[2:]...)
	second.Cluster = "second"
	return Model{Cluster: "all", Aggregate: []Model{first, second}}
}

// The load of an aggregate cluster is spread over the priorities of those that it
// consists of, by Envoy's arithmetic: half of the first is 70 %.
func TestSimulateAggregate(t *testing.T) {
	const keys = 20_000
	near := func(n, percent int) bool { return 100*n > (percent-2)*keys && 100*n < (percent+2)*keys }
	for _, s := range []config.Selector{
		{Policy: config.PolicyRoundRobin}, {Policy: config.PolicyLeastWeight, ChoiceCount: 2, ActiveRequestBias: 1},
		{Policy: config.PolicyRingHash, MinimumRingSize: 1 << 12, MaximumRingSize: 8 << 20}, {Policy: config.PolicyMaglev, TableSize: 65537},
	} {
		m := aggregateModel(s)
		keyed := s.Policy == config.PolicyRingHash || s.Policy == config.PolicyMaglev
		got, err := Simulate(t.Context(), m, Change{Remove: []lbcore.Addr{simAddr(1)}, Keys: keys})
		if err != nil {
			t.Fatalf("%s: %v", s.Policy, err)
		}
		x := got.Shares
		if len(x) != 3 || x[0].Cluster != "first" || x[2].Cluster != "second" || x[2].Addr != simAddr(2) || !x[1].Removed || x[1].Ready {
			t.Fatalf("%s: %+v", s.Policy, x)
		}
		if !near(x[0].Before, 70) || !near(x[2].Before, 30) || x[1].Before+x[1].After+x[2].After != 0 || x[0].After != keys {
			t.Errorf("%s: %+v", s.Policy, x)
		}
		if got.Keyed != keyed || keyed && got.Moved != x[2].Before || got.Freed != 0 || got.Policy != "" || got.Selector != config.DefaultSelector {
			t.Errorf("%s: %+v", s.Policy, got)
		}
		// One that is added is in the first.
		got, err = Simulate(t.Context(), m, Change{Add: sized(1, 1, 1)[2:], Keys: keys})
		if err != nil {
			t.Fatal(err)
		}
		if x := got.Shares; len(x) != 4 || x[2].Cluster != "first" || !x[2].Added || x[3].Cluster != "second" || !near(x[0].After+x[2].After, 93) || !near(x[3].After, 7) {
			t.Errorf("%s: %+v", s.Policy, x)
		}
	}

	// Where one of them has no use for keys, keys have no endpoint of their own.
	m := aggregateModel(config.Selector{Policy: config.PolicyRingHash, MinimumRingSize: 64, MaximumRingSize: 8 << 20})
	m.Aggregate[1].Selectors = []config.Selector{{Policy: config.PolicyRandom}}
	if got, err := Simulate(t.Context(), m, Change{Keys: keys}); err != nil || got.Keyed || !near(got.Shares[0].Before, 70) {
		t.Errorf("%+v, %v", got, err)
	}

	for name, ch := range map[string]Change{
		"selector": {Selector: "s", Keys: 1}, "unknown": {Keys: 1, Remove: []lbcore.Addr{simAddr(7)}}, "twice": {Keys: 1, Add: sized(1)},
	} {
		if s, err := Simulate(t.Context(), m, ch); err == nil {
			t.Errorf("%s: %+v", name, s)
		}
	}
	none := Model{Cluster: "none", Aggregate: []Model{}}
	if s, err := Simulate(t.Context(), none, Change{Keys: 10}); err != nil || s.None != [2]int{10, 10} || len(s.Shares) != 0 {
		t.Errorf("of nothing: %+v, %v", s, err)
	}
	if s, err := Simulate(t.Context(), none, Change{Add: sized(1), Keys: 10}); err == nil {
		t.Errorf("of nothing: %+v", s)
	}
}
