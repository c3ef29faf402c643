package forwarder

import (
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// leave gives the flow to goroutines, with the selection if there is one, and
// the dial that was reported as begun. The pair ends without a report.
func (p *pair) leave() {
	fd, po, f := p.side[down].fd, p.port, p.flow
	p.lp.wheel.stop(&p.timer) // a dial may have failed before
	if int(fd) < len(p.lp.pairs) && p.lp.pairs[fd] == p {
		p.lp.pairs[fd] = nil
		sysEpollDel(p.lp.ep, fd) // closing it does not: there will be a duplicate
	}
	if f.term.last != 0 { // on the clock of sessions
		f.term.last = max(f.term.last-p.clock()+time.Since(f.start), time.Millisecond)
	}
	s := continueSession(f, nil) // copies the selection, which is the loop's
	s.first, p.side[down].held = p.side[down].held, nil
	p.side[down].fd = -1
	p.state = closed
	p.lp.chosen(p.sel)
	p.sel = nil
	p.lp.load.Add(-1)
	po.conns.Go(func() { po.goroutines(s, fd) })
	po.conns.Done()
}

// goroutines serves a session whose client is at a descriptor.
func (p *port) goroutines(s *session, fd int32) {
	conn, err := adopt(fd)
	s.downstream.conn = conn
	p.l.enter(s)
	if err == nil {
		p.goOn(s)
		return
	}
	if s.member != nil {
		s.dialFailed(err, true)
	}
	s.abort(FlagLR, err)
	s.end()
}

// adopt makes a net.Conn of a socket. If it can't, the socket is reset.
func adopt(fd int32) (net.Conn, error) {
	f := os.NewFile(uintptr(fd), "client")
	conn, err := net.FileConn(f)
	if err != nil {
		_ = unix.SetsockoptLinger(int(fd), unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
	}
	_ = f.Close() // conn has a duplicate
	return conn, err
}
