package consul

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"gatehouse.internal/discovery"
)

const stateCalls = "/v1/health/state/"

// signalPaths are what the shared queries ask for.
var signalPaths = []string{"/v1/catalog/nodes", "/v1/catalog/services", "/v1/health/state/critical", "/v1/health/state/warning"}

// few is how many sources are too many for queries of their own, where that
// need not be the default.
const few = 12

func fewWatches(c *Config) { c.MaxWatches = few - 1 }

// fleet is a rig with many services, s0 and so on, a source of each, and Run.
// The first 60 have the instances 1 and 2 on the nodes n1 and n2.
func fleet(t *testing.T, n int, edit func(*Config)) (*rig, []*journal) {
	t.Helper()
	r := newRig(t, func(c *catalog) {
		c.add("other", 1)
		for i := range min(n, 60) {
			c.add(fmt.Sprintf("s%d", i), 1, 2)
		}
	}, edit)
	r.run(func(ctx context.Context) { r.c.Run(ctx) })
	var all []*journal
	for i := range n {
		all = append(all, r.watch(Query{Service: fmt.Sprintf("s%d", i)}))
	}
	synctest.Wait()
	return r, all
}

// guardPath is the one of them that always runs.
const guardPath = "/v1/health/state/warning"

// settle lets the queries return that sources had of their own, and the bucket
// of each query fill.
func (r *rig) settle() { r.pass(r.c.cfg.WaitTime + r.c.cfg.WaitTime/16 + time.Minute) }

// readers are the services that were read since from.
func (r *rig) readers(from int) map[string]int {
	list := map[string]int{}
	for _, c := range r.s.since(from, "/v1/health/service/") {
		list[strings.TrimPrefix(c.path, "/v1/health/service/")]++
	}
	return list
}

// pending are the paths that are waited for, sorted.
func (r *rig) pending() []string {
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	return names(r.s.waits)
}

func everyone(t *testing.T, all []*journal, want string) {
	t.Helper()
	for i, j := range all {
		if got := j.now(); got != want {
			t.Errorf("s%d: got %q, want %q; reports:\n%s", i, got, want, j.tail())
			return
		}
	}
}

// Up to MaxWatches each source has its own query; above it four are shared; it
// takes a quarter less to go back.
func TestSharedMode(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r, all := fleet(t, 48, nil)
		r.settle()
		if got := r.pending(); len(got) != 49 || got[48] != guardPath || r.c.Stats().SharedQueries {
			t.Errorf("48 sources: %d requests wait, shared %v", len(got), r.c.Stats().SharedQueries)
		}
		r.s.change(func(c *catalog) { c.add("more", 1, 2) })
		ctx, cancel := newContext(t)
		last, done := r.watchFor(ctx, Query{Service: "more"})
		r.pass(time.Second)
		last.want(t, "fresh 1 2")
		everyone(t, all, "fresh 1 2")
		r.settle()
		if got := r.pending(); fmt.Sprint(got) != fmt.Sprint(signalPaths) || !r.c.Stats().SharedQueries {
			t.Errorf("49 sources: %v wait, shared %v, want %v", got, r.c.Stats().SharedQueries, signalPaths)
		}
		before := r.s.count()
		r.pass(10 * time.Minute)
		if got := r.readers(before); len(got) != 49 {
			t.Errorf("%d of 49 services were read in ten minutes", len(got))
		}
		if got := r.s.count() - before; got > 49*3+3*11+61 {
			t.Errorf("%d requests in ten minutes at rest", got)
		}

		// One less is no reason to go back.
		cancel()
		<-done
		r.pass(time.Minute)
		if got := r.pending(); fmt.Sprint(got) != fmt.Sprint(signalPaths) {
			t.Errorf("48 sources after 49: %v wait", got)
		}
		everyone(t, all, "fresh 1 2")
	})
	bubble(t, func(t *testing.T) {
		r := newRig(t, addWeb, func(c *Config) { c.MaxWatches = 8 })
		r.run(func(ctx context.Context) { r.c.Run(ctx) })
		type one struct {
			*journal
			cancel context.CancelFunc
		}
		var all []one
		for range 9 {
			ctx, cancel := newContext(t)
			j, _ := r.watchFor(ctx, Query{Service: "web"})
			all = append(all, one{j, cancel})
		}
		r.settle()
		for len(all) > 7 {
			all[0].cancel()
			all = all[1:]
		}
		r.pass(time.Minute)
		if got := r.pending(); fmt.Sprint(got) != fmt.Sprint(signalPaths) {
			t.Errorf("7 sources after 9: %v wait", got)
		}
		all[0].cancel()
		all = all[1:]
		r.pass(time.Second)
		if got := r.pending(); len(got) != 7 || got[6] != guardPath || got[0] != "/v1/health/service/web" || r.c.Stats().SharedQueries {
			t.Errorf("6 sources after 9: %v wait, shared %v", got, r.c.Stats().SharedQueries)
		}
		before := r.s.count()
		r.change(func(c *catalog) { c.add("web", 3) })
		r.pass(time.Second)
		for _, j := range all {
			j.want(t, "fresh 1 2 3")
		}
		if got := r.s.since(before, "/v1/catalog"); len(got) > 0 {
			t.Errorf("got %v, want no shared queries", got)
		}
	})
}

