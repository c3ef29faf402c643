package telemetry

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"gatehouse.internal/forwarder"
)

// maxSeries is how many series with labels there are at most; 5,000 clusters have about
// as many.
const maxSeries = 1 << 18

// maxLabels is how many labels a metric has at most.
const maxLabels = 2

// seriesKey is what a series is known by: the labels' values are in the order of the
// table, so that there is one series for the same labels.
type seriesKey struct {
	m      *Metric
	labels [maxLabels]string
}

// series is one of a metric's, of all labels.
type series struct {
	// A counter counts up from base, where it has begun anew; last is its total as it
	// was told. Both kinds of numbers are as large as they can be: no float32.
	base, last uint64
	value      float64    // a gauge's
	hist       *histogram // of a histogram, else nil
	pushed     uint64     // of base and last, what was handed to those that want increments
	seen       uint64     // the collection that told it last
	at         int64      // when that was, Unix nanoseconds
}

// histogram is a counter of many parts.
type histogram struct {
	base, last, pushed forwarder.LatencyCounts
}

func (h *histogram) total() forwarder.LatencyCounts {
	c := h.last
	c.Add(&h.base)
	return c
}

// Recorder takes values during a collection, from the function that was given to Run
// and from nobody else.
type Recorder struct {
	all       map[seriesKey]*series
	blocked   map[*Metric]bool // by prefix_filter; never written
	max       int
	retention time.Duration

	collection uint64
	now        int64
	full       bool   // nothing was to be dropped in this collection any more
	leftOut    uint64 // series that found no place
}

func newRecorder(retention time.Duration, blocked map[*Metric]bool) Recorder {
	return Recorder{all: make(map[seriesKey]*series), blocked: blocked, max: maxSeries, retention: retention}
}

// begin begins a collection.
func (r *Recorder) begin(now time.Time) {
	r.collection++
	r.now, r.full = now.UnixNano(), false
}

// end ends a collection, and forgets what was not told for longer than the retention.
func (r *Recorder) end() {
	r.Gauge(TelemetrySeries, float64(len(r.all)))
	r.Counter(TelemetryLeftOut, r.leftOut)
	for k, s := range r.all {
		if time.Duration(r.now-s.at) > r.retention {
			delete(r.all, k)
		}
	}
}

// find returns the series of these labels, and whether it has just begun, or begun anew
// because who tells it was gone for a collection; nil if it has no place, or was told in
// this collection.
func (r *Recorder) find(m *Metric, labels []string) (s *series, anew bool) {
	if len(labels) != len(m.labels) {
		panic(fmt.Sprintf("telemetry: %s has labels %v, got %d values", m.name, m.labels, len(labels)))
	}
	if r.blocked[m] {
		return nil, false
	}
	k := seriesKey{m: m}
	for i, v := range labels {
		if !utf8.ValidString(v) {
			v = strings.ToValidUTF8(v, "\ufffd")
		}
		k.labels[i] = v
	}
	s = r.all[k]
	if s == nil {
		if len(labels) > 0 && len(r.all) >= r.max && !r.room() {
			r.leftOut++
			return nil, false
		}
		s = new(series)
		r.all[k] = s
	}
	if s.seen == r.collection { // told already: two can't take turns in one series
		return nil, false
	}
	anew = s.seen+1 < r.collection
	s.seen, s.at = r.collection, r.now
	return s, anew
}

// room drops what nobody has told since the collection before this one, and reports
// whether there is room then.
func (r *Recorder) room() bool {
	if r.full {
		return false
	}
	for k, s := range r.all {
		if s.seen+1 < r.collection {
			delete(r.all, k)
		}
	}
	r.full = len(r.all) >= r.max
	return !r.full
}

// Counter records the total of a counter, labels in the order of the table, once in a
// collection: the first counts. A total that is less than the one before, or comes after a
// collection without one, has begun anew, as when a cluster has left and come again: the
// series goes on from where it was.
func (r *Recorder) Counter(m *Metric, total uint64, labels ...string) {
	s, anew := r.find(m, labels)
	if s == nil {
		return
	}
	if anew || total < s.last {
		s.base += s.last
	}
	s.last = total
}

// Gauge records a present value, labels in the order of the table.
func (r *Recorder) Gauge(m *Metric, v float64, labels ...string) {
	if s, _ := r.find(m, labels); s != nil {
		s.value = v
	}
}

// Histogram records how many durations there are, labels in the order of the table. It
// begins anew as Counter's does.
func (r *Recorder) Histogram(m *Metric, c forwarder.LatencyCounts, labels ...string) {
	s, anew := r.find(m, labels)
	if s == nil {
		return
	}
	if s.hist == nil {
		s.hist = new(histogram)
	}
	h := s.hist
	fewer := c.Sum < h.last.Sum
	for i, n := range c.Buckets {
		fewer = fewer || n < h.last.Buckets[i]
	}
	if anew || fewer {
		h.base.Add(&h.last)
	}
	h.last = c
}
