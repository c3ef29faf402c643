package forwarder

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	"gatehouse.internal/internal/tlsconf"
)

// meshStub is a Mesh whose answers a test chooses.
type meshStub struct {
	server *tlsconf.Server
	none   atomic.Pointer[error] // no configuration
	no     atomic.Pointer[error] // clients may not connect
	asked  atomic.Int64
}

func (m *meshStub) Config() (*tls.Config, error) {
	if err := m.none.Load(); err != nil {
		return nil, *err
	}
	return m.server.Config(), nil
}

func (m *meshStub) Authorize(_ context.Context, cs *tls.ConnectionState) error {
	m.asked.Add(1)
	if len(cs.PeerCertificates) != 1 || !cs.HandshakeComplete {
		return errors.New("it is not known who asks")
	}
	if err := m.no.Load(); err != nil {
		return *err
	}
	return nil
}

// A listener of a mesh lets those in whom the mesh lets, once it has seen their
// certificate, and nobody while it has no certificate itself; each is refused with its
// own flag and reason.
func TestMesh(t *testing.T) {
	onEach(t, func(t *testing.T) {
		p := newPKI(t)
		m := &meshStub{server: p.server(t, p.mutual)}
		var log logBuffer
		r := start(t, Config{Upstream: newCluster(t, backend(t, anyPort, echo)), Settings: Settings{Mesh: m}, Logger: log.logger()})
		known := p.clientConfig()
		known.Certificates = []tls.Certificate{p.client.TLS(t)}
		c := p.dial(t, r.Addr(), known)
		exchange(t, c, "hello")
		c.Close()
		if rec := r.record(t); rec.PeerName != "spiffe://example.org/client" || rec.Attempts != 1 {
			t.Errorf("%+v", rec)
		}

		refused := func(what string, conf *tls.Config, flag Flag, text string) {
			t.Helper()
			if raw, err := net.Dial("tcp", r.Addr().String()); err == nil { // else it was reset before that
				c := tls.Client(raw, conf)
				if b, err := io.ReadAll(c); err == nil || len(b) > 0 {
					t.Errorf("%s: %q, %v", what, b, err)
				}
				raw.Close()
			}
			if rec := r.record(t); rec.Flag != flag || rec.Err == nil || !strings.Contains(rec.Err.Error(), text) || rec.Attempts != 0 {
				t.Errorf("%s: %+v", what, rec)
			}
		}
		m.no.Store(new(errors.New("an intention is against it")))
		refused("denied", known, FlagUAEX, "an intention is against it")
		refused("no certificate", p.clientConfig(), FlagDC, "the client has shown no certificate")
		m.no.Store(nil)
		m.none.Store(new(errors.New("no leaf yet")))
		refused("no leaf", known, FlagNR, "no leaf yet")
		m.none.Store(nil)
		exchange(t, p.dial(t, r.Addr(), known), "hello again")
		if n := m.asked.Load(); n != 3 {
			t.Errorf("asked for %d clients", n)
		}
		if s := r.Stats(); s.RBACAllowed != 2 || s.RBACDenied != 1 || s.TLSErrors != 2 || s.Handshakes != 0 {
			t.Errorf("%+v", s)
		}
		for _, text := range []string{"an intention is against it", "the client has shown no certificate"} {
			if got := log.String(); !strings.Contains(got, text) {
				t.Errorf("%q is not in the log:\n%s", text, got)
			}
		}
	})
}
