package healthsvc

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"gatehouse.internal/lbcore"
)

// Who waits for a verdict is told that none is to be expected, and the log has one
// line a minute of it, whatever the number of endpoints.
func TestStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var text bytes.Buffer
		err := cell[error]{v: fmt.Errorf("connect: %w", syscall.EMFILE)}
		p := newScript(func(context.Context, lbcore.Addr) error { return err.get() })
		s := run(t, Config{Log: slog.New(slog.NewTextHandler(&text, nil)), Rand: func(n int64) int64 { return n - 1 }})
		var calls atomic.Int32
		ask := &Ask{Cadence: every(time.Second), OnChange: func() { calls.Add(1) }}
		r := s.Acquire(key(1), p, ask)
		for i := range 20 {
			s.Acquire(key(2+i), p, &Ask{Cadence: every(time.Second)})
		}
		pass(1900 * time.Millisecond)
		if r.Stuck() || calls.Load() != 0 {
			t.Errorf("after two probes: stuck %t, %d calls", r.Stuck(), calls.Load())
		}
		pass(8 * time.Second)
		if !r.Stuck() || calls.Load() != 1 {
			t.Errorf("after ten probes: stuck %t, %d calls", r.Stuck(), calls.Load())
		}
		pass(time.Minute)
		if n := strings.Count(text.String(), "probes give no result"); n != 2 {
			t.Errorf("%d lines in 70 s, want 2:\n%s", n, &text)
		}
		err.set(nil)
		pass(time.Second)
		if r.Stuck() {
			t.Error("stuck after a pass")
		}
		wantState(t, r, lbcore.HealthHealthy)
	})
}

// Targets are more than descriptors: probes that lack one are made anew soon, at the
// pace, and in the end each has had a result although the interval is long.
func TestLackOfDescriptorsStarvesNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var free atomic.Int32
		free.Store(100)
		p := newScript(func(context.Context, lbcore.Addr) error {
			defer free.Add(1)
			if free.Add(-1) < 0 {
				return syscall.EMFILE
			}
			<-time.After(200 * time.Millisecond)
			return nil
		})
		s := run(t, Config{})
		var refs []*Ref
		for i := range 1000 {
			refs = append(refs, s.Acquire(key(i), p, &Ask{Cadence: every(time.Hour)}))
		}
		pass(20 * time.Second)
		for _, r := range refs {
			wantState(t, r, lbcore.HealthHealthy)
		}
		for i := range p.order[:len(p.order)-30] {
			if d := p.order[i+30] - p.order[i]; d < 5*time.Millisecond { // 20 at once after a pause
				t.Fatalf("30 probes in %s", d)
			}
		}
	})
}

// That more probes are due than may be in flight is said, once.
func TestTooFewWorkersAreLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var text bytes.Buffer
		p := newScript(func(ctx context.Context, _ lbcore.Addr) error {
			<-ctx.Done()
			return ctx.Err()
		})
		s := run(t, Config{MaxWorkers: 5, Log: slog.New(slog.NewTextHandler(&text, nil))})
		for i := range 20 {
			s.Acquire(key(i), p, &Ask{Cadence: every(time.Second)})
		}
		pass(10 * time.Second)
		if n := strings.Count(text.String(), "workers=5 targets=20"); n != 1 || p.most != 5 {
			t.Errorf("%d lines, at most %d in flight:\n%s", n, p.most, &text)
		}
	})
}

// Where most hang and workers are few, those that answer are probed in time.
func TestFewWorkersAreShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newScript(func(ctx context.Context, a lbcore.Addr) error {
			if a == addr(5000) {
				return nil
			}
			<-ctx.Done()
			return ctx.Err()
		})
		s := run(t, Config{MaxWorkers: 100})
		for i := range 1000 {
			s.Acquire(key(i), p, &Ask{Cadence: Cadence{Interval: 5 * time.Second, Timeout: 4 * time.Second}})
		}
		pass(50 * time.Second) // all have timed out once
		s.Acquire(key(5000), p, &Ask{Cadence: every(4 * time.Second)})
		pass(100 * time.Second)
		// In each timeout a hundred workers become free.
		if n := len(p.at(addr(5000))); n < 12 {
			t.Errorf("one that answers was probed %d times in 100 s", n)
		}
		for i := range 1000 {
			if n := len(p.at(addr(i))); n < 3 {
				t.Fatalf("target %d was probed %d times in 150 s", i, n)
			}
		}
	})
}
