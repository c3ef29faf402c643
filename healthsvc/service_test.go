package healthsvc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"gatehouse.internal/lbcore"
)

func TestProbesStartOnTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newScript(func(context.Context, lbcore.Addr) error {
			<-time.After(300 * time.Millisecond) // the interval counts from the start
			return nil
		})
		s := run(t, Config{})
		pass(time.Second)
		r := s.Acquire(key(1), p, &Ask{Cadence: every(10 * time.Second), Thresholds: Thresholds{}})
		wantState(t, r, lbcore.HealthUnknown)
		pass(35 * time.Second)
		wantStarts(t, p, addr(1), seconds(1, 11, 21, 31))
		wantState(t, r, lbcore.HealthHealthy)
	})
}

func TestAcquireBeforeRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newScript(nil)
		s := NewService(Config{})
		s.Acquire(key(1), p, &Ask{Cadence: every(time.Second), Thresholds: Thresholds{}})
		s.Acquire(key(2), p, &Ask{Cadence: every(time.Second), Thresholds: Thresholds{}}).Release()
		pass(time.Minute)
		ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
		defer cancel()
		if err := s.Run(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Run: %v", err)
		}
		wantStarts(t, p, addr(1), seconds(60, 61))
		wantStarts(t, p, addr(2), nil)
		if err := s.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "second time") {
			t.Errorf("second Run: %v", err)
		}
	})
}

func TestJitter(t *testing.T) {
	c := Cadence{
		Interval: 10 * time.Second, Timeout: time.Second,
		InitialJitter: 4 * time.Second, IntervalJitter: 2 * time.Second, IntervalJitterPercent: 50,
	}
	most := func(n int64) int64 { return n - 1 }
	for name, f := range map[string]func(int64) int64{
		"least": func(int64) int64 { return 0 }, "most": most, "random": nil,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newScript(nil)
				s := run(t, Config{Rand: f})
				s.Acquire(key(1), p, &Ask{Cadence: c, Thresholds: Thresholds{}})
				pass(10 * time.Minute)
				got := p.at(addr(1))
				for i := range got {
					least, span, gap := time.Duration(0), 4*time.Second, got[i]
					if i > 0 {
						// Both jitters add up, each below its bound.
						least, span, gap = 10*time.Second, 7*time.Second-1, got[i]-got[i-1]
					}
					switch {
					case gap < least || gap >= least+span,
						name == "least" && gap != least,
						name == "most" && gap != least+span-1:
						t.Errorf("probe %d started after %s, want %s to below %s", i, gap, least, least+span)
					}
				}
				if len(got) < 30 {
					t.Errorf("%d probes in ten minutes", len(got))
				}
			})
		})
	}
}

func TestInitialJitterIsNeverProlonged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newScript(nil)
		s := run(t, Config{Rand: func(n int64) int64 { return n / 2 }})
		c := Cadence{Interval: time.Hour, Timeout: time.Second, InitialJitter: 20 * time.Second}
		for n := range 4 {
			s.Acquire(key(n), p, &Ask{Cadence: c, Thresholds: Thresholds{}}) // due at 10
		}
		pass(5 * time.Second)
		c.Interval = time.Minute
		s.Acquire(key(1), p, &Ask{Cadence: c, Thresholds: Thresholds{}}) // would be due at 15
		c.InitialJitter = 2 * time.Second
		s.Acquire(key(2), p, &Ask{Cadence: c, Thresholds: Thresholds{}})
		c.InitialJitter = 0
		s.Acquire(key(3), p, &Ask{Cadence: c, Thresholds: Thresholds{}})
		pass(30 * time.Second)
		wantStarts(t, p, addr(2), seconds(6))
		wantStarts(t, p, addr(3), seconds(5))
		for n := range 2 {
			if got := p.at(addr(n)); len(got) != 1 || got[0].Truncate(time.Millisecond) != 10*time.Second {
				t.Errorf("key %d was probed at %v, want 10s", n, got)
			}
		}
	})
}

