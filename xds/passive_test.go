package xds

import (
	"slices"
	"strings"
	"testing"

	udpav1 "github.com/cncf/xds/go/udpa/type/v1"
	xdsv3 "github.com/cncf/xds/go/xds/type/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"

	"gatehouse.internal/internal/tlsconf/tlstest"
)

// istioFilters are the forms of Istio's filters, with the ALPN protocol that must not be
// agreed on, and whether they are known not to touch what passes.
func istioFilters() map[string]struct {
	config   *anypb.Any
	protocol string
	known    bool
} {
	const url = "type.googleapis.com/"
	text := func(s string) *structpb.Struct {
		return &structpb.Struct{Fields: map[string]*structpb.Value{"protocol": structpb.NewStringValue(s), "enable_discovery": structpb.NewBoolValue(true)}}
	}
	native := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), "istio-peer-exchange")
	native = protowire.AppendVarint(protowire.AppendTag(native, 2, protowire.VarintType), 1)
	return map[string]struct {
		config   *anypb.Any
		protocol string
		known    bool
	}{
		"stats":                     {packed(&udpav1.TypedStruct{TypeUrl: url + istioStatsType}), "", true},
		"stats, new":                {packed(&xdsv3.TypedStruct{TypeUrl: url + istioStatsType}), "", true},
		"stats, native":             {&anypb.Any{TypeUrl: url + istioStatsType}, "", true},
		"exchange":                  {packed(&udpav1.TypedStruct{TypeUrl: url + istioExchangeType, Value: text("istio-peer-exchange")}), "istio-peer-exchange", true},
		"exchange, new":             {packed(&xdsv3.TypedStruct{TypeUrl: url + istioExchangeType, Value: text("p")}), "p", true},
		"exchange, native":          {&anypb.Any{TypeUrl: url + istioExchangeType, Value: native}, "istio-peer-exchange", true},
		"exchange without protocol": {packed(&udpav1.TypedStruct{TypeUrl: url + istioExchangeType}), "", false},
		"exchange, damaged":         {&anypb.Any{TypeUrl: url + istioExchangeType, Value: native[:5]}, "", false},
		"struct, damaged":           {&anypb.Any{TypeUrl: url + "udpa.type.v1.TypedStruct", Value: []byte{10, 99}}, "", false},
		"another one":               {packed(&udpav1.TypedStruct{TypeUrl: url + "envoy.extensions.filters.network.wasm.v3.Wasm"}), "", false},
		"nothing":                   {nil, "", false},
	}
}

// Filters that leave alone what passes are named and run without; their ALPN protocol is
// neither offered nor chosen. Any other makes a chain, or a cluster, unsupported.
func TestPassiveFilters(t *testing.T) {
	ca := tlstest.NewCA(t, "ca")
	pair := ca.Issue(t, tlstest.Leaf{})
	offered := []string{"istio-peer-exchange", "istio"}
	for name, tt := range istioFilters() {
		t.Run(name, func(t *testing.T) {
			protocol, ok := passive(tt.config)
			if ok != tt.known || ok && protocol != tt.protocol {
				t.Fatalf("protocol %q, %t", protocol, ok)
			}
			want := slices.DeleteFunc(slices.Clone(offered), func(s string) bool { return s == protocol })
			const filterName = "istio.filter"

			upstream := upstreamTLS(ca, pair)
			upstream.CommonTlsContext.AlpnProtocols = offered
			c := decodedTransport(t, over(t, upstream), func(c *clusterv3.Cluster) {
				c.Filters = []*clusterv3.Filter{{Name: filterName, TypedConfig: tt.config}}
			})
			switch {
			case !tt.known:
				if c.Unsupported != `filters[0] "istio.filter"` {
					t.Errorf("the cluster is unsupported for %q", c.Unsupported)
				}
			case c.Unsupported != "" || !slices.Equal(c.Transport.TLS.ALPN, want) || !slices.Contains(c.Ignored, `filters[0] "istio.filter"`):
				t.Errorf("the cluster is unsupported for %q, offers %q, ignores %q", c.Unsupported, c.Transport.TLS.ALPN, c.Ignored)
			}

			down := downstreamTLS(ca, pair)
			down.CommonTlsContext.AlpnProtocols = offered
			passes := &listenerv3.Filter{Name: filterName, ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: tt.config}}
			l := tcpListener(t, "l", func(l *listenerv3.Listener) {
				l.FilterChains[0].TransportSocket = socketOf(t, down)
				l.FilterChains[0].Filters = append([]*listenerv3.Filter{passes}, l.FilterChains[0].Filters...)
			})
			_, v, err := decodeListener(marshal(t, l))
			if err != nil {
				t.Fatal(err)
			}
			chain := v.(*Listener).Chains[0]
			switch {
			case !tt.known:
				if !strings.Contains(chain.Unsupported, `filters[0] "istio.filter"`) {
					t.Errorf("the chain is unsupported for %q", chain.Unsupported)
				}
				return
			case chain.Unsupported != "" || chain.TLS == nil || !slices.Equal(chain.TLS.ALPN, want) || !chain.TLS.AnyALPN:
				t.Errorf("the chain is unsupported for %q, has %+v", chain.Unsupported, chain.TLS)
			}
			if ignored := v.(*Listener).Ignored; !slices.Contains(ignored, `filter_chains[0].filters[0] "istio.filter"`) {
				t.Errorf("ignored: %q", ignored)
			}
			l.FilterChains[0].Filters = l.FilterChains[0].Filters[:1]
			if _, _, err := decodeListener(marshal(t, l)); err == nil || !strings.Contains(err.Error(), "the last filter") {
				t.Errorf("as the last filter: %v", err)
			}
		})
	}
}
