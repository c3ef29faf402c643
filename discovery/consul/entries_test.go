package consul

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/hashicorp/consul/api"

	"gatehouse.internal/lbcore"
)

// An entryOption changes the entry that newEntry makes.
type entryOption func(*api.ServiceEntry)

// newEntry returns a passing instance "web-1" on node "n1" at 10.0.0.1:80, as
// a Consul agent answers it, with the changes.
func newEntry(options ...entryOption) *api.ServiceEntry {
	e := &api.ServiceEntry{
		Node:    &api.Node{Node: "n1", Address: "10.1.0.1", Datacenter: "dc1"},
		Service: &api.AgentService{ID: "web-1", Service: "web", Address: "10.0.0.1", Port: 80, Weights: api.AgentWeights{Passing: 1, Warning: 1}},
		Checks:  api.HealthChecks{{CheckID: "serfHealth", Status: api.HealthPassing}},
	}
	for _, o := range options {
		o(e)
	}
	return e
}

func onService(change func(*api.AgentService)) entryOption {
	return func(e *api.ServiceEntry) { change(e.Service) }
}

func onNode(change func(*api.Node)) entryOption {
	return func(e *api.ServiceEntry) { change(e.Node) }
}

// numbered makes instance i of many.
func numbered(i int) entryOption {
	return func(e *api.ServiceEntry) {
		e.Service.ID = fmt.Sprintf("web-%03d", i)
		e.Service.Address = fmt.Sprintf("10.0.1.%d", i)
	}
}

func endpointAt(t interface{ Fatal(...any) }, address string) lbcore.Endpoint {
	a, err := lbcore.ParseAddr(address)
	if err != nil {
		t.Fatal(err)
	}
	return lbcore.Endpoint{Addr: a, Weight: 1, Status: lbcore.StatusHealthy, Locality: lbcore.Locality{Region: "dc1"}}
}

// decodeOne decodes one entry, of which there must be one endpoint or one
// refusal.
func decodeOne(t *testing.T, q Query, e *api.ServiceEntry) (ep lbcore.Endpoint, reason string) {
	t.Helper()
	d := q.decode([]*api.ServiceEntry{e})
	switch {
	case len(d.endpoints) == 1 && len(d.refused) == 0:
		if _, _, err := lbcore.NewSet(d.endpoints); err != nil {
			t.Fatalf("an endpoint that no set takes: %v", err)
		}
		return d.endpoints[0], ""
	case len(d.endpoints) == 0 && len(d.refused) == 1:
		return lbcore.Endpoint{}, d.refused[0].reason
	}
	t.Fatalf("got %+v, want one endpoint or one refusal", d)
	return
}

func TestDecodeStatus(t *testing.T) {
	check := func(id, status string) *api.HealthCheck { return &api.HealthCheck{CheckID: id, Status: status} }
	ok, warn, crit := check("a", "passing"), check("b", "warning"), check("c", "critical")
	node, service := check("_node_maintenance", "critical"), check("_service_maintenance:web-1", "critical")
	odd := check("d", "weird")
	for _, tt := range []struct {
		name   string
		checks api.HealthChecks
		status lbcore.Status
		weight uint32 // of Passing: 5, Warning: 2
	}{
		{"no checks", nil, lbcore.StatusHealthy, 5},
		{"passing", api.HealthChecks{ok, ok}, lbcore.StatusHealthy, 5},
		{"warning", api.HealthChecks{ok, warn}, lbcore.StatusHealthy, 2},
		{"critical", api.HealthChecks{ok, crit}, lbcore.StatusUnhealthy, 5},
		{"critical over warning", api.HealthChecks{crit, warn, ok}, lbcore.StatusUnhealthy, 5},
		{"unknown status", api.HealthChecks{odd}, lbcore.StatusUnhealthy, 5},
		{"unknown over warning", api.HealthChecks{warn, odd, ok}, lbcore.StatusUnhealthy, 5},
		{"empty status", api.HealthChecks{check("e", "")}, lbcore.StatusUnhealthy, 5},
		{"status in capitals", api.HealthChecks{check("e", "Passing")}, lbcore.StatusUnhealthy, 5},
		{"no check where one should be", api.HealthChecks{nil, ok}, lbcore.StatusUnhealthy, 5},
		{"maintenance of the node", api.HealthChecks{ok, node}, lbcore.StatusDraining, 5},
		{"maintenance of the service", api.HealthChecks{service, warn}, lbcore.StatusDraining, 5},
		{"maintenance over critical", api.HealthChecks{crit, node, crit}, lbcore.StatusDraining, 5},
		{"maintenance over unknown, after it", api.HealthChecks{odd, service}, lbcore.StatusDraining, 5},
		{"maintenance over unknown, before it", api.HealthChecks{service, odd}, lbcore.StatusDraining, 5},
		{"a maintenance check that passes", api.HealthChecks{check("_node_maintenance", "passing"), ok}, lbcore.StatusHealthy, 5},
		{"a name like maintenance", api.HealthChecks{check("_node_maintenance2", "critical")}, lbcore.StatusUnhealthy, 5},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := newEntry(onService(func(s *api.AgentService) { s.Weights = api.AgentWeights{Passing: 5, Warning: 2} }))
			e.Checks = tt.checks
			ep, reason := decodeOne(t, Query{Service: "web"}, e)
			if reason != "" || ep.Status != tt.status || ep.Weight != tt.weight {
				t.Errorf("got %v, weight %d, refused %q; want %v, weight %d", ep.Status, ep.Weight, reason, tt.status, tt.weight)
			}
		})
	}
}

