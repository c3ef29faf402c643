package lbcore_test

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"gatehouse.internal/lbcore"
	"gatehouse.internal/lbcore/maglev"
	"gatehouse.internal/lbcore/ringhash"
	"gatehouse.internal/lbcore/roundrobin"
)

// perTier is how many numbers each tier of a vector has for its endpoints.
const perTier = 1000

// standing makes the endpoints of one priority of a vector: with counts one
// endpoint each, or one for all of a kind, whose weight is their number. down
// are those whose probes fail, and fresh, the excluded, were never probed.
func standing(prio int, v h, weighted bool) (eps []lbcore.Endpoint, down, fresh []int) {
	add := func(n uint64, not *[]int, status lbcore.Status) {
		weight := uint32(1)
		if weighted && n > 0 {
			n, weight = 1, uint32(n)
		}
		for range n {
			i := prio*perTier + len(eps)
			eps = append(eps, with(ep(i), func(e *lbcore.Endpoint) {
				e.Priority, e.Status, e.Weight = uint8(prio), status, weight
			}))
			if not != nil {
				*not = append(*not, i)
			}
		}
	}
	add(v.Healthy, nil, lbcore.StatusHealthy)
	add(v.Degraded, nil, lbcore.StatusDegraded)
	add(v.Excluded, &fresh, lbcore.StatusHealthy)
	add(v.Total-v.Healthy-v.Degraded-v.Excluded, &down, lbcore.StatusHealthy)
	return eps, down, fresh
}

// Every vector of Envoy's arithmetic from the View to the pick, by counts and
// by weights.
func TestVectorsReachThePick(t *testing.T) {
	for _, v := range priorityVectors() {
		for _, weighted := range []bool{false, true} {
			t.Run(fmt.Sprint(v.prios, v.of, v.threshold, weighted), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { checkVector(t, v, weighted) })
			})
		}
	}
}

func checkVector(t *testing.T, v priorityVector, weighted bool) {
	c := (&cluster{builders: []lbcore.Builder{order{}}, spread: lbcore.Spread{PanicThreshold: uint32(v.threshold), IgnoreNew: true}}).probed().start(t)
	var eps []lbcore.Endpoint
	var want []lbcore.TierLoad
	for i, p := range v.prios {
		some, down, fresh := standing(i, p, weighted)
		if len(some) == 0 {
			continue // no tier
		}
		eps = append(eps, some...)
		for _, i := range down {
			c.probes[addr(i)] = new(lbcore.ProbeState)
			c.probes[addr(i)].Store(lbcore.HealthUnhealthy)
		}
		for _, i := range fresh {
			c.probes[addr(i)] = new(lbcore.ProbeState)
		}
		want = append(want, lbcore.TierLoad{
			Priority: uint8(i), Endpoints: len(some), Healthy: v.load[i], Degraded: v.degraded[i], Panic: v.panics[i],
		})
	}
	c.settle(lbcore.MustSet(eps...).WithPolicy(lbcore.SetPolicy{Overprovisioning: uint32(v.of), WeightedHealth: weighted}))
	c.group.UpdateLoads()
	got := c.slot(0).Loads()
	if d := cmp.Diff(want, got); len(want) > 0 && d != "" {
		t.Fatalf("loads: %s", d)
	}
	// A hundred hashes are the percentages.
	healthy, degraded, picked := make(map[uint8]uint32), make(map[uint8]uint32), make(map[int]bool)
	for hash := range uint64(10000) {
		p := c.pick(0, hashKey(hash), 1)
		m := p.Next()
		if m == nil {
			continue
		}
		picked[num(m)] = true
		switch e := m.Endpoint(); {
		case m.Degraded() && !v.panics[e.Priority]:
			degraded[e.Priority]++
		default:
			healthy[e.Priority]++
		}
	}
	available := slices.ContainsFunc(v.prios, func(p h) bool { return p.Healthy+p.Degraded > 0 })
	for _, l := range got {
		if !available && v.threshold == 0 {
			l.Healthy = 0 // nobody is acceptable
		}
		if healthy[l.Priority] != 100*l.Healthy || degraded[l.Priority] != 100*l.Degraded {
			t.Errorf("priority %d: %d healthy and %d degraded picks of 10000, want %d%% and %d%%",
				l.Priority, healthy[l.Priority], degraded[l.Priority], l.Healthy, l.Degraded)
		}
	}
	// In a panic, and only there, the health doesn't matter.
	for _, e := range eps {
		p, i := v.prios[e.Priority], numOf(e)
		panics := v.panics[e.Priority] && got[slices.IndexFunc(got, func(l lbcore.TierLoad) bool { return l.Priority == e.Priority })].Healthy > 0
		ready := c.member(i).Ready()
		if panics && p.Total <= 6 && !picked[i] || !panics && !ready && picked[i] {
			t.Errorf("endpoint %d: picked is %v, ready %v, panic %v", i, picked[i], ready, panics)
		}
	}
}

