package forwarder

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pires/go-proxyproto"

	"gatehouse.internal/lbcore"
)

var (
	loopback = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
	abroad   = netip.MustParseAddrPort("198.51.100.9:4711")
	wanted   = netip.MustParseAddrPort("203.0.113.1:443")
)

// header returns a PROXY header.
func header(version byte, src, dest netip.AddrPort, tlvs ...proxyproto.TLV) string {
	b, err := appendProxy(nil, version, src, dest, tlvs)
	if err != nil {
		panic(err)
	}
	return string(b)
}

// long is a valid header of a little over 3 KiB.
func long() string {
	return header(2, abroad, wanted, proxyproto.TLV{Type: proxyproto.PP2_TYPE_MIN_CUSTOM, Value: bytes.Repeat([]byte("t"), 3000)})
}

// What a header says is who the client is, and nothing that follows it is lost,
// in whatever pieces it comes.
func TestProxyIn(t *testing.T) { onEach(t, testProxyIn) }

func testProxyIn(t *testing.T) {
	six := netip.MustParseAddrPort("[2001:db8::7]:99")
	for name, tt := range map[string]struct {
		header string
		want   netip.AddrPort // zero: the peer
	}{
		"v1":           {header(1, abroad, wanted), abroad},
		"v2":           {header(2, abroad, wanted), abroad},
		"v1 IPv6":      {header(1, six, six), six},
		"v2 IPv6":      {header(2, six, six), six},
		"v1 mapped":    {"PROXY TCP6 ::ffff:198.51.100.9 ::ffff:203.0.113.1 4711 443\r\n", abroad},
		"v2 mapped":    {strings.Replace(header(2, six, six), string(six.Addr().AsSlice())+string(six.Addr().AsSlice()), mapped(abroad)+mapped(wanted), 1), netip.AddrPortFrom(abroad.Addr(), 99)},
		"v1 UNKNOWN":   {"PROXY UNKNOWN\r\n", netip.AddrPort{}},
		"v2 LOCAL":     {header(2, netip.AddrPort{}, netip.AddrPort{}), netip.AddrPort{}},
		"v2 with TLVs": {long(), abroad},
	} {
		t.Run(name, func(t *testing.T) {
			up := newCluster(t, backend(t, anyPort, echo))
			r := start(t, Config{Upstream: up, Settings: Settings{HashOn: HashSourceIP, Proxy: &ProxyIn{From: loopback}}})
			pieces := map[string]func(net.Conn, string){
				"one segment": func(c net.Conn, s string) { write(t, c, s+"hello") },
				"two":         func(c net.Conn, s string) { write(t, c, s); write(t, c, "hello") },
				"bytes": func(c net.Conn, s string) {
					for i := range len(s) {
						write(t, c, s[i:i+1])
					}
					write(t, c, "hello")
				},
			}
			for piece, send := range pieces {
				c := client(t, r.Addr())
				send(c, tt.header)
				got := make([]byte, 5)
				if _, err := io.ReadFull(c, got); err != nil || string(got) != "hello" {
					t.Fatalf("%s: %q, %v", piece, got, err)
				}
				want := tt.want
				if !want.IsValid() {
					want = c.LocalAddr().(*net.TCPAddr).AddrPort()
				}
				closeWrite(c)
				if rest, err := io.ReadAll(c); len(rest) > 0 || err != nil {
					t.Fatalf("%s: %q, %v", piece, rest, err)
				}
				if rec := r.record(t); rec.Client != want || rec.Flag != FlagNone || rec.BytesIn != 5 || rec.BytesOut != 5 {
					t.Errorf("%s: record %+v, want client %s", piece, rec, want)
				}
				up.mu.Lock()
				if k := lbcore.StringKey(want.Addr().String()); up.keys[len(up.keys)-1] != k {
					t.Errorf("%s: hashed by something else than %s", piece, want.Addr())
				}
				up.mu.Unlock()
			}
			if s := r.Stats(); s.ProxyPending != 0 || s.ProxyErrors != 0 {
				t.Errorf("%+v", s)
			}
		})
	}
}

func mapped(a netip.AddrPort) string {
	b := a.Addr().As16()
	return string(b[:])
}

// A request that ends right behind the header is answered all the same.
func TestProxyInHalfClosed(t *testing.T) { onEach(t, testProxyInHalfClosed) }

