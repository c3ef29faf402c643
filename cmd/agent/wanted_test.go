package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"gatehouse.internal/cmd/agent/internal/config"
	"gatehouse.internal/cmd/agent/internal/node"
	"gatehouse.internal/discovery/consul"
	"gatehouse.internal/internal/loglimit"
	"gatehouse.internal/lbcore"
	"gatehouse.internal/xds"
)

// joiner runs a wanted in a bubble and notes what is applied.
type joiner struct {
	wanted
	log     bytes.Buffer // to be read after synctest.Wait
	applied []node.Spec
	taken   int
	fail    error // of the next applies
}

func newJoiner(t *testing.T, files node.Spec) *joiner {
	j := new(joiner)
	text := slog.NewTextHandler(&j.log, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}})
	j.wanted = wanted{files: files, wake: make(chan struct{}, 1), reloads: make(chan rereading), notes: notes{log: slog.New(text)}}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		j.run(ctx, func(_ context.Context, s node.Spec) error {
			if j.fail == nil {
				j.applied = append(j.applied, s)
			}
			return j.fail
		}, func() { j.taken++ })
	})
	t.Cleanup(func() {
		cancel()
		wg.Wait()
	})
	return j
}

// last returns what was applied last, in words.
func (j *joiner) last() string {
	synctest.Wait()
	if len(j.applied) == 0 {
		return "nothing"
	}
	s := j.applied[len(j.applied)-1]
	var words []string
	for _, c := range s.Clusters {
		words = append(words, fmt.Sprintf("%s cluster %s", c.Origin, c.Name))
	}
	for _, u := range s.Unsupported {
		words = append(words, fmt.Sprintf("no cluster %s: %s", u.Name, u.Reason))
	}
	for _, l := range s.Listeners {
		words = append(words, fmt.Sprintf("listener %s to %s", l.Name, l.Cluster))
	}
	for _, l := range s.Optional {
		words = append(words, fmt.Sprintf("optional %s at %s to %s", l.Name, l.Address, l.Cluster))
	}
	for _, u := range s.UnsupportedListeners {
		words = append(words, fmt.Sprintf("no listener %s: %s", u.Name, u.Reason))
	}
	return strings.Join(words, "\n")
}

func (j *joiner) expect(t *testing.T, want ...string) {
	t.Helper()
	if got := j.last(); got != strings.Join(want, "\n") {
		t.Errorf("applied is\n%s\nwant\n%s", got, strings.Join(want, "\n"))
	}
}

func listener(service, addr string) consul.Listener {
	return consul.Listener{Service: service, Address: lbcore.IPAddr(netip.MustParseAddrPort(addr))}
}

func control(names ...string) xds.ClustersUpdate {
	u := xds.ClustersUpdate{Known: true}
	for _, n := range names {
		u.Clusters = append(u.Clusters, &xds.Cluster{Name: n, EDSName: n, Policy: xds.Policy{Name: xds.RoundRobin}})
	}
	return u
}

