package discovery_test

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"pgregory.net/rapid"

	"gatehouse.internal/discovery"
	"gatehouse.internal/discovery/discoverytest"
	"gatehouse.internal/lbcore"
)

const goodHCL = `
# two ways to write an endpoint
endpoints = [
  "10.0.0.1:80",
  {
    health_check = { address = "10.9.9.9", port = 8081, hostname = "probe", disabled = true }
    address = "[2001:db8::1]:81", weight = 7, priority = 2,
    locality = { region = "eu", zone = "eu-1a", sub_zone = "r7" }, locality_weight = 3
    additional_addresses = ["10.0.0.9:81", "[2001:db8::2]:81"]
    hash_key = "k", "hostname" = "h", health_status = "draining", enabled = false
  },
  { address = "unix:///run/x.sock", weight = 0, enabled = true },
]
`

const goodJSON = `{"endpoints": [
  "10.0.0.1:80",
  {"address": "[2001:db8::1]:81", "weight": 7, "priority": 2,
   "locality": {"region": "eu", "zone": "eu-1a", "sub_zone": "r7"}, "locality_weight": 3,
   "additional_addresses": ["10.0.0.9:81", "[2001:db8::2]:81"],
   "hash_key": "k", "hostname": "h", "health_status": "DRAINING", "enabled": false,
   "health_check": {"address": "10.9.9.9", "port": 8081, "hostname": "probe", "disabled": true}},
  {"address": "unix:///run/x.sock", "weight": 0, "enabled": true}
]}`

func addr(s string) lbcore.Addr {
	a, err := lbcore.ParseAddr(s)
	if err != nil {
		panic(err)
	}
	return a
}

func goodSet() lbcore.Set {
	return lbcore.MustSet(
		lbcore.Endpoint{Addr: addr("10.0.0.1:80"), Weight: 1, LocalityWeight: 1},
		lbcore.Endpoint{
			Addr: addr("[2001:db8::1]:81"), Weight: 7, Priority: 2,
			Locality: lbcore.Locality{Region: "eu", Zone: "eu-1a", SubZone: "r7"}, LocalityWeight: 3,
			HashKey: "k", Hostname: "h", Status: lbcore.StatusDraining, Enabled: lbcore.OverrideDisable,
			Check:      lbcore.Check{Addr: addr("10.9.9.9:8081"), Hostname: "probe", Disabled: true},
			Additional: lbcore.AddrsOf(addr("10.0.0.9:81"), addr("[2001:db8::2]:81")),
		},
		lbcore.Endpoint{Addr: addr("unix:///run/x.sock"), LocalityWeight: 1, Enabled: lbcore.OverrideEnable},
	)
}

func diff(got, want lbcore.Set) string {
	list := func(s lbcore.Set) (eps []lbcore.Endpoint) {
		for _, e := range s.All() {
			eps = append(eps, e)
		}
		return eps
	}
	return cmp.Diff(list(want), list(got), cmp.Comparer(func(a, b lbcore.Addr) bool { return a == b }))
}

func TestParseFile(t *testing.T) {
	for name, src := range map[string]string{"a.hcl": goodHCL, "a.json": goodJSON, "no-extension": goodHCL} {
		set, dropped, err := discovery.ParseFile(name, []byte(src))
		if err != nil || len(dropped) > 0 {
			t.Errorf("%s: dropped %v, error %v", name, dropped, err)
		}
		if d := diff(set, goodSet()); d != "" {
			t.Errorf("%s: (-want +got)\n%s", name, d)
		}
	}
}

func TestParseFileEmptyListIsAFact(t *testing.T) {
	for name, src := range map[string]string{"a.hcl": "endpoints = []", "a.json": `{"endpoints": []}`} {
		if set, _, err := discovery.ParseFile(name, []byte(src)); err != nil || set.Len() != 0 {
			t.Errorf("%s: got %d endpoints, error %v; want none and nil", name, set.Len(), err)
		}
	}
}

