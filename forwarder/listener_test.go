package forwarder

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"gatehouse.internal/lbcore"
)

// F10: the key is the unmapped address without the port.
func TestNoKey(t *testing.T) { onEach(t, testNoKey) }

func testNoKey(t *testing.T) {
	up := newCluster(t, backend(t, anyPort, echo))
	unix := start(t, Config{Upstream: up, Settings: Settings{HashOn: HashSourceIP}, Addr: lbcore.UnixAddr(filepath.Join(t.TempDir(), "l"))})
	none := start(t, Config{Upstream: up})
	for _, r := range []*rig{unix, none} {
		c := client(t, r.Addr())
		exchange(t, c, "x")
		_ = c.Close()
		r.record(t)
	}
	for _, k := range up.keys {
		if k != (lbcore.Key{}) {
			t.Errorf("key %+v, want none", k)
		}
	}
}

// A refused connection goes to the next candidate of the same selection; the
// client's early data is not lost.
func TestNextCandidate(t *testing.T) { onEach(t, testNextCandidate) }

func testNextCandidate(t *testing.T) {
	up := newCluster(t, refused(t), refused(t), backend(t, anyPort, echo))
	r := start(t, Config{Upstream: up})
	for range 20 {
		c := client(t, r.Addr())
		exchange(t, c, "early data")
		_ = c.Close()
		if rec := r.record(t); rec.Attempts != 3 || rec.Endpoint != up.member(2).Addr() || rec.Flag != FlagNone || rec.Connect <= 0 || rec.Duration < rec.Connect {
			t.Errorf("record %+v", rec)
		}
	}
	for i := range 2 {
		if _, failed, _, _ := up.member(i).Counters(); failed != 20 {
			t.Errorf("member %d: %d failed dials", i, failed)
		}
	}
	if s := r.Stats(); s.Dials != 60 || s.DialsFailed != 40 || s.Retries != 40 || s.Connects != 20 || s.ConnectTime <= 0 {
		t.Errorf("stats %+v", s)
	}
	if len(up.keys) != 20 {
		t.Errorf("%d selections for 20 connections", len(up.keys))
	}
}

// An endpoint that is the listener itself is not dialled: one connection would
// take all the descriptors there are.
func TestOwnAddress(t *testing.T) { onEach(t, testOwnAddress) }

func testOwnAddress(t *testing.T) {
	for _, addr := range []string{"127.0.0.1:0", "0.0.0.0:0"} {
		a, err := lbcore.ParseAddr(strings.Replace(addr, ":0", ":1", 1))
		if err != nil {
			t.Fatal(err)
		}
		a = lbcore.IPAddr(netip.AddrPortFrom(a.AddrPort().Addr(), 0))
		up := &lateCluster{}
		r := start(t, Config{Upstream: up, Addr: a})
		up.cluster.Store(newCluster(t, lbcore.IPAddr(netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), r.Addr().AddrPort().Port()))))
		c, err := net.Dial("tcp", up.cluster.Load().member(0).Addr().Dial())
		if err == nil { // the reset may come before
			if _, err := io.ReadAll(c); err == nil {
				t.Error("the connection ended in order, want a reset")
			}
			_ = c.Close()
		}
		if rec := r.record(t); rec.Flag != FlagUF || rec.Err == nil || !strings.Contains(rec.Err.Error(), "the listener itself") {
			t.Errorf("record %+v", rec)
		}
		if s := r.Stats(); s.Accepted != 1 {
			t.Errorf("%d connections accepted, want 1", s.Accepted)
		}
	}
}

// lateCluster is an Upstream that is known only after the listener.
type lateCluster struct{ cluster atomic.Pointer[cluster] }

func (l *lateCluster) Pick(r *lbcore.Reader, k lbcore.Key) (lbcore.Picks, *Dial, error) {
	return l.cluster.Load().Pick(r, k)
}

// Every way not to get an endpoint resets the client and has its flag.
func TestNoEndpoint(t *testing.T) { onEach(t, testNoEndpoint) }

