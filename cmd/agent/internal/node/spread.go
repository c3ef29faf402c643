package node

import (
	"cmp"
	"context"

	"gatehouse.internal/cmd/agent/internal/config"
	"gatehouse.internal/discovery"
	"gatehouse.internal/lbcore"
)

// spread returns how c shares its load on a node that is at local.
func spread(c *config.Cluster, local lbcore.Locality) lbcore.Spread {
	s := lbcore.Spread{PanicThreshold: c.PanicThreshold, LocalityWeighted: c.LocalityWeighted, IgnoreNew: c.IgnoreNew}
	if c.PreferLocal {
		s.PreferLocal, s.Local = true, local
	}
	return s
}

// slowStart returns how the weights of c's new endpoints grow.
func slowStart(s config.SlowStart) lbcore.SlowStart {
	if s.Window == 0 {
		return lbcore.SlowStart{}
	}
	return lbcore.SlowStart{Window: s.Window, Aggression: s.Aggression, MinWeight: s.MinWeightPercent / 100}
}

// amend returns src with what the settings of c add to its sets: how priorities
// share the load and what is dropped of it, unless the set has a word on these, and
// keys for the hash policies.
func amend(c *config.Cluster, src discovery.Source) discovery.Source {
	policy := lbcore.SetPolicy{Overprovisioning: c.OverprovisioningFactor, WeightedHealth: c.WeightedPriorityHealth, Drops: c.Drops}
	if policy.Overprovisioning == lbcore.DefaultOverprovisioning && !policy.WeightedHealth {
		policy.Overprovisioning = 0
	}
	if policy == (lbcore.SetPolicy{}) && !c.HashHostname {
		return src
	}
	return amended{src, policy, c.HashHostname}
}

// amended is a Source that adds to the sets of another.
type amended struct {
	discovery.Source
	policy       lbcore.SetPolicy
	hashHostname bool
}

// Watch implements discovery.Source.
func (a amended) Watch(ctx context.Context, sink discovery.Sink) error {
	return a.Source.Watch(ctx, amendedSink{sink, a})
}

type amendedSink struct {
	discovery.Sink
	by amended
}

// Replace implements discovery.Sink.
func (s amendedSink) Replace(set lbcore.Set) { s.Sink.Replace(s.amend(set)) }

// ReplaceStale implements discovery.StaleSink.
func (s amendedSink) ReplaceStale(set lbcore.Set, err error) {
	discovery.ReplaceStale(s.Sink, s.amend(set), err)
}

func (s amendedSink) amend(set lbcore.Set) lbcore.Set {
	policy := set.Policy()
	if policy == (lbcore.SetPolicy{}) {
		policy = s.by.policy
	}
	if s.by.hashHostname {
		eps := make([]lbcore.Endpoint, 0, set.Len())
		for _, e := range set.All() {
			e.HashKey = cmp.Or(e.HashKey, e.Hostname)
			eps = append(eps, e)
		}
		set = lbcore.MustSet(eps...) // of the addresses of a set
	}
	return set.WithPolicy(policy)
}
