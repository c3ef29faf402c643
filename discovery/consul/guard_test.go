package consul

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/consul/api"

	"gatehouse.internal/discovery"
)

func many(n int) (list []int) {
	for i := range n {
		list = append(list, i+1)
	}
	return list
}

// leaderReads are the requests that only the leader may answer.
func (r *rig) leaderReads() (n int) {
	for _, c := range r.s.since(0, "/v1/health/service/") {
		if _, stale := c.query["stale"]; !stale {
			n++
		}
	}
	return n
}

// leader answers what only the leader may answer.
func (r *rig) leader(answer func(call) *reply) {
	r.set(func(s *scripted) {
		s.hook = func(c call) *reply {
			if _, stale := c.query["stale"]; !stale {
				return answer(c)
			}
			return nil
		}
	})
}

// held checks that a source holds back a loss, and how it says so.
func (r *rig) held(j *journal, listed, known int) {
	r.t.Helper()
	held, ok := errors.AsType[*discovery.HeldError](j.latest.State().Err)
	if !ok || held.Listed != listed || held.Known != known {
		r.t.Errorf("got the failure %v, want a loss that is held, %d of %d; reports:\n%s", j.latest.State().Err, listed, known, j.tail())
	}
	if got := r.c.Stats().Held; got != 1 {
		r.t.Errorf("got %d held, want 1", got)
	}
}

// A loss up to a half is believed at once, a greater one when the leader says
// so too, which takes no time either.
func TestLossIsConfirmedByTheLeader(t *testing.T) {
	for _, c := range []struct {
		known, lost int
		confirmed   bool
	}{{4, 1, false}, {4, 2, false}, {4, 3, true}, {4, 4, true}, {3, 1, false}, {3, 2, true}, {2, 1, false}, {1, 1, true}, {20, 10, false}, {20, 11, true}} {
		t.Run(strings.Join([]string{"lost", strconv.Itoa(c.lost), "of", strconv.Itoa(c.known)}, " "), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newRig(t, func(cat *catalog) { cat.add("web", many(c.known)...) }, nil)
				web := r.web()
				r.pass(after)
				r.change(func(cat *catalog) { cat.remove("web", many(c.lost)...) })
				st := web.latest.State()
				if st.Phase() != discovery.PhaseFresh || st.Set.Len() != c.known-c.lost || st.Failures != 0 {
					t.Errorf("got %s", web.tail())
				}
				if got := r.leaderReads() == 1; got != c.confirmed {
					t.Errorf("asked the leader: %v, want %v", got, c.confirmed)
				}
				if got := r.c.Stats().Held; got != 0 {
					t.Errorf("got %d held, want 0", got)
				}
			})
		})
	}
}

// follow lets the servers that answer stale reads have a catalog of their own.
func (r *rig) follow(edit func(*catalog)) {
	r.change(func(c *catalog) {
		r.s.follower = c.clone()
		edit(r.s.follower)
	})
}

// An answer that the leader contradicts is dropped for the leader's.
func TestLossIsDeniedByTheLeader(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, func(c *catalog) { c.add("web", 1, 2, 3) }, nil)
		web := r.web()
		r.change(func(c *catalog) { c.add("web", 4) })
		r.follow(func(c *catalog) { c.remove("web", 1, 2, 3, 4) })
		r.pass(10 * time.Minute)
		web.want(t, "fresh 1 2 3 4")
		web.never(t, "a wrong set", lists(0))
		if got := r.leaderReads(); got == 0 || got > 50 {
			t.Errorf("asked the leader %d times", got)
		}
		r.change(func(c *catalog) { r.s.follower = nil; c.index += 10; c.add("web", 5) })
		web.want(t, "fresh 1 2 3 4 5")
	})
}

// The leader can't be reached: the loss is held for EmptyHold, then believed if
// it is still said.
func TestLossIsHeld(t *testing.T) {
	for _, lost := range [][]int{{1, 2, 3}, {1, 2}} {
		bubble(t, func(t *testing.T) {
			r := newRig(t, func(c *catalog) { c.add("web", 1, 2, 3) }, func(c *Config) { c.EmptyHold = 2 * time.Minute })
			web := r.web()
			r.pass(after)
			r.leader(func(call) *reply { return answers(500, "No cluster leader") })
			r.change(func(c *catalog) { c.remove("web", lost...) })
			start := r.now()
			web.want(t, "stale 1 2 3")
			r.held(web, 3-len(lost), 3)
			web.wantFail(t, "No cluster leader", "listed, which is not believed before")
			before := r.s.count()
			r.pass(2*time.Minute - time.Second)
			web.want(t, "stale 1 2 3")
			r.held(web, 3-len(lost), 3)
			if got := r.s.count() - before; got < 14 || got > 80 {
				t.Errorf("got %d requests in 2 minutes of hold", got)
			}
			r.pass(22 * time.Second)
			web.want(t, strings.TrimSpace("fresh "+strings.Join([]string{"1", "2", "3"}[len(lost):], " ")))
			if got := r.c.Stats().Held; got != 0 {
				t.Errorf("got %d held, want 0", got)
			}
			for _, l := range web.all() {
				if l.err == nil && l.set.Len() < 3 && l.at < start+2*time.Minute {
					t.Errorf("%v: before the hold is over", l)
				}
			}
		})
	}
}

