package forwarder

import (
	"encoding/binary"
	"net/netip"
	"strconv"
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
		ip := netip.AddrFrom16(in.Addr).Unmap()
		if in.Scope_id != 0 {
			ip = ip.WithZone(zone(in.Scope_id))
		}
		return netip.AddrPortFrom(ip, ntohs(in.Port))
	}
	return netip.AddrPort{}
}

// zone returns the name of an interface, as package net does, or else its
// number.
func zone(index uint32) string {
	if fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err == nil {
		defer unix.Close(fd)
		if req, err := unix.NewIfreq("-"); err == nil {
			req.SetUint32(index)
			if unix.IoctlIfreq(fd, unix.SIOCGIFNAME, req) == nil {
				return req.Name()
			}
		}
	}
	return strconv.FormatUint(uint64(index), 10)
}

func ntohs(v uint16) uint16 {
	var b [2]byte
	binary.NativeEndian.PutUint16(b[:], v)
	return binary.BigEndian.Uint16(b[:])
}

// acceptFD and dialFD are sysAccept and sysDial, or what a test has in their
// place.
type acceptFD func(fd int32, from *unix.RawSockaddrAny) (int32, unix.Errno)

type dialFD func(lbcore.Addr, *Dial) (int32, unix.Errno)

// sockaddr writes the address of an IP socket for the kernel.
func sockaddr(any *unix.RawSockaddrAny, ap netip.AddrPort) (family int, size uintptr) {
	if ip := ap.Addr(); ip.Is4() {
		in := (*unix.RawSockaddrInet4)(unsafe.Pointer(any))
		in.Family, in.Port, in.Addr = unix.AF_INET, ntohs(ap.Port()), ip.As4()
		return unix.AF_INET, unix.SizeofSockaddrInet4
	}
	in := (*unix.RawSockaddrInet6)(unsafe.Pointer(any))
	in.Family, in.Port, in.Addr = unix.AF_INET6, ntohs(ap.Port()), ap.Addr().As16()
	return unix.AF_INET6, unix.SizeofSockaddrInet6
}

// sysDial opens a socket to a, as d asks, and begins to connect it: 0 says that
// it is connected, EINPROGRESS that it will tell. On any other error there is no
// socket.
func sysDial(a lbcore.Addr, d *Dial) (int32, unix.Errno) {
	family, size := unix.AF_UNIX, uintptr(0)
	var any unix.RawSockaddrAny
	if ap := a.AddrPort(); ap.IsValid() {
		family, size = sockaddr(&any, ap)
	} else {
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
	if e := d.bind(fd, a); e != 0 {
		sysClose(fd)
		return -1, e
	}
	_, _, e = unix.RawSyscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&any)), size)
	if e != 0 && e != unix.EINPROGRESS {
		sysClose(fd)
		return -1, e
	}
	return fd, e
}

// bind does to a dial's socket what comes before connect.
func (d *Dial) bind(fd int32, to lbcore.Addr) unix.Errno {
	src := d.source(to)
	if e := d.prepare(fd); e != 0 || !src.IsValid() {
		return e
	}
	var any unix.RawSockaddrAny
	_, size := sockaddr(&any, netip.AddrPortFrom(src, 0))
	_, _, e := unix.RawSyscall(unix.SYS_BIND, uintptr(fd), uintptr(unsafe.Pointer(&any)), size)
	return e
}

// sysReset closes a socket, with an RST if it is a TCP socket.
func sysReset(fd int32) {
	l := unix.Linger{Onoff: 1}
	unix.RawSyscall6(unix.SYS_SETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_LINGER, uintptr(unsafe.Pointer(&l)), unsafe.Sizeof(l), 0)
	sysClose(fd)
}

// sysUnsent returns how many bytes written to fd its peer has not taken: of a TCP socket
// those that are not acknowledged, of a unix socket those that are not read, with what they
// cost in memory.
func sysUnsent(fd int32) uint32 {
	var n int32
	if _, _, e := unix.RawSyscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCOUTQ, uintptr(unsafe.Pointer(&n))); e != 0 {
		return 0
	}
	return uint32(n)
}

// delivered reports whether the peer has acknowledged everything that was
// written to fd, or never will.
func delivered(fd int32) bool {
	info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
	return err != nil || // not TCP: what is written to a unix socket is in the peer's queue
		info.Unacked == 0 && info.Notsent_bytes == 0 || info.State == unix.BPF_TCP_CLOSE /* reset */
}
