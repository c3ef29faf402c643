package forwarder

import (
	"cmp"
	"context"
	"errors"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"github.com/pires/go-proxyproto"

	"gatehouse.internal/forwarder/filterchain"
	"gatehouse.internal/forwarder/rbac"
	"gatehouse.internal/internal/contain"
	"gatehouse.internal/lbcore"
)

// What lies behind flags that are not some system call's error.
var (
	errSelf         = errors.New("the endpoint is the listener itself")
	errNothingReady = &Refusal{FlagUH, "no endpoint is ready"}
	errIdle         = errors.New("idle_timeout: no byte in either direction")
	errHalfClosed   = errors.New("half-closed: no byte from the other side for too long")
	errOverflow     = errors.New("max_connections of the cluster, or of each of its endpoints, are open")
	errPending      = errors.New("max_pending_requests of the cluster are waiting for their endpoints")
	errCut          = errors.New("cut by the agent: shutdown, or the drain deadline")
)

// flow is what every relay does alike about one connection: the selection, the
// order of dials, what is reported of them, and how it ended. It belongs to
// the goroutine or event loop that serves the connection.
type flow struct {
	l          *Listener
	settings   *Settings // those in force when it was accepted
	want       *Dial     // never written; nil before pick
	member     *lbcore.Member
	sel        *selection     // what pick fills; not looked at once connected
	client     netip.AddrPort // unmapped; the zero value for a unix socket's
	via        *lbcore.Addr   // the additional address of member that is connected; nil for its own
	start      time.Time
	began      time.Duration // when member's dial did, since start
	connect    time.Duration // Record.Connect
	generation uint64
	err        error // what lies behind flag
	rare       *rare // nil for nothing
	attempts   int16
	flag       Flag
	flagged    bool // flag and err are decided: the first cause counts
	connected  bool
	spoken     bool // the endpoint has sent a byte
	counted    bool // by want.Open
	pending    bool // by want.Pending
	full       bool // a candidate had MaxPerEndpoint connections
	greeting   bool // the client's PROXY header is due
	inspecting bool // its ClientHello is
	trying     bool // member is being dialled
	draining   bool // it knows that the listener drains
	drained    bool // that is why it has a last moment
	handed     bool // another listener has accepted it
	term       term
}

// rare is what is known of few connections.
type rare struct {
	dest   netip.AddrPort // Record.Destination
	peer   string         // Record.PeerName
	name   string         // Record.ServerName
	direct netip.Addr     // the peer, where the client is another one
	// What Circles knows of the flow; zero for nothing.
	arrived, left hop
}

// known returns f.rare, made if need be.
func (f *flow) known() *rare {
	if f.rare == nil {
		f.rare = new(rare)
	}
	return f.rare
}

// clientName names the client in a line of the log.
func (f *flow) clientName() string {
	if !f.client.IsValid() {
		return "a unix socket's"
	}
	return f.client.String()
}

// dest returns what the client has connected to, as far as somebody has said.
func (f *flow) dest() (to netip.AddrPort) {
	if f.rare != nil {
		to = f.rare.dest
	}
	return to
}

// connectedTo tells what the client has connected to; an invalid address is
// nothing.
func (f *flow) connectedTo(a netip.AddrPort) {
	if a.IsValid() {
		f.known().dest = a
	}
}

// selection is what a flow needs until it is connected.
type selection struct {
	picks lbcore.Picks
	text  [48]byte   // an address; here because hashing makes it escape
	key   lbcore.Key // of what the client has said first
	hello helloScan
	tlvs  []proxyproto.TLV // of the client's PROXY header
	race  *race            // several addresses of one endpoint are being dialled
	conn  filterchain.Conn // what a filter chain is found by
	peer  rbac.Peer        // what its RBAC filters look at
}

// admit begins a flow.
func (f *flow) admit(l *Listener, client netip.AddrPort) {
	f.l, f.settings, f.start = l, l.settings.Load(), time.Now()
	f.client = netip.AddrPortFrom(client.Addr().Unmap(), client.Port())
}

var noDial = new(Dial)

// pick makes the selection.
func (f *flow) pick() error {
	up := f.l.cfg.Upstream
	if c := f.chain(); c != nil {
		up = c.Upstream
	}
	r := f.l.cfg.Gate.Pin()
	defer r.Unpin() // also where a selector panics: it would wait for this reader
	picks, want, err := up.Pick(r, f.key())
	f.sel.picks = picks
	if want == nil {
		want = noDial
	}
	f.want, f.generation = want, picks.Generation()
	return err
}

