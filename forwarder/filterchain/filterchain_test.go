package filterchain

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func prefixes(text ...string) (out []netip.Prefix) {
	for _, t := range text {
		out = append(out, netip.MustParsePrefix(t))
	}
	return out
}

func to(text string) netip.AddrPort { return netip.MustParseAddrPort(text) }

// Chains are named, so that the table says which one is meant; "" is none.
func TestFind(t *testing.T) {
	type chains = map[string]Match
	tls := func(name string, alpn ...string) Conn {
		return Conn{TLS: true, ServerName: name, ApplicationProtocols: alpn}
	}
	for _, tt := range []struct {
		name   string
		chains chains
		conn   Conn
		want   string
	}{
		{"no chains", chains{}, Conn{}, ""},
		{"one that takes all", chains{"a": {}}, Conn{Source: to("10.0.0.1:1")}, "a"},

		{"port", chains{"80": {DestinationPort: 80}, "any": {}}, Conn{Destination: to("10.0.0.1:80")}, "80"},
		{"another port", chains{"80": {DestinationPort: 80}, "any": {}}, Conn{Destination: to("10.0.0.1:81")}, "any"},
		{"another port, none", chains{"80": {DestinationPort: 80}}, Conn{Destination: to("10.0.0.1:81")}, ""},
		{"a port, and no way back", chains{"80": {DestinationPort: 80, TransportProtocol: "tls"}, "any": {}}, Conn{Destination: to("10.0.0.1:80")}, ""},

		{"the longest prefix", chains{"8": {PrefixRanges: prefixes("10.0.0.0/8")}, "24": {PrefixRanges: prefixes("10.0.0.0/24")}, "32": {PrefixRanges: prefixes("10.0.0.7/32")}},
			Conn{Destination: to("10.0.0.9:80")}, "24"},
		{"a host", chains{"24": {PrefixRanges: prefixes("10.0.0.0/24")}, "32": {PrefixRanges: prefixes("192.0.2.1/32", "10.0.0.7/32")}},
			Conn{Destination: to("10.0.0.7:80")}, "32"},
		{"a prefix that has bits behind its length", chains{"8": {PrefixRanges: prefixes("10.1.2.3/8")}}, Conn{Destination: to("10.9.9.9:80")}, "8"},
		{"no prefix", chains{"8": {PrefixRanges: prefixes("10.0.0.0/8")}, "any": {}}, Conn{Destination: to("11.0.0.1:80")}, "any"},
		{"prefix before none, and no way back", chains{"8": {PrefixRanges: prefixes("10.0.0.0/8"), ServerNames: []string{"a"}}, "any": {}},
			Conn{Destination: to("10.0.0.1:80")}, ""},
		{"all of a family is more than nothing said", chains{"0": {PrefixRanges: prefixes("0.0.0.0/0")}, "any": {}}, Conn{Destination: to("10.0.0.1:80")}, "0"},
		{"the other family", chains{"0": {PrefixRanges: prefixes("0.0.0.0/0")}, "any": {}}, Conn{Destination: to("[2001:db8::1]:80")}, "any"},
		{"IPv6", chains{"32": {PrefixRanges: prefixes("2001:db8::/32")}, "64": {PrefixRanges: prefixes("2001:db8::/64")}}, Conn{Destination: to("[2001:db8::1]:80")}, "64"},
		{"a mapped prefix", chains{"8": {PrefixRanges: prefixes("::ffff:10.0.0.0/104")}}, Conn{Destination: to("10.0.0.1:80")}, "8"},
		{"an unknown address", chains{"8": {PrefixRanges: prefixes("10.0.0.0/8")}, "0": {PrefixRanges: prefixes("0.0.0.0/0")}}, Conn{}, "0"},

		{"server name", chains{"a": {ServerNames: []string{"a.example.com"}}, "b": {ServerNames: []string{"b.example.com"}}}, tls("b.example.com"), "b"},
		{"server name in capitals", chains{"a": {ServerNames: []string{"A.Example.com"}}}, tls("a.example.com"), "a"},
		{"exact before wildcard", chains{"w": {ServerNames: []string{"*.example.com"}}, "e": {ServerNames: []string{"www.example.com"}}}, tls("www.example.com"), "e"},
		{"the longest wildcard", chains{"1": {ServerNames: []string{"*.com"}}, "2": {ServerNames: []string{"*.example.com"}}, "0": {}}, tls("a.b.example.com"), "2"},
		{"a wildcard of several labels", chains{"1": {ServerNames: []string{"*.com"}}, "0": {}}, tls("a.b.example.com"), "1"},
		{"a wildcard is not for its own name", chains{"w": {ServerNames: []string{"*.example.com"}}, "0": {}}, tls("example.com"), "0"},
		{"a wildcard ends at a label", chains{"w": {ServerNames: []string{"*.example.com"}}}, tls("badexample.com"), ""},
		{"another server name", chains{"a": {ServerNames: []string{"a"}}, "0": {}}, tls("b"), "0"},
		{"no server name", chains{"a": {ServerNames: []string{"a"}}, "0": {}}, tls(""), "0"},
		{"a server name that begins with a dot", chains{"w": {ServerNames: []string{"*.example.com"}}, "0": {}}, tls(".example.com"), "0"},
		{"server name before transport, and no way back", chains{"a": {ServerNames: []string{"a"}, TransportProtocol: "raw_buffer"}, "tls": {TransportProtocol: "tls"}}, tls("a"), ""},

		{"tls", chains{"tls": {TransportProtocol: "tls"}, "raw": {TransportProtocol: "raw_buffer"}}, tls(""), "tls"},
		{"raw", chains{"tls": {TransportProtocol: "tls"}, "raw": {TransportProtocol: "raw_buffer"}}, Conn{}, "raw"},
		{"raw, unsaid", chains{"tls": {TransportProtocol: "tls"}, "any": {}}, Conn{}, "any"},
		{"a transport that there is not", chains{"quic": {TransportProtocol: "quic"}}, tls(""), ""},

		{"ALPN in the client's order", chains{"h2": {ApplicationProtocols: []string{"h2"}}, "h1": {ApplicationProtocols: []string{"http/1.1"}}}, tls("", "http/1.1", "h2"), "h1"},
		{"ALPN, a later one", chains{"h2": {ApplicationProtocols: []string{"x", "h2"}}, "any": {}}, tls("", "istio", "h2"), "h2"},
		{"no ALPN", chains{"h2": {ApplicationProtocols: []string{"h2"}}, "any": {}}, tls(""), "any"},

		{"direct source", chains{"p": {DirectSourcePrefixRanges: prefixes("10.0.0.0/8")}, "any": {}}, Conn{Direct: netip.MustParseAddr("10.0.0.1"), Source: to("192.0.2.1:1")}, "p"},
		{"not the source", chains{"p": {DirectSourcePrefixRanges: prefixes("10.0.0.0/8")}, "any": {}}, Conn{Direct: netip.MustParseAddr("192.0.2.1"), Source: to("10.0.0.1:1")}, "any"},

		{"from loopback", chains{"l": {SourceType: SameIPOrLocal}, "e": {SourceType: ExternalSource}, "any": {}}, Conn{Source: to("127.0.0.1:1"), Destination: to("10.0.0.1:80")}, "l"},
		{"from itself", chains{"l": {SourceType: SameIPOrLocal}, "e": {SourceType: ExternalSource}}, Conn{Source: to("10.0.0.1:1"), Destination: to("10.0.0.1:80")}, "l"},
		{"from elsewhere", chains{"l": {SourceType: SameIPOrLocal}, "e": {SourceType: ExternalSource}}, Conn{Source: to("10.0.0.2:1"), Destination: to("10.0.0.1:80")}, "e"},
		{"from loopback is not from elsewhere", chains{"e": {SourceType: ExternalSource}, "any": {}}, Conn{Source: to("127.0.0.1:1"), Destination: to("10.0.0.1:80")}, "any"},
		{"source type before address, and no way back", chains{"l": {SourceType: SameIPOrLocal, SourcePorts: []uint16{7}}, "any": {}}, Conn{Source: to("127.0.0.1:1")}, ""},

		{"source", chains{"8": {SourcePrefixRanges: prefixes("10.0.0.0/8")}, "16": {SourcePrefixRanges: prefixes("10.1.0.0/16")}}, Conn{Source: to("10.1.2.3:1")}, "16"},
		{"source port", chains{"p": {SourcePorts: []uint16{7, 8}}, "any": {}}, Conn{Source: to("10.0.0.1:8")}, "p"},
		{"another source port", chains{"p": {SourcePorts: []uint16{7, 8}}, "any": {}}, Conn{Source: to("10.0.0.1:9")}, "any"},

		{"the destination goes before the source", chains{"d": {PrefixRanges: prefixes("10.0.0.0/8")}, "s": {SourcePrefixRanges: prefixes("192.0.2.1/32")}},
			Conn{Destination: to("10.0.0.1:80"), Source: to("192.0.2.1:1")}, "d"},
		{"all at once", chains{
			"all": {80, prefixes("10.0.0.0/8"), []string{"a"}, "tls", []string{"h2"}, prefixes("10.0.0.2/32"), ExternalSource, prefixes("10.0.0.0/24"), []uint16{9}},
			"any": {},
		}, Conn{to("10.0.0.1:80"), to("10.0.0.2:9"), netip.MustParseAddr("10.0.0.2"), "a", true, []string{"h2"}}, "all"},
	} {
		var rules []Rule
		for name, m := range tt.chains {
			rules = append(rules, Rule{name, m})
		}
		m, err := New(rules)
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		got := ""
		if i := m.Find(&tt.conn); i >= 0 {
			got = rules[i].Name
		}
		if got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}

func TestNewRefuses(t *testing.T) {
	var many []netip.Prefix
	for i := range 300 {
		many = append(many, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 32))
	}
	for want, rules := range map[string][]Rule{
		`filter chain 1 "b": it matches what filter chain 0 "a" does`:              {{Name: "a"}, {Name: "b"}},
		`filter chain 1 "c": it matches what filter chain 0 "a" does`:              {{"a", Match{ServerNames: []string{"x", "y"}}}, {"c", Match{ServerNames: []string{"Y"}}}},
		`filter chain 1 "d": it matches what filter chain 0 "a" does`:              {{"a", Match{PrefixRanges: prefixes("10.1.2.3/8")}}, {"d", Match{PrefixRanges: prefixes("10.0.0.0/8")}}},
		`filter chain 0 "a": server name "w*.x": want a name, or one that begins`:  {{"a", Match{ServerNames: []string{"w*.x"}}}},
		`filter chain 0 "a": server name "*": want a name`:                         {{"a", Match{ServerNames: []string{"*"}}}},
		`filter chain 0 "a": server name "*.*.x": want`:                            {{"a", Match{ServerNames: []string{"*.*.x"}}}},
		`filter chain 0 "a": server name "": want`:                                 {{"a", Match{ServerNames: []string{""}}}},
		`filter chain 0 "a": an invalid range of addresses`:                        {{"a", Match{SourcePrefixRanges: make([]netip.Prefix, 1)}}},
		`filter chain 0 "a": unknown source type 3`:                                {{"a", Match{SourceType: 3}}},
		`filter chain 0 "a": what the chains list comes to more than 65536 combin`: {{"a", Match{PrefixRanges: many, SourcePrefixRanges: many}}},
	} {
		if _, err := New(rules); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v, want %s…", err, want)
		}
	}
	if _, err := New([]Rule{{"a", Match{ServerNames: []string{"x", "X", "x"}, SourcePorts: []uint16{1, 1}}}}); err != nil {
		t.Errorf("a value that is there twice: %v", err)
	}
}

