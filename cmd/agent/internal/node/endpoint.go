package node

import (
	"cmp"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"gatehouse.internal/healthsvc"
	"gatehouse.internal/healthsvc/outlier"
	"gatehouse.internal/lbcore"
	"gatehouse.internal/lbcore/adaptive"
)

// State is why an endpoint is ready or not.
type State string

// The states. Of several reasons against an endpoint the first one counts.
const (
	StateWithdrawn  State = "withdrawn"  // discovery doesn't list it any more
	StateDisabled   State = "disabled"   // the operator or discovery's override
	StateWeightless State = "weightless" // weight 0
	StateUnroutable State = "unroutable" // discovery's health status
	StateEjected    State = "ejected"    // outlier detection
	StateFailed     State = "failed"     // a check fails
	StateUnprobed   State = "unprobed"   // a check has not ended yet
	StateReady      State = "ready"
)

// Ejection is the last ejection of an endpoint by outlier detection.
type Ejection struct {
	Since time.Time
	// Until is when it may end, with the interval then or after; of one that is
	// over, when it ended.
	Until time.Time
	// Rule is Envoy's word for what found it, as "consecutive_5xx".
	Rule string
	// Times is how often it has been ejected.
	Times uint32
}

// tracked is what the owner knows of a member beside its View.
type tracked struct {
	*lbcore.Member
	host *outlier.Host // the owner's; one for all where nobody is ejected
	// last is what the owner saw last; nil before.
	last atomic.Pointer[seen]
}

// seen is never written.
type seen struct {
	state State
	since time.Time
	// judged is what outlier detection has come to; nil for nothing, as of most.
	judged *judged
}

type judged struct {
	history outlier.History
	until   time.Time
	rate    float64
}

// judgement returns what outlier detection has come to. s may be nil.
func (s *seen) judgement() judged {
	if s == nil || s.judged == nil {
		return judged{rate: -1}
	}
	return *s.judged
}

// stateOf returns the first reason why m isn't ready.
func stateOf(m *lbcore.Member) State {
	switch e := m.Endpoint(); {
	case m.Ready():
		return StateReady
	case m.Withdrawn():
		return StateWithdrawn
	case m.Disabled():
		return StateDisabled
	case e.Weight == 0:
		return StateWeightless
	case !e.Status.Routable():
		return StateUnroutable
	case m.Ejected():
		return StateEjected
	case m.Health() == lbcore.HealthUnhealthy:
		return StateFailed
	case m.Unwell():
		return StateUnprobed
	}
	return StateReady // since the first look
}

// follow brings the endpoints in line with the View.
func (c *cluster) follow() {
	members := c.view.Members()
	known := make(map[*lbcore.Member]*tracked, len(c.endpoints))
	for _, ep := range c.endpoints {
		known[ep.Member] = ep
	}
	next := make([]*tracked, 0, len(members))
	var past map[lbcore.Addr]*seen
	ejects := c.cfg.OutlierDetection.Enabled
	host := c.outliers.Add(outlier.History{})
	for _, m := range members {
		ep := known[m]
		if ep == nil {
			if past == nil {
				past = c.before.seen()
			}
			if ejects {
				host = c.outliers.Add(outlier.History{})
			}
			ep = &tracked{Member: m, host: host}
			c.loads.join(m)
			if s := past[m.Addr()]; s != nil {
				ep.last.Store(s)
				if ejects {
					c.outliers.Inherit(ep.host, s.judgement().history)
				}
			}
		}
		if ejects {
			c.outliers.List(ep.host, !m.Withdrawn())
		}
		next = append(next, ep)
	}
	c.endpoints, c.moved = next, false
}

// seen returns what the owner of c, which may be nil, saw last of each endpoint.
// It may be called from anywhere.
func (c *cluster) seen() map[lbcore.Addr]*seen {
	past := make(map[lbcore.Addr]*seen)
	if c != nil {
		for _, ep := range c.shown.Load().endpoints {
			if s := ep.last.Load(); s != nil {
				past[ep.Addr()] = s
			}
		}
	}
	return past
}

