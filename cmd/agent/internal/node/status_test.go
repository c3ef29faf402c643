package node

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"gatehouse.internal/cmd/agent/internal/config"
	"gatehouse.internal/healthsvc"
	"gatehouse.internal/lbcore"
)

func TestWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		check := once(config.CheckTCP)
		check.InitialJitter = 24 * time.Hour // so none begins here
		big := clusterOf("big", eds(""))
		big.Selectors = []config.Selector{
			{Name: "rr", Policy: config.PolicyRoundRobin},
			{Name: "ring", Policy: config.PolicyRingHash, MinimumRingSize: 10, MaximumRingSize: 5},
		}
		r.apply(Spec{Clusters: []config.Cluster{clusterOf("web", eds(""), check), big}})
		expect := func(want ...string) {
			t.Helper()
			synctest.Wait()
			if got := r.Waiting(); !slices.Equal(got, want) {
				t.Errorf("waiting for %q, want %q", got, want)
			}
		}
		const unbuilt = `cluster "big": selector "ring": ring_hash: minimum_ring_size (10) > maximum_ring_size (5)`
		expect(`cluster "big": discovery has not answered yet`, `cluster "web": discovery has not answered yet`)
		r.eds.fail("web", errors.Join(errors.New("one is away"), errors.New("two is away")))
		expect(`cluster "big": discovery has not answered yet`, `cluster "web": discovery: one is away; two is away`)
		a, b := endpoint("192.0.2.1:80"), endpoint("192.0.2.2:80")
		r.eds.replace("big", a)
		b.Check.Disabled = true
		r.eds.replace("web", a, b)
		expect(unbuilt, `cluster "web": 1 of 2 endpoints have not been probed yet`)
		if w := r.cluster("web").Waiting; w != "1 of 2 endpoints have not been probed yet" {
			t.Errorf("the cluster waits for %q", w)
		}
		r.eds.replace("web", endpoint("192.0.2.3:80"))
		expect(unbuilt, `cluster "web": 1 of 1 endpoints have not been probed yet`)
		r.eds.replace("web", b)
		expect(unbuilt)
		r.eds.replace("web", a) // warm once, warm for ever
		expect(unbuilt)
		r.eds.replace("big") // none is an answer too
		expect()
	})
}

func TestSourceStates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		r.apply(Spec{Clusters: []config.Cluster{clusterOf("web", eds(""))}})
		expect := func(state string, updates, generation uint64, err string) {
			t.Helper()
			synctest.Wait()
			c := r.cluster("web")
			if s := c.Source; s.State != state || s.Updates != updates || s.Err != err || !s.Since.Equal(time.Now()) || c.Generation != generation {
				t.Errorf("generation %d, %+v at %s; want %s, %d, %d, %q", c.Generation, s, time.Now(), state, updates, generation, err)
			}
			pass(time.Minute)
		}
		expect("unknown", 0, 0, "")
		r.eds.fail("web", errors.New("away"))
		expect("failing", 0, 0, "away")
		e := endpoint("192.0.2.1:80")
		r.eds.replace("web", e)
		expect("fresh", 1, 1, "")
		r.eds.fail("web", errors.New("away again"))
		expect("stale", 1, 1, "away again")
		e.Status = lbcore.StatusDraining
		r.eds.replace("web", e)
		expect("fresh", 2, 1, "")
		if e := r.cluster("web").Endpoints[0]; e.Ready || e.Status != lbcore.StatusDraining {
			t.Errorf("endpoint is %+v", e)
		}
	})
}

