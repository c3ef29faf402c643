package forwarder

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"gatehouse.internal/lbcore"
)

func write(t *testing.T, c net.Conn, s string) {
	t.Helper()
	if _, err := io.WriteString(c, s); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, c net.Conn, n int) {
	t.Helper()
	if _, err := io.ReadFull(c, make([]byte, n)); err != nil {
		t.Fatal(err)
	}
}

// after waits on the bubble's clock.
func after(d time.Duration) { <-time.After(d) }

// F8: the idle timeout counts bytes of both directions, and from the moment of
// the connection on.
func TestF8Idle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newMemWorld(t, Config{Settings: Settings{IdleTimeout: time.Hour}})
		c := w.ln.connect()
		b := <-w.backends
		begin := time.Now()
		for range 3 { // one direction only
			after(59 * time.Minute)
			write(t, b, "x")
			read(t, c, 1)
		}
		after(59 * time.Minute)
		write(t, c, "y") // and the other
		read(t, b, 1)
		wantReset(t, c)
		wantReset(t, b)
		if d := time.Since(begin); d != 4*59*time.Minute+time.Hour {
			t.Errorf("ended after %v", d)
		}
		rec := w.record(t)
		if rec.Flag != FlagSI || rec.Err != errIdle || rec.Duration != 4*59*time.Minute+time.Hour || rec.BytesIn != 1 || rec.BytesOut != 3 {
			t.Errorf("record %+v", rec)
		}
	})
}

// F8: a dial that takes longer than the idle timeout is not cut by it.
func TestF8ArmedAfterConnect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newMemWorld(t, Config{Settings: Settings{IdleTimeout: time.Second}})
		quick := w.dial
		w.dial = func(ctx context.Context, a lbcore.Addr, d *Dial) (net.Conn, error) {
			after(3 * time.Second)
			return quick(ctx, a, d)
		}
		c := w.ln.connect()
		<-w.backends
		wantReset(t, c)
		if rec := w.record(t); rec.Connect != 3*time.Second || rec.Duration != 4*time.Second || rec.Flag != FlagSI {
			t.Errorf("record %+v", rec)
		}
	})
}

// F8: 0 is off.
func TestF8Off(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newMemWorld(t, Config{})
		c := w.ln.connect()
		b := <-w.backends
		after(1000 * time.Hour)
		write(t, c, "still here")
		read(t, b, 10)
	})
}

// F2: a half-closed connection ends so long after its last byte, not after the
// FIN.
func TestF2HalfClosedTimeout(t *testing.T) {
	for name, tt := range map[string]struct {
		cfg  Config
		want time.Duration
		err  error
	}{
		"default":         {Config{}, DefaultHalfClosedTimeout, errHalfClosed},
		"configured":      {Config{Settings: Settings{HalfClosedTimeout: time.Minute}}, time.Minute, errHalfClosed},
		"idle is shorter": {Config{Settings: Settings{IdleTimeout: 2 * time.Minute}}, 2 * time.Minute, errIdle},
		"idle is longer":  {Config{Settings: Settings{IdleTimeout: time.Hour, HalfClosedTimeout: 3 * time.Minute}}, 3 * time.Minute, errHalfClosed},
		"off, but idle":   {Config{Settings: Settings{IdleTimeout: time.Hour, HalfClosedTimeout: -1}}, time.Hour, errIdle},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newMemWorld(t, tt.cfg)
				c := w.ln.connect()
				b := <-w.backends
				if err := c.CloseWrite(); err != nil {
					t.Fatal(err)
				}
				if n, err := b.Read(make([]byte, 1)); err != io.EOF {
					t.Fatalf("backend read %d, %v; want the FIN", n, err)
				}
				after(50 * time.Second)
				write(t, b, "late")
				read(t, c, 4)
				last := time.Now()
				wantReset(t, c)
				if d := time.Since(last); d != tt.want {
					t.Errorf("ended %v after the last byte, want %v", d, tt.want)
				}
				if rec := w.record(t); rec.Flag != FlagSI || rec.Err != tt.err || rec.BytesOut != 4 {
					t.Errorf("record %+v", rec)
				}
				want := uint64(0)
				if tt.err == errHalfClosed {
					want = 1
				}
				if n := w.Stats().HalfClosedTimeouts; n != want {
					t.Errorf("%d half-closed timeouts counted, want %d", n, want)
				}
			})
		})
	}
}

