package admin

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	adminv3 "github.com/envoyproxy/go-control-plane/envoy/admin/v3"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"gatehouse.internal/cmd/agent/internal/admin/page"
	"gatehouse.internal/cmd/agent/internal/configdump"
	"gatehouse.internal/cmd/agent/internal/node"
	"gatehouse.internal/forwarder"
	"gatehouse.internal/internal/lastgood"
	"gatehouse.internal/lbcore"
	"gatehouse.internal/xds"
)

var update = flag.Bool("update", false, "write the golden files of testdata anew")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// handler returns a Handler over what a test says.
func handler(st node.Status, state State, waiting ...string) http.Handler {
	return Handler(fixtureConfig(st, state, waiting...))
}

func fixtureConfig(st node.Status, state State, waiting ...string) Config {
	return Config{
		Status:       func() node.Status { return st },
		XDS:          control,
		ConfigDump:   configdump.New(func() configdump.Config { return configdump.Config{Node: xds.Node{ID: "node-7"}} }),
		HealthChecks: keys,
		State:        func() (State, []string) { return state, waiting },
		Metrics: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			io.WriteString(w, "gatehouse_up 1\n")
		}),
		Connections: func(context.Context, string, int) ([]forwarder.Connection, error) { return nil, nil },
		Level:       new(slog.LevelVar),
		Log:         new(page.Log),
		Version:     "1.2.3", Node: "node-7", Started: time.Now().Add(-90*time.Second - 1),
	}
}

// ask returns the answer to a request.
func ask(h http.Handler, method, path string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	r := httptest.NewRequest(method, path, nil)
	r.Host = "127.0.0.1:9901"
	h.ServeHTTP(w, r)
	return w
}

func TestDumps(t *testing.T) {
	h := handler(fixture(), Live)
	for path, file := range map[string]string{
		"/clusters?format=json": "clusters.json", "/clusters": "clusters.txt", "/clusters?format=text": "clusters.txt",
		"/listeners?format=json": "listeners.json", "/listeners": "listeners.txt",
		"/healthchecks?format=json": "healthchecks.json", "/healthchecks": "healthchecks.txt",
	} {
		w := ask(h, "GET", path)
		want := "text/plain; charset=utf-8"
		if strings.HasSuffix(file, ".json") {
			want = "application/json"
		}
		if got := w.Header().Get("Content-Type"); w.Code != 200 || got != want {
			t.Errorf("%s: %d, %s; want 200, %s", path, w.Code, got, want)
		}
		golden(t, file, w.Body.String())
	}
}

func golden(t *testing.T, file, got string) {
	t.Helper()
	path := filepath.Join("testdata", file+".golden")
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got; -update accepts it):\n%s", file, diff)
	}
}

// What is not in an object named gatehouse is what Envoy's own messages hold,
// in the JSON that protobuf defines for them: so Envoy's clients can read it.
func TestShapesAreEnvoys(t *testing.T) {
	h := handler(fixture(), Draining)
	for path, into := range map[string]proto.Message{
		"/clusters?format=json":  new(adminv3.Clusters),
		"/listeners?format=json": new(adminv3.Listeners),
		"/server_info":           new(adminv3.ServerInfo),
	} {
		body := ask(h, "GET", path).Body.Bytes()
		var v any
		if err := json.Unmarshal(body, &v); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		stripped, err := json.Marshal(strip(v))
		if err != nil {
			t.Fatal(err)
		}
		if err := protojson.Unmarshal(stripped, into); err != nil {
			t.Errorf("%s: %v\n%s", path, err, stripped)
			continue
		}
		switch m := into.(type) {
		case *adminv3.Clusters:
			// 64 bits arrive whole.
			if got := m.GetClusterStatuses()[2].GetHostStatuses()[0].GetStats()[2].GetValue(); got != 1<<63+1 {
				t.Errorf("cx_total is %d", got)
			}
		case *adminv3.ServerInfo:
			if m.GetState() != adminv3.ServerInfo_DRAINING || m.GetUptimeCurrentEpoch().GetSeconds() != 90 ||
				m.GetVersion() != "1.2.3" || m.GetNode().GetId() != "node-7" {
				t.Errorf("server_info is %v", m)
			}
		}
	}
}

