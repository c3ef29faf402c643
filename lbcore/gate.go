package lbcore

import (
	"context"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// GateConfig configures a Gate. The zero value has the documented defaults.
type GateConfig struct {
	// StuckAfter is how long after a selector was replaced large builds wait for
	// its readers before they go on with fresh storage. A reader that was stuck
	// and still is in the same pin is not waited for again. 0 means 10 s.
	StuckAfter time.Duration
	// MaxStuck bounds how many replaced selectors may be held by stuck readers
	// at once; with more the large lane waits. 0 means 4.
	MaxStuck int
	// SmallBuild is the storage in bytes from which on a build is large.
	// 0 means 256 KiB.
	SmallBuild int
	// MaxStorage is the storage in bytes that one selector may take at most; the
	// build of a larger one fails. 0 means 1 GiB.
	MaxStorage int
	// Fresh builds every selector in new memory of Go's heap and leaves it to
	// the collector afterwards. It is there to measure what the Gate saves.
	Fresh bool
	// OnStuck, if set, is told of each selector whose readers were passed. It
	// is called by a rebuilding goroutine and must not block.
	OnStuck func(Stuck)
}

// Stuck describes readers that still hold a replaced selector.
type Stuck struct {
	Slot    string // cluster/selector
	Bytes   int    // storage that can't be freed
	Readers []string
}

// sharedReaders is how many goroutines can be pinned at once before another
// has to wait for one of them. A pin lasts well under a microsecond, so only
// preempted goroutines add up.
const sharedReaders = 64

// heldShare is the part of all storage that replaced selectors may hold
// before large builds wait for their readers: with many clusters a thread that
// was preempted while it read must not cost each of them its time slice.
const heldShare = 64

// spareFor is how long storage without a reader waits for the next build.
const spareFor = 10 * time.Second

// Bounds on what the small lane keeps to be used again. What is above is left
// to the collector, since a reader of it may be there.
const (
	maxSmallSpares  = 1 << 20 // bytes
	maxSmallRetired = 64
)

// Gate is what every rebuild of a node passes, so that rebuilds do not add up
// in memory. It has two lanes, each building one selector at a time, first
// come first served: small builds never wait for readers; of the large ones
// none begins while selectors that were replaced have readers and hold more
// than 1/64 of all storage. What the last reader has left serves the next
// build. So large selectors take the storage of those in service, once more
// 1/64, that of one build, and what stuck readers hold.
//
// Readers are known by the epoch in which they pinned: a selector that was
// replaced in epoch e has no reader once every pinned Reader pinned in e or
// later.
//
// Its methods may be called from anywhere.
type Gate struct {
	cfg   GateConfig
	epoch atomic.Uint64
	_     [56]byte

	waiting atomic.Bool // the large lane waits for a reader
	wake    chan struct{}
	storage atomic.Int64 // bytes of all regions that are not of Go's heap

	small, large lane

	mu    sync.Mutex // also of the lanes
	named []*Reader  // those of NewReader
	stuck []retirement
	slow  map[*Reader]uint64 // readers that were passed, with the epoch of their pin

	shared *[sharedReaders]Reader // apart from the rest, where none shares a cache line
}

// lane is where one build goes on at a time.
type lane struct {
	permit  chan struct{}
	large   bool
	retired []retirement // may have readers
	spares  []*region    // have none
	crowded time.Time    // since when the small lane has had too many retired; zero: it has not
}

// retirement is a replaced selector that may have readers.
type retirement struct {
	epoch  uint64
	slot   string
	region *region
	at     time.Time
}

// GateStats describes the storage of selectors, in bytes.
type GateStats struct {
	// Storage is all there is outside of Go's heap, where storage from 32 KiB on
	// is: in service, being built, and what follows.
	Storage int64
	// Of large selectors, Spare storage serves the next build; Retired storage
	// may still be read; Stuck storage is held by readers that the Gate has
	// stopped waiting for.
	Spare, Retired, Stuck int64
	// StuckSelectors are how many those readers hold.
	StuckSelectors int
}

// NewGate returns a Gate without readers.
func NewGate(cfg GateConfig) *Gate {
	if cfg.StuckAfter <= 0 {
		cfg.StuckAfter = 10 * time.Second
	}
	if cfg.MaxStuck <= 0 {
		cfg.MaxStuck = 4
	}
	if cfg.SmallBuild <= 0 {
		cfg.SmallBuild = 256 << 10
	}
	if cfg.MaxStorage <= 0 {
		cfg.MaxStorage = 1 << 30
	}
	g := &Gate{cfg: cfg, wake: make(chan struct{}, 1), slow: make(map[*Reader]uint64), shared: new([sharedReaders]Reader)}
	g.small = lane{permit: make(chan struct{}, 1)}
	g.large = lane{permit: make(chan struct{}, 1), large: true}
	g.epoch.Store(1)
	for i := range g.shared {
		g.shared[i].gate = g
		g.shared[i].name = "goroutine"
	}
	return g
}

// Reader announces that its owner reads published selectors, so that none of
// them is taken apart meanwhile. One pin covers every Slot of the Gate. A pin
// must be short: never across a system call or anything else that waits.
type Reader struct {
	epoch atomic.Uint64 // 0: not pinned
	gate  *Gate
	name  string
	lots  uint64   // what Pick draws random hashes from; whoever is pinned owns it
	_     [24]byte // a cache line of its own
}

// NewReader returns a Reader for one event loop, to be named in reports of
// stuck readers. Close it when the loop ends.
func (g *Gate) NewReader(name string) *Reader {
	r := &Reader{gate: g, name: name}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.named = append(g.named, r)
	return r
}

// Close removes a Reader of NewReader, which must not be pinned.
func (r *Reader) Close() {
	g := r.gate
	g.mu.Lock()
	defer g.mu.Unlock()
	g.named = slices.DeleteFunc(g.named, func(x *Reader) bool { return x == r })
}

// Pin announces reading. Only the Reader's owner may call it, and must Unpin
// before the next Pin.
func (r *Reader) Pin() { r.epoch.Store(r.gate.epoch.Load()) }

// Unpin ends what Pin announced. What was read through the Reader, other than
// Members, must not be used any more.
func (r *Reader) Unpin() {
	r.epoch.Store(0)
	if r.gate.waiting.Load() {
		poke(r.gate.wake)
	}
}

// Pin returns a pinned Reader for a goroutine that has none of its own. Unpin
// gives it back.
func (g *Gate) Pin() *Reader {
	i := rand.Uint32()
	for tries := 0; ; tries++ {
		r := &g.shared[(i+uint32(tries))%sharedReaders]
		if r.epoch.Load() == 0 && r.epoch.CompareAndSwap(0, g.epoch.Load()) {
			return r
		}
		if tries%sharedReaders == sharedReaders-1 {
			runtime.Gosched()
		}
	}
}

// lane returns the lane of builds of that size.
func (g *Gate) lane(bytes int) *lane {
	if bytes >= g.cfg.SmallBuild {
		return &g.large
	}
	return &g.small
}

// acquire waits for the permit of a lane and, in the large one, until replaced
// selectors hold little enough. If ctx ends meanwhile the permit is free again
// and what was retired stays registered.
func (g *Gate) acquire(ctx context.Context, l *lane) error {
	select {
	case l.permit <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	err := ctx.Err() // both cases may have been ready
	if err == nil && l.large {
		err = g.awaitReaders(ctx)
	}
	if err != nil {
		l.release()
	}
	return err
}

// release frees the permit.
func (l *lane) release() { <-l.permit }

// take returns storage for a build, which the holder of the lane's permit gives
// to publish or back. used reports that an earlier selector was built in it.
func (g *Gate) take(l *lane, bytes int) (r *region, used bool) {
	size := classSize(bytes)
	g.mu.Lock()
	g.sift(l)
	fits := func(spare *region) bool { return spare.bytes() == size }
	if i := slices.IndexFunc(l.spares, fits); i >= 0 {
		r = l.spares[i]
		l.spares = slices.Delete(l.spares, i, i+1)
	}
	if l.large && g.tooMuch(l) { // not to add up with what is built
		for _, spare := range l.spares {
			spare.release()
		}
		l.spares = nil
	}
	// Where readers are slow, what the small lane drops is best found by the
	// collector, which Go's heap calls in time.
	heap := g.cfg.Fresh || !l.large && len(l.retired) > maxSmallRetired/2
	g.mu.Unlock()
	if r != nil {
		return r, true
	}
	return newRegion(size, l.large, heap, &g.storage), false
}

// giveBack returns storage that no reader has seen.
func (g *Gate) giveBack(l *lane, r *region) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.spare(l, r)
}

// spare keeps storage that no reader holds for a later build: of large storage
// that of one, or 1/64 of all. The caller holds mu.
func (g *Gate) spare(l *lane, r *region) {
	if r.bytes() == 0 {
		return
	}
	if g.cfg.Fresh {
		r.release()
		return
	}
	r.clear()
	r.since = time.Now()
	l.spares = append(l.spares, r)
	for len(l.spares) > 1 && g.tooMuch(l) {
		l.spares[0].release()
		l.spares = slices.Delete(l.spares, 0, 1)
	}
}

// tooMuch reports whether a lane's spares take more than they may.
func (g *Gate) tooMuch(l *lane) bool {
	var n int64
	for _, r := range l.spares {
		n += int64(r.bytes())
	}
	if l.large {
		return n*heldShare > g.storage.Load()
	}
	return n > maxSmallSpares
}

// retire registers the selector that its slot has just replaced: those who pin
// from now on can't see it.
func (g *Gate) retire(slot string, r *region) {
	e := g.epoch.Add(1)
	g.mu.Lock()
	l := &g.small
	if r.large {
		l = &g.large
	}
	l.retired = append(l.retired, retirement{e, slot, r, time.Now()})
	g.sift(l) // others too, which no build may come for
	var passed []Stuck
	if len(l.retired) > maxSmallRetired && !l.large {
		passed = g.drop()
	}
	g.mu.Unlock()
	g.tell(passed)
}

// drop leaves the oldest retirement of the small lane to the collector. Readers
// that have held so many for StuckAfter are returned to be named. The caller
// holds mu.
func (g *Gate) drop() (passed []Stuck) {
	l := &g.small
	if l.crowded.IsZero() {
		l.crowded = time.Now()
	}
	r := l.retired[0]
	l.retired = slices.Delete(l.retired, 0, 1)
	if time.Since(l.crowded) < g.cfg.StuckAfter {
		return nil
	}
	g.forget()
	holders := g.holders(r.epoch)
	if slices.ContainsFunc(holders, func(h *Reader) bool { return g.slow[h] == 0 }) {
		passed = append(passed, g.pass(r, holders))
	}
	return passed
}

// pass notes that the readers of r are not waited for any more. The caller holds
// mu.
func (g *Gate) pass(r retirement, holders []*Reader) Stuck {
	s := Stuck{Slot: r.slot, Bytes: r.region.bytes()}
	for _, h := range holders {
		if e := h.epoch.Load(); e != 0 {
			g.slow[h] = e
		}
		s.Readers = append(s.Readers, h.name)
	}
	return s
}

func (g *Gate) tell(passed []Stuck) {
	if g.cfg.OnStuck != nil {
		for _, s := range passed {
			g.cfg.OnStuck(s)
		}
	}
}

// sift makes spare what nobody holds of the retired selectors of a lane. The
// caller holds mu.
func (g *Gate) sift(l *lane) {
	oldest := ^uint64(0)
	for r := range g.readers {
		if e := r.epoch.Load(); e != 0 {
			oldest = min(oldest, e)
		}
	}
	l.retired = slices.DeleteFunc(l.retired, func(r retirement) bool {
		if r.epoch > oldest {
			return false
		}
		g.spare(l, r.region)
		return true
	})
	if len(l.retired) <= maxSmallRetired/2 {
		l.crowded = time.Time{}
	}
}

// awaitReaders returns once what retired selectors hold is little enough, or
// once those who hold them count as stuck. Only the holder of the large permit
// calls it.
func (g *Gate) awaitReaders(ctx context.Context) error {
	wait := g.settle()
	if wait == 0 {
		return nil
	}
	g.waiting.Store(true)
	defer g.waiting.Store(false)
	timer := time.NewTimer(wait)
	defer timer.Stop()
	// Again: a reader may have left before waiting was set.
	for wait = g.settle(); wait > 0; wait = g.settle() {
		timer.Reset(wait)
		select {
		case <-g.wake:
		case <-timer.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// settle makes spare what nobody holds of the retired large selectors, and
// passes those that stuck readers hold, as far as MaxStuck allows. It returns 0
// if there is nothing to wait for, else when to look again.
func (g *Gate) settle() (wait time.Duration) {
	var passed []Stuck
	var held int64
	g.mu.Lock()
	g.forget()
	g.large.retired = slices.DeleteFunc(g.large.retired, func(r retirement) bool {
		holders := g.holders(r.epoch)
		if len(holders) == 0 {
			g.spare(&g.large, r.region)
			return true
		}
		left := g.cfg.StuckAfter - time.Since(r.at)
		if !slices.ContainsFunc(holders, func(h *Reader) bool { return g.slow[h] == 0 }) {
			left = 0
		}
		if left > 0 || len(g.stuck) >= g.cfg.MaxStuck {
			if left <= 0 {
				left = g.cfg.StuckAfter
			}
			if wait == 0 || left < wait {
				wait = left
			}
			held += int64(r.region.bytes())
			return false
		}
		g.stuck = append(g.stuck, r)
		passed = append(passed, g.pass(r, holders))
		return true
	})
	if held*heldShare <= g.storage.Load() {
		wait = 0
	}
	g.mu.Unlock()
	g.tell(passed)
	return wait
}

// forget drops what is known of readers that have gone on. The caller holds mu.
func (g *Gate) forget() {
	maps.DeleteFunc(g.slow, func(r *Reader, e uint64) bool { return r.epoch.Load() != e })
	g.stuck = slices.DeleteFunc(g.stuck, func(r retirement) bool {
		if len(g.holders(r.epoch)) > 0 {
			return false
		}
		r.region.release() // at most one spare is kept, and that may be there
		return true
	})
}

// readers yields all of them. The caller holds mu.
func (g *Gate) readers(yield func(*Reader) bool) {
	for i := range g.shared {
		if !yield(&g.shared[i]) {
			return
		}
	}
	for _, r := range g.named {
		if !yield(r) {
			return
		}
	}
}

// holders returns the readers that may hold what was replaced in epoch e. The
// caller holds mu.
func (g *Gate) holders(e uint64) (rs []*Reader) {
	for r := range g.readers {
		if x := r.epoch.Load(); x != 0 && x < e {
			rs = append(rs, r)
		}
	}
	return rs
}

// Stats returns the present numbers, and gives back storage that has waited for
// a build for spareFor. It should be called every few seconds.
func (g *Gate) Stats() GateStats {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.forget()
	for _, l := range []*lane{&g.small, &g.large} {
		g.sift(l)
		l.spares = slices.DeleteFunc(l.spares, func(r *region) bool {
			old := time.Since(r.since) >= spareFor
			if old {
				r.release()
			}
			return old
		})
	}
	st := GateStats{Storage: g.storage.Load(), StuckSelectors: len(g.stuck)}
	for _, r := range g.large.spares {
		st.Spare += int64(r.bytes())
	}
	for _, r := range g.large.retired {
		st.Retired += int64(r.region.bytes())
	}
	for _, r := range g.stuck {
		st.Stuck += int64(r.region.bytes())
	}
	return st
}

// poke wakes the one who waits on a one-slot channel; a poke that is already
// there says the same.
func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
