package forwarder

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"gatehouse.internal/lbcore"
)

var memEndpoint = lbcore.IPAddr(netip.MustParseAddrPort("192.0.2.2:80"))

// F17: a connection ends after max_duration and some more, however busy it is,
// and the jitter is all over its range.
func TestMaxDuration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newMemWorld(t, Config{Settings: Settings{MaxDuration: time.Hour, IdleTimeout: 2 * time.Hour}})
		c := w.ln.connect()
		b := <-w.backends
		for range 5 {
			after(10 * time.Minute)
			write(t, c, "x")
			read(t, b, 1)
		}
		wantReset(t, c)
		wantReset(t, b)
		if rec := w.record(t); rec.Flag != FlagDT || rec.Err != errDuration || rec.Duration != time.Hour || rec.BytesIn != 5 {
			t.Errorf("record %+v", rec)
		}
		if err := w.Set(Settings{MaxDuration: time.Hour, MaxDurationJitter: 50}); err != nil {
			t.Fatal(err)
		}
		var ended []time.Duration
		for range 200 {
			w.ln.connect()
			<-w.backends
		}
		after(2 * time.Hour)
		for range 200 {
			rec := w.record(t)
			if rec.Flag != FlagDT || rec.Duration < time.Hour || rec.Duration > 90*time.Minute {
				t.Fatalf("record %+v", rec)
			}
			ended = append(ended, rec.Duration)
		}
		if first, last := slices.Min(ended), slices.Max(ended); first > 65*time.Minute || last < 85*time.Minute {
			t.Errorf("they ended after %v to %v", first, last)
		}
	})
}

// Connections to an endpoint that is to lose them end spread evenly, none after
// the deadline, those made meanwhile too; others stay.
func TestEndsSpread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		up := newCluster(t, memEndpoint)
		up.dial.Ends = new(Ends)
		w := newMemWorld(t, Config{Upstream: up})
		const n = 60
		for range n {
			w.ln.connect()
			<-w.backends
		}
		synctest.Wait()
		begin := time.Now()
		if !up.dial.Ends.Set(map[lbcore.Addr]Ending{memEndpoint: {Err: ErrRemoved, Within: time.Minute}}) || up.dial.Ends.Set(map[lbcore.Addr]Ending{memEndpoint: {Err: ErrRemoved, Within: time.Minute}}) {
			t.Error("Set does not tell what has changed")
		}
		w.Review()
		w.Review() // the moments stay
		for quarter := range 4 {
			after(15*time.Second - 1)
			synctest.Wait()
			if left := int(w.Stats().Active); left < n*(3-quarter)/4-2 || left > n*(3-quarter)/4+2 {
				t.Errorf("%d connections are left after %v", left, time.Since(begin))
			}
			after(1)
		}
		synctest.Wait()
		if left := w.Stats().Active; left != 0 {
			t.Errorf("%d connections are left after the deadline", left)
		}
		for range n {
			if rec := w.record(t); rec.Flag != FlagLR || rec.Err != ErrRemoved {
				t.Fatalf("record %+v", rec)
			}
		}
		c := w.ln.connect() // as when a dial took so long
		<-w.backends
		wantReset(t, c)
		if rec := w.record(t); rec.Flag != FlagLR || rec.Err != ErrRemoved || rec.Duration > time.Second {
			t.Errorf("record %+v", rec)
		}
	})
}

// An endpoint that comes back before their moment keeps its connections.
func TestEndsRevoked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		up := newCluster(t, memEndpoint)
		up.dial.Ends = new(Ends)
		w := newMemWorld(t, Config{Upstream: up})
		for range 20 {
			w.ln.connect()
			<-w.backends
		}
		synctest.Wait()
		up.dial.Ends.Set(map[lbcore.Addr]Ending{memEndpoint: {Err: ErrUnhealthy, Within: time.Minute}})
		w.Review()
		after(30 * time.Second)
		synctest.Wait()
		left := w.Stats().Active
		if left < 8 || left > 12 {
			t.Errorf("%d are left", left)
		}
		if !up.dial.Ends.Set(nil) || up.dial.Ends.Set(nil) {
			t.Error("Set does not tell what has changed")
		}
		// Even those whose moment comes before the Review.
		after(time.Hour)
		synctest.Wait()
		if n := w.Stats().Active; n != left {
			t.Errorf("%d of %d are left", n, left)
		}
	})
}

