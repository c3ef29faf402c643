package forwarder

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"gatehouse.internal/lbcore"
)

func sides(t *testing.T, f func(t *testing.T, listen, endpoint lbcore.Addr)) {
	v6 := lbcore.IPAddr(netip.MustParseAddrPort("[::1]:0"))
	for name, network := range map[string][2]string{
		"tcp-tcp": {"tcp", "tcp"}, "unix-tcp": {"unix", "tcp"}, "tcp-unix": {"tcp", "unix"}, "unix-unix": {"unix", "unix"}, "tcp6-tcp6": {"tcp6", "tcp6"},
	} {
		t.Run(name, func(t *testing.T) {
			addr := func(network, file string) lbcore.Addr {
				switch network {
				case "unix":
					return lbcore.UnixAddr(filepath.Join(t.TempDir(), file))
				case "tcp6":
					return v6
				}
				return anyPort
			}
			f(t, addr(network[0], "l.sock"), addr(network[1], "e.sock"))
		})
	}
}

func TestF1HalfClose(t *testing.T) { onEach(t, testF1HalfClose) }

func testF1HalfClose(t *testing.T) {
	sides(t, func(t *testing.T, listen, endpoint lbcore.Addr) {
		up := newCluster(t, backend(t, endpoint, func(c net.Conn) {
			req, err := io.ReadAll(c)
			fmt.Fprintf(c, "got %d bytes, %v", len(req), err)
		}))
		r := start(t, Config{Addr: listen, Upstream: up})
		c := client(t, r.Addr())
		request := bytes.Repeat([]byte("r"), 100_000)
		if _, err := c.Write(request); err != nil {
			t.Fatal(err)
		}
		closeWrite(c)
		const want = "got 100000 bytes, <nil>"
		if got, err := io.ReadAll(c); string(got) != want || err != nil {
			t.Fatalf("got %q, %v; want %q", got, err, want)
		}
		rec := r.record(t)
		if rec.Flag != FlagNone || rec.Err != nil || rec.BytesIn != 100_000 || rec.BytesOut != uint64(len(want)) {
			t.Errorf("record %+v", rec)
		}
		opened, failed, sent, received := up.member(0).Counters()
		if opened != 1 || failed != 0 || sent != rec.BytesIn || received != rec.BytesOut || up.member(0).Active() != 0 {
			t.Errorf("member: opened %d, failed %d, sent %d, received %d, active %d", opened, failed, sent, received, up.member(0).Active())
		}
		if rec.Cluster != "web" || rec.Listener != "test" || rec.Generation != 1 || rec.Attempts != 1 || rec.Endpoint != up.member(0).Addr() {
			t.Errorf("record %+v", rec)
		}
	})
}

func TestF1HalfCloseByEndpoint(t *testing.T) { onEach(t, testF1HalfCloseByEndpoint) }

func testF1HalfCloseByEndpoint(t *testing.T) {
	got := make(chan string, 1)
	up := newCluster(t, backend(t, anyPort, func(c net.Conn) {
		fmt.Fprint(c, "speaking first, and no more")
		closeWrite(c)
		b, err := io.ReadAll(c)
		got <- fmt.Sprintf("%s %v", b, err)
	}))
	r := start(t, Config{Upstream: up})
	c := client(t, r.Addr())
	if b, err := io.ReadAll(c); string(b) != "speaking first, and no more" || err != nil {
		t.Fatalf("got %q, %v", b, err)
	}
	fmt.Fprint(c, "answer")
	_ = c.Close()
	if s := <-got; s != "answer <nil>" {
		t.Errorf("endpoint got %q", s)
	}
	if rec := r.record(t); rec.Flag != FlagNone || rec.BytesIn != 6 || rec.BytesOut != 27 {
		t.Errorf("record %+v", rec)
	}
}

func TestF2RealSockets(t *testing.T) { onEach(t, testF2RealSockets) }

func testF2RealSockets(t *testing.T) {
	release := make(chan struct{})
	up := newCluster(t, backend(t, anyPort, func(c net.Conn) {
		hold(c) // reads the FIN
		<-release
	}))
	r := start(t, Config{Upstream: up, Settings: Settings{HalfClosedTimeout: 50 * time.Millisecond}})
	c := client(t, r.Addr())
	closeWrite(c)
	wantReset(t, c)
	close(release)
	if rec := r.record(t); rec.Flag != FlagSI || rec.Err != errHalfClosed {
		t.Errorf("record %+v", rec)
	}
}