func TestParseFileDuplicateAddresses(t *testing.T) {
	src := `endpoints = ["10.0.0.2:80", { address = "10.0.0.1:80", weight = 5 }, { address = "10.0.0.1:80", weight = 7 }, "[::ffff:10.0.0.2]:80"]`
	set, dropped, err := discovery.ParseFile("a.hcl", []byte(src))
	want := lbcore.MustSet(
		lbcore.Endpoint{Addr: addr("10.0.0.2:80"), Weight: 1, LocalityWeight: 1}, lbcore.Endpoint{Addr: addr("10.0.0.1:80"), Weight: 5, LocalityWeight: 1},
	)
	if err != nil || !set.Equal(want) {
		t.Errorf("error %v, (-want +got)\n%s", err, diff(set, want))
	}
	if len(dropped) != 2 || dropped[0].Index != 2 || dropped[0].Endpoint.Weight != 7 || dropped[1].Index != 3 {
		t.Errorf("dropped %v, want the elements 2 and 3", dropped)
	}
}

// Every mistake is found, each at its own place.
func TestParseFileMistakes(t *testing.T) {
	const plain = "; variables, functions and templates have no meaning here; a string needs quotes"
	for _, c := range []struct{ name, file, src, want string }{
		{"several", "a.hcl", `endpoints = [
  "10.0.0.1",
  { address = "10.0.0.2:80", wieght = 2 },
  { address = "10.0.0.3:80", weight = -1, weight = 3, priority = 129 },
  { weight = 1 },
]
endpoint = []`, `a.hcl:2:3: address "10.0.0.1": want IP:port, [IPv6]:port or unix:///path
a.hcl:3:30: unknown key "wieght" in an endpoint; did you mean "weight"?
a.hcl:4:39: weight is out of range; want a whole number from 0 to 4294967295
a.hcl:4:43: weight is given twice in an endpoint; leave one of the two out
a.hcl:4:66: priority is out of range; want a whole number from 0 to 128
a.hcl:5:3: an endpoint needs an address; as in address = "10.0.0.1:80"
a.hcl:7:1: Unsupported argument; An argument named "endpoint" is not expected here.`},
		{"several", "a.json", `{"endpoints": [
  "10.0.0.1",
  {"address": "10.0.0.2:80", "wieght": 2},
  {"address": "10.0.0.3:80", "weight": -1, "weight": 3, "priority": 1.5},
  {"weight": 1}
],
"endpoint": []}`, `a.json:2:3: address "10.0.0.1": want IP:port, [IPv6]:port or unix:///path
a.json:3:30: unknown key "wieght" in an endpoint; did you mean "weight"?
a.json:4:40: weight is out of range; want a whole number from 0 to 4294967295
a.json:4:44: weight is given twice in an endpoint; leave one of the two out
a.json:4:69: priority is out of range; want a whole number from 0 to 128
a.json:5:3: an endpoint needs an address; as in address = "10.0.0.1:80"
a.json:7:1: Extraneous JSON object property; No argument or block type is named "endpoint".`},
		{"locality weights", "a.hcl", `endpoints = [
  { address = "10.0.0.1:80", locality = { zone = "a" }, locality_weight = 2 },
  { address = "10.0.0.2:80", locality = { zone = "a" }, locality_weight = 3 },
  { address = "10.0.0.3:80", locality_weight = 0.5 },
  { address = "10.0.0.4:80", locality_weight = -1 },
]`, `a.hcl:3:75: locality_weight is 3, and 2 elsewhere in the same locality and priority; make it the same, or say it once
a.hcl:4:48: locality_weight is out of range; want a whole number from 0 to 4294967295
a.hcl:5:48: locality_weight is out of range; want a whole number from 0 to 4294967295`},
		{"additional addresses", "a.hcl", `endpoints = [
  { additional_addresses = ["10.0.0.2:80", "10.0.0.1:80", "10.0.0.2:80", "[::ffff:10.0.0.2]:80"], address = "10.0.0.1:80" },
  { address = "10.0.0.3:80", additional_addresses = "10.0.0.4:80" },
  { address = "10.0.0.4:80", additional_addresses = ["db.internal:80", "10.0.0.5", "unix:///run/x", 7] },
  { address = "unix:///run/x", additional_addresses = ["10.0.0.5:80"] },
  { address = "10.0.0.6:80", additional_addresses = ["10.0.0.9:1", "10.0.0.9:2", "10.0.0.9:3", "10.0.0.9:4", "10.0.0.9:5", "10.0.0.9:6", "10.0.0.9:7", "10.0.0.9:8", "10.0.0.9:9", "10.0.0.9:10", "10.0.0.9:11", "10.0.0.9:12", "10.0.0.9:13", "10.0.0.9:14", "10.0.0.9:15", "10.0.0.9:16"] },
]`, `a.hcl:2:44: additional_addresses has 10.0.0.1:80, which the endpoint has already; leave it out
a.hcl:2:59: additional_addresses has 10.0.0.2:80, which the endpoint has already; leave it out
a.hcl:2:74: additional_addresses has 10.0.0.2:80, which the endpoint has already; leave it out
a.hcl:3:53: additional_addresses must be a list; as in ["[2001:db8::1]:80"]
a.hcl:4:54: address "db.internal:80": want IP:port, [IPv6]:port or unix:///path
a.hcl:4:72: address "10.0.0.5": want IP:port, [IPv6]:port or unix:///path
a.hcl:4:84: additional_addresses can't be unix sockets; want IP:port or [IPv6]:port
a.hcl:4:101: additional_addresses must be a string, not a number
a.hcl:5:55: a unix socket has no additional_addresses; leave them out
a.hcl:6:53: 16 addresses in additional_addresses; want at most 15`},
		{"sum of locality weights", "a.hcl", `endpoints = [
  { address = "10.0.0.1:80", priority = 7, locality_weight = 4294967295 },
  { address = "10.0.0.2:80", priority = 7, locality = { zone = "a" } },
]`, `a.hcl:1:13: the localities of priority 7 have weights of 4294967296 in all; want at most 4294967295`},
		{"types", "a.hcl", `endpoints = [
  5, null, true, [],
  { address = 5 },
  { address = "10.0.0.1:80", weight = "2", hostname = 5, enabled = "yes", locality = "eu", health_check = [], priority = null },
  { address = "10.0.0.1:80", health_status = "fine", locality = { zone = 1, area = "" } },
]`, `a.hcl:2:3: an endpoint must be a string, not a number
a.hcl:2:6: an endpoint is null; leave it out, or give it a value
a.hcl:2:12: an endpoint must be a string, not a bool
a.hcl:2:18: an endpoint must be a string, not a tuple
a.hcl:3:15: address must be a string, not a number
a.hcl:4:39: weight must be a number, not a string
a.hcl:4:55: hostname must be a string, not a number
a.hcl:4:68: enabled must be a bool, not a string
a.hcl:4:86: locality must be an object; with keys among region, zone, sub_zone
a.hcl:4:107: health_check must be an object; with keys among address, port, hostname, disabled
a.hcl:4:122: priority is null; leave it out, or give it a value
a.hcl:5:46: health status "fine": want one of unknown, healthy, unhealthy, draining, timeout, degraded
a.hcl:5:74: zone must be a string, not a number
a.hcl:5:77: unknown key "area" in locality; one of region, zone, sub_zone`},
		{"not plain", "a.hcl", `endpoints = [
  { address = foo.bar },
  { address = upper("10.0.0.1:80") },
  { address = "${host}:80" },
  { (x) = 1, address = "10.0.0.1:80" },
  { "" = 1, address = "10.0.0.1:80" },
]`, `a.hcl:2:15: address must be a plain value` + plain + `
a.hcl:3:15: address must be a plain value` + plain + `
a.hcl:4:18: address must be a plain value` + plain + `
a.hcl:5:6: a key must be a plain value` + plain + `
a.hcl:6:5: unknown key "" in an endpoint; one of address, weight, priority, locality, locality_weight, hash_key, hostname, additional_addresses, health_status, enabled, health_check`},
		{"health checks", "a.hcl", `endpoints = [
  { address = "10.0.0.1:80", health_check = { address = "host" } },
  { address = "10.0.0.1:80", health_check = { address = "10.0.0.1:81", port = 82 } },
  { address = "10.0.0.1:80", health_check = { address = "fe80::1%eth0" } },
  { address = "10.0.0.1:80", health_check = { port = 0 } },
  { address = "unix:///x", health_check = { port = 80 } },
  { address = "unix:///x", health_check = { address = "10.0.0.1" } },
  { address = "bad", health_check = { port = 80 } },
]`, `a.hcl:2:57: address "host": want an IP, IP:port, [IPv6]:port or unix:///path
a.hcl:3:79: the address "10.0.0.1:81" has a port already; leave one of the two out
a.hcl:4:57: address "fe80::1%eth0": want an IP, IP:port, [IPv6]:port or unix:///path
a.hcl:5:54: port is out of range; want a whole number from 1 to 65535
a.hcl:6:43: a unix socket has no IP and port to probe; give health_check both address and port
a.hcl:7:43: a unix socket has no IP and port to probe; give health_check both address and port
a.hcl:8:15: address "bad": want IP:port, [IPv6]:port or unix:///path`},
		{"addresses", "a.hcl", `endpoints = ["10.0.0.1:0", "[fe80::1%eth0]:80", "example.com:80", "unix://x"]`,
			`a.hcl:1:14: address "10.0.0.1:0": port 0 can't be dialled
a.hcl:1:28: address "[fe80::1%eth0]:80": an IPv6 zone has no meaning on another host
a.hcl:1:49: address "example.com:80": want IP:port, [IPv6]:port or unix:///path
a.hcl:1:67: address "unix://x": the path of a unix socket must be absolute`},
		{"no list", "a.hcl", `endpoints = "10.0.0.1:80"`, `a.hcl:1:13: endpoints must be a list; as in ["10.0.0.1:80", { address = "10.0.0.2:80", weight = 2 }]`},
		{"comprehension", "a.hcl", `endpoints = [for x in ["10.0.0.1:80"]: x]`, `a.hcl:1:13: endpoints must be a list; as in ["10.0.0.1:80", { address = "10.0.0.2:80", weight = 2 }]`},
		{"huge number", "a.hcl", `endpoints = [{ address = "10.0.0.1:80", weight = 1e999999999 }]`, `a.hcl:1:50: weight is out of range; want a whole number from 0 to 4294967295`},
		{"another name", "a.hcl", "endpoint = []", `a.hcl:1:1: Missing required argument; The argument "endpoints" is required, but no definition was found.
a.hcl:1:1: Unsupported argument; An argument named "endpoint" is not expected here. Did you mean "endpoints"?`},
		{"empty", "a.hcl", "", `a.hcl:1:1: Missing required argument; The argument "endpoints" is required, but no definition was found.`},
		{"empty", "a.json", "", `a.json:1:1: unexpected end of JSON input`},
		{"no object", "a.json", "5", `a.json:1:1: Root value must be object; The root value in a JSON-based configuration must be either a JSON object or a JSON array of objects.`},
		{"cut off", "a.hcl", "endpoints = [\n  \"10.0.0.1:80\",\n  \"10.0", `a.hcl:3:8: Unterminated template string; No closing marker was found for the string.`},
		{"cut off", "a.json", "{\"endpoints\": [\n  \"10.0.0.1:80\",\n  \"10.0", `a.json:3:7: unexpected end of JSON input`},
		{"syntax", "a.json", "{\"endpoints\": [\n  \"ä\", oops]}", `a.json:2:8: invalid character 'o' looking for beginning of value`},
		{"twice", "a.hcl", "endpoints = []\nendpoints = []", `a.hcl:2:1: Attribute redefined; The argument "endpoints" was already set at a.hcl:1,1-10. Each argument may be set only once.`},
	} {
		t.Run(c.name+" "+c.file, func(t *testing.T) {
			set, _, err := discovery.ParseFile(c.file, []byte(c.src))
			if err == nil {
				t.Fatalf("got %v, want the error\n%s", discoverytest.Addrs(set), c.want)
			}
			if d := cmp.Diff(strings.Split(c.want, "\n"), strings.Split(err.Error(), "\n")); d != "" {
				t.Errorf("(-want +got)\n%s", d)
			}
		})
	}
}

