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
// before that, but for its PROXY header, and for its TLS ClientHello where the
// server name is hashed (HashSNI), which is held and passed on as it came: nothing
// of what it sent is lost when the first candidates fail.
// A Dial may ask to be told how long its endpoints take, and which fail.
//
// An endpoint with additional addresses is dialled by Happy Eyeballs (RFC 8305,
// gRFC A61): its addresses in an order in which families alternate, each 300 ms
// after the one before it or as soon as that has failed, all within the connect
// timeout. Where no descriptor is left for one more (Config.Extra), it waits until
// the one before it has had an equal share of the connect timeout, and takes the
// place of the oldest. The first that is connected wins, and the others are closed. It is one
// dial and one report, however many addresses were tried, and a failure for a
// cause here (no such address family, no route from the source address) is the
// endpoint's only if another of its addresses failed for one there.
//
// A unix socket whose queue is full refuses at once where TCP lets whoever dials wait. The
// dial goes on all the same, in steps of 1 to 64 ms, within the connect timeout.
//
// Then each direction is a copy of its own. The end of one is passed on as a
// FIN, and the other goes on: for HalfClosedTimeout after its last byte at
// most. A byte counts for the limits on silence when it is passed on, and on Linux
// again when its receiver takes it: who takes some within each limit gets everything,
// and who has stopped is ended within a quarter more than the limit. A reset is
// passed on as a reset, once the data that came before it has been delivered (on
// Linux: acknowledged by the other side; elsewhere: handed to the kernel). What the other side sends meanwhile is thrown away: one that
// waits for room to send may read nothing before it has some.
//
// Every accepted connection ends with one Flag, decided by whatever happened
// first:
//
//   - None                             both sides ended their stream in order
//     UH  NoHealthyUpstream                nothing in the cluster was ready, or the candidates stopped being so
//     UF  UpstreamConnectionFailure        every dial that was allowed failed
//     UO  UpstreamOverflow                 a circuit breaker of the cluster is open: Dial.MaxConnections, MaxPending, or MaxPerEndpoint at every candidate
//     NC  NoClusterFound                   the Upstream refused: no such cluster, or one that can't be run
//     NR  NoRouteFound                     the Upstream refused: no way to forward is configured; or no filter chain takes the connection, or one that can't be run; or a redirect leads back here (Circles)
//     UC  UpstreamConnectionTermination    the endpoint reset the connection or could not be reached any more
//     DC  DownstreamConnectionTermination  the client did, or it sent no PROXY header or may not send one
//     SI  StreamIdleTimeout                no byte passed on or taken for IdleTimeout, or while half-closed for HalfClosedTimeout
//     LR  LocalReset                       the agent cut it: a drain (DrainSpread, and its deadline), shutdown, or an endpoint that was removed or is unhealthy (Ends)
//     OM  OverloadManagerTerminated        refused at accept: MaxConnections, MaxOpen of all listeners, or MaxPending without their PROXY header, or MaxHellos without their ClientHello, were open, or MaxHandshakes in progress
//     DT  DurationTimeout                  it was open for MaxDuration
//     UAEX UnauthorizedExternalService     an RBAC filter of its chain is against it
//
// A connection that ends with any flag but "-" is reset on both sides: a
// client can't take a cut reply for a whole one, but for one of a unix socket, as the
// Limitations say. Of Envoy's other words UR, UT and the rest belong to HTTP, and
// URX is always together with UF in Envoy's tcp_proxy. What Ends closes is LR, as the agent does it by its own decision: UC
// would count against an endpoint that has not broken anything. Record.Err tells
// the causes of LR apart. Envoy's RBAC filter sets no flag, and UAEX is that of its
// external authorization: here every refusal has one, and Record.Err is what Envoy
// has for the details.
//
// # Filter chains
//
// With Settings.Chains a connection is first assigned to one of several chains, by
// where it comes from and goes to, and by what is in its ClientHello, which is waited
// for if a chain asks for something in it: package filterchain has the rules. What
// follows goes by the chain: TLS, then package rbac's verdict on who the client is,
// then the selection. A flow has either the settings of its Listener or those of its
// chain, from which it also knows the chain.
//
// A Listener with HandOff gives connections to that Listener which they were meant
// for before a redirect. It is done right after the accept, so that all that is
// counted and limited is the other one's, which may be without a socket (NoBind).
//
// # Two relays, and why one of them is an event loop
//
// On Linux, Loops serve the connections: one event loop a CPU, shared by all
// Listeners, with edge-triggered epoll, non-blocking connects and timers in a
// wheel. Package net's way, with two goroutines a connection and Go's poller,
// costs about a fifth more CPU a round trip, twice the 99th percentile at
// saturation, a third more CPU a connection and some 10 KB an idle one; what
// could be shaved off it was, and it is the poller and the scheduler that remain.
// A loop needs none of them, and under a kilobyte and two descriptors an idle
// connection. go run ./test/bench forward measures it.
//
// Goroutines serve what is not a plain socket, and all systems but Linux. Both
// relays share the selection, the order of dials, the reports and the counters
// (flow), and pass one suite of tests.
//
// A loop takes each connection through these states:
//
//	state       what happens                          leaves to
//	greeting    the client's PROXY header is due      inspecting, dialing: it has come
//	                                                  closed: it is wrong or late (DC)
//	inspecting  the client's ClientHello is due       dialing: it has come, is none, or is late
//	                                                  closed: the client was reset, or is late (DC),
//	                                                  or it is refused (NR, UAEX)
//	dialing     a candidate is being connected;       relaying: it is connected
//	            nothing is read from the client       dialing: it failed, and there is a next one
//	                                                  closed: there is none (UF, UH, …), or the client was reset (DC)
//	relaying    each direction moves what its sender  closed: both ended in order (-), or silence (SI)
//	            has and its receiver takes, and ends  delivering: both ended, and a side broke (DC, UC)
//	            by a FIN or because a side broke
//	delivering  the side that is left gets what was   closed: it has acknowledged everything, broke too,
//	            sent to it, and is not listened to    or was silent for too long; both sides are reset
//	closed      sockets are closed, the flow reported
//
// Whatever the state, LR (a drain, shutdown) resets both sides at once.
//
// A direction reads into a buffer that all connections of the loop share; only
// what its receiver did not take is kept, in memory of its own, and nothing more
// is read before that is gone. After four reads in a row of 32 KiB or more the
// sender is bulk and spliced, through a pipe that is held only while bytes are
// in it, until sixteen splices in a row moved less than that. Where no pipe is to be had (Config.Extra), as when
// slow readers hold them all, it is copied. A direction that
// has moved a megabyte waits until all others have had their turn.
//
// The kernel wakes the same loop again and again for new connections, so a loop
// that has more of them than another hands them over.
//
// Of a process's descriptors a connection has two, and ConnectionsFor leaves an
// eighth for probes and a reserve. Only Config.Extra takes from that for connections: pipes, with up to a
// megabyte of the kernel's memory each, and the sockets of Happy Eyeballs but one,
// ExtraFor of them at most.
//
// A busy loop keeps one of Go's Ps. The agent therefore sets GOMAXPROCS to the
// number of CPUs and the number of loops together: the kernel shares the CPUs
// among loops and the rest, and a loop that wakes up finds a P at once instead of
// waiting until some goroutine gives up its own. The rows "with probes and changes"
// of go run ./test/bench forward show what fewer Ps do.
//
// # TLS
//
// With Settings.TLS or Settings.Mesh the handshake with the client comes before the
// selection; of a Mesh it is then asked whether the client may connect;
// with Dial.TLS the one with the endpoint is part of the dial: if it fails, the
// next candidate is tried. PROXY headers come before handshakes, in plain text. A
// failed handshake with a client counts as DC, a client that may not connect as UAEX,
// and one for whom there is no certificate as NR. Only a
// close_notify ends a stream in order and is passed on as such, as a
// close_notify or a FIN; a stream that ends without counts as reset. Goroutines
// serve such connections. Event loops give them up: what is accepted for a
// listener with TLS at once, and the others once an endpoint with TLS is to be
// dialled, with their selection. Of one cluster some endpoints may have TLS and others none. Waiting for TLS data holds what
// package tls holds, and where that does not read from a socket on Linux, a buffer
// of 32 KiB.
//
// # Concurrency
//
// A Listener's methods may be called from anywhere; Bind and Run once each.
// A connection belongs to one loop from its accept to its end, and nothing of it
// is touched by anybody else; others ask the loop by posting a function. The
// functions of Upstream, Dial and OnDone are called by loops and hold up all
// their connections: they must not block.
//
// Without loops, Run's accept loop starts a goroutine for each connection and
// one more for its second direction; Run waits for them all. On Linux they too
// hold no buffer while they wait, and splice what is bulk, by system calls of
// their own in RawConn callbacks: TCPConn.ReadFrom keeps its pipe while it waits
// and tells of progress only at the end, so that neither bounded memory nor an
// idle timeout would be possible.
//
// # Limitations
//
// The package is larger than others: two relays, the PROXY protocol and the ends
// of connections share unexported state, and would be as large apart.
//
// Of what a client's PROXY header says the addresses and the TLVs are used, but
// for those inside an SSL TLV, and the proxies can't be told from each other but
// by address:
// the header is not signed. A client that ends its stream while its
// endpoint is being dialled is taken to wait for an answer; goroutines notice a
// reset too only after the dial. The endpoint's socket gets its keepalive when
// it has been connected for 15 s, or sooner if that would be too late or the
// client breaks: most are spared the system calls. Bytes are counted when they are
// handed to the receiving side's socket: those that it still holds when the connection
// is reset are counted too. The kernel knows no reset of unix sockets: a client or an
// endpoint behind one may see an end of stream like any other where the other side was reset
// or the agent has cut the connection, and must tell by what it got whether that is whole.
// What waits for a peer is known only on Linux: elsewhere whoever takes longer than a
// limit on silence to read what the kernel holds for him is cut. What the peer's kernel
// acknowledges is what it takes, and it asks for more only when it has room for a good
// part of its buffer: who reads less than that within a limit counts as silent. A side
// that sends without end and reads nothing of what one that is gone had sent costs CPU
// for as long as that limit. On Linux a receiver that takes nothing for
// Keepalive.UserTimeout, by default five minutes, while data waits for it counts as gone (TCP_USER_TIMEOUT), whatever IdleTimeout says.
//
// Abstract unix sockets are not listened on: they have no owner and no mode, so
// that whoever is in the network namespace could connect, and whoever comes first
// could take the name. Elsewhere than on Linux there are no marks and backlogs,
// a unix socket's file has the mode that the umask leaves until it gets its own,
// a source address takes a port of its own, and two starting agents that find the
// same stale unix socket at the same moment may both think that it is theirs.
//
// A ClientHello over 64 KiB, with the heads of its records, has no server name.
// OriginalDst tells where a connection was going; it does not lead there: where
// connections may go is what clusters say. A rule has to leave out what the agent
// sends, as by iptables -m owner: what comes back to it is reset. TPROXY is not
// supported.
package forwarder
