//lint:file-ignore SA1019 control planes still use the fields that newer ones take the place of

package test

import (
	"net/netip"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	aggregatev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/clusters/aggregate/v3"
	dnsclusterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/clusters/dns/v3"
	caresv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/network/dns_resolver/cares/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	"gatehouse.internal/discovery/dns/dnstest"
)

// named makes c a cluster of these host names with ports, a priority each.
func named(t *testing.T, c *clusterv3.Cluster, typ clusterv3.Cluster_DiscoveryType, hosts ...string) *clusterv3.Cluster {
	t.Helper()
	c.ClusterDiscoveryType, c.EdsClusterConfig = &clusterv3.Cluster_Type{Type: typ}, nil
	c.LoadAssignment = assignment(t, c.Name)
	c.LoadAssignment.Endpoints = nil
	for i, h := range hosts {
		l := assignment(t, c.Name, h).Endpoints[0]
		l.Priority = uint32(i)
		c.LoadAssignment.Endpoints = append(c.LoadAssignment.Endpoints, l)
	}
	return c
}

func extensionOf(t *testing.T, name string, m proto.Message) *clusterv3.Cluster_ClusterType {
	t.Helper()
	config, err := anypb.New(m)
	if err != nil {
		t.Fatal(err)
	}
	return &clusterv3.Cluster_ClusterType{ClusterType: &clusterv3.Cluster_CustomClusterType{Name: name, TypedConfig: config}}
}

func nameserver(at netip.AddrPort) []*corev3.Address {
	return []*corev3.Address{{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address: at.Addr().String(), PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: uint32(at.Port())},
	}}}}
}

// A control plane gives host names, of each of the kinds of DNS clusters, and an
// aggregate of them. The agent looks them up at a real nameserver, follows their
// changes, and shares the load over the priorities of all.
func TestXDSNames(t *testing.T) { bothVariants(t, xdsNames) }

