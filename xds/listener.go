package xds

import (
	"io/fs"
	"time"

	"gatehouse.internal/forwarder/filterchain"
	"gatehouse.internal/forwarder/rbac"
	"gatehouse.internal/internal/tlsconf"
	"gatehouse.internal/lbcore"
)

// The defaults of listeners.
const (
	// DefaultListenerFiltersTimeout applies to a Listener that doesn't say.
	// Source: Listener.listener_filters_timeout.
	DefaultListenerFiltersTimeout = 15 * time.Second
	// DefaultIdleTimeout applies to a TCPProxy that doesn't say.
	// Source: TcpProxy.idle_timeout.
	DefaultIdleTimeout = time.Hour
)

// Listener is an LDS resource as far as this program applies it. It is never
// written after it was made.
type Listener struct {
	// Name is the listener's name, never empty.
	Name string
	// Addresses are the address and the additional ones, in this order. There is
	// one at least unless the listener is Unsupported.
	Addresses []lbcore.Addr
	// Mode is that of the files of unix sockets, 0 if the listener does not say.
	// Source: Pipe.mode.
	Mode fs.FileMode
	// BindToPort says that the listener has sockets. Without one it gets
	// connections from listeners with UseOriginalDst. Source: Listener.bind_to_port.
	BindToPort bool
	// OriginalDst asks what clients had connected to before a redirect, and
	// UseOriginalDst gives each connection to the listener with that address, if
	// there is one. Source: the original_dst filter, Listener.use_original_dst.
	OriginalDst, UseOriginalDst bool
	// Proxy has clients begin with a PROXY protocol header, and ProxyOptional
	// serves those without one too. Source: the proxy_protocol filter.
	Proxy, ProxyOptional bool
	// Inspect looks for a TLS ClientHello. Source: the tls_inspector filter.
	Inspect bool
	// FiltersTimeout is how long what Proxy and Inspect wait for may take, 0 for
	// ever. ContinueOnTimeout serves connections all the same after it.
	// Source: Listener.listener_filters_timeout.
	FiltersTimeout    time.Duration
	ContinueOnTimeout bool
	// Backlog is how many connections may wait to be accepted, 0 if the listener
	// does not say. Source: Listener.tcp_backlog_size.
	Backlog int
	// Keepalive is that of clients' connections; nil if the listener does not say.
	Keepalive *Keepalive
	// Chains are the filter chains; no two match the same. Default takes the
	// connections that none of them matches; nil: they are refused.
	Chains  []FilterChain
	Default *FilterChain
	// AccessLogs get a line for each connection of the listener, those too that no
	// chain has.
	AccessLogs []AccessLog

	// Secrets are the names of all secrets of its transport sockets, those too of chains
	// that are unsupported: some servers answer only to a request that names every
	// secret they have.
	Secrets []string

	// Unsupported says what keeps this valid listener from being run as meant. If
	// it is not empty the listener must not be run at all: its Addresses, of which
	// there may be none, take no connection.
	Unsupported string
	// Ignored lists, sorted, the fields that are set but not applied; the listener
	// runs without them.
	Ignored []string
}

// FilterChain is what becomes of the connections that it matches.
type FilterChain struct {
	// Name may be empty.
	Name string
	// Match is empty in a default chain.
	Match filterchain.Match
	// RBAC are the RBAC filters, all of which must allow a connection.
	RBAC []RBAC
	// TCPProxy is the last filter. It is the zero value in an Unsupported chain.
	TCPProxy TCPProxy
	// TLS ends at the listener with these settings; nil is no TLS. It is not to be
	// written. HandshakeTimeout is how long a handshake may take, 0 if the chain
	// does not say. Source: FilterChain.transport_socket.
	//
	// NoTLS says why there are no settings that could be used although there is to be
	// TLS: a secret has not come, say. If it is not empty the chain's connections must
	// be refused. TLS is not nil then, and no server can be made of it.
	TLS              *tlsconf.ServerConfig
	NoTLS            string
	HandshakeTimeout time.Duration
	tls              *downstreamContext // what TLS is made of, if it takes secrets
	// Unsupported says what keeps this valid chain from being run as meant. If it is
	// not empty its connections must be refused.
	Unsupported string
}

// RBAC is a network RBAC filter. Either may be nil. They are good: rbac.New takes
// them.
type RBAC struct{ Rules, Shadow *rbac.Rules }

// TCPProxy is where the connections of a FilterChain go.
// Source: envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy.
type TCPProxy struct {
	// Clusters are one at least. Of one alone the weight is 1.
	Clusters []WeightedCluster
	// HashSourceIP has hash policies choose by the client's address; else each
	// connection is drawn.
	HashSourceIP bool
	// IdleTimeout is 0 for never.
	IdleTimeout time.Duration
	// MaxConnectAttempts is how many endpoints are dialled, at least 1.
	MaxConnectAttempts int
	// MaxDuration is 0 for ever; its jitter is in percent of it, 0 to 100.
	MaxDuration       time.Duration
	MaxDurationJitter float64
	AccessLogs        []AccessLog
}

// WeightedCluster is a cluster by its name with a weight of at least 1; the sum of
// all is at most 2^32-1.
type WeightedCluster struct {
	Name   string
	Weight uint32
}

// AccessLog is a file, or stdout or stderr, and a format in the operators that
// Envoy has, or empty if the log does not say.
type AccessLog struct {
	Path, Format string
	Filter       LogFilter
}

// LogFilter says which connections get a line; the zero value is all of them. Of its
// kinds there is one.
type LogFilter struct {
	// Sampled is a RuntimeFilter with its default: so many of a million.
	Sampled    bool
	PerMillion uint32
	// DurationOp, if not empty, is a DurationFilter: the connection's is =, !=, >= or <=
	// to DurationMillis.
	DurationOp     string
	DurationMillis uint32
	// Flagged is a ResponseFlagFilter: it ended with one of Flags, which have commas
	// between them, or with any for "".
	Flagged bool
	Flags   string
}
