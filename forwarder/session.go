package forwarder

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"gatehouse.internal/lbcore"
)

// What lies behind flags that are not some system call's error.
var (
	errSelf         = errors.New("the endpoint is the listener itself")
	errNothingReady = &Refusal{FlagUH, "no endpoint is ready"}
	errIdle         = errors.New("idle_timeout: no byte in either direction")
	errHalfClosed   = errors.New("half-closed: no byte from the other side for too long")
	errCut          = errors.New("cut by the agent: shutdown, or the drain deadline")
)

// session is one connection from accept to end: what every relay shares. The
// selection, the dials and their reports are methods of the goroutine that
// serves it; how it moves bytes is the relay's.
type session struct {
	l         *Listener
	settings  *Settings     // those in force when it was accepted
	aborted   chan struct{} // closed by abort
	rec       Record
	picks     lbcore.Picks
	want      Dial
	member    *lbcore.Member // being dialled, or connected
	began     time.Duration  // when member's dial did, since rec.Start
	connected bool
	spoken    bool     // the endpoint has sent a byte; whoever reads it, until the relay has ended
	text      [48]byte // the client's address; here because hashing makes it escape

	client, upstream  leg
	bytesIn, bytesOut atomic.Uint64
	active            atomic.Int64 // when the last byte passed, since rec.Start

	mu      sync.Mutex
	flagged bool // rec.Flag and rec.Err are decided: the first cause counts
	cut     bool // both legs are closed, or will be as soon as they appear
	half    bool
	timer   *time.Timer // of silence; nil while there is no limit
}

// leg is one of a session's two sockets.
type leg struct {
	conn   net.Conn
	flag   Flag        // what it counts as if this leg breaks
	broken atomic.Bool // it was reset, or can't be reached
	shut   atomic.Bool // the end of stream was sent, or is about to be
}

func newSession(l *Listener, conn net.Conn) *session {
	s := &session{l: l, settings: l.settings.Load(), aborted: make(chan struct{})}
	s.rec.Listener = l.cfg.Name
	s.rec.Start = time.Now()
	if a, ok := conn.RemoteAddr().(*net.TCPAddr); ok {
		ap := a.AddrPort()
		s.rec.Client = netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
	}
	s.client.conn, s.client.flag, s.upstream.flag = conn, FlagDC, FlagUC
	return s
}

// serve runs the session to its end.
func (s *session) serve(ctx context.Context) {
	tune(s.client.conn)
	if s.connect(ctx) {
		s.l.relay.relay(s)
	}
	s.finish()
}

// connect makes a selection and dials its candidates. If that gives no
// connection the session is aborted.
func (s *session) connect(ctx context.Context) bool {
	if err := s.pick(); err != nil {
		s.refuse(err)
		return false
	}
	m := s.next()
	if m == nil && s.picks.Len() > 0 {
		// Whoever was ready is not any more, as when a whole membership was
		// replaced between the two: others may be.
		if err := s.pick(); err != nil {
			s.refuse(err)
			return false
		}
		m = s.next()
	}
	var last error
	for ; m != nil; m = s.next() {
		var conn net.Conn
		err := errSelf
		if !s.l.is(m.Addr()) {
			conn, err = s.l.dial(ctx, m.Addr(), s.want.Timeout)
		}
		if err == nil {
			return s.dialled(conn)
		}
		last = err
		s.dialFailed(err, ctx.Err() != nil || localFault(err))
		if ctx.Err() != nil {
			s.abort(FlagLR, errCut)
			return false
		}
	}
	if last == nil {
		s.refuse(errNothingReady)
	} else {
		s.fail(FlagUF, last)
	}
	return false
}

// pick makes the selection.
func (s *session) pick() error {
	r := s.l.cfg.Gate.Pin()
	picks, want, err := s.l.cfg.Upstream.Pick(r, s.key())
	r.Unpin()
	s.picks = picks
	if want != nil {
		s.want = *want
	}
	if s.want.Timeout <= 0 {
		s.want.Timeout = DefaultConnectTimeout
	}
	if s.want.Attempts <= 0 {
		s.want.Attempts = DefaultConnectAttempts
	}
	s.rec.Cluster, s.rec.Generation = s.want.Cluster, picks.Generation()
	return err
}

// key is what the selection hashes.
func (s *session) key() lbcore.Key {
	if s.settings.HashOn != HashSourceIP || !s.rec.Client.IsValid() {
		return lbcore.Key{}
	}
	return lbcore.BytesKey(s.rec.Client.Addr().WithZone("").AppendTo(s.text[:0]))
}

// next returns the next candidate to dial and reports that it is dialled, or
// returns nil if no further one is allowed or ready. After it comes exactly
// one of dialFailed and dialled.
func (s *session) next() *lbcore.Member {
	if s.rec.Attempts >= s.want.Attempts {
		return nil
	}
	m := s.picks.Next()
	if m == nil {
		return nil
	}
	if s.rec.Attempts++; s.rec.Attempts > 1 {
		s.l.counters.retries.Add(1)
	}
	s.member, s.rec.Endpoint, s.began = m, m.Addr(), time.Since(s.rec.Start)
	s.l.counters.dials.Add(1)
	m.StartDial()
	return m
}

// dialFailed reports a dial without a connection; ours says that the cause was
// on this side.
func (s *session) dialFailed(err error, ours bool) {
	if ours {
		s.l.counters.dialsAbandoned.Add(1)
		s.member.DialAbandoned()
	} else {
		s.l.counters.dialsFailed.Add(1)
		s.member.DialFailed()
		if s.want.Failed != nil {
			s.want.Failed(s.member)
		}
	}
	s.l.log.Debug("dial failed", "cluster", s.rec.Cluster, "endpoint", s.rec.Endpoint, "err", err)
}