// What comes back during a hold ends it, and the next loss has a hold of its
// own.
func TestHoldEnds(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, addWeb, nil)
		web := r.web()
		for range 3 {
			r.pass(after)
			r.leader(func(call) *reply { return &reply{err: errReset} })
			r.change(func(c *catalog) { c.remove("web", 1, 2) })
			r.held(web, 0, 2)
			r.pass(22 * time.Second)
			r.held(web, 0, 2)
			r.change(addWeb)
			r.pass(22 * time.Second)
			web.want(t, "fresh 1 2")
			if got := r.c.Stats().Held; got != 0 {
				t.Errorf("got %d held, want 0", got)
			}
		}
		web.never(t, "an empty set", lists(0))
	})
}

// A hold that outlives its source is none.
func TestHoldOfAnEndedWatch(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, addWeb, nil)
		r.leader(func(call) *reply { return &reply{hang: true} })
		ctx, cancel := newContext(t)
		web, done := r.watchFor(ctx, Query{Service: "web"})
		synctest.Wait()
		r.change(func(c *catalog) { c.remove("web", 1, 2) })
		web.want(t, "fresh 1 2") // the leader is asked
		r.pass(10 * time.Second)
		r.held(web, 0, 2)
		cancel()
		<-done
		if got := r.c.Stats().Held; got != 0 {
			t.Errorf("got %d held, want 0", got)
		}
	})
}

// A token that is refused, or may read nothing, never makes a loss true.
func TestLossByACLsIsNeverBelieved(t *testing.T) {
	for _, c := range []struct {
		name string
		hook func(call) *reply // of what the leader answers
		want string
	}{
		{"refused", func(call) *reply { return answers(403, "ACL not found") }, "the token is refused"},
		{"filtered", func(call) *reply {
			r := answers(200, "[]")
			r.header = headers(50)
			r.header.Set("X-Consul-Results-Filtered-By-Acls", "true")
			return r
		}, "the token may not read any instance"},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newRig(t, addWeb, nil)
				web := r.web()
				r.leader(c.hook)
				r.change(func(c *catalog) { c.remove("web", 1, 2) })
				for range 3 {
					r.pass(time.Hour)
					web.want(t, "stale 1 2")
					web.wantFail(t, c.want)
				}
				r.change(func(*catalog) { r.s.hook = nil })
				r.pass(22 * time.Second)
				web.want(t, "fresh")
			})
		})
	}
}

// A first answer that ACLs made empty is none, also when the next ones are the
// same.
func TestFirstAnswerIsFiltered(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, addWeb, nil)
		r.s.tokens, r.s.nodeless = map[string]bool{secretToken: true}, map[string]bool{secretToken: true}
		web := r.web()
		for range 3 {
			r.pass(time.Hour)
			web.want(t, "failing")
			web.wantFail(t, "node:read")
		}
		r.change(func(*catalog) { r.s.nodeless = nil })
		r.pass(22 * time.Second)
		web.want(t, "fresh 1 2")
	})
}

// An answer that ACLs made incomplete is believed, with a warning that is not
// repeated.
func TestFilteredInPart(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, func(c *catalog) { c.add("web", 1, 2, 3) }, nil)
		partly := func(c call) *reply {
			list, _ := r.s.look(c, func(c *catalog) view { return c.health("web") }, false)
			list.header.Set("X-Consul-Results-Filtered-By-Acls", "true")
			list.header.Set("X-Consul-Index", strconv.Itoa(100+len(r.s.calls)))
			return list
		}
		r.s.hook = partly
		web := r.web()
		r.pass(time.Minute)
		web.want(t, "fresh 1 2 3")
		if got := r.logs.count("may not read all instances"); got != 1 {
			t.Errorf("warned %d times, want once:\n%s", got, r.logs)
		}
	})
}

