package test

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	rbacconfigv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	filev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/file/v3"
	httpinspectorv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/http_inspector/v3"
	originaldstv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/original_dst/v3"
	proxyprotocolv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/proxy_protocol/v3"
	tlsinspectorv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/tls_inspector/v3"
	echov3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/echo/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/rbac/v3"
	tcpproxyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"gatehouse.internal/internal/tlsconf"
	"gatehouse.internal/internal/tlsconf/tlstest"
)

func anyOf(t *testing.T, m proto.Message) *anypb.Any {
	t.Helper()
	a, err := anypb.New(m)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func socketAddress(t *testing.T, addr string) *corev3.Address {
	t.Helper()
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		t.Fatal(err)
	}
	return &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address: host, PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: uint32(n)},
	}}}
}

func filter(t *testing.T, name string, m proto.Message) *listenerv3.Filter {
	t.Helper()
	return &listenerv3.Filter{Name: name, ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: anyOf(t, m)}}
}

// tcpProxy leads to a cluster.
func tcpProxy(t *testing.T, cluster string, with ...func(*tcpproxyv3.TcpProxy)) *listenerv3.Filter {
	t.Helper()
	p := &tcpproxyv3.TcpProxy{StatPrefix: cluster, ClusterSpecifier: &tcpproxyv3.TcpProxy_Cluster{Cluster: cluster}}
	for _, f := range with {
		f(p)
	}
	return filter(t, "envoy.filters.network.tcp_proxy", p)
}

// lds is a listener with these filters in its one chain.
func lds(t *testing.T, name, addr string, filters ...*listenerv3.Filter) *listenerv3.Listener {
	t.Helper()
	return &listenerv3.Listener{Name: name, Address: socketAddress(t, addr), FilterChains: []*listenerv3.FilterChain{{Name: name + "-chain", Filters: filters}}}
}

// staticCluster is a CDS cluster with these endpoints.
func staticCluster(t *testing.T, name string, addrs ...string) *clusterv3.Cluster {
	t.Helper()
	return &clusterv3.Cluster{
		Name: name, ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC}, LoadAssignment: assignment(t, name, addrs...),
	}
}

// listening is what the agent's configuration says to take listeners too.
func (c *control) listening(more string) string {
	return strings.Replace(c.node(more), "clusters = true", "clusters = true\n  listeners = true", 1)
}

// shownListener is what the agent shows of a listener.
type shownListener struct {
	Origin, Unsupported string
	NoBind              bool                                 `json:"no_bind"`
	Chains              []struct{ Name, Unsupported string } `json:"filter_chains"`
}

// shown returns what the agent shows of listeners, by name.
func (p *process) shown() map[string]shownListener {
	p.t.Helper()
	_, body := p.get("/listeners?format=json")
	var got struct {
		Statuses []struct {
			Name      string
			Gatehouse shownListener
		} `json:"listener_statuses"`
	}
	if err := json.Unmarshal([]byte(body), &got); err != nil {
		p.t.Fatalf("/listeners: %v\n%s", err, body)
	}
	all := make(map[string]shownListener)
	for _, l := range got.Statuses {
		all[l.Name] = l.Gatehouse
	}
	return all
}

// Listeners come and change under load, and no connection fails; what can't be
// served is shown with its reason beside what is, and nothing is refused on the wire.
func TestLDS(t *testing.T) { bothVariants(t, testLDS) }

