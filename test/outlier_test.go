package test

import (
	"encoding/json"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// ejection is what /clusters shows of an endpoint's ejection.
type ejection struct {
	out   bool // failed_outlier_check
	ready bool
	state string
	why   string
	rule  string
	times int
}

// ejectionOf reads an endpoint of a cluster from /clusters.
func (p *process) ejectionOf(cluster, addr string) (e ejection) {
	p.t.Helper()
	_, body := p.get("/clusters?format=json")
	var all struct {
		Clusters []struct {
			Name  string `json:"name"`
			Hosts []struct {
				Address struct {
					Socket struct {
						Address string `json:"address"`
						Port    int    `json:"port_value"`
					} `json:"socket_address"`
				} `json:"address"`
				Health struct {
					Outlier bool `json:"failed_outlier_check"`
				} `json:"health_status"`
				Gatehouse struct {
					Ready    bool   `json:"ready"`
					State    string `json:"state"`
					Why      string `json:"why"`
					Ejection struct {
						Rule  string `json:"rule"`
						Times int    `json:"times"`
					} `json:"ejection"`
				} `json:"gatehouse"`
			} `json:"host_statuses"`
		} `json:"cluster_statuses"`
	}
	if err := json.Unmarshal([]byte(body), &all); err != nil {
		p.t.Fatal(err)
	}
	for _, c := range all.Clusters {
		for _, h := range c.Hosts {
			if a := h.Address.Socket; c.Name == cluster && net.JoinHostPort(a.Address, fmt.Sprint(a.Port)) == addr {
				g := h.Gatehouse
				return ejection{h.Health.Outlier, g.Ready, g.State, g.Why, g.Ejection.Rule, g.Ejection.Times}
			}
		}
	}
	p.t.Fatalf("no endpoint %s in cluster %s", addr, cluster)
	return e
}

// TestOutlierDetection kills one of two backends under traffic: after three
// failures it is ejected, from the one cluster that has it so, and when it
// listens again it serves again. No client notices.
func TestOutlierDetection(t *testing.T) {
	a, b := startBackend(t), startBackend(t)
	p := startAgent(t, fixed("web", `
  outlier_detection {
    consecutive_5xx      = 3
    interval             = "200ms"
    base_ejection_time   = "1s"
    max_ejection_percent = 50
  }`, entry(a, "weight = 1"), entry(b, "weight = 1"))+fixed("calm", "", entry(a, "weight = 1"), entry(b, "weight = 1")))
	p.awaitReady()
	web := startTraffic(t, p.listener("web"))
	calm := startTraffic(t, p.listener("calm"))
	web.lands(t, a, b)
	web.between(func() { calm.between(b.kill) })
	eventually(t, "the dead backend is ejected", func() bool { return p.ejectionOf("web", b.addr).out })
	e := p.ejectionOf("web", b.addr)
	// With an interval so short it may be on its way back by now.
	if e.out && (e.ready || e.state != "ejected" || !strings.HasPrefix(e.why, "ejected by consecutive_5xx since ")) || e.rule != "consecutive_5xx" || e.times == 0 {
		t.Errorf("endpoint is %+v", e)
	}
	if n := p.metric(`gatehouse_outlier_detection_ejections_enforced_consecutive_5xx{cluster="web"}`); n == 0 {
		t.Error("no metric of the ejection")
	}
	if e := p.ejectionOf("calm", b.addr); e.out || !e.ready {
		t.Errorf("in a cluster without outlier detection the endpoint is %+v", e)
	}
	if p.logged("endpoint ejected", "endpoint", b.addr) == nil {
		t.Error("no line of the ejection")
	}
	eventually(t, "it is ejected again, since it goes on refusing", func() bool { return p.ejectionOf("web", b.addr).times > 1 })
	ln, err := net.Listen("tcp", b.addr)
	if err != nil {
		t.Fatal(err)
	}
	back := startBackendAt(t, ln)
	eventually(t, "it is back", func() bool { return back.accepted.Load() > 0 && p.ejectionOf("web", b.addr).ready })
	web.reset()
	web.lands(t, a, back)
	for _, tr := range []*traffic{web, calm} {
		tr.stop()
		tr.noErrors(t)
	}
}

// TestOutlierDetectionByCDS has the control plane ask for it. What is invalid is
// rejected with the field, and changes nothing.
func TestOutlierDetectionByCDS(t *testing.T) {
	a, b := startBackend(t), startBackend(t)
	cp := newControl(t)
	cp.start()
	c := edsCluster("web", "web", clusterv3.Cluster_ROUND_ROBIN)
	c.HealthChecks = nil
	c.OutlierDetection = &clusterv3.OutlierDetection{
		SplitExternalLocalOriginErrors: true, ConsecutiveLocalOriginFailure: wrapperspb.UInt32(2),
		MaxEjectionPercent: wrapperspb.UInt32(50), BaseEjectionTime: durationpb.New(time.Hour),
	}
	cp.set(c, assignment(t, "web", a.addr, b.addr))
	p := startAgent(t, cp.node(webListener))
	p.awaitReady()
	web := startTraffic(t, p.listener("web"))
	web.lands(t, a, b)
	web.between(b.kill)
	eventually(t, "the dead backend is ejected", func() bool { return p.ejectionOf("web", b.addr).out })
	bad := proto.CloneOf(c)
	bad.OutlierDetection.EnforcingFailurePercentageLocalOrigin = wrapperspb.UInt32(101)
	cp.set(bad, assignment(t, "web", a.addr, b.addr))
	cp.nacked("web", "outlier_detection.enforcing_failure_percentage_local_origin: 101")
	changed := proto.CloneOf(c) // its ejections go on
	changed.OutlierDetection.ConsecutiveLocalOriginFailure = wrapperspb.UInt32(3)
	cp.set(changed, assignment(t, "web", a.addr, b.addr))
	cp.acked(resourcev3.ClusterType)
	eventually(t, "the change is in force", func() bool {
		return p.logged("cluster changed", "cluster", "web") != nil && p.cluster("web").waiting == ""
	})
	if e := p.ejectionOf("web", b.addr); !e.out || e.rule != "consecutive_local_origin_failure" || e.times != 1 || e.state != "ejected" {
		t.Errorf("endpoint is %+v", e)
	}
	if n := p.metric(`gatehouse_outlier_detection_ejections_active{cluster="web"}`); n != 1 {
		t.Errorf("the metric says %v are ejected", n)
	}
	web.stop()
	web.noErrors(t)
}
