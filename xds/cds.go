package xds

import (
	"fmt"
	"slices"
	"strings"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"gatehouse.internal/xds/internal/core"
	"gatehouse.internal/xds/internal/guard"
	"gatehouse.internal/xds/internal/names"
)

// clusterFields tells what becomes of the fields of Cluster.
var clusterFields = map[string]use{
	"name": applied, "type": applied, "cluster_type": applied, "eds_cluster_config": applied, "connect_timeout": applied,
	"lb_policy": applied, "load_balancing_policy": applied, "ring_hash_lb_config": applied,
	"maglev_lb_config": applied, "least_request_lb_config": applied, "round_robin_lb_config": applied,
	"common_lb_config": applied, "load_assignment": applied, "health_checks": applied,
	"transport_socket": applied, "transport_socket_matches": applied, "lb_subset_config": applied, "circuit_breakers": applied,
	"upstream_bind_config": applied, "upstream_connection_options": applied, "ignore_health_on_host_removal": applied,
	"outlier_detection": applied, "lrs_server": applied,
	// Without a word in clusters of other types, and where cluster_type is a DnsCluster.
	"dns_refresh_rate": applied, "dns_jitter": applied, "dns_failure_refresh_rate": applied, "respect_dns_ttl": applied,
	"dns_lookup_family": applied, "dns_resolvers": applied, "use_tcp_for_dns_lookups": applied, "dns_resolution_config": applied,
	"typed_dns_resolver_config":                applied,
	"close_connections_on_host_health_failure": applied,

	"metadata": harmless, "alt_stat_name": harmless, "stats_matcher": harmless, "track_cluster_stats": harmless,
	"track_timeout_budgets": harmless, "per_connection_buffer_limit_bytes": harmless,
	"per_connection_buffer_high_watermark_timeout": harmless, "wait_for_warm_on_init": harmless,
	"max_requests_per_connection": harmless, "protocol_selection": harmless, "http_protocol_options": harmless,
	"http2_protocol_options": harmless, "common_http_protocol_options": harmless,
	"upstream_http_protocol_options": harmless, "typed_extension_protocol_options": harmless,
	"connection_pool_per_downstream_connection": harmless, "cleanup_interval": harmless,

	"original_dst_lb_config": ignored, "preconnect_policy": ignored, "queuing_policies": ignored, "lrs_report_endpoint_metrics": ignored,

	"filters": applied, // each by itself

	"transport_socket_matcher": refused, "upstream_config": refused,
}

// subsetFields tells what becomes of the fields of LbSubsetConfig: without
// selectors it has no effect.
var subsetFields = map[string]use{
	"subset_selectors": refused,

	"fallback_policy": harmless, "default_subset": harmless, "locality_weight_aware": harmless, "scale_locality_weight": harmless,
	"panic_mode_any": harmless, "list_as_any": harmless, "metadata_fallback_policy": harmless,
}

// clusterReader gathers what is found in a Cluster.
type clusterReader struct {
	c           Cluster
	exchanges   []string // ALPN protocols that are not spoken; see passive
	unsupported []string
}

func (r *clusterReader) refuse(format string, args ...any) {
	r.unsupported = append(r.unsupported, fmt.Sprintf(format, args...))
}

// fields sorts the fields of m that are set by the table.
func (r *clusterReader) fields(m proto.Message, path string, table map[string]use) {
	sortFields(m, table,
		func(name string) { r.c.Ignored = append(r.c.Ignored, path+name) },
		func(name string) { r.refuse("%s%s", path, name) })
}

