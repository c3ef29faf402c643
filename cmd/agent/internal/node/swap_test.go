package node

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"gatehouse.internal/cmd/agent/internal/config"
	"gatehouse.internal/discovery"
	"gatehouse.internal/healthsvc"
	"gatehouse.internal/lbcore"
)

// handSource is a source that a test feeds.
type handSource struct{ sets chan lbcore.Set }

func (h handSource) Watch(ctx context.Context, sink discovery.Sink) error {
	for {
		select {
		case s := <-h.sets:
			sink.Replace(s)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// greeter answers "ping" with "pong" once it may, and any other line with its
// address at once.
func greeter(t *testing.T, healthy <-chan struct{}) lbcore.Addr {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	done := make(chan struct{})
	t.Cleanup(func() { ln.Close(); close(done); wg.Wait() })
	wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				line, err := bufio.NewReader(c).ReadString('\n')
				if err != nil {
					return
				}
				if line != "ping\n" {
					fmt.Fprintln(c, ln.Addr())
					return
				}
				select {
				case <-healthy:
					fmt.Fprintln(c, "pong")
				case <-done:
				}
			})
		}
	})
	addr, err := lbcore.ParseAddr(ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return addr
}

// A membership that is replaced as a whole: until the first probe of a new
// endpoint has passed, the old endpoints answer, although they have left.
func TestWholeMembershipSwapped(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	yes, later := make(chan struct{}), make(chan struct{})
	close(yes)
	a, b := greeter(t, yes), greeter(t, later)

	health := healthsvc.NewService(healthsvc.Config{})
	src := handSource{make(chan lbcore.Set)}
	n := New(Config{
		Hosts: new(lbcore.Hosts), Gate: lbcore.NewGate(lbcore.GateConfig{}), Health: health,
		EDS: func(string, *discovery.Duplicates) discovery.Source { return src },
	})
	wg.Go(func() { health.Run(ctx) })
	wg.Go(func() { n.Run(ctx) })
	anyPort, err := net.ResolveTCPAddr("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	err = n.Apply(ctx, Spec{
		Clusters: []config.Cluster{{
			Name: "web", Discovery: []config.Discovery{{Kind: config.DiscoveryEDS}},
			HealthChecks: []config.HealthCheck{{
				Kind: config.CheckTCP, Interval: time.Hour, Timeout: time.Hour, HealthyThreshold: 1, UnhealthyThreshold: 1,
				Send: "ping\n", Receive: []config.Payload{"pong"},
			}},
			Selectors:      []config.Selector{{Name: "default", Policy: config.PolicyRoundRobin}},
			ConnectTimeout: time.Minute, MaxConnectAttempts: 3,
		}},
		Listeners: []config.Listener{{Name: "web", Cluster: "web", Address: lbcore.IPAddr(anyPort.AddrPort())}},
	})
	if err != nil {
		t.Fatal(err)
	}
	until := func(what string, ok func(ClusterStatus) bool) {
		t.Helper()
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		limit := time.After(30 * time.Second)
		for !ok(n.Status().Clusters[0]) {
			select {
			case <-tick.C:
			case <-limit:
				t.Fatalf("it is not so that %s: %+v", what, n.Status().Clusters[0])
			}
		}
	}
	front := n.Status().Listeners[0].Address.Dial()
	ask := func() string {
		t.Helper()
		c, err := net.Dial("tcp", front)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		fmt.Fprintln(c, "who")
		answer, err := bufio.NewReader(c).ReadString('\n')
		if err != nil {
			t.Fatalf("no answer: %v", err)
		}
		return answer
	}

	src.sets <- lbcore.MustSet(lbcore.Endpoint{Addr: a, Weight: 1})
	until("the first endpoint is ready", func(c ClusterStatus) bool { return c.Selectors[0].Generation == 1 && c.Endpoints[0].Ready })
	if got := ask(); got != a.String()+"\n" {
		t.Fatalf("answered by %s", got)
	}

	src.sets <- lbcore.MustSet(lbcore.Endpoint{Addr: b, Weight: 1})
	until("the membership is replaced", func(c ClusterStatus) bool { return c.Generation == 2 && len(c.Endpoints) == 2 })
	for range 5 {
		if got := ask(); got != a.String()+"\n" {
			t.Fatalf("while nothing is known of the new endpoint: answered by %s", got)
		}
	}
	close(later)
	until("the new endpoint serves", func(c ClusterStatus) bool { return c.Selectors[0].Generation == 2 })
	if got := ask(); got != b.String()+"\n" {
		t.Fatalf("after its probe: answered by %s", got)
	}
}