func TestDecodeWeight(t *testing.T) {
	const most = math.MaxUint32
	for _, tt := range []struct {
		name             string
		passing, warning int
		status           string
		want             uint32
		reason           string
	}{
		{"passing", 7, 3, "passing", 7, ""},
		{"warning", 7, 3, "warning", 3, ""},
		{"critical keeps that of passing", 7, 3, "critical", 7, ""},
		{"none", 0, 0, "passing", 1, ""},
		{"none, warning", 0, 0, "warning", 1, ""},
		{"none, critical", 0, 0, "critical", 1, ""},
		{"warning takes nothing", 7, 0, "warning", 0, ""},
		{"passing takes nothing", 0, 3, "passing", 0, ""},
		{"most", most, 1, "passing", most, ""},
		{"too much", most + 1, 1, "passing", 0, "weight 4294967296: want 0 to 4294967295"},
		{"too much by far", math.MaxInt64, 1, "passing", 0, "weight 9223372036854775807: want 0 to 4294967295"},
		{"negative", -1, 1, "passing", 0, "weight -1: want 0 to 4294967295"},
		{"negative warning while passing", 1, -5, "passing", 0, "weight -5: want 0 to 4294967295"},
		{"negative passing while warning", -2, 5, "warning", 0, "weight -2: want 0 to 4294967295"},
		{"least", math.MinInt64, 0, "passing", 0, "weight -9223372036854775808: want 0 to 4294967295"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := newEntry(onService(func(s *api.AgentService) {
				s.Weights = api.AgentWeights{Passing: tt.passing, Warning: tt.warning}
			}))
			e.Checks[0].Status = tt.status
			ep, reason := decodeOne(t, Query{Service: "web"}, e)
			if ep.Weight != tt.want || reason != tt.reason {
				t.Errorf("got weight %d, refused %q; want %d, %q", ep.Weight, reason, tt.want, tt.reason)
			}
		})
	}
}

// dataplaneapi made servers without an IP of instances whose address is that
// of their node.
func TestC17EmptyServiceAddress(t *testing.T) {
	e := newEntry(onService(func(s *api.AgentService) { s.Address = "" }))
	ep, reason := decodeOne(t, Query{Service: "web"}, e)
	if want := endpointAt(t, "10.1.0.1:80"); ep != want || reason != "" {
		t.Errorf("got %+v, refused %q, want %+v", ep, reason, want)
	}
}

