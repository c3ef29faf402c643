package node

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"gatehouse.internal/cmd/agent/internal/config"
	"gatehouse.internal/discovery"
	"gatehouse.internal/lbcore"
)

// ports stands in for the kernel: each address can be open once, and some are
// somebody else's.
type ports struct {
	mu    sync.Mutex
	taken map[string]bool
	tries []time.Time // that failed
}

func (p *ports) open(_ string, a lbcore.Addr) (net.Listener, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.taken[a.String()] {
		p.tries = append(p.tries, time.Now())
		return nil, syscall.EADDRINUSE
	}
	p.taken[a.String()] = true
	return &port{p, a, make(chan struct{}), sync.Once{}}, nil
}

func (p *ports) set(addr string, taken bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken[addr] = taken
}

// port is a socket to which nobody connects.
type port struct {
	p      *ports
	a      lbcore.Addr
	closed chan struct{}
	once   sync.Once
}

func (l *port) Accept() (net.Conn, error) {
	<-l.closed
	return nil, net.ErrClosed
}

func (l *port) Close() error {
	l.once.Do(func() {
		l.p.set(l.a.String(), false)
		close(l.closed)
	})
	return nil
}

func (l *port) Addr() net.Addr { return net.TCPAddrFromAddrPort(l.a.AddrPort()) }

// optional returns a listener of the catalog.
func optional(name, addr string) config.Listener {
	return config.DefaultListener(name, config.OriginConsul, lbcore.IPAddr(netip.MustParseAddrPort(addr)), "a")
}

// shown returns the listeners as "name", or "name: why" if it is not open.
func (r *rig) shown() (lines []string) {
	for _, l := range r.Status().Listeners {
		switch {
		case l.Draining:
		case l.Unsupported != "":
			lines = append(lines, l.Name+": "+l.Unsupported)
		default:
			lines = append(lines, l.Name)
		}
	}
	return lines
}

func TestOptionalListeners(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := ports{taken: map[string]bool{"127.0.0.1:1": true}}
		var log bytes.Buffer
		r := start(t, func(c *Config) { c.Socket, c.Logger = p.open, slog.New(slog.NewTextHandler(&log, nil)) })
		began := time.Now()
		file := listenerOf("file", "a")
		file.Address = endpoint("127.0.0.1:2").Addr
		spec := Spec{
			Clusters:             []config.Cluster{clusterOf("a", static())},
			Listeners:            []config.Listener{file},
			Optional:             []config.Listener{optional("admin", "127.0.0.1:1"), optional("taken", "127.0.0.1:2"), optional("free", "127.0.0.1:3")},
			UnsupportedListeners: []Unsupported{{Name: "odd", Reason: "not loopback"}},
		}
		r.apply(spec)
		busy := func(name, addr string) string {
			return fmt.Sprintf(`%s: listener %q: listen on %s: address already in use`, name, name, addr)
		}
		want := []string{busy("admin", "127.0.0.1:1"), "file", "free", "odd: not loopback", busy("taken", "127.0.0.1:2") + ` by listener "file"`}
		if got := r.shown(); !slices.Equal(got, want) {
			t.Errorf("listeners are %q, want %q", got, want)
		}
		for _, l := range r.Status().Listeners {
			if l.Name == "admin" && (l.Origin != "consul" || l.Cluster != "a" || l.Address.String() != "127.0.0.1:1") {
				t.Errorf("the absent one is %+v", l)
			}
		}

		pass(5*time.Minute - time.Second)
		var waits []string
		for _, at := range p.tries {
			waits = append(waits, at.Sub(began).String())
		}
		if got, want := slices.Compact(waits), strings.Fields("0s 5s 15s 35s 1m15s 2m15s 3m15s 4m15s"); !slices.Equal(got, want) {
			t.Errorf("tried after %s, want %s", got, want)
		}
		if n := strings.Count(log.String(), "left out"); n != 2 {
			t.Errorf("%d lines say so, want 2:\n%s", n, &log)
		}
		p.set("127.0.0.1:1", false)
		pass(time.Minute)
		if got := r.listener("admin"); got.Unsupported != "" {
			t.Errorf("it is not open although it could: %+v", got)
		}

		// What is not wanted any more is not tried any more.
		spec.Optional, spec.UnsupportedListeners = spec.Optional[2:], nil
		r.apply(spec)
		before := len(p.tries)
		pass(time.Hour)
		if got, want := r.shown(), []string{"file", "free"}; !slices.Equal(got, want) || len(p.tries) != before {
			t.Errorf("listeners are %q, want %q; %d tries more", got, want, len(p.tries)-before)
		}
	})
}

