package test

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	grpcxds "google.golang.org/grpc/xds"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"gatehouse.internal/discovery"
	"gatehouse.internal/lbcore"
	"gatehouse.internal/lbcore/ringhash"
	"gatehouse.internal/xds"
)

// startGRPC runs a gRPC server with nothing but the health service, and returns
// its address.
func startGRPC(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := grpc.NewServer()
	healthpb.RegisterHealthServer(srv, health.NewServer())
	var wg sync.WaitGroup
	wg.Go(func() { srv.Serve(ln) })
	t.Cleanup(func() {
		srv.Stop()
		wg.Wait()
	})
	return ln.Addr().String()
}

func packed(t *testing.T, m proto.Message) *anypb.Any {
	t.Helper()
	a, err := anypb.New(m)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// apiListener sends everything to a cluster, hashed by the header x-key.
func apiListener(t *testing.T, name, cluster string) *listenerv3.Listener {
	t.Helper()
	route := &routev3.Route{
		Match: &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{}},
		Action: &routev3.Route_Route{Route: &routev3.RouteAction{
			ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: cluster},
			HashPolicy: []*routev3.RouteAction_HashPolicy{{
				PolicySpecifier: &routev3.RouteAction_HashPolicy_Header_{Header: &routev3.RouteAction_HashPolicy_Header{HeaderName: "x-key"}},
			}},
		}},
	}
	manager := &hcmv3.HttpConnectionManager{
		RouteSpecifier: &hcmv3.HttpConnectionManager_RouteConfig{RouteConfig: &routev3.RouteConfiguration{
			Name: name, VirtualHosts: []*routev3.VirtualHost{{Name: name, Domains: []string{"*"}, Routes: []*routev3.Route{route}}},
		}},
		HttpFilters: []*hcmv3.HttpFilter{{
			Name: "router", ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: packed(t, new(routerv3.Router))},
		}},
	}
	return &listenerv3.Listener{Name: name, ApiListener: &listenerv3.ApiListener{ApiListener: packed(t, manager)}}
}

// A key lands where a gRPC client sends it that has the same EDS and ring_hash.
func TestRingHashIsThatOfGRPC(t *testing.T) {
	const keys = 1000
	weights := []uint32{1, 2, 5, 3, 3, 5, 2, 1, 10}
	cp := newControl(t)
	cp.start()
	var addrs []string
	for range len(weights) {
		addrs = append(addrs, startGRPC(t))
	}
	// Both build the ring from hosts in order: gRPC by the text of addresses, we
	// by the addresses, which is the same for ports of as many digits.
	slices.Sort(addrs)
	for _, a := range addrs {
		if len(a) != len(addrs[0]) {
			t.Fatalf("ports of different lengths: %q", addrs)
		}
	}
	web := edsCluster("web", "web", clusterv3.Cluster_RING_HASH)
	web.HealthChecks = nil
	web.LbConfig = &clusterv3.Cluster_RingHashLbConfig_{RingHashLbConfig: &clusterv3.Cluster_RingHashLbConfig{
		MinimumRingSize: wrapperspb.UInt64(2000), MaximumRingSize: wrapperspb.UInt64(4096), // gRPC's own limit
	}}
	la := assignment(t, "web", addrs...)
	la.Endpoints[0].Locality, la.Endpoints[0].LoadBalancingWeight = new(corev3.Locality), wrapperspb.UInt32(1) // gRPC insists
	// The weights sum up to a power of two, so that every share is exact: gRPC's are
	// fixed-point numbers (A113), and rounding would move a point of the ring.
	for i, e := range la.Endpoints[0].LbEndpoints {
		e.LoadBalancingWeight = wrapperspb.UInt32(weights[i])
	}
	cp.set(web, la, apiListener(t, "web.internal", "web"))

	theirs := grpcPicks(t, cp.addr, keys)
	ours := ringPicks(t, cp.addr, keys)
	shares := make(map[string]int)
	for i := range keys {
		shares[theirs[i]]++
		if ours[i] != theirs[i] {
			t.Errorf("key %q lands on %s, that of gRPC on %s", key(i), ours[i], theirs[i])
		}
	}
	if len(shares) != len(addrs) {
		t.Errorf("of %d backends only %d have keys: %v", len(addrs), len(shares), shares)
	}
	if got := cp.nacks(); got != nil {
		t.Errorf("NACKs: %q", got)
	}
}

