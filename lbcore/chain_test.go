package lbcore_test

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"gatehouse.internal/lbcore"
	"gatehouse.internal/lbcore/ringhash"
	"gatehouse.internal/lbcore/roundrobin"
)

// linked starts a cluster for each group of endpoints, of one Gate, and returns
// the chain of their first slots.
func linked(t *testing.T, threshold uint32, policy lbcore.SetPolicy, groups [][]lbcore.Endpoint, down []int, with ...func(*cluster)) (*lbcore.Chain, []*cluster) {
	t.Helper()
	gate, hosts := lbcore.NewGate(lbcore.GateConfig{}), new(lbcore.Hosts)
	var slots []*lbcore.Slot
	var all []*cluster
	for i, eps := range groups {
		c := (&cluster{name: fmt.Sprint(i), gate: gate, hosts: hosts, builders: []lbcore.Builder{order{}}}).probed()
		for _, f := range with {
			f(c)
		}
		c.start(t)
		for _, i := range down {
			c.probes[addr(i)] = new(lbcore.ProbeState)
			c.probes[addr(i)].Store(lbcore.HealthUnhealthy)
		}
		c.settle(lbcore.MustSet(eps...).WithPolicy(policy))
		c.group.UpdateLoads()
		slots, all = append(slots, c.slot(0)), append(all, c)
	}
	chain := lbcore.NewChain(threshold, slots...)
	chain.UpdateLoads()
	return chain, all
}

// Envoy's vectors hold whichever clusters the priorities are of: the load is that
// of one list of priorities.
func TestChainVectors(t *testing.T) {
	for _, v := range priorityVectors() {
		for first := 0; first <= len(v.prios); first++ { // how many are the first cluster's; 0: a cluster each
			t.Run(fmt.Sprint(v.prios, v.of, v.threshold, first), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { checkChain(t, v, first) })
			})
		}
	}
}

func checkChain(t *testing.T, v priorityVector, first int) {
	var groups [][]lbcore.Endpoint
	var down, fresh []int
	var want []lbcore.ChainLoad
	panics := false
	for i, p := range v.prios {
		eps, sick, unprobed := standing(i, p, false)
		fresh = append(fresh, unprobed...)
		down = append(down, sick...)
		if n := len(groups); n == 0 || first == 0 || i == first {
			groups = append(groups, eps)
		} else {
			groups[n-1] = append(groups[n-1], eps...)
		}
		panics = panics || v.panics[i]
		if len(eps) > 0 {
			want = append(want, lbcore.ChainLoad{Slot: len(groups) - 1, TierLoad: lbcore.TierLoad{
				Priority: uint8(i), Endpoints: len(eps), Healthy: v.load[i], Degraded: v.degraded[i], Panic: v.panics[i],
			}})
		}
	}
	chain, clusters := linked(t, uint32(v.threshold), lbcore.SetPolicy{Overprovisioning: uint32(v.of)}, groups, down, func(c *cluster) {
		c.spread.IgnoreNew = true
		for _, i := range fresh {
			c.probes[addr(i)] = new(lbcore.ProbeState)
		}
	})
	if d := cmp.Diff(want, chain.Loads()); len(want) > 0 && d != "" {
		t.Fatalf("loads: %s", d)
	}
	if panics || len(want) == 0 {
		return // whether a cluster panics is its own decision
	}
	type place struct {
		slot     int
		priority uint8
		degraded bool
	}
	picked := make(map[place]uint32)
	for hash := range uint64(1000) {
		r := clusters[0].gate.Pin()
		p, slot := chain.Pick(r, hashKey(hash), 1)
		r.Unpin()
		if m := p.Next(); m != nil {
			picked[place{slot, m.Endpoint().Priority, m.Degraded()}]++
		}
	}
	available := false
	for _, p := range v.prios {
		available = available || p.Healthy+p.Degraded > 0
	}
	for _, l := range chain.Loads() {
		for degraded, load := range map[bool]uint32{false: l.Healthy, true: l.Degraded} {
			if !available {
				load = 0
			}
			if n := picked[place{l.Slot, l.Priority, degraded}]; n != 10*load {
				t.Errorf("slot %d, priority %d, degraded %v: %d picks of 1000, want %d%%", l.Slot, l.Priority, degraded, n, load)
			}
		}
	}
}

