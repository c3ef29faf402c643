package node

import (
	"cmp"

	"gatehouse.internal/cmd/agent/internal/config"
	"gatehouse.internal/healthsvc"
	"gatehouse.internal/lbcore"
)

// checks binds the endpoints of one cluster to the node's health service. The
// cluster's owner is the only one to use it.
type checks struct {
	svc     *healthsvc.Service
	cluster string
	cfg     []config.HealthCheck
	wake    func()
	refs    map[lbcore.Addr][]*healthsvc.Ref // slices are never written
}

// bind has e probed by every check of the cluster and returns what it must
// pass. A former binding of the address ends only afterwards, so that what is
// known of a check that stays the same is kept.
func (c *checks) bind(e *lbcore.Endpoint) []*lbcore.ProbeState {
	var refs []*healthsvc.Ref
	var states []*lbcore.ProbeState
	if !e.Check.Disabled {
		for i := range c.cfg {
			hc := &c.cfg[i]
			key, probe := c.probe(hc, e)
			ref := c.svc.Acquire(key, probe, healthsvc.Ask{
				View: c.cluster,
				Cadence: healthsvc.Cadence{
					Interval: hc.Interval, Timeout: hc.Timeout, InitialJitter: hc.InitialJitter,
					IntervalJitter: hc.IntervalJitter, IntervalJitterPercent: hc.IntervalJitterPercent,
				},
				Thresholds: healthsvc.Thresholds{
					Healthy: hc.HealthyThreshold, Unhealthy: hc.UnhealthyThreshold, InitialHealthy: c.initialHealthy(),
				},
				OnChange: c.wake,
			})
			refs = append(refs, ref)
			states = append(states, ref.State())
		}
	}
	c.drop(e.Addr)
	if refs != nil {
		c.refs[e.Addr] = refs
	}
	return states
}

// probe returns what hc sends to e, and the key by which it is shared.
func (c *checks) probe(hc *config.HealthCheck, e *lbcore.Endpoint) (healthsvc.Key, healthsvc.Probe) {
	addr := e.Addr
	if e.Check.Addr.IsValid() {
		addr = e.Check.Addr
	}
	if hc.Kind == config.CheckHTTP {
		p := &healthsvc.HTTP{
			Method: hc.Method, Path: hc.Path,
			// Source: HttpHealthCheck.host.
			Host:     cmp.Or(e.Check.Hostname, hc.Host, c.cluster),
			Expected: ranges(hc.ExpectedStatuses), Retriable: ranges(hc.RetriableStatuses),
		}
		return healthsvc.Key{Addr: addr, Spec: p.Spec()}, p
	}
	p := &healthsvc.TCP{Send: []byte(hc.Send)}
	for _, r := range hc.Receive {
		p.Receive = append(p.Receive, []byte(r))
	}
	return healthsvc.Key{Addr: addr, Spec: p.Spec()}, p
}

func ranges(in []config.StatusRange) (out []healthsvc.StatusRange) {
	for _, r := range in {
		out = append(out, healthsvc.StatusRange(r))
	}
	return out
}

// drop ends the probing of a, as far as this cluster wants it.
func (c *checks) drop(a lbcore.Addr) {
	for _, r := range c.refs[a] {
		r.Release()
	}
	delete(c.refs, a)
}

// initialHealthy reports whether endpoints take connections before their
// first probe: only if every check says so.
func (c *checks) initialHealthy() bool {
	for _, hc := range c.cfg {
		if hc.Initial != config.InitialHealthy {
			return false
		}
	}
	return true
}
