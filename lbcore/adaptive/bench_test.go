package adaptive

import (
	"testing"

	"gatehouse.internal/lbcore"
	"gatehouse.internal/lbcore/lbtest"
)

func BenchmarkPickParallel(b *testing.B) {
	lbtest.Bench(b, false, func(n int) lbcore.Builder { return Config{} }, 1)
}

func BenchmarkPickWeightedParallel(b *testing.B) {
	lbtest.Bench(b, false, func(n int) lbcore.Builder { return Config{} }, 1, 2, 3, 4)
}
