package core

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// modelServer is an obvious state-of-the-world server: it ignores requests
// with a stale nonce, answers one when it has something that the request
// doesn't know, and resends at once what is refused.
type modelServer struct {
	res     map[string]map[string]string // by type and name
	version map[string]int
	partial bool // EDS responses carry only what changed

	stream map[string]*modelSub // by type
	nonce  int
}

type modelSub struct {
	nonce, version string
	all            bool
	names          []string
	open           bool              // a request waits for news
	returned       map[string]string // what the client was sent
}

func (s *modelServer) receive(r Request) {
	sub := s.stream[r.Type]
	if sub == nil {
		sub = &modelSub{all: len(r.Names) == 0, returned: map[string]string{}}
		s.stream[r.Type] = sub
	} else if sub.nonce != r.Nonce {
		return
	}
	if len(r.Names) > 0 {
		sub.all = slices.Contains(r.Names, Wildcard)
	}
	sub.names, sub.open, sub.version = r.Names, true, r.Version
	for name := range sub.returned {
		if !sub.all && !slices.Contains(r.Names, name) {
			delete(sub.returned, name)
		}
	}
}

// push returns the next response, or nil.
func (s *modelServer) push() *Response {
	for _, typ := range []string{"cds", "eds"} {
		sub := s.stream[typ]
		if sub == nil || !sub.open {
			continue
		}
		version := fmt.Sprint("v", s.version[typ])
		resp := Response{Type: typ, Version: version, Nonce: fmt.Sprint("n", s.nonce+1)}
		news := version != sub.version
		for _, name := range slices.Sorted(maps.Keys(s.res[typ])) {
			if !sub.all && !slices.Contains(sub.names, name) {
				continue
			}
			body := name + "=" + s.res[typ][name]
			last, known := sub.returned[name]
			news = news || !known
			if typ == "cds" || !s.partial || !known || last != body || strings.Contains(body, "!") {
				resp.Resources = append(resp.Resources, Resource{typ, []byte(body)})
			}
			sub.returned[name] = body
		}
		if news {
			s.nonce++
			sub.nonce, sub.open = resp.Nonce, false
			return &resp
		}
	}
	return nil
}

// modelWorld joins a Core, a server and what is on its way between them.
type modelWorld struct {
	t      *rapid.T
	core   *Core
	server *modelServer
	subs   map[string]bool // EDS names; "*" for all of CDS

	up, dialing bool
	pending     *Request // handed to the sender
	toServer    []Request
	toClient    []Response
	timers      map[Timer]bool
	view        map[string]string // "type/name" as the effects told
	told        map[string]bool   // "type/name" that the effects called gone or invalid

	begun  map[string]bool // types requested on this stream
	nonces map[string]string
}

func (w *modelWorld) settle() {
	w.core.Flush()
	for _, e := range w.core.Take() {
		switch e := e.(type) {
		case Connect:
			w.dialing = true
		case Send:
			w.checkRequest(e.Request)
			w.pending = &e.Request
		case StartTimer:
			if w.timers[e.Timer] {
				w.t.Fatalf("timer %v started twice", e.Timer)
			}
			w.timers[e.Timer] = true
		case StopTimer:
			if !w.timers[e.Timer] {
				w.t.Fatalf("timer %v stopped without a start", e.Timer)
			}
			delete(w.timers, e.Timer)
		case Changed:
			w.checkWanted(e.Type, e.Name)
			w.view[e.Type+"/"+e.Name] = e.Value.(string)
			delete(w.told, e.Type+"/"+e.Name)
		case Invalid:
			w.checkWanted(e.Type, e.Name)
			w.told[e.Type+"/"+e.Name] = true
		case Gone:
			w.checkWanted(e.Type, e.Name)
			delete(w.view, e.Type+"/"+e.Name)
			w.told[e.Type+"/"+e.Name] = true
		}
	}
}

func (w *modelWorld) checkWanted(typ, name string) {
	if typ == "cds" && !w.subs[Wildcard] || typ == "eds" && !w.subs[name] {
		w.t.Fatalf("told of %s %q, which nobody subscribed to", typ, name)
	}
}

func (w *modelWorld) checkRequest(r Request) {
	switch {
	case w.pending != nil:
		w.t.Fatal("a request while another is on its way")
	case !slices.IsSorted(r.Names):
		w.t.Fatalf("names not sorted: %q", r.Names)
	case r.Node != (len(w.begun) == 0):
		w.t.Fatalf("node %v in request %d of the stream", r.Node, len(w.begun))
	case r.Nonce != w.nonces[r.Type]:
		w.t.Fatalf("nonce %q, want %q", r.Nonce, w.nonces[r.Type])
	case r.Type == "eds" && !w.begun["eds"] && len(r.Names) == 0:
		w.t.Fatal("an empty first list subscribes to everything")
	}
	w.begun[r.Type] = true
}

func (w *modelWorld) connect() {
	w.dialing, w.up = false, true
	w.begun, w.nonces = map[string]bool{}, map[string]string{}
	w.server.stream = map[string]*modelSub{}
	w.core.Connected()
}

func (w *modelWorld) lose() {
	w.up, w.dialing, w.pending, w.toServer, w.toClient = false, false, nil, nil, nil
	w.core.Closed("lost")
	for t := range w.timers {
		if t.Kind != TimerReconnect {
			// The core has asked to stop them; settle sees it.
			continue
		}
		w.t.Fatalf("%v ran on an open stream", t)
	}
}

