//go:build !linux

package takeover

import (
	"context"
	"errors"
	"net"
)

var errLinux = errors.New("a takeover is for Linux only")

func peer(*net.UnixConn) (int, error) { return 0, errLinux }

func connect(context.Context, string) (*net.UnixConn, error) { return nil, errLinux }

func broken(error) bool { return false }

func (l *link) send(context.Context, []byte, []Socket) error { return errLinux }

func (l *link) more() error { return errLinux }
