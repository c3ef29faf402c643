package forwarder

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"net"
	"net/netip"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"gatehouse.internal/lbcore"
)

// The defaults of Keepalive.
const (
	DefaultKeepaliveTime     = 2 * time.Minute
	DefaultKeepaliveInterval = 15 * time.Second
	DefaultUserTimeout       = 5 * time.Minute
)

// Keepalive is how a peer that is gone without a word is found out, on one leg:
// the application's own probes end at the forwarder. The zero value is the
// default. The system counts in whole seconds, up to which it is rounded.
// Source: envoy.config.core.v3.TcpKeepalive.
type Keepalive struct {
	// Time is how long a connection is silent before it is probed. 0 means
	// DefaultKeepaliveTime, below 0 never.
	Time time.Duration
	// Interval lies between probes. 0 means DefaultKeepaliveInterval.
	Interval time.Duration
	// Probes without an answer end the connection where UserTimeout is below 0;
	// with one Linux does not count them. 0 means the system's number, 9 on Linux.
	Probes int
	// UserTimeout is how long probes, or sent data, may stay without an answer
	// (Linux's TCP_USER_TIMEOUT). It also ends a connection whose receiver has
	// kept its window shut for so long. 0 means DefaultUserTimeout, below 0 as
	// long as the system likes.
	UserTimeout time.Duration
}

// normal returns k with its defaults.
func (k Keepalive) normal() Keepalive {
	k.Time = cmp.Or(k.Time, DefaultKeepaliveTime)
	k.Interval = cmp.Or(k.Interval, DefaultKeepaliveInterval)
	k.UserTimeout = cmp.Or(k.UserTimeout, DefaultUserTimeout)
	return k
}

func (k Keepalive) validate() error {
	const most = 32767 * time.Second // Linux's
	if k.Time > most || k.Interval < 0 || k.Interval > most || k.Probes < 0 || k.Probes > 127 || k.UserTimeout > math.MaxInt32*time.Millisecond {
		return errors.New("keepalive: want a time and an interval of at most 32767s and at most 127 probes")
	}
	return nil
}

// seconds rounds up.
func seconds(d time.Duration) int { return int((d + time.Second - 1) / time.Second) }

// Socket is how a listening socket is set up. The zero value is what the system
// does by itself.
type Socket struct {
	// Backlog is how many connections may wait to be accepted. 0 means as many
	// as the system allows, net.core.somaxconn on Linux, 4096 by default; that
	// bounds it always.
	// Source: Listener.tcp_backlog_size.
	Backlog int
	// Mode is the permissions of a unix socket's file; who may write to it may
	// connect. 0 means what the umask leaves of 0777. On Linux nobody but root
	// can connect before they are set.
	Mode fs.FileMode
	// User and Group, names or numbers, own a unix socket's file. Empty means
	// those of the agent. It takes CAP_CHOWN to give it to somebody else.
	User, Group string
}

func (s Socket) validate() error {
	if s.Backlog < 0 || s.Mode&^fs.ModePerm != 0 {
		return errors.New("socket: want a backlog of at least 0 and a mode up to 0777")
	}
	return nil
}

// PlainListen is the Listen that opens a socket of its own. A TCP socket on an
// IPv4 address takes IPv4 only; one on [::] takes both. A unix socket's file
// that was left behind is removed first, if it is a socket and nobody answers
// there; Close removes it again, but not what somebody has put in its place.
func PlainListen(ctx context.Context, addr lbcore.Addr) (net.Listener, error) {
	return Socket{}.listen(ctx, addr)
}

// Listen is PlainListen with all of s but its Backlog in force.
func (s Socket) Listen(ctx context.Context, addr lbcore.Addr) (net.Listener, error) {
	ln, err := s.listen(ctx, addr)
	if err != nil || addr.Path() == "" {
		return ln, err
	}
	if err := s.own(addr.Path()); err != nil {
		return nil, errors.Join(err, ln.Close())
	}
	return ln, nil
}

