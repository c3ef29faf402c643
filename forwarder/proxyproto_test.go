package forwarder

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/pires/go-proxyproto"
	"pgregory.net/rapid"
)

const (
	proxyFFFF = "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"
	// What HAProxy 2.6.12 sent: send-proxy-v2 with proxy-v2-options
	// crc32c,unique-id for a client on IPv4 and one on a unix socket, send-proxy
	// for an IPv4 client on a v4v6 bind.
	proxyByHAProxy       = "0d0a0d0a000d0a515549540a211100297f0000017f000001c9ce4971030004effebb6c05001367617465686f7573652d3132372e302e302e31"
	proxyByHAProxyUnix   = "0d0a0d0a000d0a515549540a20000014030004ec81da4a05000a67617465686f7573652d"
	proxyByHAProxyMapped = "PROXY TCP6 ::ffff:127.0.0.1 ::ffff:127.0.0.1 46096 18803\r\n"
)

func proxyUnhex(s string) string {
	b, err := hex.DecodeString(s)
	if err != nil {
		panic(err)
	}
	return string(b)
}

// proxyV2 is a header of version 2 with a right length.
func proxyV2(command, family byte, block string) string {
	n := len(block)
	return proxySig2 + string([]byte{command, family, byte(n >> 8), byte(n)}) + block
}

func proxyTLV(t proxyproto.PP2Type, value string) proxyproto.TLV {
	return proxyproto.TLV{Type: t, Value: []byte(value)}
}

var proxyCmp = cmp.Options{
	cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b }),
}

