package dns

import (
	"context"
	"fmt"
	"math"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	wire "github.com/miekg/dns"
)

// first has draws of nameservers begin with the one that is wanted: weights are
// equal at first.
func (c *Client) first(i int) {
	n := uint64(len(c.def.settings().servers))
	c.draw = func() uint64 {
		for x := uint64(1); ; x++ {
			if draws(x, n) == uint64(i) {
				return x
			}
		}
	}
	cfg := c.cfg.Load()
	c.def.use(cfg, cfg.servers, resolvConf{ndots: defaultNDots}) // a selector is built anew
}

// draws is where the first draw of adaptive.Selector from a seed ends, while all
// weights are equal: see its Next.
func draws(seed, n uint64) uint64 {
	at := seed + 0x9e3779b97f4a7c15
	x := (at ^ at>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	x ^= x >> 31
	if x%64 == 0 {
		return n
	}
	return uint64(float64(x) / (1 << 64) * float64(n))
}

// ask looks web.test up once, and returns what it took.
func (c *Client) ask(t *testing.T, doubt bool) (answer, time.Duration) {
	t.Helper()
	began := time.Now()
	a := c.lookup(t.Context(), c.def, question{"web.test.", wire.TypeA}, manner{doubt: doubt})
	return a, time.Since(began)
}

// halved allows for the rounding of weights.
func halved(weight, before float64) bool { return math.Abs(weight-before/2) < 0.01 }

func (c *Client) stats(i int) NameserverStats { return c.Stats().Nameservers[i] }

// After the stagger the next nameserver is asked; the first is not cancelled, and
// the first answer wins, whoever's it is.
func TestStagger(t *testing.T) {
	for _, tt := range []struct {
		name   string
		delays []time.Duration
		took   time.Duration
		asked  []int // queries of each
		winner int
		late   []int
	}{
		{"the first is fast", []time.Duration{10, 1, 1}, 10, []int{1, 0, 0}, 0, nil},
		{"the second is faster", []time.Duration{500, 20, 1}, 170, []int{1, 1, 0}, 1, []int{0}},
		{"the first wins in the end", []time.Duration{200, 100, 1}, 200, []int{1, 1, 0}, 0, []int{1}},
		{"the third is asked too", []time.Duration{1000, 1000, 20}, 320, []int{1, 1, 1}, 2, []int{0, 1}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNetwork(3)
				n.zone.set(webA + "192.0.2.1")
				for i, d := range tt.delays {
					n.server(i).delay = d * time.Millisecond
				}
				c := n.client(t, Config{})
				c.first(0)
				before := c.Stats().Nameservers
				a, took := c.ask(t, false)
				if a.class != found || took != tt.took*time.Millisecond {
					t.Fatalf("got %v %v after %v", a.class, a.err, took)
				}
				for i, s := range c.Stats().Nameservers {
					if int(s.Queries) != tt.asked[i] || (s.Won == 1) != (i == tt.winner) || (s.Late == 1) != slices.Contains(tt.late, i) {
						t.Errorf("nameserver %d: %+v", i, s)
					}
					switch was := before[i].Weight; {
					case slices.Contains(tt.late, i) && !halved(s.Weight, was):
						t.Errorf("nameserver %d was late: weight %v, was %v", i, s.Weight, was)
					case i == tt.winner && s.Weight == was:
						t.Errorf("nameserver %d: its latency was not observed", i)
					case i == tt.winner && s.Latency != min(tt.delays[i]*time.Millisecond, tt.took*time.Millisecond):
						t.Errorf("nameserver %d: latency %v", i, s.Latency)
					case i != tt.winner && !slices.Contains(tt.late, i) && s.Weight != was:
						t.Errorf("nameserver %d was not asked: weight %v, was %v", i, s.Weight, was)
					}
				}
			})
		})
	}
}

