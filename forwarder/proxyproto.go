package forwarder

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"net/netip"
	"strconv"
	"strings"

	"github.com/pires/go-proxyproto"
)

// The PROXY protocol, versions 1 and 2, as pure functions over bytes: nothing
// here reads or waits. The library knows the format of a header that is there
// whole. Where a header ends is found here, because a relay peeks at its
// socket and may take no byte more than the header from it, and because bytes
// that can't become a header must be known as such at once, not when a
// deadline has passed.
//
// Specification: haproxy.org/download/3.4/doc/proxy-protocol.txt.

const (
	// maxProxyHeader bounds a header in both directions, in bytes. Version 2
	// could announce 64 KiB, and a header is held in memory whole for as long as
	// its sender likes, up to a deadline.
	maxProxyHeader = 4 << 10
	// maxProxyV1 is the longest line of version 1, with its CRLF (section 2.1).
	maxProxyV1 = 107
	// maxProxyUniqueID is the longest PP2_TYPE_UNIQUE_ID (section 2.2.5).
	maxProxyUniqueID = 128
	// proxyV2Prefix is the signature, command, family and length of version 2.
	proxyV2Prefix = 16

	proxySig1 = "PROXY "
	proxySig2 = "\r\n\r\n\x00\r\nQUIT\n"
)

var (
	// errProxyShort says that the bytes so far begin a header, and more are due.
	errProxyShort = errors.New("the PROXY protocol header is not complete")
	// errNoProxy says that the stream can't begin with a header.
	errNoProxy = errors.New("the stream does not begin with a PROXY protocol header")

	proxyCRC = crc32.MakeTable(crc32.Castagnoli)
)

// proxyHeader is what a PROXY protocol header said.
type proxyHeader struct {
	// Version is 1 or 2.
	Version byte
	// Local says that the sender speaks for itself, as in a health check
	// (version 2, LOCAL). HAProxy also says it of a client that came over a unix
	// socket.
	Local bool
	// Source and Dest are the client's address and the one that it connected
	// to, unmapped. Both are zero where the header has no TCP addresses (LOCAL,
	// UNKNOWN, AF_UNSPEC, unix): then those of the connection itself hold.
	Source, Dest netip.AddrPort
	// TLVs are copies, in the order of the header, without NOOP and CRC32C:
	// these belong to the header that was received, and passed on they would be
	// wrong.
	TLVs []proxyproto.TLV
}

// findTLV returns the value of the first TLV of a type, and whether there is one.
func findTLV(tlvs []proxyproto.TLV, t proxyproto.PP2Type) ([]byte, bool) {
	for _, v := range tlvs {
		if v.Type == t {
			return v.Value, true
		}
	}
	return nil, false
}

// looksProxy says whether a stream that begins with b has a header: yes if b
// has a whole signature (what follows may still be wrong), maybe if b is too
// short to tell. It is for listeners where the header is optional; with
// neither, the client has sent none.
func looksProxy(b []byte) (yes, maybe bool) {
	for _, sig := range [...]string{proxySig1, proxySig2} {
		if n := min(len(b), len(sig)); string(b[:n]) == sig[:n] {
			return n == len(sig), n < len(sig)
		}
	}
	return false, false
}

// parseProxy reads the header at the start of b, which is what has come of a
// stream so far; b is not kept.
//
//   - With a nil error the header is b[:n], and what follows belongs to the
//     stream.
//   - With errProxyShort no b under n bytes can be enough, and n > len(b).
//   - Any other error is final: whatever follows, the connection is to be
//     closed. It is errNoProxy if there is no signature.
//
// Mapped addresses are unmapped, and plain IPv4 addresses in a TCP6 line, which
// nginx writes where the families of the two ends differ, are read. Version 2
// is accepted for streams only. A CRC32C is verified. The family and the block
// of a LOCAL header are not held against its sender (section 2.2): if they are
// unknown, or no list of TLVs, they are skipped.
func parseProxy(b []byte) (h proxyHeader, n int, err error) {
	yes, maybe := looksProxy(b)
	switch {
	case maybe:
		return proxyHeader{}, len(b) + 1, errProxyShort
	case !yes:
		return proxyHeader{}, 0, errNoProxy
	case b[0] == proxySig1[0]:
		if n, err = proxyV1Len(b); err == nil {
			h, err = parseProxyV1(b[:n])
		}
	default:
		if n, err = proxyV2Len(b); err == nil {
			h, err = parseProxyV2(b[:n])
		}
	}
	switch {
	case err == nil, err == errProxyShort:
		return h, n, err
	default:
		return proxyHeader{}, 0, err
	}
}

