package xds

//lint:file-ignore SA1019 control planes send what is deprecated, too

import (
	"fmt"
	"math"
	"net/netip"
	"strings"
	"testing"
	"time"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	filev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/file/v3"
	streamv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/stream/v3"
	httpinspectorv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/http_inspector/v3"
	originaldstv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/original_dst/v3"
	proxyprotocolv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/proxy_protocol/v3"
	tlsinspectorv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/tls_inspector/v3"
	echov3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/echo/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/rbac/v3"
	tcpproxyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"gatehouse.internal/forwarder/filterchain"
	"gatehouse.internal/lbcore"
)

type change = func(*listenerv3.Listener)

func yes() *wrapperspb.BoolValue { return wrapperspb.Bool(true) }

func netFilter(t testing.TB, name string, m proto.Message) *listenerv3.Filter {
	return &listenerv3.Filter{Name: name, ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: anyOf(t, m)}}
}

func lsFilter(t testing.TB, name string, m proto.Message) *listenerv3.ListenerFilter {
	return &listenerv3.ListenerFilter{Name: name, ConfigType: &listenerv3.ListenerFilter_TypedConfig{TypedConfig: anyOf(t, m)}}
}

func toCluster(name string, with ...func(*tcpproxyv3.TcpProxy)) *tcpproxyv3.TcpProxy {
	p := &tcpproxyv3.TcpProxy{StatPrefix: "x", ClusterSpecifier: &tcpproxyv3.TcpProxy_Cluster{Cluster: name}}
	for _, f := range with {
		f(p)
	}
	return p
}

func proxyTo(t testing.TB, name string, with ...func(*tcpproxyv3.TcpProxy)) *listenerv3.Filter {
	return netFilter(t, "envoy.filters.network.tcp_proxy", toCluster(name, with...))
}

// tcpListener listens on 127.0.0.1:80 and has one chain, to the cluster web.
func tcpListener(t testing.TB, name string, with ...change) *listenerv3.Listener {
	l := &listenerv3.Listener{
		Name: name, Address: socket("127.0.0.1", 80),
		FilterChains: []*listenerv3.FilterChain{{Filters: []*listenerv3.Filter{proxyTo(t, "web")}}},
	}
	for _, f := range with {
		f(l)
	}
	return l
}

// ofProxy changes the tcp_proxy.
func ofProxy(t testing.TB, f func(*tcpproxyv3.TcpProxy)) change {
	return func(l *listenerv3.Listener) {
		l.FilterChains[0].Filters = []*listenerv3.Filter{proxyTo(t, "web", f)}
	}
}

// matching changes what the chain matches.
func matching(m *listenerv3.FilterChainMatch) change {
	return func(l *listenerv3.Listener) { l.FilterChains[0].FilterChainMatch = m }
}

func fileLog(t testing.TB, f *filev3.FileAccessLog) *accesslogv3.AccessLog {
	return &accesslogv3.AccessLog{Name: "file", ConfigType: &accesslogv3.AccessLog_TypedConfig{TypedConfig: anyOf(t, f)}}
}

func formatOf(m *corev3.SubstitutionFormatString) *filev3.FileAccessLog_LogFormat {
	return &filev3.FileAccessLog_LogFormat{LogFormat: m}
}

func textSource(s string) *corev3.SubstitutionFormatString {
	return &corev3.SubstitutionFormatString{Format: &corev3.SubstitutionFormatString_TextFormatSource{
		TextFormatSource: &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: s}},
	}}
}

func mustStruct(m map[string]any) *structpb.Struct {
	s, err := structpb.NewStruct(m)
	if err != nil {
		panic(err)
	}
	return s
}

// inspectingHTTP has an http_inspector before a chain of these protocols and one that
// matches all.
func inspectingHTTP(t testing.TB, transport string, protocols ...string) change {
	return func(l *listenerv3.Listener) {
		l.ListenerFilters = []*listenerv3.ListenerFilter{lsFilter(t, "http_inspector", &httpinspectorv3.HttpInspector{})}
		l.FilterChains = append(l.FilterChains, &listenerv3.FilterChain{
			Filters:          l.FilterChains[0].Filters,
			FilterChainMatch: &listenerv3.FilterChainMatch{TransportProtocol: transport, ApplicationProtocols: protocols},
		})
	}
}

const httpUnfound = "listener_filters[0] http_inspector: a filter chain matches by application_protocols of HTTP without TLS"

var diffListener = []cmp.Option{compareAddr, cmpopts.IgnoreUnexported(FilterChain{}), cmp.Comparer(func(a, b filterchain.Match) bool { return fmt.Sprintf("%+v", a) == fmt.Sprintf("%+v", b) })}

