package lrs

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	loadv3 "github.com/envoyproxy/go-control-plane/envoy/service/load_stats/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"gatehouse.internal/lbcore"
)

// The interval between two reports is what the server says within these bounds; 0,
// none, and what is no duration, is the least.
const (
	MinInterval = time.Second
	MaxInterval = 24 * time.Hour
)

// feature tells servers that they may ask for all clusters at once.
const feature = "envoy.lrs.supports_send_all_clusters"

// ClusterLoad is what has happened in a cluster since it was asked last.
// Source: envoy.config.endpoint.v3.ClusterStats.
type ClusterLoad struct {
	// Cluster is its name, and Service that of its EDS resource if it is another.
	Cluster, Service string
	// Interval is how long ago it was asked last, or began.
	Interval time.Duration
	// Dropped counts connections over a circuit breaker, and DroppedBy those that
	// were dropped for a category of drop_overloads.
	Dropped   uint64
	DroppedBy map[string]uint64
	// Endpoints are those with connections, in any order. There may be several
	// of one address, which add up.
	Endpoints []EndpointLoad
}

// EndpointLoad is what has happened at an endpoint. The package comment says what is
// counted.
type EndpointLoad struct {
	// Addr is not valid for endpoints that are not known any more.
	Addr     lbcore.Addr
	Locality lbcore.Locality
	Priority uint8
	Load
}

// Load counts connections.
type Load struct {
	Issued, Successful, Failed uint64
	InProgress                 uint64 // now, and not since the last report
}

// Add adds m to l.
func (l *Load) Add(m Load) {
	l.Issued += m.Issued
	l.Successful += m.Successful
	l.Failed += m.Failed
	l.InProgress += m.InProgress
}

// terms are what the server has asked for. The zero value is nothing.
type terms struct {
	all       bool
	clusters  map[string]bool
	endpoints bool
	interval  time.Duration
}

// read returns what a response asks for.
func read(r *loadv3.LoadStatsResponse) terms {
	t := terms{
		all: r.GetSendAllClusters(), endpoints: r.GetReportEndpointGranularity(),
		clusters: make(map[string]bool, len(r.GetClusters())), interval: MinInterval,
	}
	for _, name := range r.GetClusters() {
		t.clusters[name] = true
	}
	if d := r.GetLoadReportingInterval(); d.CheckValid() == nil {
		t.interval = min(max(d.AsDuration(), MinInterval), MaxInterval)
	}
	return t
}

// wants reports whether the server has asked for a cluster.
func (t *terms) wants(cluster string) bool { return t.all || t.clusters[cluster] }

// withFeature returns the node as servers of loads are told it.
func withFeature(node *corev3.Node) *corev3.Node {
	n := new(corev3.Node)
	if node != nil {
		n = proto.CloneOf(node)
	}
	n.ClientFeatures = append(n.ClientFeatures, feature)
	return n
}

// place is what loads are added up by.
type place struct {
	locality lbcore.Locality
	priority uint8
}

// sum is the loads of a cluster, added up.
type sum struct {
	ClusterLoad
	places map[place]map[lbcore.Addr]Load
}

// add adds up loads by their clusters.
func add(loads []ClusterLoad) map[string]*sum {
	sums := make(map[string]*sum)
	for _, c := range loads {
		s := sums[c.Cluster]
		if s == nil {
			s = &sum{places: make(map[place]map[lbcore.Addr]Load)}
			s.Cluster, s.DroppedBy = c.Cluster, make(map[string]uint64)
			sums[c.Cluster] = s
		}
		s.Service = c.Service
		s.Interval += c.Interval
		s.Dropped += c.Dropped
		for category, n := range c.DroppedBy {
			s.DroppedBy[category] += n
		}
		for _, e := range c.Endpoints {
			p := place{e.Locality, e.Priority}
			if s.places[p] == nil {
				s.places[p] = make(map[lbcore.Addr]Load)
			}
			load := s.places[p][e.Addr]
			load.Add(e.Load)
			s.places[p][e.Addr] = load
		}
	}
	return sums
}

