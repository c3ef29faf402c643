//lint:file-ignore SA1019 control planes still use the fields that newer ones take the place of

package xds

import (
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	aggregatev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/clusters/aggregate/v3"
	dnsclusterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/clusters/dns/v3"
	maglevv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/maglev/v3"
	pickfirstv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/pick_first/v3"
	randomv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/random/v3"
	ringhashv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/ring_hash/v3"
	caresv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/network/dns_resolver/cares/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"gatehouse.internal/discovery/dns"
	"gatehouse.internal/internal/tlsconf/tlstest"
	"gatehouse.internal/lbcore"
	"gatehouse.internal/lbcore/maglev"
)

// checkLookups fails the test if package dns would refuse what a cluster says of
// look-ups: that would keep everything else from being applied.
func checkLookups(t *testing.T, d *DNS) {
	t.Helper()
	for _, h := range d.Hosts {
		if isAddress(h.Name) {
			continue
		}
		q := dns.Query{
			Name: h.Name, Port: h.Port, Type: dns.Type(d.Type), Prefer: dns.Type(d.Prefer), Logical: d.Logical, Jitter: d.Jitter, Nameservers: d.Nameservers,
			TCP: d.TCP, Refresh: d.Refresh, MinTTL: d.Refresh, MaxTTL: d.Refresh, MinBackoff: d.MinBackoff, MaxBackoff: d.MaxBackoff,
		}
		if err := q.Validate(); err != nil {
			t.Errorf("host %+v: %v", h, err)
		}
		if q.MinTTL, q.MaxTTL = d.MinTTL, 0; q.Validate() != nil {
			t.Errorf("by TTL: %v", q.Validate())
		}
	}
	if len(d.Hosts) > maxHosts || d.Refresh < leastRefresh || d.Refresh > mostRefresh || d.MaxBackoff > mostRefresh || d.Jitter > mostRefresh || d.MinTTL > mostRefresh {
		t.Errorf("out of bounds: %+v", d)
	}
}

func FuzzDecodeCluster(f *testing.F) {
	for _, m := range []mutate{
		func(*clusterv3.Cluster) {}, tcpCheck(), static(), policyOf(clusterv3.Cluster_RING_HASH),
		ringConfig(new(uint64(1)), new(uint64(2)), 1), leastConfig(&clusterv3.Cluster_LeastRequestLbConfig{ChoiceCount: u32(2)}),
		httpCheck(&corev3.HealthCheck_HttpHealthCheck{Path: "/", ExpectedStatuses: []*typev3.Int64Range{{Start: 200, End: 300}}}),
		typed(f, &pickfirstv3.PickFirst{}, &ringhashv3.RingHash{}), typed(f, &randomv3.Random{}),
		maglevTable(7), typed(f, &maglevv3.Maglev{TableSize: u64(7)}), typed(f, wrr(f, &randomv3.Random{LocalityLbConfig: weightedTyped()})),
		common(clusterv3.Cluster_MAGLEV, &commonLb{HealthyPanicThreshold: percentOf(30), ConsistentHashingLbConfig: &hashing{HashBalanceFactor: u32(125)}}),
		oldSlowStart(&clusterv3.Cluster_SlowStartConfig{SlowStartWindow: durationpb.New(time.Minute), MinWeightPercent: percentOf(5)}),
		outliers(&clusterv3.OutlierDetection{Interval: durationpb.New(time.Second), MaxEjectionPercent: u32(50), AlwaysEjectOneHost: wrapperspb.Bool(true)}),
		extension(f, "envoy.clusters.aggregate", &aggregatev3.ClusterConfig{Clusters: []string{"a", "b"}}),
		extension(f, "envoy.clusters.dns", &dnsclusterv3.DnsCluster{
			RespectDnsTtl: true, DnsJitter: seconds(1), DnsMinRefreshRate: seconds(2), AllAddressesInSingleEndpoint: true, DnsLookupFamily: 5,
			DnsFailureRefreshRate:  &dnsclusterv3.DnsCluster_RefreshRate{BaseInterval: seconds(1), MaxInterval: seconds(2)},
			TypedDnsResolverConfig: typedResolver(f, &caresv3.CaresDnsResolverConfig{Resolvers: []*corev3.Address{socket("192.0.2.53", 53)}}),
		}),
	} {
		f.Add(marshal(f, edsCluster("web", m)))
	}
	ca := tlstest.NewCA(f, "ca")
	up := upstreamTLS(ca, ca.Issue(f, tlstest.Leaf{}))
	f.Add(marshal(f, edsCluster("web", over(f, up))))
	f.Add(marshal(f, edsCluster("web", byMode(f, up))))
	up.CommonTlsContext.GetValidationContext().VerifyCertificateSpki = []string{"x"}
	f.Add(marshal(f, edsCluster("web", over(f, up))))
	f.Add(marshal(f, dnsCluster(clusterv3.Cluster_LOGICAL_DNS)))
	f.Add(marshal(f, dnsCluster(clusterv3.Cluster_STRICT_DNS, func(c *clusterv3.Cluster) {
		c.LoadAssignment = cla("c", locality(1, lb(socket("a.test", 80), weight(3)), lb(socket("::1", 80))))
		c.DnsResolvers = []*corev3.Address{socket("192.0.2.53", 0)}
		c.DnsRefreshRate = durationpb.New(time.Millisecond)
	})))
	f.Fuzz(func(t *testing.T, body []byte) {
		name, v, err := decodeCluster(body)
		if err != nil {
			return
		}
		c := v.(*Cluster)
		if name == "" || c.Name != name || c.ConnectTimeout <= 0 {
			t.Fatalf("%q: %+v", name, c)
		}
		if c.Unsupported != "" {
			return
		}
		kinds := 0
		for _, is := range []bool{c.EDSName != "", c.Static != nil, c.DNS != nil, len(c.Aggregate) > 0} {
			if is {
				kinds++
			}
		}
		if kinds != 1 || (c.Policy.Name == "") != (len(c.Aggregate) > 0) {
			t.Errorf("supported, but %+v", c)
		}
		for _, s := range append(c.TransportMatches, c.Transport) {
			if s.TLS != nil && (s.Unsupported != "" || s.TLS.Validate() != nil) {
				t.Errorf("transport socket %+v", s)
			}
		}
		if c.DNS != nil {
			checkLookups(t, c.DNS)
		}
		if size := c.Policy.TableSize; (c.Policy.Name == Maglev) != (size > 0) || (maglev.Config{TableSize: size}).Validate() != nil {
			t.Errorf("a table of %d", size)
		}
		if f := c.Policy.HashBalanceFactor; f > 0 && f < 100 || c.PanicThreshold > 100 {
			t.Errorf("percentages of %+v", c)
		}
		if s := c.SlowStart; s != (lbcore.SlowStart{}) && !(s.Window > 0 && s.Aggression > 0 && s.MinWeight >= 0 && s.MinWeight <= 1) {
			t.Errorf("slow start %+v", s)
		}
		if o := c.Outlier; o.Enabled && (o.Interval < time.Millisecond || o.BaseEjectionTime <= 0 || o.MaxEjectionTimeJitter < 0 || o.MaxEjectionPercent > 100) {
			t.Errorf("outlier detection %+v", o)
		}
		for _, h := range c.HealthChecks {
			if (h.TCP == nil) == (h.HTTP == nil) || h.Cadence.Validate() != nil {
				t.Errorf("check %+v", h)
			}
		}
	})
}
