package test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	adminv3 "github.com/envoyproxy/go-control-plane/envoy/admin/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	loadv3 "github.com/envoyproxy/go-control-plane/envoy/service/load_stats/v3"
	statusv3 "github.com/envoyproxy/go-control-plane/envoy/service/status/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// clientStatus returns what the agent tells a CSDS client, by type and name.
func (p *process) clientStatus() map[string]*statusv3.ClientConfig_GenericXdsConfig {
	p.t.Helper()
	conn, err := grpc.NewClient(p.admin(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		p.t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(p.t.Context(), patience)
	defer cancel()
	answer, err := statusv3.NewClientStatusDiscoveryServiceClient(conn).FetchClientStatus(ctx, new(statusv3.ClientStatusRequest))
	if err != nil {
		p.t.Fatal(err)
	}
	out := make(map[string]*statusv3.ClientConfig_GenericXdsConfig)
	for _, x := range answer.GetConfig()[0].GetGenericXdsConfigs() {
		out[x.GetTypeUrl()[strings.LastIndexByte(x.GetTypeUrl(), '.')+1:]+" "+x.GetName()] = x
	}
	return out
}

// command runs a command of the agent and returns what it prints.
func command(t *testing.T, args ...string) string {
	t.Helper()
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), path, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%q: %v\n%s", args, err, out)
	}
	return string(out)
}

// A CSDS client on the admin address sees what CDS and EDS hold, and of what was
// refused why; the configuration dump and the command say the same.
func TestClientStatus(t *testing.T) { bothVariants(t, clientStatus) }

func clientStatus(t *testing.T, cp *control) {
	a, b := startBackend(t), startBackend(t)
	cp.start()
	web := edsCluster("web", "web-service", clusterv3.Cluster_ROUND_ROBIN)
	good := assignment(t, "web-service", a.addr)
	cp.set(web, good)
	p := startAgent(t, cp.node(static("fixed", b)+"}\n"+webListener))
	p.awaitReady()
	has := func(what string, m proto.Message, version string) *statusv3.ClientConfig_GenericXdsConfig {
		t.Helper()
		x := p.clientStatus()[what]
		got := m.ProtoReflect().New().Interface()
		if err := x.GetXdsConfig().UnmarshalTo(got); err != nil || !proto.Equal(got, m) || x.GetVersionInfo() == "" || x.GetLastUpdated() == nil {
			t.Errorf("%s: %v, %v; want %v", what, x, err, m)
		}
		return x
	}
	if x := has("Cluster web", web, "1"); x.GetClientStatus() != adminv3.ClientResourceStatus_ACKED || x.GetErrorState() != nil {
		t.Errorf("the cluster is %v", x)
	}
	if x := has("ClusterLoadAssignment web-service", good, "1"); x.GetClientStatus() != adminv3.ClientResourceStatus_ACKED {
		t.Errorf("the endpoints are %v", x)
	}
	if x := p.clientStatus()["Cluster fixed"]; !x.GetIsStaticResource() {
		t.Errorf("the cluster of the file is %v", x)
	}
	version := p.clientStatus()["ClusterLoadAssignment web-service"].GetVersionInfo()

	// The next version is refused; the one before stays.
	bad := assignment(t, "web-service", b.addr)
	bad.Endpoints[0].LbEndpoints[0].LoadBalancingWeight = wrapperspb.UInt32(0)
	cp.set(web, bad)
	cp.nacked("web-service", "load_balancing_weight")
	x := has("ClusterLoadAssignment web-service", good, "1")
	var failed endpointv3.ClusterLoadAssignment
	if e := x.GetErrorState(); x.GetClientStatus() != adminv3.ClientResourceStatus_NACKED || !strings.Contains(e.GetDetails(), "load_balancing_weight") ||
		e.GetVersionInfo() == "" || e.GetVersionInfo() == version || x.GetVersionInfo() != version || e.GetLastUpdateAttempt() == nil ||
		e.GetFailedConfiguration().UnmarshalTo(&failed) != nil || !proto.Equal(&failed, bad) {
		t.Errorf("the endpoints that were refused are %v", x)
	}
	_, body := p.get("/config_dump?include_eds")
	dump := new(adminv3.ConfigDump)
	if err := protojson.Unmarshal([]byte(body), dump); err != nil || len(dump.GetConfigs()) != 5 { // bootstrap, clusters, listeners, secrets, endpoints
		t.Fatalf("/config_dump: %v\n%s", err, body)
	}
	eds := new(adminv3.EndpointsConfigDump)
	if err := dump.GetConfigs()[4].UnmarshalTo(eds); err != nil || len(eds.GetDynamicEndpointConfigs()) != 1 || len(eds.GetStaticEndpointConfigs()) != 1 ||
		!strings.Contains(eds.GetDynamicEndpointConfigs()[0].GetErrorState().GetDetails(), "load_balancing_weight") {
		t.Errorf("/config_dump has the endpoints %v, %v", eds, err)
	}

	table := command(t, "clusters", "-http-addr", p.admin())
	lines := strings.Split(strings.TrimSpace(table), "\n")
	begins := func(line string, want ...string) bool {
		cells := strings.Fields(line)
		return len(cells) > len(want) && slices.Equal(cells[:len(want)], want)
	}
	if len(lines) != 3 || !begins(lines[1], "fixed", "file", "static", "fresh", "1/1", "-", "-") ||
		!begins(lines[2], "web", "xds", "eds", "stale", "1/1") || !strings.Contains(lines[2], " ago: endpoints[0]") {
		t.Errorf("the table is\n%s", table)
	}
	var rows []struct {
		Name, Origin, State string
		Source              []string
		Ready, Endpoints    int
		CDS                 string   `json:"cds_version"`
		EDS                 string   `json:"eds_version"`
		Age                 *float64 `json:"age_seconds"`
		NACK                struct {
			Type, Version, Reason string
			Mended                bool
		} `json:"last_nack"`
	}
	text := command(t, "clusters", "-http-addr", p.admin(), "-json")
	if err := json.Unmarshal([]byte(text), &rows); err != nil || len(rows) != 2 {
		t.Fatalf("%v\n%s", err, text)
	}
	if r := rows[1]; r.Name != "web" || r.Origin != "xds" || r.CDS == "" || r.EDS != version || r.Age == nil || r.NACK.Type != "eds" || r.NACK.Mended ||
		!strings.Contains(r.NACK.Reason, "load_balancing_weight") || r.Source[0] != "eds" || r.Endpoints != 1 {
		t.Errorf("%+v", r)
	}

	// Mended, it is still told that there was a refusal.
	cp.set(web, assignment(t, "web-service", b.addr))
	eventually(t, "the endpoints are mended", func() bool {
		return p.clientStatus()["ClusterLoadAssignment web-service"].GetClientStatus() == adminv3.ClientResourceStatus_ACKED
	})
	if table := command(t, "clusters", "-http-addr", p.admin()); !strings.Contains(table, "(mended) eds") {
		t.Errorf("the table is\n%s", table)
	}
}

