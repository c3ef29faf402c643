package tlsconf_test

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"gatehouse.internal/internal/tlsconf"
	"gatehouse.internal/internal/tlsconf/tlstest"
)

// site has an authority's files, of which tests change what they are about.
type site struct {
	ca     *tlstest.CA
	dir    string
	client tlsconf.ClientConfig
	server tlsconf.ServerConfig
}

const spiffeID = "spiffe://example.org/ns/default/web"

func newSite(t testing.TB) site {
	t.Helper()
	s := site{ca: tlstest.NewCA(t, "one"), dir: t.TempDir()}
	s.client.CAFile = s.ca.Write(t, s.dir)
	s.server.CertFile, s.server.KeyFile = s.ca.Issue(t, tlstest.Leaf{Names: []string{"web.internal", "127.0.0.1", spiffeID}}).Write(t, s.dir, "server")
	return s
}

// mutual makes both sides show certificates.
func (s *site) mutual(t testing.TB) {
	t.Helper()
	s.client.CertFile, s.client.KeyFile = s.ca.Issue(t, tlstest.Leaf{Names: []string{"spiffe://example.org/client"}}).Write(t, s.dir, "client")
	s.server.ClientCAFile, s.server.RequireClientCert = s.client.CAFile, true
}

func TestHandshake(t *testing.T) {
	stranger := tlstest.NewCA(t, "stranger")
	spiffe := func(id string) []tlsconf.Matcher {
		m, err := tlsconf.SPIFFE(id)
		must(t, err)
		return []tlsconf.Matcher{m}
	}
	for _, tt := range []struct {
		name string
		with func(t *testing.T, s *site)
		to   string // server name
		// What is negotiated by ALPN.
		protocol string
		// What Explain says; empty: no error.
		clientSays, serverSays string
	}{
		{name: "server name", to: "web.internal"},
		{name: "address", to: "127.0.0.1"},
		{name: "configured name", with: func(_ *testing.T, s *site) { s.client.ServerName = "web.internal" }},
		{name: "the given name wins", with: func(_ *testing.T, s *site) { s.client.ServerName = "other.internal" }, to: "web.internal"},
		{name: "other name", to: "api.internal", clientSays: "the server's certificate is not valid for api.internal: it names " + spiffeID + ", web.internal, 127.0.0.1", serverSays: "it does not accept our certificate"},
		{name: "no name", clientSays: "there is no server name to verify", serverSays: "closed the connection during the TLS handshake"},
		{name: "no name, but names to match", with: func(_ *testing.T, s *site) { s.client.SANs = spiffe("spiffe://example.org") }},
		{name: "names stand in for the server name", to: "api.internal", with: func(_ *testing.T, s *site) { s.client.SANs = spiffe(spiffeID) }},
		{name: "names that don't match", to: "web.internal", with: func(_ *testing.T, s *site) { s.client.SANs = spiffe("spiffe://example.org/ns/default/api") },
			clientSays: `web.internal, 127.0.0.1, and nothing of that is accepted; wanted: uri exact "spiffe://example.org/ns/default/api"`, serverSays: "bad certificate"},
		{name: "stranger's server", to: "web.internal", with: func(t *testing.T, s *site) { s.client.CAFile = stranger.Write(t, t.TempDir()) },
			clientSays: "signed by an authority that is not among the trusted ones: it names " + spiffeID, serverSays: "bad certificate"},
		{name: "stranger's server with the right names", with: func(t *testing.T, s *site) {
			s.client.CAFile, s.client.SANs = stranger.Write(t, t.TempDir()), spiffe(spiffeID)
		}, clientSays: "not among the trusted ones", serverSays: "bad certificate"},
		{name: "system's authorities", to: "web.internal", with: func(_ *testing.T, s *site) { s.client.CAFile = "" }, clientSays: "not among the trusted ones", serverSays: "bad certificate"},
		{name: "system's authorities with names", with: func(_ *testing.T, s *site) { s.client.CAFile, s.client.SANs = "", spiffe(spiffeID) }, clientSays: "not among the trusted ones", serverSays: "bad certificate"},
		{name: "purpose", to: "web.internal", with: func(t *testing.T, s *site) {
			s.server.CertFile, s.server.KeyFile = s.ca.Issue(t, tlstest.Leaf{Names: []string{"web.internal"}, Usage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}).Write(t, s.dir, "server")
		}, clientSays: "is not made for this side", serverSays: "bad certificate"},
		{name: "purpose with names", with: func(t *testing.T, s *site) {
			s.client.SANs = spiffe(spiffeID)
			s.server.CertFile, s.server.KeyFile = s.ca.Issue(t, tlstest.Leaf{Names: []string{spiffeID}, Usage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}).Write(t, s.dir, "server")
		}, clientSays: "is not made for this side", serverSays: "bad certificate"},
		{name: "expired at the client", to: "web.internal", with: func(_ *testing.T, s *site) { s.client.Now = func() time.Time { return time.Now().AddDate(1, 0, 0) } },
			clientSays: ", expired at ", serverSays: ""},
		{name: "not yet valid at the client", with: func(_ *testing.T, s *site) {
			s.client.SANs = spiffe(spiffeID)
			s.client.Now = func() time.Time { return time.Now().AddDate(0, 0, -3) }
		}, clientSays: "is not valid before", serverSays: "it does not accept our certificate"},
		{name: "versions", to: "web.internal", with: func(_ *testing.T, s *site) {
			s.client.MinVersion, s.server.MaxVersion = tls.VersionTLS13, tls.VersionTLS12
		}, clientSays: "it supports none of our TLS versions", serverSays: "the client supports none of the TLS versions that are allowed here"},
		{name: "TLS 1.2", to: "web.internal", with: func(_ *testing.T, s *site) { s.client.MaxVersion = tls.VersionTLS12 }},
		{name: "ALPN", to: "web.internal", with: func(_ *testing.T, s *site) { s.client.ALPN, s.server.ALPN = []string{"h2"}, []string{"http/1.1"} },
			clientSays: "none of the ALPN protocols", serverSays: "none of the ALPN protocols that are offered here"},
		{name: "any ALPN", to: "web.internal", with: func(_ *testing.T, s *site) {
			s.client.ALPN, s.server.ALPN, s.server.AnyALPN = []string{"istio"}, []string{"h2"}, true
		}},
		{name: "any ALPN, which is shared", protocol: "h2", to: "web.internal", with: func(_ *testing.T, s *site) {
			s.client.ALPN, s.server.ALPN, s.server.AnyALPN = []string{"istio", "h2"}, []string{"http/1.1", "h2"}, true
		}},
		{name: "any ALPN, and a client of a stranger", to: "web.internal", with: func(t *testing.T, s *site) {
			s.mutual(t)
			s.client.ALPN, s.server.ALPN, s.server.AnyALPN = []string{"istio"}, []string{"h2"}, true
			s.client.CertFile, s.client.KeyFile = stranger.Issue(t, tlstest.Leaf{}).Write(t, s.dir, "client")
		}, clientSays: "it does not trust the authority that signed our certificate", serverSays: "not among the trusted ones: it has no names (its subject is CN=leaf)"},
		{name: "mutual", to: "web.internal", with: func(t *testing.T, s *site) { s.mutual(t) }},
		{name: "mutual, by trust domain", to: "web.internal", with: func(t *testing.T, s *site) { s.mutual(t); s.server.SANs = spiffe("spiffe://example.org") }},
		{name: "mutual, other trust domain", to: "web.internal", with: func(t *testing.T, s *site) { s.mutual(t); s.server.SANs = spiffe("spiffe://example.org.evil") },
			clientSays: "look at its log", serverSays: "names spiffe://example.org/client, and nothing of that is accepted"},
		{name: "no client certificate", to: "web.internal", with: func(t *testing.T, s *site) { s.mutual(t); s.client.CertFile, s.client.KeyFile = "", "" },
			clientSays: "it wants a client certificate, and none was shown", serverSays: "the client has shown no certificate"},
		{name: "no client certificate, TLS 1.2", to: "web.internal", with: func(t *testing.T, s *site) {
			s.mutual(t)
			s.client.CertFile, s.client.KeyFile, s.client.MaxVersion = "", "", tls.VersionTLS12
		}, clientSays: "the peer refused", serverSays: "the client has shown no certificate"},
		{name: "client certificate optional", to: "web.internal", with: func(t *testing.T, s *site) { s.server.ClientCAFile = s.client.CAFile }},
		{name: "optional, but then a good one", to: "web.internal", with: func(t *testing.T, s *site) {
			s.server.ClientCAFile = s.client.CAFile
			s.client.CertFile, s.client.KeyFile = stranger.Issue(t, tlstest.Leaf{}).Write(t, s.dir, "client")
		}, clientSays: "it does not trust the authority that signed our certificate", serverSays: "not among the trusted ones: it has no names (its subject is CN=leaf)"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newSite(t)
			if tt.with != nil {
				tt.with(t, &s)
			}
			o := connect(t, newClient(t, s.client).Config(tt.to), newServer(t, s.server).Config())
			check(t, "client", o.clientErr, tt.clientSays)
			check(t, "server", o.serverErr, tt.serverSays)
			if o.clientErr == nil {
				if o.client.NegotiatedProtocol != tt.protocol || o.server.NegotiatedProtocol != tt.protocol {
					t.Errorf("the protocol is %q and %q", o.client.NegotiatedProtocol, o.server.NegotiatedProtocol)
				}
				if got := tlsconf.Peer(&o.client); got != spiffeID {
					t.Errorf("the client's peer is %q", got)
				}
				want := ""
				if s.server.RequireClientCert {
					want = "spiffe://example.org/client"
				}
				if got := tlsconf.Peer(&o.server); got != want {
					t.Errorf("the server's peer is %q, want %q", got, want)
				}
			}
		})
	}
}

