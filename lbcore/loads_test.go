package lbcore_test

import (
	"slices"
	"testing"
	"testing/synctest"

	"pgregory.net/rapid"

	"gatehouse.internal/lbcore"
	"gatehouse.internal/lbcore/roundrobin"
)

type h = lbcore.PriorityHealth

type priorityVector struct {
	prios          []h
	of, threshold  uint64
	load, degraded []uint32
	panics         []bool
}

// priorityVectors are Envoy's published vectors, by total, healthy, degraded,
// excluded; then computed ones for a hundred hosts a priority, and those of
// weighted health.
func priorityVectors() []priorityVector {
	const y, n = true, false
	hundred := func(healthy ...uint64) (ps []h) {
		for _, x := range healthy {
			ps = append(ps, h{100, x, 0, 0})
		}
		return ps
	}
	return []priorityVector{
		{[]h{{4, 2, 0, 0}, {4, 2, 0, 0}}, 140, 50, []uint32{70, 30}, []uint32{0, 0}, []bool{n, n}},
		{[]h{{4, 2, 0, 0}, {4, 2, 0, 0}}, 100, 50, []uint32{50, 50}, []uint32{0, 0}, []bool{n, n}},
		{[]h{{1, 1, 0, 0}, {1, 1, 0, 0}}, 140, 50, []uint32{100, 0}, []uint32{0, 0}, []bool{n, n}},
		{[]h{{4, 1, 0, 0}, {2, 2, 0, 0}}, 140, 50, []uint32{35, 65}, []uint32{0, 0}, []bool{n, n}},
		{[]h{{4, 1, 0, 0}, {4, 1, 0, 0}}, 140, 50, []uint32{50, 50}, []uint32{0, 0}, []bool{y, y}},
		{[]h{{4, 1, 0, 3}, {5, 1, 0, 0}}, 140, 50, []uint32{100, 0}, []uint32{0, 0}, []bool{n, n}},
		{[]h{{4, 0, 0, 4}, {4, 1, 0, 0}}, 140, 50, []uint32{50, 50}, []uint32{0, 0}, []bool{y, y}},
		{[]h{{4, 0, 0, 1}, {6, 1, 0, 2}}, 140, 50, []uint32{40, 60}, []uint32{0, 0}, []bool{y, y}},
		{[]h{{2, 1, 0, 0}, {2, 1, 0, 0}, {2, 1, 0, 0}}, 140, 50, []uint32{70, 30, 0}, []uint32{0, 0, 0}, []bool{n, n, n}},
		{[]h{{4, 1, 0, 0}, {4, 1, 0, 0}, {4, 1, 0, 0}}, 140, 50, []uint32{35, 35, 30}, []uint32{0, 0, 0}, []bool{n, n, n}},
		{[]h{{5, 1, 0, 0}, {5, 1, 0, 0}, {5, 1, 0, 0}}, 140, 50, []uint32{34, 33, 33}, []uint32{0, 0, 0}, []bool{y, y, y}},
		{[]h{{5, 0, 0, 0}, {5, 0, 0, 0}, {5, 5, 0, 0}}, 140, 50, []uint32{0, 0, 100}, []uint32{0, 0, 0}, []bool{n, n, n}},
		{[]h{{5, 0, 0, 0}, {5, 0, 0, 0}, {5, 4, 0, 0}}, 140, 50, []uint32{0, 0, 100}, []uint32{0, 0, 0}, []bool{n, n, n}},
		{[]h{{5, 0, 0, 0}, {5, 0, 0, 0}, {5, 2, 0, 0}}, 140, 50, []uint32{34, 33, 33}, []uint32{0, 0, 0}, []bool{y, y, y}},
		{[]h{{5, 0, 5, 0}, {5, 2, 2, 0}, {5, 2, 0, 0}}, 140, 50, []uint32{0, 56, 44}, []uint32{0, 0, 0}, []bool{n, n, n}},
		{[]h{{5, 0, 0, 0}, {3, 0, 0, 0}, {2, 0, 0, 0}}, 140, 50, []uint32{50, 30, 20}, []uint32{0, 0, 0}, []bool{y, y, y}},
		{[]h{{5, 0, 0, 0}, {6, 2, 0, 0}, {3, 1, 0, 0}}, 140, 50, []uint32{37, 42, 21}, []uint32{0, 0, 0}, []bool{y, y, y}},
		{[]h{{5, 0, 1, 0}, {5, 0, 5, 0}, {5, 1, 0, 0}}, 140, 50, []uint32{0, 0, 28}, []uint32{28, 44, 0}, []bool{n, n, n}},
		{[]h{{5, 0, 0, 0}, {5, 0, 2, 0}, {5, 0, 1, 0}}, 140, 0, []uint32{0, 0, 0}, []uint32{0, 67, 33}, []bool{n, n, n}},
		{[]h{{5, 0, 0, 0}, {5, 0, 2, 0}, {5, 0, 1, 0}}, 140, 50, []uint32{34, 33, 33}, []uint32{0, 0, 0}, []bool{y, y, y}},
		{[]h{{3, 0, 0, 0}, {3, 0, 0, 0}, {3, 0, 0, 0}}, 140, 50, []uint32{34, 33, 33}, []uint32{0, 0, 0}, []bool{y, y, y}},
		{[]h{{0, 0, 0, 0}, {6, 0, 0, 0}, {3, 0, 0, 0}}, 140, 50, []uint32{0, 67, 33}, []uint32{0, 0, 0}, []bool{y, y, y}},

		{hundred(72, 100), 140, 50, []uint32{100, 0}, []uint32{0, 0}, []bool{n, n}},
		{hundred(71, 100), 140, 50, []uint32{99, 1}, []uint32{0, 0}, []bool{n, n}},
		{hundred(50, 100), 140, 50, []uint32{70, 30}, []uint32{0, 0}, []bool{n, n}},
		{hundred(25, 100), 140, 50, []uint32{35, 65}, []uint32{0, 0}, []bool{n, n}},
		{hundred(0, 100), 140, 50, []uint32{0, 100}, []uint32{0, 0}, []bool{n, n}},
		{hundred(25, 25), 140, 50, []uint32{50, 50}, []uint32{0, 0}, []bool{y, y}},
		{hundred(50, 60), 140, 50, []uint32{70, 30}, []uint32{0, 0}, []bool{n, n}},
		{hundred(5, 65), 140, 50, []uint32{8, 92}, []uint32{0, 0}, []bool{y, n}},
		{hundred(25, 25, 100), 140, 50, []uint32{35, 35, 30}, []uint32{0, 0, 0}, []bool{n, n, n}},
		{hundred(25, 25, 20), 140, 50, []uint32{34, 33, 33}, []uint32{0, 0, 0}, []bool{y, y, y}},
		{hundred(25, 25, 20), 140, 0, []uint32{37, 35, 28}, []uint32{0, 0, 0}, []bool{n, n, n}},
		{[]h{{100, 10, 20, 0}, {100, 20, 10, 0}, {100, 10, 0, 0}}, 140, 50, []uint32{34, 33, 33}, []uint32{0, 0, 0}, []bool{y, y, y}},
		{[]h{{100, 10, 20, 0}, {100, 20, 10, 0}, {100, 10, 0, 0}}, 140, 0, []uint32{16, 28, 14}, []uint32{28, 14, 0}, []bool{n, n, n}},
		{[]h{{100, 71, 29, 0}}, 140, 50, []uint32{99}, []uint32{1}, []bool{n}},

		{[]h{{10, 6, 0, 0}, {1, 1, 0, 0}}, 100, 50, []uint32{60, 40}, []uint32{0, 0}, []bool{n, n}},
		{[]h{{20, 4, 0, 10}, {1, 1, 0, 0}}, 100, 50, []uint32{40, 60}, []uint32{0, 0}, []bool{n, n}},
		{[]h{{10, 4, 3, 0}, {10, 1, 9, 0}}, 100, 50, []uint32{40, 10}, []uint32{30, 20}, []bool{n, n}},

		// Threshold 0 and nothing available: all to the first. Nothing at all.
		{[]h{{5, 0, 0, 0}, {5, 0, 0, 0}}, 140, 0, []uint32{100, 0}, []uint32{0, 0}, []bool{n, n}},
		{[]h{{0, 0, 0, 0}, {0, 0, 0, 0}}, 140, 50, []uint32{100, 0}, []uint32{0, 0}, []bool{y, y}},
		{nil, 140, 50, nil, nil, nil},
	}
}

