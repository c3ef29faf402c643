package healthsvc

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"gatehouse.internal/lbcore"
)

// Key says what one stream of probes is about. Equal keys are probed once.
type Key struct {
	// Addr is what is dialled: the endpoint, or its health address.
	Addr lbcore.Addr
	// Spec is the canonical text of everything that a probe sends and expects,
	// host names and TLS identity included. Cadence and thresholds are no part
	// of it. TCP, HTTP and GRPC have a method that returns it. It may hold what is
	// secret in a header or payload, so it is not for display.
	Spec string
	// Owner, if not empty, keeps the key from others: it is shared by those only
	// who give the same.
	Owner string
}

// Probe is one way to find out whether an address serves. Probes must be safe
// for concurrent use, since many keys may use the same one.
type Probe interface {
	// Probe returns nil if addr passed, ErrDegraded if it passed and says that it
	// is degraded, else an error that tells the reason in one line. An ImmediateError anywhere in its chain makes the endpoint
	// unhealthy at once. A lack of local resources (descriptors, ports,
	// buffers) anywhere in its chain says nothing of the endpoint and is no
	// result. Probe returns soon after ctx ends; a pass that comes later than
	// ctx's deadline counts as a timeout.
	Probe(ctx context.Context, addr lbcore.Addr) error
	// Kind returns a constant word such as "tcp", for metrics and logs.
	Kind() string
	// String says in a few words what is asked, for dumps: nothing secret.
	String() string
}

// ErrDegraded is how a probe says that the endpoint serves, but should get what
// others have no capacity for only. Source: the header x-envoy-degraded.
var ErrDegraded = errors.New("degraded")

// Ask is what one caller wants of a key. Callers with many keys give the same *Ask
// for all of them: it is kept, and must not be written to from then on.
type Ask struct {
	// View is who asks, for dumps: the name of a cluster.
	View string
	// Cadence's values that its Validate refuses are replaced by the nearest valid
	// ones.
	Cadence    Cadence
	Thresholds Thresholds
	// Traffic says whether the View has ever had a connection; nil says that it
	// has. See Cadence.NoTrafficInterval. What it says counts from the end of the
	// next probe on, or from [Ref.Review].
	Traffic *atomic.Bool
	// AlwaysLogFailures has each failure logged, not only changes of a verdict.
	// Source: HealthCheck.always_log_health_check_failures.
	AlwaysLogFailures bool
	// OnChange, which may be nil, is called after the Ref's State has changed,
	// first verdicts included, by the goroutine that runs the Service: it must not
	// block, and typically fills a one-slot channel. A call that is on its way may
	// arrive while, or just after, the Ref is released.
	OnChange func()
}

// ImmediateError is a failure that makes an endpoint unhealthy whatever the
// threshold. Envoy does so for an http status that is neither expected nor
// retriable.
type ImmediateError struct{ Err error }

// Error returns the text of Err.
func (e *ImmediateError) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *ImmediateError) Unwrap() error { return e.Err }

// traffic is Traffic where it makes a difference.
func (a *Ask) traffic() *atomic.Bool {
	if a.Cadence.NoTrafficInterval == 0 {
		return nil
	}
	return a.Traffic
}

// Status is what is known of a Ref's check. Times are zero for "never".
type Status struct {
	// State is the verdict by the Ref's thresholds, Since when it holds.
	State lbcore.Health
	Since time.Time
	// Restored says that State is that of an earlier run: no probe has spoken for it yet,
	// nor as many against it as the threshold says. Since is then until when it is known
	// to have been right.
	Restored bool
	// LastProbe is when the newest probe that gave a result ended.
	LastProbe time.Time
	// LastFailure is when the newest failed probe ended, LastError its reason.
	// Both stay after later passes.
	LastFailure time.Time
	LastError   string
	// LastLocal is why the newest probe gave no result: a lack of local resources, or
	// a process that stood still. It is empty if that gave one.
	LastLocal string
	// Passing says how the newest probe ended, Streak how many in a row ended
	// like it.
	Passing bool
	Streak  uint64
	// Cadence is the one that the key is probed at: the fastest that is asked for
	// at present, with the longest Timeout and the shortest InitialJitter of all.
	// Interval is which of its intervals that is.
	Cadence  Cadence
	Interval time.Duration
	// NextProbe is when the next probe is due; it is in the past for one that
	// waits for its turn, and zero while Probing.
	NextProbe time.Time
	Probing   bool
	// Kind and Probe are what the key's probe says of itself.
	Kind, Probe string
	// Sharers is the number of Refs to the key, this one included.
	Sharers int
}

