package xds

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"gatehouse.internal/xds/internal/core"
)

// loop is the state of a running Client. One goroutine owns it.
type loop struct {
	c        *Client
	core     *core.Core
	timers   map[core.Timer]time.Time
	sessions sync.WaitGroup
	session  *session // nil between streams

	connected bool
	since     time.Time // of connected or its end
	reached   bool      // a response was the last word, not a failure
	trouble   string    // why the server can't be reached; empty if it can, or if nobody knows yet
	lastError string    // what ended the last stream
	errorAt   time.Time

	types    map[string]*typeNews
	eds      map[string]*assignmentEntry
	clusters clusterState
}

// typeNews is what a Status says of a type beyond what the core knows.
type typeNews struct {
	lastAck, lastNack time.Time
	nack              string
}

func newLoop(c *Client) *loop {
	return &loop{
		c: c,
		core: core.New(
			core.Type{URL: ClusterType, Complete: true, Decode: decodeCluster},
			core.Type{URL: AssignmentType, Decode: decodeAssignment},
		),
		timers:   make(map[core.Timer]time.Time),
		types:    map[string]*typeNews{ClusterType: {}, AssignmentType: {}},
		eds:      make(map[string]*assignmentEntry),
		clusters: clusterState{entries: make(map[string]*clusterEntry)},
	}
}

func (l *loop) run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	l.since = time.Now()
	l.core.Start()
	for {
		l.settle(ctx)
		var events <-chan event
		if l.session != nil {
			events = l.session.events
		}
		var fired <-chan time.Time
		if at := l.nextTimer(); !at.IsZero() {
			timer.Reset(time.Until(at))
			fired = timer.C
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-l.c.wake:
		case e := <-events:
			l.handle(e)
		case <-fired:
			l.fire(time.Now())
		}
	}
}

// nextTimer returns when the next timer fires, or the zero Time.
func (l *loop) nextTimer() (at time.Time) {
	for _, when := range l.timers {
		if at.IsZero() || when.Before(at) {
			at = when
		}
	}
	return at
}

// fire reports all timers that are due.
func (l *loop) fire(now time.Time) {
	for t, when := range l.timers {
		if !when.After(now) {
			delete(l.timers, t)
			l.core.Fired(t)
		}
	}
}

// settle runs the commands and performs the effects until nothing is left, and
// lets requests be made only then: a response of many clusters makes one
// request for their endpoints.
func (l *loop) settle(ctx context.Context) {
	for {
		for _, f := range l.c.take() {
			f(l)
		}
		effects := l.core.Take()
		if len(effects) == 0 && l.clusters.dirty {
			l.syncClusters()
			continue
		}
		if len(effects) == 0 {
			l.core.Flush()
			if effects = l.core.Take(); len(effects) == 0 {
				return
			}
		}
		for _, e := range effects {
			l.perform(ctx, e)
		}
	}
}

// handle takes in what a session reports.
func (l *loop) handle(e event) {
	now := time.Now()
	switch {
	case e.opened:
		l.setConnected(true, now)
		l.c.counters.streams.Add(1)
		l.core.Connected()
	case e.sent:
		l.core.Sent()
	case e.response != nil:
		if !l.reached {
			l.reached = true
			l.c.log.Info("xds server answers", "server", l.c.cfg.ServerURI)
		}
		l.core.Response(*e.response)
	default:
		if l.connected {
			l.setConnected(false, now)
		}
		l.session = nil
		l.lastError, l.errorAt = reason(e.closed), now
		l.c.log.Debug("xds stream ended", "server", l.c.cfg.ServerURI, "err", l.lastError)
		l.core.Closed(l.lastError)
	}
}

func (l *loop) setConnected(is bool, now time.Time) {
	l.connected, l.since = is, now
	l.c.counters.connected.Store(is)
}

