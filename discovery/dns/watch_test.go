package dns

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	wire "github.com/miekg/dns"

	"gatehouse.internal/discovery"
	"gatehouse.internal/discovery/discoverytest"
)

const (
	srvA = "_web._tcp.test. 10 IN SRV 1 1 80 a.test."
	srvB = "_web._tcp.test. 10 IN SRV 1 1 80 b.test."
	srvC = "_web._tcp.test. 10 IN SRV 1 1 80 c.test."
)

// The addresses of targets are asked for, whatever comes along with the records.
func TestSRV(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(2)
		n.zone.set("_web._tcp.test. 10 IN SRV 10 3 8080 A.test.", "_web._tcp.test. 10 IN SRV 20 7 8081 b.test.",
			"a.test. 10 IN CNAME real.test.", "real.test. 10 IN A 192.0.2.1", "real.test. 10 IN AAAA 2001:db8::1",
			"b.test. 10 IN A 192.0.2.2")
		n.server(0).hook = n.server(0).says(func(_, r *wire.Msg) { r.Extra = rr("a.test. 10 IN A 203.0.113.66") })
		n.server(1).hook = n.server(0).hook
		q := service()
		q.Targets = ""
		w, end := n.client(t, Config{}).watch(t, q)
		defer end()
		pass(time.Second)
		w.wants("", "192.0.2.1:8080 w96 p0", "192.0.2.2:8081 w7 p1", "[2001:db8::1]:8080 w96 p0")
		set, _, _ := w.state()
		if e := set.At(0); e.Hostname != "a.test" {
			t.Errorf("host name %q", e.Hostname)
		}
		if got := len(w.rec.Reports()); got != 1 {
			t.Errorf("%d reports, want one of all:\n%s", got, w.rec)
		}
	})
}

// A target that fails neither holds up nor wipes the others.
func TestOneTargetFails(t *testing.T) {
	for _, tt := range []struct {
		name  string
		hook  func(n *network) func(*wire.Msg, bool) []packet // for b.test, once it is broken
		fails string
	}{
		{"SERVFAIL", func(n *network) func(*wire.Msg, bool) []packet {
			return n.server(0).says(func(_, r *wire.Msg) { r.Answer, r.Rcode = nil, wire.RcodeServerFailure })
		}, "SERVFAIL"},
		{"silence", func(*network) func(*wire.Msg, bool) []packet {
			return func(*wire.Msg, bool) []packet { return []packet{} }
		}, "no answer in time"},
		{"NXDOMAIN", func(n *network) func(*wire.Msg, bool) []packet {
			return n.server(0).says(func(_, r *wire.Msg) { r.Answer, r.Rcode = nil, wire.RcodeNameError })
		}, "NXDOMAIN"},
	} {
		broken := func(n *network) {
			s, hook := n.server(0), tt.hook(n)
			s.change(func() {
				s.hook = func(m *wire.Msg, tcp bool) []packet {
					if m.Question[0].Name == "b.test." {
						return hook(m, tcp)
					}
					r := n.zone.reply(m)
					r.Extra = nil
					return []packet{{data: fit(m, r, tcp)}}
				}
			})
		}
		records := []string{srvA, srvB, srvC, "a.test. 10 IN A 192.0.2.1", "b.test. 10 IN A 192.0.2.2", "c.test. 10 IN A 192.0.2.3"}
		t.Run(tt.name+" from the start", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNetwork(1)
				n.zone.set(records...)
				broken(n)
				w, end := n.client(t, Config{}).watch(t, service())
				defer end()
				pass(patience + 100*time.Millisecond)
				set, known, _ := w.state()
				if got := texts(set); !known || fmt.Sprint(got) != "[192.0.2.1:80 192.0.2.3:80]" {
					t.Errorf("after %v: %q", patience, got)
				}
				n.server(0).change(func() { n.server(0).hook = nil })
				pass(time.Minute)
				w.wants("", "192.0.2.1:80", "192.0.2.2:80", "192.0.2.3:80")
			})
		})
		t.Run(tt.name+" later", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNetwork(1)
				n.zone.set(records...)
				w, end := n.client(t, Config{}).watch(t, service())
				defer end()
				pass(time.Second)
				broken(n)
				pass(25 * time.Second)
				w.wants(tt.fails, "192.0.2.1:80", "192.0.2.2:80", "192.0.2.3:80")
				if tt.name == "NXDOMAIN" { // which is believed in the end
					pass(time.Minute)
					w.wants("", "192.0.2.1:80", "192.0.2.3:80")
				} else {
					pass(2 * time.Hour)
					w.wants(tt.fails, "192.0.2.1:80", "192.0.2.2:80", "192.0.2.3:80")
				}
			})
		})
	}
}

