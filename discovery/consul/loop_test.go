package consul

import (
	"context"
	"fmt"
	"io"
	"math"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

func addWeb(c *catalog) { c.add("web", 1, 2) }

// after is a time that is no round figure.
const after = 1234567 * time.Millisecond

// The first request does not block, the next ones do, and ask for what was set.
func TestRequests(t *testing.T) {
	for _, c := range []struct {
		name  string
		cfg   func(*Config)
		q     Query
		first string
	}{
		{"default", func(c *Config) { c.WaitTime = 0 }, Query{}, "stale="},
		{"stale", nil, Query{Consistency: Stale}, "stale="},
		{"default consistency", nil, Query{Consistency: Default}, ""},
		{"consistent", nil, Query{Consistency: Consistent}, "consistent="},
		{"cached", nil, Query{Cached: true}, "cached=&stale="},
		{"near", nil, Query{Near: "_agent"}, "near=_agent&stale="},
		{"place", nil, Query{Datacenter: "dc2", Namespace: "ns1", Partition: "p1", Peer: "peer1"}, "dc=dc2&ns=ns1&partition=p1&peer=peer1&stale="},
		{"place of the client", func(c *Config) { c.Datacenter, c.Namespace, c.Partition = "dc2", "ns1", "p1" }, Query{}, "dc=dc2&ns=ns1&partition=p1&stale="},
		{"sameness group", nil, Query{SamenessGroup: "sg"}, "sameness-group=sg&stale="},
		{"tags are matched here", nil, Query{Tags: []string{"a"}, NodeMeta: map[string]string{"k": "v"}}, "stale="},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newRig(t, addWeb, c.cfg)
				c.q.Service = "web"
				r.watch(c.q)
				synctest.Wait()
				if r.s.count() != 2 {
					t.Fatalf("got %d requests, want 2", r.s.count())
				}
				if got := r.s.since(0, "")[0].query.Encode(); got != c.first {
					t.Errorf("first request: got %q, want %q", got, c.first)
				}
				second := r.s.since(0, "")[1].query
				wait := r.c.cfg.WaitTime
				if got := second.Get("wait"); got != fmt.Sprintf("%dms", wait.Milliseconds()) || second.Get("index") != "14" {
					t.Errorf("second request: wait %q, index %q, want %v and 14", got, second.Get("index"), wait)
				}
				second.Del("wait")
				second.Del("index")
				if got := second.Encode(); got != c.first {
					t.Errorf("second request: got %q, want %q", got, c.first)
				}
			})
		})
	}
}

// A change is seen at the moment it happens, again and again, at whatever time.
func TestChangeIsSeenAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, addWeb, nil)
		web := r.web()
		web.want(t, "fresh 1 2")
		for _, step := range []struct {
			edit func(*catalog)
			want string
		}{
			{func(c *catalog) { c.add("web", 3) }, "fresh 1 2 3"},
			{func(c *catalog) { c.status("web", 3, "critical") }, "fresh 1 2 3-"},
			{func(c *catalog) { c.status("web", 3, "warning") }, "fresh 1 2 3"},
			{func(c *catalog) { c.remove("web", 2) }, "fresh 1 3"},
			{func(c *catalog) { c.nodeCheck("n1", "serfHealth", "critical") }, "fresh 1- 3"},
			{func(c *catalog) { c.nodeCheck("n1", "_node_maintenance", "critical") }, "fresh 1~ 3"},
			{func(c *catalog) { c.change("web", 1, func(in *modelInstance) { in.weights.Passing = 5 }) }, "fresh 1~*5 3"},
		} {
			r.pass(after)
			r.change(step.edit)
			web.want(t, step.want)
		}
		web.never(t, "failure", func(l line) bool { return l.err != nil })
	})
}

// A query that waits for its full time and the sixteenth that servers add is no
// failure, and no news.
func TestWaitToTheEnd(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, addWeb, func(c *Config) { c.WaitTime = 0 })
		web := r.web()
		r.pass(24 * time.Hour)
		web.want(t, "fresh 1 2")
		each := time.Minute + time.Minute/16
		if got, want := r.s.count(), 2+int(24*time.Hour/each); got != want {
			t.Errorf("got %d requests in a day, want %d", got, want)
		}
		st := web.latest.State()
		if st.Updates != 1 || st.Failures != 0 {
			t.Errorf("got %d updates and %d failures, want 1 and 0", st.Updates, st.Failures)
		}
		if age := time.Since(st.Confirmed); age > each {
			t.Errorf("confirmed %v ago, want at most %v", age, each)
		}
	})
}

