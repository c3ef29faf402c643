package config

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"gatehouse.internal/internal/tlsconf"
)

// UpstreamTLS is TLS to the endpoints of a cluster; health checks do not use it, but
// have a block of their own. The block may be empty: then endpoints are verified by the system's
// authorities and by their own host name, and see no certificate. Files are watched,
// and read again when they change.
// Source: envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext.
type UpstreamTLS struct {
	// Enabled says that there is such a block.
	Enabled bool
	// CAFile has the authorities that endpoints are verified by, as PEM. Empty
	// means the system's.
	CAFile string `hcl:"ca_file"`
	// CertFile and KeyFile are the client's certificate, followed by its
	// intermediates, and its key, as PEM; both or neither.
	CertFile string `hcl:"cert_file"`
	KeyFile  string `hcl:"key_file"`
	// ServerName is sent (SNI), and is what certificates are valid for unless
	// there are names to match. Empty means the host name of each endpoint, and
	// for one without the IP address, which is not sent.
	// Source: UpstreamTlsContext.sni and auto_host_sni.
	ServerName string `hcl:"server_name"`
	// ALPN are the protocols to offer, the preferred first; without any, none is
	// offered. Source: CommonTlsContext.alpn_protocols.
	ALPN []string `hcl:"alpn_protocols"`
	// SANs and SPIFFEIDs, if there are any, stand in place of ServerName: one of
	// them must match a name of the endpoint's certificate.
	SANs []SANMatcher `hcl:"match_typed_subject_alt_names,block"`
	// SPIFFEIDs are names of that kind to match, each as
	// "spiffe://example.org/web", or "spiffe://example.org" for all of a trust domain.
	SPIFFEIDs []string `hcl:"spiffe_ids"`
	// MaxSessionKeys is how many sessions are kept to be resumed, a few KiB each;
	// endpoints need one each. 0 keeps none. Default 256, up to 65536.
	// Source: UpstreamTlsContext.max_session_keys.
	MaxSessionKeys int `hcl:"max_session_keys" default:"256" range:"0..65536"`
	// MinVersion and MaxVersion bound the version of TLS. Default TLSv1_2 to
	// TLSv1_3. Source: TlsParameters.
	MinVersion string `hcl:"tls_minimum_protocol_version" default:"TLSv1_2" enum:"TLSv1_2|TLSv1_3"`
	MaxVersion string `hcl:"tls_maximum_protocol_version" default:"TLSv1_3" enum:"TLSv1_2|TLSv1_3"`
}

