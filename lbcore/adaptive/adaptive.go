// Package adaptive picks at random by weights that follow what is observed of
// each endpoint, as a rule its latency: whoever answers faster gets more.
//
// # Usage
//
// A Config is an [lbcore.Builder]; put it into a slot of an [lbcore.Group], and
// report what became of each connection with the same Config:
//
//	c := adaptive.Config{}           // by 1 / latency
//	c.Observe(m, micros)             // it took so many microseconds
//	adaptive.Failed(m)               // it failed
//
// An observation moves a weight by 1/32 of the way to its target, so that after
// 22 of them half the way is behind it; a failure halves it. The [Rank] says
// what the target of an observation is. An endpoint that joins begins with the
// mean weight of those present.
//
// Weights multiply with the shares that discovery gives: of two equally fast
// endpoints of weights 1 and 2 the second gets twice as much.
//
// # Concurrency
//
// A weight is one word of its Member, shared by all selectors of the View and
// written by compare-and-swap: it outlives rebuilds, changes of attributes and
// of priority. A selector keeps sums of the weights as it has seen them last in
// a tree of its storage. A draw that finds a weight changed corrects the sums
// on its path, so that reports need not know which selectors there are, and
// nobody writes to storage but readers, who are pinned. Pick, Next and Iter
// take no lock and allocate nothing.
//
// # Limitations
//
// The sums are behind the weights by what was observed of an endpoint since it
// was drawn last. Where its weight has sunk, the draw is repeated in as many
// cases as make the shares those of the present weights. Where it has risen, the
// endpoint gets its new share from the draw after this one on. While others
// correct the sums, a draw may run past their end and takes the last endpoint.
//
// One in 64 draws goes by discovery's shares alone; see Explore.
//
// All adaptive slots of a View share the weights, so they should have one Rank
// and one kind of observation.
//
// # Why not ...
//
// A Fenwick tree takes 1.3 to 1.6 times as long, and where each pick finds a weight
// changed 1.3 to 1.5 times, as it has more sums to correct. Weights, or leaves of the tree,
// on cache lines of their own were not faster. An alias table picks in half the
// time, but has to be built anew when weights have moved, which needs a clock,
// or now and then a slow pick.
package adaptive

import (
	"iter"
	"math/bits"
	"math/rand/v2"

	"gatehouse.internal/lbcore"
)

// Weights are 64-bit fixed-point numbers with 16 fractional bits, from One to
// MaxWeight: small steps are not lost in rounding, a weight never becomes 0,
// and those of a million endpoints can be summed up.
const (
	// One is the weight 1, the least there is.
	One = 1 << 16
	// MaxWeight is the weight 2^24. Those of [lbcore.MaxEndpoints] sum up to 2^60.
	MaxWeight = 1 << 40
)

// Explore is how many draws there are to one that goes by the shares that
// discovery gives, and not by weights. Without it an endpoint that failed for a
// while among fast ones would wait for millions of picks until it could prove
// itself: One is very little beside the weight of a latency in microseconds. So
// each gets about 1/64 at least of what it would get if all were equally fast.
const Explore = 64

// Rank says what an observation is worth. Its methods depend on nothing but
// their arguments, allocate nothing and may be called from anywhere. What they
// return is brought into the range from One to MaxWeight.
type Rank interface {
	// Start is the weight with which n endpoints begin of which nothing is
	// known yet; n is at least 1.
	Start(n int) uint64
	// Target is the weight to which an observation leads, if it stays the same.
	Target(observed uint64) uint64
}

// Inverse ranks by 1 / latency. Observations are in microseconds; 0 counts as
// 1. The base is 2^24 microseconds: a latency of 16.8 s has the weight 1, which
// is the least, and all above it have it too. n endpoints start at base / n,
// better than most turn out to be, so that each is tried soon.
//
// The base doesn't depend on n: in the shares it cancels out, and a weight that
// was learnt among few endpoints must mean the same among many.
type Inverse struct{}

// Start implements [Rank].
func (Inverse) Start(n int) uint64 { return MaxWeight / uint64(n) }

// Target implements [Rank].
func (Inverse) Target(micros uint64) uint64 { return MaxWeight / max(micros, 1) }

// Priority takes the observation itself for the weight, from 1 to 2^24: more is
// better. All start at 1.
type Priority struct{}

// Start implements [Rank].
func (Priority) Start(int) uint64 { return One }

// Target implements [Rank].
func (Priority) Target(observed uint64) uint64 { return min(observed, MaxWeight/One) * One }

// Config is the policy's settings. The zero value is ready for use.
type Config struct {
	// Rank says what an observation is worth; nil means Inverse.
	Rank Rank
	// Rand draws 64 random bits; nil means math/rand/v2. It is called from any
	// number of goroutines at once.
	Rand func() uint64
}

func (c Config) rank() Rank {
	if c.Rank == nil {
		return Inverse{}
	}
	return c.Rank
}

func clamp(weight uint64) uint64 { return min(max(weight, One), MaxWeight) }

// Observe takes an observation of m into account, in the unit of the Rank. It
// may be called from anywhere, also when m has left. A member that no adaptive
// selector was built of has no weight, and gets none.
func (c Config) Observe(m *lbcore.Member, observed uint64) {
	target := clamp(c.rank().Target(observed))
	change(m, func(old uint64) uint64 { return (old*31 + target) / 32 })
}

// Failed halves the weight of m. It may be called from anywhere, like Observe.
func Failed(m *lbcore.Member) {
	change(m, func(old uint64) uint64 { return max(old/2, One) })
}

