package test

import (
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"

	"gatehouse.internal/discovery/consul/consultest"
)

// consulWeb is a configuration with a cluster and a listener "web" from Consul.
// more goes into the consul block.
func consulWeb(addr, more string) string {
	return fmt.Sprintf(`
consul {
  address = %q
  %s
}
cluster "web" {
  discovery "consul" {}
}
`, addr, more) + webListener
}

// instance returns a backend as an instance of service "web".
func instance(id string, b *backend) consultest.Instance { return of("web", id, b) }

// of returns a backend as an instance of a service, whose name begins its id.
func of(service, id string, b *backend) consultest.Instance {
	host, port, _ := net.SplitHostPort(b.addr)
	n, _ := strconv.Atoi(port)
	return consultest.Instance{Name: service, ID: service + "-" + id, Address: host, Port: n}
}

func (p *process) awaitReadyEndpoints(cluster, what string, want ...*backend) {
	p.t.Helper()
	var addrs []string
	for _, b := range want {
		addrs = append(addrs, b.addr)
	}
	slices.Sort(addrs)
	eventually(p.t, what, func() bool {
		got := p.cluster(cluster).ready
		slices.Sort(got)
		return slices.Equal(got, addrs)
	})
}

// Instances come, go and change their health while connections flow: none
// fails, and each lands where the catalog says. Each kind of change has a
// service of its own, so that it is the first in a calm time and seen at once.
func TestConsulChanges(t *testing.T) {
	needsServer(t)
	a, b, c := startBackend(t), startBackend(t), startBackend(t)
	s := consultest.Start(t, consultest.Options{})
	config := "consul {\n  address = \"" + s.Addr() + "\"\n}\n"
	services := []string{"members", "health", "maintenance", "weights", "many", "none"}
	for _, name := range services {
		config += fmt.Sprintf(`
cluster %[1]q {
  discovery "consul" {}
}
listener %[1]q {
  address = "127.0.0.1:0"
  cluster = %[1]q
}
`, name)
		s.Register(of(name, "a", a))
		s.Register(of(name, "b", b))
	}
	p := startAgent(t, config)
	p.awaitReady()
	all := make(map[string]*traffic)
	for _, name := range services {
		all[name] = startTrafficAt(t, p.listener(name), 60*time.Millisecond)
	}
	both := func(name string) {
		t.Helper()
		p.awaitReadyEndpoints(name, "both are ready", a, b)
		all[name].lands(t, a, b)
	}

	tr := all["members"]
	both("members")
	s.Register(of("members", "c", c))
	p.awaitReadyEndpoints("members", "a registered instance is ready", a, b, c)
	tr.lands(t, a, b, c)
	s.Deregister("members-a")
	p.awaitReadyEndpoints("members", "a deregistered instance is gone", b, c)
	tr.lands(t, b, c)

	tr = all["health"]
	both("health")
	generation := p.cluster("health").generation
	s.SetStatus("health-b", api.HealthCritical)
	p.awaitReadyEndpoints("health", "a critical instance takes nothing", a)
	tr.lands(t, a)
	s.SetStatus("health-b", api.HealthWarning)
	both("health")
	if now := p.cluster("health").generation; now != generation {
		t.Errorf("changes of health made generation %d of %d: selectors were rebuilt", now, generation)
	}

	tr = all["maintenance"]
	both("maintenance")
	s.ServiceMaintenance("maintenance-b", true)
	p.awaitReadyEndpoints("maintenance", "an instance in maintenance takes nothing", a)
	tr.lands(t, a)
	s.ServiceMaintenance("maintenance-b", false)
	both("maintenance")

	tr = all["weights"]
	both("weights")
	heavy := of("weights", "b", b)
	heavy.Weights = api.AgentWeights{Passing: 9, Warning: 0}
	generation = p.cluster("weights").generation
	s.Register(heavy)
	eventually(t, "the weight changes", func() bool { return p.cluster("weights").generation > generation })
	tr.reset()
	eventually(t, "enough connections are made", func() bool { n, _ := tr.count(); return n >= 200 })
	if n, shares := tr.count(); shares[b.addr] < n*8/10 || shares[a.addr] == 0 {
		t.Errorf("of %d connections by weights 9 and 1, %d and %d landed", n, shares[b.addr], shares[a.addr])
	}
	s.SetStatus("weights-b", api.HealthWarning)
	eventually(t, "a warning instance of weight 0 takes nothing", func() bool {
		tr.reset()
		eventually(t, "some connections are made", func() bool { n, _ := tr.count(); return n >= 10 })
		_, shares := tr.count()
		return shares[b.addr] == 0
	})

	// A thousand more, which hold no connection up: they are critical.
	both("many")
	listed := func(name string) int { m := p.cluster(name); return len(m.ready) + len(m.unready) }
	thousand := consultest.Many("many", 1000)
	for i := range thousand {
		thousand[i].Status = api.HealthCritical
	}
	s.RegisterMany(thousand...)
	eventually(t, "a thousand instances are listed", func() bool { return listed("many") == 1002 })
	both("many")

	for name, tr := range all {
		tr.stop()
		tr.noErrors(t)
		if t.Failed() {
			t.Fatalf("of service %q", name)
		}
	}
	p.servedAll()

	s.Deregister("none-a")
	s.Deregister("none-b")
	eventually(t, "all are gone, by the leader's word", func() bool { return listed("none") == 0 })
	if got := p.cluster("none"); got.state != "fresh" {
		t.Errorf("with all instances deregistered the cluster is shown as %+v", got)
	}
	if who, err := ask(t.Context(), p.listener("none")); err == nil {
		t.Errorf("a service without instances is answered for by %s", who)
	}
	s.NodeMaintenance(true)
	p.awaitReadyEndpoints("health", "a node in maintenance takes nothing")
	s.NodeMaintenance(false)
	p.awaitReadyEndpoints("health", "a node out of maintenance is back", a, b)
}

