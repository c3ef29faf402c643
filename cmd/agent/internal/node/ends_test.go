package node

import (
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"gatehouse.internal/cmd/agent/internal/config"
	"gatehouse.internal/forwarder"
	"gatehouse.internal/lbcore"
	"gatehouse.internal/xds"
)

// onLoops has the node forward by event loops.
func onLoops(t *testing.T) func(*Config) {
	loops := forwarder.NewLoops(forwarder.LoopsConfig{Count: 1})
	ctx, wg := t.Context(), sync.WaitGroup{}
	if loops != nil {
		wg.Go(func() { _ = loops.Run(ctx) })
		t.Cleanup(wg.Wait) // the test's context has ended
	}
	return func(c *Config) { c.Loops = loops }
}

// cut fails the test unless the connection is reset, and returns the record.
func (r *rig) cut(c *conn) forwarder.Record {
	r.t.Helper()
	if line, err := c.r.ReadString('\n'); !errors.Is(err, syscall.ECONNRESET) {
		r.t.Fatalf("read %q, %v; want a reset", line, err)
	}
	var rec forwarder.Record
	within(r.t, "the end is recorded", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, rec = range r.ended {
			if rec.Client.String() == c.LocalAddr().String() {
				return true
			}
		}
		return false
	})
	return rec
}

// onBoth runs a test with goroutines and with event loops.
func onBoth(t *testing.T, f func(*testing.T, *rig)) { onBothWith(t, f) }

func onBothWith(t *testing.T, f func(*testing.T, *rig), change ...func(*Config)) {
	t.Run("goroutines", func(t *testing.T) { f(t, start(t, change...)) })
	t.Run("loops", func(t *testing.T) { f(t, start(t, append(change, onLoops(t))...)) })
}

// F6: connections to an endpoint that is removed are kept, or closed, as the
// cluster says; those to others live.
//
// bug 36: what becomes of connections to who is removed is configured.
func TestOnRemoval(t *testing.T) {
	onBoth(t, func(t *testing.T, r *rig) {
		one, two := listen(t, "one"), listen(t, "two")
		keep, closes := clusterOf("keep", eds("a")), clusterOf("closes", eds("a"))
		closes.OnRemoval = config.EndClose
		r.eds.replace("a", one.Endpoint)
		r.apply(Spec{
			Clusters:  []config.Cluster{keep, closes},
			Listeners: []config.Listener{listenerOf("k", "keep"), listenerOf("c", "closes")},
		})
		within(t, "both serve", func() bool { return r.ready("keep") == 1 && r.ready("closes") == 1 && len(r.Waiting()) == 0 })
		kept, closed := r.mustDial("k", "one"), r.mustDial("c", "one")
		r.eds.replace("a", one.Endpoint, two.Endpoint)
		kept.alive()
		closed.alive()
		r.eds.replace("a", two.Endpoint)
		if rec := r.cut(closed); rec.Flag != forwarder.FlagLR || rec.Err != forwarder.ErrRemoved || rec.Endpoint != one.Addr {
			t.Errorf("record %+v", rec)
		}
		kept.alive()
		within(t, "the other takes over", func() bool { return len(r.Waiting()) == 0 && r.ready("closes") == 1 })
		r.mustDial("c", "two").alive()

		disabled := two.Endpoint
		disabled.Enabled = lbcore.OverrideDisable
		other := r.mustDial("c", "two")
		r.eds.replace("a", disabled)
		if rec := r.cut(other); rec.Flag != forwarder.FlagLR || rec.Err != forwarder.ErrRemoved {
			t.Errorf("record %+v", rec)
		}
		kept.alive()
	})
}

// An endpoint that is removed goes on as long as the selectors that serve still
// have it: until then nobody else may be there to take its connections.
func TestOnRemovalWaitsForSelectors(t *testing.T) {
	var log lines
	r := start(t, func(c *Config) {
		c.Gate = lbcore.NewGate(lbcore.GateConfig{MaxStorage: 65536})
		c.Logger = slog.New(slog.NewTextHandler(&log, nil))
	})
	one, two := listen(t, "one"), listen(t, "two")
	c := clusterOf("web", eds("a"))
	c.Selectors = []config.Selector{{Name: "ring", Policy: config.PolicyRingHash, MinimumRingSize: 1024, MaximumRingSize: 8 << 20, HashFunction: "xx_hash"}}
	c.OnRemoval = config.EndClose
	r.eds.replace("a", one.Endpoint)
	r.apply(Spec{Clusters: []config.Cluster{c}, Listeners: []config.Listener{listenerOf("l", "web")}})
	within(t, "it serves", func() bool { return len(r.Waiting()) == 0 })
	x := r.mustDial("l", "one")
	heavy := deaf(t)
	heavy.Weight = 1 << 20 // a ring that has a point of the other is too large
	r.eds.replace("a", two.Endpoint, heavy)
	within(t, "no selector without it can be built", func() bool {
		return log.contain(`"selector was not rebuilt, the last one serves on" cluster=web selector=ring generation=2`)
	})
	x.alive()
	r.mustDial("l", "one").alive()
	r.eds.replace("a", two.Endpoint)
	if rec := r.cut(x); rec.Err != forwarder.ErrRemoved {
		t.Errorf("record %+v", rec)
	}
	r.mustDial("l", "two").alive()
}

