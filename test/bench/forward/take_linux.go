package forward

import (
	"context"
	"fmt"
	"maps"
	"os"
	"runtime"
	"syscall"
	"time"
)

// costs asks the kernel.
func (w *world) costs() (c costs, err error) {
	if c.relay, err = w.procs.cpu(); err != nil {
		return c, err
	}
	rest, err := procs{os.Getpid(), w.backend.cmd.Process.Pid}.cpu()
	c.all = c.relay + rest
	return c, err
}

// descriptors is the hard limit of a process.
func descriptors() (int, error) {
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
		return 0, fmt.Errorf("RLIMIT_NOFILE: %w", err)
	}
	// Set anew, it is for children too: those of a Go program get what was there
	// before.
	l.Cur = l.Max
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
		return 0, fmt.Errorf("RLIMIT_NOFILE: %w", err)
	}
	return int(min(l.Max, 1<<20)), nil
}

// Take measures s and returns figures by their names. It must be called in a
// process of its own: its goroutine stays locked to its thread, and the limit
// of descriptors raised.
func Take(ctx context.Context, s Spec) (Values, error) {
	runtime.LockOSThread()
	if s.Servers < 1 || s.Servers > 60_000 {
		return nil, fmt.Errorf("%d servers: want 1 to 60000", s.Servers)
	}
	limit, err := descriptors()
	if err != nil {
		return nil, err
	}
	each := 2 // descriptors that a relay takes for a connection
	if s.Relay == TCPProxy {
		each = 6
	}
	if s.idles() {
		s.Count = min(s.Count, (limit-500)/each)
	}
	var idle, unchecked int
	if s.Case == Health {
		none := s
		none.Servers, none.Clusters = 0, 0
		if idle, err = resting(ctx, none); err != nil {
			return nil, err
		}
		none = s
		none.Interval = 0
		if unchecked, err = resting(ctx, none); err != nil {
			return nil, err
		}
	}
	w, err := open(ctx, s)
	if err != nil {
		return nil, err
	}
	defer w.close()
	var vs Values
	switch {
	case s.encrypted():
		vs, err = w.overTLS(ctx)
	case s.Case == Health:
		vs, err = w.health(ctx, idle, unchecked)
	default:
		vs, err = w.plain(ctx)
	}
	if err != nil && w.relay != nil && w.relay.ended() != nil {
		err = fmt.Errorf("%w; %w", err, w.relay.ended())
	}
	return vs, err
}

// resting returns the bytes resident of a relay that probes nothing.
func resting(ctx context.Context, s Spec) (int, error) {
	w, err := open(ctx, s)
	if err != nil {
		return 0, err
	}
	defer w.close()
	if err := pause(ctx, s.Each/2); err != nil {
		return 0, err
	}
	return w.procs.resident()
}

func (w *world) plain(ctx context.Context) (Values, error) {
	l, err := newLoad(w.to)
	if err != nil {
		return nil, err
	}
	defer l.close()
	switch w.Case {
	case Plain:
		return w.speeds(ctx, l)
	case Idle:
		return w.idle(ctx, func(n int) ([]func(), error) {
			conns, err := l.established(ctx, n)
			ends := make([]func(), len(conns))
			for i, fd := range conns {
				ends[i] = func() { syscall.Close(fd) }
			}
			return ends, err
		})
	case Ring, Busy:
		return w.ring(ctx, l)
	case Churn:
		return w.leftovers(ctx, l)
	}
	return nil, fmt.Errorf("no case %q", w.Case)
}

// speeds are connections, round trips and bulk.
func (w *world) speeds(ctx context.Context, l *load) (Values, error) {
	vs := make(Values)
	add := func(more Values, err error) error {
		maps.Copy(vs, more)
		return err
	}
	if err := add(l.connect(ctx, 32, w.Each, w.costs)); err != nil {
		return nil, err
	}
	conns, err := l.established(ctx, 64)
	if err != nil {
		return nil, err
	}
	defer closeAll(conns)
	before, err := w.procs.fds()
	if err != nil {
		return nil, err
	}
	vs[Looped] = min(100, 100*float64(before.looped())/float64(2*len(conns)))
	if err := add(l.trips(ctx, Trips1, conns[:1], w.Each, w.costs)); err != nil {
		return nil, err
	}
	if err := add(l.trips(ctx, Trips64, conns, w.Each, w.costs)); err != nil {
		return nil, err
	}
	if err := add(l.fixed(ctx, conns, fixedRate, w.Each, w.costs)); err != nil {
		return nil, err
	}
	if w.Relay == HAProxySplice {
		return vs, add(w.bulkSpliced(ctx, l))
	}
	pipes := 0
	look := func() { pipes = w.procs.countPipes() }
	if err := add(l.bulk(ctx, Bulk1, 1, w.Each, w.costs, look)); err != nil {
		return nil, err
	}
	vs[Pipes] = float64(pipes - before.pipes)
	return vs, add(l.bulk(ctx, Bulk8, 8, w.Each, w.costs, nil))
}

