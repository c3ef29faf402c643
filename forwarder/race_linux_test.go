package forwarder

import (
	"errors"
	"fmt"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"gatehouse.internal/lbcore"
)

// The times of a race in an event loop: 300 ms between attempts, and the time
// of the dial over all of them.
func TestLoopRaceTimes(t *testing.T) {
	up := newCluster(t, silent(t))
	up.additional(silent(t), silent(t))
	up.dial.Timeout = 3 * time.Second
	var dials []lbcore.Addr // the loops'
	r := start(t, Config{Upstream: up, Loops: runLoops(t, true)}, func(l *Listener) {
		l.dialFD = func(a lbcore.Addr, d *Dial) (int32, unix.Errno) {
			dials = append(dials, a)
			return sysDial(a, d)
		}
	})
	dialled := func() (n int) {
		// One loop has the connection, and the other adds nothing.
		r.cfg.Loops.do(func(l *loop) { l.each(func(*pair) { n = len(dials) }) })
		return n
	}
	r.cfg.Loops.do(func(*loop) {}) // they have opened what they need
	before := fds(t)
	c := client(t, r.Addr())
	eventually(t, "it is dialled", func() bool { return up.member(0).Active() == 1 })
	for _, x := range []struct {
		ms   time.Duration
		want int
	}{{0, 1}, {299, 1}, {2, 2}, {299, 2}, {2, 3}} {
		r.cfg.Loops.skip(x.ms * time.Millisecond)
		if n := dialled(); n != x.want {
			t.Errorf("%d addresses are dialled, want %d", n, x.want)
		}
	}
	r.cfg.Loops.skip(2397 * time.Millisecond)
	if s := r.Stats(); s.DialsFailed != 0 {
		t.Errorf("gave up early: %+v", s)
	}
	r.cfg.Loops.skip(2 * time.Millisecond)
	if rec := r.record(t); rec.Flag != FlagUF || !errors.Is(rec.Err, unix.ETIMEDOUT) || rec.Attempts != 1 {
		t.Errorf("record %+v", rec)
	}
	if s := r.Stats(); s.Dials != 1 || s.DialsFailed != 1 {
		t.Errorf("stats %+v", s)
	}
	_ = c.Close()
	eventually(t, "all sockets are closed", func() bool { return fds(t) <= before })
}

// A race ends with its connection, whoever ends that.
func TestLoopRaceCut(t *testing.T) {
	for name, end := range map[string]func(r *rig, gone func()){
		"client": func(_ *rig, gone func()) { gone() },
		"agent":  func(r *rig, _ func()) { r.cancel() },
	} {
		t.Run(name, func(t *testing.T) {
			up := newCluster(t, silent(t))
			up.additional(silent(t))
			r := loopRig(t, Config{Upstream: up})
			r.cfg.Loops.do(func(*loop) {}) // they have opened what they need
			before := fds(t)
			c := client(t, r.Addr())
			eventually(t, "it is dialled", func() bool { return up.member(0).Active() == 1 })
			r.cfg.Loops.skip(attemptDelay)
			end(r, func() { reset(c) })
			if rec := r.record(t); rec.Flag != map[string]Flag{"client": FlagDC, "agent": FlagLR}[name] || rec.Attempts != 1 {
				t.Errorf("record %+v", rec)
			}
			if s := r.Stats(); s.DialsAbandoned != 1 || s.DialsFailed != 0 || up.member(0).Active() != 0 {
				t.Errorf("stats %+v", s)
			}
			_ = c.Close()
			eventually(t, "all sockets are closed", func() bool { return fds(t) <= before })
		})
	}
}

// Real sockets: an address that is refused, and one that does not answer, are
// passed over for the next one of the same endpoint.
func TestRaceRealSockets(t *testing.T) { onEach(t, testRaceRealSockets) }

func testRaceRealSockets(t *testing.T) {
	for name, first := range map[string]func(testing.TB) lbcore.Addr{"refused": refused, "silent": silent} {
		t.Run(name, func(t *testing.T) {
			v6 := backend(t, anyPort6, func(c net.Conn) { fmt.Fprint(c, "hi"); echo(c) })
			up := newCluster(t, first(t))
			up.additional(refused(t), v6)
			r := start(t, Config{Upstream: up})
			for i := range 2 {
				check := func() {}
				if i > 0 { // what is made for the first connection is there
					check = leakCheck(t)
				}
				c := client(t, r.Addr())
				read(t, c, 2)
				exchange(t, c, "hello")
				closeWrite(c)
				hold(c)
				_ = c.Close()
				rec := r.record(t)
				if rec.Flag != FlagNone || rec.Attempts != 1 || rec.Endpoint != up.member(0).Addr() || rec.Address != v6 || rec.BytesOut != 7 {
					t.Errorf("record %+v", rec)
				}
				check()
			}
			if s := r.Stats(); s.Dials != 2 || s.Connects != 2 || s.DialsFailed != 0 || s.DialsAbandoned != 0 || s.Retries != 0 {
				t.Errorf("stats %+v", s)
			}
			if n := up.member(0).Active(); n != 0 {
				t.Errorf("%d active", n)
			}
		})
	}
}
