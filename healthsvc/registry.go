package healthsvc

import (
	"context"
	"slices"
	"time"

	"gatehouse.internal/lbcore"
)

// Key says what one stream of probes is about. Equal keys are probed once.
type Key struct {
	// Addr is what is dialled: the endpoint, or its health address.
	Addr lbcore.Addr
	// Spec is the canonical text of everything that a probe sends and expects,
	// host names and TLS identity included. Cadence and thresholds are no part
	// of it. TCP and HTTP have a method that returns it. It may hold what is
	// secret in a header or payload, so it is not for display.
	Spec string
}

// Probe is one way to find out whether an address serves. Probes must be safe
// for concurrent use, since many keys may use the same one.
type Probe interface {
	// Probe returns nil if addr passed, else an error that tells the reason in
	// one line. An ImmediateError anywhere in its chain makes the endpoint
	// unhealthy at once. A lack of local resources (descriptors, ports,
	// buffers) anywhere in its chain says nothing of the endpoint and is no
	// result. Probe returns soon after ctx ends; a pass that comes later than
	// ctx's deadline counts as a timeout.
	Probe(ctx context.Context, addr lbcore.Addr) error
	// Kind returns a constant word such as "tcp", for metrics and logs.
	Kind() string
}

// ImmediateError is a failure that makes an endpoint unhealthy whatever the
// threshold. Envoy does so for an http status that is neither expected nor
// retriable.
type ImmediateError struct{ Err error }

// Error returns the text of Err.
func (e *ImmediateError) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *ImmediateError) Unwrap() error { return e.Err }

// Status is what is known of a Ref's check. Times are zero for "never".
type Status struct {
	// State is the verdict by the Ref's thresholds, Since when it holds.
	State lbcore.Health
	Since time.Time
	// LastProbe is when the newest probe that gave a result ended.
	LastProbe time.Time
	// LastFailure is when the newest failed probe ended, LastError its reason.
	// Both stay after later passes. A probe that failed for lack of local
	// resources shows here and nowhere else.
	LastFailure time.Time
	LastError   string
	// Passing says how the newest probe ended, Streak how many in a row ended
	// like it.
	Passing bool
	Streak  uint64
	// Cadence is the one the key is probed at: the fastest that is asked for.
	Cadence Cadence
	// Sharers is the number of Refs to the key, this one included.
	Sharers int
}

// Ref is one caller's share in the probes of a key. Its methods may be called
// from anywhere.
type Ref struct {
	s        *Service
	t        *target
	v        *verdict
	cadence  Cadence
	onChange func()
	at       int // position in v.refs
	released bool
}

// target is a key with the state of its probes. mu of its Service guards it.
type target struct {
	key   Key
	probe Probe
	kind  *KindStats
	// life counts how often the key came into use. What began in an earlier
	// life has no say in a later one.
	life     uint64
	refs     int
	asks     []ask      // distinct cadences, the fastest first
	verdicts []*verdict // one for each distinct pair of thresholds
	changed  bool       // listed in Service.changed

	lastProbe, lastFailure time.Time
	lastError              string
	passing, atOnce        bool
	streak                 uint64

	sched schedule // only the scheduler touches it
}

// ask is a cadence and how many Refs ask for it.
type ask struct {
	Cadence
	refs int
}

// verdict is what one pair of thresholds makes of a stream.
type verdict struct {
	automaton
	published lbcore.ProbeState
	since     time.Time
	refs      []*Ref
}

// Acquire returns a Ref to k, whose probes begin with its first Ref and end
// with its last. p probes k.Addr; of equal keys any one's p is used. Values of c
// that Cadence.Validate refuses are replaced by the nearest valid ones.
//
// A Ref with thresholds that are new for a key that is probed already begins
// with the verdict that they give for the latest streak of equal results, so
// State need not be unknown when Acquire returns.
//
// onChange, which may be nil, is called after State has changed, first verdicts
// included, by the goroutine that runs the Service: it must not block, and
// typically fills a one-slot channel. A call that is on its way may arrive
// while, or just after, the Ref is released.
func (s *Service) Acquire(k Key, p Probe, c Cadence, th Thresholds, onChange func()) *Ref {
	now := time.Now()
	r := &Ref{s: s, cadence: c.normal(), onChange: onChange}
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.targets[k]
	if t == nil {
		t = &target{key: k}
		s.targets[k] = t
	}
	if t.refs == 0 {
		t.begin(p, s.kind(p.Kind()))
		s.live++
		s.touch(t)
	}
	t.refs++
	s.refs++
	if t.ask(r.cadence) {
		s.touch(t)
	}
	r.t, r.v = t, t.verdict(th.normal(), now)
	r.at = len(r.v.refs)
	r.v.refs = append(r.v.refs, r)
	return r
}

