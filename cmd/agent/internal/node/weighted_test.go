package node

import (
	"math"
	"reflect"
	"testing"

	"pgregory.net/rapid"

	"gatehouse.internal/cmd/agent/internal/config"
	"gatehouse.internal/forwarder"
	"gatehouse.internal/lbcore"
)

// routesOf returns routes with these weights, and nobody behind them.
func routesOf(weights ...uint32) *routes {
	rs := new(routes)
	for _, w := range weights {
		rs.total += uint64(w)
		rs.targets = append(rs.targets, target{upTo: uint32(rs.total)})
	}
	return rs
}

// Whatever the weights, lots that are spread evenly fall to each target in
// proportion, and every lot falls to one.
func TestWeightedShares(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		weight := rapid.OneOf(rapid.Uint32Range(1, 100), rapid.Uint32Range(1, math.MaxUint32/10))
		weights := rapid.SliceOfN(weight, 1, 10).Draw(t, "weights")
		rs := routesOf(weights...)
		const lots = 1 << 14
		got := make(map[*target]float64)
		for i := range uint32(lots) {
			got[rs.one(i*(1<<32/lots))]++
		}
		for i, w := range weights {
			if want := lots * float64(w) / float64(rs.total); math.Abs(got[&rs.targets[i]]-want) > 1.01 {
				t.Errorf("target %d of weight %d gets %v of %d lots, want %.2f", i, w, got[&rs.targets[i]], lots, want)
			}
		}
		if rs.one(0) != &rs.targets[0] || rs.one(math.MaxUint32) != &rs.targets[len(weights)-1] {
			t.Error("the first or last lot falls to another target")
		}
	})
}

// The listener's own draws follow the weights too, and a pick allocates nothing.
func TestWeightedPick(t *testing.T) {
	l := new(listener)
	rs := routesOf(90, 9, 1)
	for i := range rs.targets {
		rs.targets[i].dial, rs.targets[i].none = new(forwarder.Dial), new(forwarder.Refusal)
	}
	l.routes.Store(rs)
	const n = 20_000
	got := make(map[*forwarder.Dial]float64)
	for range n {
		_, dial, _ := l.Pick(nil, lbcore.Key{})
		got[dial]++
	}
	for i, share := range []float64{0.9, 0.09, 0.01} {
		if off := math.Abs(got[rs.targets[i].dial] - n*share); off > 7*math.Sqrt(n*share*(1-share)) {
			t.Errorf("target %d got %v of %d, want about %v", i, got[rs.targets[i].dial], n, n*share)
		}
	}
	if n := testing.AllocsPerRun(1000, func() { _, _, _ = l.Pick(nil, lbcore.Key{}) }); n != 0 {
		t.Errorf("%v allocations a pick", n)
	}
}

// weighted returns a listener that shares its connections over a and b.
func weighted(a, b uint32) config.Listener {
	l := listenerOf("l", "")
	l.WeightedClusters = []config.WeightedCluster{{Name: "a", Weight: a}, {Name: "b", Weight: b}}
	return l
}

// Connections are shared over clusters, and weights and clusters change without
// touching the socket and what is open.
func TestWeightedClusters(t *testing.T) {
	r := start(t)
	one, two := listen(t, "one"), listen(t, "two")
	clusters := []config.Cluster{clusterOf("a", static(one.Endpoint)), clusterOf("b", static(two.Endpoint))}
	apply := func(l config.Listener) { r.apply(Spec{Clusters: clusters, Listeners: []config.Listener{l}}) }
	l := weighted(1, 1)
	apply(l)
	within(t, "all are warm", func() bool { return len(r.Waiting()) == 0 })
	addr := r.listener("l").Address
	open := make(map[string]*conn)
	for range 200 { // 2^-199 that one has none
		c, err := r.dial("l")
		if err != nil {
			t.Fatal(err)
		}
		if open[c.from] == nil {
			open[c.from] = c
		}
		if len(open) == 2 {
			break
		}
	}
	if len(open) != 2 {
		t.Fatalf("all connections led to %v", open)
	}
	if st := r.listener("l"); st.Cluster != "" || !reflect.DeepEqual(st.Weighted, l.WeightedClusters) {
		t.Errorf("the listener is %+v", st)
	}
	for _, tt := range []struct {
		l    config.Listener
		want string
	}{{weighted(1, 1<<31), "two"}, {weighted(1<<31, 1), "one"}, {listenerOf("l", "b"), "two"}, {weighted(1<<31, 1), "one"}} {
		apply(tt.l)
		for range 5 {
			r.mustDial("l", tt.want)
		}
	}
	clusters[0] = changed(clusters[0]) // replaced by another one of the name
	apply(weighted(1<<31, 1))
	r.mustDial("l", "one")
	for _, c := range open {
		c.alive()
	}
	if st := r.listener("l"); st.Address != addr || st.Cluster != "" {
		t.Errorf("the listener is %+v", st)
	}
}

// A cluster that was drawn and has nobody refuses; the other one is not asked.
func TestWeightedRefusals(t *testing.T) {
	r := start(t)
	one := listen(t, "one")
	r.eds.replace("empty")
	empty := clusterOf("a", eds("empty"))
	spec := Spec{Clusters: []config.Cluster{empty, clusterOf("b", static(one.Endpoint))}, Listeners: []config.Listener{weighted(1<<31, 1)}}
	r.apply(spec)
	within(t, "all are warm", func() bool { return len(r.Waiting()) == 0 })
	if rec := r.refused("l"); rec.Flag != forwarder.FlagUH || rec.Cluster != "a" {
		t.Errorf("%+v", rec)
	}
	spec.Clusters = spec.Clusters[1:]
	r.apply(spec)
	if rec := r.refused("l"); rec.Flag != forwarder.FlagNC || rec.Cluster != "a" {
		t.Errorf("%+v", rec)
	}
	if one.accepted.Load() != 0 {
		t.Errorf("the other cluster got %d connections", one.accepted.Load())
	}
}
