package node

import (
	"net/netip"
	"time"

	"gatehouse.internal/cmd/agent/internal/config"
	"gatehouse.internal/discovery"
	"gatehouse.internal/forwarder"
	"gatehouse.internal/healthsvc"
	"gatehouse.internal/healthsvc/outlier"
	"gatehouse.internal/internal/tlsconf"
	"gatehouse.internal/lbcore"
)

// Status is what the node is and does at one moment, for dumps. It is the
// reader's own.
type Status struct {
	Clusters  []ClusterStatus  // by name
	Listeners []ListenerStatus // by name
	// Nameservers are those that discovery by DNS asks, by group and address.
	Nameservers []NameserverStatus
}

// NameserverStatus describes a nameserver: see dns.NameserverStats.
type NameserverStatus struct {
	Group                        string
	Address                      netip.AddrPort
	Weight, Share                float64
	Latency                      time.Duration
	Queries, Won, Failures, Late uint64
	Strays, TCP                  uint64
}

// ClusterStatus describes one cluster.
type ClusterStatus struct {
	Name string
	// Origin is "file", "xds" or "consul".
	Origin string
	// Unsupported is why the cluster can't be run, or empty.
	Unsupported string
	// Aggregate names the clusters that an aggregate one consists of, and
	// AggregateLoads is how the load is shared by those that are there. It has no
	// endpoints, selectors and counters of its own.
	Aggregate      []string
	AggregateLoads []AggregateLoad
	Source         SourceStatus
	Generation     uint64
	Selectors      []SelectorStatus
	Endpoints      []EndpointStatus
	Counts         Counts // of Endpoints
	// Totals are of all endpoints that the cluster ever had.
	Totals Totals
	// Connect and FirstByte are how long endpoints took: see forwarder.Latency. They
	// go on when other settings replace the cluster.
	Connect, FirstByte forwarder.LatencyCounts
	// Duplicates counts endpoints that discovery gave with an address that was
	// there already.
	Duplicates uint64
	// Drops are the categories of connections that discovery wants dropped, or did
	// once, by name.
	Drops []DropStatus
	// Open are the connections of the cluster, dials included, and Pending those of
	// them whose endpoint is not connected yet. MaxPerEndpoint is how many each
	// endpoint takes: as Breaker.Limit.
	Open, Pending  Breaker
	MaxPerEndpoint int
	// Ending is how many endpoints, removed or unhealthy, lose their connections,
	// or have lost them.
	Ending int
	// TLS is what is in force towards endpoints; nil without TLS. TLSFailures counts the
	// reasons why there was no TLS connection to one, of the cluster and of those that it
	// has replaced.
	TLS         *tlsconf.Status
	TLSFailures [tlsconf.NumReasons]uint64
	// Outliers are the counters of outlier detection, nil without it; it is not
	// to be written. SplitOrigin says that endpoints' success rates are of local
	// origin errors.
	Outliers    *outlier.Stats
	SplitOrigin bool
	// Waiting is what the cluster, or a change of its settings, waits for before
	// it is in force, or empty.
	Waiting string
}

// AggregateLoad is the load of a priority of one of the clusters of an aggregate.
type AggregateLoad struct {
	Cluster string
	lbcore.TierLoad
}

// Counts says how many endpoints of a cluster are what.
type Counts struct {
	// Listed are not Withdrawn; of these there are Degraded ones, and those that
	// are ready and in SlowStart.
	Listed, Ready, Degraded, SlowStart int
}

func (c *Counts) add(m *lbcore.Member) {
	ready := m.Ready()
	if ready {
		c.Ready++
	}
	if m.Withdrawn() {
		return
	}
	c.Listed++
	if m.Degraded() {
		c.Degraded++
	}
	if ready && m.SlowStart() < 1 {
		c.SlowStart++
	}
}

// DropStatus describes a category of connections that discovery wants dropped.
// Source: ClusterLoadAssignment.Policy.DropOverload.
type DropStatus struct {
	Category   string
	PerMillion uint32 // 0 if it is not wanted any more
	Dropped    uint64
}

// Breaker is a circuit breaker: a limit and what is counted towards it.
type Breaker struct {
	Limit   int // 0 is none, and below 0 nothing is allowed
	Now     int64
	Refused uint64 // connections that were one too many
}

// Remaining returns how many more there may be, or false if there is no limit.
func (b Breaker) Remaining() (int64, bool) {
	return max(int64(max(b.Limit, 0))-b.Now, 0), b.Limit != 0
}

