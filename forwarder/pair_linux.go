package forwarder

import (
	"context"
	"net/netip"
	"os"
	"runtime/debug"
	"time"

	"golang.org/x/sys/unix"

	"gatehouse.internal/internal/contain"
	"gatehouse.internal/lbcore"
)

// tuneAfter is when the endpoint's socket gets its keepalive: most connections
// end before that, and are spared four system calls.
const tuneAfter = 15 * time.Second

type pairState uint8

const (
	dialing    pairState = iota // a candidate is being connected
	relaying                    // bytes are passed on
	delivering                  // one side broke; the other is to get what it was sent before it is reset
	closed
	greeting   // the client's PROXY header is due
	inspecting // its ClientHello is
)

// pair is a flow that an event loop serves. The package comment has the table
// of its states.
type pair struct {
	flow
	timer
	lp   *loop
	port *port
	next *pair // in the loop's queue
	side [2]side
	// active is when the last byte passed, and before relaying when the dial
	// has taken too long, or the PROXY header or ClientHello has; in ms of the
	// loop's clock.
	active int64
	bytes  [2]uint64 // passed on from side i
	// tune is, while relaying, the end of the loop's clock when the endpoint's
	// socket gets its keepalive, 0 once it has. While delivering it is how long to
	// wait between two looks; both in ms.
	tune   uint32
	lead   uint16 // bytes still to be passed on from the client's side that are a PROXY header, and not counted
	state  pairState
	queued bool
}

// The sides of a pair, and the directions that begin there.
const (
	down = 0 // the client
	up   = 1 // the endpoint
)

// side is one socket, with what was read from it and waits to be taken by the
// other: in a pipe, or held.
type side struct {
	fd     int32
	tag    int32 // of its events
	pipe   *pipe
	held   []byte
	bits   uint8
	full   uint8 // full reads of it in a row; while bulk, small ones
	broken bool  // it was reset, or can't be reached
	done   bool  // nothing more is passed on from it
	out    outQueue
}

const (
	canRead  uint8 = 1 << iota // may have bytes, or its end
	canWrite                   // may take bytes
	atEnd                      // its end of stream is in the queue, or a reset
	isBulk                     // is read by splice
	urgent                     // had urgent data, at which reads end early and splice stops without a word
	overUnix                   // reads end early where a descriptor was passed
)

// sideFlags are what a connection counts as when a side breaks.
var sideFlags = [2]Flag{down: FlagDC, up: FlagUC}

// begin watches the client, and waits for its PROXY header if one is due.
func (p *pair) begin() {
	if p.settings.OriginalDst || p.handed {
		local := localOf(p.side[down].fd, &p.lp.from)
		if err := p.arrives(originalDstOf(p.side[down].fd, local), local); err != nil {
			p.abort(FlagNR, err)
			return
		}
	}
	if p.settings.endsTLS() {
		p.leave()
		return
	}
	p.side[down].bits = canWrite
	if !p.client.IsValid() {
		p.side[down].bits |= overUnix
	}
	tag, e := p.lp.watch(p, p.side[down].fd)
	if e != 0 {
		p.abort(FlagLR, e)
		return
	}
	p.side[down].tag = tag
	wait, flag, err := p.expects()
	switch {
	case err != nil:
		p.abort(flag, err)
	case wait:
		p.state = greeting // what has come already is an event
		p.active = p.lp.now + p.settings.Proxy.Timeout.Milliseconds()
		p.arm()
	default:
		p.welcome()
	}
}

// welcome goes on behind the PROXY header, or without one: it waits for the
// ClientHello if that is due.
func (p *pair) welcome() {
	if p.state == greeting {
		p.greeted()
		p.lp.wheel.stop(&p.timer)
	}
	wait, flag, err := p.awaitsHello()
	switch {
	case err != nil:
		p.abort(flag, err)
	case wait:
		p.state = inspecting
		p.active = p.lp.now + p.settings.HelloTimeout.Milliseconds()
		p.arm()
		p.inspect()
	default:
		p.choose()
	}
}

