package roundrobin

import (
	"errors"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"gatehouse.internal/lbcore"
	"gatehouse.internal/lbcore/lbtest"
)

// rotate builds a rotation, also where a schedule would do.
func rotate(t testing.TB, in lbcore.Input) *rotation {
	w, err := newWeights(in, new(lbcore.Pacer))
	if err != nil {
		t.Fatal(err)
	}
	n := len(in.Members)
	st := &lbcore.Storage{U64: make([]uint64, n), U32: make([]uint32, n+1)}
	for i := range st.U32 {
		st.U32[i] = 0xbad << 20
	}
	s, err := newRotation(tickets{cycle: w.sum, inverse: math.MaxUint64 / w.sum, cursor: new(cursor)}, w, st, new(lbcore.Pacer))
	if err != nil {
		t.Fatal(err)
	}
	return s.(*rotation)
}

// stray returns how far the turns of a member stray from its part at most, over
// a cycle from a ticket on; each must have exactly its weight in it.
func stray(t interface{ Fatalf(string, ...any) }, s lbcore.Selector, weights []uint64, from uint64) (most float64) {
	sum := uint64(0)
	for _, w := range weights {
		sum += w
	}
	counts := make([]uint64, len(weights))
	for ticket := range sum {
		i, next := s.Next(lbcore.Key{}, from+ticket)
		if next != from+ticket+1 {
			t.Fatalf("after %d comes %d", from+ticket, next)
		}
		part := float64(weights[i]) / float64(sum)
		most = max(most, math.Abs(float64(counts[i])-float64(ticket)*part))
		counts[i]++
		most = max(most, math.Abs(float64(counts[i])-float64(ticket+1)*part))
	}
	if !slices.Equal(counts, weights) {
		t.Fatalf("a cycle of %v gives %v", weights, counts)
	}
	return most
}

// In each cycle, wherever it begins, each has exactly its weight of turns, and at
// any time from a cycle's beginning on it is within a turn of its part; in a
// long cycle, within a few.
func TestEachCycleIsExact(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		weights := rapid.SliceOfN(rapid.OneOf(rapid.Uint32Range(1, 10), rapid.Uint32Range(1, 500)), 2, 30).Draw(rt, "weights")
		factor := rapid.SampledFrom([]uint32{1, 2, 1000}).Draw(rt, "factor")
		common := uint64(0)
		for _, w := range weights {
			common = gcd(uint64(w), common)
		}
		var given []uint32
		var reduced []uint64
		for _, w := range weights {
			given, reduced = append(given, w*factor), append(reduced, uint64(w)/common)
		}
		in := lbtest.Input(t, given...)
		from := rapid.Uint64Range(0, 1<<40).Draw(rt, "from")
		if s, ok := lbtest.Build(t, Config{}, in).(*schedule); ok {
			if most := stray(rt, s, reduced, from); most >= 2 {
				rt.Fatalf("within a schedule of %v strays by %.2f", reduced, most)
			}
			if most := stray(rt, s, reduced, from-from%s.cycle); most >= 1 {
				rt.Fatalf("a schedule of %v strays by %.2f", reduced, most)
			}
		}
		if slices.Min(reduced) == slices.Max(reduced) {
			return
		}
		r := rotate(t, in)
		if most := stray(rt, r, reduced, from); most > 4 {
			rt.Fatalf("a rotation of %v strays by %.2f", reduced, most)
		}
		plain := 0 // member of a place
		for place := range r.cycle {
			if place == r.ends[plain] {
				plain++
			}
			// The ticket that points there is place / step, modulo the cycle.
			if place%97 == 0 {
				ticket := place * inverse(r.step, r.cycle) % r.cycle
				if i, _ := r.Next(lbcore.Key{}, ticket); i != plain {
					rt.Fatalf("place %d of %v is of %d, want %d", place, reduced, i, plain)
				}
			}
		}
	})
}

// inverse returns the number that times a is 1 modulo m.
func inverse(a, m uint64) uint64 {
	x, y, b := int64(1), int64(0), m
	for b != 0 {
		q := int64(a / b)
		a, b = b, a%b
		x, y = y, x-q*y
	}
	return uint64((x%int64(m) + int64(m)) % int64(m))
}

// Envoy's EDF sequences, over a cycle: weights 1 and 2; 1, 6 and 3; and 1 and 2
// among equals.
func TestEnvoysShares(t *testing.T) {
	for _, weights := range [][]uint64{{1, 2}, {1, 6, 3}, {1, 2, 1, 1}} {
		var given []uint32
		for _, w := range weights {
			given = append(given, uint32(w))
		}
		s := lbtest.Build(t, Config{}, lbtest.Input(t, given...))
		for from := range uint64(20) {
			if most := stray(t, s, weights, from); most >= 1.5 {
				t.Errorf("%v strays by %.2f", weights, most)
			}
		}
	}
}