// perform carries out one effect of the core.
func (l *loop) perform(ctx context.Context, e core.Effect) {
	switch e := e.(type) {
	case core.Connect:
		s := &session{events: make(chan event), out: make(chan core.Request, 1)}
		l.session = s
		l.sessions.Go(func() { l.c.serve(ctx, s) })
	case core.Send:
		l.session.out <- e.Request // empty: no other is on its way
	case core.StartTimer:
		l.timers[e.Timer] = time.Now().Add(l.c.duration(e))
	case core.StopTimer:
		delete(l.timers, e.Timer)
	case core.Changed:
		l.c.counters.of(e.Type).changed.Add(1)
		if e.Type == ClusterType {
			l.clusters.changed(e.Name, e.Value.(*Cluster))
		} else {
			l.assignmentChanged(e.Name, e.Value.(*assignment))
		}
	case core.Invalid:
		l.c.counters.of(e.Type).invalid.Add(1)
		if e.Type == ClusterType {
			partial, _ := e.Partial.(*Cluster)
			l.clusters.invalid(e.Name, e.Reason, partial)
		} else {
			l.assignmentFailed(e.Name, fmt.Errorf("rejected: %s", e.Reason))
		}
	case core.Gone:
		switch {
		case e.Type == ClusterType:
			l.clusters.gone(e.Name)
		case e.Timeout:
			l.assignmentFailed(e.Name, fmt.Errorf("%w: xds server %s has not sent it within %s",
				ErrNotFound, l.c.cfg.ServerURI, l.c.cfg.InitialFetchTimeout))
		default:
			l.assignmentFailed(e.Name, fmt.Errorf("%w: xds server %s deleted it", ErrNotFound, l.c.cfg.ServerURI))
		}
	case core.Judged:
		l.judged(e)
	case core.Unknown:
		l.c.log.Warn("xds response of a type that nobody asked for is ignored", "type", e.Type)
	case core.Unreachable:
		l.c.counters.failures.Add(1)
		if l.reached || l.trouble == "" {
			l.c.log.Warn("xds server can't be reached, what is known is kept", "server", l.c.cfg.ServerURI, "err", e.Reason)
		}
		l.reached = false
		l.setTrouble(e.Reason)
	case core.Reachable:
		l.setTrouble("")
	}
}

// judged notes the answer to a response.
func (l *loop) judged(e core.Judged) {
	n := l.types[e.Type]
	if e.Type == ClusterType && !l.clusters.known && len(l.clusters.watches) > 0 {
		l.clusters.known, l.clusters.dirty = true, true
	}
	if e.Error == "" {
		l.c.counters.of(e.Type).accepted.Add(1)
		n.lastAck = time.Now()
		return
	}
	l.c.counters.of(e.Type).refused.Add(1)
	if e.Error != n.nack {
		l.c.log.Warn("xds response refused, its valid resources apply", "type", e.Type, "version", e.Version, "err", e.Error)
	}
	n.nack, n.lastNack = e.Error, time.Now()
}

// setTrouble tells everybody why the server can't be reached, or that it can.
func (l *loop) setTrouble(reason string) {
	if reason == l.trouble {
		return
	}
	l.trouble = reason
	l.clusters.dirty = true
	for name, e := range l.eds {
		l.publish(name, e)
	}
}

// unreachable returns the trouble as an error, or nil.
func (l *loop) unreachable() error {
	if l.trouble == "" {
		return nil
	}
	return errors.New("xds server " + l.c.cfg.ServerURI + ": " + l.trouble)
}

// An assignmentEntry is an EDS resource that somebody wants.
type assignmentEntry struct {
	watches map[*assignmentWatch]struct{}
	cluster bool // a CDS cluster takes its endpoints from it
	report  report
	updated time.Time
}

func (l *loop) entry(name string) *assignmentEntry {
	e := l.eds[name]
	if e == nil {
		e = &assignmentEntry{watches: make(map[*assignmentWatch]struct{})}
		l.eds[name] = e
		l.core.Subscribe(AssignmentType, name)
	}
	return e
}

