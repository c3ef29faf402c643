package node

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"gatehouse.internal/cmd/agent/internal/config"
	"gatehouse.internal/discovery"
	"gatehouse.internal/forwarder"
	"gatehouse.internal/lbcore"
)

// sick returns an endpoint that takes connections and fails its check.
func sick(t *testing.T, name string) lbcore.Endpoint {
	t.Helper()
	e := listen(t, name).Endpoint
	e.Check.Addr = deaf(t).Addr
	return e
}

// loads returns how the load of a cluster's first selector is spread.
func (r *rig) loads(name string) []lbcore.TierLoad {
	if s := r.cluster(name).Selectors; len(s) > 0 {
		return s[0].Loads
	}
	return nil
}

// spreads waits until the load of a cluster is spread so.
func (r *rig) spreads(name string, want ...lbcore.TierLoad) {
	r.t.Helper()
	within(r.t, "the load is spread as it should", func() bool { return slices.Equal(r.loads(name), want) })
}

// In a panic endpoints take connections whatever their health; without a
// threshold nobody does.
func TestPanicThreshold(t *testing.T) {
	r := start(t)
	calm := clusterOf("calm", static(sick(t, "sick"), sick(t, "sick too")), once(config.CheckTCP))
	panics := calm
	panics.Name, panics.PanicThreshold = "panics", 50
	r.apply(Spec{
		Clusters:  []config.Cluster{calm, panics},
		Listeners: []config.Listener{listenerOf("c", "calm"), listenerOf("p", "panics")},
	})
	r.spreads("panics", lbcore.TierLoad{Endpoints: 2, Healthy: 100, Panic: true})
	if c, err := r.dial("p"); err != nil || c.from != "sick" && c.from != "sick too" {
		t.Errorf("in a panic a connection led to %q with %v", c.from, err)
	}
	within(t, "both are probed", func() bool { return len(r.Waiting()) == 0 })
	if rec := r.refused("c"); rec.Flag != forwarder.FlagUH {
		t.Errorf("without a threshold a connection ended with %s", rec.Flag)
	}
}

// Localities get connections by their weights, none by the weight 0.
//
// bug 20: without the setting, weights of localities mean nothing.
func TestLocalityWeighted(t *testing.T) {
	r := start(t)
	a, b := listen(t, "a"), listen(t, "b")
	a.Locality.Zone, a.LocalityWeight, b.Locality.Zone = "a", 1, "b"
	weighted := clusterOf("weighted", static(a.Endpoint, b.Endpoint))
	weighted.LocalityWeighted = true
	r.apply(Spec{
		Clusters:  []config.Cluster{weighted, clusterOf("plain", static(a.Endpoint, b.Endpoint))},
		Listeners: []config.Listener{listenerOf("w", "weighted"), listenerOf("p", "plain")},
	})
	within(t, "the clusters are warm", func() bool { return len(r.Waiting()) == 0 })
	if led := r.connections("w", 64); led["a"] != 64 {
		t.Errorf("connections led to %v", led)
	}
	if led := r.connections("p", 64); led["a"] != 32 {
		t.Errorf("without weights connections led to %v", led)
	}
}

// What is near goes first, and what is far takes over when that can't.
func TestPreferLocal(t *testing.T) {
	r := start(t, func(c *Config) { c.Locality = here })
	near, region, far := listen(t, "near"), listen(t, "region"), listen(t, "far")
	near.Locality = lbcore.Locality{Region: "eu", Zone: "eu-1a", SubZone: "rack"}
	region.Locality = lbcore.Locality{Region: "eu", Zone: "eu-1b"}
	c := clusterOf("web", eds(""))
	c.PreferLocal = true
	r.eds.replace("web", near.Endpoint, region.Endpoint, far.Endpoint)
	r.apply(Spec{Clusters: []config.Cluster{c}, Listeners: []config.Listener{listenerOf("l", "web")}})
	load := func(percents ...uint32) (want []lbcore.TierLoad) {
		for i, n := range percents {
			want = append(want, lbcore.TierLoad{Distance: uint8(i), Endpoints: 1, Healthy: n})
		}
		return want
	}
	r.spreads("web", load(100, 0, 0)...)
	if led := r.connections("l", 32); led["near"] != 32 {
		t.Errorf("connections led to %v", led)
	}
	near.Status = lbcore.StatusUnhealthy
	r.eds.replace("web", near.Endpoint, region.Endpoint, far.Endpoint)
	r.spreads("web", load(0, 100, 0)...)
	if led := r.connections("l", 32); led["region"] != 32 {
		t.Errorf("without what is near connections led to %v", led)
	}
	region.Status = lbcore.StatusDraining
	r.eds.replace("web", near.Endpoint, region.Endpoint, far.Endpoint)
	r.spreads("web", load(0, 0, 100)...)
	if led := r.connections("l", 32); led["far"] != 32 {
		t.Errorf("without its region connections led to %v", led)
	}
	if g := r.cluster("web").Generation; g != 1 {
		t.Errorf("health has rebuilt selectors: generation %d", g)
	}
}

