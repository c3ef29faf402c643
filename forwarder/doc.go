// Package forwarder takes connections on a local socket, asks for an endpoint,
// dials it and passes the bytes on in both directions until both sides have
// ended. It knows neither sources nor policies nor health: where connections
// go is what an Upstream says, and how they went is reported to the
// lbcore.Member that took them.
//
// # Usage
//
// New, then Bind, then Run; Drain ends a Listener gently, the end of Run's
// context at once. Bind apart from Run lets a node open all its sockets before
// the first connection flows, and tell which listener found its port taken.
//
//	l, err := forwarder.New(forwarder.Config{Name: "web", Addr: addr, Upstream: up, Gate: gate})
//	err = l.Bind(ctx)
//	wg.Go(func() { err = l.Run(ctx) })
//	…
//	cut := l.Drain(deadline)
//
// # How a connection goes
//
// One selection, pinned only as long as it takes, yields up to
// lbcore.MaxPicks candidates. They are dialled in turn, as many as the cluster
// allows and each within its connect timeout, and every dial is reported as
// failed, abandoned (the cause was here: no port or descriptor left, or this
// agent ended the connection) or connected. Nothing is read from the client
// before that: nothing of what it sent is lost when the first candidates fail.
// A Dial may ask to be told how long its endpoints take, and which fail.
//
// Then each direction is a copy of its own. The end of one is passed on as a
// FIN, and the other goes on: for HalfClosedTimeout after its last byte at
// most. A reset is passed on as a reset, once the data that came before it has
// been delivered (on Linux: acknowledged by the other side; elsewhere: handed
// to the kernel).
//
// Every accepted connection ends with one Flag, decided by whatever happened
// first:
//
//   - None                             both sides ended their stream in order
//     UH  NoHealthyUpstream                nothing in the cluster was ready, or the candidates stopped being so
//     UF  UpstreamConnectionFailure        every dial that was allowed failed
//     UO  UpstreamOverflow                 the Upstream refused: a circuit breaker is open
//     NC  NoClusterFound                   the Upstream refused: no such cluster, or one that can't be run
//     NR  NoRouteFound                     the Upstream refused: no way to forward is configured
//     UC  UpstreamConnectionTermination    the endpoint reset the connection or could not be reached any more
//     DC  DownstreamConnectionTermination  the client did
//     SI  StreamIdleTimeout                no byte in either direction for IdleTimeout, or half-closed for HalfClosedTimeout
//     LR  LocalReset                       the agent cut it: drain deadline, or shutdown
//     OM  OverloadManagerTerminated        refused: MaxConnections were open, or MaxHandshakes in progress
//
// A connection that ends with any flag but "-" is reset on both sides: a
// client can't take a cut reply for a whole one. Of Envoy's other words UR, UT
// and the rest belong to HTTP, URX is always together with UF in Envoy's
// tcp_proxy, and DT has no counterpart while connections have no maximum
// duration.
//
// # TLS
//
// With Settings.TLS the handshake with the client comes before the selection,
// with Dial.TLS the one with the endpoint is part of the dial: if it fails, the
// next candidate is tried. A failed handshake with a client counts as DC. Only a
// close_notify ends a stream in order and is passed on as such, as a
// close_notify or a FIN; a stream that ends without counts as reset. Goroutines
// serve such connections. Event loops give them up: what is accepted for a
// listener with TLS at once, and the others once the selection has found a
// cluster with TLS, which it goes on with. Waiting for TLS data holds a buffer
// of 32 KiB besides what package tls holds.
//
// # Concurrency
//
// A Listener's methods may be called from anywhere; Bind and Run once each.
// Run's accept loop starts a goroutine for each connection and one more for
// its second direction; Run waits for them all. The only state shared between
// connections is the table of open ones, under a mutex that nobody holds while
// waiting, and counters.
//
// On Linux a waiting direction holds no buffer, and a direction that has shown
// several full reads in a row is moved by splice, through a pipe that it holds
// only while there is data in it. So an idle connection costs two descriptors,
// and a slow reader holds back at most one buffer or pipe in each direction.
// The copy uses its own system calls in RawConn callbacks, because
// TCPConn.ReadFrom keeps its pipe while it waits and tells of progress only
// at the end: neither bounded memory nor an idle timeout would be possible.
//
// # Limitations
//
// No PROXY protocol. A client that leaves while its endpoint is
// being dialled is noticed after the dial. Bytes are counted when they are
// handed to the receiving side's socket. On Linux a receiver that takes nothing
// for five minutes while data waits for it counts as gone (TCP_USER_TIMEOUT),
// whatever IdleTimeout says. Two starting agents that find the same stale unix
// socket at the same moment may both think that it is theirs.
package forwarder
