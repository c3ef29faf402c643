//go:build linux

// Command soak runs an agent for as long as is wanted while everything around it
// changes: endpoints come and go in every source, their health flaps, the control plane
// goes away, the configuration is reloaded, and the agent is restarted. It counts what
// must not be: connections to a backend that no state in force allowed, bytes that are
// not those that were sent, connections that fail, memory and descriptors that grow.
//
// # Usage
//
//	go run ./test/soak -duration 10m
//	go test -race ./test/soak -soak 10m
//
// It prints what it has done, and ends with 1 and the evidence if anything was wrong; the
// log of the agent is kept then.
//
// A backend was acceptable if it was a member of its cluster, and healthy, in a state
// that was in force between -within before the connection began and its answer. What a
// source says is in force from when it was said until it says something else, and for
// as long after that as the source may take by its own settings (a nameserver is asked
// again after some time, a check goes on a while before it fails). What was known
// when a source went away, or when the agent or its configuration was exchanged, is in
// force until that is over: held as stale.
//
// Memory is flat if in the end it is at most a quarter and 24 MiB above what it was once
// the last restart was over and what all of it takes was taken once; descriptors may be
// 16 more, and goroutines 32, for workers of probes.
//
// # Concurrency
//
// One goroutine a client, one that changes things, and those of the servers; all
// have ended when a run has.
//
// # Limitations
//
// Linux only, and on loopback: backends are at 127.81.0.0/16. A Consul server takes part
// if it was built by ./test/consul/build; else that is said. Without a socket that
// outlives the agent a restart refuses connections for a moment: those are counted, and
// no violation.
package main