// begin makes the selection and returns the first candidate to dial, or how
// the flow ends.
func (f *flow) begin() (*lbcore.Member, Flag, error) {
	for again := false; ; again = true {
		f.release()
		if err := f.pick(); err != nil {
			flag := FlagUH
			if r, ok := errors.AsType[*Refusal](err); ok {
				flag = r.Flag
			}
			return nil, flag, err
		}
		if f.counted = f.want.Open.take(f.want.MaxConnections); !f.counted {
			return nil, FlagUO, errOverflow
		}
		if f.pending = f.want.Pending.take(f.want.MaxPending); !f.pending {
			return nil, FlagUO, errPending
		}
		m := f.next()
		if m != nil {
			return m, FlagNone, nil
		}
		// Whoever was ready is not any more, as when a whole membership was
		// replaced between the two: others may be.
		if again || f.sel.picks.Len() == 0 {
			if f.full {
				f.want.Open.refuse()
				return nil, FlagUO, errOverflow
			}
			return nil, FlagUH, errNothingReady
		}
	}
}

// next returns the next candidate to dial and reports that it is dialled, or
// returns nil if no further one is allowed or ready. After it comes exactly
// one of dialFailed and dialled.
func (f *flow) next() *lbcore.Member {
	if int(f.attempts) >= cmp.Or(f.settings.MaxConnectAttempts, f.want.attempts()) {
		return nil
	}
	m := f.sel.picks.Next()
	for limit := int64(f.want.MaxPerEndpoint); limit != 0 && m != nil && m.Active() >= limit; m = f.sel.picks.Next() {
		f.full = true
	}
	if m == nil {
		return nil
	}
	c := &f.l.counters
	if f.attempts++; f.attempts > 1 {
		c.retries.Add(1)
	}
	f.member, f.via, f.began, f.trying = m, nil, time.Since(f.start), true
	c.dials.Add(1)
	m.StartDial()
	return m
}

// dialFailed reports a dial without a connection; ours says that the cause was
// on this side.
func (f *flow) dialFailed(err error, ours bool) {
	f.trying = false
	f.returns()
	if ours {
		f.l.counters.dialsAbandoned.Add(1)
		f.member.DialAbandoned()
	} else {
		f.l.counters.dialsFailed.Add(1)
		f.member.DialFailed()
		if f.want.Failed != nil {
			f.want.Failed(f.member)
		}
	}
	f.l.log.Debug("dial failed", "cluster", f.want.Cluster, "endpoint", f.member.Addr(), "err", err)
}

// dialled reports that the endpoint was reached.
func (f *flow) dialled() {
	f.trying = false
	f.waitsNoMore()
	f.member.Connected()
	f.connect = time.Since(f.start)
	f.l.counters.connects.Add(1)
	f.l.counters.connectTime.Add(int64(f.connect))
	f.connected = true
	if f.want.Latency != nil {
		f.want.Latency.Connect.Observe(f.connect - f.began)
	}
	if f.want.Observe != nil && !f.want.FirstByte {
		f.want.Observe(f.member, f.connect-f.began)
	}
}

// remote returns the address of the endpoint that is connected.
func (f *flow) remote() lbcore.Addr {
	if f.via != nil {
		return *f.via
	}
	return f.member.Addr()
}

// speaks tells that the endpoint's first byte has come.
func (f *flow) speaks() {
	f.spoken = true
	learns := f.want.Observe != nil && f.want.FirstByte
	if !learns && f.want.Latency == nil {
		return
	}
	took := time.Since(f.start) - f.began
	if f.want.Latency != nil {
		f.want.Latency.FirstByte.Observe(took)
	}
	if learns {
		f.want.Observe(f.member, took)
	}
}

// undone tells that the flow has no endpoint.
func (f *flow) undone(flag Flag, err error) {
	if held, ok := f.l.failLog.allow(); ok {
		f.l.log.Warn("no endpoint for a connection", "cluster", f.want.Cluster, "flag", flag, "err", err, "attempts", f.attempts, "not_logged", held)
	}
}

// blame decides the flag, unless something did before.
func (f *flow) blame(flag Flag, err error) {
	if !f.flagged {
		f.flagged, f.flag, f.err = true, flag, err
	}
}

// limit returns how long the flow may be silent, or 0 for ever, and what is
// the matter when it has been.
func (f *flow) limit(half bool) (time.Duration, error) {
	limit, err := f.settings.IdleTimeout, errIdle
	if h := f.settings.HalfClosedTimeout; half && h > 0 && (limit == 0 || h < limit) {
		limit, err = h, errHalfClosed
	}
	return limit, err
}

// looks is how often in a limit on silence the queues are asked: who takes nothing more
// lives that part of the limit longer at most.
const looks = 4

// outQueue is how many bytes lay in the queue of a socket when it was last asked.
type outQueue uint32

// holds tells how many do now, and reports whether that is another number.
func (q *outQueue) holds(n uint32) (changed bool) {
	changed = *q != outQueue(n)
	*q = outQueue(n)
	return changed
}