// Ref is one caller's share in the probes of a key. Its methods may be called
// from anywhere.
type Ref struct {
	v        *verdict
	ask      *Ask
	at       int32 // position in v.refs
	released bool
}

// There are tens of thousands of what follows, in small fields and in the order
// that wastes the least.

// subject is what the keys of one Spec and Owner have in common. mu of s guards it.
type subject struct {
	s     *Service
	id    subjectID
	probe Probe
	kind  *KindStats
	known int // targets in s.targets
	live  int // those that have a Ref
}

type subjectID struct{ spec, owner string }

// targetKey is a Key whose texts need not be compared.
type targetKey struct {
	addr lbcore.Addr
	what *subject
}

// target is a key with the state of its probes. mu of its Service guards it.
type target struct {
	targetKey
	asks     []ask      // distinct cadences
	verdicts []*verdict // one for each distinct pair of thresholds, and timeout
	last     outcome    // the newest that is one; not ended before the first
	local    string     // why the newest probe gave none

	sched schedule // only the scheduler touches it

	// life counts how often the key came into use. What began in an earlier
	// life has no say in a later one.
	life    uint32
	refs    int32
	locals  atomic.Uint32 // probes in a row that gave no result, up to stuckAfter
	changed bool          // listed in Service.changed
}

// moment is a time for people, by the wall clock, in a third of the bytes of a
// time.Time: nanoseconds since 1970. 0 is never.
type moment int64

func momentOf(t time.Time) moment { return moment(t.UnixNano()) }

func (m moment) time() time.Time {
	if m == 0 {
		return time.Time{}
	}
	return time.Unix(0, int64(m))
}

// ask is a cadence, with what decides which of its intervals holds, and how many
// Refs ask for it.
type ask struct {
	*Cadence
	v       *verdict
	traffic *atomic.Bool // nil where it makes no difference
	refs    int
}

// interval returns the one that holds now, without jitter. Before the first
// result it is that of an endpoint that passes.
func (a *ask) interval() time.Duration {
	return a.Cadence.interval(phase{
		failed: a.v.streak > 0 && !a.v.passing, pending: a.v.streak > 0 && a.v.against > 0,
		idle: a.traffic != nil && !a.traffic.Load(),
	})
}

// verdict is what one pair of thresholds and one timeout make of a stream.
type verdict struct {
	automaton
	loggers int32 // Refs with AlwaysLogFailures
	timeout time.Duration
	history
	word      lbcore.Health // state, or degraded
	published lbcore.ProbeState
	since     moment
	refs      []*Ref
	t         *target
}

// history is what a timeout makes of the results.
type history struct {
	lastFailure     moment
	lastError       string
	passing, atOnce bool
	degraded        bool   // as the last pass said
	turned          bool   // not all results have been equal
	streak          uint32 // as far as it goes
}

// Acquire returns a Ref to k, whose probes begin with its first Ref and end
// with its last. p probes k.Addr; of equal keys any one's p is used.
//
// A Ref with thresholds that are new for a key that is probed already begins
// with the verdict that the same View has had, or else the oldest with its timeout, and
// the latest streak of equal results counts by the new ones: State need not be unknown when
// Acquire returns, and a streak that is too short for them changes nothing.
func (s *Service) Acquire(k Key, p Probe, a *Ask) *Ref {
	now := time.Now()
	if c := a.Cadence.normal(); c != a.Cadence {
		valid := *a
		valid.Cadence, a = c, &valid
	}
	r := &Ref{ask: a}
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.find(k)
	if t == nil {
		t = s.add(k)
	}
	if t.refs == 0 {
		t.begin(p)
		s.live++
		s.touch(t)
	}
	t.refs++
	s.refs++
	s.views[a.View]++
	r.v = t.verdict(a, now)
	s.restore(t, r.v)
	s.changes++
	if a.AlwaysLogFailures {
		r.v.loggers++
	}
	before := t.load()
	r.at = int32(len(r.v.refs))
	r.v.refs = append(r.v.refs, r)
	if t.wish(r) {
		s.touch(t)
	}
	s.loads.change(before, t.load())
	return r
}

// find returns the target of k, or nil. mu is held.
func (s *Service) find(k Key) *target {
	return s.targets[targetKey{k.Addr, s.subjects[subjectID{k.Spec, k.Owner}]}]
}

