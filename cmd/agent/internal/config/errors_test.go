package config

import (
	"bytes"
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"gatehouse.internal/healthsvc"
	"gatehouse.internal/lbcore"
	"gatehouse.internal/lbcore/maglev"
)

var update = flag.Bool("update", false, "write what is said about testdata/bad")

// Each file in testdata/bad has all that is to be said about it beside it, as
// an operator sees it.
func TestBad(t *testing.T) {
	names, err := filepath.Glob("testdata/bad/*.*")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, name := range names {
		if strings.HasSuffix(name, ".want") {
			continue
		}
		n++
		t.Run(filepath.Base(name), func(t *testing.T) {
			cfg, err := Load(Options{Paths: []string{name}, Hostname: "host"})
			errs, ok := err.(Errors)
			if cfg != nil || !ok {
				t.Fatalf("Load: %v, %v", cfg, err)
			}
			var got bytes.Buffer
			if err := errs.Print(&got); err != nil {
				t.Fatal(err)
			}
			if *update {
				if err := os.WriteFile(name+".want", got.Bytes(), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(name + ".want")
			if err != nil {
				t.Fatal(err)
			}
			if got.String() != string(want) {
				t.Errorf("got:\n%s\nwant:\n%s", &got, want)
			}
		})
	}
	if n < 6 {
		t.Errorf("only %d files", n)
	}
}

func TestThreeMistakes(t *testing.T) {
	got := mistakes(t, Options{Paths: []string{"testdata/bad/three.hcl"}, Hostname: "h"}, "testdata/bad")
	want := `three.hcl:6:5: unknown key "intervall" in health_check (did you mean "interval"?)
three.hcl:8:21: connect_timeout: "5 seconds" is no duration (write it as "5s", "1m30s" or "250ms")
three.hcl:13:13: there is no cluster "wbe" (did you mean "web"?)`
	if got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
}

// A mistake in syntax hides what it makes unknowable, and nothing else.
func TestSyntax(t *testing.T) {
	const good = "cluster \"a\" {\n  discovery \"file\" { path = \"x\" }\n}\n"
	for _, tc := range []struct {
		name, file, text string
		want             string
	}{
		{"values", "a.hcl", good + `drain_timeout = 5s
gate { max_stuck = }
log { level = "loud" }
admin { address = 127.0.0.1:80 }
drain_timeout = "6s"
listener "l" {
  address = "127.0.0.1:80"
  cluster = "b"
}
cluster "b" {
  discovery "static" {
    endpoints = ["127.0.0.1:80", 5s]
  }
  health_check "tcp" {
    interval = 5s
    timeout  = "9s"
  }
}
stray text
gate { max_stuck = 0 }
`, `a.hcl:4:18: missing newline after argument (one argument a line;
a.hcl:5:20: invalid expression (
a.hcl:6:15: level can't be "loud" (
a.hcl:7:19: invalid number literal (one argument a line;
a.hcl:8:1: attribute redefined (The argument "drain_timeout" was already set at a.hcl:4:1.
a.hcl:15:35: missing item separator (
a.hcl:18:17: missing newline after argument (
a.hcl:22:11: invalid block definition (
a.hcl:23:20: max_stuck is out of range: 0 (
`},
		{"one line", "a.hcl", good + "gate { max_stuck = 0  stuck_after = \"1s\" }\nlog { level = \"loud\" }\n",
			"a.hcl:4:23: invalid single-argument block definition (in one line\na.hcl:5:15: level can't be \"loud\"\n"},
		{"no equals sign", "a.hcl", "cluster \"a\" {\n  discovery \"file\" {\n    path \"x\"\n  }\n  max_connect_attempts = 0\n}\n",
			"a.hcl:3:13: invalid block definition (\na.hcl:5:26: max_connect_attempts is out of range: 0 (\n"},
		{"three values and a reference", "a.hcl", good + "drain_timeout = 5s\nlistener \"l\" {\n  address = 127.0.0.1:80\n  cluster = \"b\"\n  idle_timeout = 1h\n}\n",
			"a.hcl:4:18: missing\na.hcl:6:13: invalid number\na.hcl:7:13: there is no cluster \"b\" (def\na.hcl:8:19: missing\n"},
		{"a list in lines", "a.hcl", good + "cluster \"b\" {\n  discovery \"static\" {\n    endpoints = [\n      \"a\"\n      5s,\n    ]\n  }\n  foo = 1\n}\n", "a.hcl:8:7: missing item separator (\n"},
		{"unclosed block", "a.hcl", "cluster \"a\" {\n" + good + "listener \"l\" {\n}\nfoo = 1\n", "a.hcl:1:13: unclosed configuration block (\n"},
		{"a brace too many", "a.hcl", good + "}\nfoo = 1\n", "a.hcl:4:1: argument or block definition required (\n"},
		{"unclosed string", "a.hcl", "log { level = \"debug }\nfoo = \"bar\"\n", "a.hcl:1:23: invalid multi-line string (\na.hcl:2:1: unknown key \"foo\" (one of\n"},
		{"not UTF-8", "a.hcl", "node {\n  id = \"a\xff\"\n}\n", "a.hcl:2:10: not UTF-8 (\n"},
		{"JSON", "a.json", "{\"foo\": 1,\n \"log\": {level: 1}}", "a.json:2:10: JSON: invalid character 'l' looking for beginning of object key string\n"},
		{"cut off JSON", "a.json", "{\"gate\": {\"max_stuck\": 0,", "a.json:1:25: JSON: unexpected end of JSON input\n"},
		{"JSON with a line end in text", "a.json", "{\"log\": {\"level\": \"a\nb\", \"x\": }}", "a.json:1:21: JSON: invalid character '\\n' in string literal\n"},
		{"JSON of another kind", "a.json", "3", "a.json:1:1: root value must be object\n"},
		{"empty JSON", "a.json", "", "a.json:1:1: JSON: unexpected end of JSON input\n"},
		{"JSON array", "a.json", `[{"log": {"level": "loud"}}, 1]`, "a.json:1:20: level\na.json:1:30: incorrect JSON value type (\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := files(t, tc.file, tc.text)
			// What refers into the file can't be judged, what is in others can.
			other := files(t, "z.hcl", "listener \"z\" {\n  address = \"127.0.0.1:81\"\n  cluster = \"unseen\"\n  max_connections = -1\n}\n")
			got := mistakes(t, Options{Paths: []string{dir, other}, Hostname: "h"}, dir)
			if !strings.Contains(got, "z.hcl:4:21: max_connections") {
				t.Errorf("the other file's mistake is missing")
			}
			t.Log("\n" + got)
			lines := strings.Split(got, "\n")
			i := 0
			for _, w := range strings.Split(strings.TrimSpace(tc.want), "\n") {
				for i < len(lines) && strings.HasPrefix(lines[i], other) {
					i++
				}
				if i >= len(lines) || !strings.HasPrefix(lines[i], w) {
					t.Fatalf("line %d is not %q", i, w)
				}
				i++
			}
		})
	}
}

func TestBOM(t *testing.T) {
	dir := files(t, "a.hcl", "\ufefflog { level = \"loud\" }\n", "b.json", "\ufeff{\"log\": {\"level\": \"loud\"}}")
	got := mistakes(t, Options{Paths: []string{dir}, Hostname: "h"}, dir)
	want := `a.hcl:1:15: level can't be "loud" (one of debug, info, warn, error)
b.json:1:19: level can't be "loud" (one of debug, info, warn, error)`
	if got != want {
		t.Errorf("got:\n%s", got)
	}
}

// What would drive the parsers into recursion without end, or take forever to
// print, is refused.
func TestLimits(t *testing.T) {
	const n = 1 << 16
	for _, tc := range []struct{ name, file, text, want string }{
		{"brackets", "a.hcl", "a = " + strings.Repeat("[", n), "a.hcl:1:105: nested too deeply"},
		{"blocks", "a.hcl", strings.Repeat("a {\n", n), "a.hcl:101:3: nested too deeply"},
		{"operators", "a.hcl", "a = " + strings.Repeat("!", n), "a.hcl:1:1005: nested too deeply"},
		{"conditionals", "a.hcl", "a = " + strings.Repeat("1?", n), "a.hcl:1:2006: nested too deeply"},
		{"templates", "a.hcl", "a = " + strings.Repeat(`"${`, n), "a.hcl:1:155: nested too deeply"},
		{"closed before it is opened", "a.hcl", "a = 1 " + strings.Repeat("]", 500) + "\nb = " + strings.Repeat("[", n), "a.hcl:2:105: nested too deeply"},
		{"closed all the time", "a.hcl", "a = " + strings.Repeat("[)", n), "a.hcl:1:205: nested too deeply"},
		{"JSON", "a.json", "{\n\"a\": " + strings.Repeat("[", n), "a.json:2:10005: JSON: invalid character '[' exceeded max depth"},
		{"number", "a.hcl", "gate { max_stuck = 1e999999999 }", "a.hcl:1:20: max_stuck is out of range (from 1 to 1024; the default is 4)"},
		{"small number", "a.hcl", "gate { max_stuck = 1e-999999999 }", "a.hcl:1:20: max_stuck is out of range: 0 (from 1 to 1024; the default is 4)"},
		{"number as a key", "a.hcl", "node { metadata = { 1e999999999 = 1 } }", "a.hcl:1:21: metadata is out of range"},
		{"JSON number", "a.json", `{"gate": {"max_stuck": 1e999999999}}`, "a.json:1:24: max_stuck must be a whole number (from 1 to 1024; the default is 4)"},
		{"long text", "a.hcl", "log { level = \"" + strings.Repeat("x", 1<<16) + "\" }", "a.hcl:1:15: level can't be \"xxx"},
		{"long key", "a.hcl", strings.Repeat("x", 1<<16) + " = 1", "a.hcl:1:1: unknown key \"xxx"},
		{"name", "a.hcl", "cluster \"" + strings.Repeat("x", 256) + "\" {\n  discovery \"file\" { path = \"x\" }\n}\n", "a.hcl:1:9: not a name for a cluster (1 to 255 printable characters)"},
		{"name with a line end", "a.json", `{"cluster": {"a\nb": {"discovery": {"file": {"path": "x"}}}}}`, "a.json:1:14: not a name for a cluster (1 to 255"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := files(t, tc.file, tc.text)
			got := mistakes(t, Options{Paths: []string{dir}, Hostname: "h"}, dir)
			if !strings.HasPrefix(got, tc.want) || strings.Contains(got, "\n") {
				t.Errorf("got  %.300s\nwant %s", got, tc.want)
			}
			if len(got) > 1000 {
				t.Errorf("%d bytes of message", len(got))
			}
		})
	}
	// Depth counts what is open, not what there was.
	deep := strings.Repeat("[", 9990) + strings.Repeat("]", 9990)
	mustLoad(t, Options{Paths: []string{files(t, "a.json", `{"node": {"metadata": {"a": `+deep+`}}}`)}, Hostname: "h"})
	ok := files(t, "a.hcl", "node {\n  metadata = { a = ["+strings.Repeat("[{}],", 1000)+"] }\n}\n")
	mustLoad(t, Options{Paths: []string{ok}, Hostname: "h"})
}

