package forwarder

import (
	"context"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"gatehouse.internal/lbcore"
)

// pattern is a stream whose bytes tell where they belong.
const pattern = 251

// flood sends the pattern without end.
func flood(c net.Conn) {
	b := make([]byte, pattern*256)
	for i := range b {
		b[i] = byte(i % pattern)
	}
	for {
		if _, err := c.Write(b); err != nil {
			return
		}
	}
}

// slow is a client that reads the pattern, and not more than it is told.
type slow struct {
	net.Conn
	at int
	b  [32 << 10]byte
}

func (s *slow) read(t testing.TB, n int) {
	t.Helper()
	for end := s.at + n; s.at < end; {
		k, err := s.Read(s.b[:min(len(s.b), end-s.at)])
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range s.b[:k] {
			if b != byte(s.at%pattern) {
				t.Fatalf("byte %d is %d", s.at, b)
			}
			s.at++
		}
	}
}

func slowReaders(t testing.TB, r *rig, n int) (all []*slow) {
	for range n {
		c := client(t, r.Addr())
		_ = c.(*net.TCPConn).SetReadBuffer(64 << 10)
		s := &slow{Conn: c}
		s.read(t, 1<<20)
		all = append(all, s)
	}
	return all
}

// settled counts the descriptors once the loops have opened what they need.
func settled(t testing.TB, r *rig) int {
	if r.cfg.Loops != nil {
		r.cfg.Loops.do(func(*loop) {})
	}
	return fds(t)
}

// untilHeld has readers read now and then until what they leave waiting is as ok
// says: some may have stopped when they were not bulk.
func untilHeld(t testing.TB, all []*slow, ok func() bool) {
	t.Helper()
	looks := 0
	eventually(t, "slow readers hold pipes", func() bool {
		if looks++; looks%50 == 0 {
			for _, s := range all {
				s.read(t, 512<<10)
			}
		}
		return ok()
	})
}

// sparesOf returns how many descriptors the spare pipes of r's relay are.
func sparesOf(r *rig) int {
	var n atomic.Int64
	if r.cfg.Loops != nil {
		r.cfg.Loops.do(func(l *loop) { n.Add(int64(len(l.pipes))) })
	}
	return 2 * (int(n.Load()) + len(r.relay.(*goroutineRelay).pipes.spare))
}

// Slow readers hold pipes, all of them together no more than they may. The
// others get their bytes by copies.
func TestPipesAreBounded(t *testing.T) { onEach(t, testPipesAreBounded) }

func testPipesAreBounded(t *testing.T) {
	x := new(Count)
	const n, most = 16, 8
	r := start(t, Config{Upstream: newCluster(t, backend(t, anyPort, flood)), Extra: x, MaxExtra: most})
	before := settled(t, r)
	all := slowReaders(t, r, n)
	untilHeld(t, all, func() bool { return x.Refused() > 0 && x.Open() == most })
	for range 10 {
		for _, s := range all {
			s.read(t, 64<<10)
		}
		// Client, two in the agent, endpoint.
		if got := fds(t) - before - 4*n; got > most {
			t.Fatalf("%d descriptors beyond two a connection", got)
		}
	}
	for _, s := range all {
		s.read(t, 1<<20)
		_ = s.Close()
		r.record(t)
	}
	eventually(t, "only spare pipes are left, half of what there may be", func() bool { return x.Open() <= most/2 && fds(t) <= before+most/2 })
	if s := r.Stats(); s.Splices == 0 {
		t.Errorf("nothing was spliced: %+v", s)
	}
}

// A pipe is closed, with what is in it, when its receiver is gone and when the
// agent ends the connection.
func TestFullPipesAreClosed(t *testing.T) {
	for name, end := range map[string]func(*rig, []*slow){
		"client": func(_ *rig, all []*slow) {
			for _, s := range all {
				reset(s.Conn)
			}
		},
		"client, half-closed": func(r *rig, all []*slow) {
			for _, s := range all {
				closeWrite(s.Conn)
			}
			eventually(t, "they are half-closed", func() bool {
				open, err := r.Connections(t.Context(), len(all))
				return err == nil && !slices.ContainsFunc(open, func(c Connection) bool { return c.State != "half-closed" })
			})
			for _, s := range all {
				reset(s.Conn)
			}
		},
		"agent": func(r *rig, _ []*slow) {
			ctx, cancel := context.WithCancel(context.Background())
			cancel()
			r.Drain(ctx)
		},
	} {
		t.Run(name, func(t *testing.T) { onEach(t, func(t *testing.T) { testFullPipesAreClosed(t, end) }) })
	}
}

