package node

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"gatehouse.internal/cmd/agent/internal/config"
	"gatehouse.internal/discovery"
	"gatehouse.internal/forwarder"
	"gatehouse.internal/healthsvc"
	"gatehouse.internal/lbcore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a running Node with a control plane that says what a test says.
type rig struct {
	*Node
	t      *testing.T
	hosts  *lbcore.Hosts
	health *healthsvc.Service
	eds    *control
	mu     sync.Mutex
	ended  []forwarder.Record
}

// start runs a Node until the end of the test, and checks then that nothing of
// what it held is left.
func start(t *testing.T, change ...func(*Config)) *rig {
	t.Helper()
	r := &rig{t: t, hosts: new(lbcore.Hosts), eds: &control{known: make(map[string]lbcore.Set)}}
	r.health = healthsvc.NewService(healthsvc.Config{})
	cfg := Config{
		Hosts: r.hosts, Gate: lbcore.NewGate(lbcore.GateConfig{}), Health: r.health, EDS: r.eds.source,
		DrainTimeout: time.Hour,
		OnDone: func(rec *forwarder.Record) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.ended = append(r.ended, *rec)
		},
	}
	for _, f := range change {
		f(&cfg)
	}
	r.Node = New(cfg)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { r.health.Run(ctx) })
	wg.Go(func() {
		if err := r.Run(ctx); err != context.Canceled {
			t.Errorf("Run returned %v", err)
		}
	})
	t.Cleanup(func() {
		cancel()
		wg.Wait()
		if st := r.health.Stats(); st.Refs != 0 || st.Targets != 0 {
			t.Errorf("%d checks of %d targets are held after the end", st.Refs, st.Targets)
		}
		if n := r.hosts.Len(); n != 0 {
			t.Errorf("%d hosts are held after the end", n)
		}
		if n := r.eds.watchers(""); n != 0 {
			t.Errorf("%d sources run after the end", n)
		}
	})
	return r
}

func (r *rig) apply(spec Spec) {
	r.t.Helper()
	if err := r.Apply(r.t.Context(), spec); err != nil {
		r.t.Fatal(err)
	}
}

// cluster returns the status of a cluster, zero if there is none.
func (r *rig) cluster(name string) ClusterStatus {
	for _, c := range r.Status().Clusters {
		if c.Name == name {
			return c
		}
	}
	return ClusterStatus{}
}

// listener returns the status of a listener that is not draining.
func (r *rig) listener(name string) ListenerStatus {
	for _, l := range r.Status().Listeners {
		if l.Name == name && !l.Draining {
			return l
		}
	}
	return ListenerStatus{}
}

// ready counts the endpoints of a cluster that take connections.
func (r *rig) ready(name string) (n int) {
	for _, e := range r.cluster(name).Endpoints {
		if e.Ready {
			n++
		}
	}
	return n
}

// serving returns what runs by the name, for comparing.
func (r *rig) serving(name string) *cluster { return r.table.Load().clusters[name] }

// within waits until ok, and fails the test when that takes too long.
func within(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	limit := time.NewTimer(20 * time.Second)
	defer limit.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-limit.C:
			t.Fatalf("it is not so that %s", what)
		}
	}
}

// conn is a client's connection through a listener to the backend from.
type conn struct {
	net.Conn
	t    *testing.T
	r    *bufio.Reader
	from string
}

// dial connects to a listener. With an error the connection was refused.
func (r *rig) dial(listener string) (*conn, error) {
	r.t.Helper()
	a := r.listener(listener).Address
	nc, err := net.Dial(a.Network(), a.Dial())
	if err != nil { // the reset may come that early
		return &conn{t: r.t}, err
	}
	r.t.Cleanup(func() { nc.Close() })
	nc.SetDeadline(time.Now().Add(20 * time.Second))
	c := &conn{Conn: nc, t: r.t, r: bufio.NewReader(nc)}
	line, err := c.r.ReadString('\n')
	c.from = line[:max(len(line)-1, 0)]
	return c, err
}

// mustDial is dial for a connection that has to lead to a backend.
func (r *rig) mustDial(listener, want string) *conn {
	r.t.Helper()
	c, err := r.dial(listener)
	if err != nil || c.from != want {
		r.t.Fatalf("a connection led to %q with %v, want %q", c.from, err, want)
	}
	return c
}

// refused dials a listener that has to reset the connection and returns the
// record of it.
func (r *rig) refused(listener string) forwarder.Record {
	r.t.Helper()
	r.mu.Lock()
	before := len(r.ended)
	r.mu.Unlock()
	c, err := r.dial(listener)
	if !errors.Is(err, syscall.ECONNRESET) {
		r.t.Fatalf("a connection led to %q with %v, want a reset", c.from, err)
	}
	var client netip.AddrPort // not known of unix sockets, nor after an early reset
	if c.Conn != nil {
		client, _ = netip.ParseAddrPort(c.LocalAddr().String())
	}
	var rec forwarder.Record
	within(r.t, "the end is recorded", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, rec = range r.ended[before:] {
			// Others were closed before, and are told late.
			if rec.Flag != forwarder.FlagNone && (!client.IsValid() || rec.Client == client) {
				return true
			}
		}
		return false
	})
	return rec
}

// alive fails the test unless bytes pass to the backend and back.
func (c *conn) alive() {
	c.t.Helper()
	if _, err := io.WriteString(c, "hello\n"); err != nil {
		c.t.Fatal(err)
	}
	if line, err := c.r.ReadString('\n'); line != "hello\n" {
		c.t.Fatalf("read %q, %v", line, err)
	}
}

// backend says its name to each connection, and then what it hears.
type backend struct {
	lbcore.Endpoint
	accepted atomic.Int64
	refuse   func() error // has it take no connection any more
}

