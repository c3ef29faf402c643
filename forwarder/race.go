package forwarder

import (
	"context"
	"net"
	"slices"
	"time"

	"gatehouse.internal/lbcore"
)

// attemptDelay is how long one address of an endpoint is given before the next
// is tried beside it. Source: Envoy's Happy Eyeballs; RFC 8305 recommends 250
// ms.
const attemptDelay = 300 * time.Millisecond

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
	type attempt struct {
		to   lbcore.Addr
		conn net.Conn
		err  error
	}
	addrs := s.want.order(e)
	done := make(chan attempt)
	next := time.NewTimer(0)
	defer next.Stop()
	var won attempt
	for running := 0; ; {
		select {
		case <-next.C:
			to := addrs[0]
			addrs = addrs[1:]
			running++
			go func() { // waited for below
				conn, err := s.dialAddr(ctx, to)
				done <- attempt{to, conn, err}
			}()
			if len(addrs) > 0 {
				next.Reset(attemptDelay)
			}
			continue
		case a := <-done:
			running--
			switch {
			case a.err == nil && won.conn == nil:
				won = a
				cancel()
			case a.err == nil:
				closeConn(a.conn)
			case won.conn == nil:
				won.err = worse(won.err, a.err)
			}
		}
		switch {
		case won.conn == nil && len(addrs) > 0 && ctx.Err() == nil:
			next.Reset(0)
		case running > 0:
			next.Stop()
			addrs = nil
		case won.conn == nil:
			return nil, won.err
		default:
			if won.to != m.Addr() {
				s.via = &won.to
			}
			return won.conn, nil
		}
	}
}

// dialAddr connects to one address of an endpoint.
func (s *session) dialAddr(ctx context.Context, a lbcore.Addr) (net.Conn, error) {
	if s.l.is(a) {
		return nil, errSelf
	}
	return s.l.dial(ctx, a, s.want)
}
