package forwarder

import (
	"errors"
	"fmt"
)

// Limit says which limit a connection was over that ended under FlagOM. Those of
// a cluster, which end under FlagUO, are counted by its Counts.
type Limit uint8

// The limits.
const (
	LimitListener   Limit = iota // Settings.MaxConnections
	LimitAll                     // Config.MaxOpen
	LimitPending                 // ProxyIn.MaxPending
	LimitHellos                  // Settings.MaxHellos
	LimitHandshakes              // Settings.MaxHandshakes

	NumLimits = iota // how many there are: 0 to NumLimits-1
)

// What a connection that is refused at accept ends with.
var (
	errMaxConnections = errors.New("max_connections of the listener are open")
	errMaxOpen        = errors.New("max_connections of all listeners are open")
)

var limits = [NumLimits]struct {
	name string
	err  error // that its connections end with
}{
	LimitListener:   {"max_connections", errMaxConnections},
	LimitAll:        {"limits.max_connections", errMaxOpen},
	LimitPending:    {"proxy_protocol.max_pending", errProxyPending},
	LimitHellos:     {"tls_inspector.max_pending", errHellos},
	LimitHandshakes: {"max_handshakes", errHandshakes},
}

// String returns the name of the setting.
func (l Limit) String() string {
	if l < NumLimits {
		return limits[l].name
	}
	return fmt.Sprintf("Limit(%d)", uint8(l))
}

// over counts a connection that has ended under FlagOM.
func (c *counters) over(err error) {
	for i := range limits {
		if limits[i].err == err {
			c.overLimit[i].Add(1)
		}
	}
}
