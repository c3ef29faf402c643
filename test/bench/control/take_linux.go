package control

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"time"
)

// leastBurst is how many updates CPU is measured over at least.
const leastBurst = 20

// beat is how often the agent gathers its metrics. CPU is measured over multiples of it:
// with updates and without it has as much of that.
const beat = time.Second

// enough is how long latencies are measured for if updates are slow; fewest is how many
// there are then.
const (
	enough = 10 * time.Second
	fewest = 5
)

// patience is how long an update may take.
const patience = 20 * time.Second

// Take measures s and returns figures by their names. It must be called in a process
// of its own: its goroutine stays locked to its thread.
func Take(ctx context.Context, s Spec) (Values, error) {
	runtime.LockOSThread()
	switch {
	case s.Clusters < 2 || s.Clusters > 10_000 || s.Endpoints < 2 || s.Endpoints > 100:
		return nil, fmt.Errorf("%d clusters of %d endpoints: want 2 to 10000 of 2 to 100", s.Clusters, s.Endpoints)
	case s.Subject != Gatehouse && s.Subject != GRPC:
		return nil, fmt.Errorf("no client %q", s.Subject)
	case s.Subject == GRPC && s.Variant == Delta:
		return nil, errors.New("it has no incremental variant")
	}
	switch s.Case {
	case Updates:
		return updates(ctx, s)
	case Memory:
		return memory(ctx, s)
	}
	return nil, fmt.Errorf("no case %q", s.Case)
}

// world is a server with its client.
type world struct {
	Spec
	server *server
	client client
	hot    [2]*hot // where the heavy endpoint may be
	at     int     // where it is
	turns  int     // of the others
}

// client is what is measured.
type client interface {
	// program is its process.
	program() process
	// ready returns when it has all clusters.
	ready(context.Context) error
	// pick has it pick endpoints of the first cluster until ctx ends, or until it has
	// picked one.
	pick(ctx context.Context, at netip.AddrPort) error
	// heap returns what it needs, after so many steps of its metrics at least.
	heap(ctx context.Context, steps int) (heap, error)
	// taken returns how many sets and selectors it has had.
	taken(context.Context) (sets, builds float64, err error)
	stop()
}

// heap is what a client needs.
type heap struct {
	live, storage float64 // bytes; the latter is the part of the selectors
	steps         int     // of metrics that were in it
}

// beside returns the bytes beside the selectors.
func (h heap) beside() float64 { return h.live - h.storage }

// process is a forward.Program.
type process interface {
	CPU() (time.Duration, error)
	Resident() (int, error)
	Ended() error
}

// open starts the server and the client. The caller must call close.
func open(ctx context.Context, s Spec) (w *world, err error) {
	w = &world{Spec: s}
	defer func() {
		if err != nil {
			w.close()
			w = nil
		}
	}()
	for i := range w.hot {
		if w.hot[i], err = newHot(s.Subject == GRPC); err != nil {
			return w, err
		}
	}
	if w.server, err = newServer(ctx, s.Clusters, s.Endpoints, w.hot[0].addr); err != nil {
		return w, err
	}
	if s.Subject == GRPC {
		w.client, err = startGRPC(s, w.server)
	} else {
		w.client, err = startAgent(ctx, s, w.server.addr)
	}
	return w, err
}

func (w *world) close() {
	if w.client != nil {
		w.client.stop()
	}
	if w.server != nil {
		w.server.stop()
	}
	for _, h := range w.hot {
		if h != nil {
			h.close()
		}
	}
}

// updates measures the first sync and what updates take.
func updates(ctx context.Context, s Spec) (vs Values, err error) {
	began := time.Now()
	w, err := open(ctx, s)
	if err != nil {
		return nil, err
	}
	defer w.close()
	defer func() {
		if err != nil && w.client.program().Ended() != nil {
			err = fmt.Errorf("%w; %w", err, w.client.program().Ended())
		}
	}()
	if err := w.client.ready(ctx); err != nil {
		return nil, err
	}
	vs = Values{Sync: ms(time.Since(began))}
	for range 3 { // what comes first may take longer, as the first connection does
		if _, err := w.timed(ctx); err != nil {
			return nil, err
		}
	}
	var took []time.Duration
	for first := time.Now(); len(took) < min(s.Timed, fewest) || len(took) < s.Timed && time.Since(first) < enough; {
		t, err := w.timed(ctx)
		if err != nil {
			return nil, err
		}
		took = append(took, t)
	}
	slices.Sort(took)
	vs[P50], vs[P99] = ms(took[(len(took)-1)/2]), ms(took[(len(took)*99+99)/100-1])
	if err := w.burst(ctx, vs); err != nil {
		return nil, err
	}
	rss, err := w.client.program().Resident()
	vs[RSS] = float64(rss)
	return vs, err
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// timed moves the heavy endpoint, and returns the time from the server's send to the
// first pick of it.
func (w *world) timed(ctx context.Context) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	w.at = 1 - w.at
	to := w.hot[w.at]
	empty(to.accepted)
	if err := w.server.change(ctx, assignment(0, w.Endpoints, 0, to.addr)); err != nil {
		return 0, err
	}
	sent, err := take(ctx, w.server.sent, "no response was sent")
	if err != nil {
		return 0, err
	}
	picking, stop := context.WithCancel(ctx)
	picked := make(chan error, 1)
	go func() { picked <- w.client.pick(picking, to.addr) }()
	at, err := take(ctx, to.accepted, "the new endpoint was not picked")
	stop()
	if perr := <-picked; err == nil {
		err = perr
	}
	if err == nil {
		err = w.accepted(ctx)
	}
	return at.Sub(sent), err
}