// Files win over the control plane, which wins over the catalog, in whatever
// order they speak.
func TestWantedPrecedence(t *testing.T) {
	files := node.Spec{
		Clusters:  []config.Cluster{config.DefaultCluster("a", config.OriginFile)},
		Listeners: []config.Listener{config.DefaultListener("a@127.0.0.1:1", config.OriginFile, lbcore.Addr{}, "a")},
	}
	cds := control("a", "b")
	catalog := consul.Listeners{
		Known:     true,
		Listeners: []consul.Listener{listener("a", "127.0.0.1:1"), listener("a", "127.0.0.1:2"), listener("b", "127.0.0.1:3"), listener("c", "127.0.0.1:4"), listener("c", "[::1]:4")},
		Refused:   []consul.RefusedListener{{Service: `"d"`, Value: `"0.0.0.0:5"`, Reason: "not loopback"}},
	}
	for _, catalogFirst := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			j := newJoiner(t, files)
			say := []func(){func() { j.saidClusters(cds) }, func() { j.saidListeners(catalog) }}
			if catalogFirst {
				slices.Reverse(say)
			}
			for _, f := range say {
				f()
				synctest.Wait()
			}
			j.expect(t,
				"file cluster a", "xds cluster b", "consul cluster c", "listener a@127.0.0.1:1 to a",
				"optional a@127.0.0.1:2 at 127.0.0.1:2 to a", "optional b@127.0.0.1:3 at 127.0.0.1:3 to b",
				"optional c@127.0.0.1:4 at 127.0.0.1:4 to c", "optional c@[::1]:4 at [::1]:4 to c",
				"no listener a@127.0.0.1:1: there is a listener of this name already",
				`no listener "d"@"0.0.0.0:5": not loopback`)
			if len(j.applied) != 2 || j.taken != 2 {
				t.Errorf("%d applied, %d taken, want 2", len(j.applied), j.taken)
			}
			for text, want := range map[string]int{
				`level=WARN msg="clusters of the control plane are not used, a file has clusters of these names" clusters=[a]`: 1,
				`level=WARN msg="a listener of the catalog is refused" listener=a@127.0.0.1:1`:                                 1,
				`level=WARN msg="a listener of the catalog is refused" listener="\"d\"@\"0.0.0.0:5\"" reason="not loopback"`:   1,
				`msg="services of the catalog use the clusters of these names that are there already" clusters="[a b]"`:        1,
			} {
				if got := strings.Count(j.log.String(), text); got != want {
					t.Errorf("%d times in the log: %s\n%s", got, text, &j.log)
				}
			}

			// What goes at one giver leaves the other's.
			j.saidClusters(control("c"))
			j.expect(t,
				"file cluster a", "xds cluster c", "consul cluster b", "listener a@127.0.0.1:1 to a",
				"optional a@127.0.0.1:2 at 127.0.0.1:2 to a", "optional b@127.0.0.1:3 at 127.0.0.1:3 to b",
				"optional c@127.0.0.1:4 at 127.0.0.1:4 to c", "optional c@[::1]:4 at [::1]:4 to c",
				"no listener a@127.0.0.1:1: there is a listener of this name already",
				`no listener "d"@"0.0.0.0:5": not loopback`)
			j.saidListeners(consul.Listeners{Known: true})
			j.expect(t, "file cluster a", "xds cluster c", "listener a@127.0.0.1:1 to a")
			if d := j.applied[2].Clusters[2].Discovery[0]; d.Kind != config.DiscoveryConsul || d.Service != "b" {
				t.Errorf("the catalog's cluster asks for %+v", d)
			}
		})
	}
}

// The control plane's listeners stand below files' and above the catalog's; what is
// refused and what can't be run is listed, and noted once.
func TestWantedControlListeners(t *testing.T) {
	address := func(text string) []lbcore.Addr { return []lbcore.Addr{lbcore.IPAddr(netip.MustParseAddrPort(text))} }
	proxy := xds.FilterChain{Name: "c", TCPProxy: xds.TCPProxy{
		Clusters: []xds.WeightedCluster{{Name: "a", Weight: 1}}, MaxConnectAttempts: 1,
		AccessLogs: []xds.AccessLog{{Path: "stdout", Format: "%START_TIME% %REQ(:path)%"}, {Path: "stdout", Format: "same"}},
	}}
	lds := xds.ListenersUpdate{
		Known: true,
		Listeners: []*xds.Listener{
			{Name: "filed", Addresses: address("127.0.0.1:1"), BindToPort: true, Chains: []xds.FilterChain{proxy}},
			{Name: "a@127.0.0.1:2", Addresses: append(address("127.0.0.1:2"), address("[::1]:2")...), BindToPort: true, Chains: []xds.FilterChain{proxy}, Ignored: []string{"freebind"}},
			{Name: "api", Unsupported: "api_listener"},
			{Name: "http", Addresses: address("127.0.0.1:3"), BindToPort: true, Unsupported: "an http filter"},
		},
		Rejected: []xds.Rejected{{Name: "a@127.0.0.1:2", Reason: "newer"}, {Name: "bad", Reason: "address: missing"}},
	}
	synctest.Test(t, func(t *testing.T) {
		j := newJoiner(t, node.Spec{Listeners: []config.Listener{config.DefaultListener("filed", config.OriginFile, lbcore.Addr{}, "a")}})
		j.saidControlListeners(lds)
		synctest.Wait()
		j.saidListeners(consul.Listeners{Known: true, Listeners: []consul.Listener{listener("a", "127.0.0.1:2")}})
		j.expect(t, "consul cluster a", "listener filed to a",
			"optional a@127.0.0.1:2 at 127.0.0.1:2 to ", "optional a@127.0.0.1:2@[::1]:2 at [::1]:2 to ", "optional http at 127.0.0.1:3 to ",
			"no listener filed: there is a listener of this name already", "no listener api: api_listener", "no listener bad: rejected: address: missing",
			"no listener a@127.0.0.1:2: there is a listener of this name already")
		for _, l := range j.applied[1].Optional {
			if http := l.Name == "http"; l.Control == nil || l.Control.NoBind != http || (l.Control.Unsupported != "") != http {
				t.Errorf("%s: %+v", l.Name, l.Control)
			}
		}
		for _, text := range []string{
			`msg="listener is not supported and not open" listener=http reason="an http filter"`,
			`msg="listener has settings that are not applied" listener=a@127.0.0.1:2 setting=freebind`,
			`level=WARN msg="listener has settings that are not applied" listener=a@127.0.0.1:2 setting="access log stdout: these operators print \"-\": [REQ]"`, `setting="access log stdout is left out: \"same\" has no operator, all lines would be the same"`,
			`msg="a listener of the control plane is not open" listener=bad reason="rejected: address: missing"`,
			`msg="a listener of the catalog is refused" listener=a@127.0.0.1:2`,
		} {
			if strings.Count(j.log.String(), text) == 0 {
				t.Errorf("not in the log: %s\n%s", text, &j.log)
			}
		}
		j.saidControlListeners(lds)
		j.saidControlListeners(xds.ListenersUpdate{Known: true, Err: errors.New("away"), Listeners: lds.Listeners, Rejected: lds.Rejected})
		synctest.Wait()
		if len(j.applied) != 2 {
			t.Errorf("%d applied", len(j.applied))
		}
	})
}

