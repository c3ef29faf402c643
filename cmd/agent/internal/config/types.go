package config

import (
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"gatehouse.internal/healthsvc"
	"gatehouse.internal/lbcore"
)

// Config is a whole configuration. Load is the only maker; its values are
// within the documented ranges and its references lead somewhere.
type Config struct {
	// Node says who this agent is, to control planes and in its own output.
	Node Node `hcl:"node,block"`
	// Admin is where the admin interface listens.
	Admin Admin `hcl:"admin,block"`
	// Log is how the agent logs, to stderr.
	Log Log `hcl:"log,block"`
	// Gate limits the memory that rebuilds of selectors take.
	Gate Gate `hcl:"gate,block"`
	// Relay is how connections are passed on.
	Relay Relay `hcl:"relay,block"`
	// Limits bound what the whole agent takes.
	Limits Limits `hcl:"limits,block"`
	// Health limits the health checks of all clusters.
	Health Health `hcl:"health,block"`
	// Telemetry is where metrics go besides /stats/prometheus.
	Telemetry Telemetry `hcl:"telemetry,block"`
	// XDS is the connection to an xDS control plane. Without the block there
	// is none: see XDS.Enabled.
	XDS XDS `hcl:"xds,block"`
	// Consul is the access to Consul: see UsesConsul.
	Consul Consul `hcl:"consul,block"`
	// DNS is how nameservers are asked: see UsesDNS.
	DNS DNS `hcl:"dns,block"`
	// InitialTimeout is how long after the start the agent may be not ready
	// because clusters, or what gives clusters, have not answered for the first
	// time; then it is ready without. 0 waits for as long as it takes. Default
	// 30s, up to 24h.
	InitialTimeout time.Duration `hcl:"initial_timeout" default:"30s" range:"0s..24h"`
	// DrainTimeout is how long open connections may go on after SIGTERM; those
	// that are left then are closed. 0 closes them at once. Default 30s, up to
	// 24h.
	DrainTimeout time.Duration `hcl:"drain_timeout" default:"30s" range:"0s..24h"`
	// DrainSpread is how long before the end of DrainTimeout the connections that
	// are left begin to be closed, each at a moment of its own, so that clients
	// don't come back all at once. 0 closes them all at its end. Default 10s, up to
	// 24h; more than DrainTimeout is as much as that.
	// Source: HAProxy's close-spread-time.
	DrainSpread time.Duration `hcl:"drain_spread" default:"10s" range:"0s..24h"`
	// Clusters are the groups of endpoints, in the order of their definition.
	// Names are unique.
	Clusters []Cluster `hcl:"cluster,block"`
	// Listeners are what the agent listens on, in the order of their
	// definition. Names are unique, and no two are on overlapping addresses.
	Listeners []Listener `hcl:"listener,block"`
	// Warnings are what is possible and may not be meant; nil for none.
	Warnings Errors
}

// Node identifies the agent. Source: envoy.config.core.v3.Node.
type Node struct {
	// ID is the name of this node. Default: the host name.
	ID string `hcl:"id"`
	// Cluster is the group of nodes that this one belongs to.
	Cluster  string   `hcl:"cluster"`
	Locality Locality `hcl:"locality,block"`
	// Metadata is sent to control planes as it stands: text, numbers
	// (float64), bools, lists ([]any) and objects (map[string]any).
	Metadata map[string]any `hcl:"metadata"`
}

// Locality is where a node is. It converts to lbcore.Locality.
// Source: envoy.config.core.v3.Locality.
type Locality struct {
	Region  string `hcl:"region"`
	Zone    string `hcl:"zone"`
	SubZone string `hcl:"sub_zone"`
}

// Admin is the admin interface.
type Admin struct {
	// Address is an IP with port, or unix:///path. It has no
	// authentication, so an address other than loopback is the operator's
	// decision. Port 0 lets the kernel choose. Default 127.0.0.1:9901.
	Address lbcore.Addr `hcl:"address" default:"127.0.0.1:9901"`
}

// Log is how the agent logs.
type Log struct {
	// Level is the least level that is written: debug, info, warn or error.
	// Default info.
	Level slog.Level `hcl:"level" enum:"debug|info|warn|error"`
	// JSON writes one JSON object a line instead of text.
	JSON bool `hcl:"json"`
}

