package test

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	cachev3 "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	serverv3 "github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// control is a go-control-plane server that can go away and come back at its
// address, and that records what it is asked.
type control struct {
	t     *testing.T
	addr  string
	cache cachev3.SnapshotCache
	stop  func()

	// protocol is what its agents speak; empty is what they would by themselves.
	protocol string
	// options are more of the gRPC server's, and register, if set, adds services.
	options  []grpc.ServerOption
	register func(*grpc.Server)

	mu       sync.Mutex
	requests []controlRequest
	version  int
}

// controlRequest is what both variants of a request have.
type controlRequest struct {
	typeURL string
	version string // that is accepted, or in Delta of what is answered
	nack    string
}

const nodeID = "test-node"

// newControl returns a server that is not started.
func newControl(t *testing.T) *control {
	t.Helper()
	needsServer(t)
	// Not a port that the kernel would give to a client while the server is away.
	var ln net.Listener
	for err := error(nil); ln == nil; {
		if ln, err = net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", 10000+rand.IntN(20000))); err != nil {
			t.Log(err)
		}
	}
	defer ln.Close()
	return &control{t: t, addr: ln.Addr().String(), cache: cachev3.NewSnapshotCache(true, cachev3.IDHash{}, nil), stop: func() {}}
}

// bothVariants runs a test with a server whose agents speak each variant of the
// protocol.
func bothVariants(t *testing.T, test func(*testing.T, *control)) {
	for _, protocol := range []string{"delta", "sotw"} {
		t.Run(protocol, func(t *testing.T) {
			cp := newControl(t)
			cp.protocol = protocol
			test(t, cp)
		})
	}
}

// start serves at the address.
func (c *control) start() {
	c.t.Helper()
	ln, err := net.Listen("tcp", c.addr)
	if err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	srv := grpc.NewServer(c.options...)
	if c.register != nil {
		c.register(srv)
	}
	versions := map[string]string{} // by nonce
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(srv, serverv3.NewServer(ctx, c.cache, serverv3.CallbackFuncs{
		StreamRequestFunc: func(_ int64, r *discoveryv3.DiscoveryRequest) error {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.requests = append(c.requests, controlRequest{r.GetTypeUrl(), r.GetVersionInfo(), r.GetErrorDetail().GetMessage()})
			return nil
		},
		StreamDeltaRequestFunc: func(id int64, r *discoveryv3.DeltaDiscoveryRequest) error {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.requests = append(c.requests, controlRequest{r.GetTypeUrl(), versions[fmt.Sprint(id, r.GetResponseNonce())], r.GetErrorDetail().GetMessage()})
			return nil
		},
		StreamDeltaResponseFunc: func(id int64, _ *discoveryv3.DeltaDiscoveryRequest, r *discoveryv3.DeltaDiscoveryResponse) {
			c.mu.Lock()
			defer c.mu.Unlock()
			versions[fmt.Sprint(id, r.GetNonce())] = r.GetSystemVersionInfo()
		},
	}))
	var wg sync.WaitGroup
	wg.Go(func() { srv.Serve(ln) })
	c.stop = func() {
		cancel()
		srv.Stop()
		wg.Wait()
		c.stop = func() {}
	}
	c.t.Cleanup(func() { c.stop() })
}

// set makes these the server's resources.
func (c *control) set(resources ...types.Resource) {
	c.t.Helper()
	byType := map[resourcev3.Type][]types.Resource{resourcev3.ClusterType: {}, resourcev3.EndpointType: {}}
	for _, r := range resources {
		switch r.(type) {
		case *clusterv3.Cluster:
			byType[resourcev3.ClusterType] = append(byType[resourcev3.ClusterType], r)
		case *endpointv3.ClusterLoadAssignment:
			byType[resourcev3.EndpointType] = append(byType[resourcev3.EndpointType], r)
		case *listenerv3.Listener:
			byType[resourcev3.ListenerType] = append(byType[resourcev3.ListenerType], r)
		case *tlsv3.Secret:
			byType[resourcev3.SecretType] = append(byType[resourcev3.SecretType], r)
		}
	}
	c.version++
	snap, err := cachev3.NewSnapshot(fmt.Sprint(c.version), byType)
	if err != nil {
		c.t.Fatal(err)
	}
	if err := c.cache.SetSnapshot(c.t.Context(), nodeID, snap); err != nil {
		c.t.Fatal(err)
	}
}

// nacks returns the messages of the NACKs so far.
func (c *control) nacks() (texts []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range c.requests {
		if r.nack != "" {
			texts = append(texts, r.nack)
		}
	}
	return texts
}

// nacked waits for a NACK that names all of words.
func (c *control) nacked(words ...string) {
	c.t.Helper()
	eventually(c.t, fmt.Sprintf("a NACK names %q", words), func() bool {
		return slices.ContainsFunc(c.nacks(), func(text string) bool {
			return !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(text, w) })
		})
	})
}

// acked waits until the newest version of a type is accepted.
func (c *control) acked(typeURL string) {
	c.t.Helper()
	eventually(c.t, "version "+fmt.Sprint(c.version)+" is accepted", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return slices.ContainsFunc(c.requests, func(r controlRequest) bool {
			return r.typeURL == typeURL && r.nack == "" && r.version == fmt.Sprint(c.version)
		})
	})
}

// node is what the agent's configuration says to use the server.
func (c *control) node(more string) string {
	return fmt.Sprintf("node { id = %q }\nxds {\n  server_uri = %q\n  protocol = %q\n  clusters = true\n}\n%s",
		nodeID, c.addr, cmp.Or(c.protocol, "auto"), more)
}

// edsCluster is a CDS cluster whose endpoints come by EDS, checked every 100 ms.
// Those that are removed leave, though they pass their checks.
func edsCluster(name, service string, policy clusterv3.Cluster_LbPolicy) *clusterv3.Cluster {
	return &clusterv3.Cluster{
		Name:                 name,
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS},
		EdsClusterConfig: &clusterv3.Cluster_EdsClusterConfig{
			ServiceName: service,
			EdsConfig: &corev3.ConfigSource{
				ResourceApiVersion:    corev3.ApiVersion_V3,
				ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}},
			},
		},
		LbPolicy:                  policy,
		ConnectTimeout:            durationpb.New(2 * time.Second),
		IgnoreHealthOnHostRemoval: true,
		HealthChecks: []*corev3.HealthCheck{{
			Interval: durationpb.New(100 * time.Millisecond), Timeout: durationpb.New(100 * time.Millisecond),
			UnhealthyThreshold: wrapperspb.UInt32(2), HealthyThreshold: wrapperspb.UInt32(1),
			HealthChecker: &corev3.HealthCheck_TcpHealthCheck_{TcpHealthCheck: &corev3.HealthCheck_TcpHealthCheck{}},
		}},
	}
}

// assignment lists addresses as the endpoints of a service.
func assignment(t *testing.T, service string, addrs ...string) *endpointv3.ClusterLoadAssignment {
	t.Helper()
	a := &endpointv3.ClusterLoadAssignment{ClusterName: service, Endpoints: []*endpointv3.LocalityLbEndpoints{{}}}
	for _, addr := range addrs {
		host, port, err := net.SplitHostPort(addr)
		if err != nil {
			t.Fatal(err)
		}
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil {
			t.Fatal(err)
		}
		a.Endpoints[0].LbEndpoints = append(a.Endpoints[0].LbEndpoints, &endpointv3.LbEndpoint{
			HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{
				Address: &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
					Address: host, PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: uint32(n)},
				}}},
			}},
		})
	}
	return a
}