// choose makes the selection and dials.
func (p *pair) choose() {
	p.inspected()
	p.lp.wheel.stop(&p.timer)
	var local netip.AddrPort
	if p.unknownLocal() {
		local = localOf(p.side[down].fd, &p.lp.from)
	}
	if flag, err := p.assign(local, p.clock()); err != nil {
		p.abort(flag, err)
		return
	}
	if p.settings.endsTLS() {
		p.leave()
		return
	}
	if err := p.allowed(); err != nil {
		p.abort(FlagUAEX, err)
		return
	}
	p.state = dialing
	if p.unknownDest() {
		p.connectedTo(localOf(p.side[down].fd, &p.lp.from))
	}
	m, flag, err := p.flow.begin()
	p.try(m, flag, err)
}

// try dials candidates until one is on the way.
func (p *pair) try(m *lbcore.Member, flag Flag, err error) {
	for ; m != nil; m = p.flow.next() {
		if !p.want.plain(m) {
			p.leave()
			return
		}
		var met bool
		if met, err = p.dial(); err == nil {
			switch err := p.leaving(); { // now: its other end may be accepted before it is known to be connected
			case err != nil:
				p.abort(FlagNR, err)
			case met:
				p.met()
			default:
				p.arm()
			}
			return
		}
		flag = FlagUF
		p.dialFailed(err, localFault(err))
	}
	p.undone(flag, err)
	p.abort(flag, err)
}

// failed ends one dial and tries the next candidate.
func (p *pair) failed(err error) {
	p.dialFailed(err, localFault(err))
	p.endRace()
	p.drop(up)
	p.try(p.flow.next(), FlagUF, err)
}

// drop closes the socket of a side.
func (p *pair) drop(i int) {
	s := &p.side[i]
	if s.fd >= 0 {
		p.lp.unwatch(s.fd)
		s.fd = -1
	}
}

// met tells that a dial has met somebody. Where nobody listens at a local
// address whose port the kernel may choose for a dial, that may be itself.
func (p *pair) met() {
	if to := p.remote().AddrPort(); to.IsValid() && localOf(p.side[up].fd, &p.lp.from) == to {
		p.failed(os.NewSyscallError("connect", unix.ECONNREFUSED))
		return
	}
	if err := p.leaving(); err != nil {
		p.abort(FlagNR, err)
		return
	}
	p.reached()
}

// leaving tells of the connection to the endpoint, once it is known which of
// those that are tried it is: see leaves.
func (p *pair) leaving() error {
	if !p.settings.OriginalDst && !p.handed || p.side[up].fd < 0 {
		return nil
	}
	return p.leaves(localOf(p.side[up].fd, &p.lp.from), p.remote().AddrPort())
}

// reached goes over to relaying.
func (p *pair) reached() {
	p.dialled()
	p.state = relaying
	p.side[up].bits |= canWrite
	if !p.member.Addr().AddrPort().IsValid() {
		p.side[up].bits |= overUnix
	}
	p.touch()
	if !p.introduce() {
		return
	}
	p.lp.chosen(p.sel)
	p.sel = nil
	p.tune = max(uint32(p.lp.now+p.want.Keepalive.soonest().Milliseconds()), 1)
	p.arm()
	p.turn()
}

// event is what epoll says of one of the sockets.
func (p *pair) event(ev *unix.EpollEvent) {
	defer p.contain()
	i := down
	if p.state == dialing && p.sel.race != nil && ev.Fd != p.side[down].fd {
		if !p.raced(ev) {
			return
		}
	}
	if ev.Fd == p.side[up].fd {
		i = up
	}
	s := &p.side[i]
	if s.tag != ev.Pad {
		return // of a socket that had this number
	}
	if ev.Events&unix.EPOLLIN != 0 {
		s.bits |= canRead
	}
	if ev.Events&(unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR) != 0 {
		s.bits |= canRead | atEnd
	}
	if ev.Events&unix.EPOLLPRI != 0 {
		s.bits = s.bits&^isBulk | canRead | urgent
	}
	if ev.Events&(unix.EPOLLOUT|unix.EPOLLERR|unix.EPOLLHUP) != 0 {
		s.bits |= canWrite
	}
	switch {
	case p.state == relaying && ev.Events&unix.EPOLLERR != 0 && s.done && !s.broken:
		// It has ended its stream, so nobody reads the reset.
		p.lost(1-i, i, os.NewSyscallError("read", sysError(s.fd)))
	case p.state == relaying:
		p.turn()
	case p.state == delivering:
		p.await()
	case p.state == greeting:
		p.greet()
	case p.state == inspecting:
		p.inspect()
	case p.state == dialing && i == down:
		// A client that ends its stream may still want an answer; one that
		// was reset does not.
		if ev.Events&unix.EPOLLERR != 0 {
			err := os.NewSyscallError("read", sysError(s.fd))
			p.abort(FlagDC, err)
		}
	case p.state == dialing:
		if ev.Events&(unix.EPOLLERR|unix.EPOLLHUP) != 0 {
			e := sysError(s.fd)
			if e == 0 {
				e = unix.ECONNREFUSED
			}
			p.failed(os.NewSyscallError("connect", e))
		} else if ev.Events&unix.EPOLLOUT != 0 {
			p.met()
		}
	}
}

