package adaptive

import (
	"fmt"
	"math"
	"math/bits"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"

	"gatehouse.internal/lbcore"
	"gatehouse.internal/lbcore/lbtest"
)

// model is what a selector should do, without a tree.
type model struct {
	rank   Rank
	weight []uint64 // of each endpoint that there can be; 0 has none
	shares []uint32 // of those that are listed, of maxShare
	draws  lbcore.Draws
	listed []int
	seen   []uint64 // parallel to listed
}

func (m *model) due(i int) uint64 { return m.weight[m.listed[i]] * uint64(m.shares[i]) >> 16 }

func (m *model) become(listed []int, shares []uint32) {
	for e := range m.weight { // who left and has no connection is forgotten
		if !slices.Contains(listed, e) {
			m.weight[e] = 0
		}
	}
	sum, n := uint64(0), uint64(0)
	for _, e := range listed {
		if m.weight[e] > 0 {
			sum += m.weight[e]
			n++
		}
	}
	m.listed, m.shares, m.seen = listed, shares, nil
	for i, e := range listed {
		if m.weight[e] == 0 && n == 0 {
			m.weight[e] = m.rank.Start(len(listed))
		} else if m.weight[e] == 0 {
			m.weight[e] = sum / n
		}
		m.seen = append(m.seen, m.due(i))
	}
}

func (m *model) observe(e int, v uint64) {
	if m.weight[e] > 0 {
		target := min(max(m.rank.Target(v), One), MaxWeight)
		m.weight[e] = (31*m.weight[e] + target) / 32
	}
}

func (m *model) failed(e int) {
	if m.weight[e] > 0 {
		m.weight[e] = max(m.weight[e]/2, One)
	}
}

// next draws from a line of all weights as they were seen last.
func (m *model) next(at uint64) (int, uint64) {
	for {
		at += 0x9e3779b97f4a7c15
		x := (at ^ at>>30) * 0xbf58476d1ce4e5b9
		x = (x ^ x>>27) * 0x94d049bb133111eb
		x ^= x >> 31
		if x%Explore == 0 {
			var i int
			i, at = m.draws.Next(at)
			m.seen[i] = m.due(i)
			return i, at
		}
		total := uint64(0)
		for _, v := range m.seen {
			total += v
		}
		x, _ = bits.Mul64(x, total)
		i := 0
		for x >= m.seen[i] {
			x -= m.seen[i]
			i++
		}
		m.seen[i] = m.due(i)
		if x < m.seen[i] {
			return i, at
		}
	}
}

func TestAgainstModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		rank := rapid.SampledFrom([]Rank{Inverse{}, Priority{}}).Draw(rt, "rank")
		most := rapid.SampledFrom([]int{3, 40, 400}).Draw(rt, "most")
		w := newWorld(t, rank)
		m := &model{rank: rank, weight: make([]uint64, most)}
		become := func(rt *rapid.T) {
			listed := rapid.Permutation(indices(most)).Draw(rt, "listed")[:rapid.IntRange(1, most).Draw(rt, "n")]
			slices.Sort(listed)
			weights := rapid.SampledFrom([][]uint32{{1}, {1, 2}, {1, 50, 100_000, math.MaxUint32}}).Draw(rt, "weights")
			var eps []lbcore.Endpoint
			largest := uint32(0)
			for _, e := range listed {
				ep := endpoint(e)
				ep.Weight = weights[e%len(weights)]
				largest = max(largest, ep.Weight)
				eps = append(eps, ep)
			}
			w.become(eps...)
			var shares []uint32
			for _, ep := range eps {
				shares = append(shares, uint32(max(1, math.Round(float64(ep.Weight)/float64(largest)*65536))))
			}
			m.become(listed, shares)
			u64, u32 := lbcore.DrawsShape(w.in)
			var err error
			m.draws, err = lbcore.NewDraws(w.in, &lbcore.Storage{U64: make([]uint64, u64), U32: make([]uint32, u32)}, func() error { return nil })
			if err != nil {
				rt.Fatal(err)
			}
		}
		pos := func(rt *rapid.T) int { return rapid.IntRange(0, len(m.listed)-1).Draw(rt, "member") }
		become(rt)
		rt.Repeat(map[string]func(*rapid.T){
			"become": become,
			"observe": func(rt *rapid.T) {
				i := pos(rt)
				v := rapid.OneOf(rapid.Uint64Range(0, 100_000), rapid.Uint64()).Draw(rt, "observed")
				for range rapid.SampledFrom([]int{1, 1, 100}).Draw(rt, "times") {
					w.cfg.Observe(w.in.Members[i], v)
					m.observe(m.listed[i], v)
				}
			},
			"failed": func(rt *rapid.T) {
				i := pos(rt)
				for range rapid.IntRange(1, 30).Draw(rt, "times") {
					Failed(w.in.Members[i])
					m.failed(m.listed[i])
				}
			},
			"pick": func(rt *rapid.T) {
				at := rapid.Uint64().Draw(rt, "at")
				for range 50 {
					want, next := m.next(at)
					if i, got := w.s.Next(lbcore.Key{}, at); i != want || got != next {
						rt.Fatalf("at %d: %d then %d, want %d then %d", at, i, got, want, next)
					}
					at = next
				}
			},
			"": func(rt *rapid.T) {
				for i, e := range m.listed {
					if got := w.in.Members[i].AdaptiveWeight().Load(); got != m.weight[e] || got < One || got > MaxWeight {
						rt.Fatalf("weight of %d: %d, want %d", e, got, m.weight[e])
					}
					if got := w.s.sums.leaf(i); got != m.seen[i] {
						rt.Fatalf("leaf of %d: %d, want %d", e, got, m.seen[i])
					}
				}
				balanced(rt, w.s)
			},
		})
	})
}

// Draws are of the present weights at once where these have sunk since the
// sums were made, and after one more draw of each where they have risen.
func TestSharesFollowAtOnce(t *testing.T) {
	const n = 40_000
	got := make([]float64, 3)
	w := newWorld(t, nil).span(3)
	for range n {
		w.store(1000, 1000, 1000)
		w.in.Members[0].AdaptiveWeight().Store(125 * One)
		w.in.Members[1].AdaptiveWeight().Store(250 * One)
		got[w.s.Pick()] += 1. / n
	}
	near(t, "sunk", got, explored(125, 250, 1000), 0.01)
}

func TestTreeFinds(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		n := rapid.SampledFrom([]int{1, 2, 7, 8, 9, 24, 64, 65, 192, 193, 512, 513, 600, 1537, 4096, 4097, 5000}).Draw(rt, "n")
		values := rapid.SliceOfN(rapid.Uint64Range(1, 1<<20), n, n).Draw(rt, "values")
		storage := make([]uint64, treeWords(len(values)))
		for i := range storage {
			storage[i] = rand.Uint64()
		}
		tr, err := newTree(len(values), storage, new(lbcore.Pacer))
		if err != nil {
			rt.Fatal(err)
		}
		total := uint64(0)
		for i, v := range values {
			tr.init(i, v)
			total += v
		}
		if tr.total() != total {
			rt.Fatalf("total %d, want %d", tr.total(), total)
		}
		for i, at := 0, uint64(0); i < len(values); at, i = at+values[i], i+1 {
			for _, in := range []uint64{0, values[i] / 2, values[i] - 1} {
				if got, rest := tr.find(at + in); got != i || rest != in {
					rt.Fatalf("%d in %d: %d in %d", in, i, rest, got)
				}
			}
		}
		// Behind the end lies the last.
		for _, x := range []uint64{total, total + 5, math.MaxUint64} {
			if got, rest := tr.find(x); got != len(values)-1 || rest < values[got] {
				rt.Fatalf("behind the end: %d in %d", rest, got)
			}
		}
		// A value that is not there any more is not replaced.
		tr.set(0, values[0]+1, 5)
		if tr.leaf(0) != values[0] || tr.total() != total {
			rt.Fatalf("replaced what was not there")
		}
		// Sums that are wrong lead to some leaf.
		for _, level := range tr.levels {
			for i := range level {
				level[i] = rand.Uint64()
			}
		}
		for range 100 {
			if got, _ := tr.find(rand.Uint64()); got < 0 || got >= len(values) {
				rt.Fatalf("out of bounds: %d", got)
			}
		}
	})
}

