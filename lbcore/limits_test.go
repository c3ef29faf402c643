package lbcore_test

import (
	"errors"
	"math"
	"net/netip"
	"testing"

	"gatehouse.internal/lbcore"
	"gatehouse.internal/lbcore/adaptive"
	"gatehouse.internal/lbcore/lbtest"
	"gatehouse.internal/lbcore/leastweight"
	"gatehouse.internal/lbcore/maglev"
	"gatehouse.internal/lbcore/random"
	"gatehouse.internal/lbcore/ringhash"
	"gatehouse.internal/lbcore/roundrobin"
)

// Sets of any size and weights: the storage and the steps of a build are
// bounded by the endpoints and the size that is configured, every build yields
// all along and ends when it is told to.
func TestLargeSets(t *testing.T) {
	inputs := make(map[int]lbcore.Input)
	for n, weights := range map[int][]uint32{
		100_000:             {math.MaxUint32, math.MaxUint32 - 1, 7}, // the sum is beyond 32 bits
		100_001:             {1},
		100_002:             {1, 2, 3, 4},
		lbcore.MaxEndpoints: {1, 1, 1, 1 << 20},
	} {
		inputs[n] = largeSet(t, n, weights)
	}
	for _, c := range []struct {
		name    string
		b       lbcore.Builder
		entries int // at most, beside the endpoints
	}{
		{"round_robin", roundrobin.Config{}, 4096},
		{"random", random.Config{}, 0},
		{"least_weight", leastweight.Config{}, 0},
		{"adaptive", adaptive.Config{}, 0},
		{"maglev", maglev.Config{}, maglev.DefaultTableSize},
		{"ring_hash", ringhash.Config{MaximumSize: 1 << 18}, 1 << 18},
		{"ketama", ringhash.Config{Function: ringhash.Ketama, MaximumSize: 1 << 18}, 1 << 18},
	} {
		t.Run(c.name, func(t *testing.T) {
			for n, in := range inputs {
				u64, u32, err := c.b.Shape(in)
				if err != nil {
					t.Fatal(err)
				}
				if bytes, most := 8*u64+4*u32, 64*n+14*c.entries; bytes > most {
					t.Errorf("%d endpoints: %d bytes, at most %d are expected", n, bytes, most)
				}
				st := &lbcore.Storage{U64: make([]uint64, u64), U32: make([]uint32, u32)}
				calls := 0
				sel, err := c.b.Build(in, st, func() error { calls++; return nil })
				if err != nil {
					t.Fatal(err)
				}
				// To sort the keys of a million takes 20 steps each.
				if least, most := n, 40*n+30*c.entries; calls*lbcore.PacerSteps < least-lbcore.PacerSteps && !in.Equal() || calls*lbcore.PacerSteps > most {
					t.Errorf("%d endpoints: %d yields", n, calls)
				}
				k := lbcore.StringKey("key")
				for at := sel.First(k); k.Hash%1000 != 0; k.Hash++ {
					var i int
					if i, at = sel.Next(k, at); i < 0 || i >= n {
						t.Fatalf("%d endpoints: picked %d", n, i)
					}
				}
				stop, left := errors.New("stop"), calls/2
				if calls == 0 {
					continue
				}
				if _, err = c.b.Build(in, st, func() error {
					if left--; left < 0 {
						return stop
					}
					return nil
				}); err != stop || left != -1 {
					t.Errorf("%d endpoints: stopped with %v, %d calls after that", n, err, -1-left)
				}
			}
		})
	}
}

// largeSet returns an Input of n endpoints of some weights. To make so many
// members would take longer than the test, so that they share a few.
func largeSet(t *testing.T, n int, weights []uint32) (in lbcore.Input) {
	few := lbtest.Input(t, 1, 1, 1)
	sum := 0.0
	for i := range n {
		ip := netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
		e := &lbcore.Endpoint{Addr: lbcore.IPAddr(netip.AddrPortFrom(ip, 80)), Weight: weights[i%len(weights)]}
		in.Members = append(in.Members, few.Members[i%3])
		in.Endpoints = append(in.Endpoints, e)
		sum += float64(e.Weight)
	}
	for _, e := range in.Endpoints {
		in.Shares = append(in.Shares, float64(e.Weight)/sum)
	}
	return in
}
