package forwarder

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"gatehouse.internal/forwarder/filterchain"
	"gatehouse.internal/forwarder/rbac"
)

var errNoChain = errors.New("no filter chain matches, and there is no default one")

// FilterChain is what becomes of the connections that it matches. It is not written
// any more once it was given to NewChains.
// Source: envoy.config.listener.v3.FilterChain.
type FilterChain struct {
	Name  string // in records and errors; may be empty
	Match filterchain.Match
	// Settings are in force from when the chain was chosen: HashOn, timeouts,
	// durations, MaxConnectAttempts, TLS and its limits. The others are those of
	// the Listener.
	Settings Settings
	// Upstream says where the connections go. It may be nil with Refuse.
	Upstream Upstream
	// RBAC must all allow a connection, once its TLS handshake is over if it has
	// one, and before an endpoint is dialled. Who is refused is reset, under
	// FlagUAEX.
	RBAC []*rbac.Filter
	// Refuse, if set, refuses all connections of the chain, under its flag.
	Refuse *Refusal
	// Open, if set, counts the connections of the chain, those that it refuses
	// included.
	Open *Count
	// Leaving, if set, says with SetAll that the chain's connections are to end, once
	// [Listener.Review] was called.
	Leaving *Ends
	// OnDone, if set, is told of each connection of the chain after Config.OnDone
	// was, under the same conditions.
	OnDone func(*Record)
}

// Chains are the filter chains of a Listener. NewChains makes them.
type Chains struct {
	matcher     *filterchain.Matcher
	list        []*FilterChain
	rest        *FilterChain // nil: there is no default one
	destination bool         // what the client has connected to has a say

	// The settings in force for the connections of each, once a Listener has them.
	settings     []*Settings
	restSettings *Settings
}

// NewChains makes Chains of a list and of a default one, which may be nil and whose
// Match does not count. An error names the chain: see filterchain.New.
func NewChains(list []*FilterChain, rest *FilterChain) (*Chains, error) {
	var rules []filterchain.Rule
	cs := new(Chains)
	for i, c := range list {
		if err := c.validate(); err != nil {
			return nil, fmt.Errorf("filter chain %d %q: %w", i, c.Name, err)
		}
		rules = append(rules, filterchain.Rule{Name: c.Name, Match: c.Match})
		cs.list = append(cs.list, c)
		cs.destination = cs.destination || len(c.RBAC) > 0
	}
	if rest != nil {
		if err := rest.validate(); err != nil {
			return nil, fmt.Errorf("default filter chain %q: %w", rest.Name, err)
		}
		cs.rest = rest
		cs.destination = cs.destination || len(rest.RBAC) > 0
	}
	var err error
	if cs.matcher, err = filterchain.New(rules); err != nil {
		return nil, err
	}
	cs.destination = cs.destination || cs.matcher.Destination()
	return cs, nil
}

func (c *FilterChain) validate() error {
	if c.Refuse == nil && c.Upstream == nil {
		return errors.New("no upstream")
	}
	s := c.Settings
	s.OriginalDst, s.Chains, s.Socket = false, nil, Socket{}
	return s.validate()
}

// bind returns a copy whose chains have what s says of all.
func (cs *Chains) bind(s *Settings) *Chains {
	next := *cs
	next.settings, next.restSettings = nil, nil
	bound := func(c *FilterChain) *Settings {
		own := *c.Settings.normal()
		own.MaxConnections, own.Keepalive, own.Socket, own.OriginalDst = s.MaxConnections, s.Keepalive, s.Socket, s.OriginalDst
		own.Proxy, own.HelloTimeout, own.MaxHellos, own.Inspect, own.CutLateHello = s.Proxy, s.HelloTimeout, s.MaxHellos, s.Inspect, s.CutLateHello
		own.of = c
		return &own
	}
	for _, c := range cs.list {
		next.settings = append(next.settings, bound(c))
	}
	if cs.rest != nil {
		next.restSettings = bound(cs.rest)
	}
	return &next
}

