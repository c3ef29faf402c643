package healthsvc

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"gatehouse.internal/internal/tlsconf"
	"gatehouse.internal/internal/tlsconf/tlstest"
)

// secured returns talk behind the server's side of TLS.
func secured(cfg *tls.Config, talk func(context.Context, net.Conn)) func(context.Context, net.Conn) {
	return func(ctx context.Context, c net.Conn) {
		s := tls.Server(c, cfg)
		if s.HandshakeContext(ctx) != nil {
			quiet(ctx, c) // a reset would overtake the alert
			return
		}
		talk(ctx, s)
	}
}

// pki is an authority with a server's certificate and a client's.
type pki struct {
	ca             *tlstest.CA
	server, client tlstest.Pair
	dir            string
}

func newPKI(t *testing.T) *pki {
	ca := tlstest.NewCA(t, "authority")
	return &pki{
		ca: ca, dir: t.TempDir(), server: ca.Issue(t, tlstest.Leaf{Names: []string{"web.internal", "127.0.0.1"}}),
		client: ca.Issue(t, tlstest.Leaf{CommonName: "agent"}),
	}
}

func (k *pki) serverConfig(t *testing.T) *tls.Config {
	return &tls.Config{Certificates: []tls.Certificate{k.server.TLS(t)}, NextProtos: []string{"h2", "http/1.1"}}
}

// probing returns the probe's side; change may be nil.
func (k *pki) probing(t *testing.T, name string, change func(*tlsconf.ClientConfig)) Transport {
	t.Helper()
	c := tlsconf.ClientConfig{CAFile: k.ca.Write(t, k.dir)}
	if change != nil {
		change(&c)
	}
	client, err := tlsconf.NewClient(c)
	if err != nil {
		t.Fatal(err)
	}
	return Transport{TLS: &TLS{Client: func() (*tlsconf.Client, error) { return client, nil }, Identity: "test", ServerName: name}}
}

// kinds returns a probe of each kind.
func kinds(tr Transport) []Probe {
	return []Probe{
		TCP{Transport: tr, Send: []byte("x"), Receive: [][]byte{[]byte("HTTP")}},
		HTTP{Transport: tr, Path: "/"}, GRPC{Transport: tr},
	}
}

// anything answers each kind: requests of HTTP/1.1, and of gRPC over h2.
func anything(t testing.TB) func(context.Context, net.Conn) {
	grpc := grpcServer(t, serving)
	return func(ctx context.Context, c net.Conn) {
		b := make([]byte, 1)
		if _, err := io.ReadFull(c, b); err != nil {
			return
		}
		c = &pushedBack{c, bytes.NewReader(b)}
		switch {
		case b[0] == 'P': // of HTTP/2's preface
			grpc(ctx, c)
		case b[0] == 'x':
			io.WriteString(c, "HTTP")
			quiet(ctx, c)
		default:
			answer(ok+"Content-Length: 2\r\n\r\nok")(ctx, c)
		}
	}
}

type pushedBack struct {
	net.Conn
	first *bytes.Reader
}

func (p *pushedBack) Read(b []byte) (int, error) {
	if p.first.Len() > 0 {
		return p.first.Read(b)
	}
	return p.Conn.Read(b)
}

func TestTLSOfEachKind(t *testing.T) {
	k := newPKI(t)
	both(t, func(t *testing.T, network string) {
		b := serve(t, network, secured(k.serverConfig(t), anything(t)))
		for _, p := range kinds(k.probing(t, "web.internal", nil)) {
			t.Run(p.Kind(), func(t *testing.T) {
				wantError(t, probeOnce(t, p, b.addr), "")
				wantError(t, probeOnce(t, p, b.addr), "")
			})
		}
	})
}

func TestTLSConnectOnly(t *testing.T) {
	k := newPKI(t)
	resumed := make(chan bool, 2)
	b := serve(t, "tcp", func(ctx context.Context, c net.Conn) {
		s := tls.Server(c, k.serverConfig(t))
		if s.HandshakeContext(ctx) == nil {
			resumed <- s.ConnectionState().DidResume
			s.Write([]byte("so that the client reads a ticket"))
		}
		quiet(ctx, c)
	})
	p := TCP{Transport: k.probing(t, "", nil)} // by the address
	for range 2 {
		wantError(t, probeOnce(t, p, b.addr), "")
		if <-resumed {
			t.Error("a session was resumed")
		}
	}
}

