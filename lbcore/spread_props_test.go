package lbcore_test

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"gatehouse.internal/lbcore"
	"gatehouse.internal/lbcore/leastweight"
	"gatehouse.internal/lbcore/random"
	"gatehouse.internal/lbcore/ringhash"
	"gatehouse.internal/lbcore/roundrobin"
)

// world is a random cluster, and what is known of it without looking at tiers.
type world struct {
	*cluster
	spread  lbcore.Spread
	set     lbcore.Set
	members map[lbcore.Addr]*lbcore.Member
}

func drawWorld(t *rapid.T) *world {
	w := &world{
		spread: lbcore.Spread{
			PanicThreshold:   rapid.SampledFrom([]uint32{0, 0, 50, 100}).Draw(t, "threshold"),
			LocalityWeighted: rapid.Bool().Draw(t, "weighted"),
			PreferLocal:      rapid.Bool().Draw(t, "prefer"),
			Local:            lbcore.Locality{Region: "r0", Zone: rapid.SampledFrom([]string{"", "z0"}).Draw(t, "zone")},
			IgnoreNew:        rapid.Bool().Draw(t, "ignore"),
		},
	}
	w.cluster = &cluster{spread: w.spread, balance: rapid.SampledFrom([]uint32{0, 100, 150}).Draw(t, "balance")}
	w.builders = []lbcore.Builder{rapid.SampledFrom([]lbcore.Builder{
		order{}, roundrobin.Config{}, random.Config{}, leastweight.Config{}, ringhash.Config{MinimumSize: 32, MaximumSize: 256},
	}).Draw(t, "policy")}
	return w
}

func (w *world) draw(t *rapid.T) {
	var eps []lbcore.Endpoint
	for _, i := range rapid.SliceOfNDistinct(rapid.IntRange(0, 30), 0, 12, rapid.ID).Draw(t, "listed") {
		e := ep(i)
		e.Weight = rapid.SampledFrom([]uint32{0, 1, 1, 2, 1<<32 - 1}).Draw(t, "weight")
		e.Priority = uint8(rapid.SampledFrom([]int{0, 0, 1, lbcore.MaxPriority}).Draw(t, "priority"))
		e.Locality = lbcore.Locality{Region: fmt.Sprint("r", rapid.IntRange(0, 1).Draw(t, "r")), Zone: fmt.Sprint("z", rapid.IntRange(0, 1).Draw(t, "z"))}
		e.LocalityWeight = rapid.SampledFrom([]uint32{0, 1, 5, 1<<32 - 1}).Draw(t, "locality's")
		e.Status = lbcore.Status(rapid.SampledFrom([]int{0, 1, 1, 1, 2, 3, 5}).Draw(t, "status"))
		e.Enabled = lbcore.Override(rapid.SampledFrom([]int{0, 0, 0, 2}).Draw(t, "enabled"))
		eps = append(eps, e)
	}
	w.set = lbcore.MustSet(eps...).WithPolicy(lbcore.SetPolicy{
		Overprovisioning: rapid.SampledFrom([]uint32{0, 100, 200}).Draw(t, "factor"), WeightedHealth: rapid.Bool().Draw(t, "by weight"),
	})
	snap := w.settle(w.set)
	w.members = make(map[lbcore.Addr]*lbcore.Member)
	for i := range w.set.Len() {
		w.members[snap.Member(i).Addr()] = snap.Member(i)
	}
	for _, e := range eps {
		w.probes[e.Addr].Store(lbcore.Health(rapid.SampledFrom([]int{0, 1, 1, 1, 2}).Draw(t, "health")))
		for range rapid.SampledFrom([]int{0, 0, 3}).Draw(t, "connections") {
			w.members[e.Addr].StartDial()
		}
	}
}

// listed says whether an endpoint is in a selector at all.
func (w *world) listed(e lbcore.Endpoint) bool {
	return e.Weight > 0 && (!w.spread.LocalityWeighted || e.LocalityWeight > 0)
}

// tier says which tier an endpoint is in, by the words of Spread.
func (w *world) tier(e lbcore.Endpoint) [2]uint8 {
	var distance uint8
	if w.spread.PreferLocal {
		switch local := w.spread.Local; {
		case e.Locality.Region != local.Region:
			distance = 2
		case local.Zone != "" && e.Locality.Zone != local.Zone:
			distance = 1
		}
	}
	return [2]uint8{e.Priority, distance}
}

