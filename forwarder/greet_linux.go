package forwarder

import (
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// greet reads the client's PROXY header. It only looks at what has come, until
// the header is whole: what follows stays in the socket.
func (p *pair) greet() {
	s := &p.side[down]
	b := p.lp.buf[:maxProxyHeader] // has room for whatever is not decided yet
	for s.bits&canRead != 0 {
		n, e := sysPeek(s.fd, b)
		switch e {
		case 0:
		case unix.EINTR:
			continue
		case unix.EAGAIN:
			s.bits &^= canRead
			return
		default:
			p.abort(FlagDC, p.ungreeted(fmt.Errorf("PROXY header: %w", os.NewSyscallError("read", e))))
			return
		}
		take, err := p.readProxy(b[:n])
		if err == errProxyShort {
			if n > 0 && s.bits&atEnd == 0 {
				return // the next byte is an event
			}
			err = p.noProxy(b[:n], errProxyEnded)
		}
		for err == nil && take > 0 { // once
			if n, e = sysRead(s.fd, b[:take]); e == 0 {
				take -= n
			} else if e != unix.EINTR {
				err = p.ungreeted(fmt.Errorf("PROXY header: %w", os.NewSyscallError("read", e)))
			}
		}
		if err != nil {
			p.abort(FlagDC, err)
			return
		}
		p.welcome()
		return
	}
}

// late tells that the header's time is over.
func (p *pair) late() {
	n := 0
	if p.side[down].bits&canRead != 0 {
		n, _ = sysPeek(p.side[down].fd, p.lp.buf[:maxProxyHeader])
	}
	if err := p.noProxy(p.lp.buf[:max(n, 0)], errProxyLate); err != nil {
		p.abort(FlagDC, err)
		return
	}
	p.welcome()
}

// introduce writes the header that the endpoint is to get, or holds it. It
// reports false if the pair has ended.
func (p *pair) introduce() bool {
	if p.want.ProxyVersion == 0 {
		return true
	}
	b, err := p.introduction(p.lp.buf[:0], localOf(p.side[down].fd, &p.lp.from))
	if err != nil {
		p.abort(FlagLR, err)
		return false
	}
	p.lead = uint16(len(b))
	if s := &p.side[down]; len(s.held) > 0 { // it comes before what the client has sent
		s.held = slices.Concat(b, s.held)
		return true
	}
	p.send(down, up, copy(p.lp.buf, b)) // it is there already, unless it grew
	return true
}