// Only what changes what runs is applied, and what could not be applied is
// tried again with the next word.
func TestWantedApplies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJoiner(t, node.Spec{})
		lines := func(want ...string) {
			t.Helper()
			synctest.Wait()
			if got := j.waiting(mute{lds: true}); !slices.Equal(got, want) {
				t.Errorf("waiting for %q, want %q", got, want)
			}
		}
		lines("clusters of the control plane: no answer yet", "listeners of the catalog: no answer yet")
		j.saidListeners(consul.Listeners{Err: errors.New("connection refused")})
		j.saidClusters(xds.ClustersUpdate{Err: errors.New("away")})
		lines("clusters of the control plane: away", "listeners of the catalog: connection refused")
		j.expect(t, "nothing")

		j.fail = errors.New("no memory")
		web := consul.Listeners{Known: true, Listeners: []consul.Listener{listener("web", "127.0.0.1:1")}}
		j.saidListeners(web)
		lines("clusters of the control plane: away", "listeners of the catalog: connection refused")
		j.fail = nil
		u := control()
		u.Rejected = []xds.Rejected{{Name: "odd", Reason: "bad"}}
		j.saidClusters(u)
		lines()
		j.expect(t, "consul cluster web", "no cluster odd: rejected: bad", "optional web@127.0.0.1:1 at 127.0.0.1:1 to web")

		web.Err = errors.New("no leader")
		j.saidListeners(web)
		j.saidClusters(u)
		synctest.Wait()
		web.Err = nil
		web.Listeners = slices.Clone(web.Listeners)
		j.saidListeners(web)
		lines()
		if len(j.applied) != 1 {
			t.Errorf("%d applied, want 1", len(j.applied))
		}
		want := `level=WARN msg="the catalog does not tell its listeners, the last ones stay" err="connection refused"
level=INFO msg="the catalog tells its listeners" listeners=1
level=ERROR msg="what the control plane and the catalog say is not applied" err="no memory"
level=WARN msg="cluster is not supported and refuses connections" cluster=odd reason="rejected: bad"
level=WARN msg="the catalog does not tell its listeners, the last ones stay" err="no leader"
level=INFO msg="the catalog tells its listeners" listeners=1
`
		if got := j.log.String(); got != want {
			t.Errorf("log is\n%s\nwant\n%s", got, want)
		}
	})
}

// The newest word of each giver counts, however fast they speak.
func TestWantedNewestWins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJoiner(t, node.Spec{})
		var wg sync.WaitGroup
		wg.Go(func() {
			for i := range 1000 {
				j.saidClusters(control(fmt.Sprint("x", i)))
			}
		})
		wg.Go(func() {
			for i := range 1000 {
				j.saidListeners(consul.Listeners{Known: true, Listeners: []consul.Listener{listener(fmt.Sprint("c", i), "127.0.0.1:1")}})
			}
		})
		wg.Wait()
		j.expect(t, "xds cluster x999", "consul cluster c999", "optional c999@127.0.0.1:1 at 127.0.0.1:1 to c999")
	})
}