// A server that is behind is believed about what is there, and not about what is
// gone.
func TestBehind(t *testing.T) {
	for _, c := range []struct {
		name string
		q    Query
		set  func(*scripted)
		want string
	}{
		{"no leader", Query{}, func(s *scripted) { s.orphan = true }, "the server knows no leader"},
		{"long ago", Query{}, func(s *scripted) { s.contact = 10001 * time.Millisecond }, "the server has not heard of the leader for 10.001s"},
		{"old cache", Query{Cached: true}, func(s *scripted) { s.age = 11 * time.Second }, "the agent's cache is 11s old"},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newRig(t, func(c *catalog) { c.add("web", 1, 2, 3) }, nil)
				c.q.Service = "web"
				web := r.watch(c.q)
				synctest.Wait()
				r.pass(after)
				r.change(func(cat *catalog) {
					c.set(r.s)
					r.s.follower = cat.clone()
					r.s.follower.remove("web", 2)
					r.s.follower.status("web", 3, "critical")
					r.s.follower.add("web", 4)
				})
				web.want(t, "stale 1 2 3- 4")
				web.wantFail(t, c.want, ": 1 instances that it does not list are kept")
				r.pass(10 * time.Minute) // EmptyHold is of no account here
				web.want(t, "stale 1 2 3- 4")
				r.change(func(*catalog) { r.s.follower.remove("web", 1, 3, 4) })
				r.pass(22 * time.Second)
				web.want(t, "stale 1 2 3- 4")
				if r.leaderReads() != 0 || r.c.Stats().Held != 0 {
					t.Errorf("asked the leader %d times, %d held; want neither", r.leaderReads(), r.c.Stats().Held)
				}
				r.change(func(*catalog) { r.s.follower, r.s.orphan, r.s.contact, r.s.age = nil, false, 0, 0 })
				r.pass(22 * time.Second)
				web.want(t, "fresh 1 2 3")
			})
		})
	}
}

// An answer that lists all is fresh only if its server is not behind.
func TestBehindWithoutALoss(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, addWeb, func(c *Config) { c.MaxStale = time.Minute })
		web := r.web()
		r.set(func(s *scripted) { s.contact = time.Minute })
		r.change(func(c *catalog) { c.add("web", 3) })
		web.want(t, "fresh 1 2 3")
		r.set(func(s *scripted) { s.contact = time.Minute + time.Millisecond })
		r.change(func(c *catalog) { c.add("web", 4) })
		r.pass(time.Second)
		web.want(t, "stale 1 2 3 4")
		r.set(func(s *scripted) { s.contact = 0 })
		r.pass(22 * time.Second)
		web.want(t, "fresh 1 2 3 4")
		// Also an answer without news says how old it is.
		r.set(func(s *scripted) { s.orphan = true })
		r.pass(2 * time.Minute)
		web.want(t, "stale 1 2 3 4")
		r.set(func(s *scripted) { s.orphan = false })
		r.pass(22 * time.Second)
		web.want(t, "fresh 1 2 3 4")
	})
}

// Rule 11: answers of the streaming backend do not tell of the leader, which is
// no reason to doubt them.
func TestStreamingBackend(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, func(c *catalog) { c.add("web", 1, 2, 3) }, nil)
		r.s.streaming = true
		web := r.web()
		r.pass(after)
		r.change(func(c *catalog) { c.remove("web", 1) })
		web.want(t, "fresh 2 3")
		r.pass(after)
		r.change(func(c *catalog) { c.remove("web", 2, 3) })
		web.want(t, "fresh")
		web.never(t, "a failure", func(l line) bool { return l.err != nil })
		if r.leaderReads() != 1 {
			t.Errorf("asked the leader %d times, want once", r.leaderReads())
		}
		for _, c := range r.s.since(0, "") {
			if c.index() != "" {
				return
			}
		}
		t.Error("no query was streamed: " + api.QueryBackendStreaming)
	})
}

// guarded is how long it takes until the guard has told everybody: its wait and
// the sixteenth of it, and the pace of who then reads.
const guarded = guardWait + guardWait/16 + 2*time.Second

