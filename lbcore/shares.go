package lbcore

// Share is the part of a slot's new connections that a member is to get.
type Share struct {
	*Member
	Part float64 // 0 to 1
}

// Keyed reports whether keys have a say in the slot's picks: see [Keyed].
func (s *Slot) Keyed() bool { return s.keyed }

// Shares returns how what the slot serves shares new connections in the long run, by
// the present table of loads and readiness. weight returns what a member's part goes
// by, given its static weight; nil is that weight. The sum is 1, or 0 if nobody is
// acceptable. Where a locality has a share of the load and nobody to take it, the
// others get that in proportion. It does not read the selector's storage and needs no
// Reader; keys and numbers of connections don't come into it.
func (s *Slot) Shares(weight func(m *Member, static uint32) float64) (all []Share) {
	pub := s.pub.Load()
	if pub == nil {
		return nil
	}
	if weight == nil {
		weight = func(_ *Member, static uint32) float64 { return float64(static) }
	}
	table, sum := pub.loads.Load(), 0.0
	all = make([]Share, 0, pub.size)
	for i := range pub.tiers {
		t := &pub.tiers[i]
		begin := len(all)
		for k := range t.parts {
			for _, m := range t.parts[k].members {
				all = append(all, Share{Member: m})
			}
		}
		give := func(c class, load uint32) {
			at := begin
			for k := range t.parts {
				p := &t.parts[k]
				sum += p.give(all[at:at+len(p.members)], c, float64(load)/100*table.chance(i, k, c, len(t.parts)), weight)
				at += len(p.members)
			}
		}
		switch {
		case table == nil:
			give(classHealthy, 100)
		case table.tiers[i].panic:
			give(classAnyone, table.tiers[i].healthy+table.tiers[i].degraded)
		default:
			give(classHealthy, table.tiers[i].healthy)
			give(classDegraded, table.tiers[i].degraded)
		}
	}
	for i := range all {
		if sum > 0 {
			all[i].Part /= sum
		}
	}
	return all
}

// chance returns how much of a tier's load of a class goes to one of its n parts.
func (t *loadTable) chance(tier, k int, c class, n int) float64 {
	if n == 1 {
		return 1
	}
	if t != nil {
		if sums := t.tiers[tier].weights[c]; sums != nil && sums[n-1] > 0 {
			if k > 0 {
				return (sums[k] - sums[k-1]) / sums[n-1]
			}
			return sums[0] / sums[n-1]
		}
	}
	return 1 / float64(n)
}

// give adds load to the shares of the part's members of a class, and returns how much
// of it they took: all or nothing.
func (t *part) give(shares []Share, c class, load float64, weight func(*Member, uint32) float64) float64 {
	weights, sum := make([]float64, len(t.members)), 0.0
	for i, m := range t.members {
		if !m.is(c) {
			continue
		}
		weights[i] = weight(m, t.weights[i])
		if c != classAnyone {
			weights[i] *= m.SlowStart()
		}
		sum += weights[i]
	}
	if sum == 0 || load == 0 {
		return 0
	}
	for i, w := range weights {
		shares[i].Part += load * w / sum
	}
	return load
}
