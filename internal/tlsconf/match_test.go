package tlsconf

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"gatehouse.internal/internal/tlsconf/tlstest"
)

func certificate(t testing.TB, names ...string) *x509.Certificate {
	t.Helper()
	return tlstest.NewCA(t, "one").Issue(t, tlstest.Leaf{Names: names}).Cert
}

func TestMatcher(t *testing.T) {
	cert := certificate(t, "spiffe://example.org/ns/default/web", "web.internal", "*.wild.internal", "Mixed.Internal", "10.0.0.7", "2001:db8::1", "ops@example.org")
	spiffe := func(id string) Matcher {
		m, err := SPIFFE(id)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	for _, tt := range []struct {
		m    Matcher
		want bool
	}{
		{Matcher{Exact: "web.internal"}, true},
		{Matcher{Exact: "web.interna"}, false},
		{Matcher{Exact: "eb.internal"}, false},
		{Matcher{Type: DNS, Exact: "web.internal"}, true},
		{Matcher{Type: URI, Exact: "web.internal"}, false},
		{Matcher{Type: DNS, Exact: "WEB.internal"}, true},
		{Matcher{Type: DNS, Exact: "mixed.internal"}, true},
		{Matcher{Type: DNS, Exact: "a.wild.internal"}, true},
		{Matcher{Exact: "a.wild.internal"}, true},
		{Matcher{Type: DNS, Exact: "A.Wild.Internal"}, true},
		{Matcher{Type: DNS, Exact: "a.b.wild.internal"}, false},
		{Matcher{Type: DNS, Exact: "wild.internal"}, false},
		{Matcher{Type: DNS, Exact: ".wild.internal"}, false},
		{Matcher{Type: DNS, Exact: "*.wild.internal"}, true},
		{Matcher{Type: DNS, Exact: "*.internal"}, false}, // a wildcard of ours means itself
		{Matcher{Type: DNS, Prefix: "web."}, true},
		{Matcher{Type: DNS, Prefix: "WEB."}, false},
		{Matcher{Type: DNS, Prefix: "WEB.", IgnoreCase: true}, true},
		{Matcher{Type: DNS, Prefix: "internal"}, false},
		{Matcher{Type: DNS, Suffix: ".internal"}, true},
		{Matcher{Type: DNS, Suffix: "web"}, false},
		{Matcher{Type: DNS, Contains: "xed.In"}, true},
		{Matcher{Type: DNS, Contains: "xed.in"}, false},
		{Matcher{Type: Email, Exact: "ops@example.org"}, true},
		{Matcher{Type: Email, Exact: "OPS@example.org"}, false},
		{Matcher{Type: Email, Exact: "OPS@example.org", IgnoreCase: true}, true},
		{Matcher{Type: IP, Exact: "10.0.0.7"}, true},
		{Matcher{Type: IP, Exact: "::ffff:10.0.0.7"}, true},
		{Matcher{Exact: "2001:DB8:0::1"}, true},
		{Matcher{Type: IP, Exact: "10.0.0.70"}, false},
		{Matcher{Type: IP, Prefix: "10.0.0."}, true},
		{Matcher{Regex: "w.b"}, false}, // the whole name
		{Matcher{Regex: `w.b\.internal`}, true},
		{Matcher{Regex: "x|web.internal"}, true},
		{Matcher{Regex: "(?i)WEB.internal"}, true},
		{Matcher{Type: URI, Regex: `spiffe://example\.org/ns/[^/]+/web`}, true},
		{spiffe("spiffe://example.org"), true},
		{spiffe("spiffe://example.org/ns/default/web"), true},
		{spiffe("spiffe://example.org/ns/default"), false},
		{spiffe("spiffe://example.or"), false},
		{spiffe("spiffe://example.org/ns/default/webs"), false},
	} {
		ms, err := compile([]Matcher{{Exact: "nobody"}, tt.m})
		if err != nil {
			t.Errorf("%v: %v", tt.m, err)
			continue
		}
		if got := ms.verify(cert) == nil; got != tt.want {
			t.Errorf("%v: %v", tt.m, got)
		}
	}
}

func TestMatcherErrors(t *testing.T) {
	for _, tt := range []struct {
		m    Matcher
		want string
	}{
		{Matcher{}, "not 0"},
		{Matcher{Exact: "a", Prefix: "b"}, "not 2"},
		{Matcher{Exact: "a", Type: 9}, "unknown type of names"},
		{Matcher{Exact: "example", Type: IP}, `"example" is not an IP address`},
		{Matcher{Regex: "("}, "missing closing )"},
		{Matcher{Regex: "a)|(b"}, "unexpected )"},
		{Matcher{Regex: "a", IgnoreCase: true}, "(?i)"},
		{Matcher{Regex: strings.Repeat("a", 4097)}, "4097 bytes: want at most 4096"},
		{Matcher{Regex: strings.Repeat(".{1000}", 9)}, "is too large"},
	} {
		if _, err := compile([]Matcher{tt.m}); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%+v: error %v, want %q", tt.m, err, tt.want)
		}
		if err := tt.m.Validate(); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%+v: Validate says %v, want %q", tt.m, err, tt.want)
		}
	}
	if err := (Matcher{Exact: "a"}).Validate(); err != nil {
		t.Error(err)
	}
}

