package lbcore_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"gatehouse.internal/lbcore"
)

// listing is a View with the one endpoint 1, or as changed by f.
func listing(v *lbcore.View, f func(*lbcore.Endpoint)) *lbcore.Member {
	snap, _ := v.Update(lbcore.MustSet(with(ep(1), f), ep(9)))
	return snap.Member(0)
}

func same(*lbcore.Endpoint) {}

func TestManualEnablementSurvivesUpdates(t *testing.T) {
	v := lbcore.NewView("c", new(lbcore.Hosts), lbcore.ViewConfig{})
	m := listing(v, same)
	if err := v.SetEnabled(addr(1), false); err != nil || !m.Disabled() || m.Ready() {
		t.Fatalf("disabled: %v, %v, ready %v", err, m.Disabled(), m.Ready())
	}
	for name, f := range map[string]func(*lbcore.Endpoint){
		"weight":   func(e *lbcore.Endpoint) { e.Weight = 7 },
		"priority": func(e *lbcore.Endpoint) { e.Priority = 3 },
		"status":   func(e *lbcore.Endpoint) { e.Status = lbcore.StatusHealthy },
		"hostname": func(e *lbcore.Endpoint) { e.Hostname = "x" },
		"nothing":  same,
	} {
		if got := listing(v, f); got != m || !m.Disabled() {
			t.Errorf("after an update of %s: another member %v, disabled %v", name, got != m, m.Disabled())
		}
	}
	// Over a time away too, whether or not it is forgotten meanwhile.
	v.Update(set(9))
	if m = listing(v, same); !m.Disabled() {
		t.Error("enabled by leaving and coming back")
	}
	v.Update(set(9))
	v.Sweep(v.Snapshot().Generation)
	if back := listing(v, same); back == m || !back.Disabled() {
		t.Errorf("forgotten and back: the same member %v, disabled %v", back == m, back.Disabled())
	} else {
		m = back
	}
	if err := v.SetEnabled(addr(1), true); err != nil || m.Disabled() || !m.Ready() {
		t.Errorf("enabled again: %v, %v, ready %v", err, m.Disabled(), m.Ready())
	}
	err := v.SetEnabled(addr(5), false)
	if err == nil || !strings.Contains(err.Error(), addr(5).String()) || !strings.Contains(err.Error(), `"c"`) {
		t.Errorf("an unknown address: %v", err)
	}
	if snap, _ := v.Update(set(1, 5, 9)); snap.Member(1).Disabled() {
		t.Error("what was said of an address that wasn't there is in force")
	}
}

func TestEnablementOverrideWins(t *testing.T) {
	disable := func(e *lbcore.Endpoint) { e.Enabled = lbcore.OverrideDisable }
	enable := func(e *lbcore.Endpoint) { e.Enabled = lbcore.OverrideEnable }
	v := lbcore.NewView("c", new(lbcore.Hosts), lbcore.ViewConfig{})
	m := listing(v, same)
	check := func(what string, disabled bool) {
		t.Helper()
		if m.Disabled() != disabled || m.Ready() == disabled {
			t.Errorf("%s: disabled is %v", what, m.Disabled())
		}
	}
	listing(v, disable)
	check("an override", true)
	listing(v, same)
	check("its end", false)

	v.SetEnabled(addr(1), false)
	listing(v, enable)
	check("an override against the operator", false)
	listing(v, same)
	check("its end, which does not bring back what it has overruled", false)

	listing(v, disable)
	v.SetEnabled(addr(1), true)
	check("the operator against an override", false)
	listing(v, func(e *lbcore.Endpoint) { disable(e); e.Hostname = "x" })
	check("the override said again", true)

	// The same answer said again is the same word of discovery.
	v.SetEnabled(addr(1), true)
	before := v.Snapshot()
	if snap, topology := v.Update(before.Set); topology || snap != before {
		t.Error("the same set made another snapshot")
	}
	check("the override said again in the same words", true)

	listing(v, same)
	check("its end", false)
}