// listen is PlainListen, and keeps others out of a unix socket's file until own
// has given it its mode.
func (s Socket) listen(ctx context.Context, addr lbcore.Addr) (net.Listener, error) {
	lc := net.ListenConfig{KeepAlive: -1} // tune does that
	lc.SetMultipathTCP(false)
	network := addr.Network()
	switch {
	case network == "unix":
		unlock, err := lockDir(ctx, filepath.Dir(addr.Path()))
		if err != nil {
			return nil, err
		}
		defer unlock()
		if err := removeStale(ctx, addr.Path()); err != nil {
			return nil, err
		}
		if s.Mode != 0 {
			lc.Control = guard
		}
	case addr.AddrPort().Addr().Is4():
		network = "tcp4" // package net would take 0.0.0.0 for [::]
	}
	ln, err := lc.Listen(ctx, network, addr.Dial())
	if u, ok := ln.(*net.UnixListener); ok {
		u.SetUnlinkOnClose(false)
		file, _ := os.Lstat(addr.Path()) // nothing to be removed if it is gone already
		return &unixListener{UnixListener: u, file: file, path: addr.Path()}, nil
	}
	return ln, err
}

// unixListener removes its socket's file in the end. Package net would remove
// whatever is at the path: once somebody has removed the file another process may
// listen there.
type unixListener struct {
	*net.UnixListener
	file   fs.FileInfo
	path   string
	remove sync.Once
	kept   atomic.Bool // the file is another process' by now
}

// Close implements net.Listener. It looks at the file while the socket is open:
// until then no other file gets its number.
func (l *unixListener) Close() error {
	l.remove.Do(func() {
		if now, err := os.Lstat(l.path); err == nil && !l.kept.Load() && os.SameFile(l.file, now) {
			_ = os.Remove(l.path)
		}
	})
	return l.UnixListener.Close()
}

// CheckOwner returns why User or Group is not known on this host, or nil if they
// are. Whether this process may give files to them shows only when it does.
func (s Socket) CheckOwner() error {
	_, _, err := s.owner()
	return err
}

// owner returns the numbers of User and Group, -1 for none.
func (s Socket) owner() (uid, gid int, err error) {
	uid, gid = -1, -1
	if s.User != "" {
		if uid, err = id(s.User, func(name string) (string, error) {
			u, err := user.Lookup(name)
			if err != nil {
				return "", err
			}
			return u.Uid, nil
		}); err != nil {
			return -1, -1, err
		}
	}
	if s.Group != "" {
		if gid, err = id(s.Group, func(name string) (string, error) {
			g, err := user.LookupGroup(name)
			if err != nil {
				return "", err
			}
			return g.Gid, nil
		}); err != nil {
			return -1, -1, err
		}
	}
	return uid, gid, nil
}

// Own gives the file of a unix socket at addr, at which somebody listens already, its owner
// and its mode, and does nothing at other addresses. It may be called from anywhere.
func (s Socket) Own(addr lbcore.Addr) error {
	if addr.Path() == "" {
		return nil
	}
	return s.own(addr.Path())
}

// own gives the file of a unix socket its owner and then its mode.
func (s Socket) own(path string) error {
	uid, gid, err := s.owner()
	if err != nil {
		return fmt.Errorf("owner of the socket's file: %w", err)
	}
	if uid >= 0 || gid >= 0 {
		if err := os.Lchown(path, uid, gid); err != nil {
			return fmt.Errorf("user and group of the socket's file: %w", err)
		}
	}
	if s.Mode != 0 {
		if err := chmodSocket(path, s.Mode); err != nil {
			return fmt.Errorf("mode of the socket's file: %w", err)
		}
	}
	return nil
}

// id returns the number of a user or group.
func id(name string, lookup func(string) (string, error)) (int, error) {
	if n, err := strconv.ParseUint(name, 10, 31); err == nil {
		return int(n), nil
	}
	number, err := lookup(name)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(number)
}

