package main

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"

	"gatehouse.internal/discovery"
	"gatehouse.internal/lbcore"
)

// speaker is a client whose source says one set, and then is silent.
type speaker struct {
	set     lbcore.Set
	watched int
	resumed int // endpoints that it was told to begin with
}

func (s *speaker) Resume(set lbcore.Set) { s.resumed = set.Len() }

func (s *speaker) Watch(ctx context.Context, sink discovery.Sink) error {
	s.watched++
	if s.set.Len() > 0 {
		sink.Replace(s.set)
	}
	<-ctx.Done()
	return ctx.Err()
}

// A source goes on with the client that takes the place of its own, and what it
// knew stays in force until that one knows better.
func TestPlacedSource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		addr := func(s string) lbcore.Set {
			a, err := lbcore.ParseAddr(s)
			if err != nil {
				t.Fatal(err)
			}
			return lbcore.MustSet(lbcore.Endpoint{Addr: a, Weight: 1})
		}
		var p place[speaker]
		p.put(nil)
		latest := discovery.NewLatest()
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			src := &placed[speaker]{place: &p, of: func(s *speaker) (discovery.Source, error) { return s, nil }}
			src.Resume(addr("192.0.2.9:1"))
			if err := src.Watch(ctx, latest); !errors.Is(err, context.Canceled) {
				t.Errorf("Watch returned %v", err)
			}
		})
		expect := func(what string, known bool, set lbcore.Set, updates uint64) {
			t.Helper()
			synctest.Wait()
			if st := latest.State(); st.Known != known || !st.Set.Equal(set) || st.Updates != updates || st.Err != nil {
				t.Errorf("%s: %+v", what, st)
			}
		}
		expect("without a client", false, lbcore.Set{}, 0)
		one, same, silent, two := &speaker{set: addr("192.0.2.1:1")}, &speaker{set: addr("192.0.2.1:1")}, new(speaker), &speaker{set: addr("192.0.2.2:1")}
		for _, step := range []struct {
			name    string
			put     *speaker
			set     lbcore.Set
			updates uint64
		}{{"the first", one, one.set, 1}, {"one that says the same", same, one.set, 1}, {"one that is silent", silent, one.set, 1}, {"none", nil, one.set, 1}, {"another", two, two.set, 2}} {
			p.put(step.put)
			expect(step.name, true, step.set, step.updates)
		}
		cancel()
		wg.Wait()
		for i, s := range []*speaker{one, same, silent, two} {
			if s.watched != 1 {
				t.Errorf("a client was asked %d times", s.watched)
			}
			if first := i == 0; first != (s.resumed == 1) { // later ones follow what is in force
				t.Errorf("client %d begins with %d endpoints of an earlier run", i, s.resumed)
			}
		}
	})
}

// What ends by itself ends, and is not begun again.
func TestPlaceEnds(t *testing.T) {
	var p place[speaker]
	p.put(new(speaker))
	broken := errors.New("broken")
	if err := p.each(t.Context(), func(context.Context, *speaker) error { return broken }); !errors.Is(err, broken) {
		t.Errorf("each returned %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	p.put(nil)
	cancel()
	if err := p.each(ctx, func(context.Context, *speaker) error { return broken }); !errors.Is(err, context.Canceled) {
		t.Errorf("each without a client returned %v", err)
	}
}