// strip takes out what is Gatehouse's own.
func strip(v any) any {
	switch v := v.(type) {
	case map[string]any:
		delete(v, "gatehouse")
		for k := range v {
			v[k] = strip(v[k])
		}
	case []any:
		for i := range v {
			v[i] = strip(v[i])
		}
	}
	return v
}

// An empty node has empty lists, not null.
func TestEmptyDumps(t *testing.T) {
	h := handler(node.Status{Clusters: []node.ClusterStatus{{Name: "c", Origin: "file"}}}, Live)
	for path, want := range map[string]string{
		"/clusters?format=json":  `"host_statuses": []`,
		"/listeners?format=json": `"listener_statuses": []`,
	} {
		if body := ask(h, "GET", path).Body.String(); !strings.Contains(body, want) || strings.Contains(body, "null") {
			t.Errorf("%s: %s", path, body)
		}
	}
}

func TestReady(t *testing.T) {
	for _, tt := range []struct {
		state   State
		waiting []string
		code    int
		body    string
	}{
		{Live, nil, 200, "LIVE\n"},
		{Initializing, []string{"this", "that\nof two lines"}, 503, "INITIALIZING\nthis\nthat; of two lines\n"},
		{Draining, nil, 503, "DRAINING\n"},
	} {
		h := handler(node.Status{}, tt.state, tt.waiting...)
		if w := ask(h, "GET", "/ready"); w.Code != tt.code || w.Body.String() != tt.body {
			t.Errorf("%s: /ready is %d, %q; want %d, %q", tt.state, w.Code, w.Body, tt.code, tt.body)
		}
		if w := ask(h, "GET", "/live"); w.Code != 200 || w.Body.String() != "LIVE\n" {
			t.Errorf("%s: /live is %d, %q", tt.state, w.Code, w.Body)
		}
		var info struct{ State State }
		if err := json.Unmarshal(ask(h, "GET", "/server_info").Body.Bytes(), &info); err != nil || info.State != tt.state {
			t.Errorf("/server_info is %v, %v; want %s", info, err, tt.state)
		}
	}
}

func TestPaths(t *testing.T) {
	h := handler(node.Status{}, Live)
	for _, tt := range []struct {
		method, path string
		code         int
		has          string
	}{
		{"GET", "/", 200, `<a href="clusters?format=json"`},
		{"GET", "/stats/prometheus", 200, "gatehouse_up 1\n"},
		{"HEAD", "/ready", 200, ""},
		{"GET", "/clusters/", 404, ""},
		{"GET", "/nosuch", 404, ""},
		{"POST", "/nosuch", 404, ""},
		{"POST", "/clusters", 405, ""},
		{"POST", "/ready", 405, ""},
		{"DELETE", "/", 405, ""},
		{"POST", "/stats/prometheus", 405, ""},
		{"GET", "/clusters?format=xml", 400, `format "xml": want text or json`},
		{"GET", "/listeners?format=JSON", 400, `format "JSON": want text or json`},
	} {
		w := ask(h, tt.method, tt.path)
		if w.Code != tt.code || !strings.Contains(w.Body.String(), tt.has) {
			t.Errorf("%s %s: %d, %q; want %d", tt.method, tt.path, w.Code, w.Body, tt.code)
		}
		if allow := w.Header().Get("Allow"); (tt.code == 405) != (allow == "GET, HEAD") {
			t.Errorf("%s %s: Allow is %q", tt.method, tt.path, allow)
		}
	}
	// Every link of the index leads somewhere.
	for _, link := range strings.Split(ask(h, "GET", "/").Body.String(), `<a href="`)[1:] {
		path, _, _ := strings.Cut(link, `"`)
		if w := ask(h, "GET", "/"+path); w.Code != 200 {
			t.Errorf("/%s: %d", path, w.Code)
		}
	}
}

