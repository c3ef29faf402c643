package healthsvc

import (
	"cmp"
	"fmt"
	"time"
)

// The limits of a Cadence.
const (
	// MinInterval is the shortest interval between probes. Source: Envoy.
	MinInterval = time.Millisecond
	// MaxInterval bounds every duration of a Cadence.
	MaxInterval = 365 * 24 * time.Hour
	// MaxJitterPercent bounds Cadence.IntervalJitterPercent.
	MaxJitterPercent = 10_000
)

// Cadence says when probes start and how long they may take. There are no
// defaults: Interval and Timeout must be given.
//
// Which interval follows a probe is decided when it has ended, as in Envoy: by
// how it ended, by whether a change of verdict is pending (results speak against
// it, but fewer than the threshold), and by whether the cluster has ever had a
// connection. Those that are 0 are as long as another one; the others are from
// MinInterval to MaxInterval.
type Cadence struct {
	// Interval is from the start of a probe that passes to the start of the next:
	// MinInterval to MaxInterval. Source: HealthCheck.interval.
	Interval time.Duration
	// UnhealthyInterval follows probes that fail. 0: as Interval.
	// Source: HealthCheck.unhealthy_interval.
	UnhealthyInterval time.Duration
	// UnhealthyEdgeInterval follows a failure while the verdict is still good. 0:
	// as UnhealthyInterval. Source: HealthCheck.unhealthy_edge_interval.
	UnhealthyEdgeInterval time.Duration
	// HealthyEdgeInterval follows a pass while the verdict is still bad. 0: as
	// Interval. Source: HealthCheck.healthy_edge_interval.
	HealthyEdgeInterval time.Duration
	// NoTrafficInterval takes the place of all of these while Ask.Traffic is
	// false. 0: nothing does. Source: HealthCheck.no_traffic_interval, whose
	// default of 60 s is for the caller to set.
	NoTrafficInterval time.Duration
	// NoTrafficHealthyInterval takes the place of NoTrafficInterval after a pass
	// with a good verdict. 0: as that; without that it has no effect.
	// Source: HealthCheck.no_traffic_healthy_interval.
	NoTrafficHealthyInterval time.Duration
	// Timeout bounds a probe as a whole, from the connect to the last byte
	// read: more than 0, at most MaxInterval. A probe that outlasts an interval delays
	// the next. Source: HealthCheck.timeout.
	Timeout time.Duration
	// InitialJitter delays the first probe by a random time below it. 0 is
	// none. Source: HealthCheck.initial_jitter.
	InitialJitter time.Duration
	// IntervalJitter lengthens every interval by a random time below it. 0 is
	// none. Source: HealthCheck.interval_jitter.
	IntervalJitter time.Duration
	// IntervalJitterPercent does the same with a share of the interval; both add
	// up. 0 to MaxJitterPercent. Source: HealthCheck.interval_jitter_percent.
	IntervalJitterPercent uint32
}

// Validate reports the first value that is out of range.
func (c Cadence) Validate() error {
	switch {
	case c.Interval < MinInterval || c.Interval > MaxInterval:
		return fmt.Errorf("interval %s: want %s to %s", c.Interval, MinInterval, MaxInterval)
	case c.Timeout <= 0 || c.Timeout > MaxInterval:
		return fmt.Errorf("timeout %s: want more than 0, at most %s", c.Timeout, MaxInterval)
	}
	for _, d := range []struct {
		name string
		d    time.Duration
	}{
		{"unhealthy_interval", c.UnhealthyInterval}, {"unhealthy_edge_interval", c.UnhealthyEdgeInterval},
		{"healthy_edge_interval", c.HealthyEdgeInterval}, {"no_traffic_interval", c.NoTrafficInterval},
		{"no_traffic_healthy_interval", c.NoTrafficHealthyInterval},
	} {
		if d.d != 0 && (d.d < MinInterval || d.d > MaxInterval) {
			return fmt.Errorf("%s %s: want %s to %s", d.name, d.d, MinInterval, MaxInterval)
		}
	}
	switch {
	case c.InitialJitter < 0 || c.InitialJitter > MaxInterval:
		return fmt.Errorf("initial_jitter %s: want 0s to %s", c.InitialJitter, MaxInterval)
	case c.IntervalJitter < 0 || c.IntervalJitter > MaxInterval:
		return fmt.Errorf("interval_jitter %s: want 0s to %s", c.IntervalJitter, MaxInterval)
	case c.IntervalJitterPercent > MaxJitterPercent:
		return fmt.Errorf("interval_jitter_percent %d: want 0 to %d", c.IntervalJitterPercent, MaxJitterPercent)
	}
	return nil
}

