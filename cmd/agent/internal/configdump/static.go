package configdump

import (
	"maps"
	"slices"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"gatehouse.internal/cmd/agent/internal/config"
	"gatehouse.internal/lbcore"
	"gatehouse.internal/xds"
)

// bootstrap returns what the agent was started with, as far as Envoy's Bootstrap has
// fields for it.
func (d snapshot) bootstrap() *bootstrapv3.Bootstrap {
	b := &bootstrapv3.Bootstrap{Node: node(d.cfg), StaticResources: new(bootstrapv3.Bootstrap_StaticResources)}
	if d.cfg.Admin.IsValid() {
		b.Admin = &bootstrapv3.Admin{Address: address(d.cfg.Admin)}
	}
	for _, c := range d.cfg.Static {
		b.StaticResources.Clusters = append(b.StaticResources.Clusters, staticCluster(c))
	}
	if len(d.cfg.Servers) > 0 {
		ads := &corev3.ApiConfigSource{ApiType: corev3.ApiConfigSource_DELTA_GRPC, TransportApiVersion: corev3.ApiVersion_V3}
		if d.cfg.Servers[0].Protocol == xds.ProtocolSotW {
			ads.ApiType = corev3.ApiConfigSource_GRPC
		}
		for _, s := range d.cfg.Servers {
			ads.GrpcServices = append(ads.GrpcServices, service(s))
		}
		b.DynamicResources = &bootstrapv3.Bootstrap_DynamicResources{AdsConfig: ads}
		if d.cfg.Clusters {
			b.DynamicResources.CdsConfig = overADS()
		}
		if d.cfg.Listeners {
			b.DynamicResources.LdsConfig = overADS()
		}
	}
	return b
}

// node returns who the agent is to a control plane.
func node(cfg Config) *corev3.Node {
	n := &corev3.Node{
		Id: cfg.Node.ID, Cluster: cfg.Node.Cluster, UserAgentName: cfg.UserAgentName,
		UserAgentVersionType: &corev3.Node_UserAgentVersion{UserAgentVersion: cfg.Version},
		Locality:             locality(cfg.Node.Locality),
	}
	n.Metadata, _ = structpb.NewStruct(cfg.Node.Metadata) // nil where it is none: that was refused at the start
	return n
}

// service says how a management server is reached. The values of its metadata, and
// what is in files, are not in it.
func service(s xds.Server) *corev3.GrpcService {
	g := &corev3.GrpcService_GoogleGrpc{TargetUri: s.URI, StatPrefix: "xds"}
	file := func(path string) *corev3.DataSource {
		if path == "" {
			return nil
		}
		return &corev3.DataSource{Specifier: &corev3.DataSource_Filename{Filename: path}}
	}
	if t := s.TLS; t != nil {
		g.ChannelCredentials = &corev3.GrpcService_GoogleGrpc_ChannelCredentials{
			CredentialSpecifier: &corev3.GrpcService_GoogleGrpc_ChannelCredentials_SslCredentials{
				SslCredentials: &corev3.GrpcService_GoogleGrpc_SslCredentials{
					RootCerts: file(t.CAFile), CertChain: file(t.CertFile), PrivateKey: file(t.KeyFile),
				},
			},
		}
	}
	out := &corev3.GrpcService{TargetSpecifier: &corev3.GrpcService_GoogleGrpc_{GoogleGrpc: g}}
	for _, m := range []map[string]string{s.Metadata, s.MetadataFiles} {
		for _, key := range slices.Sorted(maps.Keys(m)) {
			out.InitialMetadata = append(out.InitialMetadata, &corev3.HeaderValue{Key: key, Value: redacted})
		}
	}
	return out
}

func overADS() *corev3.ConfigSource {
	return &corev3.ConfigSource{
		ResourceApiVersion:    corev3.ApiVersion_V3,
		ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: new(corev3.AggregatedConfigSource)},
	}
}

// policies are Envoy's for those of selectors.
var policies = map[string]clusterv3.Cluster_LbPolicy{
	config.PolicyRoundRobin: clusterv3.Cluster_ROUND_ROBIN, config.PolicyRandom: clusterv3.Cluster_RANDOM,
	config.PolicyLeastWeight: clusterv3.Cluster_LEAST_REQUEST, config.PolicyRingHash: clusterv3.Cluster_RING_HASH,
	config.PolicyMaglev: clusterv3.Cluster_MAGLEV,
}

// staticCluster returns a cluster of the configuration as Envoy would have it.
func staticCluster(c config.Cluster) *clusterv3.Cluster {
	out := &clusterv3.Cluster{
		Name: c.Name, ConnectTimeout: durationpb.New(c.ConnectTimeout),
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC},
		LoadAssignment:       staticAssignment(c),
	}
	var sources, selectors []any
	for i, d := range c.Discovery {
		sources = append(sources, d.Kind)
		switch {
		case i > 0:
		case d.Kind == config.DiscoveryEDS:
			out.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS}
			out.EdsClusterConfig = &clusterv3.Cluster_EdsClusterConfig{EdsConfig: overADS(), ServiceName: d.ServiceName}
		case d.Kind == config.DiscoveryDNS:
			out.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STRICT_DNS}
		}
	}
	for i, s := range c.Selectors {
		selectors = append(selectors, map[string]any{"name": s.Name, "policy": s.Policy})
		if i == 0 {
			out.LbPolicy = policies[s.Policy]
		}
	}
	ours, err := structpb.NewStruct(map[string]any{"origin": string(c.Origin), "discovery": sources, "selectors": selectors})
	if err == nil {
		out.Metadata = &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{"gatehouse": ours}}
	}
	return out
}

// staticAssignment returns the endpoints that a cluster lists itself, nil if there is
// no such list.
func staticAssignment(c config.Cluster) *endpointv3.ClusterLoadAssignment {
	a := &endpointv3.ClusterLoadAssignment{ClusterName: c.Name}
	listed := false
	type place struct {
		lbcore.Locality
		priority uint8
	}
	places := make(map[place]*endpointv3.LocalityLbEndpoints)
	for _, d := range c.Discovery {
		if d.Kind != config.DiscoveryStatic {
			continue
		}
		listed = true
		for _, e := range d.Endpoints {
			p := place{e.Locality, e.Priority}
			l := places[p]
			if l == nil {
				l = &endpointv3.LocalityLbEndpoints{Locality: locality(e.Locality), Priority: uint32(e.Priority)}
				places[p] = l
				a.Endpoints = append(a.Endpoints, l)
			}
			ep := &endpointv3.LbEndpoint{
				HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{Address: address(e.Addr), Hostname: e.Hostname}},
				HealthStatus:   corev3.HealthStatus(corev3.HealthStatus_value[e.Status.String()]),
			}
			if e.Weight > 0 {
				ep.LoadBalancingWeight = wrapperspb.UInt32(e.Weight)
			}
			l.LbEndpoints = append(l.LbEndpoints, ep)
		}
	}
	if !listed {
		return nil
	}
	return a
}

// locality is nil where there is none.
func locality(l lbcore.Locality) *corev3.Locality {
	if l == (lbcore.Locality{}) {
		return nil
	}
	return &corev3.Locality{Region: l.Region, Zone: l.Zone, SubZone: l.SubZone}
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
