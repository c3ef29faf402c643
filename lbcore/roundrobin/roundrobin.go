// Package roundrobin takes endpoints in turn: each pick draws one ticket of an
// atomic cursor and walks on from there past the unready.
//
// # Usage
//
// A Config is an [lbcore.Builder]; put it into a slot of an [lbcore.Group].
// Endpoints of different weights are interleaved by a static stride, as
// grpc-go's weighted_round_robin does it: smooth, without a heap or a lock.
//
// # Concurrency
//
// The cursor is the one thing that picks write. It goes on over rebuilds, so
// that updates don't send a herd to the first endpoint.
//
// # Limitations
//
// The turn is exact for picks one after the other; concurrent picks past an
// unready endpoint may give its turn to the next one. Weights are scaled
// so that the largest is 65,535; a smaller share than 1/65,535 of the largest
// is raised to that.
package roundrobin

import (
	"math/rand/v2"
	"sync/atomic"

	"gatehouse.internal/lbcore"
)

// Config is the policy's settings. The zero value is ready for use.
type Config struct {
	// Start is where the first cursor of a slot begins, to be taken modulo the
	// number of endpoints; nil means at random, so that the agents of a fleet
	// don't all begin with one endpoint.
	Start func() uint64
}

// Shape implements [lbcore.Builder].
func (c Config) Shape(in lbcore.Input) (u64, u32 int, err error) {
	if in.Equal() {
		return 0, 0, nil
	}
	return 0, len(in.Members), nil
}

// Build implements [lbcore.Builder].
func (c Config) Build(in lbcore.Input, st *lbcore.Storage, _ func() error) (lbcore.Selector, error) {
	t := turns{n: uint64(len(in.Members))}
	switch prev := in.Prev.(type) {
	case *turns:
		t.cursor = prev.cursor
	case *strides:
		t.cursor = prev.cursor
	default:
		t.cursor = new(cursor)
		if c.Start != nil {
			t.cursor.Store(c.Start() % t.n)
		} else {
			t.cursor.Store(rand.Uint64() >> 2)
		}
	}
	if in.Equal() {
		return &t, nil
	}
	s := &strides{turns: t, weights: st.U32[:len(in.Members)]}
	largest := 0.0
	for _, w := range in.Shares {
		largest = max(largest, w)
	}
	for i, w := range in.Shares {
		s.weights[i] = uint32(max(1, w/largest*maxWeight+0.5))
	}
	return s, nil
}

// cursor lies on a cache line of its own.
type cursor struct {
	_ [56]byte
	atomic.Uint64
	_ [56]byte
}

// turns is the selector for equal weights.
type turns struct {
	n      uint64
	cursor *cursor
}

// First draws a ticket.
func (t *turns) First(lbcore.Key) uint64 { return t.cursor.Add(1) - 1 }

// Next implements [lbcore.Selector].
func (t *turns) Next(_ lbcore.Key, at uint64) (int, uint64) { return int(at % t.n), at + 1 }

// Steps implements [lbcore.Selector]: once round is every member.
func (t *turns) Steps() (int, bool) { return int(t.n), true }

// Took makes the next pick begin after the one that was taken, so that the
// turn of those that were passed over is not given to one neighbour. A ticket
// that was of no use is given back: it is drawn again at once if endpoints that
// have left are better than nothing. If others have drawn meanwhile the cursor
// stays, or it would skip endpoints that nobody has looked at.
func (t *turns) Took(first, next uint64) {
	if next != first+1 {
		t.cursor.CompareAndSwap(first+1, next)
	}
}

// maxWeight is what the largest weight is scaled to.
const maxWeight = 65535

// strides is the selector for different weights. Position p is the turn p / n
// of member p % n; a member of weight w sits out all but w of maxWeight turns,
// spread evenly.
type strides struct {
	turns
	weights []uint32
}

// Next implements [lbcore.Selector].
func (s *strides) Next(_ lbcore.Key, at uint64) (int, uint64) {
	for {
		i, turn := at%s.n, at/s.n
		at++
		w := uint64(s.weights[i])
		// The offset keeps members of one weight from sitting out together.
		if (w*turn+i*(maxWeight/2))%maxWeight >= maxWeight-w {
			return int(i), at
		}
	}
}

// Steps implements [lbcore.Selector].
func (s *strides) Steps() (int, bool) { return 32, false }
