package node

import (
	"context"
	"fmt"
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
}

// Model returns the model of a cluster that runs. It may be called from anywhere; its
// error is as Explain's.
func (n *Node) Model(name string) (m Model, err error) {
	c, err := n.one(name)
	if err != nil {
		return m, err
	}
	snap := c.view.Snapshot()
	m = Model{
		Cluster: name, Selectors: c.cfg.Selectors, Spread: spread(&c.cfg, n.cfg.Locality), Policy: snap.Set.Policy(),
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
	return m, nil
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
	Remove   []lbcore.Addr
	// Add are endpoints with Addr and Weight; the rest is as of the first endpoint.
	Add  []lbcore.Endpoint
	Keys int // how many are selected for, 1 to MaxSimulated
}

// Simulation is how a selector spreads keys before and after a change.
type Simulation struct {
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
	Shares []Share // by address
}

// Share is how many keys an endpoint gets.
type Share struct {
	Addr           lbcore.Addr
	Before, After  int
	Added, Removed bool
	Ready          bool
}

// Simulate builds a selector of m before and after a change, as a cluster does, and
// selects for many keys: texts of IPv4 addresses, the same each time. Bounds on the
// load of endpoints and slow start have no effect. The error is a mistake in the
// change, or ctx's.
func Simulate(ctx context.Context, m Model, ch Change) (s Simulation, err error) {
	i := slices.IndexFunc(m.Selectors, func(s config.Selector) bool { return ch.Selector == "" || s.Name == ch.Selector })
	if i < 0 {
		return s, fmt.Errorf("cluster %q has no selector %q: %w", m.Cluster, ch.Selector, ErrUnknown)
	}
	if ch.Keys < 1 || ch.Keys > MaxSimulated {
		return s, fmt.Errorf("%d keys: want 1 to %d", ch.Keys, MaxSimulated)
	}
	after, err := apply(m, ch)
	if err != nil {
		return s, err
	}
	sc := m.Selectors[i]
	s = Simulation{Cluster: m.Cluster, Selector: sc.Name, Policy: sc.Policy, Keys: ch.Keys}
	was, keyed, err := simulate(ctx, m, sc, ch.Keys)
	if err != nil {
		return s, err
	}
	is, _, err := simulate(ctx, after, sc, ch.Keys)
	if err != nil {
		return s, err
	}
	s.Keyed = keyed
	shares := make(map[lbcore.Addr]*Share)
	share := func(a lbcore.Addr) *Share {
		if shares[a] == nil {
			shares[a] = &Share{Addr: a, Added: true, Removed: true}
		}
		return shares[a]
	}
	for _, e := range m.Endpoints {
		share(e.Addr).Added, share(e.Addr).Ready = false, e.Status.Routable()
	}
	for _, e := range after.Endpoints {
		share(e.Addr).Removed, share(e.Addr).Ready = false, e.Status.Routable()
	}
	none := lbcore.Addr{}
	for k := range was {
		if keyed && was[k] != is[k] {
			s.Moved++
			if was[k] != none && share(was[k]).Removed {
				s.Freed++
			}
		}
		for n, a := range []lbcore.Addr{was[k], is[k]} {
			switch {
			case a == none:
				s.None[n]++
			case n == 0:
				share(a).Before++
			default:
				share(a).After++
			}
		}
	}
	for _, x := range shares {
		s.Shares = append(s.Shares, *x)
	}
	slices.SortFunc(s.Shares, func(a, b Share) int { return a.Addr.Compare(b.Addr) })
	return s, nil
}

// apply returns m after the change.
func apply(m Model, ch Change) (Model, error) {
	find := func(a lbcore.Addr) int {
		return slices.IndexFunc(m.Endpoints, func(e lbcore.Endpoint) bool { return e.Addr == a })
	}
	like := lbcore.Endpoint{}
	if len(m.Endpoints) > 0 {
		first := m.Endpoints[0]
		like = lbcore.Endpoint{Priority: first.Priority, Locality: first.Locality, LocalityWeight: first.LocalityWeight}
	}
	m.Endpoints = slices.Clone(m.Endpoints)
	for _, a := range ch.Remove {
		i := find(a)
		if i < 0 {
			return m, fmt.Errorf("cluster %q has no endpoint %v to remove: %w", m.Cluster, a, ErrUnknown)
		}
		m.Endpoints = slices.Delete(m.Endpoints, i, i+1)
	}
	for _, e := range ch.Add {
		if find(e.Addr) >= 0 {
			return m, fmt.Errorf("cluster %q has the endpoint %v already", m.Cluster, e.Addr)
		}
		added := like
		added.Addr, added.Weight = e.Addr, e.Weight
		m.Endpoints = append(m.Endpoints, added)
	}
	return m, nil
}

// simulate returns who gets each key.
func simulate(ctx context.Context, m Model, sc config.Selector, keys int) (who []lbcore.Addr, keyed bool, err error) {
	set, _, err := lbcore.NewSet(m.Endpoints)
	if err != nil {
		return nil, false, fmt.Errorf("cluster %q: %w", m.Cluster, err)
	}
	sc.HashBalanceFactor = 0
	built, err := slot(sc)
	if err != nil {
		return nil, false, err
	}
	k, ok := built.Builder.(lbcore.Keyed)
	keyed = ok && k.Keyed()
	gate := lbcore.NewGate(lbcore.GateConfig{})
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
	defer func() {
		cancel()
		<-ended
		group.Close()
		view.Close()
	}()
	snap, topology := view.Update(set.WithPolicy(m.Policy))
	for i := range snap.Set.Len() {
		member := snap.Member(i)
		member.AdaptiveWeight().Store(uint64(m.AdaptiveWeights[member.Addr()] * adaptive.One))
	}
	if topology {
		group.Rebuild(snap)
		if err := awaitBuilt(ctx, group, snap.Generation, failed); err != nil {
			return nil, false, fmt.Errorf("selector %q: %w", sc.Name, err)
		}
	}
	group.UpdateLoads()

	who = make([]lbcore.Addr, keys)
	r := gate.NewReader("simulation")
	defer r.Close()
	var text []byte
	for i := range who {
		if i%4096 == 0 && ctx.Err() != nil {
			return nil, false, ctx.Err()
		}
		text = fmt.Appendf(text[:0], "10.%d.%d.%d", byte(i>>16), byte(i>>8), byte(i))
		r.Pin()
		p := group.Slots()[0].Pick(r, lbcore.BytesKey(text), 1)
		r.Unpin()
		if member := p.Next(); member != nil {
			who[i] = member.Addr()
			if !keyed {
				member.StartDial()
				member.Connected()
			}
		}
	}
	return who, keyed, nil
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
