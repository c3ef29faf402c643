package telemetry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	metrics "github.com/armon/go-metrics"
	promsink "github.com/armon/go-metrics/prometheus"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Tick is how often counters are read into the sinks.
const Tick = time.Second

// Config configures a Telemetry. The zero value is usable.
type Config struct {
	// Prefix begins every name; empty means "gatehouse".
	Prefix string
	// Retention is how long Prometheus sees a series that is not updated any
	// more; 0 means 24 h. Source: Consul's prometheus_retention_time.
	Retention time.Duration
	// StatsdAddress is host:port of a statsd server, or empty.
	StatsdAddress string
	// EnableHostname puts the host's name before the names of gauges, in
	// statsd and in memory.
	EnableHostname bool
	// Logger is told of scrapes that fail; nil means stderr.
	Logger *slog.Logger
}

// Telemetry owns the sinks. It serves the Prometheus page.
type Telemetry struct {
	registry *prometheus.Registry
	inmem    *metrics.InmemSink
	statsd   *metrics.StatsdSink // nil without one
	page     http.Handler

	mu      sync.Mutex
	rec     Recorder
	collect func(*Recorder)
}

// New returns a Telemetry that records nothing until Run.
func New(cfg Config) (*Telemetry, error) {
	if cfg.Prefix == "" {
		cfg.Prefix = "gatehouse"
	}
	if cfg.Retention == 0 {
		cfg.Retention = 24 * time.Hour
	}
	t := &Telemetry{registry: prometheus.NewRegistry(), inmem: metrics.NewInmemSink(10*time.Second, time.Minute)}
	prom, err := promsink.NewPrometheusSinkFrom(promsink.PrometheusOpts{Expiration: cfg.Retention, Registerer: t.registry})
	if err != nil {
		return nil, fmt.Errorf("telemetry: %w", err)
	}
	sinks := metrics.FanoutSink{prom, t.inmem}
	if cfg.StatsdAddress != "" {
		if t.statsd, err = metrics.NewStatsdSink(cfg.StatsdAddress); err != nil {
			return nil, fmt.Errorf("telemetry: statsd_address %q: %w", cfg.StatsdAddress, err)
		}
		sinks = append(sinks, t.statsd)
	}
	err = errors.Join(
		t.registry.Register(collectors.NewGoCollector()),
		t.registry.Register(collectors.NewProcessCollector(collectors.ProcessCollectorOpts{})))
	if err != nil {
		return nil, fmt.Errorf("telemetry: %w", err)
	}

	mc := metrics.DefaultConfig(cfg.Prefix)
	mc.EnableHostname = cfg.EnableHostname
	mc.EnableRuntimeMetrics = false // it would start a goroutine that never ends
	m, err := metrics.New(mc, sinks)
	if err != nil {
		return nil, fmt.Errorf("telemetry: %w", err)
	}
	t.rec = Recorder{m: m, emitted: make(map[string]uint64)}
	t.page = promhttp.HandlerFor(t.registry, promhttp.HandlerOpts{ErrorLog: promLog{cfg.Logger}, MaxRequestsInFlight: 4})
	return t, nil
}

// Run has collect read the agent's counters every Tick until ctx ends. collect
// is called by one goroutine at a time.
func (t *Telemetry) Run(ctx context.Context, collect func(*Recorder)) error {
	t.mu.Lock()
	t.collect = collect
	t.mu.Unlock()
	tick := time.NewTicker(Tick)
	defer tick.Stop()
	for {
		t.Flush()
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.mu.Lock()
			t.collect = nil // nothing is sent to a sink that is closed
			if t.statsd != nil {
				t.statsd.Shutdown()
			}
			t.mu.Unlock()
			return ctx.Err()
		}
	}
}

// Flush reads the counters now.
func (t *Telemetry) Flush() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.collect != nil {
		t.collect(&t.rec)
	}
}

// ServeHTTP answers with the Prometheus page, counters fresh.
func (t *Telemetry) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	t.Flush()
	t.page.ServeHTTP(w, r)
}

// Dump writes what is in memory, the last minute in steps of ten seconds.
func (t *Telemetry) Dump(w io.Writer) error {
	t.Flush()
	for _, iv := range t.inmem.Data() {
		iv.RLock()
		for _, g := range iv.Gauges {
			fmt.Fprintf(w, "[%s] gauge %s %g\n", iv.Interval.Format(time.TimeOnly), name(g.Name, g.Labels), g.Value)
		}
		for _, c := range iv.Counters {
			fmt.Fprintf(w, "[%s] counter %s %g\n", iv.Interval.Format(time.TimeOnly), name(c.Name, c.Labels), c.Sum)
		}
		iv.RUnlock()
	}
	return nil
}

func name(n string, labels []metrics.Label) string {
	for _, l := range labels {
		n += fmt.Sprintf(" %s=%s", l.Name, l.Value)
	}
	return n
}

// Recorder takes values during a collection, from the function that was given
// to Run and from nobody else.
type Recorder struct {
	m       *metrics.Metrics
	emitted map[string]uint64 // of each counter, what the sinks have got
}

// Counter records the total of a counter, labels in the order of the table. A
// total that is less than the one before begins anew, as after a cluster was
// replaced.
func (r *Recorder) Counter(m *Metric, total uint64, labels ...string) {
	key := m.name + "\x00" + strings.Join(labels, "\x00")
	last, known := r.emitted[key]
	if total < last {
		last = 0
	}
	if known && total == last {
		return
	}
	// The remainder of rounding to float32 is emitted with the next delta.
	delta := float32(total - last)
	if float64(delta) > float64(total-last) {
		delta = float32(float64(delta) * (1 - 1.0/(1<<22)))
	}
	r.emitted[key] = last + uint64(delta)
	r.m.IncrCounterWithLabels(strings.Split(m.name, "."), delta, m.with(labels))
}

// Gauge records a present value, labels in the order of the table.
func (r *Recorder) Gauge(m *Metric, v float64, labels ...string) {
	r.m.SetGaugeWithLabels(strings.Split(m.name, "."), float32(v), m.with(labels))
}

// with pairs the values with the names of the table, always in its order:
// Prometheus' sink takes another order for another series and then fails.
func (m *Metric) with(values []string) []metrics.Label {
	if len(values) != len(m.labels) {
		panic(fmt.Sprintf("telemetry: %s has labels %v, got values %q", m.name, m.labels, values))
	}
	ls := make([]metrics.Label, len(values))
	for i, v := range values {
		ls[i] = metrics.Label{Name: m.labels[i], Value: v}
	}
	return ls
}

// promLog passes errors of a scrape to the log.
type promLog struct{ l *slog.Logger }

func (p promLog) Println(v ...any) {
	l := p.l
	if l == nil {
		l = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	l.Error("prometheus page", "err", strings.TrimSpace(fmt.Sprintln(v...)))
}
