// Package consul makes the instances of services in a Consul catalog the
// endpoints of clusters, and speaks for services in Consul's service mesh.
//
// # Usage
//
//	client, err := consul.New(consul.Config{TokenFile: "/secrets/consul_token"})
//	...
//	wg.Go(func() { client.Run(ctx) })
//	source, err := client.Service(consul.Query{Service: "web"}, log, dups)
//
// One Client serves all sources of a process; each source is a
// discovery.Source. WatchListeners tells which services ask for a listener by
// a tag, and Register keeps a service of the process's own in the catalog.
// SetAccess changes tokens and certificates while all of that runs.
//
// # The service mesh
//
// Discovery by the catalog enforces no intentions, and leaves instances out that
// demand mTLS with the mesh's certificates, unless a Query asks for their kind. With
// Query.Connect those are asked for that speak for the service in the mesh, and an
// Identity is who dials them, or who takes connections:
//
//	mesh := consul.NewMesh(func(ctx context.Context, f func(context.Context, *consul.Client) error) error { return f(ctx, client) }, log)
//	id := mesh.Identity("client")
//	wg.Go(func() { id.Run(ctx) })
//	to := id.Client(consul.Query{Service: "web", Connect: true})
//	config, err := to.Config() // for one connection to an endpoint
//
// The leaf certificate and the roots come from the agent's Connect CA by blocking
// queries. The agent renews the leaf before it expires, and when there are other
// roots; a new one is for new connections. What was learnt stays in force through all
// failures until it expires. Then, and before there is any, nothing is dialled or let
// in, and the error says why. An answer that can't be used, as with a key that does
// not belong to its certificate, or a leaf that is not valid yet, changes nothing. Keys
// are in memory, in no log and no error. What is known is forgotten 10 s after the last
// Run has ended, so that who takes its place does not begin with nothing.
// [MeshServer.Authorize] asks the agent whether intentions let a client connect, and
// takes no answer for a no. It treats intentions with permissions of HTTP as the agent
// does, as a no.
//
// # What is believed
//
// Everything that Consul lists is reported, failing instances too, with a
// status of their own: membership does not change with health, and a service
// that is critical does not look like one that is gone. Status, weight, tags
// and kind are worked out here, from whole answers.
//
// An answer that lists less than before is looked at twice, because Consul has
// several ways to say so in error. A server without a leader, or behind it for
// longer than MaxStale, is believed about what is there and not about what is
// gone. An answer that is empty because of ACLs is no answer; Consul does not
// tell who comes without a token of it, so an empty answer is then asked for once
// more in the name of the anonymous token. The loss of all instances, or of more
// than half, or one that a server tells of that is not as far as another was
// before, and an empty first answer, are confirmed by a consistent read: a server
// that was just started, even a leader, lists nothing until it has caught up. A
// loss is held back for EmptyHold if that can't be had (discovery.HeldError). All
// failures leave the last set in force.
//
// # How it asks
//
// Each source has a blocking query of its own: two requests at once, then one a
// second, and under lasting churn the pace that Consul asks of its clients, one
// in 15 s. Above MaxWatches sources they share four queries on the
// catalog's state instead (shared.go), and read what has changed. One of these
// always runs and notices what Consul does not tell those who wait. Requests go
// to any server ("stale") unless the Query says otherwise. Consul streams most
// answers to blocking queries, of whatever consistency, and then tells neither of
// the leader nor of ACLs nor of a restored snapshot; so one more query, the guard,
// runs in each place that sources look in, and has them ask anew.
//
// # Why one package
//
// Listeners, registration and the mesh could stand apart, but all share the token,
// the connections, the bounds and what is believed, which would have to be
// exported for it.
//
// # Why not api/watch
//
// The plans of package api/watch have no limit on the pace of answers, wait up
// to three minutes after failures, and can't tell an empty answer from a wrong
// one.
//
// # Concurrency
//
// Client's methods may be called from anywhere. Each source owns its state in
// the goroutine of its Watch; what is shared is behind one mutex that is held
// for a few assignments only, or atomic. A token is read for every request, TLS
// files for every connection.
//
// # Limitations
//
// Resolvers, splitters and routers are not followed. In the mesh there are no
// prepared queries, peers and sameness groups, a client's certificate is not looked up
// in a list of revoked ones, which Consul has not, and each Identity has two queries.
// Addresses that are host names are left out. Consul can't block on prepared
// queries, which are polled. Namespaces, partitions, peers and sameness groups
// are handed to Consul; the community edition knows only the first two's
// default. With a sameness group a source keeps its own query also above
// MaxWatches. A token lacking node:read hides instances; an answer that is
// thereby incomplete but not empty is believed, with a warning.
//
// The package is larger than others: the catalog, the registration and the mesh are of
// one Client, with its tokens, its pace and its failures.
package consul
