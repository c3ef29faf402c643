package consul

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/consul/api"
)

// Above Config.MaxWatches no source has a blocking query of its own. For each
// scope that they look in there are four instead, on what is small and changes
// with the catalog: the checks that are critical, those that are warning, the
// services' tags, and the nodes. What differs between two answers names the
// services to read anew. A change that shows in no name, such as of a weight or
// a port, makes all of them read, some 100 a second at most if that goes on. Who
// finds no change looks once more a second later: another server may have told of
// it than the one that was read, or the agent's cache may be behind.
//
// The obvious single query, on all checks, would answer with every check of the
// datacenter each time that the text of one changes.
//
// One of the four, the guard, always runs, and waits for guardWait only. Consul
// lets a query wait to its end where a restored snapshot has put the index
// back, and what it streams neither tells of that nor of the leader's loss; the
// guard's answers do.

// guard is the index of the signal that always runs: its answers are the
// smallest.
const guard = 0

// guardWait bounds the time until all know of a restored snapshot, and half the
// time until they know of the loss of the leader: what an answer says of it was
// true when the wait began.
const guardWait = 10 * time.Second

// scope is where a source looks.
type scope struct{ datacenter, namespace, partition, peer string }

func (q *Query) scope() scope { return scope{q.Datacenter, q.Namespace, q.Partition, q.Peer} }

// followed is a signal of a scope that is followed.
type followed struct {
	scope
	signal int // its index in signals
}

// follower is a shared query that runs.
type follower struct {
	blocking
	followed
	cancel context.CancelFunc
	paid   time.Time // when the sweeps so far are paid for; see sweepCost
	// trouble is why it can't tell, or nil.
	trouble atomic.Pointer[error]
}

// join adds w to the watches that run.
func (c *Client) join(w *watch) {
	c.mu.Lock()
	c.watches[w] = struct{}{}
	c.decide()
	c.mu.Unlock()
	poke(c.wake)
}

func (c *Client) leave(w *watch) {
	c.mu.Lock()
	delete(c.watches, w)
	c.decide()
	c.mu.Unlock()
	poke(c.wake)
}

// list adds a query of WatchListeners to those that are restarted, or takes it
// out.
func (c *Client) list(b *blocking, on bool) {
	c.mu.Lock()
	if on {
		c.listings[b] = struct{}{}
	} else {
		delete(c.listings, b)
	}
	c.mu.Unlock()
	poke(c.wake)
}

// decide chooses whether queries are shared. It holds c.mu. It takes a quarter
// less to go back, so that one cluster that comes and goes is no switch.
func (c *Client) decide() {
	n := len(c.watches)
	switch {
	case n > c.cfg.MaxWatches:
		if !c.shared.Swap(true) {
			for w := range c.watches {
				w.blocking.restart() // gives its connection back
			}
		}
	case n <= c.cfg.MaxWatches*3/4 && c.shared.Swap(false):
		for w := range c.watches {
			poke(w.look)
		}
	}
}

// Run runs what sources share until ctx ends, and returns ctx.Err().
func (c *Client) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		c.mu.Lock()
		wanted := make(map[followed]bool)
		for w := range c.watches {
			if w.q.PreparedQuery == "" {
				wanted[followed{w.q.scope(), guard}] = true
			}
			for i := range signals {
				if w.sharing() {
					wanted[followed{w.q.scope(), i}] = true
				}
			}
		}
		if len(c.listings) > 0 {
			wanted[followed{scope{}, guard}] = true
		}
		for what := range wanted {
			if c.followers[what] == nil {
				child, cancel := context.WithCancel(ctx)
				f := c.newFollower(what, cancel)
				c.followers[what] = f
				wg.Go(func() { f.run(child) })
			}
		}
		for what, f := range c.followers {
			if !wanted[what] {
				f.cancel()
				delete(c.followers, what)
			}
		}
		c.mu.Unlock()
		select {
		case <-c.wake:
		case <-ctx.Done():
			c.mu.Lock()
			clear(c.followers) // a later Run starts them again
			c.mu.Unlock()
			return ctx.Err()
		}
	}
}

// trouble returns why the shared queries can't tell of w's changes, or nil.
func (c *Client) trouble(w *watch) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range signals {
		if f := c.followers[followed{w.q.scope(), i}]; f != nil && w.sharing() {
			if err := f.trouble.Load(); err != nil {
				return fmt.Errorf("%s: %w", signals[i].name, *err)
			}
		}
	}
	return nil
}

// restart has all waits of a scope begin anew.
func (c *Client) restart(sc scope) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for w := range c.watches {
		if w.q.scope() == sc {
			w.blocking.restart()
		}
	}
	for what, f := range c.followers {
		if what.scope == sc && what.signal != guard {
			f.restart()
		}
	}
	for b := range c.listings {
		if sc == (scope{}) {
			b.restart()
		}
	}
}

// look has sources of a scope read their instances: those of the named
// services, or all. With names, also none of them, there is a change to be found.
// It returns how many.
func (c *Client) look(sc scope, names map[string]bool, all bool) (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for w := range c.watches {
		if w.q.scope() != sc || !w.sharing() || !all && !names[w.q.Service] {
			continue
		}
		if names != nil {
			w.expect.Store(true)
		}
		poke(w.look)
		n++
	}
	return n
}

func (c *Client) newFollower(what followed, cancel context.CancelFunc) *follower {
	f := &follower{blocking: blocking{c: c, opts: api.QueryOptions{
		Datacenter: what.datacenter, Namespace: what.namespace, Partition: what.partition, Peer: what.peer, AllowStale: true,
	}}, followed: what, cancel: cancel}
	f.pace.shared = true
	if what.signal == guard {
		f.wait = min(guardWait, c.cfg.WaitTime)
	}
	return f
}