func TestAsks(t *testing.T) {
	for _, tt := range []struct {
		m                     Match
		inspects, destination bool
	}{
		{Match{}, false, false},
		{Match{ServerNames: []string{"a"}}, true, false},
		{Match{TransportProtocol: "tls"}, true, false},
		{Match{TransportProtocol: "raw_buffer"}, false, false},
		{Match{ApplicationProtocols: []string{"h2"}}, true, false},
		{Match{DestinationPort: 1}, false, true},
		{Match{PrefixRanges: prefixes("::/0")}, false, true},
		{Match{SourceType: ExternalSource}, false, true},
		{Match{SourcePorts: []uint16{1}}, false, false},
	} {
		m, err := New([]Rule{{"a", tt.m}})
		if err != nil {
			t.Fatal(err)
		}
		if m.Inspects() != tt.inspects || m.Destination() != tt.destination {
			t.Errorf("%+v: %t, %t", tt.m, m.Inspects(), m.Destination())
		}
	}
}

// pruned is the rule as the documentation tells it: at each step the chains stay
// whose value is the most specific that matches.
func pruned(rules []Rule, c *Conn) int {
	left := make([]int, len(rules))
	for i := range left {
		left[i] = i
	}
	step := func(score func(*Match) int) { // -1 is no match, 0 nothing said
		best := 0
		for _, i := range left {
			best = max(best, score(&rules[i].Match))
		}
		left = slices.DeleteFunc(left, func(i int) bool { return score(&rules[i].Match) != best })
	}
	within := func(ps []netip.Prefix, a netip.Addr) int {
		if len(ps) == 0 {
			return 0
		}
		best := -1
		for _, p := range ps {
			if p.Contains(known(a)) {
				best = max(best, 1+p.Bits())
			}
		}
		return best
	}
	one := func(said, is bool) int {
		switch {
		case !said:
			return 0
		case is:
			return 1
		}
		return -1
	}
	step(func(m *Match) int { return one(m.DestinationPort != 0, m.DestinationPort == c.Destination.Port()) })
	step(func(m *Match) int { return within(m.PrefixRanges, c.Destination.Addr()) })
	step(func(m *Match) int {
		best := one(len(m.ServerNames) > 0, false)
		for _, s := range m.ServerNames {
			if s == c.ServerName {
				best = max(best, 1000)
			} else if end, ok := strings.CutPrefix(s, "*"); ok && strings.HasSuffix(c.ServerName, end) && len(c.ServerName) > len(end) {
				best = max(best, len(end))
			}
		}
		return best
	})
	step(func(m *Match) int {
		return one(m.TransportProtocol != "", m.TransportProtocol == map[bool]string{true: "tls", false: "raw_buffer"}[c.TLS])
	})
	step(func(m *Match) int {
		best := one(len(m.ApplicationProtocols) > 0, false)
		for i, p := range c.ApplicationProtocols {
			if slices.Contains(m.ApplicationProtocols, p) {
				best = max(best, 1000-i)
			}
		}
		return best
	})
	step(func(m *Match) int { return within(m.DirectSourcePrefixRanges, c.Direct) })
	step(func(m *Match) int { return one(m.SourceType != AnySource, m.SourceType == c.sourceType()) })
	step(func(m *Match) int { return within(m.SourcePrefixRanges, c.Source.Addr()) })
	step(func(m *Match) int {
		return one(len(m.SourcePorts) > 0, slices.Contains(m.SourcePorts, c.Source.Port()))
	})
	if len(left) == 0 {
		return -1
	}
	return left[0] // two would match the same
}

