package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"
)

func main() {
	testing.Init() // what starts Consul asks it
	fs := flag.NewFlagSet("soak", flag.ExitOnError)
	duration := fs.Duration("duration", 10*time.Minute, "how long the agent soaks, at least 20s")
	within := fs.Duration("within", time.Second, "how long after its end a state may still decide")
	race := fs.Bool("race", false, "build the agent with the race detector")
	fs.Parse(os.Args[1:])
	if *duration < 20*time.Second || fs.NArg() > 0 {
		fmt.Fprintln(os.Stderr, "usage: go run ./test/soak [-duration 10m] [-within 1s] [-race]; at least 20s")
		os.Exit(2)
	}
	flag.CommandLine.Parse(nil)
	t := &command{}
	violations := 1
	done := make(chan struct{})
	go func() { // what fails ends the goroutine
		defer close(done)
		defer t.end()
		dir := t.TempDir()
		var flags []string
		if *race {
			flags = []string{"-race"}
		}
		path, err := build(dir, flags...)
		if err != nil {
			t.Fatal(err)
		}
		violations = run(t, options{duration: *duration, within: *within, binary: path, consul: consulBuilt(), out: func(format string, args ...any) {
			fmt.Printf(format+"\n", args...)
		}})
	}()
	<-done
	if violations > 0 || t.Failed() {
		os.Exit(1)
	}
}

// command is the testing.TB of a program.
type command struct {
	testing.TB // nil: what is not here is not used
	mu         sync.Mutex
	failed     bool
	cleanups   []func()
	ctx        context.Context
	cancel     context.CancelFunc
}

func (c *command) Helper()      {}
func (c *command) Name() string { return "soak" }

func (c *command) Failed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.failed
}

func (c *command) Fail() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failed = true
}

func (c *command) FailNow() {
	c.Fail()
	runtime.Goexit()
}

func (c *command) Log(args ...any)                 { fmt.Fprintln(os.Stderr, args...) }
func (c *command) Logf(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

func (c *command) Error(args ...any) {
	c.Log(args...)
	c.Fail()
}

func (c *command) Errorf(format string, args ...any) {
	c.Logf(format, args...)
	c.Fail()
}

func (c *command) Fatal(args ...any) {
	c.Log(args...)
	c.FailNow()
}

func (c *command) Fatalf(format string, args ...any) {
	c.Logf(format, args...)
	c.FailNow()
}

func (c *command) Context() context.Context {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ctx == nil {
		c.ctx, c.cancel = context.WithCancel(context.Background())
	}
	return c.ctx
}

func (c *command) Cleanup(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cleanups = append(c.cleanups, f)
}

func (c *command) TempDir() string {
	dir, err := os.MkdirTemp("", "gatehouse-soak-")
	if err != nil {
		c.Fatal(err)
	}
	c.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// end runs the cleanups, the last first.
func (c *command) end() {
	c.Context()
	c.cancel()
	for {
		c.mu.Lock()
		n := len(c.cleanups)
		if n == 0 {
			c.mu.Unlock()
			return
		}
		f := c.cleanups[n-1]
		c.cleanups = c.cleanups[:n-1]
		c.mu.Unlock()
		f()
	}
}
