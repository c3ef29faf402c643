package healthsvc

import (
	"slices"
	"strings"
)

// KindStats counts the probes of one kind that have ended, by result.
type KindStats struct {
	// Kind is what Probe.Kind returns.
	Kind string
	// Passed, Failed and TimedOut are results.
	Passed, Failed, TimedOut uint64
	// Local are probes that a lack of local resources prevented.
	Local uint64
	// Discarded are probes whose key was released before they ended.
	Discarded uint64
}

// Stats is a consistent snapshot of a Service.
type Stats struct {
	// Kinds is ordered by Kind. A kind appears with its first Ref and stays.
	Kinds []KindStats
	// Targets is the number of keys, Refs that of the Refs which share them.
	Targets, Refs int
	// InFlight is the number of probes in flight, Waiting that of the probes
	// which wait for a worker or for their turn after a burst.
	InFlight, Waiting int
	// Late counts probes that started more than an interval after they were
	// due: the workers, or the machine, are too few or stood still.
	Late uint64
}

// Stats returns the present numbers. Anybody may call it.
func (s *Service) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := Stats{
		Targets: s.live, Refs: s.refs,
		InFlight: s.busy, Waiting: s.paced.len() + s.ready.len(), Late: s.late,
	}
	for _, k := range s.kinds {
		st.Kinds = append(st.Kinds, *k)
	}
	return st
}

// kind returns the counters of a kind. mu is held.
func (s *Service) kind(name string) *KindStats {
	i, found := slices.BinarySearchFunc(s.kinds, name, func(k *KindStats, name string) int {
		return strings.Compare(k.Kind, name)
	})
	if !found {
		s.kinds = slices.Insert(s.kinds, i, &KindStats{Kind: name})
	}
	return s.kinds[i]
}
