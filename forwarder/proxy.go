package forwarder

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/pires/go-proxyproto"

	"gatehouse.internal/lbcore"
)

// The defaults of ProxyIn.
const (
	DefaultProxyTimeout = 10 * time.Second
	DefaultProxyPending = 1024
)

// ProxyIn has a Listener read a PROXY protocol header, of version 1 or 2, from
// each client before anything else. The address in it takes the place of the
// peer's: it is hashed, recorded and passed on. That of a LOCAL or UNKNOWN
// header does not.
//
// Who is not in From is reset, and its bytes are not looked at. Serving it
// under the address of its socket would let whoever reaches the port pass by
// the proxies, and read as plain bytes the header of a proxy that was forgotten
// in From.
//
// Source: envoy.extensions.filters.listener.proxy_protocol.v3.ProxyProtocol.
type ProxyIn struct {
	// From are the addresses of the proxies, at least one range. A client of a
	// unix socket is one of them always: the socket's file says who may connect.
	From []netip.Prefix
	// Optional serves clients that send no header under their own address.
	// One that is silent, as where endpoints speak first, is known as such
	// only after Timeout.
	// Source: ProxyProtocol.allow_requests_without_proxy_protocol.
	Optional bool
	// Timeout is how long after it was accepted a connection may take to send
	// its header. 0 means DefaultProxyTimeout.
	Timeout time.Duration
	// MaxPending is how many connections of the Listener may be without their
	// header at once; those over it are reset. 0 means DefaultProxyPending.
	MaxPending int
}

func (in *ProxyIn) validate() error {
	var errs []error
	if len(in.From) == 0 {
		errs = append(errs, errors.New("proxy protocol from nobody: name the proxies' addresses"))
	}
	for _, p := range in.From {
		if !p.IsValid() {
			errs = append(errs, errors.New("proxy protocol: an invalid range of addresses"))
		}
	}
	if in.Timeout < 0 || in.MaxPending < 0 {
		errs = append(errs, errors.New("proxy protocol: a limit is below 0"))
	}
	return errors.Join(errs...)
}

// normal returns a copy with the defaults, and mapped ranges unmapped.
func (in *ProxyIn) normal() *ProxyIn {
	if in == nil {
		return nil
	}
	n := *in
	n.From = slices.Clone(in.From)
	for i, p := range n.From {
		if p.Addr().Is4In6() && p.Bits() >= 96 {
			n.From[i] = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
		}
	}
	if n.Timeout == 0 {
		n.Timeout = DefaultProxyTimeout
	}
	if n.MaxPending == 0 {
		n.MaxPending = DefaultProxyPending
	}
	return &n
}

func (in *ProxyIn) trusts(peer netip.AddrPort) bool {
	a := peer.Addr().WithZone("")
	return !a.IsValid() || slices.ContainsFunc(in.From, func(p netip.Prefix) bool { return p.Contains(a) })
}

var (
	errProxyUntrusted = errors.New("PROXY header: the peer is none of those that may send one")
	errProxyPending   = errors.New("PROXY header: too many connections are without theirs")
	errProxyLate      = errors.New("PROXY header: not there in time")
	errProxyEnded     = errors.New("PROXY header: the client ended its stream before the end of it")
)

// expects reports whether a header is due from the client, or how the flow
// ends.
func (f *flow) expects() (bool, Flag, error) {
	in, c := f.settings.Proxy, &f.l.counters
	if in == nil {
		return false, FlagNone, nil
	}
	if !in.trusts(f.client) {
		c.proxyUntrusted.Add(1)
		f.proxyFailed(errProxyUntrusted)
		return false, FlagDC, errProxyUntrusted
	}
	f.greeting = true
	if c.proxyPending.Add(1) > int64(in.MaxPending) {
		f.proxyFailed(errProxyPending)
		return false, FlagOM, errProxyPending
	}
	return true, FlagNone, nil
}

// greeted tells that no header is due any more.
func (f *flow) greeted() {
	if f.greeting {
		f.greeting = false
		f.l.counters.proxyPending.Add(-1)
	}
}

// readProxy takes the header from b, which is what has come, and returns its
// length; 0 is none, where it is optional. With errProxyShort more is to come;
// any other error ends the flow.
func (f *flow) readProxy(b []byte) (int, error) {
	h, n, err := parseProxy(b)
	switch {
	case err == errNoProxy && f.settings.Proxy.Optional:
		return 0, nil
	case err == errProxyShort:
		return 0, err
	case err != nil:
		return 0, f.ungreeted(fmt.Errorf("PROXY header: %w", err))
	}
	if h.Source.IsValid() {
		if f.settings.Chains != nil {
			f.known().direct = f.client.Addr().WithZone("")
		}
		f.client = h.Source
		f.connectedTo(h.Dest)
	}
	f.sel.tlvs = h.TLVs
	if f.settings.HashOn == HashProxyTLV {
		if v, ok := findTLV(h.TLVs, proxyproto.PP2Type(f.settings.HashTLV)); ok {
			f.sel.key = lbcore.BytesKey(v)
		}
	}
	return n, nil
}

