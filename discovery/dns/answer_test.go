package dns

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	wire "github.com/miekg/dns"
	"pgregory.net/rapid"

	"gatehouse.internal/lbcore"
)

// message returns an answer to q with these sections.
func message(q question, rcode int, answer, ns, extra []wire.RR) *wire.Msg {
	m := new(wire.Msg)
	m.SetQuestion(q.name, q.typ)
	m.Response, m.RecursionAvailable, m.Rcode = true, true, rcode
	m.Answer, m.Ns, m.Extra = answer, ns, extra
	return m
}

const soa60 = "test. 3600 IN SOA ns.test. root.test. 1 2 3 4 60"

func TestRead(t *testing.T) {
	a := question{"web.test.", wire.TypeA}
	aaaa := question{"web.test.", wire.TypeAAAA}
	s := question{"_web._tcp.test.", wire.TypeSRV}
	chain := func(n int, end ...string) (lines []string) {
		lines = append(lines, "web.test. 60 IN CNAME c0.test.")
		for i := range n {
			lines = append(lines, fmt.Sprintf("c%d.test. 60 IN CNAME c%d.test.", i, i+1))
		}
		return append(lines, end...)
	}
	for _, tt := range []struct {
		name    string
		q       question
		rcode   int
		answer  []string
		ns      []string
		class   class
		records string
		ttl     string // "" is none
		says    string // of the error, or of what is left out
		alias   string
	}{
		{"one", a, 0, []string{"web.test. 60 IN A 192.0.2.1"}, nil, found, "192.0.2.1", "1m0s", "", ""},
		{"sorted, each once, least TTL", a, 0, []string{"web.test. 60 IN A 192.0.2.2", "web.test. 30 IN A 192.0.2.1", "web.test. 90 IN A 192.0.2.2"}, nil, found, "192.0.2.1 192.0.2.2", "30s", "", ""},
		{"case does not matter", a, 0, []string{"WEB.Test. 60 IN A 192.0.2.1"}, nil, found, "192.0.2.1", "1m0s", "", ""},
		{"TTL 0", a, 0, []string{"web.test. 0 IN A 192.0.2.1"}, nil, found, "192.0.2.1", "0s", "", ""},
		{"a TTL above 2^31 is 0", a, 0, []string{"web.test. 4294967295 IN A 192.0.2.1"}, nil, found, "192.0.2.1", "0s", "", ""},
		{"other types", a, 0, []string{"web.test. 1 IN TXT \"x\"", "web.test. 1 IN AAAA 2001:db8::1", "web.test. 60 IN A 192.0.2.1", "web.test. 1 IN HINFO a b"}, nil, found, "192.0.2.1", "1m0s", "", ""},
		{"other names", a, 0, []string{"evil.test. 1 IN A 203.0.113.1", "web.test. 60 IN A 192.0.2.1"}, nil, found, "192.0.2.1", "1m0s", "", ""},
		{"another class", a, 0, []string{"web.test. 1 CH A 203.0.113.1", "web.test. 60 IN A 192.0.2.1"}, nil, found, "192.0.2.1", "1m0s", "", ""},
		{"other names only", a, 0, []string{"evil.test. 1 IN A 203.0.113.1"}, nil, nodata, "", "", "NODATA", ""},
		{"IPv6", aaaa, 0, []string{"web.test. 60 IN AAAA 2001:db8::1"}, nil, found, "2001:db8::1", "1m0s", "", ""},
		{"IPv4 in IPv6", aaaa, 0, []string{"web.test. 60 IN AAAA ::ffff:192.0.2.1"}, nil, found, "192.0.2.1", "1m0s", "", ""},
		{"link-local", aaaa, 0, []string{"web.test. 60 IN AAAA fe80::1", "web.test. 60 IN AAAA 2001:db8::1"}, nil, found, "2001:db8::1", "1m0s", "link-local, and DNS can't tell the IPv6 zone", ""},
		{"link-local only", aaaa, 0, []string{"web.test. 60 IN AAAA fe80::1"}, nil, nodata, "", "", "no record can be used: address fe80::1", ""},
		{"nobody's", a, 0, []string{"web.test. 60 IN A 0.0.0.0", "web.test. 60 IN A 224.0.0.1", "web.test. 60 IN A 192.0.2.1"}, nil, found, "192.0.2.1", "1m0s", "0.0.0.0: is no host's", ""},
		{"NODATA", a, 0, nil, []string{soa60}, nodata, "", "1m0s", "NODATA", ""},
		{"the SOA record's own TTL", a, 0, nil, []string{"test. 20 IN SOA ns.test. root.test. 1 2 3 4 60"}, nodata, "", "20s", "NODATA", ""},
		{"NODATA without SOA", a, 0, nil, nil, nodata, "", "", "NODATA", ""},
		{"NXDOMAIN", a, wire.RcodeNameError, nil, []string{soa60}, nxdomain, "", "1m0s", "NXDOMAIN", ""},
		{"alias", a, 0, []string{"web.test. 30 IN CNAME real.test.", "real.test. 60 IN A 192.0.2.1"}, nil, found, "192.0.2.1", "30s", "", ""},
		{"alias in another order", a, 0, []string{"real.test. 60 IN A 192.0.2.1", "web.test. 30 IN CNAME real.test."}, nil, found, "192.0.2.1", "30s", "", ""},
		{"chain of 15", a, 0, chain(15, "c15.test. 60 IN A 192.0.2.1"), nil, found, "192.0.2.1", "1m0s", "", ""},
		{"chain of 20", a, 0, chain(20, "c20.test. 60 IN A 192.0.2.1"), nil, refused, "", "", "more than 16 aliases", ""},
		{"alias alone", a, 0, []string{"web.test. 30 IN CNAME real.test."}, nil, nodata, "", "", "", "real.test."},
		{"alias and a negative answer", a, 0, []string{"web.test. 30 IN CNAME real.test."}, []string{soa60}, nodata, "", "30s", "", ""},
		{"alias to nowhere", a, wire.RcodeNameError, []string{"web.test. 30 IN CNAME real.test."}, []string{soa60}, nxdomain, "", "30s", "NXDOMAIN", ""},
		{"alias of itself", a, 0, []string{"web.test. 30 IN CNAME web.test."}, nil, refused, "", "", "leads to itself", ""},
		{"circle", a, 0, []string{"web.test. 30 IN CNAME b.test.", "b.test. 30 IN CNAME web.test."}, nil, refused, "", "", "leads to itself", ""},
		{"SRV", s, 0, []string{"_web._tcp.test. 60 IN SRV 2 5 80 B.test.", "_web._tcp.test. 60 IN SRV 1 0 81 a.test."}, nil, found, "1/0 a.test.:81 2/5 b.test.:80", "1m0s", "", ""},
		{"no such service", s, 0, []string{"_web._tcp.test. 60 IN SRV 0 0 0 ."}, nil, nodata, "", "", `the SRV target is "."`, ""},
		{"a dot among others", s, 0, []string{"_web._tcp.test. 60 IN SRV 0 0 0 .", "_web._tcp.test. 60 IN SRV 1 0 81 a.test."}, nil, found, "1/0 a.test.:81", "1m0s", `SRV target "."`, ""},
		{"port 0", s, 0, []string{"_web._tcp.test. 60 IN SRV 1 1 0 a.test.", "_web._tcp.test. 60 IN SRV 1 0 81 a.test."}, nil, found, "1/0 a.test.:81", "1m0s", "port 0", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := message(tt.q, tt.rcode, rr(tt.answer...), rr(tt.ns...), nil)
			got := read(m, tt.q)
			var records []string
			for _, ip := range got.addrs {
				records = append(records, ip.String())
			}
			for _, s := range got.srvs {
				records = append(records, fmt.Sprintf("%d/%d %s:%d", s.priority, s.weight, s.target, s.port))
			}
			ttl := ""
			if got.hasTTL {
				ttl = got.ttl.String()
			}
			says := strings.Join(got.left, "; ")
			if got.err != nil {
				says += got.err.Error()
			}
			if got.class != tt.class || strings.Join(records, " ") != tt.records || got.class != refused && ttl != tt.ttl ||
				!strings.Contains(says, tt.says) || got.alias != tt.alias || (got.class == found) != (got.err == nil) {
				t.Errorf("got %v %q ttl %q says %q alias %q, want %v %q %q %q %q", got.class, records, ttl, says, got.alias,
					tt.class, tt.records, tt.ttl, tt.says, tt.alias)
			}
		})
	}
}

