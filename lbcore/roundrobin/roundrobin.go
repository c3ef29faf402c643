// Package roundrobin takes endpoints in turn: each pick draws one ticket of an
// atomic cursor and walks on from there past the unready.
//
// # Usage
//
// A Config is an [lbcore.Builder]; put it into a slot of an [lbcore.Group].
// With different weights a cycle has as many tickets as the weights sum up to,
// divided by what they have in common, and in each cycle an endpoint has exactly
// its weight of them, spread evenly. In a cycle of up to 4,096 tickets, or eight
// an endpoint, nobody is ever a whole turn from its part. A pick takes bounded
// time whatever the weights are, and needs neither a heap nor a lock.
//
// # Concurrency
//
// The cursor is the one thing that picks write. It goes on over rebuilds, so
// that updates don't send a herd to the first endpoint.
//
// # Limitations
//
// The turn is exact for picks one after the other; concurrent picks past an
// unready endpoint may give its turn to the next one. All cores draw from one
// cursor, whose cache line moves between them; tickets in batches would not be
// turns any more.
//
// Shares that are not in proportion to the endpoints' weights, as with
// localities, are rounded to 1/2^32 of the whole, and up from less.
//
// # Why not ...
//
// A static stride, as grpc-go's weighted_round_robin has it, walks past all
// that sit out: with a weight of 2^20 among 10,000 of 1 that takes 50 µs a pick,
// and then the heavy one has its turns in a row. Envoy's heap needs a lock.
package roundrobin

import (
	"math"
	"math/bits"
	"math/rand/v2"
	"sync/atomic"

	"gatehouse.internal/lbcore"
)

// Config is the policy's settings. The zero value is ready for use.
type Config struct {
	// Start is where the first cursor of a slot begins, to be taken modulo the
	// number of tickets in a cycle; nil means at random, so that the agents of a
	// fleet don't all begin with one endpoint.
	Start func() uint64
}

// Shape implements [lbcore.Builder].
func (c Config) Shape(in lbcore.Input) (u64, u32 int, err error) {
	if in.Equal() {
		return 0, 0, nil
	}
	w, _ := newWeights(in, new(lbcore.Pacer))
	if w.short() {
		u64, u32 = scheduleShape(w)
		return u64, u32, nil
	}
	return len(in.Members), len(in.Members) + 1, nil
}

// Build implements [lbcore.Builder].
func (c Config) Build(in lbcore.Input, st *lbcore.Storage, yield func() error) (lbcore.Selector, error) {
	if in.Equal() {
		return &turns{c.tickets(in, uint64(len(in.Members)))}, nil
	}
	p := &lbcore.Pacer{Yield: yield}
	w, err := newWeights(in, p)
	if err != nil {
		return nil, err
	}
	if w.short() {
		return newSchedule(c.tickets(in, w.sum), w, st, p)
	}
	return newRotation(c.tickets(in, w.sum), w, st, p)
}

// tickets is the cursor of a selector with so many tickets a cycle.
type tickets struct {
	cycle   uint64
	inverse uint64 // 2^64/cycle, rounded down, or one less
	cursor  *cursor
}

// turn returns a ticket's place in its cycle: ticket % cycle, in a third of the
// time of a division.
func (t *tickets) turn(ticket uint64) uint64 {
	cycles, _ := bits.Mul64(ticket, t.inverse) // up to 2 less
	at := ticket - cycles*t.cycle
	for at >= t.cycle {
		at -= t.cycle
	}
	return at
}

// cursor lies on a cache line of its own, and on the one that is fetched with
// it.
type cursor struct {
	_ [120]byte
	atomic.Uint64
	_ [120]byte
}

func (c Config) tickets(in lbcore.Input, cycle uint64) tickets {
	t := tickets{cycle: cycle, inverse: math.MaxUint64 / cycle}
	if prev, ok := in.Prev.(interface{ handOn() *cursor }); ok {
		t.cursor = prev.handOn()
		return t
	}
	t.cursor = new(cursor)
	if c.Start != nil {
		t.cursor.Store(c.Start() % cycle)
	} else {
		t.cursor.Store(rand.Uint64() >> 2)
	}
	return t
}

func (t *tickets) handOn() *cursor { return t.cursor }

// First draws a ticket.
func (t *tickets) First(lbcore.Key) uint64 { return t.cursor.Add(1) - 1 }

// Peek implements [lbcore.Peeker]: the next ticket, which stays.
func (t *tickets) Peek(lbcore.Key) uint64 { return t.cursor.Load() }

// Took makes the next pick begin after the one that was taken, so that the
// turn of those that were passed over is not given to one neighbour. A ticket
// that was of no use is given back: it is drawn again at once if endpoints that
// have left are better than nothing. If others have drawn meanwhile the cursor
// stays, or it would skip endpoints that nobody has looked at.
func (t *tickets) Took(first, next uint64) {
	if next != first+1 {
		t.cursor.CompareAndSwap(first+1, next)
	}
}

// turns is the selector for equal weights.
type turns struct{ tickets }

// Next implements [lbcore.Selector].
func (t *turns) Next(_ lbcore.Key, at uint64) (int, uint64) { return int(t.turn(at)), at + 1 }

// Steps implements [lbcore.Selector]: once round is every member.
func (t *turns) Steps() (int, bool) { return int(t.cycle), true }