func TestManyMistakes(t *testing.T) {
	var text strings.Builder
	for i := range 1500 {
		fmt.Fprintf(&text, "foo%d = 1\n", i)
	}
	dir := files(t, "a.hcl", text.String())
	_, err := Load(Options{Paths: []string{dir}, Hostname: "h"})
	errs := err.(Errors)
	if len(errs) != maxErrors+1 || errs[maxErrors-1].Line != maxErrors || errs[maxErrors].Message != "500 more mistakes follow" {
		t.Errorf("%d mistakes, the last %v", len(errs), errs[len(errs)-1])
	}
}

func TestPrint(t *testing.T) {
	dir := files(t, "a.hcl", "node {\n\t  id = \"é\U0001f980\"\r\n\tfoo = 1\r\n\t\t/* é\U0001f980 \x1b[31m */ bar = 1\r\n}\nbaz = \""+strings.Repeat("x", 600)+"\"\n")
	_, err := Load(Options{Paths: []string{dir}, Hostname: "h"})
	var b strings.Builder
	if err := err.(Errors).Print(&b); err != nil {
		t.Fatal(err)
	}
	got := strings.ReplaceAll(b.String(), dir+"/", "")
	want := `a.hcl:3:2: unknown key "foo" in node (one of id, cluster, locality, metadata)
      3 | 	foo = 1
        | 	^
a.hcl:4:18: unknown key "bar" in node (one of id, cluster, locality, metadata)
      4 | 		/* é🦀 ` + "\ufffd" + `[31m */ bar = 1
        | 		               ^
a.hcl:6:1: unknown key "baz" (one of node, admin, log, gate, relay, limits, health, telemetry, xds, consul, dns, state_dir, stale_is_ready, initial_timeout, drain_timeout, drain_spread, takeover, cluster, listener)
`
	if got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}

	j, jerr := json.Marshal(err.(Errors)[:1])
	if jerr != nil {
		t.Fatal(jerr)
	}
	if got := strings.ReplaceAll(string(j), dir+"/", ""); got !=
		`[{"file":"a.hcl","line":3,"column":2,"message":"unknown key \"foo\" in node","hint":"one of id, cluster, locality, metadata","source":"\tfoo = 1"}]` {
		t.Error(got)
	}
	if err := (Errors{{File: "x"}}).Print(failing{}); err == nil {
		t.Error("a writer's error was lost")
	}
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, os.ErrClosed }

