package forwarder

import (
	"crypto/tls"
	"io"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pires/go-proxyproto"

	"gatehouse.internal/internal/tlsconf"
	"gatehouse.internal/lbcore"
)

// wantKey says what the last selection has hashed; "" is no key.
func (c *cluster) wantKey(t *testing.T, text string) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	var want lbcore.Key
	if text != "" {
		want = lbcore.StringKey(text)
	}
	if len(c.keys) == 0 || c.keys[len(c.keys)-1] != want {
		t.Errorf("the keys are %v, want that of %q last", c.keys, text)
	}
}

// What is hashed of what a PROXY header says.
func TestHashOnProxied(t *testing.T) { onEach(t, testHashOnProxied) }

func testHashOnProxied(t *testing.T) {
	six := netip.MustParseAddrPort("[2001:db8::9]:4711")
	named := header(2, abroad, wanted, proxyproto.TLV{Type: proxyproto.PP2_TYPE_AUTHORITY, Value: []byte("web.internal")},
		proxyproto.TLV{Type: 0xea, Value: []byte("vpce-1")}, proxyproto.TLV{Type: 0xea, Value: []byte("vpce-2")})
	for name, tt := range map[string]struct {
		on     HashOn
		tlv    byte
		header string
		want   string // "" is no key
	}{
		"source_ip":         {HashSourceIP, 0, header(2, abroad, wanted), "198.51.100.9"},
		"source_ip_port":    {HashSourceIPPort, 0, header(2, abroad, wanted), "198.51.100.9:4711"},
		"source_ip_port v6": {HashSourceIPPort, 0, header(2, six, six), "[2001:db8::9]:4711"},
		"destination":       {HashDestination, 0, header(1, abroad, wanted), "203.0.113.1:443"},
		"destination v6":    {HashDestination, 0, header(1, six, six), "[2001:db8::9]:4711"},
		"TLV":               {HashProxyTLV, 0xea, named, "vpce-1"},
		"another TLV":       {HashProxyTLV, 0x02, named, "web.internal"},
		"no such TLV":       {HashProxyTLV, 0xeb, named, ""},
		"no TLVs":           {HashProxyTLV, 0xea, header(1, abroad, wanted), ""},
		"no header":         {HashProxyTLV, 0xea, "", ""},
		"none":              {HashNone, 0, named, ""},
	} {
		t.Run(name, func(t *testing.T) {
			up := newCluster(t, backend(t, anyPort, echo))
			r := start(t, Config{Upstream: up, Settings: Settings{HashOn: tt.on, HashTLV: tt.tlv, Proxy: &ProxyIn{From: loopback, Optional: true}}})
			c := client(t, r.Addr())
			write(t, c, tt.header)
			exchange(t, c, "hello")
			up.wantKey(t, tt.want)
			_ = c.Close()
			if rec := r.record(t); strings.HasPrefix(tt.want, "203") && rec.Destination != wanted {
				t.Errorf("record %+v", rec)
			}
		})
	}
}

// Without a header it is the connection itself that says where it comes from and
// where it goes.
func TestHashOnOwn(t *testing.T) { onEach(t, testHashOnOwn) }

func testHashOnOwn(t *testing.T) {
	up := newCluster(t, backend(t, anyPort, echo))
	for _, on := range []HashOn{HashSourceIPPort, HashDestination} {
		r := start(t, Config{Upstream: up, Settings: Settings{HashOn: on}, Addr: lbcore.IPAddr(netip.MustParseAddrPort("[::]:0"))})
		for _, at := range []string{"127.0.0.1", "127.0.0.7", "::1"} {
			to := netip.AddrPortFrom(netip.MustParseAddr(at), r.Addr().AddrPort().Port())
			c := client(t, lbcore.IPAddr(to))
			exchange(t, c, "hello")
			want := c.LocalAddr().String()
			if on == HashDestination {
				want = to.String()
			}
			up.wantKey(t, want)
			_ = c.Close()
			if rec := r.record(t); rec.Destination.IsValid() && rec.Destination != to || on == HashDestination && rec.Destination != to {
				t.Errorf("record %+v", rec)
			}
		}
	}
	for _, on := range []HashOn{HashSourceIPPort, HashDestination} { // a unix socket has neither
		r := start(t, Config{Upstream: up, Settings: Settings{HashOn: on}, Addr: lbcore.UnixAddr(filepath.Join(t.TempDir(), "l"))})
		c := client(t, r.Addr())
		exchange(t, c, "hello")
		up.wantKey(t, "")
	}
}

