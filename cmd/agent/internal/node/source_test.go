package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"gatehouse.internal/cmd/agent/internal/config"
	"gatehouse.internal/discovery"
	"gatehouse.internal/lbcore"
)

// named is a source as discovery by DNS is one.
type named struct {
	set    lbcore.Set
	err    error
	looked atomic.Int64 // calls of Refresh
}

func (s *named) Watch(ctx context.Context, sink discovery.Sink) error {
	if s.err != nil {
		sink.Fail(s.err)
	} else {
		sink.Replace(s.set)
	}
	<-ctx.Done()
	return ctx.Err()
}

func (s *named) Refresh() { s.looked.Add(1) }

// byDNS has discovery "dns" be one of these, by the name that is looked up.
func byDNS(names map[string]*named) func(*Config) {
	return func(cfg *Config) {
		cfg.DNS = func(d config.Discovery, _ *slog.Logger, _ *discovery.Duplicates) (discovery.Source, error) {
			if s := names[d.HostName]; s != nil {
				return s, nil
			}
			return nil, errors.New("no such name")
		}
	}
}

func dns(name string) config.Discovery {
	return config.Discovery{Kind: config.DiscoveryDNS, HostName: name}
}

// In mode first the first block that knows is in force, in mode priority each has a
// priority; the state of each is shown.
func TestModes(t *testing.T) {
	for _, mode := range []string{config.ModeFirst, config.ModePriority} {
		t.Run(mode, func(t *testing.T) {
			local, remote := listen(t, "local"), listen(t, "remote")
			r := start(t, byDNS(map[string]*named{
				"broken": {err: errors.New("nobody answers")},
				"local":  {set: lbcore.MustSet(local.Endpoint)},
			}))
			c := clusterOf("web", dns("broken"))
			c.Mode = mode
			c.Discovery = append(c.Discovery, dns("local"), static(remote.Endpoint))
			r.apply(Spec{Clusters: []config.Cluster{c}, Listeners: []config.Listener{listenerOf("l", "web")}})
			within(t, "the cluster is warm", func() bool { return len(r.Waiting()) == 0 })
			r.mustDial("l", "local")
			st := r.cluster("web")
			var blocks, tiers []string
			for _, b := range st.Source.Blocks {
				blocks = append(blocks, fmt.Sprintf("%s %s %d %s", b.Kind, b.State, b.Endpoints, b.Err))
			}
			if want := []string{"dns failing 0 nobody answers", "dns fresh 1 ", "static fresh 1 "}; !slices.Equal(blocks, want) {
				t.Errorf("blocks %q, want %q", blocks, want)
			}
			for _, e := range st.Endpoints {
				tiers = append(tiers, fmt.Sprintf("%t %d", e.Addr == local.Addr, e.Priority))
			}
			slices.Sort(tiers)
			want := []string{"true 0"}
			if mode == config.ModePriority {
				want = []string{"false 1", "true 0"}
				if !strings.Contains(st.Source.Err, "nobody answers") {
					t.Errorf("the cluster's failure is %q", st.Source.Err)
				}
			}
			if !slices.Equal(tiers, want) {
				t.Errorf("endpoints (local?, priority) %q, want %q", tiers, want)
			}
		})
	}
}

// Where the local endpoints go, connections spill over to the next block.
func TestModePrioritySpillsOver(t *testing.T) {
	remote := listen(t, "remote")
	r := start(t, byDNS(map[string]*named{"local": {set: lbcore.MustSet(deaf(t))}}))
	c := clusterOf("web", dns("local"), config.HealthCheck{
		Kind: config.CheckTCP, Interval: 1e8, Timeout: 1e8, HealthyThreshold: 1, UnhealthyThreshold: 1, Initial: config.InitialUnknown,
	})
	c.Mode = config.ModePriority
	c.Discovery = append(c.Discovery, static(remote.Endpoint))
	r.apply(Spec{Clusters: []config.Cluster{c}, Listeners: []config.Listener{listenerOf("l", "web")}})
	within(t, "the cluster is warm", func() bool { return len(r.Waiting()) == 0 })
	r.mustDial("l", "remote")
}

