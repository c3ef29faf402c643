package lbcore_test

import (
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"gatehouse.internal/lbcore"
)

func TestSmallBuildsNeverWaitForReaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t, &lab{words: largeWords - 1}) // one word too small
		large := (&cluster{gate: c.gate, builders: []lbcore.Builder{&lab{words: largeWords}}}).start(t)
		r := c.gate.Pin()
		defer r.Unpin()
		before := time.Now()
		large.settle(set(1))
		large.settle(set(2)) // replaces one: the next must wait
		large.update(set(3))
		for i := range 10 {
			c.settle(span(0, i+1))
		}
		if d := time.Since(before); d != 0 {
			t.Errorf("small builds waited for %v", d)
		}
		if g := large.group.Served(); g != 2 {
			t.Errorf("the large one serves generation %d", g)
		}
		if c.gate.Retired() != 1 {
			t.Errorf("%d retired: small ones are registered too", c.gate.Retired())
		}
	})
}

func TestLargeBuildWaitsForReaders(t *testing.T) {
	for _, named := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			l := &lab{words: largeWords}
			c := start(t, l)
			other := (&cluster{gate: c.gate, builders: []lbcore.Builder{&lab{words: largeWords}}}).start(t)
			pin := c.gate.Pin
			if named {
				pin = func() *lbcore.Reader { r := c.gate.NewReader("loop"); r.Pin(); return r }
			}
			c.settle(set(1))
			r := pin()
			c.settle(set(2)) // nothing was retired before this one
			c.update(set(3))
			synctest.Wait()
			other.update(set(7)) // behind it in the lane
			synctest.Wait()
			late := pin() // can't see what was replaced
			if c.group.Served() != 2 || other.group.Served() != 0 || l.builds.sum.Load() != 2 {
				t.Fatalf("served %d and %d, %d builds", c.group.Served(), other.group.Served(), l.builds.sum.Load())
			}
			// The request is taken only now: it is the newest.
			c.update(set(4))
			before := time.Now()
			r.Unpin()
			c.wait(4)
			synctest.Wait()
			if st := c.stats()[0]; st.Rebuilds != 3 || st.Coalesced != 1 {
				t.Errorf("%+v", st)
			}
			// Another selector was replaced, and late reads since before that.
			if other.group.Served() != 0 {
				t.Error("the other group did not wait for the second reader")
			}
			late.Unpin()
			other.wait(1)
			if d := time.Since(before); d != 0 {
				t.Errorf("waited %v beyond Unpin", d)
			}
		})
	}
}

// A reader that pins and unpins again and again holds up nothing.
func TestRepinnedReaderIsNew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t, &lab{words: largeWords})
		r := c.gate.NewReader("loop")
		before := time.Now()
		for i := range 10 {
			r.Pin()
			c.settle(span(0, i+1))
			r.Unpin()
			r.Pin()
			if i > 0 {
				c.slot(0).Pick(r, lbcore.Key{}, 1)
			}
			r.Unpin()
		}
		if time.Since(before) != 0 {
			t.Error("waited")
		}
	})
}

// A large selector that a small one replaces is retired as well.
func TestSmallReplacesLarge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &lab{words: largeWords}
		c := start(t, l)
		other := (&cluster{gate: c.gate, builders: []lbcore.Builder{&lab{words: largeWords}}}).start(t)
		c.settle(set(1))
		r := c.gate.Pin()
		l.words = 0
		c.settle(set(2))
		other.update(set(1))
		synctest.Wait()
		if c.gate.Retired() != 1 || other.group.Served() != 0 {
			t.Errorf("%d retired, served %d", c.gate.Retired(), other.group.Served())
		}
		r.Unpin()
		other.wait(1)
		if c.gate.Retired() != 0 {
			t.Errorf("%d retired", c.gate.Retired())
		}
	})
}

