package forwarder

import (
	"crypto/tls"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"gatehouse.internal/forwarder/filterchain"
	"gatehouse.internal/forwarder/rbac"
	"gatehouse.internal/internal/tlsconf/tlstest"
)

// mustChains makes Chains.
func mustChains(t testing.TB, rest *FilterChain, list ...*FilterChain) *Chains {
	t.Helper()
	cs, err := NewChains(list, rest)
	if err != nil {
		t.Fatal(err)
	}
	return cs
}

// Each connection goes where its chain says, by what its chain's settings say, and
// is told of by the chain's name; one that no chain takes is reset.
func TestChains(t *testing.T) { onEach(t, testChains) }

func testChains(t *testing.T) {
	p := newPKI(t)
	one, two, three := newCluster(t, backend(t, anyPort, echo)), newCluster(t, backend(t, anyPort, echo)), newCluster(t, backend(t, anyPort, echo))
	one.dial.Cluster, two.dial.Cluster, three.dial.Cluster = "one", "two", "three"
	told := make(chan string, 100)
	chain := func(name string, up Upstream, m filterchain.Match) *FilterChain {
		return &FilterChain{Name: name, Match: m, Upstream: up, OnDone: func(rec *Record) { told <- rec.Chain }}
	}
	sni, alpn, raw := chain("sni", one, filterchain.Match{ServerNames: []string{"one.internal"}}), chain("alpn", two, filterchain.Match{ApplicationProtocols: []string{"two"}}), chain("raw", three, filterchain.Match{TransportProtocol: "raw_buffer"})
	ended := chain("ended", three, filterchain.Match{ServerNames: []string{"web.internal"}})
	ended.Settings.TLS, ended.Settings.HashOn = p.server(t), HashSNI
	raw.Settings.HashOn = HashSourceIP
	never := chain("never", nil, filterchain.Match{ServerNames: []string{"never.internal"}})
	never.Refuse = &Refusal{FlagNR, "filter chain \"never\" is not supported"}
	r := start(t, Config{Upstream: one, Settings: Settings{Chains: mustChains(t, nil, sni, alpn, raw, ended, never)}})
	for _, tt := range []struct {
		name, chain, cluster string
		flag                 Flag
		hello                *tls.Config // what is sent first; nil is text
	}{
		{"by server name", "sni", "one", FlagNone, &tls.Config{ServerName: "ONE.internal"}},
		{"by protocol", "alpn", "two", FlagNone, &tls.Config{ServerName: "x.internal", NextProtos: []string{"one", "two"}}},
		{"text", "raw", "three", FlagNone, nil},
		{"none", "", "", FlagNR, &tls.Config{ServerName: "x.internal"}},
		{"refused", "never", "", FlagNR, &tls.Config{ServerName: "never.internal"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := client(t, r.Addr())
			first := "hello, and that is no TLS"
			if tt.hello != nil {
				first = string(hello(t, tt.hello))
			}
			if tt.flag == FlagNone {
				exchange(t, c, first)
				closeWrite(c)
				if _, err := io.ReadAll(c); err != nil {
					t.Error(err)
				}
			} else {
				_, _ = io.WriteString(c, first)
				wantReset(t, c)
			}
			rec := r.record(t)
			if rec.Chain != tt.chain || rec.Cluster != tt.cluster || rec.Flag != tt.flag || (rec.Err == nil) != (tt.flag == FlagNone) {
				t.Errorf("record %+v", rec)
			}
			if tt.chain != "" {
				if got := <-told; got != tt.chain {
					t.Errorf("the chain was told of %q", got)
				}
			}
		})
	}
	three.wantKey(t, "127.0.0.1")
	// One whose chain ends TLS, by the hello that was read to find it.
	c := p.dial(t, r.Addr(), p.clientConfig())
	exchange(t, c, "over TLS")
	three.wantKey(t, "web.internal")
	_ = c.Close()
	if rec := r.record(t); rec.Chain != "ended" || rec.ServerName != "web.internal" || rec.Cluster != "three" {
		t.Errorf("record %+v", rec)
	}
	if n := r.Stats().HelloPending; n != 0 {
		t.Errorf("%d hellos are pending", n)
	}
}

// What the peer, the client and the destination are counts, also where a PROXY header
// says it.
func TestChainsAddresses(t *testing.T) { onEach(t, testChainsAddresses) }

