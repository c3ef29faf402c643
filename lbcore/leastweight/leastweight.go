// Package leastweight picks the endpoint with the fewest connections per unit
// of weight among a few drawn at random. It is Envoy's LEAST_REQUEST for
// connections: a dial in progress counts as one.
//
// # Usage
//
// A Config is an [lbcore.Builder]; put it into a slot of an [lbcore.Group].
// Draws are uniform when weights are equal, and in proportion to the weights,
// from an alias table, when not.
//
// # Concurrency
//
// Picks read the members' counters of connections and write nothing.
//
// # Limitations
//
// Envoy keeps endpoints of different weights in a heap under a lock, by the
// weight w / (active+1)^bias. Here the draws carry the weights already, so
// that idle endpoints get their exact shares, as in Envoy, and candidates are
// compared by active^bias / w: open connections spread by weight, and the more
// loaded of two gets less of the next ones than in Envoy. With a bias of 0
// connections don't matter: weighted random.
package leastweight

import (
	"fmt"
	"math"
	"math/rand/v2"

	"gatehouse.internal/lbcore"
)

// The default and the bounds of Config.Choices. gRPC A48 bounds it by 10 too.
const (
	DefaultChoices = 2
	MinChoices     = 2
	MaxChoices     = 10
)

// Config is the policy's settings.
type Config struct {
	// Choices is how many endpoints are drawn, 2 to 10; 0 means 2.
	// Source: LeastRequestLbConfig.choice_count.
	Choices int
	// Bias is the exponent of the number of connections, 0 to 1000; nil means 1.
	// Source: LeastRequestLbConfig.active_request_bias.
	Bias *float64
	// Rand draws 64 random bits; nil means math/rand/v2.
	Rand func() uint64
}

// Validate reports settings out of range.
func (c Config) Validate() error {
	if c.Choices != 0 && (c.Choices < MinChoices || c.Choices > MaxChoices) {
		return fmt.Errorf("choice_count %d: want %d to %d", c.Choices, MinChoices, MaxChoices)
	}
	if c.Bias != nil && !(*c.Bias >= 0 && *c.Bias <= 1e3) {
		return fmt.Errorf("active_request_bias %g: want 0 to 1000", *c.Bias)
	}
	return nil
}

// Shape implements [lbcore.Builder].
func (c Config) Shape(in lbcore.Input) (u64, u32 int, err error) {
	if err := c.Validate(); err != nil {
		return 0, 0, fmt.Errorf("least_weight: %w", err)
	}
	u64, u32 = lbcore.DrawsShape(in)
	return u64, u32, nil
}

// Build implements [lbcore.Builder].
func (c Config) Build(in lbcore.Input, st *lbcore.Storage, yield func() error) (lbcore.Selector, error) {
	draws, err := lbcore.NewDraws(in, st, yield)
	if err != nil {
		return nil, err
	}
	s := &selector{members: in.Members, draws: draws, choices: min(c.Choices, MaxChoices), bias: 1, rand: c.Rand}
	if s.choices == 0 {
		s.choices = DefaultChoices
	}
	if c.Bias != nil {
		s.bias = *c.Bias
	}
	if !in.Equal() {
		s.shares = in.Shares
	}
	return s, nil
}

type selector struct {
	members []*lbcore.Member
	shares  []float64 // nil when equal
	draws   lbcore.Draws
	choices int
	bias    float64
	rand    func() uint64 // may be nil
}

// First starts a sequence of draws; the key has no say.
func (s *selector) First(k lbcore.Key) uint64 {
	if s.rand != nil {
		return s.rand()
	}
	if !k.Set {
		return k.Hash // random already
	}
	return rand.Uint64()
}

// Next returns the best of a few draws: ready before unready, then the fewest
// connections per weight, then the first drawn.
func (s *selector) Next(_ lbcore.Key, at uint64) (int, uint64) {
	// All are drawn before any is looked at, so that the processor waits for
	// their memory at the same time.
	var drawn [MaxChoices]int
	for c := range s.choices {
		drawn[c], at = s.draws.Next(at)
	}
	best := drawn[0]
	m := s.members[best]
	bestReady, bestLoad := m.Ready(), s.load(best, m.Active())
	for _, i := range drawn[1:s.choices] {
		m := s.members[i]
		ready, load := m.Ready(), s.load(i, m.Active())
		if ready && !bestReady || ready == bestReady && load < bestLoad {
			best, bestReady, bestLoad = i, ready, load
		}
	}
	return best, at
}

// load orders members by active^bias / share.
func (s *selector) load(i int, active int64) float64 {
	switch {
	case s.bias == 0:
		return 0
	case s.shares == nil:
		return float64(active) // a power keeps the order
	case s.bias == 1:
		return float64(active) / s.shares[i]
	}
	return s.bias*math.Log(float64(active)) - math.Log(s.shares[i]) // a power may overflow
}

// Steps implements [lbcore.Selector].
func (s *selector) Steps() (int, bool) { return 32, false }
