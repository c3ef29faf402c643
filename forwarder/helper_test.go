package forwarder

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"gatehouse.internal/lbcore"
)

// childEnv tells a test binary to be TestF4Descriptors's child, childLoopsEnv
// that it is to use event loops.
const (
	childEnv      = "FORWARDER_TEST_ENDPOINT"
	childLoopsEnv = "FORWARDER_TEST_LOOPS"
)

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		os.Exit(child())
	}
	goleak.VerifyTestMain(m)
}

// inOrder is a policy that yields the members in the order of their hash keys,
// so that tests say which candidate is first.
type inOrder struct{}

func (inOrder) Shape(lbcore.Input) (u64, u32 int, err error) { return 0, 0, nil }

func (inOrder) Build(in lbcore.Input, _ *lbcore.Storage, _ func() error) (lbcore.Selector, error) {
	var s orderSelector
	for i := range in.Members {
		s = append(s, i)
	}
	slices.SortFunc(s, func(a, b int) int { return cmp.Compare(in.Endpoints[a].HashKey, in.Endpoints[b].HashKey) })
	return s, nil
}

type orderSelector []int

func (s orderSelector) First(lbcore.Key) uint64 { return 0 }

func (s orderSelector) Next(_ lbcore.Key, at uint64) (int, uint64) {
	return s[at%uint64(len(s))], at + 1
}

func (s orderSelector) Steps() (int, bool) { return len(s), true }

// cluster is an Upstream over a real View, Group and Gate.
type cluster struct {
	view *lbcore.View
	slot *lbcore.Slot
	gate *lbcore.Gate
	dial Dial
	none *Refusal

	mu   sync.Mutex
	keys []lbcore.Key // of every Pick
}

func (c *cluster) Pick(r *lbcore.Reader, k lbcore.Key) (lbcore.Picks, *Dial, error) {
	c.mu.Lock()
	c.keys = append(c.keys, k)
	c.mu.Unlock()
	p := c.slot.Pick(r, k, lbcore.MaxPicks)
	if p.Len() == 0 {
		return p, &c.dial, c.none
	}
	return p, &c.dial, nil
}

// member returns the live state of the i-th address that was given.
func (c *cluster) member(i int) *lbcore.Member {
	for _, m := range c.view.Members() {
		if m.Endpoint().HashKey == strconv.Itoa(i) {
			return m
		}
	}
	return nil
}

// newCluster serves addrs, to be tried in this order.
func newCluster(t testing.TB, addrs ...lbcore.Addr) *cluster {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	c, wait := runCluster(ctx, addrs...)
	t.Cleanup(func() { cancel(); wait() })
	return c
}

// runCluster is newCluster without a test: it runs until ctx ends.
func runCluster(ctx context.Context, addrs ...lbcore.Addr) (c *cluster, wait func()) {
	return runClusterOf(ctx, inOrder{}, addrs...)
}

// runClusterOf is runCluster with another policy.
func runClusterOf(ctx context.Context, policy lbcore.Builder, addrs ...lbcore.Addr) (c *cluster, wait func()) {
	c = &cluster{
		gate: lbcore.NewGate(lbcore.GateConfig{}), dial: Dial{Cluster: "web", Attempts: 3},
		none: &Refusal{FlagUH, `no healthy upstream in cluster "web"`},
	}
	c.view = lbcore.NewView("web", new(lbcore.Hosts), lbcore.ViewConfig{})
	g := lbcore.NewGroup(lbcore.GroupConfig{View: c.view, Gate: c.gate, Slots: []lbcore.SlotConfig{{Name: "default", Policy: "test", Builder: policy}}})
	c.slot = g.Slots()[0]
	var wg sync.WaitGroup
	wg.Go(func() { _ = g.Run(ctx) })
	eps := make([]lbcore.Endpoint, len(addrs))
	for i, a := range addrs {
		eps[i] = lbcore.Endpoint{Addr: a, Weight: 1, HashKey: strconv.Itoa(i)}
	}
	snap, _ := c.view.Update(lbcore.MustSet(eps...))
	g.Rebuild(snap)
	if err := g.WaitGeneration(ctx, snap.Generation); err != nil {
		panic(err)
	}
	return c, wg.Wait
}

// onEach runs a test of what every relay must do, on each of them: start takes
// the relay from the name of the test.
func onEach(t *testing.T, f func(*testing.T)) {
	t.Run("goroutines", f)
	if haveLoops {
		t.Run("loops", f)
	}
}

// rig is a Listener that runs until the test ends.
type rig struct {
	*Listener
	records chan Record
	ran     chan error // what Run returned
	cancel  context.CancelFunc
}

var anyPort = lbcore.IPAddr(netip.MustParseAddrPort("127.0.0.1:0"))