// Each cluster picks by its own policy, also in a priority that is not the one its
// own load would lead to.
func TestChainPolicies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// The first cluster takes 70 %, and so the rest goes to the second one's best
		// priority, though that can't take the whole of the second's own load.
		groups := [][]lbcore.Endpoint{{ep(1), ep(2)}, {ep(11), ep(12), with(ep(13), func(e *lbcore.Endpoint) { e.Priority = 1 })}}
		i := 0
		chain, clusters := linked(t, 0, lbcore.SetPolicy{}, groups, []int{2, 12}, func(c *cluster) {
			if i++; i == 1 {
				c.builders = []lbcore.Builder{roundrobin.Config{}}
			} else {
				c.builders = []lbcore.Builder{ringhash.Config{MinimumSize: 16, MaximumSize: 64}}
			}
		})
		r := clusters[0].gate.Pin()
		defer r.Unpin()
		led := make(map[int]int)
		for hash := range uint64(1000) {
			p, _ := chain.Pick(r, hashKey(hash), 1)
			led[nums(&p)[0]]++
		}
		if d := cmp.Diff(map[int]int{1: 700, 11: 300}, led); d != "" {
			t.Errorf("picks: %s", d)
		}
	})
}

// Whatever happens to the clusters, somebody who is ready is found.
func TestChainFindsWhoIsReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		chain, clusters := linked(t, 0, lbcore.SetPolicy{}, [][]lbcore.Endpoint{{ep(1)}, {ep(2)}, {ep(3)}}, []int{1, 2, 3})
		r := clusters[0].gate.Pin()
		defer r.Unpin()
		if p, _ := chain.Pick(r, lbcore.Key{}, 1); p.Next() != nil {
			t.Error("an endpoint was picked where none is ready")
		}
		clusters[2].probes[addr(3)].Store(lbcore.HealthHealthy) // and the loads lag
		p, slot := chain.Pick(r, lbcore.Key{}, 1)
		if got := nums(&p); slot != 2 || len(got) != 1 || got[0] != 3 {
			t.Errorf("got %v of slot %d", got, slot)
		}
		clusters[2].settle(lbcore.MustSet()) // its tiers are gone, and the loads lag again
		if p, _ := chain.Pick(r, lbcore.Key{}, 1); p.Next() != nil {
			t.Error("an endpoint was picked that is gone")
		}
	})
	empty := lbcore.NewChain(50)
	empty.UpdateLoads()
	gate := lbcore.NewGate(lbcore.GateConfig{})
	r := gate.Pin()
	defer r.Unpin()
	if p, _ := empty.Pick(r, lbcore.Key{}, 1); p.Len() != 0 || empty.Loads() != nil {
		t.Error("a chain of nothing has candidates")
	}
}

