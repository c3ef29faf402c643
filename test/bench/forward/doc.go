// Package forward measures one relay of TCP connections: it starts a backend and
// the relay as processes, is the load generator itself, and returns figures. It
// is what test/bench forward runs in its children.
//
// # Usage
//
// [Take] measures a [Spec]; [Backend] is the other child, which Take starts by
// the program and arguments of Spec.Backend.
//
// The load generator and the backend are one thread each, with an epoll set of
// their own and no other part of Go's network, as their cost makes all relays
// look more alike. Only TLS is spoken by goroutines with crypto/tls.
//
// What a relay costs is the CPU of all threads of its processes, from
// /proc/PID/task/*/schedstat, in nanoseconds; its memory is Rss of
// /proc/PID/smaps_rollup and its descriptors are those in /proc/PID/fd. What a
// relay is said to do is looked up there too: splicing holds pipes while bytes
// move, and connections on event loops of its own are sockets in other epoll
// sets than that of Go's runtime, which is the first one of a process.
//
// # Concurrency
//
// A process measures one Spec at a time.
//
// # Limitations
//
// Linux only. On loopback the kernel does a receiver's work in the time of who
// sends, so the CPU of a relay has some of its peers' in it, and theirs some of
// its own. The relay's peers share the machine with it: rates tell less than CPU.
//
// nginx checks its servers only by what happens to connections, and
// inetaf/tcpproxy not at all; the latter has no hash ring either, so its program
// takes the hash of the source modulo the servers.
package forward
