package consul

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// told is what WatchListeners has reported.
type told struct {
	mu   sync.Mutex
	list []Listeners
}

func (d *told) add(l Listeners) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.list = append(d.list, l)
}

func (d *told) last() (l Listeners, n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if n = len(d.list); n > 0 {
		l = d.list[n-1]
	}
	return l, n
}

// want checks the last report: the listeners as "service address", and whether
// there is an error with this text.
func (d *told) want(t *testing.T, fail string, listeners ...string) {
	t.Helper()
	l, _ := d.last()
	var got []string
	for _, x := range l.Listeners {
		got = append(got, x.Service+" "+x.Address.String())
	}
	if !slices.Equal(got, listeners) {
		t.Errorf("got the listeners %q, want %q; refused: %q, error: %v", got, listeners, l.Refused, l.Err)
	}
	if (l.Err != nil) != (fail != "") || l.Err != nil && !strings.Contains(l.Err.Error(), fail) {
		t.Errorf("got the error %v, want %q", l.Err, fail)
	}
}

func (d *told) refused(t *testing.T, want ...string) {
	t.Helper()
	l, _ := d.last()
	var got []string
	for _, x := range l.Refused {
		got = append(got, fmt.Sprint(x.Service, " ", x.Value, " ", x.Reason))
	}
	if !slices.Equal(got, want) {
		t.Errorf("got refused\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func (r *rig) listen() *told {
	d := &told{}
	r.run(func(ctx context.Context) {
		if err := r.c.WatchListeners(ctx, func(l Listeners) { d.add(l); r.told(l.Err) }); err != ctx.Err() {
			r.t.Errorf("WatchListeners returned %v", err)
		}
	})
	synctest.Wait()
	return d
}

// tag gives the nth instance of a service tags that ask for listeners.
func (c *catalog) tag(service string, n int, values ...string) {
	if node, id := place(service, n); c.instances[instanceKey{node, id}] == nil {
		c.add(service, n)
	}
	c.change(service, n, func(in *modelInstance) {
		in.tags = []string{"other"}
		for _, v := range values {
			in.tags = append(in.tags, listenTag+v)
		}
	})
}

// describe gives the nth instance metadata that asks for a listener.
func (c *catalog) describe(service string, n int, value string) {
	if node, id := place(service, n); c.instances[instanceKey{node, id}] == nil {
		c.add(service, n)
	}
	c.change(service, n, func(in *modelInstance) { in.meta = map[string]string{listenKey: value} })
}

// Tags and metadata, of several instances, both, and their changes.
func TestListeners(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, func(c *catalog) {
			addWeb(c)
			c.tag("api", 3, "127.0.0.1:8080", ":8081")
			c.tag("api", 4, "127.0.0.1:8080")
			c.describe("db", 5, "[::1]:5432")
			c.add("db", 6)
		}, nil)
		d := r.listen()
		d.want(t, "", "api 127.0.0.1:8080", "api 127.0.0.1:8081", "db [::1]:5432")
		d.refused(t)
		for _, step := range []struct {
			edit func(*catalog)
			want []string
		}{
			{func(c *catalog) { c.tag("web", 1, " 127.8.9.1:80 ") }, []string{"api 127.0.0.1:8080", "api 127.0.0.1:8081", "db [::1]:5432", "web 127.8.9.1:80"}},
			{func(c *catalog) { c.describe("web", 2, "127.8.9.1:80") }, []string{"api 127.0.0.1:8080", "api 127.0.0.1:8081", "db [::1]:5432", "web 127.8.9.1:80"}},
			{func(c *catalog) { c.tag("web", 1) }, []string{"api 127.0.0.1:8080", "api 127.0.0.1:8081", "db [::1]:5432", "web 127.8.9.1:80"}},
			{func(c *catalog) { c.describe("web", 2, "127.8.9.1:81") }, []string{"api 127.0.0.1:8080", "api 127.0.0.1:8081", "db [::1]:5432", "web 127.8.9.1:81"}},
			{func(c *catalog) { c.remove("api", 3) }, []string{"api 127.0.0.1:8080", "db [::1]:5432", "web 127.8.9.1:81"}},
			{func(c *catalog) { c.remove("api", 4); c.remove("web", 2); c.remove("db", 5) }, nil},
			{func(c *catalog) { c.tag("api", 3, ":1") }, []string{"api 127.0.0.1:1"}},
		} {
			r.pass(time.Minute)
			r.change(step.edit)
			d.want(t, "", step.want...)
		}
		_, n := d.last()
		r.change(func(c *catalog) { c.change("web", 1, func(in *modelInstance) { in.port++ }) })
		r.pass(time.Hour)
		if _, m := d.last(); m != n {
			t.Errorf("%d reports without news", m-n)
		}
		if l, _ := d.last(); !l.Known {
			t.Error("not known")
		}
	})
}

