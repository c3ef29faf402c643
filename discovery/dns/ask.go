package dns

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"gatehouse.internal/lbcore/adaptive"
)

// reply is the end of one query.
type reply struct {
	index int // of the nameserver
	answer
	took time.Duration
}

// ask asks the nameservers an absolute question until one answers, or all have
// failed as often as the settings allow.
func (p *pool) ask(ctx context.Context, st *settings, q question, m manner) (a answer) {
	for attempt := range st.attempts {
		// A round that is cut short says nothing of who was asked.
		if at, ok := ctx.Deadline(); attempt > 0 && ok && time.Until(at) < st.timeout {
			return a
		}
		// Who drops queries with EDNS0 may answer the second one.
		if a = p.round(ctx, st, q, m, attempt > 0); !a.class.failed() || ctx.Err() != nil {
			return a
		}
	}
	return a
}

// round asks each nameserver once at most.
func (p *pool) round(ctx context.Context, st *settings, q question, m manner, plain bool) answer {
	r := &round{
		p: p, st: st, q: q, doubt: m.doubt,
		order:   slices.Collect(st.sel.Iter()),
		replies: make(chan reply, len(st.servers)),
		flying:  make([]bool, len(st.servers)),
	}
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	stagger := time.NewTimer(0)
	defer stagger.Stop()
	for {
		select {
		case <-stagger.C:
			if len(r.order) == 0 {
				continue
			}
			i := r.order[0]
			r.order = r.order[1:]
			r.flying[i] = true
			r.inFlight++
			wg.Go(func() { r.query(ctx, i, m.tcp, plain) })
			if len(r.order) > 0 {
				stagger.Reset(st.stagger)
			}
		case x := <-r.replies:
			if ctx.Err() != nil {
				return failure(timeout, "%s: %w", q, ctx.Err())
			}
			a, done := r.take(x)
			if done {
				return a
			}
			stagger.Reset(0) // the next one, if there is one, need not wait
		case <-ctx.Done(): // before that nobody can be blamed
			return failure(timeout, "%s: %w", q, ctx.Err())
		}
	}
}

// round is the queries for one answer.
type round struct {
	p     *pool
	st    *settings
	q     question
	doubt bool

	order    []int // who is to be asked yet
	replies  chan reply
	flying   []bool
	inFlight int
	empty    []reply // answers without records that are not believed yet
	failed   []reply
}

func (r *round) query(ctx context.Context, i int, tcp, plain bool) {
	s := r.st.servers[i]
	s.asked.Add(1)
	ctx, cancel := context.WithTimeout(ctx, r.st.timeout)
	defer cancel()
	began := time.Now()
	a := r.p.c.query(ctx, s, r.q, tcp, plain)
	r.replies <- reply{i, a, time.Since(began)}
}

// take takes the end of a query into account, and returns the answer if it is
// decided.
func (r *round) take(x reply) (a answer, done bool) {
	r.flying[x.index] = false
	r.inFlight--
	switch {
	case x.class.failed():
		r.st.servers[x.index].fail()
		r.failed = append(r.failed, x)
	case x.class == found || x.alias != "" || !r.doubt:
		for _, e := range r.empty { // addresses exist elsewhere
			r.st.servers[e.index].fail()
		}
		return r.win(x), true
	default:
		r.empty = append(r.empty, x)
		if len(r.empty) > 1 {
			return r.win(r.empty...), true
		}
	}
	switch {
	case r.inFlight > 0 || len(r.order) > 0:
		return a, false
	case len(r.empty) > 0:
		return r.win(r.empty...), true
	}
	return r.failure(), true
}

// win ends the round with the answer of the first of replies.
func (r *round) win(replies ...reply) answer {
	for i, x := range replies {
		s := r.st.servers[x.index]
		s.observe(r.p.c.rank(), x.took)
		if i == 0 {
			s.won.Add(1)
		}
	}
	for i, flying := range r.flying {
		if flying {
			s := r.st.servers[i]
			s.late.Add(1)
			adaptive.Failed(s.member)
		}
	}
	return replies[0].answer
}

// failure returns what has become of all queries.
func (r *round) failure() answer {
	a := answer{class: timeout}
	var all []string
	for _, x := range r.failed {
		if x.class == refused {
			a.class = refused
		}
		all = append(all, fmt.Sprintf("%s: %v", r.st.servers[x.index].addr, x.err))
	}
	slices.Sort(all) // the order is random, and a failure that stays should read the same
	if more := len(all) - 4; more > 0 {
		all = append(all[:4], fmt.Sprintf("and %d more", more))
	}
	a.err = fmt.Errorf("%s: %s", r.q, strings.Join(all, "; "))
	return a
}
