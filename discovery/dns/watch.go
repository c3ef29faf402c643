package dns

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	wire "github.com/miekg/dns"

	"gatehouse.internal/discovery"
	"gatehouse.internal/lbcore"
)

// patience is how long what has answered waits, for a first time, for what has
// not.
const patience = time.Second

// Source is what Client.Source returns. It may be watched by one at a time.
type Source struct {
	c    *Client
	q    Query
	log  *slog.Logger
	dups *discovery.Duplicates
	look chan struct{}

	former lbcore.Set // see Resume
}

// Refresh implements discovery.Refresher: everything is looked up anew, RefreshLimit
// after the last time at the earliest.
func (s *Source) Refresh() {
	select {
	case s.look <- struct{}{}:
	default:
	}
}

// Watch implements discovery.Source.
func (s *Source) Watch(ctx context.Context, sink discovery.Sink) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	p := s.c.join(s.q.Nameservers)
	defer s.c.leave(p)
	w := &watch{
		Source: s, pool: p, sink: sink,
		results: make(chan result), slots: make(chan struct{}, maxTargetLookups), asked: make(map[question]*memory),
		renewed: make(chan struct{}, 1), set: s.former, former: slices.Collect(values(s.former)),
	}
	s.c.watching(w, true)
	defer s.c.watching(w, false)
	s.former = lbcore.Set{} // of one Watch
	for _, typ := range s.q.roots() {
		q := question{s.q.Name, typ}
		w.roots = append(w.roots, q)
		w.asked[q] = newMemory(&s.q, q)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer w.wg.Wait()
	defer cancel()
	return w.run(ctx)
}

// roots returns the types of the records of the name itself.
func (q *Query) roots() []uint16 {
	if q.Type == SRV {
		return []uint16{wire.TypeSRV}
	}
	return q.Type.families()
}

// result is the end of one look-up.
type result struct {
	q question
	answer
}

// watch is one running Watch. Its goroutine owns it.
type watch struct {
	*Source
	pool    *pool
	sink    discovery.Sink
	wg      sync.WaitGroup
	results chan result
	renewed chan struct{} // one slot: others are asked from now on
	slots   chan struct{} // a place each for the look-ups of targets that run

	roots  []question
	asked  map[question]*memory // the roots, and the addresses of targets
	last   time.Time            // a root was asked for, or Refresh heeded
	wanted bool                 // Refresh was called
	began  time.Time            // what has no answer yet was asked for

	reported bool
	set      lbcore.Set        // the last one
	former   []lbcore.Endpoint // those of an earlier run that may not be gone
	inUse    netip.Addr        // of a logical endpoint: its first address
	left     []string          // records left out, as logged last
}

func (w *watch) run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		news := false
		select {
		case <-ctx.Done():
			return ctx.Err()
		case r := <-w.results:
			news = w.take(r)
		case <-w.look:
			w.wanted = true
		case <-w.renewed:
			w.renew(time.Now())
		case <-timer.C:
		}
		for more := true; more; { // many targets are one report
			select {
			case r := <-w.results:
				news = w.take(r) || news
			default:
				more = false
			}
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		now := time.Now()
		if w.wanted && !now.Before(w.last.Add(w.q.RefreshLimit)) {
			w.wanted, w.last = false, now // the name itself may still be asked for
			for _, m := range w.asked {
				m.due = now
			}
		}
		w.start(ctx, now)
		if news || !w.began.IsZero() {
			w.report(now)
		}
		timer.Reset(w.next(now).Sub(now))
	}
}

// renew has everything looked up anew, and again what is being looked up: that may
// be by nameservers that should not be asked any more.
func (w *watch) renew(now time.Time) {
	w.wanted = false
	for _, m := range w.asked {
		m.due, m.again = now, m.flying
	}
}

// take remembers the end of a look-up, and reports whether there is something to
// tell: of the name itself always, since it confirms what is known.
func (w *watch) take(r result) (news bool) {
	m := w.asked[r.q]
	if m == nil { // of a target that is gone
		return false
	}
	m.flying = false
	if more := len(r.addrs) - maxTargetAddrs; more > 0 && !slices.Contains(w.roots, r.q) {
		r.addrs = r.addrs[:maxTargetAddrs]
		r.left = append(slices.Clone(r.left), fmt.Sprintf("%s: %d addresses more than %d", short(r.q.String()), more, maxTargetAddrs))
	}
	news = m.take(r.answer, time.Now(), w.c.rand())
	w.recheck(m)
	if m.again {
		m.again, m.due = false, time.Now()
	}
	if r.q == w.roots[0] {
		w.adjust()
	}
	return news || slices.Contains(w.roots, r.q)
}