// Relay is how connections are passed on: see forwarder.Loops.
type Relay struct {
	// EventLoops is how many event loops pass connections on. Default 0, which
	// is one for each CPU that the process may use; up to 256. It is Linux only:
	// elsewhere two goroutines serve each connection.
	EventLoops int `hcl:"event_loops" default:"0" range:"0..256"`
}

// Limits bound what the whole agent takes.
type Limits struct {
	// MaxConnections is how many connections may be open at once on all
	// listeners together; those over it are reset. 0, the default, is as many as
	// the process may have descriptors for: see forwarder.ConnectionsFor.
	MaxConnections int `hcl:"max_connections" range:"0.."`
}

// Gate is the gate that rebuilds of selectors pass: see lbcore.GateConfig.
type Gate struct {
	// StuckAfter is how long after a selector was replaced large rebuilds wait
	// for its readers. Default 10s, from 1ms to 1h.
	StuckAfter time.Duration `hcl:"stuck_after" default:"10s" range:"1ms..1h"`
	// MaxStuck is how many replaced selectors stuck readers may hold at once.
	// Default 4, from 1 to 1024.
	MaxStuck int `hcl:"max_stuck" default:"4" range:"1..1024"`
	// MaxStorage is the bytes of storage that one selector may take; one that
	// would take more is not built, and the last one serves on. It is a mistake if
	// a selector's ring or table would with a single endpoint already. Default
	// 1 GiB, from 64 KiB to 64 GiB.
	MaxStorage int `hcl:"max_storage" default:"1073741824" range:"65536..68719476736"`
}

// Health is the health checker that all clusters share.
type Health struct {
	// Workers is how many probes run at once. Default 2048, from 1 to 65536.
	Workers int `hcl:"workers" default:"2048" range:"1..65536"`
}

// Telemetry is what happens to metrics. Source: Consul's telemetry stanza.
type Telemetry struct {
	// PrometheusRetentionTime is after how long without a change a metric is
	// left out of /stats/prometheus. Default 24h, at least 1m; unlike Consul's
	// it can't be 0, since the path is always served.
	PrometheusRetentionTime time.Duration `hcl:"prometheus_retention_time" default:"24h" range:"1m.."`
	// StatsdAddress is the host:port that metrics are sent to by UDP. Empty
	// means nowhere.
	StatsdAddress string `hcl:"statsd_address"`
	// DisableHostname leaves the host name out of the names of gauges. Default
	// true, unlike Consul's.
	DisableHostname bool `hcl:"disable_hostname" default:"true"`
	// MetricsPrefix begins every name: letters, digits and underscores, no
	// digit first. Default gatehouse.
	MetricsPrefix string `hcl:"metrics_prefix" default:"gatehouse"`
}

// XDS is the connection to a control plane. Exactly one of Bootstrap and
// ServerURI is set, or neither where there is no control plane.
type XDS struct {
	// Bootstrap is the path of a gRPC xDS bootstrap file (gRFC A27).
	Bootstrap string `hcl:"bootstrap"`
	// ServerURI is the gRPC target of an ADS server, in plain text, as
	// "dns:///control:15010".
	ServerURI string `hcl:"server_uri"`
	// Clusters takes clusters from the control plane (CDS) too. A cluster that
	// a file defines wins over one of the same name.
	Clusters bool `hcl:"clusters"`
}

// DNS is which nameservers are asked by discovery "dns", and how. The block may
// be absent.
type DNS struct {
	// Nameservers are IP addresses, or IP:port, asked in place of those of
	// ResolvConf; at most 16.
	Nameservers []string `hcl:"nameservers"`
	// ResolvConf is the path of a resolv.conf(5), which is read again when it has
	// changed. Default /etc/resolv.conf.
	ResolvConf string `hcl:"resolv_conf" default:"/etc/resolv.conf"`
	// Search and NDots qualify names without a dot at their end. Default: what
	// ResolvConf says. NDots is up to 15, and 0 is the default.
	Search []string `hcl:"search"`
	NDots  int      `hcl:"ndots" range:"0..15"`
	// Stagger is after what time without an answer the next nameserver is asked
	// too. Default 150ms, from 1ms to 30s.
	Stagger time.Duration `hcl:"stagger" default:"150ms" range:"1ms..30s"`
	// Timeout is how long the answer of a nameserver is waited for. Default: what
	// ResolvConf says, or 2s. Up to 30s.
	Timeout time.Duration `hcl:"timeout" range:"0s..30s"`
	// Attempts is how often all nameservers are asked. Default: what ResolvConf
	// says, or 2. Up to 5.
	Attempts int `hcl:"attempts" range:"0..5"`
	// TCP asks by TCP only.
	TCP bool `hcl:"tcp"`
}

