package lbcore_test

import (
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gatehouse.internal/lbcore"
	"gatehouse.internal/lbcore/leastweight"
	"gatehouse.internal/lbcore/ringhash"
	"gatehouse.internal/lbcore/roundrobin"
)

// Readers pick all the time, by readers of their own and by shared ones, while
// updates, flips and rebuilds of two clusters on one gate go on. Every pick
// must belong as a whole to one generation, and find the endpoint that is in
// all of them.
func TestStress(t *testing.T) {
	const updates, always, most = 120, 0, 40
	gate := lbcore.NewGate(lbcore.GateConfig{SmallBuild: 8 << 10, StuckAfter: time.Hour, OnStuck: func(s lbcore.Stuck) {
		t.Errorf("called stuck: %+v", s)
	}})
	var clusters []*cluster
	var histories [2]sync.Map // generation -> addresses
	var torn atomic.Int64
	for range histories {
		c := &cluster{gate: gate, hosts: new(lbcore.Hosts), builders: []lbcore.Builder{
			stamped{ringhash.Config{MinimumSize: 512}, 30, &torn, nil}, // small
			stamped{ringhash.Config{}, 1000, &torn, nil},               // large
			stamped{roundrobin.Config{}, 10, &torn, nil},
			stamped{leastweight.Config{Choices: 3}, 10, &torn, nil},
		}}
		clusters = append(clusters, c.probed().start(t))
	}
	update := func(i int, s lbcore.Set) uint64 {
		listed := make(map[lbcore.Addr]bool)
		for _, e := range s.All() {
			if e.Weight > 0 {
				listed[e.Addr] = true
			}
		}
		// Readers may see it as soon as Rebuild is called.
		snap, topology := clusters[i].view.Update(s)
		if topology {
			histories[i].Store(snap.Generation, listed)
			clusters[i].group.Rebuild(snap)
		}
		return snap.Generation
	}
	for i := range clusters {
		clusters[i].wait(update(i, set(always)))
	}

	check := func(i int, p *lbcore.Picks) {
		found, ok := histories[i].Load(p.Generation())
		if !ok {
			t.Errorf("generation %d is served but was never asked for", p.Generation())
			return
		}
		if p.Len() == 0 {
			t.Errorf("generation %d: none is picked though endpoint %d is ready", p.Generation(), always)
		}
		seen := make(map[*lbcore.Member]bool)
		for m := p.Next(); m != nil; m = p.Next() {
			if !found.(map[lbcore.Addr]bool)[m.Addr()] || seen[m] {
				t.Errorf("generation %d: %v is picked twice or not listed", p.Generation(), m.Addr())
			}
			seen[m] = true
			m.StartDial()
			m.DialAbandoned()
		}
	}
	stop := make(chan struct{})
	var readers sync.WaitGroup
	for loop := range 4 {
		readers.Go(func() {
			var own *lbcore.Reader
			if loop%2 == 0 {
				own = gate.NewReader("loop")
				defer own.Close()
			}
			var picks [8]lbcore.Picks
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				i := n % len(clusters)
				r := own
				if own != nil {
					own.Pin()
				} else {
					r = gate.Pin()
				}
				last := uint64(0)      // that the first slot answered from
				for k := range picks { // one pin for several picks
					slot := clusters[i].slot(k % 4)
					said := slot.Stats().Generation // may lag, never lead
					picks[k] = slot.Pick(r, hashKey(rand.Uint64()), 1+k%3)
					g := picks[k].Generation()
					if g < said || k%4 == 0 && g < last {
						t.Errorf("generation %d answers after %d, the slot says %d", g, last, said)
					}
					if k%4 == 0 {
						last = g
					}
				}
				r.Unpin()
				for k := range picks {
					check(i, &picks[k])
				}
				runtime.Gosched() // more changes of the turn than the scheduler makes
			}
		})
	}
	var owners sync.WaitGroup
	for i, c := range clusters {
		owners.Go(func() {
			var last uint64
			for range updates {
				eps := []lbcore.Endpoint{ep(always)}
				for _, k := range rand.Perm(most)[:rand.IntN(most)] {
					e := ep(1 + k)
					e.Weight = rand.Uint32N(3)
					e.Hostname = string(rune('a' + rand.IntN(2)))
					eps = append(eps, e)
				}
				last = update(i, lbcore.MustSet(eps...))
				for range 10 {
					k := 1 + rand.IntN(most)
					if p := c.probes[addr(k)]; p != nil {
						p.Store(lbcore.Health(rand.IntN(3)))
					}
					if rand.IntN(4) == 0 {
						c.view.SetEnabled(addr(k), rand.IntN(2) == 0)
					}
				}
				c.group.UpdateLoads()
				c.view.Sweep(c.group.Served())
				if rand.IntN(3) == 0 {
					c.wait(last)
				}
			}
			c.wait(last)
		})
	}
	owners.Wait()
	close(stop)
	readers.Wait()
	if n := torn.Load(); n > 0 {
		t.Errorf("%d steps of a walk read storage that serves another selector", n)
	}
	for _, c := range clusters {
		c.view.Sweep(c.group.Served())
		for _, m := range c.view.Members() {
			if m.Active() != 0 {
				t.Errorf("%v: %d active in the end", m.Addr(), m.Active())
			}
		}
		for i, st := range c.stats() {
			if st.Reused == 0 && i < 3 {
				t.Errorf("slot %d: none of %d rebuilds was in storage of an earlier one", i, st.Rebuilds)
			}
			if st.Rebuilds+st.Coalesced != c.view.Snapshot().Generation || st.Failed != 0 {
				t.Errorf("slot %d: %+v at generation %d", i, st, c.view.Snapshot().Generation)
			}
		}
		n := len(c.view.Members())
		if c.view.Close(); c.hosts.Len() != 0 || n != c.view.Snapshot().Set.Len() {
			t.Errorf("%d members, %d hosts after Close", n, c.hosts.Len())
		}
	}
}
