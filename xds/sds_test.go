package xds

//lint:file-ignore SA1019 control planes send what is deprecated, too

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"gatehouse.internal/internal/tlsconf/tlstest"
	"gatehouse.internal/xds/internal/core"
)

// sds names a secret of the same server.
func sds(name string) *tlsv3.SdsSecretConfig {
	return &tlsv3.SdsSecretConfig{Name: name, SdsConfig: &corev3.ConfigSource{ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}}}}
}

// bySecrets takes a certificate, and if ca is not empty authorities for clients.
func bySecrets(cert, ca string) *tlsv3.DownstreamTlsContext {
	m := &tlsv3.DownstreamTlsContext{CommonTlsContext: &tlsv3.CommonTlsContext{TlsCertificateSdsSecretConfigs: []*tlsv3.SdsSecretConfig{sds(cert)}}}
	if ca != "" {
		m.RequireClientCertificate = wrapperspb.Bool(true)
		m.CommonTlsContext.ValidationContextType = &tlsv3.CommonTlsContext_ValidationContextSdsSecretConfig{ValidationContextSdsSecretConfig: sds(ca)}
	}
	return m
}

func certSecret(name string, p tlstest.Pair) *tlsv3.Secret {
	return &tlsv3.Secret{Name: name, Type: &tlsv3.Secret_TlsCertificate{TlsCertificate: &tlsv3.TlsCertificate{
		CertificateChain: inline(p.CertPEM), PrivateKey: inline(p.KeyPEM),
	}}}
}

func caSecret(name string, ca *tlstest.CA) *tlsv3.Secret {
	return &tlsv3.Secret{Name: name, Type: &tlsv3.Secret_ValidationContext{ValidationContext: &tlsv3.CertificateValidationContext{TrustedCa: inline(ca.PEM)}}}
}

// tlsOf describes the TLS of the listeners of an update by what the certificates and
// authorities are called, where called knows them by their PEM.
func tlsOf(u ListenersUpdate, called map[string]string) string {
	var b strings.Builder
	for _, l := range u.Listeners {
		for _, c := range l.Chains {
			fmt.Fprintf(&b, "%s:", l.Name)
			if c.NoTLS != "" {
				fmt.Fprintf(&b, " none: %s", c.NoTLS)
			} else if c.TLS != nil {
				for _, p := range c.TLS.More {
					b.WriteString(" " + called[p.Cert])
				}
				if c.TLS.ClientCA != "" {
					b.WriteString(" by " + called[c.TLS.ClientCA])
				}
			}
			b.WriteString("; ")
		}
	}
	return strings.TrimSuffix(b.String(), "; ")
}

// secretive is a fake server, and what the client makes of the listeners that take its
// secrets.
type secretive struct {
	*fakeServer
	mu     sync.Mutex
	update ListenersUpdate
	called map[string]string
}

func newSecretive(t *testing.T, variant core.Variant) *secretive {
	s := &secretive{fakeServer: newFake(t, func(f *fakeServer) { f.variant = variant }), called: make(map[string]string)}
	s.follow()
	return s
}

// follow begins to watch listeners.
func (s *secretive) follow() {
	ctx, cancel := context.WithCancel(s.t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		_ = s.client.WatchListeners(ctx, func(u ListenersUpdate) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.update = u
		})
	})
	s.t.Cleanup(func() { cancel(); wg.Wait() })
	s.expect(ListenerType)
}

// issue makes a certificate of that name.
func (s *secretive) issue(ca *tlstest.CA, name string) tlstest.Pair {
	p := ca.Issue(s.t, tlstest.Leaf{CommonName: name})
	s.called[string(p.CertPEM)] = name
	return p
}

func (s *secretive) is(want string) {
	s.t.Helper()
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	if got := tlsOf(s.update, s.called); got != want {
		s.t.Errorf("tls is\n%s, want\n%s", got, want)
	}
}

