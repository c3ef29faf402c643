package node

import (
	"context"
	"os"
	"strings"
	"sync"
	"testing"

	"gatehouse.internal/lbcore"
	"gatehouse.internal/lbcore/roundrobin"
)

// word is a row of the table in docs/health.md.
type word struct {
	what        string
	takes       bool // new connections
	degraded    bool // but only what others have no capacity for
	takesPanics bool // in a panic
	state       State
}

// words returns the rows of the table, those that exclude each other together.
func words(t *testing.T) (groups [][]word) {
	t.Helper()
	text, err := os.ReadFile("../../../../docs/health.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(text), "| --- |")
	table, _, _ = strings.Cut(table, "\n\n")
	sizes := []int{3, 2, 2, 6, 2, 6}
	for line := range strings.Lines(table) {
		cells := strings.Split(line, "|")
		if len(cells) < 8 || strings.Contains(line, "---") {
			continue
		}
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		w := word{cells[2], cells[3] != "no", cells[3] == "as degraded", cells[4] == "yes", State(cells[5])}
		if n := len(groups); n == 0 || len(groups[n-1]) == sizes[n-1] {
			groups = append(groups, nil)
		}
		groups[len(groups)-1] = append(groups[len(groups)-1], w)
	}
	if len(groups) != len(sizes) || len(groups[5]) != 6 {
		t.Fatalf("the table has other rows: %v", groups)
	}
	return groups
}

// combinations calls f with one word of each group, in every way.
func combinations(groups [][]word, f func([]word)) {
	var pick func([]word)
	pick = func(chosen []word) {
		if len(chosen) == len(groups) {
			f(chosen)
			return
		}
		for _, w := range groups[len(chosen)] {
			pick(append(chosen[:len(chosen):len(chosen)], w))
		}
	}
	pick(nil)
}

// Every combination of what is said of an endpoint comes to what the table in
// docs/health.md says. The test of admin has its last two columns.
func TestHealthTable(t *testing.T) {
	statuses := map[string]lbcore.Status{}
	for s := lbcore.StatusUnknown; s <= lbcore.StatusDegraded; s++ {
		statuses["status "+s.String()] = s
	}
	if len(statuses) != 6 {
		t.Fatalf("statuses are %v", statuses)
	}
	n := 0
	groups := words(t)
	combinations(groups, func(said []word) {
		n++
		stabilize, listed := strings.Contains(said[0].what, "on_absent"), said[0].what == "listed"
		disabled, weightless, ejected := !said[1].takes, !said[2].takes, !said[4].takes
		e := endpoint("192.0.2.1:80")
		status, ok := statuses[said[3].what]
		if !ok {
			t.Fatalf("no status %q", said[3].what)
		}
		e.Status = status
		if weightless {
			e.Weight = 0
		}
		if disabled {
			e.Enabled = lbcore.OverrideDisable
		}
		probe := new(lbcore.ProbeState)
		switch said[5].what {
		case "all healthy":
			probe.Store(lbcore.HealthHealthy)
		case "all pass, one degraded":
			probe.Store(lbcore.HealthDegraded)
		case "one unhealthy":
			probe.Store(lbcore.HealthUnhealthy)
		}
		view := lbcore.NewView("web", new(lbcore.Hosts), lbcore.ViewConfig{
			Bind: func(*lbcore.Endpoint) []*lbcore.ProbeState {
				if said[5].what == "none" {
					return nil
				}
				return []*lbcore.ProbeState{probe}
			},
			InitialHealthy: strings.Contains(said[5].what, "initial"), Stabilize: stabilize,
		})
		gate := lbcore.NewGate(lbcore.GateConfig{})
		group := lbcore.NewGroup(lbcore.GroupConfig{
			View: view, Gate: gate, Slots: []lbcore.SlotConfig{{Name: "s", Builder: roundrobin.Config{}}}, Spread: lbcore.Spread{PanicThreshold: 100},
		})
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { group.Run(ctx) })
		snap, _ := view.Update(lbcore.MustSet(e))
		group.Rebuild(snap)
		if err := group.WaitGeneration(ctx, snap.Generation); err != nil {
			t.Fatal(err)
		}
		m := snap.Member(0)
		m.SetEjected(ejected)
		group.UpdateLoads()
		if !listed {
			view.Update(lbcore.MustSet())
		}
		snap = view.Snapshot()
		absent := snap.Set.Len() > 0 && snap.Absent(0)

		// What on_absent asks for.
		if passes := probe.Load() == lbcore.HealthHealthy || probe.Load() == lbcore.HealthDegraded; stabilize && (!passes || disabled || !status.Routable()) {
			stabilize, said[0] = false, groups[0][1]
		}
		withdrawn := !said[0].takes
		ready, panics, degraded, state := true, true, false, StateReady
		for _, w := range said {
			ready, panics, degraded = ready && w.takes, panics && w.takesPanics, degraded || w.degraded
			if state == StateReady {
				state = w.state
			}
		}
		got := (&tracked{Member: m}).status(nil, absent)
		if got.Ready != ready || got.State != state || got.Degraded != degraded || got.Absent != stabilize || got.Withdrawn != withdrawn {
			t.Errorf("%v:\n%+v; want ready %v, state %s, degraded %v, absent %v", said, got, ready, state, degraded, stabilize)
		}
		if (got.Why == "") != (ready && !degraded && !stabilize) {
			t.Errorf("%v:\nwhy is %q", said, got.Why)
		}
		r := gate.Pin()
		picks := group.Slot("s").Pick(r, lbcore.Key{}, 1)
		r.Unpin()
		if found := picks.Next() != nil; !withdrawn && found != (ready || panics) {
			t.Errorf("%v:\ntakes connections with a panic threshold: %v", said, found)
		}
		cancel()
		wg.Wait()
		group.Close()
		view.Close()
	})
	if n != 864 {
		t.Errorf("there were %d combinations", n)
	}
}