// noProxy returns nil if a stream that began with b, and is not a whole header,
// can go without one; else it returns why, which ends the flow.
func (f *flow) noProxy(b []byte, why error) error {
	if yes, _ := looksProxy(b); f.settings.Proxy.Optional && !yes {
		return nil
	}
	return f.ungreeted(why)
}

// ungreeted counts a client without a header, and returns why.
func (f *flow) ungreeted(why error) error {
	f.l.counters.proxyErrors.Add(1)
	f.proxyFailed(why)
	return why
}

func (f *flow) proxyFailed(why error) {
	if held, ok := f.l.proxyLog.allow(); ok {
		f.l.log.Warn("no PROXY header from a client", "client", f.clientName(), "err", why, "not_logged", held)
	}
}

// introduction appends the header for the endpoint to b. local is what the
// client has connected to, if no header said.
func (f *flow) introduction(b []byte, local netip.AddrPort) ([]byte, error) {
	if to := f.dest(); to.IsValid() {
		local = to
	}
	if f.want.ProxyVersion != 2 {
		return appendProxy(b, f.want.ProxyVersion, f.client, local, nil)
	}
	return appendProxy(b, 2, f.client, local, f.outgoingTLVs())
}

// outgoingTLVs are those of the header for the endpoint.
func (f *flow) outgoingTLVs() (tlvs []proxyproto.TLV) {
	room := maxProxyHeader - proxyV2Prefix - proxyAddrLen(proxyproto.TCPv6)
	if f.want.ProxyUniqueID {
		id, _ := findTLV(f.sel.tlvs, proxyproto.PP2_TYPE_UNIQUE_ID)
		if len(id) == 0 || len(id) > maxProxyUniqueID {
			from := "unix"
			if f.client.IsValid() {
				from = f.client.String()
			}
			id = fmt.Appendf(nil, "%s_%x_%x", from, f.start.UnixNano(), f.l.counters.ids.Add(1))
		}
		tlvs = append(tlvs, proxyproto.TLV{Type: proxyproto.PP2_TYPE_UNIQUE_ID, Value: id})
		room -= 3 + len(id)
	}
	if !f.want.ProxyAllTLVs && len(f.want.ProxyTLVs) == 0 {
		return tlvs
	}
	for _, t := range f.sel.tlvs {
		isID := t.Type == proxyproto.PP2_TYPE_UNIQUE_ID
		switch {
		case !f.want.ProxyAllTLVs && !slices.Contains(f.want.ProxyTLVs, byte(t.Type)),
			isID && (f.want.ProxyUniqueID || len(t.Value) > maxProxyUniqueID):
			continue
		case 3+len(t.Value) > room:
			if held, ok := f.l.proxyLog.allow(); ok {
				f.l.log.Warn("a PROXY header has no room for a TLV of the client's, which is left out", "client", f.clientName(), "type", byte(t.Type), "bytes", len(t.Value), "not_logged", held)
			}
			continue
		}
		room -= 3 + len(t.Value)
		tlvs = append(tlvs, t)
	}
	return tlvs
}

// greet reads the client's header, if one is due. If that fails the session is
// aborted. What has come behind the header is in s.first.
func (s *session) greet() bool {
	wait, flag, err := s.expects()
	if wait {
		flag, err = FlagDC, s.readHeader()
	}
	if err != nil {
		s.abort(flag, err)
		return false
	}
	return true
}

func (s *session) readHeader() error {
	c := s.downstream.conn
	_ = c.SetReadDeadline(s.start.Add(s.settings.Proxy.Timeout)) // fails only if c is closed
	b := make([]byte, 0, maxProxyHeader)                         // has room for whatever is not decided yet
	for {
		n, end := c.Read(b[len(b):cap(b)])
		b = b[:len(b)+n]
		n, err := s.readProxy(b)
		if err == errProxyShort {
			switch {
			case end == nil:
				continue
			case errors.Is(end, os.ErrDeadlineExceeded):
				err = s.noProxy(b, errProxyLate)
			case end == io.EOF:
				err = s.noProxy(b, errProxyEnded)
			case errors.Is(end, net.ErrClosed):
				return errCut
			default:
				err = s.ungreeted(fmt.Errorf("PROXY header: %w", end))
			}
		}
		if err != nil {
			return err
		}
		s.first = slices.Clone(b[n:])
		s.greeted()
		_ = c.SetReadDeadline(time.Time{})
		return nil
	}
}

// header returns the PROXY header that the endpoint is to get, nil if none.
func (s *session) header() ([]byte, error) {
	if s.want.ProxyVersion == 0 {
		return nil, nil
	}
	return s.introduction(nil, s.local())
}

// introduce writes the header that the endpoint is to get, unless dialTLS has. If
// the endpoint is gone already, whoever relays meets that too.
func (s *session) introduce() error {
	if isTLS(s.upstream.conn) {
		return nil
	}
	b, err := s.header()
	if len(b) == 0 || err != nil {
		return err
	}
	if _, err := s.upstream.conn.Write(b); err != nil {
		s.broke(&s.upstream, err)
	}
	return nil
}
