package main

import (
	"bytes"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

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

// dumpServer answers as an agent in which everything that can be shown is.
func dumpServer(t *testing.T, ln net.Listener) {
	t.Helper()
	dump, err := os.ReadFile("internal/admin/testdata/clusters.json.golden")
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.String() != "/clusters?format=json" {
			http.NotFound(w, r)
			return
		}
		w.Write(dump)
	}))
	srv.Listener.Close()
	srv.Listener = ln
	srv.Start()
	t.Cleanup(srv.Close)
}

func listenOn(t *testing.T, network, address string) net.Listener {
	t.Helper()
	ln, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	return ln
}

// program runs the agent's program and returns its exit code and what it prints.
func program(args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	code = realMain(args, &out, &errs)
	return code, out.String(), errs.String()
}

// What the command shows of all that the admin interface can say.
func TestEndpoints(t *testing.T) {
	t.Setenv(envAdmin, "")
	ln := listenOn(t, "tcp", "127.0.0.1:0")
	dumpServer(t, ln)
	at := "-http-addr=" + ln.Addr().String()
	for _, tt := range []struct {
		golden string
		args   []string
	}{
		{"endpoints.txt", nil},
		{"endpoints.json", []string{"-json"}},
		{"endpoints-web.txt", []string{"-cluster", "web"}},
		{"endpoints-sql.json", []string{"-json", "-cluster", "sql"}},
	} {
		code, out, errs := program(append([]string{"endpoints", at}, tt.args...)...)
		if code != exitOK || errs != "" {
			t.Errorf("%v: exit code %d, %s", tt.args, code, errs)
		}
		golden(t, tt.golden, out)
	}
	code, out, errs := program("endpoints", at, "-cluster", "wep")
	if want := "no cluster \"wep\": there are \"odd\", \"sql\", \"web\", \"wide\"\n"; code != exitRuntime || out != "" || errs != want {
		t.Errorf("an unknown cluster: exit code %d, %s%s", code, out, errs)
	}
}

// An agent is found by the flag, by the environment, and on a unix socket.
func TestEndpointsFindsTheAgent(t *testing.T) {
	t.Setenv(envAdmin, "")
	sock := filepath.Join(t.TempDir(), "admin.sock")
	dumpServer(t, listenOn(t, "unix", sock))
	if code, out, errs := program("endpoints", "-http-addr", "unix://"+sock); code != exitOK || !strings.Contains(out, "192.0.2.1:80") {
		t.Errorf("a unix socket: exit code %d, %s%s", code, out, errs)
	}
	t.Setenv(envAdmin, "unix://"+sock)
	if code, out, errs := program("endpoints"); code != exitOK || !strings.Contains(out, "192.0.2.1:80") {
		t.Errorf("the environment: exit code %d, %s%s", code, out, errs)
	}
}

// Without an agent the command says where it looked and how to start one.
func TestEndpointsWithoutAgent(t *testing.T) {
	t.Setenv(envAdmin, "")
	ln := listenOn(t, "tcp", "127.0.0.1:0")
	nobody := ln.Addr().String()
	ln.Close()
	code, out, errs := program("endpoints", "-http-addr", nobody)
	for _, want := range []string{nobody + " (given by -http-addr)", "connection refused", "gatehouse run -config-file", envAdmin} {
		if !strings.Contains(errs, want) {
			t.Errorf("nobody there: %q lacks %q", errs, want)
		}
	}
	if code != exitRuntime || out != "" {
		t.Errorf("nobody there: exit code %d, %s", code, out)
	}
	t.Setenv(envAdmin, nobody)
	if code, _, errs := program("endpoints"); code != exitRuntime || !strings.Contains(errs, nobody+" (given by "+envAdmin+")") {
		t.Errorf("nobody there, by the environment: exit code %d, %s", code, errs)
	}

	for name, tt := range map[string]struct {
		answer func(http.ResponseWriter)
		want   string
	}{
		"another server": {func(w http.ResponseWriter) { w.WriteHeader(404) }, "says 404"},
		"no JSON":        {func(w http.ResponseWriter) { io.WriteString(w, "<html>") }, "not what this version knows"},
	} {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { tt.answer(w) }))
		code, out, errs := program("endpoints", "-http-addr", srv.Listener.Addr().String())
		srv.Close()
		if code != exitRuntime || out != "" || !strings.Contains(errs, tt.want) || !strings.Contains(errs, srv.Listener.Addr().String()) {
			t.Errorf("%s: exit code %d, %s%s", name, code, out, errs)
		}
	}
}

// Wrong flags exit 2 with the usage of the command.
func TestEndpointsUsage(t *testing.T) {
	t.Setenv(envAdmin, "")
	for _, args := range [][]string{
		{"-no-such-flag"}, {"-http-addr"}, {"-json=maybe"}, {"web"},
	} {
		code, out, errs := program(append([]string{"endpoints"}, args...)...)
		if code != exitConfig || out != "" || !strings.Contains(errs, "Usage: gatehouse endpoints") || !strings.Contains(errs, "-http-addr") {
			t.Errorf("%q: exit code %d, %s%s", args, code, out, errs)
		}
	}
	if code, _, errs := program("endpoints", "-http-addr", "example.com:9901"); code != exitConfig || !strings.Contains(errs, "by -http-addr") {
		t.Errorf("a host name: exit code %d, %s", code, errs)
	}
	t.Setenv(envAdmin, "somewhere")
	if code, _, errs := program("endpoints"); code != exitConfig || !strings.Contains(errs, "by "+envAdmin) {
		t.Errorf("a bad environment: exit code %d, %s", code, errs)
	}
}

// What the table says beside the golden one: probes under way, the newest of
// several errors, and words of peers that stay on their line.
func TestEndpointRows(t *testing.T) {
	var d clustersDump
	err := json.Unmarshal([]byte(`{"cluster_statuses":[{"name":"web\u001b[2J","host_statuses":[{
		"address":{"pipe":{"path":"/run/web.sock"}},
		"gatehouse":{"state":"failed","why":"one\ntwo\u001b[31m","checks":[
			{"kind":"tcp","last_error":"older","last_failure":"2026-03-01T10:00:00Z"},
			{"kind":"http","last_error":"newer","last_failure":"2026-03-01T10:00:01Z"},
			{"kind":"grpc","last_error":"oldest","last_failure":"2026-03-01T09:00:00Z"}]}},{
		"address":{"socket_address":{"address":"2001:db8::1","port_value":80}},
		"gatehouse":{"state":"unprobed","checks":[
			{"kind":"tcp","next_probe":"2026-03-01T10:00:05Z","last_error":"older","last_failure":"2026-03-01T10:00:00Z"},
			{"kind":"http","next_probe":"2026-03-01T10:00:04Z","last_local_error":"no ports"}]}}]}]}`), &d)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := writeEndpoints(&out, d.rows()); err != nil {
		t.Fatal(err)
	}
	want := `CLUSTER  ENDPOINT              STATUS    SINCE  NEXT PROBE            WHY, LAST ERROR
web [2J  unix:///run/web.sock  failed    -      under way             one; two [31m; last error at 2026-03-01T10:00:01Z: http check: newer
web [2J  [2001:db8::1]:80      unprobed  -      2026-03-01T10:00:04Z  last error: http check, no result: no ports
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
