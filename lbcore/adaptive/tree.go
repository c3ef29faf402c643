package adaptive

import (
	"math"
	"math/bits"
	"sync/atomic"

	"gatehouse.internal/lbcore"
)

// fanOut is how many sums the tree adds up to one on the level above: a cache
// line. The top level has no more than that.
const fanOut = 8

// tree is a tree of sums: its leaves are the weights of the members, each node
// above is the sum of up to fanOut nodes below it. Members are found and
// corrected by any number of goroutines at once. While one is corrected, the
// sums above it are behind, and for moments even below zero, modulo 2^64: finds
// stay in bounds whatever they read.
type tree struct {
	sum    *uint64    // of the whole; on a cache line of its own
	levels [][]uint64 // the leaves are the last one; capacity is whole lines
}

const cacheLine = 8 // words

func roundUp(words int) int { return (words + cacheLine - 1) / cacheLine * cacheLine }

// levelSizes yields the sizes of the levels, that of the leaves first.
func levelSizes(n int) func(yield func(int) bool) {
	return func(yield func(int) bool) {
		for ; yield(n) && n > fanOut; n = (n + fanOut - 1) / fanOut {
		}
	}
}

// treeWords returns how much storage a tree of n leaves needs.
func treeWords(n int) (words int) {
	for size := range levelSizes(n) {
		words += roundUp(size)
	}
	return words + cacheLine
}

// newTree returns a tree of n leaves, all 0.
func newTree(n int, storage []uint64, p *lbcore.Pacer) (t tree, err error) {
	storage = storage[:treeWords(n)]
	if err := p.Clear(storage); err != nil {
		return t, err
	}
	t.sum, storage = &storage[0], storage[cacheLine:]
	for size := range levelSizes(n) {
		// From the end on, so that the levels that every find reads are
		// next to each other.
		at := len(storage) - roundUp(size)
		t.levels = append([][]uint64{storage[at : at+size : at+roundUp(size)]}, t.levels...)
		storage = storage[:at]
	}
	return t, nil
}

func (t *tree) total() uint64 { return atomic.LoadUint64(t.sum) }

func (t *tree) leaf(i int) uint64 { return atomic.LoadUint64(&t.levels[len(t.levels)-1][i]) }

// find returns the leaf in which x lies if they are laid end to end, and where
// in it. If x lies behind a sum that should hold it, that is the last leaf of
// it and a place behind its end.
func (t *tree) find(x uint64) (i int, rest uint64) {
	// No branch depends on x: nothing could foretell it.
	sum, before := uint64(0), uint64(0)
	top := t.levels[0]
	for j := range len(top) - 1 {
		v := atomic.LoadUint64(&top[j])
		sum += v
		b := less(x, sum)
		i += int(1 - b)
		before += v & (b - 1)
	}
	x -= before
	for _, level := range t.levels[1:] {
		// All of a node; written out, as a loop takes nearly twice as long.
		node := (*[fanOut]uint64)(level[:cap(level)][i*fanOut:])
		end1 := atomic.LoadUint64(&node[0])
		end2 := end1 + atomic.LoadUint64(&node[1])
		end3 := end2 + atomic.LoadUint64(&node[2])
		end4 := end3 + atomic.LoadUint64(&node[3])
		end5 := end4 + atomic.LoadUint64(&node[4])
		end6 := end5 + atomic.LoadUint64(&node[5])
		end7 := end6 + atomic.LoadUint64(&node[6])
		k := (fanOut - 1 - less(x, end1) - less(x, end2) - less(x, end3) - less(x, end4) -
			less(x, end5) - less(x, end6) - less(x, end7)) % fanOut
		x -= [fanOut]uint64{0, end1, end2, end3, end4, end5, end6, end7}[k]
		if i = i*fanOut + int(k); i >= len(level) {
			i, x = len(level)-1, math.MaxUint64 // behind the end
		}
	}
	return i, x
}

// less returns 1 if a < b, and else 0.
func less(a, b uint64) uint64 {
	_, borrow := bits.Sub64(a, b, 0)
	return borrow
}

// init sets a leaf that is 0, of a tree that nobody else knows yet.
func (t *tree) init(i int, value uint64) {
	*t.sum += value
	for l := len(t.levels) - 1; l >= 0; l-- {
		t.levels[l][i] += value
		i /= fanOut
	}
}

// set replaces the value of a leaf, unless it is not old any more: then another
// goroutine has been faster.
func (t *tree) set(i int, old, value uint64) {
	last := len(t.levels) - 1
	if !atomic.CompareAndSwapUint64(&t.levels[last][i], old, value) {
		return
	}
	// What is added where is the difference of one exchange, so that all sums
	// are right as soon as nobody is between here and the end.
	for l := last - 1; l >= 0; l-- {
		i /= fanOut
		atomic.AddUint64(&t.levels[l][i], value-old)
	}
	atomic.AddUint64(t.sum, value-old)
}