// proxyCases are whole headers; TestParseProxy and TestProxySplit run each.
func proxyCases() map[string]struct {
	in   string
	want proxyHeader
} {
	ap := netip.MustParseAddrPort
	v4 := "\xc0\x00\x02\x01\xc0\x00\x02\x02\x00\x50\x01\xbb"
	from, to := ap("192.0.2.1:80"), ap("192.0.2.2:443")
	mapped := "\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\xff\xff\xc0\x00\x02\x01"
	v6 := "\x20\x01\x0d\xb8\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01"
	return map[string]struct {
		in   string
		want proxyHeader
	}{
		"v1 TCP4": {"PROXY TCP4 192.168.0.1 192.168.0.11 56324 443\r\n",
			proxyHeader{Version: 1, Source: ap("192.168.0.1:56324"), Dest: ap("192.168.0.11:443")}},
		"v1 TCP4 longest": {"PROXY TCP4 255.255.255.255 255.255.255.255 65535 65535\r\n",
			proxyHeader{Version: 1, Source: ap("255.255.255.255:65535"), Dest: ap("255.255.255.255:65535")}},
		"v1 TCP6 longest": {"PROXY TCP6 " + proxyFFFF + " " + proxyFFFF + " 65535 65535\r\n",
			proxyHeader{Version: 1, Source: ap("[" + proxyFFFF + "]:65535"), Dest: ap("[" + proxyFFFF + "]:65535")}},
		"v1 TCP6 port 0": {"PROXY TCP6 ::1 ::2 0 0\r\n",
			proxyHeader{Version: 1, Source: ap("[::1]:0"), Dest: ap("[::2]:0")}},
		"v1 HAProxy, mapped": {proxyByHAProxyMapped,
			proxyHeader{Version: 1, Source: ap("127.0.0.1:46096"), Dest: ap("127.0.0.1:18803")}},
		"v1 one mapped": {"PROXY TCP6 2001:DB8::1 ::ffff:192.0.2.2 80 443\r\n",
			proxyHeader{Version: 1, Source: ap("[2001:db8::1]:80"), Dest: to}},
		"v1 one plain IPv4": {"PROXY TCP6 192.0.2.1 2001:db8::1 80 443\r\n",
			proxyHeader{Version: 1, Source: from, Dest: ap("[2001:db8::1]:443")}},
		"v1 both plain IPv4 in TCP6": {"PROXY TCP6 192.0.2.1 192.0.2.2 80 443\r\n",
			proxyHeader{Version: 1, Source: from, Dest: to}},
		"v1 UNKNOWN":         {"PROXY UNKNOWN\r\n", proxyHeader{Version: 1}},
		"v1 UNKNOWN, spaces": {"PROXY UNKNOWN  \x00 any\xff\r\n", proxyHeader{Version: 1}},
		"v1 UNKNOWN longest": {"PROXY UNKNOWN " + proxyFFFF + " " + proxyFFFF + " 65535 65535\r\n",
			proxyHeader{Version: 1}},

		"v2 TCP4": {proxyV2(0x21, 0x11, v4), proxyHeader{Version: 2, Source: from, Dest: to}},
		"v2 TCP6": {proxyV2(0x21, 0x21, v6+v6+"\x00\x50\x01\xbb"),
			proxyHeader{Version: 2, Source: ap("[2001:db8::1]:80"), Dest: ap("[2001:db8::1]:443")}},
		"v2 TCP6, one mapped": {proxyV2(0x21, 0x21, mapped+v6+"\x00\x50\x01\xbb"),
			proxyHeader{Version: 2, Source: from, Dest: ap("[2001:db8::1]:443")}},
		"v2 unix":             {proxyV2(0x21, 0x31, strings.Repeat("a", 216)), proxyHeader{Version: 2}},
		"v2 PROXY AF_UNSPEC":  {proxyV2(0x21, 0, ""), proxyHeader{Version: 2}},
		"v2 UNSPEC with TLVs": {proxyV2(0x21, 0, "\xe0\x00\x01x"), proxyHeader{Version: 2, TLVs: []proxyproto.TLV{proxyTLV(0xe0, "x")}}},
		"v2 TLVs": {proxyV2(0x21, 0x11, v4+"\x01\x00\x02h2\x04\x00\x03\x00\x00\x00\xea\x00\x00\x05\x00\x01i"), proxyHeader{Version: 2, Source: from, Dest: to,
			TLVs: []proxyproto.TLV{proxyTLV(proxyproto.PP2_TYPE_ALPN, "h2"), proxyTLV(0xea, ""), proxyTLV(proxyproto.PP2_TYPE_UNIQUE_ID, "i")}}},
		"v2 largest": {proxyV2(0x21, 0x11, v4+"\xe0"+string([]byte{(maxProxyHeader - 31) >> 8, (maxProxyHeader - 31) & 255})+strings.Repeat("z", maxProxyHeader-31)),
			proxyHeader{Version: 2, Source: from, Dest: to, TLVs: []proxyproto.TLV{proxyTLV(0xe0, strings.Repeat("z", maxProxyHeader-31))}}},
		"v2 HAProxy, IPv4": {proxyUnhex(proxyByHAProxy), proxyHeader{Version: 2, Source: ap("127.0.0.1:51662"), Dest: ap("127.0.0.1:18801"),
			TLVs: []proxyproto.TLV{proxyTLV(proxyproto.PP2_TYPE_UNIQUE_ID, "gatehouse-127.0.0.1")}}},
		"v2 HAProxy, unix client": {proxyUnhex(proxyByHAProxyUnix), proxyHeader{Version: 2, Local: true,
			TLVs: []proxyproto.TLV{proxyTLV(proxyproto.PP2_TYPE_UNIQUE_ID, "gatehouse-")}}},

		"v2 LOCAL":                  {proxyV2(0x20, 0, ""), proxyHeader{Version: 2, Local: true}},
		"v2 LOCAL, addresses":       {proxyV2(0x20, 0x11, v4), proxyHeader{Version: 2, Local: true}},
		"v2 LOCAL, short addresses": {proxyV2(0x20, 0x21, v4), proxyHeader{Version: 2, Local: true}},
		"v2 LOCAL, datagrams":       {proxyV2(0x20, 0x12, ""), proxyHeader{Version: 2, Local: true}},
		"v2 LOCAL, no TLV list":     {proxyV2(0x20, 0, "\xe0\xff\xff"), proxyHeader{Version: 2, Local: true}},
		"v2 LOCAL, unknown family":  {proxyV2(0x20, 0x41, ""), proxyHeader{Version: 2, Local: true}},
		"v2 LOCAL, and its block":   {proxyV2(0x20, 0x13, v4+"\x03\x00\x04\x00\x00\x00\x00"), proxyHeader{Version: 2, Local: true}},
	}
}

