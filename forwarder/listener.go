package forwarder

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"gatehouse.internal/internal/contain"
	"gatehouse.internal/lbcore"
)

// Listener forwards the connections of one socket.
type Listener struct {
	cfg      Config
	settings atomic.Pointer[Settings]
	log      *slog.Logger
	relay    relay
	extra    extra
	dial     func(ctx context.Context, a lbcore.Addr, d *Dial) (net.Conn, error)
	acceptFD acceptFD
	dialFD   dialFD
	counters counters

	acceptLog, failLog, proxyLog, tlsLog, chainLog sampler

	own  lbcore.Addr // what the socket is bound to, since Bind
	port *port       // nil without loops

	stopped chan struct{} // closed when no connection is accepted any more
	expired chan struct{} // closed when open connections are to be cut
	ended   chan struct{} // closed when Run has ended, or never will begin

	draining atomic.Pointer[ending] // set when connections begin to be closed

	mu                sync.Mutex
	ln                net.Listener
	close             func() error // closes the socket; nil before Bind
	state             state
	takes             *sync.WaitGroup // of the connections that goroutines serve, while they run
	serves            func(conn net.Conn, handed bool)
	open              map[*session]struct{}
	cutting           bool   // sessions are cut as soon as they appear
	bytesIn, bytesOut uint64 // of sessions that have ended
}

type state uint8

const (
	fresh state = iota
	bound
	running
	over // Run has ended, or Drain came first
)

// New returns a Listener that does nothing yet.
func New(cfg Config) (*Listener, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	if cfg.Circles == nil {
		cfg.Circles = new(Circles)
	}
	x := extra{cfg.Extra, cfg.MaxExtra}
	if x.open == nil {
		x.open = new(Count)
	}
	if x.most == 0 {
		x.most = ExtraFor(MaxDescriptors())
	}
	log := cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	l := &Listener{
		cfg: cfg, log: log.With("listener", cfg.Name), relay: newGoroutineRelay(x), extra: x, dial: dial, acceptFD: sysAccept, dialFD: sysDial,
		stopped: make(chan struct{}), expired: make(chan struct{}), ended: make(chan struct{}),
		open: make(map[*session]struct{}),
	}
	l.settings.Store(cfg.Settings.normal())
	return l, nil
}

// Set changes the settings for connections that are accepted from now on. Bad
// ones are an error and change nothing.
func (l *Listener) Set(s Settings) error {
	cfg := l.cfg
	cfg.Settings = s
	if err := cfg.validate(); err != nil {
		return err
	}
	next := s.normal()
	if c := l.socket(); c != nil {
		if err := l.arrange(c, next, l.settings.Load()); err != nil {
			return fmt.Errorf("listener %q: %w", l.cfg.Name, err)
		}
	}
	l.settings.Store(next)
	return nil
}

// Name returns the configured name.
func (l *Listener) Name() string { return l.cfg.Name }

// Addr returns the address that the socket is bound to, with the port that was
// chosen if 0 was asked for; before Bind, the configured one.
func (l *Listener) Addr() lbcore.Addr {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.own.IsValid() {
		return l.own
	}
	return l.cfg.Addr
}

// addrOf returns what a socket is bound to.
func addrOf(ln net.Listener) lbcore.Addr {
	switch a := ln.Addr().(type) {
	case *net.TCPAddr:
		return lbcore.IPAddr(a.AddrPort())
	case *net.UnixAddr:
		return lbcore.UnixAddr(a.Name)
	}
	return lbcore.Addr{}
}

// OnLoops reports whether event loops serve the connections, once Bind has
// returned. It may be called from anywhere.
func (l *Listener) OnLoops() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.port != nil
}

