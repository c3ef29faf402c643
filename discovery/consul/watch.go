package consul

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"github.com/hashicorp/consul/api"

	"gatehouse.internal/discovery"
	"gatehouse.internal/internal/contain"
	"gatehouse.internal/lbcore"
)

// refresh is how often a source that is told of changes reads its instances
// all the same, give or take a fifth.
const refresh = 5 * time.Minute

// defaultPoll is the default of Query.PollInterval.
const defaultPoll = 10 * time.Second

// source is what Client.Service returns.
type source struct {
	c    *Client
	q    Query
	log  *slog.Logger
	dups *discovery.Duplicates

	resumes bool // with
	before  lbcore.Set
}

// Resume implements discovery.Resumer: what the first answers lack of set is
// believed to be gone as it is of a later one.
func (s *source) Resume(set lbcore.Set) { s.resumes, s.before = true, set }

// Watch implements discovery.Source.
func (s *source) Watch(ctx context.Context, sink discovery.Sink) error {
	w := &watch{
		blocking: blocking{c: s.c, opts: s.q.options()},
		q:        s.q, log: s.log, dups: s.dups, sink: sink,
		look:  make(chan struct{}, 1),
		known: s.resumes, set: s.before, resumed: s.resumes,
	}
	s.resumes, s.before = false, lbcore.Set{} // of one Watch
	s.c.join(w)
	defer s.c.leave(w)
	defer w.release()
	return w.run(ctx)
}

// options returns what requests for q have in common.
func (q *Query) options() api.QueryOptions {
	return api.QueryOptions{
		Datacenter: q.Datacenter, Namespace: q.Namespace, Partition: q.Partition,
		Peer: q.Peer, SamenessGroup: q.SamenessGroup, Near: q.Near,
		AllowStale:        q.Consistency == Stale || q.Consistency == "",
		RequireConsistent: q.Consistency == Consistent,
		UseCache:          q.Cached,
	}
}

// watch is one running Watch. Its goroutine owns it; look and expect belong to
// the shared queries too.
type watch struct {
	blocking
	q    Query
	log  *slog.Logger
	dups *discovery.Duplicates
	sink discovery.Sink

	look   chan struct{} // the shared queries say that there may be news
	expect atomic.Bool   // and that something has changed
	anew   atomic.Bool   // there is news whatever they say: see SetAccess

	resumed bool       // set is that of an earlier run, and no answer was believed yet
	known   bool       // set was reported
	set     lbcore.Set // the last one
	seen    uint64     // the highest index of an answer that was believed
	held    time.Time  // until when a loss is held back; zero means none is
	refused []refusal  // as logged last
	partial bool       // that ACLs hide instances was logged
}

// alone reports whether the shared queries can't tell of q's changes.
func (q *Query) alone() bool { return q.PreparedQuery != "" || q.SamenessGroup != "" || q.Connect }

func (w *watch) run(ctx context.Context) error {
	for {
		err := w.read(ctx)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			w.index = 0 // to wait would be to wait for news after an answer that was not taken
			w.sink.Fail(fmt.Errorf("%s: %w", w.q.name(), err))
			err = w.sleep(ctx, w.backoff.fail(), true)
		default:
			w.backoff.reset()
			err = w.idle(ctx)
		}
		if err != nil {
			return err
		}
	}
}

// read asks for the instances once, and reports them.
func (w *watch) read(ctx context.Context) error {
	expect := w.expect.Swap(false)
	before := w.set
	block := !w.sharing() && w.q.PreparedQuery == ""
	a, _, err := w.get(ctx, block)
	if err != nil {
		return err
	}
	// Also where the index says that there is nothing new: what ACLs take away
	// changes no index.
	if err := w.take(ctx, a); err != nil {
		return err
	}
	if expect && w.set.Equal(before) { // see shared.go
		if err := pause(ctx, time.Second); err != nil {
			return err
		}
		if a, _, err = w.get(ctx, false); err != nil {
			return err
		}
		return w.take(ctx, a)
	}
	return nil
}