// An agent that takes a request and never answers is given up in bounded time.
func TestHangEnds(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, addWeb, func(c *Config) { c.WaitTime = 10 * time.Minute })
		r.s.hook = func(c call) *reply {
			if c.index() != "" {
				return &reply{hang: true}
			}
			return nil
		}
		web := r.web()
		bound := 10*time.Minute + 10*time.Minute/16 + 10*time.Second
		r.pass(bound - time.Millisecond)
		web.want(t, "fresh 1 2")
		r.pass(time.Millisecond)
		web.want(t, "stale 1 2")
		web.wantFail(t, `service "web": consul at 127.0.0.1:8500: no answer within `+bound.String())
		r.pass(time.Second)
		web.want(t, "fresh 1 2") // by a request that does not block

		r.change(func(*catalog) { r.s.hook = func(call) *reply { return &reply{hang: true} } })
		r.pass(bound)
		web.want(t, "stale 1 2")
		r.pass(time.Minute)
		web.wantFail(t, "no answer within 10s")
	})
}

// Rule 2: what an answer's index does to the next request.
func TestIndexRules(t *testing.T) {
	for _, c := range []struct {
		name, index string
		next        string // the index of the next request
		resets      uint64
	}{
		{"higher", "100", "100", 0},
		{"same", "13", "13", 0},
		{"lower", "5", "", 1},
		{"zero", "0", "", 1},
		{"absent", "", "", 1},
		{"garbage", "many", "", 1},
		{"negative", "-3", "", 1},
		{"too large", "18446744073709551616", "", 1},
		{"largest", "18446744073709551615", "18446744073709551615", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newRig(t, func(c *catalog) { c.add("web", 1) }, nil)
				given := false
				r.s.hook = func(got call) *reply {
					if got.index() == "" || given {
						return nil
					}
					given = true
					list, _ := r.s.look(call{query: got.query, token: got.token}, func(c *catalog) view { return c.health("web") }, false)
					list.header.Set("X-Consul-Index", c.index)
					return list
				}
				web := r.web()
				r.pass(time.Second) // the third request is beyond the burst
				if got := r.s.since(0, "")[2].index(); got != c.next {
					t.Errorf("index of the next request: got %q, want %q", got, c.next)
				}
				if got := r.c.Stats().IndexResets; got != c.resets {
					t.Errorf("got %d resets, want %d", got, c.resets)
				}
				if c.resets > 0 && r.s.since(0, "")[2].at.Sub(r.begin) != time.Second {
					t.Errorf("read again at %v, want 1s", r.s.since(0, "")[2].at.Sub(r.begin))
				}
				web.never(t, "an empty set", lists(0))
			})
		})
	}
	t.Run("zero at first means one", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			r := newRig(t, addWeb, nil)
			r.s.hook = func(c call) *reply {
				if c.index() != "" {
					return nil
				}
				list, _ := r.s.look(call{query: c.query, token: c.token}, func(c *catalog) view { return c.health("web") }, false)
				list.header.Set("X-Consul-Index", "0")
				return list
			}
			r.web()
			if got := r.s.since(0, "")[1].index(); got != "1" {
				t.Errorf("got index %q, want 1", got)
			}
		})
	})
}

