package healthsvc

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"time"

	"gatehouse.internal/internal/tlsconf"
	"gatehouse.internal/lbcore"
)

// Transport says how the one connection of a probe is made, for every kind. The
// zero value is a plain connection.
type Transport struct {
	// TLS has the probe speak TLS; nil does not.
	TLS *TLS
	// ProxyVersion has the connection begin with a PROXY protocol header, before
	// TLS: version 1 names the two ends of the connection itself, version 2 says
	// LOCAL, as Envoy and HAProxy do in health checks. 0 sends none, and more
	// than 2 is an error of Validate. Source: TcpHealthCheck.proxy_protocol_config.
	ProxyVersion uint8
	// Source4 and Source6 are where connections to endpoints of the family come
	// from; the system chooses if it is the zero Addr. One that the node does not
	// have is a lack of local resources. Source: Cluster.upstream_bind_config.
	Source4, Source6 netip.Addr
	// Mark, if not 0, marks the packets (Linux's SO_MARK), which takes
	// CAP_NET_ADMIN. Source: the same one's socket_options.
	Mark uint32
}

// TLS is a probe's side of TLS. Each probe makes a full handshake: a session
// that is resumed would hide what a new client sees.
type TLS struct {
	// Client returns what has the authorities that servers are verified by and the
	// certificate to show, or why there is none now: a lack of local resources. It is
	// required, is called by each probe, and must not block; whoever made the
	// tlsconf.Client runs it.
	Client func() (*tlsconf.Client, error)
	// Identity is the text that tells Client from others: probes with the same
	// text share, so they must verify and show the same.
	Identity string
	// ServerName is what the certificate must be valid for, and is sent as SNI.
	// Empty means the IP address that is probed, which is not sent, and is an error
	// for unix sockets unless Client verifies no name.
	ServerName string
	// ALPN are the protocols to offer; nil means those of the kind: http/1.1 for
	// HTTP, h2 for GRPC, none for TCP.
	ALPN []string
}

func (t Transport) plain() bool { return t.TLS == nil && t.ProxyVersion == 0 }

func (t Transport) validate() error {
	if t.ProxyVersion > 2 {
		return fmt.Errorf("proxy_protocol: version %d: want 1 or 2", t.ProxyVersion)
	}
	return nil
}

// spec is the part of Key.Spec that is the transport's, empty for a plain one.
func (t Transport) spec() string {
	var b strings.Builder
	if t.ProxyVersion > 0 {
		fmt.Fprintf(&b, " proxy=%d", t.ProxyVersion)
	}
	if t.Source4.IsValid() {
		fmt.Fprintf(&b, " source4=%s", t.Source4)
	}
	if t.Source6.IsValid() {
		fmt.Fprintf(&b, " source6=%s", t.Source6)
	}
	if t.Mark > 0 {
		fmt.Fprintf(&b, " mark=%d", t.Mark)
	}
	if t.TLS != nil {
		fmt.Fprintf(&b, " tls=%q name=%q alpn=%q", t.TLS.Identity, t.TLS.ServerName, t.TLS.ALPN)
	}
	return b.String()
}

// with says what t adds to the text about a probe, for people.
func (t Transport) with(what string) string {
	if t.TLS != nil {
		what += " over tls"
	}
	if t.ProxyVersion > 0 {
		what += fmt.Sprintf(" behind PROXY v%d", t.ProxyVersion)
	}
	return what
}

// open makes the connection of a probe, which ctx's end interrupts until release
// has closed it. Connections are never reused: an established one would hide that
// no new one can be made.
func (t Transport) open(ctx context.Context, addr lbcore.Addr, alpn ...string) (conn net.Conn, release func(), err error) {
	var cfg *tls.Config
	if t.TLS != nil {
		if cfg, err = t.TLS.config(addr, alpn); err != nil {
			return nil, nil, &localError{err}
		}
	}
	raw, err := t.dial(ctx, addr)
	if err != nil {
		return nil, nil, err
	}
	stop := interrupt(ctx, raw)
	// Not the TLS connection's Close: that writes first.
	release = func() {
		stop()
		raw.Close()
	}
	if t.ProxyVersion > 0 {
		if _, err := raw.Write(proxyHeader(t.ProxyVersion, raw)); err != nil {
			release()
			return nil, nil, reason(ctx, "send PROXY header", err)
		}
	}
	if t.TLS == nil {
		return raw, release, nil
	}
	c := tls.Client(raw, cfg)
	if err := c.HandshakeContext(ctx); err != nil {
		release()
		return nil, nil, reason(ctx, "tls", tlsconf.Explain(err))
	}
	return c, release, nil
}

// localError is one whose cause is on this side.
type localError struct{ error }

func (t *TLS) config(addr lbcore.Addr, alpn []string) (*tls.Config, error) {
	client, err := t.Client()
	if err != nil {
		return nil, err
	}
	name := t.ServerName
	if name == "" && addr.Path() == "" {
		name = addr.AddrPort().Addr().WithZone("").String()
	}
	cfg := client.Config("").Clone()
	cfg.ClientSessionCache = nil
	if name != "" {
		cfg.ServerName = name
	}
	cfg.NextProtos = alpn
	if t.ALPN != nil {
		cfg.NextProtos = t.ALPN
	}
	return cfg, nil
}

