//lint:file-ignore SA1019 control planes still use the fields that newer ones take the place of

package xds

import (
	"math"
	"net/netip"
	"strings"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	aggregatev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/clusters/aggregate/v3"
	commondnsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/clusters/common/dns/v3"
	dnsclusterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/clusters/dns/v3"
	applev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/network/dns_resolver/apple/v3"
	caresv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/network/dns_resolver/cares/v3"
	getaddrinfov3 "github.com/envoyproxy/go-control-plane/envoy/extensions/network/dns_resolver/getaddrinfo/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	"gatehouse.internal/lbcore"
)

// dnsCluster returns a cluster of that type with one host name.
func dnsCluster(typ clusterv3.Cluster_DiscoveryType, with ...mutate) *clusterv3.Cluster {
	c := &clusterv3.Cluster{
		Name: "c", ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: typ},
		LoadAssignment: cla("c", locality(0, lb(socket("web.test", 80)))),
	}
	for _, f := range with {
		f(c)
	}
	return c
}

// extension makes the type an extension.
func extension(t testing.TB, name string, config proto.Message) mutate {
	return func(c *clusterv3.Cluster) {
		c.ClusterDiscoveryType = &clusterv3.Cluster_ClusterType{ClusterType: &clusterv3.Cluster_CustomClusterType{
			Name: name, TypedConfig: anyOf(t, config),
		}}
	}
}

func typedResolver(t testing.TB, config proto.Message) *corev3.TypedExtensionConfig {
	return &corev3.TypedExtensionConfig{Name: "r", TypedConfig: anyOf(t, config)}
}

func seconds(n int64) *durationpb.Duration { return durationpb.New(time.Duration(n) * time.Second) }

// plainDNS is what a cluster says without a word.
func plainDNS() DNS {
	return DNS{
		Hosts: []Host{{Name: "web.test", Port: 80, Endpoint: lbcore.Endpoint{Weight: 1}}},
		Type:  "a+aaaa", Prefer: "aaaa", Refresh: 5 * time.Second, MinTTL: time.Second,
		MinBackoff: 5 * time.Second, MaxBackoff: 5 * time.Second,
	}
}

var compareDNS = cmp.Options{
	cmp.Comparer(func(a, b lbcore.Endpoint) bool { return a == b }),
	cmp.Comparer(func(a, b lbcore.SetPolicy) bool { return a == b }),
	cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b }),
}

