package forwarder

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"gatehouse.internal/lbcore"
)

// reports collects what a Dial's functions are told.
type reports struct {
	mu   sync.Mutex
	said []string
	took []time.Duration
}

// ask has up's dials tell r.
func (r *reports) ask(up *cluster, firstByte bool) {
	add := func(m *lbcore.Member, what string) {
		r.said = append(r.said, m.Endpoint().HashKey+" "+what)
	}
	up.dial.FirstByte = firstByte
	up.dial.Observe = func(m *lbcore.Member, d time.Duration) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.took = append(r.took, d)
		add(m, "took "+d.String())
	}
	up.dial.Failed = func(m *lbcore.Member) {
		r.mu.Lock()
		defer r.mu.Unlock()
		add(m, "failed")
	}
}

func (r *reports) all() ([]string, []time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.said), slices.Clone(r.took)
}

// What Observe and Failed are told, and when: attempts take 1 s, 2 s and 3 s,
// and the endpoint's first word comes 10 s after that.
func TestReports(t *testing.T) {
	refused := &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	ours := &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.EADDRNOTAVAIL)}
	speak := func(t *testing.T, _ *memWorld, c, b *memConn) {
		after(10 * time.Second)
		write(t, b, "hello")
		read(t, c, 5)
		after(time.Second)
		write(t, b, "again")
		read(t, c, 5)
	}
	for name, tt := range map[string]struct {
		firstByte bool
		dials     []error // what they come to
		run       func(t *testing.T, w *memWorld, c, b *memConn)
		flag      Flag
		want      []string
	}{
		"connected":            {dials: []error{nil}, run: speak, want: []string{"0 took 1s"}},
		"the second one":       {dials: []error{refused, nil}, run: speak, want: []string{"0 failed", "1 took 2s"}},
		"a cause on this side": {dials: []error{ours, nil}, run: speak, want: []string{"1 took 2s"}},
		"nobody":               {dials: []error{refused, context.DeadlineExceeded, refused}, flag: FlagUF, want: []string{"0 failed", "1 failed", "2 failed"}},
		"connected, then reset": {dials: []error{nil}, flag: FlagUC, want: []string{"0 took 1s"},
			run: func(_ *testing.T, _ *memWorld, _, b *memConn) { reset(b) }},
		"first byte":                {firstByte: true, dials: []error{nil}, run: speak, want: []string{"0 took 11s"}},
		"first byte of the second":  {firstByte: true, dials: []error{refused, nil}, run: speak, want: []string{"0 failed", "1 took 12s"}},
		"first byte, ours":          {firstByte: true, dials: []error{ours, nil}, run: speak, want: []string{"1 took 12s"}},
		"first byte of nobody":      {firstByte: true, dials: []error{refused, ours, refused}, flag: FlagUF, want: []string{"0 failed", "2 failed"}},
		"reset before a byte":       {firstByte: true, dials: []error{nil}, flag: FlagUC, want: []string{"0 failed"}, run: func(_ *testing.T, _ *memWorld, _, b *memConn) { reset(b) }},
		"reset after the client":    {firstByte: true, dials: []error{nil}, flag: FlagUC, want: []string{"0 failed"}, run: resetAfterFIN},
		"a byte, then reset":        {firstByte: true, dials: []error{nil}, flag: FlagUC, want: []string{"0 took 11s"}, run: func(t *testing.T, w *memWorld, c, b *memConn) { speak(t, w, c, b); reset(b) }},
		"the client resets first":   {firstByte: true, dials: []error{nil}, flag: FlagDC, run: func(_ *testing.T, _ *memWorld, c, _ *memConn) { reset(c) }},
		"no byte, ended in order":   {firstByte: true, dials: []error{nil}, run: func(*testing.T, *memWorld, *memConn, *memConn) {}},
		"no byte, cut by the agent": {firstByte: true, dials: []error{nil}, flag: FlagLR, run: func(_ *testing.T, w *memWorld, _, _ *memConn) { w.cancel() }},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var r reports
				var addrs []lbcore.Addr
				for i := range 3 {
					addrs = append(addrs, lbcore.IPAddr(netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}), 80)))
				}
				up := newCluster(t, addrs...)
				r.ask(up, tt.firstByte)
				up.dial.Latency = new(Latency)
				w := newMemWorld(t, Config{Upstream: up})
				quick, i := w.dial, 0
				w.dial = func(ctx context.Context, a lbcore.Addr, d *Dial) (net.Conn, error) {
					err := tt.dials[i]
					i++
					if after(time.Duration(i) * time.Second); err != nil {
						return nil, err
					}
					return quick(ctx, a, d)
				}
				c := w.ln.connect()
				if tt.run != nil {
					b := <-w.backends
					synctest.Wait() // for the agent to have it too
					tt.run(t, w, c, b)
					synctest.Wait()
					_ = b.Close()
				}
				_ = c.Close()
				if rec := w.record(t); rec.Flag != tt.flag {
					t.Errorf("record %+v, want %v", rec, tt.flag)
				}
				got, took := r.all()
				if !slices.Equal(got, tt.want) {
					t.Errorf("told %q, want %q", got, tt.want)
				}
				// The histograms count the same, of both kinds.
				connect, first := up.dial.Latency.Connect.Counts(), up.dial.Latency.FirstByte.Counts()
				same := &connect
				if tt.firstByte {
					same = &first
				}
				sum := time.Duration(0)
				for _, d := range took {
					sum += d
				}
				if same.Count() != uint64(len(took)) || same.Sum != sum || connect.Count() < first.Count() || first.Count() > 0 && first.Sum != connect.Sum+10*time.Second {
					t.Errorf("counted %+v and %+v, told %v", connect, first, took)
				}
			})
		})
	}
}

