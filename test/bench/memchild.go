package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"gatehouse.internal/lbcore"
)

// Storage from smallBuild on passes the large lane, and from mapBytes on it is
// outside of Go's heap. Both are lbcore's defaults.
const (
	smallBuild = 256 << 10
	mapBytes   = 32 << 10
)

// gateFor returns the configuration of a Gate for a mode.
func gateFor(mode string) lbcore.GateConfig {
	return lbcore.GateConfig{Fresh: mode != "reuse", SmallBuild: smallBuild}
}

// counted is a Builder that keeps high-water marks: of the builds that run, and
// of the storage that its Gate knows of, in bytes. Storage grows for a build
// that is about to begin and at no other time, so a look at that moment misses
// none.
type counted struct {
	lbcore.Keyed
	gate *lbcore.Gate
	*marks
}

type marks struct{ running, builds, storage, held atomic.Int64 }

func (c counted) Build(in lbcore.Input, st *lbcore.Storage, yield func() error) (lbcore.Selector, error) {
	n := c.running.Add(1)
	defer c.running.Add(-1)
	raise(&c.builds, n)
	g := c.gate.Stats()
	raise(&c.storage, g.Storage)
	raise(&c.held, g.Retired+g.Stuck)
	return c.Keyed.Build(in, st, yield)
}

// raise makes n the mark if it is higher.
func raise(mark *atomic.Int64, n int64) {
	for m := mark.Load(); n > m && !mark.CompareAndSwap(m, n); m = mark.Load() {
	}
}

// ringEndpoints is how many endpoints a ring of memory has: few, so that what
// is measured is rings and not memberships.
const ringEndpoints = 100

// fleet is N clusters with a ring each.
type fleet struct {
	cs   []*cluster
	sets []lbcore.Set // memberships, each with another endpoint replaced
	turn int          // of sets, the one that clusters get
	next int          // the cluster that wave begins with
	size int          // of a wave, in clusters
	marks
}

// wavePoints bounds the points of all rings that a wave rebuilds: so that it
// does not last much longer than the time that picks are timed for.
const wavePoints = 1 << 22

// newFleet returns clusters with members, of which nothing is built.
func newFleet(s spec) *fleet {
	f := &fleet{size: max(wavePoints/s.Points, 1)}
	shared := lbcore.NewGate(gateFor(s.Subject))
	n := min(ringEndpoints, s.Points)
	points := s.Points / n * n
	for i := range s.N {
		gate := shared
		if s.Subject == "ungated" {
			gate = lbcore.NewGate(gateFor(s.Subject))
		}
		f.cs = append(f.cs, newCluster("c"+strconv.Itoa(i), gate, counted{ringOf(points), gate, &f.marks}, false))
	}
	for k := range 12 {
		f.sets = append(f.sets, set(n, k%n, false))
	}
	for _, c := range f.cs {
		c.view.Update(f.sets[0])
	}
	return f
}

// update changes every cluster.
func (f *fleet) update() {
	f.turn++
	f.next = 0
	for _, c := range f.cs {
		c.update(f.sets[f.turn%len(f.sets)])
	}
}

// wave changes the next few clusters and returns when they serve that. It
// begins anew after the last one.
func (f *fleet) wave(ctx context.Context) error {
	if f.next == 0 {
		f.turn++
	}
	cs := f.cs[f.next:min(f.next+f.size, len(f.cs))]
	f.next = (f.next + len(cs)) % len(f.cs)
	for _, c := range cs {
		c.update(f.sets[f.turn%len(f.sets)])
	}
	return waitFor(ctx, cs)
}

// wait returns when every cluster serves what update asked for last.
func (f *fleet) wait(ctx context.Context) error { return waitFor(ctx, f.cs) }

func waitFor(ctx context.Context, cs []*cluster) error {
	for _, c := range cs {
		if err := c.wait(ctx, c.view.Snapshot().Generation); err != nil {
			return err
		}
		c.view.Sweep(c.group.Served())
	}
	return nil
}

// sums returns the totals over all clusters, and the storage of the largest.
func (f *fleet) sums() (built, coalesced uint64, live, largest int) {
	for _, c := range f.cs {
		st := c.slot.Stats()
		built += st.Rebuilds
		coalesced += st.Coalesced
		live += st.Bytes
		largest = max(largest, st.Bytes)
	}
	return built, coalesced, live, largest
}