// step moves one thing forward, in the order of the choices; it reports
// whether there was one.
func (w *modelWorld) step(choices ...string) bool {
	for _, c := range choices {
		switch {
		case c == "dial" && w.dialing:
			w.connect()
		case c == "sent" && w.pending != nil:
			w.toServer = append(w.toServer, *w.pending)
			w.pending = nil
			w.core.Sent()
		case c == "server" && len(w.toServer) > 0:
			w.server.receive(w.toServer[0])
			w.toServer = w.toServer[1:]
		case c == "push" && w.up:
			r := w.server.push()
			if r == nil {
				continue
			}
			w.toClient = append(w.toClient, *r)
		case c == "client" && len(w.toClient) > 0:
			r := w.toClient[0]
			w.toClient = w.toClient[1:]
			w.nonces[r.Type] = r.Nonce
			w.core.Response(r)
		default:
			t, ok := w.timer(c)
			if !ok {
				continue
			}
			delete(w.timers, t)
			w.core.Fired(t)
		}
		w.settle()
		return true
	}
	return false
}

// timer returns the first running timer of the kind of that name. A value is
// forgotten only in a quiet moment: the time that it takes is far longer than
// any message is on its way.
func (w *modelWorld) timer(kind string) (Timer, bool) {
	var of []Timer
	for t := range w.timers {
		if t.Kind.String() == kind {
			of = append(of, t)
		}
	}
	busy := w.pending != nil || len(w.toServer) > 0 || len(w.toClient) > 0
	if len(of) == 0 || kind == "forget" && busy {
		return Timer{}, false
	}
	slices.SortFunc(of, func(a, b Timer) int { return strings.Compare(a.Type+a.Name, b.Type+b.Name) })
	return of[0], true
}

var modelSteps = []string{"dial", "sent", "server", "push", "client", "reconnect", "nack", "absent", "forget"}

// TestModel: whatever a server sends and a network loses, the client holds in
// the end what the server holds.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &modelWorld{
			t: t, core: New(testTypes()...), subs: map[string]bool{},
			server: &modelServer{
				res:     map[string]map[string]string{"cds": {}, "eds": {}},
				version: map[string]int{},
				partial: rapid.Bool().Draw(t, "partial"),
			},
			timers: map[Timer]bool{}, view: map[string]string{}, told: map[string]bool{},
		}
		w.core.Start()
		w.settle()
		types := rapid.SampledFrom([]string{"cds", "eds"})
		names := rapid.SampledFrom([]string{"a", "b", "c"})
		values := rapid.SampledFrom([]string{"1", "2", "3", "!bad", "!worse"})
		for range rapid.IntRange(0, 300).Draw(t, "steps") {
			switch rapid.IntRange(0, 9).Draw(t, "what") {
			case 0:
				typ, name := types.Draw(t, "type"), names.Draw(t, "name")
				w.server.res[typ][name] = values.Draw(t, "value")
				w.server.version[typ]++
			case 1:
				typ := types.Draw(t, "type")
				delete(w.server.res[typ], names.Draw(t, "name"))
				w.server.version[typ]++
			case 2, 3:
				w.toggle(names.Draw(t, "name"))
			case 4:
				w.toggle(Wildcard)
			case 5:
				if w.up && rapid.IntRange(0, 3).Draw(t, "lose") == 0 || w.dialing {
					w.lose()
					w.settle()
				}
			default:
				w.step(rapid.SampledFrom(modelSteps).Draw(t, "step"))
			}
		}

		// Quiet: what is bad is repaired, and everything arrives.
		for typ, res := range w.server.res {
			for name, v := range res {
				if strings.HasPrefix(v, "!") {
					res[name] = "9"
					w.server.version[typ]++
				}
			}
		}
		for n := 0; w.step("dial", "sent", "server", "push", "client", "reconnect", "nack", "absent"); n++ {
			if n > 1000 {
				t.Fatal("client and server never come to rest")
			}
		}
		for name := range w.subs {
			if name == Wildcard {
				continue
			}
			want, there := w.server.res["eds"][name]
			got, held := w.view["eds/"+name]
			if there && got != want {
				t.Fatalf("eds %q: client has %q, server has %q", name, got, want)
			}
			if !there && !held && !w.told["eds/"+name] {
				t.Fatalf("eds %q: there is none, and nothing was told", name)
			}
		}
		if w.subs[Wildcard] {
			for name, want := range w.server.res["cds"] {
				if got := w.view["cds/"+name]; got != want {
					t.Fatalf("cds %q: client has %q, server has %q", name, got, want)
				}
			}
			for key := range w.view {
				name, cds := strings.CutPrefix(key, "cds/")
				if _, there := w.server.res["cds"][name]; cds && !there {
					t.Fatalf("%s: was deleted, client still has it", key)
				}
			}
		}
	})
}

func (w *modelWorld) toggle(name string) {
	on := !w.subs[name]
	if on {
		w.subs[name] = true
	} else {
		delete(w.subs, name)
	}
	switch {
	case name == Wildcard && on:
		w.core.SubscribeAll("cds")
	case name == Wildcard:
		w.core.UnsubscribeAll("cds")
		maps.DeleteFunc(w.view, func(k, _ string) bool { return strings.HasPrefix(k, "cds/") })
	case on:
		w.core.Subscribe("eds", name)
	default:
		w.core.Unsubscribe("eds", name)
		delete(w.view, "eds/"+name)
		delete(w.told, "eds/"+name)
	}
	w.settle()
}
