package xds

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/protobuf/types/known/structpb"

	"gatehouse.internal/lbcore"
)

func addr(s string) lbcore.Addr { return lbcore.IPAddr(netip.MustParseAddrPort(s)) }

// endpoints returns the set's endpoints in order.
func endpoints(s lbcore.Set) (out []lbcore.Endpoint) {
	for _, e := range s.All() {
		out = append(out, e)
	}
	return out
}

func additional(list ...*corev3.Address) func(*endpointv3.LbEndpoint) {
	return func(e *endpointv3.LbEndpoint) {
		for _, a := range list {
			e.GetEndpoint().AdditionalAddresses = append(e.GetEndpoint().AdditionalAddresses, &endpointv3.Endpoint_AdditionalAddress{Address: a})
		}
	}
}

func manyAddresses(n int) (list []*corev3.Address) {
	for i := range n {
		list = append(list, socket("2001:db8::1", uint32(i+1)))
	}
	return list
}

func manyAddrs(n int) lbcore.Addrs {
	var list []lbcore.Addr
	for i := range n {
		list = append(list, lbcore.IPAddr(netip.AddrPortFrom(netip.MustParseAddr("2001:db8::1"), uint16(i+1))))
	}
	return lbcore.AddrsOf(list...)
}

var compareAddr = cmp.Options{
	cmp.Comparer(func(a, b lbcore.Addr) bool { return a == b }),
	cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
	cmpopts.IgnoreUnexported(TransportSocket{}),
}