// What is not valid costs no other its place, and is told with its reason.
func TestListenersInvalid(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, func(c *catalog) {
			c.tag("a", 1, "", "8080", "127.0.0.1", "127.0.0.1:0", "127.0.0.1:65536", "127.0.0.1:80x", "localhost:80", "unix:///run/x.sock", "/run/x.sock")
			c.tag("b", 1, "0.0.0.0:80", "10.0.0.1:80", "[::]:80", "[::ffff:127.0.0.1]:90", "[fe80::1%lo]:80")
			c.tag("c/d", 1, "127.0.0.1:81")
			c.describe("e/f", 1, "127.0.0.1:82")
			c.tag("g\x1b[2J", 1, "127.0.0.1:83")
			c.tag("h", 1, strings.Repeat("9", 100000)+"\x1b\n")
			c.tag("ok", 1, "127.0.0.1:84")
		}, nil)
		d := r.listen()
		d.want(t, "", "b 127.0.0.1:90", "ok 127.0.0.1:84")
		l, _ := d.last()
		if len(l.Refused) != 9+4+1+1+1+1 {
			t.Errorf("%d are refused: %q", len(l.Refused), l.Refused)
		}
		for _, x := range l.Refused {
			text := x.Service + x.Value + x.Reason
			if len(text) > 600 || strings.ContainsAny(text, "\x1b\n") || x.Reason == "" {
				t.Errorf("got %d bytes %.700q", len(text), text)
			}
		}
	})
}

// Who has an address keeps it, whatever its name; who waits gets it when it is
// free.
func TestListenersConflict(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, func(c *catalog) { c.tag("m", 1, "127.0.0.1:80") }, nil)
		d := r.listen()
		d.want(t, "", "m 127.0.0.1:80")
		r.change(func(c *catalog) { c.tag("a", 1, "127.0.0.1:80"); c.tag("z", 1, ":80", "127.0.0.1:81") })
		r.pass(time.Second)
		d.want(t, "", "m 127.0.0.1:80", "z 127.0.0.1:81")
		d.refused(t, `"a" "127.0.0.1:80" service "m" has this address`, `"z" ":80" service "m" has this address`)
		r.pass(time.Minute)
		r.change(func(c *catalog) { c.remove("m", 1) })
		d.want(t, "", "a 127.0.0.1:80", "z 127.0.0.1:81")
		d.refused(t, `"z" ":80" service "a" has this address`)
	})
}

// The catalog may ask for so many listeners; those that are there are not
// driven out by others.
func TestListenersAreBounded(t *testing.T) {
	bubble(t, func(t *testing.T) {
		ask := func(c *catalog, service string, from, n int) {
			var values []string
			for i := range n {
				values = append(values, fmt.Sprintf("127.0.%d.%d:80", (from+i)/250, (from+i)%250+1))
			}
			c.tag(service, 1, values...)
		}
		r := newRig(t, func(c *catalog) { ask(c, "m", 0, 600); ask(c, "n", 600, 300) }, nil)
		d := r.listen()
		l, _ := d.last()
		if len(l.Listeners) != 900 || len(l.Refused) != 0 {
			t.Fatalf("got %d listeners, %d refused", len(l.Listeners), len(l.Refused))
		}
		r.change(func(c *catalog) { ask(c, "a", 1000, 3000) })
		r.pass(time.Second)
		l, _ = d.last()
		if len(l.Listeners) != maxListeners || len(l.Refused) > maxListeners {
			t.Errorf("got %d listeners, %d refused, want %d of each at most", len(l.Listeners), len(l.Refused), maxListeners)
		}
		has := map[string]int{}
		for _, x := range l.Listeners {
			has[x.Service]++
		}
		if has["m"] != 600 || has["n"] != 300 || has["a"] != 100 {
			t.Errorf("got %v, want those of before, and what fits", has)
		}
	})
}