func TestPriorityLoads(t *testing.T) {
	for _, c := range priorityVectors() {
		got := lbcore.PriorityLoads(c.prios, c.of, c.threshold)
		if !slices.Equal(got.Healthy, c.load) || !slices.Equal(got.Degraded, c.degraded) || !slices.Equal(got.Panic, c.panics) {
			t.Errorf("%v, factor %d, threshold %d: got %v, want %v %v %v", c.prios, c.of, c.threshold, got, c.load, c.degraded, c.panics)
		}
	}
}

func TestPriorityLoadsLaws(t *testing.T) {
	prio := rapid.Custom(func(t *rapid.T) h {
		total := rapid.Uint64Range(0, 1<<40).Draw(t, "total")
		excluded := rapid.Uint64Range(0, total).Draw(t, "excluded")
		healthy := rapid.Uint64Range(0, total-excluded).Draw(t, "healthy")
		return h{total, healthy, rapid.Uint64Range(0, total-excluded-healthy).Draw(t, "degraded"), excluded}
	})
	rapid.Check(t, func(t *rapid.T) {
		prios := rapid.SliceOfN(prio, 1, 6).Draw(t, "prios")
		threshold := rapid.Uint64Range(0, 100).Draw(t, "threshold")
		factor := rapid.Uint64Range(100, 200).Draw(t, "factor")
		l := lbcore.PriorityLoads(prios, factor, threshold)
		sum, total := uint32(0), true
		for i, p := range l.Panic {
			sum += l.Healthy[i] + l.Degraded[i]
			total = total && p
			if p && threshold == 0 {
				t.Fatalf("panic without a threshold: %v", l)
			}
		}
		if sum != 100 {
			t.Fatalf("the sum of %v is %d", l, sum)
		}
		if total {
			return
		}
		available := false // by a percent at least
		for _, p := range prios {
			c := max(1, p.Total-p.Excluded)
			available = available || factor*p.Healthy/c+factor*p.Degraded/c > 0
		}
		for i, p := range prios {
			if available && (l.Healthy[i] > 0 && p.Healthy == 0 || l.Degraded[i] > 0 && p.Degraded == 0) {
				t.Fatalf("load for nobody: %v of %v", l, prios)
			}
		}
	})
}

