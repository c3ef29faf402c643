package xds

//lint:file-ignore SA1019 control planes send what is deprecated, too

import (
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	rbacconfigv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/rbac/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"gatehouse.internal/forwarder/rbac"
	"gatehouse.internal/internal/tlsconf"
	"gatehouse.internal/internal/tlsconf/tlstest"
)

func exactly(s string) *matcherv3.StringMatcher {
	return &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Exact{Exact: s}}
}

func regex(s string) *matcherv3.StringMatcher {
	return &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_SafeRegex{SafeRegex: &matcherv3.RegexMatcher{Regex: s}}}
}

func principalNamed(m *matcherv3.StringMatcher) *rbacconfigv3.Principal {
	return &rbacconfigv3.Principal{Identifier: &rbacconfigv3.Principal_Authenticated_{Authenticated: &rbacconfigv3.Principal_Authenticated{PrincipalName: m}}}
}

func anyPermission() *rbacconfigv3.Permission {
	return &rbacconfigv3.Permission{Rule: &rbacconfigv3.Permission_Any{Any: true}}
}

func anyPrincipal() *rbacconfigv3.Principal {
	return &rbacconfigv3.Principal{Identifier: &rbacconfigv3.Principal_Any{Any: true}}
}

func rules(action rbacconfigv3.RBAC_Action, permission *rbacconfigv3.Permission, principal *rbacconfigv3.Principal) *rbacconfigv3.RBAC {
	return &rbacconfigv3.RBAC{Action: action, Policies: map[string]*rbacconfigv3.Policy{"p": {
		Permissions: []*rbacconfigv3.Permission{permission}, Principals: []*rbacconfigv3.Principal{principal},
	}}}
}

// guarded puts an RBAC filter before the tcp_proxy.
func guarded(t testing.TB, m *rbacv3.RBAC) change {
	return func(l *listenerv3.Listener) {
		c := l.FilterChains[0]
		c.Filters = append([]*listenerv3.Filter{netFilter(t, "envoy.filters.network.rbac", m)}, c.Filters...)
	}
}

func cidr(prefix string, n uint32) *corev3.CidrRange {
	return &corev3.CidrRange{AddressPrefix: prefix, PrefixLen: u32(n)}
}

func decodedChain(t *testing.T, with change) FilterChain {
	t.Helper()
	_, v, err := decodeListener(marshal(t, tcpListener(t, "l", with)))
	if err != nil {
		t.Fatal(err)
	}
	return v.(*Listener).Chains[0]
}

