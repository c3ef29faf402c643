package core

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Limits of the text of a NACK, so that a response of nothing but bad
// resources doesn't come back as large as it was. The second, in bytes, is that
// of every text of a server that is kept or logged.
const (
	maxReasons = 10
	maxReason  = 500
)

// received is one resource of a response, decoded.
type received struct {
	name    string
	version string
	body    []byte
	ttl     int64
	value   any
	err     string
	same    bool // the bytes are those that are held already
	beat    bool // a heartbeat: there are no bytes
}

// Response takes in a response of a server: it records the nonce, applies what
// is valid, keeps the last good version of what is not, and has an answer go out
// with the next Flush. Source: gRFC A46 for the treatment of single resources.
func (c *Core) Response(server int, resp Response) {
	l := c.links[server]
	if !l.open {
		return
	}
	l.heard, l.failing, l.failures = true, false, 0
	if server < c.active {
		c.comeBack(l)
	}
	if c.unreachable {
		c.unreachable = false
		c.emit(Reachable{})
	}
	t := c.typ(resp.Type)
	if t == nil {
		url := Clip(resp.Type)
		if len(c.unknown) < maxUnknown && !slices.Contains(c.unknown, url) {
			c.unknown = append(c.unknown, url)
			c.emit(Unknown{url})
		}
		return
	}
	s := l.subs[t.index]
	s.nonce = resp.Nonce
	t.answered = t.answered || t.wildcard

	n := news{resp: resp, l: l, s: s, t: t, repeats: -1}
	n.decode()
	c.take(&n)
	c.gone(&n)
	for _, e := range resp.Errors {
		c.failed(&n, e)
	}
	c.answer(&n)
}

// news is a response while it is taken in.
type news struct {
	resp Response
	l    *link
	s    *subscription
	t    *typeState

	items   []received
	present map[string]int // the names in it, and where in items
	sure    bool           // these are all: one that can't even be named may be any

	reasons []string // to refuse it
	unnamed []string // those of resources without a name
	repeats int      // the least that one of its resources was refused before; -1 if none was
}

// decode reads the resources of a response.
func (n *news) decode() {
	resp, t := n.resp, n.t
	n.items = make([]received, 0, len(resp.Resources))
	n.present = make(map[string]int, len(resp.Resources))
	n.sure = true
	spoil := func(i int, why string) {
		it := &n.items[i]
		it.value, it.err, it.same, it.beat = nil, why, false, false
	}
	for i, res := range resp.Resources {
		it := n.read(i, res)
		if it.beat {
			n.sure = false // it lists what has a TTL
		}
		if it.name == "" {
			n.sure = false
		} else if at, twice := n.present[it.name]; twice {
			spoil(at, "more than once in one response") // the first one stands for both
			continue
		} else {
			n.present[it.name] = len(n.items)
		}
		n.items = append(n.items, it)
	}
	gone := make(map[string]bool, len(resp.Removed))
	for _, name := range resp.Removed {
		if at, sent := n.present[name]; sent {
			spoil(at, "more than once in one response")
		} else if gone[name] {
			n.present[name] = len(n.items) // it is not removed, but refused
			n.items = append(n.items, received{name: name, version: t.versionOf(name)})
			spoil(len(n.items)-1, "more than once in one response")
		}
		gone[name] = true
	}
}

func (t *typeState) versionOf(name string) string {
	if r := t.res[name]; r != nil {
		return r.version
	}
	return ""
}

// read reads resource i of a response.
func (n *news) read(i int, res Resource) received {
	it := received{name: res.Name, version: res.Version, ttl: res.TTL, body: res.Body}
	if n.l.variant == StateOfTheWorld {
		it.version = cmp.Or(it.version, n.resp.Version)
	}
	switch r := n.t.byBody[string(res.Body)]; {
	case res.Bare && res.Name == "":
		it.err = fmt.Sprintf("resource %d has neither name nor body", i)
	case res.Bare && res.TTL == 0:
		it.err = "has no body"
	case res.Bare:
		it.beat = true
	case res.Type != n.resp.Type:
		it.err = fmt.Sprintf("resource %d has the type %q", i, res.Type)
	case r != nil && (res.Name == "" || res.Name == r.name):
		it.name, it.value, it.same = r.name, r.value, true
	default:
		name, value, err := n.t.Decode(res.Body)
		it.name, it.value = cmp.Or(res.Name, name), value
		switch {
		case err != nil:
			it.err = err.Error()
		case name == "":
			it.err = fmt.Sprintf("resource %d has no name", i)
		case name != it.name:
			it.value, it.err = nil, fmt.Sprintf("is called %q inside", Clip(name))
		}
	}
	if len(it.name) > MaxName {
		it.err = fmt.Sprintf("resource %d has a name of %d bytes: want at most %d", i, len(it.name), MaxName)
		it.name, it.value, it.same, it.beat = "", nil, false, false
	}
	it.err = Clip(it.err)
	return it
}