func numOf(e lbcore.Endpoint) int {
	b := e.Addr.AddrPort().Addr().As4()
	return int(b[1])<<16 | int(b[2])<<8 | int(b[3])
}

// in puts an endpoint into a locality of that zone and weight.
func in(i int, zone string, weight uint32) lbcore.Endpoint {
	return with(ep(i), func(e *lbcore.Endpoint) {
		e.Locality, e.LocalityWeight = lbcore.Locality{Region: "r", Zone: zone}, weight
	})
}

// zones returns what percentage of many picks goes to endpoints of each zone.
func (c *cluster) zones(t *testing.T) map[string]float64 {
	t.Helper()
	const n = 40000
	zones := make(map[string]float64)
	for i := range uint64(n) {
		p := c.slot(0).PickHash(lbcore.Mix(i), 1)
		if m := p.Next(); m != nil {
			zones[m.Endpoint().Locality.Zone] += 100.0 / n
		}
	}
	return zones
}

func near(t *testing.T, what string, got, want, tolerance float64) {
	t.Helper()
	if math.Abs(got-want) > tolerance {
		t.Errorf("%s: got %.2f, want %.2f", what, got, want)
	}
}

// Envoy's published shares of two localities of weights 1 and 2, by the healthy
// endpoints of the first; then the table of its documentation.
func TestLocalityVectors(t *testing.T) {
	for _, v := range []struct {
		a, b int // endpoints
		up   int // of a
		want float64
	}{
		{5, 1, 5, 33}, {5, 1, 4, 33}, {5, 1, 3, 29}, {5, 1, 2, 22}, {5, 1, 1, 12}, {5, 1, 0, 0},
		{100, 100, 100, 33}, {100, 100, 72, 33}, {100, 100, 70, 33}, {100, 100, 69, 32}, {100, 100, 50, 26},
		{100, 100, 25, 15}, {100, 100, 0, 0},
	} {
		hosts := func(n, up int) h { return h{Total: uint64(n), Healthy: uint64(up)} }
		x := lbcore.EffectiveWeight(hosts(v.a, v.up), 1, uint64(v.up), 140)
		y := lbcore.EffectiveWeight(hosts(v.b, v.b), 2, uint64(v.b), 140)
		exact := 100 * x / (x + y)
		near(t, fmt.Sprintf("%d of %d", v.up, v.a), exact, v.want, 0.81) // Envoy counts a hundred picks, or cuts

		synctest.Test(t, func(t *testing.T) {
			c := (&cluster{builders: []lbcore.Builder{roundrobin.Config{}}, spread: lbcore.Spread{LocalityWeighted: true}}).probed().start(t)
			var eps []lbcore.Endpoint
			for i := range v.a {
				eps = append(eps, in(i, "a", 1))
			}
			for i := range v.b {
				eps = append(eps, in(perTier+i, "b", 2))
			}
			c.settle(lbcore.MustSet(eps...))
			for i := range v.a - v.up {
				c.health(false, i)
			}
			c.group.UpdateLoads()
			near(t, fmt.Sprintf("picks, %d of %d", v.up, v.a), c.zones(t)["a"], exact, 0.75)
		})
	}
}

