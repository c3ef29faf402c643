package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"strings"
	"testing"
)

const withConsul = "cluster \"web\" {\n  discovery \"consul\" {}\n}\n"

// loadConsul loads one file with an environment.
func loadConsul(t *testing.T, text string, env map[string]string) Consul {
	t.Helper()
	return mustLoad(t, Options{Paths: []string{files(t, "a.hcl", text)}, Hostname: "h", Env: lookup(env)}).Consul
}

func lookup(env map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) { s, ok := env[name]; return s, ok }
}

// An empty block, or none where discovery asks for Consul, is enough.
func TestConsulNeedsNoSettings(t *testing.T) {
	for _, text := range []string{withConsul, "consul {}\n", "consul {}\n" + withConsul} {
		if got := loadConsul(t, text, nil); !reflect.DeepEqual(got, defaultConsul()) {
			t.Errorf("%q:\n%s", text, diff(defaultConsul(), got))
		}
	}
	for text, want := range map[string]bool{
		"": false, "consul {}\n": false, withConsul: true,
		"consul { listeners = true }\n":                               true,
		"consul {\n  register {}\n}\n":                                true,
		"cluster \"a\" {\n  discovery \"file\" { path = \"x\" }\n}\n": false,
	} {
		cfg := mustLoad(t, Options{Paths: []string{files(t, "a.hcl", text)}, Hostname: "h"})
		if got := cfg.UsesConsul(); got != want {
			t.Errorf("%q: UsesConsul is %t", text, got)
		}
	}
}

func TestConsulEnvironment(t *testing.T) {
	env := map[string]string{
		"CONSUL_HTTP_ADDR": "https://consul:8501", "CONSUL_HTTP_SSL": "1", "CONSUL_HTTP_SSL_VERIFY": "false",
		"CONSUL_HTTP_TOKEN": "t0ken", "CONSUL_HTTP_AUTH": "user:pass",
		"CONSUL_CACERT": "/ca.pem", "CONSUL_CAPATH": "/ca", "CONSUL_CLIENT_CERT": "/cert.pem", "CONSUL_CLIENT_KEY": "/key.pem",
		"CONSUL_TLS_SERVER_NAME": "name", "CONSUL_NAMESPACE": "ns", "CONSUL_PARTITION": "part",
		"CONSUL_GRPC_ADDR": "127.0.0.1:8502", "CONSUL_GRPC_CACERT": "/x", "CONSUL_GRPC_CAPATH": "/x",
	}
	want := defaultConsul()
	want.Address, want.SSL, want.SSLVerify, want.Token, want.HTTPAuth = "https://consul:8501", true, false, "t0ken", "user:pass"
	want.CAFile, want.CAPath, want.CertFile, want.KeyFile = "/ca.pem", "/ca", "/cert.pem", "/key.pem"
	want.TLSServerName, want.Namespace, want.Partition = "name", "ns", "part"
	for _, text := range []string{withConsul, "consul {}\n", "consul {\n  address = \"file:1\"\n  ssl_verify = true\n  partition = \"file\"\n}\n"} {
		if got := loadConsul(t, text, env); !reflect.DeepEqual(got, want) {
			t.Errorf("%q:\n%s", text, diff(want, got))
		}
	}

	// What is not set leaves the file's word; GATEHOUSE_* stands above.
	got := loadConsul(t, "consul {\n  namespace = \"file\"\n  datacenter = \"dc\"\n}\n",
		map[string]string{"CONSUL_HTTP_ADDR": "a:1", "CONSUL_NAMESPACE": "", "GATEHOUSE_CONSUL_ADDRESS": "b:2"})
	want = defaultConsul()
	want.Address, want.Namespace, want.Datacenter = "b:2", "file", "dc"
	if !reflect.DeepEqual(got, want) {
		t.Error(diff(want, got))
	}

	// The variables are Consul's, not ours: without Consul they are not looked at.
	mustLoad(t, Options{Hostname: "h", Env: lookup(map[string]string{"CONSUL_HTTP_SSL": "maybe"})})
	for _, path := range []string{"GATEHOUSE_CONSUL_LISTENERS", "GATEHOUSE_CONSUL_REGISTER_NAME"} {
		cfg := mustLoad(t, Options{Hostname: "h", Env: lookup(map[string]string{"CONSUL_HTTP_ADDR": "a:1", path: "true"})})
		if cfg.Consul.Address != "a:1" || !cfg.UsesConsul() {
			t.Errorf("with %s: %+v", path, cfg.Consul)
		}
	}
}