// asks takes the next request, which must be for secrets, and is an answer or one
// without an error.
func (s *secretive) asks(want ...string) {
	s.t.Helper()
	r := s.next()
	if r.Type != SecretType || r.Error != "" {
		s.t.Fatalf("request %+v", r)
	}
	got := r.Names
	if s.variant == core.Delta {
		got = r.Subscribe
		for _, n := range r.Unsubscribe {
			got = append(got, "-"+n)
		}
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		s.t.Errorf("asked for %q, want %q", got, want)
	}
}

func (s *secretive) acked() {
	s.t.Helper()
	if r := s.next(); r.Error != "" {
		s.t.Fatalf("refused: %s", r.Error)
	}
}

// Secrets are asked for once a listener takes them, fill it when they are there, and
// change what it has; a new version of the listener waits for those that are new.
func TestSecrets(t *testing.T) {
	for _, variant := range []core.Variant{core.StateOfTheWorld, core.Delta} {
		t.Run(variant.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testSecrets(t, variant) })
		})
	}
}

func testSecrets(t *testing.T, variant core.Variant) {
	s := newSecretive(t, variant)
	ca := tlstest.NewCA(t, "ca")
	s.called[string(ca.PEM)] = "ca"
	first, second := s.issue(ca, "first"), s.issue(ca, "second")
	delta := variant == core.Delta
	names := func(sotw, delta []string) []string {
		if variant == core.Delta {
			return delta
		}
		return sotw
	}

	s.respond(ListenerType, 1, tcpListener(t, "l", secured(t, bySecrets("server", "roots"))))
	s.acked()
	s.asks("roots", "server")
	s.is(`l: none: secret "server": it has not come yet`)
	s.respond(SecretType, 1, certSecret("server", first))
	s.acked()
	s.is(`l: none: secret "roots": it has not come yet`)
	s.respond(SecretType, 2, caSecret("roots", ca))
	s.acked()
	s.is("l: first by ca")

	// One that is wrong is refused by name, and the last good one stays.
	bad := certSecret("server", tlstest.Pair{CertPEM: second.CertPEM, KeyPEM: first.KeyPEM})
	s.respond(SecretType, 3, bad)
	if r := s.next(); !strings.Contains(r.Error, `"server": certificate tls_certificate.certificate_chain and key tls_certificate.private_key do not belong together`) {
		t.Errorf("answer %q", r.Error)
	}
	s.is("l: first by ca")
	before := s.update.Listeners[0]
	s.respond(SecretType, 4, certSecret("server", second))
	s.acked()
	s.is("l: second by ca")
	if before.Chains[0].TLS.More[0].Cert != string(first.CertPEM) {
		t.Error("what was published was written to")
	}

	// A new version waits for its new secret, and no longer than that may take.
	s.respond(ListenerType, 5, tcpListener(t, "l", secured(t, bySecrets("other", ""))))
	s.acked()
	s.asks(names([]string{"other", "roots", "server"}, []string{"other"})...)
	s.is("l: second by ca")
	s.respond(SecretType, 6, certSecret("server", first)) // the one that serves still rotates
	s.acked()
	s.is("l: first by ca")
	pass(DefaultInitialFetchTimeout)
	s.is(`l: none: secret "other": no such resource: xds server control:18000 has not sent it within 15s`)
	s.asks(names([]string{"other"}, []string{"-roots", "-server"})...)
	s.respond(SecretType, 7, certSecret("other", first))
	s.acked()
	s.is("l: first")

	// A secret of the wrong kind, and one that is valid and can't be used.
	s.respond(SecretType, 8, caSecret("other", ca))
	s.acked()
	s.is(`l: none: secret "other" is a validation_context: want a tls_certificate`)
	s.respond(SecretType, 9, &tlsv3.Secret{Name: "other", Type: &tlsv3.Secret_GenericSecret{GenericSecret: &tlsv3.GenericSecret{Secret: inline([]byte("x"))}}})
	s.acked()
	s.is(`l: none: secret "other" is not supported: generic_secret`)
	s.respond(SecretType, 10, certSecret("other", second))
	s.acked()
	s.is("l: second")

	// The server is away: what is known stays, also over the next stream.
	s.stream().fail <- errors.New("away")
	pass(time.Minute)
	s.is("l: second")
	s.expect(ListenerType)
	s.next()
	if delta {
		s.answer(core.Response{Type: SecretType, Nonce: "gone", Version: "gone", Removed: []string{"other"}})
		s.acked()
		s.is(`l: none: secret "other": no such resource: xds server control:18000 deleted it`)
		s.respond(SecretType, 11, certSecret("other", first))
		s.acked()
		s.is("l: first")
	}
	s.respond(ListenerType, 12, tcpListener(t, "l"))
	s.acked()
	s.is("l:")
	s.asks(names(nil, []string{"-other"})...)
	if out := s.log.String(); strings.Contains(out, "PRIVATE KEY") {
		t.Error("a key is in the log")
	}
}

