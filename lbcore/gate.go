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

// Gate is what every rebuild of a node passes, so that rebuilds do not add up
// in memory. It has two lanes, each building one selector at a time, first
// come first served: small builds never wait for readers; of the large ones
// none begins while the selector that was replaced last still has a reader.
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

	small, large chan struct{} // permits

	mu      sync.Mutex
	named   []*Reader // those of NewReader
	retired []retirement
	stuck   []retirement
	slow    map[*Reader]uint64 // readers that were passed, with the epoch of their pin

	shared [sharedReaders]Reader
}

// retirement is a replaced large selector that may have readers.
type retirement struct {
	epoch uint64
	slot  string
	bytes int
	at    time.Time
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
	g := &Gate{cfg: cfg, wake: make(chan struct{}, 1), slow: make(map[*Reader]uint64), small: make(chan struct{}, 1), large: make(chan struct{}, 1)}
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

// acquire waits for the permit of a lane and, in the large one, until no
// reader holds the selector that was replaced last. If ctx ends meanwhile the
// permit is free again and what was retired stays registered.
func (g *Gate) acquire(ctx context.Context, large bool) error {
	lane := g.lane(large)
	select {
	case lane <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	err := ctx.Err() // both cases may have been ready
	if err == nil && large {
		err = g.awaitReaders(ctx)
	}
	if err != nil {
		<-lane
	}
	return err
}

// release frees the permit of a lane.
func (g *Gate) release(large bool) { <-g.lane(large) }

func (g *Gate) lane(large bool) chan struct{} {
	if large {
		return g.large
	}
	return g.small
}

// retire registers the large selector that its slot has just replaced: those
// who pin from now on can't see it.
func (g *Gate) retire(slot string, bytes int) {
	e := g.epoch.Add(1)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.retired = append(g.retired, retirement{e, slot, bytes, time.Now()})
}

// awaitReaders returns once nobody holds a retired selector, or once those who
// do count as stuck. Only the holder of the large permit calls it.
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

// settle forgets the retired selectors that nobody holds and passes those that
// stuck readers hold, as far as MaxStuck allows. It returns 0 if none is left
// to wait for, else when to look again.
func (g *Gate) settle() (wait time.Duration) {
	var passed []Stuck
	g.mu.Lock()
	g.forget()
	g.retired = slices.DeleteFunc(g.retired, func(r retirement) bool {
		holders := g.holders(r.epoch)
		if len(holders) == 0 {
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
			return false
		}
		s := Stuck{Slot: r.slot, Bytes: r.bytes}
		for _, h := range holders {
			if e := h.epoch.Load(); e != 0 {
				g.slow[h] = e
			}
			s.Readers = append(s.Readers, h.name)
		}
		g.stuck = append(g.stuck, r)
		passed = append(passed, s)
		return true
	})
	g.mu.Unlock()
	if g.cfg.OnStuck != nil {
		for _, s := range passed {
			g.cfg.OnStuck(s)
		}
	}
	return wait
}

// forget drops what is known of readers that have gone on. The caller holds mu.
func (g *Gate) forget() {
	maps.DeleteFunc(g.slow, func(r *Reader, e uint64) bool { return r.epoch.Load() != e })
	g.stuck = slices.DeleteFunc(g.stuck, func(r retirement) bool { return len(g.holders(r.epoch)) == 0 })
}

// holders returns the readers that may hold what was replaced in epoch e. The
// caller holds mu.
func (g *Gate) holders(e uint64) (rs []*Reader) {
	for i := range g.shared {
		if r := &g.shared[i]; r.mayHold(e) {
			rs = append(rs, r)
		}
	}
	for _, r := range g.named {
		if r.mayHold(e) {
			rs = append(rs, r)
		}
	}
	return rs
}

func (r *Reader) mayHold(e uint64) bool {
	x := r.epoch.Load()
	return x != 0 && x < e
}

// StuckSelectors returns how many replaced selectors are held by readers that
// the Gate has stopped waiting for.
func (g *Gate) StuckSelectors() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.forget()
	return len(g.stuck)
}

// poke wakes the one who waits on a one-slot channel; a poke that is already
// there says the same.
func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