// A token and a file with one replace each other.
func TestConsulTokenPrecedence(t *testing.T) {
	const none = ""
	type pair struct{ token, file string }
	for _, tt := range []struct {
		name                string
		file, consul, house pair
		flag                pair
		want                pair
	}{
		{"nothing", pair{}, pair{}, pair{}, pair{}, pair{}},
		{"files: the file counts", pair{"a", "/a"}, pair{}, pair{}, pair{}, pair{none, "/a"}},
		{"environment: the file counts", pair{}, pair{"b", "/b"}, pair{}, pair{}, pair{none, "/b"}},
		{"a token of the environment over a file of the files", pair{none, "/a"}, pair{"b", none}, pair{}, pair{}, pair{"b", none}},
		{"a file of the environment over a token of the files", pair{"a", none}, pair{none, "/b"}, pair{}, pair{}, pair{none, "/b"}},
		{"ours over Consul's", pair{"a", "/a"}, pair{"b", "/b"}, pair{"c", none}, pair{}, pair{"c", none}},
		{"flags over all", pair{"a", "/a"}, pair{"b", "/b"}, pair{"c", "/c"}, pair{"d", none}, pair{"d", none}},
	} {
		text := "consul {\n"
		if tt.file.token != "" {
			text += fmt.Sprintf("  token = %q\n", tt.file.token)
		}
		if tt.file.file != "" {
			text += fmt.Sprintf("  token_file = %q\n", tt.file.file)
		}
		opts := Options{
			Paths: []string{files(t, "a.hcl", text+"}\n")}, Hostname: "h",
			Env: lookup(map[string]string{
				"CONSUL_HTTP_TOKEN": tt.consul.token, "CONSUL_HTTP_TOKEN_FILE": tt.consul.file,
				"GATEHOUSE_CONSUL_TOKEN": tt.house.token, "GATEHOUSE_CONSUL_TOKEN_FILE": tt.house.file,
			}),
		}
		if tt.flag.token != "" {
			opts.Flags = []Flag{{"-token", "consul.token", tt.flag.token}}
		}
		c := mustLoad(t, opts).Consul
		if got := (pair{string(c.Token), c.TokenFile}); got != tt.want {
			t.Errorf("%s: %+v, want %+v", tt.name, got, tt.want)
		}
	}
}

// Mistakes in the environment name the variable.
func TestConsulBadEnvironment(t *testing.T) {
	dir := files(t, "a.hcl", "consul {}\n")
	got := mistakes(t, Options{
		Paths: []string{dir}, Hostname: "h",
		Env: lookup(map[string]string{
			"CONSUL_HTTP_SSL": "maybe", "CONSUL_HTTP_SSL_VERIFY": "2", "CONSUL_HTTP_ADDR": "nonsense", "CONSUL_HTTP_TOKEN": "s3cr3t s3cr3t",
			"GATEHOUSE_CONSUL_WAIT_TIME": "1h", "GATEHOUSE_CONSUL_REGISTER_CHECK_INTERVAL": "x",
		}),
		Consul: func(c Consul) error {
			if c.Address != "nonsense" || c.Token != "s3cr3t s3cr3t" {
				t.Errorf("looks at %+v", c)
			}
			return errors.Join(errors.New("address: no port"), errors.New("token: has blanks"), errors.New("wait_time: not reported twice"))
		},
		Register: func(Register, Admin) error { return errors.New("check_interval: not reported twice") },
	}, dir)
	want := `CONSUL_HTTP_ADDR: address: no port
CONSUL_HTTP_SSL: ssl must be true or false
CONSUL_HTTP_SSL_VERIFY: ssl_verify must be true or false
CONSUL_HTTP_TOKEN: token: has blanks
GATEHOUSE_CONSUL_REGISTER_CHECK_INTERVAL: check_interval: "x" is no duration (write it as "5s", "1m30s" or "250ms")
GATEHOUSE_CONSUL_WAIT_TIME: wait_time is out of range: 1h0m0s (from 1s to 10m; the default is 1m)`
	if got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
}