// note has dumps show what has changed of the endpoints.
func (c *cluster) note() {
	at := time.Now()
	var before *seen // as the endpoint before has: most change together, and are alike
	for _, ep := range c.endpoints {
		state, now := stateOf(ep.Member), judged{history: ep.host.History, rate: ep.host.Rate}
		switch h := now.history; {
		case h.Ejected:
			now.until = c.outliers.Until(ep.host)
		case h.Times > 0:
			now.until = h.Returned
		}
		last := ep.last.Load()
		same, was := last != nil && last.state == state, last.judgement()
		if same && was == now {
			continue
		}
		next := seen{state: state, since: at}
		if same {
			next.since = last.since
		}
		switch {
		case last != nil && was == now:
			next.judged = last.judged
		case now != (judged{rate: -1}):
			next.judged = new(now)
		}
		if before == nil || *before != next {
			before = new(next) // only what has changed is allocated
		}
		ep.last.Store(before)
	}
}

// status describes the endpoint, which is probed by refs. With absent it stays only
// because it passes. It may be called from anywhere.
func (ep *tracked) status(refs []*healthsvc.Ref, absent bool) EndpointStatus {
	m := ep.Member
	e := EndpointStatus{
		Endpoint: *m.Endpoint(), State: stateOf(m), Health: m.Health(),
		Withdrawn: m.Withdrawn(), Disabled: m.Disabled(), Ejected: m.Ejected(), Absent: absent,
		Degraded: m.Degraded(), SlowStart: m.SlowStart(), SuccessRate: -1,
		AdaptiveWeight: adaptive.Weight(m),
	}
	e.Ready = e.State == StateReady
	if s := ep.last.Load(); s != nil {
		if s.state == e.State {
			e.Since = s.since
		}
		j := s.judgement()
		e.SuccessRate = j.rate
		if h := j.history; h.Times > 0 {
			e.Ejection = &Ejection{Since: h.Since, Until: j.until, Rule: h.Rule.String(), Times: h.Times}
		}
	}
	e.HostOpen, _ = m.Host()
	e.Totals.add(m)
	for _, ref := range refs {
		e.Checks = append(e.Checks, ref.Status())
	}
	e.Why = e.why(m.Unwell())
	return e
}

// why says all that keeps the endpoint from being ready; of one that is, why others
// are preferred, and what may make it leave.
func (e *EndpointStatus) why(unwell bool) string {
	var all []string
	say := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)) }
	// checks says something of each check with that verdict, or, if none is known
	// any more, what stands for it.
	checks := func(h lbcore.Health, of func(healthsvc.Status), otherwise string) {
		n := len(all)
		for _, c := range e.Checks {
			if c.State == h {
				of(c)
			}
		}
		if len(all) == n {
			say("%s", otherwise)
		}
	}
	if e.State == StateReady {
		switch {
		case e.Status == lbcore.StatusDegraded:
			say("degraded, discovery says")
		case e.Degraded:
			checks(lbcore.HealthDegraded, func(c healthsvc.Status) { say("degraded, its %s check says", c.Kind) }, "degraded")
		}
		if e.Absent {
			say("discovery does not list it any more, but it passes its checks")
		}
		return strings.Join(all, "; ")
	}
	if e.Withdrawn {
		say("discovery does not list it any more")
	}
	if e.Disabled {
		say("disabled by the operator or by discovery")
	}
	if e.Weight == 0 {
		say("its weight is 0")
	}
	if !e.Status.Routable() {
		say("discovery says %s", e.Status)
	}
	switch j := e.Ejection; {
	case e.Ejected && j != nil:
		say("ejected by %s since %s until %s, time %d", j.Rule, j.Since.UTC().Format(time.RFC3339), j.Until.UTC().Format(time.RFC3339), j.Times)
	case e.Ejected:
		say("ejected")
	}
	switch {
	case e.Health == lbcore.HealthUnhealthy:
		checks(lbcore.HealthUnhealthy, func(c healthsvc.Status) { say("its %s check fails: %s", c.Kind, c.LastError) }, "its check failed")
	case unwell:
		checks(lbcore.HealthUnknown, func(c healthsvc.Status) {
			if why := cmp.Or(c.LastLocal, c.LastError); why != "" { // as for want of descriptors
				say("its %s check has no verdict yet: %s", c.Kind, why)
			} else {
				say("its %s check has no verdict yet", c.Kind)
			}
		}, "not probed yet")
	}
	return strings.Join(all, "; ")
}
