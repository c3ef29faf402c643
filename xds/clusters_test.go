package xds

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/durationpb"

	"gatehouse.internal/xds/internal/core"
)

// updates records what WatchClusters tells.
type updates struct {
	mu  sync.Mutex
	all []ClustersUpdate
}

func (u *updates) add(up ClustersUpdate) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.all = append(u.all, up)
}

// since returns the updates from position n on.
func (u *updates) since(n int) []ClustersUpdate {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.all[n:]
}

// String describes an update in a line.
func (u ClustersUpdate) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "known=%v", u.Known)
	for _, c := range u.Clusters {
		fmt.Fprintf(&b, " %s", c.Name)
		if c.Unsupported != "" {
			fmt.Fprintf(&b, "(%s)", c.Unsupported)
		}
	}
	for _, r := range u.Rejected {
		fmt.Fprintf(&b, " !%s: %s", r.Name, r.Reason)
	}
	if u.Err != nil {
		fmt.Fprintf(&b, " err: %v", u.Err)
	}
	return b.String()
}

func (f *fakeServer) watchClusters() (u *updates, stop func()) {
	u = new(updates)
	ctx, cancel := context.WithCancel(f.t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := f.client.WatchClusters(ctx, u.add); err != context.Canceled {
			f.t.Errorf("WatchClusters returned %v", err)
		}
	})
	stop = func() { cancel(); wg.Wait() }
	f.t.Cleanup(stop)
	return u, stop
}

func (u *updates) check(t *testing.T, seen *int, want ...string) {
	t.Helper()
	synctest.Wait()
	var got []string
	for _, up := range u.since(*seen) {
		got = append(got, up.String())
	}
	*seen += len(got)
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("updates (-want +got):\n%s", d)
	}
}

// expect checks the type and the names of the next request.
func (f *fakeServer) expect(typ string, names ...string) core.Request {
	f.t.Helper()
	r := f.next()
	if r.Type != typ || !cmp.Equal(r.Names, names) {
		f.t.Errorf("request for %s %q, want %s %q", r.Type, r.Names, typ, names)
	}
	return r
}

var (
	badTimeout mutate = func(c *clusterv3.Cluster) { c.ConnectTimeout = durationpb.New(0) }
	anyTimeout mutate = func(c *clusterv3.Cluster) { c.ConnectTimeout = durationpb.New(time.Second) }
	ofDNS      mutate = func(c *clusterv3.Cluster) {
		c.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STRICT_DNS}
	}
)

func service(name string) mutate {
	return func(c *clusterv3.Cluster) { c.EdsClusterConfig.ServiceName = name }
}

// bug 10: after each CDS response one EDS request names the endpoints of all
// clusters: also of invalid and unsupported ones, once for several clusters.
func TestClusters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		u, _ := f.watchClusters()
		seen := 0
		f.expect(ClusterType)
		u.check(t, &seen)

		f.respond(ClusterType, 1,
			edsCluster("d"), edsCluster("a"), edsCluster("b", service("svc")), edsCluster("c", service("svc")),
			edsCluster("bad", service("bad-svc"), badTimeout), edsCluster("tls", policyOf(clusterv3.Cluster_CLUSTER_PROVIDED)),
			edsCluster("dns", ofDNS), edsCluster("static", static()))
		f.expect(ClusterType)
		if r := f.expect(AssignmentType, "a", "bad-svc", "d", "svc", "tls"); r.Nonce != "" {
			t.Errorf("request %+v", r)
		}
		f.quiet()
		u.check(t, &seen, "known=true a b c d dns static tls(lb_policy CLUSTER_PROVIDED) !bad: connect_timeout: 0s: want more than 0s")

		// bug 11: a change that leaves the EDS names alone makes no EDS request.
		a := u.since(0)[0].Clusters[0]
		f.respond(ClusterType, 2, edsCluster("a"), edsCluster("b", service("svc"), anyTimeout), edsCluster("bad", service("bad-svc"), badTimeout),
			edsCluster("d"), edsCluster("tls", policyOf(clusterv3.Cluster_CLUSTER_PROVIDED)))
		f.expect(ClusterType)
		f.quiet()
		u.check(t, &seen, "known=true a b d tls(lb_policy CLUSTER_PROVIDED) !bad: connect_timeout: 0s: want more than 0s")
		if u.since(1)[0].Clusters[0] != a {
			t.Error("an unchanged cluster has a new pointer")
		}

		// The last good version of a cluster stays; its new name is asked for too.
		f.respond(ClusterType, 3, edsCluster("a", service("new"), badTimeout))
		f.expect(ClusterType)
		f.expect(AssignmentType, "a", "new")
		u.check(t, &seen, "known=true a !a: connect_timeout: 0s: want more than 0s")

		f.respond(ClusterType, 4)
		f.expect(ClusterType)
		f.expect(AssignmentType)
		u.check(t, &seen, "known=true")

		// Nothing changed, nothing is told.
		f.respond(ClusterType, 5)
		f.expect(ClusterType)
		u.check(t, &seen)
	})
}

