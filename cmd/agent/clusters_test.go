package main

import (
	"bytes"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// clustersSample is /clusters?format=json of an agent.
const clustersSample = `{"cluster_statuses": [
 {"name": "api", "host_statuses": [{}, {}], "gatehouse": {"origin": "file", "ready": 2, "connect_time": {"count": 3, "p50_seconds": 0.00075, "p99_seconds": 0.024},
  "source": {"state": "fresh", "confirmed": "2026-03-01T09:00:00Z", "blocks": [{"kind": "consul"}, {"kind": "static"}]}}},
 {"name": "od\u001bd", "host_statuses": [], "gatehouse": {"origin": "xds", "unsupported": "lb_policy", "source": {"state": "unknown"},
  "cds": {"name": "odd", "state": "acked", "version": "c1", "updated": "2026-02-01T12:00:00Z"}}},
 {"name": "web", "host_statuses": [{}], "gatehouse": {"origin": "xds", "ready": 0,
  "source": {"state": "stale", "error": "rejected: odd", "confirmed": "2026-03-01T11:00:00Z", "blocks": [{"kind": "eds"}]},
  "cds": {"name": "web", "state": "acked", "version": "c1", "updated": "2026-03-01T09:00:00Z", "last_nack": {"version": "c0", "reason": "old", "at": "2026-03-01T08:00:00Z"}},
  "eds": {"name": "web", "state": "nacked", "version": "0123456789abcdef", "updated": "2026-03-01T11:48:00Z", "error": "a\tb", "last_nack": {"version": "e2", "reason": "a\tb\nc", "at": "2026-03-01T11:59:55Z"}}}},
 {"name": "zed", "host_statuses": [], "gatehouse": {"origin": "xds", "source": {"state": "fresh", "blocks": [{"kind": "eds"}]},
  "cds": {"name": "zed", "state": "acked", "version": "c1", "updated": "2026-03-01T09:00:00Z", "last_nack": {"version": "c0", "reason": "old", "at": "2026-03-01T08:00:00Z"}}}}
]}`

func TestClustersTable(t *testing.T) {
	var a clustersAnswer
	if err := json.Unmarshal([]byte(clustersSample), &a); err != nil {
		t.Fatal(err)
	}
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	var out bytes.Buffer
	if err := printClusters(&out, a.rows(now)); err != nil {
		t.Fatal(err)
	}
	want := `CLUSTER  ORIGIN  SOURCE         STATE        READY  CDS  EDS           AGE  P50    P99     LAST NACK
api      file    consul,static  fresh        2/2    -    -             3h   0.8ms  24.0ms  -
od d     xds     -              unsupported  0/0    c1   -             -    -      -       -
web      xds     eds            stale        0/1    c1   0123456789a…  12m  -      -       eds "e2" 5s ago: a b; c
zed      xds     eds            fresh        0/0    c1   -             -    -      -       (mended) cds "c0" 4h ago: old
`
	if d := cmp.Diff(want, out.String()); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	for seconds, want := range map[float64]string{-1: "0s", 59.9: "59s", 60: "1m", 3599: "59m", 47 * 3600: "47h", 49 * 3600: "2d"} {
		if got := ago(seconds); got != want {
			t.Errorf("%v seconds are %s, want %s", seconds, got, want)
		}
	}
}

// The command asks by TCP and by a unix socket, and says what is the matter when
// nobody answers, or not as an agent does.
func TestClustersCommand(t *testing.T) {
	path := filepath.Join(t.TempDir(), "admin.sock")
	ln, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	handle := func(w http.ResponseWriter, r *http.Request) {
		if r.URL.String() != "/clusters?format=json" {
			http.Error(w, "asked for "+r.URL.String(), http.StatusTeapot)
			return
		}
		w.Write([]byte(clustersSample))
	}
	unix := httptest.NewUnstartedServer(http.HandlerFunc(handle))
	unix.Listener.Close()
	unix.Listener = ln
	unix.Start()
	defer unix.Close()
	tcp := httptest.NewServer(http.HandlerFunc(handle))
	defer tcp.Close()
	sick := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { http.Error(w, "not well", 500) }))
	defer sick.Close()
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.Write([]byte("<html>")) }))
	defer other.Close()
	gone := httptest.NewServer(nil)
	gone.Close()
	at := func(s *httptest.Server) string { return s.Listener.Addr().String() }
	for _, tt := range []struct {
		args []string
		code int
		out  string // of stdout, or of stderr if there is none
	}{
		{[]string{"-http-addr", at(tcp)}, exitOK, "CLUSTER  ORIGIN"},
		{[]string{"-http-addr", "unix://" + path, "-json"}, exitOK, `"cds_version": "c1"`},
		{[]string{"-http-addr", at(gone)}, exitRuntime, "no agent answers at " + at(gone)},
		{[]string{"-http-addr", "unix://" + path + "x"}, exitRuntime, `start one by "gatehouse run`},
		{[]string{"-http-addr", at(sick)}, exitRuntime, "says 500: not well"},
		{[]string{"-http-addr", at(other)}, exitRuntime, "is not what this version knows"},
		{[]string{"-http-addr", "nonsense"}, exitConfig, `"nonsense", given by -http-addr`},
		{[]string{"-nonsense"}, exitConfig, "not defined"},
		{[]string{"web"}, exitConfig, "takes no arguments"},
		{[]string{"-help"}, exitOK, "-http-addr"},
	} {
		var stdout, stderr bytes.Buffer
		code := clustersCommand(&stdout, &stderr).Run(tt.args)
		out := stdout.String()
		if out == "" {
			out = stderr.String()
		}
		if code != tt.code || !strings.Contains(out, tt.out) {
			t.Errorf("%q: %d, %s", tt.args, code, out)
		}
	}
	t.Setenv(envAdmin, at(tcp))
	var stdout bytes.Buffer
	if code := clustersCommand(&stdout, &stdout).Run(nil); code != exitOK || !strings.Contains(stdout.String(), "web") {
		t.Errorf("by the environment: %d %s", code, &stdout)
	}
}
