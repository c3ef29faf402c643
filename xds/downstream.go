package xds

//lint:file-ignore SA1019 control planes send what is deprecated, too

import (
	"crypto/tls"
	"fmt"
	"slices"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/proto"

	"gatehouse.internal/internal/tlsconf"
)

// The tables of the messages of downstream TLS. What is left out makes TLS weaker
// nowhere: what would is refused.
var (
	downstreamFields = map[string]use{
		"common_tls_context": applied, "require_client_certificate": applied, "disable_stateless_session_resumption": applied,
		"require_sni": applied, "ocsp_staple_policy": applied,
		"disable_stateful_session_resumption": harmless, "full_scan_certs_on_sni_mismatch": harmless, // there are no such sessions; all certificates are looked at
	}
	commonTLSFields = map[string]use{
		"tls_params": applied, "tls_certificates": applied, "validation_context": applied, "alpn_protocols": applied,
		"combined_validation_context": applied,

		"tls_certificate_sds_secret_configs": refused, "tls_certificate_provider_instance": refused,
		"tls_certificate_certificate_provider": refused, "tls_certificate_certificate_provider_instance": refused,
		"validation_context_sds_secret_config": refused, "validation_context_certificate_provider": refused,
		"validation_context_certificate_provider_instance": refused, "custom_handshaker": refused,
		"custom_tls_certificate_selector": refused,
	}
	tlsParamsFields = map[string]use{
		"tls_minimum_protocol_version": applied, "tls_maximum_protocol_version": applied, "compliance_policies": refused,
	}
	certificateFields = map[string]use{
		"certificate_chain": applied, "private_key": applied, "watched_directory": harmless,
		"pkcs12": refused, "private_key_provider": refused, "password": refused,
	}
	validationFields = map[string]use{
		"trusted_ca": applied, "match_typed_subject_alt_names": applied, "match_subject_alt_names": applied,
		"watched_directory": harmless, "suppress_client_ca_list": harmless,
		"ca_certificate_provider_instance": refused, "system_root_certs": refused, "verify_certificate_spki": refused,
		"verify_certificate_hash": refused, "crl": refused, "custom_validator_config": refused,
		"require_signed_certificate_timestamp": refused, "max_verify_depth": refused,
	}
)

// tlsReader gathers what is found in a TLS context of either side.
type tlsReader struct {
	commonTLS
	ignored, unsupported []string
}

// commonTLS is a CommonTlsContext. The names of files are those of fields where the
// data is given.
type commonTLS struct {
	pairs      []tlsconf.KeyPair
	caFile, ca string
	sans       []tlsconf.Matcher
	alpn       []string

	minVersion, maxVersion uint16
}

func (r *tlsReader) refuse(format string, args ...any) {
	r.unsupported = append(r.unsupported, fmt.Sprintf(format, args...))
}

func (r *tlsReader) ignore(format string, args ...any) {
	r.ignored = append(r.ignored, fmt.Sprintf(format, args...))
}

// fields sorts the fields of m that are set by the table.
func (r *tlsReader) fields(m proto.Message, path string, table map[string]use) {
	var refused []string
	sortFields(m, table,
		func(name string) { r.ignored = append(r.ignored, path+name) },
		func(name string) { refused = append(refused, path+name) })
	slices.Sort(refused)
	r.unsupported = append(r.unsupported, refused...)
}

// verifies reports whether there are authorities.
func (c *commonTLS) verifies() bool { return c.caFile != "" || c.ca != "" }