// TLS passes through whole, whatever segments and records its first message
// comes in, and is chosen for by its server name.
func TestHashSNI(t *testing.T) { onEach(t, testHashSNI) }

func testHashSNI(t *testing.T) {
	p := newPKI(t)
	at := backend(t, anyPort, secured(p.server(t).Config(), func(c *tls.Conn) { echo(c) }))
	sides(t, func(t *testing.T, listen, _ lbcore.Addr) {
		up := newCluster(t, refused(t), at) // what is read stays where a dial fails
		r := start(t, Config{Addr: listen, Upstream: up, Settings: Settings{HashOn: HashSNI, HelloTimeout: time.Hour}})
		for name, cut := range map[string]func(net.Conn) net.Conn{
			"as it is": func(c net.Conn) net.Conn { return c },
			"bytes":    func(c net.Conn) net.Conn { return &cutter{Conn: c, size: 1} },
			"records":  func(c net.Conn) net.Conn { return &cutter{Conn: c, size: 500, record: 100} },
		} {
			cfg := p.clientConfig()
			cfg.ServerName = "WEB.internal"
			c := tls.Client(cut(client(t, r.Addr())), cfg)
			if err := c.Handshake(); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			exchange(t, c, "hello")
			up.wantKey(t, "web.internal")
			_ = c.Close()
			if rec := r.record(t); rec.BytesIn == 0 || rec.Attempts != 2 || rec.ServerName != "web.internal" {
				t.Errorf("record %+v", rec)
			}
		}
		eventually(t, "all is counted", func() bool {
			s := r.Stats()
			return s.SNIFound == 3 && s.SNINotFound == 0 && s.TLSNotFound == 0 && s.HelloPending == 0
		})
	})
}

// cutter cuts what is written into segments, and the first message into records.
type cutter struct {
	net.Conn
	size, record int
}

func (c *cutter) Write(b []byte) (int, error) {
	n := len(b)
	if c.record > 0 {
		b = tlsRecords(message(b), c.record)
	}
	for len(b) > 0 {
		k := min(len(b), c.size)
		if _, err := c.Conn.Write(b[:k]); err != nil {
			return 0, err
		}
		b = b[k:]
	}
	c.size, c.record = 1<<20, 0
	return n, nil
}

// Every stream gets to the endpoint as it came, hello or not, and is answered.
func TestHashSNIBytes(t *testing.T) { onEach(t, testHashSNIBytes) }

