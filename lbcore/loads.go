package lbcore

import "math/bits"

// DefaultOverprovisioning is Envoy's overprovisioning factor in percent: a
// priority counts as fully available while 1/1.4 of it is healthy.
// Source: ClusterLoadAssignment.Policy.overprovisioning_factor.
const DefaultOverprovisioning = 140

// PriorityHealth counts the endpoints of one priority (or sums their weights).
type PriorityHealth struct {
	Total, Healthy, Degraded uint64
	// Excluded endpoints count neither as available nor as missing.
	Excluded uint64
}

// Loads is how the load is spread over priorities, in percent: the sum of
// Healthy and Degraded is 100 unless there is nothing at all. All slices are
// parallel to the priorities.
type Loads struct {
	Healthy, Degraded []uint32
	// Panic marks the priorities whose endpoints all take load, whatever
	// their health.
	Panic []bool
}

// PriorityLoads spreads the load over priorities as Envoy does, in whole
// percents: each takes what its availability, raised by the overprovisioning
// factor (percent), allows, and the rest spills to the next. panicThreshold
// (percent, 0: never) is the availability under which a priority panics.
// Source: Envoy's priority levels and panic threshold.
func PriorityLoads(prios []PriorityHealth, overprovisioning, panicThreshold uint64) Loads {
	factors := make([]uint64, len(prios))
	for i := range factors {
		factors[i] = overprovisioning
	}
	return priorityLoads(prios, factors, panicThreshold)
}

// priorityLoads is PriorityLoads where each priority has a factor of its own.
func priorityLoads(prios []PriorityHealth, factors []uint64, panicThreshold uint64) Loads {
	n := len(prios)
	l := Loads{Healthy: make([]uint32, n), Degraded: make([]uint32, n), Panic: make([]bool, n)}
	healthy, degraded := make([]uint64, n), make([]uint64, n)
	var norm, total uint64
	for i, p := range prios {
		total += p.Total
		if c := p.Total - p.Excluded; c > 0 {
			healthy[i] = percent(factors[i], p.Healthy, c)
			degraded[i] = percent(factors[i], p.Degraded, c)
		}
		norm += healthy[i] + degraded[i]
	}
	norm = min(100, norm)

	all := true
	for i, p := range prios {
		var available uint64
		if c := p.Total - p.Excluded; c > 0 {
			available = 100 * (p.Healthy + p.Degraded) / c
		}
		l.Panic[i] = norm < 100 && available < panicThreshold
		all = all && l.Panic[i]
	}
	switch {
	case n == 0:
	case all && total > 0: // total panic: by size, whatever the health
		rest, first := uint32(100), -1
		for i, p := range prios {
			if p.Total > 0 && first < 0 {
				first = i
			}
			l.Healthy[i] = uint32(100 * p.Total / total)
			rest -= l.Healthy[i]
		}
		l.Healthy[first] += rest
	case norm == 0:
		l.Healthy[0] = 100
	default:
		rest := spread(l.Healthy, healthy, norm, 100)
		rest = spread(l.Degraded, degraded, norm, rest)
		for _, to := range []struct {
			load []uint32
			from []uint64
		}{{l.Healthy, healthy}, {l.Degraded, degraded}} {
			for i := range to.from {
				if to.from[i] > 0 { // rounding
					to.load[i] += rest
					return l
				}
			}
		}
	}
	return l
}

// percent returns factor * of / all, 100 at most. Sums of weights are up to
// 2^52, so that the product may be larger than 64 bits.
func percent(factor, of, all uint64) uint64 {
	hi, lo := bits.Mul64(factor, of)
	if hi >= all {
		return 100
	}
	q, _ := bits.Div64(hi, lo, all)
	return min(100, q)
}

// spread gives each priority its share of availability and returns what is
// left of rest.
func spread(load []uint32, availability []uint64, norm uint64, rest uint32) uint32 {
	for i, a := range availability {
		load[i] = min(rest, uint32(100*a/norm))
		rest -= load[i]
	}
	return rest
}

// TierLoad describes how much of a slot's load goes to one tier: the endpoints
// of a priority, or of a priority and a distance where local ones are preferred.
type TierLoad struct {
	Priority uint8
	// Distance is 0 in the zone of Spread.Local, 1 in its region, 2 elsewhere;
	// without Spread.PreferLocal it is 0.
	Distance uint8
	// Endpoints is how many there are that new connections may go to, ready or not.
	Endpoints int
	// Healthy and Degraded are the percentages of the load that go to those
	// endpoints; over all tiers they sum up to 100.
	Healthy, Degraded uint32
	// Panic says that the load goes to all of them, whatever their health.
	Panic bool
}

// loadTable is how the load is spread over the tiers and parts of a published
// selector. It is never written after newLoadTable.
type loadTable struct {
	lots  [100]lot
	tiers []tierShare
}

// lot is where one percent of the load goes.
type lot struct {
	tier  uint16
	class class
}

type tierShare struct {
	healthy, degraded uint32
	panic             bool
	// weights are those of each part and those before it, by class; nil for a
	// class that gets no load, and where there is one part only.
	weights [classAnyone + 1][]float64
}

// updateLoads computes the table from the members' present readiness.
func (pub *published) updateLoads(g *Group) {
	snap := g.cfg.View.Snapshot()
	if pub.size == 0 || pub.only != nil && g.cfg.Spread.PanicThreshold == 0 && g.cfg.View.degraded.Load() == 0 {
		pub.loads.Store(nil)
		return
	}
	pub.loads.Store(newLoadTable(pub.tiers, g.cfg.Spread, snap.Set.Policy()))
}

