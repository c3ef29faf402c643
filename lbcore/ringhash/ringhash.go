// Package ringhash is a consistent hash ring: an endpoint has points on a ring
// in proportion to its weight, and a key belongs to the first point at or after
// its hash. Endpoints that come or go move few other keys. The ring is Envoy's,
// or, with [Ketama], the one that nginx and Pingora build.
//
// # Usage
//
// A Config is an [lbcore.Builder]; put it into a slot of an [lbcore.Group].
// Keys are xxHash64 values, for Ketama CRC-32 values; [lbcore.StringKey] makes
// both.
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
//
// A Ketama ring has 160 points for each unit of an endpoint's weight: a weight
// of 1,000 costs 1.3 MB. Shares that are not the endpoints' weights, as those of
// localities, have no say in it. Where the points would be more than
// MaximumSize, each endpoint gets its part of that many: endpoints that come or
// go then move some keys of others, and nginx's ring is another. nginx hashes
// IPv6 addresses in the brackets of its configuration and Pingora without; here
// they are without, unless a HashKey has them. Of points that collide the one
// of the lowest address stays; in nginx it is the server that is listed first.
// nginx takes any server in turn after 20 that were down; here the walk goes on.
package ringhash

import (
	"fmt"
	"iter"
	"math"
	"strconv"
	"unsafe"

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

// Function is how the points of a ring are hashed and placed.
// Source: Cluster.RingHashLbConfig.HashFunction; Ketama is not in Envoy.
type Function uint8

// The hash functions.
const (
	XXHash      Function = iota // xx_hash: xxHash64, seed 0
	MurmurHash2                 // murmur_hash_2: 64-bit, as libstdc++'s std::hash
	Ketama                      // ketama: the ring of nginx's "hash … consistent"
)

// Config is the policy's settings. The zero value has Envoy's defaults.
type Config struct {
	// MinimumSize is how many points a ring has at least, up to LimitSize and
	// MaximumSize; 0 means DefaultMinimumSize. With Ketama it has no effect.
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
	case c.MinimumSize > c.MaximumSize && c.Function != Ketama:
		return fmt.Errorf("minimum_ring_size (%d) > maximum_ring_size (%d)", c.MinimumSize, c.MaximumSize)
	case c.Function > Ketama:
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

// Keyed implements [lbcore.Keyed].
func (Config) Keyed() bool { return true }

// Shape implements [lbcore.Builder].
func (c Config) Shape(in lbcore.Input) (u64, u32 int, err error) {
	if err := c.Validate(); err != nil {
		return 0, 0, fmt.Errorf("ring_hash: %w", err)
	}
	runs, _ := c.runs(in, new(lbcore.Pacer))
	n := 0
	for _, points := range runs {
		n += points
	}
	if c.Function == Ketama {
		return n, buckets(n) + 1, nil
	}
	return n, buckets(n) + 1 + memberWords(in, n), nil
}

// runs returns each member with the number of its points: what is due to it of
// a ring of Envoy's size, where fractions carry over to the next. The last one
// may get a point less than in Envoy, which lets rounding exceed the maximum.
// A Ketama ring that is larger than the maximum is cut to it in this way too.
func (c Config) runs(in lbcore.Input, p *lbcore.Pacer) (iter.Seq2[int, int], error) {
	c = c.defaults()
	most := float64(c.MaximumSize)
	scale := most
	if c.Function == Ketama {
		size := uint64(0)
		for _, e := range in.Endpoints {
			size += ketamaPoints * uint64(e.Weight)
			if err := p.Did(1); err != nil {
				return nil, err
			}
		}
		if size <= c.MaximumSize {
			return ketamaRuns(in), nil
		}
	} else {
		least := 1.0
		for _, share := range in.Shares {
			least = min(least, share)
			if err := p.Did(1); err != nil {
				return nil, err
			}
		}
		scale = min(math.Ceil(least*float64(c.MinimumSize))/least, most)
	}
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
	}, nil
}

// Build implements [lbcore.Builder].
func (c Config) Build(in lbcore.Input, st *lbcore.Storage, yield func() error) (lbcore.Selector, error) {
	p := &lbcore.Pacer{Yield: yield}
	if c.Function == Ketama {
		return c.buildKetama(in, st, p)
	}
	if narrow(in) { // two members a word
		u16 := unsafe.Slice((*uint16)(unsafe.Pointer(unsafe.SliceData(st.U32))), 2*len(st.U32))
		return buildRing(c, in, st, u16, p)
	}
	return buildRing(c, in, st, st.U32, p)
}

// narrow reports whether 16 bits are enough for a member.
func narrow(in lbcore.Input) bool { return len(in.Members) <= 1<<16 }

// memberWords returns how many words hold the members of n points.
func memberWords(in lbcore.Input, n int) int {
	if narrow(in) {
		return (n + 1) / 2
	}
	return n
}

// buildRing builds a ring whose members are in the beginning of st.U32.
func buildRing[M index](c Config, in lbcore.Input, st *lbcore.Storage, members []M, p *lbcore.Pacer) (lbcore.Selector, error) {
	runs, err := c.runs(in, p)
	if err != nil {
		return nil, err
	}
	hashes := st.U64
	n := 0
	var buf []byte
	for i, points := range runs {
		buf = append(in.Endpoints[i].AppendKey(buf[:0]), '_')
		stem := len(buf)
		if err := p.Did(1); err != nil {
			return nil, err
		}
		for number := range points {
			buf = strconv.AppendUint(buf[:stem], uint64(number), 10)
			hashes[n] = c.hash(buf)
			members[n] = M(i)
			n++
			if err := p.Did(1); err != nil {
				return nil, err
			}
		}
	}
	hashes, members = hashes[:n:n], members[:n:n]
	if err := sortPoints(p, hashes, members, 0); err != nil {
		return nil, err
	}
	a, err := newArcs(p, hashes, st.U32[memberWords(in, n):])
	if err != nil {
		return nil, err
	}
	return &ring[M]{arcs: a, members: members}, nil
}

func (c Config) hash(b []byte) uint64 {
	if c.Function == MurmurHash2 {
		return murmur2(b)
	}
	return xxhash.Sum64(b)
}

// ring is the selector of Envoy's ring.
type ring[M index] struct {
	arcs
	members []M // parallel to hashes
	zero    M   // is 0, which the compiler does not know
}

// First implements [lbcore.Selector]. It loads a member that is near the one in
// question, so that in a large ring the processor waits for the memory of hashes
// and members at the same time.
func (r *ring[M]) First(k lbcore.Key) uint64 {
	at, end := r.near(k.Hash)
	near := r.members[min(at, uint64(len(r.members)-1))]
	return r.among(at, end, k.Hash) + uint64(near&r.zero)
}

// Next implements [lbcore.Selector].
func (r *ring[M]) Next(_ lbcore.Key, at uint64) (int, uint64) {
	return int(r.members[at]), r.after(at)
}
