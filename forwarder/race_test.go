package forwarder

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"gatehouse.internal/internal/tlsconf"
	"gatehouse.internal/lbcore"
)

// additional gives the endpoint of c that was given first more addresses.
func (c *cluster) additional(more ...lbcore.Addr) {
	var eps []lbcore.Endpoint
	for _, m := range c.view.Members() {
		e := *m.Endpoint()
		if e.HashKey == "0" {
			e.Additional = lbcore.AddrsOf(more...)
		}
		eps = append(eps, e)
	}
	if _, rebuild := c.view.Update(lbcore.MustSet(eps...)); rebuild {
		panic("additional addresses are no topology")
	}
}

var anyPort6 = lbcore.IPAddr(netip.MustParseAddrPort("[::1]:0"))

// Which address comes when, as in Envoy.
func TestAddressOrder(t *testing.T) {
	for _, tt := range []struct {
		first lbcore.Addr
		d     Dial
		more  string
		want  string
	}{
		{v4(1), Dial{}, "4 4 6 6 6", "4.1 6.4 4.2 6.5 4.3 6.6"},
		{v4(1), Dial{}, "4 4 4", "4.1 4.2 4.3 4.4"},
		{v6(1), Dial{}, "4 4 4", "6.1 4.2 4.3 4.4"},
		{v4(1), Dial{FirstFamily: 6}, "4 6 6", "6.3 4.1 6.4 4.2"},
		{v6(1), Dial{FirstFamily: 4}, "4 6 4", "4.2 6.1 4.4 6.3"},
		{v4(1), Dial{FirstFamily: 6}, "4 4", "4.1 4.2 4.3"},
		{v4(1), Dial{FirstFamilyCount: 2}, "4 4 6 6", "4.1 4.2 6.4 4.3 6.5"},
		{v4(1), Dial{FirstFamily: 6, FirstFamilyCount: 9}, "6 6 4", "6.2 6.3 4.1 4.4"},
	} {
		e := lbcore.Endpoint{Addr: tt.first}
		var more []lbcore.Addr
		for i := 0; i < len(tt.more); i += 2 {
			if n := byte(i/2 + 2); tt.more[i] == '4' {
				more = append(more, v4(n))
			} else {
				more = append(more, v6(n))
			}
		}
		e.Additional = lbcore.AddrsOf(more...)
		var got []string
		for _, a := range tt.d.order(&e) {
			b := a.AddrPort().Addr().AsSlice()
			got = append(got, fmt.Sprintf("%d.%d", map[int]int{4: 4, 16: 6}[len(b)], b[len(b)-1]))
		}
		if fmt.Sprint(got) != "["+tt.want+"]" {
			t.Errorf("%v and %s with %+v: %v, want %s", tt.first, tt.more, tt.d, got, tt.want)
		}
	}
}

func v4(n byte) lbcore.Addr {
	return lbcore.IPAddr(netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, n}), 80))
}

func v6(n byte) lbcore.Addr {
	return lbcore.IPAddr(netip.AddrPortFrom(netip.AddrFrom16([16]byte{0: 0x20, 1: 1, 15: n}), 80))
}