// A connection that takes no more, and so never lets go, is silent as well.
func TestIdleWhileBlocked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newMemWorld(t, Config{Settings: Settings{IdleTimeout: time.Minute}})
		c := w.ln.connect()
		<-w.backends // never reads
		n, err := c.Write(make([]byte, 1<<20))
		if !errors.Is(err, syscall.EPIPE) {
			t.Fatalf("wrote %d, %v", n, err)
		}
		// The far buffer, what the relay holds, the near buffer.
		if want := memBuffer + bufferSize + memBuffer; n != want {
			t.Errorf("the agent took %d bytes from a client whose endpoint reads none, want %d", n, want)
		}
		if rec := w.record(t); rec.Flag != FlagSI || rec.Duration != time.Minute {
			t.Errorf("record %+v", rec)
		}
	})
}

// F3 in memory: both directions pass a reset on after the data before it.
func TestF3Order(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newMemWorld(t, Config{})
		for _, tt := range []struct {
			flag     Flag
			from, to func(c, b *memConn) *memConn
		}{
			{FlagUC, func(c, b *memConn) *memConn { return b }, func(c, b *memConn) *memConn { return c }},
			{FlagDC, func(c, b *memConn) *memConn { return c }, func(c, b *memConn) *memConn { return b }},
		} {
			c := w.ln.connect()
			b := <-w.backends
			from, to := tt.from(c, b), tt.to(c, b)
			write(t, from, strings.Repeat("x", memBuffer)) // as much as the receiver's buffer takes
			synctest.Wait()
			write(t, from, strings.Repeat("y", bufferSize+memBuffer)) // and what the relay and the sender hold
			reset(from)
			synctest.Wait()
			if got := wantReset(t, to); len(got) != memBuffer+bufferSize+memBuffer {
				t.Errorf("%v: %d bytes came before the reset", tt.flag, len(got))
			}
			if rec := w.record(t); rec.Flag != tt.flag || rec.Err != syscall.ECONNRESET {
				t.Errorf("record %+v, want %v", rec, tt.flag)
			}
		}
	})
}

// F4: a failing Accept is tried again with growing pauses, logged by samples,
// counted, and recovers.
func TestF4AcceptBackOff(t *testing.T) {
	for _, errno := range []syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ECONNABORTED} {
		t.Run(errno.Error(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var logs logBuffer
				ln := &failingListener{memListener: newMemListener(), err: errno, fails: 30}
				c := newCluster(t, lbcore.IPAddr(netip.MustParseAddrPort("192.0.2.2:80")))
				begin := time.Now()
				r := start(t, Config{
					Upstream: c, Logger: logs.logger(),
					Listen: func(context.Context, lbcore.Addr) (net.Listener, error) { return ln, nil },
				}, func(l *Listener) {
					l.dial = func(context.Context, lbcore.Addr, *Dial) (net.Conn, error) {
						_, b := newMemPair(netip.AddrPort{})
						return b, nil
					}
				})
				ln.connect()
				// 5, 10, … 640 ms, then 1 s each.
				want := (5+10+20+40+80+160+320+640)*time.Millisecond + 22*time.Second
				if d := time.Since(begin); d != want {
					t.Errorf("accepting again after %v, want %v", d, want)
				}
				synctest.Wait() // it is counted after its accept
				if s := r.Stats(); s.AcceptErrors != 30 || s.Accepted != 1 {
					t.Errorf("stats %+v", s)
				}
				if n := strings.Count(logs.String(), "can't accept"); n != 5 {
					t.Errorf("%d lines logged in %v, want the first and one for each 5 s:\n%s", n, want, logs.String())
				}
			})
		})
	}
}

type failingListener struct {
	*memListener
	err   error
	fails int
}

func (l *failingListener) Accept() (net.Conn, error) {
	if l.fails > 0 {
		l.fails--
		return nil, &net.OpError{Op: "accept", Net: "tcp", Err: l.err}
	}
	return l.memListener.Accept()
}

