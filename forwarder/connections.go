package forwarder

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"gatehouse.internal/lbcore"
)

// Connection describes an open connection at one moment.
type Connection struct {
	Listener string
	// State is "greeting" while the PROXY header is due, "connecting" until an
	// endpoint is connected, then "open", "half-closed", and "ending" while the rest
	// is delivered after one side broke.
	State string
	Start time.Time // when it was accepted

	// The zero value before an endpoint is connected:
	Client   netip.AddrPort // of a unix socket's client after it, too
	Cluster  string
	Endpoint lbcore.Addr
	// Generation is that of the selector that has answered.
	Generation        uint64
	Connect           time.Duration // from Start until the endpoint was connected
	BytesIn, BytesOut uint64        // passed on from the client, and to the client
}

// connection describes the flow, which is connected.
func (f *flow) connection(state string, in, out uint64) Connection {
	return Connection{
		Listener: f.l.cfg.Name, State: state, Start: f.start, Client: f.client, Cluster: f.want.Cluster,
		Endpoint: f.member.Addr(), Generation: f.generation, Connect: f.connect, BytesIn: in, BytesOut: out,
	}
}

// Connections returns open connections, at most most, the oldest of those that it
// has found first. Each event loop describes its own, for which it takes about
// 100 ns each; on an error, which is ctx's, some of them have not answered. It may
// be called from anywhere but from a loop.
func (l *Listener) Connections(ctx context.Context, most int) ([]Connection, error) {
	var all []Connection
	for _, s := range l.sessions() {
		if len(all) < most {
			all = append(all, s.describe())
		}
	}
	var err error
	l.mu.Lock()
	onLoops := l.port != nil
	l.mu.Unlock()
	if onLoops {
		var more []Connection
		more, err = l.cfg.Loops.describe(ctx, l, most)
		all = append(all, more...)
	}
	slices.SortFunc(all, func(a, b Connection) int { return a.Start.Compare(b.Start) })
	return all[:min(len(all), most)], err
}

// describe returns what is known of the session. What its goroutine writes is
// looked at only once the endpoint's socket tells that it is not written any more.
func (s *session) describe() Connection {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.upstream.conn == nil {
		return Connection{Listener: s.l.cfg.Name, State: "connecting", Start: s.start}
	}
	state := "open"
	if s.half {
		state = "half-closed"
	}
	return s.connection(state, s.bytesIn.Load(), s.bytesOut.Load())
}
