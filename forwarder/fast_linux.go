package forwarder

import (
	"io"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// bulkAfter is how many full reads in a row make a direction bulk, and how
	// many small splices in a row end that.
	bulkAfter = 4
	// pipeSize is how much one splice moves at most, and what a slow reader
	// holds back.
	pipeSize    = 1 << 20
	sparePipes  = 8
	spliceFlags = unix.SPLICE_F_MOVE | unix.SPLICE_F_NONBLOCK
)

// fastPath is the outcome of the last system call made in a RawConn callback.
type fastPath struct {
	buf  *buffer
	pipe *pipe
	n    int // bytes in buf or pipe
	err  error
}

// copy moves bytes until src ends, without holding a buffer while it waits if
// src is a socket, and by splice if both are. It returns nil, nil at the end of the stream, else
// which side failed.
func (d *direction) copy() (readErr, writeErr error) {
	src, dst := rawConn(d.src.conn), rawConn(d.dst.conn)
	if src == nil {
		if c, ok := d.src.conn.(*tlsConn); ok {
			if raw := rawConn(c.raw.Conn); raw != nil {
				return d.copyTLS(c, raw)
			}
		}
		return d.copyPlain()
	}
	read := d.tryRead // one closure, not one a call
	for full := 0; ; {
		if err := src.Read(read); err != nil {
			return err, nil
		}
		if d.fast.err != nil {
			return os.NewSyscallError("read", d.fast.err), nil
		}
		n := d.fast.n
		if n == 0 {
			return nil, nil
		}
		d.came()
		w, err := d.dst.conn.Write(d.fast.buf[:n])
		d.r.buffers.Put(d.fast.buf)
		d.s.moved(d.count, w)
		if err != nil {
			return nil, err
		}
		if full++; n < bufferSize {
			full = 0
		}
		if full >= bulkAfter && dst != nil {
			full = 0
			if ended, readErr, writeErr := d.bulk(src, dst); ended {
				return readErr, writeErr
			}
		}
	}
}

// tryRead reads what is there. It has taken a buffer only if it reports true
// and n is above 0.
func (d *direction) tryRead(fd uintptr) bool {
	f := &d.fast
	b := d.r.buffers.Get().(*buffer)
	f.n, f.err = retry(func() (int, error) { return unix.Read(int(fd), b[:]) })
	if f.n > 0 {
		f.buf = b
		return true
	}
	d.r.buffers.Put(b)
	return f.err != unix.EAGAIN
}

// copyTLS is copy for TLS on a socket. Package tls is told that a read has timed
// out when there is nothing to read, and goes on where it was afterwards.
func (d *direction) copyTLS(c *tlsConn, raw syscall.RawConn) (readErr, writeErr error) {
	ready := newReadyReader(raw)
	c.raw.ready = ready
	for {
		b := d.r.buffers.Get().(*buffer)
		readErr, writeErr = d.copyReady(c, b)
		d.r.buffers.Put(b)
		if writeErr != nil || readErr != errNotReady {
			if readErr == io.EOF {
				readErr = nil
			}
			return readErr, writeErr
		}
		if err := ready.wait(); err != nil {
			return err, nil
		}
	}
}

// copyReady moves what c has, until it says why it has no more.
func (d *direction) copyReady(c *tlsConn, b *buffer) (readErr, writeErr error) {
	for {
		n, readErr := c.Read(b[:])
		if n > 0 {
			d.came()
			w, err := d.dst.conn.Write(b[:n])
			d.s.moved(d.count, w)
			if err != nil {
				return nil, err
			}
		}
		if readErr != nil {
			return readErr, nil
		}
	}
}

// readyReader reads from a socket without waiting.
type readyReader struct {
	raw  syscall.RawConn
	b    []byte
	n    int
	err  unix.Errno
	late unix.Errno // wait has met it, and the socket tells it only once

	read, peek func(fd uintptr) bool // one closure each, not one a call
}

func newReadyReader(raw syscall.RawConn) *readyReader {
	r := &readyReader{raw: raw}
	r.read = func(fd uintptr) bool {
		for {
			if r.n, r.err = sysRead(int32(fd), r.b); r.err != unix.EINTR {
				return true
			}
		}
	}
	r.peek = func(fd uintptr) bool {
		var b [1]byte
		for {
			switch _, e := sysPeek(int32(fd), b[:]); e {
			case unix.EINTR:
			case unix.EAGAIN:
				return false
			default:
				r.late = e
				return true
			}
		}
	}
	return r
}

// wait returns when a read would not wait.
func (r *readyReader) wait() error { return r.raw.Read(r.peek) }

func (r *readyReader) Read(b []byte) (int, error) {
	if r.late != 0 {
		return 0, os.NewSyscallError("read", r.late)
	}
	r.b = b
	err := r.raw.Read(r.read)
	r.b = nil
	switch {
	case err != nil:
		return 0, err
	case r.err == unix.EAGAIN:
		return 0, errNotReady
	case r.err != 0:
		return 0, os.NewSyscallError("read", r.err)
	case r.n == 0 && len(b) > 0:
		return 0, io.EOF
	}
	return r.n, nil
}

