package node

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"

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
	give := func(d config.Discovery) (discovery.Source, error) {
		asked = append(asked, d)
		return discovery.Static(sources[d.HostName]), nil
	}
	zone := lbcore.Locality{Zone: "z"}
	src, err := hosts(give, config.Discovery{Kind: "dns", RecordType: "a", Hosts: []config.Host{
		{Name: "a.test", Port: 80, Endpoint: lbcore.Endpoint{Weight: 7, Priority: 1, Locality: zone, LocalityWeight: 2, HashKey: "k"}, CheckPort: 81},
		{Name: "b.test", Port: 80, Endpoint: lbcore.Endpoint{Weight: 3, Hostname: "other"}},
		{Name: "192.0.2.9", Port: 90, Endpoint: lbcore.Endpoint{Weight: 2}},
	}})
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

// After a restart the host whose name can't be resolved has what it had before, also
// where that of another one has changed.
func TestHostsRestart(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	a, b, c := endpoint("192.0.2.1:80"), endpoint("192.0.2.2:80"), endpoint("192.0.2.3:80")
	host := func(name string) config.Host {
		return config.Host{Name: name, Port: 80, Endpoint: lbcore.Endpoint{Weight: 1}}
	}
	cfg := clusterOf("web", config.Discovery{Kind: config.DiscoveryDNS, RecordType: "a", Hosts: []config.Host{host("a.test"), host("b.test")}})
	for _, life := range []struct {
		answers map[string]discovery.Source
		want    []lbcore.Addr
	}{
		{map[string]discovery.Source{"a.test": discovery.Static(lbcore.MustSet(a)), "b.test": discovery.Static(lbcore.MustSet(b))}, []lbcore.Addr{a.Addr, b.Addr}},
		{map[string]discovery.Source{"a.test": fails{}, "b.test": discovery.Static(lbcore.MustSet(c))}, []lbcore.Addr{a.Addr, c.Addr}},
		{map[string]discovery.Source{"a.test": fails{}, "b.test": fails{}}, []lbcore.Addr{a.Addr, c.Addr}},
	} {
		synctest.Test(t, func(t *testing.T) {
			change, end := keeps(t, dir)
			r := start(t, change, func(c *Config) {
				c.DNS = func(d config.Discovery, _ *slog.Logger, _ *discovery.Duplicates) (discovery.Source, error) {
					return life.answers[d.HostName], nil
				}
			})
			r.apply(Spec{Clusters: []config.Cluster{cfg}})
			synctest.Wait()
			var got []lbcore.Addr
			for _, e := range r.cluster("web").Endpoints {
				got = append(got, e.Addr)
			}
			if !slices.Equal(got, life.want) {
				t.Errorf("the endpoints are %v, want %v", got, life.want)
			}
			end()
		})
	}
}

// fails is a Source that has no answer.
type fails struct{}

// Watch implements discovery.Source.
func (fails) Watch(ctx context.Context, sink discovery.Sink) error {
	sink.Fail(errors.New("no answer"))
	<-ctx.Done()
	return ctx.Err()
}

// The Source of hosts is as good as that of each.
func TestHostsConformance(t *testing.T) {
	discoverytest.Run(t, discoverytest.Harness{
		New: func(t *testing.T) (discovery.Source, discoverytest.World) {
			set := lbcore.MustSet(discoverytest.First()...)
			give := func(config.Discovery) (discovery.Source, error) {
				return discovery.Static(set), nil
			}
			src, err := hosts(give, config.Discovery{Hosts: []config.Host{{Name: "a.test", Endpoint: lbcore.Endpoint{Weight: 1}}}})
			if err != nil {
				t.Fatal(err)
			}
			return src, discoverytest.World{}
		},
		Fixed: true,
	})
}