// A wait that goes on over a restored snapshot, and would to its end, is ended.
func TestRestoreThatEndsNoWait(t *testing.T) {
	for name, limit := range map[string]int{"own query": 48, "shared queries": 1} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newRig(t, func(c *catalog) { c.tag("web", 1, ":80"); c.add("web", 2, 3) }, func(c *Config) { c.WaitTime, c.MaxWatches = 10*time.Minute, limit })
				r.s.streaming, r.s.mute = true, "/v1/"
				r.run(func(ctx context.Context) { r.c.Run(ctx) })
				old := r.s.cat.clone()
				r.change(func(c *catalog) { c.add("web", 4); c.tag("web", 2, ":81") })
				web, d := r.web(), r.listen()
				r.watch(Query{Service: "other"})
				r.pass(time.Minute)
				for range 3 {
					r.change(func(c *catalog) { c.restore(old) })
					r.pass(guarded)
					web.want(t, "fresh 1 2 3")
					d.want(t, "", "web 127.0.0.1:80")
					r.pass(time.Minute)
					r.change(func(c *catalog) { c.add("web", 4); c.tag("web", 2, ":81") })
					r.pass(2 * time.Second)
					web.want(t, "fresh 1 2 3 4")
					d.want(t, "", "web 127.0.0.1:80", "web 127.0.0.1:81")
					r.pass(time.Minute)
				}
				web.never(t, "a failure", func(l line) bool { return l.err != nil })
				if s := r.c.Stats(); s.Failures != 0 {
					t.Errorf("got %d failures, want 0", s.Failures)
				}
			})
		})
	}
}

// A restored snapshot may leave the guard's own index as it was; then its wait
// ends before its time.
func TestRestoreThatEndsTheGuard(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, func(c *catalog) { addWeb(c); c.change("web", 1, func(in *modelInstance) { in.address = "" }) }, func(c *Config) { c.WaitTime = 10 * time.Minute })
		r.s.streaming, r.s.mute = true, "/v1/health/service/"
		r.run(func(ctx context.Context) { r.c.Run(ctx) })
		r.change(func(c *catalog) { c.node("n1", "192.0.2.8") })
		old := r.s.cat.clone()
		web := r.web()
		r.pass(time.Minute)
		for range 3 {
			r.change(func(c *catalog) { c.node("n1", "192.0.2.9") })
			r.pass(time.Minute)
			web.want(t, "fresh 2 9")
			r.change(func(c *catalog) { c.restore(old) })
			r.pass(guarded)
			web.want(t, "fresh 2 8")
			r.pass(time.Minute)
		}
	})
}

// A server that another one has replaced while a source had no request under
// way: the source would wait for an index that is long to come.
func TestServerIsReplacedUnseen(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, addWeb, func(c *Config) { c.WaitTime = 10 * time.Minute })
		r.run(func(ctx context.Context) { r.c.Run(ctx) })
		web := r.web()
		other := r.s.cat.clone()
		other.checksIndex += 1000 // which is all that the guard sees
		other.remove("web", 2)
		r.pass(time.Minute)
		for range 3 { // more than may be asked at once
			r.change(func(c *catalog) { c.node("n1", "192.0.2.8") })
		}
		r.change(func(*catalog) { r.s.down = true })
		r.pass(100 * time.Millisecond)
		r.change(func(c *catalog) { r.s.down = false; c.restore(other) })
		r.pass(2 * time.Second)
		web.want(t, "fresh 1")
		web.never(t, "a failure", func(l line) bool { return l.err != nil })
	})
}

// What is streamed does not tell of the leader's loss, and a wait not before its
// end: the guard does.
func TestLeaderLossIsSeen(t *testing.T) {
	for name, limit := range map[string]int{"own query": 48, "shared queries": 1} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newRig(t, addWeb, func(c *Config) { c.WaitTime, c.MaxWatches = 10*time.Minute, limit })
				r.s.streaming = true
				r.run(func(ctx context.Context) { r.c.Run(ctx) })
				web := r.web()
				r.watch(Query{Service: "other"})
				r.pass(time.Minute)
				for range 3 {
					r.set(func(s *scripted) { s.orphan = true })
					r.pass(guarded)
					web.want(t, "stale 1 2")
					web.wantFail(t, "knows no leader")
					r.pass(time.Minute)
					web.want(t, "stale 1 2")
					r.set(func(s *scripted) { s.orphan = false })
					r.pass(36 * time.Second) // the turn of the guard, and of the source
					web.want(t, "fresh 1 2")
					r.pass(time.Minute)
				}
			})
		})
	}
}

// An empty first answer is a fact when the leader says so too.
func TestEmptyAtFirst(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, nil, nil)
		r.web().want(t, "fresh")
		if got := r.leaderReads(); got != 1 {
			t.Errorf("the leader was asked %d times, want once", got)
		}
	})
}

// A server that has just started may not have been told of the instances yet:
// that the first answer is empty is asked about once more, of the leader.
func TestC20FirstAnswerOfStaleServer(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, addWeb, nil)
		r.set(func(s *scripted) { s.follower = newCatalog() })
		web := r.web()
		web.never(t, "an empty set", lists(0))
		web.want(t, "fresh 1 2")
	})
}
