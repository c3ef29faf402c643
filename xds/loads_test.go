package xds

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	loadv3 "github.com/envoyproxy/go-control-plane/envoy/service/load_stats/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	cachev3 "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	serverv3 "github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"

	"gatehouse.internal/internal/tlsconf/tlstest"
	"gatehouse.internal/lbcore"
)

// loadServer is a server of clusters that wants to know their loads.
type loadServer struct {
	loadv3.UnimplementedLoadReportingServiceServer
	t       *testing.T
	addr    string
	cache   cachev3.SnapshotCache
	streams chan *loadStream
	stop    func()
	version int
}

// loadStream is one stream, which the test answers.
type loadStream struct {
	grpc.BidiStreamingServer[loadv3.LoadStatsRequest, loadv3.LoadStatsResponse]
	t        *testing.T
	requests chan *loadv3.LoadStatsRequest
	over     chan struct{} // closed when the client has gone
}

func newLoadServer(t *testing.T, opts ...grpc.ServerOption) *loadServer {
	needsServer(t)
	s := &loadServer{t: t, cache: cachev3.NewSnapshotCache(false, cachev3.IDHash{}, nil), streams: make(chan *loadStream, 10)}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.addr = ln.Addr().String()
	g := grpc.NewServer(append(opts, grpc.WaitForHandlers(true))...)
	ctx, cancel := context.WithCancel(context.Background())
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(g, serverv3.NewServer(ctx, s.cache, nil))
	loadv3.RegisterLoadReportingServiceServer(g, s)
	var wg sync.WaitGroup
	wg.Go(func() { g.Serve(ln) })
	s.stop = sync.OnceFunc(func() { cancel(); g.Stop(); wg.Wait() })
	t.Cleanup(s.stop)
	return s
}

func (s *loadServer) StreamLoadStats(st grpc.BidiStreamingServer[loadv3.LoadStatsRequest, loadv3.LoadStatsResponse]) error {
	ls := &loadStream{st, s.t, make(chan *loadv3.LoadStatsRequest, 100), make(chan struct{})}
	s.streams <- ls
	defer close(ls.over)
	for {
		r, err := st.Recv()
		if err != nil {
			return err
		}
		select {
		case ls.requests <- r:
		case <-st.Context().Done():
		}
	}
}

// set makes these the server's clusters; those with a + want their loads reported.
func (s *loadServer) set(names ...string) {
	s.t.Helper()
	s.version++
	var all []types.Resource
	for _, name := range names {
		c := edsCluster(name)
		if name[0] == '+' {
			c = edsCluster(name[1:], wantsLoads)
		}
		all = append(all, c)
	}
	snap, err := cachev3.NewSnapshot(fmt.Sprint(s.version), map[resourcev3.Type][]types.Resource{resourcev3.ClusterType: all})
	if err == nil {
		err = s.cache.SetSnapshot(s.t.Context(), "n", snap)
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

func wantsLoads(c *clusterv3.Cluster) {
	c.LrsServer = &corev3.ConfigSource{ConfigSourceSpecifier: &corev3.ConfigSource_Self{Self: &corev3.SelfConfigSource{}}}
}

// within returns what comes from c, or fails the test.
func within[T any](t *testing.T, what string, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(20 * time.Second):
		t.Fatalf("no %s", what)
		panic("unreachable")
	}
}

// request returns the next request of the stream.
func (s *loadStream) request() *loadv3.LoadStatsRequest {
	s.t.Helper()
	return within(s.t, "request", s.requests)
}

// asks answers as servers do that want these clusters, or all, at the shortest
// interval.
func (s *loadStream) asks(clusters ...string) {
	s.t.Helper()
	if err := s.Send(&loadv3.LoadStatsResponse{Clusters: clusters, SendAllClusters: len(clusters) == 0}); err != nil {
		s.t.Fatal(err)
	}
}

// reported returns the clusters of the next report.
func (s *loadStream) reported() (names []string) {
	s.t.Helper()
	for _, c := range s.request().GetClusterStats() {
		names = append(names, c.GetClusterName())
	}
	return names
}

// loadClient runs a client of servers that has a connection to report in each of these
// clusters, always.
func loadClient(t *testing.T, servers []Server, clusters ...string) *Client {
	t.Helper()
	c, err := NewClient(Config{
		Servers: servers, Node: Node{ID: "n", Cluster: "edge"},
		BackoffBase: 20 * time.Millisecond, BackoffMax: 200 * time.Millisecond,
		Loads: func(wanted func(string) bool) (all []ClusterLoad) {
			for _, name := range clusters {
				if wanted(name) {
					all = append(all, ClusterLoad{Cluster: name, Interval: time.Second, Endpoints: []EndpointLoad{{Load: Load{Issued: 1}}}})
				}
			}
			return all
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { c.Run(ctx) })
	wg.Go(func() { c.WatchClusters(ctx, func(ClustersUpdate) {}) })
	t.Cleanup(func() { cancel(); wg.Wait() })
	return c
}

// until waits until ok.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	limit := time.NewTimer(20 * time.Second)
	defer limit.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-limit.C:
			t.Fatalf("it is not so that %s", what)
		}
	}
}

