package xds

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// Keepalive is how endpoints are found that are gone without a word.
// Source: envoy.config.core.v3.TcpKeepalive.
type Keepalive struct {
	Time     time.Duration // of silence until the first probe; 0: none is sent
	Interval time.Duration // between probes
	Probes   int           // without an answer end the connection; 0: the system's number
}

// bindFields tells what becomes of the fields of BindConfig.
var bindFields = map[string]use{
	"source_address": applied, "extra_source_addresses": applied,
	"freebind": refused, "socket_options": refused, "additional_source_addresses": refused, "local_address_selector": refused,
	"validate_network_namespaces": harmless, // there are none
}

// connectionFields tells what becomes of the fields of UpstreamConnectionOptions.
var connectionFields = map[string]use{
	"tcp_keepalive": applied, "happy_eyeballs_config": applied,
	"set_local_interface_name_on_upstream_connections": ignored,
}

// sockets reads how the sockets of the connections are set up.
func (r *clusterReader) sockets(m *clusterv3.Cluster) error {
	if b := m.GetUpstreamBindConfig(); b != nil {
		r.fields(b, "upstream_bind_config.", bindFields)
		if err := r.source(b.GetSourceAddress(), "upstream_bind_config.source_address"); err != nil {
			return err
		}
		for i, x := range b.GetExtraSourceAddresses() {
			path := fmt.Sprintf("upstream_bind_config.extra_source_addresses[%d]", i)
			if x.GetSocketOptions() != nil {
				r.refuse("%s.socket_options", path)
			}
			if err := r.source(x.GetAddress(), path+".address"); err != nil {
				return err
			}
		}
	}
	o := m.GetUpstreamConnectionOptions()
	if o == nil {
		return nil
	}
	r.fields(o, "upstream_connection_options.", connectionFields)
	if k := o.GetTcpKeepalive(); k != nil {
		r.c.Keepalive = readKeepalive(k)
	}
	if h := o.GetHappyEyeballsConfig(); h != nil {
		const path = "upstream_connection_options.happy_eyeballs_config."
		switch v := h.GetFirstAddressFamilyVersion(); v {
		case clusterv3.UpstreamConnectionOptions_DEFAULT:
		case clusterv3.UpstreamConnectionOptions_V4:
			r.c.FirstFamily = 4
		case clusterv3.UpstreamConnectionOptions_V6:
			r.c.FirstFamily = 6
		default:
			r.c.Ignored = append(r.c.Ignored, path+"first_address_family_version "+v.String())
		}
		if n := h.GetFirstAddressFamilyCount(); n != nil {
			if n.GetValue() == 0 {
				return fmt.Errorf("%sfirst_address_family_count: 0: want at least 1", path)
			}
			r.c.FirstFamilyCount = int(min(n.GetValue(), 1<<16))
		}
	}
	return nil
}

// source reads an address that connections come from.
func (r *clusterReader) source(a *corev3.SocketAddress, path string) error {
	if a == nil {
		return nil
	}
	ip, err := netip.ParseAddr(a.GetAddress())
	_, named := a.GetPortSpecifier().(*corev3.SocketAddress_NamedPort)
	ip = ip.Unmap()
	switch {
	case err != nil || ip.Zone() != "":
		return fmt.Errorf("%s.address: %q: want an IP address", path, a.GetAddress())
	case a.GetProtocol() != corev3.SocketAddress_TCP || a.GetNetworkNamespaceFilepath() != "":
		r.refuse("%s other than of TCP in the agent's own network namespace", path)
	case named || a.GetPortValue() != 0:
		r.refuse("%s with a port", path) // one connection at a time
	case ip.IsUnspecified():
	case slices.ContainsFunc(r.c.SourceAddress, func(have netip.Addr) bool { return have.Is4() == ip.Is4() }):
		r.refuse("%s: a second address of one family", path)
	default:
		r.c.SourceAddress = append(r.c.SourceAddress, ip)
	}
	return nil
}

// readKeepalive reads a TcpKeepalive. A field of 0 turns it off.
func readKeepalive(k *corev3.TcpKeepalive) *Keepalive {
	off := func(v *wrapperspb.UInt32Value) bool { return v != nil && v.GetValue() == 0 }
	if off(k.GetKeepaliveProbes()) || off(k.GetKeepaliveTime()) || off(k.GetKeepaliveInterval()) {
		return &Keepalive{Interval: defaultKeepaliveInterval}
	}
	seconds := func(v *wrapperspb.UInt32Value, def time.Duration) time.Duration {
		if v == nil {
			return def
		}
		return time.Duration(min(v.GetValue(), mostKeepalive)) * time.Second
	}
	return &Keepalive{
		Time:     seconds(k.GetKeepaliveTime(), defaultKeepaliveTime),
		Interval: seconds(k.GetKeepaliveInterval(), defaultKeepaliveInterval),
		Probes:   int(min(k.GetKeepaliveProbes().GetValue(), mostProbes)),
	}
}

// Linux's defaults, and the most that it takes.
const (
	defaultKeepaliveTime     = 2 * time.Hour
	defaultKeepaliveInterval = 75 * time.Second
	mostKeepalive            = 32767
	mostProbes               = 127
)
