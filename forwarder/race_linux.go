package forwarder

import (
	"errors"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"gatehouse.internal/lbcore"
)

// race is the dial of an endpoint with several addresses in an event loop, or of one
// whose queue is full.
type race struct {
	addrs []lbcore.Addr // not tried yet
	tries []try         // in progress, the oldest first
	next  int64         // when the next one begins, in ms of the loop's clock; 0 for never
	pause time.Duration // before the first of addrs, whose queue was full, is asked again
	waits bool          // next is so late for want of a descriptor
	extra int           // descriptors taken for all of tries but one
	err   error         // of those that failed
}

// try is a socket that is being connected to one address.
type try struct {
	to      lbcore.Addr
	fd, tag int32
}

// open begins to connect to an address, and watches the socket. met reports
// that it is connected already.
func (p *pair) open(a lbcore.Addr) (t try, met bool, err error) {
	if p.l.is(a) {
		return t, false, errSelf
	}
	fd, e := p.l.dialFD(a, p.want)
	if e != 0 && e != unix.EINPROGRESS {
		return t, false, os.NewSyscallError("connect", e)
	}
	tag, ew := p.lp.watch(p, fd)
	if ew != 0 {
		p.lp.unwatch(fd)
		return t, false, os.NewSyscallError("epoll_ctl", ew)
	}
	return try{a, fd, tag}, e == 0, nil
}

// dial begins to connect to the endpoint. met reports that it is connected
// already; on an error no dial is in progress.
func (p *pair) dial() (met bool, err error) {
	p.active = p.lp.now + p.want.timeout().Milliseconds()
	e := p.member.Endpoint()
	if e.Additional != (lbcore.Addrs{}) {
		p.sel.race = &race{addrs: p.want.order(e)}
		return p.race()
	}
	t, met, err := p.open(p.member.Addr())
	if errors.Is(err, unix.EAGAIN) {
		p.sel.race = &race{addrs: []lbcore.Addr{p.member.Addr()}}
		return p.race()
	}
	if err == nil {
		p.side[up] = side{fd: t.fd, tag: t.tag}
	}
	return met, err
}

// race begins to connect to the next address.
func (p *pair) race() (met bool, err error) {
	r := p.sel.race
	if len(r.addrs) > 0 && r.extra < len(r.tries) {
		switch {
		case p.l.extra.take(1):
			r.extra++
		case !r.waits:
			left := time.Duration(p.active-p.lp.now) * time.Millisecond
			r.waits, r.next = true, p.lp.now+patience(left, len(r.addrs)).Milliseconds()
			return false, nil
		default:
			p.dropTry(0, unix.ETIMEDOUT)
		}
	}
	r.waits = false
	full := false
	for len(r.addrs) > 0 {
		to := r.addrs[0]
		t, met, err := p.open(to)
		if full = errors.Is(err, unix.EAGAIN); full {
			break
		}
		r.addrs = r.addrs[1:]
		if err != nil {
			r.err = worse(r.err, err)
			continue
		}
		if r.tries = append(r.tries, t); met {
			p.won(len(r.tries) - 1)
			return true, nil
		}
		break
	}
	if n := r.extra - max(len(r.tries)-1, 0); n > 0 {
		p.l.extra.give(n)
		r.extra -= n
	}
	switch r.next = 0; {
	case full:
		r.pause = nextPause(r.pause)
		r.next = p.lp.now + r.pause.Milliseconds()
	case len(r.tries) == 0:
		p.sel.race = nil
		return false, r.err
	case len(r.addrs) > 0:
		r.next = p.lp.now + attemptDelay.Milliseconds()
	}
	return false, nil
}

// raced is what epoll says of a socket that takes part. It reports whether that
// has won: then it is the endpoint's.
func (p *pair) raced(ev *unix.EpollEvent) bool {
	r := p.sel.race
	i := slices.IndexFunc(r.tries, func(t try) bool { return t.fd == ev.Fd && t.tag == ev.Pad })
	if i < 0 {
		return false
	}
	t := r.tries[i]
	var e unix.Errno
	switch {
	case ev.Events&(unix.EPOLLERR|unix.EPOLLHUP) != 0:
		if e = sysError(t.fd); e == 0 {
			e = unix.ECONNREFUSED
		}
	case ev.Events&unix.EPOLLOUT == 0:
		return false
	case localOf(t.fd, &p.lp.from) == t.to.AddrPort(): // itself
		e = unix.ECONNREFUSED
	default:
		p.won(i)
		return true
	}
	p.dropTry(i, e)
	p.goOn()
	return false
}

// dropTry closes a socket that has failed. The next address has its descriptor.
func (p *pair) dropTry(i int, e unix.Errno) {
	r := p.sel.race
	r.err = worse(r.err, os.NewSyscallError("connect", e))
	p.lp.unwatch(r.tries[i].fd)
	r.tries = slices.Delete(r.tries, i, i+1)
}

// goOn has the next address tried, and acts on what came of it.
func (p *pair) goOn() {
	switch met, err := p.race(); {
	case err != nil:
		p.failed(err)
	case met:
		p.met()
	default:
		p.arm()
	}
}

// won ends the race.
func (p *pair) won(i int) {
	t := p.sel.race.tries[i]
	p.sel.race.tries[i].fd = -1
	p.endRace()
	p.side[up] = side{fd: t.fd, tag: t.tag}
	if t.to != p.member.Addr() {
		p.via = &t.to
	}
}

// endRace closes the sockets of a race that is over.
func (p *pair) endRace() {
	if p.sel == nil || p.sel.race == nil {
		return
	}
	for _, t := range p.sel.race.tries {
		if t.fd >= 0 {
			p.lp.unwatch(t.fd)
		}
	}
	p.l.extra.give(p.sel.race.extra)
	p.sel.race = nil
}

// isDialing reports whether a dial is in progress.
func (p *pair) isDialing() bool {
	return p.state == dialing && (p.side[up].fd >= 0 || p.sel != nil && p.sel.race != nil)
}
