// Package ringhash is Envoy's consistent hash ring: an endpoint has points on
// a ring in proportion to its weight, and a key belongs to the first point at
// or after its hash. Endpoints that come or go move few other keys.
//
// # Usage
//
// A Config is an [lbcore.Builder]; put it into a slot of an [lbcore.Group].
// Keys are xxHash64 values, as [lbcore.StringKey] makes them.
//
// # Concurrency
//
// A ring is not written after its build. Retries walk on along the ring.
//
// # Limitations
//
// Envoy builds the ring from healthy hosts and builds it anew when health
// changes; here the ring holds every host, and picks walk on past the unready.
// Keys of ready hosts stay in place either way. Hosts are placed in the order
// of their addresses, where Envoy takes them as given: that decides only who
// gets the entries that rounding leaves over.
package ringhash

import (
	"fmt"
	"math"
	"strconv"

	"github.com/cespare/xxhash/v2"

	"gatehouse.internal/lbcore"
)

// The default and the largest sizes of a ring.
// Source: Cluster.RingHashLbConfig.
const (
	DefaultMinimumSize = 1024
	DefaultMaximumSize = 8 << 20
	LimitSize          = 8 << 20
)

// Function is how the points of a ring are hashed.
// Source: Cluster.RingHashLbConfig.HashFunction.
type Function uint8

// The hash functions.
const (
	XXHash      Function = iota // xx_hash: xxHash64, seed 0
	MurmurHash2                 // murmur_hash_2: 64-bit, as libstdc++'s std::hash
)

// Config is the policy's settings. The zero value has Envoy's defaults.
type Config struct {
	// MinimumSize is how many points a ring has at least, up to LimitSize and
	// MaximumSize; 0 means DefaultMinimumSize.
	MinimumSize uint64
	// MaximumSize bounds the points, up to LimitSize; 0 means
	// DefaultMaximumSize.
	MaximumSize uint64
	Function    Function
}

// Validate reports sizes above LimitSize, a minimum above the maximum and an
// unknown function.
func (c Config) Validate() error {
	c = c.defaults()
	switch {
	case c.MinimumSize > LimitSize:
		return fmt.Errorf("minimum_ring_size (%d) > %d", c.MinimumSize, LimitSize)
	case c.MaximumSize > LimitSize:
		return fmt.Errorf("maximum_ring_size (%d) > %d", c.MaximumSize, LimitSize)
	case c.MinimumSize > c.MaximumSize:
		return fmt.Errorf("minimum_ring_size (%d) > maximum_ring_size (%d)", c.MinimumSize, c.MaximumSize)
	case c.Function > MurmurHash2:
		return fmt.Errorf("hash_function %d is not known", c.Function)
	}
	return nil
}

func (c Config) defaults() Config {
	if c.MinimumSize == 0 {
		c.MinimumSize = DefaultMinimumSize
	}
	if c.MaximumSize == 0 {
		c.MaximumSize = DefaultMaximumSize
	}
	return c
}

// Shape implements [lbcore.Builder].
func (c Config) Shape(in lbcore.Input) (u64, u32 int, err error) {
	if err := c.Validate(); err != nil {
		return 0, 0, fmt.Errorf("ring_hash: %w", err)
	}
	n := 0
	for _, points := range c.runs(in) {
		n += points
	}
	return n, n + 2*buckets(n), nil
}

// runs yields each member with the number of its points: what is due to it of
// a ring of Envoy's size, where fractions carry over to the next. The last one
// may get a point less than in Envoy, which lets rounding exceed the maximum.
func (c Config) runs(in lbcore.Input) func(yield func(member, points int) bool) {
	c = c.defaults()
	least := in.Shares[0]
	for _, s := range in.Shares {
		least = min(least, s)
	}
	most := float64(c.MaximumSize)
	scale := min(math.Ceil(least*float64(c.MinimumSize))/least, most)
	return func(yield func(member, points int) bool) {
		current, target := 0.0, 0.0
		for i, s := range in.Shares {
			target += scale * s
			end := min(math.Ceil(target), most)
			if !yield(i, int(end-current)) {
				return
			}
			current = end
		}
	}
}

// Build implements [lbcore.Builder].
func (c Config) Build(in lbcore.Input, st *lbcore.Storage, yield func() error) (lbcore.Selector, error) {
	n := 0
	hashes, members := st.U64, st.U32
	var buf []byte
	for i, points := range c.runs(in) {
		buf = append(append(buf[:0], in.Endpoints[i].Key()...), '_')
		stem := len(buf)
		for p := range points {
			buf = strconv.AppendUint(buf[:stem], uint64(p), 10)
			hashes[n] = c.hash(buf)
			members[n] = uint32(i)
			if n++; n%yieldEvery == 0 {
				if err := yield(); err != nil {
					return nil, err
				}
			}
		}
	}
	r := &ring{hashes: hashes[:n:n], members: members[:n:n]}
	if err := sortPoints(r.hashes, r.members, members[n:], yield); err != nil {
		return nil, err
	}
	return r, nil
}

func (c Config) hash(b []byte) uint64 {
	if c.Function == MurmurHash2 {
		return murmur2(b)
	}
	return xxhash.Sum64(b)
}

// ring is the built selector: parallel slices in the order of hashes.
type ring struct {
	hashes  []uint64
	members []uint32
}

// maxSteps is how far a search walks along the ring before it turns to the
// permutation of all members.
const maxSteps = 32

// First returns the first point with a hash of at least k.Hash, wrapping to 0.
func (r *ring) First(k lbcore.Key) uint64 {
	lo, hi := 0, len(r.hashes)
	for lo < hi {
		mid := int(uint(lo+hi) >> 1)
		if r.hashes[mid] < k.Hash {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if lo == len(r.hashes) {
		return 0
	}
	return uint64(lo)
}

// Next implements [lbcore.Selector].
func (r *ring) Next(_ lbcore.Key, at uint64) (int, uint64) {
	next := at + 1
	if next == uint64(len(r.hashes)) {
		next = 0
	}
	return int(r.members[at]), next
}

// Steps implements [lbcore.Selector].
func (r *ring) Steps() (int, bool) { return maxSteps, false }
