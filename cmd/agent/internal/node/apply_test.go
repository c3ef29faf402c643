package node

import (
	"bufio"
	"context"
	"errors"
	"io"
	"maps"
	"net"
	"net/netip"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"gatehouse.internal/cmd/agent/internal/config"
	"gatehouse.internal/discovery/consul"
	"gatehouse.internal/forwarder"
	"gatehouse.internal/internal/tlsconf"
	"gatehouse.internal/lbcore"
	"gatehouse.internal/lbcore/leastweight"
	"gatehouse.internal/lbcore/ringhash"
	"gatehouse.internal/lbcore/roundrobin"
)

// What is the same is not touched, however much changes around it.
func TestApplyKeepsWhatIsTheSame(t *testing.T) {
	r := start(t)
	one, two := listen(t, "one"), listen(t, "two")
	a, b := clusterOf("a", static(one.Endpoint)), clusterOf("b", static(two.Endpoint))
	la, lb := listenerOf("la", "a"), listenerOf("lb", "b")
	r.apply(Spec{Clusters: []config.Cluster{a, b}, Listeners: []config.Listener{la, lb}})
	within(t, "both are warm", func() bool { return len(r.Waiting()) == 0 })
	c := r.mustDial("la", "one")
	before, serving := r.listener("la"), r.serving("a")

	b.MaxConnectAttempts, lb.Cluster = 1, "c"
	r.apply(Spec{
		Clusters:    []config.Cluster{clusterOf("c", static(one.Endpoint)), b, a},
		Listeners:   []config.Listener{lb, la, listenerOf("lc", "b")},
		Unsupported: []Unsupported{{Name: "d", Reason: "no"}},
	})
	within(t, "all are warm", func() bool { return len(r.Waiting()) == 0 })
	c.alive()
	r.mustDial("la", "one").alive()
	r.mustDial("lb", "one").alive()
	r.mustDial("lc", "two").alive()
	if r.serving("a") != serving {
		t.Error("a cluster was replaced by itself")
	}
	after := r.listener("la")
	if after.Address != before.Address || after.Stats.Accepted != 2 {
		t.Errorf("the listener was %+v and is %+v", before, after)
	}
	if cl := r.cluster("a"); cl.Generation != 1 || cl.Totals.Opened != 2 {
		t.Errorf("the cluster counts %+v in generation %d", cl.Totals, cl.Generation)
	}

	// Nothing is left but what is asked for.
	r.apply(Spec{Clusters: []config.Cluster{a}, Listeners: []config.Listener{la}})
	if st := r.Status(); len(st.Clusters) != 1 {
		t.Errorf("clusters are %+v", st.Clusters)
	}
	c.alive()
}

// Settings, cluster and selector of a listener change without touching its
// socket and its connections.
func TestApplyListenerSettings(t *testing.T) {
	r := start(t)
	one, two := listen(t, "one"), listen(t, "two")
	clusters := []config.Cluster{clusterOf("a", static(one.Endpoint)), clusterOf("b", static(two.Endpoint))}
	clusters[1].Selectors = append(clusters[1].Selectors, config.Selector{Name: "ring", Policy: config.PolicyRingHash})
	l := listenerOf("l", "a")
	r.apply(Spec{Clusters: clusters, Listeners: []config.Listener{l}})
	within(t, "all are warm", func() bool { return len(r.Waiting()) == 0 })
	c := r.mustDial("l", "one")
	addr := r.listener("l").Address

	l.MaxConnections = 1
	r.apply(Spec{Clusters: clusters, Listeners: []config.Listener{l}})
	if got, err := r.dial("l"); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("a connection over the limit led to %q, %v", got.from, err)
	}
	l.MaxConnections, l.Cluster, l.Selector, l.HashOn = 0, "b", "ring", config.HashOnSourceIP
	r.apply(Spec{Clusters: clusters, Listeners: []config.Listener{l}})
	r.mustDial("l", "two").alive()
	c.alive()
	st := r.listener("l")
	if st.Address != addr || st.Selector != "ring" || st.Stats.Flags[forwarder.FlagOM] != 1 || st.Stats.Accepted != 3 {
		t.Errorf("the listener is %+v", st)
	}
}

