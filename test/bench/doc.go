// Command bench measures what selectors cost: a pick, a build, and what rebuilds
// of many of them do to memory and latency. It prints ours and those of others
// from one run beside each other, with the goal beside each figure.
//
// # Usage
//
//	go run ./test/bench [-quick] [-json] lb|memory|all
//
// Figures are medians. Each measurement has a process of its own, and they take
// turns in rounds, so that what slows the machine down for a while hits all
// alike. -quick takes at most three minutes a benchmark, not counting the first
// build of the peers: it makes fewer and shorter rounds, and where there is no
// time left for a case its row says so. -json prints one object:
//
//	{"bench":"lb","machine":{"cores":2,"go":"go1.26.8"},"rows":[
//	 {"row":"pick, …","subject":"gatehouse, 1 core","value":21.4,"unit":"ns","goal":"<= 30","ok":true},
//	 {"row":"pick, …","subject":"gatehouse, 2 cores","value":12.1,"unit":"ns","ratio_to":"1 core","ratio":0.57,"goal":"<= 1","ok":true},
//	 {"row":"pick, …","subject":"…","error":"why there is no figure"}]}
//
// A goal is for the ratio where there is one, else for the value. The exit code
// is 0 if everything was measured, goals missed or not, 1 if a measurement or
// the build of the peers failed, 2 for wrong usage. What is left out for want
// of time or memory, or can't be had, is a row with an error and no failure.
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
// Allocations are the most that any of these makes. Storage is what SlotStats
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
// that changes every cluster, then more until there are enough batches of picks
// for a p99, then ten updates in 100 ms. A ring has 100 endpoints with many
// points each, so that the rings outweigh the memberships.
//
// Peak RSS is VmHWM from just before an update, after freed memory was given
// back, to its end. It is divided by the storage of all published selectors,
// plus the largest, plus the RSS before anything was built, memberships
// included. Selectors published and building are counted by a Builder around
// the ring's: how many retired ones still have readers, or wait for Go's
// collector, can't be seen from outside.
//
// Latency is open loop: every 200 microseconds a thread of its own picks a batch
// of 32 from a cluster drawn at random, and the figure is from the intended time
// to the end of the batch, also where batches were missed and had to be made up
// for. It holds the time that the kernel and Go take to wake the thread, as an
// event loop would feel it. The phase after begins when that is made up for. The
// ratio of a p99 is to that of the same process before the update.
//
// At last 1,000 clusters, one after the other, are rebuilt once through one Gate
// while two readers on two cores never rest: with rings for the small lane, and
// with rings just above 256 KiB.
//
// # Concurrency
//
// A parent runs one child at a time. Nothing else should run on the machine.
//
// # Limitations
//
// Peak memory is known on Linux only. On a virtual machine figures drift by a
// tenth or two from run to run, and p99s more: trust ratios of one run. With
// two cores shared by others the row for two cores tells little. There is no
// connection behind a pick: what a selector is worth among many clients is not
// measured here. dgryski/go-maglev can't be had from the module proxy, and
// buraksezer/consistent takes minutes to build 10,000 endpoints; both have a
// row that says so.
package main