// An SRV answer may name so many targets and no more.
func TestTooManyTargets(t *testing.T) {
	q := question{"_web._tcp.test.", wire.TypeSRV}
	var answer []wire.RR
	for i := range maxTargets + 1 {
		answer = append(answer, &wire.SRV{Hdr: wire.RR_Header{Name: q.name, Rrtype: wire.TypeSRV, Class: wire.ClassINET, Ttl: 9},
			Port: 80, Target: fmt.Sprintf("t%d.", i)})
	}
	if got := read(message(q, 0, answer[1:], nil, nil), q); got.class != found || len(got.srvs) != maxTargets {
		t.Errorf("%d targets: %v %v", maxTargets, got.class, got.err)
	}
	if got := read(message(q, 0, answer, nil, nil), q); got.class != refused || !strings.Contains(got.err.Error(), "1025 SRV targets") {
		t.Errorf("one more: %v %v", got.class, got.err)
	}
}

// Hints are the addresses of the targets, and of nobody else.
func TestHints(t *testing.T) {
	q := question{"_web._tcp.test.", wire.TypeSRV}
	m := message(q, 0, rr("_web._tcp.test. 60 IN SRV 1 1 80 a.test."), nil,
		rr("A.test. 60 IN A 192.0.2.1", "a.test. 60 IN AAAA 2001:db8::1", "b.test. 60 IN A 203.0.113.1", "a.test. 60 IN AAAA fe80::1", "a.test. 60 CH A 203.0.113.2"))
	if got := fmt.Sprint(read(m, q).hints); got != "map[a.test.:[192.0.2.1 2001:db8::1]]" {
		t.Errorf("got %s", got)
	}
}

