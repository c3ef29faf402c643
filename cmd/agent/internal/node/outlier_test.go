package node

import (
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"gatehouse.internal/cmd/agent/internal/config"
	"gatehouse.internal/forwarder"
	"gatehouse.internal/healthsvc/outlier"
	"gatehouse.internal/lbcore"
)

// outliersOf returns c with Envoy's defaults of outlier detection, but that half
// of the endpoints may be ejected.
func outliersOf(c config.Cluster, change ...func(*config.OutlierDetection)) config.Cluster {
	c.OutlierDetection = config.OutlierDetection(outlier.Default())
	c.OutlierDetection.MaxEjectionPercent = 50
	for _, f := range change {
		f(&c.OutlierDetection)
	}
	return c
}

// addresses returns n endpoints that nobody dials.
func addresses(n int) (eps []lbcore.Endpoint) {
	for i := range n {
		eps = append(eps, endpoint(fmt.Sprintf("192.0.2.%d:80", i+1)))
	}
	return eps
}

// member returns what stands for endpoint i, in the order of addresses.
func (r *rig) member(cluster string, i int) *lbcore.Member {
	return r.serving(cluster).shown.Load().endpoints[i].Member
}

// fails reports n failed dials to endpoint i, succeeds n good ones.
func (r *rig) fails(cluster string, i, n int) {
	for range n {
		m := r.member(cluster, i)
		m.StartDial()
		m.DialFailed()
	}
	synctest.Wait()
}

func (r *rig) succeeds(cluster string, i, n int) {
	for range n {
		m := r.member(cluster, i)
		m.StartDial()
		m.Connected()
		m.Closed(0, 0)
	}
	synctest.Wait()
}

// ejected returns which endpoints of a cluster are, by their numbers.
func (r *rig) ejected(cluster string) (out []int) {
	for i, e := range r.cluster(cluster).Endpoints {
		if e.Ejected != (e.State == StateEjected) || e.Ejected == e.Ready {
			r.t.Errorf("endpoint is %+v", e)
		}
		if e.Ejected {
			out = append(out, i)
		}
	}
	return out
}

// wantEjected fails the test unless these endpoints are ejected.
func (r *rig) wantEjected(cluster string, want ...int) {
	r.t.Helper()
	if got := r.ejected(cluster); !slices.Equal(got, want) {
		r.t.Errorf("%v are ejected, want %v", got, want)
	}
}

// Five failures in a row eject an endpoint at once; it comes back with the
// first interval after 30 s, and after 60 s the second time. Nothing is rebuilt.
func TestEjection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		began := time.Now()
		r.apply(Spec{Clusters: []config.Cluster{outliersOf(clusterOf("web", static(addresses(2)...)))}})
		synctest.Wait()
		at := func(seconds float64) { // since the start
			pass(time.Until(began.Add(time.Duration(seconds * float64(time.Second)))))
		}
		r.fails("web", 0, 4)
		r.succeeds("web", 0, 1)
		r.fails("web", 0, 4)
		m := r.member("web", 0) // a dial that says nothing of the endpoint
		m.StartDial()
		m.DialAbandoned()
		r.wantEjected("web")
		at(3)
		r.fails("web", 0, 1)
		r.wantEjected("web", 0)
		e := r.cluster("web").Endpoints[0]
		if j := e.Ejection; j == nil || !j.Since.Equal(began.Add(3*time.Second)) || !j.Until.Equal(began.Add(33*time.Second)) || j.Rule != "consecutive_5xx" || j.Times != 1 || !e.Since.Equal(j.Since) {
			t.Errorf("ejection is %+v of %+v", j, e)
		}
		if want := "ejected by consecutive_5xx since 2000-01-01T00:00:03Z until 2000-01-01T00:00:33Z, time 1"; e.Why != want {
			t.Errorf("why: %s, want %s", e.Why, want)
		}
		r.fails("web", 1, 20) // half of them are ejected already
		r.wantEjected("web", 0)
		if s := r.cluster("web").Outliers; s.Active != 1 || s.Overflow != 8 || s.Detected[outlier.Consecutive5xx] != 5 || s.Enforced[outlier.Consecutive5xx] != 1 ||
			s.Detected[outlier.ConsecutiveGatewayFailure] != 5 || s.Enforced[outlier.ConsecutiveGatewayFailure] != 0 {
			t.Errorf("stats are %+v", s)
		}
		r.succeeds("web", 1, 1)
		r.fails("web", 0, 3) // as in a panic: it begins anew when it is back
		at(39.999)
		r.wantEjected("web", 0)
		at(40)
		r.wantEjected("web")
		if e := r.cluster("web").Endpoints[0]; !e.Since.Equal(began.Add(40*time.Second)) || e.Why != "" || e.Ejection == nil || !e.Ejection.Until.Equal(e.Since) {
			t.Errorf("endpoint is %+v", e)
		}
		r.fails("web", 0, 4)
		r.wantEjected("web")
		r.fails("web", 0, 1)
		r.wantEjected("web", 0)
		at(99.999)
		r.wantEjected("web", 0)
		at(100)
		r.wantEjected("web")
		at(119) // one interval without: once less
		r.fails("web", 0, 5)
		at(179.999)
		r.wantEjected("web", 0)
		at(180)
		r.wantEjected("web")
		c := r.cluster("web")
		if c.Generation != 1 || c.Selectors[0].Rebuilds != 1 {
			t.Errorf("ejections have rebuilt selectors: %+v", c.Selectors)
		}
	})
}

