package discoverytest

import (
	"context"
	"net/netip"
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"

	"gatehouse.internal/discovery"
	"gatehouse.internal/lbcore"
)

// World is what a source under test watches.
type World struct {
	// Set makes the world list these endpoints, and returns when whoever asks
	// from now on is told so. While the world is broken it is remembered for
	// Heal. Nil if the world can't change.
	Set func([]lbcore.Endpoint)
	// Break makes the world unable to tell: a dead server, invalid content. It
	// must not look like an empty answer.
	Break func()
	// Heal undoes Break; the world lists what Set said last.
	Heal func()
}

// Harness says how to make a source and its world. Only New is required.
type Harness struct {
	// New makes a world that lists First and a source that watches it. It may
	// register cleanups with t.
	New func(t *testing.T) (discovery.Source, World)
	// Fixed says that the world never changes, so that World is empty.
	Fixed bool
	// Lingers says that the source keeps, for some reports, what the world does not
	// list any more: sets with what was listed before are allowed then.
	Lingers bool
	// NoDuplicates says that the mechanism can't list one address twice.
	NoDuplicates bool
	// Within bounds the time to each report and to Watch's return. Zero means
	// 20 s.
	Within time.Duration
	// Ignore names goroutines of the world, such as a server's connections,
	// that may start during a Watch and outlive it.
	Ignore []goleak.Option
}

// Endpoint returns the nth endpoint of the suite, n from 0 to 255: address
// 192.0.2.n port 80, weight 1, all else zero.
func Endpoint(n byte) lbcore.Endpoint {
	return lbcore.Endpoint{Addr: lbcore.IPAddr(netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, n}), 80)), Weight: 1}
}

// First returns what a world lists at the beginning: endpoints 1 and 2.
func First() []lbcore.Endpoint { return []lbcore.Endpoint{Endpoint(1), Endpoint(2)} }

// Run runs the conformance suite, a subtest for each duty of a source.
func Run(t *testing.T, h Harness) {
	if h.Within == 0 {
		h.Within = 20 * time.Second
	}
	one, two, three := Endpoint(1), Endpoint(2), Endpoint(3)

	t.Run("first report", func(t *testing.T) {
		w := h.start(t)
		w.waitSet(one, two)
		w.stop()
	})
	t.Run("cancelled before Watch", func(t *testing.T) {
		src, _ := h.New(t)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		h.run(ctx, t, src).end()
	})
	t.Run("watched again", func(t *testing.T) {
		src, world := h.New(t)
		w := h.watch(t, src)
		w.waitSet(one, two)
		w.stop()
		before := len(w.Reports())
		want := First()
		if !h.Fixed {
			want = []lbcore.Endpoint{two, three}
			world.Set(want)
		}
		again := h.watch(t, src)
		again.waitSet(want...)
		again.stop()
		if n := len(w.Reports()); n != before {
			t.Errorf("%d reports after Watch had returned:\n%s", n-before, w)
		}
	})
	if h.Fixed {
		return
	}

	t.Run("change", func(t *testing.T) {
		w := h.start(t)
		w.waitSet(one, two)
		w.world.Set([]lbcore.Endpoint{two, one}) // the same, in other words
		w.world.Set([]lbcore.Endpoint{two, three})
		w.waitSet(two, three)
		w.stop()
		w.onlySets([]lbcore.Endpoint{one, two}, []lbcore.Endpoint{two, three})
		for _, rep := range w.Reports() {
			if rep.Err != nil {
				t.Errorf("a change was reported as a failure: %v", rep.Err)
			}
		}
	})
	t.Run("newest wins", func(t *testing.T) {
		w := h.start(t)
		w.waitSet(one, two)
		for n := range byte(20) {
			w.world.Set([]lbcore.Endpoint{Endpoint(100 + n)})
		}
		w.waitSet(Endpoint(119))
		w.stop()
		reports := w.Reports()
		if last := reports[len(reports)-1]; !sameAddrs(last.Set, []lbcore.Endpoint{Endpoint(119)}) {
			t.Errorf("last report: got %v, want endpoint 119", last)
		}
	})
	t.Run("empty is a fact", func(t *testing.T) {
		w := h.start(t)
		w.waitSet(one, two)
		w.world.Set(nil)
		w.waitSet()
		w.world.Set([]lbcore.Endpoint{three})
		w.waitSet(three)
		w.stop()
	})
	t.Run("empty from the start", func(t *testing.T) {
		src, world := h.New(t)
		world.Set(nil)
		w := h.watch(t, src)
		w.waitSet()
		w.stop()
	})
	t.Run("failure keeps the set", func(t *testing.T) {
		w := h.start(t)
		w.waitSet(one, two)
		w.world.Break()
		w.next = w.WaitFail(t, w.next, "")
		w.world.Set([]lbcore.Endpoint{three}) // unseen for now
		w.world.Heal()
		w.waitSet(three)
		w.stop()
		w.onlySets([]lbcore.Endpoint{one, two}, []lbcore.Endpoint{three})
	})
	t.Run("healed without a change", func(t *testing.T) {
		w := h.start(t)
		w.waitSet(one, two)
		w.world.Break()
		w.next = w.WaitFail(t, w.next, "")
		w.world.Heal()
		w.waitSet(one, two)
		w.stop()
		w.onlySets([]lbcore.Endpoint{one, two})
	})
	t.Run("broken from the start", func(t *testing.T) {
		src, world := h.New(t)
		world.Break()
		w := h.watch(t, src)
		if w.next = w.WaitFail(t, 0, ""); w.next != 0 {
			t.Errorf("reports of a source that knew nothing:\n%s", w)
		}
		world.Heal()
		w.waitSet(one, two)
		w.stop()
	})
	t.Run("cancelled while broken", func(t *testing.T) {
		w := h.start(t)
		w.waitSet(one, two)
		w.world.Break()
		w.WaitFail(t, w.next, "")
		w.stop()
	})
	if h.NoDuplicates {
		return
	}
	t.Run("first duplicate is kept", func(t *testing.T) {
		w := h.start(t)
		w.waitSet(one, two)
		kept, dropped := three, three
		kept.Weight, dropped.Weight = 5, 7
		w.world.Set([]lbcore.Endpoint{kept, one, dropped})
		w.waitSet(one, three)
		set := w.Reports()[w.next].Set
		if got := set.At(set.Find(three.Addr)).Weight; got != 5 {
			t.Errorf("weight of an address that is listed with 5 and then with 7: got %d, want 5", got)
		}
		w.stop()
	})
}