// One heavy endpoint among many light ones: each of the light ones has its one
// turn in a cycle, and they come evenly, one after every hundred or so.
func TestExtremeWeights(t *testing.T) {
	given := slices.Repeat([]uint32{1}, 10_000)
	given[77] = 1 << 20
	var weights []uint64
	for _, w := range given {
		weights = append(weights, uint64(w))
	}
	s, ok := lbtest.Build(t, Config{}, lbtest.Input(t, given...)).(*rotation)
	if !ok {
		t.Fatal("a cycle of a million is written down")
	}
	if most := stray(t, s, weights, 12345); most > 4 {
		t.Errorf("somebody strays by %.2f", most)
	}
	row := 0
	for ticket := range s.cycle {
		if i, _ := s.Next(lbcore.Key{}, ticket); i == 77 {
			row++
			continue
		}
		if row > 300 {
			t.Fatalf("%d turns in a row", row)
		}
		row = 0
	}
}

// The largest weights there are: sums beyond 2^32, a cycle that nobody sees the
// end of.
//
// bug 19: the sum of weights is beyond 32 bits.
func TestSumsBeyond32Bits(t *testing.T) {
	given := slices.Repeat([]uint32{math.MaxUint32, math.MaxUint32 - 1, 1}, 1000)
	s := lbtest.Build(t, Config{}, lbtest.Input(t, given...)).(*rotation)
	if want := uint64(2*math.MaxUint32) * 1000; s.cycle != want || gcd(s.step, s.cycle) != 1 {
		t.Errorf("a cycle of %d, want %d, by %d", s.cycle, want, s.step)
	}
	counts := make([]int, 3000)
	for ticket := range uint64(2000 * 100) {
		i, _ := s.Next(lbcore.Key{}, ticket+1<<50)
		counts[i]++
	}
	for i, c := range counts {
		if i%3 == 2 && c > 1 || i%3 != 2 && (c < 97 || c > 103) {
			t.Errorf("%d has had %d turns", i, c)
		}
	}
}

// Shares that the endpoints' weights don't give.
func TestSharesOfOthers(t *testing.T) {
	in := lbtest.Input(t, 1, 1, 5)
	in.Shares = []float64{0.5, 0.3, 0.2}
	s := lbtest.Build(t, Config{}, in)
	counts := make([]int, 3)
	for ticket := range uint64(1000) {
		i, _ := s.Next(lbcore.Key{}, ticket)
		counts[i]++
	}
	for i, want := range []int{500, 300, 200} {
		if counts[i] < want-3 || counts[i] > want+3 {
			t.Errorf("%v turns", counts)
		}
	}
	// Next to nothing is not nothing.
	in.Shares = []float64{1 - 2e-300, 1e-300, 1e-300}
	if s := lbtest.Build(t, Config{}, in).(*rotation); s.cycle != 1<<32+2 || s.ends[1] != 1<<32+1 {
		t.Errorf("a cycle of %d, ends %d", s.cycle, s.ends)
	}
}

func TestBuildYields(t *testing.T) {
	stop := errors.New("stop")
	for _, heavy := range []uint32{5, 1 << 20} {
		in := lbtest.Input(t, append(slices.Repeat([]uint32{1}, 100_000), heavy)...)
		u64, u32, err := Config{}.Shape(in)
		if err != nil || 8*u64+4*u32 > 100*len(in.Members) {
			t.Fatal(u64, u32, err)
		}
		st := &lbcore.Storage{U64: make([]uint64, u64), U32: make([]uint32, u32)}
		calls := 0
		if _, err := (Config{}).Build(in, st, func() error { calls++; return nil }); err != nil || calls < 3*100_000/lbcore.PacerSteps {
			t.Errorf("%d calls, %v", calls, err)
		}
		for at := 0; at < calls; at += calls / 5 {
			n := 0
			s, err := Config{}.Build(in, st, func() error {
				if n++; n > at {
					return stop
				}
				return nil
			})
			if err != stop || n != at+1 {
				t.Errorf("stopped at %d: %v, %v after %d", at, s, err, n)
			}
		}
	}
}

func TestTurn(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		edge := rapid.SampledFrom([]uint64{1, 2, 3, 1 << 20, 1<<20 + 1, 1<<52 - 1, 1 << 52, 1<<63 - 1})
		cycle := rapid.OneOf(edge, rapid.Uint64Range(1, 1<<52)).Draw(t, "cycle")
		ticket := rapid.OneOf(rapid.Uint64(), rapid.SampledFrom([]uint64{0, cycle - 1, cycle, 2 * cycle, math.MaxUint64})).Draw(t, "ticket")
		k := tickets{cycle: cycle, inverse: math.MaxUint64 / cycle}
		if got := k.turn(ticket); got != ticket%cycle {
			t.Fatalf("%d, not %d", got, ticket%cycle)
		}
	})
}
