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
