package xds

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	cachev3 "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	serverv3 "github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/structpb"

	"gatehouse.internal/discovery"
	"gatehouse.internal/discovery/discoverytest"
	"gatehouse.internal/lbcore"
)

// controlPlane is a go-control-plane server on a loopback port, which it keeps
// over restarts. It records what is on the wire.
type controlPlane struct {
	t     *testing.T
	cache cachev3.SnapshotCache
	proto Protocol // that its clients speak
	addr  net.Addr
	stop  func()

	mu       sync.Mutex
	requests []*discoveryv3.DiscoveryRequest
	grown    chan struct{} // closed by the next request
}

func newControlPlane(t *testing.T, ads bool, protocol ...Protocol) *controlPlane {
	p := &controlPlane{t: t, proto: append(protocol, ProtocolSotW)[0], cache: cachev3.NewSnapshotCache(ads, cachev3.IDHash{}, nil), grown: make(chan struct{})}
	p.listen("tcp", "127.0.0.1:0")
	t.Cleanup(func() { p.stop() })
	return p
}

// wire records the requests of a stream.
type wire struct {
	grpc.ServerStream
	p *controlPlane
	d *deltaWire
}

func (w wire) RecvMsg(m any) error {
	err := w.ServerStream.RecvMsg(m)
	if err == nil {
		w.p.mu.Lock()
		defer w.p.mu.Unlock()
		r, sotw := m.(*discoveryv3.DiscoveryRequest)
		if sotw {
			r = proto.CloneOf(r)
		} else {
			r = w.d.request(proto.CloneOf(m.(*discoveryv3.DeltaDiscoveryRequest)))
		}
		w.p.requests = append(w.p.requests, r)
		close(w.p.grown)
		w.p.grown = make(chan struct{})
	}
	return err
}

func (w wire) SendMsg(m any) error {
	if r, delta := m.(*discoveryv3.DeltaDiscoveryResponse); delta {
		w.p.mu.Lock()
		w.d.versions[r.GetNonce()] = r.GetSystemVersionInfo()
		w.p.mu.Unlock()
	}
	return w.ServerStream.SendMsg(m)
}

// deltaWire tells what the requests of a stream amount to in the other variant:
// the names that are asked for by now, and the version of the last response that
// was accepted.
type deltaWire struct {
	names              map[string][]string // by type
	accepted, versions map[string]string   // by type; by nonce
}

func (d *deltaWire) request(r *discoveryv3.DeltaDiscoveryRequest) *discoveryv3.DiscoveryRequest {
	names := append(slices.Clone(d.names[r.TypeUrl]), r.ResourceNamesSubscribe...)
	names = slices.DeleteFunc(names, func(n string) bool { return slices.Contains(r.ResourceNamesUnsubscribe, n) })
	slices.Sort(names)
	d.names[r.TypeUrl] = names
	if r.ResponseNonce != "" && r.ErrorDetail == nil {
		d.accepted[r.TypeUrl] = d.versions[r.ResponseNonce]
	}
	return &discoveryv3.DiscoveryRequest{
		TypeUrl: r.TypeUrl, ResponseNonce: r.ResponseNonce, Node: r.Node, ErrorDetail: r.ErrorDetail,
		ResourceNames: names, VersionInfo: d.accepted[r.TypeUrl],
	}
}

func (p *controlPlane) listen(network, address string) {
	p.t.Helper()
	l, err := net.Listen(network, address)
	if err != nil {
		p.t.Fatal(err)
	}
	p.addr = l.Addr()
	ctx, cancel := context.WithCancel(context.Background())
	s := grpc.NewServer(grpc.WaitForHandlers(true), grpc.StreamInterceptor(
		func(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, h grpc.StreamHandler) error {
			return h(srv, wire{ss, p, &deltaWire{map[string][]string{}, map[string]string{}, map[string]string{}}})
		}))
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(s, serverv3.NewServer(ctx, p.cache, nil))
	var wg sync.WaitGroup
	wg.Go(func() { s.Serve(l) })
	p.stop = sync.OnceFunc(func() {
		s.Stop()
		cancel()
		wg.Wait()
	})
}