// An endpoint that comes back within close_after keeps its connections.
func TestCloseAfterRevoked(t *testing.T) {
	onBoth(t, func(t *testing.T, r *rig) {
		one, two := listen(t, "one"), listen(t, "two")
		c := clusterOf("web", eds("a"))
		c.OnRemoval, c.CloseAfter = config.EndCloseAfter, 10*time.Hour
		r.eds.replace("a", one.Endpoint)
		r.apply(Spec{Clusters: []config.Cluster{c}, Listeners: []config.Listener{listenerOf("l", "web")}})
		within(t, "it serves", func() bool { return len(r.Waiting()) == 0 })
		kept := r.mustDial("l", "one")
		r.eds.replace("a", two.Endpoint)
		within(t, "it leaves", func() bool { return r.cluster("web").Ending == 1 })
		kept.alive()
		r.eds.replace("a", one.Endpoint, two.Endpoint)
		within(t, "it is back", func() bool { return r.cluster("web").Ending == 0 })
		kept.alive()
	})
}

// F6: connections to an endpoint whose checks fail.
func TestOnUnhealthy(t *testing.T) {
	onBoth(t, func(t *testing.T, r *rig) {
		var ill atomic.Bool
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if ill.Load() {
				w.WriteHeader(http.StatusServiceUnavailable)
			}
		}))
		defer srv.Close()
		one := listen(t, "one")
		one.Check.Addr = endpoint(srv.Listener.Addr().String()).Addr
		hc := once(config.CheckHTTP)
		hc.Interval, hc.Timeout, hc.IntervalJitterPercent = 5*time.Millisecond, 5*time.Second, 0
		hc.UnhealthyThreshold = 1e6 // the status needs one; a probe that comes late is no illness
		keep, closes := clusterOf("keep", static(one.Endpoint), hc), clusterOf("closes", static(one.Endpoint), hc)
		keep.OnRemoval = config.EndClose // which it is not
		closes.OnUnhealthy = config.EndClose
		r.apply(Spec{
			Clusters:  []config.Cluster{keep, closes},
			Listeners: []config.Listener{listenerOf("k", "keep"), listenerOf("c", "closes")},
		})
		within(t, "both serve", func() bool { return r.ready("keep") == 1 && r.ready("closes") == 1 && len(r.Waiting()) == 0 })
		kept, closed := r.mustDial("k", "one"), r.mustDial("c", "one")
		ill.Store(true)
		if rec := r.cut(closed); rec.Flag != forwarder.FlagLR || rec.Err != forwarder.ErrUnhealthy {
			t.Errorf("record %+v", rec)
		}
		kept.alive()
		ill.Store(false)
		within(t, "it is well again", func() bool { return r.ready("closes") == 1 && r.cluster("closes").Ending == 0 })
		r.mustDial("c", "one").alive()
		kept.alive()
	})
}

// EDS's word counts as well; an endpoint that drains is not unhealthy.
func TestOnUnhealthyStatus(t *testing.T) {
	r := start(t)
	one := listen(t, "one")
	c := clusterOf("web", eds("a"))
	c.OnUnhealthy = config.EndClose
	r.eds.replace("a", one.Endpoint)
	r.apply(Spec{Clusters: []config.Cluster{c}, Listeners: []config.Listener{listenerOf("l", "web")}})
	within(t, "it serves", func() bool { return len(r.Waiting()) == 0 })
	x := r.mustDial("l", "one")
	e := one.Endpoint
	e.Status = lbcore.StatusDraining
	r.eds.replace("a", e)
	within(t, "it drains", func() bool { return r.ready("web") == 0 })
	x.alive()
	e.Status = lbcore.StatusUnhealthy
	r.eds.replace("a", e)
	if rec := r.cut(x); rec.Err != forwarder.ErrUnhealthy {
		t.Errorf("record %+v", rec)
	}
}

