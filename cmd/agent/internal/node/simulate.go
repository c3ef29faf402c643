package node

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

	"gatehouse.internal/cmd/agent/internal/config"
	"gatehouse.internal/discovery"
	"gatehouse.internal/lbcore"
	"gatehouse.internal/lbcore/adaptive"
)

// Model is what the selectors of a cluster choose by, to simulate them elsewhere.
type Model struct {
	Cluster   string
	Selectors []config.Selector
	Spread    lbcore.Spread
	Policy    lbcore.SetPolicy
	// Endpoints say by their Status, UNHEALTHY or DEGRADED, who is not ready or not
	// preferred. AdaptiveWeights are what adaptive selectors have learnt of them, by
	// address.
	Endpoints       []lbcore.Endpoint
	AdaptiveWeights map[lbcore.Addr]float64

	// Aggregate are the clusters that this one consists of, each with the selector by
	// which it chooses then; of the above it has Cluster and Spread.PanicThreshold. Nil
	// for others.
	Aggregate []Model
}

// Model returns the model of a cluster that runs. It may be called from anywhere; its
// error is as Explain's.
func (n *Node) Model(name string) (m Model, err error) {
	c, a, err := n.one(name)
	if err != nil {
		return m, err
	}
	if a == nil {
		return c.model(n.cfg.Locality), nil
	}
	m = Model{Cluster: name, Spread: lbcore.Spread{PanicThreshold: a.cfg.PanicThreshold}, Aggregate: []Model{}}
	for _, c := range a.members {
		part := c.model(n.cfg.Locality)
		part.Selectors = part.Selectors[:1]
		m.Aggregate = append(m.Aggregate, part)
	}
	return m, nil
}

func (c *cluster) model(local lbcore.Locality) Model {
	snap := c.view.Snapshot()
	m := Model{
		Cluster: c.cfg.Name, Selectors: c.cfg.Selectors, Spread: spread(&c.cfg, local), Policy: snap.Set.Policy(),
		AdaptiveWeights: make(map[lbcore.Addr]float64),
	}
	for i, e := range snap.Set.All() {
		member := snap.Member(i)
		switch {
		case !member.Ready():
			e.Status = lbcore.StatusUnhealthy
		case member.Degraded():
			e.Status = lbcore.StatusDegraded
		default:
			e.Status = lbcore.StatusUnknown
		}
		e.Enabled, e.Check = lbcore.OverrideNone, lbcore.Check{}
		m.Endpoints = append(m.Endpoints, e)
		if w := adaptive.Weight(member); w > 0 {
			m.AdaptiveWeights[e.Addr] = w
		}
	}
	return m
}

// ModelOf returns the model of a cluster of the configuration on a node that is at
// local, whose endpoints are listed there or in a file; who they are otherwise only an
// agent that runs knows. All count as ready that are not said to be otherwise.
func ModelOf(ctx context.Context, cfg config.Cluster, local lbcore.Locality) (m Model, err error) {
	for i, d := range cfg.Discovery {
		switch d.Kind {
		case config.DiscoveryStatic, config.DiscoveryFile:
		default:
			return m, fmt.Errorf("the endpoints of cluster %q come from %s, which only an agent that runs knows: ask one, without a configuration", cfg.Name, d.Kind)
		}
		if d.Kind == config.DiscoveryStatic && cfg.Mode != config.ModePriority { // it knows, so the others don't count
			cfg.Discovery = cfg.Discovery[:i+1]
			break
		}
	}
	s, err := New(Config{}).sources(cfg, false, new(discovery.Duplicates))
	if err != nil {
		return m, err
	}
	ctx, cancel := context.WithCancel(ctx)
	latest, ended := discovery.NewLatest(), make(chan error, 1)
	go func() { ended <- s.source.Watch(ctx, latest) }()
	defer func() {
		cancel()
		<-ended
	}()
	for st := latest.State(); !st.Known; st = latest.State() {
		if st.Err != nil {
			return m, fmt.Errorf("cluster %q: %w", cfg.Name, st.Err)
		}
		select {
		case <-latest.Changed():
		case <-ctx.Done():
			return m, ctx.Err()
		}
	}
	set := latest.State().Set
	m = Model{Cluster: cfg.Name, Selectors: cfg.Selectors, Spread: spread(&cfg, local), Policy: set.Policy()}
	for _, e := range set.All() {
		m.Endpoints = append(m.Endpoints, e)
	}
	return m, nil
}

// MaxSimulated bounds Change.Keys.
const MaxSimulated = 10_000_000

// Change is what Simulate changes.
type Change struct {
	Selector string // "" is the first
	// Remove are endpoints; of a cluster that consists of others, of each that has them.
	Remove []lbcore.Addr
	// Add are endpoints with Addr and Weight; the rest is as of the first endpoint. A
	// cluster that consists of others has them in the first of these.
	Add  []lbcore.Endpoint
	Keys int // how many are selected for, 1 to MaxSimulated
}

