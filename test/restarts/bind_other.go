//go:build !linux

package main

import (
	"errors"
	"syscall"
)

func lateBind(syscall.RawConn) error { return errors.New("this program is for Linux only") }