// A connection that its listener had accepted before it left, and whose header
// comes later, is led to the cluster that has left with it and ends after it.
func TestLeavingListenerPicks(t *testing.T) {
	r := start(t)
	r.eds.replace("web", listen(t, "one").Endpoint)
	l := listenerOf("l", "web")
	l.ProxyProtocol = config.ProxyIn{AcceptFrom: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, Timeout: time.Minute, MaxPending: 10}
	r.warm(Spec{Clusters: []config.Cluster{clusterOf("web", eds(""))}, Listeners: []config.Listener{l}})
	nc, err := net.Dial("tcp", r.listener("l").Address.Dial())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	nc.SetDeadline(time.Now().Add(20 * time.Second))
	within(t, "it is accepted", func() bool { return r.listener("l").Stats.ProxyPending == 1 })
	r.apply(Spec{})
	if _, err := io.WriteString(nc, "PROXY UNKNOWN\r\n"); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(nc).ReadString('\n'); line != "one\n" {
		t.Errorf("led to %q, %v", line, err)
	}
	within(t, "discovery has ended", func() bool { return r.eds.watchers("web") == 0 })
	if st := r.Status(); len(st.Clusters) != 0 || r.hosts.Len() != 1 {
		t.Errorf("clusters %+v, and %d hosts are held", st.Clusters, r.hosts.Len())
	}
	_ = nc.Close()
	within(t, "the cluster has ended", func() bool { return r.hosts.Len() == 0 })
}

// What a file says of listeners, clusters and selectors reaches who obeys it.
func TestSettings(t *testing.T) {
	r := start(t)
	from := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
	got := settings(config.Listener{
		HashOn: config.HashOnSourceIP, MaxConnections: 1, IdleTimeout: 2, HalfClosedTimeout: 3,
		ProxyProtocol: config.ProxyIn{AcceptFrom: from, Optional: true, Timeout: 4, MaxPending: 5},
		TLS:           config.DownstreamTLS{HandshakeTimeout: 6, MaxHandshakes: 7},
	}, &downstreamTLS{server: new(tlsconf.Server)})
	want := forwarder.Settings{
		HashOn: forwarder.HashSourceIP, MaxConnections: 1, IdleTimeout: 2, HalfClosedTimeout: 3,
		Proxy: &forwarder.ProxyIn{From: from, Optional: true, Timeout: 4, MaxPending: 5},
		TLS:   new(tlsconf.Server), HandshakeTimeout: 6, MaxHandshakes: 7,
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("settings are %+v, want %+v", got, want)
	}
	mesh := new(consul.MeshServer)
	got = settings(config.Listener{Connect: config.DownstreamConnect{HandshakeTimeout: 6, MaxHandshakes: 7}}, &downstreamTLS{mesh: mesh})
	if want := (forwarder.Settings{Mesh: mesh, HandshakeTimeout: 6, MaxHandshakes: 7}); !reflect.DeepEqual(got, want) {
		t.Errorf("settings are %+v, want %+v", got, want)
	}
	inspector := config.TLSInspector{Timeout: 6, MaxPending: 7}
	for on, want := range map[string]forwarder.Settings{
		config.HashOnNone:              {},
		config.HashOnSourceIPPort:      {HashOn: forwarder.HashSourceIPPort},
		config.HashOnDestination:       {HashOn: forwarder.HashDestination},
		config.HashOnSNI:               {HashOn: forwarder.HashSNI, HelloTimeout: 6, MaxHellos: 7},
		config.HashOnProxyTLV + "0xEA": {HashOn: forwarder.HashProxyTLV, HashTLV: 0xea},
	} {
		want.OriginalDst = true
		if got := settings(config.Listener{HashOn: on, TLSInspector: inspector, OriginalDst: true}, nil); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: settings are %+v, want %+v", on, got, want)
		}
	}
	for _, tt := range []struct {
		in   config.Selector
		want lbcore.Builder
	}{
		{config.Selector{Policy: "round_robin"}, roundrobin.Config{}},
		{config.Selector{Policy: "least_weight", ChoiceCount: 3}, leastweight.Config{Choices: 3, Bias: new(float64)}},
		{config.Selector{Policy: "ring_hash", MinimumRingSize: 1, MaximumRingSize: 2, HashFunction: "xx_hash"}, ringhash.Config{MinimumSize: 1, MaximumSize: 2}},
		{config.Selector{Policy: "ring_hash", HashFunction: "murmur_hash_2"}, ringhash.Config{Function: ringhash.MurmurHash2}},
	} {
		tt.in.Name = "s"
		sc, err := slot(tt.in)
		if want := (lbcore.SlotConfig{Name: "s", Policy: tt.in.Policy, Builder: tt.want}); err != nil || !reflect.DeepEqual(sc, want) {
			t.Errorf("slot is %+v, %v; want %+v", sc, err, want)
		}
	}

	one := listen(t, "one")
	c := clusterOf("web", static(one.Endpoint, deaf(t), deaf(t)))
	c.ConnectTimeout = 7 * time.Second
	c.CircuitBreakers = config.CircuitBreakers{MaxConnections: 100, MaxPendingRequests: 70, MaxConnectionsPerEndpoint: 50}
	c.ProxyProtocol = config.ProxyOut{Version: 2, UniqueID: true, PassThroughTLVs: []string{"0xEA", "all"}}
	c.SourceAddress = []netip.Addr{netip.MustParseAddr("::1"), netip.MustParseAddr("127.0.0.9")}
	c.TCPKeepalive = config.TCPKeepalive{KeepaliveInterval: 5 * time.Second, KeepaliveProbes: 3}
	c.HappyEyeballs = config.HappyEyeballs{FirstAddressFamilyVersion: config.FamilyV6, FirstAddressFamilyCount: 2}
	r.apply(Spec{Clusters: []config.Cluster{c}, Listeners: []config.Listener{listenerOf("l", "web")}})
	within(t, "the cluster is warm", func() bool { return len(r.Waiting()) == 0 })
	web := r.serving("web")
	dial := forwarder.Dial{
		Cluster: "web", Timeout: 7 * time.Second, Attempts: 3,
		Latency: web.latency, TLSFailures: web.failures, Ends: web.ends, Open: web.open, MaxConnections: 100, MaxPerEndpoint: 50, Pending: web.pending, MaxPending: 70,
		ProxyVersion: 2, ProxyUniqueID: true, ProxyTLVs: []byte{0xea}, ProxyAllTLVs: true,
		Source4: netip.MustParseAddr("127.0.0.9"), Source6: netip.MustParseAddr("::1"),
		Keepalive:   forwarder.Keepalive{Time: -1, Interval: 5 * time.Second, Probes: 3, UserTimeout: -1},
		FirstFamily: 6, FirstFamilyCount: 2,
	}
	if got := *web.dial; !reflect.DeepEqual(got, dial) {
		t.Errorf("dials are %+v, want %+v", got, dial)
	}
	for range 6 { // whoever comes first
		r.mustDial("l", "one").Close()
	}
	if st := r.cluster("web").Totals; st.Opened != 6 || st.Failed == 0 {
		t.Errorf("totals are %+v", st)
	}
}