// take takes in the resources, one by one.
func (c *Core) take(n *news) {
	t := n.t
	for i := range n.items {
		it := &n.items[i]
		r := t.res[it.name]
		if it.name == "" {
			n.unnamed = append(n.unnamed, it.err)
			continue
		}
		if r == nil && !t.wildcard && !n.s.sent.all && !n.s.ever[it.name] {
			continue // Not asked for. Servers may send more than they have to.
		}
		if it.beat {
			if r != nil && r.held && (it.version == r.version || n.l.variant == StateOfTheWorld) {
				c.expire(t, r, it.ttl)
			}
			continue // else it is of a version that is not held: nothing to keep alive
		}
		if it.err == "" {
			c.limit(t, r, it)
		}
		switch {
		case it.err == "":
			c.accept(n, r, it)
		case r == nil && (len(t.res) >= c.maxResources || !c.room(t, r, len(it.name))):
			n.unnamed = append(n.unnamed, it.err)
		case t.wildcard || r != nil && r.named:
			c.refuse(n, r, it)
		}
	}
}

// limit refuses a resource that would make the client hold too much.
func (c *Core) limit(t *typeState, r *resource, it *received) {
	switch {
	case r == nil && len(t.res) >= c.maxResources:
		it.err = fmt.Sprintf("more than %d resources", c.maxResources)
	case !c.room(t, r, len(it.name)+len(it.body)+len(it.version)):
		it.err = fmt.Sprintf("more than %d bytes of resources", c.maxBytes)
	}
}

// room reports whether r, which may be nil, may take so many bytes.
func (c *Core) room(t *typeState, r *resource, size int) bool {
	if r != nil {
		size -= r.counted
	}
	return t.bytes+size <= c.maxBytes
}

// accept takes a valid resource in.
func (c *Core) accept(n *news, r *resource, it *received) {
	t := n.t
	if r == nil {
		r = t.add(it.name)
	}
	news := !it.same || r.err != "" || r.failed != "" || r.restored
	if !it.same {
		c.clear(t, r)
		r.held, r.value, r.body = true, it.value, string(it.body)
		t.byBody[r.body] = r
	}
	r.version, r.from, r.restored = it.version, n.l.index, false
	c.mend(t, r)
	r.refused, r.repeats, r.failed, r.absent = refusal{}, 0, "", false
	t.count(r)
	if r.timer == TimerAbsent {
		c.stop(t, r)
	}
	c.expire(t, r, it.ttl)
	if n.s.ever[r.name] {
		c.release(t, r.name)
	}
	if !t.wants(r) {
		return
	}
	if news {
		c.emit(Changed{t.URL, r.name, r.value})
	} else if p, ok := r.value.(Perishable); ok && p.Perishes() {
		c.emit(Renewed{t.URL, r.name, r.value})
	}
}

// refuse records an invalid resource. The same reason is told once.
func (c *Core) refuse(n *news, r *resource, it *received) {
	t := n.t
	if r == nil {
		r = t.add(it.name)
	}
	c.stop(t, r)
	r.absent, r.failed = false, ""
	size := r.size() - len(r.refused.version) - r.partSize
	if !c.room(t, r, size+len(it.version)+len(it.body)) {
		it.version, it.value = "", nil // the reason is what there is room for
	}
	if now := (refusal{it.version, it.err}); r.refused == now {
		r.repeats++
	} else {
		r.refused, r.repeats = now, 0
	}
	n.refused(r.repeats, fmt.Sprintf("%q: %s", it.name, it.err))
	r.nack = Nack{it.version, it.err, n.resp.Mark}
	if r.bad != string(it.body) {
		c.keepBad(t, r, it.body)
	}
	if r.err != it.err {
		r.err, r.part, r.partSize = it.err, it.value, 0
		if r.part != nil {
			r.partSize = len(it.body)
		}
		c.emit(Invalid{t.URL, r.name, r.err, r.part})
	}
	t.count(r)
}

