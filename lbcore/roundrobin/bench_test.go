package roundrobin

import (
	"slices"
	"testing"

	"gatehouse.internal/lbcore"
	"gatehouse.internal/lbcore/lbtest"
)

func BenchmarkPick(b *testing.B) {
	lbtest.Bench(b, false, func(n int) lbcore.Builder { return Config{} }, 1)
}

func BenchmarkPickWeighted(b *testing.B) {
	lbtest.Bench(b, false, func(n int) lbcore.Builder { return Config{} }, 1, 2, 3, 4)
}

// Weights of a long cycle.
func BenchmarkPickLong(b *testing.B) {
	lbtest.Bench(b, false, func(n int) lbcore.Builder { return Config{} }, 1, 1<<20, 7654, 9999)
}

// One of a weight of 2^20 among 10,000 of 1.
func BenchmarkPickOneHeavy(b *testing.B) {
	weights := slices.Repeat([]uint32{1}, 10_000)
	weights[5] = 1 << 20
	lbtest.Bench(b, false, func(int) lbcore.Builder { return Config{} }, weights...)
}