func TestReadiness(t *testing.T) {
	for _, c := range []struct {
		name    string
		ready   bool
		initial bool
		probes  []lbcore.Health
		f       func(*lbcore.Endpoint)
	}{
		{name: "plain", ready: true},
		{name: "healthy status", ready: true, f: func(e *lbcore.Endpoint) { e.Status = lbcore.StatusHealthy }},
		{name: "degraded status", ready: true, f: func(e *lbcore.Endpoint) { e.Status = lbcore.StatusDegraded }},
		{name: "unhealthy status", f: func(e *lbcore.Endpoint) { e.Status = lbcore.StatusUnhealthy }},
		{name: "draining status", f: func(e *lbcore.Endpoint) { e.Status = lbcore.StatusDraining }},
		{name: "timeout status", f: func(e *lbcore.Endpoint) { e.Status = lbcore.StatusTimeout }},
		{name: "a status of the future", f: func(e *lbcore.Endpoint) { e.Status = 200 }},
		{name: "weight 0", f: func(e *lbcore.Endpoint) { e.Weight = 0 }},
		{name: "disabled", f: func(e *lbcore.Endpoint) { e.Enabled = lbcore.OverrideDisable }},
		{name: "enabled", ready: true, f: func(e *lbcore.Endpoint) { e.Enabled = lbcore.OverrideEnable }},
		{name: "an override of the future", ready: true, f: func(e *lbcore.Endpoint) { e.Enabled = 77 }},
		{name: "not probed", probes: []lbcore.Health{lbcore.HealthUnknown}},
		{name: "not probed, initially healthy", ready: true, initial: true, probes: []lbcore.Health{lbcore.HealthUnknown}},
		{name: "healthy", ready: true, probes: []lbcore.Health{lbcore.HealthHealthy}},
		{name: "unhealthy", probes: []lbcore.Health{lbcore.HealthUnhealthy}},
		{name: "unhealthy, initially healthy", initial: true, probes: []lbcore.Health{lbcore.HealthUnhealthy}},
		{name: "a verdict of the future", initial: true, probes: []lbcore.Health{9}},
		{name: "one of two", probes: []lbcore.Health{lbcore.HealthHealthy, lbcore.HealthUnhealthy}},
		{name: "one of two unknown", probes: []lbcore.Health{lbcore.HealthHealthy, lbcore.HealthUnknown}},
		{name: "both", ready: true, probes: []lbcore.Health{lbcore.HealthHealthy, lbcore.HealthHealthy}},
		{name: "healthy but draining", probes: []lbcore.Health{lbcore.HealthHealthy},
			f: func(e *lbcore.Endpoint) { e.Status = lbcore.StatusDraining }},
	} {
		v := lbcore.NewView("c", new(lbcore.Hosts), lbcore.ViewConfig{
			InitialHealthy: c.initial,
			Bind: func(*lbcore.Endpoint) (ps []*lbcore.ProbeState) {
				for _, h := range c.probes {
					p := new(lbcore.ProbeState)
					p.Store(h)
					ps = append(ps, p)
				}
				return ps
			},
		})
		if c.f == nil {
			c.f = same
		}
		m := listing(v, c.f)
		if m.Ready() != c.ready || m.ReadyButLeft() {
			t.Errorf("%s: ready is %v, ready but left %v", c.name, m.Ready(), m.ReadyButLeft())
		}
		m.SetEjected(true)
		if m.Ready() || !m.Ejected() {
			t.Errorf("%s: ready while it is ejected", c.name)
		}
		m.SetEjected(false)
		v.Update(lbcore.Set{})
		if m.Ready() || !m.Withdrawn() || m.ReadyButLeft() != c.ready {
			t.Errorf("%s, and left: ready %v, ready but left %v", c.name, m.Ready(), m.ReadyButLeft())
		}
	}
}

func TestMemberHealth(t *testing.T) {
	var ps []*lbcore.ProbeState
	v := lbcore.NewView("c", new(lbcore.Hosts), lbcore.ViewConfig{Bind: func(*lbcore.Endpoint) []*lbcore.ProbeState { return ps }})
	if h := listing(v, same).Health(); h != lbcore.HealthHealthy {
		t.Errorf("without a check: %v", h)
	}
	ps = []*lbcore.ProbeState{new(lbcore.ProbeState), new(lbcore.ProbeState)}
	m := listing(v, func(e *lbcore.Endpoint) { e.Hostname = "x" })
	for _, c := range []struct{ a, b, want lbcore.Health }{
		{lbcore.HealthUnknown, lbcore.HealthUnknown, lbcore.HealthUnknown},
		{lbcore.HealthHealthy, lbcore.HealthUnknown, lbcore.HealthUnknown},
		{lbcore.HealthUnknown, lbcore.HealthUnhealthy, lbcore.HealthUnhealthy},
		{lbcore.HealthUnhealthy, lbcore.HealthHealthy, lbcore.HealthUnhealthy},
		{lbcore.HealthHealthy, lbcore.HealthHealthy, lbcore.HealthHealthy},
	} {
		ps[0].Store(c.a)
		ps[1].Store(c.b)
		if h := m.Health(); h != c.want {
			t.Errorf("%v and %v: got %v", c.a, c.b, h)
		}
	}
}

