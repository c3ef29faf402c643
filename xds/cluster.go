package xds

import (
	"net/netip"
	"time"

	"gatehouse.internal/healthsvc"
	"gatehouse.internal/healthsvc/outlier"
	"gatehouse.internal/lbcore"
)

// DefaultConnectTimeout applies to a Cluster that doesn't say.
// Source: Cluster.connect_timeout.
const DefaultConnectTimeout = 5 * time.Second

// Cluster is a CDS resource as far as this program applies it. It is never
// written after it was made.
type Cluster struct {
	// Name is the cluster's name, never empty.
	Name string
	// EDSName is the EDS resource with the endpoints: the service name, or else
	// Name. It is empty for a cluster of another type than EDS.
	EDSName string
	// Static holds the endpoints of a STATIC cluster, and is nil for others.
	Static *lbcore.Set
	// Duplicates are the endpoints that Static leaves out because their address
	// is in it already.
	Duplicates []lbcore.Dropped
	// DNS holds the host names of a cluster that is resolved by the agent, and is
	// nil for others. Source: STRICT_DNS, LOGICAL_DNS, and envoy.clusters.dns.
	DNS *DNS
	// Aggregate names the clusters whose priorities, one after the other, are those
	// of an aggregate cluster. It has no endpoints of its own, and of the settings
	// below only PanicThreshold counts. It is nil for others.
	// Source: envoy.clusters.aggregate.
	Aggregate []string

	Policy Policy
	// PanicThreshold, in percent, is the availability below which a priority
	// panics, 50 if the cluster doesn't say; 0 is never.
	// Source: CommonLbConfig.healthy_panic_threshold.
	PanicThreshold uint32
	// LocalityWeighted shares the load of a priority over its localities by their
	// weights. Source: locality_weighted_lb_config, or the wrr_locality policy.
	LocalityWeighted bool
	// IgnoreNew leaves endpoints that have not been probed yet out of the count of
	// those that are missing.
	// Source: CommonLbConfig.ignore_new_hosts_until_first_hc.
	IgnoreNew bool
	// SlowStart is how the weights of new endpoints grow; the zero value is off.
	SlowStart      lbcore.SlowStart
	ConnectTimeout time.Duration // always above 0
	// IgnoreHealthOnRemoval withdraws endpoints that are not listed any more even
	// if they pass their checks. Source: ignore_health_on_host_removal.
	IgnoreHealthOnRemoval bool
	// CloseOnHealthFailure closes the connections to endpoints that become unhealthy.
	// Source: close_connections_on_host_health_failure.
	CloseOnHealthFailure bool
	// SourceAddress is where connections come from, at most one IP of each family.
	// Source: upstream_bind_config.
	SourceAddress []netip.Addr
	// Keepalive is that of the connections to endpoints; nil if the cluster does
	// not say. Source: upstream_connection_options.tcp_keepalive.
	Keepalive *Keepalive
	// FirstFamily, 4 or 6, is the address family that is tried first of endpoints
	// with several addresses, 0 if the cluster doesn't say, and FirstFamilyCount
	// how many of its addresses come before each one of the other family, 0 too.
	// Source: happy_eyeballs_config.
	FirstFamily      uint8
	FirstFamilyCount int
	// CircuitBreakers bound the connections.
	CircuitBreakers CircuitBreakers
	// LoadReports has the server told what connections the endpoints have had: see
	// Config.Loads. Source: Cluster.lrs_server, of self.
	LoadReports bool
	// HealthChecks must all pass. Empty means that endpoints aren't probed.
	HealthChecks []HealthCheck
	// Outlier is the outlier detection; the zero value is none.
	// Source: Cluster.outlier_detection.
	Outlier outlier.Config

	// Transport is how connections to endpoints are secured that none of
	// TransportMatches is for. Of these the first counts whose Match an endpoint's own
	// labels have, or else those behind them: see lbcore.Endpoint.TransportMatch.
	// Source: Cluster.transport_socket, Cluster.transport_socket_matches.
	Transport        TransportSocket
	TransportMatches []TransportSocket

	// Secrets are the names of all secrets of its transport sockets, if it is
	// unsupported too.
	Secrets []string

	// Unsupported says what keeps this valid cluster from being run as meant.
	// If it is not empty the cluster must not be run at all.
	Unsupported string
	// Ignored lists, sorted, the fields that are set but not applied; the
	// cluster runs without them. Endpoints of Static that can't be dialled by
	// this program and are left out are in it too.
	Ignored []string
	// Warnings, sorted, say what of the cluster is less safe than it may seem, and
	// which of its endpoints are not dialled.
	Warnings []string
}

