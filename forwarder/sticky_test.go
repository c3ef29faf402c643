package forwarder

import (
	"context"
	"io"
	"net"
	"net/netip"
	"strconv"
	"testing"

	"gatehouse.internal/lbcore"
	"gatehouse.internal/lbcore/maglev"
	"gatehouse.internal/lbcore/ringhash"
)

// Where the first choice of a key fails or is not ready, all its connections go to
// the same second one, and then to the same third; the keys of other endpoints
// stay where they are, and all come back.
func TestStickyFailover(t *testing.T) { onEach(t, testStickyFailover) }

func testStickyFailover(t *testing.T) {
	for name, policy := range map[string]lbcore.Builder{
		"ring_hash": ringhash.Config{MinimumSize: 1024}, "maglev": maglev.Config{TableSize: 1009},
	} {
		t.Run(name, func(t *testing.T) {
			const endpoints, keys = 6, 48
			var addrs []lbcore.Addr
			var stops []func()
			for i := range endpoints {
				at, stop := backendUntil(t, anyPort, func(c net.Conn) { _, _ = io.WriteString(c, strconv.Itoa(i)) })
				addrs, stops = append(addrs, at), append(stops, stop)
			}
			ctx, cancel := context.WithCancel(t.Context())
			up, wait := runClusterOf(ctx, policy, addrs...)
			t.Cleanup(func() { cancel(); wait() })
			r := start(t, Config{Upstream: up, Settings: Settings{HashOn: HashSourceIP, Proxy: &ProxyIn{From: loopback}}})
			source := func(key int) netip.AddrPort {
				return netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, 51, 100, byte(key)}), 1)
			}
			orders := make([][]int, keys) // who is to get a key, in what order
			for key := range orders {
				reader := up.gate.Pin()
				picks := up.slot.Pick(reader, lbcore.StringKey(source(key).Addr().String()), endpoints)
				reader.Unpin()
				for m := picks.Next(); m != nil; m = picks.Next() {
					i, _ := strconv.Atoi(m.Endpoint().HashKey)
					orders[key] = append(orders[key], i)
				}
			}
			// land has each key connect twice, and wants it at the first endpoint in
			// its order that is up, at the first attempt if the others aren't ready.
			land := func(when string, up func(i int) bool, dials bool) {
				t.Helper()
				for key, order := range orders {
					want := 0
					for !up(order[want]) {
						want++
					}
					for range 2 {
						c := client(t, r.Addr())
						write(t, c, header(2, source(key), wanted))
						got, err := io.ReadAll(c)
						if string(got) != strconv.Itoa(order[want]) || err != nil {
							t.Errorf("%s: key %d went to %s, %v; want the %d. of %v", when, key, got, err, want+1, order)
						}
						_ = c.Close()
						attempts := 1
						if dials {
							attempts += want
						}
						if rec := r.record(t); rec.Attempts != attempts {
							t.Errorf("%s: key %d took %d attempts, want %d", when, key, rec.Attempts, attempts)
						}
					}
				}
			}
			down := make(map[int]bool)
			isUp := func(i int) bool { return !down[i] }
			land("all up", isUp, false)
			for _, i := range []int{2, 5} {
				down[i] = true
				if err := up.view.SetEnabled(addrs[i], false); err != nil {
					t.Fatal(err)
				}
				land("disabled", isUp, false)
			}
			for i := range down {
				if err := up.view.SetEnabled(addrs[i], true); err != nil {
					t.Fatal(err)
				}
			}
			land("all up again", func(int) bool { return true }, false)
			for i := range down {
				stops[i]()
			}
			land("refusing", isUp, true)
		})
	}
}