// While there was never a server, listeners say so that wait for secrets.
func TestSecretsPending(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSecretive(t, core.StateOfTheWorld)
		s.respond(ListenerType, 1, tcpListener(t, "l", secured(t, bySecrets("server", ""))))
		s.acked()
		s.asks("server")
		s.refuseWith(errors.New("connection refused"))
		s.stream().fail <- errors.New("away")
		pass(5 * time.Second)
		s.is(`l: none: secret "server": it has not come yet: xds server control:18000: connection refused`)
	})
}

// Secrets of what can't be run, or is refused, are asked for too: some servers answer
// only then.
func TestSecretsOfUnsupported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSecretive(t, core.StateOfTheWorld)
		odd := tcpListener(t, "odd", secured(t, bySecrets("a", "b")), func(l *listenerv3.Listener) { l.FilterChains[0].Filters = nil })
		bad := tcpListener(t, "bad", secured(t, bySecrets("c", "")), func(l *listenerv3.Listener) { l.FilterChains[0].Filters[0].Name = "" })
		s.respond(ListenerType, 1, odd, bad)
		s.next()
		s.asks("a", "b", "c")
	})
}

// Of what a server names no more secrets are asked for than are bounded, and those that
// are left out say so.
func TestTooManySecrets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSecretive(t, core.StateOfTheWorld)
		m := tcpListener(t, "l", func(l *listenerv3.Listener) { l.FilterChains = nil })
		for i := range mostWanted/mostSecrets + 1 {
			c := bySecrets("", "")
			c.CommonTlsContext.TlsCertificateSdsSecretConfigs = nil
			for n := range mostSecrets {
				c.CommonTlsContext.TlsCertificateSdsSecretConfigs = append(c.CommonTlsContext.TlsCertificateSdsSecretConfigs, sds(fmt.Sprintf("%04d %d", i, n)))
			}
			x := tcpListener(t, "x", secured(t, c), matching(&listenerv3.FilterChainMatch{DestinationPort: u32(uint32(i + 1))}))
			m.FilterChains = append(m.FilterChains, x.FilterChains[0])
		}
		s.respond(ListenerType, 1, m)
		s.acked()
		if r := s.next(); r.Type != SecretType || len(r.Names) != mostWanted {
			t.Errorf("%s: %d names", r.Type, len(r.Names))
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		chains := s.update.Listeners[0].Chains
		if got := chains[len(chains)-1].NoTLS; got != `secret "0256 0": more than 16384 secrets are wanted` {
			t.Errorf("%q", got)
		}
	})
	c := bySecrets("", "")
	for n := range mostSecrets {
		c.CommonTlsContext.TlsCertificateSdsSecretConfigs = append(c.CommonTlsContext.TlsCertificateSdsSecretConfigs, sds(fmt.Sprint(n)))
	}
	_, _, err := decodeListener(marshal(t, tcpListener(t, "l", secured(t, c))))
	if want := "tls_certificates: 65: want at most 64"; err == nil || !strings.HasSuffix(err.Error(), want) {
		t.Errorf("%v, want %s", err, want)
	}
	for name, want := range map[string]string{"": "name: missing", strings.Repeat("n", core.MaxName+1): "name: 4097 bytes: want at most 4096"} {
		_, _, err := decodeListener(marshal(t, tcpListener(t, "l", secured(t, bySecrets(name, "")))))
		if err == nil || !strings.HasSuffix(err.Error(), "tls_certificate_sds_secret_configs[0]."+want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

func TestDecodeSecret(t *testing.T) {
	ca := tlstest.NewCA(t, "ca")
	p, other := ca.Issue(t, tlstest.Leaf{}), ca.Issue(t, tlstest.Leaf{})
	of := func(cert, key []byte) *tlsv3.Secret {
		return certSecret("s", tlstest.Pair{CertPEM: cert, KeyPEM: key})
	}
	trusting := func(pem []byte, with ...func(*tlsv3.CertificateValidationContext)) *tlsv3.Secret {
		m := &tlsv3.CertificateValidationContext{TrustedCa: inline(pem)}
		for _, f := range with {
			f(m)
		}
		return &tlsv3.Secret{Name: "s", Type: &tlsv3.Secret_ValidationContext{ValidationContext: m}}
	}
	long := strings.Repeat(string(p.CertPEM), mostChain+1)
	for want, m := range map[string]*tlsv3.Secret{
		"name: missing": {Type: of(p.CertPEM, p.KeyPEM).Type},
		"type: missing": {Name: "s"},
		"tls_certificate.certificate_chain: missing": of(nil, p.KeyPEM),
		"tls_certificate.private_key: missing":       of(p.CertPEM, nil),
		"certificate tls_certificate.certificate_chain and key tls_certificate.private_key do not belong together": of(p.CertPEM, other.KeyPEM),
		`tls_certificate.certificate_chain: no PEM block "CERTIFICATE" in it`:                                      of([]byte("nonsense"), p.KeyPEM),
		`tls_certificate.private_key: no PEM block "PRIVATE KEY" in it`:                                            of(p.CertPEM, []byte("nonsense")),
		fmt.Sprintf("tls_certificate.certificate_chain: %d certificates: want at most %d", mostChain+1, mostChain): of([]byte(long), p.KeyPEM),
		fmt.Sprintf("tls_certificate.certificate_chain: %d bytes: want at most %d", mostPEM+1, mostPEM):            of(make([]byte, mostPEM+1), p.KeyPEM),
		fmt.Sprintf("validation_context.trusted_ca: %d bytes: want at most %d", mostPEM+1, mostPEM):                trusting(make([]byte, mostPEM+1)),
		"validation_context.trusted_ca: no PEM certificate in it":                                                  trusting([]byte("nonsense")),
		"validation_context.trusted_ca: missing":                                                                   trusting(nil),
		"validation_context.match_subject_alt_names[0].match_pattern: a regex of 5000 bytes: want at most 4096": trusting(ca.PEM, func(m *tlsv3.CertificateValidationContext) {
			m.MatchSubjectAltNames = append(m.MatchSubjectAltNames, regex(strings.Repeat("a", 5000)))
		}),
	} {
		name, v, err := decodeSecret(marshal(t, m))
		if err == nil || !strings.HasPrefix(err.Error(), want) || v != nil || name != m.Name {
			t.Errorf("%s: %v, %v, want %s", name, v, err, want)
		} else if strings.Contains(err.Error(), "PRIVATE KEY-----") || strings.Contains(err.Error(), "nonsense") {
			t.Errorf("what it holds is shown: %v", err)
		}
	}
	for want, m := range map[string]*tlsv3.Secret{
		"session_ticket_keys":      {Name: "s", Type: &tlsv3.Secret_SessionTicketKeys{SessionTicketKeys: &tlsv3.TlsSessionTicketKeys{Keys: []*corev3.DataSource{inline([]byte("x"))}}}},
		"generic_secret":           {Name: "s", Type: &tlsv3.Secret_GenericSecret{GenericSecret: &tlsv3.GenericSecret{}}},
		"validation_context.crl":   trusting(ca.PEM, func(m *tlsv3.CertificateValidationContext) { m.Crl = inline([]byte("x")) }),
		"tls_certificate.password": {Name: "s", Type: &tlsv3.Secret_TlsCertificate{TlsCertificate: &tlsv3.TlsCertificate{Password: inline([]byte("x"))}}},
		"tls_certificate.private_key.environment_variable": {Name: "s", Type: &tlsv3.Secret_TlsCertificate{TlsCertificate: &tlsv3.TlsCertificate{
			CertificateChain: inline(p.CertPEM), PrivateKey: &corev3.DataSource{Specifier: &corev3.DataSource_EnvironmentVariable{EnvironmentVariable: "X"}},
		}}},
	} {
		_, v, err := decodeSecret(marshal(t, m))
		if err != nil || v.(*secret).unsupported != want || v.(*secret).pair != nil || v.(*secret).trust != nil {
			t.Errorf("%+v, %v, want %s", v, err, want)
		}
	}
	// What has expired is taken: it is judged when it is used. Files are read later.
	old := ca.Issue(t, tlstest.Leaf{NotBefore: ca.Cert.NotBefore, NotAfter: ca.Cert.NotBefore.AddDate(0, 0, 1)})
	file := func(path string) *corev3.DataSource {
		return &corev3.DataSource{Specifier: &corev3.DataSource_Filename{Filename: path}}
	}
	for _, m := range []*tlsv3.Secret{
		of(old.CertPEM, old.KeyPEM), trusting(ca.PEM),
		{Name: "s", Type: &tlsv3.Secret_TlsCertificate{TlsCertificate: &tlsv3.TlsCertificate{CertificateChain: file("/a"), PrivateKey: file("/b")}}},
	} {
		if _, v, err := decodeSecret(marshal(t, m)); err != nil || v.(*secret).unsupported != "" {
			t.Errorf("%+v, %v", v, err)
		}
	}
}

// What a combined validation context says goes before the secret's names, and the
// secret's authorities before its own.
func TestCombinedValidationContext(t *testing.T) {
	ca, mine := tlstest.NewCA(t, "ca"), tlstest.NewCA(t, "mine")
	p := ca.Issue(t, tlstest.Leaf{})
	m := downstreamTLS(mine, p)
	m.CommonTlsContext.ValidationContextType = &tlsv3.CommonTlsContext_CombinedValidationContext{
		CombinedValidationContext: &tlsv3.CommonTlsContext_CombinedCertificateValidationContext{
			DefaultValidationContext: &tlsv3.CertificateValidationContext{
				TrustedCa:                 inline(mine.PEM),
				MatchTypedSubjectAltNames: []*tlsv3.SubjectAltNameMatcher{{SanType: tlsv3.SubjectAltNameMatcher_URI, Matcher: exactly("spiffe://a/b")}},
			},
			ValidationContextSdsSecretConfig: sds("roots"),
		},
	}
	_, v, err := decodeListener(marshal(t, tcpListener(t, "l", secured(t, m))))
	if err != nil {
		t.Fatal(err)
	}
	state := func(c *tlsv3.CertificateValidationContext) secretLookup {
		_, x, err := decodeSecret(marshal(t, &tlsv3.Secret{Name: "roots", Type: &tlsv3.Secret_ValidationContext{ValidationContext: c}}))
		if err != nil {
			t.Fatal(err)
		}
		return func(string) *secretState { return &secretState{value: x.(*secret)} }
	}
	for _, tt := range []struct {
		c     *tlsv3.CertificateValidationContext
		ca    *tlstest.CA
		names string
	}{
		{&tlsv3.CertificateValidationContext{TrustedCa: inline(ca.PEM)}, ca, "spiffe://a/b"},
		{&tlsv3.CertificateValidationContext{MatchTypedSubjectAltNames: []*tlsv3.SubjectAltNameMatcher{{SanType: tlsv3.SubjectAltNameMatcher_DNS, Matcher: exactly("c")}}}, mine, "spiffe://a/b c"},
	} {
		c := v.(*Listener).withSecrets(state(tt.c)).Chains[0]
		var got []string
		for _, s := range c.TLS.SANs {
			got = append(got, s.Exact)
		}
		if c.NoTLS != "" || c.TLS.ClientCA != string(tt.ca.PEM) || strings.Join(got, " ") != tt.names {
			t.Errorf("%s: names %q", c.NoTLS, got)
		}
	}
	// Nobody could be verified by this one.
	m.CommonTlsContext.GetCombinedValidationContext().DefaultValidationContext.TrustedCa = nil
	_, v, err = decodeListener(marshal(t, tcpListener(t, "l", secured(t, m))))
	if err != nil {
		t.Fatal(err)
	}
	c := v.(*Listener).withSecrets(state(&tlsv3.CertificateValidationContext{})).Chains[0]
	if want := "common_tls_context.validation_context: names of clients without a trusted_ca"; c.NoTLS != want {
		t.Errorf("%q, want %q", c.NoTLS, want)
	}
}

func FuzzDecodeSecret(f *testing.F) {
	ca := tlstest.NewCA(f, "ca")
	p := ca.Issue(f, tlstest.Leaf{})
	add := func(m proto.Message) { f.Add(marshal(f, m)) }
	add(certSecret("s", p))
	add(caSecret("s", ca))
	add(&tlsv3.Secret{Name: "s", Type: &tlsv3.Secret_GenericSecret{GenericSecret: &tlsv3.GenericSecret{Secret: inline([]byte("x"))}}})
	add(&clusterv3.Cluster{Name: "c"})
	f.Add([]byte("junk"))
	f.Fuzz(func(t *testing.T, b []byte) {
		name, v, err := decodeSecret(b)
		if err != nil {
			if v != nil {
				t.Errorf("both %v and %v", v, err)
			}
			return
		}
		s := v.(*secret)
		if kinds := [2]bool{s.pair != nil, s.trust != nil}; name == "" || (s.unsupported == "") != (kinds[0] != kinds[1]) {
			t.Errorf("name %q, %+v", name, s)
		}
		if s.unsupported == "" {
			if err := s.check(); err != nil {
				t.Errorf("what was taken is wrong: %v", err)
			}
		}
	})
}

// A client that takes the place of another one has its secrets at once, if it asks the
// same servers, and until these say otherwise.
func TestSecretsTakenOver(t *testing.T) {
	for _, same := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			ca := tlstest.NewCA(t, "ca")
			s := newSecretive(t, core.StateOfTheWorld)
			first, second := s.issue(ca, "first"), s.issue(ca, "second")
			l := tcpListener(t, "l", secured(t, bySecrets("server", "")))
			s.respond(ListenerType, 1, l)
			s.acked()
			s.asks("server")
			s.respond(SecretType, 1, certSecret("server", first))
			s.acked()
			s.is("l: first")

			next := &secretive{called: s.called, fakeServer: newFake(t, func(f *fakeServer) {
				cfg := s.client.cfg
				cfg.Former = s.client
				if !same {
					cfg.Node.ID = "other"
				}
				f.client = newClient(cfg, f)
			})}
			next.follow()
			next.respond(ListenerType, 2, l)
			next.acked()
			next.asks("server")
			if !same {
				next.is(`l: none: secret "server": it has not come yet`)
				return
			}
			next.is("l: first")
			pass(DefaultInitialFetchTimeout)
			next.is("l: first")
			next.respond(SecretType, 2, certSecret("server", second))
			next.acked()
			next.is("l: second")
		})
	}
}
