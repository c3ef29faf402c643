package rbac

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

const web = "spiffe://example.org/ns/default/svc/web"

func ip(text string) netip.Addr { return netip.MustParseAddr(text) }

func in(k Kind, prefix string) Rule { return Rule{Kind: k, Prefix: netip.MustParsePrefix(prefix)} }

func named(s String) Rule { return Rule{Kind: Authenticated, Match: &s} }

func not(r Rule) Rule { return Rule{Kind: Not, Rules: []Rule{r}} }

// policyOf matches by its one permission and principal.
func policyOf(name string, permission, principal Rule) Policy {
	return Policy{name, []Rule{permission}, []Rule{principal}}
}

var anyOne = Rule{Kind: Any}

func TestRules(t *testing.T) {
	peer := Peer{
		Destination: netip.MustParseAddrPort("10.0.0.1:8443"), Source: ip("192.0.2.7"), Direct: ip("10.9.9.9"), ServerName: "web.internal",
		TLS: true, URIs: []string{web}, DNS: []string{"web.internal"}, Subject: "CN=web",
	}
	plain := peer
	plain.TLS, plain.URIs, plain.DNS, plain.Subject = false, nil, nil, ""
	stranger := peer
	stranger.URIs, stranger.DNS, stranger.Subject = nil, nil, ""
	unix := Peer{}
	for _, tt := range []struct {
		name string
		rule Rule
		peer Peer
		want bool
	}{
		{"any", anyOne, unix, true},
		{"exact", named(String{Exact: web}), peer, true},
		{"exact, another", named(String{Exact: web + "2"}), peer, false},
		{"exact in capitals", named(String{Exact: strings.ToUpper(web)}), peer, false},
		{"exact in capitals, ignored", named(String{Exact: strings.ToUpper(web), IgnoreCase: true}), peer, true},
		{"prefix", named(String{Prefix: "spiffe://example.org/"}), peer, true},
		{"suffix", named(String{Suffix: "/svc/web"}), peer, true},
		{"contains", named(String{Contains: "/ns/default/"}), peer, true},
		{"regex", named(String{Regex: `^spiffe://[^/]+/ns/default/svc/web$`}), peer, true},
		{"regex matches the whole", named(String{Regex: `spiffe://[^/]+/ns`}), peer, false},
		{"regex of alternatives", named(String{Regex: `x|` + web}), peer, true},
		{"DNS name", named(String{Exact: "web.internal"}), peer, true},
		{"subject", named(String{Exact: "CN=web"}), peer, true},
		{"nobody by name", named(String{Exact: ""}), peer, false},
		{"no certificate", named(String{Exact: web}), stranger, false},
		{"no certificate has an empty subject, as in Envoy", named(String{Exact: ""}), stranger, true},
		{"no TLS", named(String{Contains: "s"}), plain, false},
		{"authenticated", Rule{Kind: Authenticated}, peer, true},
		{"authenticated without a certificate", Rule{Kind: Authenticated}, stranger, true},
		{"not authenticated", Rule{Kind: Authenticated}, plain, false},

		{"remote ip", in(RemoteIP, "192.0.2.0/24"), peer, true},
		{"remote ip, another", in(RemoteIP, "10.0.0.0/8"), peer, false},
		{"remote ip, mapped", in(RemoteIP, "::ffff:192.0.2.0/120"), peer, true},
		{"direct remote ip", in(DirectRemoteIP, "10.9.9.9/32"), peer, true},
		{"direct remote ip, another", in(DirectRemoteIP, "192.0.2.0/24"), peer, false},
		{"no address", in(RemoteIP, "0.0.0.0/0"), unix, false},
		{"destination", in(DestinationIP, "10.0.0.0/8"), peer, true},
		{"destination, another", in(DestinationIP, "11.0.0.0/8"), peer, false},
		{"port", Rule{Kind: DestinationPort, Ports: [2]uint32{8443, 8444}}, peer, true},
		{"port, the end", Rule{Kind: DestinationPort, Ports: [2]uint32{8000, 8443}}, peer, false},
		{"no port", Rule{Kind: DestinationPort, Ports: [2]uint32{0, 65536}}, unix, false},
		{"server name", Rule{Kind: ServerName, Match: &String{Suffix: ".internal"}}, peer, true},
		{"server name, another", Rule{Kind: ServerName, Match: &String{Exact: "x"}}, peer, false},
		{"no server name", Rule{Kind: ServerName, Match: &String{}}, unix, true},

		{"and", Rule{Kind: And, Rules: []Rule{in(RemoteIP, "192.0.2.0/24"), named(String{Exact: web})}}, peer, true},
		{"and, one is not", Rule{Kind: And, Rules: []Rule{in(RemoteIP, "192.0.2.0/24"), named(String{Exact: "x"})}}, peer, false},
		{"or", Rule{Kind: Or, Rules: []Rule{in(RemoteIP, "10.0.0.0/8"), named(String{Exact: web})}}, peer, true},
		{"or, none is", Rule{Kind: Or, Rules: []Rule{in(RemoteIP, "10.0.0.0/8"), named(String{Exact: "x"})}}, peer, false},
		{"not", not(named(String{Exact: web})), peer, false},
		{"not another", not(named(String{Exact: "x"})), peer, true},
		{"not, of one without TLS", not(named(String{Exact: web})), plain, true},
	} {
		for i, p := range []Policy{policyOf("p", tt.rule, anyOne), policyOf("p", anyOne, tt.rule)} {
			allow, err := New(&Rules{Action: Allow, Policies: []Policy{p}}, nil)
			if err != nil {
				t.Errorf("%s: %v", tt.name, err)
				continue
			}
			deny, err := New(&Rules{Action: Deny, Policies: []Policy{p}}, nil)
			if err != nil {
				t.Errorf("%s: %v", tt.name, err)
				continue
			}
			if v := allow.Check(&tt.peer); (v.Denied == nil) != tt.want {
				t.Errorf("%s, %d: allow says %v", tt.name, i, v.Denied)
			}
			if v := deny.Check(&tt.peer); (v.Denied != nil) != tt.want {
				t.Errorf("%s, %d: deny says %v", tt.name, i, v.Denied)
			}
		}
	}
}

