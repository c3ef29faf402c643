package admin

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"gatehouse.internal/cmd/agent/internal/node"
	"gatehouse.internal/lbcore"
)

const testToken = "0123456789abcdef"

// With a token all paths want it, but for /live and the state of /ready.
func TestBearerToken(t *testing.T) {
	token, broken := testToken, error(nil)
	var log strings.Builder
	cfg := fixtureConfig(fixture(), Initializing, "listeners are not open yet")
	cfg.Token = func() (string, error) { return token, broken }
	cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
	drained := 0
	cfg.Drain = func(bool) { drained++ }
	h := Handler(cfg)
	with := func(method, path, authorization string) *httptest.ResponseRecorder {
		r := httptest.NewRequest(method, path, nil)
		r.Host = "127.0.0.1:9901"
		if authorization != "" {
			r.Header.Set("Authorization", authorization)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w
	}
	basic := httptest.NewRequest("GET", "/", nil)
	basic.SetBasicAuth("anyone", testToken)
	for _, good := range []string{"Bearer " + testToken, basic.Header.Get("Authorization")} {
		if w := with("GET", "/server_info", good); w.Code != 200 {
			t.Errorf("%s: %d", good, w.Code)
		}
		if w := with("GET", "/ready", good); w.Code != 503 || w.Body.String() != "INITIALIZING\nlisteners are not open yet\n" {
			t.Errorf("%s: %d %q", good, w.Code, w.Body)
		}
		before := drained
		if w := with("POST", "/drain_listeners", good); w.Code != 200 || drained != before+1 {
			t.Errorf("%s: %d", good, w.Code)
		}
	}
	basic.SetBasicAuth(testToken, "")
	before := drained
	for _, bad := range []string{"", "Bearer", "Bearer ", "bearer" + testToken, testToken, "Bearer " + testToken + "x", "Bearer " + testToken[:15], "Basic " + testToken, basic.Header.Get("Authorization")} {
		for _, path := range []string{
			"/", "/events", "/clusters", "/listeners", "/server_info", "/stats/prometheus", "/healthchecks", "/config_dump", "/debug/log", "/debug/pprof/heap",
			"/nosuch", "/live/", "/ready/../clusters", clientStatusPath + "FetchClientStatus",
		} {
			w := with("GET", path, bad)
			if w.Code != 401 || len(w.Header().Values("WWW-Authenticate")) != 2 || strings.Contains(w.Body.String(), testToken) {
				t.Errorf("%q %s: %d %s", bad, path, w.Code, w.Body)
			}
		}
		for _, path := range []string{"/drain_listeners", "/reload", "/logging?level=debug", "/endpoints/a/b/disable", "/live/x"} {
			if w := with("POST", path, bad); w.Code != 401 {
				t.Errorf("%q POST %s: %d", bad, path, w.Code)
			}
		}
		if w := with("GET", "/ready", bad); w.Code != 503 || w.Body.String() != "INITIALIZING\n" {
			t.Errorf("%q /ready: %d %q", bad, w.Code, w.Body)
		}
		if w := with("GET", "/live", bad); w.Code != 200 || w.Body.String() != "LIVE\n" {
			t.Errorf("%q /live: %d %q", bad, w.Code, w.Body)
		}
		if w := with("POST", "/ready", bad); w.Code != 405 {
			t.Errorf("%q POST /ready: %d", bad, w.Code)
		}
	}
	if drained != before {
		t.Errorf("%d drains without the token", drained-before)
	}
	// Many refusals are few lines, and none has what was sent.
	if n := strings.Count(log.String(), "\n"); n < 1 || n > 40 || strings.Contains(log.String(), testToken[:15]) {
		t.Errorf("%d lines: %s", n, &log)
	}
	// Another token is in force at once, and none that can't be read is.
	token = strings.Repeat("y", 20)
	if a, b := with("GET", "/server_info", "Bearer "+testToken), with("GET", "/server_info", "Bearer "+token); a.Code != 401 || b.Code != 200 {
		t.Errorf("after a change: %d with the old one, %d with the new", a.Code, b.Code)
	}
	for _, none := range []error{errors.New("gone"), nil} {
		token, broken = "", none
		for _, sent := range []string{"Bearer ", "Bearer " + testToken, ""} {
			if w := with("GET", "/clusters", sent); w.Code != 503 && w.Code != 401 || none != nil && w.Code != 503 {
				t.Errorf("%q without a token to compare with: %d", sent, w.Code)
			}
		}
		if w := with("GET", "/live", ""); w.Code != 200 {
			t.Errorf("/live: %d", w.Code)
		}
	}
}

// A body that is too large, or ends in the middle, is refused before anything is done,
// whether its length was told or not.
func TestBody(t *testing.T) {
	var drained atomic.Int32
	h := Handler(Config{Drain: func(bool) { drained.Add(1) }, Metrics: http.NotFoundHandler(), Token: func() (string, error) { return testToken, nil }})
	at := serveWith(t, h, ServeConfig{})
	post := func(size int, told bool, token string) int {
		t.Helper()
		var body io.Reader = strings.NewReader(strings.Repeat("x", size))
		if !told {
			body = io.MultiReader(body)
		}
		r, err := http.NewRequestWithContext(t.Context(), "POST", "http://"+at+"/drain_listeners", body)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+token)
		tr := &http.Transport{DisableKeepAlives: true}
		resp, err := (&http.Client{Transport: tr, Timeout: 20 * time.Second}).Do(r)
		if err != nil { // the server has closed while the body was sent
			return 0
		}
		defer resp.Body.Close()
		return resp.StatusCode
	}
	for _, told := range []bool{true, false} {
		for _, size := range []int{0, 1, maxBody, maxBody + 1, 64 << 20} {
			before := drained.Load()
			got := post(size, told, testToken)
			done := drained.Load() - before
			if fits := size <= maxBody; fits && (got != 200 || done != 1) || !fits && (got != 413 && got != 0 || done != 0) {
				t.Errorf("%d bytes, their number told %v: %d, done %d times", size, told, got, done)
			}
			if got := post(size, told, "no"); got != 401 && (size <= maxBody || got != 0) {
				t.Errorf("%d bytes without the token: %d", size, got)
			}
		}
	}
	before := drained.Load()
	c, err := net.Dial("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(20 * time.Second))
	fmt.Fprintf(c, "POST /drain_listeners HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer %s\r\nContent-Length: 10\r\n\r\nx", testToken)
	c.(*net.TCPConn).CloseWrite()
	if answer, _ := io.ReadAll(c); strings.Contains(string(answer), " 200 ") || drained.Load() != before {
		t.Errorf("a body that is cut off: %q", answer)
	}
}

// The token is compared in constant time. No test can see times, so this looks at what
// knows does: what was sent and what is wanted go nowhere but into hashes of one length,
// which crypto/subtle compares.
func TestTokenComparison(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "auth.go", nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	var calls, compared []string
	for _, decl := range file.Decls {
		fn, ok := decl.(*ast.FuncDecl)
		if !ok || fn.Name.Name != "knows" {
			continue
		}
		ast.Inspect(fn.Body, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CallExpr:
				if f, ok := n.Fun.(*ast.SelectorExpr); ok {
					calls = append(calls, types.ExprString(f))
				}
			case *ast.BinaryExpr:
				if n.Op != token.LAND && n.Op != token.LOR {
					compared = append(compared, types.ExprString(n))
				}
			case *ast.SwitchStmt, *ast.RangeStmt, *ast.ForStmt:
				t.Errorf("a comparison may hide in a %T", n)
			}
			return true
		})
	}
	if want := []string{"strings.CutPrefix", "r.Header.Get", "r.BasicAuth", "subtle.ConstantTimeCompare", "sha256.Sum256", "sha256.Sum256"}; !sameElements(calls, want) {
		t.Errorf("knows calls %q, want %q", calls, want)
	}
	if want := []string{"subtle.ConstantTimeCompare(a[:], b[:]) == 1", `want != ""`}; !sameElements(compared, want) {
		t.Errorf("knows compares %q, want %q", compared, want)
	}
}

