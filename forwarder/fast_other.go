//go:build !linux

package forwarder

import "net"

// fastPath has nothing to hold where there is no fast path.
type fastPath struct{}

type pipes struct{}

func newPipes(extra) pipes { return pipes{} }

func (pipes) close() {}

func (d *direction) copy() (readErr, writeErr error) { return d.copyPlain() }

// unsent can't tell what the peer has taken.
func unsent(net.Conn) uint32 { return 0 }

// awaitDelivery can't tell what the peer has acknowledged.
func awaitDelivery(*leg, <-chan struct{}) {}
