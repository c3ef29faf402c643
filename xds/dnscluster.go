//lint:file-ignore SA1019 control planes still use the fields that newer ones take the place of

package xds

import (
	"cmp"
	"fmt"
	"math"
	"net/netip"
	"strings"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	commondnsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/clusters/common/dns/v3"
	dnsclusterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/clusters/dns/v3"
	caresv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/network/dns_resolver/cares/v3"
	getaddrinfov3 "github.com/envoyproxy/go-control-plane/envoy/extensions/network/dns_resolver/getaddrinfo/v3"
	dnsname "github.com/miekg/dns"
	"google.golang.org/protobuf/types/known/durationpb"

	"gatehouse.internal/lbcore"
	"gatehouse.internal/xds/internal/guard"
)

// DNS is the host names of a Cluster, and how they are looked up. Names and values
// are those of package discovery/dns, which reads them.
type DNS struct {
	// Hosts may be empty. An endpoint with an IP address is there too.
	Hosts []Host
	// Logical makes the addresses of the one host one endpoint.
	// Source: LOGICAL_DNS, or DnsCluster.all_addresses_in_single_endpoint.
	Logical bool
	// Type is a, aaaa or a+aaaa. Of a+aaaa, Prefer is the family that is taken
	// alone where there is any of it: a, aaaa, or empty for none.
	// Source: dns_lookup_family.
	Type, Prefer string
	// Refresh is the time between look-ups where TTLs don't say: 5 s if the cluster
	// doesn't, from 10 ms to 24 h, to which other values are clamped.
	// Source: dns_refresh_rate.
	Refresh time.Duration
	// RespectTTL has a TTL above 0 take the place of Refresh, but at least MinTTL: 1 s
	// if the cluster doesn't say, up to 24 h.
	// Source: respect_dns_ttl, dns_min_refresh_rate.
	RespectTTL bool
	MinTTL     time.Duration
	// Jitter bounds what is added at random to the time between look-ups; 0 is what
	// discovery/dns adds without a word. Source: dns_jitter.
	Jitter time.Duration
	// MinBackoff and MaxBackoff are the first and the longest wait after failures:
	// Refresh if the cluster doesn't say. Source: dns_failure_refresh_rate.
	MinBackoff, MaxBackoff time.Duration
	// TCP and Nameservers are as in dns.Query. Source: typed_dns_resolver_config.
	TCP         bool
	Nameservers []netip.AddrPort
	// Policy is that of the load assignment.
	Policy lbcore.SetPolicy
}

// Host is a name, or an IP address, with what its endpoints are: all but their
// address, and their host name where it is empty. CheckPort, if not 0, is probed in
// place of Port. Source: LbEndpoint.
type Host struct {
	Name      string
	Port      uint16
	Endpoint  lbcore.Endpoint
	CheckPort uint16
}

// The bounds of a DNS.
const (
	maxHosts       = 1024
	maxNameservers = 16
	leastRefresh   = 10 * time.Millisecond
	mostRefresh    = 24 * time.Hour

	defaultRefresh = 5 * time.Second
)

// What becomes of the fields of what configures look-ups. Those of
// CaresDnsResolverConfig that are harmless say how its own queries are made.
var (
	dnsClusterFields = map[string]use{
		"dns_refresh_rate": applied, "dns_failure_refresh_rate": applied, "respect_dns_ttl": applied, "dns_jitter": applied,
		"typed_dns_resolver_config": applied, "dns_lookup_family": applied, "all_addresses_in_single_endpoint": applied,
		"dns_min_refresh_rate": applied,
	}
	caresFields = map[string]use{
		"resolvers": applied, "dns_resolver_options": applied,
		"use_resolvers_as_fallback": ignored, "filter_unroutable_families": ignored, "query_timeout_seconds": ignored, "query_tries": ignored,
		"udp_max_queries": harmless, "rotate_nameservers": harmless, "edns0_max_payload_size": harmless,
		"max_udp_channel_duration": harmless, "reinit_channel_on_timeout": harmless, "qcache_max_ttl": harmless,
	}
	getaddrinfoFields = map[string]use{"num_retries": harmless, "num_resolver_threads": harmless}
)

