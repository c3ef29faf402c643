package lbcore_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"gatehouse.internal/lbcore"
	"gatehouse.internal/lbcore/leastweight"
	"gatehouse.internal/lbcore/ringhash"
	"gatehouse.internal/lbcore/roundrobin"
)

// How a steered Builder behaves.
const (
	builds int32 = iota
	fails
	panics
	isSlow
	blocks
)

// steered is a Builder whose behaviour can change at any time, also during a
// build.
type steered struct {
	lbcore.Builder
	lane   *gauge
	mode   atomic.Int32
	active atomic.Int32
	// since it was made; the model's side of the slot's counters
	requests, failures atomic.Int64
}

func (s *steered) Keyed() bool {
	k, ok := s.Builder.(lbcore.Keyed)
	return ok && k.Keyed()
}

func (s *steered) Build(in lbcore.Input, st *lbcore.Storage, yield func() error) (lbcore.Selector, error) {
	s.lane.enter()
	defer s.lane.leave()
	s.active.Add(1)
	defer s.active.Add(-1)
	for i := 0; ; i++ {
		switch mode := s.mode.Load(); mode {
		case builds:
			return s.Builder.Build(in, st, yield)
		case fails, panics:
			if yield() == nil { // else it counts as cancelled
				s.failures.Add(1)
			}
			if mode == panics {
				panic("boom")
			}
			return nil, errBuild
		case isSlow:
			if i == 20 {
				return s.Builder.Build(in, st, yield)
			}
		}
		if err := yield(); err != nil {
			return nil, err
		}
		<-time.After(7 * time.Millisecond)
	}
}

// machine is several groups on one gate, driven at random, with a model of
// what must be so.
type machine struct {
	hosts  lbcore.Hosts
	gate   *lbcore.Gate
	lanes  [2]gauge // small and large
	groups []*driven
	loops  [2]held
	reader *lbcore.Reader // of the checks; never pinned over a step
	torn   atomic.Int64
}

// held is an event loop that can be stopped in the midst of a walk.
type held struct {
	reader *lbcore.Reader
	on     chan struct{} // closed to let it go on; nil if it does nothing
	done   chan struct{}
}

// heldHash is in the keys of the walks that are stopped; the lowest byte is the
// loop's number.
const heldHash = 0x6865_6c64_0000_0000

// hold stops the walks of held loops.
func (m *machine) hold(k lbcore.Key) {
	if i := k.Hash ^ heldHash; i < uint64(len(m.loops)) {
		<-m.loops[i].on
	}
}

// walk begins a walk of a loop in a slot, which stops until release.
func (m *machine) walk(i int, s *lbcore.Slot) {
	l := &m.loops[i]
	l.on, l.done = make(chan struct{}), make(chan struct{})
	go func() {
		defer close(l.done)
		l.reader.Pin()
		s.Pick(l.reader, hashKey(heldHash|uint64(i)), 2)
		<-l.on
		l.reader.Unpin()
	}()
}

// release lets a loop go on, and returns when its walk has ended.
func (m *machine) release(i int) {
	l := &m.loops[i]
	if l.on == nil {
		return
	}
	close(l.on)
	<-l.done
	l.on = nil
}

// driven is one cluster of a machine. Its group is a new one after a restart.
type driven struct {
	m       *machine
	view    *lbcore.View
	probes  map[lbcore.Addr]*lbcore.ProbeState
	history map[uint64]*lbcore.Snapshot
	group   *lbcore.Group
	slots   []*steered
	open    []*lbcore.Member

	cancel  context.CancelFunc
	running sync.WaitGroup // Run and those who wait for a generation
	waiting atomic.Int64
}

// The slots of each group: small ones, and large ones by the machine's gate.
var machineSlots = [][]struct {
	large bool
	b     lbcore.Builder
}{
	{{true, ringhash.Config{MinimumSize: 1024}}, {false, ringhash.Config{MinimumSize: 16}}, {false, roundrobin.Config{}}},
	{{true, ringhash.Config{MinimumSize: 1024, Function: ringhash.MurmurHash2}}, {true, ringhash.Config{MinimumSize: 2048}}},
	{{false, leastweight.Config{}}},
}

