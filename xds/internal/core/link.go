package core

import "slices"

// nobody is the server of a resource whose version no server is told.
const nobody = -1

// link is the stream to one server. Of several, those up to the active one are
// started: each but the active one has failed and is tried again meanwhile.
// Source: gRFC A71.
type link struct {
	index   int
	variant Variant

	waiting  bool // TimerReconnect runs
	failing  bool // the last stream ended without a response
	failures int  // streams in a row that did

	// Of the stream.
	open    bool
	first   bool            // no request was made yet
	heard   bool            // a response came
	subs    []*subscription // by the types of the Core
	sending *subscription   // whose request is on its way
	queue   []*subscription // with a request due, first come first served
}

// subscription is what was said about one type on one stream.
type subscription struct {
	t       *typeState
	version string // the last accepted, over all streams to this server

	// Of the stream.
	nonce   string
	asked   bool     // a request was made
	listed  bool     // a request had names, or the taking back of everything: an empty list no longer means everything
	due     bool     // is in the queue
	answers []answer // that are owed
	delayed bool     // those that are throttled wait for TimerNack
	sent    asking   // the last request made
	before  asking   // the one before it
	fresh   bool     // there was none before it
	// ever has the names that were asked for while another server was the active
	// one, in whose stead this one may answer what nobody wants any more and
	// somebody will again. Such a name is followed for a while too.
	ever map[string]bool
}

// asking is what a request asked for.
type asking struct {
	names []string // sorted
	all   bool
}

// answer is what a response is answered with.
type answer struct {
	nonce     string
	detail    string // of a NACK
	throttled bool
}

// Start asks for the first stream, to the first server.
func (c *Core) Start() { c.emit(Connect{0}) }

// Connected says that the stream to a server is open, and of which variant it
// is. Nothing of an older stream to it may be reported any more.
func (c *Core) Connected(server int, v Variant) {
	l := c.links[server]
	if server > c.active {
		return
	}
	l.open, l.first, l.heard = true, true, false
	for _, s := range l.subs {
		if server == c.active {
			// The server knows of no subscription, so none has to be seen to end.
			for _, name := range s.t.names() {
				if r := s.t.res[name]; !s.t.wants(r) {
					c.drop(s.t, r)
				}
			}
		}
		if len(s.t.byBody) == 0 || v != l.variant {
			s.version = "" // a version tells what is held
		}
		if v != l.variant {
			for _, r := range s.t.res {
				if r.from == server {
					r.from = nobody // the variants have versions of their own
				}
			}
		}
		l.enqueue(s)
	}
	l.variant = v
}

// Closed says that the stream to a server has ended, or could not be opened, and
// how to go on.
func (c *Core) Closed(server int, reason string, how Ending) {
	l := c.links[server]
	if server > c.active || l.waiting {
		return
	}
	heard := l.heard
	c.reset(l)
	if how == Again {
		c.emit(Connect{server})
		return
	}
	attempt := 0
	if heard {
		l.failures = 0
	} else {
		l.failures++
		attempt, l.failing = l.failures, true
		if how == Refused {
			attempt = Longest
		}
		if !c.fallBack() && server == c.active {
			c.unreachable = true
			c.emit(Unreachable{reason})
		}
	}
	if how == Unfit {
		attempt = Longest
	}
	l.waiting = true
	c.emit(StartTimer{Timer{Kind: TimerReconnect, Server: server}, attempt, 0})
}

// reset ends what belongs to the stream of l.
func (c *Core) reset(l *link) {
	l.open, l.heard, l.sending, l.queue = false, false, nil, nil
	for _, s := range l.subs {
		c.stopNack(l, s)
		if l.index == c.active {
			for _, name := range s.t.names() {
				r := s.t.res[name]
				c.stop(s.t, r)
				r.refused, r.repeats = refusal{}, 0
				s.t.count(r)
			}
			s.t.unnamed, s.t.unnamedRepeats = "", 0
		}
		*s = subscription{t: s.t, version: s.version}
	}
}

// fallBack starts the next server if the active one fails and something is
// wanted of which nothing is known. It reports whether it did.
func (c *Core) fallBack() bool {
	if c.active+1 == len(c.links) || !c.links[c.active].failing || !c.lacks() {
		return false
	}
	// What the servers before it are asked for by a version, they may not send;
	// and that they send is what the return to them depends on.
	for _, l := range c.links[:c.active+1] {
		for _, s := range l.subs {
			s.version = ""
		}
	}
	for _, t := range c.types {
		for _, r := range t.res {
			r.from = nobody
		}
	}
	c.active++
	c.emit(Active{c.active})
	c.emit(Connect{c.active})
	return true
}

