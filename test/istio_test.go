package test

//lint:file-ignore SA1019 control planes send what is deprecated, too

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	udpav1 "github.com/cncf/xds/go/udpa/type/v1"
	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	filev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/file/v3"
	originaldstv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/original_dst/v3"
	tlsinspectorv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/tls_inspector/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tcpproxyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	rawbufferv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/raw_buffer/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"gatehouse.internal/internal/tlsconf/tlstest"
)

// fields is a Struct of texts.
func fields(pairs ...string) *structpb.Struct {
	s := &structpb.Struct{Fields: make(map[string]*structpb.Value)}
	for i := 0; i < len(pairs); i += 2 {
		s.Fields[pairs[i]] = structpb.NewStringValue(pairs[i+1])
	}
	return s
}

func transportSocket(t *testing.T, name string, m proto.Message) *corev3.TransportSocket {
	t.Helper()
	return &corev3.TransportSocket{Name: "envoy.transport_sockets." + name, ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: anyOf(t, m)}}
}

// istioFilter is one of Istio's network filters that leave alone what passes.
func istioFilter(t *testing.T, typ string, pairs ...string) *anypb.Any {
	t.Helper()
	return anyOf(t, &udpav1.TypedStruct{TypeUrl: "type.googleapis.com/" + typ, Value: fields(pairs...)})
}

// sidecar is the TLS that Istio's clusters have to workloads with these identities: the
// certificate and the authorities are secrets.
func sidecar(certificate string, ids ...string) *tlsv3.UpstreamTlsContext {
	names := &tlsv3.CertificateValidationContext{}
	for _, id := range ids {
		names.MatchTypedSubjectAltNames = append(names.MatchTypedSubjectAltNames, &tlsv3.SubjectAltNameMatcher{
			SanType: tlsv3.SubjectAltNameMatcher_URI, Matcher: &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Exact{Exact: id}},
		})
	}
	return &tlsv3.UpstreamTlsContext{
		Sni: "outbound_.9000_._.db.default.svc.cluster.local",
		CommonTlsContext: &tlsv3.CommonTlsContext{
			TlsParams:                      &tlsv3.TlsParameters{TlsMinimumProtocolVersion: tlsv3.TlsParameters_TLSv1_2, TlsMaximumProtocolVersion: tlsv3.TlsParameters_TLSv1_3},
			AlpnProtocols:                  []string{"istio-peer-exchange", "istio"},
			TlsCertificateSdsSecretConfigs: []*tlsv3.SdsSecretConfig{sds(certificate)},
			ValidationContextType: &tlsv3.CommonTlsContext_CombinedValidationContext{CombinedValidationContext: &tlsv3.CommonTlsContext_CombinedCertificateValidationContext{
				DefaultValidationContext: names, ValidationContextSdsSecretConfig: sds("ROOTCA"),
			}},
		},
	}
}

