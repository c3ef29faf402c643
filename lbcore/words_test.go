package lbcore

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// docTable returns the rows of the table of docs/health.md whose first column
// has that head.
func docTable(t *testing.T, head string) (rows [][]string) {
	t.Helper()
	text, err := os.ReadFile("../docs/health.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(text), "| "+head+" |")
	if !found {
		t.Fatalf("docs/health.md has no table that begins with %q", head)
	}
	for _, line := range strings.Split(rest, "\n")[2:] {
		line, ok := strings.CutPrefix(line, "| ")
		if !ok {
			return rows
		}
		rows = append(rows, strings.Split(strings.TrimSuffix(line, " |"), " | "))
	}
	return rows
}

// TestWordsAsDocumented goes through all combinations of what discovery, probes
// and outlier detection can say, and compares what a View makes of each with the
// documentation.
func TestWordsAsDocumented(t *testing.T) {
	rows := docTable(t, "discovery's word")
	used := make([]bool, len(rows))
	discovery := []string{"listed", "degraded", "unhealthy", "draining", "timeout", "disabled", "absent", "absent, unhealthy before"}
	probes := []string{"no check", "unknown", "unknown but initial healthy", "healthy", "degraded", "unhealthy"}
	for _, said := range discovery {
		for _, probe := range probes {
			for _, ejected := range []string{"no", "yes"} {
				for _, absent := range []string{"immediate", "stabilize"} {
					words := []string{said, probe, ejected, absent}
					i := slices.IndexFunc(rows, func(row []string) bool {
						for k, w := range words {
							if row[k] != "any" && row[k] != w && (w == "absent, unhealthy before" || !slices.Contains(strings.Split(row[k], ", "), w)) {
								return false
							}
							// "absent, unhealthy before" is one word.
							if k == 0 && row[k] == "absent, unhealthy before" && w != row[k] {
								return false
							}
						}
						return true
					})
					if i < 0 {
						t.Fatalf("no row fits %q", words)
					}
					used[i] = true
					if got, want := outcome(said, probe, ejected == "yes", absent == "stabilize"), rows[i][4]; got != want {
						t.Errorf("%q: %s, documented is %s", words, got, want)
					}
				}
			}
		}
	}
	for i, u := range used {
		if !u {
			t.Errorf("row %q fits nothing that the rows above it don't", rows[i])
		}
	}
}

// outcome has a View hear the words and says what becomes of the endpoint.
func outcome(said, probe string, ejected, stabilize bool) string {
	var state ProbeState
	cfg := ViewConfig{Stabilize: stabilize, InitialHealthy: probe == "unknown but initial healthy"}
	if probe != "no check" {
		cfg.Bind = func(*Endpoint) []*ProbeState { return []*ProbeState{&state} }
	}
	v := NewView("web", new(Hosts), cfg)
	e := Endpoint{Addr: UnixAddr("/a"), Weight: 1}
	switch said {
	case "degraded":
		e.Status = StatusDegraded
	case "unhealthy", "absent, unhealthy before":
		e.Status = StatusUnhealthy
	case "draining":
		e.Status = StatusDraining
	case "timeout":
		e.Status = StatusTimeout
	case "disabled":
		e.Enabled = OverrideDisable
	}
	snap, _ := v.Update(MustSet(e))
	m := snap.Member(0)
	m.set(bitEjected, ejected)
	switch probe {
	case "healthy":
		state.Store(HealthHealthy)
	case "degraded":
		state.Store(HealthDegraded)
	case "unhealthy":
		state.Store(HealthUnhealthy)
	}
	if strings.HasPrefix(said, "absent") {
		snap, _ = v.Update(MustSet())
	}
	switch {
	case snap.Set.Len() == 0:
		if !m.Withdrawn() || m.Ready() {
			return "left, and is ready"
		}
		return "leaves"
	case !m.Ready():
		return "no"
	case m.Degraded():
		return "as degraded"
	}
	return "yes"
}

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
