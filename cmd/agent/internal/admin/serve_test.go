package admin

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"gatehouse.internal/internal/contain"
	"gatehouse.internal/internal/tlsconf"
	"gatehouse.internal/internal/tlsconf/tlstest"
)

// lines is a log that several write to.
type lines struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// serveWith serves h until the test ends, and returns where.
func serveWith(t *testing.T, h http.Handler, cfg ServeConfig) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := Serve(ctx, ln, h, cfg); err != context.Canceled {
			t.Errorf("Serve: %v", err)
		}
	})
	if cfg.TLS != nil {
		wg.Go(func() { cfg.TLS.Run(ctx) })
	}
	t.Cleanup(func() {
		cancel()
		wg.Wait()
	})
	return ln.Addr().String()
}

// Clients show a certificate of the authority or get nothing, and a rotation is in
// force with the next connection.
func TestServeTLS(t *testing.T) {
	dir := t.TempDir()
	ca, other := tlstest.NewCA(t, "operators"), tlstest.NewCA(t, "others")
	caFile := ca.Write(t, dir)
	own := tlstest.NewCA(t, "agents")
	cert, key := own.Issue(t, tlstest.Leaf{Names: []string{"127.0.0.1"}}).Write(t, dir, "admin")
	server, err := tlsconf.NewServer(tlsconf.ServerConfig{
		CertFile: cert, KeyFile: key, ClientCAFile: caFile, RequireClientCert: true, ALPN: []string{"h2", "http/1.1"},
	})
	if err != nil {
		t.Fatal(err)
	}
	var log lines
	at := serveWith(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.Proto) }),
		ServeConfig{TLS: server, Log: slog.New(slog.NewTextHandler(&log, nil))})
	get := func(edit func(*tls.Config), protocols ...string) (string, error) {
		c := &tls.Config{RootCAs: own.Pool(), Certificates: []tls.Certificate{ca.Issue(t, tlstest.Leaf{}).TLS(t)}}
		if edit != nil {
			edit(c)
		}
		tr := &http.Transport{TLSClientConfig: c, DisableKeepAlives: true, Protocols: new(http.Protocols)}
		tr.Protocols.SetHTTP1(len(protocols) == 0)
		tr.Protocols.SetHTTP2(len(protocols) > 0)
		defer tr.CloseIdleConnections()
		resp, err := (&http.Client{Transport: tr, Timeout: 10 * time.Second}).Get("https://" + at)
		if err != nil {
			return "", err
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		return string(body), err
	}
	for want, protocols := range map[string][]string{"HTTP/1.1": nil, "HTTP/2.0": {"h2"}} {
		if got, err := get(nil, protocols...); got != want || err != nil {
			t.Errorf("%q, %v; want %s", got, err, want)
		}
	}
	for name, edit := range map[string]func(*tls.Config){
		"no certificate":       func(c *tls.Config) { c.Certificates = nil },
		"of another authority": func(c *tls.Config) { c.Certificates[0] = other.Issue(t, tlstest.Leaf{}).TLS(t) },
		"expired": func(c *tls.Config) {
			c.Certificates[0] = ca.Issue(t, tlstest.Leaf{NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: time.Now().Add(-time.Hour)}).TLS(t)
		},
		"TLS 1.1":                func(c *tls.Config) { c.MinVersion, c.MaxVersion = tls.VersionTLS10, tls.VersionTLS11 },
		"who trusts others":      func(c *tls.Config) { c.RootCAs = other.Pool() },
		"who wants another name": func(c *tls.Config) { c.ServerName = "elsewhere.internal" },
	} {
		if got, err := get(edit); err == nil {
			t.Errorf("%s: %q", name, got)
		}
	}
	c, err := net.Dial("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fmt.Fprint(c, "GET /live HTTP/1.1\r\nHost: a\r\n\r\n")
	if answer, _ := io.ReadAll(c); strings.Contains(string(answer), " 200 ") {
		t.Errorf("without TLS: %q", answer)
	}
	if n := strings.Count(log.text(), "\n"); n < 1 || n > 20 || !strings.Contains(log.text(), "TLS handshake error") {
		t.Errorf("%d lines: %s", n, log.text())
	}
	// The authority is exchanged: who was let in is not any more.
	tlstest.Replace(t, caFile, other.PEM)
	if err := server.Look(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got, err := get(nil); err == nil {
		t.Errorf("after the rotation the old one gets %q", got)
	}
	if got, err := get(func(c *tls.Config) { c.Certificates[0] = other.Issue(t, tlstest.Leaf{}).TLS(t) }); err != nil {
		t.Errorf("after the rotation the new one: %q, %v", got, err)
	}
}

// Connections over the limit are closed, and a place that is free is taken.
func TestServeConnections(t *testing.T) {
	var log lines
	at := serveWith(t, Handler(Config{Metrics: http.NotFoundHandler()}), // of whom all are let in
		ServeConfig{MaxConnections: 2, Log: slog.New(slog.NewTextHandler(&log, nil))})
	ask := func() (net.Conn, error) {
		c, err := net.Dial("tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		c.SetDeadline(time.Now().Add(10 * time.Second))
		fmt.Fprint(c, "GET /live HTTP/1.1\r\nHost: a\r\n\r\n")
		_, err = io.ReadFull(c, make([]byte, 12))
		return c, err
	}
	var open []net.Conn
	for range 2 {
		c, err := ask()
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		open = append(open, c)
	}
	for range 50 {
		c, err := ask()
		c.Close()
		if err == nil {
			t.Fatal("a third connection was answered")
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal("a third connection waits")
		}
	}
	if n := strings.Count(log.text(), "too many"); n < 1 || n > 30 {
		t.Errorf("%d lines", n)
	}
	open[0].Close()
	for {
		c, err := ask()
		c.Close()
		if err == nil {
			break
		}
		if t.Context().Err() != nil {
			t.Fatal("the place stays taken")
		}
	}
}

// Strangers that hold all places, by asking for what needs no token or by saying nothing,
// lock nobody out who has the token, and who has it keeps its place.
func TestServeStrangers(t *testing.T) {
	dir := t.TempDir()
	own := tlstest.NewCA(t, "agents")
	cert, key := own.Issue(t, tlstest.Leaf{Names: []string{"127.0.0.1"}}).Write(t, dir, "admin")
	secured, err := tlsconf.NewServer(tlsconf.ServerConfig{CertFile: cert, KeyFile: key, ALPN: []string{"http/1.1"}})
	if err != nil {
		t.Fatal(err)
	}
	for name, server := range map[string]*tlsconf.Server{"plain": nil, "TLS": secured} {
		t.Run(name, func(t *testing.T) {
			const places = 4
			h := Handler(Config{Metrics: http.NotFoundHandler(), Token: func() (string, error) { return testToken, nil }})
			at := serveWith(t, h, ServeConfig{TLS: server, MaxConnections: places})
			connect := func() net.Conn {
				c, err := net.Dial("tcp", at)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { c.Close() })
				c.SetDeadline(time.Now().Add(20 * time.Second))
				if server == nil {
					return c
				}
				return tls.Client(c, &tls.Config{RootCAs: own.Pool(), ServerName: "127.0.0.1"})
			}
			ask := func(c net.Conn, path, more string) (string, error) {
				fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: a\r\n%s\r\n", path, more)
				b := make([]byte, 4096)
				n, err := c.Read(b)
				return string(b[:n]), err
			}
			const token = "Authorization: Bearer " + testToken + "\r\n"
			operator := connect()
			if answer, err := ask(operator, "/nosuch", token); err != nil || !strings.Contains(answer, " 404 ") {
				t.Fatalf("the operator: %q, %v", answer, err)
			}
			for n := range 3 * places {
				c := connect()
				if n%2 == 0 {
					if answer, err := ask(c, "/live", ""); err != nil || !strings.Contains(answer, " 200 ") {
						t.Fatalf("stranger %d: %q, %v", n, answer, err)
					}
				}
			}
			if answer, err := ask(operator, "/nosuch", token); err != nil || !strings.Contains(answer, " 404 ") {
				t.Errorf("the operator's connection: %q, %v", answer, err)
			}
			if answer, err := ask(connect(), "/nosuch", token); err != nil || !strings.Contains(answer, " 404 ") {
				t.Errorf("another one of the operator: %q, %v", answer, err)
			}
			// One whose last request lacks the token is a stranger.
			if answer, err := ask(operator, "/live", ""); err != nil || !strings.Contains(answer, " 200 ") {
				t.Errorf("the operator without the token: %q, %v", answer, err)
			}
			for range places {
				if answer, err := ask(connect(), "/live", ""); err != nil || !strings.Contains(answer, " 200 ") {
					t.Fatalf("a stranger: %q, %v", answer, err)
				}
			}
			if answer, err := ask(operator, "/nosuch", token); err == nil {
				t.Errorf("it kept its place: %q", answer)
			}
		})
	}
}

// A client that is slow, or has too much to say, is cut.
func TestServeLimits(t *testing.T) {
	var log lines
	at := serveWith(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "hello") }),
		ServeConfig{Log: slog.New(slog.NewTextHandler(&log, nil))})
	for name, tt := range map[string]struct{ sent, want string }{
		"headers":    {"GET / HTTP/1.1\r\nHost: a\r\nX: " + strings.Repeat("x", 64<<10) + "\r\n\r\n", " 431 "},
		"target":     {"GET /" + strings.Repeat("x", 64<<10) + " HTTP/1.1\r\nHost: a\r\n\r\n", " 431 "},
		"no request": {"\x00\x01\x02\r\n\r\n", " 400 "},
	} {
		c, err := net.Dial("tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		c.SetDeadline(time.Now().Add(20 * time.Second))
		go io.WriteString(c, tt.sent)
		answer := make([]byte, 64)
		n, _ := io.ReadAtLeast(c, answer, 16)
		c.Close()
		if !strings.Contains(string(answer[:n]), tt.want) {
			t.Errorf("%s: %q, want%s", name, answer[:n], tt.want)
		}
	}
	// One that sends nothing is cut after ReadHeaderTimeout.
	c, err := net.Dial("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(30 * time.Second))
	fmt.Fprint(c, "GET / HTTP/1.1\r\nHost:")
	if _, err := io.ReadAll(c); err != nil && errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a header without an end: %v", err)
	}
}

// A request that panics ends without an answer, is counted and told, and the next ones
// are answered.
func TestRequestPanics(t *testing.T) {
	var log strings.Builder
	panics := &contain.Panics{Log: slog.New(slog.NewTextHandler(&log, nil))}
	h := Handler(Config{Metrics: http.NotFoundHandler(), Panics: panics, State: func() (State, []string) { panic("boom") }})
	srv := httptest.NewServer(h)
	defer srv.Close()
	for range 2 {
		if resp, err := srv.Client().Get(srv.URL + "/ready"); err == nil {
			resp.Body.Close()
			t.Errorf("answered with %s", resp.Status)
		}
	}
	resp, err := srv.Client().Get(srv.URL + "/live")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	srv.Close() // and with it those that write to the log
	if n := panics.Count(contain.Request); resp.StatusCode != 200 || n < 2 {
		t.Errorf("%s, %d panics", resp.Status, n)
	}
	if n := strings.Count(log.String(), "a panic was contained"); n != 1 || !strings.Contains(log.String(), "serve_test.go") {
		t.Errorf("%d lines:\n%s", n, log.String())
	}
}