func TestOverlap(t *testing.T) {
	for _, tc := range []struct {
		a, b string
		want bool
	}{
		{"127.0.0.1:80", "127.0.0.1:80", true},
		{"127.0.0.1:80", "[::ffff:127.0.0.1]:80", true},
		{"127.0.0.1:80", "127.0.0.1:81", false},
		{"127.0.0.1:80", "127.0.0.2:80", false},
		{"127.0.0.1:80", "0.0.0.0:80", true},
		{"127.0.0.1:80", "[::]:80", true},
		{"[::1]:80", "[::]:80", true},
		{"[::1]:80", "0.0.0.0:80", false},
		{"[::]:80", "0.0.0.0:80", true},
		{"[::]:80", "[::]:81", false},
		{"127.0.0.1:0", "127.0.0.1:0", false},
		{"127.0.0.1:9901", "127.0.0.2:1", true}, // admin's
		{"unix:///a", "unix:///a", true},
		{"unix:///a", "unix:///b", false},
		{"unix:///a", "0.0.0.0:80", false},
	} {
		for _, x := range [][2]string{{tc.a, tc.b}, {tc.b, tc.a}} {
			dir := files(t, "a.hcl", fmt.Sprintf(`
cluster "c" {
  discovery "file" { path = "x" }
}
listener "a" {
  address = %q
  cluster = "c"
}
listener "b" {
  address = %q
  cluster = "c"
}
`, x[0], x[1]))
			_, err := Load(Options{Paths: []string{dir}, Hostname: "h"})
			if got := err != nil; got != tc.want {
				t.Errorf("%s: overlap %v: %v", x, got, err)
			}
		}
	}
}