func TestDecodeRBAC(t *testing.T) {
	permissions := &rbacconfigv3.Permission{Rule: &rbacconfigv3.Permission_OrRules{OrRules: &rbacconfigv3.Permission_Set{Rules: []*rbacconfigv3.Permission{
		{Rule: &rbacconfigv3.Permission_AndRules{AndRules: &rbacconfigv3.Permission_Set{Rules: []*rbacconfigv3.Permission{
			{Rule: &rbacconfigv3.Permission_DestinationIp{DestinationIp: cidr("10.1.1.1", 8)}},
			{Rule: &rbacconfigv3.Permission_DestinationPort{DestinationPort: 443}},
		}}}},
		{Rule: &rbacconfigv3.Permission_NotRule{NotRule: &rbacconfigv3.Permission{Rule: &rbacconfigv3.Permission_DestinationPortRange{DestinationPortRange: &typev3.Int32Range{Start: 1, End: 65536}}}}},
		{Rule: &rbacconfigv3.Permission_RequestedServerName{RequestedServerName: &matcherv3.StringMatcher{IgnoreCase: true, MatchPattern: &matcherv3.StringMatcher_Suffix{Suffix: ".internal"}}}},
		anyPermission(),
	}}}}
	principals := &rbacconfigv3.Principal{Identifier: &rbacconfigv3.Principal_AndIds{AndIds: &rbacconfigv3.Principal_Set{Ids: []*rbacconfigv3.Principal{
		{Identifier: &rbacconfigv3.Principal_OrIds{OrIds: &rbacconfigv3.Principal_Set{Ids: []*rbacconfigv3.Principal{
			principalNamed(exactly("spiffe://a/b")), principalNamed(regex("spiffe://[^/]+/c")),
			principalNamed(&matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Prefix{Prefix: "spiffe://d/"}}),
			principalNamed(&matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Contains{Contains: "/e/"}}),
			principalNamed(nil), anyPrincipal(),
		}}}},
		{Identifier: &rbacconfigv3.Principal_NotId{NotId: &rbacconfigv3.Principal{Identifier: &rbacconfigv3.Principal_SourceIp{SourceIp: cidr("10.0.0.0", 24)}}}},
		{Identifier: &rbacconfigv3.Principal_RemoteIp{RemoteIp: cidr("2001:db8::", 32)}},
		{Identifier: &rbacconfigv3.Principal_DirectRemoteIp{DirectRemoteIp: cidr("10.0.0.0", 16)}},
	}}}}
	named := func(s rbac.String) rbac.Rule { return rbac.Rule{Kind: rbac.Authenticated, Match: &s} }
	in := func(k rbac.Kind, p string) rbac.Rule { return rbac.Rule{Kind: k, Prefix: prefixesOf(p)[0]} }
	policy := rbac.Policy{
		Name: "p",
		Permissions: []rbac.Rule{{Kind: rbac.Or, Rules: []rbac.Rule{
			{Kind: rbac.And, Rules: []rbac.Rule{in(rbac.DestinationIP, "10.0.0.0/8"), {Kind: rbac.DestinationPort, Ports: [2]uint32{443, 444}}}},
			{Kind: rbac.Not, Rules: []rbac.Rule{{Kind: rbac.DestinationPort, Ports: [2]uint32{1, 65536}}}},
			{Kind: rbac.ServerName, Match: &rbac.String{Suffix: ".internal", IgnoreCase: true}},
			{Kind: rbac.Any},
		}}},
		Principals: []rbac.Rule{{Kind: rbac.And, Rules: []rbac.Rule{
			{Kind: rbac.Or, Rules: []rbac.Rule{
				named(rbac.String{Exact: "spiffe://a/b"}), named(rbac.String{Regex: "spiffe://[^/]+/c"}), named(rbac.String{Prefix: "spiffe://d/"}),
				named(rbac.String{Contains: "/e/"}), {Kind: rbac.Authenticated}, {Kind: rbac.Any},
			}},
			{Kind: rbac.Not, Rules: []rbac.Rule{in(rbac.RemoteIP, "10.0.0.0/24")}},
			in(rbac.RemoteIP, "2001:db8::/32"),
			in(rbac.DirectRemoteIP, "10.0.0.0/16"),
		}}},
	}
	two := rules(rbacconfigv3.RBAC_DENY, anyPermission(), anyPrincipal())
	two.Policies["a"] = two.Policies["p"]
	open := func(name string) rbac.Policy {
		return rbac.Policy{Name: name, Permissions: []rbac.Rule{{Kind: rbac.Any}}, Principals: []rbac.Rule{{Kind: rbac.Any}}}
	}
	c := decodedChain(t, guarded(t, &rbacv3.RBAC{
		StatPrefix: "x", Rules: rules(rbacconfigv3.RBAC_ALLOW, permissions, principals), ShadowRules: two, EnforcementType: rbacv3.RBAC_CONTINUOUS,
	}))
	want := []RBAC{{&rbac.Rules{Policies: []rbac.Policy{policy}}, &rbac.Rules{Action: rbac.Deny, Policies: []rbac.Policy{open("a"), open("p")}}}}
	if d := cmp.Diff(want, c.RBAC, comparePrefix); d != "" || c.Unsupported != "" {
		t.Errorf("%s (-want +got):\n%s", c.Unsupported, d)
	}
	if c := decodedChain(t, guarded(t, &rbacv3.RBAC{})); len(c.RBAC) != 1 || c.RBAC[0] != (RBAC{}) {
		t.Errorf("no rules: %+v", c.RBAC)
	}
	if c := decodedChain(t, guarded(t, &rbacv3.RBAC{Rules: &rbacconfigv3.RBAC{}})); len(c.RBAC) != 1 || c.RBAC[0].Rules == nil || len(c.RBAC[0].Rules.Policies) > 0 {
		t.Errorf("empty rules: %+v", c.RBAC)
	}
}