func TestParseProxy(t *testing.T) {
	for name, c := range proxyCases() {
		for _, rest := range []string{"", "GET / HTTP/1.1\r\n", c.in, "\r\n"} {
			got, n, err := parseProxy([]byte(c.in + rest))
			if err != nil || n != len(c.in) {
				t.Errorf("%s, then %q: length %d, %v; want %d", name, rest, n, err, len(c.in))
			}
			if d := cmp.Diff(c.want, got, proxyCmp); d != "" {
				t.Errorf("%s: %s", name, d)
			}
		}
	}
}

// A header that comes in pieces is short until it is there, never wants more
// than there will be, and is found by a reader that does as it is told.
func TestProxySplit(t *testing.T) {
	for name, c := range proxyCases() {
		in := []byte(c.in)
		for i := range in {
			h, n, err := parseProxy(in[:i])
			if err != errProxyShort || n <= i || n > len(in) {
				t.Fatalf("%s: the first %d of %d bytes: length %d, %v", name, i, len(in), n, err)
			}
			if d := cmp.Diff(proxyHeader{}, h, proxyCmp); d != "" {
				t.Fatalf("%s: the first %d bytes: %s", name, i, d)
			}
		}
		for n, err := 0, errProxyShort; err != nil; {
			var h proxyHeader
			if h, n, err = parseProxy(in[:n]); err == nil {
				if d := cmp.Diff(c.want, h, proxyCmp); d != "" || n != len(in) {
					t.Errorf("%s: length %d, %s", name, n, d)
				}
			} else if err != errProxyShort {
				t.Fatalf("%s: %v", name, err)
			}
		}
	}
}

