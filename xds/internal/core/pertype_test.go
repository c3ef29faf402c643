package core

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
)

// one is a stream of one type, on which every request is sent at once.
type one struct {
	t       *testing.T
	c       *Core
	typ     string
	variant Variant
	asked   map[string]bool   // delta: what the requests amount to
	has     map[string]string // delta: what the server has sent
	last    string            // what was asked for last
	n       int               // responses
}

// told describes the effects since the last call: what is asked for if that has
// changed, refusals, timers, and what watchers are told.
func (o *one) told() (out []string) {
	for {
		o.c.Flush()
		effects := o.c.Take()
		if len(effects) == 0 {
			return out
		}
		for _, e := range effects {
			switch e := e.(type) {
			case Send:
				names := e.Request.Names
				if o.variant == Delta {
					for _, name := range e.Request.Subscribe {
						o.asked[name] = true
					}
					for _, name := range e.Request.Unsubscribe {
						delete(o.asked, name)
					}
					names = slices.Sorted(maps.Keys(o.asked))
				}
				line := fmt.Sprint("asks for ", strings.Join(names, " "))
				if news := line != o.last; news || e.Request.Error != "" {
					o.last = line
					if e.Request.Error != "" {
						line += ", refuses " + e.Request.Error
					}
					out = append(out, line)
				}
				o.c.Sent(0)
			case StartTimer:
				out = append(out, fmt.Sprint("starts ", e.Timer.Kind, " ", e.Timer.Name))
			case StopTimer:
				out = append(out, fmt.Sprint("stops ", e.Timer.Kind, " ", e.Timer.Name))
			case Changed:
				out = append(out, fmt.Sprint(e.Name, " is ", e.Value))
			case Invalid:
				out = append(out, fmt.Sprint(e.Name, " is invalid: ", e.Reason))
			case Gone:
				out = append(out, fmt.Sprint(e.Name, " is gone: ", e.Cause))
			}
		}
	}
}

// push sends what the server has, "name=value": in the incremental variant what is
// new of it and what is not there any more.
func (o *one) push(has ...string) []string {
	o.n++
	r := Response{Type: o.typ, Version: fmt.Sprint("v", o.n), Nonce: fmt.Sprint("n", o.n)}
	now := make(map[string]bool)
	for _, body := range has {
		name, _, _ := strings.Cut(body, "=")
		res := Resource{Type: o.typ, Body: []byte(body)}
		if now[name] = true; o.variant == Delta {
			if o.has[name] == body {
				continue
			}
			o.has[name] = body
			res.Name, res.Version = name, body
		}
		r.Resources = append(r.Resources, res)
	}
	for _, name := range slices.Sorted(maps.Keys(o.has)) {
		if !now[name] {
			r.Removed = append(r.Removed, name)
			delete(o.has, name)
		}
	}
	o.c.Response(0, r)
	return o.told()
}

func (o *one) subscribe(names ...string) []string {
	for _, name := range names {
		o.c.Subscribe(o.typ, name)
	}
	return o.told()
}

// again takes a subscription back and subscribes once more, as one watcher goes
// and another comes.
func (o *one) again(name string) []string {
	o.c.Unsubscribe(o.typ, name)
	return o.subscribe(name)
}

func (o *one) fire(name string) []string {
	o.c.Fired(Timer{Kind: TimerAbsent, Type: o.typ, Name: name})
	return o.told()
}

// expect compares what was told, joined.
func (o *one) expect(got []string, want ...string) {
	o.t.Helper()
	if !slices.Equal(got, want) {
		o.t.Errorf("got  %q\nwant %q", got, want)
	}
}

