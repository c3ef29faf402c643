package core

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"pgregory.net/rapid"
)

// modelServer is what both variants of an obvious server have.
type modelServer struct {
	t       *rapid.T
	variant Variant
	res     map[string]map[string]string // by type and name
	version map[string]int
	nonce   int

	partial bool // EDS responses of the state of the world carry only what changed
	denies  bool // says of names it does not have that they are removed
	split   bool // sends one resource at a time
	errs    bool // says of names it does not have that they are errors
	ttl     bool // gives what it sends a time, and sends heartbeats

	stream map[string]*modelSub // by type
}

// modelSub is what a server knows of one type on a stream.
type modelSub struct {
	nonce, version string
	all            bool
	names          []string
	open           bool                // state of the world: a request waits for news
	returned       map[string]string   // what the client was sent, or in delta its version
	errored        map[string]bool     // state of the world: names that the client has an error for
	asked          map[string]bool     // delta: names that want an answer
	first          bool                // delta: nothing was sent yet
	sent           map[string][]string // delta: names by nonce
}

func (s *modelServer) receive(r Request) {
	if r.Variant != s.variant {
		s.t.Fatalf("a request of the %v variant", r.Variant)
	}
	if r.Variant == Delta {
		s.receiveDelta(r)
		return
	}
	sub := s.stream[r.Type]
	if sub == nil {
		sub = &modelSub{all: len(r.Names) == 0, returned: map[string]string{}, errored: map[string]bool{}}
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
	for name := range sub.errored {
		if !slices.Contains(r.Names, name) {
			delete(sub.errored, name)
		}
	}
}

// resource returns a resource as it is sent.
func (s *modelServer) resource(typ, name, version string) Resource {
	r := Resource{Type: typ, Body: []byte(name + "=" + s.res[typ][name])}
	if s.ttl || s.variant == Delta {
		r.Name, r.Version = name, version
	}
	if s.ttl {
		r.TTL = 9
	}
	return r
}

// beat returns a response of heartbeats, or nil.
func (s *modelServer) beat() *Response {
	for _, typ := range []string{"cds", "eds"} {
		sub := s.stream[typ]
		if sub == nil || !s.ttl || s.variant == StateOfTheWorld && (!sub.open || sub.version != fmt.Sprint("v", s.version[typ])) {
			continue
		}
		resp := Response{Type: typ, Version: fmt.Sprint("v", s.version[typ]), Nonce: fmt.Sprint("n", s.nonce+1)}
		for _, name := range slices.Sorted(maps.Keys(sub.returned)) {
			version := sub.returned[name]
			if _, there := s.res[typ][name]; !there {
				continue
			}
			if s.variant == StateOfTheWorld {
				version = resp.Version
			} else if version == "" {
				continue
			}
			resp.Resources = append(resp.Resources, Resource{Name: name, Version: version, Bare: true, TTL: 9})
		}
		if len(resp.Resources) == 0 {
			continue
		}
		s.nonce++
		if s.variant == StateOfTheWorld {
			sub.nonce, sub.open = resp.Nonce, false
		} else {
			sub.sent[resp.Nonce] = nil
		}
		return &resp
	}
	return nil
}

// push returns the next response, or nil.
func (s *modelServer) push() *Response {
	if s.variant == Delta {
		return s.pushDelta()
	}
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
				resp.Resources = append(resp.Resources, s.resource(typ, name, version))
			}
			sub.returned[name] = body
			delete(sub.errored, name)
		}
		for _, name := range sub.names {
			if _, there := s.res[typ][name]; s.errs && !there && name != Wildcard && !sub.errored[name] {
				resp.Errors = append(resp.Errors, ResourceError{name, 5, "none"})
				sub.errored[name], news = true, true
			}
		}
		if news {
			s.nonce++
			sub.nonce, sub.open = resp.Nonce, false
			return &resp
		}
	}
	return nil
}