// A rule of which a part is not known is not used without it: the chain refuses.
func TestDecodeRBACUnsupported(t *testing.T) {
	const at = `filter_chains[0].filters[0].typed_config.rules.policies["p"].`
	header := &routev3.HeaderMatcher{Name: "x"}
	withCondition := rules(0, anyPermission(), anyPrincipal())
	set(withCondition.Policies["p"], "condition")
	for want, r := range map[string]*rbacconfigv3.RBAC{
		at + "permissions[0].header":                             rules(0, &rbacconfigv3.Permission{Rule: &rbacconfigv3.Permission_Header{Header: header}}, anyPrincipal()),
		at + "permissions[0].not_rule.url_path":                  rules(1, &rbacconfigv3.Permission{Rule: &rbacconfigv3.Permission_NotRule{NotRule: &rbacconfigv3.Permission{Rule: &rbacconfigv3.Permission_UrlPath{UrlPath: &matcherv3.PathMatcher{}}}}}, anyPrincipal()),
		at + "principals[0].header":                              rules(1, anyPermission(), &rbacconfigv3.Principal{Identifier: &rbacconfigv3.Principal_Header{Header: header}}),
		at + "principals[0].metadata":                            rules(1, anyPermission(), &rbacconfigv3.Principal{Identifier: &rbacconfigv3.Principal_Metadata{Metadata: &matcherv3.MetadataMatcher{}}}),
		at + "principals[0].not_id.filter_state":                 rules(0, anyPermission(), &rbacconfigv3.Principal{Identifier: &rbacconfigv3.Principal_NotId{NotId: &rbacconfigv3.Principal{Identifier: &rbacconfigv3.Principal_FilterState{FilterState: &matcherv3.FilterStateMatcher{}}}}}),
		at + "principals[0].authenticated.principal_name.custom": rules(0, anyPermission(), principalNamed(&matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Custom{}})),
		at + "condition":                                         withCondition,
	} {
		if c := decodedChain(t, guarded(t, &rbacv3.RBAC{Rules: r})); c.Unsupported != want || len(c.RBAC) > 0 {
			t.Errorf("%q with %v, want %q", c.Unsupported, c.RBAC, want)
		}
		_, v, err := decodeListener(marshal(t, tcpListener(t, "l", guarded(t, &rbacv3.RBAC{ShadowRules: r}))))
		if err != nil {
			t.Fatal(err)
		}
		l := v.(*Listener)
		note := strings.Replace(want, ".rules.", ".shadow_rules.", 1) + ": the shadow rules are left out"
		if c := l.Chains[0]; c.Unsupported != "" || c.RBAC[0].Shadow != nil || len(l.Ignored) != 1 || l.Ignored[0] != note {
			t.Errorf("shadow: %q, %q, want %q", c.Unsupported, l.Ignored, note)
		}
	}
}

