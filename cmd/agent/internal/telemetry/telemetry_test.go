package telemetry

import (
	"bytes"
	"flag"
	"fmt"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	metrics "github.com/armon/go-metrics"
	"go.uber.org/goleak"

	"gatehouse.internal/forwarder"
)

var update = flag.Bool("update", false, "write docs/metrics.md")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func scrape(t testing.TB, tel *Telemetry) string {
	t.Helper()
	w := httptest.NewRecorder()
	tel.ServeHTTP(w, httptest.NewRequest("GET", "/stats/prometheus", nil))
	if w.Code != 200 {
		t.Fatalf("scrape: %d %s", w.Code, w.Body)
	}
	return w.Body.String()
}

func newTest(t testing.TB, collect func(*Recorder)) *Telemetry {
	t.Helper()
	tel, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	tel.collect = collect
	return tel
}

// has fails the test unless a scrape has the lines.
func has(t testing.TB, tel *Telemetry, lines ...string) {
	t.Helper()
	got := scrape(t, tel)
	for _, l := range lines {
		if !strings.Contains(got, "\n"+l+"\n") {
			t.Errorf("there is no %s in\n%s", l, regexp.MustCompile(`(?m)^(#|go_|process_).*\n`).ReplaceAllString(got, ""))
		}
	}
}

// Numbers stay exact, where go-metrics would make float32s of them.
func TestNumbersAreExact(t *testing.T) {
	var total uint64
	tel := newTest(t, func(r *Recorder) {
		r.Counter(ListenerBytesIn, total, "web")
		r.Gauge(GateStorage, float64(total))
	})
	for _, total = range []uint64{0, 1, 16777217, 16777219, 5_000_000_001, 1<<40 + 12345} {
		tel.Flush()
	}
	has(t, tel, `gatehouse_listener_received{listener="web"} 1.099511640121e+12`, `gatehouse_gate_storage 1.099511640121e+12`)
	total = 16777217
	has(t, newTest(t, tel.collect), `gatehouse_listener_received{listener="web"} 1.6777217e+07`)
}

// A counter goes on from where it was when what it counts begins anew: with a smaller
// total, or after it was gone.
func TestCounterBeginsAnew(t *testing.T) {
	total, there := uint64(0), true
	tel := newTest(t, func(r *Recorder) {
		if there {
			r.Counter(ClusterConnections, total, "web")
			r.Histogram(ClusterConnect, forwarder.LatencyCounts{Buckets: [...]uint64{1: total, 16: 1}, Sum: time.Duration(total) * time.Second}, "web")
		}
	})
	for _, total = range []uint64{10, 3, 4} {
		tel.Flush()
	}
	has(t, tel, `gatehouse_cluster_connections{cluster="web"} 14`, `gatehouse_cluster_connect_time_sum{cluster="web"} 14`, `gatehouse_cluster_connect_time_count{cluster="web"} 16`)
	there = false
	has(t, tel, `gatehouse_cluster_connections{cluster="web"} 14`)
	there, total = true, 5 // more than the last one had
	has(t, tel, `gatehouse_cluster_connections{cluster="web"} 19`, `gatehouse_cluster_connect_time_sum{cluster="web"} 19`, `gatehouse_cluster_connect_time_bucket{cluster="web",le="+Inf"} 22`)
}

// Two of the same name in one collection, of which there should be one, don't count up
// against each other: the first is told.
func TestToldTwice(t *testing.T) {
	tel := newTest(t, func(r *Recorder) {
		for _, n := range []uint64{10, 3} {
			r.Counter(ClusterConnections, n, "web")
			r.Gauge(ClusterReady, float64(n), "web")
		}
	})
	for range 5 {
		tel.Flush()
	}
	has(t, tel, `gatehouse_cluster_connections{cluster="web"} 10`, `gatehouse_cluster_ready{cluster="web"} 10`)
}

