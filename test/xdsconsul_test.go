package test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"

	"gatehouse.internal/discovery/consul/consultest"
	"gatehouse.internal/discovery/discoverytest"
	"gatehouse.internal/xds"
)

// Consul's own xDS server, which has the incremental variant only and wants a
// token: clusters and endpoints of a sidecar's upstream arrive and change, a
// restart loses nothing, and a wrong token is told.
func TestXDSOfConsul(t *testing.T) {
	s := consultest.Start(t, consultest.Options{ACL: true, GRPC: true})
	agent := s.API(consultest.ManagementToken).Agent()
	register := func(r *api.AgentServiceRegistration) {
		t.Helper()
		r.Address = "127.0.0.1"
		if err := agent.ServiceRegister(r); err != nil {
			t.Fatal(err)
		}
	}
	sidecar := func(n int) {
		t.Helper()
		register(&api.AgentServiceRegistration{
			Kind: api.ServiceKindConnectProxy, Name: "db-proxy", ID: fmt.Sprint("db-proxy-", n), Port: 7000 + n,
			Proxy: &api.AgentServiceConnectProxyConfig{DestinationServiceName: "db", DestinationServiceID: "db", LocalServicePort: 7100},
		})
	}
	register(&api.AgentServiceRegistration{Name: "db", ID: "db", Port: 7100})
	sidecar(1)
	register(&api.AgentServiceRegistration{Name: "web", ID: "web", Port: 7200})
	register(&api.AgentServiceRegistration{
		Kind: api.ServiceKindConnectProxy, Name: "web-proxy", ID: "web-proxy", Port: 7201,
		Proxy: &api.AgentServiceConnectProxyConfig{
			DestinationServiceName: "web", DestinationServiceID: "web", LocalServicePort: 7200,
			Upstreams: []api.Upstream{{DestinationName: "db", LocalBindPort: 7202}},
		},
	})

	token := filepath.Join(t.TempDir(), "token")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(token, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("00000000-0000-4000-8000-000000000000")
	c, err := xds.NewClient(xds.Config{
		Servers: []xds.Server{{URI: s.GRPCAddr(), MetadataFiles: map[string]string{"x-consul-token": token}}},
		Node:    xds.Node{ID: "web-proxy"}, UserAgentName: "envoy", Version: "1.24.10",
		BackoffBase: 50 * time.Millisecond, BackoffMax: 500 * time.Millisecond,
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() { c.Run(ctx) })
	var mu sync.Mutex
	var last xds.ClustersUpdate
	wg.Go(func() {
		c.WatchClusters(ctx, func(u xds.ClustersUpdate) {
			mu.Lock()
			defer mu.Unlock()
			last = u
		})
	})
	var listeners xds.ListenersUpdate
	wg.Go(func() {
		c.WatchListeners(ctx, func(u xds.ListenersUpdate) {
			mu.Lock()
			defer mu.Unlock()
			listeners = u
		})
	})
	listener := func(prefix string) *xds.Listener {
		mu.Lock()
		defer mu.Unlock()
		for _, l := range listeners.Listeners {
			if strings.HasPrefix(l.Name, prefix) {
				return l
			}
		}
		return nil
	}
	clusters := func() xds.ClustersUpdate {
		mu.Lock()
		defer mu.Unlock()
		return last
	}
	eventually(t, "the wrong token is told", func() bool {
		err := clusters().Err
		return err != nil && (strings.Contains(err.Error(), "Unauthenticated") || strings.Contains(err.Error(), "PermissionDenied"))
	})
	write(consultest.ManagementToken + "\n")
	var upstream string
	eventually(t, "the clusters of the sidecar arrive", func() bool {
		u := clusters()
		i := slices.IndexFunc(u.Clusters, func(c *xds.Cluster) bool { return strings.HasPrefix(c.Name, "db.") && c.EDSName != "" })
		if i >= 0 {
			upstream = u.Clusters[i].EDSName
		}
		return i >= 0 && slices.ContainsFunc(u.Clusters, func(c *xds.Cluster) bool { return c.Name == "local_app" })
	})
	rec := new(discoverytest.Recorder)
	wg.Go(func() { c.EDS(upstream, nil).Watch(ctx, rec) })
	at := func(want string) func() bool {
		return func() bool {
			r := rec.Reports()
			return len(r) > 0 && r[len(r)-1].String() == want
		}
	}
	eventually(t, "the upstream's endpoint arrives", at("[127.0.0.1:7001]"))
	sidecar(2)
	eventually(t, "one more arrives", at("[127.0.0.1:7001 127.0.0.1:7002]"))
	// Its listeners can be run whole: the upstream's leads to the cluster, the public
	// one ends TLS with a client certificate and lets in whom intentions allow.
	eventually(t, "the listeners arrive", func() bool { return listener("db:") != nil && listener("public_listener:") != nil })
	if l := listener("db:"); l.Unsupported != "" || len(l.Chains) != 1 || l.Chains[0].Unsupported != "" || !strings.HasPrefix(l.Chains[0].TCPProxy.Clusters[0].Name, "db.") {
		t.Errorf("the upstream's listener is %+v", l)
	}
	if l := listener("public_listener:"); l.Unsupported != "" || len(l.Chains) != 1 || l.Chains[0].Unsupported != "" {
		t.Errorf("the public listener is %+v", l)
	} else if c := l.Chains[0]; c.TLS == nil || !c.TLS.RequireClientCert || c.TLS.ClientCA == "" || len(c.RBAC) != 1 || c.RBAC[0].Rules == nil || c.TCPProxy.Clusters[0].Name != "local_app" {
		t.Errorf("its chain is %+v", c)
	}
	if st := c.Status(); st.Protocol != xds.ProtocolDelta || len(st.Types[0].LastNack)+len(st.Types[1].LastNack)+len(st.Types[2].LastNack) > 0 {
		t.Errorf("status %+v", st)
	}

	// What changes while the server is away is learnt after.
	s.Kill()
	eventually(t, "the server's end is seen", func() bool { return clusters().Err != nil })
	if n := len(clusters().Clusters); n < 2 {
		t.Errorf("%d clusters without the server", n)
	}
	s.Restart()
	s.AwaitReady()
	if err := agent.ServiceDeregister("db-proxy-1"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "what is gone is learnt", at("[127.0.0.1:7002]"))
}

// The public listener of a sidecar of Consul's, in Envoy's place: clients come in by
// mTLS with certificates of Consul's authority, as far as intentions allow, and are
// not let in seconds after one was taken back.
func TestConsulPublicListener(t *testing.T) {
	s := consultest.Start(t, consultest.Options{ACL: true, GRPC: true})
	client := s.API(consultest.ManagementToken)
	web := startBackend(t)
	_, port, err := net.SplitHostPort(web.addr)
	if err != nil {
		t.Fatal(err)
	}
	local, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	_, port, err = net.SplitHostPort(free(t))
	if err != nil {
		t.Fatal(err)
	}
	public, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range []*api.AgentServiceRegistration{
		{Name: "web", ID: "web", Port: local},
		{Kind: api.ServiceKindConnectProxy, Name: "web-proxy", ID: "web-proxy", Port: public, Proxy: &api.AgentServiceConnectProxyConfig{
			DestinationServiceName: "web", DestinationServiceID: "web", LocalServicePort: local,
		}},
	} {
		r.Address = "127.0.0.1"
		if err := client.Agent().ServiceRegister(r); err != nil {
			t.Fatal(err)
		}
	}
	intend := func(action api.IntentionAction) {
		t.Helper()
		if _, err := client.Connect().IntentionUpsert(&api.Intention{SourceName: "client", DestinationName: "web", Action: action}, nil); err != nil {
			t.Fatal(err)
		}
	}
	intend(api.IntentionActionAllow)
	leaf, _, err := client.Agent().ConnectCALeaf("client", nil)
	if err != nil {
		t.Fatal(err)
	}
	roots, _, err := client.Agent().ConnectCARoots(nil)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	for _, r := range roots.Roots {
		pool.AppendCertsFromPEM([]byte(r.RootCertPEM))
	}
	pair, err := tls.X509KeyPair([]byte(leaf.CertPEM), []byte(leaf.PrivateKeyPEM))
	if err != nil {
		t.Fatal(err)
	}
	conf := &tls.Config{
		Certificates: []tls.Certificate{pair}, InsecureSkipVerify: true, // its names are no hosts'
		VerifyConnection: func(cs tls.ConnectionState) error {
			_, err := cs.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: pool})
			return err
		},
	}
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte(consultest.ManagementToken), 0o600); err != nil {
		t.Fatal(err)
	}
	p := startAgent(t, fmt.Sprintf(`
node { id = "web-proxy" }
xds {
  clusters           = true
  listeners          = true
  user_agent_name    = "envoy"
  user_agent_version = "1.24.10"
  server %q {
    initial_metadata_files = { x-consul-token = %q }
  }
}
`, s.GRPCAddr(), token))
	p.awaitReady()
	addr := fmt.Sprintf("127.0.0.1:%d", public)
	connect := func() (string, error) {
		raw, err := net.DialTimeout("tcp", addr, patience)
		if err != nil {
			return "", err
		}
		defer raw.Close()
		return askOn(tls.Client(raw, conf))
	}
	eventually(t, "the client is let in", func() bool { who, err := connect(); return err == nil && who == web.addr })
	refusesPlainText(t, addr)
	intend(api.IntentionActionDeny)
	eventually(t, "the client is not let in any more", func() bool { _, err := connect(); return err != nil })
	eventually(t, "it is counted", func() bool {
		_, body := p.get("/stats/prometheus")
		return strings.Contains(body, fmt.Sprintf(`gatehouse_listener_ended{flag="UAEX",listener="public_listener:127.0.0.1:%d"}`, public))
	})
	intend(api.IntentionActionAllow)
	eventually(t, "the client is let in again", func() bool { who, err := connect(); return err == nil && who == web.addr })
}
