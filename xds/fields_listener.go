package xds

// listenerFields tells what becomes of the fields of Listener. What decides which
// connections there are, and where they go, is refused if this program can't do it.
var listenerFields = union(
	allOf(applied, "name", "address", "additional_addresses", "filter_chains", "default_filter_chain",
		"listener_filters", "listener_filters_timeout", "continue_on_listener_filters_timeout",
		"use_original_dst", "bind_to_port", "deprecated_v1", "tcp_keepalive", "tcp_backlog_size", "transparent", "freebind",
		"enable_mptcp", "access_log"),
	allOf(refused, "fcds_config", "filter_chain_matcher", "udp_listener_config", "api_listener", "internal_listener", "socket_options"),
	allOf(ignored, "tcp_fast_open_queue_length", "ignore_global_conn_limit", "bypass_overload_manager"),
	allOf(harmless, "stat_prefix", "stats_matcher", "metadata", "traffic_direction", "drain_type", "reuse_port", "enable_reuse_port",
		"connection_balance_config", "per_connection_buffer_limit_bytes", "per_connection_buffer_high_watermark_timeout",
		"max_connections_to_accept_per_socket_event"),
)

// The fields of listener filters.
var (
	tlsInspectorFields = union(
		allOf(harmless, "initial_read_buffer_size"),
		allOf(ignored, "enable_ja3_fingerprinting", "enable_ja4_fingerprinting", "close_connection_on_client_hello_parsing_errors", "max_client_hello_size"),
	)
	proxyProtocolFields = union(
		allOf(applied, "allow_requests_without_proxy_protocol"),
		allOf(harmless, "stat_prefix"),
		allOf(refused, "disallowed_versions"),
		allOf(ignored, "rules", "pass_through_tlvs", "tlv_location"),
	)
)

// additionalAddressFields tells what becomes of the fields of AdditionalAddress.
var additionalAddressFields = union(allOf(applied, "address"), allOf(ignored, "tcp_keepalive"), allOf(refused, "socket_options"))

// The fields of FilterChain and of what it matches. Envoy has not implemented the
// suffix of an address, and refuses it too.
var (
	chainFields = union(
		allOf(applied, "filter_chain_match", "filters", "use_proxy_proto", "transport_socket", "transport_socket_connect_timeout", "name"),
		allOf(harmless, "metadata"),
	)
	filterChainMatchFields = union(
		allOf(applied, "destination_port", "prefix_ranges", "direct_source_prefix_ranges", "source_type", "source_prefix_ranges",
			"source_ports", "server_names", "transport_protocol", "application_protocols"),
		allOf(invalid, "address_suffix", "suffix_len"),
	)
)

// The fields of TcpProxy and of its weighted clusters. What changes which bytes the
// endpoint gets is refused if this program can't do it. Metadata to match means
// something only to clusters of subsets, which are unsupported. Envoy has not
// implemented the idle timeouts of one side.
var (
	tcpProxyFields = union(
		allOf(applied, "cluster", "weighted_clusters", "idle_timeout", "max_connect_attempts", "hash_policy", "access_log",
			"max_downstream_connection_duration", "max_downstream_connection_duration_jitter_percentage"),
		allOf(refused, "tunneling_config", "proxy_protocol_tlvs", "upstream_connect_mode", "max_early_data_bytes"),
		allOf(ignored, "metadata_match", "on_demand", "access_log_options", "access_log_flush_interval", "flush_access_log_on_connected", "backoff_options"),
		allOf(harmless, "stat_prefix", "downstream_idle_timeout", "upstream_idle_timeout", "proxy_protocol_tlv_merge_policy", "check_drain_close"),
	)
	clusterWeightFields = union(allOf(applied, "name", "weight"), allOf(ignored, "metadata_match"))
)
