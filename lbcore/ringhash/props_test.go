package ringhash

import (
	"cmp"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"

	"github.com/cespare/xxhash/v2"
	"pgregory.net/rapid"

	"gatehouse.internal/lbcore"
	"gatehouse.internal/lbcore/lbtest"
)

// plainRing is Envoy's rule written down without a thought for speed.
func plainRing(c Config, in lbcore.Input) (points []point) {
	c = c.defaults()
	least := slices.Min(in.Shares)
	scale := min(math.Ceil(least*float64(c.MinimumSize))/least, float64(c.MaximumSize))
	current, target := 0.0, 0.0
	for m, share := range in.Shares {
		target += scale * share
		for i := 0; current < target && len(points) < int(c.MaximumSize); i++ {
			key := in.Endpoints[m].Key() + "_" + strconv.Itoa(i)
			hash := xxhash.Sum64String(key)
			if c.Function == MurmurHash2 {
				hash = murmur2([]byte(key))
			}
			points = append(points, point{hash, m})
			current++
		}
	}
	slices.SortFunc(points, func(a, b point) int { return cmp.Or(cmp.Compare(a.hash, b.hash), cmp.Compare(a.who, b.who)) })
	return points
}

// endpoints draws up to n endpoints of random weights and keys.
func endpoints(t *rapid.T, n int) []lbcore.Endpoint {
	weights := rapid.SampledFrom([]*rapid.Generator[uint32]{
		rapid.Just[uint32](1), rapid.Uint32Range(1, 10), rapid.Uint32Min(1),
	}).Draw(t, "kind")
	var eps []lbcore.Endpoint
	for _, p := range rapid.SliceOfNDistinct(rapid.IntRange(1, 500), 1, n, rapid.ID).Draw(t, "ports") {
		e := host(p, weights.Draw(t, "weight"))
		e.HashKey = rapid.SampledFrom([]string{"", "", "", "same", "k" + strconv.Itoa(p)}).Draw(t, "key")
		eps = append(eps, e)
	}
	return eps
}

// A ring equals the plain one, also where points collide because two hosts
// have one key; its size is within its bounds; who gets a hash is who a plain
// search finds.
func TestRingEqualsThePlainOne(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		c := Config{Function: Function(rapid.IntRange(0, 1).Draw(rt, "function"))}
		c.MinimumSize = rapid.Uint64Range(1, 3000).Draw(rt, "min")
		c.MaximumSize = rapid.Uint64Range(c.MinimumSize, 5000).Draw(rt, "max")
		in := lbtest.InputOf(t, endpoints(rt, 40)...)
		r, want := build(t, c, in), plainRing(c, in)
		if len(r.hashes) != len(want) {
			rt.Fatalf("%d points, want %d", len(r.hashes), len(want))
		}
		for i, p := range want {
			if r.hashes[i] != p.hash || int(r.members[i]) != p.who {
				rt.Fatalf("point %d is %d of %d, want %v", i, r.hashes[i], r.members[i], p)
			}
		}
		if n := uint64(len(r.hashes)); n > c.MaximumSize || n == 0 || n < min(c.MinimumSize, c.MaximumSize) {
			rt.Fatalf("%d points, want %d to %d", n, c.MinimumSize, c.MaximumSize)
		}
		for range 20 {
			h := rapid.OneOf(rapid.Uint64(), rapid.SampledFrom(r.hashes)).Draw(rt, "hash")
			h += uint64(rapid.IntRange(-1, 1).Draw(rt, "by"))
			i := slices.IndexFunc(want, func(p point) bool { return p.hash >= h })
			if got := r.owner(h); got != want[max(i, 0)].who {
				rt.Fatalf("%d goes to %d, want %d", h, got, want[max(i, 0)].who)
			}
		}
	})
}

// The maximum is respected also where the sum of rounded shares is above it.
func TestMaximumIsRespected(t *testing.T) {
	for n := 1; n <= 3000; n += 1 + n/50 {
		in := lbcore.Input{Shares: make([]float64, n)}
		for i := range in.Shares {
			in.Shares[i] = 1 / float64(n)
		}
		for _, size := range []uint64{1, 7, 100, 1023, 1024, 4096} {
			c := Config{MinimumSize: size, MaximumSize: size}
			u64, _, err := c.Shape(in)
			if err != nil || uint64(u64) != size {
				t.Fatalf("%d hosts: %d points, want %d; %v", n, u64, size, err)
			}
		}
	}
}

