package forwarder

import (
	"fmt"
	"io"
	"net/netip"
	"sync/atomic"
	"testing"

	"gatehouse.internal/forwarder/filterchain"
	"gatehouse.internal/internal/contain"
	"gatehouse.internal/lbcore"
)

// A connection that a redirect brings goes to the listener that it was meant for,
// with a socket or without, which has it for its own; what there is no listener for
// stays, and so does what that does not take.
func TestHandOff(t *testing.T) {
	if !inNamespace(t, "iptables") {
		return
	}
	shell(t, `
		ip addr add 192.0.2.1/32 dev lo
		ip addr add 203.0.113.9/32 dev lo
		ip route add default dev lo`)
	onEach(t, testHandOff)
}

func testHandOff(t *testing.T) {
	var log logBuffer
	var circles Circles
	var bad atomic.Bool
	panics := new(contain.Panics)
	loops := loopsFor(t)
	up := newCluster(t, backend(t, anyPort, echo))
	addr := func(s string) lbcore.Addr { return lbcore.IPAddr(netip.MustParseAddrPort(s)) }
	listener := func(name, at string, noBind bool) *rig {
		chain := &FilterChain{Name: name, Upstream: up, Match: filterchain.Match{PrefixRanges: []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")}}}
		return start(t, Config{Name: name, Upstream: up, Addr: addr(at), NoBind: noBind, Loops: loops, Circles: &circles, Logger: log.logger(), Settings: Settings{Chains: mustChains(t, nil, chain)}})
	}
	virtual, bound, stopped := listener("virtual", "203.0.113.7:443", true), listener("bound", "203.0.113.9:443", false), listener("stopped", "203.0.113.8:443", true)
	stopped.Drain(t.Context())
	at := map[netip.AddrPort]*Listener{}
	for _, r := range []*rig{virtual, bound, stopped} {
		at[r.Addr().AddrPort()] = r.Listener
	}
	front := start(t, Config{Name: "front", Upstream: up, Loops: loops, Circles: &circles, Logger: log.logger(), Settings: Settings{
		OriginalDst: true, HandOff: func(to netip.AddrPort) *Listener {
			boom(&bad)
			return at[to]
		},
	}, Panics: panics})
	at[netip.MustParseAddrPort("203.0.113.6:443")] = front.Listener
	shell(t, fmt.Sprintf(`
		iptables -w -t nat -F OUTPUT
		iptables -w -t nat -A OUTPUT -p tcp -d 203.0.113.0/24 --dport 443 -j REDIRECT --to-ports %d`, front.Addr().AddrPort().Port()))
	for _, tt := range []struct {
		to   string
		want *rig
	}{
		{"203.0.113.7:443", virtual}, {"203.0.113.9:443", bound}, {"203.0.113.8:443", front}, {"203.0.113.5:443", front}, {"203.0.113.6:443", front},
	} {
		c := client(t, addr(tt.to))
		exchange(t, c, "hello")
		closeWrite(c)
		if _, err := io.ReadAll(c); err != nil {
			t.Error(err)
		}
		rec := tt.want.record(t)
		if rec.Listener != tt.want.Name() || rec.Destination.String() != tt.to || rec.Flag != FlagNone || rec.Client.String() != c.LocalAddr().String() {
			t.Errorf("%s: %+v", tt.to, rec)
		}
		if tt.want != front && rec.Chain != tt.want.Name() {
			t.Errorf("%s: chain %q", tt.to, rec.Chain)
		}
	}
	if s := front.Stats(); s.HandedOff != 2 || s.Accepted != 3 || virtual.Stats().Accepted != 1 || bound.Stats().Accepted != 1 || stopped.Stats().Accepted != 0 {
		t.Errorf("%+v", s)
	}
	// Where it can't be told whose it is nobody serves it, and the others go on.
	bad.Store(true)
	wantRefused(t, addr("203.0.113.7:443"))
	bad.Store(false)
	if rec := front.record(t); rec.Flag != FlagLR || rec.Err == nil || panics.Count(contain.Connection) != 1 {
		t.Errorf("record %+v, %d panics", rec, panics.Count(contain.Connection))
	}
	if s := front.Stats(); s.Flags[FlagLR] != 1 || s.Accepted != 4 || s.Active != 0 {
		t.Errorf("%+v", s)
	}
	// The limits are those of who has it.
	s := *virtual.settings.Load()
	s.MaxConnections = 1
	if err := virtual.Set(s); err != nil {
		t.Fatal(err)
	}
	held := client(t, addr("203.0.113.7:443"))
	exchange(t, held, "hello")
	wantRefused(t, addr("203.0.113.7:443"))
	if rec := virtual.record(t); rec.Flag != FlagOM {
		t.Errorf("record %+v", rec)
	}
	// And its end is theirs.
	virtual.cancel()
	wantReset(t, held)
	if rec := virtual.record(t); rec.Flag != FlagLR {
		t.Errorf("record %+v", rec)
	}
	c := client(t, addr("203.0.113.7:443"))
	exchange(t, c, "to the front again")
	_ = c.Close()
	if rec := front.record(t); rec.Listener != "front" {
		t.Errorf("record %+v", rec)
	}
}
