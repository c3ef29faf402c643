package forwarder

import (
	"context"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"gatehouse.internal/lbcore"
)

// do has every loop call f and waits for it.
func (ls *Loops) do(f func(*loop)) {
	done := make(chan struct{}, len(ls.loops))
	for _, l := range ls.loops {
		l.post(func() { f(l); done <- struct{}{} })
	}
	for range ls.loops {
		<-done
	}
}

// testClock is a clock that tests move; it stands still if frozen.
type testClock struct {
	base   time.Time
	frozen bool
	shift  atomic.Int64
}

func (c *testClock) now() time.Duration {
	d := time.Duration(c.shift.Load())
	if !c.frozen {
		d += time.Since(c.base)
	}
	return d
}

var clocks sync.Map // of *Loops: *testClock

// runLoops returns loops that run until the test ends.
func runLoops(t testing.TB, frozen bool) *Loops {
	t.Helper()
	ls := NewLoops(LoopsConfig{Count: 2})
	c := &testClock{base: time.Now(), frozen: frozen}
	ls.clock = c.now
	clocks.Store(ls, c)
	t.Cleanup(func() { clocks.Delete(ls) })
	runUntilEnd(t, ls)
	return ls
}

// runUntilEnd runs ls until the test ends.
func runUntilEnd(t testing.TB, ls *Loops) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = ls.Run(ctx) })
	t.Cleanup(func() { cancel(); wg.Wait() })
}

// loopsFor returns running loops if t is to use them, else nil.
func loopsFor(t testing.TB) *Loops {
	if !strings.Contains(t.Name()+"/", "/loops/") {
		return nil
	}
	return runLoops(t, false)
}

// skip moves the clock of the loops, and returns when they have acted on it.
func (ls *Loops) skip(d time.Duration) {
	c, _ := clocks.Load(ls)
	c.(*testClock).shift.Add(int64(d))
	ls.do(func(*loop) {})
	ls.do(func(*loop) {}) // the wheel has advanced after the first
}

// fd returns the descriptor of a side of the only connection of r.
func fd(t testing.TB, r *rig, i int) int {
	t.Helper()
	var fd atomic.Int64
	if r.port != nil {
		r.cfg.Loops.do(func(l *loop) { l.each(func(p *pair) { fd.Store(int64(p.side[i].fd)) }) })
	} else {
		r.mu.Lock()
		defer r.mu.Unlock()
		for s := range r.open {
			_ = rawConn([]*leg{&s.downstream, &s.upstream}[i].conn).Control(func(n uintptr) { fd.Store(int64(n)) })
		}
	}
	if fd.Load() <= 0 {
		t.Fatal("no such connection")
	}
	return int(fd.Load())
}

func clientFD(t testing.TB, r *rig) int   { return fd(t, r, down) }
func upstreamFD(t testing.TB, r *rig) int { return fd(t, r, up) }

// acked waits until the peers of r's only connection have acknowledged everything, which is
// something that passes.
func acked(t testing.TB, r *rig) {
	t.Helper()
	for _, fd := range []int{clientFD(t, r), upstreamFD(t, r)} {
		eventually(t, "all is acknowledged", func() bool { return sysUnsent(int32(fd)) == 0 })
	}
}

// noPorts makes dials to a fail for want of a local port.
func noPorts(l *Listener, a lbcore.Addr) {
	if l.cfg.Loops == nil {
		return
	}
	l.dialFD = func(to lbcore.Addr, d *Dial) (int32, unix.Errno) {
		if to == a {
			return -1, unix.EADDRNOTAVAIL
		}
		return sysDial(to, d)
	}
}

// loopRig is a Listener on loops whose clock the test moves.
func loopRig(t *testing.T, cfg Config) *rig {
	t.Helper()
	cfg.Loops = runLoops(t, true)
	return start(t, cfg)
}

// The limits on silence, with the clock of the loops moved to just before and
// to the moment.
func TestLoopSilence(t *testing.T) {
	for name, tt := range map[string]struct {
		s    Settings
		half bool
		want time.Duration
		err  error
		flag Flag
	}{
		"idle":            {Settings{IdleTimeout: time.Hour}, false, time.Hour, errIdle, FlagSI},
		"half, default":   {Settings{}, true, DefaultHalfClosedTimeout, errHalfClosed, FlagSI},
		"half":            {Settings{HalfClosedTimeout: time.Minute}, true, time.Minute, errHalfClosed, FlagSI},
		"idle is shorter": {Settings{IdleTimeout: 2 * time.Minute}, true, 2 * time.Minute, errIdle, FlagSI},
		"off, but idle":   {Settings{IdleTimeout: time.Hour, HalfClosedTimeout: -1}, true, time.Hour, errIdle, FlagSI},
	} {
		t.Run(name, func(t *testing.T) {
			said := make(chan net.Conn, 1)
			r := loopRig(t, Config{Settings: tt.s, Upstream: newCluster(t, backend(t, anyPort, func(c net.Conn) {
				said <- c
				hold(c)
				_, _ = io.Copy(io.Discard, c)
				<-t.Context().Done()
			}))})
			ls := r.cfg.Loops
			c := client(t, r.Addr())
			b := <-said
			if tt.half {
				closeWrite(c)
				eventually(t, "half-closed", func() bool {
					var half atomic.Bool
					ls.do(func(l *loop) { l.each(func(p *pair) { half.Store(p.half()) }) })
					return half.Load()
				})
			}
			for range 3 { // bytes of one direction count
				ls.skip(tt.want - time.Second)
				if _, err := io.WriteString(b, "x"); err != nil {
					t.Fatal(err)
				}
				if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
					t.Fatal(err)
				}
			}
			acked(t, r)
			ls.skip(tt.want - time.Second)
			if n := r.Stats().Active; n != 1 {
				t.Fatal("ended early")
			}
			ls.skip(2 * time.Second)
			wantReset(t, c)
			if rec := r.record(t); rec.Flag != tt.flag || rec.Err != tt.err || rec.BytesOut != 3 {
				t.Errorf("record %+v", rec)
			}
		})
	}
}

