package node

import (
	"strings"

	"gatehouse.internal/cmd/agent/internal/config"
	"gatehouse.internal/lbcore"
	"gatehouse.internal/xds"
)

// FromXDS returns clusters of the control plane as if a file had them, in the
// order given, and those that can't be run. A cluster gets one selector by the
// name of config.DefaultSelector.
func FromXDS(clusters []*xds.Cluster) (run []config.Cluster, unsupported []Unsupported) {
	for _, x := range clusters {
		if x.Unsupported != "" {
			unsupported = append(unsupported, Unsupported{Name: x.Name, Reason: x.Unsupported})
			continue
		}
		c := config.Cluster{
			Name: x.Name, Origin: config.OriginXDS,
			CircuitBreakers: config.CircuitBreakers(x.CircuitBreakers),
			ConnectTimeout:  x.ConnectTimeout, MaxConnectAttempts: controlAttempts, Required: true,
			PanicThreshold: x.PanicThreshold, LocalityWeighted: x.LocalityWeighted, IgnoreNew: x.IgnoreNew,
			HashHostname: x.Policy.HashHostname, OutlierDetection: config.OutlierDetection(x.Outlier),
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
			c.OverprovisioningFactor, c.WeightedPriorityHealth = x.Static.Policy().Overprovisioning, x.Static.Policy().WeightedHealth
			d := config.Discovery{Kind: config.DiscoveryStatic, Endpoints: make([]lbcore.Endpoint, 0, x.Static.Len())}
			for _, e := range x.Static.All() {
				d.Endpoints = append(d.Endpoints, e)
			}
			for _, twice := range x.Duplicates { // to be counted and warned of, as a file's
				d.Endpoints = append(d.Endpoints, twice.Endpoint)
			}
			c.Discovery = []config.Discovery{d}
		} else {
			c.Discovery = []config.Discovery{{Kind: config.DiscoveryEDS, ServiceName: x.EDSName}}
		}
		for _, hc := range x.HealthChecks {
			c.HealthChecks = append(c.HealthChecks, healthCheck(hc))
		}
		if len(c.HealthChecks) > 0 && !x.IgnoreHealthOnRemoval {
			c.OnAbsent = config.AbsentStabilize
		}
		run = append(run, c)
	}
	return run, unsupported
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
		Share: true, AlwaysLogFailures: x.AlwaysLogFailures, AltPort: x.Port,
	}
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
