package telemetry

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"gatehouse.internal/forwarder"
)

// collector shows what is recorded to Prometheus. go-metrics has a sink for that; why it
// is not used is in the package comment.
type collector struct {
	t     *Telemetry
	descs map[*Metric]*prometheus.Desc // of the table; never written
}

func newCollector(t *Telemetry, prefix string) *collector {
	c := &collector{t, make(map[*Metric]*prometheus.Desc, len(table))}
	for _, m := range table {
		c.descs[m] = prometheus.NewDesc(prefix+"_"+strings.ReplaceAll(m.name, ".", "_"), m.help, m.labels, nil)
	}
	return c
}

// Describe implements prometheus.Collector: a name that two metrics have is an error of
// New.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, m := range table {
		ch <- c.descs[m]
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	for _, m := range c.all() {
		ch <- m
	}
}

func (c *collector) all() []prometheus.Metric {
	c.t.mu.Lock()
	defer c.t.mu.Unlock()
	all := make([]prometheus.Metric, 0, len(c.t.rec.all))
	for k, s := range c.t.rec.all {
		desc, labels := c.descs[k.m], k.labels[:len(k.m.labels)]
		switch k.m.kind {
		case Counter:
			all = append(all, prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(s.base+s.last), labels...))
		case Gauge:
			all = append(all, prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, s.value, labels...))
		case Histogram:
			total, n := s.hist.total(), uint64(0)
			le := make(map[float64]uint64, len(forwarder.LatencyBounds))
			for i, to := range forwarder.LatencyBounds {
				n += total.Buckets[i]
				le[to.Seconds()] = n
			}
			all = append(all, prometheus.MustNewConstHistogram(desc, total.Count(), total.Sum.Seconds(), le, labels...))
		}
	}
	return all
}
