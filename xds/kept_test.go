package xds

import (
	"context"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"gatehouse.internal/discovery/discoverytest"
	"gatehouse.internal/internal/lastgood"
	"gatehouse.internal/internal/tlsconf/tlstest"
	"gatehouse.internal/xds/internal/core"
)

// life is one run of an agent that keeps what the server says.
type life struct {
	*fakeServer
	end func() // the test's last act of it
}

// lives starts a run. The server refuses, or the streams are of a variant.
func lives(t *testing.T, dir string, with ...func(*fakeServer)) *life {
	t.Helper()
	store, err := lastgood.Open(lastgood.Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { store.Run(ctx) })
	f := newFake(t, append(with, func(f *fakeServer) { f.client.cfg.State = store })...)
	var once sync.Once
	end := func() {
		once.Do(func() {
			f.stop()
			cancel()
			wg.Wait()
			store.Close()
		})
	}
	t.Cleanup(end)
	return &life{f, end}
}

func delta(f *fakeServer) { f.variant = core.Delta }

func edsOnly(name string) *clusterv3.Cluster {
	return &clusterv3.Cluster{
		Name: name, ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS},
		EdsClusterConfig: &clusterv3.Cluster_EdsClusterConfig{EdsConfig: &corev3.ConfigSource{
			ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}},
		}},
	}
}

// sends is respond in either variant.
func (f *fakeServer) sends(typ string, n int, named map[string]proto.Message) {
	f.t.Helper()
	r := core.Response{Type: typ, Version: "v1", Nonce: "n1"}
	for name, m := range named {
		res := core.Resource{Type: typ, Body: marshal(f.t, m)}
		if f.variant == core.Delta {
			res.Name, res.Version = name, "r1"
		}
		r.Resources = append(r.Resources, res)
	}
	f.answer(r)
}

// What the server said is in force after a restart without it, as stale, and is
// asked for anew; what it confirms is fresh, what it does not is gone.
func TestRestart(t *testing.T) {
	for name, with := range map[string]func(*fakeServer){"sotw": func(*fakeServer) {}, "delta": delta} {
		t.Run(name, func(t *testing.T) { synctest.Test(t, func(t *testing.T) { restart(t, with) }) })
	}
}

func restart(t *testing.T, variant func(*fakeServer)) {
	dir := filepath.Join(t.TempDir(), "state")
	first := lives(t, dir, variant)
	first.watchClusters()
	web1, _ := first.watch("web")
	first.sends(ClusterType, 1, map[string]proto.Message{"web": edsOnly("web"), "api": edsOnly("api")})
	first.sends(AssignmentType, 1, map[string]proto.Message{"web": web(1), "api": cla("api", locality(0, lb(socket("10.0.1.1", 80))))})
	n := 0
	reports(t, web1, &n, "[10.0.0.1:80]")
	pass(time.Hour)
	first.end()
	end := time.Now()

	pass(time.Hour)
	second := lives(t, dir, variant, refuses)
	clusters, _ := second.watchClusters()
	web2, _ := second.watch("web")
	synctest.Wait() // the server has not even been asked
	seen, at := 0, end.UTC().Truncate(time.Second).Format(time.RFC3339)
	clusters.check(t, &seen, "known=true api web err: what was known before the restart is in force, right until "+at+": no answer yet")
	n = 0
	reports(t, web2, &n, "[10.0.0.1:80]", "fail: what was known before the restart is in force, right until "+at+": no answer yet")
	second.asked()
	pass(500 * time.Millisecond)
	reports(t, web2, &n, "fail: what was known before the restart is in force, right until "+at+": eds \"web\": xds server control:18000: connection refused")
	for _, ts := range second.client.Status().Types {
		for _, r := range ts.Resources {
			if r.State != "requested" || r.Version == "" || !r.Updated.Equal(end.Truncate(time.Second)) {
				t.Errorf("shown as %+v", r)
			}
		}
	}
	if got := second.client.Counters(); got.Assignments.Changed != 0 || got.Clusters.Changed != 0 {
		t.Errorf("counted as changes: %+v", got)
	}

	// It is back: no version of before is told, since it may count anew.
	second.refuseWith(nil)
	pass(10 * time.Second)
	for range 2 {
		if r := second.next(); r.Version != "" || len(r.Initial) > 0 || r.Nonce != "" {
			t.Errorf("the first requests tell what was known before: %+v", r)
		}
	}
	seen = len(clusters.since(0))
	second.sends(ClusterType, 1, map[string]proto.Message{"web": edsOnly("web")}) // the same bytes
	second.sends(AssignmentType, 1, map[string]proto.Message{"web": web(1)})
	pass(DefaultInitialFetchTimeout + time.Second)
	reports(t, web2, &n, "fail: what was known before the restart is in force, right until "+at+": no answer yet", "[10.0.0.1:80]")
	if u := clusters.since(seen); len(u) == 0 || u[len(u)-1].String() != "known=true web" {
		t.Errorf("clusters: %v", u)
	}
	second.end()

	third := lives(t, dir, variant, refuses)
	defer third.end()
	clusters, _ = third.watchClusters()
	seen = 0
	synctest.Wait()
	if u := clusters.since(0); len(u) != 1 || len(u[0].Clusters) != 1 {
		t.Errorf("after what was not confirmed: %v", u)
	}
	third.asked()
}

