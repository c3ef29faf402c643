package main

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	cachev3 "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	serverv3 "github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// controlPlane is a real go-control-plane ADS server.
type controlPlane struct {
	ln      net.Listener
	cache   cachev3.SnapshotCache
	version int
}

func newControlPlane() (*controlPlane, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	return &controlPlane{ln: ln, cache: cachev3.NewSnapshotCache(true, cachev3.IDHash{}, nil)}, nil
}

func (p *controlPlane) addr() string { return p.ln.Addr().String() }

// run serves until ctx ends.
func (p *controlPlane) run(ctx context.Context) error {
	srv := grpc.NewServer()
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(srv, serverv3.NewServer(ctx, p.cache, nil))
	defer context.AfterFunc(ctx, srv.Stop)()
	return srv.Serve(p.ln)
}

// publish lists the backends, in clusters that name one EDS resource.
func (p *controlPlane) publish(backends []*demoBackend) error {
	p.version++
	ads := &corev3.ConfigSource{
		ResourceApiVersion:    corev3.ApiVersion_V3,
		ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}},
	}
	api := &clusterv3.Cluster{
		Name:                 "api",
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS},
		EdsClusterConfig:     &clusterv3.Cluster_EdsClusterConfig{EdsConfig: ads, ServiceName: "web"},
		LbPolicy:             clusterv3.Cluster_LEAST_REQUEST,
		// What is removed is to leave, though it still answers.
		IgnoreHealthOnHostRemoval: true,
		ConnectTimeout:            durationpb.New(time.Second),
		HealthChecks: []*corev3.HealthCheck{{
			Interval: durationpb.New(200 * time.Millisecond), Timeout: durationpb.New(100 * time.Millisecond),
			UnhealthyThreshold: wrapperspb.UInt32(2), HealthyThreshold: wrapperspb.UInt32(1),
			HealthChecker: &corev3.HealthCheck_TcpHealthCheck_{TcpHealthCheck: &corev3.HealthCheck_TcpHealthCheck{}},
		}},
	}
	web := &endpointv3.ClusterLoadAssignment{ClusterName: "web", Endpoints: []*endpointv3.LocalityLbEndpoints{{}}}
	for _, b := range backends {
		host, port, err := net.SplitHostPort(b.addr())
		if err != nil {
			return err
		}
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil {
			return err
		}
		web.Endpoints[0].LbEndpoints = append(web.Endpoints[0].LbEndpoints, &endpointv3.LbEndpoint{
			HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{
				Address: &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
					Address: host, PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: uint32(n)},
				}}},
			}},
		})
	}
	snap, err := cachev3.NewSnapshot(fmt.Sprint(p.version), map[resourcev3.Type][]types.Resource{
		resourcev3.ClusterType:  {api},
		resourcev3.EndpointType: {web},
	})
	if err != nil {
		return err
	}
	return p.cache.SetSnapshot(context.Background(), "demo", snap)
}
