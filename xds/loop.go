package xds

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"gatehouse.internal/internal/contain"
	"gatehouse.internal/internal/lastgood"
	"gatehouse.internal/lbcore"
	"gatehouse.internal/xds/internal/core"
	"gatehouse.internal/xds/internal/names"
)

// loop is the state of a running Client. One goroutine owns it.
type loop struct {
	c       *Client
	core    *core.Core
	timers  *timers
	causes  causes
	events  chan event
	running sync.WaitGroup // sessions, and what Transports run
	servers []serverState
	active  int // the server that counts

	reached bool   // a response was the last word, not a failure
	trouble string // why no server can be reached; empty if one can, or if nobody knows yet

	keeping   *keeping
	types     map[string]*typeNews
	eds       map[string]*assignmentEntry
	clusters  clusterState
	listeners all[Listener, ListenersUpdate]
	secrets   map[string]*secretEntry
}

// serverState is what is known of one server.
type serverState struct {
	session   *session // nil between streams
	last      *session // the last one
	connected bool
	since     time.Time // of connected or its end
	variant   core.Variant
	lastError string // what ended the last stream
	errorAt   time.Time
}

// typeNews is what a Status says of a type beyond what the core knows.
type typeNews struct {
	lastAck, lastNack time.Time
	nack              string
}

func newLoop(c *Client) *loop {
	return &loop{
		c: c,
		core: core.New(len(c.transports),
			core.Type{URL: ClusterType, Complete: true, Decode: decoder(decodeCluster, c.cfg.Panics)},
			core.Type{URL: AssignmentType, Decode: decoder(decodeAssignment, c.cfg.Panics)},
			core.Type{URL: ListenerType, Complete: true, Decode: decoder(decodeListener, c.cfg.Panics)},
			core.Type{URL: SecretType, Decode: decoder(decodeSecret, c.cfg.Panics)},
		),
		keeping:   newKeeping(&c.cfg),
		timers:    newTimers(),
		causes:    causes{c.log, make(map[string]*cause)},
		events:    make(chan event),
		servers:   make([]serverState, len(c.transports)),
		types:     map[string]*typeNews{ClusterType: {}, AssignmentType: {}, ListenerType: {}, SecretType: {}},
		eds:       make(map[string]*assignmentEntry),
		clusters:  clusterState{all: newAll[Cluster, ClustersUpdate](ClusterType)},
		listeners: newAll[Listener, ListenersUpdate](ListenerType),
		secrets:   make(map[string]*secretEntry),
	}
}

// decoder has the names of resources in their canonical form, and panics refuse them.
func decoder(decode func([]byte) (string, any, error), panics *contain.Panics) func([]byte) (string, any, error) {
	return func(body []byte) (name string, value any, err error) {
		defer panics.Recover(contain.Decoder, &err)
		name, value, err = decode(body)
		return names.Canonical(name), value, err
	}
}

func (l *loop) run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	now := time.Now()
	for i, t := range l.c.transports {
		l.servers[i].since = now
		l.running.Go(func() { t.Run(ctx) })
	}
	if r := l.c.reporter; r != nil {
		l.running.Go(func() { r.Run(ctx) })
	}
	l.core.Start()
	for {
		l.settle(ctx)
		var fired <-chan time.Time
		if at := l.timers.next(); !at.IsZero() {
			timer.Reset(time.Until(at))
			fired = timer.C
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-l.c.wake:
		case e := <-l.events:
			l.handle(e)
		case <-fired:
			for now := time.Now(); ; {
				t, ok := l.timers.due(now)
				if !ok {
					break
				}
				switch t.Kind {
				case timerStale:
					l.assignmentStale(t.Name)
				case timerUnkeep:
					l.unkeepUnwanted(t.Type, t.Name)
				default:
					l.core.Fired(t)
				}
			}
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
		if len(effects) == 0 && l.listeners.dirty {
			l.syncListeners()
			continue
		}
		if len(effects) == 0 {
			l.core.Flush()
			if effects = l.core.Take(); len(effects) == 0 {
				if ctx.Err() == nil { // at the end nobody wants anything, which is no news
					l.write()
				}
				return
			}
		}
		for _, e := range effects {
			l.perform(ctx, e)
		}
	}
}

