package node

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"gatehouse.internal/cmd/agent/internal/config"
	"gatehouse.internal/forwarder"
	"gatehouse.internal/internal/tlsconf"
	"gatehouse.internal/internal/tlsconf/tlstest"
	"gatehouse.internal/lbcore"
)

// site is an authority with the files of a listener, an endpoint and a client.
type site struct {
	ca     *tlstest.CA
	dir    string
	caFile string
}

func newSite(t *testing.T) *site {
	s := &site{ca: tlstest.NewCA(t, "test"), dir: t.TempDir()}
	s.caFile = s.ca.Write(t, s.dir)
	return s
}

// issue writes name.pem and name-key.pem.
func (s *site) issue(t *testing.T, name string, names ...string) (certFile, keyFile string) {
	t.Helper()
	return s.ca.Issue(t, tlstest.Leaf{CommonName: name, Names: names}).Write(t, s.dir, name)
}

// secured returns a listener with a certificate of that name.
func (s *site) secured(t *testing.T, l config.Listener, name string) config.Listener {
	t.Helper()
	l.TLS = config.DownstreamTLS{Enabled: true, HandshakeTimeout: 20 * time.Second, MaxHandshakes: 10}
	l.TLS.CertFile, l.TLS.KeyFile = s.issue(t, name, "127.0.0.1")
	return l
}

// dialTLS connects to a listener with TLS, and returns the name of its
// certificate too.
func (r *rig) dialTLS(s *site, listener, want string, certs ...tls.Certificate) (c *conn, subject string) {
	r.t.Helper()
	a := r.listener(listener).Address
	raw, err := net.Dial(a.Network(), a.Dial())
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { raw.Close() })
	raw.SetDeadline(time.Now().Add(20 * time.Second))
	nc := tls.Client(raw, &tls.Config{RootCAs: s.ca.Pool(), ServerName: "127.0.0.1", Certificates: certs})
	c = &conn{Conn: nc, t: r.t, r: bufio.NewReader(nc)}
	line, err := c.r.ReadString('\n')
	if c.from = strings.TrimSuffix(line, "\n"); err != nil || c.from != want {
		r.t.Fatalf("a TLS connection led to %q with %v, want %q", c.from, tlsconf.Explain(err), want)
	}
	return c, nc.ConnectionState().PeerCertificates[0].Subject.CommonName
}

// listenTLS is listen for a backend that tells, besides, what clients have said
// in their handshakes.
func listenTLS(t *testing.T, name string, conf *tls.Config) (lbcore.Endpoint, chan tls.ConnectionState) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	seen := make(chan tls.ConnectionState, 16)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			raw, err := ln.Accept()
			if err != nil {
				return
			}
			stop := context.AfterFunc(ctx, func() { raw.Close() })
			wg.Go(func() {
				defer stop()
				defer raw.Close()
				c := tls.Server(raw, conf)
				if c.Handshake() != nil {
					return
				}
				seen <- c.ConnectionState()
				io.WriteString(c, name+"\n")
				io.Copy(c, c)
			})
		}
	})
	t.Cleanup(func() {
		ln.Close()
		cancel()
		wg.Wait()
	})
	return endpoint(ln.Addr().String()), seen
}

// subjectOf returns the subject of the first certificate, "" if there is none.
func subjectOf(st *tlsconf.Status) string {
	if len(st.Certificates) == 0 {
		return ""
	}
	return st.Certificates[0].Subject
}

// warm applies spec and waits until its clusters take connections.
func (r *rig) warm(spec Spec) {
	r.t.Helper()
	r.apply(spec)
	within(r.t, "the clusters are warm", func() bool { return len(r.Waiting()) == 0 })
}

