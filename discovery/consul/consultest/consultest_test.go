package consultest

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/consul/api"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// entries returns what a service's blocking query would, by instance.
func entries(t *testing.T, s *Server, service string) map[string]*api.ServiceEntry {
	t.Helper()
	list, _, err := s.API(ManagementToken).Health().Service(service, "", false, &api.QueryOptions{RequireConsistent: true})
	if err != nil {
		t.Fatal(err)
	}
	byID := map[string]*api.ServiceEntry{}
	for _, e := range list {
		byID[e.Service.ID] = e
	}
	return byID
}

func index(t *testing.T, s *Server) uint64 {
	t.Helper()
	_, meta, err := s.API(ManagementToken).Catalog().Services(nil)
	if err != nil {
		t.Fatal(err)
	}
	return meta.LastIndex
}

func TestRegistered(t *testing.T) {
	t.Parallel()
	s := Start(t, Options{Node: "here", Config: `node_meta { rack = "7" }`})
	s.Register(Instance{
		Name: "web", ID: "web-1", Address: "192.0.2.1", Port: 80, Tags: []string{"blue"}, Meta: map[string]string{"a": "b"},
		Weights: api.AgentWeights{Passing: 10, Warning: 2}, TaggedAddresses: map[string]api.ServiceAddress{"wan": {Address: "203.0.113.1", Port: 8080}},
	})
	s.Register(Instance{Name: "web", ID: "web-2", Port: 81, Status: api.HealthWarning})

	got := entries(t, s, "web")
	if len(got) != 2 {
		t.Fatalf("%d instances, want 2", len(got))
	}
	one := got["web-1"]
	if one.Node.Node != "here" || one.Node.Meta["rack"] != "7" || one.Service.Address != "192.0.2.1" || one.Service.Port != 80 || one.Service.Meta["a"] != "b" ||
		!slices.Equal(one.Service.Tags, []string{"blue"}) || one.Service.Weights != (api.AgentWeights{Passing: 10, Warning: 2}) ||
		one.Service.TaggedAddresses["wan"] != (api.ServiceAddress{Address: "203.0.113.1", Port: 8080}) {
		t.Errorf("web-1 is %+v on %+v", one.Service, one.Node)
	}
	status := func(id, want string) {
		t.Helper()
		if got := entries(t, s, "web")[id].Checks.AggregatedStatus(); got != want {
			t.Errorf("%s is %s, want %s", id, got, want)
		}
	}
	status("web-1", api.HealthPassing)
	status("web-2", api.HealthWarning)
	s.SetStatus("web-1", api.HealthCritical)
	status("web-1", api.HealthCritical)
	s.SetStatus("web-1", api.HealthPassing)
	s.ServiceMaintenance("web-1", true)
	status("web-1", api.HealthMaint)
	status("web-2", api.HealthWarning)
	s.ServiceMaintenance("web-1", false)
	status("web-1", api.HealthPassing)
	s.NodeMaintenance(true)
	status("web-2", api.HealthMaint)
	s.NodeMaintenance(false)
	status("web-2", api.HealthWarning)

	s.Register(Instance{Name: "web", ID: "web-2", Port: 82, Weights: api.AgentWeights{Passing: 3}})
	if got := entries(t, s, "web")["web-2"]; got.Service.Port != 82 || got.Service.Weights.Passing != 3 || got.Checks.AggregatedStatus() != api.HealthPassing {
		t.Errorf("web-2 after its change: %+v", got.Service)
	}
	s.Deregister("web-2")
	if got := entries(t, s, "web"); len(got) != 1 || got["web-1"] == nil {
		t.Errorf("after a deregistration: %v", got)
	}
}