// Every wrong header is refused at the byte that makes it wrong, whatever else
// has come, and one byte earlier it was still waited for.
func TestParseProxyRefuses(t *testing.T) {
	v4 := "\xc0\x00\x02\x01\xc0\x00\x02\x02\x00\x50\x01\xbb"
	corrupt := []byte(proxyUnhex(proxyByHAProxy))
	corrupt[20]++
	for name, c := range map[string]struct{ in, want string }{
		"other protocol":         {"G", "does not begin"},
		"TLS":                    {"\x16", "does not begin"},
		"case":                   {"p", "does not begin"},
		"v1 signature":           {"PROXI", "does not begin"},
		"v1 signature's space":   {"PROXYx", "does not begin"},
		"v2 signature":           {"\r\n\r\n\x01", "does not begin"},
		"v1 protocol":            {"PROXY U" + "D", "none of TCP4"},
		"v1 protocol TCP5":       {"PROXY TCP5", "none of TCP4"},
		"v1 no space":            {"PROXY TCP41", "none of TCP4"},
		"v1 UNKNOWNX":            {"PROXY UNKNOWNX", "unexpected 'X' at byte 13"},
		"v1 letters":             {"PROXY TCP4 1.2.3.a", "unexpected 'a' at byte 17"},
		"v1 sign":                {"PROXY TCP4 1.2.3.4 1.2.3.4 +", "unexpected '+'"},
		"v1 zone":                {"PROXY TCP6 fe80::1%", "unexpected '%'"},
		"v1 LF":                  {"PROXY TCP4 1.2.3.4 1.2.3.4 1 1\n", "CR or LF alone"},
		"v1 CR":                  {"PROXY TCP4 1.2.3.4\r ", "CR or LF alone"},
		"v1 UNKNOWN, LF":         {"PROXY UNKNOWN\n", "CR or LF alone"},
		"v1 UNKNOWN, CR inside":  {"PROXY UNKNOWN a\rb", "CR or LF alone"},
		"v1 endless":             {"PROXY UNKNOWN " + strings.Repeat("x", 93), "no end of line in 107 bytes"},
		"v1 one too long":        {"PROXY UNKNOWN " + strings.Repeat("x", 92) + "\r", "no end of line in 107 bytes"},
		"v1 TCP4 is IPv6":        {"PROXY TCP4 1.2.3.4 1.2.3.4.5 1 1\r\n", "address"},
		"v1 few fields":          {"PROXY TCP4 1.2.3.4 1.2.3.4 1\r\n", "family"},
		"v1 many fields":         {"PROXY TCP4 1.2.3.4 1.2.3.4 1 1 1\r\n", "family"},
		"v1 empty":               {"PROXY TCP4 \r\n", "family"},
		"v1 two spaces":          {"PROXY TCP4  1.2.3.4 1.2.3.4 1 1\r\n", "family"},
		"v1 port":                {"PROXY TCP4 1.2.3.4 1.2.3.4 1 65536\r\n", "port"},
		"v1 port's zero":         {"PROXY TCP4 1.2.3.4 1.2.3.4 01 1\r\n", "port"},
		"v1 TCP6, not an IP":     {"PROXY TCP6 1 ::1 1 1\r\n", "address"},
		"v2 version":             {proxySig2 + "\x11", "version and command 0x11"},
		"v2 command":             {proxySig2 + "\x22", "version and command 0x22"},
		"v2 family":              {proxySig2 + "\x21\x41", "family and protocol 0x41"},
		"v2 protocol":            {proxySig2 + "\x21\x13", "family and protocol 0x13"},
		"v2 UDP4":                {proxySig2 + "\x21\x12", "datagrams"},
		"v2 UDP6":                {proxySig2 + "\x21\x22", "datagrams"},
		"v2 unix datagrams":      {proxySig2 + "\x21\x32", "datagrams"},
		"v2 short":               {proxySig2 + "\x21\x11\x00\x0b", "11 bytes after the length, the addresses alone need 12"},
		"v2 64 KiB":              {proxySig2 + "\x21\x11\xff\xff", "PROXY v2 header of 65551 bytes, at most 4096"},
		"v2 LOCAL, 64 KiB":       {proxySig2 + "\x20\x00\xff\xff", "PROXY v2 header of 65551 bytes, at most 4096"},
		"v2 one too long":        {proxySig2 + "\x21\x11\x0f\xf1", "PROXY v2 header of 4097 bytes, at most 4096"},
		"v2 TLV cut in type":     {proxyV2(0x21, 0x11, v4+"\x05"), "truncated TLV"},
		"v2 TLV cut in length":   {proxyV2(0x21, 0x11, v4+"\x05\x00"), "truncated TLV"},
		"v2 TLV cut in value":    {proxyV2(0x21, 0x11, v4+"\x05\x00\x02a"), "truncated TLV"},
		"v2 UNSPEC, TLV cut":     {proxyV2(0x21, 0, "\x05\x00\x02a"), "truncated TLV"},
		"v2 CRC32C":              {string(corrupt), "the header says effebb6c"},
		"v2 CRC32C of 3 bytes":   {proxyV2(0x21, 0x11, v4+"\x03\x00\x03abc"), "not 4 bytes"},
		"v2 CRC32C twice":        {proxyV2(0x20, 0, "\x03\x00\x04\x00\x00\x00\x00\x03\x00\x04\x00\x00\x00\x00"), "CRC32C"},
		"v2 CRC32C, LOCAL":       {proxyV2(0x20, 0, "\x03\x00\x04\x00\x00\x00\x00"), "the header says 00000000"},
		"v2 TLV longer than all": {proxyV2(0x21, 0x11, v4+"\x20\x01\x00"), "truncated TLV"},
	} {
		for _, rest := range []string{"", strings.Repeat("\r\n", maxProxyHeader)} {
			h, n, err := parseProxy([]byte(c.in + rest))
			if err == nil || err == errProxyShort || !strings.Contains(err.Error(), c.want) || n != 0 {
				t.Errorf("%s, then %d bytes: length %d, %v; want an error with %q", name, len(rest), n, err, c.want)
			}
			if strings.HasPrefix(c.want, "does not") != errors.Is(err, errNoProxy) {
				t.Errorf("%s: %v", name, err)
			}
			if d := cmp.Diff(proxyHeader{}, h, proxyCmp); d != "" {
				t.Errorf("%s: a header beside the error: %s", name, d)
			}
		}
		before := c.in[:len(c.in)-1]
		if _, n, err := parseProxy([]byte(before)); err != errProxyShort || n <= len(before) {
			t.Errorf("%s: one byte earlier: length %d, %v; want to be waited for", name, n, err)
		}
	}
}