func TestReturnKeepsTheMember(t *testing.T) {
	hosts := new(lbcore.Hosts)
	v := lbcore.NewView("c", hosts, lbcore.ViewConfig{})
	m := listing(v, same)
	m.StartDial()
	m.Connected()
	m.StartDial()
	m.DialFailed()
	if v.Update(set(9)); !m.Withdrawn() || m.Ready() {
		t.Fatal("a dropped endpoint is not withdrawn")
	}
	for range 2 {
		if !v.Sweep(99) {
			t.Fatal("Sweep forgot a member with a connection")
		}
	}
	// It has left the set, but the operator still reaches it.
	if err := v.SetEnabled(addr(1), false); err != nil || m.ReadyButLeft() {
		t.Errorf("disabling a member that has left: %v", err)
	}
	v.SetEnabled(addr(1), true)
	if ms := v.Members(); len(ms) != 2 || ms[0] != m {
		t.Errorf("members: %v", ms)
	}
	back := listing(v, func(e *lbcore.Endpoint) { e.Weight = 5; e.Priority = 1 })
	if back != m || m.Withdrawn() || !m.Ready() || m.Endpoint().Weight != 5 {
		t.Errorf("back: the same %v, withdrawn %v, %+v", back == m, m.Withdrawn(), m.Endpoint())
	}
	if v.Sweep(99) {
		t.Error("Sweep waits for a member that is back")
	}
	m.Closed(10, 20)
	if o, f, s, r := m.Counters(); o != 1 || f != 1 || s != 10 || r != 20 || m.Active() != 0 {
		t.Errorf("counters: %d %d %d %d, active %d", o, f, s, r, m.Active())
	}
	if open, dialing := m.Host(); open != 0 || dialing != 0 {
		t.Error("the host's counters are not 0")
	}
}

func TestSweepWaitsForEverySelector(t *testing.T) {
	hosts := new(lbcore.Hosts)
	var dropped []lbcore.Addr
	v := lbcore.NewView("c", hosts, lbcore.ViewConfig{Drop: func(m *lbcore.Member) { dropped = append(dropped, m.Addr()) }})
	v.Update(set(1, 2, 3)) // 1
	v.Update(set(2, 3))    // 2: 1 leaves
	v.Update(set(3))       // 3: 2 leaves
	for served, want := range [][]lbcore.Addr{nil, nil, {addr(1)}, {addr(1), addr(2)}} {
		left := v.Sweep(uint64(served))
		if !slices.Equal(dropped, want) || left != (len(want) < 2) || hosts.Len() != 3-len(want) {
			t.Errorf("at generation %d: dropped %v, left %v, %d hosts", served, dropped, left, hosts.Len())
		}
	}
	if v.Sweep(3) || len(dropped) != 2 {
		t.Error("a second Sweep dropped again")
	}
	if err := v.SetEnabled(addr(1), false); err == nil {
		t.Error("a forgotten address is still known")
	}
	v.Close()
	v.Close()
	if len(dropped) != 3 || hosts.Len() != 0 {
		t.Errorf("closed: dropped %v, %d hosts", dropped, hosts.Len())
	}
}

// A dropped endpoint that returns in time and leaves again is in use by the
// selectors between.
func TestSweepAfterReturn(t *testing.T) {
	v := lbcore.NewView("c", new(lbcore.Hosts), lbcore.ViewConfig{})
	v.Update(set(1, 2)) // 1
	v.Update(set(2))    // 2
	v.Update(set(1, 2)) // 3
	v.Update(set(2))    // 4
	if !v.Sweep(3) || len(v.Members()) != 2 {
		t.Error("forgotten though generation 3 lists it")
	}
	if v.Sweep(4) || len(v.Members()) != 1 {
		t.Error("not forgotten")
	}
}

