package forwarder

import (
	"errors"
	"math/bits"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"gatehouse.internal/lbcore"
)

// Why connections are closed that have done nothing wrong.
var (
	ErrRemoved   = errors.New("the endpoint was removed or disabled")
	ErrUnhealthy = errors.New("the endpoint is unhealthy")
	// ErrDrained is of connections that Drain has closed before its deadline.
	ErrDrained  = errors.New("closed by the agent: the listener drains")
	errDuration = errors.New("max_duration is over")
)

// Ends says which endpoints of a cluster are to lose their connections. The
// zero value says none. Its methods may be called from anywhere; what they
// change is in force for connections that are made from then on, and for open
// ones once [Listener.Review] was called.
type Ends struct {
	mu      sync.Mutex // of writers
	endings atomic.Pointer[map[lbcore.Addr]*ending]
	all     atomic.Pointer[ending]
}

// Ending says how an endpoint loses its connections: each at a moment of its
// own, which lies within Within from when it is set on; the moments are spread
// evenly over that. 0 closes them at once. They end under FlagLR with Err, which
// is ErrRemoved or ErrUnhealthy. SpareNew keeps connections whose dial begins
// after that: who dials an unhealthy endpoint, as in a panic, knows of it.
type Ending struct {
	Err      error
	Within   time.Duration
	SpareNew bool
}

// ending is what is said of one endpoint.
type ending struct {
	Ending
	by    time.Time     // nobody stays longer
	turns atomic.Uint64 // moments given out; begins anywhere
}

// newEnding returns an ending that begins now.
func newEnding(e Ending) *ending {
	x := &ending{Ending: e, by: time.Now().Add(e.Within)}
	x.turns.Store(rand.Uint64()) // so that agents differ
	return x
}

// Set replaces all that was said, and reports whether it differs. An endpoint of
// which the same is said as before goes on as it was, and one of which nothing is
// said any more keeps the connections that it still has.
func (e *Ends) Set(want map[lbcore.Addr]Ending) (changed bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	var was map[lbcore.Addr]*ending
	if p := e.endings.Load(); p != nil {
		was = *p
	}
	next := make(map[lbcore.Addr]*ending, len(want))
	for a, w := range want {
		if x := was[a]; x != nil && x.Ending == w {
			next[a] = x
			continue
		}
		changed = true
		next[a] = newEnding(w)
	}
	if changed = changed || len(next) != len(was); changed {
		e.endings.Store(&next)
	}
	return changed
}

// SetAll says it of every endpoint, for good: the cluster is removed.
func (e *Ends) SetAll(w Ending) { e.all.Store(newEnding(w)) }

// Len returns of how many endpoints something is said.
func (e *Ends) Len() int {
	if m := e.endings.Load(); m != nil {
		return len(*m)
	}
	return 0
}

// of returns what is said of a, nil for nothing.
func (e *Ends) of(a lbcore.Addr) *ending {
	if e == nil {
		return nil
	}
	if x := e.all.Load(); x != nil {
		return x
	}
	m := e.endings.Load()
	if m == nil || len(*m) == 0 {
		return nil
	}
	return (*m)[a]
}

// spares reports whether x is not for a connection whose dial began then.
func (x *ending) spares(began time.Time) bool {
	return x.SpareNew && began.After(x.by.Add(-x.Within))
}

// moment returns how long the next connection has.
func (x *ending) moment() time.Duration {
	// Multiples of the golden ratio fill an interval evenly, however many there
	// will be.
	const golden = 0x9e3779b97f4a7c15
	left := max(min(time.Until(x.by), x.Within), 0)
	hi, _ := bits.Mul64(x.turns.Add(1)*golden, uint64(left))
	return time.Duration(hi)
}

// Count counts the connections, dials included, that share a limit, and those
// that were refused because of it; or descriptors, as Config.Extra does. The
// zero value is ready, a nil *Count refuses nobody.
type Count struct {
	open    atomic.Int64
	refused atomic.Uint64
	used    atomic.Bool
	// OnUse, if set before the first connection, is called once by it. It must not
	// block.
	OnUse func()
}

