package main

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// state is who was there, from when until when; a zero to is until now.
type state struct {
	who      []int
	from, to time.Time
}

// hold is a time from start to end in which all that was in force since from stays so: a
// source was away, or another process began with what the one before had known. A zero end
// is not over yet.
type hold struct {
	from, start, end time.Time
}

// timeline is what was in force of one thing: the members of a cluster, or who was
// healthy.
type timeline struct {
	name string
	lag  time.Duration // how long the agent may take to know, by its settings

	mu     sync.Mutex
	states []state
	holds  []*hold
}

// kept is how many states and holds there are at most: what is older is older than any
// connection.
const kept = 10_000

// publish says who is there from now on.
func (tl *timeline) publish(who []int) {
	tl.mu.Lock()
	defer tl.mu.Unlock()
	now := time.Now()
	if n := len(tl.states); n > 0 {
		tl.states[n-1].to = now
	}
	tl.states = append(bounded(tl.states), state{who: slices.Clone(who), from: now})
}

// leave has all that was in force ago or since stay so, with what is said meanwhile,
// until back is called.
func (tl *timeline) leave(ago time.Duration) (back func()) {
	now := time.Now()
	h := &hold{from: now.Add(-ago), start: now}
	tl.held(h)
	return func() {
		tl.mu.Lock()
		defer tl.mu.Unlock()
		h.end = time.Now()
	}
}

// held adds a hold.
func (tl *timeline) held(h *hold) {
	tl.mu.Lock()
	defer tl.mu.Unlock()
	tl.holds = append(bounded(tl.holds), h)
}

// bounded forgets the older half of what are too many.
func bounded[E any](all []E) []E {
	if n := len(all); n > kept {
		return slices.Delete(all, 0, n/2)
	}
	return all
}

// now returns who is there.
func (tl *timeline) now() []int {
	tl.mu.Lock()
	defer tl.mu.Unlock()
	return slices.Clone(tl.states[len(tl.states)-1].who)
}

// had reports whether somebody was there in a state in force between from and to.
func (tl *timeline) had(who int, from, to time.Time) bool {
	tl.mu.Lock()
	defer tl.mu.Unlock()
	if tl.said(who, from, to) {
		return true
	}
	for _, h := range slices.Backward(tl.holds) {
		if h.start.After(to) || tl.over(h.end, from) {
			continue
		}
		until := to
		if !h.end.IsZero() && h.end.Before(to) {
			until = h.end
		}
		if tl.said(who, h.from, until) {
			return true
		}
	}
	return false
}

// said reports whether somebody was there in a state that was said at to at the latest,
// and not over at from.
func (tl *timeline) said(who int, from, to time.Time) bool {
	for _, s := range slices.Backward(tl.states) {
		if tl.over(s.to, from) {
			return false // and so are those before
		}
		if !s.from.After(to) && slices.Contains(s.who, who) {
			return true
		}
	}
	return false
}

// over reports whether the agent knows at a moment that something has ended.
func (tl *timeline) over(end, at time.Time) bool {
	return !end.IsZero() && end.Add(tl.lag).Before(at)
}

// evidence returns the newest states and holds.
func (tl *timeline) evidence() string {
	tl.mu.Lock()
	defer tl.mu.Unlock()
	var b strings.Builder
	fmt.Fprintf(&b, "    %s (lag %s):\n", tl.name, tl.lag)
	for _, s := range tl.states[max(0, len(tl.states)-8):] {
		fmt.Fprintf(&b, "      %s to %s: %v\n", s.from.Format(clock), orNow(s.to), s.who)
	}
	for _, h := range tl.holds[max(0, len(tl.holds)-4):] {
		fmt.Fprintf(&b, "      %s to %s: what was in force since %s\n", h.start.Format(clock), orNow(h.end), h.from.Format(clock))
	}
	return b.String()
}

func orNow(t time.Time) string {
	if t.IsZero() {
		return "now"
	}
	return t.Format(clock)
}

const clock = "15:04:05.000"