// loads computes what Loads is to return.
func (w *world) loads() (loads []lbcore.TierLoad) {
	health := make(map[[2]uint8]h)
	count := make(map[[2]uint8]int)
	var tiers [][2]uint8
	for _, e := range w.set.All() {
		if !w.listed(e) {
			continue
		}
		k := w.tier(e)
		if count[k]++; count[k] == 1 {
			tiers = append(tiers, k)
		}
		m := w.members[e.Addr]
		if m.Disabled() || e.Status == lbcore.StatusDraining {
			continue
		}
		n := uint64(1)
		if w.set.Policy().WeightedHealth {
			n = uint64(e.Weight)
		}
		x := health[k]
		x.Total += n
		switch {
		case m.Ready() && e.Status == lbcore.StatusDegraded:
			x.Degraded += n
		case m.Ready():
			x.Healthy += n
		case w.spread.IgnoreNew && m.Health() == lbcore.HealthUnknown:
			x.Excluded += n
		}
		health[k] = x
	}
	slices.SortFunc(tiers, func(a, b [2]uint8) int { return slices.Compare(a[:], b[:]) })
	var prios []h
	for _, k := range tiers {
		prios = append(prios, health[k])
	}
	factor := uint64(w.set.Policy().Overprovisioning)
	if factor == 0 {
		factor = lbcore.DefaultOverprovisioning
	}
	l := lbcore.PriorityLoads(prios, factor, uint64(w.spread.PanicThreshold))
	for i, k := range tiers {
		loads = append(loads, lbcore.TierLoad{
			Priority: k[0], Distance: k[1], Endpoints: count[k], Healthy: l.Healthy[i], Degraded: l.Degraded[i], Panic: l.Panic[i],
		})
	}
	return loads
}

// Whatever the cluster, loads are those of Envoy's arithmetic, picks go where
// the loads say, nobody comes twice, and everybody who is acceptable is found.
func TestSpreadLaws(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := drawWorld(rt)
		w.probed().start(t)
		defer w.stop()
		for range 2 {
			w.draw(rt)
			w.group.UpdateLoads()
			w.check(rt)
		}
	})
}

func (w *world) check(t *rapid.T) {
	want, got := w.loads(), w.slot(0).Loads()
	if plain := len(want) == 1 && w.spread.PanicThreshold == 0 && want[0].Degraded == 0; plain {
		want[0].Healthy = 100
	}
	if !slices.Equal(got, want) {
		t.Fatalf("loads are %+v, want %+v", got, want)
	}
	ready, panics := 0, false
	for _, e := range w.set.All() {
		if w.listed(e) && w.members[e.Addr].Ready() {
			ready++
		}
	}
	for _, l := range want {
		panics = panics || l.Panic
	}
	for hash := range uint64(100) {
		p := w.pick(0, hashKey(hash), lbcore.MaxPicks)
		if p.Len() < min(ready, lbcore.MaxPicks) || p.Len() > ready && !panics {
			t.Fatalf("%d candidates of %d", p.Len(), ready)
		}
		seen := make(map[*lbcore.Member]bool)
		for m := p.Next(); m != nil; m = p.Next() {
			e := *m.Endpoint()
			if seen[m] || !w.listed(e) || m.Disabled() || !m.Ready() && !panics {
				t.Fatalf("picked %d", num(m))
			}
			seen[m] = true
		}
		if len(seen) != p.Len() {
			t.Fatalf("%d of %d candidates are yielded", len(seen), p.Len())
		}
		// The first is of the tier and the class that the hash leads to.
		one := w.slot(0).PickHash(hash, 1)
		m := one.Next()
		if m == nil {
			continue
		}
		x, load, at := uint32(hash), uint32(0), -1
		degraded := false
		for i := range 2 * len(want) {
			l := want[i%len(want)]
			n := l.Healthy
			if i >= len(want) {
				n = l.Degraded
			}
			if load += n; x < load {
				at, degraded = i%len(want), i >= len(want)
				break
			}
		}
		tier := w.tier(*m.Endpoint())
		switch l := want[at]; {
		case tier == [2]uint8{l.Priority, l.Distance} && (l.Panic || m.Degraded() == degraded):
		case w.nobody(l, degraded): // then it is another tier's
		default:
			t.Fatalf("hash %d leads to %d of tier %v, want %+v, degraded %v", hash, num(m), tier, l, degraded)
		}
	}
}

// nobody reports whether nobody of a tier and class is acceptable.
func (w *world) nobody(l lbcore.TierLoad, degraded bool) bool {
	for _, e := range w.set.All() {
		m := w.members[e.Addr]
		if !w.listed(e) || w.tier(e) != [2]uint8{l.Priority, l.Distance} {
			continue
		}
		if l.Panic && !m.Disabled() || m.Ready() && m.Degraded() == degraded {
			return false
		}
	}
	return true
}
