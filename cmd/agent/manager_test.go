package main

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"gatehouse.internal/cmd/agent/internal/config"
	"gatehouse.internal/lbcore"
)

// told collects what a service manager is told.
type told struct {
	mu  sync.Mutex
	all []string
}

func (d *told) say(text string, _ *os.File) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.all = append(d.all, strings.ReplaceAll(strings.TrimSpace(text), "\n", " "))
	return nil
}

// since returns what was said since it was last asked.
func (d *told) since() string {
	synctest.Wait()
	d.mu.Lock()
	defer d.mu.Unlock()
	text := strings.Join(d.all, " | ")
	d.all = nil
	return text
}

// What a service manager is told, and when: the watchdog is fed only while the event
// loops go round, and a start or a stop takes longer only while they do.
func TestManager(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d told
		var log bytes.Buffer
		var mu sync.Mutex
		ready := make(chan struct{})
		status, hangs := "one", false
		m := &manager{
			log: slog.New(slog.NewTextHandler(&log, nil)), say: d.say, watchdog: 8 * time.Second, ready: ready,
			status: func() string { mu.Lock(); defer mu.Unlock(); return status },
			turn: func(ctx context.Context) error {
				mu.Lock()
				defer mu.Unlock()
				if hangs {
					mu.Unlock()
					<-ctx.Done()
					mu.Lock()
					return ctx.Err()
				}
				return nil
			},
		}
		set := func(s string, h bool) { mu.Lock(); defer mu.Unlock(); status, hangs = s, h }
		want := func(when, text string) {
			t.Helper()
			if got := d.since(); got != text {
				t.Errorf("%s: %q, want %q", when, got, text)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- m.run(ctx) }()
		want("at the start", "STATUS=one")
		m.reload(true)
		m.reload(false)
		want("a reload before it is ready", "")
		time.Sleep(4 * time.Second)
		want("a beat before it is ready", "WATCHDOG=1 EXTEND_TIMEOUT_USEC=15000000")
		set("two\nlines", false)
		close(ready)
		want("ready", "READY=1 STATUS=two; lines")
		time.Sleep(4 * time.Second)
		want("a beat", "WATCHDOG=1")
		set("three", false)
		time.Sleep(4 * time.Second)
		want("a beat with news", "WATCHDOG=1 STATUS=three")

		set("three", true)
		time.Sleep(20 * time.Second)
		want("while a loop hangs", "")
		if !strings.Contains(log.String(), "event loops do not go round") {
			t.Errorf("log %s", &log)
		}
		set("three", false)
		time.Sleep(8 * time.Second)
		if got := d.since(); !strings.HasPrefix(got, "WATCHDOG=1") {
			t.Errorf("once it goes round again: %q", got)
		}

		m.reload(true)
		if got := d.since(); !strings.HasPrefix(got, "RELOADING=1 MONOTONIC_USEC=") || strings.Contains(got, "|") {
			t.Errorf("a reload begins: %q, want one message", got)
		}
		m.reload(false)
		want("a reload has ended", "READY=1 STATUS=three")
		m.stop()
		want("it stops", "STOPPING=1 EXTEND_TIMEOUT_USEC=15000000 STATUS=three")
		time.Sleep(4 * time.Second)
		want("a beat of a long drain", "WATCHDOG=1 EXTEND_TIMEOUT_USEC=15000000")
		m.reload(true)
		m.reload(false)
		want("a reload while it stops", "")
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("run: %v", err)
		}
		want("in the end", "")
	})
}

// Without a watchdog and news there is nothing to tell; who can't be told is logged;
// and no manager is none.
func TestManagerIsQuiet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		var d told
		ready := make(chan struct{})
		m := &manager{
			log: slog.New(slog.NewTextHandler(&log, nil)), say: d.say, ready: ready,
			status: func() string { return "one" }, turn: func(context.Context) error { return nil },
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- m.run(ctx) }()
		close(ready)
		synctest.Wait()
		d.since()
		time.Sleep(time.Minute)
		if got := d.since(); got != "" {
			t.Errorf("told %q", got)
		}
		cancel()
		<-done
		m.say = func(string, *os.File) error { return errors.New("no such socket") }
		m.stop()
		if !strings.Contains(log.String(), "no such socket") {
			t.Errorf("log %s", &log)
		}
	})
	none := newManager(func(string) string { return "" }, nil)
	if none != nil {
		t.Fatal("a manager without NOTIFY_SOCKET")
	}
	none.reload(true)
	none.stop()
}

