package healthsvc

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/iotest"
	"time"

	"pgregory.net/rapid"

	"gatehouse.internal/lbcore"
)

// backend accepts on network ("tcp" or "unix") until the test ends, and counts.
type backend struct {
	addr    lbcore.Addr
	accepts atomic.Int64
}

// serve starts a backend that hands each connection to talk and then closes it.
// ctx ends with the test.
func serve(t testing.TB, network string, talk func(ctx context.Context, c net.Conn)) *backend {
	t.Helper()
	where := "127.0.0.1:0"
	if network == "unix" {
		where = filepath.Join(t.TempDir(), "s")
	}
	l, err := net.Listen(network, where)
	if err != nil {
		t.Fatal(err)
	}
	b := &backend{addr: lbcore.UnixAddr(where)}
	if network == "tcp" {
		b.addr = lbcore.IPAddr(netip.MustParseAddrPort(l.Addr().String()))
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			b.accepts.Add(1)
			wg.Go(func() {
				defer c.Close()
				defer context.AfterFunc(ctx, func() { c.Close() })()
				talk(ctx, c)
			})
		}
	})
	t.Cleanup(func() {
		cancel()
		l.Close()
		wg.Wait()
	})
	return b
}

func both(t *testing.T, f func(t *testing.T, network string)) {
	for _, network := range []string{"tcp", "unix"} {
		t.Run(network, func(t *testing.T) { f(t, network) })
	}
}

// quiet holds a connection until the peer or the test ends it.
func quiet(_ context.Context, c net.Conn) { io.Copy(io.Discard, c) }

// probeOnce gives p plenty of time.
func probeOnce(t *testing.T, p Probe, a lbcore.Addr) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	return p.Probe(ctx, a)
}

// expiring is a context whose deadline passes when the channel is closed.
type expiring struct {
	context.Context
	done chan struct{}
}

func (e expiring) Done() <-chan struct{} { return e.done }

func (e expiring) Err() error {
	select {
	case <-e.done:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

// probeUntil probes a backend that talk serves, and lets the probe's time run
// out when talk calls expire.
func probeUntil(t *testing.T, p Probe, network string, talk func(ctx context.Context, c net.Conn, expire func())) error {
	t.Helper()
	done := make(chan struct{})
	b := serve(t, network, func(ctx context.Context, c net.Conn) {
		talk(ctx, c, func() { close(done) })
	})
	return p.Probe(expiring{t.Context(), done}, b.addr)
}

func wantError(t *testing.T, err error, text string) {
	t.Helper()
	switch {
	case text == "" && err != nil:
		t.Errorf("failed: %v", err)
	case text != "" && (err == nil || !strings.Contains(err.Error(), text)):
		t.Errorf("got %v, want an error with %q", err, text)
	}
}

func wantTimeout(t *testing.T, err error, text string) {
	t.Helper()
	wantError(t, err, text)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v is no timeout", err)
	}
}

func TestTCPConnect(t *testing.T) {
	both(t, func(t *testing.T, network string) {
		b := serve(t, network, quiet)
		wantError(t, probeOnce(t, TCP{}, b.addr), "")
		poll(t, "accept", func() bool { return b.accepts.Load() == 1 })
	})
}

func TestTCPRefused(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	a := lbcore.IPAddr(netip.MustParseAddrPort(l.Addr().String()))
	l.Close()
	err = probeOnce(t, TCP{}, a)
	if err == nil || err.Error() != "connect: connection refused" {
		t.Errorf("got %v", err)
	}
	err = probeOnce(t, HTTP{Path: "/"}, a)
	if err == nil || err.Error() != "connect: connection refused" {
		t.Errorf("got %v", err)
	}
	wantError(t, probeOnce(t, TCP{}, lbcore.UnixAddr(filepath.Join(t.TempDir(), "none"))), "connect: no such file")
}

func TestTCPSendReceive(t *testing.T) {
	p := TCP{Send: []byte("PING\r\n"), Receive: [][]byte{[]byte("+PO"), []byte("role"), []byte("master")}}
	answer := func(packets ...string) func(context.Context, net.Conn) {
		return func(_ context.Context, c net.Conn) {
			got := make([]byte, len(p.Send))
			if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, p.Send) {
				c.Write([]byte("-ERR\r\n"))
				return
			}
			for _, s := range packets {
				if _, err := c.Write([]byte(s)); err != nil {
					return
				}
			}
		}
	}
	both(t, func(t *testing.T, network string) {
		for _, c := range []struct {
			name    string
			packets []string
			want    string
		}{
			{"at once", []string{"xx+PONG role:master\r\n"}, ""},
			{"split", []string{"+", "PON", "G r", "o", "le:", "mas", "te", "r"}, ""},
			{"block begins twice", []string{"+P+PONG", "rorole", "mamaster"}, ""},
			{"wrong order", []string{"+PONG master role"}, "receive: block 3 of 3 not seen in 17 bytes: connection closed by the peer"},
			{"nothing", nil, "receive: block 1 of 3 not seen in 0 bytes: connection closed by the peer"},
		} {
			t.Run(c.name, func(t *testing.T) {
				b := serve(t, network, answer(c.packets...))
				wantError(t, probeOnce(t, p, b.addr), c.want)
			})
		}
	})
}

