package filterchain

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// MaxCombinations bounds what the chains of a listener come to, each counted once
// for each combination of the values that it lists.
const MaxCombinations = 1 << 16

// The transport protocols that a connection can have.
const (
	TransportTLS = "tls"
	TransportRaw = "raw_buffer"
)

// SourceType says where the clients of a chain are.
// Source: FilterChainMatch.ConnectionSourceType.
type SourceType uint8

// The source types.
const (
	AnySource      SourceType = iota
	SameIPOrLocal             // the client's address is the one it has connected to, or a loopback address
	ExternalSource            // any other
)

// Match says which connections a chain is for. What is empty takes all.
// It is not written any more once it was given to New.
type Match struct {
	// DestinationPort is the port that the client has connected to; 0 is any.
	DestinationPort uint16
	// PrefixRanges have the address that the client has connected to.
	PrefixRanges []netip.Prefix
	// ServerNames are those of the TLS ClientHello, without regard to case. One
	// that begins with "*." stands for all names with that end and one label more,
	// or several.
	ServerNames []string
	// TransportProtocol is TransportTLS, TransportRaw, or another one, which no
	// connection has.
	TransportProtocol string
	// ApplicationProtocols are those that the client offers (ALPN).
	ApplicationProtocols []string
	// DirectSourcePrefixRanges have the address of the peer, which is not the
	// client's where that has come in a PROXY header.
	DirectSourcePrefixRanges []netip.Prefix
	SourceType               SourceType
	// SourcePrefixRanges and SourcePorts are of the client.
	SourcePrefixRanges []netip.Prefix
	SourcePorts        []uint16
}

// Inspects reports whether m can match only if the client's TLS ClientHello was read.
// Where nobody looks for one, all connections have TransportRaw, as in Envoy.
func (m *Match) Inspects() bool {
	return len(m.ServerNames) > 0 || len(m.ApplicationProtocols) > 0 || m.TransportProtocol == TransportTLS
}

// Conn is what is known of a connection. Addresses are unmapped and have no zone;
// one that is not known, as of unix sockets, counts as 0.0.0.0, as in Envoy.
type Conn struct {
	Destination netip.AddrPort // what the client has connected to
	Source      netip.AddrPort // the client
	Direct      netip.Addr     // the peer
	ServerName  string         // in lower case
	TLS         bool           // the client has sent a ClientHello
	// ApplicationProtocols are those that the client offers, in its order.
	ApplicationProtocols []string
}

// Rule is a chain by its name, for errors, and its Match.
type Rule struct {
	Name  string
	Match Match
}

// Matcher finds chains. New makes it.
type Matcher struct {
	root        node
	leaves      int
	inspects    bool
	destination bool
}

// The levels, in their order.
const (
	destinationPort = iota
	destinationIP
	serverName
	transportProtocol
	applicationProtocol
	directSource
	sourceType
	sourceIP
	sourcePort
	levels
)

// node is what is left of the chains at a level. Of its maps there is the one that
// the level needs.
type node struct {
	texts    map[string]*node // server names, wildcards as ".example.com"; protocols
	numbers  map[uint16]*node // ports, source types
	prefixes map[netip.Prefix]*node
	bits4    []int // the lengths of prefixes, the longest first
	bits6    []int
	any      *node
	chain    int // at the end: its index
}

// New makes a Matcher of the rules, whose indices Find returns. It is an error if
// two match the same, if one has a server name with a "*" elsewhere than at the
// beginning, or an invalid prefix, or if they come to more than MaxCombinations; it
// names the chain by its index and name.
func New(rules []Rule) (*Matcher, error) {
	m := new(Matcher)
	for i := range rules {
		r := &rules[i]
		err := r.Match.check()
		if err == nil {
			err = m.enter(rules, i)
		}
		if err != nil {
			return nil, fmt.Errorf("filter chain %d %q: %w", i, r.Name, err)
		}
		m.inspects = m.inspects || r.Match.Inspects()
		m.destination = m.destination || r.Match.DestinationPort != 0 || len(r.Match.PrefixRanges) > 0 || r.Match.SourceType != AnySource
	}
	return m, nil
}

// Inspects reports whether Find asks for what is in a ClientHello.
func (m *Matcher) Inspects() bool { return m.inspects }

// Destination reports whether Find asks for what the client has connected to.
func (m *Matcher) Destination() bool { return m.destination }

func (m *Match) check() error {
	for _, s := range m.ServerNames {
		if rest := strings.TrimPrefix(s, "*."); rest == "" || strings.Contains(rest, "*") {
			return fmt.Errorf("server name %.100q: want a name, or one that begins with \"*.\"", s)
		}
	}
	for _, ps := range [][]netip.Prefix{m.PrefixRanges, m.DirectSourcePrefixRanges, m.SourcePrefixRanges} {
		if slices.ContainsFunc(ps, func(p netip.Prefix) bool { return !p.IsValid() }) {
			return errors.New("an invalid range of addresses")
		}
	}
	if m.SourceType > ExternalSource {
		return fmt.Errorf("unknown source type %d", m.SourceType)
	}
	return nil
}

// enter enters rule i.
func (m *Matcher) enter(rules []Rule, i int) error {
	r := &rules[i].Match
	combinations := 1
	for _, n := range []int{len(r.PrefixRanges), len(r.ServerNames), len(r.ApplicationProtocols), len(r.DirectSourcePrefixRanges), len(r.SourcePrefixRanges), len(r.SourcePorts)} {
		if combinations *= max(n, 1); combinations > MaxCombinations {
			break
		}
	}
	if m.leaves += combinations; m.leaves > MaxCombinations {
		return fmt.Errorf("what the chains list comes to more than %d combinations", MaxCombinations)
	}
	return m.root.enter(rules, i, 0)
}