// What is an answer, and what a failure: then the next is asked at once.
func TestFailuresGoOn(t *testing.T) {
	rcode := func(code int) func(*nameserver) {
		return func(s *nameserver) { s.hook = s.says(func(_, r *wire.Msg) { r.Answer, r.Rcode = nil, code }) }
	}
	for _, tt := range []struct {
		name   string
		first  func(s *nameserver)
		failed bool
		class  class
		took   time.Duration
	}{
		{"SERVFAIL", rcode(wire.RcodeServerFailure), true, found, 2},
		{"REFUSED", rcode(wire.RcodeRefused), true, found, 2},
		{"NXDOMAIN", rcode(wire.RcodeNameError), false, nxdomain, 1},
		{"NODATA", func(s *nameserver) {
			s.hook = s.says(func(_, r *wire.Msg) { r.Answer, r.Ns = nil, rr("test. 9 IN SOA ns.test. root.test. 1 2 3 4 5") })
		}, false, nodata, 1},
		{"garbage", func(s *nameserver) {
			s.hook = func(m *wire.Msg, _ bool) []packet {
				r := fit(m, s.zone.reply(m), false)
				return []packet{{data: append(r[:30:30], 0xc0, 0xff, 0xff, 0xff, 0xff)}}
			}
		}, true, found, 2},
		{"a referral", func(s *nameserver) {
			s.hook = s.says(func(_, r *wire.Msg) {
				r.Answer, r.RecursionAvailable, r.Ns = nil, false, rr("test. 9 IN NS ns.test.")
			})
		}, true, found, 2},
		{"silence", func(s *nameserver) { s.down = true }, false, found, 151},
		{"no nameserver", func(s *nameserver) { s.hook = func(*wire.Msg, bool) []packet { return []packet{} } }, false, found, 151},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNetwork(3)
				n.zone.set(webA + "192.0.2.1")
				tt.first(n.server(0))
				c := n.client(t, Config{})
				c.first(0)
				before := c.stats(0).Weight
				a, took := c.ask(t, false)
				if a.class != tt.class || took != tt.took*time.Millisecond {
					t.Errorf("got %v (%v) after %v", a.class, a.err, took)
				}
				s := c.stats(0)
				if (s.Failures == 1) != tt.failed {
					t.Errorf("%d failures", s.Failures)
				}
				if lost := tt.failed || tt.took > 100; lost != halved(s.Weight, before) {
					t.Errorf("weight %v, was %v", s.Weight, before)
				}
			})
		})
	}
}

// All fail: the error names each, and the kind is that of the best.
func TestAllFail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(3)
		n.server(0).down = true
		n.server(1).hook = n.server(1).says(func(_, r *wire.Msg) { r.Rcode = wire.RcodeServerFailure })
		n.server(2).hook = n.server(2).says(func(_, r *wire.Msg) { r.Rcode = wire.RcodeRefused })
		c := n.client(t, Config{})
		a, took := c.ask(t, false)
		want := "A web.test.: 198.51.100.1:53: no answer in time; 198.51.100.2:53: the nameserver says SERVFAIL; 198.51.100.3:53: the nameserver says REFUSED"
		if a.class != refused || a.err.Error() != want || took > 5*time.Second {
			t.Errorf("got %v %v after %v", a.class, a.err, took)
		}
		n.server(1).change(func() { n.server(1).down = true })
		n.server(2).change(func() { n.server(2).down = true })
		if a, took = c.ask(t, false); a.class != timeout || took < 4*time.Second || took > 5*time.Second {
			t.Errorf("got %v %v after %v", a.class, a.err, took)
		}
	})
}

// An answer without addresses where addresses exist elsewhere is a failure.
func TestEmptyAnswerIsConfirmed(t *testing.T) {
	for _, code := range []int{wire.RcodeSuccess, wire.RcodeNameError} {
		lie := func(s *nameserver) {
			s.hook = s.says(func(_, r *wire.Msg) {
				r.Answer, r.Rcode, r.Ns = nil, code, rr("test. 9 IN SOA ns.test. root.test. 1 2 3 4 5")
			})
		}
		for _, tt := range []struct {
			name   string
			liars  int
			down   int // behind the liars
			doubt  bool
			found  bool
			took   time.Duration
			failed int
		}{
			{"one lies", 1, 0, true, true, 2, 1},
			{"one lies and nobody doubts", 1, 0, false, false, 1, 0},
			{"two agree", 2, 0, true, false, 2, 0},
			{"the next is dead", 1, 1, true, true, 152, 1},
			{"all others are dead", 1, 2, true, false, 2001 + 150, 0},
		} {
			t.Run(fmt.Sprint(wire.RcodeToString[code], " ", tt.name), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					n := newNetwork(3)
					n.zone.set(webA + "192.0.2.1")
					for i := range tt.liars {
						lie(n.server(i))
					}
					for i := range tt.down {
						n.server(tt.liars + i).down = true
					}
					c := n.client(t, Config{})
					c.first(0)
					a, took := c.ask(t, tt.doubt)
					if (a.class == found) != tt.found || a.class.failed() || took.Milliseconds() != int64(tt.took) {
						t.Errorf("got %v (%v) after %v", a.class, a.err, took)
					}
					if got := int(c.stats(0).Failures); got != tt.failed {
						t.Errorf("the first has %d failures", got)
					}
				})
			})
		}
	}
}

