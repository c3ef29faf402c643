package lbcore_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"gatehouse.internal/lbcore"
)

// endpoints generates endpoints of few addresses, so that some are the same.
var endpoints = rapid.Custom(func(t *rapid.T) lbcore.Endpoint {
	return lbcore.Endpoint{
		Addr:     addrs.Draw(t, "addr"),
		Weight:   rapid.Uint32Range(0, 3).Draw(t, "weight"),
		Priority: uint8(rapid.IntRange(0, 2).Draw(t, "priority")),
		Locality: lbcore.Locality{Zone: rapid.SampledFrom([]string{"", "a"}).Draw(t, "zone")},
		HashKey:  rapid.SampledFrom([]string{"", "k"}).Draw(t, "hash key"),
		Hostname: rapid.SampledFrom([]string{"", "h"}).Draw(t, "host"),
		Status:   lbcore.Status(rapid.IntRange(0, 6).Draw(t, "status")),
		Enabled:  lbcore.Override(rapid.IntRange(0, 2).Draw(t, "enabled")),
		Check:    lbcore.Check{Disabled: rapid.Bool().Draw(t, "unchecked")},
	}
})

func TestSetLaws(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := rapid.SliceOfN(endpoints, 0, 30).Draw(t, "in")
		given := slices.Clone(in)
		s, dropped, err := lbcore.NewSet(in)
		if err != nil {
			t.Fatal(err)
		}

		// The model: the first of each address, by address.
		model := make(map[lbcore.Addr]lbcore.Endpoint)
		var late []lbcore.Dropped
		for i, e := range in {
			if _, ok := model[e.Addr]; ok {
				late = append(late, lbcore.Dropped{Index: i, Endpoint: e})
			} else {
				model[e.Addr] = e
			}
		}
		slices.SortFunc(dropped, func(a, b lbcore.Dropped) int { return a.Index - b.Index })
		if !slices.Equal(dropped, late) {
			t.Fatalf("dropped %v, want %v", dropped, late)
		}
		if s.Len() != len(model) {
			t.Fatalf("%d endpoints, want %d", s.Len(), len(model))
		}
		for i, e := range s.All() {
			if e != model[e.Addr] || e != s.At(i) || s.Find(e.Addr) != i {
				t.Fatalf("at %d: %v, want %v", i, e, model[e.Addr])
			}
			if i > 0 && s.At(i-1).Addr.Compare(e.Addr) >= 0 {
				t.Fatalf("not in order at %d", i)
			}
		}
		if a := addrs.Draw(t, "other"); s.Find(a) < 0 {
			if _, ok := model[a]; ok {
				t.Fatalf("%v is not found", a)
			}
		}

		// The order of the input does not matter but for who is first.
		firsts := make([]lbcore.Endpoint, 0, len(model))
		for _, e := range model {
			firsts = append(firsts, e)
		}
		again, dropped, err := lbcore.NewSet(rapid.Permutation(firsts).Draw(t, "order"))
		if err != nil || len(dropped) > 0 || !again.Equal(s) || !s.Equal(again) || !again.SameTopology(s) {
			t.Fatalf("in another order: %v, %v, %v", again, dropped, err)
		}

		// A set is its own: it is not changed with what it was made of.
		if !slices.Equal(in, given) {
			t.Fatal("NewSet changed its argument")
		}
		for i := range in {
			in[i] = lbcore.Endpoint{}
		}
		if !again.Equal(s) {
			t.Fatal("a Set changed with NewSet's argument")
		}
	})
}

func TestSetEquality(t *testing.T) {
	base := lbcore.Endpoint{Addr: addr(1), Weight: 2, HashKey: "k", Hostname: "h"}
	for name, c := range map[string]struct {
		change   func(*lbcore.Endpoint)
		topology bool
	}{
		"addr":          {func(e *lbcore.Endpoint) { e.Addr = addr(2) }, true},
		"weight":        {func(e *lbcore.Endpoint) { e.Weight++ }, true},
		"weight 0":      {func(e *lbcore.Endpoint) { e.Weight = 0 }, true},
		"priority":      {func(e *lbcore.Endpoint) { e.Priority++ }, true},
		"locality":      {func(e *lbcore.Endpoint) { e.Locality.SubZone = "x" }, true},
		"hash key":      {func(e *lbcore.Endpoint) { e.HashKey = "" }, true},
		"hostname":      {func(e *lbcore.Endpoint) { e.Hostname = "" }, false},
		"status":        {func(e *lbcore.Endpoint) { e.Status = lbcore.StatusDraining }, false},
		"enabled":       {func(e *lbcore.Endpoint) { e.Enabled = lbcore.OverrideDisable }, false},
		"check addr":    {func(e *lbcore.Endpoint) { e.Check.Addr = addr(3) }, false},
		"check host":    {func(e *lbcore.Endpoint) { e.Check.Hostname = "y" }, false},
		"check enabled": {func(e *lbcore.Endpoint) { e.Check.Disabled = true }, false},
	} {
		was, is := lbcore.MustSet(base), lbcore.MustSet(with(base, c.change))
		if was.Equal(is) || is.Equal(was) {
			t.Errorf("%s: Equal does not see the change", name)
		}
		if was.SameTopology(is) == c.topology || is.SameTopology(was) == c.topology {
			t.Errorf("%s: SameTopology is wrong", name)
		}
		// A View must tell the same.
		v := lbcore.NewView("c", new(lbcore.Hosts), lbcore.ViewConfig{})
		v.Update(was)
		snap, topology := v.Update(is)
		if topology != c.topology || (snap.Generation == 2) != c.topology || !snap.Set.Equal(is) || v.Snapshot() != snap {
			t.Errorf("%s: a View goes to generation %d, topology %v", name, snap.Generation, topology)
		}
	}
	if !lbcore.MustSet().Equal(lbcore.Set{}) || !(lbcore.Set{}).SameTopology(lbcore.MustSet()) {
		t.Error("the zero Set is not the empty one")
	}
	if lbcore.MustSet(base).SameTopology(lbcore.Set{}) || (lbcore.Set{}).SameTopology(lbcore.MustSet(base)) {
		t.Error("an empty Set has the topology of one with an endpoint")
	}
}

