package dns

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	wire "github.com/miekg/dns"
)

// class is the kind of an answer.
type class uint8

const (
	found    class = iota
	nodata         // the name exists, the type doesn't
	nxdomain       // the name doesn't exist
	refused        // SERVFAIL, REFUSED, and all that can't be used
	timeout        // no answer at all
)

func (c class) String() string {
	return [...]string{"found", "NODATA", "NXDOMAIN", "refused", "timeout"}[c]
}

// failed reports whether it is no answer.
func (c class) failed() bool { return c >= refused }

// question is what is asked for: a name, and the type of the records.
type question struct {
	name string
	typ  uint16
}

func (q question) String() string { return wire.TypeToString[q.typ] + " " + q.name }

// srv is one SRV record. The target is in lower case and ends in a dot.
type srv struct {
	target                 string
	port, priority, weight uint16
}

func compareSRV(a, b srv) int {
	return cmp.Or(cmp.Compare(a.priority, b.priority), strings.Compare(a.target, b.target),
		cmp.Compare(a.port, b.port), cmp.Compare(a.weight, b.weight))
}

// answer is what is known of a question after one look-up. Its records are
// sorted, each once, and it is never written again.
type answer struct {
	class class
	addrs []netip.Addr
	first netip.Addr // of addrs, as the answer had them
	srvs  []srv
	// hints are the addresses of srvs' targets that came along.
	hints map[string][]netip.Addr
	// ttl is the least of all records on the way, or of the SOA record of an
	// answer without records; hasTTL is false where there is none.
	ttl    time.Duration
	hasTTL bool
	// left are records that can't be used, with the reason.
	left []string
	// alias is set where the answer ends with an alias whose own records it
	// lacks: they have to be asked for.
	alias string
	// err is why the class is not found.
	err error
}

// The limits of an answer. 64 KB hold more records than that.
const (
	maxAliases = 16   // CNAME records in a row
	maxTargets = 1024 // of an SRV name
	maxLeft    = 16   // reasons that are kept
	// Addresses of a target: with maxTargets that is within lbcore.MaxEndpoints.
	maxTargetAddrs = 256
)

// failure returns an answer that is none.
func failure(c class, format string, args ...any) answer {
	return answer{class: c, err: fmt.Errorf(format, args...)}
}

// read works out what the records of m say to q. m is an answer to q without
// an error code but NXDOMAIN.
func read(m *wire.Msg, q question) (a answer) {
	limit := func(h *wire.RR_Header) {
		ttl := h.Ttl
		if ttl > 1<<31-1 { // RFC 2181, 8
			ttl = 0
		}
		if d := time.Duration(ttl) * time.Second; !a.hasTTL || d < a.ttl {
			a.ttl, a.hasTTL = d, true
		}
	}
	// Names are compared in lower case.
	owned := make(map[string][]wire.RR)
	for _, rr := range m.Answer {
		if h := rr.Header(); h.Class == wire.ClassINET && (h.Rrtype == q.typ || h.Rrtype == wire.TypeCNAME) {
			name := wire.CanonicalName(h.Name)
			owned[name] = append(owned[name], rr)
		}
	}
	name := wire.CanonicalName(q.name)
	for steps := 0; ; steps++ {
		var alias string
		records := 0
		for _, rr := range owned[name] {
			if c, ok := rr.(*wire.CNAME); ok {
				if alias == "" {
					alias = wire.CanonicalName(c.Target)
					limit(rr.Header())
				}
				continue
			}
			if why := a.add(rr); why == "" {
				records++
			} else if len(a.left) < maxLeft {
				a.left = append(a.left, why)
			}
			limit(rr.Header())
		}
		if records > 0 || alias == "" {
			break
		}
		if steps == maxAliases {
			return failure(refused, "more than %d aliases in a row", maxAliases)
		}
		if len(a.left) > 0 {
			break
		}
		delete(owned, name) // so that a circle ends, as an alias without records
		if _, ok := owned[alias]; !ok {
			a.alias = alias
			if alias == wire.CanonicalName(q.name) || alias == name {
				return failure(refused, "the alias %s leads to itself", short(alias))
			}
			break
		}
		name = alias
	}
	a.finish()
	if a.class == found {
		if q.typ == wire.TypeSRV {
			a.takeHints(m)
		}
		return a
	}
	soa := false
	for _, rr := range m.Ns {
		if s, ok := rr.(*wire.SOA); ok && s.Hdr.Class == wire.ClassINET {
			soa = true
			h := s.Hdr
			h.Ttl = min(h.Ttl, s.Minttl) // RFC 2308, 5
			limit(&h)
		}
	}
	switch {
	case m.Rcode == wire.RcodeNameError:
		a.class, a.alias = nxdomain, ""
		a.err = errors.New("NXDOMAIN: there is no such name")
	case soa: // there is nothing where the alias leads
		a.alias = ""
	case len(m.Answer) == 0 && !m.Authoritative && !m.RecursionAvailable:
		return failure(refused, "the nameserver refers to others, and does not ask them itself")
	}
	if !soa {
		a.hasTTL = false
	}
	return a
}