// What comes along counts for a target whose look-up fails and of which nothing is
// known, and for no other.
func TestHintsAreALastResort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(1)
		n.zone.set(srvA, srvB, "a.test. 10 IN A 192.0.2.1", "b.test. 10 IN A 192.0.2.2", "b.test. 10 IN AAAA 2001:db8::2")
		n.zone.fail("b.test.", wire.RcodeServerFailure)
		w, end := n.client(t, Config{}).watch(t, service())
		defer end()
		pass(3 * time.Second)
		w.wants("SERVFAIL", "192.0.2.1:80", "192.0.2.2:80")
		n.zone.set(srvA, srvB, "a.test. 10 IN A 192.0.2.1", "b.test. 10 IN A 192.0.2.9")
		pass(time.Minute)
		w.wants("", "192.0.2.1:80", "192.0.2.9:80")
	})
	synctest.Test(t, func(t *testing.T) { // that there is none is no failure
		n := newNetwork(1)
		n.zone.set(srvA, srvB, "a.test. 10 IN A 192.0.2.1", "b.test. 10 IN A 192.0.2.2")
		n.zone.fail("b.test.", wire.RcodeNameError)
		w, end := n.client(t, Config{}).watch(t, service())
		defer end()
		pass(3 * time.Second)
		if set, _, _ := w.state(); set.Len() != 1 {
			t.Errorf("with a target that does not exist: %q", texts(set))
		}
	})
}

// Whether a record is gone that one answer lacks is asked soon, however long the TTL.
func TestMissingRecordIsAskedForSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(1)
		n.zone.set("web.test. 100 IN A 192.0.2.1", "web.test. 100 IN A 192.0.2.2")
		w, end := n.client(t, Config{}).watch(t, web())
		defer end()
		pass(time.Second)
		n.zone.set("web.test. 3600 IN A 192.0.2.1")
		pass(115*time.Second + missingCheck*115/100)
		w.wants("", "192.0.2.1:80")
	})
}

// A service that says "." has no endpoints, after the hold for no data.
func TestNoSuchService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(1)
		n.zone.set(srvA, "a.test. 10 IN A 192.0.2.1")
		w, end := n.client(t, Config{}).watch(t, service())
		defer end()
		pass(time.Second)
		n.zone.set("_web._tcp.test. 10 IN SRV 0 0 0 .")
		pass(20 * time.Second)
		w.wants(`the SRV target is "."`, "192.0.2.1:80")
		pass(time.Minute)
		w.wants("")
	})
}

