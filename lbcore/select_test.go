package lbcore_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"gatehouse.internal/lbcore"
	"gatehouse.internal/lbcore/random"
	"gatehouse.internal/lbcore/ringhash"
	"gatehouse.internal/lbcore/roundrobin"
)

// counting counts the steps of a policy's walks.
type counting struct {
	lbcore.Builder
	steps *atomic.Int64
}

func (c counting) Build(in lbcore.Input, st *lbcore.Storage, yield func() error) (lbcore.Selector, error) {
	s, err := c.Builder.Build(in, st, yield)
	return counted{s, c.steps}, err
}

type counted struct {
	lbcore.Selector
	steps *atomic.Int64
}

func (c counted) Next(k lbcore.Key, at uint64) (int, uint64) {
	c.steps.Add(1)
	return c.Selector.Next(k, at)
}

// A search ends when everybody is in.
func TestSearchEndsWithTheLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var steps atomic.Int64
		c := start(t, counting{random.Config{}, &steps})
		c.settle(set(0, 1))
		n := 0
		for range 1000 {
			n += len(c.picks(0, lbcore.Key{}, 3))
		}
		if n != 2000 || steps.Load() > 5000 {
			t.Errorf("%d candidates in %d steps", n, steps.Load())
		}
		// Also of a tier, whoever it is that is missing in the next one.
		c = (&cluster{builders: []lbcore.Builder{counting{random.Config{}, &steps}}}).probed().start(t)
		low := func(e *lbcore.Endpoint) { e.Priority = 1 }
		c.settle(lbcore.MustSet(ep(0), ep(1), with(ep(10), low), with(ep(11), low)))
		steps.Store(0)
		for range 1000 {
			n += len(c.picks(0, lbcore.Key{}, 3))
		}
		if n != 5000 || steps.Load() > 6000 {
			t.Errorf("%d candidates in %d steps", n, steps.Load())
		}
	})
}

// Degraded endpoints get what the others lack, and stand behind them.
func TestDegraded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		degraded := func(e *lbcore.Endpoint) { e.Status = lbcore.StatusDegraded }
		low := func(e *lbcore.Endpoint) { e.Priority = 1 }
		both := func(e *lbcore.Endpoint) { degraded(e); low(e) }
		c := (&cluster{builders: []lbcore.Builder{order{}}}).probed().start(t)
		c.settle(set(0, 1, 2, 3))
		if loads := c.slot(0).Loads(); len(loads) != 1 || loads[0] != (lbcore.TierLoad{Endpoints: 4, Healthy: 100}) {
			t.Errorf("loads are %v", loads)
		}
		c.update(lbcore.MustSet(with(ep(0), degraded), ep(1), ep(2), ep(3)))
		if c.member(1).Degraded() || !c.member(0).Degraded() || !c.member(0).Ready() {
			t.Error("degraded is not degraded and ready")
		}
		equal(t, "before UpdateLoads", c.picks(0, hashKey(0), 8), []int{1, 2, 3, 0})
		equal(t, "before UpdateLoads", c.picks(0, hashKey(3), 3), []int{3, 1, 2})
		c.group.UpdateLoads()
		equal(t, "last", c.picks(0, hashKey(0), 8), []int{1, 2, 3, 0})
		c.health(false, 1, 2) // 1 of 4 healthy: 35 %; 1 degraded: 35 %, by norm 50 each
		c.group.UpdateLoads()
		if loads := c.slot(0).Loads(); loads[0] != (lbcore.TierLoad{Endpoints: 4, Healthy: 50, Degraded: 50}) {
			t.Errorf("loads are %v", loads)
		}
		equal(t, "by a healthy hash", c.picks(0, hashKey(49), 8), []int{3, 0})
		equal(t, "by a degraded hash", c.picks(0, hashKey(50), 8), []int{0, 3})
		c.health(false, 3)
		equal(t, "nobody else, before UpdateLoads", c.picks(0, hashKey(49), 8), []int{0})
		c.update(set(0, 1, 2, 3))
		c.health(true, 1, 2, 3)
		c.group.UpdateLoads()
		equal(t, "all are well", c.picks(0, hashKey(0), 8), []int{0, 1, 2, 3})

		// Healthy ones of a lower priority come before degraded ones.
		c.settle(lbcore.MustSet(with(ep(0), degraded), ep(1), with(ep(10), both), with(ep(11), low)))
		equal(t, "by priorities", c.picks(0, hashKey(0), 8), []int{1, 11, 0, 10})
	})
}