func TestParseFileHealthCheckAddresses(t *testing.T) {
	for check, want := range map[string]lbcore.Addr{
		`{}`:                                  {},
		`{ port = 81 }`:                       addr("10.0.0.1:81"),
		`{ address = "10.0.0.2" }`:            addr("10.0.0.2:80"),
		`{ address = "2001:db8::1" }`:         addr("[2001:db8::1]:80"),
		`{ port = 81, address = "10.0.0.2" }`: addr("10.0.0.2:81"),
		`{ address = "10.0.0.2:83" }`:         addr("10.0.0.2:83"),
		`{ address = "unix:///run/h.sock" }`:  addr("unix:///run/h.sock"),
	} {
		set, _, err := discovery.ParseFile("a.hcl", []byte(`endpoints = [{ address = "10.0.0.1:80", health_check = `+check+` }]`))
		if err != nil || set.At(0).Check != (lbcore.Check{Addr: want}) {
			t.Errorf("%s: got %v, error %v; want %v", check, set, err, want)
		}
	}
}

// A weight of a locality is said once for all of its priority, or each time.
func TestParseFileLocalityWeights(t *testing.T) {
	src := `endpoints = [
  { address = "10.0.0.1:80", locality = { zone = "a" } },
  { address = "10.0.0.2:80", locality = { zone = "a" }, locality_weight = 3 },
  { locality_weight = 3, address = "10.0.0.3:80", locality = { zone = "a" } },
  { address = "10.0.0.4:80", locality = { zone = "a" }, priority = 1, locality_weight = 4294967295 },
  { address = "10.0.0.5:80", locality = { zone = "b" }, locality_weight = 0 },
  { address = "10.0.0.6:80", locality = { zone = "b" } },
  { address = "10.0.0.7:80", locality = { zone = "c" } },
  "10.0.0.8:80",
]`
	set, _, err := discovery.ParseFile("a.hcl", []byte(src))
	var got []uint32
	for _, e := range set.All() {
		got = append(got, e.LocalityWeight)
	}
	if want := []uint32{3, 3, 3, 1<<32 - 1, 0, 0, 1, 1}; err != nil || !slices.Equal(got, want) {
		t.Errorf("got %d, error %v; want %d", got, err, want)
	}
}