// A schema is good if all that its tags say can be used: defaults are in range,
// words are known, kinds exist.
func TestSchema(t *testing.T) {
	var visit func(b *block, typ reflect.Type)
	visit = func(b *block, typ reflect.Type) {
		kinds := []string{""}
		if b.kind != nil {
			kinds = b.kind.enum
		}
		for _, kind := range kinds {
			v := reflect.New(typ).Elem()
			if b.kind != nil {
				v.Field(b.kind.index).SetString(kind)
			}
			(&decoder{}).defaults(b, v) // panics
		}
		for _, f := range b.fields {
			ft := typ.Field(f.index).Type
			for _, kind := range f.forKinds {
				if !slices.Contains(kinds, kind) {
					t.Errorf("%s.%s is for the unknown kind %q", b.name, f.name, kind)
				}
			}
			for _, end := range []string{f.min, f.max} {
				if end == "" {
					continue
				}
				inRange := f
				inRange.min, inRange.max = "", ""
				if msg, _ := setText(&inRange, reflect.New(ft).Elem(), end); msg != "" {
					t.Errorf("%s.%s: range: %s", b.name, f.name, msg)
				}
			}
			for _, word := range f.enum {
				if ft.Kind() == reflect.Slice {
					ft = ft.Elem()
				}
				if msg, _ := setText(&f, reflect.New(ft).Elem(), strings.Replace(word, "0xNN", "0xea", 1)); msg != "" {
					t.Errorf("%s.%s: enum: %s", b.name, f.name, msg)
				}
			}
			if f.block == nil {
				continue
			}
			if f.many {
				ft = ft.Elem()
			}
			visit(f.block, ft)
		}
	}
	visit(newBlock("", reflect.TypeFor[Config]()), reflect.TypeFor[Config]())
}

