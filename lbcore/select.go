package lbcore

import (
	"hash/crc32"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync/atomic"

	"github.com/cespare/xxhash/v2"
)

// Key is what a selection is made for. The zero Key has no preference: each
// pick then draws a random hash, as Envoy does without a hash policy. It does so
// too where the slot's Builder isn't [Keyed].
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
	generation uint64
	n, at      uint8
	anyway     uint8 // bit i: candidate i was taken whatever its health, by a tier in panic
	left       bool  // the candidates are withdrawn: nobody else was ready
}

// Generation returns the generation of the selector that answered.
func (p *Picks) Generation() uint64 { return p.generation }

// Len returns the number of candidates, also of those that Next has passed.
func (p *Picks) Len() int { return int(p.n) }

// Next returns the next candidate that is ready at this moment, or nil when
// none is left. A candidate of a priority in panic is returned ready or not, as
// long as it is listed and enabled. If the first call gives nil though Len is
// above 0, readiness or membership has changed since the selection: make another
// one.
func (p *Picks) Next() *Member {
	for p.at < p.n {
		i := p.at
		p.at++
		if m := p.m[i]; m.Ready() || p.anyway>>i&1 != 0 && m.is(classAnyone) || p.left && m.is(classLeft) {
			return m
		}
	}
	return nil
}

// add appends m unless it is there already, which it reports.
func (p *Picks) add(m *Member, anyway bool) bool {
	if p.has(m) {
		return false
	}
	if anyway {
		p.anyway |= 1 << p.n
	}
	p.m[p.n] = m
	p.n++
	return true
}

func (p *Picks) has(m *Member) bool { return slices.Contains(p.m[:p.n], m) }

// published is the selectors in service with the membership that they were
// built from. It is never written, but for the table of loads.
type published struct {
	generation uint64
	region     *region
	tiers      []tier // the most preferred first; none is empty
	only       *part  // the only one, if there is no other
	size       int    // members of all tiers
	// loads is nil where there is nothing to decide: all load goes to the one
	// part there is.
	loads atomic.Pointer[loadTable]
}

// tier is the endpoints of one priority and distance.
type tier struct {
	place
	parts []part // in the order of their localities
	size  int    // members
}

// part is one selector and what it picks among.
//
// It holds nothing of the Set: that is replaced long before the selector where
// many wait for the gate, and would be in memory twice.
type part struct {
	place
	members []*Member
	weights []uint32  // parallel to members
	shares  []float64 // too, with bounded load
	weight  uint32    // of the locality
	sel     Selector
	taker   Taker // sel, if it is one
}

// add appends a part. Parts come in the order of their places.
func (pub *published) add(in *partInput, sel Selector, bounded bool) {
	if n := len(pub.tiers); n == 0 || pub.tiers[n-1].compareTier(in.place) != 0 {
		pub.tiers = append(pub.tiers, tier{place: place{priority: in.priority, distance: in.distance}})
	}
	t := &pub.tiers[len(pub.tiers)-1]
	p := part{place: in.place, members: in.Members, weight: in.weight, sel: sel}
	p.taker, _ = sel.(Taker)
	p.weights = make([]uint32, len(in.Endpoints))
	for i, e := range in.Endpoints {
		p.weights[i] = e.Weight
	}
	if bounded {
		p.shares = in.Shares
	}
	t.parts = append(t.parts, p)
	t.size += len(in.Members)
	pub.size += len(in.Members)
	if pub.only = nil; len(pub.tiers) == 1 && len(t.parts) == 1 {
		pub.only = &t.parts[0]
	}
}

// selector returns the one of a place, or nil.
func (pub *published) selector(at place) Selector {
	i, ok := slices.BinarySearchFunc(pub.tiers, at, func(t tier, at place) int { return t.compareTier(at) })
	if !ok {
		return nil
	}
	parts := pub.tiers[i].parts
	i, ok = slices.BinarySearchFunc(parts, at, func(p part, at place) int { return p.compare(at) })
	if !ok {
		return nil
	}
	return parts[i].sel
}

