package consul

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

// step is one thing that happens to a Consul, and how long it lasts.
type step struct {
	What string
	N    int // which instance, from 3 on, or a number
	For  time.Duration
}

// happenings are what a step may be. None takes the instances 1 and 2 of web
// out of the catalog that the leader has.
var happenings = map[string]func(*rig, *catalog, int){
	"add":    func(_ *rig, c *catalog, n int) { c.add("web", n) },
	"remove": func(_ *rig, c *catalog, n int) { c.remove("web", n) },
	"critical": func(_ *rig, c *catalog, n int) {
		c.any(n, func(k instanceKey) { c.check(k.node, k.id, "x", "critical") })
	},
	"warning": func(_ *rig, c *catalog, n int) {
		c.any(n, func(k instanceKey) { c.check(k.node, k.id, "x", "warning") })
	},
	"passing": func(_ *rig, c *catalog, n int) {
		c.any(n, func(k instanceKey) { c.check(k.node, k.id, "x", "passing") })
	},
	"no check": func(_ *rig, c *catalog, n int) { c.any(n, func(k instanceKey) { c.check(k.node, k.id, "x", "") }) },
	"maintenance": func(_ *rig, c *catalog, n int) {
		c.any(n, func(k instanceKey) { c.nodeCheck(k.node, "_node_maintenance", "critical") })
	},
	"node passes": func(_ *rig, c *catalog, n int) {
		c.any(n, func(k instanceKey) { c.nodeCheck(k.node, "_node_maintenance", "") })
	},
	"weights": func(_ *rig, c *catalog, n int) {
		c.any(n, func(k instanceKey) {
			in := *c.instances[k]
			in.weights.Passing, in.weights.Warning = n, n/2
			c.register(k.node, k.id, in)
		})
	},
	"tags": func(_ *rig, c *catalog, n int) {
		c.any(n, func(k instanceKey) {
			in := *c.instances[k]
			in.tags, in.port = []string{fmt.Sprint(n)}, 80+n%2
			c.register(k.node, k.id, in)
		})
	},
	"other service": func(_ *rig, c *catalog, n int) { c.add("other", n) },
	"others go":     func(_ *rig, c *catalog, n int) { c.remove("other", n) },

	"well": func(r *rig, _ *catalog, _ int) {
		r.s.hook, r.s.follower = nil, nil
		r.s.down, r.s.orphan, r.s.lie, r.s.contact = false, false, false, 0
		r.s.tokens = map[string]bool{secretToken: true}
	},
	"down":   func(r *rig, _ *catalog, _ int) { r.s.down = true },
	"token":  func(r *rig, _ *catalog, n int) { r.s.tokens, r.s.lie = map[string]bool{}, n%2 == 0 },
	"status": func(r *rig, _ *catalog, n int) { r.fault(n, func() *reply { return answers(500+n, "no") }) },
	"hang":   func(r *rig, _ *catalog, n int) { r.fault(n, func() *reply { return &reply{hang: true} }) },
	"eof":    func(r *rig, _ *catalog, n int) { r.fault(n, func() *reply { return &reply{err: io.EOF} }) },
	"cut":    func(r *rig, _ *catalog, n int) { r.fault(n, func() *reply { return cut(`[{"Node":{"Node":`) }) },
	"page":   func(r *rig, _ *catalog, n int) { r.fault(n, func() *reply { return answers(200, "<html>") }) },
	"limit":  func(r *rig, _ *catalog, n int) { r.s.limit = n },
	"index": func(r *rig, _ *catalog, n int) {
		r.s.hook = func(c call) *reply {
			ask, bad := r.s.route(c)
			if bad != nil {
				return nil
			}
			real, _ := r.s.look(c, ask, false)
			if real.header != nil {
				real.header.Set("X-Consul-Index", []string{"", "0", "1", "7", "many", "99999", "18446744073709551615"}[n%7])
			}
			return real
		}
	},
	"no leader": func(r *rig, c *catalog, n int) { r.s.orphan = true; r.lag(c, n) },
	"behind":    func(r *rig, c *catalog, n int) { r.s.contact = time.Hour; r.lag(c, n) },
	"lies": func(r *rig, c *catalog, _ int) {
		r.strayFrom(c)
		for _, k := range c.keys("web") {
			r.s.follower.deregister(k.node, k.id)
		}
	},
	"restore": func(r *rig, c *catalog, n int) { c.restore(r.past[n%len(r.past)]) },
}

// any calls f with an instance of web.
func (c *catalog) any(n int, f func(instanceKey)) {
	if keys := c.keys("web"); len(keys) > 0 {
		f(keys[n%len(keys)])
	}
}