// release ends the subscription to name if nobody wants it any more.
func (l *loop) release(name string) {
	if e := l.eds[name]; e != nil && !e.cluster && len(e.watches) == 0 {
		delete(l.eds, name)
		l.core.Unsubscribe(AssignmentType, name)
	}
}

func (l *loop) assignmentChanged(name string, a *assignment) {
	e := l.eds[name]
	if e == nil {
		return
	}
	l.c.counters.leftOut.Add(uint64(a.leftOut))
	l.c.counters.duplicates.Add(uint64(len(a.dropped)))
	var before []string
	if e.report.assignment != nil {
		before = e.report.assignment.notes
	}
	if len(a.notes) > 0 && !slices.Equal(a.notes, before) {
		l.c.log.Warn("eds resource is not applied as a whole", "cluster", name, "left_out", a.leftOut, "notes", a.notes)
	}
	e.report = report{assignment: a}
	e.updated = time.Now()
	l.publish(name, e)
}

func (l *loop) assignmentFailed(name string, err error) {
	if e := l.eds[name]; e != nil {
		e.report.err = fmt.Errorf("eds %q: %w", name, err)
		l.publish(name, e)
	}
}

// publish hands the newest report to the watches of an entry.
func (l *loop) publish(name string, e *assignmentEntry) {
	r := e.report
	if err := l.unreachable(); r.err == nil && err != nil {
		r.err = fmt.Errorf("eds %q: %w", name, err)
	}
	for w := range e.watches {
		w.report.Store(&r)
		signal(w.wake)
	}
}

// clusterState is what is known of CDS.
type clusterState struct {
	watches map[*clusterWatch]struct{}
	entries map[string]*clusterEntry
	known   bool // there was a response
	dirty   bool // something is to be published
	update  *ClustersUpdate
	names   map[string]bool // of the assignments that the clusters take
}

// clusterEntry is one CDS resource.
type clusterEntry struct {
	cluster *Cluster // the last valid one, or nil
	reason  string   // why the newest one was refused
	partial *Cluster // its names
	updated time.Time
}

func (s *clusterState) entry(name string) *clusterEntry {
	s.dirty = true
	e := s.entries[name]
	if e == nil {
		e = new(clusterEntry)
		s.entries[name] = e
	}
	return e
}

func (s *clusterState) changed(name string, c *Cluster) {
	s.known = true
	*s.entry(name) = clusterEntry{cluster: c, updated: time.Now()}
}

func (s *clusterState) invalid(name, reason string, partial *Cluster) {
	e := s.entry(name)
	e.reason, e.partial = reason, partial
}

func (s *clusterState) gone(name string) {
	delete(s.entries, name)
	s.dirty = true
}

// syncClusters publishes the clusters and subscribes to the endpoints of all
// of them, also of those that are refused or that nobody runs: some servers
// answer only to a request that names every assignment they have.
func (l *loop) syncClusters() {
	s := &l.clusters
	s.dirty = false
	names := make(map[string]bool)
	update := ClustersUpdate{Known: s.known, Err: l.unreachable()}
	for _, name := range slices.Sorted(maps.Keys(s.entries)) {
		e := s.entries[name]
		if e.cluster != nil {
			update.Clusters = append(update.Clusters, e.cluster)
		}
		if e.reason != "" {
			update.Rejected = append(update.Rejected, Rejected{name, e.reason})
		}
		for _, c := range []*Cluster{e.cluster, e.partial} {
			if c != nil && c.EDSName != "" {
				names[c.EDSName] = true
			}
		}
	}
	for name := range names {
		l.entry(name).cluster = true
	}
	for name := range s.names {
		if !names[name] {
			l.eds[name].cluster = false
			l.release(name)
		}
	}
	s.names, s.update = names, &update
	for w := range s.watches {
		w.update.Store(&update)
		signal(w.wake)
	}
}
