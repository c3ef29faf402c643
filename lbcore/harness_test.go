package lbcore_test

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"gatehouse.internal/lbcore"
	"gatehouse.internal/lbcore/leastweight"
	"gatehouse.internal/lbcore/maglev"
	"gatehouse.internal/lbcore/random"
	"gatehouse.internal/lbcore/ringhash"
	"gatehouse.internal/lbcore/roundrobin"
)

// addr returns the address of endpoint i; they are in the order of a Set.
func addr(i int) lbcore.Addr {
	ip := netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
	return lbcore.IPAddr(netip.AddrPortFrom(ip, 80))
}

// num returns the i of m's address.
func num(m *lbcore.Member) int {
	b := m.Addr().AddrPort().Addr().As4()
	return int(b[1])<<16 | int(b[2])<<8 | int(b[3])
}

// ep returns endpoint i with weight 1.
func ep(i int) lbcore.Endpoint { return lbcore.Endpoint{Addr: addr(i), Weight: 1} }

// with returns e changed by f.
func with(e lbcore.Endpoint, f func(*lbcore.Endpoint)) lbcore.Endpoint {
	f(&e)
	return e
}

// set returns the set of endpoints with these numbers.
func set(is ...int) lbcore.Set {
	eps := make([]lbcore.Endpoint, len(is))
	for k, i := range is {
		eps[k] = ep(i)
	}
	return lbcore.MustSet(eps...)
}

// span returns the set of n endpoints from the first on, their weights in turn.
func span(first, n int, weights ...uint32) lbcore.Set {
	eps := make([]lbcore.Endpoint, n)
	for k := range eps {
		eps[k] = ep(first + k)
		if len(weights) > 0 {
			eps[k].Weight = weights[k%len(weights)]
		}
	}
	return lbcore.MustSet(eps...)
}

func hashKey(h uint64) lbcore.Key { return lbcore.Key{Hash: h, CRC: uint32(h), Set: true} }

// tinyRing is a ring in which most endpoints have no point.
const tinyRing = "ring_hash_of_2_points"

// policies are those that every pick has to hold for.
var policies = []struct {
	name string
	b    lbcore.Builder
}{
	{"order", order{}},
	{"ring_hash", ringhash.Config{}},
	{tinyRing, ringhash.Config{MinimumSize: 1, MaximumSize: 2}},
	{"round_robin", roundrobin.Config{}},
	{"least_weight", leastweight.Config{}},
	{"random", random.Config{}},
	{"maglev", maglev.Config{TableSize: 1009}},
	{"ketama", ringhash.Config{Function: ringhash.Ketama}},
}

// order is the plainest policy: members in order from the one that the hash
// gives.
type order struct{}

func (order) Keyed() bool { return true }

func (order) Shape(lbcore.Input) (u64, u32 int, err error) { return 0, 0, nil }

func (order) Build(in lbcore.Input, _ *lbcore.Storage, _ func() error) (lbcore.Selector, error) {
	return ordered(len(in.Members)), nil
}

type ordered uint64

func (n ordered) First(k lbcore.Key) uint64 { return k.Hash % uint64(n) }
func (n ordered) Next(_ lbcore.Key, at uint64) (int, uint64) {
	return int(at % uint64(n)), at + 1
}
func (n ordered) Steps() (int, bool) { return int(n), true }

// record keeps what goroutines of the code under test say.
type record[T any] struct {
	mu  sync.Mutex
	got []T
}

func (r *record[T]) add(x T) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.got = append(r.got, x)
}

func (r *record[T]) all() []T {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.got)
}

// gauge counts what goes on at once.
type gauge struct{ now, max, sum atomic.Int64 }

func (g *gauge) enter() {
	n := g.now.Add(1)
	for m := g.max.Load(); n > m && !g.max.CompareAndSwap(m, n); m = g.max.Load() {
	}
	g.sum.Add(1)
}

func (g *gauge) leave() { g.now.Add(-1) }

// lab is a Builder that a test steers.
type lab struct {
	inner lbcore.Builder // what it builds with; nil means order
	words int            // words of storage beside inner's
	// shape and build, if set, run before inner's; n counts the calls from 1.
	shape func(n int64) error
	build func(n int64, yield func() error) error
	// also counts builds beside those of the lab.
	also *gauge

	shapes atomic.Int64
	builds gauge
}