// Each kind of change is seen within two seconds, and only what it names is
// read.
func TestSharedChanges(t *testing.T) {
	const n = few
	for _, c := range []struct {
		name string
		edit func(*catalog)
		want string // of s7
		all  bool   // services are read
	}{
		{"critical", func(c *catalog) { c.status("s7", 1, "critical") }, "1- 2", false},
		{"warning", func(c *catalog) {
			c.status("s7", 1, "warning")
			c.instances[instanceKey{"n1", "s7-1"}].weights.Warning = 3
		}, "1*3 2", false},
		{"a second check", func(c *catalog) { c.check("n1", "s7-1", "other", "critical") }, "1- 2", false},
		{"maintenance", func(c *catalog) { c.check("n1", "s7-1", "_service_maintenance:s7-1", "critical") }, "1~ 2", false},
		{"tag", func(c *catalog) {
			c.change("s7", 1, func(in *modelInstance) { in.tags, in.port = []string{"a"}, 81 })
		}, "1:81 2", true},
		{"deregister all", func(c *catalog) { c.remove("s7", 1, 2) }, "", true},
		{"weight", func(c *catalog) { c.change("s7", 1, func(in *modelInstance) { in.weights.Passing = 9 }) }, "1*9 2", true},
		{"port", func(c *catalog) { c.change("s7", 1, func(in *modelInstance) { in.port = 81 }) }, "1:81 2", true},
		{"register", func(c *catalog) { c.add("s7", 3) }, "1 2 3", true},
		{"deregister", func(c *catalog) { c.remove("s7", 2) }, "1", true},
		{"node address", func(c *catalog) {
			c.instances[instanceKey{"n1", "s7-1"}].address = ""
			c.node("n1", "192.0.2.77")
		}, "2 77", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r, all := fleet(t, n, fewWatches)
				r.settle()
				before := r.s.count()
				r.s.change(func(cat *catalog) { c.edit(cat) })
				r.pass(2 * time.Second)
				all[7].want(t, strings.TrimSpace("fresh "+c.want))
				everyone(t, append(all[:7:7], all[8:]...), "fresh 1 2")
				got := r.readers(before)
				switch {
				case !c.all && (len(got) != 1 || got["s7"] == 0 || got["s7"] > 2):
					t.Errorf("got reads of %v, want of s7 alone", got)
				case c.all && (len(got) != n || r.s.count()-before > 4*n+10):
					t.Errorf("got %d services read by %d requests, want all %d", len(got), r.s.count()-before, n)
				}
			})
		})
	}
	t.Run("node check", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			r, all := fleet(t, n, fewWatches)
			r.settle()
			for _, step := range []struct{ check, status, want string }{
				{"serfHealth", "critical", "fresh 1- 2"}, {"_node_maintenance", "critical", "fresh 1~ 2"},
				{"_node_maintenance", "", "fresh 1- 2"}, {"serfHealth", "passing", "fresh 1 2"},
			} {
				r.s.change(func(c *catalog) { c.nodeCheck("n1", step.check, step.status) })
				r.pass(2 * time.Second)
				everyone(t, all, step.want)
				r.pass(time.Minute)
			}
		})
	})
	t.Run("node gone", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			r, all := fleet(t, n, fewWatches)
			r.settle()
			r.s.change(func(c *catalog) { c.forget("n1") })
			r.pass(2 * time.Second)
			everyone(t, all, "fresh 2")
		})
	})
	t.Run("a restored snapshot", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			r, all := fleet(t, n, fewWatches)
			old := r.s.cat.clone()
			r.s.change(func(c *catalog) {
				for i := range n {
					c.status(fmt.Sprintf("s%d", i), 1, "critical")
				}
			})
			r.settle()
			everyone(t, all, "fresh 1- 2")
			r.s.change(func(c *catalog) { c.restore(old) })
			r.pass(2 * time.Second)
			everyone(t, all, "fresh 1 2")
		})
	})
}

