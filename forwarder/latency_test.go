package forwarder

import (
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// Whatever is observed, the counts are those of a plain model, and a quantile lies in
// the bucket of the duration that it stands for.
func TestHistogram(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) time.Duration {
			if rapid.Bool().Draw(t, "a bound") {
				return rapid.SampledFrom(LatencyBounds[:]).Draw(t, "bound") + time.Duration(rapid.IntRange(-1, 1).Draw(t, "off"))
			}
			return time.Duration(rapid.Int64Range(-5, int64(20*time.Second)).Draw(t, "duration"))
		}), 0, 60).Draw(t, "durations")
		half := rapid.IntRange(0, len(all)).Draw(t, "half")
		var h Histogram
		var old LatencyCounts
		var sum time.Duration
		for i, d := range all {
			if i == half {
				old = h.Counts()
			}
			h.Observe(d)
			all[i] = max(d, 0)
			sum += all[i]
		}
		if half == len(all) {
			old = h.Counts()
		}
		c := h.Counts()
		if c.Sum != sum || c.Count() != uint64(len(all)) {
			t.Fatalf("%d durations of %v in all, want %d of %v", c.Count(), c.Sum, len(all), sum)
		}
		since := c.Since(&old)
		back := old
		if back.Add(&since); back != c || since.Count() != uint64(len(all)-half) {
			t.Fatalf("%+v after %+v is not %+v", since, old, c)
		}
		if half > 0 && old.Since(&c) != old && old != c {
			t.Fatal("of another one not all is new")
		}
		slices.Sort(all)
		bucket := func(d time.Duration) int {
			return slices.IndexFunc(append(LatencyBounds[:], math.MaxInt64), func(to time.Duration) bool { return d <= to })
		}
		q := rapid.Float64Range(0.01, 1).Draw(t, "q")
		got := c.Quantile(q)
		if len(all) == 0 {
			if got != 0 {
				t.Fatalf("%v of nothing", got)
			}
			return
		}
		want := bucket(all[int(math.Ceil(q*float64(len(all))))-1])
		if last := len(LatencyBounds) - 1; want > last { // no more is told
			if got != LatencyBounds[last] {
				t.Fatalf("quantile %v is %v", q, got)
			}
			return
		}
		// On the edge of two buckets either is right.
		if b := bucket(got); b != want && !(b == want-1 && got == LatencyBounds[b]) {
			t.Fatalf("quantile %v is %v, in bucket %d, want %d", q, got, b, want)
		}
	})
}

// Connections report from many goroutines at once, without a lock or an allocation.
func TestHistogramIsForHotPaths(t *testing.T) {
	var h Histogram
	if n := testing.AllocsPerRun(100, func() { h.Observe(3 * time.Millisecond) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
	before := h.Counts()
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for range 1000 {
				h.Observe(time.Duration(i) * 100 * time.Millisecond)
			}
		})
	}
	last := uint64(0)
	for range 100 { // while they do, counts only grow
		c := h.Counts()
		if n := c.Count(); n < last {
			t.Fatalf("%d after %d", n, last)
		} else {
			last = n
		}
	}
	wg.Wait()
	c := h.Counts()
	if d := c.Since(&before); d.Count() != 8000 || d.Sum != 1000*28*100*time.Millisecond {
		t.Errorf("%d of %v", d.Count(), d.Sum)
	}
}
