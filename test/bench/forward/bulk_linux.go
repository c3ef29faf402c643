package forward

import (
	"context"
	"encoding/binary"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// bulk sends on n connections for a time, and then waits until each has told how
// much came. during is called while bytes move.
func (l *load) bulk(ctx context.Context, group string, n int, d time.Duration, cost func() (costs, error), during func()) (Values, error) {
	for i := range l.buf {
		l.buf[i] = counts
	}
	sent := make(map[int]uint64, n)
	defer func() {
		for fd := range sent {
			unix.Close(fd)
		}
	}()
	before, err := cost()
	if err != nil {
		return nil, err
	}
	began := monotonic()
	for range n {
		fd, err := l.open()
		if err != nil {
			return nil, err
		}
		sent[fd] = 0
	}
	look, end := began+int64(d/2), began+int64(d)
	ready := make(map[int]bool, n) // to be written to
	stopped, begun := false, 0     // connections that have sent
	total := uint64(0)
	for len(sent) > 0 {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		now := monotonic()
		if during != nil && now > look {
			during()
			during = nil
		}
		if now >= end && !stopped && begun == n {
			stopped = true
			for fd := range sent {
				if err := unix.Shutdown(fd, unix.SHUT_WR); err != nil {
					return nil, fmt.Errorf("%s: %w", group, err)
				}
			}
		}
		if now > end+int64(20*time.Second) {
			return nil, fmt.Errorf("%s: no answer after the end of the stream: half-close is not passed on", group)
		}
		for fd := range ready {
			if stopped {
				break
			}
			w, err := unix.Write(fd, l.buf)
			switch {
			case err == unix.EAGAIN:
				delete(ready, fd)
			case err != nil:
				return nil, fmt.Errorf("%s: %w", group, err)
			default:
				if sent[fd] == 0 {
					begun++
				}
				sent[fd] += uint64(w)
			}
		}
		pause := 20 * time.Millisecond
		if len(ready) > 0 && !stopped {
			pause = 0
		}
		evs, err := l.wait(pause)
		if err != nil {
			return nil, err
		}
		for _, ev := range evs {
			fd := int(ev.Fd)
			s, ours := sent[fd]
			if !ours {
				continue
			}
			if ev.Events&unix.EPOLLIN != 0 {
				var b [8]byte
				if k, err := unix.Read(fd, b[:]); err != nil || k != len(b) || !stopped {
					return nil, fmt.Errorf("%s: the answer has %d bytes before the end of the stream or none: %v", group, k, err)
				}
				if came := binary.BigEndian.Uint64(b[:]); came != s {
					return nil, fmt.Errorf("%s: %d of %d bytes came", group, came, s)
				}
				total += s
				unix.Close(fd)
				delete(sent, fd)
				delete(ready, fd)
				continue
			}
			if ev.Events&(unix.EPOLLERR|unix.EPOLLHUP|unix.EPOLLRDHUP) != 0 {
				return nil, fmt.Errorf("%s: %w", group, failed(fd))
			}
			if ev.Events&unix.EPOLLOUT != 0 {
				ready[fd] = true
			}
		}
	}
	l.sent += total
	took := time.Duration(monotonic() - began)
	after, err := cost()
	if err != nil {
		return nil, err
	}
	return bulkFigures(group, took, total, before, after), nil
}
