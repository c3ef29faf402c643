package forwarder

import (
	"net"
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"
)

const haveOriginalDst = true

// The option is no part of package unix; of IPv6 it has the same number
// (IP6T_SO_ORIGINAL_DST).
const soOriginalDst = 80

// originalDstOf returns what the peer of fd had connected to before netfilter
// sent it to local, which it returns if netfilter does not know.
func originalDstOf(fd int32, local netip.AddrPort) netip.AddrPort {
	level := uintptr(unix.SOL_IP)
	if local.Addr().Is6() {
		level = unix.SOL_IPV6
	}
	if !local.IsValid() {
		return local
	}
	var a unix.RawSockaddrAny
	size := int32(unsafe.Sizeof(a))
	_, _, e := unix.RawSyscall6(unix.SYS_GETSOCKOPT, uintptr(fd), level, soOriginalDst, uintptr(unsafe.Pointer(&a)), uintptr(unsafe.Pointer(&size)), 0)
	if to := peerOf(&a); e == 0 && to.IsValid() {
		return to
	}
	return local
}

// originalDst is originalDstOf for a net.Conn.
func originalDst(c net.Conn, local netip.AddrPort) netip.AddrPort {
	raw := rawConn(c)
	if raw == nil {
		return local
	}
	to := local
	_ = raw.Control(func(fd uintptr) { to = originalDstOf(int32(fd), local) }) // fails only if c is closed
	return to
}