// loadSink takes load reports: it wants all, at the shortest interval.
type loadSink struct {
	loadv3.UnimplementedLoadReportingServiceServer
	mu              sync.Mutex
	streams, closed int
	open            uint64            // in the newest report
	sums            map[string]uint64 // by zone or address, and what
}

func (l *loadSink) StreamLoadStats(s grpc.BidiStreamingServer[loadv3.LoadStatsRequest, loadv3.LoadStatsResponse]) error {
	if _, err := s.Recv(); err != nil {
		return err
	}
	l.mu.Lock()
	l.streams++
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.closed++
	}()
	if err := s.Send(&loadv3.LoadStatsResponse{SendAllClusters: true, ReportEndpointGranularity: true, LoadReportingInterval: durationpb.New(0)}); err != nil {
		return err
	}
	for {
		r, err := s.Recv()
		if err != nil {
			return err
		}
		l.take(r)
	}
}

func (l *loadSink) take(r *loadv3.LoadStatsRequest) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open = 0
	for _, c := range r.GetClusterStats() {
		if c.GetLoadReportInterval().AsDuration() <= 0 {
			l.sums["no interval"]++
		}
		for _, d := range c.GetDroppedRequests() {
			l.sums["dropped "+d.GetCategory()] += d.GetDroppedCount()
		}
		l.sums["cluster "+c.GetClusterName()+" "+c.GetClusterServiceName()]++
		for _, x := range c.GetUpstreamLocalityStats() {
			zone := x.GetLocality().GetZone()
			l.open += x.GetTotalRequestsInProgress()
			l.sums[zone+" issued"] += x.GetTotalIssuedRequests()
			l.sums["ended"] += x.GetTotalSuccessfulRequests()
			l.sums["failed"] += x.GetTotalErrorRequests()
			for _, e := range x.GetUpstreamEndpointStats() {
				a := e.GetAddress().GetSocketAddress()
				l.sums[fmt.Sprintf("%s:%d issued", a.GetAddress(), a.GetPortValue())] += e.GetTotalIssuedRequests()
			}
		}
	}
}

// What is forwarded is what is reported, by locality and endpoint: over a restart of
// the server, a change of the cluster, and endpoints that leave. Clusters that don't
// ask for it are not in it.
func TestLoadReports(t *testing.T) { bothVariants(t, loadReports) }