// enter enters rule i from a level on.
func (n *node) enter(rules []Rule, i, level int) error {
	m := &rules[i].Match
	down := func(next *node) error {
		if level < levels-1 {
			return next.enter(rules, i, level+1)
		}
		switch {
		case next.chain == 0:
			next.chain = i + 1
		case next.chain != i+1: // it may list a value twice
			return fmt.Errorf("it matches what filter chain %d %q does", next.chain-1, rules[next.chain-1].Name)
		}
		return nil
	}
	each := func(next []*node) error {
		if len(next) == 0 {
			next = []*node{at(&n.any)}
		}
		for _, x := range next {
			if err := down(x); err != nil {
				return err
			}
		}
		return nil
	}
	var next []*node
	switch level {
	case destinationPort:
		if m.DestinationPort != 0 {
			next = append(next, under(&n.numbers, m.DestinationPort))
		}
	case destinationIP:
		next = n.ranges(m.PrefixRanges)
	case serverName:
		for _, s := range m.ServerNames {
			next = append(next, under(&n.texts, strings.TrimPrefix(strings.ToLower(s), "*")))
		}
	case transportProtocol:
		if m.TransportProtocol != "" {
			next = append(next, under(&n.texts, m.TransportProtocol))
		}
	case applicationProtocol:
		for _, s := range m.ApplicationProtocols {
			next = append(next, under(&n.texts, s))
		}
	case directSource:
		next = n.ranges(m.DirectSourcePrefixRanges)
	case sourceType:
		if m.SourceType != AnySource {
			next = append(next, under(&n.numbers, uint16(m.SourceType)))
		}
	case sourceIP:
		next = n.ranges(m.SourcePrefixRanges)
	case sourcePort:
		for _, p := range m.SourcePorts {
			next = append(next, under(&n.numbers, p))
		}
	}
	return each(next)
}

// at returns the node at p, made if need be, and under the one in a map.
func at(p **node) *node {
	if *p == nil {
		*p = new(node)
	}
	return *p
}

func under[K comparable](m *map[K]*node, key K) *node {
	if *m == nil {
		*m = make(map[K]*node)
	}
	next := (*m)[key]
	if next == nil {
		next = new(node)
		(*m)[key] = next
	}
	return next
}

// ranges returns the nodes of prefixes.
func (n *node) ranges(ps []netip.Prefix) (next []*node) {
	for _, p := range ps {
		if p.Addr().Is4In6() && p.Bits() >= 96 {
			p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
		}
		p = p.Masked()
		bits := &n.bits6
		if p.Addr().Is4() {
			bits = &n.bits4
		}
		if !slices.Contains(*bits, p.Bits()) {
			*bits = append(*bits, p.Bits())
			slices.SortFunc(*bits, func(a, b int) int { return b - a })
		}
		next = append(next, under(&n.prefixes, p))
	}
	return next
}

// Find returns the index of the chain that c belongs to, or -1.
func (m *Matcher) Find(c *Conn) int {
	n := &m.root
	for level := 0; level < levels && n != nil; level++ {
		n = n.find(c, level)
	}
	if n == nil {
		return -1
	}
	return n.chain - 1
}

// find takes the most specific way down, or returns nil.
func (n *node) find(c *Conn, level int) *node {
	var next *node
	switch level {
	case destinationPort:
		next = n.numbers[c.Destination.Port()]
	case destinationIP:
		next = n.within(c.Destination.Addr())
	case serverName:
		next = n.named(c.ServerName)
	case transportProtocol:
		if c.TLS {
			next = n.texts[TransportTLS]
		} else {
			next = n.texts[TransportRaw]
		}
	case applicationProtocol:
		for _, p := range c.ApplicationProtocols {
			if next = n.texts[p]; next != nil {
				break
			}
		}
	case directSource:
		next = n.within(c.Direct)
	case sourceType:
		next = n.numbers[uint16(c.sourceType())]
	case sourceIP:
		next = n.within(c.Source.Addr())
	case sourcePort:
		next = n.numbers[c.Source.Port()]
	}
	if next == nil {
		return n.any
	}
	return next
}

func (c *Conn) sourceType() SourceType {
	a := known(c.Source.Addr())
	if a.IsLoopback() || a == known(c.Destination.Addr()) {
		return SameIPOrLocal
	}
	return ExternalSource
}

// known returns a, or what stands for one that is not known.
func known(a netip.Addr) netip.Addr {
	if !a.IsValid() {
		return netip.IPv4Unspecified()
	}
	return a
}

// within looks a up by the longest prefix.
func (n *node) within(a netip.Addr) *node {
	if len(n.prefixes) == 0 {
		return nil
	}
	a = known(a)
	lengths := n.bits6
	if a.Is4() {
		lengths = n.bits4
	}
	for _, bits := range lengths {
		p, err := a.Prefix(bits)
		if err != nil { // not reached
			continue
		}
		if next := n.prefixes[p]; next != nil {
			return next
		}
	}
	return nil
}

// named looks a server name up: itself, then what it ends with, longest first.
func (n *node) named(name string) *node {
	if len(n.texts) == 0 || name == "" || name[0] == '.' {
		return nil
	}
	for {
		if next := n.texts[name]; next != nil {
			return next
		}
		dot := strings.IndexByte(name[1:], '.')
		if dot < 0 {
			return nil
		}
		name = name[1+dot:]
	}
}
