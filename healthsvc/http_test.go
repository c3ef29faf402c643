package healthsvc

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"gatehouse.internal/lbcore"
)

// request reads the header of a request, whole and as sent.
func request(c net.Conn) (string, error) {
	var b strings.Builder
	r := bufio.NewReader(c)
	for {
		line, err := r.ReadString('\n')
		b.WriteString(line)
		if err != nil || line == "\r\n" {
			return b.String(), err
		}
	}
}

// answer replies with text to any request and then waits for the peer.
func answer(text string) func(context.Context, net.Conn) {
	return func(_ context.Context, c net.Conn) {
		if _, err := request(c); err != nil {
			return
		}
		io.WriteString(c, text)
		if !strings.Contains(text, "Content-Length") && !strings.Contains(text, "chunked") {
			c.(interface{ CloseWrite() error }).CloseWrite()
		}
		io.Copy(io.Discard, c)
	}
}

const ok = "HTTP/1.1 200 OK\r\n"

func TestHTTPAnswers(t *testing.T) {
	both(t, func(t *testing.T, network string) {
		for _, c := range []struct {
			name   string
			p      HTTP
			answer string
			want   string // part of the error, "" for a pass
			atOnce bool
		}{
			{"ok", HTTP{}, ok + "Content-Length: 2\r\n\r\nok", "", false},
			{"ok without a body", HTTP{}, ok + "Content-Length: 0\r\n\r\n", "", false},
			{"ok until close", HTTP{}, ok + "\r\nhello", "", false},
			{"ok in chunks", HTTP{}, ok + "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", "", false},
			{"http 1.0", HTTP{}, "HTTP/1.0 200 OK\r\n\r\n", "", false},
			{"head", HTTP{Method: "HEAD"}, ok + "Content-Length: 999\r\n\r\n", "", false},
			{"interim", HTTP{}, "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + ok + "Content-Length: 0\r\n\r\n", "", false},
			{"expected", HTTP{Expected: []StatusRange{{200, 300}, {404, 405}}}, "HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n", "", false},
			{"not expected", HTTP{}, "HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n", "status 503: want 200", true},
			{"end of the range", HTTP{Expected: []StatusRange{{201, 300}}}, "HTTP/1.1 300 X\r\nContent-Length: 0\r\n\r\n", "status 300: want 201-299", true},
			{"200 not expected", HTTP{Expected: []StatusRange{{201, 203}, {203, 205}}}, ok + "Content-Length: 0\r\n\r\n", "status 200: want 201-204", true},
			{"retriable", HTTP{Retriable: []StatusRange{{503, 504}}}, "HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n", "status 503: want 200", false},
			{"expected wins", HTTP{Retriable: []StatusRange{{200, 300}}}, ok + "Content-Length: 0\r\n\r\n", "", false},
			{"switching protocols", HTTP{}, "HTTP/1.1 101 X\r\nUpgrade: x\r\nConnection: upgrade\r\nContent-Length: 0\r\n\r\n", "status 101: want 200", true},
			{"not http", HTTP{}, "SSH-2.0-OpenSSH_9.6\r\n", "response: malformed HTTP", false},
			{"closed", HTTP{}, "", "response: connection closed by the peer", false},
			{"half a header", HTTP{}, ok + "A: b", "response: connection closed by the peer", false},
			{"endless header", HTTP{}, ok + strings.Repeat("A: b\r\n", 20_000) + "Content-Length: 0\r\n\r\n", "response: header of more than 65536 bytes", false},
			{"endless interim", HTTP{}, strings.Repeat("HTTP/1.1 103 X\r\n\r\n", 5_000) + "Content-Length: 0\r\n", "response: header of more than 65536 bytes", false},
			{"large body", HTTP{}, ok + "Content-Length: 9999999999\r\n\r\n" + strings.Repeat("x", MaxBody), "", false},
			{"bad chunk", HTTP{}, ok + "Transfer-Encoding: chunked\r\n\r\nzz\r\n", "status 200, body: invalid byte in chunk length", false},
		} {
			t.Run(c.name, func(t *testing.T) {
				b := serve(t, network, answer(c.answer))
				c.p.Path = "/"
				err := probeOnce(t, c.p, b.addr)
				wantError(t, err, c.want)
				if _, atOnce := errors.AsType[*ImmediateError](err); atOnce != c.atOnce {
					t.Errorf("unhealthy at once: %t", atOnce)
				}
			})
		}
	})
}

// Source: Envoy, x-envoy-degraded.
func TestHTTPDegraded(t *testing.T) {
	for head, want := range map[string]error{
		"":                               nil,
		"X-Envoy-Degraded: true\r\n":     ErrDegraded,
		"x-envoy-degraded:\r\n":          ErrDegraded,
		"X-Envoy-Degraded-Not: true\r\n": nil,
	} {
		b := serve(t, "tcp", answer(ok+head+"Content-Length: 2\r\n\r\nok"))
		if err := probeOnce(t, HTTP{Path: "/"}, b.addr); err != want {
			t.Errorf("%q: %v, want %v", head, err, want)
		}
	}
	b := serve(t, "tcp", answer("HTTP/1.1 503 Busy\r\nX-Envoy-Degraded: true\r\nContent-Length: 0\r\n\r\n"))
	wantError(t, probeOnce(t, HTTP{Path: "/"}, b.addr), "status 503")
}

func TestHTTPTruncatedBody(t *testing.T) {
	b := serve(t, "tcp", func(_ context.Context, c net.Conn) {
		if _, err := request(c); err == nil {
			io.WriteString(c, ok+"Content-Length: 10\r\n\r\nabc")
		}
	})
	wantError(t, probeOnce(t, HTTP{Path: "/"}, b.addr), "status 200, body: connection closed by the peer")
}

func TestHTTPTimeouts(t *testing.T) {
	for name, c := range map[string]struct{ head, again, want string }{
		"silent": {"", "", "response: timed out"},
		// Every read succeeds, and still the time runs out. The probe may not
		// have read the header by then, so where it was is open.
		"slow header":         {ok, "A: b\r\n", "response: timed out"},
		"slow endless body":   {ok + "\r\n", "x", "timed out"},
		"slow endless chunks": {ok + "Transfer-Encoding: chunked\r\n\r\n", "1\r\nx\r\n", "timed out"},
	} {
		t.Run(name, func(t *testing.T) {
			both(t, func(t *testing.T, network string) {
				err := probeUntil(t, HTTP{Path: "/"}, network, func(ctx context.Context, conn net.Conn, expire func()) {
					if _, err := request(conn); err != nil {
						t.Error(err)
					}
					io.WriteString(conn, c.head)
					tick := time.NewTicker(time.Millisecond)
					defer tick.Stop()
					for i := 0; ; i++ {
						if i == 30 {
							expire()
						}
						if c.again == "" {
							// silent
						} else if _, err := conn.Write([]byte{c.again[i%len(c.again)]}); err != nil {
							return // the probe is gone
						}
						select {
						case <-tick.C:
						case <-ctx.Done():
							return
						}
					}
				})
				wantTimeout(t, err, c.want)
			})
		})
	}
}

func TestHTTPRequestAsSent(t *testing.T) {
	for _, c := range []struct {
		name    string
		network string
		p       HTTP
		want    string // ADDR stands for the probed address
	}{
		{"least", "tcp", HTTP{Path: "/"},
			"GET / HTTP/1.1\r\nHost: ADDR\r\nConnection: close\r\nUser-Agent: gatehouse-health-check\r\n\r\n"},
		{"unix", "unix", HTTP{Path: "/"},
			"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nUser-Agent: gatehouse-health-check\r\n\r\n"},
		{"most", "tcp", HTTP{Method: "OPTIONS", Path: "//a%2fb/c?d=e&f=%20", Host: "web.internal:8080",
			Headers: http.Header{"x-b": {"1", "2"}, "User-Agent": {"me"}, "X-A": {"3"}}},
			"OPTIONS //a%2fb/c?d=e&f=%20 HTTP/1.1\r\nHost: web.internal:8080\r\nConnection: close\r\nUser-Agent: me\r\n" +
				"X-A: 3\r\nX-B: 1\r\nX-B: 2\r\n\r\n"},
		{"name of a mesh", "tcp", HTTP{Method: "POST", Path: "/", Host: "outbound|80||web.default"},
			"POST / HTTP/1.1\r\nHost: outbound|80||web.default\r\nConnection: close\r\nContent-Length: 0\r\n" +
				"User-Agent: gatehouse-health-check\r\n\r\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if err := c.p.Validate(); err != nil {
				t.Fatal(err)
			}
			seen := make(chan string, 1)
			b := serve(t, c.network, func(_ context.Context, conn net.Conn) {
				r, _ := request(conn)
				seen <- r
				io.WriteString(conn, ok+"Content-Length: 0\r\n\r\n")
			})
			// A proxy in the environment must not matter.
			t.Setenv("HTTP_PROXY", "http://127.0.0.1:1")
			t.Setenv("http_proxy", "http://127.0.0.1:1")
			wantError(t, probeOnce(t, c.p, b.addr), "")
			if got, want := <-seen, strings.ReplaceAll(c.want, "ADDR", b.addr.String()); got != want {
				t.Errorf("sent %q, want %q", got, want)
			}
		})
	}
}