// handle takes in what a session reports, unless it is over.
func (l *loop) handle(e event) {
	i, now := e.session.server, time.Now()
	s := &l.servers[i]
	if s.session != e.session {
		return
	}
	switch {
	case e.opened:
		s.variant = e.variant
		l.setConnected(i, true, now)
		l.c.counters.streams.Add(1)
		l.core.Connected(i, e.variant)
	case e.sent:
		l.core.Sent(i)
	case e.response != nil:
		if !l.reached {
			l.reached = true
			l.causes.over("unreachable")
			l.causes.tell(slog.LevelInfo, "answers", l.uri(i), "xds server answers", "server", l.uri(i))
		}
		e.response.Mark = now.UnixNano()
		l.core.Response(i, *e.response)
	default:
		l.setConnected(i, false, now)
		s.session = nil
		s.lastError, s.errorAt = e.reason, now
		if !e.heard && e.how != core.Again {
			l.c.counters.failures.Add(1)
		}
		l.c.log.Debug("xds stream ended", "server", l.uri(i), "err", e.reason)
		if e.how == core.Refused || e.how == core.Unfit {
			l.causes.tell(slog.LevelWarn, "refused", e.reason, "xds server and client don't get on, the next attempt comes late",
				"server", l.uri(i), "err", e.reason, "in", l.c.cfg.BackoffMax)
		}
		l.core.Closed(i, e.reason, e.how)
	}
}

func (l *loop) uri(server int) string { return l.c.cfg.Servers[server].URI }

func (l *loop) setConnected(server int, is bool, now time.Time) {
	s := &l.servers[server]
	if s.connected != is {
		s.connected, s.since = is, now
	}
	l.c.counters.connected.Store(l.servers[l.active].connected)
}

// perform carries out one effect of the core.
func (l *loop) perform(ctx context.Context, e core.Effect) {
	switch e := e.(type) {
	case core.Connect:
		l.connect(ctx, e.Server)
	case core.Disconnect:
		l.servers[e.Server].session.end()
		l.servers[e.Server].session = nil
		l.setConnected(e.Server, false, time.Now())
	case core.Active:
		back := e.Server < l.active
		l.active = e.Server
		l.aimLoads()
		l.c.counters.connected.Store(l.servers[l.active].connected)
		if back {
			l.causes.tell(slog.LevelInfo, "active", l.uri(e.Server), "xds server is back", "server", l.uri(e.Server))
		} else {
			l.causes.tell(slog.LevelWarn, "active", l.uri(e.Server), "xds server can't be reached, the next one is asked",
				"server", l.uri(e.Server-1), "next", l.uri(e.Server))
		}
	case core.Send:
		l.servers[e.Server].session.out <- e.Request // empty: no other is on its way
	case core.StartTimer:
		l.timers.start(e.Timer, time.Now().Add(l.c.duration(e)))
	case core.StopTimer:
		l.timers.stop(e.Timer)
	case core.Changed:
		restored := l.restored(e.Type, e.Name)
		if restored.IsZero() {
			l.c.counters.of(e.Type).changed.Add(1)
		}
		l.keep(e.Type, e.Name)
		switch e.Type {
		case ClusterType:
			l.clusters.changed(e.Name, e.Value.(*Cluster), restored)
		case ListenerType:
			l.listeners.changed(e.Name, e.Value.(*Listener), restored)
		case SecretType:
			l.secretChanged(e.Name, e.Value.(*secret))
		default:
			l.assignmentChanged(e.Name, e.Value.(*assignment), restored)
		}
	case core.Renewed: // an assignment
		l.assignmentRenewed(e.Name, e.Value.(*assignment))
	case core.Invalid:
		l.c.counters.of(e.Type).invalid.Add(1)
		switch e.Type {
		case ClusterType:
			partial, _ := e.Partial.(*Cluster)
			l.clusters.invalid(e.Name, e.Reason, partial)
		case ListenerType:
			partial, _ := e.Partial.(*Listener)
			l.listeners.invalid(e.Name, e.Reason, partial)
		case SecretType:
			l.secretFailed(e.Name, fmt.Errorf("rejected: %s", e.Reason))
		default:
			l.assignmentFailed(e.Name, fmt.Errorf("rejected: %s", e.Reason))
		}
	case core.Failed:
		err := fmt.Errorf("xds server %s can't give it: %s", l.uri(l.active), e.Reason)
		switch e.Type {
		case AssignmentType:
			l.assignmentFailed(e.Name, err)
		case SecretType:
			l.secretFailed(e.Name, err)
		}
	case core.Gone:
		switch e.Type {
		case ClusterType:
			l.clusters.gone(e.Name)
			l.unkeep(e.Type, e.Name)
		case ListenerType:
			l.listeners.gone(e.Name)
			l.unkeep(e.Type, e.Name)
		case SecretType:
			l.secretGone(e.Name, e.Cause)
		default: // what it was stays in force, and so on disk
			l.assignmentFailed(e.Name, l.absence(e.Cause))
		}
	case core.Judged:
		l.judged(e)
	case core.Unknown:
		l.c.log.Warn("xds response of a type that nobody asked for is ignored", "type", e.Type)
	case core.Unreachable:
		if l.reached || l.trouble == "" {
			l.causes.over("answers")
			l.causes.tell(slog.LevelWarn, "unreachable", e.Reason, "xds server can't be reached, what is known is kept",
				"server", l.uri(l.active), "err", e.Reason)
		}
		l.reached = false
		l.setTrouble(e.Reason)
	case core.Reachable:
		l.setTrouble("")
	}
}