func testHashSNIBytes(t *testing.T) {
	type sent struct {
		stream, want string
		counter      func(Stats) uint64
	}
	found := func(s Stats) uint64 { return s.SNIFound }
	nameless := func(s Stats) uint64 { return s.SNINotFound }
	none := func(s Stats) uint64 { return s.TLSNotFound }
	cases := map[string]sent{
		"HTTP":        {"GET / HTTP/1.1\r\n\r\n", "", none},
		"a zero":      {"\x00" + strings.Repeat("x", 100_000), "", none},
		"half":        {string(hello(t, &tls.Config{ServerName: "web.internal"})[:100]), "", none},
		"nothing":     {"", "", none},
		"large":       {string(tlsRecords(message(hello(t, &tls.Config{ServerName: "web.internal", NextProtos: protocols(61 << 10)})), 40)), "", none},
		"many, small": {string(tlsRecords(make([]byte, 1<<20), 1)), "", none},
		"silly":       {string(tlsRecords(append([]byte{1, 0, 0xff, 0xf0}, make([]byte, 0xfff0)...), 1)), "", none},
	}
	for name, h := range hellos(t) {
		counter := found
		if h.name == "" {
			counter = nameless
		}
		cases[name] = sent{string(h.b) + strings.Repeat("more", 1000), strings.ToLower(h.name), counter}
	}
	up := newCluster(t, backend(t, anyPort, halfEcho))
	for _, proxied := range []bool{false, true} {
		s := Settings{HashOn: HashSNI, HelloTimeout: time.Hour}
		if proxied {
			s.Proxy = &ProxyIn{From: loopback}
		}
		r := start(t, Config{Upstream: up, Settings: s})
		for name, tt := range cases {
			t.Run(name, func(t *testing.T) {
				before := r.Stats()
				c := client(t, r.Addr())
				stream := tt.stream
				if proxied {
					stream = header(2, abroad, wanted) + stream
				}
				go func() { _, _ = io.WriteString(c, stream); closeWrite(c) }()
				got, err := io.ReadAll(c)
				if err != nil || string(got) != tt.stream {
					t.Fatalf("%d bytes of %d came back, %v", len(got), len(tt.stream), err)
				}
				up.wantKey(t, tt.want)
				if rec := r.record(t); rec.Flag != FlagNone || rec.BytesIn != uint64(len(tt.stream)) {
					t.Errorf("record %+v", rec)
				}
				if s := r.Stats(); tt.counter(s) != tt.counter(before)+1 || s.HelloPending != 0 {
					t.Errorf("%+v", s)
				}
			})
		}
	}
}

// The header for the endpoint comes before the hello that was read for its name,
// and is not counted; the same where goroutines go on because of TLS.
func TestHashSNIThrough(t *testing.T) { onEach(t, testHashSNIThrough) }

func testHashSNIThrough(t *testing.T) {
	at, heard := told(t, anyPort)
	up := newCluster(t, at)
	up.dial.ProxyVersion = 2
	r := start(t, Config{Upstream: up, Settings: Settings{HashOn: HashSNI}})
	c := client(t, r.Addr())
	h := string(hello(t, &tls.Config{ServerName: "web.internal"}))
	exchange(t, c, h)
	if src, _, _ := hear(t, heard).TCPAddrs(); src.String() != c.LocalAddr().String() {
		t.Errorf("told %v", src)
	}
	closeWrite(c)
	if rest, err := io.ReadAll(c); len(rest) > 0 || err != nil {
		t.Errorf("%q, %v", rest, err)
	}
	if rec := r.record(t); rec.BytesIn != uint64(len(h)) || rec.BytesOut != uint64(len(h)) {
		t.Errorf("record %+v, %d bytes", rec, len(h))
	}

	p := newPKI(t)
	up = newCluster(t, backend(t, anyPort, secured(p.server(t).Config(), func(c *tls.Conn) { echo(c) })))
	up.dial.TLS = p.upstream(t, tlsconf.ClientConfig{ServerName: "web.internal"})
	r = start(t, Config{Upstream: up, Settings: Settings{HashOn: HashSNI}})
	c = client(t, r.Addr())
	exchange(t, c, h)
	up.wantKey(t, "web.internal")
	if s := r.Stats(); s.SNIFound != 1 || s.HelloPending != 0 {
		t.Errorf("%+v", s)
	}
}

// Where TLS ends at the listener the name is that of the handshake.
func TestHashSNIEnded(t *testing.T) { onEach(t, testHashSNIEnded) }

func testHashSNIEnded(t *testing.T) {
	p := newPKI(t)
	up := newCluster(t, backend(t, anyPort, echo))
	r := start(t, Config{Upstream: up, Settings: Settings{HashOn: HashSNI, TLS: p.server(t)}})
	for _, name := range []string{"Web.Internal", ""} {
		cfg := &tls.Config{ServerName: name, InsecureSkipVerify: true}
		exchange(t, p.dial(t, r.Addr(), cfg), "hello")
		up.wantKey(t, strings.ToLower(name))
	}
	if s := r.Stats(); s.HelloPending != 0 || s.TLSNotFound != 0 {
		t.Errorf("%+v", s)
	}
}

