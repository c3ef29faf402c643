package forwarder

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"time"

	"gatehouse.internal/internal/contain"
	"gatehouse.internal/internal/tlsconf"
	"gatehouse.internal/lbcore"
)

// The defaults of Config and Dial.
const (
	DefaultHalfClosedTimeout = 5 * time.Minute
	DefaultConnectTimeout    = 5 * time.Second // Envoy's Cluster.connect_timeout
	DefaultConnectAttempts   = 1               // Envoy's TcpProxy.max_connect_attempts
)

// Upstream says where the connections of a listener go. Implementations never
// block: r is pinned by the caller for the length of the call. Pick is called
// from many goroutines at once.
//
// An error that is a *Refusal counts under its flag, any other under FlagUH. A
// nil *Dial stands for the zero Dial; the caller does not write what it is
// given.
type Upstream interface {
	Pick(r *lbcore.Reader, k lbcore.Key) (lbcore.Picks, *Dial, error)
}

// Dial is what a cluster asks of the dials to its endpoints.
type Dial struct {
	Cluster  string        // the name, for records and logs
	Timeout  time.Duration // of each attempt; 0 means DefaultConnectTimeout
	Attempts int           // how many candidates are dialled at most; 0 means DefaultConnectAttempts

	// ProxyVersion is that of the PROXY protocol header, 1 or 2, that each
	// endpoint gets before the client's bytes; 0 means none. It says the client's
	// address, and what the client had connected to.
	// Source: envoy.extensions.transport_sockets.proxy_protocol.v3.
	ProxyVersion byte
	// ProxyUniqueID puts a unique id into a header of version 2: the one that
	// the client's own header had, or else the client's address, Record.Start in
	// nanoseconds since 1970 and a number, with _ between them, and the last two
	// in hexadecimal.
	ProxyUniqueID bool
	// ProxyTLVs are the types of the TLVs in the client's own header that a
	// header of version 2 passes on, and ProxyAllTLVs has all of them passed on;
	// CRC32C and NOOP never are, nor is a unique id that is too long, or where
	// ProxyUniqueID gives one. Those that a header of 4096 bytes has no room for
	// are left out.
	// Source: ProxyProtocolConfig.pass_through_tlvs.
	ProxyTLVs    []byte
	ProxyAllTLVs bool
	// Source4 and Source6 are the local addresses of the connections to endpoints
	// of their family, where valid; else the system chooses. A port is not bound
	// before the connection is made, so that ports can be shared. Dials from an
	// address that the host does not have are abandoned.
	// Source: Cluster.upstream_bind_config.
	Source4, Source6 netip.Addr
	// Mark, if not 0, is the mark of the connections' packets (Linux's SO_MARK).
	// Where CheckMark fails, all dials are abandoned.
	Mark uint32
	// Keepalive is that of the connections to the endpoints.
	// Source: UpstreamConnectionOptions.tcp_keepalive.
	Keepalive Keepalive
	// FirstFamily, 4 or 6, is the address family that is tried first of an
	// endpoint with several addresses; 0 is that of its first address.
	// FirstFamilyCount addresses of it come before each one of the other family; 0
	// means 1.
	// Source: UpstreamConnectionOptions.happy_eyeballs_config.
	FirstFamily      uint8
	FirstFamilyCount int
	// TLS, if set, returns the configuration of the TLS connection to an
	// endpoint; the handshake is part of the dial and of its Timeout.
	// Goroutines serve such connections. A PROXY header comes before it, in plain
	// text. It is called by the connection's goroutine for each dial. An error
	// abandons the dial: it is never made in plain text instead. nil without one is
	// plain text, of an endpoint that has become one of Plain since that was asked.
	TLS func(*lbcore.Member) (*tls.Config, error)
	// Plain, if set, tells which endpoints are connected without TLS all the same.
	Plain func(*lbcore.Member) bool
	// TLSFailures, if set, counts why there was no TLS connection to an endpoint.
	TLSFailures *tlsconf.Failures

	// Observe, if set, is told how long an endpoint took that was reached: from
	// the start of the dial, earlier attempts not included, until it was
	// connected, or with FirstByte until its first byte came, and not at all if
	// none did.
	Observe func(*lbcore.Member, time.Duration)
	// Failed, if set, is told of each endpoint that a dial has failed at, for no
	// cause on this side, and with FirstByte of each connection that ended by
	// FlagUC before the endpoint had sent a byte.
	Failed func(*lbcore.Member)
	// FirstByte has Observe wait for the endpoint's first byte. It is for
	// protocols in which an endpoint's silence is not the client's.
	FirstByte bool

	// Latency, if set, counts how long the endpoints take that are reached.
	Latency *Latency

	// Ends, if set, says which endpoints are to lose their connections.
	Ends *Ends
	// Open, if set, counts the connections of the cluster. Those over
	// MaxConnections end at once under FlagUO. Candidates that have
	// MaxPerEndpoint connections, dials included, are passed over, and a
	// connection none of whose candidates has less ends so too; many at once may
	// exceed it by a few. 0 means no limit, below 0 that none is allowed.
	// Source: CircuitBreakers.Thresholds.max_connections, and its per_host_thresholds.
	Open           *Count
	MaxConnections int
	MaxPerEndpoint int
	// Pending, if set, counts those of them whose endpoint is not connected yet:
	// half-open dials. Those over MaxPending end at once under FlagUO. 0 means no
	// limit, below 0 that none is allowed.
	// Source: CircuitBreakers.Thresholds.max_pending_requests.
	Pending    *Count
	MaxPending int

	// Observe and Failed are called by the goroutines of connections, many at
	// once, which wait for them: they must not block.
}

