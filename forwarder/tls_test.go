package forwarder

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"gatehouse.internal/internal/tlsconf"
	"gatehouse.internal/internal/tlsconf/tlstest"
	"gatehouse.internal/lbcore"
)

// pki is an authority with a server's and a client's certificate.
type pki struct {
	ca               *tlstest.CA
	dir, caFile      string
	certFile, keyOf  string
	clientCert, ckey string
	client           tlstest.Pair
}

func newPKI(t testing.TB) *pki {
	p := &pki{ca: tlstest.NewCA(t, "test"), dir: t.TempDir()}
	p.caFile = p.ca.Write(t, p.dir)
	p.certFile, p.keyOf = p.ca.Issue(t, tlstest.Leaf{Names: []string{"web.internal", "127.0.0.1"}}).Write(t, p.dir, "server")
	p.client = p.ca.Issue(t, tlstest.Leaf{Names: []string{"spiffe://example.org/client"}})
	p.clientCert, p.ckey = p.client.Write(t, p.dir, "client")
	return p
}

func (p *pki) server(t testing.TB, change ...func(*tlsconf.ServerConfig)) *tlsconf.Server {
	t.Helper()
	cfg := tlsconf.ServerConfig{CertFile: p.certFile, KeyFile: p.keyOf}
	for _, f := range change {
		f(&cfg)
	}
	s, err := tlsconf.NewServer(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (p *pki) mutual(c *tlsconf.ServerConfig) { c.ClientCAFile, c.RequireClientCert = p.caFile, true }

// upstream is a Dial.TLS.
func (p *pki) upstream(t testing.TB, c tlsconf.ClientConfig) func(*lbcore.Member) (*tls.Config, error) {
	t.Helper()
	c.CAFile = p.caFile
	cl, err := tlsconf.NewClient(c)
	if err != nil {
		t.Fatal(err)
	}
	return func(m *lbcore.Member) (*tls.Config, error) { return cl.ConfigFor("", m.Addr().String()), nil }
}

// clientConfig is that of a test's own client.
func (p *pki) clientConfig() *tls.Config {
	return &tls.Config{RootCAs: p.ca.Pool(), ServerName: "web.internal"}
}

func (p *pki) dial(t testing.TB, a lbcore.Addr, cfg *tls.Config) *tls.Conn {
	t.Helper()
	return tls.Client(client(t, a), cfg)
}

// secured serves TLS connections.
func secured(cfg *tls.Config, serve func(*tls.Conn)) func(net.Conn) {
	return func(c net.Conn) {
		s := tls.Server(c, cfg)
		if s.Handshake() == nil {
			serve(s)
			_ = s.Close()
		}
	}
}

// halfEcho answers when the stream has ended, and ends its own.
func halfEcho(c net.Conn) {
	b, err := io.ReadAll(c)
	if err == nil {
		_, _ = c.Write(b)
		closeWrite(c)
	}
}

func TestTLSDownstream(t *testing.T) {
	onEach(t, func(t *testing.T) {
		p := newPKI(t)
		up := newCluster(t, backend(t, anyPort, echo))
		r := start(t, Config{Upstream: up, Settings: Settings{TLS: p.server(t, func(c *tlsconf.ServerConfig) { c.ALPN = []string{"b", "a"} })}})
		cfg := p.clientConfig()
		cfg.NextProtos = []string{"a", "x"}
		c := p.dial(t, r.Addr(), cfg)
		exchange(t, c, "hello")
		if got := c.ConnectionState().NegotiatedProtocol; got != "a" {
			t.Errorf("negotiated %q", got)
		}
		eventually(t, "both ways are counted, while it is open", func() bool { // after the bytes have left
			s := r.Stats()
			return s.Active == 1 && s.BytesIn == 5 && s.BytesOut == 5
		})
		if err := c.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if b, err := io.ReadAll(c); len(b) > 0 || err != nil {
			t.Errorf("%q, %v", b, err)
		}
		if rec := r.record(t); rec.Flag != FlagNone || rec.BytesIn != 5 || rec.BytesOut != 5 || rec.PeerName != "" || rec.ServerName != "web.internal" || rec.Client.String() != c.LocalAddr().String() || rec.Attempts != 1 {
			t.Errorf("%+v", rec)
		}
		if s := r.Stats(); s.Active != 0 || s.Accepted != 1 || s.BytesIn != 5 || s.BytesOut != 5 || s.TLSErrors != 0 {
			t.Errorf("%+v", s)
		}
	})
}

func TestTLSClientCertificate(t *testing.T) {
	onEach(t, func(t *testing.T) {
		p := newPKI(t)
		var log logBuffer
		r := start(t, Config{Upstream: newCluster(t, backend(t, anyPort, echo)), Settings: Settings{TLS: p.server(t, p.mutual)}, Logger: log.logger()})
		cfg := p.clientConfig()
		c := p.dial(t, r.Addr(), cfg)
		if _, err := io.ReadAll(c); err == nil || !strings.Contains(tlsconf.Explain(err).Error(), "certificate required") {
			t.Errorf("without a certificate: %v", err)
		}
		rec := r.record(t)
		if rec.Flag != FlagDC || rec.Err == nil || !strings.HasPrefix(rec.Err.Error(), "tls handshake: ") || rec.Attempts != 0 {
			t.Errorf("%+v", rec)
		}
		if s := r.Stats(); s.TLSErrors != 1 || s.Active != 0 {
			t.Errorf("%+v", s)
		}
		if got := log.String(); !strings.Contains(got, "level=WARN") || !strings.Contains(got, "the client has shown no certificate") {
			t.Errorf("log:\n%s", got)
		}
		cfg.Certificates = []tls.Certificate{p.client.TLS(t)}
		c = p.dial(t, r.Addr(), cfg)
		exchange(t, c, "hello")
		_ = c.Close()
		if rec := r.record(t); rec.PeerName != "spiffe://example.org/client" {
			t.Errorf("%+v", rec)
		}
	})
}

func TestTLSUpstream(t *testing.T) {
	onEach(t, func(t *testing.T) {
		p := newPKI(t)
		seen := make(chan tls.ConnectionState, 4)
		serve := secured(p.server(t, p.mutual, func(c *tlsconf.ServerConfig) { c.ALPN = []string{"a"} }).Config(), func(c *tls.Conn) {
			seen <- c.ConnectionState()
			halfEcho(c)
		})
		// The first does not speak TLS: that fails the dial, not the connection.
		up := newCluster(t, backend(t, anyPort, func(c net.Conn) { _, _ = c.Write([]byte("220 hello\r\n")); hold(c) }), backend(t, anyPort, serve))
		up.dial.TLS = p.upstream(t, tlsconf.ClientConfig{CertFile: p.clientCert, KeyFile: p.ckey, ServerName: "web.internal", ALPN: []string{"a"}})
		r := start(t, Config{Upstream: up})
		c := client(t, r.Addr())
		if _, err := io.WriteString(c, "hello"); err != nil {
			t.Fatal(err)
		}
		closeWrite(c)
		if b, err := io.ReadAll(c); string(b) != "hello" || err != nil {
			t.Errorf("%q, %v", b, err)
		}
		if cs := <-seen; cs.ServerName != "web.internal" || cs.NegotiatedProtocol != "a" || tlsconf.Peer(&cs) != "spiffe://example.org/client" {
			t.Errorf("%+v", cs)
		}
		rec := r.record(t)
		if rec.Flag != FlagNone || rec.Attempts != 2 || rec.Endpoint != up.member(1).Addr() || rec.BytesIn != 5 || rec.BytesOut != 5 {
			t.Errorf("%+v", rec)
		}
		if s := r.Stats(); s.Dials != 2 || s.DialsFailed != 1 || s.Connects != 1 || s.Active != 0 || s.Accepted != 1 {
			t.Errorf("%+v", s)
		}
		if n := len(up.keys); n != 1 {
			t.Errorf("%d selections", n)
		}
		// For outlier detection a handshake is part of the connect.
		if opened, failed, _, _ := up.member(0).Counters(); opened != 0 || failed != 1 {
			t.Errorf("%d connections were opened, %d dials failed", opened, failed)
		}
	})
}

// An endpoint that does not accept the certificate says so after the handshake,
// in TLS 1.3, and the log does too.
func TestTLSUpstreamRefuses(t *testing.T) { onEach(t, testTLSUpstreamRefuses) }

func testTLSUpstreamRefuses(t *testing.T) {
	p, other := newPKI(t), newPKI(t)
	up := newCluster(t, backend(t, anyPort, secured(p.server(t, p.mutual).Config(), func(c *tls.Conn) { halfEcho(c) })))
	up.dial.TLS = p.upstream(t, tlsconf.ClientConfig{ServerName: "web.internal", CertFile: other.clientCert, KeyFile: other.ckey})
	var log logBuffer
	r := start(t, Config{Upstream: up, Logger: log.logger()})
	wantRefused(t, r.Addr())
	rec := r.record(t)
	if rec.Flag != FlagUC || rec.Err == nil || !strings.Contains(rec.Err.Error(), "it does not trust the authority that signed our certificate") {
		t.Errorf("%+v", rec)
	}
	if got := log.String(); !strings.Contains(got, "level=WARN") || !strings.Contains(got, "it does not trust the authority that signed our certificate") {
		t.Errorf("log:\n%s", got)
	}
}

func TestTLSUpstreamNotVerified(t *testing.T) {
	onEach(t, func(t *testing.T) {
		p, other := newPKI(t), newPKI(t)
		up := newCluster(t, backend(t, anyPort, secured(other.server(t).Config(), func(c *tls.Conn) { hold(c) })))
		up.dial.TLS = p.upstream(t, tlsconf.ClientConfig{ServerName: "web.internal"})
		r := start(t, Config{Upstream: up})
		wantRefused(t, r.Addr())
		if rec := r.record(t); rec.Flag != FlagUF || rec.Err == nil || !strings.HasPrefix(rec.Err.Error(), "tls handshake: ") {
			t.Errorf("%+v", rec)
		}
	})
}

// TestTLSHalfClose has TLS on both sides, and each of them end its stream first.
func TestTLSHalfClose(t *testing.T) {
	onEach(t, func(t *testing.T) {
		p := newPKI(t)
		up := newCluster(t, backend(t, anyPort, secured(p.server(t).Config(), func(c *tls.Conn) {
			_, _ = io.WriteString(c, "first")
			b := make([]byte, 1)
			if _, err := io.ReadFull(c, b); err != nil {
				return
			}
			if b[0] == 'e' { // the endpoint ends first, and wants all that follows
				_ = c.CloseWrite()
				hold(c)
				return
			}
			halfEcho(c)
		})))
		up.dial.TLS = p.upstream(t, tlsconf.ClientConfig{ServerName: "web.internal"})
		r := start(t, Config{Upstream: up, Settings: Settings{TLS: p.server(t)}})
		for _, kind := range []string{"e", "c"} {
			c := p.dial(t, r.Addr(), p.clientConfig())
			_, _ = io.WriteString(c, kind)
			want := "first"
			if kind == "e" {
				if b, err := io.ReadAll(c); string(b) != want || err != nil {
					t.Errorf("%q, %v", b, err)
				}
			}
			_, _ = io.WriteString(c, "the rest")
			_ = c.CloseWrite()
			if kind == "c" {
				if b, err := io.ReadAll(c); string(b) != want+"the rest" || err != nil {
					t.Errorf("%q, %v", b, err)
				}
			}
			if rec := r.record(t); rec.Flag != FlagNone || rec.BytesIn != 9 {
				t.Errorf("%s: %+v", kind, rec)
			}
		}
	})
}

// TestTLSTruncated ends the TCP stream between two records.
func TestTLSTruncated(t *testing.T) {
	onEach(t, func(t *testing.T) {
		p := newPKI(t)
		ended := make(chan error, 1)
		up := newCluster(t, backend(t, anyPort, func(c net.Conn) { _, err := io.ReadAll(c); ended <- err }))
		r := start(t, Config{Upstream: up, Settings: Settings{TLS: p.server(t)}})
		raw := client(t, r.Addr())
		c := tls.Client(raw, p.clientConfig())
		_, _ = io.WriteString(c, "half of")
		closeWrite(raw)
		if err := <-ended; err == nil {
			t.Error("the endpoint saw an end in order")
		}
		if rec := r.record(t); rec.Flag != FlagDC || !errors.Is(rec.Err, io.ErrUnexpectedEOF) || rec.BytesIn != 7 {
			t.Errorf("%+v", rec)
		}
	})
}

func TestTLSReset(t *testing.T) {
	onEach(t, func(t *testing.T) {
		p := newPKI(t)
		up := newCluster(t, backend(t, anyPort, func(c net.Conn) {
			_, _ = io.WriteString(c, "before")
			_, _ = io.ReadFull(c, make([]byte, 1))
			reset(c)
		}))
		r := start(t, Config{Upstream: up, Settings: Settings{TLS: p.server(t)}})
		c := p.dial(t, r.Addr(), p.clientConfig())
		_, _ = io.WriteString(c, "x")
		if got := wantReset(t, c); string(got) != "before" {
			t.Errorf("%q", got)
		}
		if rec := r.record(t); rec.Flag != FlagUC {
			t.Errorf("%+v", rec)
		}
	})
}

// A client that resets while nothing is being read is told apart from one that
// ends its stream without a close_notify.
func TestTLSClientReset(t *testing.T) {
	onEach(t, func(t *testing.T) {
		p := newPKI(t)
		r := start(t, Config{Upstream: newCluster(t, backend(t, anyPort, echo)), Settings: Settings{TLS: p.server(t)}})
		c := p.dial(t, r.Addr(), p.clientConfig())
		exchange(t, c, "hello")
		reset(c.NetConn())
		if rec := r.record(t); rec.Flag != FlagDC || !errors.Is(rec.Err, syscall.ECONNRESET) {
			t.Errorf("%v: %v", rec.Flag, rec.Err)
		}
	})
}

func TestTLSBulk(t *testing.T) {
	onEach(t, func(t *testing.T) {
		const size = 16 << 20
		p := newPKI(t)
		up := newCluster(t, backend(t, anyPort, secured(p.server(t).Config(), func(c *tls.Conn) { echo(c); _ = c.CloseWrite() })))
		up.dial.TLS = p.upstream(t, tlsconf.ClientConfig{ServerName: "web.internal"})
		r := start(t, Config{Upstream: up, Settings: Settings{TLS: p.server(t)}})
		c := p.dial(t, r.Addr(), p.clientConfig())
		if err := c.Handshake(); err != nil {
			t.Fatal(err)
		}
		sent, got := sha256.New(), sha256.New()
		var wg sync.WaitGroup
		wg.Go(func() {
			src := rand.NewChaCha8([32]byte{1})
			_, _ = io.Copy(io.MultiWriter(c, sent), io.LimitReader(src, size))
			_ = c.CloseWrite()
		})
		n, err := io.Copy(got, c)
		wg.Wait()
		if n != size || err != nil || string(sent.Sum(nil)) != string(got.Sum(nil)) {
			t.Errorf("%d bytes, %v, or they differ", n, err)
		}
		if rec := r.record(t); rec.Flag != FlagNone || rec.BytesIn != size || rec.BytesOut != size {
			t.Errorf("%+v", rec)
		}
	})
}

// TestTLSGarbage sends what is no ClientHello.
func TestTLSGarbage(t *testing.T) {
	onEach(t, func(t *testing.T) {
		p := newPKI(t)
		r := start(t, Config{Upstream: newCluster(t, backend(t, anyPort, echo)), Settings: Settings{TLS: p.server(t)}})
		live := p.dial(t, r.Addr(), p.clientConfig())
		exchange(t, live, "before")
		long := "\x16\x03\x01\xff\xff" + strings.Repeat("x", 70000)
		for i, msg := range []string{"GET / HTTP/1.1\r\n\r\n", "\x00", "\x16\x03\x01\x00\x05hello", long, ""} {
			c := client(t, r.Addr())
			_, _ = io.WriteString(c, msg)
			closeWrite(c)
			_, _ = io.Copy(io.Discard, c)
			if rec := r.record(t); rec.Flag != FlagDC || rec.Err == nil || rec.Attempts != 0 {
				t.Errorf("%d: %+v", i, rec)
			}
		}
		exchange(t, live, "after")
		if s := r.Stats(); s.TLSErrors != 5 || s.Active != 1 {
			t.Errorf("%+v", s)
		}
	})
}

func TestTLSHandshakeBound(t *testing.T) {
	onEach(t, func(t *testing.T) {
		p := newPKI(t)
		r := start(t, Config{Upstream: newCluster(t, backend(t, anyPort, echo)), Settings: Settings{TLS: p.server(t), MaxHandshakes: 2}})
		live := p.dial(t, r.Addr(), p.clientConfig())
		exchange(t, live, "one")
		silent := []net.Conn{client(t, r.Addr()), client(t, r.Addr())}
		eventually(t, "two handshakes", func() bool { return r.counters.handshakes.Load() == 2 })
		wantRefused(t, r.Addr())
		if rec := r.record(t); rec.Flag != FlagOM || rec.Err != errHandshakes {
			t.Errorf("%+v", rec)
		}
		exchange(t, live, "two")
		_ = silent[0].Close()
		r.record(t)
		exchange(t, p.dial(t, r.Addr(), p.clientConfig()), "three")
		if s := r.Stats(); s.Flags[FlagOM] != 1 || s.Over[LimitHandshakes] != 1 || s.TLSErrors != 1 {
			t.Errorf("%+v", s)
		}
	})
}

func TestTLSHandshakeTimeout(t *testing.T) {
	srv := newPKI(t).server(t)
	for _, limit := range []time.Duration{0, 3 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			w := newMemWorld(t, Config{Settings: Settings{TLS: srv, HandshakeTimeout: limit}})
			begun := time.Now()
			c := w.ln.connect()
			after(time.Second)
			write(t, c, "\x16\x03\x01") // one byte more or less changes nothing
			wantReset(t, c)
			want := limit
			if limit == 0 {
				want = 15 * time.Second
			}
			if d := time.Since(begun); d != want {
				t.Errorf("after %v, want %v", d, want)
			}
			if rec := w.record(t); rec.Flag != FlagDC || rec.Err != errHandshakeTimeout {
				t.Errorf("%+v", rec)
			}
			if s := w.Stats(); s.TLSErrors != 1 || s.Active != 0 {
				t.Errorf("%+v", s)
			}
		})
	}
}