// Three nameservers, of which the best dies and comes back.
func TestTheBestDies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(3)
		n.zone.set(webA + "192.0.2.1")
		for i, d := range []time.Duration{1, 20, 200} {
			n.server(i).delay = d * time.Millisecond
		}
		c := n.client(t, Config{})
		many := func(count int) (median, p99 time.Duration) {
			var all []time.Duration
			for range count {
				a, took := c.ask(t, false)
				if a.class != found {
					t.Fatalf("%v: %v", a.class, a.err)
				}
				all = append(all, took)
			}
			slices.Sort(all)
			return all[count/2], all[count*99/100]
		}
		many(500)
		if median, _ := many(1000); median != time.Millisecond || c.stats(0).Share < 0.8 {
			t.Errorf("before: median %v, share of the best %v", median, c.stats(0).Share)
		}
		n.server(0).change(func() { n.server(0).down = true })
		median, p99 := many(1000)
		if median != 20*time.Millisecond || p99 > 2*(20+150)*time.Millisecond {
			t.Errorf("after its death: median %v, p99 %v", median, p99)
		}
		if share := c.stats(0).Share; share > 0.01 {
			t.Errorf("share of the dead one: %v", share)
		}
		n.server(0).change(func() { n.server(0).down = false })
		many(2000)
		if median, _ := many(500); median != time.Millisecond || c.stats(0).Share < 0.5 {
			t.Errorf("after its return: median %v, share %v", median, c.stats(0).Share)
		}
		if n.open != 0 || n.most > 4 {
			t.Errorf("%d sockets open, %d at most", n.open, n.most)
		}
	})
}

// What comes from elsewhere, with another id or to another question is dropped and
// counted, and the answer behind it is taken.
func TestLies(t *testing.T) {
	elsewhere := netip.MustParseAddrPort("203.0.113.9:53")
	for _, tt := range []struct {
		name string
		lie  func(m, r *wire.Msg) packet
	}{
		{"from elsewhere", func(m, r *wire.Msg) packet { return packet{fit(m, r, false), elsewhere} }},
		{"another port", func(m, r *wire.Msg) packet {
			return packet{fit(m, r, false), netip.MustParseAddrPort("198.51.100.1:54")}
		}},
		{"another id", func(m, r *wire.Msg) packet { r.Id++; return packet{data: fit(m, r, false)} }},
		{"another name", func(m, r *wire.Msg) packet {
			r.Question = slices.Clone(r.Question)
			r.Question[0].Name = "evil.test."
			return packet{data: fit(m, r, false)}
		}},
		{"another type", func(m, r *wire.Msg) packet {
			r.Question = slices.Clone(r.Question)
			r.Question[0].Qtype = wire.TypeTXT
			return packet{data: fit(m, r, false)}
		}},
		{"another class", func(m, r *wire.Msg) packet {
			r.Question = slices.Clone(r.Question)
			r.Question[0].Qclass = wire.ClassCHAOS
			return packet{data: fit(m, r, false)}
		}},
		{"no question", func(m, r *wire.Msg) packet { r.Question = nil; return packet{data: fit(m, r, false)} }},
		{"a query", func(m, r *wire.Msg) packet { r.Response = false; return packet{data: fit(m, r, false)} }},
		{"another opcode", func(m, r *wire.Msg) packet { r.Opcode = wire.OpcodeUpdate; return packet{data: fit(m, r, false)} }},
		{"short", func(m, r *wire.Msg) packet { return packet{data: fit(m, r, false)[:11]} }},
		{"nothing", func(m, r *wire.Msg) packet { return packet{data: []byte{}} }},
		{"truncated, from elsewhere", func(m, r *wire.Msg) packet { r.Truncated = true; return packet{fit(m, r, false), elsewhere} }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNetwork(1)
				n.zone.set(webA + "192.0.2.1")
				n.server(0).hook = func(m *wire.Msg, tcp bool) []packet {
					lie := n.zone.reply(m)
					lie.Answer = rr(webA + "203.0.113.66")
					return []packet{tt.lie(m, lie), {data: fit(m, n.zone.reply(m), tcp)}}
				}
				c := n.client(t, Config{})
				a, _ := c.ask(t, false)
				if a.class != found || fmt.Sprint(a.addrs) != "[192.0.2.1]" {
					t.Errorf("got %v %v", a.addrs, a.err)
				}
				if s := c.stats(0); s.Strays != 1 || s.TCP != 0 {
					t.Errorf("%+v", s)
				}
			})
		})
	}
}

