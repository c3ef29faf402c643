package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"

	"gatehouse.internal/lbcore"
	"gatehouse.internal/lbcore/adaptive"
)

// variant is one way to pick.
type variant struct {
	down    float64 // percent of the endpoints
	each    bool    // a pin for each pick, not for 32
	text    bool    // the key is the text of an address, to be hashed
	observe bool    // what was picked is observed, for adaptive
	cores   int
}

// key names the variant's figure.
func (v variant) key() string { return fmt.Sprintf("%+v", v) }

// variants are those that are measured of a policy, one thing varied at a time.
// Those that all have the same name but for cores stand together.
func variants(policy string, hashed, full bool) (vs []variant) {
	add := func(v variant, cores ...int) {
		for _, v.cores = range cores {
			vs = append(vs, v)
		}
	}
	add(variant{}, 1, 2)
	if hashed {
		add(variant{text: true}, 1, 2)
	}
	if policy == "adaptive" {
		add(variant{observe: true}, 1, 2)
	}
	add(variant{each: true}, 1, 2)
	for _, down := range []float64{50, 99.9} {
		add(variant{down: down}, 1)
		if full {
			add(variant{down: down}, 2)
			add(variant{down: down, each: true}, 1)
		}
	}
	return vs
}

// batch is how many picks a pin covers.
const batch = 32

// takeLB measures the picks of one policy and set in all variants, and builds.
func takeLB(ctx context.Context, s spec) (values, error) {
	i := slices.IndexFunc(policies, func(p policy) bool { return p.name == s.Subject })
	if i < 0 {
		return nil, fmt.Errorf("no policy %q", s.Subject)
	}
	p := policies[i]
	c := newCluster("bench", lbcore.NewGate(lbcore.GateConfig{}), p.build(s.N), true)
	vs := make(values)
	err := running(ctx, []*cluster{c}, func(ctx context.Context) error {
		var builds []float64
		for k := range 4 {
			if err := c.wait(ctx, c.update(set(s.N, k-1, s.Mixed))); err != nil {
				return err
			}
			if st := c.slot.Stats(); k > 0 { // the first one finds cold caches
				builds = append(builds, st.Build.Seconds()*1e3)
				vs["bytes"] = float64(st.Bytes)
			}
		}
		vs["build_ms"] = median(builds)
		for i, m := range c.view.Members() { // as after a while: weights that differ
			for range 200 {
				adaptive.Config{}.Observe(m, uint64(500+i%97*200))
			}
		}
		if err := c.wait(ctx, c.update(set(s.N, -1, s.Mixed))); err != nil {
			return err
		}
		c.view.Sweep(c.group.Served())
		return picks(c, s, p.hashed, vs)
	})
	return vs, err
}

func picks(c *cluster, s spec, hashed bool, vs values) error {
	vs["allocs"] = 0
	for _, v := range variants(s.Subject, hashed, s.Full) {
		if v.cores > runtime.NumCPU() {
			continue
		}
		c.down(s.N, v.down)
		l := &looper{c: c, v: v, release: s.Subject == "least_weight"}
		ns, allocs := timed(v.cores, time.Duration(s.EachMS)*time.Millisecond, l.loop)
		if l.none.Load() > 0 {
			return fmt.Errorf("%s: %d picks found nobody", v.key(), l.none.Load())
		}
		vs[v.key()] = ns
		vs["allocs"] = max(vs["allocs"], allocs)
	}
	return nil
}

// timed runs work on so many cores at once for about d and returns the
// nanoseconds a pick, of all cores together, and its allocations. work is
// called for each core and returns what does a number of batches. The figure is
// the median of short slices, of which those that were preempted don't count.
func timed(cores int, d time.Duration, work func(core int) func(batches int)) (ns, allocs float64) {
	const count = 9
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(cores))
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	runtime.GC()
	works := make([]func(int), cores)
	for i := range works {
		works[i] = work(i)
	}
	slice := func(batches int) time.Duration {
		var wg sync.WaitGroup
		var there atomic.Int64
		began, ended := make([]time.Time, cores), make([]time.Time, cores)
		for i, w := range works {
			wg.Go(func() {
				// The cores begin together: waking one may take longer than its work.
				for there.Add(1); there.Load() < int64(cores); {
				}
				began[i] = time.Now()
				w(batches)
				ended[i] = time.Now()
			})
		}
		wg.Wait()
		return slices.MaxFunc(ended, time.Time.Compare).Sub(slices.MinFunc(began, time.Time.Compare))
	}
	batches := 8
	for took := slice(batches); took < d/count && batches < 1<<26; took = slice(batches) {
		// At most 16 times as many, as a preempted try says little.
		grow := float64(d/count) / float64(max(took, 1)) * 1.1
		batches = int(float64(batches)*min(max(grow, 1.2), 16)) + 1
	}
	var took []float64
	for range count {
		took = append(took, float64(slice(batches).Nanoseconds()))
	}
	return median(took) / float64(batches*batch*cores), allocations(works, batches)
}