func key(i int) string { return fmt.Sprintf("key-%d", i) }

// grpcPicks has a gRPC client make a call for each key, and returns who answered.
func grpcPicks(t *testing.T, control string, keys int) []string {
	t.Helper()
	bootstrap := fmt.Sprintf(`{
		"xds_servers": [{"server_uri": %q, "channel_creds": [{"type": "insecure"}], "server_features": ["xds_v3"]}],
		"node": {"id": %q}
	}`, control, nodeID)
	resolver, err := grpcxds.NewXDSResolverWithConfigForTesting([]byte(bootstrap))
	if err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient("xds:///web.internal", grpc.WithResolvers(resolver), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	client := healthpb.NewHealthClient(conn)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	picks := make([]string, keys)
	errs := make([]error, keys)
	var wg sync.WaitGroup
	const callers = 8
	for c := range callers {
		wg.Go(func() {
			for i := c; i < keys; i += callers {
				var p peer.Peer
				ctx := metadata.AppendToOutgoingContext(ctx, "x-key", key(i))
				_, errs[i] = client.Check(ctx, new(healthpb.HealthCheckRequest), grpc.Peer(&p), grpc.WaitForReady(true))
				if errs[i] == nil {
					picks[i] = p.Addr.String()
				}
			}
		})
	}
	wg.Wait()
	if err := cmp.Or(errs...); err != nil {
		t.Fatal(err)
	}
	return picks
}

// ringPicks learns the cluster and its endpoints as the agent does, and returns
// which one each key selects.
func ringPicks(t *testing.T, control string, keys int) []string {
	t.Helper()
	client, err := xds.NewClient(xds.Config{Servers: []xds.Server{{URI: control}}, Node: xds.Node{ID: nodeID}, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	latest := discovery.NewLatest()
	clusters := make(chan xds.ClustersUpdate, 1)
	wg.Go(func() { client.Run(ctx) })
	wg.Go(func() { client.EDS("web", nil).Watch(ctx, latest) })
	wg.Go(func() {
		client.WatchClusters(ctx, func(u xds.ClustersUpdate) {
			if len(u.Clusters) == 1 {
				select {
				case clusters <- u:
				default:
				}
			}
		})
	})
	var policy xds.Policy
	select {
	case u := <-clusters:
		policy = u.Clusters[0].Policy
	case <-ctx.Done():
		t.Fatal("no cluster from the control plane")
	}
	if policy.Name != xds.RingHash || policy.HashFunction != "xx_hash" {
		t.Fatalf("the cluster's policy is %+v", policy)
	}
	for !latest.State().Known {
		select {
		case <-latest.Changed():
		case <-ctx.Done():
			t.Fatal("no endpoints from the control plane")
		}
	}

	gate := lbcore.NewGate(lbcore.GateConfig{})
	view := lbcore.NewView("web", new(lbcore.Hosts), lbcore.ViewConfig{})
	group := lbcore.NewGroup(lbcore.GroupConfig{View: view, Gate: gate, Slots: []lbcore.SlotConfig{{
		Name: "default", Builder: ringhash.Config{MinimumSize: policy.MinimumRingSize, MaximumSize: policy.MaximumRingSize},
	}}})
	wg.Go(func() { group.Run(ctx) })
	snap, _ := view.Update(latest.State().Set)
	group.Rebuild(snap)
	if err := group.WaitGeneration(ctx, snap.Generation); err != nil {
		t.Fatal(err)
	}
	reader := gate.NewReader("test")
	defer reader.Close()
	var picks []string
	for i := range keys {
		reader.Pin()
		p := group.Slot("").Pick(reader, lbcore.StringKey(key(i)), 1)
		reader.Unpin()
		m := p.Next()
		if m == nil {
			t.Fatalf("key %q selects nobody", key(i))
		}
		picks = append(picks, m.Addr().String())
	}
	return picks
}