// Silent clients are bounded, and in nobody's way.
func TestHashSNISilent(t *testing.T) { onEach(t, testHashSNISilent) }

func testHashSNISilent(t *testing.T) {
	const most = 200
	r := start(t, Config{Upstream: newCluster(t, backend(t, anyPort, echo)), Settings: Settings{HashOn: HashSNI, HelloTimeout: time.Hour, MaxHellos: most}})
	h := string(hello(t, &tls.Config{ServerName: "web.internal"}))
	old := client(t, r.Addr())
	exchange(t, old, h)
	silent := make([]net.Conn, most)
	for i := range silent {
		silent[i] = client(t, r.Addr())
		if i%2 == 0 {
			write(t, silent[i], h[:10])
		}
	}
	eventually(t, "all are pending", func() bool { return r.Stats().HelloPending == most })
	wantRefused(t, r.Addr())
	if rec := r.record(t); rec.Flag != FlagOM || rec.Err != errHellos {
		t.Errorf("record %+v", rec)
	}
	exchange(t, old, "still here")
	for i := range 10 {
		reset(silent[i])
		if rec := r.record(t); rec.Flag != FlagDC {
			t.Errorf("record %+v", rec)
		}
	}
	exchange(t, client(t, r.Addr()), h)
	r.cancel()
	wantReset(t, silent[100])
	eventually(t, "all have ended", func() bool { s := r.Stats(); return s.Active == 0 && s.HelloPending == 0 })
}

// A hello has its own time, which bytes do not lengthen; then the client is
// served without it, and what it has sent gets through.
func TestHashSNIDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newMemWorld(t, Config{Settings: Settings{HashOn: HashSNI, IdleTimeout: time.Hour, MaxDuration: time.Minute}})
		c := w.ln.connect()
		begin := time.Now()
		for _, b := range "\x16\x03\x01\x01" { // one a second
			write(t, c, string(b))
			after(time.Second)
		}
		b := <-w.backends
		if d := time.Since(begin); d != DefaultHelloTimeout {
			t.Errorf("dialled after %v", d)
		}
		read(t, b, 4)
		write(t, b, "220 hello") // an endpoint that speaks first
		read(t, c, 9)
		wantReset(t, c)
		if rec := w.record(t); rec.Flag != FlagDT || rec.Duration != time.Minute { // the deadline was the hello's
			t.Errorf("record %+v", rec)
		}
		if s := w.Stats(); s.TLSNotFound != 1 || s.HelloPending != 0 {
			t.Errorf("%+v", s)
		}

		if err := w.Set(Settings{HashOn: HashSNI, HelloTimeout: time.Hour, MaxDuration: time.Minute}); err != nil {
			t.Fatal(err)
		}
		wantReset(t, w.ln.connect())
		if rec := w.record(t); rec.Flag != FlagDT || rec.Duration != time.Minute || w.Stats().HelloPending != 0 {
			t.Errorf("record %+v", rec)
		}
	})
}

// Bad settings change nothing.
func TestHashSettings(t *testing.T) {
	l, err := New(Config{Name: "l", Addr: anyPort, Upstream: newCluster(t), Gate: lbcore.NewGate(lbcore.GateConfig{})})
	if err != nil {
		t.Fatal(err)
	}
	in := &ProxyIn{From: loopback}
	for _, bad := range []Settings{
		{HashOn: HashProxyTLV + 1}, {HashOn: HashProxyTLV, HashTLV: 0xea}, {HashOn: HashProxyTLV, HashTLV: 3, Proxy: in},
		{HashOn: HashProxyTLV, HashTLV: 4, Proxy: in}, {HelloTimeout: -1}, {MaxHellos: -1},
	} {
		if err := l.Set(bad); err == nil || l.settings.Load().HashOn != HashNone {
			t.Errorf("%+v: %v", bad, err)
		}
	}
	if err := l.Set(Settings{HashOn: HashProxyTLV, HashTLV: 0xea, Proxy: in}); err != nil {
		t.Error(err)
	}
}
