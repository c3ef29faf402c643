package control

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	cachev3 "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	serverv3 "github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// node is the id of the client.
const node = "bench"

// The ring of a cluster, and the weight of the endpoint that is picked.
const (
	minimumRing = 128
	heavy       = 1000
)

// unused is the port of addresses that nobody listens on.
const unused = 1

// server is a control plane with one client.
type server struct {
	cache cachev3.SnapshotCache
	snap  *cachev3.Snapshot
	turn  int
	addr  netip.AddrPort
	stop  func()

	// Each holds one, the newest: when assignments were last given to the stream, and
	// whether that response was accepted.
	sent    chan time.Time
	answers chan error

	mu    sync.Mutex
	nonce string // of that response
}

// newServer returns one that serves clusters with so many endpoints each. The caller
// must call stop.
func newServer(ctx context.Context, clusters, endpoints int, hot netip.AddrPort) (*server, error) {
	snap, err := snapshot(clusters, endpoints, hot)
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &server{
		cache: cachev3.NewSnapshotCache(true, cachev3.IDHash{}, nil), snap: snap,
		addr: l.Addr().(*net.TCPAddr).AddrPort(), sent: make(chan time.Time, 1), answers: make(chan error, 1),
	}
	if err := s.cache.SetSnapshot(ctx, node, snap); err != nil {
		l.Close()
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	// A request names all clusters.
	g := grpc.NewServer(grpc.MaxRecvMsgSize(64<<20), grpc.StreamInterceptor(
		func(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, h grpc.StreamHandler) error {
			return h(srv, wire{ss, s})
		}))
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(g, serverv3.NewServer(ctx, s.cache, nil))
	var wg sync.WaitGroup
	wg.Go(func() { g.Serve(l) }) // ends with Stop
	s.stop = func() {
		g.Stop()
		cancel()
		wg.Wait()
	}
	return s, nil
}

// wire is the server's side of a stream.
type wire struct {
	grpc.ServerStream
	s *server
}

// SendMsg implements grpc.ServerStream.
func (w wire) SendMsg(m any) error {
	type response interface {
		GetTypeUrl() string
		GetNonce() string
	}
	if r, ok := m.(response); ok && r.GetTypeUrl() == resourcev3.EndpointType {
		w.s.mu.Lock()
		w.s.nonce = r.GetNonce()
		w.s.mu.Unlock()
		put(w.s.sent, time.Now())
	}
	return w.ServerStream.SendMsg(m)
}

// RecvMsg implements grpc.ServerStream.
func (w wire) RecvMsg(m any) error {
	err := w.ServerStream.RecvMsg(m)
	if err != nil {
		return err
	}
	var typ, nonce, refused string
	switch r := m.(type) {
	case *discoveryv3.DiscoveryRequest:
		typ, nonce, refused = r.GetTypeUrl(), r.GetResponseNonce(), r.GetErrorDetail().GetMessage()
	case *discoveryv3.DeltaDiscoveryRequest:
		typ, nonce, refused = r.GetTypeUrl(), r.GetResponseNonce(), r.GetErrorDetail().GetMessage()
	}
	if refused != "" {
		put(w.s.answers, fmt.Errorf("a response was refused: %s", refused))
		return nil
	}
	w.s.mu.Lock()
	last := typ == resourcev3.EndpointType && nonce != "" && nonce == w.s.nonce
	w.s.mu.Unlock()
	if last {
		put(w.s.answers, nil)
	}
	return nil
}

// put has a channel of one hold x.
func put[T any](c chan T, x T) {
	for {
		select {
		case c <- x:
			return
		default:
		}
		select {
		case <-c:
		default:
		}
	}
}

// empty empties a channel of one.
func empty[T any](c chan T) {
	select {
	case <-c:
	default:
	}
}

// change has another version of one assignment sent. What was known of the last one
// is forgotten.
func (s *server) change(ctx context.Context, m *endpointv3.ClusterLoadAssignment) error {
	empty(s.sent)
	empty(s.answers)
	s.turn++
	next := &cachev3.Snapshot{Resources: s.snap.Resources, VersionMap: maps.Clone(s.snap.VersionMap)}
	eds := &next.Resources[types.Endpoint]
	eds.Version, eds.Items = fmt.Sprint("v", s.turn), maps.Clone(eds.Items)
	eds.Items[m.ClusterName] = types.ResourceWithTTL{Resource: m}
	// It would hash all resources otherwise.
	body, err := cachev3.MarshalResource(m)
	if err != nil {
		return err
	}
	versions := maps.Clone(next.VersionMap[resourcev3.EndpointType])
	versions[m.ClusterName] = cachev3.HashResource(body)
	next.VersionMap[resourcev3.EndpointType] = versions
	s.snap = next
	return s.cache.SetSnapshot(ctx, node, next)
}

// clusterName is also that of the assignment.
func clusterName(i int) string { return "c" + strconv.Itoa(i) }

// snapshot returns the first version of everything.
func snapshot(clusters, endpoints int, hot netip.AddrPort) (*cachev3.Snapshot, error) {
	resources := map[resourcev3.Type][]types.Resource{resourcev3.ClusterType: nil, resourcev3.EndpointType: nil, resourcev3.ListenerType: nil}
	l, err := listener(clusters)
	if err != nil {
		return nil, err
	}
	resources[resourcev3.ListenerType] = append(resources[resourcev3.ListenerType], l)
	for i := range clusters {
		to := netip.AddrPort{}
		if i == 0 {
			to = hot
		}
		resources[resourcev3.ClusterType] = append(resources[resourcev3.ClusterType], cluster(clusterName(i)))
		resources[resourcev3.EndpointType] = append(resources[resourcev3.EndpointType], assignment(i, endpoints, 0, to))
	}
	snap, err := cachev3.NewSnapshot("v0", resources)
	if err != nil {
		return nil, err
	}
	return snap, snap.ConstructVersionMap()
}

func cluster(name string) *clusterv3.Cluster {
	return &clusterv3.Cluster{
		Name:                 name,
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS},
		EdsClusterConfig: &clusterv3.Cluster_EdsClusterConfig{EdsConfig: &corev3.ConfigSource{
			ResourceApiVersion: corev3.ApiVersion_V3, ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}},
		}},
		LbPolicy: clusterv3.Cluster_RING_HASH,
		LbConfig: &clusterv3.Cluster_RingHashLbConfig_{RingHashLbConfig: &clusterv3.Cluster_RingHashLbConfig{
			MinimumRingSize: wrapperspb.UInt64(minimumRing),
		}},
	}
}