// TestTLSUpstreamTimeout has an endpoint that accepts and says nothing.
func TestTLSUpstreamTimeout(t *testing.T) {
	conf := newPKI(t).upstream(t, tlsconf.ClientConfig{ServerName: "web.internal"})
	synctest.Test(t, func(t *testing.T) {
		up := newCluster(t, lbcore.IPAddr(netip.MustParseAddrPort("192.0.2.2:80")))
		up.dial.TLS = conf
		up.dial.Timeout = 2 * time.Second
		w := newMemWorld(t, Config{Upstream: up})
		begun := time.Now()
		wantReset(t, w.ln.connect())
		if d := time.Since(begun); d != 2*time.Second {
			t.Errorf("after %v", d)
		}
		if rec := w.record(t); rec.Flag != FlagUF || !errors.Is(rec.Err, context.DeadlineExceeded) {
			t.Errorf("%+v", rec)
		}
		if s := w.Stats(); s.DialsFailed != 1 || s.DialsAbandoned != 0 {
			t.Errorf("%+v", s)
		}
	})
}

func TestTLSCut(t *testing.T) {
	onEach(t, func(t *testing.T) {
		p := newPKI(t)
		r := start(t, Config{Upstream: newCluster(t, backend(t, anyPort, echo)), Settings: Settings{TLS: p.server(t)}})
		live := p.dial(t, r.Addr(), p.clientConfig())
		exchange(t, live, "one")
		silent := client(t, r.Addr())
		eventually(t, "a handshake", func() bool { return r.counters.handshakes.Load() == 1 })
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if n := r.Drain(ctx); n != 2 {
			t.Errorf("cut %d", n)
		}
		wantReset(t, live)
		wantReset(t, silent)
		for range 2 {
			if rec := r.record(t); rec.Flag != FlagLR {
				t.Errorf("%+v", rec)
			}
		}
	})
}

