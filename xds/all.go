package xds

import (
	"context"
	"maps"
	"slices"
	"sync/atomic"
	"time"
)

// all is what is known of a type of which every resource is asked for, as values of
// T; U is what watches are told.
type all[T, U any] struct {
	url     string
	watches map[*allWatch[U]]struct{}
	entries map[string]*allEntry[T]
	known   bool // there was a response
	// nothing is until when it was right that there is none, if an earlier run knew
	// that and no server has answered since.
	nothing time.Time
	dirty   bool // something is to be published
	update  *U
}

// allEntry is one resource.
type allEntry[T any] struct {
	value    *T // the last valid one, or nil
	active   *T // that one, or while it waits for secrets the one before
	filled   *T // active with its secrets, which are in took
	took     []taken
	restored time.Time // until when it was right, if it is that of an earlier run
	reason   string    // why the newest one was refused
	partial  *T        // what could be read of that
	updated  time.Time
}

// allWatch is how the loop reaches one watch.
type allWatch[U any] struct {
	update atomic.Pointer[U]
	wake   chan struct{} // one slot
}

func newAll[T, U any](url string) all[T, U] {
	return all[T, U]{url: url, entries: make(map[string]*allEntry[T])}
}

func (s *all[T, U]) entry(name string) *allEntry[T] {
	s.dirty = true
	e := s.entries[name]
	if e == nil {
		e = new(allEntry[T])
		s.entries[name] = e
	}
	return e
}

// changed takes a new version, or with the time until when it was right the one of an
// earlier run.
func (s *all[T, U]) changed(name string, v *T, restored time.Time) {
	s.known, s.nothing = true, time.Time{}
	e := s.entry(name)
	e.value, e.restored, e.updated, e.reason, e.partial = v, restored, restored, "", nil
	if restored.IsZero() {
		e.updated = time.Now()
	}
}

func (s *all[T, U]) invalid(name, reason string, partial *T) {
	e := s.entry(name)
	e.reason, e.partial = reason, partial
}

func (s *all[T, U]) gone(name string) {
	delete(s.entries, name)
	s.dirty = true
}

// answered tells that there was a response.
func (s *all[T, U]) answered() {
	if (!s.known || !s.nothing.IsZero()) && len(s.watches) > 0 {
		s.known, s.nothing, s.dirty = true, time.Time{}, true
	}
}

// oldest returns until when what is longest not confirmed was right, or the zero Time
// if a server has sent all of it.
func (s *all[T, U]) oldest() (at time.Time) {
	at = s.nothing
	for _, e := range s.entries {
		if !e.restored.IsZero() && (at.IsZero() || e.restored.Before(at)) {
			at = e.restored
		}
	}
	return at
}

// publish tells the watches.
func (s *all[T, U]) publish(u *U) {
	s.update = u
	for w := range s.watches {
		w.update.Store(u)
		signal(w.wake)
	}
}

// follow tells f the updates of what of says, until ctx ends: see WatchClusters.
func follow[T, U any](ctx context.Context, c *Client, of func(*loop) *all[T, U], f func(U)) error {
	w := &allWatch[U]{wake: make(chan struct{}, 1)}
	c.post(func(l *loop) {
		s := of(l)
		if len(s.watches) == 0 {
			s.watches, s.update = make(map[*allWatch[U]]struct{}), nil
			s.dirty = s.dirty || l.trouble != ""
			l.restoreAll(s.url)
			if at := l.keeping.nothing(s.url); !at.IsZero() {
				s.known, s.nothing, s.dirty = true, at, true
			}
			l.core.SubscribeAll(s.url)
		}
		s.watches[w] = struct{}{}
		if s.update != nil {
			w.update.Store(s.update)
			signal(w.wake)
		}
	})
	defer c.post(func(l *loop) {
		s := of(l)
		delete(s.watches, w)
		if len(s.watches) == 0 {
			l.core.UnsubscribeAll(s.url)
			for name := range s.entries {
				l.unkeepLater(s.url, name)
			}
			clear(s.entries)
			s.known, s.nothing, s.dirty = false, time.Time{}, true
		}
	})
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-w.wake:
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		f(*w.update.Load())
	}
}

// ListenersUpdate is all that is known of LDS. It is never written after it was
// made; listeners that did not change keep their pointers.
type ListenersUpdate struct {
	// Known says that the server has answered at least once. Until then there are
	// no listeners because nobody knows any.
	Known bool
	// Listeners are those in force, sorted by name, each in its last valid version.
	// Some may be Unsupported.
	Listeners []*Listener
	// Rejected are those whose newest version was refused, sorted by name. One may
	// be among Listeners with an older version.
	Rejected []Rejected
	// Err says why the server can't be reached, or is nil. What is known stays in
	// force. It is a discovery.RestoredError while something is that of an earlier run.
	Err error
}

// WatchListeners subscribes to all listeners and calls f as WatchClusters does.
func (c *Client) WatchListeners(ctx context.Context, f func(ListenersUpdate)) error {
	return follow(ctx, c, func(l *loop) *all[Listener, ListenersUpdate] { return &l.listeners }, f)
}

// syncListeners publishes the listeners.
func (l *loop) syncListeners() {
	s := &l.listeners
	s.dirty = false
	l.syncSecrets()
	update := ListenersUpdate{Known: s.known, Err: stale(s.oldest(), l.unreachable())}
	for _, name := range slices.Sorted(maps.Keys(s.entries)) {
		e := s.entries[name]
		if v := inForce(e, l.lookupSecret); v != nil {
			update.Listeners = append(update.Listeners, v)
		}
		if e.reason != "" {
			update.Rejected = append(update.Rejected, Rejected{name, e.reason})
		}
	}
	l.syncSecrets() // of versions that are left
	s.publish(&update)
}