func TestDecodeAssignment(t *testing.T) {
	hashKey := func(v *structpb.Value) func(*endpointv3.LbEndpoint) {
		return func(e *endpointv3.LbEndpoint) {
			e.Metadata = &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{
				"envoy.lb": {Fields: map[string]*structpb.Value{"hash_key": v}},
			}}
		}
	}
	status := func(s corev3.HealthStatus) func(*endpointv3.LbEndpoint) {
		return func(e *endpointv3.LbEndpoint) { e.HealthStatus = s }
	}
	check := func(c *endpointv3.Endpoint_HealthCheckConfig) func(*endpointv3.LbEndpoint) {
		return func(e *endpointv3.LbEndpoint) { e.GetEndpoint().HealthCheckConfig = c }
	}
	hostname := func(e *endpointv3.LbEndpoint) { e.GetEndpoint().Hostname = "300.0.0.1" }
	a80, b80 := addr("10.0.0.1:80"), addr("10.0.0.2:80")
	one := func(e lbcore.Endpoint) []lbcore.Endpoint {
		if !e.Addr.IsValid() {
			e.Addr = a80
		}
		if e.Weight == 0 {
			e.Weight = 1
		}
		return []lbcore.Endpoint{e}
	}
	named := socket("10.0.0.9", 0)
	named.GetSocketAddress().PortSpecifier = &corev3.SocketAddress_NamedPort{NamedPort: "http"}
	udp := socket("10.0.0.9", 53)
	udp.GetSocketAddress().Protocol = corev3.SocketAddress_UDP
	netns := socket("10.0.0.9", 53)
	netns.GetSocketAddress().NetworkNamespaceFilepath = "/run/netns/x"

	for _, tt := range []struct {
		name  string
		in    *endpointv3.ClusterLoadAssignment
		want  []lbcore.Endpoint
		notes []string
		left  int
		dup   int
	}{
		{name: "empty", in: cla("web")},
		{name: "empty locality", in: cla("web", locality(0))},
		{name: "bug 18: weight unset is 1", in: cla("web", locality(0, lb(socket("10.0.0.1", 80)))), want: one(lbcore.Endpoint{})},
		{name: "weight", in: cla("web", locality(0, lb(socket("10.0.0.1", 80), weight(7)))), want: one(lbcore.Endpoint{Weight: 7})},
		{name: "IPv6", in: cla("web", locality(0, lb(socket("2001:db8::1", 80)))), want: one(lbcore.Endpoint{Addr: addr("[2001:db8::1]:80")})},
		{name: "mapped", in: cla("web", locality(0, lb(socket("::ffff:10.0.0.1", 80)))), want: one(lbcore.Endpoint{})},
		{name: "pipe", in: cla("web", locality(0, lb(pipe("/run/x.sock")))), want: one(lbcore.Endpoint{Addr: lbcore.UnixAddr("/run/x.sock")})},
		{name: "priority gap", in: cla("web", locality(2, lb(socket("10.0.0.2", 80))), locality(0, lb(socket("10.0.0.1", 80)))),
			want: []lbcore.Endpoint{{Addr: a80, Weight: 1}, {Addr: b80, Weight: 1, Priority: 2}}},
		{name: "lowest priority", in: cla("web", locality(128, lb(socket("10.0.0.1", 80)))), want: one(lbcore.Endpoint{Priority: 128})},
		{name: "locality", in: cla("web", &endpointv3.LocalityLbEndpoints{
			Locality:    &corev3.Locality{Region: "eu", Zone: "eu-1", SubZone: "a"},
			LbEndpoints: []*endpointv3.LbEndpoint{lb(socket("10.0.0.1", 80))},
		}), want: one(lbcore.Endpoint{Locality: lbcore.Locality{Region: "eu", Zone: "eu-1", SubZone: "a"}})},
		{name: "hash key", in: cla("web", locality(0, lb(socket("10.0.0.1", 80), hashKey(structpb.NewStringValue("k"))))), want: one(lbcore.Endpoint{HashKey: "k"})},
		{name: "hash key of another kind", in: cla("web", locality(0, lb(socket("10.0.0.1", 80), hashKey(structpb.NewNumberValue(1))))), want: one(lbcore.Endpoint{})},
		{name: "hostname", in: cla("web", locality(0, lb(socket("10.0.0.1", 80), hostname))), want: one(lbcore.Endpoint{Hostname: "300.0.0.1"})},
		{name: "healthy", in: cla("web", locality(0, lb(socket("10.0.0.1", 80), status(corev3.HealthStatus_HEALTHY)))), want: one(lbcore.Endpoint{Status: lbcore.StatusHealthy})},
		{name: "unhealthy", in: cla("web", locality(0, lb(socket("10.0.0.1", 80), status(corev3.HealthStatus_UNHEALTHY)))), want: one(lbcore.Endpoint{Status: lbcore.StatusUnhealthy})},
		{name: "draining", in: cla("web", locality(0, lb(socket("10.0.0.1", 80), status(corev3.HealthStatus_DRAINING)))), want: one(lbcore.Endpoint{Status: lbcore.StatusDraining})},
		{name: "timeout", in: cla("web", locality(0, lb(socket("10.0.0.1", 80), status(corev3.HealthStatus_TIMEOUT)))), want: one(lbcore.Endpoint{Status: lbcore.StatusTimeout})},
		{name: "degraded", in: cla("web", locality(0, lb(socket("10.0.0.1", 80), status(corev3.HealthStatus_DEGRADED)))), want: one(lbcore.Endpoint{Status: lbcore.StatusDegraded})},
		{name: "unknown status takes no traffic", in: cla("web", locality(0, lb(socket("10.0.0.1", 80), status(99)))), want: one(lbcore.Endpoint{Status: lbcore.StatusUnhealthy})},
		{name: "check port", in: cla("web", locality(0, lb(socket("10.0.0.1", 80), check(&endpointv3.Endpoint_HealthCheckConfig{PortValue: 81, Hostname: "h"})))),
			want: one(lbcore.Endpoint{Check: lbcore.Check{Addr: addr("10.0.0.1:81"), Hostname: "h"}})},
		{name: "check address", in: cla("web", locality(0, lb(socket("10.0.0.1", 80), check(&endpointv3.Endpoint_HealthCheckConfig{Address: socket("10.0.0.8", 0)})))),
			want: one(lbcore.Endpoint{Check: lbcore.Check{Addr: addr("10.0.0.8:80")}})},
		{name: "check address and port", in: cla("web", locality(0, lb(socket("10.0.0.1", 80), check(&endpointv3.Endpoint_HealthCheckConfig{Address: socket("10.0.0.8", 9), PortValue: 10})))),
			want: one(lbcore.Endpoint{Check: lbcore.Check{Addr: addr("10.0.0.8:10")}})},
		{name: "check at the endpoint itself", in: cla("web", locality(0, lb(socket("10.0.0.1", 80), check(&endpointv3.Endpoint_HealthCheckConfig{PortValue: 80})))),
			want: one(lbcore.Endpoint{})},
		{name: "check disabled", in: cla("web", locality(0, lb(socket("10.0.0.1", 80), check(&endpointv3.Endpoint_HealthCheckConfig{DisableActiveHealthCheck: true})))),
			want: one(lbcore.Endpoint{Check: lbcore.Check{Disabled: true}})},
		{name: "locality weights don't matter", in: cla("web", &endpointv3.LocalityLbEndpoints{
			LoadBalancingWeight: u32(0), LbEndpoints: []*endpointv3.LbEndpoint{lb(socket("10.0.0.1", 80))},
		}), want: one(lbcore.Endpoint{})},
		{name: "weights up to the limit", in: cla("web", locality(0, lb(socket("10.0.0.1", 80), weight(1<<32-2)), lb(socket("10.0.0.2", 80)))),
			want: []lbcore.Endpoint{{Addr: a80, Weight: 1<<32 - 2}, {Addr: b80, Weight: 1}}},
		{name: "bug 16: duplicate keeps the first", in: cla("web", locality(0, lb(socket("10.0.0.1", 80), weight(5))), locality(1, lb(socket("10.0.0.1", 80), weight(6)))),
			want: one(lbcore.Endpoint{Weight: 5}), dup: 1},
		{name: "left out", in: cla("web", locality(0, lb(internalAddress()), lb(named), lb(udp), lb(netns), lb(pipe("@abstract")), lb(socket("10.0.0.1", 80)),
			&endpointv3.LbEndpoint{HostIdentifier: &endpointv3.LbEndpoint_EndpointName{EndpointName: "n"}}, lb(socket("db.internal", 80)))),
			want: one(lbcore.Endpoint{}), left: 7,
			notes: []string{
				"endpoints[0].lb_endpoints[0]: envoy_internal_address: left out",
				`endpoints[0].lb_endpoints[1]: named_port "http": left out`,
				"endpoints[0].lb_endpoints[2]: protocol UDP: left out",
				"endpoints[0].lb_endpoints[3]: network_namespace_filepath: left out",
				`endpoints[0].lb_endpoints[4]: abstract socket "@abstract": left out`,
				`endpoints[0].lb_endpoints[6]: endpoint_name "n" refers to another part: left out`,
				`endpoints[0].lb_endpoints[7]: host name "db.internal", which only DNS clusters look up: left out`,
			}},
		{name: "not applied", in: &endpointv3.ClusterLoadAssignment{ClusterName: "web",
			NamedEndpoints: map[string]*endpointv3.Endpoint{"n": {}},
			Endpoints:      []*endpointv3.LocalityLbEndpoints{{LbEndpoints: []*endpointv3.LbEndpoint{lb(socket("10.0.0.1", 80))}, Proximity: u32(3)}}},
			want:  one(lbcore.Endpoint{}),
			notes: []string{"endpoints[0]: proximity is not applied", "named_endpoints: is not applied"}},
		{name: "additional addresses", in: cla("web", locality(0, lb(socket("10.0.0.1", 80), additional(socket("2001:db8::1", 80), socket("::ffff:10.0.0.3", 81))))),
			want: one(lbcore.Endpoint{Additional: lbcore.AddrsOf(lbcore.IPAddr(netip.MustParseAddrPort("[2001:db8::1]:80")), lbcore.IPAddr(netip.MustParseAddrPort("10.0.0.3:81")))})},
		{name: "additional addresses that can't be used", in: cla("web", locality(0, lb(socket("10.0.0.1", 80),
			additional(socket("10.0.0.1", 80), pipe("/run/s"), internalAddress(), socket("10.0.0.3", 80), socket("10.0.0.3", 80))))),
			want: one(lbcore.Endpoint{Additional: lbcore.AddrsOf(lbcore.IPAddr(netip.MustParseAddrPort("10.0.0.3:80")))}),
			notes: []string{
				"endpoints[0].lb_endpoints[0]: additional_addresses[0]: there already: left out",
				"endpoints[0].lb_endpoints[0]: additional_addresses[1]: a unix socket: left out",
				"endpoints[0].lb_endpoints[0]: additional_addresses[2]: envoy_internal_address: left out",
				"endpoints[0].lb_endpoints[0]: additional_addresses[4]: there already: left out",
			}},
		{name: "too many additional addresses", in: cla("web", locality(0, lb(socket("10.0.0.1", 80), additional(manyAddresses(16)...)))),
			want:  one(lbcore.Endpoint{Additional: manyAddrs(15)}),
			notes: []string{"endpoints[0].lb_endpoints[0]: additional_addresses[15]: more than 15: left out"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			name, v, err := decodeAssignment(marshal(t, tt.in))
			if err != nil || name != "web" {
				t.Fatalf("got name %q, error %v", name, err)
			}
			a := v.(*assignment)
			if d := cmp.Diff(tt.want, endpoints(a.set), compareAddr); d != "" {
				t.Errorf("endpoints (-want +got):\n%s", d)
			}
			if d := cmp.Diff(tt.notes, a.notes); d != "" {
				t.Errorf("notes (-want +got):\n%s", d)
			}
			if a.leftOut != tt.left || len(a.dropped) != tt.dup {
				t.Errorf("left out %d, duplicates %d, want %d, %d", a.leftOut, len(a.dropped), tt.left, tt.dup)
			}
		})
	}
}