func TestLooksProxy(t *testing.T) {
	for _, sig := range []string{proxySig1, proxySig2} {
		for i := range len(sig) {
			if yes, maybe := looksProxy([]byte(sig[:i])); yes || !maybe {
				t.Errorf("%q: %v, %v", sig[:i], yes, maybe)
			}
			wrong := []byte(sig[:i+1])
			wrong[i] ^= 0x20
			if yes, maybe := looksProxy(wrong); yes || maybe {
				t.Errorf("%q: %v, %v", wrong, yes, maybe)
			}
		}
		for _, rest := range []string{"", "x"} {
			if yes, maybe := looksProxy([]byte(sig + rest)); !yes || maybe {
				t.Errorf("%q: %v, %v", sig+rest, yes, maybe)
			}
		}
	}
	if proxySig1 != string(proxyproto.SIGV1)+" " || proxySig2 != string(proxyproto.SIGV2) {
		t.Error("the signatures are not the library's")
	}
}

func TestAppendProxy(t *testing.T) {
	id := []proxyproto.TLV{proxyTLV(proxyproto.PP2_TYPE_UNIQUE_ID, "id")}
	const sig = "0d0a0d0a000d0a515549540a"
	for _, c := range []struct {
		src, dest string // "" is the zero AddrPort
		v1        string
		v2        string // in hexadecimal
	}{
		{"192.168.0.1:56324", "192.168.0.11:443", "PROXY TCP4 192.168.0.1 192.168.0.11 56324 443\r\n",
			sig + "21110011c0a80001c0a8000bdc0401bb0500026964"},
		{"[::ffff:192.168.0.1]:56324", "[::ffff:192.168.0.11]:443", "PROXY TCP4 192.168.0.1 192.168.0.11 56324 443\r\n",
			sig + "21110011c0a80001c0a8000bdc0401bb0500026964"},
		{"[2001:db8::1]:1", "[2001:db8::2]:65535", "PROXY TCP6 2001:db8::1 2001:db8::2 1 65535\r\n",
			sig + "2121002920010db800000000000000000000000120010db80000000000000000000000020001ffff0500026964"},
		{"192.0.2.1:1", "[2001:db8::2]:2", "PROXY TCP6 ::ffff:192.0.2.1 2001:db8::2 1 2\r\n",
			sig + "2121002900000000000000000000ffffc000020120010db8000000000000000000000002000100020500026964"},
		{"[2001:db8::2]:2", "192.0.2.1:1", "PROXY TCP6 2001:db8::2 ::ffff:192.0.2.1 2 1\r\n",
			sig + "2121002920010db800000000000000000000000200000000000000000000ffffc0000201000200010500026964"},
		{"[fe80::1%eth0]:1", "[fe80::2%eth0]:2", "PROXY TCP6 fe80::1 fe80::2 1 2\r\n",
			sig + "21210029fe800000000000000000000000000001fe800000000000000000000000000002000100020500026964"},
		{"", "", "PROXY UNKNOWN\r\n", sig + "200000050500026964"},
		{"", "192.0.2.1:1", "PROXY UNKNOWN\r\n", sig + "200000050500026964"},
		{"192.0.2.1:1", "", "PROXY UNKNOWN\r\n", sig + "200000050500026964"},
	} {
		var src, dest netip.AddrPort
		if c.src != "" {
			src = netip.MustParseAddrPort(c.src)
		}
		if c.dest != "" {
			dest = netip.MustParseAddrPort(c.dest)
		}
		got, err := appendProxy([]byte("before"), 1, src, dest, id)
		if err != nil || string(got) != "before"+c.v1 {
			t.Errorf("%q to %q: %q, %v", c.src, c.dest, got, err)
		}
		got, err = appendProxy(nil, 2, src, dest, id)
		if err != nil || hex.EncodeToString(got) != c.v2 {
			t.Errorf("%q to %q: %x, %v; want %s", c.src, c.dest, got, err, c.v2)
		}
	}
}

