package forwarder

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"time"

	"gatehouse.internal/internal/tlsconf"
	"gatehouse.internal/lbcore"
)

// The defaults of Settings.
const (
	DefaultHandshakeTimeout = 15 * time.Second // as Envoy's FilterChain.transport_socket_connect_timeout is meant; that is off by default
	DefaultMaxHandshakes    = 1024
)

var (
	errHandshakes = errors.New("tls: as many handshakes as max_handshakes allows are in progress")
	// errNotReady is a time-out, which is no error for good to package tls.
	errNotReady         = os.ErrDeadlineExceeded
	errHandshakeTimeout = errors.New("tls handshake: not done within handshake_timeout")
)

// secure makes the TLS handshake with the client. If that fails it decides how
// the session ends and reports false.
func (s *session) secure(ctx context.Context) bool {
	c := &s.l.counters
	defer c.handshakes.Add(-1)
	if c.handshakes.Add(1) > int64(s.settings.MaxHandshakes) {
		s.abort(FlagOM, errHandshakes)
		return false
	}
	cfg, err := s.settings.serverTLS()
	if err != nil {
		s.abort(FlagNR, err)
		s.noTLS(tlsconf.ReasonUnusable, err)
		return false
	}
	late := time.AfterFunc(s.settings.HandshakeTimeout, func() {
		s.contained(func() { s.abort(FlagDC, errHandshakeTimeout) })
	})
	raw := &tlsRaw{Conn: s.downstream.conn, first: s.first}
	s.first = nil
	conn := tls.Server(raw, cfg)
	err = conn.Handshake()
	late.Stop()
	ok, flag, err := s.secured(&tlsConn{conn, raw}, err)
	if !ok && flag == FlagDC {
		reason := tlsconf.ReasonOf(err)
		if err == errHandshakeTimeout {
			reason = tlsconf.ReasonTimeout
		}
		s.noTLS(reason, err)
	}
	return ok && s.authorized(ctx, conn)
}

// secured takes the connection to the client whose handshake has ended with err. It
// returns false, with how the session ends, if that is so or it was cut meanwhile.
func (s *session) secured(conn *tlsConn, err error) (ok bool, flag Flag, why error) {
	if err != nil {
		err = fmt.Errorf("tls handshake: %w", tlsconf.Explain(err))
	}
	s.mu.Lock()
	defer s.mu.Unlock() // also where what a client has shown makes it panic
	if err != nil {
		// Not reset: the alert says to the client what is wrong.
		s.blame(FlagDC, err)
	}
	if ok = err == nil && !s.cut; ok {
		cs := conn.ConnectionState()
		s.downstream.conn = conn
		s.known().peer, s.known().name = tlsconf.Peer(&cs), strings.ToLower(cs.ServerName)
		s.identify(&cs)
		if s.settings.HashOn == HashSNI {
			s.sel.key = sniKey([]byte(cs.ServerName))
		}
	}
	return ok, s.flag, s.err
}

// noTLS counts and tells of a handshake that failed, or was not made.
func (s *session) noTLS(reason tlsconf.Reason, err error) {
	s.l.counters.tlsFailures.Add(reason)
	if held, ok := s.l.tlsLog.allow(); ok {
		s.l.log.Warn("no tls connection with a client", "client", s.clientName(), "err", err, "not_logged", held)
	}
}

// authorized asks the mesh whether the client may connect, if the listener is of one.
// If not the session is aborted.
func (s *session) authorized(ctx context.Context, conn *tls.Conn) bool {
	if s.settings.Mesh == nil {
		return true
	}
	cs := conn.ConnectionState()
	err := s.settings.Mesh.Authorize(ctx, &cs)
	s.l.counters.rbac[rbacIndex(false, err != nil)].Add(1)
	if err != nil {
		s.refused(err)
		s.abort(FlagUAEX, err)
	}
	return err == nil
}

// dialTLS makes the TLS handshake with an endpoint, which is part of the dial. A
// PROXY header comes before it, in the same segment as the ClientHello.
func (s *session) dialTLS(ctx context.Context, to net.Conn, cfg *tls.Config) (net.Conn, error) {
	lead, err := s.header()
	if err != nil {
		reset(to)
		return nil, err
	}
	ctx, cancel := context.WithDeadline(ctx, s.start.Add(s.began+s.want.timeout()))
	defer cancel()
	raw := &tlsRaw{Conn: to, lead: lead}
	conn := tls.Client(raw, cfg)
	if err := conn.HandshakeContext(ctx); err != nil {
		s.want.TLSFailures.Add(tlsconf.ReasonOf(err))
		reset(to)
		return nil, fmt.Errorf("tls handshake: %w", tlsconf.Explain(err))
	}
	return &tlsConn{conn, raw}, nil
}

// tlsConn is a TLS connection the ends of whose streams mean what those of a
// TCP connection do.
type tlsConn struct {
	*tls.Conn
	raw *tlsRaw
}

// Read returns io.EOF only after a close_notify. Package tls lets the end of
// the TCP stream pass for it between two records, where anybody on the way can
// put one.
func (c *tlsConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	switch {
	case err == nil:
	case err == io.EOF && c.raw.eof:
		err = fmt.Errorf("tls: the stream ended without close_notify: %w", io.ErrUnexpectedEOF)
	case err != io.EOF && err != errNotReady:
		err = tlsconf.Explain(err)
	}
	return n, err
}

// CloseWrite sends a close_notify, and a FIN for those who wait for that.
func (c *tlsConn) CloseWrite() error {
	err := c.Conn.CloseWrite()
	closeWrite(c.raw.Conn)
	return err
}

// tlsRaw is the connection below a tlsConn. The fields are the handshake's, and
// later those of the one goroutine that reads; what is to be written first is
// written by the handshake.
type tlsRaw struct {
	net.Conn
	first []byte // read already, to be read first
	lead  []byte // to be written first
	eof   bool   // Read has met it. Package tls reads no more after a close_notify.
	// ready, if set, reads in the place of Conn, and returns errNotReady where
	// that would wait.
	ready io.Reader
}

func (c *tlsRaw) Read(b []byte) (n int, err error) {
	if len(c.first) > 0 {
		n := copy(b, c.first)
		if c.first = c.first[n:]; len(c.first) == 0 {
			c.first = nil
		}
		return n, nil
	}
	if c.ready != nil {
		n, err = c.ready.Read(b)
	} else {
		n, err = c.Conn.Read(b)
	}
	if err == io.EOF {
		c.eof = true
	}
	return n, err
}

func (c *tlsRaw) Write(b []byte) (int, error) {
	if len(c.lead) == 0 {
		return c.Conn.Write(b)
	}
	lead := len(c.lead)
	both := append(c.lead, b...)
	c.lead = nil
	n, err := c.Conn.Write(both)
	return max(n-lead, 0), err
}

// SetWriteDeadline does nothing. Package tls would give a close_notify five
// seconds, and a client that reads slowly would miss it; here it takes its time
// as all data does, which the limits on silence bound.
func (c *tlsRaw) SetWriteDeadline(time.Time) error { return nil }

// plain reports whether the connection to an endpoint is in plain text.
func (d *Dial) plain(m *lbcore.Member) bool {
	return d.TLS == nil || d.Plain != nil && d.Plain(m)
}

// isTLS reports whether c, which may be nil, is a TLS connection.
func isTLS(c net.Conn) bool {
	_, is := c.(*tlsConn)
	return is
}

// plain returns the socket of a connection.
func plain(c net.Conn) net.Conn {
	if c, ok := c.(*tlsConn); ok {
		return c.raw.Conn
	}
	return c
}