// A loss of most is confirmed by the leader; without it what was known stays.
func TestListenersWipeGuard(t *testing.T) {
	all := []string{"a 127.0.0.1:1", "b 127.0.0.1:2", "c 127.0.0.1:3"}
	fill := func(c *catalog) { c.tag("a", 1, ":1"); c.tag("b", 2, ":2"); c.describe("c", 3, ":3") }
	bubble(t, func(t *testing.T) {
		r := newRig(t, fill, nil)
		d := r.listen()
		d.want(t, "", all...)
		// One of three goes at once.
		r.leader(func(call) *reply { return answers(500, "No cluster leader") })
		r.change(func(c *catalog) { c.remove("b", 2) })
		r.pass(time.Second)
		d.want(t, "", all[0], all[2])
		// All go, which only the leader may say.
		r.pass(time.Minute)
		r.change(func(c *catalog) { c.remove("a", 1); c.remove("c", 3) })
		r.pass(time.Hour)
		d.want(t, "No cluster leader", all[0], all[2])
		r.set(func(s *scripted) { s.hook = nil })
		r.pass(22 * time.Second)
		d.want(t, "")
		if l, _ := d.last(); !l.Known {
			t.Error("not known")
		}
	})
	t.Run("denied", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			r := newRig(t, fill, nil)
			d := r.listen()
			r.follow(func(c *catalog) { c.remove("a", 1); c.remove("b", 2); c.remove("c", 3) })
			r.pass(time.Minute)
			d.want(t, "", all...)
		})
	})
	for name, set := range map[string]func(*scripted){
		"no leader": func(s *scripted) { s.orphan = true },
		"behind":    func(s *scripted) { s.contact = time.Minute },
	} {
		t.Run(name, func(t *testing.T) {
			for _, gone := range []string{"a", "c"} { // by tag, by metadata
				bubble(t, func(t *testing.T) {
					r := newRig(t, fill, nil)
					d := r.listen()
					r.change(func(c *catalog) {
						set(r.s)
						r.s.follower = c.clone()
						r.s.follower.remove(gone, map[string]int{"a": 1, "c": 3}[gone])
					})
					r.pass(10 * time.Minute)
					d.want(t, "1 listeners that it does not list are kept", all...)
					r.change(func(*catalog) { r.s.follower, r.s.orphan, r.s.contact = nil, false, 0 })
					r.pass(22 * time.Second)
					d.want(t, "", all...)
				})
			}
		})
	}
}

// What a token may not read is not gone.
func TestListenersFiltered(t *testing.T) {
	for _, path := range []string{"/v1/", "/v1/catalog/services", "/v1/catalog/service/c", "/v1/catalog/service/d"} {
		t.Run(path, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newRig(t, func(c *catalog) {
					c.tag("a", 1, ":1")
					c.tag("b", 2, ":2")
					c.describe("c", 3, ":3")
					c.describe("d", 4, ":4")
				}, nil)
				all := []string{"a 127.0.0.1:1", "b 127.0.0.1:2", "c 127.0.0.1:3", "d 127.0.0.1:4"}
				d := r.listen()
				d.want(t, "", all...)
				r.change(func(c *catalog) {
					r.s.hook = func(got call) *reply {
						if !strings.HasPrefix(got.path, path) {
							return nil
						}
						h := headers(r.s.cat.servicesIndex)
						h.Set("X-Consul-Results-Filtered-By-Acls", "true")
						if got.path == "/v1/catalog/services" {
							return &reply{header: h, body: strings.NewReader("{}")}
						}
						return &reply{header: h, body: strings.NewReader("[]")}
					}
					c.add("e", 5)
				})
				r.pass(time.Hour)
				d.want(t, "node:read", all...)
				r.change(func(*catalog) { r.s.hook = nil })
				r.pass(22 * time.Second)
				d.want(t, "", all...)
			})
		})
	}
}

