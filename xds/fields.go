package xds

import (
	"maps"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// use is what becomes of a field that is set.
type use uint8

const (
	ignored  use = iota // listed in Ignored
	applied             // read by this program
	harmless            // means nothing for plain TCP, or nothing here
	refused             // the cluster or filter chain can't be run
	leftOut             // the endpoint is left out, counted and named
	invalid             // the resource is refused with a NACK, as by Envoy
)

// sortFields calls ignore and refuse with the fields of m that the table says this
// of. What the table lacks is ignored.
func sortFields(m proto.Message, table map[string]use, ignore, refuse func(name string)) {
	m.ProtoReflect().Range(func(fd protoreflect.FieldDescriptor, _ protoreflect.Value) bool {
		switch name := string(fd.Name()); table[name] {
		case ignored:
			ignore(name)
		case refused:
			refuse(name)
		}
		return true
	})
}

// union returns the fields of several tables.
func union(tables ...map[string]use) map[string]use {
	all := make(map[string]use)
	for _, t := range tables {
		maps.Copy(all, t)
	}
	return all
}

// allOf returns a table with one use for all fields.
func allOf(u use, fields ...string) map[string]use {
	t := make(map[string]use, len(fields))
	for _, f := range fields {
		t[f] = u
	}
	return t
}

// fieldsOf has what becomes of each field of Cluster, ClusterLoadAssignment, Listener
// and Secret, of filters and transport sockets, and of the messages in their applied
// fields, all the way down; what lies in another field shares its fate. The README has it as a table, and a test
// fails for fields of newer protos until they are decided about.
var fieldsOf = map[protoreflect.FullName]map[string]use{
	"envoy.extensions.filters.network.rbac.v3.RBAC":                                        rbacFields,
	"envoy.config.rbac.v3.RBAC":                                                            rulesFields,
	"envoy.config.rbac.v3.Policy":                                                          policyOfRBAC,
	"envoy.config.rbac.v3.Permission":                                                      permissionFields,
	"envoy.config.rbac.v3.Permission.Set":                                                  allOf(applied, "rules"),
	"envoy.config.rbac.v3.Principal":                                                       principalFields,
	"envoy.config.rbac.v3.Principal.Set":                                                   allOf(applied, "ids"),
	"envoy.config.rbac.v3.Principal.Authenticated":                                         allOf(applied, "principal_name"),
	"envoy.type.v3.Int32Range":                                                             allOf(applied, "start", "end"),
	"envoy.extensions.filters.listener.original_dst.v3.OriginalDst":                        {},
	"envoy.extensions.filters.listener.http_inspector.v3.HttpInspector":                    {},
	"envoy.extensions.filters.listener.tls_inspector.v3.TlsInspector":                      tlsInspectorFields,
	"envoy.extensions.filters.listener.proxy_protocol.v3.ProxyProtocol":                    proxyProtocolFields,
	tlsPrefix + "Secret":                                                                   secretFields,
	tlsPrefix + "DownstreamTlsContext":                                                     downstreamFields,
	tlsPrefix + "UpstreamTlsContext":                                                       upstreamFields,
	tlsPrefix + "CommonTlsContext":                                                         commonTLSFields,
	tlsPrefix + "CommonTlsContext.CombinedCertificateValidationContext":                    combinedFields,
	tlsPrefix + "SdsSecretConfig":                                                          allOf(applied, "name", "sds_config"),
	tlsPrefix + "TlsParameters":                                                            tlsParamsFields,
	tlsPrefix + "TlsCertificate":                                                           certificateFields,
	tlsPrefix + "CertificateValidationContext":                                             validationFields,
	tlsPrefix + "CertificateValidationContext.SystemRootCerts":                             {},
	tlsPrefix + "SubjectAltNameMatcher":                                                    union(allOf(applied, "san_type", "matcher"), allOf(harmless, "oid")),
	"envoy.config.core.v3.DataSource":                                                      dataFields,
	"envoy.type.matcher.v3.StringMatcher":                                                  matcherFields,
	"envoy.type.matcher.v3.RegexMatcher":                                                   union(allOf(applied, "regex"), allOf(harmless, "google_re2")),
	"envoy.config.cluster.v3.Cluster":                                                      clusterFields,
	"envoy.config.cluster.v3.Cluster.CustomClusterType":                                    allOf(applied, "name", "typed_config"),
	"envoy.config.cluster.v3.Cluster.EdsClusterConfig":                                     allOf(applied, "eds_config", "service_name"),
	"envoy.config.cluster.v3.Cluster.RefreshRate":                                          allOf(applied, "base_interval", "max_interval"),
	"envoy.config.cluster.v3.Cluster.CommonLbConfig":                                       commonFields,
	"envoy.config.cluster.v3.Cluster.CommonLbConfig.LocalityWeightedLbConfig":              {},
	"envoy.config.cluster.v3.Cluster.CommonLbConfig.ConsistentHashingLbConfig":             hashingFields,
	"envoy.config.cluster.v3.Cluster.LbSubsetConfig":                                       subsetFields,
	"envoy.config.cluster.v3.Cluster.RingHashLbConfig":                                     policyFields,
	"envoy.config.cluster.v3.Cluster.MaglevLbConfig":                                       policyFields,
	"envoy.config.cluster.v3.Cluster.LeastRequestLbConfig":                                 policyFields,
	"envoy.config.cluster.v3.Cluster.RoundRobinLbConfig":                                   policyFields,
	"envoy.config.cluster.v3.Cluster.SlowStartConfig":                                      allOf(applied, "slow_start_window", "aggression", "min_weight_percent"),
	"envoy.config.cluster.v3.Cluster.TransportSocketMatch":                                 transportMatchFields,
	"envoy.config.cluster.v3.LoadBalancingPolicy":                                          allOf(applied, "policies"),
	"envoy.config.cluster.v3.LoadBalancingPolicy.Policy":                                   allOf(applied, "typed_extension_config"),
	"envoy.config.cluster.v3.CircuitBreakers":                                              allOf(applied, "thresholds", "per_host_thresholds"),
	"envoy.config.cluster.v3.CircuitBreakers.Thresholds":                                   thresholdFields,
	"envoy.config.cluster.v3.OutlierDetection":                                             union(outlierFields, splitFields, unsplitFields),
	"envoy.config.cluster.v3.UpstreamConnectionOptions":                                    connectionFields,
	"envoy.config.cluster.v3.UpstreamConnectionOptions.HappyEyeballsConfig":                allOf(applied, "first_address_family_version", "first_address_family_count"),
	"envoy.config.core.v3.ConfigSource":                                                    sourceFields,
	"envoy.config.core.v3.AggregatedConfigSource":                                          {},
	"envoy.config.core.v3.SelfConfigSource":                                                allOf(harmless, "transport_api_version"),
	"envoy.config.core.v3.HealthCheck":                                                     checkFields,
	"envoy.config.core.v3.HealthCheck.TlsOptions":                                          allOf(applied, "alpn_protocols"),
	"envoy.config.core.v3.HealthCheck.TcpHealthCheck":                                      tcpCheckFields,
	"envoy.config.core.v3.HealthCheck.HttpHealthCheck":                                     httpCheckFields,
	"envoy.config.core.v3.HealthCheck.GrpcHealthCheck":                                     grpcCheckFields,
	"envoy.config.core.v3.HealthCheck.Payload":                                             allOf(applied, "text", "binary"),
	"envoy.config.core.v3.ProxyProtocolConfig":                                             union(allOf(applied, "version"), allOf(harmless, "pass_through_tlvs", "added_tlvs")),
	"envoy.config.core.v3.HeaderValueOption":                                               union(allOf(applied, "header"), allOf(harmless, "append", "append_action", "keep_empty_value")),
	"envoy.config.core.v3.HeaderValue":                                                     allOf(applied, "key", "value", "raw_value"),
	"envoy.config.core.v3.BindConfig":                                                      bindFields,
	"envoy.config.core.v3.ExtraSourceAddress":                                              union(allOf(applied, "address"), allOf(refused, "socket_options")),
	"envoy.config.core.v3.TcpKeepalive":                                                    allOf(applied, "keepalive_probes", "keepalive_time", "keepalive_interval"),
	"envoy.config.core.v3.TransportSocket":                                                 allOf(applied, "name", "typed_config"),
	"envoy.config.core.v3.TypedExtensionConfig":                                            allOf(applied, "name", "typed_config"),
	"envoy.config.core.v3.RuntimeDouble":                                                   union(allOf(applied, "default_value"), allOf(harmless, "runtime_key")),
	"envoy.config.core.v3.DnsResolutionConfig":                                             allOf(applied, "resolvers", "dns_resolver_options"),
	"envoy.config.core.v3.DnsResolverOptions":                                              allOf(applied, "use_tcp_for_dns_lookups", "no_default_search_domain"),
	"envoy.config.core.v3.Address":                                                         union(allOf(applied, "socket_address", "pipe"), allOf(leftOut, "envoy_internal_address")),
	"envoy.config.core.v3.SocketAddress":                                                   socketFields,
	"envoy.config.core.v3.Pipe":                                                            union(allOf(applied, "path"), allOf(harmless, "mode")),
	"envoy.config.core.v3.Locality":                                                        allOf(applied, "region", "zone", "sub_zone"),
	"envoy.config.core.v3.Metadata":                                                        union(allOf(applied, "filter_metadata"), allOf(harmless, "typed_filter_metadata")),
	"envoy.config.core.v3.CidrRange":                                                       allOf(applied, "address_prefix", "prefix_len"),
	"envoy.type.v3.Percent":                                                                allOf(applied, "value"),
	"envoy.type.v3.FractionalPercent":                                                      allOf(applied, "numerator", "denominator"),
	"envoy.type.v3.Int64Range":                                                             allOf(applied, "start", "end"),
	"envoy.type.v3.HashPolicy":                                                             union(allOf(applied, "source_ip"), allOf(refused, "filter_state")),
	"envoy.type.v3.HashPolicy.SourceIp":                                                    {},
	"envoy.config.endpoint.v3.ClusterLoadAssignment":                                       assignmentFields,
	"envoy.config.endpoint.v3.ClusterLoadAssignment.Policy":                                allOf(applied, "drop_overloads", "overprovisioning_factor", "endpoint_stale_after", "weighted_priority_health"),
	"envoy.config.endpoint.v3.ClusterLoadAssignment.Policy.DropOverload":                   allOf(applied, "category", "drop_percentage"),
	"envoy.config.endpoint.v3.LocalityLbEndpoints":                                         localityEndpointsFields,
	"envoy.config.endpoint.v3.LbEndpoint":                                                  union(allOf(applied, "endpoint", "health_status", "metadata", "load_balancing_weight"), allOf(leftOut, "endpoint_name")),
	"envoy.config.endpoint.v3.Endpoint":                                                    union(allOf(applied, "address", "health_check_config", "hostname", "additional_addresses"), allOf(harmless, "observability_name")),
	"envoy.config.endpoint.v3.Endpoint.HealthCheckConfig":                                  allOf(applied, "port_value", "hostname", "address", "disable_active_health_check"),
	"envoy.config.endpoint.v3.Endpoint.AdditionalAddress":                                  allOf(applied, "address"),
	"envoy.config.listener.v3.Listener":                                                    listenerFields,
	"envoy.config.listener.v3.Listener.DeprecatedV1":                                       allOf(applied, "bind_to_port"),
	"envoy.config.accesslog.v3.AccessLog":                                                  union(allOf(applied, "typed_config", "filter"), allOf(harmless, "name")),
	"envoy.config.accesslog.v3.AccessLogFilter":                                            logFilterFields,
	"envoy.config.accesslog.v3.RuntimeFilter":                                              union(allOf(applied, "percent_sampled"), allOf(harmless, "runtime_key", "use_independent_randomness")),
	"envoy.config.accesslog.v3.DurationFilter":                                             allOf(applied, "comparison"),
	"envoy.config.accesslog.v3.NotHealthCheckFilter":                                       {},
	"envoy.config.accesslog.v3.ComparisonFilter":                                           allOf(applied, "op", "value"),
	"envoy.config.accesslog.v3.ResponseFlagFilter":                                         allOf(applied, "flags"),
	"envoy.config.core.v3.RuntimeUInt32":                                                   union(allOf(applied, "default_value"), allOf(harmless, "runtime_key")),
	"envoy.config.listener.v3.AdditionalAddress":                                           additionalAddressFields,
	"envoy.config.listener.v3.FilterChain":                                                 chainFields,
	"envoy.config.listener.v3.FilterChainMatch":                                            filterChainMatchFields,
	"envoy.config.cluster.v3.Filter":                                                       union(allOf(applied, "name", "typed_config"), allOf(refused, "config_discovery")),
	"envoy.config.listener.v3.Filter":                                                      union(allOf(applied, "name", "typed_config"), allOf(refused, "config_discovery")),
	"envoy.config.listener.v3.ListenerFilter":                                              union(allOf(applied, "name", "typed_config"), allOf(refused, "config_discovery", "filter_disabled")),
	"envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy":                               tcpProxyFields,
	"envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy.WeightedCluster":               allOf(applied, "clusters"),
	"envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy.WeightedCluster.ClusterWeight": clusterWeightFields,
}

const tlsPrefix = "envoy.extensions.transport_sockets.tls.v3."

// dataFields tells what becomes of the fields of a DataSource. Files are watched anyway.
var dataFields = union(
	allOf(applied, "filename", "inline_bytes", "inline_string"),
	allOf(refused, "environment_variable"),
	allOf(harmless, "watched_directory"),
)

// matcherFields tells what becomes of the fields of a StringMatcher.
var matcherFields = union(
	allOf(applied, "exact", "prefix", "suffix", "contains", "safe_regex", "ignore_case"),
	allOf(refused, "custom"),
)

// sourceFields tells what becomes of the fields of a ConfigSource. Others than ads
// and self are other servers, or files. How long the first answer may take is the
// client's own setting.
var sourceFields = union(
	allOf(applied, "ads", "self"),
	allOf(refused, "path", "path_config_source", "api_config_source"),
	allOf(harmless, "initial_fetch_timeout", "resource_api_version", "authorities"),
)

// socketFields tells what becomes of the fields of a SocketAddress; what is refused
// of the address of an endpoint has the endpoint left out.
var socketFields = union(
	allOf(applied, "protocol", "address", "port_value", "resolver_name"),
	allOf(leftOut, "named_port", "network_namespace_filepath"),
	allOf(harmless, "ipv4_compat"),
)

// logFilterFields tells what becomes of the filters of access logs; one that is ignored
// has the log left out.
var logFilterFields = union(
	allOf(applied, "duration_filter", "runtime_filter", "response_flag_filter"),
	allOf(harmless, "not_health_check_filter"),
	allOf(ignored, "status_code_filter", "traceable_filter", "and_filter", "or_filter", "header_filter", "grpc_status_filter",
		"extension_filter", "metadata_filter", "log_type_filter"),
)

// The fields of ClusterLoadAssignment and of its localities. Endpoints by reference
// are not implemented by anybody, or need another protocol (LEDS).
var (
	assignmentFields = union(
		allOf(applied, "cluster_name", "endpoints", "policy"),
		allOf(ignored, "named_endpoints"),
	)
	localityEndpointsFields = union(
		allOf(applied, "locality", "lb_endpoints", "load_balancing_weight", "priority", "metadata"),
		allOf(ignored, "load_balancer_endpoints", "leds_cluster_locality_config", "proximity"),
	)
)