// Simulation is how a selector spreads keys before and after a change.
type Simulation struct {
	// Policy is empty for a cluster that consists of others.
	Cluster, Selector, Policy string
	// Keyed says that a key has its own endpoint. Without, keys are connections, one
	// after the other, none of which ends; then Moved and Freed are 0.
	Keyed bool
	Keys  int
	// Moved counts the keys that have another endpoint afterwards, and Freed those of
	// them whose endpoint is removed, which have to move.
	Moved, Freed int
	// None counts the keys without an endpoint before and after.
	None   [2]int
	Shares []Share // by cluster, in the order of an aggregate one, and address
}

// Share is how many keys an endpoint gets.
type Share struct {
	Cluster        string // whose endpoint it is
	Addr           lbcore.Addr
	Before, After  int
	Added, Removed bool
	Ready          bool
}

// place is an endpoint of one of the clusters of a simulation. The zero place is none.
type place struct {
	part int
	addr lbcore.Addr
}

// Simulate builds a selector of m before and after a change, as a cluster does, and
// selects for many keys: texts of IPv4 addresses, the same each time. Of a cluster that
// consists of others it builds theirs, and spreads the load over the priorities of all.
// Bounds on the load of endpoints and slow start have no effect. The error is a mistake
// in the change, or ctx's.
func Simulate(ctx context.Context, m Model, ch Change) (s Simulation, err error) {
	parts, err := m.parts(ch.Selector)
	if err != nil {
		return s, err
	}
	if ch.Keys < 1 || ch.Keys > MaxSimulated {
		return s, fmt.Errorf("%d keys: want 1 to %d", ch.Keys, MaxSimulated)
	}
	after, err := apply(m.Cluster, parts, ch)
	if err != nil {
		return s, err
	}
	s = Simulation{Cluster: m.Cluster, Selector: config.DefaultSelector, Keys: ch.Keys}
	if m.Aggregate == nil {
		s.Selector, s.Policy = parts[0].Selectors[0].Name, parts[0].Selectors[0].Policy
	}
	was, keyed, err := simulate(ctx, m, parts, ch.Keys)
	if err != nil {
		return s, err
	}
	is, _, err := simulate(ctx, m, after, ch.Keys)
	if err != nil {
		return s, err
	}
	s.Keyed = keyed
	shares := make(map[place]*Share)
	share := func(p place) *Share {
		if shares[p] == nil {
			shares[p] = &Share{Cluster: parts[p.part].Cluster, Addr: p.addr, Added: true, Removed: true}
		}
		return shares[p]
	}
	for i := range parts {
		for _, e := range parts[i].Endpoints {
			x := share(place{i, e.Addr})
			x.Added, x.Ready = false, e.Status.Routable()
		}
		for _, e := range after[i].Endpoints {
			x := share(place{i, e.Addr})
			x.Removed, x.Ready = false, e.Status.Routable()
		}
	}
	none := place{}
	for k := range was {
		if keyed && was[k] != is[k] {
			s.Moved++
			if was[k] != none && share(was[k]).Removed {
				s.Freed++
			}
		}
		for n, p := range []place{was[k], is[k]} {
			switch {
			case p == none:
				s.None[n]++
			case n == 0:
				share(p).Before++
			default:
				share(p).After++
			}
		}
	}
	places := slices.SortedFunc(maps.Keys(shares), func(a, b place) int { return cmp.Or(a.part-b.part, a.addr.Compare(b.addr)) })
	for _, p := range places {
		s.Shares = append(s.Shares, *shares[p])
	}
	return s, nil
}

// parts returns the clusters that m consists of, or m alone, with one selector each.
func (m Model) parts(selector string) ([]Model, error) {
	if m.Aggregate != nil {
		if selector != "" && selector != config.DefaultSelector {
			return nil, fmt.Errorf("cluster %q has no selector %q: it consists of others, which choose by the first of theirs each: %w", m.Cluster, selector, ErrUnknown)
		}
		return m.Aggregate, nil
	}
	i := slices.IndexFunc(m.Selectors, func(s config.Selector) bool { return selector == "" || s.Name == selector })
	if i < 0 {
		return nil, fmt.Errorf("cluster %q has no selector %q: %w", m.Cluster, selector, ErrUnknown)
	}
	m.Selectors = m.Selectors[i : i+1]
	return []Model{m}, nil
}

