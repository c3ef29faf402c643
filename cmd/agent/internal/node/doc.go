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
// If a listener can't be opened, or files of TLS can't be used, nothing is applied,
// unless the listener is an optional one: that is left out, shown with the reason,
// and tried again.
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
// Health checks with the same TLS files share one client of these, whose files are
// watched by one of the clusters that have it.
//
// A listener of the control plane has filter chains, each with its clusters, access
// logs and certificates. Of one that changes, chains that are the same but for their
// certificates stay, with their connections; the others get DrainTimeout to end. What a
// chain can't have, as a certificate that has expired, makes it refuse its connections,
// with the reason in dumps and records.
//
// # Limitations
//
// A listener of the control plane that gets another name, or another address, closes
// its socket before the other one is open. Where something is said anew of the whole
// listener, connections of all its chains drain. A chain whose access log can't be
// opened serves without it, which is logged.
//
// Endpoints that are absent, which on_absent has stay, are lost when the cluster's
// settings change: its replacement knows only what discovery lists.
//
// A replaced cluster begins with counters of 0 and without what the old one's
// adaptive selectors have learnt, and does not see connections that the old one
// opened; they live on. It takes over what the operator had said of addresses
// when it began, and ejections as they are when it takes over; ejections are
// forgotten when the agent ends. That a check of an ejected endpoint has passed is
// noticed once a second. A replacement that never becomes warm never takes over: the old
// one serves on, and its status says what is waited for.
//
// An address can't pass from one listener to another in one Apply, since the
// socket of the one is open until that of the other is: it takes two. It can to
// an optional one.
package node
