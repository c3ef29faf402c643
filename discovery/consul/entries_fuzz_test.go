package consul

import (
	"encoding/json"
	"os"
	"slices"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/consul/api"
	"pgregory.net/rapid"

	"gatehouse.internal/lbcore"
)

// The answer of a real server (1.14.11), with instances of every sort that it
// lets one register.
func TestDecodeRealAnswer(t *testing.T) {
	data, err := os.ReadFile("testdata/health_service.json")
	if err != nil {
		t.Fatal(err)
	}
	var entries []*api.ServiceEntry
	if err := json.Unmarshal(data, &entries); err != nil {
		t.Fatal(err)
	}
	with := func(address string, weight uint32, status lbcore.Status) lbcore.Endpoint {
		e := endpointAt(t, address)
		e.Weight, e.Status = weight, status
		return e
	}
	const healthy = lbcore.StatusHealthy
	const hostName = `want an IP address; host names are for discovery "dns"`
	gateway := refusal{"n1/gw", `kind "mesh-gateway": it routes mTLS between datacenters by SNI; kinds = ["mesh-gateway"] accepts it`}
	web5 := refusal{"n1/web5", `socket path "rel.sock": want an absolute path of at most 107 bytes without control characters`}
	ext2 := []refusal{{"ext2/c1", `address "host.example": ` + hostName}, {"ext2/c2", `address "host.example": ` + hostName}}
	zone := refusal{"n1/v6", `address "fe80::1%eth0": an IPv6 zone has no meaning on another host`}
	web9 := refusal{"n1/web9", `address "example.org": ` + hostName}
	noPort := refusal{"ext4/c4", "port 0: want 1 to 65535"}
	for _, tt := range []struct {
		name    string
		q       Query
		want    []lbcore.Endpoint
		refused []refusal
	}{
		{"plain", Query{SocketPaths: true}, []lbcore.Endpoint{
			with("192.0.2.7:80", 1, lbcore.StatusUnhealthy), // a status that Consul doesn't have
			with("127.0.0.2:8080", 1, lbcore.StatusDraining),
			with("127.0.0.1:80", 1, healthy), // kind "typical"
			with("127.0.0.1:8081", 0, healthy),
			with("unix:///run/x.sock", 1, healthy),
			with("unix:///run/x.sock", 1, healthy),
		}, append(slices.Clone(ext2), noPort, gateway, zone, web5, web9)},
		{"wan", Query{SocketPaths: true, Address: AddressWAN}, []lbcore.Endpoint{
			with("192.0.2.7:80", 1, lbcore.StatusUnhealthy),
			with("127.0.0.2:8080", 1, lbcore.StatusDraining),
			with("127.0.0.1:80", 1, healthy),
			with("192.0.2.9:99", 0, healthy),
			with("127.0.0.4:80", 1, healthy),
		}, append(slices.Clone(ext2), noPort, gateway, zone, refusal{"n1/web3", noPort.reason}, refusal{"n1/web5", noPort.reason}, web9)},
		{"gateways too, by tag", Query{SocketPaths: true, Tags: []string{"b", "a"}, Kinds: []string{"mesh-gateway"}}, []lbcore.Endpoint{
			with("127.0.0.1:8081", 0, healthy),
		}, nil},
		{"lan address with the service's port", Query{SocketPaths: true, Tags: []string{"b"}, Address: AddressLAN}, []lbcore.Endpoint{
			with("127.0.0.9:8081", 0, healthy),
		}, nil},
		{"by node metadata", Query{SocketPaths: true, NodeMeta: map[string]string{"m": "1"}}, nil, []refusal{noPort}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := tt.q.decode(entries)
			if diff := cmp.Diff(tt.want, got.endpoints, cmp.Comparer(func(a, b lbcore.Addr) bool { return a == b })); diff != "" {
				t.Errorf("endpoints (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.refused, got.refused, cmp.AllowUnexported(refusal{})); diff != "" {
				t.Errorf("refused (-want +got):\n%s", diff)
			}
		})
	}
}

