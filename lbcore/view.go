package lbcore

import (
	"fmt"
	"iter"
	"maps"
	"slices"
	"sync/atomic"
	"time"
)

// ViewConfig configures a View.
type ViewConfig struct {
	// Bind returns the probe states that the endpoint must pass, nil for none.
	// It is called by Update, before a selector can see the endpoint, for each
	// address that is new, after an Unbind, and when Check, Hostname or TransportMatch changed.
	Bind func(*Endpoint) []*ProbeState
	// Unbind ends what Bind began, when no selector can answer with the
	// endpoint any more. It may be nil.
	Unbind func(Addr)
	// Drop is called when the View has forgotten a member, whose connections
	// have ended too. It may be nil.
	Drop func(*Member)
	// InitialHealthy lets an endpoint take connections before its first probe
	// has ended.
	InitialHealthy bool
	// Stabilize keeps an endpoint that a later set does not list any more for as
	// long as its checks pass: see [View.Update].
	Stabilize bool
	// SlowStart lets an endpoint begin with a part of its weight when it becomes
	// ready. The zero value is off.
	SlowStart SlowStart
	// Streaks has members note failed dials in a row; nil for not.
	Streaks *Streaks
	// Manual is what the operator has said already of addresses, as
	// [View.Manual] returned it before a restart; nil for nothing.
	Manual map[Addr]bool
}

// SlowStart describes how the weight of an endpoint grows once it has become
// healthy (or has joined, where there are no checks): after t of Window it is
// max(MinWeight, (t/Window)^(1/Aggression)) of the whole. Hash policies have no
// slow start. The zero value is off. Source: Cluster.SlowStartConfig.
type SlowStart struct {
	// Window is how long it takes; 0 is off.
	Window time.Duration
	// Aggression is above 0; 0 means 1: the weight grows evenly.
	Aggression float64
	// MinWeight is the least part of the weight, 0 to 1. Envoy's default of 10 %
	// is for the caller to set.
	MinWeight float64
}

// View is the membership of one cluster with the live state of each member.
// One goroutine, its owner, calls the methods, unless they say otherwise.
type View struct {
	name    string
	hosts   *Hosts
	cfg     ViewConfig
	snap    atomic.Pointer[Snapshot]
	members []*Member        // those of snap, nil once the View is closed
	left    map[Addr]*Member // withdrawn ones that are still in use
	manual  map[Addr]bool    // what the operator said of an address
	// total is the connections of all members, dials included, once a selector
	// with bounded load counts them.
	total   atomic.Int64
	counted bool
	// degraded is how many members are.
	degraded atomic.Int64
	warmed   time.Time // when Warm was called first
}

// Snapshot is one generation of a View: membership, readiness by pointers to
// live Members, and the generation's number. It is never written.
type Snapshot struct {
	// Generation is 0 for the empty beginning and grows by one with each
	// change of topology.
	Generation uint64
	Set        Set
	// Given is the set that Update was given. Set has endpoints beside these only
	// where a View stabilizes.
	Given   Set
	members []*Member // parallel to Set
}

// Absent reports whether the endpoint at position i of Set is there only because
// it still passes its checks: discovery does not list it any more.
func (s *Snapshot) Absent(i int) bool {
	return s.Set.Len() > s.Given.Len() && s.Given.Find(s.Set.eps[i].Addr) < 0
}

// Member returns the member of the endpoint at position i of Set.
func (s *Snapshot) Member(i int) *Member { return s.members[i] }

// NewView returns an empty View of generation 0. The name is the cluster's.
func NewView(name string, hosts *Hosts, cfg ViewConfig) *View {
	v := &View{name: name, hosts: hosts, cfg: cfg, left: make(map[Addr]*Member), manual: make(map[Addr]bool)}
	maps.Copy(v.manual, cfg.Manual)
	v.snap.Store(new(Snapshot))
	return v
}

// Name returns the cluster's name.
func (v *View) Name() string { return v.name }

// Snapshot returns the present one. It may be called from anywhere.
func (v *View) Snapshot() *Snapshot { return v.snap.Load() }

// Update makes set the membership. It returns the new Snapshot and whether the
// topology changed: then the generation has grown and selectors are to be
// rebuilt from it. Changes of status, enablement, hostname and check take
// effect at once and rebuild nothing.
//
// Endpoints that are not in set any more are withdrawn: selectors of older
// generations pass over them from now on while another endpoint is ready. A View
// that stabilizes keeps those that have checks and pass all of them, unless
// discovery's last word was that they take no connections, or they are disabled;
// [View.Review] lets go of them. Source: Envoy's PENDING_DYNAMIC_REMOVAL.
func (v *View) Update(set Set) (*Snapshot, bool) {
	old := v.snap.Load()
	given := set
	set = v.stabilize(old, given)
	if old.Set.Equal(set) {
		for i := range given.eps { // an override said again wins again
			v.enable(v.member(given.eps[i].Addr), &given.eps[i])
		}
		if !old.Given.Equal(given) {
			next := *old
			next.Given = given
			old = &next
			v.snap.Store(old)
		}
		return old, false
	}
	next := &Snapshot{Generation: old.Generation, Set: set, Given: given, members: make([]*Member, set.Len())}
	topology := !old.Set.SameTopology(set)
	if topology {
		next.Generation++
	}
	for i := range set.eps {
		next.members[i] = v.admit(&set.eps[i])
	}
	if topology {
		for i, e := range old.Set.All() {
			if m := old.members[i]; set.Find(e.Addr) < 0 && m.set(bitWithdrawn, true) {
				m.leftFrom = next.Generation
				v.left[e.Addr] = m
			}
		}
	}
	v.members = next.members
	v.snap.Store(next)
	return next, topology
}

