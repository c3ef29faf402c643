package forwarder

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"gatehouse.internal/lbcore"
)

// A listener whose socket has the number of one that is closed, while that
// one's connections go on, is served.
func TestLoopPortNumberIsUsedAgain(t *testing.T) {
	up := newCluster(t, backend(t, anyPort, echo))
	r1 := loopRig(t, Config{Upstream: up})
	c := client(t, r1.Addr())
	exchange(t, c, "stays")
	old := r1.port.fd
	r2 := start(t, Config{Upstream: up, Loops: r1.cfg.Loops, Listen: func(ctx context.Context, a lbcore.Addr) (net.Listener, error) {
		for { // leaves no lower number
			fd, err := unix.FcntlInt(0, unix.F_DUPFD_CLOEXEC, 0)
			if err != nil {
				return nil, err
			}
			t.Cleanup(func() { _ = unix.Close(fd) })
			if fd > int(old) {
				break
			}
		}
		ln, err := PlainListen(ctx, a)
		r1.Stop()
		return ln, err
	}})
	if r2.port.fd != old {
		t.Fatalf("the socket is %d and not %d again", r2.port.fd, old)
	}
	exchange(t, client(t, r2.Addr()), "served")
	exchange(t, c, "stays")
}

// A connection that is on its way from one loop to another when the listener
// is cut is cut too.
func TestLoopCutOnTheWay(t *testing.T) {
	r := loopRig(t, Config{Upstream: newCluster(t, backend(t, anyPort, echo))})
	exchange(t, client(t, r.Addr()), "the loops accept")
	from, to := r.cfg.Loops.loops[0], r.cfg.Loops.loops[1]
	from.load.Add(1000) // so it gives away what it accepts
	defer from.load.Add(-1000)
	r.cfg.Loops.do(func(l *loop) { // nobody else takes it
		for _, o := range l.ports {
			sysEpollDel(l.ep, o.fd)
		}
	})
	client(t, r.Addr())
	taken, goOn := make(chan unix.Errno), make(chan struct{})
	from.post(func() {
		fd, e := from.ports[0].take(&from.from)
		taken <- e
		<-goOn
		if e == 0 {
			from.admit(r.port, fd, peerOf(&from.from))
		}
	})
	e := <-taken
	r.cancel()
	eventually(t, "it is cut", func() bool { return r.port.cutting.Load() })
	eventually(t, "the other loop has cut all that it had", func() bool { return to.load.Load()+from.load.Load() <= 1001 })
	cut := make(chan struct{})
	to.post(func() { close(cut) })
	<-cut
	close(goOn)
	if <-r.ran; e != 0 {
		t.Errorf("accept: %v: nothing is tested", e)
	}
}

// Loops that stood still go by what has come in time before they go by timers,
// also if it is more than they look at at once.
func TestLoopStall(t *testing.T) {
	r := loopRig(t, Config{Upstream: newCluster(t, backend(t, anyPort, echo)), Settings: Settings{IdleTimeout: 10 * time.Second}})
	conns := make([]net.Conn, 5*eventBatch/2)
	for i := range conns {
		conns[i] = client(t, r.Addr())
		exchange(t, conns[i], "in")
	}
	r.cfg.Loops.stalled(func() {
		for _, c := range conns {
			write(t, c, "late?")
		}
		c, _ := clocks.Load(r.cfg.Loops)
		c.(*testClock).shift.Add(int64(11 * time.Second))
	})
	for _, c := range conns {
		read(t, c, 5)
	}
	if s := r.Stats(); s.Flags[FlagSI] != 0 {
		t.Errorf("%d of %d connections were taken for silent", s.Flags[FlagSI], len(conns))
	}
}

// A dial that has met itself has reached nobody.
func TestLoopSelfConnect(t *testing.T) {
	r := start(t, Config{Upstream: newCluster(t, refused(t)), Loops: runLoops(t, true)}, func(l *Listener) {
		l.dialFD = func(a lbcore.Addr, _ *Dial) (int32, unix.Errno) {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				t.Error(err)
			}
			sa := &unix.SockaddrInet4{Port: int(a.AddrPort().Port()), Addr: a.AddrPort().Addr().As4()}
			if err := unix.Bind(fd, sa); err != nil {
				t.Error(err)
			}
			if err := unix.Connect(fd, sa); err != nil && err != unix.EINPROGRESS {
				t.Error(err)
			}
			return int32(fd), unix.EINPROGRESS
		}
	})
	wantRefused(t, r.Addr())
	if rec := r.record(t); rec.Flag != FlagUF || !errors.Is(rec.Err, unix.ECONNREFUSED) || r.Stats().DialsFailed != 1 {
		t.Errorf("record %+v", rec)
	}
}

// gather is an endpoint that collects what it gets.
func gather(t *testing.T, want string) (a lbcore.Addr, got chan string) {
	got = make(chan string, 1)
	return backend(t, anyPort, func(c net.Conn) {
		b := make([]byte, len(want))
		n, _ := io.ReadFull(c, b)
		got <- string(b[:n])
	}), got
}

// stalled has f run while the loops stand still, so that they find all of what
// it does at once.
func (ls *Loops) stalled(f func()) {
	stall := make(chan struct{})
	standing := make(chan struct{}, len(ls.loops))
	for _, l := range ls.loops {
		l.post(func() { standing <- struct{}{}; <-stall })
	}
	for range ls.loops {
		<-standing
	}
	f()
	close(stall)
}

