package lbcore_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"gatehouse.internal/lbcore"
)

// Six slots, four generations while the first build is blocked: seven builds,
// one at a time, and each slot ends at the last generation.
func TestBurstIsBoundedAndCoalesced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		var all gauge
		var builders []lbcore.Builder
		var labs []*lab
		for range 6 {
			l := &lab{also: &all, build: func(int64, func() error) error { <-release; return nil }}
			labs, builders = append(labs, l), append(builders, l)
		}
		c := start(t, builders...)
		for i := range 4 {
			c.update(span(0, i+1))
			synctest.Wait()
		}
		if all.now.Load() != 1 {
			t.Fatalf("%d builds at once", all.now.Load())
		}
		close(release)
		c.wait(4)
		synctest.Wait()
		if all.sum.Load() != 7 || all.max.Load() != 1 {
			t.Errorf("%d builds, %d at once", all.sum.Load(), all.max.Load())
		}
		var coalesced []uint64
		for i, st := range c.stats() {
			coalesced = append(coalesced, st.Coalesced)
			if st.Generation != 4 || st.Failed != 0 || st.Rebuilds != uint64(labs[i].builds.sum.Load()) || st.Rebuilds+st.Coalesced != 4 {
				t.Errorf("slot %d: %+v", i, st)
			}
		}
		slices.Sort(coalesced)
		equal(t, "coalesced", coalesced, []uint64{2, 3, 3, 3, 3, 3})
	})
}

func TestGenerationReachesEverySlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t, order{}, order{})
		if c.group.Served() != 0 || c.pick(0, lbcore.Key{}, 1) != (lbcore.Picks{}) {
			t.Error("a new group serves something")
		}
		for i := range 3 {
			c.settle(span(0, i+1))
			for _, st := range c.stats() {
				if st.Generation != uint64(i+1) || st.Rebuilds != uint64(i+1) {
					t.Errorf("after update %d: %+v", i, st)
				}
			}
		}
		// The same again, or other metadata, rebuilds nothing.
		c.settle(span(0, 3))
		c.settle(lbcore.MustSet(ep(0), with(ep(1), func(e *lbcore.Endpoint) { e.Hostname = "x" }), ep(2)))
		synctest.Wait()
		if st := c.stats()[0]; st.Rebuilds != 3 || st.Coalesced != 0 || st.Generation != 3 {
			t.Errorf("%+v", st)
		}
		// The empty set is a membership like any other, and gives none.
		c.settle(lbcore.Set{})
		if p := c.pick(1, lbcore.Key{}, 3); p.Len() != 0 || p.Next() != nil || p.Generation() != 4 {
			t.Errorf("of an empty set: %d picks of generation %d", p.Len(), p.Generation())
		}
	})
}

func TestSlotNames(t *testing.T) {
	c := start(t, order{}, order{})
	ss := c.group.Slots()
	if len(ss) != 2 || c.group.Slot("") != ss[0] || c.group.Slot("b") != ss[1] || c.group.Slot("c") != nil {
		t.Error("slots are not found by name")
	}
	if ss[1].Name() != "b" || ss[1].Policy() != "test" || c.view.Name() != "c" {
		t.Errorf("names are %q, %q, %q", ss[1].Name(), ss[1].Policy(), c.view.Name())
	}
	none := lbcore.NewGroup(lbcore.GroupConfig{View: c.view, Gate: c.gate})
	if none.Slot("") != nil || none.WaitGeneration(t.Context(), 5) != nil {
		t.Error("a group without slots")
	}
}

// WaitGeneration waits for the slowest slot, and only for the generation that
// was asked for.
func TestWaitGeneration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		c := start(t, order{}, &lab{words: largeWords, build: block(2, release)})
		results := make(map[uint64]chan error)
		ctx, cancel := context.WithCancel(t.Context())
		for g := range uint64(4) {
			done := make(chan error, 1)
			results[g] = done
			go func() { done <- c.group.WaitGeneration(ctx, g) }()
		}
		got := func(g uint64) error {
			synctest.Wait()
			select {
			case err := <-results[g]:
				return err
			default:
				return errBuild
			}
		}
		if err := got(0); err != nil {
			t.Errorf("generation 0: %v", err)
		}
		c.update(set(1))
		if got(1) != nil || got(2) != errBuild {
			t.Error("generation 1 is not served, or 2 is")
		}
		c.update(set(2))
		if got(2) != errBuild || c.stats()[0].Generation != 2 || c.group.Served() != 1 {
			t.Error("did not wait for the slow slot")
		}
		close(release)
		if got(2) != nil {
			t.Error("generation 2 is served, but the waiter is not released")
		}
		cancel()
		if !errors.Is(got(3), context.Canceled) {
			t.Error("a cancelled waiter is not released")
		}
		// What is served already answers even with a context that has ended.
		if err := c.group.WaitGeneration(ctx, 2); err != nil {
			t.Error(err)
		}
	})
}

