package control

import (
	"errors"
	"net"
	"net/netip"
	"time"

	"google.golang.org/grpc"
)

// hot is an endpoint that tells when it is picked.
type hot struct {
	addr     netip.AddrPort
	accepted chan time.Time // holds the first connection's
	close    func()
}

// newHot returns one that speaks gRPC, or closes its connections.
func newHot(speaks bool) (*hot, error) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	h := &hot{addr: l.Addr().(*net.TCPAddr).AddrPort(), accepted: make(chan time.Time, 1)}
	noting := noting{l, h.accepted}
	done := make(chan struct{})
	if speaks {
		s := grpc.NewServer(grpc.UnknownServiceHandler(func(any, grpc.ServerStream) error { return nil }))
		go func() { defer close(done); s.Serve(noting) }()
		h.close = func() { s.Stop(); <-done }
		return h, nil
	}
	go func() {
		defer close(done)
		for {
			c, err := noting.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil {
				c.Close() // a reset that early could be taken for a failed dial
			}
		}
	}()
	h.close = func() { l.Close(); <-done }
	return h, nil
}

// noting is a listener that notes when the first connection comes.
type noting struct {
	net.Listener
	first chan time.Time
}

// Accept implements net.Listener.
func (n noting) Accept() (net.Conn, error) {
	c, err := n.Listener.Accept()
	if err == nil {
		select {
		case n.first <- time.Now():
		default:
		}
	}
	return c, err
}

// abort closes a connection by a reset, so that thousands leave nothing behind.
func abort(c net.Conn) {
	if t, ok := c.(*net.TCPConn); ok {
		t.SetLinger(0)
	}
	c.Close()
}
