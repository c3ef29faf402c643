//go:build !linux

package forwarder

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"syscall"
)

// tune sets the keepalive of a TCP connection. The number of probes stands in
// for the user timeout.
func tune(c net.Conn, k Keepalive) {
	tc, ok := c.(*net.TCPConn)
	if !ok {
		return
	}
	k = k.normal()
	probes := k.Probes
	if probes == 0 && k.UserTimeout > k.Time {
		probes = int((k.UserTimeout - k.Time) / k.Interval)
	}
	_ = tc.SetKeepAliveConfig(net.KeepAliveConfig{Enable: k.Time > 0, Idle: k.Time, Interval: k.Interval, Count: probes})
}

func (d *Dial) control(_, _ string, _ syscall.RawConn) error {
	if d.Mark != 0 {
		return CheckMark()
	}
	return nil
}

// CheckMark returns an error: marks are Linux's.
func CheckMark() error { return errors.New("a socket mark can be set on Linux only") }

func arrange(_ syscall.Conn, s, was *Settings) error {
	if s.Socket.Backlog != was.Socket.Backlog {
		return errors.New("a backlog can be set on Linux only")
	}
	return nil
}

func duplicate(syscall.Conn) (*os.File, error) { return nil, errors.ErrUnsupported }

// Accepts says that all sockets listen: only Linux is asked.
func Accepts(*os.File) (bool, error) { return true, nil }

func lockDir(context.Context, string) (unlock func(), err error) { return func() {}, nil }

func guard(_, _ string, _ syscall.RawConn) error { return nil }

func chmodSocket(path string, mode fs.FileMode) error { return os.Chmod(path, mode) }