// A listener without a cluster to go to says which, and why.
func TestRefusals(t *testing.T) {
	r := start(t)
	one := listen(t, "one")
	kept, removed := clusterOf("kept", static(one.Endpoint)), clusterOf("removed", static(one.Endpoint))
	listeners := []config.Listener{
		listenerOf("nowhere", "nowhere"), listenerOf("unsupported", "odd"), listenerOf("selector", "kept"),
		listenerOf("removed", "removed"), listenerOf("silent", "silent"), listenerOf("empty", "empty"),
	}
	listeners[2].Selector = "nosuch"
	r.eds.replace("empty")
	spec := Spec{
		Clusters:    []config.Cluster{kept, removed, clusterOf("silent", eds("")), clusterOf("empty", eds(""))},
		Listeners:   listeners,
		Unsupported: []Unsupported{{Name: "odd", Reason: "lb_policy CLUSTER_PROVIDED"}},
	}
	r.apply(spec)
	within(t, "the cluster is warm", func() bool { return r.ready("removed") == 1 && r.cluster("removed").Waiting == "" })
	open := r.mustDial("removed", "one")
	spec.Clusters = slices.Delete(spec.Clusters, 1, 2)
	r.apply(spec)
	open.alive()

	for listener, want := range map[string]struct {
		flag   forwarder.Flag
		reason string
	}{
		"nowhere":     {forwarder.FlagNC, `cluster "nowhere" is not known`},
		"unsupported": {forwarder.FlagNC, `cluster "odd" is not supported: lb_policy CLUSTER_PROVIDED`},
		"selector":    {forwarder.FlagNC, `cluster "kept" has no selector "nosuch"`},
		"removed":     {forwarder.FlagNC, `cluster "removed" is not known`},
		"silent":      {forwarder.FlagUH, `cluster "silent" has no endpoint that is ready`},
		"empty":       {forwarder.FlagUH, `cluster "empty" has no endpoint that is ready`},
	} {
		rec := r.refused(listener)
		if rec.Flag != want.flag || rec.Err == nil || rec.Err.Error() != want.reason || rec.Cluster == "" {
			t.Errorf("listener %s: cluster %q, %s, %v; want %s, %s", listener, rec.Cluster, rec.Flag, rec.Err, want.flag, want.reason)
		}
	}
	if st := r.cluster("odd"); st.Unsupported != "lb_policy CLUSTER_PROVIDED" || st.Origin != "xds" || st.Source.State != "unknown" {
		t.Errorf("the unsupported cluster is shown as %+v", st)
	}
}