func TestDecodeAddress(t *testing.T) {
	tagged := func(tag, address string, port int) entryOption {
		return onService(func(s *api.AgentService) {
			if s.TaggedAddresses == nil {
				s.TaggedAddresses = map[string]api.ServiceAddress{}
			}
			s.TaggedAddresses[tag] = api.ServiceAddress{Address: address, Port: port}
		})
	}
	own := func(address string) entryOption {
		return onService(func(s *api.AgentService) { s.Address = address })
	}
	port := func(port int) entryOption { return onService(func(s *api.AgentService) { s.Port = port }) }
	node := func(address string) entryOption { return onNode(func(n *api.Node) { n.Address = address }) }
	nodeTagged := func(tag, address string) entryOption {
		return onNode(func(n *api.Node) { n.TaggedAddresses = map[string]string{tag: address} })
	}
	socket := func(path string) entryOption {
		return onService(func(s *api.AgentService) { s.SocketPath, s.Address, s.Port = path, "", 0 })
	}
	ports := func(ports ...api.ServicePort) entryOption {
		return onService(func(s *api.AgentService) { s.Port, s.Ports = 0, ports })
	}
	two := ports(api.ServicePort{Name: "admin", Port: 8080}, api.ServicePort{Name: "http", Port: 8081, Default: true})
	long := "/" + strings.Repeat("x", 106)
	for _, tt := range []struct {
		name   string
		q      Query
		entry  *api.ServiceEntry
		want   string // the address, or what the reason begins with
		reason bool
	}{
		{"own", Query{}, newEntry(), "10.0.0.1:80", false},
		{"own IPv6", Query{}, newEntry(own("2001:db8::1")), "[2001:db8::1]:80", false},
		{"own mapped", Query{}, newEntry(own("::ffff:10.0.0.9")), "10.0.0.9:80", false},
		{"own, tagged ones not asked for", Query{}, newEntry(tagged("wan", "192.0.2.1", 99), nodeTagged("wan", "192.0.2.2")), "10.0.0.1:80", false},
		{"own before a tag without a name", Query{}, newEntry(tagged("", "192.0.2.1", 99), nodeTagged("", "192.0.2.2")), "10.0.0.1:80", false},
		{"node", Query{}, newEntry(own("")), "10.1.0.1:80", false},
		{"node, tagged ones not asked for", Query{}, newEntry(own(""), nodeTagged("", "192.0.2.2")), "10.1.0.1:80", false},

		{"tagged with its port", Query{Address: AddressWAN}, newEntry(tagged("wan", "192.0.2.1", 99)), "192.0.2.1:99", false},
		{"tagged without a port", Query{Address: AddressWAN}, newEntry(tagged("wan", "192.0.2.1", 0)), "192.0.2.1:80", false},
		{"tagged without an address", Query{Address: AddressWAN}, newEntry(tagged("wan", "", 99)), "10.0.0.1:80", false},
		{"tagged otherwise", Query{Address: AddressLANv6}, newEntry(tagged("lan_ipv4", "192.0.2.1", 99)), "10.0.0.1:80", false},
		{"own before the node's tagged one", Query{Address: AddressWAN}, newEntry(nodeTagged("wan", "192.0.2.2")), "10.0.0.1:80", false},
		{"node's tagged one", Query{Address: AddressWAN}, newEntry(own(""), nodeTagged("wan", "192.0.2.2")), "192.0.2.2:80", false},
		{"node's own", Query{Address: AddressWAN}, newEntry(own(""), nodeTagged("lan", "192.0.2.2")), "10.1.0.1:80", false},
		{"lan of the node", Query{Address: AddressLAN}, newEntry(own(""), nodeTagged("lan", "192.0.2.3")), "192.0.2.3:80", false},
		{"tagged port where there is no other", Query{Address: AddressWAN}, newEntry(port(0), tagged("wan", "192.0.2.1", 99)), "192.0.2.1:99", false},
		{"virtual", Query{Address: AddressVirtual}, newEntry(tagged("virtual", "240.0.0.1", 0)), "240.0.0.1:80", false},
		{"virtual missing", Query{Address: AddressVirtual}, newEntry(nodeTagged("virtual", "192.0.2.2")), `no tagged address "virtual"`, true},

		{"socket", Query{SocketPaths: true}, newEntry(socket("/run/x.sock")), "unix:///run/x.sock", false},
		{"socket before an address", Query{SocketPaths: true}, newEntry(socket("/run/x.sock"), own("10.0.0.3"), port(80)), "unix:///run/x.sock", false},
		{"socket that nobody asked for", Query{}, newEntry(socket("/run/x.sock"), own("10.0.0.3"), port(80)), `socket path "/run/x.sock": want socket_paths = true`, true},
		{"tagged before a socket", Query{Address: AddressLAN}, newEntry(socket("/run/x.sock"), tagged("lan", "10.0.0.3", 81)), "10.0.0.3:81", false},
		{"socket of a tagged choice without a port", Query{Address: AddressLAN}, newEntry(socket("/run/x.sock")), "port 0: want 1 to 65535", true},
		{"named port before a socket", Query{PortName: "x"}, newEntry(socket("/run/x.sock")), `port_name "x": it has no named ports`, true},
		{"relative socket", Query{SocketPaths: true}, newEntry(socket("run/x.sock")), `socket path "run/x.sock": want an absolute path`, true},
		{"longest socket", Query{SocketPaths: true}, newEntry(socket(long)), "unix://" + long, false},
		{"socket too long", Query{SocketPaths: true}, newEntry(socket(long + "x")), `socket path "/xxxxxx`, true},
		{"socket with NUL", Query{SocketPaths: true}, newEntry(socket("/run/\x00")), `socket path "/run/\x00": want an absolute path of at most 107 bytes without control characters`, true},

		{"host name", Query{}, newEntry(own("web.example")), `address "web.example": want an IP address; host names are for discovery "dns"`, true},
		{"host name of the node", Query{}, newEntry(own(""), node("host.example")), `address "host.example": want an IP`, true},
		{"address with a port", Query{}, newEntry(own("10.0.0.1:80")), `address "10.0.0.1:80": want an IP`, true},
		{"no address", Query{}, newEntry(own(""), node("")), "neither the service nor its node has an address", true},
		{"unspecified", Query{}, newEntry(own("0.0.0.0")), `address "0.0.0.0": want the address of one host`, true},
		{"unspecified IPv6", Query{}, newEntry(own("::")), `address "::": want the address`, true},
		{"unspecified mapped", Query{}, newEntry(own("::ffff:0.0.0.0")), `address "::ffff:0.0.0.0": want the address`, true},
		{"zone", Query{}, newEntry(own("fe80::1%eth0")), `address "fe80::1%eth0": an IPv6 zone`, true},
		{"zone of a mapped one", Query{}, newEntry(own("::ffff:10.0.0.1%eth0")), `address "::ffff:10.0.0.1%eth0": an IPv6 zone`, true},
		{"port 0", Query{}, newEntry(port(0)), "port 0: want 1 to 65535", true},
		{"port negative", Query{}, newEntry(port(-4)), "port -4: want 1 to 65535", true},
		{"port too high", Query{}, newEntry(port(65536)), "port 65536: want 1 to 65535", true},
		{"port that would wrap", Query{}, newEntry(port(65536 + 80)), "port 65616: want 1 to 65535", true},
		{"highest port", Query{}, newEntry(port(65535)), "10.0.0.1:65535", false},
		{"tagged port too high", Query{Address: AddressWAN}, newEntry(tagged("wan", "192.0.2.1", 70000)), "port 70000: want 1 to 65535", true},

		{"default of many ports", Query{}, newEntry(two), "10.0.0.1:8081", false},
		{"port before ports", Query{}, newEntry(two, port(80)), "10.0.0.1:80", false},
		{"named port", Query{PortName: "admin"}, newEntry(two), "10.0.0.1:8080", false},
		{"named port before port", Query{PortName: "admin"}, newEntry(two, port(80)), "10.0.0.1:8080", false},
		{"named port out of range", Query{PortName: "p"}, newEntry(ports(api.ServicePort{Name: "p", Port: -1})), "port -1: want 1", true},
		{"named port 0", Query{PortName: "p"}, newEntry(ports(api.ServicePort{Name: "p"})), "port 0: want 1", true},
		{"named port that is missing", Query{PortName: "grpc"}, newEntry(two), `port_name "grpc": want one of "admin, http"`, true},
		{"named port of a service with one", Query{PortName: "grpc"}, newEntry(), `port_name "grpc": it has no named ports`, true},
		{"no default among many", Query{}, newEntry(ports(api.ServicePort{Name: "a", Port: 1}, api.ServicePort{Name: "b", Port: 2})), `no default port: want port_name to be one of "a, b"`, true},
		{"named port, tagged without a port", Query{PortName: "admin", Address: AddressWAN}, newEntry(two, tagged("wan", "192.0.2.1", 0)), "192.0.2.1:8080", false},
		{"named port, tagged with the default port", Query{PortName: "admin", Address: AddressWAN}, newEntry(two, tagged("wan", "192.0.2.1", 8081)), "192.0.2.1:8080", false},
		{"named default port, tagged with its own", Query{PortName: "http", Address: AddressWAN}, newEntry(two, tagged("wan", "192.0.2.1", 99)), "192.0.2.1:99", false},
		{"named port, tagged with its own", Query{PortName: "admin", Address: AddressWAN}, newEntry(two, tagged("wan", "192.0.2.1", 99)), `port_name "admin": its tagged address "wan" maps the default port only`, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.q.Service = "web"
			if err := tt.q.Validate(); err != nil {
				t.Fatal(err)
			}
			ep, reason := decodeOne(t, tt.q, tt.entry)
			if tt.reason {
				if !strings.HasPrefix(reason, tt.want) {
					t.Errorf("got %v, refused %q, want %q", ep.Addr, reason, tt.want)
				}
				return
			}
			if ep.Addr.String() != tt.want || reason != "" {
				t.Errorf("got %v, refused %q, want %s", ep.Addr, reason, tt.want)
			}
		})
	}
}

