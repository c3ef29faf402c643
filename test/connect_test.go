package test

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"

	"gatehouse.internal/discovery/consul/consultest"
	"gatehouse.internal/internal/tlsconf/tlstest"
)

// mesh is a Consul with a service mesh, in which the services have one sidecar each.
type mesh struct {
	*consultest.Server
	t *testing.T
}

func startMesh(t *testing.T) *mesh {
	needsServer(t)
	return &mesh{consultest.Start(t, consultest.Options{ACL: true, Config: `connect { enabled = true }`}), t}
}

func portOf(t *testing.T, addr string) int {
	t.Helper()
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// register registers a service at local with a sidecar at public, which leads to
// upstreams, by their local addresses.
func (m *mesh) register(service, local, public string, upstreams map[string]string) {
	m.t.Helper()
	proxy := &api.AgentServiceConnectProxyConfig{DestinationServiceName: service, DestinationServiceID: service, LocalServicePort: portOf(m.t, local)}
	for name, addr := range upstreams {
		proxy.Upstreams = append(proxy.Upstreams, api.Upstream{DestinationName: name, LocalBindPort: portOf(m.t, addr)})
	}
	for _, r := range []*api.AgentServiceRegistration{
		{Name: service, ID: service, Port: portOf(m.t, local)},
		{Kind: api.ServiceKindConnectProxy, Name: service + "-sidecar-proxy", ID: service + "-sidecar-proxy", Port: portOf(m.t, public), Proxy: proxy},
	} {
		r.Address = "127.0.0.1"
		if err := m.API(consultest.ManagementToken).Agent().ServiceRegister(r); err != nil {
			m.t.Fatal(err)
		}
	}
}

// intend says whether a service may connect to another.
func (m *mesh) intend(source, destination string, action api.IntentionAction) {
	m.t.Helper()
	_, err := m.API(consultest.ManagementToken).Connect().IntentionUpsert(&api.Intention{SourceName: source, DestinationName: destination, Action: action}, nil)
	if err != nil {
		m.t.Fatal(err)
	}
}

// rotate makes another root that vouches for the mesh, and returns its certificate.
func (m *mesh) rotate() {
	m.t.Helper()
	connect := m.API(consultest.ManagementToken).Connect()
	conf, _, err := connect.CAGetConfig(nil)
	if err != nil {
		m.t.Fatal(err)
	}
	// Another type of key has Consul make another root.
	conf.Config["PrivateKeyType"], conf.Config["PrivateKeyBits"] = "ec", 384
	if _, err := connect.CASetConfig(conf, nil); err != nil {
		m.t.Fatal(err)
	}
}

// client returns the TLS of a client of the mesh, in the name of a service.
func (m *mesh) client(service string) *tls.Config {
	m.t.Helper()
	leaf, _, err := m.API(consultest.ManagementToken).Agent().ConnectCALeaf(service, nil)
	if err != nil {
		m.t.Fatal(err)
	}
	pair, err := tls.X509KeyPair([]byte(leaf.CertPEM), []byte(leaf.PrivateKeyPEM))
	if err != nil {
		m.t.Fatal(err)
	}
	return &tls.Config{Certificates: []tls.Certificate{pair}, InsecureSkipVerify: true} // what it meets is looked at by others
}

// as connects to addr by TLS, and returns who answers.
func as(addr string, conf *tls.Config) (string, error) {
	raw, err := net.DialTimeout("tcp", addr, patience)
	if err != nil {
		return "", err
	}
	defer raw.Close()
	return askOn(tls.Client(raw, conf))
}

// hold keeps a connection through addr open, and returns what looks whether it still
// passes bytes.
func hold(t *testing.T, addr string) (alive func() error) {
	t.Helper()
	c, err := net.DialTimeout("tcp", addr, patience)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return func() error { _, err := askOn(c); return err }
}

// connectConfig has Gatehouse speak for client towards web, and for api on public,
// whose instance is backend.
func connectConfig(m *mesh, public, backend, log string) string {
	return fmt.Sprintf(`
consul {
  address = %q
  token   = %q
}
cluster "web" {
  discovery "consul" { connect = true }
  connect { service = "client" }
  health_check "tcp" {
    interval = "1s"
    timeout  = "1s"
  }
}
listener "web" {
  address = "127.0.0.1:0"
  cluster = "web"
}
cluster "api-mesh" {
  discovery "consul" {
    service = "api"
    connect = true
  }
  connect { service = "client" }
}
listener "api-mesh" {
  address = "127.0.0.1:0"
  cluster = "api-mesh"
}
cluster "api" {
  discovery "static" { endpoints = [{ address = %q }] }
}
listener "api" {
  address = %q
  cluster = "api"
  connect { service = "api" }
  access_log {
    path   = %q
    format = "json"
  }
}
`, m.Addr(), consultest.ManagementToken, backend, public, log)
}

// Consul's service mesh without xDS: Gatehouse dials Consul's own proxy, and is
// dialled by it and by itself; intentions are obeyed within seconds; another root of
// the mesh costs no connection; without Consul what is known serves on, and nobody
// gets in of whom it can't be asked.
func TestConnect(t *testing.T) {
	m := startMesh(t)
	web, apiServer := startBackend(t), startBackend(t)
	addrs := freePorts(t, 3)
	webPublic, apiPublic, toAPI := addrs[0], addrs[1], addrs[2]
	m.register("web", web.addr, webPublic, nil)
	m.register("api", apiServer.addr, apiPublic, nil)
	m.register("client", "127.0.0.1:1", "127.0.0.1:2", nil)
	for _, to := range []string{"web", "api"} {
		m.intend("client", to, api.IntentionActionAllow)
	}
	m.Proxy("-sidecar-for", "web")
	m.Proxy("-service", "client", "-upstream", "api:"+toAPI)
	log := filepath.Join(t.TempDir(), "access.log")
	p := startAgent(t, connectConfig(m, apiPublic, apiServer.addr, log))
	p.awaitReady()
	paths := map[string]struct {
		addr string
		to   *backend
	}{
		"to Consul's proxy":   {p.listener("web"), web},
		"from Consul's proxy": {toAPI, apiServer},
		"to itself":           {p.listener("api-mesh"), apiServer},
	}
	for name, path := range paths {
		eventually(t, "connections flow "+name, func() bool { who, err := ask(t.Context(), path.addr); return err == nil && who == path.to.addr })
	}

	// Who the client is, is known.
	logged := func(parts ...string) func() bool {
		return func() bool {
			text, err := os.ReadFile(log)
			if err != nil {
				t.Fatal(err)
			}
			for line := range strings.Lines(string(text)) {
				all := true
				for _, part := range parts {
					all = all && strings.Contains(line, part)
				}
				if all {
					return true
				}
			}
			return false
		}
	}
	eventually(t, "the client's name is in the access log", logged("/ns/default/dc/dc1/svc/client"))

	// Refusals, each by its reason.
	stranger := tlstest.NewCA(t, "stranger").Issue(t, tlstest.Leaf{Names: []string{"spiffe://example.org/ns/default/dc/dc1/svc/client"}}).TLS(t)
	shows := func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &stranger, nil } // whatever is asked for
	for _, x := range []struct {
		what   string
		conf   *tls.Config
		reason string
	}{
		{"no certificate", &tls.Config{InsecureSkipVerify: true}, "the client has shown no certificate"},
		{"another authority", &tls.Config{InsecureSkipVerify: true, GetClientCertificate: shows}, "not among the trusted ones"},
		{"no intention", m.client("other"), "intentions do not let spiffe://"},
	} {
		if who, err := as(apiPublic, x.conf); err == nil {
			t.Errorf("%s: let in to %s", x.what, who)
		}
		eventually(t, "the reason is in the access log: "+x.what, logged(x.reason))
	}
	refusesPlainText(t, apiPublic)
	eventually(t, "failed handshakes are counted", func() bool { return metricOf(p, `gatehouse_listener_tls_errors{listener="api"}`) >= 3 })
	eventually(t, "denied connections are counted", func() bool {
		return metricOf(p, `gatehouse_listener_rbac{listener="api",result="denied"}`) >= 1 && metricOf(p, `gatehouse_listener_ended{flag="UAEX",listener="api"}`) >= 1
	})

	// Another root: nothing is lost.
	var alive []func() error
	all := make(map[string]*traffic)
	for name, path := range paths {
		alive = append(alive, hold(t, path.addr))
		all[name] = startTrafficAt(t, path.addr, 40*time.Millisecond)
	}
	before := rootsOf(t, m)
	m.rotate()
	eventually(t, "the listener shows a certificate of the new root", func() bool {
		raw, err := net.DialTimeout("tcp", apiPublic, patience)
		if err != nil {
			t.Fatal(err)
		}
		defer raw.Close()
		issued := false
		conf := m.client("client")
		conf.VerifyConnection = func(cs tls.ConnectionState) error {
			opts := x509.VerifyOptions{Roots: before, CurrentTime: time.Now()}
			_, err := cs.PeerCertificates[0].Verify(opts)
			issued = errors.As(err, new(x509.UnknownAuthorityError))
			return nil
		}
		_ = tls.Client(raw, conf).Handshake()
		return issued
	})
	for name, path := range paths {
		all[name].lands(t, path.to)
	}
	for name, tr := range all {
		tr.stop()
		tr.noErrors(t)
		if t.Failed() {
			t.Fatal(name)
		}
	}
	for _, ok := range alive {
		if err := ok(); err != nil {
			t.Errorf("a connection that was open: %v", err)
		}
	}

	// An intention that is taken back.
	for _, to := range []string{"web", "api"} {
		m.intend("client", to, api.IntentionActionDeny)
	}
	for name, path := range paths {
		eventually(t, "no new connections "+name, func() bool { _, err := ask(t.Context(), path.addr); return err != nil })
	}
	for _, to := range []string{"web", "api"} {
		m.intend("client", to, api.IntentionActionAllow)
	}
	for name, path := range paths {
		eventually(t, "connections flow again "+name, func() bool { who, err := ask(t.Context(), path.addr); return err == nil && who == path.to.addr })
	}

	// Without the agent.
	conf := m.client("client")
	m.Kill()
	eventually(t, "nobody is let in unasked", func() bool { _, err := as(apiPublic, conf); return err != nil })
	eventually(t, "the reason is in the access log", logged("it can't be known whether intentions let", "connection refused"))
	eventually(t, "it is counted", func() bool { return metricOf(p, `gatehouse_consul_authorizations{result="failed"}`) >= 1 })
	if text := p.output(); strings.Contains(text, "PRIVATE KEY") || strings.Contains(text, consultest.ManagementToken) {
		t.Error("a secret is in the log")
	}
	for _, path := range []string{"/config_dump", "/clusters?format=json", "/listeners?format=json"} {
		if _, body := p.get(path); strings.Contains(body, "PRIVATE KEY") {
			t.Errorf("a key is in %s", path)
		}
	}
}

// rootsOf returns the roots of the mesh.
func rootsOf(t *testing.T, m *mesh) *x509.CertPool {
	t.Helper()
	list, _, err := m.API(consultest.ManagementToken).Agent().ConnectCARoots(nil)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	for _, r := range list.Roots {
		pool.AppendCertsFromPEM([]byte(r.RootCertPEM))
	}
	return pool
}

// metricOf is the value of a metric, 0 where there is none yet.
func metricOf(p *process, name string) float64 {
	if _, body := p.get("/stats/prometheus"); !strings.Contains(body, name+" ") {
		return 0
	}
	return p.metric(name)
}