// Files that are read anew take the place of those before, beside what the givers
// have said. A giver that is not asked any more does not count, and starts anew when
// it is asked again; files that are refused change nothing.
func TestWantedReread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		files := func(names ...string) (s node.Spec) {
			for _, n := range names {
				s.Clusters = append(s.Clusters, config.DefaultCluster(n, config.OriginFile))
			}
			return s
		}
		j := newJoiner(t, files("a"))
		reread := func(s node.Spec, m mute) error {
			t.Helper()
			return j.reread(t.Context(), s, m)
		}
		j.saidClusters(control("b", "c"))
		j.saidListeners(consul.Listeners{Known: true, Listeners: []consul.Listener{listener("d", "127.0.0.1:1")}})
		d := []string{"consul cluster d", "optional d@127.0.0.1:1 at 127.0.0.1:1 to d"}
		j.expect(t, append([]string{"file cluster a", "xds cluster b", "xds cluster c"}, d...)...)
		if err := reread(files("b"), mute{}); err != nil {
			t.Fatal(err)
		}
		j.expect(t, append([]string{"file cluster b", "xds cluster c"}, d...)...)

		j.fail = errors.New("no port")
		if err := reread(files("x"), mute{cds: true}); !errors.Is(err, j.fail) {
			t.Errorf("refused files: %v", err)
		}
		j.fail = nil
		j.saidClusters(control("c", "e")) // as if the files had never been read
		j.expect(t, append([]string{"file cluster b", "xds cluster c", "xds cluster e"}, d...)...)

		// What was refused of a giver is tried with the next files.
		j.fail = errors.New("no port")
		j.saidClusters(control("g"))
		synctest.Wait()
		j.fail = nil
		if err := reread(files("a"), mute{}); err != nil {
			t.Fatal(err)
		}
		j.expect(t, append([]string{"file cluster a", "xds cluster g"}, d...)...)

		if err := reread(files("b"), mute{cds: true}); err != nil {
			t.Fatal(err)
		}
		j.expect(t, append([]string{"file cluster b"}, d...)...)
		j.saidClusters(control("late"))
		j.saidListeners(consul.Listeners{Known: true})
		j.expect(t, "file cluster b")
		if err := reread(files("b"), mute{}); err != nil {
			t.Fatal(err)
		}
		j.expect(t, "file cluster b") // what was said while it did not count is gone
		if j.cds.taken.Load() != nil {
			t.Error("what was taken before it was muted counts as taken")
		}
		j.saidClusters(control("f"))
		j.expect(t, "file cluster b", "xds cluster f")

		// So with the control plane's listeners.
		j.saidControlListeners(xds.ListenersUpdate{Known: true, Rejected: []xds.Rejected{{Name: "l", Reason: "odd"}}})
		j.expect(t, "file cluster b", "xds cluster f", "no listener l: rejected: odd")
		if err := reread(files("b"), mute{lds: true}); err != nil {
			t.Fatal(err)
		}
		j.expect(t, "file cluster b", "xds cluster f")
		if w := j.waiting(mute{cds: true, catalog: true}); len(w) != 1 {
			t.Errorf("what was taken before it was muted counts as taken: %q", w)
		}
	})
}

// However many clusters there is something to say of, the log stays short.
func TestWantedNotesAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJoiner(t, node.Spec{})
		for i := range 10 {
			u := control()
			for n := range 1000 {
				u.Clusters = append(u.Clusters, &xds.Cluster{Name: fmt.Sprint("x", n), Unsupported: fmt.Sprint("reason ", i)})
			}
			j.saidClusters(u)
			synctest.Wait()
		}
		if n := strings.Count(j.log.String(), "\n"); n != loglimit.Burst {
			t.Errorf("%d lines", n)
		}
		time.Sleep(time.Hour)
		u := control()
		u.Clusters = append(u.Clusters, &xds.Cluster{Name: "x", Unsupported: "the last"})
		j.saidClusters(u)
		synctest.Wait()
		if text := j.log.String(); !strings.Contains(text, `reason="the last" not_logged=9980`) {
			t.Errorf("the log ends with %s", text[max(0, len(text)-300):])
		}
	})
}

