package lbcore

import (
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
type Addr struct {
	ip   netip.AddrPort
	path unique.Handle[string] // the zero Handle for an IP address: half of a string, and maps have many
}

// IPAddr returns the Addr of ap. An IPv4-mapped IPv6 address is unmapped, so
// that one host has one identity whichever way a source writes it.
func IPAddr(ap netip.AddrPort) Addr {
	return Addr{ip: netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())}
}

// UnixAddr returns the Addr of the unix stream socket at path. An empty path
// gives the zero Addr.
func UnixAddr(path string) Addr {
	if path == "" {
		return Addr{}
	}
	return Addr{path: unique.Make(path)}
}

func (a Addr) isUnix() bool { return a.path != unique.Handle[string]{} }

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
	case a.isUnix():
		if !strings.HasPrefix(a.Path(), "/") {
			return errors.New("the path of a unix socket must be absolute")
		}
	case !a.ip.IsValid():
		return errors.New("no address")
	case a.ip.Addr().Zone() != "":
		return errors.New("an IPv6 zone has no meaning on another host")
	case a.ip.Port() == 0:
		return errors.New("port 0 can't be dialled")
	}
	return nil
}

// IsValid reports whether a is anything but the zero Addr.
func (a Addr) IsValid() bool { return a != Addr{} }

// AddrPort returns the IP address and port, or the zero AddrPort for a unix
// socket.
func (a Addr) AddrPort() netip.AddrPort { return a.ip }

// Path returns the path of the unix socket, or "" for an IP address.
func (a Addr) Path() string {
	if !a.isUnix() {
		return ""
	}
	return a.path.Value()
}

// Network returns "unix" or "tcp", as package net names them.
func (a Addr) Network() string {
	if a.isUnix() {
		return "unix"
	}
	return "tcp"
}

// Compare orders addresses: IP addresses before unix sockets; IPv4 before
// IPv6, then by address and port; sockets by path. This is the order of a Set
// and so of everything that is built from one.
func (a Addr) Compare(b Addr) int {
	if a.isUnix() != b.isUnix() {
		if b.isUnix() {
			return -1
		}
		return 1
	}
	if a.isUnix() {
		return cmp.Compare(a.Path(), b.Path())
	}
	return a.ip.Compare(b.ip)
}

// String returns "192.0.2.1:80", "[2001:db8::1]:80" or "unix:///run/x.sock":
// the form that ParseAddr reads.
func (a Addr) String() string {
	if a.isUnix() {
		return "unix://" + a.Path()
	}
	return a.ip.String()
}

// AppendTo appends String to b, for a valid Addr. It allocates only to grow b.
func (a Addr) AppendTo(b []byte) []byte {
	if a.isUnix() {
		return append(append(b, "unix://"...), a.Path()...)
	}
	return a.ip.AppendTo(b)
}

// MarshalText returns String, so that logs and JSON show it.
func (a Addr) MarshalText() ([]byte, error) { return []byte(a.String()), nil }

// Dial returns a in the form that net.Dial takes with Network: the address, or
// the bare path of a unix socket.
func (a Addr) Dial() string {
	if a.isUnix() {
		return a.Path()
	}
	return a.ip.String()
}