// watching is a running Watch and what it has reported.
type watching struct {
	*Recorder
	t      *testing.T
	h      *Harness
	world  World
	next   int // reports before it are accounted for
	cancel context.CancelFunc
	done   chan struct{}
	err    error // of Watch, after done
	leaks  goleak.Option
}

func (h *Harness) start(t *testing.T) *watching {
	t.Helper()
	src, world := h.New(t)
	w := h.watch(t, src)
	w.world = world
	return w
}

func (h *Harness) watch(t *testing.T, src discovery.Source) *watching {
	return h.run(t.Context(), t, src)
}

func (h *Harness) run(ctx context.Context, t *testing.T, src discovery.Source) *watching {
	w := &watching{
		Recorder: &Recorder{Within: h.Within},
		t:        t,
		h:        h,
		done:     make(chan struct{}),
		leaks:    goleak.IgnoreCurrent(),
	}
	ctx, w.cancel = context.WithCancel(ctx)
	go func() {
		defer close(w.done)
		w.err = src.Watch(ctx, w.Recorder)
	}()
	t.Cleanup(func() { // for a test that failed before stop
		w.cancel()
		w.ended()
	})
	return w
}

// stop ends a Watch that is going on, and checks how it ends.
func (w *watching) stop() {
	w.t.Helper()
	select {
	case <-w.done:
		w.t.Fatalf("Watch returned although its context goes on: %v", w.err)
	default:
	}
	w.end()
}

// end cancels the Watch and checks how it ends.
func (w *watching) end() {
	w.t.Helper()
	w.cancel()
	if !w.ended() {
		w.t.Fatalf("Watch did not return within %v of its context's end", w.h.Within)
	}
	if w.err != context.Canceled {
		w.t.Errorf("Watch returned %v, want the context's error %v", w.err, context.Canceled)
	}
	if err := goleak.Find(append(slices.Clone(w.h.Ignore), w.leaks)...); err != nil {
		w.t.Errorf("after Watch returned: %v", err)
	}
}

// ended waits for Watch to return, and reports whether it did so in time.
func (w *watching) ended() bool {
	timer := time.NewTimer(w.h.Within)
	defer timer.Stop()
	select {
	case <-w.done:
		return true
	case <-timer.C:
		return false
	}
}

func (w *watching) waitSet(eps ...lbcore.Endpoint) {
	w.t.Helper()
	var addrs []lbcore.Addr
	for _, e := range eps {
		addrs = append(addrs, e.Addr)
	}
	w.next = w.WaitSet(w.t, w.next, addrs...)
}

// onlySets checks that the sets reported were these, in this order, each any
// number of times.
func (w *watching) onlySets(want ...[]lbcore.Endpoint) {
	w.t.Helper()
	var before []lbcore.Endpoint
	for i, rep := range w.Reports() {
		if rep.Err != nil {
			continue
		}
		for len(want) > 0 && !w.fits(rep.Set, want[0], before) {
			before = append(before, want[0]...)
			want = want[1:]
		}
		if len(want) == 0 {
			w.t.Errorf("report %d is of a set that was not listed then:\n%s", i, w)
			return
		}
	}
}

// fits reports whether set is what was listed, with some of what was listed before
// if that may linger.
func (w *watching) fits(set lbcore.Set, listed, before []lbcore.Endpoint) bool {
	if !w.h.Lingers {
		return sameAddrs(set, listed)
	}
	for _, e := range listed {
		if set.Find(e.Addr) < 0 {
			return false
		}
	}
	return !slices.ContainsFunc(Addrs(set), func(a lbcore.Addr) bool {
		is := func(e lbcore.Endpoint) bool { return e.Addr == a }
		return !slices.ContainsFunc(listed, is) && !slices.ContainsFunc(before, is)
	})
}

func sameAddrs(set lbcore.Set, eps []lbcore.Endpoint) bool {
	return slices.Equal(Addrs(set), Addrs(lbcore.MustSet(eps...)))
}