// member returns the member of an address, or nil.
func (v *View) member(a Addr) *Member {
	if v.members != nil {
		if i := v.snap.Load().Set.Find(a); i >= 0 {
			return v.members[i]
		}
	}
	return v.left[a]
}

// Review is Update with the set that was given last. In a View that stabilizes
// it is to be called when verdicts have changed.
func (v *View) Review() (*Snapshot, bool) {
	old := v.snap.Load()
	if old.Set.Len() == old.Given.Len() {
		return old, false
	}
	return v.Update(old.Given)
}

// stabilize returns set and what of old stays beside it.
func (v *View) stabilize(old *Snapshot, set Set) Set {
	if !v.cfg.Stabilize {
		return set
	}
	var stay []Endpoint
	for i := range old.Set.eps {
		e, m := &old.Set.eps[i], old.members[i]
		if set.Find(e.Addr) < 0 && m.probed() && !m.Disabled() && e.Status.Routable() {
			stay = append(stay, *e)
		}
	}
	if stay == nil {
		return set
	}
	both, _, err := NewSet(append(stay, set.eps...))
	if err != nil { // too many
		return set
	}
	return both.WithPolicy(set.Policy())
}

// admit returns the Member of e with e's attributes in force.
func (v *View) admit(e *Endpoint) *Member {
	m := v.member(e.Addr)
	if m == nil {
		m = &Member{view: v}
		m.attrs.Store(e)
		v.hosts.add(m)
		if v.counted {
			m.countTotal()
		}
	}
	if was := m.attrs.Load(); !m.bound || was.Check != e.Check || was.Hostname != e.Hostname || was.TransportMatch != e.TransportMatch {
		var states []*ProbeState
		if v.cfg.Bind != nil {
			states = v.cfg.Bind(e)
		}
		m.bind(states, v.cfg.InitialHealthy)
		m.bound = true
	}
	v.enable(m, e)
	m.set(bitUnroutable, !e.Status.Routable())
	m.set(bitDraining, e.Status == StatusDraining)
	m.set(bitWeightless, e.Weight == 0)
	m.attrs.Store(e)
	m.judge()
	if m.set(bitWithdrawn, false) {
		delete(v.left, e.Addr)
	}
	return m
}

// enable puts in force what discovery and the operator say of m's enablement.
func (v *View) enable(m *Member, e *Endpoint) {
	switch e.Enabled {
	case OverrideEnable:
		delete(v.manual, e.Addr)
		m.set(bitDisabled, false)
	case OverrideDisable:
		delete(v.manual, e.Addr)
		m.set(bitDisabled, true)
	default:
		// What an override said ends with the override.
		enabled, said := v.manual[e.Addr]
		m.set(bitDisabled, said && !enabled)
	}
}

// SetEnabled is the operator's word on an address. It stays in force over
// updates until the operator or an override from discovery says otherwise. An
// address that is neither listed nor still in use is an error.
func (v *View) SetEnabled(a Addr, enabled bool) error {
	if v.member(a) == nil {
		return fmt.Errorf("cluster %q has no endpoint %s", v.name, a)
	}
	v.Foretell(a, enabled)
	return nil
}

// Foretell is SetEnabled for an address that may be listed later, as
// ViewConfig.Manual has it.
func (v *View) Foretell(a Addr, enabled bool) {
	v.manual[a] = enabled
	if m := v.member(a); m != nil {
		m.set(bitDisabled, !enabled)
	}
}

// Manual returns what the operator has said of addresses and what is still in
// force, as ViewConfig.Manual takes it: true is enabled. The map is a copy.
func (v *View) Manual() map[Addr]bool { return maps.Clone(v.manual) }

// countTotal has the connections of all members counted.
func (v *View) countTotal() {
	if v.counted {
		return
	}
	v.counted = true
	for m := range v.all() {
		m.countTotal()
	}
}

// Sweep lets go of withdrawn members: they are unbound when every selector
// serves a generation without them, as served says, and forgotten when no
// connection to them is open either. It reports whether some are left, so that
// the owner knows to come back.
func (v *View) Sweep(served uint64) (left bool) {
	for a, m := range v.left {
		if !m.Gone(served) {
			continue
		}
		v.unbind(m)
		if m.Active() == 0 {
			v.forget(m)
			delete(v.left, a)
		}
	}
	return len(v.left) > 0
}

func (v *View) unbind(m *Member) {
	if !m.bound {
		return
	}
	m.bound = false // what the probes said last stays
	if v.cfg.Unbind != nil {
		v.cfg.Unbind(m.Addr())
	}
}

func (v *View) forget(m *Member) {
	v.unbind(m)
	m.probes.Load().unwatch(m)
	if m.judging.Lock(); m.Degraded() { // no verdict reaches m any more
		v.degraded.Add(-1)
	}
	m.judging.Unlock()
	v.hosts.leave(m)
	if v.cfg.Drop != nil {
		v.cfg.Drop(m)
	}
}

// Members returns every member, withdrawn ones included, in the order of their
// addresses.
func (v *View) Members() []*Member {
	ms := slices.AppendSeq(make([]*Member, 0, len(v.members)+len(v.left)), v.all())
	slices.SortFunc(ms, func(a, b *Member) int { return a.Addr().Compare(b.Addr()) })
	return ms
}

// all yields every member, withdrawn ones included.
func (v *View) all() iter.Seq[*Member] {
	return func(yield func(*Member) bool) {
		for _, m := range v.members {
			if !yield(m) {
				return
			}
		}
		for _, m := range v.left {
			if !yield(m) {
				return
			}
		}
	}
}

// Close forgets every member. Selectors that are still published answer with
// them as long as they live, but nothing new becomes known.
func (v *View) Close() {
	for m := range v.all() {
		v.forget(m)
	}
	v.members = nil
	clear(v.left)
}
