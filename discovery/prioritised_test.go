package discovery_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"gatehouse.internal/discovery"
	"gatehouse.internal/discovery/discoverytest"
	"gatehouse.internal/lbcore"
)

// given is a Source that says what a test tells it to.
type given struct {
	said chan func(discovery.Sink)
	end  error // what Watch returns when said is closed
}

func newGiven() *given { return &given{said: make(chan func(discovery.Sink))} }

func (g *given) Watch(ctx context.Context, sink discovery.Sink) error {
	for {
		select {
		case say, ok := <-g.said:
			if !ok {
				return g.end
			}
			say(sink)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (g *given) replace(eps ...lbcore.Endpoint) {
	g.said <- func(s discovery.Sink) { s.Replace(lbcore.MustSet(eps...)) }
}

func (g *given) fail(text string) { g.said <- func(s discovery.Sink) { s.Fail(errors.New(text)) } }

// at returns endpoint n of the suite in a priority.
func at(n, priority byte) lbcore.Endpoint {
	e := discoverytest.Endpoint(n)
	e.Priority = priority
	return e
}

// tiers writes a set as the last byte of each address and its priority.
func tiers(set lbcore.Set) string {
	var all []string
	for _, e := range set.All() {
		all = append(all, fmt.Sprintf("%d:%d", e.Addr.AddrPort().Addr().As4()[3], e.Priority))
	}
	return strings.Join(all, " ")
}

func TestPrioritised(t *testing.T) {
	first, second := newGiven(), newGiven()
	src := discovery.Prioritised(first, second)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	rec := new(discoverytest.Recorder)
	wg.Go(func() { src.Watch(ctx, rec) })
	next := 0
	wants := func(want string) {
		t.Helper()
		next = rec.Wait(t, want, next, func(r discoverytest.Report) bool { return r.Err == nil && tiers(r.Set) == want })
	}
	second.replace(at(9, 0))
	first.replace(at(1, 0), at(2, 5), at(3, 5))
	wants("1:0 2:1 3:1 9:2")
	if got := len(rec.Reports()); got != 1 {
		t.Errorf("something was reported before both had answered:\n%s", rec)
	}
	second.replace(at(9, 0), at(2, 0)) // which the first has already
	second.replace(at(8, 7), at(9, 0), at(2, 0))
	wants("1:0 2:1 3:1 8:3 9:2")
	first.fail("it is broken")
	next = rec.WaitFail(t, next, "it is broken")
	first.replace(at(1, 0))
	wants("1:0 2:1 8:2 9:1")
	first.replace()
	wants("2:0 8:1 9:0")
}

// One that has failed does not hold up the others, and is told of.
func TestPrioritisedWithoutTheFirst(t *testing.T) {
	first, second := newGiven(), newGiven()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	rec := new(discoverytest.Recorder)
	wg.Go(func() { discovery.Prioritised(first, second).Watch(ctx, rec) })
	first.fail("nobody knows")
	second.replace(at(9, 3))
	i := rec.WaitSet(t, 0, at(9, 0).Addr)
	rec.WaitFail(t, i, "nobody knows")
	first.replace(at(1, 0))
	i = rec.WaitSet(t, i, at(1, 0).Addr, at(9, 0).Addr)
	if got := tiers(rec.Reports()[i].Set); got != "1:0 9:1" {
		t.Errorf("got %s", got)
	}
}

func TestPrioritisedEnds(t *testing.T) {
	if err := discovery.Prioritised().Watch(t.Context(), discovery.NewLatest()); err == nil {
		t.Error("no sources: no error")
	}
	first, second := newGiven(), newGiven()
	first.end, second.end = errors.New("one"), errors.New("two")
	close(first.said)
	close(second.said)
	if err := discovery.Prioritised(first, second).Watch(t.Context(), discovery.NewLatest()); err == nil || err.Error() != "one\ntwo" {
		t.Errorf("got %v", err)
	}
}

// Whatever the sets: each address once, the first source's; its order of priorities
// stays, and everything of a source is behind what the sources before it have.
func TestPrioritisedProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var sources []discovery.Source
		var sets []lbcore.Set
		for range rapid.IntRange(1, 4).Draw(t, "sources") {
			byAddr := make(map[byte]lbcore.Endpoint)
			for range rapid.IntRange(0, 6).Draw(t, "endpoints") {
				n := rapid.ByteRange(1, 9).Draw(t, "address")
				byAddr[n] = at(n, rapid.ByteRange(0, lbcore.MaxPriority).Draw(t, "priority"))
			}
			var eps []lbcore.Endpoint
			for _, e := range byAddr {
				eps = append(eps, e)
			}
			sets = append(sets, lbcore.MustSet(eps...))
			sources = append(sources, discovery.Static(lbcore.MustSet(eps...)))
		}
		ctx, cancel := context.WithCancel(context.Background())
		latest := discovery.NewLatest()
		done := make(chan struct{})
		go func() { defer close(done); discovery.Prioritised(sources...).Watch(ctx, latest) }()
		<-latest.Changed()
		cancel()
		<-done
		got := latest.State().Set
		owner := make(map[lbcore.Addr]int)
		for i, set := range slices.Backward(sets) {
			for _, e := range set.All() {
				owner[e.Addr] = i
			}
		}
		if got.Len() != len(owner) {
			t.Fatalf("%d endpoints, want %d", got.Len(), len(owner))
		}
		for _, e := range got.All() {
			for _, f := range got.All() {
				i, j := owner[e.Addr], owner[f.Addr]
				own, other := sets[i].At(sets[i].Find(e.Addr)).Priority, sets[j].At(sets[j].Find(f.Addr)).Priority
				if before := i < j || i == j && own < other; before != (e.Priority < f.Priority) {
					t.Fatalf("%v and %v: in %v", e, f, tiers(got))
				}
			}
		}
	})
}

