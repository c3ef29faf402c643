//go:build !linux

package healthsvc

import (
	"errors"
	"syscall"
)

func (t Transport) control(_, _ string, _ syscall.RawConn) error {
	if t.Mark != 0 {
		return errors.New("a socket mark can be set on Linux only")
	}
	return nil
}