// Rule 4: the exact times of requests whose answers always come at once.
func TestPace(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, addWeb, nil)
		index := uint64(100)
		r.s.hook = func(c call) *reply {
			index++
			list, _ := r.s.look(call{query: c.query, token: c.token}, func(c *catalog) view { return c.health("web") }, false)
			list.header = headers(index)
			return list
		}
		web := r.web()
		r.pass(time.Hour - time.Nanosecond)
		times := r.asked("/v1/health/service/web")
		want := []time.Duration{0, 0} // the burst, then one a second for half a minute
		for n := time.Second; n <= 30*time.Second; n += time.Second {
			want = append(want, n)
		}
		for n := 45 * time.Second; n < time.Hour; n += 15 * time.Second {
			want = append(want, n)
		}
		for i := range times { // what 1 s / 15 rounds to adds up to less than this
			times[i] = times[i].Round(time.Millisecond)
		}
		if d := cmp.Diff(want, times); d != "" {
			t.Errorf("times of requests in an hour of churn (-want +got):\n%s", d)
		}
		web.want(t, "fresh 1 2")

		// After as much calm as fills the bucket, everything is as at first.
		r.change(func(c *catalog) {
			r.s.hook = nil
			c.index, c.serviceIndex["web"] = index+1, index+1
		})
		r.pass(8 * time.Minute)
		before := r.s.count()
		for n := range 6 {
			r.change(func(c *catalog) { c.add("web", 10+n) })
		}
		web.want(t, "fresh 1 2 10 11 12") // one that waited, and the burst
		r.pass(time.Second)
		web.want(t, "fresh 1 2 10 11 12 13 14 15")
		if got := r.s.count() - before; got > 3 {
			t.Errorf("got %d requests, want at most 3", got)
		}
	})
}

// The bucket alone, asked as fast as it lets, and after pauses of every length.
func TestPacer(t *testing.T) {
	start := time.Now()
	for _, calm := range []time.Duration{0, time.Second, 14 * time.Second, 15 * time.Second, 29 * time.Second, 30 * time.Second, time.Hour} {
		var p pacer
		now := start
		for range 100 {
			now = now.Add(p.take(now))
		}
		now = now.Add(calm)
		first, second := p.take(now), time.Duration(0)
		now = now.Add(first)
		second = p.take(now)
		wantFirst := max(0, 15*time.Second-calm)
		wantSecond := max(0, min(15*time.Second, 30*time.Second-calm))
		if (first-wantFirst).Abs() > time.Microsecond || (second-wantSecond).Abs() > time.Microsecond {
			t.Errorf("after %v of calm: got waits of %v and %v, want %v and %v", calm, first, second, wantFirst, wantSecond)
		}
	}
}

// Rule 2: failures in a row are retried with waits that double, from 500 ms to
// 15 s, give or take 40 %; a success begins anew.
func TestBackoff(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, addWeb, nil)
		r.s.down = true
		web := r.web()
		web.want(t, "failing")
		web.wantFail(t, "connection refused")
		check := func(times []time.Duration) {
			t.Helper()
			want := 500 * time.Millisecond
			for i := 1; i < len(times); i++ {
				wait := times[i] - times[i-1]
				if wait < want*6/10 || wait > want*14/10+500*time.Millisecond { // the pace may add some
					t.Errorf("wait %d: %v, want %v ± 40 %%", i, wait, want)
				}
				want = min(2*want, 15*time.Second)
			}
		}
		r.pass(time.Hour)
		times := r.asked("/v1/health/service/web")
		check(times)
		if n := len(times); n < int(time.Hour/(17*time.Second)) || n > int(time.Hour/(13*time.Second)) {
			t.Errorf("got %d requests in an hour", n)
		}
		r.change(func(*catalog) { r.s.down = false })
		r.pass(21 * time.Second)
		web.want(t, "fresh 1 2")
		r.pass(time.Minute)
		before := len(r.asked("/v1/health/service/web"))
		cut := r.now()
		r.change(func(*catalog) { r.s.down = true })
		r.pass(time.Minute)
		web.want(t, "stale 1 2")
		check(append([]time.Duration{cut}, r.asked("/v1/health/service/web")[before:]...))
		r.change(func(*catalog) { r.s.down = false })
		r.pass(21 * time.Second)
		web.want(t, "fresh 1 2")
	})
	low, high := time.Duration(math.MaxInt64), time.Duration(0)
	for range 2000 {
		b := backoff{next: backoffMax}
		d := b.fail()
		low, high = min(low, d), max(high, d)
	}
	if low < 9*time.Second || low > 10*time.Second || high > 21*time.Second || high < 20*time.Second {
		t.Errorf("the longest wait: got %v to %v, want 9s to 21s, with jitter over all of it", low, high)
	}
}

