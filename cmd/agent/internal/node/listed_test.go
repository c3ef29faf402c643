package node

import (
	"testing"
	"testing/synctest"
	"time"

	"gatehouse.internal/cmd/agent/internal/config"
	"gatehouse.internal/lbcore"
	"gatehouse.internal/xds"
)

// fixedOf returns a cluster as a control plane gives it with its endpoints.
func fixedOf(t *testing.T, name string, eps ...lbcore.Endpoint) config.Cluster {
	t.Helper()
	set, dropped, err := lbcore.NewSet(eps)
	if err != nil {
		t.Fatal(err)
	}
	run, unsupported := FromXDS([]*xds.Cluster{{
		Name: name, Static: &set, Duplicates: dropped, ConnectTimeout: 5 * time.Second,
		Policy: xds.Policy{Name: xds.RoundRobin},
	}})
	if len(run) != 1 {
		t.Fatal(unsupported)
	}
	return run[0]
}

// A static cluster of the control plane that gets another endpoint stays, with
// its connections and what it counts.
func TestListedEndpointsChange(t *testing.T) {
	r := start(t)
	a, b, c := listen(t, "a"), listen(t, "b"), listen(t, "c")
	listeners := []config.Listener{listenerOf("l", "web")}
	r.apply(Spec{Clusters: []config.Cluster{fixedOf(t, "web", a.Endpoint, b.Endpoint)}, Listeners: listeners})
	within(t, "the cluster is warm", func() bool { return len(r.Waiting()) == 0 })
	serving := r.serving("web")
	open := make(map[lbcore.Addr]int64)
	var conns []*conn
	dial := func(n int) {
		t.Helper()
		for range n {
			got, err := r.dial("l")
			if err != nil {
				t.Fatal(err)
			}
			conns = append(conns, got)
			open[map[string]*backend{"a": a, "b": b, "c": c}[got.from].Addr]++
		}
	}
	dial(4)

	r.apply(Spec{Clusters: []config.Cluster{fixedOf(t, "web", a.Endpoint, b.Endpoint, c.Endpoint)}, Listeners: listeners})
	within(t, "the third endpoint is there", func() bool {
		st := r.cluster("web")
		return st.Generation == 2 && len(st.Endpoints) == 3 && st.Selectors[0].Generation == 2
	})
	if r.serving("web") != serving {
		t.Error("the cluster was replaced")
	}
	dial(3)
	st := r.cluster("web")
	if st.Totals.Opened != 7 || st.Totals.Active != 7 || open[c.Addr] == 0 || st.Source.Updates != 2 || st.Waiting != "" {
		t.Errorf("the cluster is %+v", st)
	}
	for _, e := range st.Endpoints {
		if n := open[e.Addr]; e.Totals.Opened != uint64(n) || e.Totals.Active != n {
			t.Errorf("%s counts %+v, want %d", e.Addr, e.Totals, n)
		}
	}
	for _, c := range conns {
		c.alive()
	}

	// The same again is no news; other settings still replace.
	r.apply(Spec{Clusters: []config.Cluster{fixedOf(t, "web", a.Endpoint, b.Endpoint, c.Endpoint)}, Listeners: listeners})
	if got := r.serving("web").latest.State(); got.Updates != 2 {
		t.Errorf("%d updates", got.Updates)
	}
	r.apply(Spec{Clusters: []config.Cluster{changed(fixedOf(t, "web", a.Endpoint))}, Listeners: listeners})
	within(t, "the cluster is replaced", func() bool { return r.serving("web") != serving })
	within(t, "its endpoint is there", func() bool { return len(r.cluster("web").Endpoints) == 1 })
}

