// Package node runs what the configuration and the control plane want: it is
// the one place that knows discovery, health, selection and forwarding, and
// joins them.
//
// # Usage
//
//	n := node.New(node.Config{...})
//	go n.Run(ctx)
//	err := n.Apply(ctx, node.Spec{Clusters: ..., Listeners: ...})
//
// Apply takes the whole wanted state, and is the one way in: for the start, a
// reload, and what the control plane says. What did not change is not touched.
// If a listener can't be opened or can't take its settings, or files of TLS can't be used, nothing is applied,
// unless the listener is an optional one: that is left out, shown with the reason,
// and tried again.
//
// A listener that Config.Socket gives an open socket begins to accept once its clusters
// are warm, since who has connected there was waiting for an agent. None accepts before
// Config.Hold is closed. Sockets gives the sockets to a process that is to take over.
//
// # Concurrency
//
// Run owns the tables of clusters and listeners. Each cluster has an owner
// goroutine, which alone writes its View; a listener finds its cluster's
// selector by an atomic pointer that Run stores. Status may be called from
// anywhere.
//
// Certificates rotate in goroutines of their own: a cluster's belongs to its owner,
// a listener's to Run, which keeps it as long as the listener's tls block is the
// same, also when its address changes.
//
// A cluster whose settings changed is replaced: the new one starts beside the
// old one, shares its probes and discovery where they are the same, and takes
// over once it is warm. Where only endpoints changed that the settings list, as
// those of a static cluster of the control plane, the cluster stays.
//
// A cluster that consists of others has no owner: the owners of the others keep its
// table of loads, which Run makes anew when one of them comes, goes or is replaced.
//
// Health checks with the same TLS files share one client of these, whose files are
// watched by one of the clusters that have it.
//
// A listener of the control plane has filter chains, each with its clusters, access
// logs and certificates. Of one that changes, chains that are the same but for their
// certificates stay, with their connections; the others get the drain timeout to end.
// What a chain can't have, as a certificate that has expired, makes it refuse its
// connections, with the reason in dumps and records.
//
// # State
//
// With Config.State the endpoints of discovery blocks and what the operator has said
// of endpoints are kept for the next run: see discovery.Keep. EDS is not kept here:
// the xDS client keeps the resources.
//
// # Limitations
//
// An optional listener that gets an address which overlaps the one that it leaves, as
// 0.0.0.0:80 does 127.0.0.1:80, closes that before the other one is open: the system
// allows no other way. Who connects between is refused.
// Where something is said anew of the whole listener, connections of all its chains
// drain. A listener of the control plane, or a chain, whose access logs can't be opened
// serves without them, which is logged, and tries again every 5 s.
//
// Endpoints that are absent, which on_absent has stay, are lost when the cluster's
// settings change: its replacement knows only what discovery lists.
//
// A replaced cluster begins with counters of 0 and without what the old one's
// adaptive selectors have learnt, and does not see connections that the old one
// opened; they live on. It takes over what the operator has said of addresses,
// and ejections as they are when it takes over; ejections are
// forgotten when the agent ends. Endpoints that are absent are not kept. That a check of an ejected endpoint has passed is
// noticed once a second. A replacement that never becomes warm never takes over: the old
// one serves on, and its status says what is waited for.
//
// A TCP address passes from one listener to another, as when it gets another name,
// with its socket. That of a unix socket can't in one Apply, since the socket of the
// one is open until that of the other is, and neither can one that overlaps another
// without being the same: it takes two. They can to an optional one.
//
// The package is larger than others because it is the only one that knows all the
// parts: clusters and listeners take over from each other in one step, by one owner.
package node