func testChainsAddresses(t *testing.T) {
	up := newCluster(t, backend(t, anyPort, echo))
	chain := func(name string, m filterchain.Match) *FilterChain {
		return &FilterChain{Name: name, Match: m, Upstream: up}
	}
	prefix := func(s string) []netip.Prefix { return []netip.Prefix{netip.MustParsePrefix(s)} }
	s := Settings{Chains: mustChains(t, chain("rest", filterchain.Match{}),
		chain("port", filterchain.Match{DestinationPort: 8080}),
		chain("client", filterchain.Match{SourcePrefixRanges: prefix("192.0.2.0/24")}),
		chain("local", filterchain.Match{SourceType: filterchain.SameIPOrLocal}),
	)}
	header := func(src, dst string) string {
		a, b := netip.MustParseAddrPort(src), netip.MustParseAddrPort(dst)
		return "PROXY TCP4 " + a.Addr().String() + " " + b.Addr().String() + " " + portOf(a) + " " + portOf(b) + "\r\n"
	}
	plain := start(t, Config{Upstream: up, Settings: s})
	s.Proxy = &ProxyIn{From: prefix("127.0.0.0/8")}
	proxied := start(t, Config{Upstream: up, Settings: s})
	s.Chains = mustChains(t, chain("rest", filterchain.Match{}), chain("direct", filterchain.Match{DirectSourcePrefixRanges: prefix("127.0.0.0/8")}), chain("not", filterchain.Match{DirectSourcePrefixRanges: prefix("192.0.2.0/24")}))
	direct := start(t, Config{Upstream: up, Settings: s})
	for _, tt := range []struct {
		r            *rig
		header, want string
	}{
		{plain, "", "local"},
		{proxied, header("192.0.2.7:4711", "203.0.113.1:8080"), "port"},
		{proxied, header("192.0.2.7:4711", "203.0.113.1:80"), "client"},
		{proxied, header("198.51.100.7:4711", "203.0.113.1:80"), "rest"},
		{proxied, header("203.0.113.1:4711", "203.0.113.1:80"), "local"},
		{proxied, "PROXY UNKNOWN\r\n", "local"},
		{direct, header("192.0.2.7:4711", "203.0.113.1:80"), "direct"},
	} {
		c := client(t, tt.r.Addr())
		write(t, c, tt.header)
		exchange(t, c, "hello")
		_ = c.Close()
		if rec := tt.r.record(t); rec.Chain != tt.want {
			t.Errorf("%q went to %q, want %q", tt.header, rec.Chain, tt.want)
		}
	}
}

// Who may not is reset before an endpoint is dialled, by its address or, behind the
// handshake, by its certificate; the verdicts are counted.
func TestChainsRBAC(t *testing.T) { onEach(t, testChainsRBAC) }

