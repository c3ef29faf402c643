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
		"interval 0s":                   func(c *Cadence) { c.Interval = 0 },
		"interval 999.999µs":            func(c *Cadence) { c.Interval = time.Millisecond - 1 },
		"interval 8760h0m0.000000001s":  func(c *Cadence) { c.Interval = MaxInterval + 1 },
		"timeout 0s":                    func(c *Cadence) { c.Timeout = 0 },
		"above the interval":            func(c *Cadence) { c.Timeout = time.Second + 1 },
		"initial_jitter -1ns":           func(c *Cadence) { c.InitialJitter = -1 },
		"interval_jitter -1ns":          func(c *Cadence) { c.IntervalJitter = -1 },
		"interval_jitter_percent 10001": func(c *Cadence) { c.IntervalJitterPercent = 10_001 },
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
		return Cadence{d("interval"), d("timeout"), d("initial"), d("jitter"), rapid.Uint32().Draw(t, "percent")}
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
		most := n.next(func(n int64) int64 { return n - 1 })
		if least := n.next(func(int64) int64 { return 0 }); least != n.Interval || most < least {
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
		if a.Interval < b.Interval && a.compare(b) != -1 {
			t.Fatalf("the faster of %+v and %+v is not first", a, b)
		}
	})
}