// No input drives the parser's recursion beyond the stack, and no error is
// larger than a log can take.
func TestParseFileHostileInput(t *testing.T) {
	const n = 1 << 15
	for name, c := range map[string]struct{ file, src, want string }{
		"brackets":    {"a.hcl", "endpoints = " + strings.Repeat("[", n), "nested too deeply"},
		"blocks":      {"a.hcl", strings.Repeat("a {\n", n), "nested too deeply"},
		"mismatched":  {"a.hcl", strings.Repeat("a {\n)\n", n), "nested too deeply"},
		"nots":        {"a.hcl", "endpoints = " + strings.Repeat("!", n), "too many operators"},
		"ternaries":   {"a.hcl", "endpoints = " + strings.Repeat("a?", n), "too many operators"},
		"sums":        {"a.hcl", "endpoints = [1" + strings.Repeat("+1", n) + "]", "too many operators"},
		"templates":   {"a.hcl", `endpoints = "` + strings.Repeat("%{if a}", n), "too many operators"},
		"json arrays": {"a.json", `{"endpoints":` + strings.Repeat("[", n), "exceeded max depth"},
		"json, less":  {"a.json", `{"endpoints":[` + strings.Repeat("[", 9000) + strings.Repeat("]", 9000) + "]}", "not a tuple"},
		"long key":    {"a.json", `{"endpoints":[{"` + strings.Repeat("a", n) + `":1}]}`, "unknown key"},
		"mistakes":    {"a.json", `{"endpoints":[` + strings.Repeat("1,", 10_000) + "1]}", "and 9901 more"},
	} {
		_, _, err := discovery.ParseFile(c.file, []byte(c.src))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %.200v, want an error with %q", name, err, c.want)
		} else if len(err.Error()) > 20_000 {
			t.Errorf("%s: an error of %d bytes", name, len(err.Error()))
		}
	}
}