func testProxyInHalfClosed(t *testing.T) {
	r := start(t, Config{Upstream: newCluster(t, backend(t, anyPort, echo)), Settings: Settings{Proxy: &ProxyIn{From: loopback}}})
	request := strings.Repeat("x", 100_000)
	c := client(t, r.Addr())
	write(t, c, header(2, abroad, wanted)+request)
	closeWrite(c)
	if got, err := io.ReadAll(c); string(got) != request || err != nil {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	if rec := r.record(t); rec.Flag != FlagNone || rec.BytesIn != 100_000 {
		t.Errorf("record %+v", rec)
	}
}

// What is no header is reset, counted, and leads to no endpoint.
func TestProxyInBad(t *testing.T) { onEach(t, testProxyInBad) }

func testProxyInBad(t *testing.T) {
	up := newCluster(t, backend(t, anyPort, echo))
	r := start(t, Config{Upstream: up, Settings: Settings{Proxy: &ProxyIn{From: loopback}}})
	big := "\r\n\r\n\x00\r\nQUIT\n\x21\x11\xff\xff" + strings.Repeat("x", 65535)
	crc := header(2, abroad, wanted, proxyproto.TLV{Type: proxyproto.PP2_TYPE_CRC32C, Value: []byte("wrng")})
	var n uint64
	for name, tt := range map[string]struct{ sent, err string }{
		"garbage":             {"GET / HTTP/1.1\r\n\r\n", "PROXY header: the stream does not begin with"},
		"64 KiB":              {big, "PROXY v2 header of 65551 bytes, at most 4096"},
		"bad address":         {"PROXY TCP4 1.2.3.400 1.2.3.4 1 2\r\n", "PROXY v1 header"},
		"line without an end": {"PROXY UNKNOWN " + strings.Repeat("x", 4000), "no end of line"},
		"bad checksum":        {crc, "CRC32C"},
		"datagrams":           {"\r\n\r\n\x00\r\nQUIT\n\x21\x12\x00\x0c", "datagrams"},
	} {
		c := client(t, r.Addr())
		_, _ = io.WriteString(c, tt.sent) // it may be reset before all is written
		wantReset(t, c)
		rec := r.record(t)
		if rec.Flag != FlagDC || rec.Err == nil || !strings.HasPrefix(rec.Err.Error(), "PROXY header: ") || !strings.Contains(rec.Err.Error(), tt.err) || rec.Attempts != 0 {
			t.Errorf("%s: record %+v", name, rec)
		}
		n++
	}
	for _, part := range []string{"", "P", "PROXY TCP4 1.2.3.4", long()[:2000]} { // and then the end
		c := client(t, r.Addr())
		write(t, c, part)
		closeWrite(c)
		wantReset(t, c)
		if rec := r.record(t); rec.Flag != FlagDC || rec.Err != errProxyEnded {
			t.Errorf("%d bytes: record %+v", len(part), rec)
		}
		n++
	}
	if s := r.Stats(); s.ProxyErrors != n || s.Flags[FlagDC] != n || s.Active != 0 || s.ProxyPending != 0 || len(up.keys) != 0 || s.BytesIn != 0 {
		t.Errorf("%d clients, %+v, %d selections", n, s, len(up.keys))
	}
}

// Where it is optional, whoever sends none is served under its own address, and
// nothing of what it sent is lost; a header that is wrong stays wrong.
func TestProxyInOptional(t *testing.T) { onEach(t, testProxyInOptional) }

func testProxyInOptional(t *testing.T) {
	r := start(t, Config{Upstream: newCluster(t, backend(t, anyPort, echo)), Settings: Settings{Proxy: &ProxyIn{From: loopback, Optional: true}}})
	for _, sent := range []string{"x", "PROXX", "\r\n\r\nhello", strings.Repeat("bulk", 50_000), "", "PRO", "\r\n\r\n"} {
		c := client(t, r.Addr())
		local := c.LocalAddr().(*net.TCPAddr).AddrPort()
		write(t, c, sent)
		closeWrite(c)
		if got, err := io.ReadAll(c); string(got) != sent || err != nil {
			t.Errorf("%d bytes came back for %.20q, %v", len(got), sent, err)
		}
		if rec := r.record(t); rec.Client != local || rec.Flag != FlagNone || rec.BytesIn != uint64(len(sent)) {
			t.Errorf("%.20q: record %+v", sent, rec)
		}
	}
	c := client(t, r.Addr())
	write(t, c, header(1, abroad, wanted)+"hello")
	read(t, c, 5)
	closeWrite(c)
	if rec := r.record(t); rec.Client != abroad {
		t.Errorf("record %+v", rec)
	}
	c = client(t, r.Addr())
	write(t, c, "PROXY TCP5 ")
	wantReset(t, c)
	if rec := r.record(t); rec.Flag != FlagDC {
		t.Errorf("record %+v", rec)
	}
}

// Who may not send a header is not served at all.
func TestProxyInUntrusted(t *testing.T) { onEach(t, testProxyInUntrusted) }

func testProxyInUntrusted(t *testing.T) {
	var log logBuffer
	up := newCluster(t, backend(t, anyPort, echo))
	r := start(t, Config{Upstream: up, Logger: log.logger(), Settings: Settings{Proxy: &ProxyIn{From: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, Optional: true}}})
	wantRefused(t, r.Addr())
	if rec := r.record(t); rec.Flag != FlagDC || rec.Err != errProxyUntrusted || !rec.Client.Addr().IsLoopback() {
		t.Errorf("record %+v", rec)
	}
	if s := r.Stats(); s.ProxyUntrusted != 1 || s.ProxyErrors != 0 || s.ProxyPending != 0 || len(up.keys) != 0 {
		t.Errorf("%+v", s)
	}
	if !strings.Contains(log.String(), "none of those that may send one") {
		t.Errorf("log: %s", log.String())
	}
	if err := r.Set(Settings{Proxy: &ProxyIn{From: []netip.Prefix{netip.MustParsePrefix("::ffff:127.0.0.0/104")}}}); err != nil {
		t.Fatal(err)
	}
	c := client(t, r.Addr())
	write(t, c, header(1, abroad, wanted))
	exchange(t, c, "now it may")
}

// The peer of a unix socket is trusted.
func TestProxyInUnix(t *testing.T) { onEach(t, testProxyInUnix) }

func testProxyInUnix(t *testing.T) {
	log := new(logBuffer)
	r := start(t, Config{
		Addr:     lbcore.UnixAddr(filepath.Join(t.TempDir(), "l.sock")),
		Upstream: newCluster(t, backend(t, anyPort, echo)), Settings: Settings{Proxy: &ProxyIn{From: loopback}},
		Logger: log.logger(),
	})
	c := client(t, r.Addr())
	write(t, c, "GET / HTTP/1.1\r\n")
	if got, err := io.ReadAll(c); len(got) > 0 || err != nil && !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("read %q, %v", got, err)
	}
	r.record(t)
	if s := log.String(); !strings.Contains(s, `client="a unix socket's"`) {
		t.Errorf("log %q", s)
	}

	c = client(t, r.Addr())
	s := header(2, abroad, wanted)
	write(t, c, s[:5])
	write(t, c, s[5:20])
	write(t, c, s[20:]+"hello")
	read(t, c, 5)
	_ = c.Close()
	if rec := r.record(t); rec.Client != abroad || rec.BytesIn != 5 {
		t.Errorf("record %+v", rec)
	}
}

