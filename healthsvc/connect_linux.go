package healthsvc

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"gatehouse.internal/lbcore"
)

// connect makes a connection and resets it, which is all that most probes are. It
// does what dial and Close do, in a third of the system calls and next to no garbage.
func (t Transport) connect(ctx context.Context, addr lbcore.Addr) error {
	at := addr.AddrPort()
	if !at.IsValid() || t.source(addr).IsValid() || t.Mark > 0 {
		return t.dialOnly(ctx, addr)
	}
	err := connect(ctx, at)
	if errors.Is(err, syscall.EADDRNOTAVAIL) && !routed(ctx, net.Dialer{}, addr) {
		return errUnrouted
	}
	if err != nil {
		return reason(ctx, "connect", err)
	}
	return nil
}

func connect(ctx context.Context, at netip.AddrPort) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	var to unix.Sockaddr
	family := unix.AF_INET
	if at.Addr().Is4() {
		to = &unix.SockaddrInet4{Port: int(at.Port()), Addr: at.Addr().As4()}
	} else {
		to, family = &unix.SockaddrInet6{Port: int(at.Port()), Addr: at.Addr().As16()}, unix.AF_INET6
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	if err = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}); err == nil { // see dial
		err = unix.Connect(fd, to)
	}
	switch err {
	case unix.EINPROGRESS, unix.EINTR:
		done := false
		if done, err = connected(fd, at); !done { // on this node it is done by now
			return await(ctx, fd, at)
		}
	case nil:
		err = notSelf(fd, at)
	}
	unix.Close(fd)
	return os.NewSyscallError("connect", err)
}

// await waits until fd, which it closes, is connected.
func await(ctx context.Context, fd int, at netip.AddrPort) error {
	f := os.NewFile(uintptr(fd), "probe") // waits by the runtime's poller, as fd does not block
	defer f.Close()
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { f.SetWriteDeadline(time.Unix(1, 0)) })
	defer stop()
	var failed error
	err = raw.Write(func(fd uintptr) (done bool) {
		done, failed = connected(int(fd), at)
		return done
	})
	if err == nil {
		err = os.NewSyscallError("connect", failed)
	}
	return err
}

// connected reports whether fd connects no more, and why it has failed.
func connected(fd int, at netip.AddrPort) (done bool, err error) {
	n, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
	if err != nil {
		return true, err
	}
	if e := syscall.Errno(n); e != 0 && e != unix.EINPROGRESS && e != unix.EALREADY {
		return true, e
	}
	if _, err := unix.Getpeername(fd); err != nil {
		return false, nil // the poller has woken us early
	}
	return true, notSelf(fd, at)
}

// notSelf refuses a connection of a socket with itself: that is made where the
// destination is a port of this node, on which nobody listens and which the system
// has just chosen for the socket.
func notSelf(fd int, at netip.AddrPort) error {
	sa, err := unix.Getsockname(fd)
	if err != nil {
		return err
	}
	var from netip.AddrPort
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		from = netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(sa.Port))
	case *unix.SockaddrInet6:
		from = netip.AddrPortFrom(netip.AddrFrom16(sa.Addr), uint16(sa.Port))
	}
	if from == at {
		return syscall.ECONNREFUSED
	}
	return nil
}
