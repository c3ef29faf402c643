//go:build linux

package main

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	cachev3 "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	serverv3 "github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// nodeID is the agent's.
const nodeID = "faults"

// controlRole is a control plane: of the kind good it is go-control-plane, whose
// endpoints of "web" are told it by lines of its input; of the kind bytes it answers
// with noise, and of the kind grpc with responses that nobody can use.
func controlRole(kind, address string) error {
	ln, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	lines := bufio.NewScanner(os.Stdin)
	switch kind {
	case "bytes":
		fmt.Println(ln.Addr())
		go noise(ln)
	case "grpc":
		srv := grpc.NewServer()
		discoveryv3.RegisterAggregatedDiscoveryServiceServer(srv, babbler{})
		fmt.Println(ln.Addr())
		go srv.Serve(ln)
	default:
		cache := cachev3.NewSnapshotCache(true, cachev3.IDHash{}, nil)
		srv := grpc.NewServer()
		discoveryv3.RegisterAggregatedDiscoveryServiceServer(srv, serverv3.NewServer(context.Background(), cache, nil))
		for began := false; lines.Scan(); { // a server that knew nothing yet would say that all is gone
			if err := tell(cache, strings.Split(lines.Text(), ",")); err != nil {
				return err
			}
			if !began {
				began = true
				go srv.Serve(ln)
			}
			fmt.Println(ln.Addr())
		}
	}
	for lines.Scan() {
	}
	return nil // the fault that has started it is gone
}

// tell makes these the endpoints of "web".
func tell(cache cachev3.SnapshotCache, addrs []string) error {
	a, err := assignment(addrs, 1)
	if err != nil {
		return err
	}
	snap, err := cachev3.NewSnapshot(fmt.Sprint(time.Now().UnixNano()), map[resourcev3.Type][]types.Resource{resourcev3.EndpointType: {a}})
	if err != nil {
		return err
	}
	return cache.SetSnapshot(context.Background(), nodeID, snap)
}

// assignment lists endpoints; the last one has its own weight.
func assignment(addrs []string, last uint32) (*endpointv3.ClusterLoadAssignment, error) {
	eps := make([]*endpointv3.LbEndpoint, len(addrs))
	for i, s := range addrs {
		at, err := netip.ParseAddrPort(s)
		if err != nil {
			return nil, err
		}
		eps[i] = &endpointv3.LbEndpoint{
			HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{Address: &corev3.Address{
				Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
					Address: at.Addr().String(), PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: uint32(at.Port())},
				}},
			}}},
			LoadBalancingWeight: wrapperspb.UInt32(1),
		}
	}
	eps[len(eps)-1].LoadBalancingWeight = wrapperspb.UInt32(last)
	return &endpointv3.ClusterLoadAssignment{ClusterName: "web", Endpoints: []*endpointv3.LocalityLbEndpoints{{
		LoadBalancingWeight: wrapperspb.UInt32(1), LbEndpoints: eps,
	}}}, nil
}

// noise answers connections with bytes that mean nothing.
func noise(ln net.Listener) {
	for {
		c, err := ln.Accept()
		if err != nil {
			return
		}
		b := make([]byte, 4096)
		for i := range b {
			b[i] = byte(rand.Uint32())
		}
		c.Write(b)
		c.Close()
	}
}

// babbler is a server of ADS whose responses can't be used.
type babbler struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
}

// garbage is what a resource may be in place of an assignment of "web".
func garbage() ([]*anypb.Any, error) {
	zero, err := assignment([]string{"127.0.0.1:1"}, 0)
	if err != nil {
		return nil, err
	}
	b, err := proto.Marshal(zero)
	if err != nil {
		return nil, err
	}
	return []*anypb.Any{
		{TypeUrl: resourcev3.EndpointType, Value: []byte("\xff\xfe no protobuf")},
		{TypeUrl: resourcev3.EndpointType, Value: b}, // a weight of 0
		{TypeUrl: resourcev3.EndpointType, Value: b[:len(b)/2]},
		{TypeUrl: resourcev3.ClusterType, Value: b},
		{TypeUrl: "type.googleapis.com/no.such.Type", Value: b},
	}, nil
}

// babble sends each resource, then waits for answers no longer.
func babble(send func(i int, a *anypb.Any) error) error {
	as, err := garbage()
	if err != nil {
		return err
	}
	for i, a := range as {
		if err := send(i, a); err != nil {
			return err
		}
		time.Sleep(100 * time.Millisecond)
	}
	return status.Error(codes.Internal, "garbage")
}

func (babbler) StreamAggregatedResources(s discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	if _, err := s.Recv(); err != nil {
		return err
	}
	return babble(func(i int, a *anypb.Any) error {
		return s.Send(&discoveryv3.DiscoveryResponse{TypeUrl: resourcev3.EndpointType, VersionInfo: fmt.Sprint(i), Nonce: fmt.Sprint(i), Resources: []*anypb.Any{a}})
	})
}

func (babbler) DeltaAggregatedResources(s discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	if _, err := s.Recv(); err != nil {
		return err
	}
	return babble(func(i int, a *anypb.Any) error {
		return s.Send(&discoveryv3.DeltaDiscoveryResponse{TypeUrl: resourcev3.EndpointType, Nonce: fmt.Sprint(i),
			Resources: []*discoveryv3.Resource{{Name: "web", Version: fmt.Sprint(i), Resource: a}}})
	})
}