// tls reads a DownstreamTlsContext, the path of which ends in a dot.
func (r *chainReader) tls(m *tlsv3.DownstreamTlsContext, path string) error {
	var t tlsReader
	t.fields(m, path, downstreamFields)
	if m.GetRequireSni().GetValue() {
		t.refuse("%srequire_sni", path)
	}
	if m.GetOcspStaplePolicy() == tlsv3.DownstreamTlsContext_MUST_STAPLE {
		t.refuse("%socsp_staple_policy MUST_STAPLE", path)
	}
	if err := t.common(m.GetCommonTlsContext(), path+"common_tls_context."); err != nil {
		return err
	}
	c := &tlsconf.ServerConfig{
		More: t.pairs, ClientCAFile: t.caFile, ClientCA: t.ca, ALPN: t.alpn, SANs: t.sans, MinVersion: t.minVersion, MaxVersion: t.maxVersion,
		RequireClientCert: m.GetRequireClientCertificate().GetValue(),
		NoResumption:      m.GetDisableStatelessSessionResumption(),
	}
	switch {
	case len(t.unsupported) > 0: // it is not used
	case len(c.More) == 0:
		return fmt.Errorf("%scommon_tls_context.tls_certificates: none: a server needs one", path)
	case len(c.SANs) > 0 && !t.verifies():
		return fmt.Errorf("%scommon_tls_context.validation_context: names of clients without a trusted_ca", path)
	case c.RequireClientCert && !t.verifies():
		t.refuse("%srequire_client_certificate without a trusted_ca", path)
	case len(c.SANs) > 0 && !c.RequireClientCert:
		t.refuse("%scommon_tls_context.validation_context: names of clients without require_client_certificate", path)
	default:
		if err := c.Validate(); err != nil {
			return fmt.Errorf("%scommon_tls_context: %w", path, err)
		}
	}
	r.c.TLS = c
	r.l.Ignored = append(r.l.Ignored, t.ignored...)
	r.sort(t.unsupported)
	return nil
}

// common reads a CommonTlsContext.
func (r *tlsReader) common(m *tlsv3.CommonTlsContext, path string) error {
	r.fields(m, path, commonTLSFields)
	r.alpn = m.GetAlpnProtocols()
	if p := m.GetTlsParams(); p != nil {
		r.fields(p, path+"tls_params.", tlsParamsFields)
		var err error
		if r.minVersion, r.maxVersion, err = r.versions(p, path+"tls_params."); err != nil {
			return err
		}
	}
	for i, cert := range m.GetTlsCertificates() {
		at := fmt.Sprintf("%stls_certificates[%d].", path, i)
		r.fields(cert, at, certificateFields)
		if len(r.unsupported) > 0 {
			continue
		}
		var kp tlsconf.KeyPair
		var err error
		if kp.CertFile, kp.Cert, err = r.data(cert.GetCertificateChain(), at+"certificate_chain"); err != nil {
			return err
		}
		if kp.KeyFile, kp.Key, err = r.data(cert.GetPrivateKey(), at+"private_key"); err != nil {
			return err
		}
		r.pairs = append(r.pairs, kp)
	}
	switch v := m.GetValidationContextType().(type) {
	case *tlsv3.CommonTlsContext_ValidationContext:
		return r.validation(v.ValidationContext, path+"validation_context.")
	case *tlsv3.CommonTlsContext_CombinedValidationContext:
		// The secret's part is not known, and goes before the default.
		r.refuse("%scombined_validation_context", path)
	}
	return nil
}

// versions reads the bounds of the version. What is below TLS 1.2 is not spoken.
func (r *tlsReader) versions(p *tlsv3.TlsParameters, path string) (lowest, highest uint16, err error) {
	read := func(v tlsv3.TlsParameters_TlsProtocol, name string) (uint16, error) {
		switch v {
		case tlsv3.TlsParameters_TLS_AUTO:
			return 0, nil
		case tlsv3.TlsParameters_TLSv1_0, tlsv3.TlsParameters_TLSv1_1:
			return tls.VersionTLS11, nil
		case tlsv3.TlsParameters_TLSv1_2:
			return tls.VersionTLS12, nil
		case tlsv3.TlsParameters_TLSv1_3:
			return tls.VersionTLS13, nil
		}
		return 0, fmt.Errorf("%s%s: %d: not known", path, name, v)
	}
	if lowest, err = read(p.GetTlsMinimumProtocolVersion(), "tls_minimum_protocol_version"); err != nil {
		return 0, 0, err
	}
	if highest, err = read(p.GetTlsMaximumProtocolVersion(), "tls_maximum_protocol_version"); err != nil {
		return 0, 0, err
	}
	if lowest == tls.VersionTLS11 {
		r.ignore("%stls_minimum_protocol_version %s: it is TLSv1_2", path, p.GetTlsMinimumProtocolVersion())
		lowest = tls.VersionTLS12
	}
	if highest == tls.VersionTLS11 {
		r.refuse("%stls_maximum_protocol_version %s", path, p.GetTlsMaximumProtocolVersion())
		highest = 0
	}
	return lowest, highest, nil
}