// UsesDNS reports whether nameservers are asked.
func (c *Config) UsesDNS() bool { return c.discovers(DiscoveryDNS) }

// discovers reports whether a cluster has a discovery of that kind.
func (c *Config) discovers(kind string) bool {
	return slices.ContainsFunc(c.Clusters, func(c Cluster) bool {
		return slices.ContainsFunc(c.Discovery, func(d Discovery) bool { return d.Kind == kind })
	})
}

// Enabled reports whether there is a control plane.
func (x XDS) Enabled() bool { return x.Bootstrap != "" || x.ServerURI != "" }

// Origin says where a Cluster or Listener was defined.
type Origin string

// The origins. Load gives OriginFile to all.
const (
	OriginFile   Origin = "file"
	OriginXDS    Origin = "xds"
	OriginConsul Origin = "consul"
)

// Cluster is a group of endpoints that take connections of the same kind.
// Source: envoy.config.cluster.v3.Cluster.
type Cluster struct {
	// Name is unique among clusters, 1 to 255 printable characters.
	Name   string `hcl:",label"`
	Origin Origin
	// Discovery says who the endpoints are, at least one; Mode says what several
	// are.
	Discovery []Discovery `hcl:"discovery,block"`
	// Mode says how several Discovery are combined. With first, the default, the
	// first that knows is in force: see discovery.Ordered. With priority each has
	// priorities of its own, behind those of the ones before it, so that load spills
	// over from one to the next: see discovery.Prioritised.
	Mode string `hcl:"mode" default:"first" enum:"first|priority"`
	// HealthChecks must all pass before an endpoint takes connections. Without
	// any, only discovery's word counts.
	HealthChecks []HealthCheck `hcl:"health_check,block"`
	// Selectors are the ways to choose an endpoint, at least one; the first is
	// used by listeners that name none. Default: one round_robin by the name
	// of DefaultSelector.
	Selectors []Selector `hcl:"selector,block"`
	// ConnectTimeout bounds each attempt to connect. Default 5s, from 1ms to
	// 1h. Source: Cluster.connect_timeout.
	ConnectTimeout time.Duration `hcl:"connect_timeout" default:"5s" range:"1ms..1h"`
	// MaxConnectAttempts is how many endpoints a connection tries. Default 3,
	// from 1 to 8 (lbcore.MaxPicks). Source: TcpProxy.max_connect_attempts.
	MaxConnectAttempts int `hcl:"max_connect_attempts" default:"3" range:"1..8"`
	// PanicThreshold is the percentage of available endpoints below which a
	// priority gives connections to all of its endpoints, whatever their health.
	// Default 0, which means never, up to 100.
	// Source: CommonLbConfig.healthy_panic_threshold.
	PanicThreshold uint32 `hcl:"panic_threshold" range:"0..100"`
	// LocalityWeighted shares the connections of a priority over its localities
	// by their weights, which static and file discovery and EDS give, and by how
	// much of each is available. Source: CommonLbConfig.locality_weighted_lb_config.
	LocalityWeighted bool `hcl:"locality_weighted"`
	// PreferLocal gives connections to endpoints in the region and zone of the
	// node while enough of them are available, then to those in its region, and
	// then to the others. Node.Locality must have a region or a zone.
	PreferLocal bool `hcl:"prefer_local"`
	// IgnoreNew leaves endpoints that have not been probed yet out of the count of
	// those that are missing.
	// Source: CommonLbConfig.ignore_new_hosts_until_first_hc.
	IgnoreNew bool `hcl:"ignore_new_hosts_until_first_hc"`
	// OverprovisioningFactor and WeightedPriorityHealth say when connections spill
	// over to the next priority, unless the source of the endpoints does, as EDS
	// can. The factor, in percent, is by how much more than their share endpoints
	// can take: with the default of 140 a priority takes all while 72 % of it are
	// healthy. From 1 to 100000; 0, in clusters of the control plane, is the
	// default too. With WeightedPriorityHealth endpoints count by their weights.
	// Source: ClusterLoadAssignment.Policy.
	OverprovisioningFactor uint32 `hcl:"overprovisioning_factor" default:"140" range:"1..100000"`
	WeightedPriorityHealth bool   `hcl:"weighted_priority_health"`
	// SlowStart lets new endpoints begin with a part of their weight.
	SlowStart SlowStart `hcl:"slow_start,block"`
	// OnRemoval says what happens to connections to an endpoint that discovery
	// does not list any more or that is disabled, OnUnhealthy to those to one
	// whose checks fail or that EDS calls unhealthy: they are kept, closed, or
	// closed within CloseAfter, each at a moment of its own, so that clients
	// don't come back all at once. Those that are left when the endpoint comes
	// back stay. Default keep. The endpoints of a cluster that is removed are
	// removed too.
	OnRemoval   string `hcl:"on_removal" default:"keep" enum:"keep|close|close_after"`
	OnUnhealthy string `hcl:"on_unhealthy" default:"keep" enum:"keep|close|close_after"`
	// CloseAfter is the time for close_after. Default 60s, from 1ms to 24h.
	CloseAfter time.Duration `hcl:"close_after" default:"60s" range:"1ms..24h"`
	// CircuitBreakers bound the connections of the cluster.
	CircuitBreakers CircuitBreakers `hcl:"circuit_breakers,block"`
	// ProxyProtocol tells endpoints by the PROXY protocol who the client is.
	ProxyProtocol ProxyOut `hcl:"proxy_protocol,block"`
	// TLS is how connections to endpoints are secured. Without the block they are
	// not.
	TLS UpstreamTLS `hcl:"tls,block"`
	// SourceAddress is where connections to endpoints come from, at most one IP of
	// each family; where there is none of the endpoint's the system chooses. An
	// address that the host does not have counts against no endpoint. Health checks
	// come from where the system chooses, unmarked.
	// Source: Cluster.upstream_bind_config.
	SourceAddress []netip.Addr `hcl:"source_address"`
	// SocketMark marks the packets to endpoints for routing and filters (Linux's
	// SO_MARK), which takes CAP_NET_ADMIN. Default 0, which is no mark.
	SocketMark uint32 `hcl:"socket_mark" range:"0..4294967295"`
	// TCPKeepalive finds endpoints that are gone without a word.
	TCPKeepalive TCPKeepalive `hcl:"tcp_keepalive,block"`
	// HappyEyeballs is how endpoints with additional addresses are dialled.
	HappyEyeballs HappyEyeballs `hcl:"happy_eyeballs_config,block"`
	// HashHostname has the hash policies place endpoints that have no hash key by
	// their host name. Files can't set it: they give keys.
	// Source: ConsistentHashingLbConfig.use_hostname_for_hashing.
	HashHostname bool
	// Required has the agent wait for this cluster before it is ready for the
	// first time, for at most Config.InitialTimeout. Default true.
	Required bool `hcl:"required" default:"true"`
}