func (l *lab) policy() lbcore.Builder {
	if l.inner == nil {
		return order{}
	}
	return l.inner
}

func (l *lab) Keyed() bool {
	k, ok := l.policy().(lbcore.Keyed)
	return ok && k.Keyed()
}

func (l *lab) Shape(in lbcore.Input) (u64, u32 int, err error) {
	n := l.shapes.Add(1)
	if l.shape != nil {
		if err := l.shape(n); err != nil {
			return 0, 0, err
		}
	}
	u64, u32, err = l.policy().Shape(in)
	return u64 + l.words, u32, err
}

func (l *lab) Build(in lbcore.Input, st *lbcore.Storage, yield func() error) (lbcore.Selector, error) {
	l.builds.enter()
	defer l.builds.leave()
	if l.also != nil {
		l.also.enter()
		defer l.also.leave()
	}
	if l.build != nil {
		if err := l.build(l.builds.sum.Load(), yield); err != nil {
			return nil, err
		}
	}
	return l.policy().Build(in, st, yield)
}

// stamped is a Builder whose selectors fill a part of their storage with a
// number of their own, and look at each step of a walk whether it is there.
type stamped struct {
	lbcore.Builder
	words int
	// torn counts the steps at which it was not.
	torn *atomic.Int64
	// hold, if set, is called before each look; it may wait.
	hold func(lbcore.Key)
}

var stamps atomic.Uint64

func (b stamped) Keyed() bool {
	k, ok := b.Builder.(lbcore.Keyed)
	return ok && k.Keyed()
}

func (b stamped) Shape(in lbcore.Input) (u64, u32 int, err error) {
	u64, u32, err = b.Builder.Shape(in)
	return u64 + b.words, u32, err
}

func (b stamped) Build(in lbcore.Input, st *lbcore.Storage, yield func() error) (lbcore.Selector, error) {
	sel, err := b.Builder.Build(in, &lbcore.Storage{U64: st.U64[b.words:], U32: st.U32}, yield)
	if err != nil {
		return nil, err
	}
	s := &stampedSelector{Selector: sel, words: st.U64[:b.words], stamp: stamps.Add(1), by: b}
	for i := range s.words {
		s.words[i] = s.stamp
	}
	if taker, ok := sel.(lbcore.Taker); ok {
		return stampedTaker{s, taker}, nil
	}
	return s, nil
}

type stampedSelector struct {
	lbcore.Selector
	by    stamped
	words []uint64
	stamp uint64
}

type stampedTaker struct {
	*stampedSelector
	lbcore.Taker
}

func (s *stampedSelector) Next(k lbcore.Key, at uint64) (int, uint64) {
	if s.by.hold != nil {
		s.by.hold(k)
	}
	for _, w := range s.words {
		if w != s.stamp {
			s.by.torn.Add(1)
			break
		}
	}
	return s.Selector.Next(k, at)
}

// block returns a build func that waits, in the n-th build and later ones, for
// release to be closed.
func block(n int64, release <-chan struct{}) func(int64, func() error) error {
	return func(i int64, _ func() error) error {
		if i >= n {
			<-release
		}
		return nil
	}
}

var errBuild = errors.New("this build fails")

// pass lets d pass by the clock of the bubble, and what happens at its end.
func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// largeWords is the storage of a selector that is large for a default Gate.
const largeWords = 256 << 10 / 8