func TestF3Reset(t *testing.T) { onEach(t, testF3Reset) }

func testF3Reset(t *testing.T) {
	const size = 512 << 10
	data := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{3}).Read(data)
	// sendAndReset returns once the agent has everything and the reset.
	sendAndReset := func(c net.Conn) {
		_, _ = c.Write(data)
		awaitDelivery(&leg{conn: c}, nil)
		reset(c)
	}
	t.Run("endpoint", func(t *testing.T) {
		sent := make(chan struct{})
		up := newCluster(t, backend(t, anyPort, func(c net.Conn) { sendAndReset(c); close(sent) }))
		r := start(t, Config{Upstream: up})
		c := client(t, r.Addr())
		_ = c.(*net.TCPConn).SetReadBuffer(32 << 10) // keeps most of it in the agent's send queue
		<-sent
		if got := wantReset(t, c); !bytes.Equal(got, data) {
			t.Errorf("%d of %d bytes came before the reset", len(got), size)
		}
		if rec := r.record(t); rec.Flag != FlagUC || !errors.Is(rec.Err, syscall.ECONNRESET) || rec.BytesOut != size {
			t.Errorf("record %+v", rec)
		}
	})
	t.Run("client", func(t *testing.T) {
		type result struct {
			got []byte
			err error
		}
		sent, result1 := make(chan struct{}), make(chan result, 1)
		up := newCluster(t, backend(t, anyPort, func(c net.Conn) {
			_ = c.(*net.TCPConn).SetReadBuffer(32 << 10)
			<-sent
			b, err := io.ReadAll(c)
			result1 <- result{b, err}
		}))
		r := start(t, Config{Upstream: up})
		sendAndReset(client(t, r.Addr()))
		close(sent)
		if got := <-result1; !bytes.Equal(got.got, data) || !errors.Is(got.err, syscall.ECONNRESET) {
			t.Errorf("endpoint got %d of %d bytes and %v", len(got.got), size, got.err)
		}
		if rec := r.record(t); rec.Flag != FlagDC || rec.BytesIn != size {
			t.Errorf("record %+v", rec)
		}
	})
}

func TestF3ResetWhileSending(t *testing.T) { onEach(t, testF3ResetWhileSending) }

func testF3ResetWhileSending(t *testing.T) {
	up := newCluster(t, backend(t, anyPort, func(c net.Conn) {
		_, _ = io.ReadFull(c, make([]byte, 4096))
		fmt.Fprint(c, "half a reply")
		awaitDelivery(&leg{conn: c}, nil)
		reset(c)
	}))
	r := start(t, Config{Upstream: up})
	for range 200 {
		c := client(t, r.Addr())
		sent := make(chan error, 1)
		go func() {
			b := make([]byte, 512)
			for {
				if _, err := c.Write(b); err != nil {
					sent <- err
					return
				}
			}
		}()
		got, err := io.ReadAll(c)
		if e := <-sent; string(got) != "half a reply" || !errors.Is(err, syscall.ECONNRESET) && !errors.Is(e, syscall.ECONNRESET) {
			t.Fatalf("read %q and then %v, write failed by %v; want a reset", got, err, e)
		}
		_ = c.Close()
		if rec := r.record(t); rec.Flag != FlagUC {
			t.Fatalf("record %+v", rec)
		}
	}
}

func TestF3WasReset(t *testing.T) {
	for name, tt := range map[string]struct {
		peer func(c net.Conn)
		own  func(l *leg)
		want bool
	}{
		"reset, seen by a write": {reset, func(l *leg) {
			eventually(t, "a write fails", func() bool { _, err := l.conn.Write([]byte("x")); return err != nil })
		}, true},
		"closed":                 {closeConn, func(*leg) {}, false},
		"half-closed":            {closeWrite, func(*leg) {}, false},
		"closed on both sides":   {closeConn, func(l *leg) { l.shut.Store(true); closeWrite(l.conn) }, false},
		"said so by other means": {closeConn, func(l *leg) { l.broken.Store(true) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			begin, done := make(chan struct{}), make(chan struct{})
			ep := backend(t, anyPort, func(c net.Conn) {
				<-begin
				tt.peer(c)
				<-done
			})
			t.Cleanup(func() { close(done) })
			c := client(t, ep)
			close(begin)
			l := &leg{conn: c}
			if tt.want {
				tt.own(l)
			}
			if n, err := c.Read(make([]byte, 1)); err != io.EOF {
				t.Fatalf("read %d, %v", n, err)
			}
			if !tt.want {
				tt.own(l)
			}
			if got := l.wasReset(); got != tt.want {
				t.Errorf("was reset: %v, want %v", got, tt.want)
			}
		})
	}
}