// Totals are of all endpoints that a cluster ever had, and never go back.
func TestTotals(t *testing.T) {
	r := start(t)
	one, two := listen(t, "one"), listen(t, "two")
	r.eds.replace("web", one.Endpoint)
	r.apply(Spec{
		Clusters:  []config.Cluster{clusterOf("web", eds("")), clusterOf("same", static(one.Endpoint))},
		Listeners: []config.Listener{listenerOf("l", "web")},
	})
	within(t, "the clusters are warm", func() bool { return len(r.Waiting()) == 0 })
	c := r.mustDial("l", "one")
	c.alive()
	if e := r.cluster("same").Endpoints[0]; e.HostOpen != 1 || e.Totals != (Totals{}) {
		t.Errorf("the other cluster's endpoint is %+v", e)
	}

	r.eds.replace("web", two.Endpoint)
	within(t, "the new one answers", func() bool { return r.cluster("web").Selectors[0].Generation == 2 })
	r.mustDial("l", "two").Close()
	within(t, "its end is counted", func() bool { return r.cluster("web").Totals.Active == 1 })
	st := r.cluster("web")
	if i := slices.IndexFunc(st.Endpoints, func(e EndpointStatus) bool { return e.Addr == one.Addr }); i < 0 ||
		!st.Endpoints[i].Withdrawn || st.Endpoints[i].Ready || st.Endpoints[i].Totals != (Totals{Active: 1, Opened: 1}) {
		t.Errorf("endpoints are %+v", st.Endpoints)
	}
	if want := (Totals{Active: 1, Opened: 2, Received: 4}); st.Totals != want {
		t.Errorf("totals are %+v, want %+v", st.Totals, want)
	}
	c.alive()
	c.Close()
	within(t, "its end is counted", func() bool { return r.cluster("web").Totals.Active == 0 })
	want := Totals{Opened: 2, Sent: 12, Received: 20}
	r.eds.fail("web", errors.New("so that the cluster looks"))
	within(t, "it is forgotten", func() bool { return len(r.cluster("web").Endpoints) == 1 })
	if st := r.cluster("web"); st.Totals != want || st.Endpoints[0].Addr != two.Addr {
		t.Errorf("totals are %+v, want %+v", st.Totals, want)
	}
	r.eds.replace("web", one.Endpoint)
	within(t, "it is back", func() bool { return r.cluster("web").Selectors[0].Generation == 3 })
	r.mustDial("l", "one")
	want.Active, want.Opened = 1, 3
	if got := r.cluster("web").Totals; got != want {
		t.Errorf("totals are %+v, want %+v", got, want)
	}

	// How long connects took goes on over a change of settings.
	before := r.cluster("web")
	if before.Connect.Count() != 3 || before.FirstByte.Count() != 3 || before.FirstByte.Sum < before.Connect.Sum || before.Connect.Sum <= 0 {
		t.Errorf("connects took %+v, and first bytes %+v", before.Connect, before.FirstByte)
	}
	changed := clusterOf("web", eds(""))
	changed.MaxConnectAttempts = 2
	r.apply(Spec{Clusters: []config.Cluster{changed}, Listeners: []config.Listener{listenerOf("l", "web")}})
	within(t, "the settings are in force", func() bool { return r.serving("web").cfg.MaxConnectAttempts == 2 })
	r.mustDial("l", "one")
	within(t, "its greeting is counted", func() bool { return r.cluster("web").FirstByte.Count() == 4 })
	if got := r.cluster("web").Connect; got.Count() != 4 || got.Sum <= before.Connect.Sum {
		t.Errorf("connects took %+v, and before %+v", got, before.Connect)
	}
}

