package core

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// modelLink is what is on its way between a Core and one server.
type modelLink struct {
	server      *modelServer
	up, dialing bool
	pending     *Request // handed to the sender
	toServer    []Request
	toClient    []Response

	begun  map[string]bool // types requested on this stream
	nonces map[string]string
	owed   map[string]bool // nonces that may still be answered
}

// modelWorld joins a Core and its servers.
type modelWorld struct {
	t     *rapid.T
	core  *Core
	links []*modelLink
	subs  map[string]bool // EDS names; "*" for all of CDS

	timers map[Timer]bool
	view   map[string]string // "type/name" as the effects told
	told   map[string]bool   // "type/name" that the effects called gone or invalid
	former map[string]string // of an earlier run, by "type/name", that was not restored yet
}

func (w *modelWorld) settle() {
	w.core.Flush()
	for _, e := range w.core.Take() {
		w.t.Logf("effect %T%+v", e, e)
		switch e := e.(type) {
		case Connect:
			l := w.links[e.Server]
			if l.up || l.dialing {
				w.t.Fatalf("server %d is dialled twice", e.Server)
			}
			l.dialing = true
		case Disconnect:
			w.links[e.Server].end()
		case Send:
			w.checkRequest(w.links[e.Server], e.Request)
			w.links[e.Server].pending = &e.Request
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
		case Failed:
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

func (w *modelWorld) checkRequest(l *modelLink, r Request) {
	begun := l.begun[r.Type]
	switch {
	case l.pending != nil:
		w.t.Fatal("a request while another is on its way")
	case !slices.IsSorted(r.Names) || !slices.IsSorted(r.Subscribe) || !slices.IsSorted(r.Unsubscribe):
		w.t.Fatalf("names not sorted: %+v", r)
	case r.Node != (len(l.begun) == 0):
		w.t.Fatalf("node %v in request %d of the stream", r.Node, len(l.begun))
	case r.Variant == StateOfTheWorld && r.Nonce != l.nonces[r.Type]:
		w.t.Fatalf("nonce %q, want %q", r.Nonce, l.nonces[r.Type])
	case r.Variant == Delta && r.Nonce != "" && !l.owed[r.Nonce]:
		w.t.Fatalf("nonce %q is answered twice, or was never received", r.Nonce)
	case r.Variant == Delta && begun && r.Nonce == "" && len(r.Subscribe)+len(r.Unsubscribe) == 0:
		w.t.Fatal("a request that says nothing")
	case r.Type == "eds" && !begun && len(r.Names)+len(r.Subscribe) == 0:
		w.t.Fatal("an empty first list subscribes to everything")
	}
	delete(l.owed, r.Nonce)
	l.begun[r.Type] = true
}

func (w *modelWorld) connect(i int) {
	l := w.links[i]
	l.dialing, l.up = false, true
	l.begun, l.nonces, l.owed = map[string]bool{}, map[string]string{}, map[string]bool{}
	l.server.stream = map[string]*modelSub{}
	w.core.Connected(i, l.server.variant)
}

func (l *modelLink) end() {
	l.up, l.dialing, l.pending, l.toServer, l.toClient = false, false, nil, nil, nil
}

func (w *modelWorld) lose(i int) {
	w.t.Logf("lost %d", i)
	w.links[i].end()
	w.core.Closed(i, "lost", Lost)
}

// step moves one thing forward, in the order of the choices; it reports
// whether there was one.
func (w *modelWorld) step(choices ...string) bool {
	for _, c := range choices {
		for i, l := range w.links {
			if !w.move(i, l, c) {
				continue
			}
			w.t.Logf("moved %s %d", c, i)
			w.settle()
			return true
		}
		if t, ok := w.timer(c); ok {
			delete(w.timers, t)
			w.t.Logf("fired %+v", t)
			w.core.Fired(t)
			w.settle()
			return true
		}
	}
	return false
}

// move moves one thing on the way between the core and a server, if it is there.
func (w *modelWorld) move(i int, l *modelLink, c string) bool {
	switch {
	case c == "dial" && l.dialing:
		w.connect(i)
	case c == "sent" && l.pending != nil:
		l.toServer = append(l.toServer, *l.pending)
		l.pending = nil
		w.core.Sent(i)
	case c == "server" && len(l.toServer) > 0:
		l.server.receive(l.toServer[0])
		l.toServer = l.toServer[1:]
	case (c == "push" || c == "beat") && l.up:
		r := map[string]func() *Response{"push": l.server.push, "beat": l.server.beat}[c]()
		if r == nil {
			return false
		}
		l.toClient = append(l.toClient, *r)
	case c == "client" && len(l.toClient) > 0:
		r := l.toClient[0]
		w.t.Logf("response of %d: %+v", i, r)
		l.toClient = l.toClient[1:]
		l.nonces[r.Type], l.owed[r.Nonce] = r.Nonce, true
		w.core.Response(i, r)
	default:
		return false
	}
	return true
}

// timer returns the first running timer of the kind of that name. A value is
// forgotten, or called non-existent where there was one, only in a quiet moment:
// the time that it takes is far longer than any message is on its way.
func (w *modelWorld) timer(kind string) (Timer, bool) {
	var of []Timer
	for t := range w.timers {
		if t.Kind.String() == kind {
			of = append(of, t)
		}
	}
	if len(of) == 0 || kind == "forget" && w.busy() {
		return Timer{}, false
	}
	slices.SortFunc(of, func(a, b Timer) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
	return of[0], true
}

func (w *modelWorld) busy() bool {
	return slices.ContainsFunc(w.links, func(l *modelLink) bool {
		return l.pending != nil || len(l.toServer) > 0 || len(l.toClient) > 0
	})
}

var modelSteps = []string{"dial", "sent", "server", "push", "beat", "client", "reconnect", "nack", "absent", "forget", "ttl"}

// TestModel: whatever servers send and a network loses, the client holds in the
// end what the server holds that counts, which is the first one that has anything.
func TestModel(t *testing.T) {
	for name, variants := range map[string][]Variant{
		"sotw": {StateOfTheWorld}, "delta": {Delta}, "both": {StateOfTheWorld, Delta},
	} {
		for servers := 1; servers <= 3; servers++ {
			t.Run(fmt.Sprint(name, servers), func(t *testing.T) {
				rapid.Check(t, func(t *rapid.T) { model(t, rapid.SampledFrom(variants), servers) })
			})
		}
	}
}

func model(t *rapid.T, variant *rapid.Generator[Variant], servers int) {
	w := &modelWorld{
		t: t, core: New(servers, testTypes()...), subs: map[string]bool{},
		timers: map[Timer]bool{}, view: map[string]string{}, told: map[string]bool{},
	}
	for range servers {
		w.links = append(w.links, &modelLink{server: &modelServer{
			t: t, variant: variant.Draw(t, "variant"),
			res:     map[string]map[string]string{"cds": {}, "eds": {}},
			version: map[string]int{},
			partial: rapid.Bool().Draw(t, "partial"),
			denies:  rapid.Bool().Draw(t, "denies"),
			split:   rapid.Bool().Draw(t, "split"),
			errs:    rapid.Bool().Draw(t, "errs"),
			ttl:     rapid.Bool().Draw(t, "ttl"),
		}})
	}
	w.core.Start()
	w.settle()
	types := rapid.SampledFrom([]string{"cds", "eds"})
	names := rapid.SampledFrom([]string{"a", "b", "c"})
	w.former = rapid.MapOfN(rapid.SampledFrom([]string{"cds/a", "cds/b", "cds/c", "eds/a", "eds/b", "eds/c"}),
		rapid.SampledFrom([]string{"1", "2", "8", "!bad"}), 0, 6).Draw(t, "of an earlier run")
	values := rapid.SampledFrom([]string{"1", "2", "3", "!bad", "!worse"})
	link := rapid.IntRange(0, servers-1)
	for range rapid.IntRange(0, 300).Draw(t, "steps") {
		switch rapid.IntRange(0, 9).Draw(t, "what") {
		case 0:
			s, typ, name := w.links[link.Draw(t, "server")].server, types.Draw(t, "type"), names.Draw(t, "name")
			s.res[typ][name] = values.Draw(t, "value")
			s.version[typ]++
		case 1:
			s, typ := w.links[link.Draw(t, "server")].server, types.Draw(t, "type")
			delete(s.res[typ], names.Draw(t, "name"))
			s.version[typ]++
		case 2, 3:
			w.toggle(names.Draw(t, "name"))
		case 4:
			w.toggle(Wildcard)
		case 5:
			i := link.Draw(t, "server")
			if l := w.links[i]; l.up && rapid.IntRange(0, 3).Draw(t, "lose") == 0 || l.dialing {
				w.lose(i)
				w.settle()
			}
		default:
			w.step(rapid.SampledFrom(modelSteps).Draw(t, "step"))
		}
	}

	// Quiet: what is bad is repaired, and everything arrives.
	for _, l := range w.links {
		for typ, res := range l.server.res {
			for name, v := range res {
				if strings.HasPrefix(v, "!") {
					res[name] = "9"
					l.server.version[typ]++
				}
			}
		}
	}
	for i, l := range w.links {
		if l.server.ttl && l.up {
			w.lose(i) // heartbeats that were lost are made up for only by a new stream
		}
	}
	w.settle()
	for n := 0; w.step("dial", "sent", "server", "push", "client", "reconnect", "nack", "absent"); n++ {
		if n > 3000 {
			t.Fatal("client and server never come to rest")
		}
	}
	w.checkEnd(w.links[w.core.active].server)
}

// checkEnd compares what the client was told with what the server holds.
func (w *modelWorld) checkEnd(s *modelServer) {
	for name := range w.subs {
		if _, there := w.links[0].server.res["eds"][name]; there && w.core.active != 0 {
			w.t.Fatalf("eds %q: the first server has it, but server %d counts", name, w.core.active)
		}
	}
	for name := range w.subs {
		if name == Wildcard {
			continue
		}
		want, there := s.res["eds"][name]
		got, held := w.view["eds/"+name]
		if there && got != want {
			w.t.Fatalf("eds %q: client has %q, server has %q", name, got, want)
		}
		if !there && !held && !w.told["eds/"+name] {
			w.t.Fatalf("eds %q: there is none, and nothing was told", name)
		}
		if sorry := s.errs && w.told["eds/"+name]; !there && held && s.variant == Delta && !sorry {
			w.t.Fatalf("eds %q: was removed, client still has it", name)
		}
	}
	if !w.subs[Wildcard] {
		return
	}
	for name, want := range s.res["cds"] {
		if got := w.view["cds/"+name]; got != want {
			w.t.Fatalf("cds %q: client has %q, server has %q", name, got, want)
		}
	}
	for key := range w.view {
		name, cds := strings.CutPrefix(key, "cds/")
		if _, there := s.res["cds"][name]; cds && !there {
			w.t.Fatalf("%s: was deleted, client still has it", key)
		}
	}
}

func (w *modelWorld) toggle(name string) {
	on := !w.subs[name]
	w.t.Logf("subscribed to %q: %v", name, on)
	if on {
		w.subs[name] = true
	} else {
		delete(w.subs, name)
	}
	for _, key := range slices.Sorted(maps.Keys(w.former)) {
		typ, known, _ := strings.Cut(key, "/")
		if on && (typ == "eds" && known == name || typ == "cds" && name == Wildcard) {
			value := w.former[key]
			delete(w.former, key)
			if err := w.core.Restore(typ, known, "0", []byte(known+"="+value)); err == nil && value[0] == '!' && !w.core.typ(typ).res[known].known() {
				w.t.Fatalf("%s: %s was restored", key, value)
			}
		}
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
