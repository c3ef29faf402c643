package healthsvc

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// control makes the options of a probe's socket that is not bound yet. Its port is
// chosen when it connects, and can be that of connections to other destinations.
func (t Transport) control(_, _ string, c syscall.RawConn) error {
	var err error
	cerr := c.Control(func(fd uintptr) {
		if t.Source4.IsValid() || t.Source6.IsValid() {
			_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1) // fails on a unix socket
		}
		if t.Mark != 0 {
			err = os.NewSyscallError("setsockopt", unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, int(t.Mark)))
		}
	})
	if cerr != nil {
		return cerr
	}
	return err
}