// add returns a new target for k. mu is held.
func (s *Service) add(k Key) *target {
	id := subjectID{k.Spec, k.Owner}
	what := s.subjects[id]
	if what == nil {
		what = &subject{s: s, id: id}
		s.subjects[id] = what
	}
	what.known++
	t := &target{targetKey: targetKey{k.Addr, what}}
	s.targets[t.targetKey] = t
	return t
}

// remove forgets t, which has no Ref. mu is held.
func (s *Service) remove(t *target) {
	delete(s.targets, t.targetKey)
	if t.what.known--; t.what.known == 0 {
		delete(s.subjects, t.what.id)
	}
}

// Release gives the share back. The key's stream slows down if this was its
// fastest sharer, and ends, with all that is known of the key, if it was the
// last. A probe that is in flight then is cancelled and its result discarded.
// Later calls do nothing.
func (r *Ref) Release() {
	v := r.v
	t := v.t
	s := t.what.s
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
	s.changes++
	s.refs--
	t.refs--
	if s.views[r.ask.View]--; s.views[r.ask.View] == 0 {
		delete(s.views, r.ask.View)
	}
	if r.ask.AlwaysLogFailures {
		v.loggers--
	}
	before := t.load()
	if t.unwish(r) {
		s.touch(t)
	}
	s.loads.change(before, t.load())
	if t.refs == 0 {
		s.live--
		t.what.live--
	}
}

// Review has the next probe follow what Ask.Traffic says now.
func (r *Ref) Review() {
	s := r.v.t.what.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if !r.released {
		s.touch(r.v.t)
	}
}

// State returns the live verdict. It is shared by all Refs with equal key and
// thresholds and timeout, and stays as it was when the last of them is released.
func (r *Ref) State() *lbcore.ProbeState { return &r.v.published }

// Stuck reports that at least three probes in a row ended without a result, for
// lack of local resources; Ask.OnChange is called when that begins. Who waits for
// the first verdict need not wait on then. It takes no lock.
func (r *Ref) Stuck() bool { return r.v.t.locals.Load() >= stuckAfter }

// Status returns what is known now, or the zero Status after Release.
func (r *Ref) Status() Status {
	s := r.v.t.what.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.released {
		return Status{}
	}
	return r.v.t.status(r.v)
}

// status describes t as v sees it. mu is held, and t has a Ref.
func (t *target) status(v *verdict) Status {
	f := t.pace()
	st := Status{
		State: v.word, Since: v.since.time(), Restored: v.restored(),
		LastProbe: t.last.ended, LastFailure: v.lastFailure.time(), LastError: v.lastError, LastLocal: t.local,
		Passing: v.passing, Streak: uint64(v.streak),
		Cadence: f.Cadence, Interval: f.interval, Probing: t.sched.place == inFlight,
		Kind: t.what.kind.Kind, Probe: t.what.probe.String(), Sharers: int(t.refs),
	}
	if !st.Probing {
		st.NextProbe = t.sched.due
	}
	return st
}

// begin starts a life of t, for which somebody asks with p.
func (t *target) begin(p Probe) {
	if t.what.live == 0 { // else that of another key is as good
		t.what.probe, t.what.kind = p, t.what.s.kind(p.Kind())
	}
	t.what.live++
	t.life++
	t.last, t.local = outcome{}, ""
	t.locals.Store(0)
}

// fastest returns the ask whose interval is the shortest now; of equal ones the
// strictest. t has a Ref.
func (t *target) fastest() *ask {
	best := &t.asks[0]
	d := best.interval()
	for i := 1; i < len(t.asks); i++ {
		a := &t.asks[i]
		if x := a.interval(); x < d || x == d && a.compare(*best.Cadence) < 0 {
			best, d = a, x
		}
	}
	return best
}

// wish counts what r asks for and reports whether that makes the stream faster.
func (t *target) wish(r *Ref) bool {
	if a := t.wishOf(r); a != nil {
		a.refs++
		return false
	}
	var was pace
	if len(t.asks) > 0 {
		was = t.pace()
	}
	t.asks = append(t.asks, ask{&r.ask.Cadence, r.v, r.ask.traffic(), 1})
	return t.pace() != was
}

// unwish takes r's wish back and reports whether the stream is another by that.
func (t *target) unwish(r *Ref) bool {
	a := t.wishOf(r)
	if a.refs--; a.refs > 0 {
		return false
	}
	was := t.pace()
	t.asks = slices.DeleteFunc(t.asks, func(a ask) bool { return a.refs == 0 })
	return len(t.asks) == 0 || t.pace() != was
}