// Consul crashes, comes back, and is put back to an older state, while
// connections flow: none fails.
func TestConsulOutage(t *testing.T) {
	needsServer(t)
	a, b, c := startBackend(t), startBackend(t), startBackend(t)
	s := consultest.Start(t, consultest.Options{})
	s.RegisterMany(instance("a", a), instance("b", b))
	p := startAgent(t, consulWeb(s.Addr(), ""))
	p.awaitReady()
	tr := startTraffic(t, p.listener("web"))
	tr.lands(t, a, b)

	s.Kill()
	eventually(t, "the cluster is stale", func() bool { return p.cluster("web").state == "stale" })
	tr.lands(t, a, b)
	s.Restart()
	eventually(t, "the cluster is fresh again", func() bool { return p.cluster("web").state == "fresh" })
	snapshot := s.Snapshot()
	s.RegisterMany(instance("c", c))
	p.awaitReadyEndpoints("web", "an instance registered after a restart is ready", a, b, c)
	tr.lands(t, a, b, c)
	s.Restore(snapshot)
	p.awaitReadyEndpoints("web", "the restored state is in force", a, b)
	tr.lands(t, a, b)
	tr.stop()
	tr.noErrors(t)
	p.servedAll()

	// Without its data, it is another catalog, which begins anew.
	s.WipeAndRestart()
	s.RegisterMany(instance("c", c))
	p.awaitReadyEndpoints("web", "the new catalog is in force", c)
}

// The leader of three servers is killed while connections flow.
func TestConsulLeaderKilled(t *testing.T) {
	needsServer(t)
	a, b := startBackend(t), startBackend(t)
	cl := consultest.StartCluster(t, 3, consultest.Options{})
	leader := cl.Leader()
	follower := cl.Follower()
	follower.RegisterMany(instance("a", a))
	p := startAgent(t, consulWeb(follower.Addr(), ""))
	p.awaitReady()
	tr := startTraffic(t, p.listener("web"))
	tr.lands(t, a)
	leader.Kill()
	tr.lands(t, a)
	cl.Leader().RegisterMany(instance("b", b))
	p.awaitReadyEndpoints("web", "what the new leader was told is in force", a, b)
	tr.lands(t, a, b)
	tr.stop()
	tr.noErrors(t)
	p.servedAll()
}

