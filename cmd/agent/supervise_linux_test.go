package main

import (
	"bytes"
	"errors"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"gatehouse.internal/internal/sdnotify"
)

// newTestSupervisor returns one whose child is this process, and what it has logged.
func newTestSupervisor() (*supervisor, *bytes.Buffer) {
	var log bytes.Buffer
	return &supervisor{log: slog.New(slog.NewTextHandler(&log, nil)), child: os.Getpid()}, &log
}

// The supervisor keeps each socket once, up to a number, and listens to its child only.
func TestSupervisorKeeps(t *testing.T) {
	s, log := newTestSupervisor()
	defer s.closeKept()
	say := func(pid int, fields map[string]string, files ...*os.File) {
		t.Helper()
		m := sdnotify.Message{PID: pid, Fields: fields}
		for _, f := range files {
			fd, err := syscall.Dup(int(f.Fd()))
			if err != nil {
				t.Fatal(err)
			}
			m.Files = append(m.Files, fd)
		}
		s.handle(m)
	}
	socket := func() *os.File {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer ln.Close()
		f, err := ln.(*net.TCPListener).File()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	count := func() (names []string) {
		for _, k := range s.kept {
			names = append(names, k.name)
		}
		return names
	}
	keep := func(name string) map[string]string { return map[string]string{"FDSTORE": "1", "FDNAME": name} }
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	one, two := socket(), socket()
	say(os.Getpid()+1, keep("foreign"), one)
	say(os.Getpid()+1, map[string]string{"READY": "1"})
	say(os.Getpid(), keep("one"), one)
	say(os.Getpid(), keep("again"), one)
	say(os.Getpid(), keep("two"), two)
	say(os.Getpid(), keep("a:b"), socket())
	say(os.Getpid(), keep(""), socket())
	say(os.Getpid(), keep("file"), null)
	say(os.Getpid(), map[string]string{"BARRIER": "1"}, socket())
	if got := count(); !slices.Equal(got, []string{"one", "two"}) || s.ready {
		t.Errorf("kept: %q, ready: %v", got, s.ready)
	}
	say(os.Getpid(), map[string]string{"FDSTOREREMOVE": "1", "FDNAME": "one"})
	say(os.Getpid(), map[string]string{"FDSTOREREMOVE": "1", "FDNAME": "none"})
	if got := count(); !slices.Equal(got, []string{"two"}) {
		t.Errorf("kept: %q", got)
	}
	for range maxKept + 3 {
		s.keep("more", looseSocket(t))
	}
	if len(s.kept) != maxKept || !strings.Contains(log.String(), "more sockets are not kept") {
		t.Errorf("%d are kept", len(s.kept))
	}
	say(os.Getpid(), map[string]string{"FDSTOREREMOVE": "1", "FDNAME": "more"})
	say(os.Getpid(), map[string]string{"READY": "1"})
	say(os.Getpid(), map[string]string{"STOPPING": "1"})
	if len(s.kept) != 1 || !s.ready || !s.stopping {
		t.Errorf("%d are kept, ready %v, stopping %v", len(s.kept), s.ready, s.stopping)
	}
	s.child = 0
	say(0, keep("nobody"), one)
	if len(s.kept) != 1 {
		t.Error("who has no number is listened to while there is no child")
	}
}

// looseSocket returns a socket, which is the caller's.
func looseSocket(t *testing.T) int {
	t.Helper()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	syscall.Close(fds[1])
	return fds[0]
}

// An agent that has crashed after one was ready is started again, unless somebody has asked
// for the end, or it does nothing else.
func TestSupervisorRestarts(t *testing.T) {
	const killed, exited2, exited0 = syscall.WaitStatus(9), syscall.WaitStatus(2 << 8), syscall.WaitStatus(0)
	for name, c := range map[string]struct {
		status                         syscall.WaitStatus
		ready, stopping, asked, proven bool
		code                           int
		restart                        bool
	}{
		"a crash":                    {status: exited2, ready: true, code: 2, restart: true},
		"killed":                     {status: killed, ready: true, code: 137, restart: true},
		"in order":                   {status: exited0, ready: true},
		"before it was ready":        {status: exited2, code: 2},
		"killed before it was ready": {status: killed, code: 137},
		"not ready after a crash":    {status: exited2, proven: true, code: 2, restart: true},
		"killed after a crash":       {status: killed, proven: true, code: 137, restart: true},
		"in order after a crash":     {status: exited0, proven: true},
		"asked to after a crash":     {status: killed, proven: true, asked: true, code: 137},
		"during its drain":           {status: killed, ready: true, stopping: true, code: 137},
		"after a signal":             {status: exited2, ready: true, asked: true, code: 2},
	} {
		s, _ := newTestSupervisor()
		s.ready, s.stopping, s.asked, s.proven = c.ready, c.stopping, c.asked, c.proven
		if code, restart := s.after(c.status, time.Now()); code != c.code || restart != c.restart {
			t.Errorf("%s: code %d, restart %v", name, code, restart)
		}
	}
	s, _ := newTestSupervisor()
	s.ready = true
	now := time.Now()
	for i := range 100 { // one in 15 s
		now = now.Add(crashesWithin / (maxCrashes - 1))
		if _, restart := s.after(killed, now); !restart {
			t.Fatalf("it was not started again after the crash %d", i)
		}
	}
	for i := range maxCrashes + 1 {
		now = now.Add(time.Second)
		if _, restart := s.after(killed, now); !restart {
			break
		} else if i == maxCrashes {
			t.Error("it is started again and again")
		}
	}
}

// A program that can't be started ends it only where none was ready before, or too often.
func TestSupervisorStartsAgain(t *testing.T) {
	s, log := newTestSupervisor()
	s.child, s.tick, s.path = 0, time.Hour, filepath.Join(t.TempDir(), "none")
	if code, err := s.run(); code != exitRuntime || !errors.Is(err, os.ErrNotExist) || len(s.crashes) != 0 {
		t.Errorf("the first start: code %d, %v, %d crashes", code, err, len(s.crashes))
	}
	for i := range maxCrashes { // the newest that count
		if !s.again("gone", time.Now()) {
			t.Errorf("not again after %d", i)
		}
	}
	if s.again("gone", time.Now()) || !strings.Contains(log.String(), "too often") {
		t.Errorf("it goes on for ever: %s", log)
	}
}

// Signals are passed on once the agent knows them, but those that are to end it; who is
// asked to end while no agent runs ends.
func TestSupervisorPassesSignals(t *testing.T) {
	got := make(chan os.Signal, 8)
	signal.Notify(got, syscall.SIGHUP, syscall.SIGUSR1, syscall.SIGQUIT)
	defer signal.Stop(got)
	s, _ := newTestSupervisor()
	s.pass(syscall.SIGQUIT) // this one at once: it has an agent that hangs show its stacks
	if sig := <-got; sig != syscall.SIGQUIT {
		t.Errorf("%v", sig)
	}
	for range 3 {
		s.pass(syscall.SIGHUP)
	}
	if len(got) != 0 || len(s.held) != 1 {
		t.Errorf("%d signals have come, %v are held", len(got), s.held)
	}
	s.handle(sdnotify.Message{PID: s.child, Fields: map[string]string{"STATUS": "starting"}})
	if sig := <-got; sig != syscall.SIGHUP {
		t.Errorf("%v", sig)
	}
	s.pass(syscall.SIGUSR1)
	if sig := <-got; sig != syscall.SIGUSR1 {
		t.Errorf("%v", sig)
	}
	if s.asked {
		t.Error("these are to end nothing")
	}
	s.child = 0
	for sig, want := range map[syscall.Signal]bool{syscall.SIGHUP: false, syscall.SIGUSR1: false, syscall.SIGQUIT: false, syscall.SIGTERM: true, syscall.SIGINT: true} {
		if got := s.pass(sig); got != want {
			t.Errorf("%v: %v", sig, got)
		}
	}
}

// An agent that does not say that it lives is aborted, and killed where that does not end
// it; ticks while it says so are nothing. Until it is ready it has longer for that.
func TestSupervisorWatches(t *testing.T) {
	for _, c := range []struct{ stopped, ready bool }{{false, true}, {true, true}, {false, false}, {true, false}} {
		cmd := exec.Command("sleep", "60")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		s, _ := newTestSupervisor()
		var err error
		s.addr = filepath.Join(t.TempDir(), "notify")
		if s.notify, err = sdnotify.Listen(s.addr, s.handle); err != nil {
			t.Fatal(err)
		}
		s.child = cmd.Process.Pid
		for range 10 {
			for range startTicks {
				s.watch()
			}
			s.handle(sdnotify.Message{PID: s.child, Fields: map[string]string{"EXTEND_TIMEOUT_USEC": "15000000"}})
		}
		most := startTicks
		if c.ready {
			most = patientTicks
			s.handle(sdnotify.Message{PID: s.child, Fields: map[string]string{"READY": "1"}})
			for range 10 {
				for range patientTicks {
					s.watch()
				}
				s.handle(sdnotify.Message{PID: s.child, Fields: map[string]string{"WATCHDOG": "1"}})
			}
		}
		want := syscall.SIGABRT
		if c.stopped {
			want = syscall.SIGKILL
			cmd.Process.Signal(syscall.SIGSTOP)
		}
		for range most + 1 {
			s.watch()
		}
		if c.stopped {
			for range killTicks {
				s.watch()
			}
		}
		cmd.Wait()
		if got := cmd.ProcessState.Sys().(syscall.WaitStatus).Signal(); got != want {
			t.Errorf("%+v: it has ended by %v", c, got)
		}
		s.notify.Close()
	}
}

// One that can't be heard because somebody has removed the socket lives on, and that is told.
func TestSupervisorIsDeaf(t *testing.T) {
	s, log := newTestSupervisor()
	s.addr = filepath.Join(t.TempDir(), "notify")
	var err error
	if s.notify, err = sdnotify.Listen(s.addr, s.handle); err != nil {
		t.Fatal(err)
	}
	defer s.notify.Close()
	s.ready = true
	if err := os.Remove(s.addr); err != nil {
		t.Fatal(err)
	}
	for range 2 * (patientTicks + killTicks) {
		s.watch() // else this process would end
	}
	if n := strings.Count(log.String(), "can't be heard"); n != 1 {
		t.Errorf("it is told %d times", n)
	}
}