// What the configuration calls: the same list, in an expression of its own.
func TestDecodeEndpoints(t *testing.T) {
	decode := func(src string) ([]lbcore.Endpoint, hcl.Diagnostics) {
		expr, diags := hclsyntax.ParseExpression([]byte(src), "c.hcl", hcl.Pos{Line: 7, Column: 20})
		if diags.HasErrors() {
			t.Fatal(diags)
		}
		return discovery.DecodeEndpoints(expr)
	}
	eps, diags := decode(`["10.0.0.2:80", "10.0.0.1:80", "10.0.0.2:80"]`)
	if len(diags) > 0 || len(eps) != 3 || eps[0].Addr != addr("10.0.0.2:80") {
		t.Errorf("got %v, %v; want three endpoints in the order of the list", eps, diags)
	}
	eps, diags = decode(`["10.0.0.2:80", { address = "10.0.0.1:80", healt_check = {} }]`)
	if len(eps) > 0 || len(diags) != 1 || diags[0].Summary != `unknown key "healt_check" in an endpoint` ||
		diags[0].Detail != `did you mean "health_check"?` || diags[0].Subject.String() != "c.hcl:7,63-74" {
		t.Errorf("got %v, %v; want one diagnostic at 7,63-74", eps, diags)
	}
}

// What is written in either syntax is read back.
func TestParseFileReadsWhatIsWritten(t *testing.T) {
	text := rapid.StringMatching(`[a-z0-9 $%"\\é-]{0,8}`)
	rapid.Check(t, func(t *rapid.T) {
		var eps []lbcore.Endpoint
		type place struct {
			uint8
			lbcore.Locality
		}
		weights := make(map[place]uint32)
		for range rapid.IntRange(0, 5).Draw(t, "n") {
			ip := rapid.SampledFrom([]string{"10.0.0.1", "10.0.0.2", "10.0.0.3", "2001:db8::1"}).Draw(t, "ip")
			port := rapid.Uint16Range(1, 3).Draw(t, "port")
			eps = append(eps, lbcore.Endpoint{
				Addr:     lbcore.IPAddr(netip.AddrPortFrom(netip.MustParseAddr(ip), port)),
				Weight:   rapid.Uint32().Draw(t, "weight"),
				Priority: rapid.Uint8Range(0, lbcore.MaxPriority).Draw(t, "priority"),
				Locality: lbcore.Locality{Region: text.Draw(t, "region"), Zone: text.Draw(t, "zone"), SubZone: text.Draw(t, "sub_zone")},
				HashKey:  text.Draw(t, "hash_key"),
				Hostname: text.Draw(t, "hostname"),
				Status:   lbcore.Status(rapid.IntRange(0, int(lbcore.StatusDegraded)).Draw(t, "status")),
				Enabled:  lbcore.Override(rapid.IntRange(1, 2).Draw(t, "enabled")),
				Check:    lbcore.Check{Hostname: text.Draw(t, "check hostname"), Disabled: rapid.Bool().Draw(t, "disabled")},
			})
			e := &eps[len(eps)-1]
			var more []lbcore.Addr
			for port := range rapid.Uint16Range(0, lbcore.MaxAdditional).Draw(t, "additional") {
				more = append(more, lbcore.IPAddr(netip.AddrPortFrom(e.Addr.AddrPort().Addr(), 10+port)))
			}
			e.Additional = lbcore.AddrsOf(more...)
			at := place{e.Priority, e.Locality}
			if _, ok := weights[at]; !ok {
				weights[at] = rapid.Uint32Range(0, math.MaxUint32/5).Draw(t, "locality_weight")
			}
			e.LocalityWeight = weights[at]
		}
		want, wantDropped, err := lbcore.NewSet(eps)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range []string{"a.hcl", "a.json"} {
			set, dropped, err := discovery.ParseFile(file, write(file, eps))
			if err != nil {
				t.Fatalf("%s: %v\n%s", file, err, write(file, eps))
			}
			if !set.Equal(want) || !slices.Equal(dropped, wantDropped) {
				t.Fatalf("%s: (-want +got)\n%s", file, diff(set, want))
			}
		}
	})
}

