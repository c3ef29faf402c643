package tlsconf

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"gatehouse.internal/internal/fullmatch"
)

// SANType is a kind of subject alternative name.
type SANType uint8

// The kinds of names. AnySAN, the zero value, stands for all of them.
const (
	AnySAN SANType = iota
	DNS
	URI
	Email
	IP
)

func (t SANType) String() string {
	if int(t) < len(sanTypes) {
		return sanTypes[t]
	}
	return fmt.Sprintf("SANType(%d)", uint8(t))
}

var sanTypes = [...]string{"any", "dns", "uri", "email", "ip"}

// Matcher says which subject alternative names of a certificate are accepted, as
// an element of Envoy's match_typed_subject_alt_names does. Exactly one of Exact,
// Prefix, Suffix, Contains and Regex is set.
//
// A DNS name is matched exactly as host names are: without regard to case, and
// "*.example.com" in the certificate is good for one label in its place. An IP
// address is matched exactly however it is written. A spiffe URI counts only in a
// certificate that has no other URI, as the X.509-SVID standard has it.
type Matcher struct {
	// Type is the kind of names that are looked at.
	Type SANType
	// Exact is the whole name.
	Exact string
	// Prefix, Suffix and Contains are a part of it.
	Prefix, Suffix, Contains string
	// Regex, in RE2's syntax, matches the whole name. Package fullmatch has its bounds.
	Regex string
	// IgnoreCase is for all but Regex, which has (?i).
	IgnoreCase bool
}

// Validate says what is wrong with the matcher, nil if nothing is.
func (m Matcher) Validate() error {
	_, err := m.compile()
	return err
}

// String returns the matcher as errors show it.
func (m Matcher) String() string {
	word, value := m.word()
	return fmt.Sprintf("%s %s %q", m.Type, word, value)
}

// word returns the one condition that is set, or the first.
func (m Matcher) word() (word, value string) {
	for _, c := range m.conditions() {
		if c[1] != "" {
			return c[0], c[1]
		}
	}
	return "exact", ""
}

func (m Matcher) conditions() [5][2]string {
	return [...][2]string{{"exact", m.Exact}, {"prefix", m.Prefix}, {"suffix", m.Suffix}, {"contains", m.Contains}, {"regex", m.Regex}}
}

// SPIFFE returns a Matcher for a SPIFFE ID, or, if id has no path, for every ID
// with a path in that trust domain: "spiffe://example.org/web",
// "spiffe://example.org". It is an error if id is not one as the SPIFFE-ID
// standard has it.
func SPIFFE(id string) (Matcher, error) {
	if err := checkSPIFFE(id); err != nil {
		return Matcher{}, fmt.Errorf("spiffe id %.100q: %w", id, err)
	}
	if strings.Count(id, "/") == 2 {
		return Matcher{Type: URI, Prefix: id + "/"}, nil
	}
	return Matcher{Type: URI, Exact: id}, nil
}

const spiffeScheme = "spiffe://"

func checkSPIFFE(id string) error {
	rest, ok := strings.CutPrefix(id, spiffeScheme)
	domain, path, hasPath := strings.Cut(rest, "/")
	switch {
	case !ok:
		return errors.New("it must begin with spiffe://")
	case len(id) > 2048:
		return errors.New("it has more than 2048 bytes")
	case domain == "" || len(domain) > 255:
		return errors.New("the trust domain must have 1 to 255 bytes")
	case !only(domain, false):
		return errors.New("the trust domain may have lower case letters, digits, dots, dashes and underscores")
	case !hasPath:
		return nil
	}
	for segment := range strings.SplitSeq(path, "/") {
		switch {
		case segment == "" || segment == "." || segment == "..":
			return errors.New("the path may have no empty segment, no dot segment and no slash at its end")
		case !only(segment, true):
			return errors.New("the path may have letters, digits, dots, dashes and underscores")
		}
	}
	return nil
}

// only reports whether s has the bytes of a trust domain, or of a path segment.
func only(s string, upper bool) bool {
	for _, c := range []byte(s) {
		switch {
		case c >= 'a' && c <= 'z', c >= '0' && c <= '9', c == '.', c == '-', c == '_', upper && c >= 'A' && c <= 'Z':
		default:
			return false
		}
	}
	return true
}

