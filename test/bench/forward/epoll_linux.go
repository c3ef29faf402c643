package forward

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// poller is an epoll set. Its descriptors are edge-triggered both ways.
type poller struct {
	ep   int
	evs  []unix.EpollEvent
	wake []unix.PollFd
}

func newPoller() (*poller, error) {
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("epoll: %w", err)
	}
	return &poller{ep, make([]unix.EpollEvent, 256), []unix.PollFd{{Fd: int32(ep), Events: unix.POLLIN}}}, nil
}

func (p *poller) close() { unix.Close(p.ep) }

// add watches fd. more are further flags.
func (p *poller) add(fd int, more uint32) error {
	ev := unix.EpollEvent{Events: unix.EPOLLIN | more, Fd: int32(fd)}
	return unix.EpollCtl(p.ep, unix.EPOLL_CTL_ADD, fd, &ev)
}

const edges = unix.EPOLLOUT | unix.EPOLLRDHUP | unix.EPOLLET

// wait returns events, or none after d, which is exact to some microseconds; at
// once if d is not above 0.
func (p *poller) wait(d time.Duration) ([]unix.EpollEvent, error) {
	if n, err := unix.EpollWait(p.ep, p.evs, 0); n > 0 || err != nil && err != unix.EINTR || d <= 0 {
		return p.evs[:max(n, 0)], notEINTR(err)
	}
	ts := unix.NsecToTimespec(int64(d))
	if n, err := unix.Ppoll(p.wake, &ts, nil); n <= 0 {
		return nil, notEINTR(err)
	}
	n, err := unix.EpollWait(p.ep, p.evs, 0)
	return p.evs[:max(n, 0)], notEINTR(err)
}

func notEINTR(err error) error {
	if err == unix.EINTR {
		return nil
	}
	return err
}

// monotonic returns nanoseconds.
func monotonic() int64 {
	var ts unix.Timespec
	unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) // no error for this clock
	return ts.Nano()
}

// socket returns one that doesn't block or delay.
func socket() (int, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("socket: %w", err)
	}
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1); err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("TCP_NODELAY: %w", err)
	}
	return fd, nil
}