// A cluster of the control plane that can't be run is shown with its reason, and the
// others run; one that could before runs on. In a file it is a mistake.
func TestOneClusterCannotBeRun(t *testing.T) {
	r := start(t)
	one := listen(t, "one")
	bad := clusterOf("bad", config.Discovery{Kind: config.DiscoveryDNS}) // without a client
	if err := r.Apply(t.Context(), Spec{Clusters: []config.Cluster{bad}}); err == nil {
		t.Error("a file's is taken")
	}
	bad.Origin = config.OriginXDS
	was := clusterOf("was", static(one.Endpoint))
	was.Origin = config.OriginXDS
	spec := Spec{Clusters: []config.Cluster{was}, Listeners: []config.Listener{listenerOf("was", "was"), listenerOf("bad", "bad")}}
	r.apply(spec)
	within(t, "the first is warm", func() bool { return r.serving("was").warm.Load() })
	old := r.serving("was")
	was.Discovery = bad.Discovery
	spec.Clusters = []config.Cluster{bad, was, clusterOf("good", static(one.Endpoint))}
	r.apply(spec)
	within(t, "the good one runs", func() bool { return r.ready("good") == 1 })
	r.mustDial("was", "one")
	if r.serving("was") != old {
		t.Error("the one that ran was replaced")
	}
	// The same where no more than the endpoints that it lists can't be.
	impossible := one.Endpoint
	impossible.Priority = lbcore.MaxPriority + 1
	was.Discovery = []config.Discovery{static(impossible)}
	spec.Clusters = []config.Cluster{bad, was, clusterOf("better", static(one.Endpoint))}
	r.apply(spec)
	within(t, "the better one runs", func() bool { return r.ready("better") == 1 })
	r.mustDial("was", "one")
	if st := r.cluster("bad"); !strings.Contains(st.Unsupported, "without a client") {
		t.Errorf("the bad one is shown as %+v", st)
	}
	if rec := r.refused("bad"); rec.Flag != forwarder.FlagNC {
		t.Errorf("record %+v", rec)
	}
}

// sockets notes what is opened and closed.
type sockets struct {
	mu   sync.Mutex
	did  []string
	hook func(lbcore.Addr)
}

func (s *sockets) note(what string, a lbcore.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.did = append(s.did, what+" "+strings.TrimSuffix(filepath.Base(a.Path()), ".sock"))
}

func (s *sockets) done() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.did)
}

func (s *sockets) open(_ string, a lbcore.Addr) (net.Listener, error) {
	if s.hook != nil {
		s.hook(a)
	}
	ln, err := forwarder.PlainListen(context.Background(), a)
	if err != nil {
		return nil, err
	}
	s.note("open", a)
	return &noted{ln, s, a}, nil
}

type noted struct {
	net.Listener
	s *sockets
	a lbcore.Addr
}

func (n *noted) Close() error {
	n.s.note("close", n.a)
	return n.Listener.Close()
}

// A listener that moves is opened before the old one is closed, whose
// connections live on.
func TestMovedListener(t *testing.T) {
	var s sockets
	r := start(t, func(c *Config) { c.Socket = s.open })
	one, dir := listen(t, "one"), t.TempDir()
	clusters := []config.Cluster{clusterOf("a", static(one.Endpoint))}
	l := listenerOf("l", "a")
	r.apply(Spec{Clusters: clusters, Listeners: []config.Listener{at(l, dir, "x")}})
	within(t, "the cluster is warm", func() bool { return len(r.Waiting()) == 0 })
	c := r.mustDial("l", "one")
	r.apply(Spec{Clusters: clusters, Listeners: []config.Listener{at(l, dir, "y")}})
	if want, got := []string{"open x", "open y", "close x"}, s.done(); !slices.Equal(got, want) {
		t.Errorf("sockets: %q, want %q", got, want)
	}
	c.alive()
	fresh := r.mustDial("l", "one")
	ls := r.Status().Listeners
	if len(ls) != 2 || ls[0].Draining || !ls[1].Draining || ls[1].Stats.Active != 1 {
		t.Errorf("listeners are %+v", ls)
	}
	c.Close()
	within(t, "the old one is gone", func() bool { return len(r.Status().Listeners) == 1 })
	fresh.alive()

	// An address is free as soon as its listener has left.
	for range 20 {
		r.apply(Spec{Clusters: clusters, Listeners: []config.Listener{at(l, dir, "x")}})
		r.apply(Spec{Clusters: clusters})
		r.apply(Spec{Clusters: clusters, Listeners: []config.Listener{at(listenerOf("other", "a"), dir, "x")}})
		r.apply(Spec{Clusters: clusters, Listeners: []config.Listener{at(l, dir, "y")}})
	}
	r.mustDial("l", "one")
}