func testLDS(t *testing.T, cp *control) {
	a, b := startBackend(t), startBackend(t)
	clusters := []*clusterv3.Cluster{
		staticCluster(t, "a", a.addr), staticCluster(t, "b", b.addr), staticCluster(t, "BlackHoleCluster"),
		{Name: "PassthroughCluster", ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_ORIGINAL_DST}, LbPolicy: clusterv3.Cluster_CLUSTER_PROVIDED},
	}
	http := lds(t, "http", "127.0.0.1:1", filter(t, "envoy.filters.network.http_connection_manager", &hcmv3.HttpConnectionManager{StatPrefix: "x"}))
	api := &listenerv3.Listener{Name: "api", ApiListener: &listenerv3.ApiListener{ApiListener: anyOf(t, &hcmv3.HttpConnectionManager{})}}
	odd := lds(t, "odd", "127.0.0.1:0", filter(t, "envoy.filters.network.echo", &echov3.Echo{}), tcpProxy(t, "a"))
	black, through := lds(t, "black", "127.0.0.1:0", tcpProxy(t, "BlackHoleCluster")), lds(t, "through", "127.0.0.1:0", tcpProxy(t, "PassthroughCluster"))
	filed := lds(t, "filed", "127.0.0.1:0", tcpProxy(t, "b"))
	multi := lds(t, "multi", "127.0.0.1:0", tcpProxy(t, "b"))
	multi.AdditionalAddresses = []*listenerv3.AdditionalAddress{{Address: socketAddress(t, "[::1]:0")}}
	multi.ListenerFilters = []*listenerv3.ListenerFilter{{ // as Istio does
		Name: "envoy.filters.listener.http_inspector", ConfigType: &listenerv3.ListenerFilter_TypedConfig{TypedConfig: anyOf(t, &httpinspectorv3.HttpInspector{})},
	}}
	proxied := lds(t, "proxied", "127.0.0.1:0", tcpProxy(t, "b"))
	proxied.FilterChains[0].FilterChainMatch = &listenerv3.FilterChainMatch{SourcePrefixRanges: []*corev3.CidrRange{{AddressPrefix: "192.0.2.0", PrefixLen: wrapperspb.UInt32(24)}}}
	proxied.ListenerFilters = []*listenerv3.ListenerFilter{{
		Name: "envoy.filters.listener.proxy_protocol", ConfigType: &listenerv3.ListenerFilter_TypedConfig{TypedConfig: anyOf(t, &proxyprotocolv3.ProxyProtocol{})},
	}}
	set := func(listeners ...*listenerv3.Listener) {
		t.Helper()
		var all []types.Resource
		for _, c := range clusters {
			all = append(all, c)
		}
		for _, l := range append([]*listenerv3.Listener{http, api, odd, black, through, filed, multi, proxied}, listeners...) {
			all = append(all, l)
		}
		cp.set(all...)
	}
	cp.start()
	set(lds(t, "web", "127.0.0.1:0", tcpProxy(t, "a")))
	p := startAgent(t, cp.listening(`
drain_timeout = "1s"
drain_spread  = "100ms"
listener "filed" {
  address = "127.0.0.1:0"
  cluster = "a"
}
`))
	p.awaitReady()
	web := p.listener("web")
	tr := startTraffic(t, web)
	tr.lands(t, a)
	if who, err := ask(t.Context(), p.listener("filed")); err != nil || who != a.addr {
		t.Errorf("the file's listener led to %q, %v", who, err)
	}

	for _, name := range []string{"multi", "multi@[::1]:0"} {
		if who, err := ask(t.Context(), p.listener(name)); err != nil || who != b.addr {
			t.Errorf("%s led to %q, %v", name, who, err)
		}
	}
	for from, want := range map[string]string{"192.0.2.7": b.addr, "198.51.100.7": ""} {
		c, err := net.Dial("tcp", p.listener("proxied"))
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(c, "PROXY TCP4 %s 203.0.113.1 4711 80\r\n", from)
		if who, err := askOn(c); who != want || (err == nil) != (want != "") {
			t.Errorf("from %s led to %q, %v", from, who, err)
		}
		c.Close()
	}

	// The reasons, and that nothing of it is half-run.
	for name, want := range map[string]string{"http": "http_connection_manager", "api": "api_listener"} {
		if got := p.shown()[name]; !strings.Contains(got.Unsupported, want) || got.Origin != "xds" {
			t.Errorf("%s is shown as %+v", name, got)
		}
	}
	if got := p.shown()["odd"]; len(got.Chains) != 1 || !strings.Contains(got.Chains[0].Unsupported, `"envoy.filters.network.echo"`) {
		t.Errorf("odd is shown as %+v", got)
	}
	if _, body := p.get("/listeners"); !strings.Contains(body, "api::gatehouse_unsupported::api_listener\n") {
		t.Errorf("/listeners: %s", body)
	}
	if c, err := net.Dial("tcp", "127.0.0.1:1"); err == nil {
		c.Close()
		t.Error("the http listener is open")
	}
	for name, flag := range map[string]string{"odd": "NR", "black": "UH", "through": "NC"} {
		if who, err := ask(t.Context(), p.listener(name)); err == nil {
			t.Errorf("%s led to %s", name, who)
		}
		eventually(t, name+" is counted", func() bool {
			_, body := p.get("/stats/prometheus")
			return strings.Contains(body, fmt.Sprintf("gatehouse_listener_ended{flag=%q,listener=%q}", flag, name))
		})
	}

	// Another cluster: the port and the open connections stay, these for as long as
	// they may.
	old, err := net.Dial("tcp", web)
	if err != nil {
		t.Fatal(err)
	}
	defer old.Close()
	if who, err := askOn(old); err != nil || who != a.addr {
		t.Fatalf("%s, %v", who, err)
	}
	set(lds(t, "web", "127.0.0.1:0", tcpProxy(t, "b")))
	eventually(t, "connections go to the other cluster", func() bool { who, err := ask(t.Context(), web); return err == nil && who == b.addr })
	tr.lands(t, b)
	old.SetDeadline(time.Now().Add(patience))
	if n, err := old.Read(make([]byte, 1)); err == nil || n > 0 || os.IsTimeout(err) {
		t.Errorf("the old connection: read %d and %v", n, err)
	}

	// One that is wrong is refused by name, and the last good one serves.
	bad := lds(t, "web", "127.0.0.1:0", tcpProxy(t, "a", func(p *tcpproxyv3.TcpProxy) { p.MaxConnectAttempts = wrapperspb.UInt32(0) }))
	set(bad)
	cp.nacked(`"web": filter_chains[0].filters[0].typed_config.max_connect_attempts: 0`)
	tr.lands(t, b)
	if got := cp.nacks(); len(got) > 20 {
		t.Errorf("%d NACKs", len(got))
	}
	set(lds(t, "web", "127.0.0.1:0", tcpProxy(t, "a")))
	cp.acked(resourcev3.ListenerType)
	eventually(t, "connections go back", func() bool { who, err := ask(t.Context(), web); return err == nil && who == a.addr })
	tr.lands(t, a)
	tr.stop()
	tr.noErrors(t)

	set() // web is gone
	eventually(t, "the port is closed", func() bool {
		c, err := net.Dial("tcp", web)
		if err == nil {
			c.Close()
		}
		return err != nil
	})
	if code := p.end(syscall.SIGTERM); code != 0 {
		t.Errorf("exit code %d after SIGTERM", code)
	}
}