// connect begins a session.
func (l *loop) connect(ctx context.Context, server int) {
	s := &l.servers[server]
	ctx, end := context.WithCancel(ctx)
	s.session = &session{
		server: server, transport: l.c.transports[server], out: make(chan core.Request, 1),
		end: end, before: s.last, done: make(chan struct{}),
	}
	s.last = s.session
	session := s.session
	l.running.Go(func() {
		defer end()
		session.serve(ctx, l.events)
	})
}

// absence says why a resource is not there.
func (l *loop) absence(why core.Cause) error {
	switch why {
	case core.TimedOut:
		return fmt.Errorf("%w: xds server %s has not sent it within %s", ErrNotFound, l.uri(l.active), l.c.cfg.InitialFetchTimeout)
	case core.Expired:
		return fmt.Errorf("%w: xds server %s has not renewed it in time", ErrNotFound, l.uri(l.active))
	}
	return fmt.Errorf("%w: xds server %s deleted it", ErrNotFound, l.uri(l.active))
}

// judged notes the answer to a response.
func (l *loop) judged(e core.Judged) {
	n := l.types[e.Type]
	l.answered(e.Type)
	switch e.Type {
	case ClusterType:
		l.clusters.answered()
	case ListenerType:
		l.listeners.answered()
	}
	if e.Error == "" {
		l.c.counters.of(e.Type).accepted.Add(1)
		n.lastAck = time.Now()
		return
	}
	l.c.counters.of(e.Type).refused.Add(1)
	if e.Error != n.nack {
		l.causes.tell(slog.LevelWarn, e.Type, e.Error, "xds response refused, its valid resources apply", "type", e.Type, "version", e.Version, "err", e.Error)
	}
	n.nack, n.lastNack = e.Error, time.Now()
}

// setTrouble tells everybody why the server can't be reached, or that it can.
func (l *loop) setTrouble(reason string) {
	if reason == l.trouble {
		return
	}
	l.trouble = reason
	l.clusters.dirty, l.listeners.dirty = true, true
	l.secretsPending()
	for name, e := range l.eds {
		l.publish(name, e)
	}
}

// unreachable returns the trouble as an error, or nil.
func (l *loop) unreachable() error {
	if l.trouble == "" {
		return nil
	}
	return errors.New("xds server " + l.uri(l.active) + ": " + l.trouble)
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
		l.restore(AssignmentType, name)
		l.core.Subscribe(AssignmentType, name)
	}
	return e
}

// release ends the subscription to name if nobody wants it any more.
func (l *loop) release(name string) {
	if e := l.eds[name]; e != nil && !e.cluster && len(e.watches) == 0 {
		delete(l.eds, name)
		l.timers.stop(staleTimer(name))
		l.unkeepLater(AssignmentType, name)
		l.core.Unsubscribe(AssignmentType, name)
	}
}

