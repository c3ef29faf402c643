package outlier

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// at is a time of a test.
func at(seconds float64) time.Time {
	return time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC).Add(time.Duration(seconds * float64(time.Second)))
}

// cluster is a Detector with listed hosts and without chance.
type cluster struct {
	*Detector
	hosts []*Host
}

func clusterOf(n int, change func(*Config)) *cluster {
	cfg := Default()
	if change != nil {
		change(&cfg)
	}
	c := &cluster{Detector: New(cfg, func(uint64) uint64 { return 0 })}
	for range n {
		h := c.Add(History{})
		c.List(h, true)
		c.hosts = append(c.hosts, h)
	}
	return c
}

// ejected returns which hosts are, by their numbers.
func (c *cluster) ejected() (out []int) {
	for i, h := range c.hosts {
		if h.Ejected {
			out = append(out, i)
		}
	}
	return out
}

// connects adds to what host i has done in this interval.
func (c *cluster) connects(i int, successes, failures uint64) {
	c.hosts[i].Successes += successes
	c.hosts[i].Failures += failures
}

func (c *cluster) sweep(seconds float64) { c.Sweep(at(seconds), c.hosts) }

// Source: OutlierDetection's comments.
func TestDefaults(t *testing.T) {
	d := Default()
	want := []any{
		10 * time.Second, 30 * time.Second, 300 * time.Second, time.Duration(0), uint32(10), false, true,
		uint32(5), uint32(100), uint32(5), uint32(0), false, uint32(5), uint32(100),
		uint32(5), uint32(100), uint32(1900), uint32(100), uint32(100),
		uint32(85), uint32(5), uint32(50), uint32(0), uint32(0),
	}
	got := []any{
		d.Interval, d.BaseEjectionTime, d.normal().MaxEjectionTime, d.MaxEjectionTimeJitter, d.MaxEjectionPercent, d.AlwaysEjectOneHost, d.SuccessfulActiveHealthCheckUnejectHost,
		d.Consecutive5xx, d.EnforcingConsecutive5xx, d.ConsecutiveGatewayFailure, d.EnforcingConsecutiveGatewayFailure,
		d.SplitExternalLocalOriginErrors, d.ConsecutiveLocalOriginFailure, d.EnforcingConsecutiveLocalOriginFailure,
		d.SuccessRateMinimumHosts, d.SuccessRateRequestVolume, d.SuccessRateStdevFactor, d.EnforcingSuccessRate, d.EnforcingLocalOriginSuccessRate,
		d.FailurePercentageThreshold, d.FailurePercentageMinimumHosts, d.FailurePercentageRequestVolume, d.EnforcingFailurePercentage, d.EnforcingFailurePercentageLocalOrigin,
	}
	if !slices.Equal(got, want) {
		t.Errorf("defaults are %v, want %v", got, want)
	}
	d.BaseEjectionTime = 400 * time.Second
	if got := d.normal().MaxEjectionTime; got != 400*time.Second {
		t.Errorf("with a base of 400s the longest is %s", got)
	}
}

// How many of n hosts that all fail are ejected, as the newest Envoy counts:
// the one in question is included.
//
// bug 30: how the percentage is rounded is decided.
func TestMaxEjectionPercent(t *testing.T) {
	for _, tt := range []struct {
		n      int
		max    uint32
		always bool
		want   int
	}{
		{1, 10, false, 0}, {9, 10, false, 0}, {10, 10, false, 1}, {19, 10, false, 1}, {20, 10, false, 2},
		{1, 10, true, 1}, {9, 10, true, 1}, {10, 10, true, 1}, {20, 10, true, 2}, {5, 0, true, 1}, {5, 0, false, 0},
		{3, 33, false, 0}, {3, 34, false, 1}, {3, 66, false, 1}, {3, 67, false, 2}, {3, 99, false, 2}, {3, 100, false, 3},
		{2, 50, false, 1}, {4, 50, false, 2}, {7, 50, false, 3}, {1, 100, false, 1}, {100, 29, false, 29}, {3, 1000, false, 3},
	} {
		c := clusterOf(tt.n, func(cfg *Config) { cfg.MaxEjectionPercent, cfg.AlwaysEjectOneHost = tt.max, tt.always })
		for _, h := range c.hosts {
			c.Trip(h, Consecutive5xx, at(0))
		}
		s := c.Stats()
		if s.Active != tt.want || len(c.ejected()) != tt.want || s.Detected[Consecutive5xx] != uint64(tt.n) ||
			s.Enforced[Consecutive5xx] != uint64(tt.want) || s.Overflow != uint64(tt.n-tt.want) {
			t.Errorf("%d hosts, %d %%, always one: %v: %v are ejected, want %d; stats %+v", tt.n, tt.max, tt.always, c.ejected(), tt.want, s)
		}
	}
}