// adjust makes the targets of the SRV records what is asked for.
func (w *watch) adjust() {
	if w.q.Type != SRV {
		return
	}
	wanted := map[question]bool{w.roots[0]: true}
	for s := range w.asked[w.roots[0]].srvs {
		for _, typ := range w.q.Targets.families() {
			q := question{s.target, typ}
			wanted[q] = true
			if w.asked[q] == nil {
				w.asked[q] = newMemory(&w.q, q)
			}
		}
	}
	for q := range w.asked {
		if !wanted[q] {
			delete(w.asked, q)
		}
	}
}

// start begins the look-ups that are due.
func (w *watch) start(ctx context.Context, now time.Time) {
	for q, m := range w.asked {
		if m.flying || m.due.After(now) {
			continue
		}
		m.flying = true
		how := manner{tcp: w.q.TCP, doubt: m.doubts()}
		if slices.Contains(w.roots, q) {
			w.last = now
			for _, root := range w.roots {
				if root != q {
					how.beside = root.typ
				}
			}
		}
		w.wg.Go(func() {
			if !slices.Contains(w.roots, q) {
				select {
				case w.slots <- struct{}{}:
				case <-ctx.Done():
					return
				}
				defer func() { <-w.slots }()
			}
			r := result{q, w.c.lookup(ctx, w.pool, q, how)}
			select {
			case w.results <- r:
			case <-ctx.Done():
			}
		})
	}
}

// next returns when there is something to do.
func (w *watch) next(now time.Time) time.Time {
	next := now.Add(time.Hour)
	sooner := func(t time.Time) {
		if t.Before(next) {
			next = t
		}
	}
	for _, m := range w.asked {
		if !m.flying {
			sooner(m.due)
		}
	}
	if w.wanted {
		sooner(w.last.Add(w.q.RefreshLimit))
	}
	if end := w.began.Add(patience); !w.began.IsZero() && end.After(now) {
		sooner(end)
	}
	return next
}

// report tells what is known, once that is a whole.
func (w *watch) report(now time.Time) {
	pending, answered := 0, 0
	for _, m := range w.asked {
		if m.answered {
			answered++
		} else {
			pending++
		}
	}
	switch {
	case answered == 0:
		return
	case pending == 0:
		w.began = time.Time{}
	case w.began.IsZero():
		w.began = now
		return
	case now.Before(w.began.Add(patience)):
		return
	}
	d := w.collect()
	w.note(d.left)
	d.endpoints = append(d.endpoints, w.stay(d.endpoints, now)...)
	set, dropped, err := lbcore.NewSet(d.endpoints)
	if err != nil { // a bug: every address was looked at
		w.fail(err)
		return
	}
	w.dups.Note(append(d.merged, dropped...))
	doubt := w.doubt(pending)
	if set.Len() == 0 && !w.none() {
		if doubt == nil {
			doubt = w.negative()
		}
		w.fail(doubt)
		return
	}
	if !w.reported || doubt == nil || !w.set.Equal(set) {
		w.reported, w.set = true, set
		w.sink.Replace(set)
	}
	if doubt != nil {
		w.fail(doubt)
	}
}

// fail says that the set in force, if there is one, may be old.
func (w *watch) fail(err error) {
	w.sink.Fail(fmt.Errorf("dns: %w", err))
}

// doubt returns why the endpoints are not all that DNS says at present, or nil.
func (w *watch) doubt(pending int) error {
	var errs []error
	var held *discovery.HeldError
	listed := make(map[string]bool) // targets of the last answer
	for s, missed := range w.asked[w.roots[0]].srvs {
		listed[s.target] = listed[s.target] || missed == 0
	}
	for _, q := range w.order() {
		m := w.asked[q]
		if l, target := listed[q.name]; target && !l {
			continue // it is about to go with its record
		}
		err := m.doubt(w.lost(m))
		switch h, ok := errors.AsType[*discovery.HeldError](err); {
		case err == nil:
		case ok && held != nil: // one that is held says enough
		case ok:
			h.Listed = max(w.set.Len()-h.Known, 0)
			h.Known = w.set.Len()
			held = h
			errs = append(errs, fmt.Errorf("%s: %w", q, err))
		case m.good || m.class.failed():
			errs = append(errs, err)
		}
	}
	if pending > 0 {
		errs = append(errs, fmt.Errorf("%d look-ups have not ended yet", pending))
	}
	if len(errs) > maxNamed {
		errs = append(errs[:maxNamed], fmt.Errorf("and %d more", len(errs)-maxNamed))
	}
	return errors.Join(errs...)
}

// maxNamed is how many failures one error names.
const maxNamed = 4