func breaker(c *forwarder.Count, limit int) Breaker { return Breaker{limit, c.Open(), c.Refused()} }

// SourceStatus describes what discovery knows.
type SourceStatus struct {
	// State is unknown, failing, fresh or stale; Since when it holds.
	State string
	Since time.Time
	// Confirmed is when the source last said what its endpoints are, the same
	// again included; the zero Time if never. A source that is told of every
	// change says nothing while there is none.
	Confirmed time.Time
	// Held is set while the source holds back that endpoints are gone. It is
	// not to be written.
	Held *discovery.HeldError
	// Restored is set while the endpoints in force are those of an earlier run, and
	// the source has not answered since. It is not to be written.
	Restored *Restored
	// Err is why discovery can't tell at the moment, or empty.
	Err     string
	Updates uint64
	// Blocks are the discovery blocks of the cluster, in their order.
	Blocks []BlockStatus
}

// Restored tells of endpoints of an earlier run.
type Restored struct {
	Confirmed time.Time     // until when they are known to have been right
	Age       time.Duration // how long ago that is; never below 0
}

// BlockStatus describes what one discovery block knows.
type BlockStatus struct {
	Kind string
	// Resource is the name of the EDS resource, where Kind is eds.
	Resource  string
	State     string
	Since     time.Time
	Endpoints int
	Restored  *Restored // as SourceStatus's
	Err       string
	Updates   uint64
}

// SelectorStatus describes one slot.
type SelectorStatus struct {
	Name, Policy string
	lbcore.SlotStats
	// Loads is how the load is spread over priorities, and over distances where
	// what is local is preferred.
	Loads []lbcore.TierLoad
}

// EndpointStatus describes one member of a cluster.
type EndpointStatus struct {
	lbcore.Endpoint
	// Ready is what the next pick goes by.
	Ready bool
	// Health is the verdict over all Checks; without checks it is healthy.
	Health lbcore.Health
	Checks []healthsvc.Status
	// Withdrawn endpoints are not listed by discovery any more, but still in
	// use.
	Withdrawn, Disabled, Ejected bool
	// Absent endpoints are not listed by discovery any more either, and take
	// connections because they pass their checks.
	Absent bool
	// State is the first reason why the endpoint is not Ready, or StateReady;
	// Since is when that began, the zero Time if nobody has looked yet. Why says
	// all reasons in words, and of one that is ready why others are preferred, and
	// what may make it leave; it is empty if there is nothing to say.
	State State
	Since time.Time
	Why   string
	// Ejection is the last ejection, nil if there was none. It is not to be
	// written.
	Ejection *Ejection
	// SuccessRate is the percentage of connects in the last interval of outlier
	// detection that succeeded, or -1 if that wasn't judged.
	SuccessRate float64
	// Degraded endpoints take what the others have no capacity for.
	Degraded bool
	// SlowStart is the share of its weight that the endpoint has, 0 to 1; it is
	// below 1 only in slow start.
	SlowStart float64
	Totals    Totals
	// HostOpen counts the connections of all clusters of the node to the
	// address.
	HostOpen int64
	// AdaptiveWeight is what the cluster's adaptive selectors have learnt, from 1
	// to 2^24, or 0 where there is none of them, or it is not built yet.
	AdaptiveWeight float64
}

// Totals counts connections.
type Totals struct {
	Active         int64 // dials in progress included
	Opened, Failed uint64
	Sent, Received uint64 // bytes, of connections that have ended
}

func (t *Totals) add(m *lbcore.Member) {
	opened, failed, sent, received := m.Counters()
	t.Active += m.Held()
	t.Opened += opened
	t.Failed += failed
	t.Sent += sent
	t.Received += received
}

// ListenerStatus describes one listener.
type ListenerStatus struct {
	Name, Origin string
	// Unsupported is why the listener is not open, or empty. The Address of one
	// that is not open may be missing.
	Unsupported string
	Address     lbcore.Addr
	// Cluster is empty where Weighted, several, share the connections. Weighted is
	// not to be written.
	Cluster, Selector string
	Weighted          []config.WeightedCluster
	// Chains are the filter chains of a listener of the control plane, the default
	// one last; Cluster is empty then. NoBind says that it has no socket.
	Chains  []ChainStatus
	NoBind  bool
	Stats   forwarder.Stats
	OnLoops bool // event loops serve it, not goroutines
	// TLS is what is in force towards clients; nil without TLS.
	TLS *tlsconf.Status
	// Draining listeners have left the configuration; their connections have
	// not ended yet.
	Draining bool
}