// Listeners are in force after a restart without the server, but for those that hold a
// private key; those that it does not confirm are gone.
func TestRestartListeners(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "state")
		watch := func(l *life) (last func() string) {
			said := make(chan ListenersUpdate, 100)
			ctx, cancel := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			wg.Go(func() { l.client.WatchListeners(ctx, func(u ListenersUpdate) { said <- u }) })
			t.Cleanup(func() { cancel(); wg.Wait() })
			return func() (text string) {
				synctest.Wait()
				for len(said) > 0 {
					text = (<-said).String()
				}
				return text
			}
		}
		secret := func(l *listenerv3.Listener) {
			l.FilterChains[0].TransportSocket = &corev3.TransportSocket{Name: "tls", ConfigType: &corev3.TransportSocket_TypedConfig{
				TypedConfig: anyOf(t, &tlsv3.DownstreamTlsContext{CommonTlsContext: &tlsv3.CommonTlsContext{
					TlsCertificates: []*tlsv3.TlsCertificate{{PrivateKey: &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: "sesame"}}}},
				}}),
			}}
			l.ApiListener = &listenerv3.ApiListener{} // so that it is accepted with that key
		}
		first := lives(t, dir)
		last := watch(first)
		first.respond(ListenerType, 1, tcpListener(t, "a"), tcpListener(t, "b"), tcpListener(t, "key", secret))
		if got := last(); got != "known=true a b key(api_listener)" {
			t.Fatalf("said: %s", got)
		}
		pass(2 * time.Second)
		first.end()

		second := lives(t, dir, refuses)
		last = watch(second)
		if got := last(); !strings.HasPrefix(got, "known=true a b err: what was known before the restart is in force") {
			t.Errorf("after the restart: %s", got)
		}
		second.asked()
		second.refuseWith(nil)
		pass(10 * time.Second)
		second.next()
		second.respond(ListenerType, 1, tcpListener(t, "b"))
		pass(DefaultInitialFetchTimeout + time.Second)
		if got := last(); got != "known=true b" {
			t.Errorf("after the answer: %s", got)
		}
		second.end()
	})
}

// Endpoints that the server does not confirm stay in force, as those of a
// resource that it does not have do.
func TestRestartNotConfirmed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "state")
		first := lives(t, dir)
		rec, _ := first.watch("web")
		first.respond(AssignmentType, 1, web(1))
		n := 0
		reports(t, rec, &n, "[10.0.0.1:80]")
		first.end()

		second := lives(t, dir)
		defer second.end()
		rec, _ = second.watch("web")
		second.next()
		pass(DefaultInitialFetchTimeout + time.Second)
		n = 1
		all := rec.Reports()
		if last := all[len(all)-1].String(); !strings.Contains(last, "no such resource") || !strings.Contains(last, "before the restart") {
			t.Errorf("reports: %v", all)
		}
		second.respond(AssignmentType, 1, web(2))
		n = len(all)
		reports(t, rec, &n, "[10.0.0.2:80]")
	})
}

