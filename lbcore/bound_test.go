package lbcore_test

import (
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"

	"gatehouse.internal/lbcore"
	"gatehouse.internal/lbcore/maglev"
	"gatehouse.internal/lbcore/ringhash"
	"gatehouse.internal/lbcore/roundrobin"
)

// bounded is a cluster of n endpoints with bounded load.
func bounded(t testing.TB, b lbcore.Builder, factor uint32, n int, weights ...uint32) *cluster {
	c := (&cluster{builders: []lbcore.Builder{b}, balance: factor}).probed().start(t)
	c.settle(span(0, n, weights...))
	return c
}

// connect opens n connections to endpoint i.
func (c *cluster) connect(i, n int) {
	for range n {
		c.member(i).StartDial()
		c.member(i).Connected()
	}
}

// Envoy's scenarios, with the next of the order in place of a shuffled one.
func TestBoundedLoad(t *testing.T) {
	for _, v := range []struct {
		what   string
		factor uint32
		active []int
		key    uint64
		want   []int
	}{
		{"nobody is loaded", 100, []int{0, 0, 0, 0, 0}, 2, []int{2, 3, 4, 0, 1}},
		{"the first is overloaded", 100, []int{0, 0, 4, 0, 0}, 2, []int{3, 4, 0, 1, 2}},
		{"three are", 100, []int{9, 9, 9, 0, 0}, 0, []int{3, 4, 0, 1, 2}},
		{"one at its bound is not", 100, []int{1, 1, 2, 1, 1}, 2, []int{2, 3, 4, 0, 1}}, // ⌈⌊(7·100+99)/100⌋·0.2⌉ = 2
		{"one above it is", 100, []int{1, 1, 3, 1, 1}, 2, []int{3, 4, 0, 1, 2}},
		{"not with more room", 200, []int{1, 1, 3, 1, 1}, 2, []int{2, 3, 4, 0, 1}},
		{"no bound", 0, []int{0, 0, 99, 0, 0}, 2, []int{2, 3, 4, 0, 1}},
		{"too small a factor counts as 100", 1, []int{1, 1, 2, 1, 1}, 2, []int{2, 3, 4, 0, 1}},
		{"an empty cluster has one place each", 100, []int{1, 1, 0, 0, 0}, 0, []int{0, 1, 2, 3, 4}},
	} {
		c := bounded(t, order{}, v.factor, 5)
		for i, n := range v.active {
			c.connect(i, n)
		}
		equal(t, v.what, c.picks(0, hashKey(v.key), 8), v.want)
		equal(t, v.what+", one", c.picks(0, hashKey(v.key), 1), v.want[:1])
	}

	// Where all that are ready are overloaded: the least loaded, by its weight.
	c := bounded(t, order{}, 100, 4, 1, 1, 1, 7)
	c.connect(0, 4)
	c.connect(1, 3)
	c.connect(2, 4)
	c.health(false, 3)
	equal(t, "all are overloaded", c.picks(0, hashKey(2), 8), []int{1, 2, 0})
	c = bounded(t, order{}, 100, 3, 1, 3, 6)
	c.health(false, 2)
	c.connect(0, 5)  // of 2
	c.connect(1, 10) // of 5
	equal(t, "by weight", c.picks(0, hashKey(0), 1), []int{1})
}

// Shares are those in the priority; connections are the cluster's.
func TestBoundedLoadInPriorities(t *testing.T) {
	c := (&cluster{builders: []lbcore.Builder{order{}}, balance: 100}).probed().start(t)
	low := func(e *lbcore.Endpoint) { e.Priority = 1 }
	c.settle(lbcore.MustSet(ep(0), ep(1), with(ep(10), low), with(ep(11), low)))
	c.connect(0, 4)
	c.connect(10, 2)
	equal(t, "at its bound", c.picks(0, hashKey(0), 1), []int{0}) // ⌈7/2⌉ = 4
	c.connect(0, 1)
	equal(t, "above it", c.picks(0, hashKey(0), 8), []int{1, 0, 10, 11})
}

func TestBoundedLoadIsForHashPolicies(t *testing.T) {
	c := bounded(t, roundrobin.Config{Start: func() uint64 { return 0 }}, 100, 2)
	c.connect(0, 50)
	equal(t, "picked", append(c.picks(0, lbcore.Key{}, 1), c.picks(0, lbcore.Key{}, 1)...), []int{0, 1})
}

// Ten thousand keys, half of them one, and nobody above its bound.
func TestBoundsHold(t *testing.T) {
	for _, b := range []lbcore.Builder{ringhash.Config{}, maglev.Config{TableSize: 1009}, ringhash.Config{Function: ringhash.Ketama}} {
		for _, factor := range []uint32{100, 125, 200} {
			t.Run(fmt.Sprintf("%T/%d", b, factor), func(t *testing.T) {
				weights := []uint32{1, 2, 3}
				c := bounded(t, b, factor, 12, weights...) // the sum of weights is 24
				counts := make([]int, 12)
				for i := range uint64(10000) {
					k := hashKey(lbcore.Mix(i))
					if i%2 == 0 {
						k = hashKey(lbcore.Mix(7))
					}
					p := c.pick(0, k, 1)
					m := p.Next()
					x := num(m)
					m.StartDial()
					if i%3 != 0 {
						m.Connected()
					}
					counts[x]++
					all := (i+1)*uint64(factor) + 99
					due := math.Ceil(float64(all/100) * float64(weights[x%3]) / 24)
					if float64(counts[x]) > max(1, due)+1 {
						t.Fatalf("endpoint %d has %d of %d connections, is due %.0f", x, counts[x], i+1, due)
					}
				}
				// The hot key has filled its first endpoint up to the bound.
				p := c.pick(0, hashKey(lbcore.Mix(7)), 1)
				if x := num(p.Next()); counts[x] == 0 || slices.Max(counts) < 10000*int(factor)/100/24 {
					t.Errorf("counts are %v", counts)
				}
			})
		}
	}
}

// The total is exact, also when counting begins while connections come and go.
func TestCountingBeginsAnyTime(t *testing.T) {
	c := (&cluster{builders: []lbcore.Builder{order{}}}).start(t)
	c.settle(set(0, 1))
	c.connect(0, 3)
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for i := range 2 {
		m := c.member(i)
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					m.StartDial()
					m.Connected()
					m.Closed(0, 0)
				}
			}
		})
	}
	lbcore.NewGroup(lbcore.GroupConfig{View: c.view, Gate: c.gate, Slots: []lbcore.SlotConfig{{Builder: order{}, BalanceFactor: 100}}})
	c.settle(set(0, 1, 2))
	c.connect(2, 2)
	close(stop)
	wg.Wait()
	if n := c.view.Total(); n != 5 || c.member(0).Active() != 3 || c.member(2).Active() != 2 {
		t.Errorf("%d connections in all, %d and %d of two", n, c.member(0).Active(), c.member(2).Active())
	}
}