// again is a turn that had to wait.
func (p *pair) again() {
	defer p.contain()
	p.turn()
}

// turn moves what can be moved, within bounds.
func (p *pair) turn() {
	if p.state != relaying {
		return
	}
	if p.lp.quota <= 0 {
		p.lp.ready.push(p)
		return
	}
	more := p.pass(down, up)
	if p.state == relaying && p.pass(up, down) {
		more = true
	}
	if p.state == relaying && more {
		p.lp.ready.push(p)
	}
}

// over ends the direction from side i.
func (p *pair) over(i int) {
	p.side[i].done = true
	p.touch()
	switch down, up := &p.side[down], &p.side[up]; {
	case !down.done || !up.done:
		p.arm()
	case !down.broken && !up.broken:
		p.end()
	default:
		if p.tune != 0 && !up.broken { // it may be waited for as long as a keepalive takes
			p.keepAlive()
		}
		p.state, p.tune = delivering, 1
		p.await()
	}
}

// broke tells that side i is of no more use.
func (p *pair) broke(i int, err error) {
	p.blame(sideFlags[i], err)
	p.side[i].broken = true
}

// await resets both sides once the one that is not broken has got all that was
// written to it: a reset throws away what the kernel still holds. The kernel
// tells nobody of that, so it is asked again and again.
func (p *pair) await() {
	for i := range p.side {
		if s := &p.side[i]; !s.broken && !delivered(s.fd) {
			p.discard(s)
			if p.silent() || p.outlived() {
				return
			}
			p.lp.wheel.set(&p.timer, p.lp.now+int64(p.tune))
			p.tune = min(2*p.tune, 100)
			return
		}
	}
	p.abort(FlagLR, errCut) // whoever broke has been blamed
}

// touch tells that a byte has passed.
func (p *pair) touch() { p.active = p.lp.now }

// clock returns the loop's time.
func (p *pair) clock() time.Duration { return time.Duration(p.lp.now) * time.Millisecond }

// arm sets the timer to when the dial will have taken too long, the silence
// will have, or the flow is to end whatever it does. Bytes do not touch it: it
// is set anew when it has fired, or something else has changed.
func (p *pair) arm() {
	at := int64(0)
	sooner := func(t int64) {
		if at == 0 || t < at {
			at = t
		}
	}
	switch p.state {
	case greeting, inspecting, dialing:
		sooner(p.active)
		if r := p.sel.race; r != nil && r.next != 0 {
			sooner(r.next)
		}
	case relaying:
		p.review(p.clock())
		if at, _ := p.nextLook(); at != 0 {
			sooner(at)
		}
		if p.tune != 0 {
			sooner(p.lp.now + p.untilTune())
		}
	default: // await looks often enough
		return
	}
	if t, _, _ := p.due(); t != 0 {
		sooner(t.Milliseconds())
	}
	if at != 0 {
		p.lp.wheel.set(&p.timer, at)
	} else {
		p.lp.wheel.stop(&p.timer) // an endpoint that was to leave has stayed
	}
}

// outlived ends the flow if it is to end by now, whatever it does.
func (p *pair) outlived() bool {
	if p.connected {
		p.review(p.clock())
	}
	at, flag, err := p.due()
	if at == 0 || p.lp.now < at.Milliseconds() {
		return false
	}
	p.abort(flag, err)
	return true
}

