package forwarder

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// LoopsConfig configures Loops.
type LoopsConfig struct {
	// Count is how many event loops there are; 0 means GOMAXPROCS, which is the
	// number of CPUs that the process may use.
	Count int
}

// Loops are the event loops that serve the connections of many Listeners. Run
// must be running while Listeners are, and is what closes them.
//
// Each loop is a goroutine. It holds one of Go's Ps
// while it works and gives it back while it waits, so GOMAXPROCS is to be more
// than Count: with as many loops as Ps, whatever else the process does would
// make connections wait.
type Loops struct {
	loops []*loop
	clock func() time.Duration // since they were made; replaced in tests
}

// NewLoops returns loops that do nothing before Run, or nil where the system
// has none.
func NewLoops(cfg LoopsConfig) *Loops {
	n := cfg.Count
	if n <= 0 {
		n = runtime.GOMAXPROCS(0)
	}
	base := time.Now()
	ls := &Loops{clock: func() time.Duration { return time.Since(base) }}
	for range n {
		ls.loops = append(ls.loops, &loop{of: ls, ep: -1, waker: -1})
	}
	return ls
}

// Run runs the loops until ctx ends, and then resets what connections there
// still are. It may be called once. An error other than ctx.Err() says what
// the system refused, and then no loop has run.
func (ls *Loops) Run(ctx context.Context) error {
	defer func() {
		for _, l := range ls.loops {
			l.close()
		}
	}()
	for _, l := range ls.loops {
		if err := l.open(); err != nil {
			return fmt.Errorf("event loop: %w", err)
		}
	}
	var wg sync.WaitGroup
	for _, l := range ls.loops {
		wg.Go(l.run)
	}
	<-ctx.Done()
	for _, l := range ls.loops {
		l.post(func() { l.ending = true })
	}
	wg.Wait()
	return ctx.Err()
}

