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

// perPoint is about what a point of a ring takes, in bytes.
const perPoint = 12.25

// benchMemory measures what rebuilds of many rings cost in memory, in time and
// in the latency of picks.
func benchMemory(ctx context.Context, r *runner) []row {
	type memCase struct {
		name string
		err  error
		at   int // of its first mode among the jobs
	}
	var cases []memCase
	var jobs []job // the crowds first: a short budget must not starve them
	for _, points := range r.crowds {
		jobs = append(jobs, job{spec: spec{Kind: "crowd", N: r.crowd, Points: points, LimitMS: int(r.limit.Milliseconds())}})
	}
	for _, points := range r.points {
		for _, n := range r.rings {
			mb := float64(points) * perPoint / 1e6
			c := memCase{name: fmt.Sprintf("%d rings of %.2g MB", n, mb), at: len(jobs)}
			if mb >= 10 {
				c.name = fmt.Sprintf("%d rings of %.3g MB", n, mb)
			}
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
				// It is built about five times, at 60 ns a point.
				guess := 2*r.watch + 5*time.Duration(n*points)*60
				for _, mode := range modes {
					jobs = append(jobs, job{guess: guess, spec: spec{Kind: "memory", Subject: mode, N: n, Points: points,
						WatchMS: int(r.watch.Milliseconds()), During: r.during}})
				}
			}
			cases = append(cases, c)
		}
	}

	outs := r.rounds(ctx, jobs)
	var rows []row
	for _, c := range cases {
		for i, mode := range modes {
			if c.err != nil {
				rows = append(rows, missing("memory, "+c.name, mode, c.err.Error()))
				continue
			}
			rows = append(rows, memoryRows(c.name, mode, &outs[c.at+i])...)
		}
	}
	for i, points := range r.crowds {
		name := fmt.Sprintf("%d rings of %.3g kB rebuilt under 2 busy readers", r.crowd, float64(points)*perPoint/1e3)
		rows = append(rows, crowdRows(name, &outs[i])...)
	}
	return rows
}

// figures are those of a mode in a case, in the order of the table.
var figures = []struct{ key, name, unit string }{
	{"peak", "peak RSS", "MB"},
	{"live", "selectors published and building", ""},
	{"converged_ms", "time to convergence", "ms"},
	{"built", "builds done", ""},
	{"coalesced", "requests coalesced", ""},
}

// updates are the two kinds that a case goes through.
var updates = []struct{ key, name string }{{"one ", "one update"}, {"burst ", "ten updates in 100 ms"}}

func memoryRows(name, mode string, o *outcome) (rows []row) {
	if len(o.samples) == 0 {
		r, _ := o.row("memory, "+name, mode, "", "")
		return []row{r}
	}
	add := func(r row, _ bool) { rows = append(rows, r) }
	for _, u := range updates {
		for _, f := range figures {
			r, ok := o.row(f.name+", "+name+", "+u.name, mode, f.unit, u.key+f.key)
			if ok && f.key == "peak" {
				// Medians of ratios, as each process has a base of its own.
				r.RatioTo, r.Ratio = "live + largest + base", new(short(median(o.of(u.key+"peak_ratio"))))
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
			if ratios := o.of("during ratio" + q.key); ok && phase == "during" && len(ratios) > 0 {
				r.RatioTo, r.Ratio = "before", new(short(median(ratios)))
				if q.percent == 99 && mode == "reuse" {
					r = r.atMost(2)
				}
			}
			add(r, ok)
		}
	}
	return rows
}

// quantiles are those that are shown of latencies.
var quantiles = []struct {
	percent float64
	key     string
}{{50, " p50"}, {99, " p99"}, {99.9, " p99.9"}}

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

// spread puts the quantiles of sorted nanoseconds into vs as microseconds.
func spread(vs values, phase string, sorted []int64) {
	for _, q := range quantiles {
		v := math.NaN()
		if len(sorted) > 0 {
			v = float64(quantile(sorted, q.percent/100)) / 1e3
		}
		vs[phase+q.key] = v
	}
}
