package dns

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	wire "github.com/miekg/dns"
)

// Statistics are of what is in force, and read no file: nobody may be left who uses
// the nameservers.
func TestStatsDoNotReadResolvConf(t *testing.T) {
	path := filepath.Join(t.TempDir(), "resolv.conf")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("nameserver 198.51.100.1\n")
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(2)
		n.zone.set(webA + "192.0.2.1")
		c := n.client(t, Config{Nameservers: []netip.AddrPort{}, ResolvConf: path})
		c.join(n.list()) // by a source that has not asked yet
		write("nameserver 198.51.100.2 # another\n")
		pass(confEvery)
		if st := c.Stats().Nameservers; len(st) != 1 || st[0].Address != n.server(0).at {
			t.Errorf("before a look-up: %+v", st)
		}
		c.ask(t, false)
		if st := c.Stats().Nameservers; len(st) != 1 || st[0].Address != n.server(1).at {
			t.Errorf("after a look-up: %+v", st)
		}
	})
}

// A resolv.conf that somebody is about to write is no reason to ask 127.0.0.1.
func TestResolvConfIsEmpty(t *testing.T) {
	path := filepath.Join(t.TempDir(), "resolv.conf")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("nameserver 198.51.100.1\n")
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(2)
		n.zone.set(webA + "192.0.2.1")
		c := n.client(t, Config{Nameservers: []netip.AddrPort{}, ResolvConf: path})
		for i, text := range []string{"", "nameserver 198.51.100.2\n"} {
			write(text)
			pass(confEvery)
			if a, _ := c.ask(t, false); a.class != found {
				t.Errorf("with %q: %v", text, a.err)
			}
			if s := c.stats(0); s.Address != n.server(i).at {
				t.Errorf("with %q %s is asked", text, s.Address)
			}
		}
	})
}

// That a nameserver does not know EDNS0 is learnt from its answer, not from silence.
func TestSilenceIsNotAboutEDNS0(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(1)
		n.zone.set(webA + "192.0.2.1")
		s := n.server(0)
		s.hook = func(m *wire.Msg, tcp bool) []packet {
			if m.IsEdns0() == nil {
				return []packet{}
			}
			return s.says(func(_, r *wire.Msg) { r.Answer, r.Rcode = nil, wire.RcodeFormatError })(m, tcp)
		}
		c := n.client(t, Config{})
		c.ask(t, false)
		s.change(func() { s.hook = nil })
		if a, _ := c.ask(t, false); a.class != found {
			t.Error(a.err)
		}
		if q := n.queries(); q[len(q)-1].edns != udpSize {
			t.Errorf("EDNS0 of %d bytes is offered, want %d", q[len(q)-1].edns, udpSize)
		}
	})
}

// Consul's DNS is asked by TCP: by UDP its answers may lack records without a word.
func TestConsulIsAskedByTCP(t *testing.T) {
	for name, want := range map[string]bool{
		"web.service.consul": true, "web.service.CONSUL.": true, "web.service.dc1.consul.": true,
		"consul.test.": false, "notconsul.": false,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNetwork(1)
				q := web()
				q.Name = name
				_, end := n.client(t, Config{}).watch(t, q)
				pass(10 * time.Millisecond)
				end()
				if all := n.queries(); len(all) != 1 || all[0].tcp != want {
					t.Errorf("queries %+v", all)
				}
			})
		})
	}
}

// A target has at most maxTargetAddrs addresses, so that the targets of one name
// can't make the agent grow without bound.
func TestManyAddressesOfATarget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(1)
		lines := []string{srvA}
		for i := range maxTargetAddrs + 10 {
			lines = append(lines, fmt.Sprintf("a.test. 10 IN A 10.1.%d.%d", i/250, i%250))
		}
		n.zone.set(lines...)
		w, end := n.client(t, Config{}).watch(t, service())
		defer end()
		pass(patience)
		if set, _, err := w.state(); set.Len() != maxTargetAddrs || err != nil {
			t.Errorf("%d addresses, %v", set.Len(), err)
		}
	})
}

// Targets that nobody answers for hold up neither the sources that ask others nor
// those that ask the same nameservers.
func TestSilentTargetsHoldUpNobodyElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(2)
		records := []string{webA + "192.0.2.1"}
		for i := range 500 {
			records = append(records, fmt.Sprintf("_web._tcp.test. 1 IN SRV 0 1 80 t%d.test.", i), fmt.Sprintf("t%d.test. 1 IN A 192.0.2.1", i))
		}
		n.zone.set(records...)
		n.server(1).hook = func(m *wire.Msg, tcp bool) []packet {
			if m.Question[0].Qtype == wire.TypeSRV {
				return nil
			}
			return []packet{} // nobody knows the targets
		}
		all := n.list()
		c := n.client(t, Config{Nameservers: all[:1]})
		q := service()
		q.Nameservers = all[1:]
		_, end := c.watch(t, q)
		defer end()
		pass(time.Second)
		w, end2 := c.watch(t, web())
		defer end2()
		pass(100 * time.Millisecond)
		w.wants("", "192.0.2.1:80")
		q2 := web()
		q2.Nameservers = all[1:]
		n.server(1).change(func() {
			hook := n.server(1).hook
			n.server(1).hook = func(m *wire.Msg, tcp bool) []packet {
				if m.Question[0].Name == q2.Name {
					return nil
				}
				return hook(m, tcp)
			}
		})
		w2, end3 := c.watch(t, q2)
		defer end3()
		pass(100 * time.Millisecond)
		w2.wants("", "192.0.2.1:80")
	})
}

// However long nameservers may take, one that is silent is blamed and named.
func TestLongTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(1)
		n.server(0).down = true
		c := n.client(t, Config{Timeout: maxTimeout})
		a, took := c.ask(t, false)
		if a.class != timeout || !strings.Contains(a.err.Error(), n.server(0).at.String()) || took > 2*maxTimeout {
			t.Errorf("after %v: %v", took, a.err)
		}
		if s := c.stats(0); s.Failures == 0 {
			t.Errorf("%+v", s)
		}
	})
}

// The next look at resolv.conf is not put off by a wall clock that is set back.
func TestLooksIgnoreTheWallClock(t *testing.T) {
	c, err := New(Config{Nameservers: []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:53")}})
	if err != nil {
		t.Fatal(err)
	}
	p := c.join(nil)
	p.settings()
	if last := *p.look.Load(); last == last.Round(0) { // not in a bubble, where no time has one
		t.Errorf("%s has no monotonic reading", last)
	}
}
