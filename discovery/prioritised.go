package discovery

import (
	"context"
	"errors"
	"slices"

	"gatehouse.internal/lbcore"
)

// combined is the Source of a set that merge makes of those of sources.
type combined struct {
	sources []Source
	merge   func([]State) lbcore.Set
}

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
func Prioritised(sources ...Source) Source { return combined{slices.Clone(sources), stacked} }

// Merged returns the Source that runs all of sources and reports the endpoints of
// all with the priorities that they have; else it is as [Prioritised]. It is a
// Refresher, which asks those of sources that are.
func Merged(sources ...Source) Source { return combined{slices.Clone(sources), merged} }

// Watch implements [Source].
func (c combined) Watch(ctx context.Context, sink Sink) error {
	s := stack{sink: sink, merge: c.merge}
	return join(ctx, c.sources, &s.children, s.report, func() error { return failuresOf(s.children) })
}

// Refresh implements [Refresher].
func (c combined) Refresh() {
	for _, s := range c.sources {
		if r, ok := s.(Refresher); ok {
			r.Refresh()
		}
	}
}

// stack turns the children's states into the reports of one source.
type stack struct {
	sink     Sink
	merge    func([]State) lbcore.Set
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
	if set := s.merge(states); known && (!s.reported || !s.set.Equal(set) || err == nil && s.failure != "") {
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

// merged returns the endpoints of all states.
func merged(states []State) lbcore.Set {
	var all []lbcore.Endpoint
	var policy lbcore.SetPolicy
	for _, st := range states {
		if policy == (lbcore.SetPolicy{}) {
			policy = st.Set.Policy()
		}
		for _, e := range st.Set.All() {
			all = append(all, e)
		}
	}
	return setOf(all).WithPolicy(policy)
}

// setOf returns the set of the first endpoints of each address, and if there are
// too many of the first ones.
func setOf(all []lbcore.Endpoint) lbcore.Set {
	set, _, err := lbcore.NewSet(all)
	if err != nil {
		set, _, _ = lbcore.NewSet(all[:lbcore.MaxEndpoints])
	}
	return set
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
	return setOf(all).WithPolicy(policy)
}
