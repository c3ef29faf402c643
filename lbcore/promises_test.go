package lbcore_test

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"gatehouse.internal/lbcore"
	"gatehouse.internal/lbcore/leastweight"
	"gatehouse.internal/lbcore/ringhash"
	"gatehouse.internal/lbcore/roundrobin"
)

// The promises of the machine, one test each. The fourth, that the last
// membership is served in the end, is TestPromiseTheLastMembershipIsServed.

func TestPromiseUpdatesNeverBlockRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		held := &lab{build: block(2, release)}
		c := start(t, held, order{})
		c.settle(set(1, 2, 3))
		before := time.Now()
		// The clock of the bubble stands still while anything runs; it moves on
		// if one of these waits for the blocked build.
		for i := range 200 {
			c.update(span(10, 10+i))
			synctest.Wait()
			if got := c.picks(0, hashKey(uint64(i)), 3); len(got) != 3 || slices.Max(got) > 3 {
				t.Fatalf("during a build: picked %v", got)
			}
			if p := c.pick(0, lbcore.Key{}, 1); p.Generation() != 1 {
				t.Fatalf("during a build: generation %d", p.Generation())
			}
		}
		if d := time.Since(before); d != 0 {
			t.Errorf("updates and picks waited for %v", d)
		}
		// The slot beside it queues for the same lane and answers as well.
		if p := c.pick(1, lbcore.Key{}, 1); p.Len() != 1 {
			t.Error("a slot whose build waits for the gate gives none")
		}
		if held.builds.now.Load() != 1 {
			t.Fatal("no build was blocked")
		}
		close(release)
		c.wait(201)
		if p := c.pick(0, lbcore.Key{}, 1); p.Generation() != 201 || num(p.Next()) < 10 {
			t.Errorf("in the end: generation %d", p.Generation())
		}
		if st := c.stats()[0]; st.Rebuilds != 3 || st.Coalesced != 198 {
			t.Errorf("%d rebuilds, %d coalesced", st.Rebuilds, st.Coalesced)
		}
	})
}

func TestPromiseHealthFlipIsObeyedByTheNextPick(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		labs := []*lab{
			{inner: ringhash.Config{}, words: largeWords}, // blocked: in a lane of its own
			{inner: ringhash.Config{}},
			{inner: roundrobin.Config{}},
			{inner: leastweight.Config{}},
		}
		c := &cluster{}
		for _, l := range labs {
			c.builders = append(c.builders, l)
		}
		c.probed().start(t)
		c.settle(set(1, 2, 3))
		// One slot stays at generation 1, the others go to 2.
		labs[0].build = block(2, release)
		weighted := lbcore.MustSet(ep(1), ep(2), ep(3), with(ep(4), func(e *lbcore.Endpoint) { e.Weight = 2 }))
		c.update(weighted)
		synctest.Wait()
		all := [][]int{{1, 2, 3}, {1, 2, 3, 4}, {1, 2, 3, 4}, {1, 2, 3, 4}}
		generations := []uint64{1, 2, 2, 2}

		was := c.stats()
		expect := func(what string, without int) {
			t.Helper()
			for i := range labs {
				if p := c.pick(i, lbcore.Key{}, 1); p.Generation() != generations[i] {
					t.Fatalf("%s: slot %d serves generation %d", what, i, p.Generation())
				}
				want := slices.DeleteFunc(slices.Clone(all[i]), func(e int) bool { return e == without })
				equal(t, what, c.seen(i), want)
			}
		}
		expect("at first", 0)
		change := func(f func(*lbcore.Endpoint)) func() {
			return func() {
				eps := make([]lbcore.Endpoint, 0, weighted.Len())
				for _, e := range weighted.All() {
					if e.Addr == addr(2) {
						f(&e)
					}
					eps = append(eps, e)
				}
				if c.update(lbcore.MustSet(eps...)).Generation != 2 {
					t.Fatal("a flip made a new generation")
				}
			}
		}
		back := change(func(*lbcore.Endpoint) {})
		for _, flip := range []struct {
			what     string
			down, up func()
		}{
			{"probe", func() { c.probes[addr(2)].Store(lbcore.HealthUnhealthy) },
				func() { c.probes[addr(2)].Store(lbcore.HealthHealthy) }},
			{"operator", func() { c.view.SetEnabled(addr(2), false) }, func() { c.view.SetEnabled(addr(2), true) }},
			{"discovery's status", change(func(e *lbcore.Endpoint) { e.Status = lbcore.StatusDraining }), back},
			{"discovery's override", change(func(e *lbcore.Endpoint) { e.Enabled = lbcore.OverrideDisable }), back},
			{"outlier detection", func() { c.member(2).SetEjected(true) }, func() { c.member(2).SetEjected(false) }},
		} {
			flip.down()
			expect(flip.what+" down", 2)
			flip.up()
			expect(flip.what+" up", 0)
		}

		// Nothing was rebuilt, and nothing wants to be.
		synctest.Wait()
		for i, st := range c.stats() {
			if st != was[i] {
				t.Errorf("slot %d: %+v, was %+v", i, st, was[i])
			}
			if _, pending := c.slot(i).Pending(); pending || labs[i].builds.sum.Load() != 2 {
				t.Errorf("slot %d: pending %v, %d builds", i, pending, labs[i].builds.sum.Load())
			}
		}
		close(release)
		c.wait(2)
	})
}