// tiered is a cluster with sizes[p] endpoints of priority prios[p], numbered
// from 10*p, that run order.
func tiered(t *testing.T, prios []uint8, sizes ...int) *cluster {
	c := (&cluster{builders: []lbcore.Builder{order{}}}).probed().start(t)
	var eps []lbcore.Endpoint
	for p, n := range sizes {
		for i := range n {
			eps = append(eps, with(ep(10*p+i), func(e *lbcore.Endpoint) { e.Priority = prios[p] }))
		}
	}
	c.settle(lbcore.MustSet(eps...))
	return c
}

func (c *cluster) health(up bool, is ...int) {
	for _, i := range is {
		v := lbcore.HealthUnhealthy
		if up {
			v = lbcore.HealthHealthy
		}
		c.probes[addr(i)].Store(v)
	}
}

// shares returns how many of a hundred hashes go to each priority.
func (c *cluster) shares(n int) []int {
	counts := make([]int, n)
	for hash := range uint64(100) {
		if is := c.picks(0, hashKey(hash), 1); len(is) > 0 {
			counts[is[0]/10]++
		}
	}
	return counts
}

func TestPicksFollowPriorityLoads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := tiered(t, []uint8{0, 1, 7}, 4, 2, 3)
		builds := c.stats()[0].Rebuilds
		equal(t, "all healthy", c.shares(3), []int{100, 0, 0})

		// The table is as it was until the owner says so; picks find the ready
		// ones of their priority meanwhile.
		c.health(false, 0, 1, 2)
		equal(t, "before UpdateLoads", c.shares(3), []int{100, 0, 0})
		c.group.UpdateLoads()
		equal(t, "1 of 4", c.shares(3), []int{35, 65, 0})
		c.health(false, 10)
		c.group.UpdateLoads()
		equal(t, "1 of 4, 1 of 2", c.shares(3), []int{35, 65, 0})
		c.health(true, 1, 10)
		c.health(false, 11)
		c.group.UpdateLoads()
		equal(t, "2 of 4, 1 of 2", c.shares(3), []int{70, 30, 0})
		c.health(false, 10)
		c.group.UpdateLoads()
		equal(t, "2 of 4, none, 3 of 3", c.shares(3), []int{70, 0, 30})

		// Whole priorities fail: the others take over at once, the table later.
		c.health(false, 1, 3)
		equal(t, "before UpdateLoads", c.shares(3), []int{0, 0, 100})
		c.group.UpdateLoads()
		equal(t, "only the last", c.shares(3), []int{0, 0, 100})
		c.health(false, 20, 21, 22)
		equal(t, "none, before UpdateLoads", c.shares(3), []int{0, 0, 0})
		c.group.UpdateLoads()
		equal(t, "none", c.shares(3), []int{0, 0, 0})
		c.health(true, 11)
		equal(t, "one, before UpdateLoads", c.shares(3), []int{0, 100, 0})
		c.group.UpdateLoads()
		equal(t, "one", c.shares(3), []int{0, 100, 0})
		c.health(true, 0, 1, 2, 3)
		equal(t, "recovered, before UpdateLoads", c.shares(3), []int{0, 100, 0})
		c.group.UpdateLoads()
		equal(t, "recovered", c.shares(3), []int{100, 0, 0})
		if c.stats()[0].Rebuilds != builds {
			t.Error("health made a rebuild")
		}
	})
}

