package xds

import (
	"fmt"
	"slices"
	"strings"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	rawbufferv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/raw_buffer/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
)

// use is what becomes of a field that is set.
type use uint8

const (
	ignored  use = iota // listed in Ignored; the default
	applied             // read by this program
	harmless            // means nothing for plain TCP, or nothing here
	refused             // the cluster can't be run
)

// clusterFields tells what becomes of the fields of Cluster.
var clusterFields = map[string]use{
	"name": applied, "type": applied, "eds_cluster_config": applied, "connect_timeout": applied,
	"lb_policy": applied, "load_balancing_policy": applied, "ring_hash_lb_config": applied,
	"maglev_lb_config": applied, "least_request_lb_config": applied, "round_robin_lb_config": applied,
	"common_lb_config": applied, "load_assignment": applied, "health_checks": applied,
	"transport_socket": applied, "lb_subset_config": applied, "circuit_breakers": applied,
	"upstream_bind_config": applied, "upstream_connection_options": applied, "ignore_health_on_host_removal": applied,
	"outlier_detection": applied, "lrs_server": applied,

	"metadata": harmless, "alt_stat_name": harmless, "stats_matcher": harmless, "track_cluster_stats": harmless,
	"track_timeout_budgets": harmless, "per_connection_buffer_limit_bytes": harmless,
	"per_connection_buffer_high_watermark_timeout": harmless, "wait_for_warm_on_init": harmless,
	"max_requests_per_connection": harmless, "protocol_selection": harmless, "http_protocol_options": harmless,
	"http2_protocol_options": harmless, "common_http_protocol_options": harmless,
	"upstream_http_protocol_options": harmless, "typed_extension_protocol_options": harmless,
	"connection_pool_per_downstream_connection": harmless, "dns_refresh_rate": harmless, "dns_jitter": harmless,
	"dns_failure_refresh_rate": harmless, "respect_dns_ttl": harmless, "dns_lookup_family": harmless,
	"dns_resolvers": harmless, "use_tcp_for_dns_lookups": harmless, "dns_resolution_config": harmless,
	"typed_dns_resolver_config": harmless, "cleanup_interval": harmless,

	"cluster_type": refused, "transport_socket_matches": refused, "transport_socket_matcher": refused,
	"filters": refused, "upstream_config": refused,
}

// clusterReader gathers what is found in a Cluster.
type clusterReader struct {
	c           Cluster
	unsupported []string
}

func (r *clusterReader) refuse(format string, args ...any) {
	r.unsupported = append(r.unsupported, fmt.Sprintf(format, args...))
}

// fields sorts the fields of m that are set by the table.
func (r *clusterReader) fields(m proto.Message, path string, table map[string]use) {
	m.ProtoReflect().Range(func(fd protoreflect.FieldDescriptor, _ protoreflect.Value) bool {
		switch name := path + string(fd.Name()); table[string(fd.Name())] {
		case ignored:
			r.c.Ignored = append(r.c.Ignored, name)
		case refused:
			r.refuse("%s", name)
		}
		return true
	})
}

// decodeCluster reads a CDS resource. It is a core.Type's Decode. Beside an
// error it returns a *Cluster with no more than the names, so that endpoints
// can be asked for in any case: some servers answer only to complete lists.
func decodeCluster(body []byte) (string, any, error) {
	var m clusterv3.Cluster
	if err := proto.Unmarshal(body, &m); err != nil {
		return m.GetName(), nil, fmt.Errorf("not a Cluster: %w", err)
	}
	if m.GetName() == "" {
		return "", nil, fmt.Errorf("name: missing")
	}
	r := clusterReader{c: Cluster{
		Name: m.GetName(), ConnectTimeout: DefaultConnectTimeout, PanicThreshold: defaultPanic, CircuitBreakers: defaultBreakers,
	}}
	if m.GetClusterType() == nil && m.GetType() == clusterv3.Cluster_EDS {
		r.c.EDSName = m.GetEdsClusterConfig().GetServiceName()
		if r.c.EDSName == "" {
			r.c.EDSName = m.GetName()
		}
		if r.c.EDSName == "*" {
			r.refuse("service_name: \"*\" asks for all resources")
			r.c.EDSName = ""
		}
	}
	r.c.IgnoreHealthOnRemoval = m.GetIgnoreHealthOnHostRemoval()
	if r.c.LoadReports = m.GetLrsServer().GetSelf() != nil; !r.c.LoadReports && m.GetLrsServer() != nil {
		r.c.Ignored = append(r.c.Ignored, "lrs_server other than self")
	}
	partial := &Cluster{Name: r.c.Name, EDSName: r.c.EDSName}
	for _, read := range []func(*clusterv3.Cluster) error{r.endpoints, r.transport, r.sockets, r.breakers, r.common, r.policy, r.healthChecks, r.outlierDetection} {
		if err := read(&m); err != nil {
			return r.c.Name, partial, err
		}
	}
	r.fields(&m, "", clusterFields)
	slices.Sort(r.c.Ignored)
	slices.Sort(r.unsupported)
	r.c.Unsupported = strings.Join(r.unsupported, ", ")
	return r.c.Name, &r.c, nil
}

// endpoints reads where the endpoints come from.
func (r *clusterReader) endpoints(m *clusterv3.Cluster) error {
	if m.GetClusterType() != nil {
		return nil // refused by the table
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
		a, err := readAssignment(m.GetLoadAssignment(), "load_assignment.")
		if err != nil {
			return err
		}
		r.c.Static, r.c.Duplicates = &a.set, a.dropped
		r.c.Ignored = append(r.c.Ignored, a.notes...)
	default:
		r.refuse("type %s", m.GetType())
	}
	return nil
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
	if ts := m.GetTransportSocket(); ts != nil {
		raw := ts.GetName() == "envoy.transport_sockets.raw_buffer"
		if ts.GetTypedConfig() != nil {
			raw = ts.GetTypedConfig().MessageIs(new(rawbufferv3.RawBuffer))
		}
		if !raw {
			r.refuse("transport_socket %q", ts.GetName())
		}
	}
	if len(m.GetLbSubsetConfig().GetSubsetSelectors()) > 0 {
		r.refuse("lb_subset_config")
	}
	return nil
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