func TestDecodeListener(t *testing.T) {
	plain := TCPProxy{Clusters: []WeightedCluster{{"web", 1}}, IdleTimeout: time.Hour, MaxConnectAttempts: 1}
	base := func(f func(*Listener)) *Listener {
		l := &Listener{Name: "l", Addresses: []lbcore.Addr{addr("127.0.0.1:80")}, BindToPort: true, FiltersTimeout: 15 * time.Second, Chains: []FilterChain{{TCPProxy: plain}}}
		f(l)
		return l
	}
	logged := func(f func(*filev3.FileAccessLog)) change {
		return ofProxy(t, func(p *tcpproxyv3.TcpProxy) {
			c := &filev3.FileAccessLog{Path: "/x.log"}
			f(c)
			p.AccessLog = []*accesslogv3.AccessLog{fileLog(t, c)}
		})
	}
	filtered := func(f *accesslogv3.AccessLogFilter) change {
		return ofProxy(t, func(p *tcpproxyv3.TcpProxy) {
			log := fileLog(t, &filev3.FileAccessLog{Path: "/x.log"})
			log.Filter = f
			p.AccessLog = []*accesslogv3.AccessLog{log}
		})
	}
	wantLog := func(a AccessLog) func(*Listener) {
		return func(l *Listener) { l.Chains[0].TCPProxy.AccessLogs = []AccessLog{a} }
	}
	json := map[string]any{
		"b": "%BYTES_SENT%", "a": "say \"%LISTENER_NAME%\" 50%%", "100%": 7, "n": nil, "t": true,
		"s": map[string]any{"x": []any{"%DURATION%ms", "%DURATION%"}},
	}
	const wantJSON = `{"100%%":7,"a":"say \"%LISTENER_NAME%\" 50%%","b":%BYTES_SENT%,"n":null,"s":{"x":["%DURATION%ms",%DURATION%]},"t":true}`
	for _, tt := range []struct {
		name string
		with change
		want func(*Listener)
	}{
		{"plain", func(*listenerv3.Listener) {}, func(*Listener) {}},
		{"harmless", func(l *listenerv3.Listener) {
			l.StatPrefix, l.TrafficDirection, l.PerConnectionBufferLimitBytes = "x", corev3.TrafficDirection_INBOUND, u32(1)
			l.Metadata = &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{"istio": mustStruct(map[string]any{"a": 1})}}
			l.FilterChains[0].Metadata = l.Metadata
		}, func(*Listener) {}},
		{"additional addresses", func(l *listenerv3.Listener) {
			l.AdditionalAddresses = []*listenerv3.AdditionalAddress{{Address: socket("::1", 80)}, {Address: socket("127.0.0.1", 0)}}
		}, func(l *Listener) {
			l.Addresses = append(l.Addresses, addr("[::1]:80"), anyPort("127.0.0.1"))
		}},
		{"socket options of an additional address", func(l *listenerv3.Listener) {
			l.AdditionalAddresses = []*listenerv3.AdditionalAddress{{Address: socket("::1", 80), TcpKeepalive: &corev3.TcpKeepalive{}}}
		}, func(l *Listener) {
			l.Addresses = append(l.Addresses, addr("[::1]:80"))
			l.Ignored = []string{"additional_addresses[0].tcp_keepalive"}
		}},
		{"unix socket", func(l *listenerv3.Listener) {
			l.Address = &corev3.Address{Address: &corev3.Address_Pipe{Pipe: &corev3.Pipe{Path: "/run/x.sock", Mode: 0o660}}}
		}, func(l *Listener) { l.Addresses, l.Mode = []lbcore.Addr{lbcore.UnixAddr("/run/x.sock")}, 0o660 }},
		{"all of IPv6", func(l *listenerv3.Listener) { l.Address = socket("::", 80) }, func(l *Listener) {
			l.Addresses, l.Ignored = []lbcore.Addr{addr("[::]:80")}, []string{"address.socket_address.ipv4_compat false: IPv4 is taken too"}
		}},
		{"no port of its own", func(l *listenerv3.Listener) { l.BindToPort = wrapperspb.Bool(false) }, func(l *Listener) { l.BindToPort = false }},
		{"no port of its own, the old way", func(l *listenerv3.Listener) {
			l.DeprecatedV1 = &listenerv3.Listener_DeprecatedV1{BindToPort: wrapperspb.Bool(false)}
		}, func(l *Listener) { l.BindToPort = false }},
		{"sockets", func(l *listenerv3.Listener) {
			l.TcpBacklogSize, l.TcpKeepalive = u32(7), &corev3.TcpKeepalive{KeepaliveTime: u32(9)}
			l.Freebind, l.EnableMptcp, l.Transparent = yes(), true, wrapperspb.Bool(false)
		}, func(l *Listener) {
			l.Backlog, l.Keepalive = 7, &Keepalive{Time: 9 * time.Second, Interval: 75 * time.Second}
			l.Ignored = []string{"enable_mptcp", "freebind"}
		}},
		{"listener filters", func(l *listenerv3.Listener) {
			l.ListenerFilters = []*listenerv3.ListenerFilter{
				lsFilter(t, "a", &originaldstv3.OriginalDst{}), lsFilter(t, "b", &tlsinspectorv3.TlsInspector{EnableJa3Fingerprinting: yes()}),
				lsFilter(t, "c", &proxyprotocolv3.ProxyProtocol{AllowRequestsWithoutProxyProtocol: true, Rules: []*proxyprotocolv3.ProxyProtocol_Rule{{}}}),
			}
			l.ListenerFiltersTimeout, l.ContinueOnListenerFiltersTimeout = durationpb.New(time.Second), true
		}, func(l *Listener) {
			l.OriginalDst, l.Inspect, l.Proxy, l.ProxyOptional = true, true, true, true
			l.FiltersTimeout, l.ContinueOnTimeout = time.Second, true
			l.Ignored = []string{"listener_filters[1].typed_config.enable_ja3_fingerprinting", "listener_filters[2].typed_config.rules"}
		}},
		{"no timeout", func(l *listenerv3.Listener) { l.ListenerFiltersTimeout = durationpb.New(0) }, func(l *Listener) { l.FiltersTimeout = 0 }},
		{"use_original_dst", func(l *listenerv3.Listener) { l.UseOriginalDst = yes() }, func(l *Listener) { l.OriginalDst, l.UseOriginalDst = true, true }},
		{"use_proxy_proto", func(l *listenerv3.Listener) { l.FilterChains[0].UseProxyProto = yes() }, func(l *Listener) { l.Proxy = true }},
		{"match", matching(&listenerv3.FilterChainMatch{
			DestinationPort: u32(443), PrefixRanges: []*corev3.CidrRange{{AddressPrefix: "10.1.2.3", PrefixLen: u32(8)}, {AddressPrefix: "::"}},
			ServerNames: []string{"*.example.com"}, TransportProtocol: "tls", ApplicationProtocols: []string{"h2"},
			SourceType: listenerv3.FilterChainMatch_EXTERNAL, SourcePorts: []uint32{7},
			SourcePrefixRanges:       []*corev3.CidrRange{{AddressPrefix: "::ffff:10.0.0.0", PrefixLen: u32(104)}},
			DirectSourcePrefixRanges: []*corev3.CidrRange{{AddressPrefix: "2001:db8::", PrefixLen: u32(32)}},
		}), func(l *Listener) {
			l.Inspect = true
			l.Chains[0].Match = filterchain.Match{
				DestinationPort: 443, PrefixRanges: prefixesOf("10.0.0.0/8", "::/0"), ServerNames: []string{"*.example.com"},
				TransportProtocol: "tls", ApplicationProtocols: []string{"h2"}, SourceType: filterchain.ExternalSource, SourcePorts: []uint16{7},
				SourcePrefixRanges: prefixesOf("10.0.0.0/8"), DirectSourcePrefixRanges: prefixesOf("2001:db8::/32"),
			}
		}},
		{"same host", matching(&listenerv3.FilterChainMatch{SourceType: listenerv3.FilterChainMatch_SAME_IP_OR_LOOPBACK}),
			func(l *Listener) { l.Chains[0].Match.SourceType = filterchain.SameIPOrLocal }},
		{"default chain", func(l *listenerv3.Listener) {
			l.DefaultFilterChain, l.FilterChains = &listenerv3.FilterChain{Name: "rest", Filters: l.FilterChains[0].Filters, FilterChainMatch: &listenerv3.FilterChainMatch{DestinationPort: u32(1)}}, nil
		}, func(l *Listener) { l.Chains, l.Default = nil, &FilterChain{Name: "rest", TCPProxy: plain} }},
		{"tcp_proxy", ofProxy(t, func(p *tcpproxyv3.TcpProxy) {
			p.IdleTimeout, p.MaxConnectAttempts = durationpb.New(0), u32(7)
			p.MaxDownstreamConnectionDuration, p.MaxDownstreamConnectionDurationJitterPercentage = durationpb.New(time.Minute), &typev3.Percent{Value: 12.5}
			p.HashPolicy = []*typev3.HashPolicy{{PolicySpecifier: &typev3.HashPolicy_SourceIp_{SourceIp: &typev3.HashPolicy_SourceIp{}}}}
			p.BackoffOptions = &corev3.BackoffStrategy{}
		}), func(l *Listener) {
			l.Chains[0].TCPProxy = TCPProxy{
				Clusters: plain.Clusters, HashSourceIP: true, MaxConnectAttempts: 7, MaxDuration: time.Minute, MaxDurationJitter: 12.5,
			}
			l.Ignored = []string{"filter_chains[0].filters[0].typed_config.backoff_options"}
		}},
		{"weighted clusters", ofProxy(t, weighted(3, math.MaxUint32-3)), func(l *Listener) {
			l.Chains[0].TCPProxy.Clusters = []WeightedCluster{{"c0", 3}, {"c1", math.MaxUint32 - 3}}
		}},
		{"a chain with a filter that is not known, beside another", func(l *listenerv3.Listener) {
			l.FilterChains = append(l.FilterChains, &listenerv3.FilterChain{
				Name: "http", FilterChainMatch: &listenerv3.FilterChainMatch{DestinationPort: u32(8080)},
				Filters: []*listenerv3.Filter{netFilter(t, "envoy.filters.network.http_connection_manager", &hcmv3.HttpConnectionManager{})},
			}, &listenerv3.FilterChain{
				Name: "echo first", FilterChainMatch: &listenerv3.FilterChainMatch{DestinationPort: u32(8081)},
				Filters: []*listenerv3.Filter{netFilter(t, "echo", &echov3.Echo{}), proxyTo(t, "web")},
			}, &listenerv3.FilterChain{Name: "empty", FilterChainMatch: &listenerv3.FilterChainMatch{DestinationPort: u32(8082)}})
		}, func(l *Listener) {
			l.Chains = append(l.Chains,
				FilterChain{Name: "http", Match: filterchain.Match{DestinationPort: 8080}, Unsupported: `filter_chains[1].filters[0] "envoy.filters.network.http_connection_manager"`},
				FilterChain{Name: "echo first", Match: filterchain.Match{DestinationPort: 8081}, Unsupported: `filter_chains[2].filters[0] "echo"`},
				FilterChain{Name: "empty", Match: filterchain.Match{DestinationPort: 8082}, Unsupported: `filter_chains[3].filters: none`})
		}},
		{"access log", logged(func(*filev3.FileAccessLog) {}), wantLog(AccessLog{Path: "/x.log"})},
		{"access log, format", logged(func(f *filev3.FileAccessLog) {
			f.AccessLogFormat = &filev3.FileAccessLog_Format{Format: "%START_TIME%\n"}
		}), wantLog(AccessLog{Path: "/x.log", Format: "%START_TIME%\n"})},
		{"access log, text", logged(func(f *filev3.FileAccessLog) {
			f.AccessLogFormat = formatOf(&corev3.SubstitutionFormatString{Format: &corev3.SubstitutionFormatString_TextFormat{TextFormat: "%DURATION%"}, ContentType: "x"})
		}), wantLog(AccessLog{Path: "/x.log", Format: "%DURATION%"})},
		{"access log, text source", logged(func(f *filev3.FileAccessLog) { f.AccessLogFormat = formatOf(textSource("%DURATION%")) }), wantLog(AccessLog{Path: "/x.log", Format: "%DURATION%"})},
		{"access log, json", logged(func(f *filev3.FileAccessLog) {
			f.AccessLogFormat = formatOf(&corev3.SubstitutionFormatString{Format: &corev3.SubstitutionFormatString_JsonFormat{JsonFormat: mustStruct(json)}})
		}), wantLog(AccessLog{Path: "/x.log", Format: wantJSON})},
		{"access log, the old json", logged(func(f *filev3.FileAccessLog) {
			f.AccessLogFormat = &filev3.FileAccessLog_JsonFormat{JsonFormat: mustStruct(json)}
		}), wantLog(AccessLog{Path: "/x.log", Format: wantJSON})},
		{"access log, sampled", filtered(&accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_RuntimeFilter{RuntimeFilter: &accesslogv3.RuntimeFilter{
			RuntimeKey: "x", PercentSampled: &typev3.FractionalPercent{Numerator: 25, Denominator: typev3.FractionalPercent_TEN_THOUSAND},
		}}}), wantLog(AccessLog{Path: "/x.log", Filter: LogFilter{Sampled: true, PerMillion: 2500}})},
		{"access log, sampled by a runtime key", filtered(&accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_RuntimeFilter{RuntimeFilter: &accesslogv3.RuntimeFilter{
			RuntimeKey: "x",
		}}}), wantLog(AccessLog{Path: "/x.log", Filter: LogFilter{Sampled: true}})},
		{"access log, by duration", filtered(&accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_DurationFilter{DurationFilter: &accesslogv3.DurationFilter{
			Comparison: &accesslogv3.ComparisonFilter{Op: accesslogv3.ComparisonFilter_GE, Value: &corev3.RuntimeUInt32{DefaultValue: 1000, RuntimeKey: "x"}},
		}}}), wantLog(AccessLog{Path: "/x.log", Filter: LogFilter{DurationOp: ">=", DurationMillis: 1000}})},
		{"access log, by flag", filtered(&accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_ResponseFlagFilter{ResponseFlagFilter: &accesslogv3.ResponseFlagFilter{
			Flags: []string{"UF", "UH"},
		}}}), wantLog(AccessLog{Path: "/x.log", Filter: LogFilter{Flagged: true, Flags: "UF,UH"}})},
		{"access log, but for health checks", filtered(&accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_NotHealthCheckFilter{
			NotHealthCheckFilter: new(accesslogv3.NotHealthCheckFilter)}}), wantLog(AccessLog{Path: "/x.log"})},
		{"access log, by several", filtered(&accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_AndFilter{AndFilter: new(accesslogv3.AndFilter)}}), func(l *Listener) {
			l.Ignored = []string{"filter_chains[0].filters[0].typed_config.access_log[0].filter.and_filter: the log is left out"}
		}},
		{"access log, by what does not exist", filtered(&accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_DurationFilter{DurationFilter: &accesslogv3.DurationFilter{
			Comparison: &accesslogv3.ComparisonFilter{Op: 99},
		}}}), func(l *Listener) {
			l.Ignored = []string{"filter_chains[0].filters[0].typed_config.access_log[0].filter.duration_filter: the log is left out"}
		}},
		{"access log to stdout by its path", logged(func(f *filev3.FileAccessLog) { f.Path = "/dev/stdout" }), wantLog(AccessLog{Path: "stdout"})},
		{"access log to nowhere", logged(func(f *filev3.FileAccessLog) { f.Path = "/dev/null" }), func(*Listener) {}},
		{"access log with a relative path", logged(func(f *filev3.FileAccessLog) { f.Path = "x.log" }), func(l *Listener) {
			l.Ignored = []string{`filter_chains[0].filters[0].typed_config.access_log[0].typed_config.path "x.log": not absolute, the log is left out`}
		}},
		{"access logs of the listener", func(l *listenerv3.Listener) {
			l.AccessLog = []*accesslogv3.AccessLog{
				{Name: "stdout", ConfigType: &accesslogv3.AccessLog_TypedConfig{TypedConfig: anyOf(t, &streamv3.StdoutAccessLog{AccessLogFormat: &streamv3.StdoutAccessLog_LogFormat{LogFormat: textSource("%DURATION%")}})}},
				{Name: "stderr", ConfigType: &accesslogv3.AccessLog_TypedConfig{TypedConfig: anyOf(t, &streamv3.StderrAccessLog{})}},
				{Name: "other", ConfigType: &accesslogv3.AccessLog_TypedConfig{TypedConfig: anyOf(t, &echov3.Echo{})}},
				{Name: "filtered", Filter: &accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_OrFilter{}}, ConfigType: &accesslogv3.AccessLog_TypedConfig{TypedConfig: anyOf(t, &streamv3.StderrAccessLog{})}},
			}
		}, func(l *Listener) {
			l.AccessLogs = []AccessLog{{Path: "stdout", Format: "%DURATION%"}, {Path: "stderr"}}
			l.Ignored = []string{`access_log[2] "other": the log is left out`, "access_log[3].filter.or_filter: the log is left out"}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			name, v, err := decodeListener(marshal(t, tcpListener(t, "l", tt.with)))
			if err != nil || name != "l" {
				t.Fatalf("got name %q, error %v", name, err)
			}
			if d := cmp.Diff(base(tt.want), v, diffListener...); d != "" {
				t.Errorf("listener (-want +got):\n%s", d)
			}
		})
	}
}

