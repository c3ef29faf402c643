package xds

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	rawbufferv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/raw_buffer/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"gatehouse.internal/internal/tlsconf"
	"gatehouse.internal/lbcore"
	"gatehouse.internal/xds/internal/core"
)

// TransportSocket is how connections to endpoints are secured. The zero value is
// plain text.
type TransportSocket struct {
	// Name is that of a match, for people.
	Name string
	// Match are the labels that an endpoint must have for it, which may be none.
	// Source: Cluster.TransportSocketMatch.match.
	Match lbcore.Labels
	// TLS is nil for plain text. NoTLS says why there are no settings that could be used
	// although there is to be TLS: a secret has not come, say. If it is not empty the
	// endpoints that would have it must not be dialled: TLS has then only what does not
	// come from secrets.
	TLS   *UpstreamTLS
	NoTLS string
	// context is what TLS is made of, if it takes secrets.
	context *upstreamContext
	// Unsupported says what keeps this valid socket from being used as meant. If it
	// is not empty the endpoints that would have it must not be dialled.
	Unsupported string
}

// UpstreamTLS is TLS to endpoints. It is not to be written.
// Source: envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext.
type UpstreamTLS struct {
	tlsconf.ClientConfig
	// HostSNI has the host name of an endpoint that has one go before ServerName.
	// Source: auto_host_sni.
	HostSNI bool
}

// transportMatchFields tells what becomes of the fields of TransportSocketMatch.
var transportMatchFields = allOf(applied, "name", "match", "transport_socket")

// maxTransportMatches bounds the matches, which each dial may look through.
const maxTransportMatches = 64

// transportSockets reads how connections are secured.
func (r *clusterReader) transportSockets(m *clusterv3.Cluster) error {
	sock, err := r.transportSocket(m.GetTransportSocket(), "transport_socket")
	if err != nil {
		return err
	}
	r.c.Transport = sock
	matches := m.GetTransportSocketMatches()
	if sock.Unsupported != "" && len(matches) == 0 {
		r.unsupported = append(r.unsupported, sock.Unsupported)
	}
	if len(matches) > maxTransportMatches {
		r.refuse("transport_socket_matches: %d, more than %d", len(matches), maxTransportMatches)
		return nil
	}
	for i, x := range matches {
		at := fmt.Sprintf("transport_socket_matches[%d].", i)
		if x.GetName() == "" {
			return fmt.Errorf("%sname: missing", at)
		}
		sock, err := r.transportSocket(x.GetTransportSocket(), at+"transport_socket")
		if err != nil {
			return err
		}
		sock.Name, sock.Match = x.GetName(), labelsOf(x.GetMatch(), lbcore.Labels{})
		r.c.TransportMatches = append(r.c.TransportMatches, sock)
	}
	if len(matches) > 0 {
		for _, s := range slices.Concat(r.c.TransportMatches, []TransportSocket{sock}) {
			if s.Unsupported != "" {
				r.c.Warnings = append(r.c.Warnings, "endpoints that would need it are not dialled: "+s.Unsupported)
			}
		}
	}
	return nil
}

// transportSocket reads one socket.
func (r *clusterReader) transportSocket(ts *corev3.TransportSocket, path string) (s TransportSocket, err error) {
	switch typed := ts.GetTypedConfig(); {
	case ts == nil, typed.MessageIs(new(rawbufferv3.RawBuffer)), typed == nil && ts.GetName() == "envoy.transport_sockets.raw_buffer":
	case typed.MessageIs(new(tlsv3.UpstreamTlsContext)):
		var m tlsv3.UpstreamTlsContext
		if err := unmarshal(typed, &m, path); err != nil {
			return s, err
		}
		return r.upstreamTLS(&m, path+".typed_config.")
	default:
		s.Unsupported = core.Clip(fmt.Sprintf("%s %q", path, ts.GetName()))
	}
	return s, nil
}

// upstreamContext is an UpstreamTlsContext, the path of which ends in a dot.
type upstreamContext struct {
	tlsContext
	path             string
	sni              string
	hostSNI, sniSANs bool
	sessions         int
}

// upstreamTLS reads an UpstreamTlsContext.
func (r *clusterReader) upstreamTLS(m *tlsv3.UpstreamTlsContext, path string) (s TransportSocket, err error) {
	var tr tlsReader
	tr.fields(m, path, upstreamFields)
	common, err := tr.common(m.GetCommonTlsContext(), path+"common_tls_context.")
	common.alpn = without(common.alpn, r.exchanges)
	u := &upstreamContext{common, path, m.GetSni(), m.GetAutoHostSni(), m.GetAutoSniSanValidation(), 0}
	names := u.secretNames()
	r.c.Secrets = append(r.c.Secrets, names...) // also those that are not used: see Listener.Secrets
	if err != nil {
		return s, err
	}
	if n := len(u.sni); n > 255 {
		return s, fmt.Errorf("%ssni: %d bytes: want at most 255", path, n)
	}
	if n := len(u.pairs) + len(u.certSecrets); n > 1 {
		return s, fmt.Errorf("%scommon_tls_context: %d certificates: a client has one", path, n)
	}
	if n := m.GetMaxSessionKeys(); n != nil {
		u.sessions = cmp.Or(int(min(n.GetValue(), maxSessionKeys)), -1)
	}
	r.c.Ignored = append(r.c.Ignored, tr.ignored...)
	switch {
	case len(tr.unsupported) > 0:
		s.Unsupported = core.Clip(strings.Join(tr.unsupported, ", "))
	case len(names) > 0:
		s.context, s.TLS, s.NoTLS = u, u.settings(), "its secrets have not come yet" // until withSecrets says more
	default:
		var warning string
		if s.TLS, warning, err = u.client(); warning != "" {
			r.c.Warnings = append(r.c.Warnings, warning)
		}
	}
	return s, err
}