func TestDNSCluster(t *testing.T) {
	strict, logical := clusterv3.Cluster_STRICT_DNS, clusterv3.Cluster_LOGICAL_DNS
	family := func(f clusterv3.Cluster_DnsLookupFamily) mutate {
		return func(c *clusterv3.Cluster) { c.DnsLookupFamily = f }
	}
	cluster := func(d *dnsclusterv3.DnsCluster) *clusterv3.Cluster {
		return dnsCluster(strict, extension(t, "envoy.clusters.dns", d), func(c *clusterv3.Cluster) {
			// All of these are those of another type.
			c.DnsRefreshRate, c.RespectDnsTtl, c.DnsJitter, c.DnsLookupFamily = seconds(99), true, seconds(99), clusterv3.Cluster_V6_ONLY
			c.DnsFailureRefreshRate = &clusterv3.Cluster_RefreshRate{BaseInterval: seconds(99)}
			c.UseTcpForDnsLookups, c.DnsResolvers = true, []*corev3.Address{socket("192.0.2.53", 53)}
		})
	}
	for _, tt := range []struct {
		name string
		in   *clusterv3.Cluster
		want func(d *DNS)
	}{
		{"strict", dnsCluster(strict), func(*DNS) {}},
		{"logical", dnsCluster(logical), func(d *DNS) { d.Logical = true }},
		{"v4", dnsCluster(strict, family(clusterv3.Cluster_V4_ONLY)), func(d *DNS) { d.Type, d.Prefer = "a", "" }},
		{"v6", dnsCluster(strict, family(clusterv3.Cluster_V6_ONLY)), func(d *DNS) { d.Type, d.Prefer = "aaaa", "" }},
		{"v4 preferred", dnsCluster(strict, family(clusterv3.Cluster_V4_PREFERRED)), func(d *DNS) { d.Prefer = "a" }},
		{"all", dnsCluster(strict, family(clusterv3.Cluster_ALL)), func(d *DNS) { d.Prefer = "" }},
		{"rates", dnsCluster(strict, func(c *clusterv3.Cluster) {
			c.DnsRefreshRate, c.RespectDnsTtl, c.DnsJitter = seconds(7), true, seconds(3)
			c.DnsFailureRefreshRate = &clusterv3.Cluster_RefreshRate{BaseInterval: seconds(2), MaxInterval: seconds(9)}
		}), func(d *DNS) {
			d.Refresh, d.RespectTTL, d.Jitter, d.MinBackoff, d.MaxBackoff = 7*time.Second, true, 3*time.Second, 2*time.Second, 9*time.Second
		}},
		{"the longest wait after failures", dnsCluster(strict, func(c *clusterv3.Cluster) {
			c.DnsFailureRefreshRate = &clusterv3.Cluster_RefreshRate{BaseInterval: seconds(2)}
		}), func(d *DNS) { d.MinBackoff, d.MaxBackoff = 2*time.Second, 20*time.Second }},
		{"without a busy loop", dnsCluster(strict, func(c *clusterv3.Cluster) { c.DnsRefreshRate = durationpb.New(time.Millisecond) }), func(d *DNS) {
			d.Refresh, d.MinBackoff, d.MaxBackoff = 10*time.Millisecond, 10*time.Millisecond, 10*time.Millisecond
		}},
		{"within time", dnsCluster(strict, func(c *clusterv3.Cluster) { c.DnsRefreshRate = seconds(315_000_000_000) }), func(d *DNS) {
			d.Refresh, d.MinBackoff, d.MaxBackoff = 24*time.Hour, 24*time.Hour, 24*time.Hour
		}},
		{"nameservers", dnsCluster(strict, func(c *clusterv3.Cluster) {
			c.UseTcpForDnsLookups, c.DnsResolvers = true, []*corev3.Address{socket("192.0.2.53", 0), socket("::ffff:192.0.2.54", 5353)}
		}), func(d *DNS) {
			d.TCP, d.Nameservers = true, []netip.AddrPort{netip.MustParseAddrPort("192.0.2.53:53"), netip.MustParseAddrPort("192.0.2.54:5353")}
		}},
		{"resolution config", dnsCluster(strict, func(c *clusterv3.Cluster) {
			c.UseTcpForDnsLookups = true // the other one counts
			c.DnsResolutionConfig = &corev3.DnsResolutionConfig{
				Resolvers:          []*corev3.Address{socket("192.0.2.53", 53)},
				DnsResolverOptions: &corev3.DnsResolverOptions{NoDefaultSearchDomain: true},
			}
		}), func(d *DNS) {
			d.Nameservers, d.Hosts[0].Name = []netip.AddrPort{netip.MustParseAddrPort("192.0.2.53:53")}, "web.test."
		}},
		{"hosts", dnsCluster(strict, func(c *clusterv3.Cluster) {
			in := locality(1, lb(socket("a.test", 80), weight(7), func(e *endpointv3.LbEndpoint) {
				e.HealthStatus = corev3.HealthStatus_DRAINING
				e.GetEndpoint().Hostname = "host"
				e.GetEndpoint().HealthCheckConfig = &endpointv3.Endpoint_HealthCheckConfig{PortValue: 81, Hostname: "check"}
			}), lb(socket("192.0.2.9", 90)), lb(socket("2001:db8::1", 90), func(e *endpointv3.LbEndpoint) {
				e.GetEndpoint().HealthCheckConfig = &endpointv3.Endpoint_HealthCheckConfig{Address: socket("192.0.2.8", 0)}
			}))
			in.Locality, in.LoadBalancingWeight = &corev3.Locality{Zone: "z"}, u32(5)
			c.LoadAssignment = cla("c", locality(0, lb(pipe("/s"))), in)
			c.LoadAssignment.Policy = &endpointv3.ClusterLoadAssignment_Policy{OverprovisioningFactor: u32(120)}
		}), func(d *DNS) {
			e := lbcore.Endpoint{Weight: 1, Priority: 1, Locality: lbcore.Locality{Zone: "z"}, LocalityWeight: 5}
			first, third := e, e
			first.Weight, first.Status, first.Hostname, first.Check.Hostname = 7, lbcore.StatusDraining, "host", "check"
			third.Check.Addr = lbcore.IPAddr(netip.MustParseAddrPort("192.0.2.8:90"))
			d.Hosts = []Host{{"a.test", 80, first, 81}, {"192.0.2.9", 90, e, 0}, {"2001:db8::1", 90, third, 0}}
			d.Policy.Overprovisioning = 120
		}},
		{"no hosts", dnsCluster(strict, func(c *clusterv3.Cluster) { c.LoadAssignment = nil }), func(d *DNS) { d.Hosts = nil }},
		{"extension", cluster(&dnsclusterv3.DnsCluster{}), func(*DNS) {}},
		{"extension in full", cluster(&dnsclusterv3.DnsCluster{
			DnsRefreshRate: seconds(7), DnsFailureRefreshRate: &dnsclusterv3.DnsCluster_RefreshRate{BaseInterval: seconds(2), MaxInterval: seconds(9)},
			RespectDnsTtl: true, DnsJitter: seconds(3), DnsLookupFamily: commondnsv3.DnsLookupFamily_V4_ONLY, AllAddressesInSingleEndpoint: true,
			DnsMinRefreshRate: seconds(4), TypedDnsResolverConfig: typedResolver(t, &caresv3.CaresDnsResolverConfig{
				Resolvers:          []*corev3.Address{socket("192.0.2.53", 53)},
				DnsResolverOptions: &corev3.DnsResolverOptions{UseTcpForDnsLookups: true},
			}),
		}), func(d *DNS) {
			d.Refresh, d.RespectTTL, d.Jitter, d.MinBackoff, d.MaxBackoff = 7*time.Second, true, 3*time.Second, 2*time.Second, 9*time.Second
			d.Type, d.Prefer, d.Logical, d.MinTTL, d.TCP = "a", "", true, 4*time.Second, true
			d.Nameservers = []netip.AddrPort{netip.MustParseAddrPort("192.0.2.53:53")}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, v, err := decodeCluster(marshal(t, tt.in))
			if err != nil {
				t.Fatal(err)
			}
			c, want := v.(*Cluster), plainDNS()
			tt.want(&want)
			if c.Unsupported != "" || c.EDSName != "" || c.Static != nil || c.DNS == nil {
				t.Fatalf("got %+v", c)
			}
			if d := cmp.Diff(want, *c.DNS, compareDNS); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
			if left := strings.Join(c.Ignored, " "); (left != "") != (tt.name == "hosts") {
				t.Errorf("ignored: %q", left)
			}
		})
	}
}