func TestDecodeAssignmentInvalid(t *testing.T) {
	check := func(c *endpointv3.Endpoint_HealthCheckConfig) *endpointv3.ClusterLoadAssignment {
		e := lb(socket("10.0.0.1", 80))
		e.GetEndpoint().HealthCheckConfig = c
		return cla("web", locality(0, e))
	}
	ok := lb(socket("10.0.0.1", 80))
	for _, tt := range []struct {
		name string
		in   *endpointv3.ClusterLoadAssignment
		want string
	}{
		{"no name", cla(""), "cluster_name: missing"},
		{"bug 17: weight 0", cla("web", locality(0, ok, ok, ok, lb(socket("10.0.0.1", 80), weight(0)))),
			"endpoints[0].lb_endpoints[3].load_balancing_weight: 0: want at least 1"},
		{"bug 19: weights", cla("web", locality(0), locality(0, lb(socket("10.0.0.1", 80), weight(1<<32-1)), ok)),
			"endpoints[1].lb_endpoints: the weights add up to 4294967296: want at most 4294967295"},
		{"bug 19: locality weights", cla("web",
			&endpointv3.LocalityLbEndpoints{LoadBalancingWeight: u32(1<<32 - 1)},
			&endpointv3.LocalityLbEndpoints{LoadBalancingWeight: u32(1<<32 - 1), Priority: 1},
			&endpointv3.LocalityLbEndpoints{LoadBalancingWeight: u32(1)}),
			"endpoints[2].load_balancing_weight: the localities of priority 0 add up to 4294967296: want at most 4294967295"},
		{"priority", cla("web", locality(129)), "endpoints[0].priority: 129: want 0 to 128"},
		{"no endpoint", cla("web", locality(0, &endpointv3.LbEndpoint{})), "endpoints[0].lb_endpoints[0].endpoint: missing"},
		{"no address", cla("web", locality(0, lb(nil))), "endpoints[0].lb_endpoints[0].endpoint.address: missing"},
		{"a number", cla("web", locality(0, ok, lb(socket("300.0.0.1", 80)))),
			`endpoints[0].lb_endpoints[1].endpoint.address.socket_address.address: "300.0.0.1": want an IP address`},
		{"zone", cla("web", locality(0, lb(socket("fe80::1%eth0", 80)))),
			`endpoints[0].lb_endpoints[0].endpoint.address.socket_address.address: "fe80::1%eth0": want an IP address`},
		{"port 0", cla("web", locality(0, lb(socket("10.0.0.1", 0)))),
			"endpoints[0].lb_endpoints[0].endpoint.address.socket_address.port_value: 0: want 1 to 65535"},
		{"port", cla("web", locality(0, lb(socket("10.0.0.1", 65536)))),
			"endpoints[0].lb_endpoints[0].endpoint.address.socket_address.port_value: 65536: want 1 to 65535"},
		{"pipe", cla("web", locality(0, lb(pipe("x.sock")))),
			`endpoints[0].lb_endpoints[0].endpoint.address.pipe.path: "x.sock": want an absolute path`},
		{"check port", check(&endpointv3.Endpoint_HealthCheckConfig{PortValue: 65536}),
			"endpoints[0].lb_endpoints[0].endpoint.health_check_config.port_value: 65536: want 0 to 65535"},
		{"check address", check(&endpointv3.Endpoint_HealthCheckConfig{Address: socket("x y", 1)}),
			`endpoints[0].lb_endpoints[0].endpoint.health_check_config.address.socket_address.address: "x y": want an IP address`},
		{"check without a port", cla("web", locality(0, lb(pipe("/x"), func(e *endpointv3.LbEndpoint) {
			e.GetEndpoint().HealthCheckConfig = &endpointv3.Endpoint_HealthCheckConfig{Address: socket("10.0.0.1", 0)}
		}))), "endpoints[0].lb_endpoints[0].endpoint.health_check_config.port_value: 0: the endpoint has no port to take in its place"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			name, v, err := decodeAssignment(marshal(t, tt.in))
			if err == nil || err.Error() != tt.want {
				t.Errorf("error\n%v, want\n%s", err, tt.want)
			}
			if v != nil || name != tt.in.GetClusterName() {
				t.Errorf("name %q, value %v", name, v)
			}
		})
	}
}

