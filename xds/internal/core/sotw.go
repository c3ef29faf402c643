package core

import "slices"

// What is particular to the state-of-the-world variant: every request carries
// the complete list of names, and for some types a response is complete too.

// ask returns what the subscriptions to a type amount to on this stream.
func (l *link) ask(s *subscription) asking {
	a := asking{all: s.t.wildcard, names: s.t.named()}
	switch {
	case a.all && s.t.Complete && !s.listed && len(a.names) == 0:
		// The first list of a stream may be empty, and then stays so. It is what
		// all servers understand: some take "*" for a name.
	case a.all:
		a.names = append([]string{Wildcard}, a.names...)
		slices.Sort(a.names)
	case l.variant == StateOfTheWorld && s.asked && !s.listed && len(a.names) == 0:
		a.all = true // the empty list can't take the empty list back
	}
	return a
}

// named returns the names subscribed to, sorted. It is the same slice as long as
// they are the same names.
func (t *typeState) named() []string {
	if !t.stale {
		return t.list
	}
	t.list, t.stale = nil, false
	for name, r := range t.res {
		if r.named {
			t.list = append(t.list, name)
		}
	}
	slices.Sort(t.list)
	return t.list
}

// same reports whether a and b have the same names. For the same slice it does
// not look at them: an answer to a response costs the same however many names
// there are.
func same(a, b []string) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0] || slices.Equal(a, b))
}

// stateOfTheWorld returns the request that asks for a. Whatever is said answers
// the last response too.
func (c *Core) stateOfTheWorld(l *link, s *subscription, a asking) Request {
	r := Request{Variant: StateOfTheWorld, Type: s.t.URL, Version: s.version, Nonce: s.nonce, Names: a.names}
	c.stopNack(l, s)
	for _, ans := range s.answers { // the last one: see owe
		r.Error = ans.detail
	}
	s.answers = s.answers[:0]
	return r
}

// missing returns the names, sorted, that a response without them deletes.
func (t *typeState) missing(present map[string]int) (names []string) {
	for name := range t.res {
		if _, there := present[name]; !there {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}
