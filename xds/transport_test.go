package xds

//lint:file-ignore SA1019 control planes send what is deprecated, too

import (
	"crypto/sha256"
	"crypto/tls"
	"encoding/base64"
	"encoding/hex"
	"strings"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	rawbufferv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/raw_buffer/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"gatehouse.internal/internal/tlsconf"
	"gatehouse.internal/internal/tlsconf/tlstest"
	"gatehouse.internal/lbcore"
)

func socketOf(t testing.TB, m proto.Message) *corev3.TransportSocket {
	return &corev3.TransportSocket{Name: "envoy.transport_sockets.tls", ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: anyOf(t, m)}}
}

// over has connections secured so.
func over(t testing.TB, m *tlsv3.UpstreamTlsContext) mutate {
	return func(c *clusterv3.Cluster) { c.TransportSocket = socketOf(t, m) }
}

// byMode has endpoints secured as Istio does.
func byMode(t testing.TB, m *tlsv3.UpstreamTlsContext) mutate {
	return func(c *clusterv3.Cluster) {
		c.TransportSocketMatches = []*clusterv3.Cluster_TransportSocketMatch{
			{Name: "tlsMode-istio", Match: structOf("tlsMode", "istio"), TransportSocket: socketOf(t, m)},
			{Name: "tlsMode-disabled", Match: &structpb.Struct{}, TransportSocket: socketOf(t, &rawbufferv3.RawBuffer{})},
		}
	}
}

// structOf has the fields that pairs of a name and a value make.
func structOf(pairs ...any) *structpb.Struct {
	s := &structpb.Struct{Fields: make(map[string]*structpb.Value)}
	for i := 0; i < len(pairs); i += 2 {
		v, err := structpb.NewValue(pairs[i+1])
		if err != nil {
			panic(err)
		}
		s.Fields[pairs[i].(string)] = v
	}
	return s
}

// upstreamTLS has a certificate and an authority that endpoints are verified by.
func upstreamTLS(ca *tlstest.CA, p tlstest.Pair) *tlsv3.UpstreamTlsContext {
	return &tlsv3.UpstreamTlsContext{
		Sni: "web.internal",
		CommonTlsContext: &tlsv3.CommonTlsContext{
			TlsCertificates: []*tlsv3.TlsCertificate{{CertificateChain: inline(p.CertPEM), PrivateKey: inline(p.KeyPEM)}},
			ValidationContextType: &tlsv3.CommonTlsContext_ValidationContext{ValidationContext: &tlsv3.CertificateValidationContext{
				TrustedCa:                 inline(ca.PEM),
				MatchTypedSubjectAltNames: []*tlsv3.SubjectAltNameMatcher{{SanType: tlsv3.SubjectAltNameMatcher_URI, Matcher: exactly("spiffe://a/b")}},
			}},
		},
	}
}

func validationOf(m *tlsv3.UpstreamTlsContext) *tlsv3.CertificateValidationContext {
	return m.CommonTlsContext.GetValidationContext()
}

func decodedTransport(t *testing.T, with ...mutate) *Cluster {
	t.Helper()
	_, v, err := decodeCluster(marshal(t, edsCluster("web", with...)))
	if err != nil {
		t.Fatal(err)
	}
	return v.(*Cluster)
}

