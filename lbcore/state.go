package lbcore

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Health is what active probing knows of an endpoint. The zero value is
// HealthUnknown: not probed yet.
type Health uint32

// The states of a probe.
const (
	HealthUnknown Health = iota
	HealthHealthy
	HealthUnhealthy
	// HealthDegraded passes its probes, and says of itself that it should get
	// what the others have no capacity for only.
	HealthDegraded
)

// String returns "unknown", "healthy", "unhealthy" or "degraded".
func (h Health) String() string {
	switch h {
	case HealthUnknown:
		return "unknown"
	case HealthHealthy:
		return "healthy"
	case HealthUnhealthy:
		return "unhealthy"
	case HealthDegraded:
		return "degraded"
	}
	return fmt.Sprintf("Health(%d)", uint32(h))
}

// ProbeState is the live verdict of one check with one pair of thresholds,
// shared by every View that asked for it. The zero value is HealthUnknown.
// Only the health service stores; anybody may load.
type ProbeState struct {
	v       atomic.Uint32
	mu      sync.Mutex
	watcher *Member              // most have one: a map would be as large as all the rest
	more    map[*Member]struct{} // many, where one address is probed for all
}

// Load returns the present verdict.
func (p *ProbeState) Load() Health { return Health(p.v.Load()) }

// Store publishes a verdict. Every pick that begins after it obeys it, as the
// members it is bound to are told: verdicts are few, and a pick would have to
// fetch each of them from memory.
func (p *ProbeState) Store(h Health) {
	p.v.Store(uint32(h))
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.watcher != nil {
		p.watcher.judge()
	}
	for m := range p.more {
		m.judge()
	}
}

func (p *ProbeState) watch(m *Member) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.watcher == nil || p.watcher == m {
		p.watcher = m
		return
	}
	if p.more == nil {
		p.more = make(map[*Member]struct{})
	}
	p.more[m] = struct{}{}
}

func (p *ProbeState) unwatch(m *Member) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.watcher == m {
		p.watcher = nil
		return
	}
	delete(p.more, m)
}

// What Member.word holds. Without a bit that isn't in bitsReady the member is
// ready as far as the word goes.
const (
	bitWithdrawn  uint32 = 1 << iota // discovery dropped the endpoint
	bitDisabled                      // the operator or discovery's override
	bitUnroutable                    // discovery's health status
	bitDraining                      // it is that the endpoint drains, which a panic respects
	bitWeightless                    // weight 0
	bitEjected                       // outlier detection
	bitUnwell                        // a check doesn't pass
	bitDegraded                      // discovery's health status, or a check's verdict
	bitSlow                          // starts slowly: has Member.slow of its weight

	bitsReady = bitDegraded | bitSlow
)

// class is a way to be acceptable.
type class uint8

// The classes.
const (
	classHealthy  class = iota // ready and not degraded
	classDegraded              // ready and degraded
	classReady                 // either of them
	classAnyone                // listed, enabled, not draining and of some weight: for a tier in panic
	classLeft                  // ready, or would be if discovery still listed it
)

// classes says what Member.word is without some bits.
var classes = [...]struct{ without, is uint32 }{
	classHealthy:  {without: bitSlow},
	classDegraded: {without: bitSlow, is: bitDegraded},
	classReady:    {without: bitsReady},
	classAnyone:   {without: ^(bitWithdrawn | bitDisabled | bitDraining | bitWeightless)},
	classLeft:     {without: bitsReady | bitWithdrawn},
}

// is reports whether m is of the class. Whoever is in a class and stays ready
// is in classReady too, and whoever is in that, in classLeft.
func (m *Member) is(c class) bool {
	k := &classes[c]
	return m.word.Load()&^k.without == k.is
}

// Member is the live state of one address in one View. It outlives changes of
// attributes and rebuilds: the selectors of every generation that lists the
// address point to the same Member.
//
// Its methods may be called from anywhere; they take no lock.
type Member struct {
	// What a pick and a dial look at comes first, side by side.
	word     atomic.Uint32
	slow     atomic.Uint32 // of slowWhole, while bitSlow is set
	conns    atomic.Int64  // see connOpen and those that follow
	view     *View         // of which others than its owner read cfg and hosts, and count
	adaptive atomic.Uint64
	attrs    atomic.Pointer[Endpoint] // never nil

	judging sync.Mutex // orders judge's stores
	probes  atomic.Pointer[probeSet]
	opened  atomic.Uint64
	failed  atomic.Uint64
	rxBytes atomic.Uint64
	txBytes atomic.Uint64

	next *Member // of the same address; Hosts.mu guards it
	// before is the member of the address in the View of this name before, as long as that
	// is listed or has connections. Hosts.mu orders the stores.
	before atomic.Pointer[Member]

	streak atomic.Uint32    // failed dials in a row
	trips  [2]atomic.Uint32 // that were not taken yet; see Streaks

	// The View's owner only.
	bound    bool   // between ViewConfig.Bind and Unbind
	leftFrom uint64 // generation that dropped it
	// since is when the member became healthy or joined, in a View with slow
	// start, on the View's clock. 0: it is not healthy, or no Warm has seen it yet.
	since time.Duration
}