func weighted(weights ...uint32) func(*tcpproxyv3.TcpProxy) {
	return func(p *tcpproxyv3.TcpProxy) {
		w := &tcpproxyv3.TcpProxy_WeightedCluster{}
		for i, n := range weights {
			w.Clusters = append(w.Clusters, &tcpproxyv3.TcpProxy_WeightedCluster_ClusterWeight{Name: fmt.Sprint("c", i), Weight: n})
		}
		p.ClusterSpecifier = &tcpproxyv3.TcpProxy_WeightedClusters{WeightedClusters: w}
	}
}

func TestDecodeListenerUnsupported(t *testing.T) {
	for _, tt := range []struct {
		name string
		with change
		want string
		none bool // there is no address
	}{
		{"api", func(l *listenerv3.Listener) { l.ApiListener = &listenerv3.ApiListener{} }, "api_listener", true},
		{"http", func(l *listenerv3.Listener) {
			l.FilterChains[0].Filters = []*listenerv3.Filter{netFilter(t, "hcm", &hcmv3.HttpConnectionManager{})}
			l.DefaultFilterChain = &listenerv3.FilterChain{Filters: []*listenerv3.Filter{netFilter(t, "echo", &echov3.Echo{})}}
		}, `default_filter_chain.filters[0] "echo", filter_chains[0].filters[0] "hcm"`, false},
		{"no chain", func(l *listenerv3.Listener) { l.FilterChains = nil }, "no filter chain", false},
		{"matcher", func(l *listenerv3.Listener) { set(l, "filter_chain_matcher") }, "filter_chain_matcher", false},
		{"udp", func(l *listenerv3.Listener) { l.Address.GetSocketAddress().Protocol = corev3.SocketAddress_UDP }, "address: protocol UDP", true},
		{"internal", func(l *listenerv3.Listener) {
			l.Address = nil
			l.ListenerSpecifier = &listenerv3.Listener_InternalListener{InternalListener: &listenerv3.Listener_InternalListenerConfig{}}
		}, "internal_listener", true},
		{"transparent", func(l *listenerv3.Listener) { l.Transparent = yes() }, "transparent", false},
		{"an unknown listener filter", func(l *listenerv3.Listener) {
			l.ListenerFilters = []*listenerv3.ListenerFilter{lsFilter(t, "odd", &echov3.Echo{})}
		}, `listener_filters[0] "odd"`, false},
		{"a chain for HTTP without TLS, which nobody finds", inspectingHTTP(t, "", "h2c"), httpUnfound, false},
		{"one of several protocols", inspectingHTTP(t, "raw_buffer", "x", "http/1.1"), httpUnfound, false},
		{"a listener filter that is off at times", func(l *listenerv3.Listener) {
			f := lsFilter(t, "tls", &tlsinspectorv3.TlsInspector{})
			f.FilterDisabled = &listenerv3.ListenerFilterChainMatchPredicate{}
			l.ListenerFilters = []*listenerv3.ListenerFilter{f}
		}, "listener_filters[0].filter_disabled", false},
		{"a listener filter that is to be discovered", func(l *listenerv3.Listener) {
			l.ListenerFilters = []*listenerv3.ListenerFilter{{Name: "x", ConfigType: &listenerv3.ListenerFilter_ConfigDiscovery{}}}
		}, "listener_filters[0].config_discovery", false},
		{"socket options", func(l *listenerv3.Listener) { l.SocketOptions = []*corev3.SocketOption{{}} }, "socket_options", false},
		{"socket options of another address", func(l *listenerv3.Listener) {
			l.AdditionalAddresses = []*listenerv3.AdditionalAddress{{Address: socket("::1", 80), SocketOptions: &corev3.SocketOptionsOverride{}}}
		}, "additional_addresses[0].socket_options", false},
		{"versions of PROXY", func(l *listenerv3.Listener) {
			l.ListenerFilters = []*listenerv3.ListenerFilter{lsFilter(t, "p", &proxyprotocolv3.ProxyProtocol{DisallowedVersions: []corev3.ProxyProtocolConfig_Version{corev3.ProxyProtocolConfig_V2}})}
		}, "listener_filters[0].typed_config.disallowed_versions", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, v, err := decodeListener(marshal(t, tcpListener(t, "l", tt.with)))
			if err != nil {
				t.Fatal(err)
			}
			if l := v.(*Listener); l.Unsupported != tt.want || (len(l.Addresses) == 0) != tt.none {
				t.Errorf("Unsupported %q, addresses %v, want %q", l.Unsupported, l.Addresses, tt.want)
			}
		})
	}
}