// Both families are asked for; a name of one only is complete without the other.
func TestDualStack(t *testing.T) {
	const v6 = "web.test. 10 IN AAAA 2001:db8::1"
	q := web()
	q.Type = AAAAA
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(1)
		n.zone.set(webA+"192.0.2.1", v6)
		w, end := n.client(t, Config{}).watch(t, q)
		defer end()
		pass(time.Second)
		w.wants("", "192.0.2.1:80", "[2001:db8::1]:80")
		n.zone.set(v6)
		pass(15 * time.Second)
		w.wants("NODATA", "192.0.2.1:80", "[2001:db8::1]:80")
		pass(time.Minute)
		w.wants("", "[2001:db8::1]:80")
		n.zone.set(webA+"192.0.2.1", v6)
		pass(time.Minute)
		w.wants("", "192.0.2.1:80", "[2001:db8::1]:80")
	})
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(1)
		n.zone.set(webA + "192.0.2.1")
		w, end := n.client(t, Config{}).watch(t, q)
		defer end()
		pass(2 * time.Hour)
		w.wants("", "192.0.2.1:80")
		for _, r := range w.rec.Reports() {
			if r.Err != nil {
				t.Fatalf("a failure: %v", r.Err)
			}
		}
	})
	synctest.Test(t, func(t *testing.T) { // AAAA queries are dropped, as by old middle boxes
		n := newNetwork(1)
		n.zone.set(webA + "192.0.2.1")
		n.server(0).hook = func(m *wire.Msg, tcp bool) []packet {
			if m.Question[0].Qtype == wire.TypeAAAA {
				return []packet{}
			}
			return nil
		}
		w, end := n.client(t, Config{}).watch(t, q)
		defer end()
		pass(patience + 100*time.Millisecond)
		w.wants("1 look-ups have not ended yet", "192.0.2.1:80")
		pass(time.Minute)
		w.wants("no answer in time", "192.0.2.1:80")
	})
}

// Where one family is found the search for the other ends too: the same name under
// another search domain is somebody else's.
func TestDualStackSearch(t *testing.T) {
	for _, tt := range []struct {
		name    string
		records []string
		want    []string
	}{
		{"IPv4 first", []string{"web.one.test. 10 IN A 192.0.2.1", "web.two.test. 10 IN AAAA 2001:db8::2", "web.two.test. 10 IN A 192.0.2.2"}, []string{"192.0.2.1:80"}},
		{"IPv6 first", []string{"web.one.test. 10 IN AAAA 2001:db8::1", "web.two.test. 10 IN A 192.0.2.2"}, []string{"[2001:db8::1]:80"}},
		{"neither first", []string{"web.one.test. 10 IN TXT x", "web.two.test. 10 IN AAAA 2001:db8::2", "web.two.test. 10 IN A 192.0.2.2"}, []string{"192.0.2.2:80", "[2001:db8::2]:80"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNetwork(1)
				n.zone.set(tt.records...)
				q := web()
				q.Name, q.Type = "web", AAAAA
				w, end := n.client(t, Config{Search: []string{"one.test", "two.test"}}).watch(t, q)
				defer end()
				pass(time.Second)
				w.wants("", tt.want...)
				pass(time.Hour)
				w.wants("", tt.want...)
			})
		})
	}
}

// Each kind of failure has its own time after which the records are given up.
func TestHoldOfFailures(t *testing.T) {
	for _, tt := range []struct {
		name  string
		rcode int // -1 is silence
		hold  Hold
		lasts time.Duration
	}{
		{"refused", wire.RcodeRefused, Hold{Refused: time.Minute}, time.Minute},
		{"SERVFAIL", wire.RcodeServerFailure, Hold{Refused: time.Minute}, time.Minute},
		{"timeout", -1, Hold{Timeout: time.Minute}, time.Minute},
		{"another kind", wire.RcodeServerFailure, Hold{Timeout: time.Minute}, 0},
		{"NXDOMAIN", wire.RcodeNameError, Hold{NXDomain: time.Minute, NoData: time.Second}, time.Minute},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNetwork(1)
				n.zone.set(webA + "192.0.2.1")
				q := web()
				q.Hold = tt.hold
				w, end := n.client(t, Config{}).watch(t, q)
				defer end()
				pass(time.Second)
				if tt.rcode < 0 {
					n.server(0).change(func() { n.server(0).down = true })
				} else {
					n.zone.fail("web.test.", tt.rcode)
				}
				pass(50 * time.Second) // the run begins when the TTL is over, after some 10 s
				if set, _, err := w.state(); set.Len() != 1 || err == nil {
					t.Errorf("before: %d endpoints, %v", set.Len(), err)
				}
				pass(2 * time.Minute)
				if set, _, _ := w.state(); (set.Len() == 0) != (tt.lasts > 0) {
					t.Errorf("after: %d endpoints:\n%s", set.Len(), w.rec)
				}
				n.server(0).change(func() { n.server(0).down = false })
				n.zone.fail("web.test.", wire.RcodeSuccess)
				pass(time.Minute)
				w.wants("", "192.0.2.1:80")
			})
		})
	}
}

