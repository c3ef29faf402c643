package admin

import (
	"fmt"
	"time"

	"gatehouse.internal/forwarder"
)

// latencyJSON is a histogram of durations: its quantiles since the cluster began, and
// the counts from which a reader has those of any time in between.
type latencyJSON struct {
	Count   uint64   `json:"count"`
	Sum     float64  `json:"sum_seconds"`
	P50     float64  `json:"p50_seconds"`
	P90     float64  `json:"p90_seconds"`
	P99     float64  `json:"p99_seconds"`
	Buckets []uint64 `json:"buckets"` // of each alone, by forwarder.LatencyBounds, and those above
}

// latencyOf returns nil if nothing was counted.
func latencyOf(c forwarder.LatencyCounts) *latencyJSON {
	n := c.Count()
	if n == 0 {
		return nil
	}
	return &latencyJSON{
		Count: n, Sum: c.Sum.Seconds(), P50: c.Quantile(.5).Seconds(), P90: c.Quantile(.9).Seconds(), P99: c.Quantile(.99).Seconds(),
		Buckets: c.Buckets[:],
	}
}

func latencyText(c forwarder.LatencyCounts) string {
	q := func(q float64) time.Duration { return c.Quantile(q).Round(time.Microsecond) }
	return fmt.Sprintf("count=%d p50=%s p90=%s p99=%s", c.Count(), q(.5), q(.9), q(.99))
}