// The sweep of an interval compares what endpoints did in it.
func TestEjectionBySuccessRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		split := outliersOf(clusterOf("split", static(addresses(5)...)), func(o *config.OutlierDetection) {
			o.SplitExternalLocalOriginErrors, o.ConsecutiveLocalOriginFailure = true, 1000
		})
		one := outliersOf(clusterOf("one", static(addresses(5)...)), func(o *config.OutlierDetection) { o.Consecutive5xx = 0 })
		r.apply(Spec{Clusters: []config.Cluster{split, one}})
		synctest.Wait()
		for _, name := range []string{"split", "one"} {
			for i := range 5 {
				r.succeeds(name, i, 100)
			}
			r.fails(name, 3, 100)
			r.wantEjected(name)
		}
		pass(10*time.Second - 1)
		r.wantEjected("one")
		pass(1)
		for name, rule := range map[string]outlier.Rule{"split": outlier.LocalOriginSuccessRate, "one": outlier.SuccessRate} {
			r.wantEjected(name, 3)
			c := r.cluster(name)
			if c.Outliers.Enforced[rule] != 1 || c.Outliers.Average != 90 || c.Outliers.Threshold != 52 || c.SplitOrigin != (name == "split") {
				t.Errorf("%s: %+v", name, c.Outliers)
			}
			if e := c.Endpoints[3]; e.SuccessRate != 50 || e.Ejection.Rule != rule.String() || c.Endpoints[0].SuccessRate != 100 {
				t.Errorf("%s: %+v", name, e)
			}
		}
		pass(10 * time.Second)
		if e := r.cluster("one").Endpoints[3]; e.SuccessRate != -1 {
			t.Errorf("without connects the success rate is %v", e.SuccessRate)
		}
		pass(20 * time.Second)
		r.wantEjected("one")
	})
}

// What isn't enforced only counts. One cluster's trouble is no other's.
func TestEjectionIsPerCluster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		eps := addresses(2)
		counts := outliersOf(clusterOf("counts", static(eps...)), func(o *config.OutlierDetection) { o.EnforcingConsecutive5xx = 0 })
		r.apply(Spec{Clusters: []config.Cluster{
			outliersOf(clusterOf("a", static(eps...))), outliersOf(clusterOf("b", static(eps...))), clusterOf("off", static(eps...)), counts,
		}})
		synctest.Wait()
		r.fails("b", 0, 4)
		for _, name := range []string{"a", "off", "counts"} {
			r.fails(name, 0, 12)
		}
		r.wantEjected("a", 0)
		r.wantEjected("b")
		r.wantEjected("off")
		r.wantEjected("counts")
		if s := r.cluster("counts").Outliers; s.Detected[outlier.Consecutive5xx] != 2 || s.Active != 0 || s.Overflow != 0 {
			t.Errorf("%+v", s)
		}
		if c := r.cluster("off"); c.Outliers != nil || c.Endpoints[0].Ejection != nil {
			t.Errorf("%+v", c)
		}
		r.fails("b", 0, 1)
		r.wantEjected("b", 0)
	})
}

