package forwarder

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"gatehouse.internal/internal/tlsconf"
	"gatehouse.internal/lbcore"
)

const haveLoops = true

// fds counts the process's descriptors.
func fds(t testing.TB) int {
	t.Helper()
	ents, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(ents)
}

// leakCheck notes how many goroutines and descriptors there are; the function
// it returns waits until there are no more than that again.
func leakCheck(t testing.TB) func() {
	t.Helper()
	f, g := fds(t), runtime.NumGoroutine()
	return func() {
		t.Helper()
		eventually(t, fmt.Sprintf("back to %d descriptors and %d goroutines", f, g), func() bool {
			return fds(t) <= f && runtime.NumGoroutine() <= g
		})
	}
}

// F22: bulk is spliced.
func bulkChecks(t testing.TB, s Stats) {
	t.Helper()
	if total := s.BytesIn + s.BytesOut; s.Splices == 0 || total/s.Splices > pipeSize*11/10 {
		t.Errorf("%d splices for %d bytes: it was copied", s.Splices, total)
	}
}

// F22: small messages are not, and no connection keeps a pipe while it waits:
// two descriptors each.
func TestF22IdleHoldsNoPipe(t *testing.T) { onEach(t, testF22IdleHoldsNoPipe) }

func testF22IdleHoldsNoPipe(t *testing.T) {
	up := newCluster(t, backend(t, anyPort, echo))
	r := start(t, Config{Upstream: up})
	before := fds(t)
	const n = 20
	for range n {
		c := client(t, r.Addr())
		exchange(t, c, "small")
		if s := r.Stats(); s.Splices != 0 {
			t.Fatalf("%d splices for small messages", s.Splices)
		}
	}
	for range n {
		c := client(t, r.Addr())
		var wg sync.WaitGroup
		wg.Go(func() { _, _ = io.CopyN(onlyWriter{c}, zeros{}, 8<<20) })
		if _, err := io.CopyN(io.Discard, c, 8<<20); err != nil {
			t.Fatal(err)
		}
		wg.Wait()
		if _, err := io.WriteString(c, "a trickle"); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(c, make([]byte, 9)); err != nil {
			t.Fatal(err)
		}
	}
	// Client, two in the agent, endpoint.
	eventually(t, "two descriptors a connection, and spare pipes", func() bool {
		return fds(t) <= before+4*2*n+2*sparePipes
	})
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { return len(b), nil }

// F22: a connection without a pipe to be had is copied.
func TestF22NoPipe(t *testing.T) { onEach(t, testF22NoPipe) }

func testF22NoPipe(t *testing.T) {
	up := newCluster(t, backend(t, anyPort, echo))
	r := start(t, Config{Upstream: up})
	c := client(t, r.Addr())
	var wg sync.WaitGroup
	var lim syscall.Rlimit
	exchange(t, c, "connected")
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &lim); err != nil {
		t.Fatal(err)
	}
	low := lim
	low.Cur = 3 // nothing new can be opened
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &low); err != nil {
		t.Fatal(err)
	}
	wg.Go(func() { _, _ = io.CopyN(onlyWriter{c}, zeros{}, 8<<20) })
	n, err := io.CopyN(io.Discard, c, 8<<20)
	wg.Wait()
	if e := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &lim); e != nil {
		t.Fatal(e)
	}
	if n != 8<<20 || err != nil {
		t.Errorf("%d bytes, %v", n, err)
	}
	if s := r.Stats(); s.Splices != 0 {
		t.Errorf("%d splices", s.Splices)
	}
}

// A slow reader holds back a bounded amount, and gets everything in the end.
func TestSlowReader(t *testing.T) { onEach(t, testSlowReader) }

func testSlowReader(t *testing.T) {
	go_ := make(chan struct{})
	sum := make(chan int64, 1)
	up := newCluster(t, backend(t, anyPort, func(c net.Conn) {
		_ = c.(*net.TCPConn).SetReadBuffer(64 << 10)
		<-go_
		n, _ := io.Copy(io.Discard, c)
		sum <- n
	}))
	r := start(t, Config{Upstream: up})
	c := client(t, r.Addr())
	var wrote int64
	b := make([]byte, 64<<10)
	for { // until it takes no more
		_ = c.SetWriteDeadline(time.Now().Add(500 * time.Millisecond))
		n, err := c.Write(b)
		wrote += int64(n)
		if err != nil {
			break
		}
		if wrote > 1<<30 {
			t.Fatal("no end to what the agent takes")
		}
	}
	queued, _ := unix.IoctlGetInt(clientFD(t, r), unix.SIOCINQ)
	if held := wrote - int64(r.Stats().BytesIn) - int64(queued) - int64(outq(c)); held > pipeSize+bufferSize {
		t.Errorf("the relay itself holds %d bytes", held)
	}
	close(go_)
	_ = c.SetWriteDeadline(time.Time{})
	closeWrite(c)
	if n := <-sum; n != wrote {
		t.Errorf("wrote %d, arrived %d", wrote, n)
	}
}

func outq(c net.Conn) (n int) {
	_ = rawConn(c).Control(func(fd uintptr) { n, _ = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) })
	return n
}

// F9: both legs have keepalive, a user timeout and no delay.
func TestF9Keepalive(t *testing.T) { onEach(t, testF9Keepalive) }

