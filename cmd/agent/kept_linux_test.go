package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"gatehouse.internal/cmd/agent/internal/config"
	"gatehouse.internal/forwarder"
	"gatehouse.internal/internal/sdnotify"
	"gatehouse.internal/internal/takeover"
	"gatehouse.internal/lbcore"
)

// store is a service manager that keeps what it is given.
type store struct {
	addr string

	mu      sync.Mutex
	kept    map[string]int // descriptors, by name
	atReady []int          // how many were kept when the agent said that it is ready
}

func startStore(t *testing.T) *store {
	t.Helper()
	s := &store{addr: filepath.Join(t.TempDir(), "notify"), kept: make(map[string]int)}
	r, err := sdnotify.Listen(s.addr, func(m sdnotify.Message) {
		s.mu.Lock()
		defer s.mu.Unlock()
		name := m.Fields["FDNAME"]
		if m.Fields["READY"] == "1" {
			s.atReady = append(s.atReady, len(s.kept))
		}
		if fd, ok := s.kept[name]; ok && m.Fields["FDSTOREREMOVE"] == "1" {
			syscall.Close(fd)
			delete(s.kept, name)
		}
		if _, ok := s.kept[name]; !ok && m.Fields["FDSTORE"] == "1" && len(m.Files) == 1 {
			s.kept[name] = m.Files[0]
			return
		}
		m.CloseFiles()
	})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() { r.Run() })
	t.Cleanup(func() {
		r.Close()
		wg.Wait()
		for _, fd := range s.kept {
			syscall.Close(fd)
		}
	})
	return s
}

// addrs returns where the sockets listen that are kept, as text, with their kinds.
func (s *store) addrs(t *testing.T) (all []string) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, fd := range s.kept {
		dup, err := syscall.Dup(fd)
		if err != nil {
			t.Fatal(err)
		}
		f := os.NewFile(uintptr(dup), name)
		kind, _, _ := strings.Cut(strings.TrimPrefix(name, storedPrefix), "-")
		again, addr, err := storedName(takeover.Kind(kind), f)
		if err != nil || again != name || !sdnotify.ValidName(name) {
			t.Errorf("%q is the name of %v, which would be %q: %v", name, addr, again, err)
		}
		f.Close()
		all = append(all, kind+" "+addr.String())
	}
	slices.Sort(all)
	return all
}

// has waits until these are all that are kept.
func (s *store) has(r *running, want ...string) {
	r.t.Helper()
	slices.Sort(want)
	r.await(fmt.Sprintf("%q are kept", want), func() bool { return slices.Equal(s.addrs(r.t), want) })
}

// managedBy has the agent tell s.
func managedBy(s *store) func(*running) {
	return func(r *running) {
		newManager(func(string) string { return s.addr }, slog.New(slog.DiscardHandler)).attach(r.agent)
	}
}

func listenerText(name, addr string) string {
	return fmt.Sprintf("listener %q {\n  address = %q\n  cluster = \"web\"\n}\n", name, addr)
}

// What the agent listens at is kept by its service manager, but for ports of the system's
// choice, as long as it listens there.
func TestSocketsAreKept(t *testing.T) {
	s, one, two, three := startStore(t), freeAddr(t), freeAddr(t), freeAddr(t)
	path := "unix://" + filepath.Join(t.TempDir(), "web.sock")
	cluster := fmt.Sprintf("cluster \"web\" {\n  discovery \"static\" { endpoints = [%q] }\n}\n", names(t, "one"))
	text := func(listeners ...string) string { return cluster + strings.Join(listeners, "") }
	first := text(listenerText("one", one), listenerText("two", two), listenerText("any", "127.0.0.1:0"), listenerText("local", path))
	var now atomic.Pointer[string]
	now.Store(&first)
	r := startRunningWith(t, first, func(r *running) {
		r.rereads(&now)
		managedBy(s)(r)
	})
	say := func(text string) { now.Store(&text) }
	s.has(r, "listener "+one, "listener "+two, "listener "+path)
	r.become(text(listenerText("one", one), listenerText("three", three)), say)
	s.has(r, "listener "+one, "listener "+three)
	// Where one has left another one may come at once, also where it would overlap.
	_, port, err := net.SplitHostPort(three)
	if err != nil {
		t.Fatal(err)
	}
	for range 5 {
		r.become(text(listenerText("renamed", one)), say)
		r.become(text(listenerText("renamed", one), listenerText("all", "0.0.0.0:"+port)), say)
		r.become(text(listenerText("renamed", one)), say)
		r.become(text(listenerText("renamed", one), listenerText("three", three)), say)
	}
	s.has(r, "listener "+one, "listener "+three)
	// What can't be opened changes nothing.
	say(text(listenerText("renamed", one), listenerText("two", two), listenerText("taken", names(t, "taken"))))
	if out, err := r.reload(t.Context(), time.Second); err != nil || !out.Bind {
		t.Errorf("%+v, %v", out, err)
	}
	s.has(r, "listener "+one, "listener "+three)

	r.drainListeners(false)
	s.has(r)
	if c, err := net.Dial("tcp", one); err == nil {
		c.Close()
		t.Error("somebody listens on")
	}
	r.end()
	if kept := s.addrs(t); len(kept) != 0 {
		t.Errorf("%q are kept after the end", kept)
	}
}

