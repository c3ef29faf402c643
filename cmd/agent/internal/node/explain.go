package node

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"gatehouse.internal/cmd/agent/internal/config"
	"gatehouse.internal/internal/hcltext"
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

	// Aggregate is of a cluster that consists of others, which has none of the above
	// but Cluster, Key and Keyed; nil for others.
	Aggregate *AggregateExplanation
}

// AggregateExplanation says which cluster of an aggregate one takes a connection.
type AggregateExplanation struct {
	// Clusters are those that it consists of.
	Clusters []string
	// Loads is how the load is shared by those of them that are there. The key leads
	// to the priority of the first of Asked.
	Loads []AggregateLoad
	// Asked are the clusters that are asked, in this order: the next one only while
	// those before it have no candidate.
	Asked []Explanation
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
	c, a, err := n.one(name)
	if err != nil {
		return x, err
	}
	if a != nil {
		return a.explain(n.cfg.Gate, selector, k)
	}
	slot := c.group.Slot(selector)
	if slot == nil {
		var names []string
		for _, s := range c.cfg.Selectors {
			names = append(names, s.Name)
		}
		return x, fmt.Errorf("cluster %q has no selector %q, but %q: %w", name, selector, names, ErrUnknown)
	}
	to := target{dial: c.dial}
	r := n.cfg.Gate.Pin()
	e := slot.Explain(r, k, to.candidates(0))
	r.Unpin()
	return c.explanation(slot, e), nil
}

// explain is Explain.
func (a *aggregate) explain(gate *lbcore.Gate, selector string, k lbcore.Key) (x Explanation, err error) {
	if selector != "" && selector != config.DefaultSelector {
		return x, fmt.Errorf("cluster %q has no selector %q: it consists of %q, which choose by the first of theirs each: %w", a.cfg.Name, selector, a.cfg.Aggregate, ErrUnknown)
	}
	r := gate.Pin()
	e := a.chain.Explain(r, k, a.most)
	r.Unpin()
	x = Explanation{Cluster: a.cfg.Name, Aggregate: &AggregateExplanation{Clusters: a.cfg.Aggregate, Loads: a.loads(e.Loads)}}
	x.Key, x.Keyed = e.Key, e.Keyed
	for _, s := range e.Asked {
		to := a.children[s.Slot]
		x.Aggregate.Asked = append(x.Aggregate.Asked, to.cluster.explanation(to.slot, s.Explanation))
	}
	return x, nil
}

// explanation adds to what one of c's slots says what is known of its endpoints.
func (c *cluster) explanation(slot *lbcore.Slot, e lbcore.Explanation) Explanation {
	sh, snap := c.shown.Load(), c.view.Snapshot()
	x := Explanation{Cluster: c.cfg.Name, Selector: slot.Name(), Policy: slot.Policy(), Newest: snap.Generation, Explanation: e}
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
	return x
}

// one returns the cluster of a name, or the one that consists of others.
func (n *Node) one(name string) (*cluster, *aggregate, error) {
	t := n.table.Load()
	c, a := t.clusters[name], t.aggregates[name]
	switch why, no := t.unsupported[name]; {
	case c != nil || a != nil:
		return c, a, nil
	case no:
		return nil, nil, fmt.Errorf("cluster %q is not run: %s: %w", name, why, ErrUnknown)
	}
	names := slices.AppendSeq(slices.Collect(maps.Keys(t.clusters)), maps.Keys(t.aggregates))
	slices.Sort(names)
	if near := hcltext.Nearest(name, names); near != "" {
		return nil, nil, fmt.Errorf("no cluster %q (did you mean %q?): %w", name, near, ErrUnknown)
	}
	return nil, nil, fmt.Errorf("no cluster %q: there are %s: %w", name, few(names), ErrUnknown)
}

// few lists some of many names.
func few(names []string) string {
	const most = 10
	quoted := make([]string, min(len(names), most))
	for i := range quoted {
		quoted[i] = strconv.Quote(names[i])
	}
	text := strings.Join(quoted, ", ")
	if len(names) > most {
		return fmt.Sprintf("%s and %d more", text, len(names)-most)
	}
	return cmp.Or(text, "none")
}
