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

func TestConnectionsFor(t *testing.T) {
	for _, tt := range []struct {
		descriptors uint64
		want        int
	}{
		{0, 0}, {1, 1}, {256, 1}, {257, 1}, {260, 2}, {1024, 384}, {2560, 1152}, {20000, 9000}, {1 << 20, 471859},
		{math.MaxUint64, 8301034833169298227},
	} {
		if got := ConnectionsFor(tt.descriptors); got != tt.want {
			t.Errorf("of %d descriptors: %d, want %d", tt.descriptors, got, tt.want)
		}
	}
	if n := MaxDescriptors(); haveLoops && n == 0 {
		t.Error("the limit is not known")
	}
}
