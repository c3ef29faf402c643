package xds

//lint:file-ignore SA1019 control planes send what is deprecated, too

import (
	"crypto/sha256"
	"crypto/tls"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/proto"

	"gatehouse.internal/internal/tlsconf"
	"gatehouse.internal/xds/internal/core"
	"gatehouse.internal/xds/internal/names"
)

// The tables of the messages that both sides of TLS have. What is left out makes TLS
// weaker nowhere: what would is refused.
var (
	commonTLSFields = union(
		allOf(applied, "tls_params", "tls_certificates", "alpn_protocols", "validation_context", "combined_validation_context",
			"tls_certificate_sds_secret_configs", "validation_context_sds_secret_config"),
		allOf(refused, "tls_certificate_provider_instance",
			"tls_certificate_certificate_provider", "tls_certificate_certificate_provider_instance",
			"validation_context_certificate_provider", "validation_context_certificate_provider_instance",
			"custom_handshaker", "custom_tls_certificate_selector"),
		allOf(ignored, "key_log"),
	)
	combinedFields = union(
		allOf(applied, "default_validation_context", "validation_context_sds_secret_config"),
		allOf(refused, "validation_context_certificate_provider", "validation_context_certificate_provider_instance"),
	)
	tlsParamsFields = union(
		allOf(applied, "tls_minimum_protocol_version", "tls_maximum_protocol_version", "cipher_suites"),
		allOf(refused, "compliance_policies"),
		allOf(ignored, "ecdh_curves", "signature_algorithms"),
	)
	certificateFields = union(
		allOf(applied, "certificate_chain", "private_key"),
		allOf(harmless, "watched_directory"), // it is watched anyway
		allOf(refused, "pkcs12", "private_key_provider", "password", "tls_params"),
		allOf(ignored, "ocsp_staple", "signed_certificate_timestamp"),
	)
	validationFields = union(
		allOf(applied, "trusted_ca", "match_typed_subject_alt_names", "match_subject_alt_names",
			"system_root_certs", "verify_certificate_spki", "verify_certificate_hash"), // of endpoints
		allOf(harmless, "watched_directory", "suppress_client_ca_list"),
		allOf(refused, "ca_certificate_provider_instance", "crl", "custom_validator_config", "require_signed_certificate_timestamp", "max_verify_depth"),
		// What lets pass more, and what there is no revocation list for.
		allOf(ignored, "allow_expired_certificate", "trust_chain_verification", "only_verify_leaf_cert_crl"),
	)
)

// The most that a TLS context, or a secret, can have: more is refused.
const (
	mostPEM     = 1 << 20 // bytes of a certificate chain, a key or authorities that are given inline
	mostChain   = 100     // certificates in a chain, which is Envoy's bound of the depth
	mostSecrets = 64      // certificates, or secrets of them, in one context
)

// tlsReader gathers what is found in a TLS context, or in a secret, beside what is
// applied.
type tlsReader struct{ ignored, unsupported []string }

func (r *tlsReader) refuse(format string, args ...any) {
	r.unsupported = append(r.unsupported, fmt.Sprintf(format, args...))
}

// fields sorts the fields of m that are set by the table.
func (r *tlsReader) fields(m proto.Message, path string, table map[string]use) {
	from := len(r.unsupported)
	sortFields(m, table,
		func(name string) { r.ignored = append(r.ignored, path+name) },
		func(name string) { r.unsupported = append(r.unsupported, path+name) })
	slices.Sort(r.unsupported[from:])
}

// tlsContext is what a CommonTlsContext says. What its secrets hold is not in it: see
// with. It is never written after it was made.
type tlsContext struct {
	alpn                   []string
	minVersion, maxVersion uint16
	ciphers                []uint16 // of TLS 1.2; nil is all
	pairs                  []tlsconf.KeyPair
	trust                  trust

	// The names of secrets, in their canonical form. What certSecrets hold comes after
	// pairs, and what trustSecret holds is merged into trust; "" is none.
	certSecrets []string
	trustSecret string
}

// trust is how peers are verified. Its authorities are a file, or if ca is not empty
// that, and file is what it is called in errors. Both are empty if nobody is verified.
// The rest is of endpoints alone: the system's authorities where there are no others,
// and digests of certificates.
type trust struct {
	file, ca string
	sans     []tlsconf.Matcher

	system bool
	pins   []tlsconf.Pin
}

func (t trust) verifies() bool { return t.file != "" || t.ca != "" }

// secretNames are the names of the secrets that c takes.
func (c *tlsContext) secretNames() []string {
	if c.trustSecret == "" {
		return c.certSecrets
	}
	return append(slices.Clip(c.certSecrets), c.trustSecret)
}

