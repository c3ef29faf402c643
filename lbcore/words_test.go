package lbcore

import "testing"

// What stays only because it passes its checks leaves when it fails, and comes
// back as the same member.
func TestStabilize(t *testing.T) {
	states := map[Addr]*ProbeState{}
	v := NewView("web", new(Hosts), ViewConfig{Stabilize: true, Bind: func(e *Endpoint) []*ProbeState {
		if states[e.Addr] == nil {
			states[e.Addr] = new(ProbeState)
		}
		return []*ProbeState{states[e.Addr]}
	}})
	ep := func(path string, weight uint32) Endpoint { return Endpoint{Addr: UnixAddr(path), Weight: weight} }
	a, b := ep("/a", 1), ep("/b", 1)
	first, _ := v.Update(MustSet(a, b))
	ma := first.Member(0)
	states[a.Addr].Store(HealthHealthy)
	states[b.Addr].Store(HealthHealthy)

	given := MustSet(b)
	snap, topology := v.Update(given)
	if topology || snap.Set.Len() != 2 || !snap.Given.Equal(given) || snap.Generation != 1 || !snap.Absent(0) || snap.Absent(1) || !ma.Ready() {
		t.Fatalf("after a was dropped: %+v, topology %t", snap, topology)
	}
	if again, topology := v.Update(given); topology || again.Set.Len() != 2 {
		t.Error("said again, it leaves")
	}
	if snap, topology = v.Update(MustSet(ep("/b", 5))); !topology || snap.Set.Len() != 2 || snap.Member(0) != ma || !snap.Absent(0) {
		t.Fatalf("after b's weight changed: %+v", snap)
	}
	states[a.Addr].Store(HealthDegraded) // still passes
	if snap, topology = v.Review(); topology || snap.Set.Len() != 2 {
		t.Error("a degraded endpoint has left")
	}
	states[a.Addr].Store(HealthUnhealthy)
	if snap, topology = v.Review(); !topology || snap.Set.Len() != 1 || !ma.Withdrawn() {
		t.Fatalf("after a failed: %+v", snap)
	}
	states[a.Addr].Store(HealthHealthy)
	if snap, topology = v.Review(); topology || snap.Set.Len() != 1 {
		t.Error("it came back without discovery")
	}
	if snap, _ = v.Update(MustSet(a, b)); snap.Member(0) != ma || !ma.Ready() || snap.Absent(0) {
		t.Errorf("listed again: %+v", snap)
	}
	// Nothing listed at all is no reason to leave either.
	if snap, _ = v.Update(MustSet()); snap.Set.Len() != 2 || !snap.Absent(0) || !snap.Absent(1) {
		t.Errorf("after all were dropped: %+v", snap)
	}
	// The operator's word ends it.
	if err := v.SetEnabled(a.Addr, false); err != nil {
		t.Fatal(err)
	}
	if snap, _ = v.Review(); snap.Set.Len() != 1 || v.Snapshot() != snap {
		t.Errorf("after a was disabled: %+v", snap)
	}
}

// A verdict that an endpoint is degraded spreads the load like discovery's word.
func TestDegradedByProbe(t *testing.T) {
	var state ProbeState
	hosts := new(Hosts)
	v := NewView("web", hosts, ViewConfig{Bind: func(*Endpoint) []*ProbeState { return []*ProbeState{&state} }})
	e := Endpoint{Addr: UnixAddr("/a"), Weight: 1}
	snap, _ := v.Update(MustSet(e))
	m := snap.Member(0)
	for _, c := range []struct {
		health   Health
		ready    bool
		degraded int64
	}{
		{HealthHealthy, true, 0}, {HealthDegraded, true, 1}, {HealthUnhealthy, false, 0}, {HealthDegraded, true, 1},
	} {
		state.Store(c.health)
		if m.Ready() != c.ready || m.Degraded() != (c.degraded > 0) || v.degraded.Load() != c.degraded || m.Health() != c.health {
			t.Errorf("%s: ready %t, degraded %t (%d)", c.health, m.Ready(), m.Degraded(), v.degraded.Load())
		}
	}
	e.Status = StatusDegraded // twice is once
	v.Update(MustSet(e))
	if v.degraded.Load() != 1 {
		t.Errorf("%d are degraded", v.degraded.Load())
	}
	e.Status = StatusUnknown
	state.Store(HealthHealthy)
	v.Update(MustSet(e))
	if v.degraded.Load() != 0 || m.Degraded() {
		t.Errorf("%d are degraded", v.degraded.Load())
	}
	state.Store(HealthDegraded)
	v.Close()
	if v.degraded.Load() != 0 {
		t.Errorf("%d are degraded in a closed View", v.degraded.Load())
	}
}