// outbound is a cluster as Istio gives it.
func outbound(t *testing.T, name string, tls *tlsv3.UpstreamTlsContext) *clusterv3.Cluster {
	t.Helper()
	return &clusterv3.Cluster{
		Name: name, ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS},
		EdsClusterConfig: &clusterv3.Cluster_EdsClusterConfig{
			ServiceName: name,
			EdsConfig: &corev3.ConfigSource{
				ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}}, ResourceApiVersion: corev3.ApiVersion_V3,
				InitialFetchTimeout: durationpb.New(0),
			},
		},
		ConnectTimeout: durationpb.New(10 * time.Second), LbPolicy: clusterv3.Cluster_LEAST_REQUEST,
		CircuitBreakers: &clusterv3.CircuitBreakers{Thresholds: []*clusterv3.CircuitBreakers_Thresholds{{
			MaxConnections: wrapperspb.UInt32(1<<32 - 1), MaxPendingRequests: wrapperspb.UInt32(1<<32 - 1), MaxRequests: wrapperspb.UInt32(1<<32 - 1), MaxRetries: wrapperspb.UInt32(1<<32 - 1), TrackRemaining: true,
		}}},
		CommonLbConfig: &clusterv3.Cluster_CommonLbConfig{LocalityConfigSpecifier: &clusterv3.Cluster_CommonLbConfig_LocalityWeightedLbConfig_{
			LocalityWeightedLbConfig: &clusterv3.Cluster_CommonLbConfig_LocalityWeightedLbConfig{},
		}},
		TypedExtensionProtocolOptions: map[string]*anypb.Any{"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": anyOf(t, &httpv3.HttpProtocolOptions{
			CommonHttpProtocolOptions: &corev3.HttpProtocolOptions{IdleTimeout: durationpb.New(time.Hour)},
			UpstreamProtocolOptions: &httpv3.HttpProtocolOptions_UseDownstreamProtocolConfig{UseDownstreamProtocolConfig: &httpv3.HttpProtocolOptions_UseDownstreamHttpConfig{
				HttpProtocolOptions: &corev3.Http1ProtocolOptions{}, Http2ProtocolOptions: &corev3.Http2ProtocolOptions{},
			}},
		})},
		Filters: []*clusterv3.Filter{{
			Name:        "istio.metadata_exchange",
			TypedConfig: istioFilter(t, "envoy.tcp.metadataexchange.config.MetadataExchange", "protocol", "istio-peer-exchange"),
		}},
		Metadata: &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{"istio": fields("default_original_port", "9000", "services", name)}},
		TransportSocketMatches: []*clusterv3.Cluster_TransportSocketMatch{
			{Name: "tlsMode-istio", Match: fields("tlsMode", "istio"), TransportSocket: transportSocket(t, "tls", tls)},
			{Name: "tlsMode-disabled", Match: &structpb.Struct{}, TransportSocket: transportSocket(t, "raw_buffer", &rawbufferv3.RawBuffer{})},
		},
	}
}

// workloads are endpoints with sidecars, and without.
func workloads(t *testing.T, name string, secure, plain []*backend) *endpointv3.ClusterLoadAssignment {
	t.Helper()
	a := assignment(t, name)
	l := a.Endpoints[0]
	l.Locality, l.LoadBalancingWeight = &corev3.Locality{Region: "eu", Zone: "eu-1a"}, wrapperspb.UInt32(1)
	add := func(b *backend, s *structpb.Struct) {
		lb := assignment(t, name, b.addr).Endpoints[0].LbEndpoints[0]
		lb.Metadata = &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{"istio": fields("workload", "db-1;default;db;;Kubernetes")}}
		if s != nil {
			lb.Metadata.FilterMetadata["envoy.transport_socket_match"] = s
		}
		lb.LoadBalancingWeight = wrapperspb.UInt32(1)
		l.LbEndpoints = append(l.LbEndpoints, lb)
	}
	for _, b := range secure {
		add(b, fields("tlsMode", "istio"))
	}
	for _, b := range plain {
		add(b, nil)
	}
	return a
}

// A control plane that gives what Istio does: endpoints with sidecars get mTLS with
// certificates that are secrets, the others plain text; what is not for this program
// harms nothing, and nothing is refused on the wire.
func TestIstio(t *testing.T) { bothVariants(t, testIstio) }