// Used returns whether there was ever a connection. Only the Count stores.
func (c *Count) Used() *atomic.Bool { return &c.used }

// Open returns how many connections there are, and Refused how many were one
// too many. They may be called from anywhere, of a nil *Count too.
func (c *Count) Open() int64 {
	if c == nil {
		return 0
	}
	return c.open.Load()
}

// Refused returns how many connections were one too many.
func (c *Count) Refused() uint64 {
	if c == nil {
		return 0
	}
	return c.refused.Load()
}

// take counts one more connection, unless there are limit of them. 0 is no
// limit, and below 0 none is allowed.
func (c *Count) take(limit int) bool { return c.takeSome(1, limit) }

// takeSome is take for n at once.
func (c *Count) takeSome(n, limit int) bool {
	if c == nil {
		return true
	}
	if open := c.open.Add(int64(n)); limit != 0 && open > int64(limit) {
		c.open.Add(-int64(n))
		c.refused.Add(1)
		return false
	}
	if !c.used.Load() && !c.used.Swap(true) && c.OnUse != nil {
		c.OnUse()
	}
	return true
}

func (c *Count) refuse() {
	if c != nil {
		c.refused.Add(1)
	}
}

func (c *Count) release() { c.releaseSome(1) }

func (c *Count) releaseSome(n int) {
	if c != nil {
		c.open.Add(-int64(n))
	}
}

// term is when a flow is to be reset whatever it does. Its times are on the
// clock of the relay, and not below the millisecond that it may count in.
type term struct {
	last    time.Duration // MaxDuration is over, or the listener drains; 0 is never
	leave   time.Duration // when leaving is set
	leaving *ending       // of the endpoint
}

// limitAge has the flow, which begins at now, end when it is too old.
// Source: Envoy's tcp_proxy adds to the duration what it draws from 0 up to
// the jitter.
func (f *flow) limitAge(now time.Duration) {
	d := f.settings.MaxDuration
	if d <= 0 {
		return
	}
	if jitter := time.Duration(float64(d) * float64(f.settings.MaxDurationJitter) / 100); jitter > 0 {
		d += rand.N(jitter)
	}
	f.term.last = now + max(d, time.Millisecond)
}

// review looks whether the endpoint, which is connected, is to lose its
// connections, or the listener.
func (f *flow) review(now time.Duration) {
	x := f.want.Ends.of(f.member.Addr())
	if x != nil && x.spares(f.start.Add(f.began)) {
		x = nil
	}
	if x != f.term.leaving {
		if f.term.leaving = x; x != nil {
			f.term.leave = max(now+x.moment(), time.Millisecond)
		}
	}
	if x = f.l.draining.Load(); x == nil {
		if c := f.chain(); c != nil && c.Leaving != nil {
			x = c.Leaving.all.Load()
		}
	}
	if x != nil && !f.draining {
		f.draining = true
		if at := max(now+x.moment(), time.Millisecond); f.term.last == 0 || at < f.term.last {
			f.term.last, f.drained = at, true
		}
	}
}

// due returns when the flow is to be reset, and why; 0 is never.
func (f *flow) due() (at time.Duration, flag Flag, err error) {
	if at, flag, err = f.term.last, FlagDT, errDuration; f.drained {
		flag, err = FlagLR, ErrDrained
	}
	if x := f.term.leaving; x != nil && (at == 0 || f.term.leave < at) {
		at, flag, err = f.term.leave, FlagLR, x.Err
	}
	return at, flag, err
}

// Review has every open connection look at what [Ends] says of its endpoint.
// It may be called from anywhere, and does not wait.
func (l *Listener) Review() {
	for _, s := range l.sessions() {
		s.contained(s.watch)
	}
	if l.port != nil {
		l.cfg.Loops.review(l)
	}
}

// sessions returns the open ones.
func (l *Listener) sessions() []*session {
	l.mu.Lock()
	defer l.mu.Unlock()
	open := make([]*session, 0, len(l.open))
	for s := range l.open {
		open = append(open, s)
	}
	return open
}
