package dns

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"time"

	wire "github.com/miekg/dns"

	"gatehouse.internal/internal/contain"
)

// DefaultResolvConf is the default of Config.ResolvConf.
const DefaultResolvConf = "/etc/resolv.conf"

// Config says which nameservers are asked, and how. The zero value is ready for
// use.
type Config struct {
	// Nameservers are asked in place of those of ResolvConf, at most 16.
	Nameservers []netip.AddrPort
	// ResolvConf is the path of a resolv.conf(5), which is read again when it has
	// changed, within 5 s. Without any nameserver there, 127.0.0.1 is asked. Empty
	// means DefaultResolvConf. What this Config says goes before it.
	ResolvConf string
	// Search and NDots qualify names that don't end in a dot: those with less
	// than NDots dots are first tried with each of Search behind them. Nil and 0
	// mean what ResolvConf says.
	Search []string
	NDots  int
	// Stagger is after what time without an answer the next nameserver is asked
	// too. 0 means 150 ms.
	Stagger time.Duration
	// Timeout is how long an answer of one nameserver is waited for. 0 means what
	// ResolvConf says, or 2 s.
	Timeout time.Duration
	// Attempts is how often the nameservers are gone round. 0 means what
	// ResolvConf says, or 2; 5 at most.
	Attempts int
	// TCP asks by TCP only.
	TCP bool
	// Panics contains those of reading an answer, which counts as none. May be nil; it
	// is that of New.
	Panics *contain.Panics
	// Logger may be nil.
	Logger *slog.Logger
}

// Validate returns the mistakes, joined; each begins with the name of the argument
// in a configuration file.
func (c Config) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if err := checkServers(c.Nameservers); err != nil {
		errs = append(errs, err)
	}
	if len(c.Search) > maxSearch {
		bad("search: %d domains, at most %d", len(c.Search), maxSearch)
	}
	for _, s := range c.Search {
		if _, err := absolute(s); err != nil {
			bad("search: %w", err)
		}
	}
	if c.NDots < 0 || c.NDots > maxNDots {
		bad("ndots: %d is not from 0 to %d", c.NDots, maxNDots)
	}
	if c.Stagger < 0 {
		bad("stagger: %v is negative", c.Stagger)
	}
	if c.Timeout < 0 || c.Timeout > maxTimeout {
		bad("timeout: %v is not from 0 to %v", c.Timeout, maxTimeout)
	}
	if c.Attempts < 0 || c.Attempts > maxAttempts {
		bad("attempts: %d is not from 0 to %d", c.Attempts, maxAttempts)
	}
	return errors.Join(errs...)
}

func checkServers(list []netip.AddrPort) error {
	if len(list) > maxServers {
		return fmt.Errorf("nameservers: %d of them, at most %d", len(list), maxServers)
	}
	for _, at := range list {
		if _, err := ParseServer(at.String()); err != nil {
			return fmt.Errorf("nameservers: %w", err)
		}
	}
	return nil
}

// Type is what a Query asks for.
type Type string

// The types.
const (
	A     Type = "a"
	AAAA  Type = "aaaa"
	AAAAA Type = "a+aaaa" // both
	SRV   Type = "srv"
)

// families returns the record types of the addresses of t.
func (t Type) families() []uint16 {
	switch t {
	case A:
		return []uint16{wire.TypeA}
	case AAAA:
		return []uint16{wire.TypeAAAA}
	}
	return []uint16{wire.TypeA, wire.TypeAAAA}
}

// Hold says for how long the last good records stay in force while answers of one
// kind come without another between them. 0 is for ever.
type Hold struct {
	// NXDomain and NoData are answers that there is no such name, and no record of
	// the type. They are believed after two at least, however short the time is.
	// Nameservers may differ in which it is: where both come, the longer time counts.
	NXDomain, NoData time.Duration
	// Refused is SERVFAIL, REFUSED and all that can't be used; Timeout is no answer
	// from any nameserver.
	Refused, Timeout time.Duration
}

// Query says what a source asks for. Name and Type are required, and Port but for
// SRV.
type Query struct {
	// Name is looked up. Without a dot at its end Config's Search counts.
	Name string
	Type Type
	// Port is that of the endpoints; SRV has its own.
	Port uint16
	// Targets is the type of the addresses of SRV's targets: A, AAAA or AAAAA,
	// which is the default.
	Targets Type
	// Prefer, A or AAAA, keeps only the addresses of that family where Type is AAAAA
	// and the name has any of it; empty keeps all.
	// Source: Cluster.dns_lookup_family.
	Prefer Type
	// Logical makes one endpoint of the addresses of a name, whose first one is the
	// first of an answer, for as long as answers list it; the others, up to
	// lbcore.MaxAdditional, are additional. It is not for SRV.
	// Source: LOGICAL_DNS of Cluster.type.
	Logical bool
	// Nameservers are asked in place of Config's, with the same settings.
	Nameservers []netip.AddrPort
	// TCP asks by TCP only. Names under consul. always are: Consul's answers by UDP
	// may lack records without saying so.
	TCP bool
	// MinTTL and MaxTTL bound the time to the next look-up, which is the TTL give
	// or take 15 %. 0 means 1 s and 1 h.
	MinTTL, MaxTTL time.Duration
	// Jitter, in place of these 15 %, makes the time to the next look-up longer by a
	// part of it that is drawn each time. 0 means the 15 %.
	// Source: Cluster.dns_jitter.
	Jitter time.Duration
	// Refresh is the time to the next look-up where the TTL is 0. 0 means 5 s.
	Refresh time.Duration
	// MinBackoff is the wait after a first failure, or answer without records; it
	// doubles with each up to MaxBackoff, give or take 15 %. A negative TTL (RFC
	// 2308) may make it longer. 0 means 1 s and 30 s.
	MinBackoff, MaxBackoff time.Duration
	// Misses is how many answers in a row must lack a record until it is gone. 0
	// means 2; at most 10.
	Misses int
	// Hold is as it is written: its zero value keeps the last good records for
	// ever. DefaultHold is what files begin with.
	Hold Hold
	// RefreshLimit is the least time from a look-up to one that is asked for with
	// Refresh. 0 means 5 s.
	RefreshLimit time.Duration
}

