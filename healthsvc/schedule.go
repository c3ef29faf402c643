package healthsvc

import (
	"context"
	"time"
)

// The pace of first and overdue probes.
const (
	paceGap = time.Second / 2000
	// paceSlack is how late a timer may fire and still start its probe at
	// once, and how far paced starts may run behind before those that were
	// missed are forgotten rather than made up for. It bounds the herd after a
	// pause and hides the coarseness of timers.
	paceSlack = 10 * time.Millisecond
)

// place is where the scheduler keeps a target. A target is in one place.
type place uint8

const (
	nowhere  place = iota
	waiting        // in the timer heap
	pacing         // due; in the queue of paced starts
	ready          // due; in the queue for a worker
	inFlight       // with a worker
)

// schedule is the scheduler's part of a target.
type schedule struct {
	due     time.Time
	started time.Time // start of the newest probe
	cancel  context.CancelFunc
	index   int32  // in the timer heap
	life    uint32 // the life of the target that place is about
	place   place
	fresh   bool // the next probe is due when its turn at the pace comes
	hangs   bool // the last probe timed out
}

// timers is a heap.Interface, the earliest due first.
type timers []*target

func (h timers) Len() int           { return len(h) }
func (h timers) Less(i, j int) bool { return h[i].sched.due.Before(h[j].sched.due) }

func (h timers) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].sched.index, h[j].sched.index = int32(i), int32(j)
}

func (h *timers) Push(x any) {
	t := x.(*target)
	t.sched.index = int32(len(*h))
	*h = append(*h, t)
}

func (h *timers) Pop() any {
	old := *h
	n := len(old) - 1
	t := old[n]
	old[n] = nil
	*h = old[:n]
	return t
}

// line is a queue, first in, first out.
type line struct {
	q    []*target
	head int
}

func (l *line) len() int { return len(l.q) - l.head }

func (l *line) push(t *target) { l.q = append(l.q, t) }

// first is what pop takes.
func (l *line) first() *target { return l.q[l.head] }

// pop takes the first of a line that is not empty. Taken places are given back
// when they are half of the slice, which costs O(1) a pop in the long run.
func (l *line) pop() *target {
	t := l.q[l.head]
	l.q[l.head] = nil
	l.head++
	if 2*l.head >= len(l.q) {
		n := copy(l.q, l.q[l.head:])
		clear(l.q[n:])
		l.q, l.head = l.q[:n], 0
	}
	return t
}

// queue has two lines: targets without a result go first, so that those that a
// reload has made due at once do not keep a new one waiting.
type queue struct{ unknown, known line }

func (q *queue) len() int { return q.unknown.len() + q.known.len() }

func (q *queue) push(t *target) {
	if t.last.ended.IsZero() {
		q.unknown.push(t)
	} else {
		q.known.push(t)
	}
}

// pop takes the first of a queue that is not empty.
func (q *queue) pop() *target {
	if q.unknown.len() > 0 {
		return q.unknown.pop()
	}
	return q.known.pop()
}

// next draws the time from the start of the last probe to the start of the next.
func (t *target) next(random func(n int64) int64) time.Duration {
	p := t.pace()
	return p.jittered(p.interval, random)
}

// load is what one key may take of the workers, if all of its probes time out.
type load struct {
	share   uint64        // of a worker, in millionths
	timeout time.Duration // the longest; 0 without asks
}

// loads sums them up.
type loads struct {
	share    uint64
	timeouts map[time.Duration]int // how many keys have this longest timeout
	limit    int                   // 0: to be worked out
}

// load returns what t's asks come to.
func (t *target) load() (l load) {
	shortest := MaxInterval
	for i := range t.asks {
		shortest = min(shortest, t.asks[i].shortest())
		l.timeout = max(l.timeout, t.asks[i].Timeout)
	}
	l.share = uint64(1e6 * min(1, float64(l.timeout)/float64(shortest)))
	return l
}

// change has a key weigh something else than before.
func (s *loads) change(before, l load) {
	if l == before {
		return
	}
	s.share += l.share - before.share
	if n := s.timeouts[before.timeout]; n > 1 {
		s.timeouts[before.timeout] = n - 1
	} else {
		delete(s.timeouts, before.timeout)
	}
	if l.timeout > 0 {
		s.timeouts[l.timeout]++
	}
	s.limit = 0
}

// limit returns how many probes may be in flight. mu is held.
func (s *Service) limit() int {
	if s.workers > 0 {
		return s.workers
	}
	l := &s.loads
	if l.limit == 0 {
		var longest time.Duration
		for d := range l.timeouts {
			longest = max(longest, d)
		}
		steady, burst := int(l.share/1e6)+1, int(min(longest/paceGap, MaxWorkers))
		l.limit = min(max(steady, burst), s.most)
	}
	return l.limit
}