func TestSPIFFE(t *testing.T) {
	for _, id := range []string{
		"", "example.org", "https://example.org", "SPIFFE://example.org", "spiffe://", "spiffe:///web", "spiffe://Example.org", "spiffe://example.org:80/web",
		"spiffe://user@example.org", "spiffe://example.org/", "spiffe://example.org/a/", "spiffe://example.org/a//b", "spiffe://example.org/.", "spiffe://example.org/a/../b",
		"spiffe://example.org/a?b", "spiffe://example.org/a#b", "spiffe://example.org/%61", "spiffe://example.org/é", "spiffe://" + strings.Repeat("a", 256),
		"spiffe://a/" + strings.Repeat("b", 2048),
	} {
		if m, err := SPIFFE(id); err == nil {
			t.Errorf("%q became %v", id, m)
		}
	}
	for id, want := range map[string]Matcher{
		"spiffe://example.org":           {Type: URI, Prefix: "spiffe://example.org/"},
		"spiffe://a_b-c.d/A/...":         {Type: URI, Exact: "spiffe://a_b-c.d/A/..."},
		"spiffe://1.consul/ns/a/dc/b/sv": {Type: URI, Exact: "spiffe://1.consul/ns/a/dc/b/sv"},
	} {
		if m, err := SPIFFE(id); err != nil || m != want {
			t.Errorf("%q became %v, error %v", id, m, err)
		}
	}
}

// Who has two URIs has no SPIFFE ID.
func TestSPIFFEAmbiguous(t *testing.T) {
	cert := certificate(t, "spiffe://example.org/a", "spiffe://example.org/b", "https://example.org/x", "web.internal")
	ms, err := compile([]Matcher{{Type: URI, Prefix: "spiffe://example.org/"}})
	if err != nil {
		t.Fatal(err)
	}
	e, ok := errors.AsType[*SANError](ms.verify(cert))
	if !ok {
		t.Fatal("accepted")
	}
	want := `the peer's certificate names https://example.org/x, web.internal, and nothing of that is accepted; wanted: uri prefix "spiffe://example.org/"`
	if e.Error() != want {
		t.Errorf("error %q, want %q", e, want)
	}
}

func TestPeer(t *testing.T) {
	for _, tt := range []struct {
		names []string
		want  string
	}{
		{nil, "leaf"},
		{[]string{"web.internal", "spiffe://example.org/web"}, "spiffe://example.org/web"},
		{[]string{"10.0.0.7", "web.internal"}, "web.internal"},
		{[]string{"ops@example.org"}, "ops@example.org"},
		{[]string{strings.Repeat("a", 300)}, strings.Repeat("a", 256) + "…"},
		{[]string{"a\nb"}, `"a\nb"`},
	} {
		cs := &tls.ConnectionState{PeerCertificates: []*x509.Certificate{certificate(t, tt.names...)}}
		if got := Peer(cs); got != tt.want {
			t.Errorf("%q: %q, want %q", tt.names, got, tt.want)
		}
	}
	if Peer(nil) != "" || Peer(&tls.ConnectionState{}) != "" {
		t.Error("nobody has a name")
	}
	if got := few(slices.Repeat([]string{"a"}, 7)); got != "a, a, a, a, a and 2 more" {
		t.Error(got)
	}
}