func TestLocalityWeights(t *testing.T) {
	weighted := lbcore.Spread{LocalityWeighted: true}
	for _, tt := range []struct {
		what   string
		spread lbcore.Spread
		eps    []lbcore.Endpoint
		down   []int
		want   map[string]float64
	}{
		{"not asked for", lbcore.Spread{}, []lbcore.Endpoint{in(1, "a", 9), in(2, "b", 1)}, nil, map[string]float64{"a": 50, "b": 50}},
		{"9 to 1", weighted, []lbcore.Endpoint{in(1, "a", 9), in(2, "b", 1), in(3, "b", 1)}, nil, map[string]float64{"a": 90, "b": 10}},
		{"one has none", weighted, []lbcore.Endpoint{in(1, "a", 0), in(2, "b", 1), in(3, "c", 3)}, nil, map[string]float64{"b": 25, "c": 75}},
		{"all have none", weighted, []lbcore.Endpoint{in(1, "a", 0), in(2, "b", 0)}, nil, map[string]float64{}},
		{"all of the higher priority have none", weighted,
			[]lbcore.Endpoint{in(1, "a", 0), with(in(2, "b", 1), func(e *lbcore.Endpoint) { e.Priority = 1 })}, nil, map[string]float64{"b": 100}},
		{"beyond 32 bits", weighted, []lbcore.Endpoint{in(1, "a", math.MaxUint32), in(2, "b", math.MaxUint32), in(3, "c", math.MaxUint32)}, nil,
			map[string]float64{"a": 33.33, "b": 33.33, "c": 33.33}},
		{"the largest that one locality says", weighted, []lbcore.Endpoint{in(1, "a", 1), in(2, "a", 3), in(3, "a", 2), in(4, "b", 1)}, nil,
			map[string]float64{"a": 75, "b": 25}},
		// 1 of 4 is below the threshold: five endpoints that are alike.
		{"panic", lbcore.Spread{LocalityWeighted: true, PanicThreshold: 50},
			[]lbcore.Endpoint{in(1, "a", 9), in(2, "b", 1), in(3, "b", 1), in(4, "b", 1)}, []int{1, 2, 3}, map[string]float64{"a": 25, "b": 75}},
		{"not in a panic", weighted,
			[]lbcore.Endpoint{in(1, "a", 9), in(2, "b", 1), in(3, "b", 1), in(4, "b", 1)}, []int{1, 2, 3}, map[string]float64{"b": 100}},
	} {
		synctest.Test(t, func(t *testing.T) {
			c := (&cluster{builders: []lbcore.Builder{roundrobin.Config{}}, spread: tt.spread}).probed().start(t)
			c.settle(lbcore.MustSet(tt.eps...))
			c.health(false, tt.down...)
			c.group.UpdateLoads()
			got := c.zones(t)
			if len(got) != len(tt.want) {
				t.Errorf("%s: %v, want %v", tt.what, got, tt.want)
			}
			expected := make(map[string]float64)
			for _, s := range c.slot(0).Shares(nil) {
				expected[s.Endpoint().Locality.Zone] += 100 * s.Part
			}
			for zone, want := range tt.want {
				near(t, tt.what+", zone "+zone, got[zone], want, 0.75)
				near(t, tt.what+", the share that zone "+zone+" is to get", expected[zone], want, 0.01)
			}
		})
	}
}

// A selection goes on from one locality to the others, and finds whoever there
// is.
func TestPicksGoOnToOtherLocalities(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := (&cluster{builders: []lbcore.Builder{roundrobin.Config{}}, spread: lbcore.Spread{LocalityWeighted: true}}).probed().start(t)
		c.settle(lbcore.MustSet(in(0, "a", 1), in(1, "a", 1), in(2, "b", 1), in(3, "c", 1), in(4, "d", 0)))
		for i := range uint64(200) {
			p := c.slot(0).PickHash(lbcore.Mix(i), 8)
			got := nums(&p)
			if i := slices.Index(got, 0); i < 0 || !slices.Contains([]int{got[max(i-1, 0)], got[min(i+1, 3)]}, 1) {
				t.Errorf("the endpoints of one locality are not together: %v", got)
			}
			slices.Sort(got)
			equal(t, "all", got, []int{0, 1, 2, 3})
		}
		c.health(false, 0, 1, 2) // before UpdateLoads
		for i := range uint64(200) {
			if p := c.slot(0).PickHash(lbcore.Mix(i), 1); num(p.Next()) != 3 {
				t.Fatal("the one that is left is not found")
			}
		}
	})
}

