package core

import "slices"

// What is particular to the state-of-the-world variant: every request carries
// the complete list of names, and for some types a response is complete too.

// ask returns what the subscriptions of t amount to on this stream.
func (t *typeState) ask() asking {
	var a asking
	for name, r := range t.res {
		if r.named {
			a.names = append(a.names, name)
		}
	}
	a.all = t.wildcard
	switch {
	case t.wildcard && t.Complete && !t.listed && len(a.names) == 0:
		// The first list of a stream may be empty, and then stays so.
	case t.wildcard:
		a.names = append(a.names, Wildcard)
	case t.asked && !t.listed && len(a.names) == 0:
		a.all = true // the empty list can't take the empty list back
	}
	slices.Sort(a.names)
	return a
}

// request returns the request that asks for a.
func (t *typeState) request(a asking) Request {
	return Request{Type: t.URL, Version: t.version, Nonce: t.nonce, Names: a.names, Error: t.detail}
}

// removed returns the names, sorted, that a response without them deletes.
func (t *typeState) removed(present map[string]bool) (names []string) {
	if !t.Complete {
		return nil
	}
	for name := range t.res {
		if !present[name] {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}
