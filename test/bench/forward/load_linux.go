package forward

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// load is the load generator. Its methods are called by one goroutine, locked
// to its thread.
type load struct {
	*poller
	to      func(i int) unix.SockaddrInet4 // where connection i goes
	opened  int
	buf     []byte
	latency []int64 // nanoseconds, of the measurement that runs
	sent    uint64  // bytes, of bulk
}

func newLoad(to func(i int) unix.SockaddrInet4) (*load, error) {
	unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0) // without it timers are 50 us late
	p, err := newPoller()
	if err != nil {
		return nil, err
	}
	return &load{poller: p, to: to, buf: make([]byte, 256<<10)}, nil
}

// source returns the address that connection i comes from: 127.2.0.0/20, so
// that ports don't run out and hashes spread.
func source(i int) unix.SockaddrInet4 {
	return unix.SockaddrInet4{Addr: [4]byte{127, 2, byte(i>>8) & 15, byte(i)}}
}

// open begins a connection.
func (l *load) open() (int, error) {
	fd, err := socket()
	if err != nil {
		return -1, err
	}
	from, to := source(l.opened), l.to(l.opened)
	l.opened++
	err = unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1)
	if err == nil {
		err = unix.Bind(fd, &from)
	}
	if err == nil {
		err = unix.Connect(fd, &to)
	}
	if err == nil || err == unix.EINPROGRESS {
		err = l.add(fd, edges)
	}
	if err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("connection %d: %w", l.opened, err)
	}
	return fd, nil
}

// failed returns why a connection was ended by the other side.
func failed(fd int) error {
	if e, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR); err == nil && e != 0 {
		return unix.Errno(e)
	}
	return errors.New("closed by the other side")
}

// read returns what can be read at once, up to the size of l.buf. The end of
// the stream is an error.
func (l *load) read(fd int) (int, error) {
	n, err := unix.Read(fd, l.buf)
	switch {
	case err == unix.EAGAIN || err == unix.EINTR:
		return 0, nil
	case err != nil:
		return 0, err
	case n == 0:
		return 0, failed(fd)
	}
	return n, nil
}

// connect opens connections, n at a time, and has each echo a byte.
func (l *load) connect(ctx context.Context, n int, d time.Duration, cost func() (costs, error)) (Values, error) {
	began := make(map[int]int64, n)
	defer func() {
		for fd := range began {
			unix.Close(fd)
		}
	}()
	open := func() error {
		fd, err := l.open()
		if err == nil {
			began[fd] = monotonic()
		}
		return err
	}
	for range n {
		if err := open(); err != nil {
			return nil, err
		}
	}
	l.latency = l.latency[:0]
	count := 0
	for w := newWindow(d, cost); ; {
		counts, done, err := w.at(monotonic(), count)
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return nil, err
		}
		if done {
			if err := hanging(began, d/2); err != nil {
				return nil, err
			}
			return w.result(Connect, monotonic(), count, l.latency)
		}
		evs, err := l.wait(20 * time.Millisecond)
		if err != nil {
			return nil, err
		}
		for _, ev := range evs {
			fd := int(ev.Fd)
			start, ours := began[fd]
			if !ours {
				continue
			}
			ended, err := l.echoByte(fd, ev.Events)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", Connect, err)
			}
			if !ended {
				continue
			}
			if counts {
				count++
				l.latency = append(l.latency, monotonic()-start)
			}
			delete(began, fd)
			if err := open(); err != nil {
				return nil, err
			}
		}
	}
}

// hanging is an error if half of the connections, or more, are older than d and
// than what a busy machine explains: a
// rate would be less than the relay can do, for a reason of its own.
func hanging(began map[int]int64, d time.Duration) error {
	old, now := 0, monotonic()
	for _, t := range began {
		if now-t > int64(max(d, 200*time.Millisecond)) {
			old++
		}
	}
	if 2*old < len(began) {
		return nil
	}
	return fmt.Errorf("%s: %d of %d connections hang", Connect, old, len(began))
}

// echoByte takes a connection further and closes it once its byte is back.
func (l *load) echoByte(fd int, events uint32) (ended bool, err error) {
	if events&unix.EPOLLIN != 0 {
		n, err := l.read(fd)
		if n > 0 {
			unix.Close(fd)
		}
		return n > 0, err
	}
	if events&(unix.EPOLLERR|unix.EPOLLHUP|unix.EPOLLRDHUP) != 0 {
		return false, failed(fd)
	}
	if events&unix.EPOLLOUT != 0 {
		_, err = unix.Write(fd, []byte{echoes})
	}
	return false, err
}

// established opens n connections, at most 256 at a time, and returns when each
// has echoed a message.
func (l *load) established(ctx context.Context, n int) (conns []int, err error) {
	defer func() {
		if err != nil {
			closeAll(conns)
		}
	}()
	left := make(map[int]int) // bytes due
	done := 0
	for done < n {
		for len(left) < 256 && len(conns) < n {
			fd, err := l.open()
			if err != nil {
				return conns, err
			}
			left[fd] = -1
			conns = append(conns, fd)
		}
		evs, err := l.wait(100 * time.Millisecond)
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return conns, err
		}
		for _, ev := range evs {
			fd := int(ev.Fd)
			due, ours := left[fd]
			if !ours {
				continue
			}
			if ev.Events&(unix.EPOLLERR|unix.EPOLLHUP|unix.EPOLLRDHUP) != 0 {
				return conns, fmt.Errorf("connection %d of %d: %w", len(conns), n, failed(fd))
			}
			if due < 0 {
				left[fd] = messageSize
				if _, err := unix.Write(fd, message); err != nil {
					return conns, err
				}
				continue
			}
			got, err := l.read(fd)
			if err != nil {
				return conns, err
			}
			if left[fd] -= got; left[fd] <= 0 {
				delete(left, fd)
				done++
			}
		}
	}
	return conns, nil
}