// A cluster whose settings change goes on with what its connections are due.
func TestEndsOutliveReplacement(t *testing.T) {
	r := start(t)
	one, two := listen(t, "one"), listen(t, "two")
	c := clusterOf("web", eds("a"))
	c.OnRemoval, c.CircuitBreakers.MaxConnections = config.EndClose, 2
	r.eds.replace("a", one.Endpoint)
	r.apply(Spec{Clusters: []config.Cluster{c}, Listeners: []config.Listener{listenerOf("l", "web")}})
	within(t, "it serves", func() bool { return len(r.Waiting()) == 0 })
	x := r.mustDial("l", "one")
	old := r.serving("web")
	r.apply(Spec{Clusters: []config.Cluster{changed(c)}, Listeners: []config.Listener{listenerOf("l", "web")}})
	within(t, "it is replaced", func() bool { return r.serving("web") != old })
	x.alive()
	r.mustDial("l", "one") // the second one
	if rec := r.refused("l"); rec.Flag != forwarder.FlagUO {
		t.Errorf("record %+v", rec)
	}
	if n := r.cluster("web").Open.Refused; n != 1 {
		t.Errorf("%d refused, want 1", n)
	}
	r.eds.replace("a", two.Endpoint)
	if rec := r.cut(x); rec.Err != forwarder.ErrRemoved {
		t.Errorf("record %+v", rec)
	}
}

// max_connections_per_endpoint passes over endpoints that have enough, also
// where few attempts are allowed.
func TestPerEndpointLimit(t *testing.T) {
	r := start(t)
	one, two := listen(t, "one"), listen(t, "two")
	c := clusterOf("web", static(one.Endpoint, two.Endpoint))
	c.MaxConnectAttempts, c.CircuitBreakers.MaxConnectionsPerEndpoint = 1, 2
	r.apply(Spec{Clusters: []config.Cluster{c}, Listeners: []config.Listener{listenerOf("l", "web")}})
	within(t, "it serves", func() bool { return len(r.Waiting()) == 0 && r.ready("web") == 2 })
	from := make(map[string]int)
	for range 4 {
		x, err := r.dial("l")
		if err != nil {
			t.Fatal(err)
		}
		from[x.from]++
	}
	if from["one"] != 2 || from["two"] != 2 {
		t.Errorf("connections: %v", from)
	}
	if rec := r.refused("l"); rec.Flag != forwarder.FlagUO {
		t.Errorf("record %+v", rec)
	}
}

