package test

import (
	"crypto/tls"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"gatehouse.internal/internal/tlsconf/tlstest"
)

const webListener = `
listener "web" {
  address = "127.0.0.1:0"
  cluster = "web"
}
`

// Clusters and endpoints come and go while connections flow: none fails, and
// each lands where the control plane says.
func TestXDSChanges(t *testing.T) { bothVariants(t, xdsChanges) }

func xdsChanges(t *testing.T, cp *control) {
	a, b, c := startBackend(t), startBackend(t), startBackend(t)
	cp.start()
	cp.set(edsCluster("web", "web", clusterv3.Cluster_ROUND_ROBIN), assignment(t, "web", a.addr, b.addr))
	p := startAgent(t, cp.node(webListener))
	p.awaitReady()
	tr := startTraffic(t, p.listener("web"))
	tr.lands(t, a, b)

	// EDS: one more, then one less. The old selector passes over what left at
	// once; the new one lands on what came.
	cp.set(edsCluster("web", "web", clusterv3.Cluster_ROUND_ROBIN), assignment(t, "web", a.addr, b.addr, c.addr))
	eventually(t, "the new endpoint is ready", func() bool { return slices.Contains(p.cluster("web").ready, c.addr) })
	tr.lands(t, a, b, c)
	cp.set(edsCluster("web", "web", clusterv3.Cluster_ROUND_ROBIN), assignment(t, "web", b.addr, c.addr))
	eventually(t, "the removed endpoint takes nothing", func() bool { return !slices.Contains(p.cluster("web").ready, a.addr) })
	tr.lands(t, b, c)

	// CDS: the cluster's policy and its EDS resource change; the new cluster
	// takes over once it is warm.
	cp.set(edsCluster("web", "web-2", clusterv3.Cluster_LEAST_REQUEST), assignment(t, "web-2", a.addr))
	eventually(t, "the changed cluster serves", func() bool {
		return p.cluster("web").policy == "least_weight" && slices.Equal(p.cluster("web").ready, []string{a.addr})
	})
	tr.lands(t, a)

	tr.stop()
	tr.noErrors(t)
	if got := cp.nacks(); got != nil {
		t.Errorf("NACKs: %q", got)
	}

	// A cluster that is gone refuses, and says so.
	cp.set()
	eventually(t, "the cluster is gone", func() bool { _, body := p.get("/clusters"); return body == "" })
	if who, err := ask(t.Context(), p.listener("web")); err == nil {
		t.Errorf("a cluster that is gone is answered for by %s", who)
	}
	eventually(t, "the refused connection is counted under NC", func() bool {
		_, body := p.get("/stats/prometheus")
		return strings.Contains(body, `gatehouse_listener_ended{flag="NC",listener="web"}`)
	})
	if code := p.end(syscall.SIGTERM); code != 0 {
		t.Errorf("exit code %d after SIGTERM", code)
	}
}

// A bad resource is NACKed by name, its last good version stays, and the good
// ones of the same response apply.
func TestXDSBadResource(t *testing.T) { bothVariants(t, xdsBadResource) }

