package test

import (
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/protobuf/types/known/durationpb"
)

// A cluster that is changed serves as it was until the new one is warm: its
// endpoints have come, and passed their checks. One whose endpoints stay the same
// serves at once with those that are known, and asks for nothing.
func TestXDSWarming(t *testing.T) { bothVariants(t, xdsWarming) }

func xdsWarming(t *testing.T, cp *control) {
	a, b := startBackend(t), startBackend(t)
	web := func(service string, timeout time.Duration) *clusterv3.Cluster {
		c := edsCluster("web", service, clusterv3.Cluster_ROUND_ROBIN)
		c.ConnectTimeout = durationpb.New(timeout)
		return c
	}
	cp.start()
	cp.set(web("one", time.Second), assignment(t, "one", a.addr))
	p := startAgent(t, cp.node(webListener))
	p.awaitReady()
	tr := startTraffic(t, p.listener("web"))
	tr.lands(t, a)

	// The endpoints of the new one are nobody's that answers, for a start.
	dead, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := dead.Addr().String()
	dead.Close()
	changed := web("two", time.Second)
	cp.set(changed)
	eventually(t, "the new one waits for its endpoints", func() bool {
		return strings.Contains(p.cluster("web").waiting, "changed settings are not in force yet")
	})
	tr.lands(t, a)
	cp.set(changed, assignment(t, "two", b.addr, nobody))
	eventually(t, "the new one serves", func() bool { return slices.Equal(p.cluster("web").ready, []string{b.addr}) })
	tr.lands(t, b)

	// Other settings alone: what is known of the endpoints is enough.
	asked := func() (n int) {
		cp.mu.Lock()
		defer cp.mu.Unlock()
		for _, r := range cp.requests {
			if r.typeURL == resourcev3.EndpointType {
				n++
			}
		}
		return n
	}
	cp.acked(resourcev3.EndpointType)
	before := asked()
	other := web("two", 2*time.Second)
	other.LbPolicy = clusterv3.Cluster_LEAST_REQUEST
	cp.set(other, assignment(t, "two", b.addr, nobody))
	eventually(t, "the changed settings are in force", func() bool { return p.cluster("web").policy == "least_weight" && p.cluster("web").waiting == "" })
	tr.lands(t, b)
	if more := asked() - before; cp.protocol == "delta" && more > 0 { // in the state of the world all is sent again, and acknowledged
		t.Errorf("%d requests for endpoints that are known", more)
	}
	tr.stop()
	tr.noErrors(t)
	if got := cp.nacks(); got != nil {
		t.Errorf("NACKs: %q", got)
	}
}

// A cluster that is removed takes no new connection, and those that are open end by
// themselves. When it comes back it serves.
func TestXDSRemovedClusterDrains(t *testing.T) { bothVariants(t, xdsRemoved) }

func xdsRemoved(t *testing.T, cp *control) {
	a := startBackend(t)
	web := edsCluster("web", "web", clusterv3.Cluster_ROUND_ROBIN)
	cp.start()
	cp.set(web, assignment(t, "web", a.addr))
	p := startAgent(t, cp.node(webListener))
	p.awaitReady()
	open, err := net.Dial("tcp", p.listener("web"))
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	still := func() {
		t.Helper()
		if who, err := askOn(open); err != nil || who != a.addr {
			t.Fatalf("the open connection leads to %q with %v", who, err)
		}
	}
	still()
	cp.set()
	eventually(t, "the cluster is gone", func() bool { _, body := p.get("/clusters"); return body == "" })
	if who, err := ask(t.Context(), p.listener("web")); err == nil {
		t.Errorf("a cluster that is gone is answered for by %s", who)
	}
	still()
	cp.set(web, assignment(t, "web", a.addr))
	eventually(t, "the cluster is back", func() bool { return slices.Equal(p.cluster("web").ready, []string{a.addr}) })
	if who, err := ask(t.Context(), p.listener("web")); err != nil || who != a.addr {
		t.Errorf("the cluster that is back leads to %q with %v", who, err)
	}
	still()
}

// What a control plane wants dropped is, and counted; what it does not send again in
// time is gone.
func TestXDSDropsAndStaleEndpoints(t *testing.T) { bothVariants(t, xdsDrops) }

func xdsDrops(t *testing.T, cp *control) {
	a := startBackend(t)
	web := edsCluster("web", "web", clusterv3.Cluster_ROUND_ROBIN)
	endpoints := func(percent uint32, stale time.Duration) *endpointv3.ClusterLoadAssignment {
		m := assignment(t, "web", a.addr)
		m.Policy = &endpointv3.ClusterLoadAssignment_Policy{DropOverloads: []*endpointv3.ClusterLoadAssignment_Policy_DropOverload{{
			Category: "throttle", DropPercentage: &typev3.FractionalPercent{Numerator: percent},
		}}}
		if stale > 0 {
			m.Policy.EndpointStaleAfter = durationpb.New(stale)
		}
		return m
	}
	cp.start()
	cp.set(web, endpoints(100, 0))
	p := startAgent(t, cp.node(webListener))
	p.awaitReady()
	if who, err := ask(t.Context(), p.listener("web")); err == nil {
		t.Errorf("a connection that is to be dropped is answered by %s", who)
	}
	eventually(t, "the dropped connection is counted", func() bool {
		_, body := p.get("/stats/prometheus")
		return strings.Contains(body, `gatehouse_cluster_dropped{category="throttle",cluster="web"} 1`) &&
			strings.Contains(body, `gatehouse_listener_ended{flag="DO",listener="web"} 1`)
	})

	cp.set(web, endpoints(0, 300*time.Millisecond))
	eventually(t, "the endpoints are gone", func() bool {
		c := p.cluster("web")
		return len(c.ready) == 0 && c.state == "stale" && strings.Contains(c.err, "endpoint_stale_after")
	})
	cp.set(web, endpoints(0, 0))
	eventually(t, "the endpoints are back", func() bool { return slices.Equal(p.cluster("web").ready, []string{a.addr}) })
	if who, err := ask(t.Context(), p.listener("web")); err != nil || who != a.addr {
		t.Errorf("a connection led to %q with %v", who, err)
	}
}
