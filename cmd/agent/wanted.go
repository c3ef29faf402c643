package main

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"

	"gatehouse.internal/cmd/agent/internal/config"
	"gatehouse.internal/cmd/agent/internal/node"
	"gatehouse.internal/discovery/consul"
	"gatehouse.internal/internal/loglimit"
	"gatehouse.internal/xds"
)

// giver is one who says a part of what the node is to run besides the files. It
// says the whole of its part each time, so the newest word is all that counts.
type giver[T any] struct {
	said  atomic.Pointer[T] // the newest, nil before the first
	taken atomic.Pointer[T] // what was made of it part of what runs
}

// wanted joins the parts: files win over the control plane, which wins over the
// catalog. One goroutine, that of run, owns it.
type wanted struct {
	files   node.Spec
	mute    mute
	cds     giver[xds.ClustersUpdate]  // anybody
	lds     giver[xds.ListenersUpdate] // anybody
	catalog giver[consul.Listeners]    // anybody
	wake    chan struct{}              // one slot
	reloads chan rereading
	notes   notes
	trouble string // of the catalog, as logged last

	staleWaits bool // what an earlier run knew does not count as an answer
}

// mute are the givers that are not asked: what they have said, or say still, does
// not count.
type mute struct{ cds, lds, catalog bool }

// muted returns who is not asked according to cfg.
func muted(cfg *config.Config) mute {
	control := cfg.XDS.Enabled()
	return mute{cds: !control || !cfg.XDS.Clusters, lds: !control || !cfg.XDS.Listeners, catalog: !cfg.Consul.Listeners}
}

// of returns what is left of said.
func (m mute) of(said words) words {
	if m.cds {
		said.cds = nil
	}
	if m.lds {
		said.lds = nil
	}
	if m.catalog {
		said.catalog = nil
	}
	return said
}

// rereading is what files say anew.
type rereading struct {
	files node.Spec
	mute  mute
	done  chan error
}

// reread makes files part of what runs, in the place of what they said before. On
// an error that stays. It waits for run.
func (w *wanted) reread(ctx context.Context, files node.Spec, mute mute) error {
	r := rereading{files, mute, make(chan error, 1)}
	select {
	case w.reloads <- r:
		return <-r.done
	case <-ctx.Done():
		return ctx.Err()
	}
}

// take takes up what files say anew, and what the givers said that was taken last:
// an error is the files' then.
func (w *wanted) take(ctx context.Context, r rereading, apply func(context.Context, node.Spec) error) error {
	said := r.mute.of(words{w.cds.taken.Load(), w.lds.taken.Load(), w.catalog.taken.Load()})
	files := w.files
	w.files = r.files
	if err := apply(ctx, w.join(said)); err != nil {
		w.files = files
		return err
	}
	if r.mute.cds != w.mute.cds {
		w.cds.said.Store(nil)
		w.cds.taken.Store(nil)
	}
	if r.mute.lds != w.mute.lds {
		w.lds.said.Store(nil)
		w.lds.taken.Store(nil)
	}
	if r.mute.catalog != w.mute.catalog {
		w.catalog.said.Store(nil)
		w.catalog.taken.Store(nil)
	}
	w.mute = r.mute
	w.poke() // what a giver said in vain may go with these files
	return nil
}

// words are the newest of all givers; nil is none yet.
type words struct {
	cds     *xds.ClustersUpdate
	lds     *xds.ListenersUpdate
	catalog *consul.Listeners
}

// saidClusters, saidControlListeners and saidListeners take a giver's newest word.
// They don't block.
func (w *wanted) saidClusters(u xds.ClustersUpdate) {
	w.cds.said.Store(&u)
	w.poke()
}

func (w *wanted) saidControlListeners(u xds.ListenersUpdate) {
	w.lds.said.Store(&u)
	w.poke()
}

func (w *wanted) saidListeners(l consul.Listeners) {
	w.catalog.said.Store(&l)
	w.poke()
}

