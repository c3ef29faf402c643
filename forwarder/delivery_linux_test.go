package forwarder

import (
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"gatehouse.internal/lbcore"
)

// shut waits until fd's peer takes no more: all that was sent is acknowledged, and more
// waits for room.
func shut(t *testing.T, fd int) {
	t.Helper()
	eventually(t, "the window is shut", func() bool {
		info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
		if err != nil {
			t.Fatal(err)
		}
		return info.Unacked == 0 && info.Notsent_bytes > 0
	})
}

// narrow is client with a small receive buffer, of which its window knows from the start.
func narrow(t *testing.T, a lbcore.Addr) net.Conn {
	t.Helper()
	d := net.Dialer{Timeout: 10 * time.Second, Control: func(_, _ string, raw syscall.RawConn) error {
		var err error
		if e := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 16<<10) }); e != nil {
			return e
		}
		return err
	}}
	c, err := d.Dial(a.Network(), a.Dial())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(30 * time.Second))
	return c
}

// What waits before a shut window is not delivered.
func TestDelivered(t *testing.T) {
	sent := make(chan int, 1)
	c := narrow(t, backend(t, anyPort, func(c net.Conn) {
		_, _ = c.Write(make([]byte, 1<<20))
		_ = rawConn(c).Control(func(fd uintptr) { sent <- int(fd) })
		hold(c)
	}))
	fd := <-sent
	shut(t, fd)
	if delivered(int32(fd)) {
		t.Error("it is said to be")
	}
	read(t, c, 1<<20)
	eventually(t, "it is", func() bool { return delivered(int32(fd)) })
}

// resetDelivered resets a connection once all that was written to it has come.
func resetDelivered(c net.Conn) {
	awaitDelivery(&leg{conn: c}, nil)
	reset(c)
}

// A client that reads slowly but steadily gets all that was passed on, also if that takes
// several times as long as either side may be silent.
func TestSteadyReader(t *testing.T) { onEach(t, testSteadyReader) }

func testSteadyReader(t *testing.T) {
	const limit, parts = 2 * time.Second, 256
	path := lbcore.UnixAddr(filepath.Join(t.TempDir(), "s"))
	type reader struct {
		name   string
		listen lbcore.Addr
		size   int // fits into the agent's socket
		s      Settings
		end    func(net.Conn) // of the endpoint
		want   error          // of the client's last read

		r *rig
		c net.Conn
	}
	readers := []reader{
		{name: "end", listen: anyPort, size: 1 << 20, s: Settings{HalfClosedTimeout: limit}, end: func(c net.Conn) { closeWrite(c); hold(c) }},
		{name: "reset", listen: anyPort, size: 1 << 20, s: Settings{HalfClosedTimeout: limit}, end: resetDelivered, want: syscall.ECONNRESET},
		{name: "idle", listen: anyPort, size: 1 << 20, s: Settings{IdleTimeout: limit}, end: hold, want: os.ErrDeadlineExceeded},
		{name: "idle, unix", listen: path, size: 128 << 10, s: Settings{IdleTimeout: limit}, end: hold, want: os.ErrDeadlineExceeded},
	}
	for i := range readers {
		x := &readers[i]
		x.r = start(t, Config{Addr: x.listen, Settings: x.s, Upstream: newCluster(t, backend(t, anyPort, func(c net.Conn) {
			_, _ = c.Write(make([]byte, x.size))
			x.end(c)
		}))})
		x.c = narrow(t, x.r.Addr())
	}
	tick := time.NewTicker(2 * limit / parts)
	defer tick.Stop()
	for part := range parts {
		<-tick.C
		for _, x := range readers {
			if n, err := io.ReadFull(x.c, make([]byte, x.size/parts)); err != nil {
				t.Fatalf("%s: %d of %d bytes, then %v", x.name, part*x.size/parts+n, x.size, err)
			}
		}
	}
	for _, x := range readers {
		if x.want == os.ErrDeadlineExceeded { // nothing is to come
			_ = x.c.SetReadDeadline(time.Now().Add(time.Millisecond))
		}
		if rest, err := io.ReadAll(x.c); len(rest) > 0 || !errors.Is(err, x.want) {
			t.Errorf("%s: %d more bytes, then %v; want %v", x.name, len(rest), err, x.want)
		}
		if n := x.r.Stats().Flags[FlagSI]; n != 0 {
			t.Errorf("%s: it was taken for silent", x.name)
		}
	}
}

// A client that reads nothing is ended all the same, whatever waits for it.
func TestDeadReader(t *testing.T) { onEach(t, testDeadReader) }

func testDeadReader(t *testing.T) {
	for name, s := range map[string]Settings{
		"end":  {HalfClosedTimeout: 100 * time.Millisecond},
		"idle": {IdleTimeout: 100 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			r := start(t, Config{Settings: s, Upstream: newCluster(t, backend(t, anyPort, func(c net.Conn) {
				_, _ = c.Write(make([]byte, 1<<20))
				closeWrite(c)
				hold(c)
			}))})
			narrow(t, r.Addr())
			if rec := r.record(t); rec.Flag != FlagSI {
				t.Errorf("record %+v", rec)
			}
		})
	}
}

// An endpoint that can't get rid of what it sends, and so reads nothing more, learns of its
// client's reset all the same, after all that the client has sent.
func TestResetOfBackedUp(t *testing.T) { onEach(t, testResetOfBackedUp) }

