package node

import (
	"crypto/tls"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"gatehouse.internal/cmd/agent/internal/config"
	"gatehouse.internal/forwarder"
	"gatehouse.internal/internal/tlsconf"
	"gatehouse.internal/internal/tlsconf/tlstest"
	"gatehouse.internal/lbcore"
)

func labels(pairs ...string) lbcore.Labels {
	m := make(map[string]string)
	for i := 0; i < len(pairs); i += 2 {
		m[pairs[i]] = pairs[i+1]
	}
	return lbcore.LabelsOf(m, lbcore.Labels{})
}

// upstream is TLS with a certificate of that SPIFFE ID, for endpoints of others.
func (s *site) upstream(t *testing.T, id string, ids ...string) *config.ControlTLS {
	t.Helper()
	p := s.ca.Issue(t, tlstest.Leaf{CommonName: id, Names: []string{"spiffe://example.org/" + id}})
	c := &config.ControlTLS{ClientConfig: tlsconf.ClientConfig{
		CertFile: "the certificate", Cert: string(p.CertPEM), KeyFile: "the key", Key: string(p.KeyPEM),
		CAFile: "the authorities", CA: string(s.ca.PEM), ServerName: "outbound.web",
	}}
	for _, id := range ids {
		c.SANs = append(c.SANs, tlsconf.Matcher{Type: tlsconf.URI, Exact: "spiffe://example.org/" + id})
	}
	return c
}

// workload is an endpoint that wants a certificate of its clients.
func (s *site) workload(t *testing.T, l tlstest.Leaf) (lbcore.Endpoint, chan tls.ConnectionState) {
	t.Helper()
	return listenTLS(t, "mtls", &tls.Config{
		Certificates: []tls.Certificate{s.ca.Issue(t, l).TLS(t)}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: s.ca.Pool(),
	})
}

// byMode is what Istio gives its clusters.
func byMode(c *config.ControlTLS) *config.Transport {
	return &config.Transport{Matches: []config.TransportSocket{
		{Name: "tlsMode-istio", Match: labels("tlsMode", "istio"), TLS: c},
		{Name: "tunnel", Match: labels("tunnel", "http"), Unsupported: "transport_socket_matches[1].transport_socket \"internal_upstream\""},
		{Name: "tlsMode-disabled"},
	}}
}

// controlled returns a cluster of the control plane with these endpoints.
func controlled(tr *config.Transport, eps ...lbcore.Endpoint) config.Cluster {
	c := clusterOf("web", static(eps...))
	c.Origin, c.Transport = config.OriginXDS, tr
	return c
}

func front(c config.Cluster) Spec {
	return Spec{Clusters: []config.Cluster{c}, Listeners: []config.Listener{listenerOf("front", "web")}}
}

// endpointAt returns the status of an endpoint, zero if there is none.
func (r *rig) endpointAt(cluster string, a lbcore.Addr) (out EndpointStatus) {
	for _, e := range r.cluster(cluster).Endpoints {
		if e.Addr == a {
			out = e
		}
	}
	return out
}

// settled waits until the cluster has these endpoints.
func (r *rig) settled(eps ...lbcore.Endpoint) {
	r.t.Helper()
	within(r.t, "the change is in force", func() bool {
		st := r.cluster("web")
		listed := 0
		for _, e := range st.Endpoints {
			if !e.Withdrawn {
				if listed++; !slices.Contains(eps, e.Endpoint) {
					return false
				}
			}
		}
		return st.Waiting == "" && len(r.Waiting()) == 0 && listed == len(eps)
	})
}

