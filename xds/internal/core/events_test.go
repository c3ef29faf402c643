package core

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// shell carries effects out on paper, and knows which events may follow.
type shell struct {
	t       *testing.T
	c       *Core
	dialing [3]bool
	up      [3]bool
	pending [3]bool
	timers  []Timer // that run
}

func (s *shell) perform() {
	for _, e := range s.c.Take() {
		switch e := e.(type) {
		case Connect:
			if s.dialing[e.Server] || s.up[e.Server] {
				s.t.Fatalf("server %d is dialled twice", e.Server)
			}
			s.dialing[e.Server] = true
		case Disconnect:
			if !s.dialing[e.Server] && !s.up[e.Server] {
				s.t.Fatalf("server %d is left twice", e.Server)
			}
			s.dialing[e.Server], s.up[e.Server], s.pending[e.Server] = false, false, false
		case Send:
			if !s.up[e.Server] || s.pending[e.Server] {
				s.t.Fatalf("a request to server %d, up %v, with one on its way %v", e.Server, s.up[e.Server], s.pending[e.Server])
			}
			if n := len(e.Request.Error); n > maxReasons*(maxReason+10)+100 {
				s.t.Fatalf("a NACK of %d bytes", n)
			}
			s.pending[e.Server] = true
		case StartTimer:
			if slices.Contains(s.timers, e.Timer) {
				s.t.Fatalf("timer %v started twice", e.Timer)
			}
			s.timers = append(s.timers, e.Timer)
		case StopTimer:
			i := slices.Index(s.timers, e.Timer)
			if i < 0 {
				s.t.Fatalf("timer %v stopped without a start", e.Timer)
			}
			s.timers = slices.Delete(s.timers, i, i+1)
		}
	}
}

// FuzzEvents: whatever happens, in any order, the core asks for what can be done,
// counts what it keeps, and never stops asking: in the end a server that is there
// is being dialled, waited for, or talked to.
func FuzzEvents(f *testing.F) {
	f.Add([]byte("\x00\x00\x04\x00\x06\x00\x07\x01\x07\x15\x06\x00\x05\x00\x08\x00\x04\x00"))
	f.Add([]byte("\x02\x00\x04\x03\x06\x00\x07\x22\x07\x22\x0a\x00\x08\x02\x09\x07\x05\x11\x08\x00\x04\x01\x06\x01\x07\x09"))
	f.Add([]byte("\x00\x01\x05\x00\x04\x01\x06\x01\x07\x41\x08\x00\x04\x00\x07\x00\x01\x01\x00\x01\x03\x00"))
	f.Fuzz(func(t *testing.T, script []byte) {
		s := &shell{t: t, c: New(3, testTypes()...)}
		c := s.c
		c.Start()
		s.perform()
		types, names := []string{"cds", "eds", "sds"}, []string{"a", "b", "c", Wildcard}
		for ; len(script) >= 2; script = script[2:] {
			arg := int(script[1])
			server, typ, name := arg%3, types[arg/3%3], names[arg/9%4]
			switch script[0] % 12 {
			case 0:
				c.Subscribe(typ, name)
			case 1:
				c.Unsubscribe(typ, name)
			case 2:
				c.SubscribeAll(typ)
			case 3:
				c.UnsubscribeAll(typ)
			case 4:
				if s.dialing[server] {
					s.dialing[server], s.up[server] = false, true
					c.Connected(server, Variant(arg/128))
				}
			case 5:
				if s.dialing[server] || s.up[server] {
					s.dialing[server], s.up[server], s.pending[server] = false, false, false
					c.Closed(server, "over", Ending(arg/3%4))
				}
			case 6:
				if s.pending[server] {
					s.pending[server] = false
					c.Sent(server)
				}
			case 7, 11:
				r := Response{Type: typ, Version: fmt.Sprint("v", arg/64), Nonce: fmt.Sprint("n", arg)}
				for i, n := range names[:3] {
					res := Resource{Type: typ, Name: n, Version: fmt.Sprint(arg / 64), Body: fmt.Append(nil, n, "=", arg/16), TTL: int64(arg % 2 * 9)}
					switch (arg >> i) % 5 {
					case 0:
						res.Body = []byte(n + "=!bad")
					case 1:
						res.Type, res.Body, res.Bare = "", nil, true
					case 2:
						r.Removed = append(r.Removed, n)
						continue
					case 3:
						r.Errors = append(r.Errors, ResourceError{n, uint32(i), "none"})
						continue
					}
					r.Resources = append(r.Resources, res)
				}
				if script[0]%12 == 11 {
					r.Resources = append(r.Resources, Resource{Type: typ, Body: []byte("?")})
				}
				if s.up[server] {
					c.Response(server, r)
				}
			case 8:
				if len(s.timers) > 0 {
					i := arg % len(s.timers)
					timer := s.timers[i]
					s.timers = slices.Delete(s.timers, i, i+1)
					c.Fired(timer)
				}
			case 9:
				timer := Timer{Kind: TimerKind(arg % 7), Type: typ, Name: name, Server: server}
				switch timer.Kind {
				case TimerReconnect:
					timer.Type, timer.Name = "", ""
				case TimerNack:
					timer.Name = ""
				default:
					timer.Server = 0
				}
				if !slices.Contains(s.timers, timer) {
					c.Fired(timer) // late, or for nothing
				}
			case 10:
				s.perform()
				c.Flush()
			}
			s.perform()
		}
		c.Flush()
		s.perform()
		for i := range c.active + 1 {
			waits := slices.ContainsFunc(s.timers, func(t Timer) bool { return t.Kind == TimerReconnect && t.Server == i })
			if !s.dialing[i] && !s.up[i] && !waits {
				t.Fatalf("nobody tries server %d", i)
			}
		}
		for _, ts := range c.types {
			bytes := 0
			for name, r := range ts.res {
				bytes += r.size()
				if r.name != name || strings.Contains(name, Wildcard) {
					t.Errorf("%q is kept as %q", r.name, name)
				}
				if running := slices.Contains(s.timers, Timer{Kind: r.timer, Type: ts.URL, Name: name}); r.timer != 0 && !running {
					t.Errorf("timer %v of %q does not run", r.timer, name)
				}
				if running := slices.Contains(s.timers, Timer{Kind: TimerTTL, Type: ts.URL, Name: name}); running != r.ttl {
					t.Errorf("the TTL of %q: runs %v, want %v", name, running, r.ttl)
				}
			}
			if bytes != ts.bytes {
				t.Errorf("%s: %d bytes are kept, %d counted", ts.URL, bytes, ts.bytes)
			}
		}
		c.Dump()
	})
}
