package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	cachev3 "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	serverv3 "github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"github.com/miekg/dns"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"gatehouse.internal/discovery/consul/consultest"
)

// source is where the members of one cluster come from.
type source interface {
	// conf is the cluster's discovery in the configuration, "" if it is no cluster of
	// the file, and lag how long by its settings the agent may take to know.
	conf() string
	lag() time.Duration
	// pause is how long the members must stay at least. Above 0 they come and go one at a
	// time: a loss of more than half is held back from sources that may err.
	pause() time.Duration
	// say makes these the members.
	say(members []int)
}

// checkInterval is the time between checks, and how long one may take.
const checkInterval = 500 * time.Millisecond

// control is a go-control-plane server of the cluster "eds", that goes away at times.
type control struct {
	t       testing.TB
	b       *backends
	addr    string
	cache   cachev3.SnapshotCache
	srv     *grpc.Server
	wg      sync.WaitGroup
	version int
	policy  clusterv3.Cluster_LbPolicy
	members []int
	open    atomic.Int32 // streams
}

const nodeID = "soak"

func newControl(t testing.TB, b *backends) *control {
	c := &control{t: t, b: b, cache: cachev3.NewSnapshotCache(true, cachev3.IDHash{}, nil)}
	c.addr = freeAddr(t)
	t.Cleanup(c.stop)
	return c
}

// freeAddr returns an address that is free now, and not of the ports that the kernel
// gives to clients.
func freeAddr(t testing.TB) string {
	for range 100 {
		ln, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", 10000+rand.IntN(20000)))
		if err == nil {
			defer ln.Close()
			return ln.Addr().String()
		}
	}
	t.Fatal("no port is free")
	return ""
}

func (c *control) conf() string         { return "" }
func (c *control) pause() time.Duration { return 0 }
func (c *control) lag() time.Duration   { return 0 }

func (c *control) start() {
	ln, err := net.Listen("tcp", c.addr)
	if err != nil {
		c.t.Fatal(err)
	}
	c.srv = grpc.NewServer()
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(c.srv, serverv3.NewServer(context.Background(), c.cache, serverv3.CallbackFuncs{
		DeltaStreamOpenFunc:   func(context.Context, int64, string) error { c.open.Add(1); return nil },
		DeltaStreamClosedFunc: func(int64, *corev3.Node) { c.open.Add(-1) },
	}))
	srv := c.srv
	c.wg.Go(func() { srv.Serve(ln) })
}

func (c *control) stop() {
	if c.srv != nil {
		c.srv.Stop()
		c.wg.Wait()
		c.srv = nil
	}
}

func (c *control) say(members []int) {
	c.members = members
	c.publish()
}

func (c *control) publish() {
	second := durationpb.New(time.Second)
	cluster := &clusterv3.Cluster{
		Name: "eds", ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS}, LbPolicy: c.policy, ConnectTimeout: durationpb.New(5 * time.Second),
		EdsClusterConfig: &clusterv3.Cluster_EdsClusterConfig{EdsConfig: &corev3.ConfigSource{
			ResourceApiVersion: corev3.ApiVersion_V3, ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: new(corev3.AggregatedConfigSource)},
		}},
		CommonLbConfig:            &clusterv3.Cluster_CommonLbConfig{HealthyPanicThreshold: new(typev3.Percent)},
		IgnoreHealthOnHostRemoval: true,
		HealthChecks: []*corev3.HealthCheck{{
			Interval: durationpb.New(checkInterval), Timeout: durationpb.New(checkInterval), NoTrafficInterval: second,
			UnhealthyThreshold: wrapperspb.UInt32(3), HealthyThreshold: wrapperspb.UInt32(1), AltPort: wrapperspb.UInt32(uint32(c.b.health)),
			HealthChecker: &corev3.HealthCheck_HttpHealthCheck_{HttpHealthCheck: &corev3.HealthCheck_HttpHealthCheck{Path: "/", Host: "soak"}},
		}},
	}
	la := &endpointv3.ClusterLoadAssignment{ClusterName: "eds", Endpoints: []*endpointv3.LocalityLbEndpoints{{}}}
	for _, i := range c.members {
		la.Endpoints[0].LbEndpoints = append(la.Endpoints[0].LbEndpoints, &endpointv3.LbEndpoint{HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{
			Address: &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
				Address: c.b.ip(i), PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: uint32(c.b.port)},
			}}},
		}}})
	}
	c.version++
	snap, err := cachev3.NewSnapshot(fmt.Sprint(c.version), map[resourcev3.Type][]types.Resource{
		resourcev3.ClusterType: {cluster}, resourcev3.EndpointType: {la},
	})
	if err == nil {
		err = c.cache.SetSnapshot(context.Background(), nodeID, snap)
	}
	if err != nil {
		c.t.Fatal(err)
	}
}