// Silent clients are bounded, and in nobody's way.
func TestProxyInSilent(t *testing.T) { onEach(t, testProxyInSilent) }

func testProxyInSilent(t *testing.T) {
	const clients, most = 500, 400
	r := start(t, Config{
		Upstream: newCluster(t, backend(t, anyPort, echo)),
		Settings: Settings{Proxy: &ProxyIn{From: loopback, Timeout: time.Hour, MaxPending: most}},
	})
	old := client(t, r.Addr())
	write(t, old, header(1, abroad, wanted))
	exchange(t, old, "first")
	silent := make([]net.Conn, most)
	for i := range silent {
		silent[i] = client(t, r.Addr())
		if i == most-2 { // there is room for two more
			c := client(t, r.Addr())
			write(t, c, header(2, abroad, wanted))
			exchange(t, c, "served at once")
			_ = c.Close()
			r.record(t)
		}
	}
	eventually(t, "all are pending", func() bool { return r.Stats().ProxyPending == most })
	for range clients - most {
		wantRefused(t, r.Addr())
	}
	eventually(t, "the bound is kept", func() bool {
		s := r.Stats()
		return s.ProxyPending == most && s.Flags[FlagOM] == clients-most && s.Over[LimitPending] == clients-most
	})
	for range clients - most {
		if rec := r.record(t); rec.Flag != FlagOM || rec.Err != errProxyPending {
			t.Fatalf("record %+v", rec)
		}
	}
	exchange(t, old, "still here")
	for i := range 5 {
		_ = silent[i].Close()
		r.record(t)
	}
	c := client(t, r.Addr())
	write(t, c, header(1, abroad, wanted))
	exchange(t, c, "room again")
	r.cancel()
	wantReset(t, silent[100])
	eventually(t, "all have ended", func() bool { return r.Stats().Active == 0 })
	if s := r.Stats(); s.ProxyPending != 0 || s.ProxyErrors != 5 {
		t.Errorf("%+v", s)
	}
}

