package node

import (
	"fmt"
	"net/netip"
	"runtime"
	"testing"

	"gatehouse.internal/lbcore"
)

// What an endpoint takes of the heap, beyond what the protocol keeps of it, leaves
// room below 600 bytes.
func TestEndpointMemory(t *testing.T) {
	const clusters, endpoints, most = 20, 500, 490
	r := start(t)
	live := func() int {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int(m.HeapAlloc)
	}
	var spec Spec
	for i := range clusters {
		name := fmt.Sprint("c", i)
		r.eds.replace(name, endpoint("127.0.0.1:1"))
		spec.Clusters = append(spec.Clusters, clusterOf(name, eds(name)))
	}
	r.apply(spec)
	await := func(n int) {
		within(t, fmt.Sprintf("each cluster has %d endpoints", n), func() bool {
			for _, c := range r.Summary().Clusters {
				if c.Counts.Ready != n || c.Waiting != "" {
					return false
				}
			}
			return true
		})
	}
	await(1)
	before := live()
	for i := range clusters {
		eps := make([]lbcore.Endpoint, endpoints)
		for k := range eps {
			ip := netip.AddrFrom4([4]byte{127, byte(1 + i), byte(k >> 8), byte(k)})
			eps[k] = lbcore.Endpoint{Addr: lbcore.IPAddr(netip.AddrPortFrom(ip, 1)), Weight: 1}
		}
		r.eds.replace(fmt.Sprint("c", i), eps...)
	}
	await(endpoints)
	each := (live() - before) / (clusters * endpoints)
	t.Logf("%d bytes an endpoint", each)
	if each > most {
		t.Errorf("an endpoint takes %d bytes, want at most %d", each, most)
	}
}
