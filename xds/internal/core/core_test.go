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
