package xds

import (
	"context"
	"fmt"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	cachev3 "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"

	"gatehouse.internal/discovery/discoverytest"
)

// talk is a client of a go-control-plane server that watches all clusters.
type talk struct {
	t        *testing.T
	p        *controlPlane
	c        *Client
	version  int
	clusters func(want string) ClustersUpdate
}

// set lists these resources in the next version.
func (w *talk) set(list ...types.Resource) {
	w.t.Helper()
	w.version++
	w.p.set(w.version, list...)
}

// eds watches an assignment.
func (w *talk) eds(name string) *discoverytest.Recorder {
	rec, _ := watchEDS(w.t, w.c, name)
	return rec
}

// still has n sets told to rec, the last of which is the one endpoint.
func (w *talk) still(rec *discoverytest.Recorder, sets int, endpoint string) {
	w.t.Helper()
	n, last := 0, ""
	for _, r := range rec.Reports() {
		if r.Err == nil {
			n, last = n+1, r.String()
		}
	}
	if n != sets || last != "["+endpoint+"]" {
		w.t.Errorf("%d sets, the last %s; want %d and %s; reports:\n%s", n, last, sets, endpoint, rec)
	}
}

// acked waits until the server has an ACK of the version at hand for both types,
// in the state of the world, or has been asked for so many assignments.
func (w *talk) acked(assignments int) {
	w.t.Helper()
	version := fmt.Sprint("v", w.version)
	w.p.wait("ACK of "+version, func(reqs []*discoveryv3.DiscoveryRequest) bool {
		var cds, eds bool
		for _, r := range reqs {
			acks := r.VersionInfo == version && r.ErrorDetail == nil
			cds = cds || acks && r.TypeUrl == ClusterType
			eds = eds || acks && r.TypeUrl == AssignmentType && len(r.ResourceNames) == assignments
		}
		return cds && eds
	})
}

