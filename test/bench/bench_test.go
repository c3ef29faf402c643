package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"math"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// The test's own binary is the child of the benchmarks that run in it.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == childFlag {
		os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

var update = flag.Bool("update", false, "write the golden files")

// tiny is as small as a benchmark can be and still take every figure.
var tiny = size{rounds: 1, each: time.Millisecond, ns: []int{3}, sort: 2000, wide: 50,
	rings: []int{2}, points: []int{500, 5000, 1_140_000}, most: 1 << 20, full: true,
	watch: 20 * time.Millisecond, pairs: 2, crowd: 3, crowds: []crowd{{100, false}, {26_000, true}}, limit: time.Minute}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s (-want +got):\n%s", name, diff)
	}
}

func TestReport(t *testing.T) {
	rep := report{Bench: "lb", Machine: machine{2, "go1.26.8"}, Rows: []row{
		figure("pick", ours+", 1 core", "ns", []float64{30.5, 20.12345, 25}).atMost(30),
		figure("pick", ours+", 2 cores", "ns", []float64{27}).ratio("1 core", 25).atMost(1),
		figure("pick", "a peer", "ns", []float64{180, 200}).ratio(ours, 25),
		figure("p99", ours, "us", []float64{300}).ratios("before", []float64{3.25, 0.5, 1.125}).atMost(2),
		figure("allocations", ours, "", []float64{0}).atMost(0),
		figure("build", "slices.SortFunc", "ms", []float64{1234567}).ratio(ours, 400000).atLeast(2.5),
		missing("pick", "another peer", "it can't be had"),
	}}
	var table, js bytes.Buffer
	if err := rep.table(&table); err != nil {
		t.Fatal(err)
	}
	golden(t, "table.txt", table.Bytes())
	enc := json.NewEncoder(&js)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", " ")
	if err := enc.Encode(rep); err != nil {
		t.Fatal(err)
	}
	golden(t, "report.json", js.Bytes())
}

func TestMedian(t *testing.T) {
	for _, tt := range []struct {
		in   []float64
		want float64
	}{
		{[]float64{3}, 3},
		{[]float64{3, 1}, 2},
		{[]float64{9, 1, 2}, 2},
		{[]float64{4, 1, 3, 2}, 2.5},
	} {
		in := slices.Clone(tt.in)
		if got := median(in); got != tt.want {
			t.Errorf("median(%v) = %v, want %v", tt.in, got, tt.want)
		}
		if !slices.Equal(in, tt.in) {
			t.Errorf("median changed its samples to %v", in)
		}
	}
	if got := median(nil); !math.IsNaN(got) {
		t.Errorf("median of nothing = %v, want NaN", got)
	}
}

func TestQuantile(t *testing.T) {
	s := make([]int, 1000)
	for i := range s {
		s[i] = i + 1
	}
	for _, tt := range []struct {
		q    float64
		want int
	}{{0, 1}, {0.5, 500}, {0.99, 990}, {0.999, 999}, {1, 1000}} {
		if got := quantile(s, tt.q); got != tt.want {
			t.Errorf("quantile %v = %d, want %d", tt.q, got, tt.want)
		}
	}
	if got := quantile([]int{7}, 0.99); got != 7 {
		t.Errorf("quantile of one = %d, want it", got)
	}
}

func TestShort(t *testing.T) {
	for in, want := range map[float64]float64{0: 0, 1234567.8: 1234568, 123.456: 123.5, 0.0123456: 0.01235, 9999.96: 10000, -1.00049: -1} {
		if got := short(in); got != want {
			t.Errorf("short(%v) = %v, want %v", in, got, want)
		}
	}
}

func TestWrite(t *testing.T) {
	seen := make(map[string]bool)
	text := []byte(anyAddr)
	for i := range uint64(10000) {
		write(text, i*0x9e3779b97f4a7c15)
		if _, err := netip.ParseAddr(string(text)); err != nil {
			t.Fatal(err)
		}
		seen[string(text)] = true
	}
	if len(seen) < 9990 {
		t.Errorf("10000 addresses, of which %d differ", len(seen))
	}
}

func TestUsage(t *testing.T) {
	for _, args := range [][]string{nil, {"nothing"}, {"lb", "memory"}, {"-what", "lb"}} {
		var out, errs bytes.Buffer
		if code := run(args, &out, &errs); code != 2 || out.Len() > 0 || !strings.Contains(errs.String(), "usage:") {
			t.Errorf("%q: exit code %d, printed %q and %q", args, code, &out, &errs)
		}
	}
}

func TestChildFails(t *testing.T) {
	for _, arg := range []string{"{", `{"kind":"nothing"}`, `{"kind":"lb","subject":"nothing","n":3}`, `{"kind":"build","n":3,"points":10}`} {
		var out, errs bytes.Buffer
		if code := run([]string{childFlag, arg}, &out, &errs); code != 1 || out.Len() > 0 || errs.Len() == 0 {
			t.Errorf("%s: exit code %d, printed %q and %q", arg, code, &out, &errs)
		}
	}
}