// bug 23: a restart, which has another order, moves no key.
func TestOrderOfInputDoesNotMatter(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		eps := endpoints(rt, 20)
		other := rapid.Permutation(eps).Draw(rt, "order")
		c := Config{MaximumSize: 5000}
		a, b := build(t, c, lbtest.InputOf(t, eps...)), build(t, c, lbtest.InputOf(t, other...))
		if !slices.Equal(a.hashes, b.hashes) || !slices.Equal(a.members, b.members) {
			rt.Fatal("the rings differ")
		}
	})
}

// Only the newcomer gains, and, the other way round, only the leaver loses.
// Envoy's rule gives this where the points of each host stay the same: here k
// a host (or a unit of weight) with and without the newcomer.
//
// bug 23: a change elsewhere moves no key between those who stay.
func TestOnlyTheNewcomerGains(t *testing.T) {
	exact := 0
	rapid.Check(t, func(rt *rapid.T) {
		var eps []lbcore.Endpoint
		total := uint64(0) // units of weight before the newcomer
		for _, p := range rapid.SliceOfNDistinct(rapid.IntRange(1, 500), 3, 30, rapid.ID).Draw(rt, "ports") {
			eps = append(eps, host(p, rapid.Uint32Range(1, 4).Draw(rt, "weight")))
		}
		eps[0].Weight, eps[1].Weight = 1, 1 // the least, with and without the last
		newcomer := len(eps) - 1
		for i, e := range eps {
			if i != newcomer {
				total += uint64(e.Weight)
			}
		}
		w := uint64(eps[newcomer].Weight)
		// ceil(min/total) and ceil(min/(total+w)) are both k.
		k := rapid.Uint64Range(1, max(1, (total-1)/w)).Draw(rt, "k")
		c := Config{MinimumSize: (k-1)*(total+w) + 1}
		with, without := lbtest.InputOf(t, eps...), lbtest.InputOf(t, eps[:newcomer]...)
		a, b := build(t, c, with), build(t, c, without)
		is, was := a.byHost(with), b.byHost(without)
		was[eps[newcomer].Addr] = is[eps[newcomer].Addr]
		for _, e := range eps {
			want := int(k) * int(e.Weight)
			if is, was := is[e.Addr], was[e.Addr]; max(is, was) > want+1 || min(is, was) < want-1 {
				rt.Fatalf("%v has %d points, had %d, want %d", e.Addr, is, was, want)
			} else if is != want || was != want {
				return // rounding of Envoy's sums gave a point to a neighbour
			}
		}
		exact++
		moved := 0
		for range 500 {
			h := rand.Uint64()
			is, was := with.Endpoints[a.owner(h)].Addr, without.Endpoints[b.owner(h)].Addr
			if is != was {
				moved++
				if is != eps[newcomer].Addr {
					rt.Fatalf("%d moved from %v to %v", h, was, is)
				}
			}
		}
		if fair := 500 * float64(w) / float64(total+w); float64(moved) > 6*fair+40 {
			rt.Fatalf("%d of 500 moved, fair is %.0f", moved, fair)
		}
	})
	if exact < 10 {
		t.Errorf("only %d rings could be compared", exact)
	}
}

// With a ring of about the same size every host has fewer points when one more
// comes, so that some keys move between those that were there.
func TestDefaultRingMovesFewKeys(t *testing.T) {
	for _, n := range []int{3, 10, 50} {
		with, without := lbtest.InputOf(t, hosts(1, n+1)...), lbtest.InputOf(t, hosts(1, n)...)
		a, b := build(t, Config{}, with), build(t, Config{}, without)
		moved := 0
		const keys = 5000
		for i := range keys {
			h := uint64(i) * (math.MaxUint64 / keys)
			if with.Endpoints[a.owner(h)].Addr != without.Endpoints[b.owner(h)].Addr {
				moved++
			}
		}
		// The newcomer's share, and up to as much again.
		if share := float64(moved) / keys; share > 2.5/float64(n+1) {
			t.Errorf("from %d hosts to %d: %.1f %% of the keys moved", n, n+1, 100*share)
		}
	}
}

// How even the shares are follows from the points a host has.
func TestSharesAreEven(t *testing.T) {
	for _, points := range []uint64{100, 1000} {
		const n = 50
		r := build(t, Config{MinimumSize: n * points}, lbtest.InputOf(t, hosts(1, n)...))
		arcs := make([]float64, n)
		for i, h := range r.hashes {
			prev := r.hashes[(i+len(r.hashes)-1)%len(r.hashes)]
			arcs[r.members[i]] += float64(h-prev) / math.Pow(2, 64)
		}
		sd := 1 / math.Sqrt(float64(points))
		for m, a := range arcs {
			if dev := a*n - 1; math.Abs(dev) > 5*sd {
				t.Errorf("%d points: host %d has %.3f of its share", points, m, a*n)
			}
		}
	}
}

