package test

import (
	"encoding/json"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"google.golang.org/protobuf/types/known/durationpb"
)

// counted is a backend that takes connections, and counts them.
type counted struct {
	addr    string
	accepts atomic.Int64
}

func startCounted(t *testing.T) *counted {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := &counted{addr: ln.Addr().String()}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			b.accepts.Add(1)
			c.Close()
		}
	}()
	t.Cleanup(func() {
		ln.Close()
		<-done
	})
	return b
}

// listing is the beginning of a cluster with these endpoints.
func listing(name string, addrs ...string) string {
	return fmt.Sprintf("cluster %q {\n  discovery \"static\" { endpoints = [\"%s\"] }\n", name, strings.Join(addrs, `", "`))
}

// The promise, at the backends: 200 clusters of lists, files and the control
// plane, each with an interval of its own, over 500 backends that overlap, make as
// many connections to each backend as the fastest of them would alone.
func TestManyClustersProbeOnce(t *testing.T) {
	const backends, clusters, each, rounds = 500, 200, 50, 50
	const fastest = time.Second // and the others are its multiples
	ctl := newControl(t)
	ctl.start()
	all := make([]*counted, backends)
	for i := range all {
		all[i] = startCounted(t)
	}
	alone := startCounted(t)

	intervals := []time.Duration{fastest, 2 * fastest, 5 * fastest}
	want := make([]time.Duration, backends)
	check := func(d time.Duration) string {
		return fmt.Sprintf("  health_check \"tcp\" {\n    interval = %q\n    timeout = \"500ms\"\n  }\n}\n", d)
	}
	var hcl strings.Builder
	hcl.WriteString(ctl.node(""))
	fmt.Fprintf(&hcl, "%s%s", listing("alone", alone.addr), check(fastest))
	var resources []types.Resource
	dir := t.TempDir()
	for c := range clusters {
		d := intervals[c*c%len(intervals)] // more slow ones than fast ones
		if c%7 != 0 {
			d = intervals[1+c%2]
		}
		var addrs []string
		for i := range each {
			b := (c*13 + i*(1+c%9)) % backends
			addrs = append(addrs, all[b].addr)
			if want[b] == 0 || d < want[b] {
				want[b] = d
			}
		}
		name := fmt.Sprintf("c%d", c)
		switch {
		case c%10 == 0: // each watches its file, which takes one of few descriptors
			path := filepath.Join(dir, name+".hcl")
			write(t, path, "endpoints = [\""+strings.Join(addrs, `", "`)+"\"]\n")
			fmt.Fprintf(&hcl, "cluster %q {\n  discovery \"file\" { path = %q }\n%s", name, path, check(d))
		case c%2 == 0:
			hcl.WriteString(listing(name, addrs...) + check(d))
		default:
			x := edsCluster(name, name, clusterv3.Cluster_ROUND_ROBIN)
			x.HealthChecks[0].Interval, x.HealthChecks[0].Timeout = durationpb.New(d), durationpb.New(500*time.Millisecond)
			x.HealthChecks[0].NoTrafficInterval = durationpb.New(d)
			resources = append(resources, x, assignment(t, name, addrs...))
		}
	}
	ctl.set(resources...)
	p := startFastAgent(t, hcl.String())
	p.awaitReady()
	targets := 1
	for _, d := range want {
		if d != 0 {
			targets++
		}
	}
	eventually(t, "all are probed", func() bool { return p.metric("gatehouse_health_targets") == float64(targets) })

	// The clock is a backend that one cluster has alone: what slows the agent down
	// slows all of its streams down.
	var from [backends]int64
	begin := alone.accepts.Load()
	for i, b := range all {
		from[i] = b.accepts.Load()
	}
	long := time.NewTimer(3 * rounds * fastest)
	defer long.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for alone.accepts.Load() < begin+rounds {
		select {
		case <-tick.C:
		case <-long.C:
			t.Fatalf("%d of %d probes of the lone backend in three times their time", alone.accepts.Load()-begin, rounds)
		}
	}
	sum, expected := int64(0), int64(0)
	for i, b := range all {
		n := b.accepts.Load() - from[i]
		if want[i] == 0 {
			if n != 0 {
				t.Errorf("backend %d, which nobody has, was probed %d times", i, n)
			}
			continue
		}
		// A probe more or less: the windows of two streams don't begin at once.
		due := int64(rounds * fastest / want[i])
		if n < due-2 || n > due+2 {
			t.Errorf("backend %d was probed %d times, want %d at %s", i, n, due, want[i])
		}
		sum, expected = sum+n, expected+due
	}
	t.Logf("%d probes of %d targets, %d expected", sum, targets, expected)

	var checks struct {
		Targets      int `json:"targets"`
		References   int `json:"references"`
		HealthChecks []struct {
			Views []struct{ Cluster string }
		} `json:"health_checks"`
	}
	code, body := p.get("/healthchecks?format=json")
	if err := json.Unmarshal([]byte(body), &checks); err != nil || code != 200 {
		t.Fatalf("/healthchecks: %d, %v", code, err)
	}
	references := 0
	for _, c := range checks.HealthChecks {
		references += len(c.Views)
	}
	if checks.Targets != targets || len(checks.HealthChecks) != targets || references != checks.References {
		t.Errorf("/healthchecks has %d targets (%d listed) and %d references (%d listed), want %d targets",
			checks.Targets, len(checks.HealthChecks), checks.References, references, targets)
	}
	if ratio := p.metric("gatehouse_health_shared_ratio"); float32(ratio) != float32(float64(references)/float64(targets)) {
		t.Errorf("shared ratio %v, want %d/%d", ratio, references, targets)
	}
	if late := p.metric("gatehouse_health_late"); late != 0 {
		t.Logf("%v probes were late", late)
	}
}
