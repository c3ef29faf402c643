package lbcore_test

import (
	"fmt"
	"sync/atomic"
	"testing"

	"gatehouse.internal/lbcore"
	"gatehouse.internal/lbcore/adaptive"
	"gatehouse.internal/lbcore/leastweight"
	"gatehouse.internal/lbcore/maglev"
	"gatehouse.internal/lbcore/random"
	"gatehouse.internal/lbcore/ringhash"
	"gatehouse.internal/lbcore/roundrobin"
)

// benchmarked are the policies of the benchmarks, with the weights of the set.
var benchmarked = []struct {
	name    string
	weights []uint32
	b       lbcore.Builder
}{
	{"round_robin", []uint32{1}, roundrobin.Config{}},
	{"round_robin_weighted", []uint32{1, 2, 3, 4}, roundrobin.Config{}},
	{"ring_hash", []uint32{1}, ringhash.Config{}},
	{"ring_hash_100_points", []uint32{1}, ringhash.Config{MinimumSize: 1}}, // times the endpoints
	{"least_weight", []uint32{1}, leastweight.Config{}},
	{"least_weight_weighted", []uint32{1, 2, 3, 4}, leastweight.Config{}},
	{"random", []uint32{1}, random.Config{}},
	{"random_weighted", []uint32{1, 2, 3, 4}, random.Config{}},
	{"maglev", []uint32{1}, maglev.Config{}},
	{"maglev_weighted", []uint32{1, 2, 3, 4}, maglev.Config{}},
	{"adaptive", []uint32{1}, adaptive.Config{}},
	{"adaptive_weighted", []uint32{1, 2, 3, 4}, adaptive.Config{}},
	{"ketama", []uint32{1}, ringhash.Config{Function: ringhash.Ketama}},
	{"ketama_weighted", []uint32{1, 2, 3, 4}, ringhash.Config{Function: ringhash.Ketama}},
}

// eachBench runs f for every policy and size.
func eachBench(b *testing.B, f func(b *testing.B, c *cluster)) {
	for _, p := range benchmarked {
		for _, n := range []int{10, 1000, 10000} {
			policy := p.b
			if ring, ok := policy.(ringhash.Config); ok && ring.MinimumSize == 1 {
				policy = ringhash.Config{MinimumSize: uint64(100 * n)}
			}
			b.Run(fmt.Sprintf("%s/%d", p.name, n), func(b *testing.B) {
				c := start(b, policy)
				c.settle(span(0, n, p.weights...))
				f(b, c)
			})
		}
	}
}

// another makes k another key.
func another(k *lbcore.Key) {
	k.Hash += 0x9e3779b97f4a7c15
	k.CRC = uint32(k.Hash >> 32)
}

// pickOne selects one and does with it what a connection does.
func pickOne(s *lbcore.Slot, r *lbcore.Reader, k lbcore.Key) {
	p := s.Pick(r, k, 1)
	m := p.Next()
	m.StartDial()
	m.DialAbandoned()
}

// A pick with a pin of its own, and the release of what was picked.
func BenchmarkPick(b *testing.B) {
	eachBench(b, func(b *testing.B, c *cluster) {
		r, s, k := c.gate.NewReader("r"), c.slot(0), hashKey(0)
		b.ReportAllocs()
		for b.Loop() {
			another(&k)
			r.Pin()
			pickOne(s, r, k)
			r.Unpin()
		}
	})
}

// The same with one pin for 32 picks; ns/op is of one pick.
func BenchmarkPickBatch(b *testing.B) {
	eachBench(b, func(b *testing.B, c *cluster) {
		r, s, k := c.gate.NewReader("r"), c.slot(0), hashKey(0)
		b.ReportAllocs()
		i := 0
		for b.Loop() {
			another(&k)
			if i%32 == 0 {
				r.Pin()
			}
			pickOne(s, r, k)
			if i++; i%32 == 0 {
				r.Unpin()
			}
		}
	})
}

// A pick alone, with one pin for 32 of them, without the counters of a dial; by
// want, the candidates asked for.
func BenchmarkPickAlone(b *testing.B) {
	for _, want := range []int{1, 3} {
		b.Run(fmt.Sprint(want), func(b *testing.B) {
			eachBench(b, func(b *testing.B, c *cluster) {
				r, s, k := c.gate.NewReader("r"), c.slot(0), hashKey(0)
				b.ReportAllocs()
				i := 0
				for b.Loop() {
					another(&k)
					if i%32 == 0 {
						r.Pin()
					}
					p := s.Pick(r, k, want)
					if p.Next() == nil {
						b.Fatal("none")
					}
					if i++; i%32 == 0 {
						r.Unpin()
					}
				}
			})
		})
	}
}

