package node

import (
	"cmp"
	"context"
	"log/slog"
	"net/netip"
	"strings"

	"gatehouse.internal/cmd/agent/internal/config"
	"gatehouse.internal/discovery"
	"gatehouse.internal/lbcore"
)

// give returns the source of a discovery block; see Config.DNS.
type give = func(d config.Discovery, log *slog.Logger, dups *discovery.Duplicates) (discovery.Source, error)

// hosts returns the source of a discovery "dns" with Hosts: the endpoints of all
// of them, each with what is said of its host.
func hosts(give give, d config.Discovery, log *slog.Logger, dups *discovery.Duplicates) (discovery.Source, error) {
	var all []discovery.Source
	for _, h := range d.Hosts {
		if ip, err := netip.ParseAddr(h.Name); err == nil {
			e := attributed(&h, lbcore.Endpoint{Addr: lbcore.IPAddr(netip.AddrPortFrom(ip, h.Port))})
			set, _, err := lbcore.NewSet([]lbcore.Endpoint{e})
			if err != nil {
				return nil, err
			}
			all = append(all, discovery.Static(set))
			continue
		}
		one := d
		one.Hosts, one.HostName, one.Port = nil, h.Name, int(h.Port)
		src, err := give(one, log, dups)
		if err != nil {
			return nil, err
		}
		all = append(all, hosted{src, h})
	}
	return discovery.Merged(all...), nil
}

// hosted is the Source of a host's endpoints.
type hosted struct {
	discovery.Source
	host config.Host
}

// Watch implements discovery.Source.
func (h hosted) Watch(ctx context.Context, sink discovery.Sink) error {
	return h.Source.Watch(ctx, hostedSink{sink, &h.host})
}

// Resume implements discovery.Resumer: of set, which is that of all hosts, the host's
// are those with its port and host name.
func (h hosted) Resume(set lbcore.Set) {
	r, ok := h.Source.(discovery.Resumer)
	if !ok {
		return
	}
	var own []lbcore.Endpoint
	for _, e := range set.All() {
		if e.Addr.AddrPort().Port() == h.host.Port && e.Hostname == cmp.Or(h.host.Endpoint.Hostname, strings.TrimSuffix(h.host.Name, ".")) {
			own = append(own, e)
		}
	}
	r.Resume(lbcore.MustSet(own...)) // of the addresses of a set
}

// Refresh implements discovery.Refresher.
func (h hosted) Refresh() {
	if r, ok := h.Source.(discovery.Refresher); ok {
		r.Refresh()
	}
}

type hostedSink struct {
	discovery.Sink
	host *config.Host
}

// Replace implements discovery.Sink.
func (s hostedSink) Replace(set lbcore.Set) {
	eps := make([]lbcore.Endpoint, 0, set.Len())
	for _, e := range set.All() {
		eps = append(eps, attributed(s.host, e))
	}
	s.Sink.Replace(lbcore.MustSet(eps...)) // of the addresses of a set
}

// attributed returns the endpoint that h says of the address of e.
func attributed(h *config.Host, e lbcore.Endpoint) lbcore.Endpoint {
	out := h.Endpoint
	out.Addr, out.Additional = e.Addr, e.Additional
	out.Hostname = cmp.Or(h.Endpoint.Hostname, e.Hostname, h.Name)
	if h.CheckPort != 0 {
		out.Check.Addr = lbcore.IPAddr(netip.AddrPortFrom(e.Addr.AddrPort().Addr(), h.CheckPort))
	}
	return out
}