// Instances that aren't asked for are no news.
func TestDecodeFilters(t *testing.T) {
	for _, tt := range []struct {
		name string
		q    Query
		want bool
	}{
		{"none", Query{}, true},
		{"tag", Query{Tags: []string{"a"}}, true},
		{"tags in another order", Query{Tags: []string{"b", "a"}}, true},
		{"one tag missing", Query{Tags: []string{"a", "c"}}, false},
		{"tag in capitals", Query{Tags: []string{"A"}}, false},
		{"meta", Query{NodeMeta: map[string]string{"rack": "7"}}, true},
		{"meta empty", Query{NodeMeta: map[string]string{"none": ""}}, true},
		{"meta missing", Query{NodeMeta: map[string]string{"row": ""}}, false},
		{"meta otherwise", Query{NodeMeta: map[string]string{"rack": "8"}}, false},
		{"one meta missing", Query{NodeMeta: map[string]string{"rack": "7", "row": "1"}}, false},
		{"both", Query{Tags: []string{"a"}, NodeMeta: map[string]string{"rack": "7"}}, true},
		{"tag but not meta", Query{Tags: []string{"a"}, NodeMeta: map[string]string{"rack": "8"}}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.q.Service = "web"
			good := newEntry(onService(func(s *api.AgentService) { s.Tags = []string{"a", "b"} }),
				onNode(func(n *api.Node) { n.Meta = map[string]string{"rack": "7", "none": ""} }))
			// What isn't asked for is left out even if it couldn't be used.
			bad := newEntry(numbered(2), onService(func(s *api.AgentService) { s.Tags, s.Port = good.Service.Tags, 0 }),
				onNode(func(n *api.Node) { n.Meta = good.Node.Meta }))
			d := tt.q.decode([]*api.ServiceEntry{good, bad})
			want := 0
			if tt.want {
				want = 1
			}
			if len(d.endpoints) != want || len(d.refused) != want {
				t.Errorf("got %+v, want %d endpoints and as many refused", d, want)
			}
		})
	}
}

