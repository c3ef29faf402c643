package lbcore

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
	n := len(prios)
	l := Loads{Healthy: make([]uint32, n), Degraded: make([]uint32, n), Panic: make([]bool, n)}
	healthy, degraded := make([]uint64, n), make([]uint64, n)
	var norm, total uint64
	for i, p := range prios {
		total += p.Total
		if c := p.Total - p.Excluded; c > 0 {
			healthy[i] = min(100, overprovisioning*p.Healthy/c)
			degraded[i] = min(100, overprovisioning*p.Degraded/c)
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

// spread gives each priority its share of availability and returns what is
// left of rest.
func spread(load []uint32, availability []uint64, norm uint64, rest uint32) uint32 {
	for i, a := range availability {
		load[i] = min(rest, uint32(100*a/norm))
		rest -= load[i]
	}
	return rest
}
