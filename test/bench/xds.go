package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"gatehouse.internal/test/bench/control"
)

// controlSize is how much xds measures.
type controlSize struct {
	clusters  []int // two: the first is what the CPU of the last is compared to
	endpoints int   // of each
	timed     int   // updates whose latency is measured
	each      time.Duration
}

// goalClusters is what the goals are for.
const goalClusters = 1000

var errNoDelta = errors.New("it has no incremental variant")

// controlKey names what is measured.
type controlKey struct {
	subject, variant, kind string
	clusters               int
}

// String names the subject of rows.
func (k controlKey) String() string { return k.subject + ", " + k.variant }

// controlSubjects are what is measured, in the order of rows.
var controlSubjects = []controlKey{
	{subject: control.Gatehouse, variant: control.Delta},
	{subject: control.Gatehouse, variant: control.SotW},
	{subject: control.GRPC, variant: control.Delta},
	{subject: control.GRPC, variant: control.SotW},
}

// benchXDS measures what a control plane costs its client.
func benchXDS(ctx context.Context, r *runner) []row {
	outs := make(map[controlKey]*outcome)
	exes, errs := controlPrograms(ctx, r)
	defer os.RemoveAll(filepath.Dir(exes[control.Gatehouse]))
	var jobs []job
	var keys []controlKey
	few, many := r.control.clusters[0], r.control.clusters[1]
	for _, k := range controlSubjects {
		err := errs[k.subject]
		if err == nil && k.subject == control.GRPC && k.variant == control.Delta {
			err = errNoDelta
		}
		if err != nil {
			outs[k] = &outcome{err: err} // of all that would be measured
			continue
		}
		// What is compared stands next to each other.
		for _, k := range []controlKey{
			{k.subject, k.variant, control.Updates, few}, {k.subject, k.variant, control.Updates, many}, {k.subject, k.variant, control.Memory, many},
		} {
			keys = append(keys, k)
			jobs = append(jobs, job{spec: spec{Kind: "xds", Control: control.Spec{
				Subject: k.subject, Case: k.kind, Variant: k.variant, Exe: exes[k.subject],
				Clusters: k.clusters, Endpoints: r.control.endpoints, Timed: r.control.timed, Each: r.control.each,
			}}})
		}
	}
	for i, o := range r.rounds(ctx, jobs) {
		outs[keys[i]] = &o
	}
	return controlRows(outs, r.control)
}

// controlRows are what was measured.
func controlRows(outs map[controlKey]*outcome, size controlSize) (rows []row) {
	few, many := size.clusters[0], size.clusters[1]
	for _, k := range controlSubjects {
		if o := outs[k]; o != nil {
			rows = append(rows, missing("all figures", k.String(), o.err.Error()))
		}
	}
	add := func(kind string, clusters int, what, unit, figure string, scale float64, more func(controlKey, row) row) {
		for _, k := range controlSubjects {
			k.kind, k.clusters = kind, clusters
			o := outs[k]
			if o == nil || len(o.samples) > 0 && len(o.of(figure)) == 0 { // it is not known of this subject
				continue
			}
			r, ok := o.row(fmt.Sprintf("%s, %d clusters of %d", what, clusters, size.endpoints), k.String(), unit, figure)
			if ok {
				r.Value = new(short(*r.Value * scale))
				if more != nil {
					r = more(k, r)
				}
			}
			rows = append(rows, r)
		}
	}
	// goal is for what is ours, and as large as it was set for.
	goal := func(limit float64, variants ...string) func(controlKey, row) row {
		return func(k controlKey, r row) row {
			if k.subject == control.Gatehouse && k.clusters == goalClusters && slices.Contains(variants, k.variant) {
				return r.atMost(limit)
			}
			return r
		}
	}
	both := []string{control.Delta, control.SotW}
	for _, n := range []int{few, many} {
		add(control.Updates, n, "first sync", "ms", control.Sync, 1, goal(5000, both...))
		add(control.Updates, n, "update to first pick, p50", "ms", control.P50, 1, goal(10, control.Delta))
		add(control.Updates, n, "update to first pick, p99", "ms", control.P99, 1, nil)
		add(control.Updates, n, "CPU an update", "us", control.CPU, 1, func(k controlKey, r row) row {
			if n != many {
				return r
			}
			base := k
			base.clusters = few
			if p := pairs(outs[k], outs[base], control.CPU); len(p) > 0 {
				return goal(1.5, control.Delta)(k, r.ratios(fmt.Sprintf("%d clusters", few), p))
			}
			return r
		})
		add(control.Updates, n, "sets that differ, an update", "", control.Sets, 1, goal(1, both...))
		add(control.Updates, n, "selectors built, an update", "", control.Builds, 1, goal(1, both...))
		add(control.Updates, n, "RSS", "MB", control.RSS, 1e-6, nil)
	}
	add(control.Memory, many, "heap an endpoint", "B", control.Endpoint, 1, goal(600, both...))
	add(control.Memory, many, "heap a cluster with one endpoint", "B", control.Cluster, 1, nil)
	add(control.Memory, many, "storage of selectors", "MB", control.Storage, 1e-6, nil)
	return rows
}

// controlPrograms builds what is to be built, and says why one can't be had. The
// folder of Gatehouse's is the caller's to remove.
func controlPrograms(ctx context.Context, r *runner) (exes map[string]string, errs map[string]error) {
	exes, errs = make(map[string]string), make(map[string]error)
	build := func(subject string, exe string, err error) {
		exes[subject], errs[subject] = exe, err
		if err != nil {
			r.failed++
			fmt.Fprintln(r.log, "bench:", err)
		}
	}
	exe, err := buildAgent(ctx)
	build(control.Gatehouse, exe, err)
	if !r.peers {
		errs[control.GRPC] = errLeftOut
		return exes, errs
	}
	exe, err = buildPeers(ctx, r, "xdsclient")
	build(control.GRPC, exe, err)
	return exes, errs
}