func TestHTTPFollowsNoRedirectAndReusesNothing(t *testing.T) {
	target := serve(t, "tcp", answer(ok+"Content-Length: 0\r\n\r\n"))
	b := serve(t, "tcp", answer("HTTP/1.1 302 Found\r\nLocation: http://"+target.addr.String()+"/\r\nContent-Length: 0\r\n\r\n"))
	p := HTTP{Path: "/"}
	wantError(t, probeOnce(t, p, b.addr), "status 302: want 200")
	p.Expected = []StatusRange{{200, 400}}
	for range 3 {
		wantError(t, probeOnce(t, p, b.addr), "")
	}
	if b.accepts.Load() != 4 || target.accepts.Load() != 0 {
		t.Errorf("%d connections to the backend, %d to where it redirects", b.accepts.Load(), target.accepts.Load())
	}
}

func TestHTTPAgainstNetHTTP(t *testing.T) {
	both(t, func(t *testing.T, network string) {
		l, err := net.Listen(network, map[string]string{"tcp": "127.0.0.1:0", "unix": t.TempDir() + "/s"}[network])
		if err != nil {
			t.Fatal(err)
		}
		a, err := lbcore.ParseAddr(map[string]string{"tcp": "", "unix": "unix://"}[network] + l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Host != "web" || r.URL.RequestURI() != "/health?x=1" {
				w.WriteHeader(http.StatusBadRequest)
			}
			io.WriteString(w, strings.Repeat("x", 10_000))
		})}
		done := make(chan error, 1)
		go func() { done <- srv.Serve(l) }()
		defer func() {
			srv.Close()
			<-done
		}()
		wantError(t, probeOnce(t, HTTP{Path: "/health?x=1", Host: "web"}, a), "")
		wantError(t, probeOnce(t, HTTP{Path: "/health?x=1", Host: "other"}, a), "status 400")
	})
}

