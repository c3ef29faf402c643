package test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	statusv3 "github.com/envoyproxy/go-control-plane/envoy/service/status/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"gatehouse.internal/internal/tlsconf/tlstest"
)

// A plant is a canary: a secret in a place of its own, that must be in nothing that the
// agent shows or writes. To add a place, add an entry to plants: what it returns goes
// into the configuration, or to the control plane.
type plant struct {
	name string
	// kept allows the secret in state_dir, whose files are the agent's alone: it is a
	// part of what was learnt, and not marked as a secret by who has said it.
	kept bool
	// set puts the canary where it belongs. It may return another text that is the secret,
	// as a key that must be a real one.
	set func(t *testing.T, g *garden, canary string) (secret string)
}

// garden is where canaries are planted.
type garden struct {
	dir, backend string
	ca           *tlstest.CA
	xds          string // in the server block
	consul       string // in the consul block
	admin        string // in the admin block
	adminToken   string
	check        string // a health_check block
	more         string // blocks of its own
	env          []string
	resources    []types.Resource
	// mistaken are files of configurations with mistakes in them.
	mistaken []string
	traffic  string // what a client sends
}

func (g *garden) file(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(g.dir, name)
	write(t, path, text)
	return path
}

// key is a new certificate with the part of its key that is secret.
func (g *garden) key(t *testing.T) (pair tlstest.Pair, secret string) {
	t.Helper()
	pair = g.ca.Issue(t, tlstest.Leaf{Names: []string{"127.0.0.1"}})
	return pair, strings.Split(string(pair.KeyPEM), "\n")[1][20:60]
}

func inline(s string) *corev3.DataSource {
	return &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: s}}
}

// checked is a cluster of the control plane with this check.
func (g *garden) checked(t *testing.T, name string, hc *corev3.HealthCheck) *clusterv3.Cluster {
	t.Helper()
	c := staticCluster(t, name, g.backend)
	hc.Interval, hc.Timeout = durationpb.New(200e6), durationpb.New(200e6)
	hc.UnhealthyThreshold, hc.HealthyThreshold = wrapperspb.UInt32(1), wrapperspb.UInt32(1)
	hc.AlwaysLogHealthCheckFailures = true
	c.HealthChecks = []*corev3.HealthCheck{hc}
	return c
}

func header(name, value string) *corev3.HeaderValueOption {
	return &corev3.HeaderValueOption{Header: &corev3.HeaderValue{Key: name, Value: value}}
}

func secured(c *clusterv3.Cluster, a *anypb.Any) *clusterv3.Cluster {
	c.TransportSocket = &corev3.TransportSocket{Name: "tls", ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: a}}
	return c
}

