package consul

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"
	"go.uber.org/goleak"

	"gatehouse.internal/discovery"
	"gatehouse.internal/discovery/discoverytest"
	"gatehouse.internal/lbcore"
)

// list makes the catalog list eps as the instances of web, in this order.
func (c *catalog) list(eps []lbcore.Endpoint) {
	for _, k := range c.keys("web") {
		c.deregister(k.node, k.id)
	}
	for i, e := range eps {
		c.register("node", fmt.Sprintf("web-%03d", i), modelInstance{
			service: "web", address: e.Addr.AddrPort().Addr().String(), port: int(e.Addr.AddrPort().Port()),
			weights: api.AgentWeights{Passing: int(e.Weight), Warning: 1},
		})
	}
}

// socket serves s on a real socket, and returns a client of it.
func socket(t *testing.T, s *scripted, cfg Config) *Client {
	t.Helper()
	server := httptest.NewServer(s)
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	cfg.Address = server.URL
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// ofHTTP are goroutines of connections, which outlive a Watch: other sources
// use them.
var ofHTTP = []goleak.Option{
	goleak.IgnoreAnyFunction("net/http.(*persistConn).readLoop"),
	goleak.IgnoreAnyFunction("net/http.(*persistConn).writeLoop"),
	goleak.IgnoreAnyFunction("net/http.(*conn).serve"),
	goleak.IgnoreAnyFunction("net/http.(*connReader).backgroundRead"),
}

// The suite of all sources, by a socket, with a query of its own and with
// shared ones.
func TestConformance(t *testing.T) {
	for name, others := range map[string]int{"own query": 0, "shared queries": 1} {
		t.Run(name, func(t *testing.T) {
			discoverytest.Run(t, discoverytest.Harness{
				// Run's queries begin when a source is there.
				Ignore: append(ofHTTP, goleak.IgnoreAnyFunction("gatehouse.internal/discovery/consul.(*follower).run")),
				New: func(t *testing.T) (discovery.Source, discoverytest.World) {
					s := newScripted()
					s.cat.list(discoverytest.First())
					c := socket(t, s, Config{MaxWatches: 1})
					ctx, cancel := context.WithCancel(context.Background())
					var wg sync.WaitGroup
					wg.Go(func() { c.Run(ctx) })
					for range others {
						other, err := c.Service(Query{Service: "other"}, nil, nil)
						if err != nil {
							t.Fatal(err)
						}
						wg.Go(func() { other.Watch(ctx, discovery.NewLatest()) })
					}
					t.Cleanup(func() {
						cancel()
						wg.Wait()
					})
					src, err := c.Service(Query{Service: "web"}, nil, nil)
					if err != nil {
						t.Fatal(err)
					}
					return src, discoverytest.World{
						Set:   func(eps []lbcore.Endpoint) { s.change(func(c *catalog) { c.list(eps) }) },
						Break: func() { s.change(func(*catalog) { s.down = true }) },
						Heal:  func() { s.change(func(*catalog) { s.down = false }) },
					}
				},
			})
		})
	}
}

// Many sources that come and go by real sockets: in the end all that are left
// know, and no connection is left behind.
func TestManySources(t *testing.T) {
	s := newScripted()
	for i := range 60 {
		s.cat.add(fmt.Sprintf("s%d", i), 1)
	}
	c := socket(t, s, Config{MaxWatches: 40})
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { c.Run(ctx) })
	var recs []*discoverytest.Recorder
	for i := range 60 {
		src, err := c.Service(Query{Service: fmt.Sprintf("s%d", i)}, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		rec := &discoverytest.Recorder{}
		recs = append(recs, rec)
		wg.Go(func() {
			for n := range 20 { // in and out, at moments that nobody planned
				short, end := context.WithTimeout(ctx, time.Duration(1+(i*7+n*13)%20)*time.Millisecond)
				src.Watch(short, discovery.NewLatest())
				end()
			}
			src.Watch(ctx, rec)
		})
	}
	for i, rec := range recs {
		rec.WaitSet(t, 0, endpoint(1).Addr)
		s.change(func(cat *catalog) { cat.add(fmt.Sprintf("s%d", i), 2) })
	}
	for _, rec := range recs {
		rec.WaitSet(t, 0, endpoint(1).Addr, endpoint(2).Addr)
	}
	if got := c.Stats(); got.Watches != 60 || !got.SharedQueries || got.Connections > 64 {
		t.Errorf("got %+v, want 60 watches, shared queries, and at most 64 connections", got)
	}
	if got := s.most(); got > 64 {
		t.Errorf("%d requests at once", got)
	}
	cancel()
	wg.Wait()
	if got := c.Stats(); got.Watches != 0 || got.Connections > maxLookups {
		t.Errorf("in the end: got %+v, want no watches, and at most %d idle connections", got, maxLookups)
	}
}

// The agent's API may be a unix socket.
func TestUnixSocket(t *testing.T) {
	s := newScripted()
	addWeb(s.cat)
	path := filepath.Join(t.TempDir(), "consul.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: s}
	var wg sync.WaitGroup
	wg.Go(func() { server.Serve(l) })
	t.Cleanup(func() {
		server.Close()
		wg.Wait()
	})
	c, err := New(Config{Address: "unix://" + path})
	if err != nil {
		t.Fatal(err)
	}
	src, err := c.Service(Query{Service: "web"}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	rec := &discoverytest.Recorder{}
	wg.Go(func() { src.Watch(ctx, rec) })
	rec.WaitSet(t, 0, endpoint(1).Addr, endpoint(2).Addr)
	cancel()
}

// A redirect is not followed, so that nobody else gets the token.
func TestRedirectKeepsTheToken(t *testing.T) {
	thief := newScripted()
	elsewhere := httptest.NewServer(thief)
	t.Cleanup(elsewhere.Close)
	s := newScripted()
	s.hook = func(c call) *reply {
		r := answers(http.StatusTemporaryRedirect, "")
		r.header = http.Header{"Location": {elsewhere.URL + c.path}}
		return r
	}
	c := socket(t, s, Config{Token: secretToken})
	src, err := c.Service(Query{Service: "web"}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	rec := &discoverytest.Recorder{}
	wg.Go(func() { src.Watch(ctx, rec) })
	at := rec.WaitFail(t, 0, "which is not followed: correct the address")
	rec.WaitFail(t, at+1, "which is not followed: correct the address")
	cancel()
	wg.Wait()
	if got := thief.count(); got != 0 {
		t.Errorf("%d requests went elsewhere: %v", got, thief.since(0, ""))
	}
}

// An answer that is cut, wherever it is, is a failure, and never another set.
func TestCutAnswers(t *testing.T) {
	s := newScripted()
	addWeb(s.cat)
	c := socket(t, s, Config{})
	var whole string
	s.hook = func(got call) *reply {
		r, _ := s.look(got, func(c *catalog) view { return c.health("web") }, false)
		return r
	}
	ask := func() (answer, error) {
		w := &watch{blocking: blocking{c: c}, q: Query{Service: "web"}}
		a, _, err := w.get(t.Context(), false)
		return a, err
	}
	if a, err := ask(); err != nil || len(a.entries) != 2 {
		t.Fatalf("got %v, %v", a, err)
	}
	whole = s.text(t, s.cat.health("web").value)
	for n := 0; n < len(whole); n += 7 {
		s.mu.Lock()
		s.hook = func(call) *reply { return cut(whole[:n]) }
		s.mu.Unlock()
		if a, err := ask(); err == nil {
			t.Fatalf("cut after %d of %d bytes: got %d entries and no error", n, len(whole), len(a.entries))
		}
	}
}