// with returns c with what its secrets hold, or why one of them can't be used.
func (c tlsContext) with(get secretLookup) (tlsContext, error) {
	for _, name := range c.certSecrets {
		pair, err := get(name).certificate(name)
		if err != nil {
			return tlsContext{}, err
		}
		c.pairs = append(slices.Clip(c.pairs), pair)
	}
	if c.trustSecret != "" {
		t, err := get(c.trustSecret).validation(c.trustSecret)
		if err != nil {
			return tlsContext{}, err
		}
		if t.verifies() {
			c.trust.file, c.trust.ca = t.file, t.ca
		}
		c.trust.sans = slices.Concat(c.trust.sans, t.sans) // as protobuf's MergeFrom, which Envoy uses
		c.trust.pins = slices.Concat(c.trust.pins, t.pins)
		c.trust.system = c.trust.system || t.system
	}
	c.certSecrets, c.trustSecret = nil, ""
	return c, nil
}

// common reads a CommonTlsContext, the path of which ends in a dot.
func (r *tlsReader) common(m *tlsv3.CommonTlsContext, path string) (c tlsContext, err error) {
	r.fields(m, path, commonTLSFields)
	c.alpn = m.GetAlpnProtocols()
	if p := m.GetTlsParams(); p != nil {
		r.fields(p, path+"tls_params.", tlsParamsFields)
		if c.minVersion, c.maxVersion, err = r.versions(p, path+"tls_params."); err != nil {
			return c, err
		}
		c.ciphers = r.cipherSuites(p.GetCipherSuites(), path+"tls_params.cipher_suites")
	}
	if n := len(m.GetTlsCertificates()) + len(m.GetTlsCertificateSdsSecretConfigs()); n > mostSecrets {
		return c, fmt.Errorf("%stls_certificates: %d: want at most %d", path, n, mostSecrets)
	}
	for i, cert := range m.GetTlsCertificates() {
		pair, err := r.certificate(cert, fmt.Sprintf("%stls_certificates[%d].", path, i))
		if err != nil {
			return c, err
		}
		c.pairs = append(c.pairs, pair)
	}
	for i, s := range m.GetTlsCertificateSdsSecretConfigs() {
		name, err := r.secretName(s, fmt.Sprintf("%stls_certificate_sds_secret_configs[%d].", path, i))
		if err != nil {
			return c, err
		}
		if name != "" {
			c.certSecrets = append(c.certSecrets, name)
		}
	}
	switch v := m.GetValidationContextType().(type) {
	case *tlsv3.CommonTlsContext_ValidationContext:
		c.trust, err = r.validation(v.ValidationContext, path+"validation_context.")
	case *tlsv3.CommonTlsContext_ValidationContextSdsSecretConfig:
		c.trustSecret, err = r.secretName(v.ValidationContextSdsSecretConfig, path+"validation_context_sds_secret_config.")
	case *tlsv3.CommonTlsContext_CombinedValidationContext:
		both, path := v.CombinedValidationContext, path+"combined_validation_context."
		r.fields(both, path, combinedFields)
		if c.trust, err = r.validation(both.GetDefaultValidationContext(), path+"default_validation_context."); err != nil {
			return c, err
		}
		if s := both.GetValidationContextSdsSecretConfig(); s != nil {
			c.trustSecret, err = r.secretName(s, path+"validation_context_sds_secret_config.")
		}
	}
	return c, err
}

// secretName reads the name of a secret that the same server has. It is empty if that
// is unsupported.
func (r *tlsReader) secretName(m *tlsv3.SdsSecretConfig, path string) (string, error) {
	name := names.Canonical(m.GetName())
	switch {
	case name == "":
		return "", fmt.Errorf("%sname: missing", path)
	case len(name) > core.MaxName:
		return "", fmt.Errorf("%sname: %d bytes: want at most %d", path, len(name), core.MaxName)
	case name == core.Wildcard:
		r.refuse("%sname: \"*\" asks for all resources", path)
		return "", nil
	}
	switch m.GetSdsConfig().GetConfigSourceSpecifier().(type) {
	case *corev3.ConfigSource_Ads, *corev3.ConfigSource_Self:
	case nil:
		r.refuse("%ssds_config: missing, and there are no secrets but those of the control plane", path)
		return "", nil
	default:
		r.refuse("%ssds_config other than ads and self", path)
		return "", nil
	}
	return name, nil
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
		r.ignored = append(r.ignored, fmt.Sprintf("%stls_minimum_protocol_version %s: it is TLSv1_2", path, p.GetTlsMinimumProtocolVersion()))
		lowest = tls.VersionTLS12
	}
	if highest == tls.VersionTLS11 {
		r.refuse("%stls_maximum_protocol_version %s", path, p.GetTlsMaximumProtocolVersion())
		highest = 0
	}
	return lowest, highest, nil
}

// cipherSuites reads the names of BoringSSL, in groups that are preferred alike or
// not: there is no order here.
func (r *tlsReader) cipherSuites(list []string, path string) (ids []uint16) {
	for i, group := range list {
		for name := range strings.SplitSeq(strings.Trim(group, "[]"), "|") {
			if id := cipherSuites[name]; id != 0 {
				ids = append(ids, id)
			} else {
				r.ignored = append(r.ignored, fmt.Sprintf("%s[%d]: %.100q is left out", path, i, name))
			}
		}
	}
	if len(list) > 0 && len(ids) == 0 {
		r.refuse("%s: none of them is known", path)
	}
	return ids
}