// A key has no say where the policy has no use for it: neither in the priority
// nor in the locality.
func TestKeyHasNoSayInPriorities(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := (&cluster{builders: []lbcore.Builder{roundrobin.Config{}}, spread: lbcore.Spread{LocalityWeighted: true}}).probed().start(t)
		low := func(e *lbcore.Endpoint) { e.Priority = 1 }
		c.settle(lbcore.MustSet(in(0, "a", 1), in(1, "a", 1), with(in(2, "a", 1), low), with(in(3, "b", 1), low)))
		c.health(false, 0)
		c.group.UpdateLoads() // 70, 30
		counts := make([]int, 4)
		for range 10000 {
			counts[c.picks(0, hashKey(7), 1)[0]]++
		}
		for i, want := range []int{0, 7000, 1500, 1500} {
			near(t, fmt.Sprint("endpoint ", i), float64(counts[i]), float64(want), 300)
		}
	})
}

// Golden vectors of Envoy's hash policies, from a Set with localities to the
// built selector.
func TestHashLocalityVectors(t *testing.T) {
	host := func(port int, weight uint32, zone string, of uint32) lbcore.Endpoint {
		a, err := lbcore.ParseAddr(fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			t.Fatal(err)
		}
		return lbcore.Endpoint{Addr: a, Weight: weight, Locality: lbcore.Locality{Zone: zone}, LocalityWeight: of}
	}
	build := func(b lbcore.Builder, eps ...lbcore.Endpoint) (lbcore.Selector, lbcore.Input) {
		t.Helper()
		snap, _ := lbcore.NewView("c", new(lbcore.Hosts), lbcore.ViewConfig{}).Update(lbcore.MustSet(eps...))
		ins := lbcore.SpreadInputs(snap, lbcore.Spread{LocalityWeighted: true}, b.(lbcore.Keyed).Keyed())
		if len(ins) != 1 {
			t.Fatalf("%d inputs", len(ins))
		}
		u64, u32, err := b.Shape(ins[0])
		if err != nil {
			t.Fatal(err)
		}
		sel, err := b.Build(ins[0], &lbcore.Storage{U64: make([]uint64, u64), U32: make([]uint32, u32)}, func() error { return nil })
		if err != nil {
			t.Fatal(err)
		}
		return sel, ins[0]
	}
	port := func(in lbcore.Input, i int) int { return int(in.Members[i].Addr().AddrPort().Port()) }

	type point struct {
		hash uint64
		port int
	}
	for _, v := range []struct {
		what   string
		size   uint64
		eps    []lbcore.Endpoint
		points []point
	}{
		{"weights 1, 2, 3 and none", 6,
			[]lbcore.Endpoint{host(90, 1, "a", 1), host(91, 1, "b", 2), host(92, 1, "c", 3), host(93, 1, "d", 0)},
			[]point{{928266305478181108, 92}, {4443673547860492590, 92}, {5583722120771150861, 91}, {6311230543546372928, 91},
				{13444792449719432967, 92}, {16117243373044804889, 90}}},
		{"host weights (1,2) (1,2) in 1:2", 9,
			[]lbcore.Endpoint{host(90, 1, "a", 1), host(91, 2, "a", 1), host(92, 1, "b", 2), host(93, 2, "b", 2)},
			[]point{{928266305478181108, 92}, {3851675632748031481, 93}, {5583722120771150861, 91}, {6311230543546372928, 91},
				{7700377290971790572, 93}, {12559126875973811811, 93}, {13444792449719432967, 92}, {13784988426630141778, 93},
				{16117243373044804889, 90}}},
	} {
		sel, in := build(ringhash.Config{MinimumSize: v.size, MaximumSize: v.size}, v.eps...)
		for i, p := range v.points {
			after := v.points[(i+1)%len(v.points)]
			for _, c := range []struct {
				hash uint64
				want int
			}{{p.hash, p.port}, {p.hash + 1, after.port}} {
				k := lbcore.Key{Hash: c.hash, Set: true}
				if x, _ := sel.Next(k, sel.First(k)); port(in, x) != c.want {
					t.Errorf("ring, %s: %d leads to %d, want %d", v.what, c.hash, port(in, x), c.want)
				}
			}
		}
	}

	for _, v := range []struct {
		what  string
		eps   []lbcore.Endpoint
		slots []int
	}{
		{"localities of one weight", []lbcore.Endpoint{host(90, 1, "a", 1), host(91, 2, "b", 1)},
			[]int{1, 0, 0, 1, 0, 1, 1, 0, 0, 1, 0, 1, 0, 0, 1, 0, 1}},
		{"8, 0, 2", []lbcore.Endpoint{host(90, 1, "a", 8), host(92, 1, "b", 0), host(91, 1, "c", 2)},
			[]int{1, 0, 0, 0, 0, 0, 1, 0, 0, 1, 0, 1, 0, 0, 0, 0, 0}},
	} {
		sel, in := build(maglev.Config{TableSize: 17}, v.eps...)
		var got []int
		for h := range uint64(17) {
			k := lbcore.Key{Hash: h, Set: true}
			x, _ := sel.Next(k, sel.First(k))
			got = append(got, port(in, x)-90)
		}
		equal(t, "maglev, "+v.what, got, v.slots)
	}

	lone := []lbcore.Endpoint{host(1, 1, "a", 127)}
	for i := range 1023 {
		lone = append(lone, host(2+i, 1, "b", 1))
	}
	sel, in := build(maglev.Config{}, lone...)
	counts := make(map[int]int)
	for h := range uint64(maglev.DefaultTableSize) {
		k := lbcore.Key{Hash: h, Set: true}
		x, _ := sel.Next(k, sel.First(k))
		counts[port(in, x)]++
	}
	if counts[1] != 64514 || len(counts) != 1024 {
		t.Errorf("localities 127 and 1: %d slots for the lone host, %d hosts", counts[1], len(counts))
	}
}

