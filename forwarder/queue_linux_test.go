package forwarder

import (
	"errors"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"gatehouse.internal/lbcore"
)

// An endpoint at a unix socket whose queue is full for a moment gets its connection when
// there is room, and is not blamed.
func TestFullQueue(t *testing.T) { onEach(t, testFullQueue) }

func testFullQueue(t *testing.T) {
	full, serve := fullQueue(t)
	up := newCluster(t, full)
	up.dial.Timeout = 20 * time.Second
	r := start(t, Config{Upstream: up})
	c := client(t, r.Addr())
	eventually(t, "it is being dialled", func() bool { return up.member(0).Active() == 1 })
	gone := client(t, r.Addr()) // and does not wait so long
	eventually(t, "another one is too", func() bool { return up.member(0).Active() == 2 })
	reset(gone)
	serve()
	exchange(t, c, "hello")
	_ = c.Close()
	for range 2 {
		if rec := r.record(t); rec.Attempts != 1 || rec.Flag != FlagNone && rec.Flag != FlagDC {
			t.Errorf("record %+v", rec)
		}
	}
	if _, failed, _, _ := up.member(0).Counters(); failed != 0 || up.member(0).Active() != 0 {
		t.Errorf("%d failed dials, %d active", failed, up.member(0).Active())
	}
	if s := r.Stats(); s.Dials != 2 || s.DialsFailed != 0 {
		t.Errorf("stats %+v", s)
	}
}

// Where it stays full the dial has failed with the connect timeout, as one has whose SYN
// nobody answers, and the next candidate is tried.
func TestQueueStaysFull(t *testing.T) { onEach(t, testQueueStaysFull) }

func testQueueStaysFull(t *testing.T) {
	full, _ := fullQueue(t)
	up := newCluster(t, full, backend(t, anyPort, echo))
	up.dial.Timeout = 300 * time.Millisecond
	r := start(t, Config{Upstream: up})
	c := client(t, r.Addr())
	exchange(t, c, "hello")
	_ = c.Close()
	if rec := r.record(t); rec.Attempts != 2 || rec.Endpoint != up.member(1).Addr() || rec.Connect < up.dial.Timeout/2 { // its clock counts ms
		t.Errorf("record %+v", rec)
	}
	if _, failed, _, _ := up.member(0).Counters(); failed != 1 || up.member(0).Active() != 0 {
		t.Errorf("%d failed dials, %d active", failed, up.member(0).Active())
	}
	// A listener that ends waits for no such dial.
	up = newCluster(t, full)
	up.dial.Timeout = 20 * time.Second
	r = start(t, Config{Upstream: up})
	c = client(t, r.Addr())
	eventually(t, "it is being dialled", func() bool { return up.member(0).Active() == 1 })
	r.cancel()
	wantReset(t, c)
	if rec := r.record(t); rec.Flag != FlagLR {
		t.Errorf("record %+v", rec)
	}
	if s := r.Stats(); s.DialsFailed != 0 || s.DialsAbandoned != 1 {
		t.Errorf("stats %+v", s)
	}
}

// fullQueue returns a unix socket whose queue is full, and a function that has those
// served who are in it and who come.
func fullQueue(t *testing.T) (at lbcore.Addr, serve func()) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	ln, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	t.Cleanup(func() {
		_ = ln.Close()
		wg.Wait()
	})
	if err := onFD(ln.(*net.UnixListener), func(fd int) error { return unix.Listen(fd, 0) }); err != nil {
		t.Fatal(err)
	}
	for range 10 {
		c, err := net.Dial("unix", path)
		if errors.Is(err, unix.EAGAIN) {
			return lbcore.UnixAddr(path), func() {
				wg.Go(func() {
					for {
						c, err := ln.Accept()
						if err != nil {
							return
						}
						wg.Go(func() {
							echo(c)
							_ = c.Close()
						})
					}
				})
			}
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
	}
	t.Fatal("the queue has no end")
	panic("not reached")
}
