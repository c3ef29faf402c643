package main

import (
	"context"
	"fmt"
	"runtime"
)

// name returns what the variant adds to the name of a row.
func (v variant) name() (s string) {
	if v.text {
		s += ", key from text"
	}
	if v.observe {
		s += ", observed"
	}
	if v.down > 0 {
		s += fmt.Sprintf(", %v %% down", v.down)
	}
	if v.each {
		s += ", a pin each"
	}
	return s
}

// goal returns the most nanoseconds that a pick by a pinned reader on one core
// may take, 0 where nothing is said.
func (v variant) goal(policy string, n int) float64 {
	if v.down > 0 || v.each || v.observe {
		return 0
	}
	switch policy {
	case "round_robin", "random":
		return 30
	case "least_weight":
		return 60
	case "adaptive":
		if n <= 1000 {
			return 60
		}
		return 150
	case "ring_hash", "maglev":
		if v.text {
			return 100
		}
		return 60
	case "ring_hash x100":
		if n == 10000 {
			return 250
		}
	}
	return 0
}

// lbCase is a policy with a set.
type lbCase struct {
	policy policy
	n      int
	mixed  bool
}

func (c lbCase) name() string {
	s := fmt.Sprintf("%s of %d", c.policy.name, c.n)
	if c.mixed {
		s += ", weights 1 to 4"
	}
	return s
}

// benchLB measures selectors: what a pick costs, and a build.
func benchLB(ctx context.Context, r *runner) []row {
	var jobs []job
	var cases []lbCase
	each := int(r.each.Milliseconds())
	for _, n := range r.ns {
		for _, p := range policies {
			for _, mixed := range []bool{false, true} {
				cases = append(cases, lbCase{p, n, mixed})
				jobs = append(jobs, job{spec: spec{Kind: "lb", Subject: p.name, N: n, Mixed: mixed, Full: r.full, EachMS: each}})
			}
		}
	}
	special := len(jobs)
	jobs = append(jobs,
		job{spec: spec{Kind: "build", N: r.sort / 100, Points: r.sort, Full: true}},
		job{spec: spec{Kind: "build", N: r.wide, Points: 20 * r.wide}})
	atPeers := len(jobs)
	ps := peerJobs(ctx, r, each)
	for _, p := range ps {
		if p.err == nil {
			jobs = append(jobs, p.job)
		}
	}

	outs := r.rounds(ctx, jobs)
	var rows []row
	k := atPeers
	byCase := make(map[string][]row)
	for _, p := range ps {
		o := &outcome{err: p.err}
		if p.err == nil {
			o = &outs[k]
			k++
		}
		byCase[p.beside] = append(byCase[p.beside], p.rows(o, outs, cases)...)
	}
	for i, c := range cases {
		rows = append(rows, c.rows(&outs[i], r.full)...)
		rows = append(rows, byCase[c.name()]...)
	}
	return append(rows, buildRows(r, &outs[special], &outs[special+1])...)
}

// ours is the subject of the rows about this project.
const ours = "gatehouse"

// rows returns the figures of a case.
func (c lbCase) rows(o *outcome, full bool) (rows []row) {
	add := func(r row) { rows = append(rows, r) }
	var one float64 // ns on one core
	for _, v := range variants(c.policy.name, c.policy.hashed, full) {
		name := "pick, " + c.name() + v.name()
		if v.cores > runtime.NumCPU() {
			add(missing(name, fmt.Sprintf("%s, %d cores", ours, v.cores), "this machine has fewer cores"))
			continue
		}
		subject := ours + ", 1 core"
		if v.cores > 1 {
			subject = fmt.Sprintf("%s, %d cores", ours, v.cores)
		}
		r, ok := o.row(name, subject, "ns", v.key())
		if ok && v.cores == 1 {
			one = *r.Value
			if g := v.goal(c.policy.name, c.n); g > 0 {
				r = r.atMost(g)
			}
		} else if ok {
			r = r.ratio("1 core", one)
			if v.down == 0 && !v.each {
				r = r.atMost(1)
			}
		}
		add(r)
	}
	r, ok := o.row("allocations a pick, "+c.name(), ours, "", "allocs")
	if ok {
		r = r.atMost(0)
	}
	add(r)
	r, ok = o.row("build, "+c.name(), ours, "ms", "build_ms")
	if ok && c.policy.name == "ring_hash x100" && c.n == 10000 {
		r = r.atMost(150)
	}
	add(r)
	bytes := o.of("bytes")
	entries, unit := c.n, "B/endpoint"
	if p := points(c.policy.name, c.n); p > 0 && !c.mixed {
		entries, unit = p, "B/point"
	}
	r, ok = o.row("storage, "+c.name(), ours, unit, "bytes")
	if ok {
		r = figure(r.Row, ours, unit, []float64{median(bytes) / float64(entries)})
		if unit == "B/point" && (c.policy.name == "ring_hash" || c.policy.name == "ring_hash x100") {
			r = r.atMost(12)
		}
	}
	return append(rows, r)
}

// buildRows are those of the rings that are built only.
func buildRows(r *runner, sorted, wide *outcome) (rows []row) {
	name := fmt.Sprintf("build, ring of %d points", r.sort)
	own, ok := sorted.row(name, ours, "ms", "build_ms")
	rows = append(rows, own)
	other, also := sorted.row(name, "slices.SortFunc", "ms", "obvious_ms")
	if ok && also {
		other = other.ratio(ours, *own.Value).atLeast(2.5)
	}
	rows = append(rows, other)
	name = fmt.Sprintf("storage, ring of %d endpoints x 20", r.wide)
	if bytes := wide.of("bytes"); len(bytes) > 0 {
		return append(rows, figure(name, ours, "B/point", []float64{median(bytes) / float64(20*r.wide)}).atMost(16))
	}
	missing, _ := wide.row(name, ours, "B/point", "bytes")
	return append(rows, missing)
}