func TestF10Hash(t *testing.T) { onEach(t, testF10Hash) }

func testF10Hash(t *testing.T) {
	up := newCluster(t, backend(t, anyPort, echo))
	r := start(t, Config{Upstream: up, Settings: Settings{HashOn: HashSourceIP}, Addr: lbcore.IPAddr(netip.MustParseAddrPort("[::]:0"))})
	port := r.Addr().AddrPort().Port()
	for _, host := range []string{"127.0.0.1", "127.0.0.1", "::1"} {
		c := client(t, lbcore.IPAddr(netip.AddrPortFrom(netip.MustParseAddr(host), port)))
		exchange(t, c, "x")
		local := c.LocalAddr().(*net.TCPAddr).AddrPort()
		_ = c.Close()
		if rec := r.record(t); rec.Client != netip.AddrPortFrom(local.Addr().Unmap(), local.Port()) {
			t.Errorf("client %v recorded as %v", local, rec.Client)
		}
	}
	// xxHash64 of the text, from Envoy.
	for i, want := range []uint64{13874206750357698471, 13874206750357698471, 6441869463509800047} {
		if k := up.keys[i]; !k.Set || k.Hash != want {
			t.Errorf("key %d is %+v, want %d", i, k, want)
		}
	}
	for text, want := range map[string]uint64{
		"1.2.3.4": 14026795738668939420, "10.0.0.7": 3728003503708587973, "2001:db8::1": 2793145402038030385,
		"::ffff:1.2.3.4": 14026795738668939420,
	} {
		k := newSession(r.Listener, &memConn{remote: &net.TCPAddr{IP: net.ParseIP(text), Port: 99}}).key()
		if !k.Set || k.Hash != want {
			t.Errorf("key of %s is %+v, want %d", text, k, want)
		}
	}
}

func TestF14LocalFault(t *testing.T) {
	op := func(err error) error {
		return &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", err)}
	}
	for err, want := range map[error]bool{
		op(syscall.EADDRNOTAVAIL): true, op(syscall.EADDRINUSE): true, op(syscall.EMFILE): true, op(syscall.ENFILE): true,
		op(syscall.ENOBUFS): true, op(syscall.ENOMEM): true, op(syscall.EPERM): true, op(syscall.EAFNOSUPPORT): true, op(syscall.EINVAL): true,
		op(syscall.ECONNREFUSED): false, op(syscall.ETIMEDOUT): false, op(syscall.EHOSTUNREACH): false, op(syscall.ENETUNREACH): false,
		op(syscall.ECONNRESET): false, op(syscall.ENOENT): false, op(syscall.EAGAIN): false,
		context.Canceled: true, context.DeadlineExceeded: false, os.ErrDeadlineExceeded: false,
	} {
		if got := localFault(err); got != want {
			t.Errorf("%v: local %v, want %v", err, got, want)
		}
	}
}

func TestF14NextCandidate(t *testing.T) { onEach(t, testF14NextCandidate) }

func testF14NextCandidate(t *testing.T) {
	up := newCluster(t, refused(t), backend(t, anyPort, echo))
	r := start(t, Config{Upstream: up}, func(l *Listener) {
		noPorts(l, up.member(0).Addr())
		plain := l.dial
		l.dial = func(ctx context.Context, a lbcore.Addr, d *Dial) (net.Conn, error) {
			if a == up.member(0).Addr() {
				return nil, &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.EADDRNOTAVAIL)}
			}
			return plain(ctx, a, d)
		}
	})
	c := client(t, r.Addr())
	exchange(t, c, "hello")
	_ = c.Close()
	if rec := r.record(t); rec.Attempts != 2 || rec.Endpoint != up.member(1).Addr() {
		t.Errorf("record %+v", rec)
	}
	if _, failed, _, _ := up.member(0).Counters(); failed != 0 || up.member(0).Active() != 0 {
		t.Errorf("%d failed dials, %d active", failed, up.member(0).Active())
	}
	if s := r.Stats(); s.Dials != 2 || s.DialsAbandoned != 1 || s.DialsFailed != 0 || s.Retries != 1 || s.Connects != 1 {
		t.Errorf("stats %+v", s)
	}
}