func xdsBadResource(t *testing.T, cp *control) {
	a, b, c := startBackend(t), startBackend(t), startBackend(t)
	cp.start()
	clusters := []*clusterv3.Cluster{
		edsCluster("web", "web", clusterv3.Cluster_ROUND_ROBIN), edsCluster("api", "api", clusterv3.Cluster_ROUND_ROBIN),
	}
	cp.set(clusters[0], clusters[1], assignment(t, "web", a.addr), assignment(t, "api", a.addr))
	p := startAgent(t, cp.node(webListener+`
listener "api" {
  address = "127.0.0.1:0"
  cluster = "api"
}
`))
	p.awaitReady()
	web, api := startTraffic(t, p.listener("web")), startTraffic(t, p.listener("api"))
	web.lands(t, a)
	api.lands(t, a)

	// A weight of 0 in one, a change in the other.
	zero := assignment(t, "web", b.addr)
	zero.Endpoints[0].LbEndpoints[0].LoadBalancingWeight = wrapperspb.UInt32(0)
	cp.set(clusters[0], clusters[1], zero, assignment(t, "api", b.addr))
	cp.nacked("web", "load_balancing_weight")
	eventually(t, "the good resource applies", func() bool { return slices.Equal(p.cluster("api").ready, []string{b.addr}) })
	api.lands(t, b)
	web.lands(t, a)
	if got := p.cluster("web"); got.state != "stale" || !strings.Contains(got.err, "load_balancing_weight") {
		t.Errorf("the cluster with the bad resource is shown as %s: %s", got.state, got.err)
	}

	// An address that is none.
	name := assignment(t, "web", b.addr)
	name.Endpoints[0].LbEndpoints[0].GetEndpoint().GetAddress().GetSocketAddress().Address = "300.0.0.1"
	cp.set(clusters[0], clusters[1], name, assignment(t, "api", b.addr, c.addr))
	cp.nacked("web", "300.0.0.1")
	eventually(t, "the good resource applies", func() bool { return len(p.cluster("api").ready) == 2 })
	web.lands(t, a)

	// Good again.
	cp.set(clusters[0], clusters[1], assignment(t, "web", c.addr), assignment(t, "api", b.addr, c.addr))
	cp.acked(resourcev3.EndpointType)
	eventually(t, "the mended resource applies", func() bool { return slices.Equal(p.cluster("web").ready, []string{c.addr}) })
	web.lands(t, c)
	if got := p.cluster("web"); got.state != "fresh" {
		t.Errorf("the mended cluster is shown as %s: %s", got.state, got.err)
	}

	// A cluster that is valid but can't be run is accepted, listed with its
	// reason, and not half-run.
	odd := edsCluster("odd", "odd", clusterv3.Cluster_CLUSTER_PROVIDED)
	cp.set(clusters[0], clusters[1], odd, assignment(t, "web", c.addr), assignment(t, "api", b.addr, c.addr))
	eventually(t, "the unsupported cluster is listed", func() bool { return p.cluster("odd").unsupported != "" })
	if got := p.cluster("odd").unsupported; !strings.Contains(got, "CLUSTER_PROVIDED") {
		t.Errorf("the unsupported cluster's reason is %q", got)
	}

	// One that was never valid is listed with what is wrong, and a STATIC one
	// has its duplicates counted.
	bad := edsCluster("bad", "bad", clusterv3.Cluster_RING_HASH)
	bad.LbConfig = &clusterv3.Cluster_RingHashLbConfig_{RingHashLbConfig: &clusterv3.Cluster_RingHashLbConfig{
		MinimumRingSize: wrapperspb.UInt64(20), MaximumRingSize: wrapperspb.UInt64(10),
	}}
	fixed := &clusterv3.Cluster{
		Name:                 "fixed",
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC},
		LoadAssignment:       assignment(t, "fixed", a.addr, a.addr),
	}
	cp.set(clusters[0], clusters[1], bad, fixed, assignment(t, "web", c.addr), assignment(t, "api", b.addr, c.addr))
	eventually(t, "the rejected cluster is listed", func() bool { return strings.Contains(p.cluster("bad").unsupported, "rejected: ") })
	if got := p.cluster("bad").unsupported; !strings.Contains(got, "minimum_ring_size") {
		t.Errorf("the rejected cluster's reason is %q", got)
	}
	eventually(t, "the static cluster's duplicate is counted", func() bool { return p.cluster("fixed").duplicates == 1 })

	web.stop()
	api.stop()
	web.noErrors(t)
	api.noErrors(t)
}