func change(m *lbcore.Member, weight func(old uint64) uint64) {
	w := m.AdaptiveWeight()
	for old := w.Load(); old != 0; old = w.Load() {
		if w.CompareAndSwap(old, weight(old)) {
			return
		}
	}
}

// Weight returns the present weight of m as a number from 1 to 2^24, or 0 if it
// has none yet.
func Weight(m *lbcore.Member) float64 { return float64(m.AdaptiveWeight().Load()) / One }

// Shape implements [lbcore.Builder].
func (c Config) Shape(in lbcore.Input) (u64, u32 int, err error) {
	n := len(in.Members)
	u64, u32 = lbcore.DrawsShape(in)
	if !in.Equal() {
		u32 = max(u32, n) // shares take the place of what draws are made with
	}
	return u64 + treeWords(n), u32, nil
}

// Build implements [lbcore.Builder]. It gives members without a weight theirs.
func (c Config) Build(in lbcore.Input, st *lbcore.Storage, yield func() error) (lbcore.Selector, error) {
	n := len(in.Members)
	p := &lbcore.Pacer{Yield: yield}
	sums, err := newTree(n, st.U64, p)
	if err != nil {
		return nil, err
	}
	draws, err := lbcore.NewDraws(in, &lbcore.Storage{U64: st.U64[treeWords(n):], U32: st.U32}, yield)
	if err != nil {
		return nil, err
	}
	s := &Selector{members: in.Members, rand: c.Rand, draws: draws, sums: sums}
	if !in.Equal() {
		s.shares = st.U32[:n]
		if err := scale(s.shares, in.Shares, p); err != nil {
			return nil, err
		}
	}
	start, err := c.start(in.Members, p)
	if err != nil {
		return nil, err
	}
	for i, m := range in.Members {
		m.AdaptiveWeight().CompareAndSwap(0, start)
		s.sums.init(i, s.weight(i))
		if err := p.Did(1); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// maxShare is what the largest share is scaled to.
const maxShare = 1 << 16

func scale(scaled []uint32, shares []float64, p *lbcore.Pacer) error {
	largest := 0.0
	for _, share := range shares {
		largest = max(largest, share)
		if err := p.Did(1); err != nil {
			return err
		}
	}
	for i, share := range shares {
		scaled[i] = uint32(max(1, share/largest*maxShare+0.5))
		if err := p.Did(1); err != nil {
			return err
		}
	}
	return nil
}

// start returns the weight of those that have none: the mean of the others.
func (c Config) start(members []*lbcore.Member, p *lbcore.Pacer) (weight uint64, err error) {
	sum, n := uint64(0), uint64(0)
	for _, m := range members {
		if w := m.AdaptiveWeight().Load(); w != 0 {
			sum += w
			n++
		}
		if err := p.Did(1); err != nil {
			return 0, err
		}
	}
	if n > 0 {
		return sum / n, nil
	}
	return clamp(c.rank().Start(len(members))), nil
}

// Selector is what a Config builds. Its methods may be called from any number
// of goroutines, by readers that are pinned: draws write to its storage.
type Selector struct {
	members []*lbcore.Member
	draws   lbcore.Draws  // by shares
	shares  []uint32      // of maxShare; nil when equal
	rand    func() uint64 // may be nil
	sums    tree
}

// Len returns the number of members.
func (s *Selector) Len() int { return len(s.members) }

// Pick draws a member by weight, ready or not, as an index into Input.Members.
func (s *Selector) Pick() int {
	i, _ := s.Next(lbcore.Key{}, s.seed())
	return i
}

// Iter yields each member once, as an index into Input.Members: from one drawn
// by weight on, in the order of their addresses.
func (s *Selector) Iter() iter.Seq[int] {
	return func(yield func(int) bool) {
		first := s.Pick()
		for i := first; i < len(s.members); i++ {
			if !yield(i) {
				return
			}
		}
		for i := range first {
			if !yield(i) {
				return
			}
		}
	}
}

// First starts a sequence of draws; a key has no say.
func (s *Selector) First(k lbcore.Key) uint64 {
	if s.rand == nil && !k.Set {
		return k.Hash // random already
	}
	return s.seed()
}

func (s *Selector) seed() uint64 {
	if s.rand != nil {
		return s.rand()
	}
	return rand.Uint64()
}

// Next draws a member by weight.
func (s *Selector) Next(_ lbcore.Key, at uint64) (int, uint64) {
	for {
		at += 0x9e3779b97f4a7c15 // splitmix64
		x := (at ^ at>>30) * 0xbf58476d1ce4e5b9
		x = (x ^ x>>27) * 0x94d049bb133111eb
		x ^= x >> 31
		if x%Explore == 0 {
			var i int
			i, at = s.draws.Next(at)
			s.correct(i)
			return i, at
		}
		x, _ = bits.Mul64(x, s.sums.total())
		i, rest := s.sums.find(x)
		seen, weight := s.correct(i)
		// The sums had it heavier than it is: that part of them which is left
		// over draws again. It is gone with the correction, so this ends.
		if rest < weight || rest >= seen {
			return i, at
		}
	}
}

// Steps implements [lbcore.Selector].
func (s *Selector) Steps() (int, bool) { return 32, false }

// weight returns what i has of the draws at present.
func (s *Selector) weight(i int) uint64 {
	w := s.members[i].AdaptiveWeight().Load()
	if s.shares != nil {
		w = w * uint64(s.shares[i]) / maxShare // above 0: no weight is below One
	}
	return w
}

// correct brings the sums up to the present weight of i, and returns what they
// had it for and that weight.
func (s *Selector) correct(i int) (seen, weight uint64) {
	seen, weight = s.sums.leaf(i), s.weight(i)
	if seen != weight {
		s.sums.set(i, seen, weight)
	}
	return seen, weight
}