// cipherSuites are those of TLS 1.2 that package tls finds good.
var cipherSuites = map[string]uint16{
	"ECDHE-ECDSA-AES128-GCM-SHA256": tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
	"ECDHE-RSA-AES128-GCM-SHA256":   tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
	"ECDHE-ECDSA-AES256-GCM-SHA384": tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
	"ECDHE-RSA-AES256-GCM-SHA384":   tls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
	"ECDHE-ECDSA-CHACHA20-POLY1305": tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
	"ECDHE-RSA-CHACHA20-POLY1305":   tls.TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
	"ECDHE-ECDSA-AES128-SHA":        tls.TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA,
	"ECDHE-RSA-AES128-SHA":          tls.TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA,
	"ECDHE-ECDSA-AES256-SHA":        tls.TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA,
	"ECDHE-RSA-AES256-SHA":          tls.TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA,
}

// pinned reads the digests that a certificate, or its key, must have one of.
func pinned(m *tlsv3.CertificateValidationContext, path string) (pins []tlsconf.Pin, err error) {
	add := func(key bool, text, field string, i int, decode func(string) ([]byte, error)) error {
		b, err := decode(text)
		if err != nil || len(b) != sha256.Size {
			return fmt.Errorf("%s%s[%d]: %.100q: want a SHA-256 digest", path, field, i, text)
		}
		pins = append(pins, tlsconf.Pin{Key: key, Digest: [sha256.Size]byte(b)})
		return nil
	}
	for i, text := range m.GetVerifyCertificateHash() {
		if err := add(false, strings.ReplaceAll(text, ":", ""), "verify_certificate_hash", i, hex.DecodeString); err != nil {
			return nil, err
		}
	}
	for i, text := range m.GetVerifyCertificateSpki() {
		if err := add(true, text, "verify_certificate_spki", i, base64.StdEncoding.DecodeString); err != nil {
			return nil, err
		}
	}
	return pins, nil
}

// certificate reads a TlsCertificate. It is not read to the end where it is unsupported.
func (r *tlsReader) certificate(m *tlsv3.TlsCertificate, path string) (pair tlsconf.KeyPair, err error) {
	r.fields(m, path, certificateFields)
	if len(r.unsupported) > 0 {
		return pair, nil
	}
	if pair.CertFile, pair.Cert, err = r.data(m.GetCertificateChain(), path+"certificate_chain"); err != nil {
		return pair, err
	}
	if n := strings.Count(pair.Cert, "-----BEGIN CERTIFICATE-----"); n > mostChain {
		return pair, fmt.Errorf("%scertificate_chain: %d certificates: want at most %d", path, n, mostChain)
	}
	pair.KeyFile, pair.Key, err = r.data(m.GetPrivateKey(), path+"private_key")
	return pair, err
}

// validation reads how the certificates of peers are verified.
func (r *tlsReader) validation(m *tlsv3.CertificateValidationContext, path string) (t trust, err error) {
	r.fields(m, path, validationFields)
	if m.GetTrustedCa() != nil {
		if t.file, t.ca, err = r.data(m.GetTrustedCa(), path+"trusted_ca"); err != nil {
			return t, err
		}
	}
	t.system = m.GetSystemRootCerts() != nil
	if t.pins, err = pinned(m, path); err != nil {
		return t, err
	}
	for i, s := range m.GetMatchTypedSubjectAltNames() {
		at := fmt.Sprintf("%smatch_typed_subject_alt_names[%d].", path, i)
		kind, known := map[tlsv3.SubjectAltNameMatcher_SanType]tlsconf.SANType{
			tlsv3.SubjectAltNameMatcher_DNS: tlsconf.DNS, tlsv3.SubjectAltNameMatcher_URI: tlsconf.URI,
			tlsv3.SubjectAltNameMatcher_EMAIL: tlsconf.Email, tlsv3.SubjectAltNameMatcher_IP_ADDRESS: tlsconf.IP,
		}[s.GetSanType()]
		if !known {
			r.refuse("%ssan_type %s", at, s.GetSanType())
			continue
		}
		if err := r.san(&t, kind, s.GetMatcher(), at+"matcher."); err != nil {
			return t, err
		}
	}
	for i, s := range m.GetMatchSubjectAltNames() {
		if err := r.san(&t, tlsconf.AnySAN, s, fmt.Sprintf("%smatch_subject_alt_names[%d].", path, i)); err != nil {
			return t, err
		}
	}
	return t, nil
}

// san reads a name that certificates may have.
func (r *tlsReader) san(t *trust, kind tlsconf.SANType, m *matcherv3.StringMatcher, path string) error {
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
	t.sans = append(t.sans, s)
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
	switch {
	case file == "" || file == at && text == "":
		return "", "", fmt.Errorf("%s: missing", at)
	case len(text) > mostPEM:
		return "", "", fmt.Errorf("%s: %d bytes: want at most %d", at, len(text), mostPEM)
	}
	return file, text, nil
}
