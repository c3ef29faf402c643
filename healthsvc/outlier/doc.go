// Package outlier is the arithmetic of Envoy's outlier detection for plain TCP:
// which endpoints of a cluster do so much worse than they should that they take
// no new connections for a while.
//
// A connection to an endpoint succeeds or fails; what comes after it is made
// has no say, as in Envoy's tcp_proxy: an endpoint that resets a connection
// before its first byte has succeeded. A refused or timed-out connect is a
// failure, and so is a TLS handshake, which is part of the connect.
//
// Without Config.SplitExternalLocalOriginErrors a failure counts as a 503 or
// 504 does in Envoy: for consecutive_5xx, consecutive_gateway_failure,
// success_rate and failure_percentage. With it, failures are local origin ones,
// and have the four rules of that name.
//
// # Usage
//
//	d := outlier.New(cfg, nil)
//	h := d.Add(outlier.History{})     // for each endpoint
//	d.List(h, true)                   // it is listed by discovery
//	d.Trip(h, rule, now)              // so many connects in a row have failed
//	h.Successes, h.Failures = ...     // totals; then, each Config.Interval:
//	d.Sweep(now, hosts)
//	d.Passed(h, now)                  // an active check has passed
//	h.Ejected                         // is what to obey after each of these
//
// # Concurrency
//
// A Detector and its Hosts belong to one goroutine, the owner of the cluster.
// Nothing here has a clock, starts anything or waits.
//
// # Limitations
//
// Where max_ejection_percent allows fewer ejections than there are outliers, the
// order of Sweep's hosts decides, as the order of a map does in Envoy. An
// endpoint that two rules find in one sweep is ejected once; Envoy counts it
// twice. Extension monitors and degraded hosts, which need HTTP, are not there.
package outlier