// add takes a record, or says why it can't be used.
func (a *answer) add(rr wire.RR) (why string) {
	switch rr := rr.(type) {
	case *wire.A:
		ip, _ := netip.AddrFromSlice(rr.A)
		return a.addAddr(ip.Unmap())
	case *wire.AAAA:
		ip, _ := netip.AddrFromSlice(rr.AAAA)
		return a.addAddr(ip.Unmap())
	case *wire.SRV:
		s := srv{wire.CanonicalName(rr.Target), rr.Port, rr.Priority, rr.Weight}
		if s.port == 0 && s.target != "." {
			return "SRV target " + short(s.target) + ": port 0 can't be dialled"
		}
		a.srvs = append(a.srvs, s)
	}
	return ""
}

func (a *answer) addAddr(ip netip.Addr) (why string) {
	if why := undiallable(ip); why != "" {
		return fmt.Sprintf("address %s: %s", ip, why)
	}
	if len(a.addrs) == 0 {
		a.first = ip
	}
	a.addrs = append(a.addrs, ip)
	return ""
}

// undiallable says why nobody can dial ip, or nothing.
func undiallable(ip netip.Addr) string {
	switch {
	case !ip.IsValid():
		return "is none"
	case ip.IsUnspecified():
		return "is no host's"
	case ip.IsMulticast():
		return "is a multicast address"
	case ip.Is6() && ip.IsLinkLocalUnicast():
		return "is link-local, and DNS can't tell the IPv6 zone that it needs"
	}
	return ""
}

// finish sorts the records and sets the class.
func (a *answer) finish() {
	slices.SortFunc(a.addrs, netip.Addr.Compare)
	a.addrs = slices.Compact(a.addrs)
	slices.SortFunc(a.srvs, compareSRV)
	a.srvs = slices.Compact(a.srvs)
	absent := func(s srv) bool { return s.target == "." }
	if slices.ContainsFunc(a.srvs, absent) {
		a.srvs = slices.DeleteFunc(a.srvs, absent)
		if len(a.srvs) == 0 {
			a.err = errors.New(`the SRV target is ".": there is no such service`)
		} else {
			a.left = append(a.left, `SRV target ".": there are others`)
		}
	}
	targets := make(map[string]bool)
	for _, s := range a.srvs {
		targets[s.target] = true
	}
	switch {
	case len(targets) > maxTargets:
		*a = failure(refused, "%d SRV targets are more than %d", len(targets), maxTargets)
		return
	case len(a.addrs)+len(a.srvs) > 0:
		a.class = found
		return
	}
	a.class = nodata
	switch {
	case a.err != nil:
	case len(a.left) > 0:
		a.err = fmt.Errorf("no record can be used: %s", a.left[0])
	default:
		a.err = errors.New("NODATA: the name has no such record")
	}
}

// takeHints keeps the addresses that came along with SRV records.
func (a *answer) takeHints(m *wire.Msg) {
	a.hints = make(map[string][]netip.Addr)
	for _, s := range a.srvs {
		a.hints[s.target] = nil
	}
	for _, rr := range m.Extra {
		name := wire.CanonicalName(rr.Header().Name)
		if _, asked := a.hints[name]; !asked || rr.Header().Class != wire.ClassINET {
			continue
		}
		var ip netip.Addr
		switch rr := rr.(type) {
		case *wire.A:
			ip, _ = netip.AddrFromSlice(rr.A)
		case *wire.AAAA:
			ip, _ = netip.AddrFromSlice(rr.AAAA)
		default:
			continue
		}
		if ip = ip.Unmap(); undiallable(ip) == "" {
			a.hints[name] = append(a.hints[name], ip)
		}
	}
}
