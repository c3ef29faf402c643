package node

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"gatehouse.internal/cmd/agent/internal/config"
	"gatehouse.internal/forwarder"
	"gatehouse.internal/internal/tlsconf/tlstest"
	"gatehouse.internal/lbcore"
)

// An Apply of what runs already touches nothing: everything is the same object, and
// nothing is built or set anew.
func TestApplyOfTheSame(t *testing.T) {
	r := start(t)
	one := listen(t, "one")
	clusters := []config.Cluster{clusterOf("a", static(one.Endpoint)), clusterOf("b", static(one.Endpoint))}
	listeners := []config.Listener{listenerOf("la", "a"), listenerOf("lb", "b")}
	spec := func() Spec { return Spec{Clusters: slices.Clone(clusters), Listeners: slices.Clone(listeners)} }
	r.apply(spec())
	within(t, "both are warm", func() bool { return len(r.Waiting()) == 0 })
	type state struct {
		clusters  map[string]*cluster
		listeners []*listener
		shown     []*shownListener
		rebuilds  []uint64
		updates   []uint64
	}
	look := func() (s state) {
		tab := r.table.Load()
		s.clusters, s.listeners = tab.clusters, tab.listeners
		for _, l := range tab.listeners {
			s.shown = append(s.shown, l.shown.Load())
		}
		for _, name := range []string{"a", "b"} {
			s.rebuilds = append(s.rebuilds, tab.clusters[name].group.Slots()[0].Stats().Rebuilds)
			s.updates = append(s.updates, tab.clusters[name].latest.State().Updates)
		}
		return s
	}
	before := look()
	for range 3 {
		r.apply(spec())
	}
	after := look()
	for name, c := range before.clusters {
		if after.clusters[name] != c || len(r.table.Load().warming) > 0 {
			t.Errorf("cluster %q was replaced", name)
		}
	}
	if !slices.Equal(before.listeners, after.listeners) || !slices.Equal(before.shown, after.shown) {
		t.Error("listeners were touched")
	}
	if !slices.Equal(before.rebuilds, after.rebuilds) || !slices.Equal(before.updates, after.updates) || before.rebuilds[0] != 1 {
		t.Errorf("rebuilds %v and updates %v were %v and %v", after.rebuilds, after.updates, before.rebuilds, before.updates)
	}
}

// If one listener can't take its settings, none has them.
func TestApplySettingsAllOrNone(t *testing.T) {
	r := start(t)
	one := listen(t, "one")
	spec := Spec{
		Clusters:  []config.Cluster{clusterOf("a", static(one.Endpoint))},
		Listeners: []config.Listener{listenerOf("first", "a"), at(listenerOf("second", "a"), t.TempDir(), "second")},
	}
	r.warm(spec)
	spec.Listeners = slices.Clone(spec.Listeners)
	spec.Listeners[0].MaxConnections = 1
	spec.Listeners[1].Unix.User = "no such user"
	err := r.Apply(t.Context(), spec)
	if err == nil {
		t.Fatal("a listener takes settings that it can't")
	}
	for range 2 { // the limit is not in force
		r.mustDial("first", "one")
	}
}

// Unsettled tells of a change until it is in force, also where only the endpoints
// change that a cluster lists.
func TestUnsettled(t *testing.T) {
	r := start(t)
	one, two := listen(t, "one"), listen(t, "two")
	spec := Spec{Clusters: []config.Cluster{clusterOf("a", static(one.Endpoint)), clusterOf("b", eds(""))}, Listeners: []config.Listener{listenerOf("l", "a")}}
	r.apply(spec)
	within(t, "a is in force", func() bool { return len(r.Unsettled([]string{"a", "none"})) == 0 })
	if got := fmt.Sprint(r.Unsettled([]string{"a", "b"})); got != "[{b discovery has not answered yet}]" {
		t.Errorf("unsettled are %s", got)
	}
	r.eds.replace("b", one.Endpoint)
	within(t, "b is in force", func() bool { return len(r.Unsettled([]string{"b"})) == 0 })
	for i := range 50 {
		want := []*backend{one, two}[i%2]
		spec.Clusters = slices.Clone(spec.Clusters)
		spec.Clusters[0] = clusterOf("a", static(want.Endpoint))
		r.apply(spec)
		within(t, "a is in force", func() bool { return len(r.Unsettled([]string{"a"})) == 0 })
		r.mustDial("l", []string{"one", "two"}[i%2]).Close()
	}
}