func TestListedEndpointsOfSeveralSources(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		one, two, three := endpoint("192.0.2.1:80"), endpoint("192.0.2.2:80"), endpoint("192.0.2.3:80")
		of := func(first, second []lbcore.Endpoint) Spec {
			c := clusterOf("web", eds("never"))
			c.Discovery = append(c.Discovery, static(first...), static(second...))
			c.HashHostname = true // what amends the sets still does
			return Spec{Clusters: []config.Cluster{c}}
		}
		one.Hostname, two.Hostname = "one.internal", "two.internal"
		r.apply(of([]lbcore.Endpoint{one}, []lbcore.Endpoint{three}))
		synctest.Wait()
		serving := r.serving("web")
		before := serving.latest.State()
		r.apply(of([]lbcore.Endpoint{one}, nil)) // of no matter
		synctest.Wait()
		if st := serving.latest.State(); st.Updates != before.Updates || st.Set.Find(one.Addr) != 0 || st.Set.Len() != 1 {
			t.Errorf("state was %s, is %s with %+v", before, st, st.Set)
		}
		again := two
		again.Weight = 5
		r.apply(of([]lbcore.Endpoint{one, two, again}, nil))
		synctest.Wait()
		set := serving.view.Snapshot().Set
		if i := set.Find(two.Addr); set.Len() != 2 || i < 0 || set.At(i).HashKey != "two.internal" || set.At(i).Weight != 1 {
			t.Errorf("the set is %+v", set)
		}
		if st := r.cluster("web"); st.Duplicates != 1 {
			t.Errorf("%d duplicates are counted", st.Duplicates)
		}

		// What can't be listed changes nothing, nor does what comes with it.
		other := clusterOf("other", static())
		bad := of([]lbcore.Endpoint{one}, []lbcore.Endpoint{{}})
		bad.Clusters = append(bad.Clusters, other)
		if err := r.Apply(t.Context(), bad); err == nil {
			t.Error("an endpoint without an address is listed")
		}
		synctest.Wait()
		if got := serving.view.Snapshot(); got.Set.Len() != 2 || r.serving("web") != serving || r.serving("other") != nil {
			t.Errorf("the set is %+v", got.Set)
		}
	})
}

// A cluster that has changed back gets what is listed now.
func TestListedEndpointsWhenChangedBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		one, two := endpoint("192.0.2.1:80"), endpoint("192.0.2.2:80")
		r.apply(Spec{Clusters: []config.Cluster{clusterOf("web", static(one))}})
		synctest.Wait()
		serving := r.serving("web")
		next := clusterOf("web", eds("new"))
		r.apply(Spec{Clusters: []config.Cluster{next}})
		synctest.Wait()
		r.apply(Spec{Clusters: []config.Cluster{clusterOf("web", static(one, two))}})
		synctest.Wait()
		if r.serving("web") != serving || r.ready("web") != 2 || r.eds.watchers("") != 0 {
			t.Errorf("the cluster is %+v", r.cluster("web"))
		}
	})
}

// What the operator has said of an address outlives the cluster that was told.
func TestReplacementKnowsTheOperatorsWord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		one, two := endpoint("192.0.2.1:80"), endpoint("192.0.2.2:80")
		r.eds.replace("a", one, two)
		cfg := clusterOf("web", eds("a"))
		r.apply(Spec{Clusters: []config.Cluster{cfg}})
		synctest.Wait()
		c := r.serving("web") // whose owner waits for something to do
		if err := c.view.SetEnabled(two.Addr, false); err != nil {
			t.Fatal(err)
		}
		c.stale = true
		poke(c.wake)
		synctest.Wait()

		// The first replacement never knows an endpoint; the one that it gives way
		// to does.
		cfg.Discovery = []config.Discovery{eds("b")}
		r.apply(Spec{Clusters: []config.Cluster{cfg}})
		synctest.Wait()
		for range 2 {
			cfg = changed(cfg)
			r.apply(Spec{Clusters: []config.Cluster{cfg}})
			synctest.Wait()
		}
		r.eds.replace("b", one, two)
		synctest.Wait()
		if r.serving("web") == c {
			t.Fatal("the cluster was not replaced")
		}
		for _, e := range r.cluster("web").Endpoints {
			if want := e.Addr == two.Addr; e.Disabled != want || e.Ready == want {
				t.Errorf("%s: disabled is %t", e.Addr, e.Disabled)
			}
		}
	})
}
