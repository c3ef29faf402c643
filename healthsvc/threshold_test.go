package healthsvc

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"gatehouse.internal/lbcore"
)

// modelState says what a whole history of results amounts to, by the words of
// the documentation: since is what was seen since the state changed last.
func modelState(th Thresholds, history []observation) lbcore.Health {
	state, since := lbcore.HealthUnknown, []bool(nil)
	lastAre := func(n uint32, pass bool) bool {
		n = max(n, 1)
		return uint32(len(since)) >= n && !slices.Contains(since[uint32(len(since))-n:], !pass)
	}
	for _, o := range history {
		since = append(since, o.pass)
		next := state
		switch {
		case o.pass && (state == lbcore.HealthUnknown || lastAre(th.Healthy, true)):
			next = lbcore.HealthHealthy
		case !o.pass && (o.atOnce || state == lbcore.HealthUnknown && !th.InitialHealthy || lastAre(th.Unhealthy, false)):
			next = lbcore.HealthUnhealthy
		}
		if next != state {
			state, since = next, nil
		}
	}
	return state
}

type observation struct{ pass, atOnce bool }

func TestAutomatonAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		th := Thresholds{Healthy: rapid.Uint32Range(0, 4).Draw(t, "healthy"), Unhealthy: rapid.Uint32Range(0, 4).Draw(t, "unhealthy"), InitialHealthy: rapid.Bool().Draw(t, "initial")}
		a := automaton{Thresholds: th.normal()}
		var history []observation
		for range rapid.IntRange(1, 40).Draw(t, "results") {
			pass := rapid.Bool().Draw(t, "pass")
			o := observation{pass, !pass && rapid.IntRange(0, 9).Draw(t, "at once") == 0}
			before := a.state
			changed := a.observe(o.pass, o.atOnce, 1)
			history = append(history, o)
			if want := modelState(th, history); a.state != want {
				t.Fatalf("thresholds %+v, after %v: %s, want %s", th, history, a.state, want)
			}
			if changed != (a.state != before) {
				t.Fatalf("change reported: %t; from %s to %s", changed, before, a.state)
			}
		}
	})
}

func TestAutomatonTakesManyResultsAtOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		one := automaton{Thresholds: Thresholds{Healthy: rapid.Uint32Range(1, 5).Draw(t, "healthy"), Unhealthy: rapid.Uint32Range(1, 5).Draw(t, "unhealthy"), InitialHealthy: rapid.Bool().Draw(t, "initial")}}
		many := one
		for range rapid.IntRange(1, 8).Draw(t, "runs") {
			pass, n := rapid.Bool().Draw(t, "pass"), rapid.Uint32Range(1, 7).Draw(t, "n")
			many.observe(pass, false, n)
			for range n {
				one.observe(pass, false, 1)
			}
			if one.state != many.state {
				t.Fatalf("one by one: %+v; at once: %+v", one, many)
			}
		}
	})
	a := automaton{Thresholds: Thresholds{Healthy: 1, Unhealthy: 1<<32 - 1, InitialHealthy: true}}
	if a.observe(false, false, 1<<32-2) || !a.observe(false, false, 1<<32-1) {
		t.Errorf("the largest numbers overflow: %+v", a)
	}
}

func TestAutomatonByHand(t *testing.T) {
	for _, c := range []struct {
		name    string
		th      Thresholds
		results string // + pass, - failure, ! failure at once
		want    string // u unknown, h healthy, f unhealthy, after each
	}{
		{"first pass", Thresholds{Healthy: 5, Unhealthy: 5}, "+", "h"},
		{"first failure", Thresholds{Healthy: 1, Unhealthy: 3}, "-+", "fh"},
		{"first failures where unknown is used", Thresholds{Healthy: 1, Unhealthy: 3, InitialHealthy: true}, "---", "uuf"},
		{"pass between them", Thresholds{Healthy: 3, Unhealthy: 3, InitialHealthy: true}, "--+", "uuh"},
		{"equal result resets", Thresholds{Healthy: 2, Unhealthy: 3}, "+--+---", "hhhhhhf"},
		{"recovery by threshold", Thresholds{Healthy: 2, Unhealthy: 1}, "-+-++", "fffff"[:4] + "h"},
		{"at once", Thresholds{Healthy: 2, Unhealthy: 3}, "+!+!++", "hfffff"[:5] + "h"},
		{"at once from unknown", Thresholds{Healthy: 2, Unhealthy: 3}, "!", "f"},
		{"zero is one", Thresholds{}, "-+-", "fhf"},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := automaton{Thresholds: c.th.normal()}
			got := ""
			for _, r := range c.results {
				a.observe(r == '+', r == '!', 1)
				got += [...]string{"u", "h", "f"}[a.state]
			}
			if got != c.want {
				t.Errorf("%s: got %s, want %s", c.results, got, c.want)
			}
		})
	}
}
