package core

import (
	"fmt"
	"strings"
	"testing"
)

// A response of nothing but bad resources must not come back as large as it
// was.
func TestNackTextIsBounded(t *testing.T) {
	c := New(1, testTypes()...)
	c.SubscribeAll("cds")
	c.Connected(0, StateOfTheWorld)
	c.Flush()
	c.Sent(0)
	c.Take()
	r := Response{Type: "cds", Version: "v1", Nonce: "n1"}
	for i := range 1000 {
		r.Resources = append(r.Resources, Resource{Type: "cds", Body: fmt.Appendf(nil, "c%d=!%s", i, strings.Repeat("ä", 1000))})
	}
	c.Response(0, r)
	c.Flush()
	effects := c.Take()
	send, ok := effects[len(effects)-1].(Send)
	if !ok {
		t.Fatalf("last effect is %T, want Send", effects[len(effects)-1])
	}
	if n := len(send.Request.Error); n > 6000 {
		t.Errorf("the NACK's text has %d bytes", n)
	}
	if !strings.HasSuffix(send.Request.Error, "; and 990 more") {
		t.Errorf("the NACK's text ends in %q, want the number of the rest", send.Request.Error[len(send.Request.Error)-40:])
	}
}

// Of unknown types a bounded number is remembered.
func TestUnknownTypesAreBounded(t *testing.T) {
	c := New(1, testTypes()...)
	c.Connected(0, StateOfTheWorld)
	for i := range 1000 {
		c.Response(0, Response{Type: fmt.Sprint("t", i)})
	}
	if n := len(c.Take()); n != maxUnknown {
		t.Errorf("told of %d unknown types, want %d", n, maxUnknown)
	}
}

// Events that come late, twice or for nothing change nothing.
func TestStrayEvents(t *testing.T) {
	c := New(1, testTypes()...)
	c.Sent(0)
	c.Response(0, Response{Type: "eds", Version: "v1", Nonce: "n1"}) // without a stream
	c.Connected(0, StateOfTheWorld)
	c.Fired(Timer{TimerAbsent, "eds", "web", 0})
	c.Fired(Timer{TimerForget, "eds", "web", 0})
	c.Fired(Timer{TimerNack, "eds", "", 0})
	c.Fired(Timer{TimerNack, "none", "", 0})
	c.Subscribe("none", "web")
	c.Subscribe("eds", Wildcard)
	c.Unsubscribe("none", "web")
	c.Unsubscribe("eds", "web")
	c.UnsubscribeAll("cds")
	c.SubscribeAll("none")
	c.Flush()
	if e := c.Take(); len(e) > 0 {
		t.Errorf("effects %v, want none", e)
	}
}

// milk is good for a while.
type milk struct{ text string }

func (m *milk) Perishes() bool { return m.text != "web=salt" }

// What is sent again unchanged is told of if it counts when it was sent last, in
// both variants, and only while somebody wants it.
func TestRenewed(t *testing.T) {
	for _, variant := range []Variant{StateOfTheWorld, Delta} {
		c := New(1, Type{URL: "eds", Decode: func(body []byte) (string, any, error) {
			name, _, _ := strings.Cut(string(body), "=")
			return name, &milk{string(body)}, nil
		}})
		c.Subscribe("eds", "web")
		c.Connected(0, variant)
		n := 0
		send := func(body string) (told []string) {
			n++
			r := Response{Type: "eds", Version: fmt.Sprint("v", n), Nonce: fmt.Sprint("n", n), Resources: []Resource{{Type: "eds", Body: []byte(body)}}}
			if variant == Delta {
				r.Resources[0].Name, r.Resources[0].Version = "web", r.Version
			}
			c.Take()
			c.Response(0, r)
			for _, e := range c.Take() {
				switch e := e.(type) {
				case Changed:
					told = append(told, "changed "+e.Value.(*milk).text)
				case Renewed:
					told = append(told, "renewed "+e.Value.(*milk).text)
				}
			}
			return told
		}
		for i, step := range []struct{ body, want string }{
			{"web=1", "[changed web=1]"}, {"web=1", "[renewed web=1]"}, {"web=2", "[changed web=2]"}, {"web=2", "[renewed web=2]"},
			{"web=salt", "[changed web=salt]"}, {"web=salt", "[]"},
		} {
			if got := fmt.Sprint(send(step.body)); got != step.want {
				t.Errorf("%s, step %d: %s, want %s", variant, i, got, step.want)
			}
		}
		send("web=1")
		c.Unsubscribe("eds", "web")
		if got := send("web=1"); len(got) > 0 {
			t.Errorf("%s: told of what nobody wants: %v", variant, got)
		}
	}
}

// What an update costs depends on what has changed, however much is held: that alone
// is decoded, handed on and answered.
func TestWorkIsProportional(t *testing.T) {
	for _, variant := range []Variant{StateOfTheWorld, Delta} {
		for _, n := range []int{10, 1000} {
			decoded := 0
			types := testTypes()
			for i, typ := range types {
				types[i].Decode = func(body []byte) (string, any, error) {
					decoded++
					return typ.Decode(body)
				}
			}
			c := New(1, types...)
			names := make([]string, n)
			bodies := make([]Resource, n)
			resource := func(i, version int) Resource {
				r := Resource{Type: "eds", Body: fmt.Appendf(nil, "%s=%d", names[i], version)}
				if variant == Delta {
					r.Name, r.Version = names[i], fmt.Sprint(version)
				}
				return r
			}
			for i := range n {
				names[i] = fmt.Sprintf("e%04d", i)
				bodies[i] = resource(i, 0)
				c.Subscribe("eds", names[i])
			}
			c.Connected(0, variant)
			c.Flush()
			c.Sent(0)
			respond := func(nonce string, resources ...Resource) []Effect {
				c.Take()
				c.Response(0, Response{Type: "eds", Version: nonce, Nonce: nonce, Resources: resources})
				c.Flush()
				effects := c.Take()
				c.Sent(0)
				return append(effects, c.Take()...)
			}
			respond("n0", bodies...)
			if decoded != n {
				t.Errorf("%v: %d of %d resources were decoded at first", variant, decoded, n)
			}
			decoded = 0
			for k := 1; k <= 5; k++ {
				var effects []Effect
				if bodies[k] = resource(k, k); variant == Delta {
					effects = respond(fmt.Sprint("n", k), bodies[k])
				} else {
					effects = respond(fmt.Sprint("n", k), bodies...)
				}
				var what []string
				for _, e := range effects {
					what = append(what, fmt.Sprintf("%T", e))
				}
				if got := strings.Join(what, " "); got != "core.Changed core.Judged core.Send" {
					t.Errorf("%v, %d held: effects %s", variant, n, got)
				}
			}
			if decoded != 5 {
				t.Errorf("%v, %d held: %d resources were decoded in 5 updates of one", variant, n, decoded)
			}
		}
	}
}
