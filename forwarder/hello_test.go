package forwarder

import (
	"bytes"
	"crypto/ecdh"
	"crypto/rand"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// hello returns the ClientHello that package tls sends, in its records.
func hello(t interface{ Fatal(...any) }, cfg *tls.Config) []byte {
	c := &wire{in: bytes.NewReader(nil)}
	if err := tls.Client(c, cfg).Handshake(); !errors.Is(err, io.EOF) || c.out.Len() == 0 {
		t.Fatal("no ClientHello: ", err)
	}
	return c.out.Bytes()
}

// wire is a connection the bytes of which are there already.
type wire struct {
	net.Conn
	in  *bytes.Reader
	out bytes.Buffer
}

func (w *wire) Read(b []byte) (int, error)       { return w.in.Read(b) }
func (w *wire) Write(b []byte) (int, error)      { return w.out.Write(b) }
func (w *wire) SetWriteDeadline(time.Time) error { return nil }

// judge returns what package tls reads in the hello at the start of b; ok says
// that it takes it for one.
func judge(b []byte) (name string, ok bool) {
	stop := errors.New("stop")
	_ = tls.Server(&wire{in: bytes.NewReader(b)}, &tls.Config{GetConfigForClient: func(h *tls.ClientHelloInfo) (*tls.Config, error) {
		name, ok = h.ServerName, true
		return nil, stop
	}}).Handshake()
	return name, ok
}

// message joins the records of b, as far as they have come.
func message(b []byte) (all []byte) {
	for len(b) > 5 {
		n := min(int(binary.BigEndian.Uint16(b[3:])), len(b)-5)
		all = append(all, b[5:5+n]...)
		b = b[5+n:]
	}
	return all
}

// inRecords puts a message into records of the given sizes, the last again and
// again.
func tlsRecords(msg []byte, sizes ...int) (b []byte) {
	for i := 0; len(msg) > 0; i++ {
		n := min(sizes[min(i, len(sizes)-1)], len(msg))
		b = append(b, 22, 3, 1, byte(n>>8), byte(n))
		b = append(b, msg[:n]...)
		msg = msg[n:]
	}
	return b
}

// with adds extensions and a length's worth of cipher suites to a message.
func with(msg []byte, more ...[]byte) []byte {
	b := slices.Clone(msg)
	at := 4 + 2 + 32
	at += 1 + int(b[at])
	at += 2 + int(binary.BigEndian.Uint16(b[at:]))
	at += 1 + int(b[at])
	extra := bytes.Join(more, nil)
	size := int(binary.BigEndian.Uint16(b[at:])) + len(extra)
	binary.BigEndian.PutUint16(b[at:], uint16(size))
	b = slices.Insert(b, at+2, extra...)
	b[1], b[2], b[3] = byte((len(b)-4)>>16), byte((len(b)-4)>>8), byte(len(b)-4)
	return b
}

func extension(kind uint16, data string) []byte {
	b := binary.BigEndian.AppendUint16(nil, kind)
	b = binary.BigEndian.AppendUint16(b, uint16(len(data)))
	return append(b, data...)
}

// protocols makes a hello about n bytes longer.
func protocols(n int) (all []string) {
	for ; n > 0; n -= 250 {
		all = append(all, strings.Repeat("p", 249))
	}
	return all
}

// encrypted is a list of one configuration of an encrypted ClientHello.
func encrypted(t interface{ Fatal(...any) }, public string) []byte {
	key, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	u16 := binary.BigEndian.AppendUint16
	c := u16([]byte{7}, 0x20) // number, DHKEM(X25519, HKDF-SHA256)
	c = append(u16(c, 32), key.PublicKey().Bytes()...)
	c = u16(u16(u16(c, 4), 1), 1) // HKDF-SHA256, AES-128-GCM
	c = append(c, 32, byte(len(public)))
	c = u16(append(c, public...), 0)
	c = append(u16(u16(nil, 0xfe0d), uint16(len(c))), c...)
	return append(u16(nil, uint16(len(c))), c...)
}

// hellos are what clients send, and the name in it.
func hellos(t interface{ Fatal(...any) }) map[string]struct {
	b    []byte
	name string
} {
	type h = struct {
		b    []byte
		name string
	}
	plain := hello(t, &tls.Config{ServerName: "web.internal"})
	return map[string]h{
		"post-quantum":     {plain, "web.internal"},
		"1.2":              {hello(t, &tls.Config{ServerName: "web.internal", MaxVersion: tls.VersionTLS12}), "web.internal"},
		"small":            {hello(t, &tls.Config{ServerName: "a", CurvePreferences: []tls.CurveID{tls.X25519}}), "a"},
		"upper case":       {hello(t, &tls.Config{ServerName: "Web.Internal"}), "Web.Internal"},
		"longest":          {hello(t, &tls.Config{ServerName: strings.Repeat("a.", 127) + "b"}), strings.Repeat("a.", 127) + "b"},
		"no name":          {hello(t, &tls.Config{InsecureSkipVerify: true}), ""},
		"an address":       {hello(t, &tls.Config{ServerName: "192.0.2.1"}), ""},
		"40 KiB":           {hello(t, &tls.Config{ServerName: "web.internal", NextProtos: protocols(40 << 10)}), "web.internal"},
		"63 KiB":           {hello(t, &tls.Config{ServerName: "web.internal", NextProtos: protocols(61 << 10)}), "web.internal"},
		"ECH":              {hello(t, &tls.Config{ServerName: "secret.internal", MinVersion: tls.VersionTLS13, EncryptedClientHelloConfigList: encrypted(t, "public.internal")}), "public.internal"},
		"GREASE":           {tlsRecords(with(message(plain), extension(0x0a0a, ""), extension(0xfe0d, "\x00\x00\x01\x00\x01\x07\x00\x20"+strings.Repeat("e", 32)+"\x00\x90"+strings.Repeat("p", 144)), extension(0x5a5a, "\x00")), 16<<10), "web.internal"},
		"bytes in records": {tlsRecords(message(plain), 1), "web.internal"},
		"odd records":      {tlsRecords(message(plain), 3, 1, 700), "web.internal"},
		"no extensions":    {tlsRecords([]byte("\x01\x00\x00\x29\x03\x01"+strings.Repeat("r", 32)+"\x00\x00\x02\x00\x2f\x01\x00"), 16<<10), ""},
	}
}

// scanAll has b come in pieces, and returns after how many bytes it was decided.
func scanAll(b []byte, cuts ...int) (name string, at int, err error) {
	var s helloScan
	for _, at := range append(slices.Clone(cuts), len(b)) {
		whole, err := s.scan(b[:at])
		if err != nil {
			return "", at, err
		}
		if whole {
			name, ok := serverName(s.message(b[:at]))
			if !ok {
				err = io.ErrUnexpectedEOF
			}
			return string(name), at, err
		}
	}
	return "", -1, nil
}

func upTo(n int) (all []int) {
	for i := range n {
		all = append(all, i)
	}
	return all
}

// Every hello that package tls makes is read as package tls reads it, whole and
// byte by byte, and is decided with its last byte.
func TestServerName(t *testing.T) {
	for what, h := range hellos(t) {
		if name, ok := judge(h.b); name != h.name || !ok {
			t.Fatalf("%s: package tls reads %q, %v", what, name, ok)
		}
		for _, cuts := range [][]int{nil, upTo(len(h.b)), {len(h.b) / 2}} {
			name, at, err := scanAll(append(slices.Clone(h.b), "\x14\x03\x03more"...), append(cuts, len(h.b))...)
			if name != h.name || at != len(h.b) || err != nil {
				t.Errorf("%s in %d pieces: %q after %d of %d bytes, %v", what, len(cuts)+1, name, at, len(h.b), err)
			}
		}
	}
}

// What is no hello is known as such by the first byte that can't be in one.
func TestNoHello(t *testing.T) {
	msg := message(hello(t, &tls.Config{ServerName: "web.internal"}))
	name := func(list string) []byte {
		return with(message(hello(t, &tls.Config{InsecureSkipVerify: true})), extension(0, list))
	}
	for what, tt := range map[string]struct {
		sent string
		at   int
	}{
		"HTTP":            {"GET / HTTP/1.1\r\n", 1},
		"SSH":             {"SSH-2.0-OpenSSH\r\n", 1},
		"SSL 2":           {"\x80\x2e\x01\x00\x02", 1},
		"version":         {"\x16\x02\x01\x00\x05", 2},
		"an alert":        {"\x15\x03\x01\x00\x02\x02\x28", 1},
		"an empty record": {"\x16\x03\x01\x00\x00", 5},
		"a large record":  {"\x16\x03\x01\x40\x01", 5},
		"a ServerHello":   {"\x16\x03\x01\x00\x05\x02\x00\x00\x01", 6},
		"a large message": {"\x16\x03\x01\x00\x05\x01\x00\xff\xfd", 9},
		"another record":  {string(tlsRecords(msg, 100)[:105]) + "\x17", 106},
	} {
		if _, at, err := scanAll([]byte(tt.sent), upTo(len(tt.sent))...); at != tt.at || err != errNoHello {
			t.Errorf("%s: after %d bytes %v, want %d", what, at, err, tt.at)
		}
	}
	for what, msg := range map[string][]byte{
		"two names":           name("\x00\x0c\x00\x00\x03a.b\x00\x00\x03c.d"),
		"a list too short":    name("\x00\x05\x00\x00\x03a.b"),
		"a name too long":     name("\x00\x06\x00\x00\x04a.b"),
		"bytes after it":      name("\x00\x06\x00\x00\x03a.bx"),
		"twice":               with(msg, extension(0, "\x00\x06\x00\x00\x03a.b")),
		"an extension's head": {1, 0, 0, 45, 3, 3, 44: 0, 46: 1, 47: 0, 48: 0},
		"only a head":         {1, 0, 0, 0},
	} {
		if name, _, err := scanAll(tlsRecords(msg, 16<<10)); name != "" || err != io.ErrUnexpectedEOF {
			t.Errorf("%s: %q, %v", what, name, err)
		}
	}
	for what, list := range map[string]string{
		"another kind": "\x00\x06\x01\x00\x03a.b",
		"a zero":       "\x00\x06\x00\x00\x03a\x00b",
		"no host":      "\x01\x03\x00\x01\x00" + strings.Repeat("a", 256),
	} {
		if name, at, err := scanAll(tlsRecords(name(list), 16<<10)); name != "" || at < 0 || err != nil {
			t.Errorf("%s: %q, %v", what, name, err)
		}
	}
}

// However a hello is cut into records and segments, its name is found, with its
// last byte.
func TestServerNameAnyCut(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.StringMatching(`[a-zA-Z0-9-]{1,20}(\.[a-z0-9]{1,20}){0,5}\.[a-z]{1,9}`).Draw(t, "name")
		h := hello(t, &tls.Config{ServerName: name, NextProtos: protocols(rapid.IntRange(0, 50_000).Draw(t, "more"))})
		b := tlsRecords(message(h), rapid.SliceOfN(rapid.IntRange(1, maxRecord), 1, 5).Draw(t, "records")...)
		if len(b) > maxHello {
			t.Skip()
		}
		cuts := rapid.SliceOfN(rapid.IntRange(0, len(b)), 0, 20).Draw(t, "segments")
		slices.Sort(cuts)
		if got, at, err := scanAll(b, cuts...); got != name || at != len(b) || err != nil {
			t.Fatalf("%q after %d of %d bytes, %v; want %q", got, at, len(b), err, name)
		}
	})
}