// decodeCluster reads a CDS resource. It is a core.Type's Decode. Beside an
// error it returns a *Cluster with no more than the names, so that endpoints and
// secrets can be asked for in any case: some servers answer only to complete lists.
func decodeCluster(body []byte) (string, any, error) {
	var m clusterv3.Cluster
	if err := guard.Unmarshal(body, &m); err != nil {
		return guard.String(body, 1), nil, fmt.Errorf("not a Cluster: %w", err)
	}
	if m.GetName() == "" {
		return "", nil, fmt.Errorf("name: missing")
	}
	r := clusterReader{c: Cluster{
		Name: m.GetName(), ConnectTimeout: DefaultConnectTimeout, PanicThreshold: defaultPanic, CircuitBreakers: defaultBreakers,
	}}
	if m.GetClusterType() == nil && m.GetType() == clusterv3.Cluster_EDS {
		r.c.EDSName = m.GetEdsClusterConfig().GetServiceName()
		_, isNew, _ := names.Parse(m.GetName())
		switch missing := r.c.EDSName == ""; {
		case missing && isNew: // Source: gRFC A47
			return r.c.Name, &Cluster{Name: r.c.Name}, fmt.Errorf("eds_cluster_config.service_name: missing: a cluster with an xdstp name must have it")
		case missing:
			r.c.EDSName = m.GetName()
		case len(r.c.EDSName) > core.MaxName:
			return r.c.Name, &Cluster{Name: r.c.Name}, fmt.Errorf("eds_cluster_config.service_name: %d bytes: want at most %d", len(r.c.EDSName), core.MaxName)
		}
		if r.c.EDSName == "*" {
			r.refuse("service_name: \"*\" asks for all resources")
			r.c.EDSName = ""
		}
	}
	r.c.IgnoreHealthOnRemoval = m.GetIgnoreHealthOnHostRemoval()
	r.c.CloseOnHealthFailure = m.GetCloseConnectionsOnHostHealthFailure()
	if r.c.LoadReports = m.GetLrsServer().GetSelf() != nil; !r.c.LoadReports && m.GetLrsServer() != nil {
		r.refuse("lrs_server other than self")
	}
	partial := &Cluster{Name: r.c.Name, EDSName: r.c.EDSName}
	for _, read := range []func(*clusterv3.Cluster) error{r.transport, r.endpoints, r.sockets, r.breakers, r.common, r.policy, r.healthChecks, r.outlierDetection} {
		err := read(&m)
		if partial.Secrets = r.c.Secrets; err != nil {
			return r.c.Name, partial, err
		}
	}
	r.fields(&m, "", clusterFields)
	slices.Sort(r.c.Ignored)
	slices.Sort(r.c.Warnings)
	slices.Sort(r.unsupported)
	r.c.Unsupported = core.Clip(strings.Join(r.unsupported, ", "))
	return r.c.Name, &r.c, nil
}

// endpoints reads where the endpoints come from.
func (r *clusterReader) endpoints(m *clusterv3.Cluster) error {
	if t := m.GetClusterType(); t != nil {
		url := t.GetTypedConfig().GetTypeUrl()
		switch url[strings.LastIndexByte(url, '/')+1:] {
		case "envoy.extensions.clusters.dns.v3.DnsCluster":
			return r.dnsCluster(m)
		case "envoy.extensions.clusters.aggregate.v3.ClusterConfig":
			return r.aggregate(m)
		}
		r.refuse("cluster_type %q", t.GetName())
		return nil
	}
	switch m.GetType() {
	case clusterv3.Cluster_EDS:
		switch src := m.GetEdsClusterConfig().GetEdsConfig(); src.GetConfigSourceSpecifier().(type) {
		case *corev3.ConfigSource_Ads, *corev3.ConfigSource_Self:
		case nil:
			return fmt.Errorf("eds_cluster_config.eds_config: missing: want ads or self")
		default:
			r.refuse("eds_cluster_config.eds_config other than ads and self")
		}
	case clusterv3.Cluster_STATIC:
		a, err := readAssignment(m.GetLoadAssignment(), "load_assignment.", false)
		if err != nil {
			return err
		}
		r.c.Static, r.c.Duplicates = &a.set, a.dropped
		r.notes(a)
	case clusterv3.Cluster_STRICT_DNS, clusterv3.Cluster_LOGICAL_DNS:
		return r.oldDNS(m)
	default:
		r.refuse("type %s", m.GetType())
	}
	return nil
}

// notes takes over what is said of a load assignment in a cluster.
func (r *clusterReader) notes(a *assignment) {
	r.c.Ignored = append(r.c.Ignored, a.notes...)
	if a.staleAfter > 0 { // it is not sent on its own
		r.c.Ignored = append(r.c.Ignored, "load_assignment.policy.endpoint_stale_after")
	}
}

// transport reads what concerns the connections.
func (r *clusterReader) transport(m *clusterv3.Cluster) error {
	if d := m.GetConnectTimeout(); d != nil {
		timeout, err := positive(d)
		if err != nil {
			return fmt.Errorf("connect_timeout: %w", err)
		}
		r.c.ConnectTimeout = timeout
	}
	r.fields(m.GetLbSubsetConfig(), "lb_subset_config.", subsetFields)
	r.exchanges = exchanges(m.GetFilters())
	for i, f := range m.GetFilters() {
		at := fmt.Sprintf("filters[%d]", i)
		switch _, ok := passive(f.GetTypedConfig()); {
		case f.GetConfigDiscovery() != nil:
			r.refuse("%s.config_discovery", at)
		case ok:
			r.c.Ignored = append(r.c.Ignored, fmt.Sprintf("%s %q", at, f.GetName()))
		default:
			r.refuse("%s %q", at, f.GetName())
		}
	}
	return r.transportSockets(m)
}

// positive returns d, which must be above 0 and in range.
func positive(d *durationpb.Duration) (time.Duration, error) {
	if err := d.CheckValid(); err != nil {
		return 0, err
	}
	if d.AsDuration() <= 0 {
		return 0, fmt.Errorf("%s: want more than 0s", d.AsDuration())
	}
	return d.AsDuration(), nil
}