// idle waits until it is time for the next request, if that won't block.
func (w *watch) idle(ctx context.Context) error {
	switch {
	case w.q.PreparedQuery != "":
		return pause(ctx, jitter(cmp.Or(w.q.PollInterval, defaultPoll)))
	case !w.sharing():
		return ctx.Err()
	}
	return w.sleep(ctx, jitter(refresh), false)
}

// sleep waits for d, or until the shared queries tell of news. That they can't
// tell is reported, but is nothing new to a source that fails itself.
func (w *watch) sleep(ctx context.Context, d time.Duration, failing bool) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-w.look:
		}
		if w.anew.Swap(false) {
			return nil
		}
		err := w.c.trouble(w)
		if err == nil {
			return nil
		}
		if !failing {
			w.sink.Fail(fmt.Errorf("%s: %w", w.q.name(), err))
		}
	}
}

// jitter returns d, give or take a fifth.
func jitter(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.8 + 0.4*rand.Float64()))
}

// sharing reports whether the shared queries tell of changes.
func (w *watch) sharing() bool { return !w.q.alone() && w.c.shared.Load() }

// answer is what Consul says of the instances.
type answer struct {
	entries []*api.ServiceEntry
	meta    *api.QueryMeta
	// confirmed says that it was asked for once more, of the leader.
	confirmed bool
}

// get makes a request; see blocking.once.
func (w *watch) get(ctx context.Context, block bool) (a answer, same bool, err error) {
	w.polls = w.q.PreparedQuery != "" || w.sharing() // the shared queries have a pace
	a.meta, same, err = w.once(ctx, block, a.ask(w.c, &w.q))
	return a, same, err
}

// ask returns the request for what q asks for.
func (a *answer) ask(c *Client, q *Query) func(*api.QueryOptions) (*api.QueryMeta, error) {
	return func(opts *api.QueryOptions) (meta *api.QueryMeta, err error) {
		if q.PreparedQuery == "" {
			list := c.api.Health().Service
			if q.Connect {
				list = c.api.Health().Connect
			}
			a.entries, meta, err = list(q.Service, "", false, opts)
			if err != nil || len(a.entries) > 0 {
				return meta, err
			}
			return meta, unmask(meta, opts, func(opts *api.QueryOptions) (meta *api.QueryMeta, err error) {
				_, meta, err = list(q.Service, "", false, opts)
				return meta, err
			})
		}
		var resp *api.PreparedQueryExecuteResponse
		resp, meta, err = c.api.PreparedQuery().Execute(q.PreparedQuery, opts)
		if err != nil {
			return nil, err
		}
		if resp == nil {
			return nil, errors.New("the answer is null")
		}
		a.entries = nil
		for i := range resp.Nodes {
			a.entries = append(a.entries, &resp.Nodes[i])
		}
		return meta, nil
	}
}

// decode is that of the query, whose panics are errors.
func (w *watch) decode(entries []*api.ServiceEntry) (d decoded, err error) {
	defer w.c.cfg.Panics.Recover(contain.Decoder, &err)
	return w.q.decode(entries), nil
}

// take reports what an answer says, or as much of it as is to be believed.
func (w *watch) take(ctx context.Context, a answer) error {
	d, err := w.decode(a.entries)
	if err != nil {
		return w.c.fail(err)
	}
	set, dropped, err := lbcore.NewSet(d.endpoints)
	if err != nil {
		return w.c.fail(err)
	}
	w.dups.Note(dropped)
	w.note(d.refused, a.meta.ResultsFilteredByACLs)

	behind := w.c.behind(a.meta)
	gone := missing(w.set, set)
	switch {
	case set.Len() == 0 && a.meta.ResultsFilteredByACLs:
		return w.c.fail(errFiltered)
	case !w.known && set.Len() == 0 && behind != nil:
		return w.c.fail(behind)
	case !w.known && len(a.entries) == 0 && !a.confirmed:
		// A server that lags or was just started has not got them yet, and what
		// is streamed does not tell of ACLs.
		return w.confirm(ctx)
	case !w.known || len(gone) == 0:
		w.seen = max(w.seen, a.meta.LastIndex)
		return w.accept(set, behind)
	case behind != nil:
		// It is believed about what is there.
		all, _, err := lbcore.NewSet(append(d.endpoints, gone...))
		if err != nil {
			return w.c.fail(err)
		}
		return w.accept(all, fmt.Errorf("%w: %d instances that it does not list are kept", behind, len(gone)))
	case a.confirmed || !w.resumed && !wiped(w.set.Len(), len(gone)) && a.meta.LastIndex >= w.seen:
		// A lower index is that of a server that has not caught up since it
		// was started, or of a restored snapshot. Of an earlier run it is not known.
		w.seen = a.meta.LastIndex
		return w.accept(set, nil)
	}
	doubt := w.confirm(ctx)
	if doubt == nil || ctx.Err() != nil {
		return ctx.Err()
	}
	now := time.Now()
	if w.held.IsZero() {
		w.held = now.Add(w.c.cfg.EmptyHold)
		w.c.held.Add(1)
	}
	if now.Before(w.held) || refused(doubt) || errors.Is(doubt, errFiltered) {
		return &discovery.HeldError{Listed: set.Len(), Known: w.set.Len(), Until: w.held, Reason: doubt}
	}
	return w.accept(set, nil)
}