func closeAll(conns []int) {
	for _, fd := range conns {
		unix.Close(fd)
	}
}

const messageSize = 64

var message = func() []byte {
	b := make([]byte, messageSize)
	for i := range b {
		b[i] = echoes
	}
	return b
}()

// trips sends a message on each connection whenever the last one is back.
func (l *load) trips(ctx context.Context, group string, conns []int, d time.Duration, cost func() (costs, error)) (Values, error) {
	sent := make(map[int]*trip, len(conns))
	for _, fd := range conns {
		sent[fd] = &trip{at: monotonic(), due: messageSize}
		if _, err := unix.Write(fd, message); err != nil {
			return nil, err
		}
	}
	l.latency = l.latency[:0]
	stopped, flying := false, len(conns)
	var vs Values
	for w := newWindow(d, cost); flying > 0; {
		counts, done, err := w.at(monotonic(), len(l.latency))
		if err == nil && done && !stopped {
			stopped = true
			vs, err = w.result(group, monotonic(), len(l.latency), l.latency)
		}
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return nil, err
		}
		evs, err := l.wait(20 * time.Millisecond)
		if err != nil {
			return nil, err
		}
		for _, ev := range evs {
			t := sent[int(ev.Fd)]
			if t == nil || ev.Events&unix.EPOLLIN == 0 {
				continue
			}
			n, err := l.read(int(ev.Fd))
			if err != nil {
				return nil, fmt.Errorf("%s: %w", group, err)
			}
			if t.due -= n; t.due > 0 {
				continue
			}
			now := monotonic()
			if counts && !stopped {
				l.latency = append(l.latency, now-t.at)
			}
			if stopped {
				flying--
				continue
			}
			t.at, t.due = now, messageSize
			if _, err := unix.Write(int(ev.Fd), message); err != nil {
				return nil, fmt.Errorf("%s: %w", group, err)
			}
		}
	}
	return vs, nil
}

type trip struct {
	at  int64
	due int
}

// fixed sends rate messages a second, however late answers come, and measures
// each from when it should have been sent.
func (l *load) fixed(ctx context.Context, conns []int, rate int, d time.Duration, cost func() (costs, error)) (Values, error) {
	type line struct {
		at  []int64 // of messages under way, oldest first
		got int     // bytes of the oldest one's answer
	}
	lines := make(map[int]*line, len(conns))
	for _, fd := range conns {
		lines[fd] = new(line)
	}
	l.latency = l.latency[:0]
	step := int64(time.Second) / int64(rate)
	next, flying, turn := monotonic(), 0, 0
	stopped := false
	var vs Values
	w := newWindow(d, cost)
	last := w.end + int64(5*time.Second)
	for !stopped || flying > 0 {
		now := monotonic()
		counts, done, err := w.at(now, 1)
		if err == nil && done && !stopped {
			stopped = true
			vs, err = w.result(Fixed, now, max(len(l.latency), 1), nil)
		}
		if err == nil {
			err = ctx.Err()
		}
		if err == nil && now > last {
			err = fmt.Errorf("%s: %d answers are missing", Fixed, flying)
		}
		if err != nil {
			return nil, err
		}
		for ; !stopped && next <= monotonic(); next += step {
			fd := conns[turn%len(conns)]
			turn++
			if _, err := unix.Write(fd, message); err != nil {
				return nil, fmt.Errorf("%s: %w", Fixed, err)
			}
			lines[fd].at = append(lines[fd].at, next)
			flying++
		}
		wait := time.Duration(next - monotonic())
		if stopped {
			wait = 20 * time.Millisecond
		}
		evs, err := l.wait(wait)
		if err != nil {
			return nil, err
		}
		for _, ev := range evs {
			c := lines[int(ev.Fd)]
			if c == nil || ev.Events&unix.EPOLLIN == 0 {
				continue
			}
			n, err := l.read(int(ev.Fd))
			if err != nil {
				return nil, fmt.Errorf("%s: %w", Fixed, err)
			}
			now := monotonic()
			for c.got += n; c.got >= messageSize && len(c.at) > 0; c.got -= messageSize {
				if counts && c.at[0] >= w.begin { // also those that are late
					l.latency = append(l.latency, now-c.at[0])
				}
				c.at = append(c.at[:0], c.at[1:]...)
				flying--
			}
		}
	}
	if len(l.latency) == 0 {
		return nil, fmt.Errorf("%s: nothing came back", Fixed)
	}
	for k, v := range figures(Fixed, 1, 1, l.latency, costs{}, costs{}) {
		if k == Fixed+string(P50) || k == Fixed+string(P99) {
			vs[k] = v
		}
	}
	return vs, nil
}