// Turn returns nil once every loop has gone round since the call, or ctx's error: a
// loop that hangs does not. It is the heartbeat of accepting and relaying. It may be
// called from anywhere while Run is running, and returns at once after it.
func (ls *Loops) Turn(ctx context.Context) error {
	turned := make(chan struct{}, len(ls.loops))
	asked := 0
	for _, l := range ls.loops {
		if l.post(func() { turned <- struct{}{} }) {
			asked++
		}
	}
	for range asked {
		select {
		case <-turned:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// Len returns how many loops there are.
func (ls *Loops) Len() int { return len(ls.loops) }

// Connections returns how many connections each loop has. It may be called
// from anywhere.
func (ls *Loops) Connections() []int {
	n := make([]int, len(ls.loops))
	for i, l := range ls.loops {
		n[i] = int(l.load.Load())
	}
	return n
}

// port is a listening socket that the loops accept from.
type port struct {
	l     *Listener
	fd    int32           // shared by all loops
	close func() error    // closes the socket, and removes its file if there is one
	conns *sync.WaitGroup // of the connections
	goOn  func(*session)  // serves one with goroutines

	mu      sync.RWMutex // read-held for each accept, so that nobody accepts after close
	closed  bool
	serving bool // the loops accept from it, or are about to

	cutting atomic.Bool // connections are reset as soon as they appear

	// What has been passed on by ended and by open connections.
	bytesIn, bytesOut atomic.Uint64
}

// newPort takes over the socket of ln. It returns nil, and nothing has
// happened, if that is not a plain socket. On an error ln is closed.
func newPort(l *Listener, ln net.Listener) (*port, error) {
	p := &port{l: l, close: ln.Close}
	switch ln := ln.(type) {
	case *net.TCPListener:
		// A duplicate, without what belongs to package net: its poller would be
		// woken by every connection.
		err := onFD(ln, func(fd int) (err error) {
			dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
			p.fd = int32(dup)
			return os.NewSyscallError("fcntl", err)
		})
		if err = errors.Join(err, ln.Close()); err != nil {
			return nil, err
		}
		p.close = func() error { return unix.Close(int(p.fd)) }
		// What is accepted inherits it.
		sysSetInt(p.fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
	case *net.UnixListener, *unixListener: // which know if their file is to be removed
		if err := onFD(ln.(syscall.Conn), func(fd int) error { p.fd = int32(fd); return nil }); err != nil {
			return nil, errors.Join(err, ln.Close())
		}
	case *handedOnly:
		p.fd = -1
	default:
		return nil, nil
	}
	return p, nil
}

// begin has connections served that enter or are accepted from now on.
func (p *port) begin(conns *sync.WaitGroup, goOn func(*session)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conns, p.goOn = conns, goOn
}

// enter counts a connection that another port has accepted, and reports whether
// this one takes it: not before begin, and not after stop.
func (p *port) enter() bool {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if p.closed || p.conns == nil {
		return false
	}
	p.conns.Add(1)
	return true
}

// SyscallConn implements syscall.Conn, as the listener does that p has taken
// over.
func (p *port) SyscallConn() (syscall.RawConn, error) { return p, nil }

// Control calls f with the socket, if it is open.
func (p *port) Control(f func(fd uintptr)) error {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if p.closed || p.fd < 0 {
		return net.ErrClosed
	}
	f(uintptr(p.fd))
	return nil
}

// Read and Write complete syscall.RawConn; a listening socket has no use for
// them.
func (p *port) Read(func(uintptr) bool) error  { return errors.ErrUnsupported }
func (p *port) Write(func(uintptr) bool) error { return errors.ErrUnsupported }

// stop closes the socket. Whoever is in its queue was connected before, and is
// served.
func (p *port) stop() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil
	}
	if p.serving {
		// Closing does not do it if another Listener has the socket too, or a service
		// manager, and wakes would be lost on who does not accept.
		for _, l := range p.l.cfg.Loops.loops {
			l.drop(p.fd)
		}
		p.acceptLast()
	}
	p.closed = true
	return p.close()
}

// maxLast bounds the connections that are accepted while a socket is closed, since
// others go on coming.
const maxLast = 4096

// acceptLast accepts what is in the queue, for the loops.
func (p *port) acceptLast() {
	for i := range maxLast {
		from := new(unix.RawSockaddrAny)
		fd, e := p.l.acceptFD(p.fd, from)
		switch e {
		case 0:
		case unix.EINTR, unix.ECONNABORTED, unix.EPROTO:
			continue
		default:
			return
		}
		p.conns.Add(1)
		l := p.l.cfg.Loops.loops[i%len(p.l.cfg.Loops.loops)]
		if !l.post(func() { l.admit(p, fd, peerOf(from)) }) {
			sysReset(fd)
			p.conns.Done()
		}
	}
}

// serve has the loops accept from p until done.
func (ls *Loops) serve(p *port, done <-chan struct{}) {
	p.mu.Lock()
	p.serving = true // what stop uses is set
	p.mu.Unlock()
	for _, l := range ls.loops {
		if p.fd >= 0 {
			l.post(func() { l.listen(p) })
		}
	}
	<-done
	// Whoever closed done is about to do this too. After it, nobody accepts.
	_ = p.stop()
	for _, l := range ls.loops {
		l.post(func() { l.forget(p) })
	}
	p.conns.Wait()
}

// cut resets the connections of a listener.
func (ls *Loops) cut(l *Listener) {
	l.port.cutting.Store(true) // for those on their way from one loop to another
	ls.eachOf(l, func(p *pair) { p.abort(FlagLR, errCut) })
}

// review has them look at what Ends says of their endpoints.
func (ls *Loops) review(l *Listener) { ls.eachOf(l, (*pair).arm) }

// eachOf has the loops call f for each connection of a listener.
func (ls *Loops) eachOf(l *Listener, f func(*pair)) {
	for _, lp := range ls.loops {
		lp.post(func() {
			lp.each(func(p *pair) {
				if p.l == l {
					f(p)
				}
			})
		})
	}
}

// describe returns the connections of a listener, at most most of each loop.
func (ls *Loops) describe(ctx context.Context, l *Listener, most int) (all []Connection, err error) {
	answers := make(chan []Connection, len(ls.loops))
	asked := 0
	for _, lp := range ls.loops {
		if lp.post(func() {
			var own []Connection
			lp.each(func(p *pair) {
				if p.l == l && len(own) < most {
					own = append(own, p.describe())
				}
			})
			answers <- own
		}) {
			asked++
		}
	}
	for range asked {
		select {
		case own := <-answers:
			all = append(all, own...)
		case <-ctx.Done():
			return all, ctx.Err()
		}
	}
	return all, nil
}

func (p *pair) describe() Connection {
	if !p.connected {
		state := "connecting"
		if p.state == greeting {
			state = "greeting"
		}
		return Connection{Listener: p.l.cfg.Name, State: state, Start: p.start}
	}
	state := "open"
	switch {
	case p.state == delivering:
		state = "ending"
	case p.half():
		state = "half-closed"
	}
	return p.connection(state, p.bytes[down], p.bytes[up])
}