var (
	someAddrs    = []string{"0.0.0.0", "10.0.0.1", "10.0.0.2", "10.0.1.1", "127.0.0.1", "2001:db8::1", "::1"}
	somePrefixes = []string{"0.0.0.0/0", "10.0.0.0/8", "10.0.0.0/24", "10.0.0.1/32", "127.0.0.0/8", "::/0", "2001:db8::/32", "2001:db8::1/128"}
	someNames    = []string{"a.example.com", "b.example.com", "*.example.com", "*.com", "example.com", "*.b.example.com"}
	somePorts    = []uint16{1, 2, 80}
	someALPN     = []string{"h2", "http/1.1", "istio"}
)

func genMatch(t *rapid.T) (m Match) {
	few := func(n int) int { return rapid.IntRange(0, n).Draw(t, "n") }
	for range few(2) {
		m.PrefixRanges = append(m.PrefixRanges, netip.MustParsePrefix(rapid.SampledFrom(somePrefixes).Draw(t, "prefix")))
	}
	for range few(2) {
		m.ServerNames = append(m.ServerNames, rapid.SampledFrom(someNames).Draw(t, "server name"))
	}
	for range few(1) {
		m.ApplicationProtocols = append(m.ApplicationProtocols, rapid.SampledFrom(someALPN).Draw(t, "alpn"))
		m.DirectSourcePrefixRanges = append(m.DirectSourcePrefixRanges, netip.MustParsePrefix(rapid.SampledFrom(somePrefixes).Draw(t, "direct")))
	}
	for range few(1) {
		m.SourcePrefixRanges = append(m.SourcePrefixRanges, netip.MustParsePrefix(rapid.SampledFrom(somePrefixes).Draw(t, "source")))
		m.SourcePorts = append(m.SourcePorts, rapid.SampledFrom(somePorts).Draw(t, "source port"))
	}
	m.DestinationPort = rapid.SampledFrom([]uint16{0, 0, 80, 1}).Draw(t, "port")
	m.TransportProtocol = rapid.SampledFrom([]string{"", "", "tls", "raw_buffer"}).Draw(t, "transport")
	m.SourceType = rapid.SampledFrom([]SourceType{AnySource, AnySource, SameIPOrLocal, ExternalSource}).Draw(t, "type")
	return m
}

