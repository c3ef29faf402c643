package consul

import (
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"gatehouse.internal/discovery"
)

// The tests TestC01 to TestC20 are the faults that other programs had with
// Consul, each as what the peer did, played back to this one.

// C1 (fabiolb/fabio#861, #162, #811): the local agent was restarted, one of the
// calls failed meanwhile, and the routes of its service were dropped.
func TestC01AgentRestart(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, func(c *catalog) { c.add("web", 1, 2); c.add("api", 3, 4) }, nil)
		old := r.s.cat.clone()
		web, other := r.web(), r.watch(Query{Service: "api"})
		synctest.Wait()
		r.change(func(c *catalog) {
			for range 50 {
				c.status("web", 1, "passing")
				c.status("api", 3, "passing")
			}
		})
		for range 3 {
			r.pass(after)
			r.change(func(*catalog) { r.s.down = true })
			r.pass(10 * time.Second)
			web.want(t, "stale 1 2")
			r.change(func(c *catalog) { // up again, with nothing of its own
				r.s.down, r.s.orphan = false, true
				r.s.follower = newCatalog()
			})
			r.pass(10 * time.Second)
			web.want(t, "stale 1 2")
			r.change(func(c *catalog) {
				r.s.orphan, r.s.follower = false, nil
				c.restore(old)
				r.s.hook = func(c call) *reply {
					if strings.HasSuffix(c.path, "/web") {
						return answers(500, "rpc error making call: EOF")
					}
					return nil
				}
			})
			r.pass(21 * time.Second)
			web.want(t, "stale 1 2")
			other.want(t, "fresh 3 4")
			r.change(func(*catalog) { r.s.hook = nil })
			r.pass(21 * time.Second)
			web.want(t, "fresh 1 2")
		}
		web.never(t, "a loss", lists(0))
		other.never(t, "a loss", lists(0))
	})
}

// C2 (fabiolb/fabio#837, #838): one rule that named a service which was absent
// at the start kept all others from coming up.
func TestC02AbsentAtStart(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, addWeb, nil)
		r.s.hook = func(c call) *reply {
			switch {
			case strings.HasSuffix(c.path, "/hangs"):
				return &reply{hang: true}
			case strings.HasSuffix(c.path, "/fails"):
				return answers(500, "no")
			}
			return nil
		}
		absent, fails, hangs := r.watch(Query{Service: "absent"}), r.watch(Query{Service: "fails"}), r.watch(Query{Service: "hangs"})
		web := r.web()
		web.want(t, "fresh 1 2")
		absent.want(t, "fresh")
		fails.want(t, "failing")
		hangs.want(t, "unknown")
		r.change(func(c *catalog) { c.add("web", 3); c.add("absent", 4) })
		web.want(t, "fresh 1 2 3")
		absent.want(t, "fresh 4")
	})
}

// C3 (fabiolb/fabio#865): each change of health made everything be read anew.
func TestC03OneChangeOneRead(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, func(c *catalog) {
			for i := range 40 {
				c.add(fmt.Sprintf("s%d", i), i+1)
			}
		}, nil)
		var all []*journal
		for i := range 40 {
			all = append(all, r.watch(Query{Service: fmt.Sprintf("s%d", i)}))
		}
		synctest.Wait()
		before := r.s.count()
		r.change(func(c *catalog) { c.status("s7", 8, "critical") })
		all[7].want(t, "fresh 8-")
		r.pass(time.Second)
		if got := r.s.since(before, ""); len(got) != 1 || got[0].path != "/v1/health/service/s7" {
			t.Errorf("got %v, want one request, for s7", got)
		}
		all[8].want(t, "fresh 9")
	})
}

// C4 (fabiolb/fabio#481): a watch was stuck, and one instance of ten served old
// routes until it was restarted.
func TestC04StuckWatch(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, addWeb, nil)
		r.s.hook = func(c call) *reply {
			if c.index() != "" {
				r.s.hook = nil // this one request only
				return &reply{hang: true}
			}
			return nil
		}
		web := r.web()
		r.change(func(c *catalog) { c.add("web", 3) })
		web.want(t, "fresh 1 2")
		r.pass(time.Minute + time.Minute/16 + 10*time.Second)
		web.want(t, "stale 1 2") // which is to be seen
		r.pass(time.Second)
		web.want(t, "fresh 1 2 3")
	})
}

