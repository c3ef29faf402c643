package control

import (
	"slices"
	"testing"
	"time"
)

func TestMarked(t *testing.T) {
	for line, want := range map[string]float64{
		"gc 12 @3.141s 1%: 0.018+1.2+0.003 ms clock, 0.03+0.5/1.1/2.9+0.006 ms cpu, 44->45->38 MB, 76 MB goal, 1 MB stacks, 0 MB globals, 2 P":      38,
		"gc 13 @3.241s 1%: 0.018+1.2+0.003 ms clock, 0.03+0.5/1.1/2.9+0.006 ms cpu, 4->5->0 MB, 4 MB goal, 1 MB stacks, 0 MB globals, 2 P (forced)": 0,
	} {
		if got, ok := marked(line); !ok || got != want {
			t.Errorf("%s: %v, %v, want %v", line, got, ok, want)
		}
	}
	for _, line := range []string{"", "gc", "gc 12", "gc 1 @0s 0%: 4->x MB,", `level=warn msg="gc 1, 4->5->6 MB, "`} {
		if got, ok := marked(line); ok {
			t.Errorf("%q: %v", line, got)
		}
	}
}

// Lines come in any pieces, and others between them.
func TestTrace(t *testing.T) {
	tr := new(trace)
	for _, p := range []string{"gc 1 @0s 0%: 4->5->3", " MB, 4 MB goal\nlevel=warn\ngc 2 @0s 0%: 4->5->2 MB, 4 MB goal\ngc 3 @0s 0%: 4->5->7 MB, 4", " MB goal\n"} {
		if n, err := tr.Write([]byte(p)); n != len(p) || err != nil {
			t.Fatal(n, err)
		}
	}
	if got, want := tr.since(0, time.Time{}), []float64{3 << 20, 2 << 20, 7 << 20}; tr.count() != 3 || !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if got, want := tr.since(2, time.Time{}), []float64{7 << 20}; !slices.Equal(got, want) {
		t.Errorf("from the third one on: %v", got)
	}
	if got := append(tr.since(9, time.Time{}), tr.since(0, time.Now().Add(time.Hour))...); len(got) > 0 {
		t.Errorf("later: %v", got)
	}
}

func TestUntilStep(t *testing.T) {
	begin := time.Unix(1_700_000_000, 0).Truncate(step)
	for after, want := range map[time.Duration]time.Duration{
		0: 0, time.Second: 0, 3 * time.Second: 0, 6 * time.Second: 4 * time.Second, 9 * time.Second: time.Second,
	} {
		if got := untilStep(begin.Add(after)); got != want {
			t.Errorf("after %v: %v, want %v", after, got, want)
		}
	}
}

// What can't be measured is an error before anything is started.
func TestTakeRefuses(t *testing.T) {
	for _, s := range []Spec{
		{}, {Subject: Gatehouse, Clusters: 1, Endpoints: 5}, {Subject: Gatehouse, Clusters: 5, Endpoints: 101},
		{Subject: "nobody", Clusters: 2, Endpoints: 2}, {Subject: GRPC, Variant: Delta, Clusters: 2, Endpoints: 2},
		{Subject: Gatehouse, Clusters: 2, Endpoints: 2, Case: "nothing"},
	} {
		if vs, err := Take(t.Context(), s); err == nil {
			t.Errorf("%+v: %v", s, vs)
		}
	}
}