// The values of Cluster.Mode.
const (
	ModeFirst    = "first"
	ModePriority = "priority"
)

// The values of Cluster.OnRemoval and Cluster.OnUnhealthy.
const (
	EndKeep       = "keep"
	EndClose      = "close"
	EndCloseAfter = "close_after"
)

// TLVsAll in ProxyOut.PassThroughTLVs stands for all types.
const TLVsAll = "all"

// CircuitBreakers bound the connections of a cluster, dials included. 0, the
// default, means no limit; in clusters of the control plane below 0 allows none.
// Source: CircuitBreakers.Thresholds.max_connections.
type CircuitBreakers struct {
	// MaxConnections is how many connections the cluster takes; those over it
	// are reset.
	MaxConnections int `hcl:"max_connections" range:"0.."`
	// MaxPendingRequests is how many of them may wait for their endpoint to be
	// connected, which are half-open dials; those over it are reset.
	// Source: CircuitBreakers.Thresholds.max_pending_requests.
	MaxPendingRequests int `hcl:"max_pending_requests" range:"0.."`
	// MaxConnectionsPerEndpoint is how many one endpoint takes, or a few more
	// when many come at once; it is passed over when it has them. A connection
	// that finds no other is reset. It is counted anew when the settings of the
	// cluster have changed.
	MaxConnectionsPerEndpoint int `hcl:"max_connections_per_endpoint" range:"0.."`
}