// proxyV1Protocols are the beginnings of a line of version 1, and the
// characters that may follow them (any, for UNKNOWN).
var proxyV1Protocols = [...]struct{ text, chars string }{
	{"PROXY TCP4 ", "0123456789. "},
	{"PROXY TCP6 ", "0123456789abcdefABCDEF:. "},
	{"PROXY UNKNOWN", ""},
}

// proxyV1Len returns the length of the line at the start of b, or errProxyShort
// and the least length that is worth another look.
func proxyV1Len(b []byte) (int, error) {
	for _, p := range proxyV1Protocols {
		start := min(len(b), len(p.text))
		if string(b[:start]) != p.text[:start] {
			continue
		}
		for i := start; i < len(b); i++ {
			switch c := b[i]; {
			case i == maxProxyV1-1: // only LF can be here, and its CR has been seen below
				return 0, fmt.Errorf("PROXY v1 header: no end of line in %d bytes", maxProxyV1)
			case c == '\r' && i+1 == len(b):
				return len(b) + 1, errProxyShort
			case c == '\r' && b[i+1] == '\n':
				return i + 2, nil
			case c == '\r', c == '\n':
				return 0, errors.New("PROXY v1 header: CR or LF alone")
			case p.chars != "" && strings.IndexByte(p.chars, c) < 0,
				p.chars == "" && i == len(p.text) && c != ' ':
				return 0, fmt.Errorf("PROXY v1 header: unexpected %q at byte %d", c, i)
			}
		}
		return len(b) + 1, errProxyShort
	}
	return 0, errors.New("PROXY v1 header: the protocol is none of TCP4, TCP6 and UNKNOWN")
}

func parseProxyV1(b []byte) (proxyHeader, error) {
	if bytes.HasPrefix(b, []byte("PROXY TCP6 ")) {
		fields := strings.Split(string(b), " ")
		for i := 2; i < min(len(fields), 4); i++ {
			if a, err := netip.ParseAddr(fields[i]); err == nil && a.Is4() {
				fields[i] = "::ffff:" + fields[i]
				b = []byte(strings.Join(fields, " "))
			}
		}
	}
	h := proxyHeader{Version: 1}
	if err := h.addresses(b); err != nil {
		return proxyHeader{}, fmt.Errorf("PROXY v1 header: %w", err)
	}
	return h, nil
}

// proxyAddrLen returns the length of a family's address block in version 2, or
// -1 for a family that there is none of.
func proxyAddrLen(f proxyproto.AddressFamilyAndProtocol) int {
	switch f {
	case proxyproto.UNSPEC:
		return 0
	case proxyproto.TCPv4, proxyproto.UDPv4:
		return 2 * (4 + 2)
	case proxyproto.TCPv6, proxyproto.UDPv6:
		return 2 * (16 + 2)
	case proxyproto.UnixStream, proxyproto.UnixDatagram:
		return 2 * 108
	}
	return -1
}