func testResetOfBackedUp(t *testing.T) {
	for name, tt := range map[string]struct {
		first int // what the endpoint sends before it reads
		send  func(net.Conn, *rig)
	}{
		"echo": {0, func(c net.Conn, r *rig) {
			_ = c.SetWriteDeadline(time.Now().Add(time.Second)) // it takes no more long before
			_, _ = io.CopyN(onlyWriter{c}, zeros{}, 1<<30)
		}},
		"after the end": {64 << 20, func(c net.Conn, r *rig) {
			_, _ = c.Write(make([]byte, 200_000))
			closeWrite(c)
			eventually(t, "it is half-closed", func() bool {
				all, err := r.Connections(t.Context(), 1)
				return err == nil && len(all) == 1 && all[0].State == "half-closed"
			})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			took := make(chan int, 1)
			r := start(t, Config{Settings: Settings{HalfClosedTimeout: -1}, Upstream: newCluster(t, backend(t, anyPort, func(c net.Conn) {
				_, _ = c.Write(make([]byte, tt.first))
				all := 0
				for b := make([]byte, 64<<10); ; {
					n, err := c.Read(b)
					if all += n; err != nil {
						break
					}
					_, _ = c.Write(b[:n]) // fails once it is reset, with some still to be read
				}
				var err error
				for b := make([]byte, 64<<10); err == nil; { // its stream may have ended in order before
					_, err = c.Write(b)
				}
				took <- all
			}))})
			c := client(t, r.Addr())
			tt.send(c, r)
			reset(c)
			rec := r.record(t)
			if all := <-took; uint64(all) != rec.BytesIn || all < 200_000 || rec.Flag != FlagDC {
				t.Errorf("it got %d bytes; record %+v", all, rec)
			}
		})
	}
}

// Who takes something of what waits for it is not silent, and who has stopped is ended
// within a quarter more than the limit.
func TestLoopSilenceOfReader(t *testing.T) {
	const size, limit = 1 << 20, 40 * time.Second
	for name, end := range map[string]func(net.Conn){
		"half-closed": func(c net.Conn) { closeWrite(c); hold(c) },
		"delivering":  resetDelivered,
	} {
		t.Run(name, func(t *testing.T) {
			r := loopRig(t, Config{Settings: Settings{HalfClosedTimeout: limit}, Upstream: newCluster(t, backend(t, anyPort, func(c net.Conn) {
				_, _ = c.Write(make([]byte, size))
				end(c)
			}))})
			c := narrow(t, r.Addr())
			eventually(t, "the endpoint has ended its stream", func() bool { return r.Stats().BytesOut == size && isDone(r, up) })
			fd := clientFD(t, r)
			for range 5 {
				shut(t, fd)
				r.cfg.Loops.skip(limit / looks) // looks at the queue
				r.cfg.Loops.skip(limit - time.Second)
				if n := r.Stats().Active; n != 1 {
					t.Fatal("ended early")
				}
				left := sysUnsent(int32(fd))
				read(t, c, 128<<10)
				eventually(t, "it has taken some", func() bool { return sysUnsent(int32(fd)) < left })
				r.cfg.Loops.skip(time.Second)
				if n := r.Stats().Active; n != 1 {
					t.Fatal("ended though it has taken some")
				}
			}
			shut(t, fd)
			r.cfg.Loops.skip(limit / looks)
			r.cfg.Loops.skip(limit)
			if _, err := io.ReadAll(c); err == nil {
				t.Error("it has ended in order")
			}
			if rec := r.record(t); rec.Err != errHalfClosed && name == "half-closed" {
				t.Errorf("record %+v", rec)
			}
		})
	}
}

// isDone reports whether nothing more is passed on from side i of r's only connection.
func isDone(r *rig, i int) bool {
	done := make(chan bool, 1)
	r.cfg.Loops.do(func(l *loop) { l.each(func(p *pair) { done <- p.side[i].done }) })
	return <-done
}

// stuck returns a connection, on loops with a frozen clock, whose client is reset while its
// endpoint takes nothing of what waits for it.
func stuck(t *testing.T, s Settings) *rig {
	t.Helper()
	s.HalfClosedTimeout = -1
	r := loopRig(t, Config{DrainSpread: time.Hour, Settings: s, Upstream: newCluster(t, backend(t, anyPort, func(c net.Conn) {
		_ = c.(*net.TCPConn).SetReadBuffer(4 << 10)
		<-t.Context().Done()
	}))})
	c := client(t, r.Addr())
	const n = 200_000
	if _, err := c.Write(make([]byte, n)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is passed on", func() bool { return r.Stats().BytesIn == n })
	reset(c)
	eventually(t, "it is being delivered", func() bool {
		all, err := r.Connections(t.Context(), 1)
		return err == nil && len(all) == 1 && all[0].State == "ending"
	})
	return r
}

// What is being delivered ends in time all the same.
func TestLoopEndsWhileDelivering(t *testing.T) {
	t.Run("max duration", func(t *testing.T) {
		r := stuck(t, Settings{MaxDuration: time.Hour})
		r.cfg.Loops.skip(time.Hour)
		r.record(t)
	})
	t.Run("drain", func(t *testing.T) {
		r := stuck(t, Settings{})
		r.leave(time.Now().Add(time.Hour))       // as Drain does at last
		r.cfg.Loops.skip(100 * time.Millisecond) // it knows
		r.cfg.Loops.skip(time.Hour)
		r.record(t)
	})
}

// A connection that waits for its turn, with something to do, is not silent.
func TestLoopSilenceInTheQueue(t *testing.T) {
	r := loopRig(t, Config{Settings: Settings{IdleTimeout: time.Minute}, Upstream: newCluster(t, backend(t, anyPort, echo))})
	c := client(t, r.Addr())
	exchange(t, c, "before")
	r.cfg.Loops.do(func(l *loop) {
		l.each(func(p *pair) {
			l.ready.push(p)
			p.active = l.now - time.Hour.Milliseconds()
			p.expire()
		})
	})
	exchange(t, c, "after")
}
