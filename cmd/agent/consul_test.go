package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"gatehouse.internal/cmd/agent/internal/config"
	"gatehouse.internal/discovery/consul"
	"gatehouse.internal/lbcore"
)

// load reads a configuration as the commands do, without environment.
func load(t *testing.T, text string) *config.Config {
	t.Helper()
	cfg, err := loadErr(t, text)
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

func loadErr(t *testing.T, text string) (*config.Config, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "a.hcl")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	opts := loadOptions()
	opts.Paths, opts.Hostname = []string{file}, "host"
	return config.Load(opts)
}

// Each field of a configuration reaches the client.
func TestConsulConversions(t *testing.T) {
	cfg := load(t, `
consul {
  address         = "consul:8501"
  ssl             = true
  token           = "token"
  http_auth       = "user:password"
  ca_file         = "ca"
  ca_path         = "capath"
  cert_file       = "cert"
  key_file        = "key"
  tls_server_name = "name"
  ssl_verify      = false
  datacenter      = "dc"
  namespace       = "ns"
  partition       = "part"
  wait_time       = "1m"
  max_watches     = 3
  max_stale       = "4s"
  empty_hold      = "5s"
}
cluster "web" {
  discovery "consul" {
    service        = "service"
    tags           = ["tag"]
    node_meta      = { k = "v" }
    datacenter     = "dc2"
    namespace      = "ns2"
    partition      = "part2"
    address        = "wan"
    kinds          = ["mesh-gateway"]
    near           = "_agent"
    nearest        = 2
    consistency    = "default"
    cached         = true
  }
  discovery "consul" {
    prepared_query = "query"
    poll_interval  = "3s"
    peer           = "peer"
    port_name      = "port"
  }
  discovery "consul" {
    sameness_group = "group"
    socket_paths   = true
  }
}
`)
	got := consulConfig(cfg.Consul)
	want := consul.Config{
		Address: "consul:8501", SSL: true, Token: "token", HTTPAuth: "user:password", CAFile: "ca", CAPath: "capath",
		CertFile: "cert", KeyFile: "key", TLSServerName: "name", InsecureSkipVerify: true,
		Datacenter: "dc", Namespace: "ns", Partition: "part",
		WaitTime: time.Minute, MaxWatches: 3, MaxStale: 4 * time.Second, EmptyHold: 5 * time.Second,
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("Config is %+v, want %+v", got, want)
	}
	set := map[string]bool{"TokenFile": consulConfig(config.Consul{TokenFile: "x"}).TokenFile == "x", "Logger": true, "Transport": true, "Panics": true, "Connect": consulQuery(config.Discovery{Connect: true}).Connect}
	nonzero(set, got)
	var queries []consul.Query
	for _, d := range cfg.Clusters[0].Discovery {
		queries = append(queries, consulQuery(d))
		nonzero(set, consulQuery(d))
	}
	for _, typ := range []reflect.Type{reflect.TypeFor[consul.Config](), reflect.TypeFor[consul.Query]()} {
		for i := range typ.NumField() {
			if !set[typ.Field(i).Name] {
				t.Errorf("%s.%s can't be set", typ.Name(), typ.Field(i).Name)
			}
		}
	}
	wantQueries := []consul.Query{{
		Service: "service", Tags: []string{"tag"}, NodeMeta: map[string]string{"k": "v"},
		Datacenter: "dc2", Namespace: "ns2", Partition: "part2", Address: "wan",
		Kinds: []string{"mesh-gateway"}, Near: "_agent", Nearest: 2, Consistency: "default", Cached: true,
	}, {
		PreparedQuery: "query", PollInterval: 3 * time.Second, Peer: "peer", PortName: "port", Consistency: "stale",
	}, {
		Service: "web", SamenessGroup: "group", SocketPaths: true, Consistency: "stale",
	}}
	if !reflect.DeepEqual(queries, wantQueries) {
		t.Errorf("queries are %+v, want %+v", queries, wantQueries)
	}
}

// nonzero notes the fields of a struct that are not zero.
func nonzero(set map[string]bool, s any) {
	v := reflect.ValueOf(s)
	for i := range v.NumField() {
		if !v.Field(i).IsZero() {
			set[v.Type().Field(i).Name] = true
		}
	}
}