// Listen opens a listening socket, or returns nil where PlainListen is to. The
// returned net.Listener's Accept is called by one goroutine. A socket may be open
// elsewhere too: the Listener closes what it was given, and does not shut it down.
type Listen func(ctx context.Context, addr lbcore.Addr) (net.Listener, error)

// Settings are what can change while a Listener runs. The zero value sets no
// limits, but for half-closed connections.
type Settings struct {
	HashOn HashOn
	// HashTLV is the type of the TLV that HashProxyTLV hashes; Proxy must be set.
	// Those that are about the header itself, CRC32C and NOOP, can't be.
	HashTLV byte
	// HelloTimeout is how long HashSNI waits for a client's ClientHello, from
	// when the connection was accepted or its PROXY header had come. Who has not
	// sent it then, as where endpoints speak first, is served without a key.
	// 0 means DefaultHelloTimeout.
	// Source: Listener.listener_filters_timeout with
	// continue_on_listener_filters_timeout; Envoy waits 15 s and closes, if it is
	// not told otherwise. The name chooses only among endpoints that may serve the
	// client all the same.
	HelloTimeout time.Duration
	// MaxHellos is how many connections may be without their ClientHello at
	// once, each of which holds up to 64 KiB of what has come; connections over it
	// are reset at once, under FlagOM. 0 means DefaultMaxHellos.
	MaxHellos int
	// Inspect looks for a client's ClientHello as HashSNI does, also where nothing of
	// it is hashed. It is on where Chains go by something in it. With CutLateHello
	// who has not sent one within HelloTimeout, nor something else, is reset, under
	// FlagDC.
	Inspect, CutLateHello bool
	// Chains, if set, decide what becomes of a connection once its PROXY header and
	// ClientHello are read; the Upstream of Config has no say then, nor have the
	// fields here that FilterChain.Settings has.
	Chains *Chains
	// MaxConnectAttempts is how many candidates are dialled at most; 0 means what
	// the Dial says.
	MaxConnectAttempts int
	// HandOff, if set, returns the Listener that takes a connection which had been
	// made to that address before a rule of iptables sent it here, or nil: then this
	// one does. What the other one does not take, as it does not run, or is not served
	// by the same Loops, stays here too.
	// It is called for each such connection, and must not block. Only Linux knows
	// the address.
	// Source: Listener.use_original_dst.
	HandOff func(to netip.AddrPort) *Listener
	// OriginalDst asks the kernel what each client had connected to before a
	// rule of iptables (REDIRECT or DNAT) sent it here. A PROXY header knows
	// better. It is for Linux only.
	// Source: envoy.extensions.filters.listener.original_dst.v3.OriginalDst.
	OriginalDst bool
	// MaxConnections is how many connections may be open at once; those over
	// it are reset at once. 0 means no limit.
	MaxConnections int
	// IdleTimeout ends a connection that has passed no byte in either
	// direction for so long, counted from when the endpoint was connected, while
	// neither side took any of what waits for it in the kernel (which is known on
	// Linux, and looked at four times in it). 0 means never.
	IdleTimeout time.Duration
	// HalfClosedTimeout ends a connection one side of which has ended its
	// stream, or was reset, so long after the last byte, as IdleTimeout counts. 0
	// means DefaultHalfClosedTimeout, below 0 never.
	HalfClosedTimeout time.Duration
	// MaxDuration ends a connection so long after it was accepted, whatever it
	// does, and then some time up to MaxDurationJitter percent of it, 0 to 100,
	// so that connections that were made together do not end together. 0 means
	// never.
	// Source: TcpProxy.max_downstream_connection_duration and
	// max_downstream_connection_duration_jitter_percentage.
	MaxDuration       time.Duration
	MaxDurationJitter float64
	// Keepalive is that of the clients' connections.
	// Source: Listener.tcp_keepalive.
	Keepalive Keepalive
	// Socket is how the listening socket is set up. Set changes an open one too;
	// a mode, user or group that is not given any more stays.
	Socket Socket
	// Proxy, if set, has clients begin with a PROXY protocol header. It is not
	// written any more.
	Proxy *ProxyIn
	// TLS, if set, ends TLS at the listener. Goroutines serve such connections. A
	// client's PROXY header comes before its handshake, in plain text.
	TLS *tlsconf.Server
	// Mesh, if set, ends TLS in the place of TLS, and says which clients may connect.
	Mesh Mesh
	// HandshakeTimeout is how long a client's TLS handshake may take. 0 means
	// DefaultHandshakeTimeout.
	HandshakeTimeout time.Duration
	// MaxHandshakes is how many TLS handshakes with clients may be in progress
	// at once; connections over it are reset at once, under FlagOM. 0 means
	// DefaultMaxHandshakes.
	MaxHandshakes int

	of *FilterChain // whose settings they are; nil for a Listener's
}

