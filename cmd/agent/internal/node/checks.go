package node

import (
	"cmp"
	"maps"
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
	via     healthsvc.Transport // but for TLS: whence connections come
	tls     []*sharedTLS        // parallel to cfg; nil where there is none
	// transport, if not nil, secures probes as it does connections.
	transport *transport
	traffic   *atomic.Bool // whether the cluster ever had a connection
	busy      bool         // it had, and review knows
	wake      func()
	refs      map[lbcore.Addr][]*healthsvc.Ref // slices are never written, and the map neither once it is given
	given     bool
	asks      []*healthsvc.Ask // parallel to cfg
	probes    map[names]*probe // those in use, and some more
}

// names are what the probe of a check depends on besides its settings.
type names struct {
	check        int
	host, server string
	socket       *upstreamSocket // of transport; nil without
}

// probe is what thousands of endpoints may share, with its text.
type probe struct {
	config.Probe
	spec string
}

// maxProbes bounds checks.probes: endpoints may come and go under ever new names.
const maxProbes = 10_000

// asking returns what is asked for by the check i.
func (c *checks) asking(i int) *healthsvc.Ask {
	if c.asks == nil {
		c.asks = make([]*healthsvc.Ask, len(c.cfg))
	}
	if c.asks[i] == nil {
		hc := &c.cfg[i]
		c.asks[i] = &healthsvc.Ask{
			View: c.cluster, Cadence: hc.Cadence(),
			Thresholds: healthsvc.Thresholds{
				Healthy: hc.HealthyThreshold, Unhealthy: hc.UnhealthyThreshold, InitialHealthy: c.initialHealthy(),
			},
			Traffic: c.traffic, AlwaysLogFailures: hc.AlwaysLogFailures, OnChange: c.wake,
		}
	}
	return c.asks[i]
}

// probe returns what the check i sends to e.
func (c *checks) probe(i int, e *lbcore.Endpoint) *probe {
	hc := &c.cfg[i]
	n := names{check: i}
	if hc.Kind != config.CheckTCP {
		n.host = cmp.Or(e.Check.Hostname, hc.HostName(), c.cluster)
	}
	via := c.via
	if s := c.tls[i]; s != nil {
		n.server = cmp.Or(hc.TLS.ServerName, e.Check.Hostname, e.Hostname)
		via.TLS = &healthsvc.TLS{Client: s.get, Identity: s.identity, ALPN: hc.TLS.ALPN, ServerName: n.server}
	} else if c.transport != nil {
		own := e.TransportMatch
		if hc.TransportMatch != (lbcore.Labels{}) {
			own = hc.TransportMatch
		}
		if s := c.transport.find(own, e.TransportMatch.Behind()); !s.plain() {
			n.socket = s
			via.TLS = &healthsvc.TLS{Client: s.client, Identity: "refused", ALPN: s.alpn}
			if hc.TLS.ALPN != nil {
				via.TLS.ALPN = hc.TLS.ALPN
			}
			if s.shared != nil {
				n.server = s.name(e)
				via.TLS.Identity, via.TLS.ServerName = s.shared.identity, n.server
			}
		}
	}
	p := c.probes[n]
	if p == nil {
		p = &probe{Probe: hc.Probe(n.host, via)}
		p.spec = p.Spec()
		if c.probes == nil || len(c.probes) >= maxProbes {
			c.probes = make(map[names]*probe)
		}
		c.probes[n] = p
	}
	return p
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
			p := c.probe(i, e)
			key := healthsvc.Key{Addr: probed(hc, e), Spec: p.spec}
			if !hc.Share {
				key.Owner = c.cluster
			}
			ref := c.svc.Acquire(key, p.Probe, c.asking(i))
			refs = append(refs, ref)
			states = append(states, ref.State())
		}
	}
	c.drop(e.Addr)
	if refs != nil {
		c.own()
		c.refs[e.Addr] = refs
	}
	return states
}

// give returns what probes each endpoint, for others to read.
func (c *checks) give() map[lbcore.Addr][]*healthsvc.Ref {
	c.given = true
	return c.refs
}

// own makes refs one that nobody reads but the owner.
func (c *checks) own() {
	if c.given {
		c.refs, c.given = maps.Clone(c.refs), false
	}
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
	refs, probed := c.refs[a]
	if !probed {
		return
	}
	for _, r := range refs {
		r.Release()
	}
	c.own()
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