// A resource that is cut off in the middle is refused under its name.
func TestDecodeAssignmentCutOff(t *testing.T) {
	b := marshal(t, cla("web", locality(0, lb(socket("10.0.0.1", 80)))))
	name, v, err := decodeAssignment(b[:len(b)-1])
	if name != "web" || v != nil || err == nil || !strings.HasPrefix(err.Error(), "not a ClusterLoadAssignment") {
		t.Errorf("got %q, %v, %v", name, v, err)
	}
}

func TestNotesAreBounded(t *testing.T) {
	m := cla("web", locality(0, slices.Repeat([]*endpointv3.LbEndpoint{lb(internalAddress())}, 1000)...))
	_, v, err := decodeAssignment(marshal(t, m))
	if a := v.(*assignment); err != nil || a.leftOut != 1000 || len(a.notes) != maxNotes {
		t.Errorf("left out %d, %d notes, error %v", a.leftOut, len(a.notes), err)
	}
}

// bug 25: the order in which a server lists endpoints means nothing: nothing is
// rebuilt for it, and no key moves.
func TestOrderOfAssignment(t *testing.T) {
	read := func(m *endpointv3.ClusterLoadAssignment) lbcore.Set {
		t.Helper()
		_, v, err := decodeAssignment(marshal(t, m))
		if err != nil {
			t.Fatal(err)
		}
		return v.(*assignment).set
	}
	a, b, c := lb(socket("10.0.0.1", 80), weight(3)), lb(socket("10.0.0.2", 80)), lb(pipe("/run/c.sock"))
	one := read(cla("web", locality(0, a, b), locality(1, c)))
	other := read(cla("web", locality(1, c), locality(0, b, a)))
	if !one.Equal(other) || !slices.Equal(endpoints(one), endpoints(other)) {
		t.Errorf("%v, and in another order %v", endpoints(one), endpoints(other))
	}
}

