package node

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gatehouse.internal/cmd/agent/internal/config"
	"gatehouse.internal/internal/logfile"
	"gatehouse.internal/xds"
)

// What the control plane's filters come to.
func TestControlAccessLogs(t *testing.T) {
	noted := 0
	got := accessLogsOf([]xds.AccessLog{
		{Path: "stdout"},
		{Path: "/a", Format: "%DURATION%", Filter: xds.LogFilter{Sampled: true, PerMillion: 2500}},
		{Path: "/b", Format: "%DURATION%", Filter: xds.LogFilter{Sampled: true}},
		{Path: "/c", Format: "%DURATION%", Filter: xds.LogFilter{DurationOp: ">=", DurationMillis: 1000}},
		{Path: "/d", Format: "%DURATION%", Filter: xds.LogFilter{Flagged: true, Flags: "NR"}},
		{Path: "/e", Format: "%"},
	}, func(string, ...any) { noted++ })
	want := []config.AccessLog{
		{Path: "stdout", Format: "text", Sample: 1, SampleFailures: true},
		{Path: "/a", Format: "%DURATION%", Sample: .0025, SampleFailures: true},
		{Path: "/b", Format: "%DURATION%", SampleFailures: true},
		{Path: "/c", Format: "%DURATION%", Sample: 1, SampleFailures: true, DurationOp: ">=", DurationMillis: 1000},
		{Path: "/d", Format: "%DURATION%", Sample: 1, SampleFailures: true, Flagged: true, Flags: "NR"},
	}
	if !slices.Equal(got, want) || noted != 1 {
		t.Errorf("%+v with %d notes, want %+v", got, noted, want)
	}
}

// Listeners share a file, get other access logs while they run, and keep what
// they have if others can't be opened.
func TestAccessLogs(t *testing.T) {
	for _, loops := range []bool{false, true} {
		dir := t.TempDir()
		first, second := filepath.Join(dir, "first"), filepath.Join(dir, "second")
		files := new(logfile.Files)
		change := []func(*Config){func(c *Config) { c.Files = files }}
		if loops {
			change = append(change, onLoops(t))
		}
		t.Cleanup(func() { // after the node has ended
			if err := files.Close(context.Background()); err != nil {
				t.Error(err)
			}
		})
		r := start(t, change...)
		read := func(path string) string {
			b, _ := os.ReadFile(path)
			return string(b)
		}
		one := listen(t, "one")
		a, b := listenerOf("a", "web"), listenerOf("b", "web")
		a.AccessLogs = []config.AccessLog{{Path: first, Format: "%LISTENER_NAME% %UPSTREAM_CLUSTER% %RESPONSE_FLAGS% %UPSTREAM_HOST%", Sample: 1}}
		b.AccessLogs = a.AccessLogs
		spec := Spec{Clusters: []config.Cluster{clusterOf("web", static(one.Endpoint))}, Listeners: []config.Listener{a, b}}
		r.apply(spec)
		within(t, "it serves", func() bool { return len(r.Waiting()) == 0 && r.ready("web") == 1 })
		use := func(listener string) {
			t.Helper()
			c := r.mustDial(listener, "one")
			_ = c.Close()
		}
		use("a")
		want := "a web - " + one.Addr.String() + "\n"
		within(t, "a line is written", func() bool { return read(first) == want })
		use("b")
		want += "b" + want[1:]
		within(t, "a line is written", func() bool { return read(first) == want })

		bad := spec
		a.AccessLogs = []config.AccessLog{{Path: second, Format: "text", Sample: 1}, {Path: filepath.Join(dir, "none", "x"), Format: "text", Sample: 1}}
		bad.Listeners = []config.Listener{a, b}
		if err := r.Apply(t.Context(), bad); err == nil || !strings.Contains(err.Error(), `listener "a": access_log: can't open the log`) {
			t.Errorf("a file that can't be opened: %v", err)
		}
		c := listenerOf("c", "web")
		c.AccessLogs = a.AccessLogs
		bad.Listeners = []config.Listener{c}
		if err := r.Apply(t.Context(), bad); err == nil || !strings.Contains(err.Error(), `listener "c": access_log: can't open the log`) {
			t.Errorf("a file that can't be opened: %v", err)
		}
		use("a")
		want += "a" + want[1:strings.Index(want, "\n")+1]
		within(t, "a line is written", func() bool { return read(first) == want })

		a.AccessLogs = []config.AccessLog{{Path: second, Format: "%LISTENER_NAME%", Sample: 1}, {Path: first, Format: "also %REQ(X)%", Sample: 1}}
		spec.Listeners = []config.Listener{a}
		r.apply(spec)
		use("a")
		within(t, "lines are written", func() bool { return read(second) == "a\n" && read(first) == want+"also -\n" })
		a.AccessLogs = nil
		spec.Listeners = []config.Listener{a}
		r.apply(spec)
		use("a")
		within(t, "it has ended", func() bool { return r.listener("a").Stats.Flags[0] == 4 })
		if read(second) != "a\n" || read(first) != want+"also -\n" {
			t.Error("lines after the access log has gone")
		}
	}
}

// Open connections of all listeners, or of one.
func TestConnections(t *testing.T) {
	onBoth(t, func(t *testing.T, r *rig) {
		one := listen(t, "one")
		r.apply(Spec{
			Clusters: []config.Cluster{clusterOf("web", static(one.Endpoint))}, Listeners: []config.Listener{listenerOf("a", "web"), listenerOf("b", "web")},
		})
		within(t, "it serves", func() bool { return len(r.Waiting()) == 0 && r.ready("web") == 1 })
		a, b := r.mustDial("a", "one"), r.mustDial("b", "one")
		for _, tt := range []struct {
			listener string
			most     int
			want     []*conn
		}{{"", 10, []*conn{a, b}}, {"a", 10, []*conn{a}}, {"b", 10, []*conn{b}}, {"c", 10, nil}, {"", 1, []*conn{a}}} {
			got, err := r.Connections(t.Context(), tt.listener, tt.most)
			if err != nil || len(got) != len(tt.want) {
				t.Fatalf("%+v: %+v, %v", tt, got, err)
			}
			for i, c := range got {
				if c.Client.String() != tt.want[i].LocalAddr().String() || c.Endpoint != one.Addr || c.Cluster != "web" || c.Generation == 0 {
					t.Errorf("%+v: %+v", tt, c)
				}
			}
		}
	})
}
