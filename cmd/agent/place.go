package main

import (
	"context"
	"sync/atomic"

	"gatehouse.internal/discovery"
	"gatehouse.internal/lbcore"
)

// place is where a client stands, of which a reload may put another one into its
// place: what asks by it goes on with that one, and keeps what it knows meanwhile.
type place[C any] struct{ now atomic.Pointer[tenant[C]] }

// tenant is a client for as long as it stands in its place.
type tenant[C any] struct {
	client *C                       // nil for none
	leave  context.CancelFunc       // when another one takes its place
	onLeft func(func()) func() bool // as context.AfterFunc
}

// load returns the client, nil for none. It may be called from anywhere.
func (p *place[C]) load() *C {
	if t := p.now.Load(); t != nil {
		return t.client
	}
	return nil
}

// put has c, which may be nil, stand in the place from now on. One goroutine at a
// time calls it.
func (p *place[C]) put(c *C) {
	stands, leave := context.WithCancel(context.Background())
	was := p.now.Swap(&tenant[C]{client: c, leave: leave, onLeft: func(f func()) func() bool { return context.AfterFunc(stands, f) }})
	if was != nil {
		was.leave()
	}
}

// each runs f with the client, and again with each one that takes its place, until
// ctx ends or f returns by itself. Where there is none nothing runs.
func (p *place[C]) each(ctx context.Context, f func(context.Context, *C) error) error {
	for {
		t := p.now.Load()
		term, end := context.WithCancel(ctx)
		stop := t.onLeft(end)
		var err error
		if t.client == nil {
			<-term.Done()
			err = term.Err()
		} else {
			err = f(term, t.client)
		}
		stop()
		end()
		if ctx.Err() != nil || p.now.Load() == t {
			return err
		}
	}
}

// placed is the source that a client gives, and when another one takes its place
// the one that this gives. What it has reported stays in force until the next one
// knows better.
type placed[C any] struct {
	place  *place[C]
	of     func(*C) (discovery.Source, error)
	before *lbcore.Set // for the first one; see Resume
}

// Resume implements discovery.Resumer, for a client whose sources are such.
func (s *placed[C]) Resume(set lbcore.Set) { s.before = &set }

// Watch implements discovery.Source.
func (s *placed[C]) Watch(ctx context.Context, sink discovery.Sink) error {
	return s.place.each(ctx, func(ctx context.Context, c *C) error {
		src, err := s.of(c)
		if err != nil {
			return err
		}
		if r, ok := src.(discovery.Resumer); ok && s.before != nil {
			r.Resume(*s.before)
		}
		s.before = nil
		return src.Watch(ctx, sink)
	})
}
