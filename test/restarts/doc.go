// Command restarts shows that restarts of the agent cost no connection: it makes
// connections at a constant rate while the agent is replaced again and again, and counts
// what the clients see.
//
// # Usage
//
//	go run ./test/restarts [-rate 2000] [-restarts 10] [-every 3s] [-mode takeover|activation|both] [-agent FILE] [-json]
//
// In the mode takeover each process is replaced by one that is started with run
// -takeover, and drains beside it. In the mode activation the listening socket is this
// program's, as it would be systemd's: the agent is ended by SIGTERM, and the next one is
// started with LISTEN_FDS once it has gone; who connects meanwhile waits in the kernel.
//
// Each connection sends a line, gets it back from one of the backends and ends; one of
// eight is made over a unix socket in the mode takeover. Before each restart some
// connections more are opened that exchange a line ten times a second until shortly
// before half of the drain is over, when the first may be closed: these are held. Everything is on loopback, and a
// connection that is late is one that took longer than a second.
//
// It prints a table, or with -json one object a line for each mode. The exit code is 0 if
// nothing was refused, reset or left without an answer, 1 otherwise, 2 for wrong usage.
// It is for Linux only.
package main