// The load of priorities follows ejections at once. When all of a priority are
// ejected it panics, if there is a threshold, which is logged once each way.
func TestEjectionMovesLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log lines
		r := start(t, func(c *Config) { c.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
		eps := addresses(4)
		eps[2].Priority, eps[3].Priority = 1, 1
		c := outliersOf(clusterOf("web", static(eps...)), func(o *config.OutlierDetection) { o.MaxEjectionPercent = 100 })
		c.PanicThreshold = 50
		r.apply(Spec{Clusters: []config.Cluster{c}})
		synctest.Wait()
		check := func(panics bool, first, second uint32) {
			t.Helper()
			want := []lbcore.TierLoad{{Endpoints: 2, Healthy: first, Panic: panics}, {Priority: 1, Endpoints: 2, Healthy: second, Panic: panics}}
			if got := r.loads("web"); !slices.Equal(got, want) {
				t.Errorf("loads are %+v, want %+v", got, want)
			}
		}
		check(false, 100, 0)
		r.fails("web", 0, 5)
		check(false, 70, 30)
		r.fails("web", 1, 5)
		check(false, 0, 100)
		r.fails("web", 2, 5)
		if got := r.loads("web"); !got[0].Panic || got[1].Panic { // 70 % of the load's capacity are left
			t.Errorf("loads are %+v", got)
		}
		r.fails("web", 3, 5)
		check(true, 50, 50)
		r.wantEjected("web", 0, 1, 2, 3)
		picks := r.pick("web")
		if m := picks.Next(); m == nil {
			t.Error("nobody takes a connection in the panic")
		}
		pass(30 * time.Second)
		check(false, 100, 0)
		pass(time.Hour)
		if n := log.count("msg=\"panic: "); n != 2 {
			t.Errorf("%d lines of a panic, want one for each priority", n)
		}
		if n := log.count("msg=\"panic is over\""); n != 2 {
			t.Errorf("%d lines of its end, want one for each priority", n)
		}
		if n, m := log.count("msg=\"endpoint ejected\""), log.count("msg=\"ejected endpoint is back\""); n != 4 || m != 4 {
			t.Errorf("%d and %d lines of ejections and their ends, want 4", n, m)
		}
	})
}

// pick selects as a listener does.
func (r *rig) pick(cluster string) lbcore.Picks {
	reader := r.cfg.Gate.Pin()
	defer reader.Unpin()
	return r.serving(cluster).group.Slot("").Pick(reader, lbcore.Key{}, 3)
}

// An ejection outlives new weights, and changed settings, by which it is judged
// then; what happens while the settings are being changed too.
//
// bug 33: so does an ejection.
func TestEjectionSurvives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		began := time.Now()
		eps := addresses(4)
		r.eds.replace("web", eps...)
		c := outliersOf(clusterOf("web", eds("")))
		r.apply(Spec{Clusters: []config.Cluster{c}})
		synctest.Wait()
		pass(time.Second)
		r.fails("web", 0, 5)
		eps[0].Weight, eps[0].Priority = 7, 1
		r.eds.replace("web", eps...)
		synctest.Wait()
		if g := r.cluster("web").Generation; g != 2 {
			t.Errorf("generation %d, want 2", g)
		}
		last := func() Ejection {
			t.Helper()
			j := r.cluster("web").Endpoints[0].Ejection
			if j == nil {
				t.Fatal("there was no ejection")
			}
			return *j
		}
		want := Ejection{Since: began.Add(time.Second), Until: began.Add(31 * time.Second), Rule: "consecutive_5xx", Times: 1}
		r.wantEjected("web", 0)
		if got := last(); got != want {
			t.Errorf("ejection is %+v, want %+v", got, want)
		}

		// Its settings change, which waits for a source that doesn't know yet.
		c2 := outliersOf(clusterOf("web", eds("other")), func(o *config.OutlierDetection) {
			o.MaxEjectionPercent, o.BaseEjectionTime = 50, 50*time.Second
		})
		old := r.serving("web")
		r.apply(Spec{Clusters: []config.Cluster{c2}})
		synctest.Wait()
		pass(time.Second)
		r.fails("web", 1, 5)
		r.wantEjected("web", 0, 1)
		r.eds.replace("other", eps...)
		synctest.Wait()
		if r.serving("web") == old {
			t.Fatal("it was not replaced")
		}
		r.wantEjected("web", 0, 1)
		want.Until = want.Since.Add(50 * time.Second)
		if got := last(); got != want {
			t.Errorf("ejection is %+v, want %+v", got, want)
		}
		if s := r.cluster("web").Outliers; s.Active != 2 {
			t.Errorf("%+v", s)
		}
		if r.serving("web").before != nil {
			t.Error("the old cluster is still referred to")
		}
		pass(time.Until(want.Until.Add(10 * time.Second))) // the next interval included
		r.wantEjected("web")

		// Without outlier detection nobody is ejected.
		r.fails("web", 2, 5)
		r.wantEjected("web", 2)
		r.apply(Spec{Clusters: []config.Cluster{clusterOf("web", eds("other"))}})
		synctest.Wait()
		r.wantEjected("web")
		if n := r.ready("web"); n != 4 {
			t.Errorf("%d are ready, want 4", n)
		}
	})
}