// restart starts the server again after stop.
func (p *controlPlane) restart() { p.listen(p.addr.Network(), p.addr.String()) }

// set makes version n list these resources.
func (p *controlPlane) set(n int, resources ...types.Resource) {
	p.t.Helper()
	by := map[resourcev3.Type][]types.Resource{}
	for _, r := range resources {
		typ := "type.googleapis.com/" + string(r.ProtoReflect().Descriptor().FullName())
		by[typ] = append(by[typ], r)
	}
	snapshot, err := cachev3.NewSnapshot(fmt.Sprint("v", n), by)
	if err == nil {
		err = p.cache.SetSnapshot(context.Background(), "n", snapshot)
	}
	if err != nil {
		p.t.Fatal(err)
	}
}

// wait waits until the requests satisfy ok, and returns them.
func (p *controlPlane) wait(what string, ok func([]*discoveryv3.DiscoveryRequest) bool) []*discoveryv3.DiscoveryRequest {
	p.t.Helper()
	deadline := time.NewTimer(20 * time.Second)
	defer deadline.Stop()
	for {
		p.mu.Lock()
		reqs, grown := slices.Clone(p.requests), p.grown
		p.mu.Unlock()
		if ok(reqs) {
			return reqs
		}
		select {
		case <-grown:
		case <-deadline.C:
			p.t.Fatalf("no %s in time; requests:\n%s", what, strings.Join(lines(reqs), "\n"))
		}
	}
}

// waitLines waits for exactly these requests from position from on.
func (p *controlPlane) waitLines(from int, want ...string) (next int) {
	p.t.Helper()
	reqs := p.wait("request", func(r []*discoveryv3.DiscoveryRequest) bool { return len(r) >= from+len(want) })
	if d := cmp.Diff(want, lines(reqs[from:])); d != "" {
		p.t.Errorf("requests (-want +got):\n%s", d)
	}
	return len(reqs)
}

// lines describes requests, one a line.
func lines(reqs []*discoveryv3.DiscoveryRequest) (out []string) {
	for _, r := range reqs {
		typ := r.TypeUrl[strings.LastIndexByte(r.TypeUrl, '.')+1:]
		line := fmt.Sprintf("%s version=%s nonce=%s names=%v", typ, r.VersionInfo, r.ResponseNonce, r.ResourceNames)
		if r.Node != nil {
			line += " node"
		}
		if r.ErrorDetail != nil {
			line += fmt.Sprintf(" error %d: %s", r.ErrorDetail.Code, r.ErrorDetail.Message)
		}
		out = append(out, line)
	}
	return out
}

// client returns a client of the server.
func (p *controlPlane) client(with ...func(*Config)) *Client {
	p.t.Helper()
	cfg := Config{
		Servers: []Server{{URI: p.addr.String(), Protocol: p.proto}}, Node: Node{ID: "n"}, Logger: slog.New(slog.DiscardHandler),
		BackoffBase: 20 * time.Millisecond, BackoffMax: 200 * time.Millisecond,
	}
	for _, w := range with {
		w(&cfg)
	}
	c, err := NewClient(cfg)
	if err != nil {
		p.t.Fatal(err)
	}
	return c
}

// run runs a client of the server until the test ends.
func (p *controlPlane) run(with ...func(*Config)) *Client {
	p.t.Helper()
	c := p.client(with...)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { c.Run(ctx) })
	p.t.Cleanup(func() { cancel(); wg.Wait() })
	return c
}

// watchAll runs WatchClusters and returns a func that waits for an update.
func watchAll(t *testing.T, c *Client) (wait func(want string) ClustersUpdate) {
	news := make(chan ClustersUpdate)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		c.WatchClusters(ctx, func(u ClustersUpdate) {
			select {
			case news <- u:
			case <-ctx.Done():
			}
		})
	})
	t.Cleanup(func() { cancel(); wg.Wait() })
	return func(want string) ClustersUpdate {
		t.Helper()
		deadline := time.NewTimer(20 * time.Second)
		defer deadline.Stop()
		var got []string
		for {
			select {
			case u := <-news:
				if u.String() == want {
					return u
				}
				got = append(got, u.String())
			case <-deadline.C:
				t.Fatalf("no update %q; updates:\n%s", want, strings.Join(got, "\n"))
			}
		}
	}
}