// What is dialled when: each address is tried 300 ms after the one before it,
// or as soon as that has failed; the first that is connected wins, the others
// are given up or closed; and all of it is one dial of one endpoint.
func TestRace(t *testing.T) {
	type dialed struct {
		at   time.Duration
		addr lbcore.Addr
	}
	ms := time.Millisecond
	const never = time.Hour
	type outcome struct {
		after time.Duration
		err   error
	}
	refused := &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	noRoute := &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.EADDRNOTAVAIL)}
	for name, tt := range map[string]struct {
		outcomes  map[lbcore.Addr]outcome
		want      []dialed
		won       lbcore.Addr // invalid: the dial fails
		took      time.Duration
		abandoned bool
	}{
		"the first answers":        {map[lbcore.Addr]outcome{v4(1): {299 * ms, nil}}, []dialed{{0, v4(1)}}, v4(1), 299 * ms, false},
		"the second wins":          {map[lbcore.Addr]outcome{v4(1): {500 * ms, nil}, v6(2): {100 * ms, nil}}, []dialed{{0, v4(1)}, {300 * ms, v6(2)}}, v6(2), 400 * ms, false},
		"the first wins late":      {map[lbcore.Addr]outcome{v4(1): {350 * ms, nil}, v6(2): {100 * ms, nil}}, []dialed{{0, v4(1)}, {300 * ms, v6(2)}}, v4(1), 350 * ms, false},
		"a failure hurries":        {map[lbcore.Addr]outcome{v4(1): {20 * ms, refused}, v6(2): {10 * ms, nil}}, []dialed{{0, v4(1)}, {20 * ms, v6(2)}}, v6(2), 30 * ms, false},
		"the last":                 {map[lbcore.Addr]outcome{v4(1): {never, nil}, v6(2): {never, nil}, v4(3): {never, nil}, v6(4): {50 * ms, nil}}, []dialed{{0, v4(1)}, {300 * ms, v6(2)}, {600 * ms, v4(3)}, {900 * ms, v6(4)}}, v6(4), 950 * ms, false},
		"all fail":                 {map[lbcore.Addr]outcome{v4(1): {0, noRoute}, v6(2): {0, refused}, v4(3): {0, noRoute}, v6(4): {0, noRoute}}, []dialed{{0, v4(1)}, {0, v6(2)}, {0, v4(3)}, {0, v6(4)}}, lbcore.Addr{}, 0, false},
		"all fail for causes here": {map[lbcore.Addr]outcome{v4(1): {0, noRoute}, v6(2): {0, noRoute}, v4(3): {0, noRoute}, v6(4): {0, noRoute}}, []dialed{{0, v4(1)}, {0, v6(2)}, {0, v4(3)}, {0, v6(4)}}, lbcore.Addr{}, 0, true},
		"nobody answers":           {map[lbcore.Addr]outcome{v4(1): {never, nil}, v6(2): {never, nil}, v4(3): {never, nil}, v6(4): {never, nil}}, []dialed{{0, v4(1)}, {300 * ms, v6(2)}, {600 * ms, v4(3)}, {900 * ms, v6(4)}}, lbcore.Addr{}, time.Second, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				up := newCluster(t, v4(1))
				up.additional(v4(3), v6(2), v6(4))
				up.dial.Timeout = time.Second
				w := newMemWorld(t, Config{Upstream: up})
				begin := time.Now()
				calls := make(chan dialed, 10)
				w.dial = func(ctx context.Context, a lbcore.Addr, _ *Dial) (net.Conn, error) {
					calls <- dialed{time.Since(begin), a}
					o := tt.outcomes[a]
					select {
					case <-time.After(o.after):
					case <-ctx.Done():
						return nil, ctx.Err()
					}
					if o.err != nil {
						return nil, o.err
					}
					x, y := newMemPair(netip.AddrPort{})
					w.backends <- x
					return y, nil
				}
				c := w.ln.connect()
				if tt.won.IsValid() {
					closeWrite(c)
					closeWrite(<-w.backends)
				}
				_, _ = c.Read(make([]byte, 1))
				rec := w.record(t)
				close(calls)
				var got []dialed
				for d := range calls {
					got = append(got, d)
				}
				if !slices.Equal(got, tt.want) {
					t.Errorf("dialled %v, want %v", got, tt.want)
				}
				if rec.Endpoint != v4(1) || rec.Address != tt.won || rec.Attempts != 1 {
					t.Errorf("record %+v", rec)
				}
				failed := uint64(1)
				if tt.won.IsValid() {
					failed = 0
					if rec.Connect != tt.took || rec.Flag != FlagNone {
						t.Errorf("connected after %v, flag %v; want %v", rec.Connect, rec.Flag, tt.took)
					}
				} else if rec.Duration != tt.took || rec.Flag != FlagUF {
					t.Errorf("failed after %v, flag %v; want %v", rec.Duration, rec.Flag, tt.took)
				}
				if s := w.Stats(); tt.abandoned && (s.DialsAbandoned != failed || s.DialsFailed != 0) || !tt.abandoned && (s.DialsFailed != failed || s.DialsAbandoned != 0) || s.Dials != 1 {
					t.Errorf("stats %+v", s)
				}
				if n := up.member(0).Active(); n != 0 {
					t.Errorf("%d active", n)
				}
			})
		})
	}
}

// Without a descriptor for a second address at the same time, each gets its
// share of the time, and at least as much as it would have alone.
func TestRaceAlone(t *testing.T) {
	for timeout, each := range map[time.Duration]time.Duration{time.Second: attemptDelay, 4 * time.Second: time.Second} {
		synctest.Test(t, func(t *testing.T) {
			up := newCluster(t, v4(1))
			up.additional(v4(3), v6(2), v6(4))
			up.dial.Timeout = timeout
			w := newMemWorld(t, Config{Upstream: up, MaxExtra: -1})
			begin := time.Now()
			var running atomic.Int32
			calls := make(chan time.Duration, 10)
			w.dial = func(ctx context.Context, a lbcore.Addr, _ *Dial) (net.Conn, error) {
				if running.Add(1) > 1 {
					t.Error("two at once")
				}
				calls <- time.Since(begin)
				<-ctx.Done()
				running.Add(-1)
				return nil, ctx.Err()
			}
			_, _ = w.ln.connect().Read(make([]byte, 1))
			rec := w.record(t)
			close(calls)
			n := time.Duration(0)
			for at := range calls {
				if at != n*each {
					t.Errorf("address %d was dialled after %v, want %v", n, at, n*each)
				}
				n++
			}
			if s := w.Stats(); n != 4 || rec.Duration != timeout || rec.Flag != FlagUF || rec.Attempts != 1 || s.DialsFailed != 1 || s.DialsAbandoned != 0 {
				t.Errorf("%d were dialled, record %+v, stats %+v", n, rec, s)
			}
		})
	}
}