func xdsNames(t *testing.T, cp *control) {
	a, b, c := startBackend(t), startBackend(t), startBackend(t)
	port := func(b *backend) string { return b.addr[strings.LastIndexByte(b.addr, ':')+1:] }
	d := dnstest.New(t)
	d.Start("local-ttl=60", "host-record=a.test,127.0.0.1", "host-record=c.test,127.0.0.9", "host-record=c.test,127.0.0.1")

	strict := named(t, edsCluster("web", "", clusterv3.Cluster_ROUND_ROBIN), clusterv3.Cluster_STRICT_DNS, "a.test:"+port(a), b.addr)
	strict.DnsRefreshRate, strict.DnsResolvers = durationpb.New(50*time.Millisecond), nameserver(d.Addr)
	resolver, err := anypb.New(&caresv3.CaresDnsResolverConfig{Resolvers: nameserver(d.Addr)})
	if err != nil {
		t.Fatal(err)
	}
	extended := named(t, edsCluster("extended", "", clusterv3.Cluster_ROUND_ROBIN), 0, "a.test:"+port(a))
	extended.ClusterDiscoveryType = extensionOf(t, "envoy.clusters.dns", &dnsclusterv3.DnsCluster{
		TypedDnsResolverConfig: &corev3.TypedExtensionConfig{Name: "cares", TypedConfig: resolver},
	})
	// One of two addresses has nobody who listens: they are one endpoint, and either is
	// as good as the other.
	logical := named(t, edsCluster("logical", "", clusterv3.Cluster_ROUND_ROBIN), clusterv3.Cluster_LOGICAL_DNS, "c.test:"+port(c))
	logical.DnsResolvers, logical.HealthChecks = nameserver(d.Addr), nil
	all := &clusterv3.Cluster{
		Name: "all", LbPolicy: clusterv3.Cluster_CLUSTER_PROVIDED, ConnectTimeout: durationpb.New(time.Second),
		ClusterDiscoveryType: extensionOf(t, "envoy.clusters.aggregate", &aggregatev3.ClusterConfig{Clusters: []string{"absent", "web", "logical"}}),
	}
	// One that can't be run keeps none of the others from running.
	many := named(t, edsCluster("many", "", clusterv3.Cluster_ROUND_ROBIN), clusterv3.Cluster_STRICT_DNS, "a.test:"+port(a))
	many.DnsResolvers = nameserver(netip.MustParseAddrPort("224.0.0.251:5353"))
	cp.start()
	cp.set(strict, extended, logical, all, many)
	p := startAgent(t, cp.node(webListener+`
listener "extended" {
  address = "127.0.0.1:0"
  cluster = "extended"
}
listener "logical" {
  address = "127.0.0.1:0"
  cluster = "logical"
}
listener "all" {
  address = "127.0.0.1:0"
  cluster = "all"
}
`))
	p.awaitReady()
	tr := startTraffic(t, p.listener("web"))
	tr.lands(t, a)
	for listener, want := range map[string]*backend{"extended": a, "logical": c, "all": a} {
		if who, err := ask(t.Context(), p.listener(listener)); err != nil || who != want.addr {
			t.Errorf("%s: led to %q with %v, want %s", listener, who, err, want.addr)
		}
	}
	l := p.cluster("logical")
	if ready := slices.Concat(l.ready, l.unready); len(ready) != 1 {
		t.Errorf("the logical cluster has %q, want one endpoint", ready)
	}

	// The name leads to where nobody listens: the next priority takes over.
	d.Stop()
	d.Start("local-ttl=60", "host-record=a.test,127.0.0.9", "host-record=c.test,127.0.0.1")
	eventually(t, "the new address is seen", func() bool {
		return slices.Equal(p.cluster("web").unready, []string{"127.0.0.9:" + port(a)}) && slices.Equal(p.cluster("web").ready, []string{b.addr})
	})
	tr.lands(t, b)
	all2 := startTraffic(t, p.listener("all"))
	all2.lands(t, b)

	// Then the next cluster of the aggregate. Connections are refused by b until its
	// checks have seen it, and by the cluster itself after that.
	tr.stop()
	tr.noErrors(t)
	b.kill()
	eventually(t, "the first cluster has nobody", func() bool { return len(p.cluster("web").ready) == 0 })
	all2.lands(t, c)
	all2.stop()
	if _, body := p.get("/clusters"); !strings.Contains(body, "all::gatehouse_aggregate::web") || !strings.Contains(body, "all::gatehouse_load::logical::priority=0 distance=0 endpoints=1 healthy=100%") {
		t.Errorf("/clusters:\n%s", body)
	}
	if got := cp.nacks(); got != nil {
		t.Errorf("NACKs: %q", got)
	}
	gatehouse := func(args ...string) string {
		out, err := exec.CommandContext(t.Context(), program(t, binary), append(args, "-http-addr", p.admin())...).CombinedOutput()
		if err != nil {
			t.Errorf("gatehouse %q: %v\n%s", args, err, out)
		}
		return string(out)
	}
	said := gatehouse("explain", "-cluster", "all")
	if !regexp.MustCompile(`cluster "all", which consists of \["absent" "web" "logical"\]`).MatchString(said) ||
		!regexp.MustCompile(`cluster "logical", priority 0, .*load 100%.* chosen`).MatchString(said) || !regexp.MustCompile(`1 +127\.0\.0\.\S+ +taken`).MatchString(said) {
		t.Errorf("explain:\n%s", said)
	}
	said = gatehouse("simulate", "-cluster", "all", "-add", "127.0.0.1:1")
	if !regexp.MustCompile(`logical 127\.0\.0\.\S+ +before +100\.00%`).MatchString(said) || !regexp.MustCompile(`web 127\.0\.0\.1:1 +before +0\.00%.*\nadded +after +\d\d\.`).MatchString(said) {
		t.Errorf("simulate:\n%s", said)
	}

	// A cluster that is gone leaves the aggregate.
	cp.set(logical, all)
	eventually(t, "the cluster is gone", func() bool { return p.cluster("web").state == "" })
	if who, err := ask(t.Context(), p.listener("all")); err != nil || who != c.addr {
		t.Errorf("without its first cluster the aggregate leads to %q with %v", who, err)
	}
}
