package lbcore_test

import (
	"testing"
	"testing/synctest"

	"gatehouse.internal/lbcore"
	"gatehouse.internal/lbcore/random"
	"gatehouse.internal/lbcore/ringhash"
)

// What a slot says that members are to get is what they get: over weights,
// priorities, degraded ones, a panic, and those who are not ready.
func TestSharesAreWhatPicksGive(t *testing.T) {
	ep := func(i, prio, weight int, status lbcore.Status) lbcore.Endpoint {
		return with(ep(i), func(e *lbcore.Endpoint) {
			e.Priority, e.Weight, e.Status = uint8(prio), uint32(weight), status
		})
	}
	const well, degraded = lbcore.StatusHealthy, lbcore.StatusDegraded
	for _, tt := range []struct {
		what   string
		spread lbcore.Spread
		eps    []lbcore.Endpoint
		down   []int
		want   map[int]float64
	}{
		{"weights", lbcore.Spread{}, []lbcore.Endpoint{ep(1, 0, 1, well), ep(2, 0, 3, well)}, nil, map[int]float64{1: 25, 2: 75}},
		{"one is down", lbcore.Spread{}, []lbcore.Endpoint{ep(1, 0, 1, well), ep(2, 0, 3, well), ep(3, 0, 3, well)}, []int{2}, map[int]float64{1: 25, 3: 75}},
		{"two priorities", lbcore.Spread{}, []lbcore.Endpoint{ep(1, 0, 1, well), ep(2, 0, 1, well), ep(3, 1, 1, well)}, []int{2}, map[int]float64{1: 70, 3: 30}},
		{"degraded", lbcore.Spread{}, []lbcore.Endpoint{ep(1, 0, 1, well), ep(2, 0, 1, degraded), ep(3, 0, 1, degraded)}, nil, map[int]float64{1: 46, 2: 27, 3: 27}},
		{"panic", lbcore.Spread{PanicThreshold: 50}, []lbcore.Endpoint{ep(1, 0, 1, well), ep(2, 0, 1, well), ep(3, 0, 2, well)}, []int{1, 2}, map[int]float64{1: 25, 2: 25, 3: 50}},
		{"nobody", lbcore.Spread{}, []lbcore.Endpoint{ep(1, 0, 1, well)}, []int{1}, map[int]float64{}},
		{"nothing", lbcore.Spread{}, nil, nil, map[int]float64{}},
	} {
		synctest.Test(t, func(t *testing.T) {
			c := (&cluster{builders: []lbcore.Builder{random.Config{}}, spread: tt.spread}).probed().start(t)
			if c.slot(0).Keyed() {
				t.Error("random takes keys")
			}
			c.settle(lbcore.MustSet(tt.eps...))
			c.health(false, tt.down...)
			c.group.UpdateLoads()
			const n = 40000
			got := make(map[int]float64)
			for i := range uint64(n) {
				p := c.slot(0).PickHash(lbcore.Mix(i), 1)
				if m := p.Next(); m != nil {
					got[num(m)] += 100.0 / n
				}
			}
			said := make(map[int]float64)
			for _, s := range c.slot(0).Shares(nil) {
				said[num(s.Member)] = 100 * s.Part
			}
			for _, e := range tt.eps {
				i := num(c.view.Members()[0])
				for _, m := range c.view.Members() {
					if m.Addr() == e.Addr {
						i = num(m)
					}
				}
				near(t, tt.what, got[i], tt.want[i], 1)
				near(t, tt.what+", as said", said[i], tt.want[i], 0.001)
			}
		})
	}
}

// What a member's part goes by may be another thing than its weight.
func TestSharesByAnotherWeight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := (&cluster{builders: []lbcore.Builder{ringhash.Config{}}}).probed().start(t)
		if all := c.slot(0).Shares(nil); len(all) != 0 || !c.slot(0).Keyed() {
			t.Errorf("before the first build: %v", all)
		}
		c.settle(lbcore.MustSet(ep(1), ep(2), ep(3)))
		for _, s := range c.slot(0).Shares(func(m *lbcore.Member, static uint32) float64 { return float64(num(m)) * float64(static) }) {
			near(t, "part", 100*s.Part, 100*float64(num(s.Member))/6, 0.001)
		}
	})
}
