package node

import (
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"gatehouse.internal/cmd/agent/internal/config"
	"gatehouse.internal/internal/tlsconf/tlstest"
	"gatehouse.internal/lbcore"
)

// grpcBackend runs the health service of gRPC.
func grpcBackend(t *testing.T) (lbcore.Endpoint, *health.Server) {
	t.Helper()
	l := httptest.NewUnstartedServer(nil).Listener
	srv, hs := grpc.NewServer(), health.NewServer()
	healthpb.RegisterHealthServer(srv, hs)
	var wg sync.WaitGroup
	wg.Go(func() { srv.Serve(l) })
	t.Cleanup(func() {
		srv.Stop()
		wg.Wait()
	})
	return endpoint(l.Addr().String()), hs
}

func TestGRPCCheck(t *testing.T) {
	r := start(t)
	e, hs := grpcBackend(t)
	hs.SetServingStatus("a.B", healthpb.HealthCheckResponse_SERVING)
	check := once(config.CheckGRPC)
	check.Interval, check.Timeout, check.HealthyThreshold, check.UnhealthyThreshold = 20*time.Millisecond, 20*time.Millisecond, 1, 1000
	check.ServiceName = "a.B"
	r.apply(Spec{Clusters: []config.Cluster{clusterOf("web", static(e), check)}})
	within(t, "it is healthy", func() bool { return r.ready("web") == 1 })
	hs.SetServingStatus("a.B", healthpb.HealthCheckResponse_NOT_SERVING) // needs no threshold
	within(t, "it is unhealthy", func() bool { return r.cluster("web").Endpoints[0].Health == lbcore.HealthUnhealthy })
	if c := r.cluster("web").Endpoints[0].Checks[0]; c.LastError != `grpc: service "a.B" is NOT_SERVING` || c.Probe != `service "a.B" authority "web"` {
		t.Errorf("check is %+v", c)
	}
}

// A check over TLS takes the names that the endpoint gives, and files that rotate.
func TestTLSCheck(t *testing.T) {
	r := start(t)
	dir := t.TempDir()
	ca, next := tlstest.NewCA(t, "one"), tlstest.NewCA(t, "two")
	var pair struct {
		sync.Mutex
		cert tls.Certificate
	}
	serve := func(from *tlstest.CA) {
		pair.Lock()
		defer pair.Unlock()
		pair.cert = from.Issue(t, tlstest.Leaf{Names: []string{"web.internal"}}).TLS(t)
	}
	serve(ca)
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {}))
	srv.Config.ErrorLog = log.New(io.Discard, "", 0)
	srv.TLS = &tls.Config{GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		pair.Lock()
		defer pair.Unlock()
		return &pair.cert, nil
	}}
	srv.StartTLS()
	defer srv.Close()
	file := ca.Write(t, dir)
	check := once(config.CheckHTTP)
	check.Interval, check.Timeout, check.HealthyThreshold = 50*time.Millisecond, 50*time.Millisecond, 1
	check.TLS = config.CheckTLS{Enabled: true, CAFile: file}
	check.Host = "web.internal" // else each cluster's own name is asked for
	e := endpoint(srv.Listener.Addr().String())
	e.Hostname = "web.internal"
	wrong := check
	wrong.TLS.ServerName = "db.internal"
	spec := Spec{Clusters: []config.Cluster{clusterOf("web", static(e), check), clusterOf("too", static(e), check), clusterOf("db", static(e), wrong)}}
	r.apply(spec)
	health := func(name string, want lbcore.Health) {
		t.Helper()
		within(t, name+" is "+want.String(), func() bool {
			es := r.cluster(name).Endpoints
			return len(es) == 1 && es[0].Health == want
		})
	}
	health("web", lbcore.HealthHealthy)
	health("db", lbcore.HealthUnhealthy)
	within(t, "the name is what it fails by", func() bool { // it may have timed out before
		return strings.Contains(r.cluster("db").Endpoints[0].Checks[0].LastError, "not valid for db.internal")
	})
	if host := r.cluster("web").Endpoints[0].Checks[0]; host.Sharers != 2 {
		t.Errorf("web and too share by %d", host.Sharers)
	}
	if n := len(r.tls.all); n != 1 {
		t.Errorf("%d clients for one set of files", n)
	}
	// Of the clusters that share the client, the one that runs it leaves.
	r.apply(Spec{Clusters: spec.Clusters[1:]})
	serve(next)
	health("too", lbcore.HealthUnhealthy)
	tlstest.Replace(t, file, next.PEM)
	health("too", lbcore.HealthHealthy)
	r.apply(Spec{})
	within(t, "the client is given back", func() bool {
		r.tls.mu.Lock()
		defer r.tls.mu.Unlock()
		return len(r.tls.all) == 0
	})

	// What can't be used changes nothing, and holds nothing.
	check.TLS.CAFile = filepath.Join(dir, "none")
	err := r.Apply(t.Context(), Spec{Clusters: []config.Cluster{clusterOf("good", static(e), wrong), clusterOf("web", static(e), check)}})
	if err == nil || !strings.Contains(err.Error(), `cluster "web": health_check "http"`) || !os.IsNotExist(unwrapAll(err)) {
		t.Errorf("error %v", err)
	}
	r.tls.mu.Lock()
	defer r.tls.mu.Unlock()
	if len(r.tls.all) != 0 {
		t.Errorf("%d clients are held by clusters that never ran", len(r.tls.all))
	}
}

