package forwarder

import (
	"context"
	"net"
	"sync/atomic"
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

// The loops' timers of a listener that drains.
func TestLoopDrainSpread(t *testing.T) {
	up := newCluster(t, backend(t, anyPort, echo))
	r := loopRig(t, Config{Upstream: up, DrainSpread: time.Hour})
	const n = 40
	var conns []net.Conn
	for range n {
		c := client(t, r.Addr())
		exchange(t, c, "hello")
		conns = append(conns, c)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Hour)
	defer cancel()
	result := make(chan int, 1)
	go func() { result <- r.Drain(ctx) }()
	r.leave(time.Now().Add(time.Hour)) // as in an hour
	r.cfg.Loops.do(func(*loop) {})
	eventually(t, "all know", func() bool {
		var know atomic.Int64
		r.cfg.Loops.do(func(l *loop) {
			l.each(func(p *pair) {
				if p.draining {
					know.Add(1)
				}
			})
		})
		return know.Load() == n
	})
	r.cfg.Loops.skip(30 * time.Minute)
	if left := r.Stats().Active; left < n/2-3 || left > n/2+3 {
		t.Errorf("%d of %d are left after half the time", left, n)
	}
	r.cfg.Loops.skip(30 * time.Minute)
	if cut := <-result; cut != n {
		t.Errorf("%d were cut", cut)
	}
	for _, c := range conns {
		wantReset(t, c)
	}
	for range n {
		if rec := r.record(t); rec.Flag != FlagLR || rec.Err != ErrDrained {
			t.Errorf("record %+v", rec)
		}
	}
}

// Half-open dials: what is over max_pending is refused at once, what is
// connected and what still waits lives, and a limit below 0 allows none.
func TestPendingLimit(t *testing.T) {
	onEach(t, func(t *testing.T) {
		dead, live := newCluster(t, silent(t)), newCluster(t, backend(t, anyPort, echo))
		pending := new(Count)
		for _, c := range []*cluster{dead, live} {
			c.dial.Open, c.dial.Pending, c.dial.MaxPending, c.dial.Timeout = new(Count), pending, 2, time.Hour
		}
		x, y := start(t, Config{Upstream: dead}), start(t, Config{Upstream: live})
		c := client(t, y.Addr())
		exchange(t, c, "connected")
		if n := pending.Open(); n != 0 {
			t.Errorf("%d are waiting", n)
		}
		waiting := []net.Conn{client(t, x.Addr()), client(t, x.Addr())}
		eventually(t, "they are dialled", func() bool { return pending.Open() == 2 && dead.member(0).Active() == 2 })
		for _, r := range []*rig{x, y} {
			wantRefused(t, r.Addr())
			if rec := r.record(t); rec.Flag != FlagUO || rec.Err != errPending || rec.Attempts != 0 {
				t.Errorf("record %+v", rec)
			}
		}
		exchange(t, c, "lives")
		if pending.Open() != 2 || pending.Refused() != 2 || dead.dial.Open.Open() != 2 || live.dial.Open.Open() != 1 {
			t.Errorf("%d are waiting, %d were refused", pending.Open(), pending.Refused())
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if cut := x.Drain(ctx); cut != 2 {
			t.Errorf("%d were cut", cut)
		}
		for _, c := range waiting {
			wantReset(t, c)
		}
		if pending.Open() != 0 || dead.dial.Open.Open() != 0 {
			t.Errorf("%d are waiting at the end", pending.Open())
		}
		exchange(t, client(t, y.Addr()), "room again")
		for _, allowNone := range []func(*Dial){
			func(d *Dial) { d.MaxPending = -1 }, func(d *Dial) { d.MaxConnections = -1 }, func(d *Dial) { d.MaxPerEndpoint = -1 },
		} {
			shut := newCluster(t, live.member(0).Addr())
			shut.dial.Open, shut.dial.Pending = new(Count), new(Count)
			allowNone(&shut.dial)
			r := start(t, Config{Upstream: shut})
			wantRefused(t, r.Addr())
			if rec := r.record(t); rec.Flag != FlagUO {
				t.Errorf("record %+v", rec)
			}
		}
	})
}