// A result that arrives between a release and the scheduler's look at it must
// not make the scheduler forget a key twice: the second time it would be that of
// a newcomer.
func TestResultBeforeReleaseIsSeen(t *testing.T) {
	s := NewService(Config{})
	p := newScript(nil)
	r := s.Acquire(key(1), p, &Ask{Cadence: every(time.Second), Thresholds: Thresholds{}})
	starts, _ := s.step(t.Context(), time.Now(), nil)
	res := starts[0]()
	r.Release()
	s.finish(res)
	r = s.Acquire(key(1), p, &Ask{Cadence: every(time.Second), Thresholds: Thresholds{}})
	starts, _ = s.step(t.Context(), time.Now().Add(time.Second), nil)
	if len(starts) != 1 || s.find(key(1)) != r.v.t {
		t.Fatalf("%d probes started, keys %v", len(starts), s.targets)
	}
	s.finish(starts[0]())
	wantState(t, r, lbcore.HealthHealthy)
}

func TestOneStreamAtTheFastestCadence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var timeout time.Duration
		p := newScript(func(ctx context.Context, _ lbcore.Addr) error {
			d, _ := ctx.Deadline()
			timeout = time.Until(d)
			return nil
		})
		s := run(t, Config{})
		slow := s.Acquire(key(1), p, &Ask{Cadence: Cadence{Interval: 10 * time.Second, Timeout: 5 * time.Second}, Thresholds: Thresholds{}})
		pass(time.Second)
		fast := s.Acquire(key(1), p, &Ask{Cadence: Cadence{Interval: 3 * time.Second, Timeout: time.Second}, Thresholds: Thresholds{}})
		pass(6 * time.Second) // now 7
		wantStarts(t, p, addr(1), seconds(0, 3, 6))
		if timeout != 5*time.Second {
			t.Errorf("timeout is %s, want the longest", timeout)
		}
		if st := fast.Status(); st.Sharers != 2 || st.Cadence.Interval != 3*time.Second {
			t.Errorf("status %+v", st)
		}
		second := s.Acquire(key(1), p, &Ask{Cadence: Cadence{Interval: 3 * time.Second, Timeout: time.Second}, Thresholds: Thresholds{}})
		if second.State() != fast.State() {
			t.Error("equal keys, thresholds and timeouts have two states")
		}
		second.Release()
		fast.Release()
		fast.Release()    // no second effect
		pass(time.Second) // now 8: a fast stream would go on at 9
		wantState(t, slow, lbcore.HealthHealthy)
		pass(12 * time.Second) // now 20
		wantStarts(t, p, addr(1), seconds(0, 3, 6, 16))
		if timeout != 5*time.Second {
			t.Errorf("timeout is %s after the fastest left", timeout)
		}
		// A cadence whose time has come already starts at once.
		s.Acquire(key(1), p, &Ask{Cadence: every(2 * time.Second), Thresholds: Thresholds{}})
		pass(3 * time.Second) // now 23
		wantStarts(t, p, addr(1), seconds(0, 3, 6, 16, 20, 22))
		if st := s.Stats(); st.Targets != 1 || st.Refs != 2 || st.Late != 0 {
			t.Errorf("stats %+v", st)
		}
	})
}

