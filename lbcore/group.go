package lbcore

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"
)

// The back-off between attempts of a build that fails.
const (
	minBackoff = 10 * time.Millisecond
	maxBackoff = time.Second
)

// SlotConfig is one selector of a Group.
type SlotConfig struct {
	Name    string
	Policy  string // the name of the Builder's policy, for dumps
	Builder Builder
}

// GroupConfig configures a Group. View, Gate and Slots are required.
type GroupConfig struct {
	View  *View
	Gate  *Gate
	Slots []SlotConfig
	// Wake, if set, gets a value, without blocking, when a slot has published
	// a selector. It should hold one.
	Wake chan struct{}
	// OnError, if set, is told of each build that failed. It is called by the
	// slot's goroutine and must not block.
	OnError func(slot string, generation uint64, err error)
}

// Group keeps N selectors built over one View. A change of membership is
// handed to Rebuild, which never blocks; each slot builds at its own pace, at
// most one build at a time, and always the newest membership.
type Group struct {
	cfg   GroupConfig
	slots []*Slot

	mu      sync.Mutex
	changed chan struct{} // closed and replaced when a slot's generation moves
}

// NewGroup returns a Group whose slots serve generation 0, the empty set,
// until Run builds what Rebuild asked for.
func NewGroup(cfg GroupConfig) *Group {
	g := &Group{cfg: cfg, changed: make(chan struct{})}
	for _, sc := range cfg.Slots {
		g.slots = append(g.slots, &Slot{group: g, cfg: sc, id: cfg.View.Name() + "/" + sc.Name, wake: make(chan struct{}, 1)})
	}
	return g
}

// Slots returns the slots in the order of the configuration.
func (g *Group) Slots() []*Slot { return g.slots }

// Slot returns the slot of that name, the first one for "", or nil.
func (g *Group) Slot(name string) *Slot {
	for _, s := range g.slots {
		if name == "" || s.cfg.Name == name {
			return s
		}
	}
	return nil
}

// Rebuild asks every slot to serve snap. It never blocks, and a request that
// is still waiting is replaced. Calls must come in the order of generations,
// as from a View's owner.
func (g *Group) Rebuild(snap *Snapshot) {
	now := time.Now()
	for _, s := range g.slots {
		s.request(request{snap, now})
	}
}

// Run builds until ctx ends and then returns ctx.Err(), when nothing of it
// runs any more. What is published stays published. It may be called once.
func (g *Group) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	for _, s := range g.slots {
		wg.Go(func() { s.run(ctx) })
	}
	wg.Wait()
	return ctx.Err()
}

// Served returns the oldest generation that a slot serves.
func (g *Group) Served() uint64 {
	served := ^uint64(0)
	for _, s := range g.slots {
		served = min(served, s.generation.Load())
	}
	return served
}

