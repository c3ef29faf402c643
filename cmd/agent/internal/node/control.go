package node

import (
	"fmt"
	"strings"

	"gatehouse.internal/cmd/agent/internal/config"
	discoverydns "gatehouse.internal/discovery/dns"
	"gatehouse.internal/lbcore"
	"gatehouse.internal/xds"
)

// FromXDS returns clusters of the control plane as if a file had them, in the
// order given, and those that can't be run. A cluster gets one selector by the
// name of config.DefaultSelector.
func FromXDS(clusters []*xds.Cluster) (run []config.Cluster, unsupported []Unsupported) {
	byName := make(map[string]*xds.Cluster, len(clusters))
	for _, x := range clusters {
		byName[x.Name] = x
	}
	for _, x := range clusters {
		if x.Unsupported != "" {
			unsupported = append(unsupported, Unsupported{Name: x.Name, Reason: x.Unsupported})
			continue
		}
		if len(x.Aggregate) > 0 {
			leaves, why := leavesOf(x, byName)
			if why != "" {
				unsupported = append(unsupported, Unsupported{Name: x.Name, Reason: why})
			} else {
				run = append(run, config.Cluster{
					Name: x.Name, Origin: config.OriginXDS, Aggregate: leaves, PanicThreshold: x.PanicThreshold,
				})
			}
			continue
		}
		c := config.Cluster{
			Name: x.Name, Origin: config.OriginXDS,
			CircuitBreakers: config.CircuitBreakers(x.CircuitBreakers),
			ConnectTimeout:  x.ConnectTimeout, MaxConnectAttempts: controlAttempts, Required: true,
			PanicThreshold: x.PanicThreshold, LocalityWeighted: x.LocalityWeighted, IgnoreNew: x.IgnoreNew,
			HashHostname: x.Policy.HashHostname, LoadReports: x.LoadReports, OutlierDetection: config.OutlierDetection(x.Outlier),
			Selectors: []config.Selector{{
				Name: config.DefaultSelector, Policy: string(x.Policy.Name),
				MinimumRingSize: x.Policy.MinimumRingSize, MaximumRingSize: x.Policy.MaximumRingSize,
				HashFunction: x.Policy.HashFunction, TableSize: x.Policy.TableSize,
				HashBalanceFactor: x.Policy.HashBalanceFactor,
				ChoiceCount:       int(x.Policy.ChoiceCount), ActiveRequestBias: x.Policy.ActiveRequestBias,
			}},
		}
		c.SourceAddress, c.HappyEyeballs.FirstAddressFamilyCount = x.SourceAddress, x.FirstFamilyCount
		switch x.FirstFamily {
		case 4:
			c.HappyEyeballs.FirstAddressFamilyVersion = config.FamilyV4
		case 6:
			c.HappyEyeballs.FirstAddressFamilyVersion = config.FamilyV6
		}
		if k := x.Keepalive; k != nil {
			c.TCPKeepalive = config.TCPKeepalive{KeepaliveTime: k.Time, KeepaliveInterval: k.Interval, KeepaliveProbes: k.Probes}
		}
		if s := x.SlowStart; s.Window > 0 {
			c.SlowStart = config.SlowStart{Window: s.Window, Aggression: s.Aggression, MinWeightPercent: 100 * s.MinWeight}
		}
		if x.Static != nil {
			setPolicy(&c, x.Static.Policy())
			d := config.Discovery{Kind: config.DiscoveryStatic, Endpoints: make([]lbcore.Endpoint, 0, x.Static.Len())}
			for _, e := range x.Static.All() {
				d.Endpoints = append(d.Endpoints, e)
			}
			for _, twice := range x.Duplicates { // to be counted and warned of, as a file's
				d.Endpoints = append(d.Endpoints, twice.Endpoint)
			}
			c.Discovery = []config.Discovery{d}
		} else if x.DNS != nil {
			setPolicy(&c, x.DNS.Policy)
			c.Discovery = []config.Discovery{hostNames(x.DNS)}
		} else {
			c.Discovery = []config.Discovery{{Kind: config.DiscoveryEDS, ServiceName: x.EDSName}}
		}
		c.Transport = transportOf(x)
		if x.CloseOnHealthFailure {
			c.OnUnhealthy = config.EndClose
		}
		for _, hc := range x.HealthChecks {
			c.HealthChecks = append(c.HealthChecks, healthCheck(hc))
		}
		// Of names whose answers go round all addresses would stay that there ever were.
		if len(c.HealthChecks) > 0 && !x.IgnoreHealthOnRemoval && x.DNS == nil {
			c.OnAbsent = config.AbsentStabilize
		}
		run = append(run, c)
	}
	return run, unsupported
}

// transportOf returns how endpoints are secured, nil for plain text.
func transportOf(x *xds.Cluster) *config.Transport {
	if len(x.TransportMatches) == 0 && x.Transport.TLS == nil { // it is supported
		return nil
	}
	one := func(x *xds.TransportSocket) config.TransportSocket {
		s := config.TransportSocket{Name: x.Name, Match: x.Match, NoTLS: x.NoTLS, Unsupported: x.Unsupported}
		if x.TLS != nil {
			s.TLS = new(config.ControlTLS(*x.TLS))
		}
		return s
	}
	t := &config.Transport{Default: one(&x.Transport)}
	for i := range x.TransportMatches {
		t.Matches = append(t.Matches, one(&x.TransportMatches[i]))
	}
	return t
}