// check compares an error with the words that it is to have.
func check(t *testing.T, who string, err error, want string) {
	t.Helper()
	got := tlsconf.Explain(err)
	switch {
	case want == "" && who == "server":
		// Either of both: the client may have gone while the server wrote.
	case want == "" && err != nil:
		t.Errorf("the %s failed: %v", who, got)
	case want != "" && (got == nil || !strings.Contains(got.Error(), want)):
		t.Errorf("the %s says %q (of %v), want %q", who, got, err, want)
	}
	if err != nil && !errors.Is(got, err) {
		t.Errorf("%v doesn't wrap %v", got, err)
	}
}

// What is not to be resumed is not, whoever of both says so, and few sessions are
// kept if so said.
func TestResumeNot(t *testing.T) {
	for _, tt := range []struct {
		sessions     int
		noResumption bool
		want         [3]bool // again, of another endpoint, and of the first once more
	}{
		{0, false, [3]bool{true, false, true}},
		{1, false, [3]bool{true, false, false}},
		{-1, false, [3]bool{}},
		{0, true, [3]bool{}},
	} {
		for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
			s := newSite(t)
			s.client.MaxVersion, s.client.MaxSessions, s.server.NoResumption = version, tt.sessions, tt.noResumption
			client, server := newClient(t, s.client), newServer(t, s.server)
			dial := func(endpoint string) bool {
				o := connect(t, client.ConfigFor("web.internal", endpoint), server.Config())
				must(t, tlsconf.Explain(o.clientErr))
				return o.client.DidResume
			}
			dial("a")
			if got := [3]bool{dial("a"), dial("b"), dial("a")}; got != tt.want {
				t.Errorf("%s, %d sessions, none %v: resumed %v, want %v", tls.VersionName(version), tt.sessions, tt.noResumption, got, tt.want)
			}
		}
	}
}

