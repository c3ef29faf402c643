package xds

//lint:file-ignore SA1019 control planes send what is deprecated, too

import (
	"fmt"
	"math"
	"net/netip"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	rawbufferv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/raw_buffer/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"

	"gatehouse.internal/forwarder/filterchain"
	"gatehouse.internal/xds/internal/core"
)

// The names of the filters that are known by type.
const (
	tcpProxyType = "envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy"
	rbacType     = "envoy.extensions.filters.network.rbac.v3.RBAC"
)

// chainReader gathers what is found in a FilterChain.
type chainReader struct {
	*listenerReader
	c           FilterChain
	exchanges   []string // ALPN protocols that are not spoken; see passive
	unsupported []string
}

func (r *chainReader) refuse(format string, args ...any) {
	r.unsupported = append(r.unsupported, fmt.Sprintf(format, args...))
}

// sort is fields for a part of the chain.
func (r *chainReader) sort(refused []string) { r.unsupported = append(r.unsupported, refused...) }

// chain reads a filter chain, the path of which ends in a dot.
func (r *listenerReader) chain(m *listenerv3.FilterChain, path string) (FilterChain, error) {
	cr := &chainReader{listenerReader: r, c: FilterChain{Name: m.GetName()}, exchanges: exchanges(m.GetFilters())}
	var err error
	if cr.c.Match, err = readMatch(m.GetFilterChainMatch()); err != nil {
		return cr.c, fmt.Errorf("%sfilter_chain_match.%w", path, err)
	}
	if m.GetUseProxyProto().GetValue() {
		r.l.Proxy = true
	}
	if err := cr.transport(m, path); err != nil {
		return cr.c, err
	}
	if err := cr.networkFilters(m.GetFilters(), path); err != nil {
		return cr.c, err
	}
	cr.sort(r.fields(m, path, chainFields))
	if len(cr.unsupported) > 0 {
		cr.c.Unsupported = core.Clip(strings.Join(cr.unsupported, ", "))
		cr.c.TCPProxy, cr.c.RBAC, cr.c.TLS, cr.c.NoTLS, cr.c.tls = TCPProxy{}, nil, nil, "", nil
	}
	return cr.c, nil
}

// transport reads what the connections are secured by.
func (r *chainReader) transport(m *listenerv3.FilterChain, path string) error {
	if d := m.GetTransportSocketConnectTimeout(); d != nil && d.AsDuration() != 0 {
		timeout, err := positive(d)
		if err != nil {
			return fmt.Errorf("%stransport_socket_connect_timeout: %w", path, err)
		}
		r.c.HandshakeTimeout = timeout
	}
	ts := m.GetTransportSocket()
	switch typed := ts.GetTypedConfig(); {
	case ts == nil, typed.MessageIs(new(rawbufferv3.RawBuffer)), typed == nil && ts.GetName() == "envoy.transport_sockets.raw_buffer":
	case typed.MessageIs(new(tlsv3.DownstreamTlsContext)):
		var c tlsv3.DownstreamTlsContext
		if err := unmarshal(typed, &c, path+"transport_socket"); err != nil {
			return err
		}
		return r.tls(&c, path+"transport_socket.typed_config.")
	default:
		r.refuse("%stransport_socket %q", path, ts.GetName())
	}
	return nil
}

