package ringhash

import (
	"math/bits"

	"gatehouse.internal/lbcore"
)

// arcs finds points by their hash. Hashes are spread evenly, so the leading
// bits of one lead to the few points that are near it.
type arcs struct {
	hashes []uint64 // ascending
	// The points whose hashes begin with the bits b are those from begin[b] to
	// begin[b+1].
	begin []uint32
	shift uint // leaves these bits of a hash
}

// buckets returns how many parts of equal length n points are found by: a power
// of two, with four to eight points each.
func buckets(n int) int { return 1 << max(bits.Len(uint(n))-3, 1) }

// newArcs returns the arcs of hashes, which are sorted. st takes 1 more than
// buckets(len(hashes)).
func newArcs(p *lbcore.Pacer, hashes []uint64, st []uint32) (arcs, error) {
	nb := buckets(len(hashes))
	a := arcs{hashes, st[: nb+1 : nb+1], uint(65 - bits.Len(uint(nb)))}
	b := uint64(0)
	a.begin[0] = 0
	for i, h := range hashes {
		for ; b < h>>a.shift; b++ {
			a.begin[b+1] = uint32(i)
		}
		if err := p.Did(1); err != nil {
			return arcs{}, err
		}
	}
	for ; b < uint64(nb); b++ {
		a.begin[b+1] = uint32(len(hashes))
	}
	return a, nil
}

// Site implements [lbcore.Sited].
func (a *arcs) Site(_ lbcore.Key, at uint64) lbcore.Site {
	return lbcore.Site{Place: at, Of: uint64(len(a.hashes)), Hash: a.hashes[at]}
}

// first returns the first point with a hash of at least h, wrapping to 0.
func (a *arcs) first(h uint64) uint64 {
	at, end := a.near(h)
	return a.among(at, end, h)
}

// among is first for what near has returned.
func (a *arcs) among(at, end, h uint64) uint64 {
	// No branch depends on the hashes of a bucket: nothing could foretell it.
	for _, x := range a.hashes[at:end] {
		_, below := bits.Sub64(x, h, 0) // 1 if x < h
		at += below
	}
	return a.wrap(at)
}

// near returns up to 16 points, or none, of which those below h are the last
// ones below it. They are a bucket, or a part of one in which hashes crowd that
// somebody has chosen.
func (a *arcs) near(h uint64) (at, end uint64) {
	b := h >> (a.shift & 63)
	at, end = uint64(a.begin[b]), uint64(a.begin[b+1])
	for end-at > 16 {
		if mid := at + (end-at)/2; a.hashes[mid] < h {
			at = mid + 1
		} else {
			end = mid
		}
	}
	return at, end
}

// after returns the point after the one at i, wrapping to 0.
func (a *arcs) after(i uint64) uint64 { return a.wrap(i + 1) }

func (a *arcs) wrap(i uint64) uint64 {
	if i == uint64(len(a.hashes)) {
		return 0
	}
	return i
}

// Steps implements [lbcore.Selector]: that far a search walks along the ring
// before it turns to the permutation of all members.
func (a *arcs) Steps() (int, bool) { return 32, false }
