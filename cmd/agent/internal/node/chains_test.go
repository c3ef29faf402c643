package node

import (
	"context"
	"crypto/tls"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"gatehouse.internal/cmd/agent/internal/config"
	"gatehouse.internal/forwarder"
	"gatehouse.internal/forwarder/filterchain"
	"gatehouse.internal/forwarder/rbac"
	"gatehouse.internal/internal/logfile"
	"gatehouse.internal/internal/tlsconf"
	"gatehouse.internal/internal/tlsconf/tlstest"
	"gatehouse.internal/lbcore"
)

// chained is a listener of the control plane with these chains.
func chained(name string, chains ...config.FilterChain) config.Listener {
	l := config.DefaultListener(name, config.OriginXDS, lbcore.IPAddr(netip.MustParseAddrPort("127.0.0.1:0")), "")
	l.Control = &config.Control{Chains: chains}
	l.TLSInspector.Timeout = 50 * time.Millisecond // backends speak first
	return l
}

// chainTo takes the connections of TLS clients with that server name, or without
// one all that others don't, to a cluster.
func chainTo(name, cluster string) config.FilterChain {
	c := config.FilterChain{Name: name, Clusters: []config.WeightedCluster{{Name: cluster, Weight: 1}}, HashOn: config.HashOnNone, IdleTimeout: time.Hour, MaxConnectAttempts: 1}
	if name != "" {
		c.Match = filterchain.Match{ServerNames: []string{name}}
	}
	return c
}

