package lbcore

import (
	"fmt"
	"runtime"
)

// MaxSteps is how many endpoints an Explanation lists, beside its candidates.
const MaxSteps = 128

// Verdict is what a selection has found of an endpoint that it came to.
type Verdict uint8

// The verdicts. The first two make a candidate.
const (
	// VerdictTaken: it is acceptable.
	VerdictTaken Verdict = iota
	// VerdictLeastLoaded: it is above the bound on its load, as all others are, and
	// the least so.
	VerdictLeastLoaded
	// VerdictNotReady: it takes no connections.
	VerdictNotReady
	// VerdictDegraded: it is degraded, and others come first.
	VerdictDegraded
	// VerdictNotDegraded: the part of the load that the key belongs to goes to
	// degraded endpoints first.
	VerdictNotDegraded
	// VerdictSlowStart: it starts slowly, and the lot fell on somebody else.
	VerdictSlowStart
	// VerdictOverloaded: it is above the bound on its load.
	VerdictOverloaded
)

var verdictNames = [...]string{"taken", "least_loaded", "not_ready", "degraded", "not_degraded", "slow_start", "overloaded"}

// String returns the name, as "not_ready".
func (v Verdict) String() string {
	if int(v) < len(verdictNames) {
		return verdictNames[v]
	}
	return fmt.Sprintf("Verdict(%d)", uint8(v))
}

// Candidate reports whether v makes an endpoint a candidate.
func (v Verdict) Candidate() bool { return v <= VerdictLeastLoaded }

// Site is a place on the ring or in the table of a selector. The zero Site is none.
type Site struct {
	// Place is the number of the point or entry, from 0 and below Of.
	Place, Of uint64
	// Hash is where a point lies on its ring, or what led to an entry.
	Hash uint64
}

// Sited is a Selector with a ring or a table.
type Sited interface {
	Selector
	// Site returns the place of a position of the walk for k.
	Site(k Key, at uint64) Site
}

// Peeker is a Selector whose First changes something. Peek returns what First would
// now, and changes nothing.
type Peeker interface {
	Selector
	Peek(k Key) uint64
}

// Explanation says how a Slot selects for a key; see [Slot.Explain].
type Explanation struct {
	// Generation is that of the selector; 0 is the empty beginning, with no Steps.
	Generation uint64
	// Key is what decides: of a slot whose Builder isn't Keyed, or without a key, its
	// Hash is drawn, and the next selection goes another way.
	Key   Key
	Keyed bool
	// Endpoints is how many the selector has, those of weight 0 left out.
	Endpoints int
	// Loads is how the load is spread over priorities, Priority and Distance the one
	// that the key leads to. Want is what it looks for there first: "healthy",
	// "degraded", or in a panic "anyone".
	Loads              []TierLoad
	Priority, Distance uint8
	Want               string
	// Steps are the endpoints that the selection came to, in the order in which it
	// did; each once, with the last verdict. More says that there were more than
	// MaxSteps, of which only candidates are listed.
	Steps []Step
	More  bool
}

// Step is an endpoint that a selection came to.
type Step struct {
	Member  *Member
	Verdict Verdict
	// Order is the endpoint's place among the candidates, from 1, or 0.
	Order int
	// Weight, Priority and Distance are those in the selector.
	Weight             uint32
	Priority, Distance uint8
	// Walk says that the policy's own order led to it; else it was the permutation
	// of all, for lack of enough who are acceptable. Site is where, if the selector
	// is Sited.
	Walk bool
	Site Site
}

var classNames = [...]string{classHealthy: "healthy", classDegraded: "degraded", classAnyone: "anyone"}

// Explain returns how Pick would select for k at this moment, step by step. It goes
// the way of Pick through what serves, and changes nothing: it takes nobody's turn.
// r must be pinned, as for Pick; it takes the time of a Pick that finds nobody at
// most, and allocates. For dumps.
func (s *Slot) Explain(r *Reader, k Key, want int) (x Explanation) {
	return s.explain(r, k, want, nil)
}

// explain is Explain. With a place the load has been led there by a Chain.
func (s *Slot) explain(r *Reader, k Key, want int, place *lot) (x Explanation) {
	if r.epoch.Load() == 0 {
		panic("lbcore: Explain with a Reader that is not pinned")
	}
	x.Keyed = s.keyed
	pub := s.pub.Load()
	if pub == nil {
		return x
	}
	x.Generation, x.Endpoints, x.Loads = pub.generation, pub.size, pub.tierLoads()
	if !s.keyed {
		k = Key{}
	}
	if !k.Set {
		k.Hash = r.random()
	}
	x.Key = k
	table := pub.loads.Load()
	var at lot
	switch {
	case place != nil:
		at = place.in(pub, table)
	case table != nil:
		at = table.lots[k.Hash%uint64(len(table.lots))]
	}
	x.Want = classNames[at.class]
	if len(pub.tiers) == 0 {
		return x
	}
	x.Priority, x.Distance = pub.tiers[at.tier].priority, pub.tiers[at.tier].distance
	t := trace{x: &x, seen: make(map[*Member]int)}
	var p Picks
	f := search{p: &p, k: k, want: uint8(min(max(want, 1), MaxPicks)), slow: !s.keyed, factor: uint64(s.cfg.BalanceFactor), trace: &t}
	pub.find(&f, table, at)
	runtime.KeepAlive(pub)
	return x
}

// trace notes what a search does.
type trace struct {
	x    *Explanation
	seen map[*Member]int // where in Steps
}

// note notes the verdict on member i of a part, found at a position of the walk if
// walking.
func (t *trace) note(s *search, p *part, i int, at uint64, walking bool, v Verdict) {
	m := p.members[i]
	k, seen := t.seen[m]
	switch {
	case !seen && len(t.x.Steps) >= MaxSteps && !v.Candidate():
		t.x.More = true
		return
	case !seen:
		k = len(t.x.Steps)
		t.seen[m] = k
		t.x.Steps = append(t.x.Steps, Step{Member: m, Weight: p.weights[i], Priority: p.priority, Distance: p.distance, Walk: walking})
		if sited, ok := p.sel.(Sited); ok && walking {
			t.x.Steps[k].Site = sited.Site(s.k, at)
		}
	}
	if step := &t.x.Steps[k]; step.Order == 0 {
		step.Verdict = v
		if v.Candidate() {
			step.Order = int(s.p.n)
		}
	}
}
