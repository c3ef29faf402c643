package core

import (
	"maps"
	"slices"
)

// maxUnknown bounds the unknown type URLs that are remembered, and so logged.
const maxUnknown = 16

// Core is the state of the protocol. Make one with New.
type Core struct {
	types   []*typeState // in the order given, which is that of a new stream's requests
	effects []Effect
	unknown []string

	failures    int  // streams in a row that ended without a response
	unreachable bool // Unreachable was the last word

	// Of the stream.
	open    bool
	first   bool         // no request was made yet
	heard   bool         // a response came
	sending *typeState   // whose request is on its way
	queue   []*typeState // types with a request due, first come first served
}

// typeState is the state of one type.
type typeState struct {
	Type
	wildcard bool
	version  string // the last accepted
	res      map[string]*resource
	byBody   map[string]*resource // the held ones, to know them without decoding

	// What is told from a repeated refusal.
	refused string // version and reasons of the last one
	repeats int

	// Of the stream.
	nonce   string
	asked   bool   // a request was made
	listed  bool   // a request had names: an empty list no longer means everything
	due     bool   // is in the queue
	answer  bool   // the last response wants an answer
	detail  string // the error to answer with
	delayed bool   // the answer waits for its timer
	sent    asking // the last request made
	before  asking // the one before it
}

// asking is what a request asked for.
type asking struct {
	names []string // sorted
	all   bool
}

// resource is what is known of one name: it is subscribed to, or covered by a
// wildcard, or (neither) waits for its end.
type resource struct {
	name  string
	named bool // subscribed to by name

	held          bool // the next three are those of the last accepted version
	value         any
	body, version string

	err    string // why the newest version was refused
	part   any    // what could be read of it
	absent bool   // the server deleted it, or, if late, never sent it
	late   bool
	timer  TimerKind // TimerAbsent, TimerForget or 0
}

// New returns a Core for the given types. It does nothing before Start.
func New(types ...Type) *Core {
	c := new(Core)
	for _, t := range types {
		c.types = append(c.types, &typeState{
			Type: t, res: make(map[string]*resource), byBody: make(map[string]*resource),
		})
	}
	return c
}

func (c *Core) typ(url string) *typeState {
	for _, t := range c.types {
		if t.URL == url {
			return t
		}
	}
	return nil
}

func (c *Core) emit(e Effect) { c.effects = append(c.effects, e) }

// Take returns the effects since the last call, in order.
func (c *Core) Take() []Effect {
	e := c.effects
	c.effects = nil
	return e
}

// Start asks for the first stream.
func (c *Core) Start() { c.emit(Connect{}) }

// Connected says that a stream is open. Nothing of an older stream may be
// reported any more.
func (c *Core) Connected() {
	c.open, c.first, c.heard = true, true, false
	for _, t := range c.types {
		// The server knows of no subscription, so none has to be seen to end.
		for _, name := range t.names() {
			if r := t.res[name]; !t.wants(r) {
				t.drop(r)
			}
		}
		if len(t.byBody) == 0 {
			t.version = "" // a version tells what is held
		}
		t.refused, t.repeats = "", 0
		c.enqueue(t)
	}
}

// Closed says that the stream has ended, or could not be opened.
func (c *Core) Closed(reason string) {
	c.open, c.sending, c.queue = false, nil, nil
	for _, t := range c.types {
		c.stopNack(t)
		for _, name := range t.names() {
			c.stop(t, t.res[name])
		}
		t.nonce, t.asked, t.listed, t.due, t.answer, t.detail = "", false, false, false, false, ""
		t.sent, t.before = asking{}, asking{}
	}
	if c.heard {
		c.failures = 0
	} else {
		c.failures++
		c.unreachable = true
		c.emit(Unreachable{reason})
	}
	c.heard = false
	c.emit(StartTimer{Timer{Kind: TimerReconnect}, c.failures})
}

