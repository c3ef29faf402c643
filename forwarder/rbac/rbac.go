package rbac

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"unicode"

	"gatehouse.internal/internal/fullmatch"
)

// MaxDepth is how deep rules may be nested.
const MaxDepth = 64

// Action says what it means that a policy matches. Source: RBAC.Action.
type Action uint8

// The actions.
const (
	Allow Action = iota
	Deny
	Log
)

// Rules are the policies of a filter. They are not written any more once they were
// given to New.
type Rules struct {
	Action Action
	// Policies are asked in this order; Envoy does so by their names.
	Policies []Policy
}

// Policy matches a connection if one of Permissions and one of Principals does.
type Policy struct {
	Name                    string // for logs
	Permissions, Principals []Rule // at least one of each
}

// Kind is what a Rule looks at.
type Kind uint8

// The kinds. Source: the oneofs of Permission and Principal.
const (
	None Kind = iota // is an error
	Any
	And             // all of Rules match
	Or              // one of Rules does
	Not             // the one of Rules does not
	DestinationIP   // what the client has connected to is in Prefix
	DestinationPort // its port is from Ports[0] to below Ports[1]
	ServerName      // the server name that the client asks for is like Match
	RemoteIP        // the client is in Prefix
	DirectRemoteIP  // the peer is, which is a proxy where the client's address came in a PROXY header
	Authenticated   // the client's certificate names somebody like Match; without Match any client that speaks TLS
)

// Rule is one condition.
type Rule struct {
	Kind   Kind
	Rules  []Rule
	Prefix netip.Prefix
	Ports  [2]uint32
	Match  *String
}

// String says what a text is like: exactly one of Exact, Prefix, Suffix, Contains
// and Regex counts, the first that is not empty, and Exact if all are.
// Source: envoy.type.matcher.v3.StringMatcher.
type String struct {
	Exact, Prefix, Suffix, Contains string
	// Regex, in RE2's syntax, matches the whole text. Package fullmatch has its bounds.
	Regex string
	// IgnoreCase is for all but Regex.
	IgnoreCase bool
}

// Peer is what is known of a connection. Addresses are unmapped; those of a unix
// socket are the zero value, and in no prefix.
type Peer struct {
	Destination netip.AddrPort // what the client has connected to
	Source      netip.Addr     // the client
	Direct      netip.Addr     // the peer
	ServerName  string
	TLS         bool // TLS with the client ends here
	// URIs, DNS and Subject are those of the client's certificate, which was
	// verified.
	URIs, DNS []string
	Subject   string
}

// Filter decides. New makes it.
type Filter struct {
	enforced, shadow *engine // nil: nothing is said
}

// Verdict is what a Filter says of a connection.
type Verdict struct {
	// Denied is why it is refused, nil if it is allowed. It is not to be written.
	Denied *Denied
	// ShadowDenied is what the shadow rules would say; Shadowed that there are any,
	// and Enforced that there are others.
	ShadowDenied       *Denied
	Enforced, Shadowed bool
}

// Denied is the error of a refused connection, in Envoy's words.
type Denied struct {
	Policy string // that is against it; empty: none is for it
	text   string
}

func newDenied(policy string) *Denied {
	shown := policy
	if policy == "" {
		shown = "none"
	}
	return &Denied{policy, "rbac_access_denied_matched_policy[" + strings.Map(shownRune, shown) + "]"}
}

// shownRune has a text be one word of a line.
// Source: Envoy's StringUtil::replaceAllEmptySpace, which leaves other control characters.
func shownRune(r rune) rune {
	if unicode.IsSpace(r) || unicode.IsControl(r) {
		return '_'
	}
	return r
}

// Error returns what Envoy has for %CONNECTION_TERMINATION_DETAILS%.
func (d *Denied) Error() string { return d.text }

// New makes a Filter of rules that are enforced, and of shadow rules, of which
// either may be nil. An error names the policy and what of it can't be.
func New(enforced, shadow *Rules) (*Filter, error) {
	f := new(Filter)
	var err error
	if f.enforced, err = compile(enforced); err != nil {
		return nil, err
	}
	if f.shadow, err = compile(shadow); err != nil {
		return nil, fmt.Errorf("shadow rules: %w", err)
	}
	return f, nil
}

// Check decides about a connection.
func (f *Filter) Check(p *Peer) Verdict {
	return Verdict{Denied: f.enforced.check(p), ShadowDenied: f.shadow.check(p), Enforced: f.enforced != nil, Shadowed: f.shadow != nil}
}

// engine is Rules made ready.
type engine struct {
	action   Action
	policies []policy
	none     *Denied
}

type policy struct {
	denied                  *Denied
	permissions, principals []rule
}

type rule struct {
	Rule
	rules []rule
	test  func(string) bool
}

