package forwarder

import (
	"fmt"
	"net"
	"os"
	"syscall"
)

// File returns one more descriptor of the listening socket, for a process that is to
// accept from it too, and whether closing the socket removes its file. It is nil
// where there is no socket of the system's own. It may be called from anywhere, and
// the caller closes it.
func (l *Listener) File() (f *os.File, removes bool, err error) {
	c, ok := l.socket().(syscall.Conn)
	if !ok {
		return nil, false, nil
	}
	f, err = duplicate(c)
	l.mu.Lock()
	defer l.mu.Unlock()
	return f, RemovesFile(l.ln), err
}

// KeepFile has the file of a unix socket stay when the socket is closed: another
// process listens there. It may be called from anywhere.
func (l *Listener) KeepFile() {
	l.mu.Lock()
	defer l.mu.Unlock()
	KeepFile(l.ln, true)
}

// RemovesFile reports whether Close removes the file of ln, which may be nil.
func RemovesFile(ln net.Listener) bool {
	u, ok := ln.(*unixListener)
	return ok && !u.kept.Load()
}

// KeepFile says whether Close of what PlainListen, Listen or TakenListener has returned
// leaves the file of a unix socket where it is. It has no effect on others.
func KeepFile(ln net.Listener, keep bool) {
	if u, ok := ln.(*unixListener); ok {
		u.kept.Store(keep)
	}
}

// SocketFile returns one more descriptor of a listening socket.
func SocketFile(ln net.Listener) (*os.File, error) {
	c, ok := ln.(syscall.Conn)
	if !ok {
		return nil, fmt.Errorf("a %T is no socket of the system's own", ln)
	}
	return duplicate(c)
}

// TakenListener returns the listener of a socket that another process has listened
// at, of which f stays the caller's. With removes it removes the file of a unix
// socket in the end, as that process would have.
func TakenListener(f *os.File, removes bool) (net.Listener, error) {
	ln, err := net.FileListener(f)
	u, ok := ln.(*net.UnixListener)
	if err != nil || !ok {
		return ln, err
	}
	u.SetUnlinkOnClose(false)
	if !removes {
		return u, nil
	}
	path := u.Addr().String()
	file, _ := os.Lstat(path) // nothing to be removed if it is gone already
	return &unixListener{UnixListener: u, file: file, path: path}, nil
}