// Where many guess, TCP is used, and a flood does not end the look-up.
func TestFloodOfLies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(1)
		n.zone.set(webA + "192.0.2.1")
		n.server(0).hook = func(m *wire.Msg, tcp bool) (ps []packet) {
			if tcp {
				return nil
			}
			for i := range 90 {
				r := n.zone.reply(m)
				r.Id += uint16(i + 1)
				ps = append(ps, packet{data: fit(m, r, false)})
			}
			return ps
		}
		c := n.client(t, Config{})
		if a, _ := c.ask(t, false); a.class != found {
			t.Errorf("got %v", a.err)
		}
		if s := c.stats(0); s.Strays != maxStrays || s.TCP != 1 {
			t.Errorf("%+v", s)
		}
	})
}

// Nameservers that don't know EDNS0 say so, or are silent: they are asked without.
func TestWithoutEDNS0(t *testing.T) {
	for _, tt := range []struct {
		name string
		hook func(n *network, m *wire.Msg, tcp bool) []packet
		took time.Duration
	}{
		{"FORMERR", func(n *network, m *wire.Msg, tcp bool) []packet {
			r := n.zone.reply(m)
			r.Answer, r.Rcode = nil, wire.RcodeFormatError
			return []packet{{data: fit(new(wire.Msg), r, false)}}
		}, 2 * time.Millisecond},
		{"FORMERR without the question", func(n *network, m *wire.Msg, tcp bool) []packet {
			r := n.zone.reply(m)
			r.Answer, r.Question, r.Rcode = nil, nil, wire.RcodeFormatError
			return []packet{{data: fit(new(wire.Msg), r, false)}}
		}, 2 * time.Millisecond},
		{"NOTIMP", func(n *network, m *wire.Msg, tcp bool) []packet {
			r := n.zone.reply(m)
			r.Answer, r.Rcode = nil, wire.RcodeNotImplemented
			return []packet{{data: fit(new(wire.Msg), r, false)}}
		}, 2 * time.Millisecond},
		{"silence", func(*network, *wire.Msg, bool) []packet { return []packet{} }, 2*time.Second + time.Millisecond},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNetwork(1)
				n.zone.set(webA + "192.0.2.1")
				n.server(0).hook = func(m *wire.Msg, tcp bool) []packet {
					if m.IsEdns0() == nil {
						return nil
					}
					return tt.hook(n, m, tcp)
				}
				c := n.client(t, Config{})
				if a, took := c.ask(t, false); a.class != found || took != tt.took {
					t.Errorf("got %v after %v", a.err, took)
				}
				if a, took := c.ask(t, false); tt.name != "silence" && (a.class != found || took != time.Millisecond) {
					t.Errorf("the second time: got %v after %v", a.err, took)
				}
			})
		})
	}
}

// Names without a dot at their end are tried with search domains, a failure ends
// the search.
func TestSearch(t *testing.T) {
	for _, tt := range []struct {
		name  string
		ndots int
		asked string
		class class
	}{
		{"web.test.", 1, "web.test.", nxdomain},
		{"web.test", 1, "web.test. web.test.one.test. web.test.two.test.", nxdomain},
		{"web", 1, "web.one.test. web.two.test.", found},
		{"web.test", 2, "web.test.one.test. web.test.two.test. web.test.", nxdomain},
		{"sick", 1, "sick.one.test.", refused},
		{"half", 1, "half.one.test. half.two.test.", nodata},
		{"only", 1, "only.one.test. only.two.test. only.", nodata},
	} {
		t.Run(fmt.Sprintf("%s, %d", tt.name, tt.ndots), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNetwork(1)
				n.zone.set("web.two.test. 9 IN A 192.0.2.1", "only.one.test. 9 IN TXT \"x\"")
				n.zone.records = append(n.zone.records, rr("half.one.test. 9 IN TXT \"x\"")...)
				n.zone.fail("sick.one.test.", wire.RcodeServerFailure)
				n.zone.fail("half.two.test.", wire.RcodeRefused)
				c := n.client(t, Config{Search: []string{"one.test", "two.test."}, NDots: tt.ndots, Attempts: 1})
				a := c.lookup(t.Context(), c.def, question{tt.name, wire.TypeA}, manner{})
				var names []string
				for _, q := range n.queries() {
					names = append(names, q.q.Name)
				}
				if got := strings.Join(names, " "); got != tt.asked || a.class != tt.class {
					t.Errorf("asked %q (%v), want %q (%v)", got, a.class, tt.asked, tt.class)
				}
			})
		})
	}
}

