package lbcore

import (
	"math/bits"
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"
)

// Storage is the memory that a selector of many entries is built in. A Builder
// says with Shape how much it needs, scratch included, and gets that much. It
// may hold anything from an earlier selector.
type Storage struct {
	U64 []uint64
	U32 []uint32
}

// Bytes returns the size of s.
func (s *Storage) Bytes() int { return 8*cap(s.U64) + 4*cap(s.U32) }

// region is the memory of one published selector: the Storages of all its parts
// lie in it. It serves one selector after the other.
//
// From mapBytes on it is not of Go's heap, where the platform allows that. There
// it would be freed when the collector comes, which with the default settings is
// when there is as much garbage as live memory; and its size would let all other
// garbage grow as far.
type region struct {
	words   []uint64
	large   bool      // of the large lane
	since   time.Time // when it became spare
	cleanup runtime.Cleanup
	free    func() // gives the memory back, at most once; nil in Go's heap
}

// mapBytes is from where on regions are mapped: some pages.
const mapBytes = 32 << 10

// newRegion returns a region of a class's size. One that is not of Go's heap is
// counted in total until it is given back or found unreachable. A fresh one is of
// Go's heap.
func newRegion(size int, large, fresh bool, total *atomic.Int64) *region {
	r := &region{large: large}
	if size < mapBytes && !large || fresh {
		r.words = make([]uint64, size/8)
		return r
	}
	var unmap func()
	r.words, unmap = mapWords(size / 8)
	total.Add(int64(size))
	free := func(unmap func()) {
		total.Add(-int64(size))
		if unmap != nil {
			unmap()
		}
	}
	// A region that nobody gives back, like that of a Group that ended, is
	// found by the collector.
	r.cleanup = runtime.AddCleanup(r, free, unmap)
	r.free = func() {
		r.cleanup.Stop()
		free(unmap)
	}
	return r
}

// release gives a region back that no reader can hold.
func (r *region) release() {
	if r.free != nil {
		r.words = nil
		r.free()
		r.free = nil
	}
}

func (r *region) bytes() int { return 8 * len(r.words) }

// clear overwrites a region that no reader can hold, in a test build.
func (r *region) clear() {
	if poison {
		for i := range r.words {
			r.words[i] = poisonWord
		}
	}
}

// Classes of sizes are at most 1/32 apart, so that a selector of a few
// endpoints more or less can as a rule be built in the storage of another.
const (
	classBits = 5
	minClass  = 8 << classBits
)

// classSize rounds a size in bytes up to that of its class, a multiple of 8.
func classSize(bytes int) int {
	if bytes <= minClass {
		return (bytes + 7) &^ 7
	}
	step := 1 << (bits.Len(uint(bytes-1)) - 1 - classBits)
	return (bytes + step - 1) &^ (step - 1)
}

// carver hands out a region piece by piece.
type carver struct {
	u64 []uint64
	u32 []uint32
}

// carve returns a carver for u64 and u32 elements in all.
func (r *region) carve(u64, u32 int) carver {
	c := carver{u64: r.words[:u64:u64]}
	if u32 > 0 {
		c.u32 = unsafe.Slice((*uint32)(unsafe.Pointer(&r.words[u64])), u32)
	}
	return c
}

func (c *carver) next(u64, u32 int) *Storage {
	st := &Storage{U64: c.u64[:u64:u64], U32: c.u32[:u32:u32]}
	c.u64, c.u32 = c.u64[u64:], c.u32[u32:]
	return st
}

// regionBytes is what u64 and u32 elements take.
func regionBytes(u64, u32 int) int { return 8 * (u64 + (u32+1)/2) }