// A token comes late, is deleted while it is in use, and is replaced.
func TestConsulTokens(t *testing.T) {
	needsServer(t)
	a, b := startBackend(t), startBackend(t)
	s := consultest.Start(t, consultest.Options{ACL: true})
	s.RegisterMany(instance("a", a))
	acl := s.API(consultest.ManagementToken).ACL()
	if _, _, err := acl.PolicyCreate(&api.ACLPolicy{Name: "gatehouse", Rules: `
		service_prefix "" { policy = "read" }
		node_prefix    "" { policy = "read" }
	`}, nil); err != nil {
		t.Fatal(err)
	}
	token := func() *api.ACLToken {
		tok, _, err := acl.TokenCreate(&api.ACLToken{Policies: []*api.ACLLink{{Name: "gatehouse"}}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		return tok
	}
	file := filepath.Join(t.TempDir(), "token")
	p := startAgent(t, consulWeb(s.Addr(), fmt.Sprintf("token_file = %q", file)))
	waits := func(for_ string) {
		t.Helper()
		eventually(t, "the agent waits, and says for "+for_, func() bool {
			code, body := p.get("/ready")
			return code == http.StatusServiceUnavailable && strings.Contains(body, for_)
		})
	}
	waits("no request is made without a token")
	write(t, file, "\n")
	waits("is empty")
	write(t, file, "3f1c0000-0000-4000-8000-000000000000\n")
	waits("the token is refused")
	first := token()
	write(t, file, first.SecretID+"\n")
	p.awaitReady()
	tr := startTraffic(t, p.listener("web"))
	tr.lands(t, a)

	if _, err := acl.TokenDelete(first.AccessorID, nil); err != nil {
		t.Fatal(err)
	}
	tagged := instance("a", a)
	tagged.Tags = []string{"new"}
	s.RegisterMany(tagged) // ends the blocking query, which may still be answered
	eventually(t, "the cluster is stale", func() bool { return p.cluster("web").state == "stale" })
	s.RegisterMany(instance("b", b))
	tr.lands(t, a)
	second := token()
	write(t, file, second.SecretID)
	p.awaitReadyEndpoints("web", "the new token is used", a, b)
	tr.lands(t, a, b)
	tr.stop()
	tr.noErrors(t)
	p.servedAll()
	for _, tok := range []*api.ACLToken{first, second} {
		if _, body := p.get("/clusters"); strings.Contains(p.output()+body, tok.SecretID) {
			t.Error("the agent shows a token")
		}
	}
}

// Everything that is said by Consul's own environment variables.
func TestConsulEnvironment(t *testing.T) {
	needsServer(t)
	a := startBackend(t)
	web := `
cluster "web" {
  discovery "consul" {}
}
` + webListener
	t.Run("tls", func(t *testing.T) {
		certs := consultest.NewCerts(t)
		s := consultest.Start(t, consultest.Options{TLS: certs, ACL: true})
		s.RegisterMany(instance("a", a))
		t.Setenv("CONSUL_HTTP_ADDR", s.HTTPSAddr())
		t.Setenv("CONSUL_HTTP_SSL", "true")
		t.Setenv("CONSUL_HTTP_TOKEN", consultest.ManagementToken)
		t.Setenv("CONSUL_CACERT", certs.CAFile)
		t.Setenv("CONSUL_CLIENT_CERT", certs.ClientCert)
		t.Setenv("CONSUL_CLIENT_KEY", certs.ClientKey)
		p := startAgent(t, web)
		p.awaitReadyEndpoints("web", "the instance is ready", a)

		t.Setenv("CONSUL_CACERT", consultest.NewCerts(t).CAFile)
		p = startAgent(t, web)
		eventually(t, "another authority is told", func() bool {
			_, body := p.get("/ready")
			return strings.Contains(body, "certificate signed by unknown authority")
		})
	})
	t.Run("unix", func(t *testing.T) {
		s := consultest.Start(t, consultest.Options{UnixSocket: true})
		s.RegisterMany(instance("a", a))
		t.Setenv("CONSUL_HTTP_ADDR", s.Addr())
		p := startAgent(t, web)
		p.awaitReadyEndpoints("web", "the instance is ready", a)
	})
}

// The agent is a service of the catalog from start to end, whatever happens to
// Consul in between.
func TestConsulRegistration(t *testing.T) {
	needsServer(t)
	s := consultest.Start(t, consultest.Options{})
	file := filepath.Join(t.TempDir(), "gatehouse.hcl")
	write(t, file, fmt.Sprintf(`
node  { id = "n1" }
admin { address = %q }
consul {
  address = %q
  register { check_interval = "1s" }
}
`, free(t), s.Addr()))
	p := startAgentWith(t, "run", "-config-file", file, "-log-json")
	registered := func(want bool) func() bool {
		return func() bool {
			list, _, err := s.API("").Health().Service("gatehouse", "", true, nil)
			return err == nil && (len(list) == 1) == want && (!want || list[0].Service.ID == "gatehouse-n1")
		}
	}
	eventually(t, "the agent is registered and passes", registered(true))
	s.WipeAndRestart()
	eventually(t, "the agent is registered again", registered(true))
	if code := p.end(syscall.SIGTERM); code != 0 {
		t.Errorf("exit code %d after SIGTERM", code)
	}
	eventually(t, "the agent is not registered any more", registered(false))
}

// Services become listeners by a tag or by metadata, as far as they are valid,
// and one that can't be opened costs no other its place.
func TestConsulListeners(t *testing.T) {
	needsServer(t)
	a, b := startBackend(t), startBackend(t)
	s := consultest.Start(t, consultest.Options{})
	byTag, byMeta, taken := free(t), free(t), free(t)
	web, shop, busy, open := instance("a", a), instance("b", b), instance("c", b), instance("d", b)
	web.Tags = []string{"gatehouse.listen=" + byTag, "other"}
	shop.Name, shop.Meta = "shop", map[string]string{"gatehouse-listen": byMeta}
	busy.Name, busy.Tags = "busy", []string{"gatehouse.listen=" + taken}
	open.Name, open.Tags = "open", []string{"gatehouse.listen=0.0.0.0:80"}
	s.RegisterMany(web, shop, busy, open)
	other, err := net.Listen("tcp", taken)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()

	p := startAgent(t, fmt.Sprintf(`
consul {
  address   = %q
  listeners = true
}
`, s.Addr()))
	p.awaitReady()
	listens := func(addr string, want *backend) func() bool {
		return func() bool {
			who, err := ask(t.Context(), addr)
			return err == nil && who == want.addr
		}
	}
	eventually(t, "the tagged service is listened for", listens(byTag, a))
	eventually(t, "the described service is listened for", listens(byMeta, b))
	said := func(service, reason string) func() bool {
		return func() bool {
			_, c := p.get("/clusters?format=json")
			_, l := p.get("/listeners?format=json")
			return strings.Contains(c+l, service) && strings.Contains(c+l, reason)
		}
	}
	eventually(t, "the busy address is told", said("busy", "address already in use"))
	eventually(t, "the open address is told", said("open", "not a loopback address"))

	tr := startTraffic(t, byTag)
	tr.lands(t, a)
	other.Close()
	eventually(t, "the address that is free again is listened on", listens(taken, b))
	s.Replace("shop")
	eventually(t, "the service that is gone is not listened for", func() bool {
		_, err := net.Dial("tcp", byMeta)
		return err != nil
	})
	tr.lands(t, a)
	tr.stop()
	tr.noErrors(t)
}

// free returns a loopback address that nobody listens on at the moment.
func free(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}