func testChainsRBAC(t *testing.T) {
	p := newPKI(t)
	up := newCluster(t, backend(t, anyPort, echo))
	filter := func(action rbac.Action, principal rbac.Rule, shadow *rbac.Rules) *rbac.Filter {
		f, err := rbac.New(&rbac.Rules{Action: action, Policies: []rbac.Policy{{Name: "the one", Permissions: []rbac.Rule{{Kind: rbac.Any}}, Principals: []rbac.Rule{principal}}}}, shadow)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	loopback := rbac.Rule{Kind: rbac.RemoteIP, Prefix: netip.MustParsePrefix("127.0.0.0/8")}
	id := rbac.Rule{Kind: rbac.Authenticated, Match: &rbac.String{Exact: "spiffe://example.org/client"}}
	for _, tt := range []struct {
		name   string
		secure bool
		cert   string // in the client's certificate
		rbac   []*rbac.Filter
		denied string
		want   [4]uint64 // allowed, denied, shadow allowed, shadow denied
	}{
		{"no rules", false, "", nil, "", [4]uint64{}},
		{"allowed by address", false, "", []*rbac.Filter{filter(rbac.Allow, loopback, nil)}, "", [4]uint64{1, 0, 0, 0}},
		{"denied by address", false, "", []*rbac.Filter{filter(rbac.Deny, loopback, nil)}, "the_one", [4]uint64{0, 1, 0, 0}},
		{"the second one denies", false, "", []*rbac.Filter{filter(rbac.Allow, loopback, nil), filter(rbac.Deny, loopback, nil)}, "the_one", [4]uint64{1, 1, 0, 0}},
		{"plain text is nobody", false, "", []*rbac.Filter{filter(rbac.Allow, id, nil)}, "none", [4]uint64{0, 1, 0, 0}},
		{"shadow", false, "", []*rbac.Filter{filter(rbac.Allow, loopback, &rbac.Rules{})}, "", [4]uint64{1, 0, 0, 1}},
		{"allowed by identity", true, "spiffe://example.org/client", []*rbac.Filter{filter(rbac.Allow, id, &rbac.Rules{Action: rbac.Log})}, "", [4]uint64{1, 0, 1, 0}},
		{"another identity", true, "spiffe://example.org/other", []*rbac.Filter{filter(rbac.Allow, id, nil)}, "none", [4]uint64{0, 1, 0, 0}},
		{"denied by identity", true, "spiffe://example.org/client", []*rbac.Filter{filter(rbac.Deny, id, nil)}, "the_one", [4]uint64{0, 1, 0, 0}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			chain := &FilterChain{Name: "c", Upstream: up, RBAC: tt.rbac}
			if tt.secure {
				chain.Settings.TLS = p.server(t, p.mutual)
			}
			r := start(t, Config{Upstream: up, Settings: Settings{Chains: mustChains(t, chain)}})
			connect := func() net.Conn {
				if !tt.secure {
					return client(t, r.Addr())
				}
				cfg := p.clientConfig()
				cfg.Certificates = []tls.Certificate{p.ca.Issue(t, tlstest.Leaf{Names: []string{tt.cert}}).TLS(t)}
				return p.dial(t, r.Addr(), cfg)
			}
			if tt.denied == "" {
				c := connect()
				exchange(t, c, "hello")
				_ = c.Close()
				if rec := r.record(t); rec.Flag == FlagUAEX {
					t.Errorf("record %+v", rec)
				}
			} else {
				if !tt.secure {
					wantRefused(t, r.Addr())
				} else if got := wantReset(t, connect()); len(got) > 0 {
					t.Errorf("read %q", got)
				}
				rec := r.record(t)
				if rec.Flag != FlagUAEX || rec.Err == nil || rec.Err.Error() != "rbac_access_denied_matched_policy["+tt.denied+"]" || rec.Attempts != 0 {
					t.Errorf("record %+v", rec)
				}
				if tt.cert != "" && rec.PeerName != tt.cert {
					t.Errorf("it was %q", rec.PeerName)
				}
			}
			s := r.Stats()
			if got := [4]uint64{s.RBACAllowed, s.RBACDenied, s.RBACShadowAllowed, s.RBACShadowDenied}; got != tt.want {
				t.Errorf("counted %v, want %v", got, tt.want)
			}
			if tt.denied != "" && s.Dials != 0 {
				t.Error("an endpoint was dialled")
			}
		})
	}
}

// With CutLateHello who is silent is reset, and who ends or says something else is
// served.
func TestCutLateHello(t *testing.T) { onEach(t, testCutLateHello) }

func testCutLateHello(t *testing.T) {
	up := newCluster(t, backend(t, anyPort, echo))
	r := start(t, Config{Upstream: up, Settings: Settings{Inspect: true, CutLateHello: true, HelloTimeout: 50 * time.Millisecond}})
	wantReset(t, client(t, r.Addr()))
	if rec := r.record(t); rec.Flag != FlagDC || rec.Err != errHelloLate {
		t.Errorf("record %+v", rec)
	}
	c := client(t, r.Addr())
	exchange(t, c, "no hello")
	_ = c.Close()
	if rec := r.record(t); rec.Flag == FlagDC && rec.Err == errHelloLate {
		t.Errorf("record %+v", rec)
	}
	up.wantKey(t, "") // what was read is not hashed
	eventually(t, "none is pending", func() bool { return r.Stats().HelloPending == 0 })
}

// A chain that leaves takes its connections with it, and no others.
func TestChainLeaves(t *testing.T) { onEach(t, testChainLeaves) }

func testChainLeaves(t *testing.T) {
	up := newCluster(t, backend(t, anyPort, echo))
	chain := func(name string) *FilterChain { return &FilterChain{Name: name, Upstream: up, Leaving: new(Ends)} }
	first, second := chain("first"), chain("second")
	r := start(t, Config{Upstream: up, Settings: Settings{Chains: mustChains(t, first)}})
	a := client(t, r.Addr())
	exchange(t, a, "a")
	if err := r.Set(Settings{Chains: mustChains(t, second)}); err != nil {
		t.Fatal(err)
	}
	b := client(t, r.Addr())
	exchange(t, b, "b")
	exchange(t, a, "still there")
	first.Leaving.SetAll(Ending{Err: ErrDrained})
	r.Review()
	wantReset(t, a)
	if rec := r.record(t); rec.Chain != "first" || rec.Flag != FlagLR || rec.Err != ErrDrained {
		t.Errorf("record %+v", rec)
	}
	exchange(t, b, "still there")
}