// allocations returns how many a pick of works makes, in hundredths, rounded
// down: less than one in a hundred picks is the runtime's own. Like testing.AllocsPerRun it
// counts on one core, where nothing else runs.
func allocations(works []func(batches int), batches int) float64 {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	batches = max(batches, 100)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for _, w := range works {
		w(batches)
	}
	runtime.ReadMemStats(&after)
	picks := float64(batches * batch * len(works))
	return math.Floor(float64(after.Mallocs-before.Mallocs)/picks*100) / 100
}

// anyAddr is a source address before write.
const anyAddr = "100.100.100.100"

// write makes buf, which holds anyAddr, the text of an address that 24 bits of
// h give, in a few nanoseconds.
func write(buf []byte, h uint64) {
	for _, i := range [...]int{1, 2, 5, 6, 9, 10, 13, 14} {
		h <<= 3
		buf[i] = '0' + byte(h>>61)
	}
}

// looper picks in one variant.
type looper struct {
	c       *cluster
	v       variant
	release bool
	none    atomic.Int64
}

func (l *looper) loop(core int) func(int) {
	s, v, release := l.c.slot, l.v, l.release
	r := l.c.gate.NewReader("bench " + strconv.Itoa(core))
	text := []byte(anyAddr)
	k := lbcore.Key{Hash: uint64(core) << 60, Set: true}
	h := k.Hash
	return func(batches int) {
		none := 0
		for range batches {
			if !v.each {
				r.Pin()
			}
			for range batch {
				h += 0x9e3779b97f4a7c15
				if v.text {
					write(text, h)
					k = lbcore.BytesKey(text)
				} else {
					k.Hash, k.CRC = h, uint32(h>>32)
				}
				if v.each {
					r.Pin()
				}
				p := s.Pick(r, k, 1)
				m := p.Next()
				if v.each {
					r.Unpin()
				}
				switch {
				case m == nil:
					none++
				case release:
					m.StartDial()
					m.DialAbandoned()
				case v.observe:
					adaptive.Config{}.Observe(m, 500+k.Hash>>52)
				}
			}
			if !v.each {
				r.Unpin()
			}
		}
		l.none.Add(int64(none))
	}
}

// takeBuild measures builds of a ring of N endpoints and some points, and
// the obvious way to do the same if Full is set.
func takeBuild(ctx context.Context, s spec) (values, error) {
	if s.Points%s.N != 0 {
		return nil, errors.New("points must divide evenly")
	}
	vs := make(values)
	c := newCluster("bench", lbcore.NewGate(lbcore.GateConfig{}), ringOf(s.Points), false)
	return vs, running(ctx, []*cluster{c}, func(ctx context.Context) error {
		var ours, obvious []float64
		for k := range 3 {
			if err := c.wait(ctx, c.update(set(s.N, k-1, false))); err != nil {
				return err
			}
			st := c.slot.Stats()
			ours = append(ours, st.Build.Seconds()*1e3)
			vs["bytes"] = float64(st.Bytes)
			if s.Full {
				runtime.GC()
				began := time.Now()
				n := len(obviousRing(c.view.Snapshot().Set, s.Points/s.N))
				obvious = append(obvious, time.Since(began).Seconds()*1e3)
				if n != s.Points {
					return fmt.Errorf("the obvious ring has %d points", n)
				}
			}
		}
		vs["build_ms"] = median(ours)
		if s.Full {
			vs["obvious_ms"] = median(obvious)
		}
		return nil
	})
}

type obviousPoint struct {
	hash   uint64
	member uint32
}

// obviousRing builds a ring as one would at first.
func obviousRing(s lbcore.Set, each int) []obviousPoint {
	ring := make([]obviousPoint, 0, s.Len()*each)
	for i, e := range s.All() {
		key := e.Key() + "_"
		for p := range each {
			ring = append(ring, obviousPoint{xxhash.Sum64String(key + strconv.Itoa(p)), uint32(i)})
		}
	}
	slices.SortFunc(ring, func(a, b obviousPoint) int {
		return cmp.Or(cmp.Compare(a.hash, b.hash), cmp.Compare(a.member, b.member))
	})
	return ring
}