// chain returns the flow's filter chain, or nil.
func (f *flow) chain() *FilterChain { return f.settings.of }

// unknownLocal reports whether what the client has connected to has to be asked of
// the socket before assign.
func (f *flow) unknownLocal() bool {
	cs := f.settings.Chains
	return cs != nil && cs.destination && !f.dest().IsValid()
}

// assign finds the filter chain of the flow, if the listener has chains, or says how
// the flow ends. local is what the client has connected to, if unknownLocal says so;
// now is the clock of the relay.
func (f *flow) assign(local netip.AddrPort, now time.Duration) (Flag, error) {
	cs := f.settings.Chains
	if cs == nil {
		return FlagNone, nil
	}
	c := &f.sel.conn
	c.Destination, c.Source, c.Direct = local, f.client, f.direct()
	if to := f.dest(); to.IsValid() {
		c.Destination = to
	}
	c.Destination = netip.AddrPortFrom(c.Destination.Addr().WithZone(""), c.Destination.Port())
	c.Source = netip.AddrPortFrom(c.Source.Addr().WithZone(""), c.Source.Port())
	found := cs.restSettings
	if i := cs.matcher.Find(c); i >= 0 {
		found = cs.settings[i]
	}
	if found == nil {
		f.refused(errNoChain)
		return FlagNR, errNoChain
	}
	f.settings = found
	found.of.Open.take(0) // until finish
	f.limitAge(now - time.Since(f.start))
	if r := found.of.Refuse; r != nil {
		f.refused(r)
		return r.Flag, r
	}
	return FlagNone, nil
}

// direct returns the peer, which is not the client where that came in a PROXY
// header.
func (f *flow) direct() netip.Addr {
	if f.rare != nil && f.rare.direct.IsValid() {
		return f.rare.direct
	}
	return f.client.Addr().WithZone("")
}

// refused tells of a connection that no chain takes.
func (f *flow) refused(why error) {
	if held, ok := f.l.chainLog.allow(); ok {
		f.l.log.Warn("a connection is refused", "client", f.client, "err", why, "not_logged", held)
	}
}

// identify tells who the client is by its certificate, for RBAC.
func (f *flow) identify(cs *tls.ConnectionState) {
	if c := f.chain(); c == nil || len(c.RBAC) == 0 {
		return
	}
	p := &f.sel.peer
	p.TLS, p.ServerName = true, strings.ToLower(cs.ServerName)
	if len(cs.PeerCertificates) == 0 {
		return
	}
	cert := cs.PeerCertificates[0]
	for _, u := range cert.URIs {
		p.URIs = append(p.URIs, u.String())
	}
	p.DNS, p.Subject = cert.DNSNames, cert.Subject.String()
}

// allowed asks the RBAC filters of the flow's chain, and returns why one is against
// it, or nil.
func (f *flow) allowed() error {
	if c := f.chain(); c == nil || len(c.RBAC) == 0 {
		return nil
	}
	p, c := &f.sel.peer, &f.l.counters
	p.Destination, p.Source, p.Direct = f.sel.conn.Destination, f.sel.conn.Source.Addr(), f.sel.conn.Direct
	if !p.TLS {
		p.ServerName = f.sel.conn.ServerName
	}
	for _, filter := range f.chain().RBAC {
		v := filter.Check(p)
		if v.Shadowed {
			c.rbac[rbacIndex(true, v.ShadowDenied != nil)].Add(1)
		}
		if v.Enforced {
			c.rbac[rbacIndex(false, v.Denied != nil)].Add(1)
		}
		if v.Denied != nil {
			f.refused(v.Denied)
			return v.Denied
		}
	}
	return nil
}

// rbacIndex returns the place of a verdict in counters.rbac.
func rbacIndex(shadow, denied bool) int {
	i := 0
	if shadow {
		i = 2
	}
	if denied {
		i++
	}
	return i
}
