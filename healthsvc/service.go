package healthsvc

import (
	"cmp"
	"container/heap"
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"syscall"
	"time"

	"gatehouse.internal/internal/contain"
	"gatehouse.internal/lbcore"
)

// MaxWorkers bounds the probes in flight when Config.Workers does not.
const MaxWorkers = 65536

// stoodStill is how long the scheduler may not run while probes are in flight. If it
// is longer, the process was stopped, or starved, and a probe that ran out of time
// meanwhile says nothing of its endpoint. For that it runs every lookEvery.
const (
	stoodStill = 2 * time.Second
	lookEvery  = stoodStill / 8
)

// stuckAfter is how many probes in a row without a result make a Ref Stuck.
const stuckAfter = 3

// localRetry is how soon at the latest the next probe follows one that gave no
// result. It comes in another order each time, so that where some succeed it is not
// always the same.
const localRetry = time.Second

// localEvery is how often a lack of local resources is logged at most: what one
// probe lacks thousands do.
const localEvery = time.Minute

// maxReason bounds the text kept of a failure, in bytes: parts of it may come
// from the peer.
const maxReason = 256

// Config holds the settings of a Service. The zero value is good.
type Config struct {
	// Workers bounds the probes in flight. 0 and below mean as many as the keys
	// need if all of them time out, see the package comment, and at most
	// MaxWorkers.
	Workers int
	// MaxWorkers bounds what Workers of 0 comes to, for instance by the descriptors
	// that are left for probes. 0 and below, and more, mean the constant MaxWorkers.
	MaxWorkers int
	// Rand returns a number in [0, n) for n > 0, for jitter. Only the goroutine
	// that runs the Service calls it. Nil means rand.Int64N.
	Rand func(n int64) int64
	// Panics contains those of probes, which count as failed. Nil contains none.
	Panics *contain.Panics
	// Log gets one line for each change of a verdict, at level info; first
	// verdicts that are good are at debug. Nil means none.
	Log *slog.Logger
}

// Service keeps the registry of keys and schedules their probes. Its methods
// may be called from anywhere.
type Service struct {
	workers int // 0: as loads says, up to
	most    int
	rand    func(n int64) int64
	log     *slog.Logger
	panics  *contain.Panics
	wake    chan struct{}

	mu       sync.Mutex
	targets  map[targetKey]*target
	subjects map[subjectID]*subject
	changed  []*target // those that the scheduler must look at
	kinds    []*KindStats
	loads    loads
	live     int // targets with a Ref
	refs     int
	views    map[string]int // refs by Ask.View
	late     uint64
	ran      bool

	changes    uint64 // of what Export returns
	exported   []byte // at that number of them; never written
	exportedAt uint64
	imported   map[keptKey]imported // that no check has asked for yet

	// Only the scheduler touches what follows, with mu held so that Stats may
	// count.
	timers   timers
	paced    queue
	nextPace time.Time
	ready    queue
	hanging  line      // as ready, for those whose last probe timed out
	turn     bool      // of the two lines
	busy     int       // probes in flight
	looked   time.Time // when the scheduler ran last
	stood    time.Time // the last end of a time in which it stood still
	told     time.Time // when a lack of local resources was logged last
	toldFew  bool      // that probes wait for workers was logged
}