// Another server may answer a read than the one that told of the change, and be
// a little behind it. The agent's cache may too.
func TestSharedReadThatIsBehindItsSignal(t *testing.T) {
	for _, c := range []struct {
		name string
		q    Query
		edit func(*catalog)
	}{
		{"a change of a name", Query{}, func(c *catalog) { c.status("s7", 1, "critical") }},
		{"a change of no name", Query{}, func(c *catalog) { c.change("s7", 1, func(in *modelInstance) { in.weights.Passing = 9 }) }},
		{"from the cache", Query{Cached: true}, func(c *catalog) { c.change("s7", 1, func(in *modelInstance) { in.weights.Passing = 9 }) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newRig(t, func(c *catalog) { c.add("s7", 1, 2) }, func(c *Config) { c.MaxWatches = 1 })
				r.run(func(ctx context.Context) { r.c.Run(ctx) })
				c.q.Service = "s7"
				j := r.watch(c.q)
				r.watch(Query{Service: "other"})
				r.settle()
				j.want(t, "fresh 1 2")
				r.s.change(func(cat *catalog) {
					old, until := cat.clone(), time.Now().Add(500*time.Millisecond)
					r.s.hook = func(got call) *reply {
						if !strings.HasPrefix(got.path, "/v1/health/service/") || !time.Now().Before(until) {
							return nil
						}
						now := r.s.cat
						r.s.cat = old
						defer func() { r.s.cat = now }()
						list, _ := r.s.look(got, func(cat *catalog) view { return cat.health("s7") }, false)
						return list
					}
					c.edit(cat)
				})
				r.pass(2 * time.Second)
				if got := j.now(); got != "fresh 1- 2" && got != "fresh 1*9 2" {
					t.Errorf("got %q after 2s; reports:\n%s", got, j.tail())
				}
			})
		})
	}
}

// A signal that fails makes all sources stale, and its return makes them fresh
// by a read of each.
func TestSharedSignalFails(t *testing.T) {
	for i, path := range signalPaths {
		t.Run(path, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r, all := fleet(t, few, fewWatches)
				r.settle()
				r.change(func(c *catalog) {
					r.s.hook = func(got call) *reply {
						if got.path == path {
							return answers(500, "rpc error")
						}
						return nil
					}
					// Something that this signal tells of.
					c.status("s1", 1, "critical")
					c.status("s2", 1, "warning")
					c.change("s3", 1, func(*modelInstance) {})
					c.node("n9", "192.0.2.9")
				})
				before := r.s.count()
				r.pass(20 * time.Second)
				for _, c := range r.s.since(before, path) {
					if c.index() != "" {
						t.Errorf("after a failure: %v waits", c)
					}
				}
				for _, j := range all {
					if got := j.latest.State().Phase(); got != discovery.PhaseStale {
						t.Fatalf("%s fails: got %v", path, got)
					}
				}
				all[7].wantFail(t, `service "s7": `, []string{"nodes", "services", "critical checks", "warning checks"}[i]+": consul at 127.0.0.1:8500: 500")
				r.pass(6 * time.Minute)
				before = r.s.count()
				r.s.change(func(c *catalog) { r.s.hook = nil; c.add("s7", 3) })
				r.pass(21 * time.Second)
				all[7].want(t, "fresh 1 2 3")
				everyone(t, all[8:], "fresh 1 2")
				if got := r.readers(before); len(got) != few {
					t.Errorf("%d of %d services were read", len(got), few)
				}
			})
		})
	}
	t.Run("all", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			r, all := fleet(t, few, fewWatches)
			r.settle()
			for range 2 {
				before := r.s.count()
				r.change(func(*catalog) { r.s.down = true })
				r.pass(10 * time.Minute)
				for _, j := range all {
					if got := j.now(); got != "stale 1 2" {
						t.Fatalf("without consul: got %q", got)
					}
				}
				if got := r.s.count() - before; got > few*60 {
					t.Errorf("%d requests in ten minutes without consul", got)
				}
				r.s.change(func(*catalog) { r.s.down = false })
				r.pass(21 * time.Second)
				everyone(t, all, "fresh 1 2")
				r.pass(time.Minute)
			}
		})
	})
}