// The connections of a listener that has left end after DrainTimeout.
func TestDrainTimeout(t *testing.T) {
	r := start(t, func(c *Config) { c.DrainTimeout = 50 * time.Millisecond })
	one := listen(t, "one")
	clusters := []config.Cluster{clusterOf("a", static(one.Endpoint))}
	r.apply(Spec{Clusters: clusters, Listeners: []config.Listener{listenerOf("l", "a")}})
	within(t, "the cluster is warm", func() bool { return len(r.Waiting()) == 0 })
	c := r.mustDial("l", "one")
	r.apply(Spec{Clusters: clusters})
	if _, err := c.r.ReadByte(); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the connection ended with %v, want a reset", err)
	}
	within(t, "the listener is gone", func() bool { return len(r.Status().Listeners) == 0 })
	if len(r.ended) != 1 || r.ended[0].Flag != forwarder.FlagLR {
		t.Errorf("connections ended as %+v", r.ended)
	}
}

// A socket that can't be opened leaves everything as it was.
func TestBindError(t *testing.T) {
	var s sockets
	r := start(t, func(c *Config) { c.Socket = s.open })
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	one, dir := listen(t, "one"), t.TempDir()
	a, l := clusterOf("a", static(one.Endpoint)), at(listenerOf("l", "a"), dir, "l")
	spec := Spec{Clusters: []config.Cluster{a}, Listeners: []config.Listener{l}}
	r.apply(spec)
	within(t, "the cluster is warm", func() bool { return len(r.Waiting()) == 0 })
	before := r.table.Load()
	same := func() bool { // though stored anew, when the cluster became warm
		now := r.table.Load()
		return maps.Equal(now.clusters, before.clusters) && maps.Equal(now.warming, before.warming) && slices.Equal(now.listeners, before.listeners)
	}

	moved, settings, bad := at(l, dir, "moved"), l, listenerOf("bad", "a")
	moved.Name, settings.MaxConnections = "moved", 1
	bad.Address = endpoint(taken.Addr().String()).Addr
	err = r.Apply(t.Context(), Spec{
		Clusters:  []config.Cluster{changed(a), clusterOf("b", eds("b"))},
		Listeners: []config.Listener{settings, moved, bad},
	})
	bind, ok := errors.AsType[*BindError](err)
	if !ok || bind.Listener != "bad" || !errors.Is(err, syscall.EADDRINUSE) || !strings.Contains(err.Error(), `listener "bad": listen on `+bad.Address.String()) {
		t.Fatalf("Apply: %v", err)
	}
	if !same() || r.eds.watchers("") != 0 {
		t.Error("something has changed")
	}
	if want, got := []string{"open l", "open moved", "close moved"}, s.done(); !slices.Equal(got, want) {
		t.Errorf("sockets: %q, want %q", got, want)
	}
	r.mustDial("l", "one")
	r.mustDial("l", "one").alive() // no limit

	for what, c := range map[string]config.Cluster{
		"unknown policy":    {Name: "x", Discovery: []config.Discovery{static()}, Selectors: []config.Selector{{Name: "s", Policy: "magic"}}},
		"unknown discovery": {Name: "x", Discovery: []config.Discovery{{Kind: "dns"}}},
		"a bad address":     {Name: "x", Discovery: []config.Discovery{static(lbcore.Endpoint{})}},
	} {
		err := r.Apply(t.Context(), Spec{Clusters: []config.Cluster{a, c}, Listeners: []config.Listener{l}})
		if err == nil || !strings.HasPrefix(err.Error(), `cluster "x": `) || !same() {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestApplyRefusesNamesTwice(t *testing.T) {
	r := start(t)
	c, l := clusterOf("c", static()), listenerOf("l", "c")
	err := r.Apply(t.Context(), Spec{
		Clusters: []config.Cluster{c, c, clusterOf("u", static())}, Listeners: []config.Listener{l, l},
		Unsupported: []Unsupported{{Name: "u", Reason: ""}, {Name: "l", Reason: ""}},
	})
	if want := "cluster \"c\" is there twice\ncluster \"u\" is there twice\nlistener \"l\" is there twice"; err == nil || err.Error() != want {
		t.Errorf("Apply: %v, want %s", err, want)
	}
	if st := r.Status(); len(st.Clusters)+len(st.Listeners) != 0 {
		t.Errorf("Status is %+v", st)
	}
}

func TestEDSNeedsAControlPlane(t *testing.T) {
	r := start(t, func(c *Config) { c.EDS = nil })
	err := r.Apply(t.Context(), Spec{Clusters: []config.Cluster{clusterOf("web", eds(""))}})
	if err == nil || err.Error() != `cluster "web": discovery by eds needs an xds block` {
		t.Errorf("Apply: %v", err)
	}
}

// Before Run, Apply waits for as long as its context lasts.
func TestApplyWithoutRun(t *testing.T) {
	n := New(Config{Hosts: new(lbcore.Hosts), Gate: lbcore.NewGate(lbcore.GateConfig{})})
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := n.Apply(ctx, Spec{}); err != context.Canceled {
			t.Errorf("Apply: %v", err)
		}
	})
	cancel()
	wg.Wait()
}

func TestDrain(t *testing.T) {
	r := start(t)
	one := listen(t, "one")
	spec := Spec{
		Clusters:  []config.Cluster{clusterOf("a", static(one.Endpoint))},
		Listeners: []config.Listener{listenerOf("l", "a"), listenerOf("m", "a")},
	}
	r.apply(spec)
	within(t, "the cluster is warm", func() bool { return len(r.Waiting()) == 0 })
	ends, stays := r.mustDial("l", "one"), r.mustDial("m", "one")
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if cut := r.Drain(ctx); cut != 1 {
			t.Errorf("%d connections were cut, want 1", cut)
		}
	})
	a := r.listener("m").Address
	within(t, "no connection is accepted any more", func() bool {
		c, err := net.Dial(a.Network(), a.Dial())
		if err == nil {
			c.Close()
		}
		return err != nil
	})
	if err := r.Apply(t.Context(), spec); err == nil || err.Error() != "the agent is draining" {
		t.Errorf("Apply: %v", err)
	}
	stays.alive()
	ends.Close()
	// On the other one those that were accepted before it stopped have to end too.
	within(t, "one is left", func() bool { return r.listener("l").Stats.Active == 0 && r.listener("m").Stats.Active == 1 })
	cancel()
	if _, err := stays.r.ReadByte(); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the connection ended with %v, want a reset", err)
	}
	wg.Wait()
}