func TestHTTPValidate(t *testing.T) {
	for _, c := range []struct {
		p    HTTP
		want string
	}{
		{HTTP{Path: "/"}, ""},
		{HTTP{Method: "HEAD", Path: "/a?b", Host: "[::1]:80", Headers: http.Header{"X-A": {"b\tc"}}, Expected: []StatusRange{{100, 600}}}, ""},
		{HTTP{}, `path "": must begin with a slash`},
		{HTTP{Path: "health"}, "must begin with a slash"},
		{HTTP{Path: "http://a/"}, "must begin with a slash"},
		{HTTP{Path: "/a b"}, "must have no space"},
		{HTTP{Path: "/a\r\nX: y"}, "must have no space"},
		{HTTP{Path: "/a#b"}, "must have no space, control character or #"},
		{HTTP{Path: "/%zz"}, "invalid URL escape"},
		{HTTP{Path: "/", Method: "CONNECT"}, "method CONNECT"},
		{HTTP{Path: "/", Method: "GE T"}, "not a method name"},
		{HTTP{Path: "/", Host: "*"}, "a wildcard names no host"},
		{HTTP{Path: "/", Host: "*.example.com"}, "a wildcard names no host"},
		{HTTP{Path: "/", Host: "a b"}, "want a host name"},
		{HTTP{Path: "/", Host: "a\r\nX: y"}, "want a host name"},
		{HTTP{Path: "/", Host: "a/b"}, "want a host name"},
		{HTTP{Path: "/", Headers: http.Header{"host": {"a"}}}, "set host instead"},
		{HTTP{Path: "/", Headers: http.Header{"content-length": {"1"}}}, "frames its request"},
		{HTTP{Path: "/", Headers: http.Header{"a b": {"1"}}}, "not a header name"},
		{HTTP{Path: "/", Headers: http.Header{"": {"1"}}}, "not a header name"},
		{HTTP{Path: "/", Headers: http.Header{"A": {"1\r\nB: 2"}}}, "control character"},
		{HTTP{Path: "/", Expected: []StatusRange{{99, 200}}}, "expected_statuses: from 99"},
		{HTTP{Path: "/", Expected: []StatusRange{{200, 200}}}, "expected_statuses: from 200"},
		{HTTP{Path: "/", Retriable: []StatusRange{{200, 601}}}, "retriable_statuses: from 200 up to, not including, 601"},
	} {
		wantError(t, c.p.Validate(), c.want)
	}
}