func TestTLSRotation(t *testing.T) {
	onEach(t, func(t *testing.T) {
		p := newPKI(t)
		srv := p.server(t)
		ctx, cancel := context.WithCancel(context.Background())
		var wg sync.WaitGroup
		wg.Go(func() { _ = srv.Run(ctx) })
		t.Cleanup(func() { cancel(); wg.Wait() })
		r := start(t, Config{Upstream: newCluster(t, backend(t, anyPort, echo)), Settings: Settings{TLS: srv}})
		live := p.dial(t, r.Addr(), p.clientConfig())
		exchange(t, live, "one")
		next := p.ca.Issue(t, tlstest.Leaf{Names: []string{"web.internal"}, CommonName: "next"})
		tlstest.Replace(t, filepath.Clean(p.keyOf), next.KeyPEM)
		tlstest.Replace(t, filepath.Clean(p.certFile), next.CertPEM)
		eventually(t, "a rotation", func() bool { return srv.Status().Generation > 1 })
		exchange(t, live, "two")
		c := p.dial(t, r.Addr(), p.clientConfig())
		exchange(t, c, "three")
		if cn := c.ConnectionState().PeerCertificates[0].Subject.CommonName; cn != "next" {
			t.Errorf("the certificate is that of %q", cn)
		}
	})
}