// C5 (traefik/traefik#515): the process exited on "500 No cluster leader".
func TestC05NoClusterLeader(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, addWeb, nil)
		r.s.orphan = true
		j := r.watch(Query{Service: "web", Consistency: Default})
		synctest.Wait()
		j.want(t, "failing")
		j.wantFail(t, `500 "No cluster leader"`)
		r.change(func(*catalog) { r.s.orphan = false })
		r.pass(21 * time.Second)
		j.want(t, "fresh 1 2")
		r.change(func(c *catalog) { r.s.orphan = true; c.status("web", 1, "critical") })
		r.pass(time.Hour)
		j.want(t, "stale 1 2")
		r.change(func(*catalog) { r.s.orphan = false })
		r.pass(21 * time.Second)
		j.want(t, "fresh 1- 2")
	})
}

// C6 (traefik/traefik#3944, #2552, #3157, #11688): one EOF, or a partition of
// which TCP said nothing, and the provider never updated again.
func TestC06PartitionHeals(t *testing.T) {
	for name, fault := range map[string]func() *reply{
		"eof":       func() *reply { return &reply{err: io.EOF} },
		"cut":       func() *reply { return cut(`[{"No`) },
		"partition": func() *reply { return &reply{hang: true} },
		"rpc":       func() *reply { return answers(500, "rpc error making call: EOF") },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newRig(t, addWeb, nil)
				web := r.web()
				for n := range 3 {
					r.change(func(c *catalog) {
						r.s.hook = func(call) *reply { return fault() }
						c.status("web", 1, "passing")
					})
					r.pass(after)
					web.want(t, "stale "+strings.Join([]string{"1 2", "1 2 3", "1 2 3 4"}[n:n+1], ""))
					r.change(func(c *catalog) { r.s.hook = nil; c.add("web", n+3) })
					r.pass(31 * time.Second) // the longest wait and the deadline of a request
					web.want(t, "fresh "+[]string{"1 2 3", "1 2 3 4", "1 2 3 4 5"}[n])
				}
			})
		})
	}
}

// C7 (go-kit/kit#1214): after the watched service was deregistered, answers came
// at once, with an index of 0 or an old one, and were asked for without end.
func TestC07DeregisteredServiceIsNoLoop(t *testing.T) {
	for _, index := range []string{"0", "1", ""} {
		t.Run("index "+index, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newRig(t, addWeb, nil)
				web := r.web()
				r.change(func(c *catalog) {
					c.remove("web", 1, 2)
					r.s.hook = func(call) *reply {
						gone := answers(200, "[]")
						gone.header = headers(1)
						gone.header.Set("X-Consul-Index", index)
						return gone
					}
				})
				before := r.s.count()
				r.pass(time.Hour)
				web.want(t, "fresh")
				if got := r.s.count() - before; got > 270 {
					t.Errorf("got %d requests in an hour, want at most 270", got)
				}
			})
		})
	}
}

// C8 (mbobakov/grpc-consul-resolver#7): an error led to the next request without
// delay, and to a line in the log each.
func TestC08ErrorsAreNoLoop(t *testing.T) {
	for name, fault := range map[string]*reply{"refused": {err: refusedConnection}, "status": answers(500, "")} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newRig(t, addWeb, nil)
				r.s.hook = func(call) *reply { r := *fault; return &r }
				web := r.web()
				r.pass(time.Hour)
				if got := r.s.count(); got > 280 {
					t.Errorf("got %d requests in an hour, want at most 280", got)
				}
				if got := strings.Count(r.logs.String(), "\n"); got != 0 {
					t.Errorf("got %d lines in the log", got)
				}
				if got := web.latest.State().Failures; got < 200 {
					t.Errorf("told of %d failures only", got)
				}
			})
		})
	}
}

// C9 (simplesurance/grpcconsulresolver#26, #41, #43): after a restored snapshot
// the index was lower, and updates were missed; an error was told once, and
// nothing asked again.
func TestC09IndexGoesBackwards(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, func(c *catalog) { c.add("web", 1, 2, 3) }, nil)
		old := r.s.cat.clone()
		r.change(func(c *catalog) {
			for range 100 {
				c.status("web", 1, "passing")
			}
			c.add("web", 4)
		})
		web := r.web()
		web.want(t, "fresh 1 2 3 4")
		r.pass(after)
		r.change(func(c *catalog) { c.restore(old) })
		r.pass(time.Second)
		web.want(t, "fresh 1 2 3")
		if got := r.c.Stats().IndexResets; got != 1 {
			t.Errorf("got %d resets, want 1", got)
		}
		r.change(func(c *catalog) { c.status("web", 1, "critical") })
		r.pass(2 * time.Second)
		web.want(t, "fresh 1- 2 3")
		web.never(t, "an empty set", lists(0))
	})
}