// A connection that is made after another has won is closed.
func TestRaceLoser(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		up := newCluster(t, v4(1))
		up.additional(v6(2))
		w := newMemWorld(t, Config{Upstream: up})
		far := make(map[lbcore.Addr]*memConn)
		w.dial = func(ctx context.Context, a lbcore.Addr, _ *Dial) (net.Conn, error) {
			if a == v4(1) {
				<-ctx.Done() // and yet it is connected
			}
			x, y := newMemPair(netip.AddrPort{})
			if far[a] = x; a == v6(2) {
				w.backends <- x
			}
			return y, nil
		}
		c := w.ln.connect()
		won := <-w.backends
		synctest.Wait()
		if n, err := far[v4(1)].Read(make([]byte, 1)); n != 0 || err == nil {
			t.Errorf("the other: read %d, %v", n, err)
		}
		_, _ = c.Write([]byte("x"))
		if n, err := won.Read(make([]byte, 1)); n != 1 || err != nil {
			t.Errorf("read %d, %v", n, err)
		}
		reset(c)
		reset(won)
		w.record(t)
	})
}

// Real sockets: an endpoint none of whose addresses answers counts once, and
// the next candidate is tried.
func TestRaceLost(t *testing.T) { onEach(t, testRaceLost) }

func testRaceLost(t *testing.T) {
	up := newCluster(t, refused(t), backend(t, anyPort, echo))
	up.additional(refused(t), lbcore.IPAddr(netip.MustParseAddrPort("[2001:db8::1]:9")))
	up.dial.Source6 = netip.MustParseAddr("2001:db8::77") // which this host has not
	r := start(t, Config{Upstream: up})
	c := client(t, r.Addr())
	exchange(t, c, "hello")
	_ = c.Close()
	if rec := r.record(t); rec.Attempts != 2 || rec.Endpoint != up.member(1).Addr() || rec.Address != rec.Endpoint {
		t.Errorf("record %+v", rec)
	}
	if s := r.Stats(); s.Dials != 2 || s.DialsFailed != 1 || s.DialsAbandoned != 0 {
		t.Errorf("stats %+v", s)
	}
	if _, failed, _, _ := up.member(0).Counters(); failed != 1 {
		t.Errorf("%d failed dials", failed)
	}
}

// The listener itself is no address of an endpoint.
func TestRaceOwnAddress(t *testing.T) { onEach(t, testRaceOwnAddress) }

func testRaceOwnAddress(t *testing.T) {
	up := newCluster(t, refused(t))
	r := start(t, Config{Upstream: up})
	up.additional(r.Addr())
	wantRefused(t, r.Addr())
	if rec := r.record(t); rec.Flag != FlagUF || !errors.Is(rec.Err, syscall.ECONNREFUSED) || rec.Address.IsValid() {
		t.Errorf("record %+v", rec)
	}
	if s := r.Stats(); s.Accepted != 1 {
		t.Errorf("stats %+v", s)
	}
}

// The TLS handshake is with the address that has won.
func TestRaceTLS(t *testing.T) { onEach(t, testRaceTLS) }

func testRaceTLS(t *testing.T) {
	p := newPKI(t)
	serve := secured(p.server(t, p.mutual).Config(), func(c *tls.Conn) { echo(c) })
	up := newCluster(t, refused(t))
	v6 := backend(t, anyPort6, serve)
	up.additional(v6)
	up.dial.TLS = p.upstream(t, tlsconf.ClientConfig{CertFile: p.clientCert, KeyFile: p.ckey, ServerName: "web.internal"})
	r := start(t, Config{Upstream: up})
	c := client(t, r.Addr())
	exchange(t, c, "hello")
	_ = c.Close()
	if rec := r.record(t); rec.Attempts != 1 || rec.Endpoint != up.member(0).Addr() || rec.Address != v6 {
		t.Errorf("record %+v", rec)
	}
}