func TestDecodeKind(t *testing.T) {
	for _, tt := range []struct {
		kind    string
		q       Query
		refused string // what the reason must hold; empty: accepted
	}{
		{"", Query{}, ""},
		{"typical", Query{}, ""},
		{"connect-proxy", Query{}, `kind "connect-proxy": it demands mTLS with Connect leaf certificates; kinds = ["connect-proxy"] accepts it`},
		{"mesh-gateway", Query{}, `kind "mesh-gateway": it routes mTLS`},
		{"terminating-gateway", Query{}, `kind "terminating-gateway": it takes mTLS`},
		{"ingress-gateway", Query{}, `kind "ingress-gateway": its listeners`},
		{"api-gateway", Query{}, `kind "api-gateway": its listeners`},
		{"mesh-gateway", Query{Kinds: []string{"connect-proxy"}}, `kind "mesh-gateway": `},
		{"connect-proxy", Query{Kinds: []string{"mesh-gateway", "connect-proxy"}}, ""},
		{"", Query{Kinds: []string{"mesh-gateway"}}, ""},
		{"destination", Query{}, `kind "destination": unknown`},
		{"Typical", Query{}, `kind "Typical": unknown`},
		{"x\n", Query{}, `kind "x\n": unknown`},
	} {
		t.Run(tt.kind, func(t *testing.T) {
			tt.q.Service = "web"
			ep, reason := decodeOne(t, tt.q, newEntry(onService(func(s *api.AgentService) { s.Kind = api.ServiceKind(tt.kind) })))
			if tt.refused == "" && (reason != "" || ep != endpointAt(t, "10.0.0.1:80")) || !strings.Contains(reason, tt.refused) {
				t.Errorf("got %+v, refused %q, want %q", ep, reason, tt.refused)
			}
		})
	}
}

