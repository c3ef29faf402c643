// Package random picks endpoints at random, in proportion to their weights.
//
// # Usage
//
// A Config is an [lbcore.Builder]; put it into a slot of an [lbcore.Group].
// Draws are uniform when weights are equal, and from an alias table when not:
// either takes the same time for any number of endpoints.
//
// # Concurrency
//
// Picks share nothing: each draws numbers of its own.
//
// # Limitations
//
// Envoy's RANDOM ignores weights; here they count. After 32 draws that gave
// nobody who is ready, as with one heavy endpoint that is down or with few of
// many that are up, the search goes on through all endpoints in an order that
// the key's hash gives, whatever their weights.
package random

import (
	"math/rand/v2"

	"gatehouse.internal/lbcore"
)

// Config is the policy's settings, of which there are none.
type Config struct{}

// Shape implements [lbcore.Builder].
func (Config) Shape(in lbcore.Input) (u64, u32 int, err error) {
	u64, u32 = lbcore.DrawsShape(in)
	return u64, u32, nil
}

// Build implements [lbcore.Builder].
func (Config) Build(in lbcore.Input, st *lbcore.Storage, yield func() error) (lbcore.Selector, error) {
	draws, err := lbcore.NewDraws(in, st, yield)
	if err != nil {
		return nil, err
	}
	return &selector{draws}, nil
}

type selector struct{ draws lbcore.Draws }

// First starts a sequence of draws; a key has no say.
func (s *selector) First(k lbcore.Key) uint64 {
	if !k.Set {
		return k.Hash // random already
	}
	return rand.Uint64()
}

// Next implements [lbcore.Selector].
func (s *selector) Next(_ lbcore.Key, at uint64) (int, uint64) { return s.draws.Next(at) }

// Steps implements [lbcore.Selector].
func (s *selector) Steps() (int, bool) { return 32, false }
