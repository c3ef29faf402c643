package configdump

import (
	"context"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	adminv3 "github.com/envoyproxy/go-control-plane/envoy/admin/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statusv3 "github.com/envoyproxy/go-control-plane/envoy/service/status/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"gatehouse.internal/cmd/agent/internal/config"
	"gatehouse.internal/discovery/discoverytest"
	"gatehouse.internal/xds"
)

const patience = 30 * time.Second

// serve runs a gRPC server on a loopback port until the test ends.
func serve(t *testing.T, register func(*grpc.Server)) (addr string) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(grpc.WaitForHandlers(true))
	register(s)
	var wg sync.WaitGroup
	wg.Go(func() { s.Serve(ln) })
	t.Cleanup(func() { s.Stop(); wg.Wait() })
	return ln.Addr().String()
}

// csds asks a Dumper over a real connection.
func csds(t *testing.T, d *Dumper) statusv3.ClientStatusDiscoveryServiceClient {
	t.Helper()
	addr := serve(t, func(s *grpc.Server) { statusv3.RegisterClientStatusDiscoveryServiceServer(s, d) })
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return statusv3.NewClientStatusDiscoveryServiceClient(conn)
}

// adsServer sends what a test says, in the state of the world.
type adsServer struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	responses chan *discoveryv3.DiscoveryResponse
}

func (a *adsServer) StreamAggregatedResources(s grpc.BidiStreamingServer[discoveryv3.DiscoveryRequest, discoveryv3.DiscoveryResponse]) error {
	for {
		select {
		case r := <-a.responses:
			if err := s.Send(r); err != nil {
				return err
			}
		case <-s.Context().Done():
			return s.Context().Err()
		}
	}
}

// dumps is an xDS client with its server, and CSDS over it.
type dumps struct {
	t      *testing.T
	server *adsServer
	client *xds.Client
	csds   statusv3.ClientStatusDiscoveryServiceClient
	n      int
}

func newDumps(t *testing.T) *dumps {
	d := &dumps{t: t, server: &adsServer{responses: make(chan *discoveryv3.DiscoveryResponse, 10)}}
	addr := serve(t, func(s *grpc.Server) { discoveryv3.RegisterAggregatedDiscoveryServiceServer(s, d.server) })
	cfg := xds.Config{Node: xds.Node{ID: "n", Cluster: "c"}, Servers: []xds.Server{{URI: addr, Protocol: xds.ProtocolSotW}}}
	var err error
	if d.client, err = xds.NewClient(cfg); err != nil {
		t.Fatal(err)
	}
	d.run(d.client.Run)
	d.csds = csds(t, fixed(Config{
		Node: cfg.Node, UserAgentName: "gatehouse", Version: "1", Servers: cfg.Servers, Status: d.client.Status, Started: began,
	}))
	return d
}

// run runs f until the test ends.
func (d *dumps) run(f func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { f(ctx) })
	d.t.Cleanup(func() { cancel(); wg.Wait() })
}

func (d *dumps) watch(names ...string) {
	for _, name := range names {
		d.run(func(ctx context.Context) error {
			return d.client.EDS(name, nil).Watch(ctx, new(discoverytest.Recorder))
		})
	}
}

// respond sends a response with the next version.
func (d *dumps) respond(typ string, resources ...proto.Message) {
	d.t.Helper()
	d.n++
	r := &discoveryv3.DiscoveryResponse{TypeUrl: typ, VersionInfo: fmt.Sprint("v", d.n), Nonce: fmt.Sprint("n", d.n)}
	for _, m := range resources {
		a, err := anypb.New(m)
		if err != nil {
			d.t.Fatal(err)
		}
		r.Resources = append(r.Resources, a)
	}
	d.server.responses <- r
}

// ask returns what CSDS says.
func (d *dumps) ask(r *statusv3.ClientStatusRequest) *statusv3.ClientConfig {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(d.t.Context(), patience)
	defer cancel()
	answer, err := d.csds.FetchClientStatus(ctx, r)
	if err != nil {
		d.t.Fatal(err)
	}
	if len(answer.GetConfig()) != 1 {
		d.t.Fatalf("%d clients", len(answer.GetConfig()))
	}
	return answer.GetConfig()[0]
}