func testIstio(t *testing.T, cp *control) {
	k := newPKI(t)
	const id = "spiffe://example.org/db"
	secure, plain := k.backend(tlstest.Leaf{Names: []string{id}}), startBackend(t)
	other := k.backend(tlstest.Leaf{Names: []string{"spiffe://example.org/other"}})
	ended := time.Now().Add(-time.Hour)
	old := k.backend(tlstest.Leaf{Names: []string{id}, NotBefore: ended.Add(-time.Hour), NotAfter: ended})
	stranger := newPKI(t).backend(tlstest.Leaf{Names: []string{id}})
	log := filepath.Join(t.TempDir(), "access.log")
	state, line := stateDir(t)
	agent := func(name string) tlstest.Pair {
		return k.ca.Issue(t, tlstest.Leaf{CommonName: name, Names: []string{"spiffe://example.org/agent"}})
	}
	logged := func(p *tcpproxyv3.TcpProxy) {
		p.MaxConnectAttempts = wrapperspb.UInt32(2)
		p.AccessLog = []*accesslogv3.AccessLog{{Name: "file", ConfigType: &accesslogv3.AccessLog_TypedConfig{TypedConfig: anyOf(t, &filev3.FileAccessLog{
			Path: log, AccessLogFormat: &filev3.FileAccessLog_Format{Format: "%RESPONSE_FLAGS% %UPSTREAM_CLUSTER% %UPSTREAM_TRANSPORT_FAILURE_REASON% %CONNECTION_TERMINATION_DETAILS%\n"},
		})}}}
	}
	listener := func(name, cluster string) *listenerv3.Listener {
		l := lds(t, name, "127.0.0.1:0", tcpProxy(t, cluster, logged))
		l.TrafficDirection = corev3.TrafficDirection_OUTBOUND
		l.FilterChains[0].Filters = append([]*listenerv3.Filter{{
			Name: "istio.stats", ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: istioFilter(t, "stats.PluginConfig", "debug", "false")},
		}}, l.FilterChains[0].Filters...)
		return l
	}
	listenerFilter := func(name string, m proto.Message) *listenerv3.ListenerFilter {
		return &listenerv3.ListenerFilter{Name: "envoy.filters.listener." + name, ConfigType: &listenerv3.ListenerFilter_TypedConfig{TypedConfig: anyOf(t, m)}}
	}
	virtualOutbound := listener("virtualOutbound", "PassthroughCluster")
	virtualOutbound.UseOriginalDst = wrapperspb.Bool(true)
	virtualOutbound.ListenerFilters = []*listenerv3.ListenerFilter{listenerFilter("original_dst", &originaldstv3.OriginalDst{})}
	virtualOutbound.FilterChains = append([]*listenerv3.FilterChain{{
		Name: "virtualOutbound-blackhole", FilterChainMatch: &listenerv3.FilterChainMatch{DestinationPort: wrapperspb.UInt32(15001)},
		Filters: []*listenerv3.Filter{tcpProxy(t, "BlackHoleCluster")},
	}}, virtualOutbound.FilterChains...)
	virtualInbound := lds(t, "virtualInbound", "127.0.0.1:0", filter(t, "envoy.filters.network.http_connection_manager", &hcmv3.HttpConnectionManager{StatPrefix: "inbound"}))
	virtualInbound.ListenerFilters = []*listenerv3.ListenerFilter{listenerFilter("original_dst", &originaldstv3.OriginalDst{}), listenerFilter("tls_inspector", &tlsinspectorv3.TlsInspector{})}
	virtualInbound.FilterChains[0].FilterChainMatch = &listenerv3.FilterChainMatch{TransportProtocol: "tls", ApplicationProtocols: []string{"istio-http/1.1"}}
	cert := agent("canary")
	inline := sidecar("", id)
	inline.CommonTlsContext.TlsCertificateSdsSecretConfigs = nil
	inline.CommonTlsContext.TlsCertificates = []*tlsv3.TlsCertificate{{CertificateChain: inlineData(cert.CertPEM), PrivateKey: inlineData(cert.KeyPEM)}}
	const db = "outbound|9000||db.default.svc.cluster.local"
	base := []types.Resource{
		outbound(t, db, sidecar("default", id)), outbound(t, "bad", sidecar("default", id)), outbound(t, "inline", inline), outbound(t, "lost", sidecar("absent", id)),
		workloads(t, "inline", []*backend{secure}, nil), workloads(t, "lost", []*backend{secure}, nil),
		staticCluster(t, "BlackHoleCluster"),
		&clusterv3.Cluster{
			Name: "PassthroughCluster", ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_ORIGINAL_DST}, LbPolicy: clusterv3.Cluster_CLUSTER_PROVIDED,
			TypedExtensionProtocolOptions: outbound(t, "", inline).TypedExtensionProtocolOptions,
		},
		virtualOutbound, virtualInbound,
		lds(t, "0.0.0.0_80", "127.0.0.1:1", filter(t, "envoy.filters.network.http_connection_manager", &hcmv3.HttpConnectionManager{StatPrefix: "outbound"})),
		listener("db", db), listener("bad", "bad"), listener("inline", "inline"), listener("lost", "lost"), listener("black", "BlackHoleCluster"),
		caSecret("ROOTCA", k.ca),
	}
	set := func(default_ tlstest.Pair, bad ...*backend) {
		t.Helper()
		cp.set(append(base[:len(base):len(base)], certSecret("default", default_),
			workloads(t, db, []*backend{secure}, []*backend{plain}), workloads(t, "bad", bad, nil))...)
	}
	cp.start()
	first := agent("first")
	set(first, other)
	p := startAgent(t, line+cp.listening(`drain_timeout = "30s"`))
	p.awaitReady()
	for _, name := range []string{db, "inline"} {
		eventually(t, "the secrets of "+name+" have come", func() bool { return p.certificate(name) != "" })
	}
	tr := startTraffic(t, p.listener("db"))
	tr.lands(t, secure, plain)
	if who, err := ask(t.Context(), p.listener("inline")); err != nil || who != secure.addr {
		t.Errorf("inline certificates lead to %q, %v", who, err)
	}

	// The certificate rotates under traffic, and connections live.
	live, err := net.Dial("tcp", p.listener("inline"))
	if err != nil {
		t.Fatal(err)
	}
	defer live.Close()
	if _, err := askOn(live); err != nil {
		t.Fatal(err)
	}
	generation := p.metric(fmt.Sprintf("gatehouse_cluster_generation{cluster=%q}", db))
	second := agent("second")
	set(second, other)
	eventually(t, "the next certificate is in force", func() bool { return p.certificate(db) == "CN=second" })
	tr.lands(t, secure, plain)
	if got := p.metric(fmt.Sprintf("gatehouse_cluster_generation{cluster=%q}", db)); got != generation {
		t.Errorf("the generation went from %v to %v", generation, got)
	}

	// Who is not who it should be gets nothing, and there is a word for each.
	last := 0
	refused := func(name, flag, cluster, why string) {
		t.Helper()
		if who, err := ask(t.Context(), p.listener(name)); err == nil {
			t.Errorf("%s led to %s", name, who)
		}
		eventually(t, why+" is in the access log", func() bool {
			b, _ := os.ReadFile(log)
			for line := range strings.Lines(string(b[min(last, len(b)):])) {
				if line = strings.ReplaceAll(line, `\"`, `"`); strings.HasPrefix(line, flag+" "+cluster+" ") && strings.Contains(line, why) {
					return true
				}
			}
			return false
		})
		b, _ := os.ReadFile(log)
		last = len(b)
	}
	for _, tt := range []struct {
		b           *backend
		why, reason string
	}{
		{other, "tls handshake: the peer's certificate names spiffe://example.org/other, and nothing of that is accepted", "name"},
		{old, "tls handshake: the peer's certificate, which names spiffe://example.org/db, expired at", "expired"},
		{stranger, "tls handshake: the peer's certificate is signed by an authority that is not among the trusted ones", "unknown_authority"},
		{plain, "tls handshake: the peer does not speak TLS", "not_tls"},
	} {
		set(second, tt.b)
		eventually(t, "the endpoint is "+tt.b.addr, func() bool {
			return slices.Equal(p.cluster("bad").ready, []string{tt.b.addr})
		})
		refused("bad", "UF", "bad", tt.why)
		counted := fmt.Sprintf("gatehouse_cluster_tls_failures{cluster=\"bad\",reason=%q}", tt.reason)
		eventually(t, counted, func() bool { _, body := p.get("/stats/prometheus"); return strings.Contains(body, counted) })
	}
	refused("lost", "UF", "lost", `no tls: secret "absent": `)
	set(second, other, secure) // another one takes it
	eventually(t, "the endpoints are two", func() bool { return len(p.cluster("bad").ready) == 2 })
	for range 5 {
		if who, err := ask(t.Context(), p.listener("bad")); err != nil || who != secure.addr {
			t.Errorf("led to %q, %v", who, err)
		}
	}

	// A secret that is wrong is refused, and the last good one stays; nothing else was.
	if n := cp.nacks(); len(n) > 0 {
		t.Errorf("NACKs: %q", n)
	}
	set(tlstest.Pair{CertPEM: first.CertPEM, KeyPEM: second.KeyPEM}, other)
	cp.nacked(`"default"`, "do not belong together")
	if got := p.certificate(db); got != "CN=second" {
		t.Errorf("the certificate is %s", got)
	}
	tr.lands(t, secure, plain)
	tr.stop()
	tr.noErrors(t)
	if _, err := askOn(live); err != nil {
		t.Errorf("the connection from before: %v", err)
	}

	// What is not served, and why.
	for name, want := range map[string]string{"0.0.0.0_80": "http_connection_manager", "virtualInbound": "http_connection_manager"} {
		if got := p.shown()[name]; !strings.Contains(fmt.Sprint(got.Unsupported, got.Chains), want) {
			t.Errorf("%s is shown as %+v", name, got)
		}
	}
	if _, body := p.get("/clusters"); !strings.Contains(body, "PassthroughCluster::gatehouse_unsupported::") || !strings.Contains(body, "type ORIGINAL_DST") {
		t.Errorf("/clusters: %s", body)
	}
	refused("black", "UH", "BlackHoleCluster", `cluster "BlackHoleCluster" has no endpoint that is ready`)
	refused("virtualOutbound", "NC", "PassthroughCluster", "not supported: ")

	live.Close()
	// No key is anywhere but in memory.
	_, dump := p.get("/config_dump")
	_, clusters := p.get("/clusters?format=json")
	shown := dump + clusters + p.output() + fmt.Sprint(p.clientStatus())
	if !strings.Contains(shown, "[redacted]") {
		t.Error("nothing is redacted")
	}
	if code := p.end(syscall.SIGTERM); code != 0 {
		t.Errorf("exit code %d", code)
	}
	kept := ""
	if err := filepath.WalkDir(state, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			b, _ := os.ReadFile(path)
			kept += string(b)
		}
		return err
	}); err != nil || kept == "" {
		t.Errorf("kept are %d bytes, %v", len(kept), err)
	}
	for _, pair := range []tlstest.Pair{first, second, cert} {
		if strings.Contains(shown+kept, keyLine(pair)) {
			t.Error("a key shows")
		}
	}

	// After a restart without the control plane: clusters that hold a key are not there,
	// and others have no secrets. Nothing of them is dialled in plain text.
	cp.stop()
	p = startAgent(t, line+cp.listening(""))
	p.awaitReady()
	eventually(t, "plain endpoints take what there is", func() bool { who, err := ask(t.Context(), p.listener("db")); return err == nil && who == plain.addr })
	refused("bad", "UF", "bad", `no tls: secret "default": `)
	refused("inline", "NC", "inline", `cluster "inline" is not known`)
}

// certificate returns the subject of what the agent shows to the endpoints of a cluster.
func (p *process) certificate(cluster string) string {
	p.t.Helper()
	var got struct {
		Clusters []struct {
			Name      string
			Gatehouse struct{ TLS *tlsStatus }
		} `json:"cluster_statuses"`
	}
	_, body := p.get("/clusters?format=json")
	if err := json.Unmarshal([]byte(body), &got); err != nil {
		p.t.Fatal(err)
	}
	for _, c := range got.Clusters {
		if tls := c.Gatehouse.TLS; c.Name == cluster && tls != nil && len(tls.Certificates) > 0 {
			return tls.Certificates[0].Subject
		}
	}
	return ""
}
