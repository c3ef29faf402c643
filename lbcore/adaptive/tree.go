package adaptive

import (
	"math/bits"
	"sync/atomic"
)

const (
	// fanOut is how many sums the tree adds up to one on the level above: a
	// cache line.
	fanOut = 8
	// topMost is how many nodes the top level has at most.
	topMost = 3 * fanOut
)

// tree is a tree of sums: its leaves are the weights of the members, each node
// above is the sum of up to fanOut nodes below it. Members are found and
// corrected by any number of goroutines at once. While one is corrected, the
// sums above it are behind, and for moments even below zero, modulo 2^64: finds
// stay in bounds whatever they read.
type tree struct {
	sum    *uint64    // of the whole; on a cache line of its own
	levels [][]uint64 // the leaves are the last one
}

const cacheLine = 8 // words

func roundUp(words int) int { return (words + cacheLine - 1) / cacheLine * cacheLine }

// levelSizes yields the sizes of the levels, that of the leaves first.
func levelSizes(n int) func(yield func(int) bool) {
	return func(yield func(int) bool) {
		for ; yield(n) && n > topMost; n = (n + fanOut - 1) / fanOut {
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
func newTree(n int, storage []uint64) (t tree) {
	storage = storage[:treeWords(n)]
	clear(storage)
	t.sum, storage = &storage[0], storage[cacheLine:]
	for size := range levelSizes(n) {
		// From the end on, so that the levels that every find reads are
		// next to each other.
		at := len(storage) - roundUp(size)
		t.levels = append([][]uint64{storage[at : at+size]}, t.levels...)
		storage = storage[:at]
	}
	return t
}

func (t *tree) total() uint64 { return atomic.LoadUint64(t.sum) }

func (t *tree) leaf(i int) uint64 { return atomic.LoadUint64(&t.levels[len(t.levels)-1][i]) }

// find returns the leaf in which x lies if they are laid end to end, and where
// in it. If x lies behind a sum that should hold it, that is the last leaf of
// it and a place behind its end.
func (t *tree) find(x uint64) (i int, rest uint64) {
	for l, level := range t.levels {
		if l > 0 {
			i *= fanOut
			level = level[i:min(i+fanOut, len(level))]
		}
		// No branch depends on x: nothing could foretell it.
		sum, before := uint64(0), uint64(0)
		for k := range len(level) - 1 {
			v := atomic.LoadUint64(&level[k])
			sum += v
			_, below := bits.Sub64(x, sum, 0) // 1 if x < sum
			i += int(1 - below)
			before += v & (below - 1)
		}
		x -= before
	}
	return i, x
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
