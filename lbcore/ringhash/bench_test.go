package ringhash

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"gatehouse.internal/lbcore"
	"gatehouse.internal/lbcore/lbtest"
)

func BenchmarkPick(b *testing.B) {
	lbtest.Bench(b, true, func(n int) lbcore.Builder { return Config{} }, 1)
}

// A hundred points for each endpoint.
func BenchmarkPick100Points(b *testing.B) {
	lbtest.Bench(b, true, func(n int) lbcore.Builder { return Config{MinimumSize: uint64(100 * n)} }, 1)
}

func BenchmarkPickKetama(b *testing.B) {
	lbtest.Bench(b, true, func(n int) lbcore.Builder { return Config{Function: Ketama} }, 1)
}

// The build of a ring of 10,000 endpoints with 100 points each.
func BenchmarkBuild(b *testing.B) {
	in := lbtest.Input(b, slices.Repeat([]uint32{1}, 10_000)...)
	for _, c := range []Config{{MinimumSize: 1_000_000}, {Function: Ketama}} {
		b.Run([]string{"xx_hash", "", "ketama"}[c.Function], func(b *testing.B) {
			u64, u32, err := c.Shape(in)
			if err != nil {
				b.Fatal(err)
			}
			st := &lbcore.Storage{U64: make([]uint64, u64), U32: make([]uint32, u32)}
			for b.Loop() {
				if _, err := c.Build(in, st, noYield); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed())/float64(b.N)/float64(u64), "ns/point")
		})
	}
}

// What sorting 1.6 million points takes, beside slices.SortFunc on the same.
func BenchmarkBuildSort(b *testing.B) {
	const n = 1_600_000
	rng := rand.New(rand.NewPCG(1, 2))
	unsorted := make([]point, n)
	for i := range unsorted {
		unsorted[i] = point{rng.Uint64(), i / 160}
	}
	hashes, members, plain := make([]uint64, n), make([]uint16, n), make([]point, n)
	st := make([]uint32, buckets(n)+1)
	var own, other time.Duration
	for b.Loop() {
		for i, p := range unsorted {
			hashes[i], members[i] = p.hash, uint16(p.who)
		}
		copy(plain, unsorted)
		began := time.Now()
		p := new(lbcore.Pacer)
		sortPoints(p, hashes, members, 0)
		newArcs(p, hashes, st)
		own += time.Since(began)
		began = time.Now()
		slices.SortFunc(plain, func(a, b point) int { return cmp.Or(cmp.Compare(a.hash, b.hash), cmp.Compare(a.who, b.who)) })
		other += time.Since(began)
	}
	b.ReportMetric(float64(own)/float64(b.N), "ns/sort")
	b.ReportMetric(float64(other)/float64(own), "xSortFunc")
}