// A header has its own time, counted from accept, which bytes do not lengthen.
func TestProxyInDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		from := []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}
		w := newMemWorld(t, Config{Settings: Settings{IdleTimeout: time.Second, Proxy: &ProxyIn{From: from}}})
		for _, part := range []string{"", "PROXY TCP4 "} {
			c := w.ln.connect()
			write(t, c, part)
			wantReset(t, c)
			if rec := w.record(t); rec.Flag != FlagDC || rec.Err != errProxyLate || rec.Duration != DefaultProxyTimeout {
				t.Errorf("record %+v", rec)
			}
		}
		c := w.ln.connect()
		for i := range 9 {
			after(time.Second)
			write(t, c, "PROXY UNK"[i:i+1])
		}
		wantReset(t, c)
		if rec := w.record(t); rec.Err != errProxyLate || rec.Duration != DefaultProxyTimeout {
			t.Errorf("record %+v", rec)
		}
		if s := w.Stats(); s.ProxyErrors != 3 || s.ProxyPending != 0 {
			t.Errorf("%+v", s)
		}

		if err := w.Set(Settings{Proxy: &ProxyIn{From: from, Optional: true, Timeout: 3 * time.Second}}); err != nil {
			t.Fatal(err)
		}
		c = w.ln.connect()
		write(t, c, "\r\n\r\n")
		begin := time.Now()
		b := <-w.backends // it waits for the endpoint to speak
		if d := time.Since(begin); d != 3*time.Second {
			t.Errorf("dialled after %v", d)
		}
		read(t, b, 4)
		write(t, b, "220 hello")
		read(t, c, 9)
		after(time.Hour) // the deadline was the header's
		write(t, c, "x")
		read(t, b, 1)
	})
}

// said is what an endpoint was told.
type said struct {
	*proxyproto.Header
	err error
}

// told is a backend that reads a header by the library and then echoes.
func told(t *testing.T, a lbcore.Addr) (lbcore.Addr, chan said) {
	c := make(chan said, 10)
	return backend(t, a, func(conn net.Conn) {
		r := bufio.NewReader(conn)
		h, err := proxyproto.Read(r)
		c <- said{h, err}
		_, _ = io.Copy(struct{ io.Writer }{conn}, struct{ io.Reader }{r})
	}), c
}

// hear returns what an endpoint was told.
func hear(t *testing.T, c chan said) *proxyproto.Header {
	t.Helper()
	select {
	case s := <-c:
		if s.err != nil {
			t.Fatal(s.err)
		}
		return s.Header
	case <-time.After(20 * time.Second):
		t.Fatal("no endpoint was told anything")
	}
	panic("not reached")
}

// An endpoint learns the client's address before anything else, also if the
// client is silent. The header is not counted.
func TestProxyOut(t *testing.T) { onEach(t, testProxyOut) }