// A client gets the certificate for the name that it sends, and the first one if
// none is; each of them rotates.
func TestSeveralCertificates(t *testing.T) {
	s := newSite(t)
	issue := func(name string, names ...string) tlstest.Pair {
		p := s.ca.Issue(t, tlstest.Leaf{CommonName: name, Names: names, NotAfter: time.Now().Add(time.Duration(len(name)) * time.Hour)})
		cert, key := p.Write(t, s.dir, names[0])
		if kp := (tlsconf.KeyPair{CertFile: cert, KeyFile: key}); !slices.Contains(s.server.More, kp) {
			s.server.More = append(s.server.More, kp)
		}
		return p
	}
	issue("api", "api.internal")
	issue("wild", "wild", "*.wild.internal")
	server := newServer(t, s.server)
	run(t, server.Run)
	expect := func(sni, want string) {
		t.Helper()
		cfg := &tls.Config{ServerName: sni, RootCAs: s.ca.Pool(), InsecureSkipVerify: want == "leaf"}
		o := connect(t, cfg, server.Config())
		if o.clientErr != nil {
			t.Fatalf("%s: %v", sni, tlsconf.Explain(o.clientErr))
		}
		if got := o.client.PeerCertificates[0].Subject.CommonName; got != want {
			t.Errorf("%s got the certificate of %q, want %q", sni, got, want)
		}
	}
	expect("web.internal", "leaf")
	expect("api.internal", "api")
	expect("a.wild.internal", "wild")
	expect("other.internal", "leaf")
	expect("127.0.0.1", "leaf") // is not sent
	st := server.Status()
	if len(st.Certificates) != 3 || st.Certificates[1].Subject != "CN=api" || !st.NotAfter.Equal(st.Certificates[1].NotAfter) {
		t.Errorf("status %+v", st) // api ends first
	}
	issue("newer", "api.internal")
	wait(t, "the rotation", func() bool { return server.Status().Generation == 2 })
	expect("api.internal", "newer")
	expect("a.wild.internal", "wild")
	tlstest.Replace(t, s.server.More[1].KeyFile, nil)
	wait(t, "the error", func() bool {
		err := server.Status().Err
		return err != nil && strings.Contains(err.Error(), s.server.More[1].KeyFile)
	})
	expect("a.wild.internal", "wild")

	s.server.More = append(s.server.More, tlsconf.KeyPair{CertFile: "x"})
	_, err := tlsconf.NewServer(s.server)
	check(t, "half a pair", err, "go together")
}