func TestResolver(t *testing.T) {
	for _, tt := range []struct {
		name                 string
		config               *corev3.TypedExtensionConfig
		ignored, unsupported string
		nameservers          int
	}{
		{"c-ares", typedResolver(t, &caresv3.CaresDnsResolverConfig{
			Resolvers: []*corev3.Address{socket("192.0.2.53", 53)}, UdpMaxQueries: u32(7), RotateNameservers: true,
		}), "", "", 1},
		{"c-ares with more", typedResolver(t, &caresv3.CaresDnsResolverConfig{
			Resolvers: []*corev3.Address{socket("192.0.2.53", 53)}, UseResolversAsFallback: true, FilterUnroutableFamilies: true, QueryTimeoutSeconds: u64(3), QueryTries: u32(2),
		}), "filter_unroutable_families query_timeout_seconds query_tries use_resolvers_as_fallback", "", 0},
		{"getaddrinfo", typedResolver(t, &getaddrinfov3.GetAddrInfoDnsResolverConfig{NumRetries: u32(3)}), "", "", 0},
		{"apple", typedResolver(t, &applev3.AppleDnsResolverConfig{}), "", `typed_dns_resolver_config "r"`, 0},
		{"nothing", &corev3.TypedExtensionConfig{Name: "x"}, "", `typed_dns_resolver_config "x"`, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, v, err := decodeCluster(marshal(t, dnsCluster(clusterv3.Cluster_STRICT_DNS, func(c *clusterv3.Cluster) {
				c.TypedDnsResolverConfig, c.UseTcpForDnsLookups = tt.config, true
			})))
			if err != nil {
				t.Fatal(err)
			}
			c := v.(*Cluster)
			ignored := strings.ReplaceAll(strings.Join(c.Ignored, " "), "typed_dns_resolver_config.typed_config.", "")
			if c.Unsupported != tt.unsupported || ignored != tt.ignored || len(c.DNS.Nameservers) != tt.nameservers || c.DNS.TCP {
				t.Errorf("unsupported %q, ignored %q, %+v", c.Unsupported, ignored, c.DNS)
			}
		})
	}
}

