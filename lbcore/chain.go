package lbcore

import (
	"cmp"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
)

// Chain spreads load over the priorities of several slots, of different Groups:
// those of the first slot, then those of the second, and so on, as if they were the
// priorities of one cluster. Each slot picks by its own policy in the priority that
// the load leads to. Make one with NewChain. Its methods may be called from
// anywhere. Source: Envoy's aggregate clusters.
type Chain struct {
	slots []*Slot
	panic uint64
	keyed bool // a slot has use for keys

	mu    sync.Mutex // one UpdateLoads at a time; held while it computes
	table atomic.Pointer[chainTable]
}

// chainTable is how the load is spread. It is never written after it was made.
type chainTable struct {
	lots  [100]chainLot
	loads []ChainLoad
}

type chainLot struct {
	slot uint16
	lot
}

// ChainLoad is a TierLoad of one of a Chain's slots.
type ChainLoad struct {
	Slot int // in the order of NewChain
	TierLoad
}

// NewChain returns the Chain of slots, at most 65536, which share a Gate. It has no
// one to pick before the first UpdateLoads. PanicThreshold is as in [Spread]: where
// no slot has anybody else, it shares the load among all, by their sizes.
func NewChain(panicThreshold uint32, slots ...*Slot) *Chain {
	c := &Chain{slots: slots, panic: uint64(panicThreshold)}
	for _, s := range slots {
		c.keyed = c.keyed || s.keyed
	}
	return c
}

// UpdateLoads recomputes how the load is spread. Call it after each UpdateLoads of
// a Group that has one of the slots.
func (c *Chain) UpdateLoads() {
	c.mu.Lock()
	defer c.mu.Unlock()
	var health []PriorityHealth
	var factors []uint64
	t := new(chainTable)
	var lots []chainLot // of each tier
	for i, s := range c.slots {
		pub := s.pub.Load()
		if pub == nil {
			continue
		}
		policy := s.group.cfg.View.Snapshot().Set.Policy()
		for k := range pub.tiers {
			tier := &pub.tiers[k]
			sum, _ := tier.health(s.group.cfg.Spread.IgnoreNew, policy.WeightedHealth)
			health = append(health, sum)
			factors = append(factors, overprovisioning(policy))
			lots = append(lots, chainLot{uint16(i), lot{tier: uint16(k)}})
			t.loads = append(t.loads, ChainLoad{i, TierLoad{Priority: tier.priority, Distance: tier.distance, Endpoints: tier.size}})
		}
	}
	if len(health) == 0 {
		c.table.Store(nil)
		return
	}
	loads := priorityLoads(health, factors, c.panic)
	n := uint32(0)
	fill := func(tier int, load uint32, class class) {
		for end := n + load; n < end; n++ {
			t.lots[n] = lots[tier]
			t.lots[n].class = class
		}
	}
	for i, load := range loads.Healthy {
		fill(i, load, classHealthy)
	}
	for i, load := range loads.Degraded {
		fill(i, load, classDegraded)
	}
	for i := range t.loads {
		l := &t.loads[i]
		l.Healthy, l.Degraded, l.Panic = loads.Healthy[i], loads.Degraded[i], loads.Panic[i]
	}
	c.table.Store(t)
}

func overprovisioning(p SetPolicy) uint64 {
	return uint64(cmp.Or(p.Overprovisioning, DefaultOverprovisioning))
}

// Loads returns how the load is spread, as of the last UpdateLoads. It is not to
// be written.
func (c *Chain) Loads() []ChainLoad {
	if t := c.table.Load(); t != nil {
		return t.loads
	}
	return nil
}

// Pick is [Slot.Pick] of the slot that the load leads to, whose index it returns.
// Where that has no candidate, the others are asked in their order. It takes no
// lock and allocates nothing.
func (c *Chain) Pick(r *Reader, k Key, want int) (p Picks, slot int) {
	t := c.table.Load()
	if t == nil {
		return p, 0
	}
	hash := k.Hash
	if !k.Set || !c.keyed {
		hash = r.random()
	}
	l := &t.lots[hash%uint64(len(t.lots))]
	first := int(l.slot)
	if p = c.slots[first].pickAt(r, k, want, l.lot); p.n > 0 {
		return p, first
	}
	for i, s := range c.slots {
		if i == first {
			continue
		}
		if other := s.Pick(r, k, want); other.n > 0 {
			return other, i
		}
	}
	return p, first
}

// pickAt is Pick where the tier is decided already, unless it has gone.
func (s *Slot) pickAt(r *Reader, k Key, want int, at lot) (p Picks) {
	if r.epoch.Load() == 0 {
		panic("lbcore: Pick with a Reader that is not pinned")
	}
	pub := s.pub.Load()
	if pub == nil || pub.size == 0 {
		return p
	}
	p.generation = pub.generation
	if !s.keyed {
		k = Key{}
	}
	if !k.Set {
		k.Hash = r.random()
	}
	table := pub.loads.Load()
	s.search(pub, table, at.in(pub, table), k, want, walk{}, &p)
	runtime.KeepAlive(pub)
	return p
}

// in returns where a lot of a Chain leads in what a slot serves, which may have
// changed since.
func (at lot) in(pub *published, table *loadTable) lot {
	if int(at.tier) >= len(pub.tiers) {
		at = lot{class: at.class}
	}
	if table != nil && table.tiers[at.tier].panic {
		at.class = classAnyone
	}
	return at
}

// ChainExplanation says how a Chain selects for a key; see [Chain.Explain].
type ChainExplanation struct {
	// Key is what leads to a slot: without one that counts its Hash is drawn, and the
	// next selection may go another way. Keyed says that a slot has use for keys.
	Key   Key
	Keyed bool
	// Loads is how the load is spread, which each slot's own has no say in.
	Loads []ChainLoad
	// Asked are the slots that are asked, in this order: the one that the load leads
	// to, and while none has had a candidate the others.
	Asked []SlotExplanation
}

// SlotExplanation is an Explanation of one of a Chain's slots.
type SlotExplanation struct {
	Slot int // in the order of NewChain
	Explanation
}

// Explain returns how Pick would select for k at this moment, as [Slot.Explain] does
// for a Slot.
func (c *Chain) Explain(r *Reader, k Key, want int) (x ChainExplanation) {
	x.Keyed = c.keyed
	if !c.keyed {
		k = Key{}
	}
	x.Key = k
	if !k.Set {
		x.Key.Hash = r.random()
	}
	t := c.table.Load()
	if t == nil {
		return x
	}
	x.Loads = t.loads
	l := &t.lots[x.Key.Hash%uint64(len(t.lots))]
	ask := func(i int, e Explanation) (found bool) {
		x.Asked = append(x.Asked, SlotExplanation{i, e})
		return slices.ContainsFunc(e.Steps, func(s Step) bool { return s.Order > 0 })
	}
	first := int(l.slot)
	if ask(first, c.slots[first].explain(r, k, want, &l.lot)) {
		return x
	}
	for i, s := range c.slots {
		if i != first && ask(i, s.Explain(r, k, want)) {
			break
		}
	}
	return x
}
