package forwarder

import (
	"encoding/binary"
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"

	"gatehouse.internal/lbcore"
)

// The system calls of the event loops. None of them blocks, so they are made
// without telling Go's scheduler (RawSyscall), which would cost more than many
// of them do.

func sysRead(fd int32, b []byte) (int, unix.Errno) {
	n, _, e := unix.RawSyscall(unix.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)))
	return int(n), e
}

func sysWrite(fd int32, b []byte) (int, unix.Errno) {
	n, _, e := unix.RawSyscall(unix.SYS_WRITE, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)))
	return int(n), e
}

func sysSplice(in, out int32, n int) (int, unix.Errno) {
	r, _, e := unix.RawSyscall6(unix.SYS_SPLICE, uintptr(in), 0, uintptr(out), 0, uintptr(n), spliceFlags)
	return int(r), e
}

func sysClose(fd int32) { unix.RawSyscall(unix.SYS_CLOSE, uintptr(fd), 0, 0) }

func sysShutdown(fd int32) unix.Errno {
	_, _, e := unix.RawSyscall(unix.SYS_SHUTDOWN, uintptr(fd), unix.SHUT_WR, 0)
	return e
}

func sysSetInt(fd int32, level, opt, value int) unix.Errno {
	v := int32(value)
	_, _, e := unix.RawSyscall6(unix.SYS_SETSOCKOPT, uintptr(fd), uintptr(level), uintptr(opt), uintptr(unsafe.Pointer(&v)), 4, 0)
	return e
}

// sysError takes a socket's pending error.
func sysError(fd int32) unix.Errno {
	var v, size int32 = 0, 4
	_, _, e := unix.RawSyscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_ERROR, uintptr(unsafe.Pointer(&v)), uintptr(unsafe.Pointer(&size)), 0)
	if e != 0 {
		return e
	}
	return unix.Errno(v)
}

func sysEpollAdd(ep, fd int32, events uint32, tag int32) unix.Errno {
	ev := unix.EpollEvent{Events: events, Fd: fd, Pad: tag}
	_, _, e := unix.RawSyscall6(unix.SYS_EPOLL_CTL, uintptr(ep), unix.EPOLL_CTL_ADD, uintptr(fd), uintptr(unsafe.Pointer(&ev)), 0, 0)
	return e
}

func sysEpollDel(ep, fd int32) {
	unix.RawSyscall6(unix.SYS_EPOLL_CTL, uintptr(ep), unix.EPOLL_CTL_DEL, uintptr(fd), 0, 0, 0)
}

// sysEpollPoll takes what events there are.
func sysEpollPoll(ep int32, evs []unix.EpollEvent) int {
	n, _, e := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(ep), uintptr(unsafe.Pointer(&evs[0])), uintptr(len(evs)), 0, 0, 0)
	if e != 0 {
		return 0
	}
	return int(n)
}

// sysEpollWait waits for events, ms milliseconds at most or, below 0, as long
// as it takes. It does tell the scheduler.
func sysEpollWait(ep int32, evs []unix.EpollEvent, ms int) int {
	n, _, e := unix.Syscall6(unix.SYS_EPOLL_PWAIT, uintptr(ep), uintptr(unsafe.Pointer(&evs[0])), uintptr(len(evs)), uintptr(ms), 0, 0)
	if e != 0 {
		return 0
	}
	return int(n)
}

// sysPeek reads without taking.
func sysPeek(fd int32, b []byte) (int, unix.Errno) {
	n, _, e := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)), unix.MSG_PEEK, 0, 0)
	return int(n), e
}

// localOf returns the address that a socket is bound to, as peerOf does.
func localOf(fd int32, a *unix.RawSockaddrAny) netip.AddrPort {
	size := int32(unix.SizeofSockaddrAny)
	if _, _, e := unix.RawSyscall(unix.SYS_GETSOCKNAME, uintptr(fd), uintptr(unsafe.Pointer(a)), uintptr(unsafe.Pointer(&size))); e != 0 {
		return netip.AddrPort{}
	}
	return peerOf(a)
}

