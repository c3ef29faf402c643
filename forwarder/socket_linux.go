package forwarder

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// set makes k's socket options. None of them can fail on an open TCP socket;
// others have no use for them.
func (k Keepalive) set(fd int32) {
	k = k.normal()
	on := 0
	if k.Time > 0 {
		on = 1
		sysSetInt(fd, unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, seconds(k.Time))
		sysSetInt(fd, unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, seconds(k.Interval))
		if k.Probes > 0 {
			sysSetInt(fd, unix.IPPROTO_TCP, unix.TCP_KEEPCNT, k.Probes)
		}
	}
	sysSetInt(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE, on)
	sysSetInt(fd, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(max(k.UserTimeout, 0).Milliseconds()))
}

// tune sets the keepalive of a TCP connection.
func tune(c net.Conn, k Keepalive) {
	if tc, ok := c.(*net.TCPConn); ok {
		_ = onFD(tc, func(fd int) error { k.set(int32(fd)); return nil })
	}
}

// onFD calls f with a connection's descriptor.
func onFD(c syscall.Conn, f func(fd int) error) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	return control(raw, f)
}

func control(c syscall.RawConn, f func(fd int) error) error {
	var err error
	if cerr := c.Control(func(fd uintptr) { err = f(int(fd)) }); cerr != nil {
		return cerr
	}
	return err
}

// control makes the options of a dial's socket that is not bound yet.
func (d *Dial) control(_, _ string, c syscall.RawConn) error {
	return control(c, func(fd int) error {
		if e := d.prepare(int32(fd)); e != 0 {
			return os.NewSyscallError("setsockopt", e)
		}
		return nil
	})
}

// prepare marks a dial's socket, and has it bound to an address only: the port
// is chosen when it connects, and can be that of other connections to other
// destinations.
func (d *Dial) prepare(fd int32) unix.Errno {
	if d.Source4.IsValid() || d.Source6.IsValid() {
		sysSetInt(fd, unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1) // fails on a unix socket
	}
	if d.Mark == 0 {
		return 0
	}
	return sysSetInt(fd, unix.SOL_SOCKET, unix.SO_MARK, int(d.Mark))
}

// CheckMark returns why this process can't set Dial.Mark, or nil if it can.
func CheckMark() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if errors.Is(err, unix.EAFNOSUPPORT) {
		fd, err = unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	}
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, 1); err != nil {
		return fmt.Errorf("a socket mark takes CAP_NET_ADMIN, or CAP_NET_RAW since Linux 5.17: %w", os.NewSyscallError("setsockopt", err))
	}
	return nil
}

// arrange sets up a listening socket. What is accepted from it inherits its
// keepalive.
func arrange(c syscall.Conn, s *Settings, was *Settings) error {
	return onFD(c, func(fd int) error {
		s.Keepalive.set(int32(fd))
		if s.Socket.Backlog == was.Socket.Backlog {
			return nil
		}
		n := cmp.Or(s.Socket.Backlog, math.MaxInt32) // the system allows less
		return os.NewSyscallError("listen", unix.Listen(fd, n))
	})
}

// duplicate returns another descriptor of c's socket.
func duplicate(c syscall.Conn) (f *os.File, err error) {
	err = onFD(c, func(fd int) error {
		dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			return os.NewSyscallError("fcntl", err)
		}
		f = os.NewFile(uintptr(dup), "listener")
		return nil
	})
	return f, err
}

// Accepts reports whether the socket of f listens, which one that is only bound does not,
// nor one that is connected or that somebody has shut down. It may be called from
// anywhere.
// Source: socket(7), SO_ACCEPTCONN.
func Accepts(f *os.File) (on bool, err error) {
	err = onFD(f, func(fd int) error {
		n, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
		on = n != 0
		return os.NewSyscallError("getsockopt", err)
	})
	return on, err
}

// lockWait is how long lockDir waits for others: no longer, since whoever may
// read the directory can lock it.
const lockWait = 2 * time.Second

// lockDir locks a directory against all who do the same, so that of several
// agents that start at once and find the same stale socket one replaces it, and
// none that of another. Whoever may not read the directory goes without.
func lockDir(ctx context.Context, dir string) (unlock func(), err error) {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return func() {}, nil // what comes next says what is wrong
	}
	unlock = func() { _ = unix.Close(fd) }
	late := time.After(lockWait)
	for {
		_, err := retry(func() (int, error) { return 0, unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) })
		if err == nil {
			return unlock, nil
		}
		if err != unix.EWOULDBLOCK { // not on this file system
			return unlock, nil
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-late:
			return unlock, nil
		case <-ctx.Done():
			unlock()
			return nil, ctx.Err()
		}
	}
}

// guard keeps all but root out of a unix socket's file: it is made with the
// mode of the socket.
func guard(_, _ string, c syscall.RawConn) error {
	return control(c, func(fd int) error { return os.NewSyscallError("fchmod", unix.Fchmod(fd, 0)) })
}

// chmodSocket sets the mode of a socket's file, and of nothing that somebody
// may have put in its place.
func chmodSocket(path string, mode fs.FileMode) error {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return &fs.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return fmt.Errorf("%s is not the socket any more", path)
	}
	// Linux 6.6 can, if no filter of system calls is older; else it takes /proc, which
	// not every container has.
	if unix.Fchmodat(fd, "", uint32(mode.Perm()), unix.AT_EMPTY_PATH) == nil {
		return nil
	}
	return os.Chmod(fmt.Sprintf("/proc/self/fd/%d", fd), mode)
}

// soonest is how long the endpoint's socket can be without k's options, and
// nothing be missed.
func (k Keepalive) soonest() time.Duration {
	k = k.normal()
	at := tuneAfter
	if k.Time > 0 {
		at = min(at, k.Time/2)
	}
	if k.UserTimeout > 0 {
		at = min(at, k.UserTimeout/2)
	}
	return at
}