// Who leaves a client takes nothing from the next run at once: at the end of a run, and
// when another client takes its place, watches may end before it. Later it is of no more
// use.
func TestRestartAfterWatchesHaveEnded(t *testing.T) {
	for name, tt := range map[string]struct {
		wait time.Duration
		want string
	}{"at once": {time.Second, "known=true web"}, "long before": {time.Minute, ""}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dir := filepath.Join(t.TempDir(), "state")
				first := lives(t, dir)
				_, stopClusters := first.watchClusters()
				_, stop := first.watch("web")
				_, stopAlone := first.watch("alone")
				first.respond(ClusterType, 1, edsOnly("web"))
				first.respond(AssignmentType, 1, web(1), cla("alone", locality(0, lb(socket("10.0.1.1", 80)))))
				pass(2 * time.Second)
				stopClusters()
				stop()
				stopAlone()
				pass(tt.wait)
				first.end()

				second := lives(t, dir, refuses)
				defer second.end()
				clusters, _ := second.watchClusters()
				rec, _ := second.watch("web")
				alone, _ := second.watch("alone")
				synctest.Wait()
				got := ""
				if u := clusters.since(0); len(u) > 0 {
					got, _, _ = strings.Cut(u[0].String(), " err:")
				}
				endpoints := func(r []discoverytest.Report) string {
					if len(r) == 0 {
						return ""
					}
					return r[0].String()
				}
				want := []string{tt.want, "[10.0.0.1:80]", "[10.0.1.1:80]"}
				if tt.want == "" {
					want = []string{"", "", ""}
				}
				if all := []string{got, endpoints(rec.Reports()), endpoints(alone.Reports())}; !slices.Equal(all, want) {
					t.Errorf("after the restart: %q, want %q", all, want)
				}
				second.asked()
			})
		})
	}
}

// The time of endpoint_stale_after goes on while nobody runs, and endpoints that were
// taken away do not come back by a restart.
func TestRestartOfWhatIsStale(t *testing.T) {
	const gone = `fail: eds "web": it was not sent again within 10s (endpoint_stale_after)`
	run := func(t *testing.T, before, away time.Duration, check func(t *testing.T, reports func() []string)) {
		synctest.Test(t, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "state")
			first := lives(t, dir)
			first.watch("web")
			first.respond(AssignmentType, 1, perishable(1))
			pass(before)
			first.end()
			pass(away)
			second := lives(t, dir, refuses)
			defer second.end()
			rec, _ := second.watch("web")
			synctest.Wait()
			check(t, func() (all []string) {
				for _, r := range rec.Reports() {
					all = append(all, r.String())
				}
				return all
			})
			second.asked()
		})
	}
	run(t, 5*time.Second, 5*time.Second, func(t *testing.T, reports func() []string) {
		if all := reports(); len(all) == 0 || all[0] != "[10.0.0.1:80]" {
			t.Errorf("in time: %q", all)
		}
		pass(6 * time.Second) // the end of the first run is known to the second
		if all := reports(); all[len(all)-2] != "[]" || !strings.HasSuffix(all[len(all)-1], "(endpoint_stale_after)") {
			t.Errorf("then: %q", all)
		}
	})
	run(t, 5*time.Second, time.Hour, func(t *testing.T, reports func() []string) {
		if all := reports(); len(all) == 0 || all[len(all)-1] != gone || all[len(all)-2] != "[]" {
			t.Errorf("much later: %q", all)
		}
	})
	run(t, 15*time.Second, time.Second, func(t *testing.T, reports func() []string) {
		if all := reports(); slices.Contains(all, "[10.0.0.1:80]") {
			t.Errorf("what was stale before: %q", all)
		}
	})
}

// What is asked of another server, or by another node, is another's.
func TestRestartElsewhere(t *testing.T) {
	a, b := Config{Node: Node{ID: "a"}, Servers: []Server{{URI: "x:1"}}}, Config{Node: Node{ID: "a"}, Servers: []Server{{URI: "y:1"}}}
	c := a
	c.Node.Cluster = "edge"
	if a.scope() == b.scope() || a.scope() == c.scope() {
		t.Errorf("%q, %q, %q", a.scope(), b.scope(), c.scope())
	}
}