// Release gives the share back. The key's stream slows down if this was its
// fastest sharer, and ends, with all that is known of the key, if it was the
// last. A probe that is in flight then is cancelled and its result discarded.
// Later calls do nothing.
func (r *Ref) Release() {
	s, t, v := r.s, r.t, r.v
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.released {
		return
	}
	r.released = true
	last := len(v.refs) - 1
	v.refs[r.at] = v.refs[last]
	v.refs[r.at].at = r.at
	v.refs[last] = nil
	if v.refs = v.refs[:last]; last == 0 {
		i := slices.Index(t.verdicts, v)
		t.verdicts = slices.Delete(t.verdicts, i, i+1)
	}
	s.refs--
	t.refs--
	if t.unask(r.cadence) {
		s.touch(t)
	}
	if t.refs == 0 {
		s.live--
	}
}

// State returns the live verdict. It is shared by all Refs with equal key and
// thresholds, and stays as it was when the last of them is released.
func (r *Ref) State() *lbcore.ProbeState { return &r.v.published }

// Status returns what is known now, or the zero Status after Release.
func (r *Ref) Status() Status {
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	if r.released {
		return Status{}
	}
	t := r.t
	return Status{
		State: r.v.state, Since: r.v.since,
		LastProbe: t.lastProbe, LastFailure: t.lastFailure, LastError: t.lastError,
		Passing: t.passing, Streak: t.streak,
		Cadence: t.cadence(), Sharers: t.refs,
	}
}

// begin starts a life of t.
func (t *target) begin(p Probe, kind *KindStats) {
	t.probe, t.kind = p, kind
	t.life++
	t.lastProbe, t.lastFailure, t.lastError = time.Time{}, time.Time{}, ""
	t.passing, t.atOnce, t.streak = false, false, 0
}

// cadence returns the one in force. t has a Ref.
func (t *target) cadence() Cadence { return t.asks[0].Cadence }

// ask counts c among the wishes and reports whether it is now the fastest.
func (t *target) ask(c Cadence) bool {
	i, found := slices.BinarySearchFunc(t.asks, c, func(a ask, c Cadence) int { return a.compare(c) })
	if found {
		t.asks[i].refs++
		return false
	}
	t.asks = slices.Insert(t.asks, i, ask{c, 1})
	return i == 0
}

// unask takes c back and reports whether it was the fastest.
func (t *target) unask(c Cadence) bool {
	i, _ := slices.BinarySearchFunc(t.asks, c, func(a ask, c Cadence) int { return a.compare(c) })
	if t.asks[i].refs--; t.asks[i].refs > 0 {
		return false
	}
	t.asks = slices.Delete(t.asks, i, i+1)
	return i == 0
}

// verdict returns the one by th, which is normal. A new one learns the past.
func (t *target) verdict(th Thresholds, now time.Time) *verdict {
	for _, v := range t.verdicts {
		if v.Thresholds == th {
			return v
		}
	}
	v := &verdict{automaton: automaton{Thresholds: th}, since: now}
	if t.streak > 0 {
		v.observe(t.passing, t.atOnce, uint32(min(t.streak, 1<<32-1)))
		v.published.Store(v.state)
	}
	t.verdicts = append(t.verdicts, v)
	return v
}

// record takes the result of a probe and returns the verdicts that it changed.
func (t *target) record(r result) (changed []*verdict) {
	pass := r.reason == ""
	if t.streak == 0 || t.passing != pass {
		t.streak, t.atOnce = 0, false
	}
	t.streak++
	t.passing, t.lastProbe = pass, r.ended
	t.atOnce = t.atOnce || r.atOnce
	if !pass {
		t.lastFailure, t.lastError = r.ended, r.reason
	}
	for _, v := range t.verdicts {
		if v.observe(pass, r.atOnce, 1) {
			v.since = r.ended
			v.published.Store(v.state)
			changed = append(changed, v)
		}
	}
	return changed
}