func TestDecodeUpstreamTLS(t *testing.T) {
	ca := tlstest.NewCA(t, "ca")
	p, other := ca.Issue(t, tlstest.Leaf{}), ca.Issue(t, tlstest.Leaf{})
	const at = "transport_socket.typed_config."
	const common = at + "common_tls_context."
	with := func(f func(*tlsv3.UpstreamTlsContext)) mutate {
		m := upstreamTLS(ca, p)
		f(m)
		return over(t, m)
	}
	base := func() *UpstreamTLS {
		return &UpstreamTLS{ClientConfig: tlsconf.ClientConfig{
			CertFile: common + "tls_certificates[0].certificate_chain", Cert: string(p.CertPEM),
			KeyFile: common + "tls_certificates[0].private_key", Key: string(p.KeyPEM),
			CAFile: common + "validation_context.trusted_ca", CA: string(ca.PEM),
			ServerName: "web.internal", SANs: []tlsconf.Matcher{{Type: tlsconf.URI, Exact: "spiffe://a/b"}},
			MaxSessions: -1, // as there is a certificate
		}}
	}
	digest := sha256.Sum256(p.Cert.Raw)
	key := sha256.Sum256(p.Cert.RawSubjectPublicKeyInfo)
	colons := func(b []byte) string {
		var parts []string
		for _, x := range b {
			parts = append(parts, hex.EncodeToString([]byte{x}))
		}
		return strings.Join(parts, ":")
	}
	for name, tt := range map[string]struct {
		with     func(*tlsv3.UpstreamTlsContext)
		want     func(*UpstreamTLS)
		warnings []string
		ignored  []string
	}{
		"all that it has": {
			func(m *tlsv3.UpstreamTlsContext) {
				m.AutoHostSni, m.MaxSessionKeys, m.AllowRenegotiation = true, wrapperspb.UInt32(7), true
				m.CommonTlsContext.AlpnProtocols = []string{"istio"}
				m.CommonTlsContext.TlsParams = &tlsv3.TlsParameters{
					TlsMinimumProtocolVersion: tlsv3.TlsParameters_TLSv1_2, TlsMaximumProtocolVersion: tlsv3.TlsParameters_TLSv1_3,
					CipherSuites: []string{"[ECDHE-ECDSA-AES128-GCM-SHA256|ECDHE-ECDSA-CHACHA20-POLY1305]", "AES128-SHA"},
				}
			},
			func(c *UpstreamTLS) {
				c.HostSNI, c.MaxSessions, c.ALPN, c.MinVersion, c.MaxVersion = true, 7, []string{"istio"}, tls.VersionTLS12, tls.VersionTLS13
				c.CipherSuites = []uint16{tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256}
			}, nil, []string{at + "allow_renegotiation", common + `tls_params.cipher_suites[1]: "AES128-SHA" is left out`},
		},
		"no sessions": {
			func(m *tlsv3.UpstreamTlsContext) { m.MaxSessionKeys = wrapperspb.UInt32(0) },
			func(c *UpstreamTLS) { c.MaxSessions = -1 }, nil, nil,
		},
		"names of the old field": {
			func(m *tlsv3.UpstreamTlsContext) {
				validationOf(m).MatchTypedSubjectAltNames = nil
				validationOf(m).MatchSubjectAltNames = []*matcherv3.StringMatcher{{MatchPattern: &matcherv3.StringMatcher_Suffix{Suffix: ".internal"}}, regex("a.*")}
			},
			func(c *UpstreamTLS) { c.SANs = []tlsconf.Matcher{{Suffix: ".internal"}, {Regex: "a.*"}} }, nil, nil,
		},
		"files": {
			func(m *tlsv3.UpstreamTlsContext) {
				file := func(name string) *corev3.DataSource {
					return &corev3.DataSource{Specifier: &corev3.DataSource_Filename{Filename: name}}
				}
				m.CommonTlsContext.TlsCertificates = []*tlsv3.TlsCertificate{{CertificateChain: file("/c"), PrivateKey: file("/k")}}
				validationOf(m).TrustedCa = file("/ca")
			},
			func(c *UpstreamTLS) {
				c.CertFile, c.KeyFile, c.CAFile, c.Cert, c.Key, c.CA = "/c", "/k", "/ca", "", "", ""
			}, nil, nil,
		},
		"the name that is sent": {
			func(m *tlsv3.UpstreamTlsContext) { m.AutoSniSanValidation = true },
			func(c *UpstreamTLS) { c.SANs = nil }, nil, nil,
		},
		"the system's authorities": {
			func(m *tlsv3.UpstreamTlsContext) {
				validationOf(m).TrustedCa, validationOf(m).SystemRootCerts = nil, &tlsv3.CertificateValidationContext_SystemRootCerts{}
			},
			func(c *UpstreamTLS) { c.CA, c.CAFile = "", "" }, nil, nil,
		},
		"any name": {
			func(m *tlsv3.UpstreamTlsContext) { validationOf(m).MatchTypedSubjectAltNames = nil },
			func(c *UpstreamTLS) { c.SANs, c.AnyName = nil, true },
			[]string{common + "validation_context without names to match: endpoints may show any certificate of a trusted authority"}, nil,
		},
		"nothing verified": {
			func(m *tlsv3.UpstreamTlsContext) { m.CommonTlsContext.ValidationContextType = nil },
			func(c *UpstreamTLS) { c.SANs, c.CA, c.CAFile, c.Unverified = nil, "", "", true },
			[]string{common + "validation_context without a trusted_ca: endpoints' certificates are not verified, and anybody on the way can pose as one"}, nil,
		},
		"pins": {
			func(m *tlsv3.UpstreamTlsContext) {
				v := validationOf(m)
				v.TrustedCa, v.MatchTypedSubjectAltNames = nil, nil
				v.VerifyCertificateHash = []string{hex.EncodeToString(digest[:]), colons(digest[:])}
				v.VerifyCertificateSpki = []string{base64.StdEncoding.EncodeToString(key[:])}
			},
			func(c *UpstreamTLS) {
				c.SANs, c.CA, c.CAFile, c.Unverified = nil, "", "", true
				c.Pins = []tlsconf.Pin{{Digest: digest}, {Digest: digest}, {Key: true, Digest: key}}
			}, nil, nil,
		},
		"what would let pass more": {
			func(m *tlsv3.UpstreamTlsContext) {
				validationOf(m).AllowExpiredCertificate = true
				validationOf(m).TrustChainVerification = tlsv3.CertificateValidationContext_ACCEPT_UNTRUSTED
			},
			func(*UpstreamTLS) {}, nil, []string{common + "validation_context.allow_expired_certificate", common + "validation_context.trust_chain_verification"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := decodedTransport(t, with(tt.with))
			want := base()
			tt.want(want)
			if d := cmp.Diff(TransportSocket{TLS: want}, c.Transport, cmpopts.IgnoreUnexported(TransportSocket{})); d != "" || c.Unsupported != "" {
				t.Errorf("%s (-want +got):\n%s", c.Unsupported, d)
			}
			if d := cmp.Diff(tt.warnings, c.Warnings) + cmp.Diff(tt.ignored, c.Ignored); d != "" {
				t.Error(d)
			}
			if c.Transport.TLS.CertFile == "/c" {
				return
			}
			if _, err := tlsconf.NewClient(c.Transport.TLS.ClientConfig); err != nil {
				t.Error(err)
			}
		})
	}
	for want, f := range map[string]func(*tlsv3.UpstreamTlsContext){
		common + "validation_context.crl": func(m *tlsv3.UpstreamTlsContext) { validationOf(m).Crl = inline([]byte("x")) },
		common + "validation_context.custom_validator_config": func(m *tlsv3.UpstreamTlsContext) {
			validationOf(m).CustomValidatorConfig = &corev3.TypedExtensionConfig{Name: "spiffe"}
		},
		common + "tls_certificates[0].pkcs12": func(m *tlsv3.UpstreamTlsContext) { m.CommonTlsContext.TlsCertificates[0].Pkcs12 = inline([]byte("x")) },
		common + "tls_params.cipher_suites: none of them is known": func(m *tlsv3.UpstreamTlsContext) {
			m.CommonTlsContext.TlsParams = &tlsv3.TlsParameters{CipherSuites: []string{"RC4-MD5"}}
		},
	} {
		if c := decodedTransport(t, with(f)); c.Unsupported != want || c.Transport.Unsupported != want || c.Transport.TLS != nil {
			t.Errorf("%q, want %q", c.Unsupported, want)
		}
	}
	for want, f := range map[string]func(*tlsv3.UpstreamTlsContext){
		at + "sni: 256 bytes": func(m *tlsv3.UpstreamTlsContext) { m.Sni = strings.Repeat("a", 256) },
		at + "common_tls_context: 2 certificates": func(m *tlsv3.UpstreamTlsContext) {
			m.CommonTlsContext.TlsCertificateSdsSecretConfigs = []*tlsv3.SdsSecretConfig{sds("x")}
		},
		at + "common_tls_context: certificate " + common + "tls_certificates[0].certificate_chain and key ": func(m *tlsv3.UpstreamTlsContext) {
			m.CommonTlsContext.TlsCertificates[0].PrivateKey = inline(other.KeyPEM)
		},
		common + "tls_certificates[0].private_key: missing":                                     func(m *tlsv3.UpstreamTlsContext) { m.CommonTlsContext.TlsCertificates[0].PrivateKey = nil },
		at + "common_tls_context: " + common + "validation_context.trusted_ca: no PEM":          func(m *tlsv3.UpstreamTlsContext) { validationOf(m).TrustedCa = inline([]byte("nonsense")) },
		common + "validation_context: names of endpoints without a trusted_ca":                  func(m *tlsv3.UpstreamTlsContext) { validationOf(m).TrustedCa = nil },
		common + `validation_context.verify_certificate_hash[0]: "zz": want a SHA-256 digest`:   func(m *tlsv3.UpstreamTlsContext) { validationOf(m).VerifyCertificateHash = []string{"zz"} },
		common + `validation_context.verify_certificate_spki[0]: "AAAA": want a SHA-256 digest`: func(m *tlsv3.UpstreamTlsContext) { validationOf(m).VerifyCertificateSpki = []string{"AAAA"} },
		common + "validation_context.match_subject_alt_names[0].match_pattern: a regex of 5000 bytes: want at most 4096": func(m *tlsv3.UpstreamTlsContext) {
			validationOf(m).MatchSubjectAltNames = []*matcherv3.StringMatcher{regex(strings.Repeat("a", 5000))}
		},
		at + "auto_sni_san_validation without a trusted_ca": func(m *tlsv3.UpstreamTlsContext) {
			m.AutoSniSanValidation, m.CommonTlsContext.ValidationContextType = true, nil
		},
	} {
		_, _, err := decodeCluster(marshal(t, edsCluster("web", with(f))))
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		} else if strings.Contains(err.Error(), "PRIVATE KEY-----") {
			t.Errorf("a key is shown: %v", err)
		}
	}
	// What has expired is taken: it is judged when it is used.
	old := ca.Issue(t, tlstest.Leaf{NotBefore: ca.Cert.NotBefore, NotAfter: ca.Cert.NotBefore.AddDate(0, 0, 1)})
	if c := decodedTransport(t, over(t, upstreamTLS(ca, old))); c.Transport.TLS == nil {
		t.Error("an expired certificate was refused")
	}
}