// DownstreamTLS is TLS with the clients of a listener. Files are watched, and
// read again when they change.
// Source: envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext.
type DownstreamTLS struct {
	// Enabled says that there is such a block.
	Enabled bool
	// CertFile and KeyFile are the listener's certificate, followed by its
	// intermediates, and its key, as PEM.
	CertFile string `hcl:"cert_file" required:"true"`
	KeyFile  string `hcl:"key_file" required:"true"`
	// Certificates are further ones: a client gets the first of all that is valid
	// for the server name (SNI) that it sends, and else the one of CertFile.
	// Source: CommonTlsContext.tls_certificates.
	Certificates []TLSCertificate `hcl:"tls_certificates,block"`
	// CAFile has the authorities that certificates of clients are verified by, as
	// PEM. Empty means that none is asked for. A client may then show one, and
	// must with RequireClientCertificate, which needs a CAFile.
	CAFile                   string `hcl:"ca_file"`
	RequireClientCertificate bool   `hcl:"require_client_certificate"`
	// ALPN are the protocols to choose from, the preferred first: clients that
	// offer others only are refused. Without any, whatever they offer is let be.
	// Source: CommonTlsContext.alpn_protocols.
	ALPN []string `hcl:"alpn_protocols"`
	// SANs and SPIFFEIDs are what certificates of clients must name, one of them.
	// They need RequireClientCertificate.
	SANs []SANMatcher `hcl:"match_typed_subject_alt_names,block"`
	// SPIFFEIDs are names of that kind that are accepted, each as
	// "spiffe://example.org/web", or "spiffe://example.org" for all of a trust domain.
	SPIFFEIDs []string `hcl:"spiffe_ids"`
	// MinVersion and MaxVersion bound the version of TLS. Default TLSv1_2 to
	// TLSv1_3. Source: TlsParameters.
	MinVersion string `hcl:"tls_minimum_protocol_version" default:"TLSv1_2" enum:"TLSv1_2|TLSv1_3"`
	MaxVersion string `hcl:"tls_maximum_protocol_version" default:"TLSv1_3" enum:"TLSv1_2|TLSv1_3"`
	// NoResumption has every client make a full handshake.
	// Source: DownstreamTlsContext.disable_stateless_session_resumption.
	NoResumption bool `hcl:"disable_stateless_session_resumption"`
	// HandshakeTimeout is how long a client's handshake may take. Default 15s,
	// from 1ms to 1h. Source: FilterChain.transport_socket_connect_timeout.
	HandshakeTimeout time.Duration `hcl:"handshake_timeout" default:"15s" range:"1ms..1h"`
	// MaxHandshakes is how many handshakes may be in progress at once; connections
	// over it are reset. Default 1024, from 1 to 1048576.
	MaxHandshakes int `hcl:"max_handshakes" default:"1024" range:"1..1048576"`
}

// TLSCertificate is one more certificate of a listener.
type TLSCertificate struct {
	// Name is unique in its block, 1 to 255 printable characters.
	Name string `hcl:",label"`
	// CertFile and KeyFile are the certificate, followed by its intermediates, and
	// its key, as PEM.
	CertFile string `hcl:"cert_file" required:"true"`
	KeyFile  string `hcl:"key_file" required:"true"`
}

// SANMatcher is what a name of a certificate must be like: exactly one of Exact,
// Prefix, Suffix, Contains and Regex is set. Source: SubjectAltNameMatcher.
//
// See tlsconf.Matcher.
type SANMatcher struct {
	// Type is the kind of the name.
	Type string `hcl:",label" enum:"dns|uri|email|ip_address|any"`
	// Exact is the whole name, Prefix, Suffix and Contains are a part of it, and
	// Regex, in RE2's syntax, matches the whole.
	Exact    string `hcl:"exact"`
	Prefix   string `hcl:"prefix"`
	Suffix   string `hcl:"suffix"`
	Contains string `hcl:"contains"`
	Regex    string `hcl:"regex"`
	// IgnoreCase is for all but Regex.
	IgnoreCase bool `hcl:"ignore_case"`
}

// Client returns the settings of a tlsconf.Client.
func (t *UpstreamTLS) Client() tlsconf.ClientConfig {
	return tlsconf.ClientConfig{
		CAFile: t.CAFile, CertFile: t.CertFile, KeyFile: t.KeyFile, ServerName: t.ServerName, ALPN: t.ALPN,
		SANs: matchers(t.SANs, t.SPIFFEIDs), MinVersion: tlsVersion(t.MinVersion), MaxVersion: tlsVersion(t.MaxVersion),
		MaxSessions: cmp.Or(t.MaxSessionKeys, -1),
	}
}

// Server returns the settings of a tlsconf.Server.
func (t *DownstreamTLS) Server() tlsconf.ServerConfig {
	var more []tlsconf.KeyPair
	for _, c := range t.Certificates {
		more = append(more, tlsconf.KeyPair{CertFile: c.CertFile, KeyFile: c.KeyFile})
	}
	return tlsconf.ServerConfig{
		More: more, CertFile: t.CertFile, KeyFile: t.KeyFile, ClientCAFile: t.CAFile, RequireClientCert: t.RequireClientCertificate, ALPN: t.ALPN,
		SANs: matchers(t.SANs, t.SPIFFEIDs), MinVersion: tlsVersion(t.MinVersion), MaxVersion: tlsVersion(t.MaxVersion),
		NoResumption: t.NoResumption,
	}
}