// The connections of a listener that has left end one after the other before
// DrainTimeout is over.
func TestDrainSpread(t *testing.T) {
	onBothWith(t, func(t *testing.T, r *rig) {
		one := listen(t, "one")
		spec := Spec{Clusters: []config.Cluster{clusterOf("a", static(one.Endpoint))}, Listeners: []config.Listener{listenerOf("l", "a")}}
		r.apply(spec)
		within(t, "the cluster is warm", func() bool { return len(r.Waiting()) == 0 && r.ready("a") == 1 })
		var conns []*conn
		for range 10 {
			conns = append(conns, r.mustDial("l", "one"))
		}
		spec.Listeners = nil
		r.apply(spec)
		drained := 0
		for _, c := range conns {
			if rec := r.cut(c); rec.Flag != forwarder.FlagLR {
				t.Errorf("record %+v", rec)
			} else if rec.Err == forwarder.ErrDrained {
				drained++
			}
		}
		if drained < 5 { // the last moments may be the end, on a busy machine
			t.Errorf("%d of 10 were closed by the spread", drained)
		}
	}, func(c *Config) { c.DrainTimeout, c.DrainSpread = time.Second, time.Minute })
}

// A Drain that comes while listeners are being opened finds them too.
func TestDrainDuringApply(t *testing.T) {
	var s sockets
	r := start(t, func(c *Config) { c.Socket = s.open })
	s.hook = func(lbcore.Addr) { r.Drain(t.Context()) }
	dir := t.TempDir()
	r.Apply(t.Context(), Spec{Listeners: []config.Listener{at(listenerOf("l", "a"), dir, "l")}})
	if c, err := net.Dial("unix", dir+"/l.sock"); err == nil {
		c.Close()
		t.Error("a connection was accepted after Drain")
	}
}