func TestTCPSilent(t *testing.T) {
	both(t, func(t *testing.T, network string) {
		p := TCP{Send: []byte("x"), Receive: [][]byte{[]byte("y")}}
		readOne := func(ctx context.Context, c net.Conn, expire func()) {
			c.Read(make([]byte, 1))
			expire()
			<-ctx.Done()
		}
		wantTimeout(t, probeUntil(t, p, network, readOne), "receive: block 1 of 1 not seen in 0 bytes: timed out")
		// A peer that does not read does not hold up a write for ever either.
		p.Send = make([]byte, 64<<20)
		wantTimeout(t, probeUntil(t, p, network, readOne), "send: timed out")
	})
}

func TestTCPReset(t *testing.T) {
	b := serve(t, "tcp", func(_ context.Context, c net.Conn) {
		c.Read(make([]byte, 1)) // the probe is connected now
		c.(*net.TCPConn).SetLinger(0)
	})
	p := TCP{Send: []byte("x"), Receive: [][]byte{[]byte("y")}}
	wantError(t, probeOnce(t, p, b.addr), "connection reset by peer")
	h := serve(t, "tcp", func(_ context.Context, c net.Conn) {
		c.Read(make([]byte, 1))
		c.(*net.TCPConn).SetLinger(0)
	})
	wantError(t, probeOnce(t, HTTP{Path: "/"}, h.addr), "response: connection reset by peer")
}

func TestTCPEndlessAnswer(t *testing.T) {
	b := serve(t, "tcp", func(_ context.Context, c net.Conn) {
		for {
			if _, err := c.Write(make([]byte, 32<<10)); err != nil {
				return
			}
		}
	})
	p := TCP{Receive: [][]byte{[]byte("x")}}
	wantError(t, probeOnce(t, p, b.addr), "receive: block 1 of 1 not seen in 10")
}

// A probe ends its connection by a reset, so that it leaves no TIME_WAIT.
func TestTCPCloseResets(t *testing.T) {
	ends := make(chan error, 1)
	b := serve(t, "tcp", func(_ context.Context, c net.Conn) {
		c.Write([]byte("x"))
		_, err := c.Read(make([]byte, 1))
		ends <- err
	})
	wantError(t, probeOnce(t, TCP{Receive: [][]byte{[]byte("x")}}, b.addr), "")
	if err := <-ends; err == nil || !strings.Contains(err.Error(), "reset") {
		t.Errorf("the backend read %v, want a reset", err)
	}
}

func TestCancelEndsProbe(t *testing.T) {
	for _, p := range []Probe{TCP{Receive: [][]byte{[]byte("x")}}, HTTP{Path: "/"}} {
		t.Run(p.Kind(), func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			b := serve(t, "tcp", func(ctx context.Context, c net.Conn) {
				cancel()
				quiet(ctx, c)
			})
			if err := p.Probe(ctx, b.addr); err == nil {
				t.Error("passed")
			}
		})
	}
}