// SlowStart describes how the weight of an endpoint grows once it takes
// connections, for all policies but ring_hash and maglev: it is a mistake in a
// cluster whose selectors are all of these. Source: Cluster.SlowStartConfig.
type SlowStart struct {
	// Window is how long the weight takes to grow to the whole; from 1ms to 24h.
	// It is 0, which is off, only without the block.
	Window time.Duration `hcl:"window" required:"true" range:"1ms..24h"`
	// Aggression above 1 gives more weight early, below 1 less: after t it is
	// (t/Window)^(1/Aggression) of the whole. Default 1, from 0.001 to 1000.
	Aggression float64 `hcl:"aggression" default:"1" range:"0.001..1000"`
	// MinWeightPercent is the least part of the weight. Default 10, up to 100.
	MinWeightPercent float64 `hcl:"min_weight_percent" default:"10" range:"0..100"`
}

// ProxyOut describes the PROXY protocol header that endpoints get before a
// client's bytes. Health checks send none.
type ProxyOut struct {
	// Version is 1 or 2. It is 0, which is off, only without the block.
	Version uint32 `hcl:"version" required:"true" range:"1..2"`
	// UniqueID puts a unique id of the connection into headers of version 2.
	UniqueID bool `hcl:"unique_id"`
	// PassThroughTLVs are what a header of version 2 passes on of the TLVs in the
	// client's own: all, or those of the types that are listed as 0xNN. Default
	// none. CRC32C and NOOP are not passed on, nor a unique id over 128 bytes.
	// Source: ProxyProtocolConfig.pass_through_tlvs.
	PassThroughTLVs []string `hcl:"pass_through_tlvs" enum:"all|0xNN"`
}

// The kinds of Discovery.
const (
	DiscoveryEDS    = "eds"
	DiscoveryStatic = "static"
	DiscoveryFile   = "file"
	DiscoveryConsul = "consul"
	DiscoveryDNS    = "dns"
)

