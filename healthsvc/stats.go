package healthsvc

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"gatehouse.internal/lbcore"
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
	// Views is the number of distinct Ask.View among these.
	Targets, Refs, Views int
	// Workers is how many probes may be in flight at present. InFlight is the number of probes in flight, Waiting that of the probes
	// which wait for a worker or for their turn after a burst.
	Workers, InFlight, Waiting int
	// Late counts probes that started more than an interval after they were
	// due: the workers, or the machine, are too few or stood still.
	Late uint64
}

// Stats returns the present numbers. Anybody may call it.
func (s *Service) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := Stats{
		Targets: s.live, Refs: s.refs, Views: len(s.views),
		Workers: s.limit(), InFlight: s.busy, Waiting: s.paced.len() + s.ready.len() + s.hanging.len(), Late: s.late,
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

// KeyStatus is what is known of a key, for dumps.
type KeyStatus struct {
	// Addr is what is probed. Owner is empty for a key that anybody may share.
	Addr  lbcore.Addr
	Owner string
	// Status is without State and Since, which are the Views'. Of a probe it says what
	// those say who have the longest timeout.
	Status Status
	// Views are who shares the key, by name.
	Views []ViewStatus
}

// ViewStatus is one Ref's part of a KeyStatus.
type ViewStatus struct {
	View       string
	State      lbcore.Health
	Since      time.Time
	Thresholds Thresholds
	Cadence    Cadence // as asked for
	LastError  string  // as Status's, by the View's own timeout
}

// Keys describes every key, by address, kind and probe. It is for dumps: it
// takes a lock for as long as it takes to copy all of it. Anybody may call it.
func (s *Service) Keys() []KeyStatus {
	s.mu.Lock()
	keys := make([]KeyStatus, 0, s.live)
	for _, t := range s.targets {
		if t.refs == 0 {
			continue
		}
		k := KeyStatus{Addr: t.addr, Owner: t.what.id.owner, Status: t.status(t.patient())}
		k.Status.State, k.Status.Since = lbcore.HealthUnknown, time.Time{}
		for _, v := range t.verdicts {
			for _, r := range v.refs {
				k.Views = append(k.Views, ViewStatus{r.ask.View, v.word, v.since.time(), v.Thresholds, r.ask.Cadence, v.lastError})
			}
		}
		keys = append(keys, k)
	}
	s.mu.Unlock()
	for _, k := range keys {
		slices.SortFunc(k.Views, func(a, b ViewStatus) int { return strings.Compare(a.View, b.View) })
	}
	slices.SortFunc(keys, func(a, b KeyStatus) int {
		return cmp.Or(a.Addr.Compare(b.Addr), strings.Compare(a.Status.Kind, b.Status.Kind),
			strings.Compare(a.Status.Probe, b.Status.Probe), strings.Compare(a.Owner, b.Owner))
	})
	return keys
}

// patient returns the oldest verdict with the longest timeout. t has a Ref.
func (t *target) patient() *verdict {
	best := t.verdicts[0]
	for _, v := range t.verdicts {
		if v.timeout > best.timeout {
			best = v
		}
	}
	return best
}