func endpointAt(name string, n int) types.Resource {
	return cla(name, locality(0, lb(socket(fmt.Sprint("10.0.0.", n), 80))))
}

// needsServer leaves a test out of a -short run.
func needsServer(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("left out by -short: it needs a go-control-plane server")
	}
}

// bothVariants runs a test for each variant of the protocol.
func bothVariants(t *testing.T, test func(*testing.T, Protocol)) {
	needsServer(t)
	for _, p := range []Protocol{ProtocolSotW, ProtocolDelta} {
		t.Run(string(p), func(t *testing.T) { test(t, p) })
	}
}

// With either kind of cache: what is on the wire from the first request over
// an update, a refused resource and its repair to a restart of the server.
func TestControlPlane(t *testing.T) {
	needsServer(t)
	for _, of := range []struct {
		protocol Protocol
		ads      bool
	}{{ProtocolSotW, true}, {ProtocolSotW, false}, {ProtocolDelta, true}, {ProtocolDelta, false}} {
		t.Run(fmt.Sprint(of.protocol, ",ads=", of.ads), func(t *testing.T) {
			p := newControlPlane(t, of.ads, of.protocol)
			p.set(1, edsCluster("a"), edsCluster("b", service("svc")), endpointAt("a", 1), endpointAt("svc", 2))
			c := p.run()
			clusters := watchAll(t, c)
			clusters("known=true a b")
			next := p.waitLines(0,
				"Cluster version= nonce= names=[] node",
				"Cluster version=v1 nonce=1 names=[]",
				"ClusterLoadAssignment version= nonce= names=[a svc]",
				"ClusterLoadAssignment version=v1 nonce=2 names=[a svc]",
			)
			a, _ := watchEDS(t, c, "a")
			b, _ := watchEDS(t, c, "svc")
			a.WaitSet(t, 0, addr("10.0.0.1:80"))
			b.WaitSet(t, 0, addr("10.0.0.2:80"))

			// A cluster more, in one request; another endpoint of a.
			p.set(2, edsCluster("a"), edsCluster("b", service("svc")), edsCluster("c"),
				endpointAt("a", 11), endpointAt("svc", 2), endpointAt("c", 3))
			clusters("known=true a b c")
			a.WaitSet(t, 1, addr("10.0.0.11:80"))
			reqs := p.wait("ACK of v2 for all", func(r []*discoveryv3.DiscoveryRequest) bool {
				last := r[len(r)-1]
				return last.TypeUrl == AssignmentType && last.VersionInfo == "v2" && len(last.ResourceNames) == 3
			})
			for _, r := range reqs[next:] {
				if r.ErrorDetail != nil || r.Node != nil || r.TypeUrl == ClusterType && len(r.ResourceNames) > 0 {
					t.Errorf("request %v", r)
				}
			}
			if n := len(b.Reports()); n != 1 {
				t.Errorf("%d reports of an assignment that did not change", n)
			}

			// One bad assignment and one bad cluster: the others apply.
			bad := cla("a", locality(0, lb(socket("10.0.0.1", 80)), lb(socket("10.0.0.9", 80), weight(0))))
			p.set(3, edsCluster("a"), edsCluster("b", service("svc"), badTimeout), edsCluster("c", anyTimeout),
				bad, endpointAt("svc", 22), endpointAt("c", 3))
			const badField = "endpoints[0].lb_endpoints[1].load_balancing_weight: 0: want at least 1"
			clusters("known=true a b c !b: connect_timeout: 0s: want more than 0s")
			a.WaitFail(t, 2, `eds "a": rejected: `+badField)
			b.WaitSet(t, 1, addr("10.0.0.22:80"))
			p.wait("NACKs", func(reqs []*discoveryv3.DiscoveryRequest) bool {
				var cds, eds bool
				for _, l := range lines(reqs) {
					cds = cds || strings.HasPrefix(l, "Cluster version=v2 nonce=") && strings.HasSuffix(l, `names=[] error 3: Cluster "b": connect_timeout: 0s: want more than 0s`)
					eds = eds || strings.HasPrefix(l, "ClusterLoadAssignment version=v2 nonce=") && strings.HasSuffix(l, `names=[a c svc] error 3: ClusterLoadAssignment "a": `+badField)
				}
				return cds && eds
			})

			// Repaired.
			p.set(4, edsCluster("a"), edsCluster("b", service("svc")), edsCluster("c", anyTimeout),
				endpointAt("a", 14), endpointAt("svc", 22), endpointAt("c", 3))
			clusters("known=true a b c")
			a.WaitSet(t, 3, addr("10.0.0.14:80"))
			acked := func(version string) func(reqs []*discoveryv3.DiscoveryRequest) bool {
				return func(reqs []*discoveryv3.DiscoveryRequest) bool {
					var cds, eds bool
					for _, r := range reqs {
						if r.VersionInfo == version && r.ErrorDetail == nil {
							cds = cds || r.TypeUrl == ClusterType
							eds = eds || r.TypeUrl == AssignmentType
						}
					}
					return cds && eds
				}
			}
			next = len(p.wait("ACKs of v4", acked("v4")))

			// bug 06: over a restart versions are kept, nonces are not. In Delta the
			// versions are those of resources: see the scripted server.
			p.stop()
			a.WaitFail(t, 4, `eds "a": xds server `+p.addr.String()+`: connection refused`)
			clusters("known=true a b c err: xds server " + p.addr.String() + ": connection refused")
			p.set(5, edsCluster("a"), edsCluster("b", service("svc")), endpointAt("a", 15), endpointAt("svc", 22))
			p.restart()
			clusters("known=true a b")
			a.WaitSet(t, 5, addr("10.0.0.15:80"))
			reqs = p.wait("ACKs of v5", acked("v5"))
			version := "v4"
			if of.protocol == ProtocolDelta {
				version = ""
			}
			first := slices.IndexFunc(reqs[next-1:], func(r *discoveryv3.DiscoveryRequest) bool { return r.Node != nil }) + next - 1
			got := lines(reqs[first:])[:2]
			// c may be known to be gone by the second.
			got[1] = strings.Replace(got[1], "[a c svc]", "[a svc]", 1)
			if d := cmp.Diff([]string{
				"Cluster version=" + version + " nonce= names=[] node",
				"ClusterLoadAssignment version=" + version + " nonce= names=[a svc]",
			}, got); d != "" {
				t.Errorf("first requests of the new stream (-want +got):\n%s", d)
			}
			if got := c.Counters(); got.Streams != 2 || got.Failures == 0 || got.Clusters.Refused == 0 || got.Assignments.Invalid != 1 {
				t.Errorf("counters %+v", got)
			}
		})
	}
}