func TestPreferLocal(t *testing.T) {
	at := func(i int, region, zone string) lbcore.Endpoint {
		return with(ep(i), func(e *lbcore.Endpoint) { e.Locality = lbcore.Locality{Region: region, Zone: zone, SubZone: "s"} })
	}
	eps := []lbcore.Endpoint{
		at(0, "eu", "1"), at(1, "eu", "1"), at(10, "eu", "2"), at(11, "eu", "2"), at(20, "us", "1"), at(21, "us", "1"),
		with(at(30, "eu", "1"), func(e *lbcore.Endpoint) { e.Priority = 3 }), with(at(31, "", ""), func(e *lbcore.Endpoint) { e.Priority = 3 }),
	}
	tier := func(prio, distance uint8, n int, load uint32) lbcore.TierLoad {
		return lbcore.TierLoad{Priority: prio, Distance: distance, Endpoints: n, Healthy: load}
	}
	for _, v := range []struct {
		what  string
		local lbcore.Locality
		down  []int
		want  []lbcore.TierLoad
	}{
		{"zone", lbcore.Locality{Region: "eu", Zone: "1"}, nil,
			[]lbcore.TierLoad{tier(0, 0, 2, 100), tier(0, 1, 2, 0), tier(0, 2, 2, 0), tier(3, 0, 1, 0), tier(3, 2, 1, 0)}},
		{"half of it", lbcore.Locality{Region: "eu", Zone: "1"}, []int{0},
			[]lbcore.TierLoad{tier(0, 0, 2, 70), tier(0, 1, 2, 30), tier(0, 2, 2, 0), tier(3, 0, 1, 0), tier(3, 2, 1, 0)}},
		{"none of it and half of the region", lbcore.Locality{Region: "eu", Zone: "1"}, []int{0, 1, 10},
			[]lbcore.TierLoad{tier(0, 0, 2, 0), tier(0, 1, 2, 70), tier(0, 2, 2, 30), tier(3, 0, 1, 0), tier(3, 2, 1, 0)}},
		{"all of the priority", lbcore.Locality{Region: "eu", Zone: "1"}, []int{0, 1, 10, 11, 20, 21},
			[]lbcore.TierLoad{tier(0, 0, 2, 0), tier(0, 1, 2, 0), tier(0, 2, 2, 0), tier(3, 0, 1, 100), tier(3, 2, 1, 0)}},
		{"region only", lbcore.Locality{Region: "eu"}, []int{0, 1, 10},
			[]lbcore.TierLoad{tier(0, 0, 4, 35), tier(0, 2, 2, 65), tier(3, 0, 1, 0), tier(3, 2, 1, 0)}},
		{"zone only", lbcore.Locality{Zone: "1"}, nil,
			[]lbcore.TierLoad{tier(0, 0, 4, 100), tier(0, 1, 2, 0), tier(3, 0, 1, 0), tier(3, 1, 1, 0)}},
		{"a region that nobody is in", lbcore.Locality{Region: "ap", Zone: "1"}, nil,
			[]lbcore.TierLoad{tier(0, 2, 6, 100), tier(3, 2, 2, 0)}},
		{"nothing", lbcore.Locality{}, nil, []lbcore.TierLoad{tier(0, 0, 6, 100), tier(3, 0, 2, 0)}},
	} {
		for _, b := range []lbcore.Builder{roundrobin.Config{}, ringhash.Config{}} {
			synctest.Test(t, func(t *testing.T) {
				c := (&cluster{builders: []lbcore.Builder{b}, spread: lbcore.Spread{PreferLocal: true, Local: v.local}}).probed().start(t)
				c.settle(lbcore.MustSet(eps...))
				c.health(false, v.down...)
				c.group.UpdateLoads()
				got := c.slot(0).Loads()
				if d := cmp.Diff(v.want, got); d != "" {
					t.Errorf("%s: %s", v.what, d)
				}
				if v.local.Zone == "1" && v.local.Region == "eu" {
					for hash := range uint64(100) {
						p := c.slot(0).PickHash(hash, 1)
						x, load, n := num(p.Next()), uint32(0), 0
						for load += got[0].Healthy; load <= uint32(hash); load += got[n].Healthy {
							n++
						}
						if want := []int{0, 1, 2, 3, 3}[n]; x/10 != want {
							t.Errorf("%s: hash %d leads to %d, want tier %d", v.what, hash, x, n)
						}
					}
				}
			})
		}
	}
}