// With SpareNew those that are dialled afterwards stay, however often somebody
// looks.
func TestEndsSpareNew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, within := range []time.Duration{0, time.Minute} {
			up := newCluster(t, memEndpoint)
			up.dial.Ends = new(Ends)
			w := newMemWorld(t, Config{Upstream: up})
			connect := func() {
				for range 5 {
					w.ln.connect()
					<-w.backends
				}
				synctest.Wait()
			}
			connect()
			after(time.Second)
			up.dial.Ends.Set(map[lbcore.Addr]Ending{memEndpoint: {Err: ErrUnhealthy, Within: within, SpareNew: true}})
			w.Review()
			after(time.Second)
			connect()
			w.Review()
			after(time.Hour)
			synctest.Wait()
			if s := w.Stats(); s.Active != 5 || s.Flags[FlagLR] != 5 {
				t.Errorf("within %s: %+v", within, s)
			}
		}
	})
}

// However long the spread, nothing is closed in the first half of a drain.
func TestDrainSpreadIsHalf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newMemWorld(t, Config{DrainSpread: time.Minute})
		const n = 40
		for range n {
			w.ln.connect()
			<-w.backends
		}
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		result := make(chan int, 1)
		go func() { result <- w.Drain(ctx) }()
		after(10*time.Second - 1)
		synctest.Wait()
		if left := w.Stats().Active; left != n {
			t.Errorf("%d of %d connections are left before half of the time", left, n)
		}
		after(5 * time.Second)
		synctest.Wait()
		if left := w.Stats().Active; left < n/2-3 || left > n/2+3 {
			t.Errorf("%d of %d connections are left after three quarters", left, n)
		}
		if cut := <-result; cut != n {
			t.Errorf("%d were cut", cut)
		}
	})
}

// F7, F17: before a drain's deadline connections are closed one after the other,
// and those that end by themselves before that do.
func TestDrainSpread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var logs logBuffer
		w := newMemWorld(t, Config{DrainSpread: time.Minute, Logger: logs.logger()})
		const n = 60
		ends := w.ln.connect()
		b := <-w.backends
		for range n {
			w.ln.connect()
			<-w.backends
		}
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
		defer cancel()
		begin := time.Now()
		result := make(chan int, 1)
		go func() { result <- w.Drain(ctx) }()
		after(time.Minute)
		_, _ = ends.Close(), b.Close()
		if rec := w.record(t); rec.Flag != FlagNone {
			t.Errorf("record %+v", rec)
		}
		after(time.Minute - 1)
		synctest.Wait()
		if left := w.Stats().Active; left != n {
			t.Errorf("%d connections are left after %v", left, time.Since(begin))
		}
		after(1)
		for quarter := range 4 {
			after(15*time.Second - 1)
			synctest.Wait()
			if left := int(w.Stats().Active); left < n*(3-quarter)/4-2 || left > n*(3-quarter)/4+2 {
				t.Errorf("%d connections are left after %v", left, time.Since(begin))
			}
			after(1)
		}
		if cut := <-result; cut != n || time.Since(begin) > 3*time.Minute {
			t.Errorf("%d cut after %v", cut, time.Since(begin))
		}
		drained := 0
		for range n {
			rec := w.record(t)
			if rec.Flag != FlagLR || rec.Err != ErrDrained && rec.Err != errCut {
				t.Fatalf("record %+v", rec)
			}
			if rec.Err == ErrDrained {
				drained++
			}
		}
		if s := w.Stats(); drained < n-2 || s.Cut != n {
			t.Errorf("%d drained, stats %+v", drained, s)
		}
		for _, want := range []string{
			"level=INFO msg=draining listener=test remaining=61 since=2000-01-01T00:00:00.000Z until=2000-01-01T00:03:00.000Z",
			`msg="closing connections one after the other" listener=test remaining=60`,
		} {
			if !strings.Contains(logs.String(), want) {
				t.Errorf("no %s in the log:\n%s", want, logs.String())
			}
		}
	})
}

// On real sockets: one of two endpoints loses its connections at once.
func TestEnds(t *testing.T) {
	onEach(t, func(t *testing.T) {
		a, b := backend(t, anyPort, echo), backend(t, anyPort, echo)
		first, second := newCluster(t, a), newCluster(t, b)
		ends := new(Ends)
		first.dial.Ends, second.dial.Ends = ends, ends
		x, y := start(t, Config{Upstream: first}), start(t, Config{Upstream: second})
		ca, cb := client(t, x.Addr()), client(t, y.Addr())
		exchange(t, ca, "hello")
		exchange(t, cb, "hello")
		ends.Set(map[lbcore.Addr]Ending{b: {Err: ErrRemoved, Within: time.Hour}})
		x.Review()
		y.Review()
		ends.Set(nil)
		ends.Set(map[lbcore.Addr]Ending{a: {Err: ErrUnhealthy, Within: 0}})
		x.Review()
		y.Review()
		wantReset(t, ca)
		if rec := x.record(t); rec.Flag != FlagLR || rec.Err != ErrUnhealthy || rec.BytesIn != 5 {
			t.Errorf("record %+v", rec)
		}
		exchange(t, cb, "still here")
		if n := first.member(0).Active(); n != 0 {
			t.Errorf("the endpoint has %d connections", n)
		}
	})
}

