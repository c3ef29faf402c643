// Package lbtest is what the tests of every policy need: a cluster with one
// slot that runs, and inputs to build from.
//
// # Usage
//
//	r := lbtest.Start(t, roundrobin.Config{})
//	r.Set("abc")
//	r.Down("b")
//	got := r.Pick(4, 1) // "acac"
//
// # Concurrency
//
// A Rig belongs to the goroutine of its test, but for Gate and Group.
//
// # Limitations
//
// Only tests may import it.
package lbtest

import (
	"context"
	"net/netip"
	"sync"
	"testing"
	"time"

	"gatehouse.internal/lbcore"
)

// Rig is a cluster with one slot that runs. Endpoints have the names a, b, c
// and so on, in this order.
type Rig struct {
	t      testing.TB
	Gate   *lbcore.Gate
	View   *lbcore.View
	Group  *lbcore.Group
	probes map[lbcore.Addr]*lbcore.ProbeState
}

// Addr returns the address of the endpoint of that name.
func Addr(name byte) lbcore.Addr {
	return lbcore.IPAddr(netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, name}), 80))
}

// Start returns a Rig without endpoints, which runs until the test ends.
func Start(t testing.TB, b lbcore.Builder) *Rig {
	r := &Rig{t: t, Gate: lbcore.NewGate(lbcore.GateConfig{}), probes: make(map[lbcore.Addr]*lbcore.ProbeState)}
	r.View = lbcore.NewView("c", new(lbcore.Hosts), lbcore.ViewConfig{Bind: func(e *lbcore.Endpoint) []*lbcore.ProbeState {
		p := new(lbcore.ProbeState)
		p.Store(lbcore.HealthHealthy)
		r.probes[e.Addr] = p
		return []*lbcore.ProbeState{p}
	}})
	r.Group = lbcore.NewGroup(lbcore.GroupConfig{View: r.View, Gate: r.Gate, Slots: []lbcore.SlotConfig{{Builder: b}}})
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var wg sync.WaitGroup
	wg.Go(func() { r.Group.Run(ctx) })
	t.Cleanup(func() { cancel(); wg.Wait() })
	return r
}

// Set makes the endpoints of these names the membership, with their weights in
// turn (1 if there are none), and waits until it is served.
func (r *Rig) Set(names string, weights ...uint32) {
	r.t.Helper()
	var eps []lbcore.Endpoint
	for i := range len(names) {
		e := lbcore.Endpoint{Addr: Addr(names[i]), Weight: 1}
		if len(weights) > 0 {
			e.Weight = weights[i%len(weights)]
		}
		eps = append(eps, e)
	}
	snap, topology := r.View.Update(lbcore.MustSet(eps...))
	if topology {
		r.Group.Rebuild(snap)
	}
	ctx, cancel := context.WithTimeout(r.t.Context(), time.Minute)
	defer cancel()
	if err := r.Group.WaitGeneration(ctx, snap.Generation); err != nil {
		r.t.Fatal(err)
	}
}

func (r *Rig) health(h lbcore.Health, names string) {
	for i := range len(names) {
		r.probes[Addr(names[i])].Store(h)
	}
}

// Down has the checks of these endpoints fail.
func (r *Rig) Down(names string) { r.health(lbcore.HealthUnhealthy, names) }

// Up has them pass.
func (r *Rig) Up(names string) { r.health(lbcore.HealthHealthy, names) }

// Pick returns the names that n selections of want give first; "-" is none.
func (r *Rig) Pick(n, want int) string {
	var got []byte
	for range n {
		reader := r.Gate.Pin()
		p := r.Group.Slot("").Pick(reader, lbcore.Key{}, want)
		reader.Unpin()
		if m := p.Next(); m != nil {
			got = append(got, Name(m))
		} else {
			got = append(got, '-')
		}
	}
	return string(got)
}

// Name returns the name of a member of a Rig.
func Name(m *lbcore.Member) byte { return m.Addr().AddrPort().Addr().As4()[3] }

// Input returns an Input of as many members as there are weights.
func Input(t testing.TB, weights ...uint32) lbcore.Input {
	t.Helper()
	var eps []lbcore.Endpoint
	for i, w := range weights {
		ip := netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
		eps = append(eps, lbcore.Endpoint{Addr: lbcore.IPAddr(netip.AddrPortFrom(ip, 80)), Weight: w})
	}
	return InputOf(t, eps...)
}

// InputOf returns what is built of eps, which must be of one priority.
func InputOf(t testing.TB, eps ...lbcore.Endpoint) (in lbcore.Input) {
	t.Helper()
	set, dropped, err := lbcore.NewSet(eps)
	if err != nil || len(dropped) > 0 {
		t.Fatal(dropped, err)
	}
	snap, _ := lbcore.NewView("c", new(lbcore.Hosts), lbcore.ViewConfig{}).Update(set)
	sum := uint64(0)
	for _, e := range set.All() {
		sum += uint64(e.Weight)
	}
	for i, e := range set.All() {
		in.Members = append(in.Members, snap.Member(i))
		in.Endpoints = append(in.Endpoints, snap.Member(i).Endpoint())
		in.Shares = append(in.Shares, float64(e.Weight)/float64(sum))
	}
	return in
}

// Build builds in storage full of rubbish.
func Build(t testing.TB, b lbcore.Builder, in lbcore.Input) lbcore.Selector {
	t.Helper()
	u64, u32, err := b.Shape(in)
	if err != nil {
		t.Fatal(err)
	}
	st := &lbcore.Storage{U64: make([]uint64, u64), U32: make([]uint32, u32)}
	for i := range st.U64 {
		st.U64[i] = 0xdead<<48 | uint64(i)
	}
	for i := range st.U32 {
		st.U32[i] = 0xbad<<20 | uint32(i)
	}
	s, err := b.Build(in, st, func() error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	return s
}
