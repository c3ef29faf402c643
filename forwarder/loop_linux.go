package forwarder

import (
	"cmp"
	"encoding/binary"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

const (
	eventBatch = 256
	// acceptBatch is how many connections a loop accepts before it looks after
	// the others again.
	acceptBatch = 16
	// turnBytes is how much one direction of one connection moves before the
	// others have their turn.
	turnBytes = 1 << 20
	// batchBytes is how much all of them move before the loop looks at timers,
	// events and the time again: a few milliseconds' work.
	batchBytes = 4 << 20
	loopBuffer = 64 << 10
	// yieldEvery is how long, in ms, a loop goes on without passing through Go's
	// scheduler, which takes one that does not for 10 ms for stuck: it interrupts
	// it by a signal, takes its P away as soon as it waits, and watches it from
	// then on every 20 us.
	yieldEvery  = 8
	edges       = unix.EPOLLIN | unix.EPOLLPRI | unix.EPOLLOUT | unix.EPOLLRDHUP | unix.EPOLLET&(1<<32-1)
	spareChoice = 64
	// smallAfter is how many splices in a row of less than bufferSize end that
	// a side is bulk. A loop meets more of them than a goroutine, as it comes
	// sooner.
	smallAfter = 16
)

// loop is one event loop. Its goroutine owns all of it but for what mu guards.
type loop struct {
	of        *Loops
	ep, waker int32
	now       int64 // ms, when events were last waited for
	wheel     wheel
	buf       []byte
	from      unix.RawSockaddrAny

	pairs  []*pair // by descriptor
	ports  []*opened
	gen    int32        // the last tag of a connection's socket, above 0
	tag    int32        // of ports, below 0
	quota  int          // bytes that turns may move before the loop looks up
	ready  queue        // pairs whose turn was up before they were done
	pipes  []*pipe      // spare ones, empty
	spare  []*selection // for connections that are being dialled
	load   atomic.Int64 // connections
	ending bool

	mu    sync.Mutex
	posts []func()
	ended bool // nothing is posted any more
}

// opened is a port in one loop's set.
type opened struct {
	timer
	*port
	lp   *loop
	tag  int32         // of its events, below 0: a closed port's number may be another's
	wait time.Duration // after accept failed
}

// open makes what the loop needs of the system.
func (l *loop) open() error {
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return err
	}
	l.mu.Lock()
	l.ep = int32(ep)
	l.mu.Unlock()
	waker, err := unix.Eventfd(1, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK) // wakes at once for what was posted before
	if err != nil {
		return err
	}
	l.mu.Lock()
	l.waker = int32(waker)
	l.mu.Unlock()
	l.buf = make([]byte, loopBuffer)
	if e := sysEpollAdd(l.ep, l.waker, unix.EPOLLIN, 0); e != 0 {
		return e
	}
	return nil
}

// close frees what open made. The loop does not run, and never will.
func (l *loop) close() {
	l.mu.Lock()
	ep, waker := l.ep, l.waker
	l.ep, l.waker = -1, -1
	l.mu.Unlock()
	for _, fd := range []int32{ep, waker} {
		if fd >= 0 {
			sysClose(fd)
		}
	}
	for _, p := range l.pipes {
		p.close()
	}
	l.pipes = nil
}

// drop takes a socket out of the set. It may be called from anywhere.
func (l *loop) drop(fd int32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ep >= 0 && !l.ended { // the set is closed after that
		sysEpollDel(l.ep, fd)
	}
}

// post has the loop call f soon. It may be called from anywhere, also from the
// loop. It reports false if the loop has ended, and then f is not called.
func (l *loop) post(f func()) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return false
	}
	l.posts = append(l.posts, f)
	if len(l.posts) == 1 && l.waker >= 0 {
		var one [8]byte
		binary.NativeEndian.PutUint64(one[:], 1)
		sysWrite(l.waker, one[:])
	}
	return true
}

func (l *loop) posted() {
	l.mu.Lock()
	var b [8]byte
	sysRead(l.waker, b[:])
	posts := l.posts
	l.posts = nil
	l.mu.Unlock()
	for _, f := range posts {
		f()
	}
}