// An explanation has the candidates of the pick that it explains, of the same slot,
// and the slots that were asked in vain before it.
func TestChainExplainIsPick(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		groups := [][]lbcore.Endpoint{nil, nil, nil}
		for i := range 30 {
			groups[i%3] = append(groups[i%3], with(ep(i), func(e *lbcore.Endpoint) { e.Priority = uint8(i % 2) }))
		}
		chain, clusters := linked(t, 30, lbcore.SetPolicy{}, groups, nil, func(c *cluster) {
			c.builders = []lbcore.Builder{ringhash.Config{MinimumSize: 64, MaximumSize: 256}}
			for i := range 30 {
				c.probes[addr(i)] = new(lbcore.ProbeState)
			}
		})
		r := clusters[0].gate.Pin()
		defer r.Unpin()
		asked := make(map[int]int)
		for range 2000 {
			sick := rand.IntN(12)
			for i := range 30 {
				h := lbcore.HealthHealthy
				switch {
				case rand.IntN(10) < sick:
					h = lbcore.HealthUnhealthy
				case rand.IntN(3) == 0:
					h = lbcore.HealthDegraded
				}
				clusters[i%3].probes[addr(i)].Store(h)
			}
			for _, c := range clusters {
				c.group.UpdateLoads()
			}
			if rand.IntN(3) > 0 { // else they lag
				chain.UpdateLoads()
			}
			k, want := hashKey(rand.Uint64()), 1+rand.IntN(8)
			x := chain.Explain(r, k, want)
			p, slot := chain.Pick(r, k, want)
			got, picked := candidates(x.Asked[len(x.Asked)-1].Explanation), nums(&p)
			if !slices.Equal(got, picked) || len(picked) > 0 && x.Asked[len(x.Asked)-1].Slot != slot {
				t.Fatalf("explained %v, picked %v of slot %d: %+v", got, picked, slot, x)
			}
			for _, e := range x.Asked[:len(x.Asked)-1] {
				if len(candidates(e.Explanation)) > 0 {
					t.Fatalf("slot %d has candidates, and others are asked: %+v", e.Slot, x)
				}
			}
			if x.Key != k || !x.Keyed || !reflect.DeepEqual(x.Loads, chain.Loads()) {
				t.Fatalf("%+v", x)
			}
			asked[len(x.Asked)]++
		}
		if asked[1] == 0 || asked[2] == 0 || asked[3] == 0 {
			t.Errorf("how many slots were asked: %v", asked)
		}
	})
	empty := lbcore.NewChain(0)
	empty.UpdateLoads()
	r := lbcore.NewGate(lbcore.GateConfig{}).Pin()
	defer r.Unpin()
	if x := empty.Explain(r, lbcore.Key{}, 1); len(x.Asked)+len(x.Loads) > 0 || x.Keyed {
		t.Errorf("a chain of nothing: %+v", x)
	}
}

func TestChainPickAllocatesNothing(t *testing.T) {
	chain, clusters := linked(t, 50, lbcore.SetPolicy{}, [][]lbcore.Endpoint{{ep(1), ep(2)}, {ep(3)}}, []int{2})
	r := clusters[0].gate.Pin()
	defer r.Unpin()
	if n := testing.AllocsPerRun(1000, func() { chain.Pick(r, lbcore.Key{}, 3) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

// Clusters change while others pick: whoever is picked is, or was, one of the
// endpoints, and belongs to the slot that is told.
func TestChainUnderChanges(t *testing.T) {
	i := 0
	chain, clusters := linked(t, 50, lbcore.SetPolicy{}, [][]lbcore.Endpoint{{ep(1)}, {ep(1001)}}, nil, func(c *cluster) {
		if i++; i == 1 {
			c.builders = []lbcore.Builder{roundrobin.Config{}}
		} else {
			c.builders = []lbcore.Builder{ringhash.Config{MinimumSize: 16, MaximumSize: 64}}
		}
	})
	var owners, pickers sync.WaitGroup
	var over atomic.Bool
	for n, c := range clusters {
		owners.Go(func() {
			for round := range 100 {
				var eps []lbcore.Endpoint
				for k := range round % 5 { // none at times
					eps = append(eps, with(ep(1000*n+k+1), func(e *lbcore.Endpoint) { e.Priority = uint8(k % 3) }))
				}
				c.settle(lbcore.MustSet(eps...))
				c.group.UpdateLoads()
				chain.UpdateLoads()
				c.view.Sweep(c.group.Served())
			}
		})
	}
	for range 2 {
		pickers.Go(func() {
			r := clusters[0].gate.NewReader("picker")
			defer r.Close()
			for hash := uint64(0); !over.Load(); hash++ {
				r.Pin()
				p, slot := chain.Pick(r, hashKey(hash), 3)
				r.Unpin()
				for _, i := range nums(&p) {
					if i/1000 != slot {
						t.Errorf("endpoint %d of slot %d", i, slot)
						return
					}
				}
				runtime.Gosched()
			}
		})
	}
	owners.Wait()
	over.Store(true)
	pickers.Wait()
}
