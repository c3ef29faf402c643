package forwarder

import (
	"net/netip"
	"sync/atomic"
	"time"

	"gatehouse.internal/internal/tlsconf"
	"gatehouse.internal/lbcore"
)

// Record describes one connection at its end.
type Record struct {
	Listener string
	Cluster  string         // "" if the Upstream named none
	Chain    string         // the name of the FilterChain; "" if there is none
	Client   netip.AddrPort // unmapped; the zero value for a unix socket's client
	Local    lbcore.Addr    // what the listener is bound to
	// Destination is what the client had connected to, unmapped, if its PROXY
	// header said so, or Settings ask for it (OriginalDst, HashDestination); else
	// it is the zero value.
	Destination netip.AddrPort
	Endpoint    lbcore.Addr // the one connected to, or the last one dialled; invalid if none was
	// Address is the address of Endpoint that was connected to: its own or one of
	// its additional ones; invalid if none was.
	Address lbcore.Addr
	// Generation is that of the selector that answered, 0 if none did.
	Generation uint64
	Attempts   int       // dials
	Start      time.Time // when the connection was accepted
	// Connect is the time from Start until the endpoint was connected, 0 if
	// none was; Duration that from Start to the end.
	Connect, Duration time.Duration
	BytesIn, BytesOut uint64 // passed on from the client, and to the client
	Flag              Flag
	Err               error // what lies behind Flag; nil for FlagNone
	// PeerName is who the client is by its TLS certificate, as tlsconf.Peer has
	// it; "" if it has shown none.
	PeerName string
	// ServerName is the one that the client has asked for in its TLS ClientHello,
	// in lower case, where TLS ends at the listener or HashSNI reads it; else "".
	ServerName string
}

// Stats are the totals of a Listener since it was made. Each number is exact;
// they are not read at one instant.
type Stats struct {
	// Accepted counts connections taken from the socket, those over the limit
	// included. Active of them have not ended; the others are in Flags, each
	// once. Flags[FlagOM] is those refused over the limit.
	Accepted uint64
	Active   int64
	Flags    [NumFlags]uint64

	AcceptErrors      uint64
	BytesIn, BytesOut uint64 // from clients, and to clients; of open connections too

	// Dials counts attempts; of those that have ended DialsFailed count
	// against the endpoint and DialsAbandoned do not. Retries are the dials
	// that were not the first of their connection.
	Dials, DialsFailed, DialsAbandoned, Retries uint64
	// ConnectTime is the sum of Record.Connect over the connections that
	// reached an endpoint, Connects how many those are.
	ConnectTime time.Duration
	Connects    uint64

	// Cut are those of Flags[FlagLR] that Drain or the end of Run's context has
	// reset.
	Cut uint64
	// HalfClosedTimeouts are those of Flags[FlagSI] that were half-closed.
	HalfClosedTimeouts uint64
	// TLSErrors counts TLS handshakes with clients that failed or took too
	// long, all of them in Flags[FlagDC], and those that a Mesh had no configuration
	// for, which are in Flags[FlagNR]; TLSFailures are those by the reason. Those with
	// endpoints are in DialsFailed.
	TLSErrors   uint64
	TLSFailures [tlsconf.NumReasons]uint64
	// Over are those of Flags[FlagOM], by the limit.
	Over [NumLimits]uint64
	// Handshakes are in progress with clients.
	Handshakes int64
	// Splices counts the times that data went from socket to socket without a
	// copy.
	Splices uint64
	// ProxyPending connections are without the PROXY header that is due;
	// ProxyErrors have ended for want of a good one, and ProxyUntrusted at once,
	// because their peer may not send one. Both are in Flags[FlagDC] too.
	ProxyPending                int64
	ProxyErrors, ProxyUntrusted uint64
	// HelloPending connections are without the ClientHello that HashSNI waits
	// for. Of the others SNIFound had a server name, SNINotFound a hello without
	// one, and TLSNotFound no hello that was good and came in time.
	// Source: the counters of Envoy's tls_inspector.
	HelloPending                       int64
	SNIFound, SNINotFound, TLSNotFound uint64
	// RBACAllowed and RBACDenied count what the RBAC filters of chains have said,
	// each of them, or a Mesh, and RBACShadowAllowed and RBACShadowDenied what their shadow
	// rules would have. Those denied are in Flags[FlagUAEX] too.
	// Source: the counters of Envoy's RBAC filter.
	RBACAllowed, RBACDenied, RBACShadowAllowed, RBACShadowDenied uint64
	// HandedOff connections were given to another Listener: see Settings.HandOff.
	// They are counted there and nowhere else here.
	HandedOff uint64
}

