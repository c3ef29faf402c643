package consul

import (
	"strings"
	"testing"
	"time"
)

func TestQueryValidate(t *testing.T) {
	for _, tt := range []struct {
		name string
		q    Query
		want string // the whole error; empty: good
	}{
		{"service", Query{Service: "web"}, ""},
		{"prepared query", Query{PreparedQuery: "near-web", PollInterval: time.Second}, ""},
		{"everything", Query{
			Service: "web", Tags: []string{"a", "b c/d"}, NodeMeta: map[string]string{"rack": ""},
			Datacenter: "dc1", Namespace: "ns", Partition: "p", Peer: "east", SamenessGroup: "sg",
			Address: AddressWANv6, PortName: "grpc", Kinds: []string{"connect-proxy", "api-gateway", "connect-proxy"},
			Near: "_agent", Nearest: 5, Consistency: Consistent,
		}, ""},
		{"cached default", Query{Service: "web", Cached: true, Consistency: Default}, ""},
		{"cached stale", Query{Service: "web", Cached: true, Consistency: Stale}, ""},

		{"nothing", Query{}, `service: missing: want the name of a service, or a prepared_query`},
		{"both", Query{Service: "web", PreparedQuery: "q"}, `prepared_query: "q": want either this or service`},
		{"service with a slash", Query{Service: "a/b"}, `service: "a/b": want a name without a slash`},
		{"service with a newline", Query{Service: "a\nb"}, `service: "a\nb": want a name without control characters`},
		{"service with DEL", Query{Service: "a\x7f"}, `service: "a\x7f": want a name without control characters`},
		{"service with a C1 control", Query{Service: "a\u0085"}, `service: "a\u0085": want a name without control characters`},
		{"service dot", Query{Service: "."}, `service: ".": want a name`},
		{"service dots", Query{Service: ".."}, `service: "..": want a name`},
		{"prepared query with a slash", Query{PreparedQuery: "../x"}, `prepared_query: "../x": want a name without a slash`},
		{"datacenter", Query{Service: "web", Datacenter: "a/b"}, `datacenter: "a/b": want a name without a slash`},
		{"namespace", Query{Service: "web", Namespace: "\x00"}, `namespace: "\x00": want a name without control characters`},
		{"partition", Query{Service: "web", Partition: "."}, `partition: ".": want a name`},
		{"peer", Query{Service: "web", Peer: "a/"}, `peer: "a/": want a name without a slash`},
		{"sameness group", Query{Service: "web", SamenessGroup: "\t"}, `sameness_group: "\t": want a name without control characters`},
		{"port name", Query{Service: "web", PortName: "\r"}, `port_name: "\r": want a name without control characters`},
		{"near", Query{Service: "web", Near: "a\nb"}, `near: "a\nb": want a name without control characters`},
		{"empty tag", Query{Service: "web", Tags: []string{"a", ""}}, `tags: want no empty tag`},
		{"empty key", Query{Service: "web", NodeMeta: map[string]string{"": "x"}}, `node_meta: want no empty key`},
		{"address", Query{Service: "web", Address: "LAN"}, `address: "LAN": want one of lan, lan_ipv4, lan_ipv6, wan, wan_ipv4, wan_ipv6, virtual`},
		{"kind", Query{Service: "web", Kinds: []string{"typical"}}, `kinds: "typical": want one of connect-proxy, mesh-gateway, terminating-gateway, ingress-gateway, api-gateway`},
		{"consistency", Query{Service: "web", Consistency: "weak"}, `consistency: "weak": want one of stale, default, consistent`},
		{"cached consistent", Query{Service: "web", Cached: true, Consistency: Consistent}, `cached: true: want it false with consistency "consistent"`},
		{"nearest below zero", Query{Service: "web", Near: "_agent", Nearest: -1}, `nearest: -1: want at least 1`},
		{"nearest alone", Query{Service: "web", Nearest: 2}, `nearest: 2: want near with it`},
		{"poll interval below zero", Query{PreparedQuery: "q", PollInterval: -1}, `poll_interval: -1ns: want a positive time`},
		{"poll interval of a service", Query{Service: "web", PollInterval: time.Second}, `poll_interval: 1s: want prepared_query with it; a service is watched, not polled`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var got string
			if err := tt.q.Validate(); err != nil {
				got = err.Error()
			}
			if got != tt.want {
				t.Errorf("Validate\n got %q\nwant %q", got, tt.want)
			}
		})
	}
}

// All mistakes are told at once, and in the order of the fields every time.
func TestQueryValidateOrder(t *testing.T) {
	q := Query{
		Service: "a/b", PreparedQuery: "..", Datacenter: "/", Namespace: "/", Partition: "/", Peer: "/", SamenessGroup: "/", PortName: "/", Near: "/",
		Tags: []string{""}, NodeMeta: map[string]string{"": ""}, Address: "x", Kinds: []string{"y", "z"},
		Consistency: "w", Nearest: -1, PollInterval: -1,
	}
	want := []string{
		"prepared_query", "service", "prepared_query", "datacenter", "namespace", "partition", "peer", "sameness_group", "port_name", "near",
		"tags", "node_meta", "address", "kinds", "kinds", "consistency", "nearest", "poll_interval",
	}
	for range 50 {
		var got []string
		for line := range strings.Lines(q.Validate().Error()) {
			field, _, ok := strings.Cut(line, ": ")
			if !ok {
				t.Fatalf("no field in %q", line)
			}
			got = append(got, field)
		}
		if g, w := strings.Join(got, " "), strings.Join(want, " "); g != w {
			t.Fatalf("fields\n got %s\nwant %s", g, w)
		}
	}
}

func TestQueryName(t *testing.T) {
	for _, tt := range []struct {
		q    Query
		want string
	}{
		{Query{Service: "web"}, `service "web"`},
		{Query{PreparedQuery: "near\nweb"}, `prepared query "near\nweb"`},
	} {
		if got := tt.q.name(); got != tt.want {
			t.Errorf("name: got %s, want %s", got, tt.want)
		}
	}
}