// intentions allow the clients that are named, and nobody else.
func intentions(t *testing.T, ids ...string) *listenerv3.Filter {
	t.Helper()
	policy := &rbacconfigv3.Policy{Permissions: []*rbacconfigv3.Permission{{Rule: &rbacconfigv3.Permission_Any{Any: true}}}}
	for _, id := range ids {
		policy.Principals = append(policy.Principals, &rbacconfigv3.Principal{Identifier: &rbacconfigv3.Principal_Authenticated_{Authenticated: &rbacconfigv3.Principal_Authenticated{
			PrincipalName: &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_SafeRegex{SafeRegex: &matcherv3.RegexMatcher{Regex: "^spiffe://[^/]+/ns/default/svc/" + id + "$"}}},
		}}})
	}
	rules := &rbacconfigv3.RBAC{}
	if len(ids) > 0 {
		rules.Policies = map[string]*rbacconfigv3.Policy{"intentions": policy}
	}
	return filter(t, "envoy.filters.network.rbac", &rbacv3.RBAC{StatPrefix: "connect_authz", Rules: rules})
}

func inlineData(b []byte) *corev3.DataSource {
	return &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: string(b)}}
}

// A public listener as Consul gives it: mTLS by inline certificates, intentions, and
// each connection in the access log with the reason. An intention that is taken back
// is obeyed, and certificates rotate without a lost connection.
func TestLDSIntentions(t *testing.T) { bothVariants(t, testLDSIntentions) }