// Picks that a table of loads decides, as with several priorities or localities,
// with one pin for 32 of them; and what the table costs.
func BenchmarkPickSpread(b *testing.B) {
	for _, v := range []struct {
		name       string
		priorities int
		localities int
		spread     lbcore.Spread
		balance    uint32
		down       int
		builder    lbcore.Builder
	}{
		{"2_priorities", 2, 1, lbcore.Spread{}, 0, 0, random.Config{}},
		{"2_priorities_half_down", 2, 1, lbcore.Spread{}, 0, 2, random.Config{}},
		{"panic_threshold", 1, 1, lbcore.Spread{PanicThreshold: 50}, 0, 0, random.Config{}},
		{"3_localities", 1, 3, lbcore.Spread{LocalityWeighted: true}, 0, 0, random.Config{}},
		{"1000_localities", 1, 1000, lbcore.Spread{LocalityWeighted: true}, 0, 0, random.Config{}},
		{"3_localities_of_a_ring", 1, 3, lbcore.Spread{LocalityWeighted: true}, 0, 0, ringhash.Config{}},
		{"bounded_ring", 1, 1, lbcore.Spread{}, 125, 0, ringhash.Config{}},
	} {
		c := (&cluster{builders: []lbcore.Builder{v.builder}, spread: v.spread, balance: v.balance}).probed().start(b)
		eps := make([]lbcore.Endpoint, 1000)
		for i := range eps {
			eps[i] = in(i, fmt.Sprint(i%v.localities), uint32(1+i%v.localities))
			eps[i].Priority = uint8(i / 4 % v.priorities)
		}
		c.settle(lbcore.MustSet(eps...))
		for i := range eps {
			c.health(i%4 >= v.down, i)
		}
		c.group.UpdateLoads()
		b.Run("pick/"+v.name, func(b *testing.B) {
			r, s, k := c.gate.NewReader("r"), c.slot(0), hashKey(0)
			defer r.Close()
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				another(&k)
				if i%32 == 0 {
					r.Pin()
				}
				p := s.Pick(r, k, 1)
				if p.Next() == nil {
					b.Fatal("none")
				}
				if i++; i%32 == 0 {
					r.Unpin()
				}
			}
		})
		b.Run("update/"+v.name, func(b *testing.B) {
			for b.Loop() {
				c.group.UpdateLoads()
			}
		})
	}
}

// The same on all cores, each with a reader of its own.
func BenchmarkPickParallel(b *testing.B) {
	eachBench(b, func(b *testing.B, c *cluster) {
		var seed atomic.Uint64
		b.ResetTimer()
		b.RunParallel(func(pb *testing.PB) {
			r, s, k := c.gate.NewReader("r"), c.slot(0), hashKey(seed.Add(1<<60))
			for i := 0; pb.Next(); i++ {
				another(&k)
				if i%32 == 0 {
					r.Pin()
				}
				pickOne(s, r, k)
				if i%32 == 31 {
					r.Unpin()
				}
			}
		})
	})
}

// A goroutine without a reader of its own.
func BenchmarkPickShared(b *testing.B) {
	c := start(b, roundrobin.Config{})
	c.settle(span(0, 10))
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			r := c.gate.Pin()
			pickOne(c.slot(0), r, lbcore.Key{})
			r.Unpin()
		}
	})
}

func BenchmarkPin(b *testing.B) {
	g := lbcore.NewGate(lbcore.GateConfig{})
	b.Run("own", func(b *testing.B) {
		r := g.NewReader("r")
		for b.Loop() {
			r.Pin()
			r.Unpin()
		}
	})
	b.Run("shared", func(b *testing.B) {
		for b.Loop() {
			g.Pin().Unpin()
		}
	})
}

// A key from the text of a source address.
func BenchmarkKey(b *testing.B) {
	text := []byte("203.0.113.255")
	for b.Loop() {
		lbcore.BytesKey(text)
	}
}

// Picks when all but one of a thousand are down: the walk and the permutation.
func BenchmarkPickOneReady(b *testing.B) {
	for _, p := range benchmarked {
		b.Run(p.name, func(b *testing.B) {
			c := (&cluster{builders: []lbcore.Builder{p.b}}).probed().start(b)
			c.settle(span(0, 1000, p.weights...))
			for i := range 999 {
				c.probes[addr(i)].Store(lbcore.HealthUnhealthy)
			}
			r, s, k := c.gate.NewReader("r"), c.slot(0), hashKey(0)
			for b.Loop() {
				another(&k)
				r.Pin()
				pickOne(s, r, k)
				r.Unpin()
			}
		})
	}
}

// Builds, from a Snapshot to a Selector.
func BenchmarkBuild(b *testing.B) {
	for _, p := range append(benchmarked, struct {
		name    string
		weights []uint32
		b       lbcore.Builder
	}{"ring_hash_1M_points", []uint32{1}, ringhash.Config{MinimumSize: 1 << 20}}) {
		for _, n := range []int{10, 1000, 10000} {
			policy := p.b
			if ring, ok := policy.(ringhash.Config); ok && ring.MinimumSize == 1 {
				policy = ringhash.Config{MinimumSize: uint64(100 * n)}
			}
			b.Run(fmt.Sprintf("%s/%d", p.name, n), func(b *testing.B) {
				v := lbcore.NewView("c", new(lbcore.Hosts), lbcore.ViewConfig{})
				snap, _ := v.Update(span(0, n, p.weights...))
				b.ReportAllocs()
				for b.Loop() {
					in := lbcore.Inputs(snap)[0]
					u64, u32, err := policy.Shape(in)
					if err != nil {
						b.Fatal(err)
					}
					st := &lbcore.Storage{U64: make([]uint64, u64), U32: make([]uint32, u32)}
					if _, err := policy.Build(in, st, func() error { return nil }); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// An update of one endpoint in many, without the rebuild.
func BenchmarkUpdate(b *testing.B) {
	for _, n := range []int{10, 1000, 10000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			v := lbcore.NewView("c", new(lbcore.Hosts), lbcore.ViewConfig{})
			sets := []lbcore.Set{span(0, n), span(0, n-1)}
			i := 0
			for b.Loop() {
				v.Update(sets[i%2])
				i++
			}
		})
	}
}