// While the total is ahead of the sums below it a draw may run past their end:
// it takes the last. While it is behind, the last ones are not drawn.
func TestTotalThatLags(t *testing.T) {
	w := newWorld(t, nil).span(100)
	right := *w.s.sums.sum
	*w.s.sums.sum = 1 << 62
	if got := w.run(2000, func(int) int { return 1000 }); got[99] < 0.95 {
		t.Errorf("the total is ahead: the last gets %.3f", got[99])
	}
	*w.s.sums.sum = right / 2
	if got := w.run(2000, func(int) int { return 1000 }); got[99] > 1./50/Explore*5 {
		t.Errorf("the total is behind: the last gets %.3f", got[99])
	}
	*w.s.sums.sum = 0
	for range 5 {
		if i := w.s.Pick(); i < 0 || i > 99 {
			t.Errorf("the total is nothing: %d", i)
		}
	}
}

// atOnce runs f twice, as much at the same time as can be had.
func atOnce(f func(g int)) {
	var ready atomic.Int32
	var wg sync.WaitGroup
	for g := range 2 {
		wg.Go(func() {
			ready.Add(1)
			for spins := 0; ready.Load() < 2 && spins < 100_000; spins++ {
			}
			f(g)
		})
	}
	wg.Wait()
}

// Reports that come at once count like those one after the other.
func TestNoReportIsLost(t *testing.T) {
	w := newWorld(t, Priority{}).span(2)
	m, want := w.in.Members[0], w.in.Members[1]
	for _, c := range []struct {
		name   string
		report func(*lbcore.Member)
		each   int
	}{
		{"observed", func(m *lbcore.Member) { w.cfg.Observe(m, 1) }, 400},
		{"failed", Failed, 11},
	} {
		want.AdaptiveWeight().Store(MaxWeight)
		for range 2 * c.each {
			c.report(want)
		}
		for range 300 {
			m.AdaptiveWeight().Store(MaxWeight)
			atOnce(func(int) {
				for range c.each {
					c.report(m)
				}
			})
			if got := m.AdaptiveWeight().Load(); got != want.AdaptiveWeight().Load() {
				t.Fatalf("%s %d times by two at once: %d, one after the other %d", c.name, 2*c.each, got, want.AdaptiveWeight().Load())
			}
		}
	}
}

// Two set the leaves of a tree at once, and find in it: its sums are right in
// the end.
func TestTreeConcurrently(t *testing.T) {
	const n = 60
	tr, err := newTree(n, make([]uint64, treeWords(n)), new(lbcore.Pacer))
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		tr.init(i, 1000)
	}
	rngs := []*rand.Rand{rand.New(rand.NewPCG(1, 3)), rand.New(rand.NewPCG(2, 3))}
	for range 500 {
		atOnce(func(g int) {
			rng := rngs[g]
			for range 200 {
				i := rng.IntN(n)
				tr.set(i, tr.leaf(i), 1+rng.Uint64N(MaxWeight))
				if i, _ := tr.find(rng.Uint64N(max(tr.total(), 1))); i < 0 || i >= n {
					t.Errorf("found %d", i)
				}
			}
		})
		balanced(t, &Selector{sums: tr})
	}
}

// recorder keeps what is built.
type recorder struct {
	Config
	built *atomic.Pointer[Selector]
}