// Bind, Unbind and Drop against a model: bound when new to the View, unbound
// before or differently checked; unbound once when no selector can answer with
// it, dropped once when forgotten, whatever comes and goes.
func TestBindAndDropBalance(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type bound struct{ check, host string }
		var got, want []string
		model := make(map[lbcore.Addr]bound) // known to the View
		left := make(map[lbcore.Addr]uint64) // since when
		unbound := make(map[lbcore.Addr]bool)
		open := make(map[lbcore.Addr]*lbcore.Member)
		hosts := new(lbcore.Hosts)
		v := lbcore.NewView("c", hosts, lbcore.ViewConfig{
			Bind: func(e *lbcore.Endpoint) []*lbcore.ProbeState {
				got = append(got, fmt.Sprintf("bind %v %q %q", e.Addr, e.Check.Hostname, e.Hostname))
				return []*lbcore.ProbeState{new(lbcore.ProbeState)}
			},
			Unbind: func(a lbcore.Addr) { got = append(got, fmt.Sprintf("unbind %v", a)) },
			Drop:   func(m *lbcore.Member) { got = append(got, fmt.Sprintf("drop %v", m.Addr())) },
		})
		unbind := func(a lbcore.Addr) {
			if !unbound[a] {
				want = append(want, fmt.Sprintf("unbind %v", a))
				unbound[a] = true
			}
		}
		compare := func(t *rapid.T) {
			slices.Sort(got)
			slices.Sort(want)
			if !slices.Equal(got, want) {
				t.Fatalf("calls %q, want %q", got, want)
			}
			got, want = nil, nil
			if len(v.Members()) != len(model) || hosts.Len() != len(model) {
				t.Fatalf("%d members, %d hosts, want %d", len(v.Members()), hosts.Len(), len(model))
			}
			for _, m := range v.Members() {
				if _, gone := left[m.Addr()]; gone != m.Withdrawn() {
					t.Fatalf("%v: withdrawn is %v", m.Addr(), m.Withdrawn())
				}
			}
		}
		generation := uint64(0)
		t.Repeat(map[string]func(*rapid.T){
			"update": func(t *rapid.T) {
				var eps []lbcore.Endpoint
				for _, i := range rapid.SliceOfNDistinct(rapid.IntRange(0, 5), 0, 6, rapid.ID).Draw(t, "listed") {
					e := ep(i)
					e.Check.Hostname = rapid.SampledFrom([]string{"", "", "x"}).Draw(t, "check")
					e.Hostname = rapid.SampledFrom([]string{"", "", "y"}).Draw(t, "host")
					e.Weight = rapid.Uint32Range(0, 2).Draw(t, "weight")
					eps = append(eps, e)
				}
				next := lbcore.MustSet(eps...)
				if !next.SameTopology(v.Snapshot().Set) {
					generation++
				}
				for _, e := range eps {
					b := bound{e.Check.Hostname, e.Hostname}
					if was, ok := model[e.Addr]; !ok || was != b || unbound[e.Addr] {
						want = append(want, fmt.Sprintf("bind %v %q %q", e.Addr, e.Check.Hostname, e.Hostname))
					}
					delete(unbound, e.Addr)
					model[e.Addr] = b
					delete(left, e.Addr)
				}
				for a := range model {
					if _, gone := left[a]; next.Find(a) < 0 && !gone {
						left[a] = generation
					}
				}
				if snap, _ := v.Update(next); snap.Generation != generation {
					t.Fatalf("generation %d, want %d", snap.Generation, generation)
				}
			},
			"connect": func(*rapid.T) {
				if ms := v.Members(); len(ms) > 0 {
					m := ms[len(ms)-1]
					if open[m.Addr()] == nil {
						open[m.Addr()] = m
						m.StartDial()
					}
				}
			},
			"disconnect": func(*rapid.T) {
				for a, m := range open {
					m.DialAbandoned()
					delete(open, a)
				}
			},
			"sweep": func(t *rapid.T) {
				served := rapid.Uint64Range(0, generation).Draw(t, "served")
				for a, since := range left {
					if since > served {
						continue
					}
					unbind(a)
					if open[a] == nil {
						delete(unbound, a)
						want = append(want, fmt.Sprintf("drop %v", a))
						delete(left, a)
						delete(model, a)
					}
				}
				if v.Sweep(served) != (len(left) > 0) {
					t.Fatal("Sweep's answer is wrong")
				}
			},
			"": compare,
		})
		for a := range model {
			unbind(a)
			want = append(want, fmt.Sprintf("drop %v", a))
			delete(model, a)
		}
		v.Close()
		for _, m := range open {
			m.DialAbandoned() // else its address stays known
		}
		compare(t)
	})
}

// A changed check is bound in place: selectors that exist obey the new one.
func TestRebindIsObeyedAtOnce(t *testing.T) {
	down := new(lbcore.ProbeState)
	down.Store(lbcore.HealthUnhealthy)
	c := &cluster{builders: []lbcore.Builder{order{}}}
	c.config.Bind = func(e *lbcore.Endpoint) []*lbcore.ProbeState {
		if e.Check.Hostname == "down" {
			return []*lbcore.ProbeState{down}
		}
		return nil
	}
	c.start(t)
	c.settle(set(1, 2))
	c.update(lbcore.MustSet(ep(1), with(ep(2), func(e *lbcore.Endpoint) { e.Check.Hostname = "down" })))
	equal(t, "picked", c.seen(0), []int{1})
	down.Store(lbcore.HealthHealthy)
	equal(t, "picked", c.seen(0), []int{1, 2})
	if st := c.stats()[0]; st.Rebuilds != 1 {
		t.Errorf("%d rebuilds", st.Rebuilds)
	}
}