func testFullPipesAreClosed(t *testing.T, end func(*rig, []*slow)) {
	x := new(Count)
	const n = 12
	r := start(t, Config{Upstream: newCluster(t, backend(t, anyPort, flood)), Extra: x, MaxExtra: 1000})
	before := settled(t, r)
	all := slowReaders(t, r, n)
	untilHeld(t, all, func() bool { return x.Open()-int64(sparesOf(r)) >= 2*n })
	end(r, all)
	for range all {
		r.record(t)
	}
	for _, s := range all {
		_ = s.Close()
	}
	eventually(t, "the pipes are closed", func() bool {
		spares := sparesOf(r)
		return x.Open() == int64(spares) && fds(t) <= before+spares
	})
}

// Endpoints that answer at none of their addresses, and more clients than there
// are descriptors to dial several at once.
func TestRacesAreBounded(t *testing.T) { onEach(t, testRacesAreBounded) }

func testRacesAreBounded(t *testing.T) {
	x := new(Count)
	const n, most = 20, 6
	up := newCluster(t, silent(t))
	up.additional(silent(t), silent(t), silent(t))
	up.dial.Timeout = 3 * time.Second
	r := start(t, Config{Upstream: up, Extra: x, MaxExtra: most})
	before := settled(t, r)
	for range n {
		client(t, r.Addr())
	}
	eventually(t, "they want more", func() bool { return x.Refused() >= n })
	for ended := 0; ended < n; {
		select {
		case rec := <-r.records:
			if ended++; rec.Flag != FlagUF || rec.Attempts != 1 {
				t.Errorf("record %+v", rec)
			}
		case <-time.After(10 * time.Millisecond):
		}
		// Client, accepted, dialled.
		if got := fds(t) - before - 3*n; got > most {
			t.Fatalf("%d descriptors beyond two a connection", got)
		}
	}
	if x.Open() != 0 {
		t.Errorf("%d are left", x.Open())
	}
	if s := r.Stats(); s.DialsFailed != n || s.DialsAbandoned != 0 {
		t.Errorf("stats %+v", s)
	}
}

// Without a descriptor for a second address at the same time, each gets its
// share of the time, and the one before it is closed.
func TestLoopRaceAlone(t *testing.T) {
	up := newCluster(t, silent(t))
	up.additional(silent(t), silent(t), backend(t, anyPort, echo))
	up.dial.Timeout = 4 * time.Second
	var dials []lbcore.Addr // the loops'
	r := start(t, Config{Upstream: up, Loops: runLoops(t, true), MaxExtra: -1}, func(l *Listener) {
		l.dialFD = func(a lbcore.Addr, d *Dial) (int32, unix.Errno) {
			dials = append(dials, a)
			return sysDial(a, d)
		}
	})
	before := settled(t, r)
	c := client(t, r.Addr())
	eventually(t, "it is dialled", func() bool { return up.member(0).Active() == 1 })
	for _, x := range []struct {
		ms   time.Duration
		want int
	}{{301, 1}, {690, 1}, {10, 2}, {301, 2}, {690, 2}, {20, 3}, {301, 3}, {680, 3}} {
		r.cfg.Loops.skip(x.ms * time.Millisecond)
		n := 0
		r.cfg.Loops.do(func(l *loop) { l.each(func(*pair) { n = len(dials) }) })
		if n != x.want {
			t.Fatalf("%d addresses were dialled, want %d", n, x.want)
		}
		if got := fds(t) - before; got > 3 {
			t.Errorf("%d descriptors", got)
		}
	}
	r.cfg.Loops.skip(20 * time.Millisecond)
	exchange(t, c, "hello")
	_ = c.Close()
	if rec := r.record(t); rec.Flag != FlagNone || rec.Attempts != 1 {
		t.Errorf("record %+v", rec)
	}
}