// Fired says that the time of t is over.
func (c *Core) Fired(t Timer) {
	if t.Kind == TimerReconnect {
		c.emit(Connect{})
		return
	}
	ty := c.typ(t.Type)
	if ty == nil {
		return
	}
	if t.Kind == TimerNack {
		if ty.delayed {
			ty.delayed = false
			c.enqueue(ty)
		}
		return
	}
	r := ty.res[t.Name]
	if r == nil || r.timer != t.Kind {
		return
	}
	r.timer = 0
	if t.Kind == TimerForget {
		ty.drop(r)
		return
	}
	r.absent, r.late = true, true
	if r.named {
		c.emit(Gone{ty.URL, r.name, true})
	}
}

// Subscribe asks for the resource of that name from now on; once a name is
// enough. What is known of it already is handed on at once. Wildcard is no name.
func (c *Core) Subscribe(url, name string) {
	t := c.typ(url)
	if t == nil || name == Wildcard {
		return
	}
	r := t.res[name]
	if r == nil {
		r = t.add(name)
	}
	if r.named {
		return
	}
	r.named = true
	if r.timer == TimerForget {
		c.stop(t, r)
	}
	c.replay(t, r)
	c.enqueue(t)
}

// Unsubscribe takes a Subscribe back. No effect names the resource any more,
// unless a wildcard covers it.
func (c *Core) Unsubscribe(url, name string) {
	t := c.typ(url)
	if t == nil || t.res[name] == nil || !t.res[name].named {
		return
	}
	r := t.res[name]
	r.named = false
	// Its state ends only when the server has been told: if it comes back
	// before, no request goes out and the server sends nothing again.
	if !c.open && !r.held && !t.wildcard {
		t.drop(r)
	} else if _, asked := slices.BinarySearch(t.sent.names, name); c.open && !asked {
		c.release(t, name)
	}
	c.enqueue(t)
}

// SubscribeAll asks for every resource of the type from now on. What is held
// already is handed on at once.
func (c *Core) SubscribeAll(url string) {
	t := c.typ(url)
	if t == nil || t.wildcard {
		return
	}
	t.wildcard = true
	for _, name := range t.names() {
		r := t.res[name]
		if r.timer == TimerForget {
			c.stop(t, r)
		}
		if !r.named {
			c.replay(t, r)
		}
	}
	c.enqueue(t)
}

// UnsubscribeAll takes SubscribeAll back. The protocol knows no way to say so
// on a stream that began with the empty list, unless there are names: until
// the stream ends the server then goes on sending, which is ignored.
func (c *Core) UnsubscribeAll(url string) {
	if t := c.typ(url); t != nil && t.wildcard {
		t.wildcard = false
		c.enqueue(t)
	}
}

// replay hands on what is known of r.
func (c *Core) replay(t *typeState, r *resource) {
	switch {
	case r.held:
		c.emit(Changed{t.URL, r.name, r.value})
	case r.absent:
		c.emit(Gone{t.URL, r.name, r.late})
	}
	if r.err != "" {
		c.emit(Invalid{t.URL, r.name, r.err, r.part})
	}
}

// enqueue has the next Flush see if t needs a request.
func (c *Core) enqueue(t *typeState) {
	if c.open && !t.due {
		t.due = true
		c.queue = append(c.queue, t)
	}
}

// needs reports whether t has something to say, given what it asks for now.
func (t *typeState) needs(ask asking) bool {
	if t.answer && !t.delayed {
		return true
	}
	if !t.asked {
		return ask.all || len(ask.names) > 0
	}
	return ask.all != t.sent.all || !slices.Equal(ask.names, t.sent.names)
}

// Flush makes the request that is due, if no other is on its way.
func (c *Core) Flush() {
	// Who has nothing to say keeps no place: the order of requests must not
	// depend on whether a response or the news of a sent request came first.
	c.queue = slices.DeleteFunc(c.queue, func(t *typeState) bool {
		t.due = t.needs(t.ask())
		return !t.due
	})
	if c.sending == nil && len(c.queue) > 0 {
		t := c.queue[0]
		c.queue = c.queue[1:]
		t.due = false
		ask := t.ask()
		c.stopNack(t) // whatever is said now answers the last response too
		req := t.request(ask)
		req.Node = c.first
		c.first = false
		t.before, t.sent = t.sent, ask
		t.asked, t.listed = true, t.listed || len(ask.names) > 0
		t.answer, t.detail = false, ""
		c.sending = t
		c.emit(Send{req})
	}
}

