//go:build !linux

package main

import "fmt"

// supervise is for Linux only, which keeps sockets that are passed.
func (c *runCommand) supervise(*configFlags) int {
	fmt.Fprintln(c.stderr, "-supervised is for Linux only")
	return exitConfig
}

func bySupervisor() bool { return false }
