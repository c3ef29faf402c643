package lbcore_test

import (
	"fmt"
	"math"
	"testing"
	"time"

	"gatehouse.internal/lbcore"
	"gatehouse.internal/lbcore/adaptive"
	"gatehouse.internal/lbcore/leastweight"
	"gatehouse.internal/lbcore/random"
	"gatehouse.internal/lbcore/ringhash"
	"gatehouse.internal/lbcore/roundrobin"
)

// slowly is a cluster with slow start, and the time that passes for it.
type slowly struct {
	*cluster
	now time.Time
}

func startSlowly(t *testing.T, s lbcore.SlowStart, b lbcore.Builder) *slowly {
	c := &cluster{builders: []lbcore.Builder{b}}
	c.config.SlowStart = s
	return &slowly{c.probed().start(t), time.Unix(1e9, 0)}
}

// warm lets d pass and calls Warm.
func (s *slowly) warm(d time.Duration) (again bool) {
	s.now = s.now.Add(d)
	return s.view.Warm(s.now)
}

// expect checks the shares of endpoints 0, 1 and so on.
func (s *slowly) expect(what string, shares ...float64) {
	s.t.Helper()
	for i, want := range shares {
		if got := s.member(i).SlowStart(); math.Abs(got-want) > 1e-6 {
			s.t.Errorf("%s: endpoint %d has %.6f, want %.6f", what, i, got, want)
		}
	}
}

func TestSlowStartTimes(t *testing.T) {
	for _, v := range []struct {
		s    lbcore.SlowStart
		at   time.Duration
		want float64
	}{
		// Envoy's published ones.
		{lbcore.SlowStart{Window: time.Minute, MinWeight: 0.1}, 5 * time.Second, 0.1},
		{lbcore.SlowStart{Window: 10 * time.Second, Aggression: 0.9, MinWeight: 0.1}, 7 * time.Second, math.Pow(0.7, 1/0.9)},

		{lbcore.SlowStart{Window: time.Minute, MinWeight: 0.1}, 0, 0.1},
		{lbcore.SlowStart{Window: time.Minute}, 30 * time.Second, 0.5},
		{lbcore.SlowStart{Window: time.Minute, Aggression: 2}, 15 * time.Second, 0.5},
		{lbcore.SlowStart{Window: time.Minute}, 0, 1.0 / 60000}, // of 1 ms
		{lbcore.SlowStart{Window: time.Minute, MinWeight: 0.1}, time.Minute, 1},
		{lbcore.SlowStart{Window: time.Minute, MinWeight: 7}, 0, 1},
		{lbcore.SlowStart{Window: time.Minute, MinWeight: -7, Aggression: -3}, 30 * time.Second, 0.5},
		{lbcore.SlowStart{Window: time.Minute, Aggression: math.NaN(), MinWeight: 0.1}, 30 * time.Second, 0.5},
		{lbcore.SlowStart{Window: time.Minute, Aggression: 1e-9, MinWeight: 0.1}, 30 * time.Second, 0.1},
		{lbcore.SlowStart{Window: time.Millisecond, MinWeight: 0.1}, 0, 1},
		{lbcore.SlowStart{MinWeight: 0.1}, 0, 1},
	} {
		s := startSlowly(t, v.s, roundrobin.Config{})
		s.settle(set(0)) // has all of its weight when 1 joins
		s.warm(0)
		s.warm(time.Hour)
		s.settle(set(0, 1))
		s.warm(0)
		again := s.warm(v.at)
		s.expect(fmt.Sprintf("%+v after %v", v.s, v.at), 1, v.want)
		if again != (v.want < 1) {
			t.Errorf("%+v after %v: again is %v", v.s, v.at, again)
		}
	}
}

func TestSlowStartBeginsWithHealth(t *testing.T) {
	s := startSlowly(t, lbcore.SlowStart{Window: 10 * time.Second, MinWeight: 0.1}, roundrobin.Config{})
	if s.warm(0) {
		t.Error("nobody is slow of none")
	}
	// What starts as a whole is not slowed, but still on its way.
	s.settle(set(0, 1, 2))
	if !s.warm(0) {
		t.Error("nobody is on its way")
	}
	s.expect("together", 1, 1, 1)
	s.warm(5 * time.Second)
	s.settle(set(0, 1, 2, 3))
	s.warm(0)
	s.expect("a newcomer", 1, 1, 1, 0.2) // 0.1 beside 0.5
	s.warm(4 * time.Second)
	s.expect("later", 1, 1, 1, 4.0/9)
	if s.warm(time.Second); s.member(0).SlowStart() != 1 {
		t.Error("at the end of the window")
	}
	if s.warm(5 * time.Second) {
		t.Error("again, though all have ended")
	}
	s.expect("all", 1, 1, 1, 1)

	// A failed one begins anew, and with the least before any Warm.
	s.health(false, 1)
	s.warm(0)
	s.health(true, 1)
	s.expect("up again", 1, 0.1, 1, 1)
	s.warm(time.Second)
	s.warm(5 * time.Second)
	s.expect("5 s after", 1, 0.5, 1, 1)
	// Neither the operator nor an ejection begins it anew.
	s.view.SetEnabled(addr(0), false)
	s.member(2).SetEjected(true)
	s.warm(0)
	s.view.SetEnabled(addr(0), true)
	s.member(2).SetEjected(false)
	s.warm(time.Second)
	s.expect("enabled", 1, 0.6, 1, 1)
	// Discovery's status and absence do.
	s.settle(lbcore.MustSet(with(ep(0), func(e *lbcore.Endpoint) { e.Status = lbcore.StatusUnhealthy }), ep(1), ep(2)))
	s.warm(0)
	s.settle(set(0, 1, 2, 3))
	s.warm(0)
	s.expect("routable and back", 0.1, 0.6, 1, 0.1)
	// The largest among the ready is the measure.
	s.health(false, 2)
	s.warm(0)
	s.expect("without the one that is warm", 0.1/0.6, 1, 0.1/0.6, 0.1/0.6)
	s.view.SetEnabled(addr(1), false)
	s.warm(0)
	s.expect("and the next", 1, 1, 1, 1)
}