func testProxyOut(t *testing.T) {
	for _, version := range []byte{1, 2} {
		sides(t, func(t *testing.T, listen, endpoint lbcore.Addr) {
			at, heard := told(t, endpoint)
			up := newCluster(t, refused(t), at)
			up.dial.ProxyVersion = version
			r := start(t, Config{Addr: listen, Upstream: up})
			c := client(t, r.Addr())
			h := hear(t, heard)
			if src, dst, ok := h.TCPAddrs(); listen.Network() == "unix" {
				if ok {
					t.Errorf("%v for the client of a unix socket", h)
				}
			} else if !ok || h.Version != version || src.String() != c.LocalAddr().String() || dst.String() != c.RemoteAddr().String() {
				t.Errorf("told %+v, client %s to %s", h, c.LocalAddr(), c.RemoteAddr())
			}
			exchange(t, c, "hello")
			closeWrite(c)
			if rest, err := io.ReadAll(c); len(rest) > 0 || err != nil {
				t.Errorf("%q, %v", rest, err)
			}
			if rec := r.record(t); rec.BytesIn != 5 || rec.BytesOut != 5 || rec.Flag != FlagNone {
				t.Errorf("record %+v", rec)
			}
			if s := r.Stats(); s.BytesIn != 5 {
				t.Errorf("%+v", s)
			}
		})
	}
}

// The id of a client on a unix socket, which has no address, says so.
func TestProxyUniqueIDOfUnix(t *testing.T) { onEach(t, testProxyUniqueIDOfUnix) }

func testProxyUniqueIDOfUnix(t *testing.T) {
	at, heard := told(t, anyPort)
	up := newCluster(t, at)
	up.dial.ProxyVersion, up.dial.ProxyUniqueID = 2, true
	r := start(t, Config{Upstream: up, Addr: lbcore.UnixAddr(filepath.Join(t.TempDir(), "s"))})
	client(t, r.Addr())
	tlvs, err := hear(t, heard).TLVs()
	if id, _ := findTLV(tlvs, proxyproto.PP2_TYPE_UNIQUE_ID); err != nil || !strings.HasPrefix(string(id), "unix_") {
		t.Errorf("unique id %q, %v", id, err)
	}
}

// What came in by one header goes out by another.
func TestProxyThrough(t *testing.T) { onEach(t, testProxyThrough) }

func testProxyThrough(t *testing.T) {
	at, heard := told(t, anyPort)
	up := newCluster(t, at)
	up.dial.ProxyVersion, up.dial.ProxyUniqueID = 2, true
	r := start(t, Config{Upstream: up, Settings: Settings{Proxy: &ProxyIn{From: loopback}}})
	id := func(h *proxyproto.Header) string {
		tlvs, err := h.TLVs()
		if err != nil || len(tlvs) != 1 || tlvs[0].Type != proxyproto.PP2_TYPE_UNIQUE_ID {
			t.Fatalf("TLVs %v, %v", tlvs, err)
		}
		return string(tlvs[0].Value)
	}
	pass := func(header string) (*proxyproto.Header, Record, net.Conn) {
		c := client(t, r.Addr())
		write(t, c, header)
		exchange(t, c, "hello")
		_ = c.Close()
		return hear(t, heard), r.record(t), c
	}
	h, _, _ := pass(header(2, abroad, wanted, proxyproto.TLV{Type: proxyproto.PP2_TYPE_UNIQUE_ID, Value: []byte("theirs")}))
	if src, dst, _ := h.TCPAddrs(); src.AddrPort() != abroad || dst.AddrPort() != wanted || id(h) != "theirs" {
		t.Errorf("told %+v", h)
	}
	seen := map[string]bool{"theirs": true}
	for range 3 { // nothing of an earlier client stays
		h, rec, c := pass(header(2, netip.AddrPort{}, netip.AddrPort{}))
		src, dst, _ := h.TCPAddrs()
		if src.String() != c.LocalAddr().String() || dst.String() != c.RemoteAddr().String() {
			t.Errorf("told %+v", h)
		}
		if begins := fmt.Sprintf("%s_%x_", rec.Client, rec.Start.UnixNano()); seen[id(h)] || !strings.HasPrefix(id(h), begins) {
			t.Errorf("unique id %q, want %s…, seen %v", id(h), begins, seen)
		}
		seen[id(h)] = true
	}
}

// Bad settings change nothing.
func TestProxySettings(t *testing.T) {
	l, err := New(Config{Name: "l", Addr: anyPort, Upstream: newCluster(t), Gate: lbcore.NewGate(lbcore.GateConfig{})})
	if err != nil {
		t.Fatal(err)
	}
	for _, bad := range []ProxyIn{{}, {From: []netip.Prefix{{}}}, {From: loopback, Timeout: -1}, {From: loopback, MaxPending: -1}} {
		if err := l.Set(Settings{Proxy: &bad}); err == nil || l.settings.Load().Proxy != nil {
			t.Errorf("%+v: %v", bad, err)
		}
	}
	in := ProxyIn{From: loopback}
	if err := l.Set(Settings{Proxy: &in}); err != nil || l.settings.Load().Proxy.Timeout != DefaultProxyTimeout || in.Timeout != 0 {
		t.Errorf("%v, %+v", err, in)
	}
}