// Every fault keeps the last set, says what is wrong, and heals.
func TestFaults(t *testing.T) {
	const at = `service "web": consul at 127.0.0.1:8500: `
	for _, c := range []struct {
		name  string
		reply func() *reply
		want  string
	}{
		{"no leader", func() *reply { return answers(500, "No cluster leader\n") }, at + `500 "No cluster leader"`},
		{"rpc error", func() *reply { return answers(500, "rpc error making call: EOF") }, at + `500 "rpc error making call: EOF"`},
		{"bad gateway", func() *reply { return answers(502, "<html>\n<b>bad</b>\x00\xff") }, at + `502 "<html> <b>bad</b> ?"`},
		{"token", func() *reply { return answers(403, "ACL not found") }, at + `the token is refused (403 "ACL not found")`},
		{"authorization of a proxy", func() *reply { return answers(401, "") }, at + `401 ""`},
		{"no such path", func() *reply { return answers(404, "404 page not found") }, at + `no such path there (404 "404 page not found"): is it Consul's HTTP API?`},
		{"too many", func() *reply { return answers(429, "Too many") }, at + `too many requests or connections (429 "Too many"): raise the agent's http_max_conns_per_client, or lower max_watches`},
		{"redirect", func() *reply {
			r := answers(307, "")
			r.header = http.Header{"Location": {"http://evil.example/v1/health/service/web"}}
			return r
		}, at + `redirects elsewhere (307 ""), which is not followed: correct the address`},
		{"no content", func() *reply { return answers(204, "") }, at + `204 ""`},
		{"refused", func() *reply { return &reply{err: refusedConnection} }, at + "dial tcp: connection refused"},
		{"reset", func() *reply { return &reply{err: errReset} }, "connection reset by peer"},
		{"closed", func() *reply { return &reply{err: io.EOF} }, at + "the answer was cut short: EOF"},
		{"cut", func() *reply { return cut(`[{"Node":{"Node":"n1"`) }, at + "the answer was cut short: unexpected EOF"},
		{"nothing", func() *reply { return answers(200, "") }, at + "the answer was cut short: EOF"},
		{"a page", func() *reply { return answers(200, "<html>hello</html>") }, at + "invalid character '<' looking for beginning of value"},
		{"an object", func() *reply { return answers(200, `{"Node":1}`) }, at + "json: cannot unmarshal object"},
		{"of other types", func() *reply { return answers(200, `[{"Service":{"Port":"80"}}]`) }, at + "json: cannot unmarshal string"},
		{"without end", func() *reply { return &reply{status: 500, body: zeros{}} }, at + `500 "..."`},
		{"long", func() *reply { return answers(500, strings.Repeat("long ", 100000)) }, at + `500 "long`},
		{"a long number", func() *reply {
			return answers(200, `[{"Service":{"Port":1`+strings.Repeat("0", 100000)+`}}]`)
		}, at + "json: cannot unmarshal number 10"},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newRig(t, addWeb, nil)
				web := r.web()
				r.pass(after)
				throttled := r.c.Stats().Throttled
				r.change(func(cat *catalog) {
					r.s.hook = func(call) *reply { return c.reply() }
					cat.add("web", 3)
				})
				r.pass(100 * time.Millisecond)
				web.want(t, "stale 1 2 3")
				web.wantFail(t, c.want)
				if got := web.latest.State().Err.Error(); len(got) > 500 || strings.ContainsAny(got, "\n\r\t\x00") {
					t.Errorf("got %d bytes %.600q, want at most 500 without control characters", len(got), got)
				}
				if got := r.c.Stats().Throttled - throttled; (got > 0) != (c.name == "too many") {
					t.Errorf("got %d throttled", got)
				}
				r.change(func(cat *catalog) {
					cat.add("web", 4)
					r.s.hook = nil
				})
				r.pass(21 * time.Second)
				web.want(t, "fresh 1 2 3 4")
				for _, l := range web.all() {
					if l.err == nil && l.set.Len() < 2 {
						t.Errorf("reported %v", l)
					}
				}
				for _, got := range r.s.since(0, "") {
					if got.host != "127.0.0.1:8500" || got.token != secretToken {
						t.Errorf("%v: to %s with the token %q", got, got.host, got.token)
					}
				}
			})
		})
	}
}