// DefaultHold believes NXDOMAIN and NODATA after 30 s, and keeps records through
// failures for ever.
func DefaultHold() Hold { return Hold{NXDomain: 30 * time.Second, NoData: 30 * time.Second} }

// Validate returns the mistakes, joined; each begins with the name of the argument
// in a configuration file.
func (q Query) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	switch _, err := absolute(q.Name); {
	case q.Name == "":
		bad("name: is missing")
	case err != nil:
		bad("name: %w", err)
	case isIP(q.Name):
		bad("name: %s is an address, which DNS has nothing to say of: use discovery \"static\"", short(q.Name))
	}
	switch q.Type {
	case A, AAAA, AAAAA:
		if q.Port == 0 {
			bad("port: is missing: only type \"srv\" knows ports")
		}
		if q.Targets != "" {
			bad("targets: is for type \"srv\"")
		}
		if q.Prefer != "" && (q.Type != AAAAA || q.Prefer != A && q.Prefer != AAAA) {
			bad("prefer: %q is for type \"a+aaaa\", and a or aaaa", q.Prefer)
		}
	case SRV:
		if q.Prefer != "" || q.Logical {
			bad("prefer, logical: are for addresses")
		}
		if q.Port != 0 {
			bad("port: is for addresses: the ports are in the SRV records")
		}
		if q.Targets != "" && q.Targets != A && q.Targets != AAAA && q.Targets != AAAAA {
			bad("targets: %q is none of a, aaaa, a+aaaa", q.Targets)
		}
	default:
		bad("type: %q is none of a, aaaa, a+aaaa, srv", q.Type)
	}
	if err := checkServers(q.Nameservers); err != nil {
		errs = append(errs, err)
	}
	d := q.withDefaults()
	if d.MinTTL < 0 || d.MaxTTL < d.MinTTL {
		bad("min_ttl: from %v to %v (max_ttl) is no range", d.MinTTL, d.MaxTTL)
	}
	if d.MinBackoff < 0 || d.MaxBackoff < d.MinBackoff {
		bad("min_backoff: from %v to %v (max_backoff) is no range", d.MinBackoff, d.MaxBackoff)
	}
	if d.Misses < 1 || d.Misses > 10 {
		bad("misses: %d is not from 1 to 10", q.Misses)
	}
	if q.Jitter < 0 {
		bad("jitter: %v is negative", q.Jitter)
	}
	if d.Refresh < 0 {
		bad("refresh: %v is negative", d.Refresh)
	}
	if d.RefreshLimit < 0 {
		bad("refresh_limit: %v is negative", d.RefreshLimit)
	}
	h := q.Hold
	if min(h.NXDomain, h.NoData, h.Refused, h.Timeout) < 0 {
		bad("hold: times can't be negative")
	}
	return errors.Join(errs...)
}

func (q Query) withDefaults() Query {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&q.MinTTL, time.Second)
	def(&q.MaxTTL, max(time.Hour, q.MinTTL))
	def(&q.Refresh, 5*time.Second)
	def(&q.MinBackoff, time.Second)
	def(&q.MaxBackoff, max(30*time.Second, q.MinBackoff))
	def(&q.RefreshLimit, 5*time.Second)
	if q.Misses == 0 {
		q.Misses = 2
	}
	if q.Targets == "" {
		q.Targets = AAAAA
	}
	q.TCP = q.TCP || strings.HasSuffix(wire.CanonicalName(q.Name), ".consul.")
	return q
}

// String returns the type and the name, for messages.
func (q Query) String() string { return strings.ToUpper(string(q.Type)) + " " + q.Name }

// absolute returns the name with a dot at its end, in lower case, if it is one
// that can be asked for.
func absolute(name string) (string, error) {
	fq := wire.CanonicalName(name)
	if strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r >= 0x7f }) {
		return "", fmt.Errorf("%q: has characters other than visible ASCII ones; write it in punycode", short(name))
	}
	if _, ok := wire.IsDomainName(fq); !ok || name == "" || fq == "." {
		return "", fmt.Errorf("%q: is no domain name (labels of 1 to 63 bytes, 254 in all)", short(name))
	}
	return fq, nil
}

func isIP(name string) bool {
	_, err := netip.ParseAddr(strings.TrimSuffix(name, "."))
	return err == nil
}