// kept returns the file of a listening socket as a service manager passes it.
func kept(t *testing.T, kind takeover.Kind, ln net.Listener) *os.File {
	t.Helper()
	f, err := ln.(interface{ File() (*os.File, error) }).File()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	name, _, err := storedName(kind, f)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := f.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	dup := -1
	if cerr := raw.Control(func(fd uintptr) { dup, err = syscall.Dup(int(fd)) }); cerr != nil || err != nil {
		t.Fatal(cerr, err)
	}
	return os.NewFile(uintptr(dup), name)
}

// An agent has the sockets that its manager has kept: those that it wants with who waits
// there, and the others only until it is ready, or until they are in the way.
func TestSocketsAreRestored(t *testing.T) {
	s, dir := startStore(t), t.TempDir()
	listen := func(network, addr string) net.Listener {
		ln, err := net.Listen(network, addr)
		if err != nil {
			t.Fatal(err)
		}
		if u, ok := ln.(*net.UnixListener); ok {
			u.SetUnlinkOnClose(false)
		}
		return ln
	}
	wanted, unwanted, all := listen("tcp", "127.0.0.1:0"), listen("tcp", "127.0.0.1:0"), listen("tcp4", "0.0.0.0:0")
	local, left, gone := listen("unix", filepath.Join(dir, "local")), listen("unix", filepath.Join(dir, "left")), listen("unix", filepath.Join(dir, "gone"))
	if err := os.Remove(filepath.Join(dir, "gone")); err != nil {
		t.Fatal(err)
	}
	one := fmt.Sprintf("127.0.0.1:%d", all.Addr().(*net.TCPAddr).Port)
	var files []*os.File
	for _, ln := range []net.Listener{wanted, unwanted, all, local, left, gone} {
		f := kept(t, takeover.KindListener, ln)
		files = append(files, f)
		if err := sdnotify.Send(s.addr, "FDSTORE=1\nFDNAME="+f.Name(), f); err != nil {
			t.Fatal(err)
		}
		ln.Close() // the manager and files have it
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	odd, err := syscall.Dup(int(null.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	files = append(files, os.NewFile(uintptr(odd), storedPrefix+"listener-odd"))

	var early []net.Conn
	for _, ln := range []net.Listener{wanted, local} {
		c, err := net.Dial(ln.Addr().Network(), ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		early = append(early, c)
	}
	before, err := os.Lstat(local.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf("cluster \"web\" {\n  discovery \"static\" { endpoints = [%q] }\n}\n", names(t, "one")) +
		listenerText("wanted", wanted.Addr().String()) + listenerText("one", one) + listenerText("local", "unix://"+local.Addr().String())
	r := startRunningWith(t, text, func(r *running) {
		managedBy(s)(r)
		r.restores(files)
	})
	s.has(r, "listener "+wanted.Addr().String(), "listener "+one, "listener unix://"+local.Addr().String())
	for _, c := range early {
		c.SetDeadline(time.Now().Add(20 * time.Second))
		answer := make([]byte, 64)
		if n, err := c.Read(answer); strings.TrimSpace(string(answer[:n])) != "one" {
			t.Errorf("who had connected before: %q, %v", answer[:n], err)
		}
		c.Close()
	}
	if got := led(t, one); got != "one" {
		t.Errorf("the one that another one was in the way of: %q", got)
	}
	if after, err := os.Lstat(local.Addr().String()); err != nil || !os.SameFile(before, after) {
		t.Errorf("the file of the socket is another one: %v", err)
	}
	if _, err := os.Lstat(left.Addr().String()); !os.IsNotExist(err) {
		t.Errorf("the file of a socket that is not wanted: %v", err)
	}
	if c, err := net.Dial("tcp", unwanted.Addr().String()); err == nil {
		c.Close()
		t.Error("somebody listens where nobody wants to")
	}
	r.end()
	if left, _ := filepath.Glob(filepath.Join(dir, "*")); len(left) != 0 {
		t.Errorf("files are left: %q", left)
	}
	if log := r.log.String(); strings.Count(log, "is of no use") != 2 || !strings.Contains(log, "has kept listening sockets") {
		t.Error("what was kept is to be logged")
	}
}

// What is kept and does not listen is given back, and another socket is opened in its place.
func TestSocketsAreRestoredThatListen(t *testing.T) {
	for name, open := range map[string]func(fd int) (at net.Conn, err error){
		"bound, not listening": func(int) (net.Conn, error) { return nil, nil },
		"shut down": func(fd int) (net.Conn, error) {
			return nil, errors.Join(syscall.Listen(fd, 1), syscall.Shutdown(fd, syscall.SHUT_RD))
		},
		"connected": func(fd int) (net.Conn, error) {
			ln, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				return nil, err
			}
			defer ln.Close()
			port := ln.Addr().(*net.TCPAddr).Port
			if err := syscall.Connect(fd, &syscall.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}}); err != nil {
				return nil, err
			}
			return ln.Accept()
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, one := startStore(t), freeAddr(t)
			fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			f := os.NewFile(uintptr(fd), storedPrefix+"listener-deaf")
			defer f.Close()
			at := netip.MustParseAddrPort(one)
			err = errors.Join(
				syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1),
				syscall.Bind(fd, &syscall.SockaddrInet4{Port: int(at.Port()), Addr: at.Addr().As4()}),
			)
			if err != nil {
				t.Fatal(err)
			}
			peer, err := open(fd)
			if err != nil {
				t.Fatal(err)
			}
			if peer != nil {
				defer peer.Close()
			}
			if err := sdnotify.Send(s.addr, "FDSTORE=1\nFDNAME="+f.Name(), f); err != nil {
				t.Fatal(err)
			}
			text := fmt.Sprintf("cluster \"web\" {\n  discovery \"static\" { endpoints = [%q] }\n}\n", names(t, "one")) + listenerText("one", one)
			r := startRunningWith(t, text, func(r *running) {
				managedBy(s)(r)
				r.restores([]*os.File{f})
			})
			r.await("another socket listens", func() bool {
				c, err := net.Dial("tcp", one)
				if err == nil {
					c.Close()
				}
				return err == nil
			})
			s.has(r, "listener "+one)
			r.end()
			if log := r.log.String(); !strings.Contains(log, errDeaf.Error()) {
				t.Error("it is not told")
			}
		})
	}
}