// An address that is listed twice keeps its first entry, is counted and warned
// of.
func TestXDSDuplicateAddress(t *testing.T) {
	a := startBackend(t)
	cp := newControl(t)
	cp.start()
	twice := assignment(t, "web", a.addr, a.addr)
	twice.Endpoints[0].LbEndpoints[0].LoadBalancingWeight = wrapperspb.UInt32(7)
	cp.set(edsCluster("web", "web", clusterv3.Cluster_ROUND_ROBIN), twice)
	p := startAgent(t, cp.node(webListener))
	p.awaitReady()
	if got := p.cluster("web"); !slices.Equal(got.ready, []string{a.addr}) || got.duplicates != 1 {
		t.Errorf("want one endpoint and 1 duplicate, got %+v", got)
	}
	if _, body := p.get("/clusters"); !strings.Contains(body, "web::"+a.addr+"::weight::7\n") {
		t.Errorf("the first entry is not the one that is kept:\n%s", body)
	}
	if !strings.Contains(p.output(), "duplicate") || !strings.Contains(p.output(), a.addr) {
		t.Error("no warning names the duplicate address")
	}
	if got := cp.nacks(); got != nil {
		t.Errorf("NACKs: %q", got)
	}
}

// The server restarts, and is away for a while, under load: nothing is lost,
// and what changes meanwhile is learnt after.
func TestXDSServerRestart(t *testing.T) { bothVariants(t, xdsServerRestart) }

func xdsServerRestart(t *testing.T, cp *control) {
	a, b, c := startBackend(t), startBackend(t), startBackend(t)
	cp.start()
	web := edsCluster("web", "web", clusterv3.Cluster_RING_HASH)
	cp.set(web, assignment(t, "web", a.addr, b.addr))
	p := startAgent(t, cp.node(webListener))
	p.awaitReady()
	tr := startTraffic(t, p.listener("web"))
	tr.lands(t, a, b)

	cp.stop()
	eventually(t, "the stream's end is seen", func() bool { return p.logged("xds server can't be reached, what is known is kept", "", "") != nil })
	tr.lands(t, a, b)
	if code, body := p.get("/ready"); code != http.StatusOK {
		t.Errorf("/ready without the server: %d %s", code, body)
	}
	// Health goes on meanwhile.
	b.kill()
	eventually(t, "the killed endpoint is unhealthy", func() bool { return slices.Contains(p.cluster("web").unready, b.addr) })
	tr.lands(t, a)

	cp.set(web, assignment(t, "web", c.addr))
	cp.start()
	eventually(t, "what changed meanwhile is learnt", func() bool { return slices.Equal(p.cluster("web").ready, []string{c.addr}) })
	tr.lands(t, c)
	tr.stop()
	p.servedAll()

	// Only connections that the killed backend had may have failed.
	tr.mu.Lock()
	defer tr.mu.Unlock()
	if n := len(tr.errs); n > 3 {
		t.Errorf("%d connections failed, more than the killed backend can have had: %v", n, tr.errs)
	}
}

// A server that is not there at the start: the agent runs, is not ready, says
// what it waits for, and becomes ready when the server comes.
func TestXDSServerComesLate(t *testing.T) {
	a := startBackend(t)
	cp := newControl(t)
	p := startAgent(t, cp.node(webListener+`
cluster "direct" {
  discovery "eds" { service_name = "web" }
}
`))
	eventually(t, "/ready says what is waited for", func() bool {
		code, body := p.get("/ready")
		return code == http.StatusServiceUnavailable && strings.Contains(body, cp.addr) && strings.Contains(body, "connection refused")
	})
	if code, body := p.get("/live"); code != http.StatusOK {
		t.Errorf("/live: %d %s", code, body)
	}
	if _, err := ask(t.Context(), p.listener("web")); err == nil {
		t.Error("a connection succeeds although nothing is known")
	}
	cp.set(edsCluster("web", "web", clusterv3.Cluster_ROUND_ROBIN), assignment(t, "web", a.addr))
	cp.start()
	p.awaitReady()
	if who, err := ask(t.Context(), p.listener("web")); err != nil || who != a.addr {
		t.Errorf("after the server came: %q, %v", who, err)
	}
}