func TestDecodePeer(t *testing.T) {
	service := newEntry(onService(func(s *api.AgentService) { s.PeerName = "east" }))
	node := newEntry(onNode(func(n *api.Node) { n.PeerName = "east" }))
	const reason = `imported from peer "east": reached by mesh gateways only, unless peer or sameness_group asks for it`
	for _, tt := range []struct {
		name   string
		q      Query
		entry  *api.ServiceEntry
		reason string
	}{
		{"service", Query{}, service, reason},
		{"node", Query{}, node, reason},
		{"asked for", Query{Peer: "east"}, service, ""},
		{"sameness group", Query{SamenessGroup: "all"}, node, ""},
		{"none", Query{Peer: "east"}, newEntry(), ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.q.Service = "web"
			if _, got := decodeOne(t, tt.q, tt.entry); got != tt.reason {
				t.Errorf("refused %q, want %q", got, tt.reason)
			}
		})
	}
}

func TestDecodeDedup(t *testing.T) {
	at := func(address string) entryOption {
		return onService(func(s *api.AgentService) { s.Address = address })
	}
	first := newEntry(at("10.0.0.1"))
	for _, tt := range []struct {
		name  string
		other *api.ServiceEntry
		want  int
	}{
		{"same", newEntry(at("10.0.0.2")), 1},
		{"other service id", newEntry(at("10.0.0.2"), onService(func(s *api.AgentService) { s.ID = "web-2" })), 2},
		{"other node", newEntry(at("10.0.0.2"), onNode(func(n *api.Node) { n.Node = "n2" })), 2},
		{"other namespace", newEntry(at("10.0.0.2"), onService(func(s *api.AgentService) { s.Namespace = "ns" })), 2},
		{"other partition", newEntry(at("10.0.0.2"), onService(func(s *api.AgentService) { s.Partition = "p" })), 2},
		{"other peer", newEntry(at("10.0.0.2"), onService(func(s *api.AgentService) { s.PeerName = "east" })), 2},
		{"same, unusable", newEntry(at("")), 1},
		{"same, not asked for", newEntry(at("10.0.0.2"), onService(func(s *api.AgentService) { s.Tags = nil })), 1},
	} {
		for _, near := range []string{"", "_agent"} {
			t.Run(tt.name+near, func(t *testing.T) {
				q := Query{Service: "web", Peer: "east", Near: near}
				d := q.decode([]*api.ServiceEntry{first, tt.other})
				if len(d.endpoints) != tt.want || len(d.refused) != 0 {
					t.Fatalf("got %+v, want %d endpoints", d, tt.want)
				}
				if want := endpointAt(t, "10.0.0.1:80").Addr; !slices.ContainsFunc(d.endpoints, func(e lbcore.Endpoint) bool { return e.Addr == want }) {
					t.Errorf("got %+v, want the first", d.endpoints)
				}
			})
		}
	}
	t.Run("one refusal of two", func(t *testing.T) {
		q := Query{Service: "web"}
		bad := newEntry(at("nowhere.example"))
		if d := q.decode([]*api.ServiceEntry{bad, bad}); len(d.refused) != 1 || len(d.endpoints) != 0 {
			t.Errorf("got %+v, want one refusal", d)
		}
	})
	// Two instances of one address are the business of lbcore.NewSet, which
	// tells of them.
	t.Run("one address", func(t *testing.T) {
		q := Query{Service: "web"}
		d := q.decode([]*api.ServiceEntry{first, newEntry(at("10.0.0.1"), onService(func(s *api.AgentService) { s.ID = "web-2" }))})
		set, dropped, err := lbcore.NewSet(d.endpoints)
		if err != nil || set.Len() != 1 || len(dropped) != 1 {
			t.Errorf("got %d endpoints, %d dropped, %v; want one of each", set.Len(), len(dropped), err)
		}
	})
}