// The decoder does not panic; what it says does not depend on how the bytes
// come, nor on what follows; and whatever package tls takes for a hello has the
// same name here.
func FuzzServerName(f *testing.F) {
	for _, h := range hellos(f) {
		if len(h.b) < 4096 {
			f.Add(h.b, uint16(len(h.b)/2))
		}
	}
	f.Add([]byte("GET / HTTP/1.1\r\n"), uint16(3))
	// A message that ends inside of a record that has not come whole.
	longer := tlsRecords(append(message(hello(f, &tls.Config{ServerName: "web.internal"})), "more"...), maxRecord)
	f.Add(longer[:len(longer)-2], uint16(100))
	f.Fuzz(func(t *testing.T, b []byte, cut uint16) {
		name, at, err := scanAll(b)
		cuts := []int{int(cut) % (len(b) + 1)}
		if name2, at2, err2 := scanAll(b, cuts...); name2 != name || err2 != err || at2 > at {
			t.Fatalf("in two pieces %q, %d, %v; in one %q, %d, %v", name2, at2, err2, name, at, err)
		}
		if at >= 0 && err == nil && len(name) > 0 && !bytes.Contains(message(b), []byte(name)) {
			t.Fatalf("the name %q is not in it", name)
		}
		if at >= 0 && err == nil {
			for _, p := range offered(message(b)) {
				if p == "" || !bytes.Contains(message(b), []byte(p)) {
					t.Fatalf("the protocol %q is not in it", p)
				}
			}
		}
		// Package tls is not so strict on the versions of records.
		if want, ok := judge(b); ok && !strings.ContainsRune(want, 0) && len(want) <= maxServerName && platlsRecords(b) && (err != nil || name != want || at < 0) {
			t.Fatalf("%q, %v; package tls reads %q", name, err, want)
		}
	})
}

// whole returns the records at the start of b that are whole.
func whole(b []byte) []byte {
	at := 0
	for at+5 <= len(b) {
		n := at + 5 + int(binary.BigEndian.Uint16(b[at+3:]))
		if n > len(b) {
			break
		}
		at = n
	}
	return b[:at]
}

// plainRecords reports whether the versions of all records are those of TLS.
func platlsRecords(b []byte) bool {
	for b = whole(b); len(b) > 0; b = b[5+int(binary.BigEndian.Uint16(b[3:])):] {
		if b[0] != 22 || b[1] != 3 {
			return false
		}
	}
	return true
}

// A hello in one record is read without an allocation.
func TestServerNameAllocatesNothing(t *testing.T) {
	b := hello(t, &tls.Config{ServerName: "web.internal"})
	if n := testing.AllocsPerRun(100, func() {
		var s helloScan
		if whole, err := s.scan(b); !whole || err != nil {
			panic(fmt.Sprint(whole, err))
		}
		if name, _ := serverName(s.message(b)); string(name) != "web.internal" {
			panic(name)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
