package node

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"

	"gatehouse.internal/cmd/agent/internal/config"
	"gatehouse.internal/internal/tlsconf"
	"gatehouse.internal/lbcore"
)

// transport is how connections to the endpoints of a cluster are secured. It is never
// written. Its methods may be called from anywhere, take no lock and wait for nothing.
type transport struct {
	matches []*upstreamSocket
	rest    *upstreamSocket
}

// upstreamSocket is one way to secure them. Without shared and refused it is plain text.
type upstreamSocket struct {
	match   lbcore.Labels
	shared  *sharedTLS
	refused error // why endpoints are not dialled
	// name returns what is sent as SNI, and verified unless something else is.
	name func(*lbcore.Endpoint) string
}

// of returns what is for an endpoint with these labels. Endpoints have few labels, and
// clusters few matches: to look is cheaper than to remember.
func (t *transport) of(l lbcore.Labels) *upstreamSocket {
	if len(t.matches) == 0 {
		return t.rest
	}
	for {
		for _, s := range t.matches {
			if l.Has(s.match) {
				return s
			}
		}
		if l = l.Behind(); l == (lbcore.Labels{}) {
			return t.rest
		}
	}
}

// shared returns the clients of all sockets.
func (t *transport) shared() (all []*sharedTLS) {
	for _, s := range t.all() {
		if s.shared != nil {
			all = append(all, s.shared)
		}
	}
	return all
}

// all returns every socket.
func (t *transport) all() []*upstreamSocket {
	return append(t.matches[:len(t.matches):len(t.matches)], t.rest)
}

// secures reports whether any connection has, or would have, TLS.
func (t *transport) secures() bool {
	for _, s := range t.all() {
		if !s.plain() {
			return true
		}
	}
	return false
}

func (s *upstreamSocket) plain() bool { return s.shared == nil && s.refused == nil }

// client returns what makes TLS configurations, or why there is none.
func (s *upstreamSocket) client() (*tlsconf.Client, error) {
	if s.refused != nil {
		return nil, s.refused
	}
	return s.shared.get()
}

// isPlain is the forwarder.Dial's Plain.
func (t *transport) isPlain(m *lbcore.Member) bool { return t.of(m.Endpoint().TransportMatch).plain() }

// config is the forwarder.Dial's TLS.
func (t *transport) config(m *lbcore.Member) (*tls.Config, error) {
	s := t.of(m.Endpoint().TransportMatch)
	client, err := s.client()
	if err != nil {
		return nil, err
	}
	return client.ConfigFor(s.name(m.Endpoint()), m.Addr().String()), nil
}

// fileTransport returns that of a cluster of a file.
func fileTransport(cfg *config.Cluster, log *slog.Logger) (*transport, error) {
	t := &transport{rest: new(upstreamSocket)}
	if !cfg.TLS.Enabled {
		return t, nil
	}
	tc := cfg.TLS.Client()
	var err error
	if t.rest.shared, err = newSharedTLS("", tc, log); err != nil {
		return nil, fmt.Errorf("cluster %q: %w", cfg.Name, err)
	}
	t.rest.name = func(e *lbcore.Endpoint) string {
		ip := ""
		if a := e.Addr.AddrPort().Addr(); a.IsValid() {
			ip = a.WithZone("").String()
		}
		return cmp.Or(tc.ServerName, e.Hostname, ip)
	}
	return t, nil
}

// controlTransport returns that of a cluster of the control plane. What a socket can't
// have, as a certificate that has expired, keeps its endpoints from being dialled. What
// it takes is given back by release.
func (t *tlsClients) controlTransport(cfg *config.Transport, log *slog.Logger) *transport {
	one := func(x *config.TransportSocket) *upstreamSocket {
		s := &upstreamSocket{match: x.Match}
		switch {
		case x.Unsupported != "":
			s.refused = errors.New("not supported: " + x.Unsupported)
		case x.TLS != nil:
			host, name := x.TLS.HostSNI, x.TLS.ServerName
			s.shared, _ = t.take("control plane "+digest(&x.TLS.ClientConfig), x.TLS.ClientConfig, log)
			s.name = func(e *lbcore.Endpoint) string {
				if host {
					return cmp.Or(e.Hostname, name)
				}
				return name
			}
		}
		return s
	}
	out := &transport{rest: one(&cfg.Default)}
	for i := range cfg.Matches {
		out.matches = append(out.matches, one(&cfg.Matches[i]))
	}
	return out
}

// status returns what is in force towards endpoints that no match is for, or else of
// the first match with TLS; nil without TLS.
func (t *transport) status() *tlsconf.Status {
	for _, s := range append([]*upstreamSocket{t.rest}, t.matches...) {
		if s.shared == nil {
			continue
		}
		client, err := s.shared.get()
		if err != nil {
			return &tlsconf.Status{Err: err}
		}
		return new(client.Status())
	}
	return nil
}
