package telemetry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	metrics "github.com/armon/go-metrics"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Tick is how often counters are read, and pushed to the servers that are named; a scrape
// reads them anew. It is half of what such servers sum up by default.
const Tick = 5 * time.Second

// Config configures a Telemetry. The zero value is usable.
type Config struct {
	// Prefix begins every name; empty means "gatehouse".
	Prefix string
	// Retention is how long Prometheus sees a series after it has gone; 0 means 24 h.
	// Source: Consul's prometheus_retention_time.
	Retention time.Duration
	// StatsdAddress and StatsiteAddress are host:port of a statsd server, asked by UDP,
	// and of a statsite server, by TCP; or empty.
	StatsdAddress, StatsiteAddress string
	// DogstatsdAddress is that of a dogstatsd server, also as unix:///path; labels are
	// its tags, and DogstatsdTags come with each line, as in key:value.
	DogstatsdAddress string
	DogstatsdTags    []string
	// EnableHostname puts the host's name before the names of gauges that are pushed.
	EnableHostname bool
	// PrefixFilter begins with + or -, then comes what a name begins with, with dots,
	// Prefix included; the longest that a name has says whether there is that metric,
	// and BlockByDefault if there is one without.
	// Source: Consul's prefix_filter, and filter_default turned round.
	PrefixFilter   []string
	BlockByDefault bool
	// Logger is told of scrapes that fail and servers that can't be reached; nil means
	// stderr.
	Logger *slog.Logger
}

// Telemetry owns what is recorded, and serves the Prometheus page.
type Telemetry struct {
	prefix string
	page   http.Handler
	hub    *metrics.Metrics
	sinks  []*lineSink // Run's goroutine only
	log    *slog.Logger

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
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	t := &Telemetry{prefix: cfg.Prefix, sinks: newSinks(&cfg), log: cfg.Logger, rec: newRecorder(cfg.Retention, blocked(&cfg))}
	var all metrics.FanoutSink
	for _, s := range t.sinks {
		all = append(all, s)
	}
	mc := metrics.DefaultConfig(cfg.Prefix)
	mc.EnableHostname = cfg.EnableHostname
	mc.EnableRuntimeMetrics = false // it would start a goroutine that never ends
	var err error
	if t.hub, err = metrics.New(mc, all); err != nil {
		return nil, fmt.Errorf("telemetry: %w", err)
	}
	registry := prometheus.NewRegistry()
	err = errors.Join(
		registry.Register(newCollector(t, cfg.Prefix)),
		registry.Register(collectors.NewGoCollector()),
		registry.Register(collectors.NewProcessCollector(collectors.ProcessCollectorOpts{})))
	if err != nil {
		return nil, fmt.Errorf("telemetry: %w", err)
	}
	t.page = promhttp.HandlerFor(registry, promhttp.HandlerOpts{ErrorLog: promLog{cfg.Logger}, MaxRequestsInFlight: 4})
	return t, nil
}

// blocked returns the metrics that there are not to be.
func blocked(cfg *Config) map[*Metric]bool {
	no := make(map[*Metric]bool)
	for _, m := range table {
		longest, block := -1, cfg.BlockByDefault
		for _, f := range cfg.PrefixFilter {
			if prefix := f[min(1, len(f)):]; len(prefix) > longest && strings.HasPrefix(cfg.Prefix+"."+m.name, prefix) {
				longest, block = len(prefix), f[:1] == "-"
			}
		}
		if block {
			no[m] = true
		}
	}
	return no
}

// Run has collect read the agent's counters every Tick until ctx ends, and once then.
// collect is called by one goroutine at a time.
func (t *Telemetry) Run(ctx context.Context, collect func(*Recorder)) error {
	t.mu.Lock()
	t.collect = collect
	t.mu.Unlock()
	tick := time.NewTicker(Tick)
	defer tick.Stop()
	for ctx.Err() == nil {
		t.push(ctx)
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
	t.push(context.WithoutCancel(ctx))
	t.mu.Lock()
	t.collect = nil
	t.mu.Unlock()
	return ctx.Err()
}

// push reads the counters, and sends what has changed to the servers.
func (t *Telemetry) push(ctx context.Context) {
	t.mu.Lock()
	t.read()
	if len(t.sinks) > 0 {
		t.rec.pushAll(t.hub)
	}
	t.mu.Unlock()
	for _, s := range t.sinks {
		why := ""
		if err := s.send(ctx); err != nil {
			why = err.Error()
		}
		if (why == "") != (s.failing == "") {
			if why != "" {
				t.log.Warn("metrics can't be sent and are lost", "to", s.setting, "err", why)
			} else {
				t.log.Info("metrics are sent again", "to", s.setting)
			}
		}
		s.failing = why
	}
}

// Flush reads the counters now.
func (t *Telemetry) Flush() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.read()
}

func (t *Telemetry) read() {
	if t.collect != nil {
		t.rec.begin(time.Now())
		t.collect(&t.rec)
		t.rec.end()
	}
}

// ServeHTTP answers with the Prometheus page, counters fresh.
func (t *Telemetry) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	t.Flush()
	t.page.ServeHTTP(w, r)
}

// Dump writes all that is recorded, a line each, sorted.
func (t *Telemetry) Dump(w io.Writer) error {
	t.Flush()
	_, err := io.WriteString(w, strings.Join(t.lines(time.Now().Format(time.TimeOnly)), ""))
	return err
}

func (t *Telemetry) lines(at string) (lines []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for k, s := range t.rec.all {
		name := t.prefix + "." + k.m.name
		for i, l := range k.m.labels {
			name += fmt.Sprintf(" %s=%q", l, k.labels[i])
		}
		value := fmt.Sprint(s.base + s.last)
		switch k.m.kind {
		case Gauge:
			value = fmt.Sprintf("%g", s.value)
		case Histogram:
			c := s.hist.total()
			value = fmt.Sprintf("count=%d sum=%s p50=%s p90=%s p99=%s", c.Count(), c.Sum, c.Quantile(.5), c.Quantile(.9), c.Quantile(.99))
		}
		lines = append(lines, fmt.Sprintf("[%s] %s %s %s\n", at, k.m.kind, name, value))
	}
	slices.Sort(lines)
	return lines
}

// promLog passes errors of a scrape to the log.
type promLog struct{ l *slog.Logger }

func (p promLog) Println(v ...any) {
	p.l.Error("prometheus page", "err", strings.TrimSpace(fmt.Sprintln(v...)))
}