// An endpoint that is always ready is found, whatever it is besides.
func TestFoundWhileItsStandingChanges(t *testing.T) {
	for _, spread := range []lbcore.Spread{{}, {PanicThreshold: 50}, {LocalityWeighted: true}} {
		for _, b := range []lbcore.Builder{order{}, roundrobin.Config{}, random.Config{}} {
			c := (&cluster{builders: []lbcore.Builder{b}, spread: spread}).probed().start(t)
			other := func(status lbcore.Status) lbcore.Set {
				eps := []lbcore.Endpoint{in(0, "a", 1), with(in(1, "b", 2), func(e *lbcore.Endpoint) { e.Status = status })}
				for i := 2; i < 50; i++ {
					eps = append(eps, with(in(i, fmt.Sprint(i%3), 3), func(e *lbcore.Endpoint) { e.Priority = 1 }))
				}
				return lbcore.MustSet(eps...)
			}
			c.settle(other(lbcore.StatusHealthy))
			c.health(false, 0)
			for i := 2; i < 50; i++ {
				c.health(false, i)
			}
			c.group.UpdateLoads()
			var pickers sync.WaitGroup
			var running atomic.Int64
			running.Store(2)
			for range 2 {
				pickers.Go(func() {
					defer running.Add(-1)
					r := c.gate.NewReader("r")
					defer r.Close()
					for _, k := range keys(2000) {
						r.Pin()
						p := c.slot(0).Pick(r, k, 3)
						r.Unpin()
						if p.Len() == 0 {
							t.Errorf("%T, %+v: found none", b, spread)
						}
					}
				})
			}
			for i := 0; running.Load() > 0; i++ {
				c.update(other([]lbcore.Status{lbcore.StatusDegraded, lbcore.StatusHealthy}[i%2]))
				c.health(i%4 < 2, 0)
				c.group.UpdateLoads()
			}
			pickers.Wait()
		}
	}
}

// Nothing of what decides a pick allocates.
func TestSpreadPicksAllocateNothing(t *testing.T) {
	c := &cluster{builders: []lbcore.Builder{roundrobin.Config{}, random.Config{}, ringhash.Config{}}, balance: 125,
		spread: lbcore.Spread{PanicThreshold: 50, LocalityWeighted: true, PreferLocal: true, Local: lbcore.Locality{Region: "r", Zone: "1"}}}
	c.config.SlowStart = lbcore.SlowStart{Window: 1 << 40}
	c.probed().start(t)
	var eps []lbcore.Endpoint
	for i := range 300 {
		eps = append(eps, with(in(i, fmt.Sprint(i%10), uint32(i%10)), func(e *lbcore.Endpoint) {
			e.Priority, e.Weight, e.Status = uint8(i%3), uint32(i%4), []lbcore.Status{0, 0, 0, 0, lbcore.StatusDegraded}[i%5]
		}))
	}
	c.settle(lbcore.MustSet(eps...))
	c.view.Warm(time.Now())
	r := c.gate.NewReader("r")
	for down := range 4 {
		for i := range 300 {
			c.health(i%4 >= down || down == 3 && i == 7, i)
		}
		c.group.UpdateLoads()
		c.view.Warm(time.Now())
		k := hashKey(1)
		if a := testing.AllocsPerRun(100, func() {
			k.Hash = lbcore.Mix(k.Hash)
			r.Pin()
			for i := range 3 {
				p := c.slot(i).Pick(r, k, 3)
				for m := p.Next(); m != nil; m = p.Next() {
					m.StartDial()
				}
			}
			r.Unpin()
		}); a != 0 {
			t.Errorf("%d of 4 down: %v allocations", down, a)
		}
	}
}

// A hundred thousand endpoints, each in a locality of its own and with the
// largest weights.
func TestAsManyLocalitiesAsEndpoints(t *testing.T) {
	const n = 100_000
	c := (&cluster{builders: []lbcore.Builder{roundrobin.Config{}}, spread: lbcore.Spread{LocalityWeighted: true, PanicThreshold: 50}}).start(t)
	eps := make([]lbcore.Endpoint, n)
	for i := range eps {
		eps[i] = in(i, fmt.Sprint(i), 1<<32-1)
		eps[i].Weight = 1<<32 - 1
		if i%2 == 0 {
			eps[i].Status = lbcore.StatusUnhealthy
		}
	}
	c.settle(lbcore.MustSet(eps...).WithPolicy(lbcore.SetPolicy{WeightedHealth: true, Overprovisioning: 1<<32 - 1}))
	c.group.UpdateLoads()
	if loads := c.slot(0).Loads(); len(loads) != 1 || loads[0] != (lbcore.TierLoad{Endpoints: n, Healthy: 100}) {
		t.Fatalf("loads are %v", loads)
	}
	low, r := 0, c.gate.NewReader("r")
	if a := testing.AllocsPerRun(1, func() {
		for range 2000 {
			r.Pin()
			p := c.slot(0).Pick(r, lbcore.Key{}, 3)
			r.Unpin()
			m := p.Next()
			if p.Len() != 3 || m == nil || num(m)%2 == 0 {
				t.Fatal("picked who is not ready, or too few")
			}
			if num(m) < n/2 {
				low++
			}
		}
	}); a != 0 {
		t.Errorf("%v allocations", a)
	}
	near(t, "of the lower half", float64(low), 2000, 200)
	// Another generation keeps every cursor.
	eps[0].Weight = 1
	c.settle(lbcore.MustSet(eps...))
}

