package forwarder

import (
	"context"
	"io"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"
)

// What is open, with its state, endpoint and bytes; no more than is asked for.
func TestConnections(t *testing.T) {
	onEach(t, func(t *testing.T) {
		gone := make(chan struct{})
		defer close(gone)
		up := newCluster(t, backend(t, anyPort, func(c net.Conn) {
			b := make([]byte, 5)
			_, _ = io.ReadFull(c, b)
			_, _ = c.Write(b)
			<-gone
		}))
		r := start(t, Config{Upstream: up})
		list := func(most int) []Connection {
			t.Helper()
			all, err := r.Connections(t.Context(), most)
			if err != nil {
				t.Fatal(err)
			}
			return all
		}
		if all := list(10); len(all) != 0 {
			t.Errorf("connections %+v", all)
		}
		before := time.Now()
		first, second := client(t, r.Addr()), client(t, r.Addr())
		exchange(t, first, "hello")
		exchange(t, second, "other")
		eventually(t, "all bytes are counted", func() bool {
			all := list(10)
			return len(all) == 2 && !slices.ContainsFunc(all, func(c Connection) bool { return c.BytesIn != 5 || c.BytesOut != 5 })
		})
		for i, c := range list(10) {
			if c.Start.Before(before) || time.Since(c.Start) < c.Connect || c.Connect <= 0 || !slices.Contains([]netip.AddrPort{addrOfConn(first), addrOfConn(second)}, c.Client) {
				t.Errorf("connection %d: %+v", i, c)
			}
			c.Start, c.Connect, c.Client = time.Time{}, 0, netip.AddrPort{}
			want := Connection{
				Listener: "test", State: "open", Cluster: "web", Endpoint: up.member(0).Addr(), Generation: 1, BytesIn: 5, BytesOut: 5,
			}
			if c != want {
				t.Errorf("connection %d: %+v, want %+v", i, c, want)
			}
		}
		if n := len(list(1)); n != 1 {
			t.Errorf("%d connections, want 1", n)
		}
		if err := first.(*net.TCPConn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		eventually(t, "one is half-closed", func() bool {
			n := 0
			for _, c := range list(10) {
				if c.State == "half-closed" && c.Client == addrOfConn(first) {
					n++
				}
			}
			return n == 1
		})
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, _ = r.Connections(ctx, 10) // does not wait
	})
}

func addrOfConn(c net.Conn) netip.AddrPort { return c.LocalAddr().(*net.TCPAddr).AddrPort() }

// Before an endpoint is connected there is not much to say, and nothing to race
// for.
func TestConnectionsWaiting(t *testing.T) {
	onEach(t, func(t *testing.T) {
		up := newCluster(t, backend(t, anyPort, echo))
		from := []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
		r := start(t, Config{Upstream: up, Settings: Settings{Proxy: &ProxyIn{From: from}}})
		client(t, r.Addr())
		eventually(t, "it is there", func() bool {
			all, err := r.Connections(t.Context(), 10)
			return err == nil && len(all) == 1 && (all[0].State == "greeting" || all[0].State == "connecting") && !all[0].Endpoint.IsValid()
		})
	})
}
