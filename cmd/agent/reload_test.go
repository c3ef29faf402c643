package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gatehouse.internal/cmd/agent/internal/admin"
	"gatehouse.internal/cmd/agent/internal/config"
	"gatehouse.internal/cmd/agent/internal/node"
)

// rereads makes the agent read what text says.
func (r *running) rereads(text *atomic.Pointer[string]) {
	r.agent.read = func() (*config.Config, error) {
		return loadErr(r.t, "admin { address = \"127.0.0.1:0\" }\n"+*text.Load())
	}
}

// startReloading is startRunning of an agent that reads its configuration again.
func startReloading(t *testing.T, text string) (r *running, say func(string)) {
	t.Helper()
	var now atomic.Pointer[string]
	now.Store(&text)
	r = startRunningWith(t, text, func(r *running) { r.rereads(&now) })
	return r, func(text string) { now.Store(&text) }
}

// become reloads text, and fails the test unless that is in force.
func (r *running) become(text string, say func(string)) admin.Reload {
	r.t.Helper()
	say(text)
	out, err := r.reload(r.t.Context(), 20*time.Second)
	if err != nil || out.Result != admin.ReloadInForce {
		r.t.Fatalf("reload: %+v, %v", out, err)
	}
	return out
}

// led returns who answers at an address.
func led(t *testing.T, addr string) string {
	t.Helper()
	c, err := net.DialTimeout("tcp", addr, 10*time.Second)
	if err != nil {
		return err.Error()
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(10 * time.Second))
	text, err := io.ReadAll(c)
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(string(text))
}

// Consul comes with a reload, is asked by another token, at another address, for
// listeners and to register, and leaves with one; what is known of a service stays
// through all of it, and its cluster is not touched.
func TestReloadConsul(t *testing.T) {
	listenAt := freeAddr(t)
	services := func() map[string]fakeService {
		return map[string]fakeService{"web": {addr: names(t, "one")}, "more": {addr: names(t, "two"), listen: listenAt}}
	}
	one := startFakeConsul(t, services())
	const listener = "listener \"web\" {\n  address = \"127.0.0.1:0\"\n  cluster = \"web\"\n}\n"
	const web = "cluster \"web\" {\n  discovery \"consul\" {}\n}\n" + listener
	block := func(f *fakeConsul, more string) string {
		return fmt.Sprintf("consul {\n  address = %q\n  token = %q\n%s}\n", f.Listener.Addr(), consulToken, more)
	}
	r, say := startReloading(t, "cluster \"web\" {\n  discovery \"static\" { endpoints = ["+fmt.Sprintf("%q", names(t, "none"))+"] }\n}\n"+listener)
	r.await("it is ready", func() bool { return r.has("/ready", "LIVE") })
	addr := r.listenerAddrs()["web"].String()
	leads := func(want string) {
		t.Helper()
		if got := led(t, addr); got != want {
			t.Errorf("a connection led to %q, want %q", got, want)
		}
	}
	leads("none")
	out := r.become(block(one, "")+web, say)
	leads("one")
	if got := fmt.Sprint(out.Settings, out.Clusters.Changed); got != "[consul.address consul.token] [web]" {
		t.Errorf("changed are %s", got)
	}

	// A token that is refused changes nothing that is known, and neither does the
	// next one but that it is accepted.
	client, began := r.consul.load(), r.node.Summary().Clusters[0]
	say(strings.Replace(block(one, "")+web, consulToken, "wrong", 1))
	if out, err := r.reload(t.Context(), time.Second); err != nil || out.Result != admin.ReloadInForce || len(out.Clusters.Unchanged) != 1 {
		t.Errorf("another token: %+v, %v", out, err)
	}
	one.change(func(s map[string]fakeService) { s["web"] = fakeService{addr: names(t, "three")} })
	r.await("the token is refused", func() bool { return r.has("/clusters", "the token is refused") })
	r.become(block(one, "")+web, say)
	r.await("the token is accepted", func() bool { return led(t, addr) == "three" })
	if r.consul.load() != client {
		t.Error("another token made another client")
	}

	// Another Consul, which lists the same, and listeners of it.
	s := services()
	s["web"] = one.services["web"]
	two := startFakeConsul(t, s)
	before := r.node.Summary().Clusters[0]
	r.become(block(two, "  listeners = true\n  register {}\n")+web, say)
	r.await("the catalog's listener is open", func() bool { return led(t, listenAt) == "two" })
	r.await("it is registered", func() bool { return two.service("gatehouse-"+r.cfg.Load().Node.ID) != nil })
	leads("three")
	if r.consul.load() == client {
		t.Error("another address made no other client")
	}
	if now := r.cluster("web"); now.Generation != before.Generation || now.Selectors[0].Rebuilds != before.Selectors[0].Rebuilds || now.Totals.Opened < before.Totals.Opened || before.Generation != began.Generation+1 {
		t.Errorf("the cluster was touched: %+v, before %+v", now, before)
	}

	r.become(block(two, "")+web, say)
	r.await("the catalog's listener is gone", func() bool { return strings.Contains(led(t, listenAt), "refused") })
	r.await("it is not registered", func() bool { return two.service("gatehouse-"+r.cfg.Load().Node.ID) == nil })
	leads("three")
	r.end()
}