// server runs Serve over h until stop.
func server(t *testing.T, h http.Handler) (url string, stop func() error) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { err = Serve(ctx, ln, h, ServeConfig{}) })
	stop = func() error {
		cancel()
		wg.Wait()
		return err
	}
	t.Cleanup(func() { stop() })
	return "http://" + ln.Addr().String(), stop
}

func TestServeEndsWithItsContext(t *testing.T) {
	url, stop := server(t, handler(node.Status{}, Live))
	client := &http.Client{Transport: new(http.Transport)}
	defer client.CloseIdleConnections()
	resp, err := client.Get(url + "/ready") // and keep the connection
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	if string(body) != "LIVE\n" || err != nil {
		t.Errorf("/ready is %q, %v", body, err)
	}
	if err := stop(); err != context.Canceled {
		t.Errorf("Serve: %v", err)
	}
	if resp, err := client.Get(url + "/ready"); err == nil {
		resp.Body.Close()
		t.Error("answered after the end")
	}
}

// A request that is being answered at the end is answered if that is quick, and
// cut if not.
func TestServeEndsWithRequestsInFlight(t *testing.T) {
	for _, quick := range []bool{true, false} {
		began, quit := make(chan struct{}), make(chan struct{})
		url, stop := server(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			close(began)
			<-quit
			io.WriteString(w, "done")
		}))
		var wg sync.WaitGroup
		var body []byte
		var got error
		wg.Go(func() {
			client := &http.Client{Transport: new(http.Transport)}
			defer client.CloseIdleConnections()
			resp, err := client.Get(url)
			if got = err; err == nil {
				body, got = io.ReadAll(resp.Body)
				resp.Body.Close()
			}
		})
		<-began
		if quick {
			close(quit)
		}
		if err := stop(); err != context.Canceled {
			t.Errorf("Serve: %v", err)
		}
		wg.Wait()
		if quick != (got == nil && string(body) == "done") {
			t.Errorf("quick %t: the answer was %q, %v", quick, body, got)
		}
		if !quick {
			close(quit)
		}
	}
}

func TestServeFails(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ln.Close()
	if err := Serve(t.Context(), ln, http.NotFoundHandler(), ServeConfig{}); err == nil || !strings.HasPrefix(err.Error(), "admin: ") {
		t.Errorf("Serve: %v", err)
	}
}

func TestDrainListeners(t *testing.T) {
	var got []bool
	h := Handler(Config{Drain: func(graceful bool) { got = append(got, graceful) }, Metrics: http.NotFoundHandler()})
	for path, want := range map[string]int{
		"/drain_listeners": 200, "/drain_listeners?graceful": 200, "/drain_listeners?graceful&skip_exit": 200,
		"/drain_listeners?inboundonly": 400,
	} {
		if w := ask(h, "POST", path); w.Code != want {
			t.Errorf("POST %s: %d %s", path, w.Code, w.Body)
		}
	}
	if w := ask(h, "GET", "/drain_listeners"); w.Code != 405 {
		t.Errorf("GET: %d", w.Code)
	}
	foreign := httptest.NewRequest("POST", "/drain_listeners", nil)
	foreign.Host = "127.0.0.1:9901"
	foreign.Header.Set("Origin", "https://elsewhere.example")
	w := httptest.NewRecorder()
	if h.ServeHTTP(w, foreign); w.Code != 403 {
		t.Errorf("from another origin: %d", w.Code)
	}
	n := 0
	for _, graceful := range got {
		if graceful {
			n++
		}
	}
	if len(got) != 3 || n != 2 {
		t.Errorf("drains %v", got)
	}
	if w := ask(handler(fixture(), Live), "POST", "/drain_listeners"); w.Code != 404 && w.Code != 405 {
		t.Errorf("where nothing drains: %d", w.Code)
	}
}

