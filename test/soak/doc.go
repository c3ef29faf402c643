//go:build linux

// Command soak runs an agent for as long as is wanted while everything around it
// changes: endpoints come and go in every source, their health flaps, the control plane
// goes away, the configuration is reloaded, and the agent is restarted, in turn by a
// takeover and by stop and start. It counts what must not be: connections to a backend
// that no state in force allowed, bytes that are not those that were sent, connections
// that fail, memory and descriptors that grow.
//
// # Usage
//
//	go run ./test/soak -duration 10m
//	go test -race ./test/soak -soak 10m
//
// It prints what it has done, and ends with 1 and the evidence if anything was wrong; the
// logs of all processes are kept then. There is at least one restart of each kind: on a
// machine that is so slow that they take most of -duration it goes on until then.
//
// A backend was acceptable if it was a member of its cluster, and healthy, in a state
// that was in force between -within before the connection began and its answer. What a
// source says is in force from when it was said until it says something else, and for
// as long after that as the source may take by its own settings (a nameserver is asked
// again after some time, a check goes on a while before it fails). What was known
// when a source went away, or when the agent or its configuration was exchanged, is in
// force until that is over: held as stale.
//
// In a takeover (run -takeover) two processes serve, while members and health go on to
// change. Until the next one is ready the one before serves alone, and nothing is held: it
// obeys its sources as ever. What the next one begins with is what the one before has
// handed over, at some moment since the next one's start, and may decide from when it is
// ready until its own sources have answered. No connection may be refused, and none cut
// but those that the one before has left when the last part of its drain begins
// (half of drain_timeout, after the next one was ready); two of each cluster are
// held open over the takeover, in the middle of a body. What was in force is known when a
// restart is over: what ends meanwhile is judged then.
//
// Memory is flat if in the end it is at most a quarter and 24 MiB above what it was once
// the last restart was over and what all of it takes was taken once; descriptors may be
// 16 more, and goroutines 32, for workers of probes. All three are those of the process
// that serves in the end; those that were taken over from must have ended with 0.
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
// outlives the agent stop and start refuses connections for a moment: those are counted,
// and no violation.
package main