// What a chain can't do is said of the chain.
func TestDecodeChainUnsupported(t *testing.T) {
	const proxy = "filter_chains[0].filters[0].typed_config."
	sock := func(name string, m proto.Message) change {
		return func(l *listenerv3.Listener) {
			l.FilterChains[0].TransportSocket = &corev3.TransportSocket{Name: name, ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: anyOf(t, m)}}
		}
	}
	for want, with := range map[string]change{
		proxy + "tunneling_config": ofProxy(t, func(p *tcpproxyv3.TcpProxy) {
			p.TunnelingConfig = &tcpproxyv3.TcpProxy_TunnelingConfig{Hostname: "h"}
		}),
		proxy + "hash_policy[0].filter_state": ofProxy(t, func(p *tcpproxyv3.TcpProxy) {
			p.HashPolicy = []*typev3.HashPolicy{{PolicySpecifier: &typev3.HashPolicy_FilterState_{FilterState: &typev3.HashPolicy_FilterState{Key: "k"}}}}
		}),
		`filter_chains[0].transport_socket "tap"`: sock("tap", &echov3.Echo{}),
		`filter_chains[0].filters[0].config_discovery`: func(l *listenerv3.Listener) {
			l.FilterChains[0].Filters = append([]*listenerv3.Filter{{Name: "x", ConfigType: &listenerv3.Filter_ConfigDiscovery{}}}, l.FilterChains[0].Filters...)
		},
	} {
		_, v, err := decodeListener(marshal(t, tcpListener(t, "l", with)))
		if err != nil {
			t.Errorf("%s: %v", want, err)
			continue
		}
		l := v.(*Listener)
		if c := l.Chains[0]; l.Unsupported != "" || c.Unsupported != want || c.TLS != nil || len(c.RBAC) > 0 || len(c.TCPProxy.Clusters) > 0 {
			t.Errorf("%q, chain %+v, want %q", l.Unsupported, c, want)
		}
	}
}