func testLDSIntentions(t *testing.T, cp *control) {
	a := startBackend(t)
	k := newPKI(t)
	log := filepath.Join(t.TempDir(), "access.log")
	format, err := structpb.NewStruct(map[string]any{
		"flags": "%RESPONSE_FLAGS%", "why": "%CONNECTION_TERMINATION_DETAILS%", "who": "%DOWNSTREAM_PEER_URI_SAN%", "chain": "%FILTER_CHAIN_NAME%", "ms": "%DURATION%", "x": "%UPSTREAM_METADATA(a:b)%",
	})
	if err != nil {
		t.Fatal(err)
	}
	logged := func(p *tcpproxyv3.TcpProxy) {
		p.AccessLog = []*accesslogv3.AccessLog{{Name: "file", ConfigType: &accesslogv3.AccessLog_TypedConfig{TypedConfig: anyOf(t, &filev3.FileAccessLog{
			Path: log, AccessLogFormat: &filev3.FileAccessLog_LogFormat{LogFormat: &corev3.SubstitutionFormatString{Format: &corev3.SubstitutionFormatString_JsonFormat{JsonFormat: format}}},
		})}}}
	}
	public := func(leaf tlstest.Pair, ids ...string) *listenerv3.Listener {
		l := lds(t, "public", "127.0.0.1:0", intentions(t, ids...), tcpProxy(t, "a", logged))
		l.FilterChains[0].TransportSocket = &corev3.TransportSocket{Name: "tls", ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: anyOf(t, &tlsv3.DownstreamTlsContext{
			RequireClientCertificate: wrapperspb.Bool(true),
			CommonTlsContext: &tlsv3.CommonTlsContext{
				AlpnProtocols:   []string{"h2", "http/1.1"}, // by Istio, whose clients offer others
				TlsCertificates: []*tlsv3.TlsCertificate{{CertificateChain: inlineData(leaf.CertPEM), PrivateKey: inlineData(leaf.KeyPEM)}},
				ValidationContextType: &tlsv3.CommonTlsContext_ValidationContext{ValidationContext: &tlsv3.CertificateValidationContext{
					TrustedCa: inlineData(k.ca.PEM),
					MatchTypedSubjectAltNames: []*tlsv3.SubjectAltNameMatcher{{
						SanType: tlsv3.SubjectAltNameMatcher_URI, Matcher: &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Prefix{Prefix: "spiffe://example.org/"}},
					}},
				}},
			},
		})}}
		return l
	}
	leaf := func(name string) tlstest.Pair {
		return k.ca.Issue(t, tlstest.Leaf{CommonName: name, Names: []string{"front.internal"}})
	}
	first := leaf("first")
	cp.start()
	cp.set(staticCluster(t, "a", a.addr), public(first, "web", "api"))
	p := startAgent(t, cp.listening(`drain_timeout = "30s"`))
	p.awaitReady()
	addr := p.listener("public")
	as := func(id string) *pkiClient {
		conf := k.client(tlstest.Leaf{Names: []string{"spiffe://example.org/ns/default/svc/" + id}})
		conf.NextProtos = []string{"istio"}
		return &pkiClient{t, addr, conf}
	}
	web := as("web").mustConnect(a.addr)
	as("api").mustConnect(a.addr)
	as("db").refused()
	(&pkiClient{t, addr, k.client(tlstest.Leaf{NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: time.Now().Add(-time.Hour)})}).refused()
	(&pkiClient{t, addr, k.client(tlstest.Leaf{Names: []string{"spiffe://other.org/web"}})}).refused()
	stranger := newPKI(t)
	(&pkiClient{t, addr, &tls.Config{RootCAs: k.ca.Pool(), ServerName: "front.internal", Certificates: stranger.client(tlstest.Leaf{}).Certificates}}).refused()
	(&pkiClient{t, addr, &tls.Config{RootCAs: k.ca.Pool(), ServerName: "front.internal"}}).refused()
	refusesPlainText(t, addr)
	eventually(t, "the denied one is in the access log", func() bool {
		b, _ := os.ReadFile(log)
		return strings.Contains(string(b), `"flags":"UAEX"`) && strings.Contains(string(b), `"who":"spiffe://example.org/ns/default/svc/db","why":"rbac_access_denied_matched_policy[none]","x":"-"`)
	})
	for _, why := range []string{"expired at", "is signed by an authority", "the client has shown no certificate", "does not speak TLS", "names spiffe://other.org/web, and nothing of that is accepted"} {
		eventually(t, why, func() bool {
			b, _ := os.ReadFile(log)
			for line := range strings.Lines(string(b)) {
				if strings.Contains(line, `"chain":"public-chain","flags":"DC"`) && strings.Contains(line, why) {
					return true
				}
			}
			return false
		})
	}
	eventually(t, "all are counted", func() bool { return p.metric(`gatehouse_listener_tls_errors{listener="public"}`) == 5 })
	eventually(t, "the verdicts are counted", func() bool {
		_, body := p.get("/stats/prometheus")
		return strings.Contains(body, `gatehouse_listener_rbac{listener="public",result="denied"} 1`) && strings.Contains(body, `gatehouse_listener_rbac{listener="public",result="allowed"} 2`)
	})

	// A certificate that does not belong to its key is refused, and the last one stays.
	second := leaf("second")
	cp.set(staticCluster(t, "a", a.addr), public(tlstest.Pair{CertPEM: second.CertPEM, KeyPEM: first.KeyPEM}, "web", "api"))
	cp.nacked(`"public"`, "do not belong together")
	if got := as("web").mustConnect(a.addr).subject(); got != "first" {
		t.Errorf("the certificate is that of %s", got)
	}
	// One that does is for new connections, and the old ones go on.
	cp.set(staticCluster(t, "a", a.addr), public(second, "web", "api"))
	eventually(t, "the certificate is in force", func() bool { return as("web").mustConnect(a.addr).subject() == "second" })
	web.alive(a.addr)

	// The intention of web is taken back.
	cp.set(staticCluster(t, "a", a.addr), public(second, "api"))
	cp.acked(resourcev3.ListenerType)
	eventually(t, "web is refused", func() bool {
		b, _ := os.ReadFile(log)
		as("web").connect()
		return strings.Contains(string(b), `"who":"spiffe://example.org/ns/default/svc/web","why":"rbac_access_denied`)
	})
	as("api").mustConnect(a.addr)
	cp.set(staticCluster(t, "a", a.addr), public(second))
	eventually(t, "nobody is let in", func() bool { _, err := as("api").connect(); return err != nil })

	// One that has expired lets nobody in either, and says so.
	old := k.ca.Issue(t, tlstest.Leaf{Names: []string{"front.internal"}, NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: time.Now().Add(-time.Hour)})
	cp.set(staticCluster(t, "a", a.addr), public(old, "web", "api"))
	eventually(t, "the reason is shown", func() bool {
		got := p.shown()["public"]
		return len(got.Chains) == 1 && strings.Contains(got.Chains[0].Unsupported, "expired at")
	})
	if who, err := ask(t.Context(), addr); err == nil {
		t.Errorf("plain text led to %s", who)
	}
	if out := p.output(); strings.Contains(out, "PRIVATE KEY") {
		t.Error("a key is in the log")
	}
}