// An ejected endpoint that leaves makes room for another, and is ejected no more
// when it comes back after it was forgotten.
//
// bug 31: the number of the ejected does not count who has left.
func TestEjectedEndpointLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		eps := addresses(4)
		r.eds.replace("web", eps...)
		r.apply(Spec{Clusters: []config.Cluster{outliersOf(clusterOf("web", eds("")), func(o *config.OutlierDetection) { o.MaxEjectionPercent = 34 })}})
		synctest.Wait()
		r.fails("web", 0, 5)
		r.fails("web", 1, 5)
		r.wantEjected("web", 0)
		r.eds.replace("web", eps[1:]...)
		synctest.Wait()
		if s := r.cluster("web").Outliers; s.Active != 0 {
			t.Errorf("%+v", s)
		}
		i := slices.IndexFunc(r.cluster("web").Endpoints, func(e EndpointStatus) bool { return e.Addr == eps[1].Addr })
		r.fails("web", i, 5)                                                  // one of three
		if s := r.cluster("web").Outliers; s.Active != 1 || s.Overflow != 2 { // by both rules, enforced or not
			t.Errorf("%+v", s)
		}
		pass(10 * time.Second) // it is forgotten
		r.eds.replace("web", eps...)
		synctest.Wait()
		r.wantEjected("web", 1)
	})
}

// A backend that refuses is ejected after so many failures, no connection tries
// it then, and it serves again once it is back.
func TestRefusingBackendIsEjected(t *testing.T) {
	onBoth(t, func(t *testing.T, r *rig) {
		one, dead := listen(t, "one"), deaf(t)
		c := outliersOf(clusterOf("web", static(one.Endpoint, dead)), func(o *config.OutlierDetection) {
			o.Consecutive5xx, o.Interval, o.BaseEjectionTime = 3, 10*time.Millisecond, time.Second
		})
		r.apply(Spec{Clusters: []config.Cluster{c}, Listeners: []config.Listener{listenerOf("l", "web")}})
		within(t, "it serves", func() bool { return len(r.Waiting()) == 0 })
		is := func() (e EndpointStatus) {
			for _, e = range r.cluster("web").Endpoints {
				if e.Addr == dead.Addr {
					break
				}
			}
			return e
		}
		within(t, "it is ejected", func() bool {
			if is().Totals.Failed < 3 { // the owner ejects it at its leisure
				r.mustDial("l", "one").Close()
			}
			return is().Ejected
		})
		if e := is(); e.Totals.Failed != 3 || e.Ejection.Times != 1 {
			t.Errorf("endpoint is %+v", e)
		}
		ln, err := net.Listen("tcp", dead.Addr.String())
		if err != nil {
			t.Fatal(err)
		}
		defer ln.Close()
		within(t, "it is back", func() bool { return !is().Ejected })
		within(t, "it takes a connection", func() bool {
			if is().Totals.Opened > 0 {
				return true
			}
			r.dialAsync("l")
			return false
		})
		if e := is(); e.Totals.Failed != 3 {
			t.Errorf("while it was ejected it was dialled: %+v", e)
		}
	})
}

