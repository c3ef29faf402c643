package main

import (
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"gatehouse.internal/forwarder"
	"gatehouse.internal/lbcore"
)

// A connection that a stopped backend had is cut, also when it is reset before
// the client's connect has returned.
func TestDemoTellsCutFromFailed(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr, err := lbcore.ParseAddr(ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	c := newDemoClients()
	c.stoppedAt(addr.String())
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			client := conn.RemoteAddr().(*net.TCPAddr).AddrPort()
			conn.(*net.TCPConn).SetLinger(0)
			conn.Close()
			c.ended(&forwarder.Record{Client: client, Endpoint: addr, Connect: 1, Flag: forwarder.FlagUC})
		}
	})
	const n = 300
	for range n {
		c.exchange(t.Context(), "l", addr, netip.MustParseAddr("127.0.0.9"))
	}
	ln.Close()
	wg.Wait()
	var r demoReport
	if c.fill(&r); r.Connections != n || r.Cut+r.Failed > n || r.Failed != 0 || r.Cut == 0 {
		t.Errorf("%+v", r)
	}
}

// The demo goes on round after round, and loses nothing in any of them.
func TestDemoRounds(t *testing.T) {
	if testing.Short() {
		t.Skip("left out by -short: it needs a server")
	}
	d := &demo{opts: demoOptions{act: 300 * time.Millisecond, rounds: 4}, say: t.Logf}
	r, err := d.run(t.Context(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if r.Failed != 0 || r.FailedAfterDetection != 0 || r.Connections < 200 {
		t.Errorf("%+v", r)
	}
	// Three at first and one more each round; the last round's stopped one and
	// those that were removed are not healthy.
	healthy, served := 0, 0
	for _, e := range r.Endpoints {
		served += e.Connections
		if e.Healthy {
			healthy++
		}
	}
	if len(r.Endpoints) != 7 || healthy != 2 {
		t.Errorf("%d endpoints, %d healthy: want 7 and 2", len(r.Endpoints), healthy)
	}
	if served > r.Connections || served < r.Connections-r.Cut {
		t.Errorf("backends served %d of %d connections, %d cut", served, r.Connections, r.Cut)
	}
}
