package test

import (
	"bufio"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"gatehouse.internal/internal/tlsconf"
	"gatehouse.internal/internal/tlsconf/tlstest"
)

// pki is an authority with the files of an agent between clients and endpoints.
type pki struct {
	t   *testing.T
	ca  *tlstest.CA
	dir string
}

func newPKI(t *testing.T) *pki {
	p := &pki{t: t, ca: tlstest.NewCA(t, "test"), dir: t.TempDir()}
	p.ca.Write(t, p.dir)
	p.issue("front", "front.internal")
	p.issue("agent", "spiffe://example.org/agent")
	return p
}

// issue writes name.pem and name-key.pem.
func (p *pki) issue(name string, names ...string) {
	p.t.Helper()
	p.ca.Issue(p.t, tlstest.Leaf{CommonName: name, Names: names}).Write(p.t, p.dir, name)
}

// conf is a cluster "web" with mTLS, and a listener "web" with client
// certificates; more goes into the tls block of the listener.
func (p *pki) conf(more string, b ...*backend) string {
	return static("web", b...) + fmt.Sprintf(`
  tls {
    ca_file     = "%[1]s/ca.pem"
    cert_file   = "%[1]s/agent.pem"
    key_file    = "%[1]s/agent-key.pem"
    server_name = "web.internal"
  }
}
listener "web" {
  address = "127.0.0.1:0"
  cluster = "web"
  tls {
    cert_file                  = "%[1]s/front.pem"
    key_file                   = "%[1]s/front-key.pem"
    ca_file                    = "%[1]s/ca.pem"
    spiffe_ids                 = ["spiffe://example.org"]
    require_client_certificate = true
    %[2]s
  }
}
`, p.dir, more)
}

// backend is a TLS backend that wants the agent's certificate.
func (p *pki) backend(leaf tlstest.Leaf) *backend {
	p.t.Helper()
	conf := &tls.Config{
		Certificates: []tls.Certificate{p.ca.Issue(p.t, leaf).TLS(p.t)},
		ClientAuth:   tls.RequireAndVerifyClientCert, ClientCAs: p.ca.Pool(),
		VerifyConnection: func(cs tls.ConnectionState) error {
			if who := tlsconf.Peer(&cs); who != "spiffe://example.org/agent" {
				return fmt.Errorf("the client is %q", who)
			}
			return nil
		},
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		p.t.Fatal(err)
	}
	return startBackendAt(p.t, tls.NewListener(ln, conf))
}

// client is a client's configuration, with a certificate of its own.
func (p *pki) client(leaf tlstest.Leaf) *tls.Config {
	p.t.Helper()
	if leaf.Names == nil {
		leaf.Names = []string{"spiffe://example.org/client"}
	}
	return &tls.Config{RootCAs: p.ca.Pool(), ServerName: "front.internal", Certificates: []tls.Certificate{p.ca.Issue(p.t, leaf).TLS(p.t)}}
}

func dialTLS(t *testing.T, addr string, conf *tls.Config) *tls.Conn {
	t.Helper()
	raw, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	raw.SetDeadline(time.Now().Add(patience))
	c := tls.Client(raw, conf)
	t.Cleanup(func() { c.Close() })
	return c
}

// tlsStatus is what the agent shows of certificates.
type tlsStatus struct {
	Generation   int
	Certificates []struct {
		Subject string
		SANs    []string `json:"subject_alt_names"`
	}
	NotAfter     time.Time `json:"not_after"`
	ReloadError  string    `json:"reload_error"`
	ReloadErrors int       `json:"reload_errors"`
}

// tls returns what the agent shows of the certificates of its only listener and
// its only cluster.
func (p *process) tls() (listener, cluster tlsStatus) {
	p.t.Helper()
	type entry struct{ Gatehouse struct{ TLS tlsStatus } }
	var got struct {
		ListenerStatuses []entry `json:"listener_statuses"`
		ClusterStatuses  []entry `json:"cluster_statuses"`
	}
	for _, path := range []string{"/listeners", "/clusters"} {
		_, body := p.get(path + "?format=json")
		if err := json.Unmarshal([]byte(body), &got); err != nil {
			p.t.Fatal(err)
		}
	}
	return got.ListenerStatuses[0].Gatehouse.TLS, got.ClusterStatuses[0].Gatehouse.TLS
}