func unwrapAll(err error) error {
	for {
		u, ok := err.(interface{ Unwrap() error })
		if !ok {
			return err
		}
		if next := u.Unwrap(); next != nil {
			err = next
			continue
		}
		return err
	}
}

func TestUnsharedCheck(t *testing.T) {
	r := start(t)
	one := listen(t, "one")
	alone := once(config.CheckTCP)
	alone.Share = false
	r.apply(Spec{Clusters: []config.Cluster{
		clusterOf("a", static(one.Endpoint), once(config.CheckTCP)), clusterOf("b", static(one.Endpoint), once(config.CheckTCP)),
		clusterOf("c", static(one.Endpoint), alone), clusterOf("d", static(one.Endpoint), alone),
	}})
	within(t, "all are ready", func() bool {
		return r.ready("a") == 1 && r.ready("b") == 1 && r.ready("c") == 1 && r.ready("d") == 1
	})
	within(t, "three streams have probed", func() bool { return one.accepted.Load() == 3 })
	if st := r.health.Stats(); st.Targets != 3 || st.Refs != 4 {
		t.Errorf("%d targets, %d refs; want 3, 4", st.Targets, st.Refs)
	}
	owners := make(map[string]int)
	for _, k := range r.health.Keys() {
		owners[k.Owner] = len(k.Views)
	}
	if fmt.Sprint(owners) != "map[:2 c:1 d:1]" {
		t.Errorf("views by owner are %v", owners)
	}
}

// The port of the check never takes traffic, and the endpoint's word goes first.
func TestAltPort(t *testing.T) {
	r := start(t)
	traffic, health, own := listen(t, "traffic"), listen(t, "health"), listen(t, "own")
	check := once(config.CheckTCP)
	check.AltPort = uint32(health.Addr.AddrPort().Port())
	r.apply(Spec{
		Clusters:  []config.Cluster{clusterOf("web", static(traffic.Endpoint), check)},
		Listeners: []config.Listener{listenerOf("l", "web")},
	})
	within(t, "it is ready", func() bool { return r.ready("web") == 1 && len(r.Waiting()) == 0 })
	r.mustDial("l", "traffic").alive()
	if h, n := health.accepted.Load(), traffic.accepted.Load(); h != 1 || n != 1 {
		t.Errorf("%d connections to the check's port, %d to the other", h, n)
	}
	e := traffic.Endpoint
	e.Check.Addr = own.Addr
	r.apply(Spec{Clusters: []config.Cluster{clusterOf("web", static(e), check)}})
	within(t, "its own address is probed", func() bool { return own.accepted.Load() == 1 })
}

// An endpoint that passes its checks stays when discovery drops it, until it fails.
func TestOnAbsent(t *testing.T) {
	r := start(t)
	one, two := listen(t, "one"), listen(t, "two")
	check := once(config.CheckTCP)
	check.Interval, check.Timeout = 20*time.Millisecond, 20*time.Millisecond
	c := clusterOf("web", eds(""), check)
	c.OnAbsent = config.AbsentStabilize
	r.eds.replace("web", one.Endpoint, two.Endpoint)
	r.apply(Spec{Clusters: []config.Cluster{c}, Listeners: []config.Listener{listenerOf("l", "web")}})
	within(t, "both are ready", func() bool { return r.ready("web") == 2 && len(r.Waiting()) == 0 })
	generation := r.cluster("web").Generation

	r.eds.replace("web", two.Endpoint)
	absent := func() (n int) {
		for _, e := range r.cluster("web").Endpoints {
			if e.Absent {
				n++
			}
		}
		return n
	}
	within(t, "one is absent", func() bool { return absent() == 1 && r.cluster("web").Waiting == "" })
	if st := r.cluster("web"); st.Generation != generation || r.ready("web") != 2 {
		t.Errorf("generation %d, was %d; %d are ready", st.Generation, generation, r.ready("web"))
	}
	within(t, "it still takes connections", func() bool {
		conn, err := r.dial("l")
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		return conn.from == "one"
	})
	one.refuse()
	within(t, "it has left", func() bool {
		return absent() == 0 && r.ready("web") == 1 && r.cluster("web").Generation == generation+1
	})

	r.eds.replace("web") // nothing at all is listed
	within(t, "the other one is absent", func() bool { return absent() == 1 })
	r.mustDial("l", "two").alive()
}

