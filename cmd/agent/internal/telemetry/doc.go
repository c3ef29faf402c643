// Package telemetry turns the agent's counters into metrics, by go-metrics:
// for Prometheus on the admin address, in memory for SIGUSR1, and for a statsd
// server if one is named.
//
// # Usage
//
//	t, err := telemetry.New(telemetry.Config{...})
//	go t.Run(ctx, func(r *telemetry.Recorder) {
//		r.Counter(telemetry.ListenerConnections, accepted, "web")
//	})
//	http.Handle("/stats/prometheus", t)
//
// Every metric is one of the table in metrics.go; docs/metrics.md is written
// from it.
//
// # Concurrency
//
// Hot paths count in atomics of their own and know nothing of this package.
// Run reads them on a tick, a scrape reads them once more; one mutex keeps the
// two apart.
//
// # Limitations
//
// Labels are names from the configuration or the control plane, never
// addresses of clients or endpoints. go-metrics takes increments as float32;
// the Recorder remembers what rounding left over, so that totals stay exact. A
// series whose cluster is gone stays, at its last value, for
// prometheus_retention_time.
package telemetry
