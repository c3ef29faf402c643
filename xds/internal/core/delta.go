package core

import "slices"

// What is particular to the incremental variant: a request carries what has
// changed, a response says what is gone, and every response has an answer of its
// own.

// maxAnswers and maxNonces bound what is owed to a server that sends and does not
// read: the oldest answers are left out then.
const (
	maxAnswers = 100
	maxNonces  = 1 << 20 // bytes
)

// delta returns the request that leads from what was asked for to a, or a part
// of the way, and how far it leads. A NACK is alone in its request: Consul reads
// nothing else in one.
func (c *Core) delta(l *link, s *subscription, a asking) (Request, asking) {
	r := Request{Variant: Delta, Type: s.t.URL}
	if i := s.answerable(); i >= 0 {
		r.Nonce, r.Error = s.answers[i].nonce, s.answers[i].detail
		s.answers = slices.Delete(s.answers, i, i+1)
		if r.Error != "" {
			return r, s.sent
		}
	}
	if !same(a.names, s.sent.names) {
		r.Subscribe = without(a.names, s.sent.names)
		r.Unsubscribe = without(s.sent.names, a.names)
	}
	if s.sent.all && !a.all && len(r.Unsubscribe) == 0 {
		r.Unsubscribe = []string{Wildcard} // the empty list stood for it
	}
	if !s.asked {
		for _, name := range s.t.names() {
			if res := s.t.res[name]; res.held && res.from == l.index && res.version != "" && s.t.wants(res) {
				r.Initial = append(r.Initial, Held{name, res.version})
			}
		}
	}
	return r, a
}

// without returns what is in a and not in b, both sorted.
func without(a, b []string) (out []string) {
	for _, name := range a {
		if _, found := slices.BinarySearch(b, name); !found {
			out = append(out, name)
		}
	}
	return out
}

// bound leaves out the oldest of too many answers.
func (s *subscription) bound() {
	bytes := 0
	for _, a := range s.answers {
		bytes += len(a.nonce) + len(a.detail)
	}
	for len(s.answers) > 1 && (len(s.answers) > maxAnswers || bytes > maxNonces) {
		bytes -= len(s.answers[0].nonce) + len(s.answers[0].detail)
		s.answers = slices.Delete(s.answers, 0, 1)
	}
}
