package lbcore

import "math"

// MinBalanceFactor is the least SlotConfig.BalanceFactor.
const MinBalanceFactor = 100

// overloaded reports whether member x of t has more connections than the bound
// allows it, and remembers the least loaded of those. The bound is Envoy's: the connections of the cluster with the one to
// come, times the factor, times the share, rounded up at both places, and 1 at
// least; up to it and one above.
// Source: Envoy's bounded-load hash load balancer.
func (s *search) overloaded(t *part, x int) bool {
	m := t.members[x]
	all := uint64(max(m.view.total.Load(), 0)) + 1
	bound := max(1, math.Ceil(float64((all*s.factor+99)/100)*t.shares[x]))
	load := float64(m.Active()) / bound
	if load <= 1 {
		return false
	}
	if s.leastLoad == 0 || load < s.leastLoad {
		s.least, s.leastLoad = x, load
	}
	return true
}