// assignmentChanged takes a new version, or with the time until when it was right
// the one of an earlier run.
func (l *loop) assignmentChanged(name string, a *assignment, restored time.Time) {
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
		l.causes.tell(slog.LevelWarn, "left out", fmt.Sprint(name, a.notes), "eds resource is not applied as a whole", "cluster", name, "left_out", a.leftOut, "notes", a.notes)
	}
	e.report = report{assignment: a, restored: restored}
	if e.updated = restored; restored.IsZero() {
		e.updated = time.Now()
	}
	age := time.Duration(0)
	if !restored.IsZero() {
		age = lastgood.Age(restored)
	}
	if a.staleAfter > 0 && age >= a.staleAfter {
		l.assignmentStale(name)
		return
	}
	l.keepFresh(name, a, age)
	l.publish(name, e)
}

// The kinds of timers that are not the core's: for endpoint_stale_after, and until
// what nobody wants any more is not kept on disk.
const (
	timerStale core.TimerKind = math.MaxUint8 - iota
	timerUnkeep
)

func staleTimer(name string) core.Timer {
	return core.Timer{Kind: timerStale, Type: AssignmentType, Name: name}
}

// keepFresh begins the time after which a is stale anew, of which age is over.
func (l *loop) keepFresh(name string, a *assignment, age time.Duration) {
	l.timers.stop(staleTimer(name))
	if a.staleAfter > 0 {
		l.timers.start(staleTimer(name), time.Now().Add(a.staleAfter-age))
	}
}

// assignmentRenewed is assignmentChanged for what is the same again.
func (l *loop) assignmentRenewed(name string, a *assignment) {
	e := l.eds[name]
	if e == nil {
		return
	}
	l.keepFresh(name, a, 0)
	if e.report.assignment != a { // it was stale
		l.keep(AssignmentType, name)
		e.report = report{assignment: a}
		l.publish(name, e)
	}
}

// assignmentStale takes the endpoints away that were not sent again in time, as
// Envoy does.
func (l *loop) assignmentStale(name string) {
	e := l.eds[name]
	if e == nil || e.report.assignment == nil {
		return
	}
	a := e.report.assignment
	l.unkeep(AssignmentType, name) // a restart does not bring them back
	l.c.counters.stale.Add(1)
	err := fmt.Errorf("eds %q: it was not sent again within %s (endpoint_stale_after)", name, a.staleAfter)
	l.causes.tell(slog.LevelWarn, "stale", fmt.Sprint(l.c.counters.stale.Load()), // each time is news
		"eds resource is stale, its endpoints are gone", "cluster", name, "after", a.staleAfter)
	e.report = report{assignment: &assignment{set: lbcore.Set{}.WithPolicy(a.set.Policy())}, err: err}
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
	r.err = stale(r.restored, r.err)
	for w := range e.watches {
		w.report.Store(&r)
		signal(w.wake)
	}
}

// clusterState is what is known of CDS.
type clusterState struct {
	all[Cluster, ClustersUpdate]
	names map[string]bool // of the assignments that the clusters take
}

// syncClusters publishes the clusters and subscribes to the endpoints of all
// of them, also of those that are refused or that nobody runs: some servers
// answer only to a request that names every assignment they have.
func (l *loop) syncClusters() {
	s := &l.clusters
	s.dirty = false
	l.syncSecrets()
	wanted := make(map[string]bool)
	update := ClustersUpdate{Known: s.known, Err: stale(s.oldest(), l.unreachable())}
	for _, name := range slices.Sorted(maps.Keys(s.entries)) {
		e := s.entries[name]
		if v := inForce(e, l.lookupSecret); v != nil {
			update.Clusters = append(update.Clusters, v)
		}
		if e.reason != "" {
			update.Rejected = append(update.Rejected, Rejected{name, e.reason})
		}
		for _, c := range []*Cluster{e.value, e.partial} {
			if c != nil && c.EDSName != "" {
				wanted[names.Canonical(c.EDSName)] = true
			}
		}
	}
	for name := range wanted {
		l.entry(name).cluster = true
	}
	for name := range s.names {
		if !wanted[name] {
			l.eds[name].cluster = false
			l.release(name)
		}
	}
	s.names = wanted
	l.syncSecrets() // of versions that are left
	l.aimLoads()
	s.publish(&update)
}