// checkSort sorts by sortPoints and compares with sorting by comparison.
func checkSort(t interface{ Fatalf(string, ...any) }, hashes []uint64, members []uint32) {
	want := make([]point, len(hashes))
	for i := range hashes {
		want[i] = point{hashes[i], int(members[i])}
	}
	slices.SortFunc(want, func(a, b point) int { return cmp.Or(cmp.Compare(a.hash, b.hash), cmp.Compare(a.who, b.who)) })
	p := new(lbcore.Pacer)
	alone := slices.Clone(hashes)
	if err := sortPoints[uint16](p, alone, nil, 0); err != nil {
		t.Fatalf("%v", err)
	}
	if err := sortPoints(p, hashes, members, 0); err != nil {
		t.Fatalf("%v", err)
	}
	if !slices.Equal(alone, hashes) {
		t.Fatalf("of %d: sorted without members they differ", len(hashes))
	}
	for i, p := range want {
		if hashes[i] != p.hash || int(members[i]) != p.who {
			t.Fatalf("of %d: at %d is %d of %d, want %v", len(hashes), i, hashes[i], members[i], p)
		}
	}
	// The index leads each hash, and what lies beside it, to its place.
	if len(hashes) == 0 {
		return
	}
	st := make([]uint32, buckets(len(hashes))+1)
	for i := range st {
		st[i] = 0xffffffff
	}
	a, err := newArcs(p, hashes, st)
	if err != nil {
		t.Fatalf("%v", err)
	}
	for _, h := range append(slices.Clone(hashes[:min(len(hashes), 500)]), 0, math.MaxUint64) {
		for _, h := range []uint64{h - 1, h, h + 1} {
			i, _ := slices.BinarySearch(hashes, h)
			if at, end := a.near(h); end-at > 16 {
				t.Fatalf("of %d: %d points are near %d", len(hashes), end-at, h)
			}
			if got := a.first(h); got != uint64(i%len(hashes)) {
				t.Fatalf("of %d: %d is led to %d, want %d", len(hashes), h, got, i)
			}
		}
	}
}

func TestSortEqualsSortingByComparison(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.OneOf(rapid.IntRange(0, 200), rapid.IntRange(200, 5000)).Draw(t, "n")
		// Crowded hashes: only some bits vary.
		mask := rapid.SampledFrom([]uint64{
			math.MaxUint64, 0, 1, 0xff, 3 << 62, 0xff << 56, 0xf<<60 | 3, 1 << 63, 0xffff << 24,
		}).Draw(t, "mask")
		base := rapid.SampledFrom([]uint64{0, math.MaxUint64, 0x123456789abcdef0}).Draw(t, "base")
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		hashes, members := make([]uint64, n), make([]uint32, n)
		for i := range hashes {
			hashes[i] = base&^mask | rng.Uint64()&mask
			members[i] = rng.Uint32N(7)
		}
		checkSort(t, hashes, members)
	})
}

// Large rings are sorted in two passes.
func TestSortOfLargeRings(t *testing.T) {
	for _, n := range []int{1 << 17, 1<<17 + 12_345} {
		for _, mask := range []uint64{math.MaxUint64, 0xf0f << 52} {
			hashes, members := make([]uint64, n), make([]uint32, n)
			for i := range hashes {
				hashes[i], members[i] = rand.Uint64()&mask, rand.Uint32N(7)
			}
			checkSort(t, hashes, members)
		}
	}
}

// Hashes that somebody chose to crowd into one bucket.
func TestSortOfCrowdedHashesIsNotQuadratic(t *testing.T) {
	const n = 50_000
	hashes, members := make([]uint64, n), make([]uint32, n)
	for i := range hashes {
		hashes[i], members[i] = uint64(n-i), uint32(i)
	}
	checkSort(t, hashes, members)
	for i := range hashes {
		hashes[i], members[i] = 7, uint32(n-i)
	}
	checkSort(t, hashes, members)
}

func FuzzSort(f *testing.F) {
	f.Add([]byte("some bytes that make a few points of a ring, and then some more of them"))
	f.Fuzz(func(t *testing.T, b []byte) {
		var hashes []uint64
		var members []uint32
		for ; len(b) >= 2; b = b[2:] {
			hashes, members = append(hashes, uint64(b[0])<<56|uint64(b[0]>>4)), append(members, uint32(b[1]))
		}
		checkSort(t, hashes, members)
	})
}