// F4: stopping does not wait for the pause.
func TestF4StopWhileBackingOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ln := &failingListener{memListener: newMemListener(), err: syscall.EMFILE, fails: 1 << 30}
		r := start(t, Config{
			Upstream: newCluster(t), Listen: func(context.Context, lbcore.Addr) (net.Listener, error) { return ln, nil },
		})
		after(100*time.Second + time.Millisecond)
		begin := time.Now()
		if cut := r.Drain(t.Context()); cut != 0 || time.Since(begin) != 0 {
			t.Errorf("drained with %d cut after %v", cut, time.Since(begin))
		}
		if err := <-r.ran; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

// F7: one deadline; connections go on until then, what remains is reported.
func TestF7Drain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var logs logBuffer
		w := newMemWorld(t, Config{Logger: logs.logger()})
		c1, b1 := w.ln.connect(), <-w.backends
		c2, b2 := w.ln.connect(), <-w.backends
		ctx, cancel := context.WithTimeout(t.Context(), 12*time.Second)
		defer cancel()
		begin := time.Now()
		result := make(chan int, 1)
		go func() { result <- w.Drain(ctx) }()
		after(7 * time.Second)
		write(t, c1, "going on")
		read(t, b1, 8)
		_ = c1.Close()
		_ = b1.Close()
		if rec := w.record(t); rec.Flag != FlagNone || rec.BytesIn != 8 {
			t.Errorf("record %+v", rec)
		}
		wantReset(t, c2)
		wantReset(t, b2)
		if cut := <-result; cut != 1 || time.Since(begin) != 12*time.Second {
			t.Errorf("%d cut after %v, want 1 after 12s", cut, time.Since(begin))
		}
		if rec := w.record(t); rec.Flag != FlagLR {
			t.Errorf("record %+v", rec)
		}
		if err := <-w.ran; err != nil {
			t.Errorf("Run: %v", err)
		}
		for _, want := range []string{"remaining=2", "remaining=1"} {
			if !strings.Contains(logs.String(), want) {
				t.Errorf("no %s in the log:\n%s", want, logs.String())
			}
		}
	})
}

// A connect timeout leads to the next candidate, and each attempt has its own.
func TestConnectTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		up := newCluster(t, lbcore.IPAddr(netip.MustParseAddrPort("192.0.2.2:80")), lbcore.IPAddr(netip.MustParseAddrPort("192.0.2.3:80")))
		w := newMemWorld(t, Config{Upstream: up})
		quick, first := w.dial, true
		w.dial = func(ctx context.Context, a lbcore.Addr, d *Dial) (net.Conn, error) {
			if first {
				first = false
				after(d.timeout())
				return nil, context.DeadlineExceeded
			}
			return quick(ctx, a, d)
		}
		c := w.ln.connect()
		b := <-w.backends
		write(t, c, "hello")
		read(t, b, 5)
		_ = c.Close()
		_ = b.Close()
		rec := w.record(t)
		if rec.Attempts != 2 || rec.Connect != DefaultConnectTimeout || rec.Endpoint != up.member(1).Addr() || rec.Flag != FlagNone {
			t.Errorf("record %+v", rec)
		}
		if _, failed, _, _ := up.member(0).Counters(); failed != 1 {
			t.Errorf("%d failed dials reported", failed)
		}
	})
}

// The end of Run's context ends a dial that is going on; that is not held
// against the endpoint.
func TestEndWhileDialling(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		up := newCluster(t, lbcore.IPAddr(netip.MustParseAddrPort("192.0.2.2:80")), lbcore.IPAddr(netip.MustParseAddrPort("192.0.2.3:80")))
		w := newMemWorld(t, Config{Upstream: up})
		w.dial = func(ctx context.Context, a lbcore.Addr, d *Dial) (net.Conn, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		c := w.ln.connect()
		synctest.Wait()
		if n := up.member(0).Active(); n != 1 {
			t.Errorf("%d dials in progress", n)
		}
		w.cancel()
		wantReset(t, c)
		if rec := w.record(t); rec.Flag != FlagLR || rec.Attempts != 1 {
			t.Errorf("record %+v", rec)
		}
		if err := <-w.ran; !errors.Is(err, context.Canceled) {
			t.Errorf("Run: %v", err)
		}
		if _, failed, _, _ := up.member(0).Counters(); failed != 0 || up.member(0).Active() != 0 {
			t.Errorf("%d failed dials, %d active", failed, up.member(0).Active())
		}
	})
}