// What others say of the values has the place of the argument, or of the block
// where that was not written.
func TestConsulMistakesHavePlaces(t *testing.T) {
	dir := files(t, "a.hcl", `cluster "a/b" {
  discovery "consul" {}
  discovery "consul" {
    service = "x/y"
    cached  = true
  }
}
consul {
  address = "http://"
  register {
    address = "here"
  }
}
`)
	got := mistakes(t, Options{
		Paths: []string{dir}, Hostname: "h",
		Consul: func(c Consul) error { return errors.New("address: not one") },
		Register: func(r Register, a Admin) error {
			if a.Address != addr("127.0.0.1:9901") || r.ID != "gatehouse-h" {
				t.Errorf("looks at %+v, %+v", r, a)
			}
			return errors.Join(errors.New("address: not an IP"), nil, errors.New("name: bad"))
		},
		Query: func(d Discovery) error {
			return errors.Join(fmt.Errorf("service: %q", d.Service), fmt.Errorf("cached: %t", d.Cached))
		},
	}, dir)
	want := `a.hcl:2:13: cached: false
a.hcl:2:13: service: "a/b"
a.hcl:4:15: service: "x/y"
a.hcl:5:15: cached: true
a.hcl:9:13: address: not one
a.hcl:10:3: name: bad
a.hcl:11:15: address: not an IP`
	if got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
}

func TestConsulDefaultsOfDiscovery(t *testing.T) {
	dir := files(t, "a.hcl", "cluster \"web\" {\n  discovery \"consul\" {}\n  discovery \"consul\" { prepared_query = \"q\" }\n  discovery \"consul\" { service = \"s\" }\n}\n")
	var got []string
	for _, d := range mustLoad(t, Options{Paths: []string{dir}, Hostname: "h"}).Clusters[0].Discovery {
		got = append(got, d.Service+","+d.PreparedQuery)
	}
	if want := "web, ,q s,"; strings.Join(got, " ") != want {
		t.Errorf("asks for %q, want %q", got, want)
	}
}

// A Secret does not show, however it is printed.
func TestSecret(t *testing.T) {
	c := Consul{Token: "s3cr3t", HTTPAuth: "user:s3cr3t"}
	var log bytes.Buffer
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "token", c.Token, "consul", c)
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "token", c.Token, "consul", c)
	j, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{
		fmt.Sprint(c), fmt.Sprintf("%v %+v %#v", c, c, c), fmt.Sprintf("%v %s %q %x %#v", c.Token, c.Token, c.Token, c.Token, c.Token),
		log.String(), string(j), fmt.Sprintf("%+v", Config{Consul: c}), fmt.Sprintf("%#v", &Config{Consul: c}),
	} {
		if strings.Contains(text, "s3cr3t") || strings.Contains(text, fmt.Sprintf("%x", "s3cr3t")) {
			t.Errorf("shown in %s", text)
		}
	}
	if !strings.Contains(log.String(), "(secret)") || Secret("").String() != "" {
		t.Errorf("the log is %s", log.String())
	}
}

