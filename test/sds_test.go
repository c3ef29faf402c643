package test

//lint:file-ignore SA1019 control planes send what is deprecated, too

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	filev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/file/v3"
	tcpproxyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"gatehouse.internal/internal/tlsconf/tlstest"
)

// sds names a secret of the same control plane.
func sds(name string) *tlsv3.SdsSecretConfig {
	return &tlsv3.SdsSecretConfig{Name: name, SdsConfig: &corev3.ConfigSource{ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}}}}
}

func certSecret(name string, p tlstest.Pair) *tlsv3.Secret {
	return &tlsv3.Secret{Name: name, Type: &tlsv3.Secret_TlsCertificate{TlsCertificate: &tlsv3.TlsCertificate{
		CertificateChain: inlineData(p.CertPEM), PrivateKey: inlineData(p.KeyPEM),
	}}}
}

func caSecret(name string, ca *tlstest.CA) *tlsv3.Secret {
	return &tlsv3.Secret{Name: name, Type: &tlsv3.Secret_ValidationContext{ValidationContext: &tlsv3.CertificateValidationContext{TrustedCa: inlineData(ca.PEM)}}}
}

// bySecrets is a listener with mTLS whose certificate is the secret "server", and whose
// clients are verified by the secret "roots"; its connections are in the log.
func bySecrets(t *testing.T, name, addr, log string) *listenerv3.Listener {
	t.Helper()
	l := lds(t, name, addr, tcpProxy(t, "a", func(p *tcpproxyv3.TcpProxy) {
		p.AccessLog = []*accesslogv3.AccessLog{{Name: "file", ConfigType: &accesslogv3.AccessLog_TypedConfig{TypedConfig: anyOf(t, &filev3.FileAccessLog{
			Path: log, AccessLogFormat: &filev3.FileAccessLog_Format{Format: "%RESPONSE_FLAGS% %CONNECTION_TERMINATION_DETAILS%\n"},
		})}}}
	}))
	l.FilterChains[0].TransportSocket = &corev3.TransportSocket{Name: "tls", ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: anyOf(t, &tlsv3.DownstreamTlsContext{
		RequireClientCertificate: wrapperspb.Bool(true),
		CommonTlsContext: &tlsv3.CommonTlsContext{
			TlsCertificateSdsSecretConfigs: []*tlsv3.SdsSecretConfig{sds("server")},
			ValidationContextType: &tlsv3.CommonTlsContext_CombinedValidationContext{CombinedValidationContext: &tlsv3.CommonTlsContext_CombinedCertificateValidationContext{
				DefaultValidationContext: &tlsv3.CertificateValidationContext{}, ValidationContextSdsSecretConfig: sds("roots"),
			}},
		},
	})}}
	return l
}

// dumpedSecrets returns the names of the secrets in a dump, as "active" or "warming".
func (p *process) dumpedSecrets() map[string]string {
	p.t.Helper()
	_, body := p.get("/config_dump")
	var dump struct {
		Configs []struct {
			Active  []struct{ Name string } `json:"dynamic_active_secrets"`
			Warming []struct{ Name string } `json:"dynamic_warming_secrets"`
		}
	}
	if err := json.Unmarshal([]byte(body), &dump); err != nil {
		p.t.Fatal(err)
	}
	all := make(map[string]string)
	for _, c := range dump.Configs {
		for _, s := range c.Active {
			all[s.Name] = "active"
		}
		for _, s := range c.Warming {
			all[s.Name] = "warming"
		}
	}
	return all
}

// refusesBecause waits until the listener's one chain is shown to refuse for that
// reason, which must then be in the access log and the metrics, and is refused.
func (p *process) refusesBecause(name, why, log string) {
	p.t.Helper()
	eventually(p.t, name+" is shown to refuse: "+why, func() bool {
		got := p.shown()[name]
		return len(got.Chains) == 1 && strings.Contains(got.Chains[0].Unsupported, why)
	})
	if got := p.metric(fmt.Sprintf("gatehouse_listener_tls_missing{listener=%q}", name)); got != 1 {
		p.t.Errorf("%v chains have no tls", got)
	}
	counted := fmt.Sprintf("gatehouse_listener_ended{flag=\"NR\",listener=%q}", name)
	_, body := p.get("/stats/prometheus")
	before := 0.0
	if strings.Contains(body, counted) {
		before = p.metric(counted)
	}
	if who, err := ask(p.t.Context(), p.listener(name)); err == nil {
		p.t.Errorf("plain text led to %s", who)
	}
	if c, err := tls.Dial("tcp", p.listener(name), &tls.Config{InsecureSkipVerify: true}); err == nil {
		c.Close()
		p.t.Error("a handshake is done without a certificate")
	}
	eventually(p.t, "they are counted", func() bool {
		_, body := p.get("/stats/prometheus")
		return strings.Contains(body, counted) && p.metric(counted) == before+2
	})
	eventually(p.t, "the reason is in the access log", func() bool {
		b, _ := os.ReadFile(log)
		for line := range strings.Lines(string(b)) {
			if strings.HasPrefix(line, "NR ") && strings.Contains(strings.ReplaceAll(line, `\"`, `"`), why) {
				return true
			}
		}
		return false
	})
}