// Discovery is one source of a cluster's endpoints.
type Discovery struct {
	Kind string `hcl:",label" enum:"eds|static|file|consul|dns"`
	// ServiceName (eds) is the resource to ask the control plane for. Default:
	// the cluster's name. Source: EdsClusterConfig.service_name.
	ServiceName string `hcl:"service_name" for:"eds"`
	// Endpoints (static) are what discovery.DecodeEndpoints reads. Of several
	// with one address the first counts.
	Endpoints []lbcore.Endpoint `hcl:"endpoints" for:"static" required:"true"`
	// Path (file) is the file with the list of endpoints, watched for changes.
	Path string `hcl:"path" for:"file" required:"true"`

	// Service (consul) is the service of the catalog, without a slash in its
	// name. Default: the cluster's name, unless PreparedQuery is set.
	Service string `hcl:"service" for:"consul"`
	// PreparedQuery (consul) is the name or id of a prepared query, asked every
	// PollInterval in place of a Service: from 100ms to 1h, and 10s if it is 0.
	PreparedQuery string        `hcl:"prepared_query" for:"consul"`
	PollInterval  time.Duration `hcl:"poll_interval" for:"consul" range:"100ms..1h"`
	// Tags and NodeMeta (consul) are what an instance and its node must have,
	// all of them.
	Tags     []string          `hcl:"tags" for:"consul"`
	NodeMeta map[string]string `hcl:"node_meta" for:"consul"`
	// Datacenter, Namespace, Partition, Peer and SamenessGroup (consul) say
	// where to look. Empty means what Config.Consul says.
	Datacenter    string `hcl:"datacenter" for:"consul"`
	Namespace     string `hcl:"namespace" for:"consul"`
	Partition     string `hcl:"partition" for:"consul"`
	Peer          string `hcl:"peer" for:"consul"`
	SamenessGroup string `hcl:"sameness_group" for:"consul"`
	// Address (consul) chooses among the tagged addresses of an instance. Empty
	// means its own address.
	Address string `hcl:"address" for:"consul" enum:"lan|lan_ipv4|lan_ipv6|wan|wan_ipv4|wan_ipv6|virtual"`
	// PortName (consul) chooses the port of a service with several. Empty means
	// the default one.
	PortName string `hcl:"port_name" for:"consul"`
	// SocketPaths (consul) takes the unix sockets of instances that have one,
	// which are on their own node only.
	SocketPaths bool `hcl:"socket_paths" for:"consul"`
	// Kinds (consul) are taken besides ordinary services. Default none.
	Kinds []string `hcl:"kinds" for:"consul" enum:"connect-proxy|mesh-gateway|terminating-gateway|ingress-gateway|api-gateway"`
	// Near (consul) is the node from which instances are sorted by round trip,
	// "_agent" for that of the agent; the first Nearest get priority 0, the
	// others 1. Nearest is 3 if it is 0, and at least 1.
	Near    string `hcl:"near" for:"consul"`
	Nearest int    `hcl:"nearest" for:"consul" range:"1.."`
	// Consistency (consul) is how fresh answers are. Default stale, with which
	// a server that is behind is not believed about what is gone.
	Consistency string `hcl:"consistency" for:"consul" default:"stale" enum:"stale|default|consistent"`
	// Cached (consul) lets the agent answer from its cache; not together with
	// consistency "consistent".
	Cached bool `hcl:"cached" for:"consul"`

	// HostName (dns) is looked up. It is written name; without a dot at its end
	// search domains count.
	HostName string `hcl:"name" for:"dns" required:"true"`
	// RecordType (dns) is what is looked up: addresses, which get Port, or srv,
	// whose records have ports. It is written type.
	RecordType string `hcl:"type" for:"dns" required:"true" enum:"a|aaaa|a+aaaa|srv"`
	Port       int    `hcl:"port" for:"dns" range:"1..65535"`
	// Targets (dns) is the type of the addresses of the targets of srv. Default
	// both.
	Targets string `hcl:"targets" for:"dns" enum:"a|aaaa|a+aaaa"`
	// Nameservers and TCP (dns) are as in DNS, for this block only.
	Nameservers []string `hcl:"nameservers" for:"dns"`
	TCP         bool     `hcl:"tcp" for:"dns"`
	// MinTTL and MaxTTL (dns) bound the time to the next look-up, which is the
	// records' TTL give or take 15 %. Default 1s and 1h, from 10ms to 24h.
	MinTTL time.Duration `hcl:"min_ttl" for:"dns" default:"1s" range:"10ms..24h"`
	MaxTTL time.Duration `hcl:"max_ttl" for:"dns" default:"1h" range:"10ms..24h"`
	// Refresh (dns) is the time to the next look-up where the TTL is 0. Default
	// 5s, from 10ms to 24h. Source: Cluster.dns_refresh_rate.
	Refresh time.Duration `hcl:"refresh" for:"dns" default:"5s" range:"10ms..24h"`
	// RefreshLimit (dns) is the least time between look-ups where all endpoints
	// fail. Default 5s, from 10ms to 24h.
	RefreshLimit time.Duration `hcl:"refresh_limit" for:"dns" default:"5s" range:"10ms..24h"`
	// MinBackoff and MaxBackoff (dns) are the first and the longest wait after
	// failures and answers without records. Default 1s and 30s, from 10ms to 24h.
	// Source: Cluster.dns_failure_refresh_rate.
	MinBackoff time.Duration `hcl:"min_backoff" for:"dns" default:"1s" range:"10ms..24h"`
	MaxBackoff time.Duration `hcl:"max_backoff" for:"dns" default:"30s" range:"10ms..24h"`
	// Misses (dns) is how many answers in a row must lack a record until it is
	// gone. Default 2, from 1 to 10.
	Misses int `hcl:"misses" for:"dns" default:"2" range:"1..10"`
	// HoldNXDomain, HoldNoData, HoldRefused and HoldTimeout (dns) are for how long
	// the last good records stay while there is no such name, no such record,
	// SERVFAIL, REFUSED or no answer that can be used, and no answer at all. 0 is for
	// ever; the first two are 30s by default, and the others 0.
	HoldNXDomain time.Duration `hcl:"hold_nxdomain" for:"dns" default:"30s" range:"0s.."`
	HoldNoData   time.Duration `hcl:"hold_nodata" for:"dns" default:"30s" range:"0s.."`
	HoldRefused  time.Duration `hcl:"hold_refused" for:"dns" range:"0s.."`
	HoldTimeout  time.Duration `hcl:"hold_timeout" for:"dns" range:"0s.."`
}

// The kinds of HealthCheck.
const (
	CheckTCP  = "tcp"
	CheckHTTP = "http"
)

// The values of HealthCheck.Initial.
const (
	InitialUnknown = "unknown"
	InitialHealthy = "healthy"
)