func TestSetLimits(t *testing.T) {
	for name, c := range map[string]struct {
		e   lbcore.Endpoint
		why []string
	}{
		"no address": {lbcore.Endpoint{Weight: 1}, []string{"endpoint 1", "no address"}},
		"port 0": {lbcore.Endpoint{Addr: lbcore.IPAddr(netip.MustParseAddrPort("10.9.9.9:0"))},
			[]string{"endpoint 1", "10.9.9.9:0", "port 0"}},
		"zone": {lbcore.Endpoint{Addr: lbcore.IPAddr(netip.MustParseAddrPort("[fe80::1%lo]:1"))},
			[]string{"endpoint 1", "zone"}},
		"path": {lbcore.Endpoint{Addr: lbcore.UnixAddr("run/x.sock")}, []string{"endpoint 1", "absolute"}},
		"priority": {lbcore.Endpoint{Addr: addr(7), Priority: lbcore.MaxPriority + 1},
			[]string{"endpoint 1", addr(7).String(), "priority 129", "0 to 128"}},
	} {
		s, dropped, err := lbcore.NewSet([]lbcore.Endpoint{ep(1), c.e, ep(2)})
		if err == nil || s.Len() != 0 || dropped != nil {
			t.Errorf("%s: got %v, %v, %v", name, s, dropped, err)
			continue
		}
		for _, w := range c.why {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%s: the error %q does not say %q", name, err, w)
			}
		}
	}
	if _, _, err := lbcore.NewSet(make([]lbcore.Endpoint, lbcore.MaxEndpoints+1)); err == nil ||
		!strings.Contains(err.Error(), "1048577") {
		t.Errorf("too many endpoints: %v", err)
	}
	if s := lbcore.MustSet(with(ep(1), func(e *lbcore.Endpoint) { e.Priority = lbcore.MaxPriority; e.Weight = 1<<32 - 1 })); s.Len() != 1 {
		t.Error("the largest values are refused")
	}
	func() {
		defer func() {
			if x := recover(); x == nil || !strings.Contains(x.(string), addr(1).String()) {
				t.Errorf("MustSet with a duplicate: %v", x)
			}
		}()
		lbcore.MustSet(ep(1), ep(2), ep(1))
	}()
}

func TestStatus(t *testing.T) {
	for s := lbcore.StatusUnknown; s <= lbcore.StatusDegraded; s++ {
		for _, text := range []string{s.String(), strings.ToLower(s.String())} {
			if got, err := lbcore.ParseStatus(text); err != nil || got != s {
				t.Errorf("%s: %v, %v", text, got, err)
			}
		}
	}
	for _, bad := range []string{"", "healthy ", "HEALTH", "HEALTHYY", "Status(7)", "unknowｎ", "uNKNOWN\x00"} {
		if got, err := lbcore.ParseStatus(bad); err == nil || got != lbcore.StatusUnknown || !strings.Contains(err.Error(), "draining") {
			t.Errorf("%q: %v, %v", bad, got, err)
		}
	}
	if s := lbcore.Status(99).String(); s != "Status(99)" {
		t.Errorf("an unknown status is %q", s)
	}
	if lbcore.HealthHealthy.String() != "healthy" || lbcore.HealthUnhealthy.String() != "unhealthy" ||
		lbcore.HealthUnknown.String() != "unknown" || lbcore.Health(9).String() != "Health(9)" {
		t.Error("Health has other names")
	}
}

func FuzzParseStatus(f *testing.F) {
	for _, s := range []string{"UNKNOWN", "healthy", "Draining", "", "degraded ", "Status(7)"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got, err := lbcore.ParseStatus(s)
		named := len(s) == len(got.String()) && strings.EqualFold(s, got.String()) // no fold of another length
		if (err == nil) != named {
			t.Fatalf("%q: %v, %v", s, got, err)
		}
	})
}

func TestEndpointKey(t *testing.T) {
	e := ep(1)
	if e.Key() != "10.0.0.1:80" || string(e.AppendKey([]byte("x"))) != "x"+e.Key() {
		t.Errorf("the key is %q", e.Key())
	}
	e.HashKey = "node-1"
	if e.Key() != "node-1" || string(e.AppendKey([]byte("x"))) != "x"+e.Key() {
		t.Errorf("the key is %q", e.Key())
	}
	// xxHash64 and CRC-32 check values.
	k := lbcore.StringKey("abc")
	if k != lbcore.BytesKey([]byte("abc")) || k.Hash != 0x44bc2cf5ad770999 || k.CRC != 0x352441c2 || !k.Set {
		t.Errorf("the key of abc is %+v", k)
	}
	if k := lbcore.StringKey("Nobody inspects the spammish repetition"); k.Hash != 0xfbcea83c8a378bf1 {
		t.Errorf("xxHash64 is %x", k.Hash)
	}
}