// Who is asked in the place of another knows nothing for a start. What the other has
// said stays in force till then, also over files that are read anew.
func TestWantedOfAnotherClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJoiner(t, node.Spec{})
		j.saidClusters(control("b"))
		j.saidListeners(consul.Listeners{Known: true, Listeners: []consul.Listener{listener("d", "127.0.0.1:1")}})
		want := []string{"xds cluster b", "consul cluster d", "optional d@127.0.0.1:1 at 127.0.0.1:1 to d"}
		j.expect(t, want...)
		away := errors.New("connection refused")
		j.saidClusters(xds.ClustersUpdate{Err: away})
		j.saidListeners(consul.Listeners{Err: away})
		synctest.Wait()
		if err := j.reread(t.Context(), node.Spec{}, mute{}); err != nil {
			t.Fatal(err)
		}
		j.expect(t, want...)
		if u, l := j.cds.taken.Load(), j.catalog.taken.Load(); !u.Known || u.Err != away || !l.Known || l.Err != away {
			t.Errorf("taken are %+v and %+v", u, l)
		}
		j.saidClusters(control()) // it knows, and there are none
		j.saidListeners(consul.Listeners{Known: true})
		j.expect(t)
	})
}

// What is to be said is said again when it was over meanwhile.
func TestNotes(t *testing.T) {
	var log bytes.Buffer
	n := notes{log: slog.New(slog.NewTextHandler(&log, nil))}
	for _, state := range []string{"a", "a b", "a a", "b", "", "b"} {
		for _, x := range strings.Fields(state) {
			n.add(slog.LevelWarn, "note", "x", x)
		}
		n.end()
	}
	var got []string
	for _, line := range strings.Split(strings.TrimSpace(log.String()), "\n") {
		_, x, _ := strings.Cut(line, "x=")
		got = append(got, x)
	}
	if want := strings.Fields("a b b b"); !slices.Equal(got, want) {
		t.Errorf("said %q, want %q", got, want)
	}
}

// waits returns an agent in a bubble whose cluster "web" waits for an answer
// that never comes.
func waits(t *testing.T, text string) (*agent, *bytes.Buffer) {
	t.Helper()
	cfg := load(t, text)
	log := new(bytes.Buffer)
	a, err := newAgent(cfg, slog.New(slog.NewTextHandler(log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { a.node.Run(ctx) })
	wg.Go(func() { a.health.Run(ctx) })
	wg.Go(func() { a.awaitInitialTimeout(ctx) })
	t.Cleanup(func() {
		cancel()
		wg.Wait()
	})
	if err := a.node.Apply(ctx, a.wanted.files); err != nil {
		t.Fatal(err)
	}
	close(a.bound)
	return a, log
}

func TestInitialTimeout(t *testing.T) {
	const clusters = `
xds { server_uri = "127.0.0.1:1" }
cluster "web" {
  discovery "eds" {}
}
cluster "spare" {
  discovery "eds" {}
  required = false
}
`
	const waiting = `cluster "web": discovery has not answered yet`
	for _, tt := range []struct {
		name, text string
		ready      time.Duration // 0: never
		waiting    []string
	}{
		{"default", clusters, 30 * time.Second, []string{waiting}},
		{"set", "initial_timeout = \"2m\"\n" + clusters, 2 * time.Minute, []string{waiting}},
		{"off", "initial_timeout = \"0s\"\n" + clusters, 0, []string{waiting}},
		{"nothing required", strings.Replace(clusters, "\"eds\" {}", "\"eds\" {}\n  required = false", 1), -1, nil},
		{"the control plane's clusters", "xds {\n  server_uri = \"127.0.0.1:1\"\n  clusters = true\n}\n", 30 * time.Second, []string{"clusters of the control plane: no answer yet"}},
		{"the catalog's listeners", "consul { listeners = true }\n", 30 * time.Second, []string{"listeners of the catalog: no answer yet"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				a, log := waits(t, tt.text)
				synctest.Wait()
				if tt.ready < 0 {
					if state, w := a.state(); state != "LIVE" || len(w) != 0 {
						t.Errorf("%s, %q", state, w)
					}
					return
				}
				limit := tt.ready
				if limit == 0 {
					limit = 240 * time.Hour
				}
				<-time.After(limit - time.Nanosecond)
				if state, w := a.state(); state != "INITIALIZING" || !slices.Equal(w, tt.waiting) {
					t.Errorf("after %v: %s, %q; want %q", time.Since(began), state, w, tt.waiting)
				}
				<-time.After(time.Nanosecond)
				synctest.Wait()
				if a.ready.Load() != (tt.ready > 0) {
					t.Errorf("ready after %v is %t, before anybody asks", time.Since(began), a.ready.Load())
				}
				if tt.ready == 0 {
					return
				}
				if state, w := a.state(); state != "LIVE" || w != nil {
					t.Errorf("%s, %q", state, w)
				}
				if n := strings.Count(log.String(), "not all has answered within initial_timeout"); n != 1 {
					t.Errorf("%d lines say so:\n%s", n, log)
				}
			})
		})
	}
}
