// Package core is the xDS client protocol without the network: versions,
// nonces, subscriptions, answers, deletions and timers of the streams to one or
// more management servers over ADS, in the state-of-the-world variant and in the
// incremental one (Delta).
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
// goroutine and no map order in it. At most one request to a server is on its
// way; what is due meanwhile is merged by type, so a server that doesn't read
// can't make the client grow. In the state of the world that merging means that
// of several responses that come in while a send is blocked only the last is
// answered; the protocol allows it, since a newer request for a type supersedes
// an older one. In Delta each is answered, up to 100 that are owed. What is held
// of a type is bounded too, in resources and bytes.
//
// # Servers
//
// What is known of resources is known once, whichever server said it; what was
// said on a stream belongs to the link to its server. The second server is asked
// when a stream to the first ends without a response while something is wanted of
// which nothing is known, and so on; those before are tried again meanwhile, and
// the first of them that responds ends those after it. A version is told only to
// the server that gave it, and not after another one was asked: a server that is
// told what it would send need not respond, and then nobody would come back to
// it. What the server that counts does not confirm in time is gone.
//
// # Restored resources
//
// Restore takes in what an earlier run had, as if it were of a server that is gone:
// it is handed on, told to nobody, and goes if it is not confirmed. It does not keep
// the next server from being asked.
//
// # Concurrency
//
// A Core is not safe for concurrent use.
//
// # Limitations
//
// In the incremental variant a response does not say which request it answers:
// one that was on its way when a name was subscribed to again counts as the answer.
//
// What is particular to one variant lives in sotw.go and delta.go; the rest is
// shared.
package core