func TestHTTPSpec(t *testing.T) {
	same := [][]HTTP{
		{{Path: "/"}, {Method: "GET", Path: "/"}, {Path: "/", Expected: []StatusRange{{200, 201}}}},
		{{Path: "/", Host: "a"}},
		{{Path: "/a"}},
		{{Path: "/", Method: "HEAD"}},
		{
			{Path: "/", Expected: []StatusRange{{200, 300}, {404, 405}}},
			{Path: "/", Expected: []StatusRange{{404, 405}, {250, 300}, {200, 250}, {210, 220}}},
		},
		{{Path: "/", Retriable: []StatusRange{{404, 405}}}},
		{{Path: "/", Headers: http.Header{"X-A": {"1"}, "X-B": {"2"}}}, {Path: "/", Headers: http.Header{"x-b": {"2"}, "x-a": {"1"}}}},
		{{Path: "/", Headers: http.Header{"X-A": {"1", "2"}}}},
		{{Path: "/", Headers: http.Header{"X-A": {`1" "2`}}}},
	}
	specs := make(map[string]int)
	for i, group := range same {
		for _, p := range group {
			if j, found := specs[p.Spec()]; found && i != j {
				t.Errorf("%+v has the text of group %d: %s", p, j, p.Spec())
			} else if !found && p.Spec() != group[0].Spec() {
				t.Errorf("%s, but %s", p.Spec(), group[0].Spec())
			}
			specs[p.Spec()] = i
		}
	}
	if got, want := (HTTP{Path: "/x", Host: "h"}).Spec(), `http GET "/x" host="h" expected=[200] retriable=[]`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	// Spec must not reorder what it was given.
	given := []StatusRange{{404, 405}, {200, 300}}
	if (HTTP{Path: "/", Expected: given}).Spec(); given[0].Start != 404 {
		t.Errorf("Spec changed its receiver: %v", given)
	}
}
