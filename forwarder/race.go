package forwarder

import (
	"context"
	"errors"
	"net"
	"os"
	"slices"
	"syscall"
	"time"

	"gatehouse.internal/internal/contain"
	"gatehouse.internal/lbcore"
)

// attemptDelay is how long one address of an endpoint is given before the next
// is tried beside it. Source: Envoy's Happy Eyeballs; RFC 8305 recommends 250
// ms.
const attemptDelay = 300 * time.Millisecond

// patience is how much longer than attemptDelay an address is given where no
// descriptor is left for the next one of more beside it: until it has had an
// equal share of the time, of which left is left. Then the oldest of those that
// are being tried is given up. Source: net.Dialer divides its time in this way.
func patience(left time.Duration, more int) time.Duration {
	return max((left+attemptDelay)/time.Duration(more+1)-attemptDelay, 0)
}

// order returns the addresses of an endpoint as they are to be tried: families
// alternate. Source: RFC 8305, section 4, and Envoy's
// HappyEyeballsConnectionProvider.
func (d *Dial) order(e *lbcore.Endpoint) []lbcore.Addr {
	all := append([]lbcore.Addr{e.Addr}, slices.Collect(e.Additional.All())...)
	six := e.Addr.AddrPort().Addr().Is6()
	switch d.FirstFamily {
	case 4:
		six = false
	case 6:
		six = true
	}
	var first, other []lbcore.Addr
	for _, a := range all {
		if a.AddrPort().Addr().Is6() == six {
			first = append(first, a)
		} else {
			other = append(other, a)
		}
	}
	ordered := all[:0]
	for n := max(d.FirstFamilyCount, 1); len(first)+len(other) > 0; {
		k := min(n, len(first))
		ordered, first = append(ordered, first[:k]...), first[k:]
		if len(other) > 0 {
			ordered, other = append(ordered, other[0]), other[1:]
		}
	}
	return ordered
}

// worse returns which of two errors says more of an endpoint: the one whose
// cause is not here, and else the first. was may be nil.
func worse(was, err error) error {
	if was == nil || localFault(was) && !localFault(err) {
		return err
	}
	return was
}

// dialEndpoint connects to an endpoint, at whichever of its addresses answers
// first.
func (s *session) dialEndpoint(ctx context.Context, m *lbcore.Member) (net.Conn, error) {
	e := m.Endpoint()
	if e.Additional == (lbcore.Addrs{}) {
		return s.dialAddr(ctx, m.Addr())
	}
	ctx, cancel := context.WithTimeout(ctx, s.want.timeout())
	defer cancel()
	deadline, _ := ctx.Deadline()
	type attempt struct {
		to     lbcore.Addr
		conn   net.Conn
		err    error
		giveUp context.CancelFunc
	}
	var running []*attempt // the oldest first
	var won *attempt
	var failed error
	extra, waits := 0, false // descriptors taken; the next attempt is so late for want of one
	addrs := s.want.order(e)
	done := make(chan *attempt)
	next := time.NewTimer(0)
	defer next.Stop()
	for {
		select {
		case <-next.C:
			if len(running) > 0 {
				switch {
				case s.l.extra.take(1):
					extra++
				case !waits:
					waits = true
					next.Reset(patience(time.Until(deadline), len(addrs)))
					continue
				default:
					waits = false
					running[0].giveUp() // its end is what the next one waits for
					continue
				}
			}
			waits = false
			a := &attempt{to: addrs[0]}
			addrs = addrs[1:]
			running = append(running, a)
			one, giveUp := context.WithCancel(ctx)
			a.giveUp = giveUp
			go func() { // waited for below
				a.conn, a.err = s.attempt(one, a.to)
				done <- a
			}()
			if len(addrs) > 0 {
				next.Reset(attemptDelay)
			}
			continue
		case a := <-done:
			a.giveUp()
			running = slices.DeleteFunc(running, func(r *attempt) bool { return r == a })
			if a.err == nil && won == nil {
				won = a
				cancel()
				break
			}
			if a.err == nil {
				closeConn(a.conn)
			} else if won == nil {
				if errors.Is(a.err, context.Canceled) && ctx.Err() == nil { // given up
					a.err = os.NewSyscallError("connect", syscall.ETIMEDOUT)
				}
				failed = worse(failed, a.err)
			}
			if extra > 0 {
				extra--
				s.l.extra.give(1)
			}
		}
		switch {
		case won == nil && len(addrs) > 0 && ctx.Err() == nil:
			next.Reset(0)
		case len(running) > 0:
			next.Stop()
			addrs = nil
		case won == nil:
			return nil, failed
		default:
			if won.to != m.Addr() {
				s.via = &won.to
			}
			return won.conn, nil
		}
	}
}

// attempt is dialAddr on a goroutine of its own. A panic is a failed attempt, which says
// nothing of the endpoint.
func (s *session) attempt(ctx context.Context, a lbcore.Addr) (conn net.Conn, err error) {
	defer s.l.cfg.Panics.Recover(contain.Connection, &err)
	return s.dialAddr(ctx, a)
}

// dialAddr connects to one address of an endpoint.
func (s *session) dialAddr(ctx context.Context, a lbcore.Addr) (net.Conn, error) {
	if s.l.is(a) {
		return nil, errSelf
	}
	return s.l.dial(ctx, a, s.want)
}