func tlsVersion(name string) uint16 {
	switch name {
	case "TLSv1_2":
		return tls.VersionTLS12
	case "TLSv1_3":
		return tls.VersionTLS13
	}
	return 0
}

func matchers(sans []SANMatcher, ids []string) (ms []tlsconf.Matcher) {
	for _, s := range sans {
		ms = append(ms, s.matcher())
	}
	for _, id := range ids {
		if m, err := tlsconf.SPIFFE(id); err == nil { // check has found the others
			ms = append(ms, m)
		}
	}
	return ms
}

func (s SANMatcher) matcher() tlsconf.Matcher {
	types := map[string]tlsconf.SANType{"dns": tlsconf.DNS, "uri": tlsconf.URI, "email": tlsconf.Email, "ip_address": tlsconf.IP}
	return tlsconf.Matcher{
		Type: types[s.Type], Exact: s.Exact, Prefix: s.Prefix, Suffix: s.Suffix, Contains: s.Contains, Regex: s.Regex, IgnoreCase: s.IgnoreCase,
	}
}

// finishTLS notes which tls blocks there are.
func (d *decoder) finishTLS() {
	for i := range d.cfg.Clusters {
		c := &d.cfg.Clusters[i]
		p := path("cluster").sub(c.Name)
		_, c.TLS.Enabled = d.at[p.sub("tls")]
		for i := range c.HealthChecks {
			_, c.HealthChecks[i].TLS.Enabled = d.at[p.sub("health_check", strconv.Itoa(i), "tls")]
		}
	}
	for i := range d.cfg.Listeners {
		l := &d.cfg.Listeners[i]
		_, l.TLS.Enabled = d.at[path("listener").sub(l.Name, "tls")]
	}
}

// checkClientTLS is for the tls block at p, of a cluster, a health check or an xDS server.
func (d *decoder) checkClientTLS(p path, t *UpstreamTLS) {
	if !t.Enabled {
		return
	}
	good := true
	if _, err := netip.ParseAddr(t.ServerName); err != nil && strings.ContainsAny(t.ServerName, " /:*") && d.good(p, "server_name") {
		d.mistake(p.sub("server_name"), d.where(p, "server_name"), fmt.Sprintf("server_name: %.100q is no host name", t.ServerName), `as in "web.internal", without scheme and port`)
		good = false
	}
	good = d.checkTLS(p, t.ALPN, t.SANs, t.SPIFFEIDs, t.MinVersion, t.MaxVersion) && good
	if (t.CertFile == "") != (t.KeyFile == "") && d.good(p, "cert_file", "key_file") {
		d.mistake(p, d.where(p, "cert_file", "key_file"), "cert_file and key_file go together, and only one is set", "set both, or neither")
		return
	}
	if good && d.opts.TLSFiles && d.good(p, "cert_file", "key_file", "ca_file") {
		_, err := tlsconf.NewClient(t.Client())
		d.unusable(err, tlsFiles{at: p, ca: t.CAFile, cert: t.CertFile, key: t.KeyFile})
		d.private(p, "key_file", t.KeyFile)
	}
}

