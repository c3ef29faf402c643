package admin

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"gatehouse.internal/cmd/agent/internal/config"
	"gatehouse.internal/cmd/agent/internal/node"
	"gatehouse.internal/lbcore"
)

// Who is not from here changes nothing, and a browser on behalf of who is not from
// here reads nothing either, whether it says that it is one or not.
func TestGuard(t *testing.T) {
	done := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "done") })
	hosts := []string{"node-7", ""}
	free := guard(&Config{Hosts: hosts}, done)
	withToken := guard(&Config{Hosts: hosts, Token: func() (string, error) { return "", nil }}, done)
	for _, tt := range []struct {
		name, method, host string
		path               string
		unix, token, tls   bool
		headers            map[string]string
		want               int
	}{
		{name: "address", method: "POST", host: "127.0.0.1:9901", want: 200},
		{name: "address of IPv6", method: "POST", host: "[::1]:9901", want: 200},
		{name: "address without port", method: "POST", host: "::1", want: 200},
		{name: "localhost", method: "POST", host: "LocalHost:9901", want: 200},
		{name: "name of the host", method: "POST", host: "Node-7.:9901", want: 200},
		{name: "another name", method: "POST", host: "evil.example:9901", want: 403},
		{name: "no name", method: "POST", host: "", want: 403},
		{name: "any name of a unix socket", method: "POST", host: "admin", unix: true, want: 200},
		{name: "a reader by the address", method: "GET", host: "127.0.0.1:9901", want: 200},
		{name: "a reader that names nobody", method: "GET", host: "", want: 200},
		{name: "a reader by another name", method: "GET", host: "evil.example:9901", want: 403},
		{name: "a reader by another name, of metrics", method: "GET", path: "/stats/prometheus", host: "evil.example:9901", want: 403},
		{name: "a check by another name", method: "GET", path: "/ready", host: "health.example:9901", want: 200},
		{name: "a reader by another name, with the token", method: "GET", host: "metrics.example:9901", token: true, want: 200},
		{name: "a reader by another name, by TLS", method: "GET", host: "metrics.example:9901", tls: true, want: 200},
		{name: "another name, with the token", method: "POST", host: "metrics.example:9901", token: true, want: 403},
		{name: "a browser by another name, with the token", method: "GET", host: "evil.example:9901", token: true, headers: map[string]string{"Sec-Fetch-Site": "none"}, want: 403},
		{name: "a browser by another name", method: "GET", host: "evil.example:9901", headers: map[string]string{"Sec-Fetch-Site": "same-origin"}, want: 403},
		{name: "a browser by another name, with its origin", method: "POST", host: "evil.example:9901", headers: map[string]string{"Origin": "http://evil.example:9901"}, want: 403},
		{name: "its own page", method: "POST", host: "127.0.0.1:9901", headers: map[string]string{"Origin": "http://127.0.0.1:9901", "Sec-Fetch-Site": "same-origin"}, want: 200},
		{name: "another page", method: "POST", host: "127.0.0.1:9901", headers: map[string]string{"Origin": "http://evil.example"}, want: 403},
		{name: "another page, without its origin", method: "POST", host: "127.0.0.1:9901", headers: map[string]string{"Sec-Fetch-Site": "cross-site"}, want: 403},
		{name: "what another page reads", method: "GET", path: "/events", host: "127.0.0.1:9901", headers: map[string]string{"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "cors", "Origin": "http://evil.example"}, want: 403},
		{name: "what another page reads, without more than its origin", method: "GET", path: "/events", host: "127.0.0.1:9901", headers: map[string]string{"Origin": "http://evil.example"}, want: 403},
		{name: "what another page shows", method: "GET", path: "/clusters", host: "127.0.0.1:9901", headers: map[string]string{"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}, want: 403},
		{name: "what its own page reads", method: "GET", path: "/events", host: "127.0.0.1:9901", headers: map[string]string{"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors"}, want: 200},
		{name: "a link of another page", method: "GET", host: "127.0.0.1:9901", headers: map[string]string{"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}, want: 200},
		{name: "a page of another port", method: "POST", host: "127.0.0.1:9901", headers: map[string]string{"Origin": "http://127.0.0.1:80"}, want: 403},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := httptest.NewRequest(tt.method, cmp.Or(tt.path, "/"), nil)
			r.Host = tt.host
			for k, v := range tt.headers {
				r.Header.Set(k, v)
			}
			if tt.tls {
				r.TLS = new(tls.ConnectionState)
			}
			h := free
			if tt.token {
				h = withToken
			}
			var local net.Addr = &net.TCPAddr{}
			if tt.unix {
				local = &net.UnixAddr{Net: "unix"}
			}
			r = r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, local))
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			if w.Code != tt.want || (w.Body.String() == "done") != (tt.want == 200) {
				t.Errorf("%d %s, want %d", w.Code, w.Body, tt.want)
			}
		})
	}
}

func TestReload(t *testing.T) {
	var waited time.Duration
	answer := Reload{}
	var fails error
	h := Handler(Config{Metrics: http.NotFoundHandler(), Reload: func(_ context.Context, wait time.Duration) (Reload, error) {
		waited = wait
		return answer, fails
	}})
	names := func(n ...string) []string { return append([]string{}, n...) }
	none := Changes{names(), names(), names(), names()}
	for _, tt := range []struct {
		file   string
		answer Reload
		code   int
	}{
		{"reload.json", Reload{
			Result:   ReloadInPart,
			Warnings: config.Errors{{File: "a.hcl", Line: 1, Column: 2, Message: "odd", Source: "odd = <1>"}},
			Clusters: Changes{names("new"), names("web"), names("old"), names("same")}, Listeners: none,
			Settings: names("log.level"), NeedsRestart: names("gate.max_stuck"),
			NotWarm: []node.Unsettled{{Cluster: "new", Why: "discovery has not answered yet"}},
		}, 200},
		{"reload-mistakes.json", Reload{
			Result: ReloadRefused, Error: "it has 1 mistakes", Errors: config.Errors{{File: "a.hcl", Line: 3, Column: 4, Message: "no", Hint: "yes"}},
		}, 400},
		{"reload-bind.json", Reload{Result: ReloadRefused, Error: "taken", Bind: true}, 409},
	} {
		answer = tt.answer
		w := ask(h, "POST", "/reload")
		if w.Code != tt.code || waited != 30*time.Second || w.Header().Get("Content-Type") != "application/json" {
			t.Errorf("%s: %d after %v, %v", tt.file, w.Code, waited, w.Header())
		}
		golden(t, tt.file, w.Body.String())
	}
	if w := ask(h, "POST", "/reload?wait=50ms"); waited != 50*time.Millisecond {
		t.Errorf("waited %v: %s", waited, w.Body)
	}
	for _, path := range []string{"?wait=-1s", "?wait=x", "?wait=1h"} {
		if w := ask(h, "POST", "/reload"+path); w.Code != 400 {
			t.Errorf("%s: %d", path, w.Code)
		}
	}
	fails = context.Canceled
	if w := ask(h, "POST", "/reload"); w.Code != 503 {
		t.Errorf("an agent that ends: %d", w.Code)
	}
	if w := ask(h, "GET", "/reload"); w.Code != 405 {
		t.Errorf("GET: %d", w.Code)
	}
	for r := range ReloadResults {
		var back ReloadResult
		text, _ := r.MarshalText()
		if err := back.UnmarshalText(text); err != nil || back != r {
			t.Errorf("%s is read as %v, %v", text, back, err)
		}
	}
	if err := new(ReloadResult).UnmarshalText([]byte("odd")); err == nil {
		t.Error("any text is a result")
	}
}

// pipes is a listener of connections in memory.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	close(p.done)
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Net: "unix"} }