// write writes eps, as HCL or JSON by the ending of file. Both take the keys in
// quotes and with colons; HCL has two more characters to escape.
func write(file string, eps []lbcore.Endpoint) []byte {
	quote := func(s string) string {
		s = fmt.Sprintf("%q", s)
		if !strings.HasSuffix(file, ".json") {
			s = strings.NewReplacer("${", "$${", "%{", "%%{").Replace(s)
		}
		return s
	}
	var b strings.Builder
	for i, e := range eps {
		if i > 0 {
			b.WriteString(",\n")
		}
		fmt.Fprintf(&b, `{"address": %s, "weight": %d, "priority": %d, "locality": {"region": %s, "zone": %s, "sub_zone": %s},`,
			quote(e.Addr.String()), e.Weight, e.Priority, quote(e.Locality.Region), quote(e.Locality.Zone), quote(e.Locality.SubZone))
		fmt.Fprintf(&b, `"locality_weight": %d,`, e.LocalityWeight)
		fmt.Fprintf(&b, `"hash_key": %s, "hostname": %s, "health_status": %s,`, quote(e.HashKey), quote(e.Hostname), quote(e.Status.String()))
		b.WriteString(`"additional_addresses": [`)
		comma := ""
		for a := range e.Additional.All() {
			fmt.Fprintf(&b, "%s%s", comma, quote(a.String()))
			comma = ", "
		}
		b.WriteString("],")
		if e.Enabled != lbcore.OverrideNone {
			fmt.Fprintf(&b, `"enabled": %v,`, e.Enabled == lbcore.OverrideEnable)
		}
		fmt.Fprintf(&b, `"health_check": {"hostname": %s, "disabled": %v}}`, quote(e.Check.Hostname), e.Check.Disabled)
	}
	if strings.HasSuffix(file, ".json") {
		return []byte(`{"endpoints": [` + b.String() + `]}`)
	}
	return []byte("endpoints = [" + b.String() + "]\n")
}

