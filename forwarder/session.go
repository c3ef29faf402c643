package forwarder

import (
	"context"
	"crypto/tls"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"gatehouse.internal/internal/contain"
	"gatehouse.internal/internal/tlsconf"
)

// session is a flow that goroutines serve: one to dial and pass the client's
// bytes on, one for the endpoint's. mu guards what both write, and what abort
// does, of the flow too.
type session struct {
	flow
	own     selection
	first   []byte        // what was read of the client's bytes before its endpoint was chosen; written before dialOut is called, and taken by secure
	aborted chan struct{} // closed by abort

	upstream, downstream leg
	bytesIn, bytesOut    atomic.Uint64
	left                 atomic.Int32 // directions that have not ended
	active               atomic.Int64 // when the last byte passed, since start

	mu    sync.Mutex
	cut   bool // both legs are closed, or will be as soon as they appear
	half  bool
	timer *time.Timer // of silence, and of the end; nil while there is no limit
}

// leg is one of a session's two sockets.
type leg struct {
	conn   net.Conn
	flag   Flag        // what it counts as if this leg breaks
	broken atomic.Bool // it was reset, or can't be reached
	shut   atomic.Bool // the end of stream was sent, or is about to be
	out    outQueue    // guarded by session.mu
}

func newSession(l *Listener, conn net.Conn) *session {
	var f flow
	f.admit(l, peer(conn))
	f.limitAge(0)
	return continueSession(f, conn)
}

// peer returns who has connected; the zero value for a unix socket's client.
func peer(conn net.Conn) netip.AddrPort {
	if a, ok := conn.RemoteAddr().(*net.TCPAddr); ok {
		return a.AddrPort()
	}
	return netip.AddrPort{}
}

// continueSession makes a session of a flow that may have begun elsewhere. Its
// times are since its start.
func continueSession(f flow, conn net.Conn) *session {
	s := &session{flow: f, aborted: make(chan struct{})}
	if f.sel != nil {
		s.own = *f.sel
	}
	s.sel = &s.own
	s.downstream.conn, s.downstream.flag, s.upstream.flag = conn, FlagDC, FlagUC
	return s
}

// serve runs the session to its end.
func (s *session) serve(ctx context.Context) {
	if err := s.run(ctx); err != nil {
		if s.trying {
			s.dialFailed(err, true)
		}
		s.abort(FlagLR, err)
	}
	s.end()
}

// run is what goroutines do of serve. Its error is a panic; no lock is held then, as they
// are given back by defer, and no other session sees anything of it.
func (s *session) run(ctx context.Context) (err error) {
	defer s.l.cfg.Panics.Recover(contain.Connection, &err)
	tune(s.downstream.conn, s.settings.Keepalive)
	s.watch()
	// What comes from a loop with its selection, or its chain, has been greeted there.
	chosen := s.member != nil
	if (chosen || s.chain() != nil || s.locate() && s.greet() && s.inspect() && s.choose()) &&
		(!s.settings.endsTLS() || s.secure(ctx)) && (chosen || s.permitted()) && s.dialOut(ctx) {
		s.l.relay.relay(s)
	}
	return nil
}

// local returns the address of this end of the client's connection.
func (s *session) local() netip.AddrPort { return localAddr(s.downstream.conn) }

// localAddr returns the address of this end of a connection, unmapped; it is
// invalid for a unix socket's.
func localAddr(c net.Conn) netip.AddrPort {
	a, ok := c.LocalAddr().(*net.TCPAddr)
	if !ok {
		return netip.AddrPort{}
	}
	return proxyUnmap(a.AddrPort())
}

// locate asks for the original destination, if settings say so. If that leads
// round in a circle the session is aborted.
func (s *session) locate() bool {
	if !s.settings.OriginalDst && !s.handed {
		return true
	}
	local := s.local()
	if err := s.arrives(originalDst(s.downstream.conn, local), local); err != nil {
		s.abort(FlagNR, err)
		return false
	}
	return true
}

// choose finds the session's filter chain. If it has none that takes it the session
// is aborted.
func (s *session) choose() bool {
	var local netip.AddrPort
	if s.unknownLocal() {
		local = s.local()
	}
	if flag, err := s.assign(local, time.Since(s.start)); err != nil {
		s.abort(flag, err)
		return false
	}
	return true
}

// permitted asks whether the client may connect. If not the session is aborted.
func (s *session) permitted() bool {
	if err := s.allowed(); err != nil {
		s.abort(FlagUAEX, err)
		return false
	}
	return true
}