func TestLastReleaseEndsStreamAndState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newScript(func(context.Context, lbcore.Addr) error {
			<-time.After(time.Millisecond) // no result before the test has looked
			return nil
		})
		s := run(t, Config{})
		a := s.Acquire(key(1), p, &Ask{Cadence: every(time.Second), Thresholds: Thresholds{}})
		b := s.Acquire(key(1), p, &Ask{Cadence: every(time.Second), Thresholds: Thresholds{}})
		pass(1500 * time.Millisecond)
		a.Release()
		pass(time.Second)
		wantState(t, b, lbcore.HealthHealthy)
		b.Release()
		pass(time.Minute)
		wantStarts(t, p, addr(1), seconds(0, 1, 2))
		if st := s.Stats(); st.Targets != 0 || st.Refs != 0 || len(s.targets) != 0 {
			t.Errorf("stats %+v with %d keys", st, len(s.targets))
		}
		if st := b.Status(); st != (Status{}) {
			t.Errorf("status after Release: %+v", st)
		}
		c := s.Acquire(key(1), p, &Ask{Cadence: every(time.Second), Thresholds: Thresholds{}})
		wantState(t, c, lbcore.HealthUnknown)
		// The scheduler need not have seen the end of the life before.
		c.Release()
		d := s.Acquire(key(1), p, &Ask{Cadence: every(time.Second), Thresholds: Thresholds{}})
		wantState(t, d, lbcore.HealthUnknown)
		pass(500 * time.Millisecond)
		d.Release()
		d = s.Acquire(key(1), p, &Ask{Cadence: every(time.Second), Thresholds: Thresholds{}})
		wantState(t, d, lbcore.HealthUnknown)
		pass(200 * time.Millisecond)
		wantState(t, d, lbcore.HealthHealthy)
		// c's probe may have begun before its release.
		got := p.at(addr(1))[3:]
		if got[0] != 62500*time.Millisecond || got[len(got)-1] != 63*time.Second || len(got) > 3 {
			t.Errorf("probed at %v", got)
		}
	})
}

func TestBurstOfNewTargets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 5000
		p := newScript(nil)
		s := run(t, Config{})
		var released []*Ref
		for i := range n {
			r := s.Acquire(key(i), p, &Ask{Cadence: every(10 * time.Second), Thresholds: Thresholds{}})
			if i >= 1000 && i < 2000 {
				released = append(released, r)
			}
		}
		// Targets that leave before their turn take nobody's time.
		for _, r := range released {
			r.Release()
		}
		pass(9 * time.Second)
		turn := 0
		for i := range n {
			if i >= 1000 && i < 2000 {
				wantStarts(t, p, addr(i), nil)
				continue
			}
			wantStarts(t, p, addr(i), []time.Duration{time.Duration(turn) * 500 * time.Microsecond})
			turn++
		}
		if st := s.Stats(); st.Late != 0 || st.Waiting != 0 || st.Targets != n-1000 {
			t.Errorf("stats %+v", st)
		}
	})
}

func TestNewTargetAmongManyIsProbedWithin100ms(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newScript(func(ctx context.Context, a lbcore.Addr) error {
			if a == addr(9999) {
				return nil
			}
			<-ctx.Done() // everything else times out
			return ctx.Err()
		})
		s := run(t, Config{})
		for i := range 5000 {
			s.Acquire(key(i), p, &Ask{Cadence: Cadence{Interval: 10 * time.Second, Timeout: time.Second}, Thresholds: Thresholds{}})
		}
		pass(33 * time.Second)
		r := s.Acquire(key(9999), p, &Ask{Cadence: every(time.Second), Thresholds: Thresholds{}})
		pass(100 * time.Millisecond)
		wantState(t, r, lbcore.HealthHealthy)
		wantStarts(t, p, addr(9999), seconds(33))
		if st := s.Stats(); st.Late != 0 {
			t.Errorf("stats %+v", st)
		}
	})
}

func TestNoHerdAfterReload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 200
		p := newScript(nil)
		s := run(t, Config{})
		for i := range n {
			s.Acquire(key(i), p, &Ask{Cadence: every(time.Hour), Thresholds: Thresholds{}})
		}
		pass(time.Minute)
		for i := range n { // all of them are overdue by the new cadence
			s.Acquire(key(i), p, &Ask{Cadence: every(30 * time.Second), Thresholds: Thresholds{}})
		}
		pass(20 * time.Second)
		if len(p.order) != 2*n {
			t.Fatalf("%d probes, want %d", len(p.order), 2*n)
		}
		for i, at := range p.order[n:] {
			if want := time.Minute + time.Duration(i)*paceGap; at != want {
				t.Errorf("probe %d after the change started at %s, want %s", i, at, want)
			}
		}
		if st := s.Stats(); st.Late != 0 {
			t.Errorf("stats %+v", st)
		}
	})
}

func TestNoHerdAfterPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 2000
		p := newScript(nil)
		s := run(t, Config{})
		stall := sync.OnceFunc(func() { <-time.After(time.Hour) })
		for i := range n {
			s.Acquire(key(i), p, &Ask{Cadence: every(10 * time.Second), Thresholds: Thresholds{}})
		}
		pass(5 * time.Second)
		// The scheduler stands still as it would with a suspended machine.
		s.Acquire(key(n), p, &Ask{Cadence: every(10 * time.Second), Thresholds: Thresholds{}, OnChange: stall})
		pass(time.Hour)
		p.mu.Lock()
		after := p.order[n+1:]
		p.mu.Unlock()
		if len(after) == 0 || after[0] != 5*time.Second+time.Hour {
			t.Fatalf("first probe after the pause: %v", after[:min(1, len(after))])
		}
		pass(8 * time.Second)
		p.mu.Lock()
		after = p.order[n+1:]
		p.mu.Unlock()
		if len(after) != n+1 {
			t.Errorf("%d probes after the pause, want %d", len(after), n+1)
		}
		most := 0
		for i, from := 0, 0; i < len(after); i++ {
			for after[i]-after[from] >= 50*time.Millisecond {
				from++
			}
			most = max(most, i-from+1)
		}
		if most > 120 { // 100 in 50 ms, and what paceSlack forgives
			t.Errorf("%d probes started within 50ms", most)
		}
		if st := s.Stats(); st.Late != n+1 {
			t.Errorf("%d late probes, want %d", st.Late, n+1)
		}
	})
}

func TestStuckProbesDoNotOverlap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		takes := 35 * time.Second
		p := newScript(func(context.Context, lbcore.Addr) error {
			d := takes
			takes = 0
			<-time.After(d) // deaf to its context
			return nil
		})
		s := run(t, Config{})
		r := s.Acquire(key(1), p, &Ask{Cadence: every(10 * time.Second), Thresholds: Thresholds{Healthy: 1, Unhealthy: 1}})
		pass(34 * time.Second)
		wantStarts(t, p, addr(1), seconds(0))
		pass(time.Second)
		if st := r.Status(); st.LastError != "passed too late: timed out" || !st.LastFailure.Equal(p.begin.Add(35*time.Second)) {
			t.Errorf("status %+v", st)
		}
		pass(11 * time.Second)
		wantStarts(t, p, addr(1), seconds(0, 35, 45))
		wantState(t, r, lbcore.HealthHealthy)
		if st := s.Stats(); st.Late != 1 || p.overlap || st.Kinds[0].TimedOut != 1 || st.Kinds[0].Passed != 2 {
			t.Errorf("stats %+v, overlap: %t", st, p.overlap)
		}
	})
}

// A timeout may be longer than the interval, as in Envoy: probes that end in time
// keep the interval, and one that takes longer is waited for.
func TestTimeoutAboveInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		takes := []time.Duration{25 * time.Second, 0, 45 * time.Second} // the last is timed out
		p := newScript(func(ctx context.Context, _ lbcore.Addr) error {
			var d time.Duration
			if len(takes) > 0 {
				d, takes = takes[0], takes[1:]
			}
			select {
			case <-time.After(d):
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
		s := run(t, Config{})
		c := every(10 * time.Second)
		c.Timeout = 30 * time.Second
		r := s.Acquire(key(1), p, &Ask{Cadence: c, Thresholds: Thresholds{Healthy: 1, Unhealthy: 1}})
		pass(60 * time.Second)
		wantState(t, r, lbcore.HealthHealthy)
		pass(5*time.Second + time.Millisecond)
		wantStarts(t, p, addr(1), seconds(0, 25, 35, 65))
		wantState(t, r, lbcore.HealthHealthy)
		if st := s.Stats(); p.overlap || st.Kinds[0].TimedOut != 1 {
			t.Errorf("stats %+v, overlap: %t", st, p.overlap)
		}
	})
}

func TestWorkersAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newScript(func(ctx context.Context, _ lbcore.Addr) error {
			<-ctx.Done()
			return ctx.Err()
		})
		s := run(t, Config{Workers: 3})
		for i := range 10 {
			s.Acquire(key(i), p, &Ask{Cadence: every(2 * time.Second), Thresholds: Thresholds{}})
		}
		pass(time.Second)
		if st := s.Stats(); st.InFlight != 3 || st.Waiting != 7 {
			t.Errorf("stats %+v", st)
		}
		pass(8*time.Second - time.Second/2)
		if p.most != 3 {
			t.Errorf("%d probes at a time, want 3", p.most)
		}
		// First come, first served.
		wantStarts(t, p, addr(2), seconds(0.001, 8))
		wantStarts(t, p, addr(3), seconds(2, 8.0005))
		wantStarts(t, p, addr(9), seconds(6))
		// Late were the first probes of keys 6 to 9 and the second of 0 to 4.
		if st := s.Stats(); st.Late != 9 {
			t.Errorf("stats %+v", st)
		}
	})
}

func TestRunEndsEverything(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewService(Config{})
		var ended atomic.Int32
		p := newScript(func(ctx context.Context, _ lbcore.Addr) error {
			<-ctx.Done()
			<-time.After(time.Second) // takes a while to end
			ended.Add(1)
			return ctx.Err()
		})
		changes := 0
		var refs []*Ref
		for i := range 10 {
			refs = append(refs, s.Acquire(key(i), p, &Ask{Cadence: every(time.Minute), Thresholds: Thresholds{}, OnChange: func() { changes++ }}))
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx) }()
		pass(10 * time.Second)
		if st := s.Stats(); st.InFlight != 10 {
			t.Errorf("stats %+v", st)
		}
		cancel()
		synctest.Wait()
		select {
		case err := <-done:
			t.Fatalf("Run returned (%v) before its workers", err)
		default:
		}
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("Run: %v", err)
		}
		if n := ended.Load(); n != 10 {
			t.Errorf("%d probes had ended when Run returned", n)
		}
		// A cancelled probe says nothing of its endpoint.
		for _, r := range refs {
			wantState(t, r, lbcore.HealthUnknown)
			r.Release()
		}
		if st := s.Stats(); changes != 0 || st.InFlight != 0 || st.Kinds[0].Failed+st.Kinds[0].TimedOut != 0 {
			t.Errorf("%d changes, stats %+v", changes, st)
		}
	})
}

func TestReleaseInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var slow atomic.Bool
		slow.Store(true)
		p := newScript(func(ctx context.Context, _ lbcore.Addr) error {
			if slow.Swap(false) {
				<-ctx.Done()
				<-time.After(50 * time.Millisecond)
				return &ImmediateError{errDown}
			}
			return nil
		})
		s := run(t, Config{})
		changes := 0
		r := s.Acquire(key(1), p, &Ask{Cadence: every(time.Minute), Thresholds: Thresholds{Healthy: 1, Unhealthy: 1}, OnChange: func() { changes++ }})
		pass(time.Second)
		r.Release()
		// Who comes while the old probe ends gets a probe of their own after it.
		r = s.Acquire(key(1), p, &Ask{Cadence: every(time.Minute), Thresholds: Thresholds{Healthy: 1, Unhealthy: 1}, OnChange: func() { changes++ }})
		pass(100 * time.Millisecond)
		wantStarts(t, p, addr(1), seconds(0, 1.05))
		wantState(t, r, lbcore.HealthHealthy)
		st := s.Stats()
		if st.Kinds[0].Discarded != 1 || st.Kinds[0].Failed != 0 || st.Kinds[0].Passed != 1 || changes != 1 || p.overlap {
			t.Errorf("stats %+v, %d changes, overlap %t", st, changes, p.overlap)
		}
		if st := r.Status(); st.LastError != "" {
			t.Errorf("status %+v", st)
		}

		slow.Store(true)
		pass(time.Minute)
		r.Release()
		pass(time.Second)
		if st := s.Stats(); st.InFlight != 0 || st.Kinds[0].Discarded != 2 || len(s.targets) != 0 {
			t.Errorf("stats %+v, %d keys", st, len(s.targets))
		}
	})
}

func TestThresholdsShareOneStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var down atomic.Bool
		all := make(chan struct{}) // have asked: who asks later learns the past, which is no change
		p := newScript(func(context.Context, lbcore.Addr) error {
			<-all
			if down.Load() {
				return errDown
			}
			return nil
		})
		var buf bytes.Buffer
		s := run(t, Config{Log: slog.New(slog.NewTextHandler(&buf, &slog.HandlerOptions{Level: slog.LevelDebug}))})
		var changes [3]int
		quick := s.Acquire(key(1), p, &Ask{Cadence: every(time.Second), Thresholds: Thresholds{Healthy: 1, Unhealthy: 1}, OnChange: func() { changes[0]++ }})
		calm := s.Acquire(key(1), p, &Ask{Cadence: every(time.Second), Thresholds: Thresholds{Healthy: 2, Unhealthy: 3}, OnChange: func() { changes[1]++ }})
		calmToo := s.Acquire(key(1), p, &Ask{Cadence: every(time.Second), Thresholds: Thresholds{Healthy: 2, Unhealthy: 3}, OnChange: func() { changes[2]++ }})
		close(all)
		if quick.State() == calm.State() || calm.State() != calmToo.State() {
			t.Error("states are not one for each pair of thresholds")
		}
		pass(100 * time.Millisecond)
		if changes != [3]int{1, 1, 1} { // the first result is a change
			t.Errorf("changes %v", changes)
		}
		down.Store(true)
		pass(time.Second)
		wantState(t, quick, lbcore.HealthUnhealthy)
		wantState(t, calm, lbcore.HealthHealthy)
		if st := calm.Status(); st.LastError != "down" || st.Streak != 1 || st.Passing || st.Sharers != 3 ||
			!st.Since.Equal(p.begin) || st.LastProbe != p.begin.Add(time.Second) || !st.LastFailure.Equal(st.LastProbe) {
			t.Errorf("status %+v", st)
		}
		pass(time.Second)
		calmToo.Release()
		pass(time.Second)
		wantState(t, calm, lbcore.HealthUnhealthy)
		if st := calm.Status(); st.Streak != 3 || !st.Since.Equal(p.begin.Add(3*time.Second)) {
			t.Errorf("status %+v", st)
		}
		if changes != [3]int{2, 2, 1} {
			t.Errorf("changes %v", changes)
		}
		wantStarts(t, p, addr(1), seconds(0, 1, 2, 3))
		want := `level=INFO msg="probe verdict changed" endpoint=10.0.0.1:80 check=script state=unhealthy sharers=1 err=down`
		good := strings.Count(buf.String(), "level=DEBUG") // first verdicts
		if n := strings.Count(buf.String(), "\n"); n != 4 || good != 2 || !strings.Contains(buf.String(), want) {
			t.Errorf("log of %d lines, %d of them at debug, want 4 and 2:\n%s", n, good, buf.String())
		}
	})
}

