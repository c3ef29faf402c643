package xds

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"gatehouse.internal/discovery"
	"gatehouse.internal/xds/internal/core"
	"gatehouse.internal/xds/internal/names"
)

// report is the newest state of an assignment: what is in force, if anything,
// and why nothing newer is known, if so.
type report struct {
	assignment *assignment
	err        error
	restored   time.Time // until when assignment was right, if it is of an earlier run
}

// assignmentWatch is how the loop reaches one Watch. Only the newest report
// counts, so neither side ever waits for the other.
type assignmentWatch struct {
	report atomic.Pointer[report]
	wake   chan struct{} // one slot
}

// EDS returns the source of the endpoints in the EDS resource of that name.
// All Watches of a name share one subscription. dups is told of addresses that
// the resource lists twice; it may be nil.
//
// A resource that is refused, that the server doesn't have, or a server that
// can't be reached, is a Fail; the last good set stays in force. A name
// that is empty, "*", no text or longer than 4096 bytes makes Watch return an error.
func (c *Client) EDS(name string, dups *discovery.Duplicates) discovery.Source {
	return edsSource{c, names.Canonical(name), dups}
}

type edsSource struct {
	c    *Client
	name string
	dups *discovery.Duplicates
}

// Watch implements [discovery.Source].
func (s edsSource) Watch(ctx context.Context, sink discovery.Sink) error {
	if s.name == "" || s.name == core.Wildcard || !utf8.ValidString(s.name) || len(s.name) > core.MaxName {
		return fmt.Errorf("eds %q: not the name of a resource: want text that is neither empty nor %q, of at most %d bytes", core.Clip(s.name), core.Wildcard, core.MaxName)
	}
	w := &assignmentWatch{wake: make(chan struct{}, 1)}
	s.c.post(func(l *loop) {
		e := l.entry(s.name)
		e.watches[w] = struct{}{}
		if e.report != (report{}) || l.trouble != "" {
			l.publish(s.name, e)
		}
	})
	defer s.c.post(func(l *loop) {
		delete(l.eds[s.name].watches, w)
		l.release(s.name)
	})
	var last report
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-w.wake:
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		r := *w.report.Load()
		replace := r.assignment != nil && (r.assignment != last.assignment || r.err == nil && last.err != nil)
		if replace {
			if r.assignment != last.assignment {
				s.dups.Note(r.assignment.dropped)
			}
			if r.err != nil {
				discovery.ReplaceStale(sink, r.assignment.set, r.err)
			} else {
				sink.Replace(r.assignment.set)
			}
		} else if r.err != nil && (last.err == nil || r.err.Error() != last.err.Error()) {
			sink.Fail(r.err)
		}
		last = r
	}
}

// ClustersUpdate is all that is known of CDS. It is never written after it was
// made; clusters that did not change keep their pointers.
type ClustersUpdate struct {
	// Known says that the server has answered at least once. Until then there
	// are no clusters because nobody knows any.
	Known bool
	// Clusters are those in force, sorted by name, each in its last valid
	// version. Some may be Unsupported.
	Clusters []*Cluster
	// Rejected are those whose newest version was refused, sorted by name. One
	// may be among Clusters with an older version.
	Rejected []Rejected
	// Err says why the server can't be reached, or is nil; it is a
	// *discovery.RestoredError as long as some of Clusters are those of an earlier
	// run that no server has confirmed. What is known stays in force.
	Err error
}

// Rejected names a resource that was refused and says why.
type Rejected struct{ Name, Reason string }

// clusterWatch is how the loop reaches one WatchClusters.
type clusterWatch struct {
	update atomic.Pointer[ClustersUpdate]
	wake   chan struct{} // one slot
}

// WatchClusters subscribes to all clusters and calls f with everything that is
// known whenever it changes, until ctx ends; it then returns ctx.Err(). Calls
// come from this goroutine, one at a time; while f runs updates are not queued,
// the next call has the newest. When nobody watches any more the subscription
// ends.
//
// The Client subscribes to the endpoints of the clusters by itself, so an EDS
// source for one of them has them as soon as the server does.
func (c *Client) WatchClusters(ctx context.Context, f func(ClustersUpdate)) error {
	w := &clusterWatch{wake: make(chan struct{}, 1)}
	c.post(func(l *loop) {
		if len(l.clusters.watches) == 0 {
			l.clusters.watches, l.clusters.update = make(map[*clusterWatch]struct{}), nil
			l.clusters.dirty = l.clusters.dirty || l.trouble != ""
			l.restoreAll(ClusterType)
			l.core.SubscribeAll(ClusterType)
		}
		l.clusters.watches[w] = struct{}{}
		if u := l.clusters.update; u != nil {
			w.update.Store(u)
			signal(w.wake)
		}
	})
	defer c.post(func(l *loop) {
		delete(l.clusters.watches, w)
		if len(l.clusters.watches) == 0 {
			l.core.UnsubscribeAll(ClusterType)
			for name := range l.clusters.entries {
				l.unkeepLater(ClusterType, name)
			}
			clear(l.clusters.entries)
			l.clusters.known, l.clusters.dirty = false, true
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
