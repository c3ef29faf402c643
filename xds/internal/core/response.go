package core

import (
	"fmt"
	"slices"
	"strings"
)

// Limits of the text of a NACK, so that a response of nothing but bad
// resources doesn't come back as large as it was.
const (
	maxReasons = 10
	maxReason  = 500
)

// received is one resource of a response, decoded.
type received struct {
	name  string
	body  []byte
	value any
	err   string
	same  bool // the bytes are those that are held already
}

// Response takes in a response: it records the nonce, applies what is valid,
// keeps the last good version of what is not, and has an answer go out with
// the next Flush. Source: gRFC A46 for the treatment of single resources.
func (c *Core) Response(resp Response) {
	if !c.open {
		return
	}
	c.heard, c.failures = true, 0
	if c.unreachable {
		c.unreachable = false
		c.emit(Reachable{})
	}
	t := c.typ(resp.Type)
	if t == nil {
		if len(c.unknown) < maxUnknown && !slices.Contains(c.unknown, resp.Type) {
			c.unknown = append(c.unknown, resp.Type)
			c.emit(Unknown{resp.Type})
		}
		return
	}
	t.nonce = resp.Nonce

	items, present, sure := t.decode(resp)
	var reasons []string
	for _, it := range items {
		r := t.res[it.name]
		switch {
		case it.name == "":
			reasons = append(reasons, it.err)
		case r == nil && !t.wildcard && !t.sent.all:
			// Not asked for. Servers may send more than they have to.
		case it.err == "":
			c.accept(t, r, it, resp.Version)
		case t.wildcard || r != nil && r.named:
			c.refuse(t, r, it)
			reasons = append(reasons, fmt.Sprintf("%q: %s", it.name, it.err))
		}
	}
	if sure {
		for _, name := range t.removed(present) {
			c.remove(t, t.res[name])
		}
	}
	c.answer(t, resp.Version, reasons)
}

// decode reads the resources of a response. It returns the names that are in
// it and whether these are all: one that can't even be named may be any.
func (t *typeState) decode(resp Response) (items []received, present map[string]bool, sure bool) {
	items = make([]received, 0, len(resp.Resources))
	present = make(map[string]bool, len(resp.Resources))
	sure = true
	var twice map[string]bool
	for i, res := range resp.Resources {
		it := received{body: res.Body}
		if res.Type != resp.Type {
			it.err = fmt.Sprintf("resource %d has the type %q", i, res.Type)
		} else if r := t.byBody[string(res.Body)]; r != nil {
			it.name, it.value, it.same = r.name, r.value, true
		} else {
			name, value, err := t.Decode(res.Body)
			it.name, it.value = name, value
			switch {
			case err != nil:
				it.err = err.Error()
			case name == "":
				it.err = fmt.Sprintf("resource %d has no name", i)
			}
		}
		if it.name == "" {
			sure = false
		} else if present[it.name] {
			if twice == nil {
				twice = make(map[string]bool)
			}
			twice[it.name] = true
			continue // the first one stands for both, below
		} else {
			present[it.name] = true
		}
		items = append(items, it)
	}
	for i := range items {
		if it := &items[i]; twice[it.name] {
			it.value, it.err, it.same = nil, "more than once in one response", false
		}
	}
	return items, present, sure
}

// accept takes a valid resource in.
func (c *Core) accept(t *typeState, r *resource, it received, version string) {
	if r == nil {
		r = t.add(it.name)
	}
	news := !it.same || r.err != ""
	if !it.same {
		t.clear(r)
		r.held, r.value, r.body = true, it.value, string(it.body)
		t.byBody[r.body] = r
	}
	r.version, r.err, r.part, r.absent = version, "", nil, false
	if r.timer == TimerAbsent {
		c.stop(t, r)
	}
	if news && t.wants(r) {
		c.emit(Changed{t.URL, r.name, r.value})
	}
}

// refuse records an invalid resource. The same reason is told once.
func (c *Core) refuse(t *typeState, r *resource, it received) {
	if r == nil {
		r = t.add(it.name)
	}
	c.stop(t, r)
	r.absent = false
	if r.err != it.err {
		r.err, r.part = it.err, it.value
		c.emit(Invalid{t.URL, r.name, r.err, r.part})
	}
}

// remove takes away a resource that the server has deleted. One that it was
// only asked for, or never sent in a valid form under its name, stays
// requested: the response may be older than the request.
func (c *Core) remove(t *typeState, r *resource) {
	known := r.held || r.err != "" && !r.named
	wanted := t.wants(r)
	if !known {
		return
	}
	if r.named {
		t.clear(r)
		r.err, r.part, r.absent, r.late = "", nil, true, false
	} else {
		c.stop(t, r)
		t.drop(r)
	}
	if wanted {
		c.emit(Gone{t.URL, r.name, false})
	}
}

// answer decides what the response is answered with, and when.
func (c *Core) answer(t *typeState, version string, reasons []string) {
	// Servers that keep resources in a map send them in another order each
	// time; the same reasons must be known again.
	slices.Sort(reasons)
	detail := describe(t.URL, reasons)
	refused := ""
	switch {
	case detail != "":
		refused = version + "\x00" + detail
	case t.asked:
		t.version = version
	}
	if refused != "" && refused == t.refused {
		t.repeats++
	} else {
		t.refused, t.repeats = refused, 0
		c.stopNack(t)
	}
	c.emit(Judged{t.URL, version, detail, t.repeats})
	if !t.asked {
		return // an answer with no names would subscribe to everything
	}
	t.answer, t.detail = true, detail
	if t.repeats == 0 {
		c.enqueue(t)
	} else if !t.delayed {
		t.delayed = true
		c.emit(StartTimer{Timer{Kind: TimerNack, Type: t.URL}, t.repeats})
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
		if len(r) > maxReason {
			r = r[:maxReason] + "…"
		}
		b.WriteString(" " + strings.ToValidUTF8(r, "?"))
	}
	return b.String()
}
