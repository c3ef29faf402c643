package consul

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/consul/api"
)

// C13 (hashicorp/consul#20790): the token was deleted under a blocking query,
// which then ended with 200 and an empty list instead of 403.
func TestC13EmptyLieOfADeletedToken(t *testing.T) {
	for name, edit := range map[string]func(http.Header){
		"with an index":      func(http.Header) {},
		"with an index of 1": func(h http.Header) { h.Set("X-Consul-Index", "1") },
		"without an index":   func(h http.Header) { h.Del("X-Consul-Index") },
		"from the cache":     func(h http.Header) { h.Set("X-Cache", "MISS"); h.Set("Age", "0") },
		"by the stream's view": func(h http.Header) {
			h.Set("X-Consul-Query-Backend", api.QueryBackendStreaming)
			h.Del("X-Consul-Knownleader")
		},
		"with the same index":   func(h http.Header) { h.Set("X-Consul-Index", "14") },
		"without saying at all": func(h http.Header) { clear(h) },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newRig(t, addWeb, nil)
				r.s.tokens = map[string]bool{secretToken: true}
				r.s.lie, r.s.lieHeader = true, edit
				web := r.web()
				web.want(t, "fresh 1 2")
				r.pass(after)
				r.change(func(*catalog) { delete(r.s.tokens, secretToken) })
				r.pass(time.Hour)
				web.want(t, "stale 1 2")
				web.wantFail(t, `the token is refused (403 "ACL not found")`)
				web.never(t, "an empty set", lists(0))
				r.change(func(*catalog) { r.s.tokens[secretToken] = true })
				r.pass(21 * time.Second)
				web.want(t, "fresh 1 2")
			})
		})
	}
}

// C14 (hashicorp/consul#11276, #3069, #12328): a token without node:read got an
// empty list, and nobody was told why.
func TestC14TokenWithoutNodeRead(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, addWeb, nil)
		r.s.tokens, r.s.nodeless = map[string]bool{secretToken: true}, map[string]bool{}
		web := r.web()
		web.want(t, "fresh 1 2")
		r.change(func(c *catalog) {
			r.s.nodeless[secretToken] = true
			c.status("web", 1, "passing")
		})
		later := r.watch(Query{Service: "web"})
		synctest.Wait()
		r.pass(time.Hour)
		web.want(t, "stale 1 2")
		web.wantFail(t, "service:read and node:read are needed")
		later.want(t, "failing")
		later.wantFail(t, "service:read and node:read are needed")
		if got := r.s.count(); got > 600 {
			t.Errorf("got %d requests in an hour", got)
		}
	})
}

// C15 (hashicorp/consul#7527, prometheus#7626, #6959): more than 200 watches
// from one address were closed, or refused with 429.
func TestC15ConnectionsAreFew(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, func(c *catalog) {
			for i := range 300 {
				c.add(fmt.Sprintf("s%d", i), i%200+1)
			}
		}, nil)
		r.s.limit = 64
		r.run(func(ctx context.Context) { r.c.Run(ctx) })
		r.run(func(ctx context.Context) { r.c.WatchListeners(ctx, func(l Listeners) { r.told(l.Err) }) })
		r.run(func(ctx context.Context) { r.c.Register(ctx, agentService) })
		var all []*journal
		for i := range 300 {
			all = append(all, r.watch(Query{Service: fmt.Sprintf("s%d", i)}))
		}
		r.pass(15 * time.Minute)
		for i, j := range all {
			j.want(t, fmt.Sprintf("fresh %d", i%200+1))
			j.never(t, "a failure", func(l line) bool { return l.err != nil })
		}
		if s := r.c.Stats(); s.Throttled != 0 || r.s.most() > 64 {
			t.Errorf("%d answers 429, %d requests at once", s.Throttled, r.s.most())
		}
	})
	t.Run("too many all the same", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			r := newRig(t, func(c *catalog) {
				for i := range 40 {
					c.add(fmt.Sprintf("s%d", i), i+1)
				}
			}, nil)
			r.s.limit = 20
			var all []*journal
			for i := range 40 {
				all = append(all, r.watch(Query{Service: fmt.Sprintf("s%d", i)}))
			}
			r.pass(10 * time.Minute)
			for i, j := range all {
				if got := j.now(); got != fmt.Sprintf("fresh %d", i+1) && got != fmt.Sprintf("stale %d", i+1) && got != "failing" {
					t.Errorf("s%d: got %q", i, got)
				}
			}
			if s := r.c.Stats(); s.Throttled == 0 || s.Requests > 40*60 {
				t.Errorf("got %+v, want answers 429, and at most 60 requests each", s)
			}
			r.change(func(*catalog) { r.s.limit = 0 })
			r.pass(21 * time.Second)
			for i, j := range all {
				j.want(t, fmt.Sprintf("fresh %d", i+1))
			}
		})
	})
}

// C16 (hashicorp/nomad#20185, #24354, #20159, #25898): tokens expired, or were
// deleted, which became an outage.
func TestC16TokenExpires(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r, file := tokenRig(t, "token-one")
		write(t, file, "token-one")
		web := r.web()
		for n := range 3 {
			before := r.s.count()
			r.change(func(c *catalog) { clear(r.s.tokens); c.status("web", 1, "passing") })
			r.pass(time.Hour)
			web.want(t, "stale 1 2")
			web.wantFail(t, "it may have expired")
			if got := r.s.count() - before; got > 280 {
				t.Errorf("got %d requests with a refused token in an hour", got)
			}
			fresh := fmt.Sprintf("token-%d", n)
			write(t, file, fresh)
			r.change(func(*catalog) { r.s.tokens[fresh] = true })
			r.pass(21 * time.Second)
			web.want(t, "fresh 1 2")
		}
		web.never(t, "an empty set", lists(0))
	})
}
