//go:build !linux

package healthsvc

import (
	"context"
	"errors"
	"syscall"

	"gatehouse.internal/lbcore"
)

func (t Transport) connect(ctx context.Context, addr lbcore.Addr) error { return t.dialOnly(ctx, addr) }

func (t Transport) control(_, _ string, _ syscall.RawConn) error {
	if t.Mark != 0 {
		return errors.New("a socket mark can be set on Linux only")
	}
	return nil
}