func (w *wanted) poke() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// run makes what the givers say part of what runs, until ctx ends.
func (w *wanted) run(ctx context.Context, apply func(context.Context, node.Spec) error, taken func()) error {
	for {
		select {
		case r := <-w.reloads:
			r.done <- w.take(ctx, r, apply)
		case <-w.wake:
			said := w.mute.of(words{w.cds.said.Load(), w.lds.said.Load(), w.catalog.said.Load()})
			w.tellTrouble(said.catalog)
			said = w.known(said)
			if w.differs(said) {
				spec := w.join(said)
				if err := apply(ctx, spec); err != nil {
					if ctx.Err() == nil {
						w.notes.log.Error("what the control plane and the catalog say is not applied", "err", err)
					}
					continue
				}
			}
			// Not before: the agent is not ready until it is there.
			w.cds.taken.Store(said.cds)
			w.lds.taken.Store(said.lds)
			w.catalog.taken.Store(said.catalog)
			taken()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// known returns these words, or in the place of one without knowledge what was taken
// last, with the newest error: who is asked in the place of another, since a reload,
// takes nothing away before the first answer.
func (w *wanted) known(said words) words {
	if last := w.cds.taken.Load(); said.cds != nil && !said.cds.Known && last != nil {
		held := *last
		held.Err = said.cds.Err
		said.cds = &held
	}
	if last := w.lds.taken.Load(); said.lds != nil && !said.lds.Known && last != nil {
		held := *last
		held.Err = said.lds.Err
		said.lds = &held
	}
	if last := w.catalog.taken.Load(); said.catalog != nil && !said.catalog.Known && last != nil {
		held := *last
		held.Err = said.catalog.Err
		said.catalog = &held
	}
	return said
}

// differs reports whether there is more in these words than was taken.
func (w *wanted) differs(said words) bool {
	cds, lds, catalog := said.cds, said.lds, said.catalog
	c, x, l := w.cds.taken.Load(), w.lds.taken.Load(), w.catalog.taken.Load()
	return lds != nil && lds.Known && (x == nil || !x.Known || !slices.Equal(x.Listeners, lds.Listeners) || !slices.Equal(x.Rejected, lds.Rejected)) ||
		cds != nil && cds.Known && (c == nil || !c.Known || !slices.Equal(c.Clusters, cds.Clusters) || !slices.Equal(c.Rejected, cds.Rejected)) ||
		catalog != nil && catalog.Known && (l == nil || !l.Known || !slices.Equal(l.Listeners, catalog.Listeners) || !slices.Equal(l.Refused, catalog.Refused))
}

// join returns the whole state that is wanted, and notes what of it is not to
// be had.
func (w *wanted) join(said words) node.Spec {
	spec := w.files
	if said.cds != nil {
		spec = w.withClusters(spec, said.cds)
	}
	if said.lds != nil {
		spec = w.withControlListeners(spec, said.lds)
	}
	if said.catalog != nil {
		spec = w.withListeners(spec, said.catalog)
	}
	for _, un := range spec.UnsupportedListeners {
		what := "a listener of the catalog is refused"
		if un.Origin == config.OriginXDS {
			what = "a listener of the control plane is not open"
		}
		w.notes.add(slog.LevelWarn, what, "listener", un.Name, "reason", un.Reason)
	}
	w.notes.end()
	return spec
}

// withClusters adds the control plane's part.
func (w *wanted) withClusters(spec node.Spec, u *xds.ClustersUpdate) node.Spec {
	clusters, unsupported := node.FromXDS(u.Clusters)
	for _, r := range u.Rejected { // of those with a version before, that one runs
		if !slices.ContainsFunc(u.Clusters, func(c *xds.Cluster) bool { return c.Name == r.Name }) && r.Name != "" {
			unsupported = append(unsupported, node.Unsupported{Name: r.Name, Reason: "rejected: " + r.Reason})
		}
	}
	spec, shadowed := spec.With(clusters, unsupported)
	if len(shadowed) > 0 {
		w.notes.add(slog.LevelWarn, "clusters of the control plane are not used, a file has clusters of these names", "clusters", shadowed)
	}
	for _, c := range u.Clusters {
		if len(c.Ignored) > 0 {
			w.notes.add(slog.LevelInfo, "cluster has settings that are not applied", "cluster", c.Name, "settings", c.Ignored)
		}
		if len(c.Warnings) > 0 {
			w.notes.add(slog.LevelWarn, "cluster is less than it may seem", "cluster", c.Name, "warnings", c.Warnings)
		}
	}
	for _, un := range spec.Unsupported {
		w.notes.add(slog.LevelWarn, "cluster is not supported and refuses connections", "cluster", un.Name, "reason", un.Reason)
	}
	return spec
}

// withControlListeners adds the control plane's listeners.
func (w *wanted) withControlListeners(spec node.Spec, u *xds.ListenersUpdate) node.Spec {
	listeners, unsupported, notes := node.ListenersFromXDS(u.Listeners)
	spec = spec.WithOptional(listeners)
	spec.UnsupportedListeners = append(spec.UnsupportedListeners, unsupported...)
	for _, r := range u.Rejected { // of those with a version before, that one runs
		if !slices.ContainsFunc(u.Listeners, func(l *xds.Listener) bool { return l.Name == r.Name }) && r.Name != "" {
			spec.UnsupportedListeners = append(spec.UnsupportedListeners, node.Unsupported{Name: r.Name, Reason: "rejected: " + r.Reason, Origin: config.OriginXDS})
		}
	}
	for _, n := range notes {
		level := slog.LevelInfo
		if n.Warn {
			level = slog.LevelWarn
		}
		w.notes.add(level, "listener has settings that are not applied", "listener", n.Listener, "setting", n.Text)
	}
	for _, l := range listeners {
		if why := l.Control.Unsupported; why != "" {
			w.notes.add(slog.LevelWarn, "listener is not supported and not open", "listener", l.Name, "reason", why)
		}
	}
	return spec
}

// withListeners adds the catalog's part: a listener for each address that a
// service asks for, and a cluster for each service that has none yet.
func (w *wanted) withListeners(spec node.Spec, l *consul.Listeners) node.Spec {
	var clusters []config.Cluster
	var listeners []config.Listener
	for _, x := range l.Listeners { // sorted
		if n := len(clusters); n == 0 || clusters[n-1].Name != x.Service {
			clusters = append(clusters, config.DefaultCluster(x.Service, config.OriginConsul,
				config.Discovery{Kind: config.DiscoveryConsul, Service: x.Service}))
		}
		listeners = append(listeners, config.DefaultListener(x.Service+"@"+x.Address.String(), config.OriginConsul, x.Address, x.Service))
	}
	spec, shadowed := spec.With(clusters, nil)
	if len(shadowed) > 0 {
		w.notes.add(slog.LevelInfo, "services of the catalog use the clusters of these names that are there already", "clusters", shadowed)
	}
	spec = spec.WithOptional(listeners)
	for _, r := range l.Refused {
		spec.UnsupportedListeners = append(spec.UnsupportedListeners, node.Unsupported{Name: r.Service + "@" + r.Value, Reason: r.Reason, Origin: config.OriginConsul})
	}
	return spec
}

// tellTrouble logs when the catalog begins or ceases to tell its listeners.
func (w *wanted) tellTrouble(l *consul.Listeners) {
	text := ""
	if l != nil && l.Err != nil {
		text = l.Err.Error()
	}
	if text == w.trouble {
		return
	}
	w.trouble = text
	if text != "" {
		w.notes.log.Warn("the catalog does not tell its listeners, the last ones stay", "err", text)
	} else {
		w.notes.log.Info("the catalog tells its listeners", "listeners", len(l.Listeners))
	}
}

// waiting says, a line each, whose first word was not taken yet, but for those in
// not.
func (w *wanted) waiting(not mute) (lines []string) {
	line := func(what string, known bool, err error) {
		switch {
		case known && (!w.staleWaits || restoredAge(err) == ""):
		case err != nil:
			lines = append(lines, fmt.Sprintf("%s: %v", what, err))
		default:
			lines = append(lines, what+": no answer yet")
		}
	}
	if !not.cds {
		u := w.cds.taken.Load()
		if u == nil {
			u = new(xds.ClustersUpdate)
		}
		line("clusters of the control plane", u.Known, u.Err)
	}
	if !not.lds {
		u := w.lds.taken.Load()
		if u == nil {
			u = new(xds.ListenersUpdate)
		}
		line("listeners of the control plane", u.Known, u.Err)
	}
	if !not.catalog {
		l := w.catalog.taken.Load()
		if l == nil {
			l = new(consul.Listeners)
		}
		line("listeners of the catalog", l.Known, l.Err)
	}
	return lines
}

// stale reports whether the word of anybody whom waiting names, the newest or the one that
// was taken last, is one of an earlier run.
func (w *wanted) stale(not mute) bool {
	if !w.staleWaits {
		return false
	}
	for _, said := range []words{
		{w.cds.said.Load(), w.lds.said.Load(), w.catalog.said.Load()}, {w.cds.taken.Load(), w.lds.taken.Load(), w.catalog.taken.Load()},
	} {
		said = not.of(said)
		if said.cds != nil && restoredAge(said.cds.Err) != "" || said.lds != nil && restoredAge(said.lds.Err) != "" ||
			said.catalog != nil && restoredAge(said.catalog.Err) != "" {
			return true
		}
	}
	return false
}

// restored says, a line each, of which giver the last word is one of an earlier run.
func (w *wanted) restored() (lines []string) {
	if u := w.cds.said.Load(); u != nil && restoredAge(u.Err) != "" {
		lines = append(lines, fmt.Sprintf("clusters of the control plane: stale, those of before the restart, %s old", restoredAge(u.Err)))
	}
	if u := w.lds.said.Load(); u != nil && restoredAge(u.Err) != "" {
		lines = append(lines, fmt.Sprintf("listeners of the control plane: stale, those of before the restart, %s old", restoredAge(u.Err)))
	}
	if l := w.catalog.said.Load(); l != nil && restoredAge(l.Err) != "" {
		lines = append(lines, fmt.Sprintf("listeners of the catalog: stale, those of before the restart, %s old", restoredAge(l.Err)))
	}
	return lines
}

// notes are what is to be said about a state, each once for as long as it lasts, at a
// rate.
type notes struct {
	log       *slog.Logger
	said, now map[string]bool
	limit     loglimit.Limit
}

func (n *notes) add(level slog.Level, msg string, args ...any) {
	key := fmt.Sprint(msg, args)
	if n.now == nil {
		n.now = make(map[string]bool)
	}
	if !n.said[key] && !n.now[key] {
		if held, ok := n.limit.Allow(); ok {
			if held > 0 {
				args = append(args, "not_logged", held)
			}
			n.log.Log(context.Background(), level, msg, args...)
		}
	}
	n.now[key] = true
}

// end ends the notes about one state.
func (n *notes) end() { n.said, n.now = n.now, nil }