// The ejected that leave make room, and those that come take part in the count.
func TestListing(t *testing.T) {
	c := clusterOf(4, func(cfg *Config) { cfg.MaxEjectionPercent = 25 })
	c.Trip(c.hosts[0], Consecutive5xx, at(0))
	c.Trip(c.hosts[1], Consecutive5xx, at(0))
	c.List(c.hosts[0], false)
	c.List(c.hosts[0], false)
	if s := c.Stats(); s.Active != 0 || !c.hosts[0].Ejected {
		t.Errorf("%+v", s)
	}
	c.Trip(c.hosts[1], Consecutive5xx, at(1)) // one of three is too much
	if got := c.ejected(); !slices.Equal(got, []int{0}) {
		t.Errorf("%v are ejected", got)
	}
	c.Trip(c.hosts[0], Consecutive5xx, at(1)) // not listed: ignored
	c.List(c.hosts[0], true)
	if s := c.Stats(); s.Active != 1 || s.Overflow != 2 || s.Detected[Consecutive5xx] != 3 {
		t.Errorf("%+v", s)
	}
	c.Trip(c.hosts[0], Consecutive5xx, at(1)) // ejected already: ignored
	c.List(c.hosts[0], false)
	for range 4 {
		h := c.Add(History{})
		c.List(h, true)
		c.hosts = append(c.hosts, h)
	}
	c.Trip(c.hosts[1], Consecutive5xx, at(2))
	c.sweep(1000) // ends that of the one which isn't listed, too
	if got := c.ejected(); len(got) != 0 {
		t.Errorf("%v are ejected", got)
	}
	if s := c.Stats(); s.Active != 0 {
		t.Errorf("%+v", s)
	}
}

// Published: {50, 100, 100, 100, 100} gives a mean of 90, a deviation of 20 and
// a threshold of 52. Source: Envoy's successRateEjectionThreshold.
func TestSuccessRate(t *testing.T) {
	for _, split := range []bool{false, true} {
		rule := SuccessRate
		if split {
			rule = LocalOriginSuccessRate
		}
		c := clusterOf(5, func(cfg *Config) { cfg.SplitExternalLocalOriginErrors, cfg.MaxEjectionPercent = split, 20 })
		c.connects(0, 50, 50)
		for i := 1; i < 5; i++ {
			c.connects(i, 200, 0)
		}
		c.sweep(10)
		if s := c.Stats(); s.Average != 90 || s.Threshold != 52 || s.Detected[rule] != 1 || s.Enforced[rule] != 1 {
			t.Errorf("%+v", s)
		}
		if got := c.ejected(); !slices.Equal(got, []int{0}) || c.hosts[0].Rule != rule || c.hosts[0].Rate != 50 {
			t.Errorf("%v are ejected, %+v", got, c.hosts[0])
		}
		c.connects(0, 0, 1000) // of one that is ejected: no part
		for i := 1; i < 5; i++ {
			c.connects(i, 100, 0)
		}
		c.sweep(20) // four are too few
		if s := c.Stats(); s.Average != -1 || s.Threshold != -1 || c.hosts[0].Rate != -1 || c.hosts[1].Rate != 100 {
			t.Errorf("%+v, rates %v and %v", s, c.hosts[0].Rate, c.hosts[1].Rate)
		}
	}
}

func TestSuccessRateNeeds(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*Config)
		rates  []uint64 // of 100
		volume uint64
		want   []int
	}{
		{"enough", nil, []uint64{100, 100, 100, 100, 40}, 100, []int{4}},
		{"one connect too few", nil, []uint64{100, 100, 100, 100, 40}, 99, nil},
		{"one host too few", nil, []uint64{100, 100, 100, 40}, 100, nil},
		{"no connect", func(c *Config) { c.SuccessRateRequestVolume = 0 }, []uint64{100, 100, 100, 100, 40}, 0, nil},
		{"above the threshold", nil, []uint64{100, 100, 100, 40, 40}, 100, nil},
		{"a larger factor", func(c *Config) { c.SuccessRateStdevFactor = 2100 }, []uint64{100, 100, 100, 100, 50}, 100, nil},
		{"a factor of 0", func(c *Config) { c.SuccessRateStdevFactor, c.MaxEjectionPercent = 0, 100 }, []uint64{90, 80, 70, 80, 80}, 100, []int{2}},
		{"all alike", func(c *Config) { c.SuccessRateStdevFactor, c.MaxEjectionPercent = 0, 100 }, []uint64{50, 50, 50, 50, 50}, 100, nil},
		{"not enforced", func(c *Config) { c.EnforcingSuccessRate = 0 }, []uint64{100, 100, 100, 100, 40}, 100, nil},
	} {
		c := clusterOf(len(tt.rates), func(c *Config) {
			c.MaxEjectionPercent = 20
			if tt.change != nil {
				tt.change(c)
			}
		})
		for i, r := range tt.rates {
			c.connects(i, r*tt.volume/100, tt.volume-r*tt.volume/100)
		}
		c.sweep(10)
		if got := c.ejected(); !slices.Equal(got, tt.want) {
			t.Errorf("%s: %v are ejected, want %v", tt.name, got, tt.want)
		}
	}
}

