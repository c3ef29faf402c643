package consul_test

import (
	"testing"

	"github.com/hashicorp/consul/api"

	"gatehouse.internal/discovery/consul"
	"gatehouse.internal/discovery/consul/consultest"
)

// Everything that happens to a service in its life is seen as it happens. Each
// service has few changes, since a query slows down under lasting ones.
func TestRealLifecycle(t *testing.T) {
	t.Parallel()
	s := consultest.Start(t, consultest.Options{Config: `node_meta { rack = "r7" }`})
	at := func(service string, n int) consultest.Instance {
		i := instance(n)
		i.Name, i.ID = service, service+"-"+i.ID
		return i
	}
	weighed := at("checked", 1)
	weighed.Weights = api.AgentWeights{Passing: 10, Warning: 2}
	s.Register(weighed)
	s.Register(at("checked", 2))
	for _, service := range []string{"kept", "both", "all"} {
		s.Register(at(service, 1))
		s.Register(at(service, 2))
	}
	tagged := at("changed", 1)
	tagged.Tags = []string{"blue", "v1"}
	tagged.TaggedAddresses = map[string]api.ServiceAddress{"wan": {Address: "203.0.113.1", Port: 8080}}
	s.Register(tagged)
	s.Register(at("changed", 2))

	r := of(t, s)
	var all []*watching
	watch := func(q consul.Query) *watching {
		w := r.watch(q)
		all = append(all, w)
		return w
	}
	coming := watch(consul.Query{Service: "coming"})
	checked := watch(consul.Query{Service: "checked"})
	kept := watch(consul.Query{Service: "kept"})
	both := watch(consul.Query{Service: "both"})
	node := watch(consul.Query{Service: "all"})
	changed := watch(consul.Query{Service: "changed"})
	blue := watch(consul.Query{Service: "changed", Tags: []string{"blue", "v1"}})
	wan := watch(consul.Query{Service: "changed", Address: consul.AddressWAN})
	rack := watch(consul.Query{Service: "coming", NodeMeta: map[string]string{"rack": "r7"}})
	other := watch(consul.Query{Service: "coming", NodeMeta: map[string]string{"rack": "r8"}})
	for w, want := range map[*watching]string{
		coming: "", checked: "1*10 2", kept: "1 2", both: "1 2", node: "1 2", changed: "1 2", blue: "1", rack: "", other: "",
		wan: "2 203.0.113.1:8080", // the second has no such address
	} {
		w.see(want)
	}

	s.Register(at("coming", 1))
	s.SetStatus("checked-web-1", api.HealthWarning)
	s.SetStatus("checked-web-2", api.HealthCritical)
	s.ServiceMaintenance("kept-web-2", true)
	s.SetStatus("both-web-2", api.HealthCritical)
	tagged.Port, tagged.TaggedAddresses = 81, nil
	s.Register(tagged)
	coming.see("1")
	rack.see("1")
	checked.see("1*2 2-")
	kept.see("1 2~")
	both.see("1 2-")
	changed.see("1:81 2")
	blue.see("1:81")
	wan.see("1:81 2")

	s.Register(at("coming", 2))
	s.SetStatus("checked-web-1", api.HealthCritical)
	s.SetStatus("checked-web-2", api.HealthPassing)
	s.ServiceMaintenance("kept-web-2", false)
	s.ServiceMaintenance("both-web-2", true) // which counts more
	tagged.Tags, tagged.Weights = []string{"v1"}, api.AgentWeights{Passing: 3}
	s.Register(tagged)
	coming.see("1 2")
	rack.see("1 2")
	checked.see("1-*10 2")
	kept.see("1 2")
	both.see("1 2~")
	changed.see("1:81*3 2")
	blue.see("") // the leader has said so too: nothing is held back

	s.Deregister("coming-web-1")
	s.SetStatus("checked-web-1", api.HealthPassing)
	s.SetStatus("changed-web-1", api.HealthWarning) // whose weight is 0
	coming.see("2")
	rack.see("2")
	checked.see("1*10 2")
	changed.see("1:81*0 2")

	s.Deregister("coming-web-2")
	s.NodeMaintenance(true)
	coming.see("")
	rack.see("")
	node.see("1~ 2~")
	s.NodeMaintenance(false)
	node.see("1 2")

	other.only("")
	for _, w := range all {
		w.neverFailed()
	}
	if got := r.Stats(); got.Failures != 0 || got.IndexResets != 0 || got.Refused != 0 {
		t.Errorf("got %+v, want no failures, resets and refusals", got)
	}
}

// A thousand instances come and go.
func TestRealThousand(t *testing.T) {
	t.Parallel()
	s := consultest.Start(t, consultest.Options{})
	here, few, gone := consultest.Many("come", 1000), consultest.Many("few", 1000), consultest.Many("gone", 1000)
	s.RegisterMany(few...)
	s.RegisterMany(gone...)
	r := of(t, s)
	sources := map[string]*watching{}
	for name, n := range map[string]int{"come": 0, "few": 1000, "gone": 1000} {
		sources[name] = r.watch(consul.Query{Service: name})
		sources[name].seeOf(n)
	}
	s.RegisterMany(here...)
	s.Replace("few", few[:3]...)
	s.Replace("gone")
	for name, n := range map[string]int{"come": 1000, "few": 3, "gone": 0} {
		sources[name].seeOf(n)
		sources[name].neverFailed()
	}
}

// What no endpoint can be made of is left out and named, and costs no other its
// place.
func TestRealRefusals(t *testing.T) {
	t.Parallel()
	s := consultest.Start(t, consultest.Options{})
	s.RegisterMany(instance(1),
		consultest.Instance{Name: "web", ID: "named", Address: "web.example", Port: 80},
		consultest.Instance{Name: "web", ID: "portless", Address: "192.0.2.9"},
		consultest.Instance{Name: "web", ID: "on-its-node", Node: "n2", NodeAddress: "192.0.2.5", Port: 80},
	)
	s.Register(consultest.Instance{Name: "web", ID: "socket", SocketPath: "/run/web.sock"})
	agent := s.API(consultest.ManagementToken).Agent()
	if err := agent.ServiceRegister(&api.AgentServiceRegistration{
		Kind: api.ServiceKindConnectProxy, Name: "web", ID: "sidecar", Port: 21000, Address: "192.0.2.6",
		Proxy: &api.AgentServiceConnectProxyConfig{DestinationServiceName: "web"},
	}); err != nil {
		t.Fatal(err)
	}
	r := of(t, s)
	r.web().see("1 5")
	for _, want := range []string{"web.example", "port 0: want 1 to 65535", "socket_paths = true", "Connect leaf certificates"} {
		r.logged(want)
	}
	r.watch(consul.Query{Service: "web", SocketPaths: true, Kinds: []string{"connect-proxy"}}).see("1 5 6:21000 unix:///run/web.sock")
}
