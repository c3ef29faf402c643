package healthsvc

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"gatehouse.internal/lbcore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errDown = errors.New("down")

// script is a probe that does what the test says and notes when.
type script struct {
	begin time.Time
	// do may be nil: pass at once. It must be set before the first Acquire.
	do func(ctx context.Context, addr lbcore.Addr) error

	mu       sync.Mutex
	starts   map[lbcore.Addr][]time.Duration
	order    []time.Duration
	inFlight map[lbcore.Addr]int
	now      int
	most     int  // in flight at a time
	overlap  bool // two of one address at a time
}

func newScript(do func(context.Context, lbcore.Addr) error) *script {
	return &script{
		begin: time.Now(), do: do,
		starts: make(map[lbcore.Addr][]time.Duration), inFlight: make(map[lbcore.Addr]int),
	}
}

func (p *script) Kind() string   { return "script" }
func (p *script) String() string { return "as the test says" }

func (p *script) Probe(ctx context.Context, addr lbcore.Addr) error {
	p.mu.Lock()
	at := time.Since(p.begin)
	p.starts[addr] = append(p.starts[addr], at)
	p.order = append(p.order, at)
	p.overlap = p.overlap || p.inFlight[addr] > 0
	p.inFlight[addr]++
	p.now++
	p.most = max(p.most, p.now)
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		p.inFlight[addr]--
		p.now--
		p.mu.Unlock()
	}()
	if p.do == nil {
		return nil
	}
	return p.do(ctx, addr)
}

// at returns when probes of addr started, since the script began.
func (p *script) at(addr lbcore.Addr) []time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]time.Duration(nil), p.starts[addr]...)
}

// cell is a variable that a test shares with its probes.
type cell[T any] struct {
	mu sync.Mutex
	v  T
}

func (c *cell[T]) get() T {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.v
}

func (c *cell[T]) set(v T) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.v = v
}

func addr(n int) lbcore.Addr {
	return lbcore.IPAddr(netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(n >> 8), byte(n)}), 80))
}

func key(n int) Key { return Key{Addr: addr(n), Spec: "script"} }

func every(d time.Duration) Cadence { return Cadence{Interval: d, Timeout: d} }

// pass lets d of a bubble's time go by, and what is due happen.
func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// run runs a Service until the test ends.
func run(t *testing.T, c Config) *Service {
	t.Helper()
	s := NewService(c)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := s.Run(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(func() {
		cancel()
		wg.Wait()
	})
	return s
}

func seconds(n ...float64) []time.Duration {
	var d []time.Duration
	for _, s := range n {
		d = append(d, time.Duration(s*float64(time.Second)))
	}
	return d
}

func wantStarts(t *testing.T, p *script, a lbcore.Addr, want []time.Duration) {
	t.Helper()
	if got := p.at(a); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%s was probed at %v, want %v", a, got, want)
	}
}

func wantState(t *testing.T, r *Ref, want lbcore.Health) {
	t.Helper()
	if got := r.State().Load(); got != want {
		t.Errorf("state is %s, want %s", got, want)
	}
	if got := r.Status().State; got != want {
		t.Errorf("Status says %s, want %s", got, want)
	}
}
