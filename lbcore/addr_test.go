package lbcore_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"gatehouse.internal/lbcore"
)

func TestParseAddr(t *testing.T) {
	for _, c := range []struct{ in, out, network, dial string }{
		{"192.0.2.1:80", "192.0.2.1:80", "tcp", "192.0.2.1:80"},
		{"192.0.2.1:65535", "192.0.2.1:65535", "tcp", "192.0.2.1:65535"},
		{"[2001:db8::1]:80", "[2001:db8::1]:80", "tcp", "[2001:db8::1]:80"},
		{"[2001:0db8:0::1]:080", "[2001:db8::1]:80", "tcp", "[2001:db8::1]:80"},
		{"[::ffff:192.0.2.1]:80", "192.0.2.1:80", "tcp", "192.0.2.1:80"},
		{"unix:///run/x.sock", "unix:///run/x.sock", "unix", "/run/x.sock"},
		{"unix:///run/a b:80", "unix:///run/a b:80", "unix", "/run/a b:80"},
	} {
		a, err := lbcore.ParseAddr(c.in)
		if err != nil {
			t.Errorf("%s: %v", c.in, err)
			continue
		}
		if a.String() != c.out || a.Network() != c.network || a.Dial() != c.dial || !a.IsValid() {
			t.Errorf("%s: got %q, network %q, dial %q", c.in, a, a.Network(), a.Dial())
		}
		if b := string(a.AppendTo([]byte("to "))); b != "to "+c.out {
			t.Errorf("%s: appended: %q", c.in, b)
		}
		if b, err := lbcore.ParseAddr(a.String()); err != nil || b != a {
			t.Errorf("%s: printed and read again: %v, %v", c.in, b, err)
		}
	}
}

func TestParseAddrRefuses(t *testing.T) {
	for in, why := range map[string]string{
		"":                    "want IP:port",
		"192.0.2.1":           "want IP:port",
		"192.0.2.1:":          "want IP:port",
		"192.0.2.1:65536":     "want IP:port",
		"192.0.2.1:-1":        "want IP:port",
		"192.0.2.01:80":       "want IP:port",
		"example.com:80":      "want IP:port",
		"localhost:80":        "want IP:port",
		"2001:db8::1:80":      "want IP:port",
		"192.0.2.1:http":      "want IP:port",
		" 192.0.2.1:80":       "want IP:port",
		"192.0.2.1:0":         "port 0",
		"[::1]:0":             "port 0",
		"[fe80::1%eth0]:80":   "zone",
		"unix://":             "no address",
		"unix://run/x.sock":   "absolute",
		"unix://@abstract":    "absolute",
		"unix:/run/x.sock":    "want IP:port",
		"/run/x.sock":         "want IP:port",
		"tcp://192.0.2.1:80":  "want IP:port",
		"192.0.2.1:80,[::]:1": "want IP:port",
	} {
		a, err := lbcore.ParseAddr(in)
		if err == nil || a.IsValid() {
			t.Errorf("%q: got %v", in, a)
			continue
		}
		if !strings.Contains(err.Error(), why) || !strings.Contains(err.Error(), in) {
			t.Errorf("%q: the error %q does not name the address or %q", in, err, why)
		}
	}
}

func TestAddrIdentity(t *testing.T) {
	mapped := lbcore.IPAddr(netip.MustParseAddrPort("[::ffff:192.0.2.1]:80"))
	plain := lbcore.IPAddr(netip.MustParseAddrPort("192.0.2.1:80"))
	if mapped != plain || mapped.AddrPort() != netip.MustParseAddrPort("192.0.2.1:80") {
		t.Errorf("a mapped address is %v, not %v", mapped, plain)
	}
	if (lbcore.Addr{}).IsValid() || lbcore.UnixAddr("").IsValid() {
		t.Error("the zero Addr is valid")
	}
	if u := lbcore.UnixAddr("/x"); u.Path() != "/x" || u.AddrPort().IsValid() || plain.Path() != "" {
		t.Errorf("parts of %v and %v are wrong", u, plain)
	}
}