// takeMemory measures one mode of a case.
func takeMemory(ctx context.Context, s spec) (values, error) {
	f := newFleet(s)
	p := newPulse(f.cs)
	vs := make(values)
	return vs, running(ctx, f.cs, func(ctx context.Context) error {
		wait(ctx, 20*time.Millisecond) // until the groups' goroutines have begun
		debug.FreeOSMemory()
		base, _, err := resident()
		if err != nil {
			return err
		}
		f.update()
		if err := f.wait(ctx); err != nil {
			return err
		}
		_, _, _, largest := f.sums()
		vs["ring"] = float64(largest)
		var wg sync.WaitGroup
		defer wg.Wait()
		defer p.stop()
		wg.Go(p.run)

		if err := f.measured(ctx, s, vs, "one ", base, f.update); err != nil {
			return err
		}
		watch := time.Duration(s.WatchMS) * time.Millisecond
		if err := f.pairs(ctx, p, s.Pairs, watch, vs); err != nil {
			return err
		}
		err = f.measured(ctx, s, vs, "burst ", base, func() {
			t := time.NewTicker(10 * time.Millisecond)
			defer t.Stop()
			for i := range 10 {
				if i > 0 {
					<-t.C
				}
				f.update()
			}
		})
		if err != nil {
			return err
		}
		debug.FreeOSMemory()
		p.catchUp(ctx)
		wait(ctx, watch)
		after := p.take(ctx)
		for _, q := range quantiles {
			vs["after"+q.key] = q.of(after)
		}
		return ctx.Err()
	})
}

// pairs times picks while waves are rebuilt, and just after that for as long
// without, several times in turn. It takes the medians of both, and the ratio
// of each pair. What slows the machine down hits single pairs, or both of one.
func (f *fleet) pairs(ctx context.Context, p *pulse, count int, watch time.Duration, vs values) error {
	found := make(map[string][]float64)
	for i := range count {
		p.catchUp(ctx)
		began := time.Now()
		for time.Since(began) < watch {
			if err := f.wave(ctx); err != nil {
				return err
			}
		}
		took := time.Since(began)
		during := slices.Clone(p.take(ctx))
		p.catchUp(ctx)
		wait(ctx, took)
		before := p.take(ctx)
		if err := ctx.Err(); err != nil {
			return err
		}
		for _, q := range quantiles {
			d, b := q.of(during), q.of(before)
			found["during"+q.key] = append(found["during"+q.key], d)
			found["before"+q.key] = append(found["before"+q.key], b)
			vs[ratioKey(i, q.key)] = d / b
		}
	}
	for k, v := range found {
		vs[k] = median(v)
	}
	return nil
}

// measured takes the figures of what change does, under names that begin with
// prefix. What earlier builds have freed is given back to the kernel first, as
// it was before base was read: Go would keep it for a while, and an update that
// gets its memory from there would seem to take none.
func (f *fleet) measured(ctx context.Context, s spec, vs values, prefix string, base int, change func()) error {
	debug.FreeOSMemory()
	if err := forgetPeak(); err != nil {
		return err
	}
	built, coalesced, _, _ := f.sums()
	for _, m := range []*atomic.Int64{&f.builds, &f.storage, &f.held} {
		m.Store(0)
	}
	began := time.Now()
	change()
	if err := f.wait(ctx); err != nil {
		return err
	}
	vs[prefix+"converged_ms"] = time.Since(began).Seconds() * 1e3
	_, peak, err := resident()
	if err != nil {
		return err
	}
	b, c, live, largest := f.sums()
	for _, p := range []string{prefix, ""} { // "": of both updates
		vs[p+"peak"] = max(vs[p+"peak"], float64(peak)/1e6)
		vs[p+"peak_ratio"] = max(vs[p+"peak_ratio"], float64(peak)/float64(live+largest+base))
	}
	vs[prefix+"live"] = float64(int64(len(f.cs)) + f.builds.Load())
	if s.Subject == "reuse" && largest >= mapBytes {
		vs[prefix+"storage"] = float64(f.storage.Load()) / float64(largest)
		vs[prefix+"held"] = float64(f.held.Load()) / float64(largest)
	}
	vs[prefix+"built"] = float64(b - built)
	vs[prefix+"coalesced"] = float64(c - coalesced)
	return nil
}

// wait waits for d.
func wait(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// period is the time between two batches of a pulse.
const period = 200 * time.Microsecond

// pulse picks a batch every period, from a thread of its own as an event loop
// has one, and keeps how long after its intended time each batch had ended. A
// pulse that was held up makes up for the batches that it has missed.
type pulse struct {
	cs      []*cluster
	readers []*lbcore.Reader // by clusters; one for all that share a Gate
	ended   atomic.Bool

	mu     sync.Mutex
	taken  []beat
	phase  []int64 // what take returned last
	missed bool    // there were batches to make up for then
}

// beat is a batch: when it was to begin, and how long after that it had ended,
// in nanoseconds.
type beat struct{ at, took int64 }

func newPulse(cs []*cluster) *pulse {
	// Written to, so that they are part of the base and not of the peak.
	p := &pulse{cs: cs, taken: slices.Repeat([]beat{{1, 1}}, 1<<16)[:0], phase: slices.Repeat([]int64{1}, 1<<16)}
	known := make(map[*lbcore.Gate]*lbcore.Reader)
	for _, c := range cs {
		if known[c.gate] == nil {
			known[c.gate] = c.gate.NewReader("pulse")
		}
		p.readers = append(p.readers, known[c.gate])
	}
	return p
}

func (p *pulse) stop() { p.ended.Store(true) }

func (p *pulse) run() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var c clock
	c.punctual()
	k := lbcore.Key{Set: true}
	for at := c.now(); !p.ended.Load(); {
		at += int64(period)
		c.until(at)
		pickBatch(p.cs, p.readers, &k)
		took := c.now() - at
		p.mu.Lock() // nobody else holds it for long
		p.taken = append(p.taken, beat{at, took})
		p.mu.Unlock()
	}
}