// TestPerType: what gRPC's clients are tested with for each type, under the names
// of these tests, for both types and both variants.
func TestPerType(t *testing.T) {
	scenarios := map[string]func(*one){
		"Watch": func(o *one) {
			o.expect(o.subscribe("a"), "asks for a", "starts absent a")
			o.expect(o.push("a=1"), "stops absent a", "a is 1")
			o.expect(o.push("a=1"))
			o.expect(o.push("a=2"), "a is 2")
		},
		"TwoWatchesForSameResourceName": func(o *one) {
			o.expect(o.subscribe("a", "a"), "asks for a", "starts absent a")
			o.expect(o.push("a=1"), "stops absent a", "a is 1")
			o.expect(o.subscribe("a"))
			o.expect(o.push("a=2"), "a is 2")
		},
		"ThreeWatchesForDifferentResourceNames": func(o *one) {
			o.expect(o.subscribe("c", "a", "b"), "asks for a b c", "starts absent a", "starts absent b", "starts absent c")
			o.expect(o.push("a=1", "b=2", "c=3"), "stops absent a", "a is 1", "stops absent b", "b is 2", "stops absent c", "c is 3")
		},
		"ResourceCaching": func(o *one) {
			o.subscribe("a")
			o.push("a=1")
			o.expect(o.again("a"), "a is 1")
		},
		"ExpiryTimerFiresBeforeResponse": func(o *one) {
			o.subscribe("a")
			o.expect(o.fire("a"), "a is gone: timed out")
			o.expect(o.again("a"), "a is gone: timed out")
			o.expect(o.push("a=1"), "a is 1")
		},
		"ValidResponseCancelsExpiryTimerBehavior": func(o *one) {
			o.subscribe("a", "b")
			o.expect(o.push("a=1"), "stops absent a", "a is 1")
			o.expect(o.fire("a"))
			o.expect(o.fire("b"), "b is gone: timed out")
		},
		"ResourceRemoved": func(o *one) {
			o.subscribe("a", "b")
			o.push("a=1", "b=1")
			if o.typ == "eds" && o.variant == StateOfTheWorld {
				o.expect(o.push("b=1")) // no word on a
				o.expect(o.push("b=2"), "b is 2")
				return
			}
			o.expect(o.push("b=1"), "a is gone: deleted")
			o.expect(o.push("b=2"), "b is 2")
			o.expect(o.push("a=2", "b=2"), "a is 2")
		},
		"NewWatcherForRemovedResource": func(o *one) {
			o.subscribe("a", "b")
			o.push("a=1", "b=1")
			o.push("b=1")
			if o.typ == "eds" && o.variant == StateOfTheWorld {
				o.expect(o.again("a"), "a is 1")
				return
			}
			o.expect(o.again("a"), "a is gone: deleted")
		},
		"NACKError": func(o *one) {
			o.subscribe("a")
			o.expect(o.push("a=!bad"), "stops absent a", "a is invalid: bad", `asks for a, refuses `+o.typ+` "a": bad`)
			o.expect(o.push("a=1"), "a is 1")
		},
		"ResourceCaching_NACKError": func(o *one) {
			o.subscribe("a")
			o.push("a=1")
			o.push("a=!bad")
			o.expect(o.again("a"), "a is 1", "a is invalid: bad")
		},
		"PartialValid": func(o *one) {
			o.subscribe("a", "b")
			o.expect(o.push("a=!bad", "b=1"), "stops absent a", "a is invalid: bad", "stops absent b", "b is 1",
				`asks for a b, refuses `+o.typ+` "a": bad`)
		},
		"PartialResponse": func(o *one) {
			o.subscribe("a", "b")
			o.expect(o.push("a=1"), "stops absent a", "a is 1")
			o.expect(o.push("a=1", "b=1"), "stops absent b", "b is 1")
		},
	}
	for name, play := range scenarios {
		for _, typ := range []string{"cds", "eds"} {
			for _, v := range []Variant{StateOfTheWorld, Delta} {
				t.Run(fmt.Sprint(name, "/", typ, "/", v), func(t *testing.T) {
					o := &one{t: t, c: New(1, testTypes()...), typ: typ, variant: v, asked: map[string]bool{}, has: map[string]string{}}
					o.c.Connected(0, v)
					play(o)
				})
			}
		}
	}
}