// What is open to an endpoint counts for max_connections_per_endpoint, however often
// the settings of the cluster change meanwhile.
func TestPerEndpointLimitOutlivesReplacement(t *testing.T) {
	r := start(t)
	one := listen(t, "one")
	c := clusterOf("web", static(one.Endpoint))
	c.CircuitBreakers.MaxConnectionsPerEndpoint = 3
	listeners := []config.Listener{listenerOf("l", "web")}
	r.apply(Spec{Clusters: []config.Cluster{c}, Listeners: listeners})
	within(t, "it serves", func() bool { return len(r.Waiting()) == 0 && r.ready("web") == 1 })
	first, _ := r.mustDial("l", "one"), r.mustDial("l", "one")
	for i := range 3 {
		old := r.serving("web")
		c.ConnectTimeout = time.Duration(20+i) * time.Second
		r.apply(Spec{Clusters: []config.Cluster{c}, Listeners: listeners})
		within(t, "it is replaced", func() bool { return r.serving("web") != old })
		if i == 0 {
			r.mustDial("l", "one") // the third one
		}
		if rec := r.refused("l"); rec.Flag != forwarder.FlagUO {
			t.Errorf("after %d changes: record %+v", i+1, rec)
		}
		if n := r.cluster("web").Endpoints[0].Totals.Active; n != 3 {
			t.Errorf("%d are shown, want 3", n)
		}
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	within(t, "one has ended", func() bool { return r.cluster("web").Endpoints[0].Totals.Active == 2 })
	r.mustDial("l", "one")
	if rec := r.refused("l"); rec.Flag != forwarder.FlagUO {
		t.Errorf("record %+v", rec)
	}
}

// The limits of the listener and of all of them reach the forwarder.
func TestDurationAndSharedLimit(t *testing.T) {
	open := new(forwarder.Count)
	r := start(t, func(c *Config) { c.Open, c.MaxOpen = open, 1 })
	one := listen(t, "one")
	l := listenerOf("l", "web")
	l.MaxConnectionDuration, l.MaxConnectionDurationJitter = 300*time.Millisecond, 100
	r.apply(Spec{Clusters: []config.Cluster{clusterOf("web", static(one.Endpoint))}, Listeners: []config.Listener{listenerOf("k", "web"), l}})
	within(t, "it serves", func() bool { return len(r.Waiting()) == 0 && r.ready("web") == 1 })
	x, err := r.dial("l")
	if err != nil {
		t.Fatal(err)
	}
	if rec := r.cut(x); rec.Flag != forwarder.FlagDT || rec.Duration < 300*time.Millisecond {
		t.Errorf("record %+v", rec)
	}
	within(t, "it is not counted any more", func() bool { return open.Open() == 0 })
	r.mustDial("k", "one")
	if c, err := r.dial("l"); err == nil {
		t.Errorf("a connection over the limit led to %q", c.from)
	}
	within(t, "it is counted", func() bool { return r.listener("l").Stats.Flags[forwarder.FlagOM] == 1 })
}

// The thresholds of the control plane are in force, and can change without an
// effect on what is open.
func TestControlBreakers(t *testing.T) {
	onBoth(t, func(t *testing.T, r *rig) {
		one := listen(t, "one")
		set := lbcore.MustSet(one.Endpoint)
		apply := func(b xds.CircuitBreakers) {
			t.Helper()
			was := r.serving("web")
			spec, _ := Spec{Listeners: []config.Listener{listenerOf("l", "web")}}.With(FromXDS([]*xds.Cluster{{
				Name: "web", Static: &set, Policy: xds.Policy{Name: xds.RoundRobin}, ConnectTimeout: 5 * time.Second, CircuitBreakers: b,
			}}))
			r.apply(spec)
			within(t, "it serves", func() bool { return len(r.Waiting()) == 0 && r.ready("web") == 1 && r.serving("web") != was })
		}
		overflow := func() {
			t.Helper()
			if rec := r.refused("l"); rec.Flag != forwarder.FlagUO {
				t.Errorf("record %+v", rec)
			}
		}
		apply(xds.CircuitBreakers{MaxConnections: 2, MaxPendingRequests: 1024})
		first := r.mustDial("l", "one")
		r.mustDial("l", "one").alive()
		overflow()
		if b := r.cluster("web").Open; b != (Breaker{2, 2, 1}) {
			t.Errorf("breaker %+v", b)
		}
		if n, ok := r.cluster("web").Pending.Remaining(); n != 1024 || !ok {
			t.Errorf("%d remain of the pending ones", n)
		}
		apply(xds.CircuitBreakers{MaxConnectionsPerEndpoint: 3}) // with those that there are
		r.mustDial("l", "one")
		overflow()
		apply(xds.CircuitBreakers{MaxPendingRequests: -1})
		overflow()
		if p := r.cluster("web").Pending; p != (Breaker{-1, 0, 1}) {
			t.Errorf("breaker %+v", p)
		}
		first.alive()
	})
}

// The endpoints of a cluster that is removed are removed too: on_removal says
// what becomes of their connections.
func TestClusterRemoved(t *testing.T) {
	onBoth(t, func(t *testing.T, r *rig) {
		one := listen(t, "one")
		keep, closes, after := clusterOf("keep", static(one.Endpoint)), clusterOf("closes", static(one.Endpoint)), clusterOf("after", static(one.Endpoint))
		closes.OnRemoval = config.EndClose
		after.OnRemoval, after.CloseAfter = config.EndCloseAfter, 200*time.Millisecond
		spec := Spec{
			Clusters:  []config.Cluster{keep, closes, after},
			Listeners: []config.Listener{listenerOf("k", "keep"), listenerOf("c", "closes"), listenerOf("a", "after"), listenerOf("left", "closes")},
		}
		r.apply(spec)
		within(t, "they serve", func() bool { return len(r.Waiting()) == 0 && r.ready("keep")+r.ready("closes")+r.ready("after") == 3 })
		kept, closed, later, left := r.mustDial("k", "one"), r.mustDial("c", "one"), r.mustDial("a", "one"), r.mustDial("left", "one")
		spec.Clusters, spec.Listeners = nil, spec.Listeners[:3]
		r.apply(spec)
		for _, c := range []*conn{closed, later, left} {
			if rec := r.cut(c); rec.Flag != forwarder.FlagLR || rec.Err != forwarder.ErrRemoved {
				t.Errorf("record %+v", rec)
			}
		}
		kept.alive()
		if rec := r.refused("c"); rec.Flag != forwarder.FlagNC {
			t.Errorf("record %+v", rec)
		}
		spec.Clusters = []config.Cluster{closes}
		r.apply(spec)
		within(t, "it serves again", func() bool { return len(r.Waiting()) == 0 && r.ready("closes") == 1 })
		r.mustDial("c", "one").alive()
	})
}