// HealthCheck is one active check of every endpoint of a cluster.
// Source: envoy.config.core.v3.HealthCheck.
type HealthCheck struct {
	Kind string `hcl:",label" enum:"tcp|http"`
	// Interval is the time between two probes. Default 5s, from 1ms to 24h.
	Interval time.Duration `hcl:"interval" default:"5s" range:"1ms..24h"`
	// Timeout bounds a whole probe, from dial to last byte. Default 1s, from
	// 1ms, at most Interval.
	Timeout time.Duration `hcl:"timeout" default:"1s" range:"1ms..24h"`
	// HealthyThreshold is how many probes in a row must pass before an
	// unhealthy endpoint is healthy; one is enough for a new one. Default 2,
	// from 1 to 1000.
	HealthyThreshold uint32 `hcl:"healthy_threshold" default:"2" range:"1..1000"`
	// UnhealthyThreshold is how many probes in a row must fail before a
	// healthy endpoint is unhealthy. Default 3, from 1 to 1000.
	UnhealthyThreshold uint32 `hcl:"unhealthy_threshold" default:"3" range:"1..1000"`
	// InitialJitter spreads the first probe over this time. Default 0, up to
	// 24h.
	InitialJitter time.Duration `hcl:"initial_jitter" range:"0s..24h"`
	// IntervalJitter adds up to this much to each interval. Default 0, up to
	// 24h.
	IntervalJitter time.Duration `hcl:"interval_jitter" range:"0s..24h"`
	// IntervalJitterPercent adds up to this part of Interval to each interval.
	// Default 0, up to 10000.
	IntervalJitterPercent uint32 `hcl:"interval_jitter_percent" range:"0..10000"`
	// Initial is what counts before the first verdict: InitialUnknown takes no
	// connections, InitialHealthy does. Default unknown.
	Initial string `hcl:"initial" default:"unknown" enum:"unknown|healthy"`

	// Send (tcp) is written after connecting. Source: TcpHealthCheck.send.
	Send Payload `hcl:"send" for:"tcp"`
	// Receive (tcp) must come back, these pieces in this order, with anything
	// between them. Without Send and Receive connecting is enough.
	// Source: TcpHealthCheck.receive.
	Receive []Payload `hcl:"receive" for:"tcp"`

	// Method (http) is the request's method. Default GET.
	// Source: HttpHealthCheck.method.
	Method string `hcl:"method" for:"http" default:"GET" enum:"GET|HEAD|POST|PUT|DELETE|OPTIONS|TRACE|PATCH"`
	// Path (http) begins with a slash and may have a query. Default "/".
	// Source: HttpHealthCheck.path.
	Path string `hcl:"path" for:"http" default:"/"`
	// Host (http) is the Host header of endpoints that have no host name of
	// their own. Empty means the cluster's name. Source: HttpHealthCheck.host.
	Host string `hcl:"host" for:"http"`
	// ExpectedStatuses (http) pass. Empty means 200 only. Each is written as
	// one status or as two with both included: 204, "200-299".
	// Source: HttpHealthCheck.expected_statuses.
	ExpectedStatuses []StatusRange `hcl:"expected_statuses" for:"http"`
	// RetriableStatuses (http) count towards UnhealthyThreshold; any other that
	// is not expected makes the endpoint unhealthy at once.
	// Source: HttpHealthCheck.retriable_statuses.
	RetriableStatuses []StatusRange `hcl:"retriable_statuses" for:"http"`
}

// Payload is bytes that a probe sends or expects. It is written as text, or in
// hex behind 0x: "PING\r\n", "0x0d0a".
type Payload string

// StatusRange is a half-open range of statuses, as the probe takes it.
type StatusRange = healthsvc.StatusRange

// DefaultSelector is the name of a cluster's selector where none is defined.
const DefaultSelector = "default"

// The values of Selector.Policy.
const (
	PolicyRoundRobin  = "round_robin"
	PolicyRandom      = "random"
	PolicyRingHash    = "ring_hash"
	PolicyMaglev      = "maglev"
	PolicyLeastWeight = "least_weight"
	PolicyAdaptive    = "adaptive"
)

// The values of Selector.HashFunction.
const (
	HashXX      = "xx_hash"
	HashMurmur2 = "murmur_hash_2"
	HashKetama  = "ketama"
)

// RankInverse is the value of Selector.Rank.
const RankInverse = "inverse"

// The values of Selector.LatencyOf.
const (
	LatencyConnect   = "connect"
	LatencyFirstByte = "first_byte"
)

