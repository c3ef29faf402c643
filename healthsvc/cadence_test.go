package healthsvc

import (
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestCadenceValidate(t *testing.T) {
	good := Cadence{Interval: time.Second, Timeout: time.Second}
	if err := good.Validate(); err != nil {
		t.Errorf("%+v: %v", good, err)
	}
	for want, change := range map[string]func(*Cadence){
		"interval 0s":                      func(c *Cadence) { c.Interval = 0 },
		"interval 999.999µs":               func(c *Cadence) { c.Interval = time.Millisecond - 1 },
		"interval 8760h0m0.000000001s":     func(c *Cadence) { c.Interval = MaxInterval + 1 },
		"timeout 0s":                       func(c *Cadence) { c.Timeout = 0 },
		"timeout 8760h0m0.000000001s":      func(c *Cadence) { c.Timeout = MaxInterval + 1 },
		"unhealthy_interval -1ns":          func(c *Cadence) { c.UnhealthyInterval = -1 },
		"unhealthy_edge_interval 1ns":      func(c *Cadence) { c.UnhealthyEdgeInterval = 1 },
		"healthy_edge_interval 8760":       func(c *Cadence) { c.HealthyEdgeInterval = MaxInterval + 1 },
		"no_traffic_interval 1µs":          func(c *Cadence) { c.NoTrafficInterval = time.Microsecond },
		"no_traffic_healthy_interval -1ns": func(c *Cadence) { c.NoTrafficHealthyInterval = -1 },
		"initial_jitter -1ns":              func(c *Cadence) { c.InitialJitter = -1 },
		"interval_jitter -1ns":             func(c *Cadence) { c.IntervalJitter = -1 },
		"interval_jitter_percent 10001":    func(c *Cadence) { c.IntervalJitterPercent = 10_001 },
	} {
		c := good
		change(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: got %v, want an error with %q", c, err, want)
		}
	}
}

func anyCadence() *rapid.Generator[Cadence] {
	return rapid.Custom(func(t *rapid.T) Cadence {
		d := func(name string) time.Duration { return time.Duration(rapid.Int64().Draw(t, name)) }
		return Cadence{
			d("interval"), d("unhealthy"), d("unhealthy edge"), d("healthy edge"), d("no traffic"), d("no traffic healthy"),
			d("timeout"), d("initial"), d("jitter"), rapid.Uint32().Draw(t, "percent"),
		}
	})
}

func TestCadenceNormal(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := anyCadence().Draw(t, "cadence")
		n := c.normal()
		if err := n.Validate(); err != nil {
			t.Fatalf("%+v became %+v: %v", c, n, err)
		}
		if c.Validate() == nil && n != c {
			t.Fatalf("valid %+v became %+v", c, n)
		}
		// The largest jitter must not overflow; random returns its maximum.
		d := n.interval(phase{rapid.Bool().Draw(t, "failed"), rapid.Bool().Draw(t, "pending"), rapid.Bool().Draw(t, "idle")})
		most := n.jittered(d, func(n int64) int64 { return n - 1 })
		if least := n.jittered(d, func(int64) int64 { return 0 }); least != d || most < least || d < MinInterval {
			t.Fatalf("%+v: next is %d to %d", n, least, most)
		}
	})
}

func TestCadenceOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := anyCadence().Draw(t, "a"), anyCadence().Draw(t, "b")
		if (a.compare(b) == 0) != (a == b) || a.compare(b) != -b.compare(a) {
			t.Fatalf("compare(%+v, %+v) = %d and %d", a, b, a.compare(b), b.compare(a))
		}
		if a.Timeout < b.Timeout && a.compare(b) != -1 {
			t.Fatalf("the stricter of %+v and %+v is not first", a, b)
		}
	})
}

// Source: Envoy's HealthCheckerImplBase::interval.
func TestWhichInterval(t *testing.T) {
	all := Cadence{
		Interval: 1, UnhealthyInterval: 2, UnhealthyEdgeInterval: 3, HealthyEdgeInterval: 4, NoTrafficInterval: 5, NoTrafficHealthyInterval: 6,
	}
	some := Cadence{Interval: 1, UnhealthyInterval: 2, NoTrafficInterval: 5}
	none := Cadence{Interval: 1, NoTrafficHealthyInterval: 6}
	for _, c := range []struct {
		p                phase
		all, some, none_ time.Duration
	}{
		{phase{}, 1, 1, 1},
		{phase{pending: true}, 4, 1, 1},
		{phase{failed: true}, 2, 2, 1},
		{phase{failed: true, pending: true}, 3, 2, 1},
		{phase{idle: true}, 6, 5, 1},
		{phase{idle: true, pending: true}, 5, 5, 1},
		{phase{idle: true, failed: true}, 5, 5, 1},
		{phase{idle: true, failed: true, pending: true}, 5, 5, 1},
	} {
		if a, s, n := all.interval(c.p), some.interval(c.p), none.interval(c.p); a != c.all || s != c.some || n != c.none_ {
			t.Errorf("%+v: %d, %d, %d; want %d, %d, %d", c.p, a, s, n, c.all, c.some, c.none_)
		}
	}
}