// What Member.conns is made of: connections and dials, each up to a billion, and
// who has to know when they change. As one word holds all of it, a report costs
// one atomic, and the View's total is exact from the moment on in which it begins
// to count.
const (
	connOpen    = 1
	connDialing = 1 << connBits
	connCounted = 1 << (2 * connBits)   // the View's total counts them
	connLeft    = 1 << (2*connBits + 1) // the View has forgotten the member
	connBits    = 30
	connMask    = 1<<connBits - 1
)

// slowWhole is the share of a member that has all of its weight.
const slowWhole = 1<<32 - 1

// probeSet is what a View bound to a Member. It is never written.
type probeSet struct {
	states         []*ProbeState
	initialHealthy bool
}

// noProbes is what all members without checks have.
var noProbes probeSet

// Addr returns the member's address.
func (m *Member) Addr() Addr { return m.attrs.Load().Addr }

// Host returns the connections to the address and the dials in progress, of all
// Views of the node. It takes a lock, and is for dumps.
func (m *Member) Host() (open, dialing int64) { return m.view.hosts.count(m.Addr()) }

// Endpoint returns the attributes that discovery gave last.
func (m *Member) Endpoint() *Endpoint { return m.attrs.Load() }

// Ready reports whether the member may take a new connection now: it is
// enabled, discovery's status is routable, it is not ejected or withdrawn, and
// every bound check is healthy or degraded (or unknown, where the View starts
// healthy).
func (m *Member) Ready() bool { return m.word.Load()&^bitsReady == 0 }

// bind makes the verdicts of states, beside those of other kinds, decide whether
// m is ready. Only the View's owner calls it.
func (m *Member) bind(states []*ProbeState, initialHealthy bool) {
	set := &noProbes
	if len(states) > 0 {
		set = &probeSet{states, initialHealthy}
	}
	old := m.probes.Swap(set)
	for _, s := range states {
		s.watch(m)
	}
	m.judge()
	if old != nil {
		old.unwatch(m, states...)
	}
}

// unwatch has m not told any more of the verdicts, but for those to keep.
func (p *probeSet) unwatch(m *Member, keep ...*ProbeState) {
	for _, s := range p.states {
		if !slices.Contains(keep, s) {
			s.unwatch(m)
		}
	}
}

// judge brings bitUnwell and bitDegraded up to date. It is called when a verdict
// or discovery's status has changed: whichever call comes last sees all of them.
func (m *Member) judge() {
	m.judging.Lock()
	defer m.judging.Unlock()
	p, e := m.probes.Load(), m.attrs.Load()
	unwell, degraded := false, e.Status == StatusDegraded
	for _, s := range p.states {
		switch s.Load() {
		case HealthHealthy:
		case HealthDegraded:
			degraded = true
		case HealthUnknown:
			unwell = unwell || !p.initialHealthy
		default:
			unwell = true
		}
	}
	m.set(bitUnwell, unwell)
	if m.set(bitDegraded, degraded) {
		n := int64(1)
		if !degraded {
			n = -1
		}
		m.view.degraded.Add(n)
	}
}

// Health returns the verdict over all bound checks: unhealthy if one is, else
// unknown if one is, else degraded if one is, else healthy. Without checks it is
// healthy.
func (m *Member) Health() Health {
	worst := HealthHealthy
	for _, s := range m.probes.Load().states {
		switch s.Load() {
		case HealthUnhealthy:
			return HealthUnhealthy
		case HealthUnknown:
			worst = HealthUnknown
		case HealthDegraded:
			if worst == HealthHealthy {
				worst = HealthDegraded
			}
		}
	}
	return worst
}

// probed reports whether checks are bound to m, all of which pass.
func (m *Member) probed() bool {
	h := m.Health()
	return len(m.probes.Load().states) > 0 && (h == HealthHealthy || h == HealthDegraded)
}

// Unwell reports whether the member is not ready because a bound check fails, or
// has not been probed yet.
func (m *Member) Unwell() bool { return m.word.Load()&bitUnwell != 0 }

// Withdrawn reports whether discovery has dropped the endpoint.
func (m *Member) Withdrawn() bool { return m.word.Load()&bitWithdrawn != 0 }

// Gone reports whether discovery has dropped the endpoint and no slot has it any
// more, given the oldest generation that one serves: Group.Served. Only the
// View's owner calls it.
func (m *Member) Gone(served uint64) bool { return m.Withdrawn() && m.leftFrom <= served }

// Disabled reports whether the operator or discovery disabled the endpoint.
func (m *Member) Disabled() bool { return m.word.Load()&bitDisabled != 0 }

// Degraded reports whether discovery's status, or the verdict of a check, is
// degraded: the member takes connections that those who are not don't have the
// capacity for.
func (m *Member) Degraded() bool { return m.word.Load()&bitDegraded != 0 }

// SlowStart returns the share of its weight that the member has at present, 0
// to 1. It is 1 when it doesn't start slowly; see [View.Warm].
func (m *Member) SlowStart() float64 {
	if m.word.Load()&bitSlow == 0 {
		return 1
	}
	return float64(m.slow.Load()) / slowWhole
}