// What is exact accepts itself; what SPIFFE accepts, net/url reads the same way.
func FuzzSPIFFE(f *testing.F) {
	f.Add("spiffe://example.org/web", "spiffe://example.org/webs")
	f.Add("spiffe://example.org", "spiffe://example.org/web")
	f.Fuzz(func(t *testing.T, id, other string) {
		m, err := SPIFFE(id)
		if err != nil {
			return
		}
		u, err := url.Parse(id)
		if err != nil || u.String() != id || u.Scheme != "spiffe" || u.Port() != "" || u.User != nil {
			t.Fatalf("%q is %v to net/url, error %v", id, u, err)
		}
		ms, err := compile([]Matcher{m})
		if err != nil {
			t.Fatal(err)
		}
		if v, err := url.Parse(other); err == nil && v.Host != "" {
			got := ms.verify(&x509.Certificate{URIs: []*url.URL{v}}) == nil
			if got && (v.Host != u.Host || v.Scheme != "spiffe") {
				t.Fatalf("%v accepts %q", m, other)
			}
		}
	})
}

// No matcher panics on any name, and an exact one agrees with crypto/x509 on host
// names.
func FuzzMatcher(f *testing.F) {
	f.Add(uint8(1), "web.internal", "*.internal")
	f.Add(uint8(4), "10.0.0.7", "10.0.0.7")
	f.Add(uint8(0), "(a|b)*", "ab")
	host := regexp.MustCompile(`\A[a-z][a-z0-9]*(\.[a-z][a-z0-9]*)+\z`)
	f.Fuzz(func(t *testing.T, kind uint8, value, text string) {
		cert := &x509.Certificate{DNSNames: []string{text}, EmailAddresses: []string{text}, IPAddresses: []net.IP{net.IP(text), net.ParseIP(text)}}
		if u, err := url.Parse(text); err == nil {
			cert.URIs = []*url.URL{u}
		}
		for _, m := range []Matcher{{Exact: value}, {Prefix: value}, {Suffix: value, IgnoreCase: true}, {Contains: value}, {Regex: value}} {
			m.Type = SANType(kind)
			ms, err := compile([]Matcher{m})
			if err != nil {
				continue
			}
			if err := ms.verify(cert); err != nil && !utf8.ValidString(err.Error()) && utf8.ValidString(value) {
				t.Fatalf("error %q", err)
			}
			if m.Exact != "" && m.Type == DNS && host.MatchString(value) && host.MatchString(strings.TrimPrefix(text, "*.")) {
				want := (&x509.Certificate{DNSNames: []string{text}}).VerifyHostname(value) == nil
				if got := ms.verify(cert) == nil; got != want {
					t.Fatalf("exact %q with %q: %v, crypto/x509 says %v", value, text, got, want)
				}
			}
		}
		for _, n := range Names(cert) {
			if len(n) > 5*maxName+8 || strings.ContainsFunc(n, unicode.IsControl) {
				t.Fatalf("name %q is not fit for a log", n)
			}
		}
	})
}

// Files of any content are good or an error, which doesn't quote them.
func FuzzParse(f *testing.F) {
	ca := tlstest.NewCA(f, "one")
	pair := ca.Issue(f, tlstest.Leaf{})
	f.Add(ca.PEM, pair.CertPEM, pair.KeyPEM)
	f.Add(pair.KeyPEM, pair.KeyPEM, pair.CertPEM)
	f.Add([]byte("-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----"), []byte("-----BEGIN"), []byte(nil))
	now := time.Now()
	f.Fuzz(func(t *testing.T, ca, cert, key []byte) {
		fs := files{CA: "ca.pem", Pairs: []KeyPair{{CertFile: "cert.pem", KeyFile: "key.pem"}}}
		m, err := fs.parse(contents{ca, cert, key}, now)
		if err != nil {
			if m.roots != nil || m.certs != nil || !m.notAfter.IsZero() {
				t.Fatal("material beside an error")
			}
			return
		}
		if m.roots == nil || len(m.certs) != 1 || m.certs[0].Leaf == nil || m.certs[0].PrivateKey == nil || m.notAfter.Before(now) {
			t.Fatalf("incomplete material %+v", m)
		}
	})
}
