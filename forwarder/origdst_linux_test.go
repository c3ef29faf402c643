package forwarder

import (
	"fmt"
	"io"
	"net/netip"
	"testing"

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