// Weights of localities and the panic threshold of a cluster are obeyed, which
// is half of the endpoints if the cluster doesn't say.
func TestXDSLocalitiesAndPanic(t *testing.T) {
	a, b := startBackend(t), startBackend(t)
	cp := newControl(t)
	cp.start()
	web := edsCluster("web", "web", clusterv3.Cluster_ROUND_ROBIN)
	web.CommonLbConfig = &clusterv3.Cluster_CommonLbConfig{
		LocalityConfigSpecifier: &clusterv3.Cluster_CommonLbConfig_LocalityWeightedLbConfig_{
			LocalityWeightedLbConfig: &clusterv3.Cluster_CommonLbConfig_LocalityWeightedLbConfig{},
		},
	}
	list := func(status corev3.HealthStatus, weights ...uint32) {
		la := assignment(t, "web", a.addr)
		la.Endpoints = append(la.Endpoints, assignment(t, "web", b.addr).Endpoints...)
		for i, l := range la.Endpoints {
			l.Locality = &corev3.Locality{Zone: fmt.Sprint(i)}
			l.LoadBalancingWeight = wrapperspb.UInt32(weights[i])
			l.LbEndpoints[0].HealthStatus = status
		}
		cp.set(web, la)
	}
	list(corev3.HealthStatus_HEALTHY, 1, 0)
	p := startAgent(t, cp.node(webListener))
	p.awaitReady()
	tr := startTraffic(t, p.listener("web"))
	tr.lands(t, a)
	list(corev3.HealthStatus_HEALTHY, 0, 7)
	eventually(t, "the weights have changed", func() bool { return p.cluster("web").generation == 2 })
	tr.lands(t, b)
	list(corev3.HealthStatus_HEALTHY, 1, 1)
	eventually(t, "the weights have changed again", func() bool { return p.cluster("web").generation == 3 })
	tr.lands(t, a, b)
	list(corev3.HealthStatus_UNHEALTHY, 1, 1)
	eventually(t, "nobody is ready", func() bool { return len(p.cluster("web").unready) == 2 })
	tr.lands(t, a, b)
	eventually(t, "the panic is shown", func() bool {
		_, body := p.get("/clusters")
		return strings.Contains(body, "web::gatehouse_load::default::priority=0 distance=0 endpoints=2 healthy=100% degraded=0% panic=true\n")
	})
	tr.stop()
	tr.noErrors(t)
	if got := cp.nacks(); got != nil {
		t.Errorf("NACKs: %q", got)
	}
}

// Priorities and health statuses of EDS decide where connections land.
func TestXDSPrioritiesAndStatus(t *testing.T) {
	a, b, c := startBackend(t), startBackend(t), startBackend(t)
	cp := newControl(t)
	cp.start()
	web := edsCluster("web", "web", clusterv3.Cluster_ROUND_ROBIN)
	list := func(statuses ...func(*endpointv3.ClusterLoadAssignment)) {
		la := assignment(t, "web", a.addr, b.addr)
		spare := assignment(t, "web", c.addr).Endpoints[0]
		spare.Priority = 1
		la.Endpoints = append(la.Endpoints, spare)
		for _, s := range statuses {
			s(la)
		}
		cp.set(web, la)
	}
	list()
	p := startAgent(t, cp.node(webListener))
	p.awaitReady()
	tr := startTraffic(t, p.listener("web"))
	tr.lands(t, a, b)

	status := func(i int, s corev3.HealthStatus) func(*endpointv3.ClusterLoadAssignment) {
		return func(la *endpointv3.ClusterLoadAssignment) { la.Endpoints[0].LbEndpoints[i].HealthStatus = s }
	}
	draining := func(i int) func(*endpointv3.ClusterLoadAssignment) { return status(i, corev3.HealthStatus_DRAINING) }
	// Of two endpoints one left: 70 % of the load, the rest spills over.
	list(status(0, corev3.HealthStatus_UNHEALTHY))
	eventually(t, "the unhealthy endpoint is not ready", func() bool { return slices.Contains(p.cluster("web").unready, a.addr) })
	tr.lands(t, b, c)
	// One that drains is not missing: nothing spills over.
	list(draining(0))
	eventually(t, "the endpoint drains", func() bool {
		_, body := p.get("/clusters")
		return strings.Contains(body, "web::"+a.addr+"::health_flags::/eds_status_draining\n")
	})
	tr.lands(t, b)
	// None left: all of it.
	list(draining(0), draining(1))
	eventually(t, "both are not ready", func() bool { return slices.Contains(p.cluster("web").unready, b.addr) })
	tr.lands(t, c)
	if got := p.cluster("web"); got.generation != 1 {
		t.Errorf("statuses have rebuilt selectors: generation %d", got.generation)
	}
	list()
	eventually(t, "both are back", func() bool { return len(p.cluster("web").ready) == 3 })
	tr.lands(t, a, b)
	tr.stop()
	tr.noErrors(t)
}

