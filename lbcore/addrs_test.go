package lbcore_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"pgregory.net/rapid"

	"gatehouse.internal/lbcore"
)

func TestAddrs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		list := rapid.SliceOfN(addrs, 0, 5)
		a, b := list.Draw(t, "a"), list.Draw(t, "b")
		x, y := lbcore.AddrsOf(a...), lbcore.AddrsOf(b...)
		if got := slices.Collect(x.All()); !slices.Equal(got, a) || x.Len() != len(a) {
			t.Fatalf("%v, want %v", got, a)
		}
		if (x == y) != slices.Equal(a, b) {
			t.Fatalf("%v equal to %v: %v", a, b, x == y)
		}
		for first := range x.All() {
			if first != a[0] {
				t.Fatalf("%v is not the first of %v", first, a)
			}
			break
		}
	})
}

// A node has tens of thousands of endpoints: what few have, as
// additional addresses and labels, takes them one word, and to look at those that there are allocates nothing.
func TestAddrsCost(t *testing.T) {
	if n := unsafe.Sizeof(lbcore.Endpoint{}); n > 200 {
		t.Errorf("an endpoint takes %d bytes", n)
	}
	if n := unsafe.Sizeof(lbcore.Member{}); n > 144 { // a size that Go's heap has
		t.Errorf("a member takes %d bytes", n)
	}
	list := lbcore.AddrsOf(ipAddr("192.0.2.1:80"), ipAddr("[2001:db8::1]:80"))
	if n := testing.AllocsPerRun(100, func() {
		for a := range list.All() {
			if !a.IsValid() {
				t.Error("an invalid address")
			}
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func ipAddr(s string) lbcore.Addr { return lbcore.IPAddr(netip.MustParseAddrPort(s)) }

// Additional addresses are no topology: a change of them is in force at once,
// and rebuilds nothing.
func TestAdditionalAddresses(t *testing.T) {
	e := lbcore.Endpoint{Addr: ipAddr("192.0.2.1:80"), Weight: 1}
	was := lbcore.MustSet(e)
	e.Additional = lbcore.AddrsOf(ipAddr("[2001:db8::1]:80"))
	is := lbcore.MustSet(e)
	if is.Equal(was) || !is.SameTopology(was) {
		t.Errorf("equal %v, same topology %v", is.Equal(was), is.SameTopology(was))
	}
	v := lbcore.NewView("v", new(lbcore.Hosts), lbcore.ViewConfig{})
	first, _ := v.Update(was)
	next, rebuild := v.Update(is)
	if rebuild || next.Generation != first.Generation {
		t.Error("a rebuild")
	}
	if got := v.Members()[0].Endpoint().Additional; got != e.Additional {
		t.Errorf("%v is in force", slices.Collect(got.All()))
	}
}

func TestAdditionalAddressesRefused(t *testing.T) {
	many := make([]lbcore.Addr, lbcore.MaxAdditional+1)
	for i := range many {
		many[i] = lbcore.IPAddr(netip.AddrPortFrom(netip.MustParseAddr("192.0.2.1"), uint16(i+1)))
	}
	good := ipAddr("192.0.2.9:80")
	for want, e := range map[string]lbcore.Endpoint{
		"16 additional addresses: want at most 15":  {Addr: good, Additional: lbcore.AddrsOf(many...)},
		"want an IP address":                        {Addr: good, Additional: lbcore.AddrsOf(lbcore.UnixAddr("/s"))},
		"port 0 can't be dialled":                   {Addr: good, Additional: lbcore.AddrsOf(lbcore.IPAddr(netip.AddrPortFrom(good.AddrPort().Addr(), 0)))},
		"a unix socket has no additional addresses": {Addr: lbcore.UnixAddr("/s"), Additional: lbcore.AddrsOf(good)},
		"no address": {Addr: good, Additional: lbcore.AddrsOf(lbcore.Addr{})},
		"an IPv6 zone has no meaning on another host": {Addr: good, Additional: lbcore.AddrsOf(ipAddr("[fe80::1%eth0]:80"))},
	} {
		if _, _, err := lbcore.NewSet([]lbcore.Endpoint{e}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %q", err, want)
		}
	}
	if _, _, err := lbcore.NewSet([]lbcore.Endpoint{{Addr: good, Additional: lbcore.AddrsOf(many[1:]...)}}); err != nil {
		t.Error(err)
	}
}
