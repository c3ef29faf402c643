// Command bench measures what selectors cost: a pick, a build, and what rebuilds
// of many of them do to memory and latency; what health checks cost; what
// connections through the forwarder cost; what a control plane costs its client; and
// what look-ups take when a nameserver dies. It prints ours and those of others from one run beside each other, with
// the goal beside each figure.
//
// # Usage
//
//	go run ./test/bench [-quick] [-json] lb|memory|health|xds|forward|dns|all
//
// Figures are medians. Each measurement has a process of its own, and they take
// turns in rounds, so that what slows the machine down for a while hits all
// alike. -quick takes at most three minutes a benchmark, not counting the first
// build of the peers: it makes fewer and shorter rounds, and where there is no
// time left for a case its row says so. Without -quick the first round measures
// every case, however long that takes, and further ones end after half an hour a
// benchmark. -json prints one object:
//
//	{"bench":"lb","machine":{"cores":2,"go":"go1.26.8"},"rows":[
//	 {"row":"pick, …","subject":"gatehouse, 1 core","value":21.4,"unit":"ns","goal":"<= 30","ok":true},
//	 {"row":"pick, …","subject":"gatehouse, 2 cores","value":12.1,"unit":"ns","ratio_to":"1 core","ratio":0.57,"goal":"<= 1","ok":true},
//	 {"row":"pick, …","subject":"…","error":"why there is no figure"}]}
//
// A goal is for the ratio where there is one, else for the value. Medians of
// ratios have the smallest and the largest one beside them, as ratio_min and
// ratio_max. The exit code
// is 0 if everything was measured, goals missed or not, 1 if a measurement or
// the build of the peers failed, 2 for wrong usage. What is left out for want
// of time or memory, or can't be had, is a row with an error and no failure.
//
// # health
//
// An agent without listeners probes 100 to 10,000 targets by TCP each 10 s, and
// HAProxy the same ones, all of which are one backend on many addresses of
// loopback. CPU is that of whole intervals once all have passed, in percent of one
// core; memory is Rss, less that of the same program without targets, and of the
// same without checks. Go keeps what reading the configuration took, for a while:
// the former has that too. Then 500
// targets are in one cluster, and the same 500 in each of 200: probes a second must
// not grow. A share is one cluster's part in one of these targets, 100,000 in all;
// what it takes is memory over the same without checks. HAProxy closes its checks as
// the agent does, by a reset.
//
// # lb
//
// Each policy, of 10 to 10,000 endpoints, with equal weights and weights of 1 to
// 4, is picked from through a Slot, on one core and on two; the figure on two is
// the time over all picks together, as of testing's RunParallel. From the plain
// pick (all endpoints ready, 32 picks to a pin, a key that is a hash) one thing
// is varied at a time: the key is the text of an address, which takes a few
// nanoseconds to make; each pick has a pin;
// half of the endpoints, or all but one in a thousand, are down; adaptive
// observes what it picked. least_weight counts the connection and releases it.
// Without -quick, what is down is also picked on two cores and with a pin each.
// Allocations are the most that any of these makes, counted on one core beside
// the timing: in hundredths, rounded down, as Go's runtime allocates a few times
// in thousands of picks. Those of peers are rounded down to whole ones. Storage is what SlotStats
// says, and builds are timed by it too.
//
// The peers' module is in the folder peers and is built once into the cache
// (GATEHOUSE_CACHE, or gatehouse in the user's). Policies of grpc-go and go-zero
// are built through grpc's public registry on a connection that is no client:
// its subconnections are ready at once. Below grpc-go's policies a leaf stands
// in for pick_first. grpc-go's ring_hash has its default size, and can be given a
// hash only in metadata; both that, of 1,024 addresses, and its random hash are
// measured. weighted_round_robin got a load report for each endpoint. Picks call
// done, but have no RPC in between. The ratio of a peer is to our pick of the
// same row.
//
// # memory
//
// N clusters with a ring each, built in three modes: ungated, where each has a
// Gate of its own; gated, with one Gate for all; both with storage from Go's
// heap; and reuse, with one Gate and storage used again. They get one update
// that changes every cluster, then picks are timed, then come ten updates in
// 100 ms. A ring has 100 endpoints with many points each, so that the rings
// outweigh the memberships. Rings are named by their storage as SlotStats says
// it, or by their points where none was built.
//
// Peak RSS is VmHWM from just before an update to its end. It is divided by the
// storage of all published selectors, plus the largest, plus the base: the RSS
// before anything was built, memberships included. Before the base is read and
// before each of the two updates freed memory is given back to the kernel, by
// debug.FreeOSMemory. Go keeps what was freed for a while: in the base it would
// raise what the peak is divided by, and before an update it would be memory
// that the update seems not to take, or one that earlier builds have left. So
// the peak is what this update adds, with the garbage of its own. Of both
// updates the larger ratio of the ungated has a goal of its own: it must show
// that without a gate memory doubles, from 8 rings of 1.3 MB on.
//
// Selectors published and building are the clusters and the most builds that
// ran at once, counted by a Builder around the ring's. Retired selectors, which
// may have readers, and stuck ones, whose readers the Gate passed, are not in
// it. In mode reuse GateStats is read when a build begins, as storage grows at
// no other time: the high-water marks are of all storage outside of Go's heap,
// spare, retired and stuck included, and of what is retired and stuck in the
// large lane, in units of one ring. The first has a goal in the large lane; the
// small one, below 256 KiB, may keep up to 1 MiB spare and 64 retired. In the
// other modes, and below 32 KiB, storage is of Go's heap: which selectors wait
// there for the collector can't be seen, only peak RSS shows their sum.
//
// Latency is open loop: every 200 microseconds a thread of its own picks a batch
// of 32 from a cluster drawn at random, and the figure is from the intended time
// to the end of the batch, also where batches were missed and had to be made up
// for. It holds the time that the kernel and Go take to wake the thread, as an
// event loop would feel it. Picks are timed in pairs: while clusters are rebuilt
// in waves, of as many as have four million points, and just after that for as
// long without. On a virtual machine a p99 varies a hundredfold, as the host
// takes the cores away; most pairs see the same of that on both sides. The
// figures before and during are medians over the pairs, and the ratio is the
// median of that of each pair, over all rounds. The figure after is taken when
// the last update is over and made up for.
//
// At last 1,000 clusters, one after the other, are rebuilt once through one Gate
// while two readers on two cores never rest: with rings for the small lane, and
// with rings just large enough for the large one. Rings for the wrong lane are
// an error.
//
// # xds
//
// A go-control-plane server has 10 clusters, and then 1,000, of 50 endpoints each.
// The agent is its client in both variants of the protocol, and so is a program of
// grpc-go, in the state of the world, with one channel that has a route to each
// cluster, as each channel has a stream of its own: it is built into the cache as the
// other peers are. The first sync is from the start of the
// process until the agent's /ready says so, or until grpc-go has accepted all
// endpoints: it connects later. Then one endpoint of one cluster moves, many times,
// and the time is from the server's send until the first pick of it arrives there.
// CPU is for an update of one endpoint; its ratio is that to 10 clusters in the same
// round. Sets that differ are what the agent's views have got, and selectors built
// what they have led to: one each, also where a response has all assignments. Of
// grpc-go these can't be counted.
//
// Heap is what lives after a collection, without the storage of selectors. It is what
// endpoints take beyond the first of each cluster, and what a cluster with one takes
// beyond a program without clusters; the metrics of a cluster are most of that. Of
// grpc-go, which has no metrics here, rings are in it. Package control says how
// figures are taken.
//
// # forward
//
// Gatehouse, HAProxy, HAProxy with forced splicing, nginx (stream), a program of
// inetaf/tcpproxy and nobody in between ("direct") take turns, each round in new
// processes: the relay, one backend and the load generator, which is the child.
// HAProxy and nginx are Debian's (apt-get install haproxy nginx
// libnginx-mod-stream); what is not installed has rows that say so. All have two
// threads, 1,000 servers on addresses of 127.0.0.0/8 by a consistent hash of the
// source, timeouts of an hour and no log. Gatehouse and HAProxy check the
// servers every 5 seconds; nginx can't without connections, inetaf/tcpproxy not
// at all. Package forward says how figures are taken.
//
// Connections are opened, echo a byte and are closed, 32 at a time. Round trips
// are of 64 bytes, on one connection, on 64, and over these at a fixed 10,000 a
// second, measured from when each should have been sent. Bulk is sent one way for
// a time; the backend tells after the end of the stream how much came, and if
// that is not what was sent there is no figure. CPU is of the relay's threads,
// for each operation or GB; once more with load and backend included, since a
// relay can leave work to these. The load generator opens full TLS handshakes
// with a P-256 certificate, X25519 and AES-128-GCM, which the relay ends; round
// trips, bulk and idle connections are measured over such connections too, by
// goroutines of the load generator. inetaf/tcpproxy can't end TLS.
//
// Idle connections have echoed one message and are not checked for; memory is
// what RSS has grown by. Where fewer descriptors than two for each of 9,500 may be
// open, there are fewer connections, and fewer of inetaf/tcpproxy, which takes
// six. A large ring, in a cluster of its own, is rebuilt as its file changes; the
// ratio is that of times with and without, in pairs. After each pair comes a control:
// nothing is rebuilt, but another process computes for as much time as the agent had
// taken more with the rebuilds, which tells what of the ratio is for want of CPUs. "With probes and changes" the
// servers are checked each second, and while the ring is rebuilt their own list,
// and so their ring, changes as often; GOMAXPROCS is set from outside, to tell how
// many Ps event loops and all the rest need together. Before and after 100,000
// connections goroutines, descriptors and the heap are read from the agent's
// metrics; of the heap the least over twelve collections counts.
//
// Ratios to HAProxy are medians over rounds, of both in the same round. The rows
// from /proc say if the relay did what it is for: all sockets of 64 connections
// must be in epoll sets other than that of Go's runtime, and there must be pipes
// during bulk. HAProxy tells how many bytes it spliced; where those are less than
// nine in ten, the rows of "haproxy, splice" are an error. Without -quick idle
// connections and rebuilt rings are measured in three rounds, with it in one; what
// 100,000 connections leave behind always once.
//
// # dns
//
// Three nameservers in the client's process answer after 1, 20 and 200 ms. Four
// look-ups of names that nobody has looked up before are under way at once: while
// all are alive, while the first is silent, from the moment of its death on, and
// when it is back, after as long as half of a measurement for that to be noticed.
// net.Resolver takes its nameservers from resolv.conf only: the nth try of each
// look-up is sent to our nth nameserver. The fixed order is miekg/dns's client, with
// the 5 s of resolv.conf(5) for each nameserver.
//
// # Concurrency
//
// A parent runs one child at a time. Nothing else should run on the machine.
//
// # Limitations
//
// Peak memory is known on Linux only, and forward runs there only. On a virtual
// machine figures drift by a tenth or two from run to run, and p99s more: trust
// ratios of one run. With
// two cores shared by others the row for two cores tells little. There is no
// connection behind a pick of lb: what a selector is worth among many clients is not
// measured here. dgryski/go-maglev can't be had from the module proxy, and
// buraksezer/consistent takes minutes to build 10,000 endpoints; both have a
// row that says so.
package main