// ReportLoad_ConnectionCreation: loads are reported to the server that gave the
// clusters, by the same credentials, and to another one when that takes its place.
func TestReportLoad_ConnectionCreation(t *testing.T) {
	dir := t.TempDir()
	ca := tlstest.NewCA(t, "ca")
	token := filepath.Join(dir, "token")
	tlstest.Replace(t, token, []byte("t0ken"))
	cert := ca.Issue(t, tlstest.Leaf{Names: []string{"127.0.0.1"}}).TLS(t)
	first := newLoadServer(t)
	second := newLoadServer(t, grpc.Creds(credentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{cert}})))
	first.set("+web")
	second.set("+web", "api")
	c := loadClient(t, []Server{{URI: first.addr}, {
		URI: second.addr, TLS: &TLS{CAFile: ca.Write(t, dir)}, TokenFile: token, Metadata: map[string]string{"x-tenant": "blue"},
	}}, "web")
	st := within(t, "stream", first.streams)
	if n := st.request().GetNode(); n.GetId() != "n" || n.GetCluster() != "edge" || !slices.Contains(n.GetClientFeatures(), "envoy.lrs.supports_send_all_clusters") {
		t.Errorf("the node is %v", n)
	}
	st.asks()
	if got := st.reported(); !slices.Equal(got, []string{"web"}) {
		t.Errorf("reported are %q", got)
	}
	until(t, "the report is counted", func() bool { return c.Counters().LoadReports > 0 })
	// Only what is new makes the second server be asked.
	watchEDS(t, c, "of-which-nothing-is-known")
	first.stop()
	st = within(t, "stream to the second", second.streams)
	md, _ := metadata.FromIncomingContext(st.Context())
	for key, want := range map[string]string{"authorization": "Bearer t0ken", "x-tenant": "blue"} {
		if got := md.Get(key); len(got) != 1 || got[0] != want {
			t.Errorf("%s is %q, want %q", key, got, want)
		}
	}
	st.request()
	st.asks("web")
	if got := st.reported(); !slices.Equal(got, []string{"web"}) {
		t.Errorf("reported to the second are %q", got)
	}
}

// ReportLoad_StreamCreation: all clusters share one stream, which is there for as long
// as one of them wants it; without any there is none.
func TestReportLoad_StreamCreation(t *testing.T) {
	s := newLoadServer(t)
	s.set("web", "api")
	c := loadClient(t, []Server{{URI: s.addr, Protocol: ProtocolSotW}}, "api", "web")
	applied := func() {
		t.Helper()
		until(t, "the clusters are there", func() bool {
			st := c.Status()
			return len(st.Types) > 0 && st.Types[0].Version == fmt.Sprint(s.version)
		})
	}
	applied()
	s.set("web", "+api")
	st := within(t, "stream", s.streams)
	st.request()
	st.asks()
	if got := st.reported(); !slices.Equal(got, []string{"api", "web"}) { // whatever the giver gives
		t.Errorf("reported are %q", got)
	}
	s.set("+web", "+api")
	applied()
	s.set("+web", "api")
	applied()
	st.asks("web")
	until(t, "only what is asked for is reported", func() bool { return slices.Equal(st.reported(), []string{"web"}) })
	s.set("web", "api")
	within(t, "end of the stream", st.over)
	if n := c.Counters().LoadFailures; n != 0 || len(s.streams) != 0 {
		t.Errorf("%d failures, %d more streams", n, len(s.streams))
	}
	s.set("+web")
	st = within(t, "second stream", s.streams)
	st.request()
	// The end of the server is a failure, and tried again.
	s.stop()
	within(t, "end of the second stream", st.over)
	until(t, "failures are counted", func() bool { return c.Counters().LoadFailures > 1 })
}

// A server without LRS costs its clusters nothing.
func TestNoLoadReports(t *testing.T) {
	needsServer(t)
	p := newControlPlane(t, false)
	p.set(1, edsCluster("web", wantsLoads), web(1))
	c := loadClient(t, []Server{{URI: p.addr.String(), Protocol: ProtocolSotW}}, "web")
	rec, _ := watchEDS(t, c, "web")
	rec.WaitSet(t, 0, lbcore.IPAddr(netip.MustParseAddrPort("10.0.0.1:80")))
	until(t, "the failure is counted", func() bool { return c.Counters().LoadFailures > 0 })
	if n := c.Counters(); n.LoadReports != 0 || !n.Connected {
		t.Errorf("%+v", n)
	}
}