// Shares of the load are in proportion to the weight and the time.
//
// bug 28: who starts slowly neither starves nor floods.
func TestSlowStartShares(t *testing.T) {
	equal, unequal := []uint32{1, 1, 1, 1}, []uint32{4, 2, 1, 1}
	for _, v := range []struct {
		name    string
		b       lbcore.Builder
		weights []uint32
	}{
		{"random", random.Config{}, equal},
		{"random weighted", random.Config{}, unequal},
		{"round_robin", roundrobin.Config{}, equal},
		{"round_robin weighted", roundrobin.Config{}, unequal},
		{"adaptive", adaptive.Config{}, equal},
		{"least_weight weighted without bias", leastweight.Config{Bias: new(float64)}, unequal},
	} {
		for _, f := range []float64{0.1, 0.5, 0.9} {
			s := startSlowly(t, lbcore.SlowStart{Window: 100 * time.Second, MinWeight: 0.1}, v.b)
			s.settle(span(1, 3, v.weights[1:]...))
			s.warm(0)
			s.warm(time.Hour)
			eps := []lbcore.Endpoint{with(ep(0), func(e *lbcore.Endpoint) { e.Weight = v.weights[0] })}
			for i := range 3 {
				eps = append(eps, with(ep(i+1), func(e *lbcore.Endpoint) { e.Weight = v.weights[i+1] }))
			}
			s.settle(lbcore.MustSet(eps...))
			s.warm(0)
			s.warm(time.Duration(f * float64(100*time.Second)))
			s.expect(v.name, f, 1, 1, 1)
			const n = 40000
			counts, sum := make([]float64, 4), 0.0
			for i := range uint64(n) {
				p := s.slot(0).PickHash(lbcore.Mix(i), 1)
				counts[num(p.Next())]++
			}
			for i, w := range v.weights {
				if sum += float64(w); i == 0 {
					sum *= f
				}
			}
			for i, w := range v.weights {
				want := n * float64(w) / sum
				if i == 0 {
					want *= f
				}
				near(t, fmt.Sprintf("%s at %v, endpoint %d", v.name, f, i), counts[i], want, 0.01*n+0.03*want)
			}
		}
	}
}

// Whoever is slow is passed over, but found where nobody else is.
func TestSlowStartNeverHides(t *testing.T) {
	for _, b := range []lbcore.Builder{random.Config{}, roundrobin.Config{}, leastweight.Config{}} {
		s := startSlowly(t, lbcore.SlowStart{Window: time.Hour}, b)
		s.settle(lbcore.MustSet(ep(0), with(ep(9), func(e *lbcore.Endpoint) { e.Priority = 1 })))
		s.warm(0)
		s.warm(2 * time.Hour)
		s.health(false, 0)
		s.warm(0)
		s.health(true, 0) // has 1/3,600,000 of its weight
		s.group.UpdateLoads()
		for range 100 {
			equal(t, "picked", s.picks(0, lbcore.Key{}, 8), []int{0, 9})
		}
	}
}

// The hash policies know no slow start.
func TestSlowStartLeavesKeysInPlace(t *testing.T) {
	s := startSlowly(t, lbcore.SlowStart{Window: time.Hour}, ringhash.Config{})
	s.settle(span(0, 4))
	s.warm(0)
	s.warm(2 * time.Hour)
	before := s.firsts(400)
	s.health(false, 0)
	s.warm(0)
	s.health(true, 0)
	s.warm(0)
	equal(t, "keys", s.firsts(400), before)
}

// firsts returns which endpoint each of n keys gets first.
func (c *cluster) firsts(n int) (is []int) {
	for i := range uint64(n) {
		is = append(is, c.picks(0, hashKey(lbcore.Mix(i)), 1)...)
	}
	return is
}