func TestRestarts(t *testing.T) {
	t.Parallel()
	s := Start(t, Options{})
	addr := s.Addr()
	s.RegisterMany(Many("db", 3)...)
	snapshot := s.Snapshot()
	s.Register(Instance{Name: "web", ID: "web-1", Port: 80, Status: api.HealthWarning})
	s.RegisterMany(Many("db", 4)...)

	s.Kill()
	if s.Running() {
		t.Error("a killed server runs")
	}
	if _, err := s.API("").Status().Leader(); err == nil {
		t.Error("a killed server answers")
	}
	s.Restart()
	if got := entries(t, s, "web"); len(got) != 1 || got["web-1"].Checks.AggregatedStatus() != api.HealthWarning {
		t.Errorf("after a restart web is %v", got)
	}
	if got := entries(t, s, "db"); len(got) != 4 {
		t.Errorf("after a restart db is %v", got)
	}

	s.Restore(snapshot)
	if got := entries(t, s, "db"); len(got) != 3 {
		t.Errorf("after a snapshot was restored db is %v", got)
	}

	for i := range 30 { // beyond where the index of a new server may be
		s.Register(Instance{Name: "web", ID: fmt.Sprint("web-", i), Port: 80})
	}
	before := index(t, s)
	s.Shutdown()
	s.WipeAndRestart()
	if after := index(t, s); after >= before {
		t.Errorf("the index went from %d to %d", before, after)
	}
	if got := len(entries(t, s, "web")) + len(entries(t, s, "db")); got != 0 {
		t.Errorf("a wiped server has %d instances", got)
	}
	if s.Addr() != addr {
		t.Errorf("the address went from %s to %s", addr, s.Addr())
	}
	if !strings.Contains(s.Log(), "Consul agent running!") {
		t.Errorf("the log is %q", s.Log())
	}
}

func TestThousand(t *testing.T) {
	t.Parallel()
	s := Start(t, Options{Node: "n", Datacenter: "east"})
	many := Many("web", 1000)
	s.RegisterMany(many...)
	got := entries(t, s, "web")
	if len(got) != 1000 {
		t.Fatalf("%d instances, want 1,000", len(got))
	}
	if e := got["web-999"]; e.Node.Node != "web-node-9" || e.Node.Datacenter != "east" || e.Service.Address != "127.1.3.250" || e.Checks.AggregatedStatus() != api.HealthPassing {
		t.Errorf("the last one is %+v on %+v", e.Service, e.Node)
	}
	many[500].Status = api.HealthCritical
	s.Replace("web", many[500:510]...)
	got = entries(t, s, "web")
	if len(got) != 10 || got["web-500"].Checks.AggregatedStatus() != api.HealthCritical || got["web-501"].Checks.AggregatedStatus() != api.HealthPassing {
		t.Errorf("replaced by 10: %v", got)
	}
	s.Replace("web")
	if got := entries(t, s, "web"); len(got) != 0 {
		t.Errorf("replaced by none: %v", got)
	}
}

func TestLeaderKilled(t *testing.T) {
	t.Parallel()
	c := StartCluster(t, 3, Options{Node: "s"})
	first := c.Leader()
	if follower := c.Follower(); follower == first {
		t.Error("the follower is the leader")
	}
	first.RegisterMany(Many("web", 2)...)
	first.Kill()
	second := c.Leader()
	if second == first {
		t.Fatal("a killed server leads")
	}
	if got := entries(t, second, "web"); len(got) != 2 {
		t.Errorf("the new leader has %v", got)
	}
	first.Restart()
	if got := entries(t, first, "web"); len(got) != 2 {
		t.Errorf("the old leader has %v", got)
	}
	for _, s := range c.Servers {
		s.Kill()
	}
	for _, s := range c.Servers {
		s.Launch()
	}
	if got := entries(t, c.Leader(), "web"); len(got) != 2 {
		t.Errorf("after all were killed: %v", got)
	}
}

func TestACL(t *testing.T) {
	t.Parallel()
	s := Start(t, Options{ACL: true})
	agent := Start(t, Options{ACL: true, Join: []*Server{s}})
	agent.Register(Instance{Name: "web", Port: 80})
	if got := entries(t, s, "web"); len(got) != 1 {
		t.Errorf("with a token web is %v", got)
	}
	for _, s := range []*Server{s, agent} {
		list, meta, err := s.API("").Health().Service("web", "", false, nil)
		if err != nil || len(list) != 0 || !meta.ResultsFilteredByACLs {
			t.Errorf("without a token: %d instances, filtered %t, error %v", len(list), meta.ResultsFilteredByACLs, err)
		}
		if _, err := s.API("").Agent().Self(); !refused(err) {
			t.Errorf("anonymous read of the agent: %v", err)
		}
		if _, err := s.API("c0175e57-0000-4000-8000-00000000ffff").Agent().Self(); !refused(err) {
			t.Errorf("read of the agent with an unknown token: %v", err)
		}
	}
}

func refused(err error) bool {
	status, ok := errors.AsType[api.StatusError](err)
	return ok && status.Code == http.StatusForbidden
}