func TestExplain(t *testing.T) {
	if tlsconf.Explain(nil) != nil {
		t.Error("nil is explained")
	}
	other := errors.New("other")
	if got := tlsconf.Explain(other); got != other {
		t.Errorf("an unknown error became %v", got)
	}
	once := tlsconf.Explain(io.EOF)
	if twice := tlsconf.Explain(fmt.Errorf("endpoint a: %w", once)); twice.Error() != once.Error() {
		t.Errorf("explained twice: %v", twice)
	}

	// A peer that speaks something else.
	client, server := net.Pipe()
	defer client.Close()
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		defer server.Close()
		_, _ = server.Read(make([]byte, 4096))
		_, _ = server.Write([]byte("SSH-2.0-OpenSSH_9.2p1\r\n"))
	})
	err := tls.Client(client, newClient(t, tlsconf.ClientConfig{}).Config("x")).Handshake()
	check(t, "client", err, "the peer does not speak TLS: first record does not look like a TLS handshake")
}

func TestNew(t *testing.T) {
	s := newSite(t)
	other := tlstest.NewCA(t, "other").Issue(t, tlstest.Leaf{})
	_, otherKey := other.Write(t, s.dir, "other")
	garbage := filepath.Join(s.dir, "garbage.pem")
	tlstest.Replace(t, garbage, []byte("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"))
	empty := filepath.Join(s.dir, "empty.pem")
	tlstest.Replace(t, empty, nil)
	huge := filepath.Join(s.dir, "huge.pem")
	tlstest.Replace(t, huge, make([]byte, 2<<20+1))
	bundle := filepath.Join(s.dir, "bundle.pem")
	tlstest.Replace(t, bundle, append([]byte("# comment\n"), append(s.ca.PEM, tlstest.NewCA(t, "two").PEM...)...))
	far := func() time.Time { return time.Now().AddDate(20, 0, 0) }
	later := func() time.Time { return time.Now().AddDate(0, 0, 2) }
	before := func() time.Time { return time.Now().AddDate(0, 0, -2) }
	cert, key := s.server.CertFile, s.server.KeyFile

	for _, tt := range []struct {
		name string
		c    tlsconf.ClientConfig
		want string
	}{
		{"zero", tlsconf.ClientConfig{}, ""},
		{"bundle", tlsconf.ClientConfig{CAFile: bundle}, ""},
		{"missing", tlsconf.ClientConfig{CAFile: "/no/such"}, "tls client: stat /no/such: no such file"},
		{"directory", tlsconf.ClientConfig{CAFile: s.dir}, s.dir + " is not a regular file"},
		{"huge", tlsconf.ClientConfig{CAFile: huge}, "is larger than"},
		{"empty CA", tlsconf.ClientConfig{CAFile: empty}, empty + ": no PEM certificate in it"},
		{"garbage CA", tlsconf.ClientConfig{CAFile: garbage}, garbage + ": PEM block 1: x509:"},
		{"key for a CA", tlsconf.ClientConfig{CAFile: key}, `no PEM certificate in it, but a "PRIVATE KEY"`},
		{"expired CA", tlsconf.ClientConfig{CAFile: s.client.CAFile, Now: far}, "no authority in it is valid any more"},
		{"half a pair", tlsconf.ClientConfig{CertFile: cert}, "go together: there is only \"" + cert},
		{"swapped", tlsconf.ClientConfig{CertFile: key, KeyFile: cert}, key + `: no PEM block "CERTIFICATE" in it`},
		{"no key", tlsconf.ClientConfig{CertFile: cert, KeyFile: cert}, cert + `: no PEM block "PRIVATE KEY" in it`},
		{"mismatch", tlsconf.ClientConfig{CertFile: cert, KeyFile: otherKey}, "certificate " + cert + " and key " + otherKey + " do not belong together"},
		{"garbage certificate", tlsconf.ClientConfig{CertFile: garbage, KeyFile: key}, "certificate " + garbage + " with key " + key},
		{"expired", tlsconf.ClientConfig{CertFile: cert, KeyFile: key, Now: later}, "certificate " + cert + " expired at 20"},
		{"not yet valid", tlsconf.ClientConfig{CertFile: cert, KeyFile: key, Now: before}, "is not valid before 20"},
		{"version", tlsconf.ClientConfig{MinVersion: tls.VersionTLS10}, "tls version TLS 1.0 is not supported"},
		{"versions", tlsconf.ClientConfig{MinVersion: tls.VersionTLS13, MaxVersion: tls.VersionTLS12}, "the lowest version, TLS 1.3, is above"},
		{"alpn", tlsconf.ClientConfig{ALPN: []string{""}}, "must have 1 to 255 bytes"},
		{"matcher", tlsconf.ClientConfig{SANs: []tlsconf.Matcher{{Exact: "a"}, {}}}, "name matcher 2: one of exact"},
	} {
		_, err := tlsconf.NewClient(tt.c)
		compare(t, tt.name, err, tt.want)
	}
	for _, tt := range []struct {
		name string
		c    tlsconf.ServerConfig
		want string
	}{
		{"zero", tlsconf.ServerConfig{}, "it needs a certificate file"},
		{"no CA", tlsconf.ServerConfig{CertFile: cert, KeyFile: key, RequireClientCert: true}, "a file of the authorities"},
		{"names without certificates", tlsconf.ServerConfig{CertFile: cert, KeyFile: key, ClientCAFile: bundle, SANs: []tlsconf.Matcher{{Exact: "a"}}}, "so these must be required"},
		{"matcher", tlsconf.ServerConfig{CertFile: cert, KeyFile: key, ClientCAFile: bundle, RequireClientCert: true, SANs: []tlsconf.Matcher{{}}}, "name matcher 1"},
		{"version", tlsconf.ServerConfig{CertFile: cert, KeyFile: key, MaxVersion: 1}, "is not supported"},
		{"expired", tlsconf.ServerConfig{CertFile: cert, KeyFile: key, Now: later}, "tls server: certificate " + cert + " expired at 20"},
	} {
		_, err := tlsconf.NewServer(tt.c)
		compare(t, tt.name, err, tt.want)
	}
}