func genConn(t *rapid.T) (c Conn) {
	a := func(what string) netip.Addr {
		return netip.MustParseAddr(rapid.SampledFrom(someAddrs).Draw(t, what))
	}
	c.Destination = netip.AddrPortFrom(a("destination"), rapid.SampledFrom(somePorts).Draw(t, "port"))
	c.Source = netip.AddrPortFrom(a("source"), rapid.SampledFrom(somePorts).Draw(t, "source port"))
	c.Direct = a("direct")
	if c.TLS = rapid.Bool().Draw(t, "tls"); c.TLS {
		c.ServerName = rapid.SampledFrom([]string{"", "a.example.com", "x.b.example.com", "b.example.com", "example.com", "x.com", "org"}).Draw(t, "sni")
		c.ApplicationProtocols = rapid.SliceOfNDistinct(rapid.SampledFrom(someALPN), 0, 2, rapid.ID[string]).Draw(t, "alpn")
	}
	return c
}

func TestFindIsPruning(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var rules []Rule
		var m *Matcher
		for i := range rapid.IntRange(0, 6).Draw(t, "chains") {
			more := append(slices.Clone(rules), Rule{fmt.Sprint(i), genMatch(t)})
			if next, err := New(more); err == nil { // else it matches what another one does
				rules, m = more, next
			}
		}
		if m == nil {
			return
		}
		for range 8 {
			c := genConn(t)
			if got, want := m.Find(&c), pruned(rules, &c); got != want {
				t.Fatalf("%+v of %+v: %d, want %d", c, rules, got, want)
			}
		}
	})
}

