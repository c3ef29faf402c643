//go:build linux

package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"

	"gatehouse.internal/test/bench/forward"
)

// child is a process that plays a role, and can be started again at its address.
type child struct {
	w        *world
	name     string
	args     []string // of the role, but for the address
	addr     string   // of the kernel's choice at the first start
	wants    string   // the first line of its input, if not empty
	cmd      *exec.Cmd
	p        *forward.Program
	in       io.WriteCloser
	outLines chan string
}

// start starts it and waits until it listens.
func (c *child) start() {
	c.w.Helper()
	exe, err := os.Executable()
	c.w.check(err)
	c.cmd = exec.Command(exe, append(append([]string{roleFlag}, c.args...), c.addr)...)
	c.cmd.Stderr = os.Stderr
	c.in, err = c.cmd.StdinPipe()
	c.w.check(err)
	out, err := c.cmd.StdoutPipe()
	c.w.check(err)
	c.p, err = forward.Start(c.cmd)
	c.w.check(err)
	lines := make(chan string, 16)
	c.outLines = lines
	go func() {
		defer close(lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			lines <- s.Text()
		}
	}()
	if c.wants != "" {
		c.say(c.wants)
	} else {
		c.addr = c.answer()
	}
}

// say gives it a line and waits until it has done what that says.
func (c *child) say(line string) {
	c.w.Helper()
	c.wants = line
	_, err := fmt.Fprintln(c.in, line)
	c.w.check(err)
	c.addr = c.answer()
}

func (c *child) answer() string {
	c.w.Helper()
	select {
	case line, ok := <-c.outLines:
		if !ok {
			c.w.Fatalf("%s: %v", c.name, c.p.Ended())
		}
		return line
	case <-time.After(patience):
		c.w.Fatalf("%s says nothing", c.name)
	}
	return ""
}

// kill ends it at once, if it runs.
func (c *child) kill() {
	if c.p != nil {
		c.p.Stop()
		c.p = nil
	}
}

// signal sends SIGSTOP or SIGCONT.
func (c *child) signal(s syscall.Signal) { c.w.check(c.cmd.Process.Signal(s)) }

// backend starts a backend of that name at an address of loopback.
func (w *world) backend(name, ip string) *child {
	w.Helper()
	c := &child{w: w, name: name, args: []string{"backend", name}, addr: ip + ":0"}
	c.start()
	w.Cleanup(c.kill)
	return c
}

// forgetful starts a backend whose host forgets its connections when it is killed.
func (w *world) forgetful(name, ip string) *child {
	w.Helper()
	c := &child{w: w, name: name, args: []string{"forgetful", name}, addr: ip + ":0"}
	c.start()
	w.Cleanup(c.kill)
	return c
}

// three starts the backends that most faults have.
func (w *world) three() (a, b, c *child) {
	w.Helper()
	return w.backend("a", "127.0.0.11"), w.backend("b", "127.0.0.12"), w.backend("c", "127.0.0.13")
}