// file is a list that is watched.
type file struct {
	t    testing.TB
	b    *backends
	path string
}

func (f *file) conf() string         { return fmt.Sprintf("discovery \"file\" { path = %q }", f.path) }
func (f *file) pause() time.Duration { return 0 }
func (f *file) lag() time.Duration   { return 200 * time.Millisecond } // a hint settles

func (f *file) say(members []int) {
	var list []string
	for _, i := range members {
		list = append(list, fmt.Sprintf("%q", f.b.addr(i)))
	}
	if err := os.WriteFile(f.path+".new", []byte("endpoints = ["+strings.Join(list, ", ")+"]\n"), 0o600); err != nil {
		f.t.Fatal(err)
	}
	if err := os.Rename(f.path+".new", f.path); err != nil {
		f.t.Fatal(err)
	}
}

// names is a nameserver in this process.
type names struct {
	b    *backends
	addr string
	ips  atomic.Pointer[[]string]
}

func newNames(t testing.TB, b *backends) *names {
	n := &names{b: b}
	n.addr = freeAddr(t)
	pc, err := net.ListenPacket("udp", n.addr)
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", n.addr)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []*dns.Server{{PacketConn: pc, Handler: n}, {Listener: ln, Handler: n}} {
		started, ended := make(chan struct{}), make(chan struct{})
		s.NotifyStartedFunc = func() { close(started) }
		go func() {
			defer close(ended)
			s.ActivateAndServe()
		}()
		<-started
		t.Cleanup(func() {
			s.Shutdown()
			<-ended
		})
	}
	return n
}

// ServeDNS implements dns.Handler.
func (n *names) ServeDNS(w dns.ResponseWriter, q *dns.Msg) {
	m := new(dns.Msg).SetReply(q)
	for _, ip := range *n.ips.Load() {
		m.Answer = append(m.Answer, &dns.A{Hdr: dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET}, A: net.ParseIP(ip)})
	}
	w.WriteMsg(m)
}

const dnsRefresh = 500 * time.Millisecond

func (n *names) conf() string {
	return fmt.Sprintf("discovery \"dns\" {\n  name = \"web.soak.\"\n  type = \"a\"\n  port = %d\n  refresh = %q\n  misses = 1\n }", n.b.port, dnsRefresh)
}
func (n *names) pause() time.Duration { return 3 * time.Second }
func (n *names) lag() time.Duration   { return 2 * dnsRefresh } // give or take 15 %, and the look-up

func (n *names) say(members []int) {
	var ips []string
	for _, i := range members {
		ips = append(ips, n.b.ip(i))
	}
	n.ips.Store(&ips)
}

// catalog is a service of a real Consul.
type catalog struct {
	s *consultest.Server
	b *backends

	before []int
}

func (c *catalog) conf() string { return "discovery \"consul\" { service = \"web\" }" }

// The query asks twice at once and then once a second, which is what a change of several
// steps takes; it has 30 such requests, and one more each 15 s, so that what changes all
// the time is seen that often.
func (c *catalog) pause() time.Duration { return 40 * time.Second }
func (c *catalog) lag() time.Duration   { return 4 * time.Second }

func (c *catalog) say(members []int) {
	for _, i := range members {
		if !slices.Contains(c.before, i) {
			c.s.Register(consultest.Instance{Name: "web", ID: fmt.Sprint("web-", i), Address: c.b.ip(i), Port: c.b.port})
		}
	}
	for _, i := range c.before {
		if !slices.Contains(members, i) {
			c.s.Deregister(fmt.Sprint("web-", i))
		}
	}
	c.before = slices.Clone(members)
}

// consulBuilt reports whether the Consul server is in the cache.
func consulBuilt() bool {
	dir := os.Getenv("GATEHOUSE_CACHE")
	if dir == "" {
		cache, err := os.UserCacheDir()
		if err != nil {
			return false
		}
		dir = filepath.Join(cache, "gatehouse")
	}
	found, _ := filepath.Glob(filepath.Join(dir, "consul-*", "consul"))
	return len(found) > 0
}

// static is a list in the configuration, which is read anew.
type static struct {
	b       *backends
	members []int
}

func (s *static) conf() string {
	var list []string
	for _, i := range s.members {
		list = append(list, fmt.Sprintf("%q", s.b.addr(i)))
	}
	return "discovery \"static\" { endpoints = [" + strings.Join(list, ", ") + "] }"
}
func (s *static) pause() time.Duration { return 0 }
func (s *static) lag() time.Duration   { return 0 }
func (s *static) say(members []int)    { s.members = members }