// A file that can be read with a resource that can't be any more costs that one.
func TestRestartOfWhatIsInvalid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "state")
		first := lives(t, dir)
		l := newLoop(first.client)
		item := l.keeping.types[AssignmentType].items[bucketOf("web")]
		item.Put(func() ([]byte, error) {
			return encodeResources(map[string]core.HeldResource{
				"web": {Version: "1", Body: string(marshal(t, badWeb()))}, "other": {Body: string(marshal(t, web(1)))},
			})
		})
		pass(2 * time.Second)
		first.end()

		second := lives(t, dir)
		defer second.end()
		rec, _ := second.watch("web")
		if r := second.next(); len(r.Names) != 1 || r.Version != "" {
			t.Errorf("request %+v", r)
		}
		n := 0
		reports(t, rec, &n)
		if text := second.log.String(); !strings.Contains(text, badWeight) {
			t.Errorf("log:\n%s", text)
		}
	})
}

// Secrets are never kept, nor what has a time to live.
func TestNoSecretsOnDisk(t *testing.T) {
	p := tlstest.NewCA(t, "ca").Issue(t, tlstest.Leaf{})
	whole := &tlsv3.TlsCertificate{CertificateChain: inline(p.CertPEM), PrivateKey: inline(p.KeyPEM)}
	key := &tlsv3.TlsCertificate{PrivateKey: &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: "sesame"}}}
	inline := func(c *tlsv3.TlsCertificate) *clusterv3.Cluster {
		m := edsOnly("web")
		ctx := &tlsv3.UpstreamTlsContext{CommonTlsContext: &tlsv3.CommonTlsContext{TlsCertificates: []*tlsv3.TlsCertificate{c}}}
		m.TransportSocket = &corev3.TransportSocket{Name: "tls", ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: anyOf(t, ctx)}}
		return m
	}
	header := func(name string) *clusterv3.Cluster {
		m := edsOnly("web")
		m.HealthChecks = []*corev3.HealthCheck{{HealthChecker: &corev3.HealthCheck_HttpHealthCheck_{HttpHealthCheck: &corev3.HealthCheck_HttpHealthCheck{
			RequestHeadersToAdd: []*corev3.HeaderValueOption{{Header: &corev3.HeaderValue{Key: name, Value: "sesame"}}},
		}}}}
		return m
	}
	file := &tlsv3.TlsCertificate{PrivateKey: &corev3.DataSource{Specifier: &corev3.DataSource_Filename{Filename: "/etc/key.pem"}}}
	unknown := edsOnly("web")
	unknown.TransportSocket = &corev3.TransportSocket{Name: "x", ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: &anypb.Any{TypeUrl: "type.googleapis.com/none.Such"}}}
	options := edsOnly("web")
	options.TypedExtensionProtocolOptions = map[string]*anypb.Any{"x": {TypeUrl: "type.googleapis.com/none.Such", Value: []byte("x")}}
	pem := edsOnly("web")
	pem.AltStatName = "-----BEGIN EC PRIVATE KEY-----"
	for name, c := range map[string]struct {
		m      *clusterv3.Cluster
		secret bool
	}{
		"inline key": {inline(key), true}, "key file": {inline(file), false}, "a token": {header("Authorization"), true},
		"a header": {header("x-probe"), false}, "a socket that is not known": {unknown, true}, "options that are not known": {options, false},
		"a key anywhere": {pem, true}, "nothing": {edsOnly("web"), false},
	} {
		if got := secretIn(ClusterType, string(marshal(t, c.m))); (got != "") != c.secret {
			t.Errorf("%s: %q", name, got)
		}
	}
	socketOf := func(c *tlsv3.TlsCertificate) change {
		ctx := &tlsv3.DownstreamTlsContext{CommonTlsContext: &tlsv3.CommonTlsContext{TlsCertificates: []*tlsv3.TlsCertificate{c}}}
		return func(l *listenerv3.Listener) {
			l.FilterChains[0].TransportSocket = &corev3.TransportSocket{Name: "tls", ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: anyOf(t, ctx)}}
		}
	}
	none := &anypb.Any{TypeUrl: "type.googleapis.com/none.Such"}
	for name, c := range map[string]struct {
		with   change
		secret bool
	}{
		"inline key": {socketOf(key), true}, "key file": {socketOf(file), false},
		"a filter that is not known": {func(l *listenerv3.Listener) {
			l.FilterChains[0].Filters[0].ConfigType = &listenerv3.Filter_TypedConfig{TypedConfig: none}
		}, true},
		"an access log that is not known": {func(l *listenerv3.Listener) {
			l.AccessLog = []*accesslogv3.AccessLog{{Name: "x", ConfigType: &accesslogv3.AccessLog_TypedConfig{TypedConfig: none}}}
		}, false},
		"a key anywhere": {func(l *listenerv3.Listener) { l.StatPrefix = "-----BEGIN EC PRIVATE KEY-----" }, true},
		"nothing":        {func(*listenerv3.Listener) {}, false},
	} {
		if got := secretIn(ListenerType, string(marshal(t, tcpListener(t, "l", c.with)))); (got != "") != c.secret {
			t.Errorf("listener with %s: %q", name, got)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "state")
		first := lives(t, dir)
		first.watchClusters()
		first.respond(ClusterType, 1, inline(whole), edsOnly("api"))
		r := core.Response{Type: AssignmentType, Version: "v1", Nonce: "n1", Resources: []core.Resource{
			{Type: AssignmentType, Name: "api", TTL: int64(time.Hour), Body: marshal(t, cla("api", locality(0, lb(socket("10.0.0.1", 80)))))},
		}}
		first.answer(r)
		pass(2 * time.Second)
		if text := first.log.String(); !strings.Contains(text, "it holds what is secret") {
			t.Errorf("log:\n%s", text)
		}
		first.end()

		second := lives(t, dir, refuses)
		defer second.end()
		u, _ := second.watchClusters()
		rec, _ := second.watch("api")
		synctest.Wait()
		if all := u.since(0); len(all) != 1 || len(all[0].Clusters) != 1 || all[0].Clusters[0].Name != "api" {
			t.Errorf("clusters: %v", all)
		}
		if all := rec.Reports(); len(all) != 0 {
			t.Errorf("endpoints with a TTL: %v", all)
		}
		second.asked()
	})
}