// arrange puts s in force at the listening socket, which is at c, in place of
// was.
func (l *Listener) arrange(c any, s, was *Settings) error {
	if c, ok := c.(syscall.Conn); ok {
		if err := arrange(c, s, was); err != nil {
			return err
		}
	}
	if path := l.cfg.Addr.Path(); path != "" && s.Socket != was.Socket {
		return s.Socket.own(path)
	}
	return nil
}

// share returns the TCP socket of l, which may be nil, once more; nil if that can't
// be done.
func (l *Listener) share() net.Listener {
	if l == nil || l.cfg.Addr.Path() != "" {
		return nil
	}
	c, ok := l.socket().(syscall.Conn)
	if !ok {
		return nil
	}
	f, err := duplicate(c)
	if err != nil {
		return nil
	}
	defer f.Close()
	ln, err := net.FileListener(f)
	if err != nil {
		return nil
	}
	return ln
}

// socket returns what arrange takes, or nil if no socket is open.
func (l *Listener) socket() any {
	if l.cfg.NoBind {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-l.stopped:
		return nil
	default:
	}
	if l.port != nil {
		return l.port
	}
	if l.ln != nil {
		return l.ln
	}
	return nil
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
	conn, err := dial(ctx, lbcore.UnixAddr(path), &Dial{Timeout: time.Second})
	switch {
	case err == nil:
		closeConn(conn)
		return fmt.Errorf("%s: %w: another process answers there", path, syscall.EADDRINUSE)
	case errors.Is(err, syscall.ECONNREFUSED):
		return os.Remove(path)
	}
	return fmt.Errorf("can't tell whether %s is in use: %w", path, err)
}

// dial connects to one address of an endpoint.
func dial(ctx context.Context, a lbcore.Addr, want *Dial) (net.Conn, error) {
	d := net.Dialer{Timeout: want.timeout(), KeepAlive: -1, FallbackDelay: -1}
	d.SetMultipathTCP(false)
	if src := want.source(a); src.IsValid() {
		d.LocalAddr = &net.TCPAddr{IP: src.AsSlice()}
	}
	if d.LocalAddr != nil || want.Mark != 0 {
		d.Control = want.control
	}
	conn, err := connect(ctx, &d, a)
	if errors.Is(err, syscall.EAGAIN) {
		return insist(ctx, &d, a)
	}
	return conn, err
}

// The pauses of a dial that a unix socket refuses because its queue is full (EAGAIN),
// which TCP lets whoever dials wait for. It says nothing against the endpoint, which is
// busy for a moment, and nothing tells when there is room; so it is asked again until
// the connect timeout is over, and only then it has failed. Source: HAProxy takes it for
// a lack of resources and tries again.
const (
	minPause = time.Millisecond
	maxPause = 64 * time.Millisecond
)

// nextPause returns the pause after one of was, or the first one after 0.
func nextPause(was time.Duration) time.Duration { return min(max(2*was, minPause), maxPause) }

// insist goes on with a dial that has found a queue full.
func insist(ctx context.Context, d *net.Dialer, a lbcore.Addr) (net.Conn, error) {
	late := time.After(d.Timeout)
	for pause := nextPause(0); ; pause = nextPause(pause) {
		select {
		case <-time.After(pause):
		case <-late:
			return nil, os.NewSyscallError("connect", syscall.ETIMEDOUT)
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		if conn, err := connect(ctx, d, a); !errors.Is(err, syscall.EAGAIN) {
			return conn, err
		}
	}
}

// source returns the local address of dials to a, or the zero value.
func (d *Dial) source(a lbcore.Addr) netip.Addr {
	switch ip := a.AddrPort().Addr(); {
	case ip.Is4():
		return d.Source4
	case ip.Is6():
		return d.Source6
	}
	return netip.Addr{}
}

// connect dials by DialContext, although that takes text: DialTCP with the
// zero AddrPort binds a port before it connects, and a port that is bound so
// can't be shared by connections to different destinations.
func connect(ctx context.Context, d *net.Dialer, a lbcore.Addr) (net.Conn, error) {
	return d.DialContext(ctx, a.Network(), a.Dial())
}