func TestDecodeLocality(t *testing.T) {
	service := onService(func(s *api.AgentService) { s.Locality = &api.Locality{Region: "eu", Zone: "eu-1a"} })
	node := onNode(func(n *api.Node) { n.Locality = &api.Locality{Region: "us", Zone: "us-1b"} })
	empty := onService(func(s *api.AgentService) { s.Locality = &api.Locality{} })
	for _, tt := range []struct {
		name  string
		entry *api.ServiceEntry
		want  lbcore.Locality
	}{
		{"service before node", newEntry(service, node), lbcore.Locality{Region: "eu", Zone: "eu-1a"}},
		{"node", newEntry(node), lbcore.Locality{Region: "us", Zone: "us-1b"}},
		{"node before an empty one", newEntry(empty, node), lbcore.Locality{Region: "us", Zone: "us-1b"}},
		{"datacenter", newEntry(), lbcore.Locality{Region: "dc1"}},
		{"datacenter after an empty one", newEntry(empty), lbcore.Locality{Region: "dc1"}},
		{"nothing", newEntry(onNode(func(n *api.Node) { n.Datacenter = "" })), lbcore.Locality{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if ep, reason := decodeOne(t, Query{Service: "web"}, tt.entry); ep.Locality != tt.want || reason != "" {
				t.Errorf("got %+v, refused %q, want %+v", ep.Locality, reason, tt.want)
			}
		})
	}
}

func TestDecodeNear(t *testing.T) {
	critical := func(e *api.ServiceEntry) { e.Checks[0].Status = api.HealthCritical }
	unusable := onService(func(s *api.AgentService) { s.Port = 0 })
	like := func(i int) entryOption {
		return onService(func(s *api.AgentService) { s.Address = fmt.Sprintf("10.0.1.%d", i) })
	}
	// The nearest first: 5, 4 (fails its checks), 9 (unusable), 3, 8 (at 5's
	// address), 2, 1.
	entries := []*api.ServiceEntry{
		newEntry(numbered(5)), newEntry(numbered(4), critical), newEntry(numbered(9), unusable), newEntry(numbered(3)),
		newEntry(numbered(8), like(5)), newEntry(numbered(2)), newEntry(numbered(1)),
	}
	order := []string{"10.0.1.5:80", "10.0.1.4:80", "10.0.1.3:80", "10.0.1.5:80", "10.0.1.2:80", "10.0.1.1:80"}
	for _, tt := range []struct {
		name    string
		near    string
		nearest int
		want    []uint8 // by order
	}{
		{"three by default", "_agent", 0, []uint8{0, 0, 0, 0, 1, 1}},
		{"one", "_agent", 1, []uint8{0, 1, 1, 0, 1, 1}},
		{"four", "n7", 4, []uint8{0, 0, 0, 0, 0, 1}},
		{"more than there are", "_agent", 100, []uint8{0, 0, 0, 0, 0, 0}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			q := Query{Service: "web", Near: tt.near, Nearest: tt.nearest}
			if err := q.Validate(); err != nil {
				t.Fatal(err)
			}
			d := q.decode(entries)
			var addrs []string
			var priorities []uint8
			for _, e := range d.endpoints {
				addrs = append(addrs, e.Addr.String())
				priorities = append(priorities, e.Priority)
			}
			if !slices.Equal(addrs, order) || !slices.Equal(priorities, tt.want) {
				t.Errorf("got %v, priorities %v; want %v, %v", addrs, priorities, order, tt.want)
			}
			if len(d.refused) != 1 {
				t.Errorf("refused %v, want the one without a port", d.refused)
			}
		})
	}
	t.Run("not asked for", func(t *testing.T) {
		q := Query{Service: "web"}
		for _, e := range q.decode(entries).endpoints {
			if e.Priority != 0 {
				t.Errorf("%v: priority %d, want 0", e.Addr, e.Priority)
			}
		}
	})
}

