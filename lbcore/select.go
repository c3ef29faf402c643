package lbcore

import (
	"hash/crc32"
	"math/rand/v2"
	"runtime"
	"sync/atomic"

	"github.com/cespare/xxhash/v2"
)

// Key is what a selection is made for. The zero Key has no preference: each
// pick then draws a random hash, as Envoy does without a hash policy.
type Key struct {
	// Hash is xxHash64 with seed 0 of the key's bytes.
	Hash uint64
	// CRC is CRC-32/IEEE of the same bytes; the ketama ring needs it.
	CRC uint32
	// Set tells a real key from the zero Key.
	Set bool
}

// StringKey returns the Key of the bytes of s. For a source address s is its
// text without port (and without brackets), unmapped first.
// Source: Envoy's source_ip hash policy.
func StringKey(s string) Key {
	return Key{Hash: xxhash.Sum64String(s), CRC: crc32.ChecksumIEEE([]byte(s)), Set: true}
}

// BytesKey is StringKey for a byte slice, without an allocation.
func BytesKey(b []byte) Key {
	return Key{Hash: xxhash.Sum64(b), CRC: crc32.ChecksumIEEE(b), Set: true}
}

// MaxPicks is how many candidates one selection yields at most.
const MaxPicks = 8

// Picks is the result of one selection: up to MaxPicks distinct members of one
// generation in the order in which to try them. It is a value that the caller
// owns; it stays good after the Reader is unpinned. The zero Picks is empty.
type Picks struct {
	m          [MaxPicks]*Member
	n, at      uint8
	left       bool // the candidates are withdrawn: nobody else was ready
	generation uint64
}

// Generation returns the generation of the selector that answered.
func (p *Picks) Generation() uint64 { return p.generation }

// Len returns the number of candidates, also of those that Next has passed.
func (p *Picks) Len() int { return int(p.n) }

// Next returns the next candidate that is ready at this moment, or nil when
// none is left. If the first call gives nil though Len is above 0, readiness or
// membership has changed since the selection: make another one.
func (p *Picks) Next() *Member {
	for p.at < p.n {
		m := p.m[p.at]
		p.at++
		if p.accepts(m) {
			return m
		}
	}
	return nil
}

func (p *Picks) accepts(m *Member) bool { return m.Ready() || p.left && m.readyButLeft() }

// add appends m unless it is there already, and reports whether want are
// there.
func (p *Picks) add(m *Member, want int) (full bool) {
	for i := range p.n {
		if p.m[i] == m {
			return false
		}
	}
	p.m[p.n] = m
	p.n++
	return int(p.n) >= want
}

// published is a selector in service with the membership that it was built
// from. It is never written, but for the table of loads.
type published struct {
	snap   *Snapshot
	tiers  []tier // by priority, highest first; none is empty
	region *region
	// loads holds for each tier the load of it and those before it in percent.
	// It is nil with less than two tiers.
	loads atomic.Pointer[[]uint32]
}

// tier is one priority.
type tier struct {
	priority uint8
	members  []*Member
	sel      Selector
	taker    Taker // sel, if it is one
}

func (pub *published) selector(priority uint8) Selector {
	for i := range pub.tiers {
		if pub.tiers[i].priority == priority {
			return pub.tiers[i].sel
		}
	}
	return nil
}

// updateLoads computes loads from the members' present readiness.
func (pub *published) updateLoads() {
	if len(pub.tiers) < 2 {
		return
	}
	health := make([]PriorityHealth, len(pub.tiers))
	for i, t := range pub.tiers {
		health[i].Total = uint64(len(t.members))
		for _, m := range t.members {
			if m.Ready() {
				health[i].Healthy++
			}
		}
	}
	loads := PriorityLoads(health, DefaultOverprovisioning, 0).Healthy
	for i := 1; i < len(loads); i++ {
		loads[i] += loads[i-1]
	}
	pub.loads.Store(&loads)
}

// Pick selects up to want (at most MaxPicks) candidates for k, in the order in
// which to try them. No candidate means that no endpoint is ready. r must be
// pinned, by a Reader of the Group's Gate; the Picks stay good after it is
// unpinned. Pick takes no lock and allocates nothing.
func (s *Slot) Pick(r *Reader, k Key, want int) (p Picks) {
	if r.epoch.Load() == 0 {
		panic("lbcore: Pick with a Reader that is not pinned")
	}
	pub := s.pub.Load()
	if pub == nil {
		return p
	}
	p.generation = pub.snap.Generation
	if !k.Set {
		k.Hash = rand.Uint64()
	}
	want = min(max(want, 1), MaxPicks)
	if pub.collect(k, want, &p); p.n > 0 {
		runtime.KeepAlive(pub)
		return p
	}
	// Nobody is ready. While the next selector waits for the gate, endpoints
	// that have left are better than nothing.
	p.left = true
	pub.collect(k, want, &p)
	runtime.KeepAlive(pub) // and with it its region, which is not of Go's heap
	return p
}

// collect adds candidates of the priority that the load table gives for k, and
// then, while some are wanted, of the others, highest first.
func (pub *published) collect(k Key, want int, p *Picks) {
	chosen := 0
	if loads := pub.loads.Load(); loads != nil {
		x := uint32(k.Hash%100) + 1
		for chosen < len(*loads)-1 && x > (*loads)[chosen] {
			chosen++
		}
	}
	if chosen < len(pub.tiers) && pub.tiers[chosen].collect(k, want, p) {
		return
	}
	for i := range pub.tiers {
		if i != chosen && pub.tiers[i].collect(k, want, p) {
			return
		}
	}
}

// collect adds the tier's candidates and reports whether want are there. If a
// member is acceptable it is found: first along the policy's own walk, then
// along a permutation of all members that the hash gives.
func (t *tier) collect(k Key, want int, p *Picks) bool {
	first := t.sel.First(k)
	at, had := first, p.n
	steps, all := 1, false
	for i := 0; i < steps; i++ {
		var x int
		x, at = t.sel.Next(k, at)
		if m := t.members[x]; p.accepts(m) {
			full := p.add(m, want)
			if t.taker != nil && p.n == had+1 {
				t.taker.Took(first, at)
				had = MaxPicks // once
			}
			if full {
				return true
			}
		}
		if i == 0 {
			steps, all = t.sel.Steps()
		}
	}
	if !all {
		n := uint64(len(t.members))
		x, stride := permutation(k.Hash, n)
		for range n {
			if m := t.members[x]; p.accepts(m) && p.add(m, want) {
				return true
			}
			if x += stride; x >= n {
				x -= n
			}
		}
	}
	if t.taker != nil && p.n == had {
		t.taker.Took(first, first)
	}
	return false
}

// permutation returns a start and a stride below n that visit each of n
// indices once.
func permutation(seed, n uint64) (start, stride uint64) {
	// The policies index by the high bits or by position on a ring; mixing
	// makes the order independent of theirs.
	seed ^= seed >> 33
	seed *= 0xff51afd7ed558ccd
	seed ^= seed >> 33
	start = seed % n
	if n < 3 {
		return start, 1 % n
	}
	stride = 1 + seed/n%(n-1)
	for gcd(stride, n) != 1 {
		if stride++; stride == n {
			stride = 1
		}
	}
	return start, stride
}

func gcd(a, b uint64) uint64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}