// Priorities and weights of SRV records become those of endpoints.
func TestEndpoints(t *testing.T) {
	type in struct {
		priority, weight uint16
		host             string
		port             uint16
		addrs            string
	}
	for _, tt := range []struct {
		name   string
		in     []in
		want   string
		merged int
	}{
		{"as they are", []in{{10, 5, "a", 80, "192.0.2.1"}, {10, 7, "b", 81, "192.0.2.2"}}, "192.0.2.1:80 w5 p0, 192.0.2.2:81 w7 p0", 0},
		{"priorities in order", []in{{10, 5, "a", 80, "192.0.2.1"}, {500, 5, "b", 80, "192.0.2.2"}, {60000, 5, "c", 80, "192.0.2.3"}},
			"192.0.2.1:80 w5 p0, 192.0.2.2:80 w5 p1, 192.0.2.3:80 w5 p2", 0},
		{"all weights 0 are equal", []in{{1, 0, "a", 80, "192.0.2.1"}, {1, 0, "b", 80, "192.0.2.2"}}, "192.0.2.1:80, 192.0.2.2:80", 0},
		{"0 beside others is little", []in{{1, 0, "a", 80, "192.0.2.1"}, {1, 2, "b", 80, "192.0.2.2"}}, "192.0.2.1:80, 192.0.2.2:80 w128 p0", 0},
		{"0 in another tier", []in{{1, 5, "a", 80, "192.0.2.1"}, {2, 0, "b", 80, "192.0.2.2"}}, "192.0.2.1:80 w5 p0, 192.0.2.2:80 w1 p1", 0},
		{"a target's weight is shared by its addresses", []in{{1, 2, "a", 80, "192.0.2.1 2001:db8::1"}, {1, 2, "b", 80, "192.0.2.2"}},
			"192.0.2.1:80 w64 p0, 192.0.2.2:80 w128 p0, [2001:db8::1]:80 w64 p0", 0},
		{"one address in two records", []in{{1, 2, "a", 80, "192.0.2.1"}, {1, 3, "b", 80, "192.0.2.1"}}, "192.0.2.1:80 w5 p0", 1},
		{"one address in two tiers", []in{{1, 2, "a", 80, "192.0.2.1"}, {2, 3, "b", 80, "192.0.2.1"}, {2, 3, "b", 81, "192.0.2.1"}}, "192.0.2.1:80 w2 p0, 192.0.2.1:81 w3 p1", 1},
		{"a target without addresses", []in{{1, 2, "a", 80, ""}, {1, 3, "b", 80, "192.0.2.1"}}, "192.0.2.1:80 w3 p0", 0},
		{"the largest weights", []in{{1, 65535, "a", 80, "192.0.2.1 192.0.2.2"}, {1, 0, "b", 80, "192.0.2.3"}},
			"192.0.2.1:80 w2097120 p0, 192.0.2.2:80 w2097120 p0, 192.0.2.3:80", 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var targets []target
			for _, x := range tt.in {
				tg := target{srv: srv{x.host + ".test.", x.port, x.priority, x.weight}}
				for _, a := range strings.Fields(x.addrs) {
					tg.addrs = append(tg.addrs, netip.MustParseAddr(a))
				}
				targets = append(targets, tg)
			}
			eps, merged := endpoints(targets)
			set, dropped, err := lbcore.NewSet(eps)
			if err != nil || len(dropped) > 0 {
				t.Fatal(err, dropped)
			}
			if got := strings.Join(texts(set), ", "); got != tt.want || len(merged) != tt.merged {
				t.Errorf("got %s (%d merged), want %s (%d)", got, len(merged), tt.want, tt.merged)
			}
		})
	}
}

