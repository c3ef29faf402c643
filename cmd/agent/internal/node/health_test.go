package node

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gatehouse.internal/cmd/agent/internal/config"
	"gatehouse.internal/healthsvc"
	"gatehouse.internal/lbcore"
)

// once returns a check that probes once in the life of a test.
func once(kind string) config.HealthCheck {
	return config.HealthCheck{
		Kind: kind, Interval: time.Hour, Timeout: time.Hour, HealthyThreshold: 2, UnhealthyThreshold: 1,
		InitialJitter: 1, IntervalJitter: 2, IntervalJitterPercent: 3, Initial: config.InitialUnknown, Share: true, Path: "/",
	}
}

// mute returns a check that never ends.
func mute() config.HealthCheck {
	hc := once(config.CheckTCP)
	hc.Receive = []config.Payload{"what no backend says"}
	return hc
}

// Clusters with the same backend and check share its probes, and a cluster
// that is replaced keeps what is known.
func TestProbesAreShared(t *testing.T) {
	r := start(t)
	one := listen(t, "one")
	slow := once(config.CheckTCP)
	slow.Interval, slow.HealthyThreshold, slow.UnhealthyThreshold = 2*time.Hour, 5, 7
	a, b := clusterOf("a", static(one.Endpoint), once(config.CheckTCP)), clusterOf("b", static(one.Endpoint), slow)
	r.apply(Spec{Clusters: []config.Cluster{a, b}})
	within(t, "both serve", func() bool {
		return r.ready("a") == 1 && r.ready("b") == 1 && r.serving("a").warm.Load() && r.serving("b").warm.Load()
	})
	if st := r.health.Stats(); st.Targets != 1 || st.Refs != 2 {
		t.Errorf("%d targets, %d refs; want 1, 2", st.Targets, st.Refs)
	}
	if n := r.hosts.Len(); n != 1 {
		t.Errorf("%d hosts, want 1", n)
	}

	old := r.serving("a")
	a = changed(a)
	a.HealthChecks[0].HealthyThreshold = 9 // another verdict over the same probes
	r.apply(Spec{Clusters: []config.Cluster{a, b}})
	within(t, "it is replaced", func() bool { return r.serving("a") != old })
	if r.ready("a") != 1 {
		t.Error("the verdict was lost")
	}
	want := healthsvc.Cadence{
		Interval: time.Hour, Timeout: time.Hour, InitialJitter: 1, IntervalJitter: 2, IntervalJitterPercent: 3,
	}
	if checks := r.cluster("a").Endpoints[0].Checks; len(checks) != 1 || checks[0].State != lbcore.HealthHealthy || checks[0].LastProbe.IsZero() || checks[0].Cadence != want {
		t.Errorf("checks are %+v", checks)
	}
	within(t, "the old one has let go", func() bool { return r.health.Stats().Refs == 2 })
	within(t, "the backend was probed", func() bool { return one.accepted.Load() > 0 })
	if n := one.accepted.Load(); n != 1 {
		t.Errorf("the backend was probed %d times, want once", n)
	}
	r.apply(Spec{Clusters: []config.Cluster{b}})
	within(t, "one is left", func() bool { st := r.health.Stats(); return st.Targets == 1 && st.Refs == 1 })
	r.apply(Spec{})
	within(t, "nothing is left", func() bool { return r.health.Stats().Targets == 0 && r.hosts.Len() == 0 })
}

