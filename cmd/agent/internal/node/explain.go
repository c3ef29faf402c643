package node

import (
	"fmt"
	"slices"
	"strings"

	"gatehouse.internal/lbcore"
)

// Explanation says how a connection to a cluster with a key gets its endpoint.
type Explanation struct {
	Cluster, Selector, Policy string
	// Newest is the generation of what discovery lists: with one that is above the
	// Generation of the selector, a newer one is being built.
	Newest uint64
	lbcore.Explanation
	// Endpoints are those of Steps.
	Endpoints []ExplainedEndpoint
	// Others are endpoints that the selection did not come to, and Weightless those
	// that are not in the selector: their weight is 0, or that of their locality.
	Others, Weightless int
}

// ExplainedEndpoint is the endpoint of a Step. State and Why are as in EndpointStatus,
// of a moment later.
type ExplainedEndpoint struct {
	Addr     lbcore.Addr
	Locality lbcore.Locality
	State    State
	Why      string
	// SlowStart and AdaptiveWeight are as in EndpointStatus, Active the connections
	// of the cluster that it has, dials included.
	SlowStart, AdaptiveWeight float64
	Active                    int64
}

// Explain says how a connection to a cluster would get its endpoint from what serves
// at this moment, by the selector of a name, or the first for "". It changes nothing
// and holds up nobody. It may be called from anywhere. An error that wraps ErrUnknown
// says that there is no such cluster or selector.
func (n *Node) Explain(name, selector string, k lbcore.Key) (x Explanation, err error) {
	c, err := n.one(name)
	if err != nil {
		return x, err
	}
	slot := c.group.Slot(selector)
	if slot == nil {
		var names []string
		for _, s := range c.cfg.Selectors {
			names = append(names, s.Name)
		}
		return x, fmt.Errorf("cluster %q has no selector %q, but %q: %w", name, selector, names, ErrUnknown)
	}
	x = Explanation{Cluster: name, Selector: slot.Name(), Policy: slot.Policy(), Newest: c.view.Snapshot().Generation}
	to := target{dial: c.dial}
	r := n.cfg.Gate.Pin()
	x.Explanation = slot.Explain(r, k, to.candidates(0))
	r.Unpin()

	sh, snap := c.shown.Load(), c.view.Snapshot()
	known := make(map[*lbcore.Member]*tracked, len(x.Steps))
	for _, s := range x.Steps {
		known[s.Member] = nil
	}
	for _, ep := range sh.endpoints {
		if _, ok := known[ep.Member]; ok {
			known[ep.Member] = ep
		}
	}
	for _, s := range x.Steps {
		ep := known[s.Member]
		if ep == nil { // not seen by the owner yet, or not any more
			ep = &tracked{Member: s.Member}
		}
		i := snap.Set.Find(ep.Addr())
		st := ep.status(sh.refs[ep.Addr()], i >= 0 && snap.Absent(i))
		x.Endpoints = append(x.Endpoints, ExplainedEndpoint{
			Addr: st.Addr, Locality: st.Locality, State: st.State, Why: st.Why,
			SlowStart: st.SlowStart, AdaptiveWeight: st.AdaptiveWeight, Active: st.Totals.Active,
		})
	}
	x.Others = max(x.Explanation.Endpoints-len(x.Steps), 0)
	if snap.Generation == x.Generation {
		x.Weightless = snap.Set.Len() - x.Explanation.Endpoints
	}
	return x, nil
}

// one returns the cluster of a name that has selectors.
func (n *Node) one(name string) (*cluster, error) {
	t := n.table.Load()
	c, a := t.clusters[name], t.aggregates[name]
	switch why, no := t.unsupported[name]; {
	case c != nil:
		return c, nil
	case a != nil:
		return nil, fmt.Errorf("cluster %q has no selectors of its own: ask for one of those that it consists of, %q: %w", name, a.cfg.Aggregate, ErrUnknown)
	case no:
		return nil, fmt.Errorf("cluster %q is not run: %s: %w", name, why, ErrUnknown)
	}
	names := make([]string, 0, len(t.clusters))
	for name := range t.clusters {
		names = append(names, fmt.Sprintf("%q", name))
	}
	return nil, fmt.Errorf("no cluster %q: there are %s: %w", name, few(names), ErrUnknown)
}

// few lists some of many names.
func few(names []string) string {
	const most = 10
	slices.Sort(names)
	if len(names) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
	}
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}