// Bind opens the socket. Connections wait in its queue until Run.
func (l *Listener) Bind(ctx context.Context) error {
	s := l.settings.Load()
	var ln net.Listener
	var err error
	switch {
	case l.cfg.NoBind:
		ln = newHandedOnly(l.cfg.Addr)
	default:
		ln = l.cfg.Of.share()
	}
	if ln == nil && l.cfg.Listen != nil {
		ln, err = l.cfg.Listen(ctx, l.cfg.Addr)
	}
	if ln == nil && err == nil {
		ln, err = s.Socket.listen(ctx, l.cfg.Addr)
	}
	if err == nil && !l.cfg.NoBind {
		if err = l.arrange(ln, s, new(Settings)); err != nil {
			err = errors.Join(err, ln.Close())
		}
	}
	if err != nil {
		return fmt.Errorf("listener %q: listen on %s: %w", l.cfg.Name, l.cfg.Addr, err)
	}
	own := addrOf(ln)
	var p *port
	stop := ln.Close
	if l.cfg.Loops != nil {
		if p, err = newPort(l, ln); err != nil {
			return fmt.Errorf("listener %q: listen on %s: %w", l.cfg.Name, l.cfg.Addr, err)
		}
		if p != nil {
			stop = p.stop
		}
	}
	l.mu.Lock()
	ok := l.state == fresh
	if ok {
		l.ln, l.close, l.port, l.own, l.state = ln, stop, p, own, bound
	}
	l.mu.Unlock()
	if !ok {
		return errors.Join(fmt.Errorf("listener %q: bound or drained already", l.cfg.Name), stop())
	}
	return nil
}

// is reports whether a leads to the listener itself. One connection to it would
// take all descriptors. A way round by several listeners is not seen.
func (l *Listener) is(a lbcore.Addr) bool {
	own, to := l.own.AddrPort(), a.AddrPort()
	return a == l.own || own.IsValid() && own.Port() == to.Port() && own.Addr().IsUnspecified() && to.Addr().IsLoopback()
}

// Run accepts and forwards until Drain has ended, and returns nil then, or
// until ctx ends: then it resets every connection and returns ctx.Err(). It
// returns only after every connection's goroutines have. After Drain without
// Run there is nothing to do, and it returns nil.
func (l *Listener) Run(ctx context.Context) error {
	l.mu.Lock()
	was := l.state
	if was == bound {
		l.state = running
	}
	l.mu.Unlock()
	switch was {
	case fresh, running:
		return fmt.Errorf("listener %q: run needs one successful bind before it, and happens once", l.cfg.Name)
	case over:
		return nil
	}
	dials, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan struct{})
	var guard, conns sync.WaitGroup
	guard.Go(func() {
		select {
		case <-ctx.Done():
		case <-l.expired:
		case <-done:
			return
		}
		l.Stop()
		cancel()
		l.cut()
	})
	if l.port != nil {
		l.port.begin(&conns, func(s *session) { s.serve(dials) })
		l.cfg.Loops.serve(l.port, l.stopped)
	} else {
		l.accept(dials, &conns)
		conns.Wait()
	}
	close(done)
	guard.Wait()
	l.Stop()
	l.relay.close()
	l.mu.Lock()
	l.state = over
	l.mu.Unlock()
	close(l.ended)
	return ctx.Err()
}

const (
	minAcceptWait = 5 * time.Millisecond
	maxAcceptWait = time.Second
)

// accept serves connections until stop. Every error is taken to pass, such as
// running out of descriptors: a listener that has given up is worse than one
// that asks once a second.
func (l *Listener) accept(ctx context.Context, conns *sync.WaitGroup) {
	serve := func(conn net.Conn, handed bool) {
		if err := l.admits(); err != nil {
			reset(conn)
			l.refused(peer(conn), FlagOM, err)
			return
		}
		s := l.admit(conn)
		s.handed = handed
		conns.Go(func() { s.serve(ctx) })
	}
	l.mu.Lock()
	l.takes, l.serves = conns, serve
	l.mu.Unlock()
	var wait time.Duration
	for {
		conn, err := l.ln.Accept()
		if err == nil {
			wait = 0
			switch taken, err := l.handOff(conn); {
			case err != nil:
				reset(conn)
				l.spoilt(peer(conn), err)
			case !taken:
				serve(conn, false)
			}
			continue
		}
		select {
		case <-l.stopped:
			return
		default:
		}
		wait = l.acceptFailed(err, wait)
		select {
		case <-time.After(wait):
		case <-l.stopped:
			return
		}
	}
}