// Of HAProxy's headers, all but the checksum is written as HAProxy writes it.
func TestAppendProxyAsHAProxy(t *testing.T) {
	crc := "\x03\x00\x04"
	for _, in := range []string{proxyUnhex(proxyByHAProxy), proxyUnhex(proxyByHAProxyUnix)} {
		h, n, err := parseProxy([]byte(in))
		if err != nil {
			t.Fatal(err)
		}
		at := strings.Index(in, crc)
		want := in[:14] + string([]byte{0, byte(n - 16 - 7)}) + in[16:at] + in[at+7:]
		if got, err := appendProxy(nil, 2, h.Source, h.Dest, h.TLVs); err != nil || string(got) != want {
			t.Errorf("%x, %v; want %x", got, err, want)
		}
	}
}

func TestAppendProxyRefuses(t *testing.T) {
	a := netip.MustParseAddrPort("192.0.2.1:1")
	for _, c := range []struct {
		version byte
		tlv     proxyproto.TLV
		want    string // "" is none
	}{
		{0, proxyproto.TLV{}, "PROXY protocol version 0, want 1 or 2"},
		{3, proxyproto.TLV{}, "PROXY protocol version 3, want 1 or 2"},
		{2, proxyTLV(proxyproto.PP2_TYPE_UNIQUE_ID, strings.Repeat("x", 128)), ""},
		{2, proxyTLV(proxyproto.PP2_TYPE_UNIQUE_ID, strings.Repeat("x", 129)), "PROXY v2 header: a unique id of 129 bytes, at most 128"},
		{2, proxyTLV(0xe0, strings.Repeat("x", maxProxyHeader-28-3)), ""},
		{2, proxyTLV(0xe0, strings.Repeat("x", maxProxyHeader-28-2)), "PROXY v2 header of 4097 bytes, at most 4096"},
		{2, proxyTLV(0xe0, strings.Repeat("x", 1<<17)), "PROXY v2 header of 131103 bytes, at most 4096"},
	} {
		got, err := appendProxy([]byte("dst"), c.version, a, a, []proxyproto.TLV{c.tlv})
		switch {
		case c.want == "" && err != nil, c.want != "" && (err == nil || err.Error() != c.want || string(got) != "dst"):
			t.Errorf("version %d: %q, %v; want %q", c.version, got, err, c.want)
		}
	}
}

func TestAppendProxyAllocatesNothing(t *testing.T) {
	buf := make([]byte, 0, maxProxyHeader)
	src, dest := netip.MustParseAddrPort("[::ffff:192.0.2.1]:1"), netip.MustParseAddrPort("[2001:db8::1]:2")
	tlvs := []proxyproto.TLV{proxyTLV(proxyproto.PP2_TYPE_UNIQUE_ID, "0123456789")}
	for version := byte(1); version <= 2; version++ {
		if n := testing.AllocsPerRun(100, func() { _, _ = appendProxy(buf, version, src, dest, tlvs) }); n != 0 {
			t.Errorf("version %d: %v allocations", version, n)
		}
	}
}