var plants = []plant{
	{"xds token_file", false, func(t *testing.T, g *garden, c string) string {
		g.xds += fmt.Sprintf("token_file = %q\n", g.file(t, "xds-token", c))
		return c
	}},
	{"xds initial_metadata", false, func(t *testing.T, g *garden, c string) string {
		g.xds += fmt.Sprintf("initial_metadata = { x-tenant = %q }\n", c)
		return c
	}},
	{"xds initial_metadata_files", false, func(t *testing.T, g *garden, c string) string {
		g.xds += fmt.Sprintf("initial_metadata_files = { x-consul-token = %q }\n", g.file(t, "xds-metadata", c))
		return c
	}},
	{"consul token", false, func(t *testing.T, g *garden, c string) string {
		g.consul += fmt.Sprintf("token = %q\n", c)
		return c
	}},
	{"consul http_auth", false, func(t *testing.T, g *garden, c string) string {
		g.consul += fmt.Sprintf("http_auth = \"user:%s\"\n", c)
		return c
	}},
	{"CONSUL_HTTP_TOKEN", false, func(t *testing.T, g *garden, c string) string {
		g.env = append(g.env, "CONSUL_HTTP_TOKEN="+c)
		return c
	}},
	{"admin token_file", false, func(t *testing.T, g *garden, c string) string {
		g.adminToken = c
		g.admin += fmt.Sprintf("token_file = %q\n", g.file(t, "admin-token", c))
		return c
	}},
	{"key file of a listener's certificate", false, func(t *testing.T, g *garden, _ string) string {
		pair, secret := g.key(t)
		cert, key := pair.Write(t, g.dir, "listener")
		g.more += fmt.Sprintf("listener \"secure\" {\n address = \"127.0.0.1:0\"\n cluster = \"web\"\n tls {\n cert_file = %q\n key_file = %q\n }\n}\n", cert, key)
		return secret
	}},
	{"key file of a cluster's certificate", false, func(t *testing.T, g *garden, _ string) string {
		pair, secret := g.key(t)
		cert, key := pair.Write(t, g.dir, "cluster")
		g.more += fmt.Sprintf("cluster \"secure\" {\n discovery \"static\" { endpoints = [%q] }\n tls {\n cert_file = %q\n key_file = %q\n }\n}\n", g.backend, cert, key)
		return secret
	}},
	{"a key in the place of a certificate", false, func(t *testing.T, g *garden, _ string) string {
		pair, secret := g.key(t)
		_, key := pair.Write(t, g.dir, "swapped")
		g.mistaken = append(g.mistaken, fmt.Sprintf("cluster \"secure\" {\n discovery \"static\" { endpoints = [%q] }\n tls {\n ca_file = %q\n cert_file = %q\n key_file = %q\n }\n}\n", g.backend, key, key, key))
		return secret
	}},
	{"header of a file's http check", false, func(t *testing.T, g *garden, c string) string {
		g.check += fmt.Sprintf("health_check \"http\" {\n interval = \"200ms\"\n timeout = \"200ms\"\n always_log_failures = true\n headers = { authorization = \"Bearer %s\" }\n}\n", c)
		return c
	}},
	{"metadata of a file's grpc check", false, func(t *testing.T, g *garden, c string) string {
		g.check += fmt.Sprintf("health_check \"grpc\" {\n interval = \"200ms\"\n timeout = \"200ms\"\n always_log_failures = true\n headers = { x-api = %q }\n}\n", c)
		return c
	}},
	{"what a file's tcp check sends", false, func(t *testing.T, g *garden, c string) string {
		g.check += fmt.Sprintf("health_check \"tcp\" {\n interval = \"200ms\"\n timeout = \"200ms\"\n always_log_failures = true\n send = \"AUTH %s\"\n receive = [\"+OK\"]\n}\n", c)
		return c
	}},
	{"header of a CDS http check", false, func(t *testing.T, g *garden, c string) string {
		g.resources = append(g.resources, g.checked(t, "http-check", &corev3.HealthCheck{HealthChecker: &corev3.HealthCheck_HttpHealthCheck_{
			HttpHealthCheck: &corev3.HealthCheck_HttpHealthCheck{Path: "/", RequestHeadersToAdd: []*corev3.HeaderValueOption{header("authorization", c)}},
		}}))
		return c
	}},
	{"metadata of a CDS grpc check", false, func(t *testing.T, g *garden, c string) string {
		g.resources = append(g.resources, g.checked(t, "grpc-check", &corev3.HealthCheck{HealthChecker: &corev3.HealthCheck_GrpcHealthCheck_{
			GrpcHealthCheck: &corev3.HealthCheck_GrpcHealthCheck{InitialMetadata: []*corev3.HeaderValueOption{header("x-token", c)}},
		}}))
		return c
	}},
	{"what a CDS tcp check sends", true, func(t *testing.T, g *garden, c string) string {
		g.resources = append(g.resources, g.checked(t, "tcp-check", &corev3.HealthCheck{HealthChecker: &corev3.HealthCheck_TcpHealthCheck_{
			TcpHealthCheck: &corev3.HealthCheck_TcpHealthCheck{
				Send: &corev3.HealthCheck_Payload{Payload: &corev3.HealthCheck_Payload_Text{Text: hex.EncodeToString([]byte(c))}},
			},
		}}))
		return c
	}},
	{"inline key of an LDS listener", false, func(t *testing.T, g *garden, _ string) string {
		pair, secret := g.key(t)
		l := lds(t, "inline-key", "127.0.0.1:0", tcpProxy(t, "http-check"))
		l.FilterChains[0].TransportSocket = &corev3.TransportSocket{Name: "tls", ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: anyOf(t, &tlsv3.DownstreamTlsContext{
			CommonTlsContext: &tlsv3.CommonTlsContext{TlsCertificates: []*tlsv3.TlsCertificate{{CertificateChain: inline(string(pair.CertPEM)), PrivateKey: inline(string(pair.KeyPEM))}}},
		})}}
		g.resources = append(g.resources, l)
		return secret
	}},
	{"inline key of an LDS listener that is none", false, func(t *testing.T, g *garden, c string) string {
		l := lds(t, "bad-key", "127.0.0.1:0", tcpProxy(t, "http-check"))
		l.FilterChains[0].TransportSocket = &corev3.TransportSocket{Name: "tls", ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: anyOf(t, &tlsv3.DownstreamTlsContext{
			CommonTlsContext: &tlsv3.CommonTlsContext{TlsCertificates: []*tlsv3.TlsCertificate{{CertificateChain: inline("-----BEGIN CERTIFICATE-----\nx\n"), PrivateKey: inline(c)}}},
		})}}
		g.resources = append(g.resources, l)
		return c
	}},
	{"password of a key of an LDS listener", false, func(t *testing.T, g *garden, c string) string {
		pair, _ := g.key(t)
		l := lds(t, "password", "127.0.0.1:0", tcpProxy(t, "http-check"))
		l.FilterChains[0].TransportSocket = &corev3.TransportSocket{Name: "tls", ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: anyOf(t, &tlsv3.DownstreamTlsContext{
			CommonTlsContext:      &tlsv3.CommonTlsContext{TlsCertificates: []*tlsv3.TlsCertificate{{CertificateChain: inline(string(pair.CertPEM)), PrivateKey: inline(string(pair.KeyPEM)), Password: inline(c)}}},
			SessionTicketKeysType: &tlsv3.DownstreamTlsContext_SessionTicketKeys{SessionTicketKeys: &tlsv3.TlsSessionTicketKeys{Keys: []*corev3.DataSource{inline(c)}}},
		})}}
		g.resources = append(g.resources, l)
		return c
	}},
	{"key of a secret (SDS)", false, func(t *testing.T, g *garden, _ string) string {
		pair, secret := g.key(t)
		l := lds(t, "sds-key", "127.0.0.1:0", tcpProxy(t, "http-check"))
		l.FilterChains[0].TransportSocket = &corev3.TransportSocket{Name: "tls", ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: anyOf(t, &tlsv3.DownstreamTlsContext{
			CommonTlsContext: &tlsv3.CommonTlsContext{TlsCertificateSdsSecretConfigs: []*tlsv3.SdsSecretConfig{sds("canary-secret")}},
		})}}
		g.resources = append(g.resources, l, &tlsv3.Secret{Name: "canary-secret", Type: &tlsv3.Secret_TlsCertificate{
			TlsCertificate: &tlsv3.TlsCertificate{CertificateChain: inline(string(pair.CertPEM)), PrivateKey: inline(string(pair.KeyPEM))},
		}})
		return secret
	}},
	{"key of a secret (SDS) that is refused", false, func(t *testing.T, g *garden, c string) string {
		l := lds(t, "sds-bad-key", "127.0.0.1:0", tcpProxy(t, "http-check"))
		l.FilterChains[0].TransportSocket = &corev3.TransportSocket{Name: "tls", ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: anyOf(t, &tlsv3.DownstreamTlsContext{
			CommonTlsContext: &tlsv3.CommonTlsContext{TlsCertificateSdsSecretConfigs: []*tlsv3.SdsSecretConfig{sds("bad-secret")}},
		})}}
		g.resources = append(g.resources, l, &tlsv3.Secret{Name: "bad-secret", Type: &tlsv3.Secret_TlsCertificate{
			TlsCertificate: &tlsv3.TlsCertificate{CertificateChain: inline("-----BEGIN CERTIFICATE-----\nx\n"), PrivateKey: inline(c), Password: inline(c)},
		}})
		return c
	}},
	{"inline key of a CDS cluster", false, func(t *testing.T, g *garden, _ string) string {
		pair, secret := g.key(t)
		g.resources = append(g.resources, secured(staticCluster(t, "cds-key", g.backend), anyOf(t, &tlsv3.UpstreamTlsContext{
			CommonTlsContext: &tlsv3.CommonTlsContext{TlsCertificates: []*tlsv3.TlsCertificate{{CertificateChain: inline(string(pair.CertPEM)), PrivateKey: inline(string(pair.KeyPEM))}}},
		})))
		return secret
	}},
	{"inline key of a CDS cluster that is none, and refused", false, func(t *testing.T, g *garden, c string) string {
		cluster := secured(staticCluster(t, "cds-bad-key", g.backend), anyOf(t, &tlsv3.UpstreamTlsContext{
			CommonTlsContext: &tlsv3.CommonTlsContext{TlsCertificates: []*tlsv3.TlsCertificate{{PrivateKey: inline(c), Password: inline(c)}}},
		}))
		cluster.ConnectTimeout = durationpb.New(-1e9)
		g.resources = append(g.resources, cluster)
		return c
	}},
	{"configuration of a transport socket that is not known", false, func(t *testing.T, g *garden, c string) string {
		s, err := structpb.NewStruct(map[string]any{"password": c})
		if err != nil {
			t.Fatal(err)
		}
		a := anyOf(t, s)
		a.TypeUrl = "type.googleapis.com/example.Unknown"
		g.resources = append(g.resources, secured(staticCluster(t, "unknown-socket", g.backend), a))
		return c
	}},
	{"configuration of a filter that is not known", false, func(t *testing.T, g *garden, c string) string {
		s, err := structpb.NewStruct(map[string]any{"password": c})
		if err != nil {
			t.Fatal(err)
		}
		f := filter(t, "unknown", s)
		f.GetTypedConfig().TypeUrl = "type.googleapis.com/example.Unknown"
		g.resources = append(g.resources, lds(t, "unknown-filter", "127.0.0.1:0", f))
		return c
	}},
	{"password in the URI of Consul", false, func(t *testing.T, g *garden, c string) string {
		for _, address := range []string{"http://user:%s@127.0.0.1:1", "user:%s@127.0.0.1:1", "https://127.0.0.1:1/?token=%s", "127.0.0.1:1#%s"} {
			g.mistaken = append(g.mistaken, fmt.Sprintf("consul {\n address = \""+address+"\"\n listeners = true\n}\n", c))
		}
		return c
	}},
	{"password in the URI of an xds server", false, func(t *testing.T, g *garden, c string) string {
		for i, format := range []string{"https://user:%s@127.0.0.1:1", "user:%s@127.0.0.1:1", "dns:///127.0.0.1:1?token=%s"} {
			uri := fmt.Sprintf(format, c)
			bootstrap := g.file(t, fmt.Sprintf("uri-%d.json", i), fmt.Sprintf(`{"xds_servers": [{"server_uri": %q, "channel_creds": [{"type": "insecure"}]}]}`, uri))
			g.mistaken = append(g.mistaken, fmt.Sprintf("xds {\n server_uri = %q\n}\n", uri), fmt.Sprintf("xds {\n server %q {}\n server %q {}\n}\n", uri, uri),
				fmt.Sprintf("xds {\n bootstrap = %q\n}\n", bootstrap))
		}
		return c
	}},
	{"secret in the place of a type of credentials", false, func(t *testing.T, g *garden, c string) string {
		file := g.file(t, "creds.json", fmt.Sprintf(`{"xds_servers": [{"server_uri": "127.0.0.1:1", "channel_creds": [{"type": %q}]}]}`, c))
		g.mistaken = append(g.mistaken, fmt.Sprintf("xds {\n bootstrap = %q\n}\n", file))
		return c
	}},
	{"token beside a mistake", false, func(t *testing.T, g *garden, c string) string {
		g.mistaken = append(g.mistaken, fmt.Sprintf("consul {\n token = [%q]\n}\n", c), fmt.Sprintf("consul { tokenn = %q }\n", c),
			fmt.Sprintf("admin { token = %q }\n", c), fmt.Sprintf("xds { server \"a:1\" { initial_metadata = %q } }\n", c),
			fmt.Sprintf("cluster \"x\" {\n health_check \"http\" { headers = { authorization = \"%s }\n }\n}\n", c))
		return c
	}},
	{"what a mistaken check sends", false, func(t *testing.T, g *garden, c string) string {
		g.mistaken = append(g.mistaken, fmt.Sprintf("cluster \"x\" {\n health_check \"tcp\" { send = \"0x%s\" }\n}\n", c), fmt.Sprintf("cluster \"x\" {\n health_check \"http\" { send = [%q] }\n}\n", c))
		return c
	}},
	{"token file with two lines", false, func(t *testing.T, g *garden, c string) string {
		file := g.file(t, "two-lines", c+"\n"+c)
		g.mistaken = append(g.mistaken, fmt.Sprintf("admin {\n token_file = %q\n}\n", file))
		return c
	}},
	{"bytes of a connection", false, func(t *testing.T, g *garden, c string) string {
		g.traffic = c
		return c
	}},
}

