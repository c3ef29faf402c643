package telemetry

import (
	"bytes"
	"flag"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write docs/metrics.md")

func scrape(t *testing.T, tel *Telemetry) string {
	t.Helper()
	w := httptest.NewRecorder()
	tel.ServeHTTP(w, httptest.NewRequest("GET", "/stats/prometheus", nil))
	if w.Code != 200 {
		t.Fatalf("scrape: %d %s", w.Code, w.Body)
	}
	return w.Body.String()
}

func newTest(t *testing.T, collect func(*Recorder)) *Telemetry {
	t.Helper()
	tel, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	tel.collect = collect
	return tel
}

// Totals stay exact although go-metrics takes float32 increments.
func TestCountersAreExact(t *testing.T) {
	var total uint64
	tel := newTest(t, func(r *Recorder) { r.Counter(ListenerBytesIn, total, "web") })
	for _, total = range []uint64{0, 1, 16777217, 16777219, 5_000_000_001, 5_000_000_001, 1<<40 + 12345} {
		tel.Flush()
	}
	for range 4 { // what rounding left over follows with the next readings
		tel.Flush()
	}
	if got := scrape(t, tel); !strings.Contains(got, `gatehouse_listener_received{listener="web"} 1.099511640121e+12`) {
		t.Errorf("total not exact:\n%s", got)
	}
}

func TestCounterBeginsAnew(t *testing.T) {
	var total uint64
	tel := newTest(t, func(r *Recorder) { r.Counter(ClusterConnections, total, "web") })
	for _, total = range []uint64{10, 3, 4} {
		tel.Flush()
	}
	if got := scrape(t, tel); !strings.Contains(got, `gatehouse_cluster_connections{cluster="web"} 14`) {
		t.Errorf("want 10 + 4:\n%s", got)
	}
}

// Every metric can stand on one page: no name clashes, no bad names.
func TestTableScrapes(t *testing.T) {
	tel := newTest(t, func(r *Recorder) {
		for _, m := range table {
			values := slices.Repeat([]string{"x"}, len(m.labels))
			if m.kind == Counter {
				r.Counter(m, 1, values...)
			} else {
				r.Gauge(m, 1, values...)
			}
		}
	})
	got := scrape(t, tel)
	for _, m := range table {
		if n := "gatehouse_" + strings.ReplaceAll(m.name, ".", "_"); !regexp.MustCompile(`(?m)^` + n + `(\{[^}]*\})? 1$`).MatchString(got) {
			t.Errorf("%s is missing:\n%s", n, got)
		}
	}
	var dump bytes.Buffer
	if err := tel.Dump(&dump); err != nil || !strings.Contains(dump.String(), "gatehouse.agent.ready") {
		t.Errorf("dump: %v\n%s", err, &dump)
	}
}

func TestWrongLabelsPanic(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("no panic for a missing label")
		}
	}()
	newTest(t, nil).rec.Gauge(ListenerActive, 1)
}

func TestDocs(t *testing.T) {
	const file = "../../../../docs/metrics.md"
	var b bytes.Buffer
	if err := WriteDocs(&b); err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(file, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(file)
	if err != nil || !bytes.Equal(got, b.Bytes()) {
		t.Errorf("docs/metrics.md is not what the table says (%v): run go test ./cmd/agent/internal/telemetry -update", err)
	}
}
