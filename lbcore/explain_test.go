package lbcore_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"gatehouse.internal/lbcore"
	"gatehouse.internal/lbcore/maglev"
	"gatehouse.internal/lbcore/ringhash"
	"gatehouse.internal/lbcore/roundrobin"
)

// explain explains a pick of the first slot.
func (c *cluster) explain(k lbcore.Key, want int) lbcore.Explanation {
	r := c.gate.Pin()
	defer r.Unpin()
	return c.slot(0).Explain(r, k, want)
}

// candidates returns who would be tried, in order.
func candidates(x lbcore.Explanation) []int {
	var is []int
	for order := 1; ; order++ {
		at := slices.IndexFunc(x.Steps, func(s lbcore.Step) bool { return s.Order == order })
		if at < 0 {
			return is
		}
		is = append(is, num(x.Steps[at].Member))
	}
}

// An explanation has the candidates of the pick that it explains, whoever is ready,
// degraded or overloaded.
func TestExplainIsPick(t *testing.T) {
	for _, policy := range policies {
		for _, bounded := range []uint32{0, 110} {
			t.Run(fmt.Sprintf("%s/%d", policy.name, bounded), func(t *testing.T) {
				keyed, ok := policy.b.(lbcore.Keyed)
				if !ok || !keyed.Keyed() {
					t.Skip("a key has no say")
				}
				c := (&cluster{builders: []lbcore.Builder{policy.b}, balance: bounded}).probed()
				c.spread.PanicThreshold = 40
				c = c.start(t)
				eps := make([]lbcore.Endpoint, 60)
				for i := range eps {
					eps[i] = with(ep(i), func(e *lbcore.Endpoint) { e.Priority, e.Weight = uint8(i%3), uint32(1+i%4) })
				}
				c.settle(lbcore.MustSet(eps...))
				for range 200 {
					for i := range eps {
						p := c.probes[addr(i)]
						p.Store([]lbcore.Health{lbcore.HealthHealthy, lbcore.HealthUnhealthy, lbcore.HealthDegraded}[rand.IntN(3)])
					}
					m := c.view.Snapshot().Member(rand.IntN(60))
					m.StartDial()
					c.group.UpdateLoads()
					k, want := hashKey(rand.Uint64()), 1+rand.IntN(8)
					x := c.explain(k, want)
					if got, pick := candidates(x), c.picks(0, k, want); !slices.Equal(got, pick) {
						t.Fatalf("explained %v, picked %v: %+v", got, pick, x)
					}
					if x.Generation != 1 || x.Key != k || !x.Keyed || x.Endpoints != 60 || len(x.Loads) != 3 {
						t.Fatalf("%+v", x)
					}
					for _, s := range x.Steps {
						if s.Verdict.Candidate() != (s.Order > 0) || s.Verdict == lbcore.VerdictNotReady && s.Member.Ready() {
							t.Fatalf("endpoint %d: %+v", num(s.Member), s)
						}
						if s.Weight != uint32(1+num(s.Member)%4) || s.Priority != uint8(num(s.Member)%3) {
							t.Fatalf("endpoint %d: %+v", num(s.Member), s)
						}
					}
				}
			})
		}
	}
}

// An explanation takes nobody's turn, and so foretells whose it is. Those who come
// after the first may be drawn.
func TestExplainChangesNothing(t *testing.T) {
	for name, weights := range map[string][]uint32{"equal": {1}, "schedule": {1, 3}, "rotation": {1, 1 << 20}} {
		t.Run(name, func(t *testing.T) {
			c := start(t, roundrobin.Config{})
			c.settle(span(0, 5, weights...))
			c.view.SetEnabled(addr(2), false)
			for range 50 {
				var all [][]int
				for range 3 {
					all = append(all, candidates(c.explain(lbcore.Key{}, 3)))
				}
				if pick := c.picks(0, lbcore.Key{}, 3); all[0][0] != pick[0] || all[2][0] != pick[0] {
					t.Fatalf("explained %v, picked %v", all, pick)
				}
			}
		})
	}
}

// What it came to and didn't take is told with the reason, and where it was.
func TestExplainWhy(t *testing.T) {
	for name, b := range map[string]lbcore.Builder{"ring": ringhash.Config{}, "ketama": ringhash.Config{Function: ringhash.Ketama}, "maglev": maglev.Config{TableSize: 1009}} {
		c := start(t, b)
		if x := c.explain(hashKey(1), 3); x.Generation != 0 || len(x.Steps) != 0 {
			t.Errorf("%s: nothing is built: %+v", name, x)
		}
		c.settle(span(0, 3))
		k := lbcore.StringKey("10.1.2.3")
		first := candidates(c.explain(k, 3))
		if err := c.view.SetEnabled(addr(first[0]), false); err != nil {
			t.Fatal(err)
		}
		x := c.explain(k, 1)
		s := x.Steps[0]
		if num(s.Member) != first[0] || s.Verdict != lbcore.VerdictNotReady || s.Verdict.String() != "not_ready" || s.Order != 0 || !s.Walk {
			t.Errorf("%s: the owner of the key: %+v", name, s)
		}
		if s.Site.Of < 480 || s.Site.Place >= s.Site.Of || s.Site.Hash == 0 {
			t.Errorf("%s: it is at %+v", name, s.Site)
		}
		switch name {
		case "ring": // the first point at or after the hash
			if s.Site.Hash < k.Hash && s.Site.Place != 0 {
				t.Errorf("the key %x leads to %+v", k.Hash, s.Site)
			}
		case "ketama":
			if s.Site.Hash < uint64(k.CRC) && s.Site.Place != 0 || s.Site.Hash > 1<<32 {
				t.Errorf("the key %x leads to %+v", k.CRC, s.Site)
			}
		case "maglev":
			if s.Site.Place != k.Hash%1009 {
				t.Errorf("the key %x leads to %+v", k.Hash, s.Site)
			}
		}
		if got := candidates(x); !slices.Equal(got, first[1:2]) {
			t.Errorf("%s: %v is taken, want the next of %v", name, got, first)
		}
	}
}

// However many there are, so many steps are told and no more, and the one who is
// ready is among them.
func TestExplainIsBounded(t *testing.T) {
	c := (&cluster{builders: []lbcore.Builder{ringhash.Config{}}}).probed().start(t)
	c.settle(span(0, 2000))
	for i := range 2000 {
		c.health(i == 1234, i)
	}
	for range 20 { // it may come early
		x := c.explain(hashKey(rand.Uint64()), 1)
		if got := candidates(x); len(x.Steps) > lbcore.MaxSteps && !x.More || len(x.Steps) > lbcore.MaxSteps+1 || !slices.Equal(got, []int{1234}) {
			t.Errorf("%d steps, more %t, %v is taken", len(x.Steps), x.More, got)
		}
	}
	c.health(false, 1234)
	if x := c.explain(hashKey(rand.Uint64()), 1); !x.More || len(x.Steps) != lbcore.MaxSteps || len(candidates(x)) != 0 {
		t.Errorf("nobody is ready: %d steps, more %t, %v is taken", len(x.Steps), x.More, candidates(x))
	}
}

func TestExplainNeedsAPin(t *testing.T) {
	c := start(t, ringhash.Config{})
	r := c.gate.NewReader("r")
	defer r.Close()
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	c.slot(0).Explain(r, lbcore.Key{}, 1)
}