func newMachine() *machine {
	m := &machine{gate: lbcore.NewGate(lbcore.GateConfig{SmallBuild: 4096, StuckAfter: time.Second, MaxStuck: 2})}
	m.reader = m.gate.NewReader("checks")
	for i := range m.loops {
		m.loops[i].reader = m.gate.NewReader("loop")
	}
	for i := range machineSlots {
		d := &driven{m: m, probes: make(map[lbcore.Addr]*lbcore.ProbeState), history: make(map[uint64]*lbcore.Snapshot)}
		d.view = lbcore.NewView(fmt.Sprint("c", i), &m.hosts, lbcore.ViewConfig{
			InitialHealthy: true,
			Bind: func(e *lbcore.Endpoint) []*lbcore.ProbeState {
				p := d.probes[e.Addr]
				if p == nil {
					p = new(lbcore.ProbeState)
					d.probes[e.Addr] = p
				}
				return []*lbcore.ProbeState{p}
			},
			Drop: func(m *lbcore.Member) { delete(d.probes, m.Addr()) },
		})
		d.history[0] = d.view.Snapshot()
		d.start(i)
		m.groups = append(m.groups, d)
	}
	return m
}

// start gives d a new group, which is asked for the present membership.
func (d *driven) start(i int) {
	cfg := lbcore.GroupConfig{View: d.view, Gate: d.m.gate}
	d.slots = nil
	for k, sc := range machineSlots[i] {
		s := &steered{Builder: stamped{sc.b, 8, &d.m.torn, d.m.hold}, lane: &d.m.lanes[0]}
		if sc.large {
			s.lane = &d.m.lanes[1]
		}
		s.requests.Store(1)
		d.slots = append(d.slots, s)
		cfg.Slots = append(cfg.Slots, lbcore.SlotConfig{Name: fmt.Sprint(k), Builder: s})
	}
	d.group = lbcore.NewGroup(cfg)
	d.group.Rebuild(d.view.Snapshot())
	var ctx context.Context
	ctx, d.cancel = context.WithCancel(context.Background())
	g := d.group
	d.running.Go(func() { g.Run(ctx) })
}

func (d *driven) stop() {
	d.cancel()
	d.running.Wait()
}

// waitFor has somebody wait for a generation, or until the group ends.
func (d *driven) waitFor(generation uint64) {
	d.waiting.Add(1)
	g := d.group
	d.running.Go(func() {
		defer d.waiting.Add(-1)
		if err := g.WaitGeneration(context.Background(), generation); (err == nil) != (g.Served() >= generation) {
			panic(fmt.Sprintf("%v at generation %d", err, g.Served()))
		}
	})
}

func (m *machine) draw(t *rapid.T) *driven {
	return m.groups[rapid.IntRange(0, len(m.groups)-1).Draw(t, "group")]
}

func (m *machine) update(t *rapid.T) {
	d := m.draw(t)
	var eps []lbcore.Endpoint
	for _, i := range rapid.SliceOfNDistinct(rapid.IntRange(0, 9), 0, 8, rapid.ID).Draw(t, "listed") {
		e := ep(i)
		e.Weight = rapid.Uint32Range(0, 3).Draw(t, "weight")
		e.Priority = uint8(rapid.SampledFrom([]int{0, 0, 0, 1, 5}).Draw(t, "priority"))
		e.Status = rapid.SampledFrom([]lbcore.Status{0, 1, 1, 1, lbcore.StatusDraining, lbcore.StatusDegraded}).Draw(t, "status")
		e.Enabled = lbcore.Override(rapid.SampledFrom([]int{0, 0, 0, 1, 2}).Draw(t, "enabled"))
		eps = append(eps, e)
	}
	snap, topology := d.view.Update(lbcore.MustSet(eps...))
	if topology {
		for _, s := range d.slots {
			s.requests.Add(1)
		}
		d.history[snap.Generation] = snap
		d.group.Rebuild(snap)
	}
}

func (m *machine) steer(t *rapid.T) {
	d := m.draw(t)
	s := d.slots[rapid.IntRange(0, len(d.slots)-1).Draw(t, "slot")]
	s.mode.Store(rapid.SampledFrom([]int32{builds, builds, fails, panics, isSlow, blocks}).Draw(t, "mode"))
}

func (m *machine) flip(t *rapid.T) {
	d := m.draw(t)
	a := addr(rapid.IntRange(0, 9).Draw(t, "endpoint"))
	if rapid.Bool().Draw(t, "manual") {
		d.view.SetEnabled(a, rapid.Bool().Draw(t, "enabled"))
	} else if p := d.probes[a]; p != nil {
		p.Store(lbcore.Health(rapid.IntRange(0, 2).Draw(t, "health")))
	}
	d.group.UpdateLoads()
}