// lacks reports whether something is wanted of which nothing is known, or only
// what it was in an earlier run.
func (c *Core) lacks() bool {
	for _, t := range c.types {
		if t.wildcard && !t.answered {
			return true
		}
		for _, r := range t.res {
			if r.named && (!r.known() || r.restored) {
				return true
			}
		}
	}
	return false
}

// comeBack ends the servers after l, which has answered. What they gave stays
// until l has given it too, or has not in time.
func (c *Core) comeBack(l *link) {
	for _, k := range c.links[l.index+1 : c.active+1] {
		if k.waiting {
			c.emit(StopTimer{Timer{Kind: TimerReconnect, Server: k.index}})
		} else {
			c.emit(Disconnect{k.index})
		}
		c.reset(k)
		k.waiting, k.failing, k.failures = false, false, 0
		for _, s := range k.subs {
			s.version = ""
		}
	}
	c.active = l.index
	c.emit(Active{c.active})
	for _, s := range l.subs {
		told := s.sent
		if s == l.sending {
			told = s.before
		}
		if told.all && !l.complete(s.t) {
			told.names = s.t.names()
		}
		for _, name := range told.names {
			c.await(l, s.t, name, false)
		}
	}
}

// complete reports whether a response without a resource of t says that it is
// gone.
func (l *link) complete(t *typeState) bool { return l.variant == StateOfTheWorld && t.Complete }

// enqueue has the next Flush see if s needs a request.
func (l *link) enqueue(s *subscription) {
	if l.open && !s.due {
		s.due = true
		l.queue = append(l.queue, s)
	}
}

// answerable returns the position of the first answer that is due, or -1.
func (s *subscription) answerable() int {
	return slices.IndexFunc(s.answers, func(a answer) bool { return !a.throttled || !s.delayed })
}

// needs reports whether s has something to say, given what it asks for now.
func (s *subscription) needs(ask asking) bool {
	if !s.asked {
		return ask.all || len(ask.names) > 0
	}
	return s.answerable() >= 0 || ask.all != s.sent.all || !same(ask.names, s.sent.names)
}

// Flush makes the requests that are due, one a server at most, and none while
// another is on its way.
func (c *Core) Flush() {
	c.fallBack()
	for _, l := range c.links {
		// Who has nothing to say keeps no place: the order of requests must not
		// depend on whether a response or the news of a sent request came first.
		l.queue = slices.DeleteFunc(l.queue, func(s *subscription) bool {
			s.due = s.needs(l.ask(s))
			return !s.due
		})
		if l.sending != nil || len(l.queue) == 0 {
			continue
		}
		s := l.queue[0]
		l.queue = l.queue[1:]
		s.due = false
		ask := l.ask(s)
		var req Request
		if l.variant == Delta {
			req, ask = c.delta(l, s, ask)
		} else {
			req = c.stateOfTheWorld(l, s, ask)
		}
		if l.index != c.active {
			if s.ever == nil {
				s.ever = make(map[string]bool, len(ask.names))
			}
			for _, name := range ask.names {
				s.ever[name] = true
			}
		}
		req.Node = l.first
		l.first = false
		s.before, s.sent, s.fresh = s.sent, ask, !s.asked
		s.asked, s.listed = true, s.listed || len(ask.names) > 0 || len(req.Unsubscribe) > 0
		l.sending = s
		c.emit(Send{l.index, req})
	}
}

// Sent says that the request of the last Send to a server has been sent. Only
// now it can be expected to answer, and timers begin.
func (c *Core) Sent(server int) {
	l := c.links[server]
	s := l.sending
	if s == nil {
		return
	}
	l.sending = nil
	l.enqueue(s) // there may be more to say
	if l.index != c.active {
		return
	}
	old, now := s.before, s.sent
	if old.all && !now.all {
		old.names = s.t.names() // of which the wildcard may have covered any
	}
	again := l.variant == Delta && !s.fresh && !old.all
	if now.all && !old.all && !l.complete(s.t) {
		for _, name := range s.t.names() {
			c.await(l, s.t, name, again)
		}
	}
	s.before = asking{}
	if same(old.names, now.names) {
		return
	}
	for len(old.names) > 0 || len(now.names) > 0 {
		switch {
		case len(now.names) == 0 || len(old.names) > 0 && old.names[0] < now.names[0]:
			c.release(s.t, old.names[0])
			old.names = old.names[1:]
		case len(old.names) == 0 || now.names[0] < old.names[0]:
			c.await(l, s.t, now.names[0], again)
			now.names = now.names[1:]
		default:
			old.names, now.names = old.names[1:], now.names[1:]
		}
	}
}

func (c *Core) stopNack(l *link, s *subscription) {
	if s.delayed {
		s.delayed = false
		c.emit(StopTimer{Timer{Kind: TimerNack, Type: s.t.URL, Server: l.index}})
	}
}