// Endpoints of one cluster are secured as what is said of each, and of its locality,
// asks for; one with a socket that can't be had is never dialled in plain text.
func TestTransportByEndpoint(t *testing.T) {
	s := newSite(t)
	secure, seen := s.workload(t, tlstest.Leaf{Names: []string{"spiffe://example.org/web"}})
	plain, tunnel, placed := listen(t, "plain"), listen(t, "tunnel"), secure
	secure.TransportMatch, tunnel.TransportMatch = labels("tlsMode", "istio", "x", "y"), labels("tunnel", "http")
	placed.TransportMatch = lbcore.LabelsOf(nil, labels("tlsMode", "istio"))
	plain.TransportMatch = placed.TransportMatch // an empty match comes before what its locality says
	tr := byMode(s.upstream(t, "agent", "web"))
	r := start(t)
	set := func(tr *config.Transport, eps ...lbcore.Endpoint) {
		t.Helper()
		r.warm(front(controlled(tr, eps...)))
		r.settled(eps...)
	}
	set(tr, secure)
	r.mustDial("front", "mtls").alive()
	if cs := <-seen; tlsconf.Peer(&cs) != "spiffe://example.org/agent" || cs.ServerName != "outbound.web" {
		t.Errorf("the endpoint has seen %s and %q", tlsconf.Peer(&cs), cs.ServerName)
	}
	set(tr, plain.Endpoint)
	r.mustDial("front", "plain").alive()
	set(tr, tunnel.Endpoint)
	rec := r.refused("front")
	if want := `not supported: transport_socket_matches[1].transport_socket "internal_upstream"`; rec.Flag != forwarder.FlagUF || fmt.Sprint(rec.Err) != want || tunnel.accepted.Load() > 0 {
		t.Errorf("%s %v, %d connections, want %s", rec.Flag, rec.Err, tunnel.accepted.Load(), want)
	}
	if e := r.endpointAt("web", tunnel.Addr); e.Totals.Failed != 0 || !e.Ready {
		t.Errorf("what is wrong here counts against the endpoint: %+v", e)
	}
	set(tr, tunnel.Endpoint, secure) // another one is tried
	for range 4 {
		r.mustDial("front", "mtls")
	}
	byPlace := &config.Transport{Matches: tr.Matches[:1]}
	set(byPlace, placed)
	r.mustDial("front", "mtls").alive()
	plain.TransportMatch = lbcore.Labels{}
	set(byPlace, plain.Endpoint) // what none matches has the default
	r.mustDial("front", "plain").alive()
	// What is said of an endpoint changes between two questions of a dial.
	c := r.serving("web")
	for _, m := range c.view.Members() {
		if cfg, err := c.dial.TLS(m); m.Addr() == plain.Addr && (cfg != nil || err != nil) {
			t.Errorf("an endpoint in plain text has %v, %v", cfg, err)
		}
	}
}