// nextLook returns when to look at the silence of both sides again, and what is the
// matter if that is now. 0 is never.
func (p *pair) nextLook() (at int64, err error) {
	limit, err := p.limit(p.half())
	if limit <= 0 {
		return 0, nil
	}
	since, look := p.silence(p.clock(), time.Duration(p.active)*time.Millisecond, limit, p.ask)
	p.active = since.Milliseconds()
	return look.Milliseconds(), err
}

// silent ends the flow if it has been silent for too long.
func (p *pair) silent() bool {
	at, err := p.nextLook()
	if at == 0 || p.lp.now < at {
		return false
	}
	p.abort(FlagSI, err)
	return true
}

// ask is for silence.
func (p *pair) ask() (changed, some bool) {
	for i := range p.side {
		s := &p.side[i]
		changed = s.out.holds(sysUnsent(s.fd)) || changed
		some = some || s.out > 0
	}
	return changed, some
}

// untilTune returns for how many ms the endpoint's socket can still be without
// its keepalive.
func (p *pair) untilTune() int64 { return int64(int32(p.tune - uint32(p.lp.now))) }

// keepAlive gives the endpoint's socket its keepalive.
func (p *pair) keepAlive() {
	p.tune = 0
	p.want.Keepalive.set(p.side[up].fd)
}

func (p *pair) half() bool { return p.side[down].done || p.side[up].done }

// expire is called by the wheel.
func (p *pair) expire() {
	defer p.contain()
	if p.state != delivering && p.outlived() {
		return
	}
	switch p.state {
	case greeting:
		if p.lp.now < p.active {
			p.arm()
			return
		}
		p.late()
	case inspecting:
		if p.lp.now < p.active {
			p.arm()
			return
		}
		p.noHello()
		if p.settings.CutLateHello {
			p.abort(FlagDC, errHelloLate)
			return
		}
		p.choose()
	case dialing:
		if r := p.sel.race; p.lp.now < p.active {
			if r != nil && r.next != 0 && p.lp.now >= r.next {
				p.goOn()
			} else {
				p.arm()
			}
			return
		}
		p.failed(os.NewSyscallError("connect", unix.ETIMEDOUT))
	case relaying:
		if p.queued { // it has something to do, and waits for its turn
			p.touch()
		}
		if p.silent() {
			return
		}
		if p.tune != 0 && p.untilTune() <= 0 {
			p.keepAlive()
		}
		p.arm()
	case delivering:
		p.await()
	}
}

// end closes both sides in order.
func (p *pair) end() {
	p.drop(down)
	p.drop(up)
	p.finish()
}

// abort resets both sides.
func (p *pair) abort(flag Flag, err error) {
	if p.state == closed {
		return
	}
	p.blame(flag, err)
	if p.isDialing() {
		if p.trying {
			p.dialFailed(context.Canceled, true)
		}
		p.endRace()
	}
	for i := range p.side {
		if s := &p.side[i]; s.fd >= 0 {
			if int(s.fd) < len(p.lp.pairs) {
				p.lp.pairs[s.fd] = nil
			}
			sysReset(s.fd)
			s.fd = -1
		}
	}
	p.finish()
}

func (p *pair) finish() {
	p.state = closed
	p.lp.wheel.stop(&p.timer)
	for i := range p.side {
		s := &p.side[i]
		if s.pipe != nil {
			s.pipe.close() // it is not empty
		}
		s.pipe, s.held = nil, nil
	}
	p.lp.chosen(p.sel)
	p.sel = nil
	p.lp.load.Add(-1)
	p.flow.finish(p.bytes[down], p.bytes[up])
	p.port.conns.Done()
}

// contain, deferred, ends the connection if what is done about it panics: an event, a
// timer, a turn or the start touch nothing of others but the loop's tables, which none of
// it leaves half written.
func (p *pair) contain() {
	panics := p.l.cfg.Panics
	if panics == nil {
		return
	}
	if x := recover(); x != nil {
		err := panics.Caught(contain.Connection, x, debug.Stack())
		if p.state == closed {
			panic(x) // it was about to be: what is left of that is not known
		}
		if p.trying && !p.isDialing() {
			p.dialFailed(err, true)
		}
		p.abort(FlagLR, err)
	}
}