// Two servers, the first of which is away: the second is reached by TLS, with a
// certificate and a token of the agent; new files take the place of old ones
// without a restart, and the first server's return is noticed.
func TestXDSServers(t *testing.T) {
	a, b := startBackend(t), startBackend(t)
	dir := t.TempDir()
	ca := tlstest.NewCA(t, "ca")
	token := filepath.Join(dir, "token")
	tlstest.Replace(t, token, []byte("one"))
	caFile := ca.Write(t, dir)
	certFile, keyFile := ca.Issue(t, tlstest.Leaf{CommonName: "first"}).Write(t, dir, "client")
	var mu sync.Mutex
	var seen []string
	first, second := newControl(t), newControl(t)
	second.options = []grpc.ServerOption{
		grpc.Creds(credentials.NewTLS(&tls.Config{
			Certificates: []tls.Certificate{ca.Issue(t, tlstest.Leaf{Names: []string{"control.internal"}}).TLS(t)},
			ClientAuth:   tls.RequireAndVerifyClientCert, ClientCAs: ca.Pool(),
		})),
		grpc.StreamInterceptor(func(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, h grpc.StreamHandler) error {
			md, _ := metadata.FromIncomingContext(ss.Context())
			who, _ := peer.FromContext(ss.Context())
			mu.Lock()
			seen = append(seen, fmt.Sprint(who.AuthInfo.(credentials.TLSInfo).State.PeerCertificates[0].Subject.CommonName, md["authorization"], md["x-tenant"]))
			mu.Unlock()
			return h(srv, ss)
		}),
	}
	saw := func(want string) func() bool {
		return func() bool {
			mu.Lock()
			defer mu.Unlock()
			return slices.Contains(seen, want)
		}
	}
	second.set(edsCluster("web", "web", clusterv3.Cluster_ROUND_ROBIN), assignment(t, "web", b.addr))
	second.start()
	p := startAgent(t, fmt.Sprintf(`
node { id = %q }
xds {
  clusters = true
  server %q {}
  server %q {
    tls {
      ca_file     = %q
      cert_file   = %q
      key_file    = %q
      server_name = "control.internal"
    }
    token_file       = %q
    initial_metadata = { x-tenant = "blue" }
  }
}
%s`, nodeID, first.addr, second.addr, caFile, certFile, keyFile, token, webListener))
	p.awaitReady()
	tr := startTraffic(t, p.listener("web"))
	tr.lands(t, b)
	eventually(t, "the certificate and the token are shown", saw("first[Bearer one] [blue]"))

	tlstest.Replace(t, token, []byte("two"))
	ca.Issue(t, tlstest.Leaf{CommonName: "second"}).Write(t, dir, "client")
	for n := 0; !saw("second[Bearer two] [blue]")(); n++ {
		if n == 10 {
			t.Fatalf("the new files are not shown: %q", seen)
		}
		mu.Lock()
		before := len(seen)
		mu.Unlock()
		second.stop()
		second.start()
		eventually(t, "a new stream", func() bool {
			mu.Lock()
			defer mu.Unlock()
			return len(seen) > before
		})
	}
	tr.lands(t, b)

	first.set(edsCluster("web", "web", clusterv3.Cluster_ROUND_ROBIN), assignment(t, "web", a.addr))
	first.start()
	eventually(t, "the return is logged", func() bool { return p.logged("xds server is back", "", "") != nil })
	eventually(t, "what the first server has is learnt", func() bool { return slices.Equal(p.cluster("web").ready, []string{a.addr}) })
	tr.lands(t, a)
	tr.stop()
	tr.noErrors(t)
	if strings.Contains(p.output(), "Bearer") {
		t.Error("the token is in the log")
	}
}