// TLS with clients and with endpoints, both with certificates of both sides.
func TestTLS(t *testing.T) {
	s := newSite(t)
	pair := s.ca.Issue(t, tlstest.Leaf{Names: []string{"web.internal", "127.0.0.1"}})
	ep, seen := listenTLS(t, "one", &tls.Config{Certificates: []tls.Certificate{pair.TLS(t)}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: s.ca.Pool(), NextProtos: []string{"h2"}})
	cfg := clusterOf("web", static(ep))
	cfg.TLS = config.UpstreamTLS{Enabled: true, CAFile: s.caFile, ALPN: []string{"h2"}}
	cfg.TLS.CertFile, cfg.TLS.KeyFile = s.issue(t, "agent", "spiffe://example.org/agent")
	front := s.secured(t, listenerOf("front", "web"), "front")
	front.TLS.CAFile, front.TLS.RequireClientCertificate = s.caFile, true
	front.TLS.SPIFFEIDs = []string{"spiffe://example.org"}
	r := start(t)
	client := s.ca.Issue(t, tlstest.Leaf{Names: []string{"spiffe://example.org/client"}}).TLS(t)
	for _, tt := range []struct{ serverName, hostname, want string }{
		{"", "", ""}, // an IP address is not sent
		{"", "web.internal", "web.internal"},
		{"web.internal", "other.internal", "web.internal"},
	} {
		cfg.TLS.ServerName, ep.Hostname = tt.serverName, tt.hostname
		cfg.Discovery = []config.Discovery{static(ep)}
		r.warm(Spec{Clusters: []config.Cluster{cfg}, Listeners: []config.Listener{front}})
		within(t, "the change is in force", func() bool {
			st := r.cluster("web")
			return st.Waiting == "" && len(st.Endpoints) == 1 && st.Endpoints[0].Hostname == tt.hostname
		})
		c, subject := r.dialTLS(s, "front", "one", client)
		c.alive()
		if subject != "front" {
			t.Errorf("the listener's certificate is that of %q", subject)
		}
		if cs := <-seen; cs.ServerName != tt.want || cs.NegotiatedProtocol != "h2" || tlsconf.Peer(&cs) != "spiffe://example.org/agent" {
			t.Errorf("%+v: the endpoint has seen %q, %q and %s", tt, cs.ServerName, cs.NegotiatedProtocol, tlsconf.Peer(&cs))
		}
		c.Close()
	}
	if st := r.cluster("web").TLS; st == nil || subjectOf(st) != "CN=agent" || st.NotAfter.IsZero() || st.Err != nil {
		t.Errorf("the cluster's status is %+v", st)
	}
	if st := r.listener("front").TLS; st == nil || subjectOf(st) != "CN=front" || len(st.Certificates[0].Names) != 1 || st.Certificates[0].Names[0] != "127.0.0.1" {
		t.Errorf("the listener's status is %+v", st)
	}
}

// A certificate that is not for the endpoint is no reason to give it bytes.
func TestTLSWrongName(t *testing.T) {
	s := newSite(t)
	pair := s.ca.Issue(t, tlstest.Leaf{Names: []string{"other.internal"}})
	ep, _ := listenTLS(t, "one", &tls.Config{Certificates: []tls.Certificate{pair.TLS(t)}})
	cfg := clusterOf("web", static(ep))
	cfg.TLS = config.UpstreamTLS{Enabled: true, CAFile: s.caFile}
	r := start(t)
	r.warm(Spec{Clusters: []config.Cluster{cfg}, Listeners: []config.Listener{listenerOf("front", "web")}})
	rec := r.refused("front")
	if rec.Flag != forwarder.FlagUF || rec.Err == nil || !strings.Contains(rec.Err.Error(), "is not valid for 127.0.0.1: it names other.internal") {
		t.Errorf("%v, %v", rec.Flag, rec.Err)
	}
	if st := r.cluster("web").TLS; st == nil || subjectOf(st) != "" || !st.NotAfter.Equal(s.ca.Cert.NotAfter) {
		t.Errorf("status %+v", st)
	}
}

// Files that can't be used are an error that changes nothing.
func TestTLSApplyFails(t *testing.T) {
	s := newSite(t)
	one, two := listen(t, "one"), listen(t, "two")
	r := start(t)
	before := Spec{
		Clusters:  []config.Cluster{clusterOf("web", static(one.Endpoint))},
		Listeners: []config.Listener{listenerOf("front", "web"), s.secured(t, listenerOf("safe", "web"), "safe")},
	}
	r.warm(before)
	c := r.mustDial("front", "one")
	safe, _ := r.dialTLS(s, "safe", "one")
	port, server := r.listener("front").Address, r.shownTLS("safe")

	bad := clusterOf("web", static(two.Endpoint))
	bad.TLS = config.UpstreamTLS{Enabled: true, CAFile: filepath.Join(s.dir, "missing")}
	to := clusterOf("web", static(two.Endpoint))
	plain, secure, moved := listenerOf("front", "web"), s.secured(t, listenerOf("front", "web"), "front"), s.secured(t, listenerOf("safe", "web"), "next")
	secure.TLS.KeyFile = moved.TLS.KeyFile
	moved.TLS.CertFile = s.caFile
	fresh := s.secured(t, listenerOf("fresh", "web"), "fresh")
	fresh.TLS.CertFile = filepath.Join(s.dir, "missing")
	for want, spec := range map[string]Spec{
		`cluster "web": tls client: stat `:       {Clusters: []config.Cluster{bad}, Listeners: []config.Listener{plain}},
		`listener "front": tls server: certific`: {Clusters: []config.Cluster{to}, Listeners: []config.Listener{secure}},
		`listener "safe": tls server: `:          {Clusters: []config.Cluster{to}, Listeners: []config.Listener{plain, moved}},
		`listener "fresh": tls server: stat `:    {Clusters: []config.Cluster{to}, Listeners: []config.Listener{plain, fresh}},
	} {
		if err := r.Apply(t.Context(), spec); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("error %v, want %s…", err, want)
		}
		c.alive()
		safe.alive()
		r.mustDial("front", "one")
		r.dialTLS(s, "safe", "one")
	}
	if st := r.listener("front"); st.Address != port || st.TLS != nil || r.shownTLS("safe") != server || r.cluster("web").TLS != nil {
		t.Errorf("the listeners are %+v", r.Status().Listeners)
	}
}