func TestStuckReaderIsNamedAndPassed(t *testing.T) {
	for _, after := range []time.Duration{0, 3 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			var stuck record[lbcore.Stuck]
			gate := lbcore.NewGate(lbcore.GateConfig{
				StuckAfter: after,
				OnStuck:    stuck.add,
			})
			if after == 0 {
				after = 10 * time.Second
			}
			l := &lab{words: largeWords}
			c := (&cluster{name: "web", gate: gate, builders: []lbcore.Builder{l}}).start(t)
			idle, loop := gate.NewReader("idle"), gate.NewReader("loop 2")
			c.settle(set(1))
			loop.Pin()
			p := c.slot(0).Pick(loop, lbcore.Key{}, 1)
			anon := gate.Pin()
			c.settle(set(2))
			idle.Pin()
			c.update(set(3))
			began := time.Now()
			pass(after - 1)
			if c.group.Served() != 2 || gate.StuckSelectors() != 0 || len(stuck.all()) != 0 {
				t.Fatalf("after %v: served %d, %d stuck, told %v", time.Since(began), c.group.Served(), gate.StuckSelectors(), stuck.all())
			}
			pass(1)
			if c.group.Served() != 3 || gate.StuckSelectors() != 1 || len(stuck.all()) != 1 {
				t.Fatalf("after %v: served %d, %d stuck, told %v", time.Since(began), c.group.Served(), gate.StuckSelectors(), stuck.all())
			}
			if s := stuck.all()[0]; s.Slot != "web/a" || s.Bytes != 8*largeWords || !slices.Equal(s.Readers, []string{"goroutine", "loop 2"}) {
				t.Errorf("told of %+v", s)
			}
			// The reader's selector is still good.
			if m := p.Next(); m == nil && !c.member(1).Withdrawn() {
				t.Error("the pick is gone")
			}
			// The one that was replaced since is held by all three. One of them is
			// not known to be stuck, so it is waited for.
			anon.Unpin()
			c.update(set(4))
			synctest.Wait()
			if c.group.Served() != 3 {
				t.Error("the next build did not wait")
			}
			// The one that is, is not waited for again.
			idle.Unpin()
			synctest.Wait()
			if c.group.Served() != 4 || gate.StuckSelectors() != 2 || len(stuck.all()) != 2 {
				t.Errorf("served %d, %d stuck, told of %d", c.group.Served(), gate.StuckSelectors(), len(stuck.all()))
			}
			loop.Unpin()
			if n := gate.StuckSelectors(); n != 0 || len(stuck.all()) != 2 {
				t.Errorf("%d are stuck in the end, told of %d", n, len(stuck.all()))
			}
		})
	}
}

// Whoever asks for the number of stuck selectors is told the present one, also
// when no build looks after them any more.
func TestStuckSelectorsIsPresent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t, &lab{words: largeWords})
		c.settle(set(1))
		r := c.gate.Pin()
		c.settle(set(2))
		c.settle(set(3))
		if n := c.gate.StuckSelectors(); n != 1 {
			t.Fatalf("%d stuck", n)
		}
		r.Unpin()
		if n := c.gate.StuckSelectors(); n != 0 {
			t.Errorf("%d stuck though nobody reads", n)
		}
	})
}

func TestMaxStuck(t *testing.T) {
	for _, limit := range []int{0, 1, 2} {
		synctest.Test(t, func(t *testing.T) {
			var told record[lbcore.Stuck]
			gate := lbcore.NewGate(lbcore.GateConfig{StuckAfter: time.Second, MaxStuck: limit, OnStuck: told.add})
			if limit == 0 {
				limit = 4
			}
			c := (&cluster{gate: gate, builders: []lbcore.Builder{&lab{words: largeWords}}}).start(t)
			small := (&cluster{gate: gate, builders: []lbcore.Builder{order{}}}).start(t)
			r := gate.NewReader("stuck")
			c.settle(set(0))
			r.Pin()
			began := time.Now()
			for i := range 20 {
				c.update(span(1, i+1))
				pass(time.Second)
			}
			// The first build waits for nobody, each later one passes one.
			if g := c.group.Served(); g != uint64(2+limit) || gate.StuckSelectors() != limit || len(told.all()) != limit {
				t.Errorf("limit %d: served %d, %d stuck, told %d times", limit, g, gate.StuckSelectors(), len(told.all()))
			}
			pass(time.Hour)
			if g := c.group.Served(); g != uint64(2+limit) {
				t.Errorf("limit %d: after %v it serves %d", limit, time.Since(began), g)
			}
			small.settle(set(1)) // held up by nobody
			r.Unpin()
			c.wait(21)
			if gate.StuckSelectors() != 0 || gate.Retired() > 1 {
				t.Errorf("limit %d: %d stuck, %d retired", limit, gate.StuckSelectors(), gate.Retired())
			}
		})
	}
}