// dialAsync connects to a listener and hears nothing.
func (r *rig) dialAsync(listener string) {
	r.t.Helper()
	a := r.listener(listener).Address
	c, err := net.Dial(a.Network(), a.Dial())
	if err != nil {
		r.t.Fatal(err)
	}
	c.Close()
}

// max_ejection_percent keeps the last ones, which take what there is.
func TestLastEndpointsStay(t *testing.T) {
	r := start(t)
	c := outliersOf(clusterOf("web", static(deaf(t), deaf(t), deaf(t))), func(o *config.OutlierDetection) { o.MaxEjectionPercent, o.Consecutive5xx = 67, 2 })
	r.apply(Spec{Clusters: []config.Cluster{c}, Listeners: []config.Listener{listenerOf("l", "web")}})
	within(t, "it serves", func() bool { return len(r.Waiting()) == 0 })
	within(t, "two are ejected, and the third one would be", func() bool {
		if rec := r.refused("l"); rec.Flag != forwarder.FlagUF {
			t.Fatalf("record %+v", rec)
		}
		s := r.cluster("web").Outliers
		return s.Active == 2 && s.Overflow > 0
	})
	if n := r.ready("web"); n != 1 {
		t.Errorf("%d are ready, want 1", n)
	}
}

// In a panic ejected endpoints take connections, which on_unhealthy leaves alone
// as it closes those from before; without a threshold nobody does.
func TestPanicWithEjected(t *testing.T) {
	onBoth(t, func(t *testing.T, r *rig) {
		one, two := listen(t, "one"), listen(t, "two")
		all := func(o *config.OutlierDetection) { o.MaxEjectionPercent = 100 }
		calm, panics := outliersOf(clusterOf("calm", static(one.Endpoint, two.Endpoint)), all), outliersOf(clusterOf("panics", static(one.Endpoint, two.Endpoint)), all)
		panics.PanicThreshold, panics.OnUnhealthy = 50, config.EndClose
		r.apply(Spec{
			Clusters:  []config.Cluster{calm, panics},
			Listeners: []config.Listener{listenerOf("c", "calm"), listenerOf("p", "panics")},
		})
		within(t, "both serve", func() bool { return len(r.Waiting()) == 0 && r.ready("calm") == 2 && r.ready("panics") == 2 })
		before, err := r.dial("p")
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"calm", "panics"} {
			for i := range 2 {
				for range 5 {
					m := r.member(name, i)
					m.StartDial()
					m.DialFailed()
				}
			}
		}
		within(t, "all are ejected", func() bool { return r.ready("calm") == 0 && r.ready("panics") == 0 })
		r.spreads("panics", lbcore.TierLoad{Endpoints: 2, Healthy: 100, Panic: true})
		if rec := r.cut(before); rec.Err != forwarder.ErrUnhealthy {
			t.Errorf("record %+v", rec)
		}
		within(t, "connections are closed", func() bool { return r.cluster("panics").Ending == 2 })
		from := make(map[string]*conn)
		within(t, "both take connections", func() bool {
			c, err := r.dial("p")
			if err != nil {
				t.Fatal(err)
			}
			from[c.from] = c
			return len(from) == 2
		})
		for _, l := range r.table.Load().listeners {
			l.fwd.Review()
		}
		for _, c := range from {
			c.alive()
		}
		if rec := r.refused("c"); rec.Flag != forwarder.FlagUH {
			t.Errorf("without a threshold a connection ended with %s", rec.Flag)
		}
	})
}

// A passing check brings an ejected endpoint back long before its time, and it
// is ejected again when connects fail again: it flaps, and each time counts. A
// check that says degraded passes too.
func TestPassingCheckEndsEjection(t *testing.T) {
	t.Run("healthy", func(t *testing.T) { testUneject(t, config.CheckTCP) })
	t.Run("degraded", func(t *testing.T) { testUneject(t, config.CheckHTTP) })
}

