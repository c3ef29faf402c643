package node

import (
	"cmp"
	"net/netip"
	"sync/atomic"

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
	tls     []*sharedTLS // parallel to cfg; nil where there is none
	traffic *atomic.Bool // whether the cluster ever had a connection
	busy    bool         // it had, and review knows
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
			probe := hc.Probe(cmp.Or(e.Check.Hostname, hc.HostName(), c.cluster), c.secure(i, e))
			key := healthsvc.Key{Addr: probed(hc, e), Spec: probe.Spec()}
			if !hc.Share {
				key.Owner = c.cluster
			}
			ref := c.svc.Acquire(key, probe, healthsvc.Ask{
				View: c.cluster, Cadence: hc.Cadence(),
				Thresholds: healthsvc.Thresholds{
					Healthy: hc.HealthyThreshold, Unhealthy: hc.UnhealthyThreshold, InitialHealthy: c.initialHealthy(),
				},
				Traffic: c.traffic, AlwaysLogFailures: hc.AlwaysLogFailures, OnChange: c.wake,
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

// probed returns where hc finds e. What the endpoint says goes first.
// Source: Endpoint.HealthCheckConfig, HealthCheck.alt_port.
func probed(hc *config.HealthCheck, e *lbcore.Endpoint) lbcore.Addr {
	switch at := e.Addr.AddrPort(); {
	case e.Check.Addr.IsValid():
		return e.Check.Addr
	case hc.AltPort != 0 && at.IsValid():
		return lbcore.IPAddr(netip.AddrPortFrom(at.Addr(), uint16(hc.AltPort)))
	}
	return e.Addr
}

// secure returns the TLS of the check i towards e.
func (c *checks) secure(i int, e *lbcore.Endpoint) *healthsvc.TLS {
	s := c.tls[i]
	if s == nil {
		return nil
	}
	cfg := &c.cfg[i].TLS
	return &healthsvc.TLS{
		Client: s.client, Identity: s.identity, ALPN: cfg.ALPN,
		ServerName: cmp.Or(cfg.ServerName, e.Check.Hostname, e.Hostname),
	}
}

// review has probes come sooner once the cluster has had its first connection.
func (c *checks) review() {
	if c.busy || !c.traffic.Load() {
		return
	}
	c.busy = true
	for _, refs := range c.refs {
		for _, r := range refs {
			r.Review()
		}
	}
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
