package lbcore

import (
	"errors"
	"math"
	"testing"

	"pgregory.net/rapid"
)

// shared returns an Input of nothing but the shares of weights.
func shared(weights ...uint32) (in Input) {
	sum := 0.0
	for _, w := range weights {
		sum += float64(w)
	}
	for _, w := range weights {
		in.Shares = append(in.Shares, float64(w)/sum)
	}
	return in
}

// draws builds in storage full of rubbish.
func draws(t testing.TB, in Input) Draws {
	t.Helper()
	u64, u32 := DrawsShape(in)
	st := &Storage{U64: make([]uint64, u64), U32: make([]uint32, u32)}
	for i := range st.U64 {
		st.U64[i], st.U32[i] = 0xdead<<48|uint64(i), 0xbad<<20
	}
	d, err := NewDraws(in, st, func() error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// parts returns what the table gives each member, as parts of 1.
func (d *Draws) parts() []float64 {
	n := float64(d.n)
	parts := make([]float64, d.n)
	for slot, w := range d.table {
		keep := float64(w>>32) / (1 << 32)
		parts[slot] += keep / n
		parts[uint32(w)] += (1 - keep) / n
	}
	return parts
}

// The table gives each member its share, and a draw reads it as it is meant.
func TestDrawsTable(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		weights := rapid.SliceOfN(rapid.OneOf(rapid.Uint32Range(1, 10), rapid.Uint32Min(1)), 2, 200).Draw(rt, "weights")
		in := shared(weights...)
		d := draws(t, in)
		if in.Equal() != (d.table == nil) {
			rt.Fatal("a table is for shares that differ")
		}
		if d.table == nil {
			return
		}
		for i, part := range d.parts() {
			if math.Abs(part-in.Shares[i]) > 1e-9 {
				rt.Fatalf("member %d of %v gets %.12f, its share is %.12f", i, weights, part, in.Shares[i])
			}
		}
		for slot, w := range d.table {
			high := (uint64(slot)<<32 + d.n - 1) / d.n // the first half word of the slot
			keep := w >> 32
			for _, low := range []uint64{0, keep - 1, keep, 1<<32 - 1} {
				if low >= 1<<32 {
					continue
				}
				want := slot
				if low >= keep {
					want = int(uint32(w))
				}
				if got := d.draw(high<<32 | low); got != want {
					rt.Fatalf("slot %d, %d of %d: drew %d, want %d", slot, low, keep, got, want)
				}
			}
		}
	})
}

func TestUniformDraws(t *testing.T) {
	for _, n := range []int{1, 2, 3, 7, 1000} {
		weights := make([]uint32, n)
		for i := range weights {
			weights[i] = 9
		}
		d := draws(t, shared(weights...))
		if d.table != nil {
			t.Fatal("a table for equal weights")
		}
		for i := range n {
			first := (uint64(i)<<32 + uint64(n) - 1) / uint64(n)
			if got := d.draw(first << 32); got != i {
				t.Errorf("of %d: the first of slot %d draws %d", n, i, got)
			}
			if got := d.draw(first<<32 - 1); n > 1 && got != (i+n-1)%n {
				t.Errorf("of %d: before the first of slot %d it draws %d", n, i, got)
			}
		}
		if got := d.draw(math.MaxUint64); got != n-1 {
			t.Errorf("of %d: the last draws %d", n, got)
		}
	}
}

// Draws from positions that follow one another have the shares too, and say
// nothing of each other.
func TestDrawsAreIndependent(t *testing.T) {
	d := draws(t, shared(1, 2, 5))
	const n = 200_000
	var single [3]float64
	var pairs [3][3]float64
	at, last := uint64(1), 0
	for range n {
		var m int
		m, at = d.Next(at)
		single[m] += 1. / n
		pairs[last][m] += 1. / n
		last = m
	}
	shares := []float64{1. / 8, 2. / 8, 5. / 8}
	for i, a := range shares {
		if math.Abs(single[i]-a) > 0.006 {
			t.Errorf("member %d: %.4f, want %.4f", i, single[i], a)
		}
		for j, b := range shares {
			if math.Abs(pairs[i][j]-a*b) > 0.006 {
				t.Errorf("%d after %d: %.4f, want %.4f", j, i, pairs[i][j], a*b)
			}
		}
	}
}

// A sum far beyond 32 bits, and shares from the smallest to all of it.
func TestDrawsOfExtremeWeights(t *testing.T) {
	weights := make([]uint32, 100_000)
	for i := range weights {
		weights[i] = math.MaxUint32
	}
	weights[5], weights[99_999] = 1, 1000
	d := draws(t, shared(weights...))
	sum := 0.0
	for i, part := range d.parts() {
		sum += part
		if share := float64(weights[i]) / (99_998.0 * math.MaxUint32); math.Abs(part-share) > 1e-12 || part <= 0 {
			t.Fatalf("member %d of weight %d gets %g", i, weights[i], part)
		}
	}
	if math.Abs(sum-1) > 1e-9 {
		t.Errorf("the parts are %g in all", sum)
	}
	for i := range weights {
		weights[i] = 1
	}
	weights[77] = math.MaxUint32
	d = draws(t, shared(weights...))
	share := math.MaxUint32 / (math.MaxUint32 + 99_999.0)
	if got := d.parts()[77]; math.Abs(got-share) > 1e-6 {
		t.Errorf("the heavy one gets %.9f, its share is %.9f", got, share)
	}
}

func TestDrawsYield(t *testing.T) {
	weights := make([]uint32, 100_000)
	for i := range weights {
		weights[i] = uint32(1 + i%7)
	}
	in := shared(weights...)
	u64, u32 := DrawsShape(in)
	st := &Storage{U64: make([]uint64, u64), U32: make([]uint32, u32)}
	calls := 0
	if _, err := NewDraws(in, st, func() error { calls++; return nil }); err != nil {
		t.Fatal(err)
	}
	if passes := len(weights) / PacerSteps; calls < passes || calls > 2*passes {
		t.Errorf("%d calls", calls)
	}
	stop := errors.New("stop")
	for at := 1; at <= calls; at++ {
		n := 0
		_, err := NewDraws(in, st, func() error {
			if n++; n >= at {
				return stop
			}
			return nil
		})
		if err != stop || n != at {
			t.Fatalf("stopped at call %d: %v after %d", at, err, n)
		}
	}
}