// validation reads how certificates of the other side are verified.
func (r *tlsReader) validation(m *tlsv3.CertificateValidationContext, path string) error {
	r.fields(m, path, validationFields) // what lets pass more is ignored
	if m.GetTrustedCa() != nil {
		var err error
		if r.caFile, r.ca, err = r.data(m.GetTrustedCa(), path+"trusted_ca"); err != nil {
			return err
		}
	}
	for i, s := range m.GetMatchTypedSubjectAltNames() {
		at := fmt.Sprintf("%smatch_typed_subject_alt_names[%d].", path, i)
		types := map[tlsv3.SubjectAltNameMatcher_SanType]tlsconf.SANType{
			tlsv3.SubjectAltNameMatcher_DNS: tlsconf.DNS, tlsv3.SubjectAltNameMatcher_URI: tlsconf.URI,
			tlsv3.SubjectAltNameMatcher_EMAIL: tlsconf.Email, tlsv3.SubjectAltNameMatcher_IP_ADDRESS: tlsconf.IP,
		}
		kind, known := types[s.GetSanType()]
		if !known {
			r.refuse("%ssan_type %s", at, s.GetSanType())
			continue
		}
		if err := r.san(kind, s.GetMatcher(), at+"matcher."); err != nil {
			return err
		}
	}
	for i, s := range m.GetMatchSubjectAltNames() {
		if err := r.san(tlsconf.AnySAN, s, fmt.Sprintf("%smatch_subject_alt_names[%d].", path, i)); err != nil {
			return err
		}
	}
	return nil
}

// san reads a name that certificates may have.
func (r *tlsReader) san(kind tlsconf.SANType, m *matcherv3.StringMatcher, path string) error {
	s := tlsconf.Matcher{Type: kind, IgnoreCase: m.GetIgnoreCase()}
	switch x := m.GetMatchPattern().(type) {
	case *matcherv3.StringMatcher_Exact:
		s.Exact = x.Exact
	case *matcherv3.StringMatcher_Prefix:
		s.Prefix = x.Prefix
	case *matcherv3.StringMatcher_Suffix:
		s.Suffix = x.Suffix
	case *matcherv3.StringMatcher_Contains:
		s.Contains = x.Contains
	case *matcherv3.StringMatcher_SafeRegex:
		s.Regex, s.IgnoreCase = x.SafeRegex.GetRegex(), false
	case *matcherv3.StringMatcher_Custom:
		r.refuse("%scustom", path)
		return nil
	}
	if err := s.Validate(); err != nil {
		return fmt.Errorf("%smatch_pattern: %w", path, err)
	}
	r.sans = append(r.sans, s)
	return nil
}

// data reads where PEM is, or what it is: then at names it in errors.
func (r *tlsReader) data(m *corev3.DataSource, at string) (file, text string, err error) {
	switch s := m.GetSpecifier().(type) {
	case *corev3.DataSource_Filename:
		file = s.Filename
	case *corev3.DataSource_InlineBytes:
		file, text = at, string(s.InlineBytes)
	case *corev3.DataSource_InlineString:
		file, text = at, s.InlineString
	case *corev3.DataSource_EnvironmentVariable:
		r.refuse("%s.environment_variable", at)
		return "", "", nil
	}
	if file == "" || file == at && text == "" {
		return "", "", fmt.Errorf("%s: missing", at)
	}
	return file, text, nil
}