// Selector is one way to choose among a cluster's endpoints. Fields of other
// policies than its own are zero.
type Selector struct {
	// Name is unique in its cluster, 1 to 255 printable characters.
	Name string `hcl:",label"`
	// Policy is the algorithm. Default round_robin.
	Policy string `hcl:"policy,kind" default:"round_robin" enum:"round_robin|random|ring_hash|maglev|least_weight|adaptive"`

	// MinimumRingSize (ring_hash) is how many points the ring has at least.
	// Default 1024, from 1 to 8388608, at most MaximumRingSize. With ketama,
	// which has no use for it, it can't be set and is 0.
	// Source: Cluster.RingHashLbConfig.
	MinimumRingSize uint64 `hcl:"minimum_ring_size" for:"ring_hash" default:"1024" range:"1..8388608"`
	// MaximumRingSize (ring_hash) bounds the points. Default 8388608, which is
	// the most, from 1.
	MaximumRingSize uint64 `hcl:"maximum_ring_size" for:"ring_hash" default:"8388608" range:"1..8388608"`
	// HashFunction (ring_hash) places the points. Default xx_hash. With ketama,
	// CRC-32, the ring is that of nginx and Pingora.
	HashFunction string `hcl:"hash_function" for:"ring_hash" default:"xx_hash" enum:"xx_hash|murmur_hash_2|ketama"`

	// TableSize (maglev) is the number of slots, a prime. Default 65537, from 2
	// to 5000011. Source: Cluster.MaglevLbConfig.table_size.
	TableSize uint64 `hcl:"table_size" for:"maglev" default:"65537" range:"2..5000011"`

	// HashBalanceFactor (ring_hash, maglev) bounds an endpoint's connections to
	// this percentage of what its weight makes due to it; those above it go to the
	// next candidate. Default 0, which is no bound, or from 100 to 1000000.
	// Source: ConsistentHashingLbConfig.hash_balance_factor.
	HashBalanceFactor uint32 `hcl:"hash_balance_factor" for:"ring_hash|maglev" range:"0..1000000"`

	// ChoiceCount (least_weight) is how many endpoints are drawn. Default 2,
	// from 2 to 10. Source: Cluster.LeastRequestLbConfig.choice_count.
	ChoiceCount int `hcl:"choice_count" for:"least_weight" default:"2" range:"2..10"`
	// ActiveRequestBias (least_weight) is the exponent of the number of
	// connections; 0 ignores them. Default 1, up to 1000.
	// Source: Cluster.LeastRequestLbConfig.active_request_bias.
	ActiveRequestBias float64 `hcl:"active_request_bias" for:"least_weight" default:"1" range:"0..1000"`

	// Rank (adaptive) is what a latency is worth: inverse, the default, makes
	// shares proportional to 1 / latency.
	Rank string `hcl:"rank" for:"adaptive" default:"inverse" enum:"inverse"`
	// LatencyOf (adaptive) is what is measured from the dial on: until the
	// endpoint is connected, or until its first byte comes, which is fair only
	// where clients ask at once, or endpoints speak first. Default connect.
	// The adaptive selectors of a cluster share what is learnt, so it is the
	// same in all of them.
	LatencyOf string `hcl:"latency_of" for:"adaptive" default:"connect" enum:"connect|first_byte"`
}

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
	// does. Default 1h. Source: TcpProxy.idle_timeout.
	IdleTimeout time.Duration `hcl:"idle_timeout" default:"1h" range:"0s.."`
	// HalfClosedTimeout closes a connection one side of which has ended its
	// stream so long ago. Default 5m, from 1ms to 24h.
	HalfClosedTimeout time.Duration `hcl:"half_closed_timeout" default:"5m" range:"1ms..24h"`
	// MaxConnectionDuration closes a connection so long after it was accepted,
	// whatever it does, and then a time drawn from up to
	// MaxConnectionDurationJitter percent of it, so that connections that were
	// made together do not come back together. Default 0, which is never, and no
	// jitter, which is at most 100.
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
}

// AccessLog describes one access log of a listener. A line that can't be written
// at once, as to a full disk or a pipe that nobody reads, is lost and counted.
type AccessLog struct {
	// Path is stdout, stderr (where the agent's own log goes), or the absolute
	// path of a file, which is made with mode 0640, appended to, and opened again
	// on SIGHUP and when it was moved. Listeners may share it.
	Path string `hcl:"path" required:"true"`
	// Format is json, text, or a text with Envoy's operators: see
	// accesslog.Parse. Default text.
	Format string `hcl:"format" default:"text"`
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
// of version 1 or 2: see forwarder.ProxyIn.
type ProxyIn struct {
	// AcceptFrom are the addresses of the proxies, as "10.0.0.0/8" or
	// "10.0.0.7"; others are reset. It is empty, which is off, only without the
	// block.
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