func (d *decoder) checkDownstreamTLS(l *Listener) {
	t, p := &l.TLS, path("listener").sub(l.Name, "tls")
	if !t.Enabled {
		return
	}
	good := d.checkTLS(p, t.ALPN, t.SANs, t.SPIFFEIDs, t.MinVersion, t.MaxVersion)
	switch {
	case !d.good(p, "ca_file", "require_client_certificate"):
	case t.RequireClientCertificate && t.CAFile == "":
		d.mistake(p, d.where(p, "require_client_certificate"), "require_client_certificate without ca_file", "name the file of the authorities that clients are verified by")
		return
	case len(t.SANs)+len(t.SPIFFEIDs) > 0 && !t.RequireClientCertificate:
		at := d.where(p, "spiffe_ids")
		if len(t.SANs) > 0 {
			at = d.where(p.sub("match_typed_subject_alt_names", "0"))
		}
		d.mistake(p, at, "names of clients without require_client_certificate", "set it to true: a client without a certificate would pass them")
		return
	}
	files := []tlsFiles{{at: p, ca: t.CAFile, cert: t.CertFile, key: t.KeyFile}}
	for _, c := range t.Certificates {
		files = append(files, tlsFiles{at: p.sub("tls_certificates", c.Name), cert: c.CertFile, key: c.KeyFile})
	}
	for _, f := range files {
		good = good && d.good(f.at, "cert_file", "key_file", "ca_file", "require_client_certificate", "tls_certificates")
	}
	if good && d.opts.TLSFiles {
		_, err := tlsconf.NewServer(t.Server())
		d.unusable(err, files...)
		for _, f := range files {
			d.private(f.at, "key_file", f.key)
		}
	}
}

// checkTLS finds the mistakes in what both kinds of tls blocks have, and reports
// if there are none.
func (d *decoder) checkTLS(p path, alpn []string, sans []SANMatcher, ids []string, lowest, highest string) bool {
	before := len(d.errs)
	for _, name := range alpn {
		if name == "" || len(name) > 255 {
			d.mistake(p.sub("alpn_protocols"), d.where(p, "alpn_protocols"), fmt.Sprintf("alpn_protocols: %.40q can't be a protocol", name), "1 to 255 bytes")
		}
	}
	for i, s := range sans {
		at := p.sub("match_typed_subject_alt_names", strconv.Itoa(i))
		if err := s.matcher().Validate(); err != nil && d.good(at, "exact", "prefix", "suffix", "contains", "regex", "ignore_case") {
			d.mistake(at, d.where(at), "match_typed_subject_alt_names can't be used: "+err.Error(), "")
		}
	}
	for _, id := range ids {
		if _, err := tlsconf.SPIFFE(id); err != nil {
			d.mistake(p.sub("spiffe_ids"), d.where(p, "spiffe_ids"), err.Error(), `as in "spiffe://example.org/web", or "spiffe://example.org" for all of a trust domain`)
		}
	}
	const min, max = "tls_minimum_protocol_version", "tls_maximum_protocol_version"
	if lowest > highest && d.good(p, min, max) {
		d.mistake(p, d.where(p, max, min), fmt.Sprintf("%s (%s) is below %s (%s)", max, highest, min, lowest), "leave one of them out")
	}
	return len(d.errs) == before && d.good(p, "alpn_protocols", "spiffe_ids", "match_typed_subject_alt_names", min, max)
}

// tlsFiles are the files that a block names.
type tlsFiles struct {
	at            path
	ca, cert, key string
	caName        string // of the argument, ca_file if empty
}

// unusable takes the error of files for a mistake in the argument that it is
// about.
func (d *decoder) unusable(err error, files ...tlsFiles) {
	if err == nil {
		return
	}
	hint := ""
	if errors.Is(err, fs.ErrPermission) {
		hint = "let the agent's user read it"
	}
	at, name := files[0].at, ""
	for _, f := range files {
		// Of a pair that does not fit, the certificate.
		for _, arg := range [...]struct{ name, file string }{{cmp.Or(f.caName, "ca_file"), f.ca}, {"key_file", f.key}, {"cert_file", f.cert}} {
			if arg.file != "" && strings.Contains(err.Error(), arg.file) {
				at, name = f.at, arg.name
			}
		}
	}
	d.mistake(at, d.where(at, name), strings.TrimPrefix(strings.TrimPrefix(err.Error(), "tls client: "), "tls server: "), hint)
}