func testUneject(t *testing.T, kind string) {
	r := start(t)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("X-Envoy-Degraded", "true") }))
	defer srv.Close()
	one, dead := listen(t, "one"), deaf(t)
	one.Check.Addr = endpoint(srv.Listener.Addr().String()).Addr
	dead.Check.Addr = one.Check.Addr
	hc := once(kind)
	hc.Interval, hc.Timeout, hc.UnhealthyThreshold = 20*time.Millisecond, 20*time.Millisecond, 1e6 // on a busy machine some come late
	of := func(name string, uneject bool) config.Cluster {
		return outliersOf(clusterOf(name, static(one.Endpoint, dead), hc), func(o *config.OutlierDetection) {
			o.Consecutive5xx, o.BaseEjectionTime, o.SuccessfulActiveHealthCheckUnejectHost = 2, time.Hour, uneject
		})
	}
	r.apply(Spec{
		Clusters:  []config.Cluster{of("flaps", true), of("stays", false)},
		Listeners: []config.Listener{listenerOf("f", "flaps"), listenerOf("s", "stays")},
	})
	within(t, "they serve", func() bool { return r.ready("flaps") == 2 && r.ready("stays") == 2 && len(r.Waiting()) == 0 })
	times := func(cluster string) uint32 {
		for _, e := range r.cluster(cluster).Endpoints {
			if e.Addr == dead.Addr && e.Ejection != nil {
				return e.Ejection.Times
			}
		}
		return 0
	}
	within(t, "one is ejected again and again, and the other once", func() bool {
		r.mustDial("f", "one").Close()
		r.mustDial("s", "one").Close()
		return times("flaps") >= 3 && times("stays") > 0
	})
	if n := times("stays"); n != 1 || r.ready("stays") != 1 {
		t.Errorf("it came back though its setting says no: ejected %d times", n)
	}
}

// on_unhealthy is for ejected endpoints too, as in Envoy.
func TestOnUnhealthyEjected(t *testing.T) {
	onBoth(t, func(t *testing.T, r *rig) {
		one, two := listen(t, "one"), listen(t, "two")
		keep, closes := outliersOf(clusterOf("keep", static(one.Endpoint, two.Endpoint))), outliersOf(clusterOf("closes", static(one.Endpoint, two.Endpoint)))
		closes.OnUnhealthy = config.EndClose
		r.apply(Spec{
			Clusters:  []config.Cluster{keep, closes},
			Listeners: []config.Listener{listenerOf("k", "keep"), listenerOf("c", "closes")},
		})
		within(t, "both serve", func() bool { return len(r.Waiting()) == 0 && r.ready("keep") == 2 && r.ready("closes") == 2 })
		open := func(listener string) map[string]*conn {
			m := make(map[string]*conn)
			for len(m) < 2 {
				c, err := r.dial(listener)
				if err != nil {
					t.Fatal(err)
				}
				m[c.from] = c
			}
			return m
		}
		kept, closed := open("k"), open("c")
		for _, name := range []string{"keep", "closes"} {
			for _, ep := range r.serving(name).shown.Load().endpoints {
				for range 5 {
					if ep.Addr() == one.Addr {
						ep.StartDial()
						ep.DialFailed()
					}
				}
			}
		}
		if rec := r.cut(closed["one"]); rec.Flag != forwarder.FlagLR || rec.Err != forwarder.ErrUnhealthy {
			t.Errorf("record %+v", rec)
		}
		within(t, "the other cluster ejects it too", func() bool { return r.cluster("keep").Outliers.Active == 1 })
		for _, c := range []*conn{kept["one"], kept["two"], closed["two"]} {
			c.alive()
		}
	})
}

// All reasons are told, and the state is the first of them.
func TestWhy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		eps := addresses(2)
		eps[0].Status, eps[0].Enabled = lbcore.StatusDraining, lbcore.OverrideDisable
		r.eds.replace("web", eps...)
		r.apply(Spec{Clusters: []config.Cluster{outliersOf(clusterOf("web", eds("")))}})
		synctest.Wait()
		r.fails("web", 0, 5)
		e := r.cluster("web").Endpoints[0]
		if e.State != StateDisabled || !strings.HasPrefix(e.Why, "disabled by the operator or by discovery; discovery says DRAINING; ejected by consecutive_5xx since ") {
			t.Errorf("%s: %s", e.State, e.Why)
		}
	})
}
