package healthsvc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"time"

	"gatehouse.internal/lbcore"
)

// dial makes the one connection of a probe. Connections are never reused: an
// established one would hide that no new one can be made.
func dial(ctx context.Context, addr lbcore.Addr) (net.Conn, error) {
	// Not DialTCP: with the zero AddrPort it binds a port before it connects,
	// which then can't be shared by connections to different destinations.
	d := net.Dialer{KeepAlive: -1}
	conn, err := d.DialContext(ctx, addr.Network(), addr.Dial())
	if err != nil {
		return nil, reason(ctx, "connect", err)
	}
	c, tcp := conn.(*net.TCPConn)
	if !tcp {
		return conn, nil
	}
	// Close resets the connection rather than end it in order. Else each probe
	// would leave a local port in TIME_WAIT for a minute, and thousands of
	// targets tens of thousands of ports. By then all that the probe wants to
	// send and read is through.
	if err := c.SetLinger(0); err != nil {
		c.Close()
		return nil, reason(ctx, "connect", err)
	}
	return c, nil
}

// interrupt ends reads and writes of c when ctx ends, until stop is called.
func interrupt(ctx context.Context, c net.Conn) (stop func() bool) {
	return context.AfterFunc(ctx, func() { c.SetDeadline(time.Unix(1, 0)) })
}

// reason says in one line what failed, without the address, which whoever shows
// it has already. It makes a timeoutError of all that comes of ctx's end.
func reason(ctx context.Context, doing string, err error) error {
	if ctx.Err() != nil {
		return timeoutError(doing)
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