// Localities weigh within the distance that they are at.
func TestPreferLocalWithWeights(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		spread := lbcore.Spread{LocalityWeighted: true, PreferLocal: true, Local: lbcore.Locality{Region: "r", Zone: "a"}}
		c := (&cluster{builders: []lbcore.Builder{roundrobin.Config{}}, spread: spread}).probed().start(t)
		c.settle(lbcore.MustSet(in(0, "a", 1), in(1, "b", 1), in(2, "c", 3)))
		near(t, "local", c.zones(t)["a"], 100, 0.01)
		c.health(false, 0)
		c.group.UpdateLoads()
		got := c.zones(t)
		near(t, "b", got["b"], 25, 1)
		near(t, "c", got["c"], 75, 1)
	})
}

func TestIgnoreNew(t *testing.T) {
	for _, ignore := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			c := (&cluster{builders: []lbcore.Builder{order{}}, spread: lbcore.Spread{IgnoreNew: ignore}}).probed().start(t)
			low := func(e *lbcore.Endpoint) { e.Priority = 1 }
			for i := range 3 {
				c.probes[addr(i)] = new(lbcore.ProbeState) // unknown
			}
			c.settle(lbcore.MustSet(ep(0), ep(1), ep(2), ep(3), with(ep(10), low), with(ep(11), low)))
			c.group.UpdateLoads()
			want := []int{35, 65}
			if ignore {
				want = []int{100, 0}
			}
			equal(t, fmt.Sprint("ignore is ", ignore), c.shares(2), want)
			c.health(false, 0, 1, 2)
			c.group.UpdateLoads()
			equal(t, "probed", c.shares(2), []int{35, 65})
		})
	}
}

