package config

import (
	"bytes"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Consul is the access to a Consul agent, and what is done with it besides
// discovery. The block may be empty or absent: Consul's own environment
// variables, named with each field, and the defaults are enough. They stand
// above files and below GATEHOUSE_CONSUL_*, as for every argument, and are read
// only where the configuration uses Consul. CONSUL_GRPC_ADDR, CONSUL_GRPC_CACERT
// and CONSUL_GRPC_CAPATH are not used: nothing here speaks gRPC with Consul.
type Consul struct {
	// Address is host:port, http://host:port, https://host:port or
	// unix:///path. Default 127.0.0.1:8500. Variable CONSUL_HTTP_ADDR.
	Address string `hcl:"address" default:"127.0.0.1:8500" env:"CONSUL_HTTP_ADDR"`
	// SSL is https for an Address without a scheme. Variable CONSUL_HTTP_SSL.
	SSL bool `hcl:"ssl" env:"CONSUL_HTTP_SSL"`
	// Token is the ACL token, TokenFile the path of a file with it, which is
	// read again for every request. At most one of the two is set: what is said
	// later replaces both (files, then CONSUL_*, then GATEHOUSE_CONSUL_*), and of
	// both said in the same place the file counts. So CONSUL_HTTP_TOKEN stands
	// above a token_file in a file of configuration, unlike in Consul's own
	// client, because here the environment always stands above files.
	// Variables CONSUL_HTTP_TOKEN and CONSUL_HTTP_TOKEN_FILE.
	Token     Secret `hcl:"token" env:"CONSUL_HTTP_TOKEN"`
	TokenFile string `hcl:"token_file" env:"CONSUL_HTTP_TOKEN_FILE"`
	// HTTPAuth is "user" or "user:password" for HTTP's basic authentication.
	// Variable CONSUL_HTTP_AUTH.
	HTTPAuth Secret `hcl:"http_auth" env:"CONSUL_HTTP_AUTH"`
	// CAFile and CAPath are a PEM file and a directory of authorities; without
	// both, the system's. Variables CONSUL_CACERT and CONSUL_CAPATH.
	CAFile string `hcl:"ca_file" env:"CONSUL_CACERT"`
	CAPath string `hcl:"ca_path" env:"CONSUL_CAPATH"`
	// CertFile and KeyFile are the client's certificate, both or neither.
	// Variables CONSUL_CLIENT_CERT and CONSUL_CLIENT_KEY.
	CertFile string `hcl:"cert_file" env:"CONSUL_CLIENT_CERT"`
	KeyFile  string `hcl:"key_file" env:"CONSUL_CLIENT_KEY"`
	// TLSServerName is the name that the server's certificate must have; the
	// host of Address if empty. Variable CONSUL_TLS_SERVER_NAME.
	TLSServerName string `hcl:"tls_server_name" env:"CONSUL_TLS_SERVER_NAME"`
	// SSLVerify checks the server's certificate. Default true.
	// Variable CONSUL_HTTP_SSL_VERIFY.
	SSLVerify bool `hcl:"ssl_verify" default:"true" env:"CONSUL_HTTP_SSL_VERIFY"`
	// Datacenter, Namespace and Partition are asked unless a discovery block
	// says otherwise; the agent's own if empty. Variables CONSUL_NAMESPACE and
	// CONSUL_PARTITION.
	Datacenter string `hcl:"datacenter"`
	Namespace  string `hcl:"namespace" env:"CONSUL_NAMESPACE"`
	Partition  string `hcl:"partition" env:"CONSUL_PARTITION"`

	// WaitTime is how long a blocking query waits for a change. Default 1m,
	// from 1s to 10m.
	WaitTime time.Duration `hcl:"wait_time" default:"1m" range:"1s..10m"`
	// MaxWatches is up to how many services have a blocking query each; more of
	// them share a few. Default 48, from 1 to 128.
	MaxWatches int `hcl:"max_watches" default:"48" range:"1..128"`
	// MaxStale is how far a server may be behind the leader to be believed
	// about what is gone. Default 10s, from 1ms to 1h.
	MaxStale time.Duration `hcl:"max_stale" default:"10s" range:"1ms..1h"`
	// EmptyHold is how long the loss of all or more than half of a service's
	// instances is held back while it is not confirmed. Default 30s, from 1ms
	// to 24h.
	EmptyHold time.Duration `hcl:"empty_hold" default:"30s" range:"1ms..24h"`
	// Listeners turns services with the tag gatehouse.listen=127.0.0.1:PORT, or
	// that address in their metadata under gatehouse-listen, into listeners
	// named service@address and clusters named as the service. Where a file or
	// the control plane has a cluster of that name, the listener uses that one.
	Listeners bool `hcl:"listeners"`
	// Register makes the agent itself a service of the catalog.
	Register Register `hcl:"register,block"`
}

// Register is how the agent registers itself: as a service with a check on
// /ready, so the admin address must be IP and port. Consul's agent asks it: on
// another host it does not reach a loopback address, and a certificate it shows only
// with enable_agent_tls_for_checks.
type Register struct {
	// Enabled says that there is such a block.
	Enabled bool
	// Name is the service's name. Default gatehouse.
	Name string `hcl:"name" default:"gatehouse"`
	// ID is the service's id, unique at Consul's agent. Default: Name, a dash
	// and Node.ID.
	ID string `hcl:"id"`
	// Tags and Meta are the service's, for who looks for it. Default none.
	Tags []string          `hcl:"tags"`
	Meta map[string]string `hcl:"meta"`
	// Address is what others reach the admin interface by. Default: its own
	// address; if that is all addresses, the one of Consul's node.
	Address string `hcl:"address"`
	// CheckInterval and CheckTimeout are the check's. Default 10s, from 1s to
	// 1h, and 5s, from 10ms to 1h.
	CheckInterval time.Duration `hcl:"check_interval" default:"10s" range:"1s..1h"`
	CheckTimeout  time.Duration `hcl:"check_timeout" default:"5s" range:"10ms..1h"`
	// DeregisterAfter is after how long of a failing check Consul forgets the
	// agent. Default 0, which is never; at least 1m otherwise.
	DeregisterAfter time.Duration `hcl:"deregister_after" range:"0s.."`
}

// Secret is text that is not shown: however it is printed, logged or encoded,
// something else stands in its place. A conversion to string tells it.
type Secret string

const hidden = "(secret)"

// String returns "(secret)", or nothing for the empty Secret.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return hidden
}