// A selection goes on to the other priorities, highest first.
func TestPicksGoOnToLowerPriorities(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := tiered(t, []uint8{0, 1, 2}, 2, 2, 2)
		equal(t, "all", c.picks(0, hashKey(0), 8), []int{0, 1, 10, 11, 20, 21})
		c.health(false, 1, 10)
		c.group.UpdateLoads() // 70, 30
		equal(t, "by the first", c.picks(0, hashKey(68), 8), []int{0, 11, 20, 21})
		equal(t, "by the second", c.picks(0, hashKey(70), 8), []int{11, 0, 20, 21})
		equal(t, "two", c.picks(0, hashKey(70), 2), []int{11, 0})

		// One that fails between pick and dial is left out.
		p := c.pick(0, hashKey(0), 3)
		c.health(false, 0)
		equal(t, "what is left", nums(&p), []int{11, 20})
	})
}

// keyed makes a policy one in which the key chooses the priority.
type keyed struct{ lbcore.Builder }

func (keyed) Keyed() bool { return true }

// Retries and other priorities don't take turns away.
func TestPrioritiesDrawOneTicketEach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		zero := roundrobin.Config{Start: func() uint64 { return 0 }}
		c := (&cluster{builders: []lbcore.Builder{keyed{zero}}}).probed().start(t)
		var eps []lbcore.Endpoint
		for i := range 5 {
			eps = append(eps, ep(i), with(ep(10+i), func(e *lbcore.Endpoint) { e.Priority = 1 }))
		}
		c.settle(lbcore.MustSet(eps...))
		var first []int
		for range 10 {
			first = append(first, c.picks(0, hashKey(0), 8)[0])
		}
		equal(t, "picked first", first, []int{0, 1, 2, 3, 4, 0, 1, 2, 3, 4})
		c.health(false, 1, 2, 3, 4)
		c.group.UpdateLoads()
		c.picks(0, hashKey(0), 1)
		c.health(false, 0)
		first = nil
		for range 5 {
			first = append(first, c.picks(0, hashKey(0), 1)[0])
		}
		equal(t, "picked first of the second", first, []int{10, 11, 12, 13, 14})
	})
}

// A withdrawn endpoint of a high priority is not better than a ready one of a
// low priority.
func TestWithdrawnIsNotPreferredToALowerPriority(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		defer close(release)
		c := tiered(t, []uint8{0, 1}, 2, 2)
		held := (&cluster{gate: c.gate, builders: []lbcore.Builder{&lab{build: block(1, release)}}}).start(t)
		held.update(set(1)) // takes the lane
		synctest.Wait()
		c.update(lbcore.MustSet(with(ep(11), func(e *lbcore.Endpoint) { e.Priority = 1 })))
		equal(t, "picked", c.seen(0), []int{11})
		c.health(false, 11)
		equal(t, "picked", c.seen(0), []int{0, 1})
	})
}

// A priority whose endpoints all have weight 0 is none.
func TestInputs(t *testing.T) {
	v := lbcore.NewView("c", new(lbcore.Hosts), lbcore.ViewConfig{})
	at := func(i int, weight uint32, prio uint8) lbcore.Endpoint {
		return lbcore.Endpoint{Addr: addr(i), Weight: weight, Priority: prio}
	}
	snap, _ := v.Update(lbcore.MustSet(at(0, 1, 4), at(1, 0, 0), at(2, 3, 4), at(3, 0, 4), at(4, 7, lbcore.MaxPriority)))
	ins := lbcore.Inputs(snap)
	if len(ins) != 2 {
		t.Fatalf("%d priorities", len(ins))
	}
	for i, want := range []struct {
		members []int
		shares  []float64
		equal   bool
	}{{[]int{0, 2}, []float64{0.25, 0.75}, false}, {[]int{4}, []float64{1}, true}} {
		in := ins[i]
		var got []int
		for k, m := range in.Members {
			got = append(got, num(m))
			if in.Endpoints[k].Addr != m.Addr() {
				t.Errorf("endpoint %d is %v, the member %v", k, in.Endpoints[k].Addr, m.Addr())
			}
		}
		equal(t, "members", got, want.members)
		equal(t, "shares", in.Shares, want.shares)
		if in.Equal() != want.equal || in.Prev != nil {
			t.Errorf("priority %d: equal is %v, prev %v", i, in.Equal(), in.Prev)
		}
	}
}