// expect waits until CSDS has these resources, each a line.
func (d *dumps) expect(want ...string) *statusv3.ClientConfig {
	d.t.Helper()
	for deadline := time.Now().Add(patience); ; {
		c := d.ask(new(statusv3.ClientStatusRequest))
		got := lines(c)
		if slices.Equal(got, want) {
			return c
		}
		if time.Now().After(deadline) {
			d.t.Fatalf("CSDS has\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
}

// lines is what a client has, each resource a line.
func lines(c *statusv3.ClientConfig) (out []string) {
	for _, x := range c.GetGenericXdsConfigs() {
		line := fmt.Sprint(x.GetName(), " ", x.GetClientStatus())
		if x.GetVersionInfo() != "" {
			line += " " + x.GetVersionInfo()
		}
		if x.GetXdsConfig() != nil {
			line += " held"
		}
		if x.GetLastUpdated() != nil {
			line += " since"
		}
		if e := x.GetErrorState(); e != nil {
			line += fmt.Sprintf(" error=%s %s", e.GetVersionInfo(), e.GetDetails())
		}
		out = append(out, line)
	}
	return out
}

func assignment(name string, port uint32) *endpointv3.ClusterLoadAssignment {
	e := &endpointv3.LbEndpoint{HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{Address: address(mustAddr(fmt.Sprint("192.0.2.1:", port)))}}}
	return &endpointv3.ClusterLoadAssignment{ClusterName: name, Endpoints: []*endpointv3.LocalityLbEndpoints{{LbEndpoints: []*endpointv3.LbEndpoint{e}}}}
}

func broken(name string) *endpointv3.ClusterLoadAssignment {
	a := assignment(name, 80)
	a.Endpoints[0].LbEndpoints[0].LoadBalancingWeight = wrapperspb.UInt32(0)
	return a
}

const whyBroken = "endpoints[0].lb_endpoints[0].load_balancing_weight: 0: want at least 1"

// One watch of each of several resources of one type: asked for, then held, then
// newer.
func TestDumpResources_ManyToOne(t *testing.T) {
	d := newDumps(t)
	c := d.expect()
	if n := c.GetNode(); n.GetId() != "n" || n.GetCluster() != "c" || n.GetUserAgentName() != "gatehouse" || n.GetUserAgentVersion() != "1" {
		t.Errorf("the node is %v", n)
	}
	d.watch("a", "b")
	d.expect("a REQUESTED", "b REQUESTED")
	d.respond(xds.AssignmentType, assignment("a", 1), assignment("b", 1))
	c = d.expect("a ACKED v1 held since", "b ACKED v1 held since")
	var got endpointv3.ClusterLoadAssignment
	if err := c.GetGenericXdsConfigs()[1].GetXdsConfig().UnmarshalTo(&got); err != nil || !proto.Equal(&got, assignment("b", 1)) {
		t.Errorf("b is %v, %v", &got, err)
	}
	if url := c.GetGenericXdsConfigs()[0].GetTypeUrl(); url != xds.AssignmentType {
		t.Errorf("the type is %s", url)
	}
	d.respond(xds.AssignmentType, assignment("a", 2), assignment("b", 1))
	d.expect("a ACKED v2 held since", "b ACKED v2 held since")
	for _, x := range d.ask(&statusv3.ClientStatusRequest{ExcludeResourceContents: true}).GetGenericXdsConfigs() {
		if x.GetXdsConfig() != nil || x.GetVersionInfo() != "v2" {
			t.Errorf("without contents: %v", x)
		}
	}
}

// Resources of several types and, as there is one authority, names of both forms;
// what a cluster names is asked for too.
func TestDumpResources_ManyToMany(t *testing.T) {
	d := newDumps(t)
	const name = "xdstp://authority/envoy.config.endpoint.v3.ClusterLoadAssignment/b"
	d.watch("a", name)
	d.run(func(ctx context.Context) error { return d.client.WatchClusters(ctx, func(xds.ClustersUpdate) {}) })
	d.expect("a REQUESTED", name+" REQUESTED")
	cluster := func(name, service string) *clusterv3.Cluster {
		return &clusterv3.Cluster{
			Name: name, ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS},
			EdsClusterConfig: &clusterv3.Cluster_EdsClusterConfig{EdsConfig: overADS(), ServiceName: service},
		}
	}
	d.respond(xds.ClusterType, cluster("one", "a"), cluster("two", "c"))
	d.expect("one ACKED v1 held since", "two ACKED v1 held since", "a REQUESTED", "c REQUESTED", name+" REQUESTED")
	d.respond(xds.AssignmentType, assignment("a", 1), assignment("c", 1), assignment(name, 1))
	d.expect("one ACKED v1 held since", "two ACKED v1 held since", "a ACKED v2 held since", "c ACKED v2 held since", name+" ACKED v2 held since")
	// A cluster that is gone is no longer in it, nor is what only it has named.
	d.respond(xds.ClusterType, cluster("one", "a"))
	d.expect("one ACKED v3 held since", "a ACKED v2 held since", name+" ACKED v2 held since")
}

// A refused version keeps the one before, beside why and what it was; the next good
// one takes the error away.
func TestDumpResources_ACK_NACK(t *testing.T) {
	d := newDumps(t)
	d.watch("a", "b")
	before := time.Now()
	d.respond(xds.AssignmentType, assignment("a", 1), broken("b"))
	c := d.expect("a ACKED v1 held since", "b NACKED error=v1 "+whyBroken)
	e := c.GetGenericXdsConfigs()[1].GetErrorState()
	if at := e.GetLastUpdateAttempt().AsTime(); at.Before(before) || at.After(time.Now()) {
		t.Errorf("the attempt was at %v", at)
	}
	var got endpointv3.ClusterLoadAssignment
	if err := e.GetFailedConfiguration().UnmarshalTo(&got); err != nil || !proto.Equal(&got, broken("b")) {
		t.Errorf("what failed is %v, %v", &got, err)
	}
	d.respond(xds.AssignmentType, broken("a"), broken("b"))
	d.expect("a NACKED v1 held since error=v2 "+whyBroken, "b NACKED error=v2 "+whyBroken)
	d.respond(xds.AssignmentType, assignment("a", 2), assignment("b", 2))
	c = d.expect("a ACKED v3 held since", "b ACKED v3 held since")
	if x := c.GetGenericXdsConfigs()[0]; x.GetErrorState() != nil || x.GetIsStaticResource() {
		t.Errorf("mended: %v", x)
	}
}

// A stream answers each request once, and ends as its client wants; node matchers
// are refused; clusters of the files are among the resources.
func TestStreamClientStatus(t *testing.T) {
	client := csds(t, fixed(Config{
		Node: xds.Node{ID: "n"}, Started: began,
		Static: []config.Cluster{{Name: "web", Discovery: []config.Discovery{{Kind: config.DiscoveryFile}}}},
	}))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	s, err := client.StreamClientStatus(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for i, exclude := range []bool{false, true, false} {
		if err := s.Send(&statusv3.ClientStatusRequest{ExcludeResourceContents: exclude}); err != nil {
			t.Fatal(err)
		}
		answer, err := s.Recv()
		if err != nil {
			t.Fatal(err)
		}
		all := answer.GetConfig()[0].GetGenericXdsConfigs()
		if len(all) != 1 || all[0].GetName() != "web" || !all[0].GetIsStaticResource() || all[0].GetClientStatus() != adminv3.ClientResourceStatus_UNKNOWN ||
			(all[0].GetXdsConfig() == nil) != exclude || !all[0].GetLastUpdated().AsTime().Equal(began) {
			t.Errorf("answer %d: %v", i, all)
		}
	}
	if err := s.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Recv(); err != io.EOF {
		t.Errorf("after the end: %v", err)
	}
	bad := &statusv3.ClientStatusRequest{NodeMatchers: []*matcherv3.NodeMatcher{{}}}
	if _, err := client.FetchClientStatus(ctx, bad); status.Code(err) != codes.InvalidArgument {
		t.Errorf("a node matcher: %v", err)
	}
	s, err = client.StreamClientStatus(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Send(bad); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Recv(); status.Code(err) != codes.InvalidArgument {
		t.Errorf("a node matcher on a stream: %v", err)
	}
}