func TestReceiveAgainstModel(t *testing.T) {
	// The bytes are few, so that blocks overlap and repeat.
	text := rapid.StringMatching(`[ab]{0,20}`)
	block := rapid.StringMatching(`[ab]{1,4}`)
	rapid.Check(t, func(t *rapid.T) {
		stream := text.Draw(t, "stream")
		blocks := rapid.SliceOfN(block, 0, 4).Draw(t, "blocks")
		want, rest := true, stream
		var in [][]byte
		for _, b := range blocks {
			in = append(in, []byte(b))
			var found bool
			_, rest, found = strings.Cut(rest, b)
			want = want && found
		}
		for name, r := range map[string]io.Reader{
			"whole": strings.NewReader(stream), "halves": iotest.HalfReader(strings.NewReader(stream)),
			"bytes": iotest.OneByteReader(strings.NewReader(stream)), "with EOF": iotest.DataErrReader(strings.NewReader(stream)),
		} {
			if err := receive(context.Background(), r, in); (err == nil) != want {
				t.Fatalf("%s, blocks %q in %q: %v", name, blocks, stream, err)
			}
		}
	})
}

func TestTCPValidate(t *testing.T) {
	big := make([]byte, MaxPayload+1)
	for _, c := range []struct {
		p    TCP
		want string
	}{
		{TCP{}, ""},
		{TCP{Send: big[1:], Receive: [][]byte{big[1:]}}, ""},
		{TCP{Send: big}, "send: 65537 bytes"},
		{TCP{Receive: [][]byte{{1}, {}}}, "receive: block 2 is empty"},
		{TCP{Receive: [][]byte{big}}, "receive: block 1: 65537 bytes"},
		{TCP{Receive: slices.Repeat([][]byte{{1}}, MaxBlocks+1)}, "receive: 65 blocks"},
	} {
		wantError(t, c.p.Validate(), c.want)
	}
}

