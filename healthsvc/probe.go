package healthsvc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"

	"gatehouse.internal/internal/tlsconf"
)

// reason says in one line what failed, without the address, which whoever shows
// it has already. It makes a timeoutError of all that comes of ctx's end.
func reason(ctx context.Context, doing string, err error) error {
	if ctx.Err() != nil {
		return timeoutError(doing)
	}
	if isRefusal(err) {
		err = tlsconf.Explain(err)
	}
	// Errno before Timeout, which holds for EAGAIN too: that is how connect
	// says that a unix socket's backlog is full.
	if e, ok := errors.AsType[syscall.Errno](err); ok && e != syscall.ETIMEDOUT {
		return fmt.Errorf("%s: %w", doing, e)
	}
	if e, ok := errors.AsType[net.Error](err); ok && e.Timeout() {
		return timeoutError(doing)
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%s: connection closed by the peer", doing)
	}
	return fmt.Errorf("%s: %w", doing, err)
}

// timeoutError is context.DeadlineExceeded in words for people; it holds what
// was being done.
type timeoutError string

func (e timeoutError) Error() string { return string(e) + ": timed out" }

func (e timeoutError) Is(target error) bool { return target == context.DeadlineExceeded }
