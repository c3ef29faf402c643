package forwarder

import (
	"testing"
	"time"

	"gatehouse.internal/lbcore"
)

// A connection that is still being dialled ends too.
func TestLoopMaxDuration(t *testing.T) {
	up := newCluster(t, backend(t, anyPort, echo))
	slow := newCluster(t, silent(t))
	slow.dial.Timeout = time.Hour
	for _, up := range []*cluster{up, slow} {
		r := loopRig(t, Config{Upstream: up, Settings: Settings{MaxDuration: time.Minute}})
		c := client(t, r.Addr())
		eventually(t, "it is dialled", func() bool { return up.member(0).Active() == 1 })
		if up != slow {
			exchange(t, c, "hello")
		}
		r.cfg.Loops.skip(59900 * time.Millisecond)
		if n := r.Stats().Active; n != 1 {
			t.Fatalf("%d connections before the end", n)
		}
		r.cfg.Loops.skip(200 * time.Millisecond)
		wantReset(t, c)
		if rec := r.record(t); rec.Flag != FlagDT || rec.Err != errDuration {
			t.Errorf("record %+v", rec)
		}
		if n := up.member(0).Active(); n != 0 {
			t.Errorf("the endpoint has %d", n)
		}
	}
}

// The loops' timers of connections that leave.
func TestLoopEnds(t *testing.T) {
	a := backend(t, anyPort, echo)
	up := newCluster(t, a)
	up.dial.Ends = new(Ends)
	r := loopRig(t, Config{Upstream: up})
	const n = 40
	for range n {
		exchange(t, client(t, r.Addr()), "hello")
	}
	up.dial.Ends.Set(map[lbcore.Addr]Ending{a: {Err: ErrRemoved, Within: time.Hour}})
	r.Review()
	r.cfg.Loops.do(func(*loop) {})
	r.cfg.Loops.skip(30 * time.Minute)
	left := r.Stats().Active
	if left < n/2-3 || left > n/2+3 {
		t.Errorf("%d of %d are left after half the time", left, n)
	}
	up.dial.Ends.Set(nil)
	r.cfg.Loops.skip(10 * time.Minute)
	if got := r.Stats().Active; got != left {
		t.Errorf("%d of %d have stayed", got, left)
	}
	up.dial.Ends.Set(map[lbcore.Addr]Ending{a: {Err: ErrUnhealthy, Within: time.Minute}})
	r.Review()
	r.cfg.Loops.do(func(*loop) {})
	r.cfg.Loops.skip(time.Minute)
	eventually(t, "all have ended", func() bool { return r.Stats().Active == 0 })
	if s := r.Stats(); s.Flags[FlagLR] != n {
		t.Errorf("stats %+v", s)
	}
}
