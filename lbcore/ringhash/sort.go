package ringhash

import (
	"cmp"
	"math/bits"
	"slices"

	"gatehouse.internal/lbcore"
)

// index is a member on a ring: 16 bits wide where that is enough.
type index interface{ uint16 | uint32 }

// How points are sorted.
const (
	few       = 24 // so many are sorted by insertion
	digitBits = 10 // so many bits at most are sorted by at once,
	firstBits = 8  // but of many points so many, to stay within the caches
	many      = 1 << 15
)

// sortPoints sorts points by hash, and those of one hash by member, in place
// and without scratch: by the leading bits of the hashes, then each bucket by
// the next ones. Hashes are spread evenly, so two rounds leave a few points a
// bucket; whatever they are, each round is linear, and bits are at an end. It
// is several times faster than comparing. members may be nil, if the hashes say
// who it is.
func sortPoints[M index](p *lbcore.Pacer, hashes []uint64, members []M, used int) error {
	n := len(hashes)
	if n <= few {
		if members == nil {
			sortFewHashes(hashes)
		} else {
			sortFew(hashes, members)
		}
		return p.Did(n)
	}
	if used == 64 {
		return sortMembers(p, members)
	}
	width := min(bits.Len(uint(n))-2, digitBits, 64-used)
	if n > many {
		width = min(firstBits, 64-used)
	}
	shift, mask := uint(64-used-width), uint64(1)<<width-1
	var begin, end [1 << digitBits]uint32
	for chunk := range slices.Chunk(hashes, lbcore.PacerSteps) {
		for _, h := range chunk {
			end[h>>(shift&63)&mask%(1<<digitBits)]++
		}
		if err := p.Did(len(chunk)); err != nil {
			return err
		}
	}
	sum := uint32(0)
	for b := range end[:mask+1] {
		begin[b] = sum
		sum += end[b]
		end[b] = sum
	}
	if err := scatter(p, hashes, members, begin[:mask+1], end[:mask+1], shift); err != nil {
		return err
	}
	start := uint32(0)
	for _, stop := range end[:mask+1] {
		if stop-start > 1 {
			var ms []M
			if members != nil {
				ms = members[start:stop]
			}
			if err := sortPoints(p, hashes[start:stop], ms, used+width); err != nil {
				return err
			}
		}
		start = stop
	}
	return nil
}

// scatter brings each point to the bucket that the bits of its hash from shift
// on name. Bucket b is from begin[b] to end[b]. A point that is elsewhere takes
// the place of one that is not yet moved in its bucket, and that one goes on,
// until one is found that belongs where the first was.
func scatter[M index](p *lbcore.Pacer, hashes []uint64, members []M, begin, end []uint32, shift uint) error {
	mask := uint64(len(begin) - 1)
	for b := range begin {
		for i := begin[b]; i < end[b]; i++ {
			h := hashes[i]
			to := h >> (shift & 63) & mask
			if to != uint64(b) {
				var m M
				if members != nil {
					m = members[i]
				}
				for to != uint64(b) {
					j := begin[to]
					begin[to]++
					h, hashes[j] = hashes[j], h
					if members != nil {
						m, members[j] = members[j], m
					}
					to = h >> (shift & 63) & mask
					if err := p.Did(1); err != nil {
						return err
					}
				}
				hashes[i] = h
				if members != nil {
					members[i] = m
				}
			}
		}
		begin[b] = end[b]
	}
	return nil
}

// sortMembers sorts the members of points of one hash, as endpoints of one
// hash key have them.
func sortMembers[M index](p *lbcore.Pacer, members []M) (err error) {
	slices.SortFunc(members, func(a, b M) int {
		if err == nil {
			err = p.Did(1)
		}
		if err != nil {
			return 0 // the end comes soon
		}
		return cmp.Compare(a, b)
	})
	return err
}

// sortFew sorts a few points.
func sortFew[M index](hashes []uint64, members []M) {
	members = members[:len(hashes)]
	for i := 1; i < len(hashes); i++ {
		h, m := hashes[i], members[i]
		j := i
		for ; j > 0 && (hashes[j-1] > h || hashes[j-1] == h && members[j-1] > m); j-- {
			hashes[j], members[j] = hashes[j-1], members[j-1]
		}
		hashes[j], members[j] = h, m
	}
}

// sortFewHashes is sortFew without members.
func sortFewHashes(hashes []uint64) {
	for i := 1; i < len(hashes); i++ {
		h := hashes[i]
		j := i
		for ; j > 0 && hashes[j-1] > h; j-- {
			hashes[j] = hashes[j-1]
		}
		hashes[j] = h
	}
}