func newLoadTable(tiers []tier, spread Spread, policy SetPolicy) *loadTable {
	overprovisioning := overprovisioning(policy)
	t := &loadTable{tiers: make([]tierShare, len(tiers))}
	health := make([]PriorityHealth, len(tiers))
	counts := make([][]PriorityHealth, len(tiers)) // of each part, by endpoints
	for i := range tiers {
		health[i], counts[i] = tiers[i].health(spread.IgnoreNew, policy.WeightedHealth)
	}
	loads := PriorityLoads(health, overprovisioning, uint64(spread.PanicThreshold))
	n := uint32(0)
	fill := func(tier int, load uint32, c class) {
		if loads.Panic[tier] {
			c = classAnyone
		}
		for end := n + load; n < end; n++ {
			t.lots[n] = lot{uint16(tier), c}
		}
	}
	for i, load := range loads.Healthy {
		fill(i, load, classHealthy)
	}
	for i, load := range loads.Degraded {
		fill(i, load, classDegraded)
	}
	for i := range tiers {
		s := &t.tiers[i]
		s.healthy, s.degraded, s.panic = loads.Healthy[i], loads.Degraded[i], loads.Panic[i]
		parts := tiers[i].parts
		if len(parts) == 1 {
			continue
		}
		s.weights[classHealthy] = cumulated(len(parts), func(k int) float64 {
			return counts[i][k].effective(parts[k].weight, counts[i][k].Healthy, overprovisioning)
		})
		if s.degraded > 0 {
			s.weights[classDegraded] = cumulated(len(parts), func(k int) float64 {
				return counts[i][k].effective(parts[k].weight, counts[i][k].Degraded, overprovisioning)
			})
		}
		if s.panic { // all endpoints alike, wherever they are
			s.weights[classAnyone] = cumulated(len(parts), func(k int) (sum float64) {
				for _, w := range parts[k].weights {
					sum += float64(w)
				}
				return sum
			})
		}
	}
	return t
}

// health counts the tier's endpoints, or with weighted sums up their weights; of
// each part they are counted.
func (t *tier) health(ignoreNew, weighted bool) (sum PriorityHealth, counts []PriorityHealth) {
	counts = make([]PriorityHealth, len(t.parts))
	for k := range t.parts {
		byCount, byWeight := t.parts[k].health(ignoreNew)
		if counts[k] = byCount; weighted {
			sum.add(byWeight)
		} else {
			sum.add(byCount)
		}
	}
	return sum, counts
}

// health counts the part's endpoints, and sums up their weights. Those that are
// withdrawn, disabled or draining are not there, since a panic doesn't make them
// acceptable either.
func (t *part) health(ignoreNew bool) (byCount, byWeight PriorityHealth) {
	for i, m := range t.members {
		if !m.is(classAnyone) {
			continue
		}
		one := PriorityHealth{Total: 1}
		switch {
		case m.is(classHealthy):
			one.Healthy = 1
		case m.is(classDegraded):
			one.Degraded = 1
		case ignoreNew && m.Health() == HealthUnknown:
			one.Excluded = 1
		}
		byCount.add(one)
		w := uint64(t.weights[i])
		byWeight.add(PriorityHealth{w, w * one.Healthy, w * one.Degraded, w * one.Excluded})
	}
	return byCount, byWeight
}

func (h *PriorityHealth) add(x PriorityHealth) {
	h.Total += x.Total
	h.Healthy += x.Healthy
	h.Degraded += x.Degraded
	h.Excluded += x.Excluded
}

// effective returns the weight of a locality of which available endpoints may
// take load: all of it while 1/overprovisioning of its endpoints are available,
// and in proportion below. Source: Envoy's locality weighted load balancing.
func (h *PriorityHealth) effective(weight uint32, available, overprovisioning uint64) float64 {
	counted := h.Total - h.Excluded
	if counted == 0 {
		return 0
	}
	return float64(weight) * min(1, float64(overprovisioning)/100*(float64(available)/float64(counted)))
}

func cumulated(n int, weight func(int) float64) []float64 {
	sums, sum := make([]float64, n), 0.0
	for i := range sums {
		sum += weight(i)
		sums[i] = sum
	}
	return sums
}

// part returns the part of a tier that a hash leads to. The lot doesn't depend
// on the hash modulo 100, which has led to the tier.
func (t *loadTable) part(pub *published, tier int, c class, hash uint64) int {
	n := len(pub.tiers[tier].parts)
	if n == 1 {
		return 0
	}
	x := mix(hash ^ 0x2545f4914f6cdd1d)
	var sums []float64
	if c < classReady || c == classAnyone {
		sums = t.tiers[tier].weights[c]
	}
	if sums == nil || sums[n-1] == 0 {
		at, _ := bits.Mul64(x, uint64(n))
		return int(at)
	}
	// 52 bits: the product stays below the sum.
	at := float64(x>>12) / (1 << 52) * sums[n-1]
	lo, hi := 0, n-1
	for lo < hi {
		if mid := int(uint(lo+hi) / 2); sums[mid] > at {
			hi = mid
		} else {
			lo = mid + 1
		}
	}
	return lo
}

// tierLoads describes the tiers for dumps.
func (pub *published) tierLoads() []TierLoad {
	table := pub.loads.Load()
	loads := make([]TierLoad, len(pub.tiers))
	for i := range pub.tiers {
		t := &pub.tiers[i]
		loads[i] = TierLoad{Priority: t.priority, Distance: t.distance, Endpoints: t.size, Healthy: 100}
		if table != nil {
			s := &table.tiers[i]
			loads[i].Healthy, loads[i].Degraded, loads[i].Panic = s.healthy, s.degraded, s.panic
		}
	}
	return loads
}
