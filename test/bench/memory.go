package main

import (
	"context"
	"fmt"
	"math"
	"time"
)

// modes are the ways to rebuild that memory compares. That with goals comes
// first, should there be no time for all.
var modes = []string{"reuse", "gated", "ungated"}

// perPoint is what a point of a large ring takes at most, in bytes. What one
// really took is in the rows.
const perPoint = 11.25

// benchMemory measures what rebuilds of many rings cost in memory, in time and
// in the latency of picks.
func benchMemory(ctx context.Context, r *runner) []row {
	type memCase struct {
		n, points int
		err       error
		at        int // of its first mode among the jobs
	}
	var cases []memCase
	var jobs []job // the crowds first: a short budget must not starve them
	for _, c := range r.crowds {
		jobs = append(jobs, job{spec: spec{Kind: "crowd", N: r.crowd, Points: c.points, Large: c.large, LimitMS: int(r.limit.Milliseconds())}})
	}
	for _, points := range r.points {
		for _, n := range r.rings {
			c := memCase{n: n, points: points, at: len(jobs)}
			// Ungated and gated take about twice as much as lives.
			need := int(float64(n) * float64(points) * perPoint)
			switch free := available(); {
			case need > r.most && !r.full:
				c.err = fmt.Errorf("left out of a quick run")
			case need > r.most:
				c.err = fmt.Errorf("more than %d MB in all", r.most>>20)
			case free > 0 && 5*need/2 > free:
				c.err = fmt.Errorf("needs %d MB, and %d are available", 5*need/2>>20, free>>20)
			default:
				// It is built about four times, at 80 ns a point.
				guess := time.Duration(2*r.pairs+1)*r.watch + 4*time.Duration(n*points)*80
				for _, mode := range modes {
					jobs = append(jobs, job{guess: guess, spec: spec{Kind: "memory", Subject: mode, N: n, Points: points,
						WatchMS: int(r.watch.Milliseconds()), Pairs: r.pairs}})
				}
			}
			cases = append(cases, c)
		}
	}

	outs := r.rounds(ctx, jobs)
	took := make(map[int][]float64) // bytes of a ring, by its points
	for i, j := range jobs {
		took[j.spec.Points] = append(took[j.spec.Points], outs[i].of("ring")...)
	}
	var rows []row
	for _, c := range cases {
		name := ringsOf(c.n, c.points, took)
		for i, mode := range modes {
			if c.err != nil {
				rows = append(rows, missing("memory, "+name, mode, c.err.Error()))
				continue
			}
			o := &outs[c.at+i]
			rows = append(rows, memoryRows(name, mode, c.n, o)...)
			if r, ok := larger(name, mode, c.n, c.points, o); ok {
				rows = append(rows, r)
			}
		}
	}
	for i, c := range r.crowds {
		lane := "small"
		if c.large {
			lane = "large"
		}
		name := fmt.Sprintf("%s, %s lane, under 2 busy readers", ringsOf(r.crowd, c.points, took), lane)
		rows = append(rows, crowdRows(name, &outs[i])...)
	}
	return rows
}

// ringsOf names rings by their storage, or by their points if none was built.
func ringsOf(n, points int, took map[int][]float64) string {
	switch bytes := median(took[points]); {
	case bytes >= 1e6:
		return fmt.Sprintf("%d rings of %.3g MB", n, bytes/1e6)
	case bytes > 0:
		return fmt.Sprintf("%d rings of %.3g kB", n, bytes/1e3)
	}
	return fmt.Sprintf("%d rings of %d points", n, points)
}

// figures are those of a mode in a case, in the order of the table.
var figures = []struct{ key, name, unit string }{
	{"peak", "peak RSS", "MB"},
	{"live", "selectors published and building", ""},
	{"storage", "storage, high-water mark", "rings"},
	{"held", "storage of retired and stuck ones, high-water mark", "rings"},
	{"converged_ms", "time to convergence", "ms"},
	{"built", "builds done", ""},
	{"coalesced", "requests coalesced", ""},
}

// updates are the two kinds that a case goes through.
var updates = []struct{ key, name string }{{"one ", "one update"}, {"burst ", "ten updates in 100 ms"}}

// memoryRows returns the figures of a mode of n rings.
func memoryRows(name, mode string, n int, o *outcome) (rows []row) {
	if len(o.samples) == 0 {
		r, _ := o.row("memory, "+name, mode, "", "")
		return []row{r}
	}
	add := func(r row, _ bool) { rows = append(rows, r) }
	for _, u := range updates {
		for _, f := range figures {
			r, ok := o.row(f.name+", "+name+", "+u.name, mode, f.unit, u.key+f.key)
			switch {
			case ok && f.key == "storage":
				r = r.ratio("published + 1", float64(n+1))
				if median(o.of("ring")) >= smallBuild {
					r = r.atMost(1.05)
				}
			case !ok && f.unit == "rings":
				continue // can't be seen
			case ok && f.key == "peak":
				// Of ratios, as each process has a base of its own.
				r = r.ratios("live + largest + base", o.of(u.key+"peak_ratio"))
				if mode == "reuse" {
					r = r.atMost(1.15)
				}
			}
			add(r, ok)
		}
	}
	for _, q := range quantiles {
		for _, phase := range []string{"before", "during", "after"} {
			r, ok := o.row(fmt.Sprintf("p%v of 32 picks %s, %s", q.percent, phase, name), mode, "us", phase+q.key)
			if ok && phase == "during" {
				var ratios []float64
				for i := 0; len(o.of(ratioKey(i, q.key))) > 0; i++ {
					ratios = append(ratios, o.of(ratioKey(i, q.key))...)
				}
				r = r.ratios("before", ratios)
				if q.percent == 99 && mode == "reuse" {
					r = r.atMost(2)
				}
			}
			add(r, ok)
		}
	}
	return rows
}

// larger returns the larger peak of both updates where it must show what the
// gate saves: without it, and where rings outweigh the rest of a process.
func larger(name, mode string, n, points int, o *outcome) (r row, ok bool) {
	if mode != "ungated" || n < 8 || points < 100_000 {
		return r, false
	}
	if r, ok = o.row("peak RSS, "+name+", the larger of both", mode, "MB", "peak"); ok {
		r = r.ratios("live + largest + base", o.of("peak_ratio")).atLeast(1.7)
	}
	return r, ok
}

// ratioKey names the ratio of a pair.
func ratioKey(pair int, quantile string) string { return fmt.Sprint("ratio ", pair, quantile) }

// part is a quantile that is shown of latencies.
type part struct {
	percent float64
	key     string
}

var quantiles = []part{{50, " p50"}, {99, " p99"}, {99.9, " p99.9"}}

// of returns the quantile of sorted nanoseconds in microseconds.
func (q part) of(sorted []int64) float64 {
	if len(sorted) == 0 {
		return math.NaN()
	}
	return float64(quantile(sorted, q.percent/100)) / 1e3
}

func crowdRows(name string, o *outcome) (rows []row) {
	for _, f := range []struct{ key, name, unit string }{
		{"built", "builds done, in time", ""},
		{"total_ms", "total time, or its limit", "ms"},
		{"per_s", "rate", "builds/s"},
		{"longest_us", "longest batch of 32 picks", "us"},
		{"queue_ms", "p99 of queue times", "ms"},
	} {
		r, _ := o.row(f.name+", "+name, ours, f.unit, f.key)
		rows = append(rows, r)
	}
	return rows
}