// order returns what is asked for, the roots first.
func (w *watch) order() []question {
	all := slices.Clone(w.roots)
	for q := range w.asked {
		if !slices.Contains(w.roots, q) {
			all = append(all, q)
		}
	}
	slices.SortFunc(all[len(w.roots):], func(a, b question) int {
		if c := strings.Compare(a.name, b.name); c != 0 {
			return c
		}
		return int(a.typ) - int(b.typ)
	})
	return all
}

// lost returns how many endpoints would be gone without the records of m.
func (w *watch) lost(m *memory) int {
	if len(m.srvs) > 0 {
		return w.set.Len()
	}
	return min(len(m.addrs), w.set.Len())
}

// none reports whether it is believed that there is no endpoint, or what was known
// has been given up.
func (w *watch) none() bool {
	for q, m := range w.asked {
		if w.q.Type == SRV && q == w.roots[0] && m.good {
			continue // its targets have no addresses
		}
		if !m.empty && !m.lost {
			return false
		}
	}
	return true
}

// negative returns what is said of a set that is empty, and not believed yet.
func (w *watch) negative() error {
	for _, q := range w.order() {
		if err := w.asked[q].err; err != nil {
			return fmt.Errorf("%s: %w", q, err)
		}
	}
	return errors.New("no addresses")
}

// note warns of records that were left out, once.
func (w *watch) note(left []string) {
	if slices.Equal(left, w.left) {
		return
	}
	w.left = left
	if len(left) > 0 {
		w.log.Warn("records are left out", "source", w.q.String(), "records", len(left), "reasons", left[:min(len(left), maxLeft)])
	}
}

// collected is the endpoints of all memories.
type collected struct {
	endpoints []lbcore.Endpoint
	merged    []lbcore.Dropped // addresses that occurred again
	left      []string
}

func (w *watch) collect() (d collected) {
	for _, q := range w.order() {
		d.left = append(d.left, w.asked[q].left...)
	}
	slices.Sort(d.left)
	d.left = slices.Compact(d.left)
	if w.q.Type != SRV {
		d.endpoints = w.named()
		return d
	}
	root := w.asked[w.roots[0]]
	var targets []target
	for _, s := range root.sortedSRVs() {
		targets = append(targets, target{s, w.addresses(root, s.target)})
	}
	d.endpoints, d.merged = endpoints(targets)
	return d
}

// named returns the endpoints of a name that is looked up for addresses.
func (w *watch) named() (eps []lbcore.Endpoint) {
	var ips []netip.Addr
	var first netip.Addr
	for _, q := range w.preferred() {
		m := w.asked[q]
		if len(m.addrs) == 0 {
			continue
		}
		if !first.IsValid() {
			first = m.first
		}
		ips = append(ips, m.sortedAddrs()...)
		if w.q.Prefer != "" {
			break
		}
	}
	if !w.q.Logical {
		for _, ip := range ips {
			eps = append(eps, w.endpoint(ip))
		}
		return eps
	}
	if len(ips) == 0 {
		return nil
	}
	if !slices.Contains(ips, w.inUse) {
		w.inUse = first
	}
	e := w.endpoint(w.inUse)
	var others []lbcore.Addr
	for _, ip := range ips {
		if ip != w.inUse && len(others) < lbcore.MaxAdditional {
			others = append(others, w.endpoint(ip).Addr)
		}
	}
	e.Additional = lbcore.AddrsOf(others...)
	return []lbcore.Endpoint{e}
}

// preferred returns the roots, that of the preferred family first, which without
// a word is IPv6.
func (w *watch) preferred() []question {
	if len(w.roots) == 2 && w.q.Prefer != A {
		return []question{w.roots[1], w.roots[0]}
	}
	return w.roots
}

func (w *watch) endpoint(ip netip.Addr) lbcore.Endpoint {
	return lbcore.Endpoint{
		Addr: lbcore.IPAddr(netip.AddrPortFrom(ip, w.q.Port)), Weight: 1, Hostname: strings.TrimSuffix(w.q.Name, "."),
	}
}

// addresses returns those of a target: what look-ups found, or the hints if these
// failed and nothing is known.
func (w *watch) addresses(root *memory, name string) (all []netip.Addr) {
	failed := false
	for _, typ := range w.q.Targets.families() {
		m := w.asked[question{name, typ}]
		if m == nil {
			continue
		}
		all = append(all, m.sortedAddrs()...)
		failed = failed || m.run > 0 && m.class.failed()
	}
	if len(all) > 0 || !failed {
		return all
	}
	for _, ip := range root.hints[name] {
		if w.q.Targets == A && ip.Is6() || w.q.Targets == AAAA && ip.Is4() {
			continue
		}
		all = append(all, ip)
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return slices.Compact(all)
}