func TestTCPSpec(t *testing.T) {
	specs := make(map[string]TCP)
	for _, p := range []TCP{
		{}, {Send: []byte("a")}, {Receive: [][]byte{[]byte("a")}}, {Receive: [][]byte{[]byte("a"), []byte("a")}},
		{Receive: [][]byte{[]byte("aa")}}, {Send: []byte("a"), Receive: [][]byte{[]byte("a")}},
	} {
		if q, found := specs[p.Spec()]; found {
			t.Errorf("%+v and %+v are both %q", p, q, p.Spec())
		}
		specs[p.Spec()] = p
	}
	if got, want := (TCP{Send: []byte("hi"), Receive: [][]byte{{0}, {1, 255}}}).Spec(), "tcp send=6869 receive=00,01ff"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func FuzzReceive(f *testing.F) {
	f.Add([]byte("+PONG role:master"), []byte("PON"), []byte("master"), 3)
	f.Fuzz(func(t *testing.T, stream, one, two []byte, packet int) {
		if len(one) == 0 || len(two) == 0 {
			return
		}
		_, rest, first := bytes.Cut(stream, one)
		_, _, second := bytes.Cut(rest, two)
		r := &packets{stream, max(packet, 1)}
		if err := receive(t.Context(), r, [][]byte{one, two}); (err == nil) != (first && second) {
			t.Fatalf("%q, %q in %q: %v", one, two, stream, err)
		}
	})
}

// packets reads n bytes at a time.
type packets struct {
	left []byte
	n    int
}

func (p *packets) Read(b []byte) (int, error) {
	if len(p.left) == 0 {
		return 0, io.EOF
	}
	n := copy(b, p.left[:min(p.n, len(p.left))])
	p.left = p.left[n:]
	return n, nil
}

// TestSharedStreamAtTheBackend counts what backends see. A key with two sharers
// of nearly equal intervals gets as many connections as one with the faster of
// them only, and not nearly twice as many.
func TestSharedStreamAtTheBackend(t *testing.T) {
	s := run(t, Config{})
	shared, alone := serve(t, "tcp", quiet), serve(t, "tcp", quiet)
	p := TCP{}
	c := Cadence{Interval: 10 * time.Millisecond, Timeout: 10 * time.Millisecond}
	slower := Cadence{Interval: 11 * time.Millisecond, Timeout: 10 * time.Millisecond}
	s.Acquire(Key{Addr: shared.addr, Spec: p.Spec()}, p, &Ask{Cadence: c, Thresholds: Thresholds{Healthy: 1, Unhealthy: 1}})
	s.Acquire(Key{Addr: shared.addr, Spec: p.Spec()}, p, &Ask{Cadence: slower, Thresholds: Thresholds{Healthy: 2, Unhealthy: 3}})
	s.Acquire(Key{Addr: alone.addr, Spec: p.Spec()}, p, &Ask{Cadence: c, Thresholds: Thresholds{Healthy: 1, Unhealthy: 1}})
	poll(t, "100 connections", func() bool { return alone.accepts.Load() >= 100 })
	if a, b := shared.accepts.Load(), alone.accepts.Load(); a < b/2 || a > b*3/2 {
		t.Errorf("%d connections to the shared backend, %d to the other", a, b)
	}
}

// TestHealthOfRealBackend sees a backend come, go and come back.
func TestHealthOfRealBackend(t *testing.T) {
	s := run(t, Config{})
	path := filepath.Join(t.TempDir(), "s")
	changes := make(chan struct{}, 1)
	p := TCP{}
	r := s.Acquire(Key{Addr: lbcore.UnixAddr(path), Spec: p.Spec()}, p, &Ask{Cadence: every(30 * time.Millisecond), Thresholds: Thresholds{Healthy: 2, Unhealthy: 2}, OnChange: func() {
		select {
		case changes <- struct{}{}:
		default:
		}
	}})

	await := func(want lbcore.Health) {
		t.Helper()
		for r.State().Load() != want {
			select {
			case <-changes:
			case <-time.After(30 * time.Second):
				t.Fatalf("never %s: %+v", want, r.Status())
			}
		}
	}
	await(lbcore.HealthUnhealthy)
	for range 2 {
		l, err := net.Listen("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		await(lbcore.HealthHealthy)
		l.Close()
		await(lbcore.HealthUnhealthy)
	}
	poll(t, "the reason", func() bool { return r.Status().LastError == "connect: no such file or directory" })
}

func TestReason(t *testing.T) {
	timeout := &net.OpError{Op: "dial", Err: os.ErrDeadlineExceeded}
	for _, c := range []struct {
		err     error
		want    string
		timeout bool
	}{
		{os.NewSyscallError("connect", syscall.ECONNREFUSED), "x: connection refused", false},
		// A unix socket whose backlog is full says EAGAIN.
		{os.NewSyscallError("connect", syscall.EAGAIN), "x: resource temporarily unavailable", false},
		{os.NewSyscallError("connect", syscall.ETIMEDOUT), "x: timed out", true},
		{timeout, "x: timed out", true},
		{io.ErrUnexpectedEOF, "x: connection closed by the peer", false},
		{errDown, "x: down", false},
	} {
		got := reason(t.Context(), "x", c.err)
		if got.Error() != c.want || errors.Is(got, context.DeadlineExceeded) != c.timeout {
			t.Errorf("%v: %v, want %s", c.err, got, c.want)
		}
	}
	if got := reason(t.Context(), "x", os.NewSyscallError("socket", syscall.EMFILE)); !isLocal(got) {
		t.Errorf("%v is not a lack of local resources", got)
	}
}

// TestOutOfDescriptors lowers the limit of the process for a moment, so it must
// not run beside other tests.
func TestOutOfDescriptors(t *testing.T) {
	b := serve(t, "tcp", quiet)
	var old syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	none := old
	none.Cur = 3
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &none); err != nil {
		t.Fatal(err)
	}
	err := probeOnce(t, TCP{}, b.addr)
	if e := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &old); e != nil {
		t.Fatal(e)
	}
	if err == nil || !isLocal(err) {
		t.Errorf("without a descriptor to spare: %v", err)
	}
	wantError(t, probeOnce(t, TCP{}, b.addr), "")
}
