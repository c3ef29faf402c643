package forwarder

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"gatehouse.internal/lbcore"
)

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
				ln, err := PlainListen(ctx, a)
				if err == nil {
					ln.(*net.UnixListener).SetUnlinkOnClose(remove)
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
