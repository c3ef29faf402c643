package forwarder

import (
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"gatehouse.internal/lbcore"
)

// An event of a dial that has failed, which comes when the next dial's socket
// has the same number, says nothing of that one.
func TestLoopStaleEvent(t *testing.T) {
	up := newCluster(t, silent(t), silent(t))
	old := int32(-1)
	r := start(t, Config{Upstream: up, Loops: runLoops(t, true)}, func(l *Listener) {
		l.dialFD = func(a lbcore.Addr, d *Dial) (int32, unix.Errno) {
			fd, e := sysDial(a, d)
			if a == up.member(1).Addr() && fd != old {
				again, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, int(old))
				if err != nil {
					t.Error(err)
				}
				sysClose(fd)
				fd = int32(again)
			}
			return fd, e
		}
	})
	client(t, r.Addr())
	eventually(t, "it is dialled", func() bool { return up.member(0).Active() == 1 })
	r.cfg.Loops.do(func(l *loop) {
		l.each(func(p *pair) {
			old = p.side[1].fd
			ev := unix.EpollEvent{Events: unix.EPOLLOUT, Fd: old, Pad: p.side[1].tag}
			p.failed(unix.ECONNREFUSED)
			if p.side[1].fd != old {
				t.Errorf("the next socket is %d and not %d again: nothing is tested", p.side[1].fd, old)
			}
			l.event(&ev)
			if p.state != dialing || p.connected {
				t.Error("connected by an event of the dial before")
			}
		})
	})
	if s := r.Stats(); s.Dials != 2 || s.Connects != 0 {
		t.Errorf("stats %+v", s)
	}
}

// However many connections are bulk at once, a loop looks at the time, timers
// and new events after a few megabytes; and none of them is forgotten.
func TestLoopBatchBound(t *testing.T) {
	up := newCluster(t, backend(t, anyPort, hold))
	ls := NewLoops(LoopsConfig{Count: 1})
	var at, most uint64 // the loop's
	var r *rig
	var watching bool
	base := time.Now()
	ls.clock = func() time.Duration {
		if watching {
			now := r.port.bytesIn.Load()
			most = max(most, now-at)
			at = now
		}
		return time.Since(base)
	}
	runUntilEnd(t, ls)
	r = start(t, Config{Upstream: up, Loops: ls})
	const n = 48
	var conns []net.Conn
	for range n {
		conns = append(conns, client(t, r.Addr()))
	}
	eventually(t, "connected", func() bool { return r.Stats().Connects == n })
	var wg sync.WaitGroup
	const size = 8 << 20
	stall, standing := make(chan struct{}), make(chan struct{})
	ls.loops[0].post(func() { close(standing); <-stall; at, watching = r.port.bytesIn.Load(), true })
	<-standing
	for _, c := range conns {
		wg.Go(func() {
			if _, err := io.CopyN(onlyWriter{c}, zeros{}, size); err != nil {
				t.Error(err)
			}
		})
	}
	eventually(t, "all that the kernel holds is there", func() bool {
		all := 0
		for _, c := range conns {
			all += outq(c)
		}
		return all > n<<20
	})
	close(stall)
	wg.Wait()
	eventually(t, "everything has passed", func() bool { return r.port.bytesIn.Load() == n*size })
	var got uint64
	ls.do(func(*loop) { got, watching = most, false })
	// A turn that begins within the quota ends after it, and so for events and
	// for those that wait.
	if got == 0 || got > 2*(batchBytes+2*turnBytes+pipeSize) {
		t.Errorf("%d bytes between two looks at the clock", got)
	}
}

// F4: loops for whose accept the system has no memory or descriptors pause, and
// accept again.
func TestLoopAcceptFails(t *testing.T) {
	for _, errno := range []unix.Errno{unix.ENOBUFS, unix.ENOMEM, unix.EMFILE, unix.ENFILE} {
		var fails atomic.Int64
		fails.Store(5)
		var logs logBuffer
		r := start(t, Config{Upstream: newCluster(t, backend(t, anyPort, echo)), Loops: runLoops(t, true), Logger: logs.logger()}, func(l *Listener) {
			l.acceptFD = func(fd int32, from *unix.RawSockaddrAny) (int32, unix.Errno) {
				if fails.Add(-1) >= 0 {
					return -1, errno
				}
				return sysAccept(fd, from)
			}
		})
		c := client(t, r.Addr())
		eventually(t, "accept fails", func() bool { return r.Stats().AcceptErrors > 0 })
		if s := r.Stats(); s.AcceptErrors > 2 || s.Accepted != 0 { // once for each loop
			t.Errorf("without a pause: %+v", s)
		}
		eventually(t, "it is accepted", func() bool {
			r.cfg.Loops.skip(maxAcceptWait)
			return r.Stats().Accepted == 1
		})
		exchange(t, c, "hello")
		if s := r.Stats(); s.AcceptErrors != 5 {
			t.Errorf("%v: stats %+v", errno, s)
		}
		if n := strings.Count(logs.String(), "can't accept"); n != 1 {
			t.Errorf("%d lines logged", n)
		}
	}
}

// F4: the pauses of one shortage are over with it: those of the next one begin at the
// shortest again.
func TestLoopAcceptPausesAnew(t *testing.T) {
	clock := &testClock{frozen: true}
	ls := NewLoops(LoopsConfig{Count: 1})
	ls.clock = clock.now
	clocks.Store(ls, clock)
	t.Cleanup(func() { clocks.Delete(ls) })
	runUntilEnd(t, ls)
	var fails atomic.Int64
	r := start(t, Config{Upstream: newCluster(t, backend(t, anyPort, echo)), Loops: ls}, func(l *Listener) {
		l.acceptFD = func(fd int32, from *unix.RawSockaddrAny) (int32, unix.Errno) {
			if fails.Add(-1) >= 0 {
				return -1, unix.EMFILE
			}
			return sysAccept(fd, from)
		}
	})
	for shortage := range uint64(3) {
		fails.Store(4)
		c := client(t, r.Addr())
		for k, pause := range []time.Duration{1, 2, 4, 8} {
			eventually(t, "accept fails", func() bool { return r.Stats().AcceptErrors == 4*shortage+uint64(k)+1 })
			ls.do(func(l *loop) {
				if got := l.ports[0].wait; got != pause*minAcceptWait {
					t.Errorf("shortage %d: pause %d is %v", shortage, k, got)
				}
			})
			ls.skip(pause * minAcceptWait)
		}
		exchange(t, c, "hello")
	}
}

// Whoever is in the queue of a socket that closes was connected, and is served.
func TestStopServesTheQueue(t *testing.T) {
	var open atomic.Bool
	r := start(t, Config{Upstream: newCluster(t, backend(t, anyPort, echo)), Loops: runLoops(t, true)}, func(l *Listener) {
		l.acceptFD = func(fd int32, from *unix.RawSockaddrAny) (int32, unix.Errno) {
			if !open.Load() {
				return -1, unix.ENOBUFS // so that the loops pause
			}
			return sysAccept(fd, from)
		}
	})
	var clients []net.Conn
	for range 20 {
		clients = append(clients, client(t, r.Addr()))
	}
	eventually(t, "accept fails", func() bool { return r.Stats().AcceptErrors > 0 })
	open.Store(true)
	r.Stop()
	for _, c := range clients {
		exchange(t, c, "hello")
	}
	if s := r.Stats(); s.Accepted != 20 {
		t.Errorf("stats %+v", s)
	}
	if c, err := net.Dial("tcp", r.Addr().String()); err == nil {
		_ = c.Close()
		t.Error("it is open after Stop")
	}
}