// The server comes after the client.
func TestControlPlaneComesLater(t *testing.T) { bothVariants(t, controlPlaneComesLater) }

func controlPlaneComesLater(t *testing.T, protocol Protocol) {
	p := newControlPlane(t, true, protocol)
	p.stop()
	c := p.run()
	clusters := watchAll(t, c)
	rec, _ := watchEDS(t, c, "a")
	rec.WaitFail(t, 0, `eds "a": xds server `+p.addr.String()+`: connection refused`)
	clusters("known=false err: xds server " + p.addr.String() + ": connection refused")
	if s := c.Status(); s.Connected || s.LastError != "connection refused" {
		t.Errorf("status %+v", s)
	}
	p.set(1, edsCluster("a"), endpointAt("a", 1))
	p.restart()
	rec.WaitSet(t, 1, addr("10.0.0.1:80"))
	clusters("known=true a")
	if s := c.Status(); !s.Connected || s.Types[1].Version != "v1" {
		t.Errorf("status %+v", s)
	}
}

// bug 09: go-control-plane resends at once what was refused, in the state of the
// world.
func TestControlPlaneNackLoop(t *testing.T) {
	needsServer(t)
	p := newControlPlane(t, true)
	p.set(1, cla("a", locality(0, lb(socket("x y", 80)))))
	c := p.run(func(cfg *Config) { cfg.BackoffBase, cfg.BackoffMax = 100*time.Millisecond, time.Second })
	rec, _ := watchEDS(t, c, "a")
	rec.WaitFail(t, 0, `eds "a": rejected`)
	nacks := func(reqs []*discoveryv3.DiscoveryRequest) (n int) {
		for _, r := range reqs {
			if r.ErrorDetail != nil {
				n++
			}
		}
		return n
	}
	p.wait("NACKs", func(reqs []*discoveryv3.DiscoveryRequest) bool { return nacks(reqs) >= 4 })
	p.set(2, endpointAt("a", 1))
	rec.WaitSet(t, 1, addr("10.0.0.1:80"))
	reqs := p.wait("ACK", func(reqs []*discoveryv3.DiscoveryRequest) bool { return reqs[len(reqs)-1].VersionInfo == "v2" })
	// Unthrottled it would be thousands.
	if n := nacks(reqs); n > 20 {
		t.Errorf("%d NACKs", n)
	}
}