// The words that a file may use are those that the client knows.
func TestConsulWords(t *testing.T) {
	with := func(argument string) error {
		_, err := loadErr(t, "cluster \"web\" {\n  discovery \"consul\" {\n    "+argument+"\n  }\n}\n")
		return err
	}
	for _, word := range []string{
		consul.AddressLAN, consul.AddressLANv4, consul.AddressLANv6, consul.AddressWAN, consul.AddressWANv4, consul.AddressWANv6, consul.AddressVirtual,
	} {
		if err := with(fmt.Sprintf("address = %q", word)); err != nil {
			t.Errorf("address %q: %v", word, err)
		}
	}
	for _, word := range []consul.Consistency{consul.Stale, consul.Default, consul.Consistent} {
		if err := with(fmt.Sprintf("consistency = %q", word)); err != nil {
			t.Errorf("consistency %q: %v", word, err)
		}
	}
	if err := with(`kinds = ["connect-proxy", "mesh-gateway", "terminating-gateway", "ingress-gateway", "api-gateway"]`); err != nil {
		t.Error(err)
	}
}

func TestConsulRegistration(t *testing.T) {
	for _, tt := range []struct{ admin, given, address, check string }{
		{"127.0.0.1:9901", "", "127.0.0.1", "http://127.0.0.1:9901/ready"},
		{"10.0.0.7:9901", "", "10.0.0.7", "http://10.0.0.7:9901/ready"},
		{"10.0.0.7:9901", "192.0.2.1", "192.0.2.1", "http://10.0.0.7:9901/ready"},
		{"0.0.0.0:9901", "", "", "http://127.0.0.1:9901/ready"},
		{"0.0.0.0:9901", "host.internal", "host.internal", "http://127.0.0.1:9901/ready"},
		{"[::]:9901", "", "", "http://[::1]:9901/ready"},
		{"[fe80::1%eth0]:9901", "", "fe80::1%eth0", "http://[fe80::1%25eth0]:9901/ready"},
		{"10.0.0.8:9901", "", "10.0.0.8", "https://10.0.0.8:9901/ready"},
	} {
		var a config.Admin
		if strings.HasPrefix(tt.check, "https") {
			a.TLS.CertFile = "cert.pem"
		}
		r := consulRegistration(config.Register{
			Name: "gatehouse", ID: "gatehouse-host", Tags: []string{"a"}, Meta: map[string]string{"k": "v"}, Address: tt.given,
			CheckInterval: 1, CheckTimeout: 2, DeregisterAfter: time.Hour,
		}, a, lbcore.IPAddr(netip.MustParseAddrPort(tt.admin)))
		want := consul.Registration{
			Name: "gatehouse", ID: "gatehouse-host", Tags: []string{"a"}, Meta: map[string]string{"k": "v"},
			Address: tt.address, Port: 9901, CheckURL: tt.check, CheckInterval: 1, CheckTimeout: 2, DeregisterAfter: time.Hour,
		}
		if !reflect.DeepEqual(r, want) || r.Validate() != nil {
			t.Errorf("%s: %+v, %v; want %+v", tt.admin, r, r.Validate(), want)
		}
	}
	cfg := load(t, "admin { address = \"127.0.0.1:0\" }\nconsul {\n  register {}\n}\n") // known once it is open
	if r := cfg.Consul.Register; !r.Enabled || r.ID != "gatehouse-host" {
		t.Errorf("register is %+v", r)
	}
	for _, text := range []string{
		"register { id = \"a/b\" }", "register { name = \"\" }", "register { deregister_after = \"1s\" }",
	} {
		_, err := loadErr(t, "consul {\n  "+text+"\n}\n")
		if errs, ok := errors.AsType[config.Errors](err); !ok || len(errs) != 1 || errs[0].Line != 2 || errs[0].Column < 10 {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// A client that can't be made is a mistake in the configuration.
func TestConsulConfigError(t *testing.T) {
	cfg := load(t, "consul { listeners = true }\n")
	cfg.Consul.Address = "ftp://x"
	if _, err := newAgent(cfg, slog.New(slog.DiscardHandler)); err == nil || exitCode(err) != exitConfig || !strings.HasPrefix(err.Error(), "address: ") {
		t.Errorf("newAgent: %v", err)
	}
}