func TestManual(t *testing.T) {
	said := map[lbcore.Addr]bool{addr(1): false, addr(2): true, addr(9): false}
	v := lbcore.NewView("c", new(lbcore.Hosts), lbcore.ViewConfig{Manual: said})
	clear(said) // the View has a copy
	snap, _ := v.Update(lbcore.MustSet(ep(1), ep(2), with(ep(3), func(e *lbcore.Endpoint) { e.Enabled = lbcore.OverrideEnable })))
	if m := snap.Member(0); !m.Disabled() || snap.Member(1).Disabled() {
		t.Error("what the operator said before a restart is not in force")
	}
	m := v.Manual()
	if len(m) != 3 || m[addr(1)] || !m[addr(2)] {
		t.Errorf("manual is %v", m)
	}
	m[addr(2)] = false
	if !v.Manual()[addr(2)] {
		t.Error("Manual doesn't return a copy")
	}
	// An override wins, and what was said of one who comes later waits for it.
	snap, _ = v.Update(lbcore.MustSet(with(ep(1), func(e *lbcore.Endpoint) { e.Enabled = lbcore.OverrideEnable }), ep(9)))
	if snap.Member(0).Disabled() || !snap.Member(1).Disabled() {
		t.Error("an override doesn't win, or a latecomer is enabled")
	}
	if err := v.SetEnabled(addr(9), true); err != nil || len(v.Manual()) != 2 || !v.Manual()[addr(9)] {
		t.Errorf("manual is %v, %v", v.Manual(), err)
	}
	// What is foretold is in force for who is there, and for who comes.
	v.Foretell(addr(9), false)
	v.Foretell(addr(8), false)
	if !snap.Member(1).Disabled() {
		t.Error("what is foretold of an endpoint that is there is not in force")
	}
	if snap, _ = v.Update(lbcore.MustSet(ep(8), ep(9))); !snap.Member(0).Disabled() || !snap.Member(1).Disabled() {
		t.Error("what was foretold is not in force")
	}
}

// The operator's word reaches an endpoint that has left and is still served.
func TestOperatorReachesWhoIsStillServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		c := start(t, &lab{build: block(2, release)})
		c.settle(set(1, 2))
		c.update(set(3)) // waits
		synctest.Wait()
		equal(t, "both have left", c.seen(0), []int{1, 2})
		if err := c.view.SetEnabled(addr(1), false); err != nil {
			t.Fatal(err)
		}
		equal(t, "one is disabled", c.seen(0), []int{2})
		close(release)
		c.wait(2)
		c.view.Sweep(c.group.Served())
		if err := c.view.SetEnabled(addr(1), true); err == nil {
			t.Error("an address that is forgotten")
		}
		c.settle(set(1, 3))
		equal(t, "the word outlives the absence", c.seen(0), []int{3})
	})
}

// Rounds of round robin go on over a rebuild in each locality.
func TestCursorsOfLocalitiesSurvive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		zero := roundrobin.Config{Start: func() uint64 { return 0 }}
		c := (&cluster{builders: []lbcore.Builder{zero}, spread: lbcore.Spread{LocalityWeighted: true}}).start(t)
		eps := []lbcore.Endpoint{in(0, "a", 1), in(1, "a", 1), in(2, "a", 1), in(10, "b", 1), in(11, "b", 1)}
		c.settle(lbcore.MustSet(eps...))
		next := map[int]int{}
		for i := range uint64(40) {
			if i == 20 {
				eps[0].HashKey = "x" // another generation
				c.settle(lbcore.MustSet(eps...))
			}
			p := c.slot(0).PickHash(lbcore.Mix(i), 1)
			x := num(p.Next())
			if zone, n := x/10, []int{3, 2}[x/10]; x%10 != next[zone]%n {
				t.Fatalf("pick %d: zone %d gave %d, want turn %d", i, zone, x, next[zone])
			}
			next[x/10]++
		}
		if next[0] < 10 || next[0] > 30 {
			t.Errorf("zone a had %d turns of 40", next[0])
		}
	})
}