func TestServerFirst(t *testing.T) { onEach(t, testServerFirst) }

func testServerFirst(t *testing.T) {
	sides(t, func(t *testing.T, listen, endpoint lbcore.Addr) {
		up := newCluster(t, backend(t, endpoint, func(c net.Conn) {
			fmt.Fprint(c, "220 ready")
			hold(c)
		}))
		r := start(t, Config{Addr: listen, Upstream: up})
		c := client(t, r.Addr())
		b := make([]byte, 9)
		if _, err := io.ReadFull(c, b); err != nil || string(b) != "220 ready" {
			t.Fatalf("got %q, %v", b, err)
		}
	})
}

func TestBulk(t *testing.T) { onEach(t, testBulk) }

func testBulk(t *testing.T) {
	const size = 12 << 20
	sides(t, func(t *testing.T, listen, endpoint lbcore.Addr) {
		sum := func(seed byte) []byte {
			h := sha256.New()
			_, _ = io.CopyN(h, rand.NewChaCha8([32]byte{seed}), size)
			return h.Sum(nil)
		}
		send := func(c net.Conn, seed byte) {
			if _, err := io.CopyN(onlyWriter{c}, rand.NewChaCha8([32]byte{seed}), size); err != nil {
				t.Error(err)
			}
			closeWrite(c)
		}
		receive := func(c net.Conn, seed byte) {
			h := sha256.New()
			if n, err := io.Copy(h, c); n != size || err != nil {
				t.Errorf("received %d bytes, %v", n, err)
			}
			if !bytes.Equal(h.Sum(nil), sum(seed)) {
				t.Error("not what was sent")
			}
		}
		done := make(chan struct{})
		up := newCluster(t, backend(t, endpoint, func(c net.Conn) {
			var wg sync.WaitGroup
			wg.Go(func() { send(c, 1) })
			receive(c, 2)
			wg.Wait()
			close(done)
		}))
		r := start(t, Config{Addr: listen, Upstream: up})
		c := client(t, r.Addr())
		var wg sync.WaitGroup
		wg.Go(func() { send(c, 2) })
		receive(c, 1)
		wg.Wait()
		<-done
		if rec := r.record(t); rec.Flag != FlagNone || rec.BytesIn != size || rec.BytesOut != size {
			t.Errorf("record %+v", rec)
		}
		if s := r.Stats(); s.BytesIn != size || s.BytesOut != size {
			t.Errorf("stats %+v", s)
		}
		bulkChecks(t, r.Stats())
	})
}

type onlyWriter struct{ io.Writer }

func TestF16StaleSocket(t *testing.T) { onEach(t, testF16StaleSocket) }

func testF16StaleSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.sock")
	addr := lbcore.UnixAddr(path)
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	if err != nil {
		t.Fatal(err)
	}
	ln.SetUnlinkOnClose(false) // as if killed
	_ = ln.Close()

	r := start(t, Config{Addr: addr, Upstream: newCluster(t, backend(t, anyPort, echo))})
	exchange(t, client(t, addr), "taken over")

	bind := func(a lbcore.Addr) error {
		l, err := New(Config{Name: "second", Addr: a, Upstream: refuse{}, Gate: lbcore.NewGate(lbcore.GateConfig{})})
		if err != nil {
			t.Fatal(err)
		}
		err = l.Bind(t.Context())
		l.Drain(t.Context())
		return err
	}
	if err := bind(addr); !errors.Is(err, syscall.EADDRINUSE) || !strings.Contains(err.Error(), `listener "second"`) {
		t.Errorf("bind to a live socket: %v", err)
	}
	exchange(t, client(t, addr), "unharmed")

	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := bind(lbcore.UnixAddr(file)); err == nil || !strings.Contains(err.Error(), "not a socket") {
		t.Errorf("bind to a file: %v", err)
	}
	if b, err := os.ReadFile(file); string(b) != "precious" || err != nil {
		t.Errorf("the file is now %q, %v", b, err)
	}

	r.cancel()
	<-r.ran
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("after the end the socket is still there: %v", err)
	}
}