// run follows the signal until ctx ends.
func (f *follower) run(ctx context.Context) {
	s := &signals[f.signal]
	var last map[string]string
	var high uint64 // the guard's last index
	ended := false  // and whether its last wait ended without need
	for {
		again := false // all have been told to
		var state map[string]string
		waited, asked := f.index != 0, time.Now()
		meta, same, err := f.once(ctx, true, func(opts *api.QueryOptions) (meta *api.QueryMeta, err error) {
			state, meta, err = s.ask(f.c.api, opts)
			return meta, err
		})
		if ctx.Err() != nil {
			return
		}
		if f.signal == guard && err == nil {
			err = f.c.behind(meta)
			// After a failure it may be another server, and whoever rested at
			// the time has not noticed.
			healed := f.trouble.Load() != nil && err == nil
			back := meta.LastIndex < high
			if back {
				f.c.resets.Add(1)
			}
			if again = back || healed || ended; again {
				f.c.restart(f.scope)
			}
			high = meta.LastIndex
			// A snapshot is restored: waits end with what was before it. The next
			// answer is of the time after, perhaps with the same index.
			ended = waited && time.Since(asked) < f.wait && maps.Equal(last, state)
			if ended {
				f.index = 0
			}
		}
		if err != nil {
			if f.signal == guard && f.trouble.Load() == nil && status(err) != http.StatusTooManyRequests {
				f.c.restart(f.scope) // a server that hangs, or a token that is gone
			}
			f.trouble.Store(&err)
			f.c.look(f.scope, nil, true)
			last = nil // much may happen meanwhile
			if f.rest(ctx) != nil {
				return
			}
			continue
		}
		f.trouble.Store(nil)
		f.backoff.reset()
		names, all := s.changed(last, state)
		if last == nil {
			names = nil
		}
		// What shows may hide, in the same answer, what does not.
		all = all || last == nil || s.vague && !same || again
		n := f.c.look(f.scope, names, all)
		last = state
		if all && pause(ctx, f.pay(time.Now(), n)) != nil {
			return
		}
	}
}

// A sweep, the read of all sources, twice mostly, costs time by their number
// before the next one may be: else a catalog in which something changes every
// second, somewhere, would have all of them read every second. Some may be at
// once.
const (
	sweepCost  = 10 * time.Millisecond
	sweepBurst = 4
)

// pay returns how long to wait after a sweep of n sources.
func (f *follower) pay(now time.Time, n int) time.Duration {
	cost := time.Duration(n) * sweepCost
	if f.paid.Before(now) {
		f.paid = now
	}
	f.paid = f.paid.Add(cost)
	return f.paid.Sub(now) - sweepBurst*cost
}

// signal is one query on the catalog's state.
type signal struct {
	name string
	// ask returns that state in a form in which two can be compared.
	ask func(*api.Client, *api.QueryOptions) (map[string]string, *api.QueryMeta, error)
	// service returns the service that a key is of; "" if it may be any.
	service func(key string) string
	// vague says that the state changes in ways that it does not show.
	vague bool
	// keys says that the values don't matter.
	keys bool
}

var signals = [...]signal{
	{name: "warning checks", ask: checks(api.HealthWarning), service: serviceOfCheck, keys: true},
	{name: "critical checks", ask: checks(api.HealthCritical), service: serviceOfCheck, keys: true},
	{name: "services", ask: services, service: func(key string) string { return key }, vague: true},
	{name: "nodes", ask: nodes, service: func(string) string { return "" }},
}

// changed returns the services that differ between two states, and whether any
// other differs too.
func (s *signal) changed(a, b map[string]string) (names map[string]bool, all bool) {
	names = make(map[string]bool)
	one := func(key string) {
		if name := s.service(key); name != "" {
			names[name] = true
		} else {
			all = true
		}
	}
	for key, value := range b {
		if old, ok := a[key]; !ok || !s.keys && old != value {
			one(key)
		}
	}
	for key := range a {
		if _, ok := b[key]; !ok {
			one(key)
		}
	}
	return names, all
}

// checks returns the query on the checks of one status. A key is service, node
// and check; a value tells one text of a check from another.
func checks(status string) func(*api.Client, *api.QueryOptions) (map[string]string, *api.QueryMeta, error) {
	return func(c *api.Client, opts *api.QueryOptions) (map[string]string, *api.QueryMeta, error) {
		list, meta, err := c.Health().State(status, opts)
		state := make(map[string]string, len(list))
		for _, check := range list {
			if check != nil {
				state[check.ServiceName+"\x00"+check.Node+"\x00"+check.CheckID] = strconv.FormatUint(check.ModifyIndex, 10)
			}
		}
		return state, meta, err
	}
}

func serviceOfCheck(key string) string {
	name, _, _ := strings.Cut(key, "\x00")
	return name
}

func services(c *api.Client, opts *api.QueryOptions) (map[string]string, *api.QueryMeta, error) {
	list, meta, err := c.Catalog().Services(opts)
	state := make(map[string]string, len(list))
	for name, tags := range list {
		slices.Sort(tags)
		state[name] = strings.Join(tags, "\x00")
	}
	return state, meta, err
}

func nodes(c *api.Client, opts *api.QueryOptions) (map[string]string, *api.QueryMeta, error) {
	list, meta, err := c.Catalog().Nodes(opts)
	state := make(map[string]string, len(list))
	for _, n := range list {
		if n == nil {
			continue
		}
		text := n.Address + "\x00" + n.Datacenter
		for _, m := range []map[string]string{n.TaggedAddresses, n.Meta} {
			for _, k := range slices.Sorted(maps.Keys(m)) {
				text += "\x00" + k + "=" + m[k]
			}
		}
		state[n.Node] = text
	}
	return state, meta, err
}
