package main

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// lateBind has the port chosen when the connection is made, so that connections to
// different places can share it.
func lateBind(c syscall.RawConn) (err error) {
	if cerr := c.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1)
	}); cerr != nil {
		return cerr
	}
	return err
}
