package ringhash

import (
	"math/bits"
	"slices"
	"sort"
)

// yieldEvery is how many points are worked on between two yields: some tens of
// microseconds.
const yieldEvery = 4096

// buckets returns how many buckets n points are sorted into: a power of two,
// with about 16 points each.
func buckets(n int) int {
	if n < 64 {
		return 1
	}
	return 1 << (bits.Len(uint(n)) - 5)
}

// sortPoints sorts the points by hash, and those of one hash by member, in
// place. Hashes are spread evenly, so one pass by their leading bits leaves
// buckets of a few points; that is several times faster than comparing.
// members may be nil, if the hashes say who it is. scratch holds 2*buckets(n)
// elements; the part that says where each bucket begins is returned, and with it
// where the last one ends.
func sortPoints(hashes []uint64, members, scratch []uint32, yield func() error) (index []uint32, err error) {
	nb := buckets(len(hashes))
	shift := 64 - uint(bits.Len(uint(nb))-1)
	next, end := scratch[:nb], scratch[nb:2*nb]
	clear(end)
	for _, h := range hashes {
		end[h>>shift]++
	}
	var sum uint32
	for b := range end {
		next[b] = sum
		sum += end[b]
		end[b] = sum
	}
	// In a large ring buckets lie so far apart that each swap would miss the
	// caches: there, points are first brought near their place.
	if nb > 16*coarse {
		var first, last [coarse]uint32
		for c := range last {
			first[c], last[c] = next[c*nb/coarse], end[(c+1)*nb/coarse-1]
		}
		if err := scatter(hashes, members, first[:], last[:], 64-coarseBits, yield); err != nil {
			return nil, err
		}
	}
	if err := scatter(hashes, members, next, end, shift, yield); err != nil {
		return nil, err
	}
	var start uint32
	work := 0
	for b := range end {
		if members == nil {
			sortHashes(hashes[start:end[b]])
		} else {
			sortBucket(hashes[start:end[b]], members[start:end[b]])
		}
		if work += int(end[b] - start); work >= yieldEvery {
			work = 0
			if err := yield(); err != nil {
				return nil, err
			}
		}
		start = end[b]
	}
	next[nb-1] = 0 // where the first bucket begins
	return scratch[nb-1 : 2*nb : 2*nb], nil
}

// The buckets of the first of two passes.
const (
	coarseBits = 8
	coarse     = 1 << coarseBits
)

// scatter brings each point to the bucket that the leading bits of its hash
// name. Bucket b is from next[b] to end[b]. A point that is not in its bucket is
// swapped into it, until the bucket at hand has only its own.
func scatter(hashes []uint64, members, next, end []uint32, shift uint, yield func() error) error {
	work := 0
	for b := range end {
		for next[b] < end[b] {
			i := next[b]
			to := hashes[i] >> shift
			if int(to) == b {
				next[b]++
			} else {
				j := next[to]
				next[to]++
				hashes[i], hashes[j] = hashes[j], hashes[i]
				if members != nil {
					members[i], members[j] = members[j], members[i]
				}
			}
			if work++; work%yieldEvery == 0 {
				if err := yield(); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// sortBucket sorts a few points. Keys that somebody chose so that their hashes
// crowd must not make it quadratic.
func sortBucket(hashes []uint64, members []uint32) {
	if len(hashes) > 128 {
		sort.Sort(&points{hashes, members})
		return
	}
	for i := 1; i < len(hashes); i++ {
		h, m := hashes[i], members[i]
		j := i
		for ; j > 0 && (hashes[j-1] > h || hashes[j-1] == h && members[j-1] > m); j-- {
			hashes[j], members[j] = hashes[j-1], members[j-1]
		}
		hashes[j], members[j] = h, m
	}
}

// sortHashes is sortBucket without members.
func sortHashes(hashes []uint64) {
	if len(hashes) > 128 {
		slices.Sort(hashes)
		return
	}
	for i := 1; i < len(hashes); i++ {
		h := hashes[i]
		j := i
		for ; j > 0 && hashes[j-1] > h; j-- {
			hashes[j] = hashes[j-1]
		}
		hashes[j] = h
	}
}

type points struct {
	hashes  []uint64
	members []uint32
}

func (p *points) Len() int { return len(p.hashes) }
func (p *points) Less(i, j int) bool {
	return p.hashes[i] < p.hashes[j] || p.hashes[i] == p.hashes[j] && p.members[i] < p.members[j]
}
func (p *points) Swap(i, j int) {
	p.hashes[i], p.hashes[j] = p.hashes[j], p.hashes[i]
	p.members[i], p.members[j] = p.members[j], p.members[i]
}