// Who is told that the agent is ready keeps all its sockets; and they are of use to the next
// one where a part of the agent fails.
func TestSocketsOutliveAFailure(t *testing.T) {
	s, dir := startStore(t), t.TempDir()
	text := fmt.Sprintf("cluster \"web\" {\n  discovery \"static\" { endpoints = [%q] }\n}\n", names(t, "one"))
	var want []string
	for i := range 20 {
		addr := fmt.Sprintf("unix://%s/%d", dir, i)
		text += listenerText(fmt.Sprint(i), addr)
		want = append(want, "listener "+addr)
	}
	admin, err := lbcore.ParseAddr("unix://" + dir + "/admin")
	if err != nil {
		t.Fatal(err)
	}
	want = append(want, "admin "+admin.String())
	start := func(mode uint32, files ...*os.File) *running {
		return startRunningWith(t, text, func(r *running) {
			cfg := *r.cfg.Load()
			cfg.Admin.Address, cfg.Admin.Unix.Mode = admin, config.FileMode(mode)
			r.cfg.Store(&cfg)
			managedBy(s)(r)
			r.restores(files)
		})
	}
	ready := func(r *running, n int) {
		t.Helper()
		r.await("it is ready", func() bool { s.mu.Lock(); defer s.mu.Unlock(); return len(s.atReady) == n })
		s.mu.Lock()
		defer s.mu.Unlock()
		if got := s.atReady[n-1]; got != len(want) {
			t.Errorf("%d sockets are kept when it is ready", got)
		}
	}
	r := start(0o666)
	ready(r, 1)
	s.has(r, want...)
	forwarder.KeepFile(r.adminLn, true)
	if err := r.adminLn.Close(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-r.done:
	case <-time.After(20 * time.Second):
		t.Fatal("the agent does not end")
	}
	if r.err == nil {
		t.Fatal("no part has failed")
	}
	s.has(r, want...)
	var files []*os.File
	for name, fd := range s.kept {
		dup, err := syscall.Dup(fd)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, os.NewFile(uintptr(dup), name))
	}
	c, err := net.Dial("unix", dir+"/0")
	if err != nil {
		t.Fatalf("after the failure: %v", err)
	}
	defer c.Close()
	r = start(0o600, files...)
	ready(r, 2)
	answer := make([]byte, 64)
	c.SetDeadline(time.Now().Add(20 * time.Second))
	if n, err := c.Read(answer); strings.TrimSpace(string(answer[:n])) != "one" {
		t.Errorf("who had connected before: %q, %v", answer[:n], err)
	}
	if fi, err := os.Lstat(admin.Path()); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("the file of the admin interface: %v, %v", fi, err)
	}
	c.Close()
	r.end()
}