func TestCheck(t *testing.T) {
	yes, no := policyOf("a yes", anyOne, anyOne), policyOf("no", anyOne, not(anyOne))
	for _, tt := range []struct {
		name             string
		enforced, shadow *Rules
		denied, shadowed string // "" is allowed
	}{
		{"nothing said", nil, nil, "", ""},
		{"allow without policies", &Rules{}, nil, "none", ""},
		{"deny without policies", &Rules{Action: Deny}, nil, "", ""},
		{"allow", &Rules{Policies: []Policy{no, yes}}, nil, "", ""},
		{"allow, nobody", &Rules{Policies: []Policy{no}}, nil, "none", ""},
		{"deny", &Rules{Action: Deny, Policies: []Policy{no, yes}}, nil, "a_yes", ""},
		{"deny, nobody", &Rules{Action: Deny, Policies: []Policy{no}}, nil, "", ""},
		{"log", &Rules{Action: Log, Policies: []Policy{no}}, nil, "", ""},
		{"shadow only", nil, &Rules{}, "", "none"},
		{"shadow beside", &Rules{Policies: []Policy{yes}}, &Rules{Action: Deny, Policies: []Policy{yes}}, "", "a_yes"},
	} {
		f, err := New(tt.enforced, tt.shadow)
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		v := f.Check(new(Peer))
		check := func(what string, d *Denied, want string) {
			switch {
			case want == "" && d != nil:
				t.Errorf("%s, %s: %v", tt.name, what, d)
			case want != "" && (d == nil || d.Error() != "rbac_access_denied_matched_policy["+want+"]"):
				t.Errorf("%s, %s: %v, want %s", tt.name, what, d, want)
			}
		}
		check("enforced", v.Denied, tt.denied)
		check("shadow", v.ShadowDenied, tt.shadowed)
		if v.Enforced != (tt.enforced != nil) || v.Shadowed != (tt.shadow != nil) {
			t.Errorf("%s: %+v", tt.name, v)
		}
	}
}

