package test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

const gateStorage = "gatehouse_gate_storage"

// resident returns the agent's memory in bytes.
func (p *process) resident() float64 {
	p.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		p.t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "VmRSS:" {
			n, err := strconv.ParseFloat(f[1], 64)
			if err != nil {
				p.t.Fatal(err)
			}
			return n * 1024
		}
	}
	p.t.Fatal("no VmRSS")
	return 0
}

// The binary that users run has large selectors outside of Go's heap. While
// endpoints come, go and change their weights, connections flow, a ring is built
// where an earlier one was, and memory stays that of a few rings.
func TestStorageIsUsedAgain(t *testing.T) {
	a, b, c := startBackend(t), startBackend(t), startBackend(t)
	file := filepath.Join(t.TempDir(), "web.json")
	list := func(entries ...string) {
		t.Helper()
		write(t, file, `{"endpoints": [`+strings.Join(entries, ", ")+`]}`)
	}
	of := func(x *backend, weight int) string {
		return fmt.Sprintf(`{"address": %q, "weight": %d}`, x.addr, weight)
	}
	list(of(a, 1), of(b, 1))
	p := startFastAgent(t, fmt.Sprintf(`
cluster "web" {
  discovery "file" { path = %q }
  selector "ring" {
    policy            = "ring_hash"
    minimum_ring_size = %d
  }
  selector "least" { policy = "least_weight" }
}
listener "ring" {
  address  = "127.0.0.1:0"
  cluster  = "web"
  selector = "ring"
}
listener "least" {
  address  = "127.0.0.1:0"
  cluster  = "web"
  selector = "least"
}
`, file, 1<<20))
	p.awaitReady()
	ring, least := startTraffic(t, p.listener("ring")), startTraffic(t, p.listener("least"))
	ring.lands(t, a, b)
	before := p.resident()

	changes := []struct {
		entries []string
		ready   []string
	}{
		{[]string{of(a, 1), of(b, 1), of(c, 1)}, sorted(a.addr, b.addr, c.addr)},
		{[]string{of(a, 1), of(b, 5), of(c, 2)}, sorted(a.addr, b.addr, c.addr)},
		{[]string{of(b, 5), of(c, 2)}, sorted(b.addr, c.addr)},
		{[]string{of(b, 1), of(c, 1), of(a, 3)}, sorted(a.addr, b.addr, c.addr)},
		{[]string{of(a, 3), of(c, 1)}, sorted(a.addr, c.addr)},
		{[]string{of(a, 1), of(c, 4)}, sorted(a.addr, c.addr)},
	}
	const rounds = 6
	var size, most float64
	generation := p.cluster("web").generation
	for range rounds {
		for _, change := range changes {
			list(change.entries...)
			generation++
			eventually(t, fmt.Sprintf("generation %d is served", generation), func() bool {
				got := p.cluster("web")
				size = max(size, got.selectors["ring"].StorageBytes)
				most = max(most, p.metric(gateStorage))
				return got.generation == generation && slices.Equal(got.ready, change.ready)
			})
		}
	}
	ring.lands(t, a, c)
	least.lands(t, a, c)
	ring.stop()
	least.stop()
	ring.noErrors(t)
	least.noErrors(t)
	p.servedAll()

	got := p.cluster("web").selectors
	if got["ring"].Reused == 0 {
		t.Error("no ring was built in storage of an earlier one")
	}
	if size < 1<<20 {
		t.Fatalf("a ring takes %.0f bytes, which is too little to tell anything", size)
	}
	if most < size || most > 3*size {
		t.Errorf("selectors took up to %.0f bytes, want from one to three rings of %.0f", most, size)
	}
	t.Logf("%d rings in %d generations were built in storage of earlier ones; selectors took up to %.1f rings of %.0f bytes; %.0f MB resident, %.0f before",
		got["ring"].Reused, generation, most/size, size, p.resident()/1e6, before/1e6)
	// Of Go's own memory there is little, whose growth is bounded generously.
	if after := p.resident(); after > before+3*size+64<<20 {
		t.Errorf("the agent takes %.0f bytes after %.0f, with rings of %.0f", after, before, size)
	}
}

// A cluster of the control plane is replaced again and again: what its rings
// took does not add up, and is given back once it is gone.
func TestStorageOfReplacedClusters(t *testing.T) {
	a, b := startBackend(t), startBackend(t)
	cp := newControl(t)
	cp.start()
	replace := func(i int) {
		t.Helper()
		web := edsCluster("web", "web", clusterv3.Cluster_RING_HASH)
		web.HealthChecks = nil
		web.ConnectTimeout = durationpb.New(time.Duration(i+1) * time.Second)
		web.LbConfig = &clusterv3.Cluster_RingHashLbConfig_{RingHashLbConfig: &clusterv3.Cluster_RingHashLbConfig{
			MinimumRingSize: wrapperspb.UInt64(1 << 20),
		}}
		cp.set(web, assignment(t, "web", a.addr, b.addr))
	}
	replace(0)
	p := startFastAgent(t, cp.node(webListener))
	p.awaitReady()
	tr := startTraffic(t, p.listener("web"))
	tr.lands(t, a, b)
	size := p.cluster("web").selectors["default"].StorageBytes
	if size < 1<<20 {
		t.Fatalf("a ring takes %.0f bytes, which is too little to tell anything", size)
	}
	var most float64
	within := func() {
		t.Helper()
		most = max(most, p.metric(gateStorage))
		if most > 3*size {
			t.Fatalf("selectors take %.0f bytes, which is more than three rings of %.0f", most, size)
		}
	}
	const replacements = 20
	for i := range replacements {
		replace(i + 1)
		cp.acked(resourcev3.ClusterType)
		eventually(t, "the cluster is replaced", func() bool {
			within()
			return strings.Count(p.output(), `"msg":"cluster changed"`) == i+1 && p.cluster("web").waiting == ""
		})
	}
	t.Logf("selectors took up to %.1f rings of %.0f bytes", most/size, size)
	tr.lands(t, a, b)
	tr.stop()
	tr.noErrors(t)
	if got := cp.nacks(); got != nil {
		t.Errorf("NACKs: %q", got)
	}
	cp.set()
	eventually(t, "the cluster is gone", func() bool { _, body := p.get("/clusters"); return body == "" })
	eventually(t, "its storage is given back", func() bool { return p.metric(gateStorage) == 0 })
}
