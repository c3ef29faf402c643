package forwarder

import (
	"bufio"
	"crypto/tls"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/pires/go-proxyproto"

	"gatehouse.internal/internal/tlsconf"
)

// A PROXY header comes before the handshake on both sides, and nothing of the
// ClientHello that comes with it is lost.
func TestTLSAndProxyHeader(t *testing.T) { onEach(t, testTLSAndProxyHeader) }

func testTLSAndProxyHeader(t *testing.T) {
	p := newPKI(t)
	conf := p.server(t).Config()
	heard := make(chan *proxyproto.Header, 1)
	up := newCluster(t, refused(t), backend(t, anyPort, func(c net.Conn) {
		r := bufio.NewReader(c)
		h, err := proxyproto.Read(r)
		if err != nil {
			t.Error(err)
			return
		}
		heard <- h
		secured(conf, func(c *tls.Conn) { halfEcho(c) })(buffered{c, r})
	}))
	up.dial.TLS = p.upstream(t, tlsconf.ClientConfig{ServerName: "web.internal"})
	up.dial.ProxyVersion, up.dial.ProxyUniqueID = 2, true
	for name, optional := range map[string]bool{"required": false, "optional": true} {
		r := start(t, Config{Upstream: up, Settings: Settings{
			HashOn: HashSourceIP, TLS: p.server(t), Proxy: &ProxyIn{From: loopback, Optional: optional},
		}})
		id := proxyproto.TLV{Type: proxyproto.PP2_TYPE_UNIQUE_ID, Value: []byte("who")}
		for piece, send := range map[string]func(net.Conn) net.Conn{
			"one segment": func(c net.Conn) net.Conn { return &tlsRaw{Conn: c, lead: []byte(header(2, abroad, wanted, id))} },
			"two":         func(c net.Conn) net.Conn { write(t, c, header(2, abroad, wanted, id)); return c },
			"bytes": func(c net.Conn) net.Conn {
				return &tlsRaw{Conn: trickle{c}, lead: []byte(header(2, abroad, wanted, id))}
			},
			"none": func(c net.Conn) net.Conn { return c },
		} {
			if piece == "none" && !optional {
				continue
			}
			raw := client(t, r.Addr())
			want, wantID := abroad, "who"
			if piece == "none" {
				want, wantID = raw.LocalAddr().(*net.TCPAddr).AddrPort(), ""
			}
			c := tls.Client(send(raw), p.clientConfig())
			_, _ = io.WriteString(c, "hello")
			_ = c.CloseWrite()
			if b, err := io.ReadAll(c); string(b) != "hello" || err != nil {
				t.Fatalf("%s, %s: %q, %v", name, piece, b, err)
			}
			h := <-heard
			src, _, _ := h.TCPAddrs()
			tlvs, err := h.TLVs()
			if err != nil || src == nil || src.AddrPort() != want || wantID != "" && (len(tlvs) != 1 || string(tlvs[0].Value) != wantID) {
				t.Errorf("%s, %s: the endpoint heard %v, %v, %v", name, piece, src, tlvs, err)
			}
			rec := r.record(t)
			if rec.Flag != FlagNone || rec.Client != want || rec.BytesIn != 5 || rec.BytesOut != 5 || rec.Attempts != 2 {
				t.Errorf("%s, %s: record %+v", name, piece, rec)
			}
		}
		if s := r.Stats(); s.ProxyPending != 0 || s.ProxyErrors != 0 || s.TLSErrors != 0 || s.Active != 0 {
			t.Errorf("%s: %+v", name, s)
		}
	}
}

// A client that is wrong about either is refused, and counted once; one that is
// silent after its header has the handshake's time.
func TestTLSAndProxyHeaderBad(t *testing.T) { onEach(t, testTLSAndProxyHeaderBad) }

func testTLSAndProxyHeaderBad(t *testing.T) {
	p := newPKI(t)
	up := newCluster(t, backend(t, anyPort, echo))
	settings := Settings{TLS: p.server(t), Proxy: &ProxyIn{From: loopback}}
	r := start(t, Config{Upstream: up, Settings: settings})
	// TLS at once.
	if err := p.dial(t, r.Addr(), p.clientConfig()).Handshake(); err == nil {
		t.Error("a handshake without a PROXY header")
	}
	if rec := r.record(t); rec.Flag != FlagDC || rec.Err == nil || !strings.HasPrefix(rec.Err.Error(), "PROXY header: ") {
		t.Errorf("record %+v", rec)
	}
	// Plain text behind the header.
	c := client(t, r.Addr())
	write(t, c, header(2, abroad, wanted)+"GET / HTTP/1.1\r\n\r\n")
	_, _ = io.Copy(io.Discard, c)
	if rec := r.record(t); rec.Flag != FlagDC || rec.Client != abroad || rec.Err == nil || !strings.Contains(rec.Err.Error(), "does not speak TLS") {
		t.Errorf("record %+v", rec)
	}
	// Nothing behind it.
	settings.HandshakeTimeout = 50 * time.Millisecond
	if err := r.Set(settings); err != nil {
		t.Fatal(err)
	}
	c = client(t, r.Addr())
	write(t, c, header(2, abroad, wanted))
	wantReset(t, c)
	if rec := r.record(t); rec.Flag != FlagDC || rec.Err != errHandshakeTimeout {
		t.Errorf("record %+v", rec)
	}
	if s := r.Stats(); s.ProxyErrors != 1 || s.TLSErrors != 2 || s.ProxyPending != 0 || s.Active != 0 || s.Dials != 0 {
		t.Errorf("%+v", s)
	}
}

// buffered is a connection of which something has been read.
type buffered struct {
	net.Conn
	r io.Reader
}

func (b buffered) Read(p []byte) (int, error) { return b.r.Read(p) }

// trickle writes byte by byte.
type trickle struct{ net.Conn }

func (c trickle) Write(b []byte) (int, error) {
	for i := range b {
		if _, err := c.Conn.Write(b[i : i+1]); err != nil {
			return i, err
		}
	}
	return len(b), nil
}
