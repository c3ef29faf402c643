package forwarder

import (
	"os"

	"golang.org/x/sys/unix"
)

// pass moves bytes from side i to side j until there are none, they are not
// taken, or the turn is up: then it reports that there is more to do.
func (p *pair) pass(i, j int) (more bool) {
	src, dst := &p.side[i], &p.side[j]
	if src.done && dst.broken {
		return p.discard(src)
	}
	for left := turnBytes; !src.done; {
		if src.waiting() { // of an earlier turn
			if dst.bits&canWrite == 0 { // more has come, and nothing been taken
				return false
			}
			n, e := p.flush(i, j)
			left -= n
			p.lp.quota -= n
			if e == unix.EAGAIN {
				dst.bits &^= canWrite
				return false
			}
			if e != 0 {
				p.lost(i, j, os.NewSyscallError("write", e))
				return false
			}
			continue
		}
		if src.bits&canRead == 0 || dst.bits&canWrite == 0 {
			return false
		}
		if left <= 0 {
			return true
		}
		n, e := p.fetch(src)
		switch {
		case e == unix.EAGAIN:
			src.bits &^= canRead
			return false
		case e == unix.EINTR:
			continue
		case e != 0:
			p.ended(i, j, os.NewSyscallError("read", e))
			return false
		case n == 0 && src.broken:
			p.ended(i, j, unix.ECONNRESET)
			return false
		case n == 0:
			p.ended(i, j, nil)
			return false
		}
		if i == up && !p.spoken {
			p.speaks()
		}
		if src.pipe == nil {
			left -= n
			p.lp.quota -= n
			if !p.send(i, j, n) {
				return false
			}
		}
	}
	return false
}

// waiting reports whether bytes of s wait to be taken by the other side.
func (s *side) waiting() bool { return s.pipe != nil || len(s.held) > 0 }

// fetch reads from a side: into its pipe if it is bulk, else into the loop's
// buffer.
func (p *pair) fetch(src *side) (int, unix.Errno) {
	if src.bits&isBulk != 0 {
		if n, e, ok := p.fill(src); ok {
			return n, e
		}
		src.bits &^= isBulk // no pipe to be had, or not a socket that can be spliced
		src.full = 0
	}
	n, e := sysRead(src.fd, p.lp.buf)
	if n > 0 && n < len(p.lp.buf) && src.bits&(atEnd|urgent|overUnix) == 0 {
		src.bits &^= canRead // that was all; the next byte is an event
	}
	if n < bufferSize {
		src.full = 0
	} else if src.full++; src.full >= bulkAfter && src.bits&urgent == 0 {
		src.bits |= isBulk
		src.full = 0
	}
	return n, e
}

// fill splices from a bulk side into a pipe, which src holds only if bytes are
// in it.
func (p *pair) fill(src *side) (n int, e unix.Errno, ok bool) {
	pipe := p.lp.pipe(p.l.extra)
	if pipe == nil {
		return 0, 0, false
	}
	n, e = sysSplice(src.fd, pipe.w, pipeSize)
	if e != 0 || n == 0 {
		p.lp.emptied(pipe)
		return n, e, e != 0 && e != unix.EINVAL // a read tells the end from urgent data
	}
	src.pipe, pipe.n = pipe, int32(n)
	if n >= bufferSize {
		src.full = 0
	} else if src.full++; src.full >= smallAfter {
		src.bits &^= isBulk
		src.full = 0
	}
	return n, 0, true
}

// send writes the first n bytes of the loop's buffer to side j, and holds what
// is not taken. It reports false if that ended the turn.
func (p *pair) send(i, j, n int) bool {
	src, dst := &p.side[i], &p.side[j]
	w, e := sysWrite(dst.fd, p.lp.buf[:n])
	switch e {
	case 0:
	case unix.EAGAIN, unix.EINTR:
		w = 0
	default:
		p.lost(i, j, os.NewSyscallError("write", e))
		return false
	}
	p.moved(i, w)
	if w < n {
		src.held = append([]byte(nil), p.lp.buf[w:n]...)
	}
	return true
}

// flush passes on what waits on side i.
func (p *pair) flush(i, j int) (int, unix.Errno) {
	src, dst := &p.side[i], &p.side[j]
	if src.pipe != nil {
		n, e := sysSplice(src.pipe.r, dst.fd, int(src.pipe.n))
		if e == unix.EINTR {
			return 0, 0
		}
		if e != 0 {
			return 0, e
		}
		p.moved(i, n)
		if src.pipe.n -= int32(n); src.pipe.n == 0 {
			p.lp.emptied(src.pipe)
			src.pipe = nil
			p.l.counters.splices.Add(1)
		}
		return n, 0
	}
	n, e := sysWrite(dst.fd, src.held)
	if e == unix.EINTR {
		return 0, 0
	}
	if e != 0 {
		return 0, e
	}
	p.moved(i, n)
	if src.held = src.held[n:]; len(src.held) == 0 {
		src.held = nil
	}
	return n, 0
}

// moved counts what was passed on from side i.
func (p *pair) moved(i, n int) {
	if i == down && p.lead > 0 {
		lead := min(n, int(p.lead))
		p.lead -= uint16(lead)
		n -= lead
	}
	if n <= 0 {
		return
	}
	p.bytes[i] += uint64(n)
	if i == down {
		p.port.bytesIn.Add(uint64(n))
	} else {
		p.port.bytesOut.Add(uint64(n))
	}
	p.touch()
}

// discard throws away what a side sends that nobody is left to take: as long as it can't get
// rid of that it may not read what is on its way to it. Nothing has passed by it. It
// reports whether there may be more.
func (p *pair) discard(s *side) (more bool) {
	for left := turnBytes; s.bits&canRead != 0 && !s.broken; {
		if left <= 0 {
			return true
		}
		switch n, e := sysRead(s.fd, p.lp.buf); {
		case e == unix.EINTR:
		case e != 0 || n == 0:
			s.bits &^= canRead // a write tells of an error too
		default:
			left -= n
			p.lp.quota -= n
		}
	}
	return false
}

// ended is the end of what side i sends: in order if err is nil.
func (p *pair) ended(i, j int, err error) {
	if err == nil {
		if !p.side[j].done { // else both are closed now
			sysShutdown(p.side[j].fd)
		}
	} else {
		p.broke(i, err)
		p.side[j].done = true // nobody is left to take it
	}
	p.over(i)
}

// lost tells that side j takes no more. What it had sent before is still to be
// delivered: the other direction does that, and meets the end then. What side i sends
// is discarded until then.
func (p *pair) lost(i, j int, err error) {
	src := &p.side[i]
	if src.pipe != nil {
		src.pipe.close()
		src.pipe = nil
	}
	src.held = nil
	p.side[j].bits |= canRead | atEnd
	p.broke(j, err)
	p.over(i)
	if p.state == relaying {
		p.lp.ready.push(p)
	}
}
