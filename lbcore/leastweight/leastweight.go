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
	if n := len(in.Members); !in.Equal() {
		return n, 2 * n, nil
	}
	return 0, 0, nil
}

// Build implements [lbcore.Builder].
func (c Config) Build(in lbcore.Input, st *lbcore.Storage, _ func() error) (lbcore.Selector, error) {
	s := &selector{members: in.Members, choices: c.Choices, bias: 1, rand: c.Rand}
	if s.choices == 0 {
		s.choices = DefaultChoices
	}
	if c.Bias != nil {
		s.bias = *c.Bias
	}
	if s.rand == nil {
		s.rand = rand.Uint64
	}
	if !in.Equal() {
		s.shares = in.Shares
		n := len(in.Members)
		s.fillAlias(st.U64[:n], st.U32[:n], st.U32[n:2*n])
	}
	return s, nil
}

type selector struct {
	members []*lbcore.Member
	shares  []float64 // nil when equal
	choices int
	bias    float64
	rand    func() uint64

	// The alias table, nil when weights are equal: slot i is member i with
	// probability keep[i] / 2^32, else alias[i].
	keep  []uint64
	alias []uint32
}

// fillAlias builds the table by Vose's method; stack is scratch.
func (s *selector) fillAlias(keep []uint64, alias, stack []uint32) {
	n := len(s.shares)
	// While it is built, keep holds the bits of the probability itself.
	prob := func(i uint32) float64 { return math.Float64frombits(keep[i]) }
	small, large := 0, n // two stacks in one: below 1 from the front, the rest from the back
	push := func(i uint32, p float64) {
		keep[i] = math.Float64bits(p)
		if p < 1 {
			stack[small] = i
			small++
		} else {
			large--
			stack[large] = i
		}
	}
	for i, share := range s.shares {
		alias[i] = uint32(i)
		push(uint32(i), share*float64(n))
	}
	for small > 0 && large < n {
		small--
		lack, give := stack[small], stack[large]
		large++
		alias[lack] = give
		push(give, prob(give)+prob(lack)-1)
	}
	for i := range keep { // what rounding left on a stack is its own alias
		keep[i] = uint64(min(prob(uint32(i)), 1) * (1 << 32))
	}
	s.keep, s.alias = keep, alias
}

// draw returns a member by its weight. x holds 64 random bits.
func (s *selector) draw(x uint64) int {
	n := uint64(len(s.members))
	i := int(x >> 32 * n >> 32)
	if s.keep == nil {
		return i
	}
	if x&(1<<32-1) < s.keep[i] {
		return i
	}
	return int(s.alias[i])
}

// First starts a sequence of draws; the key has no say.
func (s *selector) First(lbcore.Key) uint64 { return s.rand() }

// Next returns the best of a few draws: ready before unready, then the fewest
// connections per weight, then the first drawn.
func (s *selector) Next(_ lbcore.Key, at uint64) (int, uint64) {
	var best int
	var bestReady bool
	var bestLoad float64
	for c := range s.choices {
		at += 0x9e3779b97f4a7c15 // splitmix64
		x := (at ^ at>>30) * 0xbf58476d1ce4e5b9
		x = (x ^ x>>27) * 0x94d049bb133111eb
		i := s.draw(x ^ x>>31)
		m := s.members[i]
		ready := m.Ready()
		if c > 0 && (bestReady && !ready || i == best) {
			continue
		}
		load := s.load(i, m.Active())
		if c == 0 || ready && !bestReady || load < bestLoad {
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