// Where the kinds change, the time begins anew: nobody is sure then.
func TestHoldBeginsAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(1)
		n.zone.set(webA + "192.0.2.1")
		w, end := n.client(t, Config{}).watch(t, web())
		defer end()
		pass(time.Second)
		i := 0
		n.server(0).change(func() {
			n.server(0).hook = n.server(0).says(func(_, r *wire.Msg) {
				r.Answer, r.Rcode = nil, []int{wire.RcodeNameError, wire.RcodeServerFailure, wire.RcodeServerFailure}[i%3] // which is asked twice
				i++
			})
		})
		pass(time.Hour)
		if set, _, err := w.state(); set.Len() != 1 || err == nil {
			t.Errorf("%d endpoints, %v", set.Len(), err)
		}
	})
}

// TTLs are clamped, and an answer that lacks records is looked at again soon.
func TestTTLClamps(t *testing.T) {
	for _, tt := range []struct {
		ttl  int
		want time.Duration
	}{{1, 5 * time.Second}, {20, 20 * time.Second}, {86400, time.Minute}, {0, 7 * time.Second}} {
		synctest.Test(t, func(t *testing.T) {
			n := newNetwork(1)
			n.zone.set(fmt.Sprintf("web.test. %d IN A 192.0.2.1", tt.ttl))
			q := web()
			q.MinTTL, q.MaxTTL, q.Refresh = 5*time.Second, time.Minute, 7*time.Second
			_, end := n.client(t, Config{}).watch(t, q)
			defer end()
			pass(10 * time.Minute)
			qs := n.queries()
			for i := range qs[1:] {
				if d := qs[i+1].at.Sub(qs[i].at); d < tt.want*85/100 || d > tt.want*115/100+time.Millisecond {
					t.Errorf("TTL %d: next after %v, want %v give or take 15 %%", tt.ttl, d, tt.want)
				}
			}
			if len(qs) < 9 {
				t.Errorf("TTL %d: %d queries", tt.ttl, len(qs))
			}
		})
	}
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(1)
		n.zone.set("web.test. 3000 IN A 192.0.2.1", "web.test. 3000 IN A 192.0.2.2")
		w, end := n.client(t, Config{}).watch(t, web())
		defer end()
		pass(time.Second)
		n.zone.set("web.test. 3000 IN A 192.0.2.1")
		pass(3500 * time.Second)
		w.src.Refresh() // wherever the first look-up was: the second is near
		pass(2 * missingCheck)
		w.wants("", "192.0.2.1:80")
	})
}

// The negative TTL, and not the least back-off, is the time to the next look-up;
// but a hold is not longer for it.
func TestNegativeTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(1)
		n.zone.minTTL = 300
		n.zone.set(webA + "192.0.2.1")
		w, end := n.client(t, Config{}).watch(t, web())
		defer end()
		pass(time.Second)
		n.zone.set()
		pass(15*time.Second + 31*time.Second)
		w.wants("")
		before := len(n.queries())
		pass(time.Hour)
		if got := len(n.queries()) - before; got < 9 || got > 15 {
			t.Errorf("%d queries in an hour with a negative TTL of 5 minutes", got)
		}
	})
}

