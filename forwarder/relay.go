package forwarder

import (
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"

	"gatehouse.internal/internal/contain"
)

// relay moves the bytes of sessions both of whose legs are connected.
type relay interface {
	// relay returns when s has ended: both directions have, or it was aborted.
	// It tells s what was moved and what broke.
	relay(s *session)
	// close frees what is held for reuse. No session is being relayed any
	// more.
	close()
}

// bufferSize is what one read takes at most.
const bufferSize = 32 << 10

type buffer [bufferSize]byte

// goroutineRelay is the relay with a goroutine for each direction. It moves
// whatever is a net.Conn.
type goroutineRelay struct {
	buffers sync.Pool // of *buffer
	pipes   pipes
}

func newGoroutineRelay(x extra) *goroutineRelay {
	return &goroutineRelay{buffers: sync.Pool{New: func() any { return new(buffer) }}, pipes: newPipes(x)}
}

func (r *goroutineRelay) close() { r.pipes.close() }

func (r *goroutineRelay) relay(s *session) {
	up := direction{r: r, s: s, src: &s.downstream, dst: &s.upstream, count: &s.bytesIn}
	down := direction{r: r, s: s, src: &s.upstream, dst: &s.downstream, count: &s.bytesOut, silent: true}
	s.left.Store(2)
	var wg sync.WaitGroup
	wg.Go(down.contained)
	up.contained()
	wg.Wait()
}

// direction is one of the two ways through a session.
type direction struct {
	r        *goroutineRelay
	s        *session
	src, dst *leg
	count    *atomic.Uint64
	silent   bool // src is an endpoint that has sent nothing yet
	fast     fastPath
}

// came tells that bytes of src have.
func (d *direction) came() {
	if d.silent {
		d.silent = false
		d.s.speaks()
	}
}

// contained is run. A panic ends both directions.
func (d *direction) contained() {
	err := func() (err error) {
		defer d.s.l.cfg.Panics.Recover(contain.Connection, &err)
		d.run()
		return nil
	}()
	if err != nil {
		d.s.abort(FlagLR, err)
	}
}

// run moves bytes until src ends, and passes its end on.
func (d *direction) run() {
	var readErr error
	writeErr := d.begin()
	if writeErr == nil {
		readErr, writeErr = d.copy()
	}
	switch {
	case writeErr != nil:
		// dst takes no more. What it had sent before is still to be
		// delivered: the other direction does that, and meets the end then.
		// If that has ended already, nobody is left to read dst.
		d.s.broke(d.dst, writeErr)
		var wg sync.WaitGroup
		if d.s.left.Add(-1) == 0 {
			wg.Go(func() { passReset(d.s, d.src) })
		}
		d.discard()
		wg.Wait()
	case readErr != nil:
		d.s.broke(d.src, readErr)
		passReset(d.s, d.dst)
	case d.src.wasReset():
		d.s.broke(d.src, syscall.ECONNRESET)
		passReset(d.s, d.dst)
	default:
		d.dst.shut.Store(true)
		closeWrite(d.dst.conn)
		d.s.halfClosed()
		if d.s.left.Add(-1) == 0 && d.src.broken.Load() { // found so by the other direction, which waits for its end
			passReset(d.s, d.dst)
		}
	}
}

// discard throws away what src sends that nobody is left to take, until it has ended or the
// session has: as long as it can't get rid of that it may not read what is on
// its way to it. Nothing has passed by it.
func (d *direction) discard() {
	b := d.r.buffers.Get().(*buffer)
	defer d.r.buffers.Put(b)
	for c := plain(d.src.conn); ; {
		if _, err := c.Read(b[:]); err != nil {
			return
		}
	}
}

// begin passes on what was read from the client together with its PROXY header.
func (d *direction) begin() error {
	if d.src != &d.s.downstream || len(d.s.first) == 0 {
		return nil
	}
	n, err := d.dst.conn.Write(d.s.first)
	d.s.moved(d.count, n)
	d.s.first = nil
	return err
}

// copyPlain is copy for connections of any kind. It holds a buffer while it
// waits. It returns nil, nil at the end of the stream, else which side failed.
func (d *direction) copyPlain() (readErr, writeErr error) {
	b := d.r.buffers.Get().(*buffer)
	defer d.r.buffers.Put(b)
	for {
		n, err := d.src.conn.Read(b[:])
		if n > 0 {
			d.came()
			w, err := d.dst.conn.Write(b[:n])
			d.s.moved(d.count, w)
			if err != nil {
				return nil, err
			}
		}
		switch {
		case err == io.EOF:
			return nil, nil
		case err != nil:
			return err, nil
		}
	}
}

// passReset resets both legs, as soon as to has delivered what was written to
// it: a reset throws away what the kernel still holds. The wait is bounded by
// the limits on silence.
func passReset(s *session, to *leg) {
	awaitDelivery(to, s.aborted)
	s.abort(FlagLR, errCut) // whoever broke has been blamed
}

// wasReset tells whether an end of stream is in truth a reset: its error is
// reported once, and a write in the other direction may have got it. The
// kernel then refuses a shutdown; it would also do so after a close in order
// on both sides, which shut tells apart.
func (l *leg) wasReset() bool {
	if l.broken.Load() {
		return true
	}
	return !l.shut.Load() && errors.Is(closeRead(l.conn), syscall.ENOTCONN) && !l.shut.Load()
}

func closeRead(c net.Conn) error {
	if c, ok := c.(interface{ CloseRead() error }); ok {
		return c.CloseRead()
	}
	return nil
}

// closeWrite passes an end of stream on. If that fails the connection is gone,
// and a read or write says why.
func closeWrite(c net.Conn) {
	if c, ok := c.(interface{ CloseWrite() error }); ok {
		_ = c.CloseWrite()
	}
}

// closeConn closes c, if there is one. An error says only that it was closed
// or reset before.
func closeConn(c net.Conn) {
	if c != nil {
		_ = c.Close()
	}
}

// reset closes c, if there is one, with an RST where it is a TCP connection.
func reset(c net.Conn) {
	c = plain(c)
	if c, ok := c.(interface{ SetLinger(sec int) error }); ok {
		_ = c.SetLinger(0)
	}
	closeConn(c)
}