// Runs come and go; what happens in between is learnt by the next one.
func TestSharedRunsAgain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, addWeb, func(c *Config) { c.MaxWatches = 1 })
		one, two := r.web(), r.web()
		for n := range 4 {
			ctx, cancel := newContext(t)
			done := make(chan error, 1)
			r.wg.Go(func() { done <- r.c.Run(ctx) })
			r.settle()
			r.s.change(func(c *catalog) { c.add("web", 10+2*n) })
			r.pass(2 * time.Second)
			for _, j := range []*journal{one, two} {
				if got := j.now(); !strings.HasSuffix(got, fmt.Sprint(" ", 10+2*n)) {
					t.Errorf("run %d: got %q", n, got)
				}
			}
			cancel()
			if err := <-done; err != context.Canceled {
				t.Errorf("Run returned %v", err)
			}
			synctest.Wait()
			if got := r.pending(); len(got) != 0 {
				t.Errorf("after Run: %v wait", got)
			}
			r.change(func(c *catalog) { c.add("web", 11+2*n) })
			r.pass(time.Minute)
		}
	})
}

// Sources in two places have signals of their own, which end with them.
func TestSharedScopes(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, addWeb, func(c *Config) { c.MaxWatches = 3 })
		r.run(func(ctx context.Context) { r.c.Run(ctx) })
		for range 4 {
			r.watch(Query{Service: "web"})
		}
		ctx, cancel := newContext(t)
		there, done := r.watchFor(ctx, Query{Service: "web", Datacenter: "dc2", Namespace: "ns", Partition: "p", Peer: "peer"})
		alone := r.watch(Query{Service: "web", SamenessGroup: "group"})
		polled := r.watch(Query{PreparedQuery: "web"})
		r.settle()
		if got := r.pending(); len(got) != 9 {
			t.Errorf("got %v, want the four signals twice and one query of a source", got)
		}
		for _, c := range r.s.since(0, stateCalls) {
			if dc := c.query.Get("dc"); dc != "" && (dc != "dc2" || c.query.Get("ns") != "ns" || c.query.Get("partition") != "p" || c.query.Get("peer") != "peer") {
				t.Errorf("%v: not the place of the source", c)
			}
		}
		r.s.change(func(c *catalog) { c.status("web", 1, "critical") })
		r.pass(2 * time.Second)
		there.want(t, "fresh 1- 2")
		alone.want(t, "fresh 1- 2")
		r.pass(12 * time.Second)
		polled.want(t, "fresh 2")
		cancel()
		<-done
		synctest.Wait()
		if got := r.pending(); len(got) != 5 {
			t.Errorf("got %v, want four signals and one query", got)
		}
	})
}

// However many sources there are, few requests are in flight.
func TestSharedConcurrency(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r, all := fleet(t, 48, nil)
		r.settle() // each of these has its query
		for i := 48; i < 500; i++ {
			if i < 60 {
				r.s.change(func(c *catalog) { c.add(fmt.Sprintf("s%d", i), 1, 2) })
			}
			all = append(all, r.watch(Query{Service: fmt.Sprintf("s%d", i)}))
		}
		r.pass(time.Second)
		r.run(func(ctx context.Context) { r.c.WatchListeners(ctx, func(l Listeners) { r.told(l.Err) }) })
		r.run(func(ctx context.Context) { r.c.Register(ctx, agentService) })
		everyone(t, all[:60], "fresh 1 2")
		everyone(t, all[60:], "fresh")
		r.s.change(func(c *catalog) { c.change("s7", 1, func(in *modelInstance) { in.weights.Passing = 9 }) })
		r.settle()
		all[7].want(t, "fresh 1*9 2")
		before := r.s.count()
		r.pass(time.Minute)
		if got := r.s.count() - before; got > 500 {
			t.Errorf("%d requests in a minute at rest", got)
		}
		r.change(func(*catalog) { r.s.down = true })
		r.pass(time.Minute)
		r.change(func(*catalog) { r.s.down = false })
		r.pass(21 * time.Second)
		everyone(t, all[8:60], "fresh 1 2")
		everyone(t, all[60:], "fresh")
		if r.s.most() > 64 {
			t.Errorf("%d requests at once, want at most 64", r.s.most())
		}
	})
}