// A counter that is quiet, however long, neither vanishes nor begins again; what has gone
// leaves after the retention.
func TestQuietCounterStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tel, err := New(Config{Retention: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		gone := false
		total := uint64(5)
		tel.collect = func(r *Recorder) {
			r.Counter(ClusterDialFailed, total, "quiet")
			if !gone {
				r.Counter(ClusterDialFailed, 7, "gone")
			}
		}
		const left = `gatehouse_cluster_dial_failed{cluster="gone"} 7`
		for range 200 {
			tel.Flush()
			time.Sleep(Tick)
		}
		has(t, tel, `gatehouse_cluster_dial_failed{cluster="quiet"} 5`, left)
		total++
		has(t, tel, `gatehouse_cluster_dial_failed{cluster="quiet"} 6`)
		gone = true
		time.Sleep(time.Minute)
		has(t, tel, left)
		time.Sleep(time.Second)
		tel.Flush()
		if got := scrape(t, tel); strings.Contains(got, `"gone"`) {
			t.Errorf("it is there after the retention:\n%s", got)
		}
	})
}

// Every metric can stand on one page, under a name that Prometheus takes as it is, and
// that no other has: none is a counter here and a gauge there.
func TestTableScrapes(t *testing.T) {
	tel := newTest(t, func(r *Recorder) {
		for _, m := range table {
			record(r, m, 1, slices.Repeat([]string{"x"}, len(m.labels))...)
		}
	})
	got := scrape(t, tel)
	for _, m := range table {
		n := "gatehouse_" + strings.ReplaceAll(m.name, ".", "_")
		if m.kind == Histogram {
			n += "_count"
		}
		value := map[*Metric]string{TelemetrySeries: `\d+`, TelemetryLeftOut: `\d+`}[m]
		if value == "" {
			value = "1"
		}
		if !regexp.MustCompile(`(?m)^` + n + `(\{[^}]*\})? ` + value + `$`).MatchString(got) {
			t.Errorf("%s is missing:\n%s", n, got)
		}
		if !regexp.MustCompile(`^[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)+$`).MatchString(m.name) || len(m.labels) > maxLabels || m.help == "" {
			t.Errorf("%+v", m)
		}
		if !strings.Contains(got, "# TYPE gatehouse_"+strings.ReplaceAll(m.name, ".", "_")+" "+m.kind.String()+"\n") {
			t.Errorf("%s is of another kind:\n%s", m.name, got)
		}
	}
	defer func(t []*Metric) { table = t }(table)
	table = append(slices.Clone(table), &Metric{"listener.connections", Gauge, []string{"listener"}, "", "Another."})
	if tel, err := New(Config{}); tel != nil || err == nil {
		t.Errorf("a name that two metrics have: %v", err)
	}
}

func TestDump(t *testing.T) {
	tel := newTest(t, func(r *Recorder) {
		r.Counter(ClusterConnections, 3, "we b")
		r.Gauge(SourceState, 1, "web", "fresh")
		r.Histogram(ClusterConnect, forwarder.LatencyCounts{Buckets: [...]uint64{1: 2, 16: 0}, Sum: time.Millisecond}, "web")
	})
	var dump bytes.Buffer
	if err := tel.Dump(&dump); err != nil {
		t.Fatal(err)
	}
	got := regexp.MustCompile(`(?m)^\[\d\d:\d\d:\d\d\] `).ReplaceAllString(dump.String(), "")
	if want := `counter gatehouse.cluster.connections cluster="we b" 3
counter gatehouse.telemetry.series_left_out 0
gauge gatehouse.source.state cluster="web" state="fresh" 1
gauge gatehouse.telemetry.series 3
histogram gatehouse.cluster.connect_time cluster="web" count=2 sum=1ms p50=175µs p90=235µs p99=248.5µs
`; got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

func TestHistogramIsPrometheus(t *testing.T) {
	var h forwarder.Histogram
	for _, d := range []time.Duration{50 * time.Microsecond, 100 * time.Microsecond, 3 * time.Millisecond, 400 * time.Millisecond, time.Minute} {
		h.Observe(d)
	}
	tel := newTest(t, func(r *Recorder) { r.Histogram(ClusterConnect, h.Counts(), "web") })
	const n = `gatehouse_cluster_connect_time`
	has(t, tel, `# TYPE `+n+` histogram`,
		n+`_bucket{cluster="web",le="0.0001"} 2`, n+`_bucket{cluster="web",le="0.00025"} 2`, n+`_bucket{cluster="web",le="0.005"} 3`, n+`_bucket{cluster="web",le="0.5"} 4`,
		n+`_bucket{cluster="web",le="10"} 4`, n+`_bucket{cluster="web",le="+Inf"} 5`, n+`_sum{cluster="web"} 60.40315`, n+`_count{cluster="web"} 5`)
}

// Labels have one order, that of the table: who gives too few or too many is wrong, and
// the same values the other way round are another series.
func TestLabelsHaveOneOrder(t *testing.T) {
	tel := newTest(t, func(r *Recorder) {
		for range 2 {
			r.Gauge(SourceState, 1, "a", "b")
			r.Gauge(SourceState, 2, "b", "a")
		}
	})
	has(t, tel, `gatehouse_source_state{cluster="a",state="b"} 1`, `gatehouse_source_state{cluster="b",state="a"} 2`)
	for _, labels := range [][]string{nil, {"a", "b"}} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("no panic for %q", labels)
				}
			}()
			newTest(t, nil).rec.Gauge(ListenerActive, 1, labels...)
		}()
	}
}

