package discovery

import (
	"context"
	"errors"
	"slices"

	"gatehouse.internal/lbcore"
)

type prioritised []Source

// Prioritised returns the Source that runs all of sources and reports the
// endpoints of all: those of the first keep the best priorities, those of each
// further one have the priorities behind, so that load spills over from one to the
// next. The priorities of one source are made to follow on each other, and those
// past lbcore.MaxPriority are one. An address that several sources list is the
// first one's. The policy of the set is that of the first source which gives one.
//
// Nothing is reported before each source has a set or has failed, or one has its
// set of an earlier run: that may be all there is for a while. From then on a
// source that fails keeps its last endpoints, and one that never had any has none,
// while its failure is passed on. A source that returns for good counts as failing
// for ever; when all have, Watch returns their errors joined. Prioritised of no
// sources fails at once.
func Prioritised(sources ...Source) Source { return prioritised(slices.Clone(sources)) }

func (p prioritised) Watch(ctx context.Context, sink Sink) error {
	s := stack{sink: sink}
	return join(ctx, p, &s.children, s.report, func() error { return failuresOf(s.children) })
}

// stack turns the children's states into the reports of one source.
type stack struct {
	sink     Sink
	children []*Latest

	reported bool // set was handed on
	set      lbcore.Set
	failure  string // what was handed on after set
}

func (s *stack) report() {
	var states []State
	known := false
	unknown, restored := false, false
	for _, c := range s.children {
		st := c.State()
		_, old := errors.AsType[*RestoredError](st.Err)
		unknown, restored = unknown || st.Phase() == PhaseUnknown, restored || old
		known = known || st.Known
		states = append(states, st)
	}
	if unknown && !restored && !s.reported {
		return
	}
	err := failuresOf(s.children)
	if set := stacked(states); known && (!s.reported || !s.set.Equal(set) || err == nil && s.failure != "") {
		s.reported, s.set, s.failure = true, set, ""
		if err != nil {
			ReplaceStale(s.sink, set, err)
			s.failure = err.Error()
		} else {
			s.sink.Replace(set)
		}
	}
	if err != nil && err.Error() != s.failure {
		s.sink.Fail(err)
		s.failure = err.Error()
	}
}

// stacked returns the endpoints of all states, each in its own priorities.
func stacked(states []State) lbcore.Set {
	var all []lbcore.Endpoint
	var policy lbcore.SetPolicy
	base := 0
	for _, st := range states {
		if !st.Known {
			continue
		}
		if policy == (lbcore.SetPolicy{}) {
			policy = st.Set.Policy()
		}
		var own []uint8
		for _, e := range st.Set.All() {
			own = append(own, e.Priority)
		}
		slices.Sort(own)
		own = slices.Compact(own)
		for _, e := range st.Set.All() {
			rank, _ := slices.BinarySearch(own, e.Priority)
			e.Priority = uint8(min(base+rank, lbcore.MaxPriority))
			all = append(all, e)
		}
		base += len(own)
	}
	set, _, err := lbcore.NewSet(all) // the first of an address is kept
	if err != nil {                   // too many of them: the first sources win
		set, _, _ = lbcore.NewSet(all[:lbcore.MaxEndpoints])
	}
	return set.WithPolicy(policy)
}