// receiveDelta honours every subscription, whatever the nonce, and resends what is
// refused.
func (s *modelServer) receiveDelta(r Request) {
	sub := s.stream[r.Type]
	if sub == nil {
		sub = &modelSub{
			all: len(r.Subscribe) == 0, first: true, returned: map[string]string{}, asked: map[string]bool{}, sent: map[string][]string{},
		}
		s.stream[r.Type] = sub
		for _, h := range r.Initial {
			sub.returned[h.Name] = h.Version
		}
	} else if len(r.Initial) > 0 {
		s.t.Fatal("initial versions in a later request")
	}
	if r.Nonce != "" {
		names, owed := sub.sent[r.Nonce]
		if !owed {
			s.t.Fatalf("nonce %q is answered twice, or was never sent", r.Nonce)
		}
		delete(sub.sent, r.Nonce)
		if r.Error != "" {
			for _, name := range names {
				if _, sent := sub.returned[name]; sent && strings.Contains(r.Error, fmt.Sprintf("%q", name)) {
					sub.returned[name] = "" // the client may hold another version
				}
			}
		}
	}
	// What was sent on this stream is never forgotten, so that its end is told to
	// whoever asks again: what is on its way to the client can't be told from an
	// answer to its request.
	for _, name := range r.Subscribe {
		if name == Wildcard {
			sub.all, sub.first = true, true
			for n := range sub.returned {
				sub.returned[n] = ""
			}
			continue
		}
		if _, sent := sub.returned[name]; sent {
			sub.returned[name] = ""
		}
		sub.asked[name] = true
		if !slices.Contains(sub.names, name) {
			sub.names = append(sub.names, name)
		}
	}
	for _, name := range r.Unsubscribe {
		if name == Wildcard {
			sub.all = false
			continue
		}
		sub.names = slices.DeleteFunc(sub.names, func(n string) bool { return n == name })
		delete(sub.asked, name)
	}
}

// pushDelta returns the next response, or nil.
func (s *modelServer) pushDelta() *Response {
	for _, typ := range []string{"cds", "eds"} {
		sub := s.stream[typ]
		if sub == nil {
			continue
		}
		resp := Response{Type: typ, Version: fmt.Sprint("v", s.version[typ]), Nonce: fmt.Sprint("n", s.nonce+1)}
		wants := func(name string) bool { return sub.all || slices.Contains(sub.names, name) }
		full := func() bool { return s.split && len(resp.Resources)+len(resp.Removed) > 0 }
		for _, name := range slices.Sorted(maps.Keys(s.res[typ])) {
			version := s.res[typ][name] // what a resource says is a version too
			if wants(name) && sub.returned[name] != version && !full() {
				resp.Resources = append(resp.Resources, s.resource(typ, name, version))
				sub.returned[name] = version
				delete(sub.asked, name)
			}
		}
		for _, name := range slices.Sorted(maps.Keys(sub.returned)) {
			if _, there := s.res[typ][name]; !there && wants(name) && !full() {
				resp.Removed = append(resp.Removed, name)
				delete(sub.returned, name)
				delete(sub.asked, name)
			}
		}
		for _, name := range slices.Sorted(maps.Keys(sub.asked)) {
			if _, there := s.res[typ][name]; !there && !full() {
				if s.errs {
					resp.Errors = append(resp.Errors, ResourceError{name, 5, "none"})
				} else if s.denies {
					resp.Removed = append(resp.Removed, name)
				}
				delete(sub.asked, name)
			}
		}
		if len(resp.Resources)+len(resp.Removed)+len(resp.Errors) > 0 || sub.first && sub.all {
			s.nonce++
			sub.first = false
			for _, r := range resp.Resources {
				sub.sent[resp.Nonce] = append(sub.sent[resp.Nonce], r.Name)
			}
			if len(resp.Resources) == 0 {
				sub.sent[resp.Nonce] = nil
			}
			return &resp
		}
	}
	return nil
}
