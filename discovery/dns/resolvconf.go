package dns

import (
	"bufio"
	"bytes"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The limits of what a resolv.conf may ask for.
const (
	maxServers  = 16
	maxSearch   = 32
	maxNDots    = 15 // as in glibc, and so are the next two
	maxAttempts = 5
	maxTimeout  = 30 * time.Second
	maxConf     = 1 << 20 // bytes
)

// resolvConf is what resolv.conf says, as far as it counts. Zero values mean that
// it does not say.
type resolvConf struct {
	servers  []netip.AddrPort
	search   []string // fully qualified; nil is none
	ndots    int
	timeout  time.Duration
	attempts int
	tcp      bool
	refused  []string // lines that can't be used, with the reason
}

// defaultNDots is what resolv.conf(5) says.
const defaultNDots = 1

// parseResolvConf reads the text of a resolv.conf. It never fails: what can't be
// used is in refused, and the rest counts, as for every other resolver.
func parseResolvConf(text []byte) resolvConf {
	rc := resolvConf{ndots: defaultNDots}
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, maxConf+1)
	for n := 1; lines.Scan(); n++ {
		line, _, _ := strings.Cut(lines.Text(), "#")
		line, _, _ = strings.Cut(line, ";")
		words := strings.Fields(line)
		if len(words) < 2 {
			continue
		}
		refuse := func(format string, args ...any) {
			if len(rc.refused) < maxServers {
				rc.refused = append(rc.refused, fmt.Sprintf("line %d: ", n)+fmt.Sprintf(format, args...))
			}
		}
		switch words[0] {
		case "nameserver":
			at, err := ParseServer(words[1])
			switch {
			case err != nil:
				refuse("%v", err)
			case len(rc.servers) == maxServers:
				refuse("nameserver %s: only %d are used", at, maxServers)
			case !slices.Contains(rc.servers, at):
				rc.servers = append(rc.servers, at)
			}
		case "domain", "search": // the last of these lines counts
			rc.search = nil
			for _, w := range words[1:] {
				if w == "." { // the root: the name as it is, which is tried anyway
					continue
				}
				name, err := absolute(w)
				switch {
				case err != nil:
					refuse("search domain %v", err)
				case len(rc.search) == maxSearch:
					refuse("search domain %s: only %d are used", name, maxSearch)
				default:
					rc.search = append(rc.search, name)
				}
			}
		case "options":
			for _, w := range words[1:] {
				name, value, _ := strings.Cut(w, ":")
				v, err := strconv.Atoi(value)
				switch ok := err == nil && v >= 0; {
				case name == "ndots" && ok:
					rc.ndots = min(v, maxNDots)
				case name == "timeout" && ok:
					rc.timeout = min(time.Duration(min(max(v, 1), 3600))*time.Second, maxTimeout)
				case name == "attempts" && ok:
					rc.attempts = min(max(v, 1), maxAttempts)
				case name == "use-vc" || name == "usevc" || name == "tcp":
					rc.tcp = true
				}
			}
		}
	}
	return rc
}

// ParseServer reads the address of a nameserver: an IP, or IP:port; the port is
// 53 if there is none. Host names and IPv6 zones are errors.
func ParseServer(s string) (netip.AddrPort, error) {
	at, err := netip.ParseAddrPort(s)
	if err != nil {
		ip, ierr := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(s, "["), "]"))
		if ierr != nil {
			return at, fmt.Errorf("nameserver %q: want an IP address, or one with a port", short(s))
		}
		at = netip.AddrPortFrom(ip, 53)
	}
	at = netip.AddrPortFrom(at.Addr().Unmap(), at.Port())
	switch ip := at.Addr(); {
	case ip.Zone() != "":
		return at, fmt.Errorf("nameserver %q: an IPv6 zone is not supported, name another address of it", short(s))
	case ip.IsMulticast():
		return at, fmt.Errorf("nameserver %s: is a multicast address", at)
	case at.Port() == 0:
		return at, fmt.Errorf("nameserver %s: port 0 can't be asked", at)
	case ip.IsUnspecified(): // resolv.conf(5): this host
		loopback := netip.AddrFrom4([4]byte{127, 0, 0, 1})
		if ip.Is6() {
			loopback = netip.IPv6Loopback()
		}
		at = netip.AddrPortFrom(loopback, at.Port())
	}
	return at, nil
}

// short cuts what is quoted in messages.
func short(s string) string {
	if len(s) > 80 {
		return s[:80] + "..."
	}
	return s
}