func (m *machine) pin(t *rapid.T) {
	i := rapid.IntRange(0, len(m.loops)-1).Draw(t, "loop")
	if m.loops[i].on != nil {
		m.release(i)
		return
	}
	d := m.draw(t)
	m.walk(i, d.group.Slots()[rapid.IntRange(0, len(d.slots)-1).Draw(t, "slot")])
	synctest.Wait()
}

func (m *machine) connect(t *rapid.T) {
	d := m.draw(t)
	m.reader.Pin()
	p := d.group.Slots()[rapid.IntRange(0, len(d.slots)-1).Draw(t, "slot")].Pick(m.reader, lbcore.Key{}, 2)
	m.reader.Unpin()
	for c := p.Next(); c != nil; c = p.Next() {
		c.StartDial()
		d.open = append(d.open, c)
	}
}

func (m *machine) disconnect(t *rapid.T) {
	d := m.draw(t)
	if n := len(d.open); n > 0 {
		d.open[n-1].Connected()
		d.open[n-1].Closed(1, 1)
		d.open = d.open[:n-1]
	}
}

func (m *machine) restart(t *rapid.T) {
	i := rapid.IntRange(0, len(m.groups)-1).Draw(t, "group")
	m.groups[i].stop()
	m.groups[i].account(t)
	m.groups[i].start(i)
}

// account checks that every request is accounted for: published, replaced,
// pending or being built.
func (d *driven) account(t *rapid.T) {
	t.Helper()
	for i, s := range d.group.Slots() {
		st, model := s.Stats(), d.slots[i]
		n := st.Rebuilds + st.Coalesced
		if _, pending := s.Pending(); pending {
			n++
		}
		n += uint64(model.active.Load())
		if n != uint64(model.requests.Load()) || st.Failed != uint64(model.failures.Load()) {
			t.Fatalf("%s, slot %d: %d requests and %d failures, but %+v", d.view.Name(), i, model.requests.Load(), model.failures.Load(), st)
		}
	}
}

// check compares the machine with the model while it rests.
func (m *machine) check(t *rapid.T) {
	synctest.Wait()
	for i := range m.lanes {
		if n := m.lanes[i].max.Load(); n > 1 {
			t.Fatalf("lane %d: %d builds at once", i, n)
		}
	}
	if m.torn.Load() > 0 {
		t.Fatal("a walk has read storage that serves another selector")
	}
	if n := m.gate.StuckSelectors(); n > 2 {
		t.Fatalf("%d stuck selectors", n)
	}
	// Large storage is that of what is published, of one build, and stuck.
	spare, retired, _ := m.gate.LargeLane()
	large, slots := spare+retired+int(m.lanes[1].now.Load()), 0
	for i, d := range m.groups {
		for k, s := range d.group.Slots() {
			if machineSlots[i][k].large {
				slots++
				if s.Stats().Bytes > 4096 {
					large++
				}
			}
		}
	}
	if large > slots+1 {
		t.Fatalf("%d large regions for %d slots: %d spare, %d retired", large, slots, spare, retired)
	}
	m.reader.Pin()
	defer m.reader.Unpin()
	for _, d := range m.groups {
		d.account(t)
		for i, s := range d.group.Slots() {
			st := s.Stats()
			if st.Generation > d.view.Snapshot().Generation {
				t.Fatalf("slot %d serves generation %d", i, st.Generation)
			}
			p := s.Pick(m.reader, lbcore.Key{}, 8)
			if p.Generation() != st.Generation {
				t.Fatalf("slot %d answers from generation %d, says %d", i, p.Generation(), st.Generation)
			}
			want := acceptable(d.history[p.Generation()])
			var got []int
			for c := p.Next(); c != nil; c = p.Next() {
				got = append(got, num(c))
			}
			if p.Len() != min(len(want), 8) || len(got) != p.Len() {
				t.Fatalf("slot %d: picked %v of %v", i, got, want)
			}
			for k, n := range got {
				if !slices.Contains(want, n) || slices.Contains(got[:k], n) {
					t.Fatalf("slot %d: picked %v of %v", i, got, want)
				}
			}
		}
	}
}

