package main

import (
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"gatehouse.internal/test/bench/control"
)

// The goals are for 1,000 clusters of ours, the ratio of CPU is that of one round,
// and who can't be measured says why in one row.
func TestControlRows(t *testing.T) {
	at := func(subject, variant, kind string, n int, samples map[string][]float64) (controlKey, *outcome) {
		return controlKey{subject, variant, kind, n}, &outcome{samples: samples}
	}
	outs := make(map[controlKey]*outcome)
	put := func(k controlKey, o *outcome) { outs[k] = o }
	figures := func(cpu ...float64) map[string][]float64 {
		return map[string][]float64{control.Sync: {6000}, control.P50: {9}, control.P99: {50}, control.CPU: cpu,
			control.Sets: {1}, control.Builds: {1.5}, control.RSS: {2e8}}
	}
	put(at(control.Gatehouse, control.Delta, control.Updates, 10, figures(100, 200)))
	put(at(control.Gatehouse, control.Delta, control.Updates, 1000, figures(150, 200)))
	put(at(control.Gatehouse, control.SotW, control.Updates, 10, figures(100)))
	put(at(control.Gatehouse, control.SotW, control.Updates, 1000, figures(1000)))
	put(at(control.Gatehouse, control.Delta, control.Memory, 1000, map[string][]float64{control.Endpoint: {599}, control.Cluster: {9000}, control.Storage: {1e7}}))
	put(at(control.GRPC, control.SotW, control.Updates, 1000, map[string][]float64{control.Sync: {7000}}))
	outs[controlKey{control.GRPC, control.Delta, "", 0}] = &outcome{err: errNoDelta}
	rep := report{Rows: controlRows(outs, controlSize{clusters: []int{10, 1000}, endpoints: 50})}
	const delta, sotw = "gatehouse, delta", "gatehouse, sotw"
	for _, want := range []struct {
		name, subject, goal string
		ok                  bool
	}{
		{"first sync, 1000 clusters of 50", delta, "<= 5000", false},
		{"first sync, 1000 clusters of 50", sotw, "<= 5000", false},
		{"update to first pick, p50, 1000 clusters of 50", delta, "<= 10", true},
		{"CPU an update, 1000 clusters of 50", delta, "<= 1.5", true},
		{"sets that differ, an update, 1000 clusters of 50", sotw, "<= 1", true},
		{"selectors built, an update, 1000 clusters of 50", sotw, "<= 1", false},
		{"heap an endpoint, 1000 clusters of 50", delta, "<= 600", true},
	} {
		if r := find(t, rep, want.name, want.subject); r.Goal != want.goal || r.OK == nil || *r.OK != want.ok {
			t.Errorf("%s: %+v", want.name, r)
		}
	}
	if r := find(t, rep, "CPU an update, 1000 clusters of 50", delta); *r.Ratio != 1.25 || *r.RatioMin != 1 || *r.RatioMax != 1.5 || *r.Value != 175 {
		t.Errorf("CPU: %+v", r)
	}
	for name, subject := range map[string]string{
		"first sync, 10 clusters of 50": delta, "CPU an update, 1000 clusters of 50": sotw, "first sync, 1000 clusters of 50": "grpc-go, sotw",
		"update to first pick, p50, 1000 clusters of 50": sotw,
	} {
		if r := find(t, rep, name, subject); r.Goal != "" || r.Error != "" {
			t.Errorf("%s of %s: %+v", name, subject, r)
		}
	}
	none := 0
	for _, r := range rep.Rows {
		if r.Subject == "grpc-go, delta" {
			none++
		}
	}
	if r := find(t, rep, "all figures", "grpc-go, delta"); none != 1 || r.Error != errNoDelta.Error() {
		t.Errorf("%d rows of what there is not: %+v", none, r)
	}
}

// The agent, at the smallest, with a real control plane.
func TestXDS(t *testing.T) {
	if runtime.GOOS != "linux" {
		if _, err := control.Take(t.Context(), control.Spec{}); err == nil {
			t.Error("measured without Linux")
		}
		return
	}
	r := &runner{size: size{rounds: 1, full: true, control: controlSize{clusters: []int{2, 4}, endpoints: 3, timed: 3, each: 20 * time.Millisecond}},
		self: os.Args[0], log: t.Output()}
	rep := report{Rows: benchXDS(t.Context(), r)}
	for _, variant := range []string{control.Delta, control.SotW} {
		subject := control.Gatehouse + ", " + variant
		for _, name := range []string{"first sync", "update to first pick, p50", "update to first pick, p99", "CPU an update", "RSS"} {
			for _, clusters := range []string{", 2 clusters of 3", ", 4 clusters of 3"} {
				if r := find(t, rep, name+clusters, subject); r.Error != "" || name != "CPU an update" && *r.Value <= 0 {
					t.Errorf("%s%s: %+v", name, clusters, r)
				}
			}
		}
		// Each update was another set, and only that; on a busy machine two may have
		// led to one selector.
		if r := find(t, rep, "sets that differ, an update, 4 clusters of 3", subject); r.Error != "" || *r.Value <= 0.5 || *r.Value > 1 {
			t.Errorf("sets: %+v", r)
		}
		if r := find(t, rep, "selectors built, an update, 4 clusters of 3", subject); r.Error != "" || *r.Value <= 0 || *r.Value > 1 {
			t.Errorf("selectors: %+v", r)
		}
		if r := find(t, rep, "storage of selectors, 4 clusters of 3", subject); r.Error != "" || *r.Value <= 0 {
			t.Errorf("storage: %+v", r)
		}
		for _, name := range []string{"heap an endpoint", "heap a cluster with one endpoint"} {
			find(t, rep, name+", 4 clusters of 3", subject)
		}
	}
	for _, variant := range []string{control.Delta, control.SotW} {
		if r := find(t, rep, "all figures", control.GRPC+", "+variant); !strings.Contains(r.Error, "without peers") {
			t.Errorf("%+v", r)
		}
	}
}
