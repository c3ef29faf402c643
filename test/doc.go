// Package test drives the built binary and the public packages against real
// parts: a go-control-plane server, Consul, nginx, TCP backends, files, signals.
// It also keeps the floors of the house.
//
// # Usage
//
//	go test -race ./test
//	./test/fuzz 60s
//
// # Concurrency
//
// Tests run one after the other; each has processes and ports of its own.
//
// # Limitations
//
// All traffic is on loopback, of the machine or of a network namespace that a test
// has made. With -short only the floors are looked at. Where nginx or its stream
// module is missing, or iproute2, iptables, systemd, prometheus (for promtool) and root,
// the test that needs it fails and names the Debian package.
package test