// proxyV2Len returns the length of the header at the start of b, or
// errProxyShort and the least length that is worth another look. A header of
// which it tells the length has room for its addresses, unless it is LOCAL.
func proxyV2Len(b []byte) (int, error) {
	var command proxyproto.ProtocolVersionAndCommand
	var family proxyproto.AddressFamilyAndProtocol
	if len(b) > 12 {
		command = proxyproto.ProtocolVersionAndCommand(b[12])
		if command.IsUnspec() {
			return 0, fmt.Errorf("PROXY v2 header: unknown version and command %#02x", b[12])
		}
	}
	if len(b) > 13 {
		family = proxyproto.AddressFamilyAndProtocol(b[13])
		switch {
		case command.IsLocal(): // says nothing of its family, whatever it is
		case proxyAddrLen(family) < 0:
			return 0, fmt.Errorf("PROXY v2 header: unknown family and protocol %#02x", b[13])
		case family.IsDatagram():
			return 0, fmt.Errorf("PROXY v2 header: family and protocol %#02x is for datagrams, and this is a stream", b[13])
		}
	}
	if len(b) < proxyV2Prefix {
		return proxyV2Prefix, errProxyShort
	}
	block := int(binary.BigEndian.Uint16(b[14:]))
	n := proxyV2Prefix + block
	switch {
	case n > maxProxyHeader:
		return 0, fmt.Errorf("PROXY v2 header of %d bytes, at most %d", n, maxProxyHeader)
	case block < proxyAddrLen(family) && !command.IsLocal():
		return 0, fmt.Errorf("PROXY v2 header: %d bytes after the length, the addresses alone need %d", block, proxyAddrLen(family))
	case len(b) < n:
		return n, errProxyShort
	}
	return n, nil
}

func parseProxyV2(b []byte) (proxyHeader, error) {
	h := proxyHeader{Version: 2, Local: proxyproto.ProtocolVersionAndCommand(b[12]).IsLocal()}
	family := proxyproto.AddressFamilyAndProtocol(b[13])
	// Where the TLVs of a LOCAL header begin is not known if its family is not.
	if n := proxyAddrLen(family); n >= 0 && proxyV2Prefix+n <= len(b) {
		if err := h.readTLVs(b, proxyV2Prefix+n); err != nil {
			return proxyHeader{}, fmt.Errorf("PROXY v2 header: %w", err)
		}
	}
	// PROXY with AF_UNSPEC is left to the receiver by section 2.2; the library
	// would refuse it.
	if h.Local || family == proxyproto.UNSPEC {
		return h, nil
	}
	if err := h.addresses(b); err != nil {
		return proxyHeader{}, fmt.Errorf("PROXY v2 header: %w", err)
	}
	return h, nil
}

// addresses has the library read b, which is a whole header and nothing else.
func (h *proxyHeader) addresses(b []byte) error {
	// The library wants a line of version 1 buffered by one read.
	hdr, err := proxyproto.Read(bufio.NewReaderSize(bytes.NewReader(b), len(b)))
	if err != nil {
		return err
	}
	if src, dst, ok := hdr.TCPAddrs(); ok {
		h.Source, h.Dest = proxyUnmap(src.AddrPort()), proxyUnmap(dst.AddrPort())
	}
	return nil
}

func proxyUnmap(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}

// readTLVs reads the list that begins at b[at:], where b is the whole header,
// and verifies its checksum (section 2.2.3) if it has one.
func (h *proxyHeader) readTLVs(b []byte, at int) error {
	all, err := proxyproto.SplitTLVs(b[at:])
	if err != nil {
		if h.Local {
			return nil
		}
		return err
	}
	var sums int
	for len(b)-at >= 3 {
		typ, n := proxyproto.PP2Type(b[at]), int(binary.BigEndian.Uint16(b[at+1:]))
		at += 3
		if typ == proxyproto.PP2_TYPE_CRC32C {
			if sums++; n != crc32.Size || sums > 1 {
				return errors.New("a CRC32C that is not 4 bytes, or more than one")
			}
			sum := crc32.Update(0, proxyCRC, b[:at])
			sum = crc32.Update(sum, proxyCRC, make([]byte, crc32.Size))
			sum = crc32.Update(sum, proxyCRC, b[at+n:])
			if want := binary.BigEndian.Uint32(b[at:]); sum != want {
				return fmt.Errorf("CRC32C is %08x, the header says %08x", sum, want)
			}
		}
		at += n
	}
	for _, t := range all {
		if t.Type != proxyproto.PP2_TYPE_NOOP && t.Type != proxyproto.PP2_TYPE_CRC32C {
			h.TLVs = append(h.TLVs, t)
		}
	}
	return nil
}

