package forwarder

import (
	"bytes"
	"net/netip"

	"github.com/pires/go-proxyproto"

	"gatehouse.internal/lbcore"
)

// HashOn says what of a connection is hashed to choose its endpoint. Where that
// is not known there is no key.
type HashOn uint8

// The values of HashOn. All addresses are unmapped, and have no zone.
const (
	// HashNone is no key: each connection is chosen for anew.
	HashNone HashOn = iota
	// HashSourceIP is the text of the client's IP address, without port.
	// Clients of a unix socket have none.
	// Source: TcpProxy.hash_policy source_ip.
	HashSourceIP
	// HashSourceIPPort is the text of the client's address with port, as
	// "192.0.2.1:80" or "[2001:db8::1]:80".
	HashSourceIPPort
	// HashDestination is the text of the address, with port, that the client has
	// connected to: what its PROXY header says, or the original destination, or
	// else the address of this end of the connection.
	HashDestination
	// HashSNI is the server name, in lower case, in the client's TLS
	// ClientHello. Where TLS does not end here the hello is waited for, and
	// passed on as it came: see Settings.HelloTimeout. A client that sends
	// another protocol, or no name, is served without a key.
	// Source: envoy.extensions.filters.listener.tls_inspector.v3.TlsInspector.
	HashSNI
	// HashProxyTLV is the value of the first TLV of type Settings.HashTLV in the
	// client's PROXY header of version 2.
	HashProxyTLV
)

// key is what the selection hashes.
func (f *flow) key() lbcore.Key {
	switch on := f.settings.HashOn; {
	case on == HashSourceIP && f.client.IsValid():
		return lbcore.BytesKey(f.client.Addr().WithZone("").AppendTo(f.sel.text[:0]))
	case on == HashSourceIPPort && f.client.IsValid():
		return f.addrKey(f.client)
	case on == HashDestination && f.dest().IsValid():
		return f.addrKey(f.dest())
	case on == HashSNI, on == HashProxyTLV:
		return f.sel.key
	}
	return lbcore.Key{}
}

func (f *flow) addrKey(a netip.AddrPort) lbcore.Key {
	return lbcore.BytesKey(netip.AddrPortFrom(a.Addr().WithZone(""), a.Port()).AppendTo(f.sel.text[:0]))
}

// sniKey is the key of a server name.
func sniKey(name []byte) lbcore.Key {
	if len(name) == 0 {
		return lbcore.Key{}
	}
	return lbcore.BytesKey(bytes.ToLower(name))
}

// unknownDest reports whether the address that the client has connected to is
// hashed, and has to be asked of the socket.
func (f *flow) unknownDest() bool { return f.settings.HashOn == HashDestination && !f.dest().IsValid() }

// validTLV reports whether a TLV of this type says something of the client:
// those that are about the header itself are not kept.
func validTLV(t byte) bool {
	return t != byte(proxyproto.PP2_TYPE_CRC32C) && t != byte(proxyproto.PP2_TYPE_NOOP)
}
