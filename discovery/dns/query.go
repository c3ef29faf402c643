package dns

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"time"

	wire "github.com/miekg/dns"

	"gatehouse.internal/internal/contain"
)

// udpSize is what EDNS0 offers: what passes everywhere without fragments.
// Source: DNS Flag Day 2020.
const udpSize = 1232

// maxStrays is how many packets that are no answer to a query may come to its
// port before it is asked by TCP: somebody may be guessing.
const maxStrays = 32

// transport opens sockets. Tests put others in its place.
type transport struct {
	// packet opens a UDP socket on a random port; the network is udp4 or udp6.
	packet func(ctx context.Context, network string) (net.PacketConn, error)
	stream func(ctx context.Context, at netip.AddrPort) (net.Conn, error)
}

// sockets are real ones. The UDP sockets aren't connected, so that what comes from
// elsewhere can be counted.
var sockets = transport{
	packet: func(ctx context.Context, network string) (net.PacketConn, error) {
		return new(net.ListenConfig).ListenPacket(ctx, network, ":0")
	},
	stream: func(ctx context.Context, at netip.AddrPort) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", at.String())
	},
}

// udpBuffer is what a packet may have: more than udpSize, for nameservers that don't
// mind it. One that fills it is asked by TCP.
const udpBuffer = 4096

// buffers hold one message each, of any size: by TCP.
var buffers = sync.Pool{New: func() any { return new([wire.MaxMsgSize]byte) }}

// query asks one nameserver, whose answer must come before ctx ends.
func (c *Client) query(ctx context.Context, s *server, q question, tcp, plain bool) answer {
	plain = plain || s.plain.Load()
	a, again := c.attempt(ctx, s, q, tcp, plain)
	if again && !plain { // it may be EDNS0 that it does not know
		if a, again = c.attempt(ctx, s, q, tcp, true); !again && a.class != timeout {
			s.plain.Store(true)
		}
	}
	return a
}

// attempt asks by UDP and, where that isn't enough, by TCP. Again says that the
// nameserver did not understand.
func (c *Client) attempt(ctx context.Context, s *server, q question, tcp, plain bool) (a answer, again bool) {
	msg, err := newQuery(q, plain)
	if err != nil {
		return failure(refused, "%s can't be asked for: %w", q, err), false
	}
	packed, err := msg.Pack()
	if err != nil {
		return failure(refused, "%s can't be asked for: %w", q, err), false
	}
	if !tcp {
		reply, more, err := c.overUDP(ctx, s, q, packed)
		if err != nil {
			return failed(err), false
		}
		if !more {
			return c.judge(reply, q)
		}
	}
	s.tcp.Add(1)
	reply, err := c.overTCP(ctx, s, q, packed)
	if err != nil {
		return failed(err), false
	}
	return c.judge(reply, q)
}

// judge is the function of that name, whose panics are an answer of no use.
func (c *Client) judge(m *wire.Msg, q question) (a answer, again bool) {
	err := func() (err error) {
		defer c.bugs.Recover(contain.Decoder, &err)
		a, again = judge(m, q)
		return nil
	}()
	if err != nil {
		return failed(err), false
	}
	return a, again
}

// unpack is the function of that name, whose panics are errors.
func (c *Client) unpack(b []byte) (m *wire.Msg, err error) {
	defer c.bugs.Recover(contain.Decoder, &err)
	return unpack(b)
}

// newQuery returns the message that asks q, with an id that nobody can guess.
func newQuery(q question, plain bool) (*wire.Msg, error) {
	if _, ok := wire.IsDomainName(q.name); !ok {
		return nil, errors.New("no domain name")
	}
	m := new(wire.Msg)
	m.SetQuestion(q.name, q.typ)
	m.Id = uint16(rand.Uint32()) // ChaCha8, seeded by the system
	if !plain {
		m.SetEdns0(udpSize, false)
	}
	return m, nil
}

// errGarbage is why an answer can't be understood.
var errGarbage = errors.New("the answer can't be understood")

// failed returns what an error of a socket is.
func failed(err error) answer {
	if errors.Is(err, errGarbage) {
		return answer{class: refused, err: err}
	}
	return answer{class: timeout, err: err}
}

// overUDP sends the query and waits for its answer. More says that the answer is
// to be had by TCP.
func (c *Client) overUDP(ctx context.Context, s *server, q question, packed []byte) (reply *wire.Msg, more bool, err error) {
	network := "udp4"
	if s.addr.Addr().Is6() {
		network = "udp6"
	}
	conn, err := c.tr.packet(ctx, network)
	if err != nil {
		return nil, false, fmt.Errorf("udp socket: %w", err)
	}
	defer conn.Close()
	defer until(ctx, conn)()
	if _, err := conn.WriteTo(packed, net.UDPAddrFromAddrPort(s.addr)); err != nil {
		return nil, false, ended(ctx, err, 0)
	}
	buf := make([]byte, udpBuffer)
	for strays := 0; ; {
		n, from, err := conn.ReadFrom(buf)
		if err != nil {
			return nil, false, ended(ctx, err, strays)
		}
		if sender(from) == s.addr {
			verdict := matches(buf[:n], packed, q)
			if verdict == truncated || verdict == matching && n == len(buf) {
				return nil, true, nil
			} else if verdict == matching {
				reply, err := c.unpack(buf[:n])
				return reply, false, err
			}
		}
		s.strays.Add(1)
		if strays++; strays == maxStrays {
			return nil, true, nil
		}
	}
}

