package config

import (
	"maps"
	"slices"
	"strings"
)

// XDS is the connection to a control plane. One of Bootstrap, ServerURI and Servers
// is set, or none where the environment names a bootstrap for gRPC.
//
// Without a control plane all are empty, BootstrapText too.
type XDS struct {
	// Bootstrap is the path of a gRPC xDS bootstrap file (gRFC A27). In an xds
	// block that names no server it is what the environment has for gRPC: the
	// file GRPC_XDS_BOOTSTRAP, or the text GRPC_XDS_BOOTSTRAP_CONFIG.
	//
	// The text is BootstrapText then.
	Bootstrap     string `hcl:"bootstrap"`
	BootstrapText string
	// ServerURI is the gRPC target of an ADS server, in plain text, as
	// "dns:///control:15010": short for a Servers of that name. It is shown and
	// logged, so a user, a query or a fragment in it is a mistake.
	ServerURI string `hcl:"server_uri"`
	// Servers are the ADS servers, the preferred first: the next one is asked
	// while those before it can't be reached. Source: gRFC A71.
	Servers []XDSServer `hcl:"server,block"`
	// Protocol is the variant of the protocol: delta, the incremental one, which
	// is the only one that Consul has; sotw, the state of the world, which some
	// servers have alone; or auto, which asks for delta first, and for sotw where
	// the server does not have it. Default auto.
	Protocol string `hcl:"protocol" default:"auto" enum:"auto|delta|sotw"`
	// UserAgentName and UserAgentVersion are what the control plane is told to
	// talk to, for one that knows Envoy only. Default gatehouse and its version.
	// Source: envoy.config.core.v3.Node.
	UserAgentName    string `hcl:"user_agent_name"`
	UserAgentVersion string `hcl:"user_agent_version"`
	// MaxMessageSize bounds a response, in bytes; one that is larger is not read.
	// Default 64 MiB, from 1 MiB to 1 GiB.
	MaxMessageSize int `hcl:"max_message_size" default:"67108864" range:"1048576..1073741824"`
	// Clusters takes clusters from the control plane (CDS) too. A cluster that
	// a file defines wins over one of the same name.
	Clusters bool `hcl:"clusters"`
	// Listeners takes listeners from the control plane (LDS) too: those of TCP. A
	// listener that a file defines wins over one of the same name.
	Listeners bool `hcl:"listeners"`
}

// XDSServer is one ADS server.
type XDSServer struct {
	// URI is its gRPC target, as "dns:///control:15010".
	URI string `hcl:",label"`
	// TLS encrypts the connection.
	TLS XDSTLS `hcl:"tls,block"`
	// TokenFile has a token that is sent as "authorization: Bearer …", read for
	// each stream. It needs TLS or a unix socket. Source: gRFC A97.
	TokenFile string `hcl:"token_file"`
	// InitialMetadata is sent at the begin of each stream, by key, and so is what
	// is in InitialMetadataFiles, read for each stream: Consul wants
	// "x-consul-token". Without TLS it can be read on the way.
	// Source: GrpcService.initial_metadata.
	InitialMetadata      map[string]string `hcl:"initial_metadata"`
	InitialMetadataFiles map[string]string `hcl:"initial_metadata_files"`
}

// XDSTLS is how a server is verified and what it is shown. The files are PEM and
// loaded again when they change.
type XDSTLS struct {
	// Enabled says that there is such a block.
	Enabled bool
	// CAFile has the authorities. Default: the system's.
	CAFile string `hcl:"ca_file"`
	// CertFile and KeyFile are the agent's own certificate and key, both or none.
	CertFile string `hcl:"cert_file"`
	KeyFile  string `hcl:"key_file"`
	// ServerName is what the server's certificate must name. Default: the host of
	// the URI.
	ServerName string `hcl:"server_name"`
}

// upstream returns what a cluster's block with the same arguments is.
func (t XDSTLS) upstream() *UpstreamTLS {
	return &UpstreamTLS{Enabled: t.Enabled, CAFile: t.CAFile, CertFile: t.CertFile, KeyFile: t.KeyFile, ServerName: t.ServerName}
}