// A Consul that knows no filter for services refuses it; tags are read all the
// same.
func TestListenersOfAnOldConsul(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, func(c *catalog) { c.tag("a", 1, ":1"); c.describe("c", 3, ":3") }, nil)
		r.s.noFilter = true
		d := r.listen()
		d.want(t, "", "a 127.0.0.1:1")
		r.change(func(c *catalog) { c.tag("b", 1, ":2") })
		d.want(t, "", "a 127.0.0.1:1", "b 127.0.0.1:2")
		r.pass(time.Hour)
		if got := r.logs.count("gatehouse-listen"); got != 1 {
			t.Errorf("told %d times, want once:\n%s", got, r.logs)
		}
		// Once it can, metadata is read; then a refusal is a failure.
		r.change(func(c *catalog) { r.s.noFilter = false; c.tag("b", 1, ":4") })
		d.want(t, "", "a 127.0.0.1:1", "b 127.0.0.1:4", "c 127.0.0.1:3")
		r.pass(time.Minute)
		r.change(func(c *catalog) { r.s.noFilter = true; c.tag("b", 1, ":5") })
		r.pass(time.Hour)
		d.want(t, "400", "a 127.0.0.1:1", "b 127.0.0.1:4", "c 127.0.0.1:3")
	})
}

// Every fault keeps what is known, is told once, and heals.
func TestListenersFaults(t *testing.T) {
	for name, fault := range map[string]func() *reply{
		"refused": func() *reply { return &reply{err: refusedConnection} }, "hangs": func() *reply { return &reply{hang: true} },
		"status": func() *reply { return answers(500, "no") }, "token": func() *reply { return answers(403, "ACL not found") },
		"cut": func() *reply { return cut(`{"a":["x`) }, "nonsense": func() *reply { return answers(200, `["a"]`) },
	} {
		for _, path := range []string{"/v1/", "/v1/catalog/service/c"} {
			t.Run(name+path, func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					r := newRig(t, func(c *catalog) { c.tag("a", 1, ":1"); c.describe("c", 3, ":3") }, nil)
					d := r.listen()
					r.change(func(c *catalog) {
						r.s.hook = func(got call) *reply {
							if strings.HasPrefix(got.path, path) {
								return fault()
							}
							return nil
						}
						c.tag("b", 2, ":2")
					})
					before := r.s.count()
					r.pass(10 * time.Minute)
					l, n := d.last()
					if l.Err == nil || !l.Known || len(l.Listeners) < 2 || n > 4 {
						t.Errorf("got %d reports, the last one %v", n, l)
					}
					for _, c := range r.s.since(before, "/v1/catalog/services") {
						if c.index() != "" {
							t.Errorf("after a failure: %v waits", c)
							break
						}
					}
					if got := r.s.count() - before; got > 180 {
						t.Errorf("%d requests in ten minutes", got)
					}
					r.change(func(*catalog) { r.s.hook = nil })
					r.pass(31 * time.Second)
					d.want(t, "", "a 127.0.0.1:1", "b 127.0.0.1:2", "c 127.0.0.1:3")
				})
			})
		}
	}
	t.Run("from the start", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			r := newRig(t, func(c *catalog) { c.tag("a", 1, ":1") }, nil)
			r.s.down = true
			d := r.listen()
			d.want(t, "connection refused")
			if l, n := d.last(); l.Known || n != 1 {
				t.Errorf("got %d reports, known %v", n, l.Known)
			}
			r.change(func(*catalog) { r.s.down = false })
			r.pass(2 * time.Second)
			d.want(t, "", "a 127.0.0.1:1")
		})
	})
}