func (r recorder) Build(in lbcore.Input, st *lbcore.Storage, yield func() error) (lbcore.Selector, error) {
	s, err := r.Config.Build(in, st, yield)
	if err == nil {
		r.built.Store(s.(*Selector))
	}
	return s, err
}

// Picks, reports and rebuilds at once: sums that were corrected by many at the
// same time are those of the leaves in the end, and with one more correction of
// each leaf those of the weights.
func TestConcurrency(t *testing.T) {
	var built atomic.Pointer[Selector]
	r := lbtest.Start(t, recorder{Config{}, &built})
	var names []byte
	for b := byte(100); b < 160; b++ {
		names = append(names, b)
	}
	r.Set(string(names), 1, 2, 3)
	r.Down(string(names[10:20]))
	var done atomic.Bool
	var picks atomic.Int64
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(g), 1))
			reader := r.Gate.NewReader(fmt.Sprint(g))
			defer reader.Close()
			for !done.Load() {
				reader.Pin()
				p := r.Group.Slot("").Pick(reader, lbcore.Key{}, 3)
				reader.Unpin()
				m := p.Next()
				if m == nil {
					t.Error("nobody was picked though most are up")
					return
				}
				picks.Add(1)
				if rng.IntN(10) == 0 {
					Failed(m)
				} else {
					Config{}.Observe(m, rng.Uint64N(2<<rng.IntN(24)))
				}
			}
		})
	}
	for i := range 30 {
		before := picks.Load()
		for picks.Load() < before+500 && !t.Failed() {
			r.Pick(10, 1)
		}
		r.Set(string(names[i%20:]), uint32(i%5+1), 2, 7)
	}
	done.Store(true)
	wg.Wait()
	s := built.Load()
	if s.Len() != len(names)-29%20 {
		t.Fatalf("%d members", s.Len())
	}
	balanced(t, s)
	sum := uint64(0)
	for i, m := range s.members {
		if w := m.AdaptiveWeight().Load(); w < One || w > MaxWeight {
			t.Errorf("weight %d", w)
		}
		s.correct(i)
		sum += s.weight(i)
	}
	balanced(t, s)
	if got := s.sums.total(); got != sum {
		t.Errorf("total %d, want %d", got, sum)
	}
}

func bench(b *testing.B, f func(b *testing.B, s *Selector)) {
	for _, n := range []int{10, 100, 1000, 10_000} {
		w := newWorld(b, nil).span(n)
		for i, m := range w.in.Members {
			m.AdaptiveWeight().Store(Inverse{}.Target(500 + w.rng.Uint64N(20_000)))
			w.s.correct(i)
		}
		w.s.rand = nil
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			b.ReportAllocs()
			f(b, w.s)
		})
	}
}

func next(s *Selector, k *lbcore.Key) *lbcore.Member {
	k.Hash += 0x9e3779b97f4a7c15 // as a pick without a key has it
	i, _ := s.Next(*k, s.First(*k))
	return s.members[i]
}

func BenchmarkPick(b *testing.B) {
	bench(b, func(b *testing.B, s *Selector) {
		var k lbcore.Key
		for b.Loop() {
			next(s, &k)
		}
	})
}

// Each pick is followed by an observation, so that each finds a weight changed.
func BenchmarkPickObserve(b *testing.B) {
	bench(b, func(b *testing.B, s *Selector) {
		var k lbcore.Key
		for b.Loop() {
			Config{}.Observe(next(s, &k), 500+k.Hash>>50)
		}
	})
}

func BenchmarkPickObserveParallel(b *testing.B) {
	bench(b, func(b *testing.B, s *Selector) {
		b.RunParallel(func(pb *testing.PB) {
			k := lbcore.Key{Hash: rand.Uint64()}
			for pb.Next() {
				Config{}.Observe(next(s, &k), 500+k.Hash>>50)
			}
		})
	})
}