func TestBadDNSCluster(t *testing.T) {
	strict, logical := clusterv3.Cluster_STRICT_DNS, clusterv3.Cluster_LOGICAL_DNS
	at := func(a *corev3.Address) mutate {
		return func(c *clusterv3.Cluster) { c.LoadAssignment = cla("c", locality(0, lb(a))) }
	}
	resolverName := socket("a.test", 80)
	resolverName.GetSocketAddress().ResolverName = "x"
	many := func(n int) mutate {
		return func(c *clusterv3.Cluster) {
			c.LoadAssignment = cla("c", locality(0))
			for range n {
				c.LoadAssignment.Endpoints[0].LbEndpoints = append(c.LoadAssignment.Endpoints[0].LbEndpoints, lb(socket("a.test", 80)))
			}
		}
	}
	const name = "load_assignment.endpoints[0].lb_endpoints[0].endpoint.address.socket_address."
	for _, tt := range []struct {
		name string
		in   *clusterv3.Cluster
		want string // of the error, or after "unsupported: "
	}{
		{"no port", dnsCluster(strict, at(socket("a.test", 0))), name + "port_value: 0: want 1 to 65535"},
		{"no name", dnsCluster(strict, at(socket("", 80))), name + `address: "": want a host name`},
		{"the root", dnsCluster(strict, at(socket(".", 80))), name + `address: ".": want a host name`},
		{"a label too long", dnsCluster(strict, at(socket(strings.Repeat("x", 64)+".test", 80))), name + "address: "},
		{"a number", dnsCluster(strict, at(socket("300.0.0.1", 80))), name + "address: "},
		{"blanks", dnsCluster(strict, at(socket("a b.test", 80))), name + "address: "},
		{"an address with a dot", dnsCluster(strict, at(socket("192.0.2.1.", 80))), name + "address: "},
		{"a zone", dnsCluster(strict, at(socket("fe80::1%eth0", 80))), name + "address: "},
		{"resolver_name", dnsCluster(strict, at(resolverName)), name + "resolver_name: "},
		{"two of a logical one", dnsCluster(logical, many(2)), "load_assignment.endpoints: a logical DNS cluster has one locality with one endpoint"},
		{"none of a logical one", dnsCluster(logical, func(c *clusterv3.Cluster) { c.LoadAssignment = nil }), "load_assignment.endpoints: a logical"},
		{"too many", dnsCluster(strict, many(1025)), "unsupported: load_assignment: 1025 host names, more than 1024"},
		{"refresh rate", dnsCluster(strict, func(c *clusterv3.Cluster) { c.DnsRefreshRate = seconds(0) }), "dns_refresh_rate: 0s: want more than 0s"},
		{"jitter", dnsCluster(strict, func(c *clusterv3.Cluster) { c.DnsJitter = seconds(-1) }), "dns_jitter: want at least 0s"},
		{"failure rate", dnsCluster(strict, func(c *clusterv3.Cluster) {
			c.DnsFailureRefreshRate = &clusterv3.Cluster_RefreshRate{BaseInterval: seconds(2), MaxInterval: seconds(1)}
		}), "dns_failure_refresh_rate.max_interval: 1s: want at least base_interval, 2s"},
		{"failure rate without its base", dnsCluster(strict, func(c *clusterv3.Cluster) {
			c.DnsFailureRefreshRate = &clusterv3.Cluster_RefreshRate{MaxInterval: seconds(100)}
		}), "dns_failure_refresh_rate.base_interval: missing"},
		{"family", dnsCluster(strict, func(c *clusterv3.Cluster) { c.DnsLookupFamily = 77 }), "dns_lookup_family: 78 is not known"},
		{"family of the extension", dnsCluster(strict, extension(t, "d", &dnsclusterv3.DnsCluster{DnsLookupFamily: 77})), "cluster_type.typed_config.dns_lookup_family: 77 is not known"},
		{"least refresh rate", dnsCluster(strict, extension(t, "d", &dnsclusterv3.DnsCluster{DnsMinRefreshRate: durationpb.New(time.Millisecond)})),
			"cluster_type.typed_config.dns_min_refresh_rate: 1ms: want at least 1s"},
		{"nameserver's name", dnsCluster(strict, func(c *clusterv3.Cluster) { c.DnsResolvers = []*corev3.Address{socket("ns.test", 53)} }),
			`dns_resolvers[0].socket_address.address: "ns.test": want an IP address`},
		{"nameserver's port", dnsCluster(strict, func(c *clusterv3.Cluster) { c.DnsResolvers = []*corev3.Address{socket("192.0.2.1", math.MaxUint16+1)} }),
			"dns_resolvers[0].socket_address.port_value: 65536: want at most 65535"},
		{"nameserver of many", dnsCluster(strict, func(c *clusterv3.Cluster) { c.DnsResolvers = []*corev3.Address{socket("224.0.0.251", 5353)} }), "unsupported: dns_resolvers[0] 224.0.0.251, a multicast address"},
		{"nameserver of many, mapped", dnsCluster(strict, func(c *clusterv3.Cluster) { c.DnsResolvers = []*corev3.Address{socket("::ffff:224.0.0.251", 5353)} }), "unsupported: dns_resolvers[0] ::ffff:224.0.0.251, a multicast address"},
		{"nameserver's socket", dnsCluster(strict, func(c *clusterv3.Cluster) { c.DnsResolvers = []*corev3.Address{pipe("/x")} }), "unsupported: dns_resolvers[0] other than a socket address"},
		{"nameservers", dnsCluster(strict, func(c *clusterv3.Cluster) {
			for range 17 {
				c.DnsResolvers = append(c.DnsResolvers, socket("192.0.2.1", 53))
			}
		}), "unsupported: dns_resolvers: 17, more than 16"},
		{"not a DnsCluster", dnsCluster(strict, func(c *clusterv3.Cluster) {
			c.ClusterDiscoveryType = &clusterv3.Cluster_ClusterType{ClusterType: &clusterv3.Cluster_CustomClusterType{
				Name: "envoy.clusters.dns", TypedConfig: &anypb.Any{TypeUrl: "type.googleapis.com/envoy.extensions.clusters.dns.v3.DnsCluster", Value: []byte{0xff}},
			}}
		}), "cluster_type.typed_config: not a DnsCluster"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, v, err := decodeCluster(marshal(t, tt.in))
			got := "no mistake"
			if err != nil {
				got = err.Error()
			} else if c := v.(*Cluster); c.Unsupported != "" {
				got = "unsupported: " + c.Unsupported
			}
			if !strings.HasPrefix(got, tt.want) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestAggregate(t *testing.T) {
	aggregate := func(names ...string) *clusterv3.Cluster {
		return dnsCluster(0, extension(t, "envoy.clusters.aggregate", &aggregatev3.ClusterConfig{Clusters: names}),
			policyOf(clusterv3.Cluster_CLUSTER_PROVIDED), func(c *clusterv3.Cluster) { c.LoadAssignment = nil })
	}
	_, v, err := decodeCluster(marshal(t, aggregate("a", "b", "a")))
	if err != nil {
		t.Fatal(err)
	}
	if c := v.(*Cluster); c.Unsupported != "" || strings.Join(c.Aggregate, " ") != "a b a" || c.PanicThreshold != 50 || c.Policy != (Policy{}) {
		t.Errorf("got %+v", c)
	}
	for want, in := range map[string]*clusterv3.Cluster{
		"cluster_type.typed_config.clusters: empty":    aggregate(),
		"cluster_type.typed_config.clusters[1]: empty": aggregate("a", ""),
	} {
		if _, _, err := decodeCluster(marshal(t, in)); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	_, v, err = decodeCluster(marshal(t, aggregate(make129()...)))
	if err != nil || !strings.HasPrefix(v.(*Cluster).Unsupported, "cluster_type.typed_config.clusters: 129, more than 128") {
		t.Errorf("got %+v with %v", v, err)
	}
	_, v, err = decodeCluster(marshal(t, dnsCluster(0, extension(t, "envoy.clusters.redis", &anypb.Any{}))))
	if err != nil || v.(*Cluster).Unsupported != `cluster_type "envoy.clusters.redis"` {
		t.Errorf("got %+v with %v", v, err)
	}
}

func make129() (names []string) {
	for range 129 {
		names = append(names, "a")
	}
	return names
}