// apply returns the parts of a cluster after the change.
func apply(cluster string, parts []Model, ch Change) ([]Model, error) {
	find := func(m Model, a lbcore.Addr) int {
		return slices.IndexFunc(m.Endpoints, func(e lbcore.Endpoint) bool { return e.Addr == a })
	}
	like := lbcore.Endpoint{}
	if len(parts) > 0 && len(parts[0].Endpoints) > 0 {
		first := parts[0].Endpoints[0]
		like = lbcore.Endpoint{Priority: first.Priority, Locality: first.Locality, LocalityWeight: first.LocalityWeight}
	}
	parts = slices.Clone(parts)
	for i := range parts {
		parts[i].Endpoints = slices.Clone(parts[i].Endpoints)
	}
	for _, a := range ch.Remove {
		found := false
		for i, m := range parts {
			if at := find(m, a); at >= 0 {
				parts[i].Endpoints, found = slices.Delete(m.Endpoints, at, at+1), true
			}
		}
		if !found {
			return nil, fmt.Errorf("cluster %q has no endpoint %v to remove: %w", cluster, a, ErrUnknown)
		}
	}
	for _, e := range ch.Add {
		if len(parts) == 0 {
			return nil, fmt.Errorf("cluster %q consists of clusters that are not there, so that nothing can be added: %w", cluster, ErrUnknown)
		}
		if find(parts[0], e.Addr) >= 0 {
			return nil, fmt.Errorf("cluster %q has the endpoint %v already", parts[0].Cluster, e.Addr)
		}
		added := like
		added.Addr, added.Weight = e.Addr, e.Weight
		parts[0].Endpoints = append(parts[0].Endpoints, added)
	}
	return parts, nil
}

// simulate returns who gets each key. Keyed says that each key has an endpoint of its
// own.
func simulate(ctx context.Context, m Model, parts []Model, keys int) (who []place, keyed bool, err error) {
	gate := lbcore.NewGate(lbcore.GateConfig{})
	keyed = len(parts) > 0
	var slots []*lbcore.Slot
	for _, part := range parts {
		g, err := build(ctx, part, gate)
		if err != nil {
			return nil, false, err
		}
		defer g.stop()
		slots = append(slots, g.Slots()[0])
		keyed = keyed && g.Slots()[0].Keyed()
	}
	pick := func(r *lbcore.Reader, k lbcore.Key) (lbcore.Picks, int) { return slots[0].Pick(r, k, 1), 0 }
	if m.Aggregate != nil {
		chain := lbcore.NewChain(m.Spread.PanicThreshold, slots...)
		chain.UpdateLoads()
		pick = func(r *lbcore.Reader, k lbcore.Key) (lbcore.Picks, int) { return chain.Pick(r, k, 1) }
	}

	who = make([]place, keys)
	r := gate.NewReader("simulation")
	defer r.Close()
	var text []byte
	for i := range who {
		if i%4096 == 0 && ctx.Err() != nil {
			return nil, false, ctx.Err()
		}
		text = fmt.Appendf(text[:0], "10.%d.%d.%d", byte(i>>16), byte(i>>8), byte(i))
		r.Pin()
		p, part := pick(r, lbcore.BytesKey(text))
		r.Unpin()
		if member := p.Next(); member != nil {
			who[i] = place{part, member.Addr()}
			if !slots[part].Keyed() {
				member.StartDial()
				member.Connected()
			}
		}
	}
	return who, keyed, nil
}

// simulated is the selector of a model, built.
type simulated struct {
	*lbcore.Group
	stop func() // when nobody picks any more
}

// build builds the first selector of m.
func build(ctx context.Context, m Model, gate *lbcore.Gate) (g simulated, err error) {
	set, _, err := lbcore.NewSet(m.Endpoints)
	if err != nil {
		return g, fmt.Errorf("cluster %q: %w", m.Cluster, err)
	}
	sc := m.Selectors[0]
	sc.HashBalanceFactor = 0
	built, err := slot(sc)
	if err != nil {
		return g, err
	}
	view := lbcore.NewView(m.Cluster, new(lbcore.Hosts), lbcore.ViewConfig{})
	failed := make(chan error, 1)
	group := lbcore.NewGroup(lbcore.GroupConfig{View: view, Gate: gate, Slots: []lbcore.SlotConfig{built}, Spread: m.Spread,
		OnError: func(_ string, _ uint64, err error) {
			select {
			case failed <- err:
			default:
			}
		}})
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		group.Run(ctx)
	}()
	g = simulated{group, func() {
		cancel()
		<-ended
		group.Close()
		view.Close()
	}}
	snap, topology := view.Update(set.WithPolicy(m.Policy))
	for i := range snap.Set.Len() {
		member := snap.Member(i)
		member.AdaptiveWeight().Store(uint64(m.AdaptiveWeights[member.Addr()] * adaptive.One))
	}
	if topology {
		group.Rebuild(snap)
		if err := awaitBuilt(ctx, group, snap.Generation, failed); err != nil {
			g.stop()
			return g, fmt.Errorf("selector %q: %w", sc.Name, err)
		}
	}
	group.UpdateLoads()
	return g, nil
}

// awaitBuilt returns when every slot serves a generation, or why it can't be built.
func awaitBuilt(ctx context.Context, g *lbcore.Group, generation uint64, failed <-chan error) error {
	built := make(chan error, 1)
	ctx, cancel := context.WithCancel(ctx)
	go func() { built <- g.WaitGeneration(ctx, generation) }()
	select {
	case err := <-built:
		cancel()
		return err
	case err := <-failed:
		cancel()
		<-built
		return err
	}
}