// owed returns what is to be added to the next report of loads that were not sent:
// what was counted, but not what was in progress then.
func owed(loads []ClusterLoad) (out []ClusterLoad) {
	for _, s := range add(loads) {
		c := s.ClusterLoad
		c.Endpoints = nil
		for p, endpoints := range s.places {
			e := EndpointLoad{Locality: p.locality, Priority: p.priority}
			for _, l := range endpoints {
				e.Add(l)
			}
			e.InProgress = 0
			c.Endpoints = append(c.Endpoints, e)
		}
		out = append(out, c)
	}
	return out
}

// report returns the message for loads. Localities and clusters of which there is
// nothing to tell are left out.
func report(node *corev3.Node, loads []ClusterLoad, endpoints bool) *loadv3.LoadStatsRequest {
	r := &loadv3.LoadStatsRequest{Node: node}
	sums := add(loads)
	for _, name := range slices.Sorted(maps.Keys(sums)) {
		s := sums[name]
		c := &endpointv3.ClusterStats{
			ClusterName: s.Cluster, ClusterServiceName: s.Service, LoadReportInterval: durationpb.New(s.Interval),
			TotalDroppedRequests: s.Dropped, UpstreamLocalityStats: s.localities(endpoints),
		}
		for _, category := range slices.Sorted(maps.Keys(s.DroppedBy)) {
			if n := s.DroppedBy[category]; n > 0 {
				c.TotalDroppedRequests += n
				c.DroppedRequests = append(c.DroppedRequests, &endpointv3.ClusterStats_DroppedRequests{Category: category, DroppedCount: n})
			}
		}
		if len(c.UpstreamLocalityStats) > 0 || c.TotalDroppedRequests > 0 {
			r.ClusterStats = append(r.ClusterStats, c)
		}
	}
	return r
}

func (s *sum) localities(endpoints bool) (out []*endpointv3.UpstreamLocalityStats) {
	for _, p := range slices.SortedFunc(maps.Keys(s.places), place.compare) {
		var total Load
		var each []*endpointv3.UpstreamEndpointStats
		for _, addr := range slices.SortedFunc(maps.Keys(s.places[p]), lbcore.Addr.Compare) {
			l := s.places[p][addr]
			total.Add(l)
			if endpoints && addr.IsValid() && l != (Load{}) {
				each = append(each, &endpointv3.UpstreamEndpointStats{
					Address: address(addr), TotalSuccessfulRequests: l.Successful, TotalErrorRequests: l.Failed,
					TotalRequestsInProgress: l.InProgress, TotalIssuedRequests: l.Issued,
				})
			}
		}
		if total == (Load{}) {
			continue
		}
		out = append(out, &endpointv3.UpstreamLocalityStats{
			Locality:                &corev3.Locality{Region: p.locality.Region, Zone: p.locality.Zone, SubZone: p.locality.SubZone},
			Priority:                uint32(p.priority),
			TotalSuccessfulRequests: total.Successful, TotalErrorRequests: total.Failed,
			TotalRequestsInProgress: total.InProgress, TotalIssuedRequests: total.Issued,
			TotalActiveConnections: total.InProgress, TotalNewConnections: total.Issued, TotalFailConnections: total.Failed,
			UpstreamEndpointStats: each,
		})
	}
	return out
}

func (p place) compare(q place) int {
	return cmp.Or(
		cmp.Compare(p.priority, q.priority), strings.Compare(p.locality.Region, q.locality.Region),
		strings.Compare(p.locality.Zone, q.locality.Zone), strings.Compare(p.locality.SubZone, q.locality.SubZone),
	)
}

func address(a lbcore.Addr) *corev3.Address {
	if a.Path() != "" {
		return &corev3.Address{Address: &corev3.Address_Pipe{Pipe: &corev3.Pipe{Path: a.Path()}}}
	}
	return &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address:       a.AddrPort().Addr().String(),
		PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: uint32(a.AddrPort().Port())},
	}}}
}