// Without limits a silent connection stays.
func TestLoopSilenceOff(t *testing.T) {
	r := loopRig(t, Config{Upstream: newCluster(t, backend(t, anyPort, echo))})
	c := client(t, r.Addr())
	exchange(t, c, "in")
	r.cfg.Loops.skip(10_000 * time.Hour)
	exchange(t, c, "still here")
}

// An endpoint that does not answer is given up after its time, and the next
// candidate gets what the client has sent.
func TestLoopConnectTimeout(t *testing.T) {
	up := newCluster(t, silent(t), backend(t, anyPort, echo))
	up.dial.Timeout = 3 * time.Second
	r := loopRig(t, Config{Upstream: up})
	c := client(t, r.Addr())
	if _, err := io.WriteString(c, "hello"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is dialled", func() bool { return up.member(0).Active() == 1 })
	r.cfg.Loops.skip(2900 * time.Millisecond)
	if s := r.Stats(); s.Dials != 1 || s.DialsFailed != 0 {
		t.Fatalf("gave up early: %+v", s)
	}
	r.cfg.Loops.skip(200 * time.Millisecond)
	b := make([]byte, 5)
	if _, err := io.ReadFull(c, b); err != nil || string(b) != "hello" {
		t.Fatalf("%q, %v", b, err)
	}
	if _, failed, _, _ := up.member(0).Counters(); failed != 1 {
		t.Errorf("%d failed dials", failed)
	}
}

// A client that was reset while its endpoint is dialled is not waited for.
func TestLoopClientLeavesWhileDialling(t *testing.T) {
	up := newCluster(t, silent(t))
	r := loopRig(t, Config{Upstream: up})
	c := client(t, r.Addr())
	eventually(t, "it is dialled", func() bool { return up.member(0).Active() == 1 })
	reset(c)
	rec := r.record(t)
	if rec.Flag != FlagDC || rec.Attempts != 1 {
		t.Errorf("record %+v", rec)
	}
	if s := r.Stats(); s.DialsAbandoned != 1 || s.DialsFailed != 0 || up.member(0).Active() != 0 {
		t.Errorf("stats %+v", s)
	}
}

// silent is an address that answers no SYN: a listening socket whose queue is
// full.
func silent(t testing.TB) lbcore.Addr {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	if err := unix.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	sa, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	a := sa.(*unix.SockaddrInet4)
	addr := lbcore.IPAddr(netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port)))
	c, err := net.Dial("tcp", addr.Dial())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return addr
}

// One connection's bulk does not keep a loop from its others: a turn is
// bounded, and they come in between.
func TestLoopTurns(t *testing.T) {
	up := newCluster(t, backend(t, anyPort, hold))
	r := loopRig(t, Config{Upstream: up})
	c := client(t, r.Addr())
	eventually(t, "connected", func() bool { return r.Stats().Connects == 1 })
	stop := make(chan struct{})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		b := make([]byte, 1<<20)
		for {
			select {
			case <-stop:
				return
			default:
				if _, err := c.Write(b); err != nil {
					return
				}
			}
		}
	}()
	eventually(t, "a gigabyte has passed", func() bool { return r.Stats().BytesIn > 1<<30 })
	for range 50 { // each of these waits for a turn of the loop to end
		r.cfg.Loops.do(func(*loop) {})
	}
	close(stop)
	<-ended
}

// Connections are spread over the loops, whichever the kernel wakes.
func TestLoopsShare(t *testing.T) {
	r := loopRig(t, Config{Upstream: newCluster(t, backend(t, anyPort, echo))})
	const n = 100
	for range n {
		exchange(t, client(t, r.Addr()), "hello")
	}
	got := r.cfg.Loops.Connections()
	if got[0]+got[1] != n || min(got[0], got[1]) < n/3 {
		t.Errorf("connections of the loops: %v", got)
	}
}

// A pair is what an idle connection costs beside the kernel's part of it.
func TestPairSize(t *testing.T) {
	if n := unsafe.Sizeof(pair{}); n > 384 {
		t.Errorf("%d bytes a connection", n)
	}
}

// Loops that end while connections come and go reset them all and forget none:
// Run of the listener returns.
func TestLoopsEnd(t *testing.T) {
	for range 20 {
		up := newCluster(t, backend(t, anyPort, echo))
		ls := NewLoops(LoopsConfig{Count: 3})
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { _ = ls.Run(ctx) })
		r := start(t, Config{Upstream: up, Loops: ls})
		for range 4 {
			wg.Go(func() {
				for ctx.Err() == nil {
					c, err := net.Dial("tcp", r.Addr().Dial())
					if err != nil {
						return
					}
					_ = c.SetDeadline(time.Now().Add(100 * time.Millisecond)) // nobody may be left to accept it
					_, _ = c.Write([]byte("x"))
					_, _ = c.Read(make([]byte, 1))
					reset(c)
				}
			})
		}
		eventually(t, "some connections", func() bool { return r.Stats().Accepted > 20 })
		cancel()
		r.cancel()
		<-r.ran
		wg.Wait()
		if n := r.Stats().Active; n != 0 {
			t.Fatalf("%d connections are left", n)
		}
	}
}