func TestNewChainsRefuses(t *testing.T) {
	up := newCluster(t, refused(t))
	good := &FilterChain{Name: "good", Upstream: up}
	for want, list := range map[string][]*FilterChain{
		`filter chain 0 "a": no upstream`:                              {{Name: "a"}},
		`filter chain 1 "b": idle_timeout is below 0`:                  {good, {Name: "b", Upstream: up, Settings: Settings{IdleTimeout: -1}}},
		`filter chain 1 "b": it matches what filter chain 0 "good" do`: {good, {Name: "b", Upstream: up}},
	} {
		if _, err := NewChains(list, nil); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v, want %s…", err, want)
		}
	}
	if _, err := NewChains(nil, &FilterChain{Name: "d"}); err == nil || !strings.HasPrefix(err.Error(), `default filter chain "d": no upstream`) {
		t.Error(err)
	}
}

// max_connect_attempts of a chain goes before the cluster's.
func TestChainAttempts(t *testing.T) { onEach(t, testChainAttempts) }

func testChainAttempts(t *testing.T) {
	up := newCluster(t, refused(t), refused(t), backend(t, anyPort, echo))
	up.dial.Attempts = 1
	for n, want := range map[int]Flag{0: FlagUF, 2: FlagUF, 3: FlagNone} {
		chain := &FilterChain{Upstream: up, Settings: Settings{MaxConnectAttempts: n}}
		r := start(t, Config{Upstream: up, Settings: Settings{Chains: mustChains(t, chain)}})
		if want == FlagNone {
			c := client(t, r.Addr())
			exchange(t, c, "hello")
			closeWrite(c)
			_, _ = io.ReadAll(c)
		} else {
			wantRefused(t, r.Addr())
		}
		if rec := r.record(t); rec.Flag != want || rec.Attempts != max(n, 1) {
			t.Errorf("%d attempts: %+v", n, rec)
		}
	}
}

// What a client offers is read as package tls wrote it.
func TestOffered(t *testing.T) {
	for _, want := range [][]string{nil, {"h2"}, {"istio-peer-exchange", "h2", "http/1.1"}} {
		b := hello(t, &tls.Config{ServerName: "web.internal", NextProtos: want})
		var s helloScan
		if whole, err := s.scan(b); !whole || err != nil {
			t.Fatal(err)
		}
		if got := offered(s.message(b)); !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	}
	var many []string
	for range maxProtocols + 1 {
		many = append(many, "p")
	}
	b := hello(t, &tls.Config{ServerName: "web.internal", NextProtos: many})
	var s helloScan
	if whole, _ := s.scan(b); !whole || len(offered(s.message(b))) != maxProtocols {
		t.Errorf("%d protocols", len(offered(s.message(b))))
	}
}

func portOf(a netip.AddrPort) string {
	_, p, _ := strings.Cut(a.String(), ":")
	return p
}

func TestAssignAllocatesNothing(t *testing.T) {
	up := newCluster(t, refused(t))
	f, err := rbac.New(&rbac.Rules{Action: rbac.Deny, Policies: []rbac.Policy{{Permissions: []rbac.Rule{{Kind: rbac.Any}}, Principals: []rbac.Rule{{Kind: rbac.Authenticated}}}}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	chain := &FilterChain{Upstream: up, RBAC: []*rbac.Filter{f}, Match: filterchain.Match{DestinationPort: 80, SourcePrefixRanges: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}}}
	l, err := New(Config{Name: "l", Addr: anyPort, Upstream: up, Gate: up.gate, Settings: Settings{Chains: mustChains(t, nil, chain)}})
	if err != nil {
		t.Fatal(err)
	}
	var w flow
	w.sel = new(selection)
	w.admit(l, netip.MustParseAddrPort("192.0.2.1:4711"))
	local := netip.MustParseAddrPort("203.0.113.1:80")
	if n := testing.AllocsPerRun(100, func() {
		w.settings = l.settings.Load()
		if _, err := w.assign(local, 0); err != nil || w.allowed() != nil {
			t.Error("refused")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