// bug 10: with ads=true the server answers only to a request that names every
// assignment of the snapshot, in the state of the world.
func TestControlPlaneWantsCompleteList(t *testing.T) {
	needsServer(t)
	p := newControlPlane(t, true)
	p.set(1, edsCluster("a"), edsCluster("b"), endpointAt("a", 1), endpointAt("b", 2))
	c := p.run(func(cfg *Config) { cfg.InitialFetchTimeout = 100 * time.Millisecond })
	rec, _ := watchEDS(t, c, "a")
	i := rec.WaitFail(t, 0, `eds "a": no such resource`)
	if err := rec.Reports()[i].Err; !errors.Is(err, ErrNotFound) {
		t.Errorf("%v is no ErrNotFound", err)
	}
	watchAll(t, c)("known=true a b")
	rec.WaitSet(t, i+1, addr("10.0.0.1:80"))
}

// bug 07: more clusters than any queue has room for.
func TestControlPlaneManyClusters(t *testing.T) { bothVariants(t, controlPlaneManyClusters) }

func controlPlaneManyClusters(t *testing.T, protocol Protocol) {
	p := newControlPlane(t, true, protocol)
	var resources []types.Resource
	const n = 300
	for i := range n {
		name := fmt.Sprintf("c%03d", i)
		resources = append(resources, edsCluster(name), endpointAt(name, i%250))
	}
	p.set(1, resources...)
	c := p.run()
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	defer wg.Wait()
	defer cancel()
	known := make(chan string, n)
	wg.Go(func() {
		started := map[string]bool{}
		c.WatchClusters(ctx, func(u ClustersUpdate) {
			for _, cl := range u.Clusters {
				if !started[cl.Name] {
					started[cl.Name] = true
					wg.Go(func() {
						c.EDS(cl.EDSName, nil).Watch(ctx, sinkFunc(func() { known <- cl.Name }))
					})
				}
			}
		})
	})
	deadline := time.NewTimer(20 * time.Second)
	defer deadline.Stop()
	for i := range n {
		select {
		case <-known:
		case <-deadline.C:
			t.Fatalf("%d of %d clusters have endpoints", i, n)
		}
	}
	for _, r := range p.wait("requests", func(r []*discoveryv3.DiscoveryRequest) bool { return len(r) >= 4 }) {
		if r.TypeUrl == AssignmentType && len(r.ResourceNames) != n {
			t.Errorf("a request for %d assignments of %d", len(r.ResourceNames), n)
		}
	}
}

// sinkFunc is called for every Replace.
type sinkFunc func()

func (f sinkFunc) Replace(lbcore.Set) { f() }
func (f sinkFunc) Fail(error)         {}

func TestControlPlaneSeesNode(t *testing.T) {
	needsServer(t)
	p := newControlPlane(t, false)
	p.run(func(cfg *Config) {
		cfg.Version = "1.2.3"
		cfg.Node = Node{ID: "n", Cluster: "edge", Locality: lbcore.Locality{Region: "eu", Zone: "eu-1"}, Metadata: map[string]any{"role": "edge"}}
	}).post(func(l *loop) { l.core.SubscribeAll(ClusterType) })
	reqs := p.wait("request", func(r []*discoveryv3.DiscoveryRequest) bool { return len(r) > 0 })
	want := &corev3.Node{
		ClientFeatures: clientFeatures,
		Id:             "n", Cluster: "edge", Locality: &corev3.Locality{Region: "eu", Zone: "eu-1"},
		Metadata:             &structpb.Struct{Fields: map[string]*structpb.Value{"role": structpb.NewStringValue("edge")}},
		UserAgentName:        "gatehouse",
		UserAgentVersionType: &corev3.Node_UserAgentVersion{UserAgentVersion: "1.2.3"},
	}
	if d := cmp.Diff(want, reqs[0].Node, protocmp.Transform()); d != "" {
		t.Errorf("node (-want +got):\n%s", d)
	}
}