// The first connection ends the time without traffic.
func TestNoTrafficInterval(t *testing.T) {
	r := start(t)
	one := listen(t, "one")
	check := once(config.CheckTCP)
	check.Interval, check.Timeout, check.NoTrafficInterval = 10*time.Millisecond, 10*time.Millisecond, time.Hour
	r.apply(Spec{Clusters: []config.Cluster{clusterOf("web", static(one.Endpoint), check)}, Listeners: []config.Listener{listenerOf("l", "web")}})
	within(t, "it is ready", func() bool { return r.ready("web") == 1 && len(r.Waiting()) == 0 })
	interval := func() time.Duration { return r.cluster("web").Endpoints[0].Checks[0].Interval }
	if d := interval(); d != time.Hour {
		t.Errorf("without traffic the interval is %s", d)
	}
	r.mustDial("l", "one").alive()
	within(t, "the interval is the other one", func() bool { return interval() == 10*time.Millisecond })
	within(t, "it is probed more often", func() bool { return r.cluster("web").Endpoints[0].Checks[0].Streak > 20 })
}

// What is asked for each second has everything but the endpoints.
func TestSummary(t *testing.T) {
	r := start(t)
	one, off := listen(t, "one"), listen(t, "off")
	off.Enabled = lbcore.OverrideDisable
	poor := deaf(t)
	poor.Status = lbcore.StatusDegraded
	r.apply(Spec{Clusters: []config.Cluster{clusterOf("web", static(one.Endpoint, off.Endpoint, poor), once(config.CheckTCP))}})
	within(t, "one is ready", func() bool { return r.ready("web") == 1 })
	full, short := r.Status().Clusters[0], r.Summary().Clusters[0]
	if want := (Counts{Listed: 3, Ready: 1, Degraded: 1}); full.Counts != want || short.Counts != want {
		t.Errorf("counts are %+v and %+v, want %+v", full.Counts, short.Counts, want)
	}
	if len(full.Endpoints) != 3 || short.Endpoints != nil || full.Totals != short.Totals || full.Generation != short.Generation {
		t.Errorf("status %+v, summary %+v", full, short)
	}
}

// What is known of an endpoint is known whatever else of it changes, and is not
// when it comes back after nobody had it.
//
// bug 33: health outlives every other change of an endpoint.
func TestStateSurvivesUpdates(t *testing.T) {
	r := start(t)
	one := listen(t, "one")
	r.eds.replace("web", one.Endpoint)
	r.apply(Spec{Clusters: []config.Cluster{clusterOf("web", eds(""), once(config.CheckTCP))}})
	within(t, "it is ready", func() bool { return r.ready("web") == 1 })
	since := r.cluster("web").Endpoints[0].Checks[0].Since
	e := one.Endpoint
	for what, change := range map[string]func(){
		"weight": func() { e.Weight = 7 }, "priority": func() { e.Priority = 3 }, "locality": func() { e.Locality.Zone = "b" },
		"locality weight": func() { e.LocalityWeight = 9 }, "hash key": func() { e.HashKey = "k" }, "status": func() { e.Status = lbcore.StatusHealthy },
	} {
		change()
		r.eds.replace("web", e)
		within(t, what+" is another", func() bool {
			es := r.cluster("web").Endpoints
			return len(es) == 1 && es[0].Endpoint == e
		})
		if got := r.cluster("web").Endpoints[0]; !got.Ready || !got.Checks[0].Since.Equal(since) {
			t.Errorf("after the %s changed: %+v", what, got)
		}
	}
	if n := one.accepted.Load(); n != 1 {
		t.Errorf("it was probed %d times, want once", n)
	}
	r.eds.replace("web")
	within(t, "nobody has it", func() bool { return r.health.Stats().Targets == 0 })
	r.eds.replace("web", e)
	within(t, "it is probed anew", func() bool { return one.accepted.Load() == 2 && r.ready("web") == 1 })
}