// Of several discovery blocks the first that knows is in force.
func TestDiscoveryBlocks(t *testing.T) {
	r := start(t)
	path := filepath.Join(t.TempDir(), "endpoints.json")
	if err := os.WriteFile(path, []byte(`{"endpoints": [{"address": "192.0.2.2:80"}, {"address": "192.0.2.2:80", "weight": 7}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	c := clusterOf("web", eds("remote"))
	twice := static(endpoint("192.0.2.3:80"), endpoint("192.0.2.3:80"))
	c.Discovery = append(c.Discovery, config.Discovery{Kind: config.DiscoveryFile, Path: path}, twice)
	r.apply(Spec{Clusters: []config.Cluster{c}})
	expect := func(want string) {
		t.Helper()
		within(t, want+" is the endpoint", func() bool {
			eps := r.cluster("web").Endpoints
			return len(eps) == 1 && fmt.Sprint(eps[0].Addr) == want
		})
	}
	expect("192.0.2.2:80")
	if n := r.cluster("web").Duplicates; n != 2 {
		t.Errorf("%d duplicates, want 2", n)
	}
	r.eds.replace("remote", endpoint("192.0.2.1:80"))
	expect("192.0.2.1:80")

	c.Discovery = nil
	r.apply(Spec{Clusters: []config.Cluster{c, {Name: "none"}}})
	within(t, "a source that can't work says so", func() bool {
		s := r.cluster("none").Source
		return s.State == "failing" && s.Err == "no discovery sources to choose from"
	})
}

// A dial that began before its endpoint was forgotten does not stay for ever.
func TestForgottenInUse(t *testing.T) {
	r := start(t)
	c, err := r.newCluster(clusterOf("web", static()), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	snap, _ := c.view.Update(lbcore.MustSet(endpoint("192.0.2.1:80")))
	m := snap.Member(0)
	m.StartDial()
	m.DialFailed()
	m.StartDial()
	c.view.Close()
	if want := (Totals{Failed: 1}); c.gone != want {
		t.Errorf("totals are %+v, want %+v", c.gone, want)
	}
	m.DialAbandoned() // else its address stays known
}

// What is said of an endpoint that is ready, and of its checks.
func TestWhyChecks(t *testing.T) {
	check := func(h lbcore.Health, err string) healthsvc.Status {
		return healthsvc.Status{Kind: "tcp", State: h, LastError: err}
	}
	ready := EndpointStatus{Endpoint: lbcore.Endpoint{Weight: 1}, State: StateReady}
	with := func(e EndpointStatus, change func(*EndpointStatus)) EndpointStatus {
		change(&e)
		return e
	}
	for want, e := range map[string]EndpointStatus{
		"": with(ready, func(e *EndpointStatus) { e.Checks = []healthsvc.Status{check(lbcore.HealthHealthy, "refused")} }),
		"its tcp check fails: refused; its tcp check fails: late": {
			Endpoint: lbcore.Endpoint{Weight: 1}, State: StateFailed, Health: lbcore.HealthUnhealthy,
			Checks: []healthsvc.Status{check(lbcore.HealthUnhealthy, "refused"), check(lbcore.HealthUnknown, ""), check(lbcore.HealthUnhealthy, "late")},
		},
		"its weight is 0; its check failed": {State: StateWeightless, Health: lbcore.HealthUnhealthy},
		"its tcp check has no verdict yet; its tcp check has no verdict yet: up": {
			Endpoint: lbcore.Endpoint{Weight: 1}, State: StateUnprobed,
			Checks: []healthsvc.Status{check(lbcore.HealthUnknown, ""), check(lbcore.HealthHealthy, ""), check(lbcore.HealthUnknown, "up")},
		},
		"its tcp check has no verdict yet: no ports": {
			Endpoint: lbcore.Endpoint{Weight: 1}, State: StateUnprobed,
			Checks: []healthsvc.Status{{Kind: "tcp", LastLocal: "no ports", LastError: "down"}},
		},
		"not probed yet":           {Endpoint: lbcore.Endpoint{Weight: 1}, State: StateUnprobed},
		"degraded, discovery says": with(ready, func(e *EndpointStatus) { e.Status, e.Degraded = lbcore.StatusDegraded, true }),
		"degraded, its tcp check says; discovery does not list it any more, but it passes its checks": with(ready, func(e *EndpointStatus) {
			e.Absent, e.Degraded, e.Health = true, true, lbcore.HealthDegraded
			e.Checks = []healthsvc.Status{check(lbcore.HealthDegraded, "")}
		}),
	} {
		if got := e.why(e.State == StateUnprobed); got != want {
			t.Errorf("%+v: %q, want %q", e, got, want)
		}
	}
}
