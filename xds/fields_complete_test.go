package xds

import (
	"time"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	rbacconfigv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	filev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/file/v3"
	tlsinspectorv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/tls_inspector/v3"
	tcpproxyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
)

// complete sets what must be there for a message to be valid.
func complete(m proto.Message) {
	switch m := m.(type) {
	case *tlsv3.CommonTlsContext_CombinedCertificateValidationContext:
		if m.DefaultValidationContext == nil {
			m.DefaultValidationContext = &tlsv3.CertificateValidationContext{TrustedCa: inline(sampleCA.PEM)}
		}
	case *rbacconfigv3.Policy:
		if m.Permissions == nil {
			m.Permissions = []*rbacconfigv3.Permission{anyPermission()}
		}
		if m.Principals == nil {
			m.Principals = []*rbacconfigv3.Principal{{Identifier: &rbacconfigv3.Principal_Any{Any: true}}}
		}
	case *rbacconfigv3.Permission:
		if m.Rule == nil {
			m.Rule = &rbacconfigv3.Permission_Any{Any: true}
		}
	case *rbacconfigv3.Principal:
		if m.Identifier == nil {
			m.Identifier = &rbacconfigv3.Principal_Any{Any: true}
		}
	case *rbacconfigv3.Permission_Set:
		if m.Rules == nil {
			m.Rules = []*rbacconfigv3.Permission{anyPermission()}
		}
	case *rbacconfigv3.Principal_Set:
		if m.Ids == nil {
			m.Ids = []*rbacconfigv3.Principal{{Identifier: &rbacconfigv3.Principal_Any{Any: true}}}
		}
	case *tlsv3.SubjectAltNameMatcher:
		m.SanType = tlsv3.SubjectAltNameMatcher_URI
	case *matcherv3.StringMatcher:
		if m.MatchPattern == nil {
			m.MatchPattern = &matcherv3.StringMatcher_Exact{Exact: "x"}
		}
	case *tlsv3.SdsSecretConfig:
		m.Name = "s"
		if m.SdsConfig == nil {
			m.SdsConfig = sds("s").SdsConfig
		}
	case *corev3.HealthCheck_TcpHealthCheck:
	case *corev3.HealthCheck_HttpHealthCheck:
		m.Path = "/"
	case *clusterv3.Cluster_TransportSocketMatch:
		m.Name = "m"
	case *corev3.HealthCheck_Payload:
		m.Payload = &corev3.HealthCheck_Payload_Text{Text: "00"}
	case *corev3.HeaderValueOption:
		m.Header = &corev3.HeaderValue{Key: "k", Value: "v"}
	case *corev3.HeaderValue:
		m.Key, m.Value = "k", "v"
	case *endpointv3.ClusterLoadAssignment_Policy_DropOverload:
		m.Category, m.DropPercentage = "c", &typev3.FractionalPercent{Numerator: 3}
	case *typev3.FractionalPercent:
		m.Numerator = 3
	case *typev3.Int64Range:
		m.Start, m.End = 200, 300
	case *listenerv3.ListenerFilter:
		m.Name, m.ConfigType = "tls", &listenerv3.ListenerFilter_TypedConfig{TypedConfig: packed(new(tlsinspectorv3.TlsInspector))}
	case *listenerv3.AdditionalAddress:
		m.Address = socket("127.0.0.1", 81)
	case *accesslogv3.AccessLog:
		m.ConfigType = &accesslogv3.AccessLog_TypedConfig{TypedConfig: packed(&filev3.FileAccessLog{Path: "/log"})}
	case *tcpproxyv3.TcpProxy_WeightedCluster_ClusterWeight:
		m.Name, m.Weight = "c", 1
	case *corev3.CidrRange:
		m.AddressPrefix = "10.0.0.0"
	case *clusterv3.Cluster_SlowStartConfig:
		m.SlowStartWindow = seconds(60)
	case *clusterv3.Cluster_RefreshRate:
		m.BaseInterval = durationpb.New(time.Second)
	}
}
