// Package lbcore is the machine that keeps selectors built: it knows who the
// members of a cluster are, what is known of each of them right now, and which
// of them takes the next connection.
//
// A View is one cluster's membership. Each change of it makes a Snapshot of a
// new generation. A Group keeps N selectors, one a slot, built over a View;
// all rebuilds of a node pass one Gate, newest request wins. What a slot has
// published answers picks until its successor is published, and for as long as
// somebody still reads it.
//
// # Usage
//
// The owner of a cluster, one goroutine, runs this loop:
//
//	snap, topology := view.Update(set)   // from discovery
//	if topology {
//		group.Rebuild(snap)          // never blocks
//	}
//	group.UpdateLoads()                  // then, and after a flip of health or enablement
//	again := view.Warm(now)              // likewise; and every 100 ms while again
//	left := view.Sweep(group.Served())   // when group.Wake fires
//
// Whoever opens a connection selects with a pinned Reader, which must not be
// held across anything that waits:
//
//	r := gate.Pin()
//	picks := slot.Pick(r, key, 3)
//	r.Unpin()
//	for m := picks.Next(); m != nil; m = picks.Next() {
//		m.StartDial() // then one of DialFailed, DialAbandoned, Connected; then Closed
//	}
//
// # Readiness
//
// A Member is ready if it is enabled, discovery's status is routable, its
// weight is above 0, it is not ejected, not withdrawn, and its checks pass. A
// degraded one is ready too. All of that is live: a flip is obeyed by the next
// pick of every selector of any generation, with no rebuild. An endpoint that
// discovery has dropped is withdrawn: until the next selector is published,
// older ones pass over it as long as another endpoint is ready, and answer with
// it otherwise. A View that stabilizes keeps it for as long as its checks pass
// (ViewConfig.Stabilize). docs/health.md has all of this as one table.
//
// # Priorities and localities
//
// The endpoints of a priority are a tier, or three where local ones are
// preferred (Spread.PreferLocal). Each tier takes as much of the load as its
// ready endpoints allow, and the rest spills over to the next; below the panic
// threshold it takes load for all its endpoints, whatever their health. Degraded
// endpoints take what the healthy ones leave. All that is Envoy's arithmetic, in
// a table beside the published selector that UpdateLoads swaps: health rebuilds
// nothing. Where localities weigh, each has a selector, and its weight sinks with
// its availability; for keyed policies, as in Envoy, the weights are in the one
// selector's shares and availability has no say. Endpoints of localities of
// weight 0 are neither picked nor counted then.
//
// Until the table is swapped, and where more candidates are wanted than the
// chosen tier has, a pick goes on to the other localities, to the healthy
// endpoints of the other tiers and to degraded ones, in this order.
//
// A Chain makes one list of the tiers of several slots, as Envoy's aggregate
// clusters do: its own table leads to a slot and a tier of it.
//
// # Concurrency
//
// A View's methods belong to its owner; a Group, Slot, Gate and Member may be
// used from anywhere. Published selectors are never written, but for the named
// atomics of live state, round robin's cursor, the table of priority loads, and
// adaptive's sums, which picks correct by atomics in the selector's own storage
// while their Reader is pinned. Pick takes no lock and allocates nothing. The
// one mutex of a Slot covers a pointer to the pending request, that of a Gate
// the list of retired selectors; neither is held over anything that waits.
//
// A reader that stays pinned, because its thread was preempted or because of a
// bug, holds up large rebuilds for at most GateConfig.StuckAfter, and nothing
// else. On cores that are all busy with readers a preempted one costs a large
// rebuild some 10 ms.
//
// # Memory
//
// A selector is built in one region of storage, in a class of sizes that are 3 %
// apart. What a replaced selector leaves serves the next build of its class as
// soon as no reader can hold it: pins tell by their epochs. After 10 s without a
// build it is given back. Regions from 32 KiB on are mapped outside of Go's heap
// where the platform has mmap. So what large selectors take is what is in service,
// one build, 1/64 for readers that are slow and as much for spare regions, and
// what stuck readers hold. Small builds wait for nobody: of what they replace
// under a slow reader some 32 regions are kept, and the rest is of Go's heap and
// left to the collector. Group.Close gives back what is in service.
//
// In a build with -tags poison storage that no reader should hold is overwritten;
// under the race detector all of it is Go's heap, which the detector watches.
//
// # Why one package
//
// It is larger than others because a pick, a rebuild and a report of what became
// of a connection meet in the same words of memory: what one of them may assume of
// the others is nobody else's business. What doesn't take part in that, the
// policies, is outside.
//
// # Limitations
//
// GOMEMLIMIT and Go's heap profile don't know of mapped regions; Gate.Stats does.
// Envoy rebuilds selectors when health changes, here picks walk on
// past the unready. A locality is chosen by lot, where Envoy takes them in turn.
package lbcore
