package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"

	"gatehouse.internal/lbcore"
	"gatehouse.internal/lbcore/adaptive"
	"gatehouse.internal/lbcore/leastweight"
	"gatehouse.internal/lbcore/maglev"
	"gatehouse.internal/lbcore/random"
	"gatehouse.internal/lbcore/ringhash"
	"gatehouse.internal/lbcore/roundrobin"
)

// policy is one of lb. A hashed one looks at the key.
type policy struct {
	name   string
	hashed bool
	build  func(n int) lbcore.Builder
}

var policies = []policy{
	{"round_robin", false, func(int) lbcore.Builder { return roundrobin.Config{} }},
	{"random", false, func(int) lbcore.Builder { return random.Config{} }},
	{"least_weight", false, func(int) lbcore.Builder { return leastweight.Config{} }},
	{"adaptive", false, func(int) lbcore.Builder { return adaptive.Config{} }},
	{"ring_hash", true, func(int) lbcore.Builder { return ringhash.Config{} }},
	{"ring_hash x100", true, func(n int) lbcore.Builder { return ringOf(100 * n) }},
	{"ketama", true, func(int) lbcore.Builder { return ringhash.Config{Function: ringhash.Ketama} }},
	{"maglev", true, func(int) lbcore.Builder { return maglev.Config{} }},
}

// ringOf returns the policy of a ring with so many points, if that many
// endpoints of equal weight divide them.
func ringOf(points int) ringhash.Config { return ringhash.Config{MinimumSize: uint64(points)} }

// points returns how many entries a selector of n endpoints of equal weight
// has, 0 where it has none.
func points(policy string, n int) int {
	switch policy {
	case "ring_hash":
		return (ringhash.DefaultMinimumSize + n - 1) / n * n
	case "ring_hash x100":
		return 100 * n
	case "ketama":
		return 160 * n
	case "maglev":
		return maglev.DefaultTableSize
	}
	return 0
}

func addr(i int) lbcore.Addr {
	ip := netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
	return lbcore.IPAddr(netip.AddrPortFrom(ip, 80))
}

// set returns n endpoints without the one at skip, and one more in its place;
// a negative skip leaves none out.
func set(n, skip int, mixed bool) lbcore.Set {
	eps := make([]lbcore.Endpoint, n)
	for i := range eps {
		eps[i] = lbcore.Endpoint{Addr: addr(i), Weight: 1}
		if mixed {
			eps[i].Weight = uint32(1 + i%4)
		}
		if i == skip {
			eps[i].Addr = addr(n)
		}
	}
	return lbcore.MustSet(eps...)
}

// cluster is a View with a Group of one slot.
type cluster struct {
	view   *lbcore.View
	group  *lbcore.Group
	slot   *lbcore.Slot
	gate   *lbcore.Gate
	probes map[lbcore.Addr]*lbcore.ProbeState
	failed chan error // the first build that failed
}

// newCluster returns one without endpoints. probed says whether its endpoints
// have a probe that can be turned.
func newCluster(name string, gate *lbcore.Gate, b lbcore.Builder, probed bool) *cluster {
	c := &cluster{gate: gate, probes: make(map[lbcore.Addr]*lbcore.ProbeState), failed: make(chan error, 1)}
	var cfg lbcore.ViewConfig
	if probed {
		cfg.Bind = func(e *lbcore.Endpoint) []*lbcore.ProbeState {
			p := c.probes[e.Addr]
			if p == nil {
				p = new(lbcore.ProbeState)
				p.Store(lbcore.HealthHealthy)
				c.probes[e.Addr] = p
			}
			return []*lbcore.ProbeState{p}
		}
	}
	c.view = lbcore.NewView(name, new(lbcore.Hosts), cfg)
	c.group = lbcore.NewGroup(lbcore.GroupConfig{
		View: c.view, Gate: gate, Slots: []lbcore.SlotConfig{{Name: "default", Builder: b}},
		OnError: func(_ string, _ uint64, err error) {
			select {
			case c.failed <- fmt.Errorf("build of %s: %w", name, err):
			default:
			}
		},
	})
	c.slot = c.group.Slots()[0]
	return c
}

// update asks for a rebuild with s and returns the generation to wait for.
func (c *cluster) update(s lbcore.Set) uint64 {
	snap, topology := c.view.Update(s)
	if topology {
		c.group.Rebuild(snap)
	}
	return snap.Generation
}

// wait returns when the generation is served, or with why its build failed.
func (c *cluster) wait(ctx context.Context, generation uint64) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	defer wg.Wait()
	done := make(chan struct{})
	defer close(done)
	wg.Go(func() {
		select {
		case err := <-c.failed:
			cancel(err)
		case <-done:
		}
	})
	if c.group.WaitGeneration(ctx, generation) != nil {
		return context.Cause(ctx)
	}
	return nil
}

// running runs f while the groups of cs build.
func running(ctx context.Context, cs []*cluster, f func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	for _, c := range cs {
		wg.Go(func() { c.group.Run(ctx) }) // returns ctx's error
	}
	return f(ctx)
}

// down makes all of n endpoints healthy but for a part, in percent, though
// never the last one. Which ones is random, but the same every time.
func (c *cluster) down(n int, percent float64) {
	sick := min(int(float64(n)*percent/100+0.5), n-1)
	for k, i := range rand.New(rand.NewPCG(1, 2)).Perm(n) {
		h := lbcore.HealthHealthy
		if k < sick {
			h = lbcore.HealthUnhealthy
		}
		c.probes[addr(i)].Store(h)
	}
	c.group.UpdateLoads()
}
