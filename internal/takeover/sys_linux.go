package takeover

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// peer returns who is at the other end, if it may take over.
func peer(conn *net.UnixConn) (pid int, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	var cred *unix.Ucred
	if cerr := raw.Control(func(fd uintptr) { cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); cerr != nil {
		return 0, cerr
	}
	if err != nil {
		return 0, os.NewSyscallError("getsockopt", err)
	}
	if own := os.Geteuid(); cred.Uid != 0 && int(cred.Uid) != own {
		return 0, fmt.Errorf("user %d may not take over from an agent of user %d", cred.Uid, own)
	}
	return int(cred.Pid), nil
}

// connect connects to a path.
func connect(ctx context.Context, path string) (*net.UnixConn, error) {
	bounded, cancel := context.WithTimeout(ctx, stepWithin)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(bounded, "unix", path)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return nil, fmt.Errorf("%w: %w", ErrNobody, err)
	case err != nil:
		return nil, err
	}
	return conn.(*net.UnixConn), nil
}

// broken reports whether an error says that the other end is closed.
func broken(err error) bool {
	return errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET)
}

// send sends a line with sockets.
func (l *link) send(ctx context.Context, line []byte, sockets []Socket) error {
	defer l.bound(ctx, stepWithin)()
	var fds []int
	var keep []syscall.RawConn
	for _, s := range sockets {
		raw, err := s.File.SyscallConn() // Fd would have it block, for everybody who has it
		if err != nil {
			return err
		}
		keep = append(keep, raw)
	}
	var oob []byte
	// The descriptors must stay open until they are sent, so the calls are nested.
	var hold func(i int) error
	hold = func(i int) (err error) {
		if i < len(keep) {
			if cerr := keep[i].Control(func(fd uintptr) {
				fds = append(fds, int(fd))
				err = hold(i + 1)
			}); cerr != nil {
				return cerr
			}
			return err
		}
		if len(fds) > 0 {
			oob = unix.UnixRights(fds...)
		}
		n, _, err := l.conn.WriteMsgUnix(line, oob, nil)
		if err == nil && n < len(line) {
			_, err = l.conn.Write(line[n:])
		}
		return err
	}
	if err := hold(0); err != nil {
		return because(ctx, err)
	}
	return nil
}

// more reads what has come. A giver takes no descriptors: the kernel closes them.
func (l *link) more() error {
	buf := make([]byte, 16<<10)
	var oob []byte
	if l.takes {
		oob = make([]byte, unix.CmsgSpace(4*maxBatch))
	}
	n, oobn, flags, _, err := l.conn.ReadMsgUnix(buf, oob)
	if err == nil {
		err = l.take(oob[:oobn])
	}
	switch {
	case err != nil:
		return err
	case l.takes && flags&unix.MSG_CTRUNC != 0:
		return errors.New("descriptors were lost on the way, for want of free ones")
	case n == 0:
		return io.EOF
	}
	l.buf = append(l.buf, buf[:n]...)
	return nil
}

// take notes the descriptors that came.
func (l *link) take(oob []byte) error {
	if len(oob) == 0 {
		return nil
	}
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return os.NewSyscallError("recvmsg", err)
	}
	for _, m := range msgs {
		fds, err := unix.ParseUnixRights(&m)
		if err != nil {
			continue // credentials, or what else there may be
		}
		for _, fd := range fds {
			l.files = append(l.files, os.NewFile(uintptr(fd), "taken"))
		}
	}
	if len(l.files) > 2*maxBatch {
		return errors.New("more descriptors than are described")
	}
	return nil
}