func TestTLS(t *testing.T) {
	t.Parallel()
	certs := NewCerts(t)
	s := Start(t, Options{TLS: certs})
	s.Register(Instance{Name: "web", Port: 80})
	if s.Addr() != "" {
		t.Errorf("HTTP is served on %s", s.Addr())
	}

	get := func(conf api.TLSConfig) error {
		t.Helper()
		tc, err := api.SetupTLSConfig(&conf)
		if err != nil {
			t.Fatal(err)
		}
		c := http.Client{Transport: &http.Transport{TLSClientConfig: tc, DisableKeepAlives: true}}
		resp, err := c.Get("https://" + s.HTTPSAddr() + "/v1/status/leader")
		if err == nil {
			resp.Body.Close()
		}
		return err
	}
	if err := get(api.TLSConfig{CAFile: certs.CAFile, CertFile: certs.ClientCert, KeyFile: certs.ClientKey}); err != nil {
		t.Errorf("with a certificate: %v", err)
	}
	if err := get(api.TLSConfig{CAFile: certs.CAFile}); err == nil || !strings.Contains(err.Error(), "certificate required") {
		t.Errorf("without a certificate: %v", err)
	}
	other := NewCerts(t)
	if _, ok := errors.AsType[*tls.CertificateVerificationError](get(api.TLSConfig{CAFile: other.CAFile, CertFile: certs.ClientCert, KeyFile: certs.ClientKey})); !ok {
		t.Error("another authority's server is believed")
	}
}

func TestUnixSocket(t *testing.T) {
	t.Parallel()
	s := Start(t, Options{UnixSocket: true, TLS: NewCerts(t)})
	path, ok := strings.CutPrefix(s.Addr(), "unix://")
	if info, err := os.Stat(path); !ok || err != nil || info.Mode()&os.ModeSocket == 0 {
		t.Fatalf("%s is no socket: %v", s.Addr(), err)
	}
	s.Register(Instance{Name: "web", Port: 80})
	s.Restart()
	if got := entries(t, s, "web"); len(got) != 1 {
		t.Errorf("web is %v", got)
	}
}

func TestMaxConnsPerClient(t *testing.T) {
	t.Parallel()
	s := Start(t, Options{MaxConnsPerClient: 3})
	var last net.Conn
	for range 4 {
		c, err := new(net.Dialer).DialContext(t.Context(), "tcp", s.Addr())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		last = c
	}
	// Consul answers before it is asked.
	resp, err := http.ReadResponse(bufio.NewReader(last), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusTooManyRequests {
		t.Errorf("the fourth connection is answered %s", resp.Status)
	}
}

// A port that is taken between the reservation and Consul's start costs
// another attempt.
func TestTakenPorts(t *testing.T) {
	t.Parallel()
	for name, port := range map[string]func(ports) int{"http": ports.http, "serf": ports.serf, "server": ports.server} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newServer(t, Options{}, 1, func() []*Server { return nil })
			tries := 0
			s.start(func() (ports, error) {
				p, err := reservePorts()
				if tries++; tries > 1 || err != nil {
					return p, err
				}
				l, err := net.Listen("tcp", loopback(port(p)))
				t.Cleanup(func() { l.Close() })
				return p, err
			})
			s.AwaitReady()
			if tries < 2 {
				t.Error("the first attempt succeeded")
			}
		})
	}
}

func TestEnvironmentIsIgnored(t *testing.T) {
	for _, v := range []string{"HTTP_ADDR", "HTTP_TOKEN", "HTTP_AUTH", "NAMESPACE", "PARTITION", "CACERT", "TLS_SERVER_NAME"} {
		t.Setenv("CONSUL_"+v, "nonsense")
	}
	t.Setenv("CONSUL_HTTP_SSL", "true")
	s := Start(t, Options{ACL: true})
	s.RegisterMany(Instance{Name: "web", Port: 80})
	if got := entries(t, s, "web"); len(got) != 1 {
		t.Errorf("web is %v", got)
	}
	// Had the environment's token gone along, it would be an unknown one.
	if _, _, err := s.API("").Catalog().Services(nil); err != nil {
		t.Errorf("without a token: %v", err)
	}
}

// Where Consul can't be built, the error says what to run.
func TestNoBinary(t *testing.T) {
	if testing.Short() {
		t.Skip("left out by -short: it runs test/consul/build")
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("GATEHOUSE_CACHE", file)
	if path, err := buildBinary(); err == nil || !strings.Contains(err.Error(), "run ./test/consul/build") || !strings.Contains(err.Error(), "mkdir") {
		t.Errorf("built as %q with error %v", path, err)
	}
}
