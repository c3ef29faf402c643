package lrs

import (
	"fmt"
	"math"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	loadv3 "github.com/envoyproxy/go-control-plane/envoy/service/load_stats/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"
	"pgregory.net/rapid"

	"gatehouse.internal/lbcore"
)

func addr(t interface{ Fatal(...any) }, s string) lbcore.Addr {
	a, err := lbcore.ParseAddr(s)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// bug 37: whatever the server says, the interval is one that a timer can have.
func TestInterval(t *testing.T) {
	for _, tt := range []struct {
		said *durationpb.Duration
		want time.Duration
	}{
		{nil, MinInterval},
		{durationpb.New(0), MinInterval},
		{durationpb.New(-time.Hour), MinInterval},
		{durationpb.New(time.Nanosecond), MinInterval},
		{durationpb.New(1500 * time.Millisecond), 1500 * time.Millisecond},
		{durationpb.New(24*time.Hour + 1), MaxInterval},
		{&durationpb.Duration{Seconds: math.MaxInt64}, MinInterval},   // no duration
		{&durationpb.Duration{Seconds: 5, Nanos: -1}, MinInterval},    // nor this
		{&durationpb.Duration{Seconds: 315_576_000_000}, MaxInterval}, // the longest there is
		{&durationpb.Duration{Seconds: math.MinInt64, Nanos: math.MinInt32}, MinInterval},
	} {
		if got := read(&loadv3.LoadStatsResponse{LoadReportingInterval: tt.said}).interval; got != tt.want {
			t.Errorf("%v: %v, want %v", tt.said, got, tt.want)
		}
	}
}

func TestTerms(t *testing.T) {
	some := read(&loadv3.LoadStatsResponse{Clusters: []string{"a", "b", "a"}})
	all := read(&loadv3.LoadStatsResponse{Clusters: []string{"a"}, SendAllClusters: true, ReportEndpointGranularity: true})
	var none terms
	for name, want := range map[string][3]bool{"a": {true, true, false}, "c": {false, true, false}} {
		if got := [3]bool{some.wants(name), all.wants(name), none.wants(name)}; got != want {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
	if some.endpoints || !all.endpoints {
		t.Error("granularity")
	}
}

// loads of three clusters, one of which has nothing to tell.
func loads(t *testing.T) []ClusterLoad {
	a, b, c := addr(t, "192.0.2.1:80"), addr(t, "192.0.2.2:80"), addr(t, "unix:///run/c.sock")
	eu, us := lbcore.Locality{Region: "eu", Zone: "1"}, lbcore.Locality{Region: "us", SubZone: "rack"}
	return []ClusterLoad{
		{Cluster: "web", Service: "web-service", Interval: 1500 * time.Millisecond, Dropped: 2, DroppedBy: map[string]uint64{"throttle": 3, "none": 0, "lb": 1}, Endpoints: []EndpointLoad{
			{Addr: c, Locality: us, Priority: 1, Load: Load{Issued: 1, InProgress: 1}},
			{Addr: b, Locality: eu, Load: Load{Issued: 2, Successful: 1, Failed: 4, InProgress: 5}},
			{Addr: a, Locality: eu, Load: Load{Issued: 10, Successful: 20, Failed: 30, InProgress: 40}},
			{Locality: eu, Load: Load{Issued: 100, Successful: 100}}, // of who has left
			{Addr: a, Locality: eu, Load: Load{Failed: 1}},
			{Addr: a, Locality: lbcore.Locality{Region: "idle"}},
		}},
		{Cluster: "idle", Interval: time.Second, Endpoints: []EndpointLoad{{Addr: a}}},
		{Cluster: "api", Interval: time.Second, Dropped: 1},
	}
}

func TestReport(t *testing.T) {
	node := &corev3.Node{Id: "n"}
	socket := func(ip string) *corev3.Address {
		return &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{Address: ip, PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: 80}}}}
	}
	eu := &endpointv3.UpstreamLocalityStats{
		Locality:            &corev3.Locality{Region: "eu", Zone: "1"},
		TotalIssuedRequests: 112, TotalSuccessfulRequests: 121, TotalErrorRequests: 35, TotalRequestsInProgress: 45,
		TotalNewConnections: 112, TotalFailConnections: 35, TotalActiveConnections: 45,
		UpstreamEndpointStats: []*endpointv3.UpstreamEndpointStats{
			{Address: socket("192.0.2.1"), TotalIssuedRequests: 10, TotalSuccessfulRequests: 20, TotalErrorRequests: 31, TotalRequestsInProgress: 40},
			{Address: socket("192.0.2.2"), TotalIssuedRequests: 2, TotalSuccessfulRequests: 1, TotalErrorRequests: 4, TotalRequestsInProgress: 5},
		},
	}
	us := &endpointv3.UpstreamLocalityStats{
		Locality: &corev3.Locality{Region: "us", SubZone: "rack"}, Priority: 1,
		TotalIssuedRequests: 1, TotalRequestsInProgress: 1, TotalNewConnections: 1, TotalActiveConnections: 1,
		UpstreamEndpointStats: []*endpointv3.UpstreamEndpointStats{{
			Address:             &corev3.Address{Address: &corev3.Address_Pipe{Pipe: &corev3.Pipe{Path: "/run/c.sock"}}},
			TotalIssuedRequests: 1, TotalRequestsInProgress: 1,
		}},
	}
	want := &loadv3.LoadStatsRequest{Node: node, ClusterStats: []*endpointv3.ClusterStats{
		{ClusterName: "api", TotalDroppedRequests: 1, LoadReportInterval: durationpb.New(time.Second)},
		{
			ClusterName: "web", ClusterServiceName: "web-service", LoadReportInterval: durationpb.New(1500 * time.Millisecond),
			UpstreamLocalityStats: []*endpointv3.UpstreamLocalityStats{eu, us},
			TotalDroppedRequests:  6, DroppedRequests: []*endpointv3.ClusterStats_DroppedRequests{{Category: "lb", DroppedCount: 1}, {Category: "throttle", DroppedCount: 3}},
		},
	}}
	if d := cmp.Diff(want, report(node, loads(t), true), protocmp.Transform()); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if err := want.ClusterStats[1].Validate(); err != nil {
		t.Errorf("it breaks the rules of its proto: %v", err)
	}
	eu.UpstreamEndpointStats, us.UpstreamEndpointStats = nil, nil
	if d := cmp.Diff(want, report(node, loads(t), false), protocmp.Transform()); d != "" {
		t.Errorf("without endpoints (-want +got):\n%s", d)
	}
	// What was not sent counts later, but what was in progress then does not.
	late := report(node, append(owed(owed(loads(t))), ClusterLoad{Cluster: "web", Service: "web-service", Interval: time.Second, Endpoints: []EndpointLoad{
		{Addr: addr(t, "192.0.2.1:80"), Locality: lbcore.Locality{Region: "eu", Zone: "1"}, Load: Load{Issued: 1, InProgress: 7}},
	}}), false)
	eu.TotalIssuedRequests, eu.TotalNewConnections, eu.TotalRequestsInProgress, eu.TotalActiveConnections = 113, 113, 7, 7
	us.TotalRequestsInProgress, us.TotalActiveConnections = 0, 0
	want.ClusterStats[1].LoadReportInterval = durationpb.New(2500 * time.Millisecond)
	if d := cmp.Diff(want, late, protocmp.Transform()); d != "" {
		t.Errorf("later (-want +got):\n%s", d)
	}
}