// An address passes from one optional listener to another in one Apply, and is
// not taken from one that stays.
func TestOptionalListenersChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := ports{taken: map[string]bool{}}
		r := start(t, func(c *Config) { c.Socket = p.open })
		apply := func(want string, listeners ...config.Listener) {
			t.Helper()
			r.apply(Spec{Optional: listeners})
			synctest.Wait()
			if got := strings.Join(r.shown(), ", "); got != want {
				t.Errorf("listeners are %q, want %q", got, want)
			}
		}
		apply("b", optional("b", "127.0.0.1:1"))
		apply("c", optional("c", "127.0.0.1:1"))
		apply("c, d", optional("d", "127.0.0.1:2"), optional("c", "127.0.0.1:1"))
		apply("c, d", optional("d", "127.0.0.1:3"), optional("c", "127.0.0.1:2")) // both move
		if a := r.listener("c").Address.String(); a != "127.0.0.1:2" {
			t.Errorf("it is at %s", a)
		}
		apply(`a: listener "a": listen on 127.0.0.1:2: address already in use by listener "c", c, d`,
			optional("a", "127.0.0.1:2"), optional("c", "127.0.0.1:2"), optional("d", "127.0.0.1:3"))
		apply("a, d", optional("a", "127.0.0.1:2"), optional("d", "127.0.0.1:3"))
		apply("")
	})
}

// While it drains nothing is opened.
func TestOptionalListenersDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := ports{taken: map[string]bool{"127.0.0.1:1": true}}
		r := start(t, func(c *Config) { c.Socket = p.open })
		r.apply(Spec{Optional: []config.Listener{optional("a", "127.0.0.1:1")}})
		r.Drain(t.Context())
		p.set("127.0.0.1:1", false)
		pass(time.Hour)
		if p.taken["127.0.0.1:1"] {
			t.Error("a listener was opened after Drain")
		}
	})
}

// While no listener may be opened none is tried; afterwards it is, without another Apply.
func TestOptionalListenersHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := ports{taken: map[string]bool{"127.0.0.1:1": true}}
		var held atomic.Bool
		r := start(t, func(c *Config) {
			c.Socket = p.open
			c.Change = func(f func()) bool {
				if held.Load() {
					return false
				}
				f()
				return true
			}
		})
		r.apply(Spec{Optional: []config.Listener{optional("a", "127.0.0.1:1")}})
		held.Store(true)
		p.set("127.0.0.1:1", false)
		pass(time.Hour)
		if p.taken["127.0.0.1:1"] {
			t.Error("a listener was opened where none may be")
		}
		held.Store(false)
		pass(firstRetry)
		if got := r.listener("a"); got.Unsupported != "" {
			t.Errorf("it is not open afterwards: %+v", got)
		}
	})
}

// Connections come through an optional listener as through any other.
func TestOptionalListenerForwards(t *testing.T) {
	r := start(t)
	one := listen(t, "one")
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	r.apply(Spec{
		Clusters: []config.Cluster{clusterOf("a", static(one.Endpoint))},
		Optional: []config.Listener{optional("no", taken.Addr().String()), optional("yes", "127.0.0.1:0")},
	})
	within(t, "the cluster is warm", func() bool { return len(r.Waiting()) == 0 })
	r.mustDial("yes", "one").alive()
	if l := r.listener("no"); !strings.Contains(l.Unsupported, "address already in use") {
		t.Errorf("the other one is %+v", l)
	}
}

func TestWithOptional(t *testing.T) {
	base := Spec{Listeners: []config.Listener{listenerOf("a", "a")}}
	got := base.WithOptional([]config.Listener{optional("a", "127.0.0.1:1"), optional("b", "127.0.0.1:2"), optional("b", "127.0.0.1:3")})
	if len(got.Optional) != 1 || got.Optional[0].Name != "b" || len(got.UnsupportedListeners) != 2 || got.validate() != nil {
		t.Errorf("%+v, %v", got, got.validate())
	}
	if len(base.Optional)+len(base.UnsupportedListeners) != 0 {
		t.Errorf("the first was changed: %+v", base)
	}
	if err := (Spec{Listeners: base.Listeners, Optional: base.Listeners}).validate(); err == nil {
		t.Error("a name twice is fine")
	}
}

// A discovery "consul" asks the client that is given.
func TestConsulDiscovery(t *testing.T) {
	fake := &control{known: make(map[string]lbcore.Set)}
	r := start(t, func(c *Config) {
		c.Consul = func(d config.Discovery, log *slog.Logger, dups *discovery.Duplicates) (discovery.Source, error) {
			if log == nil || dups == nil {
				t.Error("no log or no duplicates")
			}
			if d.Service == "a/b" {
				return nil, errors.New("service: no")
			}
			return fake.source(d.Service, dups), nil
		}
	})
	consul := func(service string) config.Discovery {
		return config.Discovery{Kind: config.DiscoveryConsul, Service: service}
	}
	one := listen(t, "one")
	fake.replace("web", one.Endpoint)
	r.apply(Spec{
		Clusters:  []config.Cluster{config.DefaultCluster("c", config.OriginConsul, consul("web"))},
		Listeners: []config.Listener{listenerOf("l", "c")},
	})
	within(t, "the cluster is warm", func() bool { return len(r.Waiting()) == 0 })
	r.mustDial("l", "one").alive()
	if c := r.cluster("c"); c.Origin != "consul" {
		t.Errorf("the cluster is %+v", c)
	}
	err := r.Apply(t.Context(), Spec{Clusters: []config.Cluster{clusterOf("c", consul("a/b"))}})
	if err == nil || err.Error() != `cluster "c": discovery by consul: service: no` {
		t.Errorf("Apply: %v", err)
	}
	r.apply(Spec{})
	within(t, "the source has ended", func() bool { return fake.watchers("") == 0 })

	r = start(t)
	if err := r.Apply(t.Context(), Spec{Clusters: []config.Cluster{clusterOf("c", consul("web"))}}); err == nil {
		t.Error("a discovery without a client is fine")
	}
}