func testNoEndpoint(t *testing.T) {
	var logs logBuffer
	unready := newCluster(t, refused(t), refused(t))
	for i := range 2 {
		if err := unready.view.SetEnabled(unready.member(i).Addr(), false); err != nil {
			t.Fatal(err)
		}
	}
	few := newCluster(t, refused(t), refused(t), backend(t, anyPort, echo))
	few.dial.Attempts = 2
	for name, tt := range map[string]struct {
		up       Upstream
		flag     Flag
		attempts int
		err      string
	}{
		"no endpoints":     {newCluster(t), FlagUH, 0, `no healthy upstream in cluster "web"`},
		"none ready":       {unready, FlagUH, 0, `no healthy upstream in cluster "web"`},
		"unknown cluster":  {refuse{&Refusal{FlagNC, `cluster "web" is not known`}}, FlagNC, 0, `cluster "web" is not known`},
		"overflow":         {refuse{&Refusal{FlagUO, "too many"}}, FlagUO, 0, "too many"},
		"another error":    {refuse{errors.New("what")}, FlagUH, 0, "what"},
		"wrapped refusal":  {refuse{fmt.Errorf("so: %w", &Refusal{FlagNR, "no route"})}, FlagNR, 0, "so: no route"},
		"empty, no error":  {refuse{nil}, FlagUH, 0, "no endpoint is ready"},
		"all dials fail":   {newCluster(t, refused(t), refused(t)), FlagUF, 2, "connection refused"},
		"too few attempts": {few, FlagUF, 2, "connection refused"},
	} {
		t.Run(name, func(t *testing.T) {
			r := start(t, Config{Upstream: tt.up, Logger: logs.logger()})
			wantRefused(t, r.Addr())
			rec := r.record(t)
			if rec.Flag != tt.flag || rec.Attempts != tt.attempts || !strings.Contains(rec.Err.Error(), tt.err) || rec.Connect != 0 {
				t.Errorf("record %+v, want %v", rec, tt.flag)
			}
			if s := r.Stats(); s.Flags[tt.flag] != 1 || s.Active != 0 || s.Accepted != 1 {
				t.Errorf("stats %+v", s)
			}
		})
	}
	if !strings.Contains(logs.String(), "no endpoint for a connection") {
		t.Errorf("nothing logged:\n%s", logs.String())
	}
}

type refuse struct{ err error }

func (u refuse) Pick(*lbcore.Reader, lbcore.Key) (lbcore.Picks, *Dial, error) {
	return lbcore.Picks{}, nil, u.err
}

// Connections over the limit are reset at once; those below live on, and a
// place that becomes free is given again.
func TestLimit(t *testing.T) { onEach(t, testLimit) }

func testLimit(t *testing.T) {
	up := newCluster(t, backend(t, anyPort, echo))
	r := start(t, Config{Upstream: up, Settings: Settings{MaxConnections: 3}})
	var open []net.Conn
	for range 3 {
		c := client(t, r.Addr())
		exchange(t, c, "in")
		open = append(open, c)
	}
	for range 5 {
		wantRefused(t, r.Addr())
		if rec := r.record(t); rec.Flag != FlagOM || rec.Err != errMaxConnections {
			t.Errorf("record %+v", rec)
		}
	}
	for _, c := range open {
		exchange(t, c, "still in")
	}
	eventually(t, "all is counted", func() bool { // bytes after they were sent
		s := r.Stats()
		return s.Accepted == 8 && s.Active == 3 && s.Flags[FlagOM] == 5 && s.Over[LimitListener] == 5 && s.BytesIn == 3*10 && s.BytesOut == 3*10
	})
	_ = open[0].Close()
	r.record(t)
	exchange(t, client(t, r.Addr()), "in again")
}

// Drain with sockets: new connections are refused, open ones go on, those that
// remain at the deadline are reset, on both sides.
func TestDrain(t *testing.T) { onEach(t, testDrain) }

func testDrain(t *testing.T) {
	gone := make(chan error, 2)
	up := newCluster(t, backend(t, anyPort, func(c net.Conn) {
		b := make([]byte, 3)
		if _, err := io.ReadFull(c, b); err != nil {
			return // a connection that only tries whether it is accepted
		}
		_, _ = c.Write(b)
		_, err := io.Copy(c, c)
		gone <- err
	}))
	r := start(t, Config{Upstream: up})
	c1, c2 := client(t, r.Addr()), client(t, r.Addr())
	exchange(t, c1, "one")
	exchange(t, c2, "two")
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan int, 1)
	go func() { result <- r.Drain(ctx) }()
	eventually(t, "new connections are refused", func() bool {
		c, err := net.Dial("tcp", r.Addr().Dial())
		if err == nil {
			_ = c.Close()
		}
		return errors.Is(err, syscall.ECONNREFUSED)
	})
	exchange(t, c1, "going on")
	_ = c1.Close()
	if err := <-gone; err != nil {
		t.Errorf("the endpoint saw %v, want the end of the stream", err)
	}
	exchange(t, c2, "still going on")
	eventually(t, "only one is left", func() bool { return r.Stats().Active == 1 })
	cancel()
	wantReset(t, c2)
	if err := <-gone; !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the endpoint saw %v, want a reset", err)
	}
	if n := <-result; n != 1 {
		t.Errorf("Drain cut %d, want 1", n)
	}
	if err := <-r.ran; err != nil {
		t.Errorf("Run: %v", err)
	}
	if s := r.Stats(); s.Flags[FlagLR] != 1 || s.Active != 0 {
		t.Errorf("stats %+v", s)
	}
	if n := r.Drain(t.Context()); n != 0 {
		t.Errorf("a second Drain cut %d", n)
	}
}