func TestTLSReasons(t *testing.T) {
	k := newPKI(t)
	other := tlstest.NewCA(t, "stranger")
	wants := k.serverConfig(t)
	wants.ClientAuth, wants.ClientCAs = tls.RequireAndVerifyClientCert, k.ca.Pool()
	old := k.serverConfig(t)
	old.MaxVersion = tls.VersionTLS12
	cipher := k.serverConfig(t)
	cipher.MaxVersion, cipher.CipherSuites = tls.VersionTLS12, []uint16{tls.TLS_RSA_WITH_AES_128_CBC_SHA}
	cert := func(c *tlsconf.ClientConfig) { c.CertFile, c.KeyFile = k.client.Write(t, k.dir, "client") }
	for _, c := range []struct {
		name   string
		server *tls.Config
		tr     Transport
		want   string // "" for a pass
	}{
		{"client certificate", wants, k.probing(t, "web.internal", cert), ""},
		{"no client certificate", wants, k.probing(t, "web.internal", nil), "it wants a client certificate, and none was shown"},
		{"wrong name", k.serverConfig(t), k.probing(t, "db.internal", nil), "tls: the server's certificate is not valid for db.internal: it names"},
		{"wrong authority", k.serverConfig(t), k.probing(t, "web.internal", func(c *tlsconf.ClientConfig) { c.CAFile = other.Write(t, t.TempDir()) }),
			"tls: the peer's certificate is signed by an authority that is not among the trusted ones"},
		{"versions", old, k.probing(t, "web.internal", func(c *tlsconf.ClientConfig) { c.MinVersion = tls.VersionTLS13 }),
			"tls: the peer refused: it supports none of our TLS versions"},
		{"ciphers", cipher, k.probing(t, "web.internal", nil), "tls: the peer refused: it shares no TLS parameters with us"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := serve(t, "tcp", secured(c.server, anything(t)))
			for _, p := range kinds(c.tr) {
				err := probeOnce(t, p, b.addr)
				wantError(t, err, c.want)
				if atOnce(err) {
					t.Errorf("%s: %v is unhealthy at once", p.Kind(), err)
				}
			}
		})
	}
	plain := serve(t, "tcp", func(_ context.Context, c net.Conn) {
		io.WriteString(c, "SSH-2.0-OpenSSH_9.6\r\n")
		quiet(t.Context(), c)
	})
	unnamed := k.probing(t, "", nil)
	socket := serve(t, "unix", secured(k.serverConfig(t), anything(t)))
	for i := range 3 {
		wantError(t, probeOnce(t, kinds(k.probing(t, "web.internal", nil))[i], plain.addr), "tls: the peer does not speak TLS")
		wantError(t, probeOnce(t, kinds(unnamed)[i], socket.addr), "tls: there is no server name to verify the server's certificate by")
	}
}

func TestTLSStalls(t *testing.T) {
	k := newPKI(t)
	both(t, func(t *testing.T, network string) {
		for _, p := range kinds(k.probing(t, "web.internal", nil)) {
			wantTimeout(t, probeUntil(t, p, network, func(ctx context.Context, c net.Conn, expire func()) {
				c.Read(make([]byte, 1)) // of the ClientHello
				expire()
				<-ctx.Done()
			}), "tls: timed out")
		}
	})
}

func TestProxyHeader(t *testing.T) {
	const v2 = "\r\n\r\n\x00\r\nQUIT\n\x20\x00\x00\x00"
	both(t, func(t *testing.T, network string) {
		for version, size := range map[uint8]int{1: 0, 2: len(v2)} {
			got := make(chan string, 1)
			peer := make(chan net.Addr, 1)
			rest := anything(t)
			b := serve(t, network, func(ctx context.Context, c net.Conn) {
				peer <- c.RemoteAddr()
				var head []byte
				for one := make([]byte, 1); size == 0 && !bytes.HasSuffix(head, []byte("\r\n")) || len(head) < size; head = append(head, one...) {
					if _, err := c.Read(one); err != nil {
						break
					}
				}
				got <- string(head)
				rest(ctx, c)
			})
			for _, p := range kinds(Transport{ProxyVersion: version}) {
				wantError(t, probeOnce(t, p, b.addr), "")
				want, from := v2, <-peer
				switch {
				case version == 1 && network == "unix":
					want = "PROXY UNKNOWN\r\n"
				case version == 1:
					want = fmt.Sprintf("PROXY TCP4 127.0.0.1 127.0.0.1 %d %d\r\n", from.(*net.TCPAddr).Port, b.addr.AddrPort().Port())
				}
				if head := <-got; head != want {
					t.Errorf("%s got %q, want %q", p.Kind(), head, want)
				}
			}
		}
	})
}

