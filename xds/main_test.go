package xds

import (
	"testing"

	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func marshal(t testing.TB, m proto.Message) []byte {
	t.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func u32(n uint32) *wrapperspb.UInt32Value { return wrapperspb.UInt32(n) }
func u64(n uint64) *wrapperspb.UInt64Value { return wrapperspb.UInt64(n) }

func socket(ip string, port uint32) *corev3.Address {
	return &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address: ip, PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: port},
	}}}
}

func pipe(path string) *corev3.Address {
	return &corev3.Address{Address: &corev3.Address_Pipe{Pipe: &corev3.Pipe{Path: path}}}
}

func internalAddress() *corev3.Address {
	return &corev3.Address{Address: &corev3.Address_EnvoyInternalAddress{EnvoyInternalAddress: &corev3.EnvoyInternalAddress{}}}
}

// lb returns an endpoint at addr, changed by the funcs.
func lb(addr *corev3.Address, with ...func(*endpointv3.LbEndpoint)) *endpointv3.LbEndpoint {
	e := &endpointv3.LbEndpoint{HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{Address: addr}}}
	for _, f := range with {
		f(e)
	}
	return e
}

func weight(n uint32) func(*endpointv3.LbEndpoint) {
	return func(e *endpointv3.LbEndpoint) { e.LoadBalancingWeight = u32(n) }
}

func locality(priority uint32, eps ...*endpointv3.LbEndpoint) *endpointv3.LocalityLbEndpoints {
	return &endpointv3.LocalityLbEndpoints{Priority: priority, LbEndpoints: eps}
}

func cla(name string, localities ...*endpointv3.LocalityLbEndpoints) *endpointv3.ClusterLoadAssignment {
	return &endpointv3.ClusterLoadAssignment{ClusterName: name, Endpoints: localities}
}