// Sent says that the request of the last Send has been sent. Only now the
// server can be expected to answer, and timers begin.
func (c *Core) Sent() {
	t := c.sending
	if t == nil {
		return
	}
	c.sending = nil
	old, now := t.before, t.sent
	if old.all && !now.all {
		old.names = t.names() // of which the wildcard may have covered any
	}
	t.before = asking{}
	for len(old.names) > 0 || len(now.names) > 0 {
		switch {
		case len(now.names) == 0 || len(old.names) > 0 && old.names[0] < now.names[0]:
			c.release(t, old.names[0])
			old.names = old.names[1:]
		case len(old.names) == 0 || now.names[0] < old.names[0]:
			c.await(t, now.names[0])
			now.names = now.names[1:]
		default:
			old.names, now.names = old.names[1:], now.names[1:]
		}
	}
}

// await starts the timer of a name that was sent for the first time, also if
// nobody wants it any more: it may be wanted again before the next request.
func (c *Core) await(t *typeState, name string) {
	r := t.res[name]
	if r != nil && !r.held && !r.absent && r.err == "" && r.timer == 0 {
		c.start(t, r, TimerAbsent)
	}
}

// release lets go of a name that the last request left out. Its state, even if
// there is no value yet, is kept for a while: the server may have ignored the
// request as stale, and what it sends now it won't send again.
func (c *Core) release(t *typeState, name string) {
	r := t.res[name]
	if r == nil {
		return
	}
	if r.timer == TimerAbsent {
		c.stop(t, r)
	}
	if !t.wants(r) && r.timer == 0 {
		c.start(t, r, TimerForget)
	}
}

func (c *Core) start(t *typeState, r *resource, k TimerKind) {
	r.timer = k
	c.emit(StartTimer{Timer{k, t.URL, r.name}, 0})
}

func (c *Core) stop(t *typeState, r *resource) {
	if r.timer != 0 {
		c.emit(StopTimer{Timer{r.timer, t.URL, r.name}})
		r.timer = 0
	}
}

func (c *Core) stopNack(t *typeState) {
	if t.delayed {
		t.delayed = false
		c.emit(StopTimer{Timer{Kind: TimerNack, Type: t.URL}})
	}
}

func (t *typeState) names() []string { return slices.Sorted(maps.Keys(t.res)) }

// wants reports whether anybody is to hear of r.
func (t *typeState) wants(r *resource) bool { return r.named || t.wildcard }

func (t *typeState) add(name string) *resource {
	r := &resource{name: name}
	t.res[name] = r
	return r
}

// clear takes the value from r.
func (t *typeState) clear(r *resource) {
	if r.held {
		delete(t.byBody, r.body)
		r.held, r.value, r.body, r.version = false, nil, "", ""
	}
}

func (t *typeState) drop(r *resource) {
	t.clear(r)
	delete(t.res, r.name)
}

// Dump returns the state of every type, in the order given to New.
func (c *Core) Dump() []TypeState {
	var out []TypeState
	for _, t := range c.types {
		s := TypeState{URL: t.URL, Version: t.version, Nonce: t.nonce, Wildcard: t.wildcard}
		for _, name := range t.names() {
			r := t.res[name]
			rs := ResourceState{
				Name: name, Subscribed: t.wants(r), State: "requested", Version: r.version, Error: r.err,
			}
			switch {
			case r.err != "":
				rs.State = "nacked"
			case r.held:
				rs.State = "acked"
			case r.absent:
				rs.State = "does_not_exist"
			}
			s.Resources = append(s.Resources, rs)
		}
		out = append(out, s)
	}
	return out
}