// matchers are compiled Matchers.
type matchers []matcher

type matcher struct {
	Matcher
	test func(name) bool
}

// name is one subject alternative name of a certificate.
type name struct {
	kind SANType
	text string
}

// compile checks the matchers and makes them ready.
func compile(ms []Matcher) (matchers, error) {
	var out matchers
	for i, m := range ms {
		test, err := m.compile()
		if err != nil {
			return nil, fmt.Errorf("name matcher %d: %w", i+1, err)
		}
		out = append(out, matcher{m, test})
	}
	return out, nil
}

func (m Matcher) compile() (func(name) bool, error) {
	set := 0
	for _, c := range m.conditions() {
		if c[1] != "" {
			set++
		}
	}
	if set != 1 {
		return nil, fmt.Errorf("one of exact, prefix, suffix, contains and regex must be set, not %d", set)
	}
	if int(m.Type) >= len(sanTypes) {
		return nil, fmt.Errorf("unknown type of names %d", m.Type)
	}
	word, value := m.word()
	if word == "regex" {
		return m.regex()
	}
	if word == "exact" {
		addr, err := netip.ParseAddr(value)
		switch {
		case err == nil && (m.Type == IP || m.Type == AnySAN):
			value = addr.Unmap().WithZone("").String()
		case m.Type == IP:
			return nil, fmt.Errorf("%q is not an IP address", value)
		}
	}
	fold := func(s string) string { return s }
	if m.IgnoreCase {
		fold = strings.ToLower
	}
	value = fold(value)
	return func(n name) bool {
		switch text := fold(n.text); word {
		case "prefix":
			return strings.HasPrefix(text, value)
		case "suffix":
			return strings.HasSuffix(text, value)
		case "contains":
			return strings.Contains(text, value)
		default:
			return text == value || n.kind == DNS && hostMatches(n.text, value)
		}
	}, nil
}

func (m Matcher) regex() (func(name) bool, error) {
	if m.IgnoreCase {
		return nil, errors.New("a regex ignores case by (?i)")
	}
	test, err := fullmatch.Compile(m.Regex)
	if err != nil {
		return nil, err
	}
	return func(n name) bool { return test(n.text) }, nil
}

// hostMatches reports whether a DNS name of a certificate is good for host.
func hostMatches(pattern, host string) bool {
	pattern, host = strings.ToLower(pattern), strings.ToLower(host)
	if suffix, ok := strings.CutPrefix(pattern, "*."); ok {
		label, rest, _ := strings.Cut(host, ".")
		return label != "" && label != "*" && rest != "" && rest == suffix
	}
	return pattern == host
}

// names returns all that the matchers look at.
func names(cert *x509.Certificate) (ns []name) {
	for _, u := range cert.URIs {
		if len(cert.URIs) == 1 || !strings.EqualFold(u.Scheme, "spiffe") {
			ns = append(ns, name{URI, u.String()})
		}
	}
	for _, d := range cert.DNSNames {
		ns = append(ns, name{DNS, d})
	}
	for _, ip := range cert.IPAddresses {
		if addr, ok := netip.AddrFromSlice(ip); ok {
			ns = append(ns, name{IP, addr.Unmap().String()})
		}
	}
	for _, e := range cert.EmailAddresses {
		ns = append(ns, name{Email, e})
	}
	return ns
}

// verify returns a *SANError if no matcher accepts a name of cert.
func (ms matchers) verify(cert *x509.Certificate) error {
	ns := names(cert)
	for _, m := range ms {
		for _, n := range ns {
			if (m.Type == AnySAN || m.Type == n.kind) && m.test(n) {
				return nil
			}
		}
	}
	e := &SANError{Certificate: cert}
	for _, m := range ms {
		e.Want = append(e.Want, m.Matcher)
	}
	return e
}

// SANError says that a certificate is good, but names nobody who is accepted.
type SANError struct {
	Certificate *x509.Certificate
	Want        []Matcher
}

func (e *SANError) Error() string {
	want := make([]string, len(e.Want))
	for i, m := range e.Want {
		want[i] = m.String()
	}
	return "the peer's certificate " + namesText(e.Certificate) + ", and nothing of that is accepted; wanted: " + few(want)
}