// Source: HttpHealthCheck.host.
func TestHTTPCheckHost(t *testing.T) {
	r := start(t)
	hosts := make(chan string, 1)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { hosts <- r.Method + " " + r.Host + r.URL.String() }))
	defer srv.Close()
	plain := endpoint(srv.Listener.Addr().String())
	plain.Hostname = "traffic.internal" // not for probes
	named := plain
	named.Check.Hostname = "endpoint.internal"
	check := once(config.CheckHTTP)
	check.Path = "/health?deep"
	hosted := check
	hosted.Host, hosted.Method = "check.internal", "HEAD"
	for _, tt := range []struct {
		e     lbcore.Endpoint
		check config.HealthCheck
		want  string
	}{
		{plain, check, "GET web/health?deep"},
		{plain, hosted, "HEAD check.internal/health?deep"},
		{named, hosted, "HEAD endpoint.internal/health?deep"},
		{named, check, "GET endpoint.internal/health?deep"},
	} {
		r.apply(Spec{Clusters: []config.Cluster{clusterOf("web", static(tt.e), tt.check)}})
		if got := <-hosts; got != tt.want {
			t.Errorf("the request was %q, want %q", got, tt.want)
		}
		within(t, "the endpoint is ready", func() bool { return r.ready("web") == 1 })
		r.apply(Spec{})
	}
}

func TestHTTPCheckStatuses(t *testing.T) {
	r := start(t)
	srv := httptest.NewServer(http.NotFoundHandler())
	defer srv.Close()
	e := endpoint(srv.Listener.Addr().String())
	fails, passes := once(config.CheckHTTP), once(config.CheckHTTP)
	fails.UnhealthyThreshold = 100 // a status that isn't retriable needs one
	fails.Initial = config.InitialHealthy
	passes.ExpectedStatuses = []config.StatusRange{{Start: 400, End: 405}}
	retries := fails
	retries.RetriableStatuses = passes.ExpectedStatuses
	r.apply(Spec{Clusters: []config.Cluster{
		clusterOf("fails", static(e), fails), clusterOf("passes", static(e), passes), clusterOf("retries", static(e), retries),
	}})
	health := func(cluster string) lbcore.Health { return r.cluster(cluster).Endpoints[0].Health }
	within(t, "all are probed", func() bool {
		n := 0
		for _, c := range r.Status().Clusters {
			if len(c.Endpoints) == 1 && !c.Endpoints[0].Checks[0].LastProbe.IsZero() {
				n++
			}
		}
		return n == 3
	})
	if health("fails") != lbcore.HealthUnhealthy || health("passes") != lbcore.HealthHealthy || health("retries") != lbcore.HealthUnknown {
		t.Errorf("health is %s, %s, %s", health("fails"), health("passes"), health("retries"))
	}
}

func TestHealthyThreshold(t *testing.T) {
	r := start(t)
	var up atomic.Bool
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !up.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	defer srv.Close()
	check := once(config.CheckHTTP)
	check.Interval, check.Timeout, check.HealthyThreshold = 10*time.Millisecond, 10*time.Millisecond, 1e6
	r.apply(Spec{Clusters: []config.Cluster{clusterOf("web", static(endpoint(srv.Listener.Addr().String())), check)}})
	var e EndpointStatus
	probed := func(passing bool, times uint64) {
		t.Helper()
		within(t, "it is probed", func() bool {
			if eps := r.cluster("web").Endpoints; len(eps) == 1 {
				e = eps[0]
				return e.Checks[0].Passing == passing && e.Checks[0].Streak >= times
			}
			return false
		})
	}
	probed(false, 1)
	up.Store(true)
	probed(true, 3)
	if e.Health != lbcore.HealthUnhealthy || e.Ready {
		t.Errorf("endpoint is %+v", e)
	}
}

// Endpoints of a lower priority take what those of a higher one can't.
//
// bug 29: no timer stands between a failure and the next priority.
func TestPrioritiesFollowHealth(t *testing.T) {
	r := start(t)
	high, low := listen(t, "high"), listen(t, "low")
	low.Priority = 1
	r.apply(Spec{
		Clusters:  []config.Cluster{clusterOf("web", static(high.Endpoint, deaf(t), low.Endpoint), once(config.CheckTCP))},
		Listeners: []config.Listener{listenerOf("l", "web")},
	})
	within(t, "the cluster is warm", func() bool { return len(r.Waiting()) == 0 })
	for _, want := range []string{"low", "high"} { // 30 % and 70 %
		within(t, want+" takes connections", func() bool {
			c, err := r.dial("l")
			if err != nil {
				t.Fatal(err)
			}
			c.Close()
			return c.from == want
		})
	}
}

