package forward

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"time"

	"golang.org/x/sys/unix"
)

// The first byte of a connection says what the backend does with it.
const (
	echoes = 'E' // it sends back what comes
	counts = 'B' // it reads to the end of the stream, then sends how many bytes came
)

// backend serves all addresses of loopback by one thread.
type backend struct {
	*poller
	listener int
	conns    map[int]*served
	buf      []byte
}

type served struct {
	kind byte
	n    uint64
	held []byte // to be sent
}

// Backend writes its port and a newline to out and serves until ctx ends. It
// listens on all addresses, of the loopback interface only.
func Backend(ctx context.Context, out io.Writer) error {
	p, err := newPoller()
	if err != nil {
		return err
	}
	defer p.close()
	b := &backend{poller: p, conns: make(map[int]*served), buf: make([]byte, 256<<10)}
	if b.listener, err = socket(); err != nil {
		return err
	}
	defer unix.Close(b.listener)
	if err := unix.BindToDevice(b.listener, "lo"); err != nil {
		return fmt.Errorf("backend: binding to lo: %w", err)
	}
	if err := unix.Bind(b.listener, &unix.SockaddrInet4{}); err != nil {
		return fmt.Errorf("backend: bind: %w", err)
	}
	if err := unix.Listen(b.listener, 4096); err != nil {
		return fmt.Errorf("backend: listen: %w", err)
	}
	if err := b.add(b.listener, 0); err != nil {
		return fmt.Errorf("backend: epoll: %w", err)
	}
	sa, err := unix.Getsockname(b.listener)
	if err != nil {
		return fmt.Errorf("backend: %w", err)
	}
	if _, err := fmt.Fprintln(out, sa.(*unix.SockaddrInet4).Port); err != nil {
		return fmt.Errorf("backend: %w", err)
	}
	for ctx.Err() == nil {
		evs, err := b.wait(100 * time.Millisecond)
		if err != nil {
			return fmt.Errorf("backend: epoll: %w", err)
		}
		for _, ev := range evs {
			if int(ev.Fd) == b.listener {
				if err := b.accept(); err != nil {
					return err
				}
			} else if c := b.conns[int(ev.Fd)]; c != nil && !b.serve(int(ev.Fd), c, ev.Events&(unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR) != 0) {
				delete(b.conns, int(ev.Fd))
				unix.Close(int(ev.Fd))
			}
		}
	}
	return nil
}

func (b *backend) accept() error {
	for range 16 {
		fd, _, err := unix.Accept4(b.listener, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
		switch err {
		case nil:
		case unix.EAGAIN, unix.ECONNABORTED, unix.EINTR:
			return nil
		default:
			return fmt.Errorf("backend: accept: %w", err)
		}
		b.conns[fd] = new(served)
		if err := b.add(fd, edges); err != nil {
			return fmt.Errorf("backend: epoll: %w", err)
		}
	}
	return nil
}

// serve does what can be done and reports whether the connection goes on. ended
// says that the end of the stream is there.
func (b *backend) serve(fd int, c *served, ended bool) bool {
	for {
		for len(c.held) > 0 {
			n, err := unix.Write(fd, c.held)
			if err == unix.EAGAIN {
				return true
			}
			if err != nil {
				return false
			}
			c.held = c.held[n:]
		}
		n, err := unix.Read(fd, b.buf)
		switch {
		case err == unix.EAGAIN:
			return true
		case err == unix.EINTR:
			continue
		case err != nil:
			return false
		case n == 0:
			if c.kind == counts {
				unix.Write(fd, binary.BigEndian.AppendUint64(nil, c.n)) // who misses it complains
			}
			return false
		}
		if c.kind == 0 {
			c.kind = b.buf[0]
		}
		if c.n += uint64(n); c.kind == counts {
			continue
		}
		w, err := unix.Write(fd, b.buf[:n])
		if err != nil && err != unix.EAGAIN {
			return false
		}
		if w = max(w, 0); w < n {
			c.held = bytes.Clone(b.buf[w:n])
			continue
		}
		if n < len(b.buf) && !ended {
			return true // more would be another event
		}
	}
}
