package node

import (
	"cmp"
	"crypto/sha256"
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
	want    *config.Transport // when it was made; nil for a file's
}

// upstreamSocket is one way to secure them. Without shared and refused it is plain text.
type upstreamSocket struct {
	match   lbcore.Labels
	shared  *sharedTLS
	refused error // why endpoints are not dialled
	// name returns what is sent as SNI, and verified unless something else is.
	name func(*lbcore.Endpoint) string
	alpn []string // what is offered; nil for nothing
}

// of returns what is for an endpoint with these labels.
func (t *transport) of(l lbcore.Labels) *upstreamSocket { return t.find(l, l.Behind()) }

// find returns what is for an endpoint that says one thing, and whose locality says
// another. Endpoints have few labels, and clusters few matches: to look is cheaper than
// to remember.
func (t *transport) find(own, locality lbcore.Labels) *upstreamSocket {
	for _, l := range [...]lbcore.Labels{own, locality} {
		for _, s := range t.matches {
			if l.Has(s.match) {
				return s
			}
		}
	}
	return t.rest
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
	if s.plain() { // since isPlain was asked
		return nil, nil
	}
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
	t.rest.shared = newSharedTLS("", tc, "", log)
	if _, err := t.rest.shared.get(); err != nil {
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
// it takes is given back by release; a cluster of the same name may have it already, and
// then rotate brings what is new.
func (t *tlsClients) controlTransport(cluster string, cfg *config.Transport, log *slog.Logger) *transport {
	out := &transport{want: cfg}
	seen := make(map[string]int)
	for _, x := range allSockets(cfg) {
		s := &upstreamSocket{match: x.Match}
		switch {
		case x.Unsupported != "":
			s.refused = errors.New("not supported: " + x.Unsupported)
		case x.TLS != nil:
			bare := immaterialSocket(*x)
			identity := fmt.Sprintf("cluster %q socket %q %s %x", cluster, x.Name, x.Match, digest(bare.TLS))
			seen[identity]++
			identity = fmt.Sprintf("%s %d", identity, seen[identity])
			s.shared = t.take(identity, x.TLS.ClientConfig, x.NoTLS, log.With("transport_socket", x.Name))
			host, name := x.TLS.HostSNI, x.TLS.ServerName
			s.alpn = x.TLS.ALPN
			s.name = func(e *lbcore.Endpoint) string {
				if host {
					return cmp.Or(e.Hostname, name)
				}
				return name
			}
		}
		out.matches = append(out.matches, s)
	}
	last := len(out.matches) - 1
	out.matches, out.rest = out.matches[:last:last], out.matches[last]
	return out
}

// allSockets returns all of t, the one for the rest last.
func allSockets(t *config.Transport) (all []*config.TransportSocket) {
	for i := range t.Matches {
		all = append(all, &t.Matches[i])
	}
	return append(all, &t.Default)
}

// digest tells settings from others.
func digest(t *config.ControlTLS) [sha256.Size]byte {
	return sha256.Sum256(fmt.Appendf(nil, "%#v", *t))
}

// rotate returns what has to be done for t to have the certificates and authorities of
// cfg, which differs in nothing else; both may be nil.
func (t *transport) rotate(cfg *config.Transport) (changes []func()) {
	if cfg == nil {
		return nil
	}
	for i, x := range allSockets(cfg) {
		if s := t.all()[i]; s.shared != nil {
			if change := s.shared.rotation(x.TLS.ClientConfig, x.NoTLS); change != nil {
				changes = append(changes, change)
			}
		}
	}
	return changes
}

// immaterial returns t without what may change while a cluster stays.
func immaterial(t *config.Transport) *config.Transport {
	if t == nil {
		return nil
	}
	out := &config.Transport{Default: immaterialSocket(t.Default)}
	for _, s := range t.Matches {
		out.Matches = append(out.Matches, immaterialSocket(s))
	}
	return out
}

// immaterialSocket leaves out certificates and authorities, and what follows from them.
func immaterialSocket(s config.TransportSocket) config.TransportSocket {
	if s.TLS == nil {
		return s
	}
	bare := *s.TLS
	bare.CA, bare.CAFile, bare.Cert, bare.CertFile, bare.Key, bare.KeyFile = "", "", "", "", "", ""
	bare.AnyName, bare.Unverified = false, false
	s.TLS, s.NoTLS = &bare, ""
	return s
}

// status returns what is in force towards endpoints that no match is for, or else of
// the first match with TLS; nil without TLS.
func (t *transport) status() *tlsconf.Status {
	for _, s := range append([]*upstreamSocket{t.rest}, t.matches...) {
		if s.shared == nil {
			continue
		}
		m := s.shared.made.Load()
		if m.client == nil {
			return &tlsconf.Status{Err: m.err}
		}
		st := m.client.Status()
		st.Err = cmp.Or(st.Err, m.err)
		return &st
	}
	return nil
}