// Envoy's rule is >=, gRPC's is >.
func TestFailurePercentage(t *testing.T) {
	for _, split := range []bool{false, true} {
		rule := FailurePercentage
		if split {
			rule = LocalOriginFailurePercentage
		}
		c := clusterOf(5, func(cfg *Config) {
			cfg.SplitExternalLocalOriginErrors, cfg.MaxEjectionPercent = split, 100
			cfg.EnforcingFailurePercentage, cfg.EnforcingFailurePercentageLocalOrigin = 100, 100
		})
		for i, failures := range []uint64{85, 84, 100, 0, 86} {
			c.connects(i, 100-failures, failures)
		}
		c.connects(4, 0, 0)
		c.hosts[3].Successes = 49 // too few to judge
		c.sweep(10)
		if got := c.ejected(); len(got) != 0 {
			t.Errorf("with four to judge %v are ejected", got)
		}
		for i, failures := range []uint64{85, 84, 100, 0, 86} {
			c.connects(i, 100-failures, failures)
		}
		c.sweep(20)
		if got := c.ejected(); !slices.Equal(got, []int{0, 2, 4}) {
			t.Errorf("%v are ejected", got)
		}
		if s := c.Stats(); s.Detected[rule] != 3 || s.Enforced[rule] != 3 || c.hosts[0].Rule != rule {
			t.Errorf("%+v", s)
		}
	}
}

// A rule that isn't enforced counts and does nothing else; by 30 % it ejects 30
// of 100 draws.
func TestEnforcing(t *testing.T) {
	for _, tt := range []struct {
		percent uint32
		want    uint64
	}{{0, 0}, {1, 1}, {30, 30}, {99, 99}, {100, 100}} {
		cfg := Default()
		cfg.EnforcingConsecutive5xx, cfg.MaxEjectionPercent = tt.percent, 100
		draw := uint64(0)
		d := New(cfg, func(n uint64) uint64 {
			if n == 100 {
				draw++
				return draw - 1
			}
			return 0
		})
		for range 100 {
			h := d.Add(History{})
			d.List(h, true)
			d.Trip(h, Consecutive5xx, at(0))
		}
		if s := d.Stats(); s.Detected[Consecutive5xx] != 100 || s.Enforced[Consecutive5xx] != tt.want || s.Active != int(tt.want) || s.Overflow != 0 {
			t.Errorf("%d %%: %+v", tt.percent, s)
		}
	}
}

// Times of ejections in a row: 30 s, 60 s and so on up to 300 s, and less again
// after intervals without. The multiplier goes one beyond the bound, as in Envoy.
func TestEjectionTimes(t *testing.T) {
	c := clusterOf(1, func(cfg *Config) { cfg.MaxEjectionPercent = 100 })
	h, now := c.hosts[0], 0.0
	eject := func(times, multiplier uint32, seconds float64) {
		t.Helper()
		c.Trip(h, Consecutive5xx, at(now))
		if !h.Ejected || h.Times != times || h.Multiplier != multiplier || !c.Until(h).Equal(at(now+seconds)) {
			t.Fatalf("%+v, until %s", h, c.Until(h))
		}
		for end := now + seconds; now < end; {
			now += 10
			c.sweep(now)
			if h.Ejected != (now < end) {
				t.Fatalf("after %v s: ejected is %v", now-end+seconds, h.Ejected)
			}
		}
		if h.Multiplier != multiplier { // no whole interval has passed
			t.Fatalf("%+v", h)
		}
	}
	for i := uint32(1); i <= 13; i++ {
		eject(i, min(i, 11), float64(min(30*i, 300)))
	}
	for i := range 4 {
		now += 10
		c.sweep(now)
		if want := uint32(10 - i); h.Multiplier != want {
			t.Fatalf("%+v, want %d", h, want)
		}
	}
	eject(14, 8, 240)
	for range 20 {
		now += 10
		c.sweep(now)
	}
	eject(15, 1, 30)
}