// settings returns what u says itself.
func (u *upstreamContext) settings() *UpstreamTLS {
	c := &UpstreamTLS{HostSNI: u.hostSNI, ClientConfig: tlsconf.ClientConfig{
		CAFile: u.trust.file, CA: u.trust.ca, ServerName: u.sni, ALPN: u.alpn, SANs: u.trust.sans, Pins: u.trust.pins,
		MinVersion: u.minVersion, MaxVersion: u.maxVersion, CipherSuites: u.ciphers, MaxSessions: u.sessions,
	}}
	if u.sniSANs {
		c.SANs = nil
	}
	if len(u.pairs) > 0 {
		p := u.pairs[0]
		c.CertFile, c.Cert, c.KeyFile, c.Key = p.CertFile, p.Cert, p.KeyFile, p.Key
		if u.sessions == 0 {
			// Not Envoy's 1: who asks by a client's certificate whether it may connect,
			// and only where it is shown, as Consul's own proxy does, would go on letting
			// one in that may not any more.
			c.MaxSessions = -1
		}
	}
	return c
}

// client returns the settings, once u takes no secrets any more, and what is to be
// warned of. Peers are verified as by Envoy, which goes by what is configured alone.
func (u *upstreamContext) client() (c *UpstreamTLS, warning string, err error) {
	c = u.settings()
	at := u.path + "common_tls_context.validation_context"
	switch verifies := u.trust.verifies() || u.trust.system; {
	case !verifies && len(u.trust.sans) > 0:
		return nil, "", fmt.Errorf("%s: names of endpoints without a trusted_ca", at)
	case !verifies && u.sniSANs:
		return nil, "", fmt.Errorf("%sauto_sni_san_validation without a trusted_ca", u.path)
	case !verifies:
		if c.Unverified = true; len(c.Pins) == 0 {
			warning = at + " without a trusted_ca: endpoints' certificates are not verified, and anybody on the way can pose as one"
		}
	case u.sniSANs: // package tls does that
	case len(c.SANs) == 0:
		if c.AnyName = true; len(c.Pins) == 0 {
			warning = at + " without names to match: endpoints may show any certificate of a trusted authority"
		}
	}
	if err := c.Validate(); err != nil {
		return nil, "", fmt.Errorf("%scommon_tls_context: %w", u.path, err)
	}
	return c, warning, nil
}

// secretNames are those of all secrets that the cluster names.
func (c *Cluster) secretNames() []string { return c.Secrets }

// withSecrets returns c with what its secrets hold, or with the reasons why sockets have
// no TLS; it is c if it takes none.
func (c *Cluster) withSecrets(get secretLookup) *Cluster {
	if len(c.Secrets) == 0 || c.Unsupported != "" {
		return c
	}
	filled := *c
	filled.Warnings, filled.TransportMatches = slices.Clone(c.Warnings), slices.Clone(c.TransportMatches)
	fill := func(s *TransportSocket) {
		if s.context == nil {
			return
		}
		u := *s.context
		var client *UpstreamTLS
		var warning string
		var err error
		if u.tlsContext, err = u.with(get); err == nil {
			client, warning, err = u.client()
		}
		if err != nil {
			s.NoTLS = core.Clip(err.Error())
			return
		}
		s.TLS, s.NoTLS = client, ""
		if warning != "" {
			filled.Warnings = append(filled.Warnings, warning)
		}
	}
	fill(&filled.Transport)
	for i := range filled.TransportMatches {
		fill(&filled.TransportMatches[i])
	}
	slices.Sort(filled.Warnings)
	return &filled
}

// maxSessionKeys bounds the memory of sessions, a few KiB each.
const maxSessionKeys = 65536

// upstreamFields tells what becomes of the fields of UpstreamTlsContext.
var upstreamFields = map[string]use{
	"common_tls_context": applied, "sni": applied, "auto_host_sni": applied, "auto_sni_san_validation": applied,
	"max_session_keys": applied, "allow_renegotiation": ignored,
	"enforce_rsa_key_usage": harmless, // Envoy does not look at it either
}

// transportKey is where the metadata of endpoints and localities has what
// transport_socket_matches go by.
const transportKey = "envoy.transport_socket_match"

// transportLabels returns what m says of transport sockets.
func transportLabels(m *corev3.Metadata, behind lbcore.Labels) lbcore.Labels {
	return labelsOf(m.GetFilterMetadata()[transportKey], behind)
}

// labelsOf returns the fields of m, their values as JSON: equal ones have the same.
func labelsOf(m *structpb.Struct, behind lbcore.Labels) lbcore.Labels {
	all := make(map[string]string, len(m.GetFields()))
	for name, v := range m.GetFields() {
		text, err := json.Marshal(v.AsInterface())
		if err != nil { // there is none for what a Value can be
			continue
		}
		all[name] = string(text)
	}
	return lbcore.LabelsOf(all, behind)
}
