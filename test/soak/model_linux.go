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

// timeline is what was in force of one thing: the members of a cluster, or who was
// healthy.
type timeline struct {
	name string
	lag  time.Duration // how long the agent may take to know, by its settings

	mu     sync.Mutex
	states []state
	away   int // who was there stays in force while it is above 0
}

// publish says who is there from now on.
func (tl *timeline) publish(who []int) {
	tl.mu.Lock()
	defer tl.mu.Unlock()
	tl.states = append(tl.states, state{who: slices.Clone(who), from: time.Now()})
	tl.settle()
}

// leave has all that is in force stay so until back is called as often.
func (tl *timeline) leave() {
	tl.mu.Lock()
	defer tl.mu.Unlock()
	tl.away++
}

func (tl *timeline) back() {
	tl.mu.Lock()
	defer tl.mu.Unlock()
	tl.away--
	tl.settle()
}

// settle ends all states but the newest, unless they are held.
func (tl *timeline) settle() {
	if tl.away > 0 {
		return
	}
	now := time.Now()
	for i := range tl.states[:max(len(tl.states)-1, 0)] {
		if tl.states[i].to.IsZero() {
			tl.states[i].to = now
		}
	}
	if n := len(tl.states); n > 10_000 { // what is older than any connection
		tl.states = slices.Delete(tl.states, 0, n/2)
	}
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
	for _, s := range slices.Backward(tl.states) {
		if !s.to.IsZero() && s.to.Add(tl.lag).Before(from) {
			return false // and so are those before
		}
		if !s.from.After(to) && slices.Contains(s.who, who) {
			return true
		}
	}
	return false
}

// evidence returns the newest states.
func (tl *timeline) evidence() string {
	tl.mu.Lock()
	defer tl.mu.Unlock()
	var b strings.Builder
	fmt.Fprintf(&b, "    %s (lag %s, away %d):\n", tl.name, tl.lag, tl.away)
	for _, s := range tl.states[max(0, len(tl.states)-8):] {
		to := "now"
		if !s.to.IsZero() {
			to = s.to.Format(clock)
		}
		fmt.Fprintf(&b, "      %s to %s: %v\n", s.from.Format(clock), to, s.who)
	}
	return b.String()
}

const clock = "15:04:05.000"
