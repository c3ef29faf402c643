package node

import (
	"testing"
	"testing/synctest"
	"time"

	"gatehouse.internal/cmd/agent/internal/config"
	"gatehouse.internal/lbcore"
)

var here = lbcore.Locality{Region: "eu", Zone: "eu-1a"}

// What a cluster says of its load reaches who spreads it.
func TestSpread(t *testing.T) {
	for _, tt := range []struct {
		in   config.Cluster
		want lbcore.Spread
	}{
		{config.Cluster{}, lbcore.Spread{}},
		{config.Cluster{PanicThreshold: 50, LocalityWeighted: true, IgnoreNew: true}, lbcore.Spread{PanicThreshold: 50, LocalityWeighted: true, IgnoreNew: true}},
		{config.Cluster{PreferLocal: true}, lbcore.Spread{PreferLocal: true, Local: here}},
	} {
		if got := spread(&tt.in, here); got != tt.want {
			t.Errorf("got %+v, want %+v", got, tt.want)
		}
	}
	if got := slowStart(config.SlowStart{Aggression: 1, MinWeightPercent: 10}); got != (lbcore.SlowStart{}) {
		t.Errorf("slow start without a window is %+v", got)
	}
	got := slowStart(config.SlowStart{Window: time.Minute, Aggression: 2, MinWeightPercent: 25})
	if want := (lbcore.SlowStart{Window: time.Minute, Aggression: 2, MinWeight: 0.25}); got != want {
		t.Errorf("slow start is %+v, want %+v", got, want)
	}
	for _, policy := range []string{config.PolicyRingHash, config.PolicyMaglev} {
		sc, err := slot(config.Selector{Name: "s", Policy: policy, TableSize: 7, HashBalanceFactor: 125})
		if err != nil || sc.BalanceFactor != 125 {
			t.Errorf("%s: %+v, %v", policy, sc, err)
		}
	}
}

// A cluster's word on its priorities counts where the source has none.
func TestSetPolicy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		set := lbcore.MustSet(endpoint("192.0.2.1:80"))
		said := lbcore.SetPolicy{Overprovisioning: 140}
		r.eds.known = map[string]lbcore.Set{"says": set.WithPolicy(said), "silent": set}
		mine := func(name, service string) config.Cluster {
			c := clusterOf(name, eds(service))
			c.OverprovisioningFactor, c.WeightedPriorityHealth = 100, true
			return c
		}
		still := clusterOf("default", eds("silent"))
		still.OverprovisioningFactor = 140
		fixed := mine("static", "")
		fixed.Discovery = []config.Discovery{static(endpoint("192.0.2.1:80"))}
		r.apply(Spec{Clusters: []config.Cluster{mine("eds", "says"), mine("silent", "silent"), still, fixed}})
		synctest.Wait()
		for name, want := range map[string]lbcore.SetPolicy{
			"eds": said, "silent": {Overprovisioning: 100, WeightedHealth: true}, "default": {},
			"static": {Overprovisioning: 100, WeightedHealth: true},
		} {
			if got := r.serving(name).view.Snapshot().Set.Policy(); got != want {
				t.Errorf("%s: policy is %+v, want %+v", name, got, want)
			}
			if w := r.serving(name).waiting(); w != "" {
				t.Errorf("%s waits for %s", name, w)
			}
		}
	})
}

// Host names stand in for hash keys where that is asked for.
func TestHashHostname(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		named, keyed, plain := endpoint("192.0.2.1:80"), endpoint("192.0.2.2:80"), endpoint("192.0.2.3:80")
		named.Hostname, keyed.Hostname, keyed.HashKey = "a.internal", "b.internal", "key"
		r.eds.replace("web", named, keyed, plain)
		by, not := clusterOf("by", eds("web")), clusterOf("not", eds("web"))
		by.HashHostname = true
		r.apply(Spec{Clusters: []config.Cluster{by, not}})
		synctest.Wait()
		keys := func(name string) (keys [3]string) {
			for i, e := range r.serving(name).view.Snapshot().Set.All() {
				keys[i] = e.HashKey
			}
			return keys
		}
		if got, want := keys("by"), [3]string{"a.internal", "key", ""}; got != want {
			t.Errorf("keys are %q, want %q", got, want)
		}
		if got, want := keys("not"), [3]string{"", "key", ""}; got != want {
			t.Errorf("without: keys are %q, want %q", got, want)
		}
		named.Hostname = "c.internal" // moves it on the ring
		r.eds.replace("web", named, keyed, plain)
		synctest.Wait()
		if c, d := r.cluster("by"), r.cluster("not"); c.Generation != 2 || d.Generation != 1 || keys("by")[0] != "c.internal" || c.Waiting != "" {
			t.Errorf("generations %d and %d, keys %q, waiting for %q", c.Generation, d.Generation, keys("by"), c.Waiting)
		}
	})
}