// lookups is what Cluster and DnsCluster share.
type lookups interface {
	GetDnsRefreshRate() *durationpb.Duration
	GetRespectDnsTtl() bool
	GetDnsJitter() *durationpb.Duration
	GetTypedDnsResolverConfig() *corev3.TypedExtensionConfig
}

// failureRate is what their dns_failure_refresh_rate share.
type failureRate interface {
	GetBaseInterval() *durationpb.Duration
	GetMaxInterval() *durationpb.Duration
}

// oldDNS reads a cluster whose type is STRICT_DNS or LOGICAL_DNS.
func (r *clusterReader) oldDNS(m *clusterv3.Cluster) error {
	d := &DNS{Logical: m.GetType() == clusterv3.Cluster_LOGICAL_DNS, MinTTL: time.Second}
	family := commondnsv3.DnsLookupFamily(m.GetDnsLookupFamily() + 1) // the other one begins with "unspecified"
	return r.dns(m, d, m, m.GetDnsFailureRefreshRate(), family, "")
}

// dnsCluster reads a cluster of the extension envoy.clusters.dns.
func (r *clusterReader) dnsCluster(m *clusterv3.Cluster) error {
	const path = "cluster_type.typed_config."
	var c dnsclusterv3.DnsCluster
	if err := guard.Unmarshal(m.GetClusterType().GetTypedConfig().GetValue(), &c); err != nil {
		return fmt.Errorf("%s: not a DnsCluster: %w", strings.TrimSuffix(path, "."), err)
	}
	r.fields(&c, path, dnsClusterFields)
	d := &DNS{Logical: c.GetAllAddressesInSingleEndpoint(), MinTTL: time.Second}
	if t := c.GetDnsMinRefreshRate(); t != nil {
		v, err := positive(t)
		if err == nil && v < time.Second {
			err = fmt.Errorf("%s: want at least 1s", v)
		}
		if err != nil {
			return fmt.Errorf("%sdns_min_refresh_rate: %w", path, err)
		}
		d.MinTTL = min(v, mostRefresh)
	}
	return r.dns(m, d, &c, c.GetDnsFailureRefreshRate(), cmp.Or(c.GetDnsLookupFamily(), commondnsv3.DnsLookupFamily_AUTO), path)
}

// dns reads the names, and what l says of their look-ups.
func (r *clusterReader) dns(m *clusterv3.Cluster, d *DNS, l lookups, failures failureRate, family commondnsv3.DnsLookupFamily, path string) error {
	switch family {
	case commondnsv3.DnsLookupFamily_AUTO:
		d.Type, d.Prefer = "a+aaaa", "aaaa"
	case commondnsv3.DnsLookupFamily_V4_ONLY:
		d.Type = "a"
	case commondnsv3.DnsLookupFamily_V6_ONLY:
		d.Type = "aaaa"
	case commondnsv3.DnsLookupFamily_V4_PREFERRED:
		d.Type, d.Prefer = "a+aaaa", "a"
	case commondnsv3.DnsLookupFamily_ALL:
		d.Type = "a+aaaa"
	default:
		return fmt.Errorf("%sdns_lookup_family: %d is not known", path, family)
	}
	rate := func(name string, v *durationpb.Duration, def time.Duration) (time.Duration, error) {
		if v == nil {
			return def, nil
		}
		t, err := positive(v)
		if err != nil {
			return 0, fmt.Errorf("%s%s: %w", path, name, err)
		}
		return min(max(t, leastRefresh), mostRefresh), nil
	}
	var err error
	if d.Refresh, err = rate("dns_refresh_rate", l.GetDnsRefreshRate(), defaultRefresh); err != nil {
		return err
	}
	if d.MinBackoff, err = rate("dns_failure_refresh_rate.base_interval", failures.GetBaseInterval(), d.Refresh); err != nil {
		return err
	}
	most := d.MinBackoff
	if failures.GetBaseInterval() != nil {
		most = min(10*d.MinBackoff, mostRefresh)
	}
	if d.MaxBackoff, err = rate("dns_failure_refresh_rate.max_interval", failures.GetMaxInterval(), most); err != nil {
		return err
	}
	switch {
	case failures.GetMaxInterval() != nil && failures.GetBaseInterval() == nil:
		return fmt.Errorf("%sdns_failure_refresh_rate.base_interval: missing", path)
	case d.MaxBackoff < d.MinBackoff:
		return fmt.Errorf("%sdns_failure_refresh_rate.max_interval: %s: want at least base_interval, %s", path, d.MaxBackoff, d.MinBackoff)
	}
	if j := l.GetDnsJitter(); j != nil {
		if err := j.CheckValid(); err != nil || j.AsDuration() < 0 {
			return fmt.Errorf("%sdns_jitter: want at least 0s", path)
		}
		d.Jitter = min(j.AsDuration(), mostRefresh)
	}
	d.RespectTTL = l.GetRespectDnsTtl()
	search, err := r.resolver(m, d, l, path)
	if err != nil {
		return err
	}

	a, err := readAssignment(m.GetLoadAssignment(), "load_assignment.", true)
	if err != nil {
		return err
	}
	if n := len(m.GetLoadAssignment().GetEndpoints()); d.Logical && (n != 1 || len(m.GetLoadAssignment().GetEndpoints()[0].GetLbEndpoints()) != 1) {
		return fmt.Errorf("load_assignment.endpoints: a logical DNS cluster has one locality with one endpoint")
	}
	if len(a.hosts) > maxHosts {
		r.refuse("load_assignment: %d host names, more than %d", len(a.hosts), maxHosts)
		return nil
	}
	if !search {
		for i := range a.hosts {
			if h := &a.hosts[i]; !isAddress(h.Name) {
				h.Name = dnsname.Fqdn(h.Name)
			}
		}
	}
	d.Hosts, d.Policy = a.hosts, a.set.Policy()
	r.notes(a)
	r.c.DNS = d
	return nil
}

