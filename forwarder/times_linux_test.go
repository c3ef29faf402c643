package forwarder

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/netip"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"gatehouse.internal/internal/tlsconf"
)

var fromHere = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}

const proxyLine = "PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n"

func keptAlive(t *testing.T, fd int) bool {
	t.Helper()
	on, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE)
	if err != nil {
		t.Fatal(err)
	}
	return on == 1
}

// The endpoint's socket gets its keepalive when the connection is 15 s old,
// however often it is reviewed or half-closed before.
func TestLoopKeepaliveTime(t *testing.T) {
	ended := make(chan struct{})
	up := newCluster(t, backend(t, anyPort, func(c net.Conn) { hold(c); close(ended); <-t.Context().Done() }))
	up.dial.Ends = new(Ends)
	r := loopRig(t, Config{Upstream: up})
	c := client(t, r.Addr())
	eventually(t, "connected", func() bool { return r.Stats().Connects == 1 })
	for range 7 {
		r.cfg.Loops.skip(2 * time.Second)
		r.Review()
		r.cfg.Loops.do(func(*loop) {})
	}
	if keptAlive(t, upstreamFD(t, r)) {
		t.Error("it has one after 14 s")
	}
	closeWrite(c)
	<-ended
	r.cfg.Loops.skip(2 * time.Second)
	if !keptAlive(t, upstreamFD(t, r)) {
		t.Error("it has none after 16 s")
	}
}

// An endpoint that takes nothing, and whose client was reset, has its keepalive
// from then on: nothing else may end what waits for it.
func TestLoopKeepaliveWhileDelivering(t *testing.T) {
	go_ := make(chan struct{})
	defer close(go_)
	r := loopRig(t, Config{Settings: Settings{HalfClosedTimeout: -1}, Upstream: newCluster(t, backend(t, anyPort, func(c net.Conn) {
		_ = c.(*net.TCPConn).SetReadBuffer(4 << 10)
		<-go_
	}))})
	c := client(t, r.Addr())
	const n = 200_000 // waits in the endpoint's socket
	if _, err := c.Write(make([]byte, n)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is passed on", func() bool { return r.Stats().BytesIn == n })
	if keptAlive(t, upstreamFD(t, r)) {
		t.Fatal("it has one already")
	}
	reset(c)
	eventually(t, "the rest is delivered", func() bool {
		var yes atomic.Bool
		r.cfg.Loops.do(func(l *loop) { l.each(func(p *pair) { yes.Store(p.state == delivering) }) })
		return yes.Load()
	})
	if !keptAlive(t, upstreamFD(t, r)) {
		t.Error("it has none")
	}
}

// What is half-closed ends in time, also if that is soon.
func TestLoopHalfClosedSoon(t *testing.T) {
	ended := make(chan struct{})
	r := loopRig(t, Config{Settings: Settings{HalfClosedTimeout: 3 * time.Second}, Upstream: newCluster(t, backend(t, anyPort, func(c net.Conn) {
		hold(c)
		close(ended)
		<-t.Context().Done()
	}))})
	c := client(t, r.Addr())
	closeWrite(c)
	<-ended
	acked(t, r)
	r.cfg.Loops.skip(2900 * time.Millisecond)
	if n := r.Stats().Active; n != 1 {
		t.Fatal("ended early")
	}
	r.cfg.Loops.skip(200 * time.Millisecond)
	if rec := r.record(t); rec.Flag != FlagSI || rec.Err != errHalfClosed {
		t.Errorf("record %+v", rec)
	}
}

// What a client has still to say does not keep max_duration from ending it.
func TestMaxDurationBeforeTheDial(t *testing.T) { onEach(t, testMaxDurationBeforeTheDial) }

func testMaxDurationBeforeTheDial(t *testing.T) {
	for name, s := range map[string]Settings{
		"PROXY header": {Proxy: &ProxyIn{From: fromHere, Timeout: time.Minute}},
		"ClientHello":  {HashOn: HashSNI, HelloTimeout: time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			s.MaxDuration = 100 * time.Millisecond
			r := start(t, Config{Upstream: newCluster(t, backend(t, anyPort, echo)), Settings: s})
			wantReset(t, client(t, r.Addr()))
			if rec := r.record(t); rec.Flag != FlagDT || rec.Attempts != 0 {
				t.Errorf("record %+v", rec)
			}
		})
	}
}

