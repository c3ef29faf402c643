package lbcore_test

import (
	"fmt"
	"sync"
	"testing"

	"gatehouse.internal/lbcore"
)

func TestHostStateIsSharedByViews(t *testing.T) {
	hosts := new(lbcore.Hosts)
	v, w := lbcore.NewView("v", hosts, lbcore.ViewConfig{}), lbcore.NewView("w", hosts, lbcore.ViewConfig{})
	m, o := listing(v, same), listing(w, same)
	if m == o || hosts.Len() != 2 {
		t.Fatalf("members shared %v, %d hosts", m == o, hosts.Len())
	}
	m.StartDial()
	o.StartDial()
	if open, dialing := m.Host(); open != 0 || dialing != 2 || m.Active() != 1 || o.Active() != 1 {
		t.Errorf("open %d, dialing %d, active %d and %d", open, dialing, m.Active(), o.Active())
	}
	m.Connected()
	o.DialAbandoned()
	if open, dialing := o.Host(); open != 1 || dialing != 0 || o.Active() != 0 {
		t.Errorf("open %d, dialing %d, active %d", open, dialing, o.Active())
	}
	if o, f, _, _ := o.Counters(); o != 0 || f != 0 {
		t.Errorf("an abandoned dial counts: %d, %d", o, f)
	}
	// Enablement is the view's own; the host outlives the first of its views.
	v.SetEnabled(addr(1), false)
	if !o.Ready() || m.Ready() {
		t.Error("enablement is shared between views")
	}
	m.Closed(0, 0)
	v.Close()
	if hosts.Len() != 2 {
		t.Errorf("%d hosts after one view ended", hosts.Len())
	}
	w.Close()
	if hosts.Len() != 0 {
		t.Errorf("%d hosts in the end", hosts.Len())
	}
}

// An address is followed for each of its views, in whatever order they and their
// connections end.
func TestHostOfThreeViews(t *testing.T) {
	for _, order := range [][]int{{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}} {
		hosts := new(lbcore.Hosts)
		var views []*lbcore.View
		var members []*lbcore.Member
		for i := range order {
			v := lbcore.NewView(fmt.Sprint(i), hosts, lbcore.ViewConfig{})
			m := listing(v, same)
			m.StartDial()
			m.Connected()
			views, members = append(views, v), append(members, m)
		}
		for k, i := range order {
			views[i].Close()
			if open, _ := members[0].Host(); open != int64(3-k) {
				t.Errorf("%v: %d connections after %d views ended, want %d", order, open, k+1, 3-k)
			}
			members[i].Closed(0, 0)
			if open, _ := members[0].Host(); open != int64(2-k) {
				t.Errorf("%v: %d connections after %d ended, want %d", order, open, k+1, 2-k)
			}
		}
		if n := hosts.Len(); n != 0 {
			t.Errorf("%v: %d hosts are left", order, n)
		}
	}
}

// What is open when a View ends counts for its address until it is closed.
func TestHostAfterItsViews(t *testing.T) {
	hosts := new(lbcore.Hosts)
	v := lbcore.NewView("v", hosts, lbcore.ViewConfig{})
	m := listing(v, same)
	for range 3 {
		m.StartDial()
	}
	m.Connected()
	m.Connected()
	v.Close()
	w := lbcore.NewView("w", hosts, lbcore.ViewConfig{})
	o := listing(w, same)
	if open, dialing := o.Host(); open != 2 || dialing != 1 {
		t.Errorf("open %d, dialing %d", open, dialing)
	}
	m.DialAbandoned()
	m.Closed(0, 0)
	w.Close()
	if open, dialing := o.Host(); open != 1 || dialing != 0 || hosts.Len() != 1 {
		t.Errorf("open %d, dialing %d, %d hosts", open, dialing, hosts.Len())
	}
	m.StartDial() // by a selector that is still there
	m.Closed(0, 0)
	m.DialFailed()
	if open, dialing := m.Host(); open != 0 || dialing != 0 || hosts.Len() != 0 {
		t.Errorf("open %d, dialing %d, %d hosts", open, dialing, hosts.Len())
	}
}

// Verdicts of several checks that change at once, while checks are bound anew,
// end in what the last of each says; members that are forgotten, and checks that
// are not theirs any more, let go of each other.
func TestVerdictsAtOnce(t *testing.T) {
	var states [3]lbcore.ProbeState
	pair := 0
	bind := func(*lbcore.Endpoint) []*lbcore.ProbeState {
		return []*lbcore.ProbeState{&states[pair], &states[pair+1], &states[pair]}
	}
	v := lbcore.NewView("v", new(lbcore.Hosts), lbcore.ViewConfig{Bind: bind})
	w := lbcore.NewView("w", new(lbcore.Hosts), lbcore.ViewConfig{Bind: bind})
	m, o := listing(v, same), listing(w, same)
	for round := range 200 {
		var wg sync.WaitGroup
		for i := range states {
			wg.Go(func() {
				for k := range 5 {
					states[i].Store(lbcore.Health(1 + (round+i+k)%2))
				}
			})
		}
		pair = round % 2
		listing(v, func(e *lbcore.Endpoint) { e.Hostname = fmt.Sprint(round) })
		wg.Wait()
		for _, m := range []struct {
			*lbcore.Member
			pair int
		}{{m, pair}, {o, 0}} {
			want := states[m.pair].Load() == lbcore.HealthHealthy && states[m.pair+1].Load() == lbcore.HealthHealthy
			if m.Ready() != want {
				t.Fatalf("round %d: ready is %v", round, m.Ready())
			}
		}
	}
	// m has those from 1 on; o and the other endpoint of each View those from 0 on.
	for i, want := range []int{3, 4, 1} {
		if got := states[i].Watchers(); got != want {
			t.Errorf("state %d has %d watchers", i, got)
		}
	}
	v.Close()
	w.Close()
	for i := range states {
		if states[i].Watchers() > 0 {
			t.Errorf("state %d has watchers in the end", i)
		}
	}
}