// resolver reads who is asked, and reports whether search domains count. Each of
// the three places for it is read only if those after it say nothing, as in Envoy.
func (r *clusterReader) resolver(m *clusterv3.Cluster, d *DNS, l lookups, path string) (search bool, err error) {
	var resolvers []*corev3.Address
	at := path + "typed_dns_resolver_config.typed_config."
	config := l.GetTypedDnsResolverConfig()
	url := config.GetTypedConfig().GetTypeUrl()
	var options *corev3.DnsResolverOptions
	switch name := url[strings.LastIndexByte(url, '/')+1:]; {
	case name == "envoy.extensions.network.dns_resolver.cares.v3.CaresDnsResolverConfig":
		var c caresv3.CaresDnsResolverConfig
		if err := guard.Unmarshal(config.GetTypedConfig().GetValue(), &c); err != nil {
			return false, fmt.Errorf("%s: %w", strings.TrimSuffix(at, "."), err)
		}
		r.fields(&c, at, caresFields)
		options, resolvers = c.GetDnsResolverOptions(), c.GetResolvers()
		if c.GetUseResolversAsFallback() { // it is listed as not applied, and the system's nameservers are asked
			resolvers = nil
		}
	case name == "envoy.extensions.network.dns_resolver.getaddrinfo.v3.GetAddrInfoDnsResolverConfig":
		var c getaddrinfov3.GetAddrInfoDnsResolverConfig
		if err := guard.Unmarshal(config.GetTypedConfig().GetValue(), &c); err != nil {
			return false, fmt.Errorf("%s: %w", strings.TrimSuffix(at, "."), err)
		}
		r.fields(&c, at, getaddrinfoFields)
	case config != nil:
		r.refuse("%styped_dns_resolver_config %q", path, config.GetName())
		return true, nil
	case path != "": // a DnsCluster ignores the others
	case m.GetDnsResolutionConfig() != nil:
		at = "dns_resolution_config."
		options, resolvers = m.GetDnsResolutionConfig().GetDnsResolverOptions(), m.GetDnsResolutionConfig().GetResolvers()
	default:
		at = "dns_"
		resolvers = m.GetDnsResolvers()
		d.TCP = m.GetUseTcpForDnsLookups()
	}
	if options != nil {
		d.TCP = options.GetUseTcpForDnsLookups()
	}
	if len(resolvers) > maxNameservers {
		r.refuse("%sresolvers: %d, more than %d", at, len(resolvers), maxNameservers)
		return true, nil
	}
	for i, a := range resolvers {
		s := a.GetSocketAddress()
		ip, err := netip.ParseAddr(s.GetAddress())
		switch {
		case s == nil:
			r.refuse("%sresolvers[%d] other than a socket address", at, i)
		case err != nil || ip.Zone() != "":
			return false, fmt.Errorf("%sresolvers[%d].socket_address.address: %q: want an IP address", at, i, s.GetAddress())
		case ip.Unmap().IsMulticast(): // discovery/dns does not ask these
			r.refuse("%sresolvers[%d] %s, a multicast address", at, i, ip)
		case s.GetPortValue() > math.MaxUint16:
			return false, fmt.Errorf("%sresolvers[%d].socket_address.port_value: %d: want at most %d", at, i, s.GetPortValue(), math.MaxUint16)
		default:
			d.Nameservers = append(d.Nameservers, netip.AddrPortFrom(ip.Unmap(), cmp.Or(uint16(s.GetPortValue()), 53)))
		}
	}
	return !options.GetNoDefaultSearchDomain(), nil
}

