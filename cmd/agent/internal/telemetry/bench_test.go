package telemetry

import (
	"fmt"
	"net/http/httptest"
	"runtime"
	"slices"
	"testing"
	"time"

	"gatehouse.internal/forwarder"
)

// clustersOf collects what n clusters with a selector each have, all of it changing.
func clustersOf(n int) func(*Recorder) {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("cluster-%04d", i)
	}
	round := uint64(0)
	var rows []*Metric
	for _, m := range table {
		if slices.Contains(m.labels, "cluster") {
			rows = append(rows, m)
		}
	}
	return func(r *Recorder) {
		round++
		for _, name := range names {
			values := [3]string{name, "default", "x"}
			for _, m := range rows {
				record(r, m, round, values[:len(m.labels)]...)
			}
		}
	}
}

// record records n, of whatever kind the metric is.
func record(r *Recorder, m *Metric, n uint64, labels ...string) {
	switch m.kind {
	case Counter:
		r.Counter(m, n, labels...)
	case Gauge:
		r.Gauge(m, float64(n), labels...)
	case Histogram:
		r.Histogram(m, forwarder.LatencyCounts{Buckets: [...]uint64{3: n, 16: 0}, Sum: time.Duration(n) * time.Millisecond}, labels...)
	}
}

// What a thousand clusters cost: a reading each Tick, a scrape, and the memory in
// between.
func BenchmarkClusters(b *testing.B) {
	const clusters = 1000
	live := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	tel, err := New(Config{})
	if err != nil {
		b.Fatal(err)
	}
	before := live()
	tel.collect = clustersOf(clusters)
	tel.Flush()
	b.Run("flush", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			tel.Flush()
		}
		b.ReportMetric(float64(live()-before)/clusters, "live-B/cluster")
	})
	b.Run("scrape", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			tel.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil))
		}
	})
}
