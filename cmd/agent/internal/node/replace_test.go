package node

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"gatehouse.internal/cmd/agent/internal/config"
)

// pass lets d pass in a bubble, and what happens then happen.
func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// replacing returns a rig in which cluster "web" serves EDS resource "old" and
// waits to be replaced by one of "new".
func replacing(t *testing.T) (r *rig, old *cluster) {
	r = start(t)
	r.eds.replace("old", endpoint("192.0.2.1:80"))
	r.apply(Spec{Clusters: []config.Cluster{clusterOf("web", eds("old"))}})
	synctest.Wait()
	if w := r.Waiting(); len(w) != 0 {
		t.Fatalf("waiting for %q", w)
	}
	old = r.serving("web")
	r.apply(Spec{Clusters: []config.Cluster{clusterOf("web", eds("new"))}})
	synctest.Wait()
	return r, old
}

func TestReplacementWaitsUntilWarm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, old := replacing(t)
		pass(time.Hour)
		r.eds.fail("new", errors.New("no answer"))
		synctest.Wait()
		if r.serving("web") != old {
			t.Fatal("the cluster was replaced before it was warm")
		}
		const why = "changed settings are not in force yet: discovery: no answer"
		if got := r.Status().Clusters[0].Waiting; got != why {
			t.Errorf("waiting for %q, want %q", got, why)
		}
		if w := r.Waiting(); len(w) != 0 { // connections can be served
			t.Errorf("waiting for %q", w)
		}
		r.eds.replace("new", endpoint("192.0.2.2:80"))
		synctest.Wait()
		if r.serving("web") == old || r.ready("web") != 1 || r.eds.watchers("old") != 0 {
			t.Error("the cluster was not replaced when it was warm")
		}
	})
}

// Clusters are told to be warming until they serve with their newest settings, and
// which EDS resource their endpoints come from.
func TestWarming(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _ := replacing(t)
		told := func(want ...string) {
			t.Helper()
			synctest.Wait()
			if got := r.Warming(); !slices.Equal(got, want) {
				t.Errorf("warming are %q, want %q", got, want)
			}
		}
		told("web")
		if b := r.cluster("web").Source.Blocks[0]; b.Kind != config.DiscoveryEDS || b.Resource != "old" {
			t.Errorf("block %+v", b)
		}
		r.eds.replace("new", endpoint("192.0.2.2:80"))
		told()
		if b := r.cluster("web").Source.Blocks[0]; b.Resource != "new" {
			t.Errorf("block %+v", b)
		}
		r.apply(Spec{Clusters: []config.Cluster{clusterOf("web", eds("new")), clusterOf("late", eds("late")), clusterOf("api", eds(""))}})
		told("api", "late")
		if b := r.cluster("api").Source.Blocks[0]; b.Resource != "api" {
			t.Errorf("block %+v", b)
		}
	})
}

// A cluster that never could take a connection is not worth keeping.
func TestReplacementOfNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		r.apply(Spec{Clusters: []config.Cluster{clusterOf("web", eds("misspelt"))}})
		synctest.Wait()
		old := r.serving("web")
		r.apply(Spec{Clusters: []config.Cluster{clusterOf("web", eds("new"))}})
		synctest.Wait()
		if r.serving("web") == old || r.eds.watchers("misspelt") != 0 {
			t.Error("the cluster was not replaced at once")
		}
	})
}

func TestReplacementIsDroppedWhenChangedBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, old := replacing(t)
		r.apply(Spec{Clusters: []config.Cluster{clusterOf("web", eds("old"))}})
		synctest.Wait()
		if n := r.eds.watchers(""); n != 1 {
			t.Errorf("%d sources run, want 1", n)
		}
		r.eds.replace("new", endpoint("192.0.2.2:80"))
		synctest.Wait()
		if r.serving("web") != old {
			t.Error("the cluster was replaced")
		}
	})
}

func TestReplacementIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, old := replacing(t)
		newer := Spec{Clusters: []config.Cluster{clusterOf("web", eds("newer"))}}
		r.apply(newer)
		synctest.Wait()
		if r.eds.watchers("new") != 0 || r.eds.watchers("newer") != 1 {
			t.Error("the wrong replacement is warmed")
		}
		r.apply(newer) // the same again begins nothing anew
		synctest.Wait()
		if r.serving("web") != old || r.eds.watchers("newer") != 1 {
			t.Fatal("the cluster was replaced too early, or warmed twice")
		}
		r.eds.replace("newer", endpoint("192.0.2.2:80"))
		synctest.Wait()
		if c := r.serving("web"); c.cfg.Discovery[0].ServiceName != "newer" {
			t.Errorf("%q serves", c.cfg.Discovery[0].ServiceName)
		}
	})
}

func TestReplacementIsRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _ := replacing(t)
		r.apply(Spec{})
		synctest.Wait()
		if n := r.eds.watchers(""); n != 0 {
			t.Errorf("%d sources run, want none", n)
		}
		if st := r.Status(); len(st.Clusters) != 0 {
			t.Errorf("clusters are %+v", st.Clusters)
		}
	})
}

// The old cluster takes connections until the new one can.
func TestReplacementUnderConnections(t *testing.T) {
	r := start(t)
	one, two := listen(t, "one"), listen(t, "two")
	listeners := []config.Listener{listenerOf("l", "web")}
	r.apply(Spec{Clusters: []config.Cluster{clusterOf("web", static(one.Endpoint))}, Listeners: listeners})
	within(t, "the cluster is warm", func() bool { return len(r.Waiting()) == 0 })
	c := r.mustDial("l", "one")
	r.apply(Spec{Clusters: []config.Cluster{clusterOf("web", eds(""))}, Listeners: listeners})
	r.mustDial("l", "one")
	r.eds.replace("web", two.Endpoint)
	within(t, "the new one has taken over", func() bool {
		got, err := r.dial("l")
		if err != nil {
			t.Fatal(err)
		}
		return got.from == "two"
	})
	r.mustDial("l", "two")
	c.alive()
}
