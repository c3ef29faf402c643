package forwarder

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"time"
)

// A ClientHello is read for its server name, and passed on as it came. The
// decoder is our own, as package tls wants a connection for each and refuses
// what it would not serve itself; tests and a fuzzer hold it against that
// package.
//
// Specification: RFC 8446, 4.1.2 and 5.1; RFC 6066, 3.

// The defaults of Settings.
const (
	DefaultHelloTimeout = 5 * time.Second
	DefaultMaxHellos    = 1024
)

const (
	// maxHello bounds what is read of a client before its endpoint is chosen,
	// in bytes, with the heads of the records.
	// Source: TlsInspector.max_client_hello_size, which may be as much.
	maxHello = 64 << 10
	// maxServerName is the longest name of a host.
	maxServerName = 255

	recordHead  = 5
	maxRecord   = 16 << 10
	messageHead = 4
)

var (
	errNoHello = errors.New("the stream does not begin with a TLS ClientHello")
	errHellos  = errors.New("tls: as many clients as max_pending allows are without their ClientHello")

	errHelloLate = errors.New("tls: the client has sent neither a ClientHello nor anything else in time")
)

// helloScan finds the end of a ClientHello, which may be in many records, while
// it is still coming. The zero value is at its beginning.
type helloScan struct {
	next int               // where the next record begins
	have int               // bytes of the message in the records before it
	head [messageHead]byte // the first of them
}

// scan looks on in b, which is all that has come, and reports whether the
// message is there whole. An error, errNoHello, is final. Each byte is looked at
// once, but for those of a record that is not whole.
func (s *helloScan) scan(b []byte) (whole bool, err error) {
	for len(b)-s.next >= recordHead {
		r := b[s.next:]
		size := int(binary.BigEndian.Uint16(r[3:]))
		if r[0] != 22 || r[1] != 3 || size == 0 || size > maxRecord {
			return false, errNoHello
		}
		body := r[recordHead:min(recordHead+size, len(r))]
		if s.have < messageHead {
			copy(s.head[s.have:], body)
		}
		have := s.have + len(body)
		if have > 0 && s.head[0] != 1 {
			return false, errNoHello
		}
		if have >= messageHead {
			switch need := s.need(); {
			case need > maxHello:
				return false, errNoHello
			case have >= need:
				return true, nil
			}
		}
		if len(body) < size {
			return false, nil
		}
		s.have += size
		s.next += recordHead + size
	}
	if r := b[s.next:]; len(r) > 0 && r[0] != 22 || len(r) > 1 && r[1] != 3 {
		return false, errNoHello
	}
	return false, nil
}

// need is the length of the message with its head, which is there.
func (s *helloScan) need() int {
	return messageHead + int(s.head[1])<<16 + int(s.head[2])<<8 + int(s.head[3])
}

// message returns the message, which is whole, without its head. It is a part of
// b where it is in one record.
func (s *helloScan) message(b []byte) []byte {
	need := s.need()
	var all []byte
	for {
		size := int(binary.BigEndian.Uint16(b[3:]))
		body := b[recordHead:min(recordHead+size, len(b))]
		switch {
		case len(all) == 0 && len(body) >= need:
			return body[messageHead:need]
		case all == nil:
			all = make([]byte, 0, need)
		}
		all = append(all, body[:min(len(body), need-len(all))]...)
		if len(all) == need {
			return all[messageHead:]
		}
		b = b[recordHead+size:]
	}
}

// bytesIn is what is left of a TLS structure.
type bytesIn []byte

// take returns the next n bytes. If there are not so many it returns nil, and
// false.
func (b *bytesIn) take(n int) (bytesIn, bool) {
	if len(*b) < n {
		return nil, false
	}
	head := (*b)[:n]
	*b = (*b)[n:]
	return head, true
}

// vector returns the next vector, the length of which takes size bytes.
func (b *bytesIn) vector(size int) (bytesIn, bool) {
	head, ok := b.take(size)
	n := 0
	for _, x := range head {
		n = n<<8 | int(x)
	}
	if !ok {
		return nil, false
	}
	return b.take(n)
}

// extensions returns those of a ClientHello, without the head of the message. ok
// says that the message is well formed as far as that.
func extensions(hello []byte) (all bytesIn, ok bool) {
	b := bytesIn(hello)
	if _, ok := b.take(2 + 32); !ok { // version and random
		return nil, false
	}
	for _, size := range [...]int{1, 2, 1} { // session, cipher suites, compression
		if _, ok := b.vector(size); !ok {
			return nil, false
		}
	}
	if len(b) == 0 {
		return nil, true
	}
	all, ok = b.vector(2)
	return all, ok && len(b) == 0
}

// extension returns the next extension.
func (b *bytesIn) extension() (kind uint16, data bytesIn, ok bool) {
	head, ok1 := b.take(2)
	data, ok2 := b.vector(2)
	if !ok1 || !ok2 {
		return 0, nil, false
	}
	return binary.BigEndian.Uint16(head), data, true
}

