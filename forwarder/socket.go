package forwarder

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"syscall"
	"time"

	"gatehouse.internal/lbcore"
)

// How a peer that is gone without a word is found out, on both legs: the
// application's own keepalive ends at the forwarder.
const (
	keepaliveIdle     = 2 * time.Minute
	keepaliveInterval = 15 * time.Second
	// userTimeout is how long probes, or sent data, may stay without an answer
	// (Linux's TCP_USER_TIMEOUT). It also ends a connection whose receiver has
	// kept its window shut for so long, and so is not shorter.
	userTimeout = 5 * time.Minute
)

// PlainListen is the Listen that opens a socket of its own. A TCP socket on an
// IPv4 address takes IPv4 only; one on [::] takes both. A unix socket's file
// that was left behind is removed first, if it is a socket and nobody answers
// there; Close removes it again.
func PlainListen(ctx context.Context, addr lbcore.Addr) (net.Listener, error) {
	lc := net.ListenConfig{KeepAlive: -1} // tune does that
	lc.SetMultipathTCP(false)
	network := addr.Network()
	switch {
	case network == "unix":
		if err := removeStale(ctx, addr.Path()); err != nil {
			return nil, err
		}
	case addr.AddrPort().Addr().Is4():
		network = "tcp4" // package net would take 0.0.0.0 for [::]
	}
	return lc.Listen(ctx, network, addr.Dial())
}

// removeStale removes the socket at path if nobody listens there.
func removeStale(ctx context.Context, path string) error {
	fi, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case fi.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("%s exists and is not a socket; remove it or choose another path", path)
	}
	conn, err := dial(ctx, lbcore.UnixAddr(path), time.Second)
	switch {
	case err == nil:
		closeConn(conn)
		return fmt.Errorf("%s: %w: another process answers there", path, syscall.EADDRINUSE)
	case errors.Is(err, syscall.ECONNREFUSED):
		return os.Remove(path)
	}
	return fmt.Errorf("can't tell whether %s is in use: %w", path, err)
}

// dial connects to an endpoint.
func dial(ctx context.Context, a lbcore.Addr, timeout time.Duration) (net.Conn, error) {
	d := net.Dialer{Timeout: timeout, KeepAlive: -1, FallbackDelay: -1}
	d.SetMultipathTCP(false)
	return connect(ctx, &d, a)
}

// connect dials by DialContext, although that takes text: DialTCP with the
// zero AddrPort binds a port before it connects, and a port that is bound so
// can't be shared by connections to different destinations.
func connect(ctx context.Context, d *net.Dialer, a lbcore.Addr) (net.Conn, error) {
	return d.DialContext(ctx, a.Network(), a.Dial())
}