// What could not be measured is a row and an exit code.
func TestFailedMeasurement(t *testing.T) {
	var log bytes.Buffer
	r := &runner{size: size{rounds: 3}, self: os.Args[0], log: &log}
	outs := r.rounds(t.Context(), []job{{spec: spec{Kind: "nothing"}}, {spec: spec{Kind: "build", N: 4, Points: 80}}})
	bad, ok := outs[0].row("a", "b", "ns", "x")
	if ok || !strings.Contains(bad.Error, `no measurement "nothing"`) || r.failed != 1 {
		t.Errorf("row %+v, %d failed", bad, r.failed)
	}
	if n := len(outs[1].of("build_ms")); n != 3 {
		t.Errorf("the job beside it has %d samples, want 3", n)
	}
	if !strings.Contains(log.String(), "nothing") {
		t.Errorf("logged %q", &log)
	}
}

// A round that would exceed the budget does not begin, and a job that never had
// one says so.
func TestBudget(t *testing.T) {
	r := &runner{size: size{rounds: 2, budget: time.Minute}, self: os.Args[0], log: t.Output()}
	outs := r.rounds(t.Context(), []job{{guess: time.Hour, spec: spec{Kind: "build", N: 4, Points: 80}}})
	if !errors.Is(outs[0].err, errTime) || r.failed != 0 {
		t.Errorf("error %v, %d failed", outs[0].err, r.failed)
	}
	if _, err := r.once(t.Context(), job{spec: spec{Kind: "build", N: 4, Points: 80}}, time.Nanosecond); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a child that takes too long: error %v", err)
	}
}

// tinyRun runs a benchmark at its smallest and returns what it reports.
func tinyRun(t *testing.T, name string) (rep report) {
	t.Helper()
	var out bytes.Buffer
	if code := measure(t.Context(), name, tiny, true, &out, t.Output()); code != 0 {
		t.Fatalf("exit code %d", code)
	}
	if err := json.Unmarshal(out.Bytes(), &rep); err != nil {
		t.Fatal(err)
	}
	for _, r := range rep.Rows {
		if r.Row == "" || r.Subject == "" {
			t.Errorf("a row without a name: %+v", r)
		}
		if (r.Value == nil) != (r.Error != "") {
			t.Errorf("%s, %s: value %v and error %q", r.Row, r.Subject, r.Value, r.Error)
		}
		if (r.Goal == "") != (r.OK == nil) || (r.RatioTo == "") != (r.Ratio == nil) {
			t.Errorf("half a goal or ratio: %+v", r)
		}
	}
	return rep
}

func find(t *testing.T, rep report, name, subject string) row {
	t.Helper()
	i := slices.IndexFunc(rep.Rows, func(r row) bool { return r.Row == name && r.Subject == subject })
	if i < 0 {
		t.Fatalf("no row %q of %q", name, subject)
	}
	return rep.Rows[i]
}

func TestLB(t *testing.T) {
	rep := tinyRun(t, "lb")
	for _, p := range policies {
		for _, set := range []string{" of 3", " of 3, weights 1 to 4"} {
			pick := find(t, rep, "pick, "+p.name+set, ours+", 1 core")
			if *pick.Value <= 0 {
				t.Errorf("%s%s: a pick took %v ns", p.name, set, *pick.Value)
			}
			if down := find(t, rep, "pick, "+p.name+set+", 99.9 % down", ours+", 1 core"); down.Goal != "" {
				t.Errorf("%s%s: a goal %q with endpoints down", p.name, set, down.Goal)
			}
			if a := find(t, rep, "allocations a pick, "+p.name+set, ours); *a.Value != 0 || a.OK == nil || !*a.OK {
				t.Errorf("%s%s: allocations %+v", p.name, set, a)
			}
		}
	}
	for name, goal := range map[string]string{
		"round_robin of 3": "<= 30", "least_weight of 3": "<= 60", "adaptive of 3": "<= 60",
		"ring_hash of 3": "<= 60", "ring_hash of 3, key from text": "<= 100", "ketama of 3": "", "ring_hash x100 of 3": "",
	} {
		if r := find(t, rep, "pick, "+name, ours+", 1 core"); r.Goal != goal {
			t.Errorf("%s: goal %q, want %q", name, r.Goal, goal)
		}
	}
	sorted := find(t, rep, "build, ring of 2000 points", "slices.SortFunc")
	if sorted.Goal != ">= 2.5" || sorted.RatioTo != ours {
		t.Errorf("against sorting: %+v", sorted)
	}
}