// Ejected reports whether outlier detection took the endpoint out.
func (m *Member) Ejected() bool { return m.word.Load()&bitEjected != 0 }

// SetEjected says whether outlier detection has taken the endpoint out. One that
// comes back begins without failures in a row. Only the View's owner calls it.
func (m *Member) SetEjected(on bool) {
	if m.set(bitEjected, on) && !on {
		m.streak.Store(0)
		m.TakeTrips()
	}
}

// Streaks has Members note when so many dials in a row have failed, for outlier
// detection. A dial that was abandoned doesn't count.
type Streaks struct {
	// Lengths are up to two numbers of failures, of which each and all its
	// multiples are a trip; 0 is none.
	Lengths [2]uint32
	// OnTrip is called by who reports a dial, when a member has a trip to take
	// and had none before. It must not block.
	OnTrip func()
}

// TakeTrips returns how often each of Streaks.Lengths was reached since the last
// call. Only the View's owner calls it.
func (m *Member) TakeTrips() (trips [2]uint32) {
	for i := range trips {
		if m.trips[i].Load() > 0 {
			trips[i] = m.trips[i].Swap(0)
		}
	}
	return trips
}

// struck counts a failed dial, unless the member is ejected: it begins anew then.
func (m *Member) struck() {
	streaks := m.view.cfg.Streaks
	if streaks == nil || m.Ejected() {
		return
	}
	n := m.streak.Add(1)
	for i, length := range streaks.Lengths {
		if length > 0 && n%length == 0 && m.trips[i].Add(1) == 1 {
			streaks.OnTrip()
		}
	}
}

func (m *Member) set(bit uint32, on bool) (changed bool) {
	var old uint32
	if on {
		old = m.word.Or(bit)
	} else {
		old = m.word.And(^bit)
	}
	return (old&bit != 0) != on
}

// The outcome reports of the forwarder. Each StartDial is followed by exactly
// one of DialFailed and Connected, each Connected by exactly one Closed.

// StartDial counts a dial in progress.
func (m *Member) StartDial() { m.count(connDialing, 1) }

// DialFailed ends a dial that gave no connection.
func (m *Member) DialFailed() {
	m.failed.Add(1)
	m.struck()
	m.DialAbandoned()
}

// DialAbandoned ends a dial whose outcome says nothing of the endpoint: the
// client left first, or a local resource ran out.
func (m *Member) DialAbandoned() { m.count(-connDialing, -1) }

// Connected ends a dial that gave a connection.
func (m *Member) Connected() {
	m.count(connOpen-connDialing, 0)
	m.opened.Add(1) // after it: see Open
	if m.streak.Load() > 0 {
		m.streak.Store(0)
	}
}

// Closed ends a connection. sent and received are the bytes sent to and
// received from the endpoint.
func (m *Member) Closed(sent, received uint64) {
	m.txBytes.Add(sent)
	m.rxBytes.Add(received)
	m.count(-connOpen, -1)
}

// count adds to conns, of which active in all.
func (m *Member) count(conns, active int64) {
	if c := m.conns.Add(conns); c >= connCounted {
		m.tell(c, active)
	}
}

// tell passes on that conns has become c, by active connections and dials.
func (m *Member) tell(c, active int64) {
	if c&connCounted != 0 {
		m.view.total.Add(active)
	}
	if c&connLeft != 0 {
		m.view.hosts.follow(m)
	}
}

// countTotal has the View's total count the member's connections from now on,
// those included that it has.
func (m *Member) countTotal() {
	if had := m.conns.Or(connCounted); had&connCounted == 0 {
		m.view.total.Add(active(had))
	}
}

// Active returns the connections of this View's cluster to the member, those
// being dialled included. It is what least-weight selection compares.
func (m *Member) Active() int64 { return active(m.conns.Load()) }

// Held returns the connections and dials to the address of this View and of those of
// the same name that came before it and are not over: a cluster whose settings have
// changed. It is what a limit on an endpoint's connections looks at.
func (m *Member) Held() (n int64) {
	for ; m != nil; m = m.before.Load() {
		n += m.Active()
	}
	return n
}

// Open returns the connections of this View's cluster to the member, without those
// being dialled. Who reads Counters before it never finds more connections ended
// than have.
func (m *Member) Open() int64 { return m.conns.Load() & connMask }

func active(conns int64) int64 { return conns&connMask + conns>>connBits&connMask }

// AdaptiveWeight is where the adaptive policy keeps the weight that it has
// learnt of the member; 0 is none yet. Only that policy stores. All selectors of
// the View share it, and it lives as long as the Member: over rebuilds and
// changes of attributes.
func (m *Member) AdaptiveWeight() *atomic.Uint64 { return &m.adaptive }

// Counters returns the totals since the member appeared: connections opened,
// dials failed, bytes sent and received on connections that have ended.
func (m *Member) Counters() (opened, failed, sent, received uint64) {
	return m.opened.Load(), m.failed.Load(), m.txBytes.Load(), m.rxBytes.Load()
}