func testF9Keepalive(t *testing.T) {
	up := newCluster(t, backend(t, anyPort, echo))
	r := start(t, Config{Upstream: up})
	c := client(t, r.Addr())
	exchange(t, c, "hello")
	if r.port != nil {
		r.cfg.Loops.skip(tuneAfter)
	}
	for name, fd := range map[string]int{"client": clientFD(t, r), "upstream": upstreamFD(t, r)} {
		for opt, want := range map[[2]int]int{
			{unix.SOL_SOCKET, unix.SO_KEEPALIVE}: 1, {unix.IPPROTO_TCP, unix.TCP_KEEPIDLE}: 120, {unix.IPPROTO_TCP, unix.TCP_KEEPINTVL}: 15,
			{unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT}: 300_000, {unix.IPPROTO_TCP, unix.TCP_NODELAY}: 1,
		} {
			if got, err := unix.GetsockoptInt(fd, opt[0], opt[1]); got != want || err != nil {
				t.Errorf("%s: option %v is %d, %v; want %d", name, opt, got, err, want)
			}
		}
	}
}

// F4 with the real thing: a process out of descriptors keeps its listener, does
// not spin, and serves again when there are some.
func TestF4Descriptors(t *testing.T) { onEach(t, testF4Descriptors) }

func testF4Descriptors(t *testing.T) {
	ep := backend(t, anyPort, echo)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+ep.String())
	if strings.HasSuffix(t.Name(), "/loops") {
		cmd.Env = append(cmd.Env, childLoopsEnv+"=1")
	}
	var stderr logBuffer
	cmd.Stderr = &stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = stdin.Close(); _ = cmd.Wait() })
	lines := bufio.NewScanner(stdout)
	ask := func() (s Stats) {
		t.Helper()
		fmt.Fprintln(stdin)
		if !lines.Scan() {
			t.Fatalf("the child has ended: %s", stderr.String())
		}
		if err := json.Unmarshal(lines.Bytes(), &s); err != nil {
			t.Fatal(err)
		}
		return s
	}
	if !lines.Scan() {
		t.Fatalf("the child has ended: %s", stderr.String())
	}
	addr := lbcore.IPAddr(netip.MustParseAddrPort(lines.Text()))
	var conns []net.Conn
	for range 60 { // its limit is 40
		c, err := net.Dial("tcp", addr.Dial())
		if errors.Is(err, syscall.ECONNRESET) {
			continue // accepted, and no descriptor was left for the endpoint
		}
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, c)
	}
	begin := time.Now()
	eventually(t, "accept fails", func() bool {
		s := ask()
		if s.DialsAbandoned > 0 && len(conns) < 200 {
			if c, err := net.Dial("tcp", addr.Dial()); err == nil {
				conns = append(conns, c)
			}
		}
		return s.AcceptErrors >= 3
	})
	if s, most := ask(), uint64(10+time.Since(begin)/minAcceptWait); s.AcceptErrors > most {
		t.Errorf("%d failures: it spins", s.AcceptErrors)
	}
	for _, c := range conns {
		_ = c.Close()
	}
	eventually(t, "it serves again", func() bool { // some descriptors may not be free yet
		c, err := net.Dial("tcp", addr.Dial())
		if err != nil {
			return false
		}
		defer c.Close()
		_, _ = c.Write([]byte("x"))
		n, _ := c.Read(make([]byte, 1))
		return n == 1
	})
	if n := strings.Count(stderr.String(), "can't accept"); n < 1 || n > 1+int(time.Since(begin)/sampleEvery) {
		t.Errorf("%d lines logged:\n%s", n, stderr.String())
	}
}

// child is the process of TestF4Descriptors: it prints its address, then its
// stats for each line it reads.
func child() int {
	fail := func(err error) int {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	ep, err := lbcore.ParseAddr(os.Getenv(childEnv))
	if err != nil {
		return fail(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	up, wait := runCluster(ctx, ep)
	var wg sync.WaitGroup
	var loops *Loops
	if os.Getenv(childLoopsEnv) != "" {
		loops = NewLoops(LoopsConfig{Count: 2})
		wg.Go(func() { _ = loops.Run(ctx) })
	}
	l, err := New(Config{Name: "child", Loops: loops, Addr: anyPort, Upstream: up, Gate: up.gate, Logger: slog.New(slog.NewTextHandler(os.Stderr, nil))})
	if err != nil {
		return fail(err)
	}
	if err := l.Bind(ctx); err != nil {
		return fail(err)
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: 40, Max: 40}); err != nil {
		return fail(err)
	}
	wg.Go(func() { _ = l.Run(ctx) })
	fmt.Println(l.Addr())
	var last *os.File
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		if loops != nil && last == nil && l.Stats().DialsAbandoned > 0 {
			// A loop that has accepted with the last descriptor dials at once, and
			// gives it back: accept would never fail.
			last, _ = os.Open(os.DevNull)
		}
		if err := json.NewEncoder(os.Stdout).Encode(l.Stats()); err != nil {
			return fail(err)
		}
	}
	cancel()
	wg.Wait()
	wait()
	return 0
}

// A TLS connection that rests holds no buffer.
func TestTLSIdleMemory(t *testing.T) {
	p := newPKI(t)
	up := newCluster(t, backend(t, anyPort, secured(p.server(t).Config(), func(c *tls.Conn) {
		_, _ = io.CopyBuffer(c, struct{ io.Reader }{c}, make([]byte, 16))
	})))
	up.dial.TLS = p.upstream(t, tlsconf.ClientConfig{ServerName: "web.internal"})
	r := start(t, Config{Upstream: up, Settings: Settings{TLS: p.server(t)}})
	open := func(n int) {
		for range n {
			exchange(t, p.dial(t, r.Addr(), p.clientConfig()), "hello")
		}
	}
	inUse := func() int {
		runtime.GC() // twice: a pool keeps for one
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int(m.HeapAlloc)
	}
	open(20)
	before := inUse()
	const n = 100
	open(n)
	// With what the client and the endpoint hold here, and package tls.
	if each := (inUse() - before) / n; each > bufferSize {
		t.Errorf("%d bytes a connection", each)
	}
}