// sysAccept takes a connection from a listening socket.
func sysAccept(fd int32, from *unix.RawSockaddrAny) (int32, unix.Errno) {
	size := int32(unix.SizeofSockaddrAny)
	n, _, e := unix.RawSyscall6(unix.SYS_ACCEPT4, uintptr(fd), uintptr(unsafe.Pointer(from)), uintptr(unsafe.Pointer(&size)), unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0, 0)
	return int32(n), e
}

// peerOf reads an IP address that the kernel wrote; others give the zero value.
func peerOf(a *unix.RawSockaddrAny) netip.AddrPort {
	switch a.Addr.Family {
	case unix.AF_INET:
		in := (*unix.RawSockaddrInet4)(unsafe.Pointer(a))
		return netip.AddrPortFrom(netip.AddrFrom4(in.Addr), ntohs(in.Port))
	case unix.AF_INET6:
		in := (*unix.RawSockaddrInet6)(unsafe.Pointer(a))
		return netip.AddrPortFrom(netip.AddrFrom16(in.Addr).Unmap(), ntohs(in.Port))
	}
	return netip.AddrPort{}
}

func ntohs(v uint16) uint16 {
	var b [2]byte
	binary.NativeEndian.PutUint16(b[:], v)
	return binary.BigEndian.Uint16(b[:])
}

// dialFD is sysDial, or what a test has in its place.
type dialFD func(lbcore.Addr) (int32, unix.Errno)

// sysDial opens a socket to a and begins to connect it: 0 says that it is
// connected, EINPROGRESS that it will tell. On any other error there is no
// socket.
func sysDial(a lbcore.Addr) (int32, unix.Errno) {
	family, size := unix.AF_UNIX, uintptr(0)
	var any unix.RawSockaddrAny
	ap := a.AddrPort()
	switch ip := ap.Addr(); {
	case ip.Is4():
		in := (*unix.RawSockaddrInet4)(unsafe.Pointer(&any))
		family, size = unix.AF_INET, unix.SizeofSockaddrInet4
		in.Family, in.Port, in.Addr = unix.AF_INET, ntohs(ap.Port()), ip.As4()
	case ip.Is6():
		in := (*unix.RawSockaddrInet6)(unsafe.Pointer(&any))
		family, size = unix.AF_INET6, unix.SizeofSockaddrInet6
		in.Family, in.Port, in.Addr = unix.AF_INET6, ntohs(ap.Port()), ip.As16()
	default:
		un := (*unix.RawSockaddrUnix)(unsafe.Pointer(&any))
		path := a.Path()
		if len(path) >= len(un.Path) {
			return -1, unix.ENAMETOOLONG
		}
		un.Family = unix.AF_UNIX
		for i := range len(path) {
			un.Path[i] = int8(path[i])
		}
		size = uintptr(unsafe.Offsetof(un.Path)) + uintptr(len(path)) + 1
	}
	r, _, e := unix.RawSyscall(unix.SYS_SOCKET, uintptr(family), unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if e != 0 {
		return -1, e
	}
	fd := int32(r)
	if family != unix.AF_UNIX {
		sysSetInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
	}
	_, _, e = unix.RawSyscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&any)), size)
	if e != 0 && e != unix.EINPROGRESS {
		sysClose(fd)
		return -1, e
	}
	return fd, e
}

// sysReset closes a socket, with an RST if it is a TCP socket.
func sysReset(fd int32) {
	l := unix.Linger{Onoff: 1}
	unix.RawSyscall6(unix.SYS_SETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_LINGER, uintptr(unsafe.Pointer(&l)), unsafe.Sizeof(l), 0)
	sysClose(fd)
}

// sysKeepalive is tune for a descriptor.
func sysKeepalive(fd int32) {
	sysSetInt(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1)
	sysSetInt(fd, unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, int(keepaliveIdle.Seconds()))
	sysSetInt(fd, unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, int(keepaliveInterval.Seconds()))
	sysSetInt(fd, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(userTimeout.Milliseconds()))
}

// delivered reports whether the peer has acknowledged everything that was
// written to fd, or never will.
func delivered(fd int32) bool {
	info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
	return err != nil || // not TCP: what is written to a unix socket is in the peer's queue
		info.Unacked == 0 && info.Notsent_bytes == 0 || info.State == unix.BPF_TCP_CLOSE /* reset */
}
