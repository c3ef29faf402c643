package maglev

import (
	"cmp"
	"encoding/binary"
	"math"
	"slices"

	"github.com/cespare/xxhash/v2"

	"gatehouse.internal/lbcore"
)

// scratch returns how much storage a build needs beside the table.
func scratch(size uint64, in lbcore.Input) (u64, u32 int) {
	n := len(in.Members)
	keys := 0
	var buf []byte
	for _, e := range in.Endpoints {
		buf = e.AppendKey(buf[:0])
		keys += words(buf)
	}
	return int(size/64) + 1 + max(keys, 2*n), 3*n + 1
}

// words returns how many words hold a key.
func words(key []byte) int { return (len(key) + 7) / 8 }

// filler fills a table as Envoy does. Hosts come in the order of their keys,
// and each has a permutation of all slots, which begins at offset and goes on
// by skip. In round after round, each host whose weight is due takes the next
// free slot of its permutation.
//
// Two things bound the work where Envoy's loops would hardly end. A heap says
// who is due next, so that a round costs nothing for the light hosts beside a
// heavy one. And hosts of one key, which have one permutation, go along it
// together.
type filler struct {
	in   lbcore.Input
	size uint32
	pace *lbcore.Pacer

	order  []uint32 // members by rank, which is the order of keys
	next   []uint32 // by rank: the next slot to try, or size + the rank with the same permutation
	skip   []uint32 // by rank
	used   []uint64 // bits of slots
	heap   []uint64 // the round in which a rank is due, and the rank
	target []uint64 // by rank: Envoy's target weight
}

func (f *filler) fill(t *table, u64 []uint64, u32 []uint32) error {
	n, bits := len(f.in.Members), int(f.size/64)+1
	f.used, u64 = u64[:bits], u64[bits:]
	f.order, f.skip, f.next = u32[:n], u32[n:2*n], u32[2*n:3*n]
	if err := f.sort(u64, u32[2*n:]); err != nil {
		return err
	}
	if err := f.permute(); err != nil {
		return err
	}
	f.heap, f.target = u64[:n], u64[n:2*n]
	return f.rounds(t)
}

// sort orders the members by key. keys takes the keys, as words that compare as
// their bytes do; start says where each begins.
func (f *filler) sort(keys []uint64, start []uint32) (err error) {
	at := 0
	var buf []byte
	for i, e := range f.in.Endpoints {
		f.order[i], start[i] = uint32(i), uint32(at)
		buf = e.AppendKey(buf[:0])
		end := at + words(buf)
		buf = append(buf, 0, 0, 0, 0, 0, 0, 0)
		for rest := buf; at < end; rest = rest[8:] {
			keys[at] = binary.BigEndian.Uint64(rest)
			at++
		}
		if err := f.pace.Did(1); err != nil {
			return err
		}
	}
	start[len(f.order)] = uint32(at)
	slices.SortFunc(f.order, func(a, b uint32) int {
		if err == nil {
			err = f.pace.Did(1)
		}
		if err != nil {
			return 0 // the end comes soon
		}
		return cmp.Or(slices.Compare(keys[start[a]:start[a+1]], keys[start[b]:start[b+1]]), cmp.Compare(a, b))
	})
	return err
}

// permute finds where each permutation begins and how it goes on.
func (f *filler) permute() error {
	var buf []byte
	second := xxhash.NewWithSeed(1)
	leader := 0
	for rank, i := range f.order {
		buf = f.in.Endpoints[i].AppendKey(buf[:0])
		second.ResetWithSeed(1)
		second.Write(buf)
		offset := uint32(xxhash.Sum64(buf) % uint64(f.size))
		skip := uint32(second.Sum64()%uint64(f.size-1)) + 1
		f.next[rank], f.skip[rank] = offset, skip
		if rank > leader && offset == f.next[leader] && skip == f.skip[leader] {
			f.next[rank] = f.size + uint32(leader)
		} else {
			leader = rank
		}
		if err := f.pace.Did(1); err != nil {
			return err
		}
	}
	return nil
}

// rounds fills the slots.
func (f *filler) rounds(t *table) error {
	if err := f.pace.Clear(f.used); err != nil {
		return err
	}
	n := uint32(len(f.order))
	if f.in.Equal() { // everybody is due in every round
		for i := range f.size {
			if err := f.take(t, i%n); err != nil {
				return err
			}
		}
		return nil
	}
	heaviest := 0.0
	for rank := range f.heap {
		f.heap[rank], f.target[rank] = 1<<32|uint64(rank), 0
		heaviest = max(heaviest, f.in.Shares[rank])
		if err := f.pace.Did(1); err != nil {
			return err
		}
	}
	for range f.size {
		round, rank := f.heap[0]>>32, uint32(f.heap[0])
		if err := f.take(t, rank); err != nil {
			return err
		}
		target := math.Float64frombits(f.target[rank]) + heaviest
		f.target[rank] = math.Float64bits(target)
		round = due(round+1, f.in.Shares[f.order[rank]], target, float64(f.size))
		f.heap[0] = round<<32 | uint64(rank)
		if round == never {
			last := len(f.heap) - 1
			f.heap[0] = f.heap[last]
			f.heap = f.heap[:last]
		}
		down(f.heap)
	}
	return nil
}

// take gives a host the next free slot of its permutation.
func (f *filler) take(t *table, rank uint32) error {
	lead := rank
	if f.next[rank] >= f.size {
		lead = f.next[rank] - f.size
	}
	slot := f.next[lead]
	for f.used[slot/64]>>(slot%64)&1 != 0 {
		slot = f.after(slot, lead)
		if err := f.pace.Did(1); err != nil {
			return err
		}
	}
	f.used[slot/64] |= 1 << (slot % 64)
	f.next[lead] = f.after(slot, lead)
	t.set(uint64(slot), f.order[rank])
	return f.pace.Did(1)
}

// after returns the slot after one in a permutation.
func (f *filler) after(slot, rank uint32) uint32 {
	if slot += f.skip[rank]; slot >= f.size {
		slot -= f.size
	}
	return slot
}

// never is a round that does not come: the heaviest host takes a slot in each,
// so that the table is full before.
const never = 1<<32 - 1

// due returns the first round from a given one on that brings a weight to its
// target. It decides by the same product as Envoy, which is rounded.
func due(from uint64, weight, target, size float64) uint64 {
	guess := target / weight
	if guess > size+1 {
		return never
	}
	round := max(uint64(guess), from)
	for round > from && float64(round-1)*weight >= target {
		round--
	}
	for float64(round)*weight < target {
		round++
	}
	return round
}

// down restores the heap h after its first element has grown.
func down(h []uint64) {
	if len(h) == 0 {
		return
	}
	i, x := 0, h[0]
	for {
		c := 2*i + 1
		if c >= len(h) {
			break
		}
		if c+1 < len(h) && h[c+1] < h[c] {
			c++
		}
		if h[c] >= x {
			break
		}
		h[i] = h[c]
		i = c
	}
	h[i] = x
}
