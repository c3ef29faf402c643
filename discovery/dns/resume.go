package dns

import (
	"iter"
	"slices"
	"time"

	wire "github.com/miekg/dns"

	"gatehouse.internal/lbcore"
)

// Resume implements discovery.Resumer: an endpoint of set, which is that of an
// earlier run, stays for as long as it would if its records had been known all the
// time.
func (s *Source) Resume(set lbcore.Set) { s.former = set }

// formerHold bounds how long an answer about the targets of SRV records that fails
// keeps endpoints of an earlier run, of which it is not known whose they were.
const formerHold = 30 * time.Second

// stay returns the endpoints of an earlier run that are not among listed and may not
// be gone. Where nothing is listed there is none: it is reported, or not, for other
// reasons.
func (w *watch) stay(listed []lbcore.Endpoint, now time.Time) (more []lbcore.Endpoint) {
	if len(w.former) == 0 || len(listed) == 0 {
		return nil
	}
	has := make(map[lbcore.Addr]bool, len(listed))
	for i := range listed {
		has[listed[i].Addr] = true
	}
	w.former = slices.DeleteFunc(w.former, func(e lbcore.Endpoint) bool { return has[e.Addr] || w.gone(e.Addr, now) })
	return slices.Clone(w.former)
}

// gone reports whether enough answers have lacked a.
func (w *watch) gone(a lbcore.Addr, now time.Time) bool {
	if w.q.Type == SRV {
		root := w.asked[w.roots[0]]
		return root.answers >= w.q.Misses && (!w.failing() || now.Sub(root.firstAt) >= formerHold)
	}
	for _, q := range w.roots {
		if v6 := q.typ == wire.TypeAAAA; v6 == a.AddrPort().Addr().Is6() {
			return w.asked[q].answers >= w.q.Misses
		}
	}
	return true // the family is not asked for any more
}

// failing reports whether any look-up of a target has not succeeded yet.
func (w *watch) failing() bool {
	for _, m := range w.asked {
		if !m.answered || m.run > 0 && m.class.failed() {
			return true
		}
	}
	return false
}

// recheck has what an earlier run knew looked for again soon.
func (w *watch) recheck(m *memory) {
	if soon := time.Now().Add(missingCheck); len(w.former) > 0 && slices.Contains(w.roots, m.question) && m.due.After(soon) {
		m.due = soon
	}
}

func values(set lbcore.Set) iter.Seq[lbcore.Endpoint] {
	return func(yield func(lbcore.Endpoint) bool) {
		for _, e := range set.All() {
			if !yield(e) {
				return
			}
		}
	}
}