func FuzzHCL(f *testing.F)  { fuzz(f, "hcl") }
func FuzzJSON(f *testing.F) { fuzz(f, "json") }

// fuzz holds Load to its word: mistakes with a place in the file, or a
// configuration that keeps the documented rules.
func fuzz(f *testing.F, ext string) {
	names, err := filepath.Glob("testdata/*/*." + ext)
	if err != nil || len(names) == 0 {
		f.Fatal("no seeds", err)
	}
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		name := "a." + ext
		d := newDecoder()
		d.file(name, text)
		cfg, err := d.result(Options{Hostname: "h"})
		if err == nil {
			checkRules(t, cfg)
			return
		}
		lines := bytes.Split(text, []byte("\n"))
		errs, ok := err.(Errors)
		if !ok || len(errs) == 0 || cfg != nil {
			t.Fatalf("%v, %#v", cfg, err)
		}
		for _, e := range errs {
			if e.Message == "" || !utf8.ValidString(e.Error()) || strings.ContainsAny(e.Error(), "\n\r\x1b") {
				t.Fatalf("message %q", e.Error())
			}
			if e.Hint == "correct these first" {
				continue
			}
			if e.File == name && (e.Line < 1 || e.Line > len(lines) || e.Column < 1 || e.Column > len(lines[e.Line-1])+1) {
				t.Fatalf("position outside of the file: %v", e)
			}
		}
	})
}