func drawProxyAddr(t *rapid.T, name string) netip.AddrPort {
	b := rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, name)
	port := rapid.Uint16().Draw(t, name+" port")
	switch rapid.IntRange(0, 3).Draw(t, name+" kind") {
	case 0:
		return netip.AddrPort{}
	case 1:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(b)), port)
	case 2:
		return netip.AddrPortFrom(netip.AddrFrom16(netip.AddrFrom4([4]byte(b)).As16()), port)
	}
	return netip.AddrPortFrom(netip.AddrFrom16([16]byte(b)), port)
}

// What is appended is read back as it was, by this package in whatever pieces
// it comes, and by the library.
func TestProxyRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		version := rapid.ByteRange(1, 2).Draw(t, "version")
		src, dest := drawProxyAddr(t, "src"), drawProxyAddr(t, "dest")
		tlvs := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) proxyproto.TLV {
			typ := rapid.SampledFrom([]proxyproto.PP2Type{0, 1, 2, 5, 0x20, 0x30, 0xe0, 0xff}).Draw(t, "type")
			return proxyproto.TLV{Type: typ, Value: rapid.SliceOfN(rapid.Byte(), 0, 128).Draw(t, "value")}
		}), 0, 8).Draw(t, "tlvs")
		after := rapid.SliceOf(rapid.Byte()).Draw(t, "after")

		want := proxyHeader{Version: version}
		if src.IsValid() && dest.IsValid() {
			want.Source, want.Dest = proxyUnmap(src), proxyUnmap(dest)
		} else {
			want.Local = version == 2
		}
		if version == 2 && len(tlvs) > 0 {
			want.TLVs = tlvs
		}
		header, err := appendProxy(nil, version, src, dest, tlvs)
		if err != nil {
			t.Fatal(err)
		}
		for i := range header {
			if _, n, err := parseProxy(header[:i]); err != errProxyShort || n <= i || n > len(header) {
				t.Fatalf("the first %d of %q: length %d, %v", i, header, n, err)
			}
		}
		got, n, err := parseProxy(append(slices.Clone(header), after...))
		if err != nil || n != len(header) {
			t.Fatalf("%q: length %d of %d, %v", header, n, len(header), err)
		}
		if d := cmp.Diff(want, got, proxyCmp); d != "" {
			t.Fatal(d)
		}
		lib, rest, err := proxyLibrary(append(slices.Clone(header), after...))
		if err != nil || rest != len(after) {
			t.Fatalf("library, %q: %d of %d bytes left, %v", header, rest, len(after), err)
		}
		proxyAgree(t, got, lib)
	})
}

func TestProxyTLV(t *testing.T) {
	h := proxyHeader{TLVs: []proxyproto.TLV{proxyTLV(0xe0, "a"), proxyTLV(0xe1, ""), proxyTLV(0xe0, "b")}}
	for typ, want := range map[proxyproto.PP2Type]string{0xe0: "a", 0xe1: "", 0xe2: "none"} {
		v, ok := findTLV(h.TLVs, typ)
		if ok == (want == "none") || ok && string(v) != want {
			t.Errorf("%#x: %q, %v", typ, v, ok)
		}
	}
}

// proxyLibrary has the library read a stream that comes at once, and returns how
// many bytes it left.
func proxyLibrary(b []byte) (h *proxyproto.Header, rest int, err error) {
	stream := bytes.NewReader(b)
	r := bufio.NewReaderSize(stream, max(len(b), 16))
	h, err = proxyproto.Read(r)
	return h, r.Buffered() + stream.Len(), err
}