func compile(rs *Rules) (*engine, error) {
	if rs == nil {
		return nil, nil
	}
	if rs.Action > Log {
		return nil, fmt.Errorf("unknown action %d", rs.Action)
	}
	e := &engine{action: rs.Action, none: newDenied("")}
	for _, p := range rs.Policies {
		c := policy{denied: newDenied(p.Name)}
		var err error
		if c.permissions, err = compileAll(p.Permissions, 0); err != nil {
			return nil, fmt.Errorf("policy %q: permissions: %w", p.Name, err)
		}
		if c.principals, err = compileAll(p.Principals, 0); err != nil {
			return nil, fmt.Errorf("policy %q: principals: %w", p.Name, err)
		}
		e.policies = append(e.policies, c)
	}
	return e, nil
}

func compileAll(rs []Rule, depth int) (out []rule, err error) {
	switch {
	case len(rs) == 0:
		return nil, errors.New("none, want at least one")
	case depth == MaxDepth:
		return nil, fmt.Errorf("nested deeper than %d", MaxDepth)
	}
	for _, r := range rs {
		c := rule{Rule: r}
		switch r.Kind {
		case Any:
		case And, Or, Not:
			if r.Kind == Not && len(r.Rules) != 1 {
				return nil, errors.New("not: want one rule")
			}
			c.rules, err = compileAll(r.Rules, depth+1)
		case DestinationIP, RemoteIP, DirectRemoteIP:
			if !r.Prefix.IsValid() {
				return nil, errors.New("an invalid range of addresses")
			}
			if p := r.Prefix; p.Addr().Is4In6() && p.Bits() >= 96 {
				c.Prefix = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
			}
		case DestinationPort:
			if r.Ports[0] >= r.Ports[1] || r.Ports[1] > 1<<16 {
				return nil, fmt.Errorf("ports from %d to below %d: want a range up to 65536", r.Ports[0], r.Ports[1])
			}
		case ServerName:
			if r.Match == nil {
				return nil, errors.New("a server name without a match")
			}
			c.test, err = r.Match.compile()
		case Authenticated:
			if r.Match != nil {
				c.test, err = r.Match.compile()
			}
		default:
			return nil, fmt.Errorf("unknown kind of rule %d", r.Kind)
		}
		if err != nil {
			return nil, err
		}
		out = append(out, c)
	}
	return out, nil
}

func (m *String) compile() (func(string) bool, error) {
	fold := func(s string) string { return s }
	if m.IgnoreCase {
		fold = strings.ToLower
	}
	switch {
	case m.Exact != "":
	case m.Prefix != "":
		v := fold(m.Prefix)
		return func(s string) bool { return strings.HasPrefix(fold(s), v) }, nil
	case m.Suffix != "":
		v := fold(m.Suffix)
		return func(s string) bool { return strings.HasSuffix(fold(s), v) }, nil
	case m.Contains != "":
		v := fold(m.Contains)
		return func(s string) bool { return strings.Contains(fold(s), v) }, nil
	case m.Regex != "":
		return fullmatch.Compile(m.Regex)
	}
	v := fold(m.Exact)
	return func(s string) bool { return fold(s) == v }, nil
}

// check returns why p is denied, or nil.
func (e *engine) check(p *Peer) *Denied {
	if e == nil {
		return nil
	}
	matched := e.matched(p)
	switch {
	case e.action == Allow && matched == nil:
		return e.none
	case e.action == Deny && matched != nil:
		return matched.denied
	}
	return nil
}

// matched returns the first policy that matches.
func (e *engine) matched(p *Peer) *policy {
	for i := range e.policies {
		if c := &e.policies[i]; one(c.permissions, p) && one(c.principals, p) {
			return c
		}
	}
	return nil
}

// one reports whether one of the rules matches.
func one(rs []rule, p *Peer) bool {
	for i := range rs {
		if rs[i].matches(p) {
			return true
		}
	}
	return false
}

func (r *rule) matches(p *Peer) bool {
	switch r.Kind {
	case And:
		for i := range r.rules {
			if !r.rules[i].matches(p) {
				return false
			}
		}
		return true
	case Or:
		return one(r.rules, p)
	case Not:
		return !r.rules[0].matches(p)
	case DestinationIP:
		return r.Prefix.Contains(p.Destination.Addr())
	case DestinationPort:
		at := uint32(p.Destination.Port())
		return p.Destination.IsValid() && r.Ports[0] <= at && at < r.Ports[1]
	case ServerName:
		return r.test(p.ServerName)
	case RemoteIP:
		return r.Prefix.Contains(p.Source)
	case DirectRemoteIP:
		return r.Prefix.Contains(p.Direct)
	case Authenticated:
		return r.authenticated(p)
	}
	return true // Any
}

func (r *rule) authenticated(p *Peer) bool {
	if !p.TLS || r.test == nil {
		return p.TLS
	}
	for _, s := range p.URIs {
		if r.test(s) {
			return true
		}
	}
	for _, s := range p.DNS {
		if r.test(s) {
			return true
		}
	}
	return r.test(p.Subject)
}