// noSecrets fails the test if one of the site's keys shows anywhere.
func (p *process) noSecrets(k *pki) {
	p.t.Helper()
	_, clusters := p.get("/clusters?format=json")
	_, listeners := p.get("/listeners?format=json")
	all := p.output() + clusters + listeners
	keys, _ := filepath.Glob(filepath.Join(k.dir, "*-key.pem"))
	for _, file := range keys {
		key, err := os.ReadFile(file)
		if err != nil {
			p.t.Fatal(err)
		}
		if line := strings.Split(string(key), "\n")[1]; strings.Contains(all, line) {
			p.t.Errorf("%s shows", file)
		}
	}
	if len(keys) < 3 || strings.Contains(all, "PRIVATE") {
		p.t.Error("a key shows, or there is none")
	}
}

// TLS with client certificates on both sides, half-closed from both ends, and
// certificates that are replaced while a connection lives.
func TestTLS(t *testing.T) {
	needsServer(t)
	k := newPKI(t)
	a := k.backend(tlstest.Leaf{Names: []string{"web.internal"}})
	k.issue("api", "api.internal")
	p := startAgent(t, k.conf(fmt.Sprintf(`
    tls_certificates "api" {
      cert_file = "%[1]s/api.pem"
      key_file  = "%[1]s/api-key.pem"
    }`, k.dir), a))
	p.awaitReady()
	addr := p.listener("web")
	live := dialTLS(t, addr, k.client(tlstest.Leaf{}))
	if who, err := askOn(live); err != nil || who != a.addr {
		t.Fatalf("%q, %v", who, tlsconf.Explain(err))
	}
	if cn := live.ConnectionState().PeerCertificates[0].Subject.CommonName; cn != "front" {
		t.Errorf("the listener's certificate is that of %q", cn)
	}

	byName := k.client(tlstest.Leaf{})
	byName.ServerName = "api.internal"
	api := dialTLS(t, addr, byName)
	if _, err := askOn(api); err != nil || api.ConnectionState().PeerCertificates[0].Subject.CommonName != "api" {
		t.Errorf("by another server name: %v, %v", api.ConnectionState().PeerCertificates, err)
	}

	half := dialTLS(t, addr, k.client(tlstest.Leaf{}))
	fmt.Fprintln(half, "who")
	if err := half.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(half); string(b) != a.addr+"\n" || err != nil {
		t.Errorf("after the end of the request: %q, %v", b, err)
	}

	l, c := p.tls()
	if l.Certificates[0].Subject != "CN=front" || len(l.Certificates[0].SANs) != 1 || l.Generation != 1 || l.NotAfter.IsZero() ||
		c.Certificates[0].Subject != "CN=agent" || c.Certificates[0].SANs[0] != "spiffe://example.org/agent" {
		t.Errorf("the status is %+v and %+v", l, c)
	}
	day := 24 * time.Hour.Seconds()
	if e, f := p.metric(`gatehouse_listener_tls_expiry{listener="web"}`), p.metric(`gatehouse_cluster_tls_expiry{cluster="web"}`); e <= 0 || e > day || f <= 0 || f > day {
		t.Errorf("certificates of a day expire in %v and %v seconds", e, f)
	}
	if e := p.logged("tls certificate", "subject", "CN=front"); e == nil || e["listener"] != "web" {
		t.Errorf("logged: %v", e)
	}

	// New certificates, one after the other, and then bad ones.
	k.ca.Issue(t, tlstest.Leaf{CommonName: "new front", Names: []string{"front.internal"}}).Write(t, k.dir, "front")
	k.ca.Issue(t, tlstest.Leaf{CommonName: "new agent", Names: []string{"spiffe://example.org/agent"}}).Write(t, k.dir, "agent")
	eventually(t, "the new certificates are in force", func() bool {
		l, c := p.tls()
		return l.Certificates[0].Subject == "CN=new front" && c.Certificates[0].Subject == "CN=new agent"
	})
	next := dialTLS(t, addr, k.client(tlstest.Leaf{}))
	if who, err := askOn(next); err != nil || who != a.addr {
		t.Fatalf("%q, %v", who, err)
	}
	if cn := next.ConnectionState().PeerCertificates[0].Subject.CommonName; cn != "new front" {
		t.Errorf("the listener's certificate is that of %q", cn)
	}
	k.issue("other")
	key, err := os.ReadFile(filepath.Join(k.dir, "other-key.pem"))
	if err != nil {
		t.Fatal(err)
	}
	tlstest.Replace(t, filepath.Join(k.dir, "front-key.pem"), key)
	eventually(t, "the bad key is told of", func() bool { l, _ := p.tls(); return strings.Contains(l.ReloadError, "do not belong together") })
	if p.metric(`gatehouse_listener_tls_reload_errors{listener="web"}`) != 1 {
		t.Error("the bad key is not counted")
	}
	if p.logged("new tls files can't be used, the last good ones stay in force", "listener", "web") == nil {
		t.Error("the bad key is not logged")
	}
	for _, c := range []*tls.Conn{live, next, dialTLS(t, addr, k.client(tlstest.Leaf{}))} {
		if who, err := askOn(c); err != nil || who != a.addr {
			t.Errorf("%q, %v", who, err)
		}
	}
	p.noSecrets(k)
}