// start completes cfg, and binds and runs a Listener.
func start(t testing.TB, cfg Config, change ...func(*Listener)) *rig {
	t.Helper()
	r := &rig{records: make(chan Record, 4096), ran: make(chan error, 1)}
	cfg.Name = cmp.Or(cfg.Name, "test")
	if !cfg.Addr.IsValid() {
		cfg.Addr = anyPort
	}
	if c, ok := cfg.Upstream.(*cluster); ok && cfg.Gate == nil {
		cfg.Gate = c.gate
	}
	if cfg.Gate == nil {
		cfg.Gate = lbcore.NewGate(lbcore.GateConfig{})
	}
	cfg.OnDone = func(rec *Record) { r.records <- *rec }
	if cfg.Loops == nil {
		cfg.Loops = loopsFor(t)
	}
	l, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range change {
		f(l)
	}
	if err := l.Bind(t.Context()); err != nil {
		t.Fatal(err)
	}
	if (l.port != nil) != (cfg.Loops != nil) {
		t.Fatal("not the relay that was asked for")
	}
	r.Listener = l
	ctx, cancel := context.WithCancel(context.Background())
	r.cancel = cancel
	var wg sync.WaitGroup
	wg.Go(func() { r.ran <- l.Run(ctx) })
	t.Cleanup(func() { cancel(); wg.Wait() })
	return r
}

// record returns the next connection that has ended.
func (r *rig) record(t testing.TB) Record {
	t.Helper()
	select {
	case rec := <-r.records:
		return rec
	case <-time.After(20 * time.Second):
		t.Fatalf("no connection ended; %+v", r.Stats())
	}
	panic("not reached")
}

// eventually waits for a condition.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for end := time.After(20 * time.Second); !ok(); {
		select {
		case <-tick.C:
		case <-end:
			t.Fatalf("never happened: %s", what)
		}
	}
}

// client connects to a Listener, or to anything that is listened on.
func client(t testing.TB, a lbcore.Addr) net.Conn {
	t.Helper()
	c, err := net.DialTimeout(a.Network(), a.Dial(), 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(30 * time.Second))
	return c
}

// backend serves each connection at a by serve, which need not close it. It
// ends, with all connections, when the test does.
func backend(t testing.TB, a lbcore.Addr, serve func(net.Conn)) lbcore.Addr {
	t.Helper()
	at, _ := backendUntil(t, a, serve)
	return at
}

// backendUntil is backend with a function that ends it earlier.
func backendUntil(t testing.TB, a lbcore.Addr, serve func(net.Conn)) (at lbcore.Addr, stop func()) {
	t.Helper()
	ln, err := net.Listen(a.Network(), a.Dial())
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	open := make(map[net.Conn]bool)
	closing := false
	wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			if open[c] = true; closing {
				_ = c.Close()
			}
			mu.Unlock()
			wg.Go(func() {
				serve(c)
				_ = c.Close()
				mu.Lock()
				delete(open, c)
				mu.Unlock()
			})
		}
	})
	stop = sync.OnceFunc(func() {
		_ = ln.Close()
		mu.Lock()
		closing = true
		for c := range open {
			_ = c.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
	t.Cleanup(stop)
	switch a := ln.Addr().(type) {
	case *net.TCPAddr:
		return lbcore.IPAddr(a.AddrPort()), stop
	case *net.UnixAddr:
		return lbcore.UnixAddr(a.Name), stop
	}
	panic("not reached")
}

// echo sends everything back, and the end of the stream too. It takes no
// splice, whose pipes would be counted with the agent's.
func echo(c net.Conn) { _, _ = io.Copy(struct{ io.Writer }{c}, struct{ io.Reader }{c}) }

// hold keeps a connection until the other side closes it.
func hold(c net.Conn) { _, _ = io.Copy(io.Discard, c) }

// refused is an address at which nobody listens.
func refused(t testing.TB) lbcore.Addr {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	return lbcore.IPAddr(ln.Addr().(*net.TCPAddr).AddrPort())
}

// exchange sends a message and wants the same back.
func exchange(t testing.TB, c net.Conn, msg string) {
	t.Helper()
	if _, err := io.WriteString(c, msg); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(msg))
	if _, err := io.ReadFull(c, got); err != nil || string(got) != msg {
		t.Fatalf("sent %q, got %q, %v", msg, got, err)
	}
}

// wantReset reads c to the end, which must be a reset, and returns the data
// before it.
func wantReset(t testing.TB, c net.Conn) []byte {
	t.Helper()
	got, err := io.ReadAll(c)
	if !errors.Is(err, syscall.ECONNRESET) {
		t.Fatalf("read %d bytes and then %v; want a reset", len(got), err)
	}
	return got
}

// wantRefused connects and is reset, at once or when it has sent something.
func wantRefused(t testing.TB, a lbcore.Addr) {
	t.Helper()
	c, err := net.Dial(a.Network(), a.Dial())
	if errors.Is(err, syscall.ECONNRESET) {
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := c.Write([]byte("early data")); err != nil {
		return
	}
	if got := wantReset(t, c); len(got) > 0 {
		t.Errorf("got %q", got)
	}
}

// logBuffer collects log lines.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func (l *logBuffer) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug}))
}