// No mistake shows a secret of the file, whatever is wrong around it.
func TestMistakesHideSecrets(t *testing.T) {
	for name, text := range map[string]string{
		"wrong.hcl":     "consul {\n  token = s3cr3t\n  http_auth = [\"s3cr3t\"]\n}\n",
		"twice.hcl":     "consul {\n  token = \"s3cr3t\"\n  token = \"s3cr3t\"\n}\n",
		"slip.hcl":      "consul {\n  tokne = \"s3cr3t\"\n  httpauth = \"s3cr3t\"\n  pasword = \"s3cr3t\"\n}\n",
		"line.hcl":      "consul { token = \"s3cr3t\"  foo = 1 }\n",
		"quote.hcl":     "consul {\n  token = \"s3cr3t\n}\n",
		"noequals.hcl":  "consul {\n  token \"s3cr3t\"\n}\n",
		"template.hcl":  "consul {\n  token = \"s3cr3t${s3cr3t}\"\n}\n",
		"here.hcl":      "consul {\n  token = <<EOF\ns3cr3t ${1 + }\nEOF\n}\n",
		"uri.hcl":       "xds {\n  server_uri = \"u:s3cr3t@a:1\"\n}\n",
		"server.hcl":    "xds {\n  server \"u:s3cr3t@a:1\" { foo = 1 }\n  server \"u:s3cr3t@a:1\" {}\n}\n",
		"query.hcl":     "xds {\n  server \"dns:///a:1?s3cr3t\" {}\n}\n",
		"address.hcl":   "consul { address = \"https://h/?token=s3cr3t\"  foo = 1 }\n",
		"server.json":   "{\"xds\": {\"server\": {\n\"u:s3cr3t@a:1\": {\"foo\": 1}}}}",
		"split.json":    "{\"consul\": {\"token\":\n [\"s3cr3t\"]}}",
		"one.json":      `{"consul": {"token": "s3cr3t", "foo": 1}}`,
		"cut.json":      `{"consul": {"token": "s3cr3t`,
		"cut_line.json": "{\"consul\": {\"http_auth\":\n\"s3cr3t\nx\"}}",
	} {
		dir := files(t, name, text)
		_, err := Load(Options{Paths: []string{dir}, Hostname: "h"})
		errs, ok := err.(Errors)
		if !ok {
			t.Errorf("%s: no mistakes: %v", name, err)
			continue
		}
		var b strings.Builder
		if err := errs.Print(&b); err != nil {
			t.Fatal(err)
		}
		j, err := json.Marshal(errs)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(b.String()+string(j), "s3cr3t") {
			t.Errorf("%s:\n%s%s", name, b.String(), j)
		}
	}
	// Each argument that is a secret is one that the above knows.
	var visit func(b *block)
	visit = func(b *block) {
		for _, f := range b.fields {
			if f.secret && !secretName.MatchString("  "+f.name+" = 1") {
				t.Errorf("%s.%s is not hidden", b.name, f.name)
			}
			if f.block != nil {
				visit(f.block)
			}
		}
	}
	visit(newBlock("", reflect.TypeFor[Config]()))
}

func TestDefaultsOfOthers(t *testing.T) {
	dir := files(t, "a.hcl", "cluster \"c\" {\n  discovery \"consul\" {}\n}\nlistener \"l\" {\n  address = \"127.0.0.1:1\"\n  cluster = \"c\"\n}\n")
	cfg := mustLoad(t, Options{Paths: []string{dir}, Hostname: "h"})
	c := DefaultCluster("c", OriginFile, cfg.Clusters[0].Discovery...)
	if !reflect.DeepEqual(c, cfg.Clusters[0]) {
		t.Error(diff(cfg.Clusters[0], c))
	}
	if l := DefaultListener("l", OriginFile, addr("127.0.0.1:1"), "c"); !reflect.DeepEqual(l, cfg.Listeners[0]) {
		t.Error(diff(cfg.Listeners[0], l))
	}
}