// A read that ends at urgent data has not got all there is.
func TestLoopUrgentData(t *testing.T) {
	ep, got := gather(t, "abcdef")
	r := loopRig(t, Config{Upstream: newCluster(t, ep)})
	c := client(t, r.Addr())
	eventually(t, "connected", func() bool { return r.Stats().Connects == 1 })
	r.cfg.Loops.stalled(func() {
		write(t, c, "abc")
		_ = rawConn(c).Control(func(fd uintptr) {
			if err := unix.Sendto(int(fd), []byte("X"), unix.MSG_OOB, nil); err != nil {
				t.Error(err)
			}
		})
		write(t, c, "def")
	})
	if s := <-got; s != "abcdef" {
		t.Errorf("got %q", s)
	}
}

// Nor has one that ends where a descriptor was passed.
func TestLoopPassedDescriptor(t *testing.T) {
	ep, got := gather(t, "abcdef")
	r := loopRig(t, Config{Upstream: newCluster(t, ep), Addr: lbcore.UnixAddr(filepath.Join(t.TempDir(), "s"))})
	c := client(t, r.Addr()).(*net.UnixConn)
	eventually(t, "connected", func() bool { return r.Stats().Connects == 1 })
	r.cfg.Loops.stalled(func() {
		if _, _, err := c.WriteMsgUnix([]byte("abc"), unix.UnixRights(0), nil); err != nil {
			t.Error(err)
		}
		write(t, c, "def")
	})
	if s := <-got; s != "abcdef" {
		t.Errorf("got %q", s)
	}
}

// A client that has ended its stream, and is reset then, is gone.
func TestLoopResetAfterEnd(t *testing.T) {
	ended := make(chan struct{})
	r := loopRig(t, Config{Settings: Settings{HalfClosedTimeout: -1}, Upstream: newCluster(t, backend(t, anyPort, func(c net.Conn) {
		hold(c)
		close(ended)
		<-t.Context().Done()
	}))})
	c := client(t, r.Addr())
	closeWrite(c)
	<-ended
	reset(c)
	if rec := r.record(t); rec.Flag != FlagDC {
		t.Errorf("record %+v", rec)
	}
}

// A socket that can't be taken over is closed: its address is free.
func TestBindClosesWhatItCannotUse(t *testing.T) {
	a := refused(t)
	l, err := New(Config{Name: "x", Addr: a, Upstream: newCluster(t, a), Gate: lbcore.NewGate(lbcore.GateConfig{}), Loops: NewLoops(LoopsConfig{Count: 1})})
	if err != nil {
		t.Fatal(err)
	}
	var lim unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &lim); err != nil {
		t.Fatal(err)
	}
	l.cfg.Listen = func(ctx context.Context, a lbcore.Addr) (net.Listener, error) {
		ln, err := PlainListen(ctx, a)
		if err == nil { // from here on there is no descriptor left
			err = unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: lim.Max})
		}
		return ln, err
	}
	err = l.Bind(t.Context())
	if e := unix.Setrlimit(unix.RLIMIT_NOFILE, &lim); e != nil {
		t.Fatal(e)
	}
	if !errors.Is(err, unix.EMFILE) && !errors.Is(err, unix.EINVAL) {
		t.Fatalf("bind: %v", err)
	}
	ln, err := PlainListen(t.Context(), a)
	if err != nil {
		t.Fatal(err)
	}
	_ = ln.Close()
}

// A unix socket's file is removed as the listener that was given would.
func TestLoopUnixFile(t *testing.T) {
	for _, remove := range []bool{true, false} {
		path := filepath.Join(t.TempDir(), "s")
		r := loopRig(t, Config{
			Upstream: newCluster(t, backend(t, anyPort, echo)), Addr: lbcore.UnixAddr(path),
			Listen: func(ctx context.Context, a lbcore.Addr) (net.Listener, error) {
				if remove {
					return PlainListen(ctx, a)
				}
				ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: a.Path()})
				if err == nil {
					ln.SetUnlinkOnClose(false)
				}
				return ln, err
			},
		})
		exchange(t, client(t, r.Addr()), "served")
		r.Stop()
		if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) != remove {
			t.Errorf("to be removed %v: %v", remove, err)
		}
	}
}

// Bulk that is interrupted by urgent data is not taken for ended there.
func TestUrgentBulk(t *testing.T) { onEach(t, testUrgentBulk) }

func testUrgentBulk(t *testing.T) {
	const half = 16 << 20
	got := make(chan int64, 1)
	goOn := make(chan struct{})
	r := start(t, Config{Upstream: newCluster(t, backend(t, anyPort, func(c net.Conn) {
		<-goOn
		n, _ := io.Copy(io.Discard, c)
		got <- n
	}))})
	c := client(t, r.Addr())
	var wg sync.WaitGroup
	wg.Go(func() {
		_, _ = io.CopyN(onlyWriter{c}, zeros{}, half)
		_ = rawConn(c).Control(func(fd uintptr) {
			for { // room may be short
				if err := unix.Sendto(int(fd), []byte("X"), unix.MSG_OOB, nil); err != unix.EAGAIN {
					return
				}
			}
		})
		_, _ = io.CopyN(onlyWriter{c}, zeros{}, 1000)
		closeWrite(c)
	})
	eventually(t, "it is bulk", func() bool { return r.Stats().Splices > 0 })
	close(goOn)
	wg.Wait()
	if n := <-got; n != half+1000 {
		t.Errorf("%d of %d bytes arrived", n, half+1000)
	}
}