// The extensions that are read.
const (
	extServerName = 0
	extALPN       = 16
)

// maxProtocols bounds the protocols of a ClientHello that are looked at.
const maxProtocols = 64

// offered returns the application protocols that a ClientHello offers, in its
// order, at most maxProtocols.
// Specification: RFC 7301, 3.1.
func offered(hello []byte) (names []string) {
	all, _ := extensions(hello)
	for len(all) > 0 {
		kind, data, ok := all.extension()
		if !ok {
			return nil
		}
		if kind != extALPN {
			continue
		}
		list, ok := data.vector(2)
		for ok && len(list) > 0 && len(names) < maxProtocols {
			var name bytesIn
			if name, ok = list.vector(1); ok && len(name) > 0 {
				names = append(names, string(name))
			}
		}
		return names
	}
	return nil
}

// serverName returns the name in a ClientHello, without the head of the message:
// empty if there is none, or none that a host can have. ok says that the message
// is well formed as far as it matters for that. Of an encrypted ClientHello this
// is the outer name.
func serverName(hello []byte) (name []byte, ok bool) {
	extensions, ok := extensions(hello)
	if !ok {
		return nil, false
	}
	seen := false
	for len(extensions) > 0 {
		kind, data, ok := extensions.extension()
		if !ok {
			return nil, false
		}
		if kind != extServerName {
			continue
		}
		names, ok := data.vector(2)
		if !ok || len(data) > 0 || seen {
			return nil, false
		}
		seen = true
		for len(names) > 0 {
			kind, ok1 := names.take(1)
			host, ok2 := names.vector(2)
			if !ok1 || !ok2 || kind[0] == 0 && name != nil {
				return nil, false
			}
			if kind[0] == 0 {
				name = host
			}
		}
	}
	if len(name) > maxServerName || bytes.IndexByte(name, 0) >= 0 {
		name = nil
	}
	return name, true
}

// awaitsHello reports whether the client's ClientHello is due, or how the flow
// ends.
func (f *flow) awaitsHello() (bool, Flag, error) {
	if f.settings.HashOn != HashSNI && !f.settings.Inspect || f.settings.endsTLS() {
		return false, FlagNone, nil
	}
	f.inspecting = true
	if f.l.counters.helloPending.Add(1) > int64(f.settings.MaxHellos) {
		return false, FlagOM, errHellos
	}
	return true, FlagNone, nil
}

// inspected tells that no ClientHello is due any more.
func (f *flow) inspected() {
	if f.inspecting {
		f.inspecting = false
		f.l.counters.helloPending.Add(-1)
	}
}

// readHello takes the server name from b, which is all that the client has sent,
// and reports whether more can't change it.
func (f *flow) readHello(b []byte) bool {
	whole, err := f.sel.hello.scan(b)
	switch {
	case whole:
		hello := f.sel.hello.message(b)
		name, ok := serverName(hello)
		if ok && f.settings.Chains != nil {
			f.sel.conn.TLS, f.sel.conn.ServerName = true, strings.ToLower(string(name))
			f.sel.conn.ApplicationProtocols = offered(hello)
		}
		switch c := &f.l.counters; {
		case !ok:
			c.tlsNotFound.Add(1)
		case len(name) == 0:
			c.sniNotFound.Add(1)
		default:
			c.sniFound.Add(1)
			if f.settings.HashOn == HashSNI || f.settings.Chains != nil {
				f.sel.key = sniKey(name)
			}
			f.known().name = strings.ToLower(string(name))
		}
		return true
	case err != nil || len(b) >= maxHello:
		f.noHello()
		return true
	}
	return false
}

// noHello tells that there is no ClientHello, or it is late.
func (f *flow) noHello() { f.l.counters.tlsNotFound.Add(1) }

// inspect reads the client's ClientHello, if one is due: it is in s.first then.
// If that fails the session is aborted.
func (s *session) inspect() bool {
	wait, flag, err := s.awaitsHello()
	if wait {
		flag, err = FlagDC, s.awaitHello()
	}
	if err != nil {
		s.abort(flag, err)
		return false
	}
	s.inspected()
	return true
}

func (s *session) awaitHello() error {
	c := s.downstream.conn
	_ = c.SetReadDeadline(time.Now().Add(s.settings.HelloTimeout)) // fails only if c is closed
	for !s.readHello(s.first) {
		s.first = slices.Grow(s.first, 2<<10)
		n, err := c.Read(s.first[len(s.first):min(cap(s.first), maxHello)])
		s.first = s.first[:len(s.first)+n]
		switch {
		case err == nil:
			continue
		case errors.Is(err, os.ErrDeadlineExceeded) && s.settings.CutLateHello:
			s.noHello()
			return errHelloLate
		case err == io.EOF, errors.Is(err, os.ErrDeadlineExceeded):
			s.noHello()
		case errors.Is(err, net.ErrClosed):
			return errCut
		default:
			return err
		}
		break
	}
	_ = c.SetReadDeadline(time.Time{})
	return nil
}