func TestControlPlaneOnUnixSocket(t *testing.T) { bothVariants(t, controlPlaneOnUnixSocket) }

func controlPlaneOnUnixSocket(t *testing.T, protocol Protocol) {
	p := newControlPlane(t, false, protocol)
	p.stop()
	p.listen("unix", filepath.Join(t.TempDir(), "xds.sock"))
	p.set(1, endpointAt("a", 1))
	rec, _ := watchEDS(t, p.run(func(cfg *Config) { cfg.Servers = []Server{{URI: "unix://" + p.addr.String()}} }), "a")
	rec.WaitSet(t, 0, addr("10.0.0.1:80"))
}

// A response over the limit ends the stream, and its size is told.
func TestControlPlaneSendsTooMuch(t *testing.T) { bothVariants(t, controlPlaneSendsTooMuch) }

func controlPlaneSendsTooMuch(t *testing.T, protocol Protocol) {
	p := newControlPlane(t, false, protocol)
	p.set(1, endpointAt("a", 1))
	rec, _ := watchEDS(t, p.run(func(cfg *Config) { cfg.MaxMessage = 20 }), "a")
	rec.WaitFail(t, 0, "larger than max")
}

// A server that isn't one: what it says is told.
func TestNoControlPlane(t *testing.T) {
	needsServer(t)
	p := newControlPlane(t, false)
	p.stop()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	var wg sync.WaitGroup
	wg.Go(func() { s.Serve(l) })
	t.Cleanup(func() { s.Stop(); wg.Wait() })
	rec, _ := watchEDS(t, p.run(func(cfg *Config) { cfg.Servers = []Server{{URI: l.Addr().String()}} }), "a")
	rec.WaitFail(t, 0, "unknown service envoy.service.discovery.v3.AggregatedDiscoveryService (Unimplemented)")
}

// Run ends while a server takes connections and says nothing.
func TestRunEndsWhileDialling(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := NewClient(Config{Servers: []Server{{URI: l.Addr().String()}}, Node: Node{ID: "n"}, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	cancel()
	select {
	case err := <-done:
		if err != context.Canceled {
			t.Errorf("Run returned %v", err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("Run does not return")
	}
}

// The EDS source has the duties of every source.
func TestConformance(t *testing.T) {
	needsServer(t)
	discoverytest.Run(t, discoverytest.Harness{
		New: func(t *testing.T) (discovery.Source, discoverytest.World) {
			p := newControlPlane(t, true)
			version := 0
			set := func(eps []lbcore.Endpoint) {
				version++
				m := cla("web", locality(0))
				for _, e := range eps {
					a := e.Addr.AddrPort()
					m.Endpoints[0].LbEndpoints = append(m.Endpoints[0].LbEndpoints,
						lb(socket(a.Addr().String(), uint32(a.Port())), weight(e.Weight)))
				}
				p.set(version, m)
			}
			set(discoverytest.First())
			return ownClient{p}, discoverytest.World{Set: set, Break: func() { p.stop() }, Heal: p.restart}
		},
		Ignore: []goleak.Option{goleak.IgnoreAnyFunction("google.golang.org/grpc.(*Server).Serve")}, // a restart's
	})
}

// ownClient is an EDS source with a client of its own for each Watch, so that
// nothing of the client may outlive it.
type ownClient struct{ p *controlPlane }

func (o ownClient) Watch(ctx context.Context, sink discovery.Sink) error {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	c := o.p.client()
	wg.Go(func() { c.Run(ctx) })
	return c.EDS("web", new(discovery.Duplicates)).Watch(ctx, sink)
}
