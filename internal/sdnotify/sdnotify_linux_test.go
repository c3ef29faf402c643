package sdnotify

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// heard collects messages, and closes their descriptors.
type heard struct {
	mu  sync.Mutex
	all []Message
}

func (h *heard) handle(m Message) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.all = append(h.all, m)
	m.CloseFiles()
}

// take returns what has come since it was last asked.
func (h *heard) take() []Message {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := h.all
	h.all = nil
	return all
}

// listen returns a receiver that nobody runs, at addr or else at a path of its own.
func listen(t *testing.T, addr string, handle func(Message)) (*Receiver, string) {
	t.Helper()
	if addr == "" {
		addr = filepath.Join(t.TempDir(), "notify")
	}
	r, err := Listen(addr, handle)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r, addr
}

// open returns how many descriptors the process has.
func open(t *testing.T) int {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(fds)
}

func socket(t *testing.T) *os.File {
	t.Helper()
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

// Messages come in order, with who has sent them and with their descriptors, which are the
// sender's too; at a path as at an abstract name.
func TestSend(t *testing.T) {
	for _, addr := range []string{"", fmt.Sprintf("@gatehouse-test-%d", os.Getpid())} {
		var h heard
		same := false
		f := socket(t)
		before := open(t) + 1 // the receiver
		r, addr := listen(t, addr, func(m Message) {
			for _, fd := range m.Files {
				var a, b unix.Stat_t
				if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
					t.Errorf("a child of the process would have it: %x, %v", flags, err)
				}
				same = unix.Fstat(fd, &a) == nil && unix.Fstat(int(f.Fd()), &b) == nil && a.Ino == b.Ino
			}
			h.handle(m)
		})
		for _, err := range []error{
			Send(addr, "READY=1\nSTATUS=one = two\nno assignment", nil),
			Send(addr, "FDSTORE=1\nFDNAME=web", f),
		} {
			if err != nil {
				t.Fatal(err)
			}
		}
		r.Pending()
		all := h.take()
		if len(all) != 2 || all[0].PID != os.Getpid() || !maps.Equal(all[0].Fields, map[string]string{"READY": "1", "STATUS": "one = two"}) ||
			!maps.Equal(all[1].Fields, map[string]string{"FDSTORE": "1", "FDNAME": "web"}) || len(all[1].Files) != 1 || !same {
			t.Errorf("%s: %+v, the same socket: %v", addr, all, same)
		}
		if now := open(t); now != before {
			t.Errorf("%d descriptors are open, %d were", now, before)
		}
		r.Pending() // nothing there
		r.Close()
	}
}

// A barrier waits for the manager, and not for ever.
func TestBarrier(t *testing.T) {
	var h heard
	r, addr := listen(t, "", h.handle)
	if err := Barrier(addr, time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("nobody reads: %v", err)
	}
	done := make(chan error)
	go func() { done <- r.Run() }()
	for i := range 100 {
		if err := Send(addr, fmt.Sprint("N=", i), nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := Barrier(addr, time.Minute); err != nil {
		t.Error(err)
	}
	if all := h.take(); len(all) != 102 || all[100].Fields["N"] != "99" {
		t.Errorf("%d messages before the barrier", len(all))
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	if err := <-done; err != nil {
		t.Errorf("Run: %v", err)
	}
	if err := Barrier(addr, time.Minute); err == nil {
		t.Error("no manager is no error")
	}
}

// A manager that does not read holds nobody up for ever.
func TestFullQueue(t *testing.T) {
	t.Parallel() // it takes its time
	_, addr := listen(t, "", func(Message) {})
	for range 10000 { // net.unix.max_dgram_qlen
		if err := Send(addr, "READY=1", nil); err != nil {
			if !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Error(err)
			}
			return
		}
	}
	t.Error("the queue has no end")
}

// What is too long, or of too many descriptors, is dropped with all that it has.
func TestTooMuch(t *testing.T) {
	var h heard
	r, addr := listen(t, "", h.handle)
	f := socket(t)
	before := open(t)
	if err := Send(addr, "FDSTORE=1\nFDNAME="+strings.Repeat("x", maxMessage), f); err != nil {
		t.Fatal(err)
	}
	if err := Send(addr, "READY=1", nil); err != nil {
		t.Fatal(err)
	}
	r.Pending()
	if all := h.take(); len(all) != 1 || all[0].Fields["READY"] != "1" {
		t.Errorf("%+v", all)
	}
	if now := open(t); now != before {
		t.Errorf("%d descriptors are open, %d were", now, before)
	}
}

func TestValidName(t *testing.T) {
	for name, want := range map[string]bool{
		"web": true, "gatehouse-stored-listener-0011223344556677": true, strings.Repeat("x", MaxName): true,
		"": false, "a:b": false, "a\nb": false, "ä": false, strings.Repeat("x", MaxName+1): false,
	} {
		if got := ValidName(name); got != want {
			t.Errorf("%q: %v", name, got)
		}
	}
}

// Whatever is written there, what comes of it is bounded, and no descriptor is left.
func FuzzReceive(f *testing.F) {
	for _, s := range []string{"READY=1", "FDSTORE=1\nFDNAME=web", "=\n=\n\n", "A=B=C\nA=", strings.Repeat("x", maxMessage+1)} {
		f.Add([]byte(s))
	}
	path := filepath.Join(f.TempDir(), "notify")
	var got []Message
	r, err := Listen(path, func(m Message) {
		m.CloseFiles()
		got = append(got, m)
	})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { r.Close() })
	null, err := os.Open(os.DevNull)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { null.Close() })
	f.Fuzz(func(t *testing.T, text []byte) {
		got = nil
		if err := Send(path, string(text), null); err != nil {
			return // longer than the kernel takes
		}
		r.Pending()
		if len(text) > maxMessage != (len(got) == 0) {
			t.Fatalf("%d messages of %d bytes", len(got), len(text))
		}
		for _, m := range got {
			if len(m.Files) != 1 || m.PID != os.Getpid() {
				t.Errorf("%+v", m)
			}
			for name, value := range m.Fields {
				if name == "" || strings.Contains(name+value, "\n") || !strings.Contains(string(text), name+"="+value) {
					t.Errorf("%q = %q", name, value)
				}
			}
		}
	})
}