// dial connects.
func (t Transport) dial(ctx context.Context, addr lbcore.Addr) (net.Conn, error) {
	// Not DialTCP: with the zero AddrPort it binds a port before it connects,
	// which then can't be shared by connections to different destinations.
	d := net.Dialer{KeepAlive: -1}
	source := t.source(addr)
	if source.IsValid() {
		d.LocalAddr = &net.TCPAddr{IP: source.AsSlice(), Zone: source.Zone()}
	}
	if source.IsValid() || t.Mark > 0 {
		d.Control = t.control
	}
	conn, err := d.DialContext(ctx, addr.Network(), addr.Dial())
	if err != nil {
		if errors.Is(err, syscall.EADDRNOTAVAIL) && addr.Path() == "" && !isBind(err) && !routed(ctx, d, addr) {
			return nil, errUnrouted
		}
		return nil, reason(ctx, "connect", err)
	}
	c, tcp := conn.(*net.TCPConn)
	if !tcp {
		return conn, nil
	}
	// Close resets the connection rather than end it in order. Else each probe
	// would leave a local port in TIME_WAIT for a minute, and thousands of
	// targets tens of thousands of ports. By then all that the probe wants to
	// send and read is through.
	if err := c.SetLinger(0); err != nil {
		c.Close()
		return nil, reason(ctx, "connect", err)
	}
	return c, nil
}

// dialOnly makes a connection and closes it.
func (t Transport) dialOnly(ctx context.Context, addr lbcore.Addr) error {
	c, err := t.dial(ctx, addr)
	if err != nil {
		return err
	}
	c.Close()
	return nil
}

// source returns where connections to addr come from, or the zero Addr.
func (t Transport) source(addr lbcore.Addr) netip.Addr {
	switch to := addr.AddrPort().Addr().Unmap(); {
	case to.Is4():
		return t.Source4
	case to.Is6():
		return t.Source6
	}
	return netip.Addr{}
}

// isBind reports whether a dial failed before it was about the destination.
func isBind(err error) bool {
	e, ok := errors.AsType[*os.SyscallError](err)
	return ok && e.Syscall == "bind"
}

// errUnrouted is a failure of the endpoint, not a lack of ports: a client of this
// node could not reach it either.
var errUnrouted = errors.New("connect: no address of this node can reach it")

// routed reports whether the system finds a route and a source address to addr. A
// connect says the same when it does not, or when all ports to addr are taken: of
// UDP, which sends nothing by it and has ports of its own, only the former is left.
func routed(ctx context.Context, d net.Dialer, addr lbcore.Addr) bool {
	if a, ok := d.LocalAddr.(*net.TCPAddr); ok {
		d.LocalAddr = &net.UDPAddr{IP: a.IP, Zone: a.Zone}
	}
	c, err := d.DialContext(ctx, "udp", addr.Dial())
	if err == nil {
		c.Close()
		return true
	}
	for _, e := range []error{syscall.EADDRNOTAVAIL, syscall.ENETUNREACH, syscall.EHOSTUNREACH, syscall.EAFNOSUPPORT} {
		if errors.Is(err, e) {
			return false
		}
	}
	return true
}

// interrupt ends reads and writes of c when ctx ends, until stop is called.
func interrupt(ctx context.Context, c net.Conn) (stop func() bool) {
	return context.AfterFunc(ctx, func() { c.SetDeadline(time.Unix(1, 0)) })
}

// proxyHeader returns the PROXY protocol header of a probe over c.
// Specification: haproxy.org/download/3.4/doc/proxy-protocol.txt, 2.1 and 2.2.
func proxyHeader(version uint8, c net.Conn) []byte {
	if version == 2 {
		return []byte("\r\n\r\n\x00\r\nQUIT\n\x20\x00\x00\x00") // LOCAL, AF_UNSPEC
	}
	end := func(a net.Addr) (ap netip.AddrPort, ok bool) {
		tcp, ok := a.(*net.TCPAddr)
		if !ok {
			return ap, false
		}
		ap = tcp.AddrPort()
		return netip.AddrPortFrom(ap.Addr().Unmap().WithZone(""), ap.Port()), true
	}
	src, ok1 := end(c.LocalAddr())
	dst, ok2 := end(c.RemoteAddr())
	if !ok1 || !ok2 {
		return []byte("PROXY UNKNOWN\r\n")
	}
	family := "TCP6"
	if src.Addr().Is4() {
		family = "TCP4"
	}
	return fmt.Appendf(nil, "PROXY %s %s %s %d %d\r\n", family, src.Addr(), dst.Addr(), src.Port(), dst.Port())
}

// isRefusal reports whether err is what a server says of our certificate, which
// in TLS 1.3 comes with the first read.
func isRefusal(err error) bool {
	e, ok := errors.AsType[*net.OpError](err)
	return ok && e.Op == "remote error"
}
