package adaptive

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"gatehouse.internal/lbcore"
	"gatehouse.internal/lbcore/lbtest"
)

// steep is a Rank that leaves every range.
type steep struct{}

func (steep) Start(int) uint64              { return 0 }
func (steep) Target(observed uint64) uint64 { return observed * math.MaxUint64 }

func TestFormulas(t *testing.T) {
	const fail = -1
	for _, c := range []struct {
		name    string
		rank    Rank
		old     float64
		reports []int
		want    float64
	}{
		// (100 x 31 + 200) / 32, and again.
		{"up", Priority{}, 100, []int{200}, 103.125},
		{"up twice", Priority{}, 100, []int{200, 200}, (103.125*31 + 200) / 32},
		{"down", Priority{}, 100, []int{36}, 98},
		{"the same", Priority{}, 100, []int{100}, 100},
		{"0 counts as 1", Priority{}, 33, []int{0}, 32},
		{"too much counts as 2^24", Priority{}, 1, []int{math.MaxInt}, 31.0/32 + 1<<19},
		{"halved", Priority{}, 100, []int{fail}, 50},
		{"halved thrice", nil, 100, []int{fail, fail, fail}, 12.5},
		{"not below 1", nil, 1.5, []int{fail}, 1},
		{"1 is the floor", nil, 1, []int{fail, fail}, 1},
		{"failed, then well", Priority{}, 64, []int{fail, 64}, 33},
		// 2^24 microseconds have the weight 1, a 64th of that has 64.
		{"inverse", nil, 32, []int{1 << 18}, 33},
		{"inverse, 0", nil, 1 << 24, []int{0}, 1 << 24},
		{"inverse, 1", nil, 1 << 24, []int{1}, 1 << 24},
		{"inverse, 2", nil, 1 << 24, []int{2}, 1<<24 - 1<<18},
		{"inverse, 16.8 s", nil, 33, []int{1 << 24}, 32},
		{"inverse, an hour", nil, 33, []int{3.6e9}, 32},
		{"inverse, for ever", nil, 33, []int{math.MaxInt}, 32},
		{"a rank below the range", steep{}, 33, []int{0}, 32},
		{"a rank above the range", steep{}, 1 << 24, []int{1}, 1 << 24},
	} {
		w := newWorld(t, c.rank).span(1)
		m := w.in.Members[0]
		m.AdaptiveWeight().Store(uint64(c.old * One))
		for _, r := range c.reports {
			if r == fail {
				Failed(m)
			} else {
				w.cfg.Observe(m, uint64(r))
			}
		}
		if got := Weight(m); math.Abs(got-c.want) > 1.0/One {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

// The same in the units of the fixed point, where rounding shows.
func TestFormulasInFixedPoint(t *testing.T) {
	for _, c := range []struct{ old, micros, want uint64 }{
		{MaxWeight, 1000, (MaxWeight*31 + MaxWeight/1000) / 32},
		{MaxWeight / 1000, 1000, MaxWeight / 1000},
		{One + 31, 1 << 24, (31*(One+31) + One) / 32},
		{One, 1 << 24, One},
		{1099511627, 5000, 1072023836}, // (1099511627*31 + 219902325) / 32 = 1072023836.3
	} {
		w := newWorld(t, nil).span(1)
		m := w.in.Members[0]
		m.AdaptiveWeight().Store(c.old)
		w.cfg.Observe(m, c.micros)
		if got := m.AdaptiveWeight().Load(); got != c.want {
			t.Errorf("%d, observed %d: %d, want %d", c.old, c.micros, got, c.want)
		}
	}
}

// In whole numbers (1000*31 + 1001) / 32 is 1000 for ever.
func TestWeightsDontStick(t *testing.T) {
	for _, c := range []struct{ from, to uint64 }{{1000, 1001}, {1001, 1000}, {2, 1}, {1, 2}, {1 << 24, 1<<24 - 1}} {
		w := newWorld(t, Priority{}).span(1).store(c.from)
		for range 1000 {
			w.cfg.Observe(w.in.Members[0], c.to)
		}
		if got := w.weights()[0]; math.Abs(got-float64(c.to)) > 32.0/One {
			t.Errorf("from %d: %v, want %d", c.from, got, c.to)
		}
	}
}

func TestHalfLife(t *testing.T) {
	w := newWorld(t, Priority{}).span(1).store(100)
	for range 21 {
		w.cfg.Observe(w.in.Members[0], 200)
	}
	before := w.weights()[0]
	w.cfg.Observe(w.in.Members[0], 200)
	if after := w.weights()[0]; before >= 150 || after <= 150 {
		t.Errorf("%v after 21 observations and %v after 22: half the way should lie between", before, after)
	}
}

func TestStart(t *testing.T) {
	for _, c := range []struct {
		rank Rank
		n    int
		want float64
	}{
		{nil, 1, 1 << 24},
		{nil, 3, 1 << 24 / 3.0},
		{nil, 1024, 1 << 14},
		{Inverse{}, 10000, 1 << 24 / 1e4},
		{Priority{}, 1, 1},
		{Priority{}, 100, 1},
		{steep{}, 5, 1},
	} {
		for _, got := range newWorld(t, c.rank).span(c.n).weights() {
			if math.Abs(got-c.want) > 1.0/One {
				t.Fatalf("%T, %d endpoints: they start at %v, want %v", c.rank, c.n, got, c.want)
			}
		}
	}
	// The largest set, in numbers only.
	if got := (Inverse{}).Start(lbcore.MaxEndpoints); got != 16*One {
		t.Errorf("a million endpoints start at %d", got)
	}
}

func TestJoinersStartAtTheMean(t *testing.T) {
	w := newWorld(t, nil).span(3).store(10, 20, 60)
	if w.span(5); !slices.Equal(w.weights(), []float64{10, 20, 60, 30, 30}) {
		t.Errorf("two join: %v", w.weights())
	}
	// Attributes change and a selector is built anew: weights stay.
	eps := []lbcore.Endpoint{endpoint(0), endpoint(1), endpoint(2), endpoint(4)}
	eps[1].Weight, eps[1].HashKey = 7, "k"
	eps[2].Priority = 1
	if w.become(eps...); !slices.Equal(w.weights(), []float64{10, 20, 30}) {
		t.Errorf("one has left, one is of another priority: %v", w.weights())
	}
	// So do they for who comes back from another priority, but not for who was
	// forgotten: that one begins with the mean of 10, 20, 60 and 30.
	if w.span(5); !slices.Equal(w.weights(), []float64{10, 20, 60, 30, 30}) {
		t.Errorf("all are back: %v", w.weights())
	}
	w.store(10, 20, 60, 5, 30)
	w.become(eps...)
	if w.span(5); !slices.Equal(w.weights(), []float64{10, 20, 60, 30, 30}) {
		t.Errorf("the one that left is back: %v", w.weights())
	}
	// One that left but has a connection is known.
	m := w.in.Members[3]
	m.StartDial()
	w.store(10, 20, 60, 5, 30).become(eps...)
	if w.span(5); !slices.Equal(w.weights(), []float64{10, 20, 60, 5, 30}) {
		t.Errorf("one left with a connection and is back: %v", w.weights())
	}
}

// Reports reach a member of no selector, and one that has left.
func TestReportsWithoutSelector(t *testing.T) {
	w := newWorld(t, nil)
	snap, _ := w.view.Update(lbcore.MustSet(endpoint(0)))
	m := snap.Member(0)
	w.cfg.Observe(m, 5)
	Failed(m)
	if got := Weight(m); got != 0 {
		t.Errorf("a weight of %v out of nothing", got)
	}
	w.span(2).store(100, 100)
	m = w.in.Members[1]
	w.span(1)
	Failed(m)
	if got := Weight(m); got != 50 {
		t.Errorf("who has left has %v", got)
	}
}

// three are endpoints at 1, 5 and 25 ms.
func three(i int) int { return []int{1000, 5000, 25000}[i] }

var threeShares = explored(25, 5, 1)

func TestSettlesAtInverseLatencies(t *testing.T) {
	w := newWorld(t, nil).span(3)
	near(t, "the first hundred", w.run(100, three), []float64{1. / 3, 1. / 3, 1. / 3}, 0.15)
	w.run(1000, three) // each starts as if it took 3 us
	near(t, "settled", w.run(50000, three), threeShares, 0.01)
	for i, got := range w.weights() {
		if want := 1 << 24 / float64(three(i)); math.Abs(got-want) > want/1000 {
			t.Errorf("weights %v, want %v for %d", w.weights(), want, i)
		}
	}
	// Latencies that scatter by half of themselves don't change much.
	got := w.run(50000, func(i int) int { return three(i)/2 + w.rng.IntN(three(i)) })
	near(t, "scattered", got, threeShares, 0.02)
}

func TestRecoversAfterSpike(t *testing.T) {
	w := newWorld(t, nil).span(3)
	w.run(2000, three)
	spike := w.run(2000, func(i int) int {
		if i == 0 {
			return 2_000_000
		}
		return three(i)
	})
	if spike[0] > 0.15 {
		t.Errorf("in the spike: shares %.3f", spike)
	}
	w.run(1000, three)
	near(t, "after the spike", w.run(20000, three), threeShares, 0.02)
}

func TestRecoversAfterFailures(t *testing.T) {
	w := newWorld(t, nil).span(3)
	w.run(2000, three)
	got := w.run(2000, func(i int) int {
		if i == 0 {
			return -1
		}
		return three(i)
	})
	if w.weights()[0] != 1 || got[0] > 0.03 {
		t.Errorf("while it failed: weights %v, shares %.3f", w.weights(), got)
	}
	w.run(3000, three)
	near(t, "after it failed", w.run(20000, three), threeShares, 0.02)

	// All fail, and are as good as before.
	w.run(2000, func(int) int { return -1 })
	if got := w.weights(); slices.Max(got) != 1 {
		t.Errorf("all have failed: weights %v", got)
	}
	w.run(1000, three)
	near(t, "after all failed", w.run(20000, three), threeShares, 0.02)
}

// A latency of 0 or of microseconds is worth 2^24 or nearly so; the others have
// a thousandth of that.
func TestRecoversAfterNoLatency(t *testing.T) {
	for _, quick := range []int{0, 1, 3, 50} {
		w := newWorld(t, nil).span(3)
		w.run(2000, three)
		got := w.run(2000, func(i int) int {
			if i == 2 {
				return quick
			}
			return three(i)
		})
		if slices.Min(got) == 0 || got[2] < 0.5 {
			t.Errorf("at %d us: shares %.4f", quick, got)
		}
		w.run(1000, three)
		near(t, fmt.Sprintf("after %d us", quick), w.run(20000, three), threeShares, 0.02)
	}
}

// However small its weight is among the others, each is tried.
func TestNeverStarves(t *testing.T) {
	w := newWorld(t, nil).span(3).store(1, 1<<24, 1<<24)
	got := w.run(100_000, func(i int) int { return []int{1 << 24, 1, 1}[i] })
	if want := 1.0 / 3 / Explore; math.Abs(got[0]-want) > want/10 {
		t.Errorf("the slowest gets %.5f, want %.5f", got[0], want)
	}
}

// What a walk draws next doesn't depend on what it has drawn, explored or not.
func TestDrawsOfAWalkAreIndependent(t *testing.T) {
	w := newWorld(t, nil).span(1000)
	at, last, same := w.s.seed(), -1, 0
	for range 100_000 {
		var i int
		if i, at = w.s.Next(lbcore.Key{}, at); i == last {
			same++
		}
		last = i
	}
	if same > 200 {
		t.Errorf("%d draws of 100,000 gave the member of the one before, of 1,000", same)
	}
}

// One that is light in discovery's weights too is tried.
func TestNeverStarvesTheLight(t *testing.T) {
	eps := make([]lbcore.Endpoint, 100)
	for i := range eps {
		eps[i] = endpoint(i)
	}
	eps[0].Weight = 1000
	w := newWorld(t, nil).become(eps...)
	for i := range eps {
		w.in.Members[i].AdaptiveWeight().Store(MaxWeight / 100)
	}
	w.in.Members[7].AdaptiveWeight().Store(One)
	const draws = 3_000_000
	n := 0
	for range draws {
		if w.s.Pick() == 7 {
			n++
		}
	}
	if want := draws / 1099. / Explore; math.Abs(float64(n)-want) > 5*math.Sqrt(want) {
		t.Errorf("it was picked %d times, want %.0f", n, want)
	}
}

// Half of the endpoints are down to weight 1 though all are equally fast. They
// are tried at the pace of exploration, and are then back where they belong.
func TestNeverStarvesOneOfMany(t *testing.T) {
	for _, c := range []struct{ n, rounds int }{{10_000, 1}, {200, 20}} {
		w := newWorld(t, nil).span(c.n)
		for i, m := range w.in.Members {
			m.AdaptiveWeight().Store(Inverse{}.Target(1000))
			if i%2 == 0 {
				m.AdaptiveWeight().Store(One)
			}
			w.s.correct(i)
		}
		for round := range c.rounds {
			// A quarter of what gives each one exploring draw in the mean.
			w.run(c.n*Explore/4, func(int) int { return 1000 })
			low := 0.0
			for _, m := range w.in.Members {
				if Weight(m) == 1 {
					low++
				}
			}
			got, want := low/float64(c.n/2), math.Exp(-float64(round+1)/4)
			if within := 1.5 / math.Sqrt(float64(c.n)); math.Abs(got-want) > within {
				t.Errorf("of %d, round %d: %.3f of those at the floor were not tried yet, want %.3f", c.n, round, got, want)
			}
		}
		balanced(t, w.s)
	}
}

// Latencies of many endpoints from 1 to 20 ms: those of each tenth have their
// part.
func TestManySettle(t *testing.T) {
	const n = 200
	w := newWorld(t, nil).span(n)
	latency := func(i int) int { return 1000 + 19000*(i%100)/99 }
	w.run(400*n, latency)
	got, want, sum := make([]float64, 10), make([]float64, 10), 0.0
	for i, share := range w.run(100*n, latency) {
		got[i%100/10] += share
		want[i%100/10] += 1 / float64(latency(i))
		sum += 1 / float64(latency(i))
	}
	for i := range want {
		want[i] = want[i]/sum*(Explore-1)/Explore + 0.1/Explore
	}
	near(t, "tenths", got, want, 0.02)
	balanced(t, w.s)
}

// A member that moves among others keeps what was learnt: its weight means the
// same among few and among many.
func TestSetsOfOtherSizes(t *testing.T) {
	ms := func(int) int { return 1000 }
	w := newWorld(t, nil).span(2)
	w.run(2000, ms)
	got := w.span(200).run(20_000, ms)
	if first := got[0] + got[1]; math.Abs(first-0.01) > 0.003 {
		t.Errorf("two of 200 get %.4f", first)
	}
	near(t, "two are left", w.span(2).run(5000, ms), []float64{.5, .5}, 0.03)
}

func TestSharesOfDiscovery(t *testing.T) {
	w := newWorld(t, nil)
	eps := []lbcore.Endpoint{endpoint(0), endpoint(1), endpoint(2)}
	eps[0].Weight, eps[1].Weight, eps[2].Weight = 1, 2, 5
	same := func(int) int { return 1000 }
	w.become(eps...)
	w.run(2000, same)
	near(t, "equally fast", w.run(50000, same), []float64{1. / 8, 2. / 8, 5. / 8}, 0.01)

	eps[0].Weight, eps[1].Weight, eps[2].Weight = 1, 5, 25
	w.become(eps...)
	w.run(2000, three)
	near(t, "slow by as much as heavy", w.run(50000, three), []float64{1. / 3, 1. / 3, 1. / 3}, 0.01)

	// What is explored goes by them too: a canary stays one.
	eps[0].Weight, eps[1].Weight, eps[2].Weight = 10, 1000, 1000
	w.become(eps...)
	w.run(2000, same)
	if got := w.run(100_000, same)[0]; math.Abs(got-0.005) > 0.001 {
		t.Errorf("a canary of 0.005 gets %.4f", got)
	}

	// The least and the most there can be.
	eps[0].Weight, eps[1].Weight, eps[2].Weight = 1, math.MaxUint32, math.MaxUint32
	w.become(eps...).store(1, 1<<24, 1<<24)
	if w.s.sums.leaf(0) == 0 {
		t.Error("a weight of nothing")
	}
	if got := w.run(1000, three)[0]; got > 0.002 {
		t.Errorf("a share of next to nothing gets %.4f", got)
	}
	balanced(t, w.s)
}

func TestPriorityRank(t *testing.T) {
	w := newWorld(t, Priority{}).span(3)
	worth := func(i int) int { return []int{10, 30, 60}[i] }
	w.run(5000, worth)
	near(t, "by what was observed", w.run(50000, worth), explored(1, 3, 6), 0.01)
	for _, observed := range []uint64{1 << 24, 1<<24 + 1, 1 << 48, math.MaxUint64} {
		if got := (Priority{}).Target(observed); got != MaxWeight {
			t.Errorf("%d is worth %d", observed, got)
		}
	}
}

func TestIterGoesOnceRound(t *testing.T) {
	for _, n := range []int{1, 2, 3, 17, 300} {
		w := newWorld(t, nil).span(n)
		for range 50 {
			var got []int
			for i := range w.s.Iter() {
				got = append(got, i)
			}
			want := append(indices(n)[got[0]:], indices(got[0])...)
			if !slices.Equal(got, want) {
				t.Fatalf("of %d: %v", n, got)
			}
		}
	}
	w := newWorld(t, nil).span(3).store(1, 10, 89)
	starts, seen := make([]float64, 3), 0
	for range 20_000 {
		for i := range w.s.Iter() {
			starts[i] += 1. / 20_000
			break
		}
		for range w.s.Iter() { // to the second, which may be behind the end
			if seen++; seen%2 == 0 {
				break
			}
		}
	}
	near(t, "starts", starts, explored(1, 10, 89), 0.01)
}

func TestPlainCases(t *testing.T) {
	r := lbtest.Start(t, Config{})
	r.Set("")
	if got := r.Pick(3, 3); got != "---" {
		t.Errorf("of the empty set: %s", got)
	}
	r.Set("abc")
	r.Down("b")
	if got := r.Pick(200, 1); strings.Count(got, "a")+strings.Count(got, "c") != 200 || strings.Count(got, "a") < 50 || strings.Count(got, "c") < 50 {
		t.Errorf("b is down: %s", got)
	}
	r.Up("b")
	if got := r.Pick(300, 1); min(strings.Count(got, "a"), strings.Count(got, "b"), strings.Count(got, "c")) < 50 {
		t.Errorf("b is up again: %s", got)
	}
	r.Down("abc")
	if got := r.Pick(5, 3); got != "-----" {
		t.Errorf("all are down: %s", got)
	}
	r.Up("a")
	if got := r.Pick(50, 3); got != strings.Repeat("a", 50) {
		t.Errorf("only a is up: %s", got)
	}
}

// The one acceptable endpoint is found, whatever the weights of the others, and
// a selection gives each endpoint once.
func TestTheOneAcceptableIsFound(t *testing.T) {
	var names []byte
	for b := byte(50); b < 250; b++ {
		names = append(names, b)
	}
	r := lbtest.Start(t, Config{})
	r.Set(string(names))
	r.Down(string(names))
	for _, weight := range []uint64{One, MaxWeight} {
		for _, one := range names[:40] {
			for _, m := range r.View.Members() {
				m.AdaptiveWeight().Store(MaxWeight)
				if lbtest.Name(m) == one {
					m.AdaptiveWeight().Store(weight)
				}
			}
			r.Up(string(one))
			if got, want := r.Pick(20, 3), strings.Repeat(string([]byte{one}), 20); got != want {
				t.Fatalf("only %d is up: %q", one, got)
			}
			r.Down(string(one))
		}
	}
	r.Up(string(names[:5]))
	for range 200 {
		reader := r.Gate.Pin()
		p := r.Group.Slot("").Pick(reader, lbcore.Key{}, lbcore.MaxPicks)
		reader.Unpin()
		var got []byte
		for m := p.Next(); m != nil; m = p.Next() {
			got = append(got, lbtest.Name(m))
		}
		if slices.Sort(got); !slices.Equal(got, names[:5]) {
			t.Fatalf("of five that are up: %v", got)
		}
	}
}

func TestNothingAllocates(t *testing.T) {
	for _, rank := range []Rank{nil, Inverse{}, Priority{}} {
		c := Config{Rank: rank}
		w := newWorld(t, rank)
		eps := []lbcore.Endpoint{endpoint(0), endpoint(1), endpoint(2)}
		eps[2].Weight = 3
		w.become(eps...)
		w.s.rand = nil
		m, k, n := w.in.Members[1], lbcore.Key{}, 0
		for name, f := range map[string]func(){
			"observe": func() { c.Observe(m, 1234) },
			"failed":  func() { Failed(m) },
			"pick":    func() { n += w.s.Pick() },
			"next":    func() { i, _ := w.s.Next(k, w.s.First(k)); n += i },
			"len":     func() { n += w.s.Len() },
			"iter": func() {
				for i := range w.s.Iter() {
					n += i
				}
			},
		} {
			if got := testing.AllocsPerRun(1000, f); got != 0 {
				t.Errorf("%T: %s allocates %v times", rank, name, got)
			}
		}
	}
}

// A build of 20,000 yields all along, and gives up at once with its error.
func TestBuildYields(t *testing.T) {
	w := newWorld(t, nil).span(20_000)
	balanced(t, w.s)
	u64, u32, err := w.cfg.Shape(w.in)
	if words := 20_000 * 115 / 100; err != nil || u64 > words || u32 != 0 {
		t.Errorf("storage of %d and %d, %v", u64, u32, err)
	}
	st := &lbcore.Storage{U64: make([]uint64, u64)}
	calls, enough := 0, errors.New("enough")
	_, err = w.cfg.Build(w.in, st, func() error {
		if calls++; calls == 3 {
			return enough
		}
		return nil
	})
	if calls != 3 || err != enough {
		t.Errorf("%d calls, then %v", calls, err)
	}
}

func TestFirst(t *testing.T) {
	s := newWorld(t, nil).span(3).s
	s.rand = func() uint64 { return 42 }
	if got := s.First(lbcore.Key{Hash: 7}); got != 42 {
		t.Errorf("the given generator is not asked: %d", got)
	}
	s.rand = nil
	if got := s.First(lbcore.Key{Hash: 7}); got != 7 {
		t.Errorf("a random hash is not used: %d", got)
	}
	k := lbcore.StringKey("10.0.0.1")
	if a, b := s.First(k), s.First(k); a == b || a == k.Hash {
		t.Errorf("a key has a say: %d, %d", a, b)
	}
	if n, all := s.Steps(); n != 32 || all {
		t.Errorf("steps: %d, %v", n, all)
	}
}