// A stack of one is as good as the source.
func TestPrioritisedConformance(t *testing.T) {
	discoverytest.Run(t, discoverytest.Harness{
		New: func(t *testing.T) (discovery.Source, discoverytest.World) {
			return discovery.Prioritised(discovery.Static(lbcore.MustSet(discoverytest.First()...))), discoverytest.World{}
		},
		Fixed: true,
	})
}

// Merged keeps the priorities that each source gives, and asks all to look anew.
func TestMerged(t *testing.T) {
	first, second := newGiven(), newGiven()
	asked := 0
	src := discovery.Merged(first, refreshing{second, &asked})
	src.(discovery.Refresher).Refresh()
	if asked != 1 {
		t.Errorf("asked to look anew %d times, want once", asked)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	rec := new(discoverytest.Recorder)
	wg.Go(func() { src.Watch(ctx, rec) })
	next := 0
	wants := func(want string) {
		t.Helper()
		next = rec.Wait(t, want, next, func(r discoverytest.Report) bool { return r.Err == nil && tiers(r.Set) == want })
	}
	second.replace(at(9, 0), at(1, 7))
	first.replace(at(1, 2), at(2, 0))
	wants("1:2 2:0 9:0")
	second.fail("it is broken")
	next = rec.WaitFail(t, next, "it is broken")
	first.replace(at(2, 0))
	wants("1:7 2:0 9:0")
	second.replace()
	wants("2:0")
}

// refreshing counts how often it is asked to look anew.
type refreshing struct {
	discovery.Source
	asked *int
}

func (r refreshing) Refresh() { *r.asked++ }

func TestMergedConformance(t *testing.T) {
	discoverytest.Run(t, discoverytest.Harness{
		New: func(t *testing.T) (discovery.Source, discoverytest.World) {
			return discovery.Merged(discovery.Static(lbcore.MustSet(discoverytest.First()...))), discoverytest.World{}
		},
		Fixed: true,
	})
}