func sameElements(a, b []string) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}

// What changes something is for POST, and nothing else is.
func TestMethods(t *testing.T) {
	h := Handler(fixtureConfig(fixture(), Live))
	for _, method := range []string{"PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "get", "FOO"} {
		for _, path := range []string{"/", "/ready", "/clusters", "/drain_listeners", "/reload", "/logging", "/endpoints/a/127.0.0.1:1/disable"} {
			if w := ask(h, method, path); w.Code != 405 && w.Code != 404 {
				t.Errorf("%s %s: %d", method, path, w.Code)
			}
		}
	}
}

// Whatever is asked, the answer is one, and only what was asked of by POST with the
// token changes something.
func FuzzRequest(f *testing.F) {
	for _, path := range []string{
		"/", "/ready", "/clusters?format=json", "/listeners?format=text", "/connections?limit=1&listener=x", "/config_dump?mask=a.b,c&name_regex=.*&resource=x&include_eds",
		"/explain?cluster=web&selector=a&key=k", "/selectors?cluster=web", "/logging?level=debug", "/endpoints/web/10.0.0.1:80/disable", "/endpoints/%2f/unix:%2f%2f%2fx/enable",
		"/debug/pprof/goroutine?debug=1", "/reload?wait=1ns", "/drain_listeners?graceful", "/envoy.service.status.v3.ClientStatusDiscoveryService/FetchClientStatus",
	} {
		f.Add("GET", path, "", "127.0.0.1:9901", "", []byte(nil), uint8(0), true)
		f.Add("POST", path, "Bearer "+testToken, "localhost", "", []byte("x"), uint8(0), false)
		f.Add("POST", path, "Bearer "+testToken, "localhost", "", bytes.Repeat([]byte("x"), 1000), uint8(100), false)
		f.Add("POST", path, "Bearer "+testToken, "localhost", "", bytes.Repeat([]byte("x"), 1000), uint8(100), true)
		f.Add("POST", path, "Bearer x"+testToken, "localhost", "", []byte(nil), uint8(0), true)
		f.Add("POST", path, "Basic Og==", "evil.example", "https://evil.example", []byte(nil), uint8(0), true)
		f.Add("POST", path, "Bearer "+testToken, "localhost", "", []byte("\x00\x00\x00\x00\x00"), uint8(0), false) // of gRPC
	}
	f.Fuzz(func(t *testing.T, method, target, authorization, host, origin string, part []byte, times uint8, told bool) {
		if len(target) == 0 || target[0] != '/' || strings.HasPrefix(target, "/events") || strings.HasPrefix(target, "/debug/pprof/profile") {
			return // those go on
		}
		body := bytes.Repeat(part[:min(len(part), 2000)], 1+int(times))
		var from io.Reader = bytes.NewReader(body)
		if !told {
			from = io.MultiReader(from)
		}
		r, err := http.NewRequestWithContext(t.Context(), method, "http://h"+target, from)
		if err != nil {
			return
		}
		csds := strings.HasPrefix(r.URL.Path, clientStatusPath)
		if csds {
			r.ProtoMajor, r.ProtoMinor = 2, 0
			r.Header.Set("Content-Type", "application/grpc")
		}
		r.RemoteAddr, r.Host, r.RequestURI = "192.0.2.1:1", host, target
		for name, value := range map[string]string{"Authorization": authorization, "Origin": origin} {
			if value != "" {
				r.Header.Set(name, value)
			}
		}
		cfg := fixtureConfig(fixture(), Live)
		changed := 0
		cfg.Token = func() (string, error) { return testToken, nil }
		cfg.Drain = func(bool) { changed++ }
		cfg.Reload = func(context.Context, time.Duration) (Reload, error) { changed++; return Reload{}, nil }
		cfg.SetEnabled = func(context.Context, string, lbcore.Addr, bool) error { changed++; return nil }
		cfg.Explain = func(string, string, lbcore.Key) (node.Explanation, error) { return node.Explanation{}, node.ErrUnknown }
		cfg.Model = func(string) (node.Model, error) { return node.Model{}, node.ErrUnknown }
		w := httptest.NewRecorder()
		Handler(cfg).ServeHTTP(w, r)
		allowed := hasToken(authorization)
		switch {
		case w.Code < 100 || w.Code > 599:
			t.Errorf("status %d", w.Code)
		case !allowed && w.Code < 400 && r.URL.Path != "/live" && r.URL.Path != "/ready":
			t.Errorf("%s %s with %q: %d", method, target, authorization, w.Code)
		case allowed && w.Code == http.StatusUnauthorized:
			t.Errorf("%s %s with the token: %d", method, target, w.Code)
		case len(body) > maxBody && !csds && w.Code < 400 && (allowed || changed > 0):
			t.Errorf("%s %s with %d bytes: %d", method, target, len(body), w.Code)
		case changed > 0 && (method != "POST" || !allowed || origin != "" && host != "" && !strings.HasSuffix(origin, "//"+host)):
			t.Errorf("%s %s of %q with %q, origin %q, has changed something", method, target, host, authorization, origin)
		}
	})
}

// hasToken is what an authorization should come to.
func hasToken(authorization string) bool {
	scheme, rest, _ := strings.Cut(authorization, " ")
	if scheme == "Bearer" {
		return rest == testToken
	}
	plain, err := base64.StdEncoding.DecodeString(rest)
	_, password, ok := strings.Cut(string(plain), ":")
	return strings.EqualFold(scheme, "Basic") && err == nil && ok && password == testToken
}