func (t *target) wishOf(r *Ref) *ask {
	for i := range t.asks {
		a := &t.asks[i]
		if a.v == r.v && a.traffic == r.ask.traffic() && (a.Cadence == &r.ask.Cadence || *a.Cadence == r.ask.Cadence) {
			return a
		}
	}
	return nil
}

// pace is what a stream goes by: the fastest cadence, with the shortest initial jitter
// and with the longest timeout, since who has a shorter one can tell by the time that a
// probe took. It is the zero value without asks.
type pace struct {
	Cadence
	interval time.Duration
}

func (t *target) pace() pace {
	f := t.fastest()
	p := pace{*f.Cadence, f.interval()}
	for i := range t.asks {
		p.Timeout = max(p.Timeout, t.asks[i].Timeout)
		p.InitialJitter = min(p.InitialJitter, t.asks[i].InitialJitter)
	}
	return p
}

// verdict returns the one that a, whose Cadence is normal, asks for. A new one
// learns the past.
func (t *target) verdict(a *Ask, now time.Time) *verdict {
	th := a.Thresholds.normal()
	for _, v := range t.verdicts {
		if v.Thresholds == th && v.timeout == a.Cadence.Timeout {
			return v
		}
	}
	v := &verdict{automaton: automaton{Thresholds: th}, timeout: a.Cadence.Timeout, since: momentOf(now), t: t}
	if was, own := t.heritage(a); was != nil {
		v.history = was.history
		if own || was.turned { // else the streak is all that has ever been seen
			v.state, v.word, v.since = was.state, was.word, was.since
			v.published.Store(v.word)
		}
		if v.streak > 0 {
			v.observe(v.passing, v.atOnce, v.streak)
			v.publish(now)
		}
	} else if !t.last.ended.IsZero() {
		v.judge(t.last)
	}
	t.verdicts = append(t.verdicts, v)
	return v
}

// heritage returns the verdict that a new one for a begins with: the View's own
// until now, or else the oldest with its timeout. Nil means that there is none.
func (t *target) heritage(a *Ask) (was *verdict, own bool) {
	for _, v := range t.verdicts {
		if slices.ContainsFunc(v.refs, func(r *Ref) bool { return r.ask.View == a.View }) {
			return v, true
		}
		if was == nil && v.timeout == a.Cadence.Timeout {
			was = v
		}
	}
	return was, false
}

// record takes the result of a probe and returns the verdicts that it changed, and
// whether it is news for the next run: it is too where one of an earlier run was confirmed.
func (t *target) record(r result) (changed []*verdict, news bool) {
	t.last, t.local = r.outcome, ""
	for _, v := range t.verdicts {
		old := v.restored()
		if v.judge(r.outcome) {
			changed = append(changed, v)
		}
		news = news || old && !v.restored()
	}
	return changed, news || len(changed) > 0
}

// judge takes the result of a probe and reports whether it changed the verdict. A
// probe that took as long as the timeout has failed, whatever came of it.
func (v *verdict) judge(r outcome) (changed bool) {
	switch {
	case r.took < v.timeout && r.cut,
		r.took >= v.timeout && r.stood:
		return false // it was cut short, or the time was not the endpoint's
	case r.took >= v.timeout && !r.timedOut:
		r.reason, r.atOnce = timeoutError(fmt.Sprintf("took %s", r.took.Round(time.Microsecond))).Error(), false
	}
	pass := r.reason == ""
	if v.streak == 0 || v.passing != pass {
		v.turned = v.streak > 0
		v.streak, v.atOnce = 0, false
	}
	if v.streak < math.MaxUint32 {
		v.streak++
	}
	v.passing, v.atOnce = pass, v.atOnce || r.atOnce
	if pass {
		v.degraded = r.degraded
	} else {
		v.lastFailure, v.lastError = momentOf(r.ended), r.reason
	}
	v.observe(pass, r.atOnce, 1)
	return v.publish(r.ended)
}

// publish stores the verdict, and reports whether it has changed. What is healthy
// is degraded as soon as it says so: there is no threshold, as in Envoy.
func (v *verdict) publish(at time.Time) (changed bool) {
	word := v.state
	if word == lbcore.HealthHealthy && v.degraded {
		word = lbcore.HealthDegraded
	}
	if word == v.word {
		return false
	}
	v.word, v.since = word, momentOf(at)
	v.published.Store(word)
	return true
}
