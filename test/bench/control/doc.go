// Package control measures what a control plane costs its client: it is a
// go-control-plane server, starts a client of it as a process, and returns figures.
// It is what test/bench xds runs in its children.
//
// # Usage
//
// [Take] measures a [Spec].
//
// The server has a SnapshotCache with ads=true: in the state of the world each
// response has all resources of its type, in the incremental variant what has
// changed. All clusters have a small ring, since grpc-go connects to the endpoints
// of a ring when they are picked, and to those of its other policies at once.
// Nobody listens on the addresses, which are of 127.0.0.0/8, but for one endpoint of
// the first cluster: its weight is 1,000 times that of the others, so 19 of 20
// picks are of it. That one moves from one port to another. The time is from the
// moment that the server gives the response to its gRPC stream until the new port
// accepts a connection: of the agent, for one that a client has opened to its
// listener; of grpc-go, for an RPC. Clients and RPCs, one after the other, begin
// once the response was sent.
//
// CPU is that of all threads, from /proc/PID/task/*/schedstat, while one endpoint
// of one cluster after the other is replaced by another one, less that of the
// same time without; each update waits for the answer to the last.
//
// # Concurrency
//
// A process measures one Spec at a time.
//
// # Limitations
//
// Linux only. The server shares the machine with its client: in the state of the
// world it has the larger part of the work.
//
// Memory of the agent is what its collector says (GODEBUG=gctrace=1), in whole MB.
// To tell the endpoints' from the clusters' part there are three agents: one
// without clusters, one whose clusters have one endpoint each, and one with all.
// The metrics of the last minute, of which there are 25 for each cluster, are kept
// in steps of ten seconds: both of the latter are measured after as many steps.
package control
