package adaptive

import (
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"gatehouse.internal/lbcore"
	"gatehouse.internal/lbcore/lbtest"
)

// world is a View whose membership changes, with a selector that is rebuilt.
// All that is random in it comes from one generator, so each run is the same.
type world struct {
	t    testing.TB
	cfg  Config
	rng  *rand.Rand
	view *lbcore.View
	in   lbcore.Input
	s    *Selector
}

func newWorld(t testing.TB, rank Rank) *world {
	w := &world{t: t, rng: rand.New(rand.NewPCG(1, 2))}
	w.cfg = Config{Rank: rank, Rand: w.rng.Uint64}
	w.view = lbcore.NewView("c", new(lbcore.Hosts), lbcore.ViewConfig{})
	return w
}

// endpoint returns the endpoint of that number, of weight 1. Numbers are in the
// order of addresses.
func endpoint(i int) lbcore.Endpoint {
	ip := netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
	return lbcore.Endpoint{Addr: lbcore.IPAddr(netip.AddrPortFrom(ip, 80)), Weight: 1}
}

// become makes eps the membership, and builds the selector of those of priority
// 0.
func (w *world) become(eps ...lbcore.Endpoint) *world {
	w.t.Helper()
	snap, _ := w.view.Update(lbcore.MustSet(eps...))
	w.view.Sweep(math.MaxUint64)
	w.in = lbcore.Input{}
	sum := 0.0
	for _, e := range snap.Set.All() {
		if e.Priority == 0 {
			sum += float64(e.Weight)
		}
	}
	for i, e := range snap.Set.All() {
		if e.Priority == 0 {
			w.in.Members = append(w.in.Members, snap.Member(i))
			w.in.Endpoints = append(w.in.Endpoints, snap.Member(i).Endpoint())
			w.in.Shares = append(w.in.Shares, float64(e.Weight)/sum)
		}
	}
	w.s = lbtest.Build(w.t, w.cfg, w.in).(*Selector)
	return w
}

// span makes the endpoints from number 0 up to n the membership.
func (w *world) span(n int) *world {
	w.t.Helper()
	var eps []lbcore.Endpoint
	for i := range n {
		eps = append(eps, endpoint(i))
	}
	return w.become(eps...)
}

// store gives the members these weights, in whole numbers, and has the selector
// see them.
func (w *world) store(weights ...uint64) *world {
	for i, weight := range weights {
		w.in.Members[i].AdaptiveWeight().Store(weight * One)
	}
	for i := range w.s.members {
		w.s.correct(i)
	}
	return w
}

func (w *world) weights() (whole []float64) {
	for _, m := range w.in.Members {
		whole = append(whole, Weight(m))
	}
	return whole
}

// run makes n connections one after the other and returns the members' shares
// of them. latency says how long one takes, in microseconds; a negative one
// fails.
func (w *world) run(n int, latency func(i int) int) []float64 {
	got := make([]float64, w.s.Len())
	for range n {
		i := w.s.Pick()
		got[i] += 1 / float64(n)
		if l := latency(i); l >= 0 {
			w.cfg.Observe(w.in.Members[i], uint64(l))
		} else {
			Failed(w.in.Members[i])
		}
	}
	return got
}

// explored returns the shares that members of these weights get, explored ones
// included, if discovery's are the same.
func explored(weights ...float64) (shares []float64) {
	sum := 0.0
	for _, x := range weights {
		sum += x
	}
	for _, x := range weights {
		shares = append(shares, x/sum*(Explore-1)/Explore+1/float64(len(weights))/Explore)
	}
	return shares
}

func near(t testing.TB, what string, got, want []float64, within float64) {
	t.Helper()
	off := func(i int) bool { return math.Abs(got[i]-want[i]) > within }
	if len(got) != len(want) || slices.ContainsFunc(indices(len(want)), off) {
		t.Errorf("%s: shares %.3f, want %.3f", what, got, want)
	}
}

func indices(n int) (is []int) {
	for i := range n {
		is = append(is, i)
	}
	return is
}

// balanced reports what is wrong with the sums of a selector that nobody uses.
func balanced(t interface{ Fatalf(string, ...any) }, s *Selector) {
	levels := s.sums.levels
	for l, level := range levels[1:] {
		for i, above := range levels[l] {
			sum := uint64(0)
			for _, v := range level[i*fanOut : min((i+1)*fanOut, len(level))] {
				sum += v
			}
			if sum != above {
				t.Fatalf("level %d: sum %d is %d, those below have %d", l, i, above, sum)
			}
		}
	}
	sum := uint64(0)
	for _, v := range levels[0] {
		sum += v
	}
	if sum != s.sums.total() || sum == 0 {
		t.Fatalf("the total is %d, the sum %d", s.sums.total(), sum)
	}
}
