package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"gatehouse.internal/test/bench/forward"
)

// healthSize is how much health measures.
type healthSize struct {
	targets  []int // the last of which has the goals
	shared   int   // targets of the cases with one and with many clusters
	clusters int
	interval time.Duration
}

// The goals are for 10,000 targets, and for 500 that 200 clusters share. Each alone
// with its probes these would take 200 times what one takes, a core and a half, and
// 2 KB a target.
const (
	goalTargets   = 10_000
	goalSharedCPU = 5   // percent of a core
	goalShare     = 750 // bytes resident
)

// benchHealth measures what probes cost.
func benchHealth(ctx context.Context, r *runner) []row {
	backend, _ := json.Marshal(spec{Kind: "backend"}) // can't fail
	exe, err := buildAgent(ctx)
	defer os.RemoveAll(filepath.Dir(exe))
	errs := map[string]error{forward.Gatehouse: err, forward.HAProxy: forward.Installed(forward.HAProxy)}
	if err != nil {
		r.failed++
		fmt.Fprintln(r.log, "bench:", err)
	}
	if !r.peers {
		errs[forward.HAProxy] = errLeftOut
	}
	type key struct {
		relay             string
		targets, clusters int
	}
	var keys []key
	// What has goals comes first, as a quick run may not come to the end.
	for _, n := range slices.Backward(r.probes.targets) {
		keys = append(keys, key{forward.Gatehouse, n, 1}, key{forward.HAProxy, n, 1})
		if len(keys) == 2 {
			keys = append(keys, key{forward.Gatehouse, r.probes.shared, 1}, key{forward.Gatehouse, r.probes.shared, r.probes.clusters})
		}
	}
	one, many := keys[2], keys[3]
	outs := make(map[key]*outcome)
	var jobs []job
	var asked []key
	for _, k := range keys {
		if err := errs[k.relay]; err != nil {
			outs[k] = &outcome{err: err}
			continue
		}
		s := forward.Spec{Relay: k.relay, Case: forward.Health, Backend: []string{r.self, childFlag, string(backend)},
			Each: r.relays.each, Servers: k.targets, Clusters: k.clusters, Interval: r.probes.interval}
		if k.relay == forward.Gatehouse {
			s.Exe = exe
		}
		jobs, asked = append(jobs, job{spec: spec{Kind: "forward", Forward: s}, most: r.relays.rests}), append(asked, k)
	}
	for i, o := range r.rounds(ctx, jobs) {
		outs[asked[i]] = &o
	}

	var rows []row
	add := func(k, to key, name, subject, unit, figure string, scale float64, aim func(row) row) {
		r, ok := outs[k].row(name, subject, unit, figure)
		if ok {
			r.Value = new(short(*r.Value * scale))
			if to != (key{}) {
				by := to.relay
				if to.relay == k.relay {
					by = "1 cluster"
				}
				if p := pairs(outs[k], outs[to], figure); len(p) > 0 {
					r = r.ratios(by, p)
				}
			}
			if aim != nil {
				r = aim(r)
			}
		}
		rows = append(rows, r)
	}
	// A goal is for the ratio where there is one: the two have rows of their own.
	for _, n := range r.probes.targets {
		own, peer := key{forward.Gatehouse, n, 1}, key{forward.HAProxy, n, 1}
		var cpu, memory func(row) row
		if n == goalTargets {
			cpu = func(r row) row { return r.atMost(15) }
			memory = func(r row) row { return r.atMost(40) }
		}
		name := fmt.Sprintf("%d targets, CPU", n)
		add(own, key{}, name, forward.Gatehouse, "% of a core", forward.Rest, 1, cpu)
		add(own, peer, name, forward.Gatehouse, "% of a core", forward.Rest, 1, nil)
		add(peer, key{}, name, forward.HAProxy, "% of a core", forward.Rest, 1, nil)
		name = fmt.Sprintf("%d targets, memory over idle", n)
		add(own, key{}, name, forward.Gatehouse, "MB", forward.Over, 1e-6, memory)
		add(own, peer, name, forward.Gatehouse, "MB", forward.Over, 1e-6, nil)
		add(peer, key{}, name, forward.HAProxy, "MB", forward.Over, 1e-6, nil)
		name = fmt.Sprintf("%d targets, memory over the same without checks", n)
		add(own, key{}, name, forward.Gatehouse, "MB", forward.Checks, 1e-6, memory)
		add(peer, key{}, name, forward.HAProxy, "MB", forward.Checks, 1e-6, nil)
		name = fmt.Sprintf("%d targets, memory when idle", n)
		add(own, key{}, name, forward.Gatehouse, "MB", forward.Base, 1e-6, nil)
		add(peer, key{}, name, forward.HAProxy, "MB", forward.Base, 1e-6, nil)
		add(own, key{}, fmt.Sprintf("%d targets, probes", n), forward.Gatehouse, "1/s", forward.Probes, 1, nil)
	}
	// Many clusters share the probes, and each has a share of its own in every target:
	// who may take connections is each cluster's own business.
	same := fmt.Sprintf("%d targets", r.probes.shared)
	for _, k := range []key{one, many} {
		subject, to := "1 cluster", key{}
		var probes, cpu, share func(row) row
		if k == many {
			subject, to = fmt.Sprintf("%d clusters", r.probes.clusters), one
			probes = func(r row) row { return r.atMost(1.05) }
			cpu = func(r row) row { return r.atMost(goalSharedCPU) }
			share = func(r row) row { return r.atMost(goalShare) }
		}
		add(k, to, same+", probes", subject, "1/s", forward.Probes, 1, probes)
		add(k, key{}, same+", CPU", subject, "% of a core", forward.Rest, 1, cpu)
		add(k, key{}, same+", memory over idle", subject, "MB", forward.Over, 1e-6, nil)
		add(k, key{}, same+", memory over the same without checks", subject, "MB", forward.Checks, 1e-6, nil)
		if k == many {
			add(k, to, same+", CPU", subject, "% of a core", forward.Rest, 1, nil)
			add(k, key{}, same+", memory of a share in a check", subject, "B", forward.Checks, 1/float64(r.probes.shared*r.probes.clusters), share)
		}
	}
	return rows
}