// TestControlPlaneTable has each of these with a real go-control-plane, in both
// variants, with a cache of either kind: one that answers only to who asks for all
// (ads=true), and one that answers to each.
func TestControlPlaneTable(t *testing.T) {
	needsServer(t)
	table := map[string]func(*talk){
		"the first sync": func(w *talk) {
			w.set(edsCluster("a"), edsCluster("b"), endpointAt("a", 1), endpointAt("b", 2))
			w.clusters("known=true a b")
			w.eds("a").WaitSet(w.t, 0, addr("10.0.0.1:80"))
			w.eds("b").WaitSet(w.t, 0, addr("10.0.0.2:80"))
			w.acked(2)
		},
		"one assignment changes": func(w *talk) {
			w.set(edsCluster("a"), edsCluster("b"), endpointAt("a", 1), endpointAt("b", 2))
			a, b := w.eds("a"), w.eds("b")
			a.WaitSet(w.t, 0, addr("10.0.0.1:80"))
			b.WaitSet(w.t, 0, addr("10.0.0.2:80"))
			w.set(edsCluster("a"), edsCluster("b"), endpointAt("a", 1), endpointAt("b", 3))
			b.WaitSet(w.t, 1, addr("10.0.0.3:80"))
			w.still(a, 1, "10.0.0.1:80")
		},
		"a cluster comes": func(w *talk) {
			w.set(edsCluster("a"), endpointAt("a", 1))
			w.clusters("known=true a")
			w.set(edsCluster("a"), edsCluster("b"), endpointAt("a", 1), endpointAt("b", 2))
			w.clusters("known=true a b")
			w.eds("b").WaitSet(w.t, 0, addr("10.0.0.2:80"))
		},
		"a cluster goes, and comes again": func(w *talk) {
			w.set(edsCluster("a"), edsCluster("b"), endpointAt("a", 1), endpointAt("b", 2))
			w.clusters("known=true a b")
			a, b := w.eds("a"), w.eds("b")
			b.WaitSet(w.t, 0, addr("10.0.0.2:80"))
			w.set(edsCluster("a"), endpointAt("a", 1))
			w.clusters("known=true a")
			w.set(edsCluster("a"), edsCluster("b"), endpointAt("a", 1), endpointAt("b", 3))
			w.clusters("known=true a b")
			b.WaitSet(w.t, 1, addr("10.0.0.3:80"))
			w.still(a, 1, "10.0.0.1:80")
		},
		"all clusters go": func(w *talk) {
			w.set(edsCluster("a"), endpointAt("a", 1))
			w.clusters("known=true a")
			w.set()
			w.clusters("known=true")
			w.set(edsCluster("a"), endpointAt("a", 2))
			w.clusters("known=true a")
			w.eds("a").WaitSet(w.t, 0, addr("10.0.0.2:80"))
		},
		"several clusters on one EDS name": func(w *talk) {
			w.set(edsCluster("a", service("svc")), edsCluster("b", service("svc")), endpointAt("svc", 1))
			w.clusters("known=true a b")
			w.eds("svc").WaitSet(w.t, 0, addr("10.0.0.1:80"))
			w.acked(1)
			w.set(edsCluster("b", service("svc")), endpointAt("svc", 1))
			w.clusters("known=true b")
			w.set(edsCluster("b", service("svc")), endpointAt("svc", 2))
			w.eds("svc").WaitSet(w.t, 0, addr("10.0.0.2:80"))
		},
		"the EDS name of a cluster changes": func(w *talk) {
			w.set(edsCluster("a", service("one")), endpointAt("one", 1))
			w.clusters("known=true a")
			w.eds("one").WaitSet(w.t, 0, addr("10.0.0.1:80"))
			w.set(edsCluster("a", service("two")), endpointAt("two", 2))
			w.eds("two").WaitSet(w.t, 0, addr("10.0.0.2:80"))
		},
		"a cluster changes and keeps its endpoints": func(w *talk) {
			w.set(edsCluster("a"), endpointAt("a", 1))
			a := w.eds("a")
			a.WaitSet(w.t, 0, addr("10.0.0.1:80"))
			w.set(edsCluster("a", anyTimeout), endpointAt("a", 1))
			w.clusters("known=true a")
			w.set(edsCluster("a", anyTimeout), edsCluster("b"), endpointAt("a", 1), endpointAt("b", 2))
			w.clusters("known=true a b")
			w.eds("b").WaitSet(w.t, 0, addr("10.0.0.2:80"))
			w.still(a, 1, "10.0.0.1:80")
		},
		"an assignment without endpoints": func(w *talk) {
			w.set(edsCluster("a"), endpointAt("a", 1))
			a := w.eds("a")
			a.WaitSet(w.t, 0, addr("10.0.0.1:80"))
			w.set(edsCluster("a"), cla("a"))
			a.WaitSet(w.t, 1)
			w.set(edsCluster("a"), endpointAt("a", 2))
			a.WaitSet(w.t, 2, addr("10.0.0.2:80"))
		},
		"an assignment comes later than its cluster": func(w *talk) {
			w.set(edsCluster("a"))
			w.clusters("known=true a")
			a := w.eds("a")
			w.set(edsCluster("a"), endpointAt("a", 1))
			a.WaitSet(w.t, 0, addr("10.0.0.1:80"))
		},
		"an invalid one beside a valid one": func(w *talk) {
			w.set(edsCluster("a"), edsCluster("b"), endpointAt("a", 1), endpointAt("b", 2))
			a, b := w.eds("a"), w.eds("b")
			a.WaitSet(w.t, 0, addr("10.0.0.1:80"))
			b.WaitSet(w.t, 0, addr("10.0.0.2:80"))
			w.set(edsCluster("a", badTimeout), edsCluster("b"), cla("a", locality(0, lb(socket("300.0.0.1", 80)))), endpointAt("b", 3))
			b.WaitSet(w.t, 1, addr("10.0.0.3:80"))
			a.WaitFail(w.t, 1, "want an IP address")
			w.clusters("known=true a b !a: connect_timeout: 0s: want more than 0s")
			w.still(a, 1, "10.0.0.1:80")
			w.set(edsCluster("a"), edsCluster("b"), endpointAt("a", 4), endpointAt("b", 3))
			a.WaitSet(w.t, 2, addr("10.0.0.4:80"))
			w.clusters("known=true a b")
		},
		"a restart with nothing new": func(w *talk) {
			w.set(edsCluster("a"), endpointAt("a", 1))
			a := w.eds("a")
			a.WaitSet(w.t, 0, addr("10.0.0.1:80"))
			w.p.stop()
			i := a.WaitFail(w.t, 1, "connection refused")
			w.p.restart()
			a.WaitSet(w.t, i+1, addr("10.0.0.1:80"))
		},
		"what was deleted while the server was away": func(w *talk) {
			w.set(edsCluster("a"), edsCluster("b"), endpointAt("a", 1), endpointAt("b", 2))
			w.clusters("known=true a b")
			a := w.eds("a")
			a.WaitSet(w.t, 0, addr("10.0.0.1:80"))
			w.p.stop()
			w.set(edsCluster("a"), endpointAt("a", 3))
			w.p.restart()
			w.clusters("known=true a")
			a.WaitSet(w.t, 1, addr("10.0.0.3:80"))
		},
		"a watch that ends and begins again": func(w *talk) {
			w.set(edsCluster("a"), endpointAt("a", 1))
			rec, stop := watchEDS(w.t, w.c, "a")
			rec.WaitSet(w.t, 0, addr("10.0.0.1:80"))
			for range 20 {
				stop()
				rec, stop = watchEDS(w.t, w.c, "a")
				rec.WaitSet(w.t, 0, addr("10.0.0.1:80"))
			}
			w.set(edsCluster("a"), endpointAt("a", 2))
			rec.WaitSet(w.t, 1, addr("10.0.0.2:80"))
		},
	}
	for name, play := range table {
		for _, protocol := range []Protocol{ProtocolSotW, ProtocolDelta} {
			for _, ads := range []bool{true, false} {
				t.Run(fmt.Sprint(name, "/", protocol, ",ads=", ads), func(t *testing.T) {
					p := newControlPlane(t, ads, protocol)
					w := &talk{t: t, p: p, c: p.run()}
					w.clusters = watchAll(t, w.c)
					play(w)
				})
			}
		}
	}
}