// The end of Run's context is the end of all connections.
func TestEnd(t *testing.T) { onEach(t, testEnd) }

func testEnd(t *testing.T) {
	r := start(t, Config{Upstream: newCluster(t, backend(t, anyPort, echo))})
	c := client(t, r.Addr())
	exchange(t, c, "hello")
	r.cancel()
	wantReset(t, c)
	if err := <-r.ran; !errors.Is(err, context.Canceled) {
		t.Errorf("Run: %v", err)
	}
}

// F16: a unix socket left behind is taken over; a live one and a file that is
// no socket are left alone.
// A port that is taken is reported by the listener's name, before anything
// runs.
func TestBindTaken(t *testing.T) { onEach(t, testBindTaken) }

func testBindTaken(t *testing.T) {
	r := start(t, Config{Upstream: refuse{}})
	l, err := New(Config{Name: "late", Addr: r.Addr(), Upstream: refuse{}, Gate: lbcore.NewGate(lbcore.GateConfig{})})
	if err != nil {
		t.Fatal(err)
	}
	err = l.Bind(t.Context())
	if !errors.Is(err, syscall.EADDRINUSE) || !strings.Contains(err.Error(), `listener "late": listen on 127.0.0.1:`) {
		t.Errorf("bind: %v", err)
	}
	if err := l.Run(t.Context()); err == nil {
		t.Error("Run without a socket")
	}
}

// A Listener that was bound and never run gives its port back.
func TestDrainWithoutRun(t *testing.T) { onEach(t, testDrainWithoutRun) }

func testDrainWithoutRun(t *testing.T) {
	l, err := New(Config{Name: "x", Addr: anyPort, Upstream: refuse{}, Gate: lbcore.NewGate(lbcore.GateConfig{})})
	if err != nil {
		t.Fatal(err)
	}
	if l.Addr() != anyPort {
		t.Errorf("address before Bind: %v", l.Addr())
	}
	if err := l.Bind(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := l.Bind(t.Context()); err == nil {
		t.Error("a second Bind")
	}
	addr := l.Addr()
	if n := l.Drain(t.Context()); n != 0 {
		t.Errorf("cut %d", n)
	}
	if err := l.Run(t.Context()); err != nil {
		t.Errorf("Run after Drain: %v", err)
	}
	ln, err := net.Listen("tcp", addr.Dial())
	if err != nil {
		t.Fatal(err)
	}
	_ = ln.Close()
}

// A thousand short connections, of all kinds of endings, leave nothing behind.
func TestManyShortConnections(t *testing.T) { onEach(t, testManyShortConnections) }

func testManyShortConnections(t *testing.T) {
	up := newCluster(t, refused(t), backend(t, anyPort, echo))
	r := start(t, Config{Upstream: up, Settings: Settings{IdleTimeout: time.Hour}})
	one := func(i int) {
		c, err := net.Dial("tcp", r.Addr().Dial())
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		switch i % 4 {
		case 0:
			reset(c)
		case 1: // leaves at once
		default:
			_, _ = c.Write([]byte("x"))
			if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
				t.Error(err)
			}
		}
	}
	burst := func(n int) {
		var wg sync.WaitGroup
		for k := range 16 {
			wg.Go(func() {
				for i := k; i < n; i += 16 {
					one(i)
				}
			})
		}
		wg.Wait()
		eventually(t, "all connections end", func() bool { return r.Stats().Active == 0 && up.member(1).Active() == 0 })
	}
	burst(64)
	check := leakCheck(t)
	burst(1000)
	check()
	s := r.Stats()
	var ended uint64
	for _, n := range s.Flags {
		ended += n
	}
	if s.Accepted != 1064 || ended != 1064 {
		t.Errorf("%d accepted, %d ended", s.Accepted, ended)
	}
	if open, dialing := up.member(1).Host(); open != 0 || dialing != 0 {
		t.Errorf("host state: %d open, %d dialling", open, dialing)
	}
}

func TestValidate(t *testing.T) {
	_, err := New(Config{Name: "bad", Settings: Settings{MaxConnections: -1, IdleTimeout: -1, HashOn: 7}})
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{`listener "bad"`, "no address", "no upstream", "no gate", "hash_on", "max_connections", "idle_timeout"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in: %v", want, err)
		}
	}
}

