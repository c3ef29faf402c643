package lbtest

import (
	"fmt"
	"testing"

	"gatehouse.internal/lbcore"
)

// Bench measures what a pick costs of the policy itself: its first candidate,
// without the slot around it, on each core at once. It does so for 10 to 10,000
// endpoints, with the weights in turn. Policies of a size get it by the number of
// endpoints. Without keyed, picks have no key.
func Bench(b *testing.B, keyed bool, policy func(n int) lbcore.Builder, weights ...uint32) {
	for _, n := range []int{10, 100, 1000, 10_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			all := make([]uint32, n)
			for i := range all {
				all[i] = weights[i%len(weights)]
			}
			s := Build(b, policy(n), Input(b, all...))
			b.ReportAllocs()
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				k := lbcore.Key{Set: keyed}
				for pb.Next() {
					k.Hash += 0x9e3779b97f4a7c15
					k.CRC = uint32(k.Hash >> 32)
					s.Next(k, s.First(k))
				}
			})
		})
	}
}