// Heartbeats of a go-control-plane keep resources with a TTL alive, which it knows
// in the state of the world; they are acknowledged and nothing is told of them.
func TestControlPlaneHeartbeats(t *testing.T) {
	needsServer(t)
	for _, ads := range []bool{true, false} {
		t.Run(fmt.Sprint("ads=", ads), func(t *testing.T) {
			p := newControlPlane(t, ads)
			p.stop()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			p.cache = cachev3.NewSnapshotCacheWithHeartbeating(ctx, ads, cachev3.IDHash{}, nil, 50*time.Millisecond)
			ttl := 10 * time.Second
			snapshot, err := cachev3.NewSnapshotWithTTLs("v1", map[resourcev3.Type][]types.ResourceWithTTL{
				resourcev3.EndpointType: {{Resource: endpointAt("a", 1), TTL: &ttl}},
			})
			if err == nil {
				err = p.cache.SetSnapshot(ctx, "n", snapshot)
			}
			if err != nil {
				t.Fatal(err)
			}
			p.restart()
			c := p.run()
			rec, _ := watchEDS(t, c, "a")
			rec.WaitSet(t, 0, addr("10.0.0.1:80"))
			p.wait("ACKs of heartbeats", func(reqs []*discoveryv3.DiscoveryRequest) bool { return len(reqs) >= 20 })
			for _, r := range p.wait("requests", func([]*discoveryv3.DiscoveryRequest) bool { return true }) {
				if r.ErrorDetail != nil {
					t.Errorf("a heartbeat is refused: %v", r.ErrorDetail)
				}
			}
			if n := len(rec.Reports()); n != 1 {
				t.Errorf("%d reports:\n%s", n, rec)
			}
		})
	}
}