// Of a listener that changes, the connections of chains that are the same live on,
// and those of others, and of chains that are gone, are closed when their time to
// drain is over; the port stays.
func TestChains(t *testing.T) {
	one, two := listen(t, "one"), listen(t, "two")
	clusters := []config.Cluster{clusterOf("one", static(one.Endpoint)), clusterOf("two", static(two.Endpoint))}
	r := start(t, func(c *Config) { c.DrainTimeout, c.DrainSpread = 300*time.Millisecond, 100*time.Millisecond })
	set := func(l config.Listener) {
		t.Helper()
		r.warm(Spec{Clusters: clusters, Optional: []config.Listener{l}})
	}
	stays, changes := chainTo("", "one"), chainTo("x.internal", "one")
	set(chained("l", stays, changes))
	port := r.listener("l").Address
	live := r.mustDial("l", "one")
	hello := func() net.Conn { // a TLS client, whose hello goes to the backend
		t.Helper()
		c, err := net.Dial("tcp", port.String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		c.SetDeadline(time.Now().Add(20 * time.Second))
		go tls.Client(c, &tls.Config{ServerName: "x.internal"}).Handshake()
		return c
	}
	leaves := hello()
	within(t, "it is connected", func() bool { return r.listener("l").Stats.Connects == 2 })
	changes.Clusters = []config.WeightedCluster{{Name: "two", Weight: 1}}
	set(chained("l", changes, stays)) // in another order, too
	within(t, "the changed chain's connection is closed", func() bool {
		return r.listener("l").Stats.Flags[forwarder.FlagLR] == 1
	})
	live.alive()
	before := two.accepted.Load()
	hello()
	within(t, "connections go elsewhere", func() bool { return two.accepted.Load() > before })
	if got := r.listener("l"); got.Address != port || len(got.Chains) != 2 || got.Draining {
		t.Errorf("the listener is %+v", got)
	}
	_ = leaves

	// Its cluster leaves with a chain: the connection goes on until its time is over.
	clusters = clusters[1:]
	set(chained("l", changes))
	within(t, "the connection is closed", func() bool { _, err := live.Write([]byte("x\n")); return err != nil })
	if rec := r.refused("l"); rec.Flag != forwarder.FlagNR {
		t.Errorf("no chain takes it: %+v", rec)
	}

	// What is said of the whole listener changes: all drain.
	now := chainTo("", "two")
	set(chained("l", now))
	other := r.mustDial("l", "two")
	l := chained("l", now)
	l.TCPBacklogSize = 7
	set(l)
	r.mustDial("l", "two")
	within(t, "the connection is closed", func() bool { _, err := other.Write([]byte("x\n")); return err != nil })

}

// Certificates of a chain change without its connections; one that can't be used
// makes it refuse, with the reason, and never serve plain text.
func TestChainsTLS(t *testing.T) {
	s := newSite(t)
	one := listen(t, "one")
	r := start(t, func(c *Config) { c.DrainTimeout = 100 * time.Millisecond })
	secure := func(p tlstest.Pair) config.Listener {
		c := chainTo("", "one")
		c.TLS = &tlsconf.ServerConfig{More: []tlsconf.KeyPair{{CertFile: "the certificate", KeyFile: "the key", Cert: string(p.CertPEM), Key: string(p.KeyPEM)}}}
		return chained("l", c)
	}
	issue := func(l tlstest.Leaf) tlstest.Pair { l.Names = []string{"127.0.0.1"}; return s.ca.Issue(t, l) }
	set := func(l config.Listener) {
		t.Helper()
		r.warm(Spec{Clusters: []config.Cluster{clusterOf("one", static(one.Endpoint))}, Optional: []config.Listener{l}})
	}
	first := secure(issue(tlstest.Leaf{CommonName: "first"}))
	set(first)
	live, subject := r.dialTLS(s, "l", "one")
	if subject != "first" {
		t.Errorf("the certificate is that of %q", subject)
	}
	set(secure(issue(tlstest.Leaf{CommonName: "second"})))
	if _, subject := r.dialTLS(s, "l", "one"); subject != "second" {
		t.Errorf("the certificate is that of %q", subject)
	}
	if st := r.listener("l").Chains; len(st) != 1 || st[0].TLS == nil || subjectOf(st[0].TLS) != "CN=second" || st[0].Unsupported != "" {
		t.Errorf("status %+v", st)
	}
	set(secure(issue(tlstest.Leaf{NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: time.Now().Add(-time.Hour)})))
	if rec := r.refused("l"); rec.Flag != forwarder.FlagNR || rec.Err == nil || !strings.Contains(rec.Err.Error(), "certificate the certificate expired at") {
		t.Errorf("record %+v", rec)
	}
	if st := r.listener("l").Chains; len(st) != 1 || st[0].TLS != nil || !strings.Contains(st[0].Unsupported, "expired at") {
		t.Errorf("status %+v", st)
	}
	set(first)
	if _, subject := r.dialTLS(s, "l", "one"); subject != "first" {
		t.Errorf("the certificate is that of %q", subject)
	}
	live.alive()
	// Files that are not there yet are looked for again.
	missing := chainTo("", "one")
	missing.TLS = &tlsconf.ServerConfig{CertFile: filepath.Join(s.dir, "late.pem"), KeyFile: filepath.Join(s.dir, "late-key.pem")}
	set(chained("l", missing))
	if st := r.listener("l").Chains; len(st) != 1 || !strings.Contains(st[0].Unsupported, "no such file") {
		t.Errorf("status %+v", st)
	}
	issue(tlstest.Leaf{CommonName: "late"}).Write(t, s.dir, "late")
	within(t, "they are found", func() bool { return r.listener("l").Chains[0].Unsupported == "" })
	if _, subject := r.dialTLS(s, "l", "one"); subject != "late" {
		t.Errorf("the certificate is that of %q", subject)
	}
	live.alive()
	plain := chained("l", chainTo("", "one"))
	set(plain) // which is another chain
	r.mustDial("l", "one")
	within(t, "the connection over TLS is closed", func() bool { _, err := live.Write([]byte("x\n")); return err != nil })
}

// A chain that is not supported refuses beside others, a listener that is not has no
// socket, and a file's of its name wins.
func TestChainsRefuse(t *testing.T) {
	one := listen(t, "one")
	file := filepath.Join(t.TempDir(), "access.log")
	files := new(logfile.Files)
	t.Cleanup(func() { files.Close(context.Background()) })
	r := start(t, func(c *Config) { c.Files = files })
	odd := config.FilterChain{Name: "odd", Unsupported: "a filter that is not known"}
	l := chained("l", chainTo("x.internal", "one"))
	l.Control.Default = &odd
	l.AccessLogs = []config.AccessLog{{Path: file, Format: "%FILTER_CHAIN_NAME% %RESPONSE_FLAGS% %CONNECTION_TERMINATION_DETAILS%", Sample: 1}}
	http := chained("http")
	http.Control.Unsupported, http.Control.NoBind = "http", true
	denied := chainTo("", "one")
	denied.RBAC = []config.RBAC{{Rules: &rbac.Rules{}}}
	spec := Spec{Clusters: []config.Cluster{clusterOf("one", static(one.Endpoint))}}.WithOptional([]config.Listener{l, http, chained("guarded", denied)})
	r.warm(spec)
	if rec := r.refused("l"); rec.Flag != forwarder.FlagNR || rec.Chain != "odd" || rec.Err.Error() != `filter chain "odd": not supported: a filter that is not known` {
		t.Errorf("record %+v", rec)
	}
	within(t, "it is in the access log", func() bool {
		b, _ := os.ReadFile(file)
		return string(b) == "odd NR filter chain \\\"odd\\\": not supported: a filter that is not known\n"
	})
	if st := r.listener("l"); st.Unsupported != "" || len(st.Chains) != 2 || st.Chains[1].Unsupported != odd.Unsupported {
		t.Errorf("status %+v", st)
	}
	if st := r.listener("http"); st.Unsupported != "http" || !st.NoBind || st.Origin != "xds" {
		t.Errorf("status %+v", st)
	}
	if rec := r.refused("guarded"); rec.Flag != forwarder.FlagUAEX || rec.Attempts != 0 {
		t.Errorf("record %+v", rec)
	}
	if st := r.listener("guarded").Stats; st.RBACDenied == 0 {
		t.Errorf("%+v", st)
	}

	file2 := listenerOf("l", "one")
	spec = Spec{Clusters: spec.Clusters, Listeners: []config.Listener{file2}}.WithOptional([]config.Listener{l})
	r.warm(spec)
	if len(spec.Optional) != 0 || len(spec.UnsupportedListeners) != 1 || spec.UnsupportedListeners[0].Origin != config.OriginXDS {
		t.Errorf("%+v", spec)
	}
	r.mustDial("l", "one")
}

// What the control plane says of who may connect is in force although an access log
// that comes with it can't be had; this is written to once it can.
func TestChainsWithoutLogs(t *testing.T) {
	one := listen(t, "one")
	file := filepath.Join(t.TempDir(), "later", "access.log")
	files := new(logfile.Files)
	t.Cleanup(func() { files.Close(context.Background()) })
	r := start(t, func(c *Config) { c.Files = files })
	set := func(l ...config.Listener) {
		t.Helper()
		r.warm(Spec{Clusters: []config.Cluster{clusterOf("one", static(one.Endpoint))}}.WithOptional(l))
	}
	set(chained("l", chainTo("", "one")))
	port := r.listener("l").Address
	r.mustDial("l", "one")
	denied := chainTo("", "one")
	denied.RBAC = []config.RBAC{{Rules: &rbac.Rules{}}}
	denied.AccessLogs = []config.AccessLog{{Path: file + "3", Format: "%RESPONSE_FLAGS%", Sample: 1}}
	l, added := chained("l", denied), chained("added", denied)
	l.AccessLogs = []config.AccessLog{{Path: file, Format: "%RESPONSE_FLAGS%", Sample: 1}}
	added.AccessLogs = []config.AccessLog{{Path: file + "2", Format: "%RESPONSE_FLAGS%", Sample: 1}}
	set(l, added)
	for _, name := range []string{"l", "added"} {
		if rec := r.refused(name); rec.Flag != forwarder.FlagUAEX {
			t.Errorf("%s: record %+v", name, rec)
		}
	}
	if got := r.listener("l").Address; got != port {
		t.Errorf("the port went from %s to %s", port, got)
	}
	if err := os.Mkdir(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	within(t, "both are in the access logs, and in those of their chains", func() bool {
		for _, name := range []string{"l", "added"} {
			r.refused(name)
		}
		b, _ := os.ReadFile(file)
		b2, _ := os.ReadFile(file + "2")
		b3, _ := os.ReadFile(file + "3")
		return strings.Contains(string(b), "UAEX\n") && strings.Contains(string(b2), "UAEX\n") && strings.Count(string(b3), "UAEX\n") > 2
	})
}

// The listener of an address is found by it, or by its port on all addresses.
func TestListenerAt(t *testing.T) {
	one := listen(t, "one")
	r := start(t)
	at := func(name, addr string) config.Listener {
		l := chained(name, chainTo("", "one"))
		l.Address, l.Control.NoBind = lbcore.IPAddr(netip.MustParseAddrPort(addr)), true
		return l
	}
	r.warm(Spec{Clusters: []config.Cluster{clusterOf("one", static(one.Endpoint))}, Optional: []config.Listener{
		at("exact", "192.0.2.1:80"), at("all4", "0.0.0.0:80"), at("all6", "[::]:443"), at("both", "[::]:80"),
	}})
	for to, want := range map[string]string{
		"192.0.2.1:80": "exact", "192.0.2.2:80": "all4", "[2001:db8::1]:80": "both", "[2001:db8::1]:443": "all6", "192.0.2.1:443": "all6", "192.0.2.1:81": "",
	} {
		got := ""
		if l := r.listenerAt(netip.MustParseAddrPort(to)); l != nil {
			got = l.Name()
		}
		if got != want {
			t.Errorf("%s is for %q, want %q", to, got, want)
		}
	}
	r.apply(Spec{})
	if l := r.listenerAt(netip.MustParseAddrPort("192.0.2.1:80")); l != nil {
		t.Errorf("one that has left is found: %s", l.Name())
	}
}

// Chains that have left without connections are forgotten before their time to drain
// is over, however often a listener changes.
func TestChainsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := ports{taken: map[string]bool{}}
		r := start(t, func(c *Config) { c.Socket, c.DrainTimeout = p.open, 24*time.Hour })
		var last Spec
		for _, cluster := range []string{"a", "b", "c", "d"} {
			l := chained("l", chainTo("x.internal", cluster))
			l.Control.Default = new(chainTo("", cluster))
			l.Address = endpoint("127.0.0.1:1").Addr
			last = Spec{Optional: []config.Listener{l}}
			r.apply(last)
		}
		synctest.Wait()
		l := r.table.Load().listeners[0]
		if len(l.chains) != 2 || len(l.former) != 6 || len(l.ways()) != 8 {
			t.Errorf("%d chains, %d former ones", len(l.chains), len(l.former))
		}
		r.apply(last) // the same; after what was read here
		pass(settled + lookEvery)
		if len(l.chains) != 2 || len(l.former) != 0 {
			t.Errorf("%d chains, %d former ones", len(l.chains), len(l.former))
		}
	})
}

// A listener of the control plane that becomes a file's, and back, serves all the
// time at its port.
func TestChainsComeAndGo(t *testing.T) {
	one := listen(t, "one")
	clusters := []config.Cluster{clusterOf("one", static(one.Endpoint))}
	r := start(t, func(c *Config) { c.DrainTimeout = time.Hour })
	file := chained("l")
	file.Control, file.Origin, file.Cluster = nil, config.OriginFile, "one"
	theirs := Spec{Clusters: clusters, Optional: []config.Listener{chained("l", chainTo("", "one"))}}
	r.warm(theirs)
	port := r.listener("l").Address.String()
	r.steady(port, "one", func(i int) {
		if i%2 == 0 {
			r.apply(Spec{Clusters: clusters, Listeners: []config.Listener{file}})
		} else {
			r.apply(theirs)
		}
	})
	if got := r.listener("l"); got.Address.String() != port || got.Draining {
		t.Errorf("the listener is %+v", got)
	}
}