// Enabled reports whether there is a control plane.
func (x XDS) Enabled() bool {
	return x.Bootstrap != "" || x.BootstrapText != "" || x.ServerURI != "" || len(x.Servers) > 0
}

// The variables of gRPC, the first of which goes before the second.
const (
	envBootstrap       = "GRPC_XDS_BOOTSTRAP"
	envBootstrapConfig = "GRPC_XDS_BOOTSTRAP_CONFIG"
)

// finishXDS fills in what depends on other values.
func (d *decoder) finishXDS(opts Options) {
	x, p := &d.cfg.XDS, path("xds")
	for i := range x.Servers {
		_, x.Servers[i].TLS.Enabled = d.at[p.sub("server", x.Servers[i].URI, "tls")]
	}
	if _, block := d.at[p]; !block || x.Enabled() || d.isSet(p, "bootstrap", "server_uri") || opts.Env == nil {
		return
	}
	if x.Bootstrap, _ = opts.Env(envBootstrap); x.Bootstrap == "" {
		x.BootstrapText, _ = opts.Env(envBootstrapConfig)
	}
}

func (d *decoder) checkXDS(x XDS) {
	p := path("xds")
	_, block := d.at[p]
	switch {
	case !block && !d.isSet(p, "bootstrap", "server_uri", "clusters", "listeners"), !d.good(p, "bootstrap", "server_uri", "server"):
		return
	case !x.Enabled():
		d.mistake(p, d.where(p), "neither bootstrap nor server_uri nor a server in xds", "set one of them, or "+envBootstrap+" in the environment")
	case x.Bootstrap != "" && x.ServerURI != "":
		d.mistake(p, d.where(p, "server_uri"), "both bootstrap and server_uri in xds", "leave one out; the bootstrap file names its own server")
	case len(x.Servers) > 0 && (x.Bootstrap != "" || x.ServerURI != ""):
		d.mistake(p, d.where(p, "bootstrap", "server_uri"), "both a server and bootstrap or server_uri in xds", "leave one out")
	case (x.Bootstrap != "" || x.BootstrapText != "") && d.opts.Bootstrap != nil:
		if err := d.opts.Bootstrap(x); err != nil {
			d.mistake(p, d.where(p, "bootstrap"), err.Error(), "it is gRPC's bootstrap, with insecure or tls channel_creds")
		}
	case x.ServerURI != "":
		d.checkURI(p, "server_uri", x.ServerURI)
	}
	for _, s := range x.Servers {
		at := p.sub("server", s.URI)
		if d.checkURI(at, "server", s.URI); d.good(at) && d.opts.XDSServer != nil {
			d.fields(at, d.opts.XDSServer(s))
		}
		d.checkClientTLS(at.sub("tls"), s.TLS.upstream())
		d.private(at, "token_file", s.TokenFile)
		if len(s.InitialMetadata) > 0 {
			d.inline(at, "initial_metadata")
		}
		for _, key := range slices.Sorted(maps.Keys(s.InitialMetadataFiles)) {
			d.private(at, "initial_metadata_files", s.InitialMetadataFiles[key])
		}
	}
}

// checkURI finds what is no gRPC target.
func (d *decoder) checkURI(p path, name, uri string) {
	const hint = `as in "dns:///control:15010" or "10.0.0.5:15010"`
	switch {
	case strings.ContainsAny(uri, "@?#"):
		d.mistake(p, d.where(p, name), name+" has a user, a query or a fragment in it", hint+", and token_file or initial_metadata of a server for secrets")
	case strings.HasPrefix(uri, "http://") || strings.HasPrefix(uri, "https://"):
		d.mistake(p, d.where(p, name), name+" is a gRPC target, not a URL", hint)
	case strings.ContainsFunc(uri, func(r rune) bool { return r <= ' ' }):
		d.mistake(p, d.where(p, name), name+" has a blank in it", hint)
	}
}