// A build calls yield all along, and gives up at once with its error.
func TestYieldAborts(t *testing.T) {
	in := lbtest.InputOf(t, hosts(1, 100)...)
	c := Config{MinimumSize: 40_000}
	u64, u32, err := c.Shape(in)
	if err != nil {
		t.Fatal(err)
	}
	st := &lbcore.Storage{U64: make([]uint64, u64), U32: make([]uint32, u32)}
	calls := 0
	if _, err := c.Build(in, st, func() error { calls++; return nil }); err != nil {
		t.Fatal(err)
	}
	// Each point is hashed, counted and moved in up to two rounds, sorted and
	// indexed.
	if passes := u64 / lbcore.PacerSteps; calls < 5*passes-5 || calls > 8*passes+8 {
		t.Errorf("%d calls for %d points", calls, u64)
	}
	stop := errors.New("stop")
	for at := 1; at <= calls; at += 3 {
		n := 0
		sel, err := c.Build(in, st, func() error {
			if n++; n >= at {
				return stop
			}
			return nil
		})
		if err != stop || sel != nil || n != at {
			t.Fatalf("stopped at call %d: %v, %v after %d", at, sel, err, n)
		}
	}
	// And a build after that, in the same storage, is as good as any.
	sel, err := c.Build(in, st, noYield)
	if err != nil || !slices.IsSorted(sel.(*ring[uint16]).hashes) {
		t.Error("a build after one that was given up is wrong")
	}
}

// Up to 65,536 endpoints a point takes at most 11 bytes with all that is
// allocated with it, and 13 above.
func TestBytesAPoint(t *testing.T) {
	for _, c := range []struct {
		endpoints int
		most      float64
	}{{1000, 11}, {10_000, 11}, {1 << 16, 11}, {1<<16 + 1, 13}} {
		in := lbtest.Input(t, slices.Repeat([]uint32{1}, c.endpoints)...)
		for _, config := range []Config{
			{}, {MinimumSize: uint64(c.endpoints)}, {MinimumSize: LimitSize}, {MinimumSize: 1 << 20}, {MinimumSize: 1<<20 - 1}, {Function: Ketama, MaximumSize: 1 << 20},
		} {
			u64, u32, err := config.Shape(in)
			if err != nil {
				t.Fatal(err)
			}
			// A word rounds the members up, and one ends the index.
			if each := float64(8*u64+4*u32-8) / float64(u64); each > c.most {
				t.Errorf("%d endpoints, %d points: %.2f bytes a point", c.endpoints, u64, each)
			}
		}
	}
}

// One endpoint more than 16 bits can tell apart.
func TestWideMembers(t *testing.T) {
	for _, n := range []int{1 << 16, 1<<16 + 1} {
		in := lbtest.Input(t, slices.Repeat([]uint32{1}, n)...)
		c := Config{MinimumSize: uint64(2 * n)}
		s := lbtest.Build(t, c, in)
		if _, wide := s.(*ring[uint32]); wide != (n > 1<<16) {
			t.Errorf("%d endpoints: %T", n, s)
		}
		at, seen := uint64(0), make([]int, n)
		for _, p := range plainRing(c.defaults(), in) {
			var m int
			if m, at = s.Next(lbcore.Key{}, at); m != p.who {
				t.Fatalf("%d endpoints: a point belongs to %d, want %d", n, m, p.who)
			}
			seen[m]++
		}
		if at != 0 || slices.Min(seen) != 2 || slices.Max(seen) != 2 {
			t.Errorf("%d endpoints: %d to %d points each, then %d", n, slices.Min(seen), slices.Max(seen), at)
		}
	}
}

// The largest ring there may be, and the most hosts: bounded, and no panic.
//
// bug 19: the sum of weights is beyond 32 bits.
func TestLimits(t *testing.T) {
	c := Config{MinimumSize: LimitSize}
	for _, in := range []lbcore.Input{
		lbtest.InputOf(t, hosts(1, 3)...),
		lbtest.InputOf(t, host(1, 1), host(2, math.MaxUint32), host(3, math.MaxUint32)),
	} {
		u64, u32, err := c.Shape(in)
		if err != nil || u64 > LimitSize || u64 < LimitSize-1 || 8*u64+4*u32 > 13*LimitSize {
			t.Errorf("%d and %d words, %v", u64, u32, err)
		}
	}
}