// What is looked at for each dial allocates nothing, for plain endpoints.
func TestTransportCost(t *testing.T) {
	s := newSite(t)
	plain := listen(t, "plain")
	plain.TransportMatch = labels("a", "b")
	r := start(t)
	r.warm(front(controlled(byMode(s.upstream(t, "agent")), plain.Endpoint)))
	c := r.serving("web")
	m := c.view.Members()[0]
	if n := testing.AllocsPerRun(100, func() {
		if !c.dial.Plain(m) {
			t.Error("not plain")
		}
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

// Each reason why an endpoint, or its client, is not who it should be has its own words,
// and another endpoint takes the connection.
func TestTransportRefuses(t *testing.T) {
	s, stranger := newSite(t), tlstest.NewCA(t, "stranger")
	ended := time.Now().Add(-time.Hour)
	good, _ := s.workload(t, tlstest.Leaf{Names: []string{"spiffe://example.org/web"}})
	old, _ := s.workload(t, tlstest.Leaf{Names: []string{"spiffe://example.org/web"}, NotBefore: ended.Add(-time.Hour), NotAfter: ended})
	other, _ := s.workload(t, tlstest.Leaf{Names: []string{"spiffe://example.org/other"}})
	plain := listen(t, "plain")
	foreign, _ := listenTLS(t, "foreign", &tls.Config{Certificates: []tls.Certificate{stranger.Issue(t, tlstest.Leaf{Names: []string{"spiffe://example.org/web"}}).TLS(t)}})
	client := s.upstream(t, "agent", "web")
	r := start(t)
	for name, tt := range map[string]struct {
		ep   lbcore.Endpoint
		tls  func(*config.ControlTLS)
		want string
		why  tlsconf.Reason
		flag forwarder.Flag
	}{
		"wrong name":  {other, nil, "tls handshake: the peer's certificate names spiffe://example.org/other, and nothing of that is accepted; wanted: uri exact \"spiffe://example.org/web\"", tlsconf.ReasonName, forwarder.FlagUF},
		"expired":     {old, nil, "tls handshake: the peer's certificate, which names spiffe://example.org/web, expired at", tlsconf.ReasonExpired, forwarder.FlagUF},
		"unknown CA":  {foreign, nil, "tls handshake: the peer's certificate is signed by an authority that is not among the trusted ones", tlsconf.ReasonAuthority, forwarder.FlagUF},
		"not TLS":     {plain.Endpoint, nil, "tls handshake: the peer does not speak TLS", tlsconf.ReasonNotTLS, forwarder.FlagUF},
		"no identity": {good, func(c *config.ControlTLS) { c.Cert, c.Key, c.CertFile, c.KeyFile = "", "", "", "" }, "the peer refused: it wants a client certificate, and none was shown", tlsconf.ReasonRefused, forwarder.FlagUC},
		"a pin":       {good, func(c *config.ControlTLS) { c.Pins = []tlsconf.Pin{{}} }, "tls handshake: the server's certificate is none of those that are pinned", tlsconf.ReasonCertificate, forwarder.FlagUF},
	} {
		t.Run(name, func(t *testing.T) {
			c := *client
			if tt.tls != nil {
				tt.tls(&c)
			}
			cfg := controlled(&config.Transport{Default: config.TransportSocket{TLS: &c}}, tt.ep)
			r.warm(front(cfg))
			r.settled(tt.ep)
			before := r.cluster("web").TLSFailures
			rec := r.refused("front")
			after := r.cluster("web").TLSFailures
			for reason, n := range after {
				if n -= before[reason]; (n > 0) != (tlsconf.Reason(reason) == tt.why) {
					t.Errorf("%d failures for %s, want those for %s", n, tlsconf.Reason(reason), tt.why)
				}
			}
			if rec.Flag != tt.flag || rec.Err == nil || !strings.HasPrefix(rec.Err.Error(), tt.want) {
				t.Errorf("%s %v, want %s %s", rec.Flag, rec.Err, tt.flag, tt.want)
			}
			if tt.ep.Addr == good.Addr {
				return
			}
			r.warm(front(controlled(cfg.Transport, tt.ep, good)))
			r.settled(tt.ep, good)
			for range 4 {
				r.mustDial("front", "mtls")
			}
		})
	}
}

// Certificates change, go and come while the cluster stays, with its connections.
func TestTransportRotates(t *testing.T) {
	s := newSite(t)
	ep, seen := s.workload(t, tlstest.Leaf{Names: []string{"spiffe://example.org/web"}})
	r := start(t)
	one := s.upstream(t, "one", "web")
	socket := func(c *config.ControlTLS, no string) *config.Transport {
		return &config.Transport{Default: config.TransportSocket{TLS: c, NoTLS: no}}
	}
	set := func(tr *config.Transport) {
		t.Helper()
		r.apply(front(controlled(tr, ep)))
		r.settled(ep)
	}
	dial := func(want string) *conn {
		t.Helper()
		c := r.mustDial("front", "mtls")
		if cs := <-seen; tlsconf.Peer(&cs) != "spiffe://example.org/"+want {
			t.Errorf("the endpoint sees %s, want %s", tlsconf.Peer(&cs), want)
		}
		return c
	}
	refused := func(want string) {
		t.Helper()
		if rec := r.refused("front"); rec.Flag != forwarder.FlagUF || rec.Err == nil || !strings.Contains(rec.Err.Error(), want) {
			t.Errorf("%s %v, want %s", rec.Flag, rec.Err, want)
		}
		if st := r.cluster("web").TLS; st == nil || st.Err == nil || !strings.Contains(st.Err.Error(), want) {
			t.Errorf("status %+v", st)
		}
	}
	bare := immaterial(socket(one, "")).Default.TLS
	set(socket(bare, "a secret has not come yet"))
	refused("no tls: a secret has not come yet")
	cluster := r.serving("web")
	set(socket(one, ""))
	first := dial("one")
	two := s.upstream(t, "two", "web")
	set(socket(two, ""))
	second := dial("two")
	if st := r.cluster("web").TLS; st == nil || subjectOf(st) != "CN=two" {
		t.Errorf("status %+v", st)
	}
	old := *two
	p := s.ca.Issue(t, tlstest.Leaf{NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: time.Now().Add(-time.Hour)})
	old.Cert, old.Key = string(p.CertPEM), string(p.KeyPEM)
	set(socket(&old, "")) // the last good one stays
	dial("two")
	if st := r.cluster("web").TLS; st == nil || st.Err == nil || !strings.Contains(st.Err.Error(), "expired at") || subjectOf(st) != "CN=two" {
		t.Errorf("status %+v", st)
	}
	set(socket(bare, "secret \"default\": deleted"))
	refused("no tls: secret \"default\": deleted")
	if c := r.serving("web"); c != cluster {
		t.Error("the cluster was replaced")
	}
	first.alive()
	second.alive()
	set(socket(one, ""))
	dial("one")

	next := controlled(socket(two, ""), ep) // with other settings beside
	next.ConnectTimeout += time.Second
	r.apply(front(next))
	within(t, "the cluster is replaced", func() bool { return r.serving("web") != cluster })
	dial("two")
	first.alive()
	other := s.upstream(t, "one", "other")
	r.apply(front(controlled(socket(other, ""), ep)))
	within(t, "the cluster is replaced", func() bool {
		return r.cluster("web").Waiting == "" && len(r.table.Load().warming) == 0 && r.serving("web").cfg.Transport.Default.TLS.SANs[0] == other.SANs[0]
	})
	if rec := r.refused("front"); !strings.Contains(fmt.Sprint(rec.Err), "nothing of that is accepted") {
		t.Errorf("%v", rec.Err)
	}
}

// What is expired when it comes is tried again: here, files appear.
func TestTransportFilesCome(t *testing.T) {
	s := newSite(t)
	ep, seen := s.workload(t, tlstest.Leaf{Names: []string{"spiffe://example.org/web"}})
	c := s.upstream(t, "one", "web")
	c.CertFile, c.KeyFile, c.Cert, c.Key = s.dir+"/late.pem", s.dir+"/late-key.pem", "", ""
	r := start(t)
	r.warm(front(controlled(&config.Transport{Default: config.TransportSocket{TLS: c}}, ep)))
	if rec := r.refused("front"); !strings.Contains(fmt.Sprint(rec.Err), "late.pem: no such file") {
		t.Errorf("%v", rec.Err)
	}
	s.issue(t, "late", "spiffe://example.org/late")
	within(t, "the files are found", func() bool { return r.cluster("web").TLS.Err == nil })
	r.mustDial("front", "mtls")
	if cs := <-seen; tlsconf.Peer(&cs) != "spiffe://example.org/late" {
		t.Errorf("the endpoint sees %s", tlsconf.Peer(&cs))
	}
}

// Checks secure their connections as those of clients are secured, and go by what is
// rotated.
func TestTransportChecks(t *testing.T) {
	s, stranger := newSite(t), tlstest.NewCA(t, "stranger")
	secure, seen := s.workload(t, tlstest.Leaf{Names: []string{"spiffe://example.org/web"}})
	plain, tunnel := listen(t, "plain"), listen(t, "tunnel")
	secure.TransportMatch, tunnel.TransportMatch = labels("tlsMode", "istio"), labels("tunnel", "http")
	good := s.upstream(t, "agent", "web")
	good.ALPN = []string{"istio"}
	foreign := *good
	foreign.CA = string(stranger.PEM)
	check := config.HealthCheck{
		Kind: config.CheckTCP, Interval: 20 * time.Millisecond, Timeout: 5 * time.Second, HealthyThreshold: 1, UnhealthyThreshold: 1,
		Initial: config.InitialUnknown, Share: true, Receive: []config.Payload{"\n"},
	}
	spec := func(c *config.ControlTLS) Spec {
		cfg := controlled(byMode(c), secure, plain.Endpoint, tunnel.Endpoint)
		cfg.HealthChecks = []config.HealthCheck{check}
		return front(cfg)
	}
	done := make(chan struct{})
	defer close(done)
	go func() { // so that the backend never waits
		for {
			select {
			case <-seen:
			case <-done:
				return
			}
		}
	}()
	r := start(t)
	of := func(a lbcore.Addr) EndpointStatus { return r.endpointAt("web", a) }
	r.apply(spec(good))
	within(t, "what passes is ready", func() bool { return of(secure.Addr).Ready && of(plain.Addr).Ready })
	within(t, "the reason of the one without is known", func() bool {
		return strings.Contains(of(tunnel.Addr).Why, "its tcp check has no verdict yet: not supported: transport_socket_matches[1]")
	})
	if tunnel.accepted.Load() > 0 {
		t.Error("a check was made in plain text")
	}
	r.apply(spec(&foreign))
	within(t, "the check fails", func() bool {
		return strings.Contains(of(secure.Addr).Why, "signed by an authority that is not among the trusted ones") && of(plain.Addr).Ready
	})
	r.apply(spec(good))
	within(t, "it passes again", func() bool { return of(secure.Addr).Ready })

	check.TransportMatch = labels("tlsMode", "istio") // in place of what endpoints say
	check.Receive = nil
	check.TLS.ALPN = []string{"check"}
	r.apply(spec(good))
	within(t, "all are asked by TLS", func() bool {
		return of(secure.Addr).Ready && strings.Contains(of(plain.Addr).Why, "the peer does not speak TLS") && strings.Contains(of(tunnel.Addr).Why, "the peer does not speak TLS")
	})
}