// overTCP is overUDP by TCP.
func (c *Client) overTCP(ctx context.Context, s *server, q question, packed []byte) (*wire.Msg, error) {
	conn, err := c.tr.stream(ctx, s.addr)
	if err != nil {
		return nil, ended(ctx, err, 0)
	}
	defer conn.Close()
	defer until(ctx, conn)()
	framed := append(binary.BigEndian.AppendUint16(nil, uint16(len(packed))), packed...)
	if _, err := conn.Write(framed); err != nil {
		return nil, ended(ctx, err, 0)
	}
	buf := buffers.Get().(*[wire.MaxMsgSize]byte)
	defer buffers.Put(buf)
	for strays := 0; ; {
		var size [2]byte
		if _, err := io.ReadFull(conn, size[:]); err != nil {
			return nil, ended(ctx, err, strays)
		}
		n := int(binary.BigEndian.Uint16(size[:]))
		if _, err := io.ReadFull(conn, buf[:n]); err != nil {
			return nil, ended(ctx, err, strays)
		}
		switch matches(buf[:n], packed, q) {
		case matching:
			return c.unpack(buf[:n])
		case truncated:
			return nil, fmt.Errorf("%w: it is truncated even by TCP, which holds 64 KB", errGarbage)
		}
		s.strays.Add(1)
		if strays++; strays == maxStrays {
			return nil, fmt.Errorf("%w: it is to another question", errGarbage)
		}
	}
}

// until ends what conn waits for when ctx does. It sets no deadline before: that
// could be over a moment before ctx is, and a nameserver be blamed for it.
func until(ctx context.Context, conn interface{ SetDeadline(time.Time) error }) (stop func() bool) {
	return context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
}

// ended says why nothing came.
func ended(ctx context.Context, err error, strays int) error {
	if ctx.Err() != nil || errors.Is(err, os.ErrDeadlineExceeded) {
		err = errors.New("no answer in time")
	} else if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = errors.New("the connection ended before the answer did")
	}
	if strays > 0 {
		err = fmt.Errorf("%w (%d packets came that were none)", err, strays)
	}
	return err
}

func sender(a net.Addr) netip.AddrPort {
	if u, ok := a.(*net.UDPAddr); ok {
		at := u.AddrPort()
		return netip.AddrPortFrom(at.Addr().Unmap(), at.Port())
	}
	return netip.AddrPort{}
}

// verdict is what a packet is to a query.
type verdict uint8

const (
	stray     verdict = iota // no answer to it
	matching                 // its answer
	truncated                // a part of its answer
)

// The places and bits of a message's header (RFC 1035, 4.1.1).
const (
	headerSize = 12
	flagQR     = 0x80
	maskOpcode = 0x78
	flagTC     = 0x02
	maskRcode  = 0x0f
)

// matches reports whether reply is an answer to the packed question q. It looks at
// nothing behind the question, so that what is garbage there counts as an answer
// that can't be understood.
func matches(reply, query []byte, q question) verdict {
	if len(reply) < headerSize || reply[0] != query[0] || reply[1] != query[1] ||
		reply[2]&flagQR == 0 || reply[2]&maskOpcode != 0 {
		return stray
	}
	switch binary.BigEndian.Uint16(reply[4:]) {
	case 0:
		// Who did not understand the question may not repeat it.
		if rcode := reply[3] & maskRcode; rcode != wire.RcodeFormatError && rcode != wire.RcodeNotImplemented {
			return stray
		}
	case 1:
		name, at, err := wire.UnpackDomainName(reply, headerSize)
		if err != nil || at+4 > len(reply) || !strings.EqualFold(name, q.name) ||
			binary.BigEndian.Uint16(reply[at:]) != q.typ || binary.BigEndian.Uint16(reply[at+2:]) != wire.ClassINET {
			return stray
		}
	default:
		return stray
	}
	if reply[2]&flagTC != 0 {
		return truncated
	}
	return matching
}

func unpack(b []byte) (*wire.Msg, error) {
	m := new(wire.Msg)
	if err := m.Unpack(b); err != nil {
		return nil, fmt.Errorf("%w: %d bytes: %w", errGarbage, len(b), err)
	}
	return m, nil
}

// judge turns a message into what it says of q. Again says that the nameserver did
// not understand the query.
func judge(m *wire.Msg, q question) (a answer, again bool) {
	switch m.Rcode {
	case wire.RcodeSuccess, wire.RcodeNameError:
		return read(m, q), false
	case wire.RcodeFormatError, wire.RcodeNotImplemented, wire.RcodeBadVers:
		again = true
	}
	name, ok := wire.RcodeToString[m.Rcode]
	if !ok {
		name = fmt.Sprintf("code %d", m.Rcode)
	}
	return failure(refused, "the nameserver says %s", name), again
}
