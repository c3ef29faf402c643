package lbcore

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"unique"
)

// Addr is the identity of an endpoint: an IP address with a port, or the path
// of a unix stream socket. It is comparable, so it serves as a map key. The
// zero Addr is no address; IsValid reports it.
//
// There are several of each endpoint in memory, so it is a third smaller than a
// netip.AddrPort and a path would be.
type Addr struct {
	ip   [16]byte              // as netip.Addr.As16
	text unique.Handle[string] // the path, or the zone of an IP address; zero if there is none
	port uint16
	kind addrKind
}

type addrKind uint8

// The kinds, in the order of Compare.
const (
	kindNone addrKind = iota // the zero Addr, or a port alone
	kindIPv4
	kindIPv6
	kindUnix
)

// IPAddr returns the Addr of ap. An IPv4-mapped IPv6 address is unmapped, so
// that one host has one identity whichever way a source writes it.
func IPAddr(ap netip.AddrPort) Addr {
	ip := ap.Addr().Unmap()
	a := Addr{port: ap.Port()}
	switch {
	case ip.Is4():
		a.kind = kindIPv4
	case ip.Is6():
		a.kind = kindIPv6
		if zone := ip.Zone(); zone != "" {
			a.text = unique.Make(zone)
		}
	default:
		return a
	}
	a.ip = ip.As16()
	return a
}

// UnixAddr returns the Addr of the unix stream socket at path. An empty path
// gives the zero Addr.
func UnixAddr(path string) Addr {
	if path == "" {
		return Addr{}
	}
	return Addr{text: unique.Make(path), kind: kindUnix}
}

// ParseAddr reads "192.0.2.1:80", "[2001:db8::1]:80" or "unix:///run/x.sock".
// Host names, port 0 and IPv6 zones are errors: a zone means something else on
// every host, and names are the business of the DNS source.
func ParseAddr(s string) (Addr, error) {
	var a Addr
	if path, ok := strings.CutPrefix(s, "unix://"); ok {
		a = UnixAddr(path)
	} else {
		ap, err := netip.ParseAddrPort(s)
		if err != nil {
			return Addr{}, fmt.Errorf("address %q: want IP:port, [IPv6]:port or unix:///path", s)
		}
		a = IPAddr(ap)
	}
	if err := a.check(); err != nil {
		return Addr{}, fmt.Errorf("address %q: %w", s, err)
	}
	return a, nil
}

// check reports what keeps a from being the address of an endpoint.
func (a Addr) check() error {
	switch {
	case a.kind == kindUnix:
		if !strings.HasPrefix(a.Path(), "/") {
			return errors.New("the path of a unix socket must be absolute")
		}
	case a.kind == kindNone:
		return errors.New("no address")
	case a.zone() != "":
		return errors.New("an IPv6 zone has no meaning on another host")
	case a.port == 0:
		return errors.New("port 0 can't be dialled")
	}
	return nil
}

// IsValid reports whether a is anything but the zero Addr.
func (a Addr) IsValid() bool { return a != Addr{} }

// AddrPort returns the IP address and port, or the zero AddrPort for a unix
// socket.
func (a Addr) AddrPort() netip.AddrPort {
	var ip netip.Addr
	switch a.kind {
	case kindIPv4:
		ip = netip.AddrFrom4([4]byte(a.ip[12:]))
	case kindIPv6:
		ip = netip.AddrFrom16(a.ip).WithZone(a.zone())
	}
	return netip.AddrPortFrom(ip, a.port)
}

// Path returns the path of the unix socket, or "" for an IP address.
func (a Addr) Path() string {
	if a.kind != kindUnix {
		return ""
	}
	return a.text.Value()
}

// zone returns the zone of an IPv6 address, which check refuses.
func (a Addr) zone() string {
	if a.kind != kindIPv6 || a.text == (unique.Handle[string]{}) {
		return ""
	}
	return a.text.Value()
}

// Network returns "unix" or "tcp", as package net names them.
func (a Addr) Network() string {
	if a.kind == kindUnix {
		return "unix"
	}
	return "tcp"
}

// Compare orders addresses: IP addresses before unix sockets; IPv4 before
// IPv6, then by address and port; sockets by path. This is the order of a Set
// and so of everything that is built from one.
func (a Addr) Compare(b Addr) int {
	if a.kind != b.kind {
		return cmp.Compare(a.kind, b.kind)
	}
	if a.kind == kindUnix {
		return cmp.Compare(a.Path(), b.Path())
	}
	if c := bytes.Compare(a.ip[:], b.ip[:]); c != 0 {
		return c
	}
	if a.text != b.text {
		return cmp.Compare(a.zone(), b.zone())
	}
	return cmp.Compare(a.port, b.port)
}

// String returns "192.0.2.1:80", "[2001:db8::1]:80" or "unix:///run/x.sock":
// the form that ParseAddr reads.
func (a Addr) String() string {
	if a.kind == kindUnix {
		return "unix://" + a.Path()
	}
	return a.AddrPort().String()
}

// AppendTo appends String to b, for a valid Addr. It allocates only to grow b.
func (a Addr) AppendTo(b []byte) []byte {
	if a.kind == kindUnix {
		return append(append(b, "unix://"...), a.Path()...)
	}
	return a.AddrPort().AppendTo(b)
}

// MarshalText returns String, so that logs and JSON show it.
func (a Addr) MarshalText() ([]byte, error) { return []byte(a.String()), nil }

// Dial returns a in the form that net.Dial takes with Network: the address, or
// the bare path of a unix socket.
func (a Addr) Dial() string {
	if a.kind == kindUnix {
		return a.Path()
	}
	return a.AddrPort().String()
}