// PolicyName names a load-balancing policy as configuration files do.
type PolicyName string

// The policies that a Cluster can have.
const (
	RoundRobin  PolicyName = "round_robin"
	Random      PolicyName = "random"
	LeastWeight PolicyName = "least_weight" // Envoy's LEAST_REQUEST
	RingHash    PolicyName = "ring_hash"
	Maglev      PolicyName = "maglev"
)

// Policy is how a Cluster picks endpoints. Policies are comparable. Fields that
// the named policy doesn't have are zero.
type Policy struct {
	Name PolicyName // empty only in unsupported and aggregate clusters

	// MinimumRingSize and MaximumRingSize bound the entries of a ring, 1024 to
	// 8388608 if the cluster doesn't say. Source: RingHash.minimum_ring_size.
	MinimumRingSize, MaximumRingSize uint64
	// HashFunction is "xx_hash" or "murmur_hash_2".
	HashFunction string

	// TableSize is the number of slots of a table, a prime, 65537 if the cluster
	// doesn't say. Source: Maglev.table_size.
	TableSize uint64

	// HashBalanceFactor bounds the connections of an endpoint, in percent of what
	// its weight makes due to it: at least 100, or 0 for no bound.
	// Source: ConsistentHashingLbConfig.hash_balance_factor.
	HashBalanceFactor uint32
	// HashHostname has endpoints without a hash key of their own placed by their
	// host name. Source: ConsistentHashingLbConfig.use_hostname_for_hashing.
	HashHostname bool

	// ChoiceCount is how many endpoints are compared: 2 (the default) to 10, to
	// which larger values are clamped as gRPC does (A48).
	ChoiceCount uint32
	// ActiveRequestBias is the exponent of the connections: 0 to 1000, 1 if the
	// cluster doesn't say. Source: LeastRequest.active_request_bias.
	ActiveRequestBias float64
}

// HealthCheck is one active check. Exactly one of TCP, HTTP and GRPC is set.
// Source: envoy.config.core.v3.HealthCheck.
type HealthCheck struct {
	// Cadence has a NoTrafficInterval of 60 s where the check doesn't say.
	healthsvc.Cadence
	healthsvc.Thresholds
	AlwaysLogFailures bool
	// Port is probed in place of the endpoints' own; 0 is theirs.
	// Source: HealthCheck.alt_port.
	Port uint32
	// ALPN, if not empty, is offered in place of what the transport socket offers.
	// Source: HealthCheck.tls_options.
	ALPN []string
	// TransportMatch, if there are any, are the labels that probes find their transport
	// socket by, in place of the endpoint's own.
	// Source: HealthCheck.transport_socket_match_criteria.
	TransportMatch lbcore.Labels
	TCP            *healthsvc.TCP
	// HTTP and GRPC have the check's own host and authority, which may be empty:
	// an endpoint's host name goes before it, and the cluster's name stands in for
	// it.
	HTTP *healthsvc.HTTP
	GRPC *healthsvc.GRPC
}

// probe returns the one that is set.
func (h *HealthCheck) probe() interface{ Validate() error } {
	switch {
	case h.HTTP != nil:
		return h.HTTP
	case h.GRPC != nil:
		return h.GRPC
	}
	return h.TCP
}

// DefaultNoTrafficInterval applies to a HealthCheck that doesn't say.
// Source: HealthCheck.no_traffic_interval.
const DefaultNoTrafficInterval = 60 * time.Second