// confirm asks the leader if most of the instances are really gone, and
// reports what it says. The error is why it can't tell.
func (w *watch) confirm(ctx context.Context) error {
	opts := w.opts
	opts.AllowStale, opts.UseCache = false, false
	opts.RequireConsistent = true // a new leader answers before it has caught up, if it is let
	opts.Token = w.token
	a := answer{confirmed: true}
	var err error
	if a.meta, err = w.c.lookup(ctx, opts, a.ask(w.c, &w.q)); err != nil {
		return err
	}
	if behind := w.c.behind(a.meta); behind != nil {
		return behind
	}
	return w.take(ctx, a)
}

// accept reports set, and returns why it may be old, if that is known.
func (w *watch) accept(set lbcore.Set, doubt error) error {
	w.known, w.set, w.resumed = true, set, w.resumed && doubt != nil
	w.release()
	w.sink.Replace(set)
	if doubt != nil {
		return w.c.fail(doubt)
	}
	return nil
}

// release ends a hold.
func (w *watch) release() {
	if !w.held.IsZero() {
		w.held = time.Time{}
		w.c.held.Add(-1)
	}
}

// errFiltered is why an empty answer is no news.
var errFiltered = errors.New("the token may not read any instance (service:read and node:read are needed), so that nothing is known of them")

// maxNoted is how many refused instances one log line names.
const maxNoted = 10

// note warns of instances that were left out, once.
func (w *watch) note(list []refusal, filtered bool) {
	w.c.refused.Add(uint64(len(list)))
	if !slices.Equal(list, w.refused) {
		w.refused = list
		var named []string
		for _, r := range list[:min(len(list), maxNoted)] {
			named = append(named, r.instance+": "+r.reason)
		}
		if len(list) > 0 {
			w.log.Warn("instances are left out", "instances", len(list), "reasons", named)
		}
	}
	if filtered && !w.partial {
		w.log.Warn("the token may not read all instances, others may be missing", "source", w.q.name())
	}
	w.partial = filtered
}

// missing returns the endpoints of old whose addresses next does not have.
func missing(old, next lbcore.Set) (gone []lbcore.Endpoint) {
	for _, e := range old.All() {
		if next.Find(e.Addr) < 0 {
			gone = append(gone, e)
		}
	}
	return gone
}

// wiped reports whether a loss of gone from known is too great to be believed
// at once.
func wiped(known, gone int) bool { return gone == known || 2*gone > known }

// behind says why an answer can't be believed about what is gone, or is nil.
func (c *Client) behind(m *api.QueryMeta) error {
	switch {
	case !m.KnownLeader && m.QueryBackend != api.QueryBackendStreaming: // which does not say
		return errors.New("the server knows no leader")
	case m.LastContact > c.cfg.MaxStale:
		return fmt.Errorf("the server has not heard of the leader for %v", m.LastContact)
	case m.CacheAge > c.cfg.MaxStale:
		return fmt.Errorf("the agent's cache is %v old", m.CacheAge)
	}
	return nil
}