// Those who are not there at all are not missing.
func TestDisabledAndWithdrawnAreNotMissing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		defer close(release)
		c := (&cluster{builders: []lbcore.Builder{&lab{build: block(3, release)}}, spread: lbcore.Spread{PanicThreshold: 50}}).probed().start(t) // two a generation
		low := func(e *lbcore.Endpoint) { e.Priority = 1 }
		eps := []lbcore.Endpoint{ep(0), ep(1), ep(2), with(ep(10), low)}
		c.settle(lbcore.MustSet(eps...))
		c.view.SetEnabled(addr(0), false)
		c.group.UpdateLoads()
		equal(t, "one is disabled", c.shares(2), []int{100, 0})
		c.update(lbcore.MustSet(eps[0], eps[2], eps[3])) // not built
		c.group.UpdateLoads()
		equal(t, "one has left", c.shares(2), []int{100, 0})
		c.health(false, 2)
		c.group.UpdateLoads()
		equal(t, "one is down", c.shares(2), []int{0, 100})
		// A panic takes whoever may be taken.
		c.health(false, 10)
		c.group.UpdateLoads()
		equal(t, "all are down", c.shares(2), []int{50, 50})
		equal(t, "picked", c.seen(0), []int{2, 10})
		c.view.SetEnabled(addr(2), false)
		equal(t, "and one is disabled, before UpdateLoads", c.seen(0), []int{10})
		c.group.UpdateLoads()
		equal(t, "and after", c.shares(2), []int{0, 100})
	})
}

func TestPanicCandidatesStayAcceptable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := (&cluster{builders: []lbcore.Builder{order{}}, spread: lbcore.Spread{PanicThreshold: 50}}).probed().start(t)
		c.settle(set(0, 1, 2, 3))
		c.health(false, 0, 1, 2)
		c.group.UpdateLoads()
		p := c.pick(0, hashKey(0), 8)
		equal(t, "in a panic", nums(&p), []int{0, 1, 2, 3})
		p = c.pick(0, hashKey(0), 8)
		c.view.SetEnabled(addr(1), false)
		c.update(set(0, 1, 3))
		equal(t, "without who is disabled or has left since", nums(&p), []int{0, 3})
		// What was taken for its health is not kept without it.
		c.view.SetEnabled(addr(1), true)
		c.settle(set(0, 1, 2, 3))
		c.health(true, 0, 1, 2)
		c.group.UpdateLoads()
		p = c.pick(0, hashKey(0), 4)
		c.health(false, 2)
		equal(t, "not in a panic", nums(&p), []int{0, 1, 3})
	})
}

// Discovery's policy is that of the present set, whatever generation is served.
func TestPolicyIsThePresentOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := tiered(t, []uint8{0, 1}, 4, 2)
		c.health(false, 0, 1)
		c.group.UpdateLoads()
		equal(t, "by default", c.shares(2), []int{70, 30})
		set := c.view.Snapshot().Set
		if c.update(set.WithPolicy(lbcore.SetPolicy{Overprovisioning: 100})).Generation != 1 {
			t.Error("a policy made a generation")
		}
		c.group.UpdateLoads()
		equal(t, "by 100", c.shares(2), []int{50, 50})
		c.update(set.WithPolicy(lbcore.SetPolicy{Overprovisioning: math.MaxUint32}))
		c.group.UpdateLoads()
		equal(t, "by the largest", c.shares(2), []int{100, 0})
		if c.stats()[0].Rebuilds != 1 {
			t.Error("a policy made a rebuild")
		}
	})
}