func TestJitter(t *testing.T) {
	cfg := Default()
	cfg.MaxEjectionPercent, cfg.MaxEjectionTimeJitter = 100, 5*time.Second
	d := New(cfg, func(n uint64) uint64 { return n - 1 })
	h := d.Add(History{})
	d.List(h, true)
	d.Trip(h, Consecutive5xx, at(0))
	if !d.Until(h).Equal(at(35)) {
		t.Errorf("until %s", d.Until(h))
	}
	d.Sweep(at(34.999), []*Host{h})
	if !h.Ejected {
		t.Error("back too soon")
	}
	if d.Sweep(at(35), []*Host{h}); h.Ejected {
		t.Error("not back")
	}
}

// A passing check ends an ejection unless that is switched off; the multiplier
// stays until a whole interval has passed.
//
// bug 32: whether a passing check ends an ejection is configured.
func TestPassed(t *testing.T) {
	c := clusterOf(1, func(cfg *Config) { cfg.MaxEjectionPercent = 100 })
	h := c.hosts[0]
	if c.Passed(h, at(0)) {
		t.Error("one that is not ejected came back")
	}
	c.sweep(0)
	c.Trip(h, Consecutive5xx, at(1))
	if !c.Passed(h, at(2)) || h.Ejected || c.Stats().Active != 0 {
		t.Errorf("%+v", h)
	}
	if c.sweep(10); h.Multiplier != 1 {
		t.Errorf("after 8 s: %+v", h)
	}
	if c.sweep(20); h.Multiplier != 0 {
		t.Errorf("after 18 s: %+v", h)
	}
	c = clusterOf(1, func(cfg *Config) { cfg.MaxEjectionPercent, cfg.SuccessfulActiveHealthCheckUnejectHost = 100, false })
	c.Trip(c.hosts[0], Consecutive5xx, at(1))
	if c.Passed(c.hosts[0], at(2)) || !c.hosts[0].Ejected {
		t.Error("it came back though that is switched off")
	}
}

// What a cluster leaves to the one that replaces it is judged by the new
// settings.
func TestInherit(t *testing.T) {
	old := clusterOf(1, func(cfg *Config) { cfg.MaxEjectionPercent = 100 })
	old.Trip(old.hosts[0], Consecutive5xx, at(0))
	c := clusterOf(2, func(cfg *Config) { cfg.BaseEjectionTime = 10 * time.Second })
	c.Inherit(c.hosts[0], old.hosts[0].History)
	if h := c.hosts[0]; !h.Ejected || c.Stats().Active != 1 || !c.Until(h).Equal(at(10)) {
		t.Errorf("%+v, %+v", h, c.Stats())
	}
	c.Inherit(c.hosts[0], History{})
	if c.hosts[0].Ejected || c.Stats().Active != 0 {
		t.Errorf("%+v", c.Stats())
	}
}

func TestConsecutive(t *testing.T) {
	cfg := Default()
	cfg.ConsecutiveGatewayFailure, cfg.ConsecutiveLocalOriginFailure = 3, 4
	for _, tt := range []struct {
		change func(*Config)
		want   []Consecutive
	}{
		{func(*Config) {}, []Consecutive{{ConsecutiveGatewayFailure, 3}, {Consecutive5xx, 5}}},
		{func(c *Config) { c.SplitExternalLocalOriginErrors = true }, []Consecutive{{ConsecutiveLocalOriginFailure, 4}}},
		{func(c *Config) { c.Enabled = false }, nil},
	} {
		c := cfg
		if tt.change(&c); !slices.Equal(c.Consecutive(), tt.want) {
			t.Errorf("%v, want %v", c.Consecutive(), tt.want)
		}
	}
	for r := range Rules + 1 {
		if r.String() == "" || r < Rules && r.String() == Rules.String() {
			t.Errorf("rule %d is %q", r, r)
		}
	}
}

// Times beyond all reason don't overflow.
func TestHugeTimes(t *testing.T) {
	c := clusterOf(1, func(cfg *Config) {
		cfg.MaxEjectionPercent = 100
		cfg.BaseEjectionTime, cfg.MaxEjectionTime, cfg.MaxEjectionTimeJitter = 1<<63-1, 1<<63-1, 1<<63-1
	})
	for i := range 5 {
		now := at(0).Add(time.Duration(i) * longest)
		c.Trip(c.hosts[0], Consecutive5xx, now)
		if u := c.Until(c.hosts[0]); u.Sub(now) != longest {
			t.Fatal(fmt.Sprint(u, now))
		}
		c.Sweep(now.Add(longest), c.hosts)
	}
}
