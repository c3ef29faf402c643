package admin

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	adminv3 "github.com/envoyproxy/go-control-plane/envoy/admin/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	statusv3 "github.com/envoyproxy/go-control-plane/envoy/service/status/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"gatehouse.internal/cmd/agent/internal/config"
	"gatehouse.internal/cmd/agent/internal/configdump"
	"gatehouse.internal/cmd/agent/internal/node"
	"gatehouse.internal/xds"
)

// dumping returns a Handler with a dump of one cluster of a file and two of a
// control plane.
func dumping(t *testing.T) http.Handler {
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	body := func(name string) string {
		b, err := proto.Marshal(&clusterv3.Cluster{Name: name, AltStatName: "alt"})
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	return Handler(Config{
		Status: func() node.Status { return fixture() }, Metrics: http.NotFoundHandler(),
		ConfigDump: configdump.New(func() configdump.Config {
			return configdump.Config{
				Node: xds.Node{ID: "node-7"}, UserAgentName: "gatehouse", Version: "1.2.3", Started: at, Clusters: true, Admin: addr("127.0.0.1:9901"),
				Servers: []xds.Server{{URI: "control:1", Metadata: map[string]string{"x-token": "s3cr3t"}}},
				Static:  []config.Cluster{{Name: "file", Origin: config.OriginFile, ConnectTimeout: 5 * time.Second}},
				Status: func() xds.Status {
					return xds.Status{Types: []xds.TypeStatus{
						{URL: xds.ClusterType, Version: "c1", Resources: []xds.ResourceStatus{
							{Name: "api", State: "acked", Version: "c1", Updated: at, Body: body("api")},
							{Name: "web", State: "nacked", Version: "c1", Updated: at, Body: body("web"), Refused: body("web"), Error: "odd", Nack: xds.Nack{Version: "c2", Reason: "odd", At: at}},
						}},
						{URL: xds.AssignmentType, Resources: []xds.ResourceStatus{{Name: "api", State: "requested"}}},
					}}
				},
			}
		}),
	})
}

// What Envoy's clients can read is what there is.
func TestConfigDump(t *testing.T) {
	h := dumping(t)
	for path, file := range map[string]string{
		"/config_dump":                         "config_dump.json",
		"/config_dump?include_eds&format=json": "config_dump_eds.json",
		"/config_dump?resource=dynamic_active_clusters&name_regex=w.b":                                    "config_dump_resource.json",
		"/config_dump?mask=bootstrap.node.id,dynamic_active_clusters.cluster.name,version_info":           "config_dump_mask.json",
		"/config_dump?resource=dynamic_active_clusters&mask=cluster.name,error_state,error_state.details": "config_dump_resource_mask.json",
	} {
		w := ask(h, "GET", path)
		if w.Code != 200 || w.Header().Get("Content-Type") != "application/json" {
			t.Errorf("%s: %d %s", path, w.Code, w.Header())
		}
		if strings.Contains(w.Body.String(), "s3cr3t") {
			t.Errorf("%s shows a secret", path)
		}
		golden(t, file, w.Body.String())
		if !strings.Contains(path, "mask") {
			if err := protojson.Unmarshal(w.Body.Bytes(), new(adminv3.ConfigDump)); err != nil {
				t.Errorf("%s is not Envoy's: %v", path, err)
			}
		}
	}
	for path, want := range map[string]struct {
		code int
		text string
	}{
		"?resource=clusters": {404, "want one of static_clusters"}, "?name_regex=(": {400, "name_regex"}, "?format=text": {400, "want json"},
		"?mask=a..b": {400, "empty name"}, "?mask=" + strings.Repeat("a", maxMask+1): {400, "mask"}, "?include_ads": {400, `"include_ads" is not supported`},
	} {
		if w := ask(h, "GET", "/config_dump"+path); w.Code != want.code || !strings.Contains(w.Body.String(), want.text) {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	}
	if w := ask(Handler(Config{Metrics: http.NotFoundHandler()}), "GET", "/config_dump"); w.Code != 404 {
		t.Errorf("without a dump: %d", w.Code)
	}
}

func TestMask(t *testing.T) {
	for text, want := range map[string]string{
		"":          `{"a":{"b":[{"@type":"t","c":1,"d":2}],"e":3}}`,
		"a":         `{"a":{"b":[{"@type":"t","c":1,"d":2}],"e":3}}`,
		"a.b.c":     `{"a":{"b":[{"@type":"t","c":1}]}}`,
		"a.b.c,a.e": `{"a":{"b":[{"@type":"t","c":1}],"e":3}}`,
		"a.b.c, a":  `{"a":{"b":[{"@type":"t","c":1,"d":2}],"e":3}}`,
		"a,a.b.c":   `{"a":{"b":[{"@type":"t","c":1,"d":2}],"e":3}}`,
		"x.y":       `{}`,
	} {
		m, err := parseMask(text)
		if err != nil {
			t.Fatal(err)
		}
		var v any
		if err := json.Unmarshal([]byte(`{"a":{"b":[{"@type":"t","c":1,"d":2}],"e":3}}`), &v); err != nil {
			t.Fatal(err)
		}
		if got, err := json.Marshal(m.of(v)); err != nil || string(got) != want {
			t.Errorf("%q leaves %s, %v; want %s", text, got, err, want)
		}
	}
}

// csds returns a client of what Serve serves on ln, until stop.
func csds(t *testing.T, ln net.Listener, target string) (statusv3.ClientStatusDiscoveryServiceClient, func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	var err error
	wg.Go(func() { err = Serve(ctx, ln, dumping(t), ServeConfig{}) })
	stop := func() error { cancel(); wg.Wait(); return err }
	t.Cleanup(func() { stop() })
	conn, cerr := grpc.NewClient(target, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if cerr != nil {
		t.Fatal(cerr)
	}
	t.Cleanup(func() { conn.Close() })
	return statusv3.NewClientStatusDiscoveryServiceClient(conn), stop
}

// The address that answers HTTP/1 answers gRPC too, on TCP and on a unix socket, and
// streams end with the agent, not before.
func TestClientStatus(t *testing.T) {
	path := filepath.Join(t.TempDir(), "admin.sock")
	for network, address := range map[string]string{"tcp": "127.0.0.1:0", "unix": path} {
		ln, err := net.Listen(network, address)
		if err != nil {
			t.Fatal(err)
		}
		target := ln.Addr().String()
		if network == "unix" {
			target = "unix://" + path
		}
		client, stop := csds(t, ln, target)
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		answer, err := client.FetchClientStatus(ctx, new(statusv3.ClientStatusRequest))
		if err != nil || len(answer.GetConfig()[0].GetGenericXdsConfigs()) != 4 {
			t.Fatalf("%s: %v, %v", network, answer, err)
		}
		var streams []grpc.BidiStreamingClient[statusv3.ClientStatusRequest, statusv3.ClientStatusResponse]
		for len(streams) < maxStatusStreams {
			s, err := client.StreamClientStatus(ctx)
			if err != nil {
				t.Fatal(err)
			}
			s.Send(new(statusv3.ClientStatusRequest)) // an error is Recv's
			switch _, err := s.Recv(); {
			case err == nil:
				streams = append(streams, s)
			case status.Code(err) != codes.Unavailable || ctx.Err() != nil: // the place of the one before may be free a little later
				t.Fatal(err)
			}
		}
		if _, err := client.FetchClientStatus(ctx, new(statusv3.ClientStatusRequest)); status.Code(err) != codes.Unavailable {
			t.Errorf("%s: one stream too many: %v", network, err)
		}
		if network == "tcp" { // beside them
			tr := new(http.Transport)
			resp, err := (&http.Client{Transport: tr}).Get("http://" + target + "/config_dump")
			if err != nil {
				t.Fatal(err)
			}
			io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
			tr.CloseIdleConnections()
			if resp.ProtoMajor != 1 || resp.StatusCode != 200 {
				t.Errorf("%v", resp)
			}
		}
		if err := stop(); err != context.Canceled {
			t.Errorf("%s: Serve: %v", network, err)
		}
		for _, s := range streams {
			if _, err := s.Recv(); err == nil || ctx.Err() != nil {
				t.Errorf("%s: a stream after the end: %v", network, err)
			}
		}
	}
}

// What a page of another origin sends is refused, and so is gRPC's method by
// HTTP/1.
func TestClientStatusGuards(t *testing.T) {
	h := dumping(t)
	for origin, want := range map[string]int{"https://elsewhere.example": 403, "": 505} {
		r := httptest.NewRequest("POST", clientStatusPath+"FetchClientStatus", nil)
		r.Header.Set("Content-Type", "application/grpc")
		r.Host = "localhost"
		if origin != "" {
			r.Header.Set("Origin", origin)
		}
		w := httptest.NewRecorder()
		if h.ServeHTTP(w, r); w.Code != want {
			t.Errorf("origin %q: %d %s, want %d", origin, w.Code, w.Body, want)
		}
	}
	if w := ask(h, "GET", clientStatusPath+"FetchClientStatus"); w.Code != 405 {
		t.Errorf("GET: %d", w.Code)
	}
}
