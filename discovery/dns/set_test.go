package dns

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	wire "github.com/miekg/dns"
)

// Nameservers that are set anew are asked from then on; what is known of those that
// stay is kept, and a Query's own are not touched, be they the same.
func TestSet(t *testing.T) {
	path := filepath.Join(t.TempDir(), "resolv.conf")
	if err := os.WriteFile(path, []byte("nameserver 198.51.100.1\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(2)
		n.zone.set(webA + "192.0.2.1")
		all := n.list()
		c := n.client(t, Config{Nameservers: all[:1], ResolvConf: path})
		q := web()
		q.Nameservers = all[:1]
		w, end := c.watch(t, q)
		defer end()
		pass(100 * time.Millisecond)
		w.wants("", "192.0.2.1:80")
		c.ask(t, false)
		asked := func() (counts []uint64) {
			for _, s := range c.Stats().Nameservers {
				if s.Group == "default" {
					counts = append(counts, s.Queries)
				}
			}
			return counts
		}
		set := func(cfg Config) {
			t.Helper()
			cfg.ResolvConf = path
			if err := c.Set(cfg); err != nil {
				t.Fatal(err)
			}
			c.ask(t, false)
		}
		before := c.stats(0).Queries
		set(Config{Nameservers: all[1:]})
		if got := asked(); len(got) != 1 || c.stats(0).Address != n.server(1).at || got[0] != 1 {
			t.Errorf("after another one was set: %v", c.Stats().Nameservers)
		}
		set(Config{Nameservers: all})
		if got := asked(); len(got) != 2 || got[0] < before || got[0]+got[1] < before+2 {
			t.Errorf("after both were set: %v, the first had %d", c.Stats().Nameservers, before)
		}
		// Those of resolv.conf again, also while it can't be read.
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		set(Config{Nameservers: []netip.AddrPort{}})
		if got := asked(); len(got) != 1 || c.stats(0).Address != n.server(0).at {
			t.Errorf("after none was set: %v", c.Stats().Nameservers)
		}
		if err := c.Set(Config{Nameservers: []netip.AddrPort{{}}}); err == nil {
			t.Error("an invalid nameserver is set")
		}
		for _, s := range c.Stats().Nameservers {
			if s.Group != "default" && s.Address != n.server(0).at {
				t.Errorf("the Query's own nameservers: %+v", s)
			}
		}
	})
}

// Sources look anew once others are to be asked, whatever the TTL says, and also where
// a look-up is under way that nobody answers.
func TestSetIsHeededAtOnce(t *testing.T) {
	for _, dead := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			n := newNetwork(2)
			all := n.list()
			n.zone.set("web.test. 3600 IN A 192.0.2.1")
			n.server(0).down = dead
			n.server(1).hook = n.server(1).says(func(_, r *wire.Msg) { r.Answer = rr("web.test. 3600 IN A 192.0.2.2") })
			c := n.client(t, Config{Nameservers: all[:1]})
			var watched []*watching
			for range 10 {
				w, end := c.watch(t, web())
				defer end()
				watched = append(watched, w)
			}
			pass(time.Second)
			if err := c.Set(Config{Nameservers: all[1:], ResolvConf: t.TempDir() + "/none"}); err != nil {
				t.Fatal(err)
			}
			before := len(n.server(0).queries())
			pass(4 * time.Second) // two attempts of 2 s that were under way
			for _, w := range watched {
				if dead {
					w.wants("", "192.0.2.2:80")
				} else {
					w.wants("", "192.0.2.1:80", "192.0.2.2:80")
				}
			}
			pass(time.Minute) // what the new one lacks is gone after a second answer
			for _, w := range watched {
				w.wants("", "192.0.2.2:80")
			}
			if got := len(n.server(0).queries()) - before; !dead && got > 0 {
				t.Errorf("the former nameserver was asked %d times more", got)
			}
		})
	}
}