// One entry that can't be used costs no other its place, and what is missing
// does no harm.
func TestDecodeMissingParts(t *testing.T) {
	q := Query{Service: "web", Tags: []string{"a"}, NodeMeta: map[string]string{"k": "v"}, Near: "_agent"}
	good := newEntry(onService(func(s *api.AgentService) { s.Tags = []string{"a"} }), onNode(func(n *api.Node) { n.Meta = map[string]string{"k": "v"} }))
	got := q.decode([]*api.ServiceEntry{
		nil, {}, {Node: &api.Node{Node: "n9"}}, {Service: &api.AgentService{ID: "web-9"}}, {Checks: api.HealthChecks{nil}}, good,
	})
	const reason = "an entry without a node or a service"
	want := []refusal{{"/", reason}, {"/", reason}, {"n9/", reason}, {"/web-9", reason}, {"/", reason}}
	if len(got.endpoints) != 1 || !slices.Equal(got.refused, want) {
		t.Errorf("got %+v, want one endpoint and refused %v", got, want)
	}
	for _, none := range [][]*api.ServiceEntry{nil, {}} {
		if d := q.decode(none); len(d.endpoints)+len(d.refused) != 0 {
			t.Errorf("of nothing came %+v", d)
		}
	}
}

func TestDecodeRefusalText(t *testing.T) {
	evil := strings.Repeat("\n\x1b[31m\u202e\xff\"", 1000)
	bad := func(change func(*api.AgentService)) *api.ServiceEntry {
		return newEntry(onNode(func(n *api.Node) { n.Node = evil }), onService(func(s *api.AgentService) { s.ID = evil }), onService(change))
	}
	for _, tt := range []struct {
		name  string
		q     Query
		entry *api.ServiceEntry
	}{
		{"address", Query{}, bad(func(s *api.AgentService) { s.Address = evil })},
		{"kind", Query{}, bad(func(s *api.AgentService) { s.Kind = api.ServiceKind(evil) })},
		{"peer", Query{}, bad(func(s *api.AgentService) { s.PeerName = evil })},
		{"socket", Query{SocketPaths: true}, bad(func(s *api.AgentService) { s.SocketPath = evil })},
		{"zone", Query{}, bad(func(s *api.AgentService) { s.Address = "fe80::1%" + evil })},
		{"ports", Query{PortName: "x"}, bad(func(s *api.AgentService) { s.Ports = slices.Repeat(api.ServicePorts{{Name: evil}}, 1000) })},
		{"port name", Query{PortName: strings.Repeat("x", 10000)}, bad(func(*api.AgentService) {})},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := tt.q.decode([]*api.ServiceEntry{tt.entry})
			if len(d.refused) != 1 {
				t.Fatalf("got %+v, want one refusal", d)
			}
			checkRefusal(t, d.refused[0])
		})
	}
	t.Run("plain", func(t *testing.T) {
		q := Query{Service: "web"}
		d := q.decode([]*api.ServiceEntry{newEntry(onService(func(s *api.AgentService) { s.Port = 0 }))})
		if want := []refusal{{"n1/web-1", "port 0: want 1 to 65535"}}; !slices.Equal(d.refused, want) {
			t.Errorf("refused %v, want %v", d.refused, want)
		}
	})
}

// checkRefusal reports a text that must not get into a log.
func checkRefusal(t interface{ Errorf(string, ...any) }, r refusal) {
	for _, text := range []string{r.instance, r.reason} {
		if text == "" || len(text) > 450 || !utf8.ValidString(text) || strings.ContainsFunc(text, func(c rune) bool { return !strconv.IsPrint(c) }) {
			t.Errorf("refusal text of %d bytes: %q", len(text), text)
		}
	}
	if len(r.instance) > 140 {
		t.Errorf("instance of %d bytes: %s", len(r.instance), r.instance)
	}
}

func TestQuote(t *testing.T) {
	for _, tt := range []struct{ in, want string }{
		{"", `""`},
		{"a/b", `"a/b"`},
		{"a\"\n\x00", `"a\"\n\x00"`},
		{strings.Repeat("x", 128), `"` + strings.Repeat("x", 128) + `"`},
		{strings.Repeat("x", 129), `"` + strings.Repeat("x", 127) + `..."`},
		{strings.Repeat("é", 64), `"` + strings.Repeat("é", 64) + `"`},
		{strings.Repeat("é", 65), `"` + strings.Repeat("é", 63) + `..."`},
		{strings.Repeat("\x01", 100), `"` + strings.Repeat(`\x01`, 31) + `\x0..."`},
	} {
		if got := quote(tt.in); got != tt.want {
			t.Errorf("quote(%q)\n got %s\nwant %s", tt.in, got, tt.want)
		}
	}
}