// GoString is String's.
func (s Secret) GoString() string { return s.String() }

// MarshalText is String's.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// LogValue is String's.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// secretName finds the arguments that are a Secret, headers, what checks send, and
// addresses with a user or a query. It finds more, which is fine: lines that it finds are not shown in mistakes, nor the lines of a long
// value behind them.
var secretName = regexp.MustCompile(`(?i)(?:\btoken|_token|\bhttp_auth|\bsecret\w*|\bheaders|\binitial_metadata|authorization|cookie|api[-_]?key|\bsend)\b"?\s*[=:]?\s*(<<)?|\b(?:address|server|server_uri)"?[\s=:{]*"[^"\n]*[@?#]|://[^\s"/]*@`)

// hide notes the lines of src that may have secrets in them.
func (src *source) hide() {
	line, counted := 1, 0
	for _, at := range secretName.FindAllSubmatchIndex(src.text, -1) {
		line += bytes.Count(src.text[counted:at[0]], []byte("\n"))
		counted = at[0]
		last := line + bytes.Count(src.text[at[0]:at[1]], []byte("\n"))
		if at[2] >= 0 { // a heredoc
			last = len(src.lines)
		}
		for n := line; n <= last; n++ {
			src.secret[n] = true
		}
		if at[2] >= 0 {
			return
		}
	}
}

// UsesConsul reports whether anything is asked of Consul.
func (c *Config) UsesConsul() bool {
	return c.Consul.Listeners || c.Consul.Register.Enabled || c.discovers(DiscoveryConsul) ||
		slices.ContainsFunc(c.Listeners, func(l Listener) bool { return l.Connect.Enabled })
}

// saysConsul reports whether the configuration has a word on Consul, so that
// Consul's own variables are meant for it too.
func (d *decoder) saysConsul(settings []setting, opts Options) bool {
	if _, ok := d.at["consul"]; ok || d.cfg.UsesConsul() {
		return true
	}
	return slices.ContainsFunc(settings, func(s setting) bool {
		return strings.HasPrefix(string(s.path), string(path("consul").sub(""))) && opts.env(variable(s)) != ""
	}) || slices.ContainsFunc(opts.Flags, func(f Flag) bool { return strings.HasPrefix(f.Path, "consul.") })
}

// level has apply set arguments that win over those set so far. A token and a
// file with one are two ways to say one thing: see Consul.Token.
func (d *decoder) level(apply func()) {
	c := &d.cfg.Consul
	token, file := c.Token, c.TokenFile
	c.Token, c.TokenFile = "", ""
	apply()
	switch {
	case c.TokenFile != "":
		c.Token = ""
	case c.Token == "":
		c.Token, c.TokenFile = token, file
	}
}

// finishConsul fills in the defaults that depend on other values.
func (d *decoder) finishConsul() {
	r := &d.cfg.Consul.Register
	p := path("consul").sub("register")
	_, r.Enabled = d.at[p]
	for at := range d.at {
		r.Enabled = r.Enabled || at.parent() == p
	}
	if r.Enabled && r.ID == "" && !d.isSet(p, "id") {
		r.ID = r.Name + "-" + d.cfg.Node.ID
	}
}

func (d *decoder) checkConsul(cfg *Config) {
	p := path("consul")
	if d.consul && d.opts.Consul != nil {
		d.fields(p, d.opts.Consul(cfg.Consul))
	}
	if d.consul {
		d.private(p, "token_file", cfg.Consul.TokenFile)
		d.private(p, "key_file", cfg.Consul.KeyFile)
		if cfg.Consul.Token != "" {
			d.inline(p, "token")
		}
		if cfg.Consul.HTTPAuth != "" {
			d.inline(p, "http_auth")
		}
	}
	r := cfg.Consul.Register
	if p = p.sub("register"); !r.Enabled || !d.good("admin", "address") {
		return
	}
	if a := cfg.Admin.Address; a.Path() != "" {
		d.mistake(p, d.where(p), "register needs an admin interface with IP and port, which Consul can ask, not "+a.String(),
			`set admin { address = "127.0.0.1:9901" }, or leave register out`)
		return
	}
	if d.opts.Register != nil {
		d.fields(p, d.opts.Register(r, cfg.Admin))
	}
}

// fields takes joined errors, each of which begins with the name of an argument
// of p and a colon, for mistakes there, unless one was found there before.
func (d *decoder) fields(p path, err error) {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, err := range joined.Unwrap() {
			d.fields(p, err)
		}
		return
	}
	if err == nil {
		return
	}
	name, _, _ := strings.Cut(err.Error(), ": ")
	if d.good(p, name) {
		d.mistake(p.sub(name), d.where(p, name), err.Error(), "")
	}
}