// The time of a PROXY header is not cut short by another that is not over.
func TestLoopGreetingTime(t *testing.T) {
	r := loopRig(t, Config{Upstream: newCluster(t, backend(t, anyPort, echo)), Settings: Settings{
		MaxDuration: time.Hour, Proxy: &ProxyIn{From: fromHere, Timeout: 10 * time.Second},
	}})
	c := client(t, r.Addr())
	eventually(t, "its header is due", func() bool { return r.Stats().ProxyPending == 1 })
	r.cfg.Loops.skip(9900 * time.Millisecond)
	r.Review() // sets the timer anew
	r.cfg.Loops.do(func(*loop) {})
	if n := r.Stats().Active; n != 1 {
		t.Fatal("ended early")
	}
	r.cfg.Loops.skip(200 * time.Millisecond)
	wantReset(t, c)
	if rec := r.record(t); rec.Flag != FlagDC {
		t.Errorf("record %+v", rec)
	}
}

// A connection that goroutines go on with keeps the end that it has on its loop,
// and is not the loop's any more.
func TestLeaveKeepsTheEnd(t *testing.T) {
	p := newPKI(t)
	up := newCluster(t, backend(t, anyPort, secured(p.server(t).Config(), func(c *tls.Conn) { echo(c) })))
	up.dial.TLS = p.upstream(t, tlsconf.ClientConfig{ServerName: "web.internal"})
	r := loopRig(t, Config{Upstream: up, Settings: Settings{
		MaxDuration: time.Hour, MaxDurationJitter: 100, Proxy: &ProxyIn{From: fromHere, Timeout: 50 * time.Minute},
	}})
	c := client(t, r.Addr())
	eventually(t, "its header is due", func() bool { return r.Stats().ProxyPending == 1 })
	r.cfg.Loops.skip(40 * time.Minute)
	last := make(chan time.Duration, 1)
	r.cfg.Loops.do(func(l *loop) { l.each(func(p *pair) { last <- p.term.last - p.clock() }) })
	left := <-last
	if _, err := io.WriteString(c, proxyLine); err != nil {
		t.Fatal(err)
	}
	exchange(t, c, "hello")
	var s *session
	for _, s = range r.sessions() {
	}
	if s == nil {
		t.Fatal("no goroutines")
	}
	s.mu.Lock()
	got := s.term.last - time.Since(s.start)
	s.mu.Unlock()
	if got > left || got < left-30*time.Second {
		t.Errorf("it has %v left, and had %v", got, left)
	}
	if n := r.cfg.Loops.Connections(); n[0] != 0 || n[1] != 0 {
		t.Errorf("the loops have %v", n)
	}
}

// A connection that can't be given to goroutines, for want of a descriptor, is
// nothing that its endpoint has.
func TestLeaveWithoutDescriptor(t *testing.T) {
	p := newPKI(t)
	up := newCluster(t, refused(t))
	up.dial.TLS = p.upstream(t, tlsconf.ClientConfig{ServerName: "web.internal"})
	r := loopRig(t, Config{Upstream: up, Settings: Settings{Proxy: &ProxyIn{From: fromHere}}})
	c := client(t, r.Addr())
	eventually(t, "its header is due", func() bool { return r.Stats().ProxyPending == 1 })
	var lim syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &lim); err != nil {
		t.Fatal(err)
	}
	low := lim
	low.Cur = 3 // nothing new can be opened
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &low); err != nil {
		t.Fatal(err)
	}
	_, err := io.WriteString(c, proxyLine)
	rec := r.record(t)
	if e := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &lim); e != nil || err != nil {
		t.Fatal(e, err)
	}
	if rec.Flag != FlagLR || rec.Attempts != 1 {
		t.Errorf("record %+v", rec)
	}
	if s, n := r.Stats(), up.member(0).Active(); n != 0 || s.Dials != 1 || s.DialsAbandoned != 1 || s.DialsFailed != 0 {
		t.Errorf("the endpoint has %d; stats %+v", n, s)
	}
	wantReset(t, c)
}

// A drain makes no connection last longer than it may.
func TestDrainSpreadAndMaxDuration(t *testing.T) {
	r := loopRig(t, Config{
		Upstream: newCluster(t, backend(t, anyPort, echo)), DrainSpread: time.Hour, Settings: Settings{MaxDuration: 10 * time.Minute},
	})
	const n = 40
	for range n {
		exchange(t, client(t, r.Addr()), "hello")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Hour)
	defer cancel()
	drained := make(chan struct{})
	go func() { r.Drain(ctx); close(drained) }()
	r.leave(time.Now().Add(time.Hour)) // as in an hour
	r.Review()
	r.cfg.Loops.do(func(*loop) {})
	r.cfg.Loops.skip(10*time.Minute + time.Second)
	flags := make(map[Flag]int)
	for range n {
		rec := r.record(t)
		flags[rec.Flag]++
	}
	// About a sixth had their moment before.
	if flags[FlagLR] < 3 || flags[FlagLR] > 10 || flags[FlagDT] != n-flags[FlagLR] {
		t.Errorf("ended by %v", flags)
	}
	<-drained
}
