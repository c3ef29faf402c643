package lbcore

// What the tests see of the inside.

// Inputs returns what the selectors of snap are built from.
func Inputs(snap *Snapshot) []Input { return SpreadInputs(snap, Spread{}, false) }

// SpreadInputs returns what the selectors of snap are built from.
func SpreadInputs(snap *Snapshot, spread Spread, keyed bool) (ins []Input) {
	for _, p := range inputs(snap, spread, keyed) {
		ins = append(ins, p.Input)
	}
	return ins
}

// PickHash is Pick as it goes where the random hash is the given one.
func (s *Slot) PickHash(hash uint64, want int) Picks {
	r := s.group.cfg.Gate.NewReader("a hash")
	defer r.Close()
	x := hash // mix backwards
	x = (x ^ x>>31 ^ x>>62) * 0x319642b2d24d8ec3
	x = (x ^ x>>27 ^ x>>54) * 0x96de1b173f119089
	x = x ^ x>>30 ^ x>>60
	if mix(x) != hash {
		panic("this is not mix backwards")
	}
	r.lots = x - 0x9e3779b97f4a7c15
	r.Pin()
	defer r.Unpin()
	return s.Pick(r, Key{}, want)
}

// Pending returns the generation that the slot is still asked for.
func (s *Slot) Pending() (generation uint64, ok bool) {
	r := s.peek()
	if r == nil {
		return 0, false
	}
	return r.snap.Generation, true
}

// Retired returns how many replaced large selectors the Gate has not looked
// after yet.
func (g *Gate) Retired() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.large.retired)
}

// StuckSelectors returns how many stuck readers hold.
func (g *Gate) StuckSelectors() int { return g.Stats().StuckSelectors }

// ReadyButLeft reports whether the member would be ready if discovery had not
// dropped it.
func (m *Member) ReadyButLeft() bool { return m.Withdrawn() && m.is(classLeft) }

// Permutation is the order in which a search visits the members in the end.
func Permutation(seed, n uint64) (start, stride uint64) { return permutation(seed, n) }

// ClassSize rounds a size of storage up to that of its class.
func ClassSize(bytes int) int { return classSize(bytes) }

// LargeLane returns how many regions of large selectors serve the next build,
// may have readers, and are held by stuck ones.
func (g *Gate) LargeLane() (spare, retired, stuck int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.large.spares), len(g.large.retired), len(g.stuck)
}

// EffectiveWeight is what a locality weighs at its availability.
func EffectiveWeight(h PriorityHealth, weight uint32, available, overprovisioning uint64) float64 {
	return h.effective(weight, available, overprovisioning)
}

// Mix makes a random hash of a number.
func Mix(x uint64) uint64 { return mix(x) }

// Total is the connections that the View counts.
func (v *View) Total() int64 { return v.total.Load() }

// Watchers returns how many members are told of p's verdicts.
func (p *ProbeState) Watchers() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.watcher == nil {
		return len(p.more)
	}
	return 1 + len(p.more)
}

// PoisonWord is what storage without a reader is filled with in a test build.
const PoisonWord = poisonWord

// Spares returns the words of all spare storage.
func (g *Gate) Spares() (words []uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, l := range []*lane{&g.small, &g.large} {
		for _, r := range l.spares {
			words = append(words, r.words...)
		}
	}
	return words
}
