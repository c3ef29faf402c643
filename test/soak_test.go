package test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
)

var soak = flag.Duration("soak", 3*time.Second, "how long TestSoak churns")

// Clusters, endpoints and the server itself come and go at random under load.
// No connection fails, as long as one endpoint of its cluster lives, and what
// the agent holds in the end is what it held in the beginning. Run it for long
// with -soak.
func TestSoak(t *testing.T) {
	const clusters, backends = 4, 6
	var all []*backend
	for range backends {
		all = append(all, startBackend(t))
	}
	policies := []clusterv3.Cluster_LbPolicy{clusterv3.Cluster_ROUND_ROBIN, clusterv3.Cluster_LEAST_REQUEST, clusterv3.Cluster_RING_HASH}
	members := make([][]string, clusters)
	kinds := make([]clusterv3.Cluster_LbPolicy, clusters)
	cp := newControl(t)
	publish := func() {
		var rs []types.Resource
		for i := range clusters {
			name := fmt.Sprintf("c%d", i)
			rs = append(rs, edsCluster(name, name, kinds[i]), assignment(t, name, members[i]...))
		}
		cp.set(rs...)
	}
	pick := func() (addrs []string) {
		for _, i := range rand.Perm(backends)[:1+rand.IntN(backends)] {
			addrs = append(addrs, all[i].addr)
		}
		return addrs
	}
	hcl := ""
	for i := range clusters {
		members[i], kinds[i] = pick(), policies[i%len(policies)]
		hcl += fmt.Sprintf("listener \"c%d\" {\n  address = \"127.0.0.1:0\"\n  cluster = \"c%d\"\n}\n", i, i)
	}
	cp.start()
	publish()
	p := startAgent(t, cp.node(hcl))
	p.awaitReady()
	var trs []*traffic
	for i := range clusters {
		trs = append(trs, startTrafficAt(t, p.listener(fmt.Sprintf("c%d", i)), 60*time.Millisecond))
	}
	served := func(addrs []string) func() bool {
		slices.Sort(addrs)
		return func() bool { return slices.Equal(p.cluster("c0").ready, addrs) }
	}
	eventually(t, "the first membership is served", served(members[0]))
	goroutines, fds := p.metric("go_goroutines"), p.metric("process_open_fds")

	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	changes, away := 0, false
	for end := time.After(*soak); end != nil; {
		select {
		case <-end:
			end = nil
		case <-tick.C:
			i := rand.IntN(clusters)
			switch n := rand.IntN(20); {
			case n == 0 && !away:
				cp.stop()
				away = true
			case n < 4 && away:
				cp.start()
				away = false
			case n == 5:
				kinds[i] = policies[rand.IntN(len(policies))]
			default:
				members[i] = pick()
			}
			publish()
			changes++
		}
	}
	if away {
		cp.start()
	}
	publish()
	eventually(t, "the last membership is served", served(members[0]))
	for _, tr := range trs {
		tr.stop()
	}
	total := 0
	for _, tr := range trs {
		tr.noErrors(t)
		n, _ := tr.count()
		total += n
	}
	// A probe worker is started when one more probe than ever is in flight, and
	// stays: there can be one for each backend. All else goes when it is done.
	var g, f float64
	defer func() {
		t.Logf("%d changes, %d connections; %v goroutines (%v before), %v descriptors (%v before), %.0f MB resident",
			changes, total, g, goroutines, f, fds, p.metric("process_resident_memory_bytes")/1e6)
	}()
	eventually(t, "goroutines and descriptors are as before", func() bool {
		g, f = p.metric("go_goroutines"), p.metric("process_open_fds")
		return g <= goroutines+backends && f <= fds
	})
}