func TestProxyHeaderOfIPv6(t *testing.T) {
	l, err := net.Listen("tcp", "[::1]:0")
	if err != nil {
		t.Fatalf("this test needs ::1: %v", err)
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	want := fmt.Sprintf("PROXY TCP6 ::1 ::1 %d %d\r\n", c.LocalAddr().(*net.TCPAddr).Port, l.Addr().(*net.TCPAddr).Port)
	if got := string(proxyHeader(1, c)); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestProxyHeaderBeforeTLS(t *testing.T) {
	k := newPKI(t)
	tr := k.probing(t, "web.internal", nil)
	tr.ProxyVersion = 2
	rest := secured(k.serverConfig(t), anything(t))
	b := serve(t, "tcp", func(ctx context.Context, c net.Conn) {
		if _, err := io.ReadFull(c, make([]byte, 16)); err == nil {
			rest(ctx, c)
		}
	})
	for _, p := range kinds(tr) {
		wantError(t, probeOnce(t, p, b.addr), "")
	}
}

func TestTransportValidate(t *testing.T) {
	for _, err := range []error{
		TCP{Transport: Transport{ProxyVersion: 3}}.Validate(),
		HTTP{Path: "/", Transport: Transport{ProxyVersion: 3}}.Validate(),
		GRPC{Transport: Transport{ProxyVersion: 3}}.Validate(),
	} {
		wantError(t, err, "proxy_protocol: version 3: want 1 or 2")
	}
}

func TestTransportSpec(t *testing.T) {
	seen := make(map[string]bool)
	n := 0
	for _, tr := range []Transport{
		{}, {ProxyVersion: 1}, {ProxyVersion: 2}, {TLS: &TLS{}}, {TLS: &TLS{Identity: "a"}}, {TLS: &TLS{ServerName: "a"}},
		{TLS: &TLS{ALPN: []string{"a"}}}, {TLS: &TLS{ALPN: []string{"a"}}, ProxyVersion: 1},
		{Source4: netip.MustParseAddr("127.0.0.9")}, {Source6: netip.MustParseAddr("::1")}, {Mark: 1}, {Mark: 2},
	} {
		for _, p := range kinds(tr) {
			seen[p.(interface{ Spec() string }).Spec()] = true
			n++
		}
	}
	if len(seen) != n {
		t.Errorf("%d probes have %d specs", n, len(seen))
	}
}

func TestStringsHideSecrets(t *testing.T) {
	tr := Transport{TLS: &TLS{}, ProxyVersion: 2}
	for p, want := range map[Probe]string{
		&TCP{}: "connect",
		&TCP{Send: []byte("AUTH secret"), Receive: [][]byte{[]byte("secret")}, Transport: tr}:           "connect, send 11 bytes, expect 1 blocks over tls behind PROXY v2",
		&HTTP{Path: "/h?token=secret", Host: "web", Headers: http.Header{"Authorization": {"secret"}}}:  `GET /h host "web"`,
		&GRPC{Service: "s", Authority: "a", Metadata: map[string][]string{"authorization": {"secret"}}}: `service "s" authority "a"`,
	} {
		if got := p.String(); got != want || strings.Contains(got, "secret") {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// The deadline is one over all stages: each of them alone would be in time.
func TestOneDeadlineOverAllStages(t *testing.T) {
	k := newPKI(t)
	tr := k.probing(t, "web.internal", nil)
	tr.ProxyVersion = 2
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	wait := func(c net.Conn) { // a third of the time
		t := time.NewTimer(120 * time.Millisecond)
		defer t.Stop()
		<-t.C
	}
	b := serve(t, "tcp", func(ctx context.Context, c net.Conn) {
		if _, err := io.ReadFull(c, make([]byte, 16)); err != nil {
			return
		}
		wait(c)
		s := tls.Server(c, k.serverConfig(t))
		if s.HandshakeContext(ctx) != nil {
			return
		}
		wait(c)
		if _, err := request(s); err != nil {
			return
		}
		io.WriteString(s, ok+"Content-Length: 2\r\n\r\n")
		wait(c)
		io.WriteString(s, "ok")
		quiet(ctx, c)
	})
	wantTimeout(t, HTTP{Path: "/", Transport: tr}.Probe(ctx, b.addr), "timed out")
}
