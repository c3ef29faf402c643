package main

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"time"
)

// drainTimeout is that of an agent that is restarted. The default of drain_spread is half
// of it.
const drainTimeout = 10 * time.Second

// heldEach is how many connections of each cluster are held over a takeover, and
// heldSize what each of them sends.
const (
	heldEach = 2
	heldSize = 64 << 10
)

// restart is one that is over. Connections that began before to may be cut after cut.
type restart struct {
	takeover bool
	from, to time.Time
	cut      time.Time
}

// restart exchanges the agent for another process, by stop and start or by a takeover in
// turn.
func (s *soak) restart(all []int) {
	s.endBefore()
	s.mu.Lock()
	s.restarting = true
	s.mu.Unlock()
	r := restart{takeover: s.takeovers <= s.stops, from: time.Now()}
	if r.takeover {
		s.takeovers++
		r.cut = s.takeover(all)
	} else {
		s.stops++
		r.cut = r.from
		s.stopAndStart()
	}
	r.to = time.Now()
	s.mu.Lock()
	s.restarting = false
	s.restarts = append(s.restarts, r)
	postponed := s.postponed
	s.postponed = nil
	s.mu.Unlock()
	for _, e := range postponed {
		s.judge(e)
	}
}

// isPostponed keeps what can't be judged yet.
func (s *soak) isPostponed(e exchanged) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.restarting {
		s.postponed = append(s.postponed, e)
	}
	return s.restarting
}

// mayBeCut reports whether a restart may have cost a connection, and counts it.
func (s *soak) mayBeCut(e exchanged) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.restarts {
		if !e.began.Before(r.to) || !e.ended.After(r.cut) {
			continue
		}
		if r.takeover {
			s.late++
		} else {
			s.cut++
		}
		return true
	}
	return false
}

// lastRestart returns the newest restart, as evidence.
func (s *soak) lastRestart() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.restarts) == 0 {
		return "    no restart yet\n"
	}
	r := s.restarts[len(s.restarts)-1]
	kind := "stop and start"
	if r.takeover {
		kind = "takeover"
	}
	return fmt.Sprintf("    the last restart, by %s: %s to %s, may cut from %s on\n", kind, r.from.Format(clock), r.to.Format(clock), r.cut.Format(clock))
}

// endBefore waits until the agent that was taken over from has ended.
func (s *soak) endBefore() {
	if s.before == nil {
		return
	}
	if code := s.before.wait(); code != 0 {
		s.wrong("the agent that was taken over from has ended with %d: %s", code, s.before.log)
	}
	s.before = nil
}

// timelines returns all there are.
func (s *soak) timelines() []*timeline {
	all := []*timeline{s.healthy}
	for _, c := range s.clusters {
		all = append(all, c.members)
	}
	return all
}

// stopAndStart has the agent drain and starts it again. What its sources have said before
// stays in force until they have said something to the new one.
func (s *soak) stopAndStart() {
	for _, tl := range s.timelines() {
		defer tl.leave(s.o.within)()
	}
	if code := s.a.stop(); code != 0 {
		s.wrong("the agent has ended with %d: %s", code, s.a.log)
	}
	s.a.process = s.a.launch()
	if !s.a.until(s.a.fresh) {
		s.notFresh()
	}
}

func (s *soak) notFresh() {
	_, body, err := s.a.ask("GET", "/ready")
	s.wrong("the agent is not ready after a restart: %v %s", err, body)
}

// takeover has another process take the place of the agent while members and health
// change all the while, and returns from when on the one before may cut its connections. That one alone
// serves until the next one is ready, and obeys its sources as ever. What the next one
// begins with is what the one before knew at a moment since its start, and stays in force
// until its own sources have answered.
func (s *soak) takeover(all []int) (cut time.Time) {
	began := time.Now()
	taken := make(chan struct{})
	var held sync.WaitGroup
	for _, c := range s.clusters {
		for range heldEach {
			held.Go(func() { s.judge(s.exchange(c, heldSize, func() { <-taken })) })
			s.held++
		}
	}
	s.before = s.a.process
	s.a.process = s.a.launch("-takeover")
	until := func(ok func() bool) bool {
		return s.a.until(func() bool {
			s.changeOne(all) // each time: it takes but some 50 ms
			if rand.IntN(2) == 0 {
				s.flap(all)
			}
			return ok()
		})
	}
	ok := until(func() bool { return !s.a.said("has taken over").IsZero() })
	close(taken)
	held.Wait()
	if !ok {
		s.wrong("the next agent has not taken over: %s", s.a.log)
		s.a.kill()
		s.a.process, s.before = s.before, nil
		return began
	}
	// Until it drains the one before may answer at the admin interface's socket.
	if !until(func() bool { return !s.before.said("draining").IsZero() }) {
		s.wrong("the agent that was taken over from does not drain: %s", s.before.log)
	}
	if !until(s.a.fresh) {
		s.notFresh()
	}
	ready := s.a.said("ready") // it accepts later
	for _, tl := range s.timelines() {
		tl.held(&hold{from: began.Add(-s.o.within), start: ready, end: time.Now()})
	}
	return ready.Add(drainTimeout / 2)
}
