package lbcore

// What the tests see of the inside.

// Inputs returns what the selectors of snap are built from.
func Inputs(snap *Snapshot) []Input { return inputs(snap) }

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
func (m *Member) ReadyButLeft() bool { return m.readyButLeft() }

// SetEjected does what outlier detection will do.
func (m *Member) SetEjected(on bool) { m.set(bitEjected, on) }

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