func compare(t *testing.T, name string, err error, want string) {
	t.Helper()
	if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
		t.Errorf("%s: error %v, want %q", name, err, want)
	}
}

func TestResume(t *testing.T) {
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		for _, sans := range [][]tlsconf.Matcher{nil, {{Type: tlsconf.DNS, Exact: "web.internal"}}} {
			s := newSite(t)
			s.mutual(t)
			s.client.MaxVersion, s.client.SANs = version, sans
			client, server := newClient(t, s.client), newServer(t, s.server)
			dial := func(name, endpoint string) bool {
				t.Helper()
				o := connect(t, client.ConfigFor(name, endpoint), server.Config())
				must(t, tlsconf.Explain(o.clientErr))
				if o.client.DidResume != o.server.DidResume {
					t.Error("the sides don't agree")
				}
				if got := tlsconf.Peer(&o.server); got != "spiffe://example.org/client" {
					t.Errorf("the server's peer is %q", got)
				}
				return o.client.DidResume
			}
			for i, step := range []struct {
				name, endpoint string
				resumed        bool
			}{
				{"web.internal", "", false},
				{"web.internal", "", true},
				{"127.0.0.1", "", false},
				{"web.internal", "a", false},
				{"web.internal", "b", false},
				{"web.internal", "a", true},
				{"web.internal", "", true},
			} {
				if step.name == "127.0.0.1" && sans != nil {
					continue
				}
				if got := dial(step.name, step.endpoint); got != step.resumed {
					t.Errorf("%s, names %v, connection %d: resumed %v", tls.VersionName(version), sans, i, got)
				}
			}
		}
	}
}