// More tiers than there are priorities share the last one.
func TestManyTiers(t *testing.T) {
	var targets []target
	for i := range 300 {
		targets = append(targets, target{srv{"a.test.", uint16(i + 1), uint16(i), 1}, []netip.Addr{netip.MustParseAddr("192.0.2.1")}})
	}
	eps, _ := endpoints(targets)
	for i, e := range eps {
		if want := min(i, lbcore.MaxPriority); int(e.Priority) != want {
			t.Fatalf("tier %d has the priority %d, want %d", i, e.Priority, want)
		}
	}
}

// Whatever the records: each address once, in its best tier; in a tier nobody has
// the weight 0, and the shares of targets of one address are those of the weights.
func TestEndpointsProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var targets []target
		for i := range rapid.IntRange(0, 20).Draw(t, "targets") {
			tg := target{srv: srv{
				fmt.Sprintf("t%d.test.", i), uint16(rapid.IntRange(1, 3).Draw(t, "port")),
				uint16(rapid.SampledFrom([]int{0, 1, 7, 300, 65535}).Draw(t, "priority")), rapid.Uint16().Draw(t, "weight"),
			}}
			for range rapid.IntRange(0, 3).Draw(t, "addresses") {
				tg.addrs = append(tg.addrs, netip.AddrFrom4([4]byte{192, 0, 2, byte(rapid.IntRange(1, 9).Draw(t, "address"))}))
			}
			slices.SortFunc(tg.addrs, netip.Addr.Compare)
			tg.addrs = slices.Compact(tg.addrs)
			targets = append(targets, tg)
		}
		slices.SortFunc(targets, func(a, b target) int { return compareSRV(a.srv, b.srv) })
		eps, merged := endpoints(targets)
		set, dropped, err := lbcore.NewSet(eps)
		if err != nil || len(dropped) > 0 {
			t.Fatal(err, dropped)
		}
		best := make(map[lbcore.Addr]uint16)
		tiers := make(map[uint16]bool)
		all := 0
		for _, tg := range targets {
			tiers[tg.priority] = true
			for _, ip := range tg.addrs {
				all++
				a := lbcore.IPAddr(netip.AddrPortFrom(ip, tg.port))
				if p, ok := best[a]; !ok || tg.priority < p {
					best[a] = tg.priority
				}
			}
		}
		if set.Len() != len(best) || all != set.Len()+len(merged) {
			t.Fatalf("%d endpoints of %d addresses, %d merged of %d", set.Len(), len(best), len(merged), all)
		}
		order := slices.Sorted(func(yield func(uint16) bool) {
			for p := range tiers {
				if !yield(p) {
					return
				}
			}
		})
		for _, e := range set.All() {
			if want := slices.Index(order, best[e.Addr]); int(e.Priority) != want || e.Weight == 0 {
				t.Fatalf("%v: priority %d, want %d; weight %d", e.Addr, e.Priority, want, e.Weight)
			}
		}
	})
}

