package forwarder

import (
	"os"

	"golang.org/x/sys/unix"
)

// inspect reads the client's ClientHello into what is held for the endpoint.
func (p *pair) inspect() {
	s := &p.side[down]
	for s.bits&canRead != 0 {
		n, e := sysRead(s.fd, p.lp.buf[:min(len(p.lp.buf), maxHello-len(s.held))])
		switch e {
		case 0:
		case unix.EINTR:
			continue
		case unix.EAGAIN:
			s.bits &^= canRead
			return
		default:
			p.abort(FlagDC, os.NewSyscallError("read", e))
			return
		}
		s.held = append(s.held, p.lp.buf[:n]...)
		if n == 0 {
			p.noHello() // its end is met again
		} else if !p.readHello(s.held) {
			continue
		}
		p.choose()
		return
	}
}