// assignment has n endpoints of cluster i, of which the first is another one for each
// turn, or at hot, if that is valid.
func assignment(i, n, turn int, hot netip.AddrPort) *endpointv3.ClusterLoadAssignment {
	eps := make([]*endpointv3.LbEndpoint, n)
	for e := range eps {
		if e == 0 && hot.IsValid() {
			eps[e] = endpoint(hot, heavy)
			continue
		}
		last := 1 + e
		if e == 0 && turn > 0 {
			last = 101 + turn%100
		}
		eps[e] = endpoint(netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, byte(1 + i/250), byte(i % 250), byte(last)}), unused), 1)
	}
	return &endpointv3.ClusterLoadAssignment{ClusterName: clusterName(i), Endpoints: []*endpointv3.LocalityLbEndpoints{{
		Locality: &corev3.Locality{Region: "bench", Zone: "a"}, LoadBalancingWeight: wrapperspb.UInt32(1), LbEndpoints: eps,
	}}}
}

func endpoint(at netip.AddrPort, weight uint32) *endpointv3.LbEndpoint {
	return &endpointv3.LbEndpoint{
		HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{Address: &corev3.Address{
			Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
				Address: at.Addr().String(), PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: uint32(at.Port())},
			}},
		}}},
		LoadBalancingWeight: wrapperspb.UInt32(weight),
	}
}

// listener leads grpc-go to all clusters, by the name of the service that is called.
func listener(clusters int) (*listenerv3.Listener, error) {
	const name = "all"
	routes := make([]*routev3.Route, clusters)
	for i := range routes {
		routes[i] = &routev3.Route{
			Match: &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/" + clusterName(i) + "/"}},
			Action: &routev3.Route_Route{Route: &routev3.RouteAction{
				ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: clusterName(i)},
			}},
		}
	}
	router, err := anypb.New(new(routerv3.Router))
	if err != nil {
		return nil, err
	}
	hcm, err := anypb.New(&hcmv3.HttpConnectionManager{
		RouteSpecifier: &hcmv3.HttpConnectionManager_RouteConfig{RouteConfig: &routev3.RouteConfiguration{
			Name: name, VirtualHosts: []*routev3.VirtualHost{{Name: name, Domains: []string{"*"}, Routes: routes}},
		}},
		HttpFilters: []*hcmv3.HttpFilter{{Name: "router", ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: router}}},
	})
	if err != nil {
		return nil, err
	}
	return &listenerv3.Listener{Name: name, ApiListener: &listenerv3.ApiListener{ApiListener: hcm}}, nil
}