func FuzzParseFileHCL(f *testing.F)  { fuzzParseFile(f, "f.hcl", goodHCL) }
func FuzzParseFileJSON(f *testing.F) { fuzzParseFile(f, "f.json", goodJSON) }

func fuzzParseFile(f *testing.F, file, good string) {
	f.Add([]byte(good))
	f.Add([]byte(good[:len(good)/2]))
	f.Add([]byte(""))
	f.Add(write(file, discoverytest.First()))
	f.Add([]byte(`endpoints = [{ address = "10.0.0.1:80", weight = 1e9, "x${y}" = !-1 ? "a" : <<E` + "\nE\n}, [[]]]"))
	f.Fuzz(func(t *testing.T, data []byte) {
		set, dropped, err := discovery.ParseFile(file, data)
		if err != nil {
			if set.Len() > 0 || len(dropped) > 0 {
				t.Errorf("an error came with a set: %v", err)
			}
			if !strings.HasPrefix(err.Error(), file+":") {
				t.Errorf("an error without a place: %v", err)
			}
			return
		}
		var eps []lbcore.Endpoint
		for _, e := range set.All() {
			eps = append(eps, e)
		}
		if again, more, err := lbcore.NewSet(eps); err != nil || len(more) > 0 || !again.Equal(set) {
			t.Errorf("no valid set: %v, %d duplicates", errors.Join(err), len(more))
		}
	})
}
