package discovery_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"gatehouse.internal/discovery"
	"gatehouse.internal/discovery/discoverytest"
	"gatehouse.internal/lbcore"
)

// puppet is a Source that does what it is told, one order after another.
type puppet struct {
	orders chan func(discovery.Sink) error
}

func newPuppet() *puppet { return &puppet{make(chan func(discovery.Sink) error)} }

func (p *puppet) Watch(ctx context.Context, sink discovery.Sink) error {
	for {
		select {
		case do := <-p.orders:
			if err := do(sink); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (p *puppet) replace(ns ...byte) {
	p.orders <- func(s discovery.Sink) error { s.Replace(setOf(ns...)); return nil }
	synctest.Wait()
}

func (p *puppet) fail(text string) {
	p.orders <- func(s discovery.Sink) error { s.Fail(errors.New(text)); return nil }
	synctest.Wait()
}

func (p *puppet) end(text string) {
	p.orders <- func(discovery.Sink) error { return errors.New(text) }
	synctest.Wait()
}

// inOrder runs a test with two puppets below an Ordered.
func inOrder(t *testing.T, test func(t *testing.T, first, second *puppet, l *discovery.Latest, done <-chan error)) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		first, second := newPuppet(), newPuppet()
		l := discovery.NewLatest()
		done := make(chan error, 1)
		go func() { done <- discovery.Ordered(first, second).Watch(ctx, l) }()
		test(t, first, second, l, done)
	})
}

func wantState(t *testing.T, l *discovery.Latest, phase discovery.Phase, text string, ns ...byte) {
	t.Helper()
	st := l.State()
	got := ""
	if st.Err != nil {
		got = st.Err.Error()
	}
	if st.Phase() != phase || got != text || !st.Set.Equal(setOf(ns...)) {
		t.Errorf("got %v, error %q, %v; want %v, error %q, %v", st.Phase(), got, discoverytest.Addrs(st.Set),
			phase, text, discoverytest.Addrs(setOf(ns...)))
	}
}

func TestOrderedFirstThatKnowsWins(t *testing.T) {
	inOrder(t, func(t *testing.T, first, second *puppet, l *discovery.Latest, _ <-chan error) {
		wantState(t, l, discovery.PhaseUnknown, "")
		second.replace(2)
		wantState(t, l, discovery.PhaseFresh, "", 2)
		first.fail("first is down") // it knows nothing, so nobody cares
		wantState(t, l, discovery.PhaseFresh, "", 2)
		first.replace(1)
		wantState(t, l, discovery.PhaseFresh, "", 1)
		second.replace(2, 3)
		wantState(t, l, discovery.PhaseFresh, "", 1)
	})
}

func TestOrderedEmptyIsKnown(t *testing.T) {
	inOrder(t, func(t *testing.T, first, second *puppet, l *discovery.Latest, _ <-chan error) {
		second.replace(2)
		first.replace()
		wantState(t, l, discovery.PhaseFresh, "")
	})
}

func TestOrderedStaleStaysInForce(t *testing.T) {
	inOrder(t, func(t *testing.T, first, second *puppet, l *discovery.Latest, _ <-chan error) {
		first.replace(1)
		second.replace(2)
		first.fail("first is down")
		wantState(t, l, discovery.PhaseStale, "first is down", 1)
		second.replace(2, 3)
		wantState(t, l, discovery.PhaseStale, "first is down", 1)
		first.replace(1) // the same set again: fresh again
		wantState(t, l, discovery.PhaseFresh, "", 1)
	})
}

func TestOrderedTakeoverOfAnEqualSet(t *testing.T) {
	inOrder(t, func(t *testing.T, first, second *puppet, l *discovery.Latest, _ <-chan error) {
		second.replace(1)
		second.fail("second is down")
		wantState(t, l, discovery.PhaseStale, "second is down", 1)
		first.replace(1)
		wantState(t, l, discovery.PhaseFresh, "", 1)
	})
}

func TestOrderedFailsWhenNoneKnows(t *testing.T) {
	inOrder(t, func(t *testing.T, first, second *puppet, l *discovery.Latest, _ <-chan error) {
		second.fail("second is down")
		wantState(t, l, discovery.PhaseFailing, "second is down")
		first.fail("first is down")
		wantState(t, l, discovery.PhaseFailing, "first is down\nsecond is down")
		second.replace(2)
		wantState(t, l, discovery.PhaseFresh, "", 2)
	})
}

func TestOrderedPermanentErrors(t *testing.T) {
	inOrder(t, func(t *testing.T, first, second *puppet, l *discovery.Latest, done <-chan error) {
		first.end("first can't work")
		wantState(t, l, discovery.PhaseFailing, "first can't work")
		second.replace(2)
		wantState(t, l, discovery.PhaseFresh, "", 2)
		second.end("second has ended")
		wantState(t, l, discovery.PhaseStale, "second has ended", 2)
		if err := <-done; err == nil || err.Error() != "first can't work\nsecond has ended" {
			t.Errorf("Watch returned %v, want both errors", err)
		}
	})
}

// A source that returns nil has broken the contract; that is an error too.
func TestOrderedSourceThatJustEnds(t *testing.T) {
	quit := sourceFunc(func(context.Context, discovery.Sink) error { return nil })
	err := discovery.Ordered(quit).Watch(t.Context(), discovery.NewLatest())
	if err == nil || err.Error() != "the source ended without being asked to" {
		t.Errorf("got %v", err)
	}
}

type sourceFunc func(context.Context, discovery.Sink) error

func (f sourceFunc) Watch(ctx context.Context, sink discovery.Sink) error { return f(ctx, sink) }

func TestOrderedOfNone(t *testing.T) {
	if err := discovery.Ordered().Watch(t.Context(), discovery.NewLatest()); err == nil {
		t.Error("want an error")
	}
}

// Watch waits for the goroutines of all its sources.
func TestOrderedWaitsForSources(t *testing.T) {
	ended := 0 // written by one goroutine, read after it has ended
	slow := sourceFunc(func(ctx context.Context, _ discovery.Sink) error {
		<-ctx.Done()
		ended++
		return ctx.Err()
	})
	ctx, cancel := context.WithCancel(t.Context())
	l := discovery.NewLatest()
	done := make(chan error)
	go func() { done <- discovery.Ordered(discovery.Static(setOf(1)), slow).Watch(ctx, l) }()
	<-l.Changed()
	cancel()
	if err := <-done; err != context.Canceled || ended != 1 {
		t.Errorf("Watch returned %v with %d of 1 sources ended", err, ended)
	}
}

func TestOrderedConforms(t *testing.T) {
	discoverytest.Run(t, discoverytest.Harness{Fixed: true, New: func(*testing.T) (discovery.Source, discoverytest.World) {
		return discovery.Ordered(newPuppet(), discovery.Static(lbcore.MustSet(discoverytest.First()...))), discoverytest.World{}
	}})
}

func TestStaticConforms(t *testing.T) {
	discoverytest.Run(t, discoverytest.Harness{Fixed: true, New: func(*testing.T) (discovery.Source, discoverytest.World) {
		return discovery.Static(lbcore.MustSet(discoverytest.First()...)), discoverytest.World{}
	}})
}