func TestFindAllocatesNothing(t *testing.T) {
	m, err := New([]Rule{
		{"a", Match{DestinationPort: 80, PrefixRanges: prefixes("10.0.0.0/8", "10.0.0.0/24"), ServerNames: []string{"*.example.com"}, ApplicationProtocols: []string{"h2"}}},
		{"b", Match{}},
	})
	if err != nil {
		t.Fatal(err)
	}
	c := Conn{Destination: to("10.0.0.1:80"), TLS: true, ServerName: "www.example.com", ApplicationProtocols: []string{"h2"}, Source: to("10.0.0.2:1")}
	if n := testing.AllocsPerRun(100, func() {
		if m.Find(&c) != 0 {
			t.Error("not found")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func FuzzFind(f *testing.F) {
	m, err := New([]Rule{
		{"a", Match{ServerNames: []string{"*.example.com", "example.com"}}},
		{"b", Match{PrefixRanges: prefixes("10.0.0.0/8", "2001:db8::/32"), SourcePorts: []uint16{1}}},
		{"c", Match{ApplicationProtocols: []string{"h2"}}},
	})
	if err != nil {
		f.Fatal(err)
	}
	f.Add("www.example.com", "h2", []byte{10, 0, 0, 1}, uint16(80), true)
	f.Add("..", ".", []byte{}, uint16(1), false)
	f.Fuzz(func(t *testing.T, name, alpn string, ip []byte, port uint16, tls bool) {
		a, _ := netip.AddrFromSlice(ip)
		a = a.Unmap().WithZone("")
		c := Conn{Destination: netip.AddrPortFrom(a, port), Source: netip.AddrPortFrom(a, port), Direct: a, ServerName: name, TLS: tls, ApplicationProtocols: []string{alpn}}
		if i := m.Find(&c); i < -1 || i > 2 {
			t.Errorf("%d", i)
		}
	})
}
