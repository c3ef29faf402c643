package xds

import (
	"container/heap"
	"time"

	"gatehouse.internal/xds/internal/core"
)

// timers are the core's timers. Setting, stopping and firing one costs the
// logarithm of their number, so that as many as there are names are no burden.
type timers struct {
	running map[core.Timer]*timer
	queue   timerQueue
}

type timer struct {
	core.Timer
	at    time.Time
	index int // in the queue
}

func newTimers() *timers { return &timers{running: make(map[core.Timer]*timer)} }

// start has t fire at a time.
func (ts *timers) start(t core.Timer, at time.Time) {
	ts.stop(t)
	e := &timer{Timer: t, at: at}
	ts.running[t] = e
	heap.Push(&ts.queue, e)
}

func (ts *timers) stop(t core.Timer) {
	if e := ts.running[t]; e != nil {
		heap.Remove(&ts.queue, e.index)
		delete(ts.running, t)
	}
}

// next returns when the next timer fires, or the zero Time.
func (ts *timers) next() time.Time {
	if len(ts.queue) == 0 {
		return time.Time{}
	}
	return ts.queue[0].at
}

// due returns a timer that is due, which is not running any more, and whether
// there was one.
func (ts *timers) due(now time.Time) (core.Timer, bool) {
	if len(ts.queue) == 0 || ts.queue[0].at.After(now) {
		return core.Timer{}, false
	}
	t := ts.queue[0].Timer
	ts.stop(t)
	return t, true
}

// timerQueue is a heap, the next timer first.
type timerQueue []*timer

func (q timerQueue) Len() int           { return len(q) }
func (q timerQueue) Less(i, j int) bool { return q[i].at.Before(q[j].at) }

func (q timerQueue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].index, q[j].index = i, j
}

func (q *timerQueue) Push(x any) {
	e := x.(*timer)
	e.index = len(*q)
	*q = append(*q, e)
}

func (q *timerQueue) Pop() any {
	last := len(*q) - 1
	e := (*q)[last]
	(*q)[last] = nil
	*q = (*q)[:last]
	return e
}
