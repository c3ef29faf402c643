package forwarder

import (
	"context"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"gatehouse.internal/lbcore"
)

// memBuffer is how many bytes one direction of a memConn holds.
const memBuffer = 64 << 10

// memPipe is one direction of a memConn.
type memPipe struct {
	mu     sync.Mutex
	cond   sync.Cond
	data   []byte
	eof    bool // the writer has ended the stream
	reset  bool
	closed bool // the reader is gone
	late   bool // the read deadline has passed
	clock  *time.Timer
}

// memConn is a connection in memory with what a TCP connection has and
// net.Pipe has not: a buffer, CloseWrite, and resets.
type memConn struct {
	net.Conn    // nil: what is not implemented panics
	rd, wr      *memPipe
	remote      net.Addr
	mu          sync.Mutex
	linger      bool
	closedLocal bool
}

// newMemPair returns the two ends of a connection; the second one sees remote
// as its peer.
func newMemPair(remote netip.AddrPort) (a, b *memConn) {
	p, q := new(memPipe), new(memPipe)
	p.cond.L, q.cond.L = &p.mu, &q.mu
	return &memConn{rd: q, wr: p, linger: true}, &memConn{rd: p, wr: q, linger: true, remote: net.TCPAddrFromAddrPort(remote)}
}

func (c *memConn) RemoteAddr() net.Addr { return c.remote }

func (c *memConn) LocalAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 200), Port: 80} }

func (c *memConn) SetReadDeadline(at time.Time) error {
	c.rd.set(func() {
		if c.rd.clock != nil {
			c.rd.clock.Stop()
		}
		c.rd.late, c.rd.clock = false, nil
		if !at.IsZero() {
			c.rd.clock = time.AfterFunc(time.Until(at), func() { c.rd.set(func() { c.rd.late = true }) })
		}
	})
	return nil
}

func (c *memConn) isClosed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closedLocal
}

func (c *memConn) Read(b []byte) (int, error) {
	p := c.rd
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		switch {
		case p.closed:
			return 0, net.ErrClosed
		case p.late:
			return 0, os.ErrDeadlineExceeded
		case len(p.data) > 0:
			n := copy(b, p.data)
			p.data = p.data[n:]
			p.cond.Broadcast()
			return n, nil
		case p.reset:
			return 0, syscall.ECONNRESET
		case p.eof:
			return 0, io.EOF
		}
		p.cond.Wait()
	}
}

func (c *memConn) Write(b []byte) (n int, err error) {
	p := c.wr
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(b) > 0 {
		switch {
		case c.isClosed():
			return n, net.ErrClosed
		case p.reset, p.closed, p.eof:
			return n, syscall.EPIPE
		}
		k := min(len(b), memBuffer-len(p.data))
		if k == 0 {
			p.cond.Wait()
			continue
		}
		p.data = append(p.data, b[:k]...)
		n, b = n+k, b[k:]
		p.cond.Broadcast()
	}
	return n, nil
}

func (p *memPipe) set(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
	p.cond.Broadcast()
}

func (c *memConn) CloseWrite() error {
	c.wr.set(func() { c.wr.eof = true })
	return nil
}

func (c *memConn) SetLinger(sec int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.linger = sec != 0
	return nil
}

func (c *memConn) Close() error {
	c.mu.Lock()
	again, reset := c.closedLocal, !c.linger
	c.closedLocal = true
	c.mu.Unlock()
	if again {
		return net.ErrClosed
	}
	c.wr.set(func() { c.wr.eof, c.wr.reset = true, c.wr.reset || reset })
	c.rd.set(func() { c.rd.closed = true })
	return nil
}

// memListener is a net.Listener in memory.
type memListener struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func newMemListener() *memListener {
	return &memListener{conns: make(chan net.Conn), closed: make(chan struct{})}
}

func (l *memListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *memListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *memListener) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 200), Port: 80} }

func (l *memListener) listen(context.Context, lbcore.Addr) (net.Listener, error) { return l, nil }

// connect makes a client's connection.
func (l *memListener) connect() *memConn {
	a, b := newMemPair(netip.MustParseAddrPort("198.51.100.7:4711"))
	l.conns <- b
	return a
}

// memWorld is a Listener whose every socket is in memory, for use in a
// synctest bubble.
type memWorld struct {
	*rig
	ln       *memListener
	backends chan *memConn // the far ends of what the Listener has dialled
}

func newMemWorld(t *testing.T, cfg Config) *memWorld {
	w := &memWorld{ln: newMemListener(), backends: make(chan *memConn, 16)}
	cfg.Listen = w.ln.listen
	if cfg.Upstream == nil {
		cfg.Upstream = newCluster(t, lbcore.IPAddr(netip.MustParseAddrPort("192.0.2.2:80")))
	}
	w.rig = start(t, cfg, func(l *Listener) {
		l.dial = func(context.Context, lbcore.Addr, *Dial) (net.Conn, error) {
			a, b := newMemPair(netip.AddrPort{})
			w.backends <- a
			return b, nil
		}
	})
	return w
}

func TestMemConn(t *testing.T) {
	a, b := newMemPair(netip.AddrPort{})
	if _, err := a.Write([]byte("one")); err != nil {
		t.Fatal(err)
	}
	if err := a.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(b); string(got) != "one" || err != nil {
		t.Fatalf("read %q, %v", got, err)
	}
	if _, err := b.Write([]byte("two")); err != nil {
		t.Fatal(err)
	}
	reset(b)
	if got, err := io.ReadAll(a); string(got) != "two" || err != syscall.ECONNRESET {
		t.Fatalf("read %q, %v; want the data and then a reset", got, err)
	}
	if _, err := a.Write([]byte("three")); err != syscall.EPIPE {
		t.Fatalf("write to a reset connection: %v", err)
	}
}