// A reload may take longer than other requests: its caller is not given up before.
func TestReloadTakesTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const long = 5 * time.Minute
		h := Handler(Config{Metrics: http.NotFoundHandler(), Reload: func(ctx context.Context, wait time.Duration) (Reload, error) {
			select {
			case <-time.After(wait):
				return Reload{}, nil
			case <-ctx.Done():
				return Reload{}, ctx.Err()
			}
		}})
		p := &pipes{make(chan net.Conn), make(chan struct{})}
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { Serve(ctx, p, h, ServeConfig{}) })
		client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(context.Context, string, string) (net.Conn, error) {
			a, b := net.Pipe()
			p.conns <- b
			return a, nil
		}}}
		began := time.Now()
		resp, err := client.Post("http://127.0.0.1/reload?wait="+long.String(), "", nil)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if took := time.Since(began); resp.StatusCode != 200 || err != nil || took != long {
			t.Errorf("after %v: %s %s, %v", took, resp.Status, body, err)
		}
		cancel()
		wg.Wait()
	})
}

func TestSetEnabled(t *testing.T) {
	var said []string
	h := Handler(Config{Metrics: http.NotFoundHandler(), SetEnabled: func(_ context.Context, cluster string, a lbcore.Addr, enabled bool) error {
		said = append(said, fmt.Sprint(cluster, " ", a, " ", enabled))
		switch cluster {
		case "none":
			return fmt.Errorf("cluster: %w", node.ErrUnknown)
		case "slow":
			return errors.New("no time")
		}
		return nil
	}})
	for path, want := range map[string]int{
		"/endpoints/web/192.0.2.1:80/disable":                200,
		"/endpoints/web/%5B2001:db8::1%5D:80/enable":         200,
		"/endpoints/web/[2001:db8::1]:80/enable":             200,
		"/endpoints/a%2Fb/unix:%2F%2F%2Frun%2Fx.sock/enable": 200,
		"/endpoints/web/localhost:80/enable":                 400,
		"/endpoints/none/192.0.2.1:80/enable":                404,
		"/endpoints/slow/192.0.2.1:80/enable":                503,
		"/endpoints/web/192.0.2.1:80/remove":                 404,
	} {
		if w := ask(h, "POST", path); w.Code != want {
			t.Errorf("POST %s: %d %s", path, w.Code, w.Body)
		}
	}
	if w := ask(h, "GET", "/endpoints/web/192.0.2.1:80/disable"); w.Code != 405 {
		t.Errorf("GET: %d", w.Code)
	}
	all := strings.Join(said, "\n")
	for _, want := range []string{"web 192.0.2.1:80 false", "web [2001:db8::1]:80 true", "a/b unix:///run/x.sock true"} {
		if !strings.Contains(all, want) {
			t.Errorf("%q was not said:\n%s", want, all)
		}
	}
	if w := ask(h, "POST", "/endpoints/a%2Fb/192.0.2.1:80/disable"); w.Body.String() != "{\n \"cluster\": \"a/b\",\n \"address\": \"192.0.2.1:80\",\n \"enabled\": false\n}\n" {
		t.Errorf("the answer is %s", w.Body)
	}
}

func TestLogging(t *testing.T) {
	level := new(slog.LevelVar)
	h := Handler(Config{Metrics: http.NotFoundHandler(), Level: level})
	if w := ask(h, "GET", "/logging"); w.Code != 200 || w.Body.String() != "level: info\n" {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	for _, name := range Levels() {
		if w := ask(h, "POST", "/logging?format=json&level="+name); w.Code != 200 || w.Body.String() != "{\n \"level\": \""+name+"\"\n}\n" {
			t.Errorf("%d %s", w.Code, w.Body)
		}
		if !strings.EqualFold(level.Level().String(), name) {
			t.Errorf("the level is %v, want %s", level.Level(), name)
		}
	}
	for _, path := range []string{"", "?level=loud", "?level=INFO%2B1"} {
		if w := ask(h, "POST", "/logging"+path); w.Code != 400 {
			t.Errorf("%s: %d", path, w.Code)
		}
	}
	if w := ask(h, "GET", "/logging?level=debug"); level.Level() != slog.LevelError {
		t.Errorf("GET changes the level: %s", w.Body)
	}
}