// Mesh is a service of a service mesh, which ends the TLS of its clients and knows
// who they may be. Its methods are called by the connections' goroutines, many at
// once.
type Mesh interface {
	// Config returns the configuration for one connection, or why there is none:
	// then the connection is refused, under FlagNR.
	Config() (*tls.Config, error)
	// Authorize returns why a client may not connect, or nil. It is called after the
	// handshake, and the connection waits for it. Who may not is reset, under
	// FlagUAEX.
	Authorize(context.Context, *tls.ConnectionState) error
}

// endsTLS reports whether TLS with clients ends here.
func (s *Settings) endsTLS() bool { return s.TLS != nil || s.Mesh != nil }

// serverTLS returns the configuration of a connection with a client.
func (s *Settings) serverTLS() (*tls.Config, error) {
	if s.Mesh != nil {
		return s.Mesh.Config()
	}
	return s.TLS.Config(), nil
}

// Config configures a Listener. Name, Addr, Upstream and Gate are required.
type Config struct {
	Name     string // in logs, errors and records
	Addr     lbcore.Addr
	Upstream Upstream
	Gate     *lbcore.Gate // whose shared Readers pin the selections
	Settings
	// Loops, if set, serve the connections; their Run must be running while the
	// Listener's is. Without them, and where the socket is not one of the
	// system's own, goroutines do.
	Loops  *Loops
	Listen Listen // nil means PlainListen
	// Of, if set, is a bound Listener at the same address, whose socket Bind shares:
	// both accept from it until one stops, and nobody is refused or lost when an
	// address passes from one to the other. It is for TCP; otherwise, and where
	// that is not possible, Bind opens a socket of its own.
	Of *Listener
	// NoBind has no socket opened: connections come from other Listeners, whose
	// HandOff says so. Source: Listener.bind_to_port.
	NoBind bool
	Logger *slog.Logger // nil means none
	// Circles finds connections of the Listener's own that come back to it, and
	// those of all Listeners that are given the same. nil means one of its own.
	Circles *Circles
	// Open, if set, counts the connections of all Listeners that are given the
	// same; those over MaxOpen are reset at once. MaxOpen of 0 means no limit.
	Open    *Count
	MaxOpen int
	// Extra counts the descriptors that connections of all Listeners that are
	// given the same have beyond two each: two for each pipe, through which bulk
	// passes without a copy, and one for each address of an endpoint that is
	// dialled while an earlier one has not failed. They are MaxExtra at most.
	// Without a pipe bulk is copied; without a descriptor for the next address
	// the dial waits until the one before it has had its share of the time, and
	// gives that one up. Extra.Refused is how often there was none. nil means one
	// of the Listener's own, MaxExtra of 0 what ExtraFor says of MaxDescriptors,
	// below 0 none.
	Extra    *Count
	MaxExtra int
	// DrainSpread is how long before the deadline of Drain the connections that are
	// left begin to be closed, each at a moment of its own, so that clients don't
	// come back all at once. 0 closes them all at the deadline, and of more than half
	// of the drain it is half.
	// Source: HAProxy's close-spread-time.
	DrainSpread time.Duration
	// Panics contains those of connections: the one is reset, under FlagLR. Nil contains
	// none.
	Panics *contain.Panics
	// OnDone, if set, is told of each connection that has ended, those that were
	// refused over a limit too. The connection's goroutine or event loop calls it
	// after the sockets are closed, and waits for it; the Record is good until it
	// returns.
	OnDone func(*Record)
}