// setPolicy has c do what its load assignment says.
func setPolicy(c *config.Cluster, p lbcore.SetPolicy) {
	c.OverprovisioningFactor, c.WeightedPriorityHealth, c.Drops = p.Overprovisioning, p.WeightedHealth, p.Drops
}

// hostNames returns how the names of a DNS cluster are looked up.
func hostNames(x *xds.DNS) config.Discovery {
	if len(x.Hosts) == 0 {
		return config.Discovery{Kind: config.DiscoveryStatic}
	}
	hold := discoverydns.DefaultHold()
	d := config.Discovery{
		Kind: config.DiscoveryDNS, RecordType: x.Type, PreferFamily: x.Prefer, Logical: x.Logical,
		TCP: x.TCP, Jitter: x.Jitter, Refresh: x.Refresh, MinTTL: x.Refresh, MaxTTL: x.Refresh,
		MinBackoff: x.MinBackoff, MaxBackoff: x.MaxBackoff,
		HoldNXDomain: hold.NXDomain, HoldNoData: hold.NoData, HoldRefused: hold.Refused, HoldTimeout: hold.Timeout,
	}
	if x.RespectTTL {
		d.MinTTL, d.MaxTTL = x.MinTTL, 0 // the most is a default
	}
	for _, at := range x.Nameservers {
		d.Nameservers = append(d.Nameservers, at.String())
	}
	for _, h := range x.Hosts {
		d.Hosts = append(d.Hosts, config.Host(h))
	}
	return d
}

// The limits of an aggregate cluster. Source: gRFC A37 for the depth.
const (
	maxDepth  = 16
	maxLeaves = 128
)

// leavesOf returns the clusters with endpoints that an aggregate one leads to, each
// where it comes first, or why it can't be run. Clusters that the control plane has
// not given are among them: they have no endpoints until it does, as in Envoy.
func leavesOf(x *xds.Cluster, byName map[string]*xds.Cluster) (leaves []string, why string) {
	seen := make(map[string]bool)
	walked := make(map[string]int) // the greatest depth: what is not deeper is known
	var walk func(x *xds.Cluster, depth int) string
	walk = func(x *xds.Cluster, depth int) string {
		if depth > maxDepth {
			return fmt.Sprintf("aggregate clusters lie more than %d deep in each other, or in themselves", maxDepth)
		}
		walked[x.Name] = depth
		for _, name := range x.Aggregate {
			child := byName[name]
			switch {
			case child != nil && child.Unsupported != "":
				return fmt.Sprintf("cluster %q: %s", name, child.Unsupported)
			case child != nil && len(child.Aggregate) > 0:
				if walked[name] > depth {
					continue
				}
				if len(walked) > maxLeaves {
					return fmt.Sprintf("more than %d aggregate clusters", maxLeaves)
				}
				if why := walk(child, depth+1); why != "" {
					return why
				}
			case seen[name]:
			case len(leaves) == maxLeaves:
				return fmt.Sprintf("more than %d clusters", maxLeaves)
			default:
				seen[name] = true
				leaves = append(leaves, name)
			}
		}
		return ""
	}
	why = walk(x, 1)
	return leaves, why
}

// controlAttempts is how many endpoints a connection to a cluster of the
// control plane tries: a Cluster has no word on it, so it is the default of a
// file's.
const controlAttempts = 3

func healthCheck(x xds.HealthCheck) config.HealthCheck {
	hc := config.HealthCheck{
		Interval: x.Interval, UnhealthyInterval: x.UnhealthyInterval,
		UnhealthyEdgeInterval: x.UnhealthyEdgeInterval, HealthyEdgeInterval: x.HealthyEdgeInterval,
		NoTrafficInterval: x.NoTrafficInterval, NoTrafficHealthyInterval: x.NoTrafficHealthyInterval,
		Timeout: x.Timeout, InitialJitter: x.InitialJitter,
		IntervalJitter: x.IntervalJitter, IntervalJitterPercent: x.IntervalJitterPercent,
		HealthyThreshold: x.Healthy, UnhealthyThreshold: x.Unhealthy, Initial: config.InitialUnknown,
		Share: true, AlwaysLogFailures: x.AlwaysLogFailures, AltPort: x.Port, TransportMatch: x.TransportMatch,
	}
	hc.TLS.ALPN = x.ALPN
	switch {
	case x.HTTP != nil:
		h := x.HTTP
		hc.Kind, hc.Method, hc.Path, hc.Host = config.CheckHTTP, h.Method, h.Path, h.Host
		hc.ExpectedStatuses, hc.RetriableStatuses = h.Expected, h.Retriable
		hc.Headers = joined(h.Headers)
	case x.GRPC != nil:
		hc.Kind, hc.ServiceName, hc.Authority = config.CheckGRPC, x.GRPC.Service, x.GRPC.Authority
		hc.Headers = joined(x.GRPC.Metadata)
	default:
		hc.Kind, hc.Send = config.CheckTCP, config.Payload(x.TCP.Send)
		for _, r := range x.TCP.Receive {
			hc.Receive = append(hc.Receive, config.Payload(r))
		}
		hc.ProxyProtocol.Version = uint32(x.TCP.ProxyVersion)
	}
	return hc
}

// joined returns headers with one value each, which says the same: RFC 9110, 5.3.
func joined(headers map[string][]string) map[string]string {
	if len(headers) == 0 {
		return nil
	}
	one := make(map[string]string, len(headers))
	for name, values := range headers {
		one[name] = strings.Join(values, ", ")
	}
	return one
}