// silence returns since when the flow, whose last byte was passed on at active, has been
// silent, and when to look again: not after now if that has been so for limit. What
// was passed on lies in a socket's queue until the peer takes it, and that is no silence
// either: the end would throw away the rest. The kernel tells nobody of it, so ask asks
// the queues whether one has changed, and whether there is anything in one.
func (f *flow) silence(now, active, limit time.Duration, ask func() (changed, some bool)) (since, look time.Duration) {
	step := limit / looks
	if now < active+step {
		return active, active + step
	}
	switch changed, some := ask(); {
	case changed:
		return now, now + step
	case some:
		return active, min(now+step, active+limit)
	}
	return active, active + limit
}

// finish reports the end. The sockets are closed.
func (f *flow) finish(in, out uint64) {
	if !f.flagged { // a session's is by now, and abort may look
		f.flagged = true
	}
	if f.connected {
		f.member.Closed(in, out)
	}
	f.greeted()
	f.inspected()
	f.gone()
	c := &f.l.counters
	if c.flags[f.flag].Add(1); f.flag == FlagOM {
		c.over(f.err)
	}
	switch f.err {
	case errCut, ErrDrained:
		c.cut.Add(1)
	case errHalfClosed:
		c.halfClosedTimeouts.Add(1)
		f.l.log.Debug("ended a half-closed connection", "cluster", f.want.Cluster, "endpoint", f.member.Addr())
	}
	c.active.Add(-1)
	f.release()
	f.l.cfg.Open.release()
	chain := f.chain()
	if chain != nil {
		chain.Open.release()
	}
	f.tell(chain, in, out)
}

// tell tells those who want to know of the end. Their panics change nothing of it.
func (f *flow) tell(chain *FilterChain, in, out uint64) {
	var bug error // is logged
	defer f.l.cfg.Panics.Recover(contain.Connection, &bug)
	if f.connected && f.want.Failed != nil && f.want.FirstByte && !f.spoken && f.flag == FlagUC {
		f.want.Failed(f.member)
	}
	if f.l.cfg.OnDone == nil && (chain == nil || chain.OnDone == nil) {
		return
	}
	rec := records.Get().(*Record)
	*rec = Record{
		Listener: f.l.cfg.Name, Client: f.client, Local: f.l.own, Generation: f.generation, Attempts: int(f.attempts),
		Start: f.start, Connect: f.connect, Duration: time.Since(f.start), BytesIn: in, BytesOut: out,
		Flag: f.flag, Err: f.err,
	}
	if f.rare != nil {
		rec.Destination, rec.PeerName, rec.ServerName = f.rare.dest, f.rare.peer, f.rare.name
	}
	if f.want != nil {
		rec.Cluster = f.want.Cluster
	}
	if f.member != nil {
		rec.Endpoint = f.member.Addr()
	}
	if f.connected {
		rec.Address = f.remote()
	}
	if chain != nil {
		rec.Chain = chain.Name
	}
	if f.l.cfg.OnDone != nil {
		f.l.cfg.OnDone(rec)
	}
	if chain != nil && chain.OnDone != nil {
		chain.OnDone(rec)
	}
	records.Put(rec)
}

// records are for OnDone, which does not keep them.
var records = sync.Pool{New: func() any { return new(Record) }}

// waitsNoMore gives back what the count of those that wait holds of the flow.
func (f *flow) waitsNoMore() {
	if f.pending {
		f.pending = false
		f.want.Pending.release()
	}
}

// release gives back what the cluster's counts hold of the flow.
func (f *flow) release() {
	f.waitsNoMore()
	if f.counted {
		f.counted = false
		f.want.Open.release()
	}
}

// timeout is Timeout with its default.
func (d *Dial) timeout() time.Duration {
	if d.Timeout <= 0 {
		return DefaultConnectTimeout
	}
	return d.Timeout
}

// attempts is Attempts with its default.
func (d *Dial) attempts() int {
	if d.Attempts <= 0 {
		return DefaultConnectAttempts
	}
	return d.Attempts
}

// localFault reports whether a dial failed for a cause on this side: no port,
// descriptor or memory left, no such address family, a local rule that forbids it,
// or a source address from which there is no way there (EINVAL: Linux says so of one
// on loopback). Such a failure says nothing of the endpoint.
func localFault(err error) bool {
	errno, ok := errors.AsType[syscall.Errno](err)
	if !ok {
		return errors.Is(err, context.Canceled)
	}
	switch errno {
	case syscall.EADDRNOTAVAIL, syscall.EADDRINUSE, syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.ENOSPC,
		syscall.EAFNOSUPPORT, syscall.EPROTONOSUPPORT, syscall.EPERM, syscall.EACCES, syscall.EINVAL:
		return true
	}
	return false
}