// The operator's word keeps an endpoint from new connections, over a change of the
// cluster's settings too, until it is taken back.
func TestSetEnabled(t *testing.T) {
	r := start(t)
	one, two := listen(t, "one"), listen(t, "two")
	c := clusterOf("a", static(one.Endpoint, two.Endpoint))
	spec := Spec{Clusters: []config.Cluster{c}, Listeners: []config.Listener{listenerOf("l", "a")}}
	r.warm(spec)
	say := func(b *backend, enabled bool) {
		t.Helper()
		if err := r.SetEnabled(t.Context(), "a", b.Addr, enabled); err != nil {
			t.Fatal(err)
		}
	}
	say(one, false)
	for range 4 {
		r.mustDial("l", "two").Close()
	}
	spec.Clusters = []config.Cluster{changed(c)}
	r.apply(spec)
	within(t, "the change is in force", func() bool { return len(r.Unsettled([]string{"a"})) == 0 })
	for range 4 {
		r.mustDial("l", "two").Close()
	}
	say(two, false)
	if c, err := r.dial("l"); err == nil {
		t.Errorf("with none enabled a connection led to %q", c.from)
	}
	within(t, "it is recorded as one without an endpoint", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return slices.ContainsFunc(r.ended, func(rec forwarder.Record) bool { return rec.Flag == forwarder.FlagUH })
	})
	say(one, true)
	r.mustDial("l", "one").Close()

	nobody := lbcore.MustSet(endpoint("192.0.2.1:1")).All()
	for _, e := range nobody {
		if err := r.SetEnabled(t.Context(), "a", e.Addr, false); !errors.Is(err, ErrUnknown) {
			t.Errorf("an endpoint that is not there: %v", err)
		}
	}
	if err := r.SetEnabled(t.Context(), "nosuch", one.Addr, false); !errors.Is(err, ErrUnknown) {
		t.Errorf("a cluster that is not there: %v", err)
	}
	all := aggregateOf("all", "a")
	r.apply(Spec{Clusters: append(slices.Clone(spec.Clusters), all), Listeners: spec.Listeners})
	if err := r.SetEnabled(t.Context(), "all", one.Addr, false); !errors.Is(err, ErrUnknown) || !strings.Contains(err.Error(), `it consists of ["a"]`) {
		t.Errorf("a cluster that consists of others: %v", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_ = r.SetEnabled(ended, "a", one.Addr, true) // either way
}

// A word that is said while a cluster is about to be replaced reaches both.
func TestSetEnabledWhileReplaced(t *testing.T) {
	r := start(t)
	one, two := listen(t, "one"), listen(t, "two")
	r.eds.replace("x", one.Endpoint, two.Endpoint)
	spec := Spec{Clusters: []config.Cluster{clusterOf("a", eds("x"))}, Listeners: []config.Listener{listenerOf("l", "a")}}
	r.warm(spec)
	spec.Clusters = []config.Cluster{clusterOf("a", eds("y"))} // which nobody knows
	r.apply(spec)
	if err := r.SetEnabled(t.Context(), "a", one.Addr, false); err != nil {
		t.Fatal(err)
	}
	r.mustDial("l", "two").Close()
	r.eds.replace("y", one.Endpoint, two.Endpoint)
	within(t, "the change is in force", func() bool { return len(r.Unsettled([]string{"a"})) == 0 })
	for range 4 {
		r.mustDial("l", "two").Close()
	}
}

// SetDrainTimeout counts for listeners that leave later.
func TestSetDrainTimeout(t *testing.T) {
	r := start(t)
	one := listen(t, "one")
	spec := Spec{Clusters: []config.Cluster{clusterOf("a", static(one.Endpoint))}, Listeners: []config.Listener{listenerOf("l", "a")}}
	r.warm(spec)
	c := r.mustDial("l", "one")
	r.SetDrainTimeout(0)
	spec.Listeners = nil
	r.apply(spec)
	if _, err := c.r.ReadByte(); err == nil {
		t.Error("a connection goes on after its listener has left without a drain")
	} else if _, ok := errors.AsType[net.Error](err); ok && err.(net.Error).Timeout() {
		t.Error("the connection was not cut")
	}
}

// An address passes from one listener to another, by another name or in a swap,
// and no connection is refused or reset meanwhile.
func TestAddressPassesOn(t *testing.T) {
	onBoth(t, func(t *testing.T, r *rig) {
		one, two := listen(t, "one"), listen(t, "two")
		var addrs [2]lbcore.Addr
		for i := range addrs {
			ln, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer ln.Close()
			addrs[i] = endpoint(ln.Addr().String()).Addr
			ln.Close()
		}
		spec := Spec{Clusters: []config.Cluster{clusterOf("one", static(one.Endpoint)), clusterOf("two", static(two.Endpoint))}}
		set := func(names ...string) { // for one, which takes the first address, and two
			t.Helper()
			spec.Listeners = nil
			for i, name := range names {
				l := listenerOf(name, []string{"one", "two"}[i])
				l.Address = addrs[i]
				spec.Listeners = append(spec.Listeners, l)
			}
			r.warm(spec)
		}
		set("a", "b")
		stop := make(chan struct{})
		var load sync.WaitGroup
		for _, addr := range addrs {
			load.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
					}
					c, err := net.Dial("tcp", addr.String())
					if err != nil {
						t.Errorf("a connection is refused: %v", err)
						return
					}
					c.SetDeadline(time.Now().Add(20 * time.Second))
					if line, err := bufio.NewReader(c).ReadString('\n'); err != nil {
						t.Errorf("a connection is lost: %q, %v", line, err)
					}
					c.Close()
				}
			})
		}
		held := r.mustDial("a", "one")
		for i := range 20 {
			names := [][]string{{"b", "a"}, {"c", "a"}, {"c", "b"}, {"a", "b"}}[i%4]
			set(names...)
			r.mustDial(names[0], "one").Close()
			r.mustDial(names[1], "two").Close()
		}
		close(stop)
		load.Wait()
		held.alive()
		spec.Listeners = nil
		r.apply(spec)
		for _, addr := range addrs {
			if c, err := net.Dial("tcp", addr.String()); err == nil {
				c.Close()
				t.Errorf("%s is open after its listener has left", addr)
			}
		}
	})
}

// What TLS files hold is in force when Look has returned.
func TestLook(t *testing.T) {
	s := newSite(t)
	r := start(t)
	r.warm(Spec{Clusters: []config.Cluster{clusterOf("web", static(listen(t, "one").Endpoint))}, Listeners: []config.Listener{s.secured(t, listenerOf("front", "web"), "first")}})
	for _, subject := range []string{"second", "third"} {
		s.ca.Issue(t, tlstest.Leaf{CommonName: subject, Names: []string{"127.0.0.1"}}).Write(t, s.dir, "first")
		if err := r.Look(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, got := r.dialTLS(s, "front", "one"); got != subject {
			t.Errorf("the certificate is that of %q, want %q", got, subject)
		}
	}
}
