package leastweight

import (
	"context"
	"net/netip"
	"sync"
	"testing"
	"time"

	"gatehouse.internal/lbcore"
)

// rig is a cluster with one slot that runs. Endpoints have the names a, b, c
// and so on, in this order.
type rig struct {
	t      testing.TB
	gate   *lbcore.Gate
	view   *lbcore.View
	group  *lbcore.Group
	probes map[lbcore.Addr]*lbcore.ProbeState
}

func addr(name byte) lbcore.Addr {
	return lbcore.IPAddr(netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, name}), 80))
}

func start(t testing.TB, b lbcore.Builder) *rig {
	r := &rig{t: t, gate: lbcore.NewGate(lbcore.GateConfig{}), probes: make(map[lbcore.Addr]*lbcore.ProbeState)}
	r.view = lbcore.NewView("c", new(lbcore.Hosts), lbcore.ViewConfig{Bind: func(e *lbcore.Endpoint) []*lbcore.ProbeState {
		p := new(lbcore.ProbeState)
		p.Store(lbcore.HealthHealthy)
		r.probes[e.Addr] = p
		return []*lbcore.ProbeState{p}
	}})
	r.group = lbcore.NewGroup(lbcore.GroupConfig{View: r.view, Gate: r.gate, Slots: []lbcore.SlotConfig{{Builder: b}}})
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var wg sync.WaitGroup
	wg.Go(func() { r.group.Run(ctx) })
	t.Cleanup(func() { cancel(); wg.Wait() })
	return r
}

// set makes the endpoints of these names the membership, with their weights in
// turn (1 if there are none), and waits until it is served.
func (r *rig) set(names string, weights ...uint32) {
	r.t.Helper()
	var eps []lbcore.Endpoint
	for i := range len(names) {
		e := lbcore.Endpoint{Addr: addr(names[i]), Weight: 1}
		if len(weights) > 0 {
			e.Weight = weights[i%len(weights)]
		}
		eps = append(eps, e)
	}
	snap, topology := r.view.Update(lbcore.MustSet(eps...))
	if topology {
		r.group.Rebuild(snap)
	}
	ctx, cancel := context.WithTimeout(r.t.Context(), time.Minute)
	defer cancel()
	if err := r.group.WaitGeneration(ctx, snap.Generation); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) health(h lbcore.Health, names string) {
	for i := range len(names) {
		r.probes[addr(names[i])].Store(h)
	}
}

func (r *rig) down(names string) { r.health(lbcore.HealthUnhealthy, names) }
func (r *rig) up(names string)   { r.health(lbcore.HealthHealthy, names) }

// pick returns the names that n selections of want give first; "-" is none.
func (r *rig) pick(n, want int) string {
	var got []byte
	for range n {
		reader := r.gate.Pin()
		p := r.group.Slot("").Pick(reader, lbcore.Key{}, want)
		reader.Unpin()
		if m := p.Next(); m != nil {
			got = append(got, name(m))
		} else {
			got = append(got, '-')
		}
	}
	return string(got)
}

func name(m *lbcore.Member) byte { return m.Addr().AddrPort().Addr().As4()[3] }

// input returns an Input of as many members as there are weights.
func input(t testing.TB, weights ...uint32) (in lbcore.Input) {
	var eps []lbcore.Endpoint
	sum := uint64(0)
	for i, w := range weights {
		ip := netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
		eps = append(eps, lbcore.Endpoint{Addr: lbcore.IPAddr(netip.AddrPortFrom(ip, 80)), Weight: w})
		sum += uint64(w)
	}
	snap, _ := lbcore.NewView("c", new(lbcore.Hosts), lbcore.ViewConfig{}).Update(lbcore.MustSet(eps...))
	for i := range weights {
		in.Members = append(in.Members, snap.Member(i))
		in.Endpoints = append(in.Endpoints, snap.Member(i).Endpoint())
		in.Shares = append(in.Shares, float64(weights[i])/float64(sum))
	}
	return in
}

// build builds in storage full of rubbish.
func build(t testing.TB, b lbcore.Builder, in lbcore.Input) lbcore.Selector {
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
