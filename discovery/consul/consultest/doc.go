// Package consultest starts real Consul servers and agents for tests, on
// loopback, and changes what their catalog says.
//
// # Usage
//
//	server := consultest.Start(t, consultest.Options{})
//	server.Register(consultest.Instance{Name: "web", ID: "web-1", Address: "192.0.2.1", Port: 80})
//	server.SetStatus("web-1", api.HealthWarning)
//	server.Kill()
//	server.Restart()
//
// The binary is the one that test/consul/build prints; if it is not built yet,
// the first Start of the process builds it, which takes minutes. Where it can't
// be built the test fails and says what to run. With -short, Start skips the
// test.
//
// Register and what goes with it act on the agent, as an application does, and
// last as long as the agent's data. RegisterMany and Replace act on the catalog
// behind the agent's back, on nodes that no agent runs on, and are the way to
// many instances.
//
// # Concurrency
//
// All methods end the test when they fail, so they belong in the goroutine of
// the test that was given to Start; only an api.Client that API has returned,
// Addr, HTTPSAddr, Node and Log are for any goroutine. Servers are independent
// of each other, and tests and packages that run at the same time don't get
// into each other's way.
//
// A running server has one goroutine, which Ignore names for tests that count
// goroutines.
//
// # Limitations
//
// A server given to Start by a parent test makes the parent fail, not the
// subtest that uses it.
//
// Each server reserves eight ports between 10000 and 26000, below the range of
// which kernels choose by default. The reservation holds among processes that
// use this package, also while the server is stopped; if another program takes
// one of them meanwhile, Restart fails.
//
// If the test process dies, the servers die with it on Linux only.
package consultest
