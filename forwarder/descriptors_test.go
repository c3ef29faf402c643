package forwarder

import (
	"math"
	"testing"
)

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
