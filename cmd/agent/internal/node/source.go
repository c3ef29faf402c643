package node

import (
	"context"
	"fmt"
	"slices"
	"time"

	"gatehouse.internal/cmd/agent/internal/config"
	"gatehouse.internal/discovery"
	"gatehouse.internal/internal/lastgood"
	"gatehouse.internal/lbcore"
)

// block is a discovery block of a cluster. It is the Source in it, and remembers
// what that says.
type block struct {
	discovery.Source
	kind   string
	name   string            // of the EDS resource
	latest *discovery.Latest // anybody
}

// Watch implements discovery.Source.
func (b *block) Watch(ctx context.Context, sink discovery.Sink) error {
	err := b.Source.Watch(ctx, tee{b.latest, sink})
	if err != nil && ctx.Err() == nil {
		b.latest.Fail(err)
	}
	return err
}

// Refresh asks the source to look anew, if it can.
func (b *block) Refresh() {
	if r, ok := b.Source.(discovery.Refresher); ok {
		r.Refresh()
	}
}

func (b *block) status() BlockStatus {
	st := b.latest.State()
	s := BlockStatus{Kind: b.kind, Resource: b.name, State: st.Phase().String(), Since: st.Since, Endpoints: st.Set.Len(), Updates: st.Updates}
	s.Restored = restored(st)
	if st.Err != nil {
		s.Err = st.Err.Error()
	}
	return s
}

// lasting is a Source whose sets are kept on disk.
type lasting struct {
	discovery.Source
	state *lastgood.Store // nil keeps nothing
	key   lastgood.Key
	first bool // no cluster is replaced: what an earlier run knew counts
}

// Watch implements discovery.Source.
func (l lasting) Watch(ctx context.Context, sink discovery.Sink) error {
	item := l.state.Item(l.key)
	defer item.Release()
	return discovery.Keep(ctx, l.Source, item, l.first, sink)
}

// Refresh implements discovery.Refresher.
func (l lasting) Refresh() {
	if r, ok := l.Source.(discovery.Refresher); ok {
		r.Refresh()
	}
}

// tee is two sinks.
type tee struct{ a, b discovery.Sink }

func (t tee) Replace(set lbcore.Set) {
	t.a.Replace(set)
	t.b.Replace(set)
}

// ReplaceStale implements discovery.StaleSink.
func (t tee) ReplaceStale(set lbcore.Set, err error) {
	discovery.ReplaceStale(t.a, set, err)
	discovery.ReplaceStale(t.b, set, err)
}

func (t tee) Fail(err error) {
	t.a.Fail(err)
	t.b.Fail(err)
}

// sources are where the endpoints of a cluster come from.
type sources struct {
	source discovery.Source // all of them
	blocks []*block         // in the order of the settings
	listed []*listed        // those that the settings list
}

// sources returns the discovery sources of a cluster. First says that it replaces
// none, which would serve on until they have answered.
func (n *Node) sources(c config.Cluster, first bool, dups *discovery.Duplicates) (s sources, err error) {
	var all []discovery.Source
	log := n.log.With("cluster", c.Name)
	keep := func(d *config.Discovery, src discovery.Source) discovery.Source {
		if n.cfg.State == nil {
			return src
		}
		return lasting{src, n.cfg.State, sourceKey(c.Name, d, n.cfg.Scope(d.Kind)), first}
	}
	for _, d := range c.Discovery {
		var src discovery.Source
		b := &block{kind: d.Kind, latest: discovery.NewLatest()}
		switch d.Kind {
		case config.DiscoveryEDS:
			if n.cfg.EDS == nil {
				return s, fmt.Errorf("cluster %q: discovery by eds needs an xds block", c.Name)
			}
			name := d.ServiceName
			if name == "" {
				name = c.Name
			}
			src, b.name = n.cfg.EDS(name, dups), name // the client keeps it
		case config.DiscoveryConsul, config.DiscoveryDNS:
			give := n.cfg.Consul
			if d.Kind == config.DiscoveryDNS {
				give = n.cfg.DNS
			}
			if give == nil {
				return s, fmt.Errorf("cluster %q: discovery by %s without a client", c.Name, d.Kind)
			}
			one := func(d config.Discovery) (discovery.Source, error) {
				src, err := give(d, log, dups)
				if err != nil {
					return nil, err
				}
				return keep(&d, src), nil
			}
			if len(d.Hosts) > 0 {
				src, err = hosts(one, d)
			} else {
				src, err = one(d)
			}
			if err != nil {
				return s, fmt.Errorf("cluster %q: discovery by %s: %w", c.Name, d.Kind, err)
			}
		case config.DiscoveryFile:
			src = keep(&d, discovery.File{Path: d.Path, Duplicates: dups, Logger: log, Panics: n.cfg.Panics})
		case config.DiscoveryStatic:
			set, dropped, err := lbcore.NewSet(d.Endpoints)
			if err != nil {
				return s, fmt.Errorf("cluster %q: %w", c.Name, err)
			}
			dups.Note(dropped)
			l := newListed(d.Endpoints, set)
			s.listed = append(s.listed, l)
			src = l
		default:
			return s, fmt.Errorf("cluster %q: discovery %q is not known", c.Name, d.Kind)
		}
		b.Source = src
		s.blocks = append(s.blocks, b)
		all = append(all, b)
	}
	switch {
	case len(all) == 1:
		s.source = all[0]
	case c.Mode == config.ModePriority:
		s.source = discovery.Prioritised(all...)
	default:
		s.source = discovery.Ordered(all...)
	}
	s.source = amend(&c, s.source)
	return s, nil
}

// refreshes reports whether any source can be asked to look anew.
func (s *sources) refreshes() bool {
	return slices.ContainsFunc(s.blocks, func(b *block) bool {
		_, ok := b.Source.(discovery.Refresher)
		return ok
	})
}

// retriesTake is how long after a failed dial it is seen whether another endpoint has
// taken the connection.
const retriesTake = time.Second

// lookAnew asks the sources to look anew if all endpoints fail: each is unhealthy or
// ejected, or dials have failed and none has succeeded until retriesTake later.
// Sources bound how often they do. It reports whether that time begins now. The
// owner calls it.
func (c *cluster) lookAnew(now time.Time) (begins bool) {
	if !c.refreshes() {
		return false
	}
	over := !c.failedSince.IsZero() && now.Sub(c.failedSince) >= retriesTake
	switch {
	case over: // what fails from here on is seen later
		c.failedSince = time.Time{}
		c.dialFailed.Store(false)
	case c.failedSince.IsZero() && c.dialFailed.Load():
		c.failedSince, begins = now, true
	}
	snap := c.view.Snapshot()
	down, opened := true, uint64(0)
	for i := range snap.Set.Len() {
		m := snap.Member(i)
		n, _, _, _ := m.Counters()
		opened += n
		down = down && (m.Health() == lbcore.HealthUnhealthy || m.Ejected())
	}
	if snap.Set.Len() > 0 && (down || over && opened <= c.opened) {
		for _, b := range c.blocks {
			b.Refresh()
		}
	}
	if c.failedSince.IsZero() {
		c.opened = opened
	}
	return begins
}