// Whatever is put off, the sums of what is told are those of what has happened.
func TestNothingIsLost(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type sums struct{ issued, ended, failed, dropped uint64 }
		var want, got sums
		var unsent []ClusterLoad
		send := func(endpoints bool) {
			for _, c := range report(nil, unsent, endpoints).GetClusterStats() {
				got.dropped += c.GetTotalDroppedRequests()
				for _, l := range c.GetUpstreamLocalityStats() {
					got.issued += l.GetTotalIssuedRequests()
					got.ended += l.GetTotalSuccessfulRequests()
					got.failed += l.GetTotalErrorRequests()
				}
			}
			unsent = nil
		}
		few := rapid.Uint64Range(0, 5)
		for range rapid.IntRange(1, 20).Draw(t, "reports") {
			var now []ClusterLoad
			for range rapid.IntRange(0, 3).Draw(t, "clusters") {
				c := ClusterLoad{Cluster: rapid.SampledFrom([]string{"a", "b"}).Draw(t, "cluster"), Dropped: few.Draw(t, "dropped")}
				want.dropped += c.Dropped
				for range rapid.IntRange(0, 4).Draw(t, "endpoints") {
					e := EndpointLoad{
						Addr:     addr(t, fmt.Sprintf("192.0.2.%d:80", rapid.IntRange(1, 3).Draw(t, "addr"))),
						Locality: lbcore.Locality{Zone: rapid.SampledFrom([]string{"", "z"}).Draw(t, "zone")},
						Load:     Load{few.Draw(t, "issued"), few.Draw(t, "ended"), few.Draw(t, "failed"), few.Draw(t, "open")},
					}
					want.issued, want.ended, want.failed = want.issued+e.Issued, want.ended+e.Successful, want.failed+e.Failed
					c.Endpoints = append(c.Endpoints, e)
				}
				now = append(now, c)
			}
			unsent = append(owed(unsent), now...)
			if rapid.Bool().Draw(t, "sent") {
				send(rapid.Bool().Draw(t, "granular"))
			}
		}
		send(false)
		if got != want {
			t.Fatalf("told %+v, want %+v", got, want)
		}
	})
}

// The node says what servers may ask for, and the caller's is not written to.
func TestNode(t *testing.T) {
	node := &corev3.Node{Id: "n", ClientFeatures: []string{"x"}}
	if got := withFeature(node).GetClientFeatures(); len(got) != 2 || got[1] != feature || len(node.ClientFeatures) != 1 {
		t.Errorf("%q, %q", got, node.ClientFeatures)
	}
	if got := withFeature(nil); !proto.Equal(got, &corev3.Node{ClientFeatures: []string{feature}}) {
		t.Errorf("%v", got)
	}
}

// No response makes the client panic, or wait for less than it may.
func FuzzTerms(f *testing.F) {
	for _, r := range []*loadv3.LoadStatsResponse{
		{}, {Clusters: []string{"a"}, LoadReportingInterval: durationpb.New(0)}, {SendAllClusters: true, LoadReportingInterval: &durationpb.Duration{Seconds: -1, Nanos: 1}},
	} {
		b, err := proto.Marshal(r)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var r loadv3.LoadStatsResponse
		if proto.Unmarshal(data, &r) != nil {
			return
		}
		asked := read(&r)
		if asked.interval < MinInterval || asked.interval > MaxInterval {
			t.Errorf("an interval of %v", asked.interval)
		}
		for _, c := range r.GetClusters() {
			if !asked.wants(c) {
				t.Errorf("%q is not wanted", c)
			}
		}
	})
}