// accepted waits until the last response was accepted.
func (w *world) accepted(ctx context.Context) error {
	refused, err := take(ctx, w.server.answers, "a response was not answered")
	if err != nil {
		return err
	}
	return refused
}

// take reads from c, or says what did not come in time.
func take[T any](ctx context.Context, c <-chan T, what string) (x T, err error) {
	select {
	case x = <-c:
		return x, nil
	case <-ctx.Done():
		return x, fmt.Errorf("%s: %w", what, ctx.Err())
	}
}

// burst measures the CPU of updates, and what became of them.
func (w *world) burst(ctx context.Context, vs Values) error {
	sets, builds, err := w.client.taken(ctx)
	if err != nil {
		return err
	}
	p := w.client.program()
	if err := pause(ctx, w.Each/4); err != nil {
		return err
	}
	from, err := p.CPU()
	if err != nil {
		return err
	}
	began, n := time.Now(), 0
	tick := time.NewTicker(2 * time.Millisecond) // the client needs no more to apply one
	defer tick.Stop()
	for ; n < leastBurst || time.Since(began) < w.Each; n++ {
		if err := w.another(ctx); err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	// What was answered need not have been applied: what comes last says that it was.
	if _, err := w.timed(ctx); err != nil {
		return err
	}
	n++
	if err := settled(ctx, p); err != nil {
		return err
	}
	took := (time.Since(began) + beat).Truncate(beat)
	if err := pause(ctx, time.Until(began.Add(took))); err != nil {
		return err
	}
	to, err := p.CPU()
	if err != nil {
		return err
	}
	if err := pause(ctx, took); err != nil {
		return err
	}
	rest, err := p.CPU()
	if err != nil {
		return err
	}
	vs[CPU] = float64(((to - from) - (rest - to)).Microseconds()) / float64(n)
	if w.Subject == GRPC {
		return nil
	}
	moreSets, moreBuilds, err := w.client.taken(ctx)
	vs[Sets], vs[Builds] = (moreSets-sets)/float64(n), (moreBuilds-builds)/float64(n)
	return err
}

// settled returns once p has little to do.
func settled(ctx context.Context, p process) error {
	const look = 100 * time.Millisecond
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for last := time.Duration(0); ; {
		now, err := p.CPU()
		if err != nil || last > 0 && now-last < look/8 {
			return err
		}
		last = now
		if err := pause(ctx, look); err != nil {
			return fmt.Errorf("there is no end of the updates' work: %w", err)
		}
	}
}

// another replaces one endpoint of the next cluster but the first.
func (w *world) another(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	others := w.Clusters - 1
	i, turn := 1+w.turns%others, 1+w.turns/others
	w.turns++
	if err := w.server.change(ctx, assignment(i, w.Endpoints, turn, netip.AddrPort{})); err != nil {
		return err
	}
	return w.accepted(ctx)
}

// pause waits, unless ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// memory tells what endpoints take from what clusters take.
func memory(ctx context.Context, s Spec) (Values, error) {
	all, err := s.heap(ctx, s.Clusters, s.Endpoints, 1)
	if err != nil {
		return nil, err
	}
	one, err := s.heap(ctx, s.Clusters, 1, all.steps)
	if err != nil {
		return nil, err
	}
	if one.steps != all.steps {
		return nil, fmt.Errorf("the machine is too busy: %d steps of metrics, and %d", one.steps, all.steps)
	}
	none, err := s.heap(ctx, 0, 0, 1)
	n := float64(s.Clusters)
	vs := Values{
		Cluster:  (one.beside() - none.beside()) / n,
		Endpoint: (all.beside() - one.beside()) / n / float64(s.Endpoints-1),
	}
	if s.Subject == Gatehouse {
		vs[Storage] = all.storage
	}
	return vs, err
}

// heap returns what a client of so many clusters and endpoints needs.
func (s Spec) heap(ctx context.Context, clusters, endpoints, steps int) (heap, error) {
	s.Clusters, s.Endpoints = clusters, endpoints
	w, err := open(ctx, s)
	if err != nil {
		return heap{}, err
	}
	defer w.close()
	if err := w.client.ready(ctx); err != nil {
		return heap{}, err
	}
	return w.client.heap(ctx, steps)
}
