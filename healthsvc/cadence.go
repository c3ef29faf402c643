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
type Cadence struct {
	// Interval is from the start of a probe to the start of the next:
	// MinInterval to MaxInterval. Source: HealthCheck.interval.
	Interval time.Duration
	// Timeout bounds a probe as a whole, from the connect to the last byte
	// read: more than 0 and at most Interval. Source: HealthCheck.timeout.
	Timeout time.Duration
	// InitialJitter delays the first probe by a random time below it. 0 is
	// none. Source: HealthCheck.initial_jitter.
	InitialJitter time.Duration
	// IntervalJitter lengthens every interval by a random time below it. 0 is
	// none. Source: HealthCheck.interval_jitter.
	IntervalJitter time.Duration
	// IntervalJitterPercent does the same with a share of Interval; both add
	// up. 0 to MaxJitterPercent. Source: HealthCheck.interval_jitter_percent.
	IntervalJitterPercent uint32
}

// Validate reports the first value that is out of range.
func (c Cadence) Validate() error {
	switch {
	case c.Interval < MinInterval || c.Interval > MaxInterval:
		return fmt.Errorf("interval %s: want %s to %s", c.Interval, MinInterval, MaxInterval)
	case c.Timeout <= 0:
		return fmt.Errorf("timeout %s: must be more than 0", c.Timeout)
	case c.Timeout > c.Interval:
		return fmt.Errorf("timeout %s: must not be above the interval of %s", c.Timeout, c.Interval)
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
	if c.Timeout <= 0 || c.Timeout > c.Interval {
		c.Timeout = c.Interval
	}
	c.InitialJitter, c.IntervalJitter = within(c.InitialJitter), within(c.IntervalJitter)
	c.IntervalJitterPercent = min(c.IntervalJitterPercent, MaxJitterPercent)
	return c
}

// compare orders the fastest first. Of equal intervals the strictest timeout
// goes first; the rest only makes the order total.
func (c Cadence) compare(d Cadence) int {
	return cmp.Or(
		cmp.Compare(c.Interval, d.Interval),
		cmp.Compare(c.Timeout, d.Timeout),
		cmp.Compare(c.IntervalJitter, d.IntervalJitter),
		cmp.Compare(c.IntervalJitterPercent, d.IntervalJitterPercent),
		cmp.Compare(c.InitialJitter, d.InitialJitter),
	)
}

// next draws the time from the start of a probe to the start of the next.
// random(n) is in [0, n).
func (c Cadence) next(random func(n int64) int64) time.Duration {
	return c.Interval + draw(c.IntervalJitter, random) +
		draw(c.Interval/100*time.Duration(c.IntervalJitterPercent), random)
}

func draw(below time.Duration, random func(n int64) int64) time.Duration {
	if below <= 0 {
		return 0
	}
	return time.Duration(random(int64(below)))
}