// Where a listener can't have its new settings nothing is applied: it keeps its TLS,
// which rotates, and its cluster.
func TestTLSSetFails(t *testing.T) {
	s := newSite(t)
	one, two := listen(t, "one"), listen(t, "two")
	r := start(t)
	spec := func(l config.Listener) Spec {
		return Spec{Clusters: []config.Cluster{clusterOf("one", static(one.Endpoint)), clusterOf("two", static(two.Endpoint))}, Listeners: []config.Listener{l}}
	}
	l := s.secured(t, at(listenerOf("front", "one"), t.TempDir(), "front"), "first")
	r.warm(spec(l))
	server := r.shownTLS("front")
	for _, next := range []config.Listener{s.secured(t, l, "second"), at(listenerOf("front", "two"), filepath.Dir(l.Address.Path()), "front")} {
		next.Cluster, next.Unix.User = "two", "no such user"
		if err := r.Apply(t.Context(), spec(next)); err == nil || !strings.Contains(err.Error(), "no such user") {
			t.Errorf("settings that can't be had: %v", err)
		}
		if _, subject := r.dialTLS(s, "front", "one"); subject != "first" || r.shownTLS("front") != server {
			t.Errorf("certificate of %q, shown is %q", subject, subjectOf(r.listener("front").TLS))
		}
	}
	r.rotates(s, "first", "later", "front")
	r.apply(spec(s.secured(t, l, "third")))
	if _, subject := r.dialTLS(s, "front", "one"); subject != "third" {
		t.Errorf("settings that can be had again: certificate of %q", subject)
	}
}

// shownTLS returns what secures a listener, for comparing.
func (r *rig) shownTLS(name string) *downstreamTLS {
	for _, l := range r.table.Load().listeners {
		if sh := l.shown.Load(); sh.Name == name && !l.draining.Load() {
			return sh.tls
		}
	}
	return nil
}

// A listener goes from plain to TLS, to another certificate and back on one port,
// and its connections live; what is the same is kept.
func TestTLSChanges(t *testing.T) {
	s := newSite(t)
	one := listen(t, "one")
	r := start(t)
	set := func(l config.Listener) {
		t.Helper()
		r.warm(Spec{Clusters: []config.Cluster{clusterOf("web", static(one.Endpoint))}, Listeners: []config.Listener{l}})
	}
	plain := listenerOf("front", "web")
	set(plain)
	port := r.listener("front").Address
	var live []*conn
	live = append(live, r.mustDial("front", "one"))
	for _, name := range []string{"first", "second"} {
		l := s.secured(t, plain, name)
		set(l)
		c, subject := r.dialTLS(s, "front", "one")
		if subject != name {
			t.Errorf("the certificate is that of %q, want %q", subject, name)
		}
		live = append(live, c)
		same := r.shownTLS("front")
		l.MaxConnections = 1000
		set(l)
		if same == nil || r.shownTLS("front") != same {
			t.Error("the same settings made another context")
		}
		l.TLS.HandshakeTimeout = time.Minute
		set(l)
		if r.shownTLS("front") == same {
			t.Error("other settings made no other context")
		}
	}
	set(plain)
	live = append(live, r.mustDial("front", "one"))
	if st := r.listener("front"); st.Address != port || st.TLS != nil {
		t.Errorf("the listener is %+v", st)
	}
	for _, c := range live {
		c.alive()
	}
	// The address changes, and the context goes with it; then all is gone.
	l := s.secured(t, plain, "third")
	set(l)
	same := r.shownTLS("front")
	l.Address = lbcore.IPAddr(netip.MustParseAddrPort("127.0.0.1:0"))
	set(l)
	if r.shownTLS("front") != same {
		t.Error("the listener that has moved has another context")
	}
	r.rotates(s, "third", "moved", "front")
	r.apply(Spec{})
	for _, c := range live {
		c.alive()
	}
}