// Pick selects up to want (at most MaxPicks) candidates for k, in the order in
// which to try them. No candidate means that no endpoint is acceptable. r must
// be pinned, by a Reader of the Group's Gate; the Picks stay good after it is
// unpinned. Pick takes no lock and allocates nothing.
//
// The order of decisions is Envoy's: a tier by the table of loads, a locality
// in it, an endpoint there. Then, while more are wanted, come the other
// localities of the tier, the other tiers, and those that are degraded.
func (s *Slot) Pick(r *Reader, k Key, want int) (p Picks) {
	if r.epoch.Load() == 0 {
		panic("lbcore: Pick with a Reader that is not pinned")
	}
	pub := s.pub.Load()
	if pub == nil {
		return p
	}
	p.generation = pub.generation
	if !s.keyed {
		k = Key{}
	}
	table, t := pub.loads.Load(), pub.only
	hashed := k.Set || t == nil || table != nil || t.taker == nil
	if !k.Set && hashed {
		k.Hash = r.random()
	}
	var at lot // the first tier's healthy ones
	if table != nil {
		at = table.lots[k.Hash%uint64(len(table.lots))]
		t = &pub.tiers[at.tier].parts[table.part(pub, int(at.tier), at.class, k.Hash)]
	}
	var w walk
	if t != nil && at.class == classHealthy && s.cfg.BalanceFactor == 0 {
		if w = t.plain(k, min(want, pub.size, MaxPicks), &p); w.done {
			runtime.KeepAlive(pub)
			return p
		}
	}
	if !hashed {
		k.Hash = r.random()
	}
	s.search(pub, table, at, k, want, w, &p)
	runtime.KeepAlive(pub) // and with it its region, which is not of Go's heap
	return p
}

// walk is a policy's walk that has begun.
type walk struct {
	first uint64
	begun bool
	taken bool // a candidate, of which the Taker knows
	done  bool
}

// plain is the way of most picks: it walks past those who are not ready, and
// adds those of whom nothing else is known. If it is not done when it comes to
// one who is degraded or starts slowly, or to the end of the walk, then collect
// goes the same way again and further.
func (t *part) plain(k Key, want int, p *Picks) (w walk) {
	w.first, w.begun = t.sel.First(k), true
	x, at := t.sel.Next(k, w.first)
	if m := t.members[x]; m.word.Load() == 0 {
		p.m[0], p.n = m, 1
		w.taken = true // the first candidate, as the Taker expects
		if want <= 1 {
			w.done = true
			return w
		}
	} else if m.Ready() {
		return w
	}
	t.walkOn(k, at, want, p, &w)
	return w
}

// walkOn is plain after the first candidate.
func (t *part) walkOn(k Key, at uint64, want int, p *Picks, w *walk) {
	for steps, _ := t.sel.Steps(); steps > 1 && int(p.n) < len(t.members); steps-- {
		var x int
		x, at = t.sel.Next(k, at)
		m := t.members[x]
		if word := m.word.Load(); word&^bitsReady != 0 || p.has(m) {
			continue
		} else if word != 0 {
			return
		}
		p.m[p.n] = m
		p.n++
		if !w.taken && t.taker != nil {
			t.taker.Took(w.first, at)
		}
		w.taken = true
		if int(p.n) >= want {
			w.done = true
			return
		}
	}
}

// search is the whole of Pick, after a plain walk or without one.
func (s *Slot) search(pub *published, table *loadTable, at lot, k Key, want int, w walk, p *Picks) {
	f := search{p: p, k: k, want: uint8(min(max(want, 1), MaxPicks)), walk: w, slow: !s.keyed, factor: uint64(s.cfg.BalanceFactor)}
	pub.find(&f, table, at)
}

// search is one selection that is going on.
type search struct {
	p    *Picks
	k    Key
	want uint8

	class class
	slow  bool   // members that start slowly are passed over by lot
	lots  uint64 // what the next lot is drawn from

	factor    uint64  // of bounded load; 0 is no bound
	least     int     // whose load is the least of those above the bound
	leastLoad float64 // in parts of the bound; 0 if there is nobody

	walk walk // of the part, or begun for it

	degraded bool // somebody is not taken for this only
	passed   bool // by the lot of slow start

	trace *trace // of an Explain; nil for a selection that counts
}

// find adds candidates, those of chosen first, until enough are there. What is
// acceptable in one stage is so in the later ones, other than those who are in
// panic: an endpoint whose readiness is another reason's from one moment to the
// next is found all the same.
func (pub *published) find(s *search, table *loadTable, chosen lot) {
	if pub.size == 0 {
		return
	}
	all := func(c class, but int) (done bool) {
		s.class = c
		for i := range pub.tiers {
			if i != but && pub.tiers[i].collect(s, table.part(pub, i, c, s.k.Hash)) {
				return true
			}
		}
		return int(s.p.n) == pub.size
	}
	at := int(chosen.tier)
	s.class = chosen.class
	if pub.tiers[at].collect(s, table.part(pub, at, s.class, s.k.Hash)) || int(s.p.n) == pub.size {
		return
	}
	if s.class == classDegraded || s.leastLoad > 0 {
		at = -1
	}
	s.factor, s.leastLoad = 0, 0 // above the bound is better than nobody
	if all(classHealthy, at) {
		return
	}
	if s.degraded || s.p.n == 0 {
		if all(classReady, -1) {
			return
		}
	}
	if s.p.n == 0 && table != nil {
		s.class = classAnyone
		for i, t := range table.tiers {
			if t.panic && pub.tiers[i].collect(s, table.part(pub, i, classAnyone, s.k.Hash)) {
				return
			}
		}
	}
	if s.p.n == 0 {
		// While the next selector waits for the gate, endpoints that have left
		// are better than nothing.
		s.p.left = true
		all(classLeft, -1)
	}
}

