//go:build !linux

package forward

import (
	"context"
	"errors"
	"io"
)

var errLinux = errors.New("relays are measured on Linux only")

// Take returns an error.
func Take(context.Context, Spec) (Values, error) { return nil, errLinux }

// Backend returns an error.
func Backend(context.Context, io.Writer) error { return errLinux }

// Burn returns an error.
func Burn(context.Context, io.Reader) error { return errLinux }