func listen(t *testing.T, name string) *backend {
	t.Helper()
	return listenSlow(t, name, 0)
}

// listenSlow is listen for a backend that lets its clients wait.
func listenSlow(t *testing.T, name string, wait time.Duration) *backend {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := &backend{Endpoint: endpoint(ln.Addr().String()), refuse: ln.Close}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			b.accepted.Add(1)
			stop := context.AfterFunc(ctx, func() { c.Close() })
			wg.Go(func() {
				defer stop()
				defer c.Close()
				select {
				case <-time.After(wait):
				case <-ctx.Done():
				}
				io.WriteString(c, name+"\n")
				io.Copy(c, c)
			})
		}
	})
	t.Cleanup(func() {
		ln.Close()
		cancel()
		wg.Wait()
	})
	return b
}

// deaf returns an endpoint that refuses connections. Its port is nobody else's, and a
// test may listen there.
func deaf(t *testing.T) lbcore.Endpoint {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Close(fd) })
	syscall.CloseOnExec(fd)
	if err := errors.Join(
		syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1),
		syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}),
	); err != nil {
		t.Fatal(err)
	}
	at, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	return endpoint(fmt.Sprint("127.0.0.1:", at.(*syscall.SockaddrInet4).Port))
}

func endpoint(addr string) lbcore.Endpoint {
	a, err := lbcore.ParseAddr(addr)
	if err != nil {
		panic(err)
	}
	return lbcore.Endpoint{Addr: a, Weight: 1}
}

// control is a control plane: what it knows of EDS resources, and who asks.
type control struct {
	mu    sync.Mutex
	known map[string]lbcore.Set
	sinks []*watch
}

type watch struct {
	name string
	sink discovery.Sink
}

func (c *control) replace(name string, eps ...lbcore.Endpoint) {
	set := lbcore.MustSet(eps...)
	c.each(name, func(s discovery.Sink) { s.Replace(set) }, func() { c.known[name] = set })
}

func (c *control) fail(name string, err error) {
	c.each(name, func(s discovery.Sink) { s.Fail(err) }, func() {})
}

func (c *control) each(name string, tell func(discovery.Sink), first func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	first()
	for _, w := range c.sinks {
		if w.name == name {
			tell(w.sink)
		}
	}
}

// watchers counts the sources of a resource that run, of all for "".
func (c *control) watchers(name string) (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, w := range c.sinks {
		if name == "" || w.name == name {
			n++
		}
	}
	return n
}

func (c *control) source(name string, _ *discovery.Duplicates) discovery.Source {
	return edsSource{c, name}
}

type edsSource struct {
	c    *control
	name string
}

func (s edsSource) Watch(ctx context.Context, sink discovery.Sink) error {
	w := &watch{s.name, sink}
	s.c.mu.Lock()
	s.c.sinks = append(s.c.sinks, w)
	if set, ok := s.c.known[s.name]; ok {
		sink.Replace(set)
	}
	s.c.mu.Unlock()
	<-ctx.Done()
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	s.c.sinks = slices.DeleteFunc(s.c.sinks, func(x *watch) bool { return x == w })
	return ctx.Err()
}

// clusterOf returns a cluster with one round_robin selector.
func clusterOf(name string, d config.Discovery, checks ...config.HealthCheck) config.Cluster {
	return config.Cluster{
		Name: name, Origin: config.OriginFile, Discovery: []config.Discovery{d}, HealthChecks: checks,
		Selectors:      []config.Selector{{Name: config.DefaultSelector, Policy: config.PolicyRoundRobin}},
		ConnectTimeout: 5 * time.Second, MaxConnectAttempts: 3, Required: true,
	}
}

func static(eps ...lbcore.Endpoint) config.Discovery {
	return config.Discovery{Kind: config.DiscoveryStatic, Endpoints: eps}
}

func eds(service string) config.Discovery {
	return config.Discovery{Kind: config.DiscoveryEDS, ServiceName: service}
}

// changed returns c with a setting that matters to nothing changed.
func changed(c config.Cluster) config.Cluster {
	c.ConnectTimeout += time.Second
	return c
}

// listenerOf returns a listener on a port of the kernel's choice.
func listenerOf(name, cluster string) config.Listener {
	return config.Listener{
		Name: name, Origin: config.OriginFile, Cluster: cluster, HashOn: config.HashOnNone,
		Address:     lbcore.IPAddr(netip.MustParseAddrPort("127.0.0.1:0")),
		IdleTimeout: time.Hour, HalfClosedTimeout: 5 * time.Minute,
	}
}

// at returns l at the unix socket of that name.
func at(l config.Listener, dir, name string) config.Listener {
	l.Address = lbcore.UnixAddr(fmt.Sprintf("%s/%s.sock", dir, name))
	return l
}

// steady connects to a listener again and again while change is called twenty times,
// and each time until it was served once more; no connection may fail.
func (r *rig) steady(addr, want string, change func(i int)) {
	r.t.Helper()
	stop, failed, served := make(chan struct{}), make(chan error, 1), new(atomic.Int64)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			c, err := net.Dial("tcp", addr)
			if err == nil {
				c.SetDeadline(time.Now().Add(20 * time.Second))
				_, err = io.ReadFull(c, make([]byte, len(want+"\n")))
				c.Close()
			}
			if err != nil {
				failed <- err
				return
			}
			served.Add(1)
		}
	})
	for i := range 20 {
		before := served.Load()
		change(i)
		within(r.t, "it serves", func() bool { return served.Load() > before || len(failed) > 0 })
	}
	close(stop)
	wg.Wait()
	select {
	case err := <-failed:
		r.t.Error(err)
	default:
	}
}
