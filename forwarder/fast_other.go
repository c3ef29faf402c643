//go:build !linux

package forwarder

import "net"

// fastPath has nothing to hold where there is no fast path.
type fastPath struct{}

type pipes struct{}

func newPipes() pipes { return pipes{} }

func (pipes) close() {}

func (d *direction) copy() (readErr, writeErr error) { return d.copyPlain() }

// awaitDelivery can't tell what the peer has acknowledged.
func awaitDelivery(*leg, <-chan struct{}) {}

// tune sets the keepalive of a TCP connection.
func tune(c net.Conn) {
	if c, ok := c.(*net.TCPConn); ok {
		_ = c.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: keepaliveIdle, Interval: keepaliveInterval, Count: int((userTimeout - keepaliveIdle) / keepaliveInterval)})
	}
}
