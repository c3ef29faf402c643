//go:build !linux

package control

import (
	"context"
	"errors"
)

// Take returns an error.
func Take(context.Context, Spec) (Values, error) {
	return nil, errors.New("clients of a control plane are measured on Linux only")
}
