package forwarder

import (
	"sync/atomic"
	"time"
)

// LatencyBounds are the upper bounds, inclusive, of a Histogram's buckets but for the
// last one, which has no end. They are not to be written. A connect on the same host
// takes some 50 µs, one over a continent 50 ms; the last bounds are around
// DefaultConnectTimeout.
var LatencyBounds = [...]time.Duration{
	100 * time.Microsecond, 250 * time.Microsecond, 500 * time.Microsecond,
	time.Millisecond, 2500 * time.Microsecond, 5 * time.Millisecond,
	10 * time.Millisecond, 25 * time.Millisecond, 50 * time.Millisecond,
	100 * time.Millisecond, 250 * time.Millisecond, 500 * time.Millisecond,
	time.Second, 2500 * time.Millisecond, 5 * time.Second, 10 * time.Second,
}

// Histogram counts durations in fixed buckets. The zero Histogram is empty and ready to
// use. Its methods may be called from anywhere; they take no lock and allocate nothing.
type Histogram struct {
	buckets [len(LatencyBounds) + 1]atomic.Uint64
	sum     atomic.Int64
}

// Observe counts a duration; one below 0 is 0.
func (h *Histogram) Observe(d time.Duration) {
	d = max(d, 0)
	i := 0
	for i < len(LatencyBounds) && d > LatencyBounds[i] {
		i++
	}
	h.sum.Add(int64(d))
	h.buckets[i].Add(1)
}

// Counts returns what was counted. What is observed meanwhile may be in the Sum only.
func (h *Histogram) Counts() (c LatencyCounts) {
	for i := range h.buckets {
		c.Buckets[i] = h.buckets[i].Load()
	}
	c.Sum = time.Duration(h.sum.Load())
	return c
}

// LatencyCounts are a Histogram's numbers at one moment. The zero value has none.
type LatencyCounts struct {
	Buckets [len(LatencyBounds) + 1]uint64 // of each bucket alone
	Sum     time.Duration
}

// Count returns how many durations there are.
func (c LatencyCounts) Count() (n uint64) {
	for _, b := range c.Buckets {
		n += b
	}
	return n
}

// Add adds those of o.
func (c *LatencyCounts) Add(o *LatencyCounts) {
	for i, b := range o.Buckets {
		c.Buckets[i] += b
	}
	c.Sum += o.Sum
}

// Since returns what has come since the same Histogram had old; all of it, if that one
// was another's, which had more.
func (c LatencyCounts) Since(old *LatencyCounts) LatencyCounts {
	d := c
	for i, b := range old.Buckets {
		if b > d.Buckets[i] {
			return c
		}
		d.Buckets[i] -= b
	}
	d.Sum = max(d.Sum-old.Sum, 0)
	return d
}

// Quantile returns the duration that a share of q, 0 to 1, does not exceed, as
// Prometheus' histogram_quantile does: evenly spread within a bucket, and at most the
// last of LatencyBounds. It is 0 without durations.
func (c LatencyCounts) Quantile(q float64) time.Duration {
	rank := q * float64(c.Count())
	if rank == 0 {
		return 0
	}
	below, from := 0.0, time.Duration(0)
	for i, to := range LatencyBounds {
		n := float64(c.Buckets[i])
		if n > 0 && below+n >= rank {
			return from + time.Duration(float64(to-from)*(rank-below)/n)
		}
		below, from = below+n, to
	}
	return from
}

// Latency is how long the endpoints of a cluster take. The zero Latency is ready to use.
type Latency struct {
	// Connect is the time from the start of the dial that succeeded, earlier attempts
	// not included, until the endpoint was connected, TLS included.
	// Source: Envoy's cluster statistic upstream_cx_connect_ms.
	Connect Histogram
	// FirstByte is that until its first byte came: with protocols in which the client
	// speaks first, the client's time is in it too. Connections without one don't count.
	FirstByte Histogram
}