func TestFlagNames(t *testing.T) {
	seen := make(map[string]bool)
	for f := range Flag(NumFlags) {
		if f.String() == "" || f.Long() == "" || seen[f.String()] {
			t.Errorf("flag %d is %q, %q", f, f, f.Long())
		}
		seen[f.String()] = true
	}
	if FlagNone.String() != "-" || FlagUH.String() != "UH" || FlagUF.Long() != "UpstreamConnectionFailure" || Flag(99).Long() != "Flag(99)" {
		t.Error("wrong names")
	}
}

// A selection allocates nothing, and neither does a refusal.
func TestSelectionAllocatesNothing(t *testing.T) {
	up := newCluster(t, anyPortAt(1), anyPortAt(2))
	for _, on := range []HashOn{HashNone, HashSourceIP, HashSourceIPPort, HashDestination} {
		testSelectionAllocatesNothing(t, up, on)
	}
}

func testSelectionAllocatesNothing(t *testing.T, up *cluster, on HashOn) {
	for _, u := range []Upstream{quiet{up}, refuse{&Refusal{FlagNC, "no"}}} {
		l, err := New(Config{Name: "x", Addr: anyPort, Upstream: u, Gate: up.gate, Settings: Settings{HashOn: on}})
		if err != nil {
			t.Fatal(err)
		}
		s := newSession(l, &memConn{remote: &net.TCPAddr{IP: net.ParseIP("2001:db8::1"), Port: 99}})
		s.connectedTo(netip.MustParseAddrPort("[2001:db8:1111:2222:3333:4444:5555:6666]:65535"))
		if n := testing.AllocsPerRun(1000, func() {
			if err := s.pick(); err == nil {
				s.sel.picks.Next()
			}
		}); n != 0 {
			t.Errorf("%T, %d: %v allocations a selection", u, on, n)
		}
	}
}

// quiet is a cluster that keeps no keys.
type quiet struct{ *cluster }

func (q quiet) Pick(r *lbcore.Reader, k lbcore.Key) (lbcore.Picks, *Dial, error) {
	return q.slot.Pick(r, k, lbcore.MaxPicks), &q.dial, nil
}

func anyPortAt(i byte) lbcore.Addr {
	return lbcore.IPAddr(netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, i}), 80))
}

// Settings change while the listener runs, for connections from then on.
func TestSet(t *testing.T) { onEach(t, testSet) }

func testSet(t *testing.T) {
	r := start(t, Config{Upstream: newCluster(t, backend(t, anyPort, echo))})
	first := client(t, r.Addr())
	exchange(t, first, "in")
	if err := r.Set(Settings{MaxConnections: 1}); err != nil {
		t.Fatal(err)
	}
	wantRefused(t, r.Addr())
	for _, bad := range []Settings{{MaxConnections: -1}, {MaxDuration: -1}, {MaxDurationJitter: -1}, {MaxDurationJitter: 101}} {
		if err := r.Set(bad); err == nil {
			t.Errorf("bad settings are taken: %+v", bad)
		}
	}
	wantRefused(t, r.Addr())
	if err := r.Set(Settings{MaxConnections: 2}); err != nil {
		t.Fatal(err)
	}
	exchange(t, client(t, r.Addr()), "in again")
	exchange(t, first, "still in")
}

// swapping is an Upstream whose endpoints are replaced as a whole between the
// first selection and its first dial.
type swapping struct {
	*cluster
	next   *cluster
	picked atomic.Int32
}

func (s *swapping) Pick(r *lbcore.Reader, k lbcore.Key) (lbcore.Picks, *Dial, error) {
	if s.picked.Add(1) > 1 {
		return s.next.Pick(r, k)
	}
	picks, dial, err := s.cluster.Pick(r, k)
	for _, m := range s.view.Members() {
		if err := s.view.SetEnabled(m.Addr(), false); err != nil {
			return picks, dial, err
		}
	}
	return picks, dial, err
}

// A connection whose candidates are all gone before the first dial is selected
// for once more, and not for ever.
func TestPicksAgain(t *testing.T) { onEach(t, testPicksAgain) }

func testPicksAgain(t *testing.T) {
	up := &swapping{cluster: newCluster(t, backend(t, anyPort, hold))}
	up.next = newCluster(t, backend(t, anyPort, echo))
	up.next.gate = up.gate
	r := start(t, Config{Upstream: up})
	exchange(t, client(t, r.Addr()), "hello")
	if n := up.picked.Load(); n != 2 {
		t.Errorf("%d selections, want 2", n)
	}
}