func TestNewThresholdsLearnThePast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		err := cell[error]{v: errDown}
		p := newScript(func(context.Context, lbcore.Addr) error { return err.get() })
		s := run(t, Config{})
		first := s.Acquire(key(1), p, &Ask{View: "a", Cadence: every(time.Minute), Thresholds: Thresholds{Healthy: 1, Unhealthy: 1}})
		pass(90 * time.Second) // two failures
		wantState(t, s.Acquire(key(1), p, &Ask{View: "b", Cadence: every(time.Minute), Thresholds: Thresholds{Healthy: 1, Unhealthy: 2, InitialHealthy: true}}), lbcore.HealthUnhealthy)
		three := s.Acquire(key(1), p, &Ask{View: "c", Cadence: every(time.Minute), Thresholds: Thresholds{Healthy: 1, Unhealthy: 3, InitialHealthy: true}})
		wantState(t, three, lbcore.HealthUnknown)
		wantState(t, first, lbcore.HealthUnhealthy)
		pass(time.Minute)
		wantState(t, three, lbcore.HealthUnhealthy)
		err.set(nil)
		pass(time.Minute)
		wantState(t, s.Acquire(key(1), p, &Ask{View: "d", Cadence: every(time.Minute), Thresholds: Thresholds{Healthy: 9, Unhealthy: 9}}), lbcore.HealthHealthy)
		err.set(&ImmediateError{errDown})
		pass(time.Minute)
		wantState(t, s.Acquire(key(1), p, &Ask{View: "e", Cadence: every(time.Minute), Thresholds: Thresholds{Healthy: 8, Unhealthy: 8}}), lbcore.HealthUnhealthy)
	})
}

func TestLackOfLocalResourcesIsNoResult(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var err cell[error]
		p := newScript(func(context.Context, lbcore.Addr) error { return err.get() })
		s := run(t, Config{Rand: func(n int64) int64 { return n - 1 }})
		r := s.Acquire(key(1), p, &Ask{Cadence: every(time.Second), Thresholds: Thresholds{Healthy: 1, Unhealthy: 1}})
		pass(500 * time.Millisecond)
		err.set(fmt.Errorf("connect: %w", syscall.EADDRNOTAVAIL))
		pass(10 * time.Second)
		wantState(t, r, lbcore.HealthHealthy)
		st := r.Status()
		if st.Streak != 1 || !st.LastProbe.Equal(p.begin) || st.LastLocal != "connect: cannot assign requested address" || st.LastError != "" {
			t.Errorf("status %+v", st)
		}
		if k := s.Stats().Kinds[0]; k != (KindStats{Kind: "script", Passed: 1, Local: 10}) {
			t.Errorf("stats %+v", k)
		}
		// The reason of a verdict stays, and what this machine lacked goes with a result.
		err.set(errDown)
		pass(time.Second)
		failed := r.Status()
		err.set(fmt.Errorf("connect: %w", syscall.EADDRNOTAVAIL))
		pass(time.Second)
		if st := r.Status(); failed.LastLocal != "" || failed.LastError != "down" || st.LastError != "down" ||
			st.LastLocal == "" || !st.LastFailure.Equal(failed.LastFailure) {
			t.Errorf("status %+v, then %+v", failed, st)
		}
	})
}

func TestReasonIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		text := cell[string]{v: strings.Repeat("é", 1000)}
		p := newScript(func(context.Context, lbcore.Addr) error { return errors.New(text.get()) })
		s := run(t, Config{})
		r := s.Acquire(key(1), p, &Ask{Cadence: every(time.Second), Thresholds: Thresholds{}})
		pass(500 * time.Millisecond)
		if got := r.Status().LastError; got != strings.Repeat("é", 128)+"..." {
			t.Errorf("reason of %d bytes: %s", len(got), got)
		}
		text.set("")
		pass(time.Second)
		if got := r.Status(); got.LastError != "failed without a reason" || got.State != lbcore.HealthUnhealthy {
			t.Errorf("status %+v", got)
		}
	})
}