// The second connection resumes the session of the first, with clients and with
// endpoints; with new files once a full handshake is made.
func TestTLSResumes(t *testing.T) { onEach(t, testTLSResumes) }

func testTLSResumes(t *testing.T) {
	p, q := newPKI(t), newPKI(t) // of clients, and of endpoints
	resumed := make(chan bool, 1)
	endpoint := q.server(t, q.mutual).Config()
	up := newCluster(t, backend(t, anyPort, secured(endpoint, func(c *tls.Conn) {
		resumed <- c.ConnectionState().DidResume
		halfEcho(c)
	})))
	out, err := tlsconf.NewClient(tlsconf.ClientConfig{CAFile: q.caFile, CertFile: q.clientCert, KeyFile: q.ckey, ServerName: "web.internal"})
	if err != nil {
		t.Fatal(err)
	}
	in := p.server(t)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = in.Run(ctx) })
	wg.Go(func() { _ = out.Run(ctx) })
	t.Cleanup(func() { cancel(); wg.Wait() })
	up.dial.TLS = func(m *lbcore.Member) (*tls.Config, error) { return out.ConfigFor("", m.Addr().String()), nil }
	r := start(t, Config{Upstream: up, Settings: Settings{TLS: in}})
	conf := p.clientConfig()
	conf.ClientSessionCache = tls.NewLRUClientSessionCache(4)
	connect := func(step string, down, up bool) {
		t.Helper()
		c := p.dial(t, r.Addr(), conf)
		_, _ = io.WriteString(c, "hello")
		_ = c.CloseWrite()
		if b, err := io.ReadAll(c); string(b) != "hello" || err != nil { // with it the tickets have come
			t.Fatalf("%s: %q, %v", step, b, err)
		}
		if got := c.ConnectionState().DidResume; got != down {
			t.Errorf("%s: resumed with the listener: %v", step, got)
		}
		if got := <-resumed; got != up {
			t.Errorf("%s: resumed with the endpoint: %v", step, got)
		}
		r.record(t)
	}
	connect("first", false, false)
	connect("second", true, true)
	p.ca.Issue(t, tlstest.Leaf{Names: []string{"web.internal"}}).Write(t, p.dir, "server")
	eventually(t, "the listener's rotation", func() bool { return in.Status().Generation == 2 })
	connect("listener rotated", false, true)
	connect("and once more", true, true)
	q.ca.Issue(t, tlstest.Leaf{Names: []string{"spiffe://example.org/client"}}).Write(t, q.dir, "client")
	eventually(t, "the client's rotation", func() bool { return out.Status().Generation == 2 })
	connect("client rotated", true, false)
	connect("and once more", true, true)
}