func checkRules(t *testing.T, cfg *Config) {
	t.Helper()
	must := func(ok bool, what string) {
		if !ok {
			t.Errorf("%s in %+v", what, cfg)
		}
	}
	must(cfg.Node.ID != "" && cfg.Admin.Address.IsValid(), "empty node or admin")
	must(cfg.Gate.StuckAfter > 0 && cfg.Gate.MaxStuck > 0 && cfg.Health.Workers >= 0 && cfg.DrainTimeout >= 0, "limits")
	must(cfg.XDS.Bootstrap == "" || cfg.XDS.ServerURI == "" && len(cfg.XDS.Servers) == 0, "two control planes")
	must(!cfg.XDS.Clusters || cfg.XDS.Enabled(), "clusters from nowhere")
	must(cfg.Consul.Token == "" || cfg.Consul.TokenFile == "", "two tokens")
	must(cfg.Consul.WaitTime >= time.Second && cfg.Consul.MaxWatches > 0 && cfg.Consul.MaxStale > 0 && cfg.Consul.EmptyHold > 0, "consul's limits")
	must(!cfg.Consul.Register.Enabled || cfg.Admin.Address.Path() == "" && cfg.Consul.Register.CheckInterval > 0, "registration")
	selectors := map[string]map[string]bool{}
	for _, c := range cfg.Clusters {
		must(c.Name != "" && selectors[c.Name] == nil && c.Origin == OriginFile, "cluster's name")
		must(len(c.Discovery) > 0 && len(c.Selectors) > 0, "nothing to discover or select")
		must(c.ConnectTimeout > 0 && c.MaxConnectAttempts >= 1 && c.MaxConnectAttempts <= lbcore.MaxPicks, "dials")
		for _, x := range c.Discovery {
			must((x.Kind == DiscoveryEDS) == (x.ServiceName != "") && (x.Kind == DiscoveryFile) == (x.Path != ""), "discovery")
			must(x.Kind != DiscoveryEDS || cfg.XDS.Enabled(), "eds without xds")
			must((x.Kind == DiscoveryConsul) == (x.Service != "" || x.PreparedQuery != ""), "consul")
			must((x.Kind == DiscoveryDNS) == (x.HostName != "" && x.RecordType != "" && x.MinTTL > 0), "dns")
			must(x.Kind == DiscoveryStatic || x.Endpoints == nil, "endpoints")
		}
		for _, h := range c.HealthChecks {
			must(h.Timeout > 0 && h.Timeout <= h.Interval && h.HealthyThreshold > 0 && h.UnhealthyThreshold > 0, "health check")
			must((h.Kind == CheckHTTP) == strings.HasPrefix(h.Path, "/"), "path")
			must(h.Kind == CheckHTTP || h.ExpectedStatuses == nil && h.Host == "" && (h.Headers == nil || h.Kind == CheckGRPC), "http arguments")
			must(h.Kind == CheckGRPC || h.ServiceName == "" && h.Authority == "", "grpc arguments")
			must(h.Cadence().Validate() == nil && h.Probe(h.HostName(), healthsvc.Transport{}).Validate() == nil, "what can't be probed")
			must((h.TLS.CertFile == "") == (h.TLS.KeyFile == "") && (h.TLS.Enabled || h.TLS.CAFile == ""), "tls")
			must(h.Kind == CheckTCP || h.Send == "" && h.Receive == nil, "tcp arguments")
		}
		must(c.PanicThreshold <= 100 && c.OverprovisioningFactor > 0, "percentages")
		must(!c.PreferLocal || cfg.Node.Locality.Region != "" || cfg.Node.Locality.Zone != "", "near what")
		must(c.SlowStart.Window >= 0 && c.SlowStart.Aggression > 0 && c.SlowStart.MinWeightPercent >= 0 && c.SlowStart.MinWeightPercent <= 100, "slow start")
		o := c.OutlierDetection
		must(o.Interval > 0 && o.BaseEjectionTime > 0 && (o.MaxEjectionTime == 0 || o.MaxEjectionTime >= o.BaseEjectionTime) && o.MaxEjectionTimeJitter >= 0, "times of ejections")
		must(o.MaxEjectionPercent <= 100 && o.EnforcingConsecutive5xx <= 100 && o.FailurePercentageThreshold <= 100, "outlier detection's percentages")
		must(c.ProxyProtocol.Version <= 2 && (c.ProxyProtocol.Version == 2 || !c.ProxyProtocol.UniqueID), "proxy_protocol")
		must((c.TLS.CertFile == "") == (c.TLS.KeyFile == "") && c.TLS.MinVersion <= c.TLS.MaxVersion && c.TLS.MaxSessionKeys >= 0, "tls")
		must(c.TLS.Enabled || c.TLS.CAFile == "" && c.TLS.ServerName == "" && c.TLS.SANs == nil, "tls without a block")
		must(len(c.TLS.Client().SANs) == len(c.TLS.SANs)+len(c.TLS.SPIFFEIDs), "tls names")
		selectors[c.Name] = map[string]bool{"": true}
		latencyOf := ""
		for _, s := range c.Selectors {
			must(s.Name != "" && !selectors[c.Name][s.Name], "selector's name")
			must((s.Policy == PolicyRingHash) == (s.MaximumRingSize > 0) && s.MinimumRingSize <= s.MaximumRingSize, "ring")
			must((s.Policy == PolicyRingHash && s.HashFunction != HashKetama) == (s.MinimumRingSize > 0), "least ring")
			must((s.Policy == PolicyMaglev) == (s.TableSize > 0) && (maglev.Config{TableSize: s.TableSize}).Validate() == nil, "table")
			must(s.HashBalanceFactor == 0 || s.HashBalanceFactor >= 100 && (s.Policy == PolicyRingHash || s.Policy == PolicyMaglev), "bound")
			must((s.Policy == PolicyAdaptive) == (s.Rank != "") && (s.Rank == "") == (s.LatencyOf == ""), "adaptive")
			must(s.LatencyOf == "" || latencyOf == "" || s.LatencyOf == latencyOf, "two kinds of latency")
			latencyOf = cmp.Or(s.LatencyOf, latencyOf)
			must((s.Policy == PolicyLeastWeight) == (s.ChoiceCount > 0) && s.ActiveRequestBias >= 0, "choices")
			selectors[c.Name][s.Name] = true
		}
	}
	names, addrs := map[string]bool{}, map[lbcore.Addr]bool{cfg.Admin.Address: true}
	for _, l := range cfg.Listeners {
		must(l.Name != "" && !names[l.Name] && l.Origin == OriginFile, "listener's name")
		names[l.Name] = true
		must(l.Address.IsValid() && (!addrs[l.Address] || l.Address.Path() == "" && l.Address.AddrPort().Port() == 0), "listener's address")
		addrs[l.Address] = true
		must((l.Cluster == "") == (len(l.WeightedClusters) > 0), "cluster and weighted_cluster")
		sum := uint64(0)
		for _, w := range l.Targets() {
			must(w.Weight > 0, "a weight of 0")
			sum += uint64(w.Weight)
			if known, ok := selectors[w.Name]; ok {
				must(known[l.Selector], "dangling selector")
			} else {
				must(cfg.XDS.Clusters && (l.Selector == "" || l.Selector == DefaultSelector), "dangling cluster")
			}
		}
		must(sum < 1<<32, "weights")
		must(!strings.HasPrefix(l.HashOn, HashOnProxyTLV) || len(l.ProxyProtocol.AcceptFrom) > 0, "proxy_tlv without proxy_protocol")
		must(l.TLSInspector.Timeout > 0 && l.TLSInspector.MaxPending > 0, "tls_inspector's limits")
		must(l.IdleTimeout >= 0 && l.HalfClosedTimeout > 0 && l.MaxConnections >= 0, "listener's limits")
		must(l.ProxyProtocol.Timeout > 0 && l.ProxyProtocol.MaxPending > 0, "proxy_protocol's limits")
		must(l.TLS.Enabled == (l.TLS.CertFile != "" && l.TLS.KeyFile != "") && l.TLS.HandshakeTimeout > 0 && l.TLS.MaxHandshakes > 0, "tls")
		must(!l.TLS.RequireClientCertificate || l.TLS.CAFile != "", "tls without authorities")
		must(len(l.TLS.Server().SANs) == len(l.TLS.SANs)+len(l.TLS.SPIFFEIDs) && (l.TLS.Server().SANs == nil || l.TLS.RequireClientCertificate), "tls names")
	}
}
