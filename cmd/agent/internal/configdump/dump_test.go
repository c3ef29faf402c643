package configdump

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	adminv3 "github.com/envoyproxy/go-control-plane/envoy/admin/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"gatehouse.internal/cmd/agent/internal/config"
	"gatehouse.internal/lbcore"
	"gatehouse.internal/xds"
)

func body(t *testing.T, m proto.Message) string {
	t.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

var (
	began = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	came  = began.Add(time.Minute)
	tried = began.Add(time.Hour)
)

// states returns a Status with a resource in each state.
func states(t *testing.T) xds.Status {
	named := func(name string) string { return body(t, &clusterv3.Cluster{Name: name}) }
	return xds.Status{Types: []xds.TypeStatus{
		{URL: xds.ClusterType, Version: "c2", Resources: []xds.ResourceStatus{
			{Name: "bad", State: "nacked", Error: "lb_policy: odd", Refused: named("bad"), Nack: xds.Nack{Version: "c3", Reason: "lb_policy: odd", At: tried}},
			{Name: "good", State: "acked", Version: "c2", Body: named("good"), Updated: came, Nack: xds.Nack{Version: "c1", Reason: "mended", At: tried}},
			{Name: "worse", State: "nacked", Version: "c1", Body: named("worse"), Updated: came, Error: "name: bad", Nack: xds.Nack{Version: "c3", Reason: "name: bad", At: tried}},
		}},
		{URL: xds.AssignmentType, Resources: []xds.ResourceStatus{
			{Name: "asked", State: "requested"},
			{Name: "failed", State: "received_error", Error: "no such service (NotFound)", Nack: xds.Nack{Version: "e0", Reason: "mended", At: tried}},
			{Name: "good", State: "acked", Version: "e1", Body: body(t, &endpointv3.ClusterLoadAssignment{ClusterName: "good"}), Updated: came},
			{Name: "none", State: "does_not_exist"},
		}},
		{URL: xds.ListenerType, Version: "l2", Resources: []xds.ResourceStatus{
			{Name: "bad", State: "nacked", Error: "address: missing", Refused: body(t, &listenerv3.Listener{Name: "bad"}), Nack: xds.Nack{Version: "l3", Reason: "address: missing", At: tried}},
			{Name: "good", State: "acked", Version: "l2", Body: body(t, &listenerv3.Listener{Name: "good"}), Updated: came},
		}},
		{URL: xds.SecretType, Resources: []xds.ResourceStatus{
			{Name: "asked", State: "requested"},
			{Name: "good", State: "acked", Version: "s2", Body: body(t, &tlsv3.Secret{Name: "good"}), Updated: came},
			{Name: "worse", State: "nacked", Version: "s1", Body: body(t, &tlsv3.Secret{Name: "worse"}), Error: "type: missing", Refused: body(t, &tlsv3.Secret{Name: "worse"}), Nack: xds.Nack{Version: "s3", Reason: "type: missing", At: tried}},
		}},
	}}
}

func dumper(t *testing.T) *Dumper {
	return fixed(Config{
		Node: xds.Node{ID: "n"}, Started: began, Admin: mustAddr("127.0.0.1:9901"),
		Static: []config.Cluster{
			{
				Name: "file", Origin: config.OriginFile, ConnectTimeout: time.Second,
				Discovery: []config.Discovery{{Kind: config.DiscoveryStatic, Endpoints: []lbcore.Endpoint{
					{Addr: mustAddr("192.0.2.1:80"), Weight: 2, Locality: lbcore.Locality{Zone: "a"}},
					{Addr: mustAddr("unix:///run/b.sock"), Priority: 1, Status: lbcore.StatusDraining},
					{Addr: mustAddr("192.0.2.3:80"), Weight: 1, Locality: lbcore.Locality{Zone: "a"}, Hostname: "three"},
				}}},
				Selectors: []config.Selector{{Name: "sticky", Policy: config.PolicyRingHash}, {Name: "fast", Policy: config.PolicyAdaptive}},
			},
			{Name: "eds", Discovery: []config.Discovery{{Kind: config.DiscoveryEDS, ServiceName: "service"}}},
			{Name: "names", Discovery: []config.Discovery{{Kind: config.DiscoveryDNS}}},
		},
		Status:  func() xds.Status { return states(t) },
		Warming: func() []string { return []string{"good"} },
	})
}

func mustAddr(s string) lbcore.Addr {
	a, err := lbcore.ParseAddr(s)
	if err != nil {
		panic(err)
	}
	return a
}

// dump returns the three dumps.
func dump(t *testing.T, q Query) (b *adminv3.BootstrapConfigDump, c *adminv3.ClustersConfigDump, e *adminv3.EndpointsConfigDump) {
	t.Helper()
	messages, err := dumper(t).Configs(q)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range messages {
		switch m := m.(type) {
		case *adminv3.BootstrapConfigDump:
			b = m
		case *adminv3.ClustersConfigDump:
			c = m
		case *adminv3.EndpointsConfigDump:
			e = m
		}
	}
	return b, c, e
}

// Each state of a resource is shown as Envoy does, with what is in force and what
// was refused.
func TestStates(t *testing.T) {
	_, c, e := dump(t, Query{IncludeEDS: true})
	line := func(version string, body interface{ GetValue() []byte }, at interface{ AsTime() time.Time }, s adminv3.ClientResourceStatus, f *adminv3.UpdateFailureState) string {
		out := version + " " + s.String()
		if len(body.GetValue()) > 0 {
			out += " held"
		}
		if got := at.AsTime(); got.Equal(came) {
			out += " since"
		} else if got.Unix() != 0 {
			out += " " + got.String()
		}
		if f != nil {
			out += " error=" + f.GetDetails() + " " + f.GetVersionInfo()
			if f.GetLastUpdateAttempt().AsTime().Equal(tried) {
				out += " tried"
			}
			if f.GetFailedConfiguration() != nil {
				out += " failed"
			}
		}
		return out
	}
	var active, warming, endpoints []string
	for _, x := range c.GetDynamicActiveClusters() {
		active = append(active, line(x.GetVersionInfo(), x.GetCluster(), x.GetLastUpdated(), x.GetClientStatus(), x.GetErrorState()))
	}
	for _, x := range c.GetDynamicWarmingClusters() {
		warming = append(warming, line(x.GetVersionInfo(), x.GetCluster(), x.GetLastUpdated(), x.GetClientStatus(), x.GetErrorState()))
	}
	for _, x := range e.GetDynamicEndpointConfigs() {
		endpoints = append(endpoints, line(x.GetVersionInfo(), x.GetEndpointConfig(), x.GetLastUpdated(), x.GetClientStatus(), x.GetErrorState()))
	}
	if d := cmp.Diff([]string{
		" NACKED error=lb_policy: odd c3 tried failed", "c1 NACKED held since error=name: bad c3 tried",
	}, active); d != "" {
		t.Errorf("active (-want +got):\n%s", d)
	}
	if d := cmp.Diff([]string{"c2 ACKED held since"}, warming); d != "" {
		t.Errorf("warming (-want +got):\n%s", d)
	}
	if d := cmp.Diff([]string{" REQUESTED", " RECEIVED_ERROR error=no such service (NotFound) ", "e1 ACKED held since", " DOES_NOT_EXIST"}, endpoints); d != "" {
		t.Errorf("endpoints (-want +got):\n%s", d)
	}
	if c.GetVersionInfo() != "c2" {
		t.Errorf("version %q", c.GetVersionInfo())
	}
}

// Listeners are shown as Envoy does: one that was never valid has no active state.
func TestListeners(t *testing.T) {
	for _, q := range []Query{{}, {Name: regexp.MustCompile("^good$")}} {
		messages, err := dumper(t).Configs(q)
		if err != nil {
			t.Fatal(err)
		}
		want := []string{`bad NACKED "" error=address: missing l3 failed=true`, `good ACKED "l2" held since error=  failed=false`}
		if q.Name != nil {
			want = want[1:]
		}
		var got []string
		for _, m := range messages {
			d, ok := m.(*adminv3.ListenersConfigDump)
			if !ok {
				continue
			}
			if d.GetVersionInfo() != "l2" {
				t.Errorf("version %q", d.GetVersionInfo())
			}
			for _, l := range d.GetDynamicListeners() {
				s, e := l.GetActiveState(), l.GetErrorState()
				line := fmt.Sprintf("%s %s %q", l.GetName(), l.GetClientStatus(), s.GetVersionInfo())
				var held listenerv3.Listener
				if s != nil && s.GetListener().UnmarshalTo(&held) == nil && held.GetName() == l.GetName() {
					line += " held"
				}
				if s.GetLastUpdated().AsTime().Equal(came) {
					line += " since"
				}
				got = append(got, line+fmt.Sprintf(" error=%s %s failed=%v", e.GetDetails(), e.GetVersionInfo(), e.GetFailedConfiguration() != nil))
			}
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("listeners by %v (-want +got):\n%s", q.Name, d)
		}
	}
	messages, err := dumper(t).Configs(Query{Resource: "dynamic_listeners"})
	if err != nil || len(messages) != 2 {
		t.Errorf("the elements are %v, %v", messages, err)
	}
}

// Secrets are shown as Envoy does: those that have not come are warming.
func TestSecrets(t *testing.T) {
	messages, err := dumper(t).Configs(Query{})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	list := func(kind string, all []*adminv3.SecretsConfigDump_DynamicSecret) {
		for _, s := range all {
			var held tlsv3.Secret
			there := s.GetSecret() != nil && s.GetSecret().UnmarshalTo(&held) == nil && held.GetName() == s.GetName()
			got = append(got, fmt.Sprintf("%s %s %s %q held=%v since=%v error=%s %s", kind, s.GetName(), s.GetClientStatus(), s.GetVersionInfo(), there,
				s.GetLastUpdated().AsTime().Equal(came), s.GetErrorState().GetDetails(), s.GetErrorState().GetVersionInfo()))
		}
	}
	for _, m := range messages {
		if d, ok := m.(*adminv3.SecretsConfigDump); ok {
			list("active", d.GetDynamicActiveSecrets())
			list("warming", d.GetDynamicWarmingSecrets())
		}
	}
	want := []string{
		`active good ACKED "s2" held=true since=true error= `, `active worse NACKED "s1" held=true since=false error=type: missing s3`,
		`warming asked REQUESTED "" held=false since=false error= `,
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// Clusters of the files are shown as Envoy's, with their endpoints.
func TestStaticClusters(t *testing.T) {
	b, c, e := dump(t, Query{IncludeEDS: true})
	if got := b.GetBootstrap().GetAdmin().GetAddress().GetSocketAddress().GetPortValue(); got != 9901 {
		t.Errorf("the admin address has the port %d", got)
	}
	if n := len(b.GetBootstrap().GetStaticResources().GetClusters()); n != 3 {
		t.Errorf("%d clusters in the bootstrap", n)
	}
	var got []string
	for _, s := range c.GetStaticClusters() {
		var m clusterv3.Cluster
		if err := s.GetCluster().UnmarshalTo(&m); err != nil || !s.GetLastUpdated().AsTime().Equal(began) {
			t.Errorf("%v, %v", err, s)
		}
		got = append(got, strings.Join([]string{m.GetName(), m.GetType().String(), m.GetLbPolicy().String(), m.GetEdsClusterConfig().GetServiceName()}, " "))
		if m.GetName() == "file" {
			if !proto.Equal(m.GetConnectTimeout(), durationpb.New(time.Second)) || len(m.GetLoadAssignment().GetEndpoints()) != 2 {
				t.Errorf("%v", &m)
			}
			if origin := m.GetMetadata().GetFilterMetadata()["gatehouse"].GetFields()["origin"].GetStringValue(); origin != "file" {
				t.Errorf("origin %q", origin)
			}
		}
	}
	if d := cmp.Diff([]string{"file STATIC RING_HASH ", "eds EDS ROUND_ROBIN service", "names STRICT_DNS ROUND_ROBIN "}, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if len(e.GetStaticEndpointConfigs()) != 1 {
		t.Fatalf("%v", e.GetStaticEndpointConfigs())
	}
	var a endpointv3.ClusterLoadAssignment
	if err := e.GetStaticEndpointConfigs()[0].GetEndpointConfig().UnmarshalTo(&a); err != nil {
		t.Fatal(err)
	}
	first, second := a.GetEndpoints()[0], a.GetEndpoints()[1]
	if a.GetClusterName() != "file" || first.GetLocality().GetZone() != "a" || len(first.GetLbEndpoints()) != 2 ||
		first.GetLbEndpoints()[0].GetLoadBalancingWeight().GetValue() != 2 || first.GetLbEndpoints()[1].GetEndpoint().GetHostname() != "three" ||
		second.GetPriority() != 1 || second.GetLbEndpoints()[0].GetEndpoint().GetAddress().GetPipe().GetPath() != "/run/b.sock" ||
		second.GetLbEndpoints()[0].GetHealthStatus().String() != "DRAINING" {
		t.Errorf("%v", &a)
	}
}

// What a query asks for is what comes.
func TestQueries(t *testing.T) {
	if _, c, e := dump(t, Query{}); e != nil || len(c.GetStaticClusters()) != 3 {
		t.Errorf("without endpoints: %v", e)
	}
	_, c, e := dump(t, Query{IncludeEDS: true, Name: regexp.MustCompile("^good$")})
	if len(c.GetStaticClusters())+len(c.GetDynamicActiveClusters()) != 0 || len(c.GetDynamicWarmingClusters()) != 1 || len(e.GetDynamicEndpointConfigs()) != 1 {
		t.Errorf("by name: %v %v", c, e)
	}
	for resource, want := range map[string]int{
		"static_clusters": 3, "dynamic_active_clusters": 2, "dynamic_warming_clusters": 1, "static_endpoint_configs": 1, "dynamic_endpoint_configs": 4, "dynamic_listeners": 2,
		"dynamic_active_secrets": 2, "dynamic_warming_secrets": 1,
	} {
		if got, err := dumper(t).Configs(Query{Resource: resource}); err != nil || len(got) != want {
			t.Errorf("%s: %d of them, %v; want %d", resource, len(got), err, want)
		}
	}
	if _, err := dumper(t).Configs(Query{Resource: "clusters"}); err == nil || !strings.Contains(err.Error(), "dynamic_active_clusters") {
		t.Errorf("no such resource: %v", err)
	}
	// Without a control plane, and without anything.
	messages, err := fixed(Config{Node: xds.Node{ID: "n"}}).Configs(Query{IncludeEDS: true})
	if err != nil || len(messages) != 5 {
		t.Errorf("%v, %v", messages, err)
	}
}

// fixed returns a Dumper over what does not change.
func fixed(cfg Config) *Dumper { return New(func() Config { return cfg }) }