// A call of Refresh has everything looked up, and many calls don't more often than
// the limit says.
func TestRefresh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(1)
		n.zone.set(srvA, "a.test. 10000 IN A 192.0.2.1")
		n.zone.set(strings.Replace(srvA, " 10 ", " 10000 ", 1), "a.test. 10000 IN A 192.0.2.1")
		w, end := n.client(t, Config{}).watch(t, service())
		defer end()
		pass(time.Minute)
		n.zone.set(strings.Replace(srvA, " 10 ", " 10000 ", 1), "a.test. 10000 IN A 192.0.2.7")
		var r discovery.Refresher = w.src
		r.Refresh()
		pass(10 * time.Millisecond)
		w.wants("", "192.0.2.1:80 w32 p0", "192.0.2.7:80 w32 p0")
		before := len(n.queries())
		for range 1000 {
			r.Refresh()
			pass(100 * time.Millisecond)
		}
		if got := len(n.queries()) - before; got < 2*18 || got > 2*21 {
			t.Errorf("%d queries in 100 s of calls, want 2 every 5 s", got)
		}
		w.wants("", "192.0.2.7:80")
	})
}

// The limit counts for the targets too while the look-up of the name is under way.
func TestRefreshWhileTheNameIsSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(1)
		n.zone.set(srvA, "a.test. 10000 IN A 192.0.2.1")
		c := n.client(t, Config{Timeout: 20 * time.Second, Attempts: 1})
		w, end := c.watch(t, service())
		defer end()
		pass(time.Second)
		w.wants("", "192.0.2.1:80")
		n.server(0).change(func() {
			n.server(0).hook = func(m *wire.Msg, tcp bool) []packet {
				if m.Question[0].Qtype == wire.TypeSRV {
					return []packet{}
				}
				return nil
			}
		})
		pass(15 * time.Second)
		before := len(n.queries())
		for range 150 {
			w.src.Refresh()
			pass(100 * time.Millisecond)
		}
		if got := len(n.queries()) - before; got > 2*4 {
			t.Errorf("%d queries in 15 s of calls, want 2 every 5 s", got)
		}
	})
}

// Look-ups and sockets are bounded, however many targets there are.
func TestManyTargets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(2)
		var lines, want []string
		for i := range 300 {
			lines = append(lines, fmt.Sprintf("_web._tcp.test. 30 IN SRV 1 1 80 t%03d.test.", i), fmt.Sprintf("t%03d.test. 30 IN A 192.0.%d.%d", i, 2+i/250, i%250))
			want = append(want, fmt.Sprintf("192.0.%d.%d:80", 2+i/250, i%250))
		}
		n.zone.set(lines...)
		for i := range 2 {
			n.server(i).delay = 10 * time.Millisecond
		}
		w, end := n.client(t, Config{}).watch(t, service())
		defer end()
		pass(2 * time.Minute)
		w.wants("", want...)
		if n.most > 2*maxLookups {
			t.Errorf("%d sockets at once", n.most)
		}
		for _, r := range w.rec.Reports() {
			if r.Err != nil || r.Set.Len() != 300 {
				t.Fatalf("report: %d endpoints, %v", r.Set.Len(), r.Err)
			}
		}
	})
}

// The largest answers that there are.
func TestAnswersOf64KB(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(1)
		var lines []string
		for i := range 4000 { // 16 bytes each, with compression
			lines = append(lines, fmt.Sprintf("web.test. 30 IN A 10.1.%d.%d", i/250, i%250))
		}
		n.zone.set(lines...)
		w, end := n.client(t, Config{}).watch(t, web())
		defer end()
		pass(time.Second)
		if set, _, err := w.state(); set.Len() != 4000 || err != nil {
			t.Errorf("%d endpoints, %v", set.Len(), err)
		}
		for i := range 1000 { // does not fit any more: truncated by TCP
			lines = append(lines, fmt.Sprintf("web.test. 30 IN A 10.2.%d.%d", i/250, i%250))
		}
		n.zone.set(lines...)
		pass(time.Minute)
		set, _, err := w.state()
		if set.Len() != 4000 || err == nil || !strings.Contains(err.Error(), "truncated") {
			t.Errorf("%d endpoints, %v", set.Len(), err)
		}
	})
}