// Counters stay right whatever the concurrency, and no outcome is lost over an
// endpoint's leaving and coming back.
func TestCountersUnderConcurrency(t *testing.T) {
	c := start(t, order{})
	c.settle(set(1, 2))
	var all [3]gauge
	done := make(chan struct{})
	for range 4 {
		go func() {
			defer func() { done <- struct{}{} }()
			for range 500 {
				p := c.pick(0, lbcore.Key{}, 2)
				m := p.Next()
				if m == nil {
					continue
				}
				m.StartDial()
				switch rand.Uint32() % 3 {
				case 0:
					m.DialFailed()
					all[0].enter()
				case 1:
					m.DialAbandoned()
				default:
					m.Connected()
					m.Closed(3, 5)
					all[1].enter()
				}
			}
		}()
	}
	for running := 4; running > 0; {
		for _, s := range []lbcore.Set{set(1), set(1, 2)} {
			c.settle(s)
		}
		select {
		case <-done:
			running--
		default:
		}
	}
	var opened, failed, sent, received uint64
	for _, m := range c.view.Members() {
		o, f, s, r := m.Counters()
		opened, failed, sent, received = opened+o, failed+f, sent+s, received+r
		if open, dialing := m.Host(); m.Active() != 0 || open != 0 || dialing != 0 {
			t.Errorf("%v: active %d, open %d, dialing %d", m.Addr(), m.Active(), open, dialing)
		}
	}
	if f, o := uint64(all[0].sum.Load()), uint64(all[1].sum.Load()); failed != f || opened != o || sent != 3*o || received != 5*o {
		t.Errorf("opened %d failed %d sent %d received %d, want %d %d", opened, failed, sent, received, o, f)
	}
}

// An endpoint that has left is probed as long as a selector can answer with it,
// not as long as it has connections; if it comes back before those have ended
// it is bound again and is the same Member.
func TestUnbindComesBeforeDrop(t *testing.T) {
	var calls []string
	v := lbcore.NewView("c", new(lbcore.Hosts), lbcore.ViewConfig{
		Bind: func(e *lbcore.Endpoint) []*lbcore.ProbeState {
			calls = append(calls, "bind")
			return []*lbcore.ProbeState{new(lbcore.ProbeState)}
		},
		Unbind: func(lbcore.Addr) { calls = append(calls, "unbind") },
		Drop:   func(*lbcore.Member) { calls = append(calls, "drop") },
	})
	a, err := lbcore.ParseAddr("192.0.2.1:80")
	if err != nil {
		t.Fatal(err)
	}
	one := lbcore.MustSet(lbcore.Endpoint{Addr: a, Weight: 1})
	snap, _ := v.Update(one)
	m := snap.Member(0)
	m.StartDial()
	m.Connected()
	v.Update(lbcore.Set{})
	v.Sweep(1) // a selector still serves the generation with it
	v.Sweep(2)
	v.Sweep(2)
	if got := strings.Join(calls, " "); got != "bind unbind" {
		t.Errorf("with a connection open: %s", got)
	}
	snap, _ = v.Update(one)
	if snap.Member(0) != m || m.Ready() {
		t.Errorf("it came back as another Member, or ready without a probe")
	}
	v.Update(lbcore.Set{})
	m.Closed(0, 0)
	if left := v.Sweep(4); left {
		t.Error("it is left after its connection has ended")
	}
	if got := strings.Join(calls, " "); got != "bind unbind bind unbind drop" {
		t.Errorf("in all: %s", got)
	}
}

// The last verdict is what is known of an endpoint that is not probed any
// more: whoever still answers with it goes by that.
func TestUnbindKeepsTheVerdict(t *testing.T) {
	c := (&cluster{builders: []lbcore.Builder{order{}}}).probed().start(t)
	c.settle(set(1, 2, 3))
	c.health(false, 2, 3)
	gone := c.member(3)
	gone.StartDial()
	c.settle(set(1, 2))
	if !c.view.Sweep(2) || gone.ReadyButLeft() || gone.Health() != lbcore.HealthUnhealthy {
		t.Errorf("unbound: %v, ready but for that %v", gone.Health(), gone.ReadyButLeft())
	}
	gone.DialFailed()
	c.stop()
	c.view.Close()
	equal(t, "picked after Close", c.seen(0), []int{1})
}
