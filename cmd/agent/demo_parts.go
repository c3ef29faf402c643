package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"gatehouse.internal/forwarder"
	"gatehouse.internal/lbcore"
)

// demoBackend is a TCP server that answers each line with its own address.
type demoBackend struct {
	address string
	ln      net.Listener // the demo's goroutine, while it is stopped
	listed  bool         // by the control plane; the demo's goroutine only
	stopped atomic.Bool
	served  atomic.Int64

	mu    sync.Mutex
	conns map[net.Conn]struct{} // nil once stopped
}

func newDemoBackend() (*demoBackend, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	return &demoBackend{address: ln.Addr().String(), ln: ln, listed: true, conns: make(map[net.Conn]struct{})}, nil
}

func (b *demoBackend) addr() string { return b.address }

// revive opens the socket again after stop, for another run.
func (b *demoBackend) revive() error {
	ln, err := net.Listen("tcp", b.address)
	if err != nil {
		return err
	}
	b.ln = ln
	b.mu.Lock()
	b.conns = make(map[net.Conn]struct{})
	b.mu.Unlock()
	b.stopped.Store(false)
	return nil
}

// run serves until ctx ends or stop.
func (b *demoBackend) run(ctx context.Context) error {
	ln := b.ln
	defer context.AfterFunc(ctx, b.stop)()
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		c, err := ln.Accept()
		if err != nil {
			if b.stopped.Load() {
				return nil
			}
			return err
		}
		wg.Go(func() { b.serve(c) })
	}
}

func (b *demoBackend) serve(c net.Conn) {
	defer c.Close()
	b.mu.Lock()
	if b.conns == nil {
		b.mu.Unlock()
		return
	}
	b.conns[c] = struct{}{}
	b.mu.Unlock()
	defer func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.conns, c)
	}()
	first := true // a probe sends no line
	for lines := bufio.NewScanner(c); lines.Scan(); first = false {
		if first {
			b.served.Add(1)
		}
		if _, err := fmt.Fprintln(c, b.addr()); err != nil {
			return
		}
	}
}

// stop closes everything at once, like a process that is killed.
func (b *demoBackend) stop() {
	if b.stopped.Swap(true) {
		return
	}
	b.ln.Close()
	b.mu.Lock()
	defer b.mu.Unlock()
	for c := range b.conns {
		c.Close()
	}
	b.conns = nil
}

// demoClients connect through the listeners, one exchange a connection, from
// different addresses of loopback.
type demoClients struct {
	targets map[string]lbcore.Addr // listeners by name; set before run
	quit    chan struct{}
	done    chan struct{} // closed when all have ended

	mu      sync.Mutex
	since   shares                        // since they were told
	total   int                           // connections
	broken  map[netip.AddrPort]brokenConn // those without an answer, by client address
	cut     map[netip.AddrPort]bool       // the agent's word on connections that ended badly: a stopped backend had them
	stopped map[string]bool               // backends that are stopped
	seen    bool                          // the newest stop was noticed
}

type brokenConn struct{ afterDetection bool }

// share is a listener and a backend.
type share struct{ listener, backend string }

type shares map[share]int

func (s shares) listeners() iter.Seq[string] {
	return func(yield func(string) bool) {
		done := make(map[string]bool)
		for k := range s {
			if !done[k.listener] && !yield(k.listener) {
				return
			}
			done[k.listener] = true
		}
	}
}

func newDemoClients() *demoClients {
	return &demoClients{
		quit: make(chan struct{}), done: make(chan struct{}), since: make(shares), broken: make(map[netip.AddrPort]brokenConn),
		cut: make(map[netip.AddrPort]bool), stopped: make(map[string]bool),
	}
}

// demoPace is the time between two connections of one client. Each leaves two
// sockets in TIME_WAIT, so a demo of hours must not be faster.
const demoPace = 20 * time.Millisecond

// run has some clients connect to each listener until ctx ends or stop.
func (c *demoClients) run(ctx context.Context) error {
	var wg sync.WaitGroup
	for name, target := range c.targets {
		for i := range 3 {
			wg.Go(func() { c.client(ctx, name, target, i) })
		}
		wg.Go(func() { c.keeper(ctx, name, target) })
	}
	wg.Wait()
	close(c.done)
	return nil
}

// stop ends the clients and waits for them.
func (c *demoClients) stop() {
	close(c.quit)
	<-c.done
}

func (c *demoClients) client(ctx context.Context, listener string, target lbcore.Addr, i int) {
	tick := time.NewTicker(demoPace)
	defer tick.Stop()
	for n := 0; ; n++ {
		select {
		case <-tick.C:
		case <-c.quit:
			return
		case <-ctx.Done():
			return
		}
		// Different sources, so that the ring spreads them.
		from := netip.AddrFrom4([4]byte{127, 0, byte(1 + i), byte(1 + n%200)})
		c.exchange(ctx, listener, target, from)
	}
}