// bulkSpliced is bulk through an HAProxy that must splice it.
func (w *world) bulkSpliced(ctx context.Context, l *load) (Values, error) {
	vs := make(Values)
	for group, n := range map[string]int{Bulk1: 1, Bulk8: 8} {
		from, err := w.spliced()
		if err != nil {
			return nil, err
		}
		sent := l.sent
		more, err := l.bulk(ctx, group, n, w.Each, w.costs, nil)
		if err != nil {
			return nil, err
		}
		to, err := w.spliced()
		if err != nil {
			return nil, err
		}
		part := 100 * (to - from) / float64(l.sent-sent)
		if part < 90 {
			return nil, fmt.Errorf("%s: it spliced only %.0f %% of the bytes", group, part)
		}
		maps.Copy(vs, more)
		vs[Spliced] = part
	}
	return vs, nil
}

// overTLS are the figures of a relay that ends TLS.
func (w *world) overTLS(ctx context.Context) (Values, error) {
	vs := make(Values)
	c := &caller{w: w}
	if w.Case == IdleTLS {
		return w.idle(ctx, func(n int) ([]func(), error) { return c.established(ctx, n) })
	}
	for _, f := range []func() (Values, error){
		func() (Values, error) { return c.handshakes(ctx, 32, w.Each) },
		func() (Values, error) { return c.trips(ctx, Trips1, 1, w.Each) },
		func() (Values, error) { return c.trips(ctx, Trips64, 64, w.Each) },
		func() (Values, error) { return c.fixed(ctx, 64, 10_000, w.Each) },
		func() (Values, error) { return c.bulk(ctx, Bulk1, 1, w.Each) },
		func() (Values, error) { return c.bulk(ctx, Bulk8, 8, w.Each) },
	} {
		more, err := f()
		if err != nil {
			return nil, err
		}
		maps.Copy(vs, more)
	}
	return vs, nil
}

// idle opens connections by establish, which returns what ends each, and watches
// what they cost while they rest.
func (w *world) idle(ctx context.Context, establish func(n int) ([]func(), error)) (Values, error) {
	base, err := w.procs.resident()
	if err != nil {
		return nil, err
	}
	before, err := w.procs.fds()
	if err != nil {
		return nil, err
	}
	conns, err := establish(w.Count)
	defer func() {
		for _, end := range conns {
			end()
		}
	}()
	if err != nil {
		return nil, err
	}
	if err := pause(ctx, w.Each/2); err != nil { // what came with opening them ends
		return nil, err
	}
	from, err := w.costs()
	if err != nil {
		return nil, err
	}
	began := time.Now()
	if err := pause(ctx, 5*w.Each); err != nil {
		return nil, err
	}
	to, err := w.costs()
	if err != nil {
		return nil, err
	}
	took := time.Since(began)
	rss, err := w.procs.resident()
	if err != nil {
		return nil, err
	}
	after, err := w.procs.fds()
	if err != nil {
		return nil, err
	}
	n := float64(len(conns))
	return Values{
		Base: float64(base), Memory: float64(rss-base) / n, FDs: float64(after.all-before.all) / n,
		Rest: 100 * (to.relay - from.relay).Seconds() / took.Seconds(), Looped: min(100, 100*float64(after.looped())/(2*n)),
	}, nil
}

// fixedRate is how many messages a second the open loop sends.
const fixedRate = 10_000

// churnEvery is how often the large ring's file changes: more often than the
// ring can be built.
const churnEvery = 60 * time.Millisecond