func (l *loop) run() {
	evs := make([]unix.EpollEvent, eventBatch)
	full := 0
	for yielded := l.now; !l.ending; {
		n := l.wait(evs)
		if l.now = l.of.clock().Milliseconds(); l.now-yielded >= yieldEvery || l.now < yielded {
			runtime.Gosched()
			yielded = l.now
		}
		l.quota = batchBytes
		for i := range evs[:n] {
			l.event(&evs[i])
		}
		// After a stall the events of what came in time may fill several batches:
		// they come before what has not come in time.
		if full++; n < len(evs) || full > 64 {
			full = 0
			l.wheel.advance(l.now)
		}
		l.quota = batchBytes // so that events don't keep the others waiting
		for n := l.ready.n; n > 0 && l.quota > 0; n-- {
			l.ready.pop().again()
		}
	}
	l.each(func(p *pair) { p.abort(FlagLR, errCut) })
	// Another loop may have sent connections, and no more from now on.
	l.mu.Lock()
	l.ended = true
	l.mu.Unlock()
	l.posted()
}

// wait returns events, at once if there is something else to do.
func (l *loop) wait(evs []unix.EpollEvent) int {
	// Under load there is always an event, and the scheduler need not be told.
	if n := sysEpollPoll(l.ep, evs); n > 0 || l.ready.n > 0 {
		return n
	}
	ms := -1
	if at, ok := l.wheel.next(); ok {
		ms = int(min(max(at-l.of.clock().Milliseconds(), 0), 1<<30))
	}
	return sysEpollWait(l.ep, evs, ms)
}

func (l *loop) event(ev *unix.EpollEvent) {
	switch {
	case ev.Pad == 0:
		l.posted()
		return
	case ev.Pad < 0:
		for _, o := range l.ports {
			if o.tag == ev.Pad {
				l.accept(o)
			}
		}
		return
	}
	if int(ev.Fd) < len(l.pairs) {
		if p := l.pairs[ev.Fd]; p != nil {
			p.event(ev)
		}
	}
}

// each calls f for every connection.
func (l *loop) each(f func(*pair)) {
	for fd, p := range l.pairs {
		if p != nil && p.side[0].fd == int32(fd) {
			f(p)
		}
	}
}

// listen begins to accept from a port.
func (l *loop) listen(p *port) {
	l.tag--
	o := &opened{port: p, lp: l, tag: l.tag}
	o.of = o
	l.ports = append(l.ports, o)
	o.watch()
}

// watch adds the port to the set. Exclusive, so that a connection wakes one
// loop and not all of them.
func (o *opened) watch() {
	o.mu.RLock()
	defer o.mu.RUnlock()
	if o.closed {
		return
	}
	if e := sysEpollAdd(o.lp.ep, o.fd, unix.EPOLLIN|unix.EPOLLEXCLUSIVE, o.tag); e != 0 {
		o.later(os.NewSyscallError("epoll_ctl", e))
	}
}

// later has the port watched again after an error.
func (o *opened) later(err error) {
	o.wait = o.l.acceptFailed(err, o.wait)
	o.lp.wheel.set(&o.timer, o.lp.now+o.wait.Milliseconds())
}

// expire watches the port again after accept had failed.
func (o *opened) expire() { o.watch() }

// forget drops a port, which is closed.
func (l *loop) forget(p *port) {
	l.ports = slices.DeleteFunc(l.ports, func(o *opened) bool {
		if o.port == p {
			l.wheel.stop(&o.timer)
		}
		return o.port == p
	})
}

// take accepts one connection. Nobody can close the port meanwhile, and give
// its number to another socket.
func (o *opened) take(from *unix.RawSockaddrAny) (int32, unix.Errno) {
	o.mu.RLock()
	defer o.mu.RUnlock()
	if o.closed {
		return -1, unix.EAGAIN
	}
	fd, e := o.l.acceptFD(o.fd, from)
	if e == 0 {
		o.conns.Add(1)
	}
	return fd, e
}

func (l *loop) accept(o *opened) {
	for range acceptBatch {
		fd, e := o.take(&l.from)
		switch e {
		case 0:
			o.wait = 0
			l.admit(o.port, fd, peerOf(&l.from))
		case unix.EAGAIN:
			return
		case unix.EINTR, unix.ECONNABORTED, unix.EPROTO:
		default:
			// Out of descriptors or memory, most likely. The socket stays
			// readable, so it leaves the set until it is asked again.
			o.mu.RLock()
			if !o.closed {
				sysEpollDel(l.ep, o.fd)
			}
			o.mu.RUnlock()
			o.later(os.NewSyscallError("accept4", e))
			return
		}
	}
}