// networkFilters reads the filters, of which the last one must be a tcp_proxy.
func (r *chainReader) networkFilters(list []*listenerv3.Filter, path string) error {
	if len(list) == 0 {
		r.refuse("%sfilters: none", path)
		return nil
	}
	for i, f := range list {
		path := fmt.Sprintf("%sfilters[%d]", path, i)
		last := i == len(list)-1
		if f.GetName() == "" {
			return fmt.Errorf("%s.name: missing", path)
		}
		if f.GetConfigDiscovery() != nil {
			r.refuse("%s.config_discovery", path)
			continue
		}
		var err error
		switch typeName(f.GetTypedConfig()) {
		case tcpProxyType:
			if !last {
				return fmt.Errorf("%s: a tcp_proxy ends the filters, and others follow", path)
			}
			r.proxies = true
			err = r.tcpProxy(f.GetTypedConfig(), path)
		case rbacType:
			if last {
				return fmt.Errorf("%s: the last filter: want one that ends the filters, as tcp_proxy does", path)
			}
			err = r.rbac(f.GetTypedConfig(), path)
		default:
			switch _, ok := passive(f.GetTypedConfig()); {
			case !ok:
				r.refuse("%s %q", path, f.GetName())
			case last:
				return fmt.Errorf("%s: the last filter: want one that ends the filters, as tcp_proxy does", path)
			default:
				r.l.Ignored = append(r.l.Ignored, fmt.Sprintf("%s %q", path, f.GetName()))
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// readMatch reads which connections a chain is for. An error begins with the
// field's path.
func readMatch(m *listenerv3.FilterChainMatch) (out filterchain.Match, err error) {
	if p := m.GetDestinationPort(); p != nil {
		if p.GetValue() == 0 || p.GetValue() > math.MaxUint16 {
			return out, fmt.Errorf("destination_port: %d: want 1 to %d", p.GetValue(), math.MaxUint16)
		}
		out.DestinationPort = uint16(p.GetValue())
	}
	if m.GetAddressSuffix() != "" || m.GetSuffixLen() != nil {
		return out, fmt.Errorf("address_suffix: not implemented, by Envoy neither")
	}
	for _, list := range []struct {
		name string
		from []*corev3.CidrRange
		to   *[]netip.Prefix
	}{
		{"prefix_ranges", m.GetPrefixRanges(), &out.PrefixRanges},
		{"direct_source_prefix_ranges", m.GetDirectSourcePrefixRanges(), &out.DirectSourcePrefixRanges},
		{"source_prefix_ranges", m.GetSourcePrefixRanges(), &out.SourcePrefixRanges},
	} {
		for i, c := range list.from {
			p, err := readPrefix(c)
			if err != nil {
				return out, fmt.Errorf("%s[%d].%w", list.name, i, err)
			}
			*list.to = append(*list.to, p)
		}
	}
	for i, p := range m.GetSourcePorts() {
		if p == 0 || p > math.MaxUint16 {
			return out, fmt.Errorf("source_ports[%d]: %d: want 1 to %d", i, p, math.MaxUint16)
		}
		out.SourcePorts = append(out.SourcePorts, uint16(p))
	}
	switch t := m.GetSourceType(); t {
	case listenerv3.FilterChainMatch_ANY:
	case listenerv3.FilterChainMatch_SAME_IP_OR_LOOPBACK:
		out.SourceType = filterchain.SameIPOrLocal
	case listenerv3.FilterChainMatch_EXTERNAL:
		out.SourceType = filterchain.ExternalSource
	default:
		return out, fmt.Errorf("source_type: %d: not known", t)
	}
	out.ServerNames, out.ApplicationProtocols = m.GetServerNames(), m.GetApplicationProtocols()
	out.TransportProtocol = m.GetTransportProtocol()
	return out, nil
}

// readPrefix reads a CidrRange. An error begins with the field's name.
func readPrefix(c *corev3.CidrRange) (netip.Prefix, error) {
	ip, err := netip.ParseAddr(c.GetAddressPrefix())
	if err != nil || ip.Zone() != "" {
		return netip.Prefix{}, fmt.Errorf("address_prefix: %q: want an IP address", c.GetAddressPrefix())
	}
	if n := c.GetPrefixLen().GetValue(); n > uint32(ip.BitLen()) {
		return netip.Prefix{}, fmt.Errorf("prefix_len: %d: want at most %d", n, ip.BitLen())
	}
	p := netip.PrefixFrom(ip, int(c.GetPrefixLen().GetValue()))
	if ip.Is4In6() && p.Bits() >= 96 {
		p = netip.PrefixFrom(ip.Unmap(), p.Bits()-96)
	}
	return p.Masked(), nil
}
