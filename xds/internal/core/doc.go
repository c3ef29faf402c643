// Package core is the xDS client protocol without the network: versions,
// nonces, subscriptions, answers, deletions and timers of one stream to one
// management server, in the state-of-the-world variant over ADS.
//
// # Usage
//
// A shell owns a Core. It reports what happened by calling a method (Start,
// Connected, Response, Sent, Closed, Fired, Subscribe, …), then takes the
// effects with Take and carries them out: open a stream, send a request, start
// or stop a timer, hand a resource on. Requests are made only by Flush, so that
// a shell can first let a response's consequences arrive (a new cluster wants
// its endpoints) and then have one request with the complete list go out.
//
// # What it guarantees
//
// The same events give the same effects: there is no clock, no randomness, no
// goroutine and no map order in it. At most one request is on its way; what is
// due meanwhile is merged by type, so a server that doesn't read can't make the
// client grow. That merging means that of several responses that come in while
// a send is blocked only the last is answered; the protocol allows it, since
// a newer request for a type supersedes an older one.
//
// # Concurrency
//
// A Core is not safe for concurrent use.
//
// # Limitations
//
// One server. TTLs, resource wrappers and resource errors are not understood.
// What is particular to the state of the world lives in sotw.go; the
// incremental variant needs its own request and removed, and shares the rest.
package core