// admit takes over an accepted connection, or gives it to a loop that has much
// less to do: the kernel wakes the same loop again and again.
func (l *loop) admit(p *port, fd int32, from netip.AddrPort) {
	p, handed, err := l.handOff(p, fd)
	if err != nil {
		sysReset(fd)
		p.l.spoilt(from, err)
		p.conns.Done()
		return
	}
	if err := p.l.admits(); err != nil {
		sysReset(fd)
		p.l.refused(from, FlagOM, err)
		p.conns.Done()
		return
	}
	to := l
	if len(l.of.loops) > 1 {
		to = slices.MinFunc(l.of.loops, func(a, b *loop) int { return cmp.Compare(a.load.Load(), b.load.Load()) })
		if own, least := l.load.Load(), to.load.Load(); own-least <= 8+own/16 {
			to = l
		}
	}
	to.load.Add(1)
	if to == l {
		l.start(p, fd, from, handed)
		return
	}
	if !to.post(func() { to.start(p, fd, from, handed) }) {
		to.load.Add(-1)
		l.load.Add(1)
		l.start(p, fd, from, handed)
	}
}

// handOff returns the port of the listener that takes a connection which p has
// accepted, and whether that is another one. The error is a panic.
func (l *loop) handOff(p *port, fd int32) (*port, bool, error) {
	hand := p.l.settings.Load().HandOff
	if hand == nil {
		return p, false, nil
	}
	local := localOf(fd, &l.from)
	to := originalDstOf(fd, local)
	if !to.IsValid() || to == local {
		return p, false, nil
	}
	next, err := p.l.meant(hand, to)
	if next == nil || next == p.l || next.cfg.Loops != l.of {
		return p, false, err
	}
	other := next.entrance()
	if other == nil || !other.enter() {
		return p, false, nil
	}
	p.l.counters.handedOff.Add(1)
	p.conns.Done()
	return other, true, nil
}

// start begins a connection.
func (l *loop) start(po *port, fd int32, from netip.AddrPort, handed bool) {
	p := &pair{lp: l, port: po}
	p.of = p
	p.flow.admit(po.l, from)
	defer p.contain()
	p.handed = handed
	p.limitAge(p.clock())
	p.side[0].fd, p.side[1].fd = fd, -1
	if n := len(l.spare); n > 0 {
		p.sel, l.spare = l.spare[n-1], l.spare[:n-1]
	} else {
		p.sel = new(selection)
	}
	if l.ending || po.cutting.Load() {
		p.abort(FlagLR, errCut)
		return
	}
	p.begin()
}

// watch adds a connection's socket to the set, and returns the tag of its
// events: those of a socket that is closed may come when its number is
// another's, also one of the same connection's next dial.
func (l *loop) watch(p *pair, fd int32) (tag int32, e unix.Errno) {
	if int(fd) >= len(l.pairs) {
		l.pairs = append(l.pairs, make([]*pair, max(int(fd)+1-len(l.pairs), len(l.pairs)/4+64))...)
	}
	l.pairs[fd] = p
	l.gen = max(l.gen+1, 1)
	return l.gen, sysEpollAdd(l.ep, fd, edges, l.gen)
}

// unwatch closes a connection's socket.
func (l *loop) unwatch(fd int32) {
	l.pairs[fd] = nil
	sysClose(fd)
}

// chosen takes back what was needed for dialling.
func (l *loop) chosen(s *selection) {
	if s != nil && len(l.spare) < spareChoice {
		*s = selection{} // it would keep members of old generations
		l.spare = append(l.spare, s)
	}
}

// queue is a list of pairs; each is in it once at most.
type queue struct {
	first, last *pair
	n           int
}

func (q *queue) push(p *pair) {
	if p.queued {
		return
	}
	p.queued, p.next = true, nil
	if q.n++; q.first == nil {
		q.first, q.last = p, p
		return
	}
	q.last.next, q.last = p, p
}

func (q *queue) pop() *pair {
	p := q.first
	q.first = p.next
	if q.n--; q.first == nil {
		q.last = nil
	}
	p.queued, p.next = false, nil
	return p
}

// pipe returns an empty pipe, or nil if there is none to be had.
func (l *loop) pipe(x extra) *pipe {
	if n := len(l.pipes); n > 0 {
		p := l.pipes[n-1]
		l.pipes = l.pipes[:n-1]
		return p
	}
	p, _ := newPipe(x)
	return p
}

// emptied takes back a pipe.
func (l *loop) emptied(p *pipe) {
	if len(l.pipes) < sparePipes && !p.of.scarce() {
		l.pipes = append(l.pipes, p)
	} else {
		p.close()
	}
}
