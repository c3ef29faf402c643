package config

import (
	"net/netip"
	"time"

	"gatehouse.internal/lbcore"
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
	// first that knows is in force. With priority each has priorities of its own,
	// behind those of the ones before it, so that load spills over from one to the
	// next.
	//
	// See discovery.Ordered and discovery.Prioritised.
	Mode string `hcl:"mode" default:"first" enum:"first|priority"`
	// HealthChecks must all pass before an endpoint takes connections. Without
	// any, only discovery's word counts.
	HealthChecks []HealthCheck `hcl:"health_check,block"`
	// OnAbsent says what happens to an endpoint that discovery does not list any
	// more: immediate, the default, withdraws it; stabilize has it take connections
	// for as long as it passes all of its checks, of which there must be one, as
	// Envoy does. The table is in docs/health.md.
	// Source: Cluster.ignore_health_on_host_removal.
	OnAbsent string `hcl:"on_absent" default:"immediate" enum:"immediate|stabilize"`
	// Selectors are the ways to choose an endpoint, at least one; the first is
	// used by listeners that name none. Default: one round_robin by the name
	// default.
	Selectors []Selector `hcl:"selector,block"`
	// ConnectTimeout bounds each attempt to connect. Default 5s, from 1ms to
	// 1h. Source: Cluster.connect_timeout.
	ConnectTimeout time.Duration `hcl:"connect_timeout" default:"5s" range:"1ms..1h"`
	// MaxConnectAttempts is how many endpoints a connection tries. Default 3,
	// from 1 to 8. Source: TcpProxy.max_connect_attempts.
	//
	// The most is lbcore.MaxPicks.
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
	// Drops are connections that get no endpoint, unless the source of the endpoints
	// has a word on it, as EDS can. Files can't set it.
	// Source: ClusterLoadAssignment.Policy.drop_overloads.
	Drops lbcore.Drops
	// SlowStart lets new endpoints begin with a part of their weight.
	SlowStart SlowStart `hcl:"slow_start,block"`
	// OutlierDetection ejects endpoints that connects fail to. It is off without
	// the block.
	OutlierDetection OutlierDetection `hcl:"outlier_detection,block"`
	// OnRemoval says what happens to connections to an endpoint that discovery
	// does not list any more or that is disabled, OnUnhealthy to those to one
	// whose checks fail, that EDS calls unhealthy or that is ejected, as in Envoy
	// (close_connections_on_host_health_failure): they are kept, closed, or
	// closed within CloseAfter, each at a moment of its own, so that clients
	// don't come back all at once. Those that are left when the endpoint comes
	// back stay, and so do those that it takes in a panic while it is unhealthy.
	// Default keep. The endpoints of a cluster that is removed are removed too.
	OnRemoval   string `hcl:"on_removal" default:"keep" enum:"keep|close|close_after"`
	OnUnhealthy string `hcl:"on_unhealthy" default:"keep" enum:"keep|close|close_after"`
	// CloseAfter is the time within which connections are closed where OnRemoval or
	// OnUnhealthy is close_after; it is a mistake to set it without. Default 60s, from
	// 1ms to 24h.
	CloseAfter time.Duration `hcl:"close_after" default:"60s" range:"1ms..24h"`
	// CircuitBreakers bound the connections of the cluster.
	CircuitBreakers CircuitBreakers `hcl:"circuit_breakers,block"`
	// ProxyProtocol tells endpoints by the PROXY protocol who the client is.
	ProxyProtocol ProxyOut `hcl:"proxy_protocol,block"`
	// TLS is how connections to endpoints are secured. Without the block they are
	// not.
	TLS UpstreamTLS `hcl:"tls,block"`
	// Connect is who dials the endpoints, where they are of Consul's service mesh.
	// Then a connection waits for no certificate: while there is none that is good it
	// is reset, and the access log says why. Health checks see if endpoints take
	// connections: they are of kind tcp, and send nothing.
	Connect Connect `hcl:"connect,block"`
	// SourceAddress is where connections to endpoints come from, at most one IP of
	// each family; where there is none of the endpoint's the system chooses. An
	// address that the host does not have counts against no endpoint. Health checks
	// come from it too, and have the mark.
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
	// LoadReports has the control plane told what connections there have been. Files
	// can't set it: they have no control plane. Source: Cluster.lrs_server.
	LoadReports bool
	// Transport is how connections to endpoints are secured, and what their checks
	// use, in place of TLS; nil is as TLS says. Files can't set it. It is not to be
	// written.
	Transport *Transport
	// Aggregate names the clusters whose priorities, one after the other, are this
	// one's, which has no Discovery then, and besides Name and Origin only
	// PanicThreshold. Clusters that are not there have no endpoints. Files can't set
	// it. Source: envoy.clusters.aggregate.
	Aggregate []string
	// Required has the agent wait for this cluster before it is ready for the
	// first time, for at most Config.InitialTimeout. Default true.
	Required bool `hcl:"required" default:"true"`
}

// The values of Cluster.OnAbsent.
const (
	AbsentImmediate = "immediate"
	AbsentStabilize = "stabilize"
)

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
	// that finds no other is reset. What is open stays counted when the settings
	// of the cluster change.
	MaxConnectionsPerEndpoint int `hcl:"max_connections_per_endpoint" range:"0.."`
}

