package config

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"gatehouse.internal/internal/filewatch"
	"gatehouse.internal/internal/tlsconf"
	"gatehouse.internal/lbcore"
)

// Admin is the admin interface. By default who is on the host may use it: on
// loopback everybody, on a unix socket its owner. It is a mistake if it is anywhere
// else without TLS with client certificates or a token.
type Admin struct {
	// Address is an IP with port, or unix:///path. Port 0 lets the kernel choose.
	// Default 127.0.0.1:9901.
	Address lbcore.Addr `hcl:"address" default:"127.0.0.1:9901"`
	// Unix is whose the file of a unix socket is. The default of its mode is 0600,
	// whatever the umask.
	Unix Unix `hcl:"unix,block"`
	// TLS has the interface speak TLS, on whatever address it is.
	TLS AdminTLS `hcl:"tls,block"`
	// TokenFile is a file with a token of at least 16 printable characters, which
	// requests must have as "authorization: Bearer …"; only /live, and of /ready the
	// state, are told without. It is read again for every request: while it can't be
	// read, all are refused. Empty means that none is asked for.
	TokenFile string `hcl:"token_file"`
}

// MinAdminToken is the least length of the token of the admin interface.
const MinAdminToken = 16

// AdminTLS is TLS at the admin interface. Files are watched, and read again when they
// change: see tlsconf. It is TLS 1.2 at least.
type AdminTLS struct {
	// CertFile and KeyFile are the interface's certificate, followed by its
	// intermediates, and its key, as PEM.
	CertFile string `hcl:"cert_file" required:"true"`
	KeyFile  string `hcl:"key_file" required:"true"`
	// ClientCAFile has the authorities that certificates of clients are verified by,
	// as PEM; each client must show one then. Empty asks for none.
	ClientCAFile string `hcl:"client_ca_file"`
}

// Enabled reports whether there is TLS.
func (t *AdminTLS) Enabled() bool { return t.CertFile != "" }

// Server returns the settings of a tlsconf.Server.
func (t *AdminTLS) Server() tlsconf.ServerConfig {
	return tlsconf.ServerConfig{
		CertFile: t.CertFile, KeyFile: t.KeyFile, ClientCAFile: t.ClientCAFile, RequireClientCert: t.ClientCAFile != "",
		ALPN: []string{"h2", "http/1.1"},
	}
}

// AdminToken returns the token in a file, or why it can't be one. No error has any of
// it.
func AdminToken(file string) (string, error) {
	token, err := filewatch.Secret(file)
	if err == nil && (len(token) < MinAdminToken || strings.Contains(token, " ")) {
		err = fmt.Errorf("%s: want a token of at least %d characters, without blanks", file, MinAdminToken)
	}
	if err != nil {
		return "", err
	}
	return token, nil
}

// local reports whether only who is on the host reaches an address.
func local(a lbcore.Addr) bool { return a.Path() != "" || a.AddrPort().Addr().Unmap().IsLoopback() }

func (d *decoder) checkAdmin(a *Admin) {
	p := path("admin")
	tls := p.sub("tls")
	d.checkUnix(p, a.Unix, a.Address)
	if (a.TLS.CertFile == "") != (a.TLS.KeyFile == "") && d.good(tls, "cert_file", "key_file") {
		d.mistake(tls, d.where(tls, "cert_file", "key_file"), "cert_file and key_file go together, and only one is set", "set both")
		return
	}
	if a.TLS.ClientCAFile != "" && a.TLS.CertFile == "" && d.good(tls, "cert_file", "key_file", "client_ca_file") {
		d.mistake(tls, d.where(tls, "client_ca_file"), "client_ca_file without cert_file", "set cert_file and key_file too")
		return
	}
	if !local(a.Address) && d.good(p, "address", "token_file", "tls") && d.good(tls, "cert_file", "key_file", "client_ca_file") && !d.incomplete {
		switch {
		case a.TLS.ClientCAFile == "" && a.TokenFile == "":
			d.mistake(p.sub("address"), d.where(p, "address"), fmt.Sprintf("address: whoever reaches %s could change what the agent does", a.Address),
				"listen on loopback or unix:///path, or ask for certificates (tls with client_ca_file) or for a token (token_file)")
		case !a.TLS.Enabled():
			d.warn(d.where(p, "address"), fmt.Sprintf("address: the token crosses the network to %s in plain text", a.Address), "add a block tls")
		}
	}
	if !d.opts.TLSFiles {
		return
	}
	if a.TLS.Enabled() && d.good(tls, "cert_file", "key_file", "client_ca_file") {
		_, err := tlsconf.NewServer(a.TLS.Server())
		d.unusable(err, tlsFiles{at: tls, ca: a.TLS.ClientCAFile, caName: "client_ca_file", cert: a.TLS.CertFile, key: a.TLS.KeyFile})
		d.private(tls, "key_file", a.TLS.KeyFile)
	}
	if a.TokenFile != "" && d.good(p, "token_file") {
		hint := ""
		_, err := AdminToken(a.TokenFile)
		if errors.Is(err, fs.ErrPermission) {
			hint = "let the agent's user read it"
		}
		if err != nil {
			d.mistake(p.sub("token_file"), d.where(p, "token_file"), "token_file: "+err.Error(), hint)
		}
		d.private(p, "token_file", a.TokenFile)
	}
}

// private warns of a file with a secret, named by the argument name of p, that others
// can read: of each file once.
func (d *decoder) private(p path, name, file string) {
	if file == "" || !d.opts.TLSFiles || d.exposed[file] || !filewatch.Exposed(file) {
		return
	}
	d.exposed[file] = true
	d.warn(d.where(p, name), fmt.Sprintf("%s: other users can read or write %s", name, file), "chmod g-w,o= takes that away; who has read a secret may use it")
}

// inline warns of a file of the configuration that others can read, with a secret in the
// argument name of p.
func (d *decoder) inline(p path, name string) {
	if file := d.where(p, name).Filename; d.sources[file] != nil { // neither a variable nor a flag
		d.private(p, name, file)
	}
}
