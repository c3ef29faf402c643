package lbcore_test

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"

	"gatehouse.internal/lbcore"
	"gatehouse.internal/lbcore/maglev"
	"gatehouse.internal/lbcore/ringhash"
)

// Faults of other load balancers that a new one is likely to repeat, as far as no
// test elsewhere shows them. Their numbers are those of xds/BUGS.md.

// bug 24: a hash policy is built anew when the membership changes, and its keys
// leave a locality that has nobody left.
func TestHashFollowsMembershipAndLocalities(t *testing.T) {
	for name, b := range map[string]lbcore.Builder{"ring_hash": ringhash.Config{}, "maglev": maglev.Config{}} {
		for _, weighted := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				c := (&cluster{builders: []lbcore.Builder{b}, spread: lbcore.Spread{LocalityWeighted: weighted}}).probed().start(t)
				what := fmt.Sprint(name, ", weighted ", weighted, ": ")
				c.settle(lbcore.MustSet(in(0, "a", 1), in(1, "a", 1), in(2, "b", 1)))
				equal(t, what+"three", c.seen(0), []int{0, 1, 2})
				c.settle(lbcore.MustSet(in(0, "a", 1), in(1, "a", 1), in(2, "b", 1), in(3, "b", 1)))
				equal(t, what+"one has come", c.seen(0), []int{0, 1, 2, 3})
				c.settle(lbcore.MustSet(in(1, "a", 1), in(2, "b", 1), in(3, "b", 1)))
				equal(t, what+"one has left", c.seen(0), []int{1, 2, 3})
				c.health(false, 2, 3)
				c.group.UpdateLoads()
				equal(t, what+"a locality is down", c.seen(0), []int{1})
				c.health(true, 3)
				c.group.UpdateLoads()
				equal(t, what+"one of it is back", c.seen(0), []int{1, 3})
			})
		}
	}
}

// bug 26: keys of a host that failed are its own again as soon as it is back,
// whoever else failed meanwhile: no connection has to be tried first.
func TestHashComesBack(t *testing.T) {
	for name, b := range map[string]lbcore.Builder{"ring_hash": ringhash.Config{}, "maglev": maglev.Config{}} {
		synctest.Test(t, func(t *testing.T) {
			c := (&cluster{builders: []lbcore.Builder{b}}).probed().start(t)
			c.settle(span(0, 4))
			owners := func() (is []int) {
				for h := range uint64(400) {
					is = append(is, c.picks(0, hashKey(lbcore.Mix(h)), 1)...)
				}
				return is
			}
			before := owners()
			c.health(false, 0, 1, 2, 3)
			if got := c.seen(0); len(got) != 0 {
				t.Errorf("%s: %v are picked of none", name, got)
			}
			for i := range 4 {
				c.health(true, i)
				if got := c.seen(0); !slices.Equal(got, []int{0, 1, 2, 3}[:i+1]) {
					t.Errorf("%s: %v are picked of the first %d", name, got, i+1)
				}
			}
			if !slices.Equal(owners(), before) {
				t.Errorf("%s: keys have moved", name)
			}
		})
	}
}

// bug 35: an endpoint that drains takes no connection in a panic either, whatever
// its probes say.
func TestPanicSparesDraining(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := (&cluster{builders: []lbcore.Builder{order{}}, spread: lbcore.Spread{PanicThreshold: 50}}).probed().start(t)
		drains := func(i int) lbcore.Endpoint {
			return with(ep(i), func(e *lbcore.Endpoint) { e.Status = lbcore.StatusDraining })
		}
		c.settle(lbcore.MustSet(ep(0), ep(1), ep(2), drains(3), drains(4)))
		c.health(false, 0, 1, 2, 3)
		c.group.UpdateLoads()
		equal(t, "all others are down", c.seen(0), []int{0, 1, 2})
		c.settle(lbcore.MustSet(drains(3), drains(4)))
		c.group.UpdateLoads()
		equal(t, "all drain", c.seen(0), nil)
	})
}
