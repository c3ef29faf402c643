package random

import (
	"errors"
	"math"
	"strings"
	"testing"

	"gatehouse.internal/lbcore"
	"gatehouse.internal/lbcore/lbtest"
)

// shares returns how often each member is picked first for n keys.
func shares(s lbcore.Selector, members, n int, key func(i int) lbcore.Key) []float64 {
	got := make([]float64, members)
	for i := range n {
		k := key(i)
		m, _ := s.Next(k, s.First(k))
		got[m] += 1 / float64(n)
	}
	return got
}

func TestShares(t *testing.T) {
	const n = 100_000
	for name, key := range map[string]func(i int) lbcore.Key{
		// Without a key the selection's random hash is the draw; any spread
		// of numbers does. A key has no say: one key goes to all.
		"no key":  func(i int) lbcore.Key { return lbcore.Key{Hash: uint64(i) * 0x9e3779b97f4a7c15} },
		"one key": func(int) lbcore.Key { return lbcore.StringKey("k") },
	} {
		for _, weights := range [][]uint32{{1}, {5, 5, 5}, {1, 2}, {1, 2, 3, 4}, {1, 1000}, {math.MaxUint32, math.MaxUint32, math.MaxUint32 / 2}} {
			in := lbtest.Input(t, weights...)
			got := shares(lbtest.Build(t, Config{}, in), len(weights), n, key)
			for i, share := range in.Shares {
				if math.Abs(got[i]-share) > 0.01 || share < 0.01 && got[i] == 0 {
					t.Errorf("%s, weights %v: shares %.4f, want %.4f", name, weights, got, in.Shares)
					break
				}
			}
		}
	}
}

// The candidates of one search are draws too: who comes next does not depend
// on who was before.
func TestNextDraws(t *testing.T) {
	in := lbtest.Input(t, 1, 3)
	s := lbtest.Build(t, Config{}, in)
	var next [2][2]float64
	const n = 40_000
	for range n {
		k := lbcore.StringKey("k")
		a, at := s.First(k), uint64(0)
		first, at := s.Next(k, a)
		second, _ := s.Next(k, at)
		next[first][second] += 1. / n
	}
	for i, a := range in.Shares {
		for j, b := range in.Shares {
			if math.Abs(next[i][j]-a*b) > 0.015 {
				t.Errorf("%d and then %d: %.3f, want %.3f", i, j, next[i][j], a*b)
			}
		}
	}
	if n, all := s.Steps(); n != 32 || all {
		t.Errorf("steps: %d, %v", n, all)
	}
}

func TestPicksThroughTheSlot(t *testing.T) {
	r := lbtest.Start(t, Config{})
	r.Set("")
	if got := r.Pick(2, 1); got != "--" {
		t.Errorf("of the empty set: %s", got)
	}
	for _, weights := range [][]uint32{{1}, {1, 50, 9}} {
		r.Set("abcd", weights...)
		r.Down("abcd")
		for _, name := range []string{"a", "b", "c", "d"} {
			if got := r.Pick(5, 2); got != "-----" {
				t.Errorf("all are down: %s", got)
			}
			r.Up(name)
			if got, want := r.Pick(30, 2), strings.Repeat(name, 30); got != want {
				t.Errorf("only %s is up: %s", name, got)
			}
			r.Down(name)
		}
		r.Up("abcd")
	}
	// Those who are ready share by weight what the one who is down leaves, and
	// weight 0 takes nothing.
	r.Set("abcde", 1, 2, 4, 4, 0)
	r.Down("d")
	got := r.Pick(7000, 1)
	for name, n := range map[string]int{"a": 1000, "b": 2000, "c": 4000, "d": 0, "e": 0, "-": 0} {
		if c := strings.Count(got, name); c < n-n/8 || c > n+n/8 {
			t.Errorf("%d of %s in 7000, want %d", c, name, n)
		}
	}
}

func TestBuildIsGivenUp(t *testing.T) {
	weights := make([]uint32, 20_000)
	for i := range weights {
		weights[i] = math.MaxUint32 - uint32(i)
	}
	in := lbtest.Input(t, weights...)
	u64, u32, err := Config{}.Shape(in)
	if err != nil || 8*u64+4*u32 > 12*len(weights) {
		t.Fatalf("%d and %d words, %v", u64, u32, err)
	}
	st := &lbcore.Storage{U64: make([]uint64, u64), U32: make([]uint32, u32)}
	stop := errors.New("stop")
	if s, err := (Config{}).Build(in, st, func() error { return stop }); s != nil || err != stop {
		t.Errorf("%v, %v", s, err)
	}
	// In the storage that was given up, a good one.
	s, err := Config{}.Build(in, st, func() error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	for range 1000 {
		if m, _ := s.Next(lbcore.Key{}, s.First(lbcore.StringKey("k"))); m < 0 || m >= len(weights) {
			t.Fatalf("picked %d", m)
		}
	}
}