// fault answers a part of the requests, chosen by n.
func (r *rig) fault(n int, f func() *reply) {
	r.s.hook = func(c call) *reply {
		if n%3 == 0 || strings.HasPrefix(c.path, "/v1/health/service") == (n%3 == 1) {
			return f()
		}
		return nil
	}
}

// strayFrom gives the servers that answer stale reads a catalog of their own. The
// leader's index leaps, as by writes of another kind, so that what is written
// from now on never has an index at which the follower has something else: one
// history has no two writes of one index.
func (r *rig) strayFrom(c *catalog) {
	r.s.follower = c.clone()
	c.index += 100
}

// lag lets servers answer that have lost some instances, or all.
func (r *rig) lag(c *catalog, n int) {
	r.strayFrom(c)
	for i, k := range c.keys("web") {
		if i%(n%3+1) == 0 {
			r.s.follower.deregister(k.node, k.id)
		}
	}
}

// truth is what c says of web, worked out another way than by the source.
func truth(c *catalog) string {
	var words []string
	for _, k := range c.keys("web") {
		in, n := c.instances[k], c.nodes[k.node]
		var statuses []string
		for id, s := range n.checks {
			if id == "_node_maintenance" {
				s = "maintenance"
			}
			statuses = append(statuses, s)
		}
		for _, s := range in.checks {
			statuses = append(statuses, s)
		}
		has := func(s string) bool { return slices.Contains(statuses, s) }
		w, weight := strings.TrimPrefix(in.address, "192.0.2."), in.weights.Passing
		if in.port != 80 {
			w += fmt.Sprintf(":%d", in.port)
		}
		switch {
		case has("maintenance"):
			w += "~"
		case has("critical"):
			w += "-"
		case has("warning"):
			weight = in.weights.Warning
		}
		if weight != 1 {
			w += fmt.Sprintf("*%d", weight)
		}
		words = append(words, w)
	}
	return strings.Join(words, " ")
}

// Whatever happens, once Consul is well again each source knows what is true,
// and never before has it lost what was always there.
func TestPropertyConverges(t *testing.T) {
	steps := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) step {
		return step{
			What: rapid.SampledFrom(slices.Sorted(maps.Keys(happenings))).Draw(t, "what"),
			N:    rapid.IntRange(3, 8).Draw(t, "n"),
			For:  rapid.SampledFrom([]time.Duration{0, time.Millisecond, time.Second, 7 * time.Second, 40 * time.Second, 100 * time.Second}).Draw(t, "for"),
		}
	}), 1, 12)
	rapid.Check(t, func(rt *rapid.T) {
		limit := rapid.SampledFrom([]int{2, 48}).Draw(rt, "max_watches") // of three
		story := steps.Draw(rt, "steps")
		wrong := ""
		synctest.Test(t, func(t *testing.T) { wrong = play(t, limit, story) })
		if wrong != "" {
			rt.Fatal(wrong)
		}
	})
}

// play plays a story, and returns what was wrong in the end.
func play(t *testing.T, limit int, story []step) string {
	r := newRig(t, func(c *catalog) { c.add("web", 1, 2); c.add("other", 3) }, func(c *Config) { c.MaxWatches = limit })
	r.s.tokens = map[string]bool{secretToken: true}
	r.past = append(r.past, r.s.cat.clone())
	r.run(func(ctx context.Context) { r.c.Run(ctx) })
	all := []*journal{r.watch(Query{Service: "web"}), r.watch(Query{Service: "web", Consistency: Default}), r.watch(Query{Service: "web", Cached: true})}
	r.pass(time.Second)
	for _, s := range story {
		r.change(func(c *catalog) {
			happenings[s.What](r, c, s.N)
			r.past = append(r.past, c.clone())
		})
		r.pass(s.For)
	}
	r.change(func(c *catalog) {
		r.s.limit = 0
		happenings["well"](r, c, 0)
	})
	// The longest wait for an answer, then for the next try, and for its turn.
	r.pass(time.Minute + time.Minute/16 + lookupTimeout + 21*time.Second + 2*15*time.Second)
	want := truth(r.s.cat)
	for i, j := range all {
		if got := j.now(); got != "fresh "+want {
			return fmt.Sprintf("source %d: got %q, want %q; reports:\n%s", i, got, "fresh "+want, j)
		}
		for _, l := range j.all() {
			text := " " + strings.NewReplacer("*", " ", "-", " ", "~", " ", ":", " ").Replace(brief(l.set)) + " "
			if l.err == nil && (!strings.Contains(text, " 1 ") || !strings.Contains(text, " 2 ")) {
				return fmt.Sprintf("source %d: reported %v; reports:\n%s", i, l, j)
			}
		}
	}
	return ""
}