// collect adds candidates of the tier's parts, from one of them on, and reports
// whether enough are there.
func (t *tier) collect(s *search, from int) (full bool) {
	had := s.had()
	for range t.parts {
		if t.parts[from].collect(s) {
			return true
		}
		if int(s.p.n-had) == t.size {
			break
		}
		if from++; from == len(t.parts) {
			from = 0
		}
	}
	return false
}

// had returns how many candidates are not of the part, or tier, that comes next.
func (s *search) had() uint8 {
	if s.walk.begun {
		return 0 // a plain walk has been there
	}
	return s.p.n
}

// minSteps is how far a walk goes on at least if slow start has passed over
// somebody.
const minSteps = 32

// collect adds the part's candidates of the class and reports whether enough
// are there. If a member is acceptable it is found: first along the policy's own
// walk, then along a permutation of all members that the hash gives.
func (t *part) collect(s *search) (full bool) {
	if !s.walk.begun {
		s.walk = t.begin(s)
	}
	at, had, room := s.walk.first, s.had(), len(t.members)
	s.walk.begun, s.passed = false, false
	steps, all := 1, false
	if int(s.p.n-had) == room {
		return false
	}
	for i := 0; i < steps; i++ {
		var x int
		from := at
		x, at = t.sel.Next(s.k, at)
		if t.take(s, x, from, true) {
			if t.taker != nil && !s.walk.taken && i > 0 {
				t.taker.Took(s.walk.first, at)
			}
			s.walk.taken = true
			if s.p.n >= s.want || int(s.p.n-had) == room {
				return s.p.n >= s.want
			}
		}
		if i == 0 {
			steps, all = t.sel.Steps()
		}
		if all && s.passed {
			steps, all = max(steps, minSteps), false
		}
	}
	if !all {
		n := uint64(room)
		x, stride := permutation(s.k.Hash, n)
		for range n {
			if t.take(s, int(x), 0, false) && s.p.n >= s.want {
				return true
			}
			if x += stride; x >= n {
				x -= n
			}
		}
	}
	if s.p.n == had {
		if t.taker != nil && !s.walk.taken {
			t.taker.Took(s.walk.first, s.walk.first)
		}
		if s.leastLoad > 0 {
			s.p.add(t.members[s.least], s.class == classAnyone)
			if s.trace != nil {
				s.trace.note(s, t, s.least, 0, false, VerdictLeastLoaded)
			}
		}
	}
	return s.p.n >= s.want
}

// begin begins a walk; one that is only explained takes nobody's turn.
func (t *part) begin(s *search) walk {
	if s.trace == nil {
		return walk{first: t.sel.First(s.k)}
	}
	if p, ok := t.sel.(Peeker); ok {
		return walk{first: p.Peek(s.k), taken: true}
	}
	return walk{first: t.sel.First(s.k), taken: true}
}

// take adds member x, which was found at a position of the walk if walking, if it is
// acceptable and not there yet, which it reports.
func (t *part) take(s *search, x int, at uint64, walking bool) bool {
	v := t.judge(s, x, walking)
	added := v == VerdictTaken && s.p.add(t.members[x], s.class == classAnyone)
	if s.trace != nil && (added || v != VerdictTaken) {
		s.trace.note(s, t, x, at, walking, v)
	}
	return added
}

// judge says whether member x is acceptable, and if not why.
func (t *part) judge(s *search, x int, walking bool) Verdict {
	m := t.members[x]
	switch {
	case !m.is(s.class):
		s.degraded = s.degraded || m.word.Load()&^bitSlow == bitDegraded
		switch {
		case !m.Ready():
			return VerdictNotReady
		case m.Degraded():
			return VerdictDegraded
		}
		return VerdictNotDegraded
	case walking && s.slow && s.class != classAnyone && m.word.Load()&bitSlow != 0 && s.lot() >= m.slow.Load():
		s.passed = true
		return VerdictSlowStart
	case s.factor > 0 && s.overloaded(t, x):
		return VerdictOverloaded
	}
	return VerdictTaken
}

// random returns 64 random bits, in less time than math/rand/v2.
func (r *Reader) random() uint64 {
	if r.lots == 0 {
		r.lots = rand.Uint64()
	}
	r.lots += 0x9e3779b97f4a7c15 // splitmix64
	return mix(r.lots)
}

// lot returns 32 random bits.
func (s *search) lot() uint32 {
	if s.lots == 0 {
		s.lots = s.k.Hash ^ 0xd1342543de82ef95
	}
	s.lots += 0x9e3779b97f4a7c15 // splitmix64
	return uint32(mix(s.lots) >> 32)
}

// mix spreads a number over 64 bits, so that what is taken from it and what is
// taken from the number don't depend on each other.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
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
