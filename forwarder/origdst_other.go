//go:build !linux

package forwarder

import (
	"net"
	"net/netip"
)

const haveOriginalDst = false

// originalDst returns local: nobody asks here.
func originalDst(_ net.Conn, local netip.AddrPort) netip.AddrPort { return local }
