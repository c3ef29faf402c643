package lbcore_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"gatehouse.internal/lbcore"
)

// weightings are the weights that every pick has to hold for.
var weightings = map[string][]uint32{"equal": {1}, "unequal": {1, 7, 100}}

// eachPolicy runs f for every policy, weighting and size.
func eachPolicy(t *testing.T, sizes []int, f func(t *testing.T, c *cluster, n int)) {
	for _, policy := range policies {
		for name, weights := range weightings {
			for _, n := range sizes {
				t.Run(fmt.Sprintf("%s/%s/%d", policy.name, name, n), func(t *testing.T) {
					c := (&cluster{builders: []lbcore.Builder{policy.b}}).probed().start(t)
					c.settle(span(0, n, weights...))
					f(t, c, n)
				})
			}
		}
	}
}

// keys are some keys; every other one is the zero Key.
func keys(n int) (ks []lbcore.Key) {
	for i := range n {
		ks = append(ks, lbcore.Key{})
		if i%2 == 0 {
			ks[i] = hashKey(rand.Uint64())
		}
	}
	return ks
}

func TestTheOneAcceptableIsAlwaysFound(t *testing.T) {
	eachPolicy(t, []int{1, 2, 3, 50, 200, 1000}, func(t *testing.T, c *cluster, n int) {
		for i := range n {
			c.health(false, i)
		}
		for range 5 {
			one := rand.IntN(n)
			c.health(true, one)
			for _, k := range keys(12) {
				for _, want := range []int{1, 3} {
					if got := c.picks(0, k, want); !slices.Equal(got, []int{one}) {
						t.Fatalf("only %d is ready: picked %v", one, got)
					}
				}
			}
			c.health(false, one)
		}
		// None is explicit.
		for _, k := range keys(20) {
			if p := c.pick(0, k, 8); p.Len() != 0 || p.Next() != nil || p.Generation() != 1 {
				t.Fatalf("nobody is ready: %d candidates", p.Len())
			}
		}
	})
}

func TestTheOneAcceptableIsFoundAmongFlips(t *testing.T) {
	eachPolicy(t, []int{2, 3, 50, 200}, func(t *testing.T, c *cluster, n int) {
		one := rand.IntN(n)
		stop := make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() {
			for up := false; ; up = !up {
				for i := range n {
					if i != one {
						c.health(up, i)
					}
				}
				select {
				case <-stop:
					return
				default:
				}
			}
		})
		var pickers sync.WaitGroup
		for range 2 {
			pickers.Go(func() {
				r := c.gate.NewReader("r")
				defer r.Close()
				for _, k := range keys(300) {
					r.Pin()
					p := c.slot(0).Pick(r, k, 1)
					r.Unpin()
					if p.Len() != 1 {
						t.Errorf("%d is ready: picked none", one)
					}
				}
			})
		}
		pickers.Wait()
		close(stop)
		wg.Wait()
	})
}

// A selection has each endpoint at most once, and as many as are wanted and
// ready.
func TestPicksAreDistinct(t *testing.T) {
	eachPolicy(t, []int{1, 2, 7, 9, 200}, func(t *testing.T, c *cluster, n int) {
		for _, down := range []int{0, n / 2, max(0, n-3), n} {
			ready := make(map[int]bool)
			for i := range n {
				ready[i] = i >= down
				c.health(i >= down, i)
			}
			for want, most := range map[int]int{-1: 1, 0: 1, 1: 1, 2: 2, 3: 3, 8: 8, 9: 8, 1 << 30: 8} {
				for _, k := range keys(8) {
					p := c.pick(0, k, want)
					length, got := p.Len(), nums(&p)
					seen := make(map[int]bool)
					for _, i := range got {
						if seen[i] || !ready[i] {
							t.Fatalf("%d wanted, %d of %d down: picked %v", want, down, n, got)
						}
						seen[i] = true
					}
					if len(got) != min(most, n-down) || length != len(got) || p.Len() != length {
						t.Fatalf("%d wanted, %d of %d down: picked %v", want, down, n, got)
					}
				}
			}
		}
	})
}