// The status is that of the worst check, whatever their order and number.
func TestDecodeStatusProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		kinds := rapid.SliceOfN(rapid.SampledFrom([]string{"passing", "warning", "critical", "unknown", "missing", "node", "service"}), 0, 8).Draw(t, "checks")
		e := newEntry(onService(func(s *api.AgentService) { s.Weights = api.AgentWeights{Passing: 5, Warning: 2} }))
		e.Checks = nil
		for i, k := range kinds {
			c := &api.HealthCheck{CheckID: "check" + strconv.Itoa(i), Status: k}
			switch k {
			case "missing":
				c = nil
			case "node":
				c.CheckID, c.Status = "_node_maintenance", "critical"
			case "service":
				c.CheckID, c.Status = "_service_maintenance:web-1", "critical"
			}
			e.Checks = append(e.Checks, c)
		}
		has := func(of ...string) bool {
			return slices.ContainsFunc(kinds, func(k string) bool { return slices.Contains(of, k) })
		}
		status, weight := lbcore.StatusHealthy, uint32(5)
		switch {
		case has("node", "service"):
			status = lbcore.StatusDraining
		case has("critical", "unknown", "missing"):
			status = lbcore.StatusUnhealthy
		case has("warning"):
			weight = 2
		}
		q := Query{SocketPaths: true, Service: "web"}
		d := q.decode([]*api.ServiceEntry{e})
		if len(d.endpoints) != 1 || d.endpoints[0].Status != status || d.endpoints[0].Weight != weight {
			t.Fatalf("%v: got %+v, want one endpoint with %v, weight %d", kinds, d, status, weight)
		}
	})
}

// Without Near, the order of an answer means nothing, not even where two
// instances have one address.
func TestDecodeOrderProperty(t *testing.T) {
	entry := rapid.Custom(func(t *rapid.T) *api.ServiceEntry {
		return newEntry(
			onNode(func(n *api.Node) { n.Node = rapid.SampledFrom([]string{"n1", "n2"}).Draw(t, "node") }),
			onService(func(s *api.AgentService) {
				s.ID = rapid.SampledFrom([]string{"a", "b"}).Draw(t, "id")
				s.Namespace = rapid.SampledFrom([]string{"", "ns"}).Draw(t, "namespace")
				s.Partition = rapid.SampledFrom([]string{"", "p"}).Draw(t, "partition")
				s.PeerName = rapid.SampledFrom([]string{"", "east"}).Draw(t, "peer")
				s.Address = rapid.SampledFrom([]string{"10.0.0.1", "10.0.0.2", "", "web.example"}).Draw(t, "address")
				s.Port = rapid.IntRange(0, 2).Draw(t, "port")
				s.Weights.Passing = rapid.IntRange(-1, 3).Draw(t, "weight")
				s.Tags = rapid.SliceOfN(rapid.SampledFrom([]string{"x", "y"}), 0, 2).Draw(t, "tags")
			}),
			func(e *api.ServiceEntry) {
				e.Checks[0].Status = rapid.SampledFrom([]string{"passing", "warning", "critical"}).Draw(t, "status")
			},
		)
	})
	identify := func(e *api.ServiceEntry) identity { return newInstance(e).identity }
	rapid.Check(t, func(t *rapid.T) {
		entries := rapid.SliceOfNDistinct(entry, 0, 20, identify).Draw(t, "entries")
		q := Query{SocketPaths: true, Service: "web"}
		if rapid.Bool().Draw(t, "by tag") {
			q.Tags = []string{"x"}
		}
		if rapid.Bool().Draw(t, "imported too") {
			q.Peer = "east"
		}
		before := slices.Clone(entries)
		one := q.decode(entries)
		if !slices.Equal(before, entries) {
			t.Fatal("decode changed the order of its argument")
		}
		other := q.decode(rapid.Permutation(entries).Draw(t, "in another order"))
		set, dropped, err := lbcore.NewSet(one.endpoints)
		otherSet, otherDropped, otherErr := lbcore.NewSet(other.endpoints)
		if err != nil || otherErr != nil {
			t.Fatal(err, otherErr)
		}
		if !set.Equal(otherSet) || !slices.Equal(dropped, otherDropped) || !slices.Equal(one.refused, other.refused) {
			t.Fatalf("got %+v, and in another order %+v", one, other)
		}
	})
}