// Who is not who it has to be is refused, and the log says why.
func TestTLSRefused(t *testing.T) {
	needsServer(t)
	k, other := newPKI(t), newPKI(t)
	past := tlstest.Leaf{NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: time.Now().Add(-time.Hour)}
	for name, tt := range map[string]struct {
		client *tls.Config // nil for a good one
		leaf   tlstest.Leaf
		of     *pki
		want   string
	}{
		"client without a certificate":         {&tls.Config{RootCAs: k.ca.Pool(), ServerName: "front.internal"}, tlstest.Leaf{}, k, "the client has shown no certificate, and one is required"},
		"client of another authority":          {func() *tls.Config { c := other.client(tlstest.Leaf{}); c.RootCAs = k.ca.Pool(); return c }(), tlstest.Leaf{}, k, "is signed by an authority that is not among the trusted ones"},
		"client with an expired certificate":   {k.client(past), tlstest.Leaf{}, k, "expired at"},
		"client of another trust domain":       {k.client(tlstest.Leaf{Names: []string{"spiffe://example.com/client"}}), tlstest.Leaf{}, k, `nothing of that is accepted; wanted: uri prefix \"spiffe://example.org/\"`},
		"endpoint of another authority":        {nil, tlstest.Leaf{Names: []string{"web.internal"}}, other, "is signed by an authority that is not among the trusted ones"},
		"endpoint with an expired certificate": {nil, past, k, "expired at"},
		"endpoint of another name":             {nil, tlstest.Leaf{Names: []string{"db.internal"}}, k, "is not valid for web.internal: it names db.internal"},
	} {
		t.Run(name, func(t *testing.T) {
			if tt.leaf.Names == nil {
				tt.leaf.Names = []string{"web.internal"}
			}
			a := tt.of.backend(tt.leaf)
			p := startAgent(t, k.conf("", a))
			p.awaitReady()
			conf, flag := tt.client, "DC"
			if conf == nil {
				conf, flag = k.client(tlstest.Leaf{}), "UF"
			}
			if who, err := askOn(dialTLS(t, p.listener("web"), conf)); err == nil {
				t.Errorf("it was served by %q", who)
			}
			eventually(t, "the log says why", func() bool { return strings.Contains(p.output(), tt.want) })
			eventually(t, "it is counted", func() bool {
				_, body := p.get("/stats/prometheus")
				return strings.Contains(body, `gatehouse_listener_ended{flag="`+flag+`",listener="web"} 1`)
			})
			if n := p.metric(`gatehouse_listener_tls_errors{listener="web"}`); (n == 1) != (flag == "DC") {
				t.Errorf("%v handshakes with clients failed", n)
			}
		})
	}
}

// An agent does not start with files that can't be used, and validate says so too.
func TestTLSFilesBad(t *testing.T) {
	needsServer(t)
	k := newPKI(t)
	a := startBackend(t)
	conf := configFile(t, k.conf("", a))
	if code := startAgentWith(t, "validate", "-config-file", conf).wait(); code != 0 {
		t.Errorf("validate exits with %d for a good configuration", code)
	}
	k.ca.Issue(t, tlstest.Leaf{NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: time.Now().Add(-time.Hour)}).Write(t, k.dir, "front")
	if err := os.Remove(filepath.Join(k.dir, "agent-key.pem")); err != nil {
		t.Fatal(err)
	}
	for _, command := range []string{"validate", "run"} {
		p := startAgentWith(t, command, "-config-file", conf)
		if code := p.wait(); code != 2 {
			t.Errorf("%s exits with %d, want 2", command, code)
		}
		for _, want := range []string{conf + ":8:19: stat " + k.dir + "/agent-key.pem: no such file", conf + ":16:34: certificate " + k.dir + "/front.pem expired at"} {
			if !strings.Contains(p.output(), want) {
				t.Errorf("%s does not say %q:\n%s", command, want, p.output())
			}
		}
	}
}

