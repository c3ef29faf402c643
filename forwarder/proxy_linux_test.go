package forwarder

import (
	"bufio"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/pires/go-proxyproto"
	"golang.org/x/sys/unix"

	"gatehouse.internal/lbcore"
)

// A header has its own time, counted from accept, which bytes do not lengthen.
func TestLoopProxyDeadline(t *testing.T) {
	up := newCluster(t, backend(t, anyPort, func(c net.Conn) {
		_, _ = io.WriteString(c, "220 hello")
		echo(c)
	}))
	r := loopRig(t, Config{Upstream: up, Settings: Settings{IdleTimeout: time.Second, Proxy: &ProxyIn{From: loopback}}})
	for _, part := range []string{"", "PROXY TCP4 "} {
		c := client(t, r.Addr())
		eventually(t, "it is accepted", func() bool { return r.Stats().ProxyPending == 1 })
		r.cfg.Loops.skip(9 * time.Second)
		write(t, c, part)
		if r.Stats().Active != 1 {
			t.Fatal("ended early")
		}
		r.cfg.Loops.skip(2 * time.Second)
		wantReset(t, c)
		if rec := r.record(t); rec.Flag != FlagDC || rec.Err != errProxyLate {
			t.Errorf("record %+v", rec)
		}
	}
	if err := r.Set(Settings{Proxy: &ProxyIn{From: loopback, Optional: true, Timeout: 3 * time.Second}}); err != nil {
		t.Fatal(err)
	}
	c := client(t, r.Addr())
	write(t, c, "\r\n\r\n")
	eventually(t, "it is accepted", func() bool { return r.Stats().ProxyPending == 1 })
	r.cfg.Loops.skip(4 * time.Second)
	got := make([]byte, 13)
	if _, err := io.ReadFull(c, got); err != nil || string(got) != "220 hello\r\n\r\n" {
		t.Fatalf("%q, %v", got, err)
	}
	r.cfg.Loops.skip(time.Hour) // the deadline was the header's
	exchange(t, c, "still here")
}

// A header that an endpoint does not take at once waits, and the client's bytes
// behind it; it is not counted then either.
func TestLoopProxyHeld(t *testing.T) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	full := 0
	for {
		n, err := unix.Write(fds[0], make([]byte, 4096))
		if err != nil {
			break
		}
		full += n
	}
	f := os.NewFile(uintptr(fds[1]), "endpoint")
	far, err := net.FileConn(f)
	if err != nil {
		t.Fatal(err)
	}
	_ = f.Close()
	defer far.Close()
	up := newCluster(t, refused(t))
	up.dial.ProxyVersion = 2
	r := start(t, Config{Upstream: up, Loops: runLoops(t, true)}, func(l *Listener) {
		l.dialFD = func(lbcore.Addr, *Dial) (int32, unix.Errno) { return int32(fds[0]), 0 }
	})
	c := client(t, r.Addr())
	write(t, c, "hello")
	eventually(t, "it is connected", func() bool { return r.Stats().Connects == 1 })
	r.cfg.Loops.skip(0)
	br := bufio.NewReader(far)
	if _, err := io.CopyN(io.Discard, br, int64(full)); err != nil {
		t.Fatal(err)
	}
	h, err := proxyproto.Read(br)
	if err != nil || h.SourceAddr.String() != c.LocalAddr().String() {
		t.Fatalf("%+v, %v", h, err)
	}
	got := make([]byte, 5)
	if _, err := io.ReadFull(br, got); err != nil || string(got) != "hello" {
		t.Fatalf("%q, %v", got, err)
	}
	_ = far.Close()
	_ = c.Close()
	if rec := r.record(t); rec.BytesIn != 5 {
		t.Errorf("record %+v", rec)
	}
}

// An endpoint that is gone before it has got its header is met as such.
func TestLoopProxyGone(t *testing.T) {
	up := newCluster(t, refused(t))
	up.dial.ProxyVersion = 1
	r := start(t, Config{Upstream: up, Loops: runLoops(t, true)}, func(l *Listener) {
		l.dialFD = func(lbcore.Addr, *Dial) (int32, unix.Errno) {
			fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return -1, unix.EMFILE
			}
			_ = unix.Close(fds[1])
			return int32(fds[0]), 0
		}
	})
	wantRefused(t, r.Addr())
	if rec := r.record(t); rec.Flag != FlagUC {
		t.Errorf("record %+v", rec)
	}
}
