package core

import (
	"maps"
	"slices"
)

// maxUnknown bounds the unknown type URLs that are remembered, and so logged.
const maxUnknown = 16

// The limits of what is held of one type, so that a server can't make the
// client grow without end. A resource over them is refused. Of those that are
// refused maxRefused bytes are kept for dumps.
const (
	maxResources = 1 << 18
	maxBytes     = 1 << 30
	maxRefused   = 64 << 20
)

// MaxName bounds the name of a resource, in bytes: names are asked for and
// logged. A longer one is refused, and must not be subscribed to.
const MaxName = 4 << 10

// Core is the state of the protocol. Make one with New.
type Core struct {
	types   []*typeState // in the order given, which is that of a new stream's requests
	links   []*link      // one a server, the preferred first
	active  int          // the last link that was started; those before it fail
	effects []Effect
	unknown []string

	unreachable bool // Unreachable was the last word

	maxResources, maxBytes, maxRefused int // a test has its own
}

// typeState is what is known of one type, whichever server said it.
type typeState struct {
	Type
	index    int // in Core.types
	wildcard bool
	answered bool // a response came while there was a wildcard
	res      map[string]*resource
	byBody   map[string]*resource // the held ones, to know them without decoding
	bytes    int                  // of what is kept: see resource.size
	badBytes int                  // of the refused bodies that are kept
	list     []string             // the names subscribed to, sorted; never written again
	stale    bool                 // list is to be made anew

	// What could not be named in the last response that had such resources.
	unnamed        string
	unnamedRepeats int
}

// resource is what is known of one name: it is subscribed to, or covered by a
// wildcard, or (neither) waits for its end.
type resource struct {
	name  string
	named bool // subscribed to by name

	held          bool // the next four are those of the last accepted version
	value         any
	body, version string
	from          int  // the server
	ttl           bool // TimerTTL runs
	restored      bool // it is of an earlier run, and no server has sent it since

	err      string // why the newest version was refused
	part     any    // what could be read of it
	partSize int    // of the body that part is from
	refused  refusal
	repeats  int    // how often the same was refused before
	bad      string // its body, if it is kept
	nack     Nack   // the last refusal, also if it is mended

	failed string    // why the server can't give it
	code   uint32    // of failed
	absent bool      // the server deleted it, or, if late, never sent it
	late   bool      //
	timer  TimerKind // TimerAbsent, TimerForget or 0

	counted int // of size in typeState.bytes
}

// refusal is the newest version that was refused on a stream, and why.
type refusal struct{ version, err string }

// size is what r keeps of what a server can make as long as it likes. Reasons
// have a limit of their own.
func (r *resource) size() int {
	return len(r.name) + len(r.body) + len(r.version) + len(r.refused.version) + r.partSize
}

// count has t know the size of r after a change.
func (t *typeState) count(r *resource) {
	t.bytes += r.size() - r.counted
	r.counted = r.size()
}