// Each endpoint finds its transport socket by what it and its locality say.
func TestTransportSocketMatches(t *testing.T) {
	ca := tlstest.NewCA(t, "ca")
	up := upstreamTLS(ca, ca.Issue(t, tlstest.Leaf{}))
	c := decodedTransport(t, byMode(t, up), func(c *clusterv3.Cluster) {
		c.TransportSocketMatches = append(c.TransportSocketMatches, &clusterv3.Cluster_TransportSocketMatch{
			Name: "numbers", Match: structOf("n", 1, "list", []any{true, nil}), TransportSocket: &corev3.TransportSocket{Name: "tap"},
		})
	})
	labels := func(behind lbcore.Labels, pairs ...any) lbcore.Labels { return labelsOf(structOf(pairs...), behind) }
	none := lbcore.Labels{}
	if len(c.TransportMatches) != 3 || c.Unsupported != "" || c.Transport != (TransportSocket{}) {
		t.Fatalf("%+v", c)
	}
	for i, want := range []TransportSocket{
		{Name: "tlsMode-istio", Match: labels(none, "tlsMode", "istio")}, {Name: "tlsMode-disabled"},
		{Name: "numbers", Match: labels(none, "n", 1.0, "list", []any{true, nil}), Unsupported: `transport_socket_matches[2].transport_socket "tap"`},
	} {
		got := c.TransportMatches[i]
		if tls := got.TLS != nil; tls != (i == 0) {
			t.Errorf("match %d has TLS: %v", i, tls)
		}
		got.TLS = nil
		if d := cmp.Diff(want, got, cmpopts.IgnoreUnexported(TransportSocket{})); d != "" {
			t.Errorf("match %d (-want +got):\n%s", i, d)
		}
	}
	if want := []string{`endpoints that would need it are not dialled: transport_socket_matches[2].transport_socket "tap"`}; !cmp.Equal(c.Warnings, want) {
		t.Errorf("warnings %q, want %q", c.Warnings, want)
	}

	metadata := func(s *structpb.Struct) *corev3.Metadata {
		return &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{transportKey: s, "other": structOf("tlsMode", "istio")}}
	}
	one, two, three := lb(socket("192.0.2.1", 80)), lb(socket("192.0.2.2", 80)), lb(socket("192.0.2.3", 80))
	one.Metadata = metadata(structOf("tlsMode", "istio", "n", 1))
	two.Metadata = metadata(nil)
	here, there := locality(0, one, two), locality(1, three)
	here.Metadata = metadata(structOf("zone", "a"))
	_, v, err := decodeAssignment(marshal(t, cla("web", here, there)))
	if err != nil {
		t.Fatal(err)
	}
	zone := labels(none, "zone", "a")
	for i, want := range []lbcore.Labels{labels(zone, "tlsMode", "istio", "n", 1), labels(zone), none} {
		if got := v.(*assignment).set.At(i).TransportMatch; got != want {
			t.Errorf("endpoint %d: %s, want %s", i, got, want)
		}
	}

	for want, f := range map[string]mutate{
		"transport_socket_matches[0].name: missing":                                func(c *clusterv3.Cluster) { c.TransportSocketMatches[0].Name = "" },
		"transport_socket_matches[0].transport_socket.typed_config.sni: 300 bytes": byMode(t, &tlsv3.UpstreamTlsContext{Sni: strings.Repeat("a", 300)}),
	} {
		if _, _, err := decodeCluster(marshal(t, edsCluster("web", byMode(t, up), f))); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// Probes have a word of their own on TLS.
func TestCheckTransport(t *testing.T) {
	c := decodedTransport(t, tcpCheck(func(h *corev3.HealthCheck) {
		h.TlsOptions = &corev3.HealthCheck_TlsOptions{AlpnProtocols: []string{"check"}}
		h.TransportSocketMatchCriteria = structOf("tlsMode", "istio")
	}))
	h := c.HealthChecks[0]
	if want := labelsOf(structOf("tlsMode", "istio"), lbcore.Labels{}); !cmp.Equal(h.ALPN, []string{"check"}) || h.TransportMatch != want {
		t.Errorf("%+v", h)
	}
	_, _, err := decodeCluster(marshal(t, edsCluster("web", tcpCheck(func(h *corev3.HealthCheck) {
		h.TlsOptions = &corev3.HealthCheck_TlsOptions{AlpnProtocols: []string{""}}
	}))))
	if want := `health_checks[0].tls_options.alpn_protocols: "": want 1 to 255 bytes`; err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}