// FuzzDecodeAssignment: any bytes give an error or a set that keeps the rules.
func FuzzDecodeAssignment(f *testing.F) {
	f.Add(marshal(f, cla("web", locality(0, lb(socket("10.0.0.1", 80), weight(2)), lb(pipe("/x"))), locality(3, lb(internalAddress())))))
	f.Add(marshal(f, cla("web", locality(0, lb(socket("10.0.0.1", 80), func(e *endpointv3.LbEndpoint) {
		e.GetEndpoint().HealthCheckConfig = &endpointv3.Endpoint_HealthCheckConfig{Address: socket("::1", 0), PortValue: 3}
		e.HealthStatus = corev3.HealthStatus_DRAINING
	})))))
	weighed := cla("web", locality(1, lb(socket("10.0.0.1", 80))))
	weighed.Endpoints[0].LoadBalancingWeight = u32(3)
	weighed.Policy = &endpointv3.ClusterLoadAssignment_Policy{OverprovisioningFactor: u32(100), WeightedPriorityHealth: true}
	f.Add(marshal(f, weighed))
	weighed.Policy.DropOverloads = []*endpointv3.ClusterLoadAssignment_Policy_DropOverload{dropOf("a", 5, 0), dropOf("b", 1<<31, 2)}
	weighed.Policy.EndpointStaleAfter = seconds(9)
	f.Add(marshal(f, weighed))
	f.Add([]byte("junk"))
	f.Fuzz(func(t *testing.T, body []byte) {
		name, v, err := decodeAssignment(body)
		if (err == nil) != (v != nil) {
			t.Fatalf("value %v with error %v", v, err)
		}
		if err != nil {
			return
		}
		a := v.(*assignment)
		if name == "" || len(a.notes) > maxNotes {
			t.Errorf("name %q, %d notes", name, len(a.notes))
		}
		for d := range a.set.Policy().Drops.All() {
			if d.Category == "" || d.PerMillion > 1_000_000 {
				t.Errorf("drop %+v", d)
			}
		}
		if a.staleAfter < 0 {
			t.Errorf("stale after %v", a.staleAfter)
		}
		again, dropped, err := lbcore.NewSet(endpoints(a.set))
		if err != nil || len(dropped) > 0 || !again.WithPolicy(a.set.Policy()).Equal(a.set) {
			t.Errorf("the set is no set: %v, %v", dropped, err)
		}
		for _, e := range a.set.All() {
			if c := e.Check.Addr; e.Weight == 0 || c.IsValid() && c.Path() == "" && c.AddrPort().Port() == 0 {
				t.Errorf("endpoint %+v", e)
			}
		}
	})
}
