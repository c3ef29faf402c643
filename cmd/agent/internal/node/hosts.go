package node

import (
	"cmp"
	"context"
	"net/netip"

	"gatehouse.internal/cmd/agent/internal/config"
	"gatehouse.internal/discovery"
	"gatehouse.internal/lbcore"
)

// hosts returns the source of a discovery "dns" with Hosts: the endpoints of all
// of them, each with what is said of its host. Give returns the source of one name.
func hosts(give func(config.Discovery) (discovery.Source, error), d config.Discovery) (discovery.Source, error) {
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
		src, err := give(one)
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
