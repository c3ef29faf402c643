package dns

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"
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
