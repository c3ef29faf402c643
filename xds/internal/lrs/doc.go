// Package lrs is the client of the load reporting service (LRS): it tells a
// management server, as often as that asks, what connections the endpoints of its
// clusters have had.
//
// # Usage
//
//	r := lrs.New(lrs.Config{...})
//	wg.Go(func() { r.Run(ctx) })
//	r.Aim(&target) // and nil once nothing is to be reported
//
// # What is counted
//
// Where LRS says request, a TCP proxy has a connection, as in Envoy's tcp_proxy:
// issued are those that were connected to an endpoint since the last report, and in
// progress those that are open. Envoy counts no more of TCP than that. Here successful
// are those that have ended since, however they did, and errors the dials that failed,
// which are not among the issued. So what is in progress grows by what was issued and
// shrinks by what was successful. Dropped are connections over a circuit breaker,
// which have no category, and those of drop_overloads.
//
// # Concurrency
//
// Run owns a goroutine, and for each stream one that receives and one for each
// message that is sent; they have ended when the stream has. Aim may be called from
// anywhere and does not wait.
//
// # Limitations
//
// What was sent on a stream that breaks right after may be lost, and so is what has
// happened since the last report in a cluster that is removed. There are no metrics of
// endpoints (ORCA).
package lrs