// ring measures round trips with and without rebuilds of the large ring, in
// turns. A third turn of Ring is a control: what is lost to the CPUs alone.
func (w *world) ring(ctx context.Context, l *load) (Values, error) {
	if w.Relay != Gatehouse {
		return nil, errRelay
	}
	conns, err := l.established(ctx, 64)
	if err != nil {
		return nil, err
	}
	defer closeAll(conns)
	watch := func() (p99, cpu float64, err error) { // cpu is of one core
		vs, err := l.fixed(ctx, conns, fixedRate, w.Each, w.costs)
		return vs[Fixed+string(P99)], vs[Fixed+string(CPU)] / 1e6 * fixedRate, err
	}
	vs := make(Values)
	var befores, durings, besides []float64
	turn, builds, took := 0, 0.0, 0.0
	for pair := range w.Pairs {
		before, idle, err := watch()
		if err != nil {
			return nil, err
		}
		began := time.Now()
		from, err := w.rebuilds(ctx)
		if err != nil {
			return nil, err
		}
		stop := w.churning(ctx, &turn)
		during, busy, err := watch()
		if e := stop(); err == nil {
			err = e
		}
		if err != nil {
			return nil, err
		}
		to, err := w.rebuilds(ctx)
		if err != nil {
			return nil, err
		}
		if to == from {
			return nil, fmt.Errorf("the large ring was not rebuilt")
		}
		builds, took = builds+to-from, took+time.Since(began).Seconds()
		befores, durings = append(befores, before), append(durings, during)
		vs[RingKey(pair)] = during / before
		if w.Case != Ring {
			continue
		}
		burner, err := burning(w.Burner, max(busy-idle, 0))
		if err != nil {
			return nil, err
		}
		beside, _, err := watch()
		if burner.stop(); err != nil {
			return nil, err
		}
		besides = append(besides, beside)
		vs[BesideKey(pair)] = beside / before
	}
	vs[Before], vs[During], vs[Builds] = middle(befores), middle(durings), builds/took
	if w.Case == Ring {
		vs[Beside] = middle(besides)
	}
	return vs, nil
}

// rebuilds returns how often the large ring was built.
func (w *world) rebuilds(ctx context.Context) (float64, error) {
	m, err := scrape(ctx, w.admin)
	return m[`gatehouse_selector_rebuilds{cluster="ring",selector="ring"}`], err
}

// churning changes the large ring's file again and again until stop is called,
// which returns why it could not. turn goes on.
func (w *world) churning(ctx context.Context, turn *int) (stop func() error) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() {
		tick := time.NewTicker(churnEvery)
		defer tick.Stop()
		for {
			*turn++
			if err := w.churn(*turn); err != nil {
				ended <- err
				return
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				ended <- nil
				return
			}
		}
	}()
	return func() error {
		cancel()
		return <-ended
	}
}

// leavings is what a Gatehouse holds.
type leavings struct{ goroutines, fds, heap float64 }

// leftovers compares what is held after many connections with what was before.
func (w *world) leftovers(ctx context.Context, l *load) (Values, error) {
	if w.Relay != Gatehouse {
		return nil, errRelay
	}
	if err := w.openMany(ctx, l, w.Count/20+1); err != nil { // pools fill
		return nil, err
	}
	before, err := w.leavings(ctx, nil)
	if err != nil {
		return nil, err
	}
	if err := w.openMany(ctx, l, w.Count); err != nil {
		return nil, err
	}
	after, err := w.leavings(ctx, &before)
	if err != nil {
		return nil, err
	}
	return Values{
		Goroutines: after.goroutines - before.goroutines, Left: after.fds - before.fds,
		Heap: (after.heap - before.heap) / (1 << 20),
	}, nil
}

// openMany has n connections echo a byte each, 32 at a time.
func (w *world) openMany(ctx context.Context, l *load, n int) error {
	flying := make(map[int]bool)
	defer func() {
		for fd := range flying {
			syscall.Close(fd)
		}
	}()
	for n > 0 || len(flying) > 0 {
		for ; n > 0 && len(flying) < 32; n-- {
			fd, err := l.open()
			if err != nil {
				return err
			}
			flying[fd] = true
		}
		evs, err := l.wait(100 * time.Millisecond)
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return err
		}
		for _, ev := range evs {
			if fd := int(ev.Fd); flying[fd] {
				ended, err := l.echoByte(fd, ev.Events)
				if err != nil {
					return fmt.Errorf("with %d connections to go: %w", n, err)
				}
				if ended {
					delete(flying, fd)
				}
			}
		}
	}
	return nil
}

// leavings reads what is held when no connection is open: heap is the least over
// some collections, which reading it brings about. It waits, not for long, until
// no more goroutines and descriptors are there than want has.
func (w *world) leavings(ctx context.Context, want *leavings) (got leavings, err error) {
	const collections = "go_gc_duration_seconds_count"
	from := -1.0
	settled := time.Now().Add(5 * time.Second)
	for {
		m, err := scrape(ctx, w.admin)
		if err != nil {
			return got, err
		}
		busy := m[`gatehouse_listener_active{listener="web"}`] > 0
		if want != nil && (m["go_goroutines"] > want.goroutines || m["process_open_fds"] > want.fds) {
			busy = true
		}
		if busy && time.Now().Before(settled) {
			continue
		}
		if from < 0 {
			from = m[collections]
			got.heap = m["go_memstats_heap_alloc_bytes"]
		}
		got.goroutines, got.fds = m["go_goroutines"], m["process_open_fds"]
		got.heap = min(got.heap, m["go_memstats_heap_alloc_bytes"])
		if m[collections] >= from+12 {
			return got, nil
		}
	}
}