// A mistake changes nothing, whatever it is in: not the files either that the
// givers are joined with.
func TestReloadRefused(t *testing.T) {
	one, two := names(t, "one"), names(t, "two")
	text := func(addr string) string {
		return fmt.Sprintf("cluster \"web\" {\n  discovery \"static\" { endpoints = [%q] }\n}\nlistener \"web\" {\n  address = \"127.0.0.1:0\"\n  cluster = \"web\"\n}\n", addr)
	}
	r, say := startReloading(t, text(one))
	r.await("it is ready", func() bool { return r.has("/ready", "LIVE") })
	addr := r.listenerAddrs()["web"].String()
	running := r.cfg.Load()
	for name, bad := range map[string]string{
		"a mistake":           text(two) + "nope = 1\n",
		"an address":          text(two) + "listener \"taken\" {\n  address = \"" + one + "\"\n  cluster = \"web\"\n}\n",
		"a name and a client": text(two) + "dns { nameservers = [\"127.0.0.1\"] }\ncluster \"dns\" {\n  discovery \"dns\" {\n    name = \"x.test.\"\n    type = \"a\"\n    port = 80\n  }\n}\nlistener \"taken\" {\n  address = \"" + one + "\"\n  cluster = \"web\"\n}\n",
	} {
		say(bad)
		out, err := r.reload(t.Context(), time.Minute)
		if err != nil || out.Result != admin.ReloadRefused || out.Error == "" || out.Bind != (name != "a mistake") || (out.Errors != nil) != (name == "a mistake") {
			t.Errorf("%s: %+v, %v", name, out, err)
		}
		if got := led(t, addr); got != "one" || r.cfg.Load() != running || r.dns.Load() != nil || !r.has("/stats/prometheus", "gatehouse_agent_reload_ok 0") {
			t.Errorf("%s: a connection led to %q", name, got)
		}
	}
	r.become(text(two), say)
	if got := led(t, addr); got != "two" || !r.has("/stats/prometheus", "gatehouse_agent_reload_ok 1") {
		t.Errorf("a connection led to %q", got)
	}

	// Reloads are one after the other, and each is whole.
	var wg sync.WaitGroup
	var begun atomic.Int32
	r.onReload = func(begins bool) {
		if begins && begun.Add(1) != 1 || !begins && begun.Add(-1) != 0 {
			t.Error("two reloads run at once")
		}
	}
	for range 10 {
		wg.Go(func() {
			if out, err := r.reload(t.Context(), time.Minute); err != nil || out.Result != admin.ReloadInForce || len(out.Clusters.Unchanged) != 1 {
				t.Errorf("one of many: %+v, %v", out, err)
			}
		})
		wg.Go(func() {
			select {
			case r.hangup <- struct{}{}:
			default:
			}
		})
	}
	wg.Wait()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.reload(ended, time.Minute); err != nil && !errors.Is(err, context.Canceled) {
		t.Errorf("a reload that nobody waits for: %v", err)
	}

	r.drainListeners(false)
	if out, err := r.reload(t.Context(), time.Minute); err != nil || out.Result != admin.ReloadRefused || !strings.Contains(out.Error, "the agent is draining") {
		t.Errorf("while it drains: %+v, %v", out, err)
	}
	r.end()
}

// An agent that was not told how has nothing to read again.
func TestReloadNothing(t *testing.T) {
	r := startRunning(t, "")
	r.await("it is ready", func() bool { return r.has("/ready", "LIVE") })
	if out, err := r.reload(t.Context(), 0); err != nil || out.Result != admin.ReloadRefused || !strings.Contains(out.Error, "no configuration to read again") {
		t.Errorf("%+v, %v", out, err)
	}
}

// cluster returns what the node says of a cluster.
func (r *running) cluster(name string) node.ClusterStatus {
	r.t.Helper()
	for _, c := range r.node.Summary().Clusters {
		if c.Name == name {
			return c
		}
	}
	r.t.Fatalf("no cluster %q", name)
	return node.ClusterStatus{}
}

// freeAddr returns an address of loopback that nobody listens on, with a port that
// the kernel gives to no client meanwhile.
func freeAddr(t *testing.T) string {
	t.Helper()
	for {
		ln, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", 10000+rand.IntN(20000)))
		if err != nil {
			t.Log(err)
			continue
		}
		defer ln.Close()
		return ln.Addr().String()
	}
}
