package consul_test

import (
	"os"
	"path/filepath"
	"testing"

	"gatehouse.internal/discovery/consul"
	"gatehouse.internal/discovery/consul/consultest"
)

// install puts a file in another's place, as whoever rotates certificates does.
func install(t *testing.T, from, to string) {
	t.Helper()
	text, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, to+".new", string(text))
	if err := os.Rename(to+".new", to); err != nil {
		t.Fatal(err)
	}
}

// Consul by TLS with client certificates: what is wrong is said, and what is
// put right is used by the next connection.
func TestRealTLS(t *testing.T) {
	t.Parallel()
	certs, strangers := consultest.NewCerts(t), consultest.NewCerts(t)
	s := consultest.Start(t, consultest.Options{TLS: certs})
	s.RegisterMany(instance(1), instance(2))
	good := consul.Config{Address: "https://" + s.HTTPSAddr(), CAFile: certs.CAFile, CertFile: certs.ClientCert, KeyFile: certs.ClientKey}
	for name, w := range everyWay(t, good) {
		step(t, name)
		w.see("1 2")
		w.neverFailed()
	}
	other := good
	other.Address, other.SSL = s.HTTPSAddr(), true
	newReal(t, other).web().see("1 2")
	other = good
	other.TLSServerName = "server.dc1.consul"
	newReal(t, other).web().see("1 2")

	for _, c := range []struct {
		name  string
		edit  func(*consul.Config)
		wants []string
	}{
		{"wrong CA", func(c *consul.Config) { c.CAFile = strangers.CAFile }, []string{"handshake: ", "x509: certificate signed by unknown authority"}},
		{"system's CAs", func(c *consul.Config) { c.CAFile = "" }, []string{"handshake: ", "x509: certificate signed by unknown authority"}},
		{"no client certificate", func(c *consul.Config) { c.CertFile, c.KeyFile = "", "" }, []string{"tls: certificate required"}},
		{"a stranger's certificate", func(c *consul.Config) { c.CertFile, c.KeyFile = strangers.ClientCert, strangers.ClientKey }, []string{"tls: "}},
		{"wrong name", func(c *consul.Config) { c.TLSServerName = "elsewhere" }, []string{"x509: certificate is valid for", "not elsewhere"}},
		{"http to https", func(c *consul.Config) { c.Address = "http://" + s.HTTPSAddr() }, []string{"HTTP request to an HTTPS server"}},
		{"missing CA", func(c *consul.Config) { c.CAFile = filepath.Join(t.TempDir(), "none.pem") }, []string{"tls files: ", "no such file"}},
		{"nonsense for a CA", func(c *consul.Config) { c.CAFile = certs.ClientKey }, []string{"tls files: "}},
		{"key of another", func(c *consul.Config) { c.KeyFile = strangers.ClientKey }, []string{"tls files: ", "private key does not match public key"}},
	} {
		cfg := good
		c.edit(&cfg)
		w := newReal(t, cfg).web()
		t.Logf("%s: %v", c.name, w.fail(c.wants...))
		w.only()
	}
}

// Certificates that are replaced on disk are used by the next connection.
func TestRealTLSRotation(t *testing.T) {
	t.Parallel()
	certs, strangers := consultest.NewCerts(t), consultest.NewCerts(t)
	s := consultest.Start(t, consultest.Options{TLS: certs})
	s.RegisterMany(instance(1))
	dir := t.TempDir()
	ca, cert, key := filepath.Join(dir, "ca.pem"), filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	r := newReal(t, consul.Config{Address: "https://" + s.HTTPSAddr(), CAFile: ca, CertFile: cert, KeyFile: key})
	web := r.web()
	web.fail("no such file")
	install(t, strangers.CAFile, ca)
	install(t, strangers.ClientCert, cert)
	install(t, strangers.ClientKey, key)
	web.fail("x509: certificate signed by unknown authority")
	install(t, certs.CAFile, ca)
	web.fail("tls: ")
	web.only()
	install(t, certs.ClientCert, cert)
	install(t, certs.ClientKey, key)
	web.see("1")

	// The other way round. When the open connections end is not for this test to
	// say: a restart ends them.
	r.calm()
	install(t, strangers.CAFile, ca)
	s.Restart()
	web.fail("x509: certificate signed by unknown authority")
	web.held("1")
	install(t, certs.CAFile, ca)
	s.RegisterMany(instance(2))
	web.fresh("1 2")
}

// Consul on a unix socket, which goes and comes back with it.
func TestRealUnixSocket(t *testing.T) {
	t.Parallel()
	s := consultest.Start(t, consultest.Options{UnixSocket: true})
	s.Register(instance(1))
	ways := everyWay(t, consul.Config{Address: s.Addr()})
	for _, w := range ways {
		w.see("1")
	}
	s.Restart()
	s.RegisterMany(instance(2))
	for name, w := range ways {
		step(t, name)
		w.fresh("1 2")
		w.only("1", "1 2")
	}
}