// TestSecretsStaySecret plants a canary in every place that can hold a secret, and looks
// for all of them in everything that the agent shows and writes.
func TestSecretsStaySecret(t *testing.T) { bothVariants(t, secretsStaySecret) }

func secretsStaySecret(t *testing.T, cp *control) {
	// A Consul that repeats what it is asked with is the worst there can be.
	echo := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, password, _ := r.BasicAuth()
		http.Error(w, fmt.Sprint("bad token ", r.Header.Get("X-Consul-Token"), r.Header.Get("Authorization"), password), http.StatusForbidden)
	}))
	defer echo.Close()
	b := startBackend(t)
	g := &garden{dir: t.TempDir(), backend: b.addr, ca: tlstest.NewCA(t, "canary")}
	secrets := make(map[string]string)
	keptToo := make(map[string]bool)
	for i, p := range plants {
		secrets[p.name] = p.set(t, g, fmt.Sprintf("c4n4ry%02dxXx%02dyYy%02d", i, i, i))
		keptToo[p.name] = p.kept
	}
	server := g.ca.Issue(t, tlstest.Leaf{Names: []string{"127.0.0.1"}}).TLS(t)
	cp.options = []grpc.ServerOption{grpc.Creds(credentials.NewServerTLSFromCert(&server))}
	cp.start()
	cp.set(g.resources...)
	state := filepath.Join(g.dir, "state")
	conf := filepath.Join(g.dir, "gatehouse.hcl")
	good := fmt.Sprintf(`
node { id = %q }
log  { level = "debug" }
state_dir = %q
drain_timeout = "100ms"
admin {
  address = "127.0.0.1:0"
%s}
xds {
  clusters  = true
  listeners = true
  protocol  = %q
  server %q {
    tls { ca_file = %q }
%s  }
}
consul {
  address   = %q
  listeners = true
%s}
cluster "web" {
  discovery "static" { endpoints = [%q] }
  discovery "consul" {}
%s}
cluster "open" {
  discovery "static" { endpoints = [%q] }
}
listener "open" {
  address = "127.0.0.1:0"
  cluster = "open"
  access_log { path = "stderr" }
}
%s`, nodeID, state, g.admin, cp.protocol, cp.addr, g.ca.Write(t, g.dir), g.xds, echo.URL, g.consul, b.addr, g.check, b.addr, g.more)
	write(t, conf, good)
	cmd := exec.Command(program(t, binary), "run", "-config-file", conf, "-log-json")
	cmd.Env = append(os.Environ(), g.env...)
	p := startCommand(t, cmd)
	shown := make(map[string][]byte) // by place
	get := func(method, path string) string {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), method, "http://"+p.admin()+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+g.adminToken)
		resp, err := (&http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true}}).Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		shown[method+" "+path] = append(shown[method+" "+path], body...)
		return string(body)
	}
	eventually(t, "the control plane's clusters and listeners are there", func() bool {
		body := get("GET", "/config_dump")
		for _, name := range []string{"http-check", "cds-key", "unknown-socket", "inline-key", "unknown-filter", "canary-secret", "bad-secret"} {
			if !strings.Contains(body, `"`+name+`"`) {
				return false
			}
		}
		return strings.Contains(body, "cds-bad-key") && strings.Contains(body, "bad-key")
	})
	eventually(t, "checks have failed, and Consul has refused", func() bool {
		return strings.Count(p.output(), "probe failed") > 5 && p.logged("the catalog does not tell its listeners, the last ones stay", "", "") != nil
	})
	// A connection with a secret in it, and one that goes on.
	for range 3 {
		if c, err := net.DialTimeout("tcp", p.listener("open"), patience); err != nil {
			t.Error(err)
		} else {
			fmt.Fprintln(c, g.traffic)
			io.CopyN(io.Discard, c, 1)
			defer c.Close()
		}
	}
	for _, path := range []string{
		"/", "/ready", "/live", "/clusters", "/clusters?format=json", "/listeners", "/listeners?format=json", "/connections", "/connections?format=json",
		"/config_dump", "/config_dump?include_eds", "/config_dump?resource=dynamic_active_clusters", "/healthchecks", "/healthchecks?format=json",
		"/explain?cluster=open", "/selectors?cluster=open", "/stats/prometheus", "/server_info", "/logging", "/debug/log",
		"/debug/pprof/goroutine?debug=2", "/debug/pprof/heap?debug=1", "/debug/pprof/allocs?debug=1", "/nosuch",
	} {
		get("GET", path)
	}
	shown["GET /events"] = events(t, "http://"+p.admin()+"/events?cluster=web", g.adminToken)
	shown["CSDS"] = []byte(statusWith(t, p.admin(), g.adminToken))

	// Configurations with mistakes: what validate, the log and a reload say of them.
	for i, text := range g.mistaken {
		write(t, conf, text)
		for _, more := range [][]string{nil, {"-json"}} {
			code, out := runCommand(t, nil, append([]string{"validate", "-config-file", conf}, more...)...)
			if code != 2 {
				t.Errorf("validate of the mistaken configuration %d: %d %s", i, code, out)
			}
			shown[fmt.Sprint("validate ", i, more)] = []byte(out)
		}
		get("POST", "/reload")
	}
	write(t, conf, good)
	get("POST", "/reload?wait=1ms")
	p.cmd.Process.Signal(syscall.SIGUSR1)
	eventually(t, "the metrics are dumped", func() bool {
		return strings.Contains(p.output(), "gauge gatehouse.")
	})

	archive := filepath.Join(g.dir, "debug.tar.gz")
	env := []string{"GATEHOUSE_ADMIN_ADDRESS=" + p.admin(), "GATEHOUSE_ADMIN_TOKEN=" + g.adminToken}
	for _, args := range [][]string{
		{"clusters"}, {"clusters", "-json"}, {"endpoints"}, {"endpoints", "-json"}, {"connections"}, {"connections", "-json"}, {"log-level"}, {"health"},
		{"explain", "-cluster", "web"}, {"explain", "-cluster", "web", "-json"}, {"simulate", "-cluster", "open", "-add", "127.0.0.1:1", "-json"},
		{"disable", "open", b.addr}, {"enable", "open", b.addr}, {"reload", "-json"}, {"debug", "-duration", "1s", "-output", archive}, {"top"}, {"drain"},
	} {
		_, out := runCommand(t, env, args...)
		shown[fmt.Sprint("gatehouse ", args)] = []byte(out)
	}
	maps.Copy(shown, unpack(t, archive))
	p.end(syscall.SIGTERM)
	shown["the log"] = []byte(p.output())
	shown["refusals to the control plane"] = []byte(fmt.Sprint(cp.nacks()))
	err := filepath.WalkDir(state, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		shown["state_dir/"+d.Name()] = text
		return err
	})
	if err != nil {
		t.Fatal(err)
	}

	for _, name := range slices.Sorted(maps.Keys(secrets)) {
		for _, form := range forms(secrets[name]) {
			for place, text := range shown {
				if keptToo[name] && strings.HasPrefix(place, "state_dir/") {
					continue
				}
				if i := bytes.Index(text, []byte(form)); i >= 0 {
					t.Errorf("%s: it shows in %s: …%.300q…", name, place, text[max(0, i-150):min(len(text), i+len(form)+50)])
				}
			}
		}
	}
	// The test looks at what there is: a name that may be shown is in each place.
	for place, word := range map[string]string{
		"GET /config_dump": "x-tenant", "CSDS": "[redacted]", "GET /events": "cluster|web", "the log": "probe failed", "gatehouse [clusters]": "web",
		"debug.tar.gz/config_dump.json": "[redacted]", "debug.tar.gz/log.txt": "probe failed", "GET /healthchecks": "http", "refusals to the control plane": "connect_timeout",
		"debug.tar.gz/heap.pb.gz": "runtime",
	} {
		if !bytes.Contains(shown[place], []byte(word)) {
			t.Errorf("%s lacks %q: %.500s", place, word, shown[place])
		}
	}
	for _, kind := range []string{"state_dir/", "validate ", "debug.tar.gz/"} {
		if !slices.ContainsFunc(slices.Collect(maps.Keys(shown)), func(place string) bool { return strings.HasPrefix(place, kind) }) {
			t.Errorf("nothing of %s was looked at", kind)
		}
	}
}