// refused notes a reason, and how often it was given before.
func (n *news) refused(repeats int, reason string) {
	n.reasons = append(n.reasons, reason)
	if n.repeats < 0 || repeats < n.repeats {
		n.repeats = repeats
	}
}

// gone takes away what the server has deleted. What it was only asked for, or
// never sent in a valid form under its name, stays requested if it is merely
// missing: the response may be older than the request.
func (c *Core) gone(n *news) {
	if n.l.variant == Delta {
		for _, name := range n.resp.Removed {
			r := n.t.res[name]
			if _, refused := n.present[name]; r != nil && !refused && !(r.absent && !r.late) {
				c.end(n.t, r, Deleted)
			}
		}
		return
	}
	if !n.t.Complete || !n.sure {
		return
	}
	for _, name := range n.t.missing(n.present) {
		if r := n.t.res[name]; r.held || r.err != "" && !r.named {
			c.end(n.t, r, Deleted)
		}
	}
}

// failed records that the server can't give a resource, and why. What is held
// stays in force. Source: gRFC A88, xDS TP3.
func (c *Core) failed(n *news, e ResourceError) {
	r := n.t.res[e.Name]
	if r == nil || !r.named {
		return // errors are for names
	}
	if _, sent := n.present[e.Name]; sent {
		n.refused(0, fmt.Sprintf("%q: both sent and an error in one response", e.Name))
		return
	}
	c.stop(n.t, r)
	r.absent = false
	reason := Clip(e.Reason)
	if r.failed != reason || r.code != e.Code {
		r.failed, r.code = reason, e.Code
		c.emit(Failed{n.t.URL, r.name, e.Code, reason})
	}
}

// answer decides what the response is answered with, and when.
func (c *Core) answer(n *news) {
	t, l, s := n.t, n.l, n.s
	if len(n.unnamed) > 0 {
		slices.Sort(n.unnamed)
		known := n.resp.Version + "\x00" + strings.Join(n.unnamed[:min(len(n.unnamed), maxReasons)], "\x00")
		if known == t.unnamed {
			t.unnamedRepeats++
		} else {
			t.unnamed, t.unnamedRepeats = known, 0
		}
		for _, reason := range n.unnamed {
			n.refused(t.unnamedRepeats, reason)
		}
	} else {
		t.unnamed = ""
	}
	// Servers that keep resources in a map send them in another order each
	// time; the same reasons must be known again.
	slices.Sort(n.reasons)
	detail := describe(t.URL, n.reasons)
	if detail == "" && s.asked {
		s.version = n.resp.Version
	}
	repeats := max(n.repeats, 0)
	c.emit(Judged{t.URL, Clip(n.resp.Version), detail, repeats})
	if !s.asked {
		return // an answer with no names would subscribe to everything
	}
	a := answer{n.resp.Nonce, detail, repeats > 0}
	if l.variant == StateOfTheWorld {
		// A newer answer stands for the older ones.
		s.answers = append(s.answers[:0], a)
		if !a.throttled {
			c.stopNack(l, s)
		}
	} else {
		if a.throttled { // of these, one at a time is enough
			s.answers = slices.DeleteFunc(s.answers, func(a answer) bool { return a.throttled && s.delayed })
		}
		s.answers = append(s.answers, a)
		s.bound()
	}
	if !a.throttled {
		l.enqueue(s)
	} else if !s.delayed {
		s.delayed = true
		c.emit(StartTimer{Timer{Kind: TimerNack, Type: t.URL, Server: l.index}, repeats, 0})
	}
}

// describe returns the text of a NACK, empty for an ACK.
func describe(url string, reasons []string) string {
	if len(reasons) == 0 {
		return ""
	}
	var b strings.Builder
	b.WriteString(url[strings.LastIndexAny(url, "./")+1:])
	for i, r := range reasons {
		if i == maxReasons {
			fmt.Fprintf(&b, "; and %d more", len(reasons)-i)
			break
		}
		if i > 0 {
			b.WriteByte(';')
		}
		b.WriteString(" " + Clip(r))
	}
	return b.String()
}

// Clip returns s, valid and cut to the length that a server's words may have
// where they are kept or logged.
func Clip(s string) string {
	if len(s) > maxReason {
		s = s[:maxReason] + "…"
	}
	return strings.ToValidUTF8(s, "?")
}