// An alias whose records an answer lacks is asked for; one that leads nowhere is an
// error.
func TestAliasesAreFollowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(1)
		n.server(0).hook = n.server(0).says(func(m, r *wire.Msg) {
			r.Rcode, r.Ns, r.Answer = 0, nil, nil
			switch name := m.Question[0].Name; name {
			case "web.test.":
				r.Answer = rr("web.test. 10 IN CNAME real.test.")
			case "real.test.":
				r.Answer = rr("real.test. 1000 IN A 192.0.2.1")
			default:
				r.Answer = rr(name + " 10 IN CNAME x" + name)
			}
		})
		c := n.client(t, Config{})
		a, _ := c.ask(t, true)
		if a.class != found || a.ttl != 10*time.Second || fmt.Sprint(a.addrs) != "[192.0.2.1]" {
			t.Errorf("got %v %v %v %v", a.class, a.addrs, a.ttl, a.err)
		}
		a = c.lookup(t.Context(), c.def, question{"endless.test.", wire.TypeA}, manner{doubt: true})
		if !a.class.failed() || !strings.Contains(a.err.Error(), "aliases only") {
			t.Errorf("got %v %v", a.class, a.err)
		}
	})
}

// Sources with nameservers of their own share what is known with those that have
// them in common, and let go of them in the end.
func TestNameserversOfASource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(3)
		n.zone.set(webA + "192.0.2.1")
		all := n.list()
		c := n.client(t, Config{Nameservers: all[:2]})
		q := web()
		q.Nameservers = []netip.AddrPort{all[2], all[1]}
		_, end := c.watch(t, q)
		_, end2 := c.watch(t, q)
		_, end3 := c.watch(t, web())
		pass(time.Hour)
		st := c.Stats()
		var groups []string
		for _, s := range st.Nameservers {
			groups = append(groups, s.Group+" "+s.Address.Addr().String())
			if s.Queries == 0 {
				t.Errorf("%s was never asked", s.Address)
			}
		}
		own := "198.51.100.2:53,198.51.100.3:53"
		if want := []string{"default 198.51.100.1", "default 198.51.100.2", own + " 198.51.100.2", own + " 198.51.100.3"}; !slices.Equal(groups, want) {
			t.Errorf("groups %q, want %q", groups, want)
		}
		if a, b := st.Nameservers[1], st.Nameservers[2]; a.Weight != b.Weight || a.Queries != b.Queries {
			t.Errorf("the same nameserver: %+v and %+v", a, b)
		}
		if st.Watches != 3 {
			t.Errorf("%d watches", st.Watches)
		}
		end()
		end2()
		end3()
		if st := c.Stats(); len(st.Nameservers) != 2 || st.Watches != 0 {
			t.Errorf("in the end: %+v", st)
		}
	})
}

// What was merged is counted, and what was left out is told once.
func TestDuplicatesAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(1)
		n.zone.set(srvA, srvB, "a.test. 10000 IN A 192.0.2.1", "b.test. 10000 IN A 192.0.2.1")
		dups := new(discovery.Duplicates)
		src, err := n.client(t, Config{}).Source(service(), nil, dups)
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan struct{})
		rec := &discoverytest.Recorder{}
		ctx, cancel := contextOf(t)
		go func() { defer close(ended); src.Watch(ctx, rec) }()
		pass(time.Second)
		cancel()
		<-ended
		if got := texts(rec.Reports()[0].Set); fmt.Sprint(got) != "[192.0.2.1:80 w2 p0]" || dups.Total() != 1 {
			t.Errorf("%q, %d duplicates", got, dups.Total())
		}
	})
}