// forms are the ways in which a secret could be written, as far as they can be found.
func forms(secret string) []string {
	all := []string{secret, hex.EncodeToString([]byte(secret)), url.QueryEscape(secret)}
	for i := range 3 { // what stands before it shifts base64
		text := base64.StdEncoding.EncodeToString([]byte(strings.Repeat("x", i) + secret))
		all = append(all, text[4:len(text)-4])
	}
	return all
}

// events returns the beginning of the live page's stream.
func events(t *testing.T, url, token string) []byte {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, "GET", url, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+token)
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var out []byte
	for buf := make([]byte, 64<<10); bytes.Count(out, []byte("\n\n")) < 2; { // the whole, and a change
		n, err := resp.Body.Read(buf)
		if out = append(out, buf[:n]...); err != nil {
			t.Fatalf("/events ends: %v", err)
		}
	}
	return out
}

// statusWith is what CSDS tells who has the token.
func statusWith(t *testing.T, addr, token string) string {
	t.Helper()
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	ask := statusv3.NewClientStatusDiscoveryServiceClient(conn)
	if _, err := ask.FetchClientStatus(ctx, new(statusv3.ClientStatusRequest)); err == nil {
		t.Error("CSDS answers without the token")
	}
	answer, err := ask.FetchClientStatus(metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token), new(statusv3.ClientStatusRequest))
	if err != nil {
		t.Fatal(err)
	}
	return prototext.Format(answer)
}

// unpack returns the files of an archive, unzipped.
func unpack(t *testing.T, archive string) map[string][]byte {
	t.Helper()
	f, err := os.Open(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	zip, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	files := make(map[string][]byte)
	for r := tar.NewReader(zip); ; {
		h, err := r.Next()
		if err == io.EOF {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		if z, err := gzip.NewReader(bytes.NewReader(text)); err == nil {
			if text, err = io.ReadAll(z); err != nil {
				t.Fatal(err)
			}
		}
		files["debug.tar.gz/"+filepath.Base(h.Name)] = text
	}
}
