package config

import (
	"net/netip"
	"time"

	"gatehouse.internal/lbcore"
)

// The values of Listener.HashOn. HashOnProxyTLV is followed by the type of the
// TLV: see ParseByte.
const (
	HashOnNone         = "none"
	HashOnSourceIP     = "source_ip"
	HashOnSourceIPPort = "source_ip_port"
	HashOnDestination  = "destination"
	HashOnSNI          = "sni"
	HashOnProxyTLV     = "proxy_tlv:"
)

// Listener is an address that takes connections for a cluster.
// Source: envoy.config.listener.v3.Listener with a TcpProxy.
type Listener struct {
	// Name is unique among listeners, 1 to 255 printable characters.
	Name   string `hcl:",label"`
	Origin Origin
	// Address is an IP with port, or unix:///path; host names are refused.
	// Port 0 lets the kernel choose.
	Address lbcore.Addr `hcl:"address" required:"true"`
	// Cluster takes the connections. It is defined in a file, or comes from
	// the control plane where XDS.Clusters is set.
	Cluster string `hcl:"cluster"`
	// WeightedClusters take the place of Cluster, which is empty then: each
	// connection goes to one of them, drawn by their weights. If that has nobody
	// who is ready the connection is reset, as it is with one cluster.
	// Source: TcpProxy.weighted_clusters.
	WeightedClusters []WeightedCluster `hcl:"weighted_cluster,block"`
	// Selector is the cluster's selector to use, and that of each where there are
	// several. Empty means its first.
	Selector string `hcl:"selector"`
	// HashOn is what a hash policy chooses by: source_ip keeps a client with
	// its endpoint, source_ip_port each of its connections; destination is the
	// address with port that it has connected to (as its PROXY header says, or as
	// it was before a redirect with OriginalDst), sni the server name of its TLS
	// ClientHello, which passes through where TLS does not end here, and
	// proxy_tlv:0xNN the value of that TLV in its PROXY header of version 2. none draws at random, as does what is not
	// known of a client. Default none.
	// Source: TcpProxy.hash_policy.
	HashOn string `hcl:"hash_on" default:"none" enum:"none|source_ip|source_ip_port|destination|sni|proxy_tlv:0xNN"`
	// TLSInspector is how the ClientHello is waited for that sni needs.
	TLSInspector TLSInspector `hcl:"tls_inspector,block"`
	// OriginalDst asks the kernel what each client had connected to before a
	// rule of iptables (REDIRECT, DNAT) sent it here. It goes into an outgoing
	// PROXY header, and to hash_on destination; it does not lead there. The
	// rule must leave out what the agent sends: what comes back is reset. Linux
	// only.
	// Source: envoy.filters.listener.original_dst.
	OriginalDst bool `hcl:"original_dst"`
	// IdleTimeout closes a connection that moves no byte for so long; 0 never
	// does. On Linux a side that takes some of what waits for it moves bytes too,
	// which is looked at four times in that time: who has stopped is closed up
	// to a quarter later. Default 1h. Source: TcpProxy.idle_timeout.
	IdleTimeout time.Duration `hcl:"idle_timeout" default:"1h" range:"0s.."`
	// HalfClosedTimeout closes a connection one side of which has ended its
	// stream, or was reset, and that has moved no byte for so long since, as
	// IdleTimeout counts them. Default 5m, from 1ms to 24h.
	HalfClosedTimeout time.Duration `hcl:"half_closed_timeout" default:"5m" range:"1ms..24h"`
	// MaxConnectionDuration closes a connection so long after it was accepted,
	// whatever it does, and then a time drawn from up to
	// MaxConnectionDurationJitter percent of it, so that connections that were
	// made together do not come back together. Default 0, which is never, and no
	// jitter, which is at most 100 and a mistake without a duration.
	// Source: TcpProxy.max_downstream_connection_duration and
	// max_downstream_connection_duration_jitter_percentage.
	MaxConnectionDuration       time.Duration `hcl:"max_connection_duration" range:"0s.."`
	MaxConnectionDurationJitter float64       `hcl:"max_connection_duration_jitter_percentage" range:"0..100"`
	// MaxConnections is how many connections may be open at once; those over it
	// are reset. 0, the default, means no limit.
	MaxConnections int `hcl:"max_connections" range:"0.."`
	// ProxyProtocol has clients begin with a PROXY protocol header.
	ProxyProtocol ProxyIn `hcl:"proxy_protocol,block"`
	// TLS is how connections with clients are secured. Without the block they are
	// not. A PROXY protocol header comes before the handshake.
	TLS DownstreamTLS `hcl:"tls,block"`
	// Connect is who takes the connections, where clients are of Consul's service
	// mesh. An answer about a client's intentions counts for 3 seconds; who may not
	// connect, or is not known because the agent does not answer, is reset.
	Connect DownstreamConnect `hcl:"connect,block"`
	// TCPKeepalive finds clients that are gone without a word.
	TCPKeepalive TCPKeepalive `hcl:"tcp_keepalive,block"`
	// TCPBacklogSize is how many connections may wait to be accepted. Default 0,
	// which is as many as the system allows: net.core.somaxconn on Linux, where it
	// is 4096 by default and bounds this.
	// Source: Listener.tcp_backlog_size.
	TCPBacklogSize int `hcl:"tcp_backlog_size" range:"0..2147483647"`
	// Unix says whose the file of a unix socket is.
	Unix Unix `hcl:"unix,block"`
	// AccessLogs get a line for each connection that has ended.
	// Source: TcpProxy.access_log.
	AccessLogs []AccessLog `hcl:"access_log,block"`
	// Control is what the control plane says of its own listeners, and nil in those
	// of files and the catalog.
	Control *Control
}

