package config

import (
	"time"

	"gatehouse.internal/forwarder/filterchain"
	"gatehouse.internal/forwarder/rbac"
	"gatehouse.internal/internal/tlsconf"
	"gatehouse.internal/lbcore"
)

// Control is what only the control plane says of a listener. Where it does, Cluster
// and its kin, HashOn, the timeouts of connections and TLS of the Listener don't
// count. It is never written after it was made.
// Source: envoy.config.listener.v3.Listener.
type Control struct {
	// Chains are the filter chains; no two match the same. Default, which may be nil,
	// takes the connections that none of them matches.
	Chains  []FilterChain
	Default *FilterChain
	// NoBind has no socket opened; connections come from listeners with
	// UseOriginalDst, which give them to the listener of the address that clients had
	// connected to.
	NoBind, UseOriginalDst bool
	// Inspect reads clients' ClientHello, and CutLateHello resets those who have sent
	// nothing within TLSInspector.Timeout.
	Inspect, CutLateHello bool
	// Unsupported, if not empty, is why the listener can't be run as meant. Then it
	// has no socket and no chain, and refuses what other listeners give it.
	Unsupported string
}

// FilterChain is what becomes of the connections that it matches.
type FilterChain struct {
	Name  string
	Match filterchain.Match
	// Unsupported, if not empty, is why the chain refuses its connections; then
	// nothing below counts.
	Unsupported string
	// RBAC must all allow a connection.
	RBAC []RBAC
	// Clusters are one at least; HashOn is HashOnNone or HashOnSourceIP.
	Clusters []WeightedCluster
	HashOn   string
	// IdleTimeout and MaxConnectionDuration are as those of Listener, as is the
	// latter's jitter; MaxConnectAttempts is how many endpoints are dialled.
	IdleTimeout                 time.Duration
	MaxConnectAttempts          int
	MaxConnectionDuration       time.Duration
	MaxConnectionDurationJitter float64
	// TLS ends at the listener; nil is no TLS. NoTLS, if not empty, is why there is none
	// that could be used although there is to be: then the chain refuses its connections.
	// HandshakeTimeout is 0 for the default.
	TLS              *tlsconf.ServerConfig
	NoTLS            string
	HandshakeTimeout time.Duration
	AccessLogs       []AccessLog
}

// Transport is how connections to the endpoints of a cluster of the control plane are
// secured: by the first of Matches whose Match the endpoint's labels have, or those
// behind them if none has, and else by Default.
// Source: Cluster.transport_socket_matches and transport_socket.
type Transport struct {
	Matches []TransportSocket
	Default TransportSocket
}

// TransportSocket is one way to do so. The zero value is plain text.
type TransportSocket struct {
	Name  string // of a match
	Match lbcore.Labels
	TLS   *ControlTLS // nil: none
	// NoTLS, if not empty, is why there is no TLS that could be used although there is to
	// be: such endpoints are not dialled, and of TLS only what does not come from secrets
	// is there.
	NoTLS string
	// Unsupported, if not empty, is why such endpoints are not dialled.
	Unsupported string
}

// ControlTLS is TLS to endpoints. With HostSNI the host name of one that has a name
// goes before ServerName.
// Source: envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext.
type ControlTLS struct {
	tlsconf.ClientConfig
	HostSNI bool
}

// RBAC is an RBAC filter, of which either may be nil.
type RBAC struct{ Rules, Shadow *rbac.Rules }
