package xds

import (
	"net/netip"
	"reflect"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
)

func bind(b *corev3.BindConfig) mutate {
	return func(c *clusterv3.Cluster) { c.UpstreamBindConfig = b }
}

func source(ip string) *corev3.SocketAddress { return &corev3.SocketAddress{Address: ip} }

func options(o *clusterv3.UpstreamConnectionOptions) mutate {
	return func(c *clusterv3.Cluster) { c.UpstreamConnectionOptions = o }
}

func keepaliveOf(k *corev3.TcpKeepalive) mutate {
	return options(&clusterv3.UpstreamConnectionOptions{TcpKeepalive: k})
}

// How the sockets of a cluster are set up.
func TestDecodeClusterSockets(t *testing.T) {
	for _, tt := range []struct {
		name    string
		with    mutate
		want    Cluster // of which only these fields are looked at
		ignored []string
	}{
		{"nothing", func(*clusterv3.Cluster) {}, Cluster{}, nil},
		{"nothing in it", bind(&corev3.BindConfig{}), Cluster{}, nil},
		{"any source", bind(&corev3.BindConfig{SourceAddress: source("0.0.0.0"), ExtraSourceAddresses: []*corev3.ExtraSourceAddress{{Address: source("::")}}}), Cluster{}, nil},
		{"source", bind(&corev3.BindConfig{SourceAddress: source("::ffff:10.0.0.7")}), Cluster{SourceAddress: []netip.Addr{netip.MustParseAddr("10.0.0.7")}}, nil},
		{"sources", bind(&corev3.BindConfig{SourceAddress: source("2001:db8::7"), ExtraSourceAddresses: []*corev3.ExtraSourceAddress{{Address: source("10.0.0.7")}}}),
			Cluster{SourceAddress: []netip.Addr{netip.MustParseAddr("2001:db8::7"), netip.MustParseAddr("10.0.0.7")}}, nil},
		{"keepalive", keepaliveOf(&corev3.TcpKeepalive{}), Cluster{Keepalive: &Keepalive{Time: 2 * time.Hour, Interval: 75 * time.Second}}, nil},
		{"keepalive by number", keepaliveOf(&corev3.TcpKeepalive{KeepaliveProbes: u32(3), KeepaliveTime: u32(10), KeepaliveInterval: u32(5)}),
			Cluster{Keepalive: &Keepalive{Time: 10 * time.Second, Interval: 5 * time.Second, Probes: 3}}, nil},
		{"keepalive beyond what Linux takes", keepaliveOf(&corev3.TcpKeepalive{KeepaliveProbes: u32(300), KeepaliveTime: u32(1 << 31), KeepaliveInterval: u32(1 << 31)}),
			Cluster{Keepalive: &Keepalive{Time: 32767 * time.Second, Interval: 32767 * time.Second, Probes: 127}}, nil},
		{"keepalive off by probes", keepaliveOf(&corev3.TcpKeepalive{KeepaliveProbes: u32(0), KeepaliveTime: u32(1)}), Cluster{Keepalive: &Keepalive{Interval: 75 * time.Second}}, nil},
		{"keepalive off by time", keepaliveOf(&corev3.TcpKeepalive{KeepaliveTime: u32(0)}), Cluster{Keepalive: &Keepalive{Interval: 75 * time.Second}}, nil},
		{"families", options(&clusterv3.UpstreamConnectionOptions{HappyEyeballsConfig: &clusterv3.UpstreamConnectionOptions_HappyEyeballsConfig{
			FirstAddressFamilyVersion: clusterv3.UpstreamConnectionOptions_V6, FirstAddressFamilyCount: u32(2),
		}}), Cluster{FirstFamily: 6, FirstFamilyCount: 2}, nil},
		{"family", options(&clusterv3.UpstreamConnectionOptions{HappyEyeballsConfig: &clusterv3.UpstreamConnectionOptions_HappyEyeballsConfig{
			FirstAddressFamilyVersion: clusterv3.UpstreamConnectionOptions_V4,
		}}), Cluster{FirstFamily: 4}, nil},
		{"not applied", options(&clusterv3.UpstreamConnectionOptions{SetLocalInterfaceNameOnUpstreamConnections: true}), Cluster{},
			[]string{"upstream_connection_options.set_local_interface_name_on_upstream_connections"}},
	} {
		_, v, err := decodeCluster(marshal(t, edsCluster("web", tt.with)))
		if err != nil {
			t.Fatalf("%s: %v", tt.name, err)
		}
		c := v.(*Cluster)
		got := Cluster{SourceAddress: c.SourceAddress, Keepalive: c.Keepalive, FirstFamily: c.FirstFamily, FirstFamilyCount: c.FirstFamilyCount}
		if !reflect.DeepEqual(got, tt.want) || c.Unsupported != "" || !reflect.DeepEqual(c.Ignored, tt.ignored) {
			t.Errorf("%s: %+v, unsupported %q, ignored %q", tt.name, got, c.Unsupported, c.Ignored)
		}
	}
}