func TestParseResolvConf(t *testing.T) {
	got := parseResolvConf([]byte(`
# a comment
nameserver 192.0.2.1 ; another
nameserver 192.0.2.1
nameserver [2001:db8::1]
nameserver 192.0.2.2:5353
nameserver fe80::1%eth0
nameserver example.org
nameserver 0.0.0.0
domain old.test
search One.test . two.test. bad..name
options ndots:3 timeout:7 attempts:9 rotate use-vc edns0 ndots:x
sortlist 10.0.0.0
nameserver
`))
	want := "[192.0.2.1:53 [2001:db8::1]:53 192.0.2.2:5353 127.0.0.1:53] [one.test. two.test.] 3 7s 5 true"
	if s := fmt.Sprint(got.servers, got.search, got.ndots, got.timeout, got.attempts, got.tcp); s != want {
		t.Errorf("got %s\nwant %s", s, want)
	}
	for i, part := range []string{"an IPv6 zone is not supported", `"example.org": want an IP address`, "bad..name"} {
		if i >= len(got.refused) || !strings.Contains(got.refused[i], part) {
			t.Errorf("refused %q, want one with %q", got.refused, part)
		}
	}
	if got := parseResolvConf(nil); got.ndots != 1 || len(got.servers)+len(got.search) > 0 {
		t.Errorf("of nothing: %+v", got)
	}
	many := strings.Repeat("nameserver 192.0.2.", 1) + "1\n"
	for i := range 100 {
		many += fmt.Sprintf("nameserver 192.0.2.%d\nsearch %s\n", i, strings.Repeat(fmt.Sprintf("s%d.test ", i), 60))
	}
	if got := parseResolvConf([]byte(many)); len(got.servers) != maxServers || len(got.search) != maxSearch {
		t.Errorf("%d nameservers, %d search domains", len(got.servers), len(got.search))
	}
}

func TestValidate(t *testing.T) {
	for _, tt := range []struct {
		name string
		err  error
		want []string
	}{
		{"nothing", Query{}.Validate(), []string{"name: is missing", "type: \"\""}},
		{"no port", Query{Name: "web.test", Type: A}.Validate(), []string{"port: is missing"}},
		{"port of SRV", Query{Name: "web.test", Type: SRV, Port: 1}.Validate(), []string{"port: is for addresses"}},
		{"address", Query{Name: "192.0.2.1", Type: A, Port: 1}.Validate(), []string{"name: 192.0.2.1 is an address"}},
		{"zone", Query{Name: "fe80::1%eth0", Type: AAAA, Port: 1}.Validate(), []string{"name: fe80::1%eth0 is an address"}},
		{"long label", Query{Name: strings.Repeat("x", 64) + ".test", Type: A, Port: 1}.Validate(), []string{"name: ", "is no domain name"}},
		{"long name", Query{Name: strings.Repeat("x.", 200), Type: A, Port: 1}.Validate(), []string{"name: ", "is no domain name"}},
		{"umlaut", Query{Name: "wéb.test", Type: A, Port: 1}.Validate(), []string{"punycode"}},
		{"blank", Query{Name: "a b", Type: A, Port: 1}.Validate(), []string{"visible ASCII"}},
		{"root", Query{Name: ".", Type: A, Port: 1}.Validate(), []string{"no domain name"}},
		{"targets", Query{Name: "web.test", Type: A, Port: 1, Targets: A}.Validate(), []string{"targets: is for"}},
		{"times", Query{Name: "web.test", Type: A, Port: 1, MinTTL: time.Minute, MaxTTL: time.Second, MinBackoff: -1, Misses: 11, Hold: Hold{NoData: -1}, Refresh: -1, RefreshLimit: -1}.Validate(),
			[]string{"min_ttl: ", "min_backoff: ", "misses: ", "hold: ", "refresh: ", "refresh_limit: "}},
		{"nameservers", Query{Name: "web.test", Type: A, Port: 1, Nameservers: []netip.AddrPort{netip.MustParseAddrPort("[fe80::1%eth0]:53")}}.Validate(),
			[]string{"nameservers: ", "an IPv6 zone is not supported"}},
		{"client", Config{NDots: 99, Stagger: -1, Timeout: time.Hour, Attempts: 99, Search: []string{"a..b"}, Nameservers: make([]netip.AddrPort, 17)}.Validate(),
			[]string{"ndots: ", "stagger: ", "timeout: ", "attempts: ", "search: ", "nameservers: 17 of them"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.err == nil {
				t.Fatal("no error")
			}
			for _, part := range tt.want {
				if !strings.Contains(tt.err.Error(), part) {
					t.Errorf("got %q, want %q in it", tt.err, part)
				}
			}
		})
	}
	for _, q := range []Query{
		{Name: "web", Type: A, Port: 80}, {Name: "_web._tcp.test.", Type: SRV}, {Name: "web.test.", Type: AAAAA, Port: 65535},
	} {
		if err := q.Validate(); err != nil {
			t.Errorf("%+v: %v", q, err)
		}
	}
	if err := (Config{}).Validate(); err != nil {
		t.Error(err)
	}
	if _, err := New(Config{NDots: 99}); err == nil {
		t.Error("New takes a mistake")
	}
}