// Nobody who waits misses what is published meanwhile, however the two meet.
func TestNoReleaseIsLost(t *testing.T) {
	c := start(t, order{}, order{})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for i := range 1500 {
		var waiters sync.WaitGroup
		for range 6 {
			waiters.Go(func() {
				if err := c.group.WaitGeneration(ctx, uint64(i+1)); err != nil {
					t.Errorf("generation %d: %v", i+1, err)
				}
			})
		}
		c.update(set(i))
		waiters.Wait()
		if t.Failed() {
			return
		}
	}
}

func TestWakeIsPokedByPublication(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t, order{})
		for i := range 3 {
			select {
			case <-c.wake:
				t.Error("woken without a publication")
			default:
			}
			c.update(span(0, i+1))
			<-c.wake // else the bubble deadlocks
			if c.group.Served() != uint64(i+1) {
				t.Errorf("woken at generation %d", c.group.Served())
			}
		}
		// Nobody has to listen.
		for i := range 3 {
			c.settle(span(5, i+1))
		}
	})
}

// Queue is from the request to the build that is published, Build is the
// build; exact by the clock of the bubble.
func TestDurations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		wait := func(d time.Duration) { <-time.After(d) }
		first := &lab{build: func(int64, func() error) error { wait(3 * time.Second); return nil }}
		second := &lab{build: func(n int64, _ func() error) error {
			wait(2 * time.Second)
			if n <= 2 {
				return errBuild
			}
			return nil
		}}
		c := start(t, first)
		other := (&cluster{gate: c.gate, builders: []lbcore.Builder{second}}).start(t)
		c.update(set(1))
		synctest.Wait() // it has the permit
		other.settle(set(1))
		if st := c.stats()[0]; st.Queue != 0 || st.Build != 3*time.Second {
			t.Errorf("first: %+v", st)
		}
		// 3 s for the gate, 2 s failing, 10 ms, 2 s failing, 20 ms.
		if st := other.stats()[0]; st.Queue != 7*time.Second+30*time.Millisecond || st.Build != 2*time.Second || st.Failed != 2 {
			t.Errorf("second: %+v", st)
		}
	})
}

func TestBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &lab{words: 1000}
		c := start(t, l)
		c.settle(set(1))
		if st := c.stats()[0]; st.Bytes != lbcore.ClassSize(8000) {
			t.Errorf("%d bytes", st.Bytes)
		}
		// A priority has its own part.
		c.settle(lbcore.MustSet(ep(1), with(ep(2), func(e *lbcore.Endpoint) { e.Priority = 9 })))
		if st := c.stats()[0]; st.Bytes != lbcore.ClassSize(16000) || l.shapes.Load() != 3 || l.builds.sum.Load() != 3 {
			t.Errorf("%d bytes, %d shapes, %d builds", st.Bytes, l.shapes.Load(), l.builds.sum.Load())
		}
		c.settle(lbcore.Set{})
		if st := c.stats()[0]; st.Bytes != 0 {
			t.Errorf("%d bytes for nothing", st.Bytes)
		}
	})
}

// What was selected before an update stays good after it.
func TestPicksOutliveTheirSelector(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t, order{})
		c.settle(set(1, 2, 3))
		p := c.pick(0, hashKey(0), 3)
		c.settle(set(2, 9))
		if p.Generation() != 1 || p.Len() != 3 {
			t.Errorf("generation %d, %d candidates", p.Generation(), p.Len())
		}
		equal(t, "candidates", nums(&p), []int{2}) // 1 and 3 have left
	})
}

// Slots at different generations answer each from its own.
func TestSlotsAnswerFromTheirOwnGeneration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		c := start(t, order{}, &lab{words: largeWords, build: block(2, release)})
		c.settle(set(1, 2))
		c.update(set(1, 3))
		synctest.Wait()
		equal(t, "the new one", c.seen(0), []int{1, 3})
		equal(t, "the old one", c.seen(1), []int{1})
		if err := c.view.SetEnabled(addr(1), false); err != nil {
			t.Fatal(err)
		}
		equal(t, "the new one, 1 disabled", c.seen(0), []int{3})
		equal(t, "the old one, 1 disabled", c.seen(1), []int{2})
		close(release)
		c.wait(2)
		equal(t, "in the end", c.seen(1), []int{3})
	})
}

// A change of weight keeps the member: no new identity, nothing forgotten.
func TestWeightChurnKeepsMembers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t, order{})
		c.settle(span(1, 2, 1, 1))
		m := c.member(1)
		m.StartDial()
		c.view.SetEnabled(addr(2), false)
		for w := range uint32(5) {
			c.settle(span(1, 2, 2+w, 7))
			if c.member(1) != m || m.Active() != 1 || !c.member(2).Disabled() {
				t.Fatalf("at weight %d: another member, or state is lost", 2+w)
			}
			equal(t, "picked", c.seen(0), []int{1})
		}
		c.settle(span(1, 2, 0, 7))
		equal(t, "with weight 0", c.seen(0), nil)
	})
}
