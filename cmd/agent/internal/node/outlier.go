package node

import (
	"time"

	"gatehouse.internal/healthsvc/outlier"
	"gatehouse.internal/lbcore"
)

// recheckEvery is how often a cluster looks whether a check of an ejected
// endpoint has passed.
const recheckEvery = time.Second

// streaks returns what members are to note for outlier detection, nil without
// it.
func (c *cluster) streaks() *lbcore.Streaks {
	if !c.cfg.OutlierDetection.Enabled {
		return nil
	}
	s := &lbcore.Streaks{OnTrip: func() { poke(c.wake) }}
	for i, r := range c.consecutive() {
		s.Lengths[i] = r.After
	}
	return s
}

func (c *cluster) consecutive() []outlier.Consecutive {
	cfg := outlier.Config(c.cfg.OutlierDetection)
	return cfg.Consecutive()
}

// judge is called each interval of outlier detection.
func (c *cluster) judge() {
	hosts := make([]*outlier.Host, len(c.endpoints))
	for i, ep := range c.endpoints {
		ep.host.Successes, ep.host.Failures, _, _ = ep.Counters()
		hosts[i] = ep.host
	}
	c.outliers.Sweep(time.Now(), hosts)
}

// eject puts in force what outlier detection says, after it has been told what
// endpoints have noted. It reports whether a check that passes may end an
// ejection.
func (c *cluster) eject() (again bool) {
	if !c.cfg.OutlierDetection.Enabled {
		return false
	}
	now := time.Now()
	rules := c.consecutive()
	for _, ep := range c.endpoints {
		for i, n := range ep.TakeTrips() {
			for ; n > 0; n-- {
				c.outliers.Trip(ep.host, rules[i].Rule, now)
			}
		}
		if ep.host.Ejected && c.cfg.OutlierDetection.SuccessfulActiveHealthCheckUnejectHost && len(c.checks.refs[ep.Addr()]) > 0 {
			if !c.passed(ep) || !c.outliers.Passed(ep.host, now) {
				again = true
			}
		}
		switch h := ep.host; {
		case h.Ejected == ep.Ejected():
		case h.Ejected:
			ep.SetEjected(true)
			c.log.Warn("endpoint ejected", "endpoint", ep.Addr().String(), "rule", h.Rule.String(), "times", h.Times, "until", c.outliers.Until(h))
		default:
			ep.SetEjected(false)
			c.log.Info("ejected endpoint is back", "endpoint", ep.Addr().String(), "after", now.Sub(h.Since))
		}
	}
	s := c.outliers.Stats()
	if was := c.judged.Load(); *was != s {
		if s.Overflow > 0 && was.Overflow == 0 {
			c.log.Warn("an outlier is not ejected: max_ejection_percent allows no more; this is logged once",
				"max_ejection_percent", c.cfg.OutlierDetection.MaxEjectionPercent, "endpoints", len(c.endpoints), "ejected", s.Active)
		}
		c.judged.Store(&s)
	}
	return again
}

// passed reports whether a check of ep, which is ejected, has passed since, and
// none fails.
func (c *cluster) passed(ep *tracked) bool {
	if h := ep.Health(); h != lbcore.HealthHealthy && h != lbcore.HealthDegraded {
		return false
	}
	for _, ref := range c.checks.refs[ep.Addr()] {
		if st := ref.Status(); st.Passing && st.LastProbe.After(ep.host.Since) {
			return true
		}
	}
	return false
}

// succeed takes over the ejections that the cluster before knows, once this one
// serves in its place.
func (c *cluster) succeed() {
	if c.before == nil || c.table.Load().clusters[c.cfg.Name] != c {
		return
	}
	if c.cfg.OutlierDetection.Enabled {
		past := c.before.seen()
		for _, ep := range c.endpoints {
			if s := past[ep.Addr()]; s != nil {
				c.outliers.Inherit(ep.host, s.judgement().history)
			}
		}
	}
	c.before = nil
}

// panicking names a priority, and a distance in it, whose endpoints all take
// connections.
type panicking struct{ priority, distance uint8 }

// notePanic logs which priorities begin and end to panic, by what picks go by. A
// cluster that isn't warm has not been probed: that would be told of each.
func (c *cluster) notePanic() {
	if c.cfg.PanicThreshold == 0 || !c.warm.Load() {
		return
	}
	now := make(map[panicking]bool)
	for _, s := range c.group.Slots() {
		for _, l := range s.Loads() {
			if l.Panic {
				now[panicking{l.Priority, l.Distance}] = true
			}
		}
	}
	for p := range now {
		if !c.panics[p] {
			c.log.Warn("panic: too few endpoints are available, connections go to all of them", "priority", p.priority, "distance", p.distance, "panic_threshold", c.cfg.PanicThreshold)
		}
	}
	for p := range c.panics {
		if !now[p] {
			c.log.Info("panic is over", "priority", p.priority, "distance", p.distance)
		}
	}
	c.panics = now
}