// WaitGeneration returns nil when every slot serves at least generation, or
// ctx.Err().
func (g *Group) WaitGeneration(ctx context.Context, generation uint64) error {
	for {
		g.mu.Lock()
		changed := g.changed
		g.mu.Unlock()
		if g.Served() >= generation {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (g *Group) published() {
	g.mu.Lock()
	close(g.changed)
	g.changed = make(chan struct{})
	g.mu.Unlock()
	if g.cfg.Wake != nil {
		poke(g.cfg.Wake)
	}
}

// UpdateLoads recomputes how the load is spread over priorities from the
// members' present readiness, for every published selector. The View's owner
// calls it when health or enablement has changed and when Wake fires.
func (g *Group) UpdateLoads() {
	for _, s := range g.slots {
		if p := s.pub.Load(); p != nil {
			p.updateLoads()
		}
	}
}

// request asks for a build. The snapshot in it is the whole bundle:
// membership, readiness and generation.
type request struct {
	snap *Snapshot
	at   time.Time // first asked for; kept over retries
}

// Slot is one selector of a Group: what it serves now, and the goroutine that
// replaces it. Its exported methods may be called from anywhere.
type Slot struct {
	group *Group
	cfg   SlotConfig
	id    string // cluster/selector
	wake  chan struct{}
	pub   atomic.Pointer[published]

	mu      sync.Mutex
	pending *request

	// generation is stored after pub, so it may lag what is served but never
	// leads it.
	generation                   atomic.Uint64
	rebuilds, coalesced, failed  atomic.Uint64
	queueTime, buildTime, stored atomic.Int64
	lastErr                      atomic.Pointer[error]
}

// SlotStats describes a slot's rebuilds.
type SlotStats struct {
	// Generation is what the slot serves; 0 is the empty beginning.
	Generation uint64
	// Rebuilds were published. Coalesced requests were replaced by a newer one
	// before they were built, failed and cancelled builds included. Failed
	// counts the builds that ended in an error or a panic.
	Rebuilds, Coalesced, Failed uint64
	// Queue is how long the last published build had been asked for when it
	// began, failed attempts included; Build is how long it took.
	Queue, Build time.Duration
	// Bytes is the storage of the published selector.
	Bytes int
	// Err is why the newest build failed, nil once one has succeeded.
	Err error
}

// Name returns the selector's name.
func (s *Slot) Name() string { return s.cfg.Name }

// Policy returns the name of the selector's policy.
func (s *Slot) Policy() string { return s.cfg.Policy }

// Stats returns the slot's present numbers.
func (s *Slot) Stats() SlotStats {
	st := SlotStats{
		Generation: s.generation.Load(),
		Rebuilds:   s.rebuilds.Load(), Coalesced: s.coalesced.Load(), Failed: s.failed.Load(),
		Queue: time.Duration(s.queueTime.Load()), Build: time.Duration(s.buildTime.Load()),
		Bytes: int(s.stored.Load()),
	}
	if err := s.lastErr.Load(); err != nil {
		st.Err = *err
	}
	return st
}

func (s *Slot) request(r request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pending != nil {
		s.coalesced.Add(1)
	}
	s.pending = &r
	poke(s.wake) // under the lock, so that take can't swallow a newer request's
}

// take returns the newest request, or nil.
func (s *Slot) take() *request {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.pending
	s.pending = nil
	select {
	case <-s.wake:
	default:
	}
	return r
}

// putBack makes r pending again unless a newer request is.
func (s *Slot) putBack(r *request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pending != nil {
		s.coalesced.Add(1)
		return
	}
	s.pending = r
}

func (s *Slot) peek() *request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pending
}

// run is the slot's goroutine.
func (s *Slot) run(ctx context.Context) {
	backoff := minBackoff
	for {
		for s.peek() == nil {
			select {
			case <-s.wake:
			case <-ctx.Done():
				return
			}
		}
		retry := s.rebuild(ctx)
		if ctx.Err() != nil {
			return
		}
		if !retry {
			backoff = minBackoff
			continue
		}
		timer := time.NewTimer(backoff)
		select {
		case <-timer.C:
			backoff = min(2*backoff, maxBackoff)
		case <-s.wake: // a newer generation
			backoff = minBackoff
		case <-ctx.Done():
			timer.Stop()
			return
		}
		timer.Stop()
	}
}

// rebuild passes the gate and builds the newest request. It returns true if
// the request is pending again because the build failed.
func (s *Slot) rebuild(ctx context.Context) (retry bool) {
	gate := s.group.cfg.Gate
	large := false
	var r *request
	var p *plan
	for {
		if gate.acquire(ctx, large) != nil {
			return false
		}
		// Only now: whatever came while waiting is the newer one.
		if r = s.take(); r == nil {
			gate.release(large)
			return false
		}
		var err error
		if p, err = newPlan(s.cfg.Builder, r.snap, s.pub.Load()); err != nil {
			gate.release(large)
			s.fail(r, err)
			return false // the same membership would fail again
		}
		if large || p.bytes() < gate.cfg.SmallBuild {
			break
		}
		s.putBack(r)
		gate.release(large)
		large = true
	}
	defer gate.release(large)

	began := time.Now()
	pub, err := p.build(ctx)
	if ctx.Err() != nil {
		s.putBack(r)
		return false
	}
	if err != nil {
		s.putBack(r)
		s.fail(r, err)
		return true
	}
	s.queueTime.Store(int64(began.Sub(r.at)))
	s.buildTime.Store(int64(time.Since(began)))
	s.publish(pub)
	return false
}

func (s *Slot) fail(r *request, err error) {
	s.failed.Add(1)
	s.lastErr.Store(&err)
	if f := s.group.cfg.OnError; f != nil {
		f(s.cfg.Name, r.snap.Generation, err)
	}
}

func (s *Slot) publish(pub *published) {
	old := s.pub.Swap(pub)
	if old != nil && old.bytes >= s.group.cfg.Gate.cfg.SmallBuild {
		s.group.cfg.Gate.retire(s.id, old.bytes)
	}
	s.rebuilds.Add(1)
	s.stored.Store(int64(pub.bytes))
	s.lastErr.Store(nil)
	s.generation.Store(pub.snap.Generation)
	s.group.published()
}

// plan is a build that is known to be possible.
type plan struct {
	builder Builder
	snap    *Snapshot
	tiers   []tierPlan
}

type tierPlan struct {
	in       Input
	u64, u32 int
}

// newPlan splits snap by priority and asks how much storage each part needs.
func newPlan(b Builder, snap *Snapshot, prev *published) (p *plan, err error) {
	defer recovered(&err)
	p = &plan{builder: b, snap: snap}
	for _, in := range inputs(snap) {
		if prev != nil {
			in.Prev = prev.selector(in.Endpoints[0].Priority)
		}
		t := tierPlan{in: in}
		if t.u64, t.u32, err = b.Shape(in); err != nil {
			return nil, err
		}
		p.tiers = append(p.tiers, t)
	}
	return p, nil
}

func (p *plan) bytes() (n int) {
	for _, t := range p.tiers {
		n += 8*t.u64 + 4*t.u32
	}
	return n
}

// build runs the builds of all priorities under the one permit.
func (p *plan) build(ctx context.Context) (pub *published, err error) {
	defer recovered(&err)
	yield := func() error {
		runtime.Gosched() // let connections through
		return ctx.Err()
	}
	pub = &published{snap: p.snap}
	for _, t := range p.tiers {
		st := &Storage{U64: make([]uint64, t.u64), U32: make([]uint32, t.u32)}
		sel, err := p.builder.Build(t.in, st, yield)
		if err == nil && sel == nil {
			err = errors.New("no selector was built") // else the next pick would crash
		}
		if err != nil {
			return nil, err
		}
		taker, _ := sel.(Taker)
		pub.tiers = append(pub.tiers, tier{t.in.Endpoints[0].Priority, t.in.Members, sel, taker})
		pub.bytes += st.Bytes()
	}
	pub.updateLoads()
	return pub, nil
}

// recovered turns a panic of a Builder into an error: a bug in one policy must
// not end the agent, and what is published still serves.
func recovered(err *error) {
	if x := recover(); x != nil {
		*err = fmt.Errorf("panic: %v\n%s", x, debug.Stack())
	}
}

// inputs returns one Input for each priority that has a member of positive
// weight, highest first.
func inputs(snap *Snapshot) (ins []Input) {
	var n, at [MaxPriority + 1]int
	var sum [MaxPriority + 1]uint64
	for _, e := range snap.Set.All() {
		if e.Weight > 0 {
			n[e.Priority]++
			sum[e.Priority] += uint64(e.Weight)
		}
	}
	for prio, count := range n {
		if count == 0 {
			continue
		}
		at[prio] = len(ins)
		ins = append(ins, Input{
			Members:   make([]*Member, 0, count),
			Endpoints: make([]*Endpoint, 0, count),
			Shares:    make([]float64, 0, count),
		})
	}
	for i := range snap.Set.eps {
		e := &snap.Set.eps[i]
		if e.Weight == 0 {
			continue
		}
		in := &ins[at[e.Priority]]
		in.Members = append(in.Members, snap.members[i])
		in.Endpoints = append(in.Endpoints, e)
		in.Shares = append(in.Shares, float64(e.Weight)/float64(sum[e.Priority]))
	}
	return ins
}