func TestConnections(t *testing.T) {
	start := time.Date(2026, 1, 2, 3, 4, 5, 600_000_000, time.UTC)
	var asked string
	fail := false
	h := Handler(Config{Metrics: http.NotFoundHandler(), Connections: func(ctx context.Context, listener string, most int) ([]forwarder.Connection, error) {
		asked = fmt.Sprint(listener, " ", most)
		if _, bounded := ctx.Deadline(); !bounded {
			t.Error("no deadline")
		}
		if fail {
			return nil, context.DeadlineExceeded
		}
		return []forwarder.Connection{
			{Listener: "web", State: "connecting", Start: start},
			{
				Listener: "web\nx", State: "open", Start: start, Client: netip.MustParseAddrPort("[::1]:4711"), Cluster: "pages",
				Endpoint: lbcore.UnixAddr("/run/x.sock"), Generation: 3, Connect: 250 * time.Millisecond, BytesIn: 5, BytesOut: 7,
			},
		}, nil
	}})
	for path, want := range map[string]string{"": " 1000", "?listener=web&limit=10000&format=text": "web 10000"} {
		w := ask(h, "GET", "/connections"+path)
		text := `web::-::-::-::state=connecting since=2026-01-02T03:04:05.6Z generation=0 received=0 sent=0
web; x::[::1]:4711::pages::unix:///run/x.sock::state=open since=2026-01-02T03:04:05.6Z generation=3 received=5 sent=7
`
		if w.Code != 200 || w.Body.String() != text || asked != want {
			t.Errorf("%s: asked for %q, got %d\n%s", path, asked, w.Code, w.Body)
		}
	}
	golden(t, "connections.json", ask(h, "GET", "/connections?format=json").Body.String())
	for _, path := range []string{"?limit=0", "?limit=10001", "?limit=x", "?format=xml"} {
		if w := ask(h, "GET", "/connections"+path); w.Code != 400 {
			t.Errorf("%s: %d", path, w.Code)
		}
	}
	fail = true
	if w := ask(h, "GET", "/connections"); w.Code != 503 {
		t.Errorf("loops that don't answer: %d", w.Code)
	}
}

// What is of before a restart is told in /ready once the agent is ready, and how
// state_dir is in /server_info.
func TestState(t *testing.T) {
	state := Live
	store := lastgood.Stats{Dir: "/var/lib/gatehouse", Files: 3, Bytes: 4, Written: 5, Failures: 6, Err: "no space", Since: time.Unix(1e9, 0)}
	h := Handler(Config{
		State: func() (State, []string) { return state, nil }, Metrics: http.NotFoundHandler(),
		Restored: func() []string { return []string{"cluster \"web\": stale,\nold"} },
		Store:    func() lastgood.Stats { return store },
	})
	if w := ask(h, "GET", "/ready"); w.Code != 200 || w.Body.String() != "LIVE\ncluster \"web\": stale,; old\n" {
		t.Errorf("%d %q", w.Code, w.Body)
	}
	state = Draining
	if w := ask(h, "GET", "/ready"); w.Code != 503 || w.Body.String() != "DRAINING\n" {
		t.Errorf("%d %q", w.Code, w.Body)
	}
	var info struct {
		Gatehouse struct {
			StateDir map[string]any `json:"state_dir"`
		}
	}
	if err := json.Unmarshal(ask(h, "GET", "/server_info").Body.Bytes(), &info); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{
		"dir": "/var/lib/gatehouse", "files": 3.0, "bytes": 4.0, "written": 5.0, "failures": 6.0, "damaged": 0.0, "pruned": 0.0,
		"error": "no space", "since": "2001-09-09T01:46:40Z",
	}
	if d := cmp.Diff(want, info.Gatehouse.StateDir); d != "" {
		t.Error(d)
	}
	store = lastgood.Stats{}
	if body := ask(h, "GET", "/server_info").Body.String(); strings.Contains(body, "gatehouse") {
		t.Errorf("without a directory: %s", body)
	}
}