func TestDecodeRBACInvalid(t *testing.T) {
	deep := anyPrincipal()
	for range rbac.MaxDepth {
		deep = &rbacconfigv3.Principal{Identifier: &rbacconfigv3.Principal_NotId{NotId: deep}}
	}
	noPrincipal := rules(0, anyPermission(), nil)
	noPrincipal.Policies["p"].Principals = nil
	const all = `filter_chains[0].filters[0].typed_config.rules.`
	const at = all + `policies["p"].`
	for want, r := range map[string]*rbacconfigv3.RBAC{
		at + "permissions[0].rule: missing":                                                rules(0, &rbacconfigv3.Permission{}, anyPrincipal()),
		at + "permissions[0].any: false: want true":                                        rules(0, &rbacconfigv3.Permission{Rule: &rbacconfigv3.Permission_Any{}}, anyPrincipal()),
		at + "permissions[0].destination_port: 70000":                                      rules(0, &rbacconfigv3.Permission{Rule: &rbacconfigv3.Permission_DestinationPort{DestinationPort: 70000}}, anyPrincipal()),
		at + "permissions[0].destination_port_range: from 7 to below 7":                    rules(0, &rbacconfigv3.Permission{Rule: &rbacconfigv3.Permission_DestinationPortRange{DestinationPortRange: &typev3.Int32Range{Start: 7, End: 7}}}, anyPrincipal()),
		at + `permissions[0].destination_ip.address_prefix: "x"`:                           rules(0, &rbacconfigv3.Permission{Rule: &rbacconfigv3.Permission_DestinationIp{DestinationIp: cidr("x", 8)}}, anyPrincipal()),
		at + "principals[0].identifier: missing":                                           rules(0, anyPermission(), &rbacconfigv3.Principal{}),
		at + "principals[0].remote_ip.prefix_len: 33":                                      rules(0, anyPermission(), &rbacconfigv3.Principal{Identifier: &rbacconfigv3.Principal_RemoteIp{RemoteIp: cidr("10.0.0.0", 33)}}),
		at + "principals[0].authenticated.principal_name.match_pattern: missing":           rules(0, anyPermission(), principalNamed(&matcherv3.StringMatcher{})),
		at + "principals[0].authenticated.principal_name.prefix: empty":                    rules(0, anyPermission(), principalNamed(&matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Prefix{}})),
		all + `policies: policy "p": principals: the regex "(?:a?b?c?){1000}`:              rules(0, anyPermission(), principalNamed(regex(strings.Repeat("(?:a?b?c?){1000}", 200)))),
		all + `policies: policy "p": principals: a regex of 4097 bytes: want at most 4096`: rules(0, anyPermission(), principalNamed(regex(strings.Repeat("a", 4097)))),
		all + `policies: policy "p": principals: error parsing regexp: missing`:            rules(0, anyPermission(), principalNamed(regex("a("))),
		all + `policies: policy "p": principals: none, want at least one`:                  noPrincipal,
		all + `policies: policy "p": principals: error parsing regexp: invalid repeat`:     rules(0, anyPermission(), principalNamed(regex("(a{1000}){1000}"))),
		at + "principals[0].not_id.":                                                       rules(0, anyPermission(), deep),
		all + "action: 9: not known":                                                       rules(9, anyPermission(), anyPrincipal()),
	} {
		_, _, err := decodeListener(marshal(t, tcpListener(t, "l", guarded(t, &rbacv3.RBAC{Rules: r}))))
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

func inline(b []byte) *corev3.DataSource {
	return &corev3.DataSource{Specifier: &corev3.DataSource_InlineBytes{InlineBytes: b}}
}

func secured(t testing.TB, m *tlsv3.DownstreamTlsContext) change {
	return func(l *listenerv3.Listener) {
		l.FilterChains[0].TransportSocket = &corev3.TransportSocket{Name: "tls", ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: anyOf(t, m)}}
	}
}

// downstreamTLS has a certificate and an authority that clients are verified by.
func downstreamTLS(ca *tlstest.CA, p tlstest.Pair) *tlsv3.DownstreamTlsContext {
	return &tlsv3.DownstreamTlsContext{
		RequireClientCertificate: wrapperspb.Bool(true),
		CommonTlsContext: &tlsv3.CommonTlsContext{
			TlsCertificates:       []*tlsv3.TlsCertificate{{CertificateChain: inline(p.CertPEM), PrivateKey: inline(p.KeyPEM)}},
			ValidationContextType: &tlsv3.CommonTlsContext_ValidationContext{ValidationContext: &tlsv3.CertificateValidationContext{TrustedCa: inline(ca.PEM)}},
		},
	}
}