// When a stuck reader goes on, its place is free for another.
func TestStuckPlaceIsFreed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := lbcore.NewGate(lbcore.GateConfig{StuckAfter: time.Second, MaxStuck: 1})
		c := (&cluster{gate: gate, builders: []lbcore.Builder{&lab{words: largeWords}}}).start(t)
		first, second := gate.NewReader("first"), gate.NewReader("second")
		c.settle(set(1))
		first.Pin()
		c.settle(set(2))
		second.Pin() // holds what is replaced next, not what first holds
		c.settle(set(3))
		c.update(set(4))
		pass(10 * time.Second)
		if c.group.Served() != 3 || gate.StuckSelectors() != 1 {
			t.Fatalf("served %d, %d stuck", c.group.Served(), gate.StuckSelectors())
		}
		first.Unpin()
		pass(time.Second)
		if c.group.Served() != 4 || gate.StuckSelectors() != 1 {
			t.Errorf("served %d, %d stuck", c.group.Served(), gate.StuckSelectors())
		}
		second.Unpin()
	})
}

func TestReaderClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told record[lbcore.Stuck]
		gate := lbcore.NewGate(lbcore.GateConfig{OnStuck: told.add})
		c := (&cluster{gate: gate, builders: []lbcore.Builder{&lab{words: largeWords}}}).start(t)
		a, b, d := gate.NewReader("a"), gate.NewReader("b"), gate.NewReader("d")
		c.settle(set(1))
		for _, r := range []*lbcore.Reader{a, b, d} {
			r.Pin()
		}
		c.settle(set(2))
		b.Unpin()
		b.Close()
		b.Close()
		c.settle(set(3))
		equal(t, "stuck readers", told.all()[0].Readers, []string{"a", "d"})
		a.Unpin()
		d.Unpin()
	})
}

// Two groups share a gate. A reader of one's old selector stops both; of a
// group that ended while it waited, the retired selector stays registered.
func TestCancelledWaiterLeavesTheRetired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var all gauge
		c := start(t, &lab{words: largeWords, also: &all})
		other := (&cluster{gate: c.gate, builders: []lbcore.Builder{&lab{words: largeWords, also: &all}}}).start(t)
		other.settle(set(1))
		c.settle(set(1))
		r := c.gate.Pin()
		c.settle(set(2))
		c.update(set(3)) // holds the permit and waits for r
		synctest.Wait()
		other.update(set(2)) // waits for the permit
		synctest.Wait()
		before := time.Now()
		c.stop()
		if time.Since(before) != 0 {
			t.Error("stopping took a while")
		}
		if g, ok := c.slot(0).Pending(); !ok || g != 3 {
			t.Errorf("pending: %d, %v", g, ok)
		}
		pass(time.Second)
		if c.gate.Retired() != 1 || other.group.Served() != 1 {
			t.Errorf("%d retired, the other serves %d", c.gate.Retired(), other.group.Served())
		}
		r.Unpin()
		other.wait(2)
		if all.max.Load() != 1 || all.sum.Load() != 4 {
			t.Errorf("%d builds, %d at once", all.sum.Load(), all.max.Load())
		}
	})
}

// The lanes don't wait for each other, and each is first come, first served.
func TestLanes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		var order record[string]
		var all []*cluster
		gate := lbcore.NewGate(lbcore.GateConfig{SmallBuild: 100})
		for i, words := range []int{13, 13, 12, 12, 13, 12, 0} {
			name := string(rune('0' + i))
			c := &cluster{name: name, gate: gate}
			c.builders = []lbcore.Builder{&lab{words: words, build: func(int64, func() error) error {
				if i == 0 || i == 2 {
					<-release
				}
				if words > 12 {
					order.add(name)
				}
				return nil
			}}}
			all = append(all, c.start(t))
			if i == 2 {
				continue // later: it blocks the lane in which all are measured
			}
			c.update(set(1))
			synctest.Wait()
		}
		for i, want := range []uint64{0, 0, 0, 1, 0, 1, 1} {
			if g := all[i].group.Served(); g != want {
				t.Errorf("cluster %d serves %d while a large build runs", i, g)
			}
		}
		all[2].update(set(1))
		synctest.Wait()
		close(release)
		for _, c := range all {
			c.wait(1)
		}
		equal(t, "order of large builds", order.all(), []string{"0", "1", "4"})
	})
}