// Circuit breakers: what is over max_connections of the cluster is refused at
// once, what is open lives, and what has ended makes room.
func TestClusterLimit(t *testing.T) {
	onEach(t, func(t *testing.T) {
		a, b := newCluster(t, backend(t, anyPort, echo)), newCluster(t, backend(t, anyPort, echo))
		open := new(Count)
		for _, c := range []*cluster{a, b} {
			c.dial.Open, c.dial.MaxConnections = open, 2
		}
		x, y := start(t, Config{Upstream: a}), start(t, Config{Upstream: b})
		c1, c2 := client(t, x.Addr()), client(t, y.Addr())
		exchange(t, c1, "one")
		exchange(t, c2, "two")
		wantRefused(t, x.Addr())
		if rec := x.record(t); rec.Flag != FlagUO || rec.Err != errOverflow || rec.Attempts != 0 || rec.Cluster != "web" {
			t.Errorf("record %+v", rec)
		}
		exchange(t, c1, "lives")
		if err := c2.Close(); err != nil {
			t.Fatal(err)
		}
		y.record(t)
		c3 := client(t, x.Addr())
		exchange(t, c3, "three")
		if open.Open() != 2 || open.Refused() != 1 || x.Stats().Flags[FlagUO] != 1 {
			t.Errorf("%d open, %d refused", open.Open(), open.Refused())
		}
		_, _ = c1.Close(), c3.Close()
		x.record(t)
		x.record(t)
		if open.Open() != 0 {
			t.Errorf("%d open at the end", open.Open())
		}
	})
}

// An endpoint that has enough is passed over; if all have, it is an overflow.
func TestEndpointLimit(t *testing.T) {
	onEach(t, func(t *testing.T) {
		up := newCluster(t, backend(t, anyPort, echo), refused(t), backend(t, anyPort, echo))
		up.dial.Open, up.dial.MaxPerEndpoint = new(Count), 1
		r := start(t, Config{Upstream: up})
		exchange(t, client(t, r.Addr()), "first")
		exchange(t, client(t, r.Addr()), "third")
		if up.member(0).Active() != 1 || up.member(2).Active() != 1 {
			t.Error("not one for each")
		}
		// The second one has room, and fails.
		wantRefused(t, r.Addr())
		if rec := r.record(t); rec.Flag != FlagUF {
			t.Errorf("record %+v", rec)
		}
		full := newCluster(t, backend(t, anyPort, echo))
		full.dial.Open, full.dial.MaxPerEndpoint = new(Count), 1
		r = start(t, Config{Upstream: full})
		exchange(t, client(t, r.Addr()), "only")
		wantRefused(t, r.Addr())
		if rec := r.record(t); rec.Flag != FlagUO || rec.Err != errOverflow || full.dial.Open.Refused() != 1 || full.dial.Open.Open() != 1 {
			t.Errorf("record %+v, %d refused", rec, full.dial.Open.Refused())
		}
	})
}

// The bound of all listeners of the process.
func TestSharedLimit(t *testing.T) {
	onEach(t, func(t *testing.T) {
		up := newCluster(t, backend(t, anyPort, echo))
		open := new(Count)
		x, y := start(t, Config{Upstream: up, Open: open, MaxOpen: 2}), start(t, Config{Upstream: up, Open: open, MaxOpen: 2})
		c1, c2 := client(t, x.Addr()), client(t, y.Addr())
		exchange(t, c1, "one")
		exchange(t, c2, "two")
		wantRefused(t, x.Addr())
		rec := x.record(t)
		if !rec.Client.IsValid() || rec.Start.IsZero() || rec.Duration != 0 {
			t.Errorf("record %+v", rec)
		}
		rec.Client, rec.Start = netip.AddrPort{}, time.Time{}
		if want := (Record{Listener: "test", Local: x.Addr(), Flag: FlagOM, Err: errMaxOpen}); rec != want {
			t.Errorf("record %+v, want %+v", rec, want)
		}
		if s := x.Stats(); s.Flags[FlagOM] != 1 || s.Over[LimitAll] != 1 {
			t.Errorf("stats %+v", s)
		}
		exchange(t, c1, "lives")
		_ = c1.Close()
		x.record(t)
		exchange(t, client(t, y.Addr()), "three")
		if open.Open() != 2 || open.Refused() != 1 {
			t.Errorf("%d open, %d refused", open.Open(), open.Refused())
		}
	})
}