func TestMemory(t *testing.T) {
	rep := tinyRun(t, "memory")
	const name, mapped = "2 rings of 5.38 kB", "2 rings of 54.3 kB"
	for _, mode := range modes {
		peak := find(t, rep, "peak RSS, "+name+", one update", mode)
		if *peak.Ratio <= 0 || (peak.Goal == "<= 1.15") != (mode == "reuse") {
			t.Errorf("%s: %+v", mode, peak)
		}
		if b := find(t, rep, "builds done, "+name+", one update", mode); *b.Value != 2 {
			t.Errorf("%s: %v builds of one update, want 2", mode, *b.Value)
		}
		burst := find(t, rep, "builds done, "+name+", ten updates in 100 ms", mode)
		coalesced := find(t, rep, "requests coalesced, "+name+", ten updates in 100 ms", mode)
		if n := *burst.Value + *coalesced.Value; n != 20 {
			t.Errorf("%s: %v built or coalesced of ten updates, want 20", mode, n)
		}
		during := find(t, rep, "p99 of 32 picks during, "+name, mode)
		if (during.Goal == "<= 2") != (mode == "reuse") || *during.RatioMin > *during.Ratio || *during.RatioMax < *during.Ratio {
			t.Errorf("%s: %+v", mode, during)
		}
		if r := find(t, rep, "memory, 2 rings of 1140000 points", mode); !strings.Contains(r.Error, "more than 1 MB in all") {
			t.Errorf("%s: what does not fit has the row %+v", mode, r)
		}
	}
	for _, update := range []string{", one update", ", ten updates in 100 ms"} {
		// The small lane may keep a few, so there is no goal.
		r := find(t, rep, "storage, high-water mark, "+mapped+update, "reuse")
		if *r.Value < 3 || r.Goal != "" || *r.Ratio != short(*r.Value/3) {
			t.Errorf("mapped storage: %+v", r)
		}
		find(t, rep, "storage of retired and stuck ones, high-water mark, "+mapped+update, "reuse")
	}
	for _, r := range rep.Rows {
		if strings.HasPrefix(r.Row, "storage") && (r.Subject != "reuse" || strings.Contains(r.Row, name)) {
			t.Errorf("storage in Go's heap has the row %+v", r)
		}
	}
	for _, lane := range []string{"1.09 kB, small", "279 kB, large"} {
		if r := find(t, rep, "builds done, in time, 3 rings of "+lane+" lane, under 2 busy readers", ours); *r.Value != 3 {
			t.Errorf("crowd with %s: %v builds, want 3", lane, *r.Value)
		}
	}
}

// Where rings outweigh the rest, those that share no gate must show what it
// saves.
func TestUngatedShows(t *testing.T) {
	o := &outcome{samples: map[string][]float64{"peak": {200, 210, 190}, "peak_ratio": {1.9, 1.8, 1.6}}}
	for _, tt := range []struct {
		mode      string
		n, points int
		want      bool
	}{{"ungated", 8, 100_000, true}, {"ungated", 8, 10_000, false}, {"ungated", 1, 100_000, false}, {"reuse", 8, 100_000, false}} {
		r, ok := larger("x", tt.mode, tt.n, tt.points, o)
		if ok != tt.want || ok && (r.Goal != ">= 1.7" || !*r.OK || *r.Ratio != 1.8) {
			t.Errorf("%+v: %v, %+v", tt, ok, r)
		}
	}
}

// An allocation in some of the picks must not be rounded away.
func TestAllocations(t *testing.T) {
	var kept []*int
	for _, tt := range []struct {
		each int // picks to an allocation, 0 for none
		want float64
	}{{0, 0}, {1, 1}, {2, 0.5}, {32, 0.03}} {
		work := func(batches int) {
			for i := range batches * batch {
				if tt.each > 0 && i%tt.each == 0 {
					kept = append(kept[:0], new(int))
				}
			}
		}
		kept = make([]*int, 1)
		if got := allocations([]func(int){work, work}, 1); got != tt.want {
			t.Errorf("one in %d picks: %v, want %v", tt.each, got, tt.want)
		}
	}
}

func TestWrongLane(t *testing.T) {
	if _, err := takeCrowd(t.Context(), spec{N: 1, Points: 22_000, Large: true, LimitMS: 1}); err == nil || !strings.Contains(err.Error(), "wrong lane") {
		t.Errorf("rings below 256 KiB count as large: error %v", err)
	}
}

// Peers that can't be built are rows that say so, and a failure.
func TestPeersMissing(t *testing.T) {
	t.Setenv("PATH", "")
	r := &runner{size: size{ns: []int{10}, peers: true}, log: t.Output()}
	ps := peerJobs(context.Background(), r, 1)
	if len(ps) != len(peerKinds) || r.failed != 2 {
		t.Fatalf("%d peers, %d failed", len(ps), r.failed)
	}
	for _, p := range ps {
		rows := p.rows(&outcome{err: p.err}, []outcome{{}}, []lbCase{{policy{name: "x"}, 1, false}})
		if len(rows) != 1 || rows[0].Error == "" {
			t.Errorf("%s: rows %+v", p.subject, rows)
		}
	}
}
