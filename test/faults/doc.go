// Command faults has things go wrong around an agent, and counts what its clients
// see: how many are refused, reset, kept waiting or told nonsense, how long it takes
// until something tells of it, how long until all is as before, and whether it then takes
// what it took before.
//
// # Usage
//
//	go run ./test/faults [-only NAME,…] [-quick] [-json] [-write docs/faults.md]
//	go run ./test/faults -list
//
// All take about ten minutes, on Linux as root, with nftables, dnsmasq-base and
// iproute2; the first run builds Consul, which takes minutes more. Without root those
// run that need none, and the others fail and say what is missing; -only takes names
// and parts of names. The exit code is 0 if each fault has cost what it may, 1 if one
// has cost more or could not be made, 2 for wrong usage. -json prints one object:
//
//	{"machine":{"cores":2,"go":"go1.26.8"},"quick":false,"faults":[
//	 {"fault":"control-killed","expect":"…","ok":true,"asks":{"ok":905,"refused":0,…},
//	  "streams":{"open":6,"cut":0,…},"detect_ms":900,"recover_ms":1700,
//	  "base":{"goroutines":46,…},"after":{…},"settled_ms":0}]}
//
// docs/faults.md explains the figures, and has the table that -write puts there.
//
// # How a fault is made
//
// list.go says what each is and may cost. It runs in a process of its own, which as
// root has namespaces of its own for the network, mounts and processes: nothing of it
// outlives that process, and no packet leaves loopback. Agent, backends and control
// planes are processes, of this program but for the agent, so that they can be killed
// and stopped. Packets are dropped and answered by nftables, slowness is Shopify's
// toxiproxy, Consul and dnsmasq are those of consultest and dnstest. The agent whose
// wall clock jumps is built with a package time that adds what a file says: there is
// one wall clock for all processes of a machine.
//
// # Concurrency
//
// Faults happen one after the other. Little else should run on the machine: expected
// times are for two cores.
//
// # Limitations
//
// Linux only. A fault is one at a time. What takes minutes is not waited for: a
// control plane that hangs is noticed after gRPC's 5 min 20 s. "seen" is what the
// log or the admin interface shows, asked each 20 ms, and each fault says by what, or
// why there is nothing to see.
//
// The package is larger than others: each of its faults is a page.
package main
