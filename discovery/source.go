package discovery

import (
	"context"

	"gatehouse.internal/lbcore"
)

// A Source watches the membership of one cluster until its context ends.
type Source interface {
	// Watch reports to sink from one goroutine until ctx ends, and then
	// returns ctx.Err(). It returns another error only when no retry can
	// succeed, as with settings that can't work. Nothing that it started runs
	// after it has returned, and it may be called again then.
	Watch(ctx context.Context, sink Sink) error
}

// A Sink takes a Source's reports. Neither method blocks, so a Source never
// waits for whoever reads.
type Sink interface {
	// Replace states a fact: these are all the endpoints there are. The empty
	// set is such a fact.
	Replace(lbcore.Set)
	// Fail says that the source can't tell at the moment, and why. The last
	// set stays in force; before any Replace, nothing is known yet.
	Fail(error)
}

// A StaleSink is a Sink that takes a set and the reason why it may be old as one
// report, so that no reader sees the one without the other.
type StaleSink interface {
	Sink
	ReplaceStale(set lbcore.Set, err error)
}

// ReplaceStale is Replace and Fail, in one step if sink can.
func ReplaceStale(sink Sink, set lbcore.Set, err error) {
	if s, ok := sink.(StaleSink); ok {
		s.ReplaceStale(set, err)
		return
	}
	sink.Replace(set)
	sink.Fail(err)
}