func TestPickNeedsAPinnedReader(t *testing.T) {
	c := start(t, order{})
	c.settle(set(1))
	r := c.gate.NewReader("r")
	try := func() (x any) {
		defer func() { x = recover() }()
		c.slot(0).Pick(r, lbcore.Key{}, 1)
		return nil
	}
	if try() == nil {
		t.Error("a reader that was never pinned picks")
	}
	r.Pin()
	if x := try(); x != nil {
		t.Errorf("a pinned reader: %v", x)
	}
	r.Unpin()
	if try() == nil {
		t.Error("an unpinned reader picks")
	}
}

// More goroutines than there are shared readers: each has one of its own, and
// everybody gets one in the end.
func TestPinByManyGoroutines(t *testing.T) {
	gate := lbcore.NewGate(lbcore.GateConfig{})
	var mu sync.Mutex
	pinned := make(map[*lbcore.Reader]bool)
	most := 0
	var wg sync.WaitGroup
	for range 200 {
		wg.Go(func() {
			for range 20 {
				r := gate.Pin()
				mu.Lock()
				if pinned[r] {
					t.Error("two goroutines have one reader")
				}
				pinned[r] = true
				most = max(most, len(pinned))
				mu.Unlock()
				for range 3 {
					runtime.Gosched()
				}
				mu.Lock()
				delete(pinned, r)
				mu.Unlock()
				r.Unpin()
			}
		})
	}
	wg.Wait()
	if most > 64 {
		t.Errorf("%d pinned at once", most)
	}

	// With all taken, the next waits for one of them and gets that.
	var held []*lbcore.Reader
	for range 64 {
		held = append(held, gate.Pin())
	}
	got := make(chan *lbcore.Reader)
	wg.Go(func() { got <- gate.Pin() })
	for range 1000 {
		runtime.Gosched()
	}
	select {
	case <-got:
		t.Fatal("a 65th reader")
	default:
	}
	held[17].Unpin()
	if r := <-got; r != held[17] {
		t.Error("another reader than the one that became free")
	}
	wg.Wait()

	// Several that want the one reader that is free.
	held[17].Unpin()
	var having gauge
	for range 4 {
		wg.Go(func() {
			for range 3000 {
				r := gate.Pin()
				having.enter()
				having.leave()
				r.Unpin()
			}
		})
	}
	wg.Wait()
	if n := having.max.Load(); n != 1 {
		t.Errorf("%d goroutines have one reader", n)
	}
}

// A builder that waits for a reader must not miss its Unpin, however the two
// meet: nothing else would wake it within the hour.
func TestNoWakeUpIsLost(t *testing.T) {
	gate := lbcore.NewGate(lbcore.GateConfig{StuckAfter: time.Hour, SmallBuild: 1})
	c := (&cluster{gate: gate, builders: []lbcore.Builder{&lab{words: 1}}}).start(t)
	c.settle(set(0))
	readers := []func() (*lbcore.Reader, func()){
		func() (*lbcore.Reader, func()) { r := gate.Pin(); return r, r.Unpin },
		func() (*lbcore.Reader, func()) {
			r := gate.NewReader("r")
			r.Pin()
			return r, func() { r.Unpin(); r.Close() }
		},
	}
	var spun atomic.Int64
	for i := range 1500 {
		_, unpin := readers[i%2]()
		c.settle(set(1 + 2*i)) // retires what the reader may hold
		var wg sync.WaitGroup
		wg.Go(func() {
			for range rand.IntN(200) {
				spun.Add(1)
			}
			unpin()
		})
		c.settle(set(2 + 2*i)) // has to wait for it
		wg.Wait()
	}
}
