package xds

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"

	"gatehouse.internal/discovery/discoverytest"
	"gatehouse.internal/lbcore"
)

// A resource of 10 MB is taken in.
func TestLargeResource(t *testing.T) { bothVariants(t, largeResource) }

func largeResource(t *testing.T, protocol Protocol) {
	p := newControlPlane(t, true, protocol)
	var eps []*endpointv3.LbEndpoint
	pad := strings.Repeat("h", 900)
	for i := range 12000 {
		e := lb(socket(fmt.Sprintf("10.%d.%d.%d", i/62500, i/250%250, i%250), 80))
		e.GetEndpoint().Hostname = pad
		eps = append(eps, e)
	}
	m := cla("a", locality(0, eps...))
	if n := len(marshal(t, m)); n < 10<<20 {
		t.Fatalf("the resource has %d bytes", n)
	}
	p.set(1, m)
	got := make(chan int, 1)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	c := p.run()
	wg.Go(func() { c.EDS("a", nil).Watch(ctx, lengthSink(got)) })
	select {
	case n := <-got:
		if n != 12000 {
			t.Errorf("%d endpoints", n)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("no set")
	}
}

// lengthSink tells how many endpoints a set has.
type lengthSink chan int

func (s lengthSink) Replace(set lbcore.Set) { s <- set.Len() }
func (s lengthSink) Fail(error)             {}

// When one endpoint of one of many clusters changes, its watch gets one set and no
// other gets any, also where the response has the endpoints of all.
func TestOneChanges(t *testing.T) { bothVariants(t, oneChanges) }

func oneChanges(t *testing.T, protocol Protocol) {
	const n, changes = 200, 10
	p := newControlPlane(t, true, protocol)
	resources := make([]types.Resource, 0, 2*n)
	for i := range n {
		resources = append(resources, edsCluster(fmt.Sprint("c", i)))
	}
	for i := range n {
		resources = append(resources, endpointAt(fmt.Sprint("c", i), 1))
	}
	p.set(1, resources...)
	c := p.run()
	clusters := watchAll(t, c)
	names := make([]string, n)
	recs := make([]*discoverytest.Recorder, n)
	for i := range n {
		names[i] = fmt.Sprint("c", i)
		recs[i], _ = watchEDS(t, c, names[i])
	}
	slices.Sort(names)
	clusters("known=true " + strings.Join(names, " "))
	for _, rec := range recs {
		rec.WaitSet(t, 0, addr("10.0.0.1:80"))
	}
	for k := range changes {
		resources[n+7] = endpointAt("c7", 2+k)
		p.set(2+k, resources...)
		recs[7].WaitSet(t, 1+k, addr(fmt.Sprintf("10.0.0.%d:80", 2+k)))
	}
	if got := c.Counters().Assignments.Changed; got != n+changes {
		t.Errorf("%d versions came into force, want %d", got, n+changes)
	}
	for i, rec := range recs {
		want := 1
		if i == 7 {
			want = 1 + changes
		}
		if got := len(rec.Reports()); got != want {
			t.Errorf("c%d: %d reports, want %d", i, got, want)
		}
	}
}

// 100,000 clusters, and so as many names in one request and as many timers: they
// are all there, and what they take is theirs.
func TestManyNames(t *testing.T) { bothVariants(t, manyNames) }

func manyNames(t *testing.T, protocol Protocol) {
	n := 100_000
	if protocol == ProtocolDelta {
		n = 20_000 // the server takes its time with more
	}
	p := newControlPlane(t, false, protocol)
	var resources []types.Resource
	for i := range n {
		resources = append(resources, edsCluster(fmt.Sprintf("cluster-%06d", i)))
	}
	p.set(1, resources...)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	c := p.run()
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	all := make(chan int, 1)
	wg.Go(func() {
		c.WatchClusters(ctx, func(u ClustersUpdate) {
			select {
			case all <- len(u.Clusters):
			default:
			}
		})
	})
	for got := 0; got != n; {
		select {
		case got = <-all:
		case <-time.After(5 * time.Minute): // no measure of speed
			t.Fatalf("%d of %d clusters", got, n)
		}
	}
	if got := len(c.Status().Types[1].Resources); got != n {
		t.Errorf("%d assignments are asked for", got)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if per := (int64(after.HeapAlloc) - int64(before.HeapAlloc)) / int64(n); per > 4096 {
		t.Errorf("%d bytes a cluster", per)
	} else {
		t.Logf("%d bytes a cluster", per)
	}
}
