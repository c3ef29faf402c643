package healthsvc

import (
	"context"
	"runtime"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"gatehouse.internal/lbcore"
)

// A new target does not wait for those that have a result, which a reload has made
// due at once.
func TestNewTargetPassesHerd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newScript(nil)
		s := run(t, Config{})
		for i := range 2000 {
			s.Acquire(key(i), p, &Ask{Cadence: every(10 * time.Second)})
		}
		pass(9500 * time.Millisecond)
		for i := range 2000 {
			s.Acquire(key(i), p, &Ask{Cadence: every(time.Second)})
		}
		r := s.Acquire(key(9999), p, &Ask{Cadence: every(time.Second)})
		pass(20 * time.Millisecond)
		wantState(t, r, lbcore.HealthHealthy)
		pass(2 * time.Second)
		if st := s.Stats(); st.Late != 0 || st.Targets != 2001 {
			t.Errorf("stats %+v", st)
		}
	})
}

// Who wants no initial jitter does not wait for another's.
func TestShortestInitialJitterHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newScript(nil)
		s := run(t, Config{Rand: func(n int64) int64 { return n - 1 }})
		s.Acquire(key(1), p, &Ask{View: "jitter", Cadence: Cadence{Interval: time.Second, Timeout: time.Second, InitialJitter: time.Hour}})
		pass(10 * time.Second)
		r := s.Acquire(key(1), p, &Ask{View: "none", Cadence: Cadence{Interval: time.Minute, Timeout: time.Second}})
		pass(time.Millisecond)
		wantState(t, r, lbcore.HealthHealthy)
		wantStarts(t, p, addr(1), seconds(10))
	})
}

// Workers that a burst of black holes needed leave with it.
func TestIdleWorkersLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newScript(func(ctx context.Context, a lbcore.Addr) error {
			if a != addr(9999) {
				<-ctx.Done()
			}
			return ctx.Err()
		})
		s := run(t, Config{})
		before := runtime.NumGoroutine()
		var refs []*Ref
		for i := range 1000 {
			refs = append(refs, s.Acquire(key(i), p, &Ask{Cadence: every(3 * time.Second)}))
		}
		pass(2 * time.Second)
		if n := runtime.NumGoroutine() - before; n < 900 {
			t.Fatalf("%d workers, want 1000 or so", n)
		}
		r := s.Acquire(key(9999), p, &Ask{Cadence: every(3 * time.Second)})
		for _, r := range refs[10:] {
			r.Release()
		}
		pass(time.Second / 2)
		if n := runtime.NumGoroutine() - before; n > 200 {
			t.Errorf("%d workers stay for 11 keys", n)
		}
		pass(10 * time.Second)
		wantState(t, refs[0], lbcore.HealthUnhealthy)
		wantState(t, r, lbcore.HealthHealthy)
	})
}

// A pass that came late because this process stood still fails nobody, however short
// the timeout.
func TestSlowPassOfAPauseDoesNotCount(t *testing.T) {
	s := NewService(Config{})
	strict := s.Acquire(key(1), newScript(nil), &Ask{View: "strict", Cadence: Cadence{Interval: time.Minute, Timeout: time.Second}})
	lenient := s.Acquire(key(1), newScript(nil), &Ask{View: "lenient", Cadence: every(time.Minute)})
	starts, _ := s.step(t.Context(), time.Now(), nil)
	r := starts[0]()
	r.ended = r.ended.Add(5 * time.Second)
	s.stood = r.ended
	s.finish(r)
	wantState(t, strict, lbcore.HealthUnknown)
	wantState(t, lenient, lbcore.HealthHealthy)
}

// An endpoint that passes and fails in turns keeps the verdict of who asks for two
// equal results in a row, turns that of who takes each at its word, at the second in
// which each probe ends, and is probed no more often for it.
func TestFlapping(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const probes = 20
		all := make(chan struct{}) // have asked: who asks later learns the past, which is no change
		n := 0
		p := newScript(func(context.Context, lbcore.Addr) error {
			<-all
			if n++; n%2 == 0 {
				return errDown
			}
			return nil
		})
		s := run(t, Config{})
		var calm, quick []time.Duration
		note := func(when *[]time.Duration) func() {
			return func() { *when = append(*when, time.Since(p.begin)) }
		}
		c := s.Acquire(key(1), p, &Ask{View: "calm", Cadence: every(time.Second), Thresholds: Thresholds{Healthy: 2, Unhealthy: 2}, OnChange: note(&calm)})
		q := s.Acquire(key(1), p, &Ask{View: "quick", Cadence: every(time.Second), Thresholds: Thresholds{Healthy: 1, Unhealthy: 1}, OnChange: note(&quick)})
		close(all)
		pass((probes-1)*time.Second + time.Millisecond)
		var each []time.Duration
		for i := range probes {
			each = append(each, time.Duration(i)*time.Second)
		}
		wantStarts(t, p, addr(1), each)
		if !slices.Equal(calm, each[:1]) || !slices.Equal(quick, each) {
			t.Errorf("with thresholds of 2 it changed at %v, with 1 at %v, want %v and %v", calm, quick, each[:1], each)
		}
		wantState(t, c, lbcore.HealthHealthy)
		wantState(t, q, lbcore.HealthUnhealthy)
	})
}
