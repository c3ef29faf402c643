package discovery

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"gatehouse.internal/lbcore"
)

// Phase is how much a reader may trust a State.
type Phase uint8

// The phases.
const (
	// PhaseUnknown: no report yet.
	PhaseUnknown Phase = iota
	// PhaseFailing: no set yet, and the source says why.
	PhaseFailing
	// PhaseFresh: the set is what the source last said.
	PhaseFresh
	// PhaseStale: the set stays in force, but the source can't tell if it
	// still holds.
	PhaseStale
)

var phaseNames = [...]string{"unknown", "failing", "fresh", "stale"}

// String returns "unknown", "failing", "fresh" or "stale", the names that
// logs, metrics and dumps use.
func (p Phase) String() string {
	if int(p) < len(phaseNames) {
		return phaseNames[p]
	}
	return fmt.Sprintf("Phase(%d)", uint8(p))
}

// State is what a source has said so far. It is a value: a reader may keep it.
type State struct {
	// Known says that Set was reported. The empty set may be known too.
	Known bool
	// Set is the newest set.
	Set lbcore.Set
	// Err is the newest failure, or nil if Set came after it.
	Err error
	// Since is when the present Phase began.
	Since time.Time
	// Confirmed is when Set was last reported, also if it was the same again;
	// the zero Time if never. How often a source says the same again is its own
	// business: one that hears of every change may be silent for days.
	Confirmed time.Time
	// Updates counts the reports that changed Set, the first one included;
	// Failures counts the calls of Fail. Neither goes back.
	Updates, Failures uint64
}

// Phase returns what Known and Err amount to.
func (s State) Phase() Phase {
	switch {
	case s.Known && s.Err != nil:
		return PhaseStale
	case s.Known:
		return PhaseFresh
	case s.Err != nil:
		return PhaseFailing
	}
	return PhaseUnknown
}

// String returns the phase, for the stale one since when, and the error.
func (s State) String() string {
	switch p := s.Phase(); p {
	case PhaseFailing:
		return fmt.Sprintf("%s: %v", p, s.Err)
	case PhaseStale:
		return fmt.Sprintf("%s since %s: %v", p, s.Since.UTC().Format(time.RFC3339), s.Err)
	default:
		return p.String()
	}
}

// Latest is a Sink that keeps the newest State for one reader. It is level
// triggered: however many reports come while the reader is busy, it is woken
// once and finds the last of them. Make one with NewLatest. All methods may be
// called from anywhere, and none blocks.
type Latest struct {
	changed chan struct{}

	mu    sync.Mutex // held for a few assignments only
	state State
}

// NewLatest returns a Latest in the phase unknown.
func NewLatest() *Latest { return newLatest(make(chan struct{}, 1)) }

// newLatest lets several of them wake one reader.
func newLatest(changed chan struct{}) *Latest {
	return &Latest{changed: changed, state: State{Since: time.Now()}}
}

// Changed returns the channel that gets one value when State has something
// new: another set, another phase, or another error text. A set that equals
// the one in force is nothing new.
func (l *Latest) Changed() <-chan struct{} { return l.changed }

// State returns the newest state.
func (l *Latest) State() State {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state
}

// Replace is the Sink's: set is in force from now on and any failure is over.
func (l *Latest) Replace(set lbcore.Set) {
	l.update(func(s *State) bool { return s.replace(set) })
}

func (s *State) replace(set lbcore.Set) (news bool) {
	news = !s.Known || s.Err != nil
	s.Err = nil
	s.Confirmed = time.Now()
	if !s.Known || !s.Set.Equal(set) {
		news = true
		s.Known, s.Set = true, set
		s.Updates++
	}
	return news
}

// Fail is the Sink's: the last set stays in force and err says why nothing
// newer is known. A nil err is recorded as an error without a reason, so that
// it can't pass for success.
func (l *Latest) Fail(err error) {
	if err == nil {
		err = errors.New("the source failed without a reason")
	}
	l.update(func(s *State) bool { return s.fail(err) })
}

func (s *State) fail(err error) (news bool) {
	news = s.Err == nil || s.Err.Error() != err.Error()
	s.Err = err
	s.Failures++
	return news
}

// ReplaceStale is Replace and then Fail, for a reader at once. Of a set of an
// earlier run (RestoredError) Confirmed is when it was right last.
func (l *Latest) ReplaceStale(set lbcore.Set, err error) {
	l.update(func(s *State) bool {
		news := s.replace(set)
		if r, ok := errors.AsType[*RestoredError](err); ok {
			s.Confirmed = r.Confirmed
		}
		return s.fail(err) || news
	})
}

func (l *Latest) update(apply func(*State) bool) {
	l.mu.Lock()
	before := l.state.Phase()
	news := apply(&l.state)
	if l.state.Phase() != before {
		l.state.Since = time.Now()
	}
	l.mu.Unlock()
	if news {
		wake(l.changed)
	}
}

// wake fills a one-slot channel; a value that is there already will do.
func wake(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