// dialled takes over the connection to the endpoint. It reports false if the
// session has been cut meanwhile.
func (s *session) dialled(conn net.Conn) bool {
	tune(conn)
	s.member.Connected()
	s.rec.Connect = time.Since(s.rec.Start)
	s.l.counters.connects.Add(1)
	s.l.counters.connectTime.Add(int64(s.rec.Connect))
	s.connected = true
	if s.want.Observe != nil && !s.want.FirstByte {
		s.want.Observe(s.member, s.rec.Connect-s.began)
	}
	s.mu.Lock()
	cut := s.cut
	s.upstream.conn = conn
	s.mu.Unlock()
	if cut {
		reset(conn)
		return false
	}
	s.active.Store(int64(s.rec.Connect))
	s.watch()
	return true
}

// speaks tells that the endpoint's first byte has come.
func (s *session) speaks() {
	s.spoken = true
	if s.want.Observe != nil && s.want.FirstByte {
		s.want.Observe(s.member, time.Since(s.rec.Start)-s.began)
	}
}

// refuse ends a session for which nothing was picked.
func (s *session) refuse(err error) {
	flag := FlagUH
	if r, ok := errors.AsType[*Refusal](err); ok {
		flag = r.Flag
	}
	s.fail(flag, err)
}

// fail ends a session that has no endpoint.
func (s *session) fail(flag Flag, err error) {
	if held, ok := s.l.failLog.allow(); ok {
		s.l.log.Warn("no endpoint for a connection", "cluster", s.rec.Cluster, "flag", flag, "err", err, "attempts", s.rec.Attempts, "not_logged", held)
	}
	s.abort(flag, err)
}

// finish ends the session: the relay is done with it.
func (s *session) finish() {
	s.mu.Lock()
	if s.timer != nil {
		s.timer.Stop()
	}
	cut := s.cut
	s.cut, s.flagged = true, true
	s.mu.Unlock()
	if !cut {
		closeConn(s.client.conn)
		closeConn(s.upstream.conn)
	}
	s.rec.Duration = time.Since(s.rec.Start)
	s.rec.BytesIn, s.rec.BytesOut = s.bytesIn.Load(), s.bytesOut.Load()
	if s.connected {
		s.member.Closed(s.rec.BytesIn, s.rec.BytesOut)
		if s.want.Failed != nil && s.want.FirstByte && !s.spoken && s.rec.Flag == FlagUC {
			s.want.Failed(s.member)
		}
	}
	s.l.counters.flags[s.rec.Flag].Add(1)
	if s.rec.Err == errHalfClosed {
		s.l.counters.halfClosedTimeouts.Add(1)
		s.l.log.Debug("ended a half-closed connection", "cluster", s.rec.Cluster, "endpoint", s.rec.Endpoint)
	}
	s.l.remove(s)
	if s.l.cfg.OnDone != nil {
		s.l.cfg.OnDone(&s.rec)
	}
}

// blame decides the session's flag, unless something did before.
func (s *session) blame(flag Flag, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.flagged {
		s.flagged, s.rec.Flag, s.rec.Err = true, flag, err
	}
}

// abort resets both sides, whatever they are doing. It may be called from
// anywhere, also after the end.
func (s *session) abort(flag Flag, err error) {
	s.blame(flag, err)
	s.mu.Lock()
	cut, client, upstream := s.cut, s.client.conn, s.upstream.conn
	s.cut = true
	s.mu.Unlock()
	if !cut {
		close(s.aborted)
		reset(client)
		reset(upstream)
	}
}

// moved counts n bytes that have been passed on.
func (s *session) moved(count *atomic.Uint64, n int) {
	if n > 0 {
		count.Add(uint64(n))
		s.active.Store(int64(time.Since(s.rec.Start)))
	}
}

// halfClosed tells that one direction has ended and the other goes on.
func (s *session) halfClosed() {
	s.active.Store(int64(time.Since(s.rec.Start)))
	s.mu.Lock()
	s.half = true
	s.mu.Unlock()
	s.watch()
}

// watch ends the session if it has been silent for too long, and otherwise
// sets the timer to when it will have been. So there is one timer to a
// connection, and it is set anew only when it has fired.
func (s *session) watch() {
	s.mu.Lock()
	limit, err := s.settings.IdleTimeout, errIdle
	if h := s.settings.HalfClosedTimeout; s.half && h > 0 && (limit == 0 || h < limit) {
		limit, err = h, errHalfClosed
	}
	if limit <= 0 || s.cut {
		s.mu.Unlock()
		return
	}
	left := limit - time.Since(s.rec.Start) + time.Duration(s.active.Load())
	if left > 0 {
		if s.timer == nil {
			s.timer = time.AfterFunc(left, s.watch)
		} else {
			s.timer.Reset(left)
		}
	}
	s.mu.Unlock()
	if left <= 0 {
		s.abort(FlagSI, err)
	}
}

// localFault reports whether a dial failed for a cause on this side: no port,
// descriptor or memory left, no such address family, or a local rule that
// forbids it. Such a failure says nothing of the endpoint.
func localFault(err error) bool {
	errno, ok := errors.AsType[syscall.Errno](err)
	if !ok {
		return errors.Is(err, context.Canceled)
	}
	switch errno {
	case syscall.EADDRNOTAVAIL, syscall.EADDRINUSE, syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM,
		syscall.EAFNOSUPPORT, syscall.EPROTONOSUPPORT, syscall.EPERM, syscall.EACCES:
		return true
	}
	return false
}
