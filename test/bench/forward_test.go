package main

import (
	"errors"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"gatehouse.internal/test/bench/forward"
)

func sampled(key string, s ...float64) *outcome {
	return &outcome{samples: map[string][]float64{key: s}}
}

func TestRelayRows(t *testing.T) {
	rate, cpu := key(forward.Connect, forward.Rate), key(forward.Connect, forward.CPU)
	own := sampled(rate, 100, 300, 200)
	own.samples[cpu] = []float64{10, 10, 10}
	hap := sampled(rate, 100, 200, 200)
	hap.samples[cpu] = []float64{20, 20, 5}
	outs := relayOutcomes{
		{forward.Plain, forward.Gatehouse, 0}: own,
		{forward.Plain, forward.HAProxy, 0}:   hap,
		{forward.Plain, forward.TCPProxy, 0}:  sampled(rate, 200),
		{forward.Plain, forward.Nginx, 0}:     {err: errors.New("nginx is not installed: apt-get install nginx")},
		{forward.Plain, forward.Direct, 0}:    sampled(rate, 400, 400, 400),
	}
	all := report{Rows: relayRows(outs)}
	if r := find(t, all, "all figures, plain", forward.Nginx); r.Error != "nginx is not installed: apt-get install nginx" {
		t.Errorf("of what is missing: %+v", r)
	}
	var got []row
	for _, f := range relayFigures {
		if f.kind == forward.Plain && (f.key == rate || f.key == cpu) {
			got = append(got, f.rows(outs)...)
		}
	}
	text := func(r row) string {
		if r.Error != "" {
			return r.Error
		}
		s := number(*r.Value)
		if r.Ratio != nil {
			s += " is " + number(*r.Ratio) + " x " + r.RatioTo
		}
		if r.OK != nil {
			s += " " + r.Goal + map[bool]string{true: " ok", false: " missed"}[*r.OK]
		}
		return s
	}
	want := []string{
		"gatehouse: 200 is 1 x haproxy >= 1 ok",
		"gatehouse: 200 is 0.5 x inetaf/tcpproxy >= 1.4 missed", // of the first round, that has both
		"haproxy: 200",
		"inetaf/tcpproxy: 200 is 2 x haproxy",
		"direct: 400 is 2 x haproxy",
		"gatehouse: 10 is 0.5 x haproxy <= 1 ok",
		"haproxy: 20",
		"inetaf/tcpproxy: not measured",
	}
	for i, r := range got {
		if s := r.Subject + ": " + text(r); i >= len(want) || s != want[i] {
			t.Errorf("row %d is %q", i, s)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d rows, want %d", len(got), len(want))
	}
}

// Without HAProxy a figure has no goal: it would be for the value.
func TestRelayRowsWithoutRatio(t *testing.T) {
	rate := key(forward.Bulk1, forward.Rate)
	outs := relayOutcomes{{forward.Plain, forward.Gatehouse, 0}: sampled(rate, 3)}
	for _, f := range relayFigures {
		if f.key != rate || f.kind != forward.Plain {
			continue
		}
		for _, r := range f.rows(outs) {
			if r.Ratio != nil || r.OK != nil {
				t.Errorf("row %+v", r)
			}
		}
	}
}

func TestOwnRows(t *testing.T) {
	ring := sampled(forward.During, 900, 1000)
	ring.samples[forward.RingKey(0)], ring.samples[forward.RingKey(1)] = []float64{1, 1.5}, []float64{3, 4}
	ring.samples[forward.Beside], ring.samples[forward.BesideKey(0)] = []float64{700, 800}, []float64{1.5, 2.5}
	busy := sampled(forward.During, 800)
	busy.samples[forward.RingKey(0)] = []float64{5}
	churn := sampled(forward.Goroutines, 0)
	churn.samples[forward.Left], churn.samples[forward.Heap] = []float64{2}, []float64{-0.5}
	plain := sampled(forward.Looped, 0)
	plain.samples[forward.Pipes] = []float64{2}
	rep := report{Rows: ownRows(relayOutcomes{
		{forward.Ring, forward.Gatehouse, 0}: ring, {forward.Busy, forward.Gatehouse, 3}: busy, {forward.Churn, forward.Gatehouse, 0}: churn, {forward.Plain, forward.Gatehouse, 0}: plain,
	})}
	for name, want := range map[string]struct {
		goal string
		ok   bool
	}{
		"p99 at 10000/s while a large ring is rebuilt": {"<= 2", false},
		"goroutines more, after many connections":      {"<= 0", true},
		"descriptors more, after many connections":     {"<= 0", false},
		"heap more, after many connections":            {"<= 1", true},
		"sockets on own event loops, 64 connections":   {">= 100", false},
		"pipe ends for splicing, bulk on 1 connection": {">= 2", true},
	} {
		if r := find(t, rep, name, ours); r.Goal != want.goal || *r.OK != want.ok {
			t.Errorf("%s: %+v", name, r)
		}
	}
	if r := find(t, rep, "p99 at 10000/s while a large ring is rebuilt", ours); *r.Ratio != 2.25 || *r.RatioMin != 1 || *r.RatioMax != 4 {
		t.Errorf("ratio of pairs: %+v", r)
	}
	if r := find(t, rep, "p99 at 10000/s beside another process that takes as much CPU as the rebuilds", ours); *r.Ratio != 2 || r.OK != nil {
		t.Errorf("the control: %v, %v", *r.Ratio, r.OK)
	}
	if r := find(t, rep, "p99 at 10000/s while a large ring is rebuilt, with probes and changes, GOMAXPROCS=3", ours); *r.Ratio != 5 || r.OK != nil {
		t.Errorf("with more to do: %+v", r)
	}
}

// The agent and nobody, at the smallest, with real sockets. Others need not be
// installed.
func TestForward(t *testing.T) {
	if runtime.GOOS != "linux" {
		if _, err := forward.Take(t.Context(), forward.Spec{}); err == nil {
			t.Error("measured without Linux")
		}
		return
	}
	r := &runner{size: size{rounds: 1, full: true, relays: relaySize{
		each: 30 * time.Millisecond, servers: 5, idle: 100, churn: 50, points: 30_000, pairs: 1}}, self: os.Args[0], log: t.Output()}
	rep := report{Rows: benchForward(t.Context(), r)}
	for _, f := range relayFigures {
		own := find(t, rep, f.name, ours)
		if own.Error != "" {
			t.Errorf("%s: %s", f.name, own.Error)
		}
	}
	for _, c := range relayJobs {
		for _, relay := range c.relays {
			if relay == forward.Gatehouse || relay == forward.Direct {
				continue
			}
			if r := find(t, rep, "all figures, "+c.kind, relay); !strings.Contains(r.Error, "without peers") {
				t.Errorf("%s: %+v", relay, r)
			}
		}
	}
	// The connection that found it ready may end meanwhile.
	if d := find(t, rep, "descriptors an idle connection", ours); *d.Value < 1.9 || *d.Value > 2.1 {
		t.Errorf("descriptors: %v", *d.Value)
	}
	if b := find(t, rep, "rebuilds of the large ring meanwhile", ours); *b.Value <= 0 {
		t.Errorf("rebuilds: %+v", b)
	}
}

// The same for probes.
func TestHealth(t *testing.T) {
	if runtime.GOOS != "linux" {
		return
	}
	r := &runner{size: size{rounds: 1, full: true, relays: relaySize{each: 30 * time.Millisecond, rests: 1},
		probes: healthSize{targets: []int{5, 20}, shared: 10, clusters: 4, interval: 200 * time.Millisecond}}, self: os.Args[0], log: t.Output()}
	rep := report{Rows: benchHealth(t.Context(), r)}
	for name, subject := range map[string]string{
		"5 targets, CPU": ours, "20 targets, memory over idle": ours, "20 targets, memory when idle": ours,
		"10 targets, probes": "4 clusters", "10 targets, CPU": "1 cluster",
	} {
		if own := find(t, rep, name, subject); own.Error != "" {
			t.Errorf("%s: %s", name, own.Error)
		}
	}
	// Goals are in rows without a ratio, but for probes.
	for name, goal := range map[string]bool{
		"10 targets, probes": true, "10 targets, CPU": true, "10 targets, memory of a share in a check": true, "10 targets, memory over idle": false,
	} {
		if r := find(t, rep, name, "4 clusters"); r.Error != "" || (r.OK != nil) != goal {
			t.Errorf("%s of 4 clusters: %+v, want a goal: %t", name, r, goal)
		}
	}
	if p := find(t, rep, "20 targets, probes", ours); p.Error != "" || *p.Value <= 0 {
		t.Errorf("no probes: %+v", p)
	}
}