// listenInode returns what tells the listening socket of a port from others.
func listenInode(t *testing.T, addr string) string {
	t.Helper()
	var port int
	if _, err := fmt.Sscanf(addr, "127.0.0.1:%d", &port); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile("/proc/net/tcp")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 9 && f[1] == fmt.Sprintf("0100007F:%04X", port) && f[3] == "0A" {
			return f[9] // its inode
		}
	}
	t.Fatalf("nobody listens on %s", addr)
	return ""
}

// keyLine is what shows of a key wherever it is.
func keyLine(p tlstest.Pair) string { return strings.Split(string(p.KeyPEM), "\n")[1] }

// A listener whose certificate and authorities are secrets refuses connections until
// they are there, with its reason; then they rotate, and no connection is lost.
func TestSDS(t *testing.T) { bothVariants(t, testSDS) }

func testSDS(t *testing.T, cp *control) {
	a := startBackend(t)
	k, other := newPKI(t), newPKI(t)
	log := filepath.Join(t.TempDir(), "access.log")
	state, line := stateDir(t)
	leaf := func(name string) tlstest.Pair {
		return k.ca.Issue(t, tlstest.Leaf{CommonName: name, Names: []string{"front.internal"}})
	}
	addr := freePorts(t, 1)[0]
	base := []types.Resource{staticCluster(t, "a", a.addr), bySecrets(t, "public", addr, log)}
	set := func(secrets ...types.Resource) { cp.set(append(base[:len(base):len(base)], secrets...)...) }
	roots := caSecret("roots", k.ca)

	cp.start()
	set(roots)
	p := startAgent(t, line+cp.listening("drain_timeout = \"1s\"\ndrain_spread = \"100ms\"\n"))
	p.awaitReady()
	p.refusesBecause("public", `no tls: secret "server": `, log) // it has not come yet, or after 15 s not in time
	eventually(t, "the secrets are dumped", func() bool {
		all := p.dumpedSecrets()
		return len(all) == 2 && all["server"] == "warming" && all["roots"] == "active"
	})

	first, second := leaf("first"), leaf("second")
	conf := k.client(tlstest.Leaf{})
	client := &pkiClient{t, addr, conf}
	certificate := func(want string) {
		t.Helper()
		eventually(t, "the certificate is "+want, func() bool {
			c, err := tls.Dial("tcp", addr, conf)
			if err != nil {
				return false
			}
			defer c.Close()
			who, err := askOn(c)
			return err == nil && who == a.addr && c.ConnectionState().PeerCertificates[0].Subject.CommonName == want
		})
	}
	set(roots, certSecret("server", first))
	certificate("first")
	socket := listenInode(t, addr)
	live := client.mustConnect(a.addr)
	if got := p.metric(`gatehouse_listener_tls_missing{listener="public"}`); got != 0 {
		t.Errorf("%v chains have no tls", got)
	}
	refusesPlainText(t, addr)
	(&pkiClient{t, addr, &tls.Config{RootCAs: k.ca.Pool(), ServerName: "front.internal"}}).refused()
	stranger := &pkiClient{t, addr, &tls.Config{RootCAs: k.ca.Pool(), ServerName: "front.internal", Certificates: other.client(tlstest.Leaf{}).Certificates}}
	stranger.refused()

	// One after the other, under traffic.
	tr := startTrafficBy(t, 15*time.Millisecond, func(ctx context.Context) (string, error) {
		c, err := (&tls.Dialer{Config: conf}).DialContext(ctx, "tcp", addr)
		if err != nil {
			return "", err
		}
		defer c.Close()
		return askOn(c)
	})
	tr.lands(t, a)
	for i := range 5 {
		name := fmt.Sprint("next ", i)
		set(roots, certSecret("server", leaf(name)))
		certificate(name)
		tr.lands(t, a)
	}
	// One whose key is another's is refused by name, and the last good one stays.
	set(roots, certSecret("server", tlstest.Pair{CertPEM: second.CertPEM, KeyPEM: first.KeyPEM}))
	cp.nacked(`"server"`, "do not belong together")
	set(roots, &tlsv3.Secret{Name: "server", Type: &tlsv3.Secret_TlsCertificate{TlsCertificate: &tlsv3.TlsCertificate{
		CertificateChain: inlineData([]byte("nonsense")), PrivateKey: inlineData(second.KeyPEM),
	}}})
	cp.nacked(`"server"`, "no PEM block")
	certificate("next 4")
	set(roots, certSecret("server", second))
	certificate("second")
	tr.lands(t, a)
	tr.stop()
	tr.noErrors(t)
	live.alive(a.addr)
	if got := listenInode(t, addr); got != socket {
		t.Errorf("the socket %s became %s", socket, got)
	}

	// Other authorities: who was let in is not any more, and the other way round.
	set(caSecret("roots", other.ca), certSecret("server", second))
	eventually(t, "the stranger is let in", func() bool { who, err := stranger.connect(); return err == nil && who == a.addr })
	client.refused()
	live.alive(a.addr)
	set(roots, certSecret("server", second))
	certificate("second")

	// One that has expired is not shown to anybody.
	old := k.ca.Issue(t, tlstest.Leaf{Names: []string{"front.internal"}, NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: time.Now().Add(-time.Hour)})
	set(roots, certSecret("server", old))
	p.refusesBecause("public", `tls_certificate.certificate_chain of secret "server" expired at`, log)
	live.alive(a.addr)
	set(roots, certSecret("server", first))
	certificate("first")

	// Nor is one that expires while it is in force.
	short := k.ca.Issue(t, tlstest.Leaf{CommonName: "short", Names: []string{"front.internal"}, NotAfter: time.Now().Add(3 * time.Second)})
	set(roots, certSecret("server", short))
	eventually(t, "the listener is shown to refuse", func() bool {
		got := p.shown()["public"]
		return len(got.Chains) == 1 && strings.Contains(got.Chains[0].Unsupported, " expired at ")
	})
	if c, err := tls.Dial("tcp", addr, &tls.Config{InsecureSkipVerify: true}); err == nil {
		c.Close()
		t.Error("a certificate that has expired is shown")
	}
	if got := p.metric(`gatehouse_listener_tls_missing{listener="public"}`); got != 1 {
		t.Errorf("%v chains have no tls", got)
	}
	live.alive(a.addr)
	set(roots, certSecret("server", first))
	certificate("first")

	// One that is removed is gone where that can be said, and else it is not missed.
	set(roots)
	if cp.protocol == "delta" {
		p.refusesBecause("public", `secret "server": no such resource: xds server `+cp.addr+" deleted it", log)
		live.alive(a.addr)
		set(roots, certSecret("server", first))
		certificate("first")
	} else {
		cp.acked(resourcev3.SecretType)
		certificate("first")
	}
	set(roots, certSecret("server", second))
	certificate("second")
	cp.acked(resourcev3.SecretType)

	// No key is anywhere but in memory.
	_, dump := p.get("/config_dump")
	if !strings.Contains(dump, "W3JlZGFjdGVkXQ==") && !strings.Contains(dump, "[redacted]") {
		t.Errorf("/config_dump:\n%s", dump)
	}
	_, listeners := p.get("/listeners?format=json")
	shown := dump + listeners + p.output()
	if code := p.end(syscall.SIGTERM); code != 0 {
		t.Errorf("exit code %d", code)
	}
	files := 0
	if err := filepath.WalkDir(state, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			files++
			b, _ := os.ReadFile(path)
			shown += string(b)
		}
		return err
	}); err != nil || files == 0 {
		t.Errorf("%d files, %v", files, err)
	}
	for _, pair := range []tlstest.Pair{first, second} {
		if strings.Contains(shown, keyLine(pair)) {
			t.Error("a key shows")
		}
	}
	if strings.Contains(shown, "PRIVATE KEY") {
		t.Error("a key shows")
	}

	// After a restart without the control plane the listener is there, and refuses.
	cp.stop()
	p = startAgent(t, line+cp.listening(""))
	p.awaitReady()
	p.refusesBecause("public", `secret "server": it has not come yet: xds server `+cp.addr, log)
	cp.start()
	certificate("second")
}