// bulk moves bytes by splice as long as there are many. ended says that it met
// the end of the stream or an error; else copying goes on where it stopped.
func (d *direction) bulk(src, dst syscall.RawConn) (ended bool, readErr, writeErr error) {
	f := &d.fast
	in, out := d.tryFill, d.tryDrain
	for small := 0; small < bulkAfter; {
		if err := src.Read(in); err != nil {
			return true, err, nil
		}
		switch {
		case f.err == unix.EINVAL || f.pipe == nil && f.err != nil:
			return false, nil, nil // can't splice this socket, or no pipe to be had
		case f.err != nil:
			return true, os.NewSyscallError("splice", f.err), nil
		case f.n == 0:
			return false, nil, nil // a read tells the end from urgent data
		}
		if small++; f.n >= bufferSize {
			small = 0
		}
		d.s.l.counters.splices.Add(1)
		err := dst.Write(out)
		if err == nil && f.err != nil {
			err = os.NewSyscallError("splice", f.err)
		}
		if err != nil {
			f.pipe.close()
			return true, nil, err
		}
		d.r.pipes.put(f.pipe)
	}
	return false, nil, nil
}

// tryFill moves what is there into a pipe. It keeps the pipe only if it
// reports true and n is above 0; pipe is nil if none could be made.
func (d *direction) tryFill(fd uintptr) bool {
	f := &d.fast
	if f.pipe, f.err = d.r.pipes.get(); f.err != nil {
		return true
	}
	f.n, f.err = retry(func() (int, error) {
		n, err := unix.Splice(int(fd), nil, int(f.pipe.w), nil, pipeSize, spliceFlags)
		return int(n), err
	})
	if f.n <= 0 {
		d.r.pipes.put(f.pipe)
	}
	return f.err != unix.EAGAIN
}

// tryDrain moves what is in the pipe out of it.
func (d *direction) tryDrain(fd uintptr) bool {
	f := &d.fast
	for f.n > 0 {
		w, err := retry(func() (int, error) {
			n, err := unix.Splice(int(f.pipe.r), nil, int(fd), nil, f.n, spliceFlags)
			return int(n), err
		})
		if err != nil {
			f.err = err
			return err != unix.EAGAIN
		}
		f.n -= w
		d.s.moved(d.count, w)
	}
	f.err = nil
	return true
}

// retry repeats a system call that a signal interrupted.
func retry(call func() (int, error)) (int, error) {
	for {
		if n, err := call(); err != unix.EINTR {
			return n, err
		}
	}
}

// rawConn returns c for system calls of our own, or nil if it is not a plain
// stream socket.
func rawConn(c net.Conn) syscall.RawConn {
	switch c := c.(type) {
	case *net.TCPConn:
		if raw, err := c.SyscallConn(); err == nil {
			return raw
		}
	case *net.UnixConn:
		if raw, err := c.SyscallConn(); err == nil {
			return raw
		}
	}
	return nil
}

// pipe holds bytes on their way from a socket to another.
type pipe struct {
	r, w int32
	n    int32 // bytes in it; the event loops keep it
	of   extra
}

// newPipe makes an empty pipe, if there are descriptors for one.
func newPipe(x extra) (*pipe, error) {
	if !x.take(2) {
		return nil, unix.EMFILE
	}
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		x.give(2)
		return nil, err
	}
	// Smaller ones, as when the user's share of pipe memory is used up, serve
	// as well.
	_, _ = unix.FcntlInt(uintptr(fds[0]), unix.F_SETPIPE_SZ, pipeSize)
	return &pipe{r: int32(fds[0]), w: int32(fds[1]), of: x}, nil
}

func (p *pipe) close() {
	sysClose(p.r)
	sysClose(p.w)
	p.of.give(2)
}

// pipes keeps a few empty pipes for reuse.
type pipes struct {
	spare chan *pipe
	of    extra
}

func newPipes(x extra) pipes { return pipes{make(chan *pipe, sparePipes), x} }

func (ps pipes) get() (*pipe, error) {
	select {
	case p := <-ps.spare:
		return p, nil
	default:
		return newPipe(ps.of)
	}
}

// put takes back a pipe, which must be empty.
func (ps pipes) put(p *pipe) {
	if ps.of.scarce() {
		p.close()
		return
	}
	select {
	case ps.spare <- p:
	default:
		p.close()
	}
}

func (ps pipes) close() {
	for {
		select {
		case p := <-ps.spare:
			p.close()
		default:
			return
		}
	}
}

// unsent is sysUnsent of a connection; 0 of one that is not a socket.
func unsent(c net.Conn) (n uint32) {
	if raw := rawConn(plain(c)); raw != nil {
		_ = raw.Control(func(fd uintptr) { n = sysUnsent(int32(fd)) })
	}
	return n
}

// awaitDelivery returns when the peer of l has acknowledged everything that
// was written, when it never will, or when aborted is closed. The kernel tells
// nobody of the first, so it is asked again and again.
func awaitDelivery(l *leg, aborted <-chan struct{}) {
	raw := rawConn(plain(l.conn))
	if raw == nil {
		return
	}
	for wait := time.Millisecond; ; wait = min(2*wait, 100*time.Millisecond) {
		done := false
		if err := raw.Control(func(fd uintptr) { done = delivered(int32(fd)) }); err != nil || done {
			return
		}
		select {
		case <-time.After(wait):
		case <-aborted:
			return
		}
	}
}