func loadReports(t *testing.T, cp *control) {
	a, b := startBackend(t), startBackend(t)
	sink := &loadSink{sums: make(map[string]uint64)}
	cp.register = func(s *grpc.Server) { loadv3.RegisterLoadReportingServiceServer(s, sink) }
	cp.start()
	web, quiet := edsCluster("web", "web-service", clusterv3.Cluster_ROUND_ROBIN), edsCluster("quiet", "web-service", clusterv3.Cluster_ROUND_ROBIN)
	web.LrsServer = &corev3.ConfigSource{ConfigSourceSpecifier: &corev3.ConfigSource_Self{Self: new(corev3.SelfConfigSource)}}
	endpoints := func(all ...*backend) *endpointv3.ClusterLoadAssignment {
		la := &endpointv3.ClusterLoadAssignment{ClusterName: "web-service"}
		for _, x := range all {
			l := assignment(t, "web-service", x.addr).Endpoints[0]
			l.Locality = &corev3.Locality{Zone: map[*backend]string{a: "a", b: "b"}[x]}
			la.Endpoints = append(la.Endpoints, l)
		}
		return la
	}
	cp.set(web, quiet, endpoints(a, b))
	p := startAgent(t, cp.node(webListener+`
listener "quiet" {
  address = "127.0.0.1:0"
  cluster = "quiet"
}
`))
	p.awaitReady()
	made := make(map[string]uint64) // connections, by who answered
	traffic := func() {
		t.Helper()
		for range 20 {
			for _, listener := range []string{"web", "quiet"} {
				who, err := ask(t.Context(), p.listener(listener))
				if err != nil {
					t.Fatal(err)
				}
				if listener == "web" {
					made[who]++
				}
			}
		}
	}
	reported := func(what string, open uint64) {
		t.Helper()
		eventually(t, what, func() bool {
			sink.mu.Lock()
			defer sink.mu.Unlock()
			ok := sink.open == open && sink.sums["ended"]+open == made[a.addr]+made[b.addr]
			for x, zone := range map[*backend]string{a: "a", b: "b"} {
				ok = ok && sink.sums[zone+" issued"] == made[x.addr]
			}
			return ok
		})
	}
	traffic()
	if made[a.addr] == 0 || made[b.addr] == 0 {
		t.Fatalf("connections landed on %v", made)
	}
	reported("all connections are reported", 0)
	sink.mu.Lock()
	for _, x := range []*backend{a, b} {
		if sink.sums[x.addr+" issued"] != made[x.addr] {
			t.Errorf("of endpoints are reported %v, want %v", sink.sums, made)
		}
	}
	sink.mu.Unlock()

	// A connection that goes on is in progress; the server restarts meanwhile.
	c, err := net.Dial("tcp", p.listener("web"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	who, err := askOn(c)
	if err != nil {
		t.Fatal(err)
	}
	made[who]++
	reported("the open connection is reported", 1)
	cp.stop()
	traffic()
	cp.start()
	reported("what was forwarded meanwhile is reported", 1)

	// The cluster is replaced, and an endpoint leaves.
	web.ConnectTimeout = durationpb.New(3 * time.Second)
	cp.set(web, quiet, endpoints(b))
	eventually(t, "one endpoint is left", func() bool { return len(p.cluster("web").ready) == 1 && len(p.cluster("quiet").ready) == 1 })
	traffic()
	c.Close()
	reported("what was before the change is reported too", 0)

	// What is dropped is reported by its category.
	dropping := endpoints(b)
	dropping.Policy = &endpointv3.ClusterLoadAssignment_Policy{DropOverloads: []*endpointv3.ClusterLoadAssignment_Policy_DropOverload{{
		Category: "throttle", DropPercentage: &typev3.FractionalPercent{Numerator: 100},
	}}}
	cp.set(web, quiet, dropping)
	refused := uint64(0)
	eventually(t, "a connection is dropped", func() bool {
		who, err := ask(t.Context(), p.listener("web"))
		if err == nil {
			made[who]++
			return false
		}
		refused++
		return true
	})
	eventually(t, "it is reported", func() bool {
		sink.mu.Lock()
		defer sink.mu.Unlock()
		return sink.sums["dropped throttle"] == refused
	})

	sink.mu.Lock()
	if sink.streams != 2 || sink.sums["cluster web web-service"] == 0 || sink.sums["failed"] > 0 || sink.sums["no interval"] > 0 {
		t.Errorf("%d streams have reported %v", sink.streams, sink.sums)
	}
	for what := range sink.sums {
		if strings.HasPrefix(what, "cluster quiet") {
			t.Error("a cluster is reported that does not ask for it")
		}
	}
	sink.mu.Unlock()
	if p.metric("gatehouse_xds_load_reports") == 0 {
		t.Error("the reports are not counted")
	}
	// Without the wish the stream ends.
	web.LrsServer = nil
	cp.set(web, quiet, endpoints(b))
	eventually(t, "the reports end", func() bool {
		sink.mu.Lock()
		defer sink.mu.Unlock()
		return sink.closed == sink.streams
	})
}