// bug 11: a cluster that changes, or goes and comes with its endpoints being
// watched, keeps them.
func TestClusterChangeKeepsEndpoints(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.watchClusters()
		f.expect(ClusterType)
		f.respond(ClusterType, 1, edsCluster("web"))
		f.expect(ClusterType)
		f.expect(AssignmentType, "web")
		f.respond(AssignmentType, 2, web(1))
		f.expect(AssignmentType, "web")

		// The source of a cluster has the endpoints that are there already.
		rec, stop := f.watch("web")
		seen := 0
		reports(t, rec, &seen, "[10.0.0.1:80]")
		f.respond(ClusterType, 3, edsCluster("web", anyTimeout))
		f.expect(ClusterType)
		f.respond(ClusterType, 4)
		f.expect(ClusterType)
		f.respond(ClusterType, 5, edsCluster("web"))
		f.expect(ClusterType)
		f.quiet()
		reports(t, rec, &seen)

		// Removed and added again without a watch: kept for a while.
		stop()
		f.respond(ClusterType, 6)
		f.expect(ClusterType)
		f.expect(AssignmentType)
		f.respond(ClusterType, 7, edsCluster("web"))
		f.expect(ClusterType)
		f.expect(AssignmentType, "web")
		again, _ := f.watch("web")
		seen = 0
		reports(t, again, &seen, "[10.0.0.1:80]")
	})
}

// Without a server, what is known is served on, and the reason is told.
func TestClustersWithoutServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t, func(f *fakeServer) { f.refuse = syscall.ECONNREFUSED })
		u, stop := f.watchClusters()
		seen := 0
		u.check(t, &seen, "known=false err: xds server control:18000: connection refused")
		f.refuseWith(nil)
		pass(time.Second)
		f.respond(ClusterType, 1, edsCluster("web"))
		u.check(t, &seen, "known=true web")
		f.refuseWith(syscall.ECONNREFUSED)
		f.stream().fail <- io.EOF
		pass(time.Hour)
		u.check(t, &seen, "known=true web err: xds server control:18000: connection refused")
		stop()
		u, _ = f.watchClusters()
		seen = 0
		u.check(t, &seen, "known=true web err: xds server control:18000: connection refused")
		f.refuseWith(nil)
		pass(2 * time.Minute)
		f.expect(ClusterType)
		f.expect(AssignmentType, "web")
		f.respond(ClusterType, 1, edsCluster("web"))
		u.check(t, &seen, "known=true web")
	})
}

// Whoever watches again must never be told of fewer clusters than there are.
func TestClustersWatchedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		u, stop := f.watchClusters()
		f.expect(ClusterType)
		f.respond(ClusterType, 1, edsCluster("web"))
		f.expect(ClusterType)
		f.expect(AssignmentType, "web")

		second, stopSecond := f.watchClusters()
		seen := 0
		second.check(t, &seen, "known=true web")
		stop()
		f.respond(ClusterType, 2, edsCluster("web"), edsCluster("api"))
		f.expect(ClusterType)
		f.expect(AssignmentType, "api", "web")
		second.check(t, &seen, "known=true api web")
		stopSecond()
		f.expect(AssignmentType)

		// The server can't be told on this stream and goes on sending.
		f.respond(ClusterType, 3, edsCluster("web"), edsCluster("api"), edsCluster("third"))
		f.expect(ClusterType)
		third, stopThird := f.watchClusters()
		f.expect(AssignmentType, "api", "third", "web")
		seen = 0
		third.check(t, &seen, "known=true api third web")
		stopThird()
		f.expect(AssignmentType)

		// The next stream doesn't ask, and what it would tell is unknown then.
		f.stream().fail <- io.EOF
		pass(time.Second)
		f.quiet()
		fourth, _ := f.watchClusters()
		seen = 0
		f.expect(ClusterType)
		fourth.check(t, &seen)
		f.respond(ClusterType, 4)
		fourth.check(t, &seen, "known=true")
		if n := len(u.since(0)); n != 1 {
			t.Errorf("%d updates after the first watch ended", n-1)
		}
	})
}

// A callback that takes its time gets the newest update next, and holds up
// nobody.
func TestSlowClusterWatcher(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		entered, leave := make(chan struct{}, 10), make(chan struct{})
		u := new(updates)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			f.client.WatchClusters(ctx, func(up ClustersUpdate) {
				u.add(up)
				entered <- struct{}{}
				<-leave
			})
		})
		synctest.Wait()
		f.respond(ClusterType, 1, edsCluster("a"))
		<-entered
		f.respond(ClusterType, 2, edsCluster("b"))
		f.respond(ClusterType, 3, edsCluster("c"))
		close(leave)
		synctest.Wait()
		cancel()
		wg.Wait()
		seen := 0
		u.check(t, &seen, "known=true a", "known=true c")
	})
}