// take returns the sorted latencies of the batches that were to begin since the
// last call, late ones included. They are good until the next one.
func (p *pulse) take(ctx context.Context) []int64 {
	now := clock{}.now()
	t := time.NewTicker(period)
	defer t.Stop()
	p.mu.Lock()
	for len(p.taken) == 0 || p.taken[len(p.taken)-1].at < now {
		p.mu.Unlock()
		<-t.C
		p.mu.Lock()
		if ctx.Err() != nil {
			p.mu.Unlock()
			return nil
		}
	}
	p.missed = p.taken[len(p.taken)-1].took > 10*int64(period)
	p.phase = p.phase[:0]
	rest := p.taken[:0]
	for _, b := range p.taken {
		if b.at < now {
			p.phase = append(p.phase, b.took)
		} else {
			rest = append(rest, b)
		}
	}
	p.taken = rest
	p.mu.Unlock() // before what would hold the pulse up
	slices.Sort(p.phase)
	return p.phase
}

// catchUp returns when the pulse is on time again, and forgets what was before.
func (p *pulse) catchUp(ctx context.Context) {
	for p.take(ctx); p.missed && ctx.Err() == nil; p.take(ctx) {
	}
}

// pickBatch makes a batch of picks of a cluster that is drawn.
func pickBatch(cs []*cluster, readers []*lbcore.Reader, k *lbcore.Key) {
	i := rand.IntN(len(cs))
	r, s := readers[i], cs[i].slot
	r.Pin()
	for range batch {
		k.Hash += 0x9e3779b97f4a7c15
		p := s.Pick(r, *k, 1)
		p.Next()
	}
	r.Unpin()
}

// crowdReaders is how many readers never rest in takeCrowd, on as many cores.
const crowdReaders = 2

// takeCrowd has N clusters rebuild once each through one gate while readers
// take all the processor time that they get, for as long as LimitMS.
func takeCrowd(ctx context.Context, s spec) (values, error) {
	s.Subject = "reuse"
	f := newFleet(s)
	vs := make(values)
	return vs, running(ctx, f.cs, func(ctx context.Context) error {
		f.update()
		if err := f.wait(ctx); err != nil {
			return err
		}
		_, _, _, ring := f.sums()
		if large := ring >= smallBuild; large != s.Large {
			return fmt.Errorf("rings of %d bytes are for the wrong lane", ring)
		}
		vs["ring"] = float64(ring)
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(crowdReaders))
		var wg sync.WaitGroup
		defer wg.Wait()
		var end atomic.Bool
		var longest [crowdReaders]time.Duration
		for i := range longest {
			r := f.cs[0].gate.NewReader("busy " + strconv.Itoa(i))
			readers := slices.Repeat([]*lbcore.Reader{r}, len(f.cs))
			wg.Go(func() {
				k := lbcore.Key{Hash: uint64(i) << 60, Set: true}
				for !end.Load() {
					began := time.Now()
					pickBatch(f.cs, readers, &k)
					longest[i] = max(longest[i], time.Since(began))
				}
			})
		}
		defer end.Store(true)

		built, _, _, _ := f.sums()
		began := time.Now()
		f.update()
		limited, cancel := context.WithTimeout(ctx, time.Duration(s.LimitMS)*time.Millisecond)
		defer cancel()
		if err := f.wait(limited); err != nil && limited.Err() == nil {
			return err
		}
		total := time.Since(began)
		b, _, _, _ := f.sums()
		var queues []time.Duration
		for _, c := range f.cs {
			if st := c.slot.Stats(); st.Generation == c.view.Snapshot().Generation {
				queues = append(queues, st.Queue)
			}
		}
		end.Store(true)
		wg.Wait()
		if len(queues) == 0 {
			return fmt.Errorf("no cluster was rebuilt in %v", total)
		}
		slices.Sort(queues)
		vs["built"] = float64(b - built)
		vs["total_ms"] = total.Seconds() * 1e3
		vs["per_s"] = float64(b-built) / total.Seconds()
		vs["longest_us"] = float64(slices.Max(longest[:])) / 1e3
		vs["queue_ms"] = quantile(queues, 0.99).Seconds() * 1e3
		return nil
	})
}