// New returns a Core for so many servers, at least one, of which the first is
// the preferred, and the given types. It does nothing before Start.
func New(servers int, types ...Type) *Core {
	c := &Core{maxResources: maxResources, maxBytes: maxBytes, maxRefused: maxRefused}
	for i, t := range types {
		c.types = append(c.types, &typeState{
			Type: t, index: i, res: make(map[string]*resource), byBody: make(map[string]*resource),
		})
	}
	for i := range max(servers, 1) {
		l := &link{index: i}
		for _, t := range c.types {
			l.subs = append(l.subs, &subscription{t: t})
		}
		c.links = append(c.links, l)
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

// Fired says that the time of t is over.
func (c *Core) Fired(t Timer) {
	if t.Server < 0 || t.Server >= len(c.links) {
		return
	}
	l := c.links[t.Server]
	if t.Kind == TimerReconnect {
		if l.waiting {
			l.waiting = false
			c.emit(Connect{l.index})
		}
		return
	}
	ty := c.typ(t.Type)
	if ty == nil {
		return
	}
	if t.Kind == TimerNack {
		if s := l.subs[ty.index]; s.delayed {
			s.delayed = false
			l.enqueue(s)
		}
		return
	}
	r := ty.res[t.Name]
	if r == nil {
		return
	}
	if t.Kind == TimerTTL {
		if r.ttl {
			r.ttl = false
			c.end(ty, r, Expired)
			for _, l := range c.links {
				l.subs[ty.index].version = "" // it told of r too
			}
		}
		return
	}
	if r.timer != t.Kind {
		return
	}
	r.timer = 0
	if t.Kind == TimerForget {
		c.drop(ty, r)
		return
	}
	if r.restored && ty.wildcard && !c.links[c.active].heard {
		c.start(ty, r, TimerAbsent) // a server that hangs has not left it out
		return
	}
	c.end(ty, r, TimedOut)
}

// end takes away what is known of r, for the given cause. It stays subscribed.
func (c *Core) end(t *typeState, r *resource, cause Cause) {
	wanted := t.wants(r)
	c.stop(t, r)
	if r.named || c.followed(t, r.name) {
		c.clear(t, r)
		c.mend(t, r)
		r.failed = ""
		r.absent, r.late = true, cause != Deleted
		t.count(r)
	} else {
		c.drop(t, r)
	}
	if wanted {
		c.emit(Gone{t.URL, r.name, cause})
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
	r.named, t.stale = true, true
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
	r, l := t.res[name], c.links[c.active]
	r.named, t.stale = false, true
	// Its state ends only when the server has been told: if it comes back
	// before, no request goes out and the server sends nothing again.
	if !l.open && !r.held && !t.wildcard {
		c.drop(t, r)
	} else if l.open && !c.asked(t, name) {
		c.release(t, name)
	}
	c.enqueue(t)
}

// asked reports whether the last request to the active server had the name.
func (c *Core) asked(t *typeState, name string) bool {
	_, asked := slices.BinarySearch(c.links[c.active].subs[t.index].sent.names, name)
	return asked
}

// followed reports whether the active server may still answer for a name that
// nobody wants: it may be wanted again, and the server then sends nothing anew.
func (c *Core) followed(t *typeState, name string) bool {
	l := c.links[c.active]
	s := l.subs[t.index]
	_, before := slices.BinarySearch(s.before.names, name)
	return c.asked(t, name) || l.sending == s && before
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

// UnsubscribeAll takes SubscribeAll back. In the state of the world there is no
// way to say so on a stream that began with the empty list, unless there are
// names, and in the incremental variant servers disagree: until the stream ends
// the server may go on sending, which is ignored.
func (c *Core) UnsubscribeAll(url string) {
	if t := c.typ(url); t != nil && t.wildcard {
		t.wildcard, t.answered = false, false
		c.enqueue(t)
	}
}

// replay hands on what is known of r.
func (c *Core) replay(t *typeState, r *resource) {
	switch {
	case r.held:
		c.emit(Changed{t.URL, r.name, r.value})
	case r.absent && r.late:
		c.emit(Gone{t.URL, r.name, TimedOut})
	case r.absent:
		c.emit(Gone{t.URL, r.name, Deleted})
	}
	if r.err != "" {
		c.emit(Invalid{t.URL, r.name, r.err, r.part})
	}
	if r.failed != "" {
		c.emit(Failed{t.URL, r.name, r.code, r.failed})
	}
}

// enqueue has the next Flush see if t needs a request.
func (c *Core) enqueue(t *typeState) {
	for _, l := range c.links {
		l.enqueue(l.subs[t.index])
	}
}

// await starts the timer of a name that was sent for the first time on the
// active stream, also if nobody wants it any more: it may be wanted again before
// the next request. What is held needs none, unless another server gave it, or
// again says that the server has been told to send it once more.
func (c *Core) await(l *link, t *typeState, name string, again bool) {
	if l.index != c.active || name == Wildcard {
		return
	}
	r := t.res[name]
	if r == nil { // let go of while another server was the active one
		r = t.add(name)
	}
	if r.timer != 0 {
		return
	}
	if r.held && (again || r.from != l.index) || !r.held && !r.known() {
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
	c.emit(StartTimer{Timer{Kind: k, Type: t.URL, Name: r.name}, 0, 0})
}

func (c *Core) stop(t *typeState, r *resource) {
	if r.timer != 0 {
		c.emit(StopTimer{Timer{Kind: r.timer, Type: t.URL, Name: r.name}})
		r.timer = 0
	}
}

// expire has r end after so many nanoseconds, or never if there are none.
func (c *Core) expire(t *typeState, r *resource, ttl int64) {
	timer := Timer{Kind: TimerTTL, Type: t.URL, Name: r.name}
	if r.ttl {
		c.emit(StopTimer{timer})
	}
	if r.ttl = ttl > 0; r.ttl {
		c.emit(StartTimer{timer, 0, ttl})
	}
}

func (t *typeState) names() []string { return slices.Sorted(maps.Keys(t.res)) }

// wants reports whether anybody is to hear of r.
func (t *typeState) wants(r *resource) bool { return r.named || t.wildcard }

// known reports whether there is any word of a server on r.
func (r *resource) known() bool { return r.held || r.absent || r.err != "" || r.failed != "" }

func (t *typeState) add(name string) *resource {
	r := &resource{name: name}
	t.res[name] = r
	t.count(r)
	return r
}

// clear takes the value from r.
func (c *Core) clear(t *typeState, r *resource) {
	if r.held {
		c.expire(t, r, 0)
		delete(t.byBody, r.body)
		r.held, r.value, r.body, r.version, r.restored = false, nil, "", "", false
		t.count(r)
	}
}

// mend forgets what was refused of r, but for the last Nack.
func (c *Core) mend(t *typeState, r *resource) {
	c.keepBad(t, r, nil)
	r.err, r.part, r.partSize = "", nil, 0
}

// keepBad keeps the body of what was refused of r, in the place of the one before.
func (c *Core) keepBad(t *typeState, r *resource, body []byte) {
	t.badBytes -= len(r.bad)
	r.bad = ""
	if t.badBytes+len(body) <= c.maxRefused {
		r.bad = string(body)
		t.badBytes += len(r.bad)
	}
}

func (c *Core) drop(t *typeState, r *resource) {
	c.clear(t, r)
	c.mend(t, r)
	t.bytes -= r.counted
	delete(t.res, r.name)
}

// Dump returns the state of every type, in the order given to New.
func (c *Core) Dump() []TypeState {
	var out []TypeState
	for _, t := range c.types {
		sub := c.links[c.active].subs[t.index]
		s := TypeState{URL: t.URL, Version: sub.version, Nonce: sub.nonce, Wildcard: t.wildcard}
		for _, name := range t.names() {
			r := t.res[name]
			rs := ResourceState{
				Name: name, Subscribed: t.wants(r), State: "requested", Version: r.version, Error: r.err,
				Body: r.body, Refused: r.bad, Nack: r.nack,
			}
			switch {
			case r.err != "":
				rs.State = "nacked"
			case r.failed != "":
				rs.State, rs.Error = "received_error", r.failed
			case r.held && !r.restored:
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