// NewService returns a Service that probes nothing before Run.
func NewService(c Config) *Service {
	s := &Service{
		workers: c.Workers, rand: c.Rand, log: c.Log, panics: c.Panics,
		wake:    make(chan struct{}, 1),
		targets: make(map[targetKey]*target), subjects: make(map[subjectID]*subject),
		views: make(map[string]int),
		loads: loads{timeouts: make(map[time.Duration]int)},
	}
	s.workers, s.most = max(s.workers, 0), MaxWorkers
	if c.MaxWorkers > 0 {
		s.most = min(c.MaxWorkers, MaxWorkers)
	}
	if s.rand == nil {
		s.rand = rand.Int64N
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	return s
}

// result is how a probe of a target ended.
type result struct {
	outcome
	t     *target
	life  uint32
	limit time.Duration // the timeout that it had
	local bool          // it lacked what is local, and says nothing of the endpoint
}

// outcome is what a probe says of its endpoint.
type outcome struct {
	ended  time.Time
	reason string        // empty: passed
	took   time.Duration // from the start to the end
	// What a pass or a failure was besides.
	degraded, atOnce, timedOut bool
	cut                        bool // by the timeout that the probe had
	stood                      bool // this process stood still meanwhile
}

// Run probes until ctx ends, and then returns ctx.Err(). Probes in flight are
// cancelled then and nothing that it started runs any more. It returns another
// error at once if it has been called before.
func (s *Service) Run(ctx context.Context) error {
	s.mu.Lock()
	again := s.ran
	s.ran = true
	s.mu.Unlock()
	if again {
		return errors.New("health service: run a second time; make a new one")
	}

	var (
		workers sync.WaitGroup
		started int
		jobs    = make(chan func() result)
		results = make(chan result)
		starts  []func() result
		timer   = time.NewTimer(MaxInterval)
	)
	defer timer.Stop()
	for ctx.Err() == nil {
		var wait time.Duration
		s.mu.Lock()
		starts, wait = s.step(ctx, time.Now(), starts[:0])
		few := s.ready.len()+s.hanging.len() > 0 && !s.toldFew
		s.toldFew = s.toldFew || few
		limit, targets := s.limit(), s.live
		keep := max(s.busy, min(limit, targets))
		s.mu.Unlock()
		if few {
			s.log.Warn("probes wait for others to end, more may not be in flight; raise workers of health, or RLIMIT_NOFILE (LimitNOFILE of systemd) by which their default is bounded",
				"workers", limit, "targets", targets)
		}
		// There are never fewer workers than probes in flight, so each send
		// below meets a worker that is idle or about to be.
		for ; started < s.busy; started++ {
			workers.Go(func() {
				for run := range jobs {
					if run == nil {
						return
					}
					results <- run()
				}
			})
		}
		for _, run := range starts {
			jobs <- run
		}
		clear(starts)
		for ; started > keep; started-- {
			jobs <- nil // one that is idle leaves
		}
		timer.Reset(wait)
		select {
		case <-ctx.Done():
		case <-s.wake:
		case <-timer.C:
		case r := <-results:
			if ctx.Err() != nil {
				s.drop()
				break
			}
			for _, call := range s.finish(r) {
				call()
			}
		}
	}
	for s.busy > 0 {
		<-results
		s.drop()
	}
	close(jobs)
	workers.Wait()
	return ctx.Err()
}

// drop passes over the result of a probe that the end of Run cut short.
func (s *Service) drop() {
	s.mu.Lock()
	s.busy--
	s.mu.Unlock()
}

// probe runs one probe and says how it ended.
func probe(ctx context.Context, p Probe, addr lbcore.Addr, panics *contain.Panics) result {
	err := contained(ctx, p, addr, panics)
	r := result{outcome: outcome{degraded: errors.Is(err, ErrDegraded)}}
	if r.degraded {
		err = nil
	}
	if err == nil && ctx.Err() != nil {
		err = timeoutError("passed too late")
	}
	if r.ended = time.Now(); err == nil {
		return r
	}
	r.reason = cmp.Or(err.Error(), "failed without a reason")
	if len(r.reason) > maxReason {
		r.reason = strings.ToValidUTF8(r.reason[:maxReason], "") + "..."
	}
	r.local = isLocal(err)
	r.timedOut = errors.Is(err, context.DeadlineExceeded)
	_, r.atOnce = errors.AsType[*ImmediateError](err)
	return r
}

func contained(ctx context.Context, p Probe, addr lbcore.Addr, panics *contain.Panics) (err error) {
	defer panics.Recover(contain.Probe, &err)
	return p.Probe(ctx, addr)
}

// isLocal reports whether err is about this machine. If it counted, a node out
// of descriptors or ports would find every backend unhealthy. What the node has no
// route to is errUnrouted, and counts.
func isLocal(err error) bool {
	for _, e := range []error{syscall.EMFILE, syscall.ENFILE, syscall.EADDRNOTAVAIL, syscall.EADDRINUSE, syscall.ENOBUFS, syscall.ENOMEM} {
		if errors.Is(err, e) {
			return true
		}
	}
	_, local := errors.AsType[*localError](err)
	return local
}

// notice notes that the scheduler stood still, if it did with probes in flight. mu
// is held.
func (s *Service) notice(now time.Time) {
	if s.busy > 0 && now.Sub(s.looked) > stoodStill {
		s.stood = now
	}
	s.looked = now
}

// touch has the scheduler look at t. mu is held.
func (s *Service) touch(t *target) {
	if t.changed {
		return
	}
	t.changed = true
	s.changed = append(s.changed, t)
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// step brings the schedule up to now. It appends the probes to start to starts
// and says after what time there is something to do again. mu is held.
func (s *Service) step(ctx context.Context, now time.Time, starts []func() result) ([]func() result, time.Duration) {
	for _, t := range s.changed {
		t.changed = false
		s.settle(t, now)
	}
	clear(s.changed)
	s.changed = s.changed[:0]

	s.notice(now)
	for len(s.timers) > 0 && !s.timers[0].sched.due.After(now) {
		t := heap.Pop(&s.timers).(*target)
		if t.sched.fresh || now.Sub(t.sched.due) > paceSlack {
			s.pace(t, now)
			continue
		}
		s.queue(t)
	}

	if behind := now.Add(-paceSlack); s.nextPace.Before(behind) {
		s.nextPace = behind
	}
	for s.paced.len() > 0 && !s.nextPace.After(now) {
		t := s.paced.pop()
		if s.gone(t) {
			continue
		}
		if t.sched.fresh {
			t.sched.due = now // waiting for its turn makes nobody late
		}
		s.queue(t)
		s.nextPace = s.nextPace.Add(paceGap)
	}

	for workers := s.limit(); s.ready.len()+s.hanging.len() > 0 && s.busy < workers; {
		if t := s.nextReady(); !s.gone(t) {
			starts = append(starts, s.start(ctx, t, now))
		}
	}

	wait := MaxInterval
	if len(s.timers) > 0 {
		wait = s.timers[0].sched.due.Sub(now)
	}
	if s.paced.len() > 0 {
		wait = min(wait, s.nextPace.Sub(now))
	}
	if s.busy > 0 {
		wait = min(wait, lookEvery)
	}
	return starts, wait
}

// settle makes t's schedule follow what Acquire and Release have changed, or
// gives t its next place after a probe whose result nobody wants.
func (s *Service) settle(t *target, now time.Time) {
	d := &t.sched
	reborn := d.life != t.life
	d.life = t.life
	switch d.place {
	case inFlight:
		if t.refs == 0 || reborn {
			d.cancel()
		}
		return
	case pacing, ready: // its turn comes, or gone drops it
		if reborn {
			d.fresh, d.due = true, now
		}
		return
	case waiting:
		if t.refs > 0 && !reborn && !d.fresh {
			s.reschedule(t, now)
			return
		}
		heap.Remove(&s.timers, int(d.index))
		d.place = nowhere
	}
	if s.gone(t) {
		return
	}
	due := now.Add(draw(t.pace().InitialJitter, s.rand))
	if !d.fresh || due.Before(d.due) { // another sharer never makes it later
		d.due = due
	}
	d.fresh = true
	if d.due.After(now) {
		s.await(t)
	} else {
		s.pace(t, now)
	}
}

// gone forgets t, which has just been taken from its place, if nobody refers to
// it any more.
func (s *Service) gone(t *target) bool {
	if t.refs > 0 {
		return false
	}
	t.sched.place = nowhere
	s.remove(t)
	return true
}

// queue has t, which is due, wait for a worker. Endpoints that hang and those that
// answer take turns, so that many of the former, whose probes take their whole
// timeouts, do not keep the latter waiting where workers are few.
func (s *Service) queue(t *target) {
	t.sched.place = ready
	if t.sched.hangs {
		s.hanging.push(t)
	} else {
		s.ready.push(t)
	}
}

// nextReady takes the next that is due; there is one.
func (s *Service) nextReady() *target {
	switch {
	case s.hanging.len() == 0:
		return s.ready.pop()
	case s.ready.len() == 0:
		return s.hanging.pop()
	case s.ready.unknown.len() > 0: // goes first
		return s.ready.pop()
	}
	s.turn = !s.turn
	if s.turn && s.hanging.first().sched.due.Before(s.ready.known.first().sched.due) {
		return s.hanging.pop()
	}
	return s.ready.pop()
}

// await has t, which has a due time, wait for it.
func (s *Service) await(t *target) {
	t.sched.place = waiting
	heap.Push(&s.timers, t)
}

// pace has t, which could start now, wait for its turn.
func (s *Service) pace(t *target, now time.Time) {
	if s.paced.len() == 0 && s.nextPace.Before(now) {
		s.nextPace = now
	}
	t.sched.place = pacing
	s.paced.push(t)
}

// reschedule moves the next start of a waiting t to where its new cadence puts
// it. A reload may make thousands due at once this way, hence the pace.
func (s *Service) reschedule(t *target, now time.Time) {
	d := &t.sched
	d.due = d.started.Add(t.next(s.rand))
	if d.due.After(now) {
		heap.Fix(&s.timers, int(d.index))
		return
	}
	heap.Remove(&s.timers, int(d.index))
	d.fresh = true
	s.pace(t, now)
}

// start gives t to a worker and returns what the worker is to run.
func (s *Service) start(ctx context.Context, t *target, now time.Time) func() result {
	d, c := &t.sched, t.pace()
	if now.Sub(d.due) > c.interval {
		s.late++
	}
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	d.place, d.fresh, d.started, d.cancel = inFlight, false, now, cancel
	s.busy++
	p, life, limit, panics := t.what.probe, t.life, c.Timeout, s.panics
	return func() result {
		defer cancel()
		r := probe(ctx, p, t.addr, panics)
		r.t, r.life, r.limit = t, life, limit
		return r
	}
}

// noResult appends what is to be called after a probe that lacked what is
// local. mu is held.
func (s *Service) noResult(t *target, r result, calls []func()) []func() {
	if s.told.IsZero() || r.ended.Sub(s.told) >= localEvery {
		s.told = r.ended
		kind := t.what.kind.Kind
		calls = append(calls, func() {
			s.log.Warn("probes give no result, the reason is local", "endpoint", t.addr.String(), "check", kind, "err", r.reason)
		})
	}
	if n := t.locals.Load(); n < stuckAfter {
		if t.locals.Store(n + 1); n+1 < stuckAfter {
			return calls
		}
		for _, v := range t.verdicts {
			for _, ref := range v.refs {
				if ref.ask.OnChange != nil {
					calls = append(calls, ref.ask.OnChange)
				}
			}
		}
	}
	return calls
}

// finish takes a result and returns what is to be called once mu is free.
func (s *Service) finish(r result) (calls []func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.notice(time.Now())
	s.busy--
	t := r.t
	r.took, r.stood = r.ended.Sub(t.sched.started), t.sched.started.Before(s.stood)
	r.cut = r.timedOut && r.took >= r.limit
	if r.timedOut && r.stood {
		r.local, r.reason = true, r.reason+", while this process stood still"
	}
	t.sched.place, t.sched.cancel = nowhere, nil
	t.sched.hangs = r.timedOut
	if t.refs == 0 || t.life != r.life {
		t.what.kind.Discarded++
		if !t.changed { // else the next step settles it
			s.settle(t, r.ended)
		}
		return nil
	}
	switch {
	case r.local:
		t.what.kind.Local++
		t.local = r.reason
	case r.reason == "":
		t.what.kind.Passed++
	case r.timedOut:
		t.what.kind.TimedOut++
	default:
		t.what.kind.Failed++
	}
	var changed []*verdict
	var news bool
	first := t.last.ended.IsZero()
	if r.local {
		calls = s.noResult(t, r, calls)
	} else {
		t.locals.Store(0)
		changed, news = t.record(r)
	}
	for _, v := range t.verdicts {
		if v.loggers > 0 && (r.local || v.lastFailure == momentOf(r.ended)) {
			kind, reason := t.what.kind.Kind, cmp.Or(t.local, v.lastError)
			calls = append(calls, func() {
				s.log.Warn("probe failed", "endpoint", t.addr.String(), "check", kind, "err", reason)
			})
			break
		}
	}
	if news {
		s.changes++
	}
	for _, v := range changed {
		state, kind, refs, reason := v.word, t.what.kind.Kind, len(v.refs), ""
		if !v.passing {
			reason = v.lastError
		}
		calls = append(calls, func() {
			level := slog.LevelInfo
			if first && state == lbcore.HealthHealthy {
				level = slog.LevelDebug // of thousands at the start
			}
			s.log.Log(context.Background(), level, "probe verdict changed", "endpoint", t.addr.String(), "check", kind,
				"state", state.String(), "sharers", refs, "err", reason)
		})
		for _, ref := range v.refs {
			if ref.ask.OnChange != nil {
				calls = append(calls, ref.ask.OnChange)
			}
		}
	}
	t.sched.due = t.sched.started.Add(t.next(s.rand))
	if soon := r.ended.Add(localRetry/2 + time.Duration(s.rand(int64(localRetry/2)))); r.local && soon.Before(t.sched.due) {
		t.sched.due, t.sched.fresh = soon, true // at the pace
	}
	s.await(t)
	return calls
}