func TestPromiseWithdrawnIsPassedOver(t *testing.T) {
	for _, policy := range policies {
		if policy.name == tinyRing {
			continue // the two who own its points get everything
		}
		t.Run(policy.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				release := make(chan struct{})
				c := (&cluster{builders: []lbcore.Builder{&lab{inner: policy.b, build: block(2, release)}}}).probed().start(t)
				c.settle(set(1, 2, 3, 4))
				c.update(set(3, 4, 5))
				synctest.Wait()
				equal(t, "two have left", c.seen(0), []int{3, 4})
				c.probes[addr(3)].Store(lbcore.HealthUnhealthy)
				equal(t, "and one is down", c.seen(0), []int{4})

				// Nobody else is ready: those who have left are better than
				// nothing, those who are down are not.
				c.probes[addr(4)].Store(lbcore.HealthUnhealthy)
				equal(t, "all that stay are down", c.seen(0), []int{1, 2})
				c.probes[addr(1)].Store(lbcore.HealthUnhealthy)
				equal(t, "and one that left", c.seen(0), []int{2})
				if err := c.view.SetEnabled(addr(2), false); err != nil {
					t.Error(err)
				}
				equal(t, "and the operator disabled the other", c.seen(0), nil)
				c.view.SetEnabled(addr(2), true)
				c.probes[addr(1)].Store(lbcore.HealthHealthy)

				// A disjoint membership: the old selector answers until the new
				// one is there, and an endpoint that returns is in at once.
				c.update(set(6, 7))
				c.probes[addr(4)].Store(lbcore.HealthHealthy)
				equal(t, "all have left", c.seen(0), []int{1, 2, 4})
				c.update(set(1, 7))
				equal(t, "one is back", c.seen(0), []int{1})
				if p := c.pick(0, lbcore.Key{}, 1); p.Generation() != 1 {
					t.Errorf("generation %d", p.Generation())
				}
				close(release)
				c.wait(4)
				equal(t, "in the end", c.seen(0), []int{1, 7})
				if c.view.Sweep(c.group.Served()) || c.hosts.Len() != 2 {
					t.Errorf("%d hosts are left", c.hosts.Len())
				}
			})
		})
	}
}

// While all that an old selector knows have left, each of them gets its share.
func TestWithdrawnShareTheLoad(t *testing.T) {
	for n := 1; n <= 4; n++ {
		synctest.Test(t, func(t *testing.T) {
			release := make(chan struct{})
			defer close(release)
			c := start(t, &lab{inner: roundrobin.Config{Start: func() uint64 { return 0 }}, build: block(2, release)})
			c.settle(span(0, n))
			c.update(set(100))
			synctest.Wait()
			counts := make([]int, n)
			for range 12 * n {
				p := c.pick(0, lbcore.Key{}, 1)
				counts[num(p.Next())]++
			}
			for i, got := range counts {
				if got != 12 {
					t.Errorf("of %d withdrawn, endpoint %d got %d picks, want 12", n, i, got)
				}
			}
		})
	}
}
