package forwarder

import (
	"math"
	"testing"
)

// At most 1024 for what connections have beyond two each, and a quarter of the
// reserve.
func TestExtraFor(t *testing.T) {
	for _, tt := range []struct {
		descriptors uint64
		want        int
	}{{0, 64}, {1, 64}, {1024, 64}, {2560, 64}, {20000, 500}, {40960, 1024}, {1 << 20, 1024}, {math.MaxUint64, 1024}} {
		if got := ExtraFor(tt.descriptors); got != tt.want {
			t.Errorf("of %d descriptors: %d, want %d", tt.descriptors, got, tt.want)
		}
	}
}

// Probes take what they are left, and more where connections are few.
func TestProbesFor(t *testing.T) {
	for _, tt := range []struct {
		descriptors uint64
		connections int
		want        int
	}{
		{0, 10, 0}, {1, 1, 1}, {256, 1, 32}, {300, 3, 38}, {2000, 0, 250}, {2000, 747, 250}, {2000, 100, 1544}, {2000, 5000, 250},
		{1 << 20, 439091, 65536}, {math.MaxUint64, 1, 65536}, {math.MaxUint64, math.MaxInt, 65536},
	} {
		if got := ProbesFor(tt.descriptors, tt.connections); got != tt.want {
			t.Errorf("of %d descriptors beside %d connections: %d, want %d", tt.descriptors, tt.connections, got, tt.want)
		}
	}
	for d := uint64(1); d < 100_000; d++ {
		c := ConnectionsFor(d)
		if sum := uint64(2*c+ProbesFor(d, c)) + reserve(d); c > 1 && sum > d {
			t.Fatalf("%d descriptors: %d connections and %d probes leave less than %d", d, c, ProbesFor(d, c), reserve(d))
		}
	}
}

func TestConnectionsFor(t *testing.T) {
	for _, tt := range []struct {
		descriptors uint64
		want        int
	}{
		{0, 0}, {1, 1}, {256, 1}, {257, 1}, {292, 1}, {300, 3}, {1024, 320}, {2560, 992}, {20000, 7750}, {1 << 20, 439091},
		{math.MaxUint64, 8301034833169265459},
	} {
		if got := ConnectionsFor(tt.descriptors); got != tt.want {
			t.Errorf("of %d descriptors: %d, want %d", tt.descriptors, got, tt.want)
		}
	}
	if n := MaxDescriptors(); haveLoops && n == 0 {
		t.Error("the limit is not known")
	}
}