// What a source holds back, and when it was last sure, is shown; also through
// several discovery blocks.
func TestHeldAndConfirmed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		two := clusterOf("two", eds("web"))
		two.Discovery = append(two.Discovery, eds("spare"))
		r.apply(Spec{Clusters: []config.Cluster{clusterOf("web", eds("web")), two}})
		synctest.Wait()
		if s := r.cluster("web").Source; !s.Confirmed.IsZero() || s.Held != nil {
			t.Errorf("source is %+v", s)
		}
		began := time.Now()
		r.eds.replace("web", endpoint("192.0.2.1:80"))
		pass(time.Minute)
		held := &discovery.HeldError{Listed: 0, Known: 1, Until: time.Now().Add(time.Second), Reason: errors.New("not confirmed")}
		r.eds.fail("web", fmt.Errorf("consul: %w", held))
		synctest.Wait()
		for _, name := range []string{"web", "two"} {
			if s := r.cluster(name).Source; s.State != "stale" || s.Held != held || !s.Confirmed.Equal(began) {
				t.Errorf("source of %s is %+v", name, s)
			}
		}
		r.eds.replace("web", endpoint("192.0.2.1:80"))
		synctest.Wait()
		if s := r.cluster("web").Source; s.Held != nil || !s.Confirmed.Equal(time.Now()) {
			t.Errorf("source is %+v", s)
		}
		pass(time.Minute)
		r.eds.fail("web", errors.New("away"))
		synctest.Wait()
		if s := r.cluster("web").Source; s.Held != nil || !s.Confirmed.Equal(time.Now().Add(-time.Minute)) {
			t.Errorf("source is %+v", s)
		}
	})
}

// Readiness does not wait for a cluster that is not required.
func TestRequired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		need, spare := clusterOf("need", eds("")), clusterOf("spare", eds(""))
		spare.Required = false
		r.apply(Spec{Clusters: []config.Cluster{need, spare}})
		synctest.Wait()
		if w, want := r.Waiting(), []string{`cluster "need": discovery has not answered yet`}; !slices.Equal(w, want) {
			t.Errorf("waiting for %q, want %q", w, want)
		}
		if w := r.cluster("spare").Waiting; w == "" { // shown all the same
			t.Error("it is not shown what the other one waits for")
		}
		r.eds.replace("need")
		synctest.Wait()
		if w := r.Waiting(); len(w) != 0 {
			t.Errorf("waiting for %q", w)
		}
	})
}

// The address of one that leaves passes to another one with its socket: nobody is
// refused meanwhile.
func TestOptionalTakesOver(t *testing.T) {
	one := listen(t, "one")
	clusters := []config.Cluster{clusterOf("one", static(one.Endpoint))}
	r := start(t)
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	free.Close()
	addr := free.Addr().(*net.TCPAddr).AddrPort()
	named := func(name string) Spec {
		l := config.DefaultListener(name, config.OriginXDS, lbcore.IPAddr(addr), "one")
		return Spec{Clusters: clusters, Optional: []config.Listener{l}}
	}
	r.warm(named("l0"))
	r.steady(addr.String(), "one", func(i int) { r.apply(named(fmt.Sprint("l", i+1))) })
}

// One that gets another address is open there before it closes where it was: at every
// moment one of the two takes connections. Where they overlap the first closes before.
func TestOptionalMovesOpenFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := ports{taken: map[string]bool{}}
		were := make(map[string]bool)
		r := start(t, func(c *Config) {
			c.Socket = func(name string, a lbcore.Addr) (net.Listener, error) {
				p.mu.Lock()
				were[a.String()] = p.taken["127.0.0.1:1"]
				overlaps := a.String() == "0.0.0.0:1" && p.taken["127.0.0.1:1"]
				p.mu.Unlock()
				if overlaps {
					return nil, syscall.EADDRINUSE
				}
				return p.open(name, a)
			}
		})
		apply := func(addr string) {
			t.Helper()
			r.apply(Spec{Optional: []config.Listener{optional("a", addr)}})
			synctest.Wait()
			if got := r.listener("a"); got.Unsupported != "" || got.Address.String() != addr {
				t.Errorf("it is %+v, want it at %s", got, addr)
			}
		}
		apply("127.0.0.1:1")
		apply("127.0.0.1:2")
		if !were["127.0.0.1:2"] || p.taken["127.0.0.1:1"] {
			t.Errorf("when the new address was opened the old one was open: %v; it is now: %v", were["127.0.0.1:2"], p.taken["127.0.0.1:1"])
		}
		apply("127.0.0.1:1")
		apply("0.0.0.0:1")
		if were["0.0.0.0:1"] {
			t.Error("it was opened beside one that overlaps it")
		}
	})
}