// appendProxy appends the header that tells an upstream of a connection from
// src to dest. It allocates only if dst has no room (maxProxyHeader is always
// enough), and takes version 1, which has no place for tlvs and leaves them
// out, or 2.
//
// Mapped addresses are written as IPv4. If the families still differ both are
// written as IPv6, the IPv4 one mapped: a header has one family. If an address
// is invalid, as that of a client on a unix socket is, version 1 says UNKNOWN
// and version 2 LOCAL with AF_UNSPEC, and tlvs all the same. This is what
// HAProxy sends for such clients, and what every receiver must accept. PROXY
// with AF_UNSPEC would tell more exactly that somebody is being relayed, but
// receivers may refuse it, and some do.
//
// With an error, which is an unknown version, a unique id over
// maxProxyUniqueID or a header over maxProxyHeader, dst comes back as it was.
func appendProxy(dst []byte, version byte, src, dest netip.AddrPort, tlvs []proxyproto.TLV) ([]byte, error) {
	s, d := src.Addr().Unmap().WithZone(""), dest.Addr().Unmap().WithZone("")
	known, four := s.IsValid() && d.IsValid(), s.Is4() && d.Is4()
	if known && !four {
		s, d = netip.AddrFrom16(s.As16()), netip.AddrFrom16(d.As16())
	}
	switch version {
	case 1:
		switch {
		case !known:
			return append(dst, "PROXY UNKNOWN\r\n"...), nil
		case four:
			dst = append(dst, "PROXY TCP4 "...)
		default:
			dst = append(dst, "PROXY TCP6 "...)
		}
		dst = append(s.AppendTo(dst), ' ')
		dst = append(d.AppendTo(dst), ' ')
		dst = append(strconv.AppendUint(dst, uint64(src.Port()), 10), ' ')
		dst = strconv.AppendUint(dst, uint64(dest.Port()), 10)
		return append(dst, "\r\n"...), nil
	case 2:
	default:
		return dst, fmt.Errorf("PROXY protocol version %d, want 1 or 2", version)
	}

	command, family := proxyproto.PROXY, proxyproto.TCPv6
	switch {
	case !known:
		command, family = proxyproto.LOCAL, proxyproto.UNSPEC
	case four:
		family = proxyproto.TCPv4
	}
	n := proxyV2Prefix + proxyAddrLen(family)
	for _, t := range tlvs {
		if t.Type == proxyproto.PP2_TYPE_UNIQUE_ID && len(t.Value) > maxProxyUniqueID {
			return dst, fmt.Errorf("PROXY v2 header: a unique id of %d bytes, at most %d", len(t.Value), maxProxyUniqueID)
		}
		n += 3 + len(t.Value)
	}
	if n > maxProxyHeader {
		return dst, fmt.Errorf("PROXY v2 header of %d bytes, at most %d", n, maxProxyHeader)
	}
	dst = append(dst, proxySig2...)
	dst = append(dst, byte(command), byte(family))
	dst = binary.BigEndian.AppendUint16(dst, uint16(n-proxyV2Prefix))
	if known {
		if four {
			s4, d4 := s.As4(), d.As4()
			dst = append(append(dst, s4[:]...), d4[:]...)
		} else {
			s16, d16 := s.As16(), d.As16()
			dst = append(append(dst, s16[:]...), d16[:]...)
		}
		dst = binary.BigEndian.AppendUint16(dst, src.Port())
		dst = binary.BigEndian.AppendUint16(dst, dest.Port())
	}
	for _, t := range tlvs {
		dst = append(dst, byte(t.Type))
		dst = binary.BigEndian.AppendUint16(dst, uint16(len(t.Value)))
		dst = append(dst, t.Value...)
	}
	return dst, nil
}
