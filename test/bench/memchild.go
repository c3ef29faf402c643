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

// gateFor returns the configuration of a Gate for a mode.
func gateFor(mode string) lbcore.GateConfig {
	return lbcore.GateConfig{Fresh: mode != "reuse"}
}

// counted is a Builder that counts the builds that run.
type counted struct {
	lbcore.Builder
	running, most *atomic.Int64
}

func (c counted) Build(in lbcore.Input, st *lbcore.Storage, yield func() error) (lbcore.Selector, error) {
	n := c.running.Add(1)
	defer c.running.Add(-1)
	for m := c.most.Load(); n > m && !c.most.CompareAndSwap(m, n); m = c.most.Load() {
	}
	return c.Builder.Build(in, st, yield)
}

// ringEndpoints is how many endpoints a ring of memory has: few, so that what
// is measured is rings and not memberships.
const ringEndpoints = 100

// fleet is N clusters with a ring each.
type fleet struct {
	cs            []*cluster
	sets          []lbcore.Set // memberships, each with another endpoint replaced
	turn          int
	running, most atomic.Int64
}

// newFleet returns clusters with members, of which nothing is built.
func newFleet(s spec) *fleet {
	f := new(fleet)
	shared := lbcore.NewGate(gateFor(s.Subject))
	n := min(ringEndpoints, s.Points)
	points := s.Points / n * n
	for i := range s.N {
		gate := shared
		if s.Subject == "ungated" {
			gate = lbcore.NewGate(gateFor(s.Subject))
		}
		f.cs = append(f.cs, newCluster("c"+strconv.Itoa(i), gate, counted{ringOf(points), &f.running, &f.most}, false))
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
	s := f.sets[f.turn%len(f.sets)]
	for _, c := range f.cs {
		c.update(s)
	}
}

// wait returns when every cluster serves what update asked for last.
func (f *fleet) wait(ctx context.Context) error {
	for _, c := range f.cs {
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
		debug.FreeOSMemory()
		var wg sync.WaitGroup
		defer wg.Wait()
		defer p.stop()
		wg.Go(p.run)

		watch := time.Duration(s.WatchMS) * time.Millisecond
		wait(ctx, watch)
		spread(vs, "before", p.take(ctx))
		// The quantiles of a phase that is as long as it takes: the first
		// update counts for memory, and more follow until there are batches
		// enough to tell a p99.
		if err := f.measured(ctx, vs, "one ", base, f.update); err != nil {
			return err
		}
		during := slices.Clone(p.take(ctx))
		for len(during) < s.During && ctx.Err() == nil {
			f.update()
			if err := f.wait(ctx); err != nil {
				return err
			}
			during = append(during, p.take(ctx)...)
		}
		slices.Sort(during)
		spread(vs, "during", during)
		for _, q := range quantiles {
			vs["during ratio"+q.key] = vs["during"+q.key] / vs["before"+q.key]
		}
		debug.FreeOSMemory() // of what the updates since have left behind
		err = f.measured(ctx, vs, "burst ", base, func() {
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
		spread(vs, "after", p.take(ctx))
		return ctx.Err()
	})
}

// measured takes the figures of what change does, under names that begin with
// prefix.
func (f *fleet) measured(ctx context.Context, vs values, prefix string, base int, change func()) error {
	if err := forgetPeak(); err != nil {
		return err
	}
	built, coalesced, _, _ := f.sums()
	f.most.Store(0)
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
	vs[prefix+"peak"] = float64(peak) / 1e6
	vs[prefix+"peak_ratio"] = float64(peak) / float64(live+largest+base)
	vs[prefix+"live"] = float64(int64(len(f.cs)) + f.most.Load())
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
	defer p.mu.Unlock()
	for len(p.taken) == 0 || p.taken[len(p.taken)-1].at < now {
		p.mu.Unlock()
		<-t.C
		p.mu.Lock()
		if ctx.Err() != nil {
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