// After an outage each query begins anew with short waits.
func TestSharedBackoffBeginsAnew(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r, _ := fleet(t, few, fewWatches)
		r.listen()
		r.settle()
		r.change(func(*catalog) { r.s.down = true })
		r.pass(5 * time.Minute)
		r.change(func(*catalog) { r.s.down = false })
		r.pass(2 * time.Minute)
		before := r.s.count()
		r.change(func(*catalog) { r.s.down = true })
		r.pass(700 * time.Millisecond)
		// Once each, and once more as the guard's failure ends all waits.
		got := names(r.s.since(before, ""))
		for _, path := range signalPaths {
			n, most := 0, 2
			for _, name := range got {
				if name == path {
					n++
				}
			}
			if path == "/v1/catalog/services" {
				most = 4 // the listeners ask too
			}
			if n == 0 || n > most {
				t.Errorf("%d requests of %s, want 1 to %d", n, path, most)
			}
		}
	})
}

// A catalog that changes all the time is read by all sources a bounded number of
// times.
func TestSharedChurnIsPaced(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r, all := fleet(t, 300, nil)
		r.settle()
		before := r.s.count()
		for range 20 {
			r.s.change(func(c *catalog) { c.change("other", 1, func(*modelInstance) {}) })
			r.pass(time.Second)
		}
		if got := r.s.count() - before; got > 20*200+2*(sweepBurst+1)*300+100 {
			t.Errorf("%d requests in 20s of churn", got)
		}
		r.s.change(func(c *catalog) { c.change("s7", 1, func(in *modelInstance) { in.port++ }) })
		r.pass(300*sweepCost + time.Second)
		all[7].want(t, "fresh 1:81 2")
	})
}

// Sources that come and go by the dozen, across the bound and back, while the
// catalog changes: in the end everybody who is left knows.
func TestSharedComeAndGo(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, addWeb, func(c *Config) { c.MaxWatches = 8 })
		r.run(func(ctx context.Context) { r.c.Run(ctx) })
		stay := []*journal{r.web(), r.web()}
		var wg sync.WaitGroup
		for n := range 24 {
			wg.Go(func() {
				for round := range 7 {
					ctx, cancel := context.WithTimeout(r.ctx, time.Duration(1+(7*n+13*round)%50)*time.Second)
					_, done := r.watchFor(ctx, Query{Service: "web", Datacenter: []string{"", "dc2"}[n%2]})
					<-done
					cancel()
					<-time.After(time.Duration((11*n+3*round)%90) * time.Second)
				}
			})
		}
		for n := range 150 {
			<-time.After(3 * time.Second)
			r.s.change(func(c *catalog) { c.change("web", 1, func(in *modelInstance) { in.port = 1000 + n }) })
		}
		wg.Wait()
		r.pass(20 * time.Second)
		for _, j := range stay {
			j.want(t, "fresh 1:1149 2")
		}
		r.settle()
		if got := r.pending(); len(got) != 3 {
			t.Errorf("got %v, want the two queries of the sources, and the guard", got)
		}
	})
}

// What is told by name is read at once also while the catalog changes all the
// time, for which all sources are read now and then.
func TestSharedNamesUnderChurn(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r, all := fleet(t, few, fewWatches)
		r.settle()
		for n := range 120 {
			r.s.change(func(c *catalog) { c.change("other", 1, func(*modelInstance) {}) })
			r.pass(time.Second)
			if n%40 != 39 {
				continue
			}
			for _, status := range []string{"critical", "passing"} {
				r.s.change(func(c *catalog) { c.status("s7", 1, status) })
				r.pass(2 * time.Second)
				all[7].want(t, map[string]string{"critical": "fresh 1- 2", "passing": "fresh 1 2"}[status])
			}
		}
	})
}

// A server that is behind is asked again at the pace of failures.
func TestSharedBehindIsPaced(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r, all := fleet(t, few, fewWatches)
		r.settle()
		before := r.s.count()
		r.change(func(c *catalog) {
			r.s.contact = time.Hour
			c.node("n9", "192.0.2.9") // which has all read
		})
		r.pass(10 * time.Minute)
		everyone(t, all, "stale 1 2")
		if got := r.s.count() - before; got > (few+4)*55 {
			t.Errorf("%d requests in ten minutes", got)
		}
		r.change(func(*catalog) { r.s.contact = 0 })
		r.pass(36 * time.Second)
		everyone(t, all, "fresh 1 2")
	})
}