func FuzzDecode(f *testing.F) {
	answer, err := os.ReadFile("testdata/health_service.json")
	if err != nil {
		f.Fatal(err)
	}
	// Small seeds are what mutation makes the most of: each entry of the real
	// answer, and what the real server doesn't answer.
	var each []json.RawMessage
	if err := json.Unmarshal(answer, &each); err != nil {
		f.Fatal(err)
	}
	for _, e := range each {
		f.Add([]byte("[" + string(e) + "]"))
	}
	for _, s := range []string{
		``, `null`, `[]`, `{}`, `[null]`, `[{}]`, `[{"Node":null,"Service":null,"Checks":null}]`, `[{"Node":{},"Service":{},"Checks":[null]}]`,
		`[{"Node":{"Node":"n","Address":"::1"},"Service":{"ID":"a","Port":1e30}}]`,
		`[{"Node":{"Node":"n","Address":"::1"},"Service":{"ID":"a","Port":9223372036854775807,"Weights":{"Passing":-9223372036854775808}}}]`,
		`[{"Node":{"Node":"n","Address":"::1"},"Service":{"ID":"a","Ports":[{"Name":"grpc","Port":1},{"Name":"http","Port":2,"Default":true}]}}]`,
		`[{"Node":{"Node":"n","TaggedAddresses":{"wan":"10.0.0.1"},"PeerName":"p"},"Service":{"ID":"a","Port":1,"Tags":["x"],"TaggedAddresses":{"wan":{"Address":"","Port":-1},"virtual":{"Address":"240.0.0.1","Port":65536}}}}]`,
		`[{"Node":{"Node":"n","Locality":{"Region":"r","Zone":"z"}},"Service":{"ID":"\u0000","SocketPath":"/\n","Kind":"connect-proxy"}},{"Node":{"Node":"n"},"Service":{"ID":"\u0000"}}]`,
	} {
		f.Add([]byte(s))
	}
	queries := []Query{
		{Service: "web"},
		{Service: "web", Near: "_agent", Nearest: 1},
		{Service: "web", Address: AddressWAN, Peer: "p", Kinds: kinds},
		{Service: "web", Address: AddressVirtual, SamenessGroup: "g", Near: "_agent"},
		{SocketPaths: true, Service: "web", PortName: "grpc", Address: AddressLANv4},
		{Service: "web", Tags: []string{"x"}, NodeMeta: map[string]string{"m": "1"}},
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var entries []*api.ServiceEntry
		// What was read before the mistake is fed on too: it has parts missing.
		_ = json.Unmarshal(data, &entries)
		before := slices.Clone(entries)
		for _, q := range queries {
			d := q.decode(entries)
			if !slices.Equal(before, entries) {
				t.Fatal("decode changed its argument")
			}
			if len(d.endpoints)+len(d.refused) > len(entries) {
				t.Fatalf("%d endpoints and %d refused of %d entries", len(d.endpoints), len(d.refused), len(entries))
			}
			if _, _, err := lbcore.NewSet(d.endpoints); err != nil {
				t.Fatal(err)
			}
			for _, e := range d.endpoints {
				if e.Status == lbcore.StatusUnknown || e.Priority > 1 || e.Priority == 1 && q.Near == "" {
					t.Fatalf("endpoint %+v", e)
				}
				if back, err := lbcore.ParseAddr(e.Addr.String()); err != nil || back != e.Addr {
					t.Fatalf("address %v is read as %v, %v", e.Addr, back, err)
				}
			}
			for _, r := range d.refused {
				checkRefusal(t, r)
			}
			again := q.decode(entries)
			if !slices.Equal(d.endpoints, again.endpoints) || !slices.Equal(d.refused, again.refused) {
				t.Fatal("the same entries gave another result")
			}
		}
	})
}