// Whatever is on disk, what comes of it is judged as what a server sends.
func FuzzRestore(f *testing.F) {
	b, err := encodeResources(map[string]core.HeldResource{"web": {Version: "1", Body: "\n\x03web"}, "api": {Version: "1", Body: "x"}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte(`[{"name":"*"}]`))
	f.Add([]byte(`[{"name":"web","body":"!"}]`))
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, b []byte) {
		list, err := decodeResources(b)
		if err != nil {
			return
		}
		if list == nil {
			t.Fatalf("%s is taken for no resources", b)
		}
		c := core.New(1, core.Type{URL: AssignmentType, Decode: decoder(decodeAssignment, nil)})
		for _, x := range list {
			err := c.Restore(AssignmentType, x.Name, x.Version, x.Body)
			if h, held := c.Held(AssignmentType, x.Name); held && !h.Restored || err == nil && !held {
				t.Fatalf("%q: %v, %+v", x.Name, err, h)
			}
		}
	})
}

// That there is nothing is kept too: what was there before does not come back, and the
// next run knows that there is nothing.
func TestRestartOfNothing(t *testing.T) {
	for name, with := range map[string]func(*fakeServer){"sotw": func(*fakeServer) {}, "delta": delta} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dir := filepath.Join(t.TempDir(), "state")
				first := lives(t, dir, with)
				first.watchClusters()
				first.sends(ClusterType, 1, map[string]proto.Message{"web": edsOnly("web")})
				pass(time.Hour)
				first.end()

				// The next one hears at once that there is nothing any more.
				second := lives(t, dir, with)
				clusters, _ := second.watchClusters()
				pass(time.Second)
				second.sends(ClusterType, 1, nil)
				pass(DefaultInitialFetchTimeout + time.Hour)
				if u := clusters.since(0); len(u) == 0 || u[len(u)-1].String() != "known=true" {
					t.Errorf("after an empty answer: %v", u)
				}
				second.end()
				end := time.Now()

				third := lives(t, dir, with, refuses)
				defer third.end()
				clusters, _ = third.watchClusters()
				synctest.Wait()
				want := "known=true err: what was known before the restart is in force, right until " + end.UTC().Truncate(time.Second).Format(time.RFC3339) + ": no answer yet"
				if u := clusters.since(0); len(u) != 1 || u[0].String() != want {
					t.Errorf("after the restart: %v, want %q", u, want)
				}
				third.asked()
			})
		})
	}
}
