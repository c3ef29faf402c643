package forwarder

import (
	"crypto/tls"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"gatehouse.internal/internal/tlsconf"
	"gatehouse.internal/lbcore"
)

// What a client had connected to before a redirect is hashed, recorded and told
// to the endpoint.
func TestOriginalDst(t *testing.T) {
	if !inNamespace(t, "iptables", "ip6tables") {
		return
	}
	shell(t, `
		ip addr add 192.0.2.1/32 dev lo
		ip addr add 2001:db8::1/128 dev lo nodad
		ip route add default dev lo
		ip -6 route add default dev lo`)
	onEach(t, testOriginalDst)
}

func testOriginalDst(t *testing.T) {
	at, heard := told(t, anyPort)
	up := newCluster(t, at)
	up.dial.ProxyVersion = 2
	for _, listen := range []string{"127.0.0.1:0", "[::1]:0", "[::]:0"} {
		s := Settings{OriginalDst: true, HashOn: HashDestination}
		r := start(t, Config{Upstream: up, Settings: s, Addr: lbcore.IPAddr(netip.MustParseAddrPort(listen))})
		own := r.Addr().AddrPort()
		shell(t, fmt.Sprintf(`
			iptables -w -t nat -F OUTPUT
			ip6tables -w -t nat -F OUTPUT
			iptables -w -t nat -A OUTPUT -p tcp -d 203.0.113.0/24 --dport 443 -j REDIRECT --to-ports %d
			ip6tables -w -t nat -A OUTPUT -p tcp -d 2001:db8:1::/48 --dport 443 -j REDIRECT --to-ports %[1]d`, own.Port()))
		for _, to := range []string{"203.0.113.7:443", "203.0.113.8:443", "[2001:db8:1::7]:443", "127.0.0.1:0", "[::1]:0"} {
			to := netip.MustParseAddrPort(to)
			if !own.Addr().IsUnspecified() && own.Addr().Is4() != to.Addr().Is4() {
				continue
			}
			if to.Port() == 0 { // straight to the listener
				to = netip.AddrPortFrom(to.Addr(), own.Port())
			}
			c := client(t, lbcore.IPAddr(to))
			exchange(t, c, "hello")
			up.wantKey(t, to.String())
			if src, dst, ok := hear(t, heard).TCPAddrs(); !ok || dst.String() != to.String() || src.String() != c.LocalAddr().String() {
				t.Errorf("%s at %s: the endpoint was told %s to %s, ok %v", to, own, src, dst, ok)
			}
			closeWrite(c)
			if _, err := io.ReadAll(c); err != nil {
				t.Error(err)
			}
			if rec := r.record(t); rec.Destination != to || rec.Flag != FlagNone {
				t.Errorf("%s at %s: record %+v", to, own, rec)
			}
		}
		if err := r.Set(Settings{OriginalDst: true, HashOn: HashDestination, Proxy: &ProxyIn{From: []netip.Prefix{netip.MustParsePrefix("::/0"), netip.MustParsePrefix("0.0.0.0/0")}}}); err != nil {
			t.Fatal(err)
		}
		to := "203.0.113.7:443"
		if own.Addr().Is6() {
			to = "[2001:db8:1::7]:443"
		}
		c := client(t, lbcore.IPAddr(netip.MustParseAddrPort(to)))
		write(t, c, header(1, abroad, wanted)) // who says something else by a header knows better
		exchange(t, c, "hello")
		up.wantKey(t, wanted.String())
		if _, dst, _ := hear(t, heard).TCPAddrs(); dst.String() != wanted.String() {
			t.Errorf("the endpoint was told of %s", dst)
		}
	}
}

// Where nothing has redirected a client it is the listener that it has
// connected to, and a unix socket has no address.
func TestOriginalDstPlain(t *testing.T) { onEach(t, testOriginalDstPlain) }

func testOriginalDstPlain(t *testing.T) {
	sides(t, func(t *testing.T, listen, _ lbcore.Addr) {
		up := newCluster(t, backend(t, anyPort, echo))
		r := start(t, Config{Addr: listen, Upstream: up, Settings: Settings{OriginalDst: true, HashOn: HashDestination}})
		c := client(t, r.Addr())
		exchange(t, c, "hello")
		_ = c.Close()
		rec := r.record(t)
		if rec.Destination != r.Addr().AddrPort() {
			t.Errorf("record %+v", rec)
		}
		want := ""
		if rec.Destination.IsValid() {
			want = rec.Destination.String()
		}
		up.wantKey(t, want)
	})
}

// A rule that also catches what the agent sends leads every connection back: it is
// reset after some times round, before descriptors are short, of one listener and
// of two.
func TestCircle(t *testing.T) {
	if !inNamespace(t, "iptables") {
		return
	}
	shell(t, `
		ip link set lo up
		ip addr add 192.0.2.1/32 dev lo
		ip route add default dev lo`)
	onEach(t, testCircle)
}

func testCircle(t *testing.T) {
	var log logBuffer
	var circles Circles
	far := func(i byte, port uint16) lbcore.Addr {
		return lbcore.IPAddr(netip.AddrPortFrom(netip.AddrFrom4([4]byte{203, 0, 113, i}), port))
	}
	p := newPKI(t)
	for name, secure := range map[string]func(*lbcore.Member) (*tls.Config, error){"plain": nil, "TLS": p.upstream(t, tlsconf.ClientConfig{ServerName: "web.internal"})} {
		t.Run(name, func(t *testing.T) {
			ups := []*cluster{newCluster(t, far(7, 443), far(8, 443)), newCluster(t, far(7, 80)), newCluster(t, far(7, 9000))}
			rules := "iptables -w -t nat -F OUTPUT\n"
			var rigs []*rig
			for i, port := range []uint16{80, 443, 9000} { // 80 leads to 443 and back, 9000 to itself
				ups[i].dial.TLS = secure
				r := start(t, Config{Upstream: ups[i], Circles: &circles, Settings: Settings{OriginalDst: true}, Logger: log.logger()})
				rules += fmt.Sprintf("iptables -w -t nat -A OUTPUT -p tcp -d 203.0.113.0/24 --dport %d -j REDIRECT --to-ports %d\n", port, r.Addr().AddrPort().Port())
				rigs = append(rigs, r)
			}
			shell(t, rules)
			for i, port := range []uint16{80, 443, 9000} {
				wantRefused(t, far(7, port))
				eventually(t, "all have ended", func() bool {
					return rigs[0].Stats().Active+rigs[1].Stats().Active+rigs[2].Stats().Active == 0
				})
				found := uint64(0)
				for _, r := range rigs {
					found += r.Stats().Flags[FlagNR]
				}
				if found == 0 {
					t.Errorf("no circle was found from %d", port)
				}
				if s := rigs[i].Stats(); s.AcceptErrors > 0 || s.Flags[FlagNone] > 0 {
					t.Errorf("%+v", s)
				}
			}
			for _, ends := range []*sync.Map{&circles.accepted, &circles.dialled} {
				ends.Range(func(h, _ any) bool { t.Errorf("%v is left", h); return true })
			}
		})
	}
	if !strings.Contains(log.String(), "comes back to it") {
		t.Errorf("log: %s", log.String())
	}
}