// Whatever a control plane calls its clusters, the page can be scraped, and none of them
// is part of a metric's name.
func TestAnyNameIsALabel(t *testing.T) {
	names := []string{"[fe80::1%eth0]:80", "a b", "a\nb", `q"\`, "\xff\xfe", "\xff", "", "ünï", "a,b=c;d|e@f#g"}
	tel := newTest(t, func(r *Recorder) {
		for _, n := range names {
			record(r, ClusterReady, 1, n)
			record(r, ClusterConnections, 1, n)
			record(r, ClusterConnect, 1, n)
		}
	})
	has(t, tel, `gatehouse_cluster_ready{cluster="[fe80::1%eth0]:80"} 1`, `gatehouse_cluster_ready{cluster="a\nb"} 1`, `gatehouse_cluster_connections{cluster="q\"\\"} 1`, `gatehouse_cluster_ready{cluster="`+"\ufffd"+`"} 1`)
	for line := range strings.Lines(scrape(t, tel)) {
		if !regexp.MustCompile(`^(#.*|[a-z_0-9]+(\{.*\})? \S+)\n$`).MatchString(line) {
			t.Errorf("%q", line)
		}
	}
}

// greedy appends to what it is given, as sinks of go-metrics do, and keeps it.
type greedy struct {
	metrics.BlackholeSink
	seen []string
}

func (g *greedy) SetGaugeWithLabels(key []string, _ float32, labels []metrics.Label) {
	g.seen = append(g.seen, fmt.Sprint(key, labels))
	_, _ = append(key, "mine"), append(labels, metrics.Label{Name: "mine"})
}

func (g *greedy) IncrCounterWithLabels(key []string, v float32, labels []metrics.Label) {
	g.SetGaugeWithLabels(key, v, labels)
}

// What go-metrics is given has no room behind it: a sink that appends writes nobody
// else's.
func TestSlicesHaveNoRoom(t *testing.T) {
	tel := newTest(t, func(r *Recorder) {
		for _, m := range table {
			record(r, m, 1, slices.Repeat([]string{"x"}, len(m.labels))...)
		}
	})
	g := new(greedy)
	mc := metrics.DefaultConfig("gatehouse")
	mc.EnableRuntimeMetrics, mc.EnableHostname, mc.EnableHostnameLabel = false, true, true // it appends too
	hub, err := metrics.New(mc, metrics.FanoutSink{g, g})
	if err != nil {
		t.Fatal(err)
	}
	tel.Flush()
	tel.rec.pushAll(hub)
	if len(g.seen) < 2*len(table)-2 || slices.ContainsFunc(g.seen, func(s string) bool { return strings.Contains(s, "mine") }) {
		t.Errorf("%d: %q", len(g.seen), g.seen)
	}
	for _, m := range table {
		for _, p := range [][]string{m.parts(), m.parts("p50")} {
			if cap(p) != len(p) {
				t.Errorf("%q has room for %d", p, cap(p))
			}
		}
	}
}

// A collection of series that are known allocates nothing, and hot paths don't come here
// at all: package forwarder can't import this one.
func TestCollectionAllocatesNothing(t *testing.T) {
	collect := clustersOf(3)
	tel := newTest(t, collect)
	tel.Flush()
	if n := testing.AllocsPerRun(20, tel.Flush); n != 0 {
		t.Errorf("%v allocations", n)
	}
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