// Sockets of a service manager are for the listeners of their names and addresses, any
// number of times; others are closed.
func TestGivenSockets(t *testing.T) {
	opened := func(network, addr string) (*net.TCPAddr, func(name string) *os.File) {
		t.Helper()
		ln, err := net.Listen(network, addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { ln.Close() })
		return ln.Addr().(*net.TCPAddr), func(name string) *os.File {
			f, err := ln.(*net.TCPListener).File()
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			fd, err := syscall.Dup(int(f.Fd()))
			if err != nil {
				t.Fatal(err)
			}
			return os.NewFile(uintptr(fd), name)
		}
	}
	one, fileOfOne := opened("tcp4", "127.0.0.1:0")
	two, fileOfTwo := opened("tcp4", "127.0.0.1:0")
	unknown := fileOfOne("nobody")
	var log bytes.Buffer
	g := giveSockets([]*os.File{fileOfOne("web"), unknown, fileOfTwo("web"), fileOfTwo("odd")},
		&config.Config{Listeners: []config.Listener{{Name: "web"}, {Name: "odd"}, {Name: "own"}}}, slog.New(slog.NewTextHandler(&log, nil)))
	t.Cleanup(func() {
		for _, files := range g {
			for _, f := range files {
				f.Close()
			}
		}
	})
	if !strings.Contains(log.String(), "name=nobody") || unknown.Close() == nil {
		t.Errorf("a name that is not known is to be logged and closed: %s", &log)
	}
	for _, at := range []*net.TCPAddr{one, two, two} {
		ln, err := g.take("web", lbcore.IPAddr(at.AddrPort()))
		if err != nil || ln == nil || ln.Addr().String() != at.String() {
			t.Fatalf("%v: %v, %v", at, ln, err)
		}
		c, err := net.Dial("tcp", at.String())
		if err != nil {
			t.Fatal(err)
		}
		taken, err := ln.Accept()
		if err != nil {
			t.Fatal(err)
		}
		taken.Close()
		c.Close()
		ln.Close()
	}
	if ln, err := g.take("own", lbcore.IPAddr(one.AddrPort())); ln != nil || err != nil {
		t.Errorf("a listener without one: %v, %v", ln, err)
	}
	_, err := g.take("odd", lbcore.IPAddr(one.AddrPort()))
	if err == nil || !strings.Contains(err.Error(), two.String()) || !strings.Contains(err.Error(), "ListenStream=") {
		t.Errorf("a socket at another address: %v", err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	if _, err := (given{"pipe": {r}}).take("pipe", lbcore.IPAddr(one.AddrPort())); err == nil || !strings.Contains(err.Error(), "no listening socket") {
		t.Errorf("a pipe: %v", err)
	}
}

// A manager is told whom to watch, and nothing by a process that another one has
// replaced; if nothing comes of that it hears of this one again.
func TestManagerIsHandedOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d told
		ready := make(chan struct{})
		close(ready)
		m := &manager{
			log: slog.New(slog.DiscardHandler), say: d.say, watchdog: 8 * time.Second, ready: ready,
			status: func() string { return "one" }, turn: func(context.Context) error { return nil },
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- m.run(ctx) }()
		if got := d.since(); got != "STATUS=one | READY=1 STATUS=one" {
			t.Errorf("%q", got)
		}
		m.hand(42)
		time.Sleep(time.Minute)
		m.reload(true)
		m.stop()
		if got := d.since(); got != "MAINPID=42" {
			t.Errorf("after it was handed over: %q", got)
		}
		cancel()
		<-done
		var none *manager
		none.hand(1)
	})
}

// The arguments of a successor are those of the agent, with -takeover.
func TestSuccessorArgs(t *testing.T) {
	for in, want := range map[string]string{
		"run -config-file x":            "run -takeover -config-file x",
		"run -takeover -config-file x":  "run -takeover -config-file x",
		"run --takeover -config-file x": "run --takeover -config-file x",
	} {
		if got := strings.Join(successorArgs(strings.Fields(in)), " "); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}