// C10 (go-kratos/kratos#2911, #3162, #1731, #3511): a service never resolved
// after its first watch had failed, or when another client of it was closed.
func TestC10EachWatchIsItsOwn(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, addWeb, nil)
		r.s.down = true
		src, err := r.c.Service(Query{Service: "web"}, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := newContext(t)
		one, done := r.watchFor(ctx, Query{Service: "web"})
		two := r.web()
		two.want(t, "failing")
		r.change(func(*catalog) { r.s.down = false })
		r.pass(2 * time.Second)
		one.want(t, "fresh 1 2")
		two.want(t, "fresh 1 2")
		cancel()
		<-done
		r.change(func(c *catalog) { c.add("web", 3) })
		one.want(t, "fresh 1 2")
		two.want(t, "fresh 1 2 3")
		for range 3 { // the same source, again and again
			ctx, cancel := newContext(t)
			j := &journal{begin: r.begin, latest: discovery.NewLatest()}
			end := make(chan error, 1)
			r.wg.Go(func() { end <- src.Watch(ctx, j) })
			synctest.Wait()
			j.want(t, "fresh 1 2 3")
			cancel()
			if err := <-end; err != ctx.Err() {
				t.Errorf("Watch returned %v", err)
			}
		}
		if got := r.c.Stats().Watches; got != 1 {
			t.Errorf("got %d watches, want 1", got)
		}
	})
}

// C11 (hashicorp/hcat#103): after a restart of the agent the old index was
// waited for, since the text of the error was another than expected.
func TestC11NoOldIndexAfterAFailure(t *testing.T) {
	for name, fault := range map[string]*reply{
		"eof": {err: io.EOF}, "refused": {err: refusedConnection}, "reset": {err: errReset}, "status": answers(500, "Unexpected text"), "other": answers(418, ""),
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newRig(t, addWeb, nil)
				old := r.s.cat.clone()
				r.change(func(c *catalog) { c.add("web", 3, 4) })
				web := r.web()
				r.change(func(c *catalog) {
					r.s.hook = func(call) *reply { r := *fault; return &r }
					c.status("web", 1, "passing")
				})
				r.pass(time.Second)
				before := r.s.count()
				r.change(func(c *catalog) { r.s.hook = nil; c.restore(old) })
				r.pass(10 * time.Second)
				web.want(t, "fresh 1 2")
				if got := r.s.since(before, "")[0].index(); got != "" {
					t.Errorf("the first request after the failure waits for %s", got)
				}
			})
		})
	}
}

// C12 (hashicorp/consul-k8s#54): there was no limit to the rate of requests, and
// no reset of the index.
func TestC12IndexUpAndDown(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, addWeb, nil)
		n := uint64(0)
		r.s.hook = func(c call) *reply {
			n++
			list, _ := r.s.look(call{query: c.query, token: c.token}, func(c *catalog) view { return c.health("web") }, false)
			list.header = headers(100 + 50*(n%2) - n%7)
			return list
		}
		web := r.web()
		r.pass(time.Hour)
		if got := r.s.count(); got > 270 {
			t.Errorf("got %d requests in an hour, want at most 270", got)
		}
		r.change(func(c *catalog) { c.add("web", 3) })
		r.pass(31 * time.Second)
		web.want(t, "fresh 1 2 3")
	})
}

// C17 (haproxytech/dataplaneapi#200, #148): updates stopped for ever after a
// backend that was in use had vanished; one failed query dropped its service;
// an instance without an address of its own had none.
func TestC17BackendVanishes(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, func(c *catalog) { c.add("web", 1, 2); c.add("api", 3) }, nil)
		web, other := r.web(), r.watch(Query{Service: "api"})
		synctest.Wait()
		for range 3 {
			r.change(func(c *catalog) { c.remove("web", 1, 2) })
			web.want(t, "fresh")
			r.pass(after)
			r.change(func(c *catalog) {
				c.node("n1", "192.0.2.71")
				c.add("web", 1, 2)
				c.change("web", 1, func(in *modelInstance) { in.address = "" })
			})
			r.pass(time.Second)
			web.want(t, "fresh 2 71")
			r.pass(after)
			r.change(func(c *catalog) { c.node("n1", ""); c.status("api", 3, "passing") })
			r.pass(time.Second)
			web.want(t, "fresh 2")
			other.want(t, "fresh 3")
			r.pass(after)
		}
		if got := r.logs.count("neither the service nor its node has an address"); got != 3 {
			t.Errorf("warned %d times, want 3:\n%s", got, r.logs)
		}
	})
}