// admits counts a connection that was accepted, and returns why it is one too
// many, or nil. If it is, refused follows.
func (l *Listener) admits() error {
	c := &l.counters
	c.accepted.Add(1)
	active := c.active.Add(1)
	var err error
	switch n := l.settings.Load().MaxConnections; {
	case n > 0 && active > int64(n):
		err = errMaxConnections
	case !l.cfg.Open.take(l.cfg.MaxOpen):
		err = errMaxOpen
	default:
		return nil
	}
	c.active.Add(-1)
	c.flags[FlagOM].Add(1)
	c.over(err)
	return err
}

// spoilt counts and tells of a connection that is given up before it is known which
// Listener it is for: none of them may serve it by guess.
func (l *Listener) spoilt(client netip.AddrPort, err error) {
	l.counters.accepted.Add(1)
	l.counters.flags[FlagLR].Add(1)
	l.refused(client, FlagLR, err)
}

// refused tells of the end of a connection that was not begun. A panic of who is told
// changes nothing of it.
func (l *Listener) refused(client netip.AddrPort, flag Flag, err error) {
	if l.cfg.OnDone == nil {
		return
	}
	var bug error // is logged
	defer l.cfg.Panics.Recover(contain.Connection, &bug)
	rec := records.Get().(*Record)
	*rec = Record{
		Listener: l.cfg.Name, Client: netip.AddrPortFrom(client.Addr().Unmap(), client.Port()), Local: l.own,
		Start: time.Now(), Flag: flag, Err: err,
	}
	l.cfg.OnDone(rec)
	records.Put(rec)
}

// acceptFailed returns how long to wait before the next attempt, given how
// long that was before this one.
func (l *Listener) acceptFailed(err error, wait time.Duration) time.Duration {
	l.counters.acceptErrors.Add(1)
	wait = min(max(2*wait, minAcceptWait), maxAcceptWait)
	if held, ok := l.acceptLog.allow(); ok {
		l.log.Warn("can't accept, will try again", "err", err, "in", wait, "not_logged", held)
	}
	return wait
}

// admit makes a session of an accepted connection.
func (l *Listener) admit(conn net.Conn) *session {
	s := newSession(l, conn)
	l.enter(s)
	return s
}

// enter enters a session into the table.
func (l *Listener) enter(s *session) {
	l.mu.Lock()
	l.open[s] = struct{}{}
	cutting := l.cutting
	l.mu.Unlock()
	if cutting {
		s.abort(FlagLR, errCut)
	}
}

// remove takes an ended connection out of the table.
func (l *Listener) remove(s *session) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.open, s)
	l.bytesIn += s.bytesIn.Load()
	l.bytesOut += s.bytesOut.Load()
}

// Stop closes the socket, so that its address is free when it returns; open
// connections go on. Those in its queue are served by event loops, and reset by the
// kernel where there are none. It is the
// first step of Drain, which is to follow, and may be called from anywhere.
func (l *Listener) Stop() {
	l.mu.Lock()
	stop := l.close
	select {
	case <-l.stopped:
		stop = nil
	default:
		close(l.stopped)
	}
	l.mu.Unlock()
	if stop == nil {
		return
	}
	if err := stop(); err != nil && !errors.Is(err, net.ErrClosed) {
		l.log.Warn("can't close the listening socket", "err", err)
	}
}

// cut resets every connection, also those that Accept returned just now.
func (l *Listener) cut() {
	l.mu.Lock()
	l.cutting = true
	l.mu.Unlock()
	for _, s := range l.sessions() {
		s.abort(FlagLR, errCut)
	}
	if l.port != nil {
		l.cfg.Loops.cut(l)
	}
}