// resetAfterFIN resets an endpoint whose client has sent all it will.
func resetAfterFIN(t *testing.T, _ *memWorld, c, b *memConn) {
	write(t, c, "request")
	_ = c.CloseWrite()
	read(t, b, 7)
	synctest.Wait()
	reset(b)
}

// A shutdown while an endpoint is dialled says nothing of it.
func TestReportsEndWhileDialling(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r reports
		up := newCluster(t, lbcore.IPAddr(netip.MustParseAddrPort("192.0.2.2:80")))
		r.ask(up, false)
		w := newMemWorld(t, Config{Upstream: up})
		w.dial = func(ctx context.Context, _ lbcore.Addr, _ *Dial) (net.Conn, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		w.ln.connect()
		synctest.Wait()
		w.cancel()
		w.record(t)
		if got, _ := r.all(); got != nil {
			t.Errorf("told %q", got)
		}
	})
}

// On real sockets, where bytes are read by system calls of our own, the first
// ones count once, however many follow and however they are moved.
func TestReportsRealSockets(t *testing.T) { onEach(t, testReportsRealSockets) }

func testReportsRealSockets(t *testing.T) {
	sides(t, func(t *testing.T, listen, endpoint lbcore.Addr) {
		const size = 4 << 20
		var r reports
		up := newCluster(t, backend(t, endpoint, func(c net.Conn) {
			b := make([]byte, 1)
			if _, err := io.ReadFull(c, b); err != nil {
				return
			}
			if b[0] == 'r' {
				reset(c)
				return
			}
			_, _ = c.Write(make([]byte, size))
		}))
		r.ask(up, true)
		l := start(t, Config{Addr: listen, Upstream: up})
		c := client(t, l.Addr())
		fmt.Fprint(c, "s")
		if n, err := io.Copy(io.Discard, c); n != size || err != nil {
			t.Fatalf("%d bytes, %v", n, err)
		}
		_ = c.Close()
		l.record(t)
		if said, took := r.all(); len(said) != 1 || len(took) != 1 || took[0] <= 0 {
			t.Errorf("told %q", said)
		}
		if endpoint.Path() != "" {
			return // has no resets
		}
		c = client(t, l.Addr())
		fmt.Fprint(c, "r")
		_, _ = io.Copy(io.Discard, c)
		l.record(t)
		if said, _ := r.all(); len(said) != 2 || said[1] != "0 failed" {
			t.Errorf("told %q", said)
		}
	})
}
