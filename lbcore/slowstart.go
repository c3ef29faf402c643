package lbcore

import (
	"math"
	"time"
)

// Warm brings the weights of members that start slowly up to date, as
// ViewConfig.SlowStart says. The owner calls it after each wake, with the time
// of then, and every 100 ms while again is true. It takes the time of a look at
// each member, and none where slow start is off.
//
// A member's time begins when Warm first sees it healthy: listed, by discovery's
// status and by its checks. What the operator and outlier detection say has no
// say in that, as in Envoy. Shares are relative to the largest among the members
// that are ready, so that a cluster which starts as a whole is not slowed. A
// member that is not healthy is given the least share beforehand, so that no
// herd comes before the next Warm.
//
// In a pick, a policy's candidate that has a share f of its weight is passed
// over with probability 1-f. So its part of the load is in proportion to f
// times its weight, as long as one of some 32 candidates is taken.
func (v *View) Warm(now time.Time) (again bool) {
	s := v.cfg.SlowStart
	if s.Window <= 0 {
		return false
	}
	if v.warmed.IsZero() {
		v.warmed = now
	}
	t := now.Sub(v.warmed) + 1
	largest := 0.0
	for m := range v.all() {
		switch {
		case m.word.Load()&(bitWithdrawn|bitUnroutable|bitUnwell) != 0:
			m.since = 0
			continue
		case m.since == 0:
			m.since = t
		}
		f := s.share(t - m.since)
		again = again || f < 1
		if m.Ready() {
			largest = max(largest, f)
		}
	}
	if largest == 0 {
		largest = 1
	}
	for m := range v.all() {
		f := s.share(0)
		if m.since != 0 {
			f = s.share(t - m.since)
		}
		m.setSlow(f / largest)
	}
	return again
}

func (m *Member) setSlow(share float64) {
	if share >= 1 {
		m.set(bitSlow, false)
		return
	}
	m.slow.Store(uint32(share * slowWhole))
	m.set(bitSlow, true)
}

// share returns the share of a weight after t, above 0 and at most 1.
func (s SlowStart) share(t time.Duration) float64 {
	t = max(t, time.Millisecond) // as Envoy
	if t >= s.Window {
		return 1
	}
	f := float64(t) / float64(s.Window)
	if s.Aggression > 0 {
		f = math.Pow(f, 1/s.Aggression)
	}
	return min(max(f, s.MinWeight, 1.0/slowWhole), 1)
}
