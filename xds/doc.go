// Package xds is the client of xDS management servers: it learns clusters (CDS),
// their endpoints (EDS), listeners (LDS) and the secrets of both (SDS) over one aggregated
// stream (ADS), in the incremental variant of the protocol or in that of the state of the
// world.
//
// # Usage
//
//	cfg, err := xds.LoadBootstrap("/etc/gatehouse/bootstrap.json")
//	client, err := xds.NewClient(cfg)
//	wg.Go(func() { client.Run(ctx) })
//	wg.Go(func() { client.EDS("web", nil).Watch(ctx, sink) })
//	wg.Go(func() { client.WatchClusters(ctx, apply) })
//	wg.Go(func() { client.WatchListeners(ctx, listen) })
//
// Whatever was learnt stays in force while the servers are away. Only what is
// invalid is refused, with a NACK that names resource and field; the valid
// resources of the same response apply, and the refused one keeps its last
// good version. A cluster that is valid but uses what this program can't do is
// accepted and marked Unsupported. So is a listener, or a filter chain of it: what
// the chain has beside a filter that is not known must not be run without it.
//
// Secrets have no watch of their own: clusters and listeners come with what theirs hold,
// anew each time that one changes, or with the reason why there is no TLS (NoTLS). A
// version that takes a secret of which nothing is known yet waits for it while there is
// a version before. Secrets are in memory alone, and no error or log line quotes them.
//
// With Config.State the resources in force are on disk too, as they were sent. The next
// run hands them on at once, with a discovery.RestoredError; it does not tell servers
// that it has them, and what the server that counts does not send within
// InitialFetchTimeout goes, as after a change of servers.
//
// # Parts
//
// Package core has the protocol, adsgrpc the connections, names the names of
// resources, lrs the load reports; this package has the decoders, the loop that joins them, and what
// others see of it.
//
// # Concurrency
//
// Run owns one goroutine with all state: the protocol core, the timers and what
// was learnt. For each stream it starts one that opens it and receives, and
// that starts one that sends; both have ended when the next stream to that server
// begins. The next message is read once the last one has been taken in. Load
// reports have a goroutine and a stream of their own, while a cluster in force wants
// them; it calls Config.Loads. Watches
// take the newest state when they get to it, so a slow one holds up nobody and
// nothing piles up.
//
// # What a server can't do
//
// Make the client grow: a response has at most MaxMessage bytes and 262144
// resources, and of a type as many are held, of 1 GiB together with their names and
// versions, beside 64 MiB of what was refused; a name has at most 4096 bytes, and of
// what a server says in words 500 are kept and logged. Make it busy: what
// is refused again is answered later each time, up to 5 s, and a stream that ends
// is followed by the next one a second later at the earliest. Fill the log: a
// cause is told once, and causes that change come at a rate.
//
// # Limitations
//
// The package is larger than others: most of it are decoders, one a resource, which
// share the rules of what becomes of a field, and the types that they fill.
//
// Clusters and listeners that hold secrets, listeners with filters that are not known,
// and resources with a TTL, are not kept on disk. Not through an HTTP proxy. No RDS. Secrets
// are asked for at the same servers, at most 16384, and are certificates or how peers are
// verified: no session ticket keys, nothing generic. One authority: xdstp names are
// asked for at the same servers as the others, whatever their authority. Server
// features of the bootstrap are ignored. A request names all that is new at once:
// servers that take no more than gRPC's 4 MiB can be asked for some 100,000 names
// of 40 bytes. Of cluster types,
// ORIGINAL_DST and extensions other than DNS and aggregate clusters make a cluster
// unsupported, and so do policies other than ROUND_ROBIN, RANDOM, LEAST_REQUEST,
// RING_HASH, MAGLEV and WRR_LOCALITY over them. zone_aware_lb_config is not applied.
// README.md tells what becomes of each field.
//
// Of TLS to endpoints Envoy's rules hold: what is not configured to be verified is
// not, which Cluster.Warnings tell.
//
// Of LDS there are listeners of TCP: filter chains of RBAC filters and a tcp_proxy
// over plain text or TLS with inline certificates, files or secrets, and the listener
// filters tls_inspector, proxy_protocol and original_dst, and http_inspector where no
// chain depends on it. Of TLS what would be weaker left
// out makes the chain unsupported, as revocation lists and pinned keys do. HTTP, UDP,
// internal and api listeners, filter_chain_matcher, and filters that are to be
// discovered are unsupported. Access logs go to files, stdout and stderr: to any file
// that the control plane names and the agent may write.
//
// # Why not …
//
// … google.golang.org/grpc/xds: its client is internal to it and knows only
// what gRPC can do with a cluster.
//
// … one connection for all attempts: gRPC would then add its own back-off to
// the client's, and a server that is back would be found late.
//
// … wait with a subscription to a cluster's endpoints until somebody watches
// them: go-control-plane with ads=true answers only to a request that names all
// of them.
package xds