// What an endpoint says of its check is obeyed, and may change.
//
// bug 34: a changed health_check_config is obeyed.
func TestEndpointCheck(t *testing.T) {
	r := start(t)
	traffic, health := listen(t, "traffic"), listen(t, "health")
	e := traffic.Endpoint
	e.Check.Disabled = true
	dead := deaf(t)
	dead.Check.Disabled = true
	r.eds.replace("web", e, dead)
	r.apply(Spec{
		Clusters:  []config.Cluster{clusterOf("web", eds(""), once(config.CheckTCP))},
		Listeners: []config.Listener{listenerOf("l", "web")},
	})
	within(t, "both are ready", func() bool { return r.ready("web") == 2 && len(r.Waiting()) == 0 })
	if n := r.health.Stats().Targets; n != 0 {
		t.Errorf("%d targets, want 0", n)
	}

	// Probed at another address than that of its connections.
	e.Check = lbcore.Check{Addr: health.Addr}
	dead.Check = lbcore.Check{Addr: health.Addr}
	r.eds.replace("web", e, dead)
	within(t, "the health address is probed", func() bool { return health.accepted.Load() == 1 && r.health.Stats().Refs == 2 })
	within(t, "both are ready", func() bool { return r.ready("web") == 2 })
	if n := r.health.Stats().Targets; n != 1 {
		t.Errorf("%d targets, want 1", n)
	}
	e.Check = lbcore.Check{Addr: deaf(t).Addr}
	r.eds.replace("web", e)
	within(t, "it is unhealthy", func() bool {
		c := r.cluster("web")
		return len(c.Endpoints) == 1 && c.Endpoints[0].Health == lbcore.HealthUnhealthy
	})
	if st := r.health.Stats(); st.Targets != 1 || st.Refs != 1 {
		t.Errorf("%d targets, %d refs; want 1, 1", st.Targets, st.Refs)
	}

	e.Check.Disabled = true
	r.eds.replace("web", e)
	within(t, "it is ready again", func() bool { return r.ready("web") == 1 && r.health.Stats().Refs == 0 })
	r.mustDial("l", "traffic").alive()
}

// Every check must pass, and before the first probe every one must say that
// this is good enough.
func TestSeveralChecks(t *testing.T) {
	r := start(t)
	one := listen(t, "one")
	good, bad := once(config.CheckTCP), mute()
	r.apply(Spec{Clusters: []config.Cluster{clusterOf("one", static(one.Endpoint), good, bad)}})
	within(t, "one check has passed", func() bool {
		c := r.cluster("one")
		return len(c.Endpoints) == 1 && len(c.Endpoints[0].Checks) == 2 && c.Endpoints[0].Checks[0].State == lbcore.HealthHealthy
	})
	if c := r.cluster("one"); r.ready("one") != 0 || c.Endpoints[0].Health != lbcore.HealthUnknown {
		t.Errorf("endpoint is %+v", c.Endpoints[0])
	}

	// An endpoint that isn't used before its probes is not spared either.
	spare, strict := once(config.CheckTCP), once(config.CheckTCP)
	spare.Initial, spare.UnhealthyThreshold = config.InitialHealthy, 100
	strict.Send = "another check"
	r.apply(Spec{Clusters: []config.Cluster{clusterOf("dead", static(deaf(t)), spare, strict)}})
	within(t, "the first failure counts", func() bool {
		c := r.cluster("dead")
		return len(c.Endpoints) == 1 && c.Endpoints[0].Checks[0].State == lbcore.HealthUnhealthy
	})

	first, second := mute(), mute()
	second.Send = "another check"
	first.Initial = config.InitialHealthy
	r.apply(Spec{Clusters: []config.Cluster{clusterOf("mixed", static(one.Endpoint), first, second)}})
	within(t, "the endpoint is listed", func() bool { return len(r.cluster("mixed").Endpoints) == 1 })
	if r.ready("mixed") != 0 {
		t.Error("ready before the first probe, although one check does not say so")
	}
	second.Initial = config.InitialHealthy
	r.apply(Spec{Clusters: []config.Cluster{clusterOf("healthy", static(one.Endpoint), first, second)}})
	within(t, "the endpoint is ready", func() bool { return r.ready("healthy") == 1 && r.cluster("healthy").Waiting == "" })
}