// An answer may have as many bytes as maxAnswer.
func TestAnswerIsBounded(t *testing.T) {
	s := newScripted()
	c, err := New(Config{Transport: s})
	if err != nil {
		t.Fatal(err)
	}
	for _, over := range []int64{0, 1, maxAnswer} {
		s.hook = func(call) *reply { return &reply{body: io.LimitReader(zeros{}, maxAnswer+over)} }
		req, err := http.NewRequest(http.MethodGet, "http://127.0.0.1:8500/v1/catalog/nodes", nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := (&guardedTransport{s, c}).RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		n, err := io.Copy(io.Discard, resp.Body)
		if (err != nil) != (over > 0) || n > maxAnswer {
			t.Errorf("%d bytes over: got %d, %v", over, n, err)
		}
		if err != nil && err.Error() != "the answer is larger than 64 MiB" {
			t.Errorf("got %q", err)
		}
		if m, again := resp.Body.Read(make([]byte, 10)); over > 0 && (m != 0 || again == nil) {
			t.Errorf("after the error: got %d bytes, %v", m, again)
		}
	}
}

// A prepared query can't block, and is asked again and again.
func TestPreparedQuery(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, addWeb, nil)
		j := r.watch(Query{PreparedQuery: "web"})
		synctest.Wait()
		r.pass(time.Hour)
		j.want(t, "fresh 1 2")
		times := r.asked("/v1/query/web/execute")
		var shortest, longest time.Duration = math.MaxInt64, 0
		for i := 1; i < len(times); i++ {
			d := times[i] - times[i-1]
			shortest, longest = min(shortest, d), max(longest, d)
		}
		if shortest < 8*time.Second || longest > 12*time.Second || shortest > 9*time.Second || longest < 11*time.Second {
			t.Errorf("polled every %v to %v, want every 8s to 12s, with jitter", shortest, longest)
		}
		for _, c := range r.s.since(0, "") {
			if c.index() != "" || c.query.Get("wait") != "" {
				t.Errorf("%v: a prepared query can't block", c)
			}
		}
		r.change(func(c *catalog) { c.status("web", 2, "critical") })
		r.pass(12 * time.Second)
		j.want(t, "fresh 1")
		r.change(func(*catalog) { r.s.hook = func(call) *reply { return answers(404, "Query not found") } })
		r.pass(12 * time.Second)
		j.want(t, "stale 1")
		r.change(func(*catalog) { r.s.hook = func(call) *reply { return answers(200, "null") } })
		r.pass(21 * time.Second)
		j.want(t, "stale 1")
		r.change(func(*catalog) { r.s.hook = nil })
		r.pass(21 * time.Second)
		j.want(t, "fresh 1")
	})
}

// Rule 18: a service that nobody has registered is known to have none.
func TestFirstLoad(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, addWeb, nil)
		r.s.orphan = true
		web, none := r.web(), r.watch(Query{Service: "none"})
		synctest.Wait()
		web.want(t, "stale 1 2") // what is there is believed
		web.wantFail(t, "the server knows no leader")
		none.want(t, "failing")
		none.wantFail(t, "the server knows no leader")
		r.change(func(*catalog) { r.s.orphan = false })
		r.pass(15 * time.Second)
		web.want(t, "fresh 1 2")
		none.want(t, "fresh")
		r.change(func(c *catalog) { c.add("none", 7) })
		none.want(t, "fresh 7")
	})
}

// A service name that needs escaping is asked for as it is.
func TestNames(t *testing.T) {
	bubble(t, func(t *testing.T) {
		name := `a b?c#d%2e&é`
		r := newRig(t, func(c *catalog) { c.add(name, 5) }, nil)
		j := r.watch(Query{Service: name})
		synctest.Wait()
		j.want(t, "fresh 5")
		if _, err := r.c.Service(Query{Service: "a/b"}, nil, nil); err == nil {
			t.Error("a name with a slash is accepted")
		}
	})
}

// A context that has ended ends a Watch before it asks or reports.
func TestCancelled(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, addWeb, nil)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		j, done := r.watchFor(ctx, Query{Service: "web"})
		<-done
		if len(j.all()) != 0 || r.s.count() != 0 {
			t.Errorf("got %d requests and reports:\n%s", r.s.count(), j)
		}
	})
}