func isAddress(host string) bool {
	_, err := netip.ParseAddr(host)
	return err == nil
}

// readHost is readEndpoint for an endpoint that may have a name in place of an
// address.
func readHost(lb *endpointv3.LbEndpoint) (h Host, leftOut string, err error) {
	if name := lb.GetEndpointName(); name != "" {
		return h, fmt.Sprintf("endpoint_name %q refers to another part", name), nil
	}
	ep := lb.GetEndpoint()
	if ep == nil {
		return h, "", fmt.Errorf("endpoint: missing")
	}
	s := ep.GetAddress().GetSocketAddress()
	if s == nil {
		_, leftOut, err = readAddress(ep.GetAddress(), false)
		if err != nil {
			return h, "", fmt.Errorf("endpoint.address%w", err)
		}
		return h, cmp.Or(leftOut, "no name"), nil
	}
	const at = "endpoint.address.socket_address."
	_, named := s.GetPortSpecifier().(*corev3.SocketAddress_NamedPort)
	ip, err := netip.ParseAddr(s.GetAddress())
	switch {
	case s.GetResolverName() != "":
		return h, "", fmt.Errorf(at + "resolver_name: a DNS cluster has none")
	case err == nil && ip.Zone() != "", err != nil && !isHostName(s.GetAddress()):
		return h, "", fmt.Errorf(at+"address: %q: want a host name or an IP address", s.GetAddress())
	case s.GetProtocol() != corev3.SocketAddress_TCP:
		return h, "protocol " + s.GetProtocol().String(), nil
	case s.GetNetworkNamespaceFilepath() != "":
		return h, "network_namespace_filepath", nil
	case named:
		return h, fmt.Sprintf("named_port %q", s.GetNamedPort()), nil
	case s.GetPortValue() == 0 || s.GetPortValue() > math.MaxUint16:
		return h, "", fmt.Errorf(at+"port_value: %d: want 1 to %d", s.GetPortValue(), math.MaxUint16)
	}
	h = Host{Name: s.GetAddress(), Port: uint16(s.GetPortValue()), Endpoint: readAttributes(lb)}
	resolved := lbcore.IPAddr(netip.AddrPortFrom(netip.IPv4Unspecified(), h.Port)) // an address in its place
	if h.Endpoint.Check, leftOut, err = readCheck(ep.GetHealthCheckConfig(), resolved); err != nil {
		return h, "", fmt.Errorf("endpoint.health_check_config.%w", err)
	}
	if ep.GetHealthCheckConfig().GetAddress() == nil {
		h.CheckPort, h.Endpoint.Check.Addr = h.Endpoint.Check.Addr.AddrPort().Port(), lbcore.Addr{}
	}
	return h, leftOut, nil
}

// isHostName reports whether DNS can be asked for a name. One that ends in a number
// was meant to be an address. Source: the rules of discovery/dns; RFC 3696, 2.
func isHostName(s string) bool {
	visible := !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r >= 0x7f })
	_, ok := dnsname.IsDomainName(dnsname.Fqdn(s))
	last := strings.TrimSuffix(s, ".")
	last = last[strings.LastIndexByte(last, '.')+1:]
	number := strings.Trim(last, "0123456789") == ""
	return visible && ok && !number && !strings.ContainsAny(s, ":%/") // nor one of IPv6
}