// keeper keeps one connection open and talks over it now and then: it outlives
// the removal of its backend, and is cut when its backend stops.
func (c *demoClients) keeper(ctx context.Context, listener string, target lbcore.Addr) {
	tick := time.NewTicker(5 * demoPace)
	defer tick.Stop()
	talk := func() bool {
		select {
		case <-tick.C:
			return true
		case <-c.quit:
		case <-ctx.Done():
		}
		return false
	}
	from := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	for going := true; going; {
		c.connect(ctx, listener, target, from, func() bool { going = talk(); return going })
	}
}

// exchange makes one connection for one line.
func (c *demoClients) exchange(ctx context.Context, listener string, target lbcore.Addr, from netip.Addr) {
	c.connect(ctx, listener, target, from, func() bool { return false })
}

// connect makes one connection, exchanges lines over it as long as more says
// so, and notes who answered.
func (c *demoClients) connect(ctx context.Context, listener string, target lbcore.Addr, from netip.Addr, more func() bool) {
	c.mu.Lock()
	after := c.seen
	c.mu.Unlock()
	// Bound here, so that the address is known of a connection too that is
	// reset before connect returns: a stopped backend may have had it.
	var local netip.AddrPort
	d := net.Dialer{Control: func(_, _ string, raw syscall.RawConn) (err error) {
		cerr := raw.Control(func(fd uintptr) { local, err = bind(int(fd), from) })
		return errors.Join(cerr, err)
	}}
	conn, err := d.DialContext(ctx, "tcp", target.Dial())
	if err != nil {
		if ctx.Err() == nil {
			if !errors.Is(err, syscall.ECONNRESET) {
				local = netip.AddrPort{} // the agent never had it
			}
			c.note(listener, local, "", after)
			more() // no faster than the pace
		}
		return
	}
	defer conn.Close()
	lines := bufio.NewReader(conn)
	answer := ""
	for again := true; again; again = more() {
		conn.SetDeadline(time.Now().Add(10 * time.Second))
		if _, err = fmt.Fprintln(conn, "who"); err == nil {
			answer, err = lines.ReadString('\n')
		}
		if err != nil {
			if ctx.Err() == nil {
				c.note(listener, local, "", after)
				more()
			}
			return
		}
	}
	// End as a client does that has its answer: the backend ends too.
	conn.(*net.TCPConn).CloseWrite()
	io.Copy(io.Discard, conn)
	if ctx.Err() == nil {
		c.note(listener, local, answer, after)
	}
}

// bind gives a socket a port of an address.
func bind(fd int, from netip.Addr) (netip.AddrPort, error) {
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: from.As4()}); err != nil {
		return netip.AddrPort{}, err
	}
	sa, err := syscall.Getsockname(fd)
	if err != nil {
		return netip.AddrPort{}, err
	}
	in, ok := sa.(*syscall.SockaddrInet4)
	if !ok {
		return netip.AddrPort{}, errors.New("not an IPv4 socket")
	}
	return netip.AddrPortFrom(netip.AddrFrom4(in.Addr), uint16(in.Port)), nil
}

func (c *demoClients) note(listener string, local netip.AddrPort, answer string, after bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.total++
	if answer == "" {
		c.broken[local] = brokenConn{after}
		return
	}
	c.since[share{listener, answer[:len(answer)-1]}]++
}

// ended is the agent's hook for connections that have ended. A stopped backend
// may end one in order before its client has an answer.
func (c *demoClients) ended(r *forwarder.Record) {
	c.mu.Lock()
	defer c.mu.Unlock()
	stopped := c.stopped[r.Endpoint.String()]
	if r.Flag != forwarder.FlagNone || stopped {
		c.cut[r.Client] = r.Connect > 0 && stopped
	}
}

func (c *demoClients) stoppedAt(backend string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stopped[backend] = true
	c.seen = false
}

func (c *demoClients) revived(backend string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.stopped, backend)
}

func (c *demoClients) detected() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seen = true
}

// shares returns who answered whom since the last call.
func (c *demoClients) shares() shares {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.since
	c.since = make(shares)
	return s
}

// allTold reports whether the agent has told of every connection that broke.
func (c *demoClients) allTold() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for local := range c.broken {
		if _, ok := c.cut[local]; !ok && local.IsValid() {
			return false
		}
	}
	return true
}

// fill counts connections. One without an answer was cut if the agent had
// connected it to a backend that was stopped; any other has failed.
func (c *demoClients) fill(r *demoReport) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r.Connections = c.total
	for local, b := range c.broken {
		if c.cut[local] {
			r.Cut++
			continue
		}
		r.Failed++
		if b.afterDetection {
			r.FailedAfterDetection++
		}
	}
}