func TestDecodeDownstreamTLS(t *testing.T) {
	ca := tlstest.NewCA(t, "ca")
	p, other := ca.Issue(t, tlstest.Leaf{}), ca.Issue(t, tlstest.Leaf{})
	const at = "filter_chains[0].transport_socket.typed_config."
	const common = at + "common_tls_context."
	base := func(f func(*tlsv3.DownstreamTlsContext)) change {
		m := downstreamTLS(ca, p)
		f(m)
		return secured(t, m)
	}
	context := func(m *tlsv3.DownstreamTlsContext) *tlsv3.CertificateValidationContext {
		return m.CommonTlsContext.GetValidationContext()
	}
	c := decodedChain(t, base(func(m *tlsv3.DownstreamTlsContext) {
		m.CommonTlsContext.AlpnProtocols = []string{"h2"}
		m.CommonTlsContext.TlsParams = &tlsv3.TlsParameters{TlsMinimumProtocolVersion: tlsv3.TlsParameters_TLSv1_3}
		context(m).MatchTypedSubjectAltNames = []*tlsv3.SubjectAltNameMatcher{{SanType: tlsv3.SubjectAltNameMatcher_URI, Matcher: exactly("spiffe://a/b")}}
		m.SessionTicketKeysType = &tlsv3.DownstreamTlsContext_DisableStatelessSessionResumption{DisableStatelessSessionResumption: true}
	}))
	want := &tlsconf.ServerConfig{
		More: []tlsconf.KeyPair{{
			CertFile: common + "tls_certificates[0].certificate_chain", Cert: string(p.CertPEM),
			KeyFile: common + "tls_certificates[0].private_key", Key: string(p.KeyPEM),
		}},
		ClientCAFile: common + "validation_context.trusted_ca", ClientCA: string(ca.PEM), RequireClientCert: true, ALPN: []string{"h2"}, AnyALPN: true,
		SANs: []tlsconf.Matcher{{Type: tlsconf.URI, Exact: "spiffe://a/b"}}, MinVersion: 0x304, NoResumption: true, RefuseExpired: true,
	}
	if d := cmp.Diff(want, c.TLS); d != "" || c.Unsupported != "" {
		t.Errorf("%s (-want +got):\n%s", c.Unsupported, d)
	}
	if _, err := tlsconf.NewServer(*c.TLS); err != nil {
		t.Error(err)
	}
	sds := &tlsv3.SdsSecretConfig{Name: "default"}
	for want, f := range map[string]func(*tlsv3.DownstreamTlsContext){
		common + "tls_certificate_sds_secret_configs[0].sds_config: missing, and there are no secrets but those of the control plane": func(m *tlsv3.DownstreamTlsContext) {
			m.CommonTlsContext.TlsCertificates, m.CommonTlsContext.TlsCertificateSdsSecretConfigs = nil, []*tlsv3.SdsSecretConfig{sds}
		},
		common + "validation_context_sds_secret_config.sds_config other than ads and self": func(m *tlsv3.DownstreamTlsContext) {
			m.CommonTlsContext.ValidationContextType = &tlsv3.CommonTlsContext_ValidationContextSdsSecretConfig{ValidationContextSdsSecretConfig: &tlsv3.SdsSecretConfig{
				Name: "ROOTCA", SdsConfig: &corev3.ConfigSource{ConfigSourceSpecifier: &corev3.ConfigSource_ApiConfigSource{}},
			}}
		},
		common + "validation_context.crl": func(m *tlsv3.DownstreamTlsContext) { context(m).Crl = inline([]byte("x")) },
		common + "validation_context.verify_certificate_hash and verify_certificate_spki": func(m *tlsv3.DownstreamTlsContext) {
			context(m).VerifyCertificateHash = []string{strings.Repeat("00", 32)}
		},
		common + "validation_context.system_root_certs": func(m *tlsv3.DownstreamTlsContext) {
			context(m).SystemRootCerts = &tlsv3.CertificateValidationContext_SystemRootCerts{}
		},
		common + "tls_certificates[0].password": func(m *tlsv3.DownstreamTlsContext) {
			m.CommonTlsContext.TlsCertificates[0].Password = inline([]byte("x"))
		},
		at + "require_sni":                                     func(m *tlsv3.DownstreamTlsContext) { m.RequireSni = wrapperspb.Bool(true) },
		at + "ocsp_staple_policy MUST_STAPLE":                  func(m *tlsv3.DownstreamTlsContext) { m.OcspStaplePolicy = tlsv3.DownstreamTlsContext_MUST_STAPLE },
		at + "require_client_certificate without a trusted_ca": func(m *tlsv3.DownstreamTlsContext) { m.CommonTlsContext.ValidationContextType = nil },
		common + "tls_params.tls_maximum_protocol_version TLSv1_1": func(m *tlsv3.DownstreamTlsContext) {
			m.CommonTlsContext.TlsParams = &tlsv3.TlsParameters{TlsMaximumProtocolVersion: tlsv3.TlsParameters_TLSv1_1}
		},
		common + "tls_certificates[0].private_key.environment_variable": func(m *tlsv3.DownstreamTlsContext) {
			m.CommonTlsContext.TlsCertificates[0].PrivateKey = &corev3.DataSource{Specifier: &corev3.DataSource_EnvironmentVariable{EnvironmentVariable: "X"}}
		},
		common + "validation_context: names of clients without require_client_certificate": func(m *tlsv3.DownstreamTlsContext) {
			m.RequireClientCertificate = nil
			context(m).MatchTypedSubjectAltNames = []*tlsv3.SubjectAltNameMatcher{{SanType: tlsv3.SubjectAltNameMatcher_URI, Matcher: exactly("spiffe://a/b")}}
		},
		common + "validation_context.match_typed_subject_alt_names[0].san_type OTHER_NAME": func(m *tlsv3.DownstreamTlsContext) {
			context(m).MatchTypedSubjectAltNames = []*tlsv3.SubjectAltNameMatcher{{SanType: tlsv3.SubjectAltNameMatcher_OTHER_NAME, Matcher: exactly("x")}}
		},
	} {
		if c := decodedChain(t, base(f)); c.Unsupported != want || c.TLS != nil {
			t.Errorf("%q, want %q", c.Unsupported, want)
		}
	}
	for want, f := range map[string]func(*tlsv3.DownstreamTlsContext){
		common + "tls_certificates: none": func(m *tlsv3.DownstreamTlsContext) { m.CommonTlsContext.TlsCertificates = nil },
		"filter_chains[0].transport_socket.typed_config.common_tls_context: certificate " + common + "tls_certificates[0].certificate_chain and key ": func(m *tlsv3.DownstreamTlsContext) {
			m.CommonTlsContext.TlsCertificates[0].PrivateKey = inline(other.KeyPEM)
		},
		common + "tls_certificates[0].private_key: missing": func(m *tlsv3.DownstreamTlsContext) { m.CommonTlsContext.TlsCertificates[0].PrivateKey = nil },
		"filter_chains[0].transport_socket.typed_config.common_tls_context: " + common + "validation_context.trusted_ca: no PEM": func(m *tlsv3.DownstreamTlsContext) {
			context(m).TrustedCa = inline([]byte("nonsense"))
		},
		common + "validation_context: names of clients without a trusted_ca": func(m *tlsv3.DownstreamTlsContext) {
			context(m).TrustedCa = nil
			context(m).MatchSubjectAltNames = []*matcherv3.StringMatcher{exactly("x")}
		},
		common + "validation_context.match_subject_alt_names[0].match_pattern: a regex of 5000 bytes: want at most 4096": func(m *tlsv3.DownstreamTlsContext) {
			context(m).MatchSubjectAltNames = []*matcherv3.StringMatcher{regex(strings.Repeat("a", 5000))}
		},
	} {
		_, _, err := decodeListener(marshal(t, tcpListener(t, "l", base(f))))
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		} else if strings.Contains(err.Error(), "PRIVATE KEY-----") {
			t.Errorf("a key is shown: %v", err)
		}
	}
	// What has expired is taken: it is judged when it is used.
	old := ca.Issue(t, tlstest.Leaf{NotBefore: ca.Cert.NotBefore, NotAfter: ca.Cert.NotBefore.AddDate(0, 0, 1)})
	if c := decodedChain(t, secured(t, downstreamTLS(ca, old))); c.TLS == nil {
		t.Error("an expired certificate was refused")
	}
}