// Clients that stall in their handshake end by handshake_timeout, those over
// max_handshakes at once, and others are served.
func TestTLSStalled(t *testing.T) {
	needsServer(t)
	k := newPKI(t)
	a := k.backend(tlstest.Leaf{Names: []string{"web.internal"}})
	p := startAgent(t, k.conf("handshake_timeout = \"1s\"\nmax_handshakes = 3", a))
	p.awaitReady()
	addr := p.listener("web")
	live := dialTLS(t, addr, k.client(tlstest.Leaf{}))
	if _, err := askOn(live); err != nil {
		t.Fatal(err)
	}
	var stalled []net.Conn
	for i := range 10 {
		c, err := net.Dial("tcp", addr)
		if errors.Is(err, syscall.ECONNRESET) {
			continue // at once
		}
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(patience))
		c.Write([]byte("\x16\x03\x01")[:i%4]) // nothing, or the beginning of a ClientHello
		stalled = append(stalled, c)
	}
	for _, c := range stalled {
		if n, err := c.Read(make([]byte, 1)); err == nil {
			t.Errorf("it was answered with %d bytes", n)
		}
		if _, err := askOn(live); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "each is counted once", func() bool {
		_, body := p.get("/stats/prometheus")
		var late, over int
		for line := range strings.Lines(body) {
			fmt.Sscanf(line, `gatehouse_listener_ended{flag="DC",listener="web"} %d`, &late)
			fmt.Sscanf(line, `gatehouse_listener_ended{flag="OM",listener="web"} %d`, &over)
		}
		return late+over == 10 && late >= 3 && over >= 1
	})
	if !strings.Contains(p.output(), "not done within handshake_timeout") {
		t.Error("the log does not say why")
	}
	if who, err := askOn(dialTLS(t, addr, k.client(tlstest.Leaf{}))); err != nil || who != a.addr {
		t.Errorf("%q, %v", who, err)
	}
}

// nginx before the agent, and behind it: both have a PROXY header before the TLS
// handshake, and client certificates.
func TestTLSNginx(t *testing.T) {
	k := newPKI(t)
	k.issue("nginx", "web.internal", "spiffe://example.org/nginx")
	needsServer(t)
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	in, out := free.Addr().String(), filepath.Join(k.dir, "out.sock")
	free.Close()
	front := filepath.Join(k.dir, "front.sock")
	p := startAgent(t, fmt.Sprintf(`
cluster "web" {
  discovery "static" { endpoints = ["unix://%[1]s"] }
  proxy_protocol { version = 2 }
  tls {
    ca_file     = "%[2]s/ca.pem"
    cert_file   = "%[2]s/agent.pem"
    key_file    = "%[2]s/agent-key.pem"
    server_name = "web.internal"
  }
}
listener "web" {
  address = "unix://%[3]s"
  cluster = "web"
  proxy_protocol { accept_from = ["192.0.2.1"] }
  tls {
    cert_file                  = "%[2]s/front.pem"
    key_file                   = "%[2]s/front-key.pem"
    ca_file                    = "%[2]s/ca.pem"
    spiffe_ids                 = ["spiffe://example.org/nginx"]
    require_client_certificate = true
  }
}
`, out, k.dir, front))
	p.awaitReady()
	startNginx(t, fmt.Sprintf(`
server {
  listen %[1]s proxy_protocol;
  set_real_ip_from 127.0.0.1;
  proxy_pass unix:%[3]s;
  proxy_protocol on;
  proxy_ssl on;
  proxy_ssl_verify on;
  proxy_ssl_name front.internal;
  proxy_ssl_server_name on;
  proxy_ssl_session_reuse on;
  proxy_ssl_trusted_certificate %[4]s/ca.pem;
  proxy_ssl_certificate %[4]s/nginx.pem;
  proxy_ssl_certificate_key %[4]s/nginx-key.pem;
}
server {
  listen unix:%[2]s ssl proxy_protocol;
  ssl_certificate %[4]s/nginx.pem;
  ssl_certificate_key %[4]s/nginx-key.pem;
  ssl_client_certificate %[4]s/ca.pem;
  ssl_verify_client on;
  return "$proxy_protocol_addr:$proxy_protocol_port $ssl_client_s_dn $ssl_server_name\n";
}
`, in, out, front, k.dir), out)
	for range 3 { // resumed, after the first
		c, err := net.Dial("tcp", in)
		if err != nil {
			t.Fatal(err)
		}
		c.SetDeadline(time.Now().Add(patience))
		fmt.Fprint(c, "PROXY TCP4 198.51.100.9 203.0.113.1 4711 443\r\n")
		line, err := bufio.NewReader(c).ReadString('\n')
		c.Close()
		if want := "198.51.100.9:4711 CN=agent web.internal\n"; line != want {
			t.Errorf("nginx says %q with %v, want %q", line, err, want)
		}
	}
}
