package forwarder

import (
	"net"
	"net/netip"
	"sync"

	"gatehouse.internal/internal/contain"
	"gatehouse.internal/lbcore"
)

// handedOnly is the net.Listener of a Listener without a socket: nobody connects,
// and connections come from other Listeners.
type handedOnly struct {
	addr   lbcore.Addr
	closed chan struct{}
	once   sync.Once
}

func newHandedOnly(addr lbcore.Addr) *handedOnly {
	return &handedOnly{addr: addr, closed: make(chan struct{})}
}

// Accept implements net.Listener. It waits for Close.
func (h *handedOnly) Accept() (net.Conn, error) {
	<-h.closed
	return nil, net.ErrClosed
}

// Close implements net.Listener.
func (h *handedOnly) Close() error {
	h.once.Do(func() { close(h.closed) })
	return nil
}

// Addr implements net.Listener.
func (h *handedOnly) Addr() net.Addr {
	if a := h.addr.AddrPort(); a.IsValid() {
		return net.TCPAddrFromAddrPort(a)
	}
	return &net.UnixAddr{Name: h.addr.Path(), Net: "unix"}
}

// handOff gives a connection to the listener that it was meant for before a
// redirect, and reports whether that has taken it. The error is a panic.
func (l *Listener) handOff(conn net.Conn) (taken bool, err error) {
	hand := l.settings.Load().HandOff
	if hand == nil {
		return false, nil
	}
	local := localAddr(conn)
	to := originalDst(conn, local)
	if !to.IsValid() || to == local {
		return false, nil
	}
	next, err := l.meant(hand, to)
	if next == nil || next == l || !next.take(conn) {
		return false, err
	}
	l.counters.handedOff.Add(1)
	return true, nil
}

// meant asks hand, which is HandOff. The error is a panic.
func (l *Listener) meant(hand func(netip.AddrPort) *Listener, to netip.AddrPort) (next *Listener, err error) {
	defer l.cfg.Panics.Recover(contain.Connection, &err)
	return hand(to), nil
}

// take serves a connection that another listener has accepted, and reports whether
// it does: not before Run, and not after Stop.
func (l *Listener) take(conn net.Conn) bool {
	l.mu.Lock()
	conns, serve := l.takes, l.serves
	select {
	case <-l.stopped:
		conns = nil
	default:
	}
	if conns != nil {
		conns.Add(1) // so that Run waits
	}
	l.mu.Unlock()
	if conns == nil {
		return false
	}
	defer conns.Done()
	serve(conn, true)
	return true
}

// entrance returns where event loops bring connections that another listener has
// accepted; nil if goroutines serve this one's, or before Bind.
func (l *Listener) entrance() *port {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.port
}