// C18 (hashicorp/consul#12640): blocking reads with a filter got old data from
// the streaming backend.
func TestC18NoFilterAtTheServer(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, addWeb, nil)
		r.s.streaming = true
		j := r.watch(Query{Service: "web", Tags: []string{"v2"}, NodeMeta: map[string]string{"rack": "1"}})
		synctest.Wait()
		j.want(t, "fresh")
		r.change(func(c *catalog) {
			c.nodes["n1"].meta = map[string]string{"rack": "1"}
			c.change("web", 1, func(in *modelInstance) { in.tags = []string{"v1", "v2"} })
			c.change("web", 2, func(in *modelInstance) { in.tags = []string{"v2"} })
		})
		j.want(t, "fresh 1")
		for _, c := range r.s.since(0, "") {
			for _, p := range []string{"filter", "tag", "node-meta", "passing"} {
				if c.query.Has(p) {
					t.Errorf("%v: filtered by the server", c)
				}
			}
		}
	})
}

// C19 (VictoriaMetrics#2940): a fleet of agents overloaded Consul's leader.
func TestC19FleetIsSpread(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, addWeb, nil)
		var fleet []*journal
		for range 40 {
			fleet = append(fleet, r.watch(Query{Service: "web"}))
		}
		synctest.Wait()
		r.pass(time.Minute)
		r.change(func(*catalog) { r.s.down = true })
		r.pass(5 * time.Minute)
		before, start := r.s.count(), r.now()
		r.pass(21 * time.Second)
		perSecond := map[time.Duration]int{}
		for _, c := range r.s.since(before, "") {
			if _, stale := c.query["stale"]; !stale {
				t.Errorf("%v asks the leader", c)
			}
			perSecond[(c.at.Sub(r.begin)-start)/time.Second]++
		}
		for s, n := range perSecond {
			if n > 12 {
				t.Errorf("%d of %d requests in second %d: not spread", n, len(fleet), s)
			}
		}
	})
}

// C20 (square/p2#905): a server that had just been restarted said of data that
// was there that it was not.
func TestC20StaleServerAfterRestart(t *testing.T) {
	for name, set := range map[string]func(*scripted){
		"it knows no leader":    func(s *scripted) { s.orphan = true },
		"it is behind":          func(s *scripted) { s.contact = time.Hour },
		"it thinks it is fresh": func(s *scripted) {},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newRig(t, addWeb, nil)
				web := r.web()
				r.change(func(c *catalog) {
					set(r.s)
					r.s.follower = newCatalog()
					r.s.follower.epoch = 1
					c.add("web", 3)
				})
				r.pass(10 * time.Minute)
				web.never(t, "an empty set", lists(0))
				r.change(func(*catalog) { r.s.follower, r.s.orphan, r.s.contact = nil, false, 0 })
				r.pass(21 * time.Second)
				web.want(t, "fresh 1 2 3")
			})
		})
	}
}

// The same for a loss that is small, of a server that says that it is fresh: its
// index is lower than one that was seen.
func TestC20ServerThatCatchesUp(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, addWeb, nil)
		old := r.s.cat.clone()
		old.epoch = 1
		r.change(func(c *catalog) { c.add("web", 3) })
		web := r.web()
		web.want(t, "fresh 1 2 3")
		r.change(func(*catalog) { r.s.follower = old })
		r.pass(10 * time.Minute)
		web.want(t, "fresh 1 2 3")
		r.change(func(*catalog) { r.s.follower.status("web", 2, "critical") })
		r.pass(10 * time.Minute)
		r.change(func(c *catalog) { r.s.follower = nil; c.remove("web", 2) })
		r.pass(2 * time.Minute)
		web.want(t, "fresh 1 3")
		for _, l := range web.all() {
			if got := brief(l.set); l.err == nil && got != "1 2 3" && got != "1 2- 3" && got != "1 3" {
				t.Errorf("reported %v", l)
			}
		}
	})
}
