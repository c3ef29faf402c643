package node

import (
	"log/slog"
	"net/netip"
	"testing"

	"gatehouse.internal/cmd/agent/internal/config"
	"gatehouse.internal/discovery"
	"gatehouse.internal/discovery/discoverytest"
	"gatehouse.internal/lbcore"
)

// The endpoints of a host are what is said of it, at the addresses that its name
// has; those of all hosts are one set, in which the first of an address counts.
func TestHosts(t *testing.T) {
	ip := func(s string) lbcore.Addr { return lbcore.IPAddr(netip.MustParseAddrPort(s)) }
	sources := map[string]lbcore.Set{
		"a.test": lbcore.MustSet(
			lbcore.Endpoint{Addr: ip("192.0.2.1:80"), Weight: 1, Hostname: "a.test", Additional: lbcore.AddrsOf(ip("192.0.2.7:80"))},
			lbcore.Endpoint{Addr: ip("[2001:db8::1]:80"), Weight: 1, Hostname: "a.test"}),
		"b.test": lbcore.MustSet(lbcore.Endpoint{Addr: ip("192.0.2.1:80"), Weight: 1}, lbcore.Endpoint{Addr: ip("192.0.2.2:80"), Weight: 1, Hostname: "b.test"}),
	}
	var asked []config.Discovery
	give := func(d config.Discovery, _ *slog.Logger, _ *discovery.Duplicates) (discovery.Source, error) {
		asked = append(asked, d)
		return discovery.Static(sources[d.HostName]), nil
	}
	zone := lbcore.Locality{Zone: "z"}
	src, err := hosts(give, config.Discovery{Kind: "dns", RecordType: "a", Hosts: []config.Host{
		{Name: "a.test", Port: 80, Endpoint: lbcore.Endpoint{Weight: 7, Priority: 1, Locality: zone, LocalityWeight: 2, HashKey: "k"}, CheckPort: 81},
		{Name: "b.test", Port: 80, Endpoint: lbcore.Endpoint{Weight: 3, Hostname: "other"}},
		{Name: "192.0.2.9", Port: 90, Endpoint: lbcore.Endpoint{Weight: 2}},
	}}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(asked) != 2 || asked[0].HostName != "a.test" || asked[0].Port != 80 || asked[0].Hosts != nil || asked[0].RecordType != "a" {
		t.Errorf("asked for %+v", asked)
	}
	latest, done := discovery.NewLatest(), make(chan struct{})
	ctx := t.Context()
	go func() { defer close(done); src.Watch(ctx, latest) }()
	t.Cleanup(func() { <-done })
	within(t, "all are known", func() bool { return latest.State().Known })
	a := lbcore.Endpoint{Weight: 7, Priority: 1, Locality: zone, LocalityWeight: 2, HashKey: "k", Hostname: "a.test"}
	first, second := a, a
	first.Addr, first.Additional, first.Check.Addr = ip("192.0.2.1:80"), lbcore.AddrsOf(ip("192.0.2.7:80")), ip("192.0.2.1:81")
	second.Addr, second.Check.Addr = ip("[2001:db8::1]:80"), ip("[2001:db8::1]:81")
	want := lbcore.MustSet(first, second, lbcore.Endpoint{Addr: ip("192.0.2.2:80"), Weight: 3, Hostname: "other"},
		lbcore.Endpoint{Addr: ip("192.0.2.9:90"), Weight: 2, Hostname: "192.0.2.9"})
	if got := latest.State().Set; !got.Equal(want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// resuming is a Source that is told what an earlier run knew.
type resuming struct {
	discovery.Source
	before *lbcore.Set
}

func (s resuming) Resume(set lbcore.Set) { *s.before = set }

// Each host begins with the endpoints that an earlier run had of it.
func TestHostsResume(t *testing.T) {
	ip := func(s string) lbcore.Addr { return lbcore.IPAddr(netip.MustParseAddrPort(s)) }
	before := make(map[string]*lbcore.Set)
	give := func(d config.Discovery, _ *slog.Logger, _ *discovery.Duplicates) (discovery.Source, error) {
		before[d.HostName] = new(lbcore.Set)
		return resuming{discovery.Static(lbcore.Set{}), before[d.HostName]}, nil
	}
	src, err := hosts(give, config.Discovery{Kind: "dns", RecordType: "a", Hosts: []config.Host{
		{Name: "a.test.", Port: 80, Endpoint: lbcore.Endpoint{Weight: 7}},
		{Name: "b.test.", Port: 80, Endpoint: lbcore.Endpoint{Weight: 3, Hostname: "other"}},
		{Name: "192.0.2.9", Port: 80, Endpoint: lbcore.Endpoint{Weight: 2}},
	}}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	ofA := lbcore.Endpoint{Addr: ip("192.0.2.1:80"), Weight: 7, Hostname: "a.test"}
	ofB := lbcore.Endpoint{Addr: ip("192.0.2.2:80"), Weight: 3, Hostname: "other"}
	gone := lbcore.Endpoint{Addr: ip("192.0.2.3:81"), Weight: 3, Hostname: "a.test"} // of another port
	r, ok := src.(discovery.Resumer)
	if !ok {
		t.Fatal("the source of hosts can't begin with what was known")
	}
	r.Resume(lbcore.MustSet(ofA, ofB, gone, lbcore.Endpoint{Addr: ip("192.0.2.9:80"), Weight: 2, Hostname: "192.0.2.9"}))
	for name, want := range map[string]lbcore.Endpoint{"a.test.": ofA, "b.test.": ofB} {
		if got := before[name]; !got.Equal(lbcore.MustSet(want)) {
			t.Errorf("%s begins with %+v, want %+v", name, got, want)
		}
	}
}

// The Source of hosts is as good as that of each.
func TestHostsConformance(t *testing.T) {
	discoverytest.Run(t, discoverytest.Harness{
		New: func(t *testing.T) (discovery.Source, discoverytest.World) {
			set := lbcore.MustSet(discoverytest.First()...)
			give := func(config.Discovery, *slog.Logger, *discovery.Duplicates) (discovery.Source, error) {
				return discovery.Static(set), nil
			}
			src, err := hosts(give, config.Discovery{Hosts: []config.Host{{Name: "a.test", Endpoint: lbcore.Endpoint{Weight: 1}}}}, nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			return src, discoverytest.World{}
		},
		Fixed: true,
	})
}