func TestNextChecksAgain(t *testing.T) {
	c := (&cluster{builders: []lbcore.Builder{order{}}}).probed().start(t)
	c.settle(set(0, 1, 2, 3))
	p := c.pick(0, hashKey(0), 4)
	c.health(false, 0, 2)
	if m := p.Next(); num(m) != 1 {
		t.Errorf("first %d", num(m))
	}
	c.health(true, 2)
	c.health(false, 3)
	equal(t, "then", nums(&p), []int{2})
	if p.Next() != nil || p.Len() != 4 {
		t.Error("the end is not the end")
	}
	var zero lbcore.Picks
	if zero.Next() != nil || zero.Len() != 0 || zero.Generation() != 0 {
		t.Error("the zero Picks is not empty")
	}
}

// bug 17: a set of nothing but zero weights has no host, and divides by nothing.
func TestUnroutableIsNeverPicked(t *testing.T) {
	eachPolicy(t, []int{12}, func(t *testing.T, c *cluster, _ int) {
		var eps []lbcore.Endpoint
		for i := range 14 { // each status, then each with weight 0
			e := with(ep(i), func(e *lbcore.Endpoint) { e.Status = lbcore.Status(i % 7) })
			if i >= 7 {
				e.Weight = 0
			}
			eps = append(eps, e)
		}
		c.settle(lbcore.MustSet(eps...))
		want := []int{int(lbcore.StatusUnknown), int(lbcore.StatusHealthy), int(lbcore.StatusDegraded)}
		for _, k := range keys(50) {
			got := c.picks(0, k, 8)
			slices.Sort(got)
			equal(t, "picked", got, want)
		}
		// All of weight 0: nothing to build from, and nothing picked.
		c.settle(span(0, 5, 0))
		if p := c.pick(0, lbcore.Key{}, 8); p.Len() != 0 || p.Generation() != 3 {
			t.Errorf("%d candidates of weight 0", p.Len())
		}
	})
}

func TestZeroKeySpreads(t *testing.T) {
	c := start(t, order{})
	c.settle(span(0, 10))
	counts := make([]int, 10)
	for range 5000 {
		counts[c.picks(0, lbcore.Key{}, 1)[0]]++
	}
	for i, n := range counts {
		if n < 350 || n > 650 {
			t.Errorf("endpoint %d got %d of 5000", i, n)
		}
	}
}

// A pick allocates nothing: pinned or not, found along the walk, by the
// permutation or not at all.
func TestPickAllocatesNothing(t *testing.T) {
	eachPolicy(t, []int{3, 1000}, func(t *testing.T, c *cluster, n int) {
		r := c.gate.NewReader("r")
		s := c.slot(0)
		k := hashKey(1)
		check := func(what string) {
			t.Helper()
			var p lbcore.Picks
			if a := testing.AllocsPerRun(12, func() {
				k.Hash += 0x9e3779b97f4a7c15
				r.Pin()
				p = s.Pick(r, k, 3)
				r.Unpin()
				for m := p.Next(); m != nil; m = p.Next() {
					m.StartDial()
					m.Connected()
					m.Closed(1, 1)
				}
				g := c.gate.Pin()
				p = s.Pick(g, lbcore.Key{}, 1)
				g.Unpin()
			}); a != 0 {
				t.Errorf("%s: %v allocations", what, a)
			}
		}
		check("all ready")
		for i := range n - 1 {
			c.health(false, i)
		}
		check("one ready")
		c.health(false, n-1)
		check("none ready")
	})
	b := []byte("192.0.2.1")
	if a := testing.AllocsPerRun(12, func() { _ = lbcore.BytesKey(b) }); a != 0 {
		t.Errorf("a key: %v allocations", a)
	}
}

func TestPermutationVisitsEachOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.Uint64Range(1, 2000).Draw(t, "n")
		x, stride := lbcore.Permutation(rapid.Uint64().Draw(t, "seed"), n)
		if x >= n || stride == 0 && n > 1 || stride > n {
			t.Fatalf("start %d, stride %d", x, stride)
		}
		seen := make([]bool, n)
		for range n {
			if seen[x] {
				t.Fatalf("%d comes twice", x)
			}
			seen[x] = true
			if x += stride; x >= n {
				x -= n
			}
		}
	})
	// Near the largest set: no long search for a stride.
	for n := uint64(lbcore.MaxEndpoints - 100); n <= lbcore.MaxEndpoints; n++ {
		if x, stride := lbcore.Permutation(rand.Uint64(), n); x >= n || stride >= n || stride == 0 {
			t.Fatalf("of %d: start %d, stride %d", n, x, stride)
		}
	}
}
