package node

import (
	"fmt"
	"maps"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"gatehouse.internal/lbcore"
)

// wish is a Spec to be: the version of each cluster, 0 for none, and of each listener
// the port, if it is wanted, and max_connections.
type wish struct {
	Versions [3]int
	Wanted   [3]bool
	Ports    []int
	Most     [3]int
}

// foreign is the port that somebody else has.
const foreign = 5

func (w wish) spec() (spec Spec) {
	for i, name := range []string{"a", "b", "c"} {
		if v := w.Versions[i]; v > 0 {
			c := clusterOf(name, static(endpoint("192.0.2.1:80")))
			c.ConnectTimeout = time.Duration(v) * time.Second
			spec.Clusters = append(spec.Clusters, c)
		}
	}
	for i, name := range []string{"x", "y", "z"} {
		if w.Wanted[i] {
			l := listenerOf(name, "a")
			l.Address, l.MaxConnections = onPort(w.Ports[i]), w.Most[i]
			spec.Listeners = append(spec.Listeners, l)
		}
	}
	return spec
}

func onPort(n int) lbcore.Addr {
	return lbcore.IPAddr(netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(n)))
}

// Whatever is asked for after whatever, it is there as a whole, or nothing has
// changed; and what is the same is the same object.
func TestApplyIsWhole(t *testing.T) {
	wishes := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) (w wish) {
		for i := range 3 {
			w.Versions[i] = rapid.IntRange(0, 3).Draw(t, "version")
			w.Wanted[i] = rapid.Bool().Draw(t, "wanted")
			w.Most[i] = rapid.SampledFrom([]int{0, 0, 0, 1, 1, -1}).Draw(t, "max_connections")
		}
		w.Ports = rapid.Permutation([]int{1, 2, 3, 4, foreign}).Draw(t, "ports")
		return w
	}), 1, 12)
	rapid.Check(t, func(rt *rapid.T) {
		all := wishes.Draw(rt, "wishes")
		var wrong error
		synctest.Test(t, func(t *testing.T) { wrong = isWhole(t, all) })
		if wrong != nil {
			rt.Fatal(wrong)
		}
	})
}

// running is what runs: each with what it is shown to be.
type running struct {
	listeners map[string]*listener
	shown     map[string]*shownListener
	clusters  map[string]*cluster
	taken     map[string]bool
}

func isWhole(t *testing.T, wishes []wish) error {
	p := &ports{taken: map[string]bool{onPort(foreign).String(): true}}
	r := start(t, func(c *Config) { c.Socket = p.open })
	look := func() running {
		synctest.Wait()
		tab := r.table.Load()
		now := running{make(map[string]*listener), make(map[string]*shownListener), tab.clusters, maps.Clone(p.taken)}
		for _, l := range tab.listeners {
			if name := l.fwd.Name(); !l.draining.Load() {
				now.listeners[name], now.shown[name] = l, l.shown.Load()
			}
		}
		maps.DeleteFunc(now.taken, func(_ string, taken bool) bool { return !taken })
		return now
	}
	for _, w := range wishes {
		spec, was := w.spec(), look()
		wrong := false
		for _, l := range spec.Listeners {
			have := was.shown[l.Name]
			wrong = wrong || l.MaxConnections < 0 || (have == nil || have.Address != l.Address) && was.taken[l.Address.String()]
		}
		err := r.Apply(t.Context(), spec)
		now := look()
		switch {
		case wrong != (err != nil):
			return fmt.Errorf("%+v: Apply returned %v, wrong is %t", w, err, wrong)
		case err != nil:
			if !maps.Equal(now.listeners, was.listeners) || !maps.Equal(now.shown, was.shown) || !maps.Equal(now.clusters, was.clusters) || !maps.Equal(now.taken, was.taken) {
				return fmt.Errorf("%+v: after %v there is %+v, before %+v", w, err, now, was)
			}
			continue
		case len(now.listeners) != len(spec.Listeners) || len(now.taken) != len(spec.Listeners)+1 || len(now.clusters) != len(spec.Clusters):
			return fmt.Errorf("%+v: there is %+v", w, now)
		}
		for _, l := range spec.Listeners {
			have, before := now.shown[l.Name], was.shown[l.Name]
			stays := before != nil && before.Address == l.Address
			same := stays && before.MaxConnections == l.MaxConnections
			if have == nil || have.Address != l.Address || have.MaxConnections != l.MaxConnections ||
				stays != (now.listeners[l.Name] == was.listeners[l.Name]) || same != (have == before) {
				return fmt.Errorf("%+v: listener %s is %+v, before %+v", w, l.Name, have, before)
			}
		}
		for _, c := range spec.Clusters {
			have, before := now.clusters[c.Name], was.clusters[c.Name]
			same := before != nil && before.cfg.ConnectTimeout == c.ConnectTimeout
			if have == nil || have.cfg.ConnectTimeout != c.ConnectTimeout || same != (have == before) {
				return fmt.Errorf("%+v: cluster %s has changed or not: %t", w, c.Name, same)
			}
		}
	}
	return nil
}
