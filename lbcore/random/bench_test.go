package random

import (
	"fmt"
	"testing"

	"gatehouse.internal/lbcore"
	"gatehouse.internal/lbcore/lbtest"
)

// candidate is what a pick costs of the policy itself: the first candidate.
func candidate(b *testing.B, policy lbcore.Builder, n int, weights ...uint32) {
	all := make([]uint32, n)
	for i := range all {
		all[i] = weights[i%len(weights)]
	}
	s := lbtest.Build(b, policy, lbtest.Input(b, all...))
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		k := lbcore.Key{}
		for pb.Next() {
			k.Hash += 0x9e3779b97f4a7c15
			k.CRC = uint32(k.Hash >> 32)
			s.Next(k, s.First(k))
		}
	})
}

func BenchmarkPick(b *testing.B) {
	for _, n := range []int{10, 100, 1000, 10000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) { candidate(b, Config{}, n, 1) })
	}
}

func BenchmarkPickWeighted(b *testing.B) {
	for _, n := range []int{10, 100, 1000, 10000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) { candidate(b, Config{}, n, 1, 2, 3, 4) })
	}
}