// normal returns the valid Cadence next to c, so that a caller that has not
// validated can do no harm.
func (c Cadence) normal() Cadence {
	within := func(d time.Duration) time.Duration { return min(max(d, 0), MaxInterval) }
	c.Interval = max(within(c.Interval), MinInterval)
	if c.Timeout = within(c.Timeout); c.Timeout == 0 {
		c.Timeout = c.Interval
	}
	for _, d := range []*time.Duration{
		&c.UnhealthyInterval, &c.UnhealthyEdgeInterval, &c.HealthyEdgeInterval, &c.NoTrafficInterval, &c.NoTrafficHealthyInterval,
	} {
		if *d = within(*d); *d != 0 {
			*d = max(*d, MinInterval)
		}
	}
	c.InitialJitter, c.IntervalJitter = within(c.InitialJitter), within(c.IntervalJitter)
	c.IntervalJitterPercent = min(c.IntervalJitterPercent, MaxJitterPercent)
	return c
}

// phase is what chooses among the intervals of a Cadence.
type phase struct {
	failed  bool // how the last probe ended
	pending bool // it speaks against the verdict
	idle    bool // the cluster has never had a connection
}

// interval returns the one that follows a probe, without jitter.
func (c Cadence) interval(p phase) time.Duration {
	switch {
	case p.idle && c.NoTrafficInterval > 0 && !p.failed && !p.pending:
		return cmp.Or(c.NoTrafficHealthyInterval, c.NoTrafficInterval)
	case p.idle && c.NoTrafficInterval > 0:
		return c.NoTrafficInterval
	case p.failed && p.pending:
		return cmp.Or(c.UnhealthyEdgeInterval, c.UnhealthyInterval, c.Interval)
	case p.failed:
		return cmp.Or(c.UnhealthyInterval, c.Interval)
	case p.pending:
		return cmp.Or(c.HealthyEdgeInterval, c.Interval)
	}
	return c.Interval
}

// shortest returns the shortest of the intervals.
func (c Cadence) shortest() time.Duration {
	d := c.Interval
	for _, x := range []time.Duration{c.UnhealthyInterval, c.UnhealthyEdgeInterval, c.HealthyEdgeInterval} {
		if x > 0 {
			d = min(d, x)
		}
	}
	return d
}

// compare orders by timeout, the strictest first, and then so that the order is
// total: it decides among cadences whose intervals are equal at present.
func (c Cadence) compare(d Cadence) int {
	return cmp.Or(
		cmp.Compare(c.Timeout, d.Timeout),
		cmp.Compare(c.Interval, d.Interval),
		cmp.Compare(c.IntervalJitter, d.IntervalJitter),
		cmp.Compare(c.IntervalJitterPercent, d.IntervalJitterPercent),
		cmp.Compare(c.InitialJitter, d.InitialJitter),
		cmp.Compare(c.UnhealthyInterval, d.UnhealthyInterval),
		cmp.Compare(c.UnhealthyEdgeInterval, d.UnhealthyEdgeInterval),
		cmp.Compare(c.HealthyEdgeInterval, d.HealthyEdgeInterval),
		cmp.Compare(c.NoTrafficInterval, d.NoTrafficInterval),
		cmp.Compare(c.NoTrafficHealthyInterval, d.NoTrafficHealthyInterval),
	)
}

// jittered draws the time from the start of a probe to the start of the next.
// random(n) is in [0, n).
func (c Cadence) jittered(interval time.Duration, random func(n int64) int64) time.Duration {
	return interval + draw(c.IntervalJitter, random) +
		draw(interval/100*time.Duration(c.IntervalJitterPercent), random)
}

func draw(below time.Duration, random func(n int64) int64) time.Duration {
	if below <= 0 {
		return 0
	}
	return time.Duration(random(int64(below)))
}