// refusesPlainText fails the test if plain text is served where TLS is due.
func refusesPlainText(t *testing.T, addr string) {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fmt.Fprintln(c, "plain text is longer than the head of a record")
	if who, err := askOn(c); err == nil {
		t.Errorf("plain text led to %s", who)
	}
}

type pkiClient struct {
	t    *testing.T
	addr string
	conf *tls.Config
}

// connect returns who answers.
func (c *pkiClient) connect() (string, error) {
	c.t.Helper()
	return askOn(dialTLS(c.t, c.addr, c.conf))
}

func (c *pkiClient) refused() {
	c.t.Helper()
	if who, err := c.connect(); err == nil {
		c.t.Errorf("one who may not was led to %s", who)
	}
}

type pkiConn struct {
	t *testing.T
	net.Conn
	name string
}

func (c *pkiClient) mustConnect(want string) *pkiConn {
	c.t.Helper()
	conn := dialTLS(c.t, c.addr, c.conf)
	if who, err := askOn(conn); err != nil || who != want {
		c.t.Fatalf("led to %q, %v", who, tlsconf.Explain(err))
	}
	return &pkiConn{c.t, conn, conn.ConnectionState().PeerCertificates[0].Subject.CommonName}
}

func (c *pkiConn) subject() string { return c.name }

func (c *pkiConn) alive(want string) {
	c.t.Helper()
	if who, err := askOn(c); err != nil || who != want {
		c.t.Errorf("an open connection leads to %q, %v", who, err)
	}
}

// A sidecar's listeners as Istio gives them, where iptables sends all that a workload
// connects to to one port: each connection goes to the listener of its destination,
// or to that of its port, or where the one port itself says.
func TestLDSOriginalDst(t *testing.T) {
	inNamespace(t, func(t *testing.T) { bothVariants(t, testLDSOriginalDst) })
}