type counters struct {
	accepted, acceptErrors                      atomic.Uint64
	active                                      atomic.Int64
	flags                                       [NumFlags]atomic.Uint64
	dials, dialsFailed, dialsAbandoned, retries atomic.Uint64
	connectTime                                 atomic.Int64
	connects, halfClosedTimeouts, splices, cut  atomic.Uint64
	proxyPending                                atomic.Int64
	proxyErrors, proxyUntrusted                 atomic.Uint64
	helloPending                                atomic.Int64
	sniFound, sniNotFound, tlsNotFound          atomic.Uint64
	ids                                         atomic.Uint64 // unique ids made
	tlsFailures                                 tlsconf.Failures
	handshakes                                  atomic.Int64 // in progress with clients
	overLimit                                   [NumLimits]atomic.Uint64
	rbac                                        [4]atomic.Uint64 // see rbacIndex
	handedOff                                   atomic.Uint64
}

// Stats returns the present totals.
func (l *Listener) Stats() Stats {
	c := &l.counters
	s := Stats{
		Accepted: c.accepted.Load(), Active: c.active.Load(), AcceptErrors: c.acceptErrors.Load(),
		Dials: c.dials.Load(), DialsFailed: c.dialsFailed.Load(),
		DialsAbandoned: c.dialsAbandoned.Load(), Retries: c.retries.Load(),
		ConnectTime: time.Duration(c.connectTime.Load()), Connects: c.connects.Load(),
		Cut: c.cut.Load(), TLSFailures: c.tlsFailures.Load(),
		ProxyPending: c.proxyPending.Load(), ProxyErrors: c.proxyErrors.Load(), ProxyUntrusted: c.proxyUntrusted.Load(),
		HelloPending: c.helloPending.Load(), SNIFound: c.sniFound.Load(), SNINotFound: c.sniNotFound.Load(), TLSNotFound: c.tlsNotFound.Load(),
		HalfClosedTimeouts: c.halfClosedTimeouts.Load(), Splices: c.splices.Load(),
	}
	for i := range s.Flags {
		s.Flags[i] = c.flags[i].Load()
	}
	for _, n := range s.TLSFailures {
		s.TLSErrors += n
	}
	s.Handshakes = c.handshakes.Load()
	s.RBACAllowed, s.RBACDenied = c.rbac[0].Load(), c.rbac[1].Load()
	s.RBACShadowAllowed, s.RBACShadowDenied = c.rbac[2].Load(), c.rbac[3].Load()
	s.HandedOff = c.handedOff.Load()
	for i := range s.Over {
		s.Over[i] = c.overLimit[i].Load()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	s.BytesIn, s.BytesOut = l.bytesIn, l.bytesOut
	if l.port != nil {
		s.BytesIn += l.port.bytesIn.Load()
		s.BytesOut += l.port.bytesOut.Load()
	}
	for x := range l.open {
		s.BytesIn += x.bytesIn.Load()
		s.BytesOut += x.bytesOut.Load()
	}
	return s
}

// sampler lets one log line through each sampleEvery and counts the others.
type sampler struct {
	last atomic.Pointer[time.Time] // not nanoseconds of the wall clock: that may be set back
	held atomic.Uint64
}

const sampleEvery = 5 * time.Second

// allow reports whether a line may be logged now, and how many were not since
// the last one.
func (s *sampler) allow() (held uint64, ok bool) {
	last := s.last.Load()
	if last != nil && time.Since(*last) < sampleEvery || !s.last.CompareAndSwap(last, new(time.Now())) {
		s.held.Add(1)
		return 0, false
	}
	return s.held.Swap(0), true
}