// resolv.conf is read again when it has changed; weights of those that stay, stay.
func TestResolvConfIsReadAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "resolv.conf")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path+".new", []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
	write("nameserver 198.51.100.1\nnameserver 198.51.100.2\nsearch test\n")
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(3)
		n.zone.set(webA + "192.0.2.1")
		c := n.client(t, Config{Nameservers: []netip.AddrPort{}, ResolvConf: path})
		addrs := func() (all []string) {
			for _, s := range c.Stats().Nameservers {
				all = append(all, s.Address.String())
			}
			return all
		}
		look := func(want class) {
			t.Helper()
			if a := c.lookup(t.Context(), c.def, question{"web", wire.TypeA}, manner{}); a.class != want {
				t.Errorf("got %v (%v), want %v", a.class, a.err, want)
			}
		}
		look(found)
		for range 10 {
			c.ask(t, false)
		}
		weight, queries := c.stats(1).Weight, c.stats(1).Queries
		write("# nobody\nnameserver 198.51.100.2\nnameserver fe80::1%eth0\nnameserver 198.51.100.3 # new\noptions ndots:1 timeout:1\n")
		look(found) // not yet
		pass(confEvery)
		look(nxdomain)
		if got := addrs(); !slices.Equal(got, []string{"198.51.100.2:53", "198.51.100.3:53"}) {
			t.Errorf("nameservers %q", got)
		}
		if s := c.stats(0); s.Queries < queries || queries > 0 && s.Weight == 0 || weight > 1 && s.Weight <= 1 {
			t.Errorf("what was known of the second is lost: %+v", s)
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		pass(confEvery)
		look(nxdomain)
		if got := addrs(); len(got) != 2 {
			t.Errorf("without the file: nameservers %q", got)
		}
		write("nameserver 198.51.100.1\nsearch test")
		pass(confEvery)
		look(found)
		if got := addrs(); !slices.Equal(got, []string{"198.51.100.1:53"}) {
			t.Errorf("nameservers %q", got)
		}
	})
}

// An end of the context is nobody's fault.
func TestCancelledLookupBlamesNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(3)
		for i := range 3 {
			n.server(i).down = true
		}
		c := n.client(t, Config{})
		before := c.Stats().Nameservers
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		a := c.lookup(ctx, c.def, question{"web.test.", wire.TypeA}, manner{})
		if !a.class.failed() {
			t.Errorf("got %v", a.class)
		}
		for i, s := range c.Stats().Nameservers {
			if s.Weight != before[i].Weight || s.Failures+s.Late > 0 {
				t.Errorf("%+v", s)
			}
		}
		synctest.Wait()
		if n.open != 0 {
			t.Errorf("%d sockets are open", n.open)
		}
	})
}

// An answer that is larger than what was offered is asked for by TCP.
func TestLargePacket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(1)
		var lines []string
		for i := range 250 {
			lines = append(lines, fmt.Sprintf("%s192.0.2.%d", webA, i), fmt.Sprintf("%s198.51.100.%d", webA, i))
		}
		n.zone.set(lines...)
		n.server(0).hook = func(m *wire.Msg, tcp bool) []packet {
			return []packet{{data: fit(m, n.zone.reply(m), true)}} // whatever the limit is
		}
		c := n.client(t, Config{})
		if a, _ := c.ask(t, false); len(a.addrs) != 500 || c.stats(0).TCP != 1 {
			t.Errorf("%d addresses, %v; %+v", len(a.addrs), a.err, c.stats(0))
		}
	})
}

// A resolv.conf that is no file holds nobody up.
func TestResolvConfIsNoFile(t *testing.T) {
	c, err := New(Config{ResolvConf: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	if got := c.Stats().Nameservers; len(got) != 1 || got[0].Address.String() != "127.0.0.1:53" {
		t.Errorf("nameservers %+v", got)
	}
}
