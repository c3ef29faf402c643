// Package discovery says how an agent learns who the endpoints of a cluster
// are: the contract between a Source, which watches some mechanism, and a
// Sink, which takes its reports. It also holds what every mechanism needs
// (Latest, Poll, Duplicates, Ordered, Prioritised, Merged, Keep) and the two sources that need no
// mechanism: Static and File.
//
// # Usage
//
// Whoever runs a cluster runs its Source and reads a Latest:
//
//	latest := discovery.NewLatest()
//	wg.Go(func() {
//		if err := source.Watch(ctx, latest); ctx.Err() == nil {
//			latest.Fail(err) // no retry can succeed
//		}
//	})
//	for {
//		select {
//		case <-latest.Changed():
//			use(latest.State())
//		case <-ctx.Done():
//			return
//		}
//	}
//
// A reader meets four phases: unknown (nothing reported yet: wait, or refuse
// and say so), failing (no set yet, and an error that says why), fresh, and
// stale (a set in force although the source can't tell at the moment). Logs,
// metrics and dumps use these names.
//
// A new mechanism implements Source, usually by way of Poll, and passes
// discoverytest.Run. One that can look anew before it is time, as when all endpoints
// fail, is a Refresher too.
//
// # After a restart
//
// Keep has what a source said last on disk, and reports it first in the next run,
// with a RestoredError: it is in force and stale until the source says something. A
// source that holds back losses is a Resumer, and is told of the set before.
//
// # What a source must not do
//
// A source reports what its mechanism says and decides nothing: it doesn't
// filter by health, hold back a set that looks too small, merge with what it
// said before, or choose among endpoints. A partial answer is a failure, since
// the endpoints that are missing from it would count as gone. An answer that
// says "none" is Replace with the empty set; no answer is Fail.
//
// Where a mechanism is known to say "gone" in error, as a Consul server that
// lags is, such an answer counts as no answer until it is confirmed: Fail, with
// a HeldError if that will be given up at some time.
//
// # Why whole sets
//
// With deltas each source has to remember what it sent in order to take it
// back, and a lost removal stays for ever. A set of ten thousand endpoints is
// one slice; the one reader compares it with what it has.
//
// # Why calls and not a channel
//
// A channel makes the source wait for its reader, and with it whatever the
// source shares with others, such as an xDS stream. The calls of Sink can't
// block, and Latest keeps only the newest report, so a slow reader costs
// nobody anything and never sees an old state.
//
// # Concurrency
//
// A Source runs in the goroutine that calls Watch, which waits for all that
// it started. No source needs more than one Watch at a time; Static, File,
// Poll without Wake, and Ordered, Prioritised and Merged over such allow several. Latest and
// Duplicates may be used from anywhere. Sets are never written again once
// reported.
//
// # Limitations
//
// Endpoints that stay by themselves, as those of a cluster with on_absent, are in no
// set, and so not kept. Two sources are combined by precedence (Ordered), by a
// priority for each (Prioritised), or with the priorities that they give (Merged).
// File reads one file; its size is limited because parsing needs about a hundred
// times as much memory as the file is large.
package discovery