// A session that is resumed is verified as well: what was good when it began may
// not be any more. Here the authority expires before the server's certificate.
func TestResumeVerifies(t *testing.T) {
	for _, sans := range [][]tlsconf.Matcher{nil, {{Exact: "web.internal"}}} {
		s := newSite(t)
		now := s.ca.Cert.NotAfter.Add(-time.Hour)
		clock := func() time.Time { return now }
		s.server.CertFile, s.server.KeyFile = s.ca.Issue(t, tlstest.Leaf{Names: []string{"web.internal"}, NotAfter: now.AddDate(1, 0, 0)}).Write(t, s.dir, "server")
		s.client.SANs, s.client.Now, s.server.Now = sans, clock, clock
		client, server := newClient(t, s.client), newServer(t, s.server)
		must(t, connect(t, client.Config("web.internal"), server.Config()).clientErr)
		if o := connect(t, client.Config("web.internal"), server.Config()); o.clientErr != nil || !o.client.DidResume {
			t.Fatalf("resumed %v, error %v", o.client.DidResume, o.clientErr)
		}
		now = now.Add(2 * time.Hour)
		o := connect(t, client.Config("web.internal"), server.Config())
		check(t, "client", o.clientErr, ", expired at ")
	}
}

// Who speaks an older version than TLS 1.2 is refused, on both sides.
func TestOldVersionsAreRefused(t *testing.T) {
	s := newSite(t)
	server, client := newServer(t, s.server).Config(), newClient(t, s.client).Config("web.internal")
	for _, version := range []uint16{tls.VersionTLS10, tls.VersionTLS11} {
		old := &tls.Config{RootCAs: s.ca.Pool(), ServerName: "web.internal", MinVersion: version, MaxVersion: version}
		if o := connect(t, old, server); o.clientErr == nil || o.serverErr == nil {
			t.Errorf("a client of %s is served", tls.VersionName(version))
		}
		old = server.Clone()
		old.MinVersion, old.MaxVersion = version, version
		if o := connect(t, client, old); o.clientErr == nil || o.serverErr == nil {
			t.Errorf("a server of %s is used", tls.VersionName(version))
		}
	}
}

// With AnyALPN a client that offers none of the protocols is served without one,
// and its sessions are resumed like those of others.
func TestAnyALPN(t *testing.T) {
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		for _, tt := range []struct {
			offers []string
			want   string
		}{{nil, ""}, {[]string{"h2"}, "h2"}, {[]string{"istio", "h2"}, "h2"}, {[]string{"istio"}, ""}} {
			s := newSite(t)
			s.mutual(t)
			s.client.MaxVersion, s.client.ALPN, s.server.ALPN, s.server.AnyALPN = version, tt.offers, []string{"h2", "http/1.1"}, true
			client, server := newClient(t, s.client), newServer(t, s.server)
			for i := range 2 {
				o := connect(t, client.Config("web.internal"), server.Config())
				must(t, tlsconf.Explain(o.clientErr))
				if o.client.NegotiatedProtocol != tt.want || o.server.NegotiatedProtocol != tt.want || o.client.DidResume != (i == 1) {
					t.Errorf("%s, offers %q, connection %d: protocol %q and %q, resumed %t", tls.VersionName(version), tt.offers, i,
						o.client.NegotiatedProtocol, o.server.NegotiatedProtocol, o.client.DidResume)
				}
				if got := tlsconf.Peer(&o.server); got != "spiffe://example.org/client" {
					t.Errorf("the server's peer is %q", got)
				}
			}
		}
	}
}