// Spilling over goes by the cluster's settings, and by what EDS says instead.
func TestSpillOver(t *testing.T) {
	r := start(t)
	one, two, spare := listen(t, "one").Endpoint, listen(t, "two").Endpoint, listen(t, "spare").Endpoint
	two.Status, two.Weight, spare.Priority = lbcore.StatusUnhealthy, 3, 1
	set := lbcore.MustSet(one, two, spare)
	of := func(name string, factor uint32, weighted bool) config.Cluster {
		c := clusterOf(name, eds(name))
		c.OverprovisioningFactor, c.WeightedPriorityHealth = factor, weighted
		return c
	}
	r.eds.known = map[string]lbcore.Set{"default": set, "exact": set, "weighted": set, "said": set.WithPolicy(lbcore.SetPolicy{Overprovisioning: 180})}
	r.apply(Spec{Clusters: []config.Cluster{of("default", 140, false), of("exact", 100, false), of("weighted", 100, true), of("said", 100, true)}})
	for name, first := range map[string]uint32{"default": 70, "exact": 50, "weighted": 25, "said": 90} {
		r.spreads(name, lbcore.TierLoad{Endpoints: 2, Healthy: first}, lbcore.TierLoad{Priority: 1, Endpoints: 1, Healthy: 100 - first})
	}
	// A new word alone is obeyed, without a rebuild.
	set = set.WithPolicy(lbcore.SetPolicy{Overprovisioning: 140})
	r.eds.each("said", func(s discovery.Sink) { s.Replace(set) }, func() {})
	r.spreads("said", lbcore.TierLoad{Endpoints: 2, Healthy: 70}, lbcore.TierLoad{Priority: 1, Endpoints: 1, Healthy: 30})
	if g := r.cluster("said").Generation; g != 1 {
		t.Errorf("a policy has rebuilt selectors: generation %d", g)
	}
}

// Degraded endpoints take what the others can't, and are shown.
func TestDegraded(t *testing.T) {
	r := start(t)
	one, two := listen(t, "one").Endpoint, listen(t, "two").Endpoint
	two.Status = lbcore.StatusDegraded
	r.apply(Spec{Clusters: []config.Cluster{clusterOf("web", static(one, two))}})
	r.spreads("web", lbcore.TierLoad{Endpoints: 2, Healthy: 70, Degraded: 30})
	for _, e := range r.cluster("web").Endpoints {
		if e.Degraded != (e.Addr == two.Addr) || !e.Ready {
			t.Errorf("endpoint is %+v", e)
		}
	}
}

// New endpoints don't count as missing before their first probe.
func TestIgnoreNew(t *testing.T) {
	r := start(t)
	known, unknown, spare := listen(t, "known").Endpoint, listen(t, "new").Endpoint, listen(t, "spare").Endpoint
	known.Check.Disabled, spare.Check.Disabled, spare.Priority = true, true, 1
	ignores := clusterOf("ignores", static(known, unknown, spare), mute())
	ignores.IgnoreNew = true
	counts := clusterOf("counts", static(known, unknown, spare), mute())
	r.apply(Spec{Clusters: []config.Cluster{ignores, counts}})
	r.spreads("ignores", lbcore.TierLoad{Endpoints: 2, Healthy: 100}, lbcore.TierLoad{Priority: 1, Endpoints: 1})
	r.spreads("counts", lbcore.TierLoad{Endpoints: 2, Healthy: 70}, lbcore.TierLoad{Priority: 1, Endpoints: 1, Healthy: 30})
}

// A key goes elsewhere once its endpoint has more than its part of the
// connections.
func TestHashBalanceFactor(t *testing.T) {
	r := start(t)
	one, two := listen(t, "one").Endpoint, listen(t, "two").Endpoint
	for _, factor := range []uint32{0, 100} {
		c := clusterOf("web", static(one, two))
		c.Selectors[0] = config.Selector{
			Name: "sticky", Policy: config.PolicyRingHash, MinimumRingSize: 1024, MaximumRingSize: 4096,
			HashFunction: config.HashXX, HashBalanceFactor: factor,
		}
		l := listenerOf("l", "web")
		l.HashOn = config.HashOnSourceIP
		r.apply(Spec{Clusters: []config.Cluster{c}, Listeners: []config.Listener{l}})
		within(t, "the cluster is as it should", func() bool {
			return len(r.Waiting()) == 0 && r.serving("web").cfg.Selectors[0].HashBalanceFactor == factor
		})
		led := make(map[string]int)
		for range 8 { // which stay open
			c, err := r.dial("l")
			if err != nil {
				t.Fatal(err)
			}
			led[c.from]++
		}
		if factor == 0 && len(led) != 1 || factor > 0 && (led["one"] < 3 || led["two"] < 3) {
			t.Errorf("with a factor of %d connections led to %v", factor, led)
		}
	}
}

// An endpoint that joins begins with a part of its weight, which grows to the
// whole.
func TestSlowStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		old, fresh := endpoint("192.0.2.1:80"), endpoint("192.0.2.2:80")
		c := clusterOf("web", eds(""))
		c.SlowStart = config.SlowStart{Window: time.Minute, Aggression: 1, MinWeightPercent: 10}
		r.eds.replace("web", old)
		r.apply(Spec{Clusters: []config.Cluster{c}})
		synctest.Wait()
		shares := func(want ...float64) {
			t.Helper()
			var got []float64
			for _, e := range r.cluster("web").Endpoints {
				got = append(got, e.SlowStart)
			}
			if !slices.EqualFunc(got, want, func(x, y float64) bool { return x > y-0.001 && x < y+0.001 }) {
				t.Errorf("shares are %.3f, want %.3f", got, want)
			}
		}
		shares(1)
		pass(time.Hour)
		r.eds.replace("web", old, fresh)
		synctest.Wait()
		shares(1, 0.1)
		pass(15 * time.Second)
		shares(1, 0.25)
		pass(30 * time.Second)
		shares(1, 0.75)
		pass(15 * time.Second)
		shares(1, 1)
		if g := r.cluster("web").Generation; g != 2 {
			t.Errorf("a weight that grows has rebuilt selectors: generation %d", g)
		}
	})
}
