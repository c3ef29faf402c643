package lbcore

import (
	"context"
	"errors"
	"sync"
	"time"
)

// SlotConfig is one selector of a Group.
type SlotConfig struct {
	Name    string
	Policy  string // the name of the Builder's policy, for dumps
	Builder Builder
	// BalanceFactor bounds an endpoint's connections to that many percent of
	// what its weight makes due to it; those above go to the next candidate along
	// the ring or table, and if every one is above, to the least loaded. It is for
	// keyed Builders and has no effect on others; 0 means no bound, and less than
	// MinBalanceFactor counts as that. Envoy goes on in an order that it shuffles
	// by the hash; here other keys' endpoints stay next to each other.
	// Source: ConsistentHashingLbConfig.hash_balance_factor.
	BalanceFactor uint32
}

// Spread says how the load of a Group's slots is spread over priorities and
// localities. The zero value: by priority, as PriorityLoads does, without
// panic; localities don't weigh, and none is nearer than another.
type Spread struct {
	// PanicThreshold is the percentage of available endpoints below which a
	// priority gives load to all of them, whatever their health; 0 means never.
	// Source: CommonLbConfig.healthy_panic_threshold.
	PanicThreshold uint32
	// LocalityWeighted shares the load of a priority over its localities by
	// Endpoint.LocalityWeight and availability. For the hash policies the weights
	// count and availability doesn't, as in Envoy.
	// Source: CommonLbConfig.locality_weighted_lb_config.
	LocalityWeighted bool
	// PreferLocal splits each priority in three: endpoints in the region and zone
	// of Local, those in its region, and the others; load spills over from one to
	// the next as over priorities. Local must name a region or a zone.
	PreferLocal bool
	Local       Locality
	// IgnoreNew leaves endpoints that have not been probed yet out of the counts
	// that availability is made of.
	// Source: CommonLbConfig.ignore_new_hosts_until_first_hc.
	IgnoreNew bool
}

// GroupConfig configures a Group. View, Gate and Slots are required.
type GroupConfig struct {
	View  *View
	Gate  *Gate
	Slots []SlotConfig
	// Spread says how the load is spread over priorities and localities.
	Spread Spread
	// Wake, if set, gets a value, without blocking, when a slot has published
	// a selector. It should hold one.
	Wake chan struct{}
	// OnError, if set, is told of each build that failed. It is called by the
	// slot's goroutine and must not block.
	OnError func(slot string, generation uint64, err error)
}

// Group keeps N selectors built over one View. A change of membership is
// handed to Rebuild, which never blocks; each slot builds at its own pace, at
// most one build at a time, and always the newest membership.
type Group struct {
	cfg   GroupConfig
	slots []*Slot

	mu      sync.Mutex
	changed chan struct{} // closed and replaced when a slot's generation moves
	ended   chan struct{} // closed when Run returns
}

// NewGroup returns a Group whose slots serve generation 0, the empty set,
// until Run builds what Rebuild asked for. The View's owner calls it.
func NewGroup(cfg GroupConfig) *Group {
	g := &Group{cfg: cfg, changed: make(chan struct{}), ended: make(chan struct{})}
	for _, sc := range cfg.Slots {
		s := &Slot{group: g, cfg: sc, id: cfg.View.Name() + "/" + sc.Name, wake: make(chan struct{}, 1), keyed: isKeyed(sc.Builder)}
		switch {
		case !s.keyed:
			s.cfg.BalanceFactor = 0
		case sc.BalanceFactor > 0:
			s.cfg.BalanceFactor = max(sc.BalanceFactor, MinBalanceFactor)
			cfg.View.countTotal()
		}
		g.slots = append(g.slots, s)
	}
	return g
}

// Slots returns the slots in the order of the configuration.
func (g *Group) Slots() []*Slot { return g.slots }

// Slot returns the slot of that name, the first one for "", or nil.
func (g *Group) Slot(name string) *Slot {
	for _, s := range g.slots {
		if name == "" || s.cfg.Name == name {
			return s
		}
	}
	return nil
}

// Rebuild asks every slot to serve snap. It never blocks, and a request that
// is still waiting is replaced. Calls must come in the order of generations,
// as from a View's owner.
func (g *Group) Rebuild(snap *Snapshot) {
	now := time.Now()
	for _, s := range g.slots {
		s.request(request{snap, now})
	}
}

// Run builds until ctx ends and then returns ctx.Err(), when nothing of it
// runs any more. What is published stays published. It may be called once.
func (g *Group) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	for _, s := range g.slots {
		wg.Go(func() { s.run(ctx) })
	}
	wg.Wait()
	close(g.ended)
	return ctx.Err()
}

// Close takes what is published out of service, so that its storage can be used
// again: picks find nobody from now on. It is called after Run has returned and
// those who pick have been told to do so elsewhere; what is picked stays good.
func (g *Group) Close() {
	for _, s := range g.slots {
		s.withdraw()
	}
}

// ErrEnded is returned for what a Group that has ended will not do any more.
var ErrEnded = errors.New("the group has ended")

// Served returns the oldest generation that a slot serves.
func (g *Group) Served() uint64 {
	served := ^uint64(0)
	for _, s := range g.slots {
		served = min(served, s.generation.Load())
	}
	return served
}

// WaitGeneration returns nil when every slot serves at least generation, or
// ctx.Err(), or ErrEnded if Run returns before.
func (g *Group) WaitGeneration(ctx context.Context, generation uint64) error {
	for {
		g.mu.Lock()
		changed := g.changed
		g.mu.Unlock()
		if g.Served() >= generation {
			return nil
		}
		select {
		case <-changed:
		case <-g.ended:
			if g.Served() >= generation {
				return nil
			}
			return ErrEnded
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (g *Group) published() {
	g.mu.Lock()
	close(g.changed)
	g.changed = make(chan struct{})
	g.mu.Unlock()
	if g.cfg.Wake != nil {
		poke(g.cfg.Wake)
	}
}

// UpdateLoads recomputes how the load is spread over priorities and localities
// from the members' present readiness and the policy of the View's present Set,
// for every published selector. The View's owner calls it when the View was
// updated, when health or enablement has changed and when Wake fires. It takes
// the time of a look at each member, and none where nothing is to be spread.
func (g *Group) UpdateLoads() {
	for _, s := range g.slots {
		if p := s.pub.Load(); p != nil {
			p.updateLoads(g)
		}
	}
}
