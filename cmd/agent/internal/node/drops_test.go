package node

import (
	"maps"
	"math"
	"testing"

	"gatehouse.internal/cmd/agent/internal/config"
	"gatehouse.internal/discovery"
	"gatehouse.internal/forwarder"
	"gatehouse.internal/lbcore"
)

// Connections are dropped as discovery says, counted by category, and take no place
// of the circuit breaker.
func TestDrops(t *testing.T) {
	r := start(t)
	set := lbcore.MustSet(listen(t, "a").Endpoint)
	drop := func(drops ...lbcore.Drop) lbcore.Set {
		return set.WithPolicy(lbcore.SetPolicy{Drops: lbcore.DropsOf(drops...)})
	}
	r.eds.known = map[string]lbcore.Set{"web": drop(lbcore.Drop{Category: "none"}, lbcore.Drop{Category: "all", PerMillion: 1e6})}
	c := clusterOf("web", eds("web"))
	c.CircuitBreakers.MaxConnections, c.LoadReports = 1, true
	r.apply(Spec{Clusters: []config.Cluster{c, aggregateOf("all", "web")}, Listeners: []config.Listener{listenerOf("l", "web"), listenerOf("a", "all")}})
	within(t, "the cluster is warm", func() bool { return len(r.Waiting()) == 0 })
	for _, l := range []string{"l", "a", "l"} {
		if rec := r.refused(l); rec.Flag != forwarder.FlagDO || rec.Err.Error() != `cluster "web" drops connections: category "all"` || rec.Cluster != "web" {
			t.Errorf("a connection ended with %s: %v", rec.Flag, rec.Err)
		}
	}
	for _, want := range []map[string]uint64{{"all": 3}, nil} { // those since the last report
		if l := r.Loads(allClusters); len(l) != 1 || l[0].Dropped != 0 || !maps.Equal(l[0].DroppedBy, want) {
			t.Errorf("the load is %+v, want %v dropped", l, want)
		}
	}
	st := r.cluster("web")
	want := []DropStatus{{"all", 1e6, 3}, {"none", 0, 0}}
	if len(st.Drops) != 2 || st.Drops[0] != want[0] || st.Drops[1] != want[1] || st.Open.Refused != 0 {
		t.Errorf("got %+v, %+v", st.Drops, st.Open)
	}

	r.eds.each("web", func(s discovery.Sink) { s.Replace(set) }, func() {}) // with the same endpoints
	within(t, "nothing is dropped any more", func() bool {
		c, err := r.dial("l")
		if err != nil {
			return false
		}
		c.Close()
		return c.from == "a"
	})
	if st := r.cluster("web"); len(st.Drops) != 2 || st.Drops[0].PerMillion != 0 || st.Drops[0].Dropped < 3 || st.Generation != 1 {
		t.Errorf("got %+v in generation %d", st.Drops, st.Generation)
	}
}

// Categories drop one after the other a part of what is left, and that costs no
// memory. Source: 60 % and 50 % of the rest are 80 % of all.
func TestDropsInSequence(t *testing.T) {
	c := &cluster{heritage: (*cluster)(nil).bequeath(), cfg: config.Cluster{Name: "c"}}
	if c.refuse() != nil {
		t.Error("without a word a connection is dropped")
	}
	c.setDrops(lbcore.DropsOf(lbcore.Drop{Category: "a", PerMillion: 600_000}, lbcore.Drop{Category: "b", PerMillion: 500_000}))
	const n = 100_000
	passed := 0
	for range n {
		if c.refuse() == nil {
			passed++
		}
	}
	st := c.dropStatus()
	for _, x := range []struct {
		what      string
		got, want int
	}{{"a", int(st[0].Dropped), 60_000}, {"b", int(st[1].Dropped), 20_000}, {"passed", passed, 20_000}} {
		if math.Abs(float64(x.got-x.want)) > 1500 { // 9 standard deviations
			t.Errorf("%s: %d of %d, want about %d", x.what, x.got, n, x.want)
		}
	}
	if allocs := testing.AllocsPerRun(1000, func() { c.refuse() }); allocs > 0 {
		t.Errorf("%v allocations", allocs)
	}
}

// However many categories come and go, a bounded number of them is counted.
func TestDropCategoriesAreBounded(t *testing.T) {
	c := &cluster{heritage: (*cluster)(nil).bequeath()}
	for i := range 200 {
		c.setDrops(lbcore.DropsOf(lbcore.Drop{Category: string(rune('A' + i)), PerMillion: 1e6}))
		c.refuse()
	}
	total := uint64(0)
	for _, d := range c.dropStatus() {
		total += d.Dropped
	}
	if n := len(c.dropStatus()); n != maxDropCategories+1 || total != 200 {
		t.Errorf("%d categories with %d connections", n, total)
	}
}
