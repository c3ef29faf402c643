package discovery

import (
	"fmt"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"gatehouse.internal/lbcore"
)

func drawEndpoint(t *rapid.T, n int) lbcore.Endpoint {
	text := func(what string) string { return rapid.StringN(0, 5, -1).Draw(t, what) }
	addr := func() lbcore.Addr {
		ip := netip.AddrFrom4([4]byte{10, 0, byte(n >> 8), byte(n)})
		if rapid.Bool().Draw(t, "v6") {
			ip = netip.AddrFrom16([16]byte{0x20, 1, 15: byte(n)})
		}
		return lbcore.IPAddr(netip.AddrPortFrom(ip, rapid.Uint16Range(1, 65535).Draw(t, "port")))
	}
	e := lbcore.Endpoint{
		Addr: addr(), Weight: rapid.Uint32().Draw(t, "weight"), LocalityWeight: rapid.Uint32().Draw(t, "locality weight"),
		Priority: rapid.Uint8Range(0, lbcore.MaxPriority).Draw(t, "priority"),
		Status:   lbcore.Status(rapid.Uint8Range(0, uint8(lbcore.StatusDegraded)).Draw(t, "status")),
		Enabled:  lbcore.Override(rapid.Uint8Range(0, uint8(lbcore.OverrideDisable)).Draw(t, "enabled")),
		Locality: lbcore.Locality{Region: text("region"), Zone: text("zone"), SubZone: text("sub zone")},
		HashKey:  text("hash key"), Hostname: text("hostname"),
		Check: lbcore.Check{Hostname: text("check hostname"), Disabled: rapid.Bool().Draw(t, "unchecked")},
	}
	if rapid.Bool().Draw(t, "check elsewhere") {
		e.Check.Addr = addr()
	}
	var more []lbcore.Addr
	for range rapid.IntRange(0, 3).Draw(t, "more addresses") {
		more = append(more, addr())
	}
	e.Additional = lbcore.AddrsOf(more...)
	if rapid.IntRange(0, 9).Draw(t, "socket") == 0 {
		e.Addr, e.Additional = lbcore.UnixAddr(fmt.Sprint("/run/", n)), lbcore.Addrs{}
	}
	return e
}

// Whatever a set has comes back.
func TestSetsOnDisk(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var eps []lbcore.Endpoint
		for n := range rapid.IntRange(0, 20).Draw(t, "endpoints") {
			eps = append(eps, drawEndpoint(t, n))
		}
		set, _, err := lbcore.NewSet(eps)
		if err != nil {
			t.Fatal(err)
		}
		set = set.WithPolicy(lbcore.SetPolicy{Overprovisioning: rapid.Uint32().Draw(t, "factor"), WeightedHealth: rapid.Bool().Draw(t, "weighted"),
			Drops: lbcore.DropsOf(rapid.SliceOfN(rapid.Custom(func(t *rapid.T) lbcore.Drop {
				return lbcore.Drop{Category: rapid.String().Draw(t, "category"), PerMillion: rapid.Uint32Max(1_000_000).Draw(t, "per million")}
			}), 0, 3).Draw(t, "drops")...)})
		b, err := encodeSet(set)
		if err != nil {
			t.Fatal(err)
		}
		got, err := decodeSet(b)
		if err != nil || !got.Equal(set) {
			t.Fatalf("%v\n%s\ngot  %+v\nwant %+v", err, b, got, set)
		}
	})
}

// Who gives an endpoint or a set another field decides how it is kept. TransportMatch is
// not: only EDS says it, whose resources are kept as they came, by its client.
func TestSetsOnDiskHaveAll(t *testing.T) {
	for typ, want := range map[reflect.Type]int{
		reflect.TypeFor[lbcore.Endpoint](): 12, reflect.TypeFor[lbcore.SetPolicy](): 3, reflect.TypeFor[lbcore.Drop](): 2,
		reflect.TypeFor[lbcore.Check](): 3, reflect.TypeFor[lbcore.Locality](): 3,
	} {
		if got := typ.NumField(); got != want {
			t.Errorf("%s has %d fields, not %d: put the new ones into keptSet and drawEndpoint, or say there why not", typ, got, want)
		}
	}
}

// What says nothing of endpoints is not taken for the word that there are none.
func TestDecodeSetOfNothing(t *testing.T) {
	for _, text := range []string{`null`, `{}`, `{"endpoints":null}`, `{"overprovisioning_factor":140}`} {
		if set, err := decodeSet([]byte(text)); err == nil || !strings.Contains(err.Error(), "no list of endpoints") {
			t.Errorf("%s: %d endpoints, %v", text, set.Len(), err)
		}
	}
	b, err := encodeSet(lbcore.Set{})
	if err != nil {
		t.Fatal(err)
	}
	if set, err := decodeSet(b); err != nil || set.Len() != 0 {
		t.Errorf("%s: %d endpoints, %v", b, set.Len(), err)
	}
}

func FuzzDecodeSet(f *testing.F) {
	set := lbcore.MustSet(lbcore.Endpoint{
		Addr: lbcore.IPAddr(netip.MustParseAddrPort("10.0.0.1:80")), Weight: 1, Status: lbcore.StatusDraining, Enabled: lbcore.OverrideDisable,
		Additional: lbcore.AddrsOf(lbcore.IPAddr(netip.MustParseAddrPort("[2001:db8::1]:80"))), Check: lbcore.Check{Disabled: true},
	})
	b, err := encodeSet(set.WithPolicy(lbcore.SetPolicy{Overprovisioning: 150}))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	for _, s := range []string{
		``, `{}`, `{"endpoints":[]}`, `{"endpoints":null}{}`, `{"endpoints":[{"address":"10.0.0.1:0"}]}`, `{"sets":1}`,
		`{"endpoints":[{"address":"10.0.0.1:1"},{"address":"10.0.0.1:1"}]}`, `{"endpoints":[{"address":"10.0.0.1:1","priority":200}]}`,
		`{"endpoints":[{"address":"unix:///x","additional_addresses":["10.0.0.1:1"]}]}`, `{"endpoints":[{"address":"10.0.0.1:1","health_status":"SICK"}]}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		set, err := decodeSet(b)
		if err != nil {
			return
		}
		again, err := encodeSet(set)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := decodeSet(again); err != nil || !got.Equal(set) {
			t.Fatalf("%v: %s became %s", err, b, again)
		}
	})
}
