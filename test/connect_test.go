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
	return &mesh{consultest.Start(t, consultest.Options{ACL: true, GRPC: true}), t}
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

// token makes a token that may do what these rules say, and returns it.
func (m *mesh) token(rules string) string {
	m.t.Helper()
	acl := m.API(consultest.ManagementToken).ACL()
	p, _, err := acl.PolicyCreate(&api.ACLPolicy{Name: "agent", Rules: rules}, nil)
	if err != nil {
		m.t.Fatal(err)
	}
	tok, _, err := acl.TokenCreate(&api.ACLToken{Policies: []*api.ACLLink{{ID: p.ID}}}, nil)
	if err != nil {
		m.t.Fatal(err)
	}
	return tok.SecretID
}

// connectConfig has Gatehouse speak for client towards web, and for api on public,
// whose instance is backend. Its token may do what the guide says that it has to.
func connectConfig(m *mesh, token, public, backend, log string) string {
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
cluster "db" {
  discovery "consul" { connect = true }
  connect { service = "client" }
}
listener "db" {
  address = "127.0.0.1:0"
  cluster = "db"
  access_log {
    path   = %q
    format = "json"
  }
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
`, m.Addr(), token, log, backend, public, log)
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
	m.register("db", web.addr, webPublic, nil) // where web's sidecar answers, by web's name
	m.register("client", "127.0.0.1:1", "127.0.0.1:2", nil)
	for _, to := range []string{"web", "api", "db"} {
		m.intend("client", to, api.IntentionActionAllow)
	}
	m.Proxy("-sidecar-for", "web")
	m.Proxy("-service", "client", "-upstream", "api:"+toAPI)
	log := filepath.Join(t.TempDir(), "access.log")
	token := m.token(`
service_prefix "" { policy = "read" }
node_prefix    "" { policy = "read" }
service "client"  { policy = "write" }
service "api"     { policy = "write" }
`)
	p := startAgent(t, connectConfig(m, token, apiPublic, apiServer.addr, log))
	p.awaitReady()
	paths := map[string]way{
		"to Consul's proxy":   {p.listener("web"), web},
		"from Consul's proxy": {toAPI, apiServer},
		"to itself":           {p.listener("api-mesh"), apiServer},
	}
	flows(t, paths)

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
	if who, err := ask(t.Context(), p.listener("db")); err == nil {
		t.Errorf("another service's sidecar led to %s", who)
	}
	eventually(t, "the reason is in the access log: another service's sidecar", logged(`"db"`, "/svc/web, and nothing of that is accepted"))
	eventually(t, "it is counted", func() bool { return metricOf(p, `gatehouse_cluster_tls_failures{cluster="db",reason="name"}`) >= 1 })
	refusesPlainText(t, apiPublic)
	for _, reason := range []string{"no_certificate", "unknown_authority", "not_tls"} {
		eventually(t, "failed handshakes are counted by their reason", func() bool {
			return metricOf(p, fmt.Sprintf(`gatehouse_listener_tls_failures{listener="api",reason=%q}`, reason)) >= 1
		})
	}
	eventually(t, "denied connections are counted", func() bool {
		return metricOf(p, `gatehouse_listener_rbac{listener="api",result="denied"}`) >= 1 && metricOf(p, `gatehouse_listener_ended{flag="UAEX",listener="api"}`) >= 1
	})

	// Another root: nothing is lost.
	m.rotateUnder(paths, apiPublic)

	m.denyAndAllow(paths, "client", "web", "api")

	// Without the agent.
	conf := m.client("client")
	m.Kill()
	eventually(t, "nobody is let in unasked", func() bool { _, err := as(apiPublic, conf); return err != nil })
	eventually(t, "the reason is in the access log", logged("it can't be known whether intentions let", "connection refused"))
	eventually(t, "it is counted", func() bool { return metricOf(p, `gatehouse_consul_authorizations{result="failed"}`) >= 1 })
	if text := p.output(); strings.Contains(text, "PRIVATE KEY") || strings.Contains(text, token) {
		t.Error("a secret is in the log")
	}
	for _, path := range []string{"/config_dump", "/clusters?format=json", "/listeners?format=json"} {
		if _, body := p.get(path); strings.Contains(body, "PRIVATE KEY") || strings.Contains(body, token) {
			t.Errorf("a secret is in %s", path)
		}
	}
}

// Where everybody may connect who is not denied, intentions are obeyed as Consul ranks
// them, one of all services by one of a service too: by the sidecar of Consul's xDS, and
// by the listener that asks the agent.
func TestConsulIntentions(t *testing.T) {
	needsServer(t)
	m := &mesh{consultest.Start(t, consultest.Options{GRPC: true}), t} // without ACLs
	web := startBackend(t)
	addrs := freePorts(t, 2)
	m.register("web", web.addr, addrs[0], nil)
	m.sidecar("web")
	startAgent(t, fmt.Sprintf(`
consul { address = %q }
cluster "web" {
  discovery "static" { endpoints = [{ address = %q }] }
}
listener "web" {
  address = %q
  cluster = "web"
  connect { service = "web" }
}
`, m.Addr(), web.addr, addrs[1])).awaitReady()
	clients := map[string]*tls.Config{"client": m.client("client"), "other": m.client("other")}
	const allow, deny = api.IntentionActionAllow, api.IntentionActionDeny
	for _, x := range []struct {
		what, source string
		action       api.IntentionAction
		gets         map[string]bool
	}{
		{"nothing is said", "", "", map[string]bool{"client": true, "other": true}},
		{"all are denied", "*", deny, map[string]bool{"client": false, "other": false}},
		{"but client", "client", allow, map[string]bool{"client": true, "other": false}},
		{"all are allowed, but other", "other", deny, map[string]bool{"client": true, "other": false}},
		{"all are allowed, but client and other", "client", deny, map[string]bool{"client": false, "other": false}},
		{"all are allowed, but client", "other", allow, map[string]bool{"client": false, "other": true}},
	} {
		if x.source != "" {
			m.intend(x.source, "web", x.action)
		}
		if x.source == "other" && x.action == deny {
			m.intend("*", "web", allow)
		}
		for k, by := range []string{"xDS", "the agent"} {
			for name, in := range x.gets {
				eventually(t, fmt.Sprintf("%s: %s gets in: %v, by %s", x.what, name, in, by), func() bool {
					who, err := as(addrs[k], clients[name])
					return in == (err == nil && who == web.addr)
				})
			}
		}
	}
}

// way is where a connection goes that is made to addr.
type way struct {
	addr string
	to   *backend
}

// flows waits until connections go all ways.
func flows(t *testing.T, ways map[string]way) {
	t.Helper()
	for name, w := range ways {
		eventually(t, "connections flow "+name, func() bool { who, err := ask(t.Context(), w.addr); return err == nil && who == w.to.addr })
	}
}

// denyAndAllow takes the intentions of source towards destinations back, and gives
// them again.
func (m *mesh) denyAndAllow(ways map[string]way, source string, destinations ...string) {
	m.t.Helper()
	for _, to := range destinations {
		m.intend(source, to, api.IntentionActionDeny)
	}
	for name, w := range ways {
		eventually(m.t, "no new connections "+name, func() bool { _, err := ask(m.t.Context(), w.addr); return err != nil })
	}
	for _, to := range destinations {
		m.intend(source, to, api.IntentionActionAllow)
	}
	flows(m.t, ways)
}

// rotateUnder makes another root while connections are made, and others are open: none
// is lost. It waits until the listener at public shows a leaf of the new root.
func (m *mesh) rotateUnder(ways map[string]way, public string) {
	m.t.Helper()
	t := m.t
	var alive []func() error
	all := make(map[string]*traffic)
	for name, w := range ways {
		alive = append(alive, hold(t, w.addr))
		all[name] = startTrafficAt(t, w.addr, 40*time.Millisecond)
	}
	before := rootsOf(t, m)
	m.rotate()
	eventually(t, "the listener shows a certificate of the new root", func() bool {
		raw, err := net.DialTimeout("tcp", public, patience)
		if err != nil {
			t.Fatal(err)
		}
		defer raw.Close()
		issued := false
		conf := m.client("client")
		conf.VerifyConnection = func(cs tls.ConnectionState) error {
			_, err := cs.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: before})
			issued = errors.As(err, new(x509.UnknownAuthorityError))
			return nil
		}
		_ = tls.Client(raw, conf).Handshake()
		return issued
	})
	for name, w := range ways {
		all[name].reset()
		all[name].lands(t, w.to)
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

// sidecar starts an agent in the place of the Envoy that is the sidecar of a service.
func (m *mesh) sidecar(service string) *process {
	m.t.Helper()
	return startAgent(m.t, fmt.Sprintf(`
node { id = %q }
xds {
  clusters           = true
  listeners          = true
  user_agent_name    = "envoy"
  user_agent_version = "1.24.10"
  server %q {
    initial_metadata = { x-consul-token = %q }
  }
}
`, service+"-sidecar-proxy", m.GRPCAddr(), consultest.ManagementToken))
}

// Consul's own xDS server hands two sidecars to Gatehouse in the place of Envoys: that
// of a client, with listeners for its upstreams, and that of a server. Connections flow
// between them by mTLS, and to and from Consul's own proxy; intentions are obeyed
// within seconds; another root costs no connection.
func TestConsulSidecars(t *testing.T) {
	m := startMesh(t)
	web, api2 := startBackend(t), startBackend(t)
	addrs := freePorts(t, 6)
	webPublic, apiPublic, clientPublic, toWeb, toAPI, proxied := addrs[0], addrs[1], addrs[2], addrs[3], addrs[4], addrs[5]
	m.register("web", web.addr, webPublic, nil)
	m.register("api", api2.addr, apiPublic, nil)
	m.register("client", "127.0.0.1:1", clientPublic, map[string]string{"web": toWeb, "api": toAPI})
	for _, to := range []string{"web", "api"} {
		m.intend("client", to, api.IntentionActionAllow)
	}
	m.Proxy("-sidecar-for", "api")
	m.Proxy("-service", "client", "-upstream", "web:"+proxied)
	server, client := m.sidecar("web"), m.sidecar("client")
	ways := map[string]way{
		"between sidecars":    {toWeb, web},
		"to Consul's proxy":   {toAPI, api2},
		"from Consul's proxy": {proxied, web},
	}
	flows(t, ways)
	refusesPlainText(t, webPublic)
	m.rotateUnder(ways, webPublic)
	m.denyAndAllow(ways, "client", "web", "api")
	eventually(t, "denied connections are counted", func() bool {
		name := "public_listener:" + webPublic
		return metricOf(server, fmt.Sprintf(`gatehouse_listener_rbac{listener=%q,result="denied"}`, name)) >= 1 &&
			metricOf(server, fmt.Sprintf(`gatehouse_listener_ended{flag="UAEX",listener=%q}`, name)) >= 1
	})
	for name, p := range map[string]*process{"client": client, "server": server} {
		for _, path := range []string{"/config_dump", "/clusters?format=json", "/listeners?format=json"} {
			if _, body := p.get(path); strings.Contains(body, "PRIVATE KEY") {
				t.Errorf("%s: a key is in %s", name, path)
			}
		}
		if strings.Contains(p.output(), "PRIVATE KEY") {
			t.Errorf("%s: a key is in the log", name)
		}
	}
}