func TestNewRefuses(t *testing.T) {
	deep := anyOne
	for range MaxDepth {
		deep = not(deep)
	}
	for want, r := range map[string]Rule{
		"unknown kind of rule 0":                   {},
		"none, want at least one":                  {Kind: And},
		"not: want one rule":                       {Kind: Not, Rules: []Rule{anyOne, anyOne}},
		"an invalid range of addresses":            {Kind: RemoteIP},
		"ports from 7 to below 7: want a range":    {Kind: DestinationPort, Ports: [2]uint32{7, 7}},
		"ports from 7 to below 65537: want a":      {Kind: DestinationPort, Ports: [2]uint32{7, 65537}},
		"a server name without a match":            {Kind: ServerName},
		"error parsing regexp: missing closing )":  named(String{Regex: "a("}),
		"error parsing regexp: unexpected )":       named(String{Regex: "a)|(b"}),
		"error parsing regexp: invalid repeat cou": named(String{Regex: "a{2000}"}),
		`the regex "(?:a?b?c?){1000}`:              named(String{Regex: strings.Repeat("(?:a?b?c?){1000}", 255)}),
		"a regex of 4097 bytes: want at most 4096": named(String{Regex: strings.Repeat("a", 4097)}),
		"nested deeper than 64":                    deep,
	} {
		for where, p := range map[string]Policy{"permissions": policyOf("p", r, anyOne), "principals": policyOf("p", anyOne, r)} {
			want := `policy "p": ` + where + ": " + want
			if _, err := New(&Rules{Policies: []Policy{p}}, nil); err == nil || !strings.HasPrefix(err.Error(), want) {
				t.Errorf("%v, want %s", err, want)
			}
			if _, err := New(nil, &Rules{Policies: []Policy{p}}); err == nil || !strings.HasPrefix(err.Error(), "shadow rules: "+want) {
				t.Errorf("%v, want shadow rules: %s", err, want)
			}
		}
	}
	if _, err := New(&Rules{Action: 3}, nil); err == nil {
		t.Error("an unknown action")
	}
	if _, err := New(&Rules{Policies: []Policy{{Name: "p", Permissions: []Rule{anyOne}}}}, nil); err == nil {
		t.Error("no principals")
	}
}