// What an http_inspector finds only chooses chains, and where none is chosen by it,
// the listener is as without it.
func TestHTTPInspector(t *testing.T) {
	alone := func(l *listenerv3.Listener) {
		l.ListenerFilters = []*listenerv3.ListenerFilter{lsFilter(t, "http_inspector", &httpinspectorv3.HttpInspector{})}
	}
	for _, with := range []change{alone, inspectingHTTP(t, "tls", "http/1.1"), inspectingHTTP(t, "", "istio", "h2")} {
		m := tcpListener(t, "l", with)
		_, v, err := decodeListener(marshal(t, m))
		if err != nil || v.(*Listener).Unsupported != "" || len(v.(*Listener).Ignored) > 0 {
			t.Errorf("%v, %+v", err, v)
			continue
		}
		m.ListenerFilters = nil
		_, without, err := decodeListener(marshal(t, m))
		if d := cmp.Diff(without, v, diffListener...); err != nil || d != "" {
			t.Errorf("%v (-want +got):\n%s", err, d)
		}
	}
}

func TestDecodeListenerInvalid(t *testing.T) {
	const proxy = "filter_chains[0].filters[0].typed_config."
	junk := anyOf(t, &tcpproxyv3.TcpProxy{})
	junk.Value = []byte("junk")
	badMatch := func(m *listenerv3.FilterChainMatch) change { return matching(m) }
	for _, tt := range []struct {
		want string
		with change
	}{
		{"name: missing", func(l *listenerv3.Listener) { l.Name = "" }},
		{"address: missing", func(l *listenerv3.Listener) { l.Address = nil }},
		{`address.socket_address.address: "web": want an IP address`, func(l *listenerv3.Listener) { l.Address = socket("web", 80) }},
		{"address.socket_address.port_value: 70000: want", func(l *listenerv3.Listener) { l.Address = socket("127.0.0.1", 70000) }},
		{`address.pipe.path: "x": want an absolute path`, func(l *listenerv3.Listener) {
			l.Address = &corev3.Address{Address: &corev3.Address_Pipe{Pipe: &corev3.Pipe{Path: "x"}}}
		}},
		{"address.pipe.mode: 07777: want up to 0777", func(l *listenerv3.Listener) {
			l.Address = &corev3.Address{Address: &corev3.Address_Pipe{Pipe: &corev3.Pipe{Path: "/x", Mode: 0o7777}}}
		}},
		{"additional_addresses[0].address: 127.0.0.1:80 is there twice", func(l *listenerv3.Listener) {
			l.AdditionalAddresses = []*listenerv3.AdditionalAddress{{Address: socket("127.0.0.1", 80)}}
		}},
		{"additional_addresses: 65: want at most 64", func(l *listenerv3.Listener) {
			l.AdditionalAddresses = make([]*listenerv3.AdditionalAddress, 65)
			for i := range l.AdditionalAddresses {
				l.AdditionalAddresses[i] = &listenerv3.AdditionalAddress{Address: socket("127.0.0.1", uint32(i+1000))}
			}
		}},
		{"listener_filters_timeout: -1s: want at least 0s", func(l *listenerv3.Listener) { l.ListenerFiltersTimeout = durationpb.New(-time.Second) }},
		{"listener_filters[0].name: missing", func(l *listenerv3.Listener) { l.ListenerFilters = []*listenerv3.ListenerFilter{{}} }},
		{"filter_chains[0].filters[0].name: missing", func(l *listenerv3.Listener) { l.FilterChains[0].Filters[0].Name = "" }},
		{"filter_chains[0].filters[0].typed_config: proto:", func(l *listenerv3.Listener) {
			l.FilterChains[0].Filters[0].ConfigType = &listenerv3.Filter_TypedConfig{TypedConfig: junk}
		}},
		{"filter_chains[0].filters[0]: a tcp_proxy ends the filters, and others follow", func(l *listenerv3.Listener) {
			l.FilterChains[0].Filters = append(l.FilterChains[0].Filters, netFilter(t, "rbac", &rbacv3.RBAC{}))
		}},
		{"filter_chains[0].filters[0]: the last filter: want one", func(l *listenerv3.Listener) {
			l.FilterChains[0].Filters = []*listenerv3.Filter{netFilter(t, "rbac", &rbacv3.RBAC{})}
		}},
		{`filter_chains: filter chain 1 "": it matches what filter chain 0 "" does`, func(l *listenerv3.Listener) {
			l.FilterChains = append(l.FilterChains, l.FilterChains[0])
		}},
		{`filter_chains: filter chain 0 "": server name "w*.x": want a name`, badMatch(&listenerv3.FilterChainMatch{ServerNames: []string{"w*.x"}})},
		{"filter_chains[0].filter_chain_match.destination_port: 0: want 1", badMatch(&listenerv3.FilterChainMatch{DestinationPort: u32(0)})},
		{"filter_chains[0].filter_chain_match.destination_port: 65536: want", badMatch(&listenerv3.FilterChainMatch{DestinationPort: u32(65536)})},
		{"filter_chains[0].filter_chain_match.source_ports[1]: 0: want 1", badMatch(&listenerv3.FilterChainMatch{SourcePorts: []uint32{1, 0}})},
		{"filter_chains[0].filter_chain_match.source_type: 9: not known", badMatch(&listenerv3.FilterChainMatch{SourceType: 9})},
		{"filter_chains[0].filter_chain_match.address_suffix: not implemented", badMatch(&listenerv3.FilterChainMatch{AddressSuffix: "x"})},
		{`filter_chains[0].filter_chain_match.prefix_ranges[0].address_prefix: "x": want`, badMatch(&listenerv3.FilterChainMatch{PrefixRanges: []*corev3.CidrRange{{AddressPrefix: "x"}}})},
		{"filter_chains[0].filter_chain_match.source_prefix_ranges[0].prefix_len: 33: want at most 32",
			badMatch(&listenerv3.FilterChainMatch{SourcePrefixRanges: []*corev3.CidrRange{{AddressPrefix: "10.0.0.0", PrefixLen: u32(33)}}})},
		{proxy + "cluster: missing: want cluster or weighted_clusters", ofProxy(t, func(p *tcpproxyv3.TcpProxy) { p.ClusterSpecifier = nil })},
		{proxy + "cluster: empty", ofProxy(t, func(p *tcpproxyv3.TcpProxy) { p.ClusterSpecifier = &tcpproxyv3.TcpProxy_Cluster{} })},
		{proxy + "weighted_clusters.clusters: 0: want 1 to", ofProxy(t, weighted())},
		{proxy + "weighted_clusters.clusters[1].weight: 0: want at least 1", ofProxy(t, weighted(1, 0))},
		{proxy + "weighted_clusters.clusters[1].weight: the sum of all weights is above 4294967295", ofProxy(t, weighted(1, math.MaxUint32))},
		{proxy + "idle_timeout: -1s: want at least 0s", ofProxy(t, func(p *tcpproxyv3.TcpProxy) { p.IdleTimeout = durationpb.New(-time.Second) })},
		{proxy + "max_connect_attempts: 0: want at least 1", ofProxy(t, func(p *tcpproxyv3.TcpProxy) { p.MaxConnectAttempts = u32(0) })},
		{proxy + "max_downstream_connection_duration: 0s: want more", ofProxy(t, func(p *tcpproxyv3.TcpProxy) { p.MaxDownstreamConnectionDuration = durationpb.New(0) })},
		{proxy + "max_downstream_connection_duration_jitter_percentage: 101: want", ofProxy(t, func(p *tcpproxyv3.TcpProxy) {
			p.MaxDownstreamConnectionDurationJitterPercentage = &typev3.Percent{Value: 101}
		})},
		{proxy + "hash_policy: 2: want at most 1", ofProxy(t, func(p *tcpproxyv3.TcpProxy) { p.HashPolicy = []*typev3.HashPolicy{{}, {}} })},
		{proxy + "hash_policy[0].policy_specifier: missing", ofProxy(t, func(p *tcpproxyv3.TcpProxy) { p.HashPolicy = []*typev3.HashPolicy{{}} })},
		{proxy + "access_log[0].typed_config.path: missing", ofProxy(t, func(p *tcpproxyv3.TcpProxy) {
			p.AccessLog = []*accesslogv3.AccessLog{fileLog(t, &filev3.FileAccessLog{})}
		})},
		{"filter_chains[0].transport_socket_connect_timeout: -1s", func(l *listenerv3.Listener) {
			l.FilterChains[0].TransportSocketConnectTimeout = durationpb.New(-time.Second)
		}},
		{"filter_chains[0].transport_socket.typed_config: proto:", func(l *listenerv3.Listener) {
			a := anyOf(t, &tlsv3.DownstreamTlsContext{})
			a.Value = []byte("junk")
			l.FilterChains[0].TransportSocket = &corev3.TransportSocket{Name: "x", ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: a}}
		}},
	} {
		name, v, err := decodeListener(marshal(t, tcpListener(t, "l", tt.with)))
		if err == nil || !strings.HasPrefix(err.Error(), tt.want) || v != nil || name != "l" && tt.want != "name: missing" {
			t.Errorf("name %q, %v, error %v, want %s", name, v, err, tt.want)
		}
	}
	if _, _, err := decodeListener([]byte("junk")); err == nil || !strings.HasPrefix(err.Error(), "not a Listener: ") {
		t.Errorf("junk: %v", err)
	}
}

func anyPort(ip string) lbcore.Addr {
	return lbcore.IPAddr(netip.AddrPortFrom(netip.MustParseAddr(ip), 0))
}

func prefixesOf(text ...string) (out []netip.Prefix) {
	for _, s := range text {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

var comparePrefix = cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })

// set sets a field of a message to an empty one.
func set(m proto.Message, field protoreflect.Name) {
	r := m.ProtoReflect()
	fd := r.Descriptor().Fields().ByName(field)
	r.Set(fd, r.NewField(fd))
}