// SlowStart describes how the weight of an endpoint grows once it takes
// connections, for all policies but ring_hash and maglev: it is a mistake in a
// cluster whose selectors are all of these. Source: Cluster.SlowStartConfig.
type SlowStart struct {
	// Window is how long the weight takes to grow to the whole; from 1ms to 24h.
	//
	// It is 0, which is off, only without the block.
	Window time.Duration `hcl:"window" required:"true" range:"1ms..24h"`
	// Aggression above 1 gives more weight early, below 1 less: after t it is
	// (t/Window)^(1/Aggression) of the whole. Default 1, from 0.001 to 1000.
	Aggression float64 `hcl:"aggression" default:"1" range:"0.001..1000"`
	// MinWeightPercent is the least part of the weight. Default 10, up to 100.
	MinWeightPercent float64 `hcl:"min_weight_percent" default:"10" range:"0..100"`
}

// ProxyOut describes the PROXY protocol header that endpoints get before a
// client's bytes. Health checks have a block of their own for it.
type ProxyOut struct {
	// Version is 1, which is text, or 2, which is binary and has room for TLVs.
	//
	// It is 0, which is off, only without the block.
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
	// Endpoints (static) are addresses in text, or objects with an address and
	// what else is known: weight, priority, health_status, locality with region,
	// zone and sub_zone, locality_weight, hash_key, additional_addresses. Of several
	// with one address the first counts.
	//
	// They are read by discovery.DecodeEndpoints.
	Endpoints []lbcore.Endpoint `hcl:"endpoints" for:"static" required:"true"`
	// Path (file) is the file with the list of endpoints, watched for changes: an
	// argument endpoints as above, in HCL or, where the name ends in .json, JSON.
	Path string `hcl:"path" for:"file" required:"true"`

	// Service (consul) is the service of the catalog, without a slash in its
	// name. Default: the cluster's name, unless PreparedQuery is set.
	Service string `hcl:"service" for:"consul"`
	// PreparedQuery (consul) is the name or id of a prepared query, asked every
	// PollInterval in place of a Service; 10s unless it is set.
	PreparedQuery string        `hcl:"prepared_query" for:"consul"`
	PollInterval  time.Duration `hcl:"poll_interval" for:"consul" range:"100ms..1h"`
	// Connect (consul) asks for what speaks for Service in Consul's service mesh, as
	// its sidecar proxies, in place of its instances. Without it, intentions are not
	// enforced, and whoever must be reached by mTLS is left out. It goes with a
	// connect block of the cluster, and not with PreparedQuery, Peer, SamenessGroup
	// and PortName.
	Connect bool `hcl:"connect" for:"consul"`
	// Tags and NodeMeta (consul) are what an instance and its node must have,
	// all of them.
	Tags     []string          `hcl:"tags" for:"consul"`
	NodeMeta map[string]string `hcl:"node_meta" for:"consul"`
	// Datacenter, Namespace, Partition, Peer and SamenessGroup (consul) say
	// where to look. Empty means what the consul block says.
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
	// Kinds (consul) are the kinds of proxies and gateways that are taken besides
	// ordinary services. Default none.
	Kinds []string `hcl:"kinds" for:"consul" enum:"connect-proxy|mesh-gateway|terminating-gateway|ingress-gateway|api-gateway"`
	// Near (consul) is the node from which instances are sorted by round trip,
	// "_agent" for that of the agent; the first Nearest get priority 0, the
	// others 1. Without Nearest these are 3.
	Near    string `hcl:"near" for:"consul"`
	Nearest int    `hcl:"nearest" for:"consul" range:"1.."`
	// Consistency (consul) is how fresh answers are. Default stale, with which
	// a server that is behind is not believed about what is gone.
	Consistency string `hcl:"consistency" for:"consul" default:"stale" enum:"stale|default|consistent"`
	// Cached (consul) lets the agent answer from its cache; not together with
	// consistency "consistent".
	Cached bool `hcl:"cached" for:"consul"`

	// HostName (dns) is the name to look up; without a dot at its end search domains
	// count.
	HostName string `hcl:"name" for:"dns" required:"true"`
	// RecordType (dns) is what is looked up: addresses, which get Port, or srv,
	// whose records have ports, so that there is no Port.
	RecordType string `hcl:"type" for:"dns" required:"true" enum:"a|aaaa|a+aaaa|srv"`
	Port       int    `hcl:"port" for:"dns" range:"1..65535"`
	// Targets (dns) is the type of the addresses of the targets of srv. Default
	// both.
	Targets string `hcl:"targets" for:"dns" enum:"a|aaaa|a+aaaa"`
	// Nameservers and TCP (dns) are as in the dns block, for this discovery only.
	// Names under consul. are always asked by TCP.
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

	// Hosts (dns) are the names of a cluster of the control plane, in place of
	// HostName and Port; and of each, PreferFamily, Logical and Jitter are what
	// dns.Query has. Files can't set these.
	Hosts        []Host
	PreferFamily string
	Logical      bool
	Jitter       time.Duration
}

// Host is a name, or an IP address, with what its endpoints are. Source: a
// LbEndpoint of a cluster whose type is STRICT_DNS or LOGICAL_DNS.
type Host struct {
	Name string
	Port uint16
	// Endpoint has what the endpoints are but for their address; an empty Hostname
	// is Name. CheckPort, if not 0, is probed in place of Port.
	Endpoint  lbcore.Endpoint
	CheckPort uint16
}

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

// Selector is one way to choose among a cluster's endpoints.
//
// Fields of other policies than its own are zero.
type Selector struct {
	// Name is unique in its cluster, 1 to 255 printable characters.
	Name string `hcl:",label"`
	// Policy is the algorithm: round_robin goes by turns, and random by chance, in
	// proportion to weights; least_weight takes the fewest connections for its
	// weight, of ChoiceCount drawn; adaptive goes by chance, with weights that follow
	// latency; ring_hash and maglev go by the key that the listener's HashOn has.
	// Default round_robin.
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