// rotates replaces the files of name, and waits until a listener shows them.
func (r *rig) rotates(s *site, name, subject, listener string) {
	r.t.Helper()
	s.ca.Issue(r.t, tlstest.Leaf{CommonName: subject, Names: []string{"127.0.0.1"}}).Write(r.t, s.dir, name)
	within(r.t, "the new certificate is in force", func() bool { return subjectOf(r.listener(listener).TLS) == "CN="+subject })
	if _, got := r.dialTLS(s, listener, "one"); got != subject {
		r.t.Errorf("the certificate is that of %q, want %q", got, subject)
	}
}

// Files that change are taken up on both sides while connections live; bad ones
// are told of and leave the last good ones in force.
func TestTLSRotates(t *testing.T) {
	s := newSite(t)
	pair := s.ca.Issue(t, tlstest.Leaf{Names: []string{"127.0.0.1"}})
	ep, seen := listenTLS(t, "one", &tls.Config{Certificates: []tls.Certificate{pair.TLS(t)}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: s.ca.Pool()})
	cfg := clusterOf("web", static(ep))
	cfg.TLS = config.UpstreamTLS{Enabled: true, CAFile: s.caFile}
	cfg.TLS.CertFile, cfg.TLS.KeyFile = s.issue(t, "agent")
	front := s.secured(t, listenerOf("front", "web"), "front")
	r := start(t)
	r.warm(Spec{Clusters: []config.Cluster{cfg}, Listeners: []config.Listener{front}})
	live, _ := r.dialTLS(s, "front", "one")
	<-seen
	r.rotates(s, "front", "rotated", "front")
	<-seen
	s.ca.Issue(t, tlstest.Leaf{CommonName: "newer"}).Write(t, s.dir, "agent")
	within(t, "the cluster's certificate is in force", func() bool { return subjectOf(r.cluster("web").TLS) == "CN=newer" })
	r.dialTLS(s, "front", "one")
	if cs := <-seen; cs.PeerCertificates[0].Subject.CommonName != "newer" {
		t.Errorf("the endpoint has seen %q", cs.PeerCertificates[0].Subject.CommonName)
	}

	tlstest.Replace(t, front.TLS.CertFile, []byte("nonsense"))
	tlstest.Replace(t, cfg.TLS.KeyFile, []byte("nonsense"))
	within(t, "both are told of", func() bool {
		l, c := r.listener("front").TLS, r.cluster("web").TLS
		return l.Err != nil && l.Failures == 1 && c.Err != nil && c.Failures == 1
	})
	if _, subject := r.dialTLS(s, "front", "one"); subject != "rotated" {
		t.Errorf("the certificate is that of %q", subject)
	}
	live.alive()
}

// A client whose certificate is not accepted, or that is silent, harms nobody.
func TestTLSClients(t *testing.T) {
	s, other := newSite(t), newSite(t)
	one := listen(t, "one")
	front := s.secured(t, listenerOf("front", "web"), "front")
	front.TLS.CAFile, front.TLS.RequireClientCertificate = s.caFile, true
	front.TLS.HandshakeTimeout, front.TLS.MaxHandshakes = 50*time.Millisecond, 1
	r := start(t)
	spec := Spec{Clusters: []config.Cluster{clusterOf("web", static(one.Endpoint))}, Listeners: []config.Listener{front}}
	r.warm(spec)
	a := r.listener("front").Address
	silent, err := net.Dial(a.Network(), a.Dial())
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	silent.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := silent.Read(make([]byte, 1)); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("the silent client: %v", err)
	}
	spec.Listeners[0].TLS.HandshakeTimeout = 20 * time.Second
	r.warm(spec)
	raw, err := net.Dial(a.Network(), a.Dial())
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	raw.SetDeadline(time.Now().Add(20 * time.Second))
	c := tls.Client(raw, &tls.Config{RootCAs: s.ca.Pool(), ServerName: "127.0.0.1", Certificates: []tls.Certificate{other.ca.Issue(t, tlstest.Leaf{}).TLS(t)}})
	if _, err := c.Read(make([]byte, 1)); err == nil || !strings.Contains(tlsconf.Explain(err).Error(), "does not trust the authority") {
		t.Errorf("the stranger: %v", err)
	}
	within(t, "both are counted", func() bool {
		st := r.listener("front").Stats
		return st.TLSErrors == 2 && st.Active == 0 && st.Flags[forwarder.FlagDC] == 2
	})
	good, _ := r.dialTLS(s, "front", "one", s.ca.Issue(t, tlstest.Leaf{}).TLS(t))
	good.alive()
	if n := one.accepted.Load(); n != 1 {
		t.Errorf("the backend has had %d connections", n)
	}
}