// proxyAgree compares a header with the library's reading of the same bytes.
func proxyAgree(t interface{ Fatalf(string, ...any) }, h proxyHeader, lib *proxyproto.Header) {
	var src, dest netip.AddrPort
	if s, d, ok := lib.TCPAddrs(); ok && !lib.Command.IsLocal() {
		src, dest = proxyUnmap(s.AddrPort()), proxyUnmap(d.AddrPort())
	}
	if h.Version != lib.Version || h.Source != src || h.Dest != dest || h.Local != (lib.Version == 2 && lib.Command.IsLocal()) {
		t.Fatalf("%+v, the library reads %+v", h, lib)
	}
}

// The parser never panics and never claims a byte that it was not given; it
// says the same of every longer stream; and with the library it agrees but for
// what parseProxy's comment says.
func FuzzParseProxy(f *testing.F) {
	for _, c := range proxyCases() {
		f.Add([]byte(c.in))
		f.Add([]byte(c.in + "GET"))
		f.Add([]byte(c.in[:len(c.in)-1]))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		h, n, err := parseProxy(b)
		yes, maybe := looksProxy(b)
		if maybe && err != errProxyShort || (!yes && !maybe) != (err == errNoProxy) {
			t.Fatalf("looks %v, maybe %v, %v", yes, maybe, err)
		}
		lib, rest, libErr := proxyLibrary(b)
		switch err {
		case nil:
			if n < 15 || n > len(b) || n > maxProxyHeader {
				t.Fatalf("length %d of %d", n, len(b))
			}
			longer := append(slices.Clone(b[:n]), "\xff\r\n"...)
			if h2, n2, err := parseProxy(longer); err != nil || n2 != n || !cmp.Equal(h, h2, proxyCmp) {
				t.Fatalf("with other bytes after it: %+v, length %d, %v", h2, n2, err)
			}
			if _, n1, err := parseProxy(b[:n-1]); err != errProxyShort || n1 < n {
				t.Fatalf("without its last byte: length %d, %v", n1, err)
			}
			plain4in6 := h.Version == 1 && errors.Is(libErr, proxyproto.ErrInvalidAddress) && (h.Source.Addr().Is4() || h.Dest.Addr().Is4())
			unspec := h.Version == 2 && b[12] == 0x21 && b[13] == 0
			anyFamily := h.Local && proxyAddrLen(proxyproto.AddressFamilyAndProtocol(b[13])) < 0
			if libErr != nil {
				if !plain4in6 && !unspec && !anyFamily {
					t.Fatalf("%+v, the library says %v", h, libErr)
				}
				return
			}
			if len(b)-rest != n {
				t.Fatalf("length %d, the library's is %d", n, len(b)-rest)
			}
			proxyAgree(t, h, lib)
		case errProxyShort:
			if n <= len(b) || n > maxProxyHeader {
				t.Fatalf("wants %d bytes of %d", n, len(b))
			}
			if libErr == nil {
				t.Fatalf("short, the library reads %+v", lib)
			}
		default:
			if n != 0 {
				t.Fatalf("length %d beside %v", n, err)
			}
			if _, _, again := parseProxy(append(slices.Clone(b), "\r\n"...)); again == nil || again == errProxyShort {
				t.Fatalf("%v, and with more bytes %v", err, again)
			}
			if libErr != nil {
				return
			}
			size := len(b) - rest
			tlvs, tlvErr := lib.TLVs()
			checksum := slices.ContainsFunc(tlvs, func(v proxyproto.TLV) bool { return v.Type == proxyproto.PP2_TYPE_CRC32C })
			switch {
			case lib.Version == 1 && lib.TransportProtocol == proxyproto.UNSPEC && bytes.Count(b[:size], []byte("\r")) > 1:
			case lib.Version == 2 && (size > maxProxyHeader || lib.TransportProtocol.IsDatagram() || tlvErr != nil || checksum):
			default:
				t.Fatalf("%v, the library reads %+v", err, lib)
			}
		}
	})
}