// A membership that is replaced as a whole answers once it is probed, and the
// one before it until then.
func TestOldMembershipServesUntilTheNewIsProbed(t *testing.T) {
	r := start(t)
	one, two := listen(t, "one"), listen(t, "two")
	health, err := net.Listen("tcp", "127.0.0.1:0") // answers when the test does
	if err != nil {
		t.Fatal(err)
	}
	defer health.Close()
	check := once(config.CheckTCP)
	check.Send, check.Receive = "ok", []config.Payload{"ok"}
	r.eds.replace("web", one.Endpoint)
	r.apply(Spec{
		Clusters:  []config.Cluster{clusterOf("web", eds(""), check)},
		Listeners: []config.Listener{listenerOf("l", "web")},
	})
	within(t, "the cluster is warm", func() bool { return len(r.Waiting()) == 0 })
	e := two.Endpoint
	e.Check.Addr = endpoint(health.Addr().String()).Addr
	r.eds.replace("web", e)
	within(t, "the membership is known", func() bool { return r.cluster("web").Generation == 2 })
	for range 3 {
		r.mustDial("l", "one").Close()
	}
	probe, err := health.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer probe.Close()
	io.WriteString(probe, "ok")
	within(t, "the new one answers, and nobody was refused before", func() bool {
		c, err := r.dial("l")
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
		return c.from == "two"
	})
	within(t, "the old one is not probed any more", func() bool { return r.health.Stats().Targets == 1 })
}

// Probes come from where connections do. An endpoint to which that is impossible
// keeps no new settings waiting, but settings by which none can be probed do wait.
func TestProbesComeFromTheSourceAddress(t *testing.T) {
	r := start(t)
	from := make(chan net.Addr, 10)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			select {
			case from <- c.RemoteAddr():
			default:
			}
			c.Close()
		}
	})
	t.Cleanup(func() { ln.Close(); wg.Wait() })
	six, err := net.Listen("tcp", "[::1]:0")
	if err != nil {
		t.Fatalf("this test needs ::1: %v", err)
	}
	t.Cleanup(func() { six.Close() })

	v4, v6 := endpoint(ln.Addr().String()), endpoint(six.Addr().String())
	a := clusterOf("a", static(v4), once(config.CheckTCP))
	a.SourceAddress = []netip.Addr{netip.MustParseAddr("127.0.0.9")}
	r.apply(Spec{Clusters: []config.Cluster{a}})
	if got := (<-from).(*net.TCPAddr).IP.String(); got != "127.0.0.9" {
		t.Errorf("a probe from %s", got)
	}
	// Settings wait for the next ones only where a cluster is warm already.
	within(t, "it is ready", func() bool { return r.ready("a") == 1 && r.serving("a").warm.Load() })

	old := r.serving("a")
	a.SourceAddress = []netip.Addr{netip.MustParseAddr("192.0.2.77")} // not of this machine
	r.apply(Spec{Clusters: []config.Cluster{a}})
	within(t, "it says what it waits for", func() bool {
		return r.cluster("a").Waiting == "changed settings are not in force yet: none of 1 endpoints can be probed, for reasons that are local"
	})
	if r.serving("a") != old {
		t.Error("it was replaced by one that can't serve")
	}
	a.Discovery = []config.Discovery{static(v4, v6)}
	r.apply(Spec{Clusters: []config.Cluster{a}})
	within(t, "it is replaced", func() bool { return r.serving("a") != old && r.ready("a") == 1 })
}
