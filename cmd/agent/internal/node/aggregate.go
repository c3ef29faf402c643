package node

import (
	"fmt"
	"slices"

	"gatehouse.internal/cmd/agent/internal/config"
	"gatehouse.internal/discovery"
	"gatehouse.internal/forwarder"
	"gatehouse.internal/lbcore"
)

// aggregate is a cluster that consists of others. It is never written.
type aggregate struct {
	cfg      config.Cluster
	members  []*cluster // of cfg.Aggregate, those that are there
	chain    *lbcore.Chain
	children []target // what takes the picks of the chain's slots
	most     int      // candidates that a child needs
	none     *forwarder.Refusal
}

// aggregates makes what the settings want of the clusters that serve now, and
// has the owners of these tell it of their health.
func (r *runner) aggregates(clusters map[string]*cluster) map[string]*aggregate {
	all := make(map[string]*aggregate)
	chains := make(map[*cluster][]*lbcore.Chain)
	for _, cfg := range r.combined {
		a := r.aggregate(cfg, clusters)
		all[cfg.Name] = a
		for _, c := range a.members {
			chains[c] = append(chains[c], a.chain)
		}
	}
	for _, c := range clusters {
		if list := chains[c]; !slices.Equal(list, *c.chains.Load()) {
			c.chains.Store(&list)
		}
	}
	for _, a := range all {
		a.chain.UpdateLoads() // an owner may have done so before it knew of the chain
	}
	return all
}

func (r *runner) aggregate(cfg config.Cluster, clusters map[string]*cluster) *aggregate {
	a := &aggregate{cfg: cfg, none: &forwarder.Refusal{
		Flag: forwarder.FlagUH, Reason: fmt.Sprintf("cluster %q has no endpoint that is ready in any of %q", cfg.Name, cfg.Aggregate),
	}}
	var slots []*lbcore.Slot
	for _, name := range cfg.Aggregate {
		c := clusters[name]
		if c == nil {
			continue
		}
		a.members = append(a.members, c)
		slots = append(slots, c.group.Slots()[0])
		to := target{slot: c.group.Slots()[0], cluster: c, dial: c.dial, none: c.none}
		a.children = append(a.children, to)
		a.most = max(a.most, to.candidates(0))
	}
	if before := r.n.table.Load().aggregates[cfg.Name]; before != nil &&
		slices.Equal(before.members, a.members) && before.cfg.PanicThreshold == cfg.PanicThreshold {
		a.chain = before.chain
	} else {
		a.chain = lbcore.NewChain(cfg.PanicThreshold, slots...)
	}
	return a
}

// status describes the cluster.
func (a *aggregate) status() ClusterStatus {
	s := ClusterStatus{
		Name: a.cfg.Name, Origin: string(a.cfg.Origin), Aggregate: a.cfg.Aggregate,
		Source: SourceStatus{State: discovery.State{}.Phase().String()},
	}
	known := make(map[string]bool)
	for _, c := range a.members {
		known[c.cfg.Name] = true
		if c.latest.State().Known {
			s.Source.State = discovery.PhaseFresh.String()
		}
	}
	for _, name := range a.cfg.Aggregate {
		if !known[name] {
			s.Source.Err = fmt.Sprintf("cluster %q is not known", name)
			break
		}
	}
	s.AggregateLoads = a.loads(a.chain.Loads())
	return s
}

// loads says of which clusters loads are.
func (a *aggregate) loads(loads []lbcore.ChainLoad) (all []AggregateLoad) {
	for _, l := range loads {
		all = append(all, AggregateLoad{a.members[l.Slot].cfg.Name, l.TierLoad})
	}
	return all
}