// A manager that has another process as the service's hears nothing, and one that can't be
// told stops nobody.
func TestSocketsOfNoManager(t *testing.T) {
	s, one := startStore(t), freeAddr(t)
	text := fmt.Sprintf("cluster \"web\" {\n  discovery \"static\" { endpoints = [%q] }\n}\n", names(t, "one")) + listenerText("one", one)
	r := startRunningWith(t, text, managedBy(s))
	s.has(r, "listener "+one)
	r.manager.left.Store(true)
	r.end()
	s.has(r, "listener "+one)

	r = startRunningWith(t, strings.ReplaceAll(text, one, freeAddr(t)), managedBy(&store{addr: filepath.Join(t.TempDir(), "none")}))
	r.await("it is ready", func() bool { return r.has("/ready", "LIVE") })
	r.end()
	if !strings.Contains(r.log.String(), "the service manager does not keep what is listened at") {
		t.Error("it is not told")
	}
}

func TestOverlap(t *testing.T) {
	addr := func(text string) lbcore.Addr {
		a, err := lbcore.ParseAddr(text)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	for pair, want := range map[[2]string]bool{
		{"127.0.0.1:80", "127.0.0.1:80"}:   true,
		{"127.0.0.1:80", "0.0.0.0:80"}:     true,
		{"[::]:80", "127.0.0.1:80"}:        true,
		{"127.0.0.1:80", "127.0.0.2:80"}:   false,
		{"127.0.0.1:80", "127.0.0.1:81"}:   false,
		{"0.0.0.0:80", "0.0.0.0:81"}:       false,
		{"unix:///a", "unix:///a"}:         true,
		{"unix:///a", "unix:///b"}:         false,
		{"unix:///a", "0.0.0.0:80"}:        false,
		{"[::1]:80", "[::]:80"}:            true,
		{"127.0.0.1:8080", "0.0.0.0:80"}:   false,
		{"192.0.2.1:80", "192.0.2.1:8080"}: false,
	} {
		if a, b := addr(pair[0]), addr(pair[1]); overlap(a, b) != want || overlap(b, a) != want {
			t.Errorf("%q: %v", pair, !want)
		}
	}
	if overlap(lbcore.Addr{}, lbcore.Addr{}) {
		t.Error("no address is in the way of none")
	}
}