// TLVs of the client's header go on to the endpoint where its cluster wants them,
// as far as there is room.
func TestProxyPassThroughTLVs(t *testing.T) { onEach(t, testProxyPassThroughTLVs) }

func testProxyPassThroughTLVs(t *testing.T) {
	const id, authority = proxyproto.PP2_TYPE_UNIQUE_ID, proxyproto.PP2_TYPE_AUTHORITY
	value := func(t proxyproto.PP2Type, v string) proxyproto.TLV {
		return proxyproto.TLV{Type: t, Value: []byte(v)}
	}
	given := []proxyproto.TLV{value(proxyproto.PP2_TYPE_NOOP, "xx"), value(authority, "web"), value(0xea, "one"), value(id, "theirs"), value(0xea, "two")}
	six := netip.MustParseAddrPort("[2001:db8::9]:4711")
	for name, tt := range map[string]struct {
		dial Dial
		src  netip.AddrPort
		in   []proxyproto.TLV
		want []proxyproto.TLV
	}{
		"none":        {Dial{ProxyVersion: 2}, abroad, given, nil},
		"all":         {Dial{ProxyVersion: 2, ProxyAllTLVs: true}, abroad, given, given[1:]},
		"some":        {Dial{ProxyVersion: 2, ProxyTLVs: []byte{0xea, 0xeb}}, six, given, []proxyproto.TLV{given[2], given[4]}},
		"id once":     {Dial{ProxyVersion: 2, ProxyAllTLVs: true, ProxyUniqueID: true}, abroad, given, []proxyproto.TLV{given[3], given[1], given[2], given[4]}},
		"version 1":   {Dial{ProxyVersion: 1, ProxyAllTLVs: true}, abroad, given, nil},
		"id too long": {Dial{ProxyVersion: 2, ProxyAllTLVs: true}, abroad, []proxyproto.TLV{value(0xee, strings.Repeat("x", 129)), given[1]}, given[1:2]},
		"no room": {Dial{ProxyVersion: 2, ProxyAllTLVs: true, ProxyUniqueID: true}, abroad,
			[]proxyproto.TLV{given[1], value(0xe0, strings.Repeat("x", 4090-28-3-6-9-6)), value(id, "theirs"), value(0xe1, "x")},
			[]proxyproto.TLV{value(id, "theirs"), given[1], value(0xe1, "x")}},
	} {
		t.Run(name, func(t *testing.T) {
			at, heard := told(t, anyPort)
			up := newCluster(t, at)
			up.dial = tt.dial
			r := start(t, Config{Upstream: up, Settings: Settings{Proxy: &ProxyIn{From: loopback}}})
			c := client(t, r.Addr())
			write(t, c, strings.Replace(header(2, tt.src, tt.src, tt.in...), "\xee\x00\x81", "\x05\x00\x81", 1)) // an id that appendProxy would refuse
			exchange(t, c, "hello")
			h := hear(t, heard)
			got, err := h.TLVs()
			if src, _, _ := h.TCPAddrs(); err != nil || !slices.EqualFunc(got, tt.want, func(a, b proxyproto.TLV) bool { return a.Type == b.Type && string(a.Value) == string(b.Value) }) || src.AddrPort() != tt.src {
				t.Errorf("told %v of %v, %v; want %v", got, src, err, tt.want)
			}
		})
	}
	at, heard := told(t, anyPort)
	up := newCluster(t, at)
	up.dial = Dial{ProxyVersion: 2, ProxyAllTLVs: true}
	r := start(t, Config{Upstream: up, Settings: Settings{Proxy: &ProxyIn{From: loopback}}})
	for _, in := range [][]proxyproto.TLV{given, nil} { // nothing of an earlier client stays
		c := client(t, r.Addr())
		write(t, c, header(2, abroad, wanted, in...))
		exchange(t, c, "hello")
		if got, err := hear(t, heard).TLVs(); err != nil || len(got) != max(len(in)-1, 0) {
			t.Errorf("told %v, %v", got, err)
		}
	}
}
