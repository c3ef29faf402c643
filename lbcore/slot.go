package lbcore

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// The back-off between attempts of a build that fails.
const (
	minBackoff = 10 * time.Millisecond
	maxBackoff = time.Second
)

// request asks for a build. The snapshot in it is the whole bundle:
// membership, readiness and generation.
type request struct {
	snap *Snapshot
	at   time.Time // first asked for; kept over retries
}

// Slot is one selector of a Group: what it serves now, and the goroutine that
// replaces it. Its exported methods may be called from anywhere.
type Slot struct {
	group *Group
	cfg   SlotConfig
	id    string // cluster/selector
	keyed bool
	wake  chan struct{}
	pub   atomic.Pointer[published]

	mu      sync.Mutex
	pending *request

	// generation is stored after pub, so it may lag what is served but never
	// leads it.
	generation                   atomic.Uint64
	rebuilds, coalesced, failed  atomic.Uint64
	reused                       atomic.Uint64
	queueTime, buildTime, stored atomic.Int64
	lastErr                      atomic.Pointer[error]
}

// SlotStats describes a slot's rebuilds.
type SlotStats struct {
	// Generation is what the slot serves; 0 is the empty beginning.
	Generation uint64
	// Rebuilds were published. Coalesced requests were replaced by a newer one
	// before they were built, failed and cancelled builds included. Failed
	// counts the builds that ended in an error or a panic.
	Rebuilds, Coalesced, Failed uint64
	// Reused counts the rebuilds in storage that an earlier selector has left.
	Reused uint64
	// Queue is how long the last published build had been asked for when it
	// began, failed attempts included; Build is how long it took.
	Queue, Build time.Duration
	// Bytes is the storage of the published selector, rounded up to its class.
	Bytes int
	// Err is why the newest build failed, nil once one has succeeded.
	Err error
}

// Name returns the selector's name.
func (s *Slot) Name() string { return s.cfg.Name }

// Loads returns how the load is spread over the tiers of what the slot serves,
// as of the last UpdateLoads; see [TierLoad].
func (s *Slot) Loads() []TierLoad {
	pub := s.pub.Load()
	if pub == nil {
		return nil
	}
	return pub.tierLoads()
}

// Policy returns the name of the selector's policy.
func (s *Slot) Policy() string { return s.cfg.Policy }

// Stats returns the slot's present numbers.
func (s *Slot) Stats() SlotStats {
	st := SlotStats{
		Generation: s.generation.Load(),
		Rebuilds:   s.rebuilds.Load(), Coalesced: s.coalesced.Load(), Failed: s.failed.Load(),
		Reused: s.reused.Load(),
		Queue:  time.Duration(s.queueTime.Load()), Build: time.Duration(s.buildTime.Load()),
		Bytes: int(s.stored.Load()),
	}
	if err := s.lastErr.Load(); err != nil {
		st.Err = *err
	}
	return st
}

func (s *Slot) request(r request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pending != nil {
		s.coalesced.Add(1)
	}
	s.pending = &r
	poke(s.wake) // under the lock, so that take can't swallow a newer request's
}

// take returns the newest request, or nil.
func (s *Slot) take() *request {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.pending
	s.pending = nil
	select {
	case <-s.wake:
	default:
	}
	return r
}

// putBack makes r pending again unless a newer request is.
func (s *Slot) putBack(r *request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pending != nil {
		s.coalesced.Add(1)
		return
	}
	s.pending = r
}

func (s *Slot) peek() *request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pending
}

// run is the slot's goroutine.
func (s *Slot) run(ctx context.Context) {
	backoff := minBackoff
	for {
		for s.peek() == nil {
			select {
			case <-s.wake:
			case <-ctx.Done():
				return
			}
		}
		retry := s.rebuild(ctx)
		if ctx.Err() != nil {
			return
		}
		if !retry {
			backoff = minBackoff
			continue
		}
		timer := time.NewTimer(backoff)
		select {
		case <-timer.C:
			backoff = min(2*backoff, maxBackoff)
		case <-s.wake: // a newer generation
			backoff = minBackoff
		case <-ctx.Done():
			timer.Stop()
			return
		}
		timer.Stop()
	}
}

// rebuild passes the gate and builds the newest request. It returns true if
// the request is pending again because the build failed.
func (s *Slot) rebuild(ctx context.Context) (retry bool) {
	gate := s.group.cfg.Gate
	lane := &gate.small
	if r := s.peek(); r != nil && 8*r.snap.Set.Len() >= gate.cfg.SmallBuild {
		lane = &gate.large // to plan a build of so many takes its time too
	}
	var r *request
	var p *plan
	for {
		if gate.acquire(ctx, lane) != nil {
			return false
		}
		// Only now: whatever came while waiting is the newer one.
		if r = s.take(); r == nil {
			lane.release()
			return false
		}
		var err error
		if p, err = newPlan(s.cfg, s.group.cfg.Spread, r.snap, s.pub.Load(), gate.cfg.MaxStorage); err != nil {
			lane.release()
			_, bug := errors.AsType[*PanicError](err)
			if bug { // an error would come again of the same membership, a bug need not
				s.putBack(r)
			}
			s.fail(r, err)
			return bug
		}
		if lane.large || gate.lane(p.bytes()) == lane {
			break
		}
		s.putBack(r)
		lane.release()
		lane = &gate.large
	}
	defer lane.release()

	began := time.Now()
	region, used := gate.take(lane, p.bytes())
	pub, err := p.build(ctx, region, lane.large)
	if ctx.Err() != nil {
		gate.giveBack(lane, region)
		s.putBack(r)
		return false
	}
	if err != nil {
		gate.giveBack(lane, region)
		s.putBack(r)
		s.fail(r, err)
		return true
	}
	s.queueTime.Store(int64(began.Sub(r.at)))
	s.buildTime.Store(int64(time.Since(began)))
	if used {
		s.reused.Add(1)
	}
	s.publish(pub)
	return false
}

func (s *Slot) fail(r *request, err error) {
	s.failed.Add(1)
	s.lastErr.Store(&err)
	if f := s.group.cfg.OnError; f != nil {
		f(s.cfg.Name, r.snap.Generation, err)
	}
}

// withdraw takes what is published out of service.
func (s *Slot) withdraw() {
	if old := s.pub.Swap(nil); old != nil && old.region.bytes() > 0 {
		s.group.cfg.Gate.retire(s.id, old.region)
	}
	s.stored.Store(0)
}

func (s *Slot) publish(pub *published) {
	pub.updateLoads(s.group)
	if old := s.pub.Swap(pub); old != nil && old.region.bytes() > 0 {
		s.group.cfg.Gate.retire(s.id, old.region)
	}
	s.rebuilds.Add(1)
	s.stored.Store(int64(pub.region.bytes()))
	s.lastErr.Store(nil)
	s.generation.Store(pub.generation)
	s.group.published()
}