// AccessLog describes one access log of a listener. A line that can't be written
// at once, as to a full disk or a pipe that nobody reads, is lost and counted.
type AccessLog struct {
	// Path is stdout, stderr (where the agent's own log goes), or the absolute
	// path of a file, which is made with mode 0640, appended to, and opened again
	// on SIGHUP and when it was moved. Listeners may share it.
	Path string `hcl:"path" required:"true"`
	// Format is json, text, or a text with Envoy's operators, as %RESPONSE_FLAGS%.
	// Default text.
	//
	// See accesslog.Parse.
	Format string `hcl:"format" default:"text"`
	// Sample is the share of connections that get a line, by chance: 0.01 is one of a
	// hundred. Default 1, all of them; 0 with SampleFailures off is failures only.
	Sample float64 `hcl:"sample" default:"1" range:"0..1"`
	// SampleFailures has connections that ended with a response flag get a line no more
	// often than others; with false each of them gets one. Default true.
	SampleFailures bool `hcl:"sample_failures" default:"true"`
	// What follows is of the control plane only: see accesslog.Config.
	DurationOp     string
	DurationMillis uint32
	Flagged        bool
	Flags          string
}

// Targets returns the clusters that take the connections of l, with their
// weights.
func (l *Listener) Targets() []WeightedCluster {
	if len(l.WeightedClusters) > 0 {
		return l.WeightedClusters
	}
	return []WeightedCluster{{l.Cluster, 1}}
}

// WeightedCluster is a cluster that takes a share of a listener's connections.
// Source: TcpProxy.WeightedCluster.ClusterWeight.
type WeightedCluster struct {
	// Name is that of the cluster, which is known as Listener.Cluster is.
	Name string `hcl:",label"`
	// Weight is the share among the weights of all, the sum of which is at most
	// 4294967295. From 1 to 4294967295.
	Weight uint32 `hcl:"weight" required:"true" range:"1..4294967295"`
}

// TLSInspector bounds the wait for a client's TLS ClientHello where hash_on is
// sni. Source: envoy.filters.listener.tls_inspector.
type TLSInspector struct {
	// Timeout is how long a client may take to send it; after that the client is
	// served without it, as one that sends something else is at once. Default 5s,
	// from 1ms to 1h. Source: Listener.listener_filters_timeout.
	Timeout time.Duration `hcl:"timeout" default:"5s" range:"1ms..1h"`
	// MaxPending is how many connections may be without it at once; those over
	// it are reset. Default 1024, from 1 to 1048576.
	MaxPending int `hcl:"max_pending" default:"1024" range:"1..1048576"`
}

// ProxyIn describes who tells a listener of its clients by the PROXY protocol,
// of version 1 or 2.
//
// See forwarder.ProxyIn.
type ProxyIn struct {
	// AcceptFrom are the addresses of the proxies, as "10.0.0.0/8" or
	// "10.0.0.7"; others are reset.
	//
	// It is empty, which is off, only without the block.
	AcceptFrom []netip.Prefix `hcl:"accept_from" required:"true"`
	// Optional serves proxies that send no header, too.
	Optional bool `hcl:"optional"`
	// Timeout is how long a client may take to send its header. Default 10s,
	// from 1ms to 1h.
	Timeout time.Duration `hcl:"timeout" default:"10s" range:"1ms..1h"`
	// MaxPending is how many connections may be without their header at once;
	// those over it are reset. Default 1024, from 1 to 1048576.
	MaxPending int `hcl:"max_pending" default:"1024" range:"1..1048576"`
}
