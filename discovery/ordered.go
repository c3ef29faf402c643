package discovery

import (
	"context"
	"errors"
	"slices"
	"sync"

	"gatehouse.internal/lbcore"
)

type ordered []Source

// Ordered returns the Source that runs all of sources and reports the set of
// the first of them, in order, that has ever given one. The empty set counts:
// a source that knows there is nothing is not passed over. So does the set of an
// earlier run (see Keep): it was in force then.
//
// A source that becomes known takes over from those behind it. It stays in
// force from then on: when it fails, its last set remains and the failure is
// passed on, so that the reader sees it as stale. Falling back at every failure
// would swap the whole cluster to and fro.
//
// While none knows anything, the failures so far are reported as one. A source
// that returns for good counts as failing for ever; when all have, Watch
// returns their errors joined. Ordered of no sources fails at once.
func Ordered(sources ...Source) Source { return ordered(slices.Clone(sources)) }

func (o ordered) Watch(ctx context.Context, sink Sink) error {
	m := merger{sink: sink}
	return join(ctx, o, &m.children, m.report, m.failures)
}

// join watches sources until ctx ends, or all of them have ended for good, and
// calls report when a state has changed.
func join(ctx context.Context, sources []Source, states *[]*Latest, report func(), failures func() error) error {
	if len(sources) == 0 {
		return errors.New("no discovery sources to choose from")
	}
	childCtx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()

	changed := make(chan struct{}, 1)
	ended := make(chan struct{}, len(sources))
	for range sources {
		*states = append(*states, newLatest(changed))
	}
	for i, src := range sources {
		l := (*states)[i]
		wg.Go(func() {
			err := src.Watch(childCtx, l)
			if childCtx.Err() != nil {
				return
			}
			if err == nil {
				err = errors.New("the source ended without being asked to")
			}
			l.Fail(err)
			ended <- struct{}{}
		})
	}
	for left := len(sources); left > 0; {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		case <-ended:
			left--
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		report()
	}
	return failures()
}

// merger turns the children's states into the reports of one source.
type merger struct {
	sink     Sink
	children []*Latest

	reported bool // set was handed on
	set      lbcore.Set
	failure  string // what was handed on after set
}

func (m *merger) report() {
	err := m.failures()
	for _, c := range m.children {
		s := c.State()
		if !s.Known {
			continue
		}
		err = s.Err
		if !m.reported || !m.set.Equal(s.Set) || (err == nil && m.failure != "") {
			m.reported, m.set, m.failure = true, s.Set, ""
			if err != nil {
				ReplaceStale(m.sink, s.Set, err)
				m.failure = err.Error()
			} else {
				m.sink.Replace(s.Set)
			}
		}
		break
	}
	if err != nil && err.Error() != m.failure {
		m.sink.Fail(err)
		m.failure = err.Error()
	}
}

// failures joins what the children fail with, in their order, or is nil.
func (m *merger) failures() error { return failuresOf(m.children) }

func failuresOf(children []*Latest) error {
	var errs []error
	for _, c := range children {
		errs = append(errs, c.State().Err)
	}
	return errors.Join(errs...)
}