func TestCheckAllocatesNothing(t *testing.T) {
	f, err := New(&Rules{Action: Deny, Policies: []Policy{policyOf("p", anyOne, not(named(String{Regex: `spiffe://[^/]+/.*`})))}}, &Rules{})
	if err != nil {
		t.Fatal(err)
	}
	p := Peer{TLS: true, URIs: []string{"https://other"}, DNS: []string{"a"}}
	if n := testing.AllocsPerRun(100, func() {
		if f.Check(&p).Denied == nil {
			t.Error("allowed")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// De Morgan, and that Deny is the opposite of Allow.
func TestLogic(t *testing.T) {
	leaf := rapid.SampledFrom([]Rule{
		anyOne, not(anyOne), in(RemoteIP, "10.0.0.0/8"), in(DirectRemoteIP, "10.0.0.0/16"), in(DestinationIP, "10.0.0.0/24"),
		{Kind: DestinationPort, Ports: [2]uint32{1, 80}}, named(String{Prefix: "spiffe://a/"}), {Kind: Authenticated}, {Kind: ServerName, Match: &String{Exact: "a"}},
	})
	rapid.Check(t, func(t *rapid.T) {
		rules := rapid.SliceOfN(leaf, 1, 4).Draw(t, "rules")
		addrs := rapid.SampledFrom([]string{"10.0.0.1", "10.0.1.1", "10.1.0.1", "11.0.0.1", "::1"})
		p := Peer{
			Source: ip(addrs.Draw(t, "source")), Direct: ip(addrs.Draw(t, "direct")), TLS: rapid.Bool().Draw(t, "tls"),
			Destination: netip.AddrPortFrom(ip(addrs.Draw(t, "destination")), rapid.SampledFrom([]uint16{1, 80}).Draw(t, "port")),
			ServerName:  rapid.SampledFrom([]string{"", "a"}).Draw(t, "sni"),
			URIs:        rapid.SliceOfN(rapid.SampledFrom([]string{"spiffe://a/b", "spiffe://b/b"}), 0, 2).Draw(t, "uris"),
		}
		allows := func(a Action, r Rule) bool {
			f, err := New(&Rules{Action: a, Policies: []Policy{policyOf("p", anyOne, r)}}, nil)
			if err != nil {
				t.Fatal(err)
			}
			return f.Check(&p).Denied == nil
		}
		negated := slices.Clone(rules)
		for i := range negated {
			negated[i] = not(negated[i])
		}
		and := Rule{Kind: And, Rules: rules}
		if got := allows(Allow, and); got != allows(Allow, not(Rule{Kind: Or, Rules: negated})) || got == allows(Deny, and) {
			t.Fatalf("%+v: %+v", p, rules)
		}
	})
}

// ruleOf makes a rule of bytes, each of which is one choice.
func ruleOf(next func() byte, text string, depth int) Rule {
	r := Rule{Kind: Kind(next() % byte(Authenticated+2))}
	switch r.Kind {
	case And, Or, Not:
		for range next() % 4 {
			if depth < MaxDepth+2 {
				r.Rules = append(r.Rules, ruleOf(next, text, depth+1))
			}
		}
	case DestinationIP, RemoteIP, DirectRemoteIP:
		a := netip.AddrFrom4([4]byte{10, next(), next(), 0})
		if next()%2 == 0 {
			a = netip.AddrFrom16(netip.AddrFrom4([4]byte{10, next(), 0, 0}).As16())
		}
		r.Prefix = netip.PrefixFrom(a, int(next()))
	case DestinationPort:
		r.Ports = [2]uint32{uint32(next()) << 2, uint32(next()) << 9}
	case ServerName, Authenticated:
		switch next() % 7 {
		case 0: // none
		case 1:
			r.Match = &String{Exact: text, IgnoreCase: next()%2 == 0}
		case 2:
			r.Match = &String{Prefix: text, IgnoreCase: next()%2 == 0}
		case 3:
			r.Match = &String{Suffix: text, IgnoreCase: next()%2 == 0}
		case 4:
			r.Match = &String{Contains: text, IgnoreCase: next()%2 == 0}
		default:
			r.Match = &String{Regex: text}
		}
	}
	return r
}

// Whatever the rules are they are refused or decide, one way and by Deny the other.
func FuzzRules(f *testing.F) {
	f.Add([]byte{1}, "a", web)
	f.Add([]byte{2, 3, 5, 0, 1, 1, 8, 10, 5, 1}, ".*", "spiffe://example.org")
	f.Add([]byte{4, 1, 10, 6}, "a|b", "A")
	f.Add([]byte{3, 2, 7, 1, 2, 9, 2, 0}, "ſ", "S")
	f.Add([]byte{4, 1, 4, 1, 4, 1, 4, 1, 1}, "", "")
	f.Add([]byte{1}, "a", "two\r\nlines")
	f.Fuzz(func(t *testing.T, choices []byte, text, name string) {
		next := func() (b byte) {
			if len(choices) > 0 {
				b, choices = choices[0], choices[1:]
			}
			return b
		}
		rule := ruleOf(next, text, 0)
		verdict := func(a Action, p *Peer) (denied, ok bool) {
			f, err := New(&Rules{Action: a, Policies: []Policy{policyOf(name, anyOne, rule)}}, &Rules{Action: a, Policies: []Policy{policyOf(name, rule, anyOne)}})
			if err != nil {
				return false, false
			}
			v := f.Check(p)
			if v.Denied != nil && strings.ContainsAny(v.Denied.Error(), "\n\r") {
				t.Errorf("a reason of several lines: %q", v.Denied)
			}
			if (v.Denied == nil) != (v.ShadowDenied == nil) {
				t.Errorf("a rule of principals says %v, and of permissions %v", v.Denied, v.ShadowDenied)
			}
			return v.Denied != nil, true
		}
		for _, p := range []*Peer{
			{}, {TLS: true}, {TLS: true, URIs: []string{name}, DNS: []string{name}, Subject: name, ServerName: name},
			{Destination: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, next(), 0, 1}), uint16(next())<<8), Source: ip("10.0.0.1"), Direct: ip("::1"), ServerName: name},
		} {
			allow, ok := verdict(Allow, p)
			deny, alsoOK := verdict(Deny, p)
			if ok != alsoOK || ok && allow == deny {
				t.Errorf("%+v of %+v: denied by allow %t (%t), by deny %t (%t)", rule, p, allow, ok, deny, alsoOK)
			}
		}
	})
}