// A source is asked to look anew when dials fail and none succeeds, or when checks
// of all endpoints fail, and not otherwise.
func TestSourceLooksAnewWhenAllFail(t *testing.T) {
	good := listen(t, "good")
	bad := &named{set: lbcore.MustSet(deaf(t))}
	fine := &named{set: lbcore.MustSet(good.Endpoint)}
	sick := &named{set: lbcore.MustSet(deaf(t), deaf(t))}
	half := &named{set: lbcore.MustSet(deaf(t), good.Endpoint)}
	r := start(t, byDNS(map[string]*named{"bad": bad, "fine": fine, "sick": sick, "half": half}))
	check := config.HealthCheck{
		Kind: config.CheckTCP, Interval: 1e8, Timeout: 1e8, HealthyThreshold: 1, UnhealthyThreshold: 1, Initial: config.InitialUnknown,
	}
	r.apply(Spec{
		Clusters: []config.Cluster{
			clusterOf("bad", dns("bad")), clusterOf("fine", dns("fine"), check), clusterOf("sick", dns("sick"), check), clusterOf("half", dns("half"), check),
		},
		Listeners: []config.Listener{listenerOf("bad", "bad"), listenerOf("fine", "fine")},
	})
	within(t, "the clusters are warm", func() bool { return len(r.Waiting()) == 0 })
	within(t, "the sick one is looked up anew", func() bool { return sick.looked.Load() > 0 })
	r.mustDial("fine", "good")
	if got := bad.looked.Load(); got != 0 {
		t.Errorf("looked anew %d times before a dial", got)
	}
	r.refused("bad")
	within(t, "the bad one is looked up anew", func() bool { return bad.looked.Load() > 0 })
	if got := fine.looked.Load() + half.looked.Load(); got != 0 {
		t.Errorf("those with an endpoint that is ready looked anew %d times", got)
	}
}

// Where another endpoint takes the connection not all fail, however rare connections
// are.
func TestSourceDoesNotLookAnewWhenARetrySucceeds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := &named{set: lbcore.MustSet(addresses(2)...)}
		r := start(t, byDNS(map[string]*named{"web": src}))
		r.apply(Spec{Clusters: []config.Cluster{clusterOf("web", dns("web"))}})
		synctest.Wait()
		fail := func() {
			r.fails("web", 0, 1)
			r.serving("web").dial.Failed(r.member("web", 0))
			synctest.Wait()
		}
		for range 100 {
			fail()
			r.succeeds("web", 1, 1)
			pass(time.Second)
		}
		if n := src.looked.Load(); n != 0 {
			t.Errorf("looked anew %d times while each retry succeeds", n)
		}
		for range 3 {
			fail()
			pass(time.Second)
		}
		if n := src.looked.Load(); n < 2 {
			t.Errorf("looked anew %d times while nothing succeeds", n)
		}
	})
}

// Endpoints that are all ejected fail too, though nobody dials them any more.
func TestSourceLooksAnewWhenAllAreEjected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := &named{set: lbcore.MustSet(addresses(2)...)}
		r := start(t, byDNS(map[string]*named{"web": src}))
		c := outliersOf(clusterOf("web", dns("web")), func(o *config.OutlierDetection) { o.MaxEjectionPercent = 100 })
		r.apply(Spec{Clusters: []config.Cluster{c}})
		synctest.Wait()
		r.fails("web", 0, 5)
		r.wantEjected("web", 0)
		pass(time.Second)
		if n := src.looked.Load(); n != 0 {
			t.Errorf("looked anew %d times while one is left", n)
		}
		r.fails("web", 1, 5)
		r.wantEjected("web", 0, 1)
		if src.looked.Load() == 0 {
			t.Error("nobody looks anew")
		}
	})
}

// Settings that can't be used are an error that names the cluster.
func TestBadName(t *testing.T) {
	r := start(t, byDNS(nil))
	err := r.Apply(t.Context(), Spec{Clusters: []config.Cluster{clusterOf("web", dns("x"))}})
	if err == nil || !strings.Contains(err.Error(), `cluster "web": discovery by dns: no such name`) {
		t.Errorf("got %v", err)
	}
	err = start(t).Apply(t.Context(), Spec{Clusters: []config.Cluster{clusterOf("web", dns("x"))}})
	if err == nil || !strings.Contains(err.Error(), "discovery by dns without a client") {
		t.Errorf("got %v", err)
	}
}

// D9, haproxy#1683, #1795: after a change of settings while DNS was down, servers
// were stale or gone. The cluster with the old settings serves on until the new one
// knows.
func TestD9ChangedSettingsWhileDNSIsDown(t *testing.T) {
	good := listen(t, "good")
	src := &named{set: lbcore.MustSet(good.Endpoint)}
	names := map[string]*named{"web": src}
	r := start(t, byDNS(names))
	c := clusterOf("web", dns("web"))
	listeners := []config.Listener{listenerOf("l", "web")}
	r.apply(Spec{Clusters: []config.Cluster{c}, Listeners: listeners})
	within(t, "the cluster is warm", func() bool { return len(r.Waiting()) == 0 })
	names["web"] = &named{err: errors.New("nobody answers")}
	r.apply(Spec{Clusters: []config.Cluster{changed(c)}, Listeners: listeners})
	within(t, "the new one fails", func() bool { return strings.Contains(r.cluster("web").Waiting, "nobody answers") })
	for range 10 {
		r.mustDial("l", "good")
	}
	if st := r.cluster("web"); st.Source.State != "fresh" || len(st.Endpoints) != 1 {
		t.Errorf("state %q with %d endpoints", st.Source.State, len(st.Endpoints))
	}
	names["web"] = src
	r.apply(Spec{Clusters: []config.Cluster{changed(changed(c))}, Listeners: listeners})
	within(t, "the newest one serves", func() bool { return r.cluster("web").Waiting == "" })
	r.mustDial("l", "good")
}