// addrs generates addresses that parse.
var addrs = rapid.Custom(func(t *rapid.T) lbcore.Addr {
	port := uint16(rapid.IntRange(1, 3).Draw(t, "port"))
	switch rapid.IntRange(0, 3).Draw(t, "kind") {
	case 0:
		return lbcore.UnixAddr("/" + rapid.StringMatching(`[a-c]{0,2}`).Draw(t, "path"))
	case 1:
		ip := netip.AddrFrom16([16]byte{0x20, 15: rapid.ByteRange(0, 3).Draw(t, "v6")})
		return lbcore.IPAddr(netip.AddrPortFrom(ip, port))
	case 2:
		ip := netip.AddrFrom16([16]byte{10: 0xff, 11: 0xff, 12: 10, 15: rapid.ByteRange(0, 3).Draw(t, "mapped")})
		return lbcore.IPAddr(netip.AddrPortFrom(ip, port))
	}
	ip := netip.AddrFrom4([4]byte{10, 0, 0, rapid.ByteRange(0, 3).Draw(t, "v4")})
	return lbcore.IPAddr(netip.AddrPortFrom(ip, port))
})

// rank orders addresses by an obvious model: kind, then address as a fixed
// length string, then port, or the path.
func rank(a lbcore.Addr) string {
	if a.Path() != "" {
		return "3" + a.Path()
	}
	ap := a.AddrPort()
	kind := "2"
	if ap.Addr().Is4() {
		kind = "1"
	}
	b := ap.Addr().As16()
	return kind + string(b[:]) + string([]byte{byte(ap.Port() >> 8), byte(ap.Port())})
}

func TestAddrOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := addrs.Draw(t, "a"), addrs.Draw(t, "b")
		if got, want := a.Compare(b), strings.Compare(rank(a), rank(b)); got != want {
			t.Fatalf("%v against %v: got %d, want %d", a, b, got, want)
		}
		if (a.Compare(b) == 0) != (a == b) {
			t.Fatalf("%v against %v: the order and == differ", a, b)
		}
		if back, err := lbcore.ParseAddr(a.String()); err != nil || back != a {
			t.Fatalf("%v read again: %v, %v", a, back, err)
		}
	})
	var in []lbcore.Addr
	for _, s := range []string{"9.0.0.0:1", "10.0.0.0:1", "10.0.0.0:2", "[::1]:1", "[::2]:1", "unix:///a", "unix:///b"} {
		a, err := lbcore.ParseAddr(s)
		if err != nil {
			t.Fatal(err)
		}
		in = append(in, a)
	}
	if !slices.IsSortedFunc(in, lbcore.Addr.Compare) {
		t.Errorf("%v is not in order", in)
	}
}

func FuzzParseAddr(f *testing.F) {
	for _, s := range []string{
		"192.0.2.1:80", "[2001:db8::1]:80", "unix:///run/x.sock", "unix:///\x00", "[fe80::1%eth0]:80",
		"[::ffff:1.2.3.4]:1", "[::ffff:1.2.3.4%z]:1", "0.0.0.0:0", "unix://unix:///x", "example.com:80", "[::]:65536",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		a, err := lbcore.ParseAddr(s)
		if err != nil {
			if a.IsValid() {
				t.Fatalf("%q: an error and an address: %v", s, a)
			}
			return
		}
		b, err := lbcore.ParseAddr(a.String())
		if err != nil || a != b || a.Compare(b) != 0 || a.String() != b.String() {
			t.Fatalf("%q: %v read again: %v, %v", s, a, b, err)
		}
		if _, _, err := lbcore.NewSet([]lbcore.Endpoint{{Addr: a, Weight: 1}}); err != nil {
			t.Fatalf("%q parses, but no set takes it: %v", s, err)
		}
		if ap := a.AddrPort(); a.Path() == "" && (ap.Port() == 0 || ap.Addr().Zone() != "" || ap.Addr().Is4In6()) {
			t.Fatalf("%q: %v", s, a)
		}
	})
}