func testLDSOriginalDst(t *testing.T, cp *control) {
	for _, line := range []string{
		"ip addr replace 192.0.2.1/32 dev lo", "ip route replace default dev lo",
		"iptables -w -t nat -F OUTPUT", "iptables -w -t nat -A OUTPUT -p tcp -d 203.0.113.0/24 -j REDIRECT --to-ports 15001",
	} {
		shell(t, line)
	}
	a, b := startBackend(t), startBackend(t)
	yes, no := wrapperspb.Bool(true), wrapperspb.Bool(false)
	outbound := lds(t, "virtualOutbound", "0.0.0.0:15001", tcpProxy(t, "PassthroughCluster"))
	outbound.UseOriginalDst, outbound.TrafficDirection = yes, corev3.TrafficDirection_OUTBOUND
	outbound.FilterChains = append(outbound.FilterChains, &listenerv3.FilterChain{
		Name: "virtualOutbound-blackhole", FilterChainMatch: &listenerv3.FilterChainMatch{DestinationPort: wrapperspb.UInt32(15001)},
		Filters: []*listenerv3.Filter{tcpProxy(t, "BlackHoleCluster")},
	})
	outbound.ListenerFilters = []*listenerv3.ListenerFilter{{
		Name: "envoy.filters.listener.original_dst", ConfigType: &listenerv3.ListenerFilter_TypedConfig{TypedConfig: anyOf(t, &originaldstv3.OriginalDst{})},
	}}
	exact := lds(t, "203.0.113.7_443", "203.0.113.7:443", tcpProxy(t, "a"))
	exact.BindToPort = no
	port := lds(t, "0.0.0.0_9000", "0.0.0.0:9000", tcpProxy(t, "b"))
	port.BindToPort = no
	port.FilterChains[0].FilterChainMatch = &listenerv3.FilterChainMatch{PrefixRanges: []*corev3.CidrRange{{AddressPrefix: "203.0.113.0", PrefixLen: wrapperspb.UInt32(24)}}, TransportProtocol: "raw_buffer"}
	port.ListenerFilters = []*listenerv3.ListenerFilter{{
		Name: "envoy.filters.listener.tls_inspector", ConfigType: &listenerv3.ListenerFilter_TypedConfig{TypedConfig: anyOf(t, &tlsinspectorv3.TlsInspector{})},
	}}
	port.ListenerFiltersTimeout, port.ContinueOnListenerFiltersTimeout = durationpb.New(5*time.Second), true
	http := lds(t, "0.0.0.0_80", "0.0.0.0:80", filter(t, "http", &hcmv3.HttpConnectionManager{StatPrefix: "x"}))
	http.BindToPort = no
	resources := []types.Resource{
		staticCluster(t, "a", a.addr), staticCluster(t, "b", b.addr), staticCluster(t, "BlackHoleCluster"),
		&clusterv3.Cluster{Name: "PassthroughCluster", ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_ORIGINAL_DST}, LbPolicy: clusterv3.Cluster_CLUSTER_PROVIDED},
	}
	cp.start()
	cp.set(append(resources, outbound, exact, port, http)...)
	p := startAgent(t, cp.listening(""))
	p.awaitReady()
	for to, want := range map[string]string{"203.0.113.7:443": a.addr, "203.0.113.7:9000": b.addr, "203.0.113.200:9000": b.addr} {
		if who, err := ask(t.Context(), to); err != nil || who != want {
			t.Errorf("%s led to %q, %v, want %s", to, who, err, want)
		}
	}
	for to, want := range map[string]string{
		"203.0.113.8:443": `gatehouse_listener_ended{flag="NC",listener="virtualOutbound"} 1`, // to the cluster that can't be run
		"127.0.0.1:15001": `gatehouse_listener_ended{flag="UH",listener="virtualOutbound"} 1`, // the black hole
		"203.0.113.7:80":  `gatehouse_listener_ended{flag="NR",listener="0.0.0.0_80"} 1`,
	} {
		if who, err := ask(t.Context(), to); err == nil {
			t.Errorf("%s led to %s", to, who)
		}
		eventually(t, to+" is counted", func() bool { _, body := p.get("/stats/prometheus"); return strings.Contains(body, want) })
	}
	if got := p.shown()["203.0.113.7_443"]; !got.NoBind || got.Unsupported != "" {
		t.Errorf("shown as %+v", got)
	}
	// The virtual one changes under load.
	tr := startTraffic(t, "203.0.113.7:443")
	tr.lands(t, a)
	exact = proto.Clone(exact).(*listenerv3.Listener)
	exact.FilterChains[0].Filters = []*listenerv3.Filter{tcpProxy(t, "b")}
	cp.set(append(resources, outbound, exact, port, http)...)
	eventually(t, "connections go to the other cluster", func() bool { who, err := ask(t.Context(), "203.0.113.7:443"); return err == nil && who == b.addr })
	tr.lands(t, b)
	tr.stop()
	tr.noErrors(t)
	if got := cp.nacks(); got != nil {
		t.Errorf("NACKs: %q", got)
	}
}