// cluster is a View with a Group that runs.
type cluster struct {
	t        testing.TB
	name     string
	gate     *lbcore.Gate // nil: a new one
	hosts    *lbcore.Hosts
	config   lbcore.ViewConfig
	builders []lbcore.Builder
	spread   lbcore.Spread
	balance  uint32 // every slot's BalanceFactor
	onError  func(slot string, generation uint64, err error)

	view   *lbcore.View
	group  *lbcore.Group
	wake   chan struct{}
	probes map[lbcore.Addr]*lbcore.ProbeState // of those that asked for one
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

// start starts a cluster with a slot for each builder.
func start(t testing.TB, builders ...lbcore.Builder) *cluster {
	return (&cluster{builders: builders}).start(t)
}

// probed makes each endpoint have one probe, healthy at first.
func (c *cluster) probed() *cluster {
	c.probes = make(map[lbcore.Addr]*lbcore.ProbeState)
	c.config.Bind = func(e *lbcore.Endpoint) []*lbcore.ProbeState {
		p := c.probes[e.Addr]
		if p == nil {
			p = new(lbcore.ProbeState)
			p.Store(lbcore.HealthHealthy)
			c.probes[e.Addr] = p
		}
		return []*lbcore.ProbeState{p}
	}
	return c
}

func (c *cluster) start(t testing.TB) *cluster {
	t.Helper()
	c.t = t
	if c.name == "" {
		c.name = "c"
	}
	if c.gate == nil {
		c.gate = lbcore.NewGate(lbcore.GateConfig{})
	}
	if c.hosts == nil {
		c.hosts = new(lbcore.Hosts)
	}
	c.view = lbcore.NewView(c.name, c.hosts, c.config)
	c.wake = make(chan struct{}, 1)
	cfg := lbcore.GroupConfig{View: c.view, Gate: c.gate, Spread: c.spread, Wake: c.wake, OnError: c.onError}
	for i, b := range c.builders {
		cfg.Slots = append(cfg.Slots, lbcore.SlotConfig{Name: string(rune('a' + i)), Policy: "test", Builder: b, BalanceFactor: c.balance})
	}
	c.group = lbcore.NewGroup(cfg)
	var ctx context.Context
	ctx, c.cancel = context.WithCancel(context.WithoutCancel(t.Context()))
	c.wg.Go(func() {
		if err := c.group.Run(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("Run ended with %v", err)
		}
	})
	t.Cleanup(c.stop)
	return c
}

// stop ends Run and returns when it has returned.
func (c *cluster) stop() {
	c.cancel()
	c.wg.Wait()
}

// forget lets go of all that keeps a stopped cluster's selectors.
func (c *cluster) forget() { c.group, c.view = nil, nil }

// update does what a cluster's owner does with an answer of discovery.
func (c *cluster) update(s lbcore.Set) *lbcore.Snapshot {
	snap, topology := c.view.Update(s)
	if topology {
		c.group.Rebuild(snap)
	}
	return snap
}

// settle is update, and waits until every slot serves it.
func (c *cluster) settle(s lbcore.Set) *lbcore.Snapshot {
	c.t.Helper()
	snap := c.update(s)
	c.wait(snap.Generation)
	return snap
}

func (c *cluster) wait(generation uint64) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.t.Context()), time.Minute)
	defer cancel()
	if err := c.group.WaitGeneration(ctx, generation); err != nil {
		c.t.Fatalf("generation %d is not served: %v; %+v", generation, err, c.stats())
	}
}

func (c *cluster) slot(i int) *lbcore.Slot { return c.group.Slots()[i] }

func (c *cluster) stats() (all []lbcore.SlotStats) {
	for _, s := range c.group.Slots() {
		all = append(all, s.Stats())
	}
	return all
}

// member returns the present member of endpoint i.
func (c *cluster) member(i int) *lbcore.Member {
	c.t.Helper()
	for _, m := range c.view.Members() {
		if m.Addr() == addr(i) {
			return m
		}
	}
	c.t.Fatalf("no member %d", i)
	return nil
}

// pick selects from slot i.
func (c *cluster) pick(i int, k lbcore.Key, want int) lbcore.Picks {
	r := c.gate.Pin()
	defer r.Unpin()
	return c.slot(i).Pick(r, k, want)
}

// picks returns the numbers of a selection's candidates from slot i.
func (c *cluster) picks(i int, k lbcore.Key, want int) []int {
	p := c.pick(i, k, want)
	return nums(&p)
}

// nums returns the numbers of the candidates that Next still yields.
func nums(p *lbcore.Picks) (is []int) {
	for m := p.Next(); m != nil; m = p.Next() {
		is = append(is, num(m))
	}
	return is
}

// seen returns which endpoints slot i picks first for 400 keys, in order.
func (c *cluster) seen(i int) (is []int) {
	r := c.gate.Pin()
	defer r.Unpin()
	for h := range uint64(400) {
		p := c.slot(i).Pick(r, hashKey(h*0x9e3779b97f4a7c15), 1)
		is = append(is, nums(&p)...)
	}
	slices.Sort(is)
	return slices.Compact(is)
}

func equal[T comparable](t testing.TB, what string, got, want []T) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}