// dialOut makes a selection and dials its candidates. If that gives no
// connection the session is aborted.
func (s *session) dialOut(ctx context.Context) (ok bool) {
	var conn net.Conn
	defer func() {
		if !ok {
			reset(conn) // also where something panics, of which abort may not know it
		}
	}()
	m, flag, err := s.member, FlagNone, error(nil)
	if m == nil { // else an event loop has made the selection
		if s.unknownDest() {
			s.connectedTo(s.local())
		}
		m, flag, err = s.begin()
	}
	for ; m != nil; m = s.next() {
		var secured *tls.Config
		unsecured := false
		if !s.want.plain(m) {
			secured, err = s.want.TLS(m)
			if unsecured = err != nil; unsecured {
				s.want.TLSFailures.Add(tlsconf.ReasonUnusable)
			}
		}
		if !unsecured {
			conn, err = s.dialEndpoint(ctx, m)
		}
		if err == nil {
			if err = s.leaves(localAddr(conn), s.remote().AddrPort()); err != nil {
				s.dialFailed(err, true)
				s.abort(FlagNR, err)
				return false
			}
		}
		if err == nil && secured != nil {
			conn, err = s.dialTLS(ctx, conn, secured)
		}
		if err == nil {
			return s.reached(conn)
		}
		flag = FlagUF
		s.dialFailed(err, unsecured || ctx.Err() != nil || localFault(err))
		if ctx.Err() != nil {
			s.abort(FlagLR, errCut)
			return false
		}
		select {
		case <-s.aborted: // while it dialled
			return false
		default:
		}
	}
	s.undone(flag, err)
	s.abort(flag, err)
	return false
}

// reached takes over the connection to the endpoint. It reports false if the
// session has been cut meanwhile.
func (s *session) reached(conn net.Conn) bool {
	tune(plain(conn), s.want.Keepalive)
	s.dialled()
	s.mu.Lock()
	cut := s.cut
	s.upstream.conn = conn
	s.mu.Unlock()
	if cut {
		return false
	}
	s.active.Store(int64(s.connect))
	s.watch()
	if err := s.introduce(); err != nil {
		s.abort(FlagLR, err)
		return false
	}
	return true
}

// end ends the session: the relay is done with it.
func (s *session) end() {
	s.mu.Lock()
	if s.timer != nil {
		s.timer.Stop()
	}
	cut := s.cut
	s.cut, s.flagged = true, true
	s.mu.Unlock()
	if !cut {
		closeConn(s.downstream.conn)
		closeConn(s.upstream.conn)
	}
	s.l.remove(s)
	if s.flag == FlagUC && isTLS(s.upstream.conn) && !s.spoken {
		// In TLS 1.3 this is how an endpoint says that it doesn't accept our
		// certificate.
		s.want.TLSFailures.Add(tlsconf.ReasonOf(s.err))
		s.undone(s.flag, s.err)
	}
	s.finish(s.bytesIn.Load(), s.bytesOut.Load())
}

// abort resets both sides, whatever they are doing. It may be called from
// anywhere, also after the end.
func (s *session) abort(flag Flag, err error) {
	s.mu.Lock()
	s.blame(flag, err)
	cut, client, upstream := s.cut, s.downstream.conn, s.upstream.conn
	s.cut = true
	s.mu.Unlock()
	if !cut {
		close(s.aborted)
		reset(client)
		reset(upstream)
	}
}

// broke tells that a leg is of no more use.
func (s *session) broke(l *leg, err error) {
	s.mu.Lock()
	s.blame(l.flag, err)
	s.mu.Unlock()
	l.broken.Store(true)
	s.halfClosed()
}

// moved counts n bytes that have been passed on.
func (s *session) moved(count *atomic.Uint64, n int) {
	if n > 0 {
		count.Add(uint64(n))
		s.active.Store(int64(time.Since(s.start)))
	}
}

// halfClosed tells that one direction has ended and the other goes on.
func (s *session) halfClosed() {
	s.active.Store(int64(time.Since(s.start)))
	s.mu.Lock()
	s.half = true
	s.mu.Unlock()
	s.watch()
}

// ask is for silence.
func (s *session) ask() (changed, some bool) {
	for _, l := range [...]*leg{&s.downstream, &s.upstream} {
		changed = l.out.holds(unsent(l.conn)) || changed
		some = some || l.out > 0
	}
	return changed, some
}

// watch ends the session if it has been silent for too long or its time is
// over, and otherwise sets the timer to when that will be. So there is one timer
// to a connection, and bytes do not touch it.
func (s *session) watch() {
	if flag, err, over := s.look(); over {
		s.abort(flag, err)
	}
}

// look is watch without the end, which it says is to come.
func (s *session) look() (flag Flag, err error, over bool) {
	s.mu.Lock()
	defer s.mu.Unlock() // also where it panics
	if s.cut {
		return 0, nil, false
	}
	now := time.Since(s.start)
	connected := s.upstream.conn != nil
	if connected {
		s.review(now)
	}
	at, flag, err := s.due()
	if limit, why := s.limit(s.half); limit > 0 && connected {
		active := time.Duration(s.active.Load())
		since, t := s.silence(now, active, limit, s.ask)
		s.active.CompareAndSwap(int64(active), int64(since)) // a byte may have passed meanwhile
		if at == 0 || t < at {
			at, flag, err = t, FlagSI, why
		}
	}
	switch left := at - now; {
	case at == 0 || left <= 0:
	case s.timer == nil:
		s.timer = time.AfterFunc(left, s.watch)
	default:
		s.timer.Reset(left)
	}
	return flag, err, at != 0 && at <= now
}