func (c *Config) validate() error {
	var errs []error
	need := func(ok bool, what string) {
		if !ok {
			errs = append(errs, errors.New(what))
		}
	}
	need(c.Name != "", "no name")
	need(c.Addr.IsValid(), "no address")
	need(c.Addr.Path() == "" || c.Addr.Path()[0] == '/', "the path of a unix socket must be absolute") // an abstract one is open to all
	need(c.Upstream != nil, "no upstream")
	need(c.Gate != nil, "no gate")
	need(c.DrainSpread >= 0, "the spread of a drain is below 0")
	need(c.MaxOpen >= 0, "the limit of all listeners is below 0")
	errs = append(errs, c.Settings.validate())
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("listener %q: %w", c.Name, err)
	}
	return nil
}

func (s *Settings) validate() error {
	var errs []error
	need := func(ok bool, what string) {
		if !ok {
			errs = append(errs, errors.New(what))
		}
	}
	need(s.HashOn <= HashProxyTLV, "unknown hash_on")
	need(s.HashOn != HashProxyTLV || s.Proxy != nil, "hash_on a TLV of the PROXY protocol, which clients do not speak")
	need(s.HashOn != HashProxyTLV || validTLV(s.HashTLV), "hash_on a TLV that is about the PROXY header itself")
	need(s.HelloTimeout >= 0, "the time for a ClientHello is below 0")
	need(s.MaxHellos >= 0, "the limit of pending ClientHellos is below 0")
	need(!s.OriginalDst || haveOriginalDst, "original_dst is for Linux only")
	need(s.MaxConnections >= 0, "max_connections is below 0")
	need(s.MaxConnectAttempts >= 0, "max_connect_attempts is below 0")
	need(s.IdleTimeout >= 0, "idle_timeout is below 0")
	need(s.MaxDuration >= 0, "max_duration is below 0")
	need(s.MaxDurationJitter >= 0 && s.MaxDurationJitter <= 100, "max_duration_jitter is not within 0 and 100")
	need(s.HandshakeTimeout >= 0, "handshake_timeout is below 0")
	need(s.MaxHandshakes >= 0, "max_handshakes is below 0")
	errs = append(errs, s.Keepalive.validate(), s.Socket.validate())
	if s.Proxy != nil {
		errs = append(errs, s.Proxy.validate())
	}
	return errors.Join(errs...)
}

// normal returns s with its defaults.
func (s Settings) normal() *Settings {
	if s.HalfClosedTimeout == 0 {
		s.HalfClosedTimeout = DefaultHalfClosedTimeout
	}
	s.Proxy = s.Proxy.normal()
	s.HelloTimeout = cmp.Or(s.HelloTimeout, DefaultHelloTimeout)
	s.MaxHellos = cmp.Or(s.MaxHellos, DefaultMaxHellos)
	s.HandshakeTimeout = cmp.Or(s.HandshakeTimeout, DefaultHandshakeTimeout)
	s.MaxHandshakes = cmp.Or(s.MaxHandshakes, DefaultMaxHandshakes)
	if s.Chains != nil {
		s.Inspect = s.Inspect || s.Chains.matcher.Inspects()
		s.Chains = s.Chains.bind(&s)
	}
	return &s
}
