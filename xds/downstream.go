package xds

import (
	"errors"
	"fmt"

	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"

	"gatehouse.internal/internal/tlsconf"
	"gatehouse.internal/xds/internal/core"
)

// downstreamFields tells what becomes of the fields of DownstreamTlsContext.
var downstreamFields = union(
	allOf(applied, "common_tls_context", "require_client_certificate", "disable_stateless_session_resumption",
		"require_sni", "ocsp_staple_policy"),
	// There are no such sessions; all certificates are looked at.
	allOf(harmless, "disable_stateful_session_resumption", "full_scan_certs_on_sni_mismatch"),
	// Ticket keys are the agent's own, and Go chooses the cipher.
	allOf(ignored, "session_ticket_keys", "session_ticket_keys_sds_secret_config", "session_timeout", "prefer_client_ciphers"),
)

// downstreamContext is a DownstreamTlsContext.
type downstreamContext struct {
	tlsContext
	requireClientCert, noResumption bool
}

// tls reads a DownstreamTlsContext, the path of which ends in a dot.
func (r *chainReader) tls(m *tlsv3.DownstreamTlsContext, path string) error {
	var tr tlsReader
	tr.fields(m, path, downstreamFields)
	if m.GetRequireSni().GetValue() {
		tr.refuse("%srequire_sni", path)
	}
	if m.GetOcspStaplePolicy() == tlsv3.DownstreamTlsContext_MUST_STAPLE {
		tr.refuse("%socsp_staple_policy MUST_STAPLE", path)
	}
	common, err := tr.common(m.GetCommonTlsContext(), path+"common_tls_context.")
	common.alpn = without(common.alpn, r.exchanges)
	d := &downstreamContext{common, m.GetRequireClientCertificate().GetValue(), m.GetDisableStatelessSessionResumption()}
	names := d.secretNames()
	r.l.Secrets = append(r.l.Secrets, names...) // also those that are not used: see Listener.Secrets
	if err != nil {
		return err
	}
	r.l.Ignored = append(r.l.Ignored, tr.ignored...)
	r.sort(tr.unsupported)
	switch {
	case len(r.unsupported) > 0: // it is not used
	case len(names) > 0:
		r.c.tls = d
		r.c.TLS = new(tlsconf.ServerConfig)
		r.c.NoTLS = "its secrets have not come yet" // until withSecrets says more
	default:
		r.c.TLS, err = d.server()
		if u, ok := errors.AsType[*unsupportedError](err); ok {
			r.refuse("%s%s", path, u.what)
		} else if err != nil {
			return fmt.Errorf("%s%w", path, err)
		}
	}
	return nil
}

// unsupportedError says that what is valid is not supported.
type unsupportedError struct{ what string }

func (e *unsupportedError) Error() string { return "not supported: " + e.what }

// server returns the settings, once d takes no secrets any more.
func (d *downstreamContext) server() (*tlsconf.ServerConfig, error) {
	switch {
	case len(d.pairs) == 0:
		return nil, errors.New("common_tls_context.tls_certificates: none: a server needs one")
	case len(d.trust.sans) > 0 && !d.trust.verifies():
		return nil, errors.New("common_tls_context.validation_context: names of clients without a trusted_ca")
	case d.requireClientCert && !d.trust.verifies():
		return nil, &unsupportedError{"require_client_certificate without a trusted_ca"}
	case d.trust.system:
		return nil, &unsupportedError{"common_tls_context.validation_context.system_root_certs"}
	case len(d.trust.pins) > 0:
		return nil, &unsupportedError{"common_tls_context.validation_context.verify_certificate_hash and verify_certificate_spki"}
	case len(d.trust.sans) > 0 && !d.requireClientCert:
		return nil, &unsupportedError{"common_tls_context.validation_context: names of clients without require_client_certificate"}
	}
	c := &tlsconf.ServerConfig{
		More: d.pairs, ClientCAFile: d.trust.file, ClientCA: d.trust.ca, SANs: d.trust.sans, RequireClientCert: d.requireClientCert,
		ALPN: d.alpn, AnyALPN: len(d.alpn) > 0, MinVersion: d.minVersion, MaxVersion: d.maxVersion, CipherSuites: d.ciphers, NoResumption: d.noResumption, RefuseExpired: true,
	}
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("common_tls_context: %w", err)
	}
	return c, nil
}

// withSecrets returns c with what its secrets hold, or with the reason why it has no
// TLS.
func (c FilterChain) withSecrets(get secretLookup) FilterChain {
	if c.tls == nil || c.Unsupported != "" {
		return c
	}
	common, err := c.tls.with(get)
	var server *tlsconf.ServerConfig
	if err == nil {
		server, err = (&downstreamContext{common, c.tls.requireClientCert, c.tls.noResumption}).server()
	}
	if err != nil {
		c.TLS, c.NoTLS = new(tlsconf.ServerConfig), core.Clip(err.Error())
		return c
	}
	c.TLS, c.NoTLS = server, ""
	return c
}

// secretNames are those of all secrets that the listener names.
func (l *Listener) secretNames() []string { return l.Secrets }

// withSecrets returns l with what its secrets hold; it is l if it takes none.
func (l *Listener) withSecrets(get secretLookup) *Listener {
	if len(l.Secrets) == 0 || l.Unsupported != "" {
		return l
	}
	filled := *l
	filled.Chains = nil
	for _, c := range l.Chains {
		filled.Chains = append(filled.Chains, c.withSecrets(get))
	}
	if l.Default != nil {
		filled.Default = new(l.Default.withSecrets(get))
	}
	return &filled
}
