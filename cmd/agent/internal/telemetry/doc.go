// Package telemetry turns the agent's counters into metrics: for Prometheus on the admin
// address, for SIGUSR1, and by go-metrics for statsd, dogstatsd and statsite servers.
//
// # Usage
//
//	t, err := telemetry.New(telemetry.Config{...})
//	go t.Run(ctx, func(r *telemetry.Recorder) {
//		r.Counter(telemetry.ListenerConnections, accepted, "web")
//	})
//	http.Handle("/stats/prometheus", t)
//
// Every metric is one of the table in metrics.go; docs/metrics.md is written from it.
//
// # Prometheus without go-metrics' sink
//
// What is recorded is kept here once, in a table of series, from which the page is made
// and increments are pushed. go-metrics' own sink for Prometheus (v0.4.1) has its own copy
// of each series: with 1,000 clusters that took five times the memory and four times the
// CPU, and it can't have histograms, nor some of the following.
//
// # Traps
//
// What bites those who use go-metrics, and the test that says it doesn't here:
//
//	labels in another order fail a scrape      TestLabelsHaveOneOrder
//	one name for a counter and a gauge         TestTableScrapes
//	characters that a name can't have          TestTableScrapes, TestAnyNameIsALabel
//	float32: 16777217 becomes 16777216         TestNumbersAreExact, TestPushAddsUp
//	append to the caller's labels              TestSlicesHaveNoRoom
//	a quiet counter expires, and begins at 0   TestQuietCounterStays, TestCountersNeverGoBackwards
//	the cost of each call                      TestCollectionAllocatesNothing, BenchmarkClusters
//	a counter that goes back panics            TestCounterBeginsAnew
//	labels that forge lines of statsd          TestStatsd, TestDogstatsd
//	a full queue, or the end, loses lines      TestPushAddsUp
//
// # Concurrency
//
// Hot paths count in atomics of their own and know nothing of this package.
// Run reads them on a tick, a scrape reads them once more; one mutex keeps the
// two apart, and is not held while anything is sent. All is sent by Run's goroutine.
//
// # Limitations
//
// Labels are names from the configuration or the control plane, never addresses of
// clients or endpoints. A series whose cluster is gone stays, at its last value, for
// prometheus_retention_time; there are 2^18 series at most, and those that have gone leave
// first. A cluster that comes again while its series is there goes on from that; what was
// counted between the last reading and its end is lost, 5 s of it at most.
//
// statsd has increments: those that a server did not get are lost to it. A histogram is
// sent as a counter .count and the quantiles of the last tick as gauges, .p50, .p90, .p99.
package telemetry