// acceptable returns who may be picked of a generation: the ready; if nobody
// is, those who have left and would be ready otherwise.
func acceptable(snap *lbcore.Snapshot) (is []int) {
	if snap.Generation == 0 {
		return nil
	}
	for _, ready := range []func(*lbcore.Member) bool{(*lbcore.Member).Ready, (*lbcore.Member).ReadyButLeft} {
		for i, e := range snap.Set.All() {
			if m := snap.Member(i); e.Weight > 0 && ready(m) {
				is = append(is, num(m))
			}
		}
		if len(is) > 0 {
			break
		}
	}
	return is
}

// finish lets everything go its way, and checks where it ends.
func (m *machine) finish(t *rapid.T) {
	for i := range m.loops {
		m.release(i)
	}
	for _, d := range m.groups {
		for _, s := range d.slots {
			s.mode.Store(builds)
		}
	}
	for _, d := range m.groups {
		snap := d.view.Snapshot()
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		if err := d.group.WaitGeneration(ctx, snap.Generation); err != nil {
			t.Fatalf("%s: generation %d is not served: %v", d.view.Name(), snap.Generation, err)
		}
		cancel()
		synctest.Wait()
		if n := d.waiting.Load(); n != 0 {
			t.Fatalf("%d who wait for a generation are not released", n)
		}
		d.account(t)
		d.compare(t)
		for ; len(d.open) > 0; d.open = d.open[1:] {
			d.open[0].DialFailed()
		}
		if d.view.Sweep(d.group.Served()) || len(d.view.Members()) != snap.Set.Len() || len(d.probes) != snap.Set.Len() {
			t.Fatalf("%d members of %d endpoints are left", len(d.view.Members()), snap.Set.Len())
		}
		for _, c := range d.view.Members() {
			if open, _ := c.Host(); c.Active() != 0 || open != 0 {
				t.Fatalf("%v has %d connections in the end", c.Addr(), c.Active())
			}
		}
	}
	for _, d := range m.groups {
		d.view.Close()
		d.stop()
	}
	if m.hosts.Len() != 0 {
		t.Fatalf("%d hosts in the end", m.hosts.Len())
	}
}

// compare checks that what is served equals what is built from the final
// membership by a group that knows no other.
func (d *driven) compare(t *rapid.T) {
	i := slices.Index(d.m.groups, d)
	fresh := &driven{m: d.m, view: d.view}
	fresh.start(i)
	defer fresh.stop()
	if err := fresh.group.WaitGeneration(context.Background(), d.view.Snapshot().Generation); err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
	d.group.UpdateLoads()
	d.m.reader.Pin()
	defer d.m.reader.Unpin()
	for k, s := range d.group.Slots() {
		if _, ring := machineSlots[i][k].b.(ringhash.Config); !ring {
			continue // the others go by chance
		}
		for h := range uint64(40) {
			key := hashKey(h * 0x9e3779b97f4a7c15)
			got, want := s.Pick(d.m.reader, key, 8), fresh.group.Slots()[k].Pick(d.m.reader, key, 8)
			if g, w := nums(&got), nums(&want); !slices.Equal(g, w) {
				t.Fatalf("%s, slot %d: picks %v, a fresh ring %v", d.view.Name(), k, g, w)
			}
		}
	}
}

func TestPromiseTheLastMembershipIsServed(t *testing.T) { rapid.Check(t, anything) }

func FuzzPromiseTheLastMembershipIsServed(f *testing.F) { f.Fuzz(rapid.MakeFuzz(anything)) }

// anything happens to a machine.
func anything(t *rapid.T) {
	rapid.SyncTest(t, func(t *rapid.T) {
		m := newMachine()
		// Whatever happens, nothing is left running.
		defer func() {
			for i := range m.loops {
				m.release(i)
			}
			for _, d := range m.groups {
				d.stop()
			}
		}()
		actions := map[string]func(*rapid.T){
			"":        m.check,
			"steer":   m.steer,
			"flip":    m.flip,
			"pin":     m.pin,
			"connect": m.connect, "disconnect": m.disconnect,
			"restart": m.restart,
			"advance": func(t *rapid.T) {
				pass(time.Duration(rapid.SampledFrom([]int{1, 15, 100, 1500}).Draw(t, "ms")) * time.Millisecond)
			},
			"sweep": func(t *rapid.T) {
				d := m.draw(t)
				d.view.Sweep(d.group.Served())
			},
			"wait": func(t *rapid.T) {
				d := m.draw(t)
				d.waitFor(d.view.Snapshot().Generation)
			},
		}
		for i := range 4 { // most of what happens
			actions["update"+strings.Repeat("'", i)] = m.update
		}
		t.Repeat(actions)
		m.finish(t)
	})
}
