// Package xds is the client of an xDS management server: it learns clusters
// (CDS) and their endpoints (EDS) over one aggregated stream (ADS), in the
// state-of-the-world variant that every server speaks.
//
// # Usage
//
//	cfg, err := xds.LoadBootstrap("/etc/gatehouse/bootstrap.json")
//	client, err := xds.NewClient(cfg)
//	wg.Go(func() { client.Run(ctx) })
//	wg.Go(func() { client.EDS("web", nil).Watch(ctx, sink) })
//	wg.Go(func() { client.WatchClusters(ctx, apply) })
//
// Whatever was learnt stays in force while the server is away. Only what is
// invalid is refused, with a NACK that names resource and field; the valid
// resources of the same response apply, and the refused one keeps its last
// good version. A cluster that is valid but uses what this program can't do is
// accepted and marked Unsupported.
//
// # Concurrency
//
// Run owns one goroutine with all state: the protocol core, the timers and what
// was learnt. For each stream it starts one that opens it and receives, and
// that starts one that sends; both have ended when the next stream begins.
// The next message is read once the last one has been taken in. Watches take
// the newest state when they get to it, so a slow one holds up nobody and
// nothing piles up.
//
// # Limitations
//
// One server, without TLS, and not through an HTTP proxy. No incremental
// variant, LDS, LRS, CSDS, TTLs or fallback. Cluster types other than EDS and
// STATIC, and policies other than ROUND_ROBIN, RANDOM, LEAST_REQUEST, RING_HASH,
// MAGLEV and WRR_LOCALITY over them, make a cluster unsupported. Of CDS,
// zone_aware_lb_config, and of EDS, drop_overloads and endpoint_stale_after are
// not applied; a cluster with an upstream_bind_config of more than addresses is
// unsupported.
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
